//! The embedded store passes the suite that every store must pass, over a disk that forgets what was not synced, and
//! behaves on a full one as it promises.

mod feed;
mod names;
mod runbooks;

use super::{Embedded, Options};
use crate::disk::faulty::Faulty;
use crate::log;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::approval::{Attempt, Channel, Status, Verdict};
use windlass_core::code::Code;
use windlass_core::id::{ApprovalId, Name};
use windlass_core::run::Actor;
use windlass_core::stream::StreamId;
use windlass_core::template::NoExpressions;
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Fact};
use windlass_engine::conformance::{BOOK, Subject, check, create};
use windlass_engine::fake::Always;
use windlass_engine::fake::{Collected, Hands, Kept};
use windlass_engine::handle::{Handle, Inbox, inbox};
use windlass_engine::port::{Batch, Fault, Found, Leased, Store};
use windlass_engine::{Engine, Parts};
use windlass_executor::clock::Sorted;

/// The embedded store with the disk and the directory it is on.
struct Disked {
    store: Embedded,
    disk: Faulty,
    dir: Arc<tempfile::TempDir>,
    crashes: u64,
}

fn options() -> Options {
    // Small segments and frequent snapshots, so that tests come to their ends.
    let log =
        log::Options { segment_bytes: 16 << 10, idle: Duration::from_secs(3_600), ..log::Options::default() };
    Options { log, snapshot_every: Some(20) }
}

fn path(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().to_path_buf()
}

impl Disked {
    fn new() -> Disked {
        let (disk, dir) = (Faulty::new(), Arc::new(tempfile::tempdir().unwrap()));
        let (store, _) = Embedded::open(Arc::new(disk.clone()), &path(&dir), &options()).unwrap();
        Disked { store, disk, dir, crashes: 0 }
    }
}

impl Store for Disked {
    fn view(&mut self) -> &mut dyn windlass_core::turn::Overlay {
        self.store.view()
    }
    fn load(&mut self, streams: &[StreamId]) -> Result<(), Fault> {
        self.store.load(streams)
    }
    fn commit(&mut self, batch: Batch, soon: bool) {
        self.store.commit(batch, soon);
    }
    fn reload(&mut self) -> Result<(), Fault> {
        self.store.reload()
    }
    fn has_room(&mut self) -> bool {
        self.store.has_room()
    }
    fn pick_ready(
        &mut self,
        taker: &windlass_core::turn::index::Taker<'_>,
    ) -> Option<(windlass_core::id::RunId, Vec<windlass_core::id::StepId>)> {
        self.store.pick_ready(taker)
    }
    fn put_back(&mut self, run: windlass_core::id::RunId) {
        self.store.put_back(run);
    }
    fn pick_due(&mut self, at: Millis, max: usize) -> Vec<StreamId> {
        self.store.pick_due(at, max)
    }
    fn next_due(&mut self) -> Option<Millis> {
        self.store.next_due()
    }
    fn pick_expired(&mut self, at: Millis) -> Vec<Leased> {
        self.store.pick_expired(at)
    }
    fn beat(&mut self, holder: windlass_core::id::Holder, at: Millis) {
        self.store.beat(holder, at);
    }
    fn newest(&self) -> Option<Millis> {
        self.store.newest()
    }
    fn recover(&mut self, at: Millis) -> Result<Found, Fault> {
        self.store.recover(at)
    }
    fn idle(&mut self, at: Millis) -> bool {
        self.store.idle(at)
    }
}

impl Subject for Disked {
    fn reopen(self) -> Self {
        let Disked { store, disk, dir, crashes } = self;
        drop(store);
        disk.crash(crashes);
        let (store, _) = Embedded::open(Arc::new(disk.clone()), &path(&dir), &options()).unwrap();
        let (state, at) = (store.state(), Millis(1_000_000));
        let mut filed = state.indexes().clone();
        filed.promote(at);
        assert!(filed == state.rebuilt_indexes(at), "what was filed is not what the streams say");
        Disked { store, disk, dir, crashes: crashes + 1 }
    }

    fn kept(&mut self) -> Vec<Kept> {
        let mut kept = Vec::new();
        let read = self.store.log().read(0, &mut |record, _| {
            let fact = Fact { stream: record.stream, tenant: record.tenant, event: record.event };
            kept.push(Kept { at: record.at, fact });
            ControlFlow::Continue(())
        });
        read.unwrap();
        kept
    }

    fn fill(&mut self, _: bool) -> bool {
        // How much room a segment has left is the log's own affair; a full disk has a test of its own below.
        false
    }
}

#[test]
fn the_embedded_store_conforms() {
    assert!(check(Disked::new).unwrap() >= 16);
}

