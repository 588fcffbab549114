//! One caller's worst beside another's steady small requests: nobody is kept out, and no single answer stalls.
//!
//! `scripts/outside-load` measures the same in its long form.

use crate::http::{Answer, Server};
use crate::support::{text, until};
use serde_json::{Value, json};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const YAML: [(&str, &str); 1] = [("content-type", "application/yaml")];
/// How long an answer may take on a slow machine that does other things too, from a build that is not optimised. Before
/// there were bounds it was a minute.
const STALL_MAX: Duration = Duration::from_secs(4);

/// A tenant that asks for something small all the time.
struct Steady {
    over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Steady {
    fn start(server: &Arc<Server>) -> Steady {
        let token = server.of("small", "default");
        let book = "name: tick\npipelines:\n  tick:\n    steps:\n      - { id: s, when: '${{ false }}', run: 'true' }\n";
        server.send("POST", "/v1/runbooks", Some(&token), &YAML, book.as_bytes()).status(201);
        let (over, own) = (Arc::new(AtomicBool::new(false)), server.clone());
        let (stop, done) = (over.clone(), Arc::new(AtomicUsize::new(0)));
        let count = done.clone();
        let thread = std::thread::spawn(move || {
            let mut took = Vec::new();
            while !stop.load(Ordering::Acquire) {
                let began = Instant::now();
                own.ask("GET", "/healthz", None, None).status(200);
                took.push(began.elapsed());
                let began = Instant::now();
                own.ask("POST", "/v1/runs", Some(&token), Some(&json!({ "pipeline": "tick" }))).status(201);
                took.push(began.elapsed());
                count.fetch_add(1, Ordering::Release);
            }
            took
        });
        Steady { over, done, thread }
    }

    /// How many runs it has had so far.
    fn done(&self) -> usize {
        self.done.load(Ordering::Acquire)
    }

    /// Ends it, and returns the longest that it waited for an answer.
    fn longest(self) -> Duration {
        self.over.store(true, Ordering::Release);
        self.thread.join().unwrap().into_iter().max().unwrap()
    }
}

fn deploy(server: &Server, token: &str, book: &str) {
    server.send("POST", "/v1/runbooks", Some(token), &YAML, book.as_bytes()).status(201);
}

fn run(server: &Server, token: &str, pipeline: &str, vars: &Value) -> String {
    let wish = json!({ "pipeline": pipeline, "vars": vars });
    let made = server.ask("POST", "/v1/runs", Some(token), Some(&wish)).status(201).json();
    text(&made, "id").to_owned()
}

fn show(server: &Server, token: &str, run: &str) -> Value {
    server.ask("GET", &format!("/v1/runs/{run}"), Some(token), None).status(200).json()
}

/// An expression that is as much work as `times` texts of the list.
fn costly(times: usize) -> String {
    let part = vec!["toJSON(vars.l) == ''"; times].join(" || ");
    format!("${{{{ {part} ? 'a' : 'b' }}}}")
}

/// A pipeline's step with eight such expressions in its environment, for each item or once.
fn eight(pipeline: &str, times: usize, each: bool) -> String {
    let env: String = (0..8).map(|n| format!("          E{n}: \"{}\"\n", costly(times))).collect();
    let each = if each { "        foreach: ${{ vars.l }}\n        max_parallel: 1000\n" } else { "" };
    format!(
        "  {pipeline}:\n    vars:\n      l: {{ default: [] }}\n    steps:\n      - id: each\n{each}        run: sleep 600\n        env:\n{env}"
    )
}

/// How many texts of the list make the expressions of one item half of what they may be, and how many are too many.
const NEAR: usize = 10;

/// A thousand items begin at once, and the expressions of each are nearly as much work as the bound allows. Another tenant
/// is served between them: not within some time, which a busy machine does not keep, but between so many of them.
#[test]
fn a_group_of_a_thousand_costly_members_stops_nobody() {
    let server = Arc::new(Server::start());
    let token = server.of("big", "default");
    let book = [eight("group", NEAR, true), eight("over", 2 * NEAR, false)].concat();
    deploy(&server, &token, &format!("name: group\npipelines:\n{book}"));
    let items = json!({ "l": (0..1_000).collect::<Vec<usize>>() });
    // Twice as much is more than the bound, so this is more than half of it.
    let over = run(&server, &token, "over", &items);
    let over = until("the end of what is too much", || {
        Some(show(&server, &token, &over)).filter(|shown| shown["status"] == "failed")
    });
    assert!(text(&over["error"], "message").contains("too much work"), "{}", over["error"]);
    let steady = Steady::start(&server);
    let id = run(&server, &token, "group", &items);
    let begun = || {
        let steps =
            server.ask("GET", &format!("/v1/runs/{id}/steps"), Some(&token), None).status(200).items();
        steps.iter().filter(|step| text(step, "id").starts_with("each[")).count()
    };
    until("the first members", || (begun() > 10).then_some(()));
    let (first, before) = (begun(), steady.done());
    // It is stopped in the middle: what is left of it is not waited for.
    until("many more members", || (begun() >= first + 150).then_some(()));
    let (members, served) = (begun() - first, steady.done() - before);
    server.ask("POST", &format!("/v1/runs/{id}/cancel"), Some(&token), Some(&json!({}))).status(200);
    until("its end", || (show(&server, &token, &id)["status"] == "cancelled").then_some(()));
    assert!(served * 32 >= members, "another tenant had {served} runs while {members} members began");
    let longest = steady.longest();
    assert!(longest < STALL_MAX, "another tenant waited for {longest:?}");
}

/// So many expressions in one step are too much together, and the step says so.
#[test]
fn the_expressions_of_a_step_are_bounded_together() {
    let server = Arc::new(Server::start());
    let token = server.of("big", "default");
    let env: String = (0..250).map(|n| format!("          E{n}: ${{{{ toJSON(vars.l) }}}}\n")).collect();
    deploy(
        &server,
        &token,
        &format!(
            "name: many\npipelines:\n  many:\n    vars:\n      l: {{ default: [] }}\n    steps:\n      - id: s\n        \
             run: 'true'\n        env:\n{env}"
        ),
    );
    let steady = Steady::start(&server);
    let list: Vec<usize> = (0..5_000).collect();
    let id = run(&server, &token, "many", &json!({ "l": list }));
    let ended = until("its end", || {
        let shown = show(&server, &token, &id);
        (shown["status"] == "failed").then_some(shown)
    });
    assert_eq!(text(&ended["error"], "code"), "EXPRESSION_FAILED");
    assert!(text(&ended["error"], "message").contains("too much work together"), "{}", ended["error"]);
    let longest = steady.longest();
    assert!(longest < STALL_MAX, "another tenant waited for {longest:?}");
}

#[test]
fn readers_and_connections_that_do_nothing_keep_nobody_out() {
    let server = Server::start();
    let token = server.of("big", "default");
    let reader = || {
        let mut stream = server.connect();
        let head = server.request("GET", "/v1/events", Some(&token), &[], b"");
        stream
            .write_all(&String::from_utf8(head).unwrap().replace("connection: close\r\n", "").into_bytes())
            .unwrap();
        let answer = Answer::head(&mut stream);
        (stream, answer)
    };
    let mut held = Vec::new();
    let refused = loop {
        let (stream, answer) = reader();
        if answer.status != 200 {
            break answer;
        }
        held.push(stream);
        assert!(held.len() < 1_024, "a caller may read as often as it likes");
    };
    assert_eq!((refused.status, held.len()), (429, 192));
    // What asks for an end is refused too, and what is short is answered.
    server.ask("GET", "/v1/runs", Some(&token), None).status(200);
    held.pop();
    until("room for another reader", || {
        let (stream, answer) = reader();
        held.push(stream);
        (answer.status == 200).then_some(())
    });
    // More connections than there may be, which ask for nothing.
    let idle: Vec<_> = (0..1_100).map(|_| server.connect()).collect();
    let began = Instant::now();
    server.ask("GET", "/healthz", None, None).status(200);
    server.ask("GET", "/v1/runs", Some(&server.owner()), None).status(200);
    // Each of them would be there for 15 seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "it took {:?}", began.elapsed());
    drop(idle);
}

#[test]
fn a_client_does_not_wait_for_ever_for_a_server_that_takes_its_connection_and_says_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let held = std::thread::spawn(move || listener.accept().map(|(stream, _)| stream));
    let project = crate::support::Project::new();
    let url = format!("http://{address}");
    let done = project.windlass(&["runs", "--server", &url]).code(75);
    assert!(done.err.contains("did not answer within"), "{}", done.err);
    drop(held);
}

