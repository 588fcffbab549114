//! Lists: a bare plural noun.

use super::Outcome;
use super::args::RunsArgs;
use super::follow::{self, escape};
use super::pages::PAGES;
use super::say::{self, Say, duration, plain, text};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_core::code::Code;
use windlass_core::event::Event;
use windlass_core::time::Millis;
use windlass_server::cards::text::visible;
use windlass_server::client::{Client, Failure};

/// The most pages that one list is put together from. Whoever has more asks the server for them.
const PAGES_MAX: usize = 20;

/// A list with the pages that follow it.
async fn whole(client: &Client, path: &str) -> Result<Value, Failure> {
    let mut list = client.get(path).await?;
    let sign = if path.contains('?') { '&' } else { '?' };
    for _ in 1..PAGES_MAX {
        let Some(next) = list["next_cursor"].as_str() else { break };
        let mut page = client.get(&format!("{path}{sign}cursor={}", escape(next))).await?;
        list["next_cursor"] = page["next_cursor"].take();
        if let (Some(all), Some(more)) = (list["items"].as_array_mut(), page["items"].as_array_mut()) {
            all.append(more);
        }
    }
    if let Some(list) = list.as_object_mut() {
        list.retain(|key, value| key != "next_cursor" || !value.is_null());
    }
    Ok(list)
}

fn items(page: &Value) -> Vec<Value> {
    page["items"].as_array().cloned().unwrap_or_default()
}

/// A time, or how long ago.
pub(super) fn since(text: &str) -> Result<String, Failure> {
    if text.parse::<jiff::Timestamp>().is_ok() {
        return Ok(text.to_owned());
    }
    let span = windlass_runbook::span::parse(text).map_err(|_| {
        Failure::new(
            Code::InvalidInput,
            format!("`{text}` is neither a time such as 2026-01-31T12:00:00Z nor a duration such as 2h"),
        )
    })?;
    Ok(windlass_api::time::text(Millis(windlass_executor::clock::wall().0.saturating_sub(span.0))))
}

pub(super) async fn runs(client: &Client, filter: &RunsArgs, say: &Say) -> Outcome {
    let mut path = format!("/v1/runs?limit={}", filter.limit);
    let status = filter.status.clone().or_else(|| filter.failed.then(|| "failed".to_owned()));
    let item = match (&filter.item, &filter.queue) {
        (Some(item), Some(queue)) => Some(super::queues::item_id(client, queue, item).await?),
        (item, _) => item.clone(),
    };
    let given = [
        ("status", status),
        ("runbook", filter.runbook.clone()),
        ("queue", filter.queue.clone()),
        ("item", item),
        ("pipeline", filter.pipeline.clone()),
        ("repo", filter.repo.clone()),
        ("since", filter.since.as_deref().map(since).transpose()?),
        ("cursor", filter.cursor.clone()),
    ];
    for (key, value) in given {
        if let Some(value) = value {
            path.push_str(&format!("&{key}={}", escape(&value)));
        }
    }
    let page = client.get(&path).await?;
    say.answer(&page, || {
        let mut rows = vec![
            ["RUN", "RUNBOOK", "PIPELINE", "STATUS", "CREATED", "TOOK", "REASON"].map(str::to_owned).to_vec(),
        ];
        for run in items(&page) {
            let took = run["duration_ms"].as_u64().map_or(String::new(), duration);
            rows.push(vec![
                plain(&run, "id"),
                plain(&run, "runbook"),
                plain(&run, "pipeline"),
                say.status(text(&run, "status")),
                plain(&run, "created_at"),
                took,
                plain(&run, "reason"),
            ]);
        }
        let more = say.more(&page);
        if rows.len() == 1 { "no runs\n".to_owned() } else { say.table(&rows) + &more }
    });
    Ok(0)
}

