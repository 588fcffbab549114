//! The materialised state: every stream folded from its facts, and the indexes that `pick` draws from.
//!
//! Applying a record is all that ever changes it, so it is the same whether it was lived through or replayed,
//! and a snapshot of each stream with its version plus the records after it give the whole. The indexes are
//! derived: they are rebuilt from the streams and never saved. What they say are hints; the streams decide.

mod deployed;
mod saved;
pub use saved::Snapshot;

use crate::audit::Sealer;
use crate::caps::Caps;
use crate::digest::Digest;
use crate::event::Event;
use crate::id::{Holder, Name, RunId, Scoped, TokenId};
use crate::idempotency::Key;
use crate::item::Item;
use crate::lock::Lock;
use crate::machine::Beats;
use crate::pool::Pool;
use crate::queue::Queue;
use crate::receipt::key::EffectKey;
use crate::record::{Decoder, Record};
use crate::run::Run;
use crate::runbook::Runbook;
use crate::schedule::{self, Schedule};
use crate::semaphore::Semaphore;
use crate::signal::Signals;
use crate::stream::{StreamId, StreamMap};
use crate::tenant::Tenant;
use crate::time::Millis;
use crate::token::Token;
use crate::turn::deployment::Active;
use crate::turn::index::Indexes;
use crate::turn::{Found, Overlay, View};
use crate::wire;
use crate::worker::Worker;
use crate::workspace::Workspace;
use crate::workspace::session::Session;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a stream is folded into. What is large stands in a box, so that all of them are small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// A run.
    Run(Box<Run>),
    /// A queue's settings.
    Queue(Box<Queue>),
    /// An item.
    Item(Box<Item>),
    /// A lock.
    Lock(Box<Lock>),
    /// A semaphore.
    Semaphore(Box<Semaphore>),
    /// A worker.
    Worker(Box<Worker>),
    /// A schedule.
    Schedule(Box<Schedule>),
    /// An ingress key.
    Trigger(Box<Key>),
    /// An effect key.
    Effect(Box<EffectKey>),
    /// A runbook's content. Many runs share it.
    Runbook(Arc<Runbook>),
    /// A name's active version.
    Deployment(Box<Option<Active>>),
    /// A working directory.
    Workspace(Box<Workspace>),
    /// A session.
    Session(Box<Session>),
    /// A tenant.
    Tenant(Box<Tenant>),
    /// A tenant's tokens, with those that were good until lately.
    Tokens(Box<BTreeMap<TokenId, Token>>),
    /// The installation.
    System(Box<Sealer>),
    /// Events that are kept.
    Signal(Box<Signals>),
    /// How many runs left.
    Retired(u64),
}

/// A stream: its body, and where its records are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// How many records it has.
    pub ver: u64,
    /// The chain value after the last of them, once it is known.
    pub head: Digest,
    /// The time of the last of them.
    pub at: Millis,
    /// Whose it is.
    pub tenant: Name,
    /// What they fold to.
    pub body: Body,
}

/// Why a record does not follow, or a snapshot cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A record is missing, or comes twice.
    #[error("{stream} is at version {have}, the record is version {ver}")]
    Gap {
        /// Which stream.
        stream: StreamId,
        /// Where it is.
        have: u64,
        /// What came.
        ver: u64,
    },
    /// The first record of a stream does not make one.
    #[error("{stream} cannot begin with `{tag}`")]
    Beginning {
        /// Which stream.
        stream: StreamId,
        /// What came.
        tag: &'static str,
    },
    /// A runbook in the log that this version does not understand.
    #[error("the runbook in {stream} cannot be read: {message}")]
    Runbook {
        /// Which stream.
        stream: StreamId,
        /// Why.
        message: String,
    },
    /// What a stream came to before, as this version does not understand it.
    #[error("what {stream} goes on with cannot be read: {message}")]
    Carried {
        /// Which stream.
        stream: StreamId,
        /// Why.
        message: String,
    },
    /// A snapshot of another form.
    #[error("the snapshot has form {0}, this version reads form {form}", form = Snapshot::FORM)]
    Form(u32),
}

