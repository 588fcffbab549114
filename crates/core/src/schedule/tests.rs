//! Tests of the schedule machine.

use super::*;
use crate::digest::Digest;
use crate::follow::Follow;
use crate::testing::{Proof, name};
use alloc::collections::BTreeMap;
use alloc::vec;
use proptest::prelude::*;
use serde_json::json;

const BORN: Millis = Millis(1_000_000);
/// A slot every ten minutes.
const EVERY: Span = Span::mins(10);

fn slot(n: u64) -> Millis {
    BORN + Span(EVERY.0 * n)
}

fn settings(catch_up: CatchUp, overlap: Overlap) -> Settings {
    Settings {
        spec: "every: 10m".into(),
        timezone: name("UTC"),
        jitter: Span::ZERO,
        catch_up,
        overlap,
        pipeline: name("nightly"),
        runbook_hash: Digest([1; 32]),
        vars: json!({"a": 1}),
        project_root: "/srv".into(),
    }
}

fn absent() -> Schedule {
    Schedule::new(Scoped::parse("default/default/nightly").unwrap())
}

fn step(schedule: &Schedule, input: &Input, at: Millis) -> Result<(Schedule, Decision), Error> {
    let decision = schedule.decide(input, at)?;
    Ok((decision.facts.iter().fold(schedule.clone(), |s, fact| s.apply(fact, at)), decision))
}

fn after(schedule: Schedule, inputs: &[(Input, Millis)]) -> Schedule {
    inputs.iter().fold(schedule, |schedule, (input, at)| step(&schedule, input, *at).unwrap().0)
}

fn configure(catch_up: CatchUp, overlap: Overlap) -> Input {
    Input::Configure { settings: settings(catch_up, overlap), next_at: Some(slot(1)) }
}

fn active(catch_up: CatchUp, overlap: Overlap) -> Schedule {
    after(absent(), &[(configure(catch_up, overlap), BORN)])
}

/// The slots `from..=to`, with run ids that bear the slots' numbers.
fn due(from: u64, to: u64) -> Input {
    Input::Due {
        slots: (from..=to).map(slot).collect(),
        next_at: Some(slot(to + 1)),
        runs: (from..=to).map(|n| RunId(n.into())).collect(),
    }
}

fn settle(n: u128) -> Input {
    Input::Settle { run: RunId(n) }
}

fn started(decision: &Decision) -> Vec<(u128, Millis)> {
    let started = decision.facts.iter().filter_map(|fact| match fact {
        Event::ScheduleFired(e) => Some((e.pipeline_id.0, e.slot)),
        _ => None,
    });
    started.collect()
}

fn skips(decision: &Decision) -> Vec<(Millis, SkipReason)> {
    let skips = decision.facts.iter().filter_map(|fact| match fact {
        Event::ScheduleSkipped(e) => Some((e.slot, e.reason)),
        _ => None,
    });
    skips.collect()
}

#[test]
fn the_table_holds() {
    let idle = active(CatchUp::One, Overlap::Skip);
    let busy = after(idle.clone(), &[(due(1, 1), slot(1))]);
    let paused = after(busy.clone(), &[(Input::Pause, slot(1))]);
    let removed = after(busy.clone(), &[(Input::Remove, slot(1))]);
    Proof {
        name: "schedule",
        about: "Slots that become runs: one run per slot, once.",
        table: TABLE,
        states: vec![
            ("absent", absent()),
            ("active", idle.clone()),
            ("active", busy),
            ("paused", after(idle, &[(Input::Pause, slot(1))])),
            ("paused", paused),
            ("removed", removed),
        ],
        inputs: vec![
            ("configure", configure(CatchUp::One, Overlap::Skip)),
            ("configure", configure(CatchUp::All, Overlap::Queue)),
            ("due", due(1, 2)),
            ("defer", Input::Defer { until: slot(3), reason: "max_runs_per_min".into() }),
            ("run_now", Input::RunNow { run: RunId(77), asked_by: vec![] }),
            ("settle", settle(1)),
            ("pause", Input::Pause),
            ("resume", Input::Resume { next_at: Some(slot(3)) }),
            ("remove", Input::Remove),
        ],
    }
    .check(|schedule, input| {
        step(schedule, input, slot(2)).map(|(next, _)| next.state_name()).map_err(|error| error.code())
    });
}

