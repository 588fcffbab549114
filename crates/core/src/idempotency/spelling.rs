//! How ingress keys are spelled: `source:` and what names the delivery there.

use super::{Error, Source};
use crate::id::{ItemId, Name};
use crate::time::Millis;
use alloc::format;
use alloc::string::String;

/// Joins a key. Colons in all parts but the last are escaped, so that no two deliveries share a key by the
/// accident of where their parts begin.
fn join(source: Source, inner: &[&str], last: &str) -> Result<Name, Error> {
    let mut key = String::from(source.as_str());
    for part in inner {
        key.push(':');
        for c in part.chars() {
            match c {
                ':' => key.push_str("%3A"),
                '%' => key.push_str("%25"),
                other => key.push(other),
            }
        }
    }
    if last.is_empty() || inner.iter().any(|part| part.is_empty()) {
        return Err(Error::Key);
    }
    key.push(':');
    key.push_str(last);
    Name::new(&key).map_err(|_| Error::Key)
}

/// The key of a GitHub delivery: its `X-GitHub-Delivery`, which comes again on redelivery.
///
/// # Errors
/// [`Error::Key`] when it is empty, too long or unprintable; so for all of these.
pub fn github(delivery: &str) -> Result<Name, Error> {
    join(Source::Github, &[], delivery)
}

/// The key of an API call: the client's own, within the client.
///
/// # Errors
/// As [`github`].
pub fn api(client: &str, request: &str) -> Result<Name, Error> {
    join(Source::Api, &[client], request)
}

/// The key of a Slack command: its `trigger_id`, within the team.
///
/// # Errors
/// As [`github`].
pub fn slack(team: &str, trigger: &str) -> Result<Name, Error> {
    join(Source::Slack, &[team], trigger)
}

/// The key of a schedule's slot, by the time it was due.
///
/// # Errors
/// As [`github`].
pub fn scheduler(schedule: &str, slot: Millis) -> Result<Name, Error> {
    join(Source::Scheduler, &[schedule], &rfc3339(slot))
}

/// The key of any other hook's delivery, within the source that signed it.
///
/// # Errors
/// As [`github`].
pub fn hook(source: &str, delivery: &str) -> Result<Name, Error> {
    join(Source::Hook, &[source], delivery)
}

/// The key that was given on the command line.
///
/// # Errors
/// As [`github`].
pub fn cli(key: &str) -> Result<Name, Error> {
    join(Source::Cli, &[], key)
}

/// The key of a queue's item and one try at it: a retried item makes another run.
///
/// # Errors
/// As [`github`].
pub fn queue(item: ItemId, epoch: u64) -> Result<Name, Error> {
    join(Source::Queue, &[&format!("{item}")], &format!("{epoch}"))
}

/// A time as keys spell it: RFC 3339 in UTC, with milliseconds only where there are any.
fn rfc3339(at: Millis) -> String {
    let (days, ms) = (at.0 / 86_400_000, at.0 % 86_400_000);
    // Days are counted from 0000-03-01, so that a leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (secs, fraction) = (ms / 1_000, ms % 1_000);
    let fraction = if fraction == 0 { String::new() } else { format!(".{fraction:03}") };
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spelled_by_their_source() {
        let spelled = |key: Result<Name, Error>| String::from(key.unwrap().as_str());
        assert_eq!(spelled(github("12345678-1234")), "github:12345678-1234");
        assert_eq!(spelled(api("cli-abc", "req:1")), "api:cli-abc:req:1");
        assert_eq!(spelled(slack("T1", "1.2")), "slack:T1:1.2");
        assert_eq!(spelled(hook("servicenow", "e1")), "hook:servicenow:e1");
        assert_eq!(spelled(cli("k")), "cli:k");
        assert_eq!(spelled(queue(ItemId(7), 2)), "queue:itm_00000000000000000000000007:2");
        assert_eq!(
            spelled(scheduler("daily", Millis(1_734_566_400_000))),
            "scheduler:daily:2024-12-19T00:00:00Z"
        );
    }

    #[test]
    fn keys_are_bounded_and_no_client_can_spell_anothers() {
        assert_ne!(api("a:b", "c"), api("a", "b:c"));
        assert_ne!(api("a%3Ab", "c"), api("a:b", "c"));
        for bad in ["", "a\nb", &"x".repeat(Name::LEN_MAX)] {
            assert_eq!(github(bad), Err(Error::Key));
            assert_eq!(api(bad, "r"), Err(Error::Key));
        }
    }

    #[test]
    fn slots_are_spelled_as_the_calendar_has_them() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000, "2000-02-29T00:00:00Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(Millis(ms)), text);
        }
        // The end of time is far, and no reason to panic.
        assert!(rfc3339(Millis(u64::MAX)).ends_with('Z'));
    }
}