/// Why a log cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A line is no record, or breaks its chain.
    #[error(transparent)]
    Line(#[from] wire::Error),
    /// A record does not follow.
    #[error(transparent)]
    Record(#[from] Error),
}

/// How many heartbeats are kept without asking whether anybody needs them.
const BEATS_MIN: usize = 1_024;

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct State {
    streams: StreamMap<Stream>,
    indexes: Indexes,
    pool: Pool,
    /// Heartbeats: outside log and snapshot.
    pub beats: Beats,
    /// With how many heartbeats those that nobody needs are looked for.
    beats_max: usize,
}

impl PartialEq for State {
    /// Indexes follow from the streams, and heartbeats belong to no log.
    fn eq(&self, other: &State) -> bool {
        self.streams == other.streams
    }
}

/// The stream that a first record makes.
fn begin(stream: &StreamId, event: &Event, tenant: &Name, at: Millis) -> Result<Body, Error> {
    if let Event::StreamCarried(e) = event {
        return go_on(stream, &e.state);
    }
    let refuse = || Error::Beginning { stream: stream.clone(), tag: event.tag() };
    Ok(match (stream, event) {
        (StreamId::Run(id), Event::PipelineCreated(e)) if *id == e.id => {
            Body::Run(Box::new(Run::create(e, tenant, at)))
        }
        (StreamId::Run(_), _) => return Err(refuse()),
        (StreamId::Runbook(_), Event::RunbookLoaded(e)) => {
            let runbook = serde_json::from_value(e.runbook.clone())
                .map_err(|error| Error::Runbook { stream: stream.clone(), message: error.to_string() })?;
            Body::Runbook(Arc::new(runbook))
        }
        (StreamId::Runbook(_), _) => return Err(refuse()),
        (StreamId::Queue(id), _) => Body::Queue(Box::new(Queue::new(id.clone()))),
        (StreamId::Item(_), _) => Body::Item(Box::new(Item::absent(tenant.clone()))),
        (StreamId::Lock(id), _) => Body::Lock(Box::new(Lock::new(id.clone()))),
        (StreamId::Semaphore(id), _) => Body::Semaphore(Box::new(Semaphore::new(id.clone()))),
        (StreamId::Worker(id), _) => Body::Worker(Box::new(Worker::new(id.clone()))),
        (StreamId::Schedule(id), _) => Body::Schedule(Box::new(Schedule::new(id.clone()))),
        (StreamId::Trigger(id), _) => Body::Trigger(Box::new(Key::new(Name::clean(id.name())))),
        (StreamId::Effect(id), _) => Body::Effect(Box::new(EffectKey::new(Name::clean(id.name())))),
        (StreamId::Deployment(_), _) => Body::Deployment(Box::default()),
        (StreamId::Workspace(id), _) => Body::Workspace(Box::new(Workspace::new(*id))),
        (StreamId::Session(id), _) => Body::Session(Box::new(Session::new(*id))),
        (StreamId::Tenant(_), _) => Body::Tenant(Box::new(Tenant { weight: 1, ..Tenant::default() })),
        (StreamId::Tokens(_), _) => Body::Tokens(Box::default()),
        (StreamId::System, _) => Body::System(Box::default()),
        (StreamId::Signal(id), _) => Body::Signal(Box::new(Signals::new(id.clone()))),
        (StreamId::Retired(_), _) => Body::Retired(0),
    })
}

/// Lets an item share what it has in common with others.
fn share_item(item: &mut Item, tenant: &mut Name, pool: &mut Pool) {
    item.share(pool);
    if let Some(body) = item.body() {
        *tenant = body.lot.tenant.clone();
    }
}

/// Moves a machine through its `apply`, with a blank one in its place meanwhile.
macro_rules! through {
    ($slot:expr, $blank:expr, $event:expr, $at:expr) => {{
        let blank = $blank;
        *$slot = core::mem::replace($slot, blank).apply($event, $at);
    }};
}

impl Body {
    /// What a fact does to the stream.
    fn apply(&mut self, event: &Event, at: Millis) {
        match self {
            Body::Run(run) => run.fold(event, at),
            Body::Queue(queue) => through!(&mut **queue, Queue::new(queue.id.clone()), event, at),
            Body::Item(item) => through!(&mut **item, Item::absent(Name::clean("_")), event, at),
            Body::Lock(lock) => through!(&mut **lock, Lock::new(lock.name.clone()), event, at),
            Body::Semaphore(held) => through!(&mut **held, Semaphore::new(held.name.clone()), event, at),
            Body::Worker(worker) => through!(&mut **worker, Worker::new(worker.id.clone()), event, at),
            Body::Schedule(plan) => through!(&mut **plan, Schedule::new(plan.id.clone()), event, at),
            Body::Trigger(key) => through!(&mut **key, Key::new(key.key.clone()), event, at),
            Body::Effect(key) => through!(&mut **key, EffectKey::new(key.key.clone()), event, at),
            // The content under a hash never changes.
            Body::Runbook(_) => {}
            Body::Deployment(active) => match event {
                Event::RunbookDeployed(e) => **active = Some(Active::of(e, at)),
                Event::RunbookWithdrawn(_) => **active = None,
                // tidy: nothing else happens to a name.
                _ => {}
            },
            Body::Workspace(place) => through!(&mut **place, Workspace::new(place.id), event, at),
            Body::Session(session) => through!(&mut **session, Session::new(session.id), event, at),
            Body::Tenant(tenant) => tenant.apply(event, at),
            Body::Tokens(tokens) => crate::token::fold(tokens, event, at),
            Body::System(sealer) => through!(&mut **sealer, Sealer::default(), event, at),
            Body::Signal(kept) => through!(&mut **kept, Signals::new(kept.id.clone()), event, at),
            Body::Retired(runs) => *runs += u64::from(matches!(event, Event::PipelineDeleted(_))),
        }
    }
}

impl Body {
    /// Whether nothing will happen to a stream that users name unless somebody asks for it again: it may leave memory and be
    /// read back then.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        use crate::receipt::key;
        match self {
            // Time is looked at when it is claimed again.
            Body::Trigger(key) => !matches!(key.state, crate::idempotency::State::Processing { .. }),
            Body::Effect(key) => match key.state {
                key::State::Free { .. } | key::State::Succeeded { .. } | key::State::Failed { .. } => true,
                key::State::Intended { .. } | key::State::Unknown { .. } => false,
            },
            // What a runbook declares is few, and stays.
            Body::Lock(lock) => {
                lock.hold().is_none()
                    && lock.waiters.is_empty()
                    && lock.config == crate::lock::Config::default()
            }
            Body::Semaphore(held) => {
                held.holders.is_empty()
                    && held.waiters.is_empty()
                    && held.config == Semaphore::new(held.name.clone()).config
            }
            Body::Signal(kept) => kept.kept.is_empty(),
            Body::Run(_)
            | Body::Queue(_)
            | Body::Item(_)
            | Body::Worker(_)
            | Body::Schedule(_)
            | Body::Runbook(_)
            | Body::Deployment(_)
            | Body::Workspace(_)
            | Body::Session(_)
            | Body::Tenant(_)
            | Body::Tokens(_)
            | Body::System(_)
            | Body::Retired(_) => false,
        }
    }

    /// What the stream comes to, where the stream itself never ends and all of it may be read by everybody who may read the log:
    /// what it was before may then leave the log.
    #[must_use]
    pub fn carried(&self) -> Option<Value> {
        let shown = match self {
            Body::Queue(queue) => serde_json::to_value(queue),
            // What holders say about themselves is private.
            Body::Lock(lock) => {
                let said = lock.hold().is_some_and(|hold| hold.metadata.is_some());
                if said || lock.waiters.iter().any(|waiter| waiter.metadata.is_some()) {
                    return None;
                }
                serde_json::to_value(lock)
            }
            Body::Semaphore(held) => serde_json::to_value(held),
            Body::Worker(worker) => serde_json::to_value(worker),
            // Variables are private.
            Body::Schedule(plan) => match &plan.state {
                schedule::State::Active(settings) | schedule::State::Paused(settings)
                    if settings.vars.as_object().is_some_and(|vars| !vars.is_empty()) =>
                {
                    return None;
                }
                schedule::State::Absent
                | schedule::State::Active(_)
                | schedule::State::Paused(_)
                | schedule::State::Removed => serde_json::to_value(plan),
            },
            Body::Tokens(tokens) => serde_json::to_value(tokens),
            Body::Retired(runs) => serde_json::to_value(runs),
            // They end, or proofs need them from their beginning.
            Body::Run(_)
            | Body::Item(_)
            | Body::Trigger(_)
            | Body::Effect(_)
            | Body::Runbook(_)
            | Body::Deployment(_)
            | Body::Workspace(_)
            | Body::Session(_)
            | Body::Tenant(_)
            | Body::System(_)
            | Body::Signal(_) => return None,
        };
        shown.ok()
    }
}

