//! Policy decisions as data, and the rules about them.
//!
//! The engine that evaluates policy lives outside the core; what comes back is a [`Decision`], and this
//! file says how far it reaches. The invariant: whatever is not a clear yes is a no. Several results
//! combine to the strictest, an error, a time-out or a missing policy is `deny`, and a decision counts
//! only for the policy, the action and the approvals that it was made with.
//!
//! The [`Ledger`] is a run's memory of its decisions. What has no fields of its own (a shell step) is
//! decided once per run and policy version; everything else once per step and action.

use crate::approval::Tier;
use crate::digest::Digest;
pub use crate::event::words::effect::{Purpose, Risk, Verdict};
use crate::event::{Event, PolicyDecided};
use crate::id::{Name, RunId, StepId};
use crate::small::Map;
use crate::time::{Millis, Span};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The most rules, and the most reasons, that a decision keeps.
pub const REASONS_MAX: usize = 64;
/// The most bytes of an evaluator's message that become a reason.
pub const REASON_LEN_MAX: usize = 1_024;
/// The most steps, and the most tools, that a run remembers decisions for.
pub const LEDGER_MAX: usize = 4_096;

/// The version of the built-in policy: a text of 32 bytes, which no hash of a policy folder can be by chance. Another
/// rule gets another text.
pub const BUILTIN: Digest = Digest(*b"windlass builtin policy, rule 1.");

/// The operations of `git.*` that stay in the local repository. A new one is outside until it is listed.
const LOCAL_GIT: &[&str] = &[
    "git.add",
    "git.branch",
    "git.checkout",
    "git.commit",
    "git.diff",
    "git.log",
    "git.merge",
    "git.rebase",
    "git.status",
    "git.worktree",
];

impl Risk {
    /// The higher of the two. A runbook can raise the risk of a tool, never lower it.
    #[must_use]
    pub fn higher(self, other: Risk) -> Risk {
        self.max(other)
    }
}

impl From<Risk> for Tier {
    fn from(risk: Risk) -> Tier {
        match risk {
            Risk::Low => Tier::Low,
            Risk::Medium => Tier::Medium,
            Risk::High => Tier::High,
        }
    }
}

/// The strictest of several results: deny over needs_approval over allow. No result at all is deny.
#[must_use]
pub fn combine(results: impl IntoIterator<Item = Verdict>) -> Verdict {
    let strictness = |verdict: &Verdict| match verdict {
        Verdict::Allow => 0,
        Verdict::NeedsApproval => 1,
        Verdict::Deny => 2,
    };
    results.into_iter().max_by_key(strictness).unwrap_or(Verdict::Deny)
}

/// What holds where no policy is configured: what stays here and what only reads is allowed, every
/// write to the outside is denied. A shell or an agent may do as the user may; that is what they are for.
#[must_use]
pub fn builtin(tool: &str, writes: bool) -> Verdict {
    let here = matches!(tool, "shell" | "agent" | "transform" | "emit" | "wait") || LOCAL_GIT.contains(&tool);
    if here || !writes { Verdict::Allow } else { Verdict::Deny }
}

/// How far a decision about a tool reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// It holds for all steps of the run that use the tool.
    PerRun,
    /// It holds for one step and its action.
    PerStep,
}

/// How far a decision about this tool reaches. A shell step's text is pinned by the runbook and it has no
/// fields that a run could change, so to ask again for each would ask the same question.
#[must_use]
pub fn scope(tool: &str) -> Scope {
    if tool == "shell" { Scope::PerRun } else { Scope::PerStep }
}

/// What policy was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The policy in force when it was asked.
    pub policy_version: Digest,
    /// The action, where it has fields of its own.
    pub action_hash: Option<Digest>,
    /// How many approvals were there to be seen.
    pub approvals: u32,
    /// The action's risk.
    pub risk: Risk,
}

