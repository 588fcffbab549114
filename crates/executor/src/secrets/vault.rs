//! The vault: secrets sealed in a file of the data directory, under a key that lies elsewhere.
//!
//! Each value is sealed on its own, bound to its tenant, name and version, so none can be passed off as another. A name
//! keeps counting its versions even after it was removed: a version says which value was used, for ever.

use super::{Error, Revealed, check_name};
use crate::clock::System;
use crate::random;
use crate::redaction::Redactor;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use windlass_core::id::Name;
use windlass_engine::port::Clock as _;

/// The name of the vault's file, and of the file that is locked while it changes.
const FILE: &str = "secrets.json";
const LOCK: &str = "secrets.lock";
/// The version of the file's form.
const FORMAT: u32 = 1;
/// The most bytes of the file, and the most secrets in it.
const FILE_LEN_MAX: u64 = 64 << 20;
const COUNT_MAX: usize = 10_000;
const KEY_LEN: usize = 32;

/// A secret as the vault keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u64,
    at: u64,
    /// Absent once it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nonce: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: u32,
    /// By tenant and name.
    secrets: BTreeMap<String, BTreeMap<String, Kept>>,
}

impl Default for Content {
    fn default() -> Content {
        Content { format: FORMAT, secrets: BTreeMap::new() }
    }
}

/// A secret in a list: everything but its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// When it was set, in milliseconds since the epoch.
    pub at: u64,
}

/// The vault of a data directory.
#[derive(Clone, Debug)]
pub struct Vault {
    root: PathBuf,
    key_file: Option<PathBuf>,
}

impl Vault {
    /// The vault of a data directory, with the key where the environment says.
    #[must_use]
    pub fn new(root: &Path) -> Vault {
        let named = std::env::var_os(super::KEY_FILE).map(PathBuf::from);
        let usual = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config/windlass/key"));
        Vault { root: root.to_path_buf(), key_file: named.or_else(usual) }
    }

    /// The vault with its key in this file.
    #[must_use]
    pub fn with_key(root: &Path, key_file: &Path) -> Vault {
        Vault { root: root.to_path_buf(), key_file: Some(key_file.to_path_buf()) }
    }

    /// The file with its key, where there can be one.
    #[must_use]
    pub fn key_file(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }

    fn path(&self) -> PathBuf {
        self.root.join(FILE)
    }

    fn failed(&self, what: impl std::fmt::Display) -> Error {
        Error::Vault { path: self.path().display().to_string(), what: what.to_string() }
    }

    /// Sets a secret, and returns its version.
    ///
    /// # Errors
    /// A name or a value that cannot be kept, or the system says no.
    pub fn set(&self, tenant: &Name, name: &str, value: &str) -> Result<u64, Error> {
        check_name(name)?;
        check_name(tenant.as_str())?;
        // What cannot be redacted later must not be kept at all.
        Redactor::new().register(name, value.as_bytes())?;
        let key = self.key(true)?.ok_or_else(|| self.failed("there is no key"))?;
        let _lock = self.lock()?;
        let mut content = self.read()?;
        let count: usize = content.secrets.values().map(BTreeMap::len).sum();
        let own = content.secrets.entry(tenant.to_string()).or_default();
        if count >= COUNT_MAX && !own.contains_key(name) {
            return Err(self.failed(format!("it holds {COUNT_MAX} secrets, which is all it can")));
        }
        let version = own.get(name).map_or(1, |kept| kept.version + 1);
        let Sealed { nonce, sealed } = self.seal_with(&key, &about(tenant, name, version), value)?;
        let (nonce, sealed) = (Some(nonce), Some(sealed));
        own.insert(name.to_owned(), Kept { version, at: now_ms(), nonce, sealed });
        self.write(&content)?;
        Ok(version)
    }

    /// Removes a secret; says whether it was there.
    ///
    /// # Errors
    /// The system says no.
    pub fn remove(&self, tenant: &Name, name: &str) -> Result<bool, Error> {
        check_name(name)?;
        let _lock = self.lock()?;
        let mut content = self.read()?;
        let own = content.secrets.get_mut(tenant.as_str());
        let Some(kept) = own.and_then(|own| own.get_mut(name)).filter(|kept| kept.sealed.is_some()) else {
            return Ok(false);
        };
        (kept.nonce, kept.sealed, kept.at) = (None, None, now_ms());
        self.write(&content)?;
        Ok(true)
    }

