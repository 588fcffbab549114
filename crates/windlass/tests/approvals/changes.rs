//! What changes between a card and its action, with a real server and tokens of its own for each person: nothing executes
//! that was not shown, and everybody hears why they are asked again.

use crate::http::Server;
use crate::office::{self, Office};
use crate::support::{Project, text, until};
use serde_json::{Value, json};

const BOOK: &str = "
name: ops
pipelines:
  named:
    vars: { version: { default: good }, note: { default: a } }
    steps:
      - { id: gate, approve: { message: 'Deploy ${{ vars.version }}?', for: [switch] } }
      - { id: hold, wait: { event: go } }
      - { id: switch, run: 'echo \"$WL_VAR_VERSION\" >> deployed', risk: high }
  plain:
    vars: { version: { default: good } }
    steps:
      - { id: gate, approve: { message: 'Deploy?' } }
      - { id: hold, wait: { event: go } }
      - { id: switch, run: 'echo \"$WL_VAR_VERSION\" >> deployed' }
    finally:
      - { id: last, run: 'echo \"last $WL_VAR_VERSION\" >> deployed' }
  tool:
    vars: { version: { default: good }, note: { default: a } }
    steps:
      - { id: gate, approve: { message: 'Deploy ${{ vars.version }}?', for: [switch] } }
      - { id: hold, wait: { event: go } }
      - { id: switch, transform: { value: { version: '${{ vars.version }}' } } }
  guarded:
    vars: { version: { default: good } }
    steps:
      - { id: hold, wait: { event: go } }
      - { id: switch, run: 'echo \"$WL_VAR_VERSION\" >> deployed' }
  checked:
    vars: { version: { default: good } }
    steps:
      - id: switch
        guard: [{ command: 'echo \"guard $WL_VAR_VERSION\" >> deployed; [ -e open ]' }]
        run: 'echo \"$WL_VAR_VERSION\" >> deployed'
";

/// A server whose policy wants shell steps of the pipeline `guarded` approved, and people with tokens.
struct Place {
    server: Server,
    dev: String,
    sre: String,
}

impl Place {
    fn open() -> Place {
        Place::with(Project::new())
    }