/// What policy said about an action, and what it was looking at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Yes, no, or a human.
    pub verdict: Verdict,
    /// The policy that said so.
    pub policy_version: Digest,
    /// The action it was about; absent: the run and the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_hash: Option<Digest>,
    /// How many approvals it saw.
    pub approvals: u32,
    /// The rules that led to it.
    pub rules: Vec<String>,
    /// What they say for people.
    pub reasons: Vec<String>,
    /// How risky the action is.
    pub risk: Risk,
    /// How much is at stake, where policy says so itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    /// How many humans must agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Whether two must, neither the requester.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub two_person: Option<bool>,
    /// Who may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Vec<Name>>,
    /// How long they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Span>,
}

/// How an evaluation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Policy answered.
    Decided(Decision),
    /// It failed.
    Error(String),
    /// It took too long.
    TimedOut,
    /// A policy is configured and cannot be found.
    Missing,
}

impl Outcome {
    /// The decision that comes of it. Whatever is not an answer is a no, with a reason.
    #[must_use]
    pub fn settle(self, question: &Question) -> Decision {
        let reason = match self {
            Outcome::Decided(mut decision) => {
                decision.rules.truncate(REASONS_MAX);
                decision.reasons.truncate(REASONS_MAX);
                return decision;
            }
            Outcome::Error(message) => {
                let end = message.floor_char_boundary(REASON_LEN_MAX);
                alloc::format!("policy could not be evaluated: {}", &message[..end])
            }
            Outcome::TimedOut => String::from("policy did not answer in time"),
            Outcome::Missing => String::from("the configured policy is missing"),
        };
        Decision {
            verdict: Verdict::Deny,
            policy_version: question.policy_version,
            action_hash: question.action_hash,
            approvals: question.approvals,
            rules: Vec::new(),
            reasons: alloc::vec![reason],
            risk: question.risk,
            tier: None,
            count: None,
            two_person: None,
            approvers: None,
            expires: None,
        }
    }
}

impl Decision {
    /// What is at stake: what policy says, otherwise what the risk says.
    #[must_use]
    pub fn stake(&self) -> Tier {
        self.tier.unwrap_or(Tier::from(self.risk))
    }

    /// The fact that records it.
    #[must_use]
    pub fn event(&self, run: RunId, step: Option<StepId>, tool: Name) -> PolicyDecided {
        PolicyDecided {
            pipeline_id: run,
            step,
            tool,
            verdict: self.verdict,
            policy_version: self.policy_version,
            action_hash: self.action_hash,
            approvals: self.approvals,
            rules: self.rules.clone(),
            reasons: self.reasons.clone(),
            risk: self.risk,
            tier: self.tier,
            count: self.count,
            two_person: self.two_person,
            approvers: self.approvers.clone(),
            expires_ms: self.expires.map(|span| span.0),
            purpose: None,
        }
    }
}

impl From<&PolicyDecided> for Decision {
    fn from(e: &PolicyDecided) -> Decision {
        Decision {
            verdict: e.verdict,
            policy_version: e.policy_version,
            action_hash: e.action_hash,
            approvals: e.approvals,
            rules: e.rules.clone(),
            reasons: e.reasons.clone(),
            risk: e.risk,
            tier: e.tier,
            count: e.count,
            two_person: e.two_person,
            approvers: e.approvers.clone(),
            expires: e.expires_ms.map(Span),
        }
    }
}

/// Whether nothing moved since policy looked: neither the policy, nor the action, nor the approvals.
/// Otherwise it is asked again.
#[must_use]
pub fn fresh(
    decision: &Decision,
    policy_version: &Digest,
    action_hash: Option<&Digest>,
    approvals: u32,
) -> bool {
    decision.policy_version == *policy_version
        && decision.action_hash.as_ref() == action_hash
        && decision.approvals == approvals
}

