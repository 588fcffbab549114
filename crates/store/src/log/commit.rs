//! Group commit: many batches, one write and one sync.
//!
//! ```text
//!  submit ─▶ inbox ─▶ encoder ─▶ group ─▶ tail ─▶ done, in order
//!                     │ while the sync of one group runs,
//!                     └ the next one is encoded by another thread
//! ```
//!
//! The thread that holds the tail writes: the writer thread, or, when nothing is under way, the caller of `commit` itself,
//! because two hand-overs cost more than a small batch. Locks are taken in the order tail, encoder, inbox. Batches leave
//! the inbox only under the encoder's lock, and groups leave the encoder only under the tail's, so order is kept.

use super::encode::{Encoder, Group, Saving};
use super::error::Error;
use super::layout::Piece;
use super::tail::Tail;
use super::{Batch, Entry, Options};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::Instant;

/// How many parts of a snapshot may wait for the thread that writes it.
const SAVING_MAX: usize = 1 << 16;

/// What waits to be encoded, and who is doing what.
#[derive(Default)]
struct Inbox {
    batches: VecDeque<Batch>,
    /// A group is encoded and waits for the tail.
    encoded: bool,
    /// That group takes no more.
    full: bool,
    /// A write and sync is in progress.
    syncing: bool,
    /// When the last batch became durable that no later trailer speaks of.
    unmarked: Option<Instant>,
    /// The writer looks at `unmarked` by itself.
    ticking: bool,
    closed: bool,
}

/// What readers may see: everything durable, and nothing else.
#[derive(Clone)]
pub(super) struct View {
    /// The files before the last, in order.
    pub(super) ended: Vec<Arc<Piece>>,
    pub(super) last: Arc<Piece>,
    /// Where the last one's durable batches end.
    pub(super) end: u64,
    /// The last durable seq.
    pub(super) seq: u64,
}

/// The log, as its threads share it.
pub(super) struct Shared {
    pub(super) options: Options,
    inbox: Mutex<Inbox>,
    to_write: Condvar,
    to_encode: Condvar,
    encoder: Mutex<Encoder>,
    pub(super) tail: Mutex<Tail>,
    pub(super) view: RwLock<Arc<View>>,
    /// The last durable seq.
    pub(super) durable: Arc<AtomicU64>,
    /// How often batches were synced.
    pub(super) syncs: AtomicU64,
    /// A batch found no room, and the engine, which builds on it, has not rolled back yet.
    halted: AtomicBool,
    /// Why the log can no longer be written.
    poison: OnceLock<Error>,
    /// Where snapshots are written; none once the log is closed.
    saver: Mutex<Option<Sender<Saving>>>,
    /// A part of a snapshot was lost on the way: it must not be finished.
    pub(super) save_lost: Arc<AtomicBool>,
    /// How many parts of snapshots were handed over and not written yet.
    pub(super) backlog: Arc<AtomicUsize>,
}

/// Locks even if another thread panicked while it held the lock: [`Shared::poison`] is what stops the log then.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

enum Work {
    Write,
    Mark,
    Close,
}

impl Shared {
    pub(super) fn new(
        options: Options,
        encoder: Encoder,
        tail: Tail,
        ended: Vec<Piece>,
        saver: Sender<Saving>,
    ) -> Shared {
        let view = View {
            ended: ended.into_iter().map(Arc::new).collect(),
            last: Arc::new(tail.piece.clone()),
            end: tail.offset,
            seq: tail.tie.seq,
        };
        let unmarked = (!tail.is_marked()).then(Instant::now);
        Shared {
            options,
            inbox: Mutex::new(Inbox { unmarked, ..Inbox::default() }),
            to_write: Condvar::new(),
            to_encode: Condvar::new(),
            encoder: Mutex::new(encoder),
            durable: Arc::new(AtomicU64::new(tail.tie.seq)),
            tail: Mutex::new(tail),
            view: RwLock::new(Arc::new(view)),
            syncs: AtomicU64::new(0),
            halted: AtomicBool::new(false),
            poison: OnceLock::new(),
            saver: Mutex::new(Some(saver)),
            save_lost: Arc::default(),
            backlog: Arc::default(),
        }
    }

