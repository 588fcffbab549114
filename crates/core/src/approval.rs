//! Approvals: a human's decision, bound to exactly one action.
//!
//! An approval is asked for when policy says `needs_approval`, and is bound to the action's hash, the
//! policy's version, the run, the step and an expiry. The invariant: [`Approval::permits`] is true only
//! after enough distinct humans said yes to exactly this action, in time, and nobody said no. Expiry
//! never approves, a changed action is never the approved one, and what is settled stays as it is.
//!
//! ```text
//!              decide (not enough yet), remind, show
//!                 ┌──┐
//!                 ▼  │        decide
//!              requested ──────────────▶ approved*  rejected*
//!                  ├── expire ─────────▶ expired*   │
//!                  └── void ───────────▶ cancelled* ◀┘ void: what it is about changed before it was done
//! ```
//!
//! An attempt to decide that is refused is a fact too, because an audit wants to see who tried; it changes
//! nothing but the number of such facts, which is bounded so that nobody fills the log with them. A decision
//! belongs to the run's stream.
//!
//! What people were shown is a fact as well, with its exact bytes, and a decision says which card it was made on. A
//! place where a card stands is behind as long as it does not show how the approval stands now; that, and nothing
//! remembered elsewhere, is what makes somebody update it.

use crate::code::Code;
use crate::digest::Digest;
use crate::effect::Effect;
use crate::event::{
    ApprovalCancelled, ApprovalDecided, ApprovalExpired, ApprovalRefused, ApprovalReminded,
    ApprovalRequested, Event,
};
use crate::id::{ApprovalId, Name, RunId, StepId, TokenId};
use crate::machine::{Decision, Row, table};
use crate::private::Private;
use crate::receipt::Action;
use crate::requesters::UNNAMED;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

mod card;

pub use card::{CARD_LEN_MAX, PLACES_MAX, SHOWINGS_MAX, Showed, Shown, card_hash};

/// What leads where. `decide` on a settled approval is a refusal in the audit, or the answer to a repeat.
pub const TABLE: &[Row] = table! {
    "requested": "decide" => "requested" | "approved" | "rejected";
    "requested": "void" => "cancelled";
    "requested": "expire" => "requested" | "expired";
    "requested": "remind" => "requested";
    "requested": "show" => "requested";
    "approved": "decide" => "approved";
    "approved": "void" => "cancelled";
    "approved": "expire" => "approved";
    "approved": "remind" => "approved";
    "approved": "show" => "approved";
    "rejected": "decide" => "rejected";
    "rejected": "expire" => "rejected";
    "rejected": "remind" => "rejected";
    "rejected": "show" => "rejected";
    "expired": "decide" => "expired";
    "expired": "expire" => "expired";
    "expired": "remind" => "expired";
    "expired": "show" => "expired";
    "cancelled": "decide" => "cancelled";
    "cancelled": "void" => "cancelled";
    "cancelled": "expire" => "cancelled";
    "cancelled": "remind" => "cancelled";
    "cancelled": "show" => "cancelled";
};
pub use crate::event::words::approval::{Channel, Refusal, Showing, Status, Tier, Verdict};

/// The most humans an approval can ask for.
pub const COUNT_MAX: u32 = 16;
/// The most names and groups that can be listed as approvers.
pub const APPROVERS_MAX: usize = 256;
/// The most reasons that policy can give.
pub const REASONS_MAX: usize = 64;
/// The most bytes of a decision's reason.
pub const REASON_LEN_MAX: usize = 4_096;
/// The most refused attempts that are recorded for one approval; later ones are refused without a fact.
pub const REFUSALS_MAX: u32 = 32;
/// The most reminders of one approval.
pub const REMINDERS_MAX: u32 = 16;

/// One human's decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decided {
    /// Who.
    pub by: Name,
    /// Yes or no.
    pub decision: Verdict,
    /// When.
    pub at: Millis,
    /// Why, in their words; absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where they said so.
    pub channel: Channel,
    /// Whether they decided on what they had asked for themselves.
    pub own_request: bool,
}

