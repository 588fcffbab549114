//! The table, the subtle rules by example, and the invariants under any sequence of inputs.

use super::*;
use crate::code::Code;
use crate::id::RunId;
use crate::testing::{Proof, name};
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const TIMEOUT: u64 = HEARTBEAT_TIMEOUT.0;

fn undeclared() -> Semaphore {
    Semaphore::new(Scoped::parse("acme/prod/builders").unwrap())
}

fn capacity(capacity: u32) -> Input {
    Input::Configure(Config { capacity, heartbeat_timeout: HEARTBEAT_TIMEOUT })
}

fn outside(text: &str) -> Holder {
    Holder::Outside(name(text))
}

fn step(run: u128) -> Holder {
    Holder::Step(RunId(run), name("build"))
}

fn ask(holder: Holder, weight: u32) -> Input {
    Input::Acquire(Ask { holder, weight, wait: true, give_up_at: None })
}

fn ask_until(holder: Holder, weight: u32, give_up_at: u64) -> Input {
    Input::Acquire(Ask { holder, weight, wait: true, give_up_at: Some(Millis(give_up_at)) })
}

fn try_ask(holder: Holder, weight: u32) -> Input {
    Input::Acquire(Ask { holder, weight, wait: false, give_up_at: None })
}

fn release(holder: Holder) -> Input {
    Input::Release { holder, epoch: None }
}

fn apply(semaphore: Semaphore, facts: &[Event], at: Millis) -> Semaphore {
    facts.iter().fold(semaphore, |semaphore, fact| semaphore.apply(fact, at))
}

/// Decides and applies; the beats are those of a process that started at 0 and heard nobody.
fn feed(semaphore: &mut Semaphore, input: &Input, at: u64) -> Decision<Reply> {
    let decision = semaphore.decide(input, &Beats::default(), Millis(at)).unwrap();
    *semaphore = apply(semaphore.clone(), &decision.facts, Millis(at));
    decision
}

fn after(slots: u32, inputs: &[(Input, u64)]) -> Semaphore {
    let mut semaphore = undeclared();
    feed(&mut semaphore, &capacity(slots), 0);
    for (input, at) in inputs {
        feed(&mut semaphore, input, *at);
    }
    semaphore
}

fn refused(semaphore: &Semaphore, input: &Input) -> Code {
    semaphore.decide(input, &Beats::default(), Millis(1)).unwrap_err().code()
}

fn tags(decision: &Decision<Reply>) -> Vec<&'static str> {
    decision.facts.iter().map(Event::tag).collect()
}

fn granted(run: u128, epoch: u64) -> Follow {
    let told = Told::SlotsGranted { step: name("build"), semaphore: name("builders"), epoch };
    Follow::Tell { run: RunId(run), told }
}

