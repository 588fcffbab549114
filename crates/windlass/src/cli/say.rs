//! How the command line speaks: tables and marks for people, JSON for programs, errors to stderr.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;
use unicode_width::UnicodeWidthChar as _;
use windlass_core::code::Code;
use windlass_server::cards::text::is_hidden;
use windlass_server::client::Failure;

/// The first error of a write to stdout. There is one stdout, so there is one of these.
static LOST: OnceLock<std::io::Error> = OnceLock::new();
/// How often somebody who waits for news looks whether anybody still reads them.
const LOOK: Duration = Duration::from_millis(200);
/// How many columns a tab takes in a line that has to fit.
const TAB: &str = "    ";

/// The way to speak that the flags and the terminal ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Say {
    /// JSON on stdout.
    pub(super) json: bool,
    /// Only what was asked for.
    pub(super) quiet: bool,
    /// Colours on stdout.
    pub(super) colour: bool,
    /// Colours on stderr.
    pub(super) colour_err: bool,
    /// Whether stdout is a terminal.
    pub(super) terminal: bool,
}

impl Say {
    pub(super) fn new(json: bool, quiet: bool, no_color: bool) -> Say {
        let terminal = std::io::stdout().is_terminal();
        let allowed = !no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colour_err = allowed && std::io::stderr().is_terminal();
        Say { json, quiet, colour: allowed && terminal, colour_err, terminal }
    }

    /// A line on stdout.
    pub(super) fn line(&self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    /// Writes to stdout at once, so that what is said on stderr afterwards stands below it. After the first error nothing
    /// more is written: whoever closed the pipe has seen enough, and whoever reads it later is not to find a hole.
    pub(super) fn write(&self, text: &str) {
        if LOST.get().is_some() {
            return;
        }
        let mut out = std::io::stdout().lock();
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            let _ = LOST.set(error);
        }
    }

    /// A record as JSON, for people: what is invisible or could take over a terminal is escaped, as JSON may be. With
    /// `--json` it is as it came.
    pub(super) fn record(&self, json: &str) {
        if self.json { self.document(json) } else { self.line(&guarded(json)) }
    }

    /// A line of JSON. On a terminal, what could take it over is escaped, as JSON may be; elsewhere it is as it came.
    pub(super) fn document(&self, json: &str) {
        if self.terminal { self.line(&guarded(json)) } else { self.line(json) }
    }

    /// A document for programs, or the text for people.
    pub(super) fn answer(&self, value: &impl Serialize, text: impl FnOnce() -> String) {
        if self.json {
            // It always can be written: its keys are text.
            self.document(&serde_json::to_string(value).unwrap_or_default());
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
            let _ = writeln!(std::io::stderr(), "{}", printable(text));
        }
    }

