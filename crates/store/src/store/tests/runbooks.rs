//! Stored runbooks: each leaves memory and log once nothing refers to it, and no other does; one that is wanted meanwhile stays.

use super::{Stage, options, path};
use crate::disk::faulty::Faulty;
use crate::store::{Before, Embedded};
use serde_json::json;
use std::sync::Arc;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, Scoped};
use windlass_core::run::Initiator;
use windlass_core::small;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Create, Deploy};
use windlass_core::turn::state::Body;
use windlass_engine::conformance::{create, run};

/// After everything.
const FAR: Millis = Millis(u64::MAX / 2);
const DEPLOYED: Digest = Digest([1; 32]);
const RUN: Digest = Digest([2; 32]);
const ENDED: Digest = Digest([3; 32]);
const IDLE: Digest = Digest([4; 32]);

fn name(text: &str) -> Name {
    Name::clean(text)
}

fn load(hash: Digest) -> Command {
    let book = json!({ "name": "b", "version": 1, "pipelines": { "p": {
        "nodes": [{ "id": "a", "kind": { "run": { "command": "true" } } }], "steps": [0] } } });
    let runbook = Box::new(serde_json::from_value(book).unwrap());
    Command::Load { hash, tenant: name("default"), runbook, source: None }
}

/// A store with a runbook that is deployed, one that runs, one whose run has ended, and one that nobody uses.
fn stored(disk: &Faulty, dir: &tempfile::TempDir) -> Embedded {
    let (store, _) = Embedded::open(Arc::new(disk.clone()), &path(dir), &options()).unwrap();
    let mut stage = Stage::new(store);
    for hash in [DEPLOYED, RUN, ENDED, IDLE] {
        stage.ask(load(hash)).unwrap();
    }
    let deployment = Scoped::new(&name("default"), &name("default"), &name("b"));
    let project_root = String::new();
    let deploy = Deploy { deployment, hash: DEPLOYED, project_root, next: small::Map::new() };
    stage.ask(Command::Deploy(Box::new(deploy))).unwrap();
    for (n, hash) in [(1, RUN), (2, ENDED)] {
        let Command::Create(made) = create(n, "p", json!({})) else { panic!("no run is made") };
        stage.ask(Command::Create(Box::new(Create { runbook: hash, ..*made }))).unwrap();
    }
    let cancel = Command::Cancel { run: run(2), initiator: Initiator::User, user: None, reason: None };
    stage.ask(cancel).unwrap();
    stage.clock.pass(1_000);
    let Stage { engine, .. } = stage;
    let mut store = engine.into_store();
    leave(&mut store);
    store
}

fn leave(store: &mut Embedded) {
    while store.let_all_leave() {
        std::thread::yield_now();
    }
}

fn has(store: &Embedded, hash: Digest) -> bool {
    matches!(store.state().stream(&StreamId::Runbook(hash)).map(|found| &found.body), Some(Body::Runbook(_)))
}

fn all(before: Millis) -> Before {
    Before { runs: before, items: before, keys: before, runbooks: before }
}

/// Lets go what may; returns how many runbooks went.
fn retain(store: &mut Embedded, before: Before) -> u64 {
    store.log().roll().unwrap();
    leave(store);
    let retiring = store.retire(before).unwrap();
    let done = retiring.carry_out(&|_| true).unwrap();
    store.retired(&retiring.gone().unwrap(), done.bytes_dropped > 0);
    // Rows of runs that went are taken out behind our backs.
    store.live.history.flush().unwrap();
    done.runbooks
}

#[test]
fn a_runbook_that_nothing_refers_to_leaves_memory_and_log() {
    let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
    let mut store = stored(&disk, &dir);
    assert_eq!(retain(&mut store, all(Millis(1))), 0, "none is old enough");
    // As long as its run is listed, a runbook stays.
    assert_eq!(retain(&mut store, Before { runs: Millis(0), ..all(FAR) }), 1);
    assert_eq!([DEPLOYED, RUN, ENDED, IDLE].map(|hash| has(&store, hash)), [true, true, true, false]);
    assert_eq!(retain(&mut store, all(FAR)), 0, "its run leaves first");
    assert_eq!(retain(&mut store, all(FAR)), 1);
    let held = [DEPLOYED, RUN, ENDED, IDLE].map(|hash| has(&store, hash));
    assert_eq!(held, [true, true, false, false]);
    store.log().verify().unwrap();
    drop(store);
    disk.crash(1);
    let (store, _) = Embedded::open(Arc::new(disk.clone()), &path(&dir), &options()).unwrap();
    assert_eq!([DEPLOYED, RUN, ENDED, IDLE].map(|hash| has(&store, hash)), held);
    // One that comes again begins anew.
    let mut stage = Stage::new(store);
    stage.ask(load(IDLE)).unwrap();
    let store = stage.engine.into_store();
    drop(store);
    disk.crash(2);
    let (store, _) = Embedded::open(Arc::new(disk), &path(&dir), &options()).unwrap();
    assert!(has(&store, IDLE));
    assert_eq!(store.state().stream(&StreamId::Runbook(IDLE)).unwrap().ver, 1);
    store.log().verify().unwrap();
}

#[test]
fn a_runbook_that_is_wanted_while_it_leaves_stays() {
    let (disk, dir) = (Faulty::new(), tempfile::tempdir().unwrap());
    let mut store = stored(&disk, &dir);
    store.log().roll().unwrap();
    let retiring = store.retire(all(FAR)).unwrap();
    assert!(!has(&store, IDLE), "it is out of memory as soon as it is chosen");
    // Somebody makes a run of it before the files are replaced.
    let mut stage = Stage::new(store);
    let Command::Create(made) = create(9, "p", json!({})) else { panic!("no run is made") };
    stage.ask(Command::Create(Box::new(Create { runbook: IDLE, ..*made }))).unwrap();
    let mut store = stage.engine.into_store();
    assert_eq!(retiring.carry_out(&|_| true).unwrap().runbooks, 0);
    store.retired(&retiring.gone().unwrap(), true);
    assert!(has(&store, IDLE));
    store.save_now(FAR);
    drop(store);
    disk.crash(3);
    let (mut store, _) = Embedded::open(Arc::new(disk), &path(&dir), &options()).unwrap();
    assert!(has(&store, IDLE) && store.show_run(run(9), |_, _, _| ()).is_some());
    leave(&mut store);
    // What was chosen and did not go is in memory again, and in every snapshot.
    let mut other = store;
    let retiring = other.retire(Before { runs: Millis(0), ..all(FAR) }).unwrap();
    drop(retiring);
    other.retired(&[], false);
    assert!([DEPLOYED, RUN, ENDED, IDLE].iter().all(|hash| has(&other, *hash)));
}
