//! Strategies: approaches tried in order, until one succeeds or none is left.
//!
//! An approach says which failures the next one is for. A failure that matches none of them ends the
//! strategy as `failed`, because nobody said that something else might help; the failure of the last approach
//! ends it as `exhausted`. An approach that is skipped did nothing: the next one is tried, and where none is left the
//! strategy is exhausted too. The place among the approaches only grows.
//!
//! ```text
//!              fail, matches, or skip: the next approach
//!                 ┌──────┐
//!                 ▼      │
//!   ────────▶   trying ──┴──▶ succeeded      the approach succeeded
//!                 ├─────────▶ failed         nothing matches, and others were left
//!                 └─────────▶ exhausted      the last one failed, or was skipped
//! ```
//!
//! The facts of its own are `strategy:fallback` and `strategy:exhausted`. Success and failure are the
//! step's own endings, `step:completed` and `step:failed`, and are applied from there.

pub(crate) mod flow;

use crate::code::Code;
use crate::event::{Event, StrategyExhausted, StrategyFallback};
use crate::id::{Name, RunId, StepId};
use crate::machine::{Decision, Row, table};
use crate::time::Millis;
use crate::word::words;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What leads where. A strategy that is over takes no more results.
pub const TABLE: &[Row] = table! {
    "trying": "succeed" => "succeeded";
    "trying": "fail" => "trying" | "failed" | "exhausted";
    "trying": "time_out" => "trying" | "failed" | "exhausted";
    "trying": "skip" => "trying" | "exhausted";
};
pub use crate::runbook::{Approach, FallbackCondition};

/// What stands as matched where an approach was skipped and the next one is tried.
const SKIPPED: &str = "skipped";

/// How many approaches a strategy may have.
pub const APPROACHES_MAX: usize = 32;

/// How many conditions an approach may have.
pub const CONDITIONS_MAX: usize = 32;

/// How many bytes a pattern may have.
pub const PATTERN_LEN_MAX: usize = 1_024;

words! {
    /// Where a strategy stands.
    Phase {
        /// An approach is under way. Its result moves the strategy on.
        Trying = "trying",
        /// An approach succeeded. Terminal.
        Succeeded = "succeeded",
        /// The last approach failed, or was skipped. Terminal.
        Exhausted = "exhausted",
        /// An approach failed in a way that the next one is not for. Terminal.
        Failed = "failed",
    }
}

/// A strategy at work in one step of a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strategy {
    /// The run.
    pub pipeline_id: RunId,
    /// The step whose approaches these are.
    pub step: StepId,
    /// The approaches, in order.
    pub approaches: Vec<Approach>,
    /// Which one is tried, from 0.
    pub current: u32,
    /// Where it stands.
    pub phase: Phase,
}

/// The result of an approach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// It worked.
    Succeed,
    /// It did not, and said so.
    Fail { error: String },
    /// It took too long.
    TimeOut,
    /// Its condition does not hold, or another holds its lock: it did nothing.
    Skip,
}

/// What follows from a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The strategy succeeded.
    Success,
    /// Try this approach next.
    TryNext { next: u32 },
    /// None is left.
    Exhausted,
    /// The failure is none that another approach is for.
    Failed,
}

/// Why a strategy or a result is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Too few or too many approaches.
    #[error("a strategy has 1 to {APPROACHES_MAX} approaches, not {0}")]
    Approaches(usize),
    /// Too many conditions.
    #[error("approach `{0}` has more than {CONDITIONS_MAX} conditions in `fallback_on`")]
    Conditions(Name),
    /// A pattern that matches everything, or is too long.
    #[error(
        "a pattern of approach `{0}` is empty or longer than {PATTERN_LEN_MAX} bytes; use `any` for any error"
    )]
    Pattern(Name),
    /// The strategy is over.
    #[error("the strategy of step `{0}` is {1} already")]
    Over(StepId, Phase),
}

impl Error {
    /// Its stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::Approaches(_) | Error::Conditions(_) | Error::Pattern(_) => Code::RunbookInvalid,
            Error::Over(..) => Code::RunInvalidTransition,
        }
    }
}

impl FallbackCondition {
    fn matches(&self, failure: &Failure<'_>) -> bool {
        match (self, failure) {
            (FallbackCondition::Error(pattern), Failure::Error(error)) => {
                error.to_lowercase().contains(&pattern.to_lowercase())
            }
            // A time-out has no error text to look into.
            (FallbackCondition::Error(_), Failure::TimeOut) => false,
            (FallbackCondition::Timeout, Failure::Error(_)) => false,
            (FallbackCondition::Timeout, Failure::TimeOut) => true,
            (FallbackCondition::AnyError, Failure::Error(_) | Failure::TimeOut) => true,
        }
    }

