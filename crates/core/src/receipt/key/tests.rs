//! The effect key's table, its subtle rules, and E1 and E2 over any history.

use super::*;
use crate::event::Event;
use crate::policy::Risk;
use crate::testing::{Proof, name};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use serde_json::json;

const NOW: Millis = Millis(1_000);

fn action(n: u32) -> Action {
    Action {
        tool: name("github.comment"),
        operation: name("create"),
        target: name("pr/1"),
        fields: json!({"body": n}),
        risk: Risk::Low,
    }
}

fn attempt(run: u128, epoch: u64) -> AttemptId {
    AttemptId { run: RunId(run), step: name("post"), epoch }
}

fn intend(run: u128, epoch: u64, semantics: Semantics) -> Input {
    let action = action(1);
    let action_hash = action.hash();
    Input::Intend(Box::new(Proposal { attempt: attempt(run, epoch), action, action_hash, semantics }))
}

fn other_action(run: u128, epoch: u64) -> Input {
    let action = action(2);
    let (action_hash, semantics) = (action.hash(), Idempotent);
    Input::Intend(Box::new(Proposal { attempt: attempt(run, epoch), action, action_hash, semantics }))
}

fn report(id: u128, run: u128, epoch: u64, status: Outcome) -> Input {
    Input::Receipt(Box::new(Report {
        receipt_id: ReceiptId(id),
        attempt: attempt(run, epoch),
        status,
        reversible: true,
        reverse: None,
        request: None,
        response: Some(json!({"id": id as u64})),
    }))
}

fn lost(run: u128, epoch: u64) -> Input {
    Input::Lost { attempt: attempt(run, epoch) }
}

fn settle(run: u128, epoch: u64, outcome: Settled) -> Input {
    Input::Settle { attempt: attempt(run, epoch), outcome, probed: false }
}

fn reverse(id: u128) -> Input {
    Input::Reverse { receipt_id: ReceiptId(id), by: RunId(9) }
}

use Outcome::{Failed, Succeeded};
use Semantics::{AtMostOnce, Idempotent, Reconcile};

fn fresh() -> EffectKey {
    EffectKey::new(name("tenant/k"))
}

fn step(key: EffectKey, input: &Input) -> (EffectKey, Result<Reply, Error>) {
    match key.decide(input, NOW) {
        Ok(decision) => (decision.facts.iter().fold(key, |k, fact| k.apply(fact, NOW)), Ok(decision.reply)),
        Err(error) => (key, Err(error)),
    }
}

/// The key after these inputs, all of which must be taken.
fn after(inputs: &[Input]) -> EffectKey {
    inputs.iter().fold(fresh(), |key, input| {
        let (next, reply) = step(key, input);
        reply.unwrap();
        next
    })
}

fn code(key: &EffectKey, input: &Input) -> Code {
    step(key.clone(), input).1.unwrap_err().code()
}

#[test]
fn the_table_holds() {
    let once = intend(1, 1, AtMostOnce);
    let again = intend(1, 1, Idempotent);
    let done = report(1, 1, 1, Succeeded);
    Proof {
        name: "effect_key",
        about: "An effect on the outside world happens once.",
        table: TABLE,
        states: vec![
            ("free", fresh()),
            ("free", after(&[once.clone(), done.clone(), reverse(1)])),
            ("intended", after(core::slice::from_ref(&once))),
            ("intended", after(core::slice::from_ref(&again))),
            ("succeeded", after(&[once.clone(), done.clone()])),
            ("succeeded", after(&[once.clone(), lost(1, 1), settle(1, 1, Settled::Done)])),
            ("failed", after(&[once.clone(), report(2, 1, 1, Failed)])),
            ("failed", after(&[once.clone(), lost(1, 1), settle(1, 1, Settled::NotDone)])),
            ("unknown", after(&[once, lost(1, 1)])),
            ("unknown", after(&[again, lost(1, 1)])),
        ],
        inputs: vec![
            ("intend", intend(1, 2, AtMostOnce)),
            ("intend", intend(2, 1, Idempotent)),
            ("intend", other_action(1, 2)),
            ("receipt", done),
            ("receipt", report(2, 1, 1, Failed)),
            ("receipt", report(3, 7, 1, Succeeded)),
            ("lost", lost(1, 1)),
            ("settle", settle(1, 1, Settled::Done)),
            ("settle", settle(1, 1, Settled::NotDone)),
            ("settle", settle(1, 1, Settled::Abandoned)),
            ("reverse", reverse(1)),
        ],
    }
    .check(|key, input| match step(key.clone(), input) {
        (next, Ok(_)) => Ok(next.state_name()),
        (_, Err(error)) => Err(error.code()),
    });
}

#[test]
fn a_success_is_reused_and_never_repeated() {
    let key = after(&[intend(1, 1, Idempotent), report(1, 1, 1, Succeeded)]);
    let reuse = Reply::Reuse { run: RunId(1), response: Some(json!({"id": 1})) };
    assert_eq!(step(key.clone(), &intend(2, 1, Idempotent)), (key.clone(), Ok(reuse)));
    assert_eq!(code(&key, &other_action(2, 1)), Code::IdempotencyConflict);
}

