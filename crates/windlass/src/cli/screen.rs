//! What a followed run looks like: on a terminal, what its steps write scrolls by and stays, and below it the steps that are
//! under way move; elsewhere there are plain lines, and for programs JSON events.
//!
//! ```text
//!   build | compiling            written once, and never touched again
//!   test | 12 passed
//! ✔ build 2.0 s                  the live area: it fits on the screen, and is drawn again and again
//! ⠋ test
//! ```
//!
//! Invariant: only the rows of the live area are ever erased. When the run ends, or nobody follows it any longer, every step
//! is written once more where it stays.

use super::follow::Heard;
use super::say::{self, Say, duration, mark, one_line, overwritten, plain, printable, text};
use serde_json::Value;
use std::collections::{HashMap, VecDeque};

const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
/// The records that end a run.
const ENDINGS: [&str; 3] = ["pipeline:completed", "pipeline:failed", "pipeline:cancelled"];
/// How many lines are held back for the next drawing.
const PENDING_MAX: usize = 200;
/// How many of a failed step's last lines are repeated at the end, for how many steps they are kept, and of how many failed
/// steps anything is repeated.
const LAST_LINES: usize = 10;
const LAST_STEPS_MAX: usize = 1_000;
const FAILED_MAX: usize = 20;
/// How many lines of a failed step's command are repeated.
const COMMAND_LINES: usize = 10;

/// What is on the screen.
pub(super) struct Screen<'a> {
    pub(super) say: &'a Say,
    pub(super) id: String,
    pub(super) run: Value,
    /// The records after this one are new.
    pub(super) next_seq: u64,
    /// Whether the record that ends the run was seen.
    pub(super) over_seen: bool,
    /// What of the steps' output was seen.
    pub(super) heard: Heard,
    /// What was last said of each step.
    said: HashMap<String, String>,
    /// Lines that stay, and are written with the next drawing.
    pending: Vec<String>,
    /// The last lines of each step that has not succeeded, and the epoch of the attempt that wrote them.
    last: HashMap<String, (u64, VecDeque<String>)>,
    /// How many rows the live area has.
    drawn: usize,
    frame: usize,
}

