//! Commands: everything that can be asked of the system, and how it is answered.
//!
//! A command names the streams it is about. The turn loads them, decides, and hands on what follows for
//! other streams as further commands, until nothing follows; all of it is one commit.

use crate::approval;
use crate::attempt::Report;
use crate::budget::{Amount, Cost};
use crate::caps::{self, Caps};
use crate::code::Code;
use crate::digest::Digest;
use crate::effect::{Effect, Lease, Notice};
use crate::event::{
    CheckpointSaved, Custom, Event, EvidenceExported, KeyRotated, PolicyDecided, PolicyLoaded,
    RetentionApplied, SealCreated, SystemRecovered, SystemStarted, ValueRedacted,
};
use crate::follow::{Follow, Told};
use crate::guard::GuardInputs;
use crate::id::{
    AgentId, ApprovalId, Holder, ItemId, Name, NoticeId, ReceiptId, RunId, Scoped, SessionId, StepId,
    WorkspaceId,
};
use crate::idempotency::Source as KeySource;
use crate::receipt::{self, Reversal};
use crate::run::{Initiator, Subject, Trigger};
use crate::runbook::Runbook;
use crate::small::Map;
use crate::step::Resolution;
use crate::stream::StreamId;
use crate::time::{Millis, Span};
use crate::{item, lock, queue, schedule, semaphore, task, worker, workspace};
use alloc::boxed::Box;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use serde_json::Value;

/// A fact for a stream, before it has a version.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// Which stream.
    pub stream: StreamId,
    /// Whose it is.
    pub tenant: Name,
    /// What becomes true.
    pub event: Event,
}

/// What is asked for when a run is created.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    /// Its id, made by the shell.
    pub id: RunId,
    /// Whose it is.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// The runbook.
    pub runbook: Digest,
    /// The pipeline.
    pub pipeline: Name,
    /// A name for people.
    pub name: Name,
    /// Where it runs.
    pub cwd: String,
    /// Its variables, as given.
    pub vars: Value,
    /// What made it.
    pub trigger: Trigger,
    /// What it is about.
    pub subject: Option<Subject>,
    /// What ties it to something outside.
    pub correlation_id: Option<Name>,
    /// Higher is sooner.
    pub priority: i32,
    /// Runs that must be completed first.
    pub needs: Vec<RunId>,
    /// The caller.
    pub parent: Option<(RunId, StepId)>,
    /// How many runs called each other above it.
    pub depth: u32,
    /// When it must be over at the latest, beside the pipeline's own deadline.
    pub deadline_at: Option<Millis>,
    /// Its working directory.
    pub workspace: Option<WorkspaceId>,
    /// What policy says once for the run, asked before it is created.
    pub policy: Vec<PolicyDecided>,
    /// The completed run that it takes back, where it is made for that.
    pub takes_back: Option<RunId>,
}

/// Whose a run is, of which runbook, and where it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Home {
    /// Whose it is.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// The runbook.
    pub runbook: Digest,
    /// Where it runs.
    pub cwd: String,
}

impl Create {
    /// A run by itself, named after its pipeline: nobody calls it, it needs no other, and nothing bounds it but its
    /// pipeline.
    #[must_use]
    pub fn new(id: RunId, home: Home, pipeline: Name, vars: Value, trigger: Trigger) -> Create {
        let Home { tenant, namespace, runbook, cwd } = home;
        Create {
            id,
            tenant,
            namespace,
            runbook,
            name: pipeline.clone(),
            pipeline,
            cwd,
            vars,
            trigger,
            subject: None,
            correlation_id: None,
            priority: 0,
            needs: Vec::new(),
            parent: None,
            depth: 0,
            deadline_at: None,
            workspace: None,
            policy: Vec::new(),
            takes_back: None,
        }
    }
}

/// What an executor got back from the outside.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipted {
    /// The receipt's id, made by the shell.
    pub id: ReceiptId,
    /// Whether it happened.
    pub status: receipt::Outcome,
    /// Whether it can be taken back.
    pub reversible: bool,
    /// How.
    pub reverse: Option<Reversal>,
    /// What was asked.
    pub request: Option<Value>,
    /// What came back.
    pub response: Option<Value>,
}

