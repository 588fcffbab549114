//! Who may agree, through the API: each attempt that does not count is refused and stands in the log.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt as _;
use windlass_core::id::Name;
use windlass_core::run::{Actor, Initiator};
use windlass_executor::home::Home;
use windlass_server::api::Caller;
use windlass_server::api::routes::Scope;
use windlass_server::app::{App, Settings};
use windlass_server::server::for_caller;

const BOOK: &str = "
name: book
pipelines:
  p:
    steps:
      - { id: t, transform: { value: { x: 1 } } }
";

/// An engine in this process, under a policy that asks about every `transform`.
struct World {
    dir: tempfile::TempDir,
    /// None only while it is started again.
    app: Option<Arc<App>>,
}

fn start(dir: &Path) -> Arc<App> {
    let home = Home::make(&dir.join("data")).unwrap();
    let settings = Settings { executes: true, policy: Some(dir.join("policy")), ..Settings::default() };
    App::start(home, &PathBuf::from(env!("CARGO_BIN_EXE_windlass")), settings).unwrap()
}

impl World {
    fn new(approval: &str, count: u32) -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("policy")).unwrap();
        let rules = format!(
            "permit (principal, action, resource);
            @approval(\"{approval}\") forbid (principal, action == Windlass::Action::\"transform\", resource)
            unless {{ context.approvals >= {count} }};"
        );
        std::fs::write(dir.path().join("policy/a.cedar"), rules).unwrap();
        let app = Some(start(dir.path()));
        World { dir, app }
    }

    fn app(&self) -> &Arc<App> {
        self.app.as_ref().unwrap()
    }

    /// Ends the process, as far as its data can tell, and begins another.
    fn restart(&mut self) {
        self.app().stop();
        self.app = None;
        self.app = Some(start(self.dir.path()));
    }

    async fn call(&self, caller: &Caller, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let kind = if path == "/v1/runbooks" { "application/yaml" } else { "application/json" };
        let bytes = match body {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
        let request = request.body(Body::from(bytes)).unwrap();
        let answer = for_caller(self.app().clone(), caller.clone()).oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// Starts a run as somebody, and waits until it asks; returns the run's id and the approval.
    async fn ask(&self, caller: &Caller) -> (String, Value) {
        let owner = user("owner");
        let (status, loaded) = self.call(&owner, Method::POST, "/v1/runbooks", json!(BOOK)).await;
        assert!(status.is_success(), "{loaded}");
        let (status, run) = self.call(caller, Method::POST, "/v1/runs", json!({ "pipeline": "p" })).await;
        assert_eq!(status, StatusCode::CREATED, "{run}");
        let id = run["id"].as_str().unwrap().to_owned();
        let approval = self
            .until(|page| page["items"].as_array()?.iter().find(|a| a["run"] == id.as_str()).cloned())
            .await;
        (id, approval)
    }

    async fn until<T>(&self, mut found: impl FnMut(&Value) -> Option<T>) -> T {
        let end = tokio::time::Instant::now() + crate::support::HANG;
        loop {
            let (_, page) = self.call(&user("owner"), Method::GET, "/v1/approvals", Value::Null).await;
            if let Some(found) = found(&page) {
                return found;
            }
            assert!(tokio::time::Instant::now() < end, "waited too long: {page}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn decide(&self, caller: &Caller, approval: &Value, decision: &str) -> (StatusCode, Value) {
        let path = format!("/v1/approvals/{}/decision", approval["id"].as_str().unwrap());
        let body =
            json!({ "decision": decision, "action_hash": approval["action_hash"], "reason": "because" });
        self.call(caller, Method::POST, &path, body).await
    }

    /// The run when it has ended.
    async fn ended(&self, run: &str) -> Value {
        let end = tokio::time::Instant::now() + crate::support::HANG;
        loop {
            let path = format!("/v1/runs/{run}");
            let (_, run) = self.call(&user("owner"), Method::GET, &path, Value::Null).await;
            if ["completed", "failed", "cancelled"].contains(&run["status"].as_str().unwrap_or_default()) {
                return run;
            }
            assert!(tokio::time::Instant::now() < end, "waited too long: {run}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Every refused attempt in the log: who, and why.
    fn refusals(&self) -> Vec<(String, String)> {
        let mut out = Vec::new();
        self.app()
            .log
            .read(0, &mut |record, _| {
                if let windlass_core::event::Event::ApprovalRefused(e) = &record.event {
                    out.push((e.decided_by.to_string(), e.refusal.as_str().to_owned()));
                }
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        out
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(app) = &self.app {
            app.stop();
        }
    }
}

fn user(name: &str) -> Caller {
    Caller::owner(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_persons_are_two_humans_and_neither_asked_for_it() {
    let world = World::new("two_person, approvers: ann or bob or cy", 2);
    let (run, approval) = world.ask(&user("ann")).await;
    let refused = |(status, problem): (StatusCode, Value)| {
        assert_eq!((status, &problem["code"]), (StatusCode::FORBIDDEN, &json!("FORBIDDEN")), "{problem}");
    };
    refused(world.decide(&user("ann"), &approval, "approved").await);
    refused(world.decide(&user("dan"), &approval, "approved").await);
    let (status, counted) = world.decide(&user("bob"), &approval, "approved").await;
    assert_eq!((status, &counted["status"]), (StatusCode::OK, &json!("requested")));
    refused(world.decide(&user("bob"), &approval, "approved").await);
    let (_, settled) = world.decide(&user("cy"), &approval, "approved").await;
    assert_eq!(settled["status"], "approved");
    assert_eq!(world.ended(&run).await["status"], "completed");
    let who = |name: &str, why: &str| (name.to_owned(), why.to_owned());
    let expected = [who("ann", "own_request"), who("dan", "not_approver"), who("bob", "same_human")];
    assert_eq!(world.refusals(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_asked_and_whoever_is_in_it_may_agree() {
    let world = World::new("approvers: sre", 1);
    let (run, approval) = world.ask(&user("ann")).await;
    let in_group = |name: &str, group: &str| Caller { groups: vec![Name::clean(group)], ..user(name) };
    assert_eq!(world.decide(&in_group("bob", "dev"), &approval, "approved").await.0, StatusCode::FORBIDDEN);
    let (_, settled) = world.decide(&in_group("cy", "sre"), &approval, "approved").await;
    assert_eq!(settled["status"], "approved");
    assert_eq!(world.ended(&run).await["status"], "completed");
    assert_eq!(world.refusals(), [("bob".to_owned(), "not_approver".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_human_or_may_not_approve_is_refused_and_on_record() {
    let world = World::new("", 1);
    let (_, approval) = world.ask(&user("ann")).await;
    let tokenless = Caller { scopes: vec![Scope::Read, Scope::Run], ..user("local") };
    let (status, _) = world.decide(&tokenless, &approval, "approved").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let attempt = Actor::new(Initiator::Executor, "run_1/t/1");
    let attempt = Caller { actor: attempt, scopes: vec![Scope::Read], ..user("x") };
    assert_eq!(world.decide(&attempt, &approval, "approved").await.0, StatusCode::FORBIDDEN);
    // A program that was given the scope is still no human.
    let program = Caller { actor: Actor::new(Initiator::Agent, "robot"), ..user("x") };
    assert_eq!(world.decide(&program, &approval, "approved").await.0, StatusCode::FORBIDDEN);
    // Another tenant's caller hears that there is no such thing, and leaves no trace here.
    let stranger = Caller { tenant: Name::clean("other"), ..user("eve") };
    assert_eq!(world.decide(&stranger, &approval, "approved").await.0, StatusCode::NOT_FOUND);
    let (_, shown) = world
        .call(
            &user("ann"),
            Method::GET,
            &format!("/v1/approvals/{}", approval["id"].as_str().unwrap()),
            Value::Null,
        )
        .await;
    assert_eq!((&shown["status"], &shown["decisions"]), (&json!("requested"), &json!([])));
    let not_human = |name: &str| (name.to_owned(), "not_human".to_owned());
    assert_eq!(world.refusals(), [not_human("local"), not_human("run_1/t/1"), not_human("robot")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_action_than_the_one_shown_is_not_approved() {
    let world = World::new("", 1);
    let (_, approval) = world.ask(&user("ann")).await;
    let mut other = approval.clone();
    other["action_hash"] = json!("0".repeat(64));
    let (status, problem) = world.decide(&user("bob"), &other, "approved").await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("APPROVAL_HASH_MISMATCH")));
    assert_eq!(world.refusals(), [("bob".to_owned(), "hash_mismatch".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_approval_and_a_rejection_at_once_the_first_holds() {
    for _ in 0..8 {
        let world = World::new("", 1);
        let (run, approval) = world.ask(&user("ann")).await;
        let (bob, cy) = (user("bob"), user("cy"));
        let (yes, no) =
            tokio::join!(world.decide(&bob, &approval, "approved"), world.decide(&cy, &approval, "rejected"));
        assert_ne!(yes.0.is_success(), no.0.is_success(), "{yes:?} {no:?}");
        let ended = world.ended(&run).await;
        assert_eq!(ended["status"], if yes.0.is_success() { "completed" } else { "failed" });
        assert_eq!(world.refusals().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_late_is_too_late_also_after_a_restart() {
    let mut world = World::new("expires: 1s", 1);
    let (run, approval) = world.ask(&user("ann")).await;
    let ended = world.ended(&run).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("APPROVAL_EXPIRED")));
    let (status, problem) = world.decide(&user("bob"), &approval, "approved").await;
    assert_eq!((status, &problem["code"]), (StatusCode::GONE, &json!("APPROVAL_EXPIRED")), "{problem}");
    assert_eq!(world.refusals(), [("bob".to_owned(), "expired".to_owned())]);

    // Nobody was there when the time came.
    let (run, approval) = world.ask(&user("ann")).await;
    world.app().stop();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    world.restart();
    let (status, _) = world.decide(&user("bob"), &approval, "approved").await;
    assert!(!status.is_success());
    assert_eq!(world.ended(&run).await["error"]["code"], "APPROVAL_EXPIRED");
}
