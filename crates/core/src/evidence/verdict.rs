//! What a verified bundle says: the facts that a report for people is made from.
//!
//! Everything here is read from records that a walk and a seal have proved. Exceptions are stated also where
//! there are none, and so is what the bundle does not prove.

use super::Artifact;
use crate::approval;
use crate::digest::Digest;
use crate::id::{ApprovalId, Name, ReceiptId, RunId, StepId};
use crate::policy;
use crate::receipt::{Action, Outcome, Settled};
use crate::run::{Actor, Lineage, Status, Subject, Trigger};
use crate::step::Resolution;
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use serde::Serialize;

/// Where something stands, when it happened and who caused it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The stream.
    pub stream: StreamId,
    /// The version in it.
    pub ver: u64,
    /// When.
    pub at: Millis,
    /// By whom.
    pub by: Actor,
}

/// How much of a stream is proved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proved {
    /// Which stream.
    pub stream: StreamId,
    /// The first version that is there.
    pub from: u64,
    /// The last version that is there.
    pub through: u64,
    /// The last version that a seal covers.
    pub sealed_through: u64,
    /// That seal's number.
    pub seal: u64,
}

/// What policy said of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// Yes, no, or ask.
    pub verdict: policy::Verdict,
    /// Under which policy.
    pub policy_version: Digest,
    /// By which rules.
    pub rules: Vec<String>,
    /// Why.
    pub reasons: Vec<String>,
    /// Where it stands.
    pub place: Place,
}

/// What came back from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Received {
    /// The receipt.
    pub receipt: ReceiptId,
    /// How it came out.
    pub status: Outcome,
    /// Whether it came after the run went on without it.
    pub late: bool,
    /// Where it stands.
    pub place: Place,
}

/// An effect on the outside world: decision, approval, intent, receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effected {
    /// The step.
    pub step: StepId,
    /// What identifies the effect.
    pub key: Name,
    /// Which use of the key this is; a reversal starts the next.
    pub generation: u32,
    /// The attempt's epoch.
    pub epoch: u64,
    /// The tool.
    pub tool: Name,
    /// What it did.
    pub operation: Name,
    /// To what.
    pub target: Name,
    /// The hash of the exact action.
    pub action_hash: Digest,
    /// The last decision before the intent.
    pub decision: Option<Decided>,
    /// The approval of exactly this action, where there was one.
    pub approval: Option<ApprovalId>,
    /// The intent.
    pub intent: Place,
    /// What came back.
    pub receipt: Option<Received>,
    /// How it was settled, where nothing came back.
    pub settled: Option<(Settled, Place)>,
    /// The run that took it back.
    pub reversed_by: Option<RunId>,
}

/// A secret that an attempt was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Secret {
    /// Its name.
    pub name: Name,
    /// Which version: a number of the vault, or where it came from.
    pub version: Name,
    /// The step.
    pub step: StepId,
    /// The attempt's epoch.
    pub epoch: u64,
    /// Where it stands.
    pub place: Place,
}

/// Where a run came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// What made it.
    pub trigger: Trigger,
    /// What it is about, where it is about a repository.
    pub subject: Option<Subject>,
    /// Its namespace.
    pub namespace: Name,
    /// Its place among retries and forks.
    pub lineage: Lineage,
    /// The run that called it.
    pub parent: Option<RunId>,
    /// Where it stands, when it was and who did it.
    pub place: Place,
}

/// The runbook that a run was pinned to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Book {
    /// Its name.
    pub name: Name,
    /// What was read, unless it was redacted.
    pub text: Option<String>,
    /// When it became known, and through whom.
    pub place: Place,
    /// When it was made the active version of its name, and by whom.
    pub deployed: Vec<(Option<Name>, Place)>,
}

/// A human's decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vote {
    /// Who.
    pub by: Name,
    /// Yes or no.
    pub verdict: approval::Verdict,
    /// From where.
    pub channel: approval::Channel,
    /// Whether it is the requester's own.
    pub own_request: bool,
    /// The hash of the card it was made on, where that is known.
    pub card: Option<Digest>,
    /// Why, in their words, unless it was redacted.
    pub reason: Option<String>,
    /// Where it stands.
    pub place: Place,
}

/// A card that people were shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Card {
    /// Its hash.
    pub hash: Digest,
    /// By which way.
    pub channel: approval::Channel,
    /// Why.
    pub showing: approval::Showing,
    /// Its exact bytes, unless they were redacted.
    pub text: Option<String>,
    /// Where it stands.
    pub place: Place,
}

/// An approval, exactly as it was shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// The step.
    pub step: StepId,
    /// What was shown, unless it was redacted.
    pub action: Option<Action>,
    /// Its hash.
    pub action_hash: Digest,
    /// The policy that asked.
    pub policy_version: Digest,
    /// What was said with it, unless it was redacted.
    pub message: Option<String>,
    /// Why it was asked for.
    pub reasons: Vec<String>,
    /// How grave it was said to be.
    pub tier: approval::Tier,
    /// How many had to say yes.
    pub count: u32,
    /// Whether two humans had to, neither of them the requester.
    pub two_person: bool,
    /// Who was asked; empty: whoever may approve.
    pub approvers: Vec<Name>,
    /// Until when.
    pub expires_at: Millis,
    /// Who wanted it.
    pub requested_by: Name,
    /// Where it stands.
    pub place: Place,
    /// What people were shown, in order.
    pub cards: Vec<Card>,
    /// Who decided.
    pub votes: Vec<Vote>,
    /// How it ended; `requested` while nobody did.
    pub status: approval::Status,
    /// Where it was withdrawn after it was given: what was done before that, was approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<Place>,
}

