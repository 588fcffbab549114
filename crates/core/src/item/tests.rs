//! What the item machine promises, by table, by example and by property.

use super::*;
use crate::event::QueueItemDead;
use crate::testing::{Proof, name};
use crate::time::Span;
use proptest::prelude::*;
use serde_json::json;
use std::vec;
use std::vec::Vec;

const AT: Millis = Millis(1_000);

fn absent() -> Item {
    Item::absent(name("acme"))
}

fn terms(max_attempts: u32, dead_letter: Option<&str>) -> Terms {
    Terms {
        max_attempts,
        cooldown: Span(500),
        visibility_timeout: Span(100),
        dead_letter: dead_letter.map(name),
    }
}

fn push(terms: Terms) -> Input {
    Input::Push(Push {
        queue: name("bugs"),
        namespace: name("prod"),
        id: ItemId(1),
        data: json!({"bug": "BUG-1"}),
        priority: 3,
        terms,
        next_eligible_at: None,
        dedupe: Some(name("BUG-1")),
        from: None,
        asked_by: Vec::new(),
    })
}

/// A claim that times out.
fn by(holder: &str) -> Input {
    let holder = Holder::Outside(name(holder));
    Input::Take(Take { holder, worker: None, run: None, visibility: true })
}

/// A claim of a worker's run, which does not.
fn by_run(run: u128) -> Input {
    let (holder, worker, run) = (Holder::Run(RunId(run)), Some(name("fixer")), Some(RunId(run)));
    Input::Take(Take { holder, worker, run, visibility: false })
}

fn fail(epoch: u64, retryable: bool) -> Input {
    Input::Fail { epoch, error: "no".into(), retryable }
}

fn expire(epoch: u64) -> Input {
    Input::Expire { epoch, last_seen: Millis(0) }
}

fn step(item: &Item, input: &Input, at: Millis) -> Result<(Item, Decision<Reply>), Error> {
    let decision = item.decide(input, at)?;
    let next = decision.facts.iter().fold(item.clone(), |item, fact| item.apply(fact, at));
    Ok((next, decision))
}

/// The item after a push and these inputs, a second apart.
fn after(terms: Terms, inputs: &[Input]) -> Item {
    let start = step(&absent(), &push(terms), AT).unwrap().0;
    inputs
        .iter()
        .fold((start, AT), |(item, at), input| {
            let at = at + Span::secs(1);
            (step(&item, input, at).unwrap_or_else(|e| panic!("{input:?}: {e}")).0, at)
        })
        .0
}

const LATER: Millis = Millis(1_000_000);

#[test]
fn the_table_holds() {
    let one = || terms(1, None);
    let last = || terms(1, Some("bugs-dead"));
    let more = || terms(3, Some("bugs-dead"));
    Proof {
        name: "item",
        about: "A queue item is claimed under an epoch and tried until it is done or given up. `failed` and `dead` \
                end it until somebody puts it back by hand.",
        table: TABLE,
        states: vec![
            ("absent", absent()),
            ("pending", after(more(), &[])),
            ("pending", after(more(), &[by("ci"), fail(1, true)])),
            ("pending", after(more(), &[by("ci"), Input::Return { epoch: 1 }])),
            ("processing", after(more(), &[by("ci")])),
            ("processing", after(one(), &[by("ci")])),
            ("processing", after(last(), &[by("ci")])),
            ("processing", after(more(), &[by_run(7)])),
            ("completed", after(more(), &[by("ci"), Input::Complete { epoch: 1 }])),
            ("failed", after(more(), &[by("ci"), fail(1, false)])),
            ("failed", after(one(), &[by("ci"), fail(1, true)])),
            ("failed", after(one(), &[by("ci"), expire(1)])),
            ("dead", after(last(), &[by("ci"), fail(1, true)])),
            ("dropped", after(more(), &[by("ci"), Input::Drop { reason: None }])),
        ],
        inputs: vec![
            ("push", push(more())),
            ("take", by("other")),
            ("take", by_run(7)),
            ("heartbeat", Input::Heartbeat { epoch: 1 }),
            ("heartbeat", Input::Heartbeat { epoch: 9 }),
            ("complete", Input::Complete { epoch: 1 }),
            ("complete", Input::Complete { epoch: 9 }),
            ("fail", fail(1, true)),
            ("fail", fail(1, false)),
            ("fail", fail(9, true)),
            ("return", Input::Return { epoch: 1 }),
            ("return", Input::Return { epoch: 9 }),
            ("expire", expire(1)),
            ("expire", expire(9)),
            ("retry", Input::Retry { data: Some(json!(2)) }),
            ("drop", Input::Drop { reason: Some("wrong".into()) }),
            ("forget", Input::Forget { before: Millis(0) }),
            ("forget", Input::Forget { before: LATER }),
        ],
    }
    .check(|item, input| {
        step(item, input, LATER).map(|(next, _)| next.state_name()).map_err(|error| error.code())
    });
}

