//! Holds that were taken away: what a run and its steps had is looked at once more before anything of it acts.

use super::{View, lock_of, semaphore_of};
use crate::id::Name;
use crate::run::Run;
use crate::step::{Gate, Step};
use crate::turn::calls;
use crate::turn::command::Refusal;

/// The lock of a run that begins with one, where it was taken away and the run was not stopped for it.
pub(super) fn lost_own<'a>(view: &dyn View, run: &'a Run) -> Result<Option<&'a Name>, Refusal> {
    let Some(name) = run.born.lock.as_ref().filter(|_| run.stopping.is_none()) else { return Ok(None) };
    let held = match lock_of(view, &run.scoped(name))? {
        Some(lock) if lock.holder() == Some(&run.holder()) => true,
        Some(lock) => calls::lock(lock, &calls::above(view, run.id())?).is_some(),
        None => false,
    };
    Ok((!held).then_some(name))
}

/// The first hold that was taken from a step since it passed the gate. A step that runs hears of it and fails; one that
/// does not act yet, or not at the moment, is asked here, before it does.
pub(super) fn lost_hold<'a>(view: &dyn View, run: &Run, step: &'a Step) -> Result<Option<&'a Gate>, Refusal> {
    let holder = step.holder(run.id());
    for gate in step.held() {
        let held = match gate {
            Gate::Lock { name, .. } => match lock_of(view, &run.scoped(name))? {
                Some(lock) if lock.holder() == Some(&holder) => true,
                Some(lock) => calls::lock(lock, &calls::above(view, run.id())?).is_some(),
                None => false,
            },
            Gate::Slots { name, slots } => match semaphore_of(view, &run.scoped(name))? {
                Some(known) if known.holders.contains_key(&holder) => true,
                Some(known) => calls::slots(known, *slots, &calls::above(view, run.id())?).is_some(),
                None => false,
            },
            Gate::Guard => true,
        };
        if !held {
            return Ok(Some(gate));
        }
    }
    Ok(None)
}
