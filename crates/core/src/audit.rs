//! Seals: signed Merkle roots over the heads of streams, each bound to the seal before it.
//!
//! ```text
//!   records ──▶ heads that changed ──propose──▶ root ──sign (shell)──▶ seal:created ──▶ fewer heads that changed
//!                                                 ▲ previous seal's hash
//! ```
//!
//! Invariants: seals are numbered without gaps and each covers the hash of the one before; a head leaves the list
//! of what changed only when a recorded seal covers it; every key but the first is introduced by a signature of
//! the one that it replaces. The tree stands in [`merkle`], the chain of one stream in [`chain`]. Signing and
//! checking signatures is the shell's: it is passed in.

use crate::canonical;
use crate::code::Code;
use crate::digest::{Digest, Signature};
use crate::event::{Event, KeyRotated, SealCreated};
use crate::id::Name;
use crate::machine::{Decision, Row, table};
use crate::record::Record;
use crate::stream::StreamId;
use crate::time::{Millis, Span};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub mod chain;
pub mod merkle;

pub use chain::{Break, Broken, Head, verify_chain, walk};
pub use merkle::{InclusionProof, Leaf, Tree, proof, root, verify_inclusion};

/// How long a change waits for its seal.
pub const INTERVAL: Span = Span::secs(10);
/// The most heads under one seal. What does not fit waits for the next.
pub const LEAVES_MAX: usize = 1 << 16;
/// The most keys an installation remembers.
pub const KEYS_MAX: usize = 1_000;

const SEAL_DOMAIN: &[u8] = b"windlass seal v1\n";
const SEAL_HASH_DOMAIN: &[u8] = b"windlass seal hash v1\n";
const ROTATION_DOMAIN: &[u8] = b"windlass key rotation v1\n";

/// Checks a signature: key, bytes, signature.
pub type CheckSignature<'a> = &'a dyn Fn(&Name, &[u8], &Signature) -> bool;

/// A signed root.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seal {
    /// 1, 2, 3 …
    pub number: u64,
    /// The root of the tree.
    pub root: Digest,
    /// How many leaves it has.
    pub leaves: u64,
    /// The hash of the seal before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Digest>,
    /// Which key signed it.
    pub key_id: Name,
    /// The signature over [`Seal::signed_bytes`].
    pub signature: Signature,
    /// When.
    pub at: Millis,
}

/// Why a seal does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// It is not the one after the seal before.
    #[error("the number does not follow from the seal before")]
    Number,
    /// It does not cover the seal before.
    #[error("it does not cover the seal before")]
    Previous,
    /// It is older than the seal before.
    #[error("it is older than the seal before")]
    Time,
    /// The signature is not one of the named key over these bytes.
    #[error("the signature does not hold")]
    Signature,
}

impl Seal {
    /// The seal that a record tells of.
    #[must_use]
    pub fn recorded(event: &SealCreated, at: Millis) -> Seal {
        Seal {
            number: event.number,
            root: event.root,
            leaves: event.leaves,
            previous: event.previous,
            key_id: event.key_id.clone(),
            signature: event.signature,
            at: event.sealed_at.unwrap_or(at),
        }
    }

    /// What is signed: everything but the signature, under a name that nothing else is signed under.
    #[must_use]
    pub fn signed_bytes(&self) -> Vec<u8> {
        let covered = json!({
            "number": self.number,
            "root": self.root,
            "leaves": self.leaves,
            "previous": self.previous,
            "key_id": self.key_id,
            "at": self.at,
        });
        [SEAL_DOMAIN, &canonical::bytes(&covered)].concat()
    }

    /// What the next seal covers of this one: its bytes and its signature.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(&[SEAL_HASH_DOMAIN, &self.signature.0, &self.signed_bytes()])
    }
}

/// Checks a seal's signature and how it follows from the seal before. Without that one, as at the start of an
/// excerpt, only the first seal of all may say that there was none.
///
/// # Errors
/// What does not hold.
pub fn verify(seal: &Seal, previous: Option<&Seal>, check: CheckSignature<'_>) -> Result<(), Unsound> {
    if seal.number == 0 || (seal.number == 1) != seal.previous.is_none() {
        return Err(Unsound::Number);
    }
    if let Some(previous) = previous {
        if previous.number.checked_add(1) != Some(seal.number) {
            return Err(Unsound::Number);
        }
        if seal.previous != Some(previous.hash()) {
            return Err(Unsound::Previous);
        }
        if seal.at < previous.at {
            return Err(Unsound::Time);
        }
    }
    if !check(&seal.key_id, &seal.signed_bytes(), &seal.signature) {
        return Err(Unsound::Signature);
    }
    Ok(())
}

