//! The wire: a JSON writer and a strict pull reader for records.
//!
//! A record's keys stand in one fixed order, so reading is comparing rather than searching: no key is
//! looked up, none can be doubled, and what is read writes back to the same bytes. Scalars are handled
//! here; nested values go through `serde_json`, which bounds their depth.

mod same;

pub(crate) use same::same;

use crate::id;
use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;
use serde::de::{self, DeserializeOwned, Visitor};
use serde::{Deserializer, Serialize};
use serde_json::Value;

/// Why a line is not a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The line ends too early, or another character was expected.
    #[error("expected {expected} at byte {at}")]
    Syntax {
        /// What should stand there.
        expected: &'static str,
        /// Where in the line.
        at: usize,
    },
    /// The next key is another one.
    #[error("missing field `{field}`: found {found} instead")]
    Missing {
        /// The field that should stand here.
        field: &'static str,
        /// What stands here.
        found: String,
    },
    /// A key that this record does not have.
    #[error("unknown field {found} in `{tag}`: the record is damaged, or a newer version wrote it")]
    Unknown {
        /// What was found.
        found: String,
        /// The record's tag.
        tag: &'static str,
    },
    /// A tag that this version does not know.
    #[error("unknown record type `{0}`: a newer version wrote it; use that version to read this log")]
    Tag(String),
    /// A value of the wrong type.
    #[error("expected {expected}")]
    Type {
        /// What was expected.
        expected: &'static str,
    },
    /// A word that is none of the expected ones.
    #[error("unknown word `{word}`, expected one of {expected:?}")]
    Word {
        /// The word found, shortened.
        word: String,
        /// All that may stand there.
        expected: &'static [&'static str],
    },
    /// A field whose value is wrong.
    #[error("field `{field}`: {error}")]
    Field {
        /// Which field.
        field: &'static str,
        /// What is wrong with it.
        error: alloc::boxed::Box<Error>,
    },
    /// A nested value that does not parse.
    #[error("{0}")]
    Nested(String),
    /// An id, name or stream that does not parse.
    #[error(transparent)]
    Id(#[from] id::Error),
    /// The chain value is not the one that follows from the records before.
    #[error("the chain is broken at version {ver}: the record, or one before it, was changed")]
    Chain {
        /// The version of the record where it shows.
        ver: u64,
    },
    /// A private value does not have the digest that the chain covers.
    #[error("the private value `{field}` is not the one that was recorded")]
    Digest {
        /// Which value.
        field: &'static str,
    },
}

/// At most the first 64 characters, for error messages about text that may be hostile.
#[must_use]
pub fn shorten(text: &str) -> String {
    const MAX: usize = 64;
    let mut short: String =
        text.chars().take(MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX).is_some() {
        short.push('…');
    }
    short
}

