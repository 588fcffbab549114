//! The turn: from a command to everything that follows from it, as one commit.
//!
//! ```text
//! command ─▶ decide ─▶ facts ─▶ apply ─▶ what follows ─▶ decide ─▶ … ─▶ commit ─▶ release effects
//! ```
//!
//! [`decide`] looks at streams through a [`View`] and changes nothing; where it needs one that is not loaded, it says
//! which. [`drive()`] is the loop: it applies what was decided before it decides what follows, so every decision sees
//! the ones before it, and it stops after [`FOLLOW_MAX`] of them. Nothing of a turn is seen outside before its
//! commit.

mod calls;
pub mod command;
pub mod creation;
pub mod deployment;
pub mod dispatch;
mod drive;
mod effects;
mod holds;
pub mod index;
mod known;
mod needs;
mod notices;
pub mod outstanding;
mod requesters;
mod reversal;
mod route;
mod signals;
pub mod state;
mod system;
pub mod undone;
pub(crate) use drive::admitted;
pub use drive::{Driven, Driver, FOLLOW_MAX, Overlay, Turn, drive};
pub use effects::effect_key;

use crate::attempt;
use crate::code::Code;
use crate::digest::Digest;
use crate::event::{Event, NoticeSent, PipelineDeleted, RunbookLoaded, StepOutputLost, SystemShutdown};
use crate::follow::Told;
use crate::gate;
use crate::id::{ItemId, Name, RunId, Scoped, StepId};
use crate::lifecycle;
use crate::machine::{Beats, Decision, Given};
use crate::pipeline;
use crate::private::Private;
use crate::receipt::{self, key};
use crate::run::{BlockedOn, Run, Status};
use crate::runbook::{Pipeline, Runbook, StepDef};
use crate::step::{Failure, Step, Wait};
use crate::stream::StreamId;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use command::{Command, Fact, Outcome, Receipted, Refusal, Reply};
use state::Body;

/// A stream as a decision finds it.
pub enum Found<'a> {
    /// It has records.
    Here(&'a Body),
    /// It has none.
    Absent,
    /// Nobody loaded it yet.
    Unloaded,
}

/// What decisions look at: streams, and hints from the indexes. A hint may be old; the stream decides.
pub trait View {
    /// A stream.
    fn find(&self, stream: &StreamId) -> Found<'_>;
    /// Heartbeats, which no stream holds.
    fn beats(&self) -> &Beats;
    /// Runs that wait for this one, or for one of its pipeline.
    fn dependents(&self, run: &Run) -> Vec<RunId>;
    /// The best items of a queue.
    fn best(&self, queue: &Scoped, n: usize) -> Vec<ItemId>;
    /// How many items of a queue wait, and which has this key.
    fn depth(&self, queue: &Scoped, key: Option<&Name>) -> (u64, Option<ItemId>);
    /// The started workers of a queue.
    fn consumers(&self, queue: &Scoped) -> Vec<Scoped>;
    /// The names under which runbooks were deployed in a namespace.
    fn deployments(&self, tenant: &Name, namespace: &Name) -> Vec<Scoped>;
    /// Whether the tenant may begin another run of a runbook now, beside those of these runbooks that the same commit
    /// begins before it.
    ///
    /// # Errors
    /// The cap that says no.
    fn admit_run(
        &self,
        tenant: &Name,
        runbook: &Digest,
        beside: &[Digest],
        at: crate::time::Millis,
    ) -> Result<(), crate::caps::Error>;
    /// Whether the tenant may have another step of a runbook under way.
    ///
    /// # Errors
    /// The cap that says no.
    fn admit_step(&self, tenant: &Name, runbook: &Digest) -> Result<(), crate::caps::Error>;
    /// Runs that wait for an external event.
    fn awaiting(&self, tenant: &Name, namespace: &Name, name: &Name, key: Option<&Name>) -> Vec<RunId>;
    /// What a tenant may do at most.
    fn caps(&self, tenant: &Name) -> crate::caps::Caps;
    /// What a tenant keeps in memory.
    fn kept(&self, tenant: &Name) -> crate::caps::Kept;
    /// The newest run of a pipeline, whether it has ended or not.
    fn newest_run(&self, tenant: &Name, namespace: &Name, pipeline: &Name) -> Option<RunId>;
}

