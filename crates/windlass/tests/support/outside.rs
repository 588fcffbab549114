//! A server on this machine that a test plays the outside with: it answers as the test says, and fails as the test says.
//!
//! Every connection carries one request. What came in is kept, so a test can count effects by what the other side saw.

// Each test binary uses a part of this.
#![allow(dead_code, unreachable_pub)]
// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// The path, without the query.
    pub path: String,
    pub query: BTreeMap<String, String>,
    /// Names are in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The parts of the path.
    pub fn parts(&self) -> Vec<&str> {
        self.path.trim_matches('/').split('/').collect()
    }
}

/// What the server does about a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A status, headers and a body.
    Say(u16, Vec<(String, String)>, Vec<u8>),
    /// The connection ends without a word.
    Reset,
    /// Only the beginning of an answer comes, and then nothing until the other side gives up.
    Stall,
    /// Nothing comes until the other side gives up.
    Silence,
}

/// An answer of JSON.
pub fn say(status: u16, body: &Value) -> Answer {
    let kind = ("content-type".to_owned(), "application/json".to_owned());
    Answer::Say(status, vec![kind], body.to_string().into_bytes())
}

/// The same with another header.
pub fn say_with(status: u16, name: &str, value: &str, body: &Value) -> Answer {
    Answer::Say(status, vec![(name.to_owned(), value.to_owned())], body.to_string().into_bytes())
}

type Handler = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// The server. It lives as long as the test.
pub struct Server {
    pub port: u16,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (kept, handler): (_, Handler) = (seen.clone(), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, handler) = (kept.clone(), handler.clone());
                std::thread::spawn(move || serve(stream, &kept, &handler));
            }
        });
        Server { port, seen }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What came in so far.
    pub fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// How many requests with this method came in.
    pub fn count(&self, method: &str) -> usize {
        self.seen().iter().filter(|request| request.method == method).count()
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Vec<Request>>, handler: &Handler) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Some(request) = read(&mut reader) else { return };
    kept.lock().unwrap().push(request.clone());
    let mut stream = stream;
    match handler(&request) {
        Answer::Say(status, headers, body) => {
            let mut head =
                format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            let _ = stream.write_all(format!("{head}\r\n").as_bytes());
            let _ = stream.write_all(&body);
        }
        Answer::Reset => {}
        Answer::Stall => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
            wait_for_end(&mut stream);
        }
        Answer::Silence => wait_for_end(&mut stream),
    }
}

/// Waits until the other side closes the connection.
fn wait_for_end(stream: &mut TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
    let _ = stream.read(&mut [0; 16]);
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key), decode(value))
    };
    let query = query.split('&').filter(|text| !text.is_empty()).map(pair).collect();
    Some(Request { method, path: decode(path), query, headers, body })
}

