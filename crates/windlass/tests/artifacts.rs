//! Bundles in a bucket: a real server that speaks S3 holds them, once each, through its faults and ours.
//!
//! `WINDLASS_TEST_S3` names the server. `scripts/outside-artifacts` starts one and runs this.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/outside.rs"]
mod outside;
mod support;

use outside::{Answer, Request, Server};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Project, text};
use windlass_core::digest::Digest;

const BOOK: &str = "
name: proof
pipelines:
  p:
    steps:
      - { id: ask, approve: { message: 'Go on?' } }
      - { id: two, run: 'echo two' }
";

fn s3() -> String {
    std::env::var("WINDLASS_TEST_S3").expect("WINDLASS_TEST_S3 names a server: see scripts/outside-artifacts")
}

/// An answer of the server: its status, headers and body.
type Told = (u16, Vec<(String, String)>, Vec<u8>);

fn ask(method: &str, path: &str, headers: &[(String, String)], body: &[u8]) -> Told {
    let address = s3().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.0\r\nhost: {address}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|part| part == b"\r\n\r\n").expect("a head") + 4;
    let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
    let body = answer.split_off(end);
    let head = String::from_utf8_lossy(&answer);
    let pairs = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    (status, pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect(), body)
}

/// A project whose bundles go to a bucket of its own, by way of `url`.
fn project(bucket: &str, url: &str) -> Project {
    assert_eq!(ask("PUT", &format!("/{bucket}"), &[], b"").0, 200, "a bucket");
    Project::with(BOOK)
        .env("WINDLASS_ARTIFACTS", &format!("s3://{bucket}/kept/here"))
        .env("AWS_ENDPOINT_URL", url)
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "someone")
        .env("AWS_SECRET_ACCESS_KEY", "something-secret")
}

/// A run that waits for its approval.
fn begun(project: &Project) -> String {
    project.windlass(&["run", "book.yaml", "--no-wait"]).code(4);
    project.newest()
}

fn approve(project: &Project) {
    let waiting = project.windlass(&["approvals", "--json"]).code(0).json();
    let approval = &waiting["items"][0];
    project.windlass(&["approve", text(approval, "id"), "--hash", text(approval, "action_hash")]).code(0);
}

fn object(bucket: &str, run: &str) -> (u16, Vec<u8>) {
    // Objects are not for everybody. Who asks is not checked, but somebody has to.
    let who = "AWS4-HMAC-SHA256 Credential=someone/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00";
    let headers = [("authorization".to_owned(), who.to_owned())];
    let (status, _, body) = ask("GET", &format!("/{bucket}/kept/here/{run}.evidence.tar"), &headers, b"");
    (status, body)
}

/// The bundle in the bucket is the recorded one, and proves the run.
fn is_kept(project: &Project, bucket: &str, run: &str) {
    let (status, bytes) = object(bucket, run);
    assert_eq!(status, 200);
    let exported = project.events("evidence:exported");
    assert_eq!(exported.len(), 1, "{exported:?}");
    assert_eq!(text(&exported[0], "sha256"), Digest::of(&[&bytes]).to_string());
    assert_eq!(text(&exported[0], "location"), format!("s3://{bucket}/kept/here/{run}.evidence.tar"));
    project.write("kept.tar", &bytes);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    project.windlass(&["evidence", "verify", "kept.tar", "--pubkey", "keys.txt"]).code(0);
    assert!(!project.has("data/evidence"), "nothing is kept beside it");
}

#[test]
fn a_bundle_is_in_the_bucket_when_its_run_has_ended() {
    let project = project("ends", &s3());
    let run = begun(&project);
    approve(&project);
    project.windlass(&["resume", &run]).code(0);
    is_kept(&project, "ends", &run);
}

#[test]
fn what_is_in_the_bucket_is_not_written_over() {
    let project = project("taken", &s3());
    let run = begun(&project);
    approve(&project);
    let path = format!("/taken/kept/here/{run}.evidence.tar");
    assert_eq!(ask("PUT", &path, &[], b"somebody else's").0, 200);
    // It is looked for first. So it is made to be there only for the one who writes.
    let hidden = Server::start(forward(|request, _| {
        (request.method == "HEAD").then(|| Answer::Say(404, Vec::new(), Vec::new()))
    }));
    let project = project.env("AWS_ENDPOINT_URL", &hidden.url());
    project.windlass(&["resume", &run]).code(0).warns("something else is there under its name");
    assert_eq!(object("taken", &run).1, b"somebody else's");
    assert!(project.events("evidence:exported").is_empty());
}

/// Passes requests on to the real server, but for those that `instead` answers. It is told how many there were before.
fn forward(
    instead: impl Fn(&Request, usize) -> Option<Answer> + Send + Sync + 'static,
) -> impl Fn(&Request) -> Answer + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |request: &Request| {
        let before = count.fetch_add(1, Ordering::SeqCst);
        if let Some(answer) = instead(request, before) {
            return answer;
        }
        let passed = |(name, value): (&String, &String)| (name.clone(), value.clone());
        let headers: Vec<(String, String)> = request
            .headers
            .iter()
            .filter(|(name, _)| !["host", "content-length", "connection"].contains(&name.as_str()))
            .map(passed)
            .collect();
        let (status, mut headers, body) = ask(&request.method, &request.path, &headers, &request.body);
        headers.retain(|(name, _)| !["content-length", "connection"].contains(&name.as_str()));
        Answer::Say(status, headers, body)
    }
}

#[test]
fn what_fails_for_a_while_is_tried_again() {
    let faults = Server::start(forward(|_, before| match before {
        0 => Some(Answer::Say(503, Vec::new(), b"slow down".to_vec())),
        1 => Some(Answer::Reset),
        _ => None,
    }));
    let project = project("faults", &faults.url());
    let run = begun(&project);
    approve(&project);
    project.windlass(&["resume", &run]).code(0);
    assert!(faults.seen().len() >= 3, "{}", faults.seen().len());
    is_kept(&project, "faults", &run);
}

#[test]
fn a_bundle_whose_place_could_not_be_reached_is_kept_by_the_next_process() {
    let project = project("later", &s3());
    let run = begun(&project);
    approve(&project);
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut away = project.command(&["resume", &run]);
    away.env("AWS_ENDPOINT_URL", format!("http://{free}"));
    support::Process::spawn(away, &["resume"]).wait().code(0).warns("cannot be kept");
    assert_eq!(object("later", &run).0, 404);
    project.windlass(&["run", "book.yaml", "--no-wait"]).code(4);
    is_kept(&project, "later", &run);
}

#[test]
fn a_place_that_cannot_be_is_refused_before_anything_begins() {
    for bad in ["s3://", "gs://bucket", "s3:///prefix"] {
        let project = Project::with(BOOK).env("WINDLASS_ARTIFACTS", bad).env("AWS_REGION", "us-east-1");
        project.windlass(&["run", "book.yaml", "--no-wait"]).code(2).warns("WINDLASS_ARTIFACTS");
    }
}
