//! The default policy: actions that stay on this machine are allowed, every outbound write is denied.

use super::question::Question;
use windlass_core::digest::Digest;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{Name, RunId};
use windlass_core::policy::{self, Decision, Outcome, Risk, Scope, Verdict};
use windlass_core::runbook::{Kind, Runbook};

/// The name of its one rule.
pub const RULE: &str = "builtin:1";

/// Its version.
pub const VERSION: Digest = policy::BUILTIN;

/// What it says of a tool.
fn say(tool: &Name, writes: bool, asked: &policy::Question) -> Decision {
    let verdict = policy::builtin(tool.as_str(), writes);
    let reason = match verdict {
        Verdict::Allow => "it stays on this machine, or only reads",
        Verdict::Deny | Verdict::NeedsApproval => {
            "no policy is configured, and without one every write to the outside is denied"
        }
    };
    // The rest is as where there is no answer.
    let none = Outcome::Missing.settle(asked);
    Decision { verdict, rules: vec![RULE.to_owned()], reasons: vec![reason.to_owned()], ..none }
}

/// What it says of a question.
#[must_use]
pub fn decide(question: &Question) -> Decision {
    say(&question.tool, question.writes, &question.asked(VERSION))
}

/// What it says once for a whole run: of the tools that have no fields of their own.
#[must_use]
pub fn for_run(run: RunId, runbook: &Runbook, pipeline: &Name) -> Vec<PolicyDecided> {
    let Some(def) = runbook.pipelines.get(pipeline) else { return Vec::new() };
    let mut tools: Vec<Name> = Vec::new();
    for node in &def.nodes {
        let tool = Name::clean(node.kind.tool());
        let executes = matches!(node.kind, Kind::Run { .. } | Kind::Agent { .. });
        if executes && policy::scope(tool.as_str()) == Scope::PerRun && !tools.contains(&tool) {
            tools.push(tool);
        }
    }
    let asked =
        policy::Question { policy_version: VERSION, action_hash: None, approvals: 0, risk: Risk::Low };
    tools.into_iter().map(|tool| say(&tool, true, &asked).event(run, None, tool.clone())).collect()
}
