//! The indexes behind `pick`: what is ready, due, waiting or best, derived from the streams.
//!
//! Each stream is filed by a few facts about it. When it changes, what it was filed by before is taken out and
//! what it is filed by now is put in: O(log n) for each, whatever the number of streams.

mod card;
mod items;
mod kept;
mod limited;
mod lines;
mod sets;
use card::card;
use limited::Limited;
pub use lines::Taker;
use lines::{Lines, asks_for_labels, labels, leave_line, line_up};

use crate::caps::{Caps, Kept, Window};
use crate::digest::Digest;
use crate::event::Event;
use crate::id::{ApprovalId, Holder, ItemId, Name, NoticeId, RunId, Scoped};
use crate::item::Lot;
use crate::machine::Beats;
use crate::pattern::Pattern;
use crate::queue::{Index as QueueIndex, Spot};
use crate::run::{Home, Run, Status};
use crate::runbook::Runbook;
use crate::step::Wait;
use crate::stream::{StreamId, StreamMap};
use crate::time::Millis;
use crate::turn::command::Fact;
use crate::turn::state::{Body, Stream};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use sets::{Needed, count, move_time, relink, unlink};

/// What a stream is filed by.
#[derive(Clone, Debug, Default, PartialEq)]
struct Card {
    due: Option<Millis>,
    lease_due: Option<Millis>,
    kind: Kind,
}

/// What streams of a kind are filed by besides.
#[derive(Clone, Debug, Default, PartialEq)]
enum Kind {
    #[default]
    Plain,
    Run(RunCard),
    Item(ItemCard),
    Worker(Box<WorkerCard>),
    /// A lock, with the outside holder that has it: its heartbeats move `due`.
    Lock(Option<Box<Holder>>),
    /// A semaphore, with its outside holders: their heartbeats move `due`.
    Semaphore(Vec<Holder>),
    /// Events that nobody took yet.
    Signals(Box<Kept>),
    /// A stored runbook, and whose it is.
    Runbook(Box<(Name, Kept)>),
}

/// What a started worker is filed by.
#[derive(Clone, Debug, PartialEq)]
struct WorkerCard {
    queue: Scoped,
    /// What else it wants to be woken by.
    wake_on: Vec<Pattern>,
}

/// What an item is filed by: there may be millions, so it is small.
#[derive(Clone, Debug, PartialEq)]
struct ItemCard {
    lot: Arc<Lot>,
    spot: Spot,
    /// The outside holder that has it, whose heartbeats move `due`.
    beaten: Option<Box<Holder>>,
}

impl Card {
    fn run(&self) -> Option<&RunCard> {
        match &self.kind {
            Kind::Run(run) => Some(run),
            Kind::Plain
            | Kind::Item(_)
            | Kind::Worker(_)
            | Kind::Lock(_)
            | Kind::Semaphore(_)
            | Kind::Signals(_)
            | Kind::Runbook(_) => None,
        }
    }

    fn item(&self) -> Option<&ItemCard> {
        match &self.kind {
            Kind::Item(card) => Some(card),
            Kind::Plain
            | Kind::Run(_)
            | Kind::Worker(_)
            | Kind::Lock(_)
            | Kind::Semaphore(_)
            | Kind::Signals(_)
            | Kind::Runbook(_) => None,
        }
    }

    fn worker(&self) -> Option<&WorkerCard> {
        match &self.kind {
            Kind::Worker(card) => Some(card),
            Kind::Plain
            | Kind::Run(_)
            | Kind::Item(_)
            | Kind::Lock(_)
            | Kind::Semaphore(_)
            | Kind::Signals(_)
            | Kind::Runbook(_) => None,
        }
    }

    fn beaten(&self) -> &[Holder] {
        match &self.kind {
            Kind::Item(ItemCard { beaten, .. }) | Kind::Lock(beaten) => {
                beaten.as_deref().map_or(&[], core::slice::from_ref)
            }
            Kind::Semaphore(holders) => holders,
            Kind::Plain | Kind::Run(_) | Kind::Worker(_) | Kind::Signals(_) | Kind::Runbook(_) => &[],
        }
    }
}

