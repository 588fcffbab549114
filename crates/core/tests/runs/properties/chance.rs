//! Random commands: executors, humans, policy, outsiders, the clock, and garbage.

use crate::properties::laws::{Watched, jobs};
use crate::world::{failure, name, scoped};
use proptest::prelude::*;
use serde_json::{Value, json};
use windlass_core::approval;
use windlass_core::attempt::Report;
use windlass_core::budget::Amount;
use windlass_core::digest::Digest;
use windlass_core::event::{CheckpointSaved, PolicyDecided};
use windlass_core::guard::{FileInfo, GuardInputs};
use windlass_core::id::{ApprovalId, Holder, ItemId, ReceiptId, RunId, StepId};
use windlass_core::policy::Verdict;
use windlass_core::receipt::Outcome;
use windlass_core::run::{Initiator, Run};
use windlass_core::step::{Resolution, Step, Wait};
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Pushed, Receipted};
use windlass_core::{item, lock, semaphore};

/// A command as a few numbers: what kind, about which of the things there are, and how.
#[derive(Clone, Debug)]
pub struct Op {
    kind: Kind,
    which: u8,
    how: u8,
    more: u8,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Lease,
    Report,
    Late,
    Time,
    Policy,
    PolicyMoves,
    Human,
    Signal,
    Guard,
    Cancel,
    Suspend,
    Resume,
    Resolve,
    Descend,
    Lock,
    Slots,
    Push,
    Take,
    Claim,
    Checkpoint,
    Raise,
    Garbage,
}

pub fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        12 => Just(Kind::Lease),
        12 => Just(Kind::Report),
        2 => Just(Kind::Late),
        5 => Just(Kind::Time),
        8 => Just(Kind::Policy),
        1 => Just(Kind::PolicyMoves),
        5 => Just(Kind::Human),
        3 => Just(Kind::Signal),
        3 => Just(Kind::Guard),
        1 => Just(Kind::Cancel),
        1 => Just(Kind::Suspend),
        1 => Just(Kind::Resume),
        2 => Just(Kind::Resolve),
        1 => Just(Kind::Descend),
        3 => Just(Kind::Lock),
        3 => Just(Kind::Slots),
        2 => Just(Kind::Push),
        1 => Just(Kind::Take),
        1 => Just(Kind::Claim),
        1 => Just(Kind::Checkpoint),
        1 => Just(Kind::Raise),
        2 => Just(Kind::Garbage),
    ];
    (kind, any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(kind, which, how, more)| Op {
        kind,
        which,
        how,
        more,
    })
}

/// One of a list, by a number.
fn pick<T: Clone>(list: &[T], which: u8) -> Option<T> {
    (!list.is_empty()).then(|| list[usize::from(which) % list.len()].clone())
}

/// Every step of every run that fits.
fn steps(watched: &Watched, fits: impl Fn(&Run, &Step) -> bool) -> Vec<(RunId, StepId)> {
    crate::properties::laws::runs(&watched.world.state)
        .flat_map(|run| run.steps.iter().map(move |step| (run, step)))
        .filter(|(run, step)| fits(run, step))
        .map(|(run, step)| (run.id(), step.id.clone()))
        .collect()
}

/// Plays a command. Most are refused now and then; that is what they are for.
pub fn play(watched: &mut Watched, op: &Op) {
    let run = pick(&watched.runs(), op.which).unwrap_or(RunId(1));
    let command = match op.kind {
        Kind::Lease => lease(watched, op),
        Kind::Report => report(watched, op),
        Kind::Late => late(watched, op),
        Kind::Time => return time(watched, op),
        Kind::Policy => policy(watched, op),
        Kind::PolicyMoves => {
            watched.world.policy = Digest([op.how % 3; 32]);
            None
        }
        Kind::Human => human(watched, op),
        Kind::Signal => {
            let event = if op.how.is_multiple_of(4) { "stop" } else { "go" };
            Some(Command::Signal { run, name: name(event), key: None, data: json!(op.more), event_id: None })
        }
        Kind::Guard => guard(watched, op),
        Kind::Cancel => {
            let (initiator, user) = (Initiator::User, Some(name("ann")));
            Some(Command::Cancel { run, initiator, user, reason: None })
        }
        Kind::Suspend => Some(Command::Suspend { run, reason: None }),
        Kind::Resume => {
            let vars = op.how.is_multiple_of(3).then(|| json!({ "x": op.more }));
            Some(Command::Resume { run, message: None, vars })
        }
        Kind::Resolve => resolve(watched, op),
        Kind::Descend => descend(watched, op, run),
        Kind::Lock => outsider_locks(op),
        Kind::Slots => outsider_slots(op),
        Kind::Push => push(watched, op),
        Kind::Take => Some(Command::Take { queue: jobs(), holder: Holder::Outside(name("otto")) }),
        Kind::Claim => claim(watched, op),
        Kind::Checkpoint => checkpoint(watched, op),
        Kind::Raise => {
            let to = Amount { tokens: 100 + u64::from(op.how), ..Amount::default() };
            Some(Command::Raise { run, to })
        }
        Kind::Garbage => Some(garbage(op, run)),
    };
    if let Some(command) = command {
        let _ = watched.send(&command);
    }
}

