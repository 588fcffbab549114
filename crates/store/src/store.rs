//! The embedded store: every live stream in memory, every fact in the log, terminal runs in the history.
//!
//! ```text
//!            facts ──▶ log ──▶ durable ──▶ callers, effects
//!   state ◀────┘        │
//!     │ runs that ended └──▶ history (an index) ──▶ they leave memory
//!     └─ streams, a few a turn ──▶ snapshot
//! ```
//!
//! The log is the truth; the state, the snapshots and the history are derived from it. A run that has left memory is
//! read back from the log when somebody asks for more than its listing.

mod approvals;
mod feed;
mod leaving;
mod listing;
mod live;
mod names;
mod reads;
mod retention;
#[cfg(test)]
mod tests;

pub use listing::{Attempts, Followed, Listed, ReadBack, read_back};

pub use crate::history::PAGE_LEN_MAX;
pub use crate::history::{Filter as RunFilter, Origin as RunOrigin};
pub use approvals::{ApprovalFilter, Lookup};
pub use reads::Reads;
pub use retention::{Before, FailedItems, Retiring};

use crate::disk::Disk;
use crate::history::{self, History, Row};
use crate::log::{self, Entry, Line, Log, Recovery, Seqs};
use crate::observer::{Durable, Observed, Observer};
use live::{Live, is_named};
use names::Resting;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::watch;
use windlass_core::audit::Head;
use windlass_core::event::Event;
use windlass_core::id::{Holder, ItemId, RunId, StepId};
use windlass_core::item::Item;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::Overlay;
use windlass_core::turn::index::Taker;
use windlass_core::turn::state::{Body, State};
use windlass_engine::fake;
use windlass_engine::fast::{Map, Set};
use windlass_engine::port::{Batch, Fault, Found, Leased, Store};

/// A snapshot begins after so many records, or after so many for each stream in memory where that is more, but not within
/// this time of the last one unless many records came: so a start reads a short tail, and a busy store does not write
/// snapshots all the time. It takes so many streams a turn.
const SNAPSHOT_EVERY: u64 = 100_000;
const SNAPSHOT_PAUSE: Span = Span(5_000);
const SNAPSHOT_EVERY_BUSY: u64 = 500_000;
const SNAPSHOT_EVERY_STREAM: u64 = 2;
const SNAPSHOT_STREAMS: usize = 256;
/// How many streams of a snapshot may wait to be written before more are handed over.
const SNAPSHOT_AHEAD: usize = 4_096;
/// How many streams one look at the store goes through, so that the loop is not held up by it.
const SCAN_MAX: usize = 50_000;
/// How long a run that has ended stays in memory for those who still ask about it, unless there are many.
const LINGER: Span = Span(300_000);
const LINGER_MAX: usize = 1_000;
/// How many things that were odd at a start are told of.
const WARNINGS_MAX: usize = 16;

/// Named streams that begin in a batch, and where.
type Lookups<'a> = &'a mut Vec<(String, u64)>;

/// What can be set.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The log's own.
    pub log: log::Options,
    /// How many records lie between two snapshots; the default where absent.
    pub snapshot_every: Option<u64>,
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log.
    #[error(transparent)]
    Log(#[from] log::Error),
    /// The history.
    #[error(transparent)]
    History(#[from] history::Error),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> windlass_core::code::Code {
        match self {
            Error::Log(error) => error.code(),
            Error::History(error) => error.code(),
        }
    }
}

/// A run that has ended and is still in memory.
struct Ended {
    run: RunId,
    at: Millis,
    /// The batch that ended it.
    batch: u64,
    listed: bool,
}

/// A part of a snapshot on its way.
#[derive(Default)]
struct Part {
    pending: AtomicBool,
    refused: AtomicBool,
}

/// The store.
pub struct Embedded {
    live: Live,
    log: Arc<Log>,
    ended: VecDeque<Ended>,
    /// Items that are done and still in memory, with when and in which batch.
    done_items: VecDeque<(ItemId, Millis, u64)>,
    /// Named streams that came to rest and are still in memory.
    resting: VecDeque<Resting>,
    /// Where the records of runs in memory begin, for their listing.
    first_seqs: Map<RunId, u64>,
    /// Runs that are leaving for good.
    retiring: Arc<Set<RunId>>,
    going: Arc<Mutex<retention::Going>>,
    /// Streams that were read back: the log has to remember their heads before they get facts.
    remember: Vec<(StreamId, Head)>,
    /// Batches handed over, and those that are durable.
    batches: u64,
    durable: Arc<AtomicU64>,
    tail: Arc<watch::Sender<u64>>,
    /// Records since the last snapshot, and how far the present one is.
    since_snapshot: u64,
    snapshot_every: Option<u64>,
    saving: Option<Option<StreamId>>,
    /// What became of the part of it that was handed over last.
    part: Arc<Part>,
    /// When the last snapshot was begun.
    snapshot_at: Millis,
    observer: Option<Box<dyn Observer>>,
    /// How many streams one look goes through.
    scan_max: usize,
    /// The time of the newest record that was there at the start.
    newest: Option<Millis>,
}