/// A store with a loop around it, driven by hand.
struct Stage {
    engine: Engine<Embedded>,
    handle: Handle<Embedded>,
    inbox: Inbox<Embedded>,
    clock: Arc<Hands>,
}

impl Stage {
    fn new(store: Embedded) -> Stage {
        let (clock, (handle, inbox)) = (Arc::new(Hands::at(Millis(1_000_000))), inbox());
        let parts = Parts {
            store,
            clock: clock.clone(),
            ids: Box::new(Sorted),
            evaluate: Arc::new(NoExpressions),
            policy: Arc::new(Always(windlass_core::digest::Digest([0; 32]))),
            outside: Arc::new(Collected::default()),
        };
        let engine = Engine::new(
            parts,
            windlass_engine::Options { slice: Duration::MAX, ..windlass_engine::Options::default() },
            handle.clone(),
        );
        Stage { engine, handle, inbox, clock }
    }

    fn turn(&mut self) {
        let messages: Vec<_> = std::iter::from_fn(|| self.inbox.next()).collect();
        self.engine.turn(messages.into_iter(), true).unwrap();
        while !self.engine.is_settled() {
            std::thread::yield_now();
        }
    }

    /// Asks for something and turns until the answer is there.
    fn ask(&mut self, command: Command) -> Result<(), Code> {
        let (send, receive) = std::sync::mpsc::channel();
        self.handle.ask(Actor::SYSTEM, command, move |reply| {
            let _ = send.send(reply.map(|_| ()).map_err(|refusal| refusal.code().unwrap()));
        });
        for _ in 0..10 {
            self.turn();
            if let Ok(reply) = receive.try_recv() {
                return reply;
            }
        }
        panic!("no answer");
    }
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_needs_no_restart() {
    let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
    let (store, _) = Embedded::open(Arc::new(disk.clone()), &path(&dir), &options()).unwrap();
    let mut stage = Stage::new(store);
    let book = json!({ "name": "b", "version": 1, "pipelines": { "p": {
        "vars": { "text": {} }, "nodes": [{ "id": "a", "kind": { "run": { "command": "true" } } }], "steps": [0] } } });
    let (runbook, tenant) = (Box::new(serde_json::from_value(book).unwrap()), Name::clean("default"));
    stage.ask(Command::Load { hash: BOOK, tenant, runbook, source: None }).unwrap();
    disk.set_capacity(Some(disk.used() + (64 << 10)));
    let vars = |n: u128| json!({ "text": format!("{n} {}", "x".repeat(2_000)) });
    let mut made = Vec::new();
    let refused = loop {
        let n = 1_000 + made.len() as u128;
        match stage.ask(create(n, "p", vars(n))) {
            Ok(()) => made.push(n),
            Err(code) => break code,
        }
        assert!(made.len() < 1_000, "the disk never gets full");
    };
    assert_eq!(refused, Code::StoreFull);
    stage.turn();
    // Reads go on, and show what was acknowledged and nothing else.
    let count = |stage: &mut Stage| {
        let filter = super::RunFilter {
            limit: 500,
            ..super::RunFilter::of(&Name::clean("default"), &Name::clean("default"))
        };
        stage.engine.store().list_runs(&filter, |_, _| ()).unwrap().0.len()
    };
    assert_eq!(count(&mut stage), made.len());
    assert_eq!(stage.ask(create(1, "p", vars(1))), Err(Code::StoreFull));
    // There is room again, and nobody has to restart anything.
    disk.set_capacity(None);
    let again = (0..1_000_000).any(|_| {
        stage.clock.pass(1_000);
        stage.turn();
        std::thread::yield_now();
        stage.ask(create(2, "p", vars(2))).is_ok()
    });
    assert!(again, "room is never found again");
    assert_eq!(count(&mut stage), made.len() + 1);
    // All of it, and nothing else, is there after a crash.
    let Stage { engine, .. } = stage;
    drop(engine.into_store());
    disk.crash(7);
    let (mut store, _) = Embedded::open(Arc::new(disk), &path(&dir), &options()).unwrap();
    let filter = super::RunFilter {
        limit: 500,
        ..super::RunFilter::of(&Name::clean("default"), &Name::clean("default"))
    };
    let listed = store.list_runs(&filter, |_, _| ()).unwrap().0;
    assert_eq!(listed.len(), made.len() + 1);
    assert!(listed.iter().all(|run| matches!(run, super::Listed::Live(..))));
}

#[test]
fn what_is_past_its_retention_leaves_and_the_rest_stays() {
    let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
    let (store, _) = Embedded::open(Arc::new(disk.clone()), &path(&dir), &options()).unwrap();
    let mut stage = Stage::new(store);
    let book = json!({ "name": "b", "version": 1, "pipelines": { "p": {
        "nodes": [{ "id": "a", "kind": { "run": { "command": "true" } } }], "steps": [0] } } });
    let (runbook, tenant) = (Box::new(serde_json::from_value(book).unwrap()), Name::clean("default"));
    stage.ask(Command::Load { hash: BOOK, tenant, runbook, source: None }).unwrap();
    for n in 1..=40 {
        stage.ask(create(n, "p", json!({}))).unwrap();
        let (run, initiator) = (windlass_engine::conformance::run(n), windlass_core::run::Initiator::User);
        if n % 4 != 0 {
            stage.ask(Command::Cancel { run, initiator, user: None, reason: None }).unwrap();
        }
        stage.clock.pass(1_000);
    }
    let Stage { engine, .. } = stage;
    let mut store = engine.into_store();
    let far = Millis(u64::MAX / 2);
    while store.lingering() > 0 {
        store.idle(far);
        std::thread::yield_now();
    }
    let filter = super::RunFilter {
        limit: 500,
        ..super::RunFilter::of(&Name::clean("default"), &Name::clean("default"))
    };
    // Whatever ended after this stays: 1,000,000 is where the clock began, and each run took a second.
    let before = Millis(1_000_000 + 20_000);
    let listed = |store: &mut Embedded| store.list_runs(&filter, |_, _| ()).unwrap().0.len();
    assert_eq!(listed(&mut store), 40);
    store.log().roll().unwrap();
    let retiring = store.retire(super::Before { runs: before, ..super::Before::default() }).unwrap();
    assert_eq!(retiring.len(), 15);
    assert_eq!(listed(&mut store), 25, "they are gone at once");
    assert!(store.show_run(windlass_engine::conformance::run(1), |_, _, _| ()).is_none());
    let done = retiring.carry_out(&|_| true).unwrap();
    assert_eq!(done.streams_dropped, 15);
    let gone = retiring.gone().unwrap();
    assert_eq!(gone.len(), 15);
    store.retired(&gone, true);
    drop(retiring);
    store.save_now(far);
    assert_eq!(listed(&mut store), 25);
    drop(store);
    disk.crash(3);
    let (mut store, _) = Embedded::open(Arc::new(disk), &path(&dir), &options()).unwrap();
    assert_eq!(listed(&mut store), 25);
    assert!(store.show_run(windlass_engine::conformance::run(2), |_, _, _| ()).is_none());
    assert!(store.show_run(windlass_engine::conformance::run(39), |_, _, _| ()).is_some());
}

#[test]
fn runs_below_those_that_have_left_are_looked_for_once_and_made() {
    let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
    let stage = asked_and_gone(&disk, &dir);
    let Stage { engine, .. } = stage;
    let store = engine.into_store();
    let newest = store.newest().unwrap();
    drop(store);
    let (store, _) = Embedded::open(Arc::new(disk), &path(&dir), &options()).unwrap();
    assert!(store.newest().unwrap() >= newest, "what has left counts too");
    let mut stage = Stage::new(store);
    // The id of the run that has left is 1; those of a clock that is behind are lower. What one command asks about stays
    // known until it is decided, however often it asks.
    stage.ask(create(0, "p", json!({}))).unwrap();
    assert!(stage.engine.store().show_run(windlass_engine::conformance::run(0), |_, _, _| ()).is_some());
}

/// A store with a run that asked a human and was cancelled, and that has left memory since.
fn asked_and_gone(disk: &Faulty, dir: &tempfile::TempDir) -> Stage {
    let (store, _) = Embedded::open(Arc::new(disk.clone()), &path(dir), &options()).unwrap();
    let mut stage = Stage::new(store);
    let approve = json!({ "message": { "literal": "Really?" }, "approvers": [], "count": 1, "tier": "low",
        "expires": 3_600_000, "steps": [] });
    let book = json!({ "name": "b", "version": 1, "pipelines": { "p": {
        "nodes": [{ "id": "ok", "kind": { "approve": approve } }], "steps": [0] } } });
    let (runbook, tenant) = (Box::new(serde_json::from_value(book).unwrap()), Name::clean("default"));
    stage.ask(Command::Load { hash: BOOK, tenant, runbook, source: None }).unwrap();
    for n in 1..=2 {
        stage.ask(create(n, "p", json!({}))).unwrap();
    }
    let (run, initiator) = (windlass_engine::conformance::run(1), windlass_core::run::Initiator::User);
    stage.ask(Command::Cancel { run, initiator, user: None, reason: None }).unwrap();
    let store = stage.engine.store();
    while store.lingering() > 0 {
        store.idle(Millis(u64::MAX / 2));
        std::thread::yield_now();
    }
    assert!(store.state().run(run).is_none(), "it has left");
    stage
}

#[test]
fn an_approval_is_answered_for_after_its_run_has_left_memory() {
    let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
    let mut stage = asked_and_gone(&disk, &dir);
    let store = stage.engine.store();
    let default = Name::clean("default");
    let filter = |status, limit| super::ApprovalFilter {
        tenant: default.clone(),
        namespace: default.clone(),
        status,
        after: None,
        limit,
    };
    let (open, next) = store.list_approvals(&filter(Some(Status::Requested), 10));
    assert_eq!((open.len(), next), (1, None), "the other run still asks");
    let run = windlass_engine::conformance::run(1);
    let rows = store.live.history.approvals(ApprovalId(0), ApprovalId(u128::MAX), 10).unwrap();
    let &[(id, of)] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((of, store.approval_run(id).unwrap()), (run, Some(run)));
    let elsewhere = store.find_approvals((&default, &Name::clean("other")), &id.to_string()).unwrap();
    assert!(elsewhere.is_empty() && store.state().run(run).is_none(), "it is not even read for others");
    let found = store.find_approvals((&default, &default), &id.to_string()).unwrap();
    assert_eq!(
        found.iter().map(|found| (found.id, found.status)).collect::<Vec<_>>(),
        [(id, Status::Cancelled)]
    );
    assert!(store.find_approvals((&default, &default), "apr_zz").unwrap().is_empty());
    // Whoever decides now is told what became of it, and not that it never was.
    while store.lingering() > 0 {
        store.idle(Millis(u64::MAX / 2));
        std::thread::yield_now();
    }
    let attempt = Attempt {
        decision: Verdict::Approved,
        by: Name::clean("ann"),
        human: true,
        groups: Vec::new(),
        action_hash: found[0].action_hash,
        channel: Channel::Cli,
        reason: None,
        card: None,
    };
    let input = windlass_core::approval::Input::Decide(attempt);
    let late = Command::Decide { run, approval: id, input };
    assert_ne!(stage.ask(late.clone()), Err(Code::NotFound));
    // What was tried is on record, and is found again with the rest of the run, however often that leaves.
    let stream = StreamId::Run(run);
    let mut last = 0;
    for _ in 0..3 {
        assert_ne!(stage.ask(late.clone()), Err(Code::NotFound));
        let store = stage.engine.store();
        let ver = store.state().stream(&stream).unwrap().ver;
        assert!(ver > last, "a refused attempt is on record");
        last = ver;
        while store.lingering() > 0 {
            store.idle(Millis(u64::MAX / 2));
            std::thread::yield_now();
        }
        assert!(store.state().run(run).is_none(), "it has left again");
        store.load(std::slice::from_ref(&stream)).unwrap();
        assert_eq!(store.state().stream(&stream).unwrap().ver, last);
    }
    drop(stage);
    disk.crash(7);
    let (mut store, _) = Embedded::open(Arc::new(disk.clone()), &path(&dir), &options()).unwrap();
    store.load(std::slice::from_ref(&stream)).unwrap();
    assert_eq!(store.state().stream(&stream).unwrap().ver, last);
}

#[test]
fn a_list_goes_on_where_a_look_at_the_store_ended() {
    let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
    let mut stage = asked_and_gone(&disk, &dir);
    let store = stage.engine.store();
    let default = Name::clean("default");
    let ids = [2, 1].map(|n| windlass_engine::conformance::run(n).to_string());
    // However little is looked at, and whoever is left out: all of it comes, once and in order.
    for (scan_max, limit, status, wanted) in [
        (50_000, 1, None, &ids[..]),
        (1, 5, None, &ids[..]),
        (1, 5, Some(windlass_core::run::Status::Cancelled), &ids[1..]),
    ] {
        store.scan_max = scan_max;
        let mut filter = super::RunFilter { limit, status, ..super::RunFilter::of(&default, &default) };
        let mut seen = Vec::new();
        loop {
            let (page, next) = store.list_runs(&filter, |_, _| ()).unwrap();
            seen.extend(page.iter().map(|run| run.id().to_string()));
            let Some(next) = next else { break };
            filter.before = Some(next);
        }
        assert_eq!(seen, wanted, "one in memory, and one that has left it");
    }
    let mut filter = super::ApprovalFilter {
        tenant: default.clone(),
        namespace: default.clone(),
        status: None,
        after: None,
        limit: 5,
    };
    let (page, next) = store.list_approvals(&filter);
    assert!(page.len() == 1 && next.is_none(), "{page:?}");
    filter.tenant = Name::clean("other");
    assert!(store.list_approvals(&filter).0.is_empty());
    let filter = super::RunFilter::of(&default, &default);
    // An index that cannot be read is said to be: it is not taken for an empty one.
    Arc::get_mut(&mut store.live.history).unwrap().lose_readers();
    assert_eq!(store.list_runs(&filter, |_, _| ()).unwrap_err().code(), Code::Internal);
    assert!(store.find_runs(&default, &default, "run_0").is_err());
}
