//! Identities: ids made by the shell, names given by users, and the streams both belong to.
//!
//! An id is 128 bits with a typed prefix, printed as `run_` and 26 characters of Crockford's base 32.
//! It is `Copy`, sorts by the time it was made (the shell uses UUID v7) and has one spelling only, so a
//! foreign or malformed one is refused before anything is looked up.

mod names;
pub use names::Names;

use crate::wire::{self, Reader, Wire, Writer};
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not an id, a name or a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not have the form `prefix_` and 26 characters of base 32.
    #[error("`{0}` is not an id of the form {1}_ and 26 characters")]
    Id(String, &'static str),
    /// It is empty, too long, or holds a control character.
    #[error("`{0}` is not a name: 1 to {max} bytes without control characters are expected", max = Name::LEN_MAX)]
    Name(String),
    /// It names no kind of stream that this version knows.
    #[error("`{0}` is not a stream")]
    Stream(String),
    /// It is not written as `tenant/namespace/name`.
    #[error("`{0}` is not of the form tenant/namespace/name")]
    Scoped(String),
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_LEN: usize = 26;

fn encode_base32(value: u128, out: &mut [u8; ID_LEN]) {
    // Twelve characters are sixty bits: words are taken apart faster than a whole.
    let word = |mut rest: u64, slots: &mut [u8]| {
        for slot in slots.iter_mut().rev() {
            *slot = ALPHABET[(rest & 31) as usize];
            rest >>= 5;
        }
    };
    word((value >> 120) as u64, &mut out[..2]);
    word((value >> 60) as u64, &mut out[2..14]);
    word(value as u64, &mut out[14..]);
}

fn decode_base32(text: &[u8]) -> Option<u128> {
    // 26 characters hold 130 bits: the first may only carry three.
    if text.len() != ID_LEN || !(b'0'..=b'7').contains(&text[0]) {
        return None;
    }
    let mut bad = 0;
    // Twelve characters are sixty bits: three words are put together once.
    let mut word = |digits: &[u8]| {
        digits.iter().fold(0u64, |word, &c| {
            let digit = DIGITS[usize::from(c)];
            bad |= digit;
            word << 5 | u64::from(digit & 31)
        })
    };
    let (high, middle, low) = (word(&text[..2]), word(&text[2..14]), word(&text[14..]));
    (bad < 32).then_some(u128::from(high) << 120 | u128::from(middle) << 60 | u128::from(low))
}

/// The value of each character of the alphabet; of any other, one that is too high.
const DIGITS: [u8; 256] = {
    let mut digits = [0xff; 256];
    let mut i = 0;
    while i < ALPHABET.len() {
        digits[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    digits
};

macro_rules! ids {
    ($( $(#[$meta:meta])* $name:ident = $prefix:literal ),+ $(,)?) => {$(
        $(#[$meta])*
        // Aligned like a pointer: what holds an id is then no larger than it must be, and quicker to allocate.
        #[repr(Rust, packed(8))]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            /// What its text begins with.
            pub const PREFIX: &'static str = concat!($prefix, "_");

            /// Reads the one spelling an id has.
            ///
            /// # Errors
            /// [`Error::Id`] for any other text.
            pub fn parse(text: &str) -> Result<Self, Error> {
                Self::read(text.as_bytes()).ok_or_else(|| Error::Id(wire::shorten(text), $prefix))
            }

            pub(crate) fn read(text: &[u8]) -> Option<Self> {
                text.strip_prefix(Self::PREFIX.as_bytes()).and_then(decode_base32).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut digits = [0; ID_LEN];
                encode_base32(self.0, &mut digits);
                f.write_str(Self::PREFIX)?;
                // The alphabet is ASCII.
                f.write_str(core::str::from_utf8(&digits).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                wire::parsed(d, Self::parse)
            }
        }

        impl Wire for $name {
            fn kind() -> &'static str { concat!($prefix, " id") }
            fn put(&self, out: &mut Writer<'_>) {
                let mut digits = [0; ID_LEN];
                encode_base32(self.0, &mut digits);
                out.quoted_ascii(&[Self::PREFIX.as_bytes(), &digits]);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, wire::Error> {
                if let Some(id) = r.fixed(Self::PREFIX.len() + ID_LEN, Self::read) {
                    return Ok(id);
                }
                let text = r.text()?;
                Ok(Self::parse(&text)?)
            }
        }
    )+};
}

ids! {
    /// A durable execution of a pipeline.
    RunId = "run",
    /// A request for a human's decision.
    ApprovalId = "apr",
    /// An item of a queue.
    ItemId = "itm",
    /// A live session (a tmux session, usually) in which an agent works.
    SessionId = "ses",
    /// A working directory of a run.
    WorkspaceId = "wsp",
    /// A record of an effect on the outside world.
    ReceiptId = "rcp",
    /// An agent at work on one step: stable across the restarts of its session.
    AgentId = "agt",
    /// A token. What its bearer shows is a secret; this is what it is called.
    TokenId = "tok",
    /// A one-shot message to the outside that was asked for: a notification, a nudge.
    NoticeId = "ntc",
}

/// A bounded, printable name: of a pipeline, a step, a queue, a lock, a user. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The most bytes a name may have.
    pub const LEN_MAX: usize = 512;

    /// Checks and makes a name.
    ///
    /// # Errors
    /// [`Error::Name`] when it is empty, too long or holds a control character.
    pub fn new(text: &str) -> Result<Name, Error> {
        if text.is_empty() || text.len() > Self::LEN_MAX || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err(Error::Name(wire::shorten(text)));
        }
        Ok(Name(Arc::from(text)))
    }

    /// Makes a name of text that the program itself built: what does not fit is cut or replaced.
    #[must_use]
    pub fn clean(text: &str) -> Name {
        Name::new(text).unwrap_or_else(|_| {
            let mut kept = String::new();
            for c in text.chars().map(|c| if c.is_control() { '_' } else { c }) {
                if kept.len() + c.len_utf8() > Self::LEN_MAX {
                    break;
                }
                kept.push(c);
            }
            Name(Arc::from(if kept.is_empty() { "_" } else { kept.as_str() }))
        })
    }

    /// The text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl core::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        wire::parsed(d, Name::new)
    }
}

impl Wire for Name {
    fn kind() -> &'static str {
        "name"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.string(&self.0);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, wire::Error> {
        r.name()
    }
}

/// A step of a run: the stable name from the runbook, with what makes an instance of it unique
/// (`each[3]` for an item, `land#2` for a group's second attempt).
pub type StepId = Name;

/// One attempt at a step, under the lease that permits it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptId {
    /// The run.
    pub run: RunId,
    /// The step.
    pub step: StepId,
    /// The fence: what comes under an older one is refused.
    pub epoch: u64,
}

impl AttemptId {
    /// The attempt at a step of a run under an epoch.
    #[must_use]
    pub fn new(run: RunId, step: &StepId, epoch: u64) -> AttemptId {
        AttemptId { run, step: step.clone(), epoch }
    }

    /// Whether it is an attempt at the same step.
    #[must_use]
    pub fn same_step(&self, other: &AttemptId) -> bool {
        self.run == other.run && self.step == other.step
    }

    /// Whether `other` is a newer attempt at the same step, or the same.
    #[must_use]
    pub fn overtaken_by(&self, other: &AttemptId) -> bool {
        self.same_step(other) && self.epoch <= other.epoch
    }
}

/// As `run/step/epoch`: what the keeper of commands knows the attempt by.
impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.run, self.step, self.epoch)
    }
}

