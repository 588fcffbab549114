//! On a terminal: what a human sees, is asked, and is spared.

use crate::support::{Project, text, until};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

/// A command at a terminal of 24 lines and 40 columns.
struct Terminal {
    child: Child,
    keys: File,
    seen: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(project: &Project, words: &[&str]) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 40, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(OsStr::from_bytes(name.as_bytes())).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let child = project.command(words).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let (keys, seen) = (File::from(ours), Arc::new(Mutex::new(String::new())));
        let (mut from, to) = (keys.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal whose other end is closed answers with an error.
            while let Ok(len) = from.read(&mut bytes)
                && len > 0
            {
                to.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        Terminal { child, keys, seen }
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    fn until(&self, part: &str) {
        until(part, || self.seen().contains(part).then_some(()));
    }

    fn types(&mut self, line: &str) {
        self.keys.write_all(line.as_bytes()).unwrap();
    }

    /// Waits for its end, and returns the code and what was seen.
    fn end(mut self) -> (Option<i32>, String) {
        let status = until("the command to end", || self.child.try_wait().unwrap());
        // What it wrote last is on its way still.
        let mut before = String::new();
        let seen = until("the terminal to be quiet", || {
            let now = self.seen();
            let quiet = (now == before && !now.is_empty()).then(|| now.clone());
            before = now;
            quiet
        });
        (status.code(), seen)
    }
}

#[test]
fn how_to_resume_stays_on_the_screen() {
    let project = Project::with(
        "
name: stops
pipelines:
  p: { steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.02; done' } ] }
",
    );
    let terminal = Terminal::start(&project, &["run", "book.yaml"]);
    project.await_file("began");
    terminal.until("\u{1b}[J");
    kill_process(Pid::from_child(&terminal.child), Signal::INT).unwrap();
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(130), "{seen}");
    let note = seen.rfind("windlass resume").expect("how to resume");
    assert!(!seen[note..].contains("\u{1b}[J"), "it is erased: {seen:?}");
}

#[test]
fn a_line_never_takes_more_columns_than_there_are() {
    let project = Project::with(
        "
name: wide
pipelines:
  p: { steps: [ { id: s, run: \"printf '日%.0s' $(seq 1 60); printf '\\\\n\\\\ta\\\\tb\\\\n'; echo > began; until [ -e go ]; do sleep 0.02; done\" } ] }
",
    );
    let terminal = Terminal::start(&project, &["run", "book.yaml", "--no-color"]);
    project.await_file("began");
    terminal.until("日");
    project.write("go", "");
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    let widest = seen.lines().map(|line| line.matches('日').count()).max();
    assert!(widest.is_some_and(|wide| wide > 10 && wide < 20), "{widest:?}: {seen}");
    assert!(!seen.contains('\t'), "{seen:?}");
}

const GATED: &str = "
name: gated
pipelines:
  p: { steps: [ { id: gate, approve: { message: 'Release?' } } ] }
";

#[test]
fn who_says_no_has_decided_nothing() {
    let project = Project::with(GATED);
    project.run(&["--no-wait"], 4);
    let open = project.windlass(&["approvals", "--json"]).code(0).json()["items"][0].clone();
    let id = text(&open, "id");
    for (words, question) in [
        (&["approve", id][..], "Approve exactly this?"),
        (&["reject", id, "--reason", "no"], "Reject exactly this?"),
    ] {
        let mut terminal = Terminal::start(&project, words);
        terminal.until(question);
        terminal.types("n\n");
        let (code, seen) = terminal.end();
        assert_eq!(code, Some(2), "{seen}");
        assert!(seen.contains("nothing was decided") && !seen.contains("--hash"), "{seen}");
    }
    assert!(project.events("approval:decided").is_empty());
    let mut terminal = Terminal::start(&project, &["reject", id, "--reason", "no"]);
    terminal.until("Reject exactly this?");
    terminal.types("y\n");
    assert_eq!(terminal.end().0, Some(0));
    assert_eq!(project.events("approval:decided").len(), 1);
}

#[test]
fn nothing_of_others_takes_over_the_terminal() {
    let evil = "\u{9b}2J\u{202e}evil\u{2066}";
    let project = Project::with(
        r#"
name: evil
pipelines:
  p:
    vars: { v: { default: "\u009b2J\u202eevil\u2066" } }
    steps: [ { id: s, run: 'echo "$WL_VAR_V"' } ]
    outputs: { r: '${{ vars.v }}' }
"#,
    );
    let harmful =
        |text: &str| text.chars().any(|c| matches!(c, '\u{80}'..='\u{9f}' | '\u{202e}' | '\u{2066}'));
    let (code, seen) = Terminal::start(&project, &["run", "book.yaml"]).end();
    assert_eq!(code, Some(0), "{seen}");
    assert!(!harmful(&seen) && seen.contains("evil"), "{seen:?}");
    let run = project.newest();
    for words in [&["show", &run][..], &["logs", &run], &["show", &run, "--json"], &["events"]] {
        let (code, seen) = Terminal::start(&project, words).end();
        assert_eq!(code, Some(0), "{words:?}: {seen}");
        assert!(!harmful(&seen) && seen.contains("evil"), "{words:?}: {seen:?}");
    }
    // For programs it is as it is.
    let shown = project.show(&run);
    assert_eq!(shown["vars"]["v"], evil, "{shown}");
}

#[test]
fn what_is_hard_to_take_back_asks() {
    let project = Project::with("\nname: old\npipelines:\n  p: { steps: [ { run: echo hello } ] }\n");
    project.run(&[], 0);
    let words = ["store", "compact", "--retention", "1ms"];
    project.windlass(&words).code(2).warns("nothing was dropped").warns("--yes");
    let mut terminal = Terminal::start(&project, &words);
    terminal.until("Drop 1 run for good");
    terminal.types("n\n");
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(2), "{seen}");
    assert!(seen.contains("nothing was dropped") && !seen.contains("--yes"), "{seen}");
    project.newest();
    let mut terminal = Terminal::start(&project, &words);
    terminal.until("Drop 1 run for good");
    terminal.types("y\n");
    assert_eq!(terminal.end().0, Some(0));
    assert_eq!(project.windlass(&["runs", "--json"]).code(0).json()["items"].as_array().unwrap().len(), 0);
    let made = project.windlass(&["token", "create", "--scopes", "read", "--json"]).code(0).json();
    project
        .windlass(&["token", "revoke", text(&made, "id")])
        .code(2)
        .warns("nothing was revoked")
        .warns("--yes");
    project.windlass(&["token", "revoke", text(&made, "id"), "--yes"]).code(0);
}
