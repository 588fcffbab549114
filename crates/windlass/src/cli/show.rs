//! Showing one run: its steps, its timeline, its records, its output, and why it is where it is.

use super::Outcome;
use super::args::{LogsArgs, ShowArgs};
use super::follow::{self, Heard, escape};
use super::say::{self, Say, duration, one_line, overwritten, plain, printable, text};
use super::screen::tree;
use serde_json::Value;
use std::collections::VecDeque;
use windlass_api::List;
use windlass_api::step::Checkpoint;
use windlass_api::why::Why;
use windlass_server::client::{Client, Failure};

/// How wide a timeline is drawn.
const TIMELINE_WIDTH: u64 = 60;

pub(super) async fn show(client: &Client, how: &ShowArgs, say: &Say) -> Outcome {
    let run = client.get(&format!("/v1/runs/{}", escape(&how.run))).await?;
    // `last` may be another run a moment later.
    let id = text(&run, "id");
    if how.events {
        let path = format!("/v1/runs/{}/events", escape(id));
        let mut lines = client.lines(&path).await?;
        while let Some(line) = lines.next().await {
            say.record(&line);
            if say::is_lost() {
                break;
            }
        }
    } else if how.receipts {
        super::undo::receipts(client, id, say).await?;
    } else if how.checkpoints {
        checkpoints(client, id, say).await?;
    } else if how.timeline && !say.json {
        say.line(&timeline(say, &run));
    } else {
        say.answer(&run, || describe(say, &run));
    }
    Ok(if how.exit_status { say::exit_of(text(&run, "status")) } else { 0 })
}

/// What the steps of a run saved, and its messages.
async fn checkpoints(client: &Client, run: &str, say: &Say) -> Outcome {
    let answer = client.get(&format!("/v1/runs/{}/checkpoints", escape(run))).await?;
    let saved: List<Checkpoint> = say::read(&answer)?;
    say.answer(&answer, || {
        let mut rows = vec![["STEP", "AT", "ON LOSS", "TOKENS", "SAVED"].map(str::to_owned).to_vec()];
        for saved in &saved.items {
            let on_loss = match (saved.resumable == Some(true), saved.idempotent == Some(true)) {
                (true, _) => "reuse",
                (false, true) => "repeat",
                (false, false) => "",
            };
            let tokens = saved.tokens_used.map_or(0, |tokens| tokens.input + tokens.output);
            let output = saved.output.as_ref().map_or_else(String::new, Value::to_string);
            let said = printable(saved.message.as_deref().unwrap_or_default());
            rows.push(vec![
                say::maybe(saved.step.as_ref()),
                saved.at.to_string(),
                on_loss.to_owned(),
                if tokens == 0 { String::new() } else { tokens.to_string() },
                say::guarded(&format!("{said}{output}")),
            ]);
        }
        say.table(&rows)
    });
    Ok(0)
}

