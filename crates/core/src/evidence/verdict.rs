//! What a verified bundle says: the facts that a report for people is made from.
//!
//! Everything here is read from records that a walk and a seal have proved. Exceptions are stated also where
//! there are none, and so is what the bundle does not prove.

use super::verify::Walked;
use super::{Artifact, Contents, Manifest};
use crate::approval;
use crate::digest::Digest;
use crate::event::{ApprovalRequested, Event, IntentRecorded, PolicyDecided};
use crate::id::{ApprovalId, Name, ReceiptId, RunId, StepId};
use crate::policy;
use crate::receipt::{Action, Outcome, Settled};
use crate::record::Record;
use crate::run::{Actor, Status};
use crate::step::Resolution;
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::Serialize;
use serde_json::Value;

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
    /// How often the key was reversed before.
    pub generation: u32,
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
    /// Who wanted it.
    pub requested_by: Name,
    /// Where it stands.
    pub place: Place,
    /// Who decided.
    pub votes: Vec<Vote>,
    /// How it ended; `requested` while nobody did.
    pub status: approval::Status,
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

/// What an auditor asks for first. Empty lists say that there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Exceptions {
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
    /// Costs by provider and model, `provider/model`.
    pub costs: BTreeMap<String, Cost>,
    /// Artifacts.
    pub artifacts: Vec<Artifact>,
    /// What an auditor asks for first.
    pub exceptions: Exceptions,
    /// What is not proved.
    pub not_proved: Vec<Gap>,
}

/// Reads the verdict from proved records.
pub(super) fn read(
    manifest: &Manifest,
    contents: &Contents,
    walked: &BTreeMap<StreamId, Walked>,
) -> Verdict {
    let mut verdict = Verdict {
        run: manifest.run,
        tenant: None,
        pipeline: None,
        runbook: None,
        status: None,
        made_at: manifest.made_at,
        streams: walked.iter().filter_map(|(stream, walked)| proved(stream, walked)).collect(),
        effects: Vec::new(),
        approvals: Vec::new(),
        policies: Vec::new(),
        costs: BTreeMap::new(),
        artifacts: contents.artifacts.clone(),
        exceptions: Exceptions { redactions: redactions(contents), ..Exceptions::default() },
        not_proved: Vec::new(),
    };
    let mut notes = Notes::default();
    if let Some(run) = walked.get(&StreamId::Run(manifest.run)) {
        verdict.tenant = run.records.first().map(|record| record.tenant.clone());
        run.records.iter().for_each(|record| verdict.on_run(record, &mut notes));
    }
    for (stream, walked) in walked {
        match stream {
            StreamId::Effect(_) => walked.records.iter().for_each(|record| verdict.on_effect(record, &notes)),
            StreamId::Tenant(_) => walked.records.iter().for_each(|record| verdict.on_tenant(record)),
            StreamId::Run(_)
            | StreamId::Queue(_)
            | StreamId::Item(_)
            | StreamId::Lock(_)
            | StreamId::Semaphore(_)
            | StreamId::Worker(_)
            | StreamId::Schedule(_)
            | StreamId::Trigger(_)
            | StreamId::Runbook(_)
            | StreamId::Deployment(_)
            | StreamId::Workspace(_)
            | StreamId::Session(_)
            | StreamId::System => {}
        }
    }
    verdict.conclude(&notes);
    verdict
}

/// What is remembered of the run's stream until the effects' streams are read.
#[derive(Default)]
struct Notes {
    decisions: Vec<(PolicyDecided, Place)>,
    /// Attempts with an outside action.
    acting: Vec<(StepId, u64)>,
}

