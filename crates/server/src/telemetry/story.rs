//! What is told of a batch: the log events that the design names, and the beginnings and ends of attempts.

use std::collections::HashMap;
use std::sync::Arc;
use windlass_core::event::Event;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::run::{Actor, Home, Initiator, Status};
use windlass_core::time::Millis;
use windlass_core::trace::Trace;
use windlass_core::turn::index::Move;
use windlass_core::turn::state::State;

/// One thing that happened to a run.
#[derive(Clone, Debug)]
pub struct Line {
    pub(super) at: Millis,
    pub(super) run: RunId,
    pub(super) trace: Trace,
    pub(super) home: Arc<Home>,
    pub(super) what: What,
}

/// What happened.
#[derive(Clone, Debug)]
pub(super) enum What {
    Created { idempotency_key: Option<Name>, source: &'static str },
    Moved { from: Status, to: Status, initiator: &'static str },
    Checkpoint { step: Option<StepId>, resumable: bool },
    Ended { status: Status, duration_ms: u64, created_at: Millis },
    Orphaned { last_heartbeat: Option<Millis> },
    AttemptBegan { step: StepId, epoch: u64 },
    AttemptEnded { step: StepId, epoch: u64, outcome: &'static str, duration_ms: Option<u64> },
}

/// Puts together what is told of a batch.
#[derive(Default)]
pub struct Story {
    lines: Vec<Line>,
    /// Who caused the last fact of each run.
    by: HashMap<RunId, Initiator>,
}

impl Story {
    /// Takes what is to be told from a fact.
    pub fn see(&mut self, state: &State, event: &Event, by: &Actor, at: Millis) {
        let Some((run, what)) = what(event) else { return };
        self.by.insert(run, by.initiator);
        if let Some(what) = what {
            self.push(state, run, at, what);
        }
    }

    /// Tells how runs moved.
    pub fn moved(&mut self, state: &State, moves: &[Move], at: Millis) {
        for one in moves {
            // A run that is new was told of by its creation; one that ended long ago was only read back.
            let Some(from) = one.from else { continue };
            let initiator = self.by.get(&one.run).copied().unwrap_or(Initiator::System).as_str();
            self.push(state, one.run, at, What::Moved { from, to: one.to, initiator });
        }
    }

    fn push(&mut self, state: &State, run: RunId, at: Millis, mut what: What) {
        let Some(found) = state.run(run) else { return };
        if let What::Ended { created_at, .. } = &mut what {
            *created_at = found.born.created_at;
        }
        let (trace, home) = (found.born.trace(), found.born.home.clone());
        self.lines.push(Line { at, run, trace, home, what });
    }

    /// All of it. What happened to a run comes before what became of it.
    #[must_use]
    pub fn into_lines(mut self) -> Vec<Line> {
        // An end is told after the transition that it is.
        self.lines.sort_by_key(|line| matches!(line.what, What::Ended { .. }));
        self.lines
    }
}

/// The run that a fact is about, and what is told of it.
fn what(event: &Event) -> Option<(RunId, Option<What>)> {
    let ended = |status, duration_ms| Some(What::Ended { status, duration_ms, created_at: Millis(0) });
    let attempt = |step: &StepId, epoch: u64, outcome, duration_ms| {
        Some(What::AttemptEnded { step: step.clone(), epoch, outcome, duration_ms })
    };
    Some(match event {
        Event::PipelineCreated(e) => {
            let (idempotency_key, source) = (e.trigger.key.clone(), e.trigger.source.as_str());
            (e.id, Some(What::Created { idempotency_key, source }))
        }
        Event::PipelineStarted(e) => (e.id, None),
        Event::PipelineSuspended(e) => (e.id, None),
        Event::PipelineResumed(e) => (e.id, None),
        Event::PipelineCancelling(e) => (e.id, None),
        Event::PipelineCompleted(e) => (e.id, ended(Status::Completed, e.duration_ms)),
        Event::PipelineFailed(e) => (e.id, ended(Status::Failed, e.duration_ms)),
        Event::PipelineCancelled(e) => (e.id, ended(Status::Cancelled, e.duration_ms)),
        Event::PipelineOrphaned(e) => (e.id, Some(What::Orphaned { last_heartbeat: e.last_heartbeat_at })),
        Event::CheckpointSaved(e) => {
            (e.pipeline_id, Some(What::Checkpoint { step: e.step.clone(), resumable: e.resumable }))
        }
        Event::ApprovalDecided(e) => (e.pipeline_id, None),
        Event::SignalReceived(e) => (e.pipeline_id, None),
        Event::StepWaiting(e) => (e.pipeline_id, None),
        Event::StepStarted(e) => {
            (e.pipeline_id, Some(What::AttemptBegan { step: e.step.clone(), epoch: e.epoch }))
        }
        Event::StepCompleted(e) => {
            (e.pipeline_id, attempt(&e.step, e.epoch, "succeeded", Some(e.duration_ms)))
        }
        Event::StepFailed(e) => (e.pipeline_id, attempt(&e.step, e.epoch, "failed", Some(e.duration_ms))),
        Event::StepRetrying(e) => (e.pipeline_id, attempt(&e.step, e.epoch, "failed_retryable", None)),
        Event::StepReturned(e) => (e.pipeline_id, attempt(&e.step, e.epoch, "returned", None)),
        Event::StepExpired(e) => (e.pipeline_id, attempt(&e.step, e.epoch, "expired", None)),
        Event::StepUnknown(e) => (e.pipeline_id, attempt(&e.step, e.epoch, "outcome_unknown", None)),
        Event::StepCancelled(e) => {
            (e.pipeline_id, attempt(&e.step, e.epoch, "cancelled", Some(e.duration_ms)))
        }
        // tidy: the rest is in the log of facts, for whoever wants all of it.
        _ => return None,
    })
}