#[test]
fn the_table_is_what_happens() {
    let (a, b, c) = (outside("a"), outside("b"), outside("c"));
    let late = TIMEOUT + 10;
    let fresh = |holder: &Holder, weight| (ask(holder.clone(), weight), late);
    let stale = |holder: &Holder, weight| (ask(holder.clone(), weight), 0);
    let expired = |holder: &Holder, weight| (ask_until(holder.clone(), weight, 5), 0);
    Proof {
        name: "semaphore",
        about: "A number of slots, holders with weights, and a line of those who wait (`contended`).",
        table: TABLE,
        states: vec![
            ("undeclared", undeclared()),
            ("idle", after(2, &[])),
            ("shared", after(2, &[fresh(&a, 1)])),
            ("shared", after(2, &[fresh(&a, 1), fresh(&b, 1)])),
            ("shared", after(2, &[stale(&a, 2)])),
            ("contended", after(2, &[fresh(&a, 2), fresh(&b, 2)])),
            ("contended", after(2, &[fresh(&a, 2), fresh(&b, 2), fresh(&c, 2)])),
            ("contended", after(2, &[fresh(&a, 2), expired(&b, 2)])),
            ("contended", after(2, &[stale(&a, 2), stale(&b, 2)])),
            ("contended", after(2, &[stale(&a, 2), expired(&b, 2)])),
            // Nobody holds anything, and the one in line is heavier than the capacity is now.
            (
                "contended",
                after(3, &[fresh(&a, 3), fresh(&b, 3), (capacity(2), late), (release(a.clone()), late)]),
            ),
        ],
        inputs: vec![
            ("configure", capacity(2)),
            ("configure", capacity(4)),
            ("configure", capacity(0)),
            ("acquire", ask(a.clone(), 2)),
            ("acquire", ask(b.clone(), 1)),
            ("acquire", try_ask(c.clone(), 2)),
            ("acquire", ask(c.clone(), 2)),
            ("acquire", ask(c.clone(), 9)),
            ("release", release(a.clone())),
            ("release", release(b.clone())),
            ("heartbeat", Input::Heartbeat { holder: a.clone(), epoch: 1 }),
            ("heartbeat", Input::Heartbeat { holder: a.clone(), epoch: 7 }),
            ("break", Input::Break { holder: a.clone(), epoch: None }),
            ("break", Input::Break { holder: a, epoch: Some(7) }),
            ("break", Input::Break { holder: c.clone(), epoch: None }),
            ("abandon", Input::Abandon { holder: b }),
            ("abandon", Input::Abandon { holder: c }),
            ("maintain", Input::Maintain),
        ],
    }
    .check(|state, input| {
        let decision = state.decide(input, &Beats::default(), Millis(late)).map_err(|error| error.code())?;
        Ok(apply(state.clone(), &decision.facts, Millis(late)).state_name())
    });
}

#[test]
fn weights_add_up_to_the_capacity() {
    let mut builders = after(4, &[]);
    assert_eq!(feed(&mut builders, &ask(step(1), 3), 1).reply, Reply::Acquired { epoch: 1 });
    assert_eq!(feed(&mut builders, &try_ask(step(2), 2), 1).reply, Reply::Full { available: 1 });
    assert_eq!(feed(&mut builders, &ask(step(2), 1), 1).reply, Reply::Acquired { epoch: 2 });
    assert_eq!(feed(&mut builders, &ask(step(3), 2), 1).reply, Reply::Queued { position: 1 });
    let decision = feed(&mut builders, &release(step(1)), 2);
    assert_eq!(tags(&decision), ["semaphore:released", "semaphore:acquired"]);
    assert_eq!((decision.reply, decision.follow), (Reply::Released, vec![granted(3, 3)]));
    assert_eq!(feed(&mut builders, &release(step(1)), 2).reply, Reply::NotHolder);
    assert_eq!((builders.used(), builders.available()), (3, 1));
}

#[test]
fn weights_that_never_fit_are_refused() {
    let builders = after(4, &[(ask(step(1), 1), 1)]);
    for weight in [0, 5, u32::MAX] {
        assert_eq!(refused(&builders, &ask(step(2), weight)), Code::InvalidInput);
        assert_eq!(refused(&builders, &ask(step(1), weight)), Code::InvalidInput, "nor for a holder");
    }
    assert_eq!(refused(&undeclared(), &ask(step(1), 1)), Code::NotFound);
}

#[test]
fn a_light_waiter_does_not_overtake_a_heavy_one() {
    let mut builders = after(4, &[(ask(step(1), 2), 1), (ask(step(2), 2), 1), (ask(step(3), 4), 2)]);
    feed(&mut builders, &ask(step(4), 1), 3);
    let decision = feed(&mut builders, &release(step(1)), 4);
    assert_eq!(tags(&decision), ["semaphore:released"], "two are free, and the first in line needs four");
    // Nor does one that has just come.
    assert_eq!(feed(&mut builders, &try_ask(step(5), 1), 4).reply, Reply::Full { available: 2 });
    assert_eq!(feed(&mut builders, &release(step(2)), 5).follow, vec![granted(3, 3)]);
    // When the heavy one leaves, all that fit are served at once, under epochs of their own.
    feed(&mut builders, &ask(step(5), 3), 6);
    assert_eq!(feed(&mut builders, &release(step(3)), 7).follow, vec![granted(4, 4), granted(5, 5)]);
}

