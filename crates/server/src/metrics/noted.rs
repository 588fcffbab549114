//! What the loop notes of a batch: numbers, no names.

use windlass_core::event::Event;
use windlass_core::id::{RunId, StepId};
use windlass_core::turn::index::Move;
use windlass_engine::fast::Map;

/// What became of a step, by a number that stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It could be leased from then on.
    Ready(u64),
    /// It was leased.
    Leased(u64),
    /// It left the line without a lease.
    Left(u64),
    /// It ended after so many milliseconds under its lease.
    Ended(u64, u64),
}

/// What one batch tells.
#[derive(Debug, Default)]
pub struct Noted {
    pub(super) steps: Vec<Step>,
    pub(super) moves: Vec<Move>,
    /// How long runs that ended took, in milliseconds.
    pub(super) ends: Map<RunId, u64>,
    pub(super) facts: u64,
}

/// A number for a step of a run. Two steps with the same one would only mix up two measurements.
fn number(run: RunId, step: &StepId) -> u64 {
    // The low half of a run's id is random.
    let seed = run.0 as u64;
    step.as_str().bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Noted {
    /// Takes what is to be counted from a fact.
    pub fn see(&mut self, event: &Event) {
        self.facts += 1;
        let step = match event {
            Event::PipelineAdvanced(e) if e.group.is_none() => Step::Ready(number(e.id, &e.step)),
            Event::StepReady(e) => Step::Ready(number(e.pipeline_id, &e.step)),
            Event::StepReturned(e) => Step::Ready(number(e.pipeline_id, &e.step)),
            Event::StepExpired(e) => Step::Ready(number(e.pipeline_id, &e.step)),
            Event::StepStarted(e) => Step::Leased(number(e.pipeline_id, &e.step)),
            Event::StepWaiting(e) => Step::Left(number(e.pipeline_id, &e.step)),
            Event::StepCancelled(e) => Step::Left(number(e.pipeline_id, &e.step)),
            Event::StepSkipped(e) => Step::Left(number(e.pipeline_id, &e.step)),
            Event::StepCompleted(e) => Step::Ended(number(e.pipeline_id, &e.step), e.duration_ms),
            Event::StepFailed(e) => Step::Ended(number(e.pipeline_id, &e.step), e.duration_ms),
            Event::PipelineCompleted(e) => return self.end(e.id, e.duration_ms),
            Event::PipelineFailed(e) => return self.end(e.id, e.duration_ms),
            Event::PipelineCancelled(e) => return self.end(e.id, e.duration_ms),
            // tidy: the other facts are counted, and no more.
            _ => return,
        };
        self.steps.push(step);
    }

    fn end(&mut self, run: RunId, duration_ms: u64) {
        self.ends.insert(run, duration_ms);
    }

    /// How runs moved within the batch.
    pub fn moved(&mut self, moves: Vec<Move>) {
        self.moves = moves;
    }

    /// How runs moved within the batch.
    #[must_use]
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }
}
