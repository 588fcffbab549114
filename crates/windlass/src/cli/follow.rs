//! Following a run: a tree that moves on a terminal, plain lines elsewhere, JSON events for programs.

use super::Outcome;
pub(super) use super::say::printable;
use super::say::{self, Say, duration, mark, one_line, plain, text};
use crate::client::{Client, Failure};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_core::code::Code;

/// How often a moving tree is drawn again.
const FRAME: Duration = Duration::from_millis(120);
/// How many lines of output stand below a moving tree.
const TAIL_LINES: usize = 6;
const SPINNER: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// The records that end a run.
const ENDINGS: [&str; 3] = ["pipeline:completed", "pipeline:failed", "pipeline:cancelled"];
/// How long nothing is asked after whoever held the data directory went away.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a looker opens the data directory, which others may need, while nobody holds it.
const LOOK: Duration = Duration::from_millis(500);
/// How many steps a run may have to be fetched anew for each of its records.
const STEPS_FEW: usize = 64;
/// How often another way is looked for without anything new.
const FRUITLESS_MAX: usize = 100;
/// How often who does not wait for humans looks whether it is one, behind another run, that is waited for.
const ASK_WHY: Duration = Duration::from_millis(300);
/// What stands between a run and the decision of a human, where nothing but that is waited for.
const HUMAN: [&str; 3] = ["call", "run", "approval"];

/// How a run is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Follow {
    /// Whether to wait when a human has to decide.
    pub(super) wait: bool,
    /// Whether Ctrl-C suspends it, where the engine is in this process.
    pub(super) suspend: bool,
}

/// A text as a part of a path.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

async fn shown(client: &Client, id: &str) -> Result<Value, Failure> {
    client.get(&format!("/v1/runs/{}", escape(id))).await
}

pub(super) fn is_over(run: &Value) -> bool {
    matches!(text(run, "status"), "completed" | "failed" | "cancelled")
}

/// Runs that have not ended and wait for nobody but an executor.
pub(super) async fn open_runs(client: &Client) -> Result<Vec<String>, Failure> {
    let mut open = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("/v1/runs?limit=500{cursor}")).await?;
        let items = page["items"].as_array().cloned().unwrap_or_default();
        open.extend(items.iter().filter(|run| !is_over(run)).map(|run| text(run, "id").to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(open),
        }
    }
}

/// Waits until a run is over, or waits for something that does not come by itself here.
pub(super) async fn settle(client: &mut Client, id: &str) -> Result<Value, Failure> {
    let mut fruitless = 0;
    loop {
        match settle_here(client, id).await {
            Ok(Some(run)) => return Ok(run),
            Ok(None) => {}
            Err(failure) if failure.gone && client.is_renewable() => {}
            Err(failure) => return Err(failure),
        }
        renew(client, &mut fruitless).await?;
    }
}

/// The same, for as long as whoever is asked is there.
async fn settle_here(client: &Client, id: &str) -> Result<Option<Value>, Failure> {
    let mut events = events(client, id, 0, true).await?;
    loop {
        let run = shown(client, id).await?;
        if is_over(&run) || text(&run, "status") == "awaiting_approval" {
            return Ok(Some(run));
        }
        if events.next().await.is_none() {
            return Ok(None);
        }
    }
}

/// Looks for another way to the data directory, after a pause. There are only so many without anything new between them.
pub(super) async fn renew(client: &mut Client, fruitless: &mut usize) -> Result<(), Failure> {
    *fruitless += 1;
    if *fruitless > FRUITLESS_MAX {
        return Err(Failure::new(Code::Unavailable, "whoever holds the data directory does not answer"));
    }
    let pause = if client.executes() { PAUSE } else { LOOK };
    client.leave().await;
    tokio::time::sleep(pause).await;
    client.renew().await
}

async fn events(client: &Client, id: &str, from: u64, follow: bool) -> Result<crate::client::Lines, Failure> {
    let path = format!("/v1/runs/{}/events?follow={follow}&from={from}", escape(id));
    client.lines(&path).await
}

