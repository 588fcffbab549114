//! YAML 1.2 as a tree in which every value knows where it stands.
//!
//! The parser gives events; this puts them together, within bounds, and says what each plain scalar is by the core
//! schema of YAML 1.2: `yes`, `no`, `on` and `off` are text, and `true` and `false` are the only truths. Aliases are
//! copied in place, and what they copy is counted, so a few lines cannot grow into millions of values.

use super::problem::{Place, Problem};
use serde_json::Number;
use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The most bytes of one file.
pub const FILE_LEN_MAX: usize = 256 * 1024;
/// How deep values may be nested.
pub const DEPTH_MAX: usize = 32;
/// The most values that aliases may copy, all together.
pub const COPIES_MAX: usize = 10_000;
/// The most values of one file. The file's length allows for about as many.
pub const VALUES_MAX: usize = 200_000;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub at: Place,
    /// What it is.
    pub value: Value,
}

/// A value. Maps keep the order in which they are written.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    Bool(bool),
    /// A number, and how it is written.
    Number(Number, String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// The key of a map's entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub text: String,
    pub at: Place,
}

impl Node {
    /// The entry of a map with this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, node)| node)
    }

    /// The entry of a map with this key, and the key.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<(&Key, &Node)> {
        self.entries().iter().find(|(k, _)| k.text == key).map(|(k, node)| (k, node))
    }

    /// The entries of a map; none of anything else.
    #[must_use]
    pub fn entries(&self) -> &[(Key, Node)] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Bool(_) | Value::Number(..) | Value::Text(_) | Value::List(_) => &[],
        }
    }

    /// The items of a list; anything else is a list of itself, as many keys take one or several.
    #[must_use]
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            Value::Null | Value::Bool(_) | Value::Number(..) | Value::Text(_) | Value::Map(_) => {
                std::slice::from_ref(self)
            }
        }
    }

    /// The text, where it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            Value::Null | Value::Bool(_) | Value::Number(..) | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// What it is, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(..) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// The value as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(truth) => (*truth).into(),
            Value::Number(number, _) => serde_json::Value::Number(number.clone()),
            Value::Text(text) => text.as_str().into(),
            Value::List(items) => items.iter().map(Node::json).collect(),
            Value::Map(entries) => {
                entries.iter().map(|(key, node)| (key.text.clone(), node.json())).collect()
            }
        }
    }

    /// How many values it is, and how deep.
    fn size(&self) -> (usize, usize) {
        let parts = |nodes: &mut dyn Iterator<Item = &Node>| {
            nodes.map(Node::size).fold((1, 1), |(n, depth), (more, deep)| (n + more, depth.max(deep + 1)))
        };
        match &self.value {
            Value::List(items) => parts(&mut items.iter()),
            Value::Map(entries) => parts(&mut entries.iter().map(|(_, node)| node)),
            Value::Null | Value::Bool(_) | Value::Number(..) | Value::Text(_) => (1, 1),
        }
    }
}

/// Reads a file's text. An empty file is nothing.
///
/// # Errors
/// The first thing that is not YAML, or beyond a bound.
pub fn parse(file: u16, text: &str) -> Result<Node, Problem> {
    if let Some(at) = text.find('\0') {
        let place = Place::new(file, at, at + 1);
        let line = text[..at].matches('\n').count() + 1;
        return Err(Problem::at(place, format!("line {line} holds a NUL byte, so this is not a text file"))
            .help("save the file as plain UTF-8 text"));
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.disallow_directives = true;
    options.flow_nesting_limit = DEPTH_MAX + 1;
    options.block_nesting_limit = DEPTH_MAX + 1;
    Tree {
        file,
        len: text.len(),
        events: Parser::new_from_str_with_options(text, options),
        anchors: BTreeMap::new(),
        values: 0,
        copies: 0,
    }
    .document()
}

struct Tree<'a> {
    file: u16,
    len: usize,
    events: Parser<'a, StrInput<'a>>,
    anchors: BTreeMap<usize, Node>,
    values: usize,
    copies: usize,
}

