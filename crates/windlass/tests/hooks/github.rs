//! Deliveries of GitHub.

use crate::support::{Project, text, until};
use crate::wire::{Answer, Serving, sign};
use serde_json::{Value, json};
use std::io::Write as _;
use std::os::unix::net::UnixStream;

const SECRET: &str = "it's a secret to everybody";

const BOOK: &str = r#"
name: ci
triggers:
  opened:
    github: { event: pull_request, action: opened }
    when: event.pull_request.draft == false
    vars: { repo: '${{ event.repository.full_name }}', number: '${{ event.pull_request.number }}' }
    pipeline: review
  merged:
    github: { event: pull_request, action: closed }
    when: event.pull_request.merged
    signal: merged
    key: '${{ event.repository.full_name }}#${{ event.pull_request.number }}'
    vars: { sha: '${{ event.pull_request.merge_commit_sha }}' }
  pushed:
    github: { event: push }
    vars: { ref: '${{ event.ref }}' }
    pipeline: build
pipelines:
  review:
    vars: { repo: { required: true, pattern: '^[a-z/-]+$' }, number: { type: number } }
    steps: [{ run: 'test -n "$WL_VAR_REPO"' }]
  build:
    vars: { ref: { required: true, pattern: '^refs/heads/[a-z]+$' } }
    steps: [{ run: 'true' }]
  land:
    vars: { key: { required: true } }
    steps: [{ id: w, wait: { event: merged, key: '${{ vars.key }}' } }]
"#;

const OTHER: &str = r#"
name: audit
triggers:
  seen: { github: { event: pull_request, action: opened }, pipeline: note }
  shaky: { github: { event: pull_request, action: opened }, when: event.nothing.there == 1, pipeline: note }
pipelines: { note: { steps: [{ run: 'true' }] } }
"#;

fn serve(runbooks: &[&str]) -> Serving {
    let project = Project::new().env("WINDLASS_GITHUB_WEBHOOK_SECRET", &format!("older, {SECRET}"));
    Serving::new(project, runbooks)
}

fn pull(action: &str, number: u32) -> Value {
    json!({
        "action": action,
        "repository": { "full_name": "octo/repo", "html_url": "https://github.test/octo/repo" },
        "pull_request": {
            "number": number, "draft": false, "merged": action == "closed", "merge_commit_sha": "abc",
            "html_url": format!("https://github.test/octo/repo/pull/{number}"),
        },
        "sender": { "login": "octocat" },
    })
}

