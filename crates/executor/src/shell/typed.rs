//! Typed output: what a step hands on to later steps, and whether it is what the runbook declares.
//!
//! `$WL_OUTPUT` wins: a JSON object, or lines of `name=value` and, for values of several lines, `name<<END` … `END`.
//! Without it a last line of standard output that is a JSON object counts. Values of `name=value` are text, and are read as
//! what the runbook declares where it declares something else.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use windlass_core::id::Name;
use windlass_core::runbook::ValueType;
use windlass_core::small;

/// The most bytes of typed output.
pub const TYPED_MAX: usize = 64 * 1024;

/// How much of a line an error shows.
const SHOWN_MAX: usize = 60;

/// Why typed output is refused. Text of the output is not shown where it could hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OutputError {
    /// More than is taken.
    #[error(
        "{place} has more than {TYPED_MAX} bytes; hand large results on as files and their names as output"
    )]
    TooLarge {
        /// `$WL_OUTPUT`, or the last line of standard output.
        place: String,
    },
    /// `$WL_OUTPUT` begins like JSON and is none.
    #[error("$WL_OUTPUT is no JSON object: {text}")]
    Json {
        /// What the parser says.
        text: String,
    },
    /// A line of `$WL_OUTPUT` that is neither form.
    #[error(
        "line {line} of $WL_OUTPUT is neither `name=value` nor `name<<END`; write one of them, or one JSON object"
    )]
    Line {
        /// Its number, from 1.
        line: usize,
    },
    /// A value of several lines without its end.
    #[error(
        "the value that begins in line {line} of $WL_OUTPUT has no end; close it with a line of just `{end}`"
    )]
    Unclosed {
        /// The number of its first line, from 1.
        line: usize,
        /// What would end it.
        end: String,
    },
    /// Not text.
    #[error("$WL_OUTPUT is not UTF-8; encode binary data, in base64 for example")]
    Encoding,
    /// Not the file it was.
    #[error("$WL_OUTPUT cannot be read ({text}); write to the file that is there and do not replace it")]
    File {
        /// What the system says.
        text: String,
    },
}

/// What stands in `$WL_OUTPUT`, by its form.
#[derive(Clone, Debug, PartialEq)]
pub enum Written {
    /// A JSON object: its values have the types that they have.
    Json(Value),
    /// Lines of `name=value`: all of them texts.
    Lines(Value),
}

/// The content of `$WL_OUTPUT`; `None` where nothing was written.
///
/// # Errors
/// [`OutputError`] where it is too large or in no form.
pub fn parse_file(bytes: &[u8]) -> Result<Option<Written>, OutputError> {
    if bytes.len() > TYPED_MAX {
        return Err(OutputError::TooLarge { place: "$WL_OUTPUT".to_owned() });
    }
    let text = core::str::from_utf8(bytes).map_err(|_| OutputError::Encoding)?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    if text.trim_start().starts_with('{') {
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| OutputError::Json { text: describe(&error) })?;
        return Ok(Some(Written::Json(Value::Object(object))));
    }
    parse_lines(text).map(|fields| Some(Written::Lines(fields)))
}

/// Where and what, without the text of the input: it could hold a secret.
fn describe(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        _ => "something unexpected stands there",
    };
    format!("{what}, in line {} at column {}", error.line(), error.column())
}

fn parse_lines(text: &str) -> Result<Value, OutputError> {
    let mut fields = Map::new();
    let mut lines = text.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        if line.trim().is_empty() {
            continue;
        }
        let name_len =
            line.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')).count();
        let (name, rest) = line.split_at(name_len);
        if name.is_empty() {
            return Err(OutputError::Line { line: i + 1 });
        }
        let value = if let Some(value) = rest.strip_prefix('=') {
            value.to_owned()
        } else if let Some(end) = rest.strip_prefix("<<").map(str::trim).filter(|end| !end.is_empty()) {
            let mut value: Vec<&str> = Vec::new();
            loop {
                match lines.next() {
                    Some((_, line)) if line == end => break value.join("\n"),
                    Some((_, line)) => value.push(line),
                    None => {
                        let end = end.chars().take(SHOWN_MAX).collect();
                        return Err(OutputError::Unclosed { line: i + 1, end });
                    }
                }
            }
        } else {
            return Err(OutputError::Line { line: i + 1 });
        };
        fields.insert(name.to_owned(), Value::String(value));
    }
    Ok(Value::Object(fields))
}