impl Verdict {
    fn on_run(&mut self, record: &Record, notes: &mut Notes) {
        let place = || place(record);
        match &record.event {
            Event::PipelineCreated(e) => {
                self.pipeline = Some(e.kind.clone());
                self.runbook = Some(e.runbook_hash);
            }
            Event::PipelineCompleted(_) => self.status = Some(Status::Completed),
            Event::PipelineFailed(_) => self.status = Some(Status::Failed),
            Event::PipelineCancelled(_) => self.status = Some(Status::Cancelled),
            Event::PolicyDecided(e) => notes.decisions.push((e.clone(), place())),
            Event::StepStarted(e) if e.action_hash.is_some() => {
                notes.acting.push((e.step.clone(), e.epoch));
            }
            Event::ApprovalRequested(e) => self.approvals.push(requested(e, place())),
            Event::ApprovalDecided(e) => {
                if e.own_request && e.decision == approval::Verdict::Approved {
                    self.exceptions.self_approvals.push(place());
                }
                if let Some(approval) = self.approvals.iter_mut().find(|a| a.id == e.approval_id) {
                    approval.votes.push(Vote {
                        by: e.decided_by.clone(),
                        verdict: e.decision,
                        channel: e.channel,
                        own_request: e.own_request,
                        place: place(),
                    });
                    if e.settled {
                        approval.status = match e.decision {
                            approval::Verdict::Approved => approval::Status::Approved,
                            approval::Verdict::Rejected => approval::Status::Rejected,
                        };
                    }
                }
            }
            Event::ApprovalExpired(e) => self.settle(e.approval_id, approval::Status::Expired),
            Event::ApprovalCancelled(e) => self.settle(e.approval_id, approval::Status::Cancelled),
            Event::StepUnknown(e) => {
                let (step, place) = (e.step.clone(), place());
                self.exceptions.unknown.push(Unknown { step, place, resolved: None });
            }
            Event::StepResolved(e) => {
                let open = |unknown: &&mut Unknown| unknown.step == e.step && unknown.resolved.is_none();
                if let Some(unknown) = self.exceptions.unknown.iter_mut().find(open) {
                    let (resolution, probed) = (e.resolution, e.probed);
                    unknown.resolved = Some(Resolved { resolution, probed, place: place() });
                }
            }
            Event::CostRecorded(e) => {
                let cost = self.costs.entry(alloc::format!("{}/{}", e.provider, e.model)).or_default();
                cost.usd_micros = cost.usd_micros.saturating_add(e.usd_micros);
                cost.tokens_input = cost.tokens_input.saturating_add(e.tokens_input);
                cost.tokens_output = cost.tokens_output.saturating_add(e.tokens_output);
            }
            // The rest of the run's life is in the records; a report needs no more of it.
            _ => {}
        }
    }

    fn settle(&mut self, id: ApprovalId, status: approval::Status) {
        self.approvals.iter_mut().filter(|a| a.id == id).for_each(|a| a.status = status);
    }

    fn on_effect(&mut self, record: &Record, notes: &Notes) {
        match &record.event {
            // A lineage shares its keys: only this run's effects are told here.
            Event::IntentRecorded(e) if e.pipeline_id == self.run => {
                let effect = self.effected(e, place(record), notes);
                self.effects.push(effect);
            }
            Event::ReceiptRecorded(e) => {
                let received = Received {
                    receipt: e.receipt_id,
                    status: e.status,
                    late: e.late,
                    place: place(record),
                };
                if let Some(effect) = self.effect(&record.stream, &e.key, e.generation) {
                    effect.receipt = Some(received);
                }
            }
            Event::IntentSettled(e) => {
                let settled = (e.outcome, place(record));
                if let Some(effect) = self.effect(&record.stream, &e.key, e.generation) {
                    effect.settled = Some(settled);
                }
            }
            Event::ReceiptReversed(e) => {
                let by = e.reversed_by;
                if let Some(effect) = self.effect(&record.stream, &e.key, e.generation) {
                    effect.reversed_by = Some(by);
                }
            }
            // An effect's stream has no other facts that a report needs.
            _ => {}
        }
    }

    /// The last intent under a key and generation: what comes back is an answer to that one.
    fn effect(&mut self, stream: &StreamId, key: &Name, generation: u32) -> Option<&mut Effected> {
        self.effects
            .iter_mut()
            .rev()
            .find(|effect| effect.intent.stream == *stream && effect.key == *key && effect.generation == generation)
    }

    fn effected(&self, intent: &IntentRecorded, place: Place, notes: &Notes) -> Effected {
        let concerns = |e: &PolicyDecided| match &e.step {
            Some(step) => *step == intent.step && e.action_hash == Some(intent.action_hash),
            None => e.tool == intent.tool,
        };
        let decision = notes.decisions.iter().rev().find(|(e, p)| concerns(e) && p.at <= place.at);
        let granted = |a: &&Approval| {
            a.step == intent.step
                && a.action_hash == intent.action_hash
                && a.status == approval::Status::Approved
        };
        Effected {
            step: intent.step.clone(),
            key: intent.key.clone(),
            generation: intent.generation,
            tool: intent.tool.clone(),
            operation: intent.operation.clone(),
            target: intent.target.clone(),
            action_hash: intent.action_hash,
            decision: decision.map(|(e, place)| Decided {
                verdict: e.verdict,
                policy_version: e.policy_version,
                rules: e.rules.clone(),
                reasons: e.reasons.clone(),
                place: place.clone(),
            }),
            approval: self.approvals.iter().find(granted).map(|a| a.id),
            intent: place,
            receipt: None,
            settled: None,
            reversed_by: None,
        }
    }

