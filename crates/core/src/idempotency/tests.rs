//! The ingress key's table, its subtle rules, and one run per delivery over any history.

use super::*;
use crate::testing::{Proof, name};
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use serde_json::json;

const NOW: Millis = Millis(1_000_000);
const HASH: Digest = Digest([1; 32]);
const OTHER: Digest = Digest([2; 32]);

fn fresh() -> Key {
    Key::new(name("api:local:1"))
}

fn claim(run: u128) -> Input {
    Input::Claim { source: Source::Api, request_hash: HASH, run: Some(RunId(run)) }
}

fn complete(attempt: u32) -> Input {
    Input::Complete { attempt, run: None, response: Some(json!({"ok": true})), ttl: None }
}

fn fail(attempt: u32) -> Input {
    Input::Fail { attempt, error: "no".into() }
}

fn step(key: Key, input: &Input, at: Millis) -> (Key, Result<Reply, Error>) {
    match key.decide(input, at) {
        Ok(decision) => (decision.facts.iter().fold(key, |k, fact| k.apply(fact, at)), Ok(decision.reply)),
        Err(error) => (key, Err(error)),
    }
}

fn after(inputs: &[Input]) -> Key {
    inputs.iter().fold(fresh(), |key, input| step(key, input, NOW).0)
}

#[test]
fn the_table_holds() {
    let late = NOW + Span::hours(24);
    let expired = step(after(&[claim(1), complete(1)]), &Input::Tick, late).0;
    Proof {
        name: "ingress_key",
        about: "One delivery, one run, one answer.",
        table: TABLE,
        states: vec![
            ("absent", (fresh(), NOW)),
            ("processing", (after(&[claim(1)]), NOW)),
            ("processing", (after(&[claim(1)]), NOW + LOCK_TTL)),
            ("processing", (after(&[claim(1)]), late)),
            ("completed", (after(&[claim(1), complete(1)]), NOW)),
            ("completed", (after(&[claim(1), complete(1)]), late)),
            ("failed", (after(&[claim(1), fail(1)]), NOW)),
            ("failed", (after(&[claim(1), fail(1), claim(1), fail(2), claim(1), fail(3)]), NOW)),
            ("failed", (after(&[claim(1), fail(1)]), late)),
            ("expired", (expired, late)),
        ],
        inputs: vec![
            ("claim", claim(2)),
            ("claim", Input::Claim { source: Source::Api, request_hash: OTHER, run: None }),
            ("complete", complete(1)),
            ("fail", fail(1)),
            ("refer", Input::Refer),
            ("tick", Input::Tick),
        ],
    }
    .check(|(key, at), input| match step(key.clone(), input, *at) {
        (next, Ok(_)) => Ok(next.state_name()),
        (_, Err(error)) => Err(error.code()),
    });
}

#[test]
fn a_repeat_gets_the_first_answer_and_another_request_a_conflict() {
    let key = after(&[claim(1), complete(1)]);
    let first = Reply::Duplicate { run: Some(RunId(1)), response: Some(json!({"ok": true})) };
    assert_eq!(step(key.clone(), &claim(2), NOW).1, Ok(first.clone()));
    assert_eq!(step(key.clone(), &Input::Refer, NOW).1, Ok(first));
    let other = Input::Claim { source: Source::Api, request_hash: OTHER, run: None };
    assert_eq!(step(key.clone(), &other, NOW).1.unwrap_err().code(), Code::IdempotencyConflict);
    // Once it is forgotten, any request is a new one; who refers to it is told.
    let late = NOW + Span::hours(24);
    assert_eq!(step(key.clone(), &Input::Refer, late).1.unwrap_err().code(), Code::IdempotencyExpired);
    assert_eq!(step(key.clone(), &other, late).1, Ok(Reply::New { attempt: 1 }));
    let forgotten = step(key, &Input::Tick, late).0;
    assert_eq!(step(forgotten, &Input::Refer, late).1.unwrap_err().code(), Code::IdempotencyExpired);
}

#[test]
fn a_claim_in_flight_is_taken_over_only_after_its_lock_and_keeps_its_run() {
    let key = after(&[claim(1)]);
    let early = Millis((NOW + LOCK_TTL).0 - 1);
    assert_eq!(step(key.clone(), &claim(2), early).1, Ok(Reply::InFlight { run: Some(RunId(1)) }));
    let (key, reply) = step(key, &claim(2), NOW + LOCK_TTL);
    assert_eq!(reply, Ok(Reply::Retry { attempt: 2, run: Some(RunId(1)) }));
    // The first claimant comes back.
    assert_eq!(step(key.clone(), &complete(1), NOW + LOCK_TTL).1.unwrap_err().code(), Code::LeaseStaleEpoch);
    let foreign = Input::Complete { attempt: 2, run: Some(RunId(9)), response: None, ttl: None };
    assert_eq!(step(key, &foreign, NOW + LOCK_TTL).1, Err(Error::Conflict));
}

