//! From the text of a configuration file to what it says.

use super::{
    Algorithm, Config, DEFAULT_TENANT, DeliveryId, Encoding, HookSource, Http, Models, Notices, Price,
    Retention, SECRETS_MAX, Sandbox, Slack, Tenant, tables,
};
use crate::shell::Limits;
use crate::tools::settings::Host;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use windlass_core::approval::Tier;
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::effect::Notice;
use windlass_core::id::Name;
use windlass_core::time::Span;
use windlass_runbook::problem::{Notes, Source};
use windlass_runbook::shape::{self, Shape};
use windlass_runbook::tools::Tools;
use windlass_runbook::yaml::{self, Node, Value};
use windlass_runbook::{Problem, Problems, span};

/// How far a signed time may be from now where the file does not say.
const TOLERANCE: Span = Span::mins(5);
/// How often people may be reminded of an approval.
const REMIND_MIN: Span = Span::secs(1);
/// The shortest retention.
const RETENTION_MIN: Span = Span::secs(1);
/// The longest that it may be: a delivery that is older is a replay, whatever the file says.
const TOLERANCE_MAX: Span = Span::hours(24);
/// The most hooks, tenants or the like of one kind.
const ENTRIES_MAX: usize = 10_000;

/// Reads a configuration from its text. Paths in it are relative to where `path` is.
///
/// # Errors
/// Everything that is wrong with it, with its place.
pub fn parse(path: &Path, text: &str) -> Result<Config, Problems> {
    let sources = vec![Source { name: path.display().to_string(), text: text.to_owned() }];
    let failed = |notes: Notes, sources| notes.into_problems(sources).coded(Code::InvalidInput);
    let mut notes = Notes::default();
    let root = match yaml::parse(0, text) {
        Ok(root) => root,
        Err(problem) => return Err(Problems::one(sources, problem).coded(Code::InvalidInput)),
    };
    if root.value == Value::Null {
        return Ok(Config { path: Some(path.to_path_buf()), ..Config::default() });
    }
    shape::check(&root, &Shape::Table(&tables::FILE), "configuration", Tools::OWN, &mut notes);
    if !notes.is_empty() {
        return Err(failed(notes, sources));
    }
    let config = build(path, &root, &mut notes);
    if notes.is_empty() { Ok(config) } else { Err(failed(notes, sources)) }
}

fn build(path: &Path, root: &Node, notes: &mut Notes) -> Config {
    let mut config = Config { path: Some(path.to_path_buf()), ..Config::default() };
    for (name, node) in map(root, "tenants", notes) {
        let tenant = tenant(node, notes);
        if name.as_str() == DEFAULT_TENANT {
            for key in ["github", "slack", "notices", "hooks", "issues"] {
                if let (Some((at, _)), true) = (node.entry(key), root.get(key).is_some()) {
                    let problem = Problem::at(
                        at.at,
                        format!("`{key}` of the tenant `default` stands here and at the top"),
                    );
                    notes.add(problem.help("keep one of the two"));
                }
            }
        }
        config.tenants.insert(name, tenant);
    }
    let own = config.tenants.entry(Name::clean(DEFAULT_TENANT)).or_default();
    if let Some(github) = root.get("github") {
        own.github = secrets(github, notes);
    }
    if let Some(node) = root.get("slack") {
        own.slack = slack(node, notes);
    }
    if root.get("issues").is_some() {
        own.issues = issues(root);
    }
    if let Some(node) = root.get("notices") {
        own.notices = notices(node, notes);
    }
    for (name, node) in map(root, "hooks", notes) {
        if matches!(name.as_str(), "github" | "slack" | "custom") {
            let problem = Problem::at(node.at, format!("`{name}` is not a hook of its own"));
            let help = match name.as_str() {
                "custom" => "custom events come by `POST /v1/events`; give the hook another name".to_owned(),
                known => format!("use the key `{known}`"),
            };
            notes.add(problem.help(help));
        }
        let names = secrets(node, notes);
        if !names.is_empty() {
            own.hooks.insert(name.clone(), names);
        }
        config.hooks.insert(name, hook(node, notes));
    }
    check_hooks(&config, root, notes);
    for (group, node) in map(root, "groups", notes) {
        config.groups.insert(group, names(node));
    }
    if let Some(node) = root.get("approvals").and_then(|approvals| approvals.get("self")) {
        config.self_approval = match text(node) {
            "allow" => Some(true),
            "refuse" => Some(false),
            // tidy: any other text is a mistake.
            _ => {
                notes.add(Problem::at(node.at, "`self` is `allow` or `refuse`"));
                None
            }
        };
    }
    if let Some(node) = root.get("models") {
        config.models = models(node);
    }
    if let Some(node) = root.get("http") {
        config.http =
            Http { allow: hosts(node, "allow", notes), allow_private: hosts(node, "allow_private", notes) };
    }
    config.public_url = root.get("public_url").map(|node| public_url(node, notes));
    if let Some(node) = root.get("evidence") {
        config.evidence_always = text(node) == "always";
        if !config.evidence_always {
            notes.add(Problem::at(node.at, "`evidence` is `always` or absent"));
        }
    }
    if let Some(node) = root.get("retention") {
        config.retention = retention(node, notes);
    }
    let base = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let folder = |key: &str| -> Option<PathBuf> { Some(base.join(text(root.get(key)?))) };
    let folders = |node: &Node, key: &str| -> Vec<PathBuf> {
        node.get(key).map(Node::items).unwrap_or_default().iter().map(|item| base.join(text(item))).collect()
    };
    if let Some(node) = root.get("sandbox") {
        config.sandbox = Sandbox { read: folders(node, "read"), write: folders(node, "write") };
        // The shape was checked, so what is there fits.
        let limit = |key: &str| node.get("limits")?.get(key).and_then(shape::number);
        config.limits = Limits { file_mib: limit("file_mib"), processes: limit("processes") };
    }
    config.policy = folder("policy");
    config.tools = folder("tools");
    config
}

