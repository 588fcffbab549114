//! The configuration file: tenants, where deliveries come from, who is who, prices and places.
//!
//! It is read with the strictness of runbooks: an unknown or doubled key is an error with a caret and a suggestion.
//! Secrets are only named in it. Their values come from the environment (`WINDLASS_SECRET_<NAME>`) or from a file of
//! that name in the folder `WINDLASS_SECRETS_DIR`, and are looked for when they are needed. Variables of the environment
//! that mean the same as a key win over it.

mod read;
mod tables;
#[cfg(test)]
mod tests;

pub use read::parse;

use crate::shell::Limits;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use windlass_core::approval::Tier;
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::effect::Notice;
use windlass_core::id::Name;
use windlass_core::time::Span;
use windlass_runbook::problem::Source;
use windlass_runbook::{Problem, Problems, yaml};

/// The name of the file where nobody names one.
pub const FILE_NAME: &str = "windlass.yaml";
/// The tenant that is meant where nobody names one.
pub const DEFAULT_TENANT: &str = "default";
/// How many secrets may be good at once: the new one and the one that it replaces.
pub const SECRETS_MAX: usize = 2;
/// The most bytes of a secret that is kept in a file.
const SECRET_LEN_MAX: u64 = 64 * 1024;

/// Where variables of the environment come from.
pub type Env = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The whole configuration.
#[derive(Clone)]
pub struct Config {
    /// The file it came from.
    pub path: Option<PathBuf>,
    /// What is set for tenants. What stands at the top of the file is the tenant `default`'s.
    pub tenants: BTreeMap<Name, Tenant>,
    /// How deliveries of generic hooks are signed.
    pub hooks: BTreeMap<Name, HookSource>,
    /// Who belongs to which group.
    pub groups: BTreeMap<Name, Vec<Name>>,
    /// Whether whoever asked for something may approve it, where that is set.
    pub self_approval: Option<bool>,
    /// The models that are asked, and what they cost.
    pub models: Models,
    /// Where the `http` tool may go.
    pub http: Http,
    /// The address under which people reach this server.
    pub public_url: Option<String>,
    /// Whether every run gets a bundle of evidence, and not only those with an effect, an approval or a denial.
    pub evidence_always: bool,
    /// How long what has ended is kept.
    pub retention: Retention,
    /// The folder with policies.
    pub policy: Option<PathBuf>,
    /// What the sandbox of steps gives, beside the system, the working directory and a scratch folder.
    pub sandbox: Sandbox,
    /// What each process of a step may use at most, in the sandbox or not.
    pub limits: Limits,
    /// The folder with descriptions of tools.
    pub tools: Option<PathBuf>,
    env: Env,
}

/// How long what has ended is kept, kind by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Runs after their end, with their records and the keys of their effects.
    pub runs: Span,
    /// What steps wrote, after the end of their run.
    pub output: Span,
    /// Items of queues after they are done.
    pub items: Span,
    /// Ingress keys after they are forgotten.
    pub keys: Span,
    /// Bundles of evidence in the data directory, after they were made.
    pub evidence: Span,
}

impl Default for Retention {
    fn default() -> Retention {
        Retention::all(Span::hours(90 * 24))
    }
}

impl Retention {
    /// The same for every kind.
    #[must_use]
    pub const fn all(span: Span) -> Retention {
        Retention { runs: span, output: span, items: span, keys: span, evidence: span }
    }

    /// The shortest of them.
    #[must_use]
    pub fn shortest(&self) -> Span {
        let Retention { runs, output, items, keys, evidence } = *self;
        [output, items, keys, evidence].into_iter().fold(runs, Span::min)
    }
}

/// What the sandbox of steps gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// To read and to execute.
    pub read: Vec<PathBuf>,
    /// To write, too.
    pub write: Vec<PathBuf>,
}

/// What is set for a tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tenant {
    /// How large its share is.
    pub weight: Option<u32>,
    /// What it may do at most.
    pub caps: Caps,
    /// The names of the secrets of its GitHub webhook.
    pub github: Vec<Name>,
    /// Its Slack.
    pub slack: Slack,
    /// The names of the secrets of its generic hooks.
    pub hooks: BTreeMap<Name, Vec<Name>>,
    /// The command that lists its issues, for guards that ask about them.
    pub issues: Option<String>,
    /// Of what its people are told, and how.
    pub notices: Notices,
}

