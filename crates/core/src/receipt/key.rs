//! The machine of one effect key: an effect on the outside world happens once.
//!
//! An intent is committed before anything is done, and the release of that commit is the permission to do
//! it; a receipt is committed after. Three promises rest on this file. A key with a successful, unreversed
//! receipt is never granted again: the result is reused (E1). An intent whose attempt died is `unknown`, and
//! nobody tries again silently: a probe or a human settles it, unless the tool is idempotent (E2). What is
//! done is what was decided about: the action of an intent has the hash it is recorded under (E3).
//!
//! ```text
//!             intend            receipt
//!      free ─────────▶ intended ───────▶ succeeded ── reverse ──▶ free, generation + 1
//!                       ▲ │  │ receipt       ▲ ▲
//!                intend │ │  ▼               │ │ receipt (late)
//!                       ├─┼─ failed ─────────┼─┘
//!                       │ │ lost ▲           │
//!                       │ ▼      │ not done  │ done, receipt (late)
//!                       └ unknown ───────────┘
//! ```
//!
//! Evidence wins over bookkeeping: a success reported by an attempt that was given up is recorded as `late`
//! and settles the key, because the world has changed whatever we decided meanwhile.

use super::{Action, Outcome, Receipt, Reversal, Semantics, Settled, bounded};
use crate::code::Code;
use crate::digest::Digest;
use crate::event::{IntentLost, IntentRecorded, IntentSettled, ReceiptRecorded, ReceiptReversed};
use crate::id::{AttemptId, Name, ReceiptId, RunId};
use crate::machine::{Decision, Row, table};
use crate::private::Private;
use crate::time::Millis;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod apply;

/// What leads where.
pub const TABLE: &[Row] = table! {
    "free": "intend" => "intended";
    "free": "reverse" => "free";
    "intended": "intend" => "intended";
    "intended": "receipt" => "succeeded" | "failed";
    "intended": "lost" => "unknown";
    "succeeded": "intend" => "succeeded";
    "succeeded": "receipt" => "succeeded";
    "succeeded": "lost" => "succeeded";
    "succeeded": "settle" => "succeeded";
    "succeeded": "reverse" => "free";
    "failed": "intend" => "intended";
    "failed": "receipt" => "failed" | "succeeded";
    "failed": "lost" => "failed";
    "failed": "settle" => "failed";
    "unknown": "intend" => "intended";
    "unknown": "receipt" => "succeeded";
    "unknown": "lost" => "unknown";
    "unknown": "settle" => "succeeded" | "failed" | "unknown";
};

/// The most attempts of a generation that are remembered beside the last, so that their late receipts
/// are known. An older one's receipt is refused.
pub const EARLIER_MAX: usize = 32;

/// What is about to be done, or was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// Whose it is.
    pub attempt: AttemptId,
    /// The tool.
    pub tool: Name,
    /// What it does.
    pub operation: Name,
    /// What it does it to.
    pub target: Name,
    /// The action it is about.
    pub action_hash: Digest,
    /// What can be done if no receipt comes.
    pub semantics: Semantics,
    /// Attempts of this generation that went before and may still report a success, oldest first.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub earlier: VecDeque<AttemptId>,
}

impl Intent {
    /// An attempt of the same step that is as new or newer, if there was one.
    fn overtakes(&self, attempt: &AttemptId) -> Option<&AttemptId> {
        core::iter::once(&self.attempt).chain(&self.earlier).find(|other| attempt.overtaken_by(other))
    }

    /// Whether the attempt had this intent, or one that went before.
    fn knows(&self, attempt: &AttemptId) -> bool {
        self.attempt == *attempt || self.earlier.contains(attempt)
    }
}