async fn output(client: &Client, id: &str, follow: bool) -> Result<crate::client::Lines, Failure> {
    let path = format!("/v1/runs/{}/logs?follow={follow}", escape(id));
    client.lines(&path).await
}

pub(super) async fn watch(client: &mut Client, run: &str, say: &Say) -> Outcome {
    to_end(client, run, Follow { wait: true, suspend: false }, say).await
}

/// Follows a run to its end and returns the exit code of its status. Where whoever holds the data directory goes away, the
/// next one is asked, or this process takes its place.
pub(super) async fn to_end(client: &mut Client, id: &str, how: Follow, say: &Say) -> Outcome {
    let mut fruitless = 0;
    let run = loop {
        match shown(client, id).await {
            Err(failure) if failure.gone && client.is_renewable() => renew(client, &mut fruitless).await?,
            answer => break answer?,
        }
    };
    let id = text(&run, "id").to_owned();
    let mut screen = Screen::new(say, &id);
    screen.begin(&run);
    // One for all the time: what comes while nobody is asked is not lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    fruitless = 0;
    loop {
        let before = screen.next_seq;
        match to_end_here(client, how, (&mut screen, &mut interrupt), say).await {
            Ok(Some(code)) => return Ok(code),
            Ok(None) => {}
            Err(failure) if failure.gone && client.is_renewable() => {}
            Err(failure) => return Err(failure),
        }
        // A looker in this process has to let others at the directory, or nothing would ever be new.
        if screen.next_seq > before || !client.executes() {
            fruitless = 0;
        }
        renew(client, &mut fruitless).await?;
    }
}

