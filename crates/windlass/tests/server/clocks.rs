//! Clocks that are wrong: set back and ahead by a second, a day and a year, while the server runs and while it does not.
//!
//! libfaketime stands between the process and the system's clock, and reads how wrong that is from a file; the monotonic clock
//! stays what it is. Debian has it in the package `faketime`; `scripts/outside/faketime` puts it below `target/outside`.

use crate::http::Server;
use crate::support::{Project, text, until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BOOK: &str = "
name: clocks
pipelines:
  quick:
    steps: [ { id: s, run: 'true' } ]
  timer:
    steps: [ { id: s, wait: 1s } ]
  again:
    steps: [ { id: s, run: 'if [ -e \"$WL_VAR_MARK\" ]; then true; else touch \"$WL_VAR_MARK\"; false; fi', retry: { max_attempts: 2, backoff: 1s } } ]
    vars: { mark: { required: true } }
  ask:
    steps: [ { id: s, approve: { message: 'Go on?', expires: 1h } } ]
  brief:
    steps: [ { id: s, approve: { message: 'Quick?', expires: 1s } } ]
";

/// How long what takes a second may take at most. A clock that is wrong by a day or a year is far beyond it.
const SOON: Duration = Duration::from_secs(20);

/// The library, as the system or `scripts/outside/faketime` has it.
fn library() -> PathBuf {
    let name = "libfaketimeMT.so.1";
    let target = Path::new(env!("CARGO_BIN_EXE_windlass")).ancestors().nth(2).expect("the target directory");
    let named = std::env::var_os("WINDLASS_FAKETIME").map(PathBuf::from);
    let system = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .map(|arch| Path::new("/usr/lib").join(arch).join("faketime"));
    let plain = ["/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"].map(PathBuf::from);
    let kept = target.join("outside/faketime");
    let folders = system.into_iter().chain(plain).chain([kept]).map(|folder| folder.join(name));
    let found = named.into_iter().chain(folders).find(|path| path.exists());
    found.expect("libfaketime: `scripts/outside/faketime` fetches it, Debian's package `faketime` has it")
}

/// A server whose clock is as wrong as a file says.
struct Wrong {
    server: Server,
    token: String,
}

impl Wrong {
    fn start() -> Wrong {
        let project = Project::new();
        let clock = project.write("clock", "+0");
        let project = project
            .env("LD_PRELOAD", library().to_str().unwrap())
            .env("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap())
            .env("FAKETIME_NO_CACHE", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let server = Server::start_with(project, &[]);
        let token = server.owner();
        let yaml = [("content-type", "application/yaml")];
        server.send("POST", "/v1/runbooks", Some(&token), &yaml, BOOK.as_bytes()).status(201);
        Wrong { server, token }
    }

    /// Sets the clock. The file is replaced as a whole, because it is read at any moment.
    fn set(&self, offset: &str) {
        let new = self.server.project.write("clock.new", offset);
        std::fs::rename(new, self.server.project.path("clock")).unwrap();
    }

    /// Stops the server, sets the clock, and starts it again.
    fn restart(&mut self, offset: &str) {
        let process = self.server.process.take().expect("a process");
        process.signal(rustix::process::Signal::TERM);
        process.wait().code(0);
        self.set(offset);
        self.server.begin(&[]);
        self.token = self.server.owner();
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.server.ask("POST", path, Some(&self.token), Some(body));
        assert!(answer.status < 300, "{path} {body}: {}", answer.head);
        answer.json()
    }

    fn get(&self, path: &str) -> Value {
        self.server.ask("GET", path, Some(&self.token), None).status(200).json()
    }

    fn begin(&self, pipeline: &str) -> String {
        self.begin_with(&json!({ "pipeline": pipeline }))
    }

    fn begin_with(&self, body: &Value) -> String {
        text(&self.post("/v1/runs", body), "id").to_owned()
    }

    fn run(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}"))
    }

    /// Waits until a run has this status, and not for longer than a moment.
    fn becomes(&self, run: &str, status: &str, when: &str) -> Value {
        let since = Instant::now();
        until(&format!("{when}: {run} to be {status}"), || {
            let shown = self.run(run);
            assert!(since.elapsed() < SOON, "{when}: it should be {status} by now: {shown}");
            (shown["status"] == status).then_some(shown)
        })
    }

    fn approval_of(&self, run: &str) -> Option<Value> {
        let page = self.get("/v1/approvals");
        page["items"].as_array()?.iter().find(|approval| approval["run"] == run).cloned()
    }

    /// Approves what waits for it.
    fn approve(&self, run: &str) {
        let approval = self.approval_of(run).expect("an hour has not passed");
        let yes = json!({ "decision": "approved", "action_hash": approval["action_hash"] });
        self.post(&format!("/v1/approvals/{}/decision", text(&approval, "id")), &yes);
        self.becomes(run, "completed", "approved");
    }

    /// Everything that time moves, begun now.
    fn check(&self, when: &str) {
        let mark = self.server.project.path(&format!("mark-{}", when.replace(' ', "-")));
        let quick = self.begin("quick");
        let timer = self.begin("timer");
        let again = self.begin_with(&json!({ "pipeline": "again", "vars": { "mark": mark } }));
        let brief = self.begin("brief");
        let made = json!({ "scopes": ["read"], "name": format!("brief-{}", mark.display()), "service": true, "expires_in": "1s" });
        let token = text(&self.post("/v1/tokens", &made), "token").to_owned();
        assert!(quick < timer && timer < again && again < brief, "{when}: ids grow");
        self.becomes(&quick, "completed", when);
        let timed = self.becomes(&timer, "completed", when);
        let took = timed["duration_ms"].as_u64().expect("a duration");
        assert!(
            (1_000..SOON.as_millis() as u64).contains(&took),
            "{when}: the timer took {took} ms: {timed}"
        );
        self.becomes(&again, "completed", when);
        self.becomes(&brief, "failed", when);
        let since = Instant::now();
        until(&format!("{when}: the token to expire"), || {
            assert!(since.elapsed() < SOON, "{when}: the token should have expired");
            (self.server.ask("GET", "/v1/runs", Some(&token), None).status == 401).then_some(())
        });
        // Time never decreases, in the whole log.
        let times = self.times();
        assert!(times.is_sorted(), "{when}: {times:?}");
    }

    fn times(&self) -> Vec<u64> {
        let events = self.server.project.windlass(&["events"]).code(0).lines();
        events.iter().map(|event| event["at"].as_u64().expect("a time")).collect()
    }
}

/// The clock goes wrong by an offset and right again: before, at and after restarts.
fn story(offset: &str) {
    let mut wrong = Wrong::start();
    let ahead = offset.starts_with('+');
    let far = !offset.ends_with('s');
    wrong.check("right");
    // Before a restart, with something that waits.
    let (timer, ask) = (wrong.begin("timer"), wrong.begin("ask"));
    until("the approval", || wrong.approval_of(&ask));
    wrong.set(offset);
    wrong.becomes(&timer, "completed", "wrong");
    wrong.check("wrong");
    if ahead && far {
        wrong.becomes(&ask, "failed", "an hour has passed");
    } else {
        wrong.approve(&ask);
    }
    let timer = wrong.begin("timer");
    wrong.restart(offset);
    wrong.becomes(&timer, "completed", "wrong before and after a restart");
    wrong.check("restarted");
    // After a restart.
    let (timer, ask) = (wrong.begin("timer"), wrong.begin("ask"));
    wrong.set("+0");
    wrong.becomes(&timer, "completed", "set right");
    wrong.check("set right");
    // At a restart.
    let timer = wrong.begin("timer");
    wrong.restart(offset);
    wrong.becomes(&timer, "completed", "wrong at a restart");
    wrong.check("wrong at a restart");
    let timer = wrong.begin("timer");
    wrong.restart("+0");
    wrong.becomes(&timer, "completed", "right at a restart");
    wrong.check("right at a restart");
    // No hour has passed since it was asked for, whatever the clock said.
    wrong.approve(&ask);
}

#[test]
fn a_second_behind() {
    story("-1s");
}

#[test]
fn a_second_ahead() {
    story("+1s");
}

#[test]
fn a_day_behind() {
    story("-1d");
}

#[test]
fn a_day_ahead() {
    story("+1d");
}

#[test]
fn a_year_behind() {
    story("-1y");
}

#[test]
fn a_year_ahead() {
    story("+1y");
}

#[test]
fn a_key_that_expired_is_gone() {
    let wrong = Wrong::start();
    let server = &wrong.server;
    let keyed = [("idempotency-key", "r1"), ("content-type", "application/json")];
    let body = json!({ "pipeline": "quick" }).to_string();
    let made =
        server.send("POST", "/v1/runs", Some(&wrong.token), &keyed, body.as_bytes()).status(201).json();
    let path = format!("/v1/ingress/{}", text(&made["trigger"], "key"));
    server.ask("GET", &path, Some(&wrong.token), None).status(200);
    // More of them, to see that what expired is cleaned up.
    for n in 0..40 {
        let key = format!("many-{n}");
        let keyed = [("idempotency-key", key.as_str()), ("content-type", "application/json")];
        server.send("POST", "/v1/runs", Some(&wrong.token), &keyed, body.as_bytes()).status(201);
    }
    let streams = || {
        let shown = server.ask("GET", "/metrics", Some(&wrong.token), None).status(200).text();
        let line = shown.lines().find_map(|line| line.strip_prefix("windlass_streams ").map(str::to_owned));
        line.expect("a figure").parse::<f64>().unwrap() as u64
    };
    // What is still under way as the clock jumps ends later, and stays for longer.
    until("the runs to end", || {
        let done = server.ask("GET", "/v1/runs?status=completed&limit=200", Some(&wrong.token), None);
        (done.status(200).items().len() == 41).then_some(())
    });
    let before = until("the keys in memory", || Some(streams()).filter(|count| *count > 82));
    wrong.set("+25h");
    until("the key to expire", || {
        let answer = server.ask("GET", &path, Some(&wrong.token), None);
        if answer.status == 200 {
            return None;
        }
        answer.problem(410, "IDEMPOTENCY_EXPIRED");
        Some(())
    });
    // What has ended leaves memory five minutes later, when the server next has something to do: the runs, and their keys.
    wrong.set("+26h");
    wrong.begin("quick");
    until("the keys to leave memory", || {
        let now = streams();
        if now + 70 <= before {
            return Some(());
        }
        wrong.begin("quick");
        None
    });
    let expired = server.project.windlass(&["events", "--type", "trigger:expired"]).code(0).lines();
    assert_eq!(expired.len(), 41, "each is on record");
    // A key that comes again is a new one.
    let again =
        server.send("POST", "/v1/runs", Some(&wrong.token), &keyed, body.as_bytes()).status(201).json();
    assert_ne!(again["id"], made["id"]);
}

/// A run whose executor was not heard of for more than five minutes is an orphan until another has its step.
#[test]
fn a_run_whose_executor_fell_silent_is_an_orphan_until_another_has_its_step() {
    let mut wrong = Wrong::start();
    let far = "name: far\npipelines: { far: { steps: [ { id: s, runs_on: [far], run: 'true' } ] } }\n";
    let yaml = [("content-type", "application/yaml")];
    wrong.server.send("POST", "/v1/runbooks", Some(&wrong.token), &yaml, far.as_bytes()).status(201);
    let run = wrong.begin("far");
    let wish = json!({ "executor": "e1", "max": 1, "wait_ms": 1000, "labels": ["far"] });
    let lease = |wrong: &Wrong| until("a lease", || wrong.post("/v1/leases", &wish)["items"].get(0).cloned());
    let first = lease(&wrong);
    let granted = text(&wrong.run(&run), "last_heartbeat_at").to_owned();
    wrong.set("+10m");
    let orphan =
        until("an orphan", || Some(wrong.run(&run)).filter(|shown| shown["reason"] == "RUN_ORPHANED"));
    assert_eq!(
        (&orphan["status"], &orphan["error"]["code"]),
        (&json!("running"), &json!("RUN_ORPHANED")),
        "{orphan}"
    );
    assert_eq!(orphan["last_heartbeat_at"], json!(granted));
    let process = wrong.server.process.as_mut().expect("a process");
    let line = until("a line in the log", || {
        let lines: Vec<Value> =
            process.err().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        lines.into_iter().find(|line| line["event"] == "orphan_detected")
    });
    assert_eq!((&line["run_id"], &line["last_heartbeat"]), (&json!(run), &json!(granted)), "{line}");
    let second = lease(&wrong);
    assert_eq!((&first["epoch"], &second["epoch"]), (&json!(1), &json!(2)));
    let shown = wrong.run(&run);
    assert!(shown["reason"].is_null() && shown["error"].is_null(), "{shown}");
    let done = json!({ "items": [{ "run": run, "step": "s", "epoch": 2, "exit_code": 0 }] });
    wrong.post("/v1/leases/complete", &done);
    wrong.becomes(&run, "completed", "another had it");
}

/// A run, but no answer over TCP: the HTTP library has no date for that.
#[test]
fn before_1970() {
    let project = Project::with("\nname: old\npipelines:\n  p: { steps: [ { run: 'true' } ] }\n");
    let clock = project.write("clock", "@1969-12-31 00:00:00");
    let project = project
        .env("LD_PRELOAD", library().to_str().unwrap())
        .env("FAKETIME_TIMESTAMP_FILE", clock.to_str().unwrap())
        .env("FAKETIME_NO_CACHE", "1")
        .env("DONT_FAKE_MONOTONIC", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    assert_eq!(project.run(&[], 0)["status"], "completed");
}
