//! Private values: in the record, but outside the chain.
//!
//! Before `,"chain":` stands only `"vars_digest"`, the SHA-256 of a salt and the value's own bytes; after
//! it stand `"vars_salt"` and `"vars"`. Whoever takes the last two away has redacted the value, and the
//! chain over the rest still holds. The salt keeps a short value from being guessed from its digest.

use crate::digest::{Digest, Salt};
use crate::wire::{Error, Field, Reader, Wire, Writer, in_field};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What a record's digest key ends with.
pub const DIGEST: &str = "_digest";
/// What a record's salt key ends with.
pub const SALT: &str = "_salt";

/// A value that can be taken out of a record without breaking its proof.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Private<T> {
    /// Made by a decision; the writer of the record gives it a salt.
    New(T),
    /// Read from a record.
    Kept {
        /// The value.
        value: T,
        /// The salt it was hashed with.
        salt: Salt,
        /// The digest that the chain covers.
        digest: Digest,
    },
    /// Taken away; only the digest is left.
    Redacted(Digest),
}

impl<T> Private<T> {
    /// The value, unless it was redacted.
    pub fn value(&self) -> Option<&T> {
        match self {
            Private::New(value) | Private::Kept { value, .. } => Some(value),
            Private::Redacted(_) => None,
        }
    }
}

impl<T: Clone> Private<T> {
    /// A copy of the value, unless it was redacted.
    pub fn get(&self) -> Option<T> {
        self.value().cloned()
    }
}

impl<T> From<T> for Private<T> {
    fn from(value: T) -> Self {
        Private::New(value)
    }
}

fn digest_of(salt: &Salt, raw: &[u8]) -> Digest {
    Digest::of(&[&salt.0, raw])
}

fn put<T: Wire>(
    this: &Private<T>,
    key: &'static str,
    out: &mut Writer<'_>,
    salts: &mut dyn FnMut() -> Salt,
    private: &mut Vec<u8>,
) {
    let mut reveal = |salt: Salt, value: &T| {
        let mut after = Writer(private);
        after.key2(key, SALT);
        salt.put(&mut after);
        after.key(key);
        let start = after.0.len();
        value.put(&mut after);
        digest_of(&salt, &after.0[start..])
    };
    let digest = match this {
        Private::New(value) => reveal(salts(), value),
        Private::Kept { value, salt, digest } => {
            reveal(*salt, value);
            *digest
        }
        Private::Redacted(digest) => *digest,
    };
    out.key2(key, DIGEST);
    digest.put(out);
}

fn get_private<T: Wire>(this: &mut Private<T>, key: &'static str, r: &mut Reader<'_>) -> Result<(), Error> {
    let Private::Redacted(digest) = *this else { return Ok(()) };
    if !r.skip_key(key, SALT) {
        return Ok(());
    }
    let salt = Salt::get(r).map_err(|e| in_field(key, e))?;
    r.need_key(key, "")?;
    let start = r.at();
    let value = T::get(r).map_err(|e| in_field(key, e))?;
    if r.check_private && digest_of(&salt, r.span(start, r.at())) != digest {
        return Err(Error::Digest { field: key });
    }
    *this = Private::Kept { value, salt, digest };
    Ok(())
}

/// With its digest and salt.
fn weight<T: Wire>(this: &Private<T>) -> usize {
    4 * crate::wire::WEIGHT_MIN + this.value().map_or(0, Wire::weight)
}

impl<T: Wire> Field for Private<T> {
    fn kind() -> String {
        alloc::format!("private {}", T::kind())
    }
    fn put_public(
        &self,
        key: &'static str,
        out: &mut Writer<'_>,
        salts: &mut dyn FnMut() -> Salt,
        private: &mut Vec<u8>,
    ) {
        put(self, key, out, salts, private);
    }
    fn get_public(key: &'static str, r: &mut Reader<'_>) -> Result<Self, Error> {
        r.need_key(key, DIGEST)?;
        Digest::get(r).map(Private::Redacted).map_err(|e| in_field(key, e))
    }
    fn get_private(&mut self, key: &'static str, r: &mut Reader<'_>) -> Result<(), Error> {
        get_private(self, key, r)
    }
    fn weight(&self) -> usize {
        weight(self)
    }
}

impl<T: Wire> Field for Option<Private<T>> {
    fn kind() -> String {
        alloc::format!("private {}?", T::kind())
    }
    fn put_public(
        &self,
        key: &'static str,
        out: &mut Writer<'_>,
        salts: &mut dyn FnMut() -> Salt,
        private: &mut Vec<u8>,
    ) {
        if let Some(value) = self {
            put(value, key, out, salts, private);
        }
    }
    fn get_public(key: &'static str, r: &mut Reader<'_>) -> Result<Self, Error> {
        if !r.skip_key(key, DIGEST) {
            return Ok(None);
        }
        Digest::get(r).map(|d| Some(Private::Redacted(d))).map_err(|e| in_field(key, e))
    }
    fn get_private(&mut self, key: &'static str, r: &mut Reader<'_>) -> Result<(), Error> {
        match self {
            Some(private) => get_private(private, key, r),
            None => Ok(()),
        }
    }
    fn weight(&self) -> usize {
        self.as_ref().map_or(0, weight)
    }
}
