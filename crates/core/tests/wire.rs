//! The wire format, held fast by `golden/records.jsonl`: a line of every event, in full and with the least.
//!
//! Old logs must stay readable, so a golden line is never changed or taken away. `UPDATE_GOLDEN=1 cargo test
//! -p windlass-core --test wire` appends the samples that no line has yet.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod samples;

use proptest::prelude::*;
use samples::{Sample, parts, samples, stream};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use windlass_core::digest::{Digest, Salt};
use windlass_core::event::{Event, PipelineUpdated};
use windlass_core::id::{Name, RunId};
use windlass_core::private::Private;
use windlass_core::record::{Check, Draft, Record};
use windlass_core::run::{Actor, Initiator};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::wire::{Error, Writer};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/records.jsonl");

/// Encodes an event as version `ver` after `head`.
fn encode(event: &Event, stream: &StreamId, ver: u64, head: &Digest) -> (String, Digest) {
    let (tenant, by) = (Name::clean("acme"), Actor::new(Initiator::User, "ann"));
    let draft = Draft { stream, ver, at: Millis(1_763_245_800_000 + ver), tenant: &tenant, by: &by, event };
    let mut line = Vec::new();
    let chain = draft.encode(head, ver, &mut || Salt([0xa5; 16]), &mut line);
    (String::from_utf8(line).unwrap(), chain)
}

/// A sample as the first record of its stream.
fn first(sample: &Sample) -> String {
    encode(&sample.event, &stream(sample.spec.stream), 1, &Digest::default()).0
}

const START: Check<'static> = Check::All(&Digest([0; 32]));

/// The heads of the streams in the golden file after its last line.
type Heads = BTreeMap<String, (u64, Digest)>;

fn read_golden() -> (String, Vec<Record>, Heads) {
    let text = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    let mut heads = Heads::new();
    let mut records = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let stream =
            Record::decode(line, Check::Form).unwrap_or_else(|e| panic!("line {}: {e}", i + 1)).stream;
        let (ver, head) = heads.entry(stream.to_string()).or_default();
        let record = Record::decode(line, Check::All(head)).unwrap_or_else(|e| panic!("line {}: {e}", i + 1));
        assert_eq!(
            String::from_utf8(record.to_line()).unwrap(),
            line,
            "line {} writes back otherwise",
            i + 1
        );
        assert_eq!(record.ver, *ver + 1, "line {}", i + 1);
        (*ver, *head) = (record.ver, record.chain);
        records.push(record);
    }
    (text, records, heads)
}

#[test]
fn samples_cover_every_event() {
    let tags: Vec<_> = samples().iter().map(|s| s.event.tag()).collect();
    for spec in Event::specs() {
        assert!(tags.contains(&spec.tag), "no sample of {}", spec.tag);
        let optional = spec.fields.iter().any(|(_, kind)| {
            let (private, optional, _) = parts(kind);
            private || optional
        });
        let count = tags.iter().filter(|tag| **tag == spec.tag).count();
        assert!(!optional || count == 2, "{}: full and minimal are alike", spec.tag);
    }
}