/// What a run is filed by.
#[derive(Clone, Debug, PartialEq)]
struct RunCard {
    home: Arc<Home>,
    priority: i32,
    created_at: Millis,
    status: Status,
    /// Whether a step can be leased.
    ready: bool,
    /// Whether one of those can go to any executor.
    plain: bool,
    active: u32,
    /// The bytes of its variables, until it has ended.
    vars_len: u32,
    /// Absent where all of it is empty.
    lists: Option<Box<Lists>>,
}

/// What a run waits for.
#[derive(Clone, Debug, Default, PartialEq)]
struct Lists {
    needs: Vec<Needed>,
    /// All of them, also those that were decided: whoever has an id asks about any.
    approvals: Vec<ApprovalId>,
    notices: Vec<NoticeId>,
    events: Vec<(Name, Option<Name>)>,
    /// What steps that can be leased ask of their executors.
    labels: Vec<Vec<Name>>,
}

/// An external event that a run waits for, in a tenant and namespace.
type Awaited = (Name, Name, Name, Option<Name>);

/// Everything that is filed.
#[derive(Clone, Debug, Default)]
pub struct Indexes {
    cards: StreamMap<Card>,
    /// Streams for which the clock was looked at without anything coming of it: at which version, and when.
    looked: StreamMap<(u64, Millis)>,
    due: BTreeSet<(Millis, StreamId)>,
    leases: BTreeSet<(Millis, StreamId)>,
    ready: Lines,
    /// Runbooks of which a step asks for a label.
    labelled: BTreeMap<Digest, Arc<Runbook>>,
    active: BTreeMap<Name, u32>,
    caps: BTreeMap<Name, Caps>,
    /// Runbooks of which a version has caps of its own, by name.
    limited: BTreeMap<Name, Limited>,
    /// The name of each version.
    books: BTreeMap<Digest, Name>,
    windows: BTreeMap<Name, Window>,
    dependents: BTreeMap<Needed, BTreeSet<RunId>>,
    approvals: BTreeMap<ApprovalId, RunId>,
    notices: BTreeMap<NoticeId, RunId>,
    awaited: BTreeMap<Awaited, BTreeSet<RunId>>,
    statuses: BTreeMap<(Name, Status), u64>,
    /// What each tenant keeps.
    kept: BTreeMap<Name, Kept>,
    queues: BTreeMap<Scoped, QueueIndex>,
    /// The queue of the item that was filed last, by what it has in common with others.
    last: Option<(Arc<Lot>, Scoped)>,
    consumers: BTreeMap<Scoped, BTreeSet<Scoped>>,
    /// The names under which runbooks were deployed, by tenant and namespace.
    deployments: BTreeMap<(Name, Name), BTreeSet<Scoped>>,
    /// Started workers that are woken by more than their queues.
    listeners: BTreeMap<Scoped, Vec<Pattern>>,
    /// What each outside holder holds.
    beaten: BTreeMap<Holder, BTreeSet<StreamId>>,
    /// Queues of which items came due since somebody last asked.
    woken: BTreeSet<Scoped>,
    /// How runs moved since somebody last asked; absent where nobody does.
    moves: Option<Vec<Move>>,
}

/// A run came from one status to another, or began with one.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The run.
    pub run: RunId,
    /// Where it belongs.
    pub home: Arc<Home>,
    /// What it was; absent where it is new.
    pub from: Option<Status>,
    /// What it is.
    pub to: Status,
}

/// Equal where they give the same answers about the streams. The window of run starts and the passes of fairness
/// are history: streams alone do not have it.
impl PartialEq for Indexes {
    fn eq(&self, other: &Indexes) -> bool {
        self.cards == other.cards
            && self.due == other.due
            && self.leases == other.leases
            && self.in_line() == other.in_line()
            && self.limited.len() == other.limited.len()
            && self
                .limited
                .iter()
                .zip(&other.limited)
                .all(|(a, b)| a.0 == b.0 && a.1.derived().eq(b.1.derived()))
            && self.active == other.active
            && self.caps == other.caps
            && self.dependents == other.dependents
            && self.approvals == other.approvals
            && self.notices == other.notices
            && self.awaited == other.awaited
            && self.statuses == other.statuses
            && self.kept == other.kept
            && self.queues == other.queues
            && self.consumers == other.consumers
            && self.listeners == other.listeners
            && self.deployments == other.deployments
            && self.beaten == other.beaten
    }
}

