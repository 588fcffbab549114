//! Leases: how executors elsewhere get steps, say that they live, and report.
//!
//! An executor asks for a batch and waits until there is something for it; with the answer the intent of each step is
//! durable. Every item of a report is answered for itself, so that one stale epoch does not hold up the rest. A heartbeat
//! may wait too, and is answered at once when an attempt is to be stopped or has been taken away.
//!
//! **Whose.** A lease belongs to the token that asked for it; whoever has another, or the lease of the server's own
//! executor in mind, has no lease. So an executor that is started again goes on with the same token, and no other can.
//!
//! **Which steps.** An executor gets steps of its token's tenant and namespace whose `runs_on` labels are all among its own, and which it
//! says it can carry out (`tools`, shell steps where it says nothing). Steps without `runs_on` stay with the server, unless
//! that was started with `--executors 0`.

mod evidence;

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, gone, invalid, json, stranger};
use crate::app::App;
use crate::outside::{given, traceparent};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde_json::{Value, json as object};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use windlass_api::lease::{
    Answered, Ask, Beats, Checkpoint, Done, Env, Failed, Item, Lease, Leases, Reason, Reports, Returned,
    Saved, Uses,
};
use windlass_api::{List, Time};
use windlass_core::attempt::{Exit, Report};
use windlass_core::budget::Cost;
use windlass_core::code::Code;
use windlass_core::event::CheckpointSaved;
use windlass_core::id::{AttemptId, Name, RunId, StepId};
use windlass_core::private::Private;
use windlass_core::receipt::Semantics;
use windlass_core::run::{Actor, Initiator};
use windlass_core::runbook::Kind;
use windlass_core::step::Failure;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Receipted, Refusal, Reply};
use windlass_engine::Permit;
use windlass_engine::handle::Message;
use windlass_engine::port::Clock as _;
use windlass_engine::remote::{Gone, Lives, Watch, Wish};
use windlass_executor::clock::System;
use windlass_executor::executor::Given;
use windlass_executor::redaction::Redactor;

/// How many steps one request leases, and how many items one reports on.
const ITEMS_MAX: usize = 1_000;
/// How many secrets an attempt says that it uses.
const SECRETS_MAX: usize = 256;
/// The longest that one request waits for work or for news.
const WAIT_MAX: u64 = 60_000;
/// How many labels an executor has, and how many tools.
const LABELS_MAX: usize = 64;
const TOOLS_MAX: usize = 512;
/// The longest that an executor puts a step off.
const AFTER_MAX: u64 = 24 * 3_600_000;
/// The most bytes of what a checkpoint holds, and of what a failure or a message says.
const DATA_LEN_MAX: usize = 64 << 10;
const TEXT_LEN_MAX: usize = 16 << 10;
/// The name of the executor in the server, which no other can have.
pub(super) const LOCAL: &str = "local";

/// Everything about leases.
pub(super) fn routes() -> Routes {
    let items = |text| doc(text).gives(200, "list answered");
    Routes::new()
        .post(
            "/v1/leases",
            Scope::Execute,
            doc("Lease steps, or wait for some")
                .gives(200, "leases")
                .body::<Ask>()
                .refuses(&[Code::CapExceeded])
                .waits(Duration::from_millis(WAIT_MAX)),
            lease,
        )
        .post(
            "/v1/leases/heartbeat",
            Scope::Execute,
            items("Say that attempts go on, and hear which are to stop")
                .body::<Beats>()
                .waits(Duration::from_millis(WAIT_MAX)),
            heartbeat,
        )
        .post(
            "/v1/leases/secrets",
            Scope::Execute,
            items("Say which secrets attempts are about to use").body::<Reports<Uses>>(),
            secrets,
        )
        .post(
            "/v1/leases/complete",
            Scope::Execute,
            items("Report success").body::<Reports<Done>>(),
            complete,
        )
        .post("/v1/leases/fail", Scope::Execute, items("Report failure").body::<Reports<Failed>>(), fail)
        .post(
            "/v1/leases/return",
            Scope::Execute,
            items("Hand leases back").body::<Reports<Returned>>(),
            hand_back,
        )
        .post(
            "/v1/runs/{id}/steps/{step}/checkpoint",
            Scope::Execute,
            doc("Save a step's progress").body::<Checkpoint>().gives(200, "saved").refuses(&[
                Code::NotFound,
                Code::LeaseStaleEpoch,
                Code::RunTerminalState,
            ]),
            checkpoint,
        )
}

