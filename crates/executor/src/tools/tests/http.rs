//! `http`: what is sent, where it may go, and what each kind of failure means.

use super::outside::{Answer, Server, say, say_with};
use super::*;

#[allow(clippy::needless_pass_by_value)] // It is written in the call.
fn fields(server: &Server, more: Value) -> Value {
    let mut fields = json!({ "url": format!("{}/x", server.url()) });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fields
}

#[tokio::test]
async fn a_request_is_sent_as_it_is_written_with_its_key() {
    let server = Server::start(|_| say(201, &json!({ "id": 7 })));
    let bench = bench(local(&[server.port]));
    let more = json!({ "method": "POST", "query": { "a": "b c", "n": 1 }, "headers": { "X-A": "1" },
        "bearer": TOKEN, "json": { "k": [1] } });
    let done = bench.perform(&bench.call("http", "post", fields(&server, more))).await.unwrap();
    assert_eq!((&done.output["status"], &done.output["json"]), (&json!(201), &json!({ "id": 7 })));
    let seen = &server.seen()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/x"));
    assert_eq!((seen.query["a"].as_str(), seen.query["n"].as_str()), ("b c", "1"));
    assert_eq!(seen.header("authorization"), format!("Bearer {TOKEN}"));
    assert_eq!((seen.header("idempotency-key"), seen.header("x-a")), ("run_1/step", "1"));
    assert_eq!(seen.json(), json!({ "k": [1] }));
    let read = bench.call("http", "get", fields(&server, json!({ "expect": [200] })));
    let trouble = bench.perform(&read).await.unwrap_err();
    assert!(trouble.message.contains("201"), "a status that is not expected is a failure: {trouble}");
    assert_eq!(server.seen()[1].header("idempotency-key"), "", "a read has no effect to be known by");
}

#[tokio::test]
async fn what_is_not_public_is_not_reached_by_address_by_name_or_by_redirect() {
    let hidden = Server::start(|_| say(200, &json!("inside")));
    let port = hidden.port;
    let to = move |request: &outside::Request| match request.query.get("to").map(String::as_str) {
        Some("name") => say_with(302, "location", &format!("http://localhost:{port}/"), &json!(0)),
        _ => say_with(302, "location", &format!("http://127.0.0.1:{port}/"), &json!(0)),
    };
    let server = Server::start(to);
    let bench = bench(local(&[server.port]));
    let tries = [
        format!("http://127.0.0.1:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://2130706433:{port}/"),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        format!("{}/?to=address", server.url()),
        format!("{}/?to=name", server.url()),
    ];
    for url in tries {
        let trouble = bench.perform(&bench.call("http", "get", json!({ "url": url }))).await.unwrap_err();
        assert_eq!((trouble.code, trouble.again), (Code::PolicyDenied, Again::Never), "{url}: {trouble}");
        assert_eq!(trouble.happened, Happened::No);
    }
    assert_eq!(hidden.seen().len(), 0);
    for url in ["ftp://x/", "file:///etc/passwd", "http://user:pw@example.com/", "not an address"] {
        let trouble = bench.perform(&bench.call("http", "get", json!({ "url": url }))).await.unwrap_err();
        assert_eq!(trouble.code, Code::InvalidInput, "{url}: {trouble}");
    }
}

