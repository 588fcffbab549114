//! Streams that leave and come again: whatever happens in between, they go on where they were. No epoch and no version is
//! lower than one before, and an effect that succeeded is never granted again.

use super::{options, path};
use crate::disk::faulty::Faulty;
use crate::store::{Before, Embedded};
use serde_json::json;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use windlass_core::digest::Digest;
use windlass_core::event::{Event, StreamCarried};
use windlass_core::id::{AttemptId, Holder, Name, ReceiptId, RunId, Scoped};
use windlass_core::idempotency::{self, Key, Source};
use windlass_core::lock::{self, Ask, Lock};
use windlass_core::machine::Beats;
use windlass_core::policy::Risk;
use windlass_core::receipt::key::{self, EffectKey, Proposal, Report};
use windlass_core::receipt::{Action, Outcome, Semantics};
use windlass_core::run::Actor;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::Fact;
use windlass_core::turn::state::Body;
use windlass_engine::port::{Batch, Decided, Store as _};

/// Numbers that look random and are the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A store, and what is known of the streams in it.
struct World {
    disk: Faulty,
    dir: tempfile::TempDir,
    store: Option<Embedded>,
    known: BTreeMap<StreamId, (u64, Body)>,
    at: Millis,
    /// The highest epoch that each lock gave out.
    epochs: BTreeMap<StreamId, u64>,
    /// Effects that succeeded.
    done: Vec<StreamId>,
    crashes: u64,
    left: u32,
    dropped: u64,
    /// How many records of streams that stayed went.
    shortened: u64,
    /// No lock that left the log had a higher epoch.
    floor: u64,
    /// What was done, for whoever has to find out why it failed.
    trace: Vec<String>,
}

fn name(text: &str) -> Name {
    Name::clean(text)
}

fn scoped(text: &str) -> Scoped {
    Scoped::new(&name("default"), &name("default"), &name(text))
}

impl World {
    fn new() -> World {
        let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
        let mut world = World {
            disk,
            dir,
            store: None,
            known: BTreeMap::new(),
            at: Millis(1_000_000),
            epochs: BTreeMap::new(),
            done: Vec::new(),
            crashes: 0,
            left: 0,
            dropped: 0,
            shortened: 0,
            floor: 0,
            trace: Vec::new(),
        };
        world.open();
        world
    }

    fn open(&mut self) {
        let (store, _) = Embedded::open(Arc::new(self.disk.clone()), &path(&self.dir), &options()).unwrap();
        self.store = Some(store);
    }

    fn store(&mut self) -> &mut Embedded {
        self.store.as_mut().unwrap()
    }

    /// A stream as the store has it, which must be what is known of it.
    fn look(&mut self, stream: &StreamId) -> Option<Body> {
        let store = self.store.as_mut().unwrap();
        store.load(std::slice::from_ref(stream)).unwrap();
        let found = store.state().stream(stream).map(|found| (found.ver, found.body.clone()));
        let begins_anew = matches!(stream, StreamId::Trigger(_) | StreamId::Lock(_));
        if found.is_none() && begins_anew && self.dropped > 0 {
            // What was forgotten begins anew once it was dropped.
            let known = self.known.remove(stream);
            let over = |body: &Body| match body {
                Body::Trigger(key) => key.due().is_none_or(|due| due <= self.at),
                Body::Lock(lock) => lock.hold().is_none(),
                other => panic!("{other:?} is neither a key nor a lock"),
            };
            assert!(known.is_none_or(|(_, body)| over(&body)), "{stream} was dropped too early");
            return None;
        }
        assert_eq!(found, self.known.get(stream).cloned(), "{stream} is not where it was");
        found.map(|(_, body)| body)
    }

    fn write(&mut self, stream: &StreamId, events: Vec<Event>) {
        let at = self.at;
        let fact = |event| Fact { stream: stream.clone(), tenant: name("default"), event };
        let facts: Vec<Fact> = events.into_iter().map(fact).collect();
        if facts.is_empty() {
            return;
        }
        let store = self.store.as_mut().unwrap();
        store.view().apply(&facts, at);
        let (told, hear) = channel();
        let facts = facts.into_iter().map(|fact| Decided { fact, by: Actor::SYSTEM, at }).collect();
        store.commit(Batch { at, facts, done: Box::new(move |done| told.send(done).unwrap()) }, true);
        hear.recv().unwrap().unwrap();
        let found = store.state().stream(stream).unwrap();
        let (ver, body) = (found.ver, found.body.clone());
        let before = self.known.insert(stream.clone(), (ver, body));
        assert!(before.is_none_or(|(before, _)| before < ver), "the version of {stream} went back");
    }

