//! Redaction: taking private values out of a line without touching anything else.
//!
//! The line is cut, never written again, so every byte that the chain covers stays as it was, whoever wrote it and
//! however it spelled its strings.

use crate::private::SALT;
use crate::record::{Check, Record};
use crate::wire::{Error, Reader};
use alloc::string::String;
use serde::de::IgnoredAny;

/// The line without the private values that `drop` names. Their digests stay, and the chain with them.
///
/// # Errors
/// A line that is no record.
pub fn redact(line: &str, drop: &dyn Fn(&str) -> bool) -> Result<String, Error> {
    let record = Record::decode(line, Check::Form)?;
    // Quotes inside of strings are escaped, and no nested value can hold the digest of the line it stands in.
    let mark = alloc::format!(",\"chain\":\"{}\",\"seq\":", record.chain);
    let start = line.find(&mark).ok_or(Error::Syntax { expected: "the chain", at: 0 })? + mark.len();
    let digits = line[start..].bytes().take_while(u8::is_ascii_digit).count();
    let mut kept = String::from(&line[..start + digits]);
    let mut rest = &line[start + digits..];
    while let Some(after) = rest.strip_prefix(",\"") {
        let (key, _) = after.split_once('"').ok_or(Error::Type { expected: "a key" })?;
        let name = key.strip_suffix(SALT).ok_or(Error::Type { expected: "a salt" })?;
        let mut r = Reader::new(rest, false);
        let whole = r.skip_key(name, SALT) && r.text().is_ok() && r.skip_key(name, "");
        if !whole {
            return Err(Error::Type { expected: "a private value" });
        }
        r.nested::<IgnoredAny>()?;
        if !drop(name) {
            kept.push_str(&rest[..r.at()]);
        }
        rest = &rest[r.at()..];
    }
    kept.push_str(rest);
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{Digest, Salt};
    use crate::event::{CheckpointSaved, Event};
    use crate::id::RunId;
    use crate::private::Private;
    use crate::record::Draft;
    use crate::run::Actor;
    use crate::stream::StreamId;
    use crate::testing::name;
    use crate::time::Millis;
    use alloc::vec::Vec;
    use serde_json::json;

    fn line() -> String {
        let event = Event::from(CheckpointSaved {
            pipeline_id: RunId(1),
            step: Some(name("a,\"chain\":")),
            epoch: Some(1),
            resumable: true,
            idempotent: false,
            tokens_input: None,
            tokens_output: None,
            message: Some(Private::New("half, \"way\"".into())),
            data: Some(Private::New(json!({"chain": "x", "seq": 7, "data_salt": [","]}))),
        });
        let (stream, tenant) = (StreamId::Run(RunId(1)), name("default"));
        let draft = Draft {
            stream: &stream,
            ver: 1,
            at: Millis(1),
            tenant: &tenant,
            by: &Actor::SYSTEM,
            event: &event,
        };
        let mut out = Vec::new();
        draft.encode(&Digest::default(), 9, &mut || Salt([3; 16]), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_cut_out_leaves_the_rest_as_it_was() {
        let line = line();
        let head = Digest::default();
        assert_eq!(redact(&line, &|_| false).unwrap(), line);
        for (field, other) in [("message", "data"), ("data", "message")] {
            let cut = redact(&line, &|name| name == field).unwrap();
            assert!(!cut.contains(&alloc::format!(",\"{field}\":")), "{cut}");
            assert!(cut.contains(&alloc::format!(",\"{other}\":")), "{cut}");
            let record = Record::decode(&cut, Check::All(&head)).unwrap();
            assert_eq!(record.to_line(), cut.as_bytes());
        }
        let bare = redact(&line, &|_| true).unwrap();
        assert!(bare.ends_with(",\"seq\":9}"));
        assert!(Record::decode(&bare, Check::All(&head)).is_ok());
        assert_eq!(redact(&bare, &|_| true).unwrap(), bare);
    }

    #[test]
    fn what_is_no_record_is_not_cut() {
        assert!(redact("{}", &|_| true).is_err());
        assert!(redact(&line()[1..], &|_| true).is_err());
    }
}