/// How long what has ended is kept. What steps wrote is not kept longer than their run.
fn retention(node: &Node, notes: &mut Notes) -> Retention {
    let mut kept = Retention::default();
    let mut output = None;
    for (key, value) in node.entries() {
        let Ok(span) = span::parse(text(value)) else { continue };
        if span < RETENTION_MIN {
            notes.add(Problem::at(value.at, "what has ended is kept for a second at least"));
        }
        match key.text.as_str() {
            "runs" => kept.runs = span,
            "output" => output = Some(span),
            "items" => kept.items = span,
            "keys" => kept.keys = span,
            "evidence" => kept.evidence = span,
            // tidy: the shape was checked.
            _ => {}
        }
    }
    kept.output = output.unwrap_or(kept.runs);
    kept
}

/// A tenant's hook must be one that is described.
fn check_hooks(config: &Config, root: &Node, notes: &mut Notes) {
    for (_, tenant) in root.get("tenants").map(Node::entries).unwrap_or_default() {
        for (name, _) in tenant.get("hooks").map(Node::entries).unwrap_or_default() {
            if !config.hooks.contains_key(name.text.as_str()) {
                let known = config.hooks.keys().map(Name::as_str);
                let help = windlass_runbook::problem::suggest(&name.text, known, "hooks");
                notes.add(
                    Problem::at(name.at, format!("no hook `{}` is described under `hooks`", name.text))
                        .help(help),
                );
            }
        }
    }
}

fn text(node: &Node) -> &str {
    node.text().unwrap_or_default()
}

fn names(node: &Node) -> Vec<Name> {
    node.items().iter().map(|item| Name::clean(text(item))).collect()
}

/// The entries of a map, bounded. Their names were checked.
fn map<'a>(node: &'a Node, key: &str, notes: &mut Notes) -> Vec<(Name, &'a Node)> {
    let Some(map) = node.get(key) else { return Vec::new() };
    if map.entries().len() > ENTRIES_MAX {
        notes.add(Problem::at(map.at, format!("`{key}` may have {ENTRIES_MAX} entries")));
    }
    map.entries().iter().take(ENTRIES_MAX).map(|(key, node)| (Name::clean(&key.text), node)).collect()
}

fn some_secrets(node: &Node, notes: &mut Notes) -> Vec<Name> {
    let names = names(node);
    let plain = |name: &Name| name.as_str().bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if names.len() > SECRETS_MAX {
        let problem = Problem::at(node.at, format!("{SECRETS_MAX} secrets may be good at once"));
        notes.add(problem.help("name the new one and the one that it replaces"));
    }
    if !names.iter().all(plain) {
        let problem = Problem::at(node.at, "the name of a secret has letters, digits and `_`");
        notes.add(problem.help("a secret itself never stands here: put it into WINDLASS_SECRET_<NAME>"));
    }
    names
}

