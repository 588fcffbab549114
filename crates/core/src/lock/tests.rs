//! The table, the subtle rules by example, and the invariants under any sequence of inputs.

use super::*;
use crate::code::Code;
use crate::id::RunId;
use crate::testing::{Proof, name};
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use serde_json::json;

const TIMEOUT: u64 = HEARTBEAT_TIMEOUT.0;

fn lock() -> Lock {
    Lock::new(Scoped::parse("acme/prod/merge").unwrap())
}

fn outside(text: &str) -> Holder {
    Holder::Outside(name(text))
}

fn step(run: u128) -> Holder {
    Holder::Step(RunId(run), name("land"))
}

fn ask(holder: Holder) -> Input {
    Input::Acquire(Ask { holder, metadata: None, wait: true, give_up_at: None })
}

fn ask_until(holder: Holder, give_up_at: u64) -> Input {
    Input::Acquire(Ask { holder, metadata: None, wait: true, give_up_at: Some(Millis(give_up_at)) })
}

fn try_ask(holder: Holder) -> Input {
    Input::Acquire(Ask { holder, metadata: None, wait: false, give_up_at: None })
}

fn release(holder: Holder, epoch: Option<u64>) -> Input {
    Input::Release { holder, epoch }
}

fn apply(lock: Lock, facts: &[Event], at: Millis) -> Lock {
    facts.iter().fold(lock, |lock, fact| lock.apply(fact, at))
}

/// Decides and applies; the beats are those of a process that started at 0 and heard nobody.
fn feed(lock: &mut Lock, input: &Input, at: u64) -> Decision<Reply> {
    let decision = lock.decide(input, &Beats::default(), Millis(at)).unwrap();
    *lock = apply(lock.clone(), &decision.facts, Millis(at));
    decision
}

fn after(inputs: &[(Input, u64)]) -> Lock {
    let mut lock = lock();
    for (input, at) in inputs {
        feed(&mut lock, input, *at);
    }
    lock
}

fn tags(decision: &Decision<Reply>) -> Vec<&'static str> {
    decision.facts.iter().map(Event::tag).collect()
}

fn told(run: u128, told: Told) -> Follow {
    Follow::Tell { run: RunId(run), told }
}

fn granted(run: u128, epoch: u64) -> Follow {
    told(run, Told::LockGranted { step: Some(name("land")), lock: name("merge"), epoch })
}

