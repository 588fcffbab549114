//! Locks and semaphores from the command line: take one, hold it while a command runs, give it back.

use super::Outcome;
use super::args::{LockVerb, SemaphoreVerb, TakeArgs};
use super::follow::escape;
use super::lists;
use super::say::Say;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use windlass_core::code::Code;
use windlass_server::client::{Client, Failure};

/// How long one request stands in line.
const WAIT_MS: u64 = 600_000;
/// How often a holder says that it lives: the time-out is a minute where nothing else is declared.
const BEAT: Duration = Duration::from_secs(5);

pub(super) async fn lock(client: &Client, verb: &LockVerb, say: &Say) -> Outcome {
    match verb {
        LockVerb::Acquire { take, metadata } => {
            let metadata = metadata.as_deref().map(json_of).transpose()?;
            acquire(client, "locks", take, More { metadata, ..More::default() }, say).await
        }
        LockVerb::Release { name, holder, epoch } => {
            release(client, "locks", name, (holder.as_deref(), *epoch), say).await
        }
        LockVerb::Break { name, epoch, yes } => lists::break_lock(client, name, *epoch, *yes, say).await,
    }
}

pub(super) async fn semaphore(client: &Client, verb: &SemaphoreVerb, say: &Say) -> Outcome {
    match verb {
        SemaphoreVerb::Acquire { take, weight } => {
            acquire(client, "semaphores", take, More { weight: Some(*weight), ..More::default() }, say).await
        }
        SemaphoreVerb::Release { name, holder, epoch } => {
            release(client, "semaphores", name, (holder.as_deref(), *epoch), say).await
        }
        SemaphoreVerb::Break { name, holder, yes } => {
            lists::break_semaphore(client, name, holder, *yes, say).await
        }
    }
}

/// Who holds where nobody says: this user on this machine.
fn default_holder() -> String {
    format!("{}@{}", windlass_server::server::user_name(), windlass_executor::home::host_name())
}

/// What is said of a hold beside who and how long.
#[derive(Default)]
struct More {
    weight: Option<u32>,
    metadata: Option<Value>,
}

fn json_of(text: &str) -> Result<Value, Failure> {
    serde_json::from_str(text)
        .map_err(|error| Failure::new(Code::InvalidInput, format!("`--metadata` is not JSON: {error}")))
}

async fn acquire(client: &Client, kind: &str, take: &TakeArgs, more: More, say: &Say) -> Outcome {
    // Whoever only takes it needs a name that the release knows again; who runs a command is one of many.
    let holder = match (&take.holder, take.command.is_empty()) {
        (Some(holder), _) => holder.clone(),
        (None, true) => default_holder(),
        (None, false) => format!("{}:{}", default_holder(), std::process::id()),
    };
    let grant = stand_in_line(client, kind, take, (&holder, &more)).await?;
    if take.command.is_empty() {
        say.answer(&grant, || format!("`{}` is {}'s under epoch {}", take.name, holder, grant["epoch"]));
        return Ok(0);
    }
    let path = format!("/v1/{kind}/{}", escape(&take.name));
    let outcome = run(client, &path, &holder, &grant, &take.command, say).await;
    let body = json!({ "holder": holder, "epoch": grant["epoch"] });
    // Whatever became of the command, the hold ends. Where it was taken away, there is nothing to give back.
    if let Err(failure) = client.post(&format!("{path}/release"), &body).await {
        say.note(&format!("`{}` could not be released: {failure}", take.name));
    }
    outcome
}

async fn stand_in_line(
    client: &Client,
    kind: &str,
    take: &TakeArgs,
    (holder, more): (&str, &More),
) -> Result<Value, Failure> {
    let wait = match &take.wait {
        Some(text) => {
            windlass_runbook::span::parse(text)
                .map_err(|error| Failure::new(Code::InvalidInput, error.to_string()))?
                .0
        }
        None => 0,
    };
    let until = tokio::time::Instant::now() + Duration::from_millis(wait);
    loop {
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        let wait_ms = (left.as_millis() as u64).min(WAIT_MS);
        let mut body = json!({ "holder": holder, "wait_ms": wait_ms });
        if let Some(weight) = more.weight {
            body["weight"] = json!(weight);
        }
        if let Some(metadata) = &more.metadata {
            body["metadata"] = metadata.clone();
        }
        let path = format!("/v1/{kind}/{}/acquire", escape(&take.name));
        match client.post_waiting(&path, &body, Duration::from_millis(wait_ms)).await {
            Err(failure) if failure.code == Code::LockBusy && left > Duration::from_millis(WAIT_MS) => {}
            answer => return answer,
        }
    }
}

/// Runs a command while the hold lasts. A command whose hold is taken away is ended.
async fn run(
    client: &Client,
    path: &str,
    holder: &str,
    grant: &Value,
    words: &[String],
    say: &Say,
) -> Outcome {
    let Some((program, rest)) = words.split_first() else { return Ok(0) };
    let mut command = Command::new(program);
    command.args(rest).env("WL_EPOCH", grant["epoch"].to_string()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| {
        Failure::new(Code::InvalidInput, format!("`{program}` cannot be started: {error}"))
    })?;
    let beat = json!({ "holder": holder, "epoch": grant["epoch"] });
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut ticks = tokio::time::interval(BEAT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            ended = child.wait() => {
                let status = ended?;
                let code = std::os::unix::process::ExitStatusExt::signal(&status).map(|signal| 128 + signal);
                let code = code.or(status.code()).unwrap_or(1);
                return Ok(u8::try_from(code).unwrap_or(1));
            }
            _ = ticks.tick() => match client.post(&format!("{path}/heartbeat"), &beat).await {
                Err(failure) if failure.code == Code::LeaseStaleEpoch => {
                    say.note("the hold was lost; the command was ended");
                    end(&mut child).await;
                    return Err(failure);
                }
                // A server that does not answer may be back in time.
                Ok(_) | Err(_) => {}
            },
            // The command is in the same group and hears of a Ctrl-C by itself; its end is waited for.
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {
                if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
            }
        }
    }
}

async fn end(child: &mut tokio::process::Child) {
    // It is killed, not asked: by now another may hold what it works on.
    let _ = child.kill().await;
}

async fn release(
    client: &Client,
    kind: &str,
    name: &str,
    (holder, epoch): (Option<&str>, Option<u64>),
    say: &Say,
) -> Outcome {
    let holder = holder.map_or_else(default_holder, str::to_owned);
    let path = format!("/v1/{kind}/{}/release", escape(name));
    let answer = client.post(&path, &json!({ "holder": holder, "epoch": epoch })).await?;
    let result = answer["result"].as_str().unwrap_or_default().to_owned();
    say.answer(&answer, || format!("`{name}`: {result}"));
    match result.as_str() {
        "not_owner" | "not_holder" => {
            let text = format!("`{name}` is not {holder}'s; nothing was given back");
            Err(Failure::new(Code::LockBusy, text))
        }
        _ => Ok(0),
    }
}