/// An external event that is known by its key and not by its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// Whose it is.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// Its name.
    pub name: Name,
    /// Its key.
    pub key: Option<Name>,
    /// What comes with it.
    pub data: Value,
    /// The source's own id of it: one that is kept is not kept twice.
    pub event_id: Option<Name>,
    /// Whom it is from, where the source says so.
    pub user: Option<Name>,
}

/// The most runs and signals that one arrival can set going.
pub const ARRIVALS_MAX: usize = 64;

/// Everything that one delivery sets going. All of it is one commit with the claim of its key, so a delivery that
/// comes again finds either nothing of it or the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// The key that names the delivery.
    pub key: Scoped,
    /// Where it came from.
    pub source: KeySource,
    /// The hash of the whole request.
    pub request_hash: Digest,
    /// The runs it makes.
    pub creates: Vec<Create>,
    /// The signals it sends.
    pub signals: Vec<Signal>,
    /// The run that the signals are for; absent: whichever waits for their keys.
    pub to: Option<RunId>,
    /// The answer that repeats get; the run's id where absent.
    pub response: Option<Value>,
    /// Why nothing could come of it: the key is marked as failed, and a repeat may try again.
    pub failure: Option<String>,
    /// The custom event that arrives, where it is one: on record with its key.
    pub event: Option<Custom>,
    /// What else names the delivery, each for so long: while one is known, this is a repeat of what it was known by.
    pub also: Vec<(Scoped, Span)>,
}

/// What is taken back, and by which run.
#[derive(Clone, Debug, PartialEq)]
pub struct Undo {
    /// The run that does it.
    pub create: Create,
    /// The run that was asked for, and then those that it called and of which something is taken back with it.
    pub runs: Vec<Claim>,
}

/// A run that an undo takes back, as it was when that was planned.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The run.
    pub run: RunId,
    /// The calls through which the undo reaches it.
    pub path: Option<String>,
    /// The last undo of it that the plan knows of.
    pub seen: Option<RunId>,
}

/// An item that is pushed.
#[derive(Clone, Debug, PartialEq)]
pub struct Pushed {
    /// Its id, made by the shell.
    pub id: ItemId,
    /// What is to be worked on.
    pub data: Value,
    /// Higher is taken first.
    pub priority: i32,
    /// Not before this time.
    pub not_before: Option<Millis>,
    /// The key it is known by.
    pub dedupe: Option<Name>,
    /// The dead item that it forwards.
    pub from: Option<ItemId>,
}

/// A runbook that becomes the active version of its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Deploy {
    /// The name, with tenant and namespace.
    pub deployment: Scoped,
    /// The loaded runbook.
    pub hash: Digest,
    /// Where the runs of its workers and schedules run.
    pub project_root: String,
    /// When each schedule is first due, with its jitter. The core knows no time zones.
    pub next: Map<Name, Millis>,
}

