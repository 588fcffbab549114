//! Evidence: seals over the records, and bundles that prove a run to an auditor who does not trust the server.
//!
//! ```text
//!   log ──▶ sealing (a thread) ──▶ signed roots in the log
//!    └────▶ bundle: the run's records, the way of each stream to a seal ──▶ archive ──▶ verify, anywhere, offline
//! ```
//!
//! What is proved and how is the core's; here are the keys, the signatures, the thread that seals and the archive.

pub mod archive;
pub mod bucket;
pub mod bundle;
pub mod handed;
pub mod keep;
pub mod keys;
pub mod period;
pub mod proofs;
pub mod report;
pub mod seal;
pub mod shelf;

use windlass_core::code::Code;

/// Why something about evidence cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key cannot be read or written.
    #[error("the key {key} cannot be used: {why}")]
    Key {
        /// Which one, or where.
        key: String,
        /// Why.
        why: String,
    },
    /// A bundle cannot be kept.
    #[error("the bundle {path} cannot be kept: {why}")]
    Shelf {
        /// Where.
        path: String,
        /// Why.
        why: String,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] windlass_store::log::Error),
    /// The engine has ended, or refuses.
    #[error("{0}")]
    Engine(String),
    /// There is no such run.
    #[error("there is no run {0}")]
    Missing(String),
    /// What a proof needs is not there any more.
    #[error("{0}")]
    Unprovable(String),
    /// The file is no bundle.
    #[error("this is no evidence bundle: {0}")]
    NotABundle(String),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Key { .. } | Error::Shelf { .. } | Error::Engine(_) => Code::Unavailable,
            Error::Log(error) => error.code(),
            Error::Missing(_) => Code::NotFound,
            Error::Unprovable(_) => Code::RunInvalidTransition,
            Error::NotABundle(_) => Code::InvalidInput,
        }
    }
}
