//! Sealing: a thread that follows the log and, every ten seconds in which something changed and whenever it is asked,
//! signs a root over the heads that changed.
//!
//! A seal covers the last record of each stream in a range of the log without a gap, from the record after the last seal
//! on. So whoever has the log can find the leaves of any seal again.

use super::bundle::{self, What};
use super::keys::{Key, Keys};
use super::shelf::{Kept, Shelf};
use super::{Error, archive};
use crate::log::Log;
use crate::store::{Embedded, ends};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use windlass_core::audit::{INTERVAL, Input, LEAVES_MAX, Rotation, Sealer};
use windlass_core::command::Command;
use windlass_core::digest::Digest;
use windlass_core::event::{Event, EvidenceExported, KeyRotated};
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Actor, Run};
use windlass_core::state::Body;
use windlass_core::stream::StreamId;
use windlass_engine::Handle;
use windlass_engine::port::Clock as _;

/// How many records before the last seal are looked at for runs whose bundles a process before did not come to make.
const LOOK_BACK: u64 = 10_000;

enum Wish {
    /// Seal everything that is durable.
    Now(Sender<Result<(), String>>),
    /// Seal everything, and make the bundles that are due.
    Finish(Sender<Result<(), String>>),
    /// Use a new key from now on.
    Rotate(Sender<Result<Name, String>>),
}

/// The thread that seals.
pub struct Sealing {
    wishes: Option<Sender<Wish>>,
    thread: Option<JoinHandle<()>>,
}

impl Sealing {
    /// Begins to follow the log.
    ///
    /// # Errors
    /// There is no place for keys, or the system gives no thread.
    pub fn start(
        engine: Handle<Embedded>,
        log: Arc<Log>,
        keys: Keys,
        shelf: Shelf,
    ) -> std::io::Result<Sealing> {
        let (wishes, inbox) = channel();
        let mut worker = Worker {
            engine,
            log,
            keys,
            sealer: None,
            next: 0,
            said: false,
            looked_back: false,
            governed: BTreeSet::new(),
            known_from: 0,
            ended: Vec::new(),
            shelf,
        };
        let thread =
            std::thread::Builder::new().name("sealing".into()).spawn(move || worker.serve(&inbox))?;
        Ok(Sealing { wishes: Some(wishes), thread: Some(thread) })
    }

    /// Seals everything that is durable now, and waits for it.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn now(&self) -> Result<(), Error> {
        let (send, receive) = channel();
        self.ask(Wish::Now(send), &receive)
    }

    /// Seals everything and makes the bundles that are due, because the process ends.
    ///
    /// # Errors
    /// Why it cannot; the next process takes it up.
    pub fn finish(&self) -> Result<(), Error> {
        let (send, receive) = channel();
        self.ask(Wish::Finish(send), &receive)
    }

    /// Makes a new key, vouched for by the one before, and says its name.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn rotate(&self) -> Result<Name, Error> {
        let (send, receive) = channel();
        self.ask(Wish::Rotate(send), &receive)
    }

    fn ask<T>(&self, wish: Wish, answer: &Receiver<Result<T, String>>) -> Result<T, Error> {
        let ended = || Error::Engine("the process is stopping".to_owned());
        self.wishes.as_ref().ok_or_else(ended)?.send(wish).map_err(|_| ended())?;
        answer.recv().map_err(|_| ended())?.map_err(Error::Engine)
    }
}

impl Drop for Sealing {
    fn drop(&mut self) {
        drop(self.wishes.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has nothing left to wait for.
            let _ = thread.join();
        }
    }
}

struct Worker {
    engine: Handle<Embedded>,
    log: Arc<Log>,
    keys: Keys,
    /// What is sealed and what is not; not known before it is needed.
    sealer: Option<Sealer>,
    /// The first record that was not looked at.
    next: u64,
    /// Whether it was said why nothing is sealed.
    said: bool,
    /// Whether it was seen to what a process before may have left.
    looked_back: bool,
    /// Runs that are under way and have to be proved.
    governed: BTreeSet<RunId>,
    /// After which record they are all known.
    known_from: u64,
    /// Runs that ended since their bundles were last seen to.
    ended: Vec<RunId>,
    /// Where bundles are kept.
    shelf: Shelf,
}

