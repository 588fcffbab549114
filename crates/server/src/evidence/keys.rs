//! Signing keys: ed25519, each in a file of its own that only the owner can read.

use super::Error;
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use windlass_core::digest::{Digest, Signature};
use windlass_core::id::Name;

/// How a line of public keys begins.
const WORD: &str = "windlass-ed25519";
/// The most bytes of a file of public keys.
const PUBLIC_LEN_MAX: u64 = 1 << 20;
/// How many digits of its public half make a key's name.
const NAME_DIGITS: usize = 16;

/// The folder of keys.
#[derive(Clone, Debug)]
pub struct Keys {
    dir: PathBuf,
}

/// A key that signs.
pub struct Key {
    /// Its name.
    pub id: Name,
    secret: SigningKey,
}

impl Key {
    fn new(seed: &[u8; 32]) -> Key {
        let secret = SigningKey::from_bytes(seed);
        let public = Digest(secret.verifying_key().to_bytes()).to_string();
        Key { id: Name::clean(&format!("key-{}", &public[..NAME_DIGITS])), secret }
    }

    /// Its public half.
    #[must_use]
    pub fn public(&self) -> Digest {
        Digest(self.secret.verifying_key().to_bytes())
    }

    /// Signs bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> Signature {
        Signature(self.secret.sign(bytes).to_bytes())
    }
}

impl Keys {
    /// The keys in a folder, which is made where it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(dir: &Path) -> Result<Keys, Error> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|error| unusable(dir, error))?;
        Ok(Keys { dir: dir.to_path_buf() })
    }

    fn path(&self, id: &Name) -> PathBuf {
        self.dir.join(format!("{id}.ed25519"))
    }

    /// The key with this name.
    ///
    /// # Errors
    /// It is not there, or is no key.
    pub fn load(&self, id: &Name) -> Result<Key, Error> {
        let path = self.path(id);
        let text = fs::read_to_string(&path).map_err(|error| unusable(&path, error))?;
        let seed = Digest::parse(text.trim()).ok_or_else(|| unusable(&path, "it is no key"))?;
        let key = Key::new(&seed.0);
        if key.id == *id { Ok(key) } else { Err(unusable(&path, "it is another key")) }
    }

    /// A new key, kept before it is used.
    ///
    /// # Errors
    /// There are no random numbers, or it cannot be kept.
    pub fn make(&self) -> Result<Key, Error> {
        let seed = windlass_executor::random::bytes().map_err(|error| unusable(&self.dir, error))?;
        let key = Key::new(&seed);
        let path = self.path(&key.id);
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(format!("{}\n", Digest(seed)).as_bytes())?;
            file.sync_all()?;
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error| unusable(&path, error))?;
        Ok(key)
    }
}

#[allow(clippy::needless_pass_by_value)] // Whatever the error is, it is told and gone.
fn unusable(path: &Path, why: impl ToString) -> Error {
    Error::Key { key: path.display().to_string(), why: why.to_string() }
}

/// Whether a signature is one of a public key over these bytes. Only the one strict form of it counts.
#[must_use]
pub fn check(public: &Digest, bytes: &[u8], signature: &Signature) -> bool {
    let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
    VerifyingKey::from_bytes(&public.0).is_ok_and(|key| key.verify_strict(bytes, &signature).is_ok())
}

/// Public keys as text, one a line.
#[must_use]
pub fn public_text(keys: &BTreeMap<Name, Digest>) -> String {
    keys.iter().map(|(id, public)| format!("{WORD} {id} {public}\n")).collect()
}

/// Reads public keys. Empty lines and those that begin with `#` say nothing.
///
/// # Errors
/// The first line that is no key.
pub fn parse_public(text: &str) -> Result<BTreeMap<Name, Digest>, Error> {
    let mut keys = BTreeMap::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let key = match words.as_slice() {
            [WORD, id, public] => Name::new(id).ok().zip(Digest::parse(public)),
            [..] => None,
        };
        let Some((id, public)) = key else {
            return Err(Error::Key {
                key: format!("in line {}", n + 1),
                why: format!("expected `{WORD} ID HEX`"),
            });
        };
        keys.insert(id, public);
    }
    Ok(keys)
}

/// Reads a file of public keys.
///
/// # Errors
/// It cannot be read, is too large, or holds no keys.
pub fn read_public(path: &Path) -> Result<BTreeMap<Name, Digest>, Error> {
    let length = fs::metadata(path).map_err(|error| unusable(path, error))?.len();
    if length > PUBLIC_LEN_MAX {
        return Err(unusable(path, "it is larger than 1 MiB"));
    }
    let keys = parse_public(&fs::read_to_string(path).map_err(|error| unusable(path, error))?)?;
    if keys.is_empty() { Err(unusable(path, "it holds no public key")) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_and_signs_what_only_its_public_half_accepts() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(&dir.path().join("keys")).unwrap();
        let (made, other) = (keys.make().unwrap(), keys.make().unwrap());
        let again = keys.load(&made.id).unwrap();
        let signature = again.sign(b"what is so");
        assert!(check(&made.public(), b"what is so", &signature));
        assert!(!check(&made.public(), b"what is not", &signature));
        assert!(!check(&other.public(), b"what is so", &signature));
        assert!(keys.load(&Name::clean("key-0000")).is_err());
        let known: BTreeMap<Name, Digest> =
            [(made.id.clone(), made.public()), (other.id.clone(), other.public())].into();
        assert_eq!(parse_public(&format!("# ours\n\n{}", public_text(&known))).unwrap(), known);
        assert!(parse_public("ssh-ed25519 AAAA").is_err());
    }
}
