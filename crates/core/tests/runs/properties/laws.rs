//! What must hold after every command, and of every log.

use crate::properties::plan::{Plan, WRITES_MAX};
use crate::world::{World, name, scoped};
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::{Effect, Lease};
use windlass_core::id::{Holder, ItemId, RunId, Scoped, StepId};
use windlass_core::item::Item;
use windlass_core::queue::{self, Counts};
use windlass_core::receipt::key::State as KeyState;
use windlass_core::record::{Check, Record};
use windlass_core::run::Run;
use windlass_core::step::{Gate, Status as StepStatus, Step};
use windlass_core::stream::StreamId;
use windlass_core::turn::command::{Command, Refusal, Reply};
use windlass_core::turn::state::{Body, Snapshot, State};
use windlass_core::turn::{Turn, effect_key};
use windlass_core::{semaphore, worker};

/// How many slots `builders` has.
pub const CAPACITY: u32 = 2;
/// How many runs the worker may have at once.
pub const CONCURRENCY: u32 = 2;

/// More steps or approvals than the runbook of any case has a use for: something goes round in circles.
const GROWTH_MAX: usize = 300;

/// A world with its laws: each command goes through [`Watched::send`], which checks them.
pub struct Watched {
    pub world: World,
    /// What executors believe to have: the leases they were given and did not report on.
    pub leases: Vec<(RunId, StepId, u64)>,
    /// Every lease that was ever given, by step: epochs in the order of the grants.
    granted: BTreeMap<(RunId, StepId), u64>,
    /// The last epoch of each lock and semaphore.
    epochs: BTreeMap<StreamId, u64>,
    /// Outside writes that were let go, by run.
    writes: BTreeMap<RunId, u32>,
    /// Items that were pushed.
    pub items: Vec<ItemId>,
}

