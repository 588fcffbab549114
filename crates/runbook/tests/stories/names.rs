//! Stable names for what differs from machine to machine or is too long to read: ids, hashes, times.

use regex::{Captures, Regex};
use std::collections::BTreeMap;
use windlass_core::time::{Millis, Span};

/// When every story begins.
pub const START: Millis = Millis(1_767_225_600_000);

/// The names given so far: `R1` is the first run that is told of, `#1` the first hash.
pub struct Names {
    known: BTreeMap<String, String>,
    counts: BTreeMap<String, u32>,
    pattern: Regex,
}

impl Default for Names {
    fn default() -> Names {
        let id = r"\b(?<kind>[a-z]{3})_[0-9a-z]{26}\b";
        let pattern = format!(r"{id}|\b(?<hash>[0-9a-f]{{64}})\b|\b(?<time>17[67]\d{{10}})\b");
        Names {
            known: BTreeMap::new(),
            counts: BTreeMap::new(),
            pattern: Regex::new(&pattern).expect("the pattern holds together"),
        }
    }
}

impl Names {
    /// Gives a text its own name.
    pub fn call(&mut self, text: &str, name: &str) {
        self.known.insert(text.to_owned(), name.to_owned());
    }

    /// The text with names in place of ids, hashes and times.
    pub fn shorten(&mut self, text: &str) -> String {
        let Names { known, counts, pattern } = self;
        let name = |found: &Captures<'_>| {
            let whole = &found[0];
            if let Some(time) = found.name("time") {
                return since_start(Millis(time.as_str().parse().unwrap_or_default()));
            }
            if let Some(name) = known.get(whole) {
                return name.clone();
            }
            let kind = match found.name("kind").map(|kind| kind.as_str()) {
                Some("run") => "R",
                Some("itm") => "I",
                Some("apr") => "A",
                Some("ses") => "S",
                Some("agt") => "G",
                Some("rcp") => "receipt",
                Some("ntc") => "N",
                Some(other) => other,
                None => "#",
            };
            let count = counts.entry(kind.to_owned()).or_default();
            *count += 1;
            let name = format!("{kind}{count}");
            known.insert(whole.to_owned(), name.clone());
            name
        };
        pattern.replace_all(text, name).replace("default/default/", "")
    }

    /// The id or hash behind a name.
    pub fn full(&self, name: &str) -> Option<&str> {
        self.known.iter().find(|(_, known)| *known == name).map(|(full, _)| full.as_str())
    }
}

/// A time as a story tells it.
pub fn since_start(at: Millis) -> String {
    if at >= START { format!("@{}", Span(at.0 - START.0)) } else { format!("@-{}", Span(START.0 - at.0)) }
}

/// Reads a span as runbooks write it.
pub fn span(text: &str) -> Span {
    windlass_runbook::span::parse(text).unwrap_or_else(|error| panic!("`{text}`: {error}"))
}
