//! Locks and semaphores over HTTP, for programs that only want coordination.

use crate::server::{Asker, How, Server};
use crate::support::{Project, until};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::thread::JoinHandle;
use windlass_core::code::Code;

fn server() -> (tempfile::TempDir, Server, Asker) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), How::default());
    let client = server.client();
    (dir, server, client)
}

fn take(holder: &str, wait_ms: u64) -> Value {
    json!({ "holder": holder, "wait_ms": wait_ms })
}

/// Asks on a thread of its own, and waits until it stands in line.
fn in_line(address: SocketAddr, client: &Asker, path: &'static str, body: Value) -> JoinHandle<Value> {
    let holder = body["holder"].as_str().unwrap().to_owned();
    let asking = std::thread::spawn(move || {
        let answer = Asker::new(address).try_post(&format!("{path}/acquire"), &body);
        answer.unwrap_or_else(|failure| failure.problem.unwrap_or_default())
    });
    until(&format!("{holder} in line"), || waits(client, path, &holder).then_some(()));
    asking
}

fn waits(client: &Asker, path: &str, holder: &str) -> bool {
    let shown = client.get(path);
    shown["waiters"].as_array().unwrap().iter().any(|waiter| waiter["holder"] == holder)
}

#[test]
fn a_lock_is_held_kept_alive_and_given_back() {
    let (_dir, _server, client) = server();
    let grant = client.post("/v1/locks/deploy/acquire", &take("a", 0));
    assert_eq!(
        (&grant["result"], &grant["epoch"], &grant["holder"]),
        (&json!("acquired"), &json!(1), &json!("a"))
    );
    assert!(grant["acquired_at"].is_string() && grant["expires_at"].is_string(), "{grant}");
    // Asking again is the same hold.
    let again = client.post("/v1/locks/deploy/acquire", &take("a", 0));
    assert_eq!((&again["result"], &again["epoch"]), (&json!("extended"), &json!(1)));
    let busy = client.refused("/v1/locks/deploy/acquire", &take("b", 0), Code::LockBusy);
    assert_eq!(
        (&busy["result"], &busy["holder"], &busy["status"]),
        (&json!("busy"), &json!("a"), &json!(409))
    );
    let beat = client.post("/v1/locks/deploy/heartbeat", &json!({ "holder": "a", "epoch": 1 }));
    assert_eq!(beat["result"], "extended");
    client.refused(
        "/v1/locks/deploy/heartbeat",
        &json!({ "holder": "a", "epoch": 9 }),
        Code::LeaseStaleEpoch,
    );
    client.refused("/v1/locks/deploy/release", &json!({ "holder": "a", "epoch": 9 }), Code::LeaseStaleEpoch);
    let other = client.post("/v1/locks/deploy/release", &json!({ "holder": "b" }));
    assert_eq!(other["result"], "not_owner");
    let free = client.post("/v1/locks/deploy/release", &json!({ "holder": "a", "epoch": 1 }));
    assert_eq!((&free["result"], &free["epoch"]), (&json!("released"), &json!(1)));
    let next = client.post("/v1/locks/deploy/acquire", &take("b", 0));
    assert_eq!(next["epoch"], 2, "every grant has a higher epoch");
}

#[test]
fn a_lock_goes_down_the_line_first_come_first_served() {
    let (_dir, server, client) = server();
    client.post("/v1/locks/l/acquire", &take("first", 0));
    let names = ["w1", "w2", "w3"];
    let asking: Vec<_> = names
        .iter()
        .map(|name| in_line(server.address, &client, "/v1/locks/l", take(name, 60_000)))
        .collect();
    let mut holder = "first".to_owned();
    for (n, asking) in asking.into_iter().enumerate() {
        let released = client.post("/v1/locks/l/release", &json!({ "holder": holder }));
        let told = (&released["result"], &released["holder"], &released["epoch"]);
        assert_eq!(told, (&json!("released"), &json!(holder), &json!(n + 1)), "what was given back");
        assert!(released.get("expires_at").is_none(), "{released}");
        let grant = asking.join().unwrap();
        assert_eq!((&grant["holder"], &grant["epoch"]), (&json!(names[n]), &json!(n + 2)), "{grant}");
        holder = names[n].to_owned();
    }
}

#[test]
fn whoever_goes_away_or_waited_long_enough_leaves_the_line() {
    let (_dir, server, client) = server();
    client.post("/v1/locks/l/acquire", &take("first", 0));
    // One whose time is over hears that the lock is busy.
    let over = client.refused("/v1/locks/l/acquire", &take("short", 50), Code::LockBusy);
    assert_eq!((&over["result"], &over["holder"]), (&json!("busy"), &json!("first")));
    // One that hangs up is in line until the server sees it.
    let text = take("gone", 60_000).to_string();
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST /v1/locks/l/acquire HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
    until("gone in line", || waits(&client, "/v1/locks/l", "gone").then_some(()));
    let after = in_line(server.address, &client, "/v1/locks/l", take("after", 60_000));
    drop(stream);
    until("gone to leave", || (!waits(&client, "/v1/locks/l", "gone")).then_some(()));
    client.post("/v1/locks/l/release", &json!({ "holder": "first" }));
    assert_eq!(after.join().unwrap()["holder"], "after");
}

