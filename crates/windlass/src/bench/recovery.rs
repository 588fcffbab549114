//! How long a start takes: the log alone, and with a snapshot.

use super::{broken, steps};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::time::Millis;
use windlass_engine::port::Store as _;
use windlass_server::client::Failure;
use windlass_store::disk::Files;
use windlass_store::store::{self, Embedded};

/// How many runs were under way when the log was cut off.
const RUNS: usize = 1_000;
/// A time at which everything that ended has lingered long enough.
const FAR: Millis = Millis(u64::MAX / 2);

pub(super) fn measure(dir: &Path, records: u64) -> Result<Value, Failure> {
    let dir = dir.join("store");
    let (_, written, _) = steps::drive(&dir, RUNS, None, |_, seq| seq >= records)?;
    // A start that nothing helps: no snapshot, nothing of the log in memory, no history.
    clear(&dir.join("snapshot"))?;
    let _ = fs::remove_file(Embedded::history_path(&dir));
    let cold = open(&dir)?;
    let (mut store, _) = Embedded::open(Arc::new(Files), &dir, &store::Options::default()).map_err(broken)?;
    // What ended leaves memory first, as it does while a process runs; then the snapshot is taken.
    let until = Instant::now() + Duration::from_secs(60);
    while store.lingering() > 0 && Instant::now() < until {
        if !store.idle(FAR) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    store.save_now(FAR);
    drop(store);
    let warm = open(&dir)?;
    Ok(json!({
        "n": written,
        "per_s": (written as f64 / cold.as_secs_f64()).round(),
        "records_per_s": (written as f64 / cold.as_secs_f64()).round(),
        "cold_s": (cold.as_secs_f64() * 1e3).round() / 1e3,
        "with_snapshot_s": (warm.as_secs_f64() * 1e3).round() / 1e3,
        "p50_ms": Value::Null,
        "p99_ms": Value::Null,
    }))
}

fn clear(dir: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(dir)?.flatten() {
        fs::remove_file(entry.path())?;
    }
    Ok(())
}

/// Opens with nothing in memory, and says how long that took.
fn open(dir: &Path) -> Result<Duration, Failure> {
    for entry in fs::read_dir(dir.join("log"))?.flatten() {
        let file = fs::File::open(entry.path())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(broken)?;
    }
    let began = Instant::now();
    let (store, _) = Embedded::open(Arc::new(Files), dir, &store::Options::default()).map_err(broken)?;
    let took = began.elapsed();
    drop(store);
    Ok(took)
}