#[test]
fn what_a_cap_puts_off_is_neither_missed_nor_lost() {
    let until = slot(1) + GRACE + Span::mins(5);
    let defer = Input::Defer { until, reason: "max_runs_per_min".into() };
    let schedule = active(CatchUp::None, Overlap::Skip);
    let deferred = after(schedule, &[(defer.clone(), slot(1))]);
    assert_eq!(deferred.due(), Some(until));
    let (fired, decision) = step(&deferred, &due(1, 1), until).unwrap();
    assert_eq!(started(&decision), [(1, slot(1))], "it is late because of the cap alone");
    assert_eq!(fired.deferred_at, None);

    // A slot that waits for the run before it, and then for the cap.
    let busy = after(active(CatchUp::All, Overlap::Queue), &[(due(1, 2), slot(2))]);
    assert_eq!(busy.held.len(), 1);
    let mut idle = busy.clone();
    idle.live.clear();
    let idle = after(idle, &[(defer, slot(2))]);
    let look = Input::Due { slots: vec![], next_at: Some(slot(3)), runs: vec![] };
    let (fired, decision) = step(&idle, &look, until).unwrap();
    assert_eq!(started(&decision), [(2, slot(2))]);
    assert_eq!((fired.held.len(), fired.next_at), (0, Some(slot(3))));
    let (fired, decision) = step(&idle, &due(3, 3), slot(3)).unwrap();
    assert_eq!((started(&decision), fired.held.len()), (vec![(2, slot(2))], 1), "first come, first served");
}

#[test]
fn a_new_version_does_not_put_off_what_is_due() {
    let schedule = active(CatchUp::None, Overlap::Skip);
    let newer = |spec: &str| Input::Configure {
        settings: Settings {
            runbook_hash: Digest([2; 32]),
            spec: spec.into(),
            ..settings(CatchUp::None, Overlap::Skip)
        },
        next_at: Some(slot(2)),
    };
    assert_eq!(after(schedule.clone(), &[(newer("every: 10m"), slot(1))]).due(), Some(slot(1)));
    assert_eq!(after(schedule, &[(newer("every: 20m"), slot(1))]).due(), Some(slot(2)));
}

#[test]
fn a_slot_fires_once_even_after_a_restart() {
    let schedule = active(CatchUp::All, Overlap::Queue);
    let (fired, decision) = step(&schedule, &due(1, 1), slot(1)).unwrap();
    assert_eq!(started(&decision), [(1, slot(1))]);
    let restored: Schedule = serde_json::from_str(&serde_json::to_string(&fired).unwrap()).unwrap();
    let again = Input::Due { slots: vec![slot(1)], next_at: Some(slot(2)), runs: vec![RunId(9)] };
    assert_eq!(restored.decide(&again, slot(1)), Ok(Decision::new()));
}

#[test]
fn catching_up_with_none_runs_only_a_slot_that_is_hardly_late() {
    let schedule = active(CatchUp::None, Overlap::Skip);
    let hardly = schedule.decide(&due(1, 3), slot(3) + GRACE).unwrap();
    assert_eq!(started(&hardly), [(1, slot(3))]);
    assert_eq!(skips(&hardly), [(slot(1), SkipReason::Missed), (slot(2), SkipReason::Missed)]);
    let late = schedule.decide(&due(1, 3), slot(3) + GRACE + Span(1)).unwrap();
    assert_eq!((started(&late), skips(&late).len()), (vec![], 3));
}

#[test]
fn catching_up_with_one_runs_the_latest_however_late() {
    let decision = active(CatchUp::One, Overlap::Skip).decide(&due(1, 3), slot(3) + Span::mins(9)).unwrap();
    assert_eq!((started(&decision), skips(&decision).len()), (vec![(1, slot(3))], 2));
}

#[test]
fn catching_up_with_all_runs_each_in_order_one_after_the_other() {
    for overlap in [Overlap::Queue, Overlap::Skip] {
        let schedule = active(CatchUp::All, overlap);
        let (schedule, decision) = step(&schedule, &due(1, 3), slot(3)).unwrap();
        assert_eq!((started(&decision), skips(&decision)), (vec![(1, slot(1))], vec![]));
        let (schedule, decision) = step(&schedule, &settle(1), slot(3)).unwrap();
        assert_eq!(started(&decision), [(2, slot(2))]);
        assert_eq!(schedule.decide(&settle(1), slot(3)), Ok(Decision::new()));
        let (schedule, decision) = step(&schedule, &settle(2), slot(3)).unwrap();
        assert_eq!(started(&decision), [(3, slot(3))]);
        assert!(after(schedule, &[(settle(3), slot(3))]).live.is_empty());
    }
}