fn lease(watched: &Watched, op: &Op) -> Option<Command> {
    // Mostly what can be leased; now and then anything.
    let open = if op.how.is_multiple_of(8) {
        steps(watched, |_, _| true)
    } else {
        steps(watched, |run, step| run.leasable().any(|open| open.id == step.id))
    };
    let (run, step) = pick(&open, op.which)?;
    let owner = name(if op.more.is_multiple_of(2) { "ex1" } else { "ex2" });
    let reserve = Amount { tokens: u64::from(op.more) / 4, ..Amount::default() };
    Some(Command::Lease { run, step, owner, agent: None, reserve })
}

/// An executor says what became of a lease it has; sometimes twice, and sometimes under an epoch it made up.
fn report(watched: &mut Watched, op: &Op) -> Option<Command> {
    if watched.leases.is_empty() {
        return None;
    }
    let index = usize::from(op.which) % watched.leases.len();
    let (run, step, epoch) = watched.leases[index].clone();
    if !op.more.is_multiple_of(4) {
        watched.leases.remove(index);
    }
    let epoch = if op.more == 255 { epoch + 1 } else { epoch };
    Some(told(watched, run, step, epoch, op))
}

fn told(watched: &mut Watched, run: RunId, step: StepId, epoch: u64, op: &Op) -> Command {
    let failed = |retryable| Report::Failed {
        failure: failure("no"),
        retryable,
        exit_code: Some(1.into()),
        signal: None,
    };
    let report = match op.how % 10 {
        0..=4 => Report::Done { output: Some(json!({ "n": op.more })), exit_code: Some(0.into()) },
        5 if op.more.is_multiple_of(2) => {
            Report::Deferred { failure: failure("later"), after: Span::secs(u64::from(op.more)) }
        }
        5 => failed(true),
        6 => failed(false),
        7 => Report::Stopped,
        8 if op.more.is_multiple_of(2) => {
            Report::Postponed { reason: "no room".into(), after: Span::secs(u64::from(op.more)) }
        }
        8 => Report::Returned { reason: None },
        _ => Report::Lost { last_seen: None },
    };
    let status = match &report {
        Report::Done { .. } => Some(Outcome::Succeeded),
        Report::Failed { .. } | Report::Deferred { .. } => Some(Outcome::Failed),
        Report::Stopped | Report::Returned { .. } | Report::Postponed { .. } | Report::Lost { .. } => None,
    };
    let id = ReceiptId(watched.world.id());
    let receipt = status.filter(|_| !op.more.is_multiple_of(3)).map(|status| {
        let (reversible, reverse, request, response) = (false, None, None, Some(json!({ "n": 1 })));
        Box::new(Receipted { id, status, reversible, reverse, request, response })
    });
    Command::Report { run, step, epoch, report, receipt }
}

/// A report about an attempt that was overtaken.
fn late(watched: &mut Watched, op: &Op) -> Option<Command> {
    let (run, step) = pick(&steps(watched, |_, step| step.epoch > 1), op.which)?;
    let epoch = watched.world.run(run).step(&step)?.epoch - 1;
    Some(told(watched, run, step, epoch, op))
}

/// Time passes, and whoever is due looks at the clock; leases that nobody extended run out.
fn time(watched: &mut Watched, op: &Op) {
    let span = match op.how % 4 {
        0 => Span::secs(u64::from(op.more) % 60),
        1 => Span::mins(2),
        2 => Span::mins(11),
        _ => Span::hours(1),
    };
    watched.world.at = watched.world.at + span;
    tick(watched);
    if op.which.is_multiple_of(2) {
        let at = watched.world.at;
        let due: Vec<StreamId> = watched.world.state.indexes().leases_due(at).cloned().collect();
        for stream in due {
            let StreamId::Run(run) = stream else { continue };
            let over = |step: &Step| {
                let ours = step.child().is_none();
                ours && step.lease.as_ref().is_some_and(|lease| lease.expires_at <= at)
            };
            let lost: Vec<(StepId, u64)> =
                watched.world.run(run).live().filter(|s| over(s)).map(|s| (s.id.clone(), s.epoch)).collect();
            for (step, epoch) in lost {
                let report = Report::Lost { last_seen: None };
                let _ = watched.send(&Command::Report { run, step, epoch, report, receipt: None });
            }
        }
    }
}