impl<'a> Tree<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Place), Problem> {
        match self.events.next_event() {
            Some(Ok((event, span))) => {
                let place = self.place(&span);
                Ok((event, place))
            }
            Some(Err(error)) => Err(self.scan(&error)),
            None => Ok((Event::StreamEnd, Place::new(self.file, self.len, self.len))),
        }
    }

    fn place(&self, span: &Span) -> Place {
        let byte = |offset: Option<usize>| offset.unwrap_or(0).min(self.len);
        let (start, end) = (byte(span.start.byte_offset()), byte(span.end.byte_offset()));
        Place::new(self.file, start, end.max(start))
    }

    fn scan(&self, error: &ScanError) -> Problem {
        let at = error.marker().byte_offset().unwrap_or(self.len).min(self.len);
        let text = error.to_string();
        // The parser ends its message with the position, which the snippet shows better.
        let text = text.split(" at char ").next().unwrap_or(&text).to_owned();
        let problem = Problem::at(Place::new(self.file, at, at), format!("this is not valid YAML: {text}"));
        if text.contains("ecursion") {
            let bound = format!("values may be nested {DEPTH_MAX} deep");
            return Problem::at(Place::new(self.file, at, at), bound).help("split the runbook up");
        }
        problem.help(scan_help(&text))
    }

    fn document(mut self) -> Result<Node, Problem> {
        let mut root = None;
        for _ in 0..4 * VALUES_MAX {
            let (event, at) = self.next()?;
            match event {
                Event::StreamEnd => {
                    return Ok(root.unwrap_or(Node { at: Place::new(self.file, 0, 0), value: Value::Null }));
                }
                Event::DocumentStart(..) if root.is_some() => {
                    return Err(Problem::at(at, "a second document begins here")
                        .help("a runbook is one document; take the `---` away, or use `include`"));
                }
                Event::Scalar(..)
                | Event::SequenceStart(..)
                | Event::MappingStart(..)
                | Event::Alias(_)
                | Event::UnresolvedAlias(_) => root = Some(self.node(event, at, 1)?),
                // tidy: the parser's enum is open; what is no node needs nothing here.
                _ => {}
            }
        }
        Err(Problem::at(Place::new(self.file, 0, 0), "the file holds too many values"))
    }

    fn node(&mut self, event: Event<'a>, at: Place, depth: usize) -> Result<Node, Problem> {
        self.values += 1;
        if depth > DEPTH_MAX {
            return Err(Problem::at(at, format!("values may be nested {DEPTH_MAX} deep"))
                .help("split the runbook up"));
        }
        if self.values > VALUES_MAX {
            return Err(Problem::at(at, format!("a runbook may hold {VALUES_MAX} values"))
                .help("split the runbook up"));
        }
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (Node { at, value: scalar(text, style, tag.as_deref(), at)? }, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                no_tag(tag.as_deref(), at)?;
                (self.list(at, depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                no_tag(tag.as_deref(), at)?;
                (self.map(at, depth)?, anchor)
            }
            Event::Alias(id) => return self.alias(id, at, depth),
            Event::UnresolvedAlias(name) => {
                return Err(Problem::at(at, format!("no anchor `&{name}` stands before this alias")));
            }
            // tidy: the parser's enum is open; these are the nodes.
            _ => return Err(Problem::at(at, "a value is expected here")),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, at: Place, depth: usize) -> Result<Node, Problem> {
        let Some(node) = self.anchors.get(&id) else {
            return Err(Problem::at(at, "this alias stands inside of the value it names"));
        };
        let (size, deep) = node.size();
        self.copies = self.copies.saturating_add(size);
        if self.copies > COPIES_MAX {
            return Err(Problem::at(at, format!("aliases may copy {COPIES_MAX} values all together"))
                .help("write the values out, or use `defaults` or `call`"));
        }
        if depth + deep - 1 > DEPTH_MAX {
            return Err(Problem::at(at, format!("values may be nested {DEPTH_MAX} deep")));
        }
        // Messages about a copy point to where it is used; what is inside of it points to where it is written.
        Ok(Node { at, value: node.value.clone() })
    }

    fn list(&mut self, start: Place, depth: usize) -> Result<Node, Problem> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, end) => {
                    return Ok(Node { at: start.to(end), value: Value::List(items) });
                }
                (event, at) => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, start: Place, depth: usize) -> Result<Node, Problem> {
        let mut entries: Vec<(Key, Node)> = Vec::new();
        let mut seen = BTreeSet::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(Node { at: start.to(at), value: Value::Map(entries) });
            }
            let key = self.key(event, at)?;
            if !seen.insert(key.text.clone()) {
                return Err(Problem::at(key.at, format!("the key `{}` stands here a second time", key.text))
                    .help("a map has each key once; take one of the two away"));
            }
            let (event, at) = self.next()?;
            entries.push((key, self.node(event, at, depth + 1)?));
        }
    }

    fn key(&mut self, event: Event<'a>, at: Place) -> Result<Key, Problem> {
        match event {
            Event::Scalar(text, style, 0, None) => {
                if text == "<<" && style == ScalarStyle::Plain {
                    return Err(Problem::at(at, "merge keys are not part of YAML 1.2")
                        .help("use `defaults` for what all steps share, or a whole value as an alias"));
                }
                Ok(Key { text: text.into_owned(), at })
            }
            Event::Scalar(..) => Err(Problem::at(at, "a key has neither an anchor nor a tag")),
            // tidy: the parser's enum is open; only scalars are keys.
            _ => Err(Problem::at(at, "a key must be plain text")
                .help("a value that begins with `{{` or `*` needs quotes")),
        }
    }
}

fn scan_help(text: &str) -> &'static str {
    if text.contains("tab") {
        "indent with spaces; YAML does not take tabs"
    } else if text.contains("mapping values are not allowed") {
        "a text with `: ` in it needs quotes"
    } else {
        "check the indentation and the quotes around this place"
    }
}

