//! Replays history: evaluates other rules on every action that policy has decided.
//!
//! The log is read from its beginning and folded step by step. At each recorded decision the same question is built and
//! evaluated with the other rules. Nothing is written or executed.

use super::Edition;
use super::question::Question;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use windlass_core::event::{Event, PolicyDecided};
use windlass_core::id::Name;
use windlass_core::policy::Verdict;
use windlass_core::record::Record;
use windlass_core::turn::state::State;
use windlass_store::log::{Error, Log};

/// The most flips that are shown with their details.
pub const EXAMPLES_MAX: usize = 50;

/// What came of asking again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// How many decisions were asked again.
    pub decisions: u64,
    /// How many came out the same.
    pub same: u64,
    /// How many could not be asked again: what they were about is no longer there.
    pub skipped: u64,
    /// How many flipped, by what they were and what they would be.
    pub flips: BTreeMap<(String, String), u64>,
    /// The first of them.
    pub examples: Vec<Value>,
}

/// Asks the recorded decisions of a tenant again.
///
/// # Errors
/// The log cannot be read.
pub fn compare(log: &Log, tenant: &Name, policy: &Edition) -> Result<Comparison, Error> {
    let mut state = State::new();
    let mut out = Comparison::default();
    log.read(0, &mut |record, _| {
        if record.tenant == *tenant
            && let Event::PolicyDecided(decided) = &record.event
        {
            out.ask(&state, &record, decided, policy);
        }
        // A record whose beginning was dropped by retention cannot be folded, and nothing can be asked about it.
        let _ = state.fold_event(&record);
        ControlFlow::Continue(())
    })?;
    Ok(out)
}

impl Comparison {
    fn ask(&mut self, state: &State, record: &Record, decided: &PolicyDecided, policy: &Edition) {
        let question = match &decided.step {
            // What was run beside a step is not kept, but what policy says of commands can be asked.
            Some(_) if decided.purpose.is_some() && decided.tool.as_str() != "shell" => None,
            Some(_) if decided.purpose.is_some() => {
                Question::for_tool(state, decided.pipeline_id, &decided.tool)
            }
            Some(step) => Question::gather(state, decided.pipeline_id, step),
            None => Question::for_tool(state, decided.pipeline_id, &decided.tool),
        };
        let Some(mut question) = question else {
            self.skipped += 1;
            return;
        };
        question.about.at = record.at;
        // Who agreed under the policy of then is taken to agree under the other one: it is the rules that are compared.
        for (_, version) in &mut question.agreed {
            if *version == decided.policy_version {
                *version = policy.version();
            }
        }
        let now = policy.decide(&question);
        self.decisions += 1;
        if now.verdict == decided.verdict {
            self.same += 1;
            return;
        }
        let word = |verdict: Verdict| verdict.as_str().to_owned();
        *self.flips.entry((word(decided.verdict), word(now.verdict))).or_default() += 1;
        if self.examples.len() < EXAMPLES_MAX {
            let action = question.action.as_ref();
            self.examples.push(json!({
                "run": decided.pipeline_id.to_string(), "step": decided.step, "tool": decided.tool,
                "operation": action.map(|action| &action.operation), "target": action.map(|action| &action.target),
                "at": windlass_api::time::text(record.at), "was": decided.verdict, "would_be": now.verdict,
                "was_because": decided.reasons, "would_be_because": now.reasons, "rules": now.rules,
            }));
        }
    }

    /// For people and programs.
    #[must_use]
    pub fn json(&self) -> Value {
        let flips = self
            .flips
            .iter()
            .map(|((was, would_be), count)| json!({ "was": was, "would_be": would_be, "count": count }));
        json!({
            "decisions": self.decisions, "same": self.same, "skipped": self.skipped,
            "flipped": self.flips.values().sum::<u64>(), "flips": flips.collect::<Vec<_>>(), "examples": self.examples,
        })
    }
}
