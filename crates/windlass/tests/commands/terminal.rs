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
use std::thread::JoinHandle;

/// A command at a terminal, of 24 lines and 40 columns where nothing else is said.
struct Terminal {
    child: Child,
    keys: File,
    seen: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Terminal {
    fn start(project: &Project, words: &[&str]) -> Terminal {
        Terminal::sized(project, words, (24, 40))
    }

    fn sized(project: &Project, words: &[&str], size: (u16, u16)) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        tcsetwinsize(&ours, winsize(size)).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let theirs = File::options().read(true).write(true).open(OsStr::from_bytes(name.as_bytes())).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let child = project.command(words).stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let (keys, seen) = (File::from(ours), Arc::new(Mutex::new(String::new())));
        let (mut from, to) = (keys.try_clone().unwrap(), seen.clone());
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // A terminal whose other end is closed answers with an error.
            while let Ok(len) = from.read(&mut bytes)
                && len > 0
            {
                to.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        Terminal { child, keys, seen, reader }
    }

    fn resize(&self, size: (u16, u16)) {
        tcsetwinsize(&self.keys, winsize(size)).unwrap();
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
        // What it wrote last is on its way still; then the other end of the terminal is closed.
        until("the terminal to be closed", || self.reader.is_finished().then_some(()));
        let seen = self.seen();
        (status.code(), seen)
    }
}

fn winsize((ws_row, ws_col): (u16, u16)) -> Winsize {
    Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }
}

/// What stands on a screen of so many lines and columns, and above it, when all of this was written to it. Lines that do not
/// fit go on in the next row.
fn screen(seen: &str, (rows, columns): (usize, usize)) -> Vec<String> {
    let mut lines = vec![String::new()];
    let (mut at, mut column) = (0, 0);
    let mut chars = seen.chars().peekable();
    let down = |lines: &mut Vec<String>, at: &mut usize| {
        *at += 1;
        if *at == lines.len() {
            lines.push(String::new());
        }
    };
    while let Some(c) = chars.next() {
        match c {
            '\r' => column = 0,
            '\n' => down(&mut lines, &mut at),
            '\u{1b}' => {
                assert_eq!(chars.next(), Some('['), "{seen:?}");
                let mut count = String::new();
                while let Some(digit) = chars.next_if(|c| !c.is_ascii_alphabetic()) {
                    count.push(digit);
                }
                match chars.next() {
                    // What has left the screen cannot be reached.
                    Some('A') => {
                        let top = lines.len().saturating_sub(rows);
                        at = at.saturating_sub(count.parse().unwrap()).max(top);
                    }
                    Some('J') => {
                        assert_eq!(column, 0, "a line is cut in two");
                        lines.truncate(at);
                        lines.push(String::new());
                    }
                    Some('m') => {}
                    other => panic!("{other:?} in {seen:?}"),
                }
            }
            c => {
                if column == columns {
                    down(&mut lines, &mut at);
                    column = 0;
                }
                if column == 0 {
                    lines[at].clear();
                }
                lines[at].push(c);
                column += 1;
            }
        }
    }
    lines
}

/// The rows that are exactly this, but for what stands around it.
fn count(rows: &[String], row: &str) -> usize {
    rows.iter().filter(|line| line.trim() == row).count()
}

const SMALL: (u16, u16) = (12, 60);

