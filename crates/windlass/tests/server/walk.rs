//! Every route with every kind of caller, derived from the table that the router is made of.
//!
//! The table below is this test's own. A route that nobody listed here fails the test, and so does one that is listed and
//! gone: whoever adds a route says twice who may use it.

use crate::http::{Answer, Server};
use crate::support::{Project, text, until};
use serde_json::{Value, json};
use std::io::Write as _;
use windlass_server::api::routes::Route;

/// Every route, and what it needs.
const TABLE: &[(&str, &str, &str)] = &[
    ("GET", "/healthz", "open"),
    ("GET", "/metrics", "read"),
    ("POST", "/hooks/github", "open"),
    ("POST", "/hooks/github/{tenant}", "open"),
    ("POST", "/hooks/slack/commands", "open"),
    ("POST", "/hooks/slack/commands/{tenant}", "open"),
    ("POST", "/hooks/slack/actions", "open"),
    ("POST", "/hooks/slack/actions/{tenant}", "open"),
    ("POST", "/hooks/in/{source}", "open"),
    ("POST", "/hooks/in/{source}/{tenant}", "open"),
    ("GET", "/readyz", "open"),
    ("GET", "/openapi.json", "open"),
    ("GET", "/v1/me", "known"),
    ("GET", "/v1/runs", "read"),
    ("POST", "/v1/runs", "run"),
    ("GET", "/v1/runs/{id}", "read"),
    ("GET", "/v1/runs/{id}/steps", "read"),
    ("GET", "/v1/runs/{id}/why", "read"),
    ("GET", "/v1/runs/{id}/events", "read"),
    ("GET", "/v1/runs/{id}/logs", "read"),
    ("POST", "/v1/runs/{id}/cancel", "run"),
    ("POST", "/v1/runs/{id}/suspend", "run"),
    ("POST", "/v1/runs/{id}/resume", "run"),
    ("POST", "/v1/runs/{id}/retry", "run"),
    ("POST", "/v1/runs/{id}/fork", "run"),
    ("POST", "/v1/runs/{id}/signals/{name}", "run"),
    ("POST", "/v1/runs/{id}/steps/{step}/resolve", "approve"),
    ("POST", "/v1/signals/{name}", "run"),
    ("GET", "/v1/runbooks", "read"),
    ("POST", "/v1/runbooks", "deploy"),
    ("GET", "/v1/runbooks/{runbook}", "read"),
    ("POST", "/v1/runbooks/{runbook}/rollback", "deploy"),
    ("POST", "/v1/runbooks/{runbook}/undeploy", "deploy"),
    ("POST", "/v1/plan", "read"),
    ("GET", "/v1/approvals", "read"),
    ("GET", "/v1/approvals/{id}", "read"),
    ("POST", "/v1/approvals/{id}/decision", "approve"),
    ("GET", "/v1/policies", "read"),
    ("POST", "/v1/policies/replay", "admin"),
    ("POST", "/v1/runs/{id}/budget", "approve"),
    ("GET", "/v1/locks", "read"),
    ("GET", "/v1/locks/{name}", "read"),
    ("POST", "/v1/locks/{name}/break", "admin"),
    ("GET", "/v1/semaphores", "read"),
    ("GET", "/v1/semaphores/{name}", "read"),
    ("POST", "/v1/semaphores/{name}/break", "admin"),
    ("POST", "/v1/locks/{name}/acquire", "run"),
    ("POST", "/v1/locks/{name}/heartbeat", "run"),
    ("POST", "/v1/locks/{name}/release", "run"),
    ("POST", "/v1/semaphores/{name}/acquire", "run"),
    ("POST", "/v1/semaphores/{name}/heartbeat", "run"),
    ("POST", "/v1/semaphores/{name}/release", "run"),
    ("POST", "/v1/leases", "execute"),
    ("POST", "/v1/leases/heartbeat", "execute"),
    ("POST", "/v1/leases/complete", "execute"),
    ("POST", "/v1/leases/secrets", "execute"),
    ("POST", "/v1/leases/fail", "execute"),
    ("POST", "/v1/leases/return", "execute"),
    ("POST", "/v1/runs/{id}/steps/{step}/checkpoint", "execute"),
    ("POST", "/v1/runs/{id}/steps/{step}/output", "execute"),
    ("POST", "/v1/runs/batch", "run"),
    ("GET", "/v1/events", "read"),
    ("GET", "/v1/ingress/{key}", "read"),
    ("POST", "/v1/events", "run"),
    ("GET", "/v1/queues", "read"),
    ("GET", "/v1/queues/{queue}", "read"),
    ("POST", "/v1/queues/{queue}/items", "run"),
    ("GET", "/v1/queues/{queue}/items", "read"),
    ("GET", "/v1/queues/{queue}/items/{item}", "read"),
    ("POST", "/v1/queues/{queue}/take", "run"),
    ("POST", "/v1/queues/{queue}/heartbeat", "run"),
    ("POST", "/v1/queues/{queue}/complete", "run"),
    ("POST", "/v1/queues/{queue}/fail", "run"),
    ("POST", "/v1/queues/{queue}/return", "run"),
    ("POST", "/v1/queues/{queue}/pause", "run"),
    ("POST", "/v1/queues/{queue}/resume", "run"),
    ("POST", "/v1/queues/{queue}/retry", "run"),
    ("POST", "/v1/queues/{queue}/items/{item}/retry", "run"),
    ("POST", "/v1/queues/{queue}/items/{item}/cancel", "run"),
    ("GET", "/v1/workers", "read"),
    ("GET", "/v1/workers/{name}", "read"),
    ("POST", "/v1/workers/{name}/start", "run"),
    ("POST", "/v1/workers/{name}/stop", "run"),
    ("POST", "/v1/workers/{name}/resize", "run"),
    ("GET", "/v1/schedules", "read"),
    ("GET", "/v1/schedules/{name}", "read"),
    ("POST", "/v1/schedules/{name}/run", "run"),
    ("POST", "/v1/schedules/{name}/pause", "run"),
    ("POST", "/v1/schedules/{name}/resume", "run"),
    ("GET", "/v1/approvals/{id}/card", "read"),
    ("GET", "/v1/runs/{id}/evidence", "read"),
    ("GET", "/v1/evidence", "owner"),
    ("GET", "/v1/runs/{id}/receipts", "read"),
    ("GET", "/v1/runs/{id}/checkpoints", "read"),
    ("POST", "/v1/runs/{id}/undo", "run"),
    ("GET", "/v1/keys", "read"),
    ("POST", "/v1/keys/rotate", "owner"),
    ("POST", "/v1/store/verify", "owner"),
    ("POST", "/v1/store/backup", "owner"),
    ("GET", "/v1/tokens", "admin"),
    ("POST", "/v1/tokens", "admin"),
    ("POST", "/v1/tokens/{id}/revoke", "admin"),
];

