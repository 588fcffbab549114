//! A project in a temporary directory, and the binary at work in it.
//!
//! Nothing here knows the crates: what these tests see is what a user sees. Every wait has a bound, so that a hang is a
//! failure that says what was waited for.

// Each test binary uses a part of this.
#![allow(dead_code)]
// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything may take before it counts as hanging. Nothing is measured with it.
pub(crate) const HANG: Duration = Duration::from_secs(90);
/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// Looks at a condition until it holds; fails when it does not within the bound.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + HANG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long for: {what}");
        std::thread::sleep(LOOK);
    }
}

/// A project: a directory with runbooks and, in `data`, the data directory.
pub(crate) struct Project {
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

impl Project {
    pub(crate) fn new() -> Project {
        Project { dir: tempfile::tempdir().unwrap(), env: Vec::new() }
    }

    /// A project with one runbook, `book.yaml`.
    pub(crate) fn with(runbook: &str) -> Project {
        let project = Project::new();
        project.write("book.yaml", runbook);
        project
    }

    /// With a variable in the environment of every command.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Project {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// A script that steps can call as `./name`.
    pub(crate) fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.write(name, format!("#!/usr/bin/env bash\nset -eu\n{text}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A file's text; nothing where it is not there.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Takes a file away, where it is there.
    pub(crate) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
    }

    /// Waits until a step has made a file that is not empty, and returns its text.
    pub(crate) fn await_file(&self, name: &str) -> String {
        until(name, || Some(self.read(name)).filter(|text| text.ends_with('\n')))
    }

    /// Waits until a step has made a file.
    pub(crate) fn await_exists(&self, name: &str) {
        until(name, || self.has(name).then_some(()));
    }

    /// A command with the project's data directory and nothing of this process's surroundings but the search path.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(words).current_dir(self.root()).env_clear().stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.root()).env("LANG", "C.UTF-8").env("USER", "tester");
        command.env("WINDLASS_DATA", self.path("data"));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to its end.
    pub(crate) fn windlass(&self, words: &[&str]) -> Done {
        self.start(words).wait()
    }

    /// Starts a command.
    pub(crate) fn start(&self, words: &[&str]) -> Process {
        Process::spawn(self.command(words), words)
    }

    /// Runs `book.yaml` with these words, as JSON; returns the run as it was at the end.
    pub(crate) fn run(&self, words: &[&str], code: i32) -> Value {
        let words = [&["run", "book.yaml", "--json"], words].concat();
        self.windlass(&words).code(code).last()
    }

    /// A run as it is now.
    pub(crate) fn show(&self, run: &str) -> Value {
        self.windlass(&["show", run, "--json"]).code(0).json()
    }

    /// The newest run.
    pub(crate) fn newest(&self) -> String {
        let page = self.windlass(&["runs", "--json", "--limit", "1"]).code(0).json();
        page["items"][0]["id"].as_str().expect("a run").to_owned()
    }

    /// All records of a type, as they stand in the log.
    pub(crate) fn events(&self, kind: &str) -> Vec<Value> {
        self.windlass(&["events", "--type", kind]).code(0).lines()
    }
}

/// A field of a document, as text.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}"))
}

/// A step of a run.
pub(crate) fn step<'a>(run: &'a Value, id: &str) -> &'a Value {
    let steps = run["steps"].as_array().unwrap_or_else(|| panic!("no steps in {run}"));
    steps.iter().find(|step| step["id"] == id).unwrap_or_else(|| panic!("no step `{id}` in {run}"))
}

/// The status of a step of a run.
pub(crate) fn status_of<'a>(run: &'a Value, id: &str) -> &'a str {
    text(step(run, id), "status")
}

/// Whether a process is there and no zombie.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) words: Vec<String>,
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// It ended with this code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Done {
        assert_eq!(self.status.code(), Some(code), "{}", self.story());
        self
    }

    fn story(&self) -> String {
        let mut story = format!("windlass {}: {}\n", self.words.join(" "), self.status);
        let _ = write!(story, "-- stdout\n{}\n-- stderr\n{}", self.out, self.err);
        story
    }

    /// Stdout is one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.story()))
    }

    /// Stdout is one JSON object a line.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}: {}", self.story()))
        };
        self.out.lines().map(parse).collect()
    }

    /// The last line of a stream: the run as it was at the end.
    #[track_caller]
    pub(crate) fn last(&self) -> Value {
        self.lines().pop().unwrap_or_else(|| panic!("no line: {}", self.story()))
    }

    /// Stdout has this.
    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Done {
        assert!(self.out.contains(part), "`{part}` is not in stdout of {}", self.story());
        self
    }

    /// Stderr does not have this.
    #[track_caller]
    pub(crate) fn silent(self, part: &str) -> Done {
        assert!(!self.err.contains(part), "`{part}` is in stderr of {}", self.story());
        self
    }

    /// Stderr has this.
    #[track_caller]
    pub(crate) fn warns(self, part: &str) -> Done {
        assert!(self.err.contains(part), "`{part}` is not in stderr of {}", self.story());
        self
    }
}

/// A command that runs. One that is dropped is killed.
pub(crate) struct Process {
    words: Vec<String>,
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

fn collect(from: impl Read + Send + 'static) -> (Arc<Mutex<String>>, JoinHandle<()>) {
    let text = Arc::new(Mutex::new(String::new()));
    let to = text.clone();
    let read = move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            to.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    };
    (text, std::thread::spawn(read))
}

impl Process {
    pub(crate) fn spawn(mut command: Command, words: &[&str]) -> Process {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (out, first) = collect(child.stdout.take().unwrap());
        let (err, second) = collect(child.stderr.take().unwrap());
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Process { words, child, out, err, readers: vec![first, second] }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written so far.
    pub(crate) fn out(&self) -> String {
        self.out.lock().unwrap().clone()
    }

    /// What it has written to stderr so far.
    pub(crate) fn err(&self) -> String {
        self.err.lock().unwrap().clone()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it has written a line with this, and returns the line.
    pub(crate) fn await_line(&mut self, part: &str) -> String {
        let words = self.words.join(" ");
        until(&format!("`{part}` from windlass {words}"), || {
            let ended = self.has_ended();
            let out = self.out();
            let whole = out.rfind('\n').map_or("", |end| &out[..=end]);
            let found = whole.lines().find(|line| line.contains(part)).map(str::to_owned);
            let err = || self.err.lock().unwrap().clone();
            assert!(found.is_some() || !ended, "windlass {words} ended without `{part}`:\n{out}\n{}", err());
            found
        })
    }

    /// Waits until the id of its run is known: the run is acknowledged.
    pub(crate) fn await_run(&mut self) -> String {
        let line = self.await_line("\"pipeline:created\"");
        text(&serde_json::from_str(&line).unwrap(), "id").to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // A process that has ended in the meantime needs no signal; it is still ours, as nobody has waited for it.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Kills it, and returns what it has written.
    pub(crate) fn kill(self) -> Done {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Done {
        let end = Instant::now() + HANG;
        while !self.has_ended() {
            assert!(
                Instant::now() < end,
                "windlass {} hangs:\n{}\n{}",
                self.words.join(" "),
                self.out(),
                self.err.lock().unwrap()
            );
            std::thread::sleep(LOOK);
        }
        let status = self.child.wait().unwrap();
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let (out, err) = (self.out(), self.err.lock().unwrap().clone());
        Done { words: std::mem::take(&mut self.words), status, out, err }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
