//! History: a derived index of the runs that have ended, for listing and search, and of named streams.
//!
//! The log is the truth. Runs that have ended leave memory, and this index answers for them: one row a run, none a
//! record. A stream that users name (a key, a lock, a semaphore, kept events) has a row from its first record on, because
//! it may come again after it has left memory. The index can be deleted at any time and is then built again from the log, which is why a damaged file is set
//! aside and never repaired. Invariant: `through` and the rows it speaks of are written in one transaction, so whatever
//! a crash takes, it takes both.
//!
//! ```text
//!  put, remove ─▶ pending (bounded, merged by run) ─▶ writer thread ─▶ one transaction: rows + through
//!                                                          │
//!  flushed ◀── ids that are committed ◀────────────────────┘        get, find, list ─▶ connections of their own
//! ```

mod file;
mod kept;
mod read;
mod write;

#[cfg(test)]
mod tests;

use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{ApprovalId, ItemId, Name, RunId};
use windlass_core::run::{Run, Source, Status, Trigger};
use windlass_core::time::Millis;

/// The most rows that one page may ask for.
pub const PAGE_MAX: usize = 10_000;
/// The most bytes of a page of runs, or a run more.
pub const PAGE_LEN_MAX: usize = 4 << 20;

/// What the index knows of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: RunId,
    /// The first run of its lineage.
    pub root: RunId,
    pub tenant: Name,
    pub namespace: Name,
    /// How it ended.
    pub status: Status,
    pub pipeline: Name,
    /// The repository it is about.
    pub repo: Option<String>,
    /// The version of the runbook that it runs.
    pub runbook: Digest,
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
    /// What is known of the run beside the columns, with the keys that answers have.
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
        Row {
            id: born.id,
            root: born.lineage().root_run,
            tenant: born.home.tenant.clone(),
            namespace: born.home.namespace.clone(),
            status: run.status(),
            pipeline: born.home.pipeline.clone(),
            repo: born.subject.as_ref().and_then(|subject| subject.repo.clone()),
            runbook: born.home.runbook,
            created_at: born.created_at,
            updated_at: run.updated_at,
            completed_at: run.ending.as_ref().map(|ending| ending.at),
            first_seq: seqs.0,
            last_seq: seqs.1,
            // It always can be written: its keys are text.
            json: serde_json::to_string(&kept::Kept::of(run)).unwrap_or_default(),
            approvals: run.rare().approvals.keys().copied().collect(),
        }
    }
}

impl Row {
    /// Whether the run takes another one back.
    #[must_use]
    pub fn takes_back(&self) -> bool {
        #[derive(Default, Deserialize)]
        struct Told {
            takes_back: Option<serde::de::IgnoredAny>,
        }
        serde_json::from_str::<Told>(&self.json).unwrap_or_default().takes_back.is_some()
    }
}

/// Which runs a list shows, newest first. Ids are sorted by time, so the order is that of the ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub tenant: Name,
    pub namespace: Name,
    /// How they ended.
    pub status: Option<Status>,
    pub pipeline: Option<Name>,
    /// About this repository.
    pub repo: Option<String>,
    /// What the indexes do not know of.
    pub origin: Origin,
    /// Created then or later.
    pub since: Option<Millis>,
    /// Older than this run: the last of the page before.
    pub before: Option<RunId>,
    /// How many at most; [`PAGE_MAX`] is the most.
    pub limit: usize,
}

/// Where runs came from, as far as no index knows it: rows are looked at one by one for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Of one of these runbooks.
    pub runbooks: Option<Vec<Digest>>,
    /// Made by one of these workers.
    pub workers: Option<Vec<Name>>,
    /// Made for this item.
    pub item: Option<ItemId>,
}

impl Origin {
    /// Whether any run is taken.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self == Origin::default()
    }

    /// Whether a run of this runbook, with this trigger, is taken.
    #[must_use]
    pub fn takes(&self, runbook: Digest, trigger: &Trigger) -> bool {
        let queued = trigger.source == Source::Queue;
        let by = |workers: &Vec<Name>| trigger.of.as_ref().is_some_and(|of| workers.contains(of));
        let item = || ItemId::parse(trigger.event_id.as_ref()?.as_str()).ok();
        self.runbooks.as_ref().is_none_or(|wanted| wanted.contains(&runbook))
            && self.workers.as_ref().is_none_or(|wanted| queued && by(wanted))
            && self.item.is_none_or(|wanted| queued && item() == Some(wanted))
    }

    /// Whether a row is taken. One that does not say where it came from is not.
    fn takes_row(&self, row: &Row) -> bool {
        let Ok(mut told) = serde_json::from_str::<serde_json::Value>(&row.json) else { return false };
        let trigger = serde_json::from_value(told["trigger"].take()).ok();
        let hash = told["runbook_hash"].as_str().and_then(Digest::parse);
        hash.zip(trigger).is_some_and(|(hash, trigger)| self.takes(hash, &trigger))
    }
}

