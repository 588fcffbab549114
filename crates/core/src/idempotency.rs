//! Ingress keys: one delivery, one run, one answer.
//!
//! Whoever asks for a run may ask twice: a hook is redelivered, a client did not hear the answer, a user
//! clicks again. The key names the delivery; it is claimed in the commit that creates the run, so there is
//! no moment in which one exists without the other. The invariant: as long as a key is known it has at most
//! one run and at most one live claim, and the same request gets the first answer.
//!
//! ```text
//!            claim              complete
//!   absent ─────────▶ processing ────────▶ completed
//!                      ▲   │ fail              │ time
//!         claim (retry)│   ▼                   ▼
//!                      └─ failed ──────────▶ expired ── claim ──▶ processing
//! ```
//!
//! A claim's attempt is its fence: an answer under an older one is refused. A claim that lost its lock may
//! be taken over, but it keeps the run it made: [`Reply::Retry`] names it, and no other is created.

use crate::canonical;
use crate::code::Code;
use crate::digest::Digest;
use crate::event::{Event, TriggerClaimed, TriggerCompleted, TriggerExpired, TriggerFailed};
use crate::id::{Name, RunId};
use crate::machine::{Decision, Row, table};
use crate::private::Private;
use crate::time::{Millis, Span};
use alloc::string::String;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod spelling;
pub use spelling::{api, cli, github, hook, queue, scheduler, slack};

/// What leads where. A claim or an end that time has overtaken finds the key expired.
pub const TABLE: &[Row] = table! {
    "absent": "claim" => "processing";
    "absent": "tick" => "absent";
    "processing": "claim" => "processing";
    "processing": "complete" => "completed";
    "processing": "fail" => "failed";
    "processing": "refer" => "processing";
    "processing": "tick" => "processing" | "expired";
    "completed": "claim" => "completed" | "processing";
    "completed": "complete" => "completed";
    "completed": "refer" => "completed";
    "completed": "tick" => "completed" | "expired";
    "failed": "claim" => "failed" | "processing";
    "failed": "fail" => "failed";
    "failed": "refer" => "failed";
    "failed": "tick" => "failed" | "expired";
    "expired": "claim" => "processing";
    "expired": "tick" => "expired";
};
pub use crate::event::words::Source;

/// How often a delivery is tried in all.
pub const ATTEMPTS_MAX: u32 = 3;
/// How long a claim is taken to be at work.
pub const LOCK_TTL: Span = Span::mins(5);
/// How long a failed delivery is remembered.
pub const FAILED_TTL: Span = Span::hours(1);
/// The most bytes of an answer that is kept for repeats.
pub const RESPONSE_LEN_MAX: usize = 64 * 1024;
/// The most bytes of an error that are kept.
pub const ERROR_LEN_MAX: usize = 4_096;

impl Source {
    /// How long an answered delivery is remembered. GitHub redelivers by hand for days.
    #[must_use]
    pub const fn completed_ttl(self) -> Span {
        match self {
            Source::Github => Span::hours(7 * 24),
            Source::Api | Source::Slack | Source::Scheduler | Source::Hook | Source::Cli | Source::Queue => {
                Span::hours(24)
            }
        }
    }
}

/// A delivery that was claimed: what all known keys have.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    /// Where it came from.
    pub source: Source,
    /// The hash of the whole request: the same key with another request is a mistake of the sender.
    pub request_hash: Digest,
    /// The run it made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// How often it was tried. The fence of the claim.
    pub attempts: u32,
    /// From when on the key is forgotten.
    pub expires_at: Millis,
    /// When it was claimed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Millis>,
}

/// Where a key stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Nobody ever claimed it.
    Absent,
    /// Somebody is at it. Moved on by its end, or by another claim once the lock is over.
    Processing {
        /// What was claimed.
        delivery: Delivery,
        /// From when on another may take over.
        lock_expires_at: Millis,
    },
    /// It was answered. Moved on by time.
    Completed {
        /// What was claimed.
        delivery: Delivery,
        /// The answer; absent where there was none, or once redacted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response: Option<Value>,
    },
    /// It failed. Moved on by another claim, or by time.
    Failed {
        /// What was claimed.
        delivery: Delivery,
        /// Why; absent once redacted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// It was known once. May be claimed anew.
    Expired,
}