fn describe(say: &Say, run: &Value) -> String {
    let took = run["duration_ms"].as_u64().map_or(String::new(), |ms| format!(" in {}", duration(ms)));
    let reason = run["reason"].as_str().map_or(String::new(), |reason| format!(" · {}", one_line(reason)));
    let mut out = format!("{} {}{took}{reason}\n", text(run, "id"), say.status(text(run, "status")));
    let rows = [
        ("pipeline", text(run, "name")),
        ("made", text(run, "created_at")),
        ("by", run["trigger"]["user"].as_str().unwrap_or(text(&run["trigger"], "source"))),
        ("from", text(run, "resumed_from")),
        ("called by", text(run, "parent_run")),
        ("runbook", text(run, "runbook_hash")),
    ];
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        out.push_str(&format!("  {name:<10} {}\n", one_line(value)));
    }
    if let Some(stop) = run.get("cancellation") {
        let by = stop["user"].as_str().unwrap_or(text(stop, "initiator"));
        let why =
            stop["reason"].as_str().map_or_else(String::new, |reason| format!(": {}", one_line(reason)));
        out.push_str(&format!("  {:<10} by {} at {}{why}\n", "cancelled", one_line(by), text(stop, "at")));
    }
    if let Some(vars) = run["vars"].as_object().filter(|vars| !vars.is_empty()) {
        let vars = say::guarded(&Value::Object(vars.clone()).to_string());
        out.push_str(&format!("  {:<10} {vars}\n", "vars"));
    }
    if let Some(result) = run.get("result") {
        out.push_str(&format!("  {:<10} {}\n", "result", say::guarded(&result.to_string())));
    }
    if let Some(message) = run["error"]["message"].as_str() {
        let message = printable(message).replace('\n', "\n             ");
        out.push_str(&format!("  {:<10} {}: {message}\n", "error", text(&run["error"], "code")));
    }
    for line in tree(say, run, "▶") {
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// Milliseconds of a time in RFC 3339.
fn millis(value: &Value) -> Option<i64> {
    value.as_str()?.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}

/// The steps as bars, drawn to scale from the beginning of the run to its end, or to the last that is known of it.
fn timeline(say: &Say, run: &Value) -> String {
    let steps: Vec<&Value> = run["steps"].as_array().into_iter().flatten().collect();
    let from = millis(&run["started_at"]).or_else(|| millis(&run["created_at"])).unwrap_or(0);
    let to =
        millis(&run["completed_at"]).or_else(|| millis(&run["updated_at"])).unwrap_or(from).max(from + 1);
    let scale =
        |at: i64| ((at - from).max(0) as u64 * TIMELINE_WIDTH / (to - from) as u64).min(TIMELINE_WIDTH);
    let widest = steps.iter().map(|step| say::width_of(&plain(step, "id"))).max().unwrap_or(0).min(32);
    let mut out = format!(
        "{} {}\n{:widest$} 0{:>width$}\n",
        text(run, "id"),
        say.status(text(run, "status")),
        "",
        duration((to - from) as u64),
        width = TIMELINE_WIDTH as usize - 1
    );
    for step in steps {
        let id = say::cut(&plain(step, "id"), widest + 1);
        let id = format!("{id}{}", " ".repeat(widest.saturating_sub(say::width_of(&id))));
        let (bar, took) = match millis(&step["started_at"]) {
            Some(began) => {
                let ended = millis(&step["completed_at"]).unwrap_or(to);
                let (a, b) = (scale(began), scale(ended));
                let length = (b - a).max(1) as usize;
                let fill = if step["group"] == Value::Bool(true) { "─" } else { "█" };
                let bar = format!(
                    "{}{}",
                    " ".repeat((a as usize).min(TIMELINE_WIDTH as usize - 1)),
                    fill.repeat(length)
                );
                (bar, duration((ended - began).max(0) as u64))
            }
            None => (String::new(), text(step, "status").to_owned()),
        };
        let pad = (TIMELINE_WIDTH as usize + 1).saturating_sub(bar.chars().count());
        out.push_str(&format!("{id} {bar}{} {took}\n", " ".repeat(pad)));
    }
    out
}

pub(super) async fn logs(client: &mut Client, how: &LogsArgs, say: &Say) -> Outcome {
    let (mut heard, mut any, mut fruitless) = (Heard::default(), false, 0);
    loop {
        heard.restart();
        match logs_here(client, how, (&mut heard, &mut any), say).await {
            Ok(true) => break,
            Ok(false) => {}
            Err(failure) if failure.gone && client.is_renewable() => {}
            Err(failure) => return Err(failure),
        }
        if !client.executes() {
            fruitless = 0;
        }
        follow::renew(client, &mut fruitless).await?;
    }
    if !any {
        say.note("there is no output");
    }
    Ok(0)
}

/// Shows what was not shown yet, for as long as whoever is asked is there; says whether that was all.
async fn logs_here(
    client: &Client,
    how: &LogsArgs,
    (heard, any): (&mut Heard, &mut bool),
    say: &Say,
) -> Result<bool, Failure> {
    // A looker in this process has to let others at the directory, or nothing would ever be new.
    let stay = how.follow && client.executes();
    let shown = client.get(&format!("/v1/runs/{}", escape(&how.run))).await?;
    let mut over = shown.get("completed_at").is_some();
    let run = format!("/v1/runs/{}", escape(text(&shown, "id")));
    let mut path = format!("{run}/logs?follow={stay}&failed={}", how.failed);
    if let Some(step) = &how.step {
        path.push_str(&format!("&step={}", escape(step)));
    }
    let since = how.since.as_deref().map(super::lists::since).transpose()?;
    let since = since.and_then(|since| millis(&Value::String(since)));
    let mut last = VecDeque::new();
    let mut lines = client.lines(&path).await?;
    loop {
        let line = tokio::select! {
            line = lines.next() => line,
            () = say::abandoned() => return Ok(true),
        };
        let Some(line) = line else { break };
        let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
        if !heard.is_new(&value) {
            continue;
        }
        *any = true;
        if since.is_some_and(|since| millis(&value["at"]).is_some_and(|at| at < since)) {
            continue;
        }
        if how.tail.is_some_and(|tail| last.len() == tail) {
            last.pop_front();
        }
        last.push_back((line, value));
        if how.tail.is_none() {
            last.drain(..).for_each(|(line, value)| wrote(how, &line, &value, say));
        }
    }
    last.iter().for_each(|(line, value)| wrote(how, line, value, say));
    if stay {
        // The lines end with the run; or with whoever sent them, who does not answer then.
        over = client.get(&run).await?.get("completed_at").is_some();
    }
    Ok(!lines.is_broken() && (over || !how.follow))
}

/// Shows a line that a step wrote.
fn wrote(how: &LogsArgs, line: &str, value: &Value, say: &Say) {
    let content = printable(overwritten(text(value, "text")));
    let at = if how.timestamps { format!("{} ", plain(value, "at")) } else { String::new() };
    match &how.step {
        _ if say.json => say.document(line),
        Some(_) => say.line(&format!("{at}{content}")),
        None => say.line(&format!("{at}{} | {content}", plain(value, "step"))),
    }
}

pub(super) async fn why(client: &Client, run: &str, say: &Say) -> Outcome {
    let answer = client.get(&format!("/v1/runs/{}/why", escape(run))).await?;
    let why: Why = say::read(&answer)?;
    say.answer(&answer, || {
        let status = why.status.map_or("", |status| status.as_str());
        let mut out = format!("{} {}\n", why.run, say.status(status));
        for link in &why.because {
            let place = match link.step.as_ref().map(|step| one_line(step.as_str())) {
                Some(step) if link.run == why.run => format!("step {step}"),
                Some(step) => format!("{} step {step}", link.run),
                None if link.run == why.run => "run".to_owned(),
                None => link.run.to_string(),
            };
            out.push_str(&format!("  {place}: {}\n", printable(&link.text)));
        }
        out
    });
    Ok(0)
}

/// An approval as a human decides on it: the card that the server made of the recorded action, and how it stands.
pub(super) fn approval(say: &Say, approval: &Value) -> String {
    let mut out = printable(text(approval, "card"));
    out.push_str(&format!("{:<10}{}", "status", say.status(text(approval, "status"))));
    for decided in approval["decisions"].as_array().into_iter().flatten() {
        let reason = decided["reason"].as_str().map(|reason| format!(": {}", printable(reason)));
        out.push_str(&format!(
            "\n{:<10}by {} at {}{}",
            text(decided, "decision"),
            printable(text(decided, "by")),
            text(decided, "at"),
            reason.unwrap_or_default()
        ));
    }
    out
}