#[test]
fn max_attempts_is_total_tries_and_the_last_one_is_forwarded() {
    let mut item = after(terms(2, Some("bugs-dead")), &[by("ci")]);
    let (cooling, first) = step(&item, &fail(1, true), Millis(3_000)).unwrap();
    assert_eq!(cooling.due(), Some(Millis(3_500)));
    assert_eq!(first.facts.len(), 2);
    assert_eq!(cooling.decide(&by("ci"), Millis(3_499)), Err(Error::NotDue(Millis(3_500))));
    item = step(&cooling, &by("ci"), Millis(3_500)).unwrap().0;
    let (dead, last) = step(&item, &fail(2, true), Millis(4_000)).unwrap();
    assert_eq!(last.facts.iter().map(Event::tag).collect::<Vec<_>>(), ["queue:failed", "queue:item_dead"]);
    assert!(matches!(&last.facts[1], Event::QueueItemDead(e) if e.forwarded_to == Some(name("bugs-dead"))));
    assert_eq!(dead.body().unwrap().attempts, 2);
}

#[test]
fn a_time_out_counts_as_a_try_and_a_return_does_not() {
    let item = after(terms(2, None), &[by("a"), Input::Return { epoch: 1 }]);
    assert_eq!(item.body().unwrap().attempts, 0);
    let item = after(terms(2, None), &[by("a"), expire(1)]);
    assert_eq!((item.state_name(), item.body().unwrap().attempts), ("pending", 1));
    let item = after(terms(2, None), &[by("a"), expire(1), by("b"), expire(2)]);
    assert_eq!((item.state_name(), item.body().unwrap().attempts), ("dead", 2));
}

#[test]
fn without_another_try_a_failure_is_final_and_nothing_dies_of_it() {
    let item = after(terms(1, None), &[by_run(7)]);
    let (failed, decision) = step(&item, &fail(1, true), LATER).unwrap();
    assert_eq!(failed.state_name(), "failed");
    assert_eq!(decision.facts.iter().map(Event::tag).collect::<Vec<_>>(), ["queue:failed"]);
    let claimed = failed.body().unwrap().claimed.clone().unwrap();
    assert_eq!(
        (claimed.at, claimed.run),
        (AT + Span::secs(1), Some(RunId(7))),
        "it is known who worked on it"
    );
    let silent = after(terms(1, None), &[by("a"), expire(1)]);
    assert_eq!((silent.state_name(), silent.body().unwrap().attempts), ("failed", 1));
    assert!(silent.body().unwrap().failure.is_some());
    // A queue that hands on what it gives up has a last try, and that is the first.
    assert_eq!(after(terms(1, Some("bugs-dead")), &[by("a"), fail(1, true)]).state_name(), "dead");
}

#[test]
fn a_claim_expires_when_it_was_silent_for_the_whole_time_out() {
    let item = after(terms(2, None), &[by("a")]);
    let expire =
        |last_seen, at| item.decide(&Input::Expire { epoch: 1, last_seen: Millis(last_seen) }, Millis(at));
    // Taken at 2000 with a time-out of 100.
    assert_eq!(expire(0, 2_099), Err(Error::NotDue(Millis(2_100))));
    assert_eq!(expire(2_050, 2_149), Err(Error::NotDue(Millis(2_150))));
    let decision = expire(2_050, 2_150).unwrap();
    let [Event::QueueReturned(returned)] = &decision.facts[..] else { panic!("{decision:?}") };
    assert_eq!((returned.timed_out, returned.last_seen), (true, Some(Millis(2_050))));
}

#[test]
fn a_runs_claim_does_not_time_out_and_is_granted_once() {
    let item = after(terms(1, None), &[by_run(7)]);
    assert_eq!((item.due(), item.decide(&expire(1), LATER)), (None, Err(Error::NoTimeout)));
    let (same, again) = step(&item, &by_run(7), LATER).unwrap();
    assert!(same == item && matches!(again.reply, Reply::Taken(Grant { epoch: 1, attempts: 1, .. })));
    assert_eq!(item.decide(&by_run(8), LATER).unwrap_err().code(), Code::LockBusy);
    // Two consumers may share a name: each must get an item of its own.
    let item = after(terms(1, None), &[by("ci")]);
    assert_eq!(item.decide(&by("ci"), AT).unwrap_err().code(), Code::LockBusy);
}

#[test]
fn a_retry_by_hand_starts_the_tries_again_and_keeps_the_epoch() {
    let data = Some(json!({"bug": "BUG-2"}));
    let item = after(terms(1, None), &[by("a"), fail(1, true), Input::Retry { data: data.clone() }, by("b")]);
    let body = item.body().unwrap();
    assert_eq!((body.attempts, body.epoch, Some(&body.data.get())), (1, 2, data.as_ref()));
    assert_eq!(item.decide(&Input::Complete { epoch: 1 }, LATER).unwrap_err().code(), Code::LeaseStaleEpoch);
}

