//! The style rules of Rust files.

use crate::Finding;
use crate::arms;
use crate::source::{functions, is_test_file, line_of, mask, tests, words};
use crate::tree::File;
use std::ops::Range;

/// The most lines a file may have, with its tests.
const LINES_MAX: usize = 800;

/// Files of the core that match on bytes and texts, where "anything else" is a real case.
const PARSERS: &[&str] = &["digest.rs", "event.rs", "id.rs", "stream.rs", "wire.rs", "word.rs"];

/// What reaches outside, the files that may do it, and why. A runbook's commands and requests have one way each:
/// `Shell::run` and `Wire::send`, which take a permission. The rest is Windlass's own.
const OUTWARD: &[(&[&str], &[&str])] = &[
    (
        &["Command::new", "process::Command", "tokio::process", "posix_spawn"],
        &[
            "crates/executor/src/shell.rs",            // the keeper
            "crates/executor/src/shell/supervisor.rs", // an attempt's supervisor
            "crates/executor/src/shell/command.rs",    // an attempt's command
            "crates/windlass/src/cli/executor.rs",     // itself anew, without its token among its words
            "crates/windlass/src/cli/holds.rs",        // `windlass lock … -- CMD`, typed by a person
            "crates/windlass/src/cli/run.rs",          // the holder that `run --detach` leaves behind
            "crates/windlass/src/cli/work.rs",         // what `doctor` looks at, and an editor
            "crates/windlass/src/bench/kill.rs",       // `windlass bench`
        ],
    ),
    (
        &[
            "reqwest::Client",
            "reqwest::blocking",
            "Client::builder",
            "Client::new",
            "hyper::client",
            "client::conn",
            "TcpStream::connect",
            "UnixStream::connect",
            "UdpSocket",
            "object_store::",
        ],
        &[
            "crates/executor/src/tools/wire.rs",    // requests of tools and messages
            "crates/executor/src/home.rs",          // the data directory's own socket
            "crates/server/src/client.rs",          // the client of the API
            "crates/windlass/src/bench/net.rs",     // `windlass bench`
            "crates/server/src/evidence/bucket.rs", // bundles to an S3 store
            "crates/server/src/telemetry/otlp.rs",  // traces
        ],
    ),
    (
        &["Leave::own"],
        &[
            "crates/server/src/cards/slack.rs",      // cards and messages
            "crates/executor/src/remote/attempt.rs", // a lease that a server recorded
        ],
    ),
    (&["Leave::recorded"], &["crates/engine/src/handle.rs"]),
    (
        &["Launch::prepare", "Supervisor::start"],
        &["crates/executor/src/shell/attempt.rs", "crates/executor/src/shell/keeper.rs"],
    ),
];

/// All rules on one file.
pub(crate) fn check(file: &File) -> Vec<Finding> {
    let masked = mask(&file.text);
    let mut test_spans = tests(&masked);
    if is_test_file(&file.path) {
        test_spans.push(0..masked.len());
    }
    let mut findings = Vec::new();
    findings.extend(begins_with_purpose(file));
    findings.extend(is_short(file));
    findings.extend(has_no_loose_ends(file, &masked));
    if file.path.starts_with("crates/") && file.path.contains("/src/") {
        findings.extend(cannot_panic(file, &masked, &test_spans));
        findings.extend(has_one_way_out(file, &masked, &test_spans));
    }
    if file.path.starts_with("crates/core/src/") {
        findings.extend(hides_no_pair(file, &masked, &test_spans));
    }
    if file.path.starts_with("crates/") && file.path.contains("/src/") {
        findings.extend(drops_nothing(file, &masked, &test_spans));
    }
    findings
}

fn inside(spans: &[Range<usize>], at: usize) -> bool {
    spans.iter().any(|span| span.contains(&at))
}

fn begins_with_purpose(file: &File) -> Option<Finding> {
    let says = file.text.starts_with("//! ") || file.path.ends_with("build.rs");
    (!says).then(|| Finding::new(&file.path, 1, "begin the file with `//!` and its purpose"))
}

