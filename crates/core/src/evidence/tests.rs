//! Tests of evidence: a small run with an approved effect, and everything that can be done to its bundle.

use super::*;
use crate::approval::{Channel, Tier, Verdict as Vote};
use crate::audit::chain::tests::lines;
use crate::audit::tests::sign;
use crate::audit::{Broken, Unsound, proof, root};
use crate::event::*;
use crate::id::{ApprovalId, ReceiptId, Scoped};
use crate::packed::Packed;
use crate::policy::{Risk, Verdict as Says};
use crate::private::Private;
use crate::receipt::{Action, Outcome, Semantics};
use crate::record::{Check, Record};
use crate::run::{Actor, Initiator, Lineage, Source, Status, Trigger};
use crate::step::Resolution;
use crate::testing::name;
use alloc::vec;
use proptest::prelude::*;

const RUN: RunId = RunId(1);

pub(super) fn effect_stream() -> StreamId {
    StreamId::Effect(Scoped::parse("default/default/key").unwrap())
}

pub(super) fn public(key: &str) -> Digest {
    Digest::of(&[b"public ", key.as_bytes()])
}

/// The test's keys sign with their public halves, which only a test may do.
pub(super) fn sign_with(key: &str, bytes: &[u8]) -> Signature {
    sign(&Name::clean(&alloc::format!("{}", public(key))), bytes)
}

pub(super) fn check(public: &Digest, bytes: &[u8], signature: &Signature) -> bool {
    sign(&Name::clean(&alloc::format!("{public}")), bytes) == *signature
}

fn action() -> Action {
    Action {
        tool: name("servicenow.update"),
        operation: name("update"),
        target: name("incident/7"),
        fields: serde_json::json!({"state": "resolved"}),
        risk: Risk::High,
    }
}

pub(super) fn run_events() -> Vec<(Actor, Event)> {
    let (step, hash, version) = (name("resolve"), action().hash(), Digest([5; 32]));
    let ann = Actor::new(Initiator::User, "ann");
    vec![
        (
            ann.clone(),
            PipelineCreated {
                id: RUN,
                kind: name("triage"),
                name: name("triage"),
                runbook_hash: Digest([4; 32]),
                cwd: "/".into(),
                vars: Private::New(Packed::of(&serde_json::json!({"ticket": "secret-ticket"}))),
                initial_step: None,
                created_at_epoch_ms: Millis(1),
                namespace: name("default"),
                trigger: Trigger {
                    source: Source::Cli,
                    key: None,
                    user: None,
                    event_id: None,
                    traceparent: None,
                    of: None,
                },
                lineage: Lineage::first(RUN),
                subject: None,
                correlation_id: None,
                deadline_at: None,
                priority: None,
                parent: None,
                parent_step: None,
                depth: None,
                needs: None,
                lock: None,
                initial_node: None,
                budget_usd_micros: None,
                budget_tokens: None,
                writes_max: None,
                workspace: None,
                budget_time_ms: None,
                budget_writes: None,
                needs_pipelines: None,
                asked_by: None,
                takes_back: None,
                evidence: None,
            }
            .into(),
        ),
        (
            Actor::SYSTEM,
            PolicyDecided {
                pipeline_id: RUN,
                step: Some(step.clone()),
                tool: name("servicenow.update"),
                verdict: Says::NeedsApproval,
                policy_version: version,
                action_hash: Some(hash),
                approvals: 0,
                rules: vec!["writes".into()],
                reasons: vec![],
                risk: Risk::High,
                tier: None,
                count: None,
                two_person: None,
                approvers: None,
                expires_ms: None,
                purpose: None,
            }
            .into(),
        ),
        (
            Actor::SYSTEM,
            ApprovalRequested {
                approval_id: ApprovalId(3),
                pipeline_id: RUN,
                step: step.clone(),
                tier: Tier::High,
                two_person: false,
                count: 1,
                approvers: vec![],
                action_hash: hash,
                policy_version: version,
                reasons: vec![],
                requested_by: name("ann"),
                expires_at: Millis(9_999),
                self_approval: true,
                message: None,
                action: Private::New(action()),
                by_step: None,
                changed_by: None,
            }
            .into(),
        ),
        (
            ann.clone(),
            ApprovalDecided {
                approval_id: ApprovalId(3),
                pipeline_id: RUN,
                step: step.clone(),
                decision: Vote::Approved,
                decided_by: name("ann"),
                action_hash: hash,
                channel: Channel::Cli,
                settled: true,
                own_request: true,
                reason: None,
                card: None,
            }
            .into(),
        ),
        (
            Actor::SYSTEM,
            StepUnknown { pipeline_id: RUN, step: step.clone(), epoch: 1, last_seen: None, probe: false }
                .into(),
        ),
        (
            ann,
            StepResolved {
                pipeline_id: RUN,
                step: step.clone(),
                epoch: 1,
                resolution: Resolution::Done,
                probed: false,
                reason: Some("looked".into()),
            }
            .into(),
        ),
        (
            Actor::SYSTEM,
            CostRecorded {
                pipeline_id: RUN,
                step,
                epoch: 1,
                provider: name("acme"),
                model: name("m1"),
                usd_micros: 40,
                tokens_input: 2,
                tokens_output: 3,
                time_ms: None,
                writes: None,
            }
            .into(),
        ),
        (Actor::SYSTEM, PipelineCompleted { id: RUN, duration_ms: 5, outputs: None }.into()),
    ]
}

