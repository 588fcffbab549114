//! What is promised across `kill -9`: the process is killed at random moments, again and again, and a ledger outside of
//! it says what really happened.
//!
//! Every step writes to the ledger when it starts and when it ends. The log says what was recorded. In the end both are
//! put side by side:
//!
//! - a run whose id was printed is there and has ended as its pipeline must;
//! - a step that was recorded as completed never started again;
//! - no two copies of a step ever ran side by side, nor their children;
//! - a key made one run, however often it was asked for and whenever the process died;
//! - the log is sound.
//!
//! `WINDLASS_SOAK_KILLS` and `WINDLASS_SOAK_SEED` make it longer and different; `scripts/soak` sets them.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};
use support::{Process, Project, text};

const KILLS: u64 = 12;
const SEED: u64 = 1;
/// The latest moment of a kill that waits for no sign.
const MOMENT_MS_MAX: u64 = 900;
/// How many lines a process may print before a kill that waits for one.
const LINES_MAX: u64 = 60;

const RUNBOOK: &str = "
name: crash
pipelines:
  work:
    outputs: { total: '${{ steps.last.output.total }}' }
    steps:
      - { id: first, run: ./step }
      - id: fan
        parallel:
          - { id: left, run: ./step }
          - { id: right, run: ./step }
          - id: deep
            steps:
              - { id: upper, run: ./step }
              - { id: lower, run: ./step }
      - { id: each, foreach: [a, b, c, d], max_parallel: 2, run: ./step }
      - { id: flaky, run: ./flaky, retry: { max_attempts: 3, backoff: 20ms } }
      - { id: inner, call: inner }
      - { id: skipped, when: 'false', run: ./step }
      - { id: last, run: ./last, outputs: { total: number } }
    finally:
      - { id: report, run: ./step }
  inner:
    steps:
      - { id: one, run: ./step }
      - { id: two, run: ./step }
  saga:
    steps:
      - { id: book, run: ./step, compensate: { run: ./step } }
      - { id: pay, run: ./step, compensate: { run: ./step } }
      - { id: ship, run: './step && exit 3' }
    finally:
      - { id: report, run: ./step }
";

/// A step: a lock that its whole tree holds for as long as any of it lives, and two lines in the ledger, each one write.
/// The second child leaves session and process group, as daemons do.
const STEP: &str = r#"
place="$WL_RUN_ID $WL_STEP_ID"
exec 9>"locks/${place//[^a-zA-Z0-9_]/-}"
flock --nonblock 9 || { echo "$place $WL_EPOCH overlap" >>ledger; exit 9; }
echo "$place $WL_EPOCH start" >>ledger
setsid sleep 0.02 &
sleep 0.03
wait
echo "$place $WL_EPOCH end" >>ledger
"#;

/// A step that fails the first time.
const FLAKY: &str = r#"
./step
mkdir "tried-$WL_RUN_ID" 2>/dev/null && exit 1
exit 0
"#;

/// A step that hands a value on.
const LAST: &str = r#"
./step
echo '{"total": 7}' >"$WL_OUTPUT"
"#;

/// A small generator; the same seed gives the same choices.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

fn status_wanted(pipeline: &str) -> &'static str {
    if pipeline == "saga" { "failed" } else { "completed" }
}

/// What was promised so far.
#[derive(Default)]
struct Promises {
    /// Runs whose id was printed.
    runs: BTreeSet<String>,
    /// The last key, while nobody has said that its run was made.
    open_key: Option<(String, &'static str)>,
    keys: u64,
}

impl Promises {
    /// What a process printed is what it acknowledged. The last line may be torn.
    fn note(&mut self, out: &str) {
        let whole = out.rfind('\n').map_or("", |end| &out[..end]);
        for line in whole.lines() {
            let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if event["type"] == "pipeline:created" && event["parent"].is_null() {
                self.runs.insert(text(&event, "id").to_owned());
                self.open_key = None;
            }
        }
    }

