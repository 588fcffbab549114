//! Locks over HTTP: clients that take and give back, each its own or all the same one.

use super::net::{Connection, Serving, Times};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use windlass_server::client::Failure;

pub(super) fn measure(dir: &Path, clients: usize, shared: bool, time: Duration) -> Result<Value, Failure> {
    let serving = Serving::start(dir)?;
    let first = serving.app.log.durable_seq();
    let (address, began) = (serving.address, Instant::now());
    let times = serving.drive(async move {
        let tasks: Vec<_> =
            (0..clients).map(|n| tokio::spawn(client(address, n, shared, began + time))).collect();
        let mut all = Times::default();
        for task in tasks {
            all.join(task.await.map_err(super::broken)??);
        }
        Ok(all)
    })?;
    let took = began.elapsed();
    let records = serving.app.log.durable_seq() - first;
    serving.stop();
    let mut figures = times.figures(took, records);
    figures["clients"] = json!(clients);
    figures["keys"] = json!(if shared { "one" } else { "own" });
    Ok(figures)
}

async fn client(
    address: std::net::SocketAddr,
    n: usize,
    shared: bool,
    until: Instant,
) -> Result<Times, Failure> {
    let mut connection = Connection::open(address).await?;
    let name = if shared { "shared".to_owned() } else { format!("own-{n}") };
    let (take, give) = (format!("/v1/locks/{name}/acquire"), format!("/v1/locks/{name}/release"));
    let ask = json!({ "holder": format!("client-{n}"), "wait_ms": 60_000 }).to_string();
    let back = json!({ "holder": format!("client-{n}") }).to_string();
    let mut times = Times::default();
    while Instant::now() < until {
        let since = Instant::now();
        for (path, body) in [(&take, &ask), (&give, &back)] {
            let (status, answer) = connection.post(path, body.as_bytes()).await?;
            if status != 200 {
                return Err(super::broken(String::from_utf8_lossy(answer)));
            }
        }
        times.add(since);
    }
    Ok(times)
}