fn run_card(run: &Run, runbook: Option<&Arc<Runbook>>) -> RunCard {
    let (plain, labels) = labels(run, runbook);
    let needs = Needed::by(run);
    let events = run.live().filter_map(|step| {
        let waiting = step.waiting.as_ref().filter(|waiting| waiting.reason == Wait::Event)?;
        Some((waiting.on.clone()?, waiting.key.clone()))
    });
    let approvals = run.rare().approvals.keys().copied().collect();
    let notices = run.rare().notices.keys().copied().collect();
    let lists = Lists { needs, approvals, notices, events: events.collect(), labels };
    RunCard {
        home: run.born.home.clone(),
        priority: run.born.priority,
        created_at: run.born.created_at,
        status: run.status(),
        ready: plain || !lists.labels.is_empty(),
        plain,
        active: run.leases(),
        vars_len: if run.is_terminal() { 0 } else { run.vars.as_str().len() as u32 },
        lists: (lists != Lists::default()).then(|| Box::new(lists)),
    }
}

impl Indexes {
    /// Files a stream by what it is now; one that is gone is taken out.
    pub fn file(&mut self, id: &StreamId, stream: Option<&Stream>, beats: &Beats) {
        if let Some(Stream { body: Body::Tenant(tenant), .. }) = stream
            && let StreamId::Tenant(name) = id
        {
            self.caps.insert(name.clone(), tenant.caps);
            self.ready.weigh(name, tenant.weight);
        }
        if let (StreamId::Tenant(name), None) = (id, stream) {
            self.caps.remove(name);
        }
        if let StreamId::Runbook(hash) = id {
            self.file_runbook(hash, stream);
        }
        if let StreamId::Deployment(name) = id {
            let place = (Name::clean(name.tenant()), Name::clean(name.namespace()));
            match stream {
                Some(_) => _ = self.deployments.entry(place).or_default().insert(name.clone()),
                None => unlink(&mut self.deployments, &place, name),
            }
        }
        let mut new = stream.map(|stream| card(stream, beats, &self.labelled)).unwrap_or_default();
        if let Some(later) = self.later(id, stream, new.due) {
            new.due = later;
        }
        let old = match self.cards.get_mut(id) {
            Some(card) if *card == new => return,
            Some(card) => core::mem::take(card),
            None if new == Card::default() => return,
            None => Card::default(),
        };
        move_time(&mut self.due, id, old.due, new.due);
        move_time(&mut self.leases, id, old.lease_due, new.lease_due);
        self.file_kept(id, &old, &new);
        self.file_run(id, old.run(), new.run());
        self.file_item(id, old.item(), new.item());
        self.file_worker(id, old.worker(), new.worker());
        for holder in old.beaten() {
            unlink(&mut self.beaten, holder, id);
        }
        for holder in new.beaten() {
            self.beaten.entry(holder.clone()).or_default().insert(id.clone());
        }
        // A stream that is filed by nothing has no card, whatever it had before.
        if new == Card::default() {
            self.cards.remove(id);
        } else {
            self.cards.insert(id, new);
        }
    }

