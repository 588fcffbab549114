//! Checks of the source tree that the compiler cannot make, and the documents that follow from the sources:
//! `cargo run -p xtask -- tidy`, `… purity` and `… docs`.
//!
//! Each rule is a function from text to findings, with a test that shows it failing. A finding is printed
//! as `file:line: message`; any finding makes the exit code 1.

mod arms;
mod documents;
mod maps;
mod modules;
mod purity;
mod rust;
mod source;
mod tables;
mod tree;

use std::io::Write as _;
use std::process::ExitCode;

/// Something that should not be there, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// The file, from the root of the tree.
    file: String,
    /// The line, from 1.
    line: usize,
    /// What is wrong and what to do about it.
    message: String,
}

impl Finding {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { file: file.to_owned(), line, message: message.into() }
    }
}

const USAGE: &str = "usage: cargo run -p xtask -- tidy | purity | docs

  tidy     style rules of sources and documents
  purity   the core reaches no clock, thread, randomness or I/O, and depends on nothing that does; nothing in it
           looks up to `turn/`, and few of its modules need each other
  docs     write the maps in the crates' READMEs
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let root = tree::root();
    let findings = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(&root),
        ["purity"] => purity::check(&root),
        ["docs"] => docs(&root),
        _ => {
            let _ = std::io::stderr().write_all(USAGE.as_bytes());
            return ExitCode::from(2);
        }
    };
    match findings {
        Ok(findings) => report(&findings),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "xtask: {error}");
            ExitCode::from(2)
        }
    }
}

fn tidy(root: &std::path::Path) -> std::io::Result<Vec<Finding>> {
    let files = tree::files(root)?;
    let mut findings = Vec::new();
    for file in &files {
        if file.path.ends_with(".rs") {
            findings.extend(rust::check(file));
        }
        if file.path.ends_with(".md") {
            findings.extend(documents::check(file, root));
        }
        if file.path.ends_with(".rs") || file.path.ends_with(".md") {
            findings.extend(documents::check_spaces(file));
        }
    }
    findings.extend(documents::check_error_pages(&files));
    findings.extend(maps::check(&files));
    findings.extend(tables::check(&files));
    findings.sort();
    Ok(findings)
}

fn docs(root: &std::path::Path) -> std::io::Result<Vec<Finding>> {
    maps::write(root, &tree::files(root)?)?;
    // What is still wrong can only be mended by hand: a missing README, or one without a place for its map.
    Ok(maps::check(&tree::files(root)?))
}

fn report(findings: &[Finding]) -> ExitCode {
    // A closed pipe means that the reader has seen enough; the exit code still tells the result.
    let mut out = std::io::stdout().lock();
    for Finding { file, line, message } in findings {
        let _ = writeln!(out, "{file}:{line}: {message}");
    }
    if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        let _ = writeln!(out, "found: {}", findings.len());
        ExitCode::FAILURE
    }
}