#[test]
fn a_retry_over_an_open_intent_depends_on_the_tool() {
    for semantics in [AtMostOnce, Reconcile] {
        let key = after(&[intend(1, 1, semantics)]);
        // What the new attempt declares does not change what the old one may have done.
        assert_eq!(code(&key, &intend(1, 2, Idempotent)), Code::OutcomeUnknown);
        let key = after(&[intend(1, 1, semantics), lost(1, 1)]);
        assert_eq!(code(&key, &intend(1, 2, Idempotent)), Code::OutcomeUnknown);
        assert_eq!(code(&key, &intend(2, 1, Idempotent)), Code::OutcomeUnknown);
    }
    let key = after(&[intend(1, 1, Idempotent)]);
    assert_eq!(step(key.clone(), &intend(1, 2, Idempotent)).1, Ok(Reply::Granted { generation: 1 }));
    assert_eq!(code(&key, &other_action(1, 2)), Code::OutcomeUnknown);
    assert_eq!(code(&key, &intend(2, 1, Idempotent)), Code::IdempotencyConflict);
}

#[test]
fn an_older_epoch_gets_nothing_and_the_same_one_no_second_permission() {
    let key = after(&[intend(1, 1, Idempotent), intend(1, 3, Idempotent)]);
    assert_eq!(step(key.clone(), &intend(1, 3, Idempotent)), (key.clone(), Ok(Reply::Standing)));
    assert_eq!(code(&key, &intend(1, 2, Idempotent)), Code::LeaseStaleEpoch);
    assert_eq!(code(&key, &lost(1, 1)), Code::LeaseStaleEpoch);
    assert_eq!(code(&key, &report(1, 1, 1, Failed)), Code::LeaseStaleEpoch);
    let failed = after(&[intend(1, 3, Idempotent), report(1, 1, 3, Failed)]);
    assert_eq!(code(&failed, &intend(1, 3, Idempotent)), Code::LeaseStaleEpoch);
    let reversed = after(&[intend(1, 3, Idempotent), report(1, 1, 3, Succeeded), reverse(1)]);
    assert_eq!(code(&reversed, &intend(1, 3, Idempotent)), Code::LeaseStaleEpoch);
}

#[test]
fn a_late_success_is_recorded_and_settles_the_key() {
    let late = report(5, 1, 1, Succeeded);
    for history in [
        vec![intend(1, 1, AtMostOnce), lost(1, 1)],
        vec![intend(1, 1, AtMostOnce), lost(1, 1), settle(1, 1, Settled::NotDone)],
        vec![intend(1, 1, AtMostOnce), lost(1, 1), settle(1, 1, Settled::Abandoned)],
        vec![intend(1, 1, AtMostOnce), lost(1, 1), settle(1, 1, Settled::Done)],
        vec![intend(1, 1, Idempotent), intend(1, 2, Idempotent)],
        vec![intend(1, 1, AtMostOnce), lost(1, 1), settle(1, 1, Settled::NotDone), intend(1, 2, AtMostOnce)],
        vec![intend(1, 1, Idempotent), intend(1, 2, Idempotent), report(6, 1, 2, Failed)],
    ] {
        let (key, reply) = step(after(&history), &late);
        assert_eq!((key.state_name(), reply), ("succeeded", Ok(Reply::Recorded { late: true })));
        assert!(key.receipt().unwrap().late);
        // The attempt that was at it reports too: nothing new.
        assert_eq!(step(key.clone(), &late), (key, Ok(Reply::Standing)));
    }
}

#[test]
fn a_receipt_nobody_intended_is_refused() {
    assert_eq!(code(&fresh(), &report(1, 1, 1, Succeeded)), Code::NotFound);
    let key = after(&[intend(1, 2, AtMostOnce)]);
    assert_eq!(code(&key, &report(1, 2, 2, Succeeded)), Code::NotFound);
    assert_eq!(code(&key, &report(1, 1, 1, Succeeded)), Code::LeaseStaleEpoch);
    // Nor does one of the generation before count for the next.
    let key = after(&[
        intend(1, 1, Idempotent),
        intend(1, 2, Idempotent),
        report(1, 1, 2, Succeeded),
        reverse(1),
        intend(1, 3, Idempotent),
    ]);
    assert_eq!(key.generation, 2);
    for epoch in [1, 2] {
        assert_eq!(code(&key, &report(2, 1, epoch, Succeeded)), Code::LeaseStaleEpoch);
    }
}

#[test]
fn an_old_probe_does_not_settle_a_new_intent() {
    let key = after(&[
        intend(1, 1, AtMostOnce),
        lost(1, 1),
        settle(1, 1, Settled::NotDone),
        intend(1, 2, AtMostOnce),
        lost(1, 2),
    ]);
    assert_eq!(code(&key, &settle(1, 1, Settled::NotDone)), Code::LeaseStaleEpoch);
}