/// A name within a tenant and a namespace, written `tenant/namespace/name`. The name may hold slashes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scoped(Arc<str>);

impl Scoped {
    /// Joins the three parts.
    #[must_use]
    pub fn new(tenant: &Name, namespace: &Name, name: &Name) -> Scoped {
        Scoped(Arc::from(alloc::format!("{tenant}/{namespace}/{name}")))
    }

    /// Reads `tenant/namespace/name`.
    ///
    /// # Errors
    /// [`Error::Scoped`] when a part is missing.
    pub fn parse(text: &str) -> Result<Scoped, Error> {
        let mut parts = text.splitn(3, '/');
        let fits = |part: Option<&str>| part.is_some_and(|p| Name::new(p).is_ok());
        if fits(parts.next()) && fits(parts.next()) && fits(parts.next()) {
            Ok(Scoped(Arc::from(text)))
        } else {
            Err(Error::Scoped(wire::shorten(text)))
        }
    }

    /// What comes before every name of a namespace: a place to begin at.
    #[must_use]
    pub fn first_of(tenant: &Name, namespace: &Name) -> Scoped {
        Scoped(Arc::from(alloc::format!("{tenant}/{namespace}/")))
    }

    /// What comes before every name: a place to begin at.
    pub(crate) fn least() -> Scoped {
        Scoped(Arc::from(""))
    }

    fn part(&self, n: usize) -> &str {
        // Construction checked that there are three parts.
        self.0.splitn(3, '/').nth(n).unwrap_or_default()
    }

    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.part(0)
    }

    /// The subdivision of the tenant.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.part(1)
    }

    /// The name within it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.part(2)
    }

    /// All three parts.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Scoped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Text forms through `Display` and a `parse` function, for serde and the wire alike.