fn decode(text: &str) -> String {
    let bytes = text.replace('+', " ").into_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// What a repository, an instance and a channel hold.
#[derive(Debug, Default)]
pub struct Things {
    pub comments: Vec<Value>,
    pub labels: Vec<String>,
    pub pulls: Vec<Value>,
    /// Records by table and id.
    pub records: BTreeMap<(String, String), Value>,
    pub notes: Vec<Value>,
    pub messages: Vec<Value>,
    next: u64,
}

/// Answers as GitHub, ServiceNow and Slack do, as far as the tools use them.
#[derive(Clone, Default)]
pub struct World(pub Arc<Mutex<Things>>);

impl World {
    pub fn things(&self) -> std::sync::MutexGuard<'_, Things> {
        self.0.lock().unwrap()
    }

    pub fn answer(&self, request: &Request) -> Answer {
        let parts = request.parts();
        match parts.as_slice() {
            ["repos", _, _, rest @ ..] => self.github(request, rest),
            ["api", "now", "table", table, rest @ ..] => self.servicenow(request, table, rest),
            [method] => self.slack(request, method),
            _ => say(404, &json!({ "message": "Not Found" })),
        }
    }

    fn github(&self, request: &Request, rest: &[&str]) -> Answer {
        let mut things = self.things();
        let body = request.json();
        match (request.method.as_str(), rest) {
            ("POST", ["issues", _, "comments"]) => {
                things.next += 1;
                let comment = json!({ "id": things.next, "body": body["body"], "html_url": "http://x", "updated_at": "1" });
                things.comments.push(comment.clone());
                say(201, &comment)
            }
            ("GET", ["issues", _, "comments"]) => say(200, &json!(things.comments)),
            (method, ["issues", "comments", id]) => {
                let found = things.comments.iter().position(|c| is_number(&c["id"], id));
                match (method, found) {
                    (_, None) => say(404, &json!({ "message": "Not Found" })),
                    ("DELETE", Some(at)) => {
                        things.comments.remove(at);
                        Answer::Say(204, Vec::new(), Vec::new())
                    }
                    (_, Some(at)) => say(200, &things.comments[at]),
                }
            }
            ("POST", ["issues", _, "labels"]) => {
                for label in body["labels"].as_array().unwrap() {
                    let label = label.as_str().unwrap().to_owned();
                    if !things.labels.contains(&label) {
                        things.labels.push(label);
                    }
                }
                say(200, &named(&things.labels))
            }
            ("GET", ["issues", _, "labels"]) => say(200, &named(&things.labels)),
            ("DELETE", ["issues", _, "labels", label]) => {
                match things.labels.iter().position(|known| known == label) {
                    Some(at) => {
                        things.labels.remove(at);
                        say(200, &named(&things.labels))
                    }
                    None => say(404, &json!({ "message": "Label does not exist" })),
                }
            }
            ("POST", ["statuses", _]) => {
                say(201, &json!({ "id": 1, "state": body["state"], "context": body["context"] }))
            }
            ("POST", ["pulls"]) => {
                things.next += 1;
                let pull = json!({ "number": things.next, "body": body["body"], "state": "open", "merged": false,
                    "html_url": "http://x", "head": { "sha": "abc", "ref": body["head"] }, "base": { "ref": body["base"] } });
                things.pulls.push(pull.clone());
                say(201, &pull)
            }
            ("GET", ["pulls"]) => say(200, &json!(things.pulls)),
            (method, ["pulls", number, rest @ ..]) => {
                let Some(at) = things.pulls.iter().position(|p| is_number(&p["number"], number)) else {
                    return say(404, &json!({ "message": "Not Found" }));
                };
                match (method, rest) {
                    ("PUT", ["merge"]) => {
                        things.pulls[at]["merged"] = json!(true);
                        things.pulls[at]["merge_commit_sha"] = json!("def");
                        say(200, &json!({ "merged": true, "sha": "def" }))
                    }
                    ("PATCH", []) => {
                        things.pulls[at]["state"] = body["state"].clone();
                        say(200, &things.pulls[at])
                    }
                    (_, _) => say(200, &things.pulls[at]),
                }
            }
            (_, _) => say(404, &json!({ "message": "Not Found" })),
        }
    }

    fn servicenow(&self, request: &Request, table: &str, rest: &[&str]) -> Answer {
        let mut things = self.things();
        let body = request.json();
        let query = request.query.get("sysparm_query").cloned().unwrap_or_default();
        match (request.method.as_str(), rest) {
            ("POST", []) => {
                things.next += 1;
                let id = format!("{:032x}", things.next);
                let mut record = body;
                record["sys_id"] = json!(id);
                record["number"] = json!(format!("INC{}", things.next));
                record["sys_mod_count"] = json!("0");
                things.records.insert((table.to_owned(), id), record.clone());
                say(201, &json!({ "result": record }))
            }
            ("GET", []) if table == "sys_journal_field" => {
                let wanted = query.rsplit("valueLIKE").next().unwrap_or_default().to_owned();
                let found: Vec<&Value> = things
                    .notes
                    .iter()
                    .filter(|note| note["value"].as_str().unwrap().contains(&wanted))
                    .collect();
                say(200, &json!({ "result": found }))
            }
            ("GET", []) => {
                let (field, value) = query.split_once('=').unwrap_or(("", ""));
                let found: Vec<&Value> = things
                    .records
                    .iter()
                    .filter(|((of, _), record)| of == table && (field.is_empty() || record[field] == value))
                    .map(|(_, record)| record)
                    .collect();
                say(200, &json!({ "result": found }))
            }
            (method, [id]) => {
                let key = (table.to_owned(), (*id).to_owned());
                let note = body["work_notes"].as_str().map(|text| json!({ "element_id": id, "value": text }));
                let missing = say(404, &json!({ "error": { "message": "No Record found", "detail": "" } }));
                let Some(record) = things.records.get_mut(&key) else { return missing };
                match method {
                    "PATCH" => {
                        for (name, value) in body.as_object().unwrap() {
                            record[name] = value.clone();
                        }
                        let count: u64 = record["sys_mod_count"].as_str().unwrap_or("0").parse().unwrap();
                        record["sys_mod_count"] = json!((count + 1).to_string());
                        let answer = say(200, &json!({ "result": record }));
                        things.notes.extend(note);
                        answer
                    }
                    "DELETE" => {
                        things.records.remove(&key);
                        Answer::Say(204, Vec::new(), Vec::new())
                    }
                    _ => say(200, &json!({ "result": record })),
                }
            }
            (_, _) => say(400, &json!({ "error": { "message": "bad", "detail": "" } })),
        }
    }

    fn slack(&self, request: &Request, method: &str) -> Answer {
        let mut things = self.things();
        let body = request.json();
        let by_ts = |things: &Things, ts: &Value| things.messages.iter().position(|m| m["ts"] == *ts);
        match method {
            "chat.postMessage" => {
                things.next += 1;
                let ts = format!("{}.000100", things.next);
                let mut message = body;
                message["ts"] = json!(ts);
                things.messages.push(message);
                say(200, &json!({ "ok": true, "channel": "C1", "ts": ts }))
            }
            "chat.update" | "chat.delete" => match (by_ts(&things, &body["ts"]), method) {
                (None, _) => say(200, &json!({ "ok": false, "error": "message_not_found" })),
                (Some(at), "chat.delete") => {
                    let gone = things.messages.remove(at);
                    say(200, &json!({ "ok": true, "channel": "C1", "ts": gone["ts"] }))
                }
                (Some(at), _) => {
                    things.messages[at]["text"] = body["text"].clone();
                    say(200, &json!({ "ok": true, "channel": "C1", "ts": body["ts"] }))
                }
            },
            "conversations.history" | "conversations.replies" => {
                let latest = request.query.get("latest");
                let found: Vec<&Value> =
                    things.messages.iter().filter(|m| latest.is_none_or(|ts| m["ts"] == *ts)).collect();
                say(200, &json!({ "ok": true, "messages": found, "has_more": false }))
            }
            _ => say(200, &json!({ "ok": false, "error": "unknown_method" })),
        }
    }
}

fn named(labels: &[String]) -> Value {
    labels.iter().map(|label| json!({ "name": label })).collect()
}

/// Whether a value is the number that a path names.
fn is_number(value: &Value, text: &str) -> bool {
    value.as_u64().is_some_and(|number| text.parse() == Ok(number))
}
