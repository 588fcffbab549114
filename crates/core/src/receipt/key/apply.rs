//! What the facts of an effect key do to it. Nothing is decided here.

use super::{EARLIER_MAX, EffectKey, Intent, State};
use crate::event::{Event, IntentRecorded, ReceiptRecorded};
use crate::id::{AttemptId, RunId};
use crate::private::Private;
use crate::receipt::{Outcome, Receipt, Settled};
use crate::time::Millis;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

impl EffectKey {
    /// What a fact does. Those of other keys, and of anything else, do nothing.
    #[must_use]
    pub fn apply(self, event: &Event, at: Millis) -> EffectKey {
        let EffectKey { key, generation, state } = self;
        let (generation, state) = match event {
            Event::IntentRecorded(e) if e.key == key => {
                (e.generation, State::Intended { intent: Box::new(Intent::new(e, state)) })
            }
            Event::ReceiptRecorded(e) if e.key == key => (e.generation, state.receipted(e, at)),
            Event::IntentLost(e) if e.key == key => (e.generation, state.lost()),
            Event::IntentSettled(e) if e.key == key => (e.generation, state.settled(e.outcome)),
            Event::ReceiptReversed(e) if e.key == key => {
                (e.generation.saturating_add(1), state.reversed(e.reversed_by))
            }
            // Not of this stream.
            _ => (generation, state),
        };
        EffectKey { key, generation, state }
    }
}

impl Intent {
    /// The intent of a fact, with the attempts of its generation whose success would still be news.
    fn new(e: &IntentRecorded, before: State) -> Intent {
        let mut earlier = match before {
            State::Free { .. } | State::Succeeded { .. } => VecDeque::new(),
            // It has had its receipt.
            State::Failed { intent, receipt: Some(_) } => intent.earlier,
            State::Intended { intent }
            | State::Failed { intent, receipt: None }
            | State::Unknown { intent, .. } => {
                let Intent { attempt, mut earlier, .. } = *intent;
                earlier.push_back(attempt);
                earlier
            }
        };
        while earlier.len() > EARLIER_MAX {
            earlier.pop_front();
        }
        Intent {
            attempt: AttemptId { run: e.pipeline_id, step: e.step.clone(), epoch: e.epoch },
            tool: e.tool.clone(),
            operation: e.operation.clone(),
            target: e.target.clone(),
            action_hash: e.action_hash,
            semantics: e.semantics,
            earlier,
        }
    }
}

impl State {
    fn intent(self) -> Result<Box<Intent>, State> {
        match self {
            State::Intended { intent }
            | State::Succeeded { intent, .. }
            | State::Failed { intent, .. }
            | State::Unknown { intent, .. } => Ok(intent),
            State::Free { .. } => Err(self),
        }
    }

    fn receipted(self, e: &ReceiptRecorded, at: Millis) -> State {
        let intent = match self.intent() {
            Ok(intent) => intent,
            Err(free) => return free,
        };
        let receipt = Some(Box::new(Receipt {
            id: e.receipt_id,
            run: e.pipeline_id,
            step: e.step.clone(),
            epoch: e.epoch,
            key: e.key.clone(),
            generation: e.generation,
            tool: e.tool.clone(),
            operation: e.operation.clone(),
            target: e.target.clone(),
            status: e.status,
            reversible: e.reversible,
            late: e.late,
            reverse: e.reverse.as_ref().and_then(Private::get),
            reversed_by: None,
            request: e.request.as_ref().and_then(Private::get),
            response: e.response.as_ref().and_then(Private::get),
            at,
        }));
        match e.status {
            Outcome::Succeeded => State::Succeeded { intent, receipt },
            Outcome::Failed => State::Failed { intent, receipt },
        }
    }

    fn lost(self) -> State {
        match self.intent() {
            Ok(intent) => State::Unknown { intent, abandoned: false },
            Err(free) => free,
        }
    }

    fn settled(self, outcome: Settled) -> State {
        match self.intent() {
            Ok(intent) => match outcome {
                Settled::Done => State::Succeeded { intent, receipt: None },
                Settled::NotDone => State::Failed { intent, receipt: None },
                Settled::Abandoned => State::Unknown { intent, abandoned: true },
            },
            Err(free) => free,
        }
    }

    fn reversed(self, by: RunId) -> State {
        match self {
            State::Succeeded { intent, receipt } => State::Free {
                reversed: receipt.map(|mut receipt| {
                    receipt.reversed_by = Some(by);
                    receipt
                }),
                last: Some(intent.attempt),
            },
            State::Free { .. } | State::Intended { .. } | State::Failed { .. } | State::Unknown { .. } => {
                self
            }
        }
    }
}
