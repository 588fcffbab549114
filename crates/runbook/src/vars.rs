//! Variables: what the core leaves to the shell when a run is asked for.
//!
//! The core knows types, enums and defaults; it has no pattern engine. Here patterns are checked, and the text of
//! `--var K=V` becomes a value of the declared type.

use super::problem::did_you_mean;
use serde_json::{Map, Value};
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::runbook::{Pipeline, ValueType, VarDef};

/// The most bytes a pattern may need when compiled.
const PATTERN_SIZE_MAX: usize = 256 * 1024;

/// Why variables do not fit a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The pipeline has no such variable.
    #[error("the pipeline has no variable `{name}`{hint}")]
    Unknown {
        /// What was given.
        name: String,
        /// What may have been meant, as the end of a sentence.
        hint: String,
    },
    /// A variable that must be given was not.
    #[error("the variable `{0}` is required: give it with `--var {0}=…`")]
    Missing(Name),
    /// A value of another type.
    #[error("the variable `{name}` must be of type {kind}, and `{value}` is not")]
    Type {
        /// The variable.
        name: Name,
        /// Its type.
        kind: ValueType,
        /// What was given, shortened.
        value: String,
    },
    /// A value that is none of those it may have.
    #[error("the variable `{name}` may be {allowed}, not `{value}`")]
    Enum {
        /// The variable.
        name: Name,
        /// What it may be.
        allowed: String,
        /// What was given, shortened.
        value: String,
    },
    /// A value that does not match the pattern.
    #[error("the variable `{name}` must match `{pattern}`, and `{value}` does not")]
    Pattern {
        /// The variable.
        name: Name,
        /// Its pattern.
        pattern: String,
        /// What was given, shortened.
        value: String,
    },
    /// Not of the form `K=V`.
    #[error("`{0}` is not of the form NAME=VALUE")]
    Form(String),
    /// The same variable twice.
    #[error("the variable `{0}` is given twice")]
    Twice(String),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        Code::InvalidInput
    }
}