#[test]
fn what_steps_write_scrolls_by_and_stays() {
    let project = Project::with(
        "
name: greets
pipelines:
  p:
    steps:
      - { id: one, run: 'for n in $(seq 40); do echo line-$n; done; echo > began; until [ -e go ]; do sleep 0.02; done' }
      - { id: two, run: \"printf '10%%\\\\r99%%\\\\r100%%\\\\n\\\\033[31mred\\\\033[0m\\\\n'; echo Hello, world.\" }
",
    );
    let terminal = Terminal::sized(&project, &["run", "book.yaml", "--no-color"], SMALL);
    project.await_file("began");
    // While the step runs, all that it wrote is above it.
    terminal.until("line-40");
    let now = screen(&terminal.seen(), (12, 60));
    assert!((1..=40).all(|n| count(&now, &format!("one | line-{n}")) == 1), "{now:#?}");
    project.write("go", "");
    let (code, seen) = terminal.end();
    let rows = screen(&seen, (12, 60));
    assert_eq!(code, Some(0), "{rows:#?}");
    let written = rows.iter().filter(|row| row.contains("one | line-")).count();
    assert_eq!(written, 40, "each line once: {rows:#?}");
    for line in ["two | 100%", "two | red", "two | Hello, world."] {
        assert_eq!(count(&rows, line), 1, "{line}: {rows:#?}");
    }
    assert!(rows.iter().any(|row| row.contains("✔ one")) && rows.iter().any(|row| row.contains("✔ two")));
}

#[test]
fn no_step_is_lost_where_there_are_more_than_rows_and_failures_are_repeated() {
    let project = Project::with(
        "
name: many
pipelines:
  p:
    steps:
      - id: shards
        foreach: '${{ [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29] }}'
        max_parallel: 30
        fail_fast: false
        env: { SHARD: '${{ item }}' }
        run: |
          if [ $SHARD = 2 ]; then for n in $(seq 12); do echo reason-$n; done; exit 9; fi
",
    );
    let (code, seen) = Terminal::sized(&project, &["run", "book.yaml", "--no-color"], SMALL).end();
    let rows = screen(&seen, (12, 60));
    assert_eq!(code, Some(1), "{rows:#?}");
    for n in 0..30 {
        let mark = if n == 2 { '✘' } else { '✔' };
        let row = format!("{mark} shards[{n}]");
        assert!(rows.iter().any(|line| line.trim_start().starts_with(&row)), "{row}: {rows:#?}");
    }
    // The last of it all: which one, what it ran, how it ended, and what it wrote last.
    let tree = rows.iter().rposition(|row| row.contains("✔ shards[29]")).unwrap();
    let end = rows[tree + 1..].join("\n");
    let failed = "✘ shards[2]";
    assert!(end.trim_start().starts_with(failed) && end.contains("exit code 9"), "{end}");
    assert!(end.contains("$ if [ $SHARD = 2 ]"), "{end}");
    assert!(
        end.contains("    reason-12") && end.contains("    reason-3\n") && !end.contains("    reason-2\n"),
        "{end}"
    );
    // Elsewhere than on a terminal, too.
    let plain = project.windlass(&["run", "book.yaml"]).code(1).out;
    let end = &plain[plain.rfind(failed).unwrap()..];
    assert!(end.contains("$ if [ $SHARD = 2 ]") && end.contains("    reason-12"), "{plain}");
}

#[test]
fn an_interrupt_and_a_resize_lose_nothing() {
    let book = "
name: stops
pipelines:
  p:
    steps:
      - parallel: [ { id: a, run: 'echo a-long-line-that-has-more-columns-than-a-small-terminal-has; echo kept-1' }, { id: b, run: 'echo kept-2' } ]
      - { id: c, run: 'echo kept-3; echo > began; until [ -e go ]; do sleep 0.02; done; echo kept-4; until [ -e on ]; do sleep 0.02; done' }
";
    let project = Project::with(book);
    let terminal = Terminal::sized(&project, &["run", "book.yaml", "--no-color"], (30, 100));
    project.await_file("began");
    terminal.until("kept-3");
    terminal.resize((8, 24));
    project.write("go", "");
    terminal.until("kept-4");
    kill_process(Pid::from_child(&terminal.child), Signal::INT).unwrap();
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(130), "{seen}");
    for size in [(30, 100), (8, 24)] {
        let text = screen(&seen, size).concat();
        for line in [
            "a | a-long-line-that-has-more-columns-than-a-small-terminal-has",
            "kept-1",
            "kept-2",
            "kept-3",
            "kept-4",
        ] {
            assert!(text.contains(line), "{line} at {size:?}: {text}");
        }
        for step in ["✔ a", "✔ b", "▶ c", "windlass resume"] {
            assert!(text.contains(step), "{step} at {size:?}: {text}");
        }
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
fn a_row_that_moves_never_takes_more_columns_than_there_are() {
    let id = "wide-".repeat(20);
    let project = Project::with(&format!(
        "
name: wide
pipelines:
  p: {{ steps: [ {{ id: {id}, run: 'echo > began; until [ -e go ]; do sleep 0.02; done' }} ] }}
"
    ));
    let terminal = Terminal::start(&project, &["run", "book.yaml", "--no-color"]);
    project.await_file("began");
    terminal.until("⠙ wide-");
    let rows = screen(&terminal.seen(), (24, 1_000));
    let widest = rows.iter().filter(|row| row.contains("wide-")).map(|row| row.chars().count()).max();
    assert!(widest.is_some_and(|wide| wide > 30 && wide < 40), "{widest:?}: {}", terminal.seen());
    project.write("go", "");
    let (code, seen) = terminal.end();
    assert_eq!(code, Some(0), "{seen}");
    // What stays is whole.
    assert!(seen.contains(&id), "{seen}");
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