/// A run's memory of what policy said. To forget is safe: policy is asked again. Decisions are boxed because a map
/// has room for eleven in its first node, and most runs have one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// The policy that decided last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Digest>,
    /// What holds for the whole run, by tool.
    pub tools: Map<Name, Box<Decision>>,
    /// What holds for a step that has not ended, with the tool it was said about.
    pub steps: Map<StepId, (Name, Box<Decision>)>,
    /// What was said last of a command or read beside a step that has not ended, by its action. It is asked again each
    /// time; this only tells whether the answer is on record already.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub asides: Map<Digest, (StepId, Box<Decision>)>,
}

impl Ledger {
    /// What a run has before policy was asked.
    pub const EMPTY: Ledger =
        Ledger { version: None, tools: Map::new(), steps: Map::new(), asides: Map::new() };

    /// The decision that stands for a step, if there is one about this very tool and action under this
    /// policy. Whoever acts on it also looks at its verdict and, with [`fresh`], at the approvals it saw.
    #[must_use]
    pub fn standing(
        &self,
        step: &StepId,
        tool: &Name,
        action_hash: Option<&Digest>,
        policy_version: &Digest,
    ) -> Option<&Decision> {
        let own = self.steps.get(step).filter(|(about, _)| about == tool).map(|(_, decision)| decision);
        let shared = match scope(tool.as_str()) {
            Scope::PerRun => self.tools.get(tool),
            Scope::PerStep => None,
        };
        // What was decided about the step itself goes before what holds for all of the tool's steps. The latter
        // was said about no action in particular, so there is no hash to compare.
        own.filter(|d| fresh(d, policy_version, action_hash, d.approvals))
            .or_else(|| shared.filter(|d| fresh(d, policy_version, None, d.approvals)))
            .map(|decision| &**decision)
    }

    /// What the built-in policy says of a whole run holds for the runs it calls and for those that go on from it: it
    /// looks at nothing but the tool. Other policies may look at the pipeline, the runbook or who asks, which can all be
    /// different there, so under them every run asks for itself.
    #[must_use]
    pub fn for_child(&self, run: RunId) -> Vec<PolicyDecided> {
        let same = self.tools.iter().filter(|(_, decision)| decision.policy_version == BUILTIN);
        same.map(|(tool, decision)| decision.event(run, None, tool.clone())).collect()
    }

    /// Whether an answer about a command or read beside a step is the last on record about it.
    #[must_use]
    pub fn has_aside(&self, decided: &PolicyDecided) -> bool {
        let known = decided.action_hash.as_ref().and_then(|action| self.asides.get(action));
        known.is_some_and(|(step, decision)| {
            Some(step) == decided.step.as_ref() && **decision == Decision::from(decided)
        })
    }

    /// What a fact does: decisions are remembered, those of ended steps forgotten.
    #[must_use]
    pub fn apply(mut self, event: &Event, _at: Millis) -> Ledger {
        self.fold(event);
        self
    }

    /// [`Ledger::apply`] in place.
    pub(crate) fn fold(&mut self, event: &Event) {
        match event {
            // It stands for no step, and for nothing but the one command.
            Event::PolicyDecided(e) if e.purpose.is_some() => {
                if let (Some(step), Some(action)) = (&e.step, &e.action_hash) {
                    let told = (step.clone(), Box::new(Decision::from(&**e)));
                    remember(&mut self.asides, action, told);
                }
            }
            Event::PolicyDecided(e) => {
                self.version = Some(e.policy_version);
                match &e.step {
                    Some(step) => {
                        remember(&mut self.steps, step, (e.tool.clone(), Box::new(Decision::from(&**e))));
                    }
                    None => remember(&mut self.tools, &e.tool, Box::new(Decision::from(&**e))),
                }
            }
            Event::StepCompleted(e) => self.forget(&e.step),
            Event::StepFailed(e) => self.forget(&e.step),
            Event::StepSkipped(e) => self.forget(&e.step),
            Event::StepCancelled(e) => self.forget(&e.step),
            // tidy: the run's stream holds much else.
            _ => {}
        }
    }