macro_rules! textual {
    ($name:ident, $kind:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                wire::parsed(d, Self::parse)
            }
        }
        impl Wire for $name {
            fn kind() -> &'static str {
                $kind
            }
            fn put(&self, out: &mut Writer<'_>) {
                out.display(self);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, wire::Error> {
                let text = r.text()?;
                Ok(Self::parse(&text)?)
            }
        }
    };
}
pub(crate) use textual;

textual!(Scoped, "scoped name");
textual!(Holder, "holder");

/// Who holds a lock or slots of a semaphore.
///
/// Runs and their steps do not beat: their own facts release what they hold. Outside holders beat.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A whole run: `pipeline:run_…`.
    Run(RunId),
    /// A step of a run: `pipeline:run_…/step`.
    Step(RunId, StepId),
    /// A worker of a runbook: `worker:name`.
    Worker(Name),
    /// A program that only wants coordination: any other text.
    Outside(Name),
}

impl Holder {
    /// Whether it keeps its hold without heartbeats.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        matches!(self, Holder::Run(_) | Holder::Step(..))
    }

    /// The run behind the hold, if it is one of ours.
    #[must_use]
    pub fn run(&self) -> Option<RunId> {
        match self {
            Holder::Run(run) | Holder::Step(run, _) => Some(*run),
            Holder::Worker(_) | Holder::Outside(_) => None,
        }
    }

    /// Reads a holder.
    ///
    /// # Errors
    /// Text that begins with `pipeline:` but is no run, and text that is no name.
    pub fn parse(text: &str) -> Result<Holder, Error> {
        if let Some(rest) = text.strip_prefix("pipeline:") {
            return match rest.split_once('/') {
                None => Ok(Holder::Run(RunId::parse(rest)?)),
                Some((run, step)) => Ok(Holder::Step(RunId::parse(run)?, Name::new(step)?)),
            };
        }
        match text.strip_prefix("worker:") {
            Some(worker) => Ok(Holder::Worker(Name::new(worker)?)),
            None => Ok(Holder::Outside(Name::new(text)?)),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Run(run) => write!(f, "pipeline:{run}"),
            Holder::Step(run, step) => write!(f, "pipeline:{run}/{step}"),
            Holder::Worker(name) => write!(f, "worker:{name}"),
            Holder::Outside(name) => write!(f, "{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_id_has_one_spelling() {
        for value in [0, 1, 31, 32, u128::MAX, 0x0190_1234_5678_7abc_8def_0123_4567_89ab] {
            let id = RunId(value);
            assert_eq!(RunId::parse(&id.to_string()), Ok(id));
        }
        let text = RunId(7).to_string();
        assert_eq!(text, "run_00000000000000000000000007");
        for bad in [
            "",
            "run_",
            "run_7",
            "itm_00000000000000000000000007",
            "run_80000000000000000000000000",
            "run_0000000000000000000000000u",
            "run_0000000000000000000000000A",
            "run_000000000000000000000000077",
        ] {
            assert!(RunId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_sort_as_their_texts_do() {
        let (a, b) = (RunId(0xfff), RunId(0x1000));
        assert!(a < b && a.to_string() < b.to_string());
    }

    #[test]
    fn names_are_bounded_and_printable() {
        assert!(Name::new("ok").is_ok());
        assert!(Name::new("").is_err());
        assert!(Name::new("a\nb").is_err());
        assert!(Name::new(&"x".repeat(Name::LEN_MAX + 1)).is_err());
        assert_eq!(Name::clean("a\nb").as_str(), "a_b");
        assert_eq!(Name::clean(&"é".repeat(Name::LEN_MAX)).as_str().len(), Name::LEN_MAX);
    }

    #[test]
    fn holders_and_scopes_read_back() {
        let step = Holder::Step(RunId(1), Name::clean("a/b"));
        for holder in [
            Holder::Run(RunId(1)),
            step,
            Holder::Worker(Name::clean("w")),
            Holder::Outside(Name::clean("ci")),
        ] {
            assert_eq!(Holder::parse(&holder.to_string()), Ok(holder));
        }
        assert!(Holder::parse("pipeline:nonsense").is_err());
        let scoped = Scoped::parse("acme/default/merge/main").unwrap();
        assert_eq!((scoped.tenant(), scoped.namespace(), scoped.name()), ("acme", "default", "merge/main"));
        assert!(Scoped::parse("acme//x").is_err());
    }
}
