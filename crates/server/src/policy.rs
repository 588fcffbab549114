//! Policy: which rules are in force, and the decisions they make.
//!
//! Without configuration the built-in policy applies; otherwise a folder of Cedar policies does. A folder that is
//! configured and cannot be used denies everything and says why: configuring one is meant to restrict. The folder is looked at
//! again when it changes, and then a new version is in force; what was decided under the old one is asked again before
//! it is acted on.
//!
//! ```text
//! effect ─▶ question (from the state) ─▶ pool ─▶ decision ─▶ policy:decided
//! ```

pub mod builtin;
pub mod cases;
pub mod demand;
pub mod evaluate;
pub mod folder;
pub mod past;
pub mod pool;
pub mod question;
pub mod rules;
pub mod schema;

pub use question::{About, Question};
pub use rules::Rules;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;
use windlass_api::policy as shown;
use windlass_core::digest::Digest;
use windlass_core::event::{PolicyDecided, PolicyLoaded};
use windlass_core::id::{Name, RunId};
use windlass_core::policy::{Decision, Outcome};
use windlass_core::private::Private;
use windlass_core::runbook::Runbook;
use windlass_core::stream::StreamId;
use windlass_core::turn::state::{Body, State};
use windlass_engine::port;
use windlass_runbook::problem::{Problems, Source};

/// The name of the folder that is looked for where none is named.
pub const FOLDER: &str = "policy";
/// Rules to start from, which say what the built-in policy says.
pub const STARTER: &str = include_str!("../templates/base.cedar");
/// How often a folder is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// One version of policy.
#[derive(Debug)]
pub enum Edition {
    /// Nothing is configured.
    Builtin,
    /// The rules of a folder.
    Rules(Box<Rules>),
    /// A folder is configured and cannot be used: everything is denied.
    Broken {
        /// What names this state; it is none of any rules.
        version: Digest,
        /// What is wrong, in a line.
        reason: String,
        /// What is wrong, with places.
        problems: Problems,
    },
}

impl Edition {
    /// Reads a folder.
    #[must_use]
    pub fn of(dir: &Path) -> Edition {
        match Rules::load(dir) {
            Ok(rules) => Edition::Rules(Box::new(rules)),
            Err(problems) => {
                let reason = in_a_line(dir, &problems);
                let version = Digest::of(&[b"windlass policy broken\n", reason.as_bytes()]);
                Edition::Broken { version, reason, problems }
            }
        }
    }

    /// What names it.
    #[must_use]
    pub fn version(&self) -> Digest {
        match self {
            Edition::Builtin => builtin::VERSION,
            Edition::Rules(rules) => rules.version,
            Edition::Broken { version, .. } => *version,
        }
    }

    /// What it says.
    #[must_use]
    pub fn decide(&self, question: &Question) -> Decision {
        match self {
            Edition::Builtin => builtin::decide(question),
            Edition::Rules(rules) => rules.decide(question),
            Edition::Broken { version, reason, .. } => {
                Outcome::Error(reason.clone()).settle(&question.asked(*version))
            }
        }
    }
}

impl Edition {
    /// What it says, as the fact that records it.
    #[must_use]
    pub fn decided(&self, question: &Question) -> PolicyDecided {
        Edition::recorded(&self.decide(question), question)
    }

    fn recorded(decision: &Decision, question: &Question) -> PolicyDecided {
        let decided = decision.event(question.run, question.step.clone(), question.tool.clone());
        PolicyDecided { purpose: question.purpose, ..decided }
    }

    /// The no that stands for an answer that did not come.
    #[must_use]
    pub fn unanswered(&self, question: &Question, why: pool::NoAnswer) -> PolicyDecided {
        let outcome = match why {
            pool::NoAnswer::TimedOut => Outcome::TimedOut,
            pool::NoAnswer::Overloaded => Outcome::Error("too many questions wait for an answer".to_owned()),
            pool::NoAnswer::Broken => Outcome::Error("the evaluation broke down".to_owned()),
        };
        let decision = outcome.settle(&question.asked(self.version()));
        Edition::recorded(&decision, question)
    }

