//! A server in a project, and plain HTTP to it: every byte is this file's own, so that nothing is tidied up on the way.

use crate::support::{HANG, Process, Project, text};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;

/// A server with its project.
pub(crate) struct Server {
    pub(crate) project: Project,
    pub(crate) process: Option<Process>,
    pub(crate) url: String,
}

impl Server {
    /// Starts one on a port of its own.
    pub(crate) fn start() -> Server {
        Server::start_with(Project::new(), &[])
    }

    /// Starts one that gives callers on this machine `read` and `run` without a token.
    pub(crate) fn trusting() -> Server {
        Server::start_with(Project::new(), &["--trust-local"])
    }

    /// Starts one with these words too.
    pub(crate) fn start_with(project: Project, words: &[&str]) -> Server {
        let (process, url) = serve(&project, words);
        Server { project, process: Some(process), url }
    }

    /// Ends the process in its own time, and starts another on the same data.
    pub(crate) fn restart(&mut self) {
        let process = self.process.take().expect("a process");
        process.signal(rustix::process::Signal::TERM);
        process.wait().code(0);
        self.begin(&[]);
    }

    /// Starts a process with these words, where the one before has ended.
    pub(crate) fn begin(&mut self, words: &[&str]) {
        let (process, url) = serve(&self.project, words);
        (self.process, self.url) = (Some(process), url);
    }

    /// Its host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.split_once("://").expect("an address").1
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("a connection");
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        stream
    }

    /// Sends bytes as they are and reads the answer to its end.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that has heard enough may have hung up.
        let _ = stream.write_all(bytes);
        Answer::read(&mut stream)
    }

    /// One request.
    pub(crate) fn ask(&self, method: &str, path: &str, token: Option<&str>, body: Option<&Value>) -> Answer {
        let body = body.map(Value::to_string);
        let headers: Vec<(&str, &str)> = body.iter().map(|_| ("content-type", "application/json")).collect();
        self.send(method, path, token, &headers, body.unwrap_or_default().as_bytes())
    }

    /// One request with these headers.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.raw(&self.request(method, path, token, headers, body))
    }

    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if headers.iter().all(|(name, _)| *name != "host") {
            head.push_str(&format!("host: {}\r\n", self.address()));
        }
        if let Some(token) = token {
            head.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        [head.as_bytes(), body].concat()
    }

    /// The owner's credential.
    pub(crate) fn owner(&self) -> String {
        let file: Value = serde_json::from_str(&self.project.read("data/credential.json")).unwrap();
        text(&file, "token").to_owned()
    }

    /// A token with these scopes, made by the owner.
    pub(crate) fn token(&self, wish: &Value) -> Value {
        self.ask("POST", "/v1/tokens", Some(&self.owner()), Some(wish)).status(201).json()
    }

    /// A token of a tenant and namespace with every scope.
    pub(crate) fn of(&self, tenant: &str, namespace: &str) -> String {
        let scopes = ["read", "run", "deploy", "approve", "execute", "admin"];
        let made = self.token(&json!({ "tenant": tenant, "namespace": namespace, "scopes": scopes }));
        text(&made, "token").to_owned()
    }
}

/// Starts a server and waits until it says where it is.
fn serve(project: &Project, words: &[&str]) -> (Process, String) {
    // What keeps steps apart from the server has tests of its own (`wall`), which name it.
    let chosen = words.iter().any(|word| ["--run-as", "--apart"].contains(word));
    let shared: &[&str] = if chosen { &[] } else { &["--shared-user"] };
    let words: Vec<&str> = words.iter().copied().filter(|word| *word != "--apart").collect();
    let words = [&["serve", "--listen", "127.0.0.1:0", "--json"], shared, &words].concat();
    let mut process = project.start(&words);
    let line: Value = serde_json::from_str(&process.await_line("\"serving\"")).unwrap();
    let url = text(&line, "serving").to_owned();
    (process, url)
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The head as it came, in lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Reads an answer to the end of the connection.
    pub(crate) fn read(stream: &mut impl std::io::Read) -> Answer {
        let mut bytes = Vec::new();
        // One that was cut off is read as far as it came.
        let _ = stream.read_to_end(&mut bytes);
        Answer::parse(&bytes)
    }

    /// Reads the head of an answer, and no more.
    pub(crate) fn head(stream: &mut impl std::io::Read) -> Answer {
        let (mut bytes, mut one) = (Vec::new(), [0]);
        while !bytes.ends_with(b"\r\n\r\n") && stream.read(&mut one).is_ok_and(|len| len == 1) {
            bytes.push(one[0]);
        }
        Answer::parse(&bytes)
    }

    fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = &bytes[end + 4..];
        let chunked = head.contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(body) } else { body.to_vec() };
        Answer { status, head, body }
    }

    /// It has this status.
    #[track_caller]
    pub(crate) fn status(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.text());
        self
    }

    /// It is a problem with this status and code.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, code: &str) -> Answer {
        let answer = self.status(status);
        assert!(answer.head.contains("content-type: application/problem+json"), "{}", answer.head);
        let problem = answer.json();
        assert_eq!((text(&problem, "code"), problem["status"].as_u64()), (code, Some(u64::from(status))));
        assert!(!text(&problem, "detail").is_empty() && !text(&problem, "title").is_empty(), "{problem}");
        answer
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The items of a list.
    #[track_caller]
    pub(crate) fn items(&self) -> Vec<Value> {
        self.json()["items"].as_array().expect("a list").clone()
    }
}

/// Puts chunks together, as far as they came.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(at) = rest.windows(2).position(|part| part == b"\r\n") {
        let len = std::str::from_utf8(&rest[..at]).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let Some(len) = len.filter(|len| *len > 0) else { break };
        let from = at + 2;
        whole.extend_from_slice(&rest[from..rest.len().min(from + len)]);
        rest = rest.get(from + len + 2..).unwrap_or_default();
    }
    whole
}
