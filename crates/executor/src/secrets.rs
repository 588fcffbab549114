//! Secrets: where their values are kept, and the one way to them.
//!
//! ```text
//!  name ─▶ the vault in the data directory ─▶ a file in WINDLASS_SECRETS_DIR ─▶ WINDLASS_SECRET_<NAME>
//! ```
//!
//! The first that has the name serves. The vault is sealed with AES-256-GCM under a key that lies outside the data
//! directory, so that a copy of the directory gives nothing away. Values never reach the log: a step's input holds a
//! reference, whoever executes it asks here at the last moment, and registers the value for redaction before use.
//!
//! What was given stays known, sealed, after the secret was changed (`given.rs`): runs that had it may still print it.
//!
//! Secrets belong to a tenant. Files of a tenant lie in a folder of its name; the environment is the default tenant's.

pub mod given;
pub mod registered;
mod vault;

use crate::clock::System;
use crate::redaction::Redactor;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::time::Millis;
use windlass_engine::port::Clock as _;

pub use registered::{OfRun, Registered};
pub use vault::{Listed, Vault};

/// The environment variable of a secret is its name after this.
pub const PREFIX: &str = "WINDLASS_SECRET_";
/// The folder with a file for each secret.
pub const DIR: &str = "WINDLASS_SECRETS_DIR";
/// The file with the key of the vault.
pub const KEY_FILE: &str = "WINDLASS_SECRET_KEY_FILE";
/// The version of secrets of an executor elsewhere: an environment has none.
const ELSEWHERE: &str = "environment of the executor";
/// The most bytes of a name.
const NAME_LEN_MAX: usize = 128;
/// The tenant of a laptop.
const DEFAULT: &str = "default";

/// Why a secret cannot be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody has it.
    #[error(
        "the secret `{0}` is not there: `windlass secret set {0}`, or set {PREFIX}{0} where windlass runs"
    )]
    Missing(String),
    /// An executor elsewhere does not have it.
    #[error("the secret `{0}` is not here: set {PREFIX}{0} where the executor runs")]
    Elsewhere(String),
    /// A name that is none.
    #[error("`{0}` cannot be the name of a secret: use letters, digits, `_`, `-` and `.`, and no dot first")]
    Name(String),
    /// A value that cannot be redacted, so it must not be used.
    #[error("{0}")]
    Value(#[from] crate::redaction::Refusal),
    /// A value that is no text.
    #[error("the secret `{0}` is not UTF-8; keep it in base64 and decode it where it is used")]
    Text(String),
    /// The key of the vault.
    #[error("the key of the secrets, {path}: {what}")]
    Key {
        /// The file.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The vault cannot be opened with this key, or somebody changed it.
    #[error("the secret `{0}` cannot be opened: it was sealed with another key, or was changed")]
    Sealed(String),
    /// The vault's file.
    #[error("the secrets in {path} cannot be used: {what}")]
    Vault {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Missing(_) | Error::Elsewhere(_) => Code::NotFound,
            Error::Name(_) | Error::Value(_) | Error::Text(_) => Code::InvalidInput,
            Error::Key { .. } | Error::Vault { .. } => Code::Unavailable,
            Error::Sealed(_) => Code::StoreCorrupt,
        }
    }
}

/// A secret that was found. Its value is for use at once, and nothing prints it.
#[derive(Clone)]
pub struct Revealed {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
    /// Which version it is: a number of the vault, or where it came from.
    pub version: String,
}

impl std::fmt::Debug for Revealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Revealed")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Everything that has secrets.
#[derive(Clone, Debug)]
pub struct Secrets {
    vault: Vault,
    dir: Option<PathBuf>,
    given: Arc<given::Given>,
    /// There is nothing but the environment of this process, which is whose steps it carries out.
    elsewhere: bool,
}

impl Secrets {
    /// The secrets of a data directory, and of this process's environment.
    #[must_use]
    pub fn new(root: &Path) -> Secrets {
        Secrets { dir: std::env::var_os(DIR).map(PathBuf::from), ..Secrets::of(Vault::new(root)) }
    }

    /// The secrets of a vault alone.
    #[must_use]
    pub fn of(vault: Vault) -> Secrets {
        let given = Arc::new(given::Given::new(vault.clone()));
        Secrets { vault, dir: None, given, elsewhere: false }
    }

