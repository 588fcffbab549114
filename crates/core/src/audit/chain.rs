//! Walking the chain of one stream, and saying where it breaks.
//!
//! Each record covers the one before it, so a stream whose last head is known (because a seal holds it) has
//! exactly one history. A walk stops at the first place that does not follow and says what was done there, as
//! far as the lines show it.

use crate::digest::Digest;
use crate::record::{Check, Record};
use crate::stream::StreamId;
use crate::wire;
use alloc::boxed::Box;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// A place in a stream: after `ver` records the chain value is `head`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// How many records.
    pub ver: u64,
    /// The chain value; noughts before the first record.
    pub head: Digest,
}

/// What was done to a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The line is no record.
    #[error("the line is not a record: {0}")]
    Unreadable(Box<wire::Error>),
    /// The line belongs to another stream.
    #[error("the record belongs to {0}")]
    Foreign(StreamId),
    /// The record is not the one that was written.
    #[error("the record was changed")]
    Changed,
    /// A private value is not the one that was written.
    #[error("the value `{0}` was changed")]
    Value(String),
    /// The record is not there.
    #[error("the record is missing")]
    Dropped,
    /// The record stands later.
    #[error("the record stands in another place")]
    Swapped,
    /// An earlier record stands here again.
    #[error("version {0} stands here again")]
    Doubled(u64),
}

/// The first place where a stream does not follow from what stands before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{stream}, version {ver} (line {line}): {what}")]
pub struct Break {
    /// Which stream.
    pub stream: StreamId,
    /// The version that should stand there.
    pub ver: u64,
    /// The line, from 1.
    pub line: usize,
    /// What was done.
    pub what: Broken,
}

/// Checks the lines of a stream from a place on, values included, and returns the place after the last.
///
/// # Errors
/// The first [`Break`].
pub fn verify_chain(stream: &StreamId, from: Head, lines: &[&str]) -> Result<Head, Break> {
    walk(stream, from, lines, &mut |_| {})
}

/// Checks like [`verify_chain`] and hands each record over as soon as it is proved to follow.
///
/// # Errors
/// The first [`Break`].
pub fn walk(
    stream: &StreamId,
    from: Head,
    lines: &[&str],
    visit: &mut dyn FnMut(Record),
) -> Result<Head, Break> {
    let mut place = from;
    for (i, line) in lines.iter().enumerate() {
        let ver = place.ver.saturating_add(1);
        match Record::decode(line, Check::All(&place.head)) {
            Ok(record) if record.ver == ver && record.stream == *stream => {
                place = Head { ver, head: record.chain };
                visit(record);
            }
            Ok(_) | Err(_) => {
                let what = diagnose(stream, place, line, &lines[i + 1..]);
                return Err(Break { stream: stream.clone(), ver, line: i + 1, what });
            }
        }
    }
    Ok(place)
}