/// Looks a stream of one kind up.
macro_rules! lookup {
    ($( $(#[$meta:meta])* $name:ident($id:ty) -> $stream:ident, $body:ident: $ty:ty );+ $(;)?) => {$(
        $(#[$meta])*
        pub(crate) fn $name<'a>(view: &'a dyn View, id: &$id) -> Result<Option<&'a $ty>, Refusal> {
            let stream = StreamId::$stream(id.clone());
            match view.find(&stream) {
                Found::Here(Body::$body(body)) => Ok(Some(body)),
                Found::Here(_) | Found::Absent => Ok(None),
                Found::Unloaded => Err(Refusal::Need(alloc::vec![stream])),
            }
        }
    )+};
}

lookup! {
    /// A run.
    run_of(RunId) -> Run, Run: Run;
    /// A runbook.
    runbook_of(Digest) -> Runbook, Runbook: Runbook;
    /// A lock.
    lock_of(Scoped) -> Lock, Lock: crate::lock::Lock;
    /// A semaphore.
    semaphore_of(Scoped) -> Semaphore, Semaphore: crate::semaphore::Semaphore;
    /// A queue.
    queue_of(Scoped) -> Queue, Queue: crate::queue::Queue;
    /// An item.
    item_of(ItemId) -> Item, Item: crate::item::Item;
    /// A worker.
    worker_of(Scoped) -> Worker, Worker: crate::worker::Worker;
    /// A schedule.
    schedule_of(Scoped) -> Schedule, Schedule: crate::schedule::Schedule;
    /// An ingress key.
    key_of(Scoped) -> Trigger, Trigger: crate::idempotency::Key;
    /// A workspace.
    workspace_of(crate::id::WorkspaceId) -> Workspace, Workspace: crate::workspace::Workspace;
    /// A session.
    session_of(crate::id::SessionId) -> Session, Session: crate::workspace::session::Session;
    /// Events that are kept.
    signals_of(Scoped) -> Signal, Signal: crate::signal::Signals;
    /// What is known of a tenant.
    tenant_state_of(Name) -> Tenant, Tenant: crate::tenant::Tenant;
    /// The tokens of a tenant.
    token_map_of(Name) -> Tokens, Tokens: known::TokenMap;
    /// An effect key.
    effect_of(Scoped) -> Effect, Effect: key::EffectKey;
}

/// A run with its pipeline.
pub(crate) struct Loaded<'a> {
    pub(crate) run: &'a Run,
    pub(crate) def: &'a Pipeline,
}

impl<'a> Loaded<'a> {
    pub(crate) fn node(&self, step: &Step) -> Result<&'a StepDef, Refusal> {
        self.def
            .node(step.node)
            .ok_or_else(|| Refusal::new(Code::Internal, "the step's definition is not in its runbook"))
    }
}

pub(crate) fn load<'a>(view: &'a dyn View, id: RunId) -> Result<Loaded<'a>, Refusal> {
    let run = run_of(view, &id)?.ok_or_else(|| missing("run", &id))?;
    let runbook = runbook_of(view, &run.born.home.runbook)?
        .ok_or_else(|| missing("runbook", &run.born.home.runbook))?;
    let def = runbook
        .pipelines
        .get(&run.born.home.pipeline)
        .ok_or_else(|| missing("pipeline", &run.born.home.pipeline))?;
    // What is asked of humans depends on it, whichever decision asks.
    known::tokens_of(view, &run.born.home.tenant)?;
    Ok(Loaded { run, def })
}

pub(crate) fn missing(what: &str, id: &dyn core::fmt::Display) -> Refusal {
    Refusal::new(Code::NotFound, alloc::format!("{what} `{id}` is not there"))
}