/// A key takes over from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotation {
    /// The new key.
    pub key_id: Name,
    /// Its public half.
    pub public_key: Digest,
    /// The key that it replaces; the first one of an installation replaces none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Name>,
    /// The old key's signature over [`Rotation::signed_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

impl Rotation {
    /// The rotation that a record tells of.
    #[must_use]
    pub fn recorded(event: &KeyRotated) -> Rotation {
        Rotation {
            key_id: event.key_id.clone(),
            public_key: event.public_key,
            replaces: event.replaces.clone(),
            signature: event.signature,
        }
    }

    /// What the old key signs.
    #[must_use]
    pub fn signed_bytes(&self) -> Vec<u8> {
        let covered =
            json!({"key_id": self.key_id, "public_key": self.public_key, "replaces": self.replaces});
        [ROTATION_DOMAIN, &canonical::bytes(&covered)].concat()
    }

    /// Whether the key that it replaces vouches for it.
    #[must_use]
    pub fn is_vouched_for(&self, check: CheckSignature<'_>) -> bool {
        match (&self.replaces, &self.signature) {
            (Some(old), Some(signature)) => check(old, &self.signed_bytes(), signature),
            (Some(_) | None, _) => false,
        }
    }
}

/// The machine's table.
pub const TABLE: &[Row] = table! {
    "keyless": "rotate" => "clean" | "dirty";
    "clean": "rotate" => "clean";
    "dirty": "seal" => "clean" | "dirty";
    "dirty": "rotate" => "dirty";
};

/// A head that no seal covers yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// The place.
    pub place: Head,
    /// The record's place in the store.
    pub seq: u64,
}

/// What is sealed, and what is not yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealer {
    /// The number of the last seal; 0 before the first.
    pub number: u64,
    /// The hash of the last seal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Digest>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_at: Option<Millis>,
    /// The last record that a seal covers.
    #[serde(default)]
    pub through: u64,
    /// The key that signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Name>,
    /// The public halves of all keys there ever were.
    pub keys: BTreeMap<Name, Digest>,
    /// Heads that changed since the last seal.
    pub dirty: BTreeMap<StreamId, Changed>,
    /// Since when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_since: Option<Millis>,
    /// No lock or semaphore that left the log had an epoch above this one.
    #[serde(default)]
    pub epochs: u64,
}

/// A seal that waits for its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The seal, with noughts for a signature.
    pub seal: Seal,
    /// The heads it covers.
    pub leaves: Vec<Leaf>,
    /// The store's counter at the last record it covers.
    pub through: u64,
}

/// What the sealer can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The shell signed a proposal.
    Seal {
        /// What it signed.
        proposal: Proposal,
        /// With which result.
        signature: Signature,
    },
    /// Another key takes over, vouched for by the current one.
    Rotate(Rotation),
}

/// Why the sealer refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no key yet.
    #[error("there is no key to seal with")]
    Keyless,
    /// Nothing changed since the last seal.
    #[error("nothing changed since the last seal")]
    Clean,
    /// The proposal is not for the next seal, or not for the current key.
    #[error("the proposal for seal {0} was overtaken")]
    Overtaken(u64),
    /// The proposal does not hold together.
    #[error("the proposal for seal {0} does not match the heads that changed")]
    Leaves(u64),
    /// A key that takes over needs the old key's signature and a name of its own.
    #[error("key {0} cannot take over: {1}")]
    Key(Name, &'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Keyless | Error::Clean | Error::Overtaken(_) => Code::RunInvalidTransition,
            Error::Leaves(_) | Error::Key(..) => Code::InvalidInput,
        }
    }
}