pub(super) async fn approvals(client: &Client, status: Option<&str>, say: &Say) -> Outcome {
    let path = format!("/v1/approvals?status={}", escape(status.unwrap_or("requested")));
    let page = whole(client, &path).await?;
    say.answer(&page, || {
        let mut rows = vec![
            ["APPROVAL", "RUN", "STEP", "STATUS", "TIER", "EXPIRES", "ACTION"].map(str::to_owned).to_vec(),
        ];
        for item in items(&page) {
            rows.push(vec![
                plain(&item, "id"),
                plain(&item, "run"),
                plain(&item, "step"),
                say.status(text(&item, "status")),
                plain(&item, "tier"),
                plain(&item, "expires_at"),
                visible(&format!("{} {}", text(&item["action"], "tool"), text(&item["action"], "target"))),
            ]);
        }
        if rows.len() == 1 { "nothing waits for a decision\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

fn count(item: &Value, key: &str) -> String {
    item[key].as_array().map_or(0, Vec::len).to_string()
}

pub(super) async fn locks(client: &Client, say: &Say) -> Outcome {
    let page = whole(client, "/v1/locks").await?;
    say.answer(&page, || {
        let mut rows = vec![
            ["LOCK", "STATE", "HOLDER", "EPOCH", "SINCE", "LAST HEARTBEAT", "WAITING", "METADATA"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for lock in items(&page) {
            rows.push(vec![
                plain(&lock, "name"),
                plain(&lock, "state"),
                plain(&lock, "holder"),
                lock["epoch"].to_string(),
                plain(&lock, "acquired_at"),
                plain(&lock, "last_heartbeat"),
                count(&lock, "waiters"),
                lock.get("metadata").map_or_else(String::new, Value::to_string),
            ]);
        }
        if rows.len() == 1 { "no locks\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

pub(super) async fn semaphores(client: &Client, say: &Say) -> Outcome {
    let page = whole(client, "/v1/semaphores").await?;
    say.answer(&page, || {
        let mut rows =
            vec![["SEMAPHORE", "USED", "CAPACITY", "HOLDERS", "WAITING"].map(str::to_owned).to_vec()];
        for item in items(&page) {
            rows.push(vec![
                plain(&item, "name"),
                item["used"].to_string(),
                item["capacity"].to_string(),
                count(&item, "holders"),
                count(&item, "waiters"),
            ]);
        }
        if rows.len() == 1 { "no semaphores\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

pub(super) async fn break_lock(
    client: &Client,
    name: &str,
    epoch: Option<u64>,
    yes: bool,
    say: &Say,
) -> Outcome {
    let question = format!("Take the lock `{name}` away from its holder? What holds it fails.");
    say::sure(yes, &question, "nothing was taken away", "--yes")?;
    let broken =
        client.post(&format!("/v1/locks/{}/break", escape(name)), &json!({ "epoch": epoch })).await?;
    say.answer(&broken, || match broken["holder"].as_str() {
        Some(next) => format!("`{name}` was taken away, and {next} has it now"),
        None => format!("`{name}` is {}", text(&broken, "state")),
    });
    Ok(0)
}

pub(super) async fn break_semaphore(
    client: &Client,
    name: &str,
    holder: &str,
    yes: bool,
    say: &Say,
) -> Outcome {
    let question = format!("Take the slots of `{holder}` away? What holds them fails.");
    say::sure(yes, &question, "nothing was taken away", "--yes")?;
    let broken =
        client.post(&format!("/v1/semaphores/{}/break", escape(name)), &json!({ "holder": holder })).await?;
    say.answer(&broken, || format!("`{name}` has {} of {} slots used", broken["used"], broken["capacity"]));
    Ok(0)
}

pub(super) async fn events(
    client: &mut Client,
    follow: bool,
    from: Option<u64>,
    kind: Option<&str>,
    say: &Say,
) -> Outcome {
    // One for all the time: what comes while nobody is asked is not lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (mut next, mut fruitless) = (from.unwrap_or(0), 0);
    loop {
        let before = next;
        match events_here(client, (follow, &mut interrupt), (&mut next, kind), say).await {
            Ok(true) => return Ok(0),
            Ok(false) => {}
            Err(failure) if failure.gone && client.is_renewable() => {}
            Err(failure) => return Err(failure),
        }
        if next > before || !client.executes() {
            fruitless = 0;
        }
        follow::renew(client, &mut fruitless).await?;
    }
}

/// Shows what was not shown yet, for as long as whoever is asked is there; says whether that was all.
async fn events_here(
    client: &Client,
    (follow, interrupt): (bool, &mut Signal),
    (next, kind): (&mut u64, Option<&str>),
    say: &Say,
) -> Result<bool, Failure> {
    // A looker in this process has to let others at the directory, or nothing would ever be new.
    let stay = follow && client.executes();
    let mut path = format!("/v1/events?follow={stay}&from={next}");
    if let Some(kind) = kind {
        path.push_str(&format!("&type={}", escape(kind)));
    }
    let mut lines = client.lines(&path).await?;
    loop {
        tokio::select! {
            line = lines.next() => match line {
                // A record is one JSON object, for people and for programs.
                Some(line) => {
                    let record: Value = serde_json::from_str(&line).unwrap_or_default();
                    *next = record["seq"].as_u64().map_or(*next, |seq| seq + 1);
                    say.record(&line);
                }
                None => return Ok(!follow && !lines.is_broken()),
            },
            () = say::abandoned() => return Ok(true),
            _ = interrupt.recv() => return Ok(true),
        }
    }
}

/// All codes, or the page of one.
pub(super) fn codes(one: Option<&str>, say: &Say) -> Outcome {
    let json_of = |code: &Code| json!({ "code": code.as_str(), "http": code.http(), "exit": code.exit(), "title": code.title() });
    if let Some(text) = one {
        let code = Code::parse(&text.to_uppercase()).ok_or_else(|| {
            Failure::new(Code::NotFound, format!("there is no code `{text}`: `windlass codes` lists all"))
        })?;
        let page = PAGES.iter().find(|(name, _)| *name == code.as_str()).map_or("", |(_, page)| *page);
        let mut answer = json_of(&code);
        answer["page"] = json!(page);
        say.answer(&answer, || page.to_owned());
        return Ok(0);
    }
    let all: Vec<Value> = Code::ALL.iter().map(json_of).collect();
    say.answer(&json!({ "items": all }), || {
        let row =
            |code: &Code| format!("{:<24} {} {:>3}  {}\n", code, code.http(), code.exit(), code.title());
        Code::ALL.iter().map(row).collect()
    });
    Ok(0)
}

pub(super) fn types(say: &Say) -> Outcome {
    let specs = Event::specs();
    let all: Vec<Value> = specs
        .iter()
        .map(|spec| {
            let fields: serde_json::Map<String, Value> =
                spec.fields.iter().map(|(name, kind)| ((*name).to_owned(), json!(kind))).collect();
            json!({ "type": spec.tag, "category": spec.category.as_str(), "stream": spec.stream, "fields": fields })
        })
        .collect();
    say.answer(&json!({ "items": all }), || {
        specs.iter().map(|s| format!("{:<24} {:<7} {}\n", s.tag, s.category.as_str(), s.stream)).collect()
    });
    Ok(0)
}
