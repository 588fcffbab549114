//! The secrets of one call: revealed at the last moment, noted with their versions, and kept out of whatever leaves.

use super::Trouble;
use crate::redaction::Redactor;
use crate::secrets::{OfRun, Secrets};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::template::Template;
use windlass_core::turn::command::Refusal;

/// Puts on record that a secret, by name and version, is about to be used. What is not on record is not used.
pub type Witness = Arc<dyn Fn(Name, Name) -> Result<(), Refusal> + Send + Sync>;

/// What one call has seen of secrets.
pub struct Session {
    tenant: Name,
    secrets: Arc<Secrets>,
    witness: Option<Witness>,
    /// What else is masked, and learns of what is used here; absent beside any run.
    run: Option<OfRun>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    redactor: Redactor,
    /// Names and versions, in the order of their use.
    used: Vec<(String, String)>,
    values: Vec<crate::shell::Secret>,
}

impl Session {
    /// A session for a tenant, beside any run.
    #[must_use]
    pub fn new(tenant: Name, secrets: Arc<Secrets>) -> Session {
        Session { tenant, secrets, witness: None, run: None, seen: Mutex::default() }
    }

    /// A session for an attempt, whose use of secrets is on record. What its run used before is masked too.
    #[must_use]
    pub fn witnessed(tenant: Name, secrets: Arc<Secrets>, witness: Witness, run: OfRun) -> Session {
        let seen = Seen { redactor: run.redactor(), ..Seen::default() };
        Session { tenant, secrets, witness: Some(witness), run: Some(run), seen: Mutex::new(seen) }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a secret. From now on it is masked in everything that leaves.
    ///
    /// # Errors
    /// It is not there, or cannot be masked: then it must not be used.
    pub fn reveal(&self, name: &str) -> Result<String, Trouble> {
        let refused = |error: crate::secrets::Error| Trouble {
            code: Code::StepFailed,
            ..Trouble::refused(error.to_string())
        };
        let found = self.secrets.reveal(&self.tenant, name).map_err(refused)?;
        self.note(&found.name, &found.version, &found.value)?;
        Ok(found.value)
    }

    /// Masks a value from now on, and puts on record that it is used.
    fn note(&self, name: &str, version: &str, value: &str) -> Result<(), Trouble> {
        let mut seen = self.seen();
        // One that was changed meanwhile is another secret.
        if seen.values.iter().any(|known| known.name == name && known.value == value) {
            return Ok(());
        }
        let refused = |message: String| Trouble { code: Code::StepFailed, ..Trouble::refused(message) };
        seen.redactor.register(name, value.as_bytes()).map_err(|error| refused(error.to_string()))?;
        if let Some(witness) = &self.witness {
            witness(Name::clean(name), Name::clean(version)).map_err(|refusal| {
                // What cannot be put on record now may be later.
                let code = refusal.code().filter(|code| matches!(code, Code::StoreFull | Code::Unavailable));
                let code = code.unwrap_or(Code::StepFailed);
                Trouble { code, ..Trouble::refused(refusal.to_string()) }
            })?;
        }
        let secret = crate::shell::Secret { name: name.to_owned(), value: value.to_owned() };
        if let Some(run) = &self.run {
            run.note(secret.clone());
        }
        seen.used.push((name.to_owned(), version.to_owned()));
        seen.values.push(secret);
        Ok(())
    }

    /// The credential of a service: a secret of this name, or what the server itself was given for its own tenant.
    ///
    /// # Errors
    /// There is none.
    pub fn credential(&self, name: &str, variables: &[&str]) -> Result<String, Trouble> {
        let missing = match self.reveal(name) {
            Ok(value) => return Ok(value),
            Err(missing) => missing,
        };
        let own = self.tenant.as_str() == "default";
        let found =
            variables.iter().filter(|_| own).find_map(|name| Some((*name, std::env::var(name).ok()?)));
        let Some((variable, value)) = found.filter(|(_, value)| !value.is_empty()) else {
            return Err(missing);
        };
        self.note(variable, "environment", &value)?;
        Ok(value)
    }

    /// A value with the secrets in it that its template names. What only looks like a reference, because a variable
    /// holds such a value, stays what it is: nobody can ask for a secret by way of data. Returns where they stand.
    ///
    /// # Errors
    /// A secret that is not there.
    pub fn resolve(&self, template: &Template, value: &Value) -> Result<(Value, BTreeSet<String>), Trouble> {
        let mut places = BTreeSet::new();
        let resolved = self.resolve_at(template, value, "", &mut places)?;
        Ok((resolved, places))
    }

    /// The depth is that of a template, which the runbook's own bound limits.
    fn resolve_at(
        &self,
        template: &Template,
        value: &Value,
        place: &str,
        places: &mut BTreeSet<String>,
    ) -> Result<Value, Trouble> {
        let below = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}/{key}") };
        match (template, value) {
            (Template::Secret(name), _) => {
                places.insert(place.to_owned());
                self.reveal(name.as_str()).map(Value::String)
            }
            (Template::Map(templates), Value::Object(values)) => {
                let mut map = Map::new();
                for (key, value) in values {
                    let value = match templates.get(key) {
                        Some(template) => self.resolve_at(template, value, &below(key), places)?,
                        None => value.clone(),
                    };
                    map.insert(key.clone(), value);
                }
                Ok(Value::Object(map))
            }
            (Template::List(templates), Value::Array(values)) => {
                let mut list = Vec::with_capacity(values.len());
                for (at, value) in values.iter().enumerate() {
                    list.push(match templates.get(at) {
                        Some(template) => {
                            self.resolve_at(template, value, &below(&at.to_string()), places)?
                        }
                        None => value.clone(),
                    });
                }
                Ok(Value::Array(list))
            }
            (
                Template::Literal(_)
                | Template::Expr(_)
                | Template::Text(_)
                | Template::Map(_)
                | Template::List(_),
                value,
            ) => Ok(value.clone()),
        }
    }

    /// A text without the secrets that were revealed.
    #[must_use]
    pub fn mask(&self, text: &str) -> String {
        self.seen().redactor.text(text)
    }

    /// A value without the secrets that were revealed.
    #[must_use]
    pub fn mask_value(&self, value: &Value) -> Value {
        self.seen().redactor.value(value)
    }

    /// The secrets that are masked, for whoever masks by himself: those that were revealed first.
    #[must_use]
    pub fn values(&self) -> Vec<crate::shell::Secret> {
        let mut values = self.seen().values.clone();
        let others = self.run.as_ref().map(OfRun::values).unwrap_or_default();
        let others = others.into_iter().filter(|other| values.iter().all(|one| one.value != other.value));
        values.extend(others.collect::<Vec<_>>());
        values
    }

    /// Names and versions of what was used; none where nothing was.
    #[must_use]
    pub fn used(&self) -> Option<Value> {
        let seen = self.seen();
        let item = |(name, version): &(String, String)| json!({ "name": name, "version": version });
        (!seen.used.is_empty()).then(|| Value::Array(seen.used.iter().map(item).collect()))
    }
}