impl Sealer {
    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match (&self.key_id, self.dirty.is_empty()) {
            (None, _) => "keyless",
            (Some(_), true) => "clean",
            (Some(_), false) => "dirty",
        }
    }

    /// When the next seal is due.
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        self.key_id.as_ref()?;
        self.dirty_since.map(|since| since + INTERVAL)
    }

    /// The next seal over what changed, oldest first, for the shell to sign. `None` where there is no key or
    /// nothing changed.
    #[must_use]
    pub fn propose(&self, at: Millis) -> Option<Proposal> {
        let key_id = self.key_id.clone()?;
        let mut changed: Vec<(&StreamId, &Changed)> = self.dirty.iter().collect();
        changed.sort_unstable_by_key(|(_, changed)| changed.seq);
        changed.truncate(LEAVES_MAX);
        let through = changed.last()?.1.seq;
        let leaf = |(stream, changed): &(&StreamId, &Changed)| Leaf {
            stream: (*stream).clone(),
            ver: changed.place.ver,
            head: changed.place.head,
        };
        let leaves: Vec<Leaf> = changed.iter().map(leaf).collect();
        let seal = Seal {
            number: self.number.saturating_add(1),
            root: root(&leaves),
            leaves: leaves.len() as u64,
            previous: self.previous,
            key_id,
            signature: Signature::default(),
            at: at.never_before(self.sealed_at.unwrap_or_default()),
        };
        Some(Proposal { seal, leaves, through })
    }

    /// Says what an input leads to. The time of a seal is the one that was signed.
    ///
    /// # Errors
    /// [`Error`]: what the table does not have, and proposals that do not match.
    pub fn decide(&self, input: &Input, _at: Millis) -> Result<Decision, Error> {
        match (self.key_id.as_ref(), self.dirty.is_empty(), input) {
            (None, true | false, Input::Seal { .. }) => Err(Error::Keyless),
            (Some(_), true, Input::Seal { .. }) => Err(Error::Clean),
            (Some(key_id), false, Input::Seal { proposal, signature }) => {
                self.check(key_id, proposal)?;
                Ok(Decision::new().fact(sealed(proposal, *signature)))
            }
            (current, true | false, Input::Rotate(rotation)) => self.rotate(current, rotation),
        }
    }

    fn check(&self, key_id: &Name, proposal: &Proposal) -> Result<(), Error> {
        let Proposal { seal, leaves, .. } = proposal;
        let follows = Some(seal.number) == self.number.checked_add(1) && seal.previous == self.previous;
        if !follows || seal.key_id != *key_id || self.sealed_at.is_some_and(|last| seal.at < last) {
            return Err(Error::Overtaken(seal.number));
        }
        // A stream may have gone on since the proposal; it then stays among those that changed.
        let known = |leaf: &Leaf| {
            let now = self.dirty.get(&leaf.stream).map(|changed| changed.place);
            now.is_some_and(|now| now.ver > leaf.ver || (now.ver == leaf.ver && now.head == leaf.head))
        };
        let fits = leaves.len() as u64 == seal.leaves && (1..=LEAVES_MAX).contains(&leaves.len());
        if !fits || !leaves.iter().all(known) || root(leaves) != seal.root {
            return Err(Error::Leaves(seal.number));
        }
        Ok(())
    }

    fn rotate(&self, current: Option<&Name>, rotation: &Rotation) -> Result<Decision, Error> {
        let Rotation { key_id, public_key, replaces, signature } = rotation.clone();
        let refuse = |why| Err(Error::Key(rotation.key_id.clone(), why));
        // The answer to the first one was lost.
        if current == Some(&key_id) && self.keys.get(&key_id) == Some(&public_key) {
            return Ok(Decision::new());
        }
        if self.keys.contains_key(&key_id) {
            return refuse("its name is taken");
        }
        if self.keys.len() >= KEYS_MAX {
            return refuse("there are too many keys");
        }
        if replaces.as_ref() != current {
            return refuse("it does not replace the current key");
        }
        if current.is_some() && signature.is_none() {
            return refuse("the current key did not sign it");
        }
        Ok(Decision::new().fact(KeyRotated { key_id, public_key, replaces, signature }))
    }

    /// Takes note of a committed record, in the order of the store: its stream's head changed. A seal's own
    /// record is no reason for another seal.
    #[must_use]
    pub fn observe(mut self, record: &Record) -> Sealer {
        if let Event::SealCreated(_) = record.event {
            return self.apply(&record.event, record.at);
        }
        let place = Head { ver: record.ver, head: record.chain };
        self.dirty.insert(record.stream.clone(), Changed { place, seq: record.seq });
        self.dirty_since = self.dirty_since.or(Some(record.at));
        self.apply(&record.event, record.at)
    }

    /// What a fact does to the sealer. Facts of other streams leave it as it is.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Sealer {
        match event {
            Event::SealCreated(e) => {
                let seal = Seal::recorded(e, at);
                self.number = seal.number;
                self.previous = Some(seal.hash());
                self.sealed_at = Some(seal.at);
                let through = e.through.unwrap_or_default();
                self.through = self.through.max(through);
                self.dirty.retain(|_, changed| changed.seq > through);
                self.dirty_since = (!self.dirty.is_empty()).then_some(at);
            }
            Event::KeyRotated(e) => {
                self.keys.insert(e.key_id.clone(), e.public_key);
                self.key_id = Some(e.key_id.clone());
            }
            Event::EpochsRaised(e) => self.epochs = self.epochs.max(e.floor),
            // The wide enum is narrowed here: everything else only moves heads, which `observe` notes.
            _ => {}
        }
        self
    }
}

fn sealed(proposal: &Proposal, signature: Signature) -> SealCreated {
    let seal = &proposal.seal;
    SealCreated {
        number: seal.number,
        root: seal.root,
        leaves: seal.leaves,
        previous: seal.previous,
        key_id: seal.key_id.clone(),
        signature,
        sealed_at: Some(seal.at),
        through: Some(proposal.through),
    }
}

#[cfg(test)]
pub(crate) mod tests;