    /// Moves a run from where it was filed to where it belongs now. Most facts change little of it, and what they
    /// leave as it was is not touched.
    fn file_run(&mut self, id: &StreamId, old: Option<&RunCard>, new: Option<&RunCard>) {
        let StreamId::Run(run) = *id else { return };
        // Whose run it is and when it was made never changes.
        let Some(card) = new.or(old) else { return };
        if old.is_none() {
            self.windows.entry(card.home.tenant.clone()).or_default().record(card.created_at);
        }
        let (was, is) = (old.map_or(0, |old| old.active), new.map_or(0, |new| new.active));
        let ready = new.is_some_and(|new| new.ready);
        let mut in_line = ready;
        if let Some(limited) = limited_mut(&mut self.limited, &self.books, &card.home.runbook) {
            if old.is_none() {
                limited.made(&card.home.tenant, card.created_at);
            }
            limited.moved(&card.home.tenant, was, is);
            in_line = limited.ready(&card.home.tenant, &card.home.runbook, run, ready);
        }
        if let Some(old) = old
            .filter(|old| !in_line || old.plain != card.plain || list(Some(old), LABELS) != list(new, LABELS))
        {
            leave_line(&mut self.ready, old, run);
        }
        if in_line {
            // One that was picked goes back in line when it changes.
            line_up(&mut self.ready, card, run);
        }
        self.unpark(&card.home);
        if was != is {
            count(&mut self.active, &card.home.tenant, was, false);
            count(&mut self.active, &card.home.tenant, is, true);
        }
        let (was, is) = (old.map(|old| old.status), new.map(|new| new.status));
        if was != is {
            for (status, up) in was.map(|was| (was, false)).into_iter().chain(is.map(|is| (is, true))) {
                count(&mut self.statuses, &(card.home.tenant.clone(), status), 1, up);
            }
            if let (Some(moves), Some(to)) = (&mut self.moves, is) {
                moves.push(Move { run, home: card.home.clone(), from: was, to });
            }
        }
        let (was, is) = (list(old, |lists| &lists.needs), list(new, |lists| &lists.needs));
        if was != is {
            was.iter().for_each(|needed| unlink(&mut self.dependents, needed, &run));
            for needed in is {
                self.dependents.entry(needed.clone()).or_default().insert(run);
            }
        }
        relink(&mut self.approvals, run, list(old, |l| &l.approvals), list(new, |l| &l.approvals));
        relink(&mut self.notices, run, list(old, |l| &l.notices), list(new, |l| &l.notices));
        let (was, is) = (list(old, |lists| &lists.events), list(new, |lists| &lists.events));
        if was != is {
            was.iter().for_each(|event| unlink(&mut self.awaited, &awaited(card, event), &run));
            for event in is {
                self.awaited.entry(awaited(card, event)).or_default().insert(run);
            }
        }
    }

    fn file_worker(&mut self, id: &StreamId, old: Option<&WorkerCard>, new: Option<&WorkerCard>) {
        let StreamId::Worker(worker) = id else { return };
        if let Some(card) = old {
            unlink(&mut self.consumers, &card.queue, worker);
            self.listeners.remove(worker);
        }
        if let Some(card) = new {
            self.consumers.entry(card.queue.clone()).or_default().insert(worker.clone());
            if !card.wake_on.is_empty() {
                self.listeners.insert(worker.clone(), card.wake_on.clone());
            }
        }
    }

    /// The started workers that want to be woken by one of the facts of their tenant; by a custom one of their namespace.
    #[must_use]
    pub fn woken_by(&self, facts: &[Fact]) -> Vec<Scoped> {
        let hears = |worker: &Scoped, patterns: &[Pattern]| {
            let mine = facts.iter().filter(|fact| fact.tenant.as_str() == worker.tenant());
            // A wake does not wake, whatever the patterns say: it would never end.
            let mut news = mine.filter(|fact| match (&fact.event, &fact.stream) {
                (Event::WorkerWake(_), _) => false,
                (Event::Custom(_), StreamId::Trigger(key)) => key.namespace() == worker.namespace(),
                // tidy: all else.
                _ => true,
            });
            news.any(|fact| patterns.iter().any(|pattern| pattern.matches(&fact.event)))
        };
        let listeners = self.listeners.iter().filter(|(worker, patterns)| hears(worker, patterns));
        listeners.map(|(worker, _)| worker.clone()).collect()
    }

    /// Streams that want a tick by `at`, earliest first.
    pub fn due(&self, at: Millis) -> impl Iterator<Item = &StreamId> {
        self.due.iter().take_while(move |(due, _)| *due <= at).map(|(_, stream)| stream)
    }

    /// When the next stream wants a tick.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Runs with leases that end by `at` unless they were extended.
    pub fn leases_due(&self, at: Millis) -> impl Iterator<Item = &StreamId> {
        self.leases.iter().take_while(move |(due, _)| *due <= at).map(|(_, stream)| stream)
    }

