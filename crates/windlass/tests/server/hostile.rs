//! Requests that are wrong, or made to do harm: each is refused with a problem, and the server goes on.

use crate::http::{Answer, Server};
use serde_json::json;
use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;

/// The server is well and takes work.
#[track_caller]
fn is_well(server: &Server) {
    server.ask("GET", "/healthz", None, None).status(200);
    server.ask("GET", "/readyz", None, None).status(200);
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_comes() {
    let server = Server::trusting();
    let claim = |len: &str| {
        let head = format!(
            "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n",
            server.address()
        );
        server.raw(head.as_bytes())
    };
    claim("1048577").problem(413, "PAYLOAD_TOO_LARGE");
    claim("99999999999").problem(413, "PAYLOAD_TOO_LARGE");
    // One that does not say how large it is, is known when it is.
    let mut chunks = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        server.address()
    )
    .into_bytes();
    for _ in 0..17 {
        chunks.extend(b"10000\r\n");
        chunks.extend([b' '; 0x10000]);
        chunks.extend(b"\r\n");
    }
    let mut stream = server.connect();
    let _ = stream.write_all(&chunks);
    Answer::head(&mut stream).status(413);
    is_well(&server);
}

#[test]
fn a_body_that_breaks_off_changes_nothing() {
    let server = Server::trusting();
    let mut stream = server.connect();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{{\"pipeline\"",
        server.address()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    // Whoever is still there to read it is told; one that hung up is not waited for.
    let _ = stream.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 400"), "{rest}");
    assert!(server.ask("GET", "/v1/runs", None, None).items().is_empty());
    is_well(&server);
}

#[test]
fn json_that_is_none_too_deep_or_of_another_form_is_refused() {
    let server = Server::trusting();
    let send = |body: &[u8]| {
        let kind = [("content-type", "application/json")];
        server.send("POST", "/v1/runs", None, &kind, body).problem(400, "INVALID_INPUT")
    };
    send(format!("{{\"vars\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000)).as_bytes());
    send(format!("{{\"vars\":{{\"a\":{}1{}}}}}", "{\"a\":".repeat(200), "}".repeat(200)).as_bytes());
    for bad in [
        "{",
        "[]",
        "null",
        "\"x\"",
        "{\"pipeline\":7}",
        "{\"unknown\":1}",
        "{\"vars\":[]}",
        "{\"a\":1,\"a\":2}",
        "\u{0}",
    ] {
        send(bad.as_bytes());
    }
    send(b"\xff\xfe{}");
    is_well(&server);
}

#[test]
fn paths_that_are_tricks_find_nothing() {
    let server = Server::trusting();
    for path in [
        "/v1/runs/..",
        "/v1/runs/../../etc/passwd",
        "/v1/runs/%2e%2e%2fcredential.json",
        "/v1/runs/%00",
        "/v1/runs/%zz",
        "/v1/runs/%",
        "/v1/runs/%ff%fe",
        "/v1/runs/%0d%0aset-cookie:x",
        "/v1//runs",
        "/v1/runs/",
        "//v1/runs",
        "/V1/runs",
        "/v1/locks/%00",
        "/v1/locks/%ff",
        "/v1/runbooks/%00",
        "/v1/approvals/%F0%28%8C%28",
        "/v1/runs/run_%F0%9F%92%A9",
        "/v1/signals",
    ] {
        let answer = server.ask("GET", path, Some(&server.owner()), None);
        assert!([400, 404].contains(&answer.status), "{path}: {} {}", answer.status, answer.text());
        let code = if answer.status == 400 { "INVALID_INPUT" } else { "NOT_FOUND" };
        answer.clone().problem(answer.status, code);
        assert!(
            !answer.text().contains("panicked") && !answer.head.contains("set-cookie"),
            "{}",
            answer.head
        );
    }
    let long = format!("/v1/runs/{}", "a".repeat(40_000));
    let answer = server.ask("GET", &long, None, None).problem(404, "NOT_FOUND");
    assert!(answer.body.len() < 2_000, "what was asked for is not said back in full");
    for query in [
        "?limit=x",
        "?limit=-1",
        "?status=nonsense",
        "?cursor=x",
        "?since=yesterday",
        "?nonsense=1",
        "?limit=%zz",
    ] {
        server.ask("GET", &format!("/v1/runs{query}"), None, None).problem(400, "INVALID_INPUT");
    }
    is_well(&server);
}

#[test]
fn a_method_that_an_address_does_not_take_is_told_which_it_does() {
    let server = Server::trusting();
    for (method, path, allow) in [
        ("DELETE", "/v1/runs", &["get", "post", "head"][..]),
        ("PUT", "/v1/runs/run_1", &["get"]),
        ("GET", "/v1/runs/run_1/cancel", &["post"]),
        ("POST", "/healthz", &["get"]),
        ("BREW", "/v1/runs", &["get"]),
    ] {
        let answer = server.ask(method, path, None, None).problem(405, "METHOD_NOT_ALLOWED");
        let line = answer.head.lines().find(|line| line.starts_with("allow: ")).expect("a header").to_owned();
        assert!(allow.iter().all(|method| line.contains(method)), "{method} {path}: {line}");
    }
    let answer = server.ask("HEAD", "/v1/runs", None, None).status(200);
    assert!(answer.body.is_empty());
}

#[test]
fn heads_have_bounds() {
    let server = Server::trusting();
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    let host = server.address();
    let head = format!("GET /v1/runs HTTP/1.1\r\nhost: {host}\r\n{many}\r\n");
    server.raw(head.as_bytes()).status(431);
    let large = format!("GET /v1/runs HTTP/1.1\r\nhost: {host}\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    server.raw(large.as_bytes()).status(431);
    for bad in [
        "GET /v1/runs HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET /v1/runs HTTP/1.1\r\nhost: {host}\r\nhost: {host}\r\n\r\n"),
        format!("GET /v1/runs HTTP/1.1\r\nhost: {host}\r\nbad header\r\n\r\n"),
        format!("GET /v1/\u{7f}runs HTTP/1.1\r\nhost: {host}\r\n\r\n"),
        "nonsense\r\n\r\n".to_owned(),
        format!("POST /v1/runs HTTP/1.1\r\nhost: {host}\r\ncontent-length: x\r\n\r\n"),
        format!(
            "POST /v1/runs HTTP/1.1\r\nhost: {host}\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{{}}"
        ),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\r\n\r\n".to_owned(),
    ] {
        let bad = bad.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
        let answer = server.raw(bad.as_bytes());
        assert_eq!(answer.status, 400, "{bad}: {}", answer.head);
    }
    is_well(&server);
}

#[test]
fn a_connection_serves_one_request_after_the_other() {
    let server = Server::trusting();
    let mut stream = server.connect();
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", server.address());
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).unwrap();
        let answer = Answer::head(&mut stream).status(200);
        let len = answer.head.split("content-length: ").nth(1).unwrap();
        let len: usize = len.lines().next().unwrap().parse().unwrap();
        let mut body = vec![0; len];
        stream.read_exact(&mut body).unwrap();
        assert_eq!(body, b"{\"status\":\"ok\",\"stays\":true}");
    }
}

#[test]
fn who_says_nothing_is_hung_up_on() {
    let server = Server::trusting();
    // Nothing at all, half a head, and a head whose body never comes.
    let host = server.address().to_owned();
    let halves = [
        String::new(),
        format!("GET /v1/runs HTTP/1.1\r\nhost: {host}\r\nx-slow: "),
        format!("POST /v1/runs HTTP/1.1\r\nhost: {host}\r\ncontent-length: 10\r\n\r\n{{"),
    ];
    let mut streams: Vec<_> = halves
        .iter()
        .map(|half| {
            let mut stream = server.connect();
            stream.write_all(half.as_bytes()).unwrap();
            stream
        })
        .collect();
    // The ends come by themselves: a read that never ended would be the failure.
    // Whoever sends a byte now and then says nothing either: the time is that of the whole head, or body.
    let drip = |begin: String| {
        let mut stream = server.connect();
        stream.write_all(begin.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        std::thread::spawn(move || {
            let mut rest = [0; 64];
            // It ends when the server hangs up; were it never to, the test would not end.
            loop {
                match stream.read(&mut rest) {
                    Ok(0) => return String::new(),
                    Ok(n) => return String::from_utf8_lossy(&rest[..n]).into_owned(),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        if stream.write_all(b"x").is_err() {
                            return String::new();
                        }
                    }
                    Err(_) => return String::new(),
                }
            }
        })
    };
    let drips = [halves[1].clone(), halves[2].replace("length: 10", "length: 100000")].map(drip);
    for (stream, half) in streams.iter_mut().zip(&halves) {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap_or_else(|error| panic!("{half:?} is still open: {error}"));
        let rest = String::from_utf8_lossy(&rest);
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{half:?}: {rest}");
    }
    for drip in drips {
        let rest = drip.join().unwrap();
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 408"), "{rest}");
    }
    is_well(&server);
}

#[test]
fn answers_are_not_to_be_kept_or_guessed_at() {
    let server = Server::trusting();
    for path in ["/v1/runs", "/v1/absent", "/healthz"] {
        let head = server.ask("GET", path, None, None).head;
        assert!(
            head.contains("cache-control: no-store") && head.contains("x-content-type-options: nosniff"),
            "{head}"
        );
    }
    let described = server.ask("GET", "/openapi.json", None, None).status(200).json();
    assert_eq!(described["openapi"], json!("3.1.0"));
}