    /// The condition as a runbook writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            FallbackCondition::Error(pattern) => pattern,
            FallbackCondition::AnyError => "any",
            FallbackCondition::Timeout => "timeout",
        }
    }
}

impl Approach {
    /// Checks the bounds of an approach.
    ///
    /// # Errors
    /// Too many conditions, or a pattern that is empty or too long.
    pub fn check(&self) -> Result<(), Error> {
        if self.fallback_on.len() > CONDITIONS_MAX {
            return Err(Error::Conditions(self.name.clone()));
        }
        let fits = |condition: &FallbackCondition| match condition {
            FallbackCondition::Error(pattern) => (1..=PATTERN_LEN_MAX).contains(&pattern.len()),
            FallbackCondition::AnyError | FallbackCondition::Timeout => true,
        };
        if self.fallback_on.iter().all(fits) { Ok(()) } else { Err(Error::Pattern(self.name.clone())) }
    }
}

enum Failure<'a> {
    Error(&'a str),
    TimeOut,
}

impl Strategy {
    /// A strategy about to try its first approach.
    ///
    /// # Errors
    /// What is out of bounds: the number of approaches, or what one of them holds.
    pub fn new(pipeline_id: RunId, step: StepId, approaches: Vec<Approach>) -> Result<Strategy, Error> {
        if !(1..=APPROACHES_MAX).contains(&approaches.len()) {
            return Err(Error::Approaches(approaches.len()));
        }
        approaches.iter().try_for_each(Approach::check)?;
        Ok(Strategy { pipeline_id, step, approaches, current: 0, phase: Phase::Trying })
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        self.phase.as_str()
    }

    /// The approach that is tried, or was tried last.
    #[must_use]
    pub fn approach(&self) -> Option<&Approach> {
        self.approaches.get(self.current as usize)
    }

    /// What the result of an approach leads to. Changes nothing. A strategy has no times of its own.
    ///
    /// # Errors
    /// A result for a strategy that is over.
    pub fn decide(&self, input: &Input, _at: Millis) -> Result<Decision<Outcome>, Error> {
        match (self.phase, input) {
            // The step's own ending is the fact.
            (Phase::Trying, Input::Succeed) => Ok(Decision::reply(Outcome::Success)),
            (Phase::Trying, Input::Fail { error }) => Ok(self.fall_back(&Failure::Error(error))),
            (Phase::Trying, Input::TimeOut) => Ok(self.fall_back(&Failure::TimeOut)),
            (Phase::Trying, Input::Skip) => Ok(self.go_on(|_| Some(SKIPPED))),
            (
                Phase::Succeeded | Phase::Exhausted | Phase::Failed,
                Input::Succeed | Input::Fail { .. } | Input::TimeOut | Input::Skip,
            ) => Err(Error::Over(self.step.clone(), self.phase)),
        }
    }

    /// What a fact does. A run has many steps: only facts of this one count.
    #[must_use]
    pub fn apply(mut self, event: &Event, _at: Millis) -> Strategy {
        let mine = |run: RunId, step: &StepId| run == self.pipeline_id && *step == self.step;
        match (self.phase, event) {
            (Phase::Trying, Event::StrategyFallback(e)) if mine(e.pipeline_id, &e.step) => {
                self.current = e.to;
            }
            (Phase::Trying, Event::StrategyExhausted(e)) if mine(e.pipeline_id, &e.step) => {
                self.phase = Phase::Exhausted;
            }
            (Phase::Trying, Event::StepCompleted(e)) if mine(e.pipeline_id, &e.step) => {
                self.phase = Phase::Succeeded;
            }
            (Phase::Trying, Event::StepFailed(e)) if mine(e.pipeline_id, &e.step) => {
                self.phase = Phase::Failed;
            }
            // Other facts, those of other steps, and the step's own `step:failed` after it is exhausted.
            _ => {}
        }
        self
    }

    fn fall_back(&self, failure: &Failure<'_>) -> Decision<Outcome> {
        self.go_on(|conditions| {
            conditions.iter().find(|condition| condition.matches(failure)).map(FallbackCondition::as_str)
        })
    }

    /// The next approach, where there is one and `matched` names what leads to it.
    fn go_on<'a>(
        &'a self,
        matched: impl FnOnce(&'a [FallbackCondition]) -> Option<&'a str>,
    ) -> Decision<Outcome> {
        let (pipeline_id, step) = (self.pipeline_id, self.step.clone());
        let count = u32::try_from(self.approaches.len()).unwrap_or(u32::MAX);
        let next = self.current.saturating_add(1);
        if next >= count {
            let fact = StrategyExhausted { pipeline_id, step, approaches: count };
            return Decision::reply(Outcome::Exhausted).fact(fact);
        }
        let conditions = self.approach().map_or(&[][..], |approach| &approach.fallback_on);
        match matched(conditions) {
            Some(matched) => {
                let (from, matched) = (self.current, matched.to_string());
                let fact = StrategyFallback { pipeline_id, step, from, to: next, matched };
                Decision::reply(Outcome::TryNext { next }).fact(fact)
            }
            // The step's own ending is the fact.
            None => Decision::reply(Outcome::Failed),
        }
    }
}

