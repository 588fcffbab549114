//! Tests of evidence of a period: two runs in it, and everything that can be left out.

use super::super::tests::{check, contents, effect_stream, public, run_events, sealed, sign_with};
use super::*;
use crate::audit::chain::tests::lines;
use crate::audit::{Head, Leaf};
use crate::evidence::{About, Contents, Opened};
use crate::run::Status;
use crate::testing::name;
use alloc::vec;

const PERIOD: Period = Period { from: Millis(100), to: Millis(2_002) };

/// The same story as of a bundle for one run, with every seal opened and another run beside it.
fn whole() -> Contents {
    let mut contents = contents();
    let other = StreamId::Run(RunId(2));
    let mut events = run_events();
    events.truncate(1);
    if let Event::PipelineCreated(e) = &mut events[0].1 {
        e.id = RunId(2);
    }
    let (lines, head) = lines(&other, &events, 0);
    let of = |n: usize| contents.inclusions[n].leaf.clone();
    let first = vec![Leaf { stream: other.clone(), ver: head.ver, head: head.head }];
    let second = vec![of(0), of(1), Leaf { stream: StreamId::System, ver: 3, head: Digest([9; 32]) }];
    let one = sealed(1, None, &first, "k1");
    let two = sealed(2, Some(&one), &second, "k2");
    contents.seals = vec![one, two];
    contents.inclusions.clear();
    contents.streams.push(Segment { stream: other, after: Head::default(), lines });
    contents.opened = vec![Opened { seal: 1, leaves: first }, Opened { seal: 2, leaves: second }];
    contents
}

fn verified_in(contents: &Contents, period: Period) -> Result<Population, Vec<Finding>> {
    let bundle =
        contents.bundle(About::Period(period), Millis(3_000), name("k2"), &|bytes| sign_with("k2", bytes));
    verify_period(&bundle, &BTreeMap::from([(name("k1"), public("k1"))]), &check)
}

fn verified(contents: &Contents) -> Result<Population, Vec<Finding>> {
    verified_in(contents, PERIOD)
}

fn found(damage: impl Fn(&mut Contents)) -> Vec<Finding> {
    let mut contents = whole();
    damage(&mut contents);
    verified(&contents).unwrap_err()
}

#[test]
fn every_run_of_the_period_is_told_of_and_nothing_is_left_open() {
    let population = verified(&whole()).unwrap();
    let told: Vec<_> = population.runs.iter().map(|run| (run.run, run.status, run.effects.len())).collect();
    assert_eq!(told, [(RunId(1), Some(Status::Completed), 1), (RunId(2), None, 0)]);
    assert_eq!((population.seals, &population.others[..]), ((1, 2), &[][..]));
    assert_eq!(population.not_proved, []);
    // They began before this one, although they are under its seals.
    let later = verified_in(&whole(), Period { from: Millis(1_500), ..PERIOD }).unwrap();
    assert_eq!((later.runs.len(), &later.others[..]), (0, &[RunId(1), RunId(2)][..]));
}

#[test]
fn what_is_left_out_of_a_period_is_found() {
    let run = StreamId::Run(RunId(1));
    let without_run = found(|c| c.streams.retain(|s| s.stream != StreamId::Run(RunId(1))));
    assert_eq!(without_run, [Finding::LeftOut { stream: run.clone(), ver: 8, seal: 2 }]);
    let without_effect = found(|c| c.streams.retain(|s| s.stream != effect_stream()));
    assert!(matches!(&without_effect[..], [Finding::LeftOut { .. }]), "{without_effect:?}");
    // The leaf is left out along with the run: then it is not what the seal covers.
    let hidden = found(|c| {
        c.streams.retain(|s| s.stream != StreamId::Run(RunId(1)));
        c.opened[1].leaves.retain(|leaf| leaf.stream != StreamId::Run(RunId(1)));
    });
    assert!(hidden.contains(&Finding::Leaves(2)), "{hidden:?}");
    let doubled = found(|c| {
        let leaf = c.opened[1].leaves[0].clone();
        c.opened[1].leaves[2] = leaf;
    });
    assert!(doubled.contains(&Finding::Leaves(2)), "{doubled:?}");
    let tail = found(|c| drop(c.streams[0].lines.pop()));
    assert!(tail.contains(&Finding::LeftOut { stream: run, ver: 8, seal: 2 }), "{tail:?}");
}

#[test]
fn the_seals_of_a_period_have_no_gap_and_begin_with_it() {
    let closed = found(|c| drop(c.opened.remove(0)));
    assert_eq!(closed, [Finding::NotSealed(StreamId::Run(RunId(2))), Finding::Begin(2)]);
    assert!(found(|c| c.opened.clear()).contains(&Finding::NotOpened(1)));
    let third = found(|c| {
        let seal = sealed(4, None, &[], "k2");
        c.opened.push(Opened { seal: 4, leaves: vec![] });
        c.seals.push(seal);
    });
    assert!(third.contains(&Finding::NotOpened(3)), "{third:?}");
    // A seal from before the period vouches for its beginning without being opened.
    let late = Period { from: Millis(2_001), to: Millis(2_002) };
    let mut contents = whole();
    contents.opened.remove(0);
    contents.streams.pop();
    assert_eq!(verified_in(&contents, late).unwrap().runs, []);
}

#[test]
fn what_is_left_open_is_said() {
    let long = Period { to: Millis(9_999), ..PERIOD };
    let open = verified_in(&whole(), long).unwrap().not_proved;
    assert_eq!(open, [Open::NotOver, Open::After { sealed_at: Millis(2_002) }]);
}

#[test]
fn a_bundle_is_of_one_kind() {
    let keys = BTreeMap::from([(name("k1"), public("k1"))]);
    let mut bundle =
        whole().bundle(About::Period(PERIOD), Millis(3_000), name("k2"), &|bytes| sign_with("k2", bytes));
    assert_eq!(crate::evidence::verify(&bundle, &keys, &check).unwrap_err(), [Finding::Subject]);
    bundle.manifest.run = Some(RunId(1));
    let signed = bundle.manifest.signed_bytes();
    bundle.manifest.signature = sign_with("k2", &signed);
    assert_eq!(verify_period(&bundle, &keys, &check).unwrap_err(), [Finding::Subject]);
    let run = contents().bundle(About::Run(RunId(1)), Millis(3_000), name("k2"), &|b| sign_with("k2", b));
    assert_eq!(verify_period(&run, &keys, &check).unwrap_err(), [Finding::Subject]);
}
