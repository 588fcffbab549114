//! Automatic bundles: a thread that follows the seals and stores the bundle of every run that needs one, in the order in
//! which the runs ended.
//!
//! No caller waits for it. Its progress is noted beside the log, so a process that ends leaves the rest to the next one.

use super::bundle::{self, What};
use super::keys::Keys;
use super::proofs::Proofs;
use super::shelf::{Kept, Shelf};
use super::{Error, archive};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use windlass_core::event::{Event, EvidenceExported};
use windlass_core::id::{Name, RunId};
use windlass_core::policy::Verdict;
use windlass_core::run::Actor;
use windlass_core::runbook::Evidence;
use windlass_core::stream::StreamId;
use windlass_core::turn::command::Command;
use windlass_engine::Handle;
use windlass_store::log::{Log, Seqs};
use windlass_store::store::{Embedded, ends};

/// Where it is not known how far bundles were made, so many records before the last seal are looked at.
const LOOK_BACK: u64 = 10_000;
/// How many records are looked at, and how many bundles are kept, before it is noted how far it came.
const SLICE: u64 = 20_000;
const GROUP: usize = 64;
/// How long the end of the process waits for the bundles that are due.
const FINISH: Duration = Duration::from_millis(1_500);
/// After how long it is tried again when a bundle could not be kept.
const AGAIN: Duration = Duration::from_secs(10);
/// Tools that change nothing outside.
const INSIDE: [&str; 2] = ["transform", "emit"];

enum Wake {
    /// A seal covers everything up to a record; bundles are signed with this key.
    Sealed(u64, Name),
    /// Make what is due, as far as there is time, and say so.
    Finish(Sender<()>),
}

/// The thread that makes bundles.
pub(super) struct Keeping {
    wakes: Option<Sender<Wake>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What it works with.
pub struct Place {
    /// Where bundles are kept.
    pub shelf: Shelf,
    /// Where it is noted how far it came.
    pub cursor: PathBuf,
    /// Whether every run gets one.
    pub always: bool,
    /// What bundles have in common.
    pub proofs: Arc<Proofs>,
}

impl Keeping {
    pub(super) fn start(
        engine: Handle<Embedded>,
        log: Arc<Log>,
        keys: Keys,
        place: Place,
    ) -> std::io::Result<Keeping> {
        let (wakes, inbox) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let next = read_cursor(&place.cursor).map(|through| through + 1);
        let mut keeper = Keeper {
            engine,
            log,
            keys,
            place,
            stop: stop.clone(),
            next,
            known_from: 0,
            whole: BTreeSet::new(),
            governed: BTreeSet::new(),
            said: false,
        };
        let thread =
            std::thread::Builder::new().name("evidence".into()).spawn(move || keeper.serve(&inbox))?;
        Ok(Keeping { wakes: Some(wakes), stop, thread: Some(thread) })
    }

    /// A seal covers more now.
    pub(super) fn sealed(&self, through: u64, key: Name) {
        // One that ended is noticed when the process ends.
        let _ = self.wakes.as_ref().map(|wakes| wakes.send(Wake::Sealed(through, key)));
    }

