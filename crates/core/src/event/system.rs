//! Payloads of the installation itself: starts, seals, keys, tenants, notices, custom events.

use super::payloads;
use crate::digest::{Digest, Signature};
use crate::event::words::Scope;
use crate::id::{Name, NoticeId, RunId, StepId, TokenId};
use crate::origin::Actor;
use crate::private::Private;
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde_json::Value;

payloads! {
    /// A timer began: a step waits until a time, or is tried again then. `id` is the run and the step.
    "timer:start" TimerStart Signal on "run" {
        id: Name, pipeline_id: Option<RunId>, step: Option<StepId>, until: Option<Millis>,
    }

    /// A server opened the store, whose log has this number. `wall` is what it was told to keep steps apart with: `as needed`
    /// (the sandbox where others may act), `user NAME`, or `none` (`--shared-user`).
    "system:started" SystemStarted Fact on "system" { version: Name, incarnation: u64, wall: Option<Name> }

    /// The server closes the store.
    "system:shutdown" SystemShutdown Signal on "system" {}

    /// What recovery found after a start.
    "system:recovered" SystemRecovered Fact on "system" { runs: u64, leases: u64, unknown: u64, orphans: u64 }

    /// A signed Merkle root over (stream, version, head) of what changed since the last seal.
    "seal:created" SealCreated Fact on "system" {
        number: u64, root: Digest, leaves: u64, previous: Option<Digest>, key_id: Name, signature: Signature,
        sealed_at: Option<Millis>, through: Option<u64>,
    }

    /// Seals are signed with another key from here on; signed with the old one where there was one.
    "seal:key_rotated" KeyRotated Fact on "system" {
        key_id: Name, public_key: Digest, replaces: Option<Name>, signature: Option<Signature>,
    }

    /// A private value was taken out of a record of the stream `of`; its digest stays.
    "value:redacted" ValueRedacted Fact on "system" { of: StreamId, version: u64, field: Name, reason: Option<String> }

    /// Retention took streams out of the log that had ended: how many of each kind, and a hash over their names, versions and
    /// heads. Runs are named by a `pipeline:deleted` each.
    "retention:applied" RetentionApplied Fact on "system" {
        runs: u64, items: u64, ingress_keys: u64, effect_keys: u64, records: u64, bytes: u64, heads: Digest,
        holds: Option<u64>, runbooks: Option<u64>,
    }

    /// The stream goes on from here: `state` is what its facts came to, so that they may leave the log. `prior` is the chain
    /// value before this record. It changes nothing.
    "stream:carried" StreamCarried Fact on "any" { prior: Digest, state: Value }

    /// Locks and semaphores that are about to leave the log had epochs up to this one. One that comes again has a higher one.
    "epochs:raised" EpochsRaised Fact on "system" { floor: u64 }

    /// An evidence bundle was made: of a run, or of all runs of a period.
    "evidence:exported" EvidenceExported Fact on "system" {
        pipeline_id: Option<RunId>, sha256: Digest, bytes: u64, location: String, from: Option<Millis>, to: Option<Millis>,
    }

    /// A tenant's caps and weight. Files can only tighten them. `self_approval` says whether whoever asked may approve;
    /// absent: only as long as nobody but the owner has a credential. `notices` is of what its people want to be told that
    /// not everybody is.
    "tenant:configured" TenantConfigured Fact on "tenant" {
        max_concurrency: Option<u32>, max_runs_per_min: Option<u32>, max_writes_per_run: Option<u32>, weight: u32,
        self_approval: Option<bool>, notices: Option<Vec<crate::event::words::Notice>>, max_runbooks: Option<u32>,
        max_runbook_bytes: Option<u32>,
    }

    /// A token was handed out. Its bearer is known by the hash of what was shown once. Moved on by `token:revoked`, or by
    /// the time when it expires.
    "token:created" TokenCreated Fact on "tokens" {
        token: TokenId, hash: Digest, namespace: Name, name: Name, human: bool, groups: Vec<Name>, scopes: Vec<Scope>,
        created_by: Actor, expires_at: Option<Millis>,
    }

    /// A token is good for nothing any more.
    "token:revoked" TokenRevoked Fact on "tokens" { token: TokenId, reason: Option<String> }

    /// A human has to look at something; `notice:requested` follows for whoever is told.
    "escalate" Escalate Signal on "run" { pipeline_id: RunId, step: Option<StepId>, message: Private<String> }

    /// A one-shot message to the outside was asked for: it is sent after this is committed.
    "notice:requested" NoticeRequested Fact on "run" {
        notice: NoticeId, pipeline_id: RunId, step: Option<StepId>, kind: crate::event::words::Notice, message: Private<String>,
    }

    /// The message was sent, or given up on.
    "notice:sent" NoticeSent Fact on "run" { notice: NoticeId, pipeline_id: RunId, delivered: bool }

    /// Reserved: this version derives what is left over from the state and never writes it. A follow-up for another stream did not fit into the turn and is delivered later. Its target remembers
    /// (stream, version), so that a repeat does nothing.
    "outbox:posted" OutboxPosted Fact on "any" { to: StreamId, message: Private<Value> }

    /// Reserved, as `outbox:posted` is. The follow-up of version `posted` was delivered.
    "outbox:settled" OutboxSettled Fact on "any" { posted: u64, at_target: Millis }

    /// An event of the user's own, emitted by a step, a program or a person. On the wire its category and its action stand
    /// in the tag, as in `custom:deploy:done`. Workers wake on it and triggers match it. `pipeline_id` is the run that
    /// emitted it, where one did.
    "custom:event" Custom Signal on "trigger" {
        category: Name, action: Name, pipeline_id: Option<RunId>, data: Private<Value>,
    }
}

impl Custom {
    /// The tag on the wire: `custom:category:action`.
    #[must_use]
    pub fn kind(&self) -> String {
        alloc::format!("custom:{}:{}", self.category, self.action)
    }
}
