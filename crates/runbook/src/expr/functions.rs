//! The functions that expressions have beside those of CEL.
//!
//! | function | gives |
//! |---|---|
//! | `toJSON(value)` | the value as JSON text |
//! | `fromJSON(text)` | the value that a JSON text is |
//! | `format("{0} of {1}", a, b)` | the text with the values put in; `{{` and `}}` are braces |
//! | `join(list, separator)` | the texts of a list in one; the separator is `,` where it is not given |
//! | `hash(value)` | the SHA-256 of a text, or of a value's canonical JSON, in hexadecimal digits |
//! | `text.matches(pattern)` | whether a regular expression is found in the text |

use super::super::pattern::Pattern;
use super::values::{self, from_json_whole, to_json};
use super::{TOO_MUCH, VALUES_LEN_MAX, VISITS_MAX, Work};
use cel::objects::Key;
use cel::{Context, DeclarationError, ExecutionError, FunctionContext, Value};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use windlass_core::canonical;
use windlass_core::digest::Digest;

/// Every function that an expression may call; macros are gone when it is looked at.
pub(super) const NAMES: &[&str] = &[
    "bool",
    "bytes",
    "contains",
    "double",
    "dyn",
    "endsWith",
    "format",
    "fromJSON",
    "hash",
    "int",
    "join",
    "matches",
    "size",
    "startsWith",
    "string",
    "toJSON",
    "type",
    "uint",
];

/// The call around a macro's range that counts its elements and puts the keys of a map in order. Its second argument says
/// of how many parts the macro is made. No expression can write the name.
pub(super) const EACH: &str = "@each";
/// The call around what an operation of the language itself walks through, so that it counts.
pub(super) const WALK: &str = "@walk";
/// Operations whose time grows with what they are about.
pub(super) const WALKS: &[&str] = &[
    "_==_",
    "_!=_",
    "_+_",
    "_<_",
    "_<=_",
    "_>_",
    "_>=_",
    "@in",
    "contains",
    "endsWith",
    "size",
    "startsWith",
    "string",
    "bytes",
    "int",
    "uint",
    "double",
];

/// The least size that work is reckoned with, so that small values do not make for endless loops.
const SIZE_MIN: usize = 16 * 1024;
/// The most bytes a pattern may need when compiled.
const PATTERN_SIZE_MAX: usize = 64 * 1024;
/// How much work it is to compile any pattern, and for each byte that it then needs.
const PATTERN_WORK: usize = 32 * 1024;
const COMPILE_WORK: usize = 8;
/// How much work each part of a macro is for each element.
const PART_WORK: usize = 48;

type Function = fn(&FunctionContext<'_, '_>, &Work) -> Result<Value, ExecutionError>;

/// Adds the functions that an expression calls to a context whose values have this size.
pub(super) fn add(
    context: &mut Context<'_, '_>,
    called: &BTreeSet<&'static str>,
    size: usize,
    work: &Arc<Work>,
) -> Result<(), DeclarationError> {
    for name in called {
        let own = Arc::clone(work);
        let function: Function = match *name {
            "toJSON" => to_json_text,
            "fromJSON" => from_json_text,
            "format" => format_text,
            "join" => join,
            "hash" => hash,
            WALK => {
                context.add_function(WALK, move |call: &FunctionContext<'_, '_>| walk(call, &own))?;
                continue;
            }
            EACH => {
                let left = AtomicUsize::new(VISITS_MAX / size.max(SIZE_MIN));
                context.add_function(EACH, move |call: &FunctionContext<'_, '_>| each(call, &left, &own))?;
                continue;
            }
            "matches" => {
                let known = Mutex::new(None);
                let matches = move |call: &FunctionContext<'_, '_>| matches(call, &known, &own);
                context.add_function("matches", matches)?;
                continue;
            }
            // tidy: the language has the others itself.
            _ => continue,
        };
        context.add_function(name, move |call: &FunctionContext<'_, '_>| {
            arguments(call)?.iter().try_for_each(|value| spend(&own, values::work(value)))?;
            let result = function(call, &own)?;
            spend(&own, values::work(&result)).map(|()| result)
        })?;
    }
    Ok(())
}

fn spend(work: &Work, more: usize) -> Result<(), ExecutionError> {
    work.spend(more).map_err(|message| ExecutionError::function_error("expression", message))
}

/// Counts what an operation walks through.
fn walk(call: &FunctionContext<'_, '_>, work: &Work) -> Result<Value, ExecutionError> {
    let [value] = &arguments(call)?[..] else { return fail(call, "takes one value") };
    spend(work, values::work(value))?;
    Ok(value.clone())
}

fn fail<T>(call: &FunctionContext<'_, '_>, message: &str) -> Result<T, ExecutionError> {
    Err(ExecutionError::function_error(call.name, message))
}

/// The arguments, the target of a method first.
fn arguments(call: &FunctionContext<'_, '_>) -> Result<Vec<Value>, ExecutionError> {
    call.this.iter().chain(&call.args).map(|value| Value::try_from(value.as_ref())).collect()
}

fn json(call: &FunctionContext<'_, '_>, value: &Value) -> Result<serde_json::Value, ExecutionError> {
    to_json(value).or_else(|message| fail(call, &message))
}