fn secrets(node: &Node, notes: &mut Notes) -> Vec<Name> {
    node.get("secrets").map(|secrets| some_secrets(secrets, notes)).unwrap_or_default()
}

fn tenant(node: &Node, notes: &mut Notes) -> Tenant {
    // The shape was checked, so what is there fits.
    let small = |node: Option<&Node>| node.and_then(shape::number).and_then(|n| u32::try_from(n).ok());
    let cap = |key: &str| small(node.get("caps").and_then(|caps| caps.get(key)));
    let mut hooks = BTreeMap::new();
    for (name, node) in map(node, "hooks", notes) {
        hooks.insert(name, some_secrets(node, notes));
    }
    Tenant {
        weight: small(node.get("weight")),
        caps: Caps {
            max_concurrency: cap("max_concurrency"),
            max_runs_per_min: cap("max_runs_per_min"),
            max_writes_per_run: cap("max_writes_per_run"),
            max_runbooks: cap("max_runbooks"),
            max_runbook_bytes: cap("max_runbook_bytes"),
        },
        github: node.get("github").map(|github| secrets(github, notes)).unwrap_or_default(),
        slack: node.get("slack").map(|node| slack(node, notes)).unwrap_or_default(),
        notices: node.get("notices").map(|node| notices(node, notes)).unwrap_or_default(),
        hooks,
        issues: issues(node),
    }
}

/// The command that lists issues.
fn issues(node: &Node) -> Option<String> {
    Some(text(node.get("issues")?.get("command")?).to_owned())
}

fn notices(node: &Node, notes: &mut Notes) -> Notices {
    let flag = |key: &str, usual: bool| match node.get(key).map(|node| &node.value) {
        Some(Value::Bool(is)) => *is,
        // The shape was checked.
        Some(_) | None => usual,
    };
    let word = |node: &Node| match text(node) {
        "unknown" => Notice::Notify,
        "escalation" => Notice::Escalation,
        "approval" => Notice::Approval,
        _ => Notice::Failed,
    };
    let usual = || vec![Notice::Notify, Notice::Escalation, Notice::Approval];
    let webhook = node.get("webhook").inspect(|node| {
        let url = reqwest::Url::parse(text(node)).ok();
        if !url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            notes.add(Problem::at(node.at, "this is not an address such as https://chat.example.com/hook"));
        }
    });
    Notices {
        on: node.get("on").map_or_else(usual, |on| on.items().iter().map(word).collect()),
        slack: node.get("slack").map(|node| text(node).to_owned()),
        webhook: webhook.map(|node| text(node).to_owned()),
        command: node.get("command").map(|node| text(node).to_owned()),
        desktop: flag("desktop", false),
        sound: flag("sound", true),
    }
}

fn slack(node: &Node, notes: &mut Notes) -> Slack {
    let users = map(node, "users", notes);
    let channels = map(node, "channels", notes);
    let tiers = node.get("link_only").map(Node::items).unwrap_or_default();
    let often = node.get("remind");
    let remind = often.and_then(|node| span::parse(text(node)).ok());
    if let (Some(at), true) = (often, remind.is_some_and(|every| every < REMIND_MIN)) {
        notes.add(Problem::at(at.at, format!("people are reminded every {REMIND_MIN} at most")));
    }
    let escalate = node.get("escalate").and_then(|node| {
        let after = span::parse(text(node.get("after")?)).ok()?;
        Some((after, channel(node.get("channel")?, notes)))
    });
    Slack {
        secrets: secrets(node, notes),
        team: node.get("team").map(|team| Name::clean(text(team))),
        channel: node.get("channel").map(|node| channel(node, notes)),
        channels: channels.into_iter().map(|(group, node)| (group, channel(node, notes))).collect(),
        link_only: tiers.iter().filter_map(|tier| Tier::parse(text(tier))).collect(),
        remind,
        escalate,
        users: users.into_iter().map(|(id, user)| (id, Name::clean(text(user)))).collect(),
    }
}

/// The name or the id of a channel.
fn channel(node: &Node, notes: &mut Notes) -> String {
    const LEN_MAX: usize = 82;
    let name = text(node);
    if name.is_empty() || name.len() > LEN_MAX || name.contains(|c: char| c.is_control() || c == '/') {
        let problem = Problem::at(node.at, "this is not a channel");
        notes.add(problem.help("write its id such as C0123456789, or its name such as `#ops`"));
    }
    name.to_owned()
}