fn names(list: &[String], what: &str, max: usize) -> Result<Vec<Name>, Problem> {
    if list.len() > max {
        return Err(invalid(format!("an executor has {max} {what} at most")));
    }
    list.iter().map(|text| Name::new(text).map_err(invalid)).collect()
}

/// Tells the engine when the request is dropped before it is answered.
struct Present(Gone);

impl Present {
    fn new() -> Present {
        Present(Arc::new(AtomicBool::new(false)))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

async fn lease(State(app): State<Arc<App>>, caller: Caller, Json(asked): Json<Ask>) -> Answer {
    let client = caller.elsewhere();
    let executor = client.owner(&asked.executor).map_err(Problem::from)?;
    if asked.executor == LOCAL {
        return Err(invalid("`local` is the executor in the server: choose another name"));
    }
    if asked.max == 0 || asked.max > ITEMS_MAX {
        return Err(invalid(format!("`max` is from 1 to {ITEMS_MAX}")));
    }
    let tools = match &asked.tools {
        Some(list) => names(list, "tools", TOOLS_MAX)?,
        None => vec![Name::clean("shell")],
    };
    let _stand = if asked.wait_ms > 0 { Some(app.standing.enter(&caller)?) } else { None };
    let (send, receive) = tokio::sync::oneshot::channel();
    let present = Present::new();
    let engine = app.engine.clone();
    let by = Actor { initiator: Initiator::Executor, id: Some(executor.clone()) };
    let wish = Wish {
        executor,
        client,
        labels: names(&asked.labels, "labels", LABELS_MAX)?,
        tools,
        max: asked.max,
        until: System.now() + Span(asked.wait_ms.min(WAIT_MAX)),
        gone: present.0.clone(),
        answer: Box::new(move |granted| {
            // Nobody is there to carry it out: somebody else gets it at once, not after a time-out.
            let Err(Ok(permits)) = send.send(granted) else { return };
            for permit in permits {
                let report = Report::Returned { reason: Some("the executor went away".to_owned()) };
                let AttemptId { run, step, epoch } = permit.attempt();
                engine.report(by.clone(), Command::Report { run, step, epoch, report, receipt: None });
            }
        }),
    };
    app.engine.tell(Message::Wish(wish));
    let granted = tokio::select! {
        biased;
        () = app.tokens.over(&caller) => return Err(stranger()),
        granted = receive => granted.map_err(|_| gone())?,
        // Nothing more is given away by a process that ends; what was on its way goes back.
        () = app.drained() => Ok(Vec::new()),
    };
    let permits = granted.map_err(Problem::from)?;
    drop(present);
    let items = permits.iter().map(|permit| leased(&app, permit)).collect();
    Ok(json(StatusCode::OK, &Leases { items, server: app.attempts().server().to_owned() }))
}

/// A lease with everything that is needed to carry it out. Secrets are references here; the executor has its own.
fn leased(app: &App, permit: &Permit) -> Lease {
    let (lease, work, step) = (permit.lease(), permit.work(), permit.step());
    let input = lease.input.as_ref();
    let (command, with) = match step.map(|step| &step.kind) {
        Some(Kind::Run { command }) => (Some(command.clone()), None),
        // Which of the fields are secrets: what only looks like a reference is a value like any other.
        Some(Kind::Tool { with, .. }) => (None, Some(object!(with))),
        Some(
            Kind::Agent { .. }
            | Kind::Parallel { .. }
            | Kind::Steps { .. }
            | Kind::Strategy { .. }
            | Kind::Call { .. }
            | Kind::Approve { .. }
            | Kind::Wait { .. },
        )
        | None => (None, None),
    };
    Lease {
        run: lease.run,
        step: lease.step.clone(),
        attempt: lease.attempt,
        epoch: lease.epoch,
        tool: lease.tool.clone(),
        input: lease.input.clone(),
        idempotency_key: lease.idempotency_key.clone(),
        expires_at: Time(lease.expires_at),
        ttl_ms: lease.expires_at.since(System.now()).0,
        tenant: work.tenant.clone(),
        namespace: work.namespace.clone(),
        pipeline: work.pipeline.clone(),
        command,
        shell: step.and_then(|step| step.shell.clone()),
        env: Some(env(permit)),
        with,
        semantics: lease.semantics.map(|semantics| semantics.as_str().to_owned()),
        own_read: step.is_none_or(|step| step.reconcile.is_none()),
        dir: input.and_then(|input| input.get("dir")?.as_str()).map(str::to_owned),
        timeout_ms: step.and_then(|step| step.timeout).map(|span| span.0),
        outputs: step.map(|step| step.outputs.clone()),
        repeatable: matches!(lease.semantics, None | Some(Semantics::Idempotent)),
        vars: lease.vars.clone(),
        token: app.attempts().token(&permit.attempt()),
        secrets: app.secrets_of(permit),
        traceparent: traceparent(permit),
    }
}

/// What `env:` says: texts, and references to secrets where the definition names one. A variable's value that looks like a
/// reference is a text like any other, so no value can ask for a secret.
fn env(permit: &Permit) -> BTreeMap<String, Env> {
    let one = |(name, given)| match given {
        Given::Text(text) => (name, Env::Text(text)),
        Given::Secret(secret) => (name, Env::Secret { secret: Name::clean(&secret) }),
    };
    given(permit).into_iter().map(one).collect()
}

/// The attempt that an item is about.
fn place(item: &Item) -> Result<AttemptId, Refusal> {
    let absent = |what: &str| {
        let text = windlass_core::wire::shorten(what);
        Refusal::new(Code::NotFound, format!("there is no `{text}`"))
    };
    let run = RunId::parse(&item.run).map_err(|_| absent(&item.run))?;
    let step = StepId::new(&item.step).map_err(|_| absent(&item.step))?;
    Ok(AttemptId { run, step, epoch: item.epoch })
}

/// The answer to an item that was refused.
fn refused(item: &Item, refusal: &Refusal) -> Answered {
    let detail = match refusal {
        Refusal::Error { message, .. } => message.clone(),
        Refusal::Need(_) => refusal.to_string(),
    };
    let code = refusal.code().unwrap_or(Code::Internal);
    Answered { code: Some(code), detail: Some(detail), ..Answered::to(item) }
}

fn bounded(count: usize) -> Result<(), Problem> {
    if count <= ITEMS_MAX {
        return Ok(());
    }
    Err(invalid(format!("{count} items are too many: send {ITEMS_MAX} at a time")))
}

async fn heartbeat(State(app): State<Arc<App>>, caller: Caller, Json(beats): Json<Beats>) -> Answer {
    bounded(beats.items.len())?;
    let places: Vec<Result<AttemptId, Refusal>> = beats.items.iter().map(place).collect();
    let (send, receive) = tokio::sync::oneshot::channel();
    let present = Present::new();
    // One that cannot be is news.
    let wait = if places.iter().all(Result::is_ok) { beats.wait_ms.min(WAIT_MAX) } else { 0 };
    // A heartbeat counts in any case. Where no more may wait for news, it is answered at once.
    let stand = (wait > 0).then(|| app.standing.enter(&caller).ok()).flatten();
    let wait = if stand.is_some() { wait } else { 0 };
    app.engine.tell(Message::Extend(Watch {
        client: caller.elsewhere(),
        places: places.iter().flatten().cloned().collect(),
        until: System.now() + Span(wait),
        gone: present.0.clone(),
        answer: Box::new(move |news| {
            // An executor that is gone hears nothing; its lease runs out.
            let _ = send.send(news);
        }),
    }));
    let news = tokio::select! {
        news = receive => news.map_err(|_| gone())?,
        () = app.tokens.over(&caller), if wait > 0 => return Err(stranger()),
        // It was heard; the next server hears of it again.
        () = app.drained(), if wait > 0 => return Err(gone()),
    };
    let mut news = news.into_iter();
    drop(present);
    let lost = || Err(Refusal::new(Code::Internal, "the engine did not answer"));
    let answers = beats.items.iter().zip(places).map(|(item, place)| {
        match place.and_then(|_| news.next().unwrap_or_else(lost)) {
            Ok(Lives { expires_at, stop }) => Answered {
                expires_at: Some(Time(expires_at)),
                cancel: Some(stop.is_some()),
                grace_ms: stop.map(|grace| grace.0),
                ..Answered::to(item)
            },
            Err(refusal) => refused(item, &refusal),
        }
    });
    Ok(json(StatusCode::OK, &List::from(answers.collect::<Vec<_>>())))
}

/// What attempts elsewhere are about to use is on record before they do.
async fn secrets(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<Reports<Uses>>) -> Answer {
    let named = |text: &str| {
        let wrong = |error: windlass_core::id::Error| Refusal::new(Code::InvalidInput, error.to_string());
        Name::new(text).map_err(wrong)
    };
    let item = |uses: Uses| {
        let Uses { run, step, epoch, secrets } = uses;
        let used = match secrets.len() {
            0..=SECRETS_MAX => {
                secrets.iter().map(|used| Ok((named(&used.name)?, named(&used.version)?))).collect()
            }
            _ => {
                Err(Refusal::new(Code::InvalidInput, format!("an attempt has {SECRETS_MAX} secrets at most")))
            }
        };
        let command =
            |used| move |AttemptId { run, step, epoch }| Command::Secrets { run, step, epoch, used };
        (Item { run, step, epoch }, used.map(command))
    };
    told(&app, &caller, body.items.into_iter().map(item).collect()).await
}

/// What an executor reports of an attempt.
struct Reported {
    report: Report,
    receipt: Option<Box<Receipted>>,
    costs: Vec<Cost>,
}

impl Reported {
    fn of(report: Report) -> Reported {
        Reported { report, receipt: None, costs: Vec::new() }
    }
}

/// Reports on attempts. What they cost is known before what came of them, so that the next attempt finds the budget as it is.
async fn report(app: &App, caller: &Caller, reports: Vec<(Item, Result<Reported, Refusal>)>) -> Answer {
    bounded(reports.len())?;
    let (mut items, mut costs) = (Vec::with_capacity(reports.len()), Vec::new());
    for (item, reported) in reports {
        let Reported { mut report, mut receipt, costs: spent } = match reported {
            Ok(reported) => reported,
            Err(refusal) => {
                items.push((item, Err(refusal)));
                continue;
            }
        };
        if let Ok(AttemptId { run, step, epoch }) = place(&item) {
            let redactor = app.mask_of(run).await;
            mask(&mut report, &redactor);
            if let Some(receipt) = &mut receipt {
                evidence::mask(receipt, &redactor);
            }
            if !spent.is_empty() {
                costs.push(Command::Cost { run, step, epoch, costs: spent });
            }
        }
        let command =
            move |AttemptId { run, step, epoch }| Command::Report { run, step, epoch, report, receipt };
        items.push((item, Ok(command)));
    }
    if !costs.is_empty() {
        // Where one is refused, so is the report on the same attempt, and that is answered.
        ask_own(app, caller, costs).await?;
    }
    told(app, caller, items).await
}

/// Takes the secrets of a run out of what an executor reports: it knows its own values, and the server may have others.
fn mask(report: &mut Report, mask: &Redactor) {
    if mask.is_empty() {
        return;
    }
    match report {
        // A secret that is structure takes all of it: an output that is no object any more is none.
        Report::Done { output, .. } => {
            *output = output.take().map(|output| mask.value(&output)).filter(Value::is_object);
        }
        Report::Failed { failure, .. } | Report::Deferred { failure, .. } => {
            failure.message = mask.text(&failure.message);
        }
        Report::Returned { reason } => *reason = reason.take().map(|text| mask.text(&text)),
        Report::Postponed { reason, .. } => *reason = mask.text(reason),
        Report::Stopped | Report::Lost { .. } => {}
    }
}

/// Asks for things that only who has the leases may ask for.
async fn ask_own(
    app: &App,
    caller: &Caller,
    commands: Vec<Command>,
) -> Result<Vec<Result<Reply, Refusal>>, Problem> {
    let (send, receive) = tokio::sync::oneshot::channel();
    let (by, client) = (caller.actor.clone(), Some(caller.elsewhere()));
    app.engine.ask_many(by, client, commands, move |decided| {
        let _ = send.send(decided);
    });
    receive.await.map_err(|_| gone())
}

/// Takes what is told of attempts, all of it in one turn.
async fn told<F: FnOnce(AttemptId) -> Command>(
    app: &App,
    caller: &Caller,
    all: Vec<(Item, Result<F, Refusal>)>,
) -> Answer {
    bounded(all.len())?;
    let (mut answers, mut commands) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
    for (item, command) in all {
        match place(&item).and_then(|place| command.map(|command| command(place))) {
            Ok(command) => {
                commands.push(command);
                answers.push((item, None));
            }
            Err(refusal) => answers.push((item, Some(refusal))),
        }
    }
    let mut decided = ask_own(app, caller, commands).await?.into_iter();
    let lost = || Err(Refusal::new(Code::Internal, "the engine did not answer"));
    let answer = |(item, early): (Item, Option<Refusal>)| match early {
        Some(refusal) => refused(&item, &refusal),
        None => match decided.next().unwrap_or_else(lost) {
            Ok(_) => Answered::to(&item),
            Err(refusal) => refused(&item, &refusal),
        },
    };
    Ok(json(StatusCode::OK, &List::from(answers.into_iter().map(answer).collect::<Vec<_>>())))
}

async fn complete(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<Reports<Done>>) -> Answer {
    let item = |done: Done| {
        let Done { run, step, epoch, output, exit_code, wall, receipt, costs } = done;
        let exit_code = exited(exit_code, wall.as_deref());
        let report = match &output {
            Some(value) if !value.is_object() && !value.is_null() => {
                Err(Refusal::new(Code::InvalidInput, "an `output` is an object"))
            }
            Some(value) if too_large(value, DATA_LEN_MAX) => {
                Err(Refusal::new(Code::InvalidInput, format!("an `output` has {DATA_LEN_MAX} bytes at most")))
            }
            Some(_) | None => {
                let output = output.filter(|value| !value.is_null());
                let report = Report::Done { output, exit_code };
                evidence::read(receipt, costs).map(|(receipt, costs)| Reported { report, receipt, costs })
            }
        };
        (Item { run, step, epoch }, report)
    };
    report(&app, &caller, body.items.into_iter().map(item).collect()).await
}

fn exited(code: Option<i32>, wall: Option<&str>) -> Option<Exit> {
    code.map(|code| Exit { code, wall: wall.map(Name::clean) })
}

fn too_large(value: &Value, max: usize) -> bool {
    // Short of a few bytes nobody has to look closely, and this is the common case.
    value.as_object().is_none_or(|object| !object.is_empty()) && value.to_string().len() > max
}

async fn fail(State(app): State<Arc<App>>, caller: Caller, Json(body): Json<Reports<Failed>>) -> Answer {
    let item = |fail: Failed| {
        let Failed { run, step, epoch, error, retryable, exit_code, signal, wall, .. } = fail;
        let (receipt, costs, after) = (fail.receipt, fail.costs, fail.retry_after_ms.filter(|_| retryable));
        let exit_code = exited(exit_code, wall.as_deref());
        let (code, mut message) = match error {
            Some(Reason::Text(message)) => (None, message),
            Some(Reason::Coded { code, message }) => (code, message),
            None => (None, "the executor did not say why".to_owned()),
        };
        if message.len() > TEXT_LEN_MAX {
            let cut = (0..=TEXT_LEN_MAX).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(cut);
        }
        let failed = |failure, after: Option<u64>| match after {
            Some(after) => Report::Deferred { failure, after: Span(after.min(AFTER_MAX)) },
            None => Report::Failed { failure, retryable, exit_code: exit_code.clone(), signal },
        };
        let report = match code.as_deref().map(Code::parse) {
            // It was stopped as asked.
            Some(Some(Code::Cancelled)) => Ok(Report::Stopped),
            // It had begun, and nobody knows how far it came.
            Some(Some(Code::OutcomeUnknown)) => Ok(Report::Lost { last_seen: Some(System.now()) }),
            Some(Some(
                code @ (Code::StepFailed
                | Code::TimedOut
                | Code::Forbidden
                | Code::InvalidInput
                | Code::PolicyDenied),
            )) => Ok(failed(Failure::new(code, message), after)),
            None => Ok(failed(Failure::new(Code::StepFailed, message), after)),
            Some(Some(_) | None) => Err(Refusal::new(
                Code::InvalidInput,
                "the code of a failure is STEP_FAILED, TIMED_OUT, INVALID_INPUT, POLICY_DENIED, FORBIDDEN, CANCELLED or \
                 OUTCOME_UNKNOWN",
            )),
        };
        let report = report.and_then(|report| {
            evidence::read(receipt, costs).map(|(receipt, costs)| Reported { report, receipt, costs })
        });
        (Item { run, step, epoch }, report)
    };
    report(&app, &caller, body.items.into_iter().map(item).collect()).await
}

async fn hand_back(
    State(app): State<Arc<App>>,
    caller: Caller,
    Json(body): Json<Reports<Returned>>,
) -> Answer {
    let item = |back: Returned| {
        let Returned { run, step, epoch, reason, retry_after_ms } = back;
        let reason = reason.map(|text| windlass_core::wire::shorten(&text));
        let report = match retry_after_ms {
            None => Report::Returned { reason },
            Some(after_ms) => {
                let reason = reason.unwrap_or_else(|| "the executor had no room for it".to_owned());
                Report::Postponed { reason, after: Span(after_ms) }
            }
        };
        (Item { run, step, epoch }, Ok(Reported::of(report)))
    };
    report(&app, &caller, body.items.into_iter().map(item).collect()).await
}

async fn checkpoint(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, step)): Path<(String, String)>,
    Json(body): Json<Checkpoint>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let step = StepId::new(&step).map_err(invalid)?;
    // The token of an attempt is for that attempt.
    if caller.attempt.as_ref().is_some_and(|own| own.epoch != body.epoch) {
        return Err(Problem::new(Code::LeaseStaleEpoch, "the token is of another attempt"));
    }
    let data = body.data.map(Value::Object);
    if data.as_ref().is_some_and(|data| data.to_string().len() > DATA_LEN_MAX) {
        return Err(invalid(format!("a checkpoint has {DATA_LEN_MAX} bytes at most")));
    }
    if body.message.as_ref().is_some_and(|text| text.len() > TEXT_LEN_MAX) {
        return Err(invalid(format!("a message has {TEXT_LEN_MAX} bytes at most")));
    }
    let mask = app.mask_of(run).await;
    let saved = CheckpointSaved {
        pipeline_id: run,
        step: Some(step.clone()),
        epoch: Some(body.epoch),
        resumable: body.resumable,
        idempotent: body.idempotent,
        tokens_input: body.tokens_input,
        tokens_output: body.tokens_output,
        message: body.message.map(|text| Private::New(mask.text(&text))),
        data: data.map(|data| Private::New(mask.value(&data))),
    };
    let command = Command::Checkpoint(Box::new(saved));
    if caller.attempt.is_some() {
        app.ask(&caller, command).await?;
    } else {
        for decided in ask_own(&app, &caller, vec![command]).await? {
            decided.map_err(Problem::from)?;
        }
    }
    let at: Millis = System.now();
    Ok(json(StatusCode::OK, &Saved { run, step, saved_at: Time(at) }))
}