/// Every golden line decodes, follows from the line before it in its stream, and writes back byte for byte;
/// and there is a golden line of every sample.
#[test]
fn golden_records_read_and_write_back() {
    let (mut text, records, mut heads) = read_golden();
    let mut missing = Vec::new();
    for sample in samples() {
        if records.iter().any(|record| record.event == sample.event) {
            continue;
        }
        let stream = stream(sample.spec.stream);
        let (ver, head) = heads.entry(stream.to_string()).or_default();
        let (line, chain) = encode(&sample.event, &stream, *ver + 1, head);
        (*ver, *head) = (*ver + 1, chain);
        text.push_str(&line);
        text.push('\n');
        missing.push(sample.spec.tag);
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() && !missing.is_empty() {
        std::fs::write(GOLDEN, text).unwrap();
        missing.clear();
        read_golden();
    }
    assert!(
        missing.is_empty(),
        "no golden line of {missing:?} as it is now: run `UPDATE_GOLDEN=1 cargo test -p windlass-core --test wire`"
    );
}

/// The exact bytes of one record, written out by hand, so that the format is not only equal to itself.
#[test]
fn a_record_has_these_bytes() {
    let event = Event::from(PipelineUpdated {
        id: RunId(7),
        vars: Private::New(json!({"a": "é\n", "b": 1})),
        message: None,
        user: None,
    });
    let stream = StreamId::Run(RunId(7));
    let (line, chain) = encode(&event, &stream, 3, &Digest([1; 32]));
    let covered = concat!(
        r#"{"type":"pipeline:updated","stream":"run/run_00000000000000000000000007","ver":3,"at":1763245800003,"#,
        r#""tenant":"acme","by":"user:ann","id":"run_00000000000000000000000007","vars_digest":""#,
    );
    let raw = r#"{"a":"é\n","b":1}"#;
    let digest = Digest::of(&[&[0xa5; 16], raw.as_bytes()]);
    let covered = format!("{covered}{digest}\"");
    assert_eq!(chain, Digest::of(&[&[1; 32], covered.as_bytes()]));
    let salt = "a5".repeat(16);
    let expected = format!(r#"{covered},"chain":"{chain}","seq":3,"vars_salt":"{salt}","vars":{raw}}}"#);
    assert_eq!(line, expected);
    let read = Record::decode(&line, Check::All(&Digest([1; 32]))).unwrap();
    assert_eq!(read.to_line(), line.as_bytes());
}

#[test]
fn every_private_value_can_be_redacted_and_the_chain_holds() {
    let mut redacted = 0;
    for sample in samples() {
        let line = first(&sample);
        for (field, salt, raw) in &sample.private {
            let value = format!(",\"{field}_salt\":\"{salt}\",\"{field}\":{raw}");
            let without = line.replacen(&value, "", 1);
            assert_ne!(without, line, "{}.{field}", sample.spec.tag);
            let record = Record::decode(&without, START).unwrap();
            assert_eq!(record.to_line(), without.as_bytes(), "{}.{field}", sample.spec.tag);
            assert_ne!(record.event, sample.event);
            redacted += 1;
        }
    }
    assert!(redacted > 30, "only {redacted} private values were tried");
}

#[test]
fn an_exchanged_private_value_is_found() {
    for sample in samples() {
        let line = first(&sample);
        for (field, salt, raw) in &sample.private {
            let genuine = format!(",\"{field}_salt\":\"{salt}\",\"{field}\":{raw}");
            let other = raw.replace('a', "b").replace("5b", "5a");
            if other == *raw {
                continue;
            }
            let forged =
                line.replacen(&genuine, &format!(",\"{field}_salt\":\"{salt}\",\"{field}\":{other}"), 1);
            assert!(Record::decode(&forged, START).is_err(), "{}.{field}", sample.spec.tag);
        }
    }
}

#[test]
fn unknown_tags_and_fields_are_refused() {
    for sample in samples() {
        let line = first(&sample);
        let tag = sample.spec.tag;
        let strange = line.replacen(sample.event.kind().as_ref(), "ghost:walked", 1);
        assert_eq!(Record::decode(&strange, Check::Form), Err(Error::Tag("ghost:walked".into())));
        for at in [",\"chain\":", ",\"seq\":"] {
            let more = line.replacen(at, &format!(",\"ghost\":1{at}"), 1);
            assert!(Record::decode(&more, Check::Form).is_err(), "{tag}: unknown field before {at}");
        }
        let more = format!("{},\"ghost\":1}}", &line[..line.len() - 1]);
        assert_eq!(
            Record::decode(&more, Check::Form),
            Err(Error::Unknown { found: "`ghost`".into(), tag: sample.event.tag() })
        );
    }
}

#[test]
fn a_missing_a_mistyped_and_a_misplaced_field_are_refused() {
    for sample in samples() {
        let line = first(&sample);
        for (i, (key, raw)) in sample.public.iter().enumerate() {
            let tag = sample.spec.tag;
            let whole = format!(",\"{key}\":{raw}");
            let field = key.strip_suffix("_digest").unwrap_or(key);
            let kind = sample.spec.fields.iter().find(|f| f.0 == field).map_or("", |f| f.1.as_str());
            let optional = parts(kind).1;
            let without = line.replacen(&whole, "", 1);
            assert_ne!(without, line, "{tag}.{key}");
            // Without an optional field the line has the form of a record, but not its chain.
            assert!(Record::decode(&without, START).is_err(), "{tag}.{key}: its absence is not noticed");
            if !optional {
                let error = Record::decode(&without, Check::Form).unwrap_err();
                assert!(
                    matches!(error, Error::Missing { field: f, .. } if f == field),
                    "{tag}.{key}: {error}"
                );
            }
            // No field takes a word without quotes; only free JSON takes null.
            let mistyped = line.replacen(&whole, &format!(",\"{key}\":nonsense"), 1);
            assert!(Record::decode(&mistyped, Check::Form).is_err(), "{tag}.{key}: nonsense");
            if key.ends_with("_digest") || kind.trim_end_matches('?') != "json" {
                let mistyped = line.replacen(&whole, &format!(",\"{key}\":null"), 1);
                assert!(Record::decode(&mistyped, Check::Form).is_err(), "{tag}.{key}: null");
            }
            if let Some((next, next_raw)) = sample.public.get(i + 1) {
                let after = format!(",\"{next}\":{next_raw}");
                let swapped = line.replacen(&format!("{whole}{after}"), &format!("{after}{whole}"), 1);
                assert_ne!(swapped, line);
                assert!(Record::decode(&swapped, Check::Form).is_err(), "{tag}: {key} and {next} swapped");
            }
        }
    }
}

/// A field of fixed words takes each of them, and nothing else.
#[test]
fn every_word_reads_and_writes_back() {
    let mut tried = 0;
    for sample in samples() {
        let line = first(&sample);
        for (key, raw) in &sample.public {
            let is_word = |f: &&(&str, String)| f.0 == key && parts(&f.1).2 == "word";
            if sample.spec.fields.iter().find(is_word).is_none() {
                continue;
            }
            let with = |word: &str| {
                line.replacen(&format!(",\"{key}\":{raw}"), &format!(",\"{key}\":\"{word}\""), 1)
            };
            let Err(Error::Field { error, .. }) = Record::decode(&with("ghost"), Check::Form) else {
                panic!("{}.{key} takes any word", sample.spec.tag)
            };
            let Error::Word { expected, .. } = *error else { panic!("{}.{key}: {error}", sample.spec.tag) };
            for word in expected {
                let record = Record::decode(&with(word), Check::Form).unwrap();
                assert_eq!(record.to_line(), with(word).as_bytes(), "{}.{key}", sample.spec.tag);
                tried += 1;
            }
        }
    }
    assert!(tried > 50, "only {tried} words were tried");
}

#[test]
fn a_truncated_line_is_never_a_record() {
    for sample in samples() {
        let line = first(&sample);
        for end in (0..line.len()).filter(|&end| line.is_char_boundary(end)) {
            assert!(Record::decode(&line[..end], Check::Form).is_err(), "{}: {end} bytes", sample.spec.tag);
        }
    }
}

#[test]
fn nothing_may_stand_before_or_after_a_record() {
    for sample in samples() {
        let line = first(&sample);
        for more in [" ", "\n", "}", "\0", line.as_str()] {
            assert!(
                Record::decode(&format!("{line}{more}"), Check::Form).is_err(),
                "{more:?} after the line"
            );
            assert!(
                Record::decode(&format!("{more}{line}"), Check::Form).is_err(),
                "{more:?} before the line"
            );
        }
    }
}

/// Any one flipped bit is found, but in `seq`, which is the store's own and stands outside of the proof.
#[test]
fn every_flipped_bit_is_found() {
    for sample in samples() {
        let line = first(&sample).into_bytes();
        let text = std::str::from_utf8(&line).unwrap();
        let seq = text.find(",\"seq\":").unwrap() + ",\"seq\":".len();
        for bit in 0..line.len() * 8 {
            if bit / 8 == seq {
                continue;
            }
            let mut flipped = line.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(flipped) = std::str::from_utf8(&flipped) else { continue };
            let read = Record::decode(flipped, START);
            assert!(read.is_err(), "{}: bit {} of byte {}", sample.spec.tag, bit % 8, bit / 8);
        }
    }
}

#[test]
fn a_record_from_elsewhere_breaks_the_chain() {
    let sample = &samples()[0];
    let line = first(sample);
    let other = Digest([9; 32]);
    assert_eq!(Record::decode(&line, Check::Chain(&other)), Err(Error::Chain { ver: 1 }));
    assert!(Record::decode(&line, Check::Chain(&Digest::default())).is_ok());
}

/// Any JSON of moderate depth, with awkward numbers and strings.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn private_values_round_trip(vars in any_json(), message in any::<String>()) {
        let event = Event::from(PipelineUpdated {
            id: RunId(1),
            vars: Private::New(vars.clone()),
            message: Some(Private::New(message.clone())),
            user: None,
        });
        let (line, _) = encode(&event, &StreamId::Run(RunId(1)), 1, &Digest::default());
        let record = Record::decode(&line, START).unwrap();
        prop_assert_eq!(record.to_line(), line.as_bytes());
        let Event::PipelineUpdated(read) = record.event else { panic!("another event") };
        prop_assert_eq!(read.vars.get(), Some(vars));
        prop_assert_eq!(read.message.and_then(|m| m.get()), Some(message));
    }

    #[test]
    fn values_are_spelled_as_serde_spells_them(value in any_json()) {
        let mut out = Vec::new();
        Writer(&mut out).value(&value);
        prop_assert_eq!(out, serde_json::to_vec(&value).unwrap());
    }

    #[test]
    fn arbitrary_text_is_no_record(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes);
        prop_assert!(Record::decode(&text, Check::Form).is_err());
    }

    /// Cuts one line at a place and goes on with another: far deeper into the decoder than noise gets.
    #[test]
    fn spliced_lines_never_panic(
        pair in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        cuts in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        noise in any::<String>(),
    ) {
        let lines: Vec<&str> = include_str!("golden/records.jsonl").lines().collect();
        let (a, b) = (lines[pair.0.index(lines.len())], lines[pair.1.index(lines.len())]);
        let (mut i, mut j) = (cuts.0.index(a.len()), cuts.1.index(b.len()));
        while !a.is_char_boundary(i) { i -= 1; }
        while !b.is_char_boundary(j) { j -= 1; }
        let spliced = format!("{}{noise}{}", &a[..i], &b[j..]);
        if let Ok(record) = Record::decode(&spliced, Check::Form) {
            let written = String::from_utf8(record.to_line()).unwrap();
            prop_assert!(Record::decode(&written, Check::Form).is_ok());
        }
    }
}