    fn with(project: Project) -> Place {
        project.write(
            "policy/a.cedar",
            "permit (principal, action, resource);
             @approval(\"count: 1\")
             forbid (principal, action == Windlass::Action::\"shell\", resource)
             when { context.pipeline == \"guarded\" } unless { context.approvals >= 1 };",
        );
        let server = Server::start_with(project, &[]);
        let owner = server.owner();
        let kind = [("content-type", "application/yaml")];
        server.send("POST", "/v1/runbooks", Some(&owner), &kind, BOOK.as_bytes()).status(201);
        let token = |wish: Value| text(&server.token(&wish), "token").to_owned();
        let dev = token(json!({ "name": "dev", "scopes": ["read", "run"] }));
        let sre = token(json!({ "name": "sre", "scopes": ["read", "approve"] }));
        Place { server, dev, sre }
    }

    fn start(&self, pipeline: &str) -> String {
        let body = json!({ "pipeline": pipeline });
        let made = self.server.ask("POST", "/v1/runs", Some(&self.dev), Some(&body)).status(201).json();
        text(&made, "id").to_owned()
    }

    fn run(&self, run: &str) -> Value {
        self.server.ask("GET", &format!("/v1/runs/{run}"), Some(&self.dev), None).status(200).json()
    }

    /// The open approval of a run, other than one that was seen before.
    fn asked(&self, run: &str, seen: &[&Value]) -> Value {
        until("a question", || {
            let open =
                self.server.ask("GET", "/v1/approvals?status=requested", Some(&self.sre), None).items();
            open.into_iter().find(|a| a["run"] == run && seen.iter().all(|seen| seen["id"] != a["id"]))
        })
    }

    fn approval(&self, approval: &Value) -> Value {
        let path = format!("/v1/approvals/{}", text(approval, "id"));
        self.server.ask("GET", &path, Some(&self.sre), None).status(200).json()
    }

    fn approve(&self, approval: &Value) -> crate::http::Answer {
        let path = format!("/v1/approvals/{}/decision", text(approval, "id"));
        let body = json!({ "decision": "approved", "action_hash": approval["action_hash"] });
        self.server.ask("POST", &path, Some(&self.sre), Some(&body))
    }

    fn post(&self, run: &str, what: &str, body: &Value) -> Value {
        self.server
            .ask("POST", &format!("/v1/runs/{run}/{what}"), Some(&self.dev), Some(body))
            .status(200)
            .json()
    }

    fn change(&self, run: &str, vars: &Value) {
        self.post(run, "resume", &json!({ "vars": vars }));
    }

    fn go(&self, run: &str) {
        self.post(run, "signals/go", &json!({}));
    }

    fn await_status(&self, run: &str, status: &str) {
        until(status, || (self.run(run)["status"] == status).then_some(()));
    }

    fn deployed(&self) -> String {
        if self.server.project.has("deployed") { self.server.project.read("deployed") } else { String::new() }
    }
}

#[test]
fn a_variable_that_changes_behind_an_open_card_withdraws_it() {
    let place = Place::open();
    let run = place.start("named");
    let first = place.asked(&run, &[]);
    let shown = &first["action"]["fields"]["steps"][0]["action"]["fields"];
    assert_eq!(shown["vars"], json!({ "version": "good", "note": "a" }), "{first}");
    assert!(text(&place.approval(&first), "card").contains("\"good\""));
    assert_eq!(first["tier"], "high", "it is for a step of high risk");
    place.change(&run, &json!({ "version": "evil" }));
    let withdrawn = place.approval(&first);
    assert_eq!(
        (text(&withdrawn, "status"), text(&withdrawn, "voided")),
        ("cancelled", "the variable `version` was changed")
    );
    place.approve(&first).problem(409, "CANCELLED");
    let second = place.asked(&run, &[&first]);
    assert_eq!(second["action"]["fields"]["message"], "Deploy evil?");
    let why =
        place.server.ask("GET", &format!("/v1/runs/{run}/why"), Some(&place.dev), None).status(200).text();
    assert!(why.contains("asked again: the variable `version` was changed"), "{why}");
    place.approve(&second).status(200);
    place.go(&run);
    place.await_status(&run, "completed");
    assert_eq!(place.deployed(), "evil\n", "what was shown last, and only that");
    let cancelled = place.server.project.events("approval:cancelled");
    assert_eq!(cancelled.len(), 1, "{cancelled:?}");
    assert_eq!(place.server.project.events("step:prepared").len(), 1);
}

#[test]
fn a_yes_is_void_when_a_variable_changes_before_it_is_acted_on() {
    for (pipeline, asks_first) in [("named", true), ("plain", true), ("guarded", false)] {
        let place = Place::open();
        let run = place.start(pipeline);
        if asks_first {
            let first = place.asked(&run, &[]);
            place.approve(&first).status(200);
            place.await_status(&run, "waiting_external");
        }
        place.go(&run);
        if !asks_first {
            // Policy asks about the command itself. Nothing is leased while the human's yes comes.
            let first = place.asked(&run, &[]);
            place.post(&run, "suspend", &json!({}));
            place.approve(&first).status(200);
            place.change(&run, &json!({ "version": "production" }));
            let second = place.asked(&run, &[&first]);
            assert_eq!(place.deployed(), "", "nothing ran");
            assert_eq!(second["action"]["fields"]["vars"]["version"], "production");
            place.approve(&second).status(200);
            place.await_status(&run, "completed");
            assert_eq!(place.deployed(), "production\n");
            continue;
        }
        place.await_status(&run, "completed");
        assert!(place.deployed().starts_with("good\n"), "an unchanged run keeps its yes");

        let run = place.start(pipeline);
        let first = place.asked(&run, &[]);
        place.approve(&first).status(200);
        place.await_status(&run, "waiting_external");
        place.change(&run, &json!({ "version": "evil" }));
        place.go(&run);
        let second = place.asked(&run, &[&first]);
        assert_eq!(second["by_step"], "gate");
        assert!(!place.deployed().contains("evil"));
        assert!(second.to_string().contains("evil"), "{second}");
        place.approve(&second).status(200);
        place.await_status(&run, "completed");
        assert!(place.deployed().contains("evil\n"));
    }
}

#[test]
fn an_action_that_does_not_change_keeps_its_yes() {
    let place = Place::open();
    let run = place.start("tool");
    let first = place.asked(&run, &[]);
    // Nothing that is shown has to do with it: the open card stands.
    place.change(&run, &json!({ "note": "b" }));
    assert_eq!(place.approval(&first)["status"], "requested");
    place.approve(&first).status(200);
    place.change(&run, &json!({ "note": "c" }));
    place.go(&run);
    place.await_status(&run, "completed");
    assert_eq!(place.server.project.events("approval:requested").len(), 1);
}

#[test]
fn what_cleans_up_has_the_variables_as_they_are_and_a_yes_survives_a_restart() {
    let mut place = Place::open();
    let run = place.start("plain");
    let first = place.asked(&run, &[]);
    place.approve(&first).status(200);
    place.await_status(&run, "waiting_external");
    place.change(&run, &json!({ "version": "v2" }));
    place.server.restart();
    place.go(&run);
    let second = place.asked(&run, &[&first]);
    assert_eq!(place.deployed(), "");
    place.server.restart();
    place.approve(&second).status(200);
    place.await_status(&run, "completed");
    assert_eq!(place.deployed(), "v2\nlast v2\n");
}

#[test]
fn a_remote_executor_is_given_what_was_approved() {
    let place = Place::with(Project::new());
    let book = "
name: far
pipelines:
  distant:
    vars: { version: { default: good } }
    steps:
      - { id: hold, wait: { event: go } }
      - { id: switch, runs_on: [far], run: 'true' }
";
    let kind = [("content-type", "application/yaml")];
    let owner = place.server.owner();
    place.server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
    let run = place.start("distant");
    place.change(&run, &json!({ "version": "v2" }));
    place.go(&run);
    let executor =
        text(&place.server.token(&json!({ "scopes": ["execute"], "service": true })), "token").to_owned();
    let wish = json!({ "executor": "e1", "max": 1, "wait_ms": 1000, "labels": ["far"] });
    let lease = until("a lease", || {
        let leased = place.server.ask("POST", "/v1/leases", Some(&executor), Some(&wish)).status(200).json();
        leased["items"].get(0).cloned()
    });
    // What changes now is for the next attempt.
    place.change(&run, &json!({ "version": "v3" }));
    assert_eq!(lease["vars"], json!({ "version": "v2" }));
    let handed_back = json!({ "items": [{ "run": run, "step": "switch", "epoch": lease["epoch"] }] });
    place.server.ask("POST", "/v1/leases/return", Some(&executor), Some(&handed_back)).status(200);
    let next = until("the next lease", || {
        let leased = place.server.ask("POST", "/v1/leases", Some(&executor), Some(&wish)).status(200).json();
        leased["items"].get(0).cloned()
    });
    assert_eq!(next["vars"], json!({ "version": "v3" }));
}

#[test]
fn a_guard_looks_with_the_variables_that_its_step_is_given() {
    let place = Place::open();
    let run = place.start("checked");
    let looked = |with: &str| until(with, || place.deployed().contains(with).then_some(()));
    looked("guard good");
    place.change(&run, &json!({ "version": "v2" }));
    looked("guard v2");
    place.server.project.write("open", "");
    place.await_status(&run, "completed");
    assert!(place.deployed().ends_with("guard v2\nv2\n"), "{}", place.deployed());
}

#[test]
fn groups_are_the_same_by_every_way_and_a_refusal_says_who_is_asked() {
    let office = Office::open();
    let project = office.project("channel: C9");
    let config = project.read("windlass.yaml");
    project.write("windlass.yaml", format!("{config}groups: {{ sre: [sre, tester, ann] }}\n"));
    let book = "
name: ask
pipelines:
  p: { steps: [{ id: ok, approve: { message: 'Really?', approvers: [sre] } }] }
";
    let place = Place::with(project);
    let owner = place.server.owner();
    let kind = [("content-type", "application/yaml")];
    place.server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
    let run = place.start("p");
    let asked = place.asked(&run, &[]);
    let path = format!("/v1/approvals/{}/decision", text(&asked, "id"));
    let yes = json!({ "decision": "approved", "action_hash": asked["action_hash"] });
    let eve = place.server.token(&json!({ "name": "eve", "scopes": ["read", "approve"], "groups": ["dev"] }));
    let refused =
        place.server.ask("POST", &path, Some(text(&eve, "token")), Some(&yes)).problem(403, "FORBIDDEN");
    for part in ["not_approver", "you are `eve`, in the group dev", "asked is sre", "windlass.yaml"] {
        assert!(refused.text().contains(part), "{}", refused.text());
    }
    let me = place.server.ask("GET", "/v1/me", Some(&place.sre), None).status(200).json();
    assert_eq!(me["groups"], json!(["sre"]));
    // In Slack, somebody who is in no group is told the same.
    let click = |card: &Value, user: &str| {
        let (headers, body) = office::signed(&office::clicked(card, "windlass:approve", user));
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let told = place.server.send("POST", "/hooks/slack/actions", None, &headers, body.as_bytes());
        text(&told.status(200).json(), "text").to_owned()
    };
    let told = click(&office.await_card("C9", "windlass:approve"), "U2");
    for part in
        ["does not count", "not_approver", "you are `bob`, in no group", "asked is sre", "windlass.yaml"]
    {
        assert!(told.contains(part), "{told}");
    }
    let refused = place.server.project.events("approval:refused");
    let by: Vec<(&str, &str)> =
        refused.iter().map(|event| (text(event, "decided_by"), text(event, "channel"))).collect();
    assert_eq!(by, [("eve", "api"), ("bob", "slack")]);
    // Whoever is in the group counts: by HTTP, on the command line and in Slack.
    place.approve(&asked).status(200);
    place.await_status(&run, "completed");
    let run = place.start("p");
    let asked = place.asked(&run, &[&asked]);
    let short = &text(&asked, "action_hash")[..12];
    let project = &place.server.project;
    project.windlass(&["approve", text(&asked, "id"), "--hash", &short[..11]]).code(2).warns("--hash");
    project
        .windlass(&["approve", text(&asked, "id"), "--hash", "000000000000"])
        .code(6)
        .warns("HASH_MISMATCH");
    project.windlass(&["approve", text(&asked, "id"), "--hash", short]).code(0).says("approved");
    place.await_status(&run, "completed");
    let run = place.start("p");
    let told = click(&office.await_card("C9", "windlass:approve"), "U1");
    assert!(told.contains("approved"), "{told}");
    place.await_status(&run, "completed");
}

#[test]
fn approving_ones_own_request_is_a_setting_and_refused_once_there_are_tokens() {
    let book = "
name: ask
pipelines:
  p: { steps: [{ id: ok, approve: { message: 'Really?' } }] }
";
    // (configuration, whether a token exists, whether it counts)
    for (config, token, counts) in [
        ("{}", false, true),
        ("{}", true, false),
        ("approvals: { self: refuse }", false, false),
        ("approvals: { self: allow }", true, true),
    ] {
        let project = Project::new();
        project.write("windlass.yaml", config);
        let server = Server::start_with(project, &[]);
        let owner = server.owner();
        let kind = [("content-type", "application/yaml")];
        server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
        server.ask("POST", "/v1/runs", Some(&owner), Some(&json!({ "pipeline": "p" }))).status(201);
        let asked = until("a question", || {
            server.ask("GET", "/v1/approvals?status=requested", Some(&owner), None).items().first().cloned()
        });
        if token {
            // After the question: it counts when somebody decides.
            server.token(&json!({ "name": "ann", "scopes": ["read"] }));
        }
        let path = format!("/v1/approvals/{}/decision", text(&asked, "id"));
        let yes = json!({ "decision": "approved", "action_hash": asked["action_hash"] });
        let answer = server.ask("POST", &path, Some(&owner), Some(&yes));
        if counts {
            assert_eq!(answer.status(200).json()["decisions"][0]["own_request"], true, "{config}");
        } else {
            assert!(answer.problem(403, "FORBIDDEN").text().contains("own_request"), "{config}");
        }
    }
}

#[test]
fn two_persons_are_two_whatever_tokens_one_of_them_makes() {
    let project = Project::new();
    project.write(
        "policy/a.cedar",
        "permit (principal, action, resource);
         @approval(\"two_person\")
         forbid (principal, action == Windlass::Action::\"transform\", resource) unless { context.approvals >= 2 };",
    );
    let server = Server::start_with(project, &["--trust-local"]);
    let book = "
name: act
pipelines:
  p: { vars: { to: { default: a } }, steps: [{ id: t, transform: { value: { to: '${{ vars.to }}' } } }] }
";
    let owner = server.owner();
    let kind = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&owner), &kind, book.as_bytes()).status(201);
    let all = json!(["read", "run", "approve", "admin"]);
    let token = |name: &str| text(&server.token(&json!({ "name": name, "scopes": all })), "token").to_owned();
    let (mallory, bob, cy) = (token("mallory"), token("bob"), token("cy"));
    // Nobody but the owner makes people, or says which groups they are in.
    for wish in [
        json!({ "name": "eve", "scopes": ["approve"] }),
        json!({ "name": "eve", "scopes": ["read"], "groups": ["sre"] }),
    ] {
        server.ask("POST", "/v1/tokens", Some(&mallory), Some(&wish)).problem(403, "FORBIDDEN");
    }
    // A program's token bears its maker's name, and what is asked for with it is asked for by the maker.
    let wish = json!({ "name": "bob", "scopes": ["read", "run"], "service": true });
    let made = server.ask("POST", "/v1/tokens", Some(&mallory), Some(&wish)).status(201).json();
    assert_eq!((text(&made, "name"), &made["human"]), ("mallory/bob", &json!(false)));
    let wish = json!({ "name": "eve", "scopes": ["read", "run"] });
    let unsaid = server.ask("POST", "/v1/tokens", Some(&mallory), Some(&wish)).status(201).json();
    assert_eq!((text(&unsaid, "name"), &unsaid["human"]), ("mallory/eve", &json!(false)), "said or not");
    let start = |token: Option<&str>| {
        let run = server.ask("POST", "/v1/runs", token, Some(&json!({ "pipeline": "p" }))).status(201).json();
        text(&run, "id").to_owned()
    };
    let asked = |run: &str| {
        until("a question", || {
            let open = server.ask("GET", "/v1/approvals?status=requested", Some(&owner), None).items();
            open.into_iter().find(|a| a["run"] == run)
        })
    };
    let decide = |approval: &Value, token: &str| {
        let path = format!("/v1/approvals/{}/decision", text(approval, "id"));
        let yes = json!({ "decision": "approved", "action_hash": approval["action_hash"] });
        server.ask("POST", &path, Some(token), Some(&yes))
    };
    let own = |answer: crate::http::Answer| {
        assert!(answer.problem(403, "FORBIDDEN").text().contains("own_request"));
    };
    let run = start(Some(text(&made, "token")));
    own(decide(&asked(&run), &mallory));
    // Who changes a variable of somebody else's run asked for what comes of it.
    let run = start(Some(&bob));
    asked(&run);
    server.ask("POST", &format!("/v1/runs/{run}/suspend"), Some(&mallory), Some(&json!({}))).status(200);
    let change = json!({ "vars": { "to": "b" } });
    server.ask("POST", &format!("/v1/runs/{run}/resume"), Some(&mallory), Some(&change)).status(200);
    let open = until("the changed question", || {
        Some(asked(&run)).filter(|a| a["action"]["fields"].to_string().contains("\"b\""))
    });
    own(decide(&open, &mallory));
    own(decide(&open, &bob));
    // Started without a name it may be anybody's: one more has to agree.
    let run = start(None);
    let open = asked(&run);
    assert_eq!((&open["count"], open["reasons"].to_string().contains("one more")), (&json!(3), true));
    for (token, status) in [(&mallory, "requested"), (&bob, "requested"), (&cy, "approved")] {
        assert_eq!(decide(&open, token).status(200).json()["status"], status);
    }
}