/// One ingress key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The key.
    pub key: Name,
    /// Where it stands.
    pub state: State,
}

/// What can happen to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A delivery arrives.
    Claim {
        /// From where.
        source: Source,
        /// The hash of the request.
        request_hash: Digest,
        /// The run that the same commit creates, if the claim is granted.
        run: Option<RunId>,
    },
    /// It is answered.
    Complete {
        /// The attempt that answers.
        attempt: u32,
        /// The run it made.
        run: Option<RunId>,
        /// The answer.
        response: Option<Value>,
        /// How long it is remembered; as its source says where absent.
        ttl: Option<Span>,
    },
    /// It failed.
    Fail {
        /// The attempt that failed.
        attempt: u32,
        /// Why.
        error: String,
    },
    /// A caller asks what became of a key.
    Refer,
    /// Time passed.
    Tick,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Granted: nobody had the key.
    New {
        /// The fence.
        attempt: u32,
    },
    /// Granted again. Where a run is named, it exists, or is the claimant's own.
    Retry {
        /// The fence.
        attempt: u32,
        /// The run of this delivery: create it if it is the one the claim brought, and no other.
        run: Option<RunId>,
    },
    /// Answered before: the first answer.
    Duplicate {
        /// The run it made.
        run: Option<RunId>,
        /// The answer.
        response: Option<Value>,
    },
    /// The first one is still at it.
    InFlight {
        /// The run it made.
        run: Option<RunId>,
    },
    /// It failed, and a repeat may try again.
    Failed {
        /// The run it made.
        run: Option<RunId>,
        /// How often it was tried.
        attempts: u32,
        /// Why.
        error: Option<String>,
    },
    /// It failed as often as it may.
    Exhausted {
        /// The run it made.
        run: Option<RunId>,
        /// How often it was tried.
        attempts: u32,
        /// Why, the last time.
        error: Option<String>,
    },
    /// The end is recorded, or was before.
    Done,
    /// Nothing to say: time did what it does.
    Nothing,
}

/// Why an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A part of a key is empty, too long or unprintable.
    #[error("a key's parts must be printable, and all of it 1 to {max} bytes", max = Name::LEN_MAX)]
    Key,
    /// The same key with another request, or with another run.
    #[error("the key was used for another request")]
    Conflict,
    /// Another attempt has the key by now.
    #[error("attempt {given} is not the one at work, which is {current}")]
    Stale {
        /// The attempt that came.
        given: u32,
        /// The attempt that holds.
        current: u32,
    },
    /// It was known once.
    #[error("the key is no longer remembered")]
    Forgotten,
    /// It never was.
    #[error("the key is not known")]
    Unknown,
    /// The delivery has ended the other way.
    #[error("the delivery has {0} already")]
    Ended(&'static str),
    /// The answer is too large to keep.
    #[error("an answer that is kept may have {max} bytes", max = RESPONSE_LEN_MAX)]
    ResponseTooLarge,
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Key | Error::ResponseTooLarge => Code::InvalidInput,
            Error::Conflict => Code::IdempotencyConflict,
            Error::Stale { .. } => Code::LeaseStaleEpoch,
            Error::Forgotten => Code::IdempotencyExpired,
            Error::Unknown => Code::NotFound,
            Error::Ended(_) => Code::RunInvalidTransition,
        }
    }
}

impl Delivery {
    fn fence(&self, given: u32) -> Result<(), Error> {
        if given == self.attempts { Ok(()) } else { Err(Error::Stale { given, current: self.attempts }) }
    }

    fn same(&self, request_hash: &Digest) -> Result<(), Error> {
        if self.request_hash == *request_hash { Ok(()) } else { Err(Error::Conflict) }
    }
}