/// What is wrong with a line that does not follow from `place`.
fn diagnose(stream: &StreamId, place: Head, line: &str, rest: &[&str]) -> Broken {
    let ver = place.ver.saturating_add(1);
    let record = match Record::decode(line, Check::Form) {
        Ok(record) => record,
        Err(error) => return Broken::Unreadable(Box::new(error)),
    };
    if record.stream != *stream {
        return Broken::Foreign(record.stream);
    }
    if record.ver < ver {
        return Broken::Doubled(record.ver);
    }
    if record.ver > ver {
        let stands_later = |line: &&str| {
            Record::decode(line, Check::Form).is_ok_and(|r| r.ver == ver && r.stream == *stream)
        };
        return if rest.iter().any(stands_later) { Broken::Swapped } else { Broken::Dropped };
    }
    match Record::decode(line, Check::All(&place.head)) {
        Err(wire::Error::Digest { field }) => Broken::Value(String::from(field)),
        Ok(_) | Err(_) => Broken::Changed,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::digest::Salt;
    use crate::event::{CheckpointSaved, Event, PipelineStarted};
    use crate::id::RunId;
    use crate::record::Draft;
    use crate::run::Actor;
    use crate::testing::name;
    use crate::time::Millis;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Writes events as the lines of a stream; `seq` counts on from `seq`.
    pub(crate) fn lines(stream: &StreamId, events: &[(Actor, Event)], seq: u64) -> (Vec<String>, Head) {
        let mut head = Head::default();
        let mut salt = 0;
        let mut salts = || {
            salt += 1;
            Salt([salt; 16])
        };
        let mut lines = Vec::new();
        for (by, event) in events {
            let (ver, tenant) = (head.ver + 1, name("default"));
            let draft = Draft { stream, ver, at: Millis(1_000 + ver), tenant: &tenant, by, event };
            let mut line = Vec::new();
            head = Head { ver, head: draft.encode(&head.head, seq + ver, &mut salts, &mut line) };
            lines.push(String::from_utf8(line).unwrap());
        }
        (lines, head)
    }

    fn sample(count: u64) -> (StreamId, Vec<String>, Head) {
        let (stream, id) = (StreamId::Run(RunId(1)), RunId(1));
        let saved = |n: u64| {
            Event::from(CheckpointSaved {
                pipeline_id: id,
                step: None,
                epoch: Some(n),
                resumable: false,
                idempotent: false,
                tokens_input: None,
                tokens_output: None,
                message: Some(alloc::format!("message {n}").into()),
                data: None,
            })
        };
        let mut events: Vec<(Actor, Event)> = (1..count).map(|n| (Actor::SYSTEM, saved(n))).collect();
        events.insert(0, (Actor::SYSTEM, PipelineStarted { id, steps: 1, approvers: None }.into()));
        let (lines, head) = lines(&stream, &events, 0);
        (stream, lines, head)
    }

    fn check(stream: &StreamId, lines: &[String]) -> Result<Head, Break> {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        verify_chain(stream, Head::default(), &lines)
    }

    #[test]
    fn each_kind_of_damage_is_named_with_its_place() {
        let (stream, good, head) = sample(5);
        assert_eq!(check(&stream, &good), Ok(head));
        let damage = |damage: &dyn Fn(&mut Vec<String>)| {
            let mut lines = good.clone();
            damage(&mut lines);
            let found = check(&stream, &lines).unwrap_err();
            (found.ver, found.what)
        };
        assert_eq!(damage(&|l| l[2] = l[2].replace("1003", "1004")), (3, Broken::Changed));
        assert_eq!(
            damage(&|l| l[2] = l[2].replace("message 2", "message 9")),
            (3, Broken::Value("message".into()))
        );
        assert_eq!(damage(&|l| drop(l.remove(2))), (3, Broken::Dropped));
        assert_eq!(damage(&|l| l.swap(2, 3)), (3, Broken::Swapped));
        assert_eq!(damage(&|l| l.insert(3, l[2].clone())), (4, Broken::Doubled(3)));
        assert!(matches!(damage(&|l| l[2].truncate(20)), (3, Broken::Unreadable(_))));
        let (_, foreign) = (0, StreamId::Run(RunId(2)));
        let lines: Vec<&str> = good.iter().map(String::as_str).collect();
        let found = verify_chain(&foreign, Head::default(), &lines).unwrap_err();
        assert_eq!((found.line, found.what), (1, Broken::Foreign(stream.clone())));
        // From a head in the middle the rest follows; from another head it does not.
        let from = Head { ver: 2, head: Record::decode(&good[1], Check::Form).unwrap().chain };
        assert_eq!(verify_chain(&stream, from, &lines[2..]), Ok(head));
        let wrong = Head { ver: 2, head: Digest::default() };
        assert_eq!(verify_chain(&stream, wrong, &lines[2..]).unwrap_err().what, Broken::Changed);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_changed_byte_breaks_the_chain_or_the_head(pick in 0..5usize, at: prop::sample::Index, bit in 0..7u32) {
            let (stream, mut lines, head) = sample(5);
            let mut bytes = lines[pick].clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let Ok(changed) = String::from_utf8(bytes) else { return Ok(()) };
            // The store's own counter stands outside of the chain.
            let seq = lines[pick].find("\"seq\":").unwrap() + 6;
            prop_assume!(!(seq..seq + 1).contains(&at));
            lines[pick] = changed;
            prop_assert!(check(&stream, &lines) != Ok(head));
        }
    }
}