#[test]
fn the_table_is_what_happens() {
    let (a, b, c) = (outside("a"), outside("b"), outside("c"));
    let at = 10;
    // Held since long ago by one that does not beat: stale at the time of the test.
    let late = at + TIMEOUT;
    let fresh = |holder: &Holder| (ask(holder.clone()), late);
    let stale = |holder: &Holder| (ask(holder.clone()), 0);
    Proof {
        name: "lock",
        about: "One holder at a time, and a line of those who wait. `contended` is held with a line.",
        table: TABLE,
        states: vec![
            ("free", lock()),
            ("held", after(&[fresh(&a)])),
            ("held", after(&[stale(&a)])),
            ("contended", after(&[fresh(&a), fresh(&b)])),
            ("contended", after(&[fresh(&a), fresh(&b), fresh(&c)])),
            ("contended", after(&[fresh(&a), (ask_until(b.clone(), 5), 0)])),
            ("contended", after(&[stale(&a), stale(&b)])),
            ("contended", after(&[stale(&a), stale(&b), stale(&c)])),
            ("contended", after(&[stale(&a), (ask_until(b.clone(), 5), 0)])),
        ],
        inputs: vec![
            (
                "configure",
                Input::Configure(Config { max_hold_duration: Some(Span::mins(5)), ..Config::default() }),
            ),
            ("acquire", ask(a.clone())),
            ("acquire", ask(b.clone())),
            ("acquire", try_ask(c.clone())),
            ("release", release(a.clone(), None)),
            ("release", release(b.clone(), None)),
            ("heartbeat", Input::Heartbeat { holder: a.clone(), epoch: 1 }),
            ("heartbeat", Input::Heartbeat { holder: a, epoch: 7 }),
            ("break", Input::Break { epoch: None }),
            ("break", Input::Break { epoch: Some(7) }),
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
fn asking_again_is_idempotent() {
    let mut lock = lock();
    assert_eq!(feed(&mut lock, &ask(step(1)), 1).reply, Reply::Acquired { epoch: 1 });
    let again = feed(&mut lock, &ask(step(1)), 2);
    assert_eq!((again.reply, again.facts), (Reply::Extended { epoch: 1 }, vec![]));
    // A new attempt of the step waits to hear of its hold.
    assert_eq!(again.follow, vec![granted(1, 1)]);
    assert_eq!(feed(&mut lock, &ask(step(2)), 3).reply, Reply::Queued { position: 1 });
    assert_eq!(feed(&mut lock, &ask(step(3)), 3).reply, Reply::Queued { position: 2 });
    let again = feed(&mut lock, &ask(step(2)), 4);
    assert_eq!((again.reply, again.facts), (Reply::Queued { position: 1 }, vec![]));
    // Waiting longer is a fact, and keeps the place.
    let longer = feed(&mut lock, &ask_until(step(2), 99), 5);
    assert_eq!((longer.reply.clone(), tags(&longer)), (Reply::Queued { position: 1 }, vec!["lock:queued"]));
    assert_eq!(lock.waiters[0].give_up_at, Some(Millis(99)));
    assert_eq!(lock.waiters[0].queued_at, Millis(3));
    assert_eq!(lock.waiters.len(), 2);
    // So does asking without waiting: only `abandon` leaves the line.
    assert_eq!(feed(&mut lock, &try_ask(step(2)), 6).reply, Reply::Queued { position: 1 });
}

#[test]
fn a_release_hands_over_in_the_same_decision() {
    let mut lock = after(&[(ask(step(1)), 1), (ask(step(2)), 2), (ask(outside("c")), 3)]);
    let decision = feed(&mut lock, &release(step(1), Some(1)), 9);
    assert_eq!(decision.reply, Reply::Released);
    assert_eq!(tags(&decision), ["lock:released", "lock:acquired"]);
    assert_eq!(decision.follow, vec![granted(2, 2)]);
    let hold = lock.hold().unwrap();
    assert_eq!((&hold.holder, hold.acquired_at, hold.epoch), (&step(2), Millis(9), 2));
    // The repeat finds another holder, and changes nothing.
    let repeat = feed(&mut lock, &release(step(1), Some(1)), 10);
    assert_eq!((repeat.reply, repeat.facts), (Reply::NotOwner { holder: step(2) }, vec![]));
    // Who is outside has no run to tell.
    let decision = feed(&mut lock, &release(step(2), None), 11);
    assert_eq!((tags(&decision), decision.follow), (vec!["lock:released", "lock:acquired"], vec![]));
    feed(&mut lock, &release(outside("c"), None), 12);
    assert_eq!(feed(&mut lock, &release(outside("c"), None), 12).reply, Reply::AlreadyFree);
    assert_eq!(lock.epoch, 3);
}

#[test]
fn an_older_epoch_is_refused() {
    let (a, beats) = (outside("a"), Beats::default());
    let lock = after(&[(ask(a.clone()), 1), (release(a.clone(), None), 2), (ask(a.clone()), 3)]);
    for input in [
        release(a.clone(), Some(1)),
        Input::Heartbeat { holder: a.clone(), epoch: 1 },
        Input::Heartbeat { holder: outside("b"), epoch: 2 },
        Input::Break { epoch: Some(1) },
    ] {
        let error = lock.decide(&input, &beats, Millis(4)).unwrap_err();
        assert_eq!(error.code(), Code::LeaseStaleEpoch, "{input:?}");
    }
    let reply = lock.decide(&Input::Heartbeat { holder: a, epoch: 2 }, &beats, Millis(4)).unwrap();
    assert_eq!(reply, Decision::reply(Reply::Extended { epoch: 2 }));
}

#[test]
fn a_stale_lock_goes_to_the_first_in_line() {
    // Nobody waits: the asker has it.
    let mut lone = after(&[(ask(outside("a")), 0)]);
    assert_eq!(feed(&mut lone, &try_ask(step(1)), TIMEOUT - 1).reply, Reply::Busy { holder: outside("a") });
    let decision = feed(&mut lone, &try_ask(step(1)), TIMEOUT);
    assert_eq!(decision.reply, Reply::Reclaimed { epoch: 2 });
    assert_eq!(tags(&decision), ["lock:reclaimed", "lock:acquired"]);
    // The asker is first itself.
    let line = after(&[(ask(outside("a")), 0), (ask(step(1)), 1), (ask(step(2)), 2)]);
    let decision = feed(&mut line.clone(), &ask(step(1)), TIMEOUT);
    assert_eq!((decision.reply, decision.follow), (Reply::Reclaimed { epoch: 2 }, vec![granted(1, 2)]));
    // Another is first: the asker moves up, or stands at the end, or goes away.
    let decision = feed(&mut line.clone(), &ask(step(2)), TIMEOUT);
    assert_eq!((decision.reply, decision.follow), (Reply::Queued { position: 1 }, vec![granted(1, 2)]));
    let decision = feed(&mut line.clone(), &ask(step(3)), TIMEOUT);
    assert_eq!(tags(&decision), ["lock:reclaimed", "lock:acquired", "lock:queued"]);
    assert_eq!(decision.reply, Reply::Queued { position: 2 });
    let decision = feed(&mut line.clone(), &try_ask(step(3)), TIMEOUT);
    let busy = told(3, Told::LockBusy { step: Some(name("land")), lock: name("merge") });
    assert_eq!(decision.reply, Reply::Busy { holder: step(1) });
    assert_eq!(decision.follow, vec![granted(1, 2), busy]);
}

#[test]
fn heartbeats_keep_a_hold_and_a_restart_grants_one_whole_timeout() {
    let lock = after(&[(ask(outside("a")), 0)]);
    let mut beats = Beats::default();
    assert_eq!(lock.due(&beats), Some(Millis(TIMEOUT)));
    beats.seen.insert(outside("a"), Millis(50_000));
    assert_eq!(lock.due(&beats), Some(Millis(50_000 + TIMEOUT)));
    let decision = lock.decide(&Input::Maintain, &beats, Millis(TIMEOUT)).unwrap();
    assert_eq!(decision.facts, vec![]);
    let restarted = Beats { since: Millis(90_000), ..Beats::default() };
    assert_eq!(lock.decide(&Input::Maintain, &restarted, Millis(90_000)).unwrap().facts, vec![]);
    let decision = lock.decide(&Input::Maintain, &restarted, Millis(90_000 + TIMEOUT)).unwrap();
    let reclaimed = LockReclaimed {
        lock: name("merge"),
        holder: outside("a"),
        epoch: 1,
        last_seen: Some(Millis(90_000)),
        overdue: false,
    };
    assert_eq!(decision.facts, vec![reclaimed.into()]);
}

#[test]
fn runs_and_steps_do_not_beat_but_may_hold_too_long() {
    for holder in [step(1), Holder::Run(RunId(1))] {
        let mut lock = after(&[(ask(holder.clone()), 0)]);
        assert_eq!(lock.due(&Beats::default()), None);
        assert_eq!(feed(&mut lock, &Input::Maintain, 1_000_000_000).facts, vec![]);
        let config = Config { max_hold_duration: Some(Span::hours(1)), ..Config::default() };
        feed(&mut lock, &Input::Configure(config), 1_000_000_000);
        assert_eq!(lock.due(&Beats::default()), Some(Millis(3_600_000)));
        let decision = feed(&mut lock, &Input::Maintain, 1_000_000_000);
        let reclaimed = LockReclaimed {
            lock: name("merge"),
            holder: holder.clone(),
            epoch: 1,
            last_seen: None,
            overdue: true,
        };
        assert_eq!(decision.facts, vec![reclaimed.into()]);
        let step = if holder == step(1) { Some(name("land")) } else { None };
        assert_eq!(
            decision.follow,
            vec![told(1, Told::HoldLost { step, name: name("merge"), broken: false })]
        );
        assert_eq!(lock.state, State::Free);
    }
}

#[test]
fn asking_again_does_not_restart_the_longest_hold() {
    let config = Config { max_hold_duration: Some(Span(100)), ..Config::default() };
    let mut lock = after(&[(Input::Configure(config), 0), (ask(step(1)), 0), (ask(step(1)), 90)]);
    assert_eq!(feed(&mut lock, &Input::Maintain, 99).facts, vec![]);
    assert_eq!(tags(&feed(&mut lock, &Input::Maintain, 100)), ["lock:reclaimed"]);
}

#[test]
fn a_break_takes_the_lock_and_says_so() {
    let mut lock = after(&[(ask(step(1)), 0), (ask(step(2)), 0)]);
    let decision = feed(&mut lock, &Input::Break { epoch: Some(1) }, 5);
    let broken = LockReleased { lock: name("merge"), holder: step(1), epoch: 1, broken: true };
    assert_eq!(decision.facts[0], broken.into());
    let lost = told(1, Told::HoldLost { step: Some(name("land")), name: name("merge"), broken: true });
    assert_eq!(decision.follow.len(), 2);
    assert!(decision.follow.contains(&lost) && decision.follow.contains(&granted(2, 2)));
    feed(&mut lock, &Input::Break { epoch: None }, 6);
    assert_eq!(feed(&mut lock, &Input::Break { epoch: None }, 7).reply, Reply::AlreadyFree);
}

#[test]
fn who_gave_up_is_passed_over_and_told() {
    let mut lock = after(&[(ask(step(1)), 0), (ask_until(step(2), 50), 0), (ask(step(3)), 0)]);
    assert_eq!(lock.due(&Beats::default()), Some(Millis(50)));
    let decision = feed(&mut lock.clone(), &release(step(1), None), 50);
    assert_eq!(tags(&decision), ["lock:released", "lock:abandoned", "lock:acquired"]);
    let busy = told(2, Told::LockBusy { step: Some(name("land")), lock: name("merge") });
    assert_eq!(decision.follow, vec![busy.clone(), granted(3, 2)]);
    let decision = feed(&mut lock, &Input::Maintain, 50);
    assert_eq!((tags(&decision), decision.follow), (vec!["lock:abandoned"], vec![busy]));
    // One whose time is over before it asks does not wait at all.
    assert_eq!(feed(&mut lock, &ask_until(step(4), 50), 50).reply, Reply::Busy { holder: step(1) });
}

#[test]
fn metadata_goes_along_with_the_grant() {
    let with = |holder, metadata| Input::Acquire(Ask { holder, metadata, wait: true, give_up_at: None });
    let mut lock = after(&[(ask(step(1)), 0), (with(step(2), Some(json!({"pr": 7}))), 1)]);
    feed(&mut lock, &release(step(1), None), 2);
    assert_eq!(lock.hold().unwrap().metadata, Some(json!({"pr": 7})));
    // A string has two quotes around it.
    let text = |length: usize| Some(Value::from("x".repeat(length)));
    let longest = with(step(3), text(METADATA_LEN_MAX - 2));
    assert!(lock.decide(&longest, &Beats::default(), Millis(3)).is_ok());
    let longer = with(step(3), text(METADATA_LEN_MAX - 1));
    let error = lock.decide(&longer, &Beats::default(), Millis(3)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidInput);
}

#[test]
fn the_line_is_bounded() {
    let mut lock = after(&[(ask(outside("a")), 0)]);
    for number in 0..WAITERS_MAX {
        let decision = lock.decide(&ask(step(number as u128)), &Beats::default(), Millis(1)).unwrap();
        assert_eq!(decision.reply, Reply::Queued { position: number + 1 });
        lock = apply(lock, &decision.facts, Millis(1));
    }
    let error = lock.decide(&ask(outside("b")), &Beats::default(), Millis(1)).unwrap_err();
    assert_eq!(error.code(), Code::CapExceeded);
    // Who is in line may still ask, and a line that moves has room again.
    assert!(lock.decide(&ask(step(7)), &Beats::default(), Millis(1)).is_ok());
    assert!(lock.decide(&ask(outside("b")), &Beats::default(), Millis(TIMEOUT)).is_ok());
}

#[test]
fn nonsensical_timeouts_are_refused_and_repeats_record_nothing() {
    let zero = Input::Configure(Config { heartbeat_timeout: Span::ZERO, max_hold_duration: None });
    let none = Input::Configure(Config { max_hold_duration: Some(Span::ZERO), ..Config::default() });
    for input in [zero, none] {
        let error = lock().decide(&input, &Beats::default(), Millis(1)).unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput);
    }
    let same = lock().decide(&Input::Configure(Config::default()), &Beats::default(), Millis(1)).unwrap();
    assert_eq!(same, Decision::reply(Reply::Configured));
}

fn holders() -> impl Strategy<Value = Holder> {
    prop_oneof![
        Just(Holder::Run(RunId(1))),
        Just(step(1)),
        Just(step(2)),
        Just(Holder::Worker(name("w"))),
        Just(outside("a")),
        Just(outside("b")),
    ]
}

fn inputs() -> impl Strategy<Value = Input> {
    let epoch = || prop::option::of(0u64..12);
    let give_up_at = prop::option::of((0u64..600_000).prop_map(Millis));
    let asks = (holders(), any::<bool>(), give_up_at).prop_map(|(holder, wait, give_up_at)| Ask {
        holder,
        metadata: None,
        wait,
        give_up_at,
    });
    let max_hold = prop::option::of((1u64..200_000).prop_map(Span));
    prop_oneof![
        1 => max_hold.prop_map(|max_hold_duration| Input::Configure(Config { max_hold_duration, ..Config::default() })),
        8 => asks.prop_map(Input::Acquire),
        4 => (holders(), epoch()).prop_map(|(holder, epoch)| Input::Release { holder, epoch }),
        2 => (holders(), 0u64..12).prop_map(|(holder, epoch)| Input::Heartbeat { holder, epoch }),
        1 => epoch().prop_map(|epoch| Input::Break { epoch }),
        1 => holders().prop_map(|holder| Input::Abandon { holder }),
        3 => Just(Input::Maintain),
    ]
}

/// What must be true of every lock, whatever happened to it.
fn check_invariants(lock: &Lock) -> Result<(), TestCaseError> {
    let line: BTreeSet<&Holder> = lock.waiters.iter().map(|waiter| &waiter.holder).collect();
    prop_assert_eq!(line.len(), lock.waiters.len(), "somebody waits twice");
    match &lock.state {
        State::Free => prop_assert!(lock.waiters.is_empty(), "a free lock has a line"),
        State::Held(hold) => {
            prop_assert!(!line.contains(&hold.holder), "the holder waits for itself");
            prop_assert_eq!(hold.epoch, lock.epoch);
        }
    }
    Ok(())
}

/// What must be true of every step from one state to the next.
fn check_step(before: &Lock, facts: &[Event], after: &Lock) -> Result<(), TestCaseError> {
    let mut free = before.hold().is_none();
    let mut epoch = before.epoch;
    let mut line: Vec<Holder> = before.waiters.iter().map(|waiter| waiter.holder.clone()).collect();
    for fact in facts {
        match fact {
            Event::LockAcquired(e) => {
                prop_assert!(free, "two holders");
                prop_assert!(e.epoch > epoch, "an epoch that does not grow");
                if e.queued {
                    prop_assert_eq!(line.first(), Some(&e.holder), "not the first in line");
                    line.remove(0);
                } else {
                    prop_assert!(line.is_empty(), "somebody was overtaken");
                }
                (free, epoch) = (false, e.epoch);
            }
            Event::LockReleased(_) | Event::LockReclaimed(_) => free = true,
            Event::LockAbandoned(e) => line.retain(|holder| *holder != e.holder),
            Event::LockQueued(e) if !line.contains(&e.holder) => line.push(e.holder.clone()),
            _ => {}
        }
    }
    // Nobody is lost, and nobody changes places.
    let left: Vec<Holder> = after.waiters.iter().map(|waiter| waiter.holder.clone()).collect();
    prop_assert_eq!(left, line);
    Ok(())
}

proptest! {
    #[test]
    fn any_sequence_keeps_the_invariants(
        steps in prop::collection::vec((inputs(), 0u64..40_000), 1..60),
        cut in 0usize..60,
    ) {
        let (new, mut beats, mut at) = (lock(), Beats::default(), 0);
        let mut lock = new.clone();
        let mut log: Vec<(Event, Millis)> = vec![];
        let mut snapshot = None;
        for (number, (input, pause)) in steps.iter().enumerate() {
            at += pause;
            if number == cut {
                snapshot = Some((serde_json::to_string(&lock).unwrap(), log.len()));
            }
            let Ok(decision) = lock.decide(input, &beats, Millis(at)) else { continue };
            if let (Input::Heartbeat { holder, .. }, Reply::Extended { .. }) = (input, &decision.reply) {
                beats.seen.insert(holder.clone(), Millis(at));
            }
            let before = lock.clone();
            lock = apply(lock, &decision.facts, Millis(at));
            check_step(&before, &decision.facts, &lock)?;
            check_invariants(&lock)?;
            if *input == Input::Maintain {
                prop_assert!(lock.due(&beats).is_none_or(|due| due > Millis(at)), "maintained, and still due");
            }
            if let Input::Acquire(ask) = input {
                let holds = lock.holder() == Some(&ask.holder);
                let said = matches!(
                    decision.reply,
                    Reply::Acquired { .. } | Reply::Extended { .. } | Reply::Reclaimed { .. }
                );
                prop_assert_eq!(holds, said, "{}", format!("{:?}", decision.reply));
                let position = lock.position(&ask.holder);
                let said = if let Reply::Queued { position } = decision.reply { Some(position) } else { None };
                prop_assert_eq!(position, said);
            }
            log.extend(decision.facts.into_iter().map(|fact| (fact, Millis(at))));
        }
        let replay = |from: Lock, tail: &[(Event, Millis)]| tail.iter().fold(from, |l, (fact, at)| l.apply(fact, *at));
        prop_assert_eq!(&replay(new.clone(), &log), &lock, "the log tells all");
        if let Some((text, length)) = snapshot {
            let kept: Lock = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&replay(new, &log[..length]), &kept);
            prop_assert_eq!(&replay(kept, &log[length..]), &lock, "snapshot and tail are the whole");
        }
    }
}
