//! Tests of seals and of the sealer.

use super::*;
use crate::event::PipelineStarted;
use crate::id::RunId;
use crate::run::Actor;
use crate::testing::{Proof, name};
use alloc::vec;
use proptest::prelude::*;

/// A signature for tests: a digest of key and bytes, twice. The real one is the shell's.
pub(crate) fn sign(key: &Name, bytes: &[u8]) -> Signature {
    let half = Digest::of(&[key.as_str().as_bytes(), b"\n", bytes]).0;
    let mut signature = [0; 64];
    signature[..32].copy_from_slice(&half);
    signature[32..].copy_from_slice(&half);
    Signature(signature)
}

fn check(key: &Name, bytes: &[u8], signature: &Signature) -> bool {
    sign(key, bytes) == *signature
}

fn record(run: u128, ver: u64, seq: u64) -> Record {
    Record {
        stream: StreamId::Run(RunId(run)),
        ver,
        at: Millis(1_000 * seq),
        tenant: name("default"),
        by: Actor::SYSTEM,
        event: PipelineStarted { id: RunId(run), steps: 1, approvers: None }.into(),
        chain: Digest::of(&[&run.to_be_bytes(), &ver.to_be_bytes()]),
        seq,
    }
}

fn rotation(to: &str, from: Option<&str>) -> Rotation {
    let unsigned = Rotation {
        key_id: name(to),
        public_key: Digest::of(&[to.as_bytes()]),
        replaces: from.map(name),
        signature: None,
    };
    let signature = from.map(|from| sign(&name(from), &unsigned.signed_bytes()));
    Rotation { signature, ..unsigned }
}

fn step(sealer: &Sealer, input: &Input) -> Result<Sealer, Error> {
    let decision = sealer.decide(input, Millis(1))?;
    Ok(decision.facts.iter().fold(sealer.clone(), |sealer, fact| sealer.apply(fact, Millis(1))))
}

fn keyed() -> Sealer {
    step(&Sealer::default(), &Input::Rotate(rotation("k1", None))).unwrap()
}

fn signed(sealer: &Sealer, at: Millis) -> Input {
    let proposal = sealer.propose(at).unwrap();
    let signature = sign(&proposal.seal.key_id, &proposal.seal.signed_bytes());
    Input::Seal { proposal, signature }
}

fn seal_of(input: &Input) -> Seal {
    let Input::Seal { proposal, signature } = input else { panic!("{input:?}") };
    Seal { signature: *signature, ..proposal.seal.clone() }
}

#[test]
fn the_table_holds() {
    let dirty = keyed().observe(&record(1, 1, 1));
    let all = signed(&dirty, Millis(5));
    let more = dirty.clone().observe(&record(2, 1, 2));
    Proof {
        name: "sealer",
        about: "What is under a seal and what is not yet; `observe` makes a clean one dirty.",
        table: TABLE,
        states: vec![
            ("keyless", Sealer::default()),
            ("keyless", Sealer::default().observe(&record(1, 1, 1))),
            ("clean", keyed()),
            ("dirty", dirty),
            ("dirty", more),
        ],
        inputs: vec![
            ("seal", all),
            ("rotate", Input::Rotate(rotation("k1", None))),
            ("rotate", Input::Rotate(rotation("k2", Some("k1")))),
        ],
    }
    .check(|sealer, input| step(sealer, input).map(|next| next.state_name()).map_err(|error| error.code()));
}

#[test]
fn a_change_is_sealed_within_the_interval_and_a_seal_is_no_change() {
    let sealer = keyed();
    assert_eq!((sealer.due(), sealer.propose(Millis(1))), (None, None));
    let sealer = sealer.observe(&record(1, 1, 1)).observe(&record(1, 2, 2));
    assert_eq!(sealer.due(), Some(Millis(1_000) + INTERVAL));
    let input = signed(&sealer, Millis(11_000));
    let Decision { facts, .. } = sealer.decide(&input, Millis(11_000)).unwrap();
    let own =
        Record { stream: StreamId::System, event: facts[0].clone(), at: Millis(11_000), ..record(1, 1, 3) };
    let sealed = sealer.observe(&own);
    assert_eq!((sealed.due(), sealed.number, sealed.state_name()), (None, 1, "clean"));
    assert_eq!(sealed.previous, Some(seal_of(&input).hash()));
    // What was answered already is not sealed twice.
    assert_eq!(sealed.observe(&record(3, 1, 4)).decide(&input, Millis(1)), Err(Error::Overtaken(1)));
}

