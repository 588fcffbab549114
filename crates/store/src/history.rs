//! History: a derived index of the runs that have ended, for listing and search.
//!
//! The log is the truth. Runs that have ended leave memory, and this index answers for them: one row a run, none a
//! record. It can be deleted at any time and is then built again from the log, which is why a damaged file is set
//! aside and never repaired. Invariant: `through` and the rows it speaks of are written in one transaction, so whatever
//! a crash takes, it takes both.
//!
//! ```text
//!  put, remove ─▶ pending (bounded, merged by run) ─▶ writer thread ─▶ one transaction: rows + through
//!                                                          │
//!  flushed ◀── ids that are committed ◀────────────────────┘        get, find, list ─▶ connections of their own
//! ```

mod file;
mod read;
mod write;

#[cfg(test)]
mod tests;

use crate::shape;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use windlass_core::code::Code;
use windlass_core::id::{ApprovalId, Name, RunId};
use windlass_core::run::{Run, Status};
use windlass_core::time::Millis;

/// The most rows that one page may ask for.
pub const PAGE_MAX: usize = 10_000;

/// What the index knows of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The run.
    pub id: RunId,
    /// Whose it is.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// How it ended.
    pub status: Status,
    /// The pipeline.
    pub pipeline: Name,
    /// The repository it is about.
    pub repo: Option<String>,
    /// When it was created.
    pub created_at: Millis,
    /// When its last fact was recorded.
    pub updated_at: Millis,
    /// When it ended.
    pub completed_at: Option<Millis>,
    /// Where in the log its first record is.
    pub first_seq: u64,
    /// Where in the log its last record is.
    pub last_seq: u64,
    /// The run as lists show it.
    pub json: String,
    /// Its approvals, for [`History::approvals`] to find it by. A row that is read back does not list them.
    pub approvals: Vec<ApprovalId>,
}

impl Row {
    /// The row of a run whose records stand in the log from the first to the second of `seqs`. Its variables are left
    /// out, because they are private: they stay in the log, where they can be redacted.
    #[must_use]
    pub fn of(run: &Run, seqs: (u64, u64)) -> Row {
        let born = &run.born;
        let mut json = shape::run(run, None, false);
        if let Some(object) = json.as_object_mut() {
            // Private values stay in the log alone, where they can be taken away.
            object.remove("vars");
            object.remove("result");
            if let Some(error) = object.get_mut("error").and_then(|error| error.as_object_mut()) {
                error.remove("message");
            }
        }
        Row {
            id: born.id,
            tenant: born.home.tenant.clone(),
            namespace: born.home.namespace.clone(),
            status: run.status(),
            pipeline: born.home.pipeline.clone(),
            repo: born.subject.as_ref().and_then(|subject| subject.repo.clone()),
            created_at: born.created_at,
            updated_at: run.updated_at,
            completed_at: run.ending.as_ref().map(|ending| ending.at),
            first_seq: seqs.0,
            last_seq: seqs.1,
            json: json.to_string(),
            approvals: run.rare().approvals.keys().copied().collect(),
        }
    }
}

/// Which runs a list shows, newest first. Ids are sorted by time, so the order is that of the ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Whose runs.
    pub tenant: Name,
    /// The subdivision.
    pub namespace: Name,
    /// How they ended.
    pub status: Option<Status>,
    /// Of this pipeline.
    pub pipeline: Option<Name>,
    /// About this repository.
    pub repo: Option<String>,
    /// Created then or later.
    pub since: Option<Millis>,
    /// Older than this run: the last of the page before.
    pub before: Option<RunId>,
    /// How many at most; [`PAGE_MAX`] is the most.
    pub limit: usize,
}

/// Why the index could not do what it was asked. The log is not concerned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no room. Rows wait in memory and are written when there is room again.
    #[error("the disk of the history index {} is full ({detail}): make room; what waits is written then", path.display())]
    Full {
        /// The index.
        path: PathBuf,
        /// What was reported.
        detail: String,
    },
    /// The file is not what was written. The next start sets it aside and builds it anew.
    #[error("the history index {} is damaged ({detail}): restart Windlass, which rebuilds it from the log", path.display())]
    Damaged {
        /// The index.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// Another process has the file.
    #[error("the history index {} is in use elsewhere ({detail}): end the other process, or try again", path.display())]
    Busy {
        /// The index.
        path: PathBuf,
        /// What was reported.
        detail: String,
    },
    /// The system does not let us read or write it.
    #[error("the history index {} cannot be read or written ({detail}): check the folder and its permissions", path.display())]
    Io {
        /// The index.
        path: PathBuf,
        /// What was reported.
        detail: String,
    },
    /// More rows than a page has.
    #[error("{asked} rows were asked for and a page has at most {max}: ask for fewer, and for the next page", max = PAGE_MAX)]
    Page {
        /// How many.
        asked: usize,
    },
    /// The writer thread has ended by a defect; nothing is written any more.
    #[error("the writer of the history index {} has ended: restart Windlass", path.display())]
    Ended {
        /// The index.
        path: PathBuf,
    },
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Full { .. } => Code::StoreFull,
            // Not `STORE_CORRUPT`: that is said of the log, and this file can be had again from it.
            Error::Damaged { .. } | Error::Busy { .. } | Error::Io { .. } => Code::Unavailable,
            Error::Page { .. } => Code::InvalidInput,
            Error::Ended { .. } => Code::Internal,
        }
    }
}