/// Writes JSON to a byte buffer, spelled as `serde_json` spells it.
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// `,"key":`
    pub fn key(&mut self, key: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// `,"keysuffix":`
    pub fn key2(&mut self, key: &str, suffix: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(suffix.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// A quoted string that is known to need no escapes.
    pub fn plain(&mut self, text: &str) {
        self.quoted_ascii(&[text.as_bytes()]);
    }

    /// Parts that are known to need no escapes, in one pair of quotes.
    pub fn quoted_ascii(&mut self, parts: &[&[u8]]) {
        self.0.push(b'"');
        for part in parts {
            self.0.extend_from_slice(part);
        }
        self.0.push(b'"');
    }

    /// A quoted string with escapes.
    pub fn string(&mut self, text: &str) {
        self.0.push(b'"');
        self.escaped(text);
        self.0.push(b'"');
    }

    /// What `Display` writes, as a quoted string.
    pub fn display(&mut self, text: &dyn core::fmt::Display) {
        self.0.push(b'"');
        // Writing to memory cannot fail.
        let _ = write!(self, "{text}");
        self.0.push(b'"');
    }

    fn escaped(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let mut start = 0;
        for (i, &b) in bytes.iter().enumerate() {
            if b >= 0x20 && b != b'"' && b != b'\\' {
                continue;
            }
            self.0.extend_from_slice(&bytes[start..i]);
            start = i + 1;
            match b {
                b'"' => self.raw(b"\\\""),
                b'\\' => self.raw(b"\\\\"),
                b'\n' => self.raw(b"\\n"),
                b'\r' => self.raw(b"\\r"),
                b'\t' => self.raw(b"\\t"),
                0x08 => self.raw(b"\\b"),
                0x0c => self.raw(b"\\f"),
                _ => self.raw(alloc::format!("\\u{b:04x}").as_bytes()),
            }
        }
        self.0.extend_from_slice(&bytes[start..]);
    }

    /// A whole number.
    pub fn number(&mut self, number: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut rest = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.0.extend_from_slice(&digits[at..]);
    }

    /// A JSON value.
    pub fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.raw(b"null"),
            Value::Bool(true) => self.raw(b"true"),
            Value::Bool(false) => self.raw(b"false"),
            Value::Number(number) => match number.as_u64() {
                Some(whole) => self.number(whole),
                None => self.nested(number),
            },
            Value::String(text) => self.string(text),
            Value::Array(list) => {
                self.raw(b"[");
                for (i, item) in list.iter().enumerate() {
                    if i > 0 {
                        self.raw(b",");
                    }
                    self.value(item);
                }
                self.raw(b"]");
            }
            Value::Object(map) => {
                self.raw(b"{");
                for (i, (key, item)) in map.iter().enumerate() {
                    if i > 0 {
                        self.raw(b",");
                    }
                    self.string(key);
                    self.raw(b":");
                    self.value(item);
                }
                self.raw(b"}");
            }
        }
    }

    /// Any value that serde can write.
    pub fn nested<T: Serialize + ?Sized>(&mut self, value: &T) {
        // Writing our own types to memory cannot fail: their map keys are strings.
        let bytes = serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec());
        self.0.extend_from_slice(&bytes);
    }
}

impl core::fmt::Write for Writer<'_> {
    /// The inside of a quoted string.
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.escaped(text);
        Ok(())
    }
}

/// Reads a line from front to back.
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Whether private values are checked against their digests while they are read.
    pub check_private: bool,
    names: Option<&'a mut id::Names>,
}