    /// The run whose turn it is to get a step leased, by fairness, priority and age, within the caps. It goes back in
    /// line when it changes; [`Indexes::put_back`] puts back one that was not leased.
    pub fn next_ready(&mut self) -> Option<RunId> {
        self.next_ready_for(&Taker { home: None, labels: &[], plain: true })
    }

    /// The same for an executor that may not carry out everything.
    pub fn next_ready_for(&mut self, taker: &Taker<'_>) -> Option<RunId> {
        // Whoever is picked and may not is parked, so this ends.
        loop {
            let run = self.ready.next(taker, &self.active, &self.caps)?.key;
            let Some(card) = self.cards.get(&StreamId::Run(run)).and_then(Card::run) else {
                return Some(run);
            };
            let limited = limited_mut(&mut self.limited, &self.books, &card.home.runbook);
            if limited.is_none_or(|limited| limited.ready(&card.home.tenant, &card.home.runbook, run, true)) {
                return Some(run);
            }
        }
    }

    /// Puts a run back in line.
    pub fn put_back(&mut self, run: RunId) {
        let Some(card) = self.cards.get(&StreamId::Run(run)).and_then(Card::run).filter(|card| card.ready)
        else {
            return;
        };
        let limited = limited_mut(&mut self.limited, &self.books, &card.home.runbook);
        if limited.is_none_or(|limited| limited.ready(&card.home.tenant, &card.home.runbook, run, true)) {
            line_up(&mut self.ready, card, run);
        }
    }

    /// The clock was looked at for a stream, and nothing came of it: it is filed under what is due after that, until it
    /// changes. An overdue attempt has been told to stop, and a guard's question is on its way; to ask at once again
    /// would keep a loop busy with nothing.
    pub fn looked(&mut self, id: &StreamId, ver: u64, at: Millis) {
        self.looked.insert(id, (ver, at));
    }

    /// When a stream for which the clock was looked at is due next; none where it was not, or has changed since.
    fn later(
        &mut self,
        id: &StreamId,
        stream: Option<&Stream>,
        due: Option<Millis>,
    ) -> Option<Option<Millis>> {
        let &(ver, at) = self.looked.get(id)?;
        let Some(stream) = stream.filter(|stream| stream.ver == ver) else {
            self.looked.remove(id);
            return None;
        };
        match &stream.body {
            Body::Run(run) => Some(run.due_after(at)),
            Body::Worker(worker) => Some(worker.due_after(Some(at))),
            _ => Some(due.filter(|due| *due > at)),
        }
    }

    /// What was looked at, for whoever builds the indexes anew.
    pub(crate) fn with_looked(&self) -> Indexes {
        Indexes { looked: self.looked.clone(), ..Indexes::default() }
    }

    /// Files a version of a runbook by its name and its caps. What its runs use of them is counted from their cards,
    /// because a restored log may bring the runs first.
    fn file_runbook(&mut self, version: &Digest, stream: Option<&Stream>) {
        let Some(Stream { body: Body::Runbook(runbook), .. }) = stream else {
            self.labelled.remove(version);
            return self.forget_runbook(version);
        };
        if asks_for_labels(runbook) {
            self.labelled.insert(*version, runbook.clone());
        }
        if self.books.insert(*version, runbook.name.clone()).is_some() {
            // The content under a hash never changes.
            return;
        }
        let caps = runbook.caps.unwrap_or_default();
        let tight = caps.max_concurrency.is_some() || caps.max_runs_per_min.is_some();
        let known = self.limited.contains_key(&runbook.name);
        if !tight && !known {
            return;
        }
        let limited = self.limited.entry(runbook.name.clone()).or_default();
        if tight {
            limited.cap(*version, caps);
        }
        for (id, card) in self.cards.iter() {
            let (StreamId::Run(run), Some(card)) = (id, card.run()) else { continue };
            let counted = if known {
                card.home.runbook == *version
            } else {
                self.books.get(&card.home.runbook) == Some(&runbook.name)
            };
            if counted {
                limited.made(&card.home.tenant, card.created_at);
                limited.moved(&card.home.tenant, 0, card.active);
                if card.ready && !limited.ready(&card.home.tenant, &card.home.runbook, run, true) {
                    leave_line(&mut self.ready, card, run);
                }
            }
        }
    }

