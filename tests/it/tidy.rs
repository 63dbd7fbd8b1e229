//! The house rules, checked: who may name whom, sizes, names, words that may not stay, documents.
//!
//! Each rule is a function over a path and a text that gives its findings, so that each can be shown a
//! bad sample and must find it. The words searched for are put together from halves: this file is read too.

mod documents;
mod layers;
mod source;

use std::path::Path;
use std::process::Command;

use source::{code_of, is_word, item_end, line_of, mask, words};

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 70;
const VAGUE_NAMES: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"];
const UNFINISHED: [&str; 6] = [
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("db", "g!"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("#[ig", "nore"),
];

/// All text files of the checkout, as (path from its root, text).
fn files() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = listed(root).unwrap_or_else(|| walked(root));
    paths.sort();
    let read = |path: String| Some((path.clone(), std::fs::read_to_string(root.join(path)).ok()?));
    paths.into_iter().filter_map(read).collect()
}

/// What git knows or would add. `None` without git, or when this is no checkout of its own.
fn listed(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    let output = git.args(["ls-files", "-co", "--exclude-standard"]).current_dir(root).output().ok()?;
    let paths: Vec<String> = String::from_utf8(output.stdout).ok()?.lines().map(str::to_owned).collect();
    (output.status.success() && paths.iter().any(|path| path == "Cargo.toml")).then_some(paths)
}

fn walked(root: &Path) -> Vec<String> {
    let skipped = ["target", ".git"];
    let wanted = |entry: &walkdir::DirEntry| !skipped.iter().any(|name| entry.file_name() == *name);
    let entries = walkdir::WalkDir::new(root).into_iter().filter_entry(wanted).flatten();
    let relative = |entry: walkdir::DirEntry| Some(entry.path().strip_prefix(root).ok()?.to_str()?.to_owned());
    entries.filter(|entry| entry.file_type().is_file()).filter_map(relative).collect()
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

/// Part of the library itself: not the tool, not a file of unit tests.
fn is_library(path: &str) -> bool {
    is_rust(path) && path.starts_with("src/") && !path.starts_with("src/bin/") && !is_test_file(path)
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.starts_with("tests/")
}

/// Runs `check` over the files `applies` chooses and fails with all it finds.
fn assert_tidy(applies: impl Fn(&str) -> bool, check: impl Fn(&str, &str) -> Vec<String>) {
    let files = files();
    let chosen: Vec<_> = files.iter().filter(|(path, _)| applies(path)).collect();
    assert!(!chosen.is_empty(), "the rule applies to no file at all");
    let findings: Vec<String> = chosen.iter().flat_map(|(path, text)| check(path, text)).collect();
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
}

fn text_of(path: &str) -> String {
    let found = files().into_iter().find(|(p, _)| p == path);
    found.unwrap_or_else(|| panic!("{path} is missing")).1
}

fn long_file(path: &str, text: &str) -> Vec<String> {
    let count = text.lines().count();
    if count <= MAX_FILE_LINES { Vec::new() } else { vec![format!("{path}: {count} lines, at most {MAX_FILE_LINES}")] }
}

fn long_functions(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let mut findings = Vec::new();
    for at in words(&code, "fn") {
        let name: String = code[at + 2..].trim_start().chars().take_while(|c| is_word(*c)).collect();
        let count = line_of(&code, item_end(&code, at)) - line_of(&code, at) + 1;
        if !name.is_empty() && count > MAX_FUNCTION_LINES {
            let line = line_of(&code, at);
            findings.push(format!("{path}:{line}: {name} has {count} lines, at most {MAX_FUNCTION_LINES}"));
        }
    }
    findings
}

fn vague_names(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let declared = words(&code, "mod").map(|at| code[at + 3..].trim_start().split(|c| !is_word(c)).next());
    let stems = path.trim_end_matches(".rs").split('/').map(Some);
    let vague = declared.chain(stems).flatten().filter(|name| VAGUE_NAMES.contains(name));
    vague.map(|name| format!("{path}: a module called {name} says nothing")).collect()
}

fn missing_head(path: &str, text: &str) -> Vec<String> {
    if text.starts_with("//!") || text.starts_with("#![doc = include_str!") {
        return Vec::new();
    }
    vec![format!("{path}: does not begin with what the module is (//!)")]
}

/// `name` used as an outside crate where only `owners` may: as a path's start, or imported whole.
fn foreign_name(path: &str, text: &str, name: &str, owners: &[&str]) -> Vec<String> {
    if owners.iter().any(|owner| path.starts_with(owner)) {
        return Vec::new();
    }
    let code = code_of(text);
    let has_module = words(&code, "mod").any(|at| code[at + 3..].trim_start().starts_with(name));
    let is_crate = |at: usize| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let starts_path = !before.ends_with("::") && after.starts_with("::") && !has_module;
        let from_root = before.ends_with("::") && !before.trim_end_matches(':').ends_with(|c| is_word(c) || c == '>');
        let imported = before.ends_with("use ") && (after.starts_with(';') || after.starts_with(" as "));
        starts_path || from_root || imported
    };
    let found: Vec<usize> = words(&code, name).filter(|at| is_crate(*at)).collect();
    found.into_iter().map(|at| format!("{path}:{}: only {owners:?} may name {name}", line_of(&code, at))).collect()
}