#[test]
fn events_that_nobody_waits_for_are_kept_up_to_a_bound() {
    let server = Server::start();
    let (token, other) = (server.of("big", "default"), server.of("small", "default"));
    let send = |token: &str, n: usize, len: usize| {
        let body = json!({ "key": "k", "data": { "t": "x".repeat(len) } });
        server.ask("POST", &format!("/v1/signals/s{n}"), Some(token), Some(&body))
    };
    let mut kept = 0;
    let refused = loop {
        let answer = send(&token, kept, 1_000_000);
        if answer.status >= 300 {
            break answer;
        }
        kept += 1;
        assert!(kept < 100, "there is no bound");
    };
    refused.problem(429, "CAP_EXCEEDED");
    assert_eq!(kept, 33, "32 MiB of a tenant");
    assert!(send(&token, 0, 10).status < 300, "a small one still fits");
    assert!(send(&other, 0, 1_000_000).status < 300, "another tenant has its own");
}

/// A small run beside a large one of the same namespace.
#[test]
fn a_small_run_is_served_within_a_few_steps_of_a_large_one() {
    let server = Server::start();
    let token = server.of("big", "default");
    deploy(
        &server,
        &token,
        "name: b\npipelines:\n  large:\n    vars:\n      l: { default: [] }\n    steps:\n      - id: each\n        foreach: \
         ${{ vars.l }}\n        max_parallel: 1000\n        run: sleep 0.3\n  small:\n    steps:\n      - { id: s, run: 'true' }\n",
    );
    let items: Vec<usize> = (0..1_000).collect();
    let large = run(&server, &token, "large", &json!({ "l": items }));
    let done = || {
        let steps = server.ask("GET", &format!("/v1/runs/{large}/steps"), Some(&token), None).items();
        steps.iter().filter(|step| step["status"] == "succeeded").count()
    };
    until("the first members", || (done() >= 16).then_some(()));
    let before = done();
    let small = run(&server, &token, "small", &json!({}));
    until("the small run", || (show(&server, &token, &small)["status"] == "completed").then_some(()));
    let meanwhile = done() - before;
    // It has the first of the sixteen places that comes free. Before, all of the large one came first.
    assert!(meanwhile < 200, "{meanwhile} steps of the large run came first");
    server.ask("POST", &format!("/v1/runs/{large}/cancel"), Some(&token), Some(&json!({}))).status(200);
}

