//! Waiting for each other: locks, semaphores, and the chain that `why` tells.

use crate::support::{Process, Project, text, until};

const LOCKS: &str = "
name: locks
semaphores: { builders: { capacity: 2 } }
pipelines:
  step:
    vars: { me: { required: true } }
    steps:
      - { id: merge, lock: main, run: 'echo > \"began-$WL_VAR_ME\"; until [ -e go ]; do sleep 0.02; done; echo \"$WL_VAR_ME\" >> order' }
  whole:
    lock: main
    steps: [ { id: quick, run: echo whole >> order } ]
  skip:
    steps: [ { id: s, lock: { name: main, overlap: skip }, run: echo skip >> order } ]
  slots:
    vars: { me: { required: true } }
    steps:
      - { id: build, semaphore: builders, run: 'echo > \"slot-$WL_VAR_ME\"; until [ -e go ]; do sleep 0.02; done' }
";

fn start(project: &Project, words: &[&str]) -> (Process, String) {
    let mut process = project.start(&[&["run", "book.yaml", "--json"], words].concat());
    let run = process.await_run();
    (process, run)
}

#[test]
fn two_processes_share_a_lock_and_why_tells_who_has_it() {
    let project = Project::with(LOCKS);
    let (first, holder) = start(&project, &["step", "--var", "me=one"]);
    project.await_file("began-one");
    let (second, waiter) = start(&project, &["step", "--var", "me=two"]);
    until("the second run to wait", || (project.show(&waiter)["status"] == "waiting_external").then_some(()));
    let why = project.windlass(&["why", &waiter, "--json"]).code(0).json();
    assert_eq!(why["because"][0]["kind"], "lock", "{why}");
    assert!(text(&why["because"][0], "holder").contains(&holder), "{why}");
    assert!(why["because"].as_array().unwrap().iter().any(|link| link["run"] == holder.as_str()), "{why}");
    project
        .windlass(&["why", &waiter])
        .code(0)
        .says("the lock `main`")
        .says(&holder)
        .says("being carried out");
    let (third, blocked) = start(&project, &["whole"]);
    until("the third run to be blocked", || (project.show(&blocked)["status"] == "blocked").then_some(()));
    let locks = project.windlass(&["locks", "--json"]).code(0).json();
    let lock = &locks["items"][0];
    assert_eq!((text(lock, "name"), text(lock, "state")), ("main", "held"));
    assert_eq!(lock["waiters"].as_array().unwrap().len(), 2, "{lock}");
    project.windlass(&["locks"]).code(0).says("main");
    assert!(!project.has("began-two"));
    project.windlass(&["run", "book.yaml", "skip"]).code(0);
    project.write("go", "");
    for process in [first, second, third] {
        process.wait().code(0);
    }
    assert_eq!(project.read("order"), "one\ntwo\nwhole\n");
    assert_eq!(project.windlass(&["locks", "--json"]).code(0).json()["items"][0]["state"], "free");
}

#[test]
fn a_lock_outlives_the_process_and_belongs_to_the_run() {
    let project = Project::with(LOCKS);
    let (first, holder) = start(&project, &["step", "--var", "me=one"]);
    project.await_file("began-one");
    first.kill();
    let locks = project.windlass(&["locks", "--json"]).code(0).json();
    assert!(text(&locks["items"][0], "holder").contains(&holder), "{locks}");
    project.write("go", "");
    // The other run's process takes up the first one's step again; only then is it the other's turn.
    project.windlass(&["run", "book.yaml", "whole"]).code(0);
    assert_eq!(project.read("order"), "one\nwhole\n");
}

#[test]
fn breaking_a_lock_needs_a_yes_and_lets_the_next_one_in() {
    let project = Project::with(LOCKS);
    let (first, _) = start(&project, &["step", "--var", "me=one"]);
    project.await_file("began-one");
    let (second, waiter) = start(&project, &["whole"]);
    until("the second run to be blocked", || (project.show(&waiter)["status"] == "blocked").then_some(()));
    project.windlass(&["lock", "break", "main"]).code(2).warns("--yes");
    project.windlass(&["lock", "break", "main", "--yes"]).code(0);
    second.wait().code(0);
    assert_eq!(project.read("order").lines().next(), Some("whole"));
    project.write("go", "");
    first.wait();
}

#[test]
fn a_semaphore_lets_in_as_many_as_it_has_slots() {
    let project = Project::with(LOCKS);
    let (one, _) = start(&project, &["slots", "--var", "me=one"]);
    let (two, _) = start(&project, &["slots", "--var", "me=two"]);
    project.await_file("slot-one");
    project.await_file("slot-two");
    let (three, waiter) = start(&project, &["slots", "--var", "me=three"]);
    until("the third run to wait", || (project.show(&waiter)["status"] == "waiting_external").then_some(()));
    let page = project.windlass(&["semaphores", "--json"]).code(0).json();
    let semaphore = &page["items"][0];
    assert_eq!((&semaphore["capacity"], &semaphore["used"]), (&2.into(), &2.into()), "{semaphore}");
    project.windlass(&["why", &waiter]).code(0).says("slots of the semaphore `builders`");
    assert!(!project.has("slot-three"));
    project.write("go", "");
    for process in [one, two, three] {
        process.wait().code(0);
    }
    assert!(project.has("slot-three"));
}
