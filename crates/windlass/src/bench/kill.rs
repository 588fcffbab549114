//! What a kill costs: runs in flight at SIGKILL, taken up again by another process.
//!
//! Another process carries out steps and writes each that it begins into a ledger, outside the log. It is killed in the
//! middle of it. The store is then opened here, the runs are brought to their end with the same ledger, and the two are
//! compared: which steps were carried out twice, and were all of those under way when the process was killed?

use super::{broken, steps};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_engine::fake;
use windlass_server::client::Failure;
use windlass_store::disk::Files;
use windlass_store::store::{self, Embedded};

/// How many runs are under way.
const RUNS: usize = 1_000;
/// How many steps are carried out before the kill.
const STEPS_BEFORE: u64 = 50_000;
/// A line of the ledger is no shorter.
const LINE_LEN_MIN: u64 = 30;
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The process that is killed: carries out steps until it is.
pub(super) fn victim(dir: &Path) -> Result<Value, Failure> {
    steps::drive(&dir.join("store"), RUNS, Some(&dir.join("ledger")), |_, _| false).map(|_| Value::Null)
}

pub(super) fn measure(dir: &Path) -> Result<Value, Failure> {
    let dir = dir.join("killed");
    windlass_executor::home::Home::make(&dir)?;
    let ledger = dir.join("ledger");
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "__victim", "--dir"])
        .arg(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let until = Instant::now() + PATIENCE;
    let long_enough = || fs::metadata(&ledger).is_ok_and(|file| file.len() > STEPS_BEFORE * LINE_LEN_MIN);
    while !long_enough() && Instant::now() < until && child.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    let (store, _) =
        Embedded::open(Arc::new(Files), &dir.join("store"), &store::Options::default()).map_err(broken)?;
    let under_way: HashSet<String> = fake::leases(store.state(), |_| true)
        .iter()
        .map(|lease| format!("{} {}", lease.run, lease.step))
        .collect();
    let open = store.state().streams().filter(|(_, stream)| is_open(&stream.body)).count();
    drop(store);
    let began = Instant::now();
    let left = steps::finish(&dir.join("store"), &ledger, PATIENCE)?;
    let took = began.elapsed();
    let text = fs::read_to_string(&ledger)?;
    let mut times: HashMap<&str, u32> = HashMap::new();
    for line in text.lines() {
        *times.entry(line).or_default() += 1;
    }
    let repeated: Vec<&str> = times.iter().filter(|(_, times)| **times > 1).map(|(line, _)| *line).collect();
    let wrongly = repeated.iter().filter(|line| !under_way.contains(**line)).count();
    if left > 0 || wrongly > 0 {
        let text =
            format!("{left} runs did not end, and {wrongly} steps were repeated that were not under way");
        return Err(broken(text));
    }
    Ok(json!({
        "steps_executed": text.lines().count(),
        "runs_in_flight": open,
        "attempts_under_way": under_way.len(),
        "steps_repeated": repeated.len(),
        "repeated_though_done": wrongly,
        "runs_left": left,
        "all_ended_s": (took.as_secs_f64() * 1e3).round() / 1e3,
    }))
}

/// Whether it is a run that has not ended.
pub(super) fn is_open(body: &windlass_core::turn::state::Body) -> bool {
    matches!(body, windlass_core::turn::state::Body::Run(run) if !run.is_terminal())
}
