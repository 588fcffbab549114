//! The embedded log: facts on a disk, durable before any caller hears of them.
//!
//! ```text
//!  commit ─▶ encode, chain ─▶ append, trailer ─▶ sync ─▶ done
//!                                   │
//!     log/…wal  [header][batch][batch][batch]000000          ◀ one file at a time is written
//!     snapshot/…  live streams, so that recovery is short
//!     log/carried-…  what compaction kept of older files
//!     log/heads…  heads of what it dropped, for seals
//! ```
//!
//! Promises: a batch that was answered with [`Durable`] survives a kill and a power loss (D1); any other batch is there as a
//! whole or not at all. Damage to durable data refuses to open; a torn tail is dropped (D2). A failed sync ends the log for
//! this process, and a full disk refuses batches but nothing else, until the next batch fits (D3). `docs/adr/0006-the-log.md` says why it is built this way.

mod bench;
mod commit;
mod compact;
mod copy;
mod encode;
mod error;
mod frame;
mod heads;
mod index;
mod layout;
mod noted;
mod read;
mod recover;
mod replay;
mod salts;
mod snapshot;
mod space;
mod stops;
mod tail;
#[cfg(test)]
mod tests;
mod walk;

pub use bench::{Figures, bench};
pub use compact::{Compacted, Cuts, Rule};
pub use copy::{Verified, restore, verify};
pub use error::Error;
pub use heads::Gone;
pub(crate) use layout::HISTORY;
pub use read::Seqs;
pub use snapshot::Saved;
pub use windlass_core::audit::Head;

use crate::disk::{Disk, Hold, Locking};
use commit::Shared;
use encode::Encoder;
use layout::Layout;
use salts::Salts;
use snapshot::{Dropping, Progress, Saver};
use space::Space;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use stops::Stops;
use windlass_core::digest::Digest;
use windlass_core::record::Record;
use windlass_core::stream::StreamId;
use windlass_core::turn::state::Snapshot;
use windlass_engine::port::Decided;

/// What can be set.
#[derive(Clone, Debug)]
pub struct Options {
    /// How large a segment is made. A batch that is larger makes one that is larger.
    pub segment_bytes: u64,
    /// How many segments' room is kept from what is dropped.
    pub spares_max: usize,
    /// How many bytes are gathered into one write, at about the most.
    pub group_bytes_max: usize,
    /// Up to how many entries a batch is written by the thread that commits it, if nothing is under way. For more, the
    /// hand-over costs little, and that thread has better things to do.
    pub inline_max: usize,
    /// How many batches may wait.
    pub waiting_max: usize,
    /// After how long without a batch the log says of itself that all of it is durable.
    pub idle: Duration,
    /// How many snapshots are kept.
    pub snapshots_kept: usize,
    /// Whether a batch without room takes all that wait behind it along, until [`Log::resume`]: for those whose batches
    /// build on each other.
    pub halt_when_full: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 32 << 20,
            spares_max: 2,
            group_bytes_max: 4 << 20,
            inline_max: 64,
            waiting_max: 1 << 16,
            idle: Duration::from_millis(100),
            snapshots_kept: 2,
            halt_when_full: false,
        }
    }
}

/// What a batch consists of.
#[derive(Debug)]
pub enum Entry {
    /// Facts: each is the next record of its stream.
    Facts {
        /// What was decided.
        facts: Vec<Decided>,
        /// The version of each in its stream: one more than the last.
        vers: Vec<u64>,
    },
    /// A snapshot begins: every stream that is live now and does not end before is to be handed over.
    Begin,
    /// A stream for the snapshot, as it is after all facts before this. The log fills its head in.
    Snapshot(Box<Snapshot>),
    /// The snapshot is complete.
    End,
    /// The stream has ended and is no longer in memory; its head is not kept.
    Forget(StreamId),
    /// A stream that was forgotten is to go on from here.
    Remember(StreamId, Head),
}

impl Entry {
    /// How much there is to encode.
    fn weight(&self) -> usize {
        match self {
            Entry::Facts { facts, .. } => facts.len(),
            Entry::Begin | Entry::Snapshot(_) | Entry::End | Entry::Forget(_) | Entry::Remember(..) => 1,
        }
    }
}