impl Embedded {
    /// Opens a data directory: recovers its log, and brings the history up to it.
    ///
    /// # Errors
    /// Another process has it, it is damaged, a newer version wrote it, or the system says no.
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<(Embedded, Recovery), Error> {
        let mut state = State::new();
        let mut first_seqs = Map::default();
        let mut folded = 0;
        let mut newest = None;
        let visit = &mut |line: Line<'_>| {
            let applied = match line {
                Line::Saved(snapshot) => {
                    newest = newest.max(Some(snapshot.state.at));
                    state.restore(*snapshot)
                }
                Line::Record { record, .. } => {
                    folded += 1;
                    newest = newest.max(Some(record.at));
                    if let (StreamId::Run(run), 1) = (&record.stream, record.ver) {
                        first_seqs.insert(*run, record.seq);
                    }
                    match &record.stream {
                        // There may be millions, and whoever decodes is the slower one: they are filed meanwhile.
                        StreamId::Item(_) => state.apply_event(&record),
                        _ => state.fold_event(&record),
                    }
                }
            };
            applied.map_err(|error| error.to_string())
        };
        // Every batch is decided on those before it, so one that finds no room takes the rest along.
        let log_options = log::Options { halt_when_full: true, ..options.log.clone() };
        let (log, mut recovery) = Log::open(disk, dir, log_options, visit)?;
        // What left memory, came back and went on after the snapshot is read as a whole.
        let orphans: Vec<StreamId> = recovery.orphans.iter().cloned().collect();
        if !orphans.is_empty() {
            let warnings = &mut recovery.warnings;
            log.scan(&orphans, Seqs::ALL, &mut |record, _| {
                // One stream that does not fit is no reason to keep all others from those who need them.
                if let Err(error) = state.apply_event(&record)
                    && warnings.len() < WARNINGS_MAX
                {
                    warnings.push(format!("record {} was passed over: {error}", record.seq));
                }
                ControlFlow::Continue(())
            })?;
        }
        state.refresh_rest();
        if folded == 0 {
            // The snapshot has all there is but what has left memory, which may be newer than the rest.
            log.read(log.durable_seq(), &mut |record, _| {
                newest = newest.max(Some(record.at));
                ControlFlow::Continue(())
            })?;
        }
        let history = History::open(&Embedded::history_path(dir))?;
        recovery.warnings.extend(history.warning().map(str::to_owned));
        let (tail, _) = watch::channel(log.durable_seq());
        let mut store = Embedded {
            live: Live::new(state, history),
            log: Arc::new(log),
            ended: VecDeque::new(),
            done_items: VecDeque::new(),
            resting: VecDeque::new(),
            first_seqs,
            retiring: Arc::default(),
            going: Arc::default(),
            remember: Vec::new(),
            batches: 0,
            durable: Arc::default(),
            tail: Arc::new(tail),
            since_snapshot: folded,
            snapshot_every: options.snapshot_every,
            saving: None,
            part: Arc::default(),
            snapshot_at: Millis(0),
            observer: None,
            scan_max: SCAN_MAX,
            newest,
        };
        store.live.state.indexes_mut().note_moves();
        if let Err(error) = store.catch_up() {
            // Reads are served on a full disk too; the next start writes what is missing.
            let Error::History(history::Error::Full { detail, .. }) = &error else { return Err(error) };
            let history = History::in_memory(&Embedded::history_path(dir), detail)?;
            recovery.warnings.extend(history.warning().map(str::to_owned));
            store.live.history = Arc::new(history);
            store.catch_up()?;
        }
        store.live.learn()?;
        store.note_ended();
        store.mark_listed();
        Ok((store, recovery))
    }

    /// Where the history is.
    #[must_use]
    pub fn history_path(dir: &Path) -> PathBuf {
        dir.join(log::HISTORY)
    }

    /// The committed state, with what this turn decided in it.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.live.state
    }

    /// The log, for whoever reads it.
    #[must_use]
    pub fn log(&self) -> Arc<Log> {
        self.log.clone()
    }

    /// From now on this observer is told of each batch.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Where in the log the records of a run stand: all of them, as far as is known.
    pub fn place_of(&self, run: RunId) -> Seqs {
        match self.first_seqs.get(&run) {
            Some(first) => Seqs { first: *first, last: u64::MAX },
            None if self.live.state.run(run).is_some() => Seqs::ALL,
            None => match self.live.history.get(run) {
                Ok(Some(row)) => Seqs { first: row.first_seq, last: row.last_seq },
                Ok(None) | Err(_) => Seqs::ALL,
            },
        }
    }

    /// Tells the last durable seq whenever it moves.
    #[must_use]
    pub fn tail(&self) -> watch::Receiver<u64> {
        self.tail.subscribe()
    }

    /// Puts runs into the history that ended after what it has and are in memory no more.
    fn catch_up(&mut self) -> Result<(), Error> {
        let through = self.live.history.through();
        let last = self.log.durable_seq();
        if through >= last {
            return Ok(());
        }
        // One pass over the records after it; a run that began before them is read as a whole.
        let (mut lost, mut named) = (BTreeSet::new(), Vec::new());
        let state = &self.live.state;
        self.log.read(through + 1, &mut |record, _| {
            if record.ver == 1 && is_named(&record.stream) {
                named.push((record.stream.to_string(), record.seq));
            }
            // Whatever is not in memory has ended, and may have got facts after that.
            if let StreamId::Run(run) = &record.stream
                && state.run(*run).is_none()
            {
                lost.insert(*run);
            }
            ControlFlow::Continue(())
        })?;
        for named in named.chunks(4_096) {
            self.live.history.put_streams(named.to_vec());
        }
        let lost: Vec<RunId> = lost.into_iter().collect();
        for chunk in lost.chunks(4_096) {
            let streams: Vec<StreamId> = chunk.iter().map(|run| StreamId::Run(*run)).collect();
            let mut scratch = State::new();
            let mut seqs: Map<RunId, (u64, u64)> = Map::default();
            self.log.scan(&streams, Seqs::ALL, &mut |record, _| {
                if let StreamId::Run(run) = &record.stream {
                    seqs.entry(*run).or_insert((record.seq, record.seq)).1 = record.seq;
                }
                // A record that does not follow was checked by the scan already.
                let _ = scratch.fold_event(&record);
                ControlFlow::Continue(())
            })?;
            let rows = chunk.iter().filter_map(|run| Some(Row::of(scratch.run(*run)?, *seqs.get(run)?)));
            self.live.history.put(rows.collect(), through);
        }
        // What is not in memory is looked for in the index from here on.
        Ok(self.live.history.flush()?)
    }

    /// Notes how far the history goes when nothing waits to be listed, so that a start need not look for it in the log.
    fn mark_listed(&mut self) {
        if self.ended.is_empty() {
            self.live.history.put(Vec::new(), self.log.durable_seq());
        }
    }

    /// Runs that are in memory although they have ended are on their way out.
    fn note_ended(&mut self) {
        let ended = self.live.state.streams().filter_map(|(_, stream)| match &stream.body {
            Body::Run(run) if run.is_terminal() => Some((run.id(), stream.at)),
            // tidy: only runs leave.
            _ => None,
        });
        let mut ended: Vec<(RunId, Millis)> = ended.collect();
        ended.sort_by_key(|(_, at)| *at);
        for (run, at) in ended {
            self.ended.push_back(Ended { run, at, batch: 0, listed: false });
        }
        let items = self.live.state.streams_after(Some(&StreamId::Item(ItemId(0))));
        let done = items.map_while(|(_, stream)| match &stream.body {
            Body::Item(item) => Some((item, stream.at)),
            // tidy: the next kind begins.
            _ => None,
        });
        let done =
            done.filter(|(item, _)| is_done(item)).filter_map(|(item, at)| Some((item.body()?.id, at, 0)));
        let mut done: Vec<(ItemId, Millis, u64)> = done.collect();
        done.sort_by_key(|(_, at, _)| *at);
        self.done_items = done.into();
        self.note_resting();
    }

    /// The versions of a batch's facts, which the state has applied already.
    fn entries(&mut self, batch: &mut Batch) -> (Vec<Entry>, Option<Durable>) {
        let mut vers = Vec::with_capacity(batch.facts.len());
        let mut left: Map<&StreamId, u64> = Map::default();
        let mut over = Vec::new();
        let state = &self.live.state;
        for decided in batch.facts.iter().rev() {
            let stream = &decided.fact.stream;
            let ver = left.entry(stream).or_insert_with(|| {
                let Some(found) = state.stream(stream) else { return 0 };
                if let Body::Run(run) = &found.body
                    && run.is_terminal()
                {
                    over.push(run.id());
                }
                found.ver
            });
            vers.push(*ver);
            *ver = ver.saturating_sub(1);
        }
        let named = left.iter().filter(|(stream, _)| is_named(stream));
        let named: Vec<(StreamId, bool)> =
            named.map(|(stream, had)| ((*stream).clone(), *had == 0)).collect();
        drop(left);
        let mut births = Vec::new();
        for (stream, first) in &named {
            self.note_named(stream, *first, &mut births);
        }
        self.live.history.put_streams(births);
        vers.reverse();
        let mut entries: Vec<Entry> =
            self.remember.drain(..).map(|(stream, head)| Entry::Remember(stream, head)).collect();
        for (decided, ver) in batch.facts.iter().zip(&vers) {
            let fact = &decided.fact;
            if let (StreamId::Run(run), 1) = (&fact.stream, ver) {
                // Its records stand after what is durable now.
                self.first_seqs.insert(*run, self.log.durable_seq());
            }
            if let StreamId::Run(run) = fact.stream
                && ends(&fact.event)
            {
                self.ended.push_back(Ended { run, at: batch.at, batch: self.batches, listed: false });
            }
            if let StreamId::Item(item) = fact.stream
                && matches!(fact.event, Event::QueueCompleted(_) | Event::QueueItemDropped(_))
            {
                self.done_items.push_back((item, batch.at, self.batches));
            }
        }
        self.list_again(&over);
        let moves = self.live.state.indexes_mut().take_moves();
        let observed = self.observer.as_mut().map(|observer| {
            observer.batch(Observed { state: &self.live.state, facts: &batch.facts, moves, at: batch.at })
        });
        entries.push(Entry::Facts { facts: std::mem::take(&mut batch.facts), vers });
        (entries, observed)
    }

    /// Facts came to runs that have ended. Where they were listed before, that is done anew: a listing says how far the
    /// records of its run go.
    fn list_again(&mut self, runs: &[RunId]) {
        for run in runs {
            let number = self.batches;
            let Some(ended) = self.ended.iter_mut().rev().find(|ended| ended.run == *run) else { continue };
            ended.batch = number;
            if std::mem::replace(&mut ended.listed, false) {
                // An old row that is still on its way must not count as the new one. Where it cannot be written, it is
                // tried again with the new one.
                let _ = self.live.history.flush();
                self.live.flushed(self.live.history.flushed());
                self.live.unlisted(*run);
            }
        }
    }

    /// Hands a few more streams over to a snapshot, or begins one when it is time.
    fn save_some(&mut self, at: Millis) -> bool {
        let ahead = self.log.snapshot_backlog() > SNAPSHOT_AHEAD;
        let from = match self.saving.take() {
            // One part after the other, and no faster than they can be written.
            Some(from) if ahead || self.part.pending.load(Ordering::Acquire) => {
                self.saving = Some(from);
                return true;
            }
            // Without one of its parts it is none; the next one is whole.
            Some(_) if self.part.refused.load(Ordering::Acquire) => return false,
            Some(from) => from,
            // Without a runbook that is about to leave the log, and may stay, it would not be whole.
            None if !self.live.leaving.is_empty() => return false,
            None if self.since_snapshot >= self.snapshot_after(at) && self.settled() => {
                self.since_snapshot = 0;
                self.snapshot_at = at;
                self.part = Arc::default();
                self.mark_listed();
                None
            }
            None => return false,
        };
        let mut entries = Vec::with_capacity(SNAPSHOT_STREAMS + 2);
        if from.is_none() {
            // With its first part, so that there is one word on both.
            entries.push(Entry::Begin);
        }
        let (mut last, mut seen) = (None, 0);
        for (id, _) in self.live.state.streams_after(from.as_ref()).take(SNAPSHOT_STREAMS) {
            if let Some(snapshot) = self.live.state.save(&id) {
                entries.push(Entry::Snapshot(Box::new(snapshot)));
            }
            (last, seen) = (Some(id), seen + 1);
        }
        let over = seen < SNAPSHOT_STREAMS;
        if over {
            entries.push(Entry::End);
        } else {
            self.saving = Some(last);
        }
        self.submit(entries);
        !over
    }

    /// How many records lie between two snapshots.
    fn snapshot_after(&self, at: Millis) -> u64 {
        let streams = self.live.state.len() as u64;
        let busy = at < self.snapshot_at + SNAPSHOT_PAUSE;
        let least = if busy { SNAPSHOT_EVERY_BUSY } else { SNAPSHOT_EVERY };
        self.snapshot_every.unwrap_or_else(|| least.max(streams * SNAPSHOT_EVERY_STREAM))
    }

    /// How many runs and items have ended and are in memory still.
    #[must_use]
    pub fn lingering(&self) -> usize {
        self.ended.len() + self.done_items.len()
    }

    /// Begins a snapshot at the next pause.
    pub fn save(&mut self) {
        self.since_snapshot = u64::MAX / 2;
    }

    /// Begins a snapshot and waits for it. Nobody else uses the store meanwhile.
    pub fn save_now(&mut self, at: Millis) {
        self.runbooks_stay(&BTreeSet::new());
        if !self.live.leaving.is_empty() {
            // It would not be whole; the next start reads the log.
            return;
        }
        while self.saving.is_some() {
            self.save_some(at);
            std::thread::yield_now();
        }
        while self.log.snapshot_backlog() > 0 {
            std::thread::yield_now();
        }
        let seen = self.log.snapshots().0;
        self.save();
        while !self.settled() {
            std::thread::yield_now();
        }
        while self.idle(at) || self.part.pending.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        if !self.part.refused.load(Ordering::Acquire) {
            // Each whose parts all came ends, well or not.
            let _ = self.log.wait_for_snapshot(seen);
        }
    }

    /// Nothing in memory waits for a batch that may still fail.
    fn settled(&self) -> bool {
        self.durable.load(Ordering::Acquire) == self.batches
    }

    fn submit(&self, entries: Vec<Entry>) {
        let part = self.part.clone();
        part.pending.store(true, Ordering::Release);
        let done = Box::new(move |result: Result<log::Durable, log::Error>| {
            if result.is_err() {
                part.refused.store(true, Ordering::Release);
            }
            part.pending.store(false, Ordering::Release);
        });
        self.log.submit(log::Batch { entries, done });
    }
}

