//! Templates: values with expressions in them, and the port that evaluates those.
//!
//! What is rendered is recorded as a fact and never rendered again, so the evaluator may change between
//! versions without changing what happened. Secrets render to references: their values never come here.

use crate::id::Name;
use crate::small;
use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The source text of an expression.
pub type Expr = String;

/// A value with expressions in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Template {
    /// A value as it is.
    Literal(Value),
    /// One whole `${{ }}`: keeps its type.
    Expr(Expr),
    /// A text with expressions in it.
    Text(Vec<Part>),
    /// `${{ secrets.NAME }}`: renders to a reference, resolved by the executor at the last moment.
    Secret(Name),
    /// A list.
    List(Vec<Template>),
    /// A map.
    Map(small::Map<String, Template>),
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// As it is.
    Literal(String),
    /// What an expression gives.
    Expr(Expr),
}

/// What the names in an expression mean. A value is made when an expression asks for it, and only as much of it as it asks
/// for: a run may have thousands of steps, and most expressions name one.
pub trait Scope {
    /// The value of a name, none where it means nothing. Of a map, fields that are not among these may be left out.
    ///
    /// # Errors
    /// The value is larger than an expression may look at.
    fn get(&self, name: &str, fields: Option<&BTreeSet<String>>) -> Result<Option<Cow<'_, Value>>, String>;

    /// How much work it is to find the value of a name, beside what it takes to look at it.
    fn reads(&self, _name: &str) -> usize {
        0
    }

    /// The evaluator says how much work an evaluation was.
    fn spent(&self, _work: usize) {}
}

impl Scope for Map<String, Value> {
    fn get(&self, name: &str, _: Option<&BTreeSet<String>>) -> Result<Option<Cow<'_, Value>>, String> {
        Ok(Map::get(self, name).map(Cow::Borrowed))
    }
}

/// Evaluates expressions: total, fuelled, without a clock. The core brings none of its own.
pub trait Evaluate {
    /// The value of `expr`, where `scope` has what its names mean. It tells the scope how much work it was.
    ///
    /// # Errors
    /// What is wrong with the expression or the values, for people.
    fn evaluate(&self, expr: &str, scope: &dyn Scope) -> Result<Value, String>;

    /// Whether a text matches a pattern: a regular expression that was checked when the runbook was loaded. Whoever has
    /// no pattern engine matches nothing.
    fn matches(&self, _pattern: &str, _text: &str) -> bool {
        false
    }

    /// How much work it is to look for the pattern in the text.
    fn match_work(&self, _pattern: &str, _text: &str) -> usize {
        0
    }
}

/// For runbooks without expressions: every expression is an error.
pub struct NoExpressions;

impl Evaluate for NoExpressions {
    fn evaluate(&self, expr: &str, _: &dyn Scope) -> Result<Value, String> {
        Err(alloc::format!("no evaluator for `{}`", crate::wire::shorten(expr)))
    }
}

/// How large the values that an expression names may be, in bytes of text and sixteen bytes for each value.
pub const VALUES_LEN_MAX: usize = 4 * 1024 * 1024;
/// How much work the expressions of one decision may be together, such as all those of a step that is reached. It is
/// little more than what one expression may be.
pub const WORK_MAX: usize = 10 * 1024 * 1024;
/// The least work that any evaluation counts as.
const WORK_MIN: usize = 1_024;

/// An evaluator that bounds the sum of its evaluations.
pub struct Metered<'a> {
    evaluate: &'a dyn Evaluate,
    left: Cell<usize>,
}

impl<'a> Metered<'a> {
    /// An evaluator for one decision.
    #[must_use]
    pub fn new(evaluate: &'a dyn Evaluate) -> Metered<'a> {
        Metered { evaluate, left: Cell::new(WORK_MAX) }
    }
}

impl Evaluate for Metered<'_> {
    fn evaluate(&self, expr: &str, scope: &dyn Scope) -> Result<Value, String> {
        if self.left.get() == 0 {
            return Err("the expressions here are too much work together; let a step do it".to_string());
        }
        let scope = Meter { scope, left: &self.left };
        scope.spent(WORK_MIN);
        self.evaluate.evaluate(expr, &scope)
    }

    fn matches(&self, pattern: &str, text: &str) -> bool {
        // What is too much matches nothing; callers that ask by themselves have been told so before.
        let left = self.left.get().checked_sub(self.evaluate.match_work(pattern, text));
        self.left.set(left.unwrap_or(0));
        left.is_some() && self.evaluate.matches(pattern, text)
    }