/// Files and time, which only `env/os.rs` may touch.
fn outside_world(path: &str, text: &str) -> Vec<String> {
    let code = code_of(text);
    let places = ["std::fs", "Instant", "SystemTime"].map(|word| words(&code, word).collect::<Vec<_>>());
    let grouped = code.match_indices("use std::{").filter(|(at, _)| {
        let end = item_end(&code, *at);
        words(&code[*at..end], "fs").next().is_some()
    });
    let lines = places.into_iter().flatten().chain(grouped.map(|(at, _)| at)).map(|at| line_of(&code, at));
    lines.map(|line| format!("{path}:{line}: only env/os.rs touches files and time")).collect()
}

fn unfinished(path: &str, text: &str) -> Vec<String> {
    let hits = |word: &'static str| text.match_indices(word).map(move |(at, _)| (word, at));
    let all = UNFINISHED.into_iter().flat_map(hits);
    all.map(|(word, at)| format!("{path}:{}: {word}", line_of(text, at))).collect()
}

/// A call of something named `sleep`, or a path to it.
fn sleeps(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let is_used = |at: &usize| !code[..*at].trim_end().ends_with(" fn") && !code[..*at].ends_with('.');
    let found: Vec<usize> = words(&code, "sleep").filter(is_used).collect();
    found.into_iter().map(|at| format!("{path}:{}: sleeps; move the clock instead", line_of(&code, at))).collect()
}

/// An absolute path of the machine something was made on.
fn machine_paths(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for place in [concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/tmp/ba", "sh")] {
        for (at, _) in text.match_indices(place) {
            let before = text[..at].chars().next_back();
            let after = text[at + place.len()..].chars().next();
            let inside = before.is_some_and(|c| is_word(c) || ".-}/".contains(c));
            if !inside && !after.is_some_and(|c| is_word(c) || c == '-') {
                findings.push(format!("{path}:{}: a path of one machine", line_of(text, at)));
            }
        }
    }
    findings
}

#[test]
fn modules_name_only_what_their_row_in_the_layer_table_allows() {
    let table = layers::layers(&text_of("docs/design.md"));
    let names = layers::reexports(&text_of("src/lib.rs"));
    assert!(table.len() > 10, "the table \"Layers\" was not found in docs/design.md");
    assert_tidy(is_library, |path, text| layers::trespasses(path, text, &table, &names));
}

#[test]
fn no_file_and_no_function_is_too_long() {
    assert_tidy(is_rust, long_file);
    assert_tidy(is_rust, long_functions);
}

#[test]
fn no_module_has_a_vague_name() {
    assert_tidy(is_rust, vague_names);
}