/// Whether nothing can happen to an item any more.
fn is_done(item: &Item) -> bool {
    matches!(item, Item::Completed { .. } | Item::Dropped { .. })
}

/// Whether a fact ends its run.
pub fn ends(event: &Event) -> bool {
    matches!(event, Event::PipelineCompleted(_) | Event::PipelineFailed(_) | Event::PipelineCancelled(_))
}

fn fault(error: &log::Error) -> Fault {
    match error {
        log::Error::Full { .. } | log::Error::Busy(_) => Fault::Full(error.to_string()),
        log::Error::Gap { .. } => Fault::Undone(error.to_string()),
        log::Error::TooLarge { .. } => Fault::TooLarge(error.to_string()),
        log::Error::SyncFailed { .. }
        | log::Error::Closed
        | log::Error::Io { .. }
        | log::Error::Locked { .. } => Fault::Lost(error.to_string()),
        log::Error::Corrupt { .. }
        | log::Error::Lost { .. }
        | log::Error::Newer { .. }
        | log::Error::Refused { .. } => Fault::Corrupt(error.to_string()),
    }
}

impl Store for Embedded {
    fn view(&mut self) -> &mut dyn Overlay {
        &mut self.live
    }

    fn load(&mut self, streams: &[StreamId]) -> Result<(), Fault> {
        for stream in streams {
            let StreamId::Run(run) = stream else {
                if let StreamId::Runbook(hash) = stream {
                    self.load_runbook(*hash)?;
                } else if is_named(stream) {
                    self.load_named(stream)?;
                }
                continue;
            };
            if self.live.state.run(*run).is_some() {
                continue;
            }
            let row = self.live.history.get(*run).map_err(|error| Fault::Corrupt(error.to_string()))?;
            let Some(row) = row.filter(|_| !self.is_retiring(*run)) else {
                self.live.absent(stream.clone());
                continue;
            };
            let (mut head, mut first) = (None, None);
            let state = &mut self.live.state;
            let seqs = Seqs { first: row.first_seq, last: row.last_seq };
            let scanned = self.log.scan(std::slice::from_ref(stream), seqs, &mut |record, _| {
                first = first.or(Some(record.seq));
                head = Some(Head { ver: record.ver, head: record.chain });
                let _ = state.fold_event(&record);
                ControlFlow::Continue(())
            });
            scanned.map_err(|error| fault(&error))?;
            self.live.state.refresh(stream);
            let Some(head) = head else {
                self.live.absent(stream.clone());
                continue;
            };
            self.first_seqs.insert(*run, first.unwrap_or(1));
            self.remember.push((stream.clone(), head));
            // It leaves again by itself.
            let at = self.live.state.stream(stream).map_or(Millis(0), |found| found.at);
            self.ended.push_back(Ended { run: *run, at, batch: self.batches, listed: false });
        }
        Ok(())
    }