#[tokio::test]
async fn a_host_that_is_not_listed_is_not_reached() {
    let server = Server::start(|_| say(200, &json!(1)));
    let settings = Settings { allow: vec![Host::parse("api.example.com").unwrap()], ..Settings::default() };
    let bench = bench(settings);
    let trouble = bench.perform(&bench.call("http", "get", fields(&server, json!({})))).await.unwrap_err();
    assert!(trouble.message.contains("http.allow"), "{trouble}");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn credentials_do_not_follow_to_another_host() {
    let other = Server::start(|_| say(200, &json!("there")));
    let port = other.port;
    let server = Server::start(move |request| match request.path.as_str() {
        "/x" => say_with(307, "location", "/same", &json!(0)),
        _ => say_with(302, "location", &format!("http://127.0.0.1:{port}/"), &json!(0)),
    });
    let bench = bench(local(&[server.port, other.port]));
    let more = json!({ "bearer": TOKEN, "headers": { "X-Key": TOKEN, "X-Plain": "p", "Cookie": "c=1" } });
    let mut call = bench.call("http", "get", fields(&server, more));
    call.secret_places = BTreeSet::from(["bearer".to_owned(), "headers/X-Key".to_owned()]);
    bench.perform(&call).await.unwrap();
    let same = &server.seen()[1];
    assert_eq!((same.header("authorization"), same.header("x-key")), (&*format!("Bearer {TOKEN}"), TOKEN));
    let last = &other.seen()[0];
    assert_eq!((last.header("authorization"), last.header("x-key"), last.header("cookie")), ("", "", ""));
    assert_eq!(last.header("x-plain"), "p");
}

#[tokio::test]
async fn a_write_is_not_sent_elsewhere_and_a_circle_ends() {
    let server = Server::start(|_| say_with(307, "location", "/x", &json!(0)));
    let bench = bench(local(&[server.port]));
    let write = bench.call("http", "post", fields(&server, json!({ "method": "POST", "body": "x" })));
    let trouble = bench.perform(&write).await.unwrap_err();
    assert_eq!((trouble.happened, trouble.again, server.seen().len()), (Happened::No, Again::Never, 1));
    let trouble = bench.perform(&bench.call("http", "get", fields(&server, json!({})))).await.unwrap_err();
    assert!(trouble.message.contains("redirects more than"), "{trouble}");
}

#[tokio::test]
async fn each_failure_says_whether_the_effect_may_have_happened() {
    use Again::{After, Never, Soon};
    use Happened::{No, Unknown};
    let minute = After(Duration::from_secs(60));
    let cases = [
        ("/400", No, Never),
        ("/404", No, Never),
        ("/409", No, Never),
        ("/429", No, minute),
        ("/503", No, minute),
        ("/408", No, Soon),
        ("/500", Unknown, Soon),
        ("/502", Unknown, Soon),
        ("/reset", Unknown, Soon),
        ("/stall", Unknown, Soon),
        ("/silence", Unknown, Soon),
    ];
    let server = Server::start(|request| match request.path.as_str() {
        "/429" | "/503" => {
            let status = request.path[1..].parse().unwrap();
            say_with(status, "retry-after", "60", &json!({ "message": "later" }))
        }
        "/reset" => Answer::Reset,
        "/stall" => Answer::Stall,
        "/silence" => Answer::Silence,
        path => say(path[1..].parse().unwrap(), &json!({ "message": "because" })),
    });
    let bench = bench(local(&[server.port]));
    for (path, happened, again) in cases {
        let url = format!("{}{path}", server.url());
        let mut call = bench.call("http", "post", json!({ "url": url, "method": "POST" }));
        if matches!(path, "/stall" | "/silence") {
            call.timeout = Duration::from_millis(200);
        }
        let trouble = bench.perform(&call).await.unwrap_err();
        assert_eq!((trouble.happened, trouble.again), (happened, again), "{path}: {trouble}");
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = super::bench(local(&[closed]));
    let call = nobody.call(
        "http",
        "post",
        json!({ "url": format!("http://127.0.0.1:{closed}/"), "method": "POST" }),
    );
    let trouble = nobody.perform(&call).await.unwrap_err();
    assert_eq!((trouble.happened, trouble.again), (No, Soon), "nothing was sent: {trouble}");
}

#[tokio::test]
async fn a_date_to_come_back_at_is_understood() {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(90);
    let date = jiff::fmt::rfc2822::to_string(&at.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
    let server = Server::start(move |_| say_with(429, "retry-after", &date, &json!(0)));
    let bench = bench(local(&[server.port]));
    let trouble = bench.perform(&bench.call("http", "get", fields(&server, json!({})))).await.unwrap_err();
    let Again::After(wait) = trouble.again else { panic!("{trouble:?}") };
    assert!((60..=90).contains(&wait.as_secs()), "{wait:?}");
}

#[tokio::test]
async fn what_is_large_is_cut_and_says_so() {
    let server = Server::start(|_| Answer::Say(200, Vec::new(), vec![b'x'; wire::BODY_LEN_MAX + 10]));
    let bench = bench(local(&[server.port]));
    let done = bench.perform(&bench.call("http", "get", fields(&server, json!({})))).await.unwrap();
    assert_eq!(done.output["truncated"], json!(true));
    assert_eq!(done.output["body"].as_str().unwrap().len(), OUTPUT_LEN_MAX);
}

#[tokio::test]
async fn headers_that_steer_the_connection_are_not_the_runbooks() {
    let server = Server::start(|_| say(200, &json!(1)));
    let bench = bench(local(&[server.port]));
    for name in ["Host", "Content-Length", "Transfer-Encoding", "a b", "x\r\ny"] {
        let call = bench.call("http", "get", fields(&server, json!({ "headers": { name: "x" } })));
        assert_eq!(bench.perform(&call).await.unwrap_err().code, Code::InvalidInput, "{name}");
    }
    let call = bench.call("http", "get", fields(&server, json!({ "headers": { "X-A": "a\r\nX-B: c" } })));
    assert_eq!(bench.perform(&call).await.unwrap_err().code, Code::InvalidInput);
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_name_that_is_listed_with_a_port_is_reached_at_that_port_alone() {
    let (listed, other) =
        (Server::start(|_| say(200, &json!("in"))), Server::start(|_| say(200, &json!("out"))));
    let to = other.port;
    let hop =
        Server::start(move |_| say_with(302, "location", &format!("http://localhost:{to}/"), &json!(0)));
    let host = |port: u16| Host::parse(&format!("localhost:{port}")).unwrap();
    let settings = Settings { allow_private: vec![host(listed.port), host(hop.port)], ..Settings::default() };
    let bench = bench(settings);
    let get = |port: u16| json!({ "url": format!("http://localhost:{port}/") });
    bench.perform(&bench.call("http", "get", get(listed.port))).await.unwrap();
    for port in [other.port, hop.port] {
        let trouble = bench.perform(&bench.call("http", "get", get(port))).await.unwrap_err();
        assert_eq!((trouble.code, trouble.happened), (Code::PolicyDenied, Happened::No), "{trouble}");
    }
    assert_eq!((listed.seen().len(), other.seen().len()), (1, 0));
}