impl Tenant {
    /// Whether somebody else than the owner may start or approve its runs.
    fn has_others(&self) -> bool {
        let Tenant { github, slack, hooks, .. } = self;
        !(github.is_empty() && slack.secrets.is_empty() && slack.users.is_empty() && hooks.is_empty())
    }
}

/// Of what people are told, and by which channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notices {
    /// Of what.
    pub on: Vec<Notice>,
    /// The channel of Slack; that of approvals where absent.
    pub slack: Option<String>,
    /// An address that gets each as JSON.
    pub webhook: Option<String>,
    /// A command that is run for each.
    pub command: Option<String>,
    /// Whether they are shown on the desktop of this machine.
    pub desktop: bool,
    /// Whether they may make a sound, where the channel has one.
    pub sound: bool,
}

impl Default for Notices {
    fn default() -> Notices {
        let on = vec![Notice::Notify, Notice::Escalation];
        Notices { on, slack: None, webhook: None, command: None, desktop: false, sound: true }
    }
}

/// A tenant's Slack.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slack {
    /// The names of its signing secrets.
    pub secrets: Vec<Name>,
    /// The only workspace that is listened to, where one is named.
    pub team: Option<Name>,
    /// Where approvals are shown.
    pub channel: Option<String>,
    /// Where approvals are shown that one of these approvers is asked for.
    pub channels: BTreeMap<Name, String>,
    /// Tiers that are not decided in Slack: their cards have no buttons.
    pub link_only: Vec<Tier>,
    /// How often people are reminded of an approval.
    pub remind: Option<Span>,
    /// When an approval is shown in another channel too, and in which.
    pub escalate: Option<(Span, String)>,
    /// Which of our users a Slack user is.
    pub users: BTreeMap<Name, Name>,
}

/// The function of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Sha256,
    /// HMAC with SHA-512.
    Sha512,
}

/// How a signature is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Hexadecimal digits.
    Hex,
    /// Base 64.
    Base64,
}

/// What names a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryId {
    /// A header.
    Header(String),
    /// A field of the payload, by its path.
    Field(Vec<String>),
    /// The bytes of the body: the same event is never sent twice on purpose.
    Body,
}

/// How the deliveries of a generic hook are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookSource {
    /// The header with the signature.
    pub header: String,
    /// Its function.
    pub algorithm: Algorithm,
    /// How it is written.
    pub encoding: Encoding,
    /// What stands before it.
    pub prefix: String,
    /// The header with the time, and how far it may be from now.
    pub timestamp: Option<(String, Span)>,
    /// What is signed: a text with `{body}`, and perhaps `{timestamp}` and `{id}`.
    pub signed: String,
    /// What names a delivery.
    pub delivery: DeliveryId,
}

/// The models that are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models {
    /// Who is asked where a step does not say.
    pub provider: Option<String>,
    /// Which model is asked where a step does not say.
    pub default: Option<String>,
    /// What each costs.
    pub prices: BTreeMap<String, Price>,
}

/// Where the `http` tool may go, as the lists are written: `api.example.com`, `*.example.com`, `10.0.0.7:8080`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Http {
    /// Only there; to every public host where nothing is listed.
    pub allow: Vec<String>,
    /// There although it is not public.
    pub allow_private: Vec<String>,
}

/// What a model costs, in millionths of a dollar for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// What it is given.
    pub input_micros: u64,
    /// What it writes.
    pub output_micros: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            path: None,
            tenants: BTreeMap::new(),
            hooks: BTreeMap::new(),
            groups: BTreeMap::new(),
            self_approval: None,
            models: Models::default(),
            http: Http::default(),
            public_url: None,
            evidence_always: false,
            limits: Limits::default(),
            sandbox: Sandbox::default(),
            retention: Retention::default(),
            policy: None,
            tools: None,
            env: Arc::new(|name| std::env::var(name).ok()),
        }
    }
}

impl fmt::Debug for Config {
    /// The environment holds secrets and is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("path", &self.path)
            .field("tenants", &self.tenants)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the file that is named, or `windlass.yaml` here or in the data directory where there is one.
    ///
    /// # Errors
    /// What is wrong with it, or that the named one is not there.
    pub fn load(named: Option<&Path>, data: &Path) -> Result<Config, Problems> {
        let found = match named {
            Some(path) => Some(path.to_path_buf()),
            None => [PathBuf::from(FILE_NAME), data.join(FILE_NAME)].into_iter().find(|path| path.is_file()),
        };
        let Some(path) = found else { return Ok(Config::default()) };
        let name = path.display().to_string();
        let whole = |message: String| {
            let source = Source { name: name.clone(), text: String::new() };
            Problems::one(vec![source], Problem::whole(message)).coded(Code::InvalidInput)
        };
        let meta = std::fs::metadata(&path).map_err(|error| whole(format!("it cannot be read: {error}")))?;
        if meta.len() > yaml::FILE_LEN_MAX as u64 {
            return Err(whole(format!("a configuration may have {} bytes", yaml::FILE_LEN_MAX)));
        }
        let text =
            std::fs::read_to_string(&path).map_err(|error| whole(format!("it cannot be read: {error}")))?;
        parse(&path, &text)
    }

