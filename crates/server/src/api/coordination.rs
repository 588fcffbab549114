//! Locks and semaphores for programs that only want coordination: take, keep alive, give back.
//!
//! Whoever must wait stands in line, first come first served, for as long as its request is open: one that goes away leaves
//! the line, and one that was granted something it can no longer be told of gives it back. Every grant has an epoch; a
//! resource that checks it is safe from a holder that was thought dead.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, gone, invalid, json, outsider, scoped, stranger};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use windlass_api::Time;
use windlass_api::hold::{self, Grant};
use windlass_core::code::Code;
use windlass_core::id::{Holder, Scoped};
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Reply};
use windlass_core::turn::state::Body;
use windlass_core::{lock, semaphore};
use windlass_engine::handle::Message;
use windlass_engine::hold::{Held, Leaving};
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;

/// The longest that one request waits in line.
const WAIT_MAX: u64 = 600_000;

/// Everything about holds.
pub(super) fn routes() -> Routes {
    const REFUSES: &[Code] = &[Code::NotFound, Code::LockBusy, Code::LeaseStaleEpoch, Code::CapExceeded];
    let grant = |text| doc(text).gives(200, "grant").refuses(REFUSES);
    Routes::new()
        .post(
            "/v1/locks/{name}/acquire",
            Scope::Run,
            grant("Take a lock, or stand in line for it")
                .body::<Take>()
                .waits(Duration::from_millis(WAIT_MAX)),
            take_lock,
        )
        .post(
            "/v1/locks/{name}/heartbeat",
            Scope::Run,
            grant("Say that its holder lives").body::<Keep>(),
            beat_lock,
        )
        .post("/v1/locks/{name}/release", Scope::Run, grant("Give a lock back").body::<Keep>(), drop_lock)
        .post(
            "/v1/semaphores/{name}/acquire",
            Scope::Run,
            grant("Take slots, or stand in line for them")
                .body::<Take>()
                .waits(Duration::from_millis(WAIT_MAX)),
            take_slots,
        )
        .post(
            "/v1/semaphores/{name}/heartbeat",
            Scope::Run,
            grant("Say that their holder lives").body::<Keep>(),
            beat_slots,
        )
        .post(
            "/v1/semaphores/{name}/release",
            Scope::Run,
            grant("Give slots back").body::<Keep>(),
            drop_slots,
        )
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Take {
    /// Who asks; asking again under the same name is the same hold.
    holder: String,
    /// How long to stand in line.
    #[serde(default)]
    wait_ms: u64,
    /// How many slots of a semaphore.
    #[serde(default)]
    weight: Option<u32>,
    /// What the holder says about itself.
    #[serde(default)]
    metadata: Option<Value>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Keep {
    /// Who holds.
    holder: String,
    /// Which grant.
    #[serde(default)]
    epoch: Option<u64>,
}

/// Leaves the line when the request is dropped before it is answered.
struct InLine {
    app: Arc<App>,
    leaving: Option<Leaving>,
}

impl Drop for InLine {
    fn drop(&mut self) {
        if let Some(leaving) = self.leaving.take() {
            self.app.engine.tell(Message::Leave(leaving));
        }
    }
}

/// Which request of a holder is which.
static ASKERS: AtomicU64 = AtomicU64::new(1);

/// Asks something of a lock or a semaphore, and waits for the answer.
async fn ask(
    app: &Arc<App>,
    caller: &Caller,
    (stream, holder): (StreamId, Holder),
    command: Command,
) -> Result<Held, Problem> {
    // Whoever does not wait is answered even by a process that ends.
    let waits = match &command {
        Command::Lock { input: lock::Input::Acquire(ask), .. } => ask.wait,
        Command::Semaphore { input: semaphore::Input::Acquire(ask), .. } => ask.wait,
        // tidy: nothing else stands in line.
        _ => false,
    };
    let _stand = if waits { Some(app.standing.enter(caller)?) } else { None };
    let id = ASKERS.fetch_add(1, Ordering::Relaxed);
    let (send, receive) = tokio::sync::oneshot::channel();
    let leaving = Some(Leaving { stream: stream.clone(), holder: holder.clone(), id });
    let mut line = InLine { app: app.clone(), leaving };
    let (engine, by) = (app.engine.clone(), caller.actor.clone());
    app.engine.hold(caller.actor.clone(), command, id, move |held| {
        let Err(Ok(held)) = send.send(held) else { return };
        // Nobody is there to hear of the grant: it goes to the next.
        if let Some(command) = give_back(&stream, holder, &held.reply) {
            engine.report(by, command);
        }
    });
    let held = tokio::select! {
        biased;
        // It leaves the line, and a grant that is on its way goes to the next.
        () = app.tokens.over(caller), if waits => return Err(stranger()),
        held = receive => held,
        () = app.drained(), if waits => {
            // It may ask the next server, and finds its place in line as it was.
            line.leaving = None;
            return Err(gone());
        }
    };
    line.leaving = None;
    held.map_err(|_| gone())?.map_err(Problem::from)
}

/// How a fresh grant is given back.
fn give_back(stream: &StreamId, holder: Holder, reply: &Reply) -> Option<Command> {
    match (stream, reply) {
        (
            StreamId::Lock(lock),
            Reply::Lock(lock::Reply::Acquired { epoch } | lock::Reply::Reclaimed { epoch }),
        ) => {
            let input = lock::Input::Release { holder, epoch: Some(*epoch) };
            Some(Command::Lock { lock: lock.clone(), input })
        }
        (StreamId::Semaphore(semaphore), Reply::Semaphore(semaphore::Reply::Acquired { epoch })) => {
            let input = semaphore::Input::Release { holder, epoch: Some(*epoch) };
            Some(Command::Semaphore { semaphore: semaphore.clone(), input })
        }
        // tidy: every other answer gives nothing that was not there before.
        _ => None,
    }
}

/// The answer to a caller: the grant, or that another has it.
fn answer(name: &Scoped, asker: &Holder, held: &Held) -> Answer {
    let word = match &held.reply {
        // Whoever left the line because its time was over did not get it.
        Reply::Lock(lock::Reply::Abandoned) => "busy",
        Reply::Semaphore(semaphore::Reply::Abandoned) => "full",
        Reply::Lock(reply) => reply.as_str(),
        Reply::Semaphore(reply) => reply.as_str(),
        other => {
            return Err(Problem::new(Code::Internal, format!("a hold was asked for, and {other:?} came")));
        }
    };
    let grant = held.grant.as_ref();
    let body = Grant {
        name: name.name().to_owned(),
        holder: hold::holder(name, grant.map_or(asker, |grant| &grant.holder)),
        result: word.to_owned(),
        epoch: grant.map(|grant| grant.epoch),
        acquired_at: grant.map(|grant| grant.acquired_at.into()),
        expires_at: grant.and_then(|grant| grant.expires_at).map(Time),
        weight: grant.and_then(|grant| grant.weight),
        available: match &held.reply {
            Reply::Semaphore(semaphore::Reply::Full { available }) => Some(*available),
            // tidy: no other answer is about what is left.
            _ => None,
        },
    };
    let text = match word {
        "busy" => format!("`{}` is held by {}", name.name(), body.holder),
        "full" => match body.available {
            Some(available) => format!("`{}` has too few free slots: {available}", name.name()),
            None => format!("`{}` has too few free slots", name.name()),
        },
        _ => return Ok(json(StatusCode::OK, &body)),
    };
    // It always can: its keys are text.
    let more = serde_json::to_value(&body).ok();
    Err(Problem { more, ..Problem::new(Code::LockBusy, text) })
}

async fn on_lock(
    app: &Arc<App>,
    caller: &Caller,
    (name, who): (Scoped, Holder),
    input: lock::Input,
) -> Answer {
    let command = Command::Lock { lock: name.clone(), input };
    let held = ask(app, caller, (StreamId::Lock(name.clone()), who.clone()), command).await?;
    answer(&name, &who, &held)
}

async fn on_slots(
    app: &Arc<App>,
    caller: &Caller,
    (name, who): (Scoped, Holder),
    input: semaphore::Input,
) -> Answer {
    let command = Command::Semaphore { semaphore: name.clone(), input };
    let mut held = ask(app, caller, (StreamId::Semaphore(name.clone()), who.clone()), command).await?;
    if held.reply == Reply::Semaphore(semaphore::Reply::Abandoned) {
        // It stood in line until its time was over: how many are free is said like to one that did not wait.
        let stream = StreamId::Semaphore(name.clone());
        let available = app
            .look(move |store| match store.state().stream(&stream).map(|found| &found.body) {
                Some(Body::Semaphore(semaphore)) => semaphore.available(),
                Some(_) | None => 0,
            })
            .await?;
        held.reply = Reply::Semaphore(semaphore::Reply::Full { available });
    }
    answer(&name, &who, &held)
}

fn waiting(wait_ms: u64) -> (bool, Option<windlass_core::time::Millis>) {
    let wait = wait_ms.min(WAIT_MAX);
    (wait > 0, (wait > 0).then(|| System.now() + Span(wait)))
}

async fn take_lock(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(asked): Json<Take>,
) -> Answer {
    if asked.weight.is_some() {
        return Err(invalid("a lock has no `weight`: it is held as a whole"));
    }
    let (name, who) = (scoped(&caller, &name)?, outsider(&caller, &asked.holder)?);
    let (wait, give_up_at) = waiting(asked.wait_ms);
    let ask = lock::Ask { holder: who.clone(), metadata: asked.metadata, wait, give_up_at };
    on_lock(&app, &caller, (name, who), lock::Input::Acquire(ask)).await
}

async fn beat_lock(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(kept): Json<Keep>,
) -> Answer {
    let (name, who) = (scoped(&caller, &name)?, outsider(&caller, &kept.holder)?);
    let epoch = kept.epoch.ok_or_else(|| invalid("say which grant: `epoch`"))?;
    on_lock(&app, &caller, (name, who.clone()), lock::Input::Heartbeat { holder: who, epoch }).await
}

async fn drop_lock(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(kept): Json<Keep>,
) -> Answer {
    let (name, who) = (scoped(&caller, &name)?, outsider(&caller, &kept.holder)?);
    let input = lock::Input::Release { holder: who.clone(), epoch: kept.epoch };
    on_lock(&app, &caller, (name, who), input).await
}

async fn take_slots(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(asked): Json<Take>,
) -> Answer {
    let (name, who) = (scoped(&caller, &name)?, outsider(&caller, &asked.holder)?);
    if asked.metadata.is_some() {
        return Err(invalid("slots of a semaphore carry no `metadata`"));
    }
    let (wait, give_up_at) = waiting(asked.wait_ms);
    let ask = semaphore::Ask { holder: who.clone(), weight: asked.weight.unwrap_or(1), wait, give_up_at };
    on_slots(&app, &caller, (name, who), semaphore::Input::Acquire(ask)).await
}

async fn beat_slots(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(kept): Json<Keep>,
) -> Answer {
    let (name, who) = (scoped(&caller, &name)?, outsider(&caller, &kept.holder)?);
    let epoch = kept.epoch.ok_or_else(|| invalid("say which grant: `epoch`"))?;
    on_slots(&app, &caller, (name, who.clone()), semaphore::Input::Heartbeat { holder: who, epoch }).await
}

async fn drop_slots(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(kept): Json<Keep>,
) -> Answer {
    let (name, who) = (scoped(&caller, &name)?, outsider(&caller, &kept.holder)?);
    let input = semaphore::Input::Release { holder: who.clone(), epoch: kept.epoch };
    on_slots(&app, &caller, (name, who), input).await
}
