//! Variables: what the core leaves to the shell when a run is asked for.
//!
//! The core knows types, enums and defaults; it has no pattern engine. Here patterns are checked, and the text of
//! `--var K=V` becomes a value of the declared type.

use super::pattern::{self, SEARCH_WORK_MAX};
use super::problem::did_you_mean;
use serde_json::{Map, Value};
use windlass_core::caps::REQUEST_VARS_LEN_MAX;
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::packed::text_len;
use windlass_core::runbook::{Pipeline, ValueType, VarDef};

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
        name: Name,
        kind: ValueType,
        /// What was given, shortened.
        value: String,
    },
    /// A value that is none of those it may have.
    #[error("the variable `{name}` may be {allowed}, not `{value}`")]
    Enum {
        name: Name,
        /// What it may be.
        allowed: String,
        /// What was given, shortened.
        value: String,
    },
    /// A value that does not match the pattern.
    #[error("the variable `{name}` must match `{pattern}`, and `{value}` does not")]
    Pattern {
        name: Name,
        pattern: String,
        /// What was given, shortened.
        value: String,
    },
    /// The texts are too long for their patterns.
    #[error("the variable `{name}` is too long for its pattern: to search for it is too much work")]
    Search { name: Name },
    /// The runs of one request have too much in their variables.
    #[error(
        "the variables of these runs come to {bytes} bytes together, defaults included, and {REQUEST_VARS_LEN_MAX} is the most \
         for one request: ask for fewer at a time"
    )]
    Together {
        /// How much it is.
        bytes: usize,
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
        match self {
            Error::Together { .. } => Code::CapExceeded,
            Error::Unknown { .. }
            | Error::Missing(_)
            | Error::Type { .. }
            | Error::Enum { .. }
            | Error::Pattern { .. }
            | Error::Search { .. }
            | Error::Form(_)
            | Error::Twice(_) => Code::InvalidInput,
        }
    }
}

fn shown(value: &Value) -> String {
    windlass_core::wire::shorten(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Whether a value fits a variable: its type, its enum, its pattern. There is no coercion.
///
/// # Errors
/// The first thing that does not fit.
pub fn check_var(name: &Name, var: &VarDef, value: &Value) -> Result<(), Error> {
    check_var_within(name, var, value, &mut { SEARCH_WORK_MAX })
}

/// The same, within a budget for what is searched.
fn check_var_within(name: &Name, var: &VarDef, value: &Value, work_left: &mut usize) -> Result<(), Error> {
    if let Some(kind) = var.kind.filter(|kind| !kind.fits(value)) {
        return Err(Error::Type { name: name.clone(), kind, value: shown(value) });
    }
    if !var.one_of.is_empty() && !var.one_of.contains(value) {
        let allowed: Vec<String> = var.one_of.iter().take(20).map(shown).collect();
        return Err(Error::Enum { name: name.clone(), allowed: allowed.join(", "), value: shown(value) });
    }
    let Some(text) = &var.pattern else { return Ok(()) };
    let known = pattern::known(text);
    let matches = match (value, &*known) {
        (Value::String(value), Ok(pattern)) => {
            let left = work_left.checked_sub(pattern.work(value));
            *work_left = left.ok_or_else(|| Error::Search { name: name.clone() })?;
            pattern.is_match(value)
        }
        (Value::Number(value), Ok(pattern)) => pattern.is_match(&value.to_string()),
        // A pattern that does not compile was refused when the runbook was loaded; here it matches nothing.
        (Value::String(_) | Value::Number(_), Err(_)) => false,
        (Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_), _) => false,
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
    fit_vars(def, given)?;
    let value = |(name, var): (&Name, &VarDef)| {
        given.get(name.as_str()).or(var.default.as_ref()).map(|value| (name.to_string(), value.clone()))
    };
    Ok(Value::Object(def.vars.iter().filter_map(value).collect()))
}

/// Whether what is given for a run fits the pipeline. Defaults were looked at when the runbook was loaded.
///
/// # Errors
/// The first thing that does not fit.
pub fn fit_vars(def: &Pipeline, given: &Map<String, Value>) -> Result<(), Error> {
    for name in given.keys() {
        known(def, name)?;
    }
    let mut work_left = SEARCH_WORK_MAX;
    for (name, var) in &def.vars {
        match given.get(name.as_str()) {
            Some(value) => check_var_within(name, var, value, &mut work_left)?,
            None if var.required && var.default.is_none() => return Err(Error::Missing(name.clone())),
            None => {}
        }
    }
    Ok(())
}

/// Whether the runs of one request may have so much in their variables together, defaults included. Nothing is made of it
/// yet.
///
/// # Errors
/// [`Error::Together`].
pub fn admit_vars(def: &Pipeline, runs: &[&Map<String, Value>]) -> Result<(), Error> {
    let default = |var: &VarDef| var.default.as_ref().map_or(0, text_len);
    let defaults: Vec<(&Name, usize)> = def.vars.iter().map(|(name, var)| (name, default(var))).collect();
    let of = |given: &Map<String, Value>| {
        let own: usize = given.values().map(text_len).sum();
        let others = defaults.iter().filter(|(name, _)| !given.contains_key(name.as_str()));
        own + others.map(|(_, len)| len).sum::<usize>()
    };
    let bytes: usize = runs.iter().map(|given| of(given)).sum();
    if bytes <= REQUEST_VARS_LEN_MAX { Ok(()) } else { Err(Error::Together { bytes }) }
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
    fn the_search_for_patterns_is_bounded_for_all_variables_of_a_run() {
        let one = json!({ "pattern": r"^\w{1,5}" });
        let def = def(&json!({ "a": one, "b": one, "c": one, "d": one }));
        let given = |len: usize| json!({ "a": "x".repeat(len), "b": "x".repeat(len), "c": "x", "d": "x" });
        assert!(check_vars(&def, &map(&given(100))).is_ok());
        // Each of them alone is too long, or all together are.
        let largest = SEARCH_WORK_MAX / pattern::known(r"^\w{1,5}").as_ref().as_ref().unwrap().work("x");
        for len in [1 << 20, largest / 2 + 1] {
            let refused = check_vars(&def, &map(&given(len))).unwrap_err();
            assert!(refused.to_string().contains("too much work"), "{refused}");
        }
        assert!(check_vars(&def, &map(&json!({ "a": "x".repeat(largest) }))).is_ok());
    }

    #[test]
    fn what_the_runs_of_a_request_come_to_is_bounded_with_their_defaults() {
        let list: Vec<u32> = vec![1; 120_000];
        let def = def(&json!({ "l": { "type": "list", "default": list }, "n": {} }));
        let (none, own) = (map(&json!({})), map(&json!({ "l": [], "n": 1 })));
        assert_eq!(admit_vars(&def, &vec![&none; 60]), Ok(()));
        let refused = admit_vars(&def, &vec![&none; 300]).unwrap_err();
        assert_eq!((refused.code(), refused), (Code::CapExceeded, Error::Together { bytes: 300 * 240_001 }));
        assert_eq!(
            admit_vars(&def, &vec![&own; 1_000]),
            Ok(()),
            "what is given takes the place of its default"
        );
    }
}