    fn use_lock(&mut self, which: &str) {
        let stream = StreamId::Lock(scoped(which));
        let lock = match self.look(&stream) {
            Some(Body::Lock(lock)) => *lock,
            Some(other) => panic!("{other:?} is no lock"),
            None => Lock::above(scoped(which), self.floor),
        };
        let holder = Holder::Outside(name("me"));
        let input = match lock.hold() {
            None => lock::Input::Acquire(Ask { holder, metadata: None, wait: false, give_up_at: None }),
            Some(hold) => lock::Input::Release { holder, epoch: Some(hold.epoch) },
        };
        let decided = lock.decide(&input, &Beats::default(), self.at).unwrap();
        if let lock::Reply::Acquired { epoch } = decided.reply {
            let last = self.epochs.insert(stream.clone(), epoch);
            assert!(last.is_none_or(|last| last < epoch), "{stream} gave out {epoch} after {last:?}");
        }
        self.write(&stream, decided.facts);
    }

    /// A lock says what it came to, so that what stands before may go.
    fn carry(&mut self, which: &str) {
        let stream = StreamId::Lock(scoped(which));
        if let Some(state) = self.look(&stream).and_then(|body| body.carried()) {
            self.write(&stream, vec![StreamCarried { prior: Digest::default(), state }.into()]);
        }
    }

    /// Somebody wants to act under a key; now and then it works.
    fn act(&mut self, which: &str, works: bool) {
        let stream = StreamId::Effect(scoped(which));
        let mut key = match self.look(&stream) {
            Some(Body::Effect(key)) => *key,
            Some(other) => panic!("{other:?} is no key"),
            None => EffectKey::new(name(which)),
        };
        let attempt = AttemptId { run: RunId(u128::from(self.at.0)), step: "act".parse_step(), epoch: 1 };
        let fields = json!({ "n": 1 });
        let action = Action::new(name("http.post"), name("post"), name("there"), fields, Risk::Low).unwrap();
        let (action_hash, semantics) = (action.hash(), Semantics::Idempotent);
        let proposal = Proposal { attempt: attempt.clone(), action, action_hash, semantics };
        let decided = key.decide(&key::Input::Intend(Box::new(proposal)), self.at).unwrap();
        let granted = matches!(decided.reply, key::Reply::Granted { .. });
        assert_eq!(granted, !self.done.contains(&stream), "{stream}: {:?}", decided.reply);
        let mut facts = decided.facts;
        if granted {
            key = facts.iter().fold(key, |key, fact| key.apply(fact, self.at));
            let report = Report {
                receipt_id: ReceiptId(u128::from(self.at.0)),
                attempt,
                status: if works { Outcome::Succeeded } else { Outcome::Failed },
                reversible: false,
                reverse: None,
                request: None,
                response: Some(json!({ "id": self.at.0 })),
            };
            facts.extend(key.decide(&key::Input::Receipt(Box::new(report)), self.at).unwrap().facts);
            self.done.extend(works.then(|| stream.clone()));
        }
        self.write(&stream, facts);
    }

    /// A delivery is made again and again; it is answered once as long as its key is remembered.
    fn deliver(&mut self, which: &str) {
        let stream = StreamId::Trigger(scoped(which));
        let key = match self.look(&stream) {
            Some(Body::Trigger(key)) => *key,
            Some(other) => panic!("{other:?} is no key"),
            None => Key::new(name(which)),
        };
        let run = Some(RunId(u128::from(self.at.0)));
        let claim = idempotency::Input::Claim { source: Source::Api, request_hash: Digest::default(), run };
        let decided = key.decide(&claim, self.at).unwrap();
        let mut facts = decided.facts;
        if let idempotency::Reply::New { attempt } = decided.reply {
            assert!(key.due().is_none(), "a key that is remembered was claimed anew");
            let key = facts.iter().fold(key, |key, fact| key.apply(fact, self.at));
            let complete = idempotency::Input::Complete { attempt, run, response: None, ttl: None };
            facts.extend(key.decide(&complete, self.at).unwrap().facts);
        }
        self.write(&stream, facts);
    }

    /// Days pass, and what is remembered for a time is forgotten.
    fn forget(&mut self) {
        self.at = self.at + Span::hours(48);
        let keys: Vec<StreamId> =
            self.known.keys().filter(|stream| matches!(stream, StreamId::Trigger(_))).cloned().collect();
        for stream in keys {
            if let Some(Body::Trigger(key)) = self.look(&stream) {
                let facts = key.decide(&idempotency::Input::Tick, self.at).unwrap().facts;
                self.write(&stream, facts);
            }
        }
    }

