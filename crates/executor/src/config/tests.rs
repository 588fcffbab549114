//! What a configuration file may say, and what it is told when it says something else.

use super::*;

const GOOD: &str = "
tenants:
  acme:
    weight: 3
    caps: { max_concurrency: 8, max_runs_per_min: 600, max_writes_per_run: 50 }
    github: { secrets: ACME_HOOK }
    slack: { secrets: [ACME_SLACK], team: T1, users: { U1: ann } }
    hooks: { servicenow: [SN_NEW, SN_OLD] }
github: { secrets: [HOOK_NEW, HOOK_OLD] }
slack: { channel: '#ops', users: { U2: bob } }
hooks:
  servicenow:
    header: X-Signature
    encoding: base64
    prefix: 'v1,'
    secrets: SN
    timestamp: { header: X-Time, tolerance: 1m }
    signed: '{id}.{timestamp}.{body}'
    delivery: { header: X-Id }
  plain: { header: X-Sig, algorithm: sha512, delivery: { field: event.id } }
groups: { sre: [ann, bob], lead: ann }
models: { provider: anthropic, default: m, prices: { m: { input_usd: 1.25, output_usd: 10 } } }
http: { allow: [api.example.com, '*.example.org:8443'], allow_private: ['10.0.0.7:8080'] }
policy: policy
";

fn read(text: &str) -> Result<Config, String> {
    parse(Path::new("dir/windlass.yaml"), text).map_err(|problems| problems.render(false))
}

fn name(text: &str) -> Name {
    Name::clean(text)
}

#[test]
fn everything_it_may_say_is_understood() {
    let config = read(GOOD).unwrap();
    let acme = config.tenant("acme").unwrap();
    assert_eq!(
        (acme.weight, acme.caps.max_runs_per_min, &acme.github),
        (Some(3), Some(600), &vec![name("ACME_HOOK")])
    );
    assert_eq!(acme.slack.users.get("U1"), Some(&name("ann")));
    assert_eq!(config.slack("default").users.get("U2"), Some(&name("bob")));
    assert_eq!(acme.hooks["servicenow"], [name("SN_NEW"), name("SN_OLD")]);
    let hook = &config.hooks["servicenow"];
    assert_eq!(
        (hook.header.as_str(), hook.encoding, hook.prefix.as_str()),
        ("x-signature", Encoding::Base64, "v1,")
    );
    assert_eq!(hook.timestamp, Some(("x-time".to_owned(), Span::mins(1))));
    assert_eq!(hook.delivery, DeliveryId::Header("x-id".to_owned()));
    let plain = &config.hooks["plain"];
    assert_eq!((plain.algorithm, plain.signed.as_str()), (Algorithm::Sha512, "{body}"));
    assert_eq!(plain.delivery, DeliveryId::Field(vec!["event".to_owned(), "id".to_owned()]));
    assert_eq!(config.groups_of(&name("ann")), [name("lead"), name("sre")]);
    assert_eq!(
        (config.models.provider.as_deref(), config.models.default.as_deref()),
        (Some("anthropic"), Some("m"))
    );
    assert_eq!(config.models.prices["m"], Price { input_micros: 1_250_000, output_micros: 10_000_000 });
    assert_eq!(config.http.allow, ["api.example.com", "*.example.org:8443"]);
    assert_eq!(config.http.allow_private, ["10.0.0.7:8080"]);
    assert_eq!(config.policy.as_deref(), Some(Path::new("dir/policy")));
}

#[test]
fn people_in_slack_and_senders_of_hooks_are_others() {
    let hook = "hooks: { x: { header: S, delivery: body, secrets: A } }\n";
    for (text, others) in [
        ("{}\n", false),
        ("slack: { channel: C1 }\ngroups: { sre: [ann] }\n", false),
        ("slack: { users: { U1: ann } }\n", true),
        ("slack: { secrets: A }\n", true),
        ("github: { secrets: A }\n", true),
        (hook, true),
        ("tenants: { acme: { slack: { users: { U1: ann } } } }\n", true),
    ] {
        let config = read(text).unwrap();
        assert_eq!(config.with_env(Arc::new(|_| None)).has_others(), others, "{text}");
    }
    for name in ["WINDLASS_GITHUB_WEBHOOK_SECRET", "WINDLASS_SLACK_SIGNING_SECRET"] {
        let env = Arc::new(move |wanted: &str| (wanted == name).then(|| "a-secret".to_owned()));
        assert!(Config::default().with_env(env).has_others(), "{name}");
    }
}

#[test]
fn limits_of_steps_are_read_and_bounded() {
    let config = read("sandbox: { limits: { file_mib: 5, processes: 7 } }\n").unwrap();
    let limits = Limits { file_mib: Some(5), processes: Some(7) };
    assert_eq!((config.limits, Config::default().limits), (limits, Limits::default()));
    for bad in ["file_mib: 0", "processes: 0", "file_mib: 5 MiB", "memory: 64"] {
        assert!(read(&format!("sandbox: {{ limits: {{ {bad} }} }}\n")).is_err(), "{bad}");
    }
}

#[test]
fn where_and_how_approvals_are_shown_is_said_for_each_tenant() {
    let config = read(
        "public_url: https://w.example/\ntenants: { acme: { slack: { channel: C1 } } }\n\
         slack: { channel: C2, channels: { sre: C3 }, link_only: [high, medium], remind: 15m, \
         escalate: { after: 30m, channel: C4 } }\n",
    )
    .unwrap();
    let (own, acme) = (config.slack("default"), config.slack("acme"));
    assert_eq!((own.channel.as_deref(), acme.channel.as_deref()), (Some("C2"), Some("C1")));
    assert_eq!(own.channels.get("sre").map(String::as_str), Some("C3"));
    assert_eq!(own.link_only, [Tier::High, Tier::Medium]);
    assert_eq!((own.remind, acme.remind), (Some(Span::mins(15)), None));
    assert_eq!(own.escalate, Some((Span::mins(30), "C4".to_owned())));
    assert_eq!(config.public_url.as_deref(), Some("https://w.example"));
}