/// What a command comes to, by what the view shows.
///
/// # Errors
/// [`Refusal::Need`] where streams have to be loaded first; otherwise the coded reason.
pub fn decide(view: &dyn View, command: &Command, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    match command {
        Command::Create(create) => creation::create(view, create, given),
        Command::Deliver { key, source, request_hash, create } => {
            creation::deliver(view, key, *source, *request_hash, create, given)
        }
        Command::Arrive(arrival) => creation::arrive(view, arrival, given),
        Command::Call { run, parent, step, pipeline, vars } => {
            creation::call(view, *run, (*parent, step), (pipeline, vars), given)
        }
        Command::Begin(id) => needs::begin(view, *id, given),
        Command::Advance(id) => {
            let loaded = load(view, *id)?;
            let moved = pipeline::advance(loaded.run, loaded.def, given);
            Ok(of_run(view, loaded.run, moved, Reply::Done))
        }
        Command::Descend { run, new, from, runbook } => {
            creation::descend(view, *run, *new, from.as_ref(), *runbook, given)
        }
        Command::Undo(wish) => undone::undo(view, wish, given),
        Command::Suspend { run, reason } => {
            let run = load(view, *run)?.run;
            let mut out = of_run(view, run, lifecycle::suspend(run, reason.clone())?, Reply::Done);
            let with_it = |called| suspend_called(run.id(), called);
            out.follow.extend(lifecycle::called(run).map(with_it));
            Ok(out)
        }
        Command::Resume { run, message, vars } => {
            let Loaded { run, def } = load(view, *run)?;
            vars.as_ref().map_or(Ok(()), |vars| creation::changed(def, vars, given.evaluate))?;
            if let Some((caller, _)) = run.born.parent.as_deref()
                && run_of(view, caller)?.is_some_and(|caller| caller.suspended)
            {
                return Err(crate::run::Error::CallerSuspended(run.id(), *caller).into());
            }
            let resumed = lifecycle::resume(run, def, message.clone(), vars.clone(), given)?;
            let mut out = of_run(view, run, resumed, Reply::Done);
            let go_on = |called| Command::Resume { run: called, message: None, vars: None };
            out.follow.extend(lifecycle::called(run).filter(|_| run.suspended).map(go_on));
            Ok(out)
        }
        Command::Cancel { run, initiator, user, reason } => {
            let run = load(view, *run)?.run;
            let cancelled = lifecycle::cancel(run, *initiator, user.clone(), reason.clone(), given)?;
            Ok(of_run(view, run, cancelled, Reply::Done))
        }
        Command::Signal { run, name, key, data, event_id } => {
            let asked_by = requesters::of_signal(view, given, None, data)?;
            let run = load(view, *run)?.run;
            let signalled = lifecycle::signal(
                run,
                name,
                key.as_ref(),
                data,
                (event_id.as_ref(), crate::signal::source(given).as_ref(), asked_by),
                given,
            )?;
            Ok(of_run(view, run, signalled, Reply::Done))
        }
        Command::SignalKey(signal) => signals::arrive(view, signal, given),
        Command::TakeSignal { run, step } => signals::take(view, *run, step, given),
        Command::Tell { run, told } => tell(view, *run, told, given),
        Command::Orphan { run, last_heartbeat_at } => {
            let Loaded { run, def } = load(view, *run)?;
            run.must_live()?;
            Ok(of_run(view, run, lifecycle::orphaned(run, def, *last_heartbeat_at), Reply::Done))
        }
        Command::Deleted { tenant, runs, reason } => {
            let deleted = |run: &RunId| PipelineDeleted { id: *run, reason: reason.clone() }.into();
            let facts = runs.iter().map(deleted).collect();
            let stream = StreamId::Retired(tenant.clone());
            match view.find(&stream) {
                Found::Unloaded => Err(Refusal::Need(alloc::vec![stream])),
                Found::Here(_) | Found::Absent => Ok(of_stream(stream, tenant, facts, Reply::Done)),
            }
        }

        Command::Lease { run, step, owner, agent, reserve } => {
            lease(view, *run, step, attempt::Wish { owner, agent: *agent, reserve: *reserve }, given)
        }
        Command::Report { run, step, epoch, report, receipt } => {
            self::report(view, *run, step, *epoch, report, receipt.as_deref(), given)
        }
        Command::PolicyDecided(decided) => {
            let Loaded { run, def } = load(view, decided.pipeline_id)?;
            Ok(of_run(view, run, gate::policy_decided(run, def, decided, given)?, Reply::Done))
        }
        Command::Guarded { run, step, inputs } => {
            let loaded = load(view, *run)?;
            let step = loaded.run.need(step)?;
            let guarded = gate::guard_gathered(loaded.run, loaded.def, step, inputs, given)?;
            Ok(of_run(view, loaded.run, guarded, Reply::Done))
        }
        Command::Decide { run, approval, input } => {
            let run = load(view, *run)?.run;
            let own = known::tokens_of(view, &run.born.home.tenant)?.own_allowed(given.at);
            let (decided, reply) = gate::decide_approval(run, *approval, input, own, given)?.answer(());
            Ok(of_run(view, run, decided, Reply::Approval(reply)))
        }
        Command::Resolve { run, step, resolution, probed, reason, output } => {
            resolve(view, *run, step, (*resolution, *probed), (reason.clone(), output.clone()), given)
        }
        Command::Checkpoint(saved) => {
            let run = load(view, saved.pipeline_id)?.run;
            Ok(of_run(view, run, attempt::checkpoint(run, saved)?, Reply::Done))
        }
        Command::Cost { run, step, epoch, costs } => {
            let run = load(view, *run)?.run;
            Ok(of_run(view, run, attempt::cost(run, step, *epoch, costs, given)?, Reply::Done))
        }
        Command::Secrets { run, step, epoch, used } => {
            let run = load(view, *run)?.run;
            Ok(of_run(view, run, attempt::secrets(run, step, *epoch, used)?, Reply::Done))
        }
        Command::OutputLost { run, step, epoch, bytes, reason } => {
            let run = load(view, *run)?.run;
            let step = run.need(step)?.id.clone();
            let lost = StepOutputLost {
                pipeline_id: run.id(),
                step,
                epoch: *epoch,
                bytes: *bytes,
                reason: reason.clone(),
            };
            Ok(of_run(view, run, Decision::new().fact(lost), Reply::Done))
        }
        Command::Raise { run, to } => {
            let run = load(view, *run)?.run;
            Ok(of_run(view, run, attempt::raise(run, *to, given)?, Reply::Done))
        }
        Command::Task { run, step, input } => {
            let run = load(view, *run)?.run;
            let runbook = runbook_of(view, &run.born.home.runbook)?
                .ok_or_else(|| missing("runbook", &run.born.home.runbook))?;
            Ok(of_run(view, run, crate::agency::task(run, runbook, step, input, given)?, Reply::Done))
        }
        Command::Noticed { run, notice, delivered } => {
            let run = load(view, *run)?.run;
            if !run.rare().notices.contains_key(notice) {
                return Ok(Outcome::reply(Reply::Done));
            }
            let sent = NoticeSent { notice: *notice, pipeline_id: run.id(), delivered: *delivered };
            Ok(of_run(view, run, Decision::new().fact(sent), Reply::Done))
        }

        Command::Lock { .. }
        | Command::LetGoLock { .. }
        | Command::OustHolder { .. }
        | Command::Semaphore { .. }
        | Command::LetGoSlots { .. } => route::coordinate(view, command, given),
        Command::Queue { .. }
        | Command::Push { .. }
        | Command::PushAll { .. }
        | Command::Take { .. }
        | Command::TakeMany { .. }
        | Command::Polled { .. }
        | Command::TookOutside { .. }
        | Command::Item { .. }
        | Command::Worker { .. }
        | Command::Dispatch { .. }
        | Command::Wake { .. }
        | Command::SettleItem { .. }
        | Command::Schedule { .. } => dispatch::decide(view, command, given),

        Command::Key { key, input } => {
            let known =
                key_of(view, key)?.cloned().unwrap_or_else(|| crate::idempotency::Key::new(name_of(key)));
            let Decision { facts, reply, .. } = known.decide(input, given.at)?;
            Ok(of_stream(StreamId::Trigger(key.clone()), &tenant_of(key), facts, Reply::Key(reply)))
        }
        Command::Reverse { key: stream, receipt, by } => {
            let known = effect_of(view, stream)?.ok_or_else(|| missing("effect", stream))?;
            let reversed = known.decide(&key::Input::Reverse { receipt_id: *receipt, by: *by }, given.at)?;
            Ok(of_stream(StreamId::Effect(stream.clone()), &tenant_of(stream), reversed.facts, Reply::Done))
        }
        Command::Reversed { run, step } => reversal::reversed(view, *run, step, given),
        Command::Load { hash, tenant, runbook, source } => {
            if runbook_of(view, hash)?.is_some() {
                // The same content under the same hash.
                return Ok(Outcome::reply(Reply::Done));
            }
            runbook.validate()?;
            // What the tenant may store is said in its stream.
            tenant_state_of(view, tenant)?;
            view.kept(tenant).admit_runbook(runbook, &view.caps(tenant))?;
            let loaded = RunbookLoaded {
                hash: *hash,
                version: runbook.version,
                runbook: serde_json::json!(runbook),
                name: runbook.name.clone(),
                source: source.clone().map(Private::New),
            };
            Ok(of_stream(StreamId::Runbook(*hash), tenant, alloc::vec![loaded.into()], Reply::Done))
        }
        Command::Deploy(wish) => deployment::deploy(view, wish, given),
        Command::Withdraw { deployment } => deployment::withdraw(view, deployment, given),
        Command::Declare { tenant, namespace, hash } => {
            deployment::declare(view, (tenant, namespace), hash, given)
        }
        Command::Tenant { tenant, caps, weight, self_approval, notices } => {
            deployment::configure_tenant(view, tenant, (*caps, *weight, *self_approval, notices))
        }
        Command::Token { tenant, input } => {
            let (stream, facts) =
                crate::token::decide(known::tokens_of(view, tenant)?, tenant, input, given)?;
            Ok(of_stream(stream, tenant, facts, Reply::Done))
        }
        Command::LoadPolicy { tenant, loaded } => {
            let known = tenant_state_of(view, tenant)?.and_then(|known| known.policy_version);
            if known == Some(loaded.policy_version) {
                return Ok(Outcome::reply(Reply::Done));
            }
            let facts = alloc::vec![Event::from((**loaded).clone())];
            Ok(of_stream(StreamId::Tenant(tenant.clone()), tenant, facts, Reply::Done))
        }
        Command::Workspace { .. } | Command::Session { .. } => route::place(view, command, given),
        Command::Seal(seal) => system::seal(view, seal),
        Command::RotateKey(rotation) => system::rotate(view, rotation, given.at),
        Command::Retained(applied) => system::note(view, (**applied).clone()),
        Command::Carry(stream) => system::carry(view, stream),
        Command::RaiseEpochs { floor } => system::raise_epochs(view, *floor),
        Command::Exported(made) => system::note(view, (**made).clone()),
        Command::Started(started) => system::note(view, (**started).clone()),
        Command::Recovered(found) => system::note(view, (**found).clone()),
        Command::Redacted(gone) => system::note(view, (**gone).clone()),
        Command::Stopping => system::note(view, SystemShutdown {}),
        Command::Tick(stream) => tick(view, stream, given),
    }
}

