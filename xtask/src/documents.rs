//! The rules of documents: white space, links that lead somewhere, no paths of one machine, and a page for
//! every error code.

use crate::Finding;
use crate::tree::File;
use std::path::{Component, Path, PathBuf};

/// Folders that stand at the root of a machine and have no place in a document of the project.
const MACHINE: &[&str] = &["/work", "/root", "/home", "/tmp"];

const CODES: &str = "crates/core/src/code.rs";
const PAGES: &str = "docs/errors/";

/// Links and paths of one document.
pub(crate) fn check(file: &File, root: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (i, line) in file.text.lines().enumerate() {
        if let Some(path) = machine_path(line) {
            let message = format!("`{path}` is a path of one machine: documents speak of the project");
            findings.push(Finding::new(&file.path, i + 1, message));
        }
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for target in links(line) {
            if !resolves(&file.path, target, root) {
                let message = format!("the link to `{target}` leads nowhere");
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
    }
    findings
}

/// No tabs, and nothing invisible at the end of a line.
pub(crate) fn check_spaces(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        if line.contains('\t') {
            findings.push(Finding::new(&file.path, i + 1, "a tab: indent with spaces"));
        }
        if line.trim_end() != line {
            findings.push(Finding::new(&file.path, i + 1, "white space at the end of the line"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(Finding::new(&file.path, file.text.lines().count(), "end the file with a line break"));
    }
    findings
}

/// Every code of the table has its page, and every page its code.
pub(crate) fn check_error_pages(files: &[File]) -> Vec<Finding> {
    let Some(table) = files.iter().find(|file| file.path == CODES) else {
        return vec![Finding::new(CODES, 1, "the table of error codes is not here")];
    };
    let mut findings = Vec::new();
    let mut codes = Vec::new();
    for (i, line) in table.text.lines().enumerate() {
        let Some((_, code)) = line.split_once(" = \"") else { continue };
        let Some((code, _)) = code.split_once('"') else { continue };
        if code.is_empty() || !code.bytes().all(|b| b.is_ascii_uppercase() || b == b'_') {
            continue;
        }
        codes.push(code);
        let page = format!("{PAGES}{code}.md");
        if !files.iter().any(|file| file.path == page) {
            findings.push(Finding::new(CODES, i + 1, format!("{page} is missing")));
        }
    }
    if codes.is_empty() {
        findings.push(Finding::new(CODES, 1, "no error code is found in the table"));
    }
    for file in files {
        let Some(page) = file.path.strip_prefix(PAGES).and_then(|name| name.strip_suffix(".md")) else {
            continue;
        };
        if page != "README" && !codes.contains(&page) {
            findings.push(Finding::new(&file.path, 1, "a page of a code that is not in the table"));
        }
    }
    findings
}

fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE.iter().copied().find(|path| {
        line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + path.len()..].chars().next();
            let starts = before.is_none_or(|c| !c.is_alphanumeric() && !"._-~/}>".contains(c));
            let ends = after.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '-');
            starts && ends
        })
    })
}

/// The targets of `[text](target)` outside of inline code.
fn links(line: &str) -> Vec<&str> {
    let mut targets = Vec::new();
    for (i, part) in line.split('`').enumerate() {
        if i % 2 == 1 {
            continue;
        }
        let mut rest = part;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            targets.push(target);
            rest = after;
        }
    }
    targets
}

fn resolves(from: &str, target: &str, root: &Path) -> bool {
    let outside = ["http://", "https://", "mailto:", "#"];
    if outside.iter().any(|start| target.starts_with(start)) {
        return true;
    }
    let path = target.split(['#', '?']).next().unwrap_or_default();
    let folder = Path::new(from).parent().unwrap_or(Path::new(""));
    let mut resolved = PathBuf::new();
    for part in folder.join(path).components() {
        match part {
            Component::ParentDir => {
                // A link may not leave the tree: it would lead nowhere on another machine.
                if !resolved.pop() {
                    return false;
                }
            }
            Component::Normal(name) => resolved.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    root.join(resolved).exists()
}

#[cfg(test)]
mod unit {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|f| f.line).collect()
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for bad in ["see /home/ann/x", "`/tmp`", "(/root/.cargo)", "cd /work/windlass"] {
            assert_eq!(lines(&check(&file("a.md", bad), Path::new("."))), [1], "{bad}");
        }
        for good in
            ["docs/work/x", "https://example.org/home/x", "/workspaces", "~/tmp/x", "$DIR/tmp", "either/or"]
        {
            assert!(check(&file("a.md", good), Path::new(".")).is_empty(), "{good}");
        }
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let root = crate::tree::root();
        let text =
            "[a](Cargo.toml) [b](ghost.md)\n[`c`](ghost.md)\n```\n[d](ghost.md)\n```\n`[e](ghost.md)`\n";
        assert_eq!(lines(&check(&file("a.md", text), &root)), [1, 2]);
        for good in ["[a](#part)", "[a](https://example.org)", "[a](../Cargo.toml#x)", "[a](./)"] {
            assert!(check(&file("docs/a.md", good), &root).is_empty(), "{good}");
        }
        for bad in ["[a](../../Cargo.toml)", "[a](/etc)"] {
            assert_eq!(lines(&check(&file("docs/a.md", bad), &root)), [1], "{bad}");
        }
    }

    #[test]
    fn tabs_and_trailing_blanks_are_found() {
        assert_eq!(lines(&check_spaces(&file("a.rs", "a\n\tb\nc \nd"))), [2, 3, 4]);
        assert!(check_spaces(&file("a.rs", "a\n\nb\n")).is_empty());
    }

    #[test]
    fn missing_and_superfluous_pages_are_found() {
        let table = file(CODES, "words! {\n  A = \"A_CODE\",\n  B = \"B_CODE\",\n}\n");
        let pages = ["docs/errors/A_CODE.md", "docs/errors/C_CODE.md", "docs/errors/README.md"];
        let mut files: Vec<File> = pages.iter().map(|path| file(path, "# x\n")).collect();
        files.push(table);
        let found = check_error_pages(&files);
        let found: Vec<_> = found.iter().map(|f| (f.file.as_str(), f.line)).collect();
        assert_eq!(found, [(CODES, 3), ("docs/errors/C_CODE.md", 1)]);
        assert_eq!(check_error_pages(&[]).len(), 1);
    }
}