#[test]
fn mistakes_are_shown_where_they_stand() {
    for (text, expected) in [
        ("hook: {}", "did you mean `hooks`?"),
        ("github: { secret: A }", "did you mean `secrets`?"),
        ("github: { secrets: [A, B, C] }", "2 secrets may be good at once"),
        ("github: { secrets: 'hunter2.x' }", "WINDLASS_SECRET_<NAME>"),
        ("slack: { users: { U1: ann, U1: bob } }", "a second time"),
        ("slack: { channel: 'a/b' }", "not a channel"),
        ("slack: { channels: { sre: '' } }", "not a channel"),
        ("slack: { link_only: [huge] }", "low, medium, high"),
        ("slack: { remind: 10ms }", "every 1s at most"),
        ("slack: { escalate: { after: 1h } }", "needs `channel`"),
        ("public_url: 'javascript:x'", "not an address"),
        ("public_url: 'https://x|y>'", "not an address"),
        ("hooks: { x: { header: S } }", "needs `delivery`"),
        ("hooks: { x: { header: S, delivery: body, signed: 'x' } }", "exactly once"),
        ("hooks: { x: { header: S, delivery: body, signed: '{timestamp}{body}' } }", "go together"),
        (
            "hooks: { x: { header: S, delivery: body, timestamp: { header: T }, signed: '{body}' } }",
            "go together",
        ),
        ("hooks: { x: { header: S, delivery: body, signed: '{id}{body}' } }", "which is not there"),
        ("hooks: { x: { header: S, delivery: body, signed: '{body}{nonce}' } }", "what can be signed"),
        ("hooks: { x: { header: S, delivery: { header: A, field: b } } }", "2 kinds"),
        ("hooks: { x: { header: 'a b', delivery: body } }", "not the name of a header"),
        ("hooks: { x: { header: S, delivery: body, algorithm: sha1 } }", "sha1"),
        ("hooks: { x: { header: S, delivery: body, timestamp: { header: T, tolerance: 300 } } }", "duration"),
        (
            "hooks: { x: { header: S, delivery: body, timestamp: { header: T, tolerance: 2d } } }",
            "a day at most",
        ),
        ("hooks: { github: { header: S, delivery: body } }", "use the key `github`"),
        ("tenants: { acme: { hooks: { y: A } } }", "no hook `y`"),
        ("tenants: { default: { github: { secrets: A } } }\ngithub: { secrets: B }", "keep one of the two"),
        ("tenants: { acme: { weight: 0 } }", "weight"),
        ("http: { allow: ['http://x'] }", "not a port"),
        ("models: { prices: { m: { input_usd: 1 } } }", "needs `output_usd`"),
        ("models: { provider: acme }", "openai, anthropic"),
        ("a: [", "YAML"),
    ] {
        let shown = read(text).expect_err(text);
        assert!(shown.contains(expected), "{text}:\n{shown}");
        assert!(shown.contains("INVALID_INPUT") && shown.contains("windlass.yaml"), "{shown}");
    }
    assert!(read("").unwrap().tenants.is_empty());
}

#[test]
fn secrets_come_from_the_environment_or_a_folder_and_belong_to_their_tenant() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("HOOK_OLD"), "from a file\n").unwrap();
    std::fs::write(dir.path().join("SN"), "").unwrap();
    let folder = dir.path().display().to_string();
    let env = move |hook: Option<&'static str>| -> Env {
        let folder = folder.clone();
        Arc::new(move |name: &str| match name {
            "WINDLASS_SECRET_HOOK_NEW" => Some("new".to_owned()),
            "WINDLASS_SECRET_ACME_HOOK" => Some("acme's".to_owned()),
            "WINDLASS_SECRETS_DIR" => Some(folder.clone()),
            "WINDLASS_GITHUB_WEBHOOK_SECRET" => hook.map(str::to_owned),
            _ => None,
        })
    };
    let config = read(GOOD).unwrap().with_env(env(None));
    assert_eq!(config.github_secrets("default"), ["new", "from a file"]);
    assert_eq!(config.github_secrets("acme"), ["acme's"]);
    assert!(config.github_secrets("absent").is_empty());
    assert!(config.hook_secrets("default", "servicenow").is_empty(), "an empty secret is none");
    assert!(config.slack_secrets("default").is_empty());
    let config = config.with_env(env(Some("a, b,")));
    assert_eq!(config.github_secrets("default"), ["a", "b"]);
    assert_eq!(config.github_secrets("acme"), ["acme's"], "the variable is the default tenant's");
    let config = config.with_env(env(Some(" , ")));
    assert!(config.github_secrets("default").is_empty(), "nothing but commas is no secret");
}

#[test]
fn the_named_file_must_be_there_and_the_others_need_not() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Config::load(None, dir.path()).unwrap().path.is_none());
    assert!(Config::load(Some(&dir.path().join("x.yaml")), dir.path()).is_err());
    std::fs::write(dir.path().join(FILE_NAME), "groups: { a: b }").unwrap();
    assert_eq!(Config::load(None, dir.path()).unwrap().groups.len(), 1);
}