fn each(call: &FunctionContext<'_, '_>, left: &AtomicUsize, work: &Work) -> Result<Value, ExecutionError> {
    let arguments = arguments(call)?;
    let [range, Value::Int(parts)] = &arguments[..] else { return fail(call, "takes one value") };
    let (count, range) = match range {
        Value::List(list) => (list.len(), range.clone()),
        // A macro visits the keys of a map. They are given to it in their order.
        Value::Map(map) => {
            let keys: Vec<Value> = values::keys(map).into_iter().map(key).collect();
            (keys.len(), Value::List(Arc::new(keys)))
        }
        // tidy: what else there is cannot be walked through, and the interpreter says so.
        _ => (0, range.clone()),
    };
    spend(work, values::work(&range))?;
    let parts = usize::try_from(*parts).unwrap_or(usize::MAX);
    spend(work, count.saturating_mul(parts).saturating_mul(PART_WORK))?;
    let visited = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(count));
    match visited {
        Ok(_) => Ok(range),
        Err(_) => Err(ExecutionError::function_error("expression", TOO_MUCH)),
    }
}

fn key(key: &Key) -> Value {
    match key {
        Key::Int(int) => Value::Int(*int),
        Key::Uint(int) => Value::UInt(*int),
        Key::Bool(truth) => Value::Bool(*truth),
        Key::String(text) => Value::String(Arc::clone(text)),
    }
}

fn to_json_text(call: &FunctionContext<'_, '_>, _: &Work) -> Result<Value, ExecutionError> {
    match &arguments(call)?[..] {
        [value] => Ok(json(call, value)?.to_string().into()),
        _ => fail(call, "takes one value"),
    }
}

fn from_json_text(call: &FunctionContext<'_, '_>, work: &Work) -> Result<Value, ExecutionError> {
    let arguments = arguments(call)?;
    let [Value::String(text)] = &arguments[..] else { return fail(call, "takes one text") };
    if text.len() > VALUES_LEN_MAX {
        return fail(call, "the text is too large");
    }
    // How many values it has, at the most: it is known before they are made.
    let values = text.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    spend(work, values.saturating_mul(values::VALUE_WORK))?;
    match serde_json::from_str(text) {
        Ok(value) => from_json_whole(&value).or_else(|message| fail(call, &message)),
        Err(error) => fail(call, &format!("the text is not JSON: {error}")),
    }
}

/// A value in a text: texts as they are, everything else as JSON.
fn shown(call: &FunctionContext<'_, '_>, value: &Value) -> Result<String, ExecutionError> {
    match json(call, value)? {
        serde_json::Value::String(text) => Ok(text),
        value => Ok(value.to_string()),
    }
}

fn format_text(call: &FunctionContext<'_, '_>, _: &Work) -> Result<Value, ExecutionError> {
    let arguments = arguments(call)?;
    let [Value::String(pattern), values @ ..] = &arguments[..] else {
        return fail(call, "takes a text, and the values for its {0}, {1}, …");
    };
    let mut text = String::new();
    let mut rest = pattern.as_str();
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let (brace, after) = rest[at..].split_at(1);
        rest = after;
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        let place = rest.split_once('}').filter(|_| brace == "{");
        let index = place.and_then(|(index, _)| index.parse::<usize>().ok());
        let (Some((_, after)), Some(value)) = (place, index.and_then(|index| values.get(index))) else {
            return fail(call, "a brace belongs to no value; braces themselves are written {{ and }}");
        };
        text.push_str(&shown(call, value)?);
        rest = after;
        if text.len() > VALUES_LEN_MAX {
            return fail(call, "the text grows too large");
        }
    }
    text.push_str(rest);
    Ok(text.into())
}

fn join(call: &FunctionContext<'_, '_>, _: &Work) -> Result<Value, ExecutionError> {
    let arguments = arguments(call)?;
    let (list, separator) = match &arguments[..] {
        [Value::List(list)] => (list, ","),
        [Value::List(list), Value::String(separator)] => (list, separator.as_str()),
        _ => return fail(call, "takes a list of texts, and a separator"),
    };
    let mut text = String::new();
    for (n, item) in list.iter().enumerate() {
        let Value::String(item) = item else {
            return fail(call, "an element is not a text; `list.map(x, string(x))` makes texts");
        };
        if n > 0 {
            text.push_str(separator);
        }
        text.push_str(item);
        if text.len() > VALUES_LEN_MAX {
            return fail(call, "the text grows too large");
        }
    }
    Ok(text.into())
}

fn hash(call: &FunctionContext<'_, '_>, _: &Work) -> Result<Value, ExecutionError> {
    match &arguments(call)?[..] {
        [Value::String(text)] => Ok(Digest::of(&[text.as_bytes()]).to_string().into()),
        [value] => Ok(Digest::of(&[&canonical::bytes(&json(call, value)?)]).to_string().into()),
        _ => fail(call, "takes one value"),
    }
}

/// The pattern that an evaluation looked for last: in a macro it is the same one for each element.
type Known = Mutex<Option<(Arc<String>, Pattern)>>;

fn matches(call: &FunctionContext<'_, '_>, known: &Known, work: &Work) -> Result<Value, ExecutionError> {
    let arguments = arguments(call)?;
    let [Value::String(text), Value::String(pattern)] = &arguments[..] else {
        return fail(call, "takes a text and a pattern");
    };
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let same = known.take().filter(|(same, _)| same == pattern);
    let compiled = match same {
        Some((_, compiled)) => compiled,
        None => {
            spend(work, PATTERN_WORK)?;
            let Ok(compiled) = Pattern::within(pattern, PATTERN_SIZE_MAX) else {
                return fail(call, &format!("`{}` is not a regular expression", values::short(pattern)));
            };
            spend(work, compiled.size().saturating_mul(COMPILE_WORK))?;
            compiled
        }
    };
    spend(work, compiled.work(text))?;
    let found = compiled.is_match(text);
    *known = Some((Arc::clone(pattern), compiled));
    Ok(found.into())
}