/// Everything that can be asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    // Runs.
    /// Make a run.
    Create(Box<Create>),
    /// Make a run for a delivery: once per key.
    Deliver { key: Scoped, source: KeySource, request_hash: Digest, create: Box<Create> },
    /// Do all that a delivery sets going: once per key.
    Arrive(Box<Arrival>),
    /// Make the run that a `call` step calls.
    Call { run: RunId, parent: RunId, step: StepId, pipeline: Name, vars: Value },
    /// Begin a run, or find out what it waits for.
    Begin(RunId),
    /// Let the flow of a run make its next move.
    Advance(RunId),
    /// Go on from an earlier run, as a new one: from a step, or from what did not succeed.
    Descend { run: RunId, new: RunId, from: Option<StepId>, runbook: Option<Digest> },
    /// Somebody takes back what runs did outside, in a new run.
    Undo(Box<Undo>),
    /// Nothing of the run is leased until it is resumed.
    Suspend { run: RunId, reason: Option<String> },
    /// A suspended run goes on.
    Resume { run: RunId, message: Option<String>, vars: Option<Value> },
    /// Stop a run.
    Cancel { run: RunId, initiator: Initiator, user: Option<Name>, reason: Option<String> },
    /// An external event arrives.
    Signal { run: RunId, name: Name, key: Option<Name>, data: Value, event_id: Option<Name> },
    /// An external event arrives by its key, for whichever run waits for it; kept where none does.
    SignalKey(Box<Signal>),
    /// A step that waits for an external event looks whether it was kept.
    TakeSignal { run: RunId, step: StepId },
    /// A run hears from another stream.
    Tell { run: RunId, told: Told },
    /// Recovery found the run without an executor.
    Orphan { run: RunId, last_heartbeat_at: Option<Millis> },
    /// Retention took a tenant's runs out of the store.
    Deleted { tenant: Name, runs: Vec<RunId>, reason: Option<String> },

    // Steps.
    /// Lease a step to an executor.
    Lease { run: RunId, step: StepId, owner: Name, agent: Option<AgentId>, reserve: Amount },
    /// An executor reports on an attempt.
    Report { run: RunId, step: StepId, epoch: u64, report: Report, receipt: Option<Box<Receipted>> },
    /// Policy answers.
    PolicyDecided(Box<PolicyDecided>),
    /// The outside tells what a step's guards need.
    Guarded { run: RunId, step: StepId, inputs: Box<GuardInputs> },
    /// A human decides, or an approval is voided.
    Decide { run: RunId, approval: ApprovalId, input: approval::Input },
    /// A human or a probe settles an unknown outcome or an escalation.
    Resolve {
        run: RunId,
        step: StepId,
        resolution: Resolution,
        probed: bool,
        reason: Option<String>,
        output: Option<Value>,
    },
    /// Progress is saved, or a message put on the run.
    Checkpoint(Box<CheckpointSaved>),
    /// An attempt cost something.
    Cost { run: RunId, step: StepId, epoch: u64, costs: Vec<Cost> },
    /// An attempt is about to use secrets: each by its name and version.
    Secrets { run: RunId, step: StepId, epoch: u64, used: Vec<(Name, Name)> },
    /// A human raises the budget.
    Raise { run: RunId, to: Amount },
    /// Something happens to an agent's task.
    Task { run: RunId, step: StepId, input: task::Input },
    /// A message was sent, or given up on.
    Noticed { run: RunId, notice: NoticeId, delivered: bool },

    // Coordination.
    /// Something happens to a lock.
    Lock { lock: Scoped, input: lock::Input },
    /// A holder gives a lock back or leaves its line, whichever it is.
    LetGoLock { lock: Scoped, holder: Holder },
    /// Cancel the run that holds a lock, for another that may.
    OustHolder { lock: Scoped, by: Holder },
    /// Something happens to a semaphore.
    Semaphore { semaphore: Scoped, input: semaphore::Input },
    /// A holder gives its slots back or leaves the line, whichever it is.
    LetGoSlots { semaphore: Scoped, holder: Holder },

    // Queues, workers, schedules.
    /// Something happens to a queue's settings.
    Queue { queue: Scoped, input: queue::Input },
    /// Push an item.
    Push { queue: Scoped, item: Box<Pushed> },
    /// Push items, all of them or none.
    PushAll { queue: Scoped, items: Vec<Pushed> },
    /// Take the best items of a queue for an outside consumer.
    TakeMany { queue: Scoped, holder: Holder, max: u32 },
    /// Take the best item of a queue for an outside consumer.
    Take { queue: Scoped, holder: Holder },
    /// Something happens to an item.
    Item { item: ItemId, input: item::Input },
    /// Something happens to a worker.
    Worker { worker: Scoped, input: worker::Input },
    /// Let a worker take the best item of its queue, if it has room.
    Dispatch { worker: Scoped },
    /// An event that a worker listens to happened: let it look at its queue, wherever that is.
    Wake { worker: Scoped },
    /// An external queue was listed for a worker, or could not be.
    Polled { worker: Scoped, listed: Result<Vec<Pushed>, String> },
    /// An item of an external queue was taken there for its run, or could not be.
    TookOutside { worker: Scoped, item: ItemId, run: RunId, error: Option<String> },
    /// The run of a worker's item is terminal.
    SettleItem { item: ItemId, worker: Scoped, run: RunId, status: crate::run::Status, error: Option<String> },
    /// Something happens to a schedule.
    Schedule { schedule: Scoped, input: schedule::Input },

    // The rest.
    /// Something happens to an ingress key.
    Key { key: Scoped, input: crate::idempotency::Input },
    /// A reversal of an effect succeeded.
    Reverse { key: Scoped, receipt: ReceiptId, by: RunId },
    /// A step that takes an effect back has succeeded: what it took back may be done again.
    Reversed { run: RunId, step: StepId },
    /// Load a runbook under its hash.
    Load { hash: Digest, tenant: Name, runbook: Box<Runbook>, source: Option<String> },
    /// Make a loaded runbook the active version of its name, with everything it declares.
    Deploy(Box<Deploy>),
    /// Leave a name without an active version. What only that version declared ends, as with a version that lacks it.
    Withdraw { deployment: Scoped },
    /// Give the locks and semaphores of a loaded runbook their settings, where no deployed one has a say.
    Declare { tenant: Name, namespace: Name, hash: Digest },
    /// Say what a tenant may do at most, its share, whether whoever asked for something may approve it, and of what its people
    /// want to be told beside what all are told of.
    Tenant { tenant: Name, caps: Caps, weight: u32, self_approval: Option<bool>, notices: Vec<Notice> },
    /// A token of a tenant is made or revoked.
    Token { tenant: Name, input: crate::token::Input },
    /// A policy is in force for a tenant, with its text.
    LoadPolicy { tenant: Name, loaded: Box<PolicyLoaded> },
    /// Something happens to a workspace.
    Workspace { workspace: WorkspaceId, tenant: Name, input: workspace::Input },
    /// Something happens to a session.
    Session { session: SessionId, tenant: Name, input: workspace::session::Input },
    /// Record a seal over what changed.
    Seal(Box<SealCreated>),
    /// Seal with another key from now on.
    RotateKey(Box<KeyRotated>),
    /// What an attempt wrote could not all be kept.
    OutputLost { run: RunId, step: StepId, epoch: u64, bytes: u64, reason: String },
    /// Record that an evidence bundle was made.
    Exported(Box<EvidenceExported>),
    /// Record what retention took out of the log.
    Retained(Box<RetentionApplied>),
    /// Say what a stream came to, so that its earlier records may leave the log.
    Carry(StreamId),
    /// Locks and semaphores with epochs up to this one are about to leave the log.
    RaiseEpochs { floor: u64 },
    /// Record that a server opened the store.
    Started(Box<SystemStarted>),
    /// Record that it closes the store.
    Stopping,
    /// Record what a start found and took up.
    Recovered(Box<SystemRecovered>),
    /// Record that a private value is taken out of a record.
    Redacted(Box<ValueRedacted>),
    /// Look at the clock for a stream.
    Tick(StreamId),
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It is done, or was already.
    Done,
    /// The run that was made.
    Created(RunId),
    /// No run waits for the event: it is kept for one that will.
    SignalKept,
    /// The delivery was known: the first answer.
    Known { run: Option<RunId>, in_flight: bool },
    /// The lease.
    Leased(Box<Lease>),
    /// The effect had happened before: its result served, and nothing is to be done.
    Reused,
    /// What a lock says.
    Lock(lock::Reply),
    /// What a semaphore says.
    Semaphore(semaphore::Reply),
    /// What a queue says.
    Queue(queue::Reply),
    /// What an item says.
    Item(item::Reply),
    /// An item, pushed now or known before.
    Pushed { item: ItemId, known: bool },
    /// Items in the order they were given, each pushed now or known before.
    PushedAll(Vec<(ItemId, bool)>),
    /// Claims on items, best first.
    Taken(Vec<item::Grant>),
    /// What an approval says.
    Approval(approval::Reply),
    /// What an ingress key says.
    Key(crate::idempotency::Reply),
    /// There was nothing to take.
    Nothing,
}

