//! The release: the one place where what was decided begins to happen.
//!
//! A [`Permit`] can only be made here, from a lease whose commit is durable. Whoever carries out an attempt asks for
//! one by its type, so nothing acts before the record that says it will.

use crate::port::{Fault, Outside};
use std::sync::Arc;
use windlass_core::effect::{Effect, Lease};
use windlass_core::id::{AttemptId, Name};
use windlass_core::runbook::{Pipeline, Runbook, StepDef};
use windlass_core::trace::Trace;
use windlass_core::turn::command::Refusal;

/// What an executor needs to know beside the lease.
#[derive(Clone, Debug)]
pub struct Work {
    /// The pinned runbook.
    pub runbook: Arc<Runbook>,
    /// Which of its pipelines.
    pub pipeline: Name,
    /// Where the run was started.
    pub cwd: String,
    /// Whose it is.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// The trace it belongs to.
    pub trace: Trace,
}

/// The permission to carry out one attempt.
#[derive(Clone, Debug)]
pub struct Permit {
    lease: Lease,
    work: Arc<Work>,
}

impl Permit {
    /// The lease.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The attempt that the lease is for.
    #[must_use]
    pub fn attempt(&self) -> AttemptId {
        AttemptId::new(self.lease.run, &self.lease.step, self.lease.epoch)
    }

    /// What else is to be known.
    #[must_use]
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// The pipeline's definition.
    #[must_use]
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.work.runbook.pipelines.get(&self.work.pipeline)
    }

    /// The step's definition.
    #[must_use]
    pub fn step(&self) -> Option<&StepDef> {
        self.pipeline().and_then(|pipeline| pipeline.node(self.lease.node))
    }
}

/// The permission to start a process, or to send a request. Whoever does either asks for one by its type: the one function
/// that starts processes (`Shell::run`) and the one that sends requests (`Wire::send`) take it. It comes from a lease that is
/// durable, or from a policy's yes that is. What Windlass itself has to do names its reason ([`Own`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leave(());

/// What Windlass does by itself and not for a runbook. `xtask tidy` lists the one file that each is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    /// It shows people an approval or a message, whose notice is on record.
    Card,
    /// It carries out a lease that another process has put on record.
    Elsewhere,
}

impl Permit {
    /// What a lease permits.
    #[must_use]
    pub fn leave(&self) -> Leave {
        Leave(())
    }
}

impl Leave {
    /// What policy permits. The caller has seen that its yes is durable.
    pub(crate) fn recorded() -> Leave {
        Leave(())
    }

    /// What Windlass has to do by itself.
    #[must_use]
    pub fn own(_: Own) -> Leave {
        Leave(())
    }
}

/// What may happen now.
#[derive(Clone, Debug)]
pub enum Released {
    /// Carry out an attempt.
    Execute(Permit),
    /// Everything else.
    Effect(Effect),
}

/// What an executor elsewhere hears: what it may carry out from now on.
pub type Granted = Box<dyn FnOnce(Result<Vec<Permit>, Refusal>) + Send>;

/// Something to tell a caller when the batch is durable, or that it failed.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), &Fault>) + Send>;

/// An attempt that is permitted once its lease is durable.
pub(crate) type Due = (Lease, Arc<Work>);

/// What waits for a batch.
#[derive(Default)]
pub(crate) struct Waiting {
    pub(crate) answers: Vec<Answer>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) attempts: Vec<Due>,
    /// What executors elsewhere get.
    pub(crate) grants: Vec<(Vec<Due>, Granted)>,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.answers.is_empty()
            && self.effects.is_empty()
            && self.attempts.is_empty()
            && self.grants.is_empty()
    }

    /// The batch is durable: callers hear of it and effects begin. Or it failed: callers hear that, and nothing begins.
    pub(crate) fn release(self, result: Result<(), &Fault>, outside: &dyn Outside) {
        if result.is_ok() {
            for effect in self.effects {
                outside.start(Released::Effect(effect));
            }
            for (lease, work) in self.attempts {
                outside.start(Released::Execute(Permit { lease, work }));
            }
        }
        for (hand, answer) in self.grants {
            answer(match result {
                Ok(()) => Ok(hand.into_iter().map(|(lease, work)| Permit { lease, work }).collect()),
                Err(fault) => Err(Refusal::new(fault.code(), fault.to_string())),
            });
        }
        let answers = self.answers;
        if answers.len() < 2 {
            return answers.into_iter().for_each(|answer| answer(result));
        }
        let result = result.map_err(Clone::clone);
        outside.tell(Box::new(move || {
            for answer in answers {
                answer(result.as_ref().map(|&()| ()));
            }
        }));
    }
}
