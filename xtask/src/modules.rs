//! The layers of the core: nothing below `turn/` names it, and the largest knot of modules stays small.
//!
//! A module is a file of `crates/core/src` with its folder. It needs another where its code says `crate::other`, outside of
//! tests. Modules that need each other, by whatever way round, are a knot: none of them can be read, tested or moved without
//! the others.

use crate::Finding;
use crate::source::{is_test_file, line_of, mask, tests, words};
use crate::tree::File;
use std::collections::{BTreeMap, BTreeSet};

const CORE: &str = "crates/core/src/";
/// What decides on several streams. It stands above the machines.
const TOP: &str = "turn";
/// Helpers of the unit tests, which may use everything.
const TESTING: &str = "testing";
/// The most modules that may need each other. It was 46 before the core had layers.
pub(crate) const KNOT_MAX: usize = 9;

/// Which modules a module needs.
type Needs = BTreeMap<String, BTreeSet<String>>;

/// What is wrong with the layers, and the largest knot.
pub(crate) fn check(files: &[File]) -> (Vec<Finding>, Vec<String>) {
    let mut findings = Vec::new();
    let mut needs = Needs::new();
    for file in files {
        let Some(module) = module_of(&file.path) else { continue };
        for (needed, line) in needed(&file.text) {
            if needed == TOP && module != TOP {
                let message =
                    format!("`crate::{TOP}` below `{TOP}/`: what works on several streams stands above");
                findings.push(Finding::new(&file.path, line, message));
            }
            needs.entry(module.to_owned()).or_default().insert(needed);
        }
    }
    let knot = largest_knot(&needs);
    if knot.len() > KNOT_MAX {
        let names = knot.join(", ");
        let message = format!("{} modules need each other, and {KNOT_MAX} may: {names}", knot.len());
        findings.push(Finding::new(CORE, 1, message));
    }
    (findings, knot)
}

/// The module that a file belongs to, where it is code of the core.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(CORE)?;
    let module = inside.split('/').next()?.trim_end_matches(".rs");
    (inside.ends_with(".rs") && !is_test_file(path) && module != "lib" && module != TESTING).then_some(module)
}

/// The modules that a text names as `crate::module`, outside of tests, with the line; those in `crate::{a, b::c}` too.
fn needed(text: &str) -> Vec<(String, usize)> {
    let masked = mask(text);
    let test_spans = tests(&masked);
    let mut found = Vec::new();
    for at in words(&masked, "crate::").filter(|at| !test_spans.iter().any(|span| span.contains(at))) {
        let line = line_of(&masked, at);
        let rest = &masked[at + "crate::".len()..];
        let heads = match rest.strip_prefix('{') {
            Some(list) => heads(list),
            None => vec![word(rest)],
        };
        found.extend(heads.into_iter().filter(|name| !name.is_empty()).map(|name| (name.to_owned(), line)));
    }
    found
}

/// The first names of a list of paths, up to the brace that ends it.
fn heads(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0usize, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                out.push(word(list[start..at].trim_start()));
                start = at + 1;
            }
            '}' if depth == 0 => {
                out.push(word(list[start..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    out
}

/// The lower-case name that a text begins with.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| c != '_' && !c.is_ascii_lowercase()).unwrap_or(text.len());
    &text[..end]
}

/// The most modules that reach each other. There are few modules, so each is asked what it reaches.
fn largest_knot(needs: &Needs) -> Vec<String> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        needs.keys().map(|module| (module.as_str(), reached(needs, module))).collect();
    let knot = |(module, reached): (&&str, &BTreeSet<&str>)| -> Vec<String> {
        let back = |other: &&&str| reach.get(**other).is_some_and(|from| from.contains(*module));
        reached.iter().filter(back).map(|name| (*name).to_owned()).collect()
    };
    reach.iter().map(knot).max_by_key(Vec::len).unwrap_or_default()
}

/// Everything that a module needs, directly or not.
fn reached<'a>(needs: &'a Needs, module: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![module];
    while let Some(next) = open.pop() {
        for needed in needs.get(next).into_iter().flatten() {
            if found.insert(needed.as_str()) {
                open.push(needed);
            }
        }
    }
    found
}

#[cfg(test)]
mod unit {
    use super::*;

    fn file(module: &str, text: &str) -> File {
        File { path: format!("{CORE}{module}.rs"), text: text.to_owned() }
    }

    #[test]
    fn nothing_below_looks_up() {
        for text in [
            "use crate::turn::View;\n",
            "fn a() { crate::turn::decide() }\n",
            "use crate::{id, turn::state::State};\n",
        ] {
            let (found, _) = check(&[file("lock", text)]);
            assert_eq!(found.len(), 1, "{text}");
            assert_eq!((found[0].file.as_str(), found[0].line), ("crates/core/src/lock.rs", 1));
            assert!(check(&[file("turn", text)]).0.is_empty(), "the turn may name itself");
            assert!(check(&[file("turn/route", text)]).0.is_empty());
            assert!(check(&[file("lock/tests", text)]).0.is_empty());
            assert!(check(&[file("lock", &format!("#[cfg(test)]\nmod t {{ {text} }}\n"))]).0.is_empty());
            assert!(check(&[file("lock", &format!("// {text}"))]).0.is_empty());
        }
        assert!(check(&[file("lock", "use crate::turnip::View;\n")]).0.is_empty());
    }

    #[test]
    fn a_knot_is_found_however_long_the_way_round() {
        let around = [
            file("a", "use crate::b::{B, C};\n"),
            file("b/part", "fn b() { crate::c::c() }\n"),
            file("c", "use crate::{d::{D, E}, a};\n"),
            file("d", ""),
        ];
        assert_eq!(check(&around).1, ["a", "b", "c"]);
        assert!(check(&[file("a", "use crate::b::B;\n"), file("b", "")]).1.is_empty());
    }

    #[test]
    fn a_knot_has_a_bound() {
        let ring = |n: usize| -> Vec<File> {
            let name = |i: usize| char::from(b'a' + (i % n) as u8).to_string();
            (0..n).map(|i| file(&name(i), &format!("use crate::{}::X;\n", name(i + 1)))).collect()
        };
        assert!(check(&ring(KNOT_MAX)).0.is_empty());
        let (found, knot) = check(&ring(KNOT_MAX + 1));
        assert_eq!((found.len(), knot.len()), (1, KNOT_MAX + 1));
    }
}