/// What a command comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What becomes true.
    pub facts: Vec<Fact>,
    /// What is for the outside, after the commit.
    pub effects: Vec<Effect>,
    /// What follows, in the same turn.
    pub follow: Vec<Command>,
    /// The answer.
    pub reply: Reply,
}

impl Outcome {
    /// An answer that changes nothing.
    #[must_use]
    pub fn reply(reply: Reply) -> Outcome {
        Outcome { facts: Vec::new(), effects: Vec::new(), follow: Vec::new(), reply }
    }

    /// Adds what a machine says follows, as commands.
    pub(crate) fn follows(&mut self, follow: impl IntoIterator<Item = Follow>) {
        for follow in follow {
            let command = match follow {
                Follow::TakeLock { lock, holder, wait, oust, give_up_at } => {
                    if oust {
                        self.follow.push(Command::OustHolder { lock: lock.clone(), by: holder.clone() });
                    }
                    let ask = lock::Ask { holder, metadata: None, wait, give_up_at };
                    Command::Lock { lock, input: lock::Input::Acquire(ask) }
                }
                Follow::LetGoLock { lock, holder } => Command::LetGoLock { lock, holder },
                Follow::TakeSlots { semaphore, holder, slots, give_up_at } => {
                    let ask = semaphore::Ask { holder, weight: slots, wait: true, give_up_at };
                    Command::Semaphore { semaphore, input: semaphore::Input::Acquire(ask) }
                }
                Follow::LetGoSlots { semaphore, holder } => Command::LetGoSlots { semaphore, holder },
                Follow::Tell { run, told } => Command::Tell { run, told },
                Follow::Call { run, parent, step, pipeline, vars } => {
                    Command::Call { run, parent, step, pipeline, vars }
                }
                Follow::Cancel { run, reason } => {
                    let (initiator, reason) = (Initiator::System, Some(reason));
                    Command::Cancel { run, initiator, user: None, reason }
                }
                Follow::WakeWorker { worker } => Command::Dispatch { worker },
            };
            self.follow.push(command);
        }
    }