#[test]
fn a_heavy_waiter_that_leaves_lets_the_others_in() {
    let line = [(ask(step(1), 3), 1), (ask(step(2), 4), 1), (ask(step(3), 1), 1)];
    let mut builders = after(4, &line);
    let decision = feed(&mut builders, &Input::Abandon { holder: step(2) }, 2);
    assert_eq!((decision.reply.clone(), decision.follow.clone()), (Reply::Abandoned, vec![granted(3, 2)]));
    assert_eq!(tags(&decision), ["semaphore:abandoned", "semaphore:acquired"]);
    // The same when it gives up.
    let mut builders = after(4, &[line[0].clone(), (ask_until(step(2), 4, 50), 1), line[2].clone()]);
    assert_eq!(builders.due(&Beats::default()), Some(Millis(50)));
    assert_eq!(
        tags(&feed(&mut builders, &Input::Maintain, 50)),
        ["semaphore:abandoned", "semaphore:acquired"]
    );
}

#[test]
fn a_holder_asks_again_for_less_as_much_or_more() {
    let mut builders = after(4, &[(ask(step(1), 2), 1)]);
    for weight in [1, 2] {
        let again = feed(&mut builders, &ask(step(1), weight), 2);
        assert_eq!((again.reply, again.facts), (Reply::AlreadyHeld { epoch: 1 }, vec![]));
        assert_eq!(again.follow, vec![granted(1, 1)], "a new attempt of the step waits to hear of it");
    }
    let more = feed(&mut builders, &ask(step(1), 3), 3);
    assert_eq!(
        (more.reply.clone(), tags(&more)),
        (Reply::Increased { epoch: 1 }, vec!["semaphore:increased"])
    );
    assert_eq!(builders.holders[&step(1)], Hold { weight: 3, epoch: 1, acquired_at: Millis(1) });
    // There is room for one more, but somebody waits for it; and a holder never waits for more.
    feed(&mut builders, &ask(step(2), 2), 4);
    let more = feed(&mut builders, &ask(step(1), 4), 5);
    assert_eq!((more.reply, more.facts), (Reply::Full { available: 1 }, vec![]));
    assert_eq!(builders.position(&step(1)), None);
}

#[test]
fn a_waiter_that_asks_again_keeps_its_place_and_weight() {
    let mut builders = after(1, &[(ask(step(1), 1), 1), (ask(step(2), 1), 2), (ask(step(3), 1), 3)]);
    let again = feed(&mut builders, &ask(step(2), 1), 4);
    assert_eq!((again.reply, again.facts), (Reply::Queued { position: 1 }, vec![]));
    let longer = feed(&mut builders, &ask_until(step(2), 1, 99), 5);
    assert_eq!(
        (longer.reply.clone(), tags(&longer)),
        (Reply::Queued { position: 1 }, vec!["semaphore:queued"])
    );
    let expected = Waiter { holder: step(2), weight: 1, queued_at: Millis(2), give_up_at: Some(Millis(99)) };
    assert_eq!(builders.waiters[0], expected);
    assert_eq!(feed(&mut builders, &ask_until(step(4), 1, 5), 5).reply, Reply::Full { available: 0 });
}

#[test]
fn lowering_the_capacity_only_stops_new_grants() {
    let mut builders = after(4, &[(ask(step(1), 2), 1), (ask(step(2), 2), 1)]);
    assert_eq!(tags(&feed(&mut builders, &capacity(2), 2)), ["semaphore:configured"]);
    assert_eq!((builders.used(), builders.available()), (4, 0));
    assert_eq!(feed(&mut builders, &ask(step(3), 1), 3).reply, Reply::Queued { position: 1 });
    assert_eq!(tags(&feed(&mut builders, &release(step(1)), 4)), ["semaphore:released"], "still full");
    // Raising it serves the line in the same decision.
    let decision = feed(&mut builders, &capacity(3), 5);
    assert_eq!(tags(&decision), ["semaphore:configured", "semaphore:acquired"]);
    assert_eq!(feed(&mut builders, &capacity(3), 6).facts, vec![], "the repeat records nothing");
}