/// The stream that goes on with what its records came to before they left the log.
fn go_on(stream: &StreamId, state: &Value) -> Result<Body, Error> {
    fn read<T: serde::de::DeserializeOwned>(state: &Value) -> Result<T, serde_json::Error> {
        T::deserialize(state)
    }
    let body = match stream {
        StreamId::Queue(_) => read(state).map(Body::Queue),
        StreamId::Lock(_) => read(state).map(Body::Lock),
        StreamId::Semaphore(_) => read(state).map(Body::Semaphore),
        StreamId::Worker(_) => read(state).map(Body::Worker),
        StreamId::Schedule(_) => read(state).map(Body::Schedule),
        StreamId::Tokens(_) => read(state).map(Body::Tokens),
        StreamId::Retired(_) => read(state).map(Body::Retired),
        StreamId::Run(_)
        | StreamId::Item(_)
        | StreamId::Trigger(_)
        | StreamId::Effect(_)
        | StreamId::Runbook(_)
        | StreamId::Deployment(_)
        | StreamId::Workspace(_)
        | StreamId::Session(_)
        | StreamId::Tenant(_)
        | StreamId::System
        | StreamId::Signal(_) => {
            return Err(Error::Beginning { stream: stream.clone(), tag: "stream:carried" });
        }
    };
    body.map_err(|error| Error::Carried { stream: stream.clone(), message: error.to_string() })
}