/// The index. It can be asked from any thread.
pub struct History {
    readers: read::Readers,
    queue: std::sync::Arc<write::Queue>,
    writer: Option<JoinHandle<()>>,
    warning: Option<String>,
}

impl History {
    /// Opens the index, or begins one. A file that is damaged or of another version is renamed (`.damaged` is added to
    /// its name) and begun anew; [`History::warning`] says so then, and [`History::through`] that it is empty.
    ///
    /// # Errors
    /// The file cannot be made, read or written, or another process has it.
    pub fn open(path: &Path) -> Result<History, Error> {
        let file::Opened { connection, found, warning } = file::open(path)?;
        let readers = read::Readers::open(path)?;
        let queue = std::sync::Arc::new(write::Queue::new(path, &found));
        let writer = write::start(std::sync::Arc::clone(&queue), connection)?;
        Ok(History { readers, queue, writer: Some(writer), warning })
    }

    /// What is to be said about the file that was found.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Every run that ended at or before this place in the log is in the index.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.queue.through()
    }

    /// The highest id in the index.
    #[must_use]
    pub fn max_id(&self) -> Option<RunId> {
        self.queue.id_max()
    }

    /// Hands rows over to the writer, with how far the log is indexed once they are in. A run that is known is replaced.
    ///
    /// It waits while too much is pending. While writing fails it does not: what there is no room for is dropped then, is
    /// never [`History::flushed`], and `through` stands still, so that the next start takes up from there.
    pub fn put(&self, rows: Vec<Row>, through: u64) {
        self.queue.put(rows, through);
    }

    /// Takes runs out of the index. What there is no room for while writing fails is left in; retention comes again.
    pub fn remove(&self, ids: &[RunId]) {
        self.queue.remove(ids);
    }

    /// The runs whose rows were committed since this was last asked. Only the newest million are remembered.
    #[must_use]
    pub fn flushed(&self) -> Vec<RunId> {
        self.queue.flushed()
    }

    /// Waits until everything that was handed over is committed.
    ///
    /// # Errors
    /// Writing fails. It is tried again later all the same.
    pub fn flush(&self) -> Result<(), Error> {
        self.queue.flush()
    }

    /// Why writing fails at present.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.queue.failure()
    }

    /// The row of a run.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn get(&self, id: RunId) -> Result<Option<Row>, Error> {
        self.readers.with(|connection| read::get(connection, id))
    }

    /// The tenant's runs from `low` to `high`, both included, oldest first: what an id's prefix may mean.
    ///
    /// # Errors
    /// The file cannot be read, or `max` is more than [`PAGE_MAX`].
    pub fn find(
        &self,
        place: (&Name, &Name),
        low: RunId,
        high: RunId,
        max: usize,
    ) -> Result<Vec<RunId>, Error> {
        bounded(max)?;
        self.readers.with(|connection| read::find(connection, place, (low, high), max))
    }

    /// A page of runs, newest first.
    ///
    /// # Errors
    /// The file cannot be read, or the limit is more than [`PAGE_MAX`].
    pub fn list(&self, filter: &Filter) -> Result<Vec<Row>, Error> {
        bounded(filter.limit)?;
        self.readers.with(|connection| read::list(connection, filter))
    }

    /// Approvals from `low` to `high`, both included, and the run of each, in order.
    ///
    /// # Errors
    /// The file cannot be read, or `max` is more than [`PAGE_MAX`].
    pub fn approvals(
        &self,
        low: ApprovalId,
        high: ApprovalId,
        max: usize,
    ) -> Result<Vec<(ApprovalId, RunId)>, Error> {
        bounded(max)?;
        self.readers.with(|connection| read::approvals(connection, (low, high), max))
    }

    /// Runs that ended before a time, oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ended_before(&self, at: Millis, max: usize) -> Result<Vec<RunId>, Error> {
        self.readers.with(|connection| read::ended_before(connection, at, max))
    }

    /// How many runs there are.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn count(&self) -> Result<u64, Error> {
        self.readers.with(read::count)
    }

    /// Writes what is pending and closes the file.
    ///
    /// # Errors
    /// Something could not be written. The next start takes it from the log.
    pub fn close(mut self) -> Result<(), Error> {
        self.stop();
        self.queue.ending()
    }

    /// Nothing can be read any more, as on a disk that fails.
    #[cfg(test)]
    pub(crate) fn lose_readers(&mut self) {
        self.readers.close();
    }

    fn stop(&mut self) {
        // The writer closes last, because only it may fold the write-ahead log into the file.
        self.readers.close();
        self.queue.close();
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has left word in the queue.
            let _ = writer.join();
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.stop();
    }
}

fn bounded(asked: usize) -> Result<(), Error> {
    if asked > PAGE_MAX { Err(Error::Page { asked }) } else { Ok(()) }
}

/// How a status is stored. The numbers are part of the file's version.
const fn number(status: Status) -> u8 {
    match status {
        Status::Pending => 0,
        Status::Blocked => 1,
        Status::Running => 2,
        Status::AwaitingApproval => 3,
        Status::WaitingExternal => 4,
        Status::FailedRetryable => 5,
        Status::Completed => 6,
        Status::Failed => 7,
        Status::Cancelled => 8,
    }
}

/// The time in an id, if it is one that is sorted by time. Nothing relies on it but speed.
fn id_ms(id: RunId) -> u64 {
    // A shift by 80 leaves 48 bits.
    u64::try_from(id.0 >> ID_MS_SHIFT).unwrap_or(u64::MAX)
}

/// Where in an id its time stands.
const ID_MS_SHIFT: u32 = 80;