fn effect_events() -> Vec<(Actor, Event)> {
    let (key, step, hash) = (name("key"), name("resolve"), action().hash());
    let (tool, operation, target) = (action().tool, action().operation, action().target);
    let mut events: Vec<(Actor, Event)> = (0..3)
        .map(|n| {
            (
                Actor::SYSTEM,
                Event::from(TimerStart {
                    id: name(&alloc::format!("before{n}")),
                    pipeline_id: None,
                    step: None,
                    until: None,
                }),
            )
        })
        .collect();
    events.push((
        Actor::SYSTEM,
        IntentRecorded {
            key: key.clone(),
            generation: 1,
            pipeline_id: RUN,
            step: step.clone(),
            epoch: 1,
            tool: tool.clone(),
            operation: operation.clone(),
            target: target.clone(),
            action_hash: hash,
            semantics: Semantics::AtMostOnce,
        }
        .into(),
    ));
    events.push((
        Actor::SYSTEM,
        ReceiptRecorded {
            receipt_id: ReceiptId(8),
            key,
            generation: 1,
            pipeline_id: RUN,
            step,
            epoch: 1,
            tool,
            operation,
            target,
            status: Outcome::Succeeded,
            reversible: false,
            late: false,
            reverse: None,
            request: Some(Private::New(serde_json::json!({"state": "resolved"}))),
            response: None,
        }
        .into(),
    ));
    events
}

pub(super) fn sealed(number: u64, previous: Option<&Seal>, leaves: &[Leaf], key: &str) -> Seal {
    let mut seal = Seal {
        number,
        root: root(leaves),
        leaves: leaves.len() as u64,
        previous: previous.map(Seal::hash),
        key_id: name(key),
        signature: Signature::default(),
        at: Millis(2_000 + number),
    };
    seal.signature = sign_with(key, &seal.signed_bytes());
    seal
}

/// Two streams, two seals, a key that took over between them.
pub(super) fn contents() -> Contents {
    let streams = [(StreamId::Run(RUN), run_events()), (effect_stream(), effect_events())];
    let mut contents = Contents::default();
    let mut leaves = vec![Leaf { stream: StreamId::System, ver: 3, head: Digest([9; 32]) }];
    for (stream, events) in streams {
        let (lines, head) = lines(&stream, &events, 100);
        leaves.push(Leaf { stream: stream.clone(), ver: head.ver, head: head.head });
        contents.streams.push(Segment { stream, after: Head::default(), lines });
    }
    let first = sealed(1, None, &leaves[..1], "k1");
    let second = sealed(2, Some(&first), &leaves, "k2");
    for leaf in &leaves[1..] {
        let proof = proof(&leaves, &leaf.stream).unwrap();
        contents.inclusions.push(Inclusion { leaf: leaf.clone(), seal: 2, proof });
    }
    let mut rotation = Rotation {
        key_id: name("k2"),
        public_key: public("k2"),
        replaces: Some(name("k1")),
        signature: None,
    };
    rotation.signature = Some(sign_with("k1", &rotation.signed_bytes()));
    contents.seals = vec![first, second];
    contents.keys = vec![rotation];
    contents
}