/// A called run is suspended with its caller.
pub(crate) fn suspend_called(caller: RunId, called: RunId) -> Command {
    Command::Suspend { run: called, reason: Some(alloc::format!("its caller {caller} is suspended")) }
}

/// The facts of one stream.
#[allow(clippy::needless_pass_by_value)] // The stream is made for this one call.
pub(crate) fn of_stream(stream: StreamId, tenant: &Name, facts: Vec<Event>, reply: Reply) -> Outcome {
    let fact = |event| Fact { stream: stream.clone(), tenant: tenant.clone(), event };
    Outcome { facts: facts.into_iter().map(fact).collect(), effects: Vec::new(), follow: Vec::new(), reply }
}

/// All that one stream's decision comes to.
pub(crate) fn of_decision(stream: StreamId, tenant: &Name, decision: Decision, reply: Reply) -> Outcome {
    let Decision { facts, follow, effects, reply: () } = decision;
    let mut out = of_stream(stream, tenant, facts, reply);
    out.follows(follow);
    out.effects = effects;
    out
}

pub(crate) fn tenant_of(scoped: &Scoped) -> Name {
    Name::clean(scoped.tenant())
}

pub(crate) fn name_of(scoped: &Scoped) -> Name {
    Name::clean(scoped.name())
}

/// The facts of a run's decision. Whatever changed, the flow looks at it next; and who waits for its end, hears of it.
pub(crate) fn of_run(view: &dyn View, run: &Run, decision: Decision, reply: Reply) -> Outcome {
    let Decision { facts, follow, effects, reply: () } = notices::told(view, run, decision);
    let facts = known::expecting(view, run, lifecycle::with_timers(run.id(), facts));
    let ended = facts.iter().find_map(|fact| match fact {
        Event::PipelineCompleted(e) => {
            Some((Status::Completed, e.outputs.as_ref().and_then(Private::get), None))
        }
        Event::PipelineFailed(e) => {
            let error = e.error.get().map(|message| Failure { code: e.code.clone(), message });
            Some((Status::Failed, None, error))
        }
        Event::PipelineCancelled(_) => Some((Status::Cancelled, None, Some(route::cancelled()))),
        // tidy: every other fact leaves the run alive.
        _ => None,
    });
    let facts = known::own_requests(view, run, facts);
    let moved = !facts.is_empty();
    let reversed = reversal::commands(run, &facts);
    let mut out = of_stream(StreamId::Run(run.id()), &run.born.home.tenant, facts, reply);
    out.follow.extend(reversed);
    let waits = facts_waiting(&out.facts);
    out.follows(follow);
    out.effects = effects;
    match ended {
        Some((status, outputs, error)) => route::run_ended(view, run, status, outputs, error, &mut out),
        None if moved && !run.is_terminal() => {
            // An event that came before anybody waited for it may be kept.
            out.follow.extend(waits.map(|step| Command::TakeSignal { run: run.id(), step }));
            out.follow.push(Command::Advance(run.id()));
        }
        None => {}
    }
    out
}