/// The same, for as long as whoever is asked is there; nothing where they went away.
async fn to_end_here(
    client: &Client,
    how: Follow,
    (screen, interrupt): (&mut Screen<'_>, &mut Signal),
    say: &Say,
) -> Result<Option<u8>, Failure> {
    let (id, stay) = (screen.id.clone(), client.executes());
    screen.update(&shown(client, &id).await?);
    let mut ended = screen.over_seen;
    // The records of a run end with it: who has seen the end would wait for more in vain.
    let mut events = events(client, &id, screen.next_seq, stay && !ended).await?;
    let mut lines = output(client, &id, stay).await?;
    screen.heard.restart();
    let mut frame = tokio::time::interval(FRAME);
    let mut ask_why = tokio::time::interval(ASK_WHY);
    let (mut printed, mut stale, mut human) = (false, false, false);
    loop {
        tokio::select! {
            // What a step wrote comes before the news that it ended, where both are there.
            biased;
            line = lines.next(), if !printed => match line {
                Some(line) => screen.output(&line),
                None => printed = true,
            },
            event = events.next(), if !ended => {
                ended = event.is_none();
                if let Some(event) = event {
                    screen.event(&event);
                    stale = true;
                }
            },
            _ = frame.tick(), if screen.moves() || stale => {
                if std::mem::take(&mut stale) {
                    screen.update(&shown(client, &id).await?);
                } else {
                    screen.draw();
                }
            },
            _ = ask_why.tick(), if !how.wait && !ended => human = waits_for_human(client, &id).await?,
            // Who only looks is done when nobody sees it. A run goes on, and its end is waited for.
            () = say::abandoned(), if !how.suspend => return Ok(Some(0)),
            _ = interrupt.recv() => return interrupted(client, &id, how, screen, say).await.map(Some),
        }
        // The whole of a large run is not fetched for each of its records.
        if stale && screen.run["steps"].as_array().is_none_or(|steps| steps.len() <= STEPS_FEW) {
            stale = false;
            screen.update(&shown(client, &id).await?);
        }
        human |= !how.wait && text(&screen.run, "status") == "awaiting_approval";
        if human {
            return Ok(Some(hand_over(client, screen).await?));
        }
        if ended && printed {
            let run = shown(client, &id).await?;
            screen.update(&run);
            let whole = !lines.is_broken() && !events.is_broken();
            if is_over(&run) && whole {
                screen.end(&run);
                return Ok(Some(say::exit_of(text(&run, "status"))));
            }
            return Ok(None);
        }
    }
}

/// Whether a run waits for the decision of a human and for nothing else, be it in a run that it called or comes after.
async fn waits_for_human(client: &Client, id: &str) -> Result<bool, Failure> {
    let answer = client.get(&format!("/v1/runs/{}/why", escape(id))).await?;
    let kinds: Vec<&str> =
        answer["because"].as_array().into_iter().flatten().map(|link| text(link, "kind")).collect();
    Ok(kinds.contains(&"approval") && kinds.iter().all(|kind| HUMAN.contains(kind)))
}

/// A human has to decide, and nobody waits for it: what was told up to now is shown, and that is the end.
async fn hand_over(client: &Client, screen: &mut Screen<'_>) -> Outcome {
    let id = screen.id.clone();
    let mut lines = output(client, &id, false).await?;
    screen.heard.restart();
    while let Some(line) = lines.next().await {
        screen.output(&line);
    }
    let mut events = events(client, &id, screen.next_seq, false).await?;
    while let Some(event) = events.next().await {
        screen.event(&event);
    }
    let run = shown(client, &id).await?;
    screen.update(&run);
    screen.end(&run);
    if screen.over_seen {
        // It was decided this very moment.
        return Ok(say::exit_of(text(&run, "status")));
    }
    if text(&run, "status") != "awaiting_approval" && !screen.say.json {
        screen.say.line(&format!("  a human has to decide: windlass why {id}"));
    }
    Ok(say::exit_of("awaiting_approval"))
}

/// The first Ctrl-C suspends the run where the engine is here, and lets go of it elsewhere. The second ends at once.
async fn interrupted(client: &Client, id: &str, how: Follow, screen: &mut Screen<'_>, say: &Say) -> Outcome {
    screen.clear();
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(i32::from(super::INTERRUPTED));
        }
    });
    if how.suspend && client.app().is_some() {
        let body = json!({ "reason": "interrupted" });
        match client.post(&format!("/v1/runs/{id}/suspend"), &body).await {
            Ok(_) => say.note(&format!("suspended; go on with: windlass resume {id}")),
            Err(failure) if failure.code == Code::RunTerminalState => {}
            Err(failure) => return Err(failure),
        }
    } else {
        say.note(&format!("the run goes on; look at it with: windlass watch {id}"));
    }
    Ok(super::INTERRUPTED)
}

/// Which lines of output were seen. They come from the beginning whenever somebody else is asked for them, in the order of
/// each attempt and of no two.
#[derive(Default)]
pub(super) struct Heard {
    all: HashMap<(String, u64), u64>,
    now: HashMap<(String, u64), u64>,
}

impl Heard {
    /// They come from the beginning.
    pub(super) fn restart(&mut self) {
        self.now.clear();
    }

    /// Whether a line was not seen before.
    pub(super) fn is_new(&mut self, line: &Value) -> bool {
        let attempt = (text(line, "step").to_owned(), line["epoch"].as_u64().unwrap_or(0));
        let count = self.now.entry(attempt.clone()).or_default();
        *count += 1;
        let seen = self.all.entry(attempt).or_default();
        let is_new = count > seen;
        *seen = (*seen).max(*count);
        is_new
    }
}

/// What is on the screen.
struct Screen<'a> {
    say: &'a Say,
    id: String,
    run: Value,
    /// The records after this one are new.
    next_seq: u64,
    /// Whether the record that ends the run was seen.
    over_seen: bool,
    /// What of the steps' output was seen.
    heard: Heard,
    /// What was last said of each step.
    said: HashMap<String, String>,
    /// The last lines of output, below a moving tree.
    tail: Vec<String>,
    drawn: usize,
    frame: usize,
}

