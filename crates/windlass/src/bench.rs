//! `windlass bench`: what this machine and this disk can do, beside the limit of the disk itself.
//!
//! Every figure comes with what the raw log and the disk did in the same run, because machines are shared and noisy. The
//! executor is in process and does nothing; everything else is as in a real run: durable, chained, policy on.

mod http;
mod jobs;
mod kill;
mod latency;
mod locks;
mod net;
mod queue;
mod recovery;
mod steps;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass_core::code::Code;
use windlass_executor::home::Home;
use windlass_server::client::Failure;

/// What to measure.
#[derive(Args, Debug)]
#[command(
    after_help = "examples:\n  windlass bench steps --runs 100\n  windlass bench queue --items 1000000\n  windlass bench latency\n  windlass bench locks --shared\n  windlass bench recovery --records 1000000"
)]
pub struct Wish {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Subcommand, Debug)]
enum Workload {
    /// Runs of ten steps that do nothing
    #[command(after_help = "examples:\n  windlass bench steps --runs 100")]
    Steps {
        /// Concurrent runs
        #[arg(long, default_value_t = 100)]
        runs: usize,
        /// Duration
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Directory to write to [default: one beside the current data, removed afterwards]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// A nearly empty queue and a full one: pushing, taking, and a start
    #[command(after_help = "examples:\n  windlass bench queue --items 1000000")]
    Queue {
        /// Number of items in the full one
        #[arg(long, default_value_t = 1_000_000)]
        items: u64,
        /// Directory to write to [default: one that is removed afterwards]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Jobs of one step, enqueued, leased and completed in batches over HTTP
    #[command(after_help = "examples:\n  windlass bench jobs --seconds 10")]
    Jobs {
        /// Jobs per batch
        #[arg(long, default_value_t = 200)]
        batch: usize,
        /// Number of executors
        #[arg(long, default_value_t = 2)]
        executors: usize,
        /// Duration
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Directory to write to [default: one that is removed afterwards]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Latency from enqueuing a job to its lease by a waiting executor, over HTTP
    #[command(after_help = "examples:\n  windlass bench latency")]
    Latency {
        /// Duration
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Directory to write to [default: one that is removed afterwards]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Locks that clients acquire and release over HTTP
    #[command(after_help = "examples:\n  windlass bench locks --shared")]
    Locks {
        /// Number of clients
        #[arg(long, default_value_t = 16)]
        clients: usize,
        /// All clients use the same lock
        #[arg(long)]
        shared: bool,
        /// Duration
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Directory to write to [default: one that is removed afterwards]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Plain requests over persistent connections
    #[command(after_help = "examples:\n  windlass bench http --clients 8")]
    Http {
        /// Number of clients
        #[arg(long, default_value_t = 16)]
        clients: usize,
        /// Duration
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        /// Directory to write to [default: one that is removed afterwards]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Start time with and without a snapshot, and the cost of a kill
    #[command(after_help = "examples:\n  windlass bench recovery --records 1000000")]
    Recovery {
        /// Number of records
        #[arg(long, default_value_t = 1_000_000)]
        records: u64,
        /// Directory to write to [default: one that is removed afterwards]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// The process that is killed
    #[command(name = "__victim", hide = true)]
    Victim {
        /// Where it works
        #[arg(long)]
        dir: PathBuf,
    },
}

/// A directory that is removed afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: Option<&Path>) -> Result<Scratch, Failure> {
        let base = dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let path = base.join(format!("windlass-bench-{:032x}", windlass_executor::clock::fresh()));
        Home::make(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures and prints.
///
/// # Errors
/// The directory cannot be used, or the engine fails.
pub fn main(wish: &Wish, as_json: bool) -> Result<u8, Failure> {
    let (workload, dir) = match &wish.workload {
        Workload::Steps { dir, .. } => ("steps", dir),
        Workload::Queue { dir, .. } => ("queue", dir),
        Workload::Jobs { dir, .. } => ("jobs", dir),
        Workload::Latency { dir, .. } => ("latency", dir),
        Workload::Locks { dir, .. } => ("locks", dir),
        Workload::Http { dir, .. } => ("http", dir),
        Workload::Recovery { dir, .. } => ("recovery", dir),
        Workload::Victim { dir } => return kill::victim(dir).map(|_| 0),
    };
    let scratch = Scratch::new(dir.as_deref())?;
    let limit = limit(&scratch.0)?;
    let mut figures = match &wish.workload {
        Workload::Steps { runs, seconds, .. } => {
            steps::measure(&scratch.0, *runs, Duration::from_secs(*seconds))?
        }
        Workload::Queue { items, .. } => queue::measure(&scratch.0, *items)?,
        Workload::Recovery { records, .. } => {
            let mut figures = recovery::measure(&scratch.0, *records)?;
            figures["after_kill"] = kill::measure(&scratch.0)?;
            figures
        }
        Workload::Victim { .. } => Value::Null,
        Workload::Jobs { batch, executors, seconds, .. } => {
            apart(|| jobs::measure(&scratch.0, *batch, *executors, Duration::from_secs(*seconds)))?
        }
        Workload::Latency { seconds, .. } => {
            apart(|| latency::measure(&scratch.0, Duration::from_secs(*seconds)))?
        }
        Workload::Locks { clients, shared, seconds, .. } => {
            apart(|| locks::measure(&scratch.0, *clients, *shared, Duration::from_secs(*seconds)))?
        }
        Workload::Http { clients, seconds, .. } => {
            apart(|| http::measure(&scratch.0, *clients, Duration::from_secs(*seconds)))?
        }
    };
    let raw = limit["raw_log_events_per_s"].as_f64().unwrap_or(0.0);
    let events = figures["records_per_s"].as_f64().unwrap_or(0.0);
    figures["workload"] = json!(workload);
    figures["store"] = json!("embedded");
    figures["ratio"] = if raw > 0.0 { json!((events / raw * 1000.0).round() / 1000.0) } else { Value::Null };
    figures["limit"] = limit;
    figures["rss_mib"] = json!(rss_mib());
    // A reader that closed the pipe has seen enough.
    let mut out = std::io::stdout();
    if as_json {
        let _ = writeln!(out, "{figures}");
    } else {
        let _ = writeln!(out, "{}", serde_json::to_string_pretty(&figures).unwrap_or_default());
    }
    Ok(0)
}

/// Measures on a thread of its own: one runtime cannot be started inside another.
fn apart(measure: impl FnOnce() -> Result<Value, Failure> + Send) -> Result<Value, Failure> {
    std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or_else(|_| Err(broken("the measurement panicked")))
}

/// What the disk and the raw log do, here and now.
fn limit(dir: &Path) -> Result<Value, Failure> {
    let figures = windlass_store::log::bench(&dir.join("raw"), 1_000, 2.0)
        .map_err(|error| Failure::new(error.code(), error.to_string()))?;
    Ok(json!({
        "disk_syncs_per_s": figures.syncs_per_s.round(),
        "raw_log_events_per_s": figures.facts_per_s.round(),
    }))
}

/// How much memory the process has.
fn rss_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().split(' ').next().and_then(|number| number.parse::<u64>().ok()));
    kib.unwrap_or(0) / 1024
}

/// A failure of the engine.
fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Internal, error.to_string())
}