fn bundle(contents: &Contents) -> Bundle {
    contents.bundle(About::Run(RUN), Millis(3_000), name("k2"), &|bytes| sign_with("k2", bytes))
}

fn verified(bundle: &Bundle) -> Result<Verdict, Vec<Finding>> {
    verify(bundle, &BTreeMap::from([(name("k1"), public("k1"))]), &check)
}

/// What is found in contents that were damaged by somebody who can sign a manifest.
fn found(damage: impl Fn(&mut Contents)) -> Vec<Finding> {
    let mut contents = contents();
    damage(&mut contents);
    verified(&bundle(&contents)).unwrap_err()
}

#[test]
fn a_good_bundle_tells_the_whole_story() {
    let contents = contents();
    let bundle = bundle(&contents);
    assert_eq!(Contents::read(&bundle.parts), Ok(contents));
    let verdict = verified(&bundle).unwrap();
    assert_eq!((verdict.status, verdict.pipeline.clone()), (Some(Status::Completed), Some(name("triage"))));
    let [effect] = &verdict.effects[..] else { panic!("{:?}", verdict.effects) };
    assert_eq!(effect.decision.as_ref().map(|d| d.verdict), Some(Says::NeedsApproval));
    assert_eq!(effect.approval, Some(ApprovalId(3)));
    assert_eq!((effect.intent.ver, effect.receipt.as_ref().unwrap().receipt), (4, ReceiptId(8)));
    assert_eq!(verdict.approvals[0].action, Some(action()));
    assert_eq!(verdict.costs["acme/m1"].usd_micros, 40);
    let Exceptions { self_approvals, unknown, redactions, undecided, overrides, refused } =
        &verdict.exceptions;
    assert!(overrides.is_empty() && refused.is_empty());
    assert_eq!((self_approvals.len(), redactions.len(), undecided.len()), (1, 0, 0));
    let resolved = unknown[0].resolved.as_ref().unwrap();
    assert_eq!(resolved.place.by, Actor::new(Initiator::User, "ann"));
    assert_eq!(verdict.not_proved, [Gap::NoRunbook, Gap::NoPolicyText { version: Digest([5; 32]) }]);
    assert_eq!(verdict.origin.unwrap().place.by, Actor::new(Initiator::User, "ann"));
    assert!(verdict.streams.iter().all(|proved| proved.sealed_through == proved.through));
}

#[test]
fn damage_to_records_is_found_even_under_a_fresh_manifest() {
    let broken = |damage: &dyn Fn(&mut Vec<String>)| {
        let findings = found(|c| damage(&mut c.streams[0].lines));
        let chain = findings.into_iter().find_map(|finding| match finding {
            Finding::Chain(found) => Some((found.ver, found.what)),
            _ => None,
        });
        chain.unwrap()
    };
    assert_eq!(
        broken(&|l| l[3] = l[3].replace("\"by\":\"user:ann\"", "\"by\":\"user:bob\"")),
        (4, Broken::Changed)
    );
    assert_eq!(broken(&|l| drop(l.remove(3))), (4, Broken::Dropped));
    assert_eq!(broken(&|l| l.swap(3, 4)), (4, Broken::Swapped));
    assert_eq!(broken(&|l| l.insert(4, l[3].clone())), (5, Broken::Doubled(4)));
    assert_eq!(
        broken(&|l| l[0] = l[0].replace("secret-ticket", "other-ticket")),
        (1, Broken::Value("vars".into()))
    );
    // Cutting off the end breaks no chain, but the sealed head is not there any more.
    let findings = found(|c| drop(c.streams[0].lines.pop()));
    assert!(matches!(&findings[0], Finding::Inclusion { ver: 8, .. }), "{findings:?}");
    // A history written anew, as long as the old one and sound in itself, has another head; and a leaf that
    // is changed along with it is not under the seal's root.
    for with_leaf in [false, true] {
        let findings = found(|c| {
            let mut events = run_events();
            events[3].0 = Actor::new(Initiator::User, "bob");
            let (lines, head) = lines(&StreamId::Run(RUN), &events, 100);
            c.streams[0].lines = lines;
            if with_leaf {
                c.inclusions[0].leaf.head = head.head;
            }
        });
        assert!(matches!(&findings[0], Finding::Inclusion { ver: 8, .. }), "{findings:?}");
    }
}

