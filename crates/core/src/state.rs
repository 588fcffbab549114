//! The materialised state: every stream folded from its facts, and the indexes that `pick` draws from.
//!
//! Applying a record is all that ever changes it, so it is the same whether it was lived through or replayed,
//! and a snapshot of each stream with its version plus the records after it give the whole. The indexes are
//! derived: they are rebuilt from the streams and never saved. What they say are hints; the streams decide.

use crate::audit::Sealer;
use crate::caps::Caps;
use crate::deployment::Active;
use crate::digest::Digest;
use crate::event::Event;
use crate::id::{Holder, Name, RunId, Scoped, TokenId};
use crate::idempotency::Key;
use crate::index::Indexes;
use crate::item::Item;
use crate::lock::Lock;
use crate::machine::Beats;
use crate::pool::Pool;
use crate::queue::Queue;
use crate::receipt::key::EffectKey;
use crate::record::{Decoder, Record};
use crate::run::Run;
use crate::runbook::Runbook;
use crate::schedule::Schedule;
use crate::semaphore::Semaphore;
use crate::signal::Signals;
use crate::stream::{StreamId, StreamMap};
use crate::time::Millis;
use crate::token::Token;
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
    /// The installation.
    System(Box<Sealer>),
    /// Events that are kept.
    Signal(Box<Signals>),
}

/// What is known of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// What it may do at most.
    pub caps: Caps,
    /// Its share when others want to run too.
    pub weight: u32,
    /// The policy in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<Digest>,
    /// Its tokens, with those that were good until lately.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<TokenId, Token>,
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

/// The saved form of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The version of this form.
    pub form: u32,
    /// Which stream.
    pub stream: StreamId,
    /// What it was folded to, and up to where.
    pub state: Stream,
}

impl Snapshot {
    /// The form that this version writes, and the only one it reads: one of another form is left alone, and what it would
    /// have told is read from the log. It is raised whenever what is saved of any stream changes, which the file
    /// `tests/golden/saved.txt` tells.
    pub const FORM: u32 = 5;

    /// Lets the stream share what it has in common with others that were read.
    pub fn share(&mut self, pool: &mut Pool) {
        let Stream { tenant, body, .. } = &mut self.state;
        match body {
            Body::Item(item) => share_item(item, tenant, pool),
            Body::Run(run) => {
                run.share(pool);
                run.share_names(pool);
                *tenant = run.born.home.tenant.clone();
            }
            // tidy: of the others there are few.
            _ => {}
        }
    }
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
        (StreamId::System, _) => Body::System(Box::default()),
        (StreamId::Signal(id), _) => Body::Signal(Box::new(Signals::new(id.clone()))),
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
            Body::System(sealer) => through!(&mut **sealer, Sealer::default(), event, at),
            Body::Signal(kept) => through!(&mut **kept, Signals::new(kept.id.clone()), event, at),
        }
    }
}

impl Tenant {
    fn apply(&mut self, event: &Event, at: Millis) {
        match event {
            Event::TokenCreated(e) => {
                self.tokens.retain(|_, token| !token.is_forgotten(at));
                self.tokens.insert(e.token, Token::new(e, at));
            }
            Event::TokenRevoked(e) => {
                if let Some(token) = self.tokens.get_mut(&e.token) {
                    token.revoked_at = Some(at);
                }
            }
            Event::TenantConfigured(e) => {
                self.caps = Caps {
                    max_concurrency: e.max_concurrency,
                    max_runs_per_min: e.max_runs_per_min,
                    max_writes_per_run: e.max_writes_per_run,
                };
                self.weight = e.weight.max(1);
            }
            Event::PolicyLoaded(e) => self.policy_version = Some(e.policy_version),
            // tidy: nothing else happens to a tenant.
            _ => {}
        }
    }
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
        self.fold(id, tenant, event, at).map(|stream| stream.ver)
    }

    /// What a fact does to its stream, which it may make.
    fn fold(
        &mut self,
        id: &StreamId,
        tenant: &Name,
        event: &Event,
        at: Millis,
    ) -> Result<&mut Stream, Error> {
        let State { streams, pool, .. } = self;
        let (stream, made) = streams.get_or_make(id, || {
            let body = begin(id, event, tenant, at)?;
            Ok(Stream { ver: 0, head: Digest::default(), at, tenant: tenant.clone(), body })
        })?;
        stream.ver += 1;
        // The first fact of a run or a runbook makes it whole; to others it happens as every later one does.
        if !made || !matches!(stream.body, Body::Run(_) | Body::Runbook(_)) {
            stream.at = at.never_before(stream.at);
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
        let have = self.streams.get(&record.stream).map_or(0, |stream| stream.ver);
        if record.ver <= have {
            return Ok(false);
        }
        if record.ver != have + 1 {
            return Err(Error::Gap { stream: record.stream.clone(), have, ver: record.ver });
        }
        let stream = self.fold(&record.stream, &record.tenant, &record.event, record.at)?;
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

    fn dependents(&self, run: RunId) -> Vec<RunId> {
        self.indexes.dependents(run)
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

    fn newest_run(&self, tenant: &Name, namespace: &Name, pipeline: &Name) -> Option<RunId> {
        let mut newest = self.runs_between(RunId(0), RunId(u128::MAX)).rev();
        let wanted = |home: &crate::run::Home| {
            home.pipeline == *pipeline && home.namespace == *namespace && home.tenant == *tenant
        };
        newest
            .find(|(_, stream)| matches!(&stream.body, Body::Run(run) if wanted(&run.born.home)))
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

    fn woken_by(&self, facts: &[crate::command::Fact]) -> Vec<Scoped> {
        self.indexes.woken_by(facts)
    }

    fn apply(&mut self, facts: &[crate::command::Fact], at: Millis) {
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
