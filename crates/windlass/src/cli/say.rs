//! How the command line speaks: tables and marks for people, JSON for programs, errors to stderr.

use crate::client::Failure;
use serde_json::{Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

/// The way to speak that the flags and the terminal ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Say {
    /// JSON on stdout.
    pub(super) json: bool,
    /// Only what was asked for.
    pub(super) quiet: bool,
    /// Colours on stdout.
    pub(super) colour: bool,
    /// Whether stdout is a terminal.
    pub(super) terminal: bool,
}

impl Say {
    pub(super) fn new(json: bool, quiet: bool, no_color: bool) -> Say {
        let terminal = std::io::stdout().is_terminal();
        let colour =
            terminal && !no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Say { json, quiet, colour, terminal }
    }

    /// A line for people on stdout. Whoever closed the pipe has seen enough.
    pub(super) fn line(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// A document for programs, or the text for people.
    pub(super) fn answer(&self, value: &Value, text: impl FnOnce() -> String) {
        if self.json {
            self.line(&value.to_string());
        } else {
            let text = text();
            if !text.is_empty() {
                self.line(text.trim_end_matches('\n'));
            }
        }
    }

    /// A remark that nobody asked for, on stderr.
    pub(super) fn note(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Says what went wrong and what to do next; the exit code follows from the code.
    pub(super) fn failure(&self, failure: &Failure) -> ExitCode {
        let page = format!("docs/errors/{}.md", failure.code);
        if self.json {
            let fallback = || json!({ "code": failure.code.as_str(), "detail": failure.detail });
            let problem = failure.problem.clone().unwrap_or_else(fallback);
            let _ = writeln!(std::io::stderr(), "{problem}");
        } else {
            let _ =
                writeln!(std::io::stderr(), "windlass: {}: {}\n  see {page}", failure.code, failure.detail);
        }
        ExitCode::from(failure.code.exit())
    }

    /// A text in a colour, where there are colours.
    pub(super) fn paint(&self, style: anstyle::Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    /// A status with its mark.
    pub(super) fn status(&self, status: &str) -> String {
        let style = style_of(status);
        self.paint(style, &format!("{} {status}", mark(status)))
    }

    /// Columns, aligned; the first row is the heading.
    pub(super) fn table(&self, rows: &[Vec<String>]) -> String {
        let Some(first) = rows.first() else { return String::new() };
        let width = |column: usize| rows.iter().map(|row| width_of(&row[column])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..first.len()).map(width).collect();
        let mut text = String::new();
        for (at, row) in rows.iter().enumerate() {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(width - width_of(cell) + 2));
            }
            let line = line.trim_end();
            let heading = at == 0;
            text.push_str(&if heading {
                self.paint(anstyle::Style::new().dimmed(), line)
            } else {
                line.to_owned()
            });
            text.push('\n');
        }
        text
    }
}

/// How wide a text is on a screen: what colours it is not counted.
fn width_of(text: &str) -> usize {
    let (mut width, mut escape) = (0, false);
    for c in text.chars() {
        match (escape, c) {
            (false, '\u{1b}') => escape = true,
            (true, c) => escape = !c.is_ascii_alphabetic(),
            (false, _) => width += 1,
        }
    }
    width
}

/// The mark of a status.
pub(super) fn mark(status: &str) -> &'static str {
    match status {
        "completed" | "succeeded" | "approved" => "✔",
        "failed" | "rejected" => "✘",
        "cancelled" | "expired" => "⊘",
        "skipped" => "↷",
        "running" => "▶",
        "outcome_unknown" => "?",
        "waiting_approval" | "awaiting_approval" | "requested" => "✋",
        "waiting_external" | "blocked" => "◷",
        "failed_retryable" => "↻",
        _ => "·",
    }
}

fn style_of(status: &str) -> anstyle::Style {
    use anstyle::AnsiColor::{Blue, Green, Red, Yellow};
    let colour = match status {
        "completed" | "succeeded" | "approved" => Green,
        "failed" | "rejected" => Red,
        "running" => Blue,
        "cancelled" | "expired" | "skipped" | "pending" | "ready" => return anstyle::Style::new().dimmed(),
        _ => Yellow,
    };
    colour.on_default()
}

/// A duration as people say it.
pub(super) fn duration(ms: u64) -> String {
    let span = Duration::from_millis(ms);
    let secs = span.as_secs();
    match secs {
        0 => format!("{ms} ms"),
        1..60 => format!("{:.1} s", span.as_secs_f64()),
        60..3_600 => format!("{} min {} s", secs / 60, secs % 60),
        _ => format!("{} h {} min", secs / 3_600, secs % 3_600 / 60),
    }
}

/// A text of a JSON document, or nothing.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

/// The exit code of a run's status.
pub(super) fn exit_of(status: &str) -> u8 {
    match status {
        "completed" => 0,
        "cancelled" => 3,
        "awaiting_approval" => 4,
        _ => 1,
    }
}

/// Asks on the terminal; without one the answer is no.
pub(super) fn ask(question: &str) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    let _ = write!(std::io::stderr(), "{question} [y/N] ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).is_ok() && matches!(line.trim(), "y" | "Y" | "yes")
}