#[test]
fn what_is_left_out_is_found() {
    let run = StreamId::Run(RUN);
    assert!(found(|c| drop(c.streams.remove(0))).contains(&Finding::Incomplete(run.clone())));
    assert_eq!(found(|c| drop(c.inclusions.remove(1))), [Finding::NotSealed(effect_stream())]);
    assert!(found(|c| c.streams.push(c.streams[1].clone())).contains(&Finding::Incomplete(effect_stream())));
    assert!(found(|c| drop(c.seals.pop())).iter().all(|f| !matches!(f, Finding::Chain(_))));
    let excerpt = |c: &mut Contents| {
        let head = Record::decode(&c.streams[0].lines[1], Check::Form).unwrap().chain;
        c.streams[0].after = Head { ver: 2, head };
        c.streams[0].lines.drain(..2);
    };
    assert_eq!(found(excerpt), [Finding::Incomplete(run)]);
}

#[test]
fn an_excerpt_of_a_linked_stream_verifies_and_is_said_to_be_one() {
    let mut contents = contents();
    let segment = &mut contents.streams[1];
    let head = Record::decode(&segment.lines[2], Check::Form).unwrap().chain;
    segment.after = Head { ver: 3, head };
    segment.lines.drain(..3);
    let verdict = verified(&bundle(&contents)).unwrap();
    assert!(verdict.not_proved.contains(&Gap::Excerpt { stream: effect_stream(), from: 4 }));
}

#[test]
fn another_keys_signature_is_found() {
    let forged = found(|c| {
        c.seals[1].signature = sign_with("evil", &c.seals[1].signed_bytes());
    });
    assert_eq!(forged[0], Finding::Seal { number: 2, why: Unsound::Signature });
    let own_key = found(|c| {
        let leaves = c.seals[1].leaves;
        c.seals[1].key_id = name("evil");
        c.seals[1].signature = sign_with("evil", &c.seals[1].signed_bytes());
        c.seals[1].leaves = leaves;
    });
    assert_eq!(own_key[0], Finding::Seal { number: 2, why: Unsound::Signature });
    let foisted = found(|c| {
        c.keys[0].public_key = public("evil");
    });
    assert_eq!(foisted[0], Finding::Key(name("k2")));
    let swapped = found(|c| c.seals.swap(0, 1));
    assert!(swapped.contains(&Finding::Seal { number: 1, why: Unsound::Number }));
    let detached = found(|c| c.seals[0] = sealed(1, None, &[], "k1"));
    assert!(detached.contains(&Finding::Seal { number: 2, why: Unsound::Previous }));
    let unsigned =
        contents().bundle(About::Run(RUN), Millis(3_000), name("k2"), &|bytes| sign_with("evil", bytes));
    assert_eq!(verified(&unsigned).unwrap_err(), [Finding::Manifest(name("k2"))]);
    // Without any trusted key nothing is believed.
    assert!(verify(&bundle(&contents()), &BTreeMap::new(), &check).is_err());
}

#[test]
fn a_redacted_value_still_verifies_and_is_listed() {
    let mut contents = contents();
    contents.streams[0].lines[0] = without_values(&contents.streams[0].lines[0]).unwrap();
    assert!(!contents.streams[0].lines[0].contains("secret-ticket"));
    let verdict = verified(&bundle(&contents)).unwrap();
    let redacted = Redaction { stream: StreamId::Run(RUN), ver: 1, field: "vars".into() };
    assert_eq!(verdict.exceptions.redactions, [redacted]);
    assert_eq!(without_values("{}"), None);
}