fn deliver(serving: &Serving, event: &str, id: &str, body: &[u8]) -> Answer {
    let signature = format!("sha256={}", sign(SECRET, &[body]));
    let headers = [
        ("x-hub-signature-256", signature.as_str()),
        ("x-github-event", event),
        ("x-github-delivery", id),
        ("content-type", "application/json"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ];
    serving.post("/hooks/github", &headers, body)
}

#[test]
fn the_same_delivery_fifty_times_at_once_makes_one_run() {
    let serving = serve(&[BOOK]);
    let body = pull("opened", 7).to_string();
    serving.fifty(|serving| deliver(serving, "pull_request", "d-1", body.as_bytes()), Answer::json);
    let runs = serving.runs("review");
    assert_eq!(runs.len(), 1, "{runs:?}");
    let run = &serving.get(&format!("/v1/runs/{}", text(&runs[0], "id"))).json();
    assert_eq!(run["vars"], json!({ "repo": "octo/repo", "number": 7 }));
    assert_eq!(run["trigger"]["source"], "webhook");
    assert_eq!(run["trigger"]["key"], "github:d-1");
    assert_eq!(run["trigger"]["event_id"], "d-1");
    assert_eq!(run["trigger"]["user"], "github:octocat");
    assert_eq!(
        run["subject"],
        json!({ "repo": "octo/repo", "pr": "7", "url": "https://github.test/octo/repo/pull/7" })
    );
}

#[test]
fn a_redelivery_gets_the_first_answer_even_after_a_crash_and_another_payload_is_a_conflict() {
    let mut serving = serve(&[BOOK]);
    let body = pull("opened", 7).to_string();
    let first = deliver(&serving, "pull_request", "d-1", body.as_bytes()).is(201);
    serving.restart();
    let again = deliver(&serving, "pull_request", "d-1", body.as_bytes()).is(200);
    assert!(again.replayed() && again.text == first.text, "{again:?}");
    let other = deliver(&serving, "pull_request", "d-1", pull("opened", 8).to_string().as_bytes()).is(409);
    let told = until("a line in the log", || serving.told("idempotency_conflict").pop());
    assert_eq!((&told["level"], &told["source"]), (&json!("WARN"), &json!("github")), "{told}");
    assert!(text(&told, "key").contains("d-1"), "{told}");
    assert_eq!(other.json()["code"], "IDEMPOTENCY_CONFLICT");
    assert_eq!(serving.runs("review").len(), 1);
    deliver(&serving, "pull_request", "d-2", body.as_bytes()).is(201);
    assert_eq!(serving.runs("review").len(), 2, "another delivery is another run");
}

const NEEDY: &str = r#"
name: needy
triggers:
  ship: { github: { event: pull_request, action: opened }, pipeline: ship }
pipelines:
  test: { steps: [{ run: 'true' }] }
  ship: { needs: [test], steps: [{ run: 'true' }] }
"#;

/// Coverage: 000 Pipeline transitions, "(Init,Start) unmet dependencies → Blocked": also for what a trigger makes.
#[test]
fn a_trigger_whose_pipeline_needs_what_has_not_run_makes_a_run_that_waits() {
    let serving = serve(&[BOOK, NEEDY]);
    let body = pull("opened", 7).to_string();
    let answer = deliver(&serving, "pull_request", "d-1", body.as_bytes()).is(201).json();
    let triggers: Vec<&str> =
        answer["runs"].as_array().unwrap().iter().map(|run| text(run, "trigger")).collect();
    assert_eq!(triggers, ["ci/opened", "needy/ship"], "{answer}");
    let ship = &serving.runs("ship")[0];
    assert_eq!((&ship["status"], &ship["reason"]), (&json!("blocked"), &json!("pipeline test")));
    let json = [("content-type", "application/json")];
    serving.post("/v1/runs", &json, br#"{"pipeline":"test"}"#).is(201);
    until("the run that waited", || (serving.runs("ship")[0]["status"] == "completed").then_some(()));
}

#[test]
fn every_trigger_that_matches_makes_a_run_and_one_that_errs_does_not() {
    let serving = serve(&[BOOK, OTHER]);
    let answer =
        deliver(&serving, "pull_request", "d-1", pull("opened", 7).to_string().as_bytes()).is(201).json();
    let triggers: Vec<&str> =
        answer["runs"].as_array().unwrap().iter().map(|run| text(run, "trigger")).collect();
    assert_eq!(triggers, ["audit/seen", "ci/opened"], "{answer}");
    assert_eq!(answer["errors"][0]["trigger"], "audit/shaky");
    assert_eq!((serving.runs("review").len(), serving.runs("note").len()), (1, 1));
    let mut draft = pull("opened", 8);
    draft["pull_request"]["draft"] = json!(true);
    let answer = deliver(&serving, "pull_request", "d-2", draft.to_string().as_bytes()).is(201).json();
    assert_eq!(answer["runs"].as_array().unwrap().len(), 1, "{answer}");
    let answer = deliver(&serving, "watch", "d-3", b"{}").is(200).json();
    assert_eq!(answer["runs"], json!([]));
    let ping = deliver(&serving, "ping", "d-4", br#"{"zen":"Keep it simple."}"#).is(200);
    assert_eq!(ping.json()["pong"], "Keep it simple.");
}

#[test]
fn values_that_do_not_fit_fail_the_delivery_three_times_and_no_more() {
    let serving = serve(&[BOOK]);
    let body = json!({ "ref": "refs/heads/; rm -rf /" }).to_string();
    for _ in 0..3 {
        let answer = deliver(&serving, "push", "d-1", body.as_bytes()).is(400);
        assert!(text(&answer.json(), "detail").contains("`ref` must match"), "{answer:?}");
    }
    let answer = deliver(&serving, "push", "d-1", body.as_bytes()).is(422);
    assert!(text(&answer.json(), "detail").contains("failed 3 times"), "{answer:?}");
    let missing = deliver(&serving, "push", "d-2", b"{}").is(422).json();
    assert_eq!(missing["code"], "EXPRESSION_FAILED");
    assert!(serving.runs("build").is_empty());
    deliver(&serving, "push", "d-3", br#"{"ref":"refs/heads/main"}"#).is(201);
}

#[test]
fn a_delivery_can_be_the_event_that_a_run_waits_for() {
    let serving = serve(&[BOOK]);
    let early = pull("closed", 9).to_string();
    deliver(&serving, "pull_request", "d-9", early.as_bytes()).is(201);
    deliver(&serving, "pull_request", "d-9", early.as_bytes()).is(200);
    let start = |number: u32| {
        let body =
            json!({ "pipeline": "land", "vars": { "key": format!("octo/repo#{number}") } }).to_string();
        text(&serving.post("/v1/runs", &[], body.as_bytes()).is(201).json(), "id").to_owned()
    };
    let (waiting, kept) = (start(7), start(9));
    let run = serving.await_status(&kept, "completed");
    assert_eq!(run["steps"][0]["output"], json!({ "sha": "abc" }), "an early event is kept");
    let second = start(9);
    serving.await_status(&second, "waiting_external");
    serving.await_status(&waiting, "waiting_external");
    deliver(&serving, "pull_request", "d-7", pull("closed", 7).to_string().as_bytes()).is(201);
    serving.await_status(&waiting, "completed");
    serving.await_status(&second, "waiting_external");
}

#[test]
fn what_is_not_signed_is_refused_alike_and_leaves_nothing() {
    let serving = serve(&[BOOK]);
    let body = pull("opened", 7).to_string();
    let good = format!("sha256={}", sign(SECRET, &[body.as_bytes()]));
    let spaced = serde_json::to_string_pretty(&pull("opened", 7)).unwrap();
    let send = |path: &str, name: &str, value: &str, body: &str| {
        let headers =
            [(name, value), ("x-github-event", "pull_request"), ("x-github-delivery", "d-secret-marker")];
        serving.post(path, &headers, body.as_bytes())
    };
    let header = "x-hub-signature-256";
    let wrong = format!("sha256={}", sign("other", &[body.as_bytes()]));
    let sha1 = "sha1=0123456789abcdef0123456789abcdef01234567";
    let cut = &good[..good.len() - 2];
    let refused = [
        send("/hooks/github", "x-nothing", "", &body),
        send("/hooks/github", header, &wrong, &body),
        send("/hooks/github", header, cut, &body),
        send("/hooks/github", header, &good.replace("sha256=", "sha1="), &body),
        send("/hooks/github", header, good.trim_start_matches("sha256="), &body),
        send("/hooks/github", "x-hub-signature", sha1, &body),
        send("/hooks/github", header, &good, &spaced),
        send("/hooks/github", header, &good, ""),
        send("/hooks/github/acme", header, &good, &body),
        send("/hooks/github/%00", header, &good, &body),
        send("/hooks/in/absent", header, &good, &body),
        send("/hooks/in/github", header, &good, &body),
        send("/hooks/slack/commands", header, &good, &body),
    ];
    for answer in &refused {
        assert_eq!((answer.status, &answer.text), (401, &refused[0].text), "{answer:?}");
    }
    let doubled = format!(
        "POST /hooks/github HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{header}: {wrong}\r\n{header}: {good}\r\n\
         x-github-event: pull_request\r\nx-github-delivery: d\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    serving.raw(doubled.as_bytes(), body.as_bytes()).is(401);
    assert!(serving.runs("review").is_empty());
    assert!(!serving.is_stored("d-secret-marker"), "nothing of a refused delivery is kept");
    send("/hooks/github", header, &format!("sha256={}", sign("older", &[body.as_bytes()])), &body).is(201);
    assert!(serving.is_stored("d-secret-marker"), "the look finds what is there");
}

/// Whoever says that much will come and sends none of it takes no room from those who send.
#[test]
fn slow_deliveries_that_say_they_are_large_hold_up_nobody() {
    let serving = serve(&[BOOK]);
    let head = "POST /hooks/github HTTP/1.1\r\nhost: localhost\r\ncontent-length: 26214400\r\n\r\n";
    let held: Vec<_> = (0..60)
        .map(|_| {
            let mut stream = UnixStream::connect(serving.project.path("data/windlass.sock")).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let began = std::time::Instant::now();
    for n in 0..5 {
        deliver(&serving, "push", &format!("d-{n}"), b"{\"ref\":\"refs/heads/main\"}").is(201);
    }
    // Before, the first waited until those had had their ten seconds.
    assert!(began.elapsed() < std::time::Duration::from_secs(7), "it took {:?}", began.elapsed());
    drop(held);
}

#[test]
fn deliveries_are_bounded_and_must_make_sense() {
    let serving = serve(&[BOOK]);
    let large = format!("{{\"ref\":\"refs/heads/main\",\"x\":\"{}\"}}", "x".repeat(20 << 20));
    deliver(&serving, "push", "d-1", large.as_bytes()).is(201);
    let head = format!(
        "POST /hooks/github HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        (25 << 20) + 1
    );
    serving.raw(head.as_bytes(), b"").is(413);
    for bad in
        ["", "[]", "7", "{", "{\"a\":1}x", &format!("{}1{}", "[".repeat(200), "]".repeat(200)), "\u{0}"]
    {
        deliver(&serving, "push", "d-2", bad.as_bytes()).is(400);
    }
    deliver(&serving, "push", "", b"{}").is(400);
    deliver(&serving, "push", &"d".repeat(600), br#"{"ref":"refs/heads/main"}"#).is(400);
    // Webhooks may be set up to send forms.
    let form = "payload=%7B%22ref%22%3A%22refs%2Fheads%2Fmain%22%7D";
    let signature = format!("sha256={}", sign(SECRET, &[form.as_bytes()]));
    let headers = [
        ("x-hub-signature-256", signature.as_str()),
        ("x-github-event", "push"),
        ("x-github-delivery", "d-3"),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    serving.post("/hooks/github", &headers, form.as_bytes()).is(201);
    assert_eq!(serving.runs("build").len(), 2);
}

#[test]
fn without_a_secret_the_hook_is_off() {
    let serving = Serving::new(Project::new(), &[BOOK]);
    let body = br#"{"ref":"refs/heads/main"}"#;
    for secret in ["", SECRET, "nobody signs with this"] {
        let signature = format!("sha256={}", sign(secret, &[body]));
        let headers = [
            ("x-hub-signature-256", signature.as_str()),
            ("x-github-event", "push"),
            ("x-github-delivery", "d"),
        ];
        serving.post("/hooks/github", &headers, body).is(401);
    }
}

#[test]
fn a_form_has_the_payload_and_nothing_else() {
    let serving = serve(&[BOOK]);
    let form = |body: &str, id: &str| {
        let signature = format!("sha256={}", sign(SECRET, &[body.as_bytes()]));
        let headers = [
            ("x-hub-signature-256", signature.as_str()),
            ("x-github-event", "push"),
            ("x-github-delivery", id),
            ("content-type", "application/x-www-form-urlencoded"),
        ];
        serving.post("/hooks/github", &headers, body.as_bytes())
    };
    // What somebody wrote into a text of a signed JSON delivery is the field of a form, to whoever reads it as one.
    let forged = "%7B%22ref%22%3A%22refs%2Fheads%2Fevil%22%7D";
    let signed = json!({ "title": format!("x&payload={forged}&") }).to_string();
    form(&signed, "d-1").is(400);
    form(&format!("payload={forged}&more=1"), "d-2").is(400);
    form("other=1", "d-3").is(400);
    assert!(serving.runs("build").is_empty());
    form(&format!("payload={forged}"), "d-4").is(201);
}

#[test]
fn a_trigger_with_a_window_takes_the_same_event_of_the_same_pull_request_once() {
    let windowed = BOOK.replacen("pipeline: review", "pipeline: review\n    dedupe_window: 10m", 1);
    let mut serving = serve(&[&windowed, OTHER]);
    let send = |serving: &Serving, id: &str, number| {
        let mut body = pull("opened", number);
        body["delivered"] = json!(id);
        deliver(serving, "pull_request", id, body.to_string().as_bytes())
    };
    send(&serving, "d-1", 7).is(201);
    serving.restart();
    let again = send(&serving, "d-2", 7).is(201).json();
    assert_eq!(again["deduped"], json!(["ci/opened"]), "{again}");
    assert_eq!(again["runs"][0]["trigger"], "audit/seen", "a trigger without a window has it: {again}");
    send(&serving, "d-3", 8).is(201);
    assert_eq!(serving.runs("review").len(), 2, "another pull request is another event");
    assert_eq!(serving.runs("note").len(), 3);
    // At once, too.
    let many: Vec<Answer> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..8)
            .map(|n| {
                let (serving, send) = (&serving, &send);
                scope.spawn(move || send(serving, &format!("e-{n}"), 9))
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    assert!(many.iter().all(|answer| answer.status == 201), "{many:?}");
    assert_eq!(serving.runs("review").len(), 3);
}

#[test]
fn a_delivery_that_a_window_took_gets_the_same_answer_after_the_window() {
    let windowed = BOOK.replacen("pipeline: review", "pipeline: review\n    dedupe_window: 1s", 1);
    let serving = serve(&[&windowed]);
    let send = |id: &str| {
        let mut body = pull("opened", 7);
        body["delivered"] = json!(id);
        deliver(&serving, "pull_request", id, body.to_string().as_bytes())
    };
    send("d-1").is(201);
    let first = send("d-2").is(200);
    assert_eq!(first.json()["deduped"], json!(["ci/opened"]), "{first:?}");
    // Other deliveries are taken again when the window is over.
    let mut n = 3;
    while send(&format!("d-{n}")).status != 201 {
        n += 1;
    }
    let again = send("d-2").is(200);
    assert!(again.replayed(), "{again:?}");
    assert_eq!(again.json(), first.json());
    assert_eq!(serving.runs("review").len(), 2);
}

#[test]
fn without_a_window_every_delivery_counts() {
    let serving = serve(&[BOOK]);
    for id in ["d-1", "d-2"] {
        deliver(&serving, "pull_request", id, pull("opened", 7).to_string().as_bytes()).is(201);
    }
    assert_eq!(serving.runs("review").len(), 2);
}