    fn forget(&mut self, step: &StepId) {
        self.steps.remove(step);
        if !self.asides.is_empty() {
            self.asides.retain(|_, (about, _)| about != step);
        }
    }
}

fn remember<K: Ord + Clone, T>(map: &mut Map<K, T>, key: &K, value: T) {
    if map.len() >= LEDGER_MAX && !map.contains_key(key) {
        map.pop_first();
    }
    map.insert(key.clone(), value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;
    use alloc::vec;
    use proptest::prelude::*;

    const POLICY: Digest = Digest([1; 32]);
    const ACTION: Digest = Digest([2; 32]);
    const OTHER: Digest = Digest([3; 32]);

    fn question() -> Question {
        Question { policy_version: POLICY, action_hash: Some(ACTION), approvals: 0, risk: Risk::High }
    }

    fn allow(action_hash: Option<Digest>) -> Decision {
        let no = Outcome::TimedOut.settle(&Question { action_hash, ..question() });
        Decision { verdict: Verdict::Allow, reasons: vec![], ..no }
    }

    fn decided(decision: &Decision, step: Option<&str>, tool: &str) -> Event {
        decision.event(RunId(1), step.map(name), name(tool)).into()
    }

    #[test]
    fn the_strictest_result_holds_and_none_is_a_no() {
        use Verdict::{Allow, Deny, NeedsApproval};
        assert_eq!(combine([Allow, NeedsApproval, Allow]), NeedsApproval);
        assert_eq!(combine([NeedsApproval, Deny, Allow]), Deny);
        assert_eq!(combine([Allow, Allow]), Allow);
        assert_eq!(combine([]), Deny);
    }

    #[test]
    fn whatever_is_not_an_answer_is_a_no_with_a_reason() {
        let long = "é".repeat(REASON_LEN_MAX);
        for outcome in
            [Outcome::Error("boom".into()), Outcome::Error(long), Outcome::TimedOut, Outcome::Missing]
        {
            let decision = outcome.settle(&question());
            assert_eq!(decision.verdict, Verdict::Deny);
            assert!(decision.reasons.len() == 1 && decision.reasons[0].len() < REASON_LEN_MAX + 64);
            assert!(fresh(&decision, &POLICY, Some(&ACTION), 0));
        }
        let wordy = Decision { rules: vec![String::new(); REASONS_MAX + 1], ..allow(None) };
        assert_eq!(Outcome::Decided(wordy).settle(&question()).rules.len(), REASONS_MAX);
    }

    #[test]
    fn only_what_the_built_in_policy_said_holds_for_other_runs() {
        let ledger = |policy_version| {
            let said = Decision { policy_version, ..allow(None) };
            Ledger::EMPTY.apply(&decided(&said, None, "shell"), Millis(0)).for_child(RunId(2))
        };
        assert_eq!(ledger(BUILTIN).len(), 1);
        assert!(ledger(POLICY).is_empty());
    }

    #[test]
    fn without_configured_policy_every_outside_write_is_denied() {
        for tool in ["shell", "agent", "transform", "emit", "wait", "git.merge"] {
            assert_eq!(builtin(tool, true), Verdict::Allow, "{tool}");
        }
        for tool in ["http", "github.comment", "slack.post", "git.push", "model", "Shell", ""] {
            assert_eq!(builtin(tool, true), Verdict::Deny, "{tool}");
            assert_eq!(builtin(tool, false), Verdict::Allow, "{tool}");
        }
    }

    #[test]
    fn a_decision_is_stale_once_anything_moved() {
        let decision = allow(Some(ACTION));
        assert!(fresh(&decision, &POLICY, Some(&ACTION), 0));
        assert!(!fresh(&decision, &OTHER, Some(&ACTION), 0));
        assert!(!fresh(&decision, &POLICY, Some(&OTHER), 0));
        assert!(!fresh(&decision, &POLICY, None, 0));
        assert!(!fresh(&decision, &POLICY, Some(&ACTION), 1));
    }

    #[test]
    fn a_shell_step_is_decided_once_for_the_run_and_others_each() {
        let (shell, http) = (name("shell"), name("http"));
        let ledger = Ledger::default()
            .apply(&decided(&allow(None), None, "shell"), Millis(0))
            .apply(&decided(&allow(None), None, "http"), Millis(0))
            .apply(&decided(&allow(Some(ACTION)), Some("a"), "http"), Millis(0));
        assert!(ledger.standing(&name("x"), &shell, None, &POLICY).is_some());
        assert!(ledger.standing(&name("x"), &shell, None, &OTHER).is_none());
        assert!(ledger.standing(&name("a"), &http, Some(&ACTION), &POLICY).is_some());
        for (step, tool, action) in [("a", "http", OTHER), ("b", "http", ACTION), ("a", "slack.post", ACTION)]
        {
            assert_eq!(
                ledger.standing(&name(step), &name(tool), Some(&action), &POLICY),
                None,
                "{step} {tool}"
            );
        }
    }

    #[test]
    fn a_decision_about_no_action_never_stands_for_one_of_another_tool() {
        let ledger = Ledger::default().apply(&decided(&allow(None), Some("a"), "http"), Millis(0));
        assert_eq!(ledger.standing(&name("a"), &name("http"), Some(&ACTION), &POLICY), None);
    }

    #[test]
    fn the_ledger_is_bounded_and_a_new_decision_always_fits() {
        let ledger = (0..LEDGER_MAX + 5).fold(Ledger::default(), |ledger, n| {
            ledger.apply(&decided(&allow(None), Some(&alloc::format!("{n:06}")), "http"), Millis(0))
        });
        assert_eq!(ledger.steps.len(), LEDGER_MAX);
        assert!(ledger.steps.contains_key("004100"));
    }

    #[test]
    fn a_decision_survives_its_fact() {
        let decision = Decision {
            tier: Some(Tier::High),
            count: Some(2),
            two_person: Some(true),
            approvers: Some(vec![name("sre")]),
            expires: Some(Span::hours(1)),
            rules: vec!["r1".into()],
            ..allow(Some(ACTION))
        };
        assert_eq!(Decision::from(&decision.event(RunId(1), None, name("http"))), decision);
        assert_eq!((decision.stake(), allow(None).stake()), (Tier::High, Tier::High));
        assert_eq!(Risk::Low.higher(Risk::Medium).higher(Risk::Low), Risk::Medium);
    }

    proptest! {
        #[test]
        fn any_prefix_and_suffix_fold_alike(
            facts in prop::collection::vec((0..4usize, 0..3usize, any::<bool>()), 0..30), cut in 0..30usize,
        ) {
            let log: Vec<Event> = facts.iter().map(|&(step, tool, shared)| {
                let step = (!shared).then_some(["a", "b", "c", "d"][step]);
                decided(&allow(step.map(|_| ACTION)), step, ["shell", "http", "slack.post"][tool])
            }).collect();
            let fold = |ledger: Ledger, log: &[Event]| log.iter().fold(ledger, |l, e| l.apply(e, Millis(0)));
            let (head, tail) = log.split_at(cut.min(log.len()));
            let text = serde_json::to_string(&fold(Ledger::default(), head)).unwrap();
            let whole = fold(Ledger::default(), &log);
            prop_assert_eq!(&fold(serde_json::from_str(&text).unwrap(), tail), &whole);
            // Nothing stands under a policy that nobody asked.
            for step in ["a", "b", "c", "d"] {
                for tool in ["shell", "http", "slack.post"] {
                    prop_assert_eq!(whole.standing(&name(step), &name(tool), Some(&ACTION), &OTHER), None);
                }
            }
        }
    }
}