    fn commit(&mut self, mut batch: Batch, soon: bool) {
        self.batches += 1;
        self.since_snapshot += batch.facts.len() as u64;
        let (entries, observed) = self.entries(&mut batch);
        let began = Instant::now();
        let (number, durable, tail, done) =
            (self.batches, self.durable.clone(), self.tail.clone(), batch.done);
        let finished = move |result: Result<log::Durable, log::Error>| match result {
            Ok(written) => {
                durable.store(number, Ordering::Release);
                tail.send_replace(written.last_seq);
                done(Ok(()));
                // Callers and effects come first.
                if let Some(observed) = observed {
                    observed(began.elapsed());
                }
            }
            Err(error) => done(Err(fault(&error))),
        };
        let batch = log::Batch { entries, done: Box::new(finished) };
        if soon { self.log.commit(batch) } else { self.log.submit(batch) }
    }

    fn reload(&mut self) -> Result<(), Fault> {
        let mut state = State::new();
        let mut ended: Vec<RunId> = Vec::new();
        for hash in std::mem::take(&mut self.live.leaving) {
            // It is read below, unless it is gone.
            retention::lock(&self.going).comes_back(&StreamId::Runbook(hash));
        }
        let (live, log) = (&self.live, &self.log);
        let read = self.log.read(0, &mut |record, _| {
            // What has left memory stays out of it.
            let left = match &record.stream {
                StreamId::Run(run) => live.has_left(*run),
                named => is_named(named) && !log.is_live(named),
            };
            if !left {
                if let (StreamId::Run(run), true) = (&record.stream, ends(&record.event)) {
                    ended.push(*run);
                }
                let _ = state.fold_event(&record);
            }
            ControlFlow::Continue(())
        });
        read.map_err(|error| fault(&error))?;
        state.refresh_all();
        state.beats = std::mem::take(&mut self.live.state.beats);
        self.live.state = state;
        self.live.state.indexes_mut().note_moves();
        self.remember.clear();
        self.saving = None;
        self.ended.clear();
        self.done_items.clear();
        self.durable.store(self.batches, Ordering::Release);
        self.note_ended();
        self.log.resume();
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.log.has_room()
    }