    /// Waits for the bundles that are due, for a moment.
    pub(super) fn finish(&self) {
        let (send, receive) = channel();
        if self.wakes.as_ref().is_some_and(|wakes| wakes.send(Wake::Finish(send)).is_ok()) {
            let _ = receive.recv_timeout(FINISH);
        }
        self.stop.store(true, Ordering::Release);
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        drop(self.wakes.take());
        if let Some(thread) = self.thread.take() {
            // It ends after the bundle that it is making.
            let _ = thread.join();
        }
    }
}

/// A run that ended, where it did, and whether it is known that it has to be proved.
type Over = (RunId, u64, bool);

struct Keeper {
    engine: Handle<Embedded>,
    log: Arc<Log>,
    keys: Keys,
    place: Place,
    stop: Arc<AtomicBool>,
    /// The first record that was not looked at, where that is known.
    next: Option<u64>,
    /// Up to which record another process may have kept bundles.
    known_from: u64,
    /// Runs under way of which every record was seen.
    whole: BTreeSet<RunId>,
    /// Those, and others, that have to be proved.
    governed: BTreeSet<RunId>,
    /// Whether it was said why nothing is kept.
    said: bool,
}

impl Keeper {
    fn serve(&mut self, inbox: &Receiver<Wake>) {
        let (mut sealed, mut waiting): (Option<(u64, Name)>, Vec<Sender<()>>) = (None, Vec::new());
        let mut behind = false;
        loop {
            let woken = match behind {
                true => inbox.recv_timeout(AGAIN),
                false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if self.is_over() || matches!(woken, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            for wake in woken.into_iter().chain(inbox.try_iter()) {
                match wake {
                    Wake::Sealed(through, key) => sealed = Some((through, key)),
                    Wake::Finish(answer) => waiting.push(answer),
                }
            }
            let done = sealed.as_ref().map_or(Ok(()), |(through, key)| self.keep(*through, key));
            if let (Err(error), false) = (&done, self.said) {
                eprintln!("windlass: bundles of evidence wait to be kept: {error}");
            }
            self.said = done.is_err();
            behind = done.is_err();
            // The waiting caller may be gone.
            for answer in waiting.drain(..) {
                let _ = answer.send(());
            }
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Makes the bundles of runs that ended up to a record.
    fn keep(&mut self, through: u64, key: &Name) -> Result<(), Error> {
        let key = self.keys.load(key)?;
        loop {
            let next = *self.next.get_or_insert_with(|| (through + 1).saturating_sub(LOOK_BACK));
            if next > through || self.is_over() {
                return Ok(());
            }
            if self.known_from == 0 {
                self.known_from = self.log.durable_seq();
            }
            let (ended, after) = self.look(next, through)?;
            for group in ended.chunks(GROUP) {
                let mut made = Vec::with_capacity(group.len());
                for (run, seq, due) in group {
                    if self.is_over() {
                        return Ok(());
                    }
                    if self.is_due(*run, *seq, *due)? {
                        let what = What { run: *run, first_seq: 0, through, values: false };
                        match bundle::gather(&self.log, &self.place.proofs, what, &key) {
                            Ok(bundle) => made.push((*run, archive::write(&bundle)?)),
                            // What is gone cannot be proved, and must not hold up what is there.
                            Err(error @ (Error::Unprovable(_) | Error::Missing(_))) => {
                                eprintln!("windlass: {run} has no bundle of evidence: {error}");
                            }
                            Err(error) => return Err(error),
                        }
                    }
                }
                self.put(&made)?;
                self.note(group.last().map_or(next, |(_, seq, _)| *seq));
            }
            self.note(after - 1);
        }
    }

    /// Looks at records for runs that ended; says from where to go on. Where it is known that one has to be proved, it is
    /// said so; one of which not all was seen has to be looked at.
    fn look(&mut self, next: u64, through: u64) -> Result<(Vec<Over>, u64), Error> {
        let (mut ended, mut seen, until) = (Vec::new(), next, through.min(next + SLICE));
        let (governed, whole, always) = (&mut self.governed, &mut self.whole, self.place.always);
        let after = self.log.read(next, &mut |record, _| {
            if record.seq > until {
                return ControlFlow::Break(());
            }
            seen = record.seq + 1;
            if let Some(run) = governs(&record.stream, &record.event) {
                governed.insert(run);
            }
            if let StreamId::Run(run) = record.stream {
                if let Event::PipelineCreated(_) = &record.event {
                    whole.insert(run);
                }
                if ends(&record.event) {
                    let (due, known) = (governed.remove(&run) || always, whole.remove(&run));
                    if due || !known {
                        ended.push((run, record.seq, due));
                    }
                }
            }
            ControlFlow::Continue(())
        })?;
        // Records that compaction dropped are passed over.
        Ok((ended, if seen <= until { after.min(until + 1).max(seen) } else { seen }))
    }

    /// Whether a run that ended has to be proved, and is not yet.
    fn is_due(&self, run: RunId, seq: u64, mut due: bool) -> Result<bool, Error> {
        if !due {
            self.log.scan_run(run, Seqs { first: 0, last: seq }, &mut |record, _| {
                due = governs(&record.stream, &record.event) == Some(run);
                if due { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
        }
        Ok(due && (seq > self.known_from || !self.place.shelf.has(run)?))
    }

    /// Keeps bundles, and records it.
    fn put(&self, made: &[(RunId, Vec<u8>)]) -> Result<(), Error> {
        if made.is_empty() {
            return Ok(());
        }
        let kept = self.place.shelf.put_all(made)?;
        let commands = made.iter().zip(kept).map(|((run, _), Kept { location, sha256, bytes })| {
            let pipeline_id = Some(*run);
            let fact = EvidenceExported { pipeline_id, sha256, bytes, location, from: None, to: None };
            Command::Exported(Box::new(fact))
        });
        let (send, receive) = channel();
        self.engine.ask_many(Actor::SYSTEM, None, commands.collect(), move |answers| {
            let refused = answers.into_iter().find_map(Result::err);
            // The caller waits below.
            let _ = send.send(refused);
        });
        match receive.recv() {
            Ok(None) => Ok(()),
            Ok(Some(refusal)) => Err(Error::Engine(refusal.to_string())),
            Err(_) => Err(Error::Engine("the process is stopping".to_owned())),
        }
    }

    /// Notes that everything up to a record was seen to.
    fn note(&mut self, through: u64) {
        self.next = Some(through + 1);
        let unfinished = self.place.cursor.with_extension("tmp");
        let noted = std::fs::write(&unfinished, format!("{through}\n"));
        // Where it cannot be noted, the next process looks at more than it has to.
        let _ = noted.and_then(|()| std::fs::rename(&unfinished, &self.place.cursor));
    }
}

fn read_cursor(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The run that a fact makes one that has to be proved: its runbook wants that, a human is asked, an action is denied, or
/// something is to change outside.
fn governs(stream: &StreamId, event: &Event) -> Option<RunId> {
    let governed = match event {
        Event::IntentRecorded(e) => return (!INSIDE.contains(&e.tool.as_str())).then_some(e.pipeline_id),
        Event::ApprovalRequested(_) => true,
        Event::PipelineCreated(e) => e.evidence == Some(Evidence::Always),
        Event::PolicyDecided(e) => e.verdict == Verdict::Deny,
        Event::PipelineAdvanced(e) => e.semantics.is_some() && !INSIDE.contains(&e.tool.as_str()),
        // tidy: nothing else asks for a proof.
        _ => false,
    };
    match stream {
        StreamId::Run(run) if governed => Some(*run),
        // tidy: only runs are proved.
        _ => None,
    }
}