impl Watched {
    /// The plan's runs begin, sharing what there is to share.
    pub fn new(plan: &Plan) -> Watched {
        let world = World::new(plan.book());
        let (leases, items) = (Vec::new(), Vec::new());
        let (granted, epochs, writes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut watched = Watched { world, leases, granted, epochs, writes, items };
        let config = semaphore::Config { capacity: CAPACITY, ..semaphore::Config::default() };
        let input = semaphore::Input::Configure(config);
        watched.must(&Command::Semaphore { semaphore: scoped("builders"), input });
        let mut settings = queue::Settings::default();
        settings.terms.max_attempts = 2;
        settings.terms.dead_letter = Some(name("graves"));
        watched.must(&Command::Queue { queue: jobs(), input: queue::Input::Configure(settings) });
        let input = queue::Input::Configure(queue::Settings::default());
        watched.must(&Command::Queue { queue: scoped("graves"), input });
        let settings = worker::Settings {
            queue: name("jobs"),
            pipeline: name("each"),
            runbook_hash: crate::world::BOOK,
            project_root: String::new(),
            concurrency: CONCURRENCY,
            wake_on: Vec::new(),
            poll: None,
        };
        watched.must(&Command::Worker { worker: scoped("clerk"), input: worker::Input::Start(settings) });
        let mut before = None;
        for _ in 0..plan.runs {
            let mut create = watched.world.create("main", serde_json::Value::Null);
            create.needs = before.filter(|_| plan.chained).into_iter().collect();
            before = Some(create.id);
            watched.must(&Command::Create(Box::new(create)));
        }
        watched
    }

    /// Every run there is.
    pub fn runs(&self) -> Vec<RunId> {
        runs(&self.world.state).map(Run::id).collect()
    }

    pub fn must(&mut self, command: &Command) -> Turn {
        self.send(command).unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"))
    }

    /// Decides a command and checks everything that it must not have done.
    pub fn send(&mut self, command: &Command) -> Result<Turn, Refusal> {
        let before = self.world.state.clone();
        let decided = self.world.send(command);
        let after = &self.world.state;
        match &decided {
            Ok(turn) => self.note(turn),
            Err(refusal) => {
                assert!(before == *after, "refused and changed something: {command:?}");
                assert_ne!(refusal.code(), Some(Code::Internal), "{command:?}: {refusal}");
            }
        }
        if let Command::Report { run, step, epoch, .. } = command {
            stale_reports_move_nothing(&before, &self.world.state, *run, step, *epoch, &decided);
        }
        ended_runs_stay(&before, &self.world.state);
        self.grants_are_fenced();
        holds_are_exclusive(&self.world.state);
        items_are_in_one_place(&self.world.state);
        self.caps_hold();
        decided
    }

    fn note(&mut self, turn: &Turn) {
        for effect in &turn.effects {
            let Effect::Execute(lease) = effect else { continue };
            let run = self.world.run(lease.run);
            let before = self.granted.insert((lease.run, lease.step.clone()), lease.epoch);
            assert!(before.is_none_or(|epoch| epoch < lease.epoch), "two leases under one epoch");
            if run.step(&lease.step).is_some_and(Step::writes) {
                *self.writes.entry(lease.run).or_default() += 1;
            }
            its_intent_stands(&self.world.state, lease);
            self.leases.push((lease.run, lease.step.clone(), lease.epoch));
        }
        if let Reply::Leased(lease) = &turn.reply {
            let live = self.world.run(lease.run).step(&lease.step).unwrap();
            assert_eq!((live.status, live.epoch), (StepStatus::Running, lease.epoch));
        }
    }

    /// Grants of locks and semaphores have epochs that only grow.
    fn grants_are_fenced(&mut self) {
        for (id, stream) in self.world.state.streams() {
            let epoch = match &stream.body {
                Body::Lock(lock) => lock.epoch,
                Body::Semaphore(semaphore) => semaphore.epoch,
                _ => continue,
            };
            let last = self.epochs.entry(id.clone()).or_default();
            assert!(epoch >= *last, "the epoch of {id} went back");
            *last = epoch;
        }
    }

    fn caps_hold(&self) {
        for run in runs(&self.world.state) {
            let (steps, asked) = (run.steps.len(), run.rare().approvals.len());
            assert!(steps <= GROWTH_MAX && asked <= GROWTH_MAX, "{} grows: {steps}, {asked}", run.id());
        }
        for (run, writes) in &self.writes {
            assert!(*writes <= WRITES_MAX, "{run} wrote {writes} times");
        }
        for (_, stream) in self.world.state.streams() {
            if let Body::Worker(worker) = &stream.body {
                assert!(worker.active.len() <= CONCURRENCY as usize, "the worker has too many runs");
            }
        }
    }
}

pub fn jobs() -> Scoped {
    scoped("jobs")
}

pub fn runs(state: &State) -> impl Iterator<Item = &Run> {
    state.streams().filter_map(|(_, stream)| match &stream.body {
        Body::Run(run) => Some(&**run),
        _ => None,
    })
}

/// A report about an attempt that is over leaves the run as it is, whatever it does to the effect's own stream.
fn stale_reports_move_nothing(
    before: &State,
    after: &State,
    run: RunId,
    step: &StepId,
    epoch: u64,
    decided: &Result<Turn, Refusal>,
) {
    let Some(known) = before.run(run).and_then(|run| run.step(step)) else { return };
    if known.epoch == epoch {
        return;
    }
    let ver = |state: &State| state.stream(&StreamId::Run(run)).map(|stream| stream.ver);
    assert_eq!(ver(before), ver(after), "a stale report moved the run");
    if let Err(refusal) = decided {
        assert_eq!(refusal.code(), Some(Code::LeaseStaleEpoch), "{refusal}");
    }
}

/// Who acts under an effect key has the intent that stands there: what succeeded is not done again, and nobody acts
/// beside another.
fn its_intent_stands(state: &State, lease: &Lease) {
    let run = state.run(lease.run).unwrap();
    let book = state.stream(&StreamId::Runbook(run.born.home.runbook)).unwrap();
    let Body::Runbook(book) = &book.body else { panic!("{} has no runbook", run.id()) };
    let step = run.step(&lease.step).unwrap();
    let node = book.pipelines[&run.born.home.pipeline].node(step.node).unwrap();
    let Some(key) = effect_key(run, node, step) else { return };
    let Some(Body::Effect(known)) = state.stream(&StreamId::Effect(key)).map(|found| &found.body) else {
        panic!("{} acts without an intent", lease.step)
    };
    let KeyState::Intended { intent } = &known.state else { panic!("{} acts: {known:?}", lease.step) };
    let attempt = &intent.attempt;
    assert_eq!((attempt.run, &attempt.step, attempt.epoch), (lease.run, &lease.step, lease.epoch));
    assert_eq!(known.key, lease.idempotency_key);
}

fn ended_runs_stay(before: &State, after: &State) {
    for was in runs(before).filter(|run| run.is_terminal()) {
        let is = after.run(was.id()).unwrap();
        assert_eq!(was.ending, is.ending, "an ended run ended again");
        assert_eq!(was.steps, is.steps, "an ended run's steps changed");
        assert_eq!((&was.section, &was.root, &was.failure), (&is.section, &is.root, &is.failure));
    }
}

/// Nobody acts under a lock that is another's, and slots are never given twice.
fn holds_are_exclusive(state: &State) {
    for (id, stream) in state.streams() {
        if let Body::Semaphore(semaphore) = &stream.body {
            assert!(semaphore.used() <= semaphore.config.capacity, "{id} is over its capacity");
        }
    }
    for run in runs(state) {
        let acting = |step: &&Step| step.status == StepStatus::Running && step.lease.is_some();
        for step in run.live().filter(acting) {
            for gate in step.held() {
                assert!(holds(state, run, step, gate), "{} acts without {gate}", step.id);
            }
        }
    }
    nobody_holds_for_the_dead(state);
}

fn holds(state: &State, run: &Run, step: &Step, gate: &Gate) -> bool {
    let holder = step.holder(run.id());
    match gate {
        Gate::Lock { name, .. } => match state.stream(&StreamId::Lock(run.scoped(name))).map(|s| &s.body) {
            Some(Body::Lock(lock)) => lock.holder() == Some(&holder),
            _ => false,
        },
        Gate::Slots { name, slots } => {
            match state.stream(&StreamId::Semaphore(run.scoped(name))).map(|s| &s.body) {
                Some(Body::Semaphore(semaphore)) => {
                    semaphore.holders.get(&holder).is_some_and(|hold| hold.weight >= *slots)
                }
                _ => false,
            }
        }
        Gate::Guard => true,
    }
}

/// What a run or step holds or stands in line for goes back when it ends: nothing else would ever free it.
fn nobody_holds_for_the_dead(state: &State) {
    let gone = |holder: &Holder| match holder {
        Holder::Run(run) => state.run(*run).is_none_or(Run::is_terminal),
        Holder::Step(run, step) => state
            .run(*run)
            .is_none_or(|run| run.is_terminal() || run.step(step).is_none_or(|s| s.status.is_terminal())),
        Holder::Worker(_) | Holder::Outside(_) => false,
    };
    for (id, stream) in state.streams() {
        let holders: Vec<&Holder> = match &stream.body {
            Body::Lock(lock) => {
                lock.holder().into_iter().chain(lock.waiters.iter().map(|w| &w.holder)).collect()
            }
            Body::Semaphore(semaphore) => {
                semaphore.holders.keys().chain(semaphore.waiters.iter().map(|w| &w.holder)).collect()
            }
            _ => continue,
        };
        for holder in holders {
            assert!(!gone(holder), "{holder} has ended and still holds or waits for {id}");
        }
    }
}

/// Every item is in exactly one place, and the index says which.
fn items_are_in_one_place(state: &State) {
    let mut counts: BTreeMap<Scoped, Counts> = BTreeMap::new();
    for (_, stream) in state.streams() {
        let Body::Item(item) = &stream.body else { continue };
        let Some(body) = item.body() else { continue };
        let counts = counts.entry(body.scoped()).or_default();
        match &**item {
            Item::Absent { .. } => {}
            Item::Pending { .. } => counts.ready += 1,
            Item::Processing { .. } => counts.processing += 1,
            Item::Completed { .. } => counts.completed += 1,
            Item::Failed { .. } => counts.failed += 1,
            Item::Dead { .. } => counts.dead += 1,
            Item::Dropped { .. } => counts.dropped += 1,
        }
    }
    for (queue, expected) in counts {
        let mut found = state.indexes().queue(&queue).unwrap().counts();
        // Whether a waiting item's time has come is the clock's business.
        found.ready += std::mem::take(&mut found.delayed);
        assert_eq!(found, expected, "{queue}");
    }
    workers_and_items_agree(state);
}

/// A worker's item is claimed by its run, and that run is under way.
fn workers_and_items_agree(state: &State) {
    for (_, stream) in state.streams() {
        let Body::Worker(worker) = &stream.body else { continue };
        for run in worker.active.values() {
            let live = state.run(*run).is_some_and(|run| !run.is_terminal());
            assert!(live, "the worker keeps a place for {run}, which has ended");
        }
    }
}

fn records(world: &World) -> Vec<Record> {
    world.lines.iter().map(|line| Record::decode(line, Check::Form).unwrap()).collect()
}

fn fold(records: &[Record]) -> State {
    let mut state = State::new();
    for record in records {
        state.apply_event(record).unwrap();
    }
    state
}

/// What a snapshot is after it was written and read.
fn through_text(snapshot: &Snapshot) -> Snapshot {
    serde_json::from_str(&serde_json::to_string(snapshot).unwrap()).unwrap()
}

/// A prefix, saved and restored, with the rest applied is the whole; also where each stream was saved at a time of its
/// own, as the snapshots of a store that never pauses are.
pub fn any_cut_folds_alike(world: &World, cuts: &[Index]) {
    let records = records(world);
    let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(records.len() + 1)).collect();
    let prefixes: Vec<State> = cuts.iter().map(|&cut| fold(&records[..cut])).collect();
    let streams: BTreeSet<StreamId> = world.state.streams().map(|(id, _)| id).collect();
    // Every stream at the first cut, then each at the cut whose turn it is.
    for fuzzy in [false, true] {
        let mut restored = State::new();
        for (i, stream) in streams.iter().enumerate() {
            let prefix = &prefixes[if fuzzy { i % prefixes.len() } else { 0 }];
            if let Some(snapshot) = prefix.save(stream) {
                restored.restore(through_text(&snapshot)).unwrap();
            }
        }
        for record in &records {
            restored.apply_event(record).unwrap();
        }
        for (id, stream) in world.state.streams() {
            assert!(restored.stream(&id) == Some(stream), "{id}, cut at {cuts:?}, fuzzy: {fuzzy}");
        }
        assert!(restored == world.state);
        same_indexes(&restored, &world.state);
    }
}