impl<'a> Screen<'a> {
    pub(super) fn new(say: &'a Say, id: &str) -> Screen<'a> {
        Screen {
            say,
            id: id.to_owned(),
            run: Value::Null,
            next_seq: 0,
            over_seen: false,
            heard: Heard::default(),
            said: HashMap::new(),
            pending: Vec::new(),
            last: HashMap::new(),
            drawn: 0,
            frame: 0,
        }
    }

    /// Whether there is a live area.
    pub(super) fn moves(&self) -> bool {
        self.say.terminal && !self.say.json && !self.say.quiet
    }

    pub(super) fn begin(&mut self, run: &Value) {
        if self.say.json {
            return;
        }
        if !self.say.quiet {
            self.say.line(&format!("run {} ({})", self.id, plain(run, "name")));
        }
        self.update(run);
    }

    /// A record came.
    pub(super) fn event(&mut self, line: &str) {
        if let Ok(record) = serde_json::from_str::<Value>(line) {
            self.next_seq = record["seq"].as_u64().map_or(self.next_seq, |seq| seq + 1);
            self.over_seen |= ENDINGS.contains(&text(&record, "type"));
            if text(&record, "type") == "guard:warned" {
                self.warned(&record);
            }
        }
        if self.say.json {
            self.say.document(line);
        }
    }

    /// A guard that only warns does not hold.
    fn warned(&mut self, record: &Value) {
        let guard = printable(text(record, "guard"));
        let detail = Some(text(record, "detail")).filter(|detail| !detail.is_empty());
        let detail = detail.map_or_else(String::new, |detail| format!(": {}", printable(detail)));
        let step = one_line(text(record, "step"));
        self.stays(&format!("{step} | warning: the guard `{guard}` does not hold{detail}"));
    }

    /// A step wrote a line.
    pub(super) fn output(&mut self, line: &str) {
        let Ok(line) = serde_json::from_str::<Value>(line) else { return };
        if !self.heard.is_new(&line) {
            return;
        }
        let content = printable(overwritten(text(&line, "text")));
        let (step, epoch) = (text(&line, "step"), line["epoch"].as_u64().unwrap_or(0));
        if self.last.len() < LAST_STEPS_MAX || self.last.contains_key(step) {
            let (of, last) = self.last.entry(step.to_owned()).or_default();
            if *of != epoch || last.len() == LAST_LINES {
                if *of != epoch { last.clear() } else { drop(last.pop_front()) }
            }
            *of = epoch;
            last.push_back(content.clone());
        }
        self.stays(&format!("{} | {content}", one_line(step)));
    }

    /// A line that stays: above the live area, or in its turn where nothing moves.
    fn stays(&mut self, shown: &str) {
        if self.say.json || self.say.quiet {
            return;
        }
        if !self.moves() {
            return self.say.line(&format!("  {shown}"));
        }
        self.pending.push(format!("  {shown}"));
        if self.pending.len() >= PENDING_MAX {
            self.draw();
        }
    }

    /// The run is now like this.
    pub(super) fn update(&mut self, run: &Value) {
        self.run = run.clone();
        if self.say.json || self.say.quiet {
            return;
        }
        for step in run["steps"].as_array().into_iter().flatten() {
            if text(step, "status") == "succeeded" {
                self.last.remove(text(step, "id"));
            }
        }
        if self.moves() {
            return self.draw();
        }
        // A group is over when its last member is, and is told after it.
        let steps = run["steps"].as_array().map_or(&[][..], Vec::as_slice);
        let is_group = |step: &&Value| step["group"] == Value::Bool(true);
        let (groups, plain): (Vec<&Value>, Vec<&Value>) = steps.iter().partition(is_group);
        for step in plain.into_iter().chain(groups.into_iter().rev()) {
            let (id, status) = (text(step, "id"), text(step, "status"));
            let now = format!("{status} {}", step["attempt"]);
            if step["group"] == Value::Bool(true) && status == "running"
                || matches!(status, "pending" | "ready")
            {
                continue;
            }
            if self.said.insert(id.to_owned(), now.clone()).as_ref() != Some(&now) {
                self.say.line(&format!("{} {}{}", mark(status), one_line(id), remark(step)));
            }
        }
    }

    /// Writes what stays, and draws the live area below it in the place of the one before.
    pub(super) fn draw(&mut self) {
        self.frame += 1;
        let (height, width) = size();
        let lines = self.live(height.saturating_sub(2).max(1));
        let mut out = self.erased();
        for line in &lines {
            out.push_str(&say::cut(line, width));
            out.push('\n');
        }
        self.say.write(&out);
        self.drawn = lines.len();
    }

    /// What erases the live area and writes what is to stay in its place. It is one write with what comes next, so that
    /// nothing is half drawn; and it is written at once, as what is said next may go to stderr and would be erased.
    fn erased(&mut self) -> String {
        let mut out = String::new();
        if self.drawn > 0 {
            out.push_str(&format!("\u{1b}[{}A\u{1b}[J", self.drawn));
            self.drawn = 0;
        }
        for line in self.pending.drain(..) {
            out.push_str(&line);
            out.push('\n');
        }
        out
    }

    /// The rows of the live area: all steps where there is room; else what is under way, and the newest of the rest.
    fn live(&self, rows: usize) -> Vec<String> {
        let lines = tree(self.say, &self.run, SPINNER[self.frame % SPINNER.len()]);
        let mut out = self.waits();
        let room = rows.saturating_sub(out.len());
        if lines.len() <= room {
            out.extend(lines);
            return out;
        }
        let steps = self.run["steps"].as_array().map_or(&[][..], Vec::as_slice);
        let settled = |at: usize| {
            let status = steps.get(at).map_or("", |step| text(step, "status"));
            matches!(status, "succeeded" | "skipped" | "cancelled" | "pending" | "ready")
        };
        let mut order: Vec<usize> = (0..lines.len()).rev().collect();
        order.sort_by_key(|at| settled(*at));
        order.truncate(room.saturating_sub(1));
        order.sort_unstable();
        out.push(format!("  … and {}", say::count(lines.len() - order.len(), "more step")));
        out.extend(order.iter().filter_map(|at| lines.get(*at).cloned()));
        out.truncate(rows);
        out
    }

    /// What the run as a whole waits for, where none of its steps says it.
    fn waits(&self) -> Vec<String> {
        let status = text(&self.run, "status");
        let reason = self.run["reason"].as_str().filter(|_| matches!(status, "blocked" | "pending"));
        let line = reason.map(|reason| {
            let line = format!("{} {status} · waits for {}", mark(status), one_line(reason));
            format!("  {}", colour(self.say, status, &line))
        });
        line.into_iter().collect()
    }

    /// Nobody looks any longer: what was shown stays, with every step as it is.
    pub(super) fn leave(&mut self) {
        if !self.moves() {
            return;
        }
        let mut out = self.erased();
        for line in self.waits().into_iter().chain(tree(self.say, &self.run, mark("running"))) {
            out.push_str(&line);
            out.push('\n');
        }
        self.say.write(&out);
    }

    /// The run is over, or nobody waits any longer.
    pub(super) fn end(&mut self, run: &Value) {
        if self.say.json {
            return self.say.document(&run.to_string());
        }
        self.leave();
        let took = run["duration_ms"].as_u64().map_or(String::new(), |ms| format!(" in {}", duration(ms)));
        let status = text(run, "status");
        let mut out = if status == "failed" { self.failures(run) } else { String::new() };
        out.push_str(&format!("{}{took}", self.say.status(status)));
        if let Some(message) = run["error"]["message"].as_str() {
            out.push_str(&format!("\n  {}", printable(message).replace('\n', "\n  ")));
        }
        if let Some(result) = run.get("result") {
            out.push_str(&format!("\n  {}", say::guarded(&result.to_string())));
        }
        if status == "failed" {
            out.push_str(&format!(
                "\n  details: windlass logs {0} --failed\n  to continue: windlass retry {0}",
                self.id
            ));
        }
        if status == "awaiting_approval" {
            out.push_str(&format!("\n  see what is asked: windlass why {}", self.id));
        }
        self.say.line(&out);
    }

    /// The steps that failed, once more: what they ran, and the last that they wrote.
    fn failures(&self, run: &Value) -> String {
        if self.say.quiet {
            return String::new();
        }
        let failed = |step: &&Value| text(step, "status") == "failed" && step["group"] != Value::Bool(true);
        let steps: Vec<&Value> = run["steps"].as_array().into_iter().flatten().filter(failed).collect();
        let mut out = String::new();
        for step in steps.iter().take(FAILED_MAX) {
            let line = format!("{} {}{}", mark("failed"), plain(step, "id"), remark(step));
            out.push_str(&format!("{}\n", colour(self.say, "failed", &line)));
            let command = printable(text(step, "command"));
            let mut lines = command.lines();
            for (at, line) in lines.by_ref().take(COMMAND_LINES).enumerate() {
                out.push_str(&format!("  {} {line}\n", if at == 0 { "$" } else { " " }));
            }
            if lines.next().is_some() {
                out.push_str("    …\n");
            }
            for line in self.last.get(text(step, "id")).into_iter().flat_map(|(_, last)| last) {
                out.push_str(&format!("    {line}\n"));
            }
        }
        if let Some(more) = steps.len().checked_sub(FAILED_MAX).filter(|more| *more > 0) {
            out.push_str(&format!("  … and {} that failed\n", say::count(more, "more step")));
        }
        out
    }
}

/// What is said of a step beside its name.
fn remark(step: &Value) -> String {
    let mut out = String::new();
    if let Some(attempt) = step["attempt"].as_u64().filter(|&attempt| attempt > 1) {
        out.push_str(&format!(" (attempt {attempt})"));
    }
    if let Some(ms) = step["duration_ms"].as_u64() {
        out.push_str(&format!(" {}", duration(ms)));
    }
    if let Some(reason) = step["reason"].as_str() {
        out.push_str(&format!(" · waits for {}", one_line(reason)));
    }
    if let Some(message) = step["error"]["message"].as_str() {
        let first = message.lines().next().unwrap_or_default();
        out.push_str(&format!(" · {}", one_line(first)));
    }
    out
}

/// The steps of a run as a tree.
pub(super) fn tree(say: &Say, run: &Value, spinner: &str) -> Vec<String> {
    let steps: Vec<&Value> = run["steps"].as_array().into_iter().flatten().collect();
    let parents: HashMap<&str, &str> =
        steps.iter().map(|step| (text(step, "id"), text(step, "parent"))).collect();
    let depth = |id: &str| {
        let mut depth = 0;
        let mut at = parents.get(id).copied().unwrap_or("");
        while !at.is_empty() && depth < 32 {
            depth += 1;
            at = parents.get(at).copied().unwrap_or("");
        }
        depth
    };
    steps
        .iter()
        .map(|step| {
            let status = text(step, "status");
            let sign = if status == "running" { spinner } else { mark(status) };
            let section = text(step, "section");
            let section = if section == "main" { String::new() } else { format!(" [{section}]") };
            let line = format!("{sign} {}{section}{}", plain(step, "id"), remark(step));
            format!("{}{}", "  ".repeat(depth(text(step, "id")) + 1), colour(say, status, &line))
        })
        .collect()
}

fn colour(say: &Say, status: &str, line: &str) -> String {
    use anstyle::AnsiColor::{Blue, Green, Red, Yellow};
    let style = match status {
        "succeeded" => Green.on_default(),
        "failed" => Red.on_default(),
        "running" => Blue.on_default(),
        "pending" | "ready" | "skipped" | "cancelled" => anstyle::Style::new().dimmed(),
        _ => Yellow.on_default(),
    };
    say.paint(style, line)
}

/// The terminal's height and width.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            (usize::from(size.ws_row), usize::from(size.ws_col))
        }
        Ok(_) | Err(_) => (24, 80),
    }
}
