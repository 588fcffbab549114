//! A server on loopback for measurements, and a client that costs as little as one can.

use super::broken;
use serde_json::{Value, json};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use windlass_executor::home::Home;
use windlass_server::app::{App, Settings};
use windlass_server::client::Failure;
use windlass_server::server::{Listen, Server, runtime};

/// The most bytes of an answer.
const ANSWER_MAX: usize = 64 << 20;

/// A server in this process, with nothing left out but the network.
pub(super) struct Serving {
    pub(super) app: Arc<App>,
    pub(super) address: SocketAddr,
    runtime: Runtime,
}

impl Serving {
    pub(super) fn start(dir: &Path) -> Result<Serving, Failure> {
        let runtime = runtime()?;
        // Steps are carried out by the clients.
        let mut settings = Settings { executes: true, ..Settings::default() };
        settings.engine.slots = 0;
        let app = App::start(Home::make(&dir.join("store"))?, &std::env::current_exe()?, settings)?;
        let listen =
            Listen { address: "127.0.0.1:0".to_owned(), tls: None, behind_proxy: false, trust_local: false };
        let server = runtime.block_on(Server::bind(&listen)).map_err(broken)?;
        let (address, served) = (server.address(), app.clone());
        runtime.spawn(async move { server.serve_owner(served, "bench").await });
        Ok(Serving { app, address, runtime })
    }

    /// Lets clients work on a thread of their own, and returns what they return.
    pub(super) fn drive<T: Send>(
        &self,
        clients: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(clients)
        };
        std::thread::scope(|scope| scope.spawn(work).join())
            .unwrap_or_else(|_| Err(broken("a client panicked")))
    }

    pub(super) fn stop(self) {
        self.runtime.shutdown_background();
        self.app.stop();
    }
}

/// A connection that is kept.
pub(super) struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Connection, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, request: Vec::new(), answer: Vec::new() })
    }

    /// Posts a body and reads the whole answer.
    pub(super) async fn post(&mut self, path: &str, body: &[u8]) -> Result<(u16, &[u8]), Failure> {
        self.ask("POST", path, body).await
    }

    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<(u16, &[u8]), Failure> {
        self.request.clear();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).await?;
        self.answer.clear();
        loop {
            if let Some((status, from, len)) = head_of(&self.answer)? {
                while self.answer.len() < from + len {
                    self.fill().await?;
                }
                return Ok((status, &self.answer[from..from + len]));
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        if self.answer.len() > ANSWER_MAX {
            return Err(io::Error::other("the answer is too long"));
        }
        self.answer.reserve(16 << 10);
        match self.stream.read_buf(&mut self.answer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Posts JSON that must be answered well.
    pub(super) async fn json(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        let (status, answer) = self.post(path, body.to_string().as_bytes()).await?;
        let value: Value = serde_json::from_slice(answer).map_err(broken)?;
        if (200..300).contains(&status) { Ok(value) } else { Err(broken(value)) }
    }
}

/// The status of an answer, where its body begins and how long it is; none where its head is not all there.
fn head_of(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>, Failure> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..end]).map_err(broken)?;
    let status = head.get(9..12).and_then(|code| code.parse().ok()).ok_or_else(|| broken("no status"))?;
    let mut len = 0;
    for line in head.lines() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            len = value.trim().parse().map_err(broken)?;
        }
    }
    Ok(Some((status, end + 4, len)))
}

/// How long things took.
#[derive(Default)]
pub(super) struct Times(Vec<Duration>);

impl Times {
    pub(super) fn add(&mut self, since: Instant) {
        self.0.push(since.elapsed());
    }

    pub(super) fn add_span(&mut self, at: Instant, since: Instant) {
        self.0.push(at.saturating_duration_since(since));
    }

    pub(super) fn join(&mut self, other: Times) {
        self.0.extend(other.0);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The figures of so many in so long a time.
    pub(super) fn figures(mut self, took: Duration, records: u64) -> Value {
        self.0.sort_unstable();
        let at = |part: f64| {
            let index = ((self.0.len() as f64 - 1.0) * part).max(0.0) as usize;
            self.0.get(index).map_or(0.0, |time| (time.as_secs_f64() * 1e6).round() / 1e3)
        };
        let per = |n: f64| (n / took.as_secs_f64()).round();
        json!({
            "n": self.0.len(), "per_s": per(self.0.len() as f64), "records_per_s": per(records as f64),
            "p50_ms": at(0.5), "p99_ms": at(0.99),
        })
    }
}

/// Loads a runbook of one shell step that asks for a label, and returns its hash.
pub(super) async fn load(connection: &mut Connection) -> Result<String, Failure> {
    let yaml =
        "name: bench\npipelines:\n  p:\n    steps:\n      - { id: s, run: 'true', runs_on: [bench] }\n";
    let body = json!({ "files": [{ "name": "bench.yaml", "text": yaml }] }).to_string();
    let (status, answer) = connection.post("/v1/runbooks", body.as_bytes()).await?;
    let value: Value = serde_json::from_slice(answer).map_err(broken)?;
    match value["hash"].as_str() {
        Some(hash) if status < 300 => Ok(hash.to_owned()),
        _ => Err(broken(value)),
    }
}