#[test]
fn a_slot_that_comes_in_time_is_skipped_while_those_that_were_missed_are_run() {
    let schedule = active(CatchUp::All, Overlap::Skip);
    let late = slot(2) + GRACE + Span(1);
    let (busy, decision) = step(&schedule, &due(1, 2), late).unwrap();
    assert_eq!((started(&decision), busy.held.len()), (vec![(1, slot(1))], 1));
    assert_eq!(skips(&busy.decide(&due(3, 3), slot(3)).unwrap()), [(slot(3), SkipReason::Overlap)]);
    // One alone that was missed waits, too; a run by hand does not.
    let (waits, decision) = step(&busy, &due(3, 3), slot(3) + GRACE + Span(1)).unwrap();
    assert_eq!((skips(&decision), waits.held.len()), (vec![], 2));
    let now = Input::RunNow { run: RunId(9), asked_by: vec![] };
    assert_eq!(busy.decide(&now, slot(3)).unwrap_err().code(), Code::LockBusy);
}

#[test]
fn overlap_skips_or_cancels() {
    let busy = after(active(CatchUp::One, Overlap::Skip), &[(due(1, 1), slot(1))]);
    let decision = busy.decide(&due(2, 2), slot(2)).unwrap();
    assert_eq!(skips(&decision), [(slot(2), SkipReason::Overlap)]);
    let now = Input::RunNow { run: RunId(9), asked_by: vec![] };
    assert_eq!(busy.decide(&now, slot(2)).unwrap_err().code(), Code::LockBusy);

    let busy = after(active(CatchUp::All, Overlap::Cancel), &[(due(1, 1), slot(1))]);
    let decision = busy.decide(&due(2, 3), slot(3)).unwrap();
    assert!(matches!(&decision.follow[0], Follow::Cancel { run: RunId(1), .. }));
    assert_eq!(started(&decision), [(2, slot(3))]);
    assert_eq!(skips(&decision), [(slot(2), SkipReason::Overlap)]);
}

#[test]
fn a_run_by_hand_leaves_the_slot_to_come() {
    let schedule = active(CatchUp::One, Overlap::Queue);
    let now = Input::RunNow { run: RunId(9), asked_by: vec![] };
    let (schedule, decision) = step(&schedule, &now, slot(0) + Span(5)).unwrap();
    assert_eq!(started(&decision), [(9, slot(0) + Span(5))]);
    assert_eq!((schedule.last_slot, schedule.due()), (BORN, Some(slot(1))));
    assert_eq!(schedule.decide(&now, slot(0) + Span(6)), Ok(Decision::new()));
}

#[test]
fn slots_of_a_pause_are_not_owed() {
    let paused = after(active(CatchUp::All, Overlap::Queue), &[(Input::Pause, slot(0) + Span(1))]);
    assert_eq!(paused.due(), None);
    let resume = Input::Resume { next_at: Some(slot(4)) };
    let resumed = after(paused, &[(resume, slot(3) + Span(1))]);
    assert_eq!(started(&resumed.decide(&due(1, 4), slot(4)).unwrap()), [(1, slot(4))]);
}

#[test]
fn what_waits_goes_on_after_a_pause() {
    let schedule = active(CatchUp::All, Overlap::Queue);
    let paused =
        after(schedule, &[(due(1, 2), slot(2)), (Input::Pause, slot(2)), (settle(1), slot(2) + Span(1))]);
    assert_eq!((paused.live.len(), paused.held.len()), (0, 1));
    let resume = Input::Resume { next_at: Some(slot(3)) };
    assert_eq!(started(&paused.decide(&resume, slot(2) + Span(2)).unwrap()), [(2, slot(2))]);
}

#[test]
fn a_new_runbook_version_keeps_what_is_owed_and_a_new_spec_does_not() {
    let schedule = active(CatchUp::All, Overlap::Queue);
    let mut changed = settings(CatchUp::All, Overlap::Queue);
    changed.runbook_hash = Digest([2; 32]);
    let configure = |settings: &Settings| Input::Configure { settings: settings.clone(), next_at: None };
    assert_eq!(after(schedule.clone(), &[(configure(&changed), slot(2))]).last_slot, BORN);
    changed.spec = "every: 7m".into();
    assert_eq!(after(schedule, &[(configure(&changed), slot(2))]).last_slot, slot(2));
}

