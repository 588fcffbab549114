//! Where stdout goes: a pipe that somebody closes, a disk that is full.

use crate::support::{Process, Project, text, until};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

const BOOK: &str = "
name: pipes
pipelines:
  p: { steps: [ { id: a, run: echo one }, { id: b, run: echo two > trace } ] }
  long: { steps: [ { id: a, run: 'echo first; echo > began; until [ -e go ]; do sleep 0.02; done' }, { id: b, run: echo > ran } ] }
";

/// Waits for the end of a child, which must not hang.
fn code(child: &mut Child) -> Option<i32> {
    until("the command to end", || child.try_wait().unwrap()).code()
}

/// Reads one line of what a command says, and closes the pipe.
fn head(project: &Project, words: &[&str]) -> Child {
    let mut child = project.command(words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "{words:?}");
    child
}

#[test]
fn who_follows_ends_when_nobody_reads_any_more() {
    let project = Project::with(BOOK);
    let mut holder = project.start(&["run", "book.yaml", "long", "--json"]);
    let run = holder.await_run();
    project.await_file("began");
    // Nothing more is written meanwhile: that nobody reads is found out without.
    for words in [&["events", "-f"][..], &["logs", &run, "-f"], &["watch", &run, "--json"]] {
        assert_eq!(code(&mut head(&project, words)), Some(0), "{words:?}");
    }
    project.write("go", "");
    holder.wait().code(0);
    for words in [&["completions", "bash"][..], &["events"], &["--help"]] {
        assert_eq!(code(&mut head(&project, words)), Some(0), "{words:?}");
    }
}

#[test]
fn a_run_goes_on_when_nobody_reads_what_it_says() {
    let project = Project::with(BOOK);
    let mut run = head(&project, &["run", "book.yaml", "long", "--json"]);
    project.await_file("began");
    project.write("go", "");
    assert_eq!(code(&mut run), Some(0));
    assert!(project.has("ran"));
    let page = project.windlass(&["runs", "--json"]).code(0).json();
    assert_eq!(text(&page["items"][0], "status"), "completed");
}

#[test]
fn what_cannot_be_written_is_a_failure() {
    let project = Project::with(BOOK);
    project.run(&["p"], 0);
    for words in [&["runs", "--json"][..], &["runs"], &["completions", "bash"], &["--help"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut child = project.command(words).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(code(&mut child), Some(75), "{words:?}");
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("UNAVAILABLE") && said.contains("stdout"), "{words:?}: {said}");
    }
}

#[test]
fn nothing_is_lost_when_a_human_is_not_waited_for() {
    let project = Project::with(
        "
name: gates
pipelines:
  p:
    steps:
      - { id: build, run: 'for n in $(seq 1 200); do echo line-$n; done' }
      - { id: gate, approve: { message: 'Release?' } }
  calls: { steps: [ { id: sub, call: p } ] }
",
    );
    let done = project.windlass(&["run", "book.yaml", "p", "--no-wait"]).code(4);
    assert_eq!(done.out.matches("build | line-").count(), 200, "{}", done.out);
    let done = project.windlass(&["run", "book.yaml", "p", "--no-wait", "--json"]).code(4);
    for kind in ["pipeline:created", "step:completed", "approval:requested"] {
        assert!(done.lines().iter().any(|line| line["type"] == kind), "no {kind}: {}", done.out);
    }
    let gated = done.last();
    assert_eq!(gated["status"], "awaiting_approval");
    // The decision is in another run: one that was called, or one that comes before.
    project.windlass(&["run", "book.yaml", "calls", "--no-wait"]).code(4).says("windlass why");
    let after = ["run", "book.yaml", "p", "--no-wait", "--after", text(&gated, "id"), "--json"];
    assert_eq!(Process::spawn(project.command(&after), &after).wait().code(4).last()["status"], "blocked");
}
