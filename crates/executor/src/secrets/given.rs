//! What attempts were given: every value of a secret that was ever used, sealed, so that a process that starts later masks it.
//!
//! A step can leave a value in a file, and a later step of the run, or of its retry, can print it after the secret was
//! changed and the server started again. So a value is written here before it is used for the first time, wherever it
//! comes from: the vault, a file or the environment. It stays when the secret is changed or removed, together with the time
//! at which another value took its place, and is masked in every run that began before then.
//!
//! ```text
//!  use ─▶ known? ─ no ─▶ sealed and synced to given.json ─▶ the value is used
//!                         {"given": {TENANT: {NAME: [{"number": 1, "until": …, "nonce": …, "sealed": …}, …]}}}
//! ```
//!
//! Retention drops values that no kept run can have been given (`Given::forget`). The bounds drop the oldest first.

use super::vault::{self, Sealed, Vault};
use super::{Error, check_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use windlass_core::id::Name;
use windlass_core::time::Millis;

/// The name of the file.
pub const FILE: &str = "given.json";
/// The version of the file's form.
const FORMAT: u32 = 1;
/// The most values of a name.
const VALUES_MAX: usize = 1_000;
/// So many of the newest count for every run, whatever its clock said when it began.
const ALWAYS: usize = 8;
/// The most values, and the most bytes of what is sealed of them together.
const COUNT_MAX: usize = 10_000;
const BYTES_MAX: usize = 32 << 20;
/// The most bytes of the file.
const FILE_LEN_MAX: u64 = 64 << 20;

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    /// Counts the values of a name.
    number: u64,
    /// When another value took its place, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    nonce: String,
    sealed: String,
    /// The value itself; nothing where it cannot be opened any more.
    #[serde(skip)]
    plain: Option<String>,
}

/// By tenant and name, oldest first.
type Values = BTreeMap<String, BTreeMap<String, Vec<Value>>>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: u32,
    given: Values,
}

/// The values that were given.
pub(super) struct Given {
    vault: Vault,
    /// Read when it is needed first.
    values: Mutex<Option<Values>>,
}

/// Nothing prints the values.
impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Given").field("vault", &self.vault).finish_non_exhaustive()
    }
}

impl Given {
    /// Those of a data directory, sealed with the key of its vault.
    pub(super) fn new(vault: Vault) -> Given {
        Given { vault, values: Mutex::new(None) }
    }

    fn path(&self) -> PathBuf {
        self.vault.root().join(FILE)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Values>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a value that is about to be used. Returns when it is durable.
    ///
    /// # Errors
    /// There is no key to seal it with, or the file cannot be read or written.
    pub(super) fn keep(&self, tenant: &Name, name: &str, value: &str, at: Millis) -> Result<(), Error> {
        let mut known = self.lock();
        let mut values = match known.as_ref() {
            Some(values) if is_last(values, tenant, name, value) => return Ok(()),
            Some(values) => values.clone(),
            None => self.read()?,
        };
        if !is_last(&values, tenant, name, value) {
            let own = values.entry(tenant.to_string()).or_default().entry(name.to_owned()).or_default();
            let number = own.last().map_or(1, |last| last.number + 1);
            let Sealed { nonce, sealed } = self.vault.seal(&about(tenant, name, number), value)?;
            if let Some(last) = own.last_mut() {
                last.until = Some(at.0);
            }
            own.push(Value { number, until: None, nonce, sealed, plain: Some(value.to_owned()) });
            bound(&mut values);
            self.write(&values)?;
        }
        *known = Some(values);
        Ok(())
    }

    /// The values of a name that a run can have been given that began at a time. What cannot be opened is not among them.
    ///
    /// # Errors
    /// The file cannot be read. It is tried again when it is asked for again.
    pub(super) fn since(&self, tenant: &Name, name: &str, began: Millis) -> Result<Vec<String>, Error> {
        let mut known = self.lock();
        let values = match known.take() {
            Some(values) => known.insert(values),
            None => known.insert(self.read()?),
        };
        let own = values.get(tenant.as_str()).and_then(|names| names.get(name));
        let own = own.map(Vec::as_slice).unwrap_or_default();
        let newest = own.len().saturating_sub(ALWAYS);
        let had =
            |(at, value): &(usize, &Value)| *at >= newest || value.until.is_none_or(|until| until >= began.0);
        Ok(own.iter().enumerate().filter(had).filter_map(|(_, value)| value.plain.clone()).collect())
    }

    /// Drops the values that others took the place of before a time.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn forget(&self, before: Millis) -> Result<(), Error> {
        let mut known = self.lock();
        let mut values = match known.as_ref() {
            Some(values) => values.clone(),
            None => self.read()?,
        };
        let old = count(&values);
        for own in values.values_mut().flat_map(BTreeMap::values_mut) {
            own.retain(|value| value.until.is_none_or(|until| until >= before.0));
        }
        if count(&values) < old {
            self.write(&values)?;
        }
        *known = Some(values);
        Ok(())
    }

    fn failed(&self, what: impl std::fmt::Display) -> Error {
        Error::Vault { path: self.path().display().to_string(), what: what.to_string() }
    }