/// The step that began to wait for an external event and did not get it from its own run.
fn facts_waiting(facts: &[Fact]) -> Option<StepId> {
    let took = facts.iter().any(|fact| matches!(fact.event, Event::SignalConsumed(_)));
    facts.iter().filter(|_| !took).find_map(|fact| match &fact.event {
        Event::StepWaiting(e) if e.reason == Some(Wait::Event) => Some(e.step.clone()),
        // tidy: every other fact is about something else.
        _ => None,
    })
}

fn tell(view: &dyn View, id: RunId, told: &Told, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let loaded = load(view, id)?;
    let run = loaded.run;
    if let Told::LockGranted { step: None, lock, epoch } = told
        && matches!(run.blocked.as_deref(), Some(BlockedOn::Lock(on)) if on == lock)
        && !run.suspended
    {
        return Ok(of_run(view, run, lifecycle::unblocked(run, loaded.def, Some(*epoch))?, Reply::Done));
    }
    if let Told::RunEnded { run: other, step: None, status, .. } = told {
        return needs::ended(view, &loaded, (*other, *status), given);
    }
    let mut decision = gate::told(run, loaded.def, told, given)?;
    if let Told::RunEnded { run: called, step: Some(_), .. } = told
        && let Some(called) = run_of(view, called)?
    {
        decision.facts = requesters::of_outputs(run, decision.facts, &called.requesters());
    }
    Ok(of_run(view, run, decision, Reply::Done))
}