fn is_short(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    let message = || format!("{lines} lines, of {LINES_MAX} at most: split the file by its ideas");
    (lines > LINES_MAX).then(|| Finding::new(&file.path, LINES_MAX + 1, message()))
}

fn has_no_loose_ends(file: &File, masked: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for needle in ["todo!(", "unimplemented!(", "#[ignore"] {
        for (at, _) in masked.match_indices(needle) {
            let message = format!("`{needle}` is a loose end: finish it or leave it out");
            findings.push(Finding::new(&file.path, line_of(masked, at), message));
        }
    }
    // Put together here, so that this file does not hold what it looks for.
    for mark in [concat!("FIX", "ME"), concat!("X", "XX")] {
        for at in words(&file.text, mark) {
            let message = format!("`{mark}` is a loose end: settle it");
            findings.push(Finding::new(&file.path, line_of(&file.text, at), message));
        }
    }
    findings
}

fn cannot_panic(file: &File, masked: &str, test_spans: &[Range<usize>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for needle in [".unwrap()", ".expect("] {
        for (at, _) in masked.match_indices(needle) {
            // `r.expect("…")?` is the wire reader's own method: it returns an error and does not panic.
            let reader = needle == ".expect(" && words(&masked[..at], "r").last() == at.checked_sub(1);
            if !reader && !inside(test_spans, at) {
                let message = format!("`{needle}` can panic: return an error");
                findings.push(Finding::new(&file.path, line_of(masked, at), message));
            }
        }
    }
    findings
}

/// Nothing starts a process or sends a request but where that is its purpose.
fn has_one_way_out(file: &File, masked: &str, test_spans: &[Range<usize>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |needle: &str, at: usize| {
        let message = format!(
            "`{needle}` is a second way out: start processes with `Shell::run`, send requests with `Wire::send`"
        );
        findings.push(Finding::new(&file.path, line_of(masked, at), message));
    };
    for (needles, _) in OUTWARD.iter().filter(|(_, places)| !places.contains(&file.path.as_str())) {
        for needle in *needles {
            words(masked, needle).filter(|at| !inside(test_spans, *at)).for_each(|at| find(needle, at));
            // The same in a list: `use std::process::{Child, Command};`
            let Some((module, name)) = needle.rsplit_once("::") else { continue };
            for at in words(masked, &format!("{module}::{{")).filter(|at| !inside(test_spans, *at)) {
                let list = &masked[at..at + masked[at..].find('}').unwrap_or(0)];
                if !name.is_empty() && words(list, name).next().is_some() {
                    find(needle, at);
                }
            }
        }
    }
    findings
}

/// No arm may swallow pairs that were not considered. An `apply` over the wide event enum may end in one,
/// since it leaves the state unchanged; any other needs a comment `// tidy: ` with its reason.
fn hides_no_pair(file: &File, masked: &str, test_spans: &[Range<usize>]) -> Vec<Finding> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    if PARSERS.contains(&name) {
        return Vec::new();
    }
    let applies = functions(masked, "apply");
    let mut findings = Vec::new();
    for (at, _) in masked.match_indices("=>") {
        if !catches_all(&masked[..at]) || inside(test_spans, at) || inside(&applies, at) {
            continue;
        }
        let line = line_of(masked, at);
        if is_excused(file, line) {
            continue;
        }
        let message = "a catch-all arm hides cases: write them out, or say why not in a comment `// tidy: …`";
        findings.push(Finding::new(&file.path, line, message));
    }
    findings
}

/// No arm may drop an effect, a command, an event or an answer unseen, in any crate. An `apply` may, as above.
fn drops_nothing(file: &File, masked: &str, test_spans: &[Range<usize>]) -> Vec<Finding> {
    let applies = functions(masked, "apply");
    let mut findings = Vec::new();
    for at in arms::dropped(masked, &file.text) {
        let line = line_of(masked, at);
        if inside(test_spans, at) || inside(&applies, at) || is_excused(file, line) {
            continue;
        }
        let message =
            "this arm drops what it does not name: write the rest out, or say why in a comment `// tidy: …`";
        findings.push(Finding::new(&file.path, line, message));
    }
    findings
}

/// Whether a comment in this line, or in those right above it, gives a reason.
fn is_excused(file: &File, line: usize) -> bool {
    let lines: Vec<&str> = file.text.lines().collect();
    let reason = |line: &str| line.contains("// tidy: ");
    let above = lines[..line - 1].iter().rev().take_while(|line| line.trim_start().starts_with("//"));
    lines.get(line - 1).is_some_and(|line| reason(line)) || above.into_iter().any(|line| reason(line))
}

/// Whether the pattern that ends here is `_` or a tuple of nothing else.
fn catches_all(before: &str) -> bool {
    let pattern = before.trim_end();
    let rest = pattern.trim_end_matches(|c: char| "_(),.".contains(c) || c.is_whitespace());
    let tail = pattern[rest.len()..].trim_start_matches(|c: char| c == ',' || c.is_whitespace());
    // After a name it is `Some(_)`, which says what it takes.
    let named = pattern[rest.len()..].len() == tail.len()
        && rest.ends_with(|c: char| c == '_' || c.is_alphanumeric());
    let balanced = tail.matches('(').count() == tail.matches(')').count();
    tail.contains('_') && balanced && !named
}

#[cfg(test)]
mod unit {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        check(&file).into_iter().map(|f| format!("{}: {}", f.line, f.message)).collect()
    }

    fn one(path: &str, text: &str, line: usize, part: &str) {
        let found = messages(path, text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("{line}: ")) && found[0].contains(part), "{found:?}");
    }

    const LOCK: &str = "crates/core/src/lock.rs";

    #[test]
    fn a_sound_file_passes() {
        let text = "//! Purpose.\nfn f(a: A) -> u8 {\n    match a {\n        A::B(_) => 1,\n        A::C | A::D => 2,\n    }\n}\n";
        assert_eq!(messages(LOCK, text), Vec::<String>::new());
    }

    #[test]
    fn a_file_without_purpose_is_found() {
        one(LOCK, "use a::b;\n", 1, "purpose");
        assert!(messages("crates/x/build.rs", "fn main() {}\n").is_empty());
    }

    #[test]
    fn a_long_file_is_found() {
        let text = format!("//! Purpose.\n{}", "\n".repeat(LINES_MAX));
        one(LOCK, &text, LINES_MAX + 1, "split");
    }

    #[test]
    fn loose_ends_are_found() {
        one(LOCK, "//! Purpose.\nfn f() { todo!() }\n", 2, "todo!(");
        one(LOCK, "//! Purpose.\nfn f() { unimplemented!() }\n", 2, "unimplemented!(");
        one(LOCK, "//! Purpose.\n#[ignore = \"slow\"]\nfn f() {}\n", 2, "#[ignore");
        one(LOCK, concat!("//! Purpose.\n// FIX", "ME later\n"), 2, "loose end");
        one(LOCK, concat!("//! Purpose.\n// X", "XX later\n"), 2, "loose end");
        assert!(messages(LOCK, "//! Purpose.\nconst A: &str = \"todo!(\";\n").is_empty());
    }

    #[test]
    fn panics_are_found_outside_of_tests() {
        one(LOCK, "//! Purpose.\nfn f() { a.unwrap() }\n", 2, ".unwrap()");
        one(LOCK, "//! Purpose.\nfn f() { a.expect(\"b\") }\n", 2, ".expect(");
        one(LOCK, "//! Purpose.\nfn f() { for.expect(\"b\") }\n", 2, ".expect(");
        assert!(messages(LOCK, "//! Purpose.\nfn f() { r.expect(\"b\")?; }\n").is_empty());
        assert!(messages(LOCK, "//! Purpose.\n#[cfg(test)]\nmod t { fn f() { a.unwrap() } }\n").is_empty());
        assert!(messages("crates/core/tests/a.rs", "//! Purpose.\nfn f() { a.unwrap() }\n").is_empty());
    }

    #[test]
    fn a_second_way_out_is_found() {
        let path = "crates/server/src/guards.rs";
        for code in [
            "fn f() { Command::new(a); }",
            "use std::process::Command as Other;",
            "use std::process::{Child, Command};",
            "use tokio::process::Command;",
            "use reqwest::{Client, Url};",
            "fn f() { reqwest::Client::builder(); }",
            "fn f() { TcpStream::connect(a); }",
            "use object_store::aws::X;",
            "fn f() { Leave::own(Own::Card); }",
        ] {
            let text = format!("//! Purpose.\n{code}\n");
            assert!(!messages(path, &text).is_empty(), "{code}");
            assert!(messages("crates/windlass/tests/a.rs", &text).is_empty(), "{code}");
        }
        for code in [
            "use std::process::{Child, ExitCode};",
            "use reqwest::{Method, Url};",
            "use windlass_core::turn::command::Command;",
            "#[cfg(test)]\nmod t { use std::process::Command; }",
        ] {
            assert_eq!(messages(path, &format!("//! Purpose.\n{code}\n")), Vec::<String>::new(), "{code}");
        }
    }

    #[test]
    fn catch_all_arms_are_found() {
        for arm in ["_ =>", "(_, _) =>", "A::B => 1, _ =>", "(_, (_, _)) =>", "( _ , _ )\n =>"] {
            let text = format!("//! Purpose.\nfn decide() {{ match a {{ {arm} 1 }} }}\n");
            assert_eq!(messages(LOCK, &text).len(), 1, "{arm}");
        }
        for arm in
            ["Some(_) =>", "(A::B, _) =>", "A { .. } =>", "_ if a =>", "A(_, _) =>", "x =>", "(_, A::B) =>"]
        {
            let text = format!("//! Purpose.\nfn decide() {{ match a {{ {arm} 1 }} }}\n");
            assert!(messages(LOCK, &text).is_empty(), "{arm}");
        }
    }

    #[test]
    fn catch_all_arms_are_allowed_with_a_reason_and_in_apply() {
        for text in [
            "//! Purpose.\nfn decide() { match a { _ => 1 } } // tidy: bytes\n",
            "//! Purpose.\nfn decide() { match a {\n  // tidy: bytes\n  _ => 1 } }\n",
            "//! Purpose.\nfn apply(self) -> Self { match event { _ => self } }\n",
            "//! Purpose.\n#[cfg(test)]\nmod t { fn f() { match a { _ => 1 } } }\n",
        ] {
            assert_eq!(messages(LOCK, text), Vec::<String>::new());
        }
        let text = "//! Purpose.\nfn decide() { match a { _ => 1 } }\n";
        assert!(messages("crates/core/src/wire.rs", text).is_empty());
        assert!(messages("crates/engine/src/lib.rs", text).is_empty());
    }

    #[test]
    fn arms_that_drop_what_others_say_are_found_in_every_crate() {
        let path = "crates/server/src/outside.rs";
        let text = |reason: &str| {
            format!(
                "//! Purpose.\nfn f() {{ match e {{\n  Effect::A => 1,\n{reason}  effect => drop(effect),\n}} }}\n"
            )
        };
        one(path, &text(""), 4, "drops");
        for reason in ["  // tidy: why\n", "  // tidy: why, in\n  // two lines\n"] {
            assert_eq!(messages(path, &text(reason)), Vec::<String>::new());
        }
        let test = text("").replace("fn f", "#[test]\nfn f");
        assert_eq!(messages(path, &test), Vec::<String>::new());
        let apply = "//! Purpose.\nfn apply(self) -> Self { match e { Event::A => b, _ => self } }\n";
        assert_eq!(messages(path, apply), Vec::<String>::new());
    }
}
