//! Expressions: CEL, compiled once, evaluated within bounds, from JSON to JSON.
//!
//! The language is CEL with its standard functions and `toJSON`, `fromJSON`, `format`, `join`, `hash` and `matches`. There
//! is no coercion; what is missing is an error unless `has()` asks for it. An evaluation cannot reach a clock, a
//! file or the network. Maps have one order in every process, that of their keys: where macros visit them, where they
//! become JSON or text, and in the result.
//!
//! | bound | |
//! |---|---|
//! | length of an expression | [`SOURCE_LEN_MAX`] bytes |
//! | depth of its tree | [`DEPTH_MAX`] |
//! | macros (`map`, `filter`, `all`, …) inside of each other | [`MACROS_MAX`] |
//! | size of the values it names, and of its result | [`VALUES_LEN_MAX`] |
//! | elements that macros visit | [`VISITS_MAX`], times the size of the values |
//! | work | what is read, compared, joined, turned into text and searched, and each part of it that a macro visits: [`WORK_MAX`] |
//! | compiled expressions kept | [`CACHE_MAX`] |

mod compile;
mod functions;
mod values;

pub use compile::{Error, Expression, Fields, Reference, compile};

use super::pattern;
use cel::{Context, Env, ExecutionError};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
pub use windlass_core::template::VALUES_LEN_MAX;
use windlass_core::template::{Evaluate, Scope};

/// The most bytes an expression may have.
pub const SOURCE_LEN_MAX: usize = 4 * 1024;
/// How deep the tree of an expression may be.
pub const DEPTH_MAX: usize = 64;
/// How deep macros may stand inside of each other.
pub const MACROS_MAX: usize = 2;
/// How many elements macros may visit, times the size of the values (at least 16 KiB).
pub const VISITS_MAX: usize = 256 * 1024 * 1024;
/// How much work an evaluation may be: one for each byte that is looked at, and for each value about a hundred, which is what it
/// takes in time. So it ends in about ten milliseconds: the loop serves no other caller meanwhile.
pub const WORK_MAX: usize = 8 * 1024 * 1024;
/// The most compiled expressions that are kept.
pub const CACHE_MAX: usize = 1_024;
/// What is said of an expression that is more work than that.
const TOO_MUCH: &str = "it is too much work; let a step do it";
/// The most characters of an evaluator's message: it may quote values.
const MESSAGE_LEN_MAX: usize = 300;

/// Names that mean nothing where there is nothing, so that `has(error.message)` is false rather than an error.
const ABSENT_IS_EMPTY: &[&str] = &["error", "event", "steps", "vars"];

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib().with_optional_support(false)));

/// Evaluates CEL expressions, and keeps them compiled.
#[derive(Debug, Default)]
pub struct Cel {
    compiled: Mutex<HashMap<String, Arc<Expression>>>,
}

impl Cel {
    /// An evaluator that has compiled nothing yet.
    #[must_use]
    pub fn new() -> Cel {
        Cel::default()
    }

    /// An expression, compiled now or before.
    ///
    /// # Errors
    /// What is wrong with its text.
    pub fn compiled(&self, source: &str) -> Result<Arc<Expression>, Error> {
        // A thread that panicked while holding the lock left a complete cache: entries are inserted whole.
        let kept = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept().get(source) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(compile(source)?);
        let mut kept = kept();
        if kept.len() >= CACHE_MAX {
            kept.clear();
        }
        kept.insert(source.to_owned(), Arc::clone(&new));
        Ok(new)
    }

    /// Whether a condition holds. It must be true or false: there is no coercion.
    ///
    /// # Errors
    /// What is wrong with the expression or the values, or that the result is something else.
    pub fn holds(&self, source: &str, scope: &dyn Scope) -> Result<bool, String> {
        match self.evaluate(source, scope)? {
            Value::Bool(truth) => Ok(truth),
            other => Err(format!("`{}` is {}, not true or false", brief(source), values::kind(&other))),
        }
    }
}