impl<'a> Reader<'a> {
    /// A reader at the start of a line.
    #[must_use]
    pub fn new(text: &'a str, check_private: bool) -> Reader<'a> {
        Reader { text, at: 0, check_private, names: None }
    }

    /// With names that were read before.
    #[must_use]
    pub fn with_names(self, names: &'a mut id::Names) -> Reader<'a> {
        Reader { names: Some(names), ..self }
    }

    /// A name.
    ///
    /// # Errors
    /// As [`Reader::text`], and where the text is no name.
    #[inline]
    pub fn name(&mut self) -> Result<id::Name, Error> {
        let text = self.text()?;
        self.named(&text)
    }

    /// The name with this text.
    ///
    /// # Errors
    /// Where it is none.
    #[inline]
    pub fn named(&mut self, text: &str) -> Result<id::Name, Error> {
        Ok(match &mut self.names {
            Some(names) => names.get(text)?,
            None => id::Name::new(text)?,
        })
    }

    /// What a string of exactly this length reads as; steps over it where it does. There must be no escape in what
    /// `read` accepts.
    #[inline]
    pub fn fixed<T>(&mut self, len: usize, read: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let text = self.rest().get(..len + 2)?;
        if text[0] != b'"' || text[len + 1] != b'"' {
            return None;
        }
        let value = read(&text[1..=len])?;
        self.at += len + 2;
        Some(value)
    }

    /// Where the reader stands.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    /// Steps over `literal` if it stands here.
    #[inline]
    pub fn skip(&mut self, literal: &str) -> bool {
        let here = self.rest().get(..literal.len()).is_some_and(|text| same(text, literal.as_bytes()));
        if here {
            self.at += literal.len();
        }
        here
    }

    /// Steps over `,"keysuffix":` if it stands here.
    #[inline]
    pub fn skip_key(&mut self, key: &str, suffix: &str) -> bool {
        let (rest, k, s) = (self.rest(), key.len(), suffix.len());
        let here = rest.len() >= k + s + 4
            && rest.starts_with(b",\"")
            && same(&rest[2..2 + k], key.as_bytes())
            && same(&rest[2 + k..2 + k + s], suffix.as_bytes())
            && &rest[2 + k + s..4 + k + s] == b"\":";
        if here {
            self.at += k + s + 4;
        }
        here
    }

    /// Steps over `literal`.
    ///
    /// # Errors
    /// [`Error::Syntax`] if something else stands here.
    pub fn expect(&mut self, literal: &'static str) -> Result<(), Error> {
        if self.skip(literal) { Ok(()) } else { Err(Error::Syntax { expected: literal, at: self.at }) }
    }

    /// Steps over the key of a field that must be there.
    ///
    /// # Errors
    /// [`Error::Missing`] if another key or the end stands here.
    pub fn need_key(&mut self, key: &'static str, suffix: &'static str) -> Result<(), Error> {
        if self.skip_key(key, suffix) {
            return Ok(());
        }
        Err(Error::Missing { field: key, found: self.peek() })
    }

    /// What stands here, for messages: the next key, or the end.
    #[must_use]
    pub fn peek(&self) -> String {
        let rest = &self.text[self.at..];
        match rest.strip_prefix(",\"").and_then(|r| r.split_once('"')) {
            Some((key, _)) => alloc::format!("`{}`", shorten(key)),
            None if rest.starts_with('}') || rest.is_empty() => String::from("the end"),
            None => alloc::format!("`{}`", shorten(rest)),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// [`Error::Type`] if no string stands here, [`Error::Nested`] for a bad escape.
    #[inline]
    pub fn text(&mut self) -> Result<Cow<'a, str>, Error> {
        const EXPECTED: Error = Error::Type { expected: "a string" };
        let rest = self.rest();
        if rest.first() != Some(&b'"') {
            return Err(EXPECTED);
        }
        let i = 1 + plain_len(&rest[1..]);
        match rest.get(i) {
            Some(b'"') => {
                let text = &self.text[self.at + 1..self.at + i];
                self.at += i + 1;
                Ok(Cow::Borrowed(text))
            }
            Some(b'\\') => self.nested().map(Cow::Owned),
            Some(_) | None => Err(EXPECTED),
        }
    }

    /// A whole number without sign, fraction or exponent.
    ///
    /// # Errors
    /// [`Error::Type`] if none stands here or it does not fit.
    #[inline]
    pub fn number(&mut self) -> Result<u64, Error> {
        const EXPECTED: Error = Error::Type { expected: "a whole number" };
        let rest = self.rest();
        let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let leading_zero = len > 1 && rest[0] == b'0';
        let ends_well = matches!(rest.get(len), Some(b',' | b'}' | b']'));
        if len == 0 || leading_zero || !ends_well {
            return Err(EXPECTED);
        }
        let push = |number: u64, &b: &u8| number.checked_mul(10)?.checked_add(u64::from(b - b'0'));
        let number = rest[..len].iter().try_fold(0, push).ok_or(EXPECTED)?;
        self.at += len;
        Ok(number)
    }

    /// Any value that serde can read.
    ///
    /// # Errors
    /// [`Error::Nested`] with serde's message.
    pub fn nested<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let mut values = serde_json::Deserializer::from_slice(self.rest()).into_iter::<T>();
        match values.next() {
            Some(Ok(value)) => {
                self.at += values.byte_offset();
                Ok(value)
            }
            Some(Err(error)) => {
                let mut message = String::new();
                // Writing to a string cannot fail.
                let _ = write!(message, "{error}");
                Err(Error::Nested(message))
            }
            None => Err(Error::Type { expected: "a value" }),
        }
    }

    /// The bytes between two places of the line.
    #[must_use]
    pub fn span(&self, from: usize, to: usize) -> &'a [u8] {
        &self.text.as_bytes()[from..to]
    }
}

/// How many bytes stand before the next quote, backslash or control character: eight at a time, as most are in ids and
/// names. The well-known test for a byte below a bound finds one in a word without looking at each.
#[inline]
fn plain_len(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word & HIGHS;
    let mut at = 0;
    while let Some(chunk) = text[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        if quote | backslash | below(word, 0x20) != 0 {
            break;
        }
        at += 8;
    }
    let special = |&b: &u8| b < 0x20 || b == b'"' || b == b'\\';
    text[at..].iter().position(special).map_or(text.len(), |i| at + i)
}

/// How long a text is, quoted and escaped.
pub(crate) fn quoted_len(text: &str) -> usize {
    let more = |b: u8| match b {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 1,
        0..0x20 => 5,
        _ => 0,
    };
    text.len() + 2 + text.bytes().map(more).sum::<usize>()
}

/// A value that stands in a record.
pub trait Wire: Sized {
    /// Its type, as the documentation names it.
    fn kind() -> &'static str;
    /// Writes it.
    fn put(&self, out: &mut Writer<'_>);
    /// Reads it.
    ///
    /// # Errors
    /// Any [`Error`] about the value alone; the caller adds the field's name.
    fn get(r: &mut Reader<'_>) -> Result<Self, Error>;
    /// About how many bytes it is written as: exact where it may be large.
    fn weight(&self) -> usize {
        WEIGHT_MIN
    }
}

/// What a value that cannot be large is taken to be.
pub(crate) const WEIGHT_MIN: usize = 32;

/// A field of an event: how it stands before the chain, and what of it stands after.
pub trait Field: Sized {
    /// Its type, as the documentation names it.
    fn kind() -> String;
    /// Writes what the chain covers.
    fn put_public(
        &self,
        key: &'static str,
        out: &mut Writer<'_>,
        salts: &mut dyn FnMut() -> crate::digest::Salt,
        private: &mut Vec<u8>,
    );
    /// Reads what the chain covers.
    ///
    /// # Errors
    /// Any [`Error`], with the field's name.
    fn get_public(key: &'static str, r: &mut Reader<'_>) -> Result<Self, Error>;
    /// Reads what stands after the chain.
    ///
    /// # Errors
    /// Any [`Error`], with the field's name.
    fn get_private(&mut self, _key: &'static str, _r: &mut Reader<'_>) -> Result<(), Error> {
        Ok(())
    }
    /// About how many bytes it is written as.
    fn weight(&self) -> usize;
}

/// Reads what is saved as text, for serde: the text is looked at where it stands.
pub(crate) fn parsed<'de, D, T, E>(d: D, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: core::fmt::Display,
{
    struct Text<F>(F);
    impl<T, E: core::fmt::Display, F: FnOnce(&str) -> Result<T, E>> Visitor<'_> for Text<F> {
        type Value = T;
        fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str("a text")
        }
        fn visit_str<A: de::Error>(self, text: &str) -> Result<T, A> {
            (self.0)(text).map_err(A::custom)
        }
    }
    d.deserialize_str(Text(parse))
}

/// Adds the field's name to an error about its value.
pub(crate) fn in_field(field: &'static str, error: Error) -> Error {
    Error::Field { field, error: alloc::boxed::Box::new(error) }
}

impl<T: Wire> Field for T {
    fn kind() -> String {
        String::from(T::kind())
    }
    fn put_public(
        &self,
        key: &'static str,
        out: &mut Writer<'_>,
        _: &mut dyn FnMut() -> crate::digest::Salt,
        _: &mut Vec<u8>,
    ) {
        out.key(key);
        self.put(out);
    }
    fn get_public(key: &'static str, r: &mut Reader<'_>) -> Result<Self, Error> {
        r.need_key(key, "")?;
        T::get(r).map_err(|e| in_field(key, e))
    }
    fn weight(&self) -> usize {
        Wire::weight(self)
    }
}

impl<T: Wire> Field for Option<T> {
    fn kind() -> String {
        alloc::format!("{}?", T::kind())
    }
    fn put_public(
        &self,
        key: &'static str,
        out: &mut Writer<'_>,
        _: &mut dyn FnMut() -> crate::digest::Salt,
        _: &mut Vec<u8>,
    ) {
        if let Some(value) = self {
            out.key(key);
            value.put(out);
        }
    }
    fn get_public(key: &'static str, r: &mut Reader<'_>) -> Result<Self, Error> {
        if !r.skip_key(key, "") {
            return Ok(None);
        }
        T::get(r).map(Some).map_err(|e| in_field(key, e))
    }
    fn weight(&self) -> usize {
        self.as_ref().map_or(0, Wire::weight)
    }
}

impl Wire for u64 {
    fn kind() -> &'static str {
        "number"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.number(*self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        r.number()
    }
}

impl Wire for u32 {
    fn kind() -> &'static str {
        "number"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.number(u64::from(*self));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        u32::try_from(r.number()?).map_err(|_| Error::Type { expected: "a smaller number" })
    }
}

