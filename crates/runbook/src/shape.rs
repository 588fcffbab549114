//! Shapes: what a value must look like, and the check of a file against them.
//!
//! This is the first of two passes. It looks at every value and collects what does not fit; the second pass
//! builds the definition and may take for granted what was checked here.

use super::problem::{Notes, Problem, did_you_mean};
use super::span;
use super::tables;
use super::tools::{self, Tools};
use super::yaml::{self, Node};
use windlass_core::id;
use windlass_core::time::Span;

/// What a value must look like.
#[derive(Clone, Copy, Debug)]
pub enum Shape<'t> {
    /// Text as it is. Expressions are refused.
    Text,
    /// A command. Expressions are refused: values reach a shell only through the environment.
    Command,
    /// The name of something.
    Name,
    Bool,
    /// Only false.
    Never,
    /// A whole number between the two.
    Int(u64, u64),
    /// An amount of dollars.
    Money,
    /// A duration that is longer than nothing.
    Duration,
    /// A duration.
    DurationOrZero,
    /// A bare expression that is true or false.
    Condition,
    /// Text with expressions in it.
    Template,
    /// Anything, with expressions in its texts.
    Value,
    /// The value of an environment variable: text with expressions, a secret, a number or a boolean.
    Env,
    /// One of these words.
    Words(&'t [&'t str]),
    /// The type of a value.
    Type,
    List(&'t Shape<'t>),
    /// A map from names.
    Map(Keys, &'t Shape<'t>),
    /// A map with known keys.
    Table(&'t Table<'t>),
    /// One of several, told apart by what kind of value it is; and what is expected, for messages.
    OneOf(&'t [Shape<'t>], &'t str),
}

/// What the keys of a map are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Names: letters, digits, `_`, `-` and `.`.
    Name,
    /// Names of variables: letters, digits and `_`, so that they can be written in expressions and environments.
    Var,
    /// Names of environment variables.
    Env,
    Any,
}

/// A map with known keys.
#[derive(Debug)]
pub struct Table<'t> {
    /// What it is, for messages.
    pub name: &'t str,
    pub keys: &'t [Key<'t>],
    /// Keys of which exactly one must be there; none where it is empty.
    pub one_of: &'t [&'t str],
}

/// A key of a table.
#[derive(Clone, Copy, Debug)]
pub struct Key<'t> {
    pub name: &'t str,
    /// What it holds.
    pub shape: Shape<'t>,
    /// What it means.
    pub doc: &'t str,
    /// Whether it must be there.
    pub required: bool,
    /// Keys of which one must be there too.
    pub needs: &'t [&'t str],
}

pub const fn key<'t>(name: &'t str, shape: Shape<'t>, doc: &'t str) -> Key<'t> {
    Key { name, shape, doc, required: false, needs: &[] }
}

impl<'t> Key<'t> {
    pub const fn required(mut self) -> Key<'t> {
        self.required = true;
        self
    }

    pub const fn needs(mut self, needs: &'t [&'t str]) -> Key<'t> {
        self.needs = needs;
        self
    }
}

impl<'t> Table<'t> {
    /// Whether its keys include the names of tools.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        self.one_of == tables::KINDS
    }

    /// What a key of it holds, where these tools are known.
    #[must_use]
    pub fn shape_of(&self, name: &str, tools: Tools<'t>) -> Option<Shape<'t>> {
        let own = self.keys.iter().find(|key| key.name == name).map(|key| key.shape);
        own.or_else(|| self.has_tools().then(|| tools.find(name))?.map(|tool| Shape::Table(&tool.fields)))
    }

    /// Every key it may have.
    fn names(&self) -> impl Iterator<Item = &'t str> + Clone {
        let tools = tools::TOOLS.iter().filter(|_| self.has_tools()).map(|tool| tool.name);
        self.keys.iter().map(|key| key.name).chain(tools)
    }

    /// Which of the keys, of which there must be exactly one, are there.
    pub(super) fn kinds<'a>(&self, node: &'a Node, tools: Tools<'_>) -> Vec<&'a yaml::Key> {
        let is_kind = |key: &str| self.one_of.contains(&key) || self.has_tools() && tools.find(key).is_some();
        node.entries().iter().map(|(key, _)| key).filter(|key| is_kind(&key.text)).collect()
    }
}

