//! The map in each crate's README: one line per source file, taken from the first sentence of the file's `//!`.
//!
//! `cargo run -p xtask -- docs` writes the maps; `tidy` reports the ones that are out of date.

use crate::Finding;
use crate::source::is_test_file;
use crate::tree::File;
use std::fmt::Write as _;
use std::path::Path;

const START: &str = "<!-- map -->\n";
const END: &str = "<!-- end of map -->\n";

/// Reports every crate without a README, and every README whose map differs from the sources.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages(files) {
        let path = format!("{package}/README.md");
        let message = match files.iter().find(|file| file.path == path) {
            None => {
                "a crate has a README: what it is for, what it may know, its invariants, its map".to_owned()
            }
            Some(readme) => match renewed(&readme.text, &map(files, package)) {
                None => {
                    format!("the map goes between `{}` and `{}`: add these lines", START.trim(), END.trim())
                }
                Some(text) if text == readme.text => continue,
                Some(_) => "the map is out of date: run `cargo run -p xtask -- docs`".to_owned(),
            },
        };
        findings.push(Finding::new(&path, 1, message));
    }
    findings
}

/// Writes the map of every crate whose README has a place for one.
pub(crate) fn write(root: &Path, files: &[File]) -> std::io::Result<()> {
    for package in packages(files) {
        let path = format!("{package}/README.md");
        let Some(readme) = files.iter().find(|file| file.path == path) else { continue };
        match renewed(&readme.text, &map(files, package)) {
            Some(text) if text != readme.text => std::fs::write(root.join(&path), text)?,
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// The folders of all packages, without duplicates: `crates/core`, …, `xtask`.
fn packages(files: &[File]) -> Vec<&str> {
    let roots = ["/src/lib.rs", "/src/main.rs"];
    let mut packages: Vec<&str> =
        files.iter().filter_map(|file| roots.iter().find_map(|root| file.path.strip_suffix(root))).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The README with `map` in the place of its map, or `None` if it has no place for one.
fn renewed(readme: &str, map: &str) -> Option<String> {
    let (before, rest) = readme.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}{map}{END}{after}"))
}

/// The map of one package. Test files are left out: their names follow from the files they test.
fn map(files: &[File], package: &str) -> String {
    let mut map = String::from("\n| file in `src` | |\n|---|---|\n");
    let src = format!("{package}/src/");
    for file in files {
        let Some(name) = file.path.strip_prefix(&src).filter(|name| name.ends_with(".rs")) else { continue };
        if !is_test_file(&file.path) {
            let purpose = first_sentence(&file.text).replace('|', "\\|");
            let _ = writeln!(map, "| `{name}` | {purpose} |");
        }
    }
    map.push('\n');
    map
}

/// The first sentence of a file's `//!` comment: up to the first full stop before a blank, or its first paragraph.
fn first_sentence(source: &str) -> String {
    let lines = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let text = paragraph.join(" ");
    match text.split_once(". ") {
        Some((first, _)) => format!("{first}."),
        None => text,
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn package(readme: &str) -> Vec<File> {
        vec![
            file("crates/x/README.md", readme),
            file("crates/x/src/lib.rs", "//! The\n//! crate. More.\n"),
            file("crates/x/src/lib/tests.rs", "//! Tests.\n"),
            file("crates/x/src/lock.rs", "//! A | B.\nuse a;\n"),
            file("crates/x/tests/a.rs", "//! Black box.\n"),
        ]
    }

    const CURRENT: &str = "# x\n\n<!-- map -->\n\n| file in `src` | |\n|---|---|\n| `lib.rs` | The crate. |\n\
        | `lock.rs` | A \\| B. |\n\n<!-- end of map -->\n";

    #[test]
    fn a_current_map_passes_and_a_stale_one_is_found() {
        assert_eq!(check(&package(CURRENT)), []);
        let mut changed = package(CURRENT);
        changed[3].text = "//! Another purpose.\n".to_owned();
        assert!(check(&changed)[0].message.contains("out of date"));
        let stale = CURRENT.replace("| `lock.rs` | A \\| B. |\n", "");
        assert_eq!(renewed(&stale, &map(&package(&stale), "crates/x")).as_deref(), Some(CURRENT));
    }

    #[test]
    fn a_readme_that_is_missing_or_has_no_map_is_found() {
        let missing = &package(CURRENT)[1..];
        assert!(check(missing)[0].message.contains("has a README"));
        assert!(check(&package("# x\n"))[0].message.contains("add these lines"));
    }

    #[test]
    fn a_first_sentence_ends_at_its_full_stop() {
        assert_eq!(first_sentence("//! One\n//! line. Two.\n//!\n//! Three.\nuse a;\n"), "One line.");
        assert_eq!(first_sentence("use a;\n"), "");
    }
}
