//! Errors of the log: what happened, where, and what to do next.

use std::io;
use std::path::{Path, PathBuf};
use windlass_core::code::Code;
use windlass_core::stream::StreamId;

/// What the log refuses or cannot do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another process has the data directory.
    #[error("{} is in use by {}: stop it, or talk to it through its socket", path.display(), who(*pid))]
    Locked {
        path: PathBuf,
        /// The process that has it, if it left its number.
        pid: Option<u32>,
    },
    /// What was acknowledged is damaged. Nothing on the disk was changed.
    #[error("{file} is damaged at byte {offset}: {what}. Restore a backup, or move the data directory away")]
    Corrupt {
        /// Which file, from the data directory.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// Something that was acknowledged is not there. Nothing on the disk was changed.
    #[error("{what}. Put back what is missing, restore a backup, or move the data directory away")]
    Lost {
        /// What is missing, and what says so.
        what: String,
    },
    /// A newer version wrote the file.
    #[error("{file} has format {format}, this version reads up to {known}: use the version that wrote it")]
    Newer {
        file: String,
        format: u64,
        /// The newest that is known.
        known: u64,
    },
    /// A sync failed. Nothing is known of what was not durable before: the process must end and recover.
    #[error(
        "{what} could not be made durable ({message}): the process must end, and recovers when started again"
    )]
    SyncFailed {
        /// What was synced.
        what: String,
        /// What the system said.
        message: String,
    },
    /// There is no room. Nothing of the batch remains; the next one is tried again.
    #[error("there is no room on the disk for {what}: free some; writing goes on by itself then")]
    Full {
        /// What there is no room for.
        what: String,
    },
    /// A fact that does not follow from the one before in its stream; nothing of its batch was written.
    #[error("{stream} is at version {have}, the batch has version {ver}")]
    Gap {
        stream: StreamId,
        /// The version of its last record, in as far as the log knows the stream.
        have: u64,
        ver: u64,
    },
    /// A batch that is larger than any may be.
    #[error("the batch has {bytes} bytes, of {max} at most: commit it in parts")]
    TooLarge {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// Too much is waiting to be written.
    #[error("{0} batches are waiting to be written: try again once some are")]
    Busy(usize),
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
    /// The reader's callback refused a record.
    #[error("the record with seq {seq} in {file} cannot be used: {message}")]
    Refused {
        file: String,
        /// Which record; 0 where it is a stream of a snapshot.
        seq: u64,
        message: String,
    },
    /// The system said no.
    #[error("{what} {}: {message}", path.display())]
    Io {
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
}

fn who(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Locked { .. } => Code::LockBusy,
            Error::Corrupt { .. } | Error::Lost { .. } | Error::Refused { .. } => Code::StoreCorrupt,
            Error::Newer { .. } | Error::TooLarge { .. } => Code::InvalidInput,
            Error::Full { .. } => Code::StoreFull,
            Error::Busy(_) => Code::CapExceeded,
            Error::SyncFailed { .. } | Error::Gap { .. } | Error::Closed | Error::Io { .. } => Code::Internal,
        }
    }

    /// Makes an error of what the system said about a file.
    pub(super) fn io<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Error + use<'a> {
        move |error| {
            if crate::disk::is_full(&error) {
                return Error::Full { what: path.display().to_string() };
            }
            Error::Io { what, path: path.to_path_buf(), message: error.to_string() }
        }
    }

    /// Makes an error of a sync that failed.
    pub(super) fn sync(path: &Path) -> impl Fn(io::Error) -> Error + use<'_> {
        |error| Error::SyncFailed { what: path.display().to_string(), message: error.to_string() }
    }
}
