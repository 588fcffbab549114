//! Problems: what is wrong with a runbook, where, and what to do about it.
//!
//! A problem points into the source. Several are collected, up to a bound, and shown at once: as text with the
//! lines they are about, or as JSON.

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::json;
use std::fmt;
use windlass_core::code::Code;

/// The most problems that are shown at once.
pub const PROBLEMS_MAX: usize = 20;
/// The most bytes of a source line that a snippet shows around its place.
const LINE_LEN_MAX: usize = 400;

/// A range of bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which file: the runbook is 0, its includes follow.
    pub file: u16,
    /// The first byte.
    pub start: u32,
    /// The byte after the last.
    pub end: u32,
}

impl Place {
    /// A range of bytes. Files are far smaller than what the numbers hold.
    #[must_use]
    pub fn new(file: u16, start: usize, end: usize) -> Place {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Place { file, start: number(start), end: number(end) }
    }

    /// From here to the end of the other.
    #[must_use]
    pub fn to(self, end: Place) -> Place {
        Place { end: end.end.max(self.start), ..self }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where; none when it is about the file as a whole.
    pub at: Option<Place>,
    pub message: String,
    /// The label beside the caret: what is expected there.
    pub label: String,
    /// What to do next.
    pub help: Option<String>,
}

impl Problem {
    /// A problem at a place.
    #[must_use]
    pub fn at(at: Place, message: impl Into<String>) -> Problem {
        Problem { at: Some(at), message: message.into(), label: String::new(), help: None }
    }

    /// A problem of a file as a whole.
    #[must_use]
    pub fn whole(message: impl Into<String>) -> Problem {
        Problem { at: None, message: message.into(), label: String::new(), help: None }
    }

    /// Adds what to do next.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    /// Adds the label beside the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Problem {
        self.label = label.into();
        self
    }
}

/// A file that was read, for the lines in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name, as the user knows it.
    pub name: String,
    pub text: String,
}

/// Everything that is wrong with a runbook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The files that places are about.
    pub sources: Vec<Source>,
    /// The problems, in the order of their places; at most [`PROBLEMS_MAX`].
    pub list: Vec<Problem>,
    /// How many more there are.
    pub more: usize,
    /// The stable code of all of them.
    pub code: Code,
}

impl std::error::Error for Problems {}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl Problems {
    /// One problem.
    #[must_use]
    pub fn one(sources: Vec<Source>, problem: Problem) -> Problems {
        Problems { sources, list: vec![problem], more: 0, code: Code::RunbookInvalid }
    }

    /// The stable code of all of them.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The same problems of a file that is no runbook.
    #[must_use]
    pub fn coded(self, code: Code) -> Problems {
        Problems { code, ..self }
    }

