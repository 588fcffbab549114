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
    // The digits are known to be no offset only when what stands behind them has already been found.
    check(&["aabb"], "61616262aabbg", "******g");
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
        ("7040737320773072 64222f3cc3a9", "***"),
        ("704073732077307264222f3cc3 -- a9", "***"),
        ("p@ss w0rd&quot;/&lt;é", "***"),
        ("p@ss w0rd&#34;/&lt;é", "***"),
        ("p@ss w0rd\"/&lt;é", "***"),
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

/// Writers differ in what they escape, and one text mixes the ways.
#[test]
fn characters_that_are_escaped_one_by_one_are_masked() {
    let secret = "tok<en>&\"q/w+r=z9";
    for text in [
        "tok&#60;en&#62;&#38;&#34;q/w&#43;r&#61;z9",
        "tok&#x3c;en&#x003E;&amp;&quot;q/w+r=z9",
        "tok&lt;en&gt;&amp;&quot;q&sol;w&plus;r&equals;z9",
        "&#116;ok&#0060;en>&\"q/w+r=z9",
        "tok%3Cen%3e%26%22q%2Fw%2br%3Dz9",
        "tok%3cen%3E&%22q/w%2Br=z9",
        r#"tok\<en\>\&\"q/w+r=z9"#,
        r#"tok\u003cen\u003E&\"q\/w+r=z9"#,
        r#"tok\x3cen\x3E\046\042q/w+r=z9"#,
    ] {
        check(&[secret], &format!("a {text}; b"), "a ***; b");
    }
    check(&["it's-a-s3cret!pw"], r"it\'s-a-s3cret\!pw", "***");
    check(&["Bäcker & Söhne é"], "B&auml;cker &amp; S&ouml;hne &eacute;", "***");
    check(&["Bäcker Söhne"], r"$'B\303\244cker S\303\266hne'", "$'***'");
    check(&["a b+c d"], "x=a+b%2Bc+d", "x=***");
    check(&["a&lt;b"], "a&lt;b a&amp;lt;b", "*** ***");
    // What is no escape is not held back, and stands as it is.
    let redactor = redactor(&[secret]);
    for text in ["a & b ", "100% ", "&&&& ", "%%%41 ", r"C:\\dir ", "&#xyz; ", "&nothing; ", "tok&#60;e. "] {
        let mut out = Vec::new();
        let mut stream = redactor.stream();
        stream.push(text.as_bytes(), &mut out);
        assert_eq!((out.as_slice(), stream.held_len()), (text.as_bytes(), 0), "{text}");
    }
}

#[test]
fn what_base64_breaks_into_lines_is_masked() {
    let secret: String = (0..90u8).map(|i| char::from(b'!' + i)).collect();
    let encoded = "ISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0BBQkNERUZHSElKS0xNTk9QUVJTVFVWV1hZ\n\
               WltcXV5fYGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6"
        .to_owned();
    assert_eq!(redactor(&[&secret]).text(&encoded), MASK);
}

#[test]
fn digits_are_masked_wherever_they_are_broken_and_however_they_are_indented() {
    // `printf 'user:%s' "$TOKEN" | base64`, broken anywhere: no end of the token's digits is left.
    let (secret, digits) = ("0123456789-top-secret-value", "dXNlcjowMTIzNDU2Nzg5LXRvcC1zZWNyZXQtdmFsdWU=");
    for width in 1..digits.len() {
        for between in ["\n", "\r\n", "\n    ", "\n\t", "\n\n"] {
            let lines: Vec<&str> = (0..digits.len())
                .step_by(width)
                .map(|at| &digits[at..digits.len().min(at + width)])
                .collect();
            let shown = redactor(&[secret]).text(&lines.join(between));
            let rest: String = shown.split_whitespace().collect();
            // The first digits are of `user:`, and up to three before a break are let go.
            assert!(rest.starts_with("dXNlcjo") && rest.contains(MASK), "{width}: {rest}");
            assert!(rest.trim_end_matches('=').len() <= "dXNlcjo".len() + 3 + MASK.len(), "{width}: {rest}");
        }
    }
    let hex = "30313233343536373839 2d746f702d736563 7265742d76616c7565".replace(' ', "\n  ");
    check(&[secret], &hex, MASK);
    // Half of it is not it.
    check(&[secret], "30313233343536373839 2d746f70", "30313233343536373839 2d746f70");
}

