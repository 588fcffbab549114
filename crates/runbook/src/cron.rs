//! Slots: when a schedule asks for a run, by five cron fields in a time zone or by an interval.
//!
//! The same slots come out whenever and wherever they are computed: an interval is anchored at the epoch, jitter is
//! derived from the schedule's name and the slot, and a cron slot depends on the fields and the zone alone. So a restart
//! or another machine finds the slots that were settled before. The rules for days on which clocks change stand in
//! `docs/schedules.md`, and each has a test here.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use std::collections::VecDeque;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::Scoped;
use windlass_core::schedule::{CatchUp, SLOTS_MAX, Settings};
use windlass_core::time::{Millis, Span};

/// The shortest interval.
pub const EVERY_MIN: Span = Span::secs(1);
/// How long after a change of clocks the wall may still show what it showed before. No zone was ever moved by more.
const CHANGE_MAX: SignedDuration = SignedDuration::from_hours(25);
/// How many times of day there are in that, and one.
const DAILY_MAX: usize = 25 * 60 + 2;
/// How far back the newest slot is looked for, the nearest first, where only that one counts.
const WINDOWS: [Span; 6] = [
    Span::hours(1),
    Span::hours(24),
    Span::hours(24 * 32),
    Span::hours(24 * 366),
    Span::hours(24 * 366 * 9),
    Span::hours(24 * 366 * 41),
];

/// Why there are no slots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The fields are no cron fields.
    #[error("`{0}` is not a schedule: {1}")]
    Fields(String, String),
    /// The span of an interval cannot be read, or is too short.
    #[error("`every: {0}` is not a span of a second or more")]
    Every(String),
    /// The time zone is unknown.
    #[error("there is no time zone `{0}`; write a name such as `Europe/Berlin` or `UTC`")]
    Zone(String),
    /// The fields mean a day that never comes.
    #[error("`{0}` never comes: no such day is in the calendar")]
    Never(String),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        Code::RunbookInvalid
    }
}

/// When slots are.
#[derive(Clone, Debug)]
pub enum Spec {
    /// At the times of day that cron fields mean in a zone: the hours are given.
    Daily(Box<Cron>, TimeZone),
    /// At every time whose minute and hour fit, wherever clocks stand: the hours are `*`.
    Repeating(Box<Cron>, TimeZone),
    /// At every multiple of a span since the epoch.
    Every(Span),
}

/// What is due of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Slots whose time has come, oldest first.
    pub slots: Vec<Millis>,
    /// When to look again.
    pub next_at: Option<Millis>,
}

impl Spec {
    /// Reads cron fields, or `every` and a span, as runbooks keep them.
    ///
    /// # Errors
    /// An expression that does not parse, an unknown zone, or a day that never occurs.
    pub fn parse(spec: &str, zone: &str) -> Result<Spec, Error> {
        if let Some(text) = spec.strip_prefix("every ") {
            let span = crate::span::parse(text).ok().filter(|span| *span >= EVERY_MIN);
            return span.map(Spec::Every).ok_or_else(|| Error::Every(windlass_core::wire::shorten(text)));
        }
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let short = || windlass_core::wire::shorten(spec);
        let cron = parser.parse(spec).map_err(|error| Error::Fields(short(), error.to_string()))?;
        let zone = zone_of(zone)?;
        let repeats = spec.split_whitespace().nth(1).is_some_and(|hours| hours.contains('*'));
        let spec =
            if repeats { Spec::Repeating(Box::new(cron), zone) } else { Spec::Daily(Box::new(cron), zone) };
        // The calendar repeats itself within these years, so a day that is not found in them never comes.
        match spec.next(Millis(0)) {
            Some(_) => Ok(spec),
            None => Err(Error::Never(short())),
        }
    }

    /// The first slot after a time.
    #[must_use]
    pub fn next(&self, after: Millis) -> Option<Millis> {
        match self {
            Spec::Every(span) => Some(Millis((after.0 / span.0 + 1).checked_mul(span.0)?)),
            Spec::Repeating(cron, zone) => {
                let from = stamp(after)?.to_zoned(zone.clone());
                let found = cron.find_next_occurrence(&from, false).ok()?;
                // A walk that does not get on would never end.
                millis(found.timestamp()).filter(|slot| *slot > after)
            }
            Spec::Daily(cron, zone) => next_daily(cron, zone, after),
        }
    }

    /// The slots after a time up to another, oldest first, at most so many.
    pub fn next_slots(&self, after: Millis, until: Millis, max: usize) -> Vec<Millis> {
        self.slots(after).take_while(|slot| *slot <= until).take(max).collect()
    }

    fn slots(&self, after: Millis) -> impl Iterator<Item = Millis> + '_ {
        std::iter::successors(self.next(after), |slot| self.next(*slot))
    }
}

fn stamp(at: Millis) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(at.0).ok()?).ok()
}

fn millis(stamp: Timestamp) -> Option<Millis> {
    u64::try_from(stamp.as_millisecond()).ok().map(Millis)
}

