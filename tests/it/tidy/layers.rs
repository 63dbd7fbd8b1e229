//! Who may name whom: the table "Layers" of `docs/design.md` against what the modules do name.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{code_of, is_word, line_of};

/// Values, which every module may name.
const VALUES: [&str; 4] = ["types", "error", "message", "options"];

/// Module -> modules it may name, as the table says.
pub(super) type Layers = BTreeMap<String, BTreeSet<String>>;

/// The rows of the table under "## Layers".
pub(super) fn layers(design: &str) -> Layers {
    let section = design.split("\n## Layers\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.filter_map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (module, may_name) = (cells.next()?, cells.next()?);
        Some((module.to_owned(), may_name.split_whitespace().map(str::to_owned).collect()))
    })
    .collect()
}

/// Public name -> module it comes from, by the `pub use` lines of `lib.rs`.
pub(super) fn reexports(lib: &str) -> BTreeMap<String, String> {
    let code = code_of(lib);
    let mut map = BTreeMap::new();
    for item in code.split("pub use ").skip(1) {
        let path = item.split(';').next().unwrap_or_default();
        let module = path.split("::").next().unwrap_or_default().trim();
        let names = path.split(|c: char| !is_word(c)).filter(|name| name.starts_with(char::is_uppercase));
        map.extend(names.map(|name| (name.to_owned(), module.to_owned())));
    }
    map
}

/// The module a file of `src/` belongs to, and how many `super` lead from it to the crate's root.
/// `None` for the root itself and for the tool, which is another crate.
fn module_of(path: &str) -> Option<(&str, usize)> {
    let inside = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    if inside.starts_with("bin/") || inside == "lib" || inside == "main" {
        return None;
    }
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    Some((inside.split('/').next()?, inside.split('/').count()))
}

/// Modules named in a file that its row does not allow.
pub(super) fn trespasses(path: &str, text: &str, table: &Layers, names: &BTreeMap<String, String>) -> Vec<String> {
    let Some((module, depth)) = module_of(path) else { return Vec::new() };
    let Some(allowed) = table.get(module) else {
        return vec![format!("{path}: module {module} has no row in the table \"Layers\"")];
    };
    let code = code_of(text);
    let root = vec!["super"; depth].join("::") + "::";
    let mut findings = Vec::new();
    for (at, prefix) in code.match_indices("crate::").chain(code.match_indices(&root)) {
        let before = &code[..at];
        if before.ends_with(is_word) || before.ends_with("super::") {
            continue;
        }
        for name in heads(&code[at + prefix.len()..]) {
            let named = names.get(name).map_or(name, String::as_str);
            if named != module && named != "super" && !VALUES.contains(&named) && !allowed.contains(named) {
                findings.push(format!("{path}:{}: {module} may not name {named}", line_of(&code, at)));
            }
        }
    }
    findings
}

/// The first segments of a path or of a braced group of paths.
fn heads(path: &str) -> Vec<&str> {
    let Some(group) = path.strip_prefix('{') else {
        return path.split(|c| !is_word(c)).take(1).collect();
    };
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    parts.into_iter().filter_map(|part| part.trim().split(|c| !is_word(c)).find(|head| !head.is_empty())).collect()
}

const SAMPLE: &str =
    "# Design\n\n## Layers\n\n| module | may name |\n|---|---|\n| log | codec env |\n| codec | |\n\n## More\n";

#[test]
fn the_table_is_read_row_by_row() {
    let table = layers(SAMPLE);
    assert_eq!(table.len(), 2);
    assert!(table["log"].contains("env") && table["codec"].is_empty());
}

#[test]
fn naming_an_upper_or_sideways_module_is_found_in_every_spelling() {
    let table = layers(SAMPLE);
    let names = reexports("pub use engine::{Engine, Other};\npub use types::id::MessageId;");
    let check = |path: &str, text: &str| trespasses(path, text, &table, &names).len();
    assert_eq!(check("src/log/mod.rs", "use crate::index::Rows;"), 1);
    assert_eq!(check("src/log/mod.rs", "use crate::{codec, index::{a, b}, env::Fs};"), 1);
    assert_eq!(check("src/log/mod.rs", "fn a() { crate::engine::go() }"), 1);
    assert_eq!(check("src/log/mod.rs", "use super::index::Rows;"), 1);
    assert_eq!(check("src/log/writer.rs", "use super::super::index::Rows;"), 1);
    assert_eq!(check("src/log/mod.rs", "use crate::Engine;"), 1);
    assert_eq!(check("src/nowhere.rs", ""), 1);
}

#[test]
fn what_the_table_allows_is_not_found() {
    let table = layers(SAMPLE);
    let names = reexports("pub use types::id::MessageId;");
    let text = "//! [`crate::index`]\nuse crate::codec::crc;\nuse crate::{MessageId, error::Error};\nuse super::writer;\n\
                use crate::log::frame;\n#[cfg(test)]\nmod tests { use crate::engine::Engine; }";
    assert_eq!(trespasses("src/log/reader.rs", text, &table, &names), Vec::<String>::new());
    assert_eq!(trespasses("src/bin/reappear/main.rs", "use crate::args;", &table, &names), Vec::<String>::new());
}
