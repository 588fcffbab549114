//! A store in miniature: it makes facts, folds them, commits them, and remembers what was acknowledged.

use crate::disk::Disk;
use crate::disk::faulty::{Dice, Faulty};
use crate::log::{Durable, Entry, Error, Line, Log, Options, Recovery};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::event::{Event, LockAcquired};
use windlass_core::id::{Holder, Name, Scoped};
use windlass_core::run::Actor;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::Fact;
use windlass_core::turn::state::{Body, State};
use windlass_engine::port::Decided;

pub(super) const DIR: &str = "data";

/// Small segments, so that tests come to their ends.
pub(super) fn options() -> Options {
    Options {
        segment_bytes: 8 << 10,
        spares_max: 2,
        group_bytes_max: 64 << 10,
        inline_max: 3,
        waiting_max: 1_000,
        // Tests mark by themselves: what a test sees must not hang on the time it takes.
        idle: Duration::from_secs(3_600),
        snapshots_kept: 2,
        halt_when_full: false,
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(super) fn stream(n: u64) -> StreamId {
    StreamId::Lock(Scoped::new(&name("default"), &name("default"), &name(&format!("lock-{n}"))))
}

/// A fact of a lock's stream, with a private value of some size.
pub(super) fn event(ver: u64, size: usize) -> Event {
    let metadata = (size > 0).then(|| serde_json::Value::from("x".repeat(size)).into());
    let holder = Holder::parse("cli:ann").unwrap();
    LockAcquired { lock: name("lock"), holder, epoch: ver, queued: false, metadata }.into()
}

pub(super) fn fact(n: u64, ver: u64, size: usize) -> Entry {
    fact_at(n, ver, size, Millis(1_000 + ver))
}

pub(super) fn fact_at(n: u64, ver: u64, size: usize, at: Millis) -> Entry {
    let fact = Fact { stream: stream(n), tenant: name("default"), event: event(ver, size) };
    Entry::Facts { facts: vec![Decided { fact, by: Actor::SYSTEM, at }], vers: vec![ver] }
}

/// What a stream is, without its head: only the log knows that.
pub(super) type Shape = BTreeMap<StreamId, (u64, Body)>;

pub(super) fn shape(state: &State) -> Shape {
    state.streams().map(|(id, stream)| (id.clone(), (stream.ver, stream.body.clone()))).collect()
}

/// Opens the log and folds what is in it.
pub(super) fn open_at(disk: &Faulty, dir: &str, options: Options) -> Result<(Log, Recovery, State), Error> {
    open_on(Arc::new(disk.clone()), Path::new(dir), options)
}

pub(super) fn open_on(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: Options,
) -> Result<(Log, Recovery, State), Error> {
    let mut state = State::new();
    let (log, recovery) = Log::open(disk, dir, options, &mut |line| match line {
        Line::Saved(snapshot) => state.restore(*snapshot).map_err(|error| error.to_string()),
        Line::Record { record, text } => {
            assert_eq!(record.to_line(), text.as_bytes());
            state.apply_event(&record).map_err(|error| error.to_string())
        }
    })?;
    Ok((log, recovery, state))
}

pub(super) fn open(disk: &Faulty) -> Result<(Log, Recovery, State), Error> {
    open_at(disk, DIR, options())
}

/// What a store would know: every state that it went through, and how many of them were acknowledged.
pub(super) struct Model {
    /// The state after each batch; the first is empty.
    pub(super) states: Vec<Shape>,
    /// How many batches were acknowledged.
    pub(super) acked: usize,
    pub(super) state: State,
    /// Streams that ended and are no longer in memory.
    pub(super) forgotten: BTreeSet<StreamId>,
}

impl Model {
    pub(super) fn new() -> Model {
        Model { states: vec![Shape::new()], acked: 0, state: State::new(), forgotten: BTreeSet::new() }
    }

    pub(super) fn ver(&self, n: u64) -> u64 {
        self.state.stream(&stream(n)).map_or(0, |stream| stream.ver)
    }

    /// Some facts, applied: a batch.
    pub(super) fn batch(&mut self, dice: &mut Dice, streams: u64) -> Vec<Entry> {
        let mut entries = Vec::new();
        for _ in 0..=dice.below(4) {
            let n = dice.roll() % streams;
            if self.forgotten.contains(&stream(n)) {
                continue;
            }
            let size = if dice.one_in(20) { dice.below(12_000) } else { dice.below(300) };
            let ver = self.ver(n) + 1;
            let at = Millis(1_000 + ver);
            self.state.apply_fact(&stream(n), &name("default"), &event(ver, size), at).unwrap();
            entries.push(fact(n, ver, size));
        }
        entries
    }

    /// Commits a batch; says whether it was acknowledged.
    pub(super) fn commit(&mut self, log: &Log, entries: Vec<Entry>) -> Result<Durable, Error> {
        self.states.push(shape(&self.state));
        let durable = log.commit_and_wait(entries)?;
        self.acked = self.states.len() - 1;
        Ok(durable)
    }

    /// What came back after a crash is one of the states from the last acknowledged one on; life goes on from there.
    pub(super) fn check(&mut self, recovered: &State, what: &str) {
        let found = live(&shape(recovered), &self.forgotten);
        let at = (self.acked..self.states.len())
            .rev()
            .find(|at| live(&self.states[*at], &self.forgotten) == found);
        let Some(at) = at else {
            let versions =
                |shape: &Shape| shape.iter().map(|(s, (v, _))| format!("{s}@{v}")).collect::<Vec<_>>();
            panic!(
                "{what}: acknowledged {:?}, of {} states after it none is what came back: {:?}",
                versions(&self.states[self.acked]),
                self.states.len() - self.acked,
                versions(&found)
            );
        };
        self.states.truncate(at + 1);
        self.acked = at;
        self.state = recovered.clone();
        for stream in &self.forgotten {
            self.state.evict(stream);
        }
    }
}

fn live(shape: &Shape, forgotten: &BTreeSet<StreamId>) -> Shape {
    shape.iter().filter(|(id, _)| !forgotten.contains(*id)).map(|(id, s)| (id.clone(), s.clone())).collect()
}