/// Where a key stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Nothing is done or under way. Moved on by an intent.
    Free {
        /// The receipt of the generation before, which was reversed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reversed: Option<Box<Receipt>>,
        /// The last attempt of the generation before: it may not act again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last: Option<AttemptId>,
    },
    /// An attempt may be acting. Moved on by its receipt, or by its loss.
    Intended {
        /// What it does.
        intent: Box<Intent>,
    },
    /// It happened. Moved on by a reversal only.
    Succeeded {
        /// What was done.
        intent: Box<Intent>,
        /// What came back; absent where a probe or a human said that it happened.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Box<Receipt>>,
    },
    /// It did not happen. Moved on by the next intent, or by a late receipt.
    Failed {
        /// What was tried.
        intent: Box<Intent>,
        /// What came back; absent where a probe or a human said that it did not happen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receipt: Option<Box<Receipt>>,
    },
    /// Nobody knows. Moved on by a probe, a human or a late receipt; by an intent if the tool is idempotent.
    Unknown {
        /// What may have been done.
        intent: Box<Intent>,
        /// Whether a human gave it up. Nobody knows still, so the key stays as it is.
        abandoned: bool,
    },
}

/// One effect key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EffectKey {
    /// The key.
    pub key: Name,
    /// Which generation, from 1: each reversal starts the next.
    pub generation: u32,
    /// Where it stands.
    pub state: State,
}

/// What an attempt wants to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Whose it is.
    pub attempt: AttemptId,
    /// What it would do.
    pub action: Action,
    /// The hash that policy and humans decided about.
    pub action_hash: Digest,
    /// What can be done if no receipt comes.
    pub semantics: Semantics,
}

/// What an attempt reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The receipt's identity.
    pub receipt_id: ReceiptId,
    /// Whose it is.
    pub attempt: AttemptId,
    /// How it came out.
    pub status: Outcome,
    /// Whether it can be taken back.
    pub reversible: bool,
    /// How.
    pub reverse: Option<Reversal>,
    /// What was asked.
    pub request: Option<Value>,
    /// What came back.
    pub response: Option<Value>,
}

/// What can happen to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An attempt wants to act.
    Intend(Box<Proposal>),
    /// An attempt says what happened.
    Receipt(Box<Report>),
    /// An attempt died between intent and receipt.
    Lost {
        /// Which one.
        attempt: AttemptId,
    },
    /// A probe or a human says what happened.
    Settle {
        /// Whose intent it is about.
        attempt: AttemptId,
        /// What they say.
        outcome: Settled,
        /// Whether it was a probe.
        probed: bool,
    },
    /// The effect was taken back.
    Reverse {
        /// The receipt of the effect.
        receipt_id: ReceiptId,
        /// The run that took it back.
        by: RunId,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The intent is recorded; the release of its commit is the permission to act.
    Granted {
        /// The key's generation.
        generation: u32,
    },
    /// It happened before: this is the result.
    Reuse {
        /// The run that did it.
        run: RunId,
        /// What came back then.
        response: Option<Value>,
    },
    /// It is recorded.
    Recorded {
        /// Whether it came after the attempt was given up.
        late: bool,
    },
    /// Nothing new: a repeat, or overtaken by better knowledge. No fact, so no second permission.
    Standing,
}

/// Why an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another action stands under the key, or another run is at it.
    #[error("the effect key belongs to another action, or to a run that is at it")]
    Conflict,
    /// An attempt that was overtaken.
    #[error("epoch {given} is over: the step is at {current}")]
    Stale {
        /// The epoch that came.
        given: u64,
        /// The epoch that holds.
        current: u64,
    },
    /// An earlier attempt may have done it.
    #[error("an earlier attempt may have done it: settle that first")]
    OutcomeUnknown,
    /// The action is not the one that was decided about.
    #[error("the action is not the one that was decided about")]
    HashMismatch,
    /// Nobody recorded such an intent.
    #[error("no such intent was recorded under the key")]
    NoIntent,
    /// There is no such receipt, or its effect did not happen.
    #[error("no such receipt of a successful effect stands under the key")]
    NoReceipt,
    /// The receipt says that it cannot be taken back.
    #[error("the effect cannot be reversed")]
    Irreversible,
    /// It was settled, the other way or not at all open.
    #[error("the outcome is not open: it is {0}")]
    NotOpen(&'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Conflict => Code::IdempotencyConflict,
            Error::Stale { .. } => Code::LeaseStaleEpoch,
            Error::OutcomeUnknown => Code::OutcomeUnknown,
            Error::HashMismatch => Code::ApprovalHashMismatch,
            Error::NoIntent | Error::NoReceipt => Code::NotFound,
            Error::Irreversible | Error::NotOpen(_) => Code::RunInvalidTransition,
        }
    }
}