    /// The fact that it is in force, with its text for those who ask later what was decided by. Only rules have one.
    #[must_use]
    pub fn loaded(&self) -> Option<PolicyLoaded> {
        let Edition::Rules(rules) = self else { return None };
        let file = |source: &Source| format!("// {}\n{}\n", source.name, source.text.trim_end());
        Some(PolicyLoaded {
            policy_version: rules.version,
            builtin: false,
            policies: u32::try_from(rules.rules.len()).unwrap_or(u32::MAX),
            text: Some(Private::New(rules.sources.iter().map(file).collect())),
        })
    }
}

/// The first of these that is a policy folder.
fn near(places: &[PathBuf]) -> Option<&Path> {
    places.iter().map(PathBuf::as_path).find(|dir| folder::is_policy_folder(dir))
}

/// The policy that is on record for a tenant.
#[must_use]
pub fn recorded(state: &State, tenant: &Name) -> Option<Digest> {
    match &state.stream(&StreamId::Tenant(tenant.clone()))?.body {
        Body::Tenant(tenant) => tenant.policy_version,
        // tidy: the stream of a tenant holds one.
        _ => None,
    }
}

/// The first thing that is wrong, with its place, in a line.
fn in_a_line(dir: &Path, problems: &Problems) -> String {
    let Some(first) = problems.list.first() else {
        return format!("the policy folder {} cannot be used", dir.display());
    };
    let (file, line, column) = problems.position(first);
    let place = if line > 0 { format!("{file}:{line}:{column}: ") } else { String::new() };
    let text = format!("the policy in {} cannot be used: {place}{}", dir.display(), first.message);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The policy in force.
#[derive(Debug)]
pub struct InForce {
    edition: RwLock<Arc<Edition>>,
    /// The folder. Once there is one, its rules are in force, or nothing is allowed.
    dir: OnceLock<PathBuf>,
    /// Folders that would be it, were they there: the first counts.
    places: Vec<PathBuf>,
    /// How the folder looked before it was read.
    stamp: folder::Stamp,
}

impl Default for InForce {
    fn default() -> Self {
        InForce::builtin()
    }
}

impl port::Policy for InForce {
    fn version(&self) -> Digest {
        self.edition.read().unwrap_or_else(PoisonError::into_inner).version()
    }
}

impl InForce {
    /// The built-in policy.
    #[must_use]
    pub fn builtin() -> InForce {
        InForce::until_found(Vec::new())
    }

    /// The built-in policy, until one of these folders is there.
    fn until_found(places: Vec<PathBuf>) -> InForce {
        let edition = RwLock::new(Arc::new(Edition::Builtin));
        InForce { edition, dir: OnceLock::new(), places, stamp: Vec::new() }
    }

    /// The policy of a folder, whatever state it is in.
    #[must_use]
    pub fn of(dir: &Path) -> InForce {
        let stamp = folder::stamp(dir);
        let edition = RwLock::new(Arc::new(Edition::of(dir)));
        InForce { edition, dir: OnceLock::from(dir.to_path_buf()), places: Vec::new(), stamp }
    }

    /// The policy of the folder that is named, or else of the first place that has a folder of policies. As long as no
    /// place has one, the built-in policy.
    #[must_use]
    pub fn find(named: Option<&Path>, places: &[PathBuf]) -> InForce {
        let places: Vec<PathBuf> = places.iter().map(|place| place.join(FOLDER)).collect();
        match named.or_else(|| near(&places)) {
            Some(dir) => InForce::of(dir),
            None => InForce::until_found(places),
        }
    }

    /// The version in force with all that belongs to it.
    #[must_use]
    pub fn edition(&self) -> Arc<Edition> {
        self.edition.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is wrong with the configured folder; nothing where it can be used, or where there is none.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match &*self.edition() {
            Edition::Builtin | Edition::Rules(_) => None,
            Edition::Broken { reason, .. } => Some(reason.clone()),
        }
    }

    /// What it says of a question, as the fact that records it.
    #[must_use]
    pub fn decide(&self, question: &Question) -> PolicyDecided {
        self.edition().decided(question)
    }

    /// What it says once for a whole run, where it can be said before the run is there. Rules look at the run, so they
    /// are asked when its first step is ready.
    #[must_use]
    pub fn for_run(&self, run: RunId, runbook: &Runbook, pipeline: &Name) -> Vec<PolicyDecided> {
        match &*self.edition() {
            Edition::Builtin => builtin::for_run(run, runbook, pipeline),
            Edition::Rules(_) | Edition::Broken { .. } => Vec::new(),
        }
    }

    /// Reads the folder again, or for the first time where it was made in the meantime. Says whether another version is in
    /// force now.
    pub fn reload(&self) -> bool {
        let found = self.dir.get().map(PathBuf::as_path).or_else(|| near(&self.places));
        let Some(dir) = found else { return false };
        let next = Edition::of(dir);
        let mut edition = self.edition.write().unwrap_or_else(PoisonError::into_inner);
        let moved = edition.version() != next.version();
        *edition = Arc::new(next);
        // A caller that sees the folder also sees its content.
        self.dir.get_or_init(|| dir.to_path_buf());
        moved
    }

    /// Reads the folder again on request, and reports the policy that is now in force.
    pub fn reload_and_tell(&self) {
        self.reload();
        tell(self);
    }

    /// Looks at the folder from time to time, and reads it again when it was touched and then left alone. A folder that was
    /// not there before is read as soon as it is seen, whatever state it is in. Ends with the last one who has the policy.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn watch(self: &Arc<InForce>) -> std::io::Result<()> {
        if self.dir.get().is_none() && self.places.is_empty() {
            return Ok(());
        }
        let policy: Weak<InForce> = Arc::downgrade(self);
        let mut known = self.stamp.clone();
        let mut before = known.clone();
        let look = move || {
            loop {
                std::thread::sleep(LOOK);
                let Some(policy) = policy.upgrade() else { return };
                let Some(dir) = policy.dir.get() else {
                    if policy.reload() {
                        tell(&policy);
                    }
                    continue;
                };
                let now = folder::stamp(dir);
                // A change that is still going on is not one yet.
                if now != known && now == before {
                    known.clone_from(&now);
                    if policy.reload() {
                        tell(&policy);
                    }
                }
                before = now;
            }
        };
        std::thread::Builder::new().name("policy-watch".into()).spawn(look).map(|_| ())
    }

    /// What is in force, as answers show it.
    #[must_use]
    pub fn shown(&self) -> shown::Policy {
        let edition = self.edition();
        let folder = self.dir.get().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
        let (rules, error) = match &*edition {
            Edition::Builtin => (Some(vec![builtin_rule()]), None),
            Edition::Rules(rules) => (Some(rules.list().into_iter().map(rule).collect()), None),
            Edition::Broken { reason, .. } => (None, Some(reason.clone())),
        };
        shown::Policy {
            version: edition.version(),
            builtin: folder.is_none(),
            folder: folder.map(|folder| folder.display().to_string()),
            rules,
            error,
        }
    }
}

fn builtin_rule() -> shown::Rule {
    let id = builtin::RULE.to_owned();
    shown::Rule { id, file: None, line: None, effect: None, reason: None, approval: None }
}

/// A rule, as answers show it.
#[must_use]
pub fn rule(rule: &rules::Rule) -> shown::Rule {
    let approval = rule.demand.as_ref().map(|demand| shown::Demand {
        tier: demand.tier,
        count: demand.count,
        two_person: demand.two_person,
        approvers: demand.approvers.clone(),
        expires_ms: demand.expires.map(|span| span.0),
    });
    shown::Rule {
        id: rule.name.clone(),
        file: Some(rule.file.clone()),
        line: Some(rule.line),
        effect: Some(if rule.forbids { "forbid" } else { "permit" }.to_owned()),
        reason: rule.reason.clone(),
        approval,
    }
}

/// Says on stderr which policy is in force now.
fn tell(policy: &InForce) {
    match policy.problem() {
        Some(reason) => eprintln!("windlass: everything is denied: {reason}"),
        None => eprintln!("windlass: the policy {} is in force", port::Policy::version(policy)),
    }
}

#[cfg(test)]
mod tests;