#[test]
fn who_asks_again_keeps_its_place_and_the_newer_request_is_answered() {
    let (_dir, server, client) = server();
    client.post("/v1/locks/l/acquire", &take("first", 0));
    let older = in_line(server.address, &client, "/v1/locks/l", take("w1", 60_000));
    let second = in_line(server.address, &client, "/v1/locks/l", take("w2", 60_000));
    let address = server.address;
    let newer =
        std::thread::spawn(move || Asker::new(address).post("/v1/locks/l/acquire", &take("w1", 50_000)));
    let replaced = older.join().unwrap();
    assert_eq!(replaced["code"], Code::LockBusy.as_str(), "{replaced}");
    client.post("/v1/locks/l/release", &json!({ "holder": "first" }));
    assert_eq!(newer.join().unwrap()["epoch"], 2, "it was first in line and still is");
    client.post("/v1/locks/l/release", &json!({ "holder": "w1" }));
    assert_eq!(second.join().unwrap()["epoch"], 3);
}

#[test]
fn a_holder_that_stops_beating_loses_the_lock() {
    let (_dir, server, client) = server();
    let yaml = "
name: locks
locks: { quick: { heartbeat_timeout: 300ms } }
pipelines: { p: { steps: [{ run: 'true' }] } }
";
    client.run(yaml);
    client.post("/v1/locks/quick/acquire", &take("dead", 0));
    let next = in_line(server.address, &client, "/v1/locks/quick", take("next", 60_000)).join().unwrap();
    assert_eq!((&next["holder"], &next["epoch"]), (&json!("next"), &json!(2)));
    let late = json!({ "holder": "dead", "epoch": 1 });
    client.refused("/v1/locks/quick/heartbeat", &late, Code::LeaseStaleEpoch);
    assert_eq!(client.post("/v1/locks/quick/release", &late)["result"], "not_owner");
}

#[test]
fn slots_are_weighed_and_handed_on() {
    let (_dir, server, client) = server();
    let unknown = json!({ "holder": "a", "weight": 1 });
    client.refused("/v1/semaphores/nobody-declared-it/acquire", &unknown, Code::NotFound);
    let yaml = "
name: slots
semaphores: { builders: { capacity: 3 } }
pipelines: { p: { steps: [{ run: 'true' }] } }
";
    client.run(yaml);
    let path = "/v1/semaphores/builders";
    let slots = |holder: &str, weight: u32, wait_ms: u64| json!({ "holder": holder, "weight": weight, "wait_ms": wait_ms });
    let two = client.post(&format!("{path}/acquire"), &slots("a", 2, 0));
    assert_eq!((&two["result"], &two["weight"]), (&json!("acquired"), &json!(2)));
    let full = client.refused(&format!("{path}/acquire"), &slots("b", 2, 0), Code::LockBusy);
    assert_eq!(full["result"], "full");
    client.refused(&format!("{path}/acquire"), &slots("b", 4, 0), Code::InvalidInput);
    let waiting = in_line(server.address, &client, "/v1/semaphores/builders", slots("b", 2, 60_000));
    client.post(&format!("{path}/release"), &json!({ "holder": "a", "epoch": two["epoch"] }));
    let grant = waiting.join().unwrap();
    assert_eq!((&grant["holder"], &grant["weight"], &grant["epoch"]), (&json!("b"), &json!(2), &json!(2)));
    let stale = json!({ "holder": "b", "epoch": 1 });
    client.refused(&format!("{path}/heartbeat"), &stale, Code::LeaseStaleEpoch);
}

#[test]
fn tenants_do_not_see_each_others_locks_and_runs_names_are_theirs() {
    let (_dir, server, client) = server();
    let other = Asker::new(server.also_for("acme"));
    client.post("/v1/locks/l/acquire", &take("me", 0));
    let theirs = other.post("/v1/locks/l/acquire", &take("me", 0));
    assert_eq!((&theirs["result"], &theirs["holder"]), (&json!("acquired"), &json!("me")), "another lock");
    assert_eq!(other.get("/v1/locks/l")["holder"], "me");
    for name in ["pipeline:run_1", "worker:w", ""] {
        client.refused("/v1/locks/l/acquire", &take(name, 0), Code::InvalidInput);
    }
    client.refused("/v1/locks/l/acquire", &json!({ "holder": "x", "weight": 2 }), Code::InvalidInput);
}