const SCOPES: [&str; 6] = ["read", "run", "deploy", "approve", "execute", "admin"];

/// What the table says of a route.
fn needed(route: &Route) -> &'static str {
    let listed =
        TABLE.iter().find(|(method, path, _)| *method == route.method.as_str() && *path == route.path);
    listed
        .unwrap_or_else(|| panic!("nobody listed {} {}: say here who may use it", route.method, route.path))
        .2
}

#[test]
fn every_route_is_listed_and_every_listed_route_is_there() {
    let routes = windlass_server::api::routes();
    for route in routes.list() {
        assert_eq!(needed(route), route.scope.word(), "{} {}", route.method, route.path);
    }
    for (method, path, _) in TABLE {
        let there = routes.list().iter().any(|route| route.method.as_str() == *method && route.path == *path);
        assert!(there, "{method} {path} is listed here and not served");
    }
}

/// A caller: what it shows, and what it may do; nothing where it is nobody.
struct Role {
    name: String,
    token: Option<String>,
    scopes: Option<Vec<&'static str>>,
}

/// The head of the answer to a request that names things which are not there.
fn knock(server: &Server, route: &Route, token: Option<&str>) -> Answer {
    let mut path =
        route.path.replace("{id}", "run_00000000000000000000000007").replace("{hash}", &"0".repeat(64));
    while let (Some(from), Some(to)) = (path.find('{'), path.find('}')) {
        path.replace_range(from..=to, "absent");
    }
    let mut stream = server.connect();
    let body: &[u8] = if route.method == "GET" { b"" } else { b"{}" };
    let headers = [("content-type", "application/json")];
    stream.write_all(&server.request(route.method.as_str(), &path, token, &headers, body)).unwrap();
    Answer::head(&mut stream)
}

