//! The policy that holds where none is configured: what stays on this machine is allowed, every write to the outside
//! is denied.

use windlass_core::digest::Digest;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::policy::{self, Risk, Scope};
use windlass_core::receipt::Action;
use windlass_core::runbook::{Kind, Runbook};
use windlass_engine::port::Policy;

/// The built-in policy.
#[derive(Debug, Default)]
pub struct Builtin;

/// The name of its one rule.
const RULE: &str = "builtin:1";

impl Policy for Builtin {
    fn version(&self) -> Digest {
        VERSION
    }
}

/// Its version: a text of 32 bytes, which no hash of a policy file can be by chance. Another rule gets another text.
const VERSION: Digest = Digest(*b"windlass builtin policy, rule 1.");

impl Builtin {
    /// What it says of a tool.
    #[must_use]
    pub fn decide(
        &self,
        (run, step): (RunId, Option<StepId>),
        tool: &Name,
        action: (Option<&Action>, Option<Digest>),
        writes: bool,
        approvals: u32,
    ) -> PolicyDecided {
        let verdict = policy::builtin(tool.as_str(), writes);
        let reason = match verdict {
            policy::Verdict::Allow => "it stays on this machine, or only reads",
            policy::Verdict::Deny | policy::Verdict::NeedsApproval => {
                "no policy is configured, and without one every write to the outside is denied"
            }
        };
        PolicyDecided {
            pipeline_id: run,
            step,
            tool: tool.clone(),
            verdict,
            policy_version: VERSION,
            action_hash: action.1,
            approvals,
            rules: vec![RULE.to_owned()],
            reasons: vec![reason.to_owned()],
            risk: action.0.map_or(Risk::Low, |action| action.risk),
            tier: None,
            count: None,
            two_person: None,
            approvers: None,
            expires_ms: None,
        }
    }

    /// What it says once for a whole run: of the tools that have no fields of their own.
    #[must_use]
    pub fn for_run(&self, run: RunId, runbook: &Runbook, pipeline: &Name) -> Vec<PolicyDecided> {
        let Some(def) = runbook.pipelines.get(pipeline) else { return Vec::new() };
        let mut tools: Vec<Name> = Vec::new();
        for node in &def.nodes {
            let tool = Name::clean(node.kind.tool());
            let executes = matches!(node.kind, Kind::Run { .. } | Kind::Agent { .. });
            if executes && policy::scope(tool.as_str()) == Scope::PerRun && !tools.contains(&tool) {
                tools.push(tool);
            }
        }
        tools.iter().map(|tool| self.decide((run, None), tool, (None, None), false, 0)).collect()
    }
}