impl Shape<'_> {
    /// What is expected, for messages.
    fn expected(&self) -> String {
        match self {
            Shape::Text | Shape::Template => "text".to_owned(),
            Shape::Command => "a command".to_owned(),
            Shape::Name => "a name".to_owned(),
            Shape::Bool => "`true` or `false`".to_owned(),
            Shape::Never => "`false`".to_owned(),
            Shape::Int(min, max) => format!("a whole number from {min} to {max}"),
            Shape::Money => "an amount of dollars".to_owned(),
            Shape::Duration | Shape::DurationOrZero => "a duration such as `30s`".to_owned(),
            Shape::Condition => "a condition such as `vars.env == \"prod\"`".to_owned(),
            Shape::Value => "a value".to_owned(),
            Shape::Env => "text, a number or a boolean".to_owned(),
            Shape::Words(words) => format!("one of {}", words.join(", ")),
            Shape::Type => format!("one of {}", types().join(", ")),
            Shape::List(_) => "a list".to_owned(),
            Shape::Map(..) | Shape::Table(_) => "a map".to_owned(),
            Shape::OneOf(_, expected) => (*expected).to_owned(),
        }
    }

    /// Whether it is a duration, or may be one.
    fn is_duration(&self) -> bool {
        match self {
            Shape::Duration | Shape::DurationOrZero => true,
            Shape::OneOf(shapes, _) => shapes.iter().any(Shape::is_duration),
            Shape::Text
            | Shape::Command
            | Shape::Name
            | Shape::Bool
            | Shape::Never
            | Shape::Int(..)
            | Shape::Money
            | Shape::Condition
            | Shape::Template
            | Shape::Value
            | Shape::Env
            | Shape::Words(_)
            | Shape::Type
            | Shape::List(_)
            | Shape::Map(..)
            | Shape::Table(_) => false,
        }
    }

    /// Whether a value is of the right kind, so that it is worth looking into.
    fn takes(&self, node: &Node) -> bool {
        use yaml::Value as V;
        match (self, &node.value) {
            (Shape::Value, _) => true,
            (Shape::Text | Shape::Command | Shape::Name | Shape::Template, V::Text(_)) => true,
            (Shape::Condition, V::Text(_) | V::Bool(_)) => true,
            (Shape::Words(_) | Shape::Type | Shape::Duration | Shape::DurationOrZero, V::Text(_)) => true,
            (Shape::Bool, V::Bool(_)) | (Shape::Never, V::Bool(false)) => true,
            (Shape::Int(..) | Shape::Money, V::Number(..)) => true,
            (Shape::Env, V::Text(_) | V::Number(..) | V::Bool(_)) => true,
            (Shape::List(_), V::List(_)) => true,
            (Shape::Map(..) | Shape::Table(_), V::Map(_)) => true,
            // An empty table is often written as nothing: `queues: { bugs: }`.
            (Shape::Table(table), V::Null) => {
                table.one_of.is_empty() && table.keys.iter().all(|key| !key.required)
            }
            (Shape::OneOf(shapes, _), _) => shapes.iter().any(|shape| shape.takes(node)),
            (
                Shape::Text
                | Shape::Command
                | Shape::Name
                | Shape::Bool
                | Shape::Never
                | Shape::Int(..)
                | Shape::Money
                | Shape::Duration
                | Shape::DurationOrZero
                | Shape::Condition
                | Shape::Template
                | Shape::Env
                | Shape::Words(_)
                | Shape::Type
                | Shape::List(_)
                | Shape::Map(..),
                _,
            ) => false,
            (Shape::Table(_), _) => false,
        }
    }
}

/// The words for types of values.
pub(super) fn types() -> Vec<&'static str> {
    windlass_core::runbook::ValueType::ALL.iter().map(|kind| kind.as_str()).collect()
}

