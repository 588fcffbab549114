//! Deploying, and what follows a deployed runbook: queues, workers, schedules.

use super::Outcome;
use super::args::{QueueVerb, ScheduleVerb, WorkerVerb};
use super::follow::escape;
use super::run;
use super::say::{self, Say, plain, text};
use crate::client::{Client, Failure};
use crate::runbook;
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::Path;
use windlass_core::code::Code;
use windlass_core::runbook::Runbook;

/// The most pages of items that are looked through for the beginning of an id.
const PAGES_MAX: usize = 200;
/// The most bytes that are read of a payload from stdin.
const STDIN_MAX: u64 = 1 << 20;

fn items(page: &Value) -> Vec<Value> {
    page["items"].as_array().cloned().unwrap_or_default()
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidInput, text)
}

/// Makes a runbook the active version of its name, or only shows what that would change.
pub(super) async fn deploy(client: &Client, file: &Path, diff: bool, say: &Say) -> Outcome {
    let loaded = run::load(file, say)?;
    if diff {
        return show_diff(client, &loaded, say).await;
    }
    let root = std::path::absolute(file)?;
    let root = root.parent().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
    let path = format!("/v1/runbooks?project_root={}", escape(&root));
    let deployed = client.post(&path, &run::files(&loaded)).await?;
    say.answer(&deployed, || {
        let hash: String = text(&deployed, "hash").chars().take(12).collect();
        let replaces = deployed["replaces"].as_str().map(|hash| hash.chars().take(12).collect::<String>());
        let instead = replaces.map_or(String::new(), |hash| format!(", replaces {hash}"));
        format!("deployed `{}` as {hash}{instead}", text(&deployed, "name"))
    });
    Ok(0)
}

/// What would change: the declarations, and the text.
async fn show_diff(client: &Client, loaded: &runbook::Loaded, say: &Say) -> Outcome {
    let name = loaded.runbook.name.as_str();
    let active = match client.get(&format!("/v1/runbooks/{}", escape(name))).await {
        Ok(active) => Some(active),
        Err(failure) if failure.code == Code::NotFound => None,
        Err(failure) => return Err(failure),
    };
    let old: Option<Runbook> =
        active.as_ref().and_then(|active| serde_json::from_value(active["runbook"].clone()).ok());
    let changes = declarations(old.as_ref(), &loaded.runbook);
    let before = active.as_ref().map_or("", |active| text(active, "source"));
    let lines = text_diff(before, &loaded.source);
    let answer = json!({
        "name": name,
        "hash": loaded.hash.to_string(),
        "active": active.as_ref().map(|active| active["hash"].clone()),
        "changes": changes.iter().map(|(sign, what, name)| json!({ "change": sign, "kind": what, "name": name })).collect::<Vec<_>>(),
        "diff": lines,
    });
    say.answer(&answer, || {
        let change = |(sign, what, name): &(&str, &str, String)| format!("{sign} {what} `{name}`\n");
        let mut out: String = changes.iter().map(change).collect();
        if active.is_none() {
            out.push_str(&format!("`{name}` is not deployed yet\n"));
        } else if lines.is_empty() {
            out.push_str("nothing changes\n");
        }
        out + &say::printable(&lines.join("\n"))
    });
    Ok(0)
}

/// Which declarations come (`+`), go (`-`) and change (`~`).
fn declarations(old: Option<&Runbook>, new: &Runbook) -> Vec<(&'static str, &'static str, String)> {
    let mut changes = Vec::new();
    macro_rules! compare {
        ($($what:literal $field:ident),+ $(,)?) => {$(
            let before = old.map(|old| old.$field.clone()).unwrap_or_default();
            for (name, def) in &new.$field {
                match before.get(name) {
                    None => changes.push(("+", $what, name.to_string())),
                    Some(was) if was != def => changes.push(("~", $what, name.to_string())),
                    Some(_) => {}
                }
            }
            let gone = before.keys().filter(|name| !new.$field.contains_key(*name));
            changes.extend(gone.map(|name| ("-", $what, name.to_string())));
        )+};
    }
    compare!(
        "pipeline" pipelines, "queue" queues, "worker" workers, "schedule" schedules, "trigger" triggers,
        "lock" locks, "semaphore" semaphores, "agent" agents,
    );
    if old.is_some_and(|old| old.caps != new.caps) {
        changes.push(("~", "caps", new.name.to_string()));
    }
    changes
}