    fn match_work(&self, pattern: &str, text: &str) -> usize {
        self.evaluate.match_work(pattern, text)
    }
}

/// A scope that keeps count.
struct Meter<'a> {
    scope: &'a dyn Scope,
    left: &'a Cell<usize>,
}

impl Scope for Meter<'_> {
    fn get(&self, name: &str, fields: Option<&BTreeSet<String>>) -> Result<Option<Cow<'_, Value>>, String> {
        self.scope.get(name, fields)
    }

    fn reads(&self, name: &str) -> usize {
        self.scope.reads(name)
    }

    fn spent(&self, work: usize) {
        self.left.set(self.left.get().saturating_sub(work));
        self.scope.spent(work);
    }
}

/// How a secret is written where its value must not be.
#[must_use]
pub fn secret_reference(name: &Name) -> Value {
    let mut map = Map::new();
    map.insert("$secret".to_string(), Value::String(name.to_string()));
    Value::Object(map)
}

impl Template {
    /// The same value with every expression evaluated. References to secrets stay what they are.
    ///
    /// # Errors
    /// The evaluator's message.
    pub fn fixed(&self, evaluate: &dyn Evaluate, scope: &dyn Scope) -> Result<Template, String> {
        Ok(match self {
            Template::Literal(_) | Template::Secret(_) => self.clone(),
            Template::Expr(_) | Template::Text(_) => Template::Literal(self.render(evaluate, scope)?),
            Template::List(list) => {
                let fixed: Result<_, String> = list.iter().map(|one| one.fixed(evaluate, scope)).collect();
                Template::List(fixed?)
            }
            Template::Map(map) => {
                let one = |(key, one): (&String, &Template)| Ok((key.clone(), one.fixed(evaluate, scope)?));
                let fixed: Result<_, String> = map.iter().map(one).collect();
                Template::Map(fixed?)
            }
        })
    }

    /// Whether rendering needs no evaluation.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        match self {
            Template::Literal(_) | Template::Secret(_) => true,
            Template::Expr(_) => false,
            Template::Text(parts) => parts.iter().all(|part| matches!(part, Part::Literal(_))),
            Template::List(list) => list.iter().all(Template::is_literal),
            Template::Map(map) => map.values().all(Template::is_literal),
        }
    }

    /// The value, with every expression evaluated.
    ///
    /// # Errors
    /// The first expression that fails.
    pub fn render(&self, evaluate: &dyn Evaluate, scope: &dyn Scope) -> Result<Value, String> {
        match self {
            Template::Literal(value) => Ok(value.clone()),
            Template::Secret(name) => Ok(secret_reference(name)),
            Template::Expr(expr) => evaluate.evaluate(expr, scope),
            Template::Text(parts) => {
                let mut text = String::new();
                for part in parts {
                    match part {
                        Part::Literal(literal) => text.push_str(literal),
                        Part::Expr(expr) => match evaluate.evaluate(expr, scope)? {
                            Value::String(value) => text.push_str(&value),
                            value => text.push_str(&value.to_string()),
                        },
                    }
                }
                Ok(Value::String(text))
            }
            Template::List(list) => list
                .iter()
                .map(|t| t.render(evaluate, scope))
                .collect::<Result<Vec<_>, _>>()
                .map(Value::Array),
            Template::Map(map) => map
                .iter()
                .map(|(key, t)| Ok((key.clone(), t.render(evaluate, scope)?)))
                .collect::<Result<Map<_, _>, String>>()
                .map(Value::Object),
        }
    }

    /// The secrets that it names.
    pub fn secrets(&self, names: &mut BTreeSet<Name>) {
        match self {
            Template::Secret(name) => drop(names.insert(name.clone())),
            Template::List(list) => list.iter().for_each(|template| template.secrets(names)),
            Template::Map(map) => map.iter().for_each(|(_, template)| template.secrets(names)),
            Template::Literal(_) | Template::Expr(_) | Template::Text(_) => {}
        }
    }

    /// The value as a name.
    ///
    /// # Errors
    /// A failing expression, or a value that is no name.
    pub fn render_name(&self, evaluate: &dyn Evaluate, scope: &dyn Scope) -> Result<Name, String> {
        let value = self.render(evaluate, scope)?;
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                return Err("expected text".to_string());
            }
        };
        Name::new(&text).map_err(|error| error.to_string())
    }
}