/// A request for a human's decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    /// Its identity.
    pub id: ApprovalId,
    /// The run that waits.
    pub run: RunId,
    /// The step that waits.
    pub step: StepId,
    /// Where it stands.
    pub status: Status,
    /// How much is at stake.
    pub tier: Tier,
    /// Whether two humans must agree, neither of them the requester.
    pub two_person: bool,
    /// How many distinct humans must agree.
    pub count: u32,
    /// Names and groups that may decide; empty: anyone with the scope.
    pub approvers: Vec<Name>,
    /// The action that was shown; absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// The action's hash: what a decision is about.
    pub action_hash: Digest,
    /// The policy that asked.
    pub policy_version: Digest,
    /// Why it asked.
    pub reasons: Vec<String>,
    /// Who asked for the run first.
    pub requested_by: Name,
    /// Who counts as having asked for it too: see [`crate::requesters`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed_by: Vec<Name>,
    /// When it was asked for.
    pub requested_at: Millis,
    /// From when on no decision counts.
    pub expires_at: Millis,
    /// Whether the requester may approve: a laptop with a single user.
    pub self_approval: bool,
    /// What the runbook adds for the reader; absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How often somebody was reminded.
    pub reminders: u32,
    /// How many refused attempts were recorded.
    pub refusals: u32,
    /// What was decided, in order.
    pub decisions: Vec<Decided>,
    /// The `approve` step on whose behalf it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_step: Option<StepId>,
    /// What stands where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<Shown>,
    /// How often it was shown.
    #[serde(default)]
    pub showings: u32,
    /// Why it is void.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voided: Option<String>,
}

/// An attempt to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Yes or no.
    pub decision: Verdict,
    /// Who tries.
    pub by: Name,
    /// Whether that is a human: not a step's token, and not a caller without a name.
    pub human: bool,
    /// The groups they belong to.
    pub groups: Vec<Name>,
    /// The hash of the action they were shown.
    pub action_hash: Digest,
    /// Where they do it.
    pub channel: Channel,
    /// Why.
    pub reason: Option<String>,
    /// The hash of the card they decided on, where that is known.
    pub card: Option<Digest>,
}

/// What can happen to an approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Somebody decides.
    Decide(Attempt),
    /// The run was cancelled, or the action or the policy changed.
    Void {
        /// Which of it.
        reason: String,
    },
    /// The time may have come.
    Expire,
    /// Show it again.
    Remind,
    /// People were shown it.
    Show(Showed),
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The approval counts, and so many more are missing.
    Counted {
        /// How many more humans must agree.
        missing: u32,
    },
    /// This settled it.
    Settled(Status),
    /// Nothing new: a repeat, or a timer that came early or late.
    Standing(Status),
    /// The attempt was refused, which is recorded.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The code for the caller.
        code: Code,
    },
    /// A reminder goes out.
    Reminded,
    /// It is on record what people were shown.
    Shown,
}

/// Why an input was refused without a fact.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The attempt is refused, and too many were recorded before.
    #[error("the decision is refused ({refusal}), as others were before")]
    Refused {
        /// Why.
        refusal: Refusal,
        /// The code for the caller.
        code: Code,
    },
    /// It is settled and cannot be voided.
    #[error("the approval is {0} and stays so")]
    Settled(Status),
    /// A request or a decision is out of its bounds.
    #[error("{what} of an approval must be at most {max}")]
    Bound {
        /// What is too large.
        what: &'static str,
        /// How large it may be.
        max: usize,
    },
    /// It would expire before anyone could decide.
    #[error("an approval must expire after it is asked for")]
    ExpiresAtOnce,
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Refused { code, .. } => *code,
            Error::Settled(status) => settled_code(*status),
            Error::Bound { .. } | Error::ExpiresAtOnce => Code::InvalidInput,
        }
    }
}

/// Whether a name is that of an account of the machine, behind which anybody may stand who can use it. Where two humans
/// have to agree and neither may be the one who asked, anybody among them may be this one.
#[must_use]
pub fn is_unnamed(requester: &Name) -> bool {
    let text = requester.as_str();
    let account = text.strip_prefix("uid-").is_some_and(|id| id.parse::<u32>().is_ok());
    // Who wrote in Slack and is mapped to nobody here.
    let unmapped = text.starts_with("slack:");
    matches!(text, "local" | "root" | UNNAMED) || account || unmapped || TokenId::parse(text).is_ok()
}