/// A page of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows, newest first.
    pub rows: Vec<Row>,
    /// The last run that was looked at, where there may be further ones below it and the page is not full.
    pub floor: Option<RunId>,
}

/// Why the index could not do what it was asked. The log is not concerned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no room. Rows wait in memory and are written when there is room again.
    #[error("the disk of the history index {} is full ({detail}): make room; what waits is written then", path.display())]
    Full {
        path: PathBuf,
        /// What was reported.
        detail: String,
    },
    /// The file is not what was written. The next start sets it aside and builds it anew.
    #[error("the history index {} is damaged ({detail}): restart Windlass, which rebuilds it from the log", path.display())]
    Damaged {
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// Another process has the file.
    #[error("the history index {} is in use elsewhere ({detail}): end the other process, or try again", path.display())]
    Busy {
        path: PathBuf,
        /// What was reported.
        detail: String,
    },
    /// The system does not let us read or write it.
    #[error("the history index {} cannot be read or written ({detail}): check the folder and its permissions", path.display())]
    Io {
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
    Ended { path: PathBuf },
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
    /// The file cannot be made, read or written, or another process has it. On a full disk the index is begun in memory.
    pub fn open(path: &Path) -> Result<History, Error> {
        let opened = file::open(path);
        let begun =
            opened.and_then(|opened| History::begin(path, &file::Where::File(path.to_owned()), opened));
        match begun {
            // Reads are served all the same.
            Err(Error::Full { detail, .. }) => History::in_memory(path, &detail),
            Ok(history) => Ok(history),
            Err(error) => Err(error),
        }
    }

    /// Begins an index in memory, because the disk is full. The next start writes what the file lacks.
    ///
    /// # Errors
    /// There is no memory either.
    pub fn in_memory(path: &Path, detail: &str) -> Result<History, Error> {
        let (place, name) = file::Where::memory();
        let opened = file::open_memory(path, &name)?;
        let mut history = History::begin(path, &place, opened)?;
        history.warning = Some(format!(
            "the disk is full ({detail}): until the next start the history index {} is kept in memory",
            path.display()
        ));
        Ok(history)
    }

    fn begin(path: &Path, place: &file::Where, opened: file::Opened) -> Result<History, Error> {
        let file::Opened { connection, found, warning } = opened;
        let readers = read::Readers::open(path, place)?;
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

    /// Named streams begin at or after these places in the log. One that is known begins anew.
    pub fn put_streams(&self, streams: Vec<(String, u64)>) {
        self.queue.put_streams(streams.into_iter().map(|(name, seq)| (name, Some(seq))).collect());
    }

    /// Takes named streams out of the index: the log does not have them any more.
    pub fn remove_streams(&self, names: Vec<String>) {
        self.queue.put_streams(names.into_iter().map(|name| (name, None)).collect());
    }

    /// Where the records of a named stream begin, once that is committed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn stream(&self, name: &str) -> Result<Option<u64>, Error> {
        self.readers.with(|connection| read::stream(connection, name))
    }

    /// Whether any named stream is known.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has_streams(&self) -> Result<bool, Error> {
        self.readers.with(read::has_streams)
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
        self.page(filter).map(|page| page.rows)
    }

    /// A page of runs, newest first, and how far was looked where that was not to the end.
    ///
    /// # Errors
    /// The file cannot be read, or the limit is more than [`PAGE_MAX`].
    pub fn page(&self, filter: &Filter) -> Result<Page, Error> {
        bounded(filter.limit)?;
        self.readers.with(|connection| read::page(connection, filter))
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

    /// The runs of a lineage, named by its first run; so many at most.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn lineage(&self, root: RunId, max: usize) -> Result<Vec<RunId>, Error> {
        self.readers.with(|connection| read::lineage(connection, root, max))
    }

    /// Whether a run has this version of a runbook.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has_runbook(&self, runbook: &Digest) -> Result<bool, Error> {
        self.readers.with(|connection| read::has_runbook(connection, runbook))
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