#[test]
fn a_waiter_heavier_than_the_capacity_does_not_hold_up_the_line() {
    let mut builders = after(4, &[(ask(step(1), 1), 1), (ask(step(2), 4), 2), (ask(step(3), 1), 3)]);
    let decision = feed(&mut builders, &capacity(2), 4);
    assert_eq!(decision.follow, vec![granted(3, 2)], "the first in line can never be served now");
    assert_eq!(builders.position(&step(2)), Some(1), "but it keeps its place");
    feed(&mut builders, &release(step(1)), 5);
    assert_eq!(feed(&mut builders, &try_ask(step(4), 1), 6).reply, Reply::Acquired { epoch: 3 });
    feed(&mut builders, &release(step(3)), 7);
    feed(&mut builders, &release(step(4)), 7);
    assert_eq!(feed(&mut builders, &capacity(4), 8).follow, vec![granted(2, 4)]);
}

#[test]
fn the_stale_are_reclaimed_by_time_and_by_whoever_asks() {
    let builders = after(2, &[(ask(outside("a"), 1), 0), (ask(step(1), 1), 0), (ask(step(2), 1), 1)]);
    let mut beats = Beats::default();
    assert_eq!(builders.due(&beats), Some(Millis(TIMEOUT)), "the step need not beat");
    let decision = builders.decide(&Input::Maintain, &beats, Millis(TIMEOUT)).unwrap();
    let reclaimed = SemaphoreReclaimed {
        semaphore: name("builders"),
        holder: outside("a"),
        weight: 1,
        epoch: 1,
        last_seen: Some(Millis(0)),
    };
    assert_eq!(decision.facts[0], reclaimed.into());
    assert_eq!((tags(&decision).len(), decision.follow), (2, vec![granted(2, 3)]));
    // An asker finds it so, behind the one in line.
    let decision = feed(&mut builders.clone(), &ask(step(3), 1), TIMEOUT);
    assert_eq!(tags(&decision), ["semaphore:reclaimed", "semaphore:acquired", "semaphore:queued"]);
    assert_eq!(decision.reply, Reply::Queued { position: 1 });
    // The one in line finds itself served; the stale one that asks lives, and keeps its slots.
    assert_eq!(feed(&mut builders.clone(), &ask(step(2), 1), TIMEOUT).reply, Reply::Acquired { epoch: 3 });
    let again = feed(&mut builders.clone(), &ask(outside("a"), 1), TIMEOUT);
    assert_eq!((again.reply, again.facts), (Reply::AlreadyHeld { epoch: 1 }, vec![]));
    beats.seen.insert(outside("a"), Millis(5));
    assert_eq!(builders.decide(&Input::Maintain, &beats, Millis(TIMEOUT)).unwrap().facts, vec![]);
}

#[test]
fn an_older_epoch_is_refused() {
    let a = outside("a");
    let builders = after(2, &[(ask(a.clone(), 1), 1), (release(a.clone()), 1), (ask(a.clone(), 1), 1)]);
    for input in [
        Input::Release { holder: a.clone(), epoch: Some(1) },
        Input::Heartbeat { holder: a.clone(), epoch: 1 },
        Input::Heartbeat { holder: outside("b"), epoch: 2 },
        Input::Break { holder: a.clone(), epoch: Some(1) },
    ] {
        assert_eq!(refused(&builders, &input), Code::LeaseStaleEpoch, "{input:?}");
    }
    let reply = builders.decide(&Input::Heartbeat { holder: a, epoch: 2 }, &Beats::default(), Millis(2));
    assert_eq!(reply.unwrap(), Decision::reply(Reply::Extended { epoch: 2 }));
}

