//! Templates: values with expressions in them, and the port that evaluates those.
//!
//! What is rendered is recorded as a fact and never rendered again, so the evaluator may change between
//! versions without changing what happened. Secrets render to references: their values never come here.

use crate::id::Name;
use crate::small;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
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

/// Evaluates expressions: total, fuelled, without a clock. The core brings none of its own.
pub trait Evaluate {
    /// The value of `expr`, where `scope` has what its names mean.
    ///
    /// # Errors
    /// What is wrong with the expression or the values, for people.
    fn evaluate(&self, expr: &str, scope: &Map<String, Value>) -> Result<Value, String>;

    /// Whether a text matches a pattern: a regular expression that was checked when the runbook was loaded. Whoever has
    /// no pattern engine matches nothing.
    fn matches(&self, _pattern: &str, _text: &str) -> bool {
        false
    }
}

/// For runbooks without expressions: every expression is an error.
pub struct NoExpressions;

impl Evaluate for NoExpressions {
    fn evaluate(&self, expr: &str, _: &Map<String, Value>) -> Result<Value, String> {
        Err(alloc::format!("no evaluator for `{}`", crate::wire::shorten(expr)))
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
    pub fn fixed(&self, evaluate: &dyn Evaluate, scope: &Map<String, Value>) -> Result<Template, String> {
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
    pub fn render(&self, evaluate: &dyn Evaluate, scope: &Map<String, Value>) -> Result<Value, String> {
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

    /// The value as a name.
    ///
    /// # Errors
    /// A failing expression, or a value that is no name.
    pub fn render_name(&self, evaluate: &dyn Evaluate, scope: &Map<String, Value>) -> Result<Name, String> {
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