    /// The secrets of a tenant.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self, tenant: &Name) -> Result<Vec<Listed>, Error> {
        let content = self.read()?;
        let own = content.secrets.get(tenant.as_str()).into_iter().flatten();
        let kept = own.filter(|(_, kept)| kept.sealed.is_some());
        Ok(kept
            .map(|(name, kept)| Listed { name: name.clone(), version: kept.version, at: kept.at })
            .collect())
    }

    /// A secret, where the vault has it.
    ///
    /// # Errors
    /// The key is not there, or is not the one it was sealed with.
    pub fn reveal(&self, tenant: &Name, name: &str) -> Result<Option<Revealed>, Error> {
        let content = self.read()?;
        let kept = content.secrets.get(tenant.as_str()).and_then(|own| own.get(name));
        let Some((kept, nonce, sealed)) =
            kept.and_then(|kept| Some((kept, kept.nonce.as_deref()?, kept.sealed.as_deref()?)))
        else {
            return Ok(None);
        };
        let refused = || Error::Sealed(name.to_owned());
        let key = self.key(false)?.ok_or_else(|| Error::Key {
            path: self.key_file.as_deref().map_or_else(|| "none".into(), |path| path.display().to_string()),
            what: "it is not there, and the vault cannot be opened without it".to_owned(),
        })?;
        let sealed = Sealed { nonce: nonce.to_owned(), sealed: sealed.to_owned() };
        let value = open_with(&key, &about(tenant, name, kept.version), &sealed).ok_or_else(refused)?;
        Ok(Some(Revealed { name: name.to_owned(), value, version: kept.version.to_string() }))
    }

    /// The data directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Seals a value that is bound to what it is about. The key is made where there is none.
    pub(super) fn seal(&self, about: &[u8], value: &str) -> Result<Sealed, Error> {
        let key = self.key(true)?.ok_or_else(|| self.failed("there is no key"))?;
        self.seal_with(&key, about, value)
    }

    /// Opens what was sealed; nothing where it cannot be.
    pub(super) fn open(&self, about: &[u8], sealed: &Sealed) -> Option<String> {
        open_with(&self.key(false).ok()??, about, sealed)
    }

    fn seal_with(&self, key: &LessSafeKey, about: &[u8], value: &str) -> Result<Sealed, Error> {
        let mut bytes = value.as_bytes().to_vec();
        // No key seals so many values that two random nonces of 96 bits would ever be the same.
        let nonce: [u8; NONCE_LEN] = random::bytes().map_err(|error| self.failed(error))?;
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(about), &mut bytes)
            .map_err(|_| self.failed("the value cannot be sealed"))?;
        Ok(Sealed { nonce: hex(&nonce), sealed: hex(&bytes) })
    }

    /// The key; one is made where there is none and `make` says so.
    fn key(&self, make: bool) -> Result<Option<LessSafeKey>, Error> {
        let Some(path) = &self.key_file else {
            return Err(Error::Key {
                path: "none".to_owned(),
                what: format!("there is no home directory; name a file in {}", super::KEY_FILE),
            });
        };
        let wrong = |what: String| Error::Key { path: path.display().to_string(), what };
        let inside = |root: &Path| path.starts_with(root);
        if inside(&self.root) || self.root.canonicalize().is_ok_and(|root| inside(&root)) {
            return Err(wrong(format!(
                "it lies in the data directory, where a copy of that would hold both; name another file in {}",
                super::KEY_FILE
            )));
        }
        let text = match read_key(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && make => {
                make_key(path).map_err(|error| wrong(error.to_string()))?;
                read_key(path).map_err(|error| wrong(error.to_string()))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let bytes = unhex(text.trim()).filter(|bytes| bytes.len() == KEY_LEN);
        let bytes = bytes.ok_or_else(|| wrong("it does not hold 64 hexadecimal digits".to_owned()))?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(LessSafeKey::new(key)))
    }

    /// One change at a time, whichever process makes it.
    fn lock(&self) -> Result<File, Error> {
        let path = self.root.join(LOCK);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root).map_err(|e| self.failed(e))?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = file.map_err(|error| self.failed(error))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|error| self.failed(error))?;
        Ok(file)
    }

    fn read(&self) -> Result<Content, Error> {
        let file = match File::open(self.path()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Content::default()),
            Err(error) => return Err(self.failed(error)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        if bytes.len() as u64 > FILE_LEN_MAX {
            return Err(self.failed("it is too large"));
        }
        let content: Content = serde_json::from_slice(&bytes).map_err(|error| self.failed(error))?;
        if content.format != FORMAT {
            return Err(
                self.failed(format!("it has the form {}, which a newer version wrote", content.format))
            );
        }
        Ok(content)
    }

    /// Replaces the file as a whole: after a crash it is the old one or the new one.
    fn write(&self, content: &Content) -> Result<(), Error> {
        let bytes = serde_json::to_vec(content).map_err(|error| self.failed(error))?;
        replace(&self.root, FILE, &bytes).map_err(|error| self.failed(error))
    }
}

/// A value under a key, in hexadecimal digits.
pub(super) struct Sealed {
    pub(super) nonce: String,
    pub(super) sealed: String,
}

fn open_with(key: &LessSafeKey, about: &[u8], sealed: &Sealed) -> Option<String> {
    let nonce = Nonce::try_assume_unique_for_key(&unhex(&sealed.nonce)?).ok()?;
    let mut bytes = unhex(&sealed.sealed)?;
    let plain = key.open_in_place(nonce, Aad::from(about), &mut bytes).ok()?;
    String::from_utf8(plain.to_vec()).ok()
}

/// Replaces a file of the data directory as a whole: after a crash it is the old one or the new one.
pub(super) fn replace(root: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
    let next = root.join(format!("{name}.next"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&next, root.join(name))?;
    File::open(root)?.sync_all()
}

/// What a sealed value is bound to.
fn about(tenant: &Name, name: &str, version: u64) -> Vec<u8> {
    format!("windlass secret v1\n{tenant}\n{name}\n{version}").into_bytes()
}

fn read_key(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        return Err(io::Error::other("others can read it; `chmod 600` it, and set the secrets anew"));
    }
    let mut text = String::new();
    file.take(1_024).read_to_string(&mut text)?;
    Ok(text)
}

fn make_key(path: &Path) -> io::Result<()> {
    let bytes: [u8; KEY_LEN] = random::bytes()?;
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match file {
        Ok(mut file) => {
            file.write_all(format!("{}\n", hex(&bytes)).as_bytes())?;
            file.sync_all()
        }
        // Another process made it just now.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn now_ms() -> u64 {
    System.now().0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?)).collect()
}