/// Texts as values of the declared types. One that does not read stays what it is, and does not fit.
#[must_use]
pub fn read_as(declared: &small::Map<Name, ValueType>, mut output: Value) -> Value {
    for (name, kind) in declared {
        let Some(value) = output.get_mut(name.as_str()) else { continue };
        let Some(text) = value.as_str().filter(|_| !kind.fits(value)) else { continue };
        if let Some(read) = serde_json::from_str(text).ok().filter(|read| kind.fits(read)) {
            *value = read;
        }
    }
    output
}

/// The last line of standard output that is not blank, kept while the output goes by.
#[derive(Debug, Default)]
pub(super) struct LastLine {
    current: Kept,
    last: Kept,
}

#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    cut: bool,
}

impl Kept {
    fn push(&mut self, bytes: &[u8]) {
        let room = TYPED_MAX - self.bytes.len();
        self.cut |= bytes.len() > room;
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn is_blank(&self) -> bool {
        self.bytes.trim_ascii().is_empty()
    }
}

impl LastLine {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|&b| b == b'\n');
        // A split gives at least one piece; each further one comes after a line break.
        self.current.push(pieces.next().unwrap_or_default());
        for piece in pieces {
            self.end_line();
            self.current.push(piece);
        }
    }

    fn end_line(&mut self) {
        let line = core::mem::take(&mut self.current);
        if !line.is_blank() {
            self.last = line;
        }
    }

    /// The JSON object that the last line is, if it is one.
    pub(super) fn parse(mut self) -> Result<Option<Value>, OutputError> {
        self.end_line();
        let line = self.last.bytes.trim_ascii();
        if !line.starts_with(b"{") {
            return Ok(None);
        }
        if self.last.cut {
            return Err(OutputError::TooLarge {
                place: "the JSON in the last line of standard output".to_owned(),
            });
        }
        let object: Option<Map<String, Value>> = serde_json::from_slice(line).ok();
        Ok(object.map(Value::Object))
    }
}

/// The outputs that are missing or of another type, all of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Mismatch(pub Vec<String>);

