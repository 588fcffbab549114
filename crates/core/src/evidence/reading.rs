//! Reading a verdict from records that a walk and a seal have proved.

use super::verdict::{
    Approval, Book, Card, Decided, Effected, Exceptions, Gap, Origin, Override, Place, Policy, Proved,
    Received, Redaction, Refused, Resolved, Secret, Unknown, Verdict, Vote,
};
use super::verify::Walked;
use super::{Artifact, Segment};
use crate::digest::Digest;
use crate::event::{ApprovalRequested, Event, IntentRecorded, PolicyDecided, RunbookLoaded};
use crate::id::{ApprovalId, Name, RunId, StepId};
use crate::record::Record;
use crate::run::Status;
use crate::stream::StreamId;
use crate::time::Millis;
use crate::{approval, policy};
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::vec::Vec;
use serde_json::Value;

/// What a verdict on a run is read from.
pub(super) struct Proofs<'a> {
    /// The run.
    pub(super) run: RunId,
    /// When the bundle was made.
    pub(super) made_at: Millis,
    /// The run's own stream and those linked to it, walked.
    pub(super) walked: BTreeMap<&'a StreamId, &'a Walked>,
    /// Their lines.
    pub(super) segments: Vec<&'a Segment>,
    /// What the exporter lists.
    pub(super) artifacts: &'a [Artifact],
}