    /// Says what went wrong and what to do next; the exit code follows from the code.
    pub(super) fn failure(&self, failure: &Failure) -> ExitCode {
        if self.json {
            // The shape of every problem, with whatever else is known of this one.
            // It always can be written: its keys are text.
            let problem = windlass_api::Problem::new(failure.code, failure.detail.clone());
            let mut problem = serde_json::to_value(problem).unwrap_or_default();
            if let (Value::Object(all), Some(Value::Object(more))) = (&mut problem, &failure.problem) {
                all.extend(more.clone());
            }
            let _ = writeln!(std::io::stderr(), "{}", guarded(&problem.to_string()));
        } else {
            let detail = if self.colour_err { coloured(&failure.detail) } else { printable(&failure.detail) };
            let page = format!("docs/errors/{}.md", failure.code);
            // What is shown with its place says its code itself.
            let titled = failure
                .detail
                .split(['\n', '\u{1b}'])
                .any(|line| line.contains(&format!("[{}]", failure.code)));
            let code = if titled { String::new() } else { format!("{}: ", failure.code) };
            let _ = writeln!(std::io::stderr(), "windlass: {code}{detail}\n  see {page}");
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

    /// How to get the rest of a list.
    pub(super) fn more(&self, page: &Value) -> String {
        let next = page["next_cursor"].as_str().filter(|_| !self.quiet);
        next.map_or(String::new(), |next| format!("more: --cursor {next}\n"))
    }

    /// Columns, aligned; the first row is the heading, which nobody asked for.
    pub(super) fn table(&self, rows: &[Vec<String>]) -> String {
        let Some(first) = rows.first() else { return String::new() };
        let width = |column: usize| rows.iter().map(|row| width_of(&row[column])).max().unwrap_or(0);
        let widths: Vec<usize> = (0..first.len()).map(width).collect();
        let mut text = String::new();
        for (at, row) in rows.iter().enumerate().skip(usize::from(self.quiet)) {
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

/// What became of stdout, where it could not be written to. That nobody reads any more is no failure.
pub(super) fn unwritten() -> Option<Failure> {
    let error = LOST.get().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe)?;
    Some(Failure::new(
        Code::Unavailable,
        format!("stdout cannot be written to, and what was to be there is lost: {error}"),
    ))
}

/// Whether what is said on stdout reaches nobody.
pub(super) fn is_lost() -> bool {
    LOST.get().is_some() || is_closed()
}

/// Ends when nobody reads stdout any more. Who waits for news would not find that out before there are some.
pub(super) async fn abandoned() {
    while !is_lost() {
        tokio::time::sleep(LOOK).await;
    }
}

fn is_closed() -> bool {
    let out = std::io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// What a line looks like at the end, where what came before each return of the carriage was written over.
pub(super) fn overwritten(line: &str) -> &str {
    line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default()
}

/// How long a sequence of colours is that a text begins with, its escape left out.
fn colours_len(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('[')?;
    let len = inner.find(|c: char| !c.is_ascii_digit() && c != ';' && c != ':')?;
    inner[len..].starts_with('m').then_some(len + 2)
}

/// A text of others, as it may be shown on a terminal: without controls but for its lines and tabs, without colours, and
/// with everything that is invisible or turns around what is read written out, as in `\u{202e}`.
pub(super) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                // Nothing but colours is a whole sequence: whoever could hide text in one would.
                if let Some(len) = colours_len(chars.as_str()) {
                    chars = chars.as_str()[len..].chars();
                }
            }
            '\n' | '\t' => out.push(c),
            c if c.is_control() => {}
            c if is_hidden(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// The same on one line.
pub(super) fn one_line(text: &str) -> String {
    printable(text).replace(['\n', '\t'], " ")
}

/// The beginning of a text that may be long: so many characters at most.
pub(super) fn brief(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let begin: String = text.chars().take(max.saturating_sub(1)).collect();
    format!("{begin}…")
}

/// An answer as this version of the API has it. What a newer server says beside is only in the JSON.
pub(super) fn read<T: DeserializeOwned>(answer: &Value) -> Result<T, Failure> {
    T::deserialize(answer).map_err(|error| {
        let text = format!("the server's answer is not of the shape that was expected: {error}");
        Failure::new(Code::Internal, text)
    })
}

/// An optional value in a table: empty where there is none.
pub(super) fn maybe(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(String::new, |value| one_line(&value.to_string()))
}

/// A text of a JSON document on one line, as it may be shown.
pub(super) fn plain(value: &Value, key: &str) -> String {
    one_line(text(value, key))
}

/// JSON in which what is harmful is escaped. It stands for the same.
pub(super) fn guarded(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => out.push(c),
            c if is_hidden(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// A text that is harmless but for its colours.
fn coloured(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('\u{1b}').enumerate() {
        let digits = |inner: &str| inner.bytes().all(|byte| byte.is_ascii_digit() || byte == b';');
        let colour = part.strip_prefix('[').and_then(|rest| rest.split_once('m'));
        if at > 0 && colour.is_some_and(|(inner, _)| digits(inner)) {
            out.push('\u{1b}');
        }
        out.push_str(&printable(part));
    }
    out
}

/// How wide a text is on a screen: what colours it is not counted.
pub(super) fn width_of(text: &str) -> usize {
    let (mut width, mut escape) = (0, false);
    for c in text.chars() {
        match (escape, c) {
            (false, '\u{1b}') => escape = true,
            (true, c) => escape = !c.is_ascii_alphabetic(),
            (false, c) => width += c.width().unwrap_or(0),
        }
    }
    width
}

/// A line of fewer columns than these, with spaces for tabs; what colours it is not counted.
pub(super) fn cut(line: &str, columns: usize) -> String {
    let (mut out, mut shown, mut escape) = (String::new(), 0, false);
    for c in line.replace('\t', TAB).chars() {
        if escape {
            escape = !c.is_ascii_alphabetic();
        } else if c == '\u{1b}' {
            escape = true;
        } else {
            shown += c.width().unwrap_or(0);
            if shown >= columns {
                continue;
            }
        }
        out.push(c);
    }
    out
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

/// So many of something.
pub(super) fn count(n: impl TryInto<u64>, what: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
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

/// Whether somebody wants what is hard to take back: they said so, or they are asked. `undone` says what did not happen.
pub(super) fn sure(said: bool, question: &str, undone: &str, flag: &str) -> Result<(), Failure> {
    if said || ask(question) {
        return Ok(());
    }
    let how = if std::io::stdin().is_terminal() {
        String::new()
    } else {
        format!("; without a terminal add {flag}")
    };
    Err(Failure::new(Code::InvalidInput, format!("{undone}{how}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_take_over_a_terminal_is_left_out() {
        let evil = "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}b\u{2066}\u{200f}\u{61c}\n\tc\u{7}";
        assert_eq!(printable(evil), "a[2J2J\\u{202e}b\\u{2066}\\u{200f}\\u{61c}\n\tc");
        assert_eq!(printable("\u{1b}[1;31mred\u{1b}[0m \u{1b}[38:5:1mx\u{1b}[m\u{1b}[31"), "red x[31");
        assert_eq!((overwritten("10%\r50%\r100%\r"), overwritten("a"), overwritten("\r")), ("100%", "a", ""));
        assert_eq!(one_line("a\u{200b}\n\tc"), "a\\u{200b}  c");
        let json = serde_json::to_string(evil).unwrap();
        let shown = guarded(&json);
        assert!(!shown.chars().any(is_hidden), "{shown}");
        let tag = "\"\u{e0041}\u{200b}\"";
        assert_eq!(guarded(tag), "\"\\udb40\\udc41\\u200b\"");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), evil, "it stands for the same");
        assert_eq!(coloured("\u{1b}[1;31mred\u{1b}[0m\u{1b}[2J\u{9b}"), "\u{1b}[1;31mred\u{1b}[0m[2J");
    }

    #[test]
    fn a_line_is_cut_by_columns() {
        assert_eq!((width_of("日本"), width_of("e\u{301}"), width_of("\u{1b}[31mab\u{1b}[0m")), (4, 1, 2));
        assert_eq!(cut("日本語", 6), "日本");
        assert_eq!(cut("a\tb", 6), "a    ");
        assert_eq!(cut("\u{1b}[31mabcd\u{1b}[0m", 4), "\u{1b}[31mabc\u{1b}[0m");
    }
}