/// A policy that was in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Its hash.
    pub version: Digest,
    /// Whether it is the built-in one.
    pub builtin: bool,
    /// Its text, unless it was redacted.
    pub text: Option<String>,
    /// Where it stands.
    pub place: Place,
}

/// What a model of a provider cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// Millionths of a dollar.
    pub usd_micros: u64,
    /// Tokens sent.
    pub tokens_input: u64,
    /// Tokens received.
    pub tokens_output: u64,
}

/// How an unknown outcome was settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// How.
    pub resolution: Resolution,
    /// Whether a probe found out.
    pub probed: bool,
    /// Why, where somebody said so.
    pub reason: Option<String>,
    /// By whom, and where it stands.
    pub place: Place,
}

/// An outcome that nobody knew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unknown {
    /// The step.
    pub step: StepId,
    /// Where it stands.
    pub place: Place,
    /// How it was settled, if it was.
    pub resolved: Option<Resolved>,
}

/// A value that was taken out, or left out by the exporter. Its digest stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Redaction {
    /// The stream.
    pub stream: StreamId,
    /// The version in it.
    pub ver: u64,
    /// Which value.
    pub field: String,
}

/// An attempt to decide that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Who tried.
    pub by: Name,
    /// Why not.
    pub refusal: approval::Refusal,
    /// The approval.
    pub approval: ApprovalId,
    /// Where it stands.
    pub place: Place,
}

/// What a human, or the runbook, let pass although a rule said otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Override {
    /// Variables were changed while the run was under way.
    Variables {
        /// Where it stands.
        place: Place,
    },
    /// A step that had asked for help was settled by hand.
    Settled {
        /// Which step.
        step: StepId,
        /// How.
        resolution: Resolution,
        /// Where it stands.
        place: Place,
    },
    /// A guard did not hold, and the step went on with a warning.
    Guard {
        /// Which step.
        step: StepId,
        /// Which guard.
        guard: Name,
        /// Where it stands.
        place: Place,
    },
    /// Somebody broke the hold on a lock or on slots.
    Broken {
        /// Whose hold: a step's, or the run's own.
        step: Option<StepId>,
        /// On what.
        hold: Name,
        /// Where it stands, and who did it.
        place: Place,
    },
}

/// What an auditor asks for first. Empty lists say that there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exceptions {
    /// What was let pass although a rule said otherwise.
    pub overrides: Vec<Override>,
    /// Attempts to decide that were refused.
    pub refused: Vec<Refused>,
    /// Approvals by the one who asked.
    pub self_approvals: Vec<Place>,
    /// Outcomes that nobody knew, and who settled them.
    pub unknown: Vec<Unknown>,
    /// Values that are not there.
    pub redactions: Vec<Redaction>,
    /// Effects without a recorded allow, or without the approval that policy asked for.
    pub undecided: Vec<Place>,
}

/// What the bundle does not prove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// The run had not ended.
    NotEnded,
    /// Records after the last seal can have been cut off or replaced by whoever holds the key.
    AfterSeal {
        /// Which stream.
        stream: StreamId,
        /// The first version that no seal covers.
        from: u64,
    },
    /// Earlier records of the stream are not there.
    Excerpt {
        /// Which stream.
        stream: StreamId,
        /// The first version that is there.
        from: u64,
    },
    /// An attempt with an outside action whose intent is not there.
    NoIntent {
        /// The step.
        step: StepId,
        /// The attempt's epoch.
        epoch: u64,
    },
    /// The text of a policy that decided is not there.
    NoPolicyText {
        /// Its hash.
        version: Digest,
    },
    /// Artifacts are listed by the exporter alone; no record covers their hashes.
    Artifacts,
    /// The runbook's record is not there.
    NoRunbook,
}

/// What a verified bundle says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The run.
    pub run: RunId,
    /// Whose it is.
    pub tenant: Option<Name>,
    /// What it ran.
    pub pipeline: Option<Name>,
    /// In which version.
    pub runbook: Option<Digest>,
    /// Where it came from.
    pub origin: Option<Origin>,
    /// The runbook itself.
    pub book: Option<Book>,
    /// How it ended, if it did.
    pub status: Option<Status>,
    /// When the bundle was made.
    pub made_at: Millis,
    /// How much of each stream is proved.
    pub streams: Vec<Proved>,
    /// Effects on the outside world, in the order of their intents.
    pub effects: Vec<Effected>,
    /// Approvals, as shown.
    pub approvals: Vec<Approval>,
    /// Policies that were in force.
    pub policies: Vec<Policy>,
    /// Secrets that attempts were given, in the order of their use.
    pub secrets: Vec<Secret>,
    /// What kept commands apart from the server or executor that ran them, and how many of them.
    pub walls: BTreeMap<String, u64>,
    /// Costs by provider and model, `provider/model`.
    pub costs: BTreeMap<String, Cost>,
    /// Artifacts.
    pub artifacts: Vec<Artifact>,
    /// What an auditor asks for first.
    pub exceptions: Exceptions,
    /// What is not proved.
    pub not_proved: Vec<Gap>,
}