/// What a batch is answered with, exactly once, by whichever thread made it durable. It must be quick and must not
/// panic, because everybody waits for it meanwhile. It may submit.
pub type Done = Box<dyn FnOnce(Result<Durable, Error>) + Send>;

/// Entries that become durable together or not at all.
pub struct Batch {
    /// What it consists of.
    pub entries: Vec<Entry>,
    /// Who wants to know.
    pub done: Done,
}

/// A batch is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durable {
    /// The seq of its first fact.
    pub first_seq: u64,
    /// The seq of its last fact; one less than the first if it has none.
    pub last_seq: u64,
    /// The chain values of its facts, in their order.
    pub chains: Vec<Digest>,
}

/// What recovery hands over: first the streams of a snapshot, then the records that came after.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all are records.
pub enum Line<'a> {
    /// A stream as a snapshot has it.
    Saved(Box<Snapshot>),
    /// A record that is not in the snapshot.
    Record {
        /// The record; its chain was checked.
        record: Record,
        /// Its line, as it stands in the log.
        text: &'a str,
    },
}

/// What recovery found.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// The snapshot it began with.
    pub snapshot: Option<String>,
    /// How many streams came from it.
    pub streams: u64,
    /// How many records came after.
    pub records: u64,
    pub last_seq: u64,
    /// How many bytes after the last whole batch were not zeros and were dropped.
    pub torn_bytes: u64,
    /// What was wrong and could be helped.
    pub warnings: Vec<String>,
    /// Streams that were forgotten, and then remembered after the snapshot: their records were not handed over, because
    /// those before the snapshot are missing. [`Log::scan`] has all of them.
    pub orphans: BTreeSet<StreamId>,
}

/// The log of one data directory, which it holds the lock of.
pub struct Log {
    incarnation: u64,
    shared: Arc<Shared>,
    space: Arc<Space>,
    progress: Arc<Progress>,
    layout: Layout,
    disk: Arc<dyn Disk>,
    hold: Box<dyn Hold>,
    compacting: Mutex<()>,
    stops: Stops,
    dropping: Dropping,
    threads: Vec<JoinHandle<()>>,
}

impl Log {
    /// Takes the lock of a data directory, recovers its log and hands over what is in it.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Corrupt`], [`Error::Newer`], or what the system or the visitor says. The log's files
    /// are as they were then.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: Options,
        visit: &mut dyn FnMut(Line<'_>) -> Result<(), String>,
    ) -> Result<(Log, Recovery), Error> {
        let layout = Layout::new(dir);
        for dir in [&layout.root, &layout.log, &layout.snapshot] {
            disk.make_dir(dir).map_err(Error::io("cannot make", dir))?;
        }
        let hold = match disk.lock(&layout.lock()).map_err(Error::io("cannot lock", &layout.root))? {
            Locking::Held(hold) => hold,
            Locking::Taken { pid } => return Err(Error::Locked { path: dir.to_path_buf(), pid }),
        };
        let mut salts = Salts::from_system();
        let recovered = recover::recover(&disk, &layout, &options, &mut salts, visit)?;
        let (saver, savings) = channel();
        let (incarnation, kept) = (recovered.tail.incarnation, options.snapshots_kept.max(1));
        let space = Arc::clone(&recovered.tail.space);
        let dropping = Dropping::default();
        let encoder =
            Encoder::new(recovered.known, recovered.tail.tie.seq, salts, Arc::clone(&dropping.count));
        let shared = Arc::new(Shared::new(options, encoder, recovered.tail, recovered.ended, saver));
        let progress = Arc::new(Progress::default());
        let writes_snapshots = Saver {
            disk: Arc::clone(&disk),
            layout: layout.clone(),
            incarnation,
            kept,
            progress: Arc::clone(&progress),
            lost: Arc::clone(&shared.save_lost),
            backlog: Arc::clone(&shared.backlog),
            durable: Arc::clone(&shared.durable),
            dropping: dropping.clone(),
        };
        let compacting = Mutex::new(());
        let (stops, threads) = (Stops::default(), Vec::new());
        let mut log = Log {
            shared,
            incarnation,
            space,
            progress,
            layout,
            disk,
            hold,
            compacting,
            stops,
            dropping,
            threads,
        };
        let (shared, space) = (Arc::clone(&log.shared), Arc::clone(&log.space));
        log.spawn("log-writer", move || shared.run_writer())?;
        let shared = Arc::clone(&log.shared);
        log.spawn("log-encoder", move || shared.run_encoder())?;
        log.spawn("log-space", move || space.run())?;
        log.spawn("log-snapshot", move || writes_snapshots.run(&savings))?;
        Ok((log, recovered.report))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
        self.threads.push(spawned.map_err(Error::io("cannot start a thread for", &self.layout.root))?);
        Ok(())
    }