    /// What readers may see now.
    pub(super) fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes what readers may see.
    pub(super) fn change_view(&self, change: impl FnOnce(&mut View)) {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut view));
    }

    /// Why nothing can be written any more, if so.
    pub(super) fn poison(&self) -> Option<&Error> {
        self.poison.get()
    }

    /// Nothing can be written any more; the first reason stays.
    pub(super) fn set_poison(&self, error: Error) {
        let _ = self.poison.set(error);
        self.to_write.notify_all();
        self.to_encode.notify_all();
    }

    /// Puts a batch in line.
    pub(super) fn submit(&self, batch: Batch) {
        let mut inbox = lock(&self.inbox);
        let waiting = inbox.batches.len();
        let refused = match self.poison.get() {
            Some(error) => Some(error.clone()),
            None if inbox.closed => Some(Error::Closed),
            None if self.halted.load(Ordering::Acquire) => {
                Some(Error::Full { what: "what follows on a batch that found none".to_owned() })
            }
            None if waiting >= self.options.waiting_max => Some(Error::Busy(waiting)),
            None => None,
        };
        if let Some(error) = refused {
            drop(inbox);
            return (batch.done)(Err(error));
        }
        inbox.batches.push_back(batch);
        if inbox.syncing {
            self.to_encode.notify_one();
        } else {
            self.to_write.notify_one();
        }
    }

    /// Writes a small batch on this thread if nothing is under way; otherwise puts it in line.
    pub(super) fn commit(&self, batch: Batch) {
        if batch.entries.iter().map(Entry::weight).sum::<usize>() > self.options.inline_max {
            return self.submit(batch);
        }
        let Some(mut tail) = try_lock(&self.tail) else { return self.submit(batch) };
        let Some(mut encoder) = try_lock(&self.encoder) else { return self.submit(batch) };
        encoder.settle();
        {
            let mut inbox = lock(&self.inbox);
            let busy = !inbox.batches.is_empty() || inbox.encoded || inbox.closed || inbox.syncing;
            if busy || self.poison.get().is_some() || self.halted.load(Ordering::Acquire) {
                drop(inbox);
                drop((tail, encoder));
                return self.submit(batch);
            }
            inbox.syncing = true;
        }
        encoder.encode(batch);
        let group = encoder.take(std::mem::take(&mut tail.spare));
        drop(encoder);
        self.finish(&mut tail, group);
    }

    /// Takes everything that waits, writes it and tells everybody.
    fn write_waiting(&self) {
        let mut tail = lock(&self.tail);
        let mut encoder = self.encoder();
        self.encode_waiting(&mut encoder, true);
        let group = encoder.take(std::mem::take(&mut tail.spare));
        drop(encoder);
        self.finish(&mut tail, group);
    }

    /// Encodes what waits, up to the size of a group.
    fn encode_waiting(&self, encoder: &mut Encoder, to_be_written: bool) {
        let mut batches = {
            let mut inbox = lock(&self.inbox);
            inbox.syncing |= to_be_written;
            std::mem::take(&mut inbox.batches)
        };
        while encoder.group.bytes.len() < self.options.group_bytes_max
            && let Some(batch) = batches.pop_front()
        {
            encoder.encode(batch);
        }
        let mut inbox = lock(&self.inbox);
        // What did not fit goes back to the front, before what came meanwhile.
        while let Some(batch) = batches.pop_back() {
            inbox.batches.push_front(batch);
        }
        inbox.encoded = !to_be_written && !encoder.group.is_empty();
        inbox.full = !to_be_written && encoder.group.bytes.len() >= self.options.group_bytes_max;
        if to_be_written && !inbox.batches.is_empty() {
            self.to_encode.notify_one();
        }
    }

    /// Writes a group, syncs it, and tells everybody; keeps its memory for the next.
    fn finish(&self, tail: &mut Tail, mut group: Group) {
        let result = match self.poison.get() {
            Some(error) => Err(error.clone()),
            // Nothing to write: only heads to forget, or streams to save, and those are durable.
            None if group.count == 0 => Ok(()),
            None => tail.write(&mut group.bytes, group.count, group.seq),
        };
        self.syncs.fetch_add(u64::from(group.count > 0), Ordering::Relaxed);
        self.publish(tail);
        match result {
            Ok(()) => {
                for saving in group.saving.drain(..) {
                    self.save(saving);
                }
                self.rest(tail);
                group.succeed();
            }
            Err(error) => self.fail(tail, &mut group, &error),
        }
        group.clear(self.options.group_bytes_max);
        tail.spare = group;
    }

    /// Readers may see what was written. A segment may have been begun even if nothing was.
    fn publish(&self, tail: &mut Tail) {
        let ended = std::mem::take(&mut tail.ended);
        let count = ended.len();
        self.change_view(|view| {
            for piece in ended.into_iter().skip(1).chain([tail.piece.clone()]).take(count) {
                // The last segment stays the same object, so that its readers are still counted.
                let last = std::mem::replace(&mut view.last, Arc::new(piece));
                view.ended.push(last);
            }
            view.end = tail.offset;
            view.seq = tail.tie.seq;
        });
        self.durable.store(tail.tie.seq, Ordering::Release);
    }

    /// The disk is free again: says so, and sees to it that an idle log is marked.
    fn rest(&self, tail: &Tail) {
        let mut inbox = lock(&self.inbox);
        inbox.syncing = false;
        inbox.unmarked = (!tail.is_marked()).then(Instant::now);
        let waiting = !inbox.batches.is_empty() || inbox.encoded;
        if waiting || (inbox.unmarked.is_some() && !inbox.ticking) {
            self.to_write.notify_one();
        }
    }

    /// A group was not written. Without room the log goes on as if it had not been; anything else is the end.
    fn fail(&self, tail: &mut Tail, group: &mut Group, error: &Error) {
        let mut encoder = self.encoder();
        encoder.take_back(group);
        {
            let mut inbox = lock(&self.inbox);
            (inbox.encoded, inbox.full) = (false, false);
        }
        drop(encoder);
        if !matches!(error, Error::Full { .. }) {
            self.set_poison(error.clone());
        }
        let halts = self.options.halt_when_full && matches!(error, Error::Full { .. });
        if halts {
            self.halted.store(true, Ordering::Release);
        }
        self.rest(tail);
        group.fail(error);
        if halts || self.poison.get().is_some() {
            self.refuse_waiting(error);
        }
    }

    /// The engine has rolled back what was refused: batches are accepted again.
    pub(super) fn resume(&self) {
        self.halted.store(false, Ordering::Release);
    }

    fn refuse_waiting(&self, error: &Error) {
        let waiting = std::mem::take(&mut lock(&self.inbox).batches);
        waiting.into_iter().for_each(|batch| (batch.done)(Err(error.clone())));
    }

    /// Hands a part of a snapshot on. A snapshot that comes faster than it can be written is given up, not waited for.
    fn save(&self, saving: Saving) {
        let full = self.backlog.fetch_add(1, Ordering::AcqRel) >= SAVING_MAX;
        let sent = !full && lock(&self.saver).as_ref().is_some_and(|saver| saver.send(saving).is_ok());
        if !sent {
            self.backlog.fetch_sub(1, Ordering::AcqRel);
        }
        if full {
            self.save_lost.store(true, Ordering::Release);
        }
    }

    /// No more snapshots: the thread that writes them ends.
    pub(super) fn end_saving(&self) {
        *lock(&self.saver) = None;
    }

    /// Says in the log that all of it is durable.
    pub(super) fn mark(&self) -> Result<(), Error> {
        self.with_tail(|tail| {
            let seq = tail.tie.seq;
            // Without room it is tried again after the next batch.
            lock(&self.inbox).unmarked = None;
            if tail.is_marked() { Ok(()) } else { tail.write(&mut Vec::new(), 0, seq) }
        })
    }

    /// Does something to the tail between batches.
    pub(super) fn with_tail(&self, act: impl FnOnce(&mut Tail) -> Result<(), Error>) -> Result<(), Error> {
        let mut tail = lock(&self.tail);
        if let Some(error) = self.poison.get() {
            return Err(error.clone());
        }
        let result = act(&mut tail);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.publish(&mut tail);
        if let Err(error) = &result
            && !matches!(error, Error::Full { .. })
        {
            self.set_poison(error.clone());
        }
        result
    }

    pub(super) fn run_writer(&self) {
        let _guard = Watch(self);
        loop {
            match self.wait() {
                Work::Write => self.write_waiting(),
                Work::Mark => drop(self.mark()),
                Work::Close => return drop(self.mark()),
            }
        }
    }

    fn wait(&self) -> Work {
        let mut inbox = lock(&self.inbox);
        loop {
            if !inbox.syncing && (inbox.encoded || !inbox.batches.is_empty()) {
                return Work::Write;
            }
            if inbox.closed && !inbox.syncing {
                return Work::Close;
            }
            let Some(since) = inbox.unmarked else {
                inbox = self.to_write.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let idle = since.elapsed();
            if idle >= self.options.idle && !inbox.syncing {
                return Work::Mark;
            }
            inbox.ticking = true;
            let left = self.options.idle.saturating_sub(idle).max(std::time::Duration::from_millis(1));
            inbox = self.to_write.wait_timeout(inbox, left).unwrap_or_else(PoisonError::into_inner).0;
            inbox.ticking = false;
        }
    }

    /// The encoder, with the heads that recovery found.
    pub(super) fn encoder(&self) -> MutexGuard<'_, Encoder> {
        let mut encoder = lock(&self.encoder);
        encoder.settle();
        encoder
    }

    /// The encoder thread: while a sync runs, it encodes what comes next.
    pub(super) fn run_encoder(&self) {
        let _guard = Watch(self);
        drop(self.encoder());
        loop {
            {
                let mut inbox = lock(&self.inbox);
                while !inbox.closed && (!inbox.syncing || inbox.full || inbox.batches.is_empty()) {
                    inbox = self.to_encode.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                }
                if inbox.closed {
                    return;
                }
            }
            self.encode_waiting(&mut self.encoder(), false);
            // The sync may have ended meanwhile, when there was nothing to wake the writer for.
            self.to_write.notify_one();
        }
    }

    pub(super) fn close(&self) {
        lock(&self.inbox).closed = true;
        self.to_write.notify_all();
        self.to_encode.notify_all();
    }
}

/// A thread of the log that dies takes the log with it, instead of letting callers wait forever.
struct Watch<'a>(&'a Shared);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = Error::SyncFailed {
                what: "the log".to_owned(),
                message: "a thread of it panicked".to_owned(),
            };
            self.0.set_poison(error.clone());
            self.0.refuse_waiting(&error);
        }
    }
}
