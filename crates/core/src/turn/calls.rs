//! Chains of calls: what a called run has from the runs above it.
//!
//! Locks and slots are re-entrant along the chain. What an ancestor holds (the caller's run, the step that calls, a group
//! around that step, and so on upwards) the called run and its steps have too: they pass, and take nothing. The hold stays
//! the ancestor's. It is released once, when the ancestor ends, which is after everything that it called. For slots the
//! ancestor must hold at least as many as are asked for; those below it share them and are not counted one by one.

use crate::id::{Holder, RunId};
use crate::lock::Lock;
use crate::pipeline;
use crate::run::Run;
use crate::runbook::CALLS_MAX;
use crate::semaphore::Semaphore;
use crate::turn::command::Refusal;
use crate::turn::{View, run_of};
use alloc::vec::Vec;

/// Everybody above a run on its chain of calls, from the inside out. A run that no other called has nobody above it.
pub(crate) fn above(view: &dyn View, run: RunId) -> Result<Vec<Holder>, Refusal> {
    let mut out = Vec::new();
    let mut next = run_of(view, &run)?;
    for _ in 0..=CALLS_MAX {
        let Some((run, parent)) = next.and_then(|run| Some((run, run.born.parent.as_deref()?.0))) else {
            break;
        };
        next = run_of(view, &parent)?;
        if let Some(caller) = next {
            callers(run, caller, &mut out);
        }
    }
    Ok(out)
}

/// [`above`] for a reader that has every run at hand.
pub(crate) fn above_in<'a>(find: impl Fn(RunId) -> Option<&'a Run>, run: &'a Run) -> Vec<Holder> {
    let (mut out, mut next) = (Vec::new(), Some(run));
    for _ in 0..=CALLS_MAX {
        let Some(run) = next else { break };
        next = run.born.parent.as_deref().and_then(|(parent, _)| find(*parent));
        if let Some(caller) = next {
            callers(run, caller, &mut out);
        }
    }
    out
}

/// The holders of one run that a called one has things from: the step that calls, the groups around it, the run.
fn callers(run: &Run, caller: &Run, out: &mut Vec<Holder>) {
    if let Some(step) = run.born.parent.as_deref().and_then(|(_, step)| caller.step(step)) {
        out.push(step.holder(caller.id()));
        out.extend(pipeline::around(caller, step).map(|(_, group)| group.holder(caller.id())));
    }
    out.push(caller.holder());
}

/// The epoch under which one of these holds a lock.
pub(crate) fn lock(lock: &Lock, above: &[Holder]) -> Option<u64> {
    lock.hold().filter(|hold| above.contains(&hold.holder)).map(|hold| hold.epoch)
}

/// The epoch under which one of these holds at least so many slots.
pub(crate) fn slots(semaphore: &Semaphore, weight: u32, above: &[Holder]) -> Option<u64> {
    let enough = above.iter().filter_map(|holder| semaphore.holders.get(holder));
    enough.filter(|hold| hold.weight >= weight).map(|hold| hold.epoch).next()
}