/// Checks a value, and everything in it, against a shape. `what` names it in messages: a key, usually.
pub fn check<'t>(node: &Node, shape: &Shape<'t>, what: &str, tools: Tools<'t>, notes: &mut Notes) {
    if !shape.takes(node) {
        return notes.add(wrong_kind(node, shape, what));
    }
    let mut wrong = |message: String, help: Option<String>| {
        let problem = Problem::at(node.at, message).label(format!("expected {}", shape.expected()));
        notes.add(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
    };
    let text = node.text().unwrap_or_default();
    match shape {
        Shape::Text if text.contains("${{") => {
            wrong(
                format!("an expression cannot stand in `{what}`"),
                Some("write the text itself".to_owned()),
            );
        }
        Shape::Name => {
            if let Err(message) = check_name(text) {
                wrong(format!("`{what}` is not a name: {message}"), None);
            }
        }
        Shape::Words(words) if !words.contains(&text) => {
            let near = did_you_mean(text, words.iter().copied());
            wrong(
                format!("`{what}` is `{}`", short(text)),
                near.map(|near| format!("did you mean `{near}`?")),
            );
        }
        Shape::Type if windlass_core::runbook::ValueType::parse(text).is_none() => {
            let near = did_you_mean(text, types());
            wrong(
                format!("there is no type `{}`", short(text)),
                near.map(|near| format!("did you mean `{near}`?")),
            );
        }
        Shape::Duration | Shape::DurationOrZero => match span::parse(text) {
            Err(help) => wrong(format!("`{what}` is not a duration"), Some(help)),
            Ok(Span::ZERO) if matches!(shape, Shape::Duration) => {
                wrong(format!("`{what}` must be longer than nothing"), None);
            }
            Ok(_) => {}
        },
        Shape::Int(min, max) if !number(node).is_some_and(|n| (*min..=*max).contains(&n)) => {
            wrong(format!("`{what}` is out of range"), None);
        }
        Shape::Money if money(node).is_none() => {
            wrong(
                format!("`{what}` is not an amount"),
                Some("write dollars, such as `10` or `2.50`".to_owned()),
            );
        }
        Shape::Text
        | Shape::Command
        | Shape::Bool
        | Shape::Never
        | Shape::Int(..)
        | Shape::Money
        | Shape::Condition
        | Shape::Template
        | Shape::Value
        | Shape::Env
        | Shape::Words(_)
        | Shape::Type => {}
        Shape::List(of) => node.items().iter().for_each(|item| check(item, of, what, tools, notes)),
        Shape::Map(keys, of) => {
            for (key, value) in node.entries() {
                check_key(key, *keys, notes);
                check(value, of, &key.text, tools, notes);
            }
        }
        Shape::Table(table) => check_table(node, table, tools, notes),
        Shape::OneOf(shapes, _) => match shapes.iter().find(|shape| shape.takes(node)) {
            // A word that is none of those may have been meant for one of the other shapes.
            Some(Shape::Words(words)) if !words.contains(&text) => {
                let problem = wrong_kind(node, shape, what);
                let near =
                    did_you_mean(text, words.iter().copied()).map(|near| format!("did you mean `{near}`?"));
                notes.add(Problem { help: near.or(problem.help.clone()), ..problem });
            }
            Some(shape) => check(node, shape, what, tools, notes),
            None => {}
        },
    }
}

/// A number as it is, where it is whole.
pub fn number(node: &Node) -> Option<u64> {
    match &node.value {
        yaml::Value::Number(number, _) => number.as_u64(),
        yaml::Value::Null
        | yaml::Value::Bool(_)
        | yaml::Value::Text(_)
        | yaml::Value::List(_)
        | yaml::Value::Map(_) => None,
    }
}

/// An amount in millionths of a dollar.
pub fn money(node: &Node) -> Option<u64> {
    let yaml::Value::Number(number, _) = &node.value else { return None };
    let dollars = number.as_f64().filter(|dollars| (0.0..=1e9).contains(dollars))?;
    // In range, so the cast is exact to the millionth.
    Some((dollars * 1e6).round() as u64)
}

pub(super) fn short(text: &str) -> String {
    windlass_core::wire::shorten(text)
}

fn wrong_kind(node: &Node, shape: &Shape<'_>, what: &str) -> Problem {
    let message = format!("`{}` must be {}, not {}", short(what), shape.expected(), node.kind());
    let problem = Problem::at(node.at, message).label(format!("expected {}", shape.expected()));
    let textual = shape.takes(&Node { at: node.at, value: yaml::Value::Text(String::new()) });
    let bool_shape = shape.takes(&Node { at: node.at, value: yaml::Value::Bool(true) });
    let help = match &node.value {
        yaml::Value::Number(_, written) if shape.is_duration() => span::parse(written).err(),
        yaml::Value::Number(_, written) if textual => Some(format!("write it in quotes: '{written}'")),
        yaml::Value::Bool(truth) if textual => Some(format!("write it in quotes: '{truth}'")),
        yaml::Value::Text(text) if bool_shape && ["yes", "on", "True", "y"].contains(&text.as_str()) => {
            Some("write `true`: in YAML 1.2 this is a text".to_owned())
        }
        yaml::Value::Text(text) if bool_shape && ["no", "off", "False", "n"].contains(&text.as_str()) => {
            Some("write `false`: in YAML 1.2 this is a text".to_owned())
        }
        yaml::Value::Text(text) if text.contains("${{") => {
            Some("an expression cannot stand here; write the value itself".to_owned())
        }
        yaml::Value::Map(_) if textual => Some("a text that begins with `{` needs quotes".to_owned()),
        yaml::Value::Null
        | yaml::Value::Bool(_)
        | yaml::Value::Number(..)
        | yaml::Value::Text(_)
        | yaml::Value::List(_)
        | yaml::Value::Map(_) => None,
    };
    match help {
        Some(help) => problem.help(help),
        None => problem,
    }
}