    fn leave(&mut self) {
        let store = self.store.as_mut().unwrap();
        store.live.history.flush().unwrap();
        while !store.resting.is_empty() {
            store.idle(Millis(u64::MAX / 2));
            std::thread::yield_now();
        }
        for (stream, (_, body)) in &self.known {
            let there = store.state().stream(stream).is_some();
            assert_eq!(there, !body.is_at_rest(), "{stream}");
            self.left += u32::from(!there);
        }
    }

    fn crash(&mut self) {
        drop(self.store.take());
        self.crashes += 1;
        self.disk.crash(self.crashes);
        self.open();
    }

    fn retain(&mut self) {
        let at = self.at;
        let store = self.store();
        store.log().roll().unwrap();
        let keys = Millis(at.0.saturating_sub(Span::hours(24).0));
        let before = Before { runs: at, items: at, keys, runbooks: at };
        let retiring = store.retire(before).unwrap();
        let floor = Cell::new(0);
        let note = |epoch| {
            floor.set(epoch);
            true
        };
        let done = retiring.carry_out(&note).unwrap();
        store.retired(&retiring.gone().unwrap(), true);
        if let Err(error) = store.log().verify() {
            let mut lines = Vec::new();
            let _ = store.log().read(0, &mut |record, _| {
                if record.stream.to_string().ends_with("api:1") {
                    let chain = record.chain.to_string();
                    lines.push(format!(
                        "{} v{} {} {}",
                        record.seq,
                        record.ver,
                        record.event.tag(),
                        &chain[..8]
                    ));
                }
                std::ops::ControlFlow::Continue(())
            });
            panic!("{error}\n{}\n{}", lines.join("\n"), self.trace.join("\n"));
        }
        self.dropped += done.streams_dropped;
        self.shortened += u64::from(done.streams_dropped == 0) * done.records_dropped;
        self.floor = self.floor.max(floor.get());
    }

    fn check_all(&mut self) {
        for stream in self.known.keys().cloned().collect::<Vec<_>>() {
            self.look(&stream);
        }
    }
}

trait ParseStep {
    fn parse_step(&self) -> windlass_core::id::StepId;
}

impl ParseStep for str {
    fn parse_step(&self) -> windlass_core::id::StepId {
        windlass_core::id::StepId::new(self).unwrap()
    }
}

#[test]
fn what_comes_again_goes_on_where_it_was() {
    let (mut left, mut dropped, mut shortened) = (0, 0, 0);
    for seed in 1..=6 {
        let (mut world, mut dice) = (World::new(), Dice(seed * 7_919));
        for _ in 0..150 {
            world.at = world.at + Span(10);
            let (which, what) = (dice.below(3), dice.below(17));
            let seq = world.store().log().durable_seq();
            world.trace.push(format!("{what} {which} at {seq}"));
            match what {
                0..=4 => world.use_lock(&format!("lock-{which}")),
                5..=7 => {
                    let works = dice.below(2) == 0;
                    world.act(&format!("tenant/k{which}"), works);
                }
                8..=9 => world.deliver(&format!("api:{which}")),
                10 => world.forget(),
                11 | 12 => world.leave(),
                13 => world.crash(),
                15 => world.carry(&format!("lock-{which}")),
                14 => {
                    let at = world.at;
                    world.store().save_now(at);
                }
                _ => world.retain(),
            }
        }
        world.check_all();
        world.crash();
        world.check_all();
        left += world.left;
        dropped += world.dropped;
        shortened += world.shortened;
    }
    assert!(left > 100 && dropped > 0, "nothing left ({left}) or nothing was dropped ({dropped})");
    assert!(shortened > 0, "no stream was shortened");
}

#[test]
fn a_stream_that_comes_back_while_it_is_dropped_stays() {
    let mut world = World::new();
    world.deliver("api:1");
    world.forget();
    world.leave();
    let at = world.at + Span::hours(48);
    let stream = StreamId::Trigger(scoped("api:1"));
    let store = world.store();
    store.log().roll().unwrap();
    let retiring = store.retire(Before { runs: at, items: at, keys: at, runbooks: at }).unwrap();
    // It was chosen, and comes back before the files are replaced.
    store.load(std::slice::from_ref(&stream)).unwrap();
    assert_eq!(retiring.carry_out(&|_| true).unwrap().streams_dropped, 0);
    store.retired(&[], true);
    world.deliver("api:1");
    world.crash();
    world.check_all();
    // Without that it goes, and begins anew.
    world.forget();
    world.leave();
    world.at = world.at + Span::hours(48);
    world.retain();
    assert_eq!(world.dropped, 1);
    world.deliver("api:1");
    assert_eq!(world.known[&stream].0, 2, "it begins anew");
    world.crash();
    world.check_all();
}