impl State {
    /// Nothing has happened.
    #[must_use]
    pub fn new() -> State {
        State::default()
    }

    /// A stream.
    #[must_use]
    pub fn stream(&self, id: &StreamId) -> Option<&Stream> {
        self.streams.get(id)
    }

    /// How many streams there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Every stream, in order.
    pub fn streams(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        self.streams.iter()
    }

    /// A run.
    #[must_use]
    pub fn run(&self, id: RunId) -> Option<&Run> {
        match self.streams.get(&StreamId::Run(id)).map(|stream| &stream.body) {
            Some(Body::Run(run)) => Some(run),
            Some(_) | None => None,
        }
    }

    /// Every queue that was ever declared, in order.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.streams.from_kind(StreamId::Queue(Scoped::least())).map_while(|stream| match &stream.body {
            Body::Queue(queue) => Some(&**queue),
            // tidy: the next kind begins.
            _ => None,
        })
    }

    /// Every worker that was ever started, in order.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.streams.from_kind(StreamId::Worker(Scoped::least())).map_while(|stream| match &stream.body {
            Body::Worker(worker) => Some(&**worker),
            // tidy: the next kind begins.
            _ => None,
        })
    }

    /// Every schedule that was ever declared, in order.
    pub fn schedules(&self) -> impl Iterator<Item = &Schedule> {
        self.streams.from_kind(StreamId::Schedule(Scoped::least())).map_while(|stream| match &stream.body {
            Body::Schedule(schedule) => Some(&**schedule),
            // tidy: the next kind begins.
            _ => None,
        })
    }

    /// The streams of a kind that is neither runs nor items, from one on, in order. A walk ends where the kind does.
    pub fn streams_from(&self, from: StreamId) -> impl Iterator<Item = (&StreamId, &Stream)> {
        self.streams.others_from(from)
    }

    /// The streams that are neither runs nor items, in order.
    pub fn others(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        self.streams.others()
    }

    /// The indexes behind `pick`.
    #[must_use]
    pub fn indexes(&self) -> &Indexes {
        &self.indexes
    }

    /// The indexes, for picking what moves them.
    pub fn indexes_mut(&mut self) -> &mut Indexes {
        &mut self.indexes
    }

    /// Applies a fact that has no record yet: the next of its stream.
    ///
    /// # Errors
    /// A first fact that makes no stream.
    pub fn apply_fact(
        &mut self,
        id: &StreamId,
        tenant: &Name,
        event: &Event,
        at: Millis,
    ) -> Result<u64, Error> {
        self.fold(id, tenant, event, at, 0).map(|stream| stream.ver)
    }

    /// What a fact does to its stream, which it may make: then `before` records of it are no longer there.
    fn fold(
        &mut self,
        id: &StreamId,
        tenant: &Name,
        event: &Event,
        at: Millis,
        before: u64,
    ) -> Result<&mut Stream, Error> {
        let State { streams, pool, .. } = self;
        let (stream, made) = streams.get_or_make(id, || {
            let body = begin(id, event, tenant, at)?;
            Ok(Stream { ver: before, head: Digest::default(), at, tenant: tenant.clone(), body })
        })?;
        stream.ver += 1;
        stream.at = at.never_before(stream.at);
        // The first fact of a run or a runbook makes it whole, and one that carries a stream on says what it is; to others it
        // happens as every later one does.
        let whole = made && matches!(stream.body, Body::Run(_) | Body::Runbook(_));
        if !whole && !matches!(event, Event::StreamCarried(_)) {
            stream.body.apply(event, stream.at);
        }
        if let (Event::PipelineCreated(_) | Event::PolicyDecided(_), Body::Run(run)) =
            (event, &mut stream.body)
        {
            run.share(pool);
            stream.tenant = run.born.home.tenant.clone();
        }
        if let (Event::QueuePushed(_), Body::Item(item)) = (event, &mut stream.body) {
            share_item(item, &mut stream.tenant, pool);
        }
        Ok(stream)
    }

    /// Files a stream anew in the indexes: after facts of it were applied.
    pub fn refresh(&mut self, id: &StreamId) {
        let stream = self.streams.get(id);
        self.indexes.file(id, stream, &self.beats);
    }

    /// Applies a record. One that was applied before is passed over, as the records after a fuzzy snapshot may be.
    ///
    /// # Errors
    /// A gap in the stream, or a first record that makes none.
    pub fn apply_event(&mut self, record: &Record) -> Result<(), Error> {
        if self.fold_record(record)? {
            self.refresh(&record.stream);
        }
        Ok(())
    }

    /// Applies a record and leaves the indexes as they are, for a log that is read as a whole; [`State::refresh_all`]
    /// files the streams afterwards.
    ///
    /// # Errors
    /// As [`State::apply_event`].
    pub fn fold_event(&mut self, record: &Record) -> Result<(), Error> {
        self.fold_record(record).map(|_| ())
    }

    /// Files every stream anew.
    pub fn refresh_all(&mut self) {
        self.refresh_rest();
        for (id, stream) in self.streams.items() {
            self.indexes.file(&id, Some(stream), &self.beats);
        }
    }

    /// Files every stream anew but items, for whoever has applied or restored those, and so filed them, as they came.
    /// There may be millions of them.
    pub fn refresh_rest(&mut self) {
        self.indexes.learn(&self.streams);
        for (id, stream) in self.streams.but_items() {
            self.indexes.file(&id, Some(stream), &self.beats);
        }
    }

    /// The streams after one, or all, in order.
    pub fn streams_after(&self, after: Option<&StreamId>) -> impl Iterator<Item = (StreamId, &Stream)> {
        self.streams.after(after)
    }

    /// The streams of the runs between two, both included, in order.
    pub fn runs_between(&self, from: RunId, to: RunId) -> impl DoubleEndedIterator<Item = (RunId, &Stream)> {
        self.streams.runs(from, to)
    }

    /// What a record does to its stream; says whether it was news.
    fn fold_record(&mut self, record: &Record) -> Result<bool, Error> {
        let have = self.streams.get(&record.stream).map(|stream| stream.ver);
        // What was before a record that carries a stream on may have left the log.
        let before = match (&record.event, record.ver.checked_sub(1)) {
            (Event::StreamCarried(_), Some(before)) if have.is_none() => before,
            // tidy: every other record follows the one before.
            (_, _) => 0,
        };
        let have = have.unwrap_or(before);
        if record.ver <= have {
            return Ok(false);
        }
        if record.ver != have + 1 {
            return Err(Error::Gap { stream: record.stream.clone(), have, ver: record.ver });
        }
        let stream = self.fold(&record.stream, &record.tenant, &record.event, record.at, before)?;
        stream.head = record.chain;
        Ok(true)
    }

    /// Reads a log: each line must follow from the head of its stream, except those that were applied before. The
    /// streams are filed once, at the end, and not after every record. Returns how many records were news.
    ///
    /// # Errors
    /// The first line that is no record, breaks its chain or does not follow.
    pub fn replay<Line: AsRef<str>>(
        &mut self,
        lines: impl IntoIterator<Item = Line>,
    ) -> Result<u64, ReplayError> {
        let (mut news, mut decoder) = (0, Decoder::new());
        for line in lines {
            let record =
                decoder.decode_next(line.as_ref(), |stream, ver| match self.streams.get(stream) {
                    // What came before the head cannot be checked against it. It is not applied either.
                    Some(stream) => (stream.ver < ver).then_some(stream.head),
                    None => Some(Digest::default()),
                })?;
            news += u64::from(self.fold_record(&record)?);
        }
        self.refresh_all();
        Ok(news)
    }

    /// The chain value of a stream's last record became known.
    pub fn sealed(&mut self, id: &StreamId, head: Digest) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.head = head;
        }
    }

    /// The saved form of a stream.
    #[must_use]
    pub fn save(&self, id: &StreamId) -> Option<Snapshot> {
        let state = self.streams.get(id)?.clone();
        Some(Snapshot { form: Snapshot::FORM, stream: id.clone(), state })
    }

    /// Takes a saved stream, unless a later one is there.
    ///
    /// # Errors
    /// A form that this version does not know.
    pub fn restore(&mut self, mut snapshot: Snapshot) -> Result<(), Error> {
        if snapshot.form != Snapshot::FORM {
            return Err(Error::Form(snapshot.form));
        }
        let later = self.streams.get(&snapshot.stream).is_some_and(|have| have.ver >= snapshot.state.ver);
        if !later {
            snapshot.share(&mut self.pool);
            let Snapshot { stream: id, state, .. } = snapshot;
            self.streams.insert(&id, state);
            self.refresh(&id);
        }
        Ok(())
    }

    /// Drops a stream from memory: one that has ended and whose history is kept elsewhere.
    pub fn evict(&mut self, id: &StreamId) -> Option<Stream> {
        let stream = self.streams.remove(id);
        self.indexes.file(id, None, &self.beats);
        stream
    }

    /// Notes a heartbeat: what the holder holds is due later.
    pub fn beat(&mut self, holder: Holder, at: Millis) {
        let held = self.indexes.beaten_by(&holder);
        self.beats.seen.insert(holder, at);
        held.iter().for_each(|stream| self.refresh(stream));
        if self.beats.seen.len() > self.beats_max.max(BEATS_MIN) {
            self.prune_beats();
        }
    }

    /// Forgets the heartbeats of those who hold nothing any more. It is done whenever there are twice as many as were left
    /// the last time, so a heartbeat costs no more for it.
    fn prune_beats(&mut self) {
        let mut beats = core::mem::take(&mut self.beats);
        beats.seen.retain(|holder, _| match holder {
            Holder::Run(run) => self.run(*run).is_some_and(|run| !run.is_terminal()),
            Holder::Step(run, step) => {
                let step = self.run(*run).and_then(|run| run.step(step));
                step.is_some_and(|step| !step.status.is_terminal())
            }
            Holder::Worker(_) | Holder::Outside(_) => !self.indexes.beaten_by(holder).is_empty(),
        });
        self.beats_max = beats.seen.len() * 2;
        self.beats = beats;
    }

    /// The indexes as they follow from the streams alone, brought up to a time. Those that were kept on the way
    /// must equal them once they are brought up to it too.
    #[must_use]
    pub fn rebuilt_indexes(&self, at: Millis) -> Indexes {
        let mut indexes = self.indexes.with_looked();
        indexes.learn(&self.streams);
        for (id, stream) in self.streams.iter() {
            indexes.file(&id, Some(stream), &self.beats);
        }
        indexes.promote(at);
        indexes
    }
}

