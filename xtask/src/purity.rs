//! The core reaches nothing outside: by its words, by its `no_std`, and by what it depends on.
//!
//! `#![no_std]` lets the compiler refuse clocks, files, sockets and threads. What it cannot see is checked here:
//! that the attribute stays, that nothing brings `std` back in, that no dependency has it switched on, and that
//! nothing with an order or a state of its own (hash maps, atomics, statics) comes in by way of `core`.

use crate::Finding;
use crate::modules;
use crate::source::{is_test_file, line_of, mask, tests, words};
use crate::tree::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

const CORE: &str = "crates/core/src/";
const LIB: &str = "crates/core/src/lib.rs";
const MANIFEST: &str = "crates/core/Cargo.toml";

/// Words that have no place in the core, with the reason.
const FORBIDDEN: &[(&str, &str)] = &[
    ("std::", "the core is no_std: use core or alloc"),
    ("HashMap", "its order differs from process to process: use BTreeMap"),
    ("HashSet", "its order differs from process to process: use BTreeSet"),
    ("Instant", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("thread", "the core has no threads"),
    ("rand", "chance is an argument"),
    ("atomic", "the core shares no state"),
    ("static mut", "the core has no state of its own"),
    ("thread_local", "the core has no state of its own"),
];

/// What the core may name as a dependency. What these bring along is looked at for `std` alone.
const DEPENDENCIES: &[&str] = &["serde", "serde_json", "sha2", "thiserror"];

/// All checks on the tree.
pub(crate) fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let files = tree::files(root)?;
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(CORE) && file.path.ends_with(".rs")) {
        findings.extend(forbidden_words(file));
    }
    match files.iter().find(|file| file.path == LIB) {
        Some(lib) => findings.extend(no_std(lib)),
        None => findings.push(Finding::new(LIB, 1, "the core is not here")),
    }
    let (layers, knot) = modules::check(&files);
    findings.extend(layers);
    // A closed pipe means that the reader has seen enough.
    let _ = writeln!(
        io::stdout().lock(),
        "the largest knot of the core: {} of at most {} modules ({})",
        knot.len(),
        modules::KNOT_MAX,
        knot.join(", ")
    );
    findings.extend(direct_dependencies(&tree_of(root, &["normal", "--depth", "1"])?));
    findings.extend(std_features(&tree_of(root, &["normal,features"])?));
    findings.sort();
    Ok(findings)
}

/// The dependency tree of the core as cargo tells it, one package or feature a line.
fn tree_of(root: &Path, edges: &[&str]) -> io::Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["tree", "--locked", "-p", "windlass-core", "--prefix", "none", "-e"])
        .args(edges)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn forbidden_words(file: &File) -> Vec<Finding> {
    if is_test_file(&file.path) {
        return Vec::new();
    }
    let masked = mask(&file.text);
    let test_spans = tests(&masked);
    let mut findings = Vec::new();
    for (word, reason) in FORBIDDEN {
        for at in words(&masked, word) {
            if !test_spans.iter().any(|span| span.contains(&at)) {
                let message = format!("`{word}` in the core: {reason}");
                findings.push(Finding::new(&file.path, line_of(&masked, at), message));
            }
        }
    }
    findings
}

fn no_std(lib: &File) -> Vec<Finding> {
    let masked = mask(&lib.text);
    let mut findings = Vec::new();
    if !masked.lines().any(|line| line.trim() == "#![no_std]") {
        findings.push(Finding::new(&lib.path, 1, "`#![no_std]` is missing"));
    }
    let test_spans = tests(&masked);
    for at in words(&masked, "extern crate std") {
        if !test_spans.iter().any(|span| span.contains(&at)) {
            let message = "`extern crate std` outside of `#[cfg(test)]`";
            findings.push(Finding::new(&lib.path, line_of(&masked, at), message));
        }
    }
    findings
}

fn direct_dependencies(tree: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut names = tree.lines().filter_map(|line| line.split_whitespace().next());
    if names.next() != Some("windlass-core") {
        findings.push(Finding::new(MANIFEST, 1, "cargo tree does not begin with the core"));
    }
    for name in names.filter(|name| !DEPENDENCIES.contains(name)) {
        let message = format!("the core may depend on {DEPENDENCIES:?}, not on `{name}`");
        findings.push(Finding::new(MANIFEST, 1, message));
    }
    findings
}

fn std_features(tree: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> = tree
        .lines()
        .filter_map(|line| line.trim_end_matches(" (*)").strip_suffix(" feature \"std\""))
        .map(|name| Finding::new(MANIFEST, 1, format!("`{name}` has its `std` feature on")))
        .collect();
    // Were the form of cargo's answer another one, silence would mean nothing.
    if !tree.lines().any(|line| line.starts_with("serde feature \"alloc\"")) {
        findings.push(Finding::new(MANIFEST, 1, "cargo tree does not tell features as expected"));
    }
    findings.sort();
    findings.dedup();
    findings
}

#[cfg(test)]
mod unit {
    use super::*;

    fn core(text: &str) -> File {
        File { path: LIB.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn forbidden_words_are_found_in_code_alone() {
        for (word, _) in FORBIDDEN {
            let found = forbidden_words(&core(&format!("//! {word}\nuse a::{word} b;\n")));
            assert!(
                found.iter().any(|f| f.line == 2) && found.iter().all(|f| f.line == 2),
                "{word}: {found:?}"
            );
            assert!(forbidden_words(&core(&format!("const A: &str = \"{word}\";\n"))).is_empty());
            assert!(forbidden_words(&core(&format!("#[cfg(test)]\nmod t {{ use {word} x; }}\n"))).is_empty());
        }
        assert!(forbidden_words(&core("fn operand(instant: Millis) {}\n")).is_empty());
    }

    #[test]
    fn the_core_must_say_no_std_and_mean_it() {
        assert!(no_std(&core("#![no_std]\n#[cfg(test)]\nextern crate std;\n")).is_empty());
        assert_eq!(no_std(&core("// #![no_std]\n")).len(), 1);
        assert_eq!(no_std(&core("#![no_std]\nextern crate std;\n"))[0].line, 2);
    }

    #[test]
    fn a_foreign_dependency_is_found() {
        assert!(direct_dependencies("windlass-core v0.1.0 (x)\nserde v1.0.0\nsha2 v0.11.1\n").is_empty());
        assert_eq!(direct_dependencies("windlass-core v0.1.0\nrand v0.9.0\n").len(), 1);
        assert_eq!(direct_dependencies("").len(), 1);
    }

    #[test]
    fn a_dependency_with_std_is_found() {
        let sound = "windlass-core v0.1.0\nserde feature \"alloc\"\n";
        assert!(std_features(sound).is_empty());
        let with_std = format!("{sound}memchr feature \"std\"\nmemchr feature \"std\" (*)\n");
        assert_eq!(std_features(&with_std).len(), 1);
        assert_eq!(std_features("").len(), 1);
    }
}
