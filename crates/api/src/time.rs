//! Times as RFC 3339 in UTC, with milliseconds: `2026-11-20T00:05:00.000Z`. Records have epoch milliseconds instead.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::fmt;
use windlass_core::time::Millis;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub Millis);

const DAY_MS: u64 = 86_400_000;
/// The first millisecond after the year 9999, which has no text.
const END_MS: u64 = 253_402_300_800_000;
/// Days from 0000-03-01 to 1970-01-01, and in 400 years.
const DAYS_TO_EPOCH: u64 = 719_468;
const DAYS_PER_ERA: u64 = 146_097;

/// The time as it is written in answers.
#[must_use]
pub fn text(at: Millis) -> String {
    Time(at).to_string()
}

impl Time {
    /// Reads the text of a time: UTC, with any number of digits after the second, of which three count.
    #[must_use]
    pub fn parse(text: &str) -> Option<Time> {
        // A time beyond the year 9999 is written as its milliseconds.
        if let Some(digits) = text.strip_suffix("ms") {
            return digits.parse().ok().map(|ms| Time(Millis(ms)));
        }
        let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
        let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
        let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
        let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
        let fits = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 60;
        if !fits || fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let ms: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
        let secs = days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
        Some(Time(Millis(secs * 1_000 + ms)))
    }
}

fn numbers(text: &str, between: char, lens: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut found = [0; 3];
    for (number, len) in found.iter_mut().zip(lens) {
        let part =
            parts.next().filter(|part| part.len() == len && part.bytes().all(|b| b.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(found)
}

fn days_in(year: u64, month: u64) -> u64 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Years begin in March here, so that a leap day is the last day of its year.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = if month > 2 { year } else { year - 1 };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * DAYS_PER_ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - DAYS_TO_EPOCH
}

fn date(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_TO_EPOCH;
    let (era, of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let part = (5 * of_year + 2) / 153;
    let month = (part + 2) % 12 + 1;
    (era * 400 + year + u64::from(month <= 2), month, of_year - (153 * part + 2) / 5 + 1)
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.0.0;
        // Such a time is only ever a mistake, and is shown as it is.
        if at >= END_MS {
            return write!(f, "{at}ms");
        }
        let (year, month, day) = date(at / DAY_MS);
        let (secs, ms) = (at % DAY_MS / 1_000, at % 1_000);
        let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
    }
}

impl From<Millis> for Time {
    fn from(at: Millis) -> Time {
        Time(at)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
        let text = Cow::<str>::deserialize(d)?;
        Time::parse(&text).ok_or_else(|| de::Error::custom("a time in UTC as RFC 3339 has it is expected"))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times_are_written_as_expected() {
        let known = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_763_595_555_123, "2025-11-19T23:39:15.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (END_MS - 1, "9999-12-31T23:59:59.999Z"),
            (END_MS, "253402300800000ms"),
        ];
        for (ms, text) in known {
            assert_eq!(Time(Millis(ms)).to_string(), text);
            assert_eq!(Time::parse(text), Some(Time(Millis(ms))), "{text}");
        }
        assert_eq!(Time::parse("2000-02-29T00:00:00Z"), Some(Time(Millis(951_782_400_000))));
        assert_eq!(Time::parse("2000-02-29T00:00:00.5Z"), Some(Time(Millis(951_782_400_500))));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in
            ["", "now", "2001-02-29T00:00:00Z", "2000-02-29T24:00:00Z", "2000-13-01T00:00:00Z", "2000-02-29"]
        {
            assert_eq!(Time::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_time_comes_back(ms in 0..END_MS + 10) {
            prop_assert_eq!(Time::parse(&Time(Millis(ms)).to_string()), Some(Time(Millis(ms))));
        }

        #[test]
        fn texts_sort_as_times_do(a in 0..END_MS, b in 0..END_MS) {
            let text = |ms| Time(Millis(ms)).to_string();
            prop_assert_eq!(text(a).cmp(&text(b)), a.cmp(&b));
        }
    }
}