/// Compiles a pattern, with a bound on what it may need. A pattern without `^` and `$` is searched for.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn pattern(text: &str) -> Result<regex::Regex, String> {
    let compiled = regex::RegexBuilder::new(text).size_limit(PATTERN_SIZE_MAX).nest_limit(64).build();
    compiled.map_err(|error| {
        let text = error.to_string();
        text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

fn shown(value: &Value) -> String {
    windlass_core::wire::shorten(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Whether a value fits a variable: its type, its enum, its pattern. There is no coercion.
///
/// # Errors
/// The first thing that does not fit.
pub fn check_var(name: &Name, var: &VarDef, value: &Value) -> Result<(), Error> {
    if let Some(kind) = var.kind.filter(|kind| !kind.fits(value)) {
        return Err(Error::Type { name: name.clone(), kind, value: shown(value) });
    }
    if !var.one_of.is_empty() && !var.one_of.contains(value) {
        let allowed: Vec<String> = var.one_of.iter().take(20).map(shown).collect();
        return Err(Error::Enum { name: name.clone(), allowed: allowed.join(", "), value: shown(value) });
    }
    let Some(text) = &var.pattern else { return Ok(()) };
    // A pattern that does not compile was refused when the runbook was loaded; here it matches nothing.
    let matches = match value {
        Value::String(value) => pattern(text).is_ok_and(|pattern| pattern.is_match(value)),
        Value::Number(value) => pattern(text).is_ok_and(|pattern| pattern.is_match(&value.to_string())),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    };
    if matches {
        Ok(())
    } else {
        Err(Error::Pattern { name: name.clone(), pattern: text.clone(), value: shown(value) })
    }
}

/// The variables of a run: what is given and what is default. Unknown, missing and unfit ones are refused.
///
/// # Errors
/// The first thing that does not fit.
pub fn check_vars(def: &Pipeline, given: &Map<String, Value>) -> Result<Value, Error> {
    for name in given.keys() {
        known(def, name)?;
    }
    let mut vars = Map::new();
    for (name, var) in &def.vars {
        match given.get(name.as_str()).or(var.default.as_ref()) {
            Some(value) => {
                check_var(name, var, value)?;
                vars.insert(name.to_string(), value.clone());
            }
            None if var.required => return Err(Error::Missing(name.clone())),
            None => {}
        }
    }
    Ok(Value::Object(vars))
}

fn known<'d>(def: &'d Pipeline, name: &str) -> Result<(&'d Name, &'d VarDef), Error> {
    def.vars.get_key_value(name).ok_or_else(|| {
        let near = did_you_mean(name, def.vars.keys().map(Name::as_str));
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        Error::Unknown { name: windlass_core::wire::shorten(name), hint }
    })
}

/// Reads `NAME=VALUE` texts into values of the declared types. A variable without a type takes the text as it is.
///
/// # Errors
/// A text of another form, an unknown variable, or a value that its type does not have.
pub fn parse_vars<T: AsRef<str>>(def: &Pipeline, texts: &[T]) -> Result<Map<String, Value>, Error> {
    let mut vars = Map::new();
    for text in texts.iter().map(AsRef::as_ref) {
        let (key, value) =
            text.split_once('=').ok_or_else(|| Error::Form(windlass_core::wire::shorten(text)))?;
        let (name, var) = known(def, key)?;
        if vars.insert(key.to_owned(), parse_var(name, var, value)?).is_some() {
            return Err(Error::Twice(key.to_owned()));
        }
    }
    Ok(vars)
}

/// Reads the text of one variable.
fn parse_var(name: &Name, var: &VarDef, text: &str) -> Result<Value, Error> {
    let kind = match var.kind {
        // Without a type the enum says what is meant: `--var n=3` is the number where 3 is one of its values.
        None | Some(ValueType::Any) => {
            let json = serde_json::from_str::<Value>(text).ok();
            let listed = json.filter(|value| !value.is_string() && var.one_of.contains(value));
            return Ok(listed.unwrap_or_else(|| text.into()));
        }
        Some(ValueType::String) => return Ok(text.into()),
        Some(kind) => kind,
    };
    let value = serde_json::from_str::<Value>(text).ok().filter(|value| kind.fits(value));
    value.ok_or_else(|| Error::Type { name: name.clone(), kind, value: windlass_core::wire::shorten(text) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn def(vars: &Value) -> Pipeline {
        serde_json::from_value(json!({ "vars": vars, "nodes": [], "steps": [] })).unwrap()
    }

    fn map(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn texts_become_values_of_the_declared_type() {
        let def = def(&json!({
            "s": { "type": "string" }, "n": { "type": "number" }, "i": { "type": "integer" }, "b": { "type": "bool" },
            "l": { "type": "list" }, "m": { "type": "map" }, "any": {}, "e": { "enum": [1, "2"] },
        }));
        let given = ["s=1", "n=1.5", "i=-3", "b=true", "l=[1,2]", "m={\"a\":1}", "any=a=b"];
        let expected =
            json!({ "s": "1", "n": 1.5, "i": -3, "b": true, "l": [1, 2], "m": { "a": 1 }, "any": "a=b" });
        assert_eq!(parse_vars(&def, &given), Ok(map(&expected)));
        assert_eq!(parse_vars(&def, &["e=1"]), Ok(map(&json!({ "e": 1 }))));
        assert_eq!(parse_vars(&def, &["e=2"]), Ok(map(&json!({ "e": "2" }))));
        for wrong in ["i=1.5", "i=x", "b=yes", "b=1", "l={}", "m=[]", "n=", "nope=1", "s"] {
            assert!(parse_vars(&def, &[wrong]).is_err(), "{wrong}");
        }
        assert_eq!(parse_vars(&def, &["s=1", "s=2"]), Err(Error::Twice("s".into())));
        assert!(parse_vars(&def, &["ss=1"]).unwrap_err().to_string().contains("did you mean `s`"));
    }

    #[test]
    fn patterns_enums_types_and_defaults_are_checked() {
        let def = def(&json!({
            "host": { "required": true, "pattern": "^[a-z]+$" },
            "env": { "enum": ["dev", "prod"], "default": "dev" },
            "n": { "type": "integer", "pattern": "^[0-9]$" },
        }));
        let check = |given: Value| check_vars(&def, &map(&given));
        assert_eq!(check(json!({ "host": "web" })), Ok(json!({ "host": "web", "env": "dev" })));
        assert_eq!(
            check(json!({ "host": "web", "n": 7 })),
            Ok(json!({ "host": "web", "env": "dev", "n": 7 }))
        );
        assert_eq!(check(json!({})), Err(Error::Missing(Name::clean("host"))));
        for wrong in [
            json!({ "host": "WEB" }),
            json!({ "host": "a\nb" }),
            json!({ "host": ["web"] }),
            json!({ "host": "web", "env": "stage" }),
            json!({ "host": "web", "n": 12 }),
            json!({ "host": "web", "n": "7" }),
            json!({ "host": "web", "x": 1 }),
        ] {
            assert!(check(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_are_bounded() {
        assert!(pattern("(").is_err());
        assert!(pattern("(a{1000}){1000}").is_err());
        assert!(pattern(&"(".repeat(10_000)).is_err());
        assert!(pattern(r"^BUG-\d+$").is_ok());
    }
}