/// As `od -tx1`, `xxd`, `hexdump -C` and programming languages write `Zq7/+secret&more'than"sixteen`.
#[test]
fn bytes_that_are_set_apart_are_masked() {
    let secret = "Zq7/+secret&more'than\"sixteen";
    let pairs: Vec<String> = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mixed: Vec<String> =
        secret.bytes().map(|b| if b % 2 == 0 { format!("{b:02x}") } else { format!("{b:02X}") }).collect();
    for between in [
        " ",
        ":",
        "-",
        ",",
        ", ",
        "\n",
        "\\x",
        "%",
        " 0x",
        ", 0x",
        ",\n    0x",
        "\\u00",
        ";&#x",
        "\", \"",
        "\\u{",
        "",
    ] {
        for pairs in [&pairs, &mixed] {
            let text = format!("<{}>", pairs.join(between));
            let shown = redactor(&[secret]).text(&text);
            // The first byte is let go with its line.
            let first = if between.contains('\n') { format!("{}{between}", pairs[0]) } else { String::new() };
            assert_eq!(shown, format!("<{first}***>"), "{between:?}");
            check(&[secret], &text, &shown);
        }
    }
    let around = |text: &str| check(&[secret], text, "0000000 61 ***\n0000041\n");
    let od = format!("0000000 61 {}\n0000020 {}\n0000041\n", pairs[..15].join(" "), pairs[15..].join(" "));
    around(&od);
    let words = |pairs: &[String]| pairs.chunks(2).map(<[String]>::concat).collect::<Vec<_>>().join(" ");
    let xxd = format!(
        "00000000: {}  {}\n00000010: {:<39}  {}\nafter Zq7\n",
        words(&pairs[..16]),
        &secret[..16],
        words(&pairs[16..]),
        &secret[16..],
    );
    check(&[secret], &xxd, "00000000: ***\nafter Zq7\n");
    let hexdump = format!(
        "00000000  {}  {}  |{}|\n00000010  {}  {}  |{}|\n0000001e\n",
        pairs[..8].join(" "),
        pairs[8..16].join(" "),
        &secret[..16],
        pairs[16..24].join(" "),
        pairs[24..].join(" "),
        &secret[16..],
    );
    check(&[secret], &hexdump, "00000000  ***\n0000001e\n");
    // A text column that looks like pairs itself, and a line that only looks like one of a dump.
    let digits = "0123456789abcdef0123456789";
    let pairs: Vec<String> = digits.bytes().map(|byte| format!("{byte:02x}")).collect();
    let xxd = format!(
        "00000000: {}  {}\n00000010: {}  {}\n",
        words(&pairs[..16]),
        &digits[..16],
        words(&pairs[16..]),
        &digits[16..]
    );
    check(&[digits], &xxd, "00000000: ***\n");
    check(&["Zq71"], "5a  hello 5a 71 37 31", "5a  hello ***");
}

#[test]
fn a_line_is_not_held_back_because_of_its_last_letter() {
    let redactor = redactor(&["0123456789-top-secret-value"]);
    let mut stream = redactor.stream();
    let mut out = Vec::new();
    for line in ["is it ready M\n", "MD\n", "MDE\n", "took 30\n", "3\n"] {
        stream.push(line.as_bytes(), &mut out);
        assert!(out.ends_with(line.as_bytes()), "{}", String::from_utf8_lossy(&out));
    }
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
        let digits: Vec<Vec<u8>> = secrets.iter().flat_map(|s| forms::in_digits(s)).collect();
        let breaks = prop::sample::select(vec!["\n", "\r\n", "\n  ", "\n\n\t"]);
        let broken = (prop::sample::select(digits), 1..20usize, breaks).prop_map(|(form, width, between)| {
            form.chunks(width).collect::<Vec<_>>().join(between.as_bytes())
        });
        let form = prop_oneof![prop::sample::select(all), broken];
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
        let (mut patterns, mut digits) = (BTreeSet::new(), BTreeSet::new());
        for secret in &secrets {
            redactor.register("name", secret).unwrap();
            patterns.extend(forms::of(secret));
            digits.extend(forms::in_digits(secret));
        }
        let longest = patterns.iter().chain(&digits).map(Vec::len).max().unwrap();
        let whole = redactor.bytes(&text);

        cuts.retain(|cut| *cut <= text.len());
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut out = Vec::new();
        let mut stream = redactor.stream();
        for pair in cuts.windows(2) {
            stream.push(&text[pair[0]..pair[1]], &mut out);
            prop_assert!(stream.held_len() < longest * (1 + folded::BREAK_MAX as usize));
        }
        stream.finish(&mut out);
        prop_assert_eq!(&out, &whole);
        prop_assert_eq!(&whole, &by_hand(&patterns, &digits, &secrets, &text));
        // Between masks stands text as it was, so a form could only show there.
        let text_holds_asterisks = text.contains(&b'*');
        for pattern in patterns.iter().filter(|p| !text_holds_asterisks && !p.contains(&b'*')) {
            prop_assert!(!whole.windows(pattern.len()).any(|w| w == &pattern[..]));
        }
    }
}