impl Key {
    /// A key that nobody claimed.
    #[must_use]
    pub fn new(key: Name) -> Key {
        Key { key, state: State::Absent }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Absent => "absent",
            State::Processing { .. } => "processing",
            State::Completed { .. } => "completed",
            State::Failed { .. } => "failed",
            State::Expired => "expired",
        }
    }

    /// When it next wants a tick: to be forgotten.
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        self.delivery().map(|delivery| delivery.expires_at)
    }

    /// What is known of the delivery; absent where nobody claimed it, or where it is forgotten.
    #[must_use]
    pub fn delivery(&self) -> Option<&Delivery> {
        match &self.state {
            State::Processing { delivery, .. }
            | State::Completed { delivery, .. }
            | State::Failed { delivery, .. } => Some(delivery),
            State::Absent | State::Expired => None,
        }
    }

    /// What would happen.
    ///
    /// # Errors
    /// Another request under the key, a stale attempt, an unknown or forgotten key.
    pub fn decide(&self, input: &Input, at: Millis) -> Result<Decision<Reply>, Error> {
        let over = self.delivery().filter(|delivery| at >= delivery.expires_at);
        if let Some(delivery) = over {
            return self.decide_overdue(delivery, input, at);
        }
        match (&self.state, input) {
            (State::Absent | State::Expired, Input::Claim { source, request_hash, run }) => {
                Ok(self.claim(Reply::New { attempt: 1 }, 1, *source, *request_hash, *run, at))
            }
            (State::Absent, Input::Complete { .. } | Input::Fail { .. } | Input::Refer) => {
                Err(Error::Unknown)
            }
            (State::Expired, Input::Complete { .. } | Input::Fail { .. } | Input::Refer) => {
                Err(Error::Forgotten)
            }

            (State::Processing { delivery, lock_expires_at }, Input::Claim { request_hash, run, .. }) => {
                delivery.same(request_hash)?;
                if at < *lock_expires_at {
                    return Ok(Decision::reply(Reply::InFlight { run: delivery.run }));
                }
                Ok(self.claim_again(delivery, None, *run, at))
            }
            (State::Processing { delivery, .. }, Input::Complete { attempt, run, response, ttl }) => {
                delivery.fence(*attempt)?;
                let ttl = ttl.unwrap_or(delivery.source.completed_ttl());
                self.complete(delivery, *run, response.as_ref(), at + ttl)
            }
            (State::Processing { delivery, .. }, Input::Fail { attempt, error }) => {
                delivery.fence(*attempt)?;
                Ok(self.fail(delivery, error, at))
            }
            (State::Processing { delivery, .. }, Input::Refer) => {
                Ok(Decision::reply(Reply::InFlight { run: delivery.run }))
            }

            (State::Completed { delivery, response }, Input::Claim { request_hash, .. }) => {
                delivery.same(request_hash)?;
                Ok(Decision::reply(Reply::Duplicate { run: delivery.run, response: response.clone() }))
            }
            // A repeat of the report: the first answer stands.
            (State::Completed { delivery, .. }, Input::Complete { attempt, .. }) => {
                delivery.fence(*attempt).map(|()| Decision::reply(Reply::Done))
            }
            (State::Completed { delivery, .. }, Input::Fail { attempt, .. }) => {
                delivery.fence(*attempt).and(Err(Error::Ended("completed")))
            }
            (State::Completed { delivery, response }, Input::Refer) => {
                Ok(Decision::reply(Reply::Duplicate { run: delivery.run, response: response.clone() }))
            }

            (State::Failed { delivery, error }, Input::Claim { request_hash, run, .. }) => {
                delivery.same(request_hash)?;
                Ok(self.claim_again(delivery, error.as_ref(), *run, at))
            }
            (State::Failed { delivery, .. }, Input::Complete { attempt, .. }) => {
                delivery.fence(*attempt).and(Err(Error::Ended("failed")))
            }
            // A repeat of the report.
            (State::Failed { delivery, .. }, Input::Fail { attempt, .. }) => {
                delivery.fence(*attempt).map(|()| Decision::reply(Reply::Done))
            }
            (State::Failed { delivery, error }, Input::Refer) => Ok(Decision::reply(Reply::Failed {
                run: delivery.run,
                attempts: delivery.attempts,
                error: error.clone(),
            })),

            // A timer that came early, or after the key was forgotten.
            (
                State::Absent
                | State::Processing { .. }
                | State::Completed { .. }
                | State::Failed { .. }
                | State::Expired,
                Input::Tick,
            ) => Ok(Decision::reply(Reply::Nothing)),
        }
    }

    /// The key's time is over, whether or not a tick said so yet.
    fn decide_overdue(
        &self,
        delivery: &Delivery,
        input: &Input,
        at: Millis,
    ) -> Result<Decision<Reply>, Error> {
        let expired = TriggerExpired { key: self.key.clone(), source: delivery.source };
        match input {
            Input::Claim { source, request_hash, run } => {
                let mut decision = self.claim(Reply::New { attempt: 1 }, 1, *source, *request_hash, *run, at);
                decision.facts.insert(0, expired.into());
                Ok(decision)
            }
            Input::Complete { .. } | Input::Fail { .. } | Input::Refer => Err(Error::Forgotten),
            Input::Tick => Ok(Decision::reply(Reply::Nothing).fact(expired)),
        }
    }

    fn claim(
        &self,
        reply: Reply,
        attempts: u32,
        source: Source,
        request_hash: Digest,
        run: Option<RunId>,
        at: Millis,
    ) -> Decision<Reply> {
        Decision::reply(reply).fact(TriggerClaimed {
            key: self.key.clone(),
            source,
            request_hash,
            run,
            attempts,
            expires_at: at + source.completed_ttl(),
            lock_expires_at: at + LOCK_TTL,
        })
    }

    /// Another try at a delivery nobody is at any more. The run it made, if it made one, was committed
    /// with the claim and exists: it is kept, whatever the new claimant brings.
    fn claim_again(
        &self,
        delivery: &Delivery,
        error: Option<&String>,
        run: Option<RunId>,
        at: Millis,
    ) -> Decision<Reply> {
        if delivery.attempts >= ATTEMPTS_MAX {
            return Decision::reply(Reply::Exhausted {
                run: delivery.run,
                attempts: delivery.attempts,
                error: error.cloned(),
            });
        }
        let (attempt, run) = (delivery.attempts + 1, delivery.run.or(run));
        self.claim(Reply::Retry { attempt, run }, attempt, delivery.source, delivery.request_hash, run, at)
    }

    fn complete(
        &self,
        delivery: &Delivery,
        run: Option<RunId>,
        response: Option<&Value>,
        expires_at: Millis,
    ) -> Result<Decision<Reply>, Error> {
        if run.is_some() && delivery.run.is_some() && run != delivery.run {
            return Err(Error::Conflict);
        }
        if response.is_some_and(|value| canonical::bytes(value).len() > RESPONSE_LEN_MAX) {
            return Err(Error::ResponseTooLarge);
        }
        Ok(Decision::reply(Reply::Done).fact(TriggerCompleted {
            key: self.key.clone(),
            source: delivery.source,
            run: delivery.run.or(run),
            expires_at,
            response: response.cloned().map(Private::New),
        }))
    }

    fn fail(&self, delivery: &Delivery, error: &str, at: Millis) -> Decision<Reply> {
        let kept = &error[..error.floor_char_boundary(ERROR_LEN_MAX)];
        Decision::reply(Reply::Done).fact(TriggerFailed {
            key: self.key.clone(),
            source: delivery.source,
            attempts: delivery.attempts,
            expires_at: at + FAILED_TTL,
            error: Private::New(String::from(kept)),
        })
    }

    /// What a fact does. Those of other keys, and of anything else, do nothing.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Key {
        let known = self.delivery().cloned();
        self.state = match event {
            Event::TriggerClaimed(e) if e.key == self.key => State::Processing {
                delivery: Delivery {
                    source: e.source,
                    request_hash: e.request_hash,
                    run: e.run,
                    attempts: e.attempts,
                    expires_at: e.expires_at,
                    created_at: known.map_or(Some(at), |known| known.created_at),
                },
                lock_expires_at: e.lock_expires_at,
            },
            Event::TriggerCompleted(e) if e.key == self.key => match known {
                Some(delivery) => State::Completed {
                    delivery: Delivery { run: e.run, expires_at: e.expires_at, ..delivery },
                    response: e.response.as_ref().and_then(Private::get),
                },
                // The end of a claim that is not in the log: nothing is known of the request.
                None => self.state,
            },
            Event::TriggerFailed(e) if e.key == self.key => match known {
                Some(delivery) => State::Failed {
                    delivery: Delivery { attempts: e.attempts, expires_at: e.expires_at, ..delivery },
                    error: e.error.get(),
                },
                None => self.state,
            },
            Event::TriggerExpired(e) if e.key == self.key => State::Expired,
            // Not of this stream.
            _ => self.state,
        };
        self
    }
}

#[cfg(test)]
mod tests;