/// Whether somebody is the one who asked: by name, or because it was done with a token that they made.
fn is_own(requester: &Name, by: &Name) -> bool {
    let made = |rest: &str| rest.starts_with('/');
    requester == by || requester.as_str().strip_prefix(by.as_str()).is_some_and(made)
}

/// The code that says how an approval was settled.
fn settled_code(status: Status) -> Code {
    match status {
        Status::Requested | Status::Approved => Code::RunInvalidTransition,
        Status::Rejected => Code::ApprovalRejected,
        Status::Expired => Code::ApprovalExpired,
        Status::Cancelled => Code::Cancelled,
    }
}

fn bound(what: &'static str, size: usize, max: usize) -> Result<(), Error> {
    if size <= max { Ok(()) } else { Err(Error::Bound { what, max }) }
}

/// Checks a request before it becomes a fact: [`Approval::new`] takes what the log has.
///
/// # Errors
/// A list or number out of its bounds, or an expiry that is not ahead.
pub fn check(request: &ApprovalRequested, at: Millis) -> Result<(), Error> {
    bound("the count", request.count as usize, COUNT_MAX as usize)?;
    bound("the number of approvers", request.approvers.len(), APPROVERS_MAX)?;
    bound("the number of reasons", request.reasons.len(), REASONS_MAX)?;
    for reason in &request.reasons {
        bound("a reason's length", reason.len(), REASON_LEN_MAX)?;
    }
    if request.expires_at > at { Ok(()) } else { Err(Error::ExpiresAtOnce) }
}

impl Approval {
    /// The approval that a request makes.
    #[must_use]
    pub fn new(request: &ApprovalRequested, at: Millis) -> Approval {
        Approval {
            id: request.approval_id,
            run: request.pipeline_id,
            step: request.step.clone(),
            status: Status::Requested,
            tier: request.tier,
            two_person: request.two_person,
            count: request.count,
            approvers: request.approvers.clone(),
            action: request.action.get(),
            action_hash: request.action_hash,
            policy_version: request.policy_version,
            reasons: request.reasons.clone(),
            requested_by: request.requested_by.clone(),
            changed_by: request.changed_by.clone().unwrap_or_default(),
            requested_at: at,
            expires_at: request.expires_at,
            self_approval: request.self_approval,
            message: request.message.as_ref().and_then(Private::get),
            reminders: 0,
            refusals: 0,
            decisions: Vec::new(),
            by_step: request.by_step.clone(),
            shown: Vec::new(),
            showings: 0,
            voided: None,
        }
    }

    /// The one question asked before acting: did enough humans say yes to exactly this action, under the
    /// policy that holds now?
    #[must_use]
    pub fn permits(&self, action_hash: &Digest, policy_version: &Digest) -> bool {
        self.status == Status::Approved
            && self.action_hash == *action_hash
            && self.policy_version == *policy_version
    }

    /// How many distinct humans must agree. A request for none still takes one.
    #[must_use]
    pub fn needed(&self) -> u32 {
        self.count.max(if self.two_person { 2 } else { 1 })
    }

    /// How many more must agree.
    #[must_use]
    pub fn missing(&self) -> u32 {
        let yes = self.decisions.iter().filter(|d| d.decision == Verdict::Approved).count();
        self.needed().saturating_sub(u32::try_from(yes).unwrap_or(u32::MAX))
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        self.status.as_str()
    }