#[test]
fn what_changes_while_a_seal_is_signed_stays_for_the_next() {
    let before = keyed().observe(&record(1, 1, 1)).observe(&record(2, 1, 2));
    let input = signed(&before, Millis(3_000));
    let moved = before.observe(&record(1, 2, 3));
    let sealed = step(&moved, &input).unwrap();
    let left: Vec<_> = sealed.dirty.keys().cloned().collect();
    assert_eq!(left, [StreamId::Run(RunId(1))]);
    assert!(sealed.due().is_some());
}

#[test]
fn a_proposal_must_match_the_heads_that_changed() {
    let sealer = keyed().observe(&record(1, 1, 1)).observe(&record(2, 1, 2));
    let Input::Seal { proposal, signature } = signed(&sealer, Millis(3_000)) else { panic!() };
    let refuse = |damage: &dyn Fn(&mut Proposal)| {
        let mut proposal = proposal.clone();
        damage(&mut proposal);
        sealer.decide(&Input::Seal { proposal, signature }, Millis(1)).unwrap_err()
    };
    assert_eq!(refuse(&|p| p.leaves[0].head = Digest::default()), Error::Leaves(1));
    assert_eq!(refuse(&|p| drop(p.leaves.pop())), Error::Leaves(1));
    assert_eq!(refuse(&|p| p.seal.root = Digest::default()), Error::Leaves(1));
    assert_eq!(refuse(&|p| p.seal.previous = Some(Digest::default())), Error::Overtaken(1));
    assert_eq!(refuse(&|p| p.seal.key_id = name("k9")), Error::Overtaken(1));
}

#[test]
fn a_seal_takes_the_oldest_and_leaves_what_does_not_fit() {
    let mut sealer = keyed();
    for n in 1..=LEAVES_MAX as u64 + 5 {
        sealer = sealer.observe(&record(u128::from(n), 1, n));
    }
    let sealed = step(&sealer, &signed(&sealer, Millis(9))).unwrap();
    assert_eq!(sealed.dirty.len(), 5);
}

#[test]
fn keys_rotate_one_after_the_other() {
    let sealer = keyed();
    let unsigned = Rotation { signature: None, ..rotation("k2", Some("k1")) };
    for bad in [unsigned, rotation("k2", Some("k0")), rotation("k1", Some("k1")), rotation("k2", None)] {
        let refused = step(&sealer, &Input::Rotate(bad.clone()));
        let again = bad.key_id == name("k1");
        assert!(again || refused.is_err(), "{bad:?}");
    }
    let vouched = rotation("k2", Some("k1"));
    assert!(vouched.is_vouched_for(&check));
    assert!(!rotation("k1", None).is_vouched_for(&check));
    let next = step(&sealer, &Input::Rotate(vouched.clone())).unwrap();
    assert_eq!(next.key_id, Some(name("k2")));
    // Back to an old key, or another half under a known name: no.
    assert!(step(&next, &Input::Rotate(rotation("k1", Some("k2")))).is_err());
    let other_half = Rotation { public_key: Digest::default(), ..vouched };
    assert!(step(&next, &Input::Rotate(other_half)).is_err());

    let mut full = sealer;
    full.keys.extend((0..KEYS_MAX).map(|n| (name(&alloc::format!("old{n}")), Digest::default())));
    assert_eq!(
        step(&full, &Input::Rotate(rotation("k2", Some("k1")))).unwrap_err().code(),
        Code::InvalidInput
    );
}