    /// Adds all that another one came to, but for its answer.
    pub(crate) fn join(&mut self, more: Outcome) {
        let Outcome { facts, effects, follow, reply: _ } = more;
        self.facts.extend(facts);
        self.effects.extend(effects);
        self.follow.extend(follow);
    }
}

/// Why a command comes to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// These streams have to be loaded first; then it is decided again.
    #[error("{} streams have to be loaded first", .0.len())]
    Need(Vec<StreamId>),
    /// It is refused.
    #[error("{code}: {message}")]
    Error {
        /// The stable code.
        code: Code,
        /// What happened, for people.
        message: String,
        /// When it is worth asking again, where time alone helps.
        retry_at: Option<Millis>,
    },
}

impl Refusal {
    /// A refusal with a text.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Refusal {
        Refusal::Error { code, message: message.into(), retry_at: None }
    }

    /// The stable code; none for streams that are missing.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Refusal::Need(_) => None,
            Refusal::Error { code, .. } => Some(*code),
        }
    }
}

impl From<caps::Error> for Refusal {
    fn from(error: caps::Error) -> Refusal {
        Refusal::Error { code: error.code(), message: error.to_string(), retry_at: error.retry_at() }
    }
}

/// Every machine's error is a refusal with its code.
macro_rules! refusals {
    ($( $error:ty ),+ $(,)?) => {$(
        impl From<$error> for Refusal {
            fn from(error: $error) -> Refusal {
                Refusal::new(error.code(), alloc::string::ToString::to_string(&error))
            }
        }
    )+};
}

refusals! {
    crate::run::Error, crate::step::Error, lock::Error, semaphore::Error, queue::Error, item::Error, worker::Error,
    schedule::Error, crate::idempotency::Error, receipt::Error, receipt::key::Error, workspace::Error, workspace::session::Error,
    crate::runbook::Error, task::Error, crate::signal::Error, crate::token::Error,
}