    fn pick_ready(&mut self, taker: &Taker<'_>) -> Option<(RunId, Vec<StepId>)> {
        let run = self.live.state.indexes_mut().next_ready_for(taker)?;
        Some((run, fake::leasable(&self.live.state, run)))
    }

    fn put_back(&mut self, run: RunId) {
        self.live.state.indexes_mut().put_back(run);
    }

    fn pick_due(&mut self, at: Millis, max: usize) -> Vec<StreamId> {
        self.live.state.indexes().due(at).take(max).cloned().collect()
    }

    fn next_due(&mut self) -> Option<Millis> {
        self.live.state.indexes().next_due()
    }

    fn pick_expired(&mut self, at: Millis) -> Vec<Leased> {
        let state = &self.live.state;
        let runs = state.indexes().leases_due(at).filter_map(|id| match id {
            StreamId::Run(run) => state.run(*run),
            // tidy: only runs have leases.
            _ => None,
        });
        runs.flat_map(fake::run_leases).collect()
    }

    fn beat(&mut self, holder: Holder, at: Millis) {
        self.live.state.beat(holder, at);
    }

    fn newest(&self) -> Option<Millis> {
        self.newest.max(self.live.left_at())
    }

    fn recover(&mut self, at: Millis) -> Result<Found, Fault> {
        self.live.state.beats.since = at;
        Ok(fake::found(&self.live.state))
    }

    fn idle(&mut self, at: Millis) -> bool {
        self.live.turn_over();
        let leaving = self.let_leave(at);
        let saving = self.save_some(at);
        leaving || saving
    }
}
