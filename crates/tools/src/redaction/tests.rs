//! What redaction promises, by example and by property.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn redactor(secrets: &[&str]) -> Redactor {
    let mut redactor = Redactor::new();
    for secret in secrets {
        redactor.register("name", secret.as_bytes()).unwrap();
    }
    redactor
}

/// Redacts a text in one piece and in single bytes, and expects the same of both.
#[track_caller]
fn check(secrets: &[&str], text: &str, expected: &str) {
    let redactor = redactor(secrets);
    assert_eq!(redactor.text(text), expected);
    let mut out = Vec::new();
    let mut stream = redactor.stream();
    for byte in text.as_bytes() {
        stream.push(&[*byte], &mut out);
    }
    stream.finish(&mut out);
    assert_eq!(String::from_utf8_lossy(&out), expected, "byte by byte");
}

#[test]
fn a_secret_is_masked_wherever_it_stands() {
    check(&["hunter22"], "hunter22", "***");
    check(&["hunter22"], "a hunter22 b hunter22", "a *** b ***");
    check(&["hunter22"], "hunter2", "hunter2");
    check(&["hunter22"], "hunter2hunter22", "hunter2***");
    check(&[], "hunter22", "hunter22");
}

#[test]
fn overlapping_finds_are_one_mask() {
    check(&["abab"], "xabababx", "x***x");
    check(&["abcdef", "defghi"], "abcdefghi", "***");
    check(&["abcdefgh", "cdef"], "abcdefgh cdefgh", "*** ***gh");
    check(&["aaaa"], "aaaaaaaaab", "***b");
    // The beginning of a long one that does not go on, with a short one inside of it.
    check(&["xabcdefgh", "abcd"], "xabcdz", "x***z");
    check(&["abcd"], "abcdabcd", "******");
}