/// Leases a step. For an outside write the intent is recorded in the same commit; where a receipt says that it
/// happened before, its result serves.
fn lease(
    view: &dyn View,
    id: RunId,
    step: &StepId,
    wish: attempt::Wish<'_>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let loaded = load(view, id)?;
    let run = loaded.run;
    let step = run.need(step)?;
    let node = loaded.node(step)?;
    let (leased, lease) = attempt::lease(run, loaded.def, node, step, &wish, given)?.answer(());
    let Some(lease) = lease else {
        // The step waits, for a human or for policy.
        return Ok(of_run(view, run, leased, Reply::Nothing));
    };
    // Over a cap nothing changes, and whoever asked may ask again.
    view.admit_step(&run.born.home.tenant, &run.born.home.runbook)?;
    if let Some(lock) = holds::lost_own(view, run)? {
        // It was not told: it hears of it here, before it acts.
        let told = Told::HoldLost { step: None, name: lock.clone(), broken: false };
        return Ok(of_run(view, run, gate::told(run, loaded.def, &told, given)?, Reply::Nothing));
    }
    if let Some(lost) = holds::lost_hold(view, run, step)? {
        return Ok(of_run(view, run, gate::take_again(run, step, lost, given), Reply::Nothing));
    }
    let Some(stream) = effect_key(run, node, step) else {
        return Ok(of_run(view, run, leased, Reply::Leased(Box::new(lease))));
    };
    let fresh = || key::EffectKey::new(name_of(&stream));
    let known = effect_of(view, &stream)?.cloned().unwrap_or_else(fresh);
    let action = crate::scope::action(run, node, step);
    let intend = key::Input::Intend(Box::new(key::Proposal {
        attempt: effects::attempt_of(run, step, step.epoch),
        action,
        action_hash: crate::scope::action_hash(run, node, step),
        semantics: step.semantics.unwrap_or(receipt::Semantics::AtMostOnce),
    }));
    let happened = matches!(known.state, key::State::Succeeded { .. });
    let full = step.writes() && run.born.home.writes_max.is_some_and(|max| run.writes >= max);
    if full && !happened {
        let message = alloc::format!(
            "`max_writes_per_run` is {} for this run, by its runbook or its tenant, and as many writes were begun",
            run.born.home.writes_max.unwrap_or_default()
        );
        let refused = pipeline::refuse(run, step, Code::CapExceeded, &message, given);
        return Ok(of_run(view, run, refused, Reply::Done));
    }
    let intended = match known.decide(&intend, given.at) {
        Ok(intended) => intended,
        Err(error) => {
            let refused = pipeline::refuse(run, step, error.code(), &error.to_string(), given);
            return Ok(of_run(view, run, refused, Reply::Done));
        }
    };
    match intended.reply {
        key::Reply::Reuse { response, run: from } => {
            let asked_by = requesters::of_result(view, run, from)?;
            // It begins and ends in one commit, with what was set aside for it.
            let begun = leased.facts.iter().fold(run.clone(), |run, fact| run.apply(fact, given.at));
            let started = begun.need(&step.id)?;
            // Nothing is carried out.
            let mut out = Decision { effects: Vec::new(), ..leased };
            let input = crate::step::Input::Succeed {
                epoch: started.epoch,
                output: response,
                reused_from: Some(from),
            };
            pipeline::end(&begun, started, input, given, &mut out);
            out.facts = requesters::of_outputs(run, out.facts, &asked_by);
            Ok(of_run(view, run, out, Reply::Reused))
        }
        key::Reply::Granted { .. } => {
            let mut out = of_run(view, run, leased, Reply::Leased(Box::new(lease)));
            let tenant = &run.born.home.tenant;
            out.facts.extend(of_stream(StreamId::Effect(stream), tenant, intended.facts, Reply::Done).facts);
            Ok(out)
        }
        key::Reply::Recorded { .. } | key::Reply::Standing => {
            Err(Refusal::new(Code::Internal, "an intent was neither granted nor reused"))
        }
    }
}