#[track_caller]
fn check(server: &Server, route: &Route, role: &Role) {
    let answer = knock(server, route, role.token.as_deref());
    let what = format!("{} {} as {}: {}", route.method, route.path, role.name, answer.head);
    let expected = match (needed(route), &role.scopes) {
        // A signature is what opens these, and nothing that a caller shows besides.
        ("open", _) if route.path.starts_with("/hooks/") => Some(401),
        ("open", _) | ("known", Some(_)) => None,
        (_, None) => Some(401),
        (scope, Some(scopes)) if scopes.contains(&scope) => None,
        (_, Some(_)) => Some(403),
    };
    match expected {
        Some(status) => assert_eq!(answer.status, status, "{what}"),
        None => assert!(![401, 403].contains(&answer.status) && answer.status < 500, "{what}"),
    }
}

fn role(server: &Server, name: &str, tenant: &str, scopes: &[&'static str]) -> Role {
    let made = server.token(&json!({ "tenant": tenant, "scopes": scopes }));
    Role {
        name: name.to_owned(),
        token: Some(text(&made, "token").to_owned()),
        scopes: Some(scopes.to_vec()),
    }
}

fn nobody(name: &str, token: &str) -> Role {
    Role { name: name.to_owned(), token: Some(token.to_owned()), scopes: None }
}

/// A token that was revoked, and one that has expired.
fn spent(server: &Server) -> [Role; 2] {
    let made = server.token(&json!({ "scopes": SCOPES }));
    let owner = server.owner();
    let path = format!("/v1/tokens/{}/revoke", text(&made, "id"));
    server.ask("POST", &path, Some(&owner), Some(&json!({}))).status(200);
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(1_500);
    let short = server.token(&json!({ "scopes": SCOPES, "expires_at": soon.to_string() }));
    let short = text(&short, "token").to_owned();
    until("the token to expire", || {
        (server.ask("GET", "/v1/me", Some(&short), None).status == 401).then_some(())
    });
    [nobody("revoked", text(&made, "token")), nobody("expired", &short)]
}

#[test]
fn every_route_asks_every_caller_for_its_scope() {
    let server = Server::trusting();
    let here = Some(vec!["read", "run"]);
    let mut roles = vec![Role { name: "nobody, here".to_owned(), token: None, scopes: here }];
    roles.extend(SCOPES.iter().map(|scope| role(&server, scope, "default", &[scope])));
    roles.push(role(&server, "all", "default", &SCOPES));
    roles.push(role(&server, "another tenant's all", "acme", &SCOPES));
    let everything = [&SCOPES[..], &["owner"]].concat();
    roles.push(Role { name: "owner".to_owned(), token: Some(server.owner()), scopes: Some(everything) });
    roles.push(nobody("unknown", "wl_0000000000000000000000000000000000000000000000000000000000000000"));
    roles.extend(spent(&server));
    let routes = windlass_server::api::routes();
    for role in &roles {
        routes.list().iter().for_each(|route| check(&server, route, role));
    }
}

#[test]
fn nobody_is_known_by_where_they_come_from() {
    known_by_tokens_alone(&Server::start());
    known_by_tokens_alone(&Server::start_with(Project::new(), &["--behind-proxy"]));
}

fn known_by_tokens_alone(server: &Server) {
    let routes = windlass_server::api::routes();
    let stranger = Role { name: "nobody".to_owned(), token: None, scopes: None };
    let all = role(server, "all", "default", &SCOPES);
    for route in routes.list() {
        check(server, route, &stranger);
        check(server, route, &all);
    }
}

/// Things of one tenant that another looks for.
const THINGS: &str = "
name: things
locks: { merge: {} }
semaphores: { builders: { capacity: 2 } }
queues: { work: {} }
workers: { worker: { queue: work, pipeline: main } }
schedules: { nightly: { cron: '0 2 * * *', timezone: UTC, pipeline: main } }
pipelines:
  main:
    lock: merge
    steps:
      - { id: ask, approve: { message: 'May it?' } }
";

/// The ids of what is there, by the beginning of the paths that name them.
fn things(server: &Server, token: &str) -> Vec<(&'static str, String)> {
    let yaml = [("content-type", "application/yaml")];
    let book = server.send("POST", "/v1/runbooks", Some(token), &yaml, THINGS.as_bytes()).status(201).json();
    let run = server.ask("POST", "/v1/runs", Some(token), Some(&json!({ "pipeline": "main" }))).status(201);
    let run = text(&run.json(), "id").to_owned();
    let approval = until("the approval", || {
        let items =
            server.ask("GET", "/v1/approvals?status=requested", Some(token), None).status(200).items();
        items.first().map(|approval| text(approval, "id").to_owned())
    });
    let own = server.ask("GET", "/v1/tokens", Some(token), None).status(200).items();
    vec![
        ("/v1/runs/", run),
        ("/v1/approvals/", approval),
        ("/v1/runbooks/", text(&book, "hash").to_owned()),
        ("/v1/tokens/", text(&own[0], "id").to_owned()),
        ("/v1/locks/", "merge".to_owned()),
        ("/v1/semaphores/", "builders".to_owned()),
        ("/v1/queues/", "work".to_owned()),
        ("/v1/workers/", "worker".to_owned()),
        ("/v1/schedules/", "nightly".to_owned()),
    ]
}

/// A name of the same form that nobody has.
fn absent(id: &str) -> String {
    let last = if id.ends_with('0') { '1' } else { '0' };
    format!("{}{last}", &id[..id.len() - 1])
}

/// A body with which the request would do something, were the thing the caller's.
fn body(path: &str) -> Value {
    match path.rsplit('/').next().unwrap_or_default() {
        "decision" => json!({ "decision": "rejected", "reason": "x", "action_hash": "0".repeat(64) }),
        "resolve" => json!({ "resolution": "fail", "reason": "x" }),
        "fork" => json!({ "from": "ask" }),
        "items" => json!({ "data": { "n": 1 } }),
        "take" => json!({ "holder": "somebody", "max": 1 }),
        "break" if path.contains("semaphores") => json!({ "holder": "somebody" }),
        _ => json!({}),
    }
}

#[test]
fn what_nobody_reads_of_a_body_is_refused_everywhere() {
    let server = Server::start();
    let owner = server.owner();
    let things = things(&server, &server.of("default", "default"));
    let headers = [("content-type", "application/json")];
    let routes = windlass_server::api::routes();
    // Deliveries are read as their sources write them.
    let posts = routes.list().iter().filter(|r| r.method == "POST" && !r.path.starts_with("/hooks/"));
    for route in posts {
        let thing = things.iter().find(|(prefix, _)| route.path.starts_with(prefix));
        let mut path = route.path.replace("{step}", "ask");
        if let (Some((_, id)), Some(from), Some(to)) = (thing, path.find('{'), path.find('}')) {
            path.replace_range(from..=to, id);
        }
        while let (Some(from), Some(to)) = (path.find('{'), path.find('}')) {
            path.replace_range(from..=to, "itm_00000000000000000000000007");
        }
        for wrong in ["{\"zzz\": 1}", "not json"] {
            let answer = server.send("POST", &path, Some(&owner), &headers, wrong.as_bytes());
            assert_eq!(answer.status, 400, "{} with {wrong}: {}", route.path, answer.text());
        }
    }
}

#[test]
fn what_is_somebody_elses_answers_exactly_like_what_is_not_there() {
    let server = Server::start();
    let own = server.of("default", "default");
    let things = things(&server, &own);
    let routes = windlass_server::api::routes();
    let strangers = [server.of("acme", "default"), server.of("default", "elsewhere")];
    for route in routes.list().iter().filter(|route| route.path.contains('{')) {
        let Some((_, id)) = things.iter().find(|(prefix, _)| route.path.starts_with(prefix)) else {
            continue;
        };
        let first = route.path.find('}').unwrap() + 1;
        let (from, rest) = (route.path.find('{').unwrap(), route.path[first..].replace("{step}", "ask"));
        let rest = rest.replace("{name}", "go").replace("{item}", "itm_00000000000000000000000007");
        let place = |id: &str| format!("{}{id}{rest}", &route.path[..from]);
        let body = (route.method != "GET").then(|| body(route.path));
        for token in &strangers {
            let ask = |id: &str| server.ask(route.method.as_str(), &place(id), Some(token), body.as_ref());
            let (there, not) = (ask(id), ask(&absent(id)));
            let what = format!("{} {}", route.method, route.path);
            // Runbooks belong to a tenant as a whole.
            if route.path.starts_with("/v1/runbooks/") && *token == strangers[1] {
                continue;
            }
            assert_eq!(there.status, not.status, "{what}: {} {}", there.text(), not.text());
            assert_eq!(there.text(), not.text().replace(&absent(id), id), "{what}");
            assert!((400..500).contains(&there.status), "{what}: {}", there.text());
        }
    }
    let run = &things[0].1;
    for token in &strangers {
        for list in ["runs", "approvals", "locks", "semaphores", "queues", "workers", "schedules"] {
            let list = &format!("/v1/{list}");
            let items = server.ask("GET", list, Some(token), None).status(200).items();
            assert_eq!(items, Vec::<Value>::new(), "{list}");
        }
        let events = server.ask("GET", "/v1/events?follow=false", Some(token), None).status(200).text();
        assert!(!events.contains(run.as_str()) && !events.contains("lock/default/default"), "{events}");
        let tokens = server.ask("GET", "/v1/tokens", Some(token), None).status(200).items();
        assert_eq!(tokens.len(), 1, "{tokens:?}");
    }
    assert!(server.ask("GET", "/v1/runbooks", Some(&strangers[0]), None).items().is_empty());
    // And nothing of it happened.
    let shown = server.ask("GET", &format!("/v1/runs/{run}"), Some(&own), None).status(200).json();
    assert_eq!(text(&shown, "status"), "awaiting_approval");
    let lock = server.ask("GET", "/v1/locks/merge", Some(&own), None).status(200).json();
    assert_eq!(text(&lock, "state"), "held");
    let mine = server.ask("GET", "/v1/events?follow=false", Some(&own), None).status(200).text();
    assert!(mine.contains(run.as_str()));
}

#[test]
fn two_tenants_with_the_same_runbook_do_not_meet() {
    let server = Server::start();
    let (own, other) = (server.of("default", "default"), server.of("acme", "default"));
    let first = things(&server, &own);
    let second = things(&server, &other);
    assert_ne!(first[0].1, second[0].1);
    let runs = server.ask("GET", "/v1/runs", Some(&other), None).status(200).items();
    assert_eq!(runs.len(), 1, "{runs:?}");
    // Each has a lock of its own.
    let lock = server.ask("GET", "/v1/locks/merge", Some(&other), None).status(200).json();
    assert!(text(&lock, "holder").contains(&second[0].1), "{lock}");
}