/// Every stream that is due looks at the clock once.
pub fn tick(watched: &mut Watched) {
    let at = watched.world.at;
    let due: Vec<StreamId> = watched.world.state.indexes().due(at).cloned().collect();
    for stream in due {
        let _ = watched.send(&Command::Tick(stream));
    }
    let expired = watched.world.state.indexes().queue(&jobs()).map(|q| q.expired(10, at)).unwrap_or_default();
    for item in expired {
        if let Some(epoch) = epoch_of(watched, item) {
            let input = item::Input::Expire { epoch, last_seen: at };
            let _ = watched.send(&Command::Item { item, input });
        }
    }
}

fn epoch_of(watched: &Watched, item: ItemId) -> Option<u64> {
    match watched.world.state.stream(&StreamId::Item(item)).map(|stream| &stream.body) {
        Some(windlass_core::turn::state::Body::Item(item)) => item.body().map(|body| body.epoch),
        Some(_) | None => None,
    }
}

pub fn waits_for(step: &Step, reason: Wait) -> bool {
    step.waiting.as_ref().is_some_and(|waiting| waiting.reason == reason)
}

fn policy(watched: &Watched, op: &Op) -> Option<Command> {
    let (run, step) = pick(&steps(watched, |_, step| waits_for(step, Wait::Policy)), op.which)?;
    let verdict = match op.how % 8 {
        0 => Verdict::Deny,
        1 | 2 => Verdict::NeedsApproval,
        _ => Verdict::Allow,
    };
    answer(watched, run, &step, verdict)
}

/// What policy says of a step: of a shell step, for the whole run.
pub fn answer(watched: &Watched, run: RunId, step: &StepId, verdict: Verdict) -> Option<Command> {
    let step = watched.world.run(run).step(step)?;
    let shared = step.tool.as_str() == "shell";
    let decided = PolicyDecided {
        pipeline_id: run,
        step: (!shared).then(|| step.id.clone()),
        tool: step.tool.clone(),
        action_hash: step.action_hash().copied(),
        verdict,
        ..crate::world::allow_shell(watched.world.policy)
    };
    Some(Command::PolicyDecided(Box::new(decided)))
}

fn human(watched: &Watched, op: &Op) -> Option<Command> {
    let all: Vec<(RunId, ApprovalId, Digest)> = crate::properties::laws::runs(&watched.world.state)
        .flat_map(|run| run.rare().approvals.values())
        .map(|approval| (approval.run, approval.id, approval.action_hash))
        .collect();
    let (run, approval, hash) = pick(&all, op.which)?;
    let input = match op.how % 8 {
        0 => approval::Input::Void { reason: "changed".to_string() },
        1 => approval::Input::Expire,
        how => approval::Input::Decide(approval::Attempt {
            decision: if how < 4 { approval::Verdict::Rejected } else { approval::Verdict::Approved },
            by: name(if op.more.is_multiple_of(2) { "ann" } else { "bob" }),
            human: !op.more.is_multiple_of(5),
            groups: Vec::new(),
            action_hash: if op.more.is_multiple_of(7) { Digest([9; 32]) } else { hash },
            channel: approval::Channel::Cli,
            reason: None,
            card: None,
        }),
    };
    Some(Command::Decide { run, approval, input })
}

/// What the outside finds for a guard: a file that is there, that is not, or nobody could look.
pub fn found(exists: Option<bool>) -> Box<GuardInputs> {
    let mut inputs = GuardInputs::default();
    if let Some(exists) = exists {
        inputs.files.insert("go".to_string(), FileInfo { exists, ..FileInfo::default() });
    }
    Box::new(inputs)
}

pub fn is_guarded(step: &Step) -> bool {
    waits_for(step, Wait::Guard) || waits_for(step, Wait::GuardAfter)
}

fn guard(watched: &Watched, op: &Op) -> Option<Command> {
    let (run, step) = pick(&steps(watched, |_, step| is_guarded(step)), op.which)?;
    let inputs = found([Some(true), Some(false), None][usize::from(op.how % 3)]);
    Some(Command::Guarded { run, step, inputs })
}

fn resolve(watched: &Watched, op: &Op) -> Option<Command> {
    let unknown = |step: &Step| step.status == windlass_core::step::Status::OutcomeUnknown;
    let (run, step) =
        pick(&steps(watched, |_, step| unknown(step) || waits_for(step, Wait::Budget)), op.which)?;
    let resolution = [Resolution::Done, Resolution::Retry, Resolution::Fail][usize::from(op.how % 3)];
    let probed = op.more.is_multiple_of(2);
    Some(Command::Resolve { run, step, resolution, probed, reason: None, output: None })
}

