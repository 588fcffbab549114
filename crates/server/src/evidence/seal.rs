//! Sealing: a thread that follows the log and, every ten seconds in which something changed and whenever it is asked,
//! signs a root over the heads that changed.
//!
//! A seal covers the last record of each stream in a range of the log without a gap, from the record after the last seal
//! on. So the leaves of any seal can be found again from the log.

use super::Error;
use super::keep::{Keeping, Place};
use super::keys::{Key, Keys};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windlass_core::audit::{INTERVAL, Input, LEAVES_MAX, Rotation, Sealer};
use windlass_core::digest::Digest;
use windlass_core::event::{Event, KeyRotated};
use windlass_core::id::Name;
use windlass_core::run::Actor;
use windlass_core::stream::StreamId;
use windlass_core::turn::command::Command;
use windlass_core::turn::state::Body;
use windlass_engine::Handle;
use windlass_engine::port::Clock as _;
use windlass_store::log::Log;
use windlass_store::store::Embedded;

/// Who is told that everything is sealed, or why it is not.
type Sealed = Sender<Result<(), String>>;

enum Wish {
    /// Seal everything that is durable.
    Now(Sealed),
    /// Seal everything that is durable, but not more often than it is done anyway.
    Soon(Sealed),
    /// Use a new key from now on.
    Rotate(Sender<Result<Name, String>>),
}

/// The thread that seals.
pub struct Sealing {
    wishes: Option<Sender<Wish>>,
    thread: Option<JoinHandle<()>>,
    keeping: Arc<Keeping>,
    stop: Arc<AtomicBool>,
}

impl Sealing {
    /// Begins to follow the log, and to make bundles behind the seals.
    ///
    /// # Errors
    /// There is no place for keys, or the system gives no thread.
    pub fn start(
        engine: Handle<Embedded>,
        log: Arc<Log>,
        keys: Keys,
        place: Place,
    ) -> std::io::Result<Sealing> {
        let (wishes, inbox) = channel();
        let keeping = Keeping::start(engine.clone(), log.clone(), keys.clone(), place)?;
        let (keeping, stop) = (Arc::new(keeping), Arc::new(AtomicBool::new(false)));
        let mut worker = Worker {
            engine,
            log,
            keys,
            sealer: None,
            next: 0,
            last: None,
            said: false,
            keeping: keeping.clone(),
            stop: stop.clone(),
        };
        let thread =
            std::thread::Builder::new().name("sealing".into()).spawn(move || worker.serve(&inbox))?;
        Ok(Sealing { wishes: Some(wishes), thread: Some(thread), keeping, stop })
    }

    /// Seals everything that is durable now, and waits for it.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn now(&self) -> Result<(), Error> {
        let (send, receive) = channel();
        self.ask(Wish::Now(send), &receive)
    }

    /// Seals everything that is durable now, and waits for it: for those who only read. They make no more seals than there
    /// would be without them, so they may wait as long as it takes to the next.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn soon(&self) -> Result<(), Error> {
        let (send, receive) = channel();
        self.ask(Wish::Soon(send), &receive)
    }

    /// Seals everything and makes the bundles that are due, as far as there is time: the process ends.
    ///
    /// # Errors
    /// Why it cannot; the next process takes it up.
    pub fn finish(&self) -> Result<(), Error> {
        // The index can wait.
        self.stop.store(true, Ordering::Release);
        let sealed = self.now();
        self.keeping.finish();
        sealed
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
    /// When the last seal was made.
    last: Option<Instant>,
    /// Whether it was said why nothing is sealed.
    said: bool,
    /// What makes bundles of what is sealed.
    keeping: Arc<Keeping>,
    /// Whether the process is on its way out.
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn serve(&mut self, inbox: &Receiver<Wish>) {
        const EVERY: Duration = Duration::from_millis(INTERVAL.0);
        // Where it cannot be known yet, it is tried again.
        let _ = self.sealer();
        self.index();
        let mut due = Instant::now() + EVERY;
        let mut waiting: Vec<Sealed> = Vec::new();
        loop {
            // However many ask for something meanwhile, it is sealed when it is time.
            let wish = match due.checked_duration_since(Instant::now()) {
                Some(left) => inbox.recv_timeout(left),
                None => Err(RecvTimeoutError::Timeout),
            };
            match wish {
                Ok(Wish::Now(answer)) => {
                    // The caller may be gone.
                    let _ = answer.send(self.seal().map_err(|error| error.to_string()));
                }
                Ok(Wish::Soon(answer)) if self.last.is_some_and(|last| last.elapsed() < EVERY) => {
                    waiting.push(answer);
                }
                Ok(Wish::Soon(answer)) => {
                    let _ = answer.send(self.seal().map_err(|error| error.to_string()));
                }
                Ok(Wish::Rotate(answer)) => {
                    let _ = answer.send(self.rotate().map_err(|error| error.to_string()));
                }
                Err(RecvTimeoutError::Timeout) => {
                    due = Instant::now() + EVERY;
                    let sealed = self.seal();
                    if let (Err(error), false) = (&sealed, self.said) {
                        eprintln!("windlass: what changed is not all sealed: {error}");
                    }
                    self.said = sealed.is_err();
                    for answer in waiting.drain(..) {
                        let _ = answer.send(sealed.as_ref().copied().map_err(ToString::to_string));
                    }
                    self.index();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// What is recorded of seals and keys.
    fn sealer(&mut self) -> Result<&mut Sealer, Error> {
        if self.sealer.is_none() {
            let known = self.engine.read(|store| recorded(store).cloned().unwrap_or_default());
            let recorded = known.map_err(|refusal| Error::Engine(refusal.to_string()))?;
            self.next = recorded.through + 1;
            if let Some(key) = &recorded.key_id {
                self.keeping.sealed(recorded.through, key.clone());
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
        let read = self.log.read(next, &mut |record, _| {
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
            let at = windlass_executor::clock::System.now();
            let sealer = self.sealer()?;
            let Some(proposal) = sealer.propose(at) else { return Ok(()) };
            let signature = key.sign(&proposal.seal.signed_bytes());
            let decided = sealer.decide(&Input::Seal { proposal, signature }, at);
            let decision = decided.map_err(|error| Error::Engine(error.to_string()))?;
            for event in decision.facts {
                if let Event::SealCreated(seal) = &event {
                    self.call(Command::Seal(seal.clone()))?;
                    self.last = Some(Instant::now());
                }
                if let Some(sealer) = &mut self.sealer {
                    *sealer = std::mem::take(sealer).apply(&event, at);
                }
            }
            let through = self.sealer()?.through;
            self.keeping.sealed(through, key.id);
            if !more {
                return Ok(());
            }
        }
    }

    /// Brings the index of the log up to date, so that bundles and reads of a run cost that run's records.
    fn index(&self) {
        // Where it cannot be, the log is walked through.
        let _ = self.log.index(&|| !self.stop.load(Ordering::Acquire));
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
            *sealer = std::mem::take(sealer).apply(&fact.into(), windlass_executor::clock::System.now());
        }
        Ok(key)
    }
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

/// The last record that a seal covers.
#[must_use]
pub fn sealed_through(store: &Embedded) -> u64 {
    recorded(store).map_or(0, |sealer| sealer.through)
}