    fn on_tenant(&mut self, record: &Record) {
        if let Event::PolicyLoaded(e) = &record.event {
            self.policies.push(Policy {
                version: e.policy_version,
                builtin: e.builtin,
                text: e.text.as_ref().and_then(|text| text.get()),
                place: place(record),
            });
        }
    }

    /// What only shows when everything was read.
    fn conclude(&mut self, notes: &Notes) {
        self.effects.sort_by_key(|effect| effect.intent.at);
        let undecided = self.effects.iter().filter(|effect| {
            let verdict = effect.decision.as_ref().map(|decision| decision.verdict);
            match verdict {
                Some(policy::Verdict::Allow) => false,
                Some(policy::Verdict::NeedsApproval) => effect.approval.is_none(),
                Some(policy::Verdict::Deny) | None => true,
            }
        });
        self.exceptions.undecided = undecided.map(|effect| effect.intent.clone()).collect();
        if self.status.is_none() {
            self.not_proved.push(Gap::NotEnded);
        }
        for proved in &self.streams {
            let stream = || proved.stream.clone();
            if proved.through > proved.sealed_through {
                self.not_proved.push(Gap::AfterSeal { stream: stream(), from: proved.sealed_through + 1 });
            }
            if proved.from > 1 {
                self.not_proved.push(Gap::Excerpt { stream: stream(), from: proved.from });
            }
        }
        for (step, epoch) in &notes.acting {
            if !self.effects.iter().any(|effect| effect.step == *step) {
                self.not_proved.push(Gap::NoIntent { step: step.clone(), epoch: *epoch });
            }
        }
        for (decision, _) in &notes.decisions {
            let version = decision.policy_version;
            let known = self.policies.iter().any(|p| p.version == version && (p.builtin || p.text.is_some()));
            let gap = Gap::NoPolicyText { version };
            if !known && !self.not_proved.contains(&gap) {
                self.not_proved.push(gap);
            }
        }
        if !self.artifacts.is_empty() {
            self.not_proved.push(Gap::Artifacts);
        }
    }
}

fn place(record: &Record) -> Place {
    Place { stream: record.stream.clone(), ver: record.ver, at: record.at, by: record.by.clone() }
}

fn proved(stream: &StreamId, walked: &Walked) -> Option<Proved> {
    let (sealed_through, seal) = walked.sealed?;
    let through = walked.records.last()?.ver;
    Some(Proved { stream: stream.clone(), from: walked.after.ver.saturating_add(1), through, sealed_through, seal })
}

fn requested(e: &ApprovalRequested, place: Place) -> Approval {
    Approval {
        id: e.approval_id,
        step: e.step.clone(),
        action: e.action.get(),
        action_hash: e.action_hash,
        policy_version: e.policy_version,
        requested_by: e.requested_by.clone(),
        place,
        votes: Vec::new(),
        status: approval::Status::Requested,
    }
}

/// Private fields whose digest stands before the chain and whose value does not stand after it.
fn redactions(contents: &Contents) -> Vec<Redaction> {
    let mut private: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for spec in Event::specs() {
        let fields = spec.fields.iter().filter(|(_, kind)| kind.starts_with("private"));
        private.insert(spec.tag, fields.map(|(field, _)| *field).collect());
    }
    let mut found = Vec::new();
    for segment in &contents.streams {
        for (line, ver) in segment.lines.iter().zip(segment.after.ver.saturating_add(1)..) {
            let Ok(Value::Object(fields)) = serde_json::from_str(line) else { continue };
            let tag = fields.get("type").and_then(Value::as_str).unwrap_or_default();
            for field in private.get(tag).into_iter().flatten() {
                let digest = alloc::format!("{field}{}", crate::private::DIGEST);
                if fields.contains_key(&digest) && !fields.contains_key(*field) {
                    let (stream, field) = (segment.stream.clone(), field.to_string());
                    found.push(Redaction { stream, ver, field });
                }
            }
        }
    }
    found
}