    /// File, line and column of a problem, counted from 1 and in characters.
    #[must_use]
    pub fn position(&self, problem: &Problem) -> (String, usize, usize) {
        let name = |file: usize| self.sources.get(file).map(|source| source.name.clone()).unwrap_or_default();
        let Some(at) = problem.at else { return (name(0), 0, 0) };
        let file = usize::from(at.file);
        let text = self.sources.get(file).map_or("", |source| source.text.as_str());
        let before = &text[..floor(text, at.start as usize)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (name(file), line, column)
    }

    /// The problems as JSON: `{"code", "problems": [{code, file, line, column, message, help}], "more"}`.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let one = |problem: &Problem| {
            let (file, line, column) = self.position(problem);
            json!({
                "code": self.code().as_str(), "file": file, "line": line, "column": column,
                "message": problem.message, "help": problem.help,
            })
        };
        let list: Vec<_> = self.list.iter().map(one).collect();
        json!({ "code": self.code().as_str(), "problems": list, "more": self.more })
    }

    /// The problems as text, with the lines they are about. Ends in a newline.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let renderer = renderer.decor_style(DecorStyle::Ascii);
        let mut text = String::new();
        for problem in &self.list {
            text.push_str(&self.render_one(&renderer, problem));
            text.push_str("\n\n");
        }
        match self.more {
            0 => text.truncate(text.trim_end().len()),
            more => text.push_str(&format!("and {more} more")),
        }
        text.push('\n');
        text
    }

    fn render_one(&self, renderer: &Renderer, problem: &Problem) -> String {
        let code = self.code().as_str();
        let source = problem.at.and_then(|at| Some((at, self.sources.get(usize::from(at.file))?)));
        let title = match source {
            Some(_) => printable(&problem.message),
            None => {
                let name = self.sources.first().map_or("runbook", |source| source.name.as_str());
                printable(&format!("{name}: {}", problem.message))
            }
        };
        let title = Level::ERROR.primary_title(title).id(code);
        let mut group = match source {
            Some((at, source)) => title.element(snippet(at, source, &problem.label)),
            None => Group::with_title(title),
        };
        if let Some(help) = &problem.help {
            group = group.element(Level::HELP.message(printable(help)));
        }
        let text = renderer.render(&[group]);
        match source {
            Some((at, source)) => self.columned(text, at, source, problem),
            None => text,
        }
    }

    /// With the column in the file, where the renderer counted from the beginning of the part of the line that is shown.
    fn columned(&self, rendered: String, at: Place, source: &Source, problem: &Problem) -> String {
        let (start, from) = (floor(&source.text, at.start as usize), shown_from(&source.text, at));
        let counted = source.text[from..start].chars().count() + 1;
        let (name, line, column) = self.position(problem);
        if counted == column {
            return rendered;
        }
        rendered.replacen(&format!("{name}:{line}:{counted}"), &format!("{name}:{line}:{column}"), 1)
    }
}

/// Where the part of a line that is shown begins.
fn shown_from(text: &str, at: Place) -> usize {
    let start = floor(text, at.start as usize);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    floor(text, line_start.max(start.saturating_sub(LINE_LEN_MAX / 2)))
}

/// The lines of a place. A place over several lines is shown by its first one, and a very long line by its part
/// around the place, so that a hostile file cannot flood the terminal.
fn snippet<'a>(
    at: Place,
    source: &'a Source,
    label: &'a str,
) -> Snippet<'a, annotate_snippets::Annotation<'a>> {
    let text = source.text.as_str();
    let start = floor(text, at.start as usize);
    let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let line_end = text[start..].find(['\n', '\r']).map_or(text.len(), |newline| start + newline);
    let end = floor(text, at.end as usize).clamp(start, line_end);
    let from = shown_from(text, at);
    let to = floor(text, line_end.min(from + LINE_LEN_MAX)).max(from);
    let line = text[..line_start].matches('\n').count() + 1;
    let shown: String =
        text[from..to].chars().map(|c| if c == '\t' || !c.is_control() { c } else { '?' }).collect();
    // A control character of several bytes becomes one byte, which moves what follows; count again in what is shown.
    let moved = |offset: usize| {
        text[from..offset.clamp(from, to)]
            .chars()
            .map(|c| if c == '\t' || !c.is_control() { c.len_utf8() } else { 1 })
            .sum::<usize>()
    };
    let span = moved(start)..moved(end.max(start));
    let mut annotation = AnnotationKind::Primary.span(span);
    if !label.is_empty() {
        annotation = annotation.label(printable(label));
    }
    Snippet::source(shown).line_start(line).path(source.name.as_str()).annotation(annotation)
}

/// Text of a runbook in a message: control characters would reach the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c == '\n' || !c.is_control() { c } else { '?' }).collect()
}

/// The nearest boundary between characters at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// Collects problems while a runbook is read.
#[derive(Debug, Default)]
pub struct Notes {
    list: Vec<Problem>,
    more: usize,
}