    /// The secrets of an executor elsewhere: those of its environment, for whichever tenant it carries out steps.
    #[must_use]
    pub fn elsewhere(root: &Path) -> Secrets {
        Secrets { elsewhere: true, ..Secrets::of(Vault::new(root)) }
    }

    /// The vault.
    #[must_use]
    pub fn vault(&self) -> &Vault {
        &self.vault
    }

    /// The secret of a tenant.
    ///
    /// # Errors
    /// Nobody has it, or who has it cannot be read.
    pub fn reveal(&self, tenant: &Name, name: &str) -> Result<Revealed, Error> {
        check_name(name)?;
        if self.elsewhere {
            let missing = || Error::Elsewhere(name.to_owned());
            let value = std::env::var(format!("{PREFIX}{name}")).map_err(|_| missing())?;
            return Ok(Revealed { name: name.to_owned(), value, version: ELSEWHERE.to_owned() });
        }
        if let Some(found) = self.vault.reveal(tenant, name)? {
            return Ok(found);
        }
        if let Some(found) = self.in_file(tenant, name)? {
            return Ok(found);
        }
        let own = tenant.as_str() == DEFAULT;
        match std::env::var(format!("{PREFIX}{name}")) {
            Ok(value) if own => {
                Ok(Revealed { name: name.to_owned(), value, version: "environment".to_owned() })
            }
            Err(std::env::VarError::NotUnicode(_)) if own => Err(Error::Text(name.to_owned())),
            Ok(_) | Err(_) => Err(Error::Missing(name.to_owned())),
        }
    }

    /// Keeps a value that a run is about to be given: it is masked for as long as a run lives that may have it. Where there
    /// is no place for a key, it is known to this process alone.
    ///
    /// # Errors
    /// It cannot be kept, so it must not be used.
    pub fn keep_given(&self, tenant: &Name, name: &str, value: &str) -> Result<(), Error> {
        // An executor elsewhere keeps no values on its disk: it masks them for as long as its process lives.
        if self.elsewhere {
            return Ok(());
        }
        match self.given.keep(tenant, name, value, System.now()) {
            Err(error @ Error::Key { .. }) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    eprintln!(
                        "windlass: a secret that is changed is not masked any more after a restart: {error}"
                    );
                });
                Ok(())
            }
            done => done,
        }
    }

    /// The values of a secret that a run can have been given that began at a time.
    #[must_use]
    pub fn given_since(&self, tenant: &Name, name: &str, began: Millis) -> Vec<String> {
        self.given.since(tenant, name, began).unwrap_or_else(|error| {
            static SAID: Once = Once::new();
            // Steps that use a secret fail meanwhile: what they are given could not be kept.
            SAID.call_once(|| {
                eprintln!("windlass: earlier values of secrets are not masked until this is mended: {error}");
            });
            Vec::new()
        })
    }

    /// Drops values that were changed before the oldest run began that is kept.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn forget_given(&self, before: Millis) -> Result<(), Error> {
        self.given.forget(before)
    }

    fn in_file(&self, tenant: &Name, name: &str) -> Result<Option<Revealed>, Error> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let path = match tenant.as_str() {
            DEFAULT => dir.join(name),
            other => {
                check_name(other)?;
                dir.join(other).join(name)
            }
        };
        let failed =
            |what: std::io::Error| Error::Vault { path: path.display().to_string(), what: what.to_string() };
        let about = match std::fs::metadata(&path) {
            Ok(about) if about.is_file() => about,
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        if about.len() > Redactor::LEN_MAX as u64 {
            return Err(crate::redaction::Refusal::Long { name: name.to_owned() }.into());
        }
        let bytes = std::fs::read(&path).map_err(failed)?;
        let text = String::from_utf8(bytes).map_err(|_| Error::Text(name.to_owned()))?;
        // Files end in a line break that is not part of what they hold.
        let value = text.strip_suffix('\n').unwrap_or(&text);
        let value = value.strip_suffix('\r').unwrap_or(value).to_owned();
        Ok(Some(Revealed { name: name.to_owned(), value, version: "file".to_owned() }))
    }
}

/// Whether a name can be one: it becomes part of a path and of a variable.
pub fn check_name(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if name.is_empty() || name.len() > NAME_LEN_MAX || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(Error::Name(windlass_core::wire::shorten(name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