#[test]
fn a_schedule_without_slots_is_not_due_for_ever() {
    let schedule = active(CatchUp::One, Overlap::Skip);
    let empty = Input::Due { slots: vec![], next_at: None, runs: vec![] };
    assert_eq!(after(schedule, &[(empty, slot(1))]).due(), None);
}

#[test]
fn lists_are_bounded() {
    let schedule = active(CatchUp::All, Overlap::Queue);
    let many = due(1, SLOTS_MAX as u64 + 1);
    assert_eq!(schedule.decide(&many, slot(9_999)).unwrap_err().code(), Code::InvalidInput);
    let (full, decision) = step(&schedule, &due(1, SLOTS_MAX as u64), slot(9_999)).unwrap();
    assert_eq!((full.live.len(), full.held.len()), (1, HELD_MAX));
    assert_eq!(skips(&decision).len(), SLOTS_MAX - HELD_MAX - 1);
    let few = Input::Due { slots: vec![slot(1)], next_at: None, runs: vec![] };
    assert_eq!(schedule.decide(&few, slot(1)), Err(Error::Runs));

    let mut cancelling = active(CatchUp::All, Overlap::Cancel);
    cancelling.live = (1_000..1_000 + LIVE_MAX as u128).map(RunId).collect();
    assert_eq!(skips(&cancelling.decide(&due(1, 1), slot(1)).unwrap()).len(), 1);
}

fn inputs() -> impl Strategy<Value = Input> {
    let word = (prop::sample::select(CatchUp::ALL), prop::sample::select(Overlap::ALL));
    prop_oneof![
        1 => word.prop_map(|(catch_up, overlap)| configure(catch_up, overlap)),
        6 => (0..20u64, 0..5u64).prop_map(|(from, more)| due(from, from + more)),
        1 => (100..110u128).prop_map(|n| Input::RunNow { run: RunId(n), asked_by: vec![] }),
        4 => (0..30u128).prop_map(settle),
        1 => (100..110u128).prop_map(settle),
        1 => Just(Input::Pause),
        2 => Just(Input::Resume { next_at: Some(slot(5)) }),
        1 => Just(Input::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_sequence_keeps_the_invariants(
        inputs in prop::collection::vec((inputs(), 0..EVERY.0), 0..60),
        cut in 0..60usize,
    ) {
        let mut schedule = absent();
        let mut at = BORN;
        let mut log = Vec::new();
        let mut fired: BTreeMap<Millis, u32> = BTreeMap::new();
        for (input, later) in &inputs {
            at = at + Span(*later);
            let Ok((next, decision)) = step(&schedule, input, at) else { continue };
            prop_assert!(next.last_slot >= schedule.last_slot);
            for fact in &decision.facts {
                if let Event::ScheduleFired(e) = fact && !e.manual {
                    *fired.entry(e.slot).or_default() += 1;
                    prop_assert!(e.slot <= at);
                }
            }
            let alone = match &schedule.state {
                State::Active(s) | State::Paused(s) => s.overlap != Overlap::Cancel,
                State::Absent | State::Removed => true,
            };
            let starts = started(&decision).len();
            prop_assert!(starts <= 1);
            if alone && starts == 1 {
                prop_assert_eq!(next.live.len(), 1);
            }
            prop_assert!(next.held.len() <= HELD_MAX && next.live.len() <= LIVE_MAX);
            log.extend(decision.facts.into_iter().map(|fact| (fact, at)));
            schedule = next;
        }
        prop_assert!(fired.values().all(|&count| count == 1), "a slot fired twice: {fired:?}");
        let fold = |schedule: Schedule, facts: &[(Event, Millis)]| {
            facts.iter().fold(schedule, |schedule, (fact, at)| schedule.apply(fact, *at))
        };
        let (head, tail) = log.split_at(cut.min(log.len()));
        let snapshot = serde_json::to_string(&fold(absent(), head)).unwrap();
        prop_assert_eq!(&fold(serde_json::from_str(&snapshot).unwrap(), tail), &schedule);
    }
}
