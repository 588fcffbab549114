//! Slots by example, on the days that clocks change, and by property: none twice, none lost.

use super::*;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use windlass_core::id::{Name, RunId};
use windlass_core::schedule::{Input, Overlap, Schedule};

fn at(text: &str) -> Millis {
    let stamp: Timestamp = text.parse().unwrap();
    Millis(u64::try_from(stamp.as_millisecond()).unwrap())
}

/// The slots of a spec between two times, as UTC.
fn slots(spec: &str, zone: &str, from: &str, to: &str) -> Vec<String> {
    let spec = Spec::parse(spec, zone).unwrap();
    let show = |slot: Millis| Timestamp::from_millisecond(slot.0 as i64).unwrap().to_string();
    spec.next_slots(at(from), at(to), 100).into_iter().map(show).collect()
}

const BERLIN: &str = "Europe/Berlin";

#[test]
fn a_time_in_the_gap_comes_once_shifted() {
    // On 29 March 2026 two o'clock becomes three, at 01:00 UTC.
    let nights = slots("30 2 * * *", BERLIN, "2026-03-28T00:00:00Z", "2026-03-30T12:00:00Z");
    assert_eq!(nights, ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
    // Two times in one gap are shifted to the same moment, which is one slot.
    let twice = slots("0,30 2 * * *", BERLIN, "2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z");
    assert_eq!(twice, ["2026-03-29T01:00:00Z"]);
    let twice_a_day = slots("0 2,14 * * *", BERLIN, "2026-03-29T00:00:00Z", "2026-03-30T00:30:00Z");
    assert_eq!(twice_a_day, ["2026-03-29T01:00:00Z", "2026-03-29T12:00:00Z", "2026-03-30T00:00:00Z"]);
    // A day that a zone left out: on 30 December 2011 nobody in Samoa had a noon.
    let samoa = slots("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", "2012-01-01T00:00:00Z");
    assert_eq!(
        samoa,
        ["2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z", "2011-12-31T22:00:00Z"]
    );
    // What comes every quarter of an hour has no time in the gap, and leaves nothing out of the day's real hours.
    let quarters = slots("*/15 * * * *", BERLIN, "2026-03-29T00:40:00Z", "2026-03-29T01:20:00Z");
    assert_eq!(quarters, ["2026-03-29T00:45:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:15:00Z"]);
}

#[test]
fn a_time_in_the_overlap_comes_once() {
    // On 25 October 2026 three o'clock becomes two, at 01:00 UTC: half past two comes at 00:30 and at 01:30 UTC.
    let nights = slots("30 2 * * *", BERLIN, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z");
    assert_eq!(nights, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    // Asked for between the two, it is over.
    let after = slots("30 2 * * *", BERLIN, "2026-10-25T00:45:00Z", "2026-10-25T12:00:00Z");
    assert_eq!(after, Vec::<String>::new());
    let quarters = slots("*/15 2 * * *", BERLIN, "2026-10-25T00:00:00Z", "2026-10-25T12:00:00Z");
    assert_eq!(quarters.len(), 3, "the first of the two hours, after its first quarter: {quarters:?}");
    // What comes every half hour comes every half hour, also in the hour that is there twice.
    let halves = slots("*/30 * * * *", BERLIN, "2026-10-24T23:50:00Z", "2026-10-25T02:10:00Z");
    assert_eq!(halves.len(), 5, "{halves:?}");
    let other = slots("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", "2026-11-02T12:00:00Z");
    assert_eq!(other, ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]);
}

#[test]
fn fields_and_intervals_mean_what_users_of_cron_expect() {
    let month_end = slots("0 0 L * *", "UTC", "2027-12-15T00:00:00Z", "2028-03-15T00:00:00Z");
    assert_eq!(month_end, ["2027-12-31T00:00:00Z", "2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z"]);
    // Where both the day and the weekday are given, either will do.
    let either = slots("0 0 13 * FRI", "UTC", "2026-11-09T00:00:00Z", "2026-11-21T00:00:00Z");
    assert_eq!(either, ["2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"]);
    let hours = slots("every 6h", "UTC", "2026-01-01T05:00:00Z", "2026-01-01T18:00:00Z");
    assert_eq!(hours, ["2026-01-01T06:00:00Z", "2026-01-01T12:00:00Z", "2026-01-01T18:00:00Z"]);
}

#[test]
fn what_has_no_slots_is_refused() {
    let refused = |spec: &str, zone: &str| Spec::parse(spec, zone).unwrap_err();
    assert!(matches!(refused("every 999ms", "UTC"), Error::Every(_)));
    assert!(matches!(refused("every", "UTC"), Error::Fields(..)));
    assert!(matches!(refused("61 * * * *", "UTC"), Error::Fields(..)));
    assert!(matches!(refused("* * * * * *", "UTC"), Error::Fields(..)));
    assert!(matches!(refused("0 0 * * *", "Mars/Olympus"), Error::Zone(_)));
    assert!(matches!(refused("0 0 30 2 *", "UTC"), Error::Never(_)));
    assert_eq!(refused("0 0 30 2 *", "UTC").code(), Code::RunbookInvalid);
}

fn settings(spec: &str, zone: &str, catch_up: CatchUp, jitter: Span) -> Settings {
    Settings {
        spec: spec.to_owned(),
        timezone: Name::clean(zone),
        jitter,
        catch_up,
        overlap: Overlap::Queue,
        pipeline: Name::clean("p"),
        runbook_hash: Digest([1; 32]),
        vars: json!({}),
        project_root: String::new(),
    }
}

fn schedule() -> Scoped {
    Scoped::parse("default/default/nightly").unwrap()
}

#[test]
fn jitter_is_the_same_everywhere_and_within_its_bound() {
    let name = schedule();
    let most = Span::mins(10);
    let all: Vec<Span> = (0..1_000).map(|n| jitter(&name, Millis(n * 60_000), most)).collect();
    assert!(all.iter().all(|jitter| *jitter <= most));
    assert!(all.iter().any(|jitter| jitter.0 > most.0 / 2) && all.iter().any(|jitter| jitter.0 < most.0 / 2));
    // A figure from another machine: a change here would move slots that are settled.
    assert_eq!(
        jitter(&name, Millis(1_800_000_000_000), most),
        jitter(&schedule(), Millis(1_800_000_000_000), most)
    );
    assert_eq!(jitter(&name, Millis(7), Span::ZERO), Span::ZERO);
}

#[test]
fn a_long_silence_is_looked_at_in_bounded_pieces() {
    let name = schedule();
    let all = settings("every 1m", "UTC", CatchUp::All, Span::ZERO);
    let (from, until) = (at("2026-01-01T00:00:00Z"), at("2026-01-31T00:00:30Z"));
    let first = due(&name, &all, from, until).unwrap();
    assert_eq!(
        (first.slots.len(), first.next_at),
        (SLOTS_MAX, Some(until)),
        "the oldest first, the rest at once"
    );
    for spec in ["every 1m", "* * * * *"] {
        let one = settings(spec, "UTC", CatchUp::One, Span::ZERO);
        let newest = due(&name, &one, from, until).unwrap();
        assert_eq!(newest.slots.last(), Some(&at("2026-01-31T00:00:00Z")));
        assert!(newest.slots.len() <= SLOTS_MAX);
        assert_eq!(newest.next_at, Some(at("2026-01-31T00:01:00Z")));
    }
    // A day that comes once in four years is found from far away.
    let leap = settings("0 0 29 2 *", "UTC", CatchUp::One, Span::ZERO);
    let found = due(&name, &leap, at("2021-01-01T00:00:00Z"), at("2026-11-01T00:00:00Z")).unwrap();
    assert_eq!(found.slots, [at("2024-02-29T00:00:00Z")]);
}

/// A schedule's machine with the slots computed here, as the engine drives it.
struct Driven {
    schedule: Schedule,
    fired: BTreeMap<Millis, RunId>,
    ids: u128,
}

impl Driven {
    fn new(settings: &Settings, born: Millis) -> Driven {
        let next_at = first(&schedule(), settings, born).unwrap();
        let configure = Input::Configure { settings: settings.clone(), next_at };
        let mut driven = Driven { schedule: Schedule::new(schedule()), fired: BTreeMap::new(), ids: 0 };
        driven.tell(&configure, born);
        driven
    }

    fn tell(&mut self, input: &Input, at: Millis) {
        let decision = self.schedule.decide(input, at).unwrap();
        for fact in &decision.facts {
            self.schedule = self.schedule.clone().apply(fact, at);
            if let windlass_core::event::Event::ScheduleFired(fired) = fact {
                let before = self.fired.insert(fired.slot, fired.pipeline_id);
                assert_eq!(before, None, "slot {} made two runs", fired.slot);
            }
        }
    }

    /// Looks at the clock as the engine does, until nothing is due. A crash may come between asking and telling: then
    /// what was computed is lost.
    fn look(&mut self, at: Millis, crashes: bool) {
        for _ in 0..100 {
            if self.schedule.due().is_none_or(|due| due > at) {
                return;
            }
            let windlass_core::schedule::State::Active(settings) = self.schedule.state.clone() else {
                return;
            };
            let due = due(&schedule(), &settings, self.schedule.last_slot, at).unwrap();
            if crashes {
                return;
            }
            let runs = due.slots.iter().map(|_| {
                self.ids += 1;
                RunId(self.ids)
            });
            let runs = runs.collect();
            self.tell(&Input::Due { slots: due.slots, next_at: due.next_at, runs }, at);
            // Every run ends before the next look; what waited for it fires.
            while let Some(&run) = self.schedule.live.first() {
                self.tell(&Input::Settle { run }, at);
            }
        }
        panic!("it is due for ever");
    }
}

fn any_spec() -> impl Strategy<Value = String> {
    let field = |max: u32| {
        prop_oneof![Just("*".to_owned()), (0..max).prop_map(|n| n.to_string()), Just("*/7".to_owned())]
    };
    prop_oneof![
        3 => (field(60), field(24), prop_oneof![Just("*"), Just("MON-FRI"), Just("0")])
            .prop_map(|(minute, hour, day)| format!("{minute} {hour} * * {day}")),
        1 => (20u64..900).prop_map(|minutes| format!("every {minutes}m")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Looks at any times, with crashes in between, around the days that clocks change.
    #[test]
    fn no_slot_makes_two_runs_and_with_catch_up_all_none_is_lost(
        spec in any_spec(),
        zone in prop::sample::select(vec!["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
        autumn in any::<bool>(),
        jitter_s in prop_oneof![Just(0u64), 1u64..1_200],
        looks in prop::collection::vec((1u64..6 * 3_600_000, prop::bool::weighted(0.2)), 1..24),
        catch_up in prop::sample::select(vec![CatchUp::All, CatchUp::One, CatchUp::None]),
    ) {
        let born = at(if autumn { "2026-10-24T00:00:00Z" } else { "2026-03-28T00:00:00Z" });
        let settings = settings(&spec, zone, catch_up, Span::secs(jitter_s));
        let mut driven = Driven::new(&settings, born);
        let mut now = born;
        for (wait, crashes) in looks {
            now = now + Span(wait);
            driven.look(now, crashes);
        }
        driven.look(now, false);
        let expected = Spec::parse(&spec, zone).unwrap().next_slots(born, now, 100_000);
        let passed: Vec<Millis> =
            expected.into_iter().take_while(|slot| moved(&schedule(), &settings, *slot) <= now).collect();
        prop_assert!(driven.fired.keys().all(|slot| passed.contains(slot)));
        if catch_up == CatchUp::All && passed.len() <= 100 {
            prop_assert_eq!(driven.fired.keys().copied().collect::<Vec<_>>(), passed);
        }
    }

    /// What was computed from one time on is what is computed from another.
    #[test]
    fn slots_do_not_depend_on_where_one_begins(
        spec in any_spec(),
        zone in prop::sample::select(vec!["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe"]),
        autumn in any::<bool>(),
        offset in 0u64..48 * 3_600_000,
    ) {
        let born = at(if autumn { "2026-10-24T00:00:00Z" } else { "2026-03-28T00:00:00Z" });
        let parsed = Spec::parse(&spec, zone).unwrap();
        let (middle, end) = (born + Span(offset), born + Span::hours(60));
        let whole: Vec<Millis> =
            parsed.next_slots(born, end, 100_000).into_iter().filter(|slot| *slot > middle).collect();
        prop_assert_eq!(parsed.next_slots(middle, end, 100_000), whole);
    }
}
