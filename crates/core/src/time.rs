//! Time as data: milliseconds since the epoch, taken from records, never from a clock.
//!
//! The core cannot ask what time it is. A command carries its time, the record keeps it, and within a
//! stream it never decreases: [`Millis::never_before`] is how a record's time is chosen.

use core::fmt;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Millis {
    /// The later of the two, so that a clock set back does not make history run backwards.
    #[must_use]
    pub fn never_before(self, earlier: Millis) -> Millis {
        self.max(earlier)
    }

    /// How long after `earlier` this is; zero where it is not after it.
    #[must_use]
    pub fn since(self, earlier: Millis) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);

    /// A span of whole seconds.
    #[must_use]
    pub const fn secs(secs: u64) -> Span {
        Span(secs.saturating_mul(1_000))
    }

    /// A span of whole minutes.
    #[must_use]
    pub const fn mins(mins: u64) -> Span {
        Span::secs(mins.saturating_mul(60))
    }

    /// A span of whole hours.
    #[must_use]
    pub const fn hours(hours: u64) -> Span {
        Span::mins(hours.saturating_mul(60))
    }
}

impl Add<Span> for Millis {
    type Output = Millis;
    fn add(self, span: Span) -> Millis {
        Millis(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Millis {
    type Output = Millis;
    fn sub(self, span: Span) -> Millis {
        Millis(self.0.saturating_sub(span.0))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Prints the way runbooks write durations: `1h30m`, `500ms`, `0s`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            if rest >= size {
                write!(f, "{}{unit}", rest / size)?;
                rest %= size;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn spans_print_as_runbooks_write_them() {
        for (span, text) in [
            (Span(500), "500ms"),
            (Span::mins(90), "1h30m"),
            (Span::hours(24 * 7), "7d"),
            (Span(61_001), "1m1s1ms"),
            (Span::ZERO, "0s"),
        ] {
            assert_eq!(span.to_string(), text);
        }
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Millis(u64::MAX) + Span(1), Millis(u64::MAX));
        assert_eq!(Millis(3) - Span(5), Millis(0));
        assert_eq!(Millis(3).since(Millis(5)), Span::ZERO);
    }
}
