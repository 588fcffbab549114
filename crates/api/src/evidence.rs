//! Evidence: the keys that seals are made and checked with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::digest::Digest;
use windlass_core::id::Name;

/// The public keys that seals are checked with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublicKeys {
    /// One for each key that ever made a seal.
    pub items: Vec<PublicKey>,
    /// All of them as a file, for `windlass evidence verify --pubkey`.
    pub text: String,
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublicKey {
    /// The key's id.
    #[schemars(with = "String")]
    pub id: Name,
    /// The key, in hexadecimal digits.
    #[schemars(with = "String")]
    pub public_key: Digest,
}

/// A key that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Key {
    /// Its id.
    #[schemars(with = "String")]
    pub id: Name,
}