/// The first slot of a spec with given hours: every day has each of its times once, on the wall. One that no clock shows
/// comes at the first moment after the gap, one that clocks show twice comes the first time.
fn next_daily(cron: &Cron, zone: &TimeZone, after: Millis) -> Option<Millis> {
    let from = stamp(after)?;
    // Where clocks changed lately, the wall shows a time that may be behind: what lies before it is looked at again.
    let changed = zone
        .preceding(from)
        .next()
        .is_some_and(|change| from.duration_since(change.timestamp()).as_secs() < CHANGE_MAX.as_secs());
    let mut wall = zone.to_datetime(from);
    if changed {
        wall = wall.checked_sub(CHANGE_MAX).ok()?;
    }
    // At most so many times of day lie in what is looked at again.
    for _ in 0..DAILY_MAX {
        wall = cron.find_next_occurrence(&wall, false).ok()?;
        if let Some(slot) = moment(zone, wall).and_then(millis).filter(|slot| *slot > after) {
            return Some(slot);
        }
    }
    None
}

/// When a time on the wall comes.
fn moment(zone: &TimeZone, wall: DateTime) -> Option<Timestamp> {
    let times = zone.to_ambiguous_timestamp(wall);
    match times.offset() {
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => times.earlier().ok(),
        AmbiguousOffset::Gap { .. } => {
            let behind = times.later().ok()?.checked_add(SignedDuration::from_secs(1)).ok()?;
            zone.preceding(behind).next().map(|change| change.timestamp())
        }
    }
}

fn zone_of(name: &str) -> Result<TimeZone, Error> {
    TimeZone::get(name).map_err(|_| Error::Zone(windlass_core::wire::shorten(name)))
}

/// By how much a slot of a schedule is moved: the same on every machine and after every restart.
#[must_use]
pub fn jitter(schedule: &Scoped, slot: Millis, most: Span) -> Span {
    if most == Span::ZERO {
        return Span::ZERO;
    }
    let digest = Digest::of(&[schedule.as_str().as_bytes(), b"\n", &slot.0.to_be_bytes()]);
    let mut first = [0; 8];
    first.copy_from_slice(&digest.0[..8]);
    Span(u64::from_be_bytes(first) % most.0.saturating_add(1))
}

/// When a slot of a schedule makes its run.
fn moved(schedule: &Scoped, settings: &Settings, slot: Millis) -> Millis {
    slot + jitter(schedule, slot, settings.jitter)
}

/// The next slots of a schedule after a time, each with when it makes its run.
///
/// # Errors
/// Settings without slots.
pub fn upcoming(
    schedule: &Scoped,
    settings: &Settings,
    after: Millis,
    max: usize,
) -> Result<Vec<(Millis, Millis)>, Error> {
    let spec = Spec::parse(&settings.spec, settings.timezone.as_str())?;
    let slots = spec.slots(after).take(max);
    Ok(slots.map(|slot| (slot, moved(schedule, settings, slot))).collect())
}

/// When a schedule is due first after a time.
///
/// # Errors
/// Settings without slots.
pub fn first(schedule: &Scoped, settings: &Settings, after: Millis) -> Result<Option<Millis>, Error> {
    Ok(upcoming(schedule, settings, after, 1)?.first().map(|(_, at)| *at))
}

/// Which slots of a schedule passed after one time up to another, and when to look again.
///
/// A slot passes with its jitter, and none before those that come earlier. Where each missed slot gets its run, the
/// oldest come first, so many at once, and the rest as soon as they are settled. Where at most one does, only the newest
/// are of interest, and older ones are not looked for.
///
/// # Errors
/// Settings without slots.
pub fn due(schedule: &Scoped, settings: &Settings, after: Millis, until: Millis) -> Result<Due, Error> {
    let spec = Spec::parse(&settings.spec, settings.timezone.as_str())?;
    let scan = |from: Millis, newest: bool| {
        let mut due = Due { slots: Vec::new(), next_at: None };
        let mut slots = VecDeque::new();
        for slot in spec.slots(from) {
            let at = moved(schedule, settings, slot);
            if at > until {
                due.next_at = Some(at);
                break;
            }
            if slots.len() == SLOTS_MAX {
                if !newest {
                    // There is more: it is looked for at once.
                    due.next_at = Some(until);
                    break;
                }
                slots.pop_front();
            }
            slots.push_back(slot);
        }
        due.slots = slots.into();
        due
    };
    if settings.catch_up == CatchUp::All {
        return Ok(scan(after, false));
    }
    if let Spec::Every(span) = &spec {
        let window = Span(span.0.saturating_mul(SLOTS_MAX as u64).saturating_add(settings.jitter.0));
        return Ok(scan(after.max(until - window), true));
    }
    let mut due = Due::default();
    for window in WINDOWS {
        let from = after.max(until - Span(window.0 + settings.jitter.0));
        due = scan(from, true);
        if !due.slots.is_empty() || from == after {
            break;
        }
    }
    Ok(due)
}

#[cfg(test)]
mod tests;
