//! What the documents must say: a reason for each dependency, links that lead somewhere, a change log.

use std::collections::BTreeSet;

use super::{files, text_of};

/// Dependencies named in a manifest, of the program, its tests and its build.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut inside = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim_matches(['[', ']']).ends_with("dependencies");
        } else if let Some((name, _)) = line.split_once('=')
            && inside
            && !name.starts_with(['#', ' '])
        {
            names.insert(name.trim().to_owned());
        }
    }
    names
}

/// Rows of the form "| `name` | …" in the section "## Dependencies".
fn explained(decisions: &str) -> BTreeSet<String> {
    let section = decisions.split("\n## Dependencies\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_owned).collect()
}

/// Dependencies without a reason, and reasons without a dependency.
fn unexplained(manifest: &str, decisions: &str) -> Vec<String> {
    let (used, explained) = (dependencies(manifest), explained(decisions));
    let missing = used.difference(&explained).map(|name| format!("{name} has no row in docs/decisions.md"));
    let left_over = explained.difference(&used).map(|name| format!("{name} has a row, but is not used any more"));
    missing.chain(left_over).collect()
}

/// Links of a document, relative to its own directory, that lead to none of `paths`.
fn dead_links(path: &str, text: &str, paths: &BTreeSet<String>) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    let leads_nowhere = |target: &&str| !paths.contains(&resolved(path, target));
    local.filter(leads_nowhere).map(|target| format!("{path}: the link to {target} leads nowhere")).collect()
}

fn resolved(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('#').next().unwrap_or_default().split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// What a change log needs to be kept up.
fn missing_headings(changelog: &str) -> Vec<String> {
    let wanted = ["## [Unreleased]", "### Format"];
    let missing = wanted.into_iter().filter(|heading| !changelog.lines().any(|line| line == *heading));
    missing.map(|heading| format!("CHANGELOG.md has no heading {heading:?}")).collect()
}

#[test]
fn every_dependency_has_its_reason() {
    let findings = unexplained(&text_of("Cargo.toml"), &text_of("docs/decisions.md"));
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let files = files();
    let paths: BTreeSet<String> = files.iter().map(|(path, _)| path.clone()).collect();
    let documents = files.iter().filter(|(path, _)| path.ends_with(".md"));
    let findings: Vec<String> = documents.flat_map(|(path, text)| dead_links(path, text, &paths)).collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn the_change_log_has_a_place_for_what_is_not_released() {
    let findings = missing_headings(&text_of("CHANGELOG.md"));
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn bad_documents_are_found() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na = \"1\"\n# b = \"1\"\n[dev-dependencies]\nc = { version = \"1\" }\n";
    let decisions = "# Decisions\n\n## Dependencies\n\n| crate | why |\n|---|---|\n| `a` | it |\n| `d` | gone |\n";
    assert_eq!(
        unexplained(manifest, decisions),
        ["c has no row in docs/decisions.md", "d has a row, but is not used any more"]
    );
    let paths = BTreeSet::from(["docs/a.md".to_owned(), "README.md".to_owned()]);
    let text = "[a](a.md#part) [up](../README.md) [web](https://example.org) [here](#part) [b](b.md)";
    assert_eq!(dead_links("docs/c.md", text, &paths), ["docs/c.md: the link to b.md leads nowhere"]);
    assert_eq!(missing_headings("# Changes\n\n## [0.1.0]\n").len(), 2);
    assert!(missing_headings("## [Unreleased]\n\n### Format\n").is_empty());
}