    /// Puts a batch in line. It is answered by another thread, after all that were submitted before.
    pub fn submit(&self, batch: Batch) {
        self.shared.submit(batch);
    }

    /// Makes a small batch durable on this thread, if nothing is under way; otherwise puts it in line like
    /// [`Log::submit`].
    pub fn commit(&self, batch: Batch) {
        self.shared.commit(batch);
    }

    /// Makes entries durable and waits for it.
    ///
    /// # Errors
    /// What the batch is answered with.
    pub fn commit_and_wait(&self, entries: Vec<Entry>) -> Result<Durable, Error> {
        let (answer, answered) = sync_channel(1);
        let done = Box::new(move |result| {
            // The caller waits below.
            let _ = answer.send(result);
        });
        self.commit(Batch { entries, done });
        answered.recv().unwrap_or(Err(Error::Closed))
    }

    /// The number that every file of this log has, and no other log.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The last seq that is durable.
    #[must_use]
    pub fn durable_seq(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// How often the log was synced by this process.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.syncs.load(Ordering::Relaxed)
    }

    /// Whether facts may follow in a stream without its being remembered.
    #[must_use]
    pub fn is_live(&self, stream: &StreamId) -> bool {
        self.shared.encoder().is_live(stream)
    }

    /// How many streams have a head in memory.
    #[must_use]
    pub fn live_streams(&self) -> usize {
        self.shared.encoder().live()
    }

    /// Why nothing can be written in this process any more, if a sync failed. The process must end.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared.poison().cloned()
    }

    /// Whether there was room for the next segment when it was last looked for. Where there was none it is looked for
    /// again, so that a later caller gets it too.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let room = self.space.has_room();
        if !room {
            self.space.ask();
        }
        room
    }

    /// Takes batches again after one found no room, where [`Options::halt_when_full`] says that the log halts then.
    pub fn resume(&self) {
        self.shared.resume();
    }

    /// Says in the log that all of it is durable. It does so by itself when it is idle or closed.
    ///
    /// # Errors
    /// As for a batch.
    pub fn mark(&self) -> Result<(), Error> {
        self.shared.mark()
    }

    /// How many snapshots ended in this process, and how the last one did.
    #[must_use]
    pub fn snapshots(&self) -> (u64, Option<Result<Saved, Error>>) {
        self.progress.get()
    }

    /// How many parts of a snapshot wait to be written.
    #[must_use]
    pub fn snapshot_backlog(&self) -> usize {
        self.shared.backlog.load(Ordering::Acquire)
    }

    /// Waits until more than `seen` snapshots ended, and says how the last one did. At least one must have ended.
    #[must_use]
    pub fn wait_for_snapshot(&self, seen: u64) -> Option<Result<Saved, Error>> {
        self.progress.wait(seen)
    }

    /// The file behind the lock of the data directory. A child that inherits it holds the lock until it ends.
    #[must_use]
    pub fn lock_file(&self) -> Option<&std::fs::File> {
        self.hold.file()
    }

    /// Writes what waits, marks the log, and gives the lock up.
    ///
    /// # Errors
    /// Why nothing could be written any more, if so.
    pub fn close(mut self) -> Result<(), Error> {
        self.stop();
        self.failure().map_or(Ok(()), Err)
    }

    fn stop(&mut self) {
        self.shared.close();
        self.space.close();
        let snapshots = self.threads.pop();
        // One that panicked has said so by ending the log.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        // Only now can no part of a snapshot come any more.
        self.shared.end_saving();
        snapshots.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.stop();
    }
}