/// Checks a step's output against what the runbook declares. More than is declared is fine.
///
/// # Errors
/// [`Mismatch`], which names every output that is missing or of another type.
pub fn check_outputs(declared: &small::Map<Name, ValueType>, output: &Value) -> Result<(), Mismatch> {
    let mut problems = Vec::new();
    for (name, kind) in declared {
        match output.get(name.as_str()) {
            None => problems.push(format!(
                "the output `{name}` is missing: write `{name}=…` or a JSON object to \"$WL_OUTPUT\""
            )),
            Some(value) if !kind.fits(value) => problems.push(format!(
                "the output `{name}` should be of type {kind} and is {}{}",
                type_of(value),
                if value.is_string() {
                    format!(
                        ": write `{name}=…` with what reads as {}, or JSON, to \"$WL_OUTPUT\"",
                        kind.noun()
                    )
                } else {
                    String::new()
                },
            )),
            Some(_) => {}
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Mismatch(problems)) }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_hold_json_or_lines() {
        assert_eq!(parse_file(b""), Ok(None));
        assert_eq!(parse_file(b" \n"), Ok(None));
        assert_eq!(parse_file(b" {\"a\":[1]}\n"), Ok(Some(Written::Json(json!({"a": [1]})))));
        let lines = b"a=1\n\nb-c=x=y z\r\nd<<EOF\none\n\ntwo\nEOF\na=2";
        assert_eq!(
            parse_file(lines),
            Ok(Some(Written::Lines(json!({"a": "2", "b-c": "x=y z", "d": "one\n\ntwo"}))))
        );
    }

    #[test]
    fn what_is_in_no_form_is_refused_with_its_place() {
        assert!(matches!(parse_file(b"{\"a\":1"), Err(OutputError::Json { .. })));
        assert!(matches!(parse_file(b"{\"a\":1} x"), Err(OutputError::Json { .. })));
        assert_eq!(parse_file(b"a=1\nhello world"), Err(OutputError::Line { line: 2 }));
        assert_eq!(parse_file(b"[1]"), Err(OutputError::Line { line: 1 }));
        assert_eq!(parse_file(b"=1"), Err(OutputError::Line { line: 1 }));
        assert_eq!(parse_file(b"a<<E\nx"), Err(OutputError::Unclosed { line: 1, end: "E".to_owned() }));
        assert_eq!(parse_file(b"a=\xff"), Err(OutputError::Encoding));
        assert!(
            parse_file(&vec![b'x'; TYPED_MAX + 1]).is_err_and(|e| matches!(e, OutputError::TooLarge { .. }))
        );
        let deep = "{\"a\":".repeat(1000);
        assert!(matches!(parse_file(deep.as_bytes()), Err(OutputError::Json { .. })));
    }

    fn last_line(chunks: &[&[u8]]) -> Result<Option<Value>, OutputError> {
        let mut last = LastLine::default();
        for chunk in chunks {
            last.push(chunk);
        }
        last.parse()
    }

    #[test]
    fn the_last_line_counts_when_it_is_an_object() {
        assert_eq!(last_line(&[]), Ok(None));
        assert_eq!(last_line(&[b"x\n{\"a\":", b"1}\n", b"\n  \n"]), Ok(Some(json!({"a": 1}))));
        assert_eq!(last_line(&[b"{\"a\":1}"]), Ok(Some(json!({"a": 1}))));
        assert_eq!(last_line(&[b"{\"a\":1}\nbye\n"]), Ok(None));
        assert_eq!(last_line(&[b"{not json}\n"]), Ok(None));
        assert_eq!(last_line(&[b"[1]\n"]), Ok(None));
        let huge = format!("{{\"a\":\"{}\"}}\n", "x".repeat(TYPED_MAX));
        assert!(matches!(last_line(&[huge.as_bytes()]), Err(OutputError::TooLarge { .. })));
        assert_eq!(last_line(&[huge.as_bytes(), b"{}"]), Ok(Some(json!({}))));
    }

    #[test]
    fn texts_are_read_as_what_is_declared() {
        let kinds = [("i", ValueType::Integer), ("n", ValueType::Number), ("b", ValueType::Bool)];
        let more =
            [("l", ValueType::List), ("m", ValueType::Map), ("s", ValueType::String), ("x", ValueType::Any)];
        let declared: small::Map<Name, ValueType> =
            kinds.into_iter().chain(more).map(|(name, kind)| (Name::clean(name), kind)).collect();
        let texts = json!({ "i": "-3", "n": "1.5", "b": "true", "l": "[1]", "m": "{\"a\":1}", "s": "1", "x": "1", "more": "1" });
        let read = json!({ "i": -3, "n": 1.5, "b": true, "l": [1], "m": { "a": 1 }, "s": "1", "x": "1", "more": "1" });
        assert_eq!(read_as(&declared, texts), read);
        let unfit = json!({ "i": "1.5", "n": "many", "b": "yes", "l": "{}", "m": "" });
        assert_eq!(read_as(&declared, unfit.clone()), unfit);
    }

    #[test]
    fn declared_outputs_are_checked_by_name_and_type() {
        let declared = small::Map::from([
            (Name::clean("n"), ValueType::Integer),
            (Name::clean("s"), ValueType::String),
            (Name::clean("x"), ValueType::Any),
        ]);
        assert_eq!(check_outputs(&declared, &json!({"n": 1, "s": "", "x": null, "more": 1})), Ok(()));
        let Mismatch(problems) = check_outputs(&declared, &json!({"n": "1", "s": "a"})).unwrap_err();
        assert_eq!(problems.len(), 2);
        assert!(problems[0].contains("`n` should be of type integer and is a string"), "{problems:?}");
        assert!(problems[1].contains("`x` is missing"), "{problems:?}");
        assert_eq!(check_outputs(&declared, &Value::Null).unwrap_err().0.len(), 3);
    }
}