impl<'a> Screen<'a> {
    fn new(say: &'a Say, id: &str) -> Screen<'a> {
        Screen {
            say,
            id: id.to_owned(),
            run: Value::Null,
            next_seq: 0,
            over_seen: false,
            heard: Heard::default(),
            said: HashMap::new(),
            tail: Vec::new(),
            drawn: 0,
            frame: 0,
        }
    }

    /// Whether there is a tree that moves.
    fn moves(&self) -> bool {
        self.say.terminal && !self.say.json && !self.say.quiet
    }

    fn begin(&mut self, run: &Value) {
        if self.say.json {
            return;
        }
        if !self.say.quiet {
            self.say.line(&format!("run {} ({})", self.id, plain(run, "name")));
        }
        self.update(run);
    }

    /// A record came.
    fn event(&mut self, line: &str) {
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
        self.below(format!("{} | warning: the guard `{guard}` does not hold{detail}", text(record, "step")));
    }

    /// A step wrote a line.
    fn output(&mut self, line: &str) {
        let Ok(line) = serde_json::from_str::<Value>(line) else { return };
        if self.heard.is_new(&line) {
            self.below(format!("{} | {}", plain(&line, "step"), printable(text(&line, "text"))));
        }
    }

    /// Shows a line below the tree, or in its turn where nothing moves.
    fn below(&mut self, shown: String) {
        if self.say.json || self.say.quiet {
            return;
        }
        if self.moves() {
            self.tail.push(shown);
            if self.tail.len() > TAIL_LINES {
                self.tail.remove(0);
            }
        } else {
            self.say.line(&format!("  {shown}"));
        }
    }

    /// The run is now like this.
    fn update(&mut self, run: &Value) {
        self.run = run.clone();
        if self.say.json || self.say.quiet {
            return;
        }
        if self.moves() {
            return self.draw();
        }
        for step in run["steps"].as_array().into_iter().flatten() {
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

    /// Draws the tree in the place of the one before.
    fn draw(&mut self) {
        self.frame += 1;
        let mut lines = tree(self.say, &self.run, SPINNER[self.frame % SPINNER.len()]);
        let (height, width) = size();
        lines.extend(
            self.tail.iter().map(|line| self.say.paint(anstyle::Style::new().dimmed(), &format!("  {line}"))),
        );
        let from = lines.len().saturating_sub(height.saturating_sub(2).max(1));
        self.clear();
        for line in &lines[from..] {
            self.say.line(&say::cut(line, width));
        }
        self.drawn = lines.len() - from;
    }

    fn clear(&mut self) {
        if self.drawn > 0 {
            // At once: what is said next may go to stderr, and would be erased.
            self.say.write(&format!("\u{1b}[{}A\u{1b}[J", self.drawn));
            self.drawn = 0;
        }
    }

    /// The run is over, or nobody waits any longer.
    fn end(&mut self, run: &Value) {
        if self.say.json {
            return self.say.document(&run.to_string());
        }
        if self.moves() {
            self.tail.clear();
            self.draw();
            self.drawn = 0;
        }
        let took = run["duration_ms"].as_u64().map_or(String::new(), |ms| format!(" in {}", duration(ms)));
        let status = text(run, "status");
        let mut out = format!("{}{took}", self.say.status(status));
        if let Some(message) = run["error"]["message"].as_str() {
            out.push_str(&format!("\n  {}", printable(message).replace('\n', "\n  ")));
        }
        if let Some(result) = run.get("result") {
            out.push_str(&format!("\n  {}", say::guarded(&result.to_string())));
        }
        if status == "failed" {
            out.push_str(&format!(
                "\n  look closer: windlass logs {0} --failed; go on: windlass retry {0}",
                self.id
            ));
        }
        if status == "awaiting_approval" {
            out.push_str(&format!("\n  see what is asked: windlass why {}", self.id));
        }
        self.say.line(&out);
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