impl View for State {
    fn find(&self, stream: &StreamId) -> Found<'_> {
        match self.streams.get(stream) {
            Some(stream) => Found::Here(&stream.body),
            None => Found::Absent,
        }
    }

    fn beats(&self) -> &Beats {
        &self.beats
    }

    fn dependents(&self, run: &Run) -> Vec<RunId> {
        self.indexes.dependents(run.id(), &run.born.home)
    }

    fn best(&self, queue: &Scoped, n: usize) -> Vec<crate::id::ItemId> {
        self.indexes.best(queue, n)
    }

    fn depth(&self, queue: &Scoped, key: Option<&Name>) -> (u64, Option<crate::id::ItemId>) {
        self.indexes.depth(queue, key)
    }

    fn consumers(&self, queue: &Scoped) -> Vec<Scoped> {
        self.indexes.consumers(queue)
    }

    fn deployments(&self, tenant: &Name, namespace: &Name) -> Vec<Scoped> {
        self.indexes.deployments(tenant, namespace)
    }

    fn admit_run(
        &self,
        tenant: &Name,
        runbook: &Digest,
        beside: &[Digest],
        at: Millis,
    ) -> Result<(), crate::caps::Error> {
        self.indexes.admit_run(tenant, runbook, beside, at)
    }

    fn admit_step(&self, tenant: &Name, runbook: &Digest) -> Result<(), crate::caps::Error> {
        self.indexes.admit_step(tenant, runbook)
    }

    fn awaiting(&self, tenant: &Name, namespace: &Name, name: &Name, key: Option<&Name>) -> Vec<RunId> {
        self.indexes.awaiting(tenant, namespace, name, key)
    }

    fn caps(&self, tenant: &Name) -> Caps {
        self.indexes.caps(tenant)
    }

    fn kept(&self, tenant: &Name) -> crate::caps::Kept {
        self.indexes.kept(tenant)
    }

    fn newest_run(&self, tenant: &Name, namespace: &Name, pipeline: &Name) -> Option<RunId> {
        let mut newest = self.runs_between(RunId(0), RunId(u128::MAX)).rev();
        let wanted = |home: &crate::run::Home| {
            home.pipeline == *pipeline && home.namespace == *namespace && home.tenant == *tenant
        };
        newest
            // A run that takes another one back is no run of its pipeline's work.
            .find(|(_, stream)| matches!(&stream.body, Body::Run(run) if wanted(&run.born.home) && run.born.takes_back.is_none()))
            .map(|(id, _)| id)
    }
}

impl Overlay for State {
    fn open(&mut self, at: Millis) {
        self.indexes.promote(at);
    }

    fn woken(&mut self) -> Vec<Scoped> {
        self.indexes.woken()
    }

    fn looked(&mut self, stream: &StreamId, at: Millis) {
        if let Some(ver) = self.streams.get(stream).map(|stream| stream.ver) {
            self.indexes.looked(stream, ver, at);
            self.refresh(stream);
        }
    }

    fn woken_by(&self, facts: &[crate::turn::command::Fact]) -> Vec<Scoped> {
        self.indexes.woken_by(facts)
    }

    fn apply(&mut self, facts: &[crate::turn::command::Fact], at: Millis) {
        let mut touched: Vec<&StreamId> = Vec::new();
        for fact in facts {
            // A decision begins a stream with the fact that makes it; were it otherwise, the record would be refused
            // on replay too.
            if self.apply_fact(&fact.stream, &fact.tenant, &fact.event, at).is_ok()
                && !touched.contains(&&fact.stream)
            {
                touched.push(&fact.stream);
            }
        }
        for stream in touched {
            self.refresh(stream);
        }
    }
}