#[cfg(test)]
mod tests {
    // Named apart, because the prelude of proptest has a `Strategy` of its own.
    use super::Strategy;
    use super::*;
    use crate::event::{StepCompleted, StepFailed};
    use crate::testing::{Proof, name};
    use alloc::{format, vec};
    use proptest::prelude::*;
    use proptest::strategy::Strategy as _;

    fn approach(text: &str, fallback_on: &[FallbackCondition]) -> Approach {
        Approach { name: name(text), fallback_on: fallback_on.to_vec() }
    }

    fn error(pattern: &str) -> FallbackCondition {
        FallbackCondition::Error(pattern.to_string())
    }

    fn fail(error: &str) -> Input {
        Input::Fail { error: error.to_string() }
    }

    /// The strategy of the seed: fast-forward, rebase, agent.
    fn merge() -> Strategy {
        let approaches = vec![
            approach("ff", &[error("not a fast-forward"), FallbackCondition::Timeout]),
            approach("rebase", &[error("conflict")]),
            approach("agent", &[]),
        ];
        Strategy::new(RunId(1), name("land"), approaches).unwrap()
    }

    /// Decides, then applies the facts and the step's own ending, as the flow does.
    fn step(strategy: &Strategy, input: &Input) -> Result<(Strategy, Outcome), Error> {
        let decision = strategy.decide(input, Millis(1))?;
        let mut facts = decision.facts;
        match decision.reply {
            Outcome::Success => facts.push(completed(1, "land")),
            Outcome::Failed | Outcome::Exhausted => facts.push(failed(1, "land")),
            Outcome::TryNext { .. } => {}
        }
        let after = facts.iter().fold(strategy.clone(), |state, fact| state.apply(fact, Millis(1)));
        Ok((after, decision.reply))
    }

    fn completed(run: u128, step: &str) -> Event {
        let (pipeline_id, step) = (RunId(run), name(step));
        StepCompleted {
            pipeline_id,
            step,
            epoch: 1,
            attempt: 1,
            duration_ms: 1,
            reused_from: None,
            output: None,
            asked_by: None,
        }
        .into()
    }

    fn failed(run: u128, step: &str) -> Event {
        let (pipeline_id, step, code) = (RunId(run), name(step), Code::StepFailed.name());
        let error = String::from("no").into();
        StepFailed { pipeline_id, step, epoch: 1, attempt: 1, code, duration_ms: 1, error }.into()
    }

    fn after(inputs: &[Input]) -> Strategy {
        inputs.iter().fold(merge(), |state, input| step(&state, input).unwrap().0)
    }

    #[test]
    fn the_table_is_what_happens() {
        let forward = fail("fatal: Not a fast-forward");
        let conflict = fail("CONFLICT in a.rs");
        Proof {
            name: "strategy",
            about: "Approaches tried in order, until one succeeds or none is left.",
            table: TABLE,
            states: vec![
                ("trying", merge()),
                ("trying", after(core::slice::from_ref(&forward))),
                ("trying", after(&[forward.clone(), conflict.clone()])),
                ("succeeded", after(&[Input::Succeed])),
                ("failed", after(&[fail("disk full")])),
                ("exhausted", after(&[forward.clone(), conflict, fail("no idea")])),
            ],
            inputs: vec![
                ("succeed", Input::Succeed),
                ("fail", forward),
                ("fail", fail("disk full")),
                ("time_out", Input::TimeOut),
                ("skip", Input::Skip),
            ],
        }
        .check(|state, input| match step(state, input) {
            Ok((after, _)) => Ok(after.state_name()),
            Err(error) => Err(error.code()),
        });
    }

    #[test]
    fn the_merge_chain_of_the_seed() {
        let (strategy, outcome) = step(&merge(), &fail("fatal: NOT a fast-Forward, aborting")).unwrap();
        assert_eq!(outcome, Outcome::TryNext { next: 1 });
        let decision = strategy.decide(&fail("Conflict in b.rs"), Millis(1)).unwrap();
        let fallback = StrategyFallback {
            pipeline_id: RunId(1),
            step: name("land"),
            from: 1,
            to: 2,
            matched: "conflict".to_string(),
        };
        assert_eq!(decision.facts, vec![fallback.into()]);
        let strategy = step(&strategy, &fail("conflict")).unwrap().0;
        assert_eq!(strategy.approach().unwrap().name, name("agent"));
        let decision = strategy.decide(&fail("gave up"), Millis(1)).unwrap();
        assert_eq!(decision.reply, Outcome::Exhausted);
        let exhausted = StrategyExhausted { pipeline_id: RunId(1), step: name("land"), approaches: 3 };
        assert_eq!(decision.facts, vec![exhausted.into()]);
    }

