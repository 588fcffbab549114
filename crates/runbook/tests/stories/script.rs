//! A story as a file: prose, commands and, below each command, what came of it.

use std::collections::BTreeMap;

/// The most lines of one story's file, transcript included.
pub const LINES_MAX: usize = 1_000;

/// The most commands of one story.
pub const COMMANDS_MAX: usize = 100;

/// A part of a story.
pub enum Part {
    /// Prose and empty lines, kept as they are.
    Prose(String),
    /// A command with the text block that belongs to it.
    Command { line: String, block: Vec<String> },
}

/// Reads a story. What an earlier run wrote below the commands is passed over.
pub fn parse(text: &str) -> Vec<Part> {
    assert!(text.lines().count() <= LINES_MAX, "a story has at most {LINES_MAX} lines");
    let mut parts = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            parts.push(Part::Command { line: command.to_owned(), block: Vec::new() });
        } else if let Some(text) = line.strip_prefix('|') {
            match parts.last_mut() {
                Some(Part::Command { block, .. }) => {
                    block.push(text.strip_prefix(' ').unwrap_or(text).to_owned());
                }
                Some(Part::Prose(_)) | None => panic!("`{line}` belongs to no command"),
            }
        } else if line.is_empty() || line.starts_with('#') {
            parts.push(Part::Prose(line.to_owned()));
        } else {
            assert!(line.starts_with("  "), "`{line}` is neither prose, command, block nor transcript");
        }
    }
    let commands = parts.iter().filter(|part| matches!(part, Part::Command { .. })).count();
    assert!(commands <= COMMANDS_MAX, "a story has at most {COMMANDS_MAX} commands");
    parts
}

/// The words of a command: its verb, what it is about, and options `name=value`.
pub struct Words {
    line: String,
    words: std::vec::IntoIter<String>,
    options: BTreeMap<String, String>,
}

impl Words {
    pub fn new(line: &str) -> Words {
        let (mut words, mut options) = (Vec::new(), BTreeMap::new());
        for word in split(line) {
            match word.split_once('=') {
                Some((key, value)) if key.chars().all(|c| c == '_' || c.is_ascii_lowercase()) => {
                    let text = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
                    options.insert(key.to_owned(), text.unwrap_or(value).to_owned());
                }
                Some(_) | None => words.push(word),
            }
        }
        Words { line: line.to_owned(), words: words.into_iter(), options }
    }

    /// The next word.
    pub fn next(&mut self) -> String {
        let next = self.words.next();
        next.unwrap_or_else(|| panic!("`{}` lacks a word", self.line))
    }

    /// Whether the next word is this one; it is taken then.
    pub fn takes(&mut self, word: &str) -> bool {
        let is = self.words.as_slice().first().is_some_and(|next| next == word);
        if is {
            self.words.next();
        }
        is
    }

    /// Whether there is another word.
    pub fn has_more(&self) -> bool {
        !self.words.as_slice().is_empty()
    }

    pub fn option(&mut self, key: &str) -> Option<String> {
        self.options.remove(key)
    }

    /// Every word and option was of use, or the story means something else than it says.
    pub fn done(&mut self) {
        let rest = self.words.as_slice();
        assert!(rest.is_empty() && self.options.is_empty(), "`{}`: {rest:?} {:?}?", self.line, self.options);
    }
}

/// Splits at spaces outside of quotes and brackets.
fn split(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut depth, mut quote) = (0usize, false);
    for c in line.chars() {
        match c {
            '"' => quote = !quote,
            '{' | '[' if !quote => depth += 1,
            '}' | ']' if !quote => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == ' ' && depth == 0 && !quote {
            words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()));
        } else {
            word.push(c);
        }
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    words
}

/// A value: JSON where it is JSON, otherwise the text itself.
pub fn value(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::from(text))
}

/// Where two texts differ: some lines before, what was expected and what came, for people.
pub fn difference(expected: &str, told: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), told.lines().collect());
    let same = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let tail = tail.min(old.len() - same).min(new.len() - same);
    let mut out = format!("line {}:\n", same + 1);
    let mut add = |mark: &str, lines: &[&str]| {
        for line in lines.iter().take(40) {
            out.push_str(&format!("{mark}{line}\n"));
        }
    };
    add("  ", &old[same.saturating_sub(4)..same]);
    add("- ", &old[same..old.len() - tail]);
    add("+ ", &new[same..new.len() - tail]);
    add("  ", &old[old.len() - tail..old.len() - tail + tail.min(3)]);
    out
}