impl Wire for i32 {
    fn kind() -> &'static str {
        "number"
    }
    fn put(&self, out: &mut Writer<'_>) {
        if *self < 0 {
            out.raw(b"-");
        }
        out.number(u64::from(self.unsigned_abs()));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        let negative = r.skip("-");
        let size = i64::try_from(r.number()?).unwrap_or(i64::MAX);
        let number = if negative { -size } else { size };
        match i32::try_from(number) {
            // Minus nought would not write back to the same bytes.
            Ok(number) if !(negative && number == 0) => Ok(number),
            _ => Err(Error::Type { expected: "a whole number of 32 bits" }),
        }
    }
}

impl Wire for bool {
    fn kind() -> &'static str {
        "bool"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.raw(if *self { b"true" } else { b"false" });
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        if r.skip("true") {
            Ok(true)
        } else if r.skip("false") {
            Ok(false)
        } else {
            Err(Error::Type { expected: "true or false" })
        }
    }
}

impl Wire for String {
    fn kind() -> &'static str {
        "string"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.string(self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        r.text().map(Cow::into_owned)
    }
    fn weight(&self) -> usize {
        WEIGHT_MIN + quoted_len(self)
    }
}

impl Wire for crate::time::Millis {
    fn kind() -> &'static str {
        "time"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.number(self.0);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        r.number().map(crate::time::Millis)
    }
}