/// The most lines that two texts are compared by; longer ones are shown as a whole.
const DIFF_LINES_MAX: usize = 5_000;

/// The lines that differ between two texts, with a mark each: the longest common part is left out.
fn text_diff(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = (&old[head..], &new[head..]);
    let tail = rest.0.iter().rev().zip(rest.1.iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&rest.0[..rest.0.len() - tail], &rest.1[..rest.1.len() - tail]);
    if a.len().saturating_mul(b.len()) > DIFF_LINES_MAX * DIFF_LINES_MAX {
        let gone = a.iter().map(|line| format!("- {line}"));
        return gone.chain(b.iter().map(|line| format!("+ {line}"))).collect();
    }
    // The length of the longest common part of what begins at each pair of lines.
    let width = b.len() + 1;
    let mut common = vec![0_u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i * width + j] = if a[i] == b[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || i < a.len() && common[(i + 1) * width + j] >= common[i * width + j + 1] {
            lines.push(format!("- {}", a[i]));
            i += 1;
        } else {
            lines.push(format!("+ {}", b[j]));
            j += 1;
        }
    }
    lines
}

pub(super) async fn queues(client: &Client, say: &Say) -> Outcome {
    let page = client.get("/v1/queues").await?;
    say.answer(&page, || {
        let head = ["QUEUE", "STATE", "WAITING", "WORKED ON", "FAILED", "DEAD", "WORKERS"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for queue in items(&page) {
            let workers: Vec<&str> =
                queue["workers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            rows.push(vec![
                plain(&queue, "name"),
                plain(&queue, "state"),
                queue["depth"].to_string(),
                queue["processing"].to_string(),
                queue["failed"].to_string(),
                queue["dead"].to_string(),
                say::one_line(&workers.join(", ")),
            ]);
        }
        if rows.len() == 1 { "no queues\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

/// What an item brings: the JSON itself, or `-` for stdin.
fn payload(given: &str) -> Result<Value, Failure> {
    let text = if given == "-" {
        let mut text = String::new();
        std::io::stdin().take(STDIN_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > STDIN_MAX {
            return Err(invalid(format!("the item is longer than {STDIN_MAX} bytes")));
        }
        text
    } else {
        given.to_owned()
    };
    serde_json::from_str(&text).map_err(|error| invalid(format!("--data is not JSON: {error}")))
}

fn at(queue: &str) -> String {
    format!("/v1/queues/{}", escape(queue))
}

/// Where an item is. The beginning of its id is enough, where no other item of the queue begins so.
async fn at_item(client: &Client, queue: &str, text: &str) -> Result<String, Failure> {
    let path = format!("{}/items", at(queue));
    let exact = format!("{path}/{}", escape(text));
    match client.get(&exact).await {
        Err(failure) if failure.code == Code::NotFound => {}
        answer => return answer.map(|_| exact),
    }
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..PAGES_MAX {
        let page = client.get(&format!("{path}?limit=500{cursor}")).await?;
        let ids = items(&page).iter().map(|item| plain(item, "id")).collect::<Vec<_>>();
        let begins = |id: &String| {
            id.starts_with(text) || id.split_once('_').is_some_and(|(_, rest)| rest.starts_with(text))
        };
        found.extend(ids.into_iter().filter(begins));
        match page["next_cursor"].as_str().filter(|_| found.len() < 2) {
            Some(next) => cursor = format!("&cursor={}", escape(next)),
            None => break,
        }
    }
    match found.as_slice() {
        [] => Err(Failure::new(Code::NotFound, format!("there is no item `{text}` in `{queue}`"))),
        [only] => Ok(format!("{path}/{only}")),
        [_, _, ..] => Err(invalid(format!("`{text}` begins several ids; write more of it"))),
    }
}

pub(super) async fn queue(client: &Client, verb: &QueueVerb, say: &Say) -> Outcome {
    match verb {
        QueueVerb::Push { queue, payload: given, priority, delay, dedupe } => {
            let delay = delay.as_deref().map(runbook::span::parse).transpose().map_err(invalid)?;
            let body = json!({
                "data": payload(given)?, "priority": priority, "delay_ms": delay.map(|span| span.0), "dedupe": dedupe,
            });
            let item = client.post(&format!("{}/items", at(queue)), &body).await?;
            say.answer(&item, || {
                let known = if item["known"] == Value::Bool(true) { " was there before" } else { "" };
                format!("{}{known}", text(&item, "id"))
            });
            Ok(0)
        }
        QueueVerb::List { queue: None, .. } => queues(client, say).await,
        QueueVerb::List { queue: Some(queue), status, limit, cursor } => {
            list(client, queue, (status.as_deref(), *limit, cursor.as_deref()), say).await
        }
        QueueVerb::Show { queue, item } => {
            let path = match item {
                Some(item) => at_item(client, queue, item).await?,
                None => at(queue),
            };
            let shown = client.get(&path).await?;
            say.answer(&shown, || say::guarded(&serde_json::to_string_pretty(&shown).unwrap_or_default()));
            Ok(0)
        }
        QueueVerb::Retry { queue, item: Some(item), .. } => {
            let path = format!("{}/retry", at_item(client, queue, item).await?);
            let item = client.post(&path, &json!({})).await?;
            say.answer(&item, || format!("{} is {}", text(&item, "id"), text(&item, "status")));
            Ok(0)
        }
        QueueVerb::Retry { queue, item: None, status } => {
            redrive(client, queue, status.as_deref(), say).await
        }
        QueueVerb::Cancel { queue, item, reason } => {
            let path = format!("{}/cancel", at_item(client, queue, item).await?);
            let item = client.post(&path, &json!({ "reason": reason })).await?;
            say.answer(&item, || format!("{} is taken out", text(&item, "id")));
            Ok(0)
        }
        QueueVerb::Pause { queue } => steer(client, queue, "pause", say).await,
        QueueVerb::Resume { queue } => steer(client, queue, "resume", say).await,
    }
}

async fn steer(client: &Client, queue: &str, verb: &str, say: &Say) -> Outcome {
    let queue = client.post(&format!("{}/{verb}", at(queue)), &json!({})).await?;
    say.answer(&queue, || format!("`{}` is {}", text(&queue, "name"), text(&queue, "state")));
    Ok(0)
}

/// Puts all failed or dead items back, page by page.
async fn redrive(client: &Client, queue: &str, status: Option<&str>, say: &Say) -> Outcome {
    let mut total = 0;
    loop {
        let done = client.post(&format!("{}/retry", at(queue)), &json!({ "status": status })).await?;
        let retried = done["retried"].as_u64().unwrap_or(0);
        total += retried;
        if done["more"] != Value::Bool(true) || retried == 0 {
            break;
        }
    }
    say.answer(&json!({ "queue": queue, "retried": total }), || match total {
        1 => "1 item is put back".to_owned(),
        _ => format!("{total} items are put back"),
    });
    Ok(0)
}

async fn list(
    client: &Client,
    queue: &str,
    (status, limit, cursor): (Option<&str>, usize, Option<&str>),
    say: &Say,
) -> Outcome {
    let mut path = format!("{}/items?limit={limit}", at(queue));
    for (key, value) in [("status", status), ("cursor", cursor)] {
        if let Some(value) = value {
            path.push_str(&format!("&{key}={}", escape(value)));
        }
    }
    let page = client.get(&path).await?;
    say.answer(&page, || {
        let head = ["ITEM", "STATUS", "PRIORITY", "TRIES", "DUE", "RUN", "ERROR"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for item in items(&page) {
            rows.push(vec![
                plain(&item, "id"),
                say.status(text(&item, "status")),
                item["priority"].to_string(),
                item["attempts"].to_string(),
                plain(&item, "next_eligible_at"),
                plain(&item, "run"),
                plain(&item, "error").chars().take(60).collect(),
            ]);
        }
        let more =
            page["next_cursor"].as_str().map_or(String::new(), |next| format!("more: --cursor {next}\n"));
        if rows.len() == 1 { format!("no items\n{more}") } else { say.table(&rows) + &more }
    });
    Ok(0)
}

pub(super) async fn workers(client: &Client, say: &Say) -> Outcome {
    let page = client.get("/v1/workers").await?;
    say.answer(&page, || {
        let head = ["WORKER", "STATE", "QUEUE", "PIPELINE", "RUNNING", "CONCURRENCY", "DELAYED UNTIL"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for worker in items(&page) {
            rows.push(vec![
                plain(&worker, "name"),
                plain(&worker, "state"),
                plain(&worker, "queue"),
                plain(&worker, "pipeline"),
                worker["running"].to_string(),
                worker["concurrency"].to_string(),
                plain(&worker, "delayed_until"),
            ]);
        }
        if rows.len() == 1 { "no workers\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

pub(super) async fn worker(client: &Client, verb: &WorkerVerb, say: &Say) -> Outcome {
    let (name, verb, body) = match verb {
        WorkerVerb::Start { name } => (name, "start", json!({})),
        WorkerVerb::Stop { name, reason } => (name, "stop", json!({ "reason": reason })),
        WorkerVerb::Resize { name, concurrency } => (name, "resize", json!({ "concurrency": concurrency })),
    };
    let worker = client.post(&format!("/v1/workers/{}/{verb}", escape(name)), &body).await?;
    say.answer(&worker, || {
        let state = text(&worker, "state");
        format!("`{name}` is {state}, {} of {} runs", worker["running"], worker["concurrency"])
    });
    Ok(0)
}

pub(super) async fn schedules(client: &Client, say: &Say) -> Outcome {
    let page = client.get("/v1/schedules").await?;
    say.answer(&page, || {
        let head = ["SCHEDULE", "STATE", "WHEN", "ZONE", "PIPELINE", "RUNNING", "NEXT"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for schedule in items(&page) {
            let every = schedule["every"].as_str().map(|span| format!("every {span}"));
            let next: Vec<&str> =
                schedule["next"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            rows.push(vec![
                plain(&schedule, "name"),
                plain(&schedule, "state"),
                every.unwrap_or_else(|| plain(&schedule, "cron")),
                plain(&schedule, "timezone"),
                plain(&schedule, "pipeline"),
                schedule["running"].as_array().map_or(0, Vec::len).to_string(),
                next.join(" "),
            ]);
        }
        if rows.len() == 1 { "no schedules\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

pub(super) async fn schedule(client: &Client, verb: &ScheduleVerb, say: &Say) -> Outcome {
    let (name, verb) = match verb {
        ScheduleVerb::Run { name } => (name, "run"),
        ScheduleVerb::Pause { name } => (name, "pause"),
        ScheduleVerb::Resume { name } => (name, "resume"),
    };
    let answer = client.post(&format!("/v1/schedules/{}/{verb}", escape(name)), &json!({})).await?;
    say.answer(&answer, || match answer["id"].as_str() {
        Some(run) => run.to_owned(),
        None if verb == "run" => format!("the run of `{name}` waits for the one before it"),
        None => format!("`{name}` is {}", text(&answer, "state")),
    });
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::text_diff;

    #[test]
    fn a_diff_shows_the_lines_that_came_and_went() {
        assert_eq!(text_diff("a\nb\nc", "a\nx\nc"), ["- b", "+ x"]);
        assert_eq!(text_diff("", "a\nb"), ["+ a", "+ b"]);
        assert_eq!(text_diff("a\nb\nc\nd", "b\nd\ne"), ["- a", "- c", "+ e"]);
        assert!(text_diff("same\ntext", "same\ntext").is_empty());
        let long: String = (0..20_000).map(|n| format!("{n}\n")).collect();
        let other: String = (0..20_000).map(|n| format!("{}\n", n + 100_000)).collect();
        assert_eq!(text_diff(&long, &other).len(), 40_000, "too long to compare: shown as a whole");
    }
}