#[test]
fn a_break_says_so() {
    let mut builders = after(1, &[(ask(step(1), 1), 1), (ask(step(2), 1), 1)]);
    let decision = feed(&mut builders, &Input::Break { holder: step(1), epoch: Some(1) }, 2);
    let (semaphore, holder) = (name("builders"), step(1));
    let broken = SemaphoreReleased { semaphore, holder, weight: 1, epoch: 1, broken: true };
    assert_eq!(decision.facts[0], broken.into());
    let lost = Told::HoldLost { step: Some(name("build")), name: name("builders"), broken: true };
    assert_eq!(decision.follow, vec![Follow::Tell { run: RunId(1), told: lost }, granted(2, 2)]);
}

#[test]
fn capacity_and_line_are_bounded() {
    for size in [0, CAPACITY_MAX + 1] {
        assert_eq!(refused(&undeclared(), &capacity(size)), Code::InvalidInput);
    }
    let zero = Input::Configure(Config { capacity: 1, heartbeat_timeout: Span::ZERO });
    assert_eq!(refused(&undeclared(), &zero), Code::InvalidInput);
    let mut builders = after(CAPACITY_MAX, &[(ask(step(0), CAPACITY_MAX), 0)]);
    for number in 1..=WAITERS_MAX {
        let decision = builders.decide(&ask(step(number as u128), 1), &Beats::default(), Millis(1)).unwrap();
        assert_eq!(decision.reply, Reply::Queued { position: number });
        builders = apply(builders, &decision.facts, Millis(1));
    }
    assert_eq!(refused(&builders, &ask(outside("b"), 1)), Code::CapExceeded);
    assert_eq!(feed(&mut builders, &release(step(0)), 2).follow.len(), WAITERS_MAX, "all are served at once");
}

fn holders() -> impl Strategy<Value = Holder> {
    prop_oneof![
        Just(step(1)),
        Just(step(2)),
        Just(step(3)),
        Just(Holder::Worker(name("w"))),
        Just(outside("a")),
        Just(outside("b")),
    ]
}

fn inputs() -> impl Strategy<Value = Input> {
    let epoch = || prop::option::of(0u64..12);
    let give_up_at = prop::option::of((0u64..600_000).prop_map(Millis));
    let asks = (holders(), 0u32..6, any::<bool>(), give_up_at)
        .prop_map(|(holder, weight, wait, give_up_at)| Ask { holder, weight, wait, give_up_at });
    prop_oneof![
        2 => (0u32..6).prop_map(capacity),
        10 => asks.prop_map(Input::Acquire),
        4 => (holders(), epoch()).prop_map(|(holder, epoch)| Input::Release { holder, epoch }),
        2 => (holders(), 0u64..12).prop_map(|(holder, epoch)| Input::Heartbeat { holder, epoch }),
        1 => (holders(), epoch()).prop_map(|(holder, epoch)| Input::Break { holder, epoch }),
        1 => holders().prop_map(|holder| Input::Abandon { holder }),
        3 => Just(Input::Maintain),
    ]
}

/// What must be true of every semaphore, whatever happened to it.
fn check_invariants(semaphore: &Semaphore) -> Result<(), TestCaseError> {
    let line: BTreeSet<&Holder> = semaphore.waiters.iter().map(|waiter| &waiter.holder).collect();
    prop_assert_eq!(line.len(), semaphore.waiters.len(), "somebody waits twice");
    for (holder, hold) in &semaphore.holders {
        prop_assert!(!line.contains(holder), "a holder waits");
        prop_assert!(hold.weight > 0 && hold.epoch <= semaphore.epoch);
    }
    // The first that can be served at all does not fit, or it would have been served.
    let first = semaphore.waiters.iter().find(|waiter| waiter.weight <= semaphore.config.capacity);
    if let Some(first) = first {
        prop_assert!(first.weight > semaphore.available(), "the line stands still though there is room");
    }
    Ok(())
}