#[test]
fn an_effect_without_an_allow_is_an_exception() {
    // The same effects, but nobody asked policy.
    let mut contents = contents();
    let events: Vec<_> = run_events().into_iter().filter(|e| e.1.tag() == "pipeline:created").collect();
    let (stream, key) = (StreamId::Run(RUN), "k1");
    let (lines, head) = lines(&stream, &events, 0);
    let mut leaves: Vec<Leaf> = contents.inclusions.iter().map(|i| i.leaf.clone()).collect();
    leaves[0] = Leaf { stream: stream.clone(), ver: head.ver, head: head.head };
    contents.streams[0].lines = lines;
    contents.seals = vec![sealed(1, None, &leaves, key)];
    for (inclusion, leaf) in contents.inclusions.iter_mut().zip(&leaves) {
        let proof = proof(&leaves, &leaf.stream).unwrap();
        *inclusion = Inclusion { leaf: leaf.clone(), seal: 1, proof };
    }
    let verdict = verified(&bundle(&contents)).unwrap();
    assert_eq!(verdict.exceptions.undecided.len(), 1);
    assert!(verdict.not_proved.contains(&Gap::NotEnded));
}

#[test]
fn parts_have_their_place_and_number() {
    let mut extra = bundle(&contents());
    extra.parts.insert("notes.txt".into(), b"trust me".to_vec());
    let why = String::from("the manifest does not list it");
    assert_eq!(verified(&extra).unwrap_err()[0], Finding::Part { name: "notes.txt".into(), why });
    let mut missing = bundle(&contents());
    missing.parts.remove(SEALS);
    assert_eq!(verified(&missing).unwrap_err(), [fault(SEALS, "it is missing")]);
    let many = contents();
    let one = Segment { stream: StreamId::System, after: Head::default(), lines: vec![] };
    let many = Contents { streams: vec![one; STREAMS_MAX + 1], ..many };
    assert!(matches!(Contents::read(&bundle(&many).parts), Err(Finding::Part { .. })));
    let other = found(|c| drop(c.files.insert("log.txt".into(), b"x".to_vec())));
    assert_eq!(other, [fault("log.txt", "it is not the artifact that is listed")]);
    let mut newer = bundle(&contents());
    newer.manifest.schema = "windlass.evidence/2".into();
    assert!(matches!(&verified(&newer).unwrap_err()[..], [Finding::Schema(_)]));
}

#[test]
fn findings_are_bounded() {
    let mut bundle = bundle(&contents());
    bundle.parts.extend((0..2 * FINDINGS_MAX).map(|n| (alloc::format!("{FILES}{n}"), vec![])));
    assert_eq!(verified(&bundle).unwrap_err().len(), FINDINGS_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_changed_byte_of_any_part_is_found(part: prop::sample::Index, at: prop::sample::Index, bit in 0..8u32) {
        let mut bundle = bundle(&contents());
        let names: Vec<String> = bundle.parts.iter().filter(|p| !p.1.is_empty()).map(|p| p.0.clone()).collect();
        let bytes = bundle.parts.get_mut(part.get(&names)).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(verified(&bundle).is_err());
    }

    #[test]
    fn any_changed_byte_of_the_manifest_is_found(at: prop::sample::Index, bit in 0..7u32) {
        let good = bundle(&contents());
        let mut bytes = serde_json::to_vec(&good.manifest).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(manifest) = serde_json::from_slice::<Manifest>(&bytes) && manifest != good.manifest {
            let changed = Bundle { manifest, ..good };
            prop_assert!(verified(&changed).is_err());
        }
    }

    #[test]
    fn a_changed_line_under_a_fresh_manifest_is_found(
        stream in 0..2usize, line: prop::sample::Index, at: prop::sample::Index, bit in 0..7u32,
    ) {
        let mut contents = contents();
        let line = line.get_mut(&mut contents.streams[stream].lines);
        let mut bytes = line.clone().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
        // The store's own counter proves nothing; the manifest alone covers it.
        let seq = line.find(",\"seq\":").unwrap() + 7;
        prop_assume!(!(seq..seq + 3).contains(&at));
        *line = changed;
        prop_assert!(verified(&bundle(&contents)).is_err());
    }
}