#[test]
fn a_delivery_is_tried_three_times() {
    let mut key = after(&[claim(1), fail(1), claim(1), fail(2), claim(1), fail(3)]);
    let exhausted =
        Reply::Exhausted { run: Some(RunId(1)), attempts: ATTEMPTS_MAX, error: Some("no".into()) };
    assert_eq!(step(key.clone(), &claim(1), NOW).1, Ok(exhausted));
    key = step(key, &claim(1), NOW + FAILED_TTL).0;
    assert_eq!(key.state_name(), "processing");
}

#[test]
fn github_is_remembered_for_a_week() {
    let claim = Input::Claim { source: Source::Github, request_hash: HASH, run: Some(RunId(1)) };
    let key = after(&[claim, complete(1)]);
    assert_eq!(key.due(), Some(NOW + Span::hours(7 * 24)));
    assert_eq!(after(&[self::claim(1), complete(1)]).due(), Some(NOW + Span::hours(24)));
}

#[test]
fn answers_and_errors_are_bounded() {
    let key = after(&[claim(1)]);
    let answer =
        |len| Input::Complete { attempt: 1, run: None, response: Some("x".repeat(len).into()), ttl: None };
    assert!(step(key.clone(), &answer(RESPONSE_LEN_MAX - 2), NOW).1.is_ok());
    assert_eq!(step(key.clone(), &answer(RESPONSE_LEN_MAX - 1), NOW).1, Err(Error::ResponseTooLarge));
    let long = Input::Fail { attempt: 1, error: "é".repeat(ERROR_LEN_MAX) };
    let State::Failed { error: Some(error), .. } = step(key, &long, NOW).0.state else { panic!() };
    assert_eq!(error.len(), ERROR_LEN_MAX);
}

fn any_input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => (1..5u128, 0..5u8, any::<bool>()).prop_map(|(run, other, named)| Input::Claim {
            source: Source::Api,
            request_hash: if other == 0 { OTHER } else { HASH },
            run: named.then_some(RunId(run)),
        }),
        2 => (1..4u32, 0..5u128).prop_map(|(attempt, run)| Input::Complete {
            attempt,
            run: (run > 0).then_some(RunId(run)),
            response: Some(json!(attempt)),
            ttl: None,
        }),
        2 => (1..4u32).prop_map(fail),
        1 => Just(Input::Refer),
        1 => Just(Input::Tick),
    ]
}

fn any_wait() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..60_000u64, 2 => 0..600_000u64, 1 => 0..100_000_000u64]
}

proptest! {
    #[test]
    fn one_run_and_one_live_claim_per_delivery(
        inputs in prop::collection::vec((any_input(), any_wait()), 0..60),
    ) {
        let (mut key, mut at, mut log) = (fresh(), NOW, Vec::new());
        let mut runs = BTreeSet::new();
        let mut live_until: Option<Millis> = None;
        let mut answer: Option<Reply> = None;
        for (input, wait) in inputs {
            at = Millis(at.0 + wait);
            let Ok(decision) = key.decide(&input, at) else { continue };
            for fact in decision.facts {
                match &fact {
                    Event::TriggerExpired(_) => { runs.clear(); live_until = None; answer = None; }
                    Event::TriggerClaimed(e) => {
                        prop_assert!(live_until.is_none_or(|until| at >= until), "two live claims");
                        prop_assert!(answer.is_none(), "claimed although answered");
                        prop_assert!(e.attempts <= ATTEMPTS_MAX);
                        live_until = Some(e.lock_expires_at);
                        runs.extend(e.run);
                    }
                    Event::TriggerCompleted(e) => {
                        live_until = None;
                        runs.extend(e.run);
                        let response = e.response.as_ref().and_then(Private::get);
                        answer = Some(Reply::Duplicate { run: e.run, response });
                    }
                    _ => live_until = None,
                }
                prop_assert!(runs.len() <= 1, "two runs for one delivery: {:?}", runs);
                let text = serde_json::to_string(&key).unwrap();
                key = serde_json::from_str::<Key>(&text).unwrap().apply(&fact, at);
                log.push((fact, at));
            }
            if let Reply::Duplicate { .. } = decision.reply {
                prop_assert_eq!(Some(&decision.reply), answer.as_ref());
            }
        }
        let whole = log.iter().fold(fresh(), |k, (fact, at)| k.apply(fact, *at));
        prop_assert_eq!(whole, key);
    }
}