/// Follows the facts of one decision: grants fit, epochs grow, the line is kept.
fn check_step(before: &Semaphore, facts: &[Event], at: Millis) -> Result<Semaphore, TestCaseError> {
    let mut now = before.clone();
    for fact in facts {
        let after = now.clone().apply(fact, at);
        let servable = |waiter: &&Waiter| waiter.weight <= now.config.capacity;
        match fact {
            Event::SemaphoreAcquired(e) => {
                prop_assert!(after.used() <= after.config.capacity, "more than there is");
                prop_assert!(e.epoch > now.epoch, "an epoch that does not grow");
                prop_assert!(!now.holders.contains_key(&e.holder), "a second grant");
                let first = now.waiters.iter().find(servable).map(|waiter| &waiter.holder);
                prop_assert_eq!(first, e.queued.then_some(&e.holder), "somebody was overtaken");
            }
            Event::SemaphoreIncreased(_) => {
                prop_assert!(after.used() <= after.config.capacity, "more than there is");
                prop_assert!(!now.waiters.iter().any(|waiter| servable(&waiter)), "somebody was overtaken");
            }
            _ => {}
        }
        // Whoever left the line was granted or abandoned by this very fact, and the others kept their places.
        let stayed: Vec<&Holder> = after.waiters.iter().map(|waiter| &waiter.holder).collect();
        let mut expected: Vec<&Holder> = now.waiters.iter().map(|waiter| &waiter.holder).collect();
        match fact {
            Event::SemaphoreAcquired(e) => expected.retain(|holder| **holder != e.holder),
            Event::SemaphoreAbandoned(e) => expected.retain(|holder| **holder != e.holder),
            Event::SemaphoreQueued(e) if !expected.contains(&&e.holder) => expected.push(&e.holder),
            _ => {}
        }
        prop_assert_eq!(stayed, expected);
        now = after;
    }
    Ok(now)
}

proptest! {
    #[test]
    fn any_sequence_keeps_the_invariants(
        steps in prop::collection::vec((inputs(), 0u64..40_000), 1..60),
        cut in 0usize..60,
    ) {
        let (mut now, mut beats, mut at) = (undeclared(), Beats::default(), 0);
        let mut log: Vec<(Event, Millis)> = vec![];
        let mut snapshot = None;
        for (number, (input, pause)) in steps.iter().enumerate() {
            at += pause;
            if number == cut {
                snapshot = Some((serde_json::to_string(&now).unwrap(), log.len()));
            }
            let Ok(decision) = now.decide(input, &beats, Millis(at)) else { continue };
            if let (Input::Heartbeat { holder, .. }, Reply::Extended { .. }) = (input, &decision.reply) {
                beats.seen.insert(holder.clone(), Millis(at));
            }
            now = check_step(&now, &decision.facts, Millis(at))?;
            check_invariants(&now)?;
            if *input == Input::Maintain {
                prop_assert!(now.due(&beats).is_none_or(|due| due > Millis(at)), "maintained, and still due");
            }
            if let Input::Acquire(ask) = input {
                let has = now.holders.get(&ask.holder).map(|hold| hold.epoch);
                match decision.reply {
                    Reply::Acquired { epoch } | Reply::AlreadyHeld { epoch } | Reply::Increased { epoch } => {
                        prop_assert_eq!(has, Some(epoch));
                    }
                    Reply::Queued { position } => prop_assert_eq!(now.position(&ask.holder), Some(position)),
                    Reply::Full { .. } => prop_assert_eq!(now.position(&ask.holder), None),
                    reply => prop_assert!(false, "{reply:?} is no answer to an acquire"),
                }
            }
            log.extend(decision.facts.into_iter().map(|fact| (fact, Millis(at))));
        }
        let replay = |from: Semaphore, tail: &[(Event, Millis)]| {
            tail.iter().fold(from, |semaphore, (fact, at)| semaphore.apply(fact, *at))
        };
        prop_assert_eq!(&replay(undeclared(), &log), &now, "the log tells all");
        if let Some((text, length)) = snapshot {
            let kept: Semaphore = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&replay(undeclared(), &log[..length]), &kept);
            prop_assert_eq!(&replay(kept, &log[length..]), &now, "snapshot and tail are the whole");
        }
    }
}