#[test]
fn dropping_what_a_run_works_on_cancels_the_run() {
    let item = after(terms(1, None), &[by_run(7)]);
    let (dropped, decision) = step(&item, &Input::Drop { reason: None }, LATER).unwrap();
    assert!(matches!(decision.follow[..], [Follow::Cancel { run: RunId(7), .. }]));
    assert_eq!(dropped.decide(&fail(1, false), LATER).unwrap().reply, Reply::Dropped);
}

#[test]
fn what_failed_is_forgotten_after_its_time_unless_it_was_put_back() {
    for dead_letter in [None, Some("bugs-dead")] {
        let item = after(terms(1, dead_letter), &[by("a"), fail(1, true)]);
        let forget = |item: &Item, before| step(item, &Input::Forget { before }, LATER).unwrap().0;
        let since = item.body().unwrap().since;
        assert_eq!(forget(&item, since), item, "its time is not over");
        assert_eq!(forget(&item, since + Span(1)).state_name(), "dropped");
        let back = step(&item, &Input::Retry { data: None }, LATER).unwrap().0;
        assert_eq!(forget(&back, LATER + Span(1)), back);
    }
}

#[test]
fn redacted_data_is_not_forwarded() {
    let decision = absent().decide(&push(terms(1, Some("bugs-dead"))), AT).unwrap();
    let Event::QueuePushed(mut pushed) = decision.facts[0].clone() else { panic!() };
    pushed.data = Private::Redacted(crate::digest::Digest([1; 32]));
    let item = step(&absent().apply(&Event::QueuePushed(pushed), AT), &by("a"), AT).unwrap().0;
    let last = item.decide(&fail(1, true), AT).unwrap();
    assert!(last.effects.is_empty());
    assert!(matches!(&last.facts[1], Event::QueueItemDead(QueueItemDead { forwarded_to: None, .. })));
}

#[test]
fn errors_are_cut_between_characters() {
    let item = after(terms(1, None), &[by("a")]);
    let error = "é".repeat(TEXT_LEN_MAX);
    let (dead, _) = step(&item, &Input::Fail { epoch: 1, error, retryable: true }, AT).unwrap();
    let failure = dead.body().unwrap().failure.clone().unwrap();
    assert_eq!(failure.error.unwrap().len(), TEXT_LEN_MAX);
}

fn any_input() -> impl Strategy<Value = Input> {
    let epoch = 0..6u64;
    prop_oneof![
        1 => (0..4u32, prop::option::of(0..5_000u64)).prop_map(|(tries, due)| {
            let Input::Push(mut push) = push(terms(tries, (tries == 2).then_some("bugs-dead"))) else { unreachable!() };
            push.next_eligible_at = due.map(Millis);
            Input::Push(push)
        }),
        4 => prop_oneof![Just(by("a")), Just(by("b")), (0..3u128).prop_map(by_run)],
        1 => epoch.clone().prop_map(|epoch| Input::Heartbeat { epoch }),
        1 => epoch.clone().prop_map(|epoch| Input::Complete { epoch }),
        4 => (epoch.clone(), any::<bool>()).prop_map(|(epoch, retryable)| fail(epoch, retryable)),
        2 => epoch.clone().prop_map(|epoch| Input::Return { epoch }),
        2 => (epoch, 0..5_000u64).prop_map(|(epoch, seen)| Input::Expire { epoch, last_seen: Millis(seen) }),
        1 => prop::option::of(any::<u8>()).prop_map(|data| Input::Retry { data: data.map(Into::into) }),
        1 => prop::option::of("[a-z]{0,3}").prop_map(|reason| Input::Drop { reason }),
        1 => (0..20_000u64).prop_map(|before| Input::Forget { before: Millis(before) }),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_the_invariants_hold(
        script in prop::collection::vec((any_input(), 0..800u64), 0..60),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut item = absent();
        let mut at = AT;
        let mut facts = Vec::new();
        for (input, wait) in script {
            at = at + Span(wait);
            let Ok((next, decision)) = step(&item, &input, at) else { continue };
            let epoch = |item: &Item| item.body().map_or(0, |body| body.epoch);
            prop_assert!(epoch(&next) >= epoch(&item), "an epoch only grows");
            if let Reply::Taken(grant) = &decision.reply && !decision.facts.is_empty() {
                prop_assert!(grant.epoch > epoch(&item), "each grant has an epoch of its own");
                prop_assert!(grant.attempts <= next.body().unwrap().lot.terms.max_attempts.max(1), "tries are bounded");
            }
            if let Item::Completed { .. } | Item::Dropped { .. } = item {
                prop_assert_eq!(&next, &item, "what ended stays");
            }
            if decision.facts.is_empty() {
                prop_assert_eq!(&next, &item);
            }
            facts.extend(decision.facts.into_iter().map(|fact| (fact, at)));
            item = next;
        }
        let fold = |item: Item, facts: &[(Event, Millis)]| {
            facts.iter().fold(item, |item, (fact, at)| item.apply(fact, *at))
        };
        let (head, tail) = facts.split_at(cut.index(facts.len() + 1));
        let kept = serde_json::to_string(&fold(absent(), head)).unwrap();
        prop_assert_eq!(fold(serde_json::from_str(&kept).unwrap(), tail), item);
    }
}
