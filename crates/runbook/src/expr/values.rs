//! Values on their way from JSON to expressions and back: exact, and counted.

use super::compile::Fields;
use super::{VALUES_LEN_MAX, brief};
use cel::Value as Cel;
use cel::objects::Key;
use serde_json::{Map, Number, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// What each value counts, beside its texts.
const VALUE_LEN: usize = 16;

/// How much work each value is, beside its texts. It is the time that the interpreter takes for one, in that which it takes
/// for a byte: each is copied several times on its way.
pub(super) const VALUE_WORK: usize = 96;

/// What a value is, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

pub(super) fn short(text: &str) -> String {
    windlass_core::wire::shorten(text)
}

/// How much work it will be to walk through a value, of a map through the fields that are looked at.
pub(super) fn work_of(value: &Value, fields: &Fields) -> usize {
    match (value, fields) {
        (Value::Object(map), Fields::Some(fields)) => {
            fields.iter().filter_map(|field| map.get(field)).map(work_of_json).sum()
        }
        (value, _) => work_of_json(value),
    }
}

fn work_of_json(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => VALUE_WORK,
        Value::String(text) => VALUE_WORK + text.len(),
        Value::Array(list) => VALUE_WORK + list.iter().map(work_of_json).sum::<usize>(),
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| 2 * VALUE_WORK + key.len() + work_of_json(value);
            VALUE_WORK + map.iter().map(entry).sum::<usize>()
        }
    }
}

/// The value for expressions; of a map only the fields that are looked at. Adds its size.
pub(super) fn from_json(value: &Value, fields: &Fields, size: &mut usize) -> Result<Cel, String> {
    match (value, fields) {
        (Value::Object(map), Fields::Some(fields)) => {
            let seen = fields.iter().filter_map(|field| map.get_key_value(field));
            let seen: HashMap<Key, Cel> = seen
                .map(|(key, value)| Ok((key.clone().into(), copy(value, size)?)))
                .collect::<Result<_, String>>()?;
            Ok(seen.into())
        }
        (value, _) => copy(value, size),
    }
}

/// The whole value for expressions.
pub(super) fn from_json_whole(value: &Value) -> Result<Cel, String> {
    copy(value, &mut 0)
}

fn count(size: &mut usize, len: usize) -> Result<(), String> {
    *size += VALUE_LEN + len;
    if *size > VALUES_LEN_MAX {
        return Err("the values it is about are too large; let a step pick what is needed".to_owned());
    }
    Ok(())
}

fn copy(value: &Value, size: &mut usize) -> Result<Cel, String> {
    count(size, value.as_str().map_or(0, str::len))?;
    Ok(match value {
        Value::Null => Cel::Null,
        Value::Bool(truth) => Cel::Bool(*truth),
        Value::Number(number) => number_in(number)?,
        Value::String(text) => text.as_str().into(),
        Value::Array(list) => {
            Cel::List(Arc::new(list.iter().map(|item| copy(item, size)).collect::<Result<_, _>>()?))
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                count(size, key.len())?;
                Ok((key.clone().into(), copy(value, size)?))
            };
            map.iter().map(entry).collect::<Result<HashMap<Key, Cel>, String>>()?.into()
        }
    })
}

fn number_in(number: &Number) -> Result<Cel, String> {
    if let Some(int) = number.as_i64() {
        return Ok(Cel::Int(int));
    }
    if let Some(int) = number.as_u64() {
        return Ok(Cel::UInt(int));
    }
    number.as_f64().map(Cel::Float).ok_or_else(|| "a number is too large".to_owned())
}

/// The keys of a map in the one order that maps have. The interpreter keeps them in another one in every process, so
/// nothing walks through a map but by this.
pub(super) fn keys(map: &cel::objects::Map) -> Vec<&Key> {
    let mut keys: Vec<&Key> = map.map.keys().collect();
    keys.sort_unstable();
    keys
}

/// How much work it is to walk through a value: its texts byte by byte, and so much for each value in it.
pub(super) fn work(value: &Cel) -> usize {
    match value {
        Cel::String(text) => VALUE_WORK + text.len(),
        Cel::Bytes(bytes) => VALUE_WORK + bytes.len(),
        Cel::List(list) => VALUE_WORK + list.iter().map(work).sum::<usize>(),
        Cel::Map(map) => {
            let entry = |(key, value): (&Key, &Cel)| {
                2 * VALUE_WORK + work(value) + if let Key::String(name) = key { name.len() } else { 0 }
            };
            VALUE_WORK + map.map.iter().map(entry).sum::<usize>()
        }
        Cel::Null
        | Cel::Bool(_)
        | Cel::Int(_)
        | Cel::UInt(_)
        | Cel::Float(_)
        | Cel::Function(..)
        | Cel::Opaque(_)
        | Cel::Struct(_) => VALUE_WORK,
    }
}

/// The value as JSON, its maps in the order of their keys.
pub(super) fn to_json(value: &Cel) -> Result<Value, String> {
    out(value, &mut 0)
}

fn out(value: &Cel, size: &mut usize) -> Result<Value, String> {
    let len = if let Cel::String(text) = value { text.len() } else { 0 };
    count(size, len).map_err(|_| "the result is too large".to_owned())?;
    Ok(match value {
        Cel::Null => Value::Null,
        Cel::Bool(truth) => (*truth).into(),
        Cel::Int(int) => (*int).into(),
        Cel::UInt(int) => (*int).into(),
        Cel::Float(float) => match Number::from_f64(*float) {
            Some(number) => Value::Number(number),
            None => return Err("the result is not a finite number".to_owned()),
        },
        Cel::String(text) => text.as_str().into(),
        Cel::List(list) => Value::Array(list.iter().map(|item| out(item, size)).collect::<Result<_, _>>()?),
        Cel::Map(map) => {
            let entry = |key: &Key| match (key, map.map.get(key)) {
                (Key::String(name), Some(value)) => Ok((name.as_str().to_owned(), out(value, size)?)),
                (Key::String(_) | Key::Int(_) | Key::Uint(_) | Key::Bool(_), _) => {
                    Err(format!("the key {key} of a map is not text"))
                }
            };
            Value::Object(keys(map).into_iter().map(entry).collect::<Result<Map<_, _>, _>>()?)
        }
        Cel::Bytes(_) | Cel::Function(..) | Cel::Opaque(_) | Cel::Struct(_) => {
            return Err(format!(
                "{} has no form in JSON; `string(…)` may help",
                brief(&value.type_of().to_string())
            ));
        }
    })
}
