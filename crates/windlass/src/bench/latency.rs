//! From the request that makes a run to the executor that has its step: one at a time, durable, over HTTP.

use super::broken;
use super::net::{Connection, Serving, Times, load};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use windlass_server::client::Failure;

pub(super) fn measure(dir: &Path, time: Duration) -> Result<Value, Failure> {
    let serving = Serving::start(dir)?;
    let first = serving.app.log.durable_seq();
    let address = serving.address;
    let (times, took) = serving.drive(async move {
        let mut producer = Connection::open(address).await?;
        let hash = load(&mut producer).await?;
        let (started, mut starts) = mpsc::channel(1);
        let executor = tokio::spawn(execute(address, started));
        let body = json!({ "runbook": hash, "pipeline": "p" }).to_string();
        let (began, mut times) = (Instant::now(), Times::default());
        while began.elapsed() < time {
            let since = Instant::now();
            let (status, answer) = producer.post("/v1/runs", body.as_bytes()).await?;
            if status != 201 {
                return Err(broken(String::from_utf8_lossy(answer)));
            }
            match starts.recv().await {
                Some(at) => times.add_span(at, since),
                None => break,
            }
        }
        let took = began.elapsed();
        drop(starts);
        executor.abort();
        Ok((times, took))
    })?;
    let records = serving.app.log.durable_seq() - first;
    serving.stop();
    Ok(times.figures(took, records))
}

/// Leases a step, says when it could begin, and completes it.
async fn execute(address: SocketAddr, started: mpsc::Sender<Instant>) -> Result<(), Failure> {
    let mut connection = Connection::open(address).await?;
    let ask = json!({ "executor": "bench", "labels": ["bench"], "max": 1, "wait_ms": 30_000 }).to_string();
    loop {
        let (_, answer) = connection.post("/v1/leases", ask.as_bytes()).await?;
        let at = Instant::now();
        let answer: Value = serde_json::from_slice(answer).map_err(broken)?;
        let items: Vec<Value> = answer["items"].as_array().into_iter().flatten().map(done).collect();
        if items.is_empty() {
            continue;
        }
        connection.json("/v1/leases/complete", &json!({ "items": items })).await?;
        if started.send(at).await.is_err() {
            return Ok(());
        }
    }
}

/// The report that a leased step is done.
pub(super) fn done(lease: &Value) -> Value {
    json!({ "run": lease["run"], "step": lease["step"], "epoch": lease["epoch"] })
}