/// What may stand before each byte of a secret, and how the two digits of each are written.
fn spelling() -> impl Strategy<Value = (&'static str, Vec<bool>)> {
    let before = ["", " ", ":", "-", ",", ", ", "\\x", " 0x", ",\n  0x", "%", "\\u00", "&#x", "\n", "\r\n"];
    (prop::sample::select(before.to_vec()), prop::collection::vec(any::<bool>(), 1..80))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// However the bytes of a secret are set apart, whatever stands around them, and wherever the text is cut: no two of
    /// them are shown.
    #[test]
    fn no_two_bytes_of_a_secret_are_shown_in_digits(
        secret in prop::collection::vec(1..=255u8, 4..40),
        (before, upper) in spelling(),
        (noise, after) in ("[g-t =(]{0,6}[ g-t]", "[g-t =(]{1,6}"),
        cut in any::<prop::sample::Index>(),
    ) {
        prop_assume!(!matches!(secret.last(), Some(b'\n' | b'\r')));
        let mut redactor = Redactor::new();
        redactor.register("name", &secret).unwrap();
        let digits = |(n, byte): (usize, &u8)| match upper[n % upper.len()] {
            true => format!("{before}{byte:02X}"),
            false => format!("{before}{byte:02x}"),
        };
        let spelt: String = secret.iter().enumerate().map(digits).collect();
        let text = format!("{noise}{spelt}{after}");
        let whole = redactor.text(&text);
        // Before a line break one byte may be let go.
        let shown = whole.replacen(MASK, "", 1);
        prop_assert!(whole.contains(MASK), "{text:?} shows {whole:?}");
        prop_assert!(shown.len() <= noise.len() + 2 * before.len() + 2 + after.len(), "{text:?} shows {whole:?}");
        let (first, second) = text.as_bytes().split_at(cut.index(text.len()));
        let (mut stream, mut out) = (redactor.stream(), Vec::new());
        stream.push(first, &mut out);
        stream.push(second, &mut out);
        stream.finish(&mut out);
        prop_assert_eq!(String::from_utf8_lossy(&out), whole);
    }
}

/// Where digits stand, line breaks and what follows them left out; where fewer than four of them are before a break, from
/// the next line on.
fn broken(digits: &BTreeSet<Vec<u8>>, text: &[u8]) -> Vec<(usize, usize)> {
    let (mut ranges, mut read, mut skipped) = (Vec::new(), Vec::<(u8, usize)>::new(), 0);
    for (at, &byte) in text.iter().enumerate() {
        let begins = |read: &[(u8, usize)], len: usize| {
            let last: Vec<u8> = read[read.len() - len..].iter().map(|(byte, _)| *byte).collect();
            digits.iter().any(|form| form.starts_with(&last))
        };
        let is_break = matches!(byte, b'\n' | b'\r') || skipped > 0 && matches!(byte, b' ' | b'\t');
        if is_break && !read.is_empty() && skipped < folded::BREAK_MAX {
            skipped += 1;
            continue;
        }
        if skipped > 0 && read.len() < folded::SHOWN_MAX {
            read.iter_mut().for_each(|(_, place)| *place = at);
        }
        skipped = 0;
        read.push((byte, at));
        let depth = (0..=read.len()).rev().find(|len| begins(&read, *len)).unwrap();
        read.drain(..read.len() - depth);
        for form in digits.iter().filter(|form| form.len() <= read.len()) {
            let from = read.len() - form.len();
            if read[from..].iter().map(|(byte, _)| byte).eq(form) {
                ranges.push((read[from].1, at + 1));
            }
        }
    }
    ranges
}

/// The definition, written down without any cleverness: every byte of every occurrence is masked.
fn by_hand(
    patterns: &BTreeSet<Vec<u8>>,
    digits: &BTreeSet<Vec<u8>>,
    secrets: &[Vec<u8>],
    text: &[u8],
) -> Vec<u8> {
    let mut ranges = broken(digits, text);
    // What pairs spell is the matter of properties of its own.
    let matcher = Matcher::new(&secrets.iter().cloned().collect());
    let (mut pairs, mut escapes) = (Pairs::default(), Escapes::default());
    for (at, &byte) in text.iter().enumerate() {
        escapes.next(&matcher, byte, at as u64, |from, to| ranges.push((from as usize, to as usize)));
        ranges.extend(pairs.next(&matcher, byte, at as u64).map(|(from, to)| (from as usize, to as usize)));
    }
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