/// Takes a report, and the receipt that comes with it: what happened outside is recorded even where the report
/// itself comes too late.
fn report(
    view: &dyn View,
    id: RunId,
    step: &StepId,
    epoch: u64,
    report: &attempt::Report,
    receipted: Option<&Receipted>,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let loaded = load(view, id)?;
    let run = loaded.run;
    let step = run.need(step)?;
    let node = loaded.node(step)?;
    let stream = effect_key(run, node, step);
    // A plain step has no key, and what it gives need not be copied for one.
    let settled = match &stream {
        Some(stream) => {
            let inputs = effects::evidence(report, receipted, (run, node, step), epoch, given);
            effects::settle_key(view, Some(stream), inputs, given)?
        }
        None => Vec::new(),
    };
    // Whoever stops an effect, or fails to say whether it happened, leaves it unknown; an idempotent write can be done
    // again all the same.
    let lost = attempt::Report::Lost { last_seen: Some(given.at) };
    let report = match (report, receipted) {
        (attempt::Report::Stopped, None) if step.may_be_unknown() => &lost,
        (attempt::Report::Failed { .. } | attempt::Report::Deferred { .. }, None)
            if step.may_be_unknown() && stream.is_some() && !effects::is_told(node, report) =>
        {
            &lost
        }
        (report, _) => report,
    };
    let decided = attempt::report(run, node, step, epoch, report, given);
    let mut out = match decided {
        Ok(decision) => of_run(view, run, decision, Reply::Done),
        // The step moved on, but the world changed: the receipt is kept in its own stream.
        Err(error) if settled.is_empty() && !attempt::is_repeat(step, epoch, report) => {
            return Err(error.into());
        }
        Err(_) => Outcome::reply(Reply::Done),
    };
    if let Some(stream) = stream {
        out.facts
            .extend(of_stream(StreamId::Effect(stream), &run.born.home.tenant, settled, Reply::Done).facts);
    }
    Ok(out)
}