#[test]
fn seals_follow_from_each_other() {
    let sealer = keyed().observe(&record(1, 1, 1));
    let input = signed(&sealer, Millis(5));
    let first = seal_of(&input);
    let sealer = step(&sealer, &input).unwrap().observe(&record(1, 2, 2));
    let second = seal_of(&signed(&sealer, Millis(6)));
    assert_eq!(verify(&first, None, &check), Ok(()));
    assert_eq!(verify(&second, Some(&first), &check), Ok(()));
    // An excerpt may begin anywhere, but only the first seal has none before it.
    assert_eq!(verify(&second, None, &check), Ok(()));
    let orphan = Seal { previous: None, ..second.clone() };
    assert_eq!(verify(&orphan, None, &check), Err(Unsound::Number));
    assert_eq!(verify(&first, Some(&second), &check), Err(Unsound::Number));
    let forged = Seal { at: Millis(4), ..first.clone() };
    assert_eq!(verify(&forged, None, &check), Err(Unsound::Signature));
    assert_eq!(verify(&second, Some(&forged), &check), Err(Unsound::Previous));
    let mut early = Seal { at: Millis(1), ..second };
    early.signature = sign(&early.key_id, &early.signed_bytes());
    assert_eq!(verify(&early, Some(&first), &check), Err(Unsound::Time));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_sequence_keeps_the_invariants(
        picks in prop::collection::vec((0..4u8, 0..5u128), 0..60),
        cut in 0..60usize,
    ) {
        let mut sealer = Sealer::default();
        let mut versions = BTreeMap::<u128, u64>::new();
        let mut sealed = BTreeMap::<StreamId, u64>::new();
        let mut waiting: Option<Input> = None;
        let mut last: Option<Seal> = None;
        let mut log: Vec<Record> = Vec::new();
        let mut keys = 0;
        for (kind, run) in picks {
            let seq = log.len() as u64 + 1;
            let at = Millis(1_000 * seq);
            let event = match kind {
                0 => {
                    let ver = versions.entry(run).or_default();
                    *ver += 1;
                    let next = record(run, *ver, seq);
                    sealer = sealer.observe(&next);
                    log.push(next);
                    continue;
                }
                1 => {
                    waiting = sealer.propose(at).map(|_| signed(&sealer, at));
                    continue;
                }
                2 => waiting.clone(),
                _ => {
                    let from = sealer.key_id.clone();
                    let to = alloc::format!("k{}", keys + 1);
                    Some(Input::Rotate(rotation(&to, from.as_ref().map(Name::as_str))))
                }
            };
            let Some(input) = event else { continue };
            let Ok(decision) = sealer.decide(&input, at) else { continue };
            for fact in decision.facts {
                if let Input::Seal { proposal, .. } = &input {
                    let seal = seal_of(&input);
                    prop_assert_eq!(verify(&seal, last.as_ref(), &check), Ok(()));
                    last = Some(seal);
                    for leaf in &proposal.leaves {
                        let before = sealed.insert(leaf.stream.clone(), leaf.ver);
                        prop_assert!(before.is_none_or(|before| before < leaf.ver));
                    }
                } else {
                    keys += 1;
                }
                let system = StreamId::System;
                let next = Record { stream: system, at, event: fact, ..record(9, seq, log.len() as u64 + 1) };
                sealer = sealer.observe(&next);
                log.push(next);
            }
        }
        // What is not sealed at its last version is still on the list.
        for (run, ver) in &versions {
            let stream = StreamId::Run(RunId(*run));
            let covered = sealed.get(&stream) == Some(ver);
            prop_assert_eq!(sealer.dirty.contains_key(&stream), !covered);
        }
        prop_assert_eq!(sealer.dirty.is_empty(), sealer.dirty_since.is_none());
        let (head, tail) = log.split_at(cut.min(log.len()));
        let fold = |sealer: Sealer, records: &[Record]| records.iter().fold(sealer, |s, r| s.observe(r));
        let snapshot = serde_json::to_string(&fold(Sealer::default(), head)).unwrap();
        prop_assert_eq!(fold(serde_json::from_str(&snapshot).unwrap(), tail), sealer);
    }
}
