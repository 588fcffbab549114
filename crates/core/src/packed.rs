//! Packed values: JSON kept as the text it is written as.
//!
//! A run keeps its variables, and each step its input and output, from the day they are recorded until the run is
//! forgotten, and looks at them only when an expression does. As a tree the smallest object takes more than half a
//! kilobyte; as text it takes what it is long. One value has one text, so packed values are equal where the values are.

use crate::wire::{self, Reader, Wire, Writer};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A JSON value as its text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Packed(Box<str>);

impl Packed {
    /// The text of a value.
    #[must_use]
    pub fn of(value: &Value) -> Packed {
        let mut text = Vec::with_capacity(text_len(value));
        Writer(&mut text).value(value);
        // What the writer makes of a value is text; were it not, the value would read as null.
        Packed(String::from_utf8(text).unwrap_or_else(|_| String::from("null")).into_boxed_str())
    }

    /// The value. One that is nested deeper than a record may be reads as null: no record could bring it back either.
    #[must_use]
    pub fn get(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or(Value::Null)
    }

    /// One item of a list, without building the others.
    #[must_use]
    pub fn item(&self, index: usize) -> Option<Value> {
        let mut found = None;
        let mut text = serde_json::Deserializer::from_str(&self.0);
        // The reader stops at the item, which it takes for an error: what it found stands beside it.
        let _ = text.deserialize_seq(Nth { index, found: &mut found });
        found
    }

    /// The value; of a map only these fields, without building the others.
    #[must_use]
    pub fn fields(&self, wanted: &BTreeSet<String>) -> Value {
        if !self.0.starts_with('{') {
            return self.get();
        }
        let mut text = serde_json::Deserializer::from_str(&self.0);
        text.deserialize_map(Fields(wanted)).unwrap_or(Value::Null)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl core::fmt::Debug for Packed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long the text of a value is at most, nearly all of it where it is long. So that the text is written where it stays.
#[must_use]
pub fn text_len(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(true) => 4,
        Value::Bool(false) => 5,
        Value::Number(number) => match number.as_u64() {
            Some(whole) => whole.checked_ilog10().unwrap_or(0) as usize + 1,
            None => 24,
        },
        Value::String(text) => wire::quoted_len(text),
        Value::Array(list) => list.iter().map(|item| text_len(item) + 1).sum::<usize>().max(1) + 1,
        Value::Object(map) => {
            map.iter().map(|(key, item)| wire::quoted_len(key) + text_len(item) + 2).sum::<usize>().max(1) + 1
        }
    }
}

/// Reads a list up to an item.
struct Nth<'a> {
    index: usize,
    found: &'a mut Option<Value>,
}

impl<'de> Visitor<'de> for Nth<'_> {
    type Value = ();

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for _ in 0..self.index {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        *self.found = list.next_element()?;
        Ok(())
    }
}

/// Reads some fields of a map.
struct Fields<'a>(&'a BTreeSet<String>);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if self.0.contains(&key) {
                found.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(found))
    }
}

/// As the value itself is written. What is read is not looked into: its depth is found out by whoever asks for the value.
impl Wire for Packed {
    fn kind() -> &'static str {
        Value::kind()
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.raw(self.0.as_bytes());
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, wire::Error> {
        r.nested()
    }
    fn weight(&self) -> usize {
        wire::WEIGHT_MIN + self.0.len()
    }
}

/// Its saved form is the text as it stands: nothing is built for it, on the way out or back.
impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match serde_json::from_str::<&RawValue>(&self.0) {
            Ok(text) => text.serialize(s),
            Err(_) => s.serialize_unit(),
        }
    }
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(d).map(|text| Packed(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::vec::Vec;

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_comes_back_as_it_was_packed(value in any_value()) {
            let packed = Packed::of(&value);
            prop_assert_eq!(packed.get(), value);
            prop_assert_eq!(Packed::of(&packed.get()), packed.clone());
            for i in 0..8 {
                prop_assert_eq!(packed.item(i), packed.get().as_array().and_then(|list| list.get(i).cloned()));
            }
            let wanted: BTreeSet<String> = packed.get().as_object().iter().flat_map(|map| map.keys().step_by(2).cloned()).collect();
            let picked = match packed.get() {
                Value::Object(map) => map.into_iter().filter(|(key, _)| wanted.contains(key)).collect(),
                other => other,
            };
            prop_assert_eq!(packed.fields(&wanted), picked);
            let saved = serde_json::to_string(&packed).unwrap();
            prop_assert_eq!(serde_json::from_str::<Packed>(&saved).unwrap(), packed);
        }
    }

    #[test]
    fn what_no_record_could_bring_back_reads_as_null() {
        let deep = (0..1_000).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(Packed::of(&deep).get(), Value::Null);
        let lists: Vec<Value> = Vec::new();
        assert_eq!(Packed::of(&json!(lists)).as_str(), "[]");
    }
}
