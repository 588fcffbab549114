//! What follows a deployed runbook: queues, workers, schedules.

use super::Outcome;
use super::args::{QueueVerb, ScheduleVerb, WorkerVerb};
use super::follow::escape;
use super::say::{self, Say, one_line, plain, text};
use serde_json::{Value, json};
use std::io::Read as _;
use windlass_api::List;
use windlass_api::queue::{Item, Queue};
use windlass_api::schedule::Schedule;
use windlass_api::worker::Worker;
use windlass_core::code::Code;
use windlass_core::packed::Packed;
use windlass_server::client::{Client, Failure};

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

pub(super) async fn queues(client: &Client, say: &Say) -> Outcome {
    let page = client.get("/v1/queues").await?;
    let queues: List<Queue> = say::read(&page)?;
    say.answer(&page, || {
        let head = ["QUEUE", "STATE", "WAITING", "WORKED ON", "FAILED", "DEAD", "WORKERS"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for queue in &queues.items {
            rows.push(vec![
                one_line(&queue.name),
                one_line(&queue.state),
                queue.depth.to_string(),
                queue.processing.to_string(),
                queue.failed.to_string(),
                queue.dead.to_string(),
                one_line(&queue.workers.join(", ")),
            ]);
        }
        if rows.len() == 1 { "no queues\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

/// What an item brings: the JSON itself, or `-` for stdin.
/// The items that are given: one, an array of them, or one value after the other, as lines from stdin are.
fn payloads(given: &str) -> Result<Vec<Value>, Failure> {
    let text = if given == "-" {
        let mut text = String::new();
        std::io::stdin().take(STDIN_MAX + 1).read_to_string(&mut text)?;
        if text.len() as u64 > STDIN_MAX {
            return Err(invalid(format!(
                "stdin has more than {STDIN_MAX} bytes: push them in several parts"
            )));
        }
        text
    } else {
        given.to_owned()
    };
    let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&text).into_iter().collect();
    let mut values = values.map_err(|error| invalid(format!("--data is not JSON: {error}")))?;
    if let [Value::Array(items)] = values.as_mut_slice() {
        values = std::mem::take(items);
    }
    if values.is_empty() { Err(invalid("--data has no item")) } else { Ok(values) }
}

fn at(queue: &str) -> String {
    format!("/v1/queues/{}", escape(queue))
}

/// Where an item is.
async fn at_item(client: &Client, queue: &str, text: &str) -> Result<String, Failure> {
    Ok(format!("{}/items/{}", at(queue), escape(&item_id(client, queue, text).await?)))
}

/// The id of an item. The beginning of it is enough, where no other item of the queue begins so.
pub(super) async fn item_id(client: &Client, queue: &str, text: &str) -> Result<String, Failure> {
    let path = format!("{}/items", at(queue));
    match client.get(&format!("{path}/{}", escape(text))).await {
        Err(failure) if failure.code == Code::NotFound => {}
        answer => return answer.map(|_| text.to_owned()),
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
        [only] => Ok(only.clone()),
        [_, _, ..] => Err(invalid(format!("several ids begin with `{text}`; write more of it"))),
    }
}

pub(super) async fn queue(client: &Client, verb: &QueueVerb, say: &Say) -> Outcome {
    match verb {
        QueueVerb::Push { queue, payload: given, priority, delay, dedupe } => {
            let delay = delay.as_deref().map(windlass_runbook::span::parse).transpose().map_err(invalid)?;
            let item = |data: Value| json!({ "data": data, "priority": priority, "delay_ms": delay.map(|span| span.0), "dedupe": dedupe });
            let mut bodies: Vec<Value> = payloads(given)?.into_iter().map(item).collect();
            if bodies.len() > 1 && dedupe.is_some() {
                return Err(invalid("--dedupe applies to one item: push items with keys one at a time"));
            }
            // One is asked for by itself, so that the answer is the item.
            let body = if bodies.len() == 1 { bodies.remove(0) } else { Value::Array(bodies) };
            let pushed = client.post(&format!("{}/items", at(queue)), &body).await?;
            say.answer(&pushed, || {
                let line = |item: &Value| {
                    let known = if item["known"] == Value::Bool(true) { " was there before" } else { "" };
                    format!("{}{known}", text(item, "id"))
                };
                match pushed["items"].as_array() {
                    Some(all) => all.iter().map(line).collect::<Vec<_>>().join("\n"),
                    None => line(&pushed),
                }
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

/// How many characters of data and of an error a list shows.
const BRIEF_MAX: usize = 60;

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
    let found: List<Item> = say::read(&page)?;
    say.answer(&page, || {
        let head = ["ITEM", "STATUS", "PRIORITY", "TRIES", "DUE", "RUN", "DATA", "ERROR"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for item in &found.items {
            let status = item.status.as_deref().unwrap_or_default();
            let data = item.data.as_ref().map_or("null", Packed::as_str);
            rows.push(vec![
                item.id.to_string(),
                say.status(status),
                say::maybe(item.priority),
                say::maybe(item.attempts),
                say::maybe(item.next_eligible_at),
                say::maybe(item.run),
                say::brief(&say::guarded(data), BRIEF_MAX),
                // What went wrong before it went well is in `queue show`.
                match status {
                    "completed" => String::new(),
                    _ => say::brief(&say::maybe(item.error.as_ref()), BRIEF_MAX),
                },
            ]);
        }
        let more = say.more(&page);
        if rows.len() == 1 { format!("no items\n{more}") } else { say.table(&rows) + &more }
    });
    Ok(0)
}

pub(super) async fn workers(client: &Client, say: &Say) -> Outcome {
    let page = client.get("/v1/workers").await?;
    let workers: List<Worker> = say::read(&page)?;
    say.answer(&page, || {
        let head = ["WORKER", "STATE", "QUEUE", "PIPELINE", "RUNNING", "CONCURRENCY", "DELAYED UNTIL"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for worker in &workers.items {
            rows.push(vec![
                one_line(&worker.name),
                one_line(&worker.state),
                say::maybe(worker.queue.as_ref()),
                say::maybe(worker.pipeline.as_ref()),
                worker.running.to_string(),
                say::maybe(worker.concurrency),
                say::maybe(worker.delayed_until),
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
    let schedules: List<Schedule> = say::read(&page)?;
    say.answer(&page, || {
        let head = ["SCHEDULE", "STATE", "WHEN", "ZONE", "PIPELINE", "RUNNING", "NEXT"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for schedule in &schedules.items {
            let every = schedule.every.as_ref().map(|span| one_line(&format!("every {span}")));
            let next: Vec<String> = schedule.next.iter().flatten().map(ToString::to_string).collect();
            rows.push(vec![
                one_line(&schedule.name),
                one_line(&schedule.state),
                every.unwrap_or_else(|| say::maybe(schedule.cron.as_ref())),
                say::maybe(schedule.timezone.as_ref()),
                say::maybe(schedule.pipeline.as_ref()),
                schedule.running.len().to_string(),
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