fn batch(server: &Server, token: &str, pipeline: &str, items: &[Value]) -> Answer {
    let body = json!({ "pipeline": pipeline, "items": items });
    server.ask("POST", "/v1/runs/batch", Some(token), Some(&body))
}

/// A short request for very much: each of its runs has the default of a variable.
#[test]
fn a_batch_that_comes_to_too_much_is_refused_before_anything_is_made() {
    let server = Arc::new(Server::start());
    let token = server.of("big", "default");
    let large = "x".repeat(200_000);
    deploy(
        &server,
        &token,
        &format!(
            "name: much\npipelines:\n  much:\n    vars:\n      t: {{ default: {large} }}\n    steps:\n      - {{ id: s, when: '${{{{ false \
             }}}}', run: 'true' }}\n"
        ),
    );
    let steady = Steady::start(&server);
    let refused = batch(&server, &token, "much", &vec![json!({}); 300]);
    assert!(refused.json()["detail"].as_str().unwrap().contains("60000600 bytes"), "{:?}", refused.json());
    refused.problem(429, "CAP_EXCEEDED");
    let runs = server.ask("GET", "/v1/runs", Some(&token), None).items();
    assert!(runs.is_empty(), "it is refused whole");
    // What it may come to is made, in several parts, and answered whole.
    let made = batch(&server, &token, "much", &vec![json!({}); 80]).status(201).items();
    assert_eq!(made.iter().filter(|one| one.get("id").is_some()).count(), 80);
    let own =
        batch(&server, &token, "much", &vec![json!({ "vars": { "t": "own" } }); 1_000]).status(201).items();
    assert_eq!(own.iter().filter(|one| one.get("id").is_some()).count(), 1_000);
    // None of the other tenant's requests was refused, above all not for want of room.
    let longest = steady.longest();
    assert!(longest < STALL_MAX, "another tenant waited for {longest:?}");
}