fn no_tag(tag: Option<&Tag>, at: Place) -> Result<(), Problem> {
    match tag {
        Some(tag) => Err(Problem::at(at, format!("the tag `{}` is not known", tag.original()))
            .help("runbooks use no tags; take it away")),
        None => Ok(()),
    }
}

/// What a scalar is. A tag `!!str` is the one that is taken, as it is another way to quote.
fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>, at: Place) -> Result<Value, Problem> {
    let quoted = style != ScalarStyle::Plain;
    match tag {
        Some(tag) if tag.core_suffix() == Some("str") => return Ok(Value::Text(text.into_owned())),
        tag => no_tag(tag, at)?,
    }
    if quoted {
        return Ok(Value::Text(text.into_owned()));
    }
    Ok(match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        plain => match number(plain) {
            Some(number) => Value::Number(number, plain.to_owned()),
            None => Value::Text(text.into_owned()),
        },
    })
}

/// A number by the core schema: decimal, `0o17`, `0xff`, or with a point or an exponent. What is not finite, or has more
/// digits than fit, stays text.
fn number(text: &str) -> Option<Number> {
    if let Some(hex) = text.strip_prefix("0x") {
        return digits(hex, 16);
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return digits(octal, 8);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let fits = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') || !unsigned.chars().all(fits) {
        return None;
    }
    if unsigned.chars().all(|c| c.is_ascii_digit()) {
        let text = text.strip_prefix('+').unwrap_or(text);
        let signed = text.parse::<i64>().ok().map(Number::from);
        return signed.or_else(|| text.parse::<u64>().ok().map(Number::from));
    }
    text.parse::<f64>().ok().filter(|n| n.is_finite()).and_then(Number::from_f64)
}

fn digits(text: &str, radix: u32) -> Option<Number> {
    text.chars().all(|c| c.is_digit(radix)).then(|| u64::from_str_radix(text, radix).ok())?.map(Number::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> serde_json::Value {
        parse(0, text).unwrap().json()
    }

    fn refused(text: &str) -> String {
        parse(0, text).unwrap_err().message
    }

    #[test]
    fn plain_scalars_are_what_yaml_1_2_says() {
        let text = "[yes, no, on, True, true, false, null, ~, 1, -7, 0x1f, 0o17, 1.5, 1e3, .5, 1.2.3, 0123, 12:30, '1']";
        let expected = json!([
            "yes", "no", "on", "True", true, false, null, null, 1, -7, 31, 15, 1.5, 1000.0, 0.5, "1.2.3",
            123, "12:30", "1"
        ]);
        assert_eq!(value(text), expected);
        assert_eq!(value("18446744073709551615"), json!(u64::MAX));
        assert_eq!(value("99999999999999999999"), json!("99999999999999999999"), "too large to be exact");
        assert_eq!(value("[.inf, .nan]"), json!([".inf", ".nan"]));
    }

    #[test]
    fn places_are_bytes_of_the_file() {
        let node = parse(3, "ä: {b: 'cd'}\n").unwrap();
        let b = node.get("ä").and_then(|node| node.get("b")).unwrap();
        assert_eq!((b.at.file, b.at.start, b.at.end), (3, 8, 12));
    }

    #[test]
    fn what_is_not_one_plain_document_is_refused() {
        assert!(refused("a: 1\na: 2\n").contains("a second time"));
        assert!(refused("a: 1\n---\nb: 2\n").contains("second document"));
        assert!(refused("a: !!python/object x\n").contains("tag"));
        assert!(refused("a: &x {b: 1}\nc: {<<: *x}\n").contains("merge"));
        assert!(refused("a: *b\n").contains("not valid YAML") || refused("a: *b\n").contains("anchor"));
        assert!(refused("a: \0\n").contains("NUL"));
        assert!(refused("? {a: b}\n: c\n").contains("key"));
        assert!(refused("%YAML 1.2\n---\na: 1\n").contains("not valid YAML"));
        assert!(refused("a: &x [*x]\n").contains("inside"));
    }

    #[test]
    fn depth_is_bounded_also_through_aliases() {
        let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(0, &deep(DEPTH_MAX - 1)).is_ok());
        assert!(refused(&deep(DEPTH_MAX)).contains("nested 32 deep"));
        assert!(refused(&deep(100_000)).contains("nested 32 deep"));
        let block: String = (0..100).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        assert!(refused(&block).contains("nested 32 deep"));
        let through = format!("a: &a {}\nb: {}", deep(20), deep(20).replace('1', "*a"));
        assert!(refused(&through).contains("nested 32 deep"));
    }

    #[test]
    fn a_few_lines_cannot_grow_into_millions() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..20 {
            let copies = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb.push_str(&format!("a{n}: &a{n} [{copies}]\n"));
        }
        assert!(refused(&bomb).contains("aliases may copy"));
    }
}