#[test]
fn every_module_begins_with_what_it_is() {
    // A file of unit tests belongs to its module, whose head says it all.
    assert_tidy(|path| is_rust(path) && !(path.starts_with("src/") && is_test_file(path)), missing_head);
}

#[test]
fn sled_and_bincode_are_each_named_in_one_place() {
    let in_src = |path: &str| is_rust(path) && path.starts_with("src/") && !is_test_file(path);
    assert_tidy(in_src, |path, text| foreign_name(path, text, "sled", &["src/index/sled"]));
    assert_tidy(in_src, |path, text| foreign_name(path, text, "bincode", &["src/record/", "src/record.rs"]));
}

#[test]
fn only_the_real_environment_touches_files_and_time() {
    assert_tidy(|path| is_library(path) && !path.starts_with("src/env/os"), outside_world);
}

#[test]
fn nothing_unfinished_is_left() {
    assert_tidy(is_rust, unfinished);
}

#[test]
fn nothing_sleeps() {
    assert_tidy(|path| is_rust(path) && (path.starts_with("src/") || path.starts_with("tests/")), sleeps);
}

#[test]
fn no_file_holds_a_path_of_one_machine() {
    assert_tidy(|path| !path.ends_with(".lock"), machine_paths);
}

#[test]
fn every_rule_finds_its_bad_sample() {
    let found = |findings: Vec<String>| assert_eq!(findings.len(), 1, "{findings:?}");
    let at = "src/log/writer.rs";
    found(long_file(at, &"\n".repeat(MAX_FILE_LINES + 1)));
    found(long_functions(at, &format!("fn f(a: [u8; 4]) {{{}}}", "\n".repeat(MAX_FUNCTION_LINES))));
    found(vague_names(at, "mod util;"));
    found(vague_names("src/helper.rs", ""));
    found(missing_head(at, "// not a head\n"));
    for text in
        ["use sled::Db;", "fn f() { ::sled::open() }", "use sled;", "use ::sled::Db;", "mod sled; use ::sled::Db;"]
    {
        found(foreign_name("src/index/mod.rs", text, "sled", &["src/index/sled"]));
    }
    for text in ["use std::fs::File;", "use std::{fs, io};", "fn f() { Instant::now() }", "use std::time::SystemTime;"]
    {
        found(outside_world(at, text));
    }
    for word in UNFINISHED {
        found(unfinished(at, &format!("// {word}")));
    }
    for call in ["std::thread::sl", "tokio::time::sl", "sl"] {
        found(sleeps(at, &format!("fn f() {{ {call}eep(d) }}")));
    }
    found(machine_paths("docs/a.md", concat!("see `/wo", "rk/notes`")));
}

#[test]
fn no_rule_finds_a_good_sample() {
    let none = |findings: Vec<String>| assert!(findings.is_empty(), "{findings:?}");
    let at = "src/log/writer.rs";
    none(long_file(at, &"\n".repeat(MAX_FILE_LINES)));
    none(long_functions(at, &format!("fn f() {{{}}}\nfn g(h: fn(u8)) {{}}", "\n".repeat(MAX_FUNCTION_LINES - 1))));
    none(vague_names("src/types/name.rs", "// mod util\nmod name;"));
    none(missing_head(at, "//! Writes.\n"));
    for text in
        ["mod sled; use self::sled::Rows;", "use super::sled::Rows;", "// sled::Db", "use crate::index::sled::X;"]
    {
        none(foreign_name("src/index/mod.rs", text, "sled", &["src/index/sled"]));
    }
    none(foreign_name("src/index/sled.rs", "use sled::Db;", "sled", &["src/index/sled"]));
    none(outside_world(at, "use crate::env::Fs; // std::fs\n#[cfg(test)] mod tests { use std::fs::File; }"));
    none(unfinished(at, "//! Left to do: nothing."));
    none(sleeps(at, "fn sleep_for() {} // sleep(1)\ntrait T { fn sleep(&self); }"));
    none(machine_paths("docs/a.md", concat!("src/wo", "rker.rs, https://example.org/ro", "ot/a, {dir}/wo", "rk")));
}
