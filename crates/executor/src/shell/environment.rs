//! The environment of a shell step: an allow-list. What nobody named is not there.
//!
//! From the parent come `PATH`, `HOME`, `LANG` and `TZ`; from Windlass the `WL_*` variables, which `variables` lists; from
//! the runbook what `env:` adds. The parent's other variables, above all `WINDLASS_*` with its tokens, cannot come in.

use super::variables::Variable;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use windlass_core::canonical;
use windlass_core::id::AttemptId;

/// What is taken from the parent.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Where programs are looked for when the parent does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a variable cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a name for a variable.
    #[error(
        "`{0}` cannot be the name of an environment variable: use letters, digits and `_`, and no digit first"
    )]
    Name(String),
    /// A name that is not the runbook's to give.
    #[error(
        "`{0}` cannot be set by a runbook: names that begin with `WL_` or `WINDLASS_` belong to Windlass"
    )]
    Reserved(String),
    /// A value that no environment can hold.
    #[error("the value of `{0}` holds a NUL byte, which no environment variable can; pass it as a file")]
    Value(String),
    /// Two pipeline variables that become the same name.
    #[error("two variables of the pipeline would both be `{0}`; rename one of them")]
    Ambiguous(String),
}

/// The variables of one attempt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Environment(BTreeMap<String, String>);

impl fmt::Debug for Environment {
    /// Values can be secrets, so only the names are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// What the command of a step is told.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Its attempt.
    pub attempt: &'a AttemptId,
    /// What identifies its effect.
    pub key: &'a str,
    /// The variables that it is given.
    pub vars: &'a Value,
    /// How the attempt itself reaches the API; absent for a command that only reads what became of it.
    pub reach: Option<Reach<'a>>,
}

/// How an attempt reaches the API.
#[derive(Clone, Copy, Debug)]
pub struct Reach<'a> {
    /// Which try it is, from 1.
    pub tries: u32,
    /// Where the API is.
    pub server: &'a str,
    /// The token of the attempt.
    pub token: &'a str,
    /// The trace that it belongs to.
    pub traceparent: &'a str,
}

impl Environment {
    /// What is taken from the environment of this process.
    #[must_use]
    pub fn inherited() -> Environment {
        Environment::inherited_from(|name| std::env::var(name).ok())
    }

