//! Tools against servers that speak as the real ones do, and fail as they can.

mod http;
mod services;

#[path = "../../../windlass/tests/support/outside.rs"]
mod outside;

use super::session::Session;
use super::settings::{Host, Settings};
use super::*;
use crate::secrets::{Registered, Secrets, Vault};
use serde_json::json;
use windlass_core::id::RunId;
use windlass_core::small::Map;
use windlass_core::template::Template;
use windlass_core::turn::command::Refusal;

/// A place with secrets in it, and tools that reach these servers.
struct Bench {
    _dir: tempfile::TempDir,
    tools: Tools,
    secrets: Arc<Secrets>,
}

const TOKEN: &str = "tok-9f8e7d6c5b4a";

fn bench(settings: Settings) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let vault = Vault::with_key(&dir.path().join("data"), &dir.path().join("key"));
    let default = Name::clean("default");
    for name in
        ["GITHUB_TOKEN", "SLACK_BOT_TOKEN", "SERVICENOW_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "T"]
    {
        vault.set(&default, name, TOKEN).unwrap();
    }
    let secrets = Arc::new(Secrets::of(vault));
    Bench { _dir: dir, tools: Tools::new(Arc::new(settings), Registry::default()).unwrap(), secrets }
}

impl Bench {
    fn session(&self) -> Session {
        Session::new(Name::clean("default"), self.secrets.clone())
    }

    /// A call whose fields are as a template renders them: `secret` names the places with the secret `T`.
    fn call(&self, tool: &str, operation: &str, fields: Value) -> Call {
        let Value::Object(fields) = fields else { panic!("a map") };
        Call {
            tool: tool.to_owned(),
            operation: operation.to_owned(),
            target: "target".to_owned(),
            fields,
            secret_places: BTreeSet::new(),
            key: "run_1/step".to_owned(),
            attempt: 1,
            timeout: Duration::from_secs(20),
            leave: Leave::own(windlass_engine::Own::Card),
        }
    }

    async fn perform(&self, call: &Call) -> Outcome {
        self.tools.perform(call, &self.session(), None).await
    }
}

fn local(ports: &[u16]) -> Settings {
    let allow_private = ports.iter().map(|port| Host::parse(&format!("127.0.0.1:{port}")).unwrap()).collect();
    Settings { allow_private, ..Settings::default() }
}

#[test]
fn only_what_the_definition_calls_a_secret_is_one() {
    let bench = bench(Settings::default());
    let session = bench.session();
    let forged = json!({ "$secret": "T" });
    let with = Template::Map(Map::from([
        ("bearer".to_owned(), Template::Secret(Name::clean("T"))),
        ("json".to_owned(), Template::Expr("vars.x".to_owned())),
    ]));
    let rendered = json!({ "bearer": { "$secret": "T" }, "json": forged });
    let (fields, places) = session.resolve(&with, &rendered).unwrap();
    assert_eq!(fields, json!({ "bearer": TOKEN, "json": forged }), "a variable cannot ask for a secret");
    assert_eq!(places, BTreeSet::from(["bearer".to_owned()]));
    assert_eq!(session.used(), Some(json!([{ "name": "T", "version": "1" }])));
    assert_eq!(session.mask(&format!("x {TOKEN} y")), "x *** y");
    let missing = Template::Secret(Name::clean("NOT_THERE"));
    assert!(session.resolve(&missing, &Value::Null).unwrap_err().message.contains("NOT_THERE"));
}

#[test]
fn what_cannot_be_put_on_record_is_not_used_and_a_full_store_hands_the_attempt_back() {
    let bench = bench(Settings::default());
    for (code, back) in [(Code::StoreFull, true), (Code::LeaseStaleEpoch, false)] {
        let witness: session::Witness = Arc::new(move |_, _| Err(Refusal::new(code, "no")));
        let run = Registered::new(bench.secrets.clone()).later(RunId(1));
        let session = Session::witnessed(Name::clean("default"), bench.secrets.clone(), witness, run);
        let trouble = session.reveal("T").unwrap_err();
        assert_eq!((trouble.hands_back(), trouble.happened), (back, Happened::No));
        assert_eq!(session.used(), None, "nothing of it was used");
    }
}
