//! Following a run to its end, through whoever holds the data directory. What is shown of it is the screen's.

use super::Outcome;
pub(super) use super::say::printable;
use super::say::{self, Say, text};
use super::screen::Screen;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_core::code::Code;
use windlass_server::client::{Client, Failure};

/// How often a moving tree is drawn again.
const FRAME: Duration = Duration::from_millis(120);
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

/// Runs that have not ended. One that another run called goes on with that one, and is not among them.
pub(super) async fn open_runs(client: &Client) -> Result<Vec<String>, Failure> {
    let mut open = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = client.get(&format!("/v1/runs?limit=500{cursor}")).await?;
        let items = page["items"].as_array().cloned().unwrap_or_default();
        let own = |run: &&Value| !is_over(run) && run["parent_run"].is_null();
        open.extend(items.iter().filter(own).map(|run| text(run, "id").to_owned()));
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
        return Err(Failure::new(
            Code::Unavailable,
            "the process that holds the data directory does not answer",
        ));
    }
    let pause = if client.executes() { PAUSE } else { LOOK };
    client.leave().await;
    tokio::time::sleep(pause).await;
    client.renew().await
}

async fn events(
    client: &Client,
    id: &str,
    from: u64,
    follow: bool,
) -> Result<windlass_server::client::Lines, Failure> {
    let path = format!("/v1/runs/{}/events?follow={follow}&from={from}", escape(id));
    client.lines(&path).await
}

async fn output(client: &Client, id: &str, follow: bool) -> Result<windlass_server::client::Lines, Failure> {
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
    screen.leave();
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(i32::from(super::INTERRUPTED));
        }
    });
    if how.suspend && client.app().is_some() {
        let body = json!({ "reason": "interrupted" });
        match client.post(&format!("/v1/runs/{id}/suspend"), &body).await {
            Ok(_) => say.note(&format!("suspended; to continue: windlass resume {id}")),
            Err(failure) if failure.code == Code::RunTerminalState => {}
            Err(failure) => return Err(failure),
        }
    } else {
        say.note(&format!("the run continues; to follow it: windlass watch {id}"));
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