    #[test]
    fn what_matches_what() {
        let (text, time_out) = (Failure::Error("a Timeout occurred"), Failure::TimeOut);
        for (condition, on_error, on_time_out) in [
            (error("TIMEOUT"), true, false),
            (error("conflict"), false, false),
            (FallbackCondition::AnyError, true, true),
            (FallbackCondition::Timeout, false, true),
        ] {
            assert_eq!(condition.matches(&text), on_error, "{condition:?}");
            assert_eq!(condition.matches(&time_out), on_time_out, "{condition:?}");
        }
    }

    #[test]
    fn the_bounds_are_reached_and_kept() {
        let new = |approaches| Strategy::new(RunId(1), name("s"), approaches).map_err(|error| error.code());
        let many = |count: usize| vec![approach("a", &[FallbackCondition::AnyError]); count];
        assert_eq!(new(many(0)).unwrap_err(), Code::RunbookInvalid);
        assert!(new(many(APPROACHES_MAX)).is_ok());
        assert_eq!(new(many(APPROACHES_MAX + 1)).unwrap_err(), Code::RunbookInvalid);
        let conditions = |count: usize| vec![approach("a", &vec![FallbackCondition::Timeout; count])];
        assert!(new(conditions(CONDITIONS_MAX)).is_ok());
        assert_eq!(new(conditions(CONDITIONS_MAX + 1)).unwrap_err(), Code::RunbookInvalid);
        let pattern = |length: usize| vec![approach("a", &[error(&"x".repeat(length))])];
        assert_eq!(new(pattern(0)).unwrap_err(), Code::RunbookInvalid);
        assert!(new(pattern(PATTERN_LEN_MAX)).is_ok());
        assert_eq!(new(pattern(PATTERN_LEN_MAX + 1)).unwrap_err(), Code::RunbookInvalid);
    }

    #[test]
    fn facts_of_other_steps_and_runs_do_not_count() {
        for other in [completed(1, "other"), completed(2, "land"), failed(1, "other"), failed(2, "land")] {
            assert_eq!(merge().apply(&other, Millis(1)), merge());
        }
    }

    #[test]
    fn the_definition_has_a_fixed_form() {
        let text = r#"{"name":"ff","fallback_on":[{"error":"conflict"},"any_error","timeout"]}"#;
        let one =
            approach("ff", &[error("conflict"), FallbackCondition::AnyError, FallbackCondition::Timeout]);
        assert_eq!(serde_json::to_string(&one).unwrap(), text);
        assert_eq!(serde_json::from_str::<Approach>(text).unwrap(), one);
        assert!(serde_json::from_str::<Approach>(r#"{"name":"ff","on":[]}"#).is_err());
    }

    fn inputs() -> impl proptest::strategy::Strategy<Value = Vec<Input>> {
        let texts = prop_oneof![Just("not a fast-forward"), Just("conflict"), Just("other")];
        let input = prop_oneof![
            1 => Just(Input::Succeed),
            6 => texts.prop_map(fail),
            2 => Just(Input::TimeOut),
            2 => Just(Input::Skip),
        ];
        prop::collection::vec(input, 0..12)
    }

    proptest! {
        #[test]
        fn any_sequence_keeps_the_invariants(inputs in inputs(), cut in 0usize..12) {
            let (mut state, mut facts, mut kept) = (merge(), vec![], merge());
            for (number, input) in inputs.iter().enumerate() {
                if number == cut {
                    // A snapshot here, and the tail from here on, must come to the same as the whole.
                    let text = serde_json::to_string(&state).unwrap();
                    kept = serde_json::from_str(&text).unwrap();
                    facts.clear();
                }
                match state.decide(input, Millis(1)) {
                    Err(error) => {
                        prop_assert_ne!(state.phase, Phase::Trying);
                        prop_assert_eq!(error.code(), Code::RunInvalidTransition);
                    }
                    Ok(decision) => {
                        facts.extend(decision.facts);
                        match decision.reply {
                            Outcome::Success => facts.push(completed(1, "land")),
                            Outcome::Failed | Outcome::Exhausted => facts.push(failed(1, "land")),
                            Outcome::TryNext { next } => prop_assert_eq!(next, state.current + 1),
                        }
                    }
                }
                let before = state;
                state = facts.iter().fold(kept.clone(), |state, fact| state.apply(fact, Millis(1)));
                prop_assert!(state.current >= before.current);
                prop_assert!((state.current as usize) < state.approaches.len());
                if before.phase != Phase::Trying {
                    prop_assert_eq!(&state, &before, "{}", format!("{input:?} changed a terminal state"));
                }
            }
        }
    }
}
