//! A process that serves a data directory, and plain HTTP to it.

use crate::support::{HANG, Process, Project, until};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{SystemTime, UNIX_EPOCH};

/// A process that serves a project.
pub(crate) struct Serving {
    pub(crate) project: Project,
    process: Option<Process>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn replayed(&self) -> bool {
        self.head.to_ascii_lowercase().contains("idempotent-replayed: true")
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

impl Serving {
    /// Serves a project with these deployed.
    pub(crate) fn new(project: Project, runbooks: &[&str]) -> Serving {
        let mut serving = Serving { project, process: None };
        serving.begin();
        for runbook in runbooks {
            serving.post("/v1/runbooks", &[], runbook.as_bytes()).is(201);
        }
        serving
    }

    /// Starts the process.
    pub(crate) fn begin(&mut self) {
        let mut process =
            self.project.start(&["serve", "--listen", "127.0.0.1:0", "--json", "--shared-user"]);
        process.await_line("\"serving\"");
        self.process = Some(process);
    }

    /// The log lines that the process has written about an event so far.
    pub(crate) fn told(&self, event: &str) -> Vec<Value> {
        let err = self.process.as_ref().map_or_else(String::new, Process::err);
        let lines = err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["event"] == event).collect()
    }

    /// Kills it and starts it again.
    pub(crate) fn restart(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
        self.begin();
    }

    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send("POST", path, headers, body)
    }

    /// Sends the same fifty times at once: one of them was new, and all others are told the same.
    #[track_caller]
    pub(crate) fn fifty(
        &self,
        send: impl Fn(&Serving) -> Answer + Sync,
        told: impl Fn(&Answer) -> Value,
    ) -> Answer {
        let mut answers: Vec<Answer> = std::thread::scope(|scope| {
            let senders: Vec<_> = (0..50).map(|_| scope.spawn(|| send(self))).collect();
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        let at = answers.iter().position(|answer| answer.status == 201).expect("nobody was the first");
        let first = answers.swap_remove(at);
        for answer in &answers {
            assert!(matches!(answer.status, 200 | 202), "{answer:?}");
            assert_eq!(answer.replayed(), answer.status == 200, "{answer:?}");
            assert!(answer.status == 202 || told(answer) == told(&first), "not the first's: {answer:?}");
        }
        first
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            let _ = write!(head, "content-length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        self.raw(format!("{head}\r\n").as_bytes(), body)
    }

    /// Sends bytes as they are and reads what comes back.
    pub(crate) fn raw(&self, head: &[u8], body: &[u8]) -> Answer {
        let mut stream = UnixStream::connect(self.project.path("data/windlass.sock")).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.write_all(head).unwrap();
        // A server that has heard enough may close before all of it is sent.
        let _ = stream.write_all(body);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap();
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunk(body) } else { body.to_owned() };
        Answer { status, head: head.to_owned(), text: body }
    }

    /// The runs of a pipeline.
    pub(crate) fn runs(&self, pipeline: &str) -> Vec<Value> {
        let page = self.get(&format!("/v1/runs?pipeline={pipeline}")).is(200).json();
        page["items"].as_array().unwrap().clone()
    }

    /// Waits until a run is in a status.
    pub(crate) fn await_status(&self, run: &str, status: &str) -> Value {
        until(&format!("{run} is {status}"), || {
            Some(self.get(&format!("/v1/runs/{run}")).is(200).json()).filter(|run| run["status"] == status)
        })
    }

    /// Whether something stands in any file of the data directory.
    pub(crate) fn is_stored(&self, needle: &str) -> bool {
        fn found(dir: &std::path::Path, needle: &[u8]) -> bool {
            std::fs::read_dir(dir).unwrap().flatten().any(|entry| {
                let path = entry.path();
                if path.is_dir() {
                    return found(&path, needle);
                }
                let bytes =
                    if path.is_file() { std::fs::read(&path).unwrap_or_default() } else { Vec::new() };
                bytes.windows(needle.len()).any(|window| window == needle)
            })
        }
        found(&self.project.path("data"), needle.as_bytes())
    }
}

fn unchunk(mut text: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 {
            break;
        }
        whole.push_str(&rest[..size]);
        text = &rest[size + 2..];
    }
    whole
}

/// HMAC-SHA256 in hexadecimal.
pub(crate) fn sign(secret: &str, parts: &[&[u8]]) -> String {
    let mac = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    let mac = parts.iter().fold(mac, |mac, part| mac.chain_update(part)).finalize().into_bytes();
    mac.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