    fn forget_runbook(&mut self, version: &Digest) {
        let Some(name) = self.books.remove(version) else { return };
        if self.limited.get_mut(&name).is_none_or(|limited| limited.uncap(version)) {
            return;
        }
        for run in self.limited.remove(&name).iter().flat_map(Limited::parked) {
            if let Some(card) = self.cards.get(&StreamId::Run(run)).and_then(Card::run) {
                line_up(&mut self.ready, card, run);
            }
        }
    }

    /// Lets as many parked runs of a runbook back into line as there is room for.
    fn unpark(&mut self, home: &Home) {
        while let Some(run) = limited_mut(&mut self.limited, &self.books, &home.runbook)
            .and_then(|limited| limited.unpark(&home.tenant))
        {
            if let Some(card) = self.cards.get(&StreamId::Run(run)).and_then(Card::run) {
                line_up(&mut self.ready, card, run);
            }
        }
    }

    /// Every run that a step can be leased of, wherever it waits for that.
    fn in_line(&self) -> BTreeSet<RunId> {
        let parked = self.limited.values().flat_map(Limited::parked);
        self.ready.runs().chain(parked).collect()
    }

    /// How many runs have a step that can be leased.
    #[must_use]
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Runs that wait for this one, or for one of its pipeline.
    #[must_use]
    pub fn dependents(&self, run: RunId, home: &Home) -> Vec<RunId> {
        let needed = [Needed::Run(run), Needed::pipeline(home, &home.pipeline)];
        needed.iter().filter_map(|needed| self.dependents.get(needed)).flatten().copied().collect()
    }

    /// The run of an approval, open or decided.
    #[must_use]
    pub fn approval(&self, id: ApprovalId) -> Option<RunId> {
        self.approvals.get(&id).copied()
    }

    /// The approvals from one on with their runs, in order.
    pub fn approvals_from(&self, from: ApprovalId) -> impl Iterator<Item = (ApprovalId, RunId)> {
        self.approvals.range(from..).map(|(approval, run)| (*approval, *run))
    }

    /// The run that wants a message sent.
    #[must_use]
    pub fn notice(&self, id: NoticeId) -> Option<RunId> {
        self.notices.get(&id).copied()
    }

    /// Runs that wait for an external event.
    #[must_use]
    pub fn awaiting(&self, tenant: &Name, namespace: &Name, name: &Name, key: Option<&Name>) -> Vec<RunId> {
        let awaited = (tenant.clone(), namespace.clone(), name.clone(), key.cloned());
        self.awaited.get(&awaited).map(|set| set.iter().copied().collect()).unwrap_or_default()
    }

    /// The best items of a queue, of those whose time had come when [`Indexes::promote`] was last called.
    #[must_use]
    pub fn best(&self, queue: &Scoped, n: usize) -> Vec<ItemId> {
        self.queues.get(queue).map(|index| index.peek(n)).unwrap_or_default()
    }

    /// Moves items whose time has come among those that can be taken. Called at the start of a turn. They want no
    /// tick any more; their workers are woken by this turn, or by the next if it is refused.
    pub fn promote(&mut self, at: Millis) {
        for (queue, index) in &mut self.queues {
            for item in index.promote(at) {
                let id = StreamId::Item(item);
                if let Some(card) = self.cards.get_mut(&id) {
                    move_time(&mut self.due, &id, card.due.take(), None);
                }
                self.woken.insert(queue.clone());
            }
        }
    }

    /// The started workers of queues of which items came due, once.
    pub fn woken(&mut self) -> Vec<Scoped> {
        let queues = core::mem::take(&mut self.woken);
        queues.iter().flat_map(|queue| self.consumers(queue)).collect()
    }

