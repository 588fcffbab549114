//! Plain requests over connections that are kept: what the way in costs by itself.

use super::net::{Connection, Serving, Times};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use windlass_server::client::Failure;

pub(super) fn measure(dir: &Path, clients: usize, time: Duration) -> Result<Value, Failure> {
    let serving = Serving::start(dir)?;
    let (address, began) = (serving.address, Instant::now());
    let times = serving.drive(async move {
        let until = began + time;
        let client = move || async move {
            let mut connection = Connection::open(address).await?;
            let mut times = Times::default();
            while Instant::now() < until {
                let since = Instant::now();
                let (status, answer) = connection.ask("GET", "/healthz", b"").await?;
                if status != 200 {
                    return Err(super::broken(String::from_utf8_lossy(answer)));
                }
                times.add(since);
            }
            Ok::<Times, Failure>(times)
        };
        let tasks: Vec<_> = (0..clients).map(|_| tokio::spawn(client())).collect();
        let mut all = Times::default();
        for task in tasks {
            all.join(task.await.map_err(super::broken)??);
        }
        Ok(all)
    })?;
    let took = began.elapsed();
    serving.stop();
    let mut figures = times.figures(took, 0);
    figures["clients"] = json!(clients);
    Ok(figures)
}
