//! Shell steps with real processes. The test program itself is the keeper, and the host that gets killed.

mod host;
mod results;
mod trees;

use super::*;
use std::fs;
use std::sync::mpsc::{Receiver, channel};
use tempfile::TempDir;

/// Longer than anything takes. It only keeps a broken test from hanging.
const HANG: Duration = Duration::from_secs(120);

/// The keeper: [`Shell::start`] runs this program with [`KEEPER_ARGUMENT`], which selects this test by its name.
#[test]
fn __keeper() {
    if std::env::var_os(keeper::STARTED_BY).is_some() {
        let code = keeper::main();
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
}

/// A supervisor: the keeper runs this program with its argument, which selects this test.
#[test]
fn __attempt() {
    if std::env::var_os(keeper::STARTED_BY).is_some() {
        let code = supervisor::main();
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
}

fn leave() -> Leave {
    Leave::own(windlass_engine::Own::Elsewhere)
}

/// A data directory with a keeper.
struct Bench {
    dir: TempDir,
    shell: Shell,
}

/// The events of one attempt.
struct Watch(Receiver<ShellEvent>);

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let shell = Shell::start(&std::env::current_exe().unwrap(), dir.path()).unwrap();
        Bench { dir, shell }
    }

    fn spec(&self, id: &str, command: &str) -> Spec {
        spec(self.dir.path(), id, command)
    }

    fn log(&self, id: &str) -> PathBuf {
        self.dir.path().join(format!("{id}.log"))
    }

    fn watch(&self, spec: Spec) -> Watch {
        let (sender, receiver) = channel();
        self.shell.run(&leave(), spec, move |event| drop(sender.send(event))).unwrap();
        Watch(receiver)
    }

    /// Runs a command to its end, and returns what it wrote as well.
    fn run(&self, spec: Spec) -> (Ended, Vec<Line>) {
        let log = spec.log.clone();
        let ended = self.watch(spec).ended();
        (ended, output::tail(&log, usize::MAX).unwrap_or_default())
    }
}

impl Watch {
    /// Waits until the command has written so many lines `ready`.
    fn ready(&self, count: usize) -> &Watch {
        let mut seen = 0;
        while seen < count {
            match self.0.recv_timeout(HANG).expect("the command gets ready") {
                ShellEvent::Line(line) if line.text == "ready" => seen += 1,
                ShellEvent::Ended(ended) => panic!("it ended early: {ended:?}"),
                _ => {}
            }
        }
        self
    }

    fn ended(&self) -> Ended {
        loop {
            if let ShellEvent::Ended(ended) = self.0.recv_timeout(HANG).expect("the command ends") {
                assert!(self.0.recv_timeout(HANG).is_err(), "nothing follows the end");
                return ended;
            }
        }
    }
}

fn spec(dir: &Path, id: &str, command: &str) -> Spec {
    let env = Environment::inherited();
    let log = dir.join(format!("{id}.log"));
    let mut spec = Spec::new(id, command, dir.to_owned(), env, log, dir.join(format!("{id}.output")));
    spec.live = true;
    spec
}

fn texts(lines: &[Line], source: Source) -> Vec<&str> {
    lines.iter().filter(|line| line.source == source).map(|line| line.text.as_str()).collect()
}

/// A word that stands in the arguments of one test's processes and nowhere else.
fn unique(name: &str) -> String {
    format!("wlmark-{name}-{}-end", std::process::id())
}

/// The processes that have the word in their arguments. One that has ended has no arguments.
fn living(word: &str) -> Vec<i32> {
    let has_word = |process: &process::Process| {
        let arguments = fs::read(format!("/proc/{}/cmdline", process.identity.0)).unwrap_or_default();
        arguments.windows(word.len()).any(|part| part == word.as_bytes())
    };
    process::table().unwrap().iter().filter(|p| has_word(p)).map(|process| process.identity.0).collect()
}

#[track_caller]
fn assert_gone(word: &str) {
    assert!(living(word).is_empty(), "left: {:?}", living(word));
}

#[track_caller]
fn until(mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + HANG;
    while !holds() {
        assert!(std::time::Instant::now() < end, "it does not come to hold");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A shell line that leaves a process behind in every way there is, each of which says `ready` first: in the group, in
/// a session of its own, forked twice, deaf to SIGTERM, stopped, and with an empty environment.
fn forest(word: &str) -> String {
    let sleeper = format!("echo ready; exec -a {word} sleep 1000");
    format!(
        "bash -c '{sleeper}' &
         setsid bash -c '{sleeper}' &
         ( ( bash -c '{sleeper}' & ) & )
         ( ( setsid bash -c '{sleeper}' & ) & )
         ( ( setsid bash -c 'trap \"\" TERM; {sleeper}' & ) & )
         ( ( setsid bash -c 'echo ready; kill -STOP $$; exec -a {word} sleep 1000' {word} & ) & )
         ( ( env -i setsid bash -c '{sleeper}' & ) & )
        "
    )
}

/// How many lines `ready` a forest writes.
const FOREST: usize = 7;
