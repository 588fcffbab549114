//! Faults stop: executors answer, policy allows, humans approve, events come, outsiders let go, time passes. Then every
//! run must end.

use crate::properties::chance::{answer, found, is_guarded, tick, waits_for};
use crate::properties::laws::{Watched, runs};
use crate::world::{name, scoped};
use serde_json::json;
use windlass_core::approval;
use windlass_core::attempt::Report;
use windlass_core::budget::Amount;
use windlass_core::id::{Holder, RunId};
use windlass_core::policy::Verdict;
use windlass_core::step::{Resolution, Status, Step, Wait};
use windlass_core::time::Span;
use windlass_core::turn::command::Command;
use windlass_core::{lock, semaphore};

/// The longest that it may take. What a case can build waits for some hours at most, and a round is two minutes.
const ROUNDS_MAX: u32 = 400;

pub fn until_all_have_ended(watched: &mut Watched) {
    for _ in 0..ROUNDS_MAX {
        let live: Vec<RunId> =
            runs(&watched.world.state).filter(|r| !r.is_terminal()).map(|r| r.id()).collect();
        if live.is_empty() {
            return;
        }
        outsiders_let_go(watched);
        for run in live {
            help(watched, run);
        }
        watched.world.at = watched.world.at + Span::mins(2);
        tick(watched);
    }
    let stuck: Vec<String> = runs(&watched.world.state)
        .filter(|run| !run.is_terminal())
        .map(|run| {
            let live: Vec<String> = run
                .live()
                .map(|step| format!("{} {} {:?} {:?}", step.id, step.status, step.waiting, step.group))
                .collect();
            format!("{} {} {:?} {:?}: {live:#?}", run.id(), run.status(), run.reason(), run.root)
        })
        .collect();
    panic!("these never end: {stuck:#?}");
}

fn outsiders_let_go(watched: &mut Watched) {
    for who in ["otto", "uma"] {
        let holder = Holder::Outside(name(who));
        for lock in ["l0", "l1", "whole"] {
            let _ = watched.send(&Command::LetGoLock { lock: scoped(lock), holder: holder.clone() });
            let input = lock::Input::Abandon { holder: holder.clone() };
            let _ = watched.send(&Command::Lock { lock: scoped(lock), input });
        }
        let semaphore = scoped("builders");
        for input in [
            semaphore::Input::Abandon { holder: holder.clone() },
            semaphore::Input::Release { holder: holder.clone(), epoch: None },
        ] {
            let _ = watched.send(&Command::Semaphore { semaphore: semaphore.clone(), input });
        }
    }
}

/// Gives every step of a run what it waits for.
fn help(watched: &mut Watched, run: RunId) {
    let known = watched.world.run(run);
    if known.suspended {
        let _ = watched.send(&Command::Resume { run, message: None, vars: None });
    }
    let live: Vec<Step> = watched.world.run(run).live().cloned().collect();
    for step in live {
        for command in wanted(watched, run, &step) {
            let _ = watched.send(&command);
        }
    }
}

fn wanted(watched: &Watched, run: RunId, step: &Step) -> Vec<Command> {
    let id = step.id.clone();
    match step.status {
        Status::Ready => vec![Command::Lease {
            run,
            step: id,
            owner: name("healer"),
            agent: None,
            reserve: Amount::default(),
        }],
        // A child run ends by itself, and a group when its members have.
        Status::Running if step.child().is_some() || step.group.is_some() => Vec::new(),
        Status::Running => {
            let report = Report::Done { output: Some(json!({ "n": 1 })), exit_code: Some(0.into()) };
            vec![Command::Report { run, step: id, epoch: step.epoch, report, receipt: None }]
        }
        Status::OutcomeUnknown => vec![Command::Resolve {
            run,
            step: id,
            resolution: Resolution::Done,
            probed: true,
            reason: None,
            output: None,
        }],
        Status::WaitingExternal if waits_for(step, Wait::Policy) => {
            answer(watched, run, &id, Verdict::Allow).into_iter().collect()
        }
        Status::WaitingExternal if waits_for(step, Wait::Event) => {
            vec![Command::Signal { run, name: name("go"), key: None, data: json!(1), event_id: None }]
        }
        Status::WaitingExternal if is_guarded(step) => {
            vec![Command::Guarded { run, step: id, inputs: found(Some(true)) }]
        }
        Status::WaitingApproval if waits_for(step, Wait::Budget) => {
            vec![Command::Raise { run, to: Amount { tokens: 1_000_000, ..Amount::default() } }]
        }
        Status::WaitingApproval => approvals(watched, run, step),
        // A lock, slots, a time or a back-off: they come by themselves.
        Status::WaitingExternal | Status::FailedRetryable => Vec::new(),
        Status::Pending | Status::Succeeded | Status::Skipped | Status::Failed | Status::Cancelled => {
            Vec::new()
        }
    }
}

fn approvals(watched: &Watched, run: RunId, step: &Step) -> Vec<Command> {
    let open = |a: &&approval::Approval| a.step == step.id && a.status == approval::Status::Requested;
    let yes = |a: &approval::Approval| {
        let attempt = approval::Attempt {
            decision: approval::Verdict::Approved,
            by: name("bob"),
            human: true,
            groups: Vec::new(),
            action_hash: a.action_hash,
            channel: approval::Channel::Cli,
            reason: None,
            card: None,
        };
        Command::Decide { run, approval: a.id, input: approval::Input::Decide(attempt) }
    };
    watched.world.run(run).rare().approvals.values().filter(open).map(yes).collect()
}
