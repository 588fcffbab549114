//! A period with its population: everything in it is there, and what is missing is found.

use crate::support::{Project, text};
use crate::verify;
use std::fs;
use windlass_core::evidence::{Contents, verify_period};
use windlass_server::evidence::{archive, keys};

const BOOK: &str = "name: many\npipelines:\n  p: { steps: [ { run: 'true' } ] }\n";

/// A moment in between, as the machine's clock has it.
fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// Two runs before a period, three in it, one after it; its bundle and the public keys.
fn exported() -> (Project, Vec<String>) {
    let project = Project::with(BOOK);
    let run = || text(&project.run(&[], 0), "id").to_owned();
    run();
    run();
    let from = now();
    let within: Vec<String> = (0..3).map(|_| run()).collect();
    let to = now();
    run();
    project
        .windlass(&["evidence", "export", "--from", &from, "--to", &to, "-o", "period.tar", "--json"])
        .code(0);
    let known = project.windlass(&["evidence", "pubkey"]).code(0);
    project.write("keys.txt", &known.out);
    (project, within)
}

#[test]
fn a_period_has_every_run_that_began_in_it_and_no_other() {
    let (project, within) = exported();
    let words = ["period.tar", "--pubkey", "keys.txt", "--html", "period.html", "--json"];
    let population = &verify(&project, &words).code(0).json()["population"];
    let runs: Vec<&str> = population["runs"].as_array().unwrap().iter().map(|run| text(run, "run")).collect();
    assert_eq!(runs, within);
    assert_eq!(population["not_proved"].as_array().unwrap().len(), 0, "{population:#}");
    let page = project.read("period.html");
    assert!(within.iter().all(|run| page.contains(run)) && page.contains("no run is left out"), "{page}");
    verify(&project, &["period.tar"]).code(1).says("integrity only");
    verify(&project, &["period.tar", "--pubkey", "keys.txt"]).code(0).says("What is not proved");
}

#[test]
fn a_period_that_is_not_over_is_said_to_be_open() {
    let project = Project::with(BOOK);
    project.run(&[], 0);
    let words = ["evidence", "export", "--from", "1h", "--to", "2100-01-01T00:00:00Z", "-o", "open.tar"];
    project.windlass(&words).code(0);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    verify(&project, &["open.tar", "--pubkey", "keys.txt"]).code(0).says("before the period was over");
}

#[test]
fn a_run_that_is_left_out_of_a_period_is_missed() {
    let (project, within) = exported();
    let known = keys::read_public(&project.path("keys.txt")).unwrap();
    let good = archive::read(&fs::read(project.path("period.tar")).unwrap()).unwrap();
    assert!(verify_period(&good, &known, &keys::check).is_ok());
    // Whoever holds the key makes a bundle without one of the runs.
    let run = &within[1];
    let mut contents = Contents::read(&good.parts).unwrap();
    contents.streams.retain(|segment| !segment.stream.to_string().contains(run.as_str()));
    contents.inclusions.retain(|inclusion| !inclusion.leaf.stream.to_string().contains(run.as_str()));
    let id = good.manifest.key_id.clone();
    let key = keys::Keys::open(&project.path("data/keys")).unwrap().load(&id).unwrap();
    let about = windlass_core::evidence::About::Period(good.manifest.period.unwrap());
    let forged = contents.bundle(about, good.manifest.made_at, id, &|bytes| key.sign(bytes));
    project.write("forged.tar", archive::write(&forged).unwrap());
    verify(&project, &["forged.tar", "--pubkey", "keys.txt"]).code(1).says(run).says("is not in the bundle");
}

#[test]
fn a_period_needs_both_ends_in_their_order() {
    let project = Project::with(BOOK);
    project.run(&[], 0);
    project.windlass(&["evidence", "export", "-o", "x.tar"]).code(2);
    project.windlass(&["evidence", "export", "--from", "1h", "-o", "x.tar"]).code(2);
    project
        .windlass(&["evidence", "export", "--from", "1h", "--to", "2h", "-o", "x.tar"])
        .code(2)
        .warns("ends before");
    project.windlass(&["evidence", "export", "--from", "yesterday", "--to", "2h", "-o", "x.tar"]).code(2);
    assert!(!project.has("x.tar"));
}

#[test]
fn what_was_sealed_beside_dropped_runs_can_still_be_proved() {
    let project = Project::with(BOOK);
    for _ in 0..2 {
        project.run(&[], 0);
    }
    // The runbook was sealed with the first of them, and has no newer record.
    project.windlass(&["store", "compact", "--retention", "1ms", "--yes"]).code(0);
    let run = text(&project.run(&[], 0), "id").to_owned();
    project.windlass(&["evidence", "export", &run, "-o", "new.tar"]).code(0);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    verify(&project, &["new.tar", "--pubkey", "keys.txt"]).code(0);
    // What is left of those that went is what does it.
    project.windlass(&["store", "backup", "copy"]).code(0);
    assert!(project.has("copy/log/heads.jsonl"), "a backup has the heads");
    project.remove("data/log/heads.jsonl");
    project.windlass(&["evidence", "export", &run, "-o", "none.tar"]).warns("cannot be opened");
    // A period in which runs were dropped cannot be proved any more, and nobody claims so.
    project.windlass(&["store", "restore", "copy", "--data", "again"]).code(0);
    let words = ["evidence", "export", "--from", "1h", "--to", &now(), "-o", "period.tar", "--data", "again"];
    project.windlass(&words).warns("after its retention");
}

/// Two runs that end and one that waits, in one server, which is killed; `sealed` says whether they were sealed together
/// before. The first two leave; the third goes on and ends.
fn outlived(sealed: bool) -> (Project, String) {
    let project = Project::with(
        "
name: outlives
pipelines:
  quick: { steps: [ { run: 'true' } ] }
  waits: { steps: [ { id: first, run: echo began > began }, { wait: { event: go } }, { run: 'true' } ] }
",
    );
    let mut server = project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    let waits = project.windlass(&["run", "book.yaml", "waits", "--detach", "--json"]).code(0).last();
    project.await_file("began");
    let mut quick = String::new();
    for _ in 0..2 {
        let run = project.windlass(&["run", "book.yaml", "quick", "--json"]).code(0).last();
        quick = text(&run, "id").to_owned();
    }
    if sealed {
        project.windlass(&["evidence", "export", &quick, "-o", "quick.tar"]).code(0);
    }
    server.kill();
    project.windlass(&["store", "compact", "--retention", "1ms", "--yes"]).code(0);
    project.windlass(&["show", &quick]).code(5);
    let run = text(&waits, "id").to_owned();
    project.windlass(&["signal", &run, "go"]).code(0);
    // It may have gone on to its end with the signal.
    project.windlass(&["resume", &run, "--json"]);
    assert_eq!(project.show(&run)["status"], "completed");
    (project, run)
}

fn is_proved(project: &Project, run: &str) {
    project.windlass(&["evidence", "export", run, "-o", "late.tar"]).code(0);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    verify(project, &["late.tar", "--pubkey", "keys.txt"]).code(0);
}

#[test]
fn a_run_that_outlives_runs_that_were_sealed_with_it_can_be_proved() {
    let (project, run) = outlived(true);
    is_proved(&project, &run);
}

#[test]
fn a_run_that_outlives_runs_that_left_before_any_seal_can_be_proved() {
    let (project, run) = outlived(false);
    is_proved(&project, &run);
}