    /// When it next wants an [`Input::Expire`].
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        (self.status == Status::Requested).then_some(self.expires_at)
    }

    /// What would happen.
    ///
    /// # Errors
    /// What the table does not have, what is out of bounds, and refused attempts beyond [`REFUSALS_MAX`].
    pub fn decide(&self, input: &Input, at: Millis) -> Result<Decision<Reply>, Error> {
        use Status::{Approved, Cancelled, Expired, Rejected, Requested};
        let standing = || Ok(Decision::reply(Reply::Standing(self.status)));
        match (self.status, input) {
            (Requested, Input::Decide(attempt)) => self.decide_open(attempt, at),
            (Approved | Rejected | Expired | Cancelled, Input::Decide(attempt)) => {
                self.decide_settled(attempt)
            }
            // What was approved has not been done, and would be something else by now.
            (Requested | Approved, Input::Void { reason }) => {
                bound("a reason's length", reason.len(), REASON_LEN_MAX)?;
                let decision = Decision::reply(Reply::Settled(Cancelled)).fact(ApprovalCancelled {
                    approval_id: self.id,
                    pipeline_id: self.run,
                    step: self.step.clone(),
                    reason: reason.clone(),
                });
                Ok(Decision { effects: self.update(), ..decision })
            }
            // A second cause for the same end.
            (Cancelled, Input::Void { .. }) => standing(),
            (Rejected | Expired, Input::Void { .. }) => Err(Error::Settled(self.status)),
            (Requested, Input::Expire) if at >= self.expires_at => {
                let decision = Decision::reply(Reply::Settled(Expired)).fact(ApprovalExpired {
                    approval_id: self.id,
                    pipeline_id: self.run,
                    step: self.step.clone(),
                });
                Ok(Decision { effects: self.update(), ..decision })
            }
            // A timer that came early is set again from `due`.
            (Requested, Input::Expire) => standing(),
            // A timer lost the race against a decision.
            (Approved | Rejected | Expired | Cancelled, Input::Expire | Input::Remind) => standing(),
            (Requested, Input::Remind) if at < self.expires_at && self.reminders < REMINDERS_MAX => {
                Ok(self.remind())
            }
            // Too late, or often enough: nobody is reminded, and the approval waits on.
            (Requested, Input::Remind) => standing(),
            // A card can come late: what it shows is then behind, and is brought up to date.
            (Requested | Approved | Rejected | Expired | Cancelled, Input::Show(showed)) => self.show(showed),
        }
    }

    fn decide_open(&self, attempt: &Attempt, at: Millis) -> Result<Decision<Reply>, Error> {
        bound("a reason's length", attempt.reason.as_ref().map_or(0, String::len), REASON_LEN_MAX)?;
        if let Some(refusal) = self.refusal(attempt, at) {
            return self.refuse(attempt, refusal);
        }
        let (settled, reply) = match attempt.decision {
            Verdict::Rejected => (true, Reply::Settled(Status::Rejected)),
            Verdict::Approved => match self.missing().saturating_sub(1) {
                0 => (true, Reply::Settled(Status::Approved)),
                missing => (false, Reply::Counted { missing }),
            },
        };
        let decision = Decision::reply(reply).fact(ApprovalDecided {
            approval_id: self.id,
            pipeline_id: self.run,
            step: self.step.clone(),
            decision: attempt.decision,
            decided_by: attempt.by.clone(),
            action_hash: attempt.action_hash,
            channel: attempt.channel,
            settled,
            own_request: self.asked_by(&attempt.by),
            reason: attempt.reason.clone().map(Private::New),
            card: attempt.card,
        });
        Ok(Decision { effects: self.update(), ..decision })
    }

    /// Why an attempt on an open approval does not count. Who may not decide at all is told so first.
    fn refusal(&self, attempt: &Attempt, at: Millis) -> Option<Refusal> {
        if !attempt.human {
            return Some(Refusal::NotHuman);
        }
        if at >= self.expires_at {
            return Some(Refusal::Expired);
        }
        let listed = |entry: &Name| *entry == attempt.by || attempt.groups.contains(entry);
        if !self.approvers.is_empty() && !self.approvers.iter().any(listed) {
            return Some(Refusal::NotApprover);
        }
        if attempt.action_hash != self.action_hash {
            return Some(Refusal::HashMismatch);
        }
        // A card that was never shown is not what anybody could have decided on.
        if attempt.card.is_some_and(|card| self.shown.iter().all(|shown| shown.card != card)) {
            return Some(Refusal::HashMismatch);
        }
        match attempt.decision {
            // To say no is always safe: the requester may withdraw, and who agreed may think again.
            Verdict::Rejected => None,
            Verdict::Approved => {
                let own = self.asked_by(&attempt.by);
                if own && (self.two_person || !self.self_approval) {
                    return Some(Refusal::OwnRequest);
                }
                // A human who agrees twice is still one human.
                self.agreed(&attempt.by).then_some(Refusal::SameHuman)
            }
        }
    }

    /// Whether somebody counts as who asked only for having changed the run since, or retried or forked it.
    #[must_use]
    pub fn changed_only(&self, by: &Name) -> bool {
        !is_own(&self.requested_by, by) && self.asked_by(by)
    }

    /// Whether somebody asked for it: who started the run, or who made it what it is since.
    fn asked_by(&self, by: &Name) -> bool {
        self.requesters().any(|name| is_own(name, by))
    }

    /// Everybody who asked for it.
    pub fn requesters(&self) -> impl Iterator<Item = &Name> {
        core::iter::once(&self.requested_by).chain(&self.changed_by)
    }

    fn agreed(&self, by: &Name) -> bool {
        self.decisions.iter().any(|d| d.by == *by && d.decision == Verdict::Approved)
    }

    /// An attempt on a settled approval. Who repeats what they decided, and it came out so (a second click
    /// on the same button), hears how it stands; anybody else is too late.
    fn decide_settled(&self, attempt: &Attempt) -> Result<Decision<Reply>, Error> {
        let came_out = match attempt.decision {
            Verdict::Approved => Status::Approved,
            Verdict::Rejected => Status::Rejected,
        };
        let theirs = |d: &Decided| d.by == attempt.by && d.decision == attempt.decision;
        if attempt.human
            && attempt.action_hash == self.action_hash
            && self.status == came_out
            && self.decisions.iter().any(theirs)
        {
            return Ok(Decision::reply(Reply::Standing(self.status)));
        }
        let refusal = if !attempt.human {
            Refusal::NotHuman
        } else if self.status == Status::Expired {
            Refusal::Expired
        } else {
            Refusal::AlreadyDecided
        };
        self.refuse(attempt, refusal)
    }

    fn refuse(&self, attempt: &Attempt, refusal: Refusal) -> Result<Decision<Reply>, Error> {
        let code = match refusal {
            Refusal::HashMismatch => Code::ApprovalHashMismatch,
            Refusal::Expired => Code::ApprovalExpired,
            Refusal::AlreadyDecided => settled_code(self.status),
            Refusal::OwnRequest | Refusal::SameHuman | Refusal::NotApprover | Refusal::NotHuman => {
                Code::Forbidden
            }
        };
        if self.refusals >= REFUSALS_MAX {
            return Err(Error::Refused { refusal, code });
        }
        Ok(Decision::reply(Reply::Refused { refusal, code }).fact(ApprovalRefused {
            approval_id: self.id,
            pipeline_id: self.run,
            step: self.step.clone(),
            decided_by: attempt.by.clone(),
            refusal,
            channel: attempt.channel,
        }))
    }

    fn remind(&self) -> Decision<Reply> {
        Decision::reply(Reply::Reminded)
            .fact(ApprovalReminded {
                approval_id: self.id,
                pipeline_id: self.run,
                step: self.step.clone(),
                reminders: self.reminders.saturating_add(1),
            })
            .effect(Effect::ShowApproval { approval: self.id, run: self.run, reminder: true })
    }

    /// What a fact does. Those of other approvals, and of anything else, do nothing.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Approval {
        match event {
            Event::ApprovalDecided(e) if e.approval_id == self.id => {
                self.decisions.push(Decided {
                    by: e.decided_by.clone(),
                    decision: e.decision,
                    at,
                    reason: e.reason.as_ref().and_then(Private::get),
                    channel: e.channel,
                    own_request: e.own_request,
                });
                if e.settled {
                    self.status = match e.decision {
                        Verdict::Approved => Status::Approved,
                        Verdict::Rejected => Status::Rejected,
                    };
                }
            }
            Event::ApprovalRefused(e) if e.approval_id == self.id => {
                self.refusals = self.refusals.saturating_add(1);
            }
            Event::ApprovalReminded(e) if e.approval_id == self.id => self.reminders = e.reminders,
            Event::ApprovalShown(e) if e.approval_id == self.id => self.note(e, at),
            Event::ApprovalExpired(e) if e.approval_id == self.id => self.status = Status::Expired,
            Event::ApprovalCancelled(e) if e.approval_id == self.id => {
                self.status = Status::Cancelled;
                self.voided = Some(e.reason.clone());
            }
            // The run's stream holds much else.
            _ => {}
        }
        self
    }
}

#[cfg(test)]
mod tests;