#[test]
fn patterns_that_need_much_stop_nobody() {
    let server = Arc::new(Server::start());
    let token = server.of("big", "default");
    let book = |count: usize, pattern: &dyn Fn(usize) -> String| {
        let vars: String = (0..count)
            .map(|n| format!("      v{n}: {{ default: x, pattern: '{}' }}\n", pattern(n)))
            .collect();
        format!(
            "name: patterns\npipelines:\n  patterns:\n    vars:\n{vars}    steps:\n      - {{ id: s, when: '${{{{ false }}}}', run: 'true' }}\n"
        )
    };
    let steady = Steady::start(&server);
    let many = book(1_000, &|n| format!(r"\w{{1,9}}|x{n}"));
    let refused = server.send("POST", "/v1/runbooks", Some(&token), &YAML, many.as_bytes());
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    refused.problem(422, "RUNBOOK_INVALID");
    assert!(detail.contains(r"`\w{1,9}|x") && detail.contains("more than it may have"), "{detail}");
    deploy(&server, &token, &book(3, &|n| [r"^\w+$", r"^\w{1,5}$", r"^\w+@\w+$|^x$"][n].to_owned()));
    let items = vec![json!({ "vars": { "v0": "abc", "v1": "a", "v2": "a@b" } }); 1_000];
    let made = batch(&server, &token, "patterns", &items).status(201).items();
    assert_eq!(made.iter().filter(|one| one.get("id").is_some()).count(), 1_000);
    let plan = json!({ "runbook": "patterns", "vars": { "v0": "no match" } });
    server.ask("POST", "/v1/plan", Some(&token), Some(&plan)).problem(400, "INVALID_INPUT");
    let longest = steady.longest();
    assert!(longest < STALL_MAX, "another tenant waited for {longest:?}");
}

/// Large bodies and long reads, one after the other, from as many connections as there are.
#[test]
fn large_bodies_and_long_reads_stop_nobody() {
    let server = Arc::new(Server::start());
    let token = server.of("big", "default");
    deploy(
        &server,
        &token,
        "name: list\npipelines:\n  list:\n    vars:\n      l: { default: [] }\n    steps:\n      - { id: s, when: '${{ false }}', run: 'true' }\n",
    );
    let steady = Steady::start(&server);
    let list: Vec<u8> = vec![1; 100_000];
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (server, token, list) = (server.clone(), token.clone(), list.clone());
            std::thread::spawn(move || {
                for _ in 0..2 {
                    run(&server, &token, "list", &json!({ "l": list }));
                    let read = server.ask("GET", "/v1/events?follow=false", Some(&token), None).status(200);
                    assert!(read.body.len() > list.len());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let longest = steady.longest();
    assert!(longest < STALL_MAX, "another tenant waited for {longest:?}");
}