    /// The next command: a new run, one that was asked for before, or whatever is left.
    fn next(&mut self, chance: &mut Chance) -> Vec<String> {
        if self.open_key.is_none() && chance.below(3) == 0 {
            return ["resume", "--all", "--json"].map(str::to_owned).to_vec();
        }
        let (key, pipeline) = self.open_key.clone().unwrap_or_else(|| {
            self.keys += 1;
            (format!("key-{}", self.keys), if chance.below(3) == 0 { "saga" } else { "work" })
        });
        self.open_key = Some((key.clone(), pipeline));
        ["run", "book.yaml", pipeline, "--json", "--idempotency-key", &key].map(str::to_owned).to_vec()
    }
}

/// Lets a process work for a while and kills it, its keeper sometimes along with it.
fn strike(mut process: Process, chance: &mut Chance) -> String {
    let moment = Duration::from_millis(chance.below(MOMENT_MS_MAX));
    let (by_line, lines) = (chance.below(2) == 0, chance.below(LINES_MAX) as usize);
    let end = Instant::now() + if by_line { support::HANG } else { moment };
    // The moment of the kill is what is random here; nothing is waited for but it.
    while Instant::now() < end && !process.has_ended() && !(by_line && process.out().lines().count() > lines)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    if chance.below(4) == 0 {
        kill_keepers(process.id());
    }
    process.kill().out
}

/// Kills the keepers of a process: nobody is left then to end the steps under way, but who comes next.
fn kill_keepers(parent: u32) {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    let others = fs::read_dir(format!("/proc/{parent}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let all: Vec<String> = std::iter::once(listed).chain(others).collect();
    for pid in all.iter().flat_map(|list| list.split_whitespace()) {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if let (true, Ok(pid)) = (line.contains("__keeper"), pid.parse())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

#[test]
fn nothing_is_lost_doubled_or_run_side_by_side_across_kills() {
    let (kills, seed) = (number("WINDLASS_SOAK_KILLS", KILLS), number("WINDLASS_SOAK_SEED", SEED));
    let mut chance = Chance(seed);
    let project = Project::with(RUNBOOK);
    project.script("step", STEP);
    project.script("flaky", FLAKY);
    project.script("last", LAST);
    fs::create_dir(project.path("locks")).unwrap();
    let mut promises = Promises::default();
    for _ in 0..kills {
        let words = promises.next(&mut chance);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        promises.note(&strike(project.start(&words), &mut chance));
    }
    let story = format!("seed {seed}, {kills} kills, {} runs promised", promises.runs.len());
    eprintln!("{story}");
    // Whatever is left goes on to its end, in one process that nobody kills.
    let rest = project.windlass(&["resume", "--all", "--json"]);
    assert!(matches!(rest.status.code(), Some(0 | 1)), "{story}: {rest:?}");
    promises.note(&rest.out);
    let runs = all_runs(&project);
    check_runs(&runs, &promises, &story);
    let ledger = Ledger::read(&project.read("ledger"), &story);
    check_records(&project, &runs, &ledger, &story);
    project.windlass(&["store", "verify", "--json"]).code(0);
}

fn all_runs(project: &Project) -> BTreeMap<String, Value> {
    let mut runs = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let mut words = vec!["runs", "--json", "--limit", "100"];
        if !cursor.is_empty() {
            words.extend(["--cursor", &cursor]);
        }
        let page = project.windlass(&words).code(0).json();
        for run in page["items"].as_array().unwrap() {
            runs.insert(text(run, "id").to_owned(), run.clone());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return runs,
        }
    }
}

/// Every run has ended as its pipeline must, those that were promised are there, and no key made two.
fn check_runs(runs: &BTreeMap<String, Value>, promises: &Promises, story: &str) {
    for id in &promises.runs {
        assert!(runs.contains_key(id), "{story}: {id} was promised and is lost");
    }
    let mut keys = BTreeSet::new();
    for run in runs.values() {
        assert_eq!(text(run, "status"), status_wanted(text(run, "pipeline")), "{story}: {run}");
        if let Some(key) = run["trigger"]["key"].as_str() {
            assert!(keys.insert(key.to_owned()), "{story}: two runs for {key}");
        }
    }
    assert!(keys.len() as u64 <= promises.keys, "{story}: keys out of nowhere: {keys:?}");
}

/// What the steps wrote: for each run and step, its epochs in the order in which they started, and those that ended.
struct Ledger {
    started: BTreeMap<(String, String), Vec<u64>>,
    ended: BTreeSet<(String, String, u64)>,
}

impl Ledger {
    fn read(text: &str, story: &str) -> Ledger {
        let mut ledger = Ledger { started: BTreeMap::new(), ended: BTreeSet::new() };
        for line in text.lines() {
            let [run, step, epoch, what] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{story}: a torn line in the ledger: {line}")
            };
            let (place, epoch) = ((run.to_owned(), step.to_owned()), epoch.parse::<u64>().unwrap());
            let started = ledger.started.entry(place.clone()).or_default();
            match what {
                "start" => {
                    let before = started.last().copied().unwrap_or(0);
                    assert!(before < epoch, "{story}: epoch {epoch} came after {before}: {line}");
                    started.push(epoch);
                }
                "end" => {
                    assert_eq!(started.last(), Some(&epoch), "{story}: an older copy still ran: {line}");
                    ledger.ended.insert((place.0, place.1, epoch));
                }
                other => panic!("{story}: {other}: {line}"),
            }
        }
        ledger
    }

    fn last_of(&self, run: &str, step: &str) -> Option<u64> {
        self.started.get(&(run.to_owned(), step.to_owned()))?.last().copied()
    }
}

/// What is recorded as completed was carried out, once, and never again; and each run has the steps it must have.
fn check_records(project: &Project, runs: &BTreeMap<String, Value>, ledger: &Ledger, story: &str) {
    let mut completed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let shells: BTreeSet<(String, String)> = ledger.started.keys().cloned().collect();
    for event in project.events("step:completed") {
        let (run, step) = (text(&event, "pipeline_id").to_owned(), text(&event, "step").to_owned());
        let epoch = event["epoch"].as_u64().unwrap();
        assert!(
            completed.entry(run.clone()).or_default().insert(step.clone()),
            "{story}: completed twice: {event}"
        );
        if !shells.contains(&(run.clone(), step.clone())) {
            continue;
        }
        assert_eq!(ledger.last_of(&run, &step), Some(epoch), "{story}: ran again after it was done: {event}");
        assert!(ledger.ended.contains(&(run, step, epoch)), "{story}: it never reached its end: {event}");
    }
    for (id, run) in runs {
        let wanted: &[&str] = match text(run, "pipeline") {
            "work" => &["first", "left", "right", "upper", "lower", "flaky", "last", "report"],
            "inner" => &["one", "two"],
            "saga" => &["book", "pay", "undo-book", "undo-pay", "report"],
            other => panic!("{story}: a pipeline out of nowhere: {other}"),
        };
        for step in wanted {
            assert!(
                completed.get(id).is_some_and(|steps| steps.contains(*step)),
                "{story}: {id} lacks {step}"
            );
            assert!(ledger.last_of(id, step).is_some(), "{story}: {id} {step} was never carried out");
        }
    }
}