impl Wire for crate::time::Span {
    fn kind() -> &'static str {
        "milliseconds"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.number(self.0);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        r.number().map(crate::time::Span)
    }
}

impl Wire for Value {
    fn kind() -> &'static str {
        "json"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.value(self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        r.nested()
    }
    fn weight(&self) -> usize {
        WEIGHT_MIN + crate::packed::text_len(self)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn kind() -> &'static str {
        "list"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.raw(b"[");
        for (i, value) in self.iter().enumerate() {
            if i > 0 {
                out.raw(b",");
            }
            value.put(out);
        }
        out.raw(b"]");
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, Error> {
        if !r.skip("[") {
            return Err(Error::Type { expected: "a list" });
        }
        let mut values = Vec::new();
        if r.skip("]") {
            return Ok(values);
        }
        loop {
            values.push(T::get(r)?);
            if r.skip("]") {
                return Ok(values);
            }
            r.expect(",")?;
        }
    }
    fn weight(&self) -> usize {
        self.iter().map(Wire::weight).sum::<usize>() + WEIGHT_MIN
    }
}

/// Gives serde types the wire form of a nested value. What holds a value of the user's says which, with `of`.
macro_rules! nested {
    ($( $name:ty = $kind:literal $(of $values:expr)? ),+ $(,)?) => {$(
        impl $crate::wire::Wire for $name {
            fn kind() -> &'static str { $kind }
            fn put(&self, out: &mut $crate::wire::Writer<'_>) { out.nested(self); }
            fn get(r: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::Error> { r.nested() }
            fn weight(&self) -> usize {
                // Names, ids and numbers.
                const SMALL: usize = 256;
                $(
                    let values: fn(&$name) -> alloc::vec::Vec<Option<&serde_json::Value>> = $values;
                    let large = values(self).into_iter().flatten().map($crate::wire::Wire::weight).sum::<usize>();
                    return SMALL + large;
                )?
                #[allow(unreachable_code)]
                SMALL
            }
        }
    )+};
}
pub(crate) use nested;