fn descend(watched: &mut Watched, op: &Op, run: RunId) -> Option<Command> {
    let new = RunId(watched.world.id());
    let list: Vec<StepId> = watched.world.run(run).steps.iter().map(|step| step.id.clone()).collect();
    let from = if op.how.is_multiple_of(2) { None } else { pick(&list, op.more) };
    Some(Command::Descend { run, new, from, runbook: None })
}

fn outsider_locks(op: &Op) -> Option<Command> {
    let holder = Holder::Outside(name(if op.more.is_multiple_of(2) { "otto" } else { "uma" }));
    let input = match op.how % 6 {
        0 | 1 => {
            lock::Input::Acquire(lock::Ask { holder, metadata: None, wait: op.more > 128, give_up_at: None })
        }
        2 => lock::Input::Release { holder, epoch: None },
        3 => lock::Input::Abandon { holder },
        4 => lock::Input::Break { epoch: None },
        _ => lock::Input::Heartbeat { holder, epoch: u64::from(op.more % 4) },
    };
    let lock = scoped(["l0", "l1", "whole"][usize::from(op.which % 3)]);
    Some(Command::Lock { lock, input })
}

fn outsider_slots(op: &Op) -> Option<Command> {
    let holder = Holder::Outside(name(if op.more.is_multiple_of(2) { "otto" } else { "uma" }));
    let input = match op.how % 5 {
        0 | 1 => {
            let (weight, wait) = (1 + u32::from(op.which % 2), op.more > 128);
            semaphore::Input::Acquire(semaphore::Ask { holder, weight, wait, give_up_at: None })
        }
        2 => semaphore::Input::Release { holder, epoch: None },
        3 => semaphore::Input::Abandon { holder },
        _ => semaphore::Input::Break { holder, epoch: None },
    };
    Some(Command::Semaphore { semaphore: scoped("builders"), input })
}

fn push(watched: &mut Watched, op: &Op) -> Option<Command> {
    let id = ItemId(watched.world.id());
    watched.items.push(id);
    // What is no map cannot become a run's variables.
    let data = if op.how.is_multiple_of(5) { json!("odd") } else { json!({ "n": op.how }) };
    let not_before = op.more.is_multiple_of(4).then(|| watched.world.at + Span::mins(1));
    let priority = i32::from(op.which % 3);
    let item = Box::new(Pushed { id, data, priority, not_before, dedupe: None, from: None });
    Some(Command::Push { queue: jobs(), item })
}

/// Somebody does something to an item, with the right epoch or another.
fn claim(watched: &Watched, op: &Op) -> Option<Command> {
    let item = pick(&watched.items, op.which)?;
    let epoch = epoch_of(watched, item)? + u64::from(op.more.is_multiple_of(4));
    let input = match op.how % 6 {
        0 => item::Input::Complete { epoch },
        1 => item::Input::Fail { epoch, error: "no".to_string(), retryable: op.more > 128 },
        2 => item::Input::Return { epoch },
        3 => item::Input::Retry { data: None },
        4 => item::Input::Drop { reason: None },
        _ => item::Input::Heartbeat { epoch },
    };
    Some(Command::Item { item, input })
}

fn checkpoint(watched: &Watched, op: &Op) -> Option<Command> {
    let (run, step) = pick(&steps(watched, |_, step| step.lease.is_some()), op.which)?;
    let epoch = watched.world.run(run).step(&step)?.epoch;
    Some(Command::Checkpoint(Box::new(CheckpointSaved {
        pipeline_id: run,
        step: Some(step),
        epoch: Some(epoch),
        resumable: op.how.is_multiple_of(2),
        idempotent: op.more.is_multiple_of(2),
        tokens_input: None,
        tokens_output: None,
        message: None,
        data: Some(windlass_core::private::Private::New(json!({ "at": op.more }))),
    })))
}

/// What names nothing, or not what it should.
fn garbage(op: &Op, known: RunId) -> Command {
    let run = if op.more.is_multiple_of(2) { known } else { RunId(u128::from(op.which)) };
    let step = name(if op.how > 128 { "s1" } else { "nowhere" });
    let epoch = u64::from(op.more);
    match op.how % 8 {
        0 => Command::Report { run, step, epoch, report: Report::Stopped, receipt: None },
        1 => Command::Lease { run, step, owner: name("ex9"), agent: None, reserve: Amount::default() },
        2 => Command::Tick(StreamId::Run(run)),
        3 => Command::Begin(run),
        4 => Command::Advance(run),
        5 => Command::Resume { run, message: None, vars: Some(Value::Null) },
        6 => Command::Guarded { run, step, inputs: found(None) },
        _ => Command::Orphan { run, last_heartbeat_at: None },
    }
}