    fn read(&self) -> Result<Values, Error> {
        let file = match std::fs::File::open(self.path()) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Values::new()),
            Err(error) => return Err(self.failed(error)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        if bytes.len() as u64 > FILE_LEN_MAX {
            return Err(self.failed("it is too large"));
        }
        let content: Content = serde_json::from_slice(&bytes).map_err(|error| self.failed(error))?;
        if content.format != FORMAT {
            let what = format!("it has the form {}, which a newer version wrote", content.format);
            return Err(self.failed(what));
        }
        let mut values = content.given;
        for (tenant, names) in &mut values {
            let tenant = Name::clean(tenant);
            for (name, own) in names {
                for value in own {
                    let sealed = Sealed { nonce: value.nonce.clone(), sealed: value.sealed.clone() };
                    value.plain = self.vault.open(&about(&tenant, name, value.number), &sealed);
                }
            }
        }
        Ok(values)
    }

    fn write(&self, values: &Values) -> Result<(), Error> {
        let content = Content { format: FORMAT, given: values.clone() };
        let bytes = serde_json::to_vec(&content).map_err(|error| self.failed(error))?;
        vault::replace(self.vault.root(), FILE, &bytes).map_err(|error| self.failed(error))
    }
}

fn is_last(values: &Values, tenant: &Name, name: &str, value: &str) -> bool {
    let own = values.get(tenant.as_str()).and_then(|names| names.get(name));
    own.and_then(|own| own.last()).is_some_and(|last| last.plain.as_deref() == Some(value))
}

fn count(values: &Values) -> usize {
    values.values().flat_map(BTreeMap::values).map(Vec::len).sum()
}

/// Drops the oldest of a name, and of all, until they are within the bounds.
fn bound(values: &mut Values) {
    for own in values.values_mut().flat_map(BTreeMap::values_mut) {
        let more = own.len().saturating_sub(VALUES_MAX);
        own.drain(..more);
    }
    loop {
        let all = || values.values().flat_map(BTreeMap::values).flatten();
        let bytes: usize = all().map(|value| value.sealed.len()).sum();
        if all().count() <= COUNT_MAX && bytes <= BYTES_MAX {
            return;
        }
        let Some(oldest) = all().filter_map(|value| value.until).min() else { return };
        for own in values.values_mut().flat_map(BTreeMap::values_mut) {
            own.retain(|value| value.until != Some(oldest));
        }
    }
}

/// What a sealed value is bound to.
fn about(tenant: &Name, name: &str, number: u64) -> Vec<u8> {
    // A name holds no line break: two places are never written alike.
    debug_assert!(check_name(name).is_ok() || !name.contains('\n'), "a name of a secret has one line");
    format!("windlass given v1\n{tenant}\n{name}\n{number}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, impl Fn() -> Given, Name) {
        let dir = tempfile::tempdir().unwrap();
        let (root, key) = (dir.path().join("data"), dir.path().join("config/key"));
        (dir, move || Given::new(Vault::with_key(&root, &key)), Name::clean("default"))
    }

    #[test]
    fn a_value_that_was_given_is_known_to_the_next_process_and_lies_sealed() {
        let (dir, process, own) = place();
        let given = process();
        given.keep(&own, "T", "first-value", Millis(10)).unwrap();
        given.keep(&own, "T", "second-value", Millis(20)).unwrap();
        given.keep(&own, "T", "second-value", Millis(30)).unwrap();
        let stored = std::fs::read_to_string(dir.path().join("data/given.json")).unwrap();
        assert!(!stored.contains("first-value") && !stored.contains("second-value"), "{stored}");
        let later = process();
        assert_eq!(later.since(&own, "T", Millis(20)).unwrap(), ["first-value", "second-value"]);
        for n in 0..ALWAYS as u64 {
            later.keep(&own, "U", &format!("value-{n}"), Millis(100 + n)).unwrap();
        }
        later.keep(&own, "U", "the-last", Millis(200)).unwrap();
        assert_eq!(later.since(&own, "U", Millis(101)).unwrap().len(), ALWAYS + 1);
        assert_eq!(
            later.since(&own, "U", Millis(102)).unwrap().len(),
            ALWAYS,
            "the first was changed before"
        );
        assert!(later.since(&Name::clean("other"), "T", Millis(0)).unwrap().is_empty());
        later.forget(Millis(21)).unwrap();
        assert_eq!(process().since(&own, "T", Millis(0)).unwrap(), ["second-value"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_until_it_can_be() {
        let (dir, process, own) = place();
        process().keep(&own, "T", "a-value-of-before", Millis(10)).unwrap();
        let path = dir.path().join("data/given.json");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let later = process();
        assert!(later.since(&own, "T", Millis(0)).is_err(), "it does not count as empty");
        assert!(later.keep(&own, "T", "another-value", Millis(20)).is_err(), "and is not written over");
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(later.since(&own, "T", Millis(0)).unwrap(), ["a-value-of-before"]);
    }

    #[test]
    fn the_values_of_a_name_are_bounded_and_the_oldest_go_first() {
        let mut values = Values::new();
        let value = |number| Value {
            number,
            until: Some(number),
            nonce: String::new(),
            sealed: String::new(),
            plain: None,
        };
        let own = (0..VALUES_MAX as u64 + 1).map(value).collect();
        values.entry("default".to_owned()).or_default().insert("T".to_owned(), own);
        bound(&mut values);
        let own = &values["default"]["T"];
        assert_eq!((own.len(), own[0].number), (VALUES_MAX, 1));
        for name in 0..=COUNT_MAX / VALUES_MAX {
            let own = (0..VALUES_MAX as u64).map(value).collect();
            values.entry("default".to_owned()).or_default().insert(format!("T{name}"), own);
        }
        bound(&mut values);
        assert!(count(&values) <= COUNT_MAX);
    }
}
