//! Durations as runbooks write them: `500ms`, `30s`, `1h30m`, `7d`.

use windlass_core::time::Span;

/// The longest duration: ten years.
pub const SPAN_MAX: Span = Span::hours(24 * 3_650);

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a duration: numbers with units, the larger units first, each once.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Span, String> {
    let example = "a duration is written `500ms`, `30s`, `1h30m` or `7d`";
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("`{text}` has no unit: write `{text}s` for seconds, or `{text}m` for minutes"));
    }
    let mut rest = text;
    let mut total = 0_u64;
    let mut units = &UNITS[..];
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        let (Ok(number), Some(at)) =
            (number.parse::<u64>(), units.iter().position(|(name, _)| *name == unit))
        else {
            return Err(example.to_owned());
        };
        let part = number.checked_mul(units[at].1);
        total = part.and_then(|part| total.checked_add(part)).ok_or("the duration is too long")?;
        units = &units[at + 1..];
        rest = after;
    }
    match Span(total) {
        _ if text.is_empty() => Err(example.to_owned()),
        span if span > SPAN_MAX => Err("a duration is ten years at most".to_owned()),
        span => Ok(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_read_as_they_are_written() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("0s", 0),
            ("3650d", SPAN_MAX.0),
        ] {
            assert_eq!(parse(text), Ok(Span(millis)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "5 s",
            "5s ",
            "-5s",
            "1.5h",
            "5S",
            "5sec",
            "5m5h",
            "5s5s",
            "3651d",
            "५s",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("90").unwrap_err().contains("`90s`"));
    }

    proptest! {
        #[test]
        fn what_the_core_prints_reads_back(millis in 0..=SPAN_MAX.0) {
            prop_assert_eq!(parse(&Span(millis).to_string()), Ok(Span(millis)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}|[0-9hmsd]{0,30}") {
            let _ = parse(&text);
        }
    }
}