/// The address under which people reach this server.
fn public_url(node: &Node, notes: &mut Notes) -> String {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '<' | '>' | '|' | '"' | '`' | '?' | '#' | '@');
    let url = text(node);
    let web = url.starts_with("https://") || url.starts_with("http://");
    if !web || !url.chars().all(plain) {
        notes.add(Problem::at(node.at, "this is not an address such as https://windlass.example.com"));
    }
    url.trim_end_matches('/').to_owned()
}

fn hook(node: &Node, notes: &mut Notes) -> HookSource {
    let word = |key: &str| node.get(key).map(text);
    let timestamp = node.get("timestamp").map(|node| {
        let tolerance = node.get("tolerance");
        let span = tolerance.and_then(|node| span::parse(text(node)).ok()).unwrap_or(TOLERANCE);
        if let (Some(at), true) = (tolerance, span > TOLERANCE_MAX) {
            notes.add(Problem::at(at.at, "a tolerance is a day at most"));
        }
        (header(node.get("header"), notes), span)
    });
    let default = if timestamp.is_some() { "{timestamp}.{body}" } else { "{body}" };
    let delivery = match node.get("delivery") {
        Some(by) if by.text().is_none() => match (by.get("header"), by.get("field")) {
            (Some(_), _) => DeliveryId::Header(header(by.get("header"), notes)),
            (None, field) => {
                DeliveryId::Field(field.map(text).unwrap_or_default().split('.').map(str::to_owned).collect())
            }
        },
        Some(_) | None => DeliveryId::Body,
    };
    let signed = word("signed").unwrap_or(default);
    let rest =
        ["{body}", "{timestamp}", "{id}"].iter().fold(signed.to_owned(), |rest, part| rest.replace(part, ""));
    let wrong = if signed.matches("{body}").count() != 1 {
        Some("what is signed has `{body}` exactly once")
    } else if signed.contains("{timestamp}") != timestamp.is_some() {
        Some("`timestamp` and `{timestamp}` go together: a time that is not signed proves nothing")
    } else if signed.contains("{id}") && !matches!(delivery, DeliveryId::Header(_)) {
        Some("`{id}` is the header of `delivery`, which is not there")
    } else if rest.contains(['{', '}']) {
        Some("`{body}`, `{timestamp}` and `{id}` are what can be signed")
    } else {
        None
    };
    if let Some(message) = wrong {
        notes.add(Problem::at(node.get("signed").unwrap_or(node).at, message));
    }
    HookSource {
        header: header(node.get("header"), notes),
        algorithm: if word("algorithm") == Some("sha512") { Algorithm::Sha512 } else { Algorithm::Sha256 },
        encoding: if word("encoding") == Some("base64") { Encoding::Base64 } else { Encoding::Hex },
        prefix: word("prefix").unwrap_or_default().to_owned(),
        timestamp,
        signed: signed.to_owned(),
        delivery,
    }
}

/// The name of a header, in lower case.
fn header(node: Option<&Node>, notes: &mut Notes) -> String {
    let Some(node) = node else { return String::new() };
    let name = text(node).to_ascii_lowercase();
    if reqwest::header::HeaderName::from_bytes(name.as_bytes()).is_err() {
        notes.add(Problem::at(node.at, "this is not the name of a header"));
    }
    name
}

fn models(node: &Node) -> Models {
    let word = |key: &str| node.get(key).map(|word| text(word).to_owned());
    let prices = node.get("prices").map(Node::entries).unwrap_or_default().iter().map(|(model, node)| {
        let price = |key: &str| node.get(key).and_then(shape::money).unwrap_or_default();
        (model.text.clone(), Price { input_micros: price("input_usd"), output_micros: price("output_usd") })
    });
    Models { provider: word("provider"), default: word("default"), prices: prices.collect() }
}

/// A list of hosts, each of which must be one.
fn hosts(node: &Node, key: &str, notes: &mut Notes) -> Vec<String> {
    let mut hosts = Vec::new();
    for host in node.get(key).map(Node::items).unwrap_or_default() {
        match Host::parse(text(host)) {
            Ok(_) => hosts.push(text(host).to_owned()),
            Err(message) => notes.add(Problem::at(host.at, message)),
        }
    }
    hosts
}