#[test]
fn what_is_done_is_what_was_decided_about() {
    let Input::Intend(mut wanted) = intend(1, 1, AtMostOnce) else { panic!() };
    wanted.action = action(2);
    let forged = Input::Intend(wanted);
    assert_eq!(code(&fresh(), &forged), Code::ApprovalHashMismatch);
}

#[test]
fn only_what_can_be_taken_back_is() {
    let Input::Receipt(mut fixed) = report(1, 1, 1, Succeeded) else { panic!() };
    fixed.reversible = false;
    let key = after(&[intend(1, 1, AtMostOnce), Input::Receipt(fixed)]);
    assert_eq!(code(&key, &reverse(1)), Code::RunInvalidTransition);
    assert_eq!(code(&key, &reverse(2)), Code::NotFound);
    let key = after(&[intend(1, 1, AtMostOnce), report(1, 1, 1, Succeeded), reverse(1)]);
    assert_eq!(key.receipt().unwrap().reversed_by, Some(RunId(9)));
    assert_eq!(step(key.clone(), &reverse(1)), (key, Ok(Reply::Standing)));
}

#[test]
fn the_attempts_that_are_remembered_are_bounded() {
    let last = EARLIER_MAX as u64 + 3;
    let history: Vec<_> = (1..=last).map(|epoch| intend(1, epoch, Idempotent)).collect();
    let key = after(&history);
    let State::Intended { intent } = &key.state else { panic!() };
    assert_eq!(intent.earlier.len(), EARLIER_MAX);
    assert_eq!(code(&key, &report(1, 1, 1, Succeeded)), Code::LeaseStaleEpoch);
    assert!(step(key, &report(1, 1, last - 1, Succeeded)).1.is_ok());
}

#[test]
fn a_receipt_is_never_refused_for_its_size() {
    let Input::Receipt(mut large) = report(1, 1, 1, Succeeded) else { panic!() };
    large.response = Some("x".repeat(crate::receipt::BODY_LEN_MAX).into());
    let key = after(&[intend(1, 1, AtMostOnce), Input::Receipt(large)]);
    assert_eq!(key.receipt().unwrap().response.as_ref().unwrap()["omitted"], json!(true));
}

fn any_input() -> impl Strategy<Value = Input> {
    let who = || (1..3u128, 1..6u64);
    let semantics = prop_oneof![Just(Idempotent), Just(Reconcile), Just(AtMostOnce)];
    prop_oneof![
        4 => (who(), semantics).prop_map(|((run, epoch), semantics)| intend(run, epoch, semantics)),
        1 => who().prop_map(|(run, epoch)| other_action(run, epoch)),
        4 => (who(), 1..9u128, any::<bool>()).prop_map(|((run, epoch), id, ok)| {
            report(id, run, epoch, if ok { Succeeded } else { Failed })
        }),
        2 => who().prop_map(|(run, epoch)| lost(run, epoch)),
        2 => (who(), 0..3usize).prop_map(|((run, epoch), n)| settle(run, epoch, Settled::ALL[n])),
        1 => (1..9u128).prop_map(reverse),
    ]
}

proptest! {
    #[test]
    fn any_history_keeps_the_promises(inputs in prop::collection::vec(any_input(), 0..80)) {
        let (mut key, mut log) = (fresh(), Vec::new());
        // What the facts alone say: whether the effect stands, and whose outcome is open.
        let (mut stands, mut open, mut generation) = (false, None::<Semantics>, 1);
        for input in inputs {
            let before = key.clone();
            let Ok(decision) = key.decide(&input, NOW) else { continue };
            if matches!(decision.reply, Reply::Granted { .. }) {
                prop_assert!(!stands, "E1: granted although it has happened");
                prop_assert!(open.is_none_or(|s| s == Idempotent), "E2: retried silently");
                prop_assert_eq!(decision.facts.len(), 1);
            }
            for fact in decision.facts {
                match &fact {
                    Event::IntentRecorded(e) => open = Some(e.semantics),
                    Event::ReceiptRecorded(e) => (stands, open) = (e.status == Succeeded, None),
                    Event::IntentSettled(e) if e.outcome != Settled::Abandoned => {
                        (stands, open) = (e.outcome == Settled::Done, None);
                    }
                    Event::ReceiptReversed(_) => stands = false,
                    _ => {}
                }
                let text = serde_json::to_string(&key).unwrap();
                key = serde_json::from_str::<EffectKey>(&text).unwrap().apply(&fact, NOW);
                log.push(fact);
            }
            prop_assert!(key.generation >= generation, "generations only grow");
            prop_assert_eq!(key.generation > generation, before.state_name() == "succeeded" && !stands);
            generation = key.generation;
            prop_assert_eq!(key.state_name() == "succeeded", stands);
        }
        let whole = log.iter().fold(fresh(), |k, fact| k.apply(fact, NOW));
        prop_assert_eq!(whole, key);
    }
}