#[test]
fn a_beat_keeps_nothing_alive_that_another_tenant_or_namespace_holds() {
    let (_dir, server, client) = server();
    let yaml = "
name: locks
locks: { quick: { heartbeat_timeout: 300ms } }
pipelines: { p: { steps: [{ run: 'true' }] } }
";
    let other = server.also_for("acme");
    let theirs = Asker::new(other);
    theirs.run(yaml);
    theirs.post("/v1/locks/quick/acquire", &take("h1", 0));
    let next = in_line(other, &theirs, "/v1/locks/quick", take("next", 60_000));
    // Somebody else takes the name that this holder has inside, and beats for as long as it takes.
    let imposter = "acme/default/h1";
    let epoch = client.post("/v1/locks/mine/acquire", &take(imposter, 0))["epoch"].clone();
    assert_eq!(client.get("/v1/locks/mine")["holder"], imposter);
    until("their lock is handed on", || {
        client.post("/v1/locks/mine/heartbeat", &json!({ "holder": imposter, "epoch": epoch }));
        (theirs.get("/v1/locks/quick")["holder"] == "next").then_some(())
    });
    assert_eq!(next.join().unwrap()["epoch"], 2);
}

#[test]
fn locks_are_listed_page_by_page_and_only_the_callers() {
    let (_dir, server, client) = server();
    let other = Asker::new(server.also_for("acme"));
    other.post("/v1/locks/theirs/acquire", &take("x", 0));
    for name in ["c", "a", "b%2F1", "d"] {
        client.post(&format!("/v1/locks/{name}/acquire"), &take("me", 0));
    }
    let names = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        items.map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
    };
    let all = client.get("/v1/locks");
    assert_eq!(
        (names(&all), all.get("next_cursor")),
        (["a", "b/1", "c", "d"].map(str::to_owned).to_vec(), None)
    );
    let first = client.get("/v1/locks?limit=2");
    assert_eq!(
        (names(&first), &first["next_cursor"]),
        (vec!["a".to_owned(), "b/1".to_owned()], &json!("b/1"))
    );
    let rest = client.get("/v1/locks?limit=2&cursor=b%2F1");
    assert_eq!((names(&rest), rest.get("next_cursor")), (vec!["c".to_owned(), "d".to_owned()], None));
    assert_eq!(names(&other.get("/v1/locks")), ["theirs"]);
    assert!(names(&client.get("/v1/semaphores")).is_empty());
}

#[test]
fn the_command_line_holds_a_lock_while_a_command_runs() {
    let project = Project::new();
    let inside = "echo \"epoch $WL_EPOCH\"; \"$0\" locks --json";
    let exe = env!("CARGO_BIN_EXE_windlass");
    let words = ["lock", "acquire", "deploy", "--wait", "30s", "--", "bash", "-c", inside, exe];
    let done = project.windlass(&words).code(0);
    let mut lines = done.out.lines();
    assert_eq!(lines.next(), Some("epoch 1"));
    let locks: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!((&locks["items"][0]["state"], &locks["items"][0]["epoch"]), (&json!("held"), &json!(1)));
    let after = project.windlass(&["locks", "--json"]).code(0).json();
    assert_eq!(after["items"][0]["state"], "free", "it was given back");
    // The command's own exit code is the answer, and the lock is free all the same.
    project.windlass(&["lock", "acquire", "deploy", "--", "bash", "-c", "exit 9"]).code(9);
    project.windlass(&["lock", "acquire", "deploy", "--holder", "a"]).code(0).says("under epoch 3");
    project.windlass(&["lock", "acquire", "deploy", "--holder", "b"]).code(75).warns("LOCK_BUSY");
    project.windlass(&["lock", "release", "deploy", "--holder", "b"]).code(75);
    project.windlass(&["lock", "release", "deploy", "--holder", "a"]).code(0).says("released");
}

#[test]
fn holders_say_about_themselves_and_when_they_were_last_heard_of() {
    let (_dir, server, client) = server();
    let asked = json!({ "holder": "a", "metadata": { "job": 7 } });
    client.post("/v1/locks/deploy/acquire", &asked);
    let lock = client.get("/v1/locks/deploy");
    assert_eq!((&lock["holder"], &lock["metadata"]), (&json!("a"), &json!({ "job": 7 })));
    assert!(lock["last_heartbeat"].is_string() && lock["expires_at"].is_string(), "{lock}");
    client.post("/v1/locks/deploy/heartbeat", &json!({ "holder": "a", "epoch": 1 }));
    assert!(client.get("/v1/locks/deploy")["last_heartbeat"].as_str() >= lock["last_heartbeat"].as_str());
    client.run(
        "
name: slots
semaphores: { builders: { capacity: 4 } }
pipelines: { p: { steps: [{ run: 'true' }] } }
",
    );
    client.post("/v1/semaphores/builders/acquire", &json!({ "holder": "a", "weight": 3 }));
    let shown = client.get("/v1/semaphores/builders");
    assert_eq!((&shown["used"], &shown["available"]), (&json!(3), &json!(1)));
    assert!(shown["holders"][0]["last_heartbeat"].is_string(), "{shown}");
    // Who does not wait, and who has waited for nothing, hear how many are free.
    for wait_ms in [0, 100] {
        let ask = json!({ "holder": "b", "weight": 2, "wait_ms": wait_ms });
        let full = client.refused("/v1/semaphores/builders/acquire", &ask, Code::LockBusy);
        assert_eq!((&full["result"], &full["available"]), (&json!("full"), &json!(1)), "{full}");
    }
    drop(server);
}