    /// What an outside holder holds.
    #[must_use]
    pub fn beaten_by(&self, holder: &Holder) -> Vec<StreamId> {
        self.beaten.get(holder).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// How many items of a queue wait, and which has this key.
    #[must_use]
    pub fn depth(&self, queue: &Scoped, key: Option<&Name>) -> (u64, Option<ItemId>) {
        let Some(index) = self.queues.get(queue) else { return (0, None) };
        (index.depth(), key.and_then(|key| index.known(key)))
    }

    /// The index of a queue.
    #[must_use]
    pub fn queue(&self, queue: &Scoped) -> Option<&QueueIndex> {
        self.queues.get(queue)
    }

    /// The started workers of a queue.
    #[must_use]
    pub fn consumers(&self, queue: &Scoped) -> Vec<Scoped> {
        self.consumers.get(queue).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// The names under which runbooks were deployed in a namespace.
    #[must_use]
    pub fn deployments(&self, tenant: &Name, namespace: &Name) -> Vec<Scoped> {
        let place = (tenant.clone(), namespace.clone());
        self.deployments.get(&place).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Whether a tenant may begin another run of a runbook, beside those that the same commit begins.
    ///
    /// # Errors
    /// The cap that says no.
    pub fn admit_run(
        &self,
        tenant: &Name,
        runbook: &Digest,
        beside: &[Digest],
        at: Millis,
    ) -> Result<(), crate::caps::Error> {
        if let Some(caps) = self.caps.get(tenant) {
            let none = Window::default();
            caps.admit_run(self.windows.get(tenant).unwrap_or(&none), beside.len(), at)?;
        }
        let Some(limited) = self.limited_of(runbook) else { return Ok(()) };
        // Versions of one name are counted together.
        let book = self.books.get(runbook);
        let same = beside.iter().filter(|other| self.books.get(*other) == book).count();
        limited.admit_run(tenant, runbook, same, at)
    }

    /// Whether a tenant may have another step of a runbook under way.
    ///
    /// # Errors
    /// The cap that says no.
    pub fn admit_step(&self, tenant: &Name, runbook: &Digest) -> Result<(), crate::caps::Error> {
        self.caps(tenant).admit_step(self.active(tenant))?;
        self.limited_of(runbook).map_or(Ok(()), |limited| limited.admit_step(tenant, runbook))
    }

    fn limited_of(&self, runbook: &Digest) -> Option<&Limited> {
        if self.limited.is_empty() { None } else { self.limited.get(self.books.get(runbook)?) }
    }

    /// What a tenant may do at most.
    #[must_use]
    pub fn caps(&self, tenant: &Name) -> Caps {
        self.caps.get(tenant).copied().unwrap_or_default()
    }

    /// Steps under way for all tenants.
    #[must_use]
    pub fn active_total(&self) -> u32 {
        self.active.values().sum()
    }

    /// Steps under way for a tenant.
    #[must_use]
    pub fn active(&self, tenant: &Name) -> u32 {
        self.active.get(tenant).copied().unwrap_or_default()
    }

    /// From now on it is noted how runs move. Whoever asks for it takes it regularly, or it grows.
    pub fn note_moves(&mut self) {
        self.moves = Some(Vec::new());
    }

    /// How runs moved since this was last asked for.
    pub fn take_moves(&mut self) -> Vec<Move> {
        self.moves.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Runs by tenant and status: the gauges.
    pub fn statuses(&self) -> impl Iterator<Item = (&Name, Status, u64)> {
        self.statuses.iter().map(|((tenant, status), n)| (tenant, *status, *n))
    }
}

/// What the runs of a version's runbook use, where one of its versions has caps.
fn limited_mut<'a>(
    limited: &'a mut BTreeMap<Name, Limited>,
    books: &BTreeMap<Digest, Name>,
    version: &Digest,
) -> Option<&'a mut Limited> {
    if limited.is_empty() { None } else { limited.get_mut(books.get(version)?) }
}

const LABELS: fn(&Lists) -> &Vec<Vec<Name>> = |lists| &lists.labels;

fn awaited(card: &RunCard, (name, key): &(Name, Option<Name>)) -> Awaited {
    (card.home.tenant.clone(), card.home.namespace.clone(), name.clone(), key.clone())
}

/// A list of a card; an absent card has an empty one.
fn list<T>(card: Option<&RunCard>, of: fn(&Lists) -> &Vec<T>) -> &[T] {
    card.and_then(|card| card.lists.as_deref()).map_or(&[], |lists| of(lists))
}