/// Names stand in addresses, messages and other names, so they are plain.
fn check_name(text: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match text.chars().find(|c| !plain(*c)) {
        Some(_) if text.contains("${{") => Err("an expression cannot stand here".to_owned()),
        Some(c) => Err(format!("it holds {c:?}; letters, digits, `_`, `-` and `.` are fine")),
        None if text.len() > 128 => Err("it is longer than 128 letters".to_owned()),
        None => id::Name::new(text).map(drop).map_err(|_| "it is empty".to_owned()),
    }
}

fn check_key(key: &yaml::Key, keys: Keys, notes: &mut Notes) {
    let text = key.text.as_str();
    let identifier = !text.is_empty()
        && text.len() <= 128
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let wrong = match keys {
        Keys::Any => None,
        Keys::Name => check_name(text).err().map(|message| (message, None)),
        Keys::Var | Keys::Env if !identifier => {
            let fixed: String =
                text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            Some(("letters, digits and `_` are fine".to_owned(), Some(format!("write `{}`", short(&fixed)))))
        }
        Keys::Env if text.starts_with("WL_") || text.starts_with("WINDLASS_") => {
            Some(("names that begin with `WL_` or `WINDLASS_` are set by Windlass".to_owned(), None))
        }
        Keys::Var | Keys::Env => None,
    };
    if let Some((message, help)) = wrong {
        let problem =
            Problem::at(key.at, format!("`{}` is not a name that can stand here: {message}", short(text)));
        notes.add(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
    }
}

fn check_table<'t>(node: &Node, table: &Table<'t>, tools: Tools<'t>, notes: &mut Notes) {
    for (key, value) in node.entries() {
        match table.shape_of(&key.text, tools) {
            Some(shape) => check(value, &shape, &key.text, tools, notes),
            None => notes.add_with(|| unknown_key(key, table)),
        }
    }
    let there = |name: &str| node.get(name).is_some();
    let head = node.entries().first().map_or(node.at, |(key, _)| key.at);
    for key in table.keys {
        if key.required && !there(key.name) {
            let message = format!("the {} needs `{}`: {}", table.name, key.name, key.doc);
            notes.add(Problem::at(head, message));
        }
        let missing = !key.needs.is_empty() && !key.needs.iter().any(|name| there(name));
        if let (true, Some((at, _))) = (missing, node.entry(key.name)) {
            let message =
                format!("`{}` goes with `{}`, which is not there", key.name, key.needs.join("` or `"));
            notes.add(Problem::at(at.at, message));
        }
    }
    if !table.one_of.is_empty() {
        check_kinds(node, table, head, tools, notes);
    }
}

fn check_kinds<'t>(
    node: &Node,
    table: &Table<'t>,
    head: super::problem::Place,
    tools: Tools<'t>,
    notes: &mut Notes,
) {
    let kinds = table.kinds(node, tools);
    let names: Vec<String> = kinds.iter().map(|key| format!("`{}`", key.text)).collect();
    let mut known = table.one_of.join(", ");
    if table.has_tools() {
        known.push_str(", or a tool such as `http` or `slack.post`");
    }
    match &kinds[..] {
        [] => {
            // An unknown key was reported already, and is most likely the kind that is missing.
            if node.entries().iter().all(|(key, _)| table.shape_of(&key.text, tools).is_some()) {
                let message = format!("the {} does nothing: exactly one kind is needed", table.name);
                notes.add(Problem::at(head, message).help(format!("kinds: {known}")));
            }
        }
        [_] => {}
        [_, second, ..] => {
            let message = format!("the {} has {} kinds: {}", table.name, kinds.len(), names.join(", "));
            let help = match table.has_tools() {
                true => "exactly one is needed; make them steps of their own",
                false => "exactly one is needed; take the others away",
            };
            notes.add(Problem::at(second.at, message).label("a second kind").help(help));
        }
    }
}

fn unknown_key(key: &yaml::Key, table: &Table<'_>) -> Problem {
    let name = short(&key.text);
    let what = if table.has_tools() && key.text.contains('.') { "tool" } else { "key" };
    let message = match what {
        "tool" => format!("there is no tool `{name}`"),
        _ => format!("the {} has no key `{name}`", table.name),
    };
    let problem = Problem::at(key.at, message).label(format!("not a {what} that is known here"));
    if key.text == "policy" {
        return problem.help("a runbook cannot relax its own governance; policies are kept apart from it");
    }
    if let Some(near) = did_you_mean(&key.text, table.names()) {
        return problem.help(format!("did you mean `{near}`?"));
    }
    let tools: Vec<&str> = tools::TOOLS.iter().map(|tool| tool.name).collect();
    let keys: Vec<&str> = table.keys.iter().map(|key| key.name).collect();
    match what {
        "tool" => problem.help(format!("tools: {}", tools.join(", "))),
        _ if keys.is_empty() => problem,
        _ => problem.help(format!("keys: {}", keys.join(", "))),
    }
}