/// Reads the verdict from proved records.
pub(super) fn read(proofs: &Proofs<'_>) -> Verdict {
    let walked = &proofs.walked;
    let mut verdict = Verdict {
        run: proofs.run,
        tenant: None,
        pipeline: None,
        runbook: None,
        origin: None,
        book: None,
        status: None,
        made_at: proofs.made_at,
        streams: walked.iter().filter_map(|(stream, walked)| proved(stream, walked)).collect(),
        effects: Vec::new(),
        approvals: Vec::new(),
        policies: Vec::new(),
        secrets: Vec::new(),
        walls: BTreeMap::new(),
        costs: BTreeMap::new(),
        artifacts: proofs.artifacts.to_vec(),
        exceptions: Exceptions { redactions: redactions(&proofs.segments), ..Exceptions::default() },
        not_proved: Vec::new(),
    };
    let mut notes = Notes::default();
    if let Some(run) = walked.get(&StreamId::Run(proofs.run)) {
        verdict.tenant = run.records.first().map(|record| record.tenant.clone());
        run.records.iter().for_each(|record| verdict.on_run(record, &mut notes));
    }
    for (stream, walked) in walked {
        let records = walked.records.iter();
        match stream {
            StreamId::Effect(_) => records.for_each(|record| verdict.on_effect(record, &notes)),
            StreamId::Tenant(_) => records.for_each(|record| verdict.on_tenant(record)),
            StreamId::Runbook(_) => records.for_each(|record| verdict.on_runbook(record)),
            StreamId::Deployment(_) => records.for_each(|record| notes.on_deployment(record)),
            StreamId::Run(_)
            | StreamId::Queue(_)
            | StreamId::Item(_)
            | StreamId::Lock(_)
            | StreamId::Semaphore(_)
            | StreamId::Worker(_)
            | StreamId::Schedule(_)
            | StreamId::Trigger(_)
            | StreamId::Workspace(_)
            | StreamId::Session(_)
            | StreamId::Tokens(_)
            | StreamId::System
            | StreamId::Signal(_)
            | StreamId::Retired(_) => {}
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
    /// Versions that were made the active one, by whom and when.
    deployed: Vec<(Digest, Option<Name>, Place)>,
}

impl Notes {
    fn on_deployment(&mut self, record: &Record) {
        if let Event::RunbookDeployed(e) = &record.event {
            self.deployed.push((e.hash, e.deployed_by.clone(), place(record)));
        }
    }
}

impl Verdict {
    fn on_run(&mut self, record: &Record, notes: &mut Notes) {
        let place = || place(record);
        match &record.event {
            Event::PipelineCreated(e) => {
                self.pipeline = Some(e.kind.clone());
                self.runbook = Some(e.runbook_hash);
                self.origin = Some(Origin {
                    trigger: e.trigger.clone(),
                    subject: e.subject.clone(),
                    namespace: e.namespace.clone(),
                    lineage: e.lineage.clone(),
                    parent: e.parent,
                    place: place(),
                });
            }
            Event::PipelineCompleted(_) => self.status = Some(Status::Completed),
            Event::PipelineFailed(_) => self.status = Some(Status::Failed),
            Event::PipelineCancelled(_) => self.status = Some(Status::Cancelled),
            Event::ShellExited(e) => {
                let wall = e.wall.as_ref().map_or("not recorded", Name::as_str);
                *self.walls.entry(wall.to_string()).or_default() += 1;
            }
            Event::PolicyDecided(e) => notes.decisions.push((PolicyDecided::clone(e), place())),
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
                        card: e.card,
                        reason: e.reason.as_ref().and_then(|reason| reason.get()),
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
            Event::ApprovalShown(e) => {
                if let Some(approval) = self.approvals.iter_mut().find(|a| a.id == e.approval_id) {
                    let (hash, channel, showing, text) = (e.card_hash, e.channel, e.showing, e.card.get());
                    approval.cards.push(Card { hash, channel, showing, text, place: place() });
                }
            }
            Event::ApprovalExpired(e) => self.settle(e.approval_id, approval::Status::Expired),
            Event::ApprovalCancelled(e) => {
                let given =
                    |a: &&mut Approval| a.id == e.approval_id && a.status == approval::Status::Approved;
                if let Some(approval) = self.approvals.iter_mut().find(given) {
                    approval.withdrawn = Some(place());
                }
                self.settle(e.approval_id, approval::Status::Cancelled);
            }
            Event::StepUnknown(e) => {
                let (step, place) = (e.step.clone(), place());
                self.exceptions.unknown.push(Unknown { step, place, resolved: None });
            }
            Event::StepResolved(e) => {
                let open = |unknown: &&mut Unknown| unknown.step == e.step && unknown.resolved.is_none();
                let (resolution, probed) = (e.resolution, e.probed);
                match self.exceptions.unknown.iter_mut().find(open) {
                    Some(unknown) => {
                        let reason = e.reason.clone();
                        unknown.resolved = Some(Resolved { resolution, probed, reason, place: place() });
                    }
                    None => self.exceptions.overrides.push(Override::Settled {
                        step: e.step.clone(),
                        resolution,
                        place: place(),
                    }),
                }
            }
            Event::PipelineUpdated(_) => {
                self.exceptions.overrides.push(Override::Variables { place: place() });
            }
            Event::GuardWarned(e) => {
                let (step, guard) = (e.step.clone(), e.guard.clone());
                self.exceptions.overrides.push(Override::Guard { step, guard, place: place() });
            }
            Event::HoldBroken(e) => {
                let (step, hold) = (e.step.clone(), e.hold.clone());
                self.exceptions.overrides.push(Override::Broken { step, hold, place: place() });
            }
            Event::ApprovalRefused(e) => self.exceptions.refused.push(Refused {
                by: e.decided_by.clone(),
                refusal: e.refusal,
                approval: e.approval_id,
                place: place(),
            }),
            Event::SecretUsed(e) => self.secrets.push(Secret {
                name: e.secret.clone(),
                version: e.version.clone(),
                step: e.step.clone(),
                epoch: e.epoch,
                place: place(),
            }),
            Event::CostRecorded(e) => {
                let cost = self.costs.entry(alloc::format!("{}/{}", e.provider, e.model)).or_default();
                cost.usd_micros = cost.usd_micros.saturating_add(e.usd_micros);
                cost.tokens_input = cost.tokens_input.saturating_add(e.tokens_input);
                cost.tokens_output = cost.tokens_output.saturating_add(e.tokens_output);
            }
            // tidy: the rest of the run's life is in the records; a report needs no more of it.
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
            Event::ReceiptRecorded(e) if e.pipeline_id == self.run => {
                let received =
                    Received { receipt: e.receipt_id, status: e.status, late: e.late, place: place(record) };
                if let Some(effect) = self.effect(&record.stream, e.generation, Some(e.epoch)) {
                    effect.receipt = Some(received);
                }
            }
            Event::IntentSettled(e) if e.pipeline_id == self.run => {
                let settled = (e.outcome, place(record));
                if let Some(effect) = self.effect(&record.stream, e.generation, Some(e.epoch)) {
                    effect.settled = Some(settled);
                }
            }
            Event::ReceiptReversed(e) => {
                let by = e.reversed_by;
                if let Some(effect) = self.effect(&record.stream, e.generation, None) {
                    effect.reversed_by = Some(by);
                }
            }
            // tidy: an effect's stream has no other facts that a report needs.
            _ => {}
        }
    }

    /// The last intent in a key's stream, of a generation and, where it is known, of an attempt.
    fn effect(&mut self, stream: &StreamId, generation: u32, epoch: Option<u64>) -> Option<&mut Effected> {
        self.effects.iter_mut().rev().find(|effect| {
            let same_attempt = epoch.is_none_or(|epoch| effect.epoch == epoch);
            effect.intent.stream == *stream && effect.generation == generation && same_attempt
        })
    }

    fn effected(&self, intent: &IntentRecorded, place: Place, notes: &Notes) -> Effected {
        let about = |e: &PolicyDecided| match &e.step {
            Some(step) => *step == intent.step && e.action_hash == Some(intent.action_hash),
            None => e.tool == intent.tool,
        };
        // What was said of a guard's command or of a read allows no step.
        let concerns = |e: &PolicyDecided| e.purpose.is_none() && about(e);
        let decision = notes.decisions.iter().rev().find(|(e, p)| concerns(e) && p.at <= place.at);
        let granted = |a: &&Approval| {
            let stood = a.status == approval::Status::Approved
                || a.withdrawn.as_ref().is_some_and(|withdrawn| withdrawn.at > place.at);
            a.step == intent.step && a.action_hash == intent.action_hash && stood
        };
        Effected {
            step: intent.step.clone(),
            key: intent.key.clone(),
            generation: intent.generation,
            epoch: intent.epoch,
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

    fn on_runbook(&mut self, record: &Record) {
        if let Event::RunbookLoaded(e) = &record.event
            && self.runbook == Some(e.hash)
        {
            self.book = Some(book(e, place(record)));
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
        match &mut self.book {
            None => self.not_proved.push(Gap::NoRunbook),
            Some(book) => {
                let of_this = notes.deployed.iter().filter(|(hash, ..)| self.runbook == Some(*hash));
                book.deployed = of_this.map(|(_, by, place)| (by.clone(), place.clone())).collect();
            }
        }
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
    Some(Proved {
        stream: stream.clone(),
        from: walked.after.ver.saturating_add(1),
        through,
        sealed_through,
        seal,
    })
}

fn requested(e: &ApprovalRequested, place: Place) -> Approval {
    Approval {
        id: e.approval_id,
        step: e.step.clone(),
        action: e.action.get(),
        action_hash: e.action_hash,
        policy_version: e.policy_version,
        message: e.message.as_ref().and_then(|message| message.get()),
        reasons: e.reasons.clone(),
        tier: e.tier,
        count: e.count,
        two_person: e.two_person,
        approvers: e.approvers.clone(),
        expires_at: e.expires_at,
        requested_by: e.requested_by.clone(),
        place,
        cards: Vec::new(),
        votes: Vec::new(),
        status: approval::Status::Requested,
        withdrawn: None,
    }
}

fn book(e: &RunbookLoaded, place: Place) -> Book {
    let text = e.source.as_ref().and_then(|source| source.get());
    Book { name: e.name.clone(), text, place, deployed: Vec::new() }
}

/// Private fields whose digest stands before the chain and whose value does not stand after it.
fn redactions(segments: &[&Segment]) -> Vec<Redaction> {
    let mut private: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for spec in Event::specs() {
        let fields = spec.fields.iter().filter(|(_, kind)| kind.starts_with("private"));
        private.insert(spec.tag, fields.map(|(field, _)| *field).collect());
    }
    let mut found = Vec::new();
    for segment in segments {
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