    /// What is taken from another parent.
    #[must_use]
    pub fn inherited_from(parent: impl Fn(&str) -> Option<String>) -> Environment {
        let mut map: BTreeMap<String, String> =
            INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), parent(name)?))).collect();
        map.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        Environment(map)
    }

    /// What the command of a step is given, but for what its `env:` says.
    ///
    /// # Errors
    /// A variable of the pipeline whose name or value no environment can hold.
    pub fn of_step(told: &Told<'_>) -> Result<Environment, Error> {
        let mut env = Environment::inherited();
        let AttemptId { run, step, epoch } = told.attempt;
        env.set_own(Variable::RunId, &run.to_string())?;
        env.set_own(Variable::StepId, step.as_str())?;
        env.set_own(Variable::Epoch, &epoch.to_string())?;
        env.set_own(Variable::IdempotencyKey, told.key)?;
        if let Some(Reach { tries, server, token, traceparent }) = &told.reach {
            env.set_own(Variable::Attempt, &tries.to_string())?;
            env.set_own(Variable::Server, server)?;
            env.set_own(Variable::Token, token)?;
            // What the step calls joins its trace.
            env.add("TRACEPARENT", traceparent)?;
        }
        for (name, value) in told.vars.as_object().into_iter().flatten() {
            env.set_var(name, value)?;
        }
        Ok(env)
    }

    /// What the commands of a guard are given: variables. One that no environment can hold is left out; the step itself
    /// says so.
    #[must_use]
    pub fn of_guard(vars: &Value) -> Environment {
        let mut env = Environment::inherited();
        for (name, value) in vars.as_object().into_iter().flatten() {
            let _ = env.set_var(name, value);
        }
        env
    }

    /// Sets a variable of Windlass's own.
    ///
    /// # Errors
    /// A value with a NUL byte.
    pub fn set_own(&mut self, variable: Variable, value: &str) -> Result<(), Error> {
        self.put(variable.name().to_owned(), value)
    }

    /// Sets `WL_VAR_<NAME>` for a variable of the pipeline: text as it is, everything else as JSON with the keys of maps in
    /// their order by bytes, as expressions show them.
    ///
    /// # Errors
    /// A name that no variable can have, a value with a NUL byte, or a name that is taken.
    pub fn set_var(&mut self, name: &str, value: &Value) -> Result<(), Error> {
        let upper: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .collect();
        let name = format!("WL_VAR_{upper}");
        if self.0.contains_key(&name) {
            return Err(Error::Ambiguous(name));
        }
        match value {
            Value::String(text) => self.put(name, text),
            other => self.put(name, &String::from_utf8_lossy(&canonical::bytes(other))),
        }
    }

    /// Adds what `env:` says. It may replace `PATH` and its like. No runbook that is loaded has a variable there; a step
    /// that takes another run's one back has that run's, in place of its own.
    ///
    /// # Errors
    /// A reserved name, a name that is none, or a value with a NUL byte.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let reserved = name.starts_with("WL_") || name.starts_with("WINDLASS_");
        if reserved && !name.starts_with("WL_VAR_") {
            return Err(Error::Reserved(name.to_owned()));
        }
        self.put(name.to_owned(), value)
    }

    /// The value of a variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All variables, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn put(&mut self, name: String, value: &str) -> Result<(), Error> {
        let well_formed = !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !well_formed {
            return Err(Error::Name(name));
        }
        if value.contains('\0') {
            return Err(Error::Value(name));
        }
        self.0.insert(name, value.to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    fn parent(name: &str) -> Option<String> {
        match name {
            "HOME" => Some("/home/me".to_owned()),
            "SECRET" | "WINDLASS_TOKEN" => Some("1".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn only_what_is_named_comes_in() {
        let env = Environment::inherited_from(parent);
        assert_eq!(env.iter().collect::<Vec<_>>(), [("HOME", "/home/me"), ("PATH", PATH)]);
    }

    #[test]
    fn names_and_values_are_checked() {
        let mut env = Environment::inherited_from(parent);
        env.add("PATH", "/opt/bin").unwrap();
        assert_eq!(env.get("PATH"), Some("/opt/bin"));
        for name in ["WINDLASS_TOKEN", "WL_RUN_ID"] {
            assert_eq!(env.add(name, "x"), Err(Error::Reserved(name.to_owned())));
        }
        for name in ["", "1X", "A=B", "A B", "A\0", "Ä"] {
            assert_eq!(env.add(name, "x"), Err(Error::Name(name.to_owned())), "{name:?}");
        }
        assert_eq!(env.add("X", "a\0b"), Err(Error::Value("X".to_owned())));
    }

    #[test]
    fn variables_are_upper_case_and_json_unless_text() {
        let mut env = Environment::inherited_from(parent);
        env.set_own(Variable::RunId, "run-1").unwrap();
        env.set_var("host-name", &json!("a b")).unwrap();
        env.set_var("list", &json!(["a", 1])).unwrap();
        assert_eq!(env.get("WL_RUN_ID"), Some("run-1"));
        assert_eq!(env.get("WL_VAR_HOST_NAME"), Some("a b"));
        assert_eq!(env.get("WL_VAR_LIST"), Some(r#"["a",1]"#));
        env.set_var("map", &json!({ "b": [{ "z": 1, "y": "2" }], "a": 1.5 })).unwrap();
        assert_eq!(env.get("WL_VAR_MAP"), Some(r#"{"a":1.5,"b":[{"y":"2","z":1}]}"#));
        assert_eq!(env.set_var("host_name", &json!(1)), Err(Error::Ambiguous("WL_VAR_HOST_NAME".to_owned())));
    }

    #[test]
    fn a_read_is_told_less_than_the_attempt_itself() {
        let attempt = AttemptId::new(windlass_core::id::RunId(7), &windlass_core::id::Name::clean("s"), 3);
        let (vars, key) = (json!({ "a": 1 }), "k");
        let reach = Reach { tries: 2, server: "unix:/x", token: "wla_x", traceparent: "00-1-1-01" };
        let names = |reach| {
            let env = Environment::of_step(&Told { attempt: &attempt, key, vars: &vars, reach }).unwrap();
            let own = env.iter().filter(|(name, _)| name.starts_with("WL_") || *name == "TRACEPARENT");
            own.map(|(name, _)| name.to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(None), "WL_EPOCH WL_IDEMPOTENCY_KEY WL_RUN_ID WL_STEP_ID WL_VAR_A");
        let all = "TRACEPARENT WL_ATTEMPT WL_EPOCH WL_IDEMPOTENCY_KEY WL_RUN_ID WL_SERVER WL_STEP_ID WL_TOKEN WL_VAR_A";
        assert_eq!(names(Some(reach)), all);
    }

    #[test]
    fn values_are_not_shown_by_accident() {
        let mut env = Environment::inherited_from(parent);
        env.add("PASSWORD", "hunter22").unwrap();
        assert_eq!(format!("{env:?}"), r#"{"HOME", "PASSWORD", "PATH"}"#);
    }
}