/// A stranger is not known; an attempt of the same step that does not hold is stale.
fn not_current(given: &AttemptId, current: &AttemptId) -> Error {
    if given.same_step(current) {
        Error::Stale { given: given.epoch, current: current.epoch }
    } else {
        Error::NoIntent
    }
}

impl EffectKey {
    /// A key under which nothing was done.
    #[must_use]
    pub fn new(key: Name) -> EffectKey {
        EffectKey { key, generation: 1, state: State::Free { reversed: None, last: None } }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Free { .. } => "free",
            State::Intended { .. } => "intended",
            State::Succeeded { .. } => "succeeded",
            State::Failed { .. } => "failed",
            State::Unknown { .. } => "unknown",
        }
    }

    /// The receipt that stands under the key, or the one that was reversed last.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        match &self.state {
            State::Free { reversed: receipt, .. }
            | State::Succeeded { receipt, .. }
            | State::Failed { receipt, .. } => receipt.as_deref(),
            State::Intended { .. } | State::Unknown { .. } => None,
        }
    }

    /// What would happen.
    ///
    /// # Errors
    /// A conflict, a stale epoch, an outcome nobody knows, and what the table does not have.
    pub fn decide(&self, input: &Input, _at: Millis) -> Result<Decision<Reply>, Error> {
        let standing = || Ok(Decision::reply(Reply::Standing));
        match (&self.state, input) {
            (State::Free { last, .. }, Input::Intend(wanted)) => {
                self.grant(wanted, last.as_ref().filter(|last| wanted.attempt.overtaken_by(last)))
            }
            (State::Failed { intent, .. }, Input::Intend(wanted)) => {
                self.grant(wanted, intent.overtakes(&wanted.attempt))
            }
            (State::Intended { intent }, Input::Intend(wanted)) => {
                let same_action = intent.action_hash == wanted.action_hash;
                if intent.attempt == wanted.attempt && same_action {
                    // The permission was given; a second one would be a second effect.
                    return standing();
                }
                if intent.attempt == wanted.attempt || !intent.attempt.same_step(&wanted.attempt) {
                    return Err(Error::Conflict);
                }
                self.grant_again(intent, wanted)
            }
            (State::Unknown { intent, .. }, Input::Intend(wanted)) => self.grant_again(intent, wanted),
            (State::Succeeded { intent, receipt }, Input::Intend(wanted)) => {
                if intent.action_hash != wanted.action_hash {
                    return Err(Error::Conflict);
                }
                // A late receipt may be of another run than the last intent.
                let run = receipt.as_ref().map_or(intent.attempt.run, |receipt| receipt.run);
                let response = receipt.as_ref().and_then(|receipt| receipt.response.clone());
                Ok(Decision::reply(Reply::Reuse { run, response }))
            }

            (State::Free { reversed, .. }, Input::Receipt(report)) => match reversed {
                // A repeat of what was reversed since.
                Some(receipt) if receipt.id == report.receipt_id => Err(Error::NotOpen("reversed")),
                Some(_) | None => Err(Error::NoIntent),
            },
            (State::Intended { intent }, Input::Receipt(report)) if intent.attempt == report.attempt => {
                Ok(self.record(intent, report, false))
            }
            (State::Intended { intent } | State::Unknown { intent, .. }, Input::Receipt(report)) => {
                self.record_late(intent, report)
            }
            (
                State::Succeeded { receipt: Some(receipt), .. }
                | State::Failed { receipt: Some(receipt), .. },
                Input::Receipt(report),
            ) if receipt.id == report.receipt_id => standing(),
            (State::Succeeded { intent, receipt }, Input::Receipt(report)) => {
                if !intent.knows(&report.attempt) {
                    return Err(not_current(&report.attempt, &intent.attempt));
                }
                match (receipt, report.status) {
                    // A probe or a human said that it happened; here is the evidence.
                    (None, Outcome::Succeeded) => Ok(self.record(intent, report, true)),
                    // The effect is there already, and its first receipt stands.
                    (Some(_), Outcome::Succeeded) | (Some(_) | None, Outcome::Failed) => standing(),
                }
            }
            (State::Failed { intent, receipt }, Input::Receipt(report)) => {
                if receipt.is_some() && report.attempt == intent.attempt {
                    // One attempt, one receipt: this one contradicts the first.
                    return Err(Error::NotOpen("failed"));
                }
                self.record_late(intent, report)
            }

            (State::Free { .. }, Input::Lost { .. }) => Err(Error::NoIntent),
            (State::Intended { intent }, Input::Lost { attempt }) => {
                if intent.attempt != *attempt {
                    return Err(not_current(attempt, &intent.attempt));
                }
                Ok(Decision::reply(Reply::Recorded { late: false }).fact(IntentLost {
                    key: self.key.clone(),
                    generation: self.generation,
                    pipeline_id: attempt.run,
                    step: attempt.step.clone(),
                    epoch: attempt.epoch,
                }))
            }
            // The receipt, or another report of the loss, came before.
            (
                State::Succeeded { intent, .. }
                | State::Failed { intent, .. }
                | State::Unknown { intent, .. },
                Input::Lost { attempt },
            ) => {
                if intent.knows(attempt) {
                    standing()
                } else {
                    Err(not_current(attempt, &intent.attempt))
                }
            }

            (State::Free { .. }, Input::Settle { .. }) => Err(Error::NoIntent),
            // The attempt may be acting: it has to be lost first.
            (State::Intended { .. }, Input::Settle { .. }) => Err(Error::NotOpen("intended")),
            (State::Unknown { intent, abandoned }, Input::Settle { attempt, outcome, probed }) => {
                if intent.attempt != *attempt {
                    return Err(not_current(attempt, &intent.attempt));
                }
                if *abandoned && *outcome == Settled::Abandoned {
                    return standing();
                }
                Ok(self.settle(intent, *outcome, *probed))
            }
            (State::Succeeded { intent, .. }, Input::Settle { attempt, outcome, .. }) => {
                self.settled(intent, attempt, *outcome == Settled::Done)
            }
            (State::Failed { intent, .. }, Input::Settle { attempt, outcome, .. }) => {
                self.settled(intent, attempt, *outcome == Settled::NotDone)
            }

            (State::Succeeded { receipt: Some(receipt), .. }, Input::Reverse { receipt_id, by })
                if receipt.id == *receipt_id =>
            {
                self.reverse(receipt, *by)
            }
            // A repeat of the reversal.
            (State::Free { reversed: Some(receipt), .. }, Input::Reverse { receipt_id, .. })
                if receipt.id == *receipt_id =>
            {
                standing()
            }
            (
                State::Free { .. }
                | State::Intended { .. }
                | State::Succeeded { .. }
                | State::Failed { .. }
                | State::Unknown { .. },
                Input::Reverse { .. },
            ) => Err(Error::NoReceipt),
        }
    }

    /// Grants an intent, unless `newer` overtook it.
    fn grant(&self, wanted: &Proposal, newer: Option<&AttemptId>) -> Result<Decision<Reply>, Error> {
        let Proposal { attempt, action, action_hash, semantics } = wanted;
        if let Some(newer) = newer {
            return Err(Error::Stale { given: attempt.epoch, current: newer.epoch });
        }
        if action.hash() != *action_hash {
            return Err(Error::HashMismatch);
        }
        Ok(Decision::reply(Reply::Granted { generation: self.generation }).fact(IntentRecorded {
            key: self.key.clone(),
            generation: self.generation,
            pipeline_id: attempt.run,
            step: attempt.step.clone(),
            epoch: attempt.epoch,
            tool: action.tool.clone(),
            operation: action.operation.clone(),
            target: action.target.clone(),
            action_hash: *action_hash,
            semantics: *semantics,
        }))
    }

    /// Grants an intent although the one before has no receipt: only where the tool it was given to is
    /// idempotent, and for the very same action. Anything else has to be settled first.
    fn grant_again(&self, before: &Intent, wanted: &Proposal) -> Result<Decision<Reply>, Error> {
        let newer = before.overtakes(&wanted.attempt);
        let harmless = before.semantics == Semantics::Idempotent && before.action_hash == wanted.action_hash;
        if newer.is_none() && !harmless {
            return Err(Error::OutcomeUnknown);
        }
        self.grant(wanted, newer)
    }

    /// A receipt of an attempt that was given up. Only a success is worth it: the world has changed. That an
    /// overtaken attempt failed says nothing about the others.
    fn record_late(&self, intent: &Intent, report: &Report) -> Result<Decision<Reply>, Error> {
        match report.status {
            Outcome::Succeeded if intent.knows(&report.attempt) => Ok(self.record(intent, report, true)),
            Outcome::Succeeded | Outcome::Failed => Err(not_current(&report.attempt, &intent.attempt)),
        }
    }

    fn record(&self, intent: &Intent, report: &Report, late: bool) -> Decision<Reply> {
        Decision::reply(Reply::Recorded { late }).fact(ReceiptRecorded {
            receipt_id: report.receipt_id,
            key: self.key.clone(),
            generation: self.generation,
            pipeline_id: report.attempt.run,
            step: report.attempt.step.clone(),
            epoch: report.attempt.epoch,
            tool: intent.tool.clone(),
            operation: intent.operation.clone(),
            target: intent.target.clone(),
            status: report.status,
            reversible: report.reversible,
            late,
            reverse: report.reverse.clone().map(Private::New),
            request: report.request.as_ref().map(|body| Private::New(bounded(body))),
            response: report.response.as_ref().map(|body| Private::New(bounded(body))),
        })
    }

    fn settle(&self, intent: &Intent, outcome: Settled, probed: bool) -> Decision<Reply> {
        Decision::reply(Reply::Recorded { late: false }).fact(IntentSettled {
            key: self.key.clone(),
            generation: self.generation,
            pipeline_id: intent.attempt.run,
            step: intent.attempt.step.clone(),
            epoch: intent.attempt.epoch,
            outcome,
            probed,
        })
    }

    /// Somebody settles what is settled: a repeat where they agree.
    fn settled(&self, intent: &Intent, attempt: &AttemptId, agrees: bool) -> Result<Decision<Reply>, Error> {
        if intent.attempt != *attempt {
            return Err(not_current(attempt, &intent.attempt));
        }
        if agrees { Ok(Decision::reply(Reply::Standing)) } else { Err(Error::NotOpen(self.state_name())) }
    }

    fn reverse(&self, receipt: &Receipt, by: RunId) -> Result<Decision<Reply>, Error> {
        // The last generation there can be stays as it is.
        if !receipt.reversible || self.generation == u32::MAX {
            return Err(Error::Irreversible);
        }
        Ok(Decision::reply(Reply::Recorded { late: false }).fact(ReceiptReversed {
            receipt_id: receipt.id,
            key: self.key.clone(),
            generation: self.generation,
            reversed_by: by,
        }))
    }
}

#[cfg(test)]
mod tests;
