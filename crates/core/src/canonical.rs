//! Canonical JSON: one value, one sequence of bytes.
//!
//! Keys sorted by their bytes, no white space, numbers and strings as `serde_json` spells them. Keys are
//! sorted here rather than left to the map type, whose order another crate's feature can change.

use crate::wire::Writer;
use alloc::vec::Vec;
use serde::Serialize;
use serde_json::Value;

/// The canonical bytes of anything serde can write.
#[must_use]
pub fn bytes<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    // Our own types always serialise: their map keys are strings.
    let value = serde_json::to_value(value).unwrap_or(Value::Null);
    write(&value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Array(list) => {
            out.push(b'[');
            for (i, item) in list.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            out.push(b'{');
            for (i, (key, item)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                Writer(out).string(key);
                out.push(b':');
                write(item, out);
            }
            out.push(b'}');
        }
        Value::String(text) => Writer(out).string(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => Writer(out).nested(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_sorted_at_every_depth() {
        let value = json!({"b": [{"z": 1, "a": null}], "a": "x\n", "B": 1.5});
        assert_eq!(bytes(&value), br#"{"B":1.5,"a":"x\n","b":[{"a":null,"z":1}]}"#);
    }
}
