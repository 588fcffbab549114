//! Jobs of one step: enqueued in batches, leased in batches, completed in batches, over HTTP.

use super::broken;
use super::latency::done;
use super::net::{Connection, Serving, Times, load};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windlass_server::client::Failure;

/// How many jobs may be on their way, so that a slow executor is not buried.
const AHEAD_MAX: u64 = 10_000;
const PAUSE: Duration = Duration::from_millis(1);

pub(super) fn measure(dir: &Path, batch: usize, executors: usize, time: Duration) -> Result<Value, Failure> {
    let serving = Serving::start(dir)?;
    let first = serving.app.log.durable_seq();
    let address = serving.address;
    let (times, took, finished) = serving.drive(async move {
        let mut producer = Connection::open(address).await?;
        let hash = load(&mut producer).await?;
        let (made, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let working: Vec<_> =
            (0..executors).map(|n| tokio::spawn(execute(address, n, batch, ended.clone()))).collect();
        let began = Instant::now();
        let producing = produce(&mut producer, &hash, batch, (&made, &ended), began + time);
        let times = producing.await?;
        while ended.load(Ordering::Relaxed) < made.load(Ordering::Relaxed) {
            if working.iter().any(tokio::task::JoinHandle::is_finished) {
                return Err(broken("an executor gave up"));
            }
            tokio::time::sleep(PAUSE).await;
        }
        let took = began.elapsed();
        working.iter().for_each(tokio::task::JoinHandle::abort);
        Ok((times, took, ended.load(Ordering::Relaxed)))
    })?;
    let records = serving.app.log.durable_seq() - first;
    serving.stop();
    let requests = times.len();
    let mut figures = times.figures(took, records);
    // The times are those of a batch; what is counted are jobs that were enqueued and are over.
    figures["n"] = json!(finished);
    figures["per_s"] = json!((finished as f64 / took.as_secs_f64()).round());
    figures["batch"] = json!(batch);
    figures["batches"] = json!(requests);
    figures["executors"] = json!(executors);
    Ok(figures)
}

async fn produce(
    connection: &mut Connection,
    hash: &str,
    batch: usize,
    (made, ended): (&AtomicU64, &AtomicU64),
    until: Instant,
) -> Result<Times, Failure> {
    let items: Vec<Value> = (0..batch).map(|_| json!({})).collect();
    let body = json!({ "runbook": hash, "pipeline": "p", "items": items }).to_string();
    let mut times = Times::default();
    while Instant::now() < until {
        if made.load(Ordering::Relaxed) - ended.load(Ordering::Relaxed) >= AHEAD_MAX {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let since = Instant::now();
        let (status, answer) = connection.post("/v1/runs/batch", body.as_bytes()).await?;
        if status != 201 {
            return Err(broken(String::from_utf8_lossy(answer)));
        }
        times.add(since);
        made.fetch_add(batch as u64, Ordering::Relaxed);
    }
    Ok(times)
}

async fn execute(address: SocketAddr, n: usize, batch: usize, ended: Arc<AtomicU64>) -> Result<(), Failure> {
    let mut connection = Connection::open(address).await?;
    let ask =
        json!({ "executor": format!("bench-{n}"), "labels": ["bench"], "max": batch, "wait_ms": 30_000 });
    let ask = ask.to_string();
    loop {
        let (status, answer) = connection.post("/v1/leases", ask.as_bytes()).await?;
        let answer: Value = serde_json::from_slice(answer).map_err(broken)?;
        if status != 200 {
            return Err(broken(answer));
        }
        let items: Vec<Value> = answer["items"].as_array().into_iter().flatten().map(done).collect();
        if items.is_empty() {
            continue;
        }
        let count = items.len() as u64;
        connection.json("/v1/leases/complete", &json!({ "items": items })).await?;
        ended.fetch_add(count, Ordering::Relaxed);
    }
}