fn resolve(
    view: &dyn View,
    id: RunId,
    step: &StepId,
    (resolution, probed): (crate::step::Resolution, bool),
    (reason, output): (Option<alloc::string::String>, Option<serde_json::Value>),
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    use crate::step::Resolution;
    let loaded = load(view, id)?;
    let run = loaded.run;
    let step = run.need(step)?;
    let node = loaded.node(step)?;
    // Whatever it is told by, a step is done with what it declares or not at all: later steps and its compensation need it.
    let done = resolution == Resolution::Done && step.status != crate::step::Status::Running;
    if let Some(missing) = done.then(|| attempt::missing_output(node, output.as_ref())).flatten() {
        return Err(crate::run::Error::Output(id, step.id.clone(), missing).into());
    }
    let stream = effect_key(run, node, step);
    let outcome = match resolution {
        Resolution::Done => receipt::Settled::Done,
        Resolution::Retry => receipt::Settled::NotDone,
        Resolution::Fail => receipt::Settled::Abandoned,
    };
    let input = key::Input::Settle { attempt: effects::attempt_of(run, step, step.epoch), outcome, probed };
    let settled = effects::settle_key(view, stream.as_ref(), alloc::vec![input], given)?;
    let asked_by = match &output {
        Some(output) => requesters::of_signal(view, given, None, output)?,
        None => Vec::new(),
    };
    let mut resolved = attempt::resolve(run, step, resolution, probed, reason, output, given)?;
    resolved.facts = requesters::of_outputs(run, resolved.facts, &asked_by);
    let mut out = of_run(view, run, resolved, Reply::Done);
    if let Some(stream) = stream {
        out.facts
            .extend(of_stream(StreamId::Effect(stream), &run.born.home.tenant, settled, Reply::Done).facts);
    }
    Ok(out)
}

/// Looks at the clock for one stream.
fn tick(view: &dyn View, stream: &StreamId, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    match stream {
        StreamId::Run(id) => {
            let loaded = load(view, *id)?;
            let due = lifecycle::tick(loaded.run, loaded.def, given)?;
            let moved = !due.facts.is_empty();
            let mut out = of_run(view, loaded.run, due, Reply::Done);
            // What else is due is looked at with what this changed.
            out.follow.extend(moved.then(|| Command::Tick(stream.clone())));
            Ok(out)
        }
        StreamId::Lock(lock) => {
            let input = crate::lock::Input::Maintain;
            route::coordinate(view, &Command::Lock { lock: lock.clone(), input }, given)
        }
        StreamId::Semaphore(semaphore) => {
            let input = crate::semaphore::Input::Maintain;
            route::coordinate(view, &Command::Semaphore { semaphore: semaphore.clone(), input }, given)
        }
        StreamId::Trigger(key) => {
            decide(view, &Command::Key { key: key.clone(), input: crate::idempotency::Input::Tick }, given)
        }
        StreamId::Item(item) => dispatch::tick(view, *item, given),
        StreamId::Signal(id) => signals::tick(view, id, given),
        StreamId::Schedule(schedule) => dispatch::tick_schedule(view, schedule, given),
        StreamId::Worker(worker) => dispatch::tick_worker(view, worker, given),
        // The rest have no times.
        StreamId::Queue(_)
        | StreamId::Effect(_)
        | StreamId::Runbook(_)
        | StreamId::Deployment(_)
        | StreamId::Workspace(_)
        | StreamId::Session(_)
        | StreamId::Tenant(_)
        | StreamId::Tokens(_)
        | StreamId::System
        | StreamId::Retired(_) => Ok(Outcome::reply(Reply::Done)),
    }
}