    /// The same with another environment.
    #[must_use]
    pub fn with_env(self, env: Env) -> Config {
        Config { env, ..self }
    }

    /// A variable of the environment; an empty one is none.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    /// The value of a secret that is named in the file.
    #[must_use]
    pub fn secret(&self, name: &Name) -> Option<String> {
        if let Some(value) = self.var(&format!("WINDLASS_SECRET_{name}")) {
            return Some(value);
        }
        let path = Path::new(&self.var("WINDLASS_SECRETS_DIR")?).join(name.as_str());
        // A name has no slash, so the file is in the folder; a device or a pipe is not read.
        let meta =
            std::fs::metadata(&path).ok().filter(|meta| meta.is_file() && meta.len() <= SECRET_LEN_MAX);
        let text = meta.and_then(|_| std::fs::read_to_string(&path).ok())?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }

    /// Whether somebody else than the owner may start or approve runs by what is set here: people in Slack, and whoever
    /// sends deliveries to a hook.
    #[must_use]
    pub fn has_others(&self) -> bool {
        let hooks = ["WINDLASS_GITHUB_WEBHOOK_SECRET", "WINDLASS_SLACK_SIGNING_SECRET"];
        hooks.iter().any(|name| self.var(name).is_some()) || self.tenants.values().any(Tenant::has_others)
    }

    /// What is set for a tenant.
    #[must_use]
    pub fn tenant(&self, tenant: &str) -> Option<&Tenant> {
        self.tenants.get(tenant)
    }

    /// A tenant's Slack; an empty one where nothing is set.
    #[must_use]
    pub fn slack(&self, tenant: &str) -> Slack {
        self.tenant(tenant).map(|tenant| tenant.slack.clone()).unwrap_or_default()
    }

    /// Of what a tenant's people are told, and how.
    #[must_use]
    pub fn notices(&self, tenant: &str) -> Notices {
        self.tenant(tenant).map(|tenant| tenant.notices.clone()).unwrap_or_default()
    }

    /// The groups that a user belongs to.
    #[must_use]
    pub fn groups_of(&self, user: &Name) -> Vec<Name> {
        let of = |(group, users): (&Name, &Vec<Name>)| users.contains(user).then(|| group.clone());
        self.groups.iter().filter_map(of).collect()
    }

    /// The secrets that sign a tenant's GitHub deliveries. None of them: the hook is off.
    #[must_use]
    pub fn github_secrets(&self, tenant: &str) -> Vec<String> {
        self.secrets(tenant, "WINDLASS_GITHUB_WEBHOOK_SECRET", |tenant| &tenant.github)
    }

    /// The secrets that sign a tenant's Slack requests. None of them: the hook is off.
    #[must_use]
    pub fn slack_secrets(&self, tenant: &str) -> Vec<String> {
        self.secrets(tenant, "WINDLASS_SLACK_SIGNING_SECRET", |tenant| &tenant.slack.secrets)
    }

    /// The secrets that sign a tenant's deliveries of a generic hook. None of them: the hook is off.
    #[must_use]
    pub fn hook_secrets(&self, tenant: &str, source: &str) -> Vec<String> {
        let names = self.tenant(tenant).and_then(|tenant| tenant.hooks.get(source));
        names.into_iter().flatten().filter_map(|name| self.secret(name)).collect()
    }

    /// Secrets by the names of a tenant; a variable of the environment wins for the tenant `default`, and for no other.
    fn secrets(&self, tenant: &str, variable: &str, names: fn(&Tenant) -> &Vec<Name>) -> Vec<String> {
        if let Some(value) = self.var(variable).filter(|_| tenant == DEFAULT_TENANT) {
            let parts = value.split(',').map(str::trim).filter(|part| !part.is_empty());
            return parts.take(SECRETS_MAX).map(str::to_owned).collect();
        }
        let names = self.tenant(tenant).map(names);
        names.into_iter().flatten().filter_map(|name| self.secret(name)).collect()
    }
}