impl Worker {
    fn serve(&mut self, inbox: &Receiver<Wish>) {
        // What is found now need not be asked for later, run by run. Where it cannot be, it is tried again.
        let _ = self.sealer();
        loop {
            match inbox.recv_timeout(Duration::from_millis(INTERVAL.0)) {
                Ok(Wish::Now(answer)) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.seal().map_err(|error| error.to_string()));
                }
                Ok(Wish::Finish(answer)) => {
                    let done = self.seal().and_then(|()| self.keep());
                    let _ = answer.send(done.map_err(|error| error.to_string()));
                }
                Ok(Wish::Rotate(answer)) => {
                    let _ = answer.send(self.rotate().map_err(|error| error.to_string()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let sealed = self.seal().and_then(|()| self.keep());
                    if let (Err(error), false) = (&sealed, self.said) {
                        eprintln!("windlass: what changed is not all sealed and kept: {error}");
                    }
                    self.said = sealed.is_err();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// What is recorded of seals and keys.
    fn sealer(&mut self) -> Result<&mut Sealer, Error> {
        if self.sealer.is_none() {
            let first = !self.looked_back;
            let known = self.engine.read(move |store| {
                let governed = if first { governed(store) } else { BTreeSet::new() };
                (recorded(store).cloned().unwrap_or_default(), governed)
            });
            let (recorded, governed) = known.map_err(|refusal| Error::Engine(refusal.to_string()))?;
            self.next = recorded.through + 1;
            if first {
                // A read is answered when all that it saw is durable.
                (self.governed, self.known_from) = (governed, self.log.durable_seq());
                self.ended.extend(unkept(&self.log, recorded.through)?);
                self.looked_back = true;
            }
            self.sealer = Some(recorded);
        }
        Ok(self.sealer.get_or_insert_default())
    }

    /// Looks at what became durable, as far as one seal can cover it. Says whether there is more.
    fn observe(&mut self) -> Result<bool, Error> {
        self.sealer()?;
        let (next, mut more) = (self.next, false);
        let mut sealer = self.sealer.take().unwrap_or_default();
        let (governed, ended, known_from) = (&mut self.governed, &mut self.ended, self.known_from);
        let read = self.log.read(next, &mut |record, _| {
            if let StreamId::Run(run) = record.stream {
                if governs(&record.event) {
                    governed.insert(run);
                } else if ends(&record.event) && (governed.remove(&run) || record.seq <= known_from) {
                    ended.push(run);
                }
            }
            sealer = std::mem::take(&mut sealer).observe(&record);
            more = sealer.dirty.len() >= LEAVES_MAX;
            if more { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.sealer = Some(sealer);
        // After an error it is read again from what is recorded.
        self.next = read.inspect_err(|_| self.sealer = None)?;
        Ok(more)
    }

    fn call(&mut self, command: Command) -> Result<(), Error> {
        let done = self.engine.call(Actor::SYSTEM, command);
        if done.is_err() {
            self.sealer = None;
        }
        done.map(|_| ()).map_err(|refusal| Error::Engine(refusal.to_string()))
    }

    /// Seals what is durable and not sealed yet.
    fn seal(&mut self) -> Result<(), Error> {
        loop {
            let more = self.observe()?;
            if self.sealer()?.dirty.is_empty() {
                return Ok(());
            }
            let key = self.key()?;
            let at = crate::clock::System.now();
            let sealer = self.sealer()?;
            let Some(proposal) = sealer.propose(at) else { return Ok(()) };
            let signature = key.sign(&proposal.seal.signed_bytes());
            let decided = sealer.decide(&Input::Seal { proposal, signature }, at);
            let decision = decided.map_err(|error| Error::Engine(error.to_string()))?;
            for event in decision.facts {
                if let Event::SealCreated(seal) = &event {
                    self.call(Command::Seal(seal.clone()))?;
                }
                if let Some(sealer) = &mut self.sealer {
                    *sealer = std::mem::take(sealer).apply(&event, at);
                }
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Makes the bundles of governed runs that have ended: those with an approval or an intent.
    fn keep(&mut self) -> Result<(), Error> {
        let gone = |refusal: windlass_core::command::Refusal| Error::Engine(refusal.to_string());
        while let Some(&run) = self.ended.last() {
            let looked = self.engine.read(move |store| (store.first_seq(run), was_governed(store, run)));
            let (first_seq, governed) = looked.map_err(gone)?;
            if governed && !self.shelf.has(run)? {
                let key = self.key()?;
                let what = What { run, first_seq, values: false };
                let made =
                    archive::write(&bundle::gather(&self.log, what, &key, crate::clock::System.now())?)?;
                let Kept { location, sha256, bytes } = self.shelf.put(run, &made)?;
                let pipeline_id = Some(run);
                let fact = EvidenceExported { pipeline_id, sha256, bytes, location, from: None, to: None };
                self.call(Command::Exported(Box::new(fact)))?;
            }
            self.ended.pop();
        }
        Ok(())
    }

    /// The key in force; the first one is made when it is needed.
    fn key(&mut self) -> Result<Key, Error> {
        match self.sealer()?.key_id.clone() {
            Some(id) => self.keys.load(&id),
            None => self.take_over(None),
        }
    }

    fn rotate(&mut self) -> Result<Name, Error> {
        self.observe()?;
        let old = self.sealer()?.key_id.clone().map(|id| self.keys.load(&id)).transpose()?;
        Ok(self.take_over(old.as_ref())?.id)
    }

    fn take_over(&mut self, old: Option<&Key>) -> Result<Key, Error> {
        let key = self.keys.make()?;
        let mut rotation = Rotation {
            key_id: key.id.clone(),
            public_key: key.public(),
            replaces: old.map(|old| old.id.clone()),
            signature: None,
        };
        rotation.signature = old.map(|old| old.sign(&rotation.signed_bytes()));
        let Rotation { key_id, public_key, replaces, signature } = rotation;
        let fact = KeyRotated { key_id, public_key, replaces, signature };
        self.call(Command::RotateKey(Box::new(fact.clone())))?;
        if let Some(sealer) = &mut self.sealer {
            *sealer = std::mem::take(sealer).apply(&fact.into(), crate::clock::System.now());
        }
        Ok(key)
    }
}

/// Governed runs that ended shortly before the last seal, and of which no bundle is recorded: the process died, or the
/// place for bundles could not be reached.
fn unkept(log: &Log, through: u64) -> Result<BTreeSet<RunId>, Error> {
    let (mut governed, mut ended, mut kept) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    log.read((through + 1).saturating_sub(LOOK_BACK), &mut |record, _| {
        if record.seq > through {
            return ControlFlow::Break(());
        }
        match (&record.stream, &record.event) {
            (_, Event::EvidenceExported(e)) => kept.extend(e.pipeline_id),
            (StreamId::Run(run), event) if governs(event) => drop(governed.insert(*run)),
            (StreamId::Run(run), event) if ends(event) => drop(ended.insert(*run)),
            // tidy: nothing else says that a bundle is due.
            (_, _) => {}
        }
        ControlFlow::Continue(())
    })?;
    Ok(ended.into_iter().filter(|run| governed.contains(run) && !kept.contains(run)).collect())
}

/// Whether a fact makes its run one that has to be proved: a human is asked, or an outside action is proposed, without
/// which there is no intent.
fn governs(event: &Event) -> bool {
    match event {
        Event::ApprovalRequested(_) => true,
        Event::PipelineAdvanced(e) => e.action_hash.is_some(),
        Event::StepStarted(e) => e.action_hash.is_some(),
        // tidy: nothing else asks for a proof.
        _ => false,
    }
}

/// The same of a run in memory.
fn is_governed(run: &Run) -> bool {
    !run.rare().approvals.is_empty() || run.steps.iter().any(|step| step.action_hash().is_some())
}

/// Runs in memory that have to be proved.
fn governed(store: &Embedded) -> BTreeSet<RunId> {
    let runs = store.state().streams().filter_map(|(_, stream)| match &stream.body {
        Body::Run(run) if is_governed(run) => Some(run.id()),
        // tidy: only runs are proved.
        _ => None,
    });
    runs.collect()
}

/// The same of any run.
fn was_governed(store: &mut Embedded, run: RunId) -> bool {
    // One that has left memory is read back; one that cannot be is gone.
    let _ = windlass_engine::port::Store::load(store, &[StreamId::Run(run)]);
    store.state().run(run).is_some_and(is_governed)
}

fn recorded(store: &Embedded) -> Option<&Sealer> {
    match store.state().stream(&StreamId::System).map(|stream| &stream.body) {
        Some(Body::System(sealer)) => Some(sealer),
        Some(_) | None => None,
    }
}

/// The public halves of all keys there ever were.
#[must_use]
pub fn public_keys(store: &Embedded) -> BTreeMap<Name, Digest> {
    recorded(store).map(|sealer| sealer.keys.clone()).unwrap_or_default()
}

/// The key that seals.
#[must_use]
pub fn key_in_force(store: &Embedded) -> Option<Name> {
    recorded(store).and_then(|sealer| sealer.key_id.clone())
}