/// The expected forms are written by hand, as other programs write them.
#[test]
fn the_forms_that_programs_write_are_masked() {
    // `printf 'p@ss w0rd"/<é' | base64`, and the same after one and two bytes.
    let secret = "p@ss w0rd\"/<é";
    for (text, expected) in [
        ("cEBzcyB3MHJkIi88w6k=", "***="),
        ("eHBAc3MgdzByZCIvPMOp", "eH***"),
        ("eHlwQHNzIHcwcmQiLzzDqQ==", "eHl***=="),
        ("7040737320773072 64222f3cc3a9", "7040737320773072 64222f3cc3a9"),
        ("704073732077307264222f3cc3a9", "***"),
        ("704073732077307264222F3CC3A9", "***"),
        ("x=p%40ss%20w0rd%22%2F%3C%C3%A9&y", "x=***&y"),
        ("x=p%40ss%20w0rd%22%2f%3c%c3%a9&y", "x=***&y"),
        ("p%40ss%20w0rd%22/%3C%C3%A9", "***"),
        ("p%40ss+w0rd%22%2F%3C%C3%A9", "***"),
        (r#"{"k":"p@ss w0rd\"/<é"}"#, r#"{"k":"***"}"#),
        (r#"{"k":"p@ss w0rd\"/<\u00e9"}"#, r#"{"k":"***"}"#),
        (r#"{"k":"p@ss w0rd\"\/<é"}"#, r#"{"k":"***"}"#),
        (r#"{"k":"p@ss w0rd\"/\u003cé"}"#, r#"{"k":"***"}"#),
    ] {
        check(&[secret], text, expected);
    }
    // The url-safe alphabet differs where the digits 62 and 63 occur.
    check(&["\u{3ff}\u{3fe}ok?>~"], "z7_Pvm9rPz5-", "***");
    check(&["it's me!"], r"'it'\''s me!'", "'***'");
}

#[test]
fn what_base64_breaks_into_lines_is_masked() {
    let secret: String = (0..90u8).map(|i| char::from(b'!' + i)).collect();
    let mut encoded: String =
        String::from_utf8(forms::of(secret.as_bytes()).into_iter().max_by_key(Vec::len).unwrap()).unwrap();
    assert!(redactor(&[&secret]).text(&encoded) == MASK);
    encoded = "ISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZ\n\
               WltcXV5fYGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6"
        .to_owned();
    assert_eq!(redactor(&[&secret]).text(&encoded), MASK);
}

#[test]
fn the_lines_of_a_secret_are_masked_on_their_own() {
    let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nabc\n-----END KEY-----\n";
    check(&[key], "  MIIEvQIBADANBgkq\n  abc\n", "  ***\n  abc\n");
    check(&[key], &format!("<{key}>"), "<***\n>");
}

#[test]
fn what_is_no_secret_is_refused() {
    let mut redactor = Redactor::new();
    assert_eq!(redactor.register("pin", b"123"), Err(Refusal::Short { name: "pin".into() }));
    assert_eq!(redactor.register("pin", b"123\n"), Err(Refusal::Short { name: "pin".into() }));
    assert_eq!(
        redactor.register("big", &vec![b'x'; Redactor::LEN_MAX + 1]),
        Err(Refusal::Long { name: "big".into() })
    );
    assert!(redactor.is_empty());
    for i in 0..(Redactor::TOTAL_MAX / Redactor::LEN_MAX) as u8 {
        redactor.register("many", &vec![i; Redactor::LEN_MAX]).unwrap();
    }
    assert_eq!(redactor.register("last", b"last secret"), Err(Refusal::Full { name: "last".into() }));
    redactor.register("again", &vec![0; Redactor::LEN_MAX]).unwrap();
}

#[test]
fn values_are_redacted_by_leaf_and_as_written() {
    let redactor = redactor(&["hunter22", "123456", r#"{"a":[1,"b"]}"#]);
    let value = json!({"hunter22": ["x hunter22", 123456, 1234, null], "n": {"a": [1, "b"]}});
    assert_eq!(
        redactor.value(&value),
        json!("***"),
        "a secret that is structure takes the whole value with it"
    );
    let value = json!({"hunter22": ["x hunter22", 123456, 1234, null]});
    assert_eq!(redactor.value(&value), json!({"***": ["x ***", "***", 1234, null]}));
    assert_eq!(Redactor::new().value(&value), value);
}

/// Secrets over a small alphabet overlap themselves and each other. Asterisks look like the mask and are left out.
fn secret() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(prop_oneof![Just(b'a'), Just(b'b')], 4..10),
        prop::collection::vec(any::<u8>().prop_filter("no asterisk", |b| *b != b'*'), 4..40),
        "[ -)+-~é]{4,30}".prop_map(String::into_bytes),
    ]
    .prop_filter("no line break at the end", |s| !matches!(s.last(), Some(b'\n' | b'\r')))
}

/// Texts made of noise and of forms of the secrets, and where they are cut.
fn case() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<u8>, Vec<usize>)> {
    let inside = (any::<prop::sample::Index>(), 4usize..8);
    (prop::collection::vec(secret(), 1..4), inside).prop_flat_map(|(mut secrets, (at, len))| {
        // One secret can be a part of another.
        let part = secrets[0][at.index(secrets[0].len())..].iter().copied().take(len).collect::<Vec<u8>>();
        if part.len() >= Redactor::LEN_MIN && !matches!(part.last(), Some(b'\n' | b'\r')) {
            secrets.push(part);
        }
        let all: Vec<Vec<u8>> = secrets.iter().flat_map(|s| forms::of(s)).collect();
        let form = prop::sample::select(all);
        let part = prop_oneof![
            3 => form.clone(),
            1 => (form, any::<prop::sample::Index>()).prop_map(|(form, at)| form[..at.index(form.len())].to_vec()),
            2 => prop::collection::vec(any::<u8>(), 0..12),
            2 => prop::collection::vec(prop_oneof![Just(b'a'), Just(b'b')], 0..12),
        ];
        let text = prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat());
        (Just(secrets), text, prop::collection::vec(0usize..400, 0..12))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any split of any text gives what the whole gives, shows no form of a secret, and holds back little.
    #[test]
    fn a_split_text_is_redacted_like_the_whole((secrets, text, mut cuts) in case()) {
        let mut redactor = Redactor::new();
        let mut patterns = BTreeSet::new();
        for secret in &secrets {
            redactor.register("name", secret).unwrap();
            patterns.extend(forms::of(secret));
        }
        let longest = patterns.iter().map(Vec::len).max().unwrap();
        let whole = redactor.bytes(&text);

        cuts.retain(|cut| *cut <= text.len());
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut out = Vec::new();
        let mut stream = redactor.stream();
        for pair in cuts.windows(2) {
            stream.push(&text[pair[0]..pair[1]], &mut out);
            prop_assert!(stream.held_len() < longest);
        }
        stream.finish(&mut out);
        prop_assert_eq!(&out, &whole);
        prop_assert_eq!(&whole, &by_hand(&patterns, &text));
        // Between masks stands text as it was, so a form could only show there.
        let text_holds_asterisks = text.contains(&b'*');
        for pattern in patterns.iter().filter(|p| !text_holds_asterisks && !p.contains(&b'*')) {
            prop_assert!(!whole.windows(pattern.len()).any(|w| w == &pattern[..]));
        }
    }
}

/// The definition, written down without any cleverness: every byte of every occurrence is masked.
fn by_hand(patterns: &BTreeSet<Vec<u8>>, text: &[u8]) -> Vec<u8> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for pattern in patterns {
        for start in 0..text.len() {
            if text[start..].starts_with(pattern) {
                ranges.push((start, start + pattern.len()));
            }
        }
    }
    ranges.sort_unstable();
    let mut merged: Vec<(usize, usize)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start < last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    let (mut out, mut at) = (Vec::new(), 0);
    for (start, end) in merged {
        out.extend_from_slice(&text[at..start]);
        out.extend_from_slice(MASK.as_bytes());
        at = end;
    }
    out.extend_from_slice(&text[at..]);
    out
}