/// The indexes follow from the streams, so they are the same after a restart.
fn same_indexes(restored: &State, lived: &State) {
    let (a, b) = (restored.indexes(), lived.indexes());
    // That the clock was looked at in vain is not in the log: what was due then is offered again, and nothing later.
    let (again, due) = (a.next_due(), b.next_due());
    assert!(due.is_none() || again.is_some() && again <= due, "{again:?} after a restart, {due:?} before it");
    assert_eq!(a.ready_len(), b.ready_len());
    assert_eq!(a.statuses().collect::<Vec<_>>(), b.statuses().collect::<Vec<_>>());
    for run in runs(lived) {
        let home = &run.born.home;
        assert_eq!(a.dependents(run.id(), home), b.dependents(run.id(), home));
        let leasable = |run: &Run| run.leasable().map(|step| step.id.clone()).collect::<Vec<_>>();
        assert_eq!(leasable(restored.run(run.id()).unwrap()), leasable(run));
    }
    assert_eq!(a.active(&name("default")), b.active(&name("default")));
}

/// Every record without its private values: the chain holds, and every step is where it was.
pub fn redacted_log_holds(world: &World) {
    let mut heads: BTreeMap<StreamId, Digest> = BTreeMap::new();
    let mut redacted = State::new();
    for line in &world.lines {
        let whole = Record::decode(line, Check::Form).unwrap();
        let end = format!(",\"chain\":\"{}\",\"seq\":{}", whole.chain, whole.seq);
        let cut = line.find(&end).unwrap() + end.len();
        let bare = format!("{}}}", &line[..cut]);
        let head = heads.entry(whole.stream.clone()).or_default();
        let record = Record::decode(&bare, Check::All(head)).unwrap();
        assert_eq!(record.to_line(), bare.as_bytes());
        *head = record.chain;
        redacted.apply_event(&record).unwrap();
    }
    for run in runs(&world.state) {
        let bare = redacted.run(run.id()).unwrap();
        assert_eq!(run.status(), bare.status());
        let trace = |run: &Run| {
            run.steps.iter().map(|s| (s.id.clone(), s.status, s.epoch, s.attempt)).collect::<Vec<_>>()
        };
        assert_eq!(trace(run), trace(bare));
    }
}