impl Notes {
    /// Takes one more. Beyond the bound they are only counted.
    pub fn add(&mut self, problem: Problem) {
        if self.list.contains(&problem) {
            return;
        }
        if self.list.len() < PROBLEMS_MAX {
            self.list.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// Adds one whose text is costly to build: beyond the bound it is not built.
    pub fn add_with(&mut self, problem: impl FnOnce() -> Problem) {
        if self.list.len() < PROBLEMS_MAX {
            self.add(problem());
        } else {
            self.more += 1;
        }
    }

    /// The number of problems so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Whether nothing is wrong so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What is wrong, in the order of the places.
    #[must_use]
    pub fn into_problems(mut self, sources: Vec<Source>) -> Problems {
        self.list.sort_by_key(|problem| problem.at);
        Problems { sources, list: self.list, more: self.more, code: Code::RunbookInvalid }
    }
}

/// The known word nearest to one that is not known, where one is near enough to be meant.
#[must_use]
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let bound = (word.chars().count() / 3).max(1);
    let rated =
        known.into_iter().filter(|known| known.len() <= 64).map(|known| (distance(word, known), known));
    rated.filter(|(distance, _)| *distance <= bound).min().map(|(_, known)| known)
}

/// A suggestion as help, or the list of what is known.
#[must_use]
pub fn suggest<'a>(word: &str, known: impl IntoIterator<Item = &'a str> + Clone, what: &str) -> String {
    if let Some(near) = did_you_mean(word, known.clone()) {
        return format!("did you mean `{near}`?");
    }
    let mut list: Vec<&str> = known.into_iter().collect();
    if list.is_empty() {
        return format!("there are no {what}");
    }
    list.sort_unstable();
    let more = list.len().saturating_sub(40);
    list.truncate(40);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{what}: {}{more}", list.join(", "))
}

/// How many letters have to be put in, taken out, changed or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, n) | (n, 0) => n,
                (i, j) => {
                    let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let mut least = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        least = least.min(rows[i - 2][j - 2] + 1);
                    }
                    least
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_suggested_and_no_other() {
        let known = ["steps", "finally", "on_failure", "timeout"];
        assert_eq!(did_you_mean("setps", known), Some("steps"));
        assert_eq!(did_you_mean("timout", known), Some("timeout"));
        assert_eq!(did_you_mean("TIMEOUT", known), Some("timeout"));
        assert_eq!(did_you_mean("pipelines", known), None);
        assert_eq!(did_you_mean(&"x".repeat(100_000), known), None);
    }

    #[test]
    fn more_problems_than_the_bound_are_counted() {
        let mut notes = Notes::default();
        for n in 0..PROBLEMS_MAX + 5 {
            notes.add(Problem::at(Place::new(0, n, n), format!("{n}")));
        }
        let problems = notes.into_problems(vec![Source { name: "a.yaml".into(), text: "x".repeat(100) }]);
        assert_eq!((problems.list.len(), problems.more), (PROBLEMS_MAX, 5));
        assert!(problems.render(false).contains("and 5 more"));
    }

    #[test]
    fn control_characters_and_endless_lines_do_not_reach_the_terminal() {
        let text = format!("{}\u{1b}[31m{}", "a".repeat(100_000), "b".repeat(100_000));
        let source = Source { name: "a.yaml".into(), text };
        let problem = Problem::at(Place::new(0, 100_000, 100_005), "an escape \u{1b}[31m here");
        let shown = Problems::one(vec![source], problem).render(false);
        assert!(!shown.contains('\u{1b}') && shown.len() < 4 * LINE_LEN_MAX, "{}", shown.len());
    }

    #[test]
    fn the_column_is_that_of_the_file_also_where_only_a_part_of_the_line_is_shown() {
        let text = format!("first\n{}X{}", "ä".repeat(424), "b".repeat(1_000));
        let start = text.find('X').unwrap();
        let source = Source { name: "a.yaml".into(), text };
        let problems = Problems::one(vec![source], Problem::at(Place::new(0, start, start + 1), "here"));
        for colour in [false, true] {
            assert!(problems.render(colour).contains("a.yaml:2:425"), "{}", problems.render(colour));
        }
        assert_eq!(problems.json()["problems"][0]["column"], 425);
    }

    #[test]
    fn places_outside_of_the_text_do_not_panic() {
        let source = Source { name: "a.yaml".into(), text: "ä\nö".into() };
        for start in 0..10 {
            for end in 0..10 {
                let problem = Problem::at(Place::new(0, start, end), "here").label("this");
                let problems = Problems::one(vec![source.clone()], problem);
                assert!(problems.render(false).contains("here"));
                assert!(problems.json()["problems"][0]["line"].as_u64() >= Some(1));
            }
        }
    }
}