impl Evaluate for Cel {
    fn evaluate(&self, source: &str, scope: &dyn Scope) -> Result<Value, String> {
        let expression = self.compiled(source).map_err(|error| format!("`{}`: {error}", brief(source)))?;
        // The interpreter is not known to panic. Were it to, one expression fails and not the process.
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| run(&expression, scope)));
        match result {
            Ok(result) => result.map_err(|message| format!("`{}`: {message}", brief(source))),
            Err(_) => Err(format!("`{}`: the evaluator failed on it", brief(source))),
        }
    }

    fn matches(&self, pattern: &str, text: &str) -> bool {
        // One that does not compile was refused when its runbook was loaded; here it matches nothing.
        pattern::known(pattern).as_ref().as_ref().is_ok_and(|pattern| pattern.is_match(text))
    }

    fn match_work(&self, pattern: &str, text: &str) -> usize {
        pattern::known(pattern).as_ref().as_ref().map_or(0, |pattern| pattern.work(text))
    }
}

fn run(expression: &Expression, scope: &dyn Scope) -> Result<Value, String> {
    let work = Arc::new(Work::default());
    let result = resolve(expression, scope, &work);
    scope.spent(work.done());
    result
}

fn resolve(expression: &Expression, scope: &dyn Scope, work: &Arc<Work>) -> Result<Value, String> {
    let mut context = Context::with_env(Arc::clone(&ENV));
    let mut size = 0;
    let empty = Value::Object(Map::new());
    for (name, fields) in &expression.names {
        let wanted = match fields {
            Fields::All => None,
            Fields::Some(fields) => Some(fields),
        };
        let absent = || Some(Cow::Borrowed(&empty)).filter(|_| ABSENT_IS_EMPTY.contains(&name.as_str()));
        work.spend(scope.reads(name))?;
        let Some(value) = scope.get(name, wanted)?.or_else(absent) else { continue };
        work.spend(values::work_of(&value, fields))?;
        let value = values::from_json(&value, fields, &mut size)?;
        context.add_variable_from_value(name.as_str(), value);
    }
    functions::add(&mut context, &expression.calls, size, work).map_err(|error| error.to_string())?;
    let result = cel::Value::resolve(&expression.tree, &context).map_err(|error| explain(&error))?;
    work.spend(values::work(&result))?;
    values::to_json(&result)
}

/// The work of one evaluation.
#[derive(Debug, Default)]
pub(crate) struct Work(AtomicUsize);

impl Work {
    /// Takes some of it.
    fn spend(&self, work: usize) -> Result<(), String> {
        let before = self.0.fetch_add(work, Ordering::Relaxed);
        if before.saturating_add(work) <= WORK_MAX { Ok(()) } else { Err(TOO_MUCH.to_owned()) }
    }

    fn done(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The interpreter's message in plain words, where it is about something that users meet.
fn explain(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => {
            format!("there is no `{key}`; `has(…)` asks whether something is there")
        }
        ExecutionError::UndeclaredReference(name) => format!("`{name}` is not known here"),
        // The values themselves stay out of messages where their types say enough.
        ExecutionError::UnsupportedBinaryOperator(operator, a, b) => {
            format!("`{operator}` does not go with {} and {}", a.type_of(), b.type_of())
        }
        ExecutionError::ValuesNotComparable(a, b) => {
            format!("{} and {} cannot be compared", a.type_of(), b.type_of())
        }
        ExecutionError::UnsupportedTargetType { target } => format!("{} does not go here", target.type_of()),
        ExecutionError::NotSupportedAsMethod { method, target } => {
            format!("`{method}` does not go with {}", target.type_of())
        }
        ExecutionError::UnsupportedKeyType(key) | ExecutionError::UnsupportedIndex(key, _) => {
            format!("{} cannot name a part of a map or a list", key.type_of())
        }
        ExecutionError::FunctionError { function, message } => brief(&format!("{function}: {message}")),
        // tidy: the interpreter's errors are many and its enum is open; the rest speak for themselves.
        other => brief(&other.to_string()),
    }
}

/// A text short enough for a message.
pub fn brief(text: &str) -> String {
    let mut short: String = text.chars().take(MESSAGE_LEN_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests;
