//! Budgets: money, tokens, time and writes, set aside before an attempt and settled by what it cost.
//!
//! The invariant: at the moment of a reservation, what is spent and what is set aside fit into the limits
//! together. An attempt can still cost more than was set aside for it; that is recorded as it is, and the
//! next reservation finds less. Where a reservation does not fit, the step waits for a human, and its work
//! is kept.
//!
//! ```text
//!            reserve (fits), settle, release
//!                ┌──┐
//!                ▼  │      reserve (does not fit)
//!               open ─────────────────────────────▶ exhausted
//!                 ▲                                   │
//!                 └── raise, or the step fits again ──┘
//! ```

use crate::code::Code;
use crate::event::{BudgetExceeded, BudgetRaised, BudgetReleased, BudgetReserved, CostRecorded, Event};
use crate::id::{Name, RunId, StepId};
use crate::machine::{Decision, Row, table};
use crate::small::Map;
use crate::time::Millis;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What leads where. `exhausted` means that a step waits; smaller ones may still fit.
pub const TABLE: &[Row] = table! {
    "open": "reserve" => "open" | "exhausted";
    "open": "settle" => "open";
    "open": "release" => "open";
    "open": "raise" => "open";
    "exhausted": "reserve" => "exhausted" | "open";
    "exhausted": "settle" => "exhausted";
    "exhausted": "release" => "exhausted";
    "exhausted": "raise" => "open" | "exhausted";
};
pub use crate::event::words::Dimension;

/// The most reservations at one time.
pub const RESERVATIONS_MAX: usize = 4_096;
/// The most steps that are remembered as settled, and the most that are remembered as waiting.
pub const STEPS_MAX: usize = 4_096;
/// The most models that costs are kept apart for; those of further ones are kept together.
pub const MODELS_MAX: usize = 256;
/// The most costs in one settlement.
pub const COSTS_MAX: usize = 64;

/// The provider under which a run's own time and writes stand. Its costs settle nothing: what a model cost may be
/// reported before or after.
pub const OWN: &str = "windlass";

/// The provider and model under which costs beyond [`MODELS_MAX`] are kept together.
const OTHER: &str = "other";

/// An amount in each dimension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount {
    /// Money, in millionths of a dollar.
    pub usd_micros: u64,
    /// Tokens.
    pub tokens: u64,
    /// Time, in milliseconds.
    pub time_ms: u64,
    /// Writes to the outside.
    pub writes: u64,
}

impl Amount {
    /// The amount in one dimension.
    #[must_use]
    pub fn of(&self, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::Usd => self.usd_micros,
            Dimension::Tokens => self.tokens,
            Dimension::Time => self.time_ms,
            Dimension::Writes => self.writes,
        }
    }

    /// The sum. A sum that does not fit stays at the largest there is, and so exceeds every limit.
    #[must_use]
    pub fn plus(self, other: Amount) -> Amount {
        Amount {
            usd_micros: self.usd_micros.saturating_add(other.usd_micros),
            tokens: self.tokens.saturating_add(other.tokens),
            time_ms: self.time_ms.saturating_add(other.time_ms),
            writes: self.writes.saturating_add(other.writes),
        }
    }
}

/// Limits; an absent one does not limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Money, in millionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_micros: Option<u64>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
    /// Writes to the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<u64>,
}

impl Limits {
    /// The limit of one dimension.
    #[must_use]
    pub fn of(&self, dimension: Dimension) -> Option<u64> {
        match dimension {
            Dimension::Usd => self.usd_micros,
            Dimension::Tokens => self.tokens,
            Dimension::Time => self.time_ms,
            Dimension::Writes => self.writes,
        }
    }

    /// The limits after they were raised to `to`. None is lowered, and what has no limit gets none.
    fn raised(&self, to: &Amount) -> Limits {
        let raise = |limit: Option<u64>, to: u64| limit.map(|limit| limit.max(to));
        Limits {
            usd_micros: raise(self.usd_micros, to.usd_micros),
            tokens: raise(self.tokens, to.tokens),
            time_ms: raise(self.time_ms, to.time_ms),
            writes: raise(self.writes, to.writes),
        }
    }

    /// The first dimension in which the amount does not fit.
    fn exceeded_by(&self, amount: &Amount) -> Option<Excess> {
        Dimension::ALL.iter().find_map(|&dimension| {
            let (limit, needed) = (self.of(dimension)?, amount.of(dimension));
            (needed > limit).then_some(Excess { dimension, limit, needed })
        })
    }
}

/// The lowest of what file, pipeline and agent say, in each dimension.
#[must_use]
pub fn lowest(file: &Limits, pipeline: &Limits, agent: &Limits) -> Limits {
    let least = |dimension| [file, pipeline, agent].iter().filter_map(|limits| limits.of(dimension)).min();
    Limits {
        usd_micros: least(Dimension::Usd),
        tokens: least(Dimension::Tokens),
        time_ms: least(Dimension::Time),
        writes: least(Dimension::Writes),
    }
}

/// By how much a reservation did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Excess {
    /// In which dimension.
    pub dimension: Dimension,
    /// The limit.
    pub limit: u64,
    /// What it would have to be.
    pub needed: u64,
}

/// What a model, or a tool, cost in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Total {
    /// Money, in millionths of a dollar.
    pub usd_micros: u64,
    /// Tokens that went in.
    pub tokens_input: u64,
    /// Tokens that came out.
    pub tokens_output: u64,
    /// Time, in milliseconds.
    pub time_ms: u64,
    /// Writes to the outside.
    pub writes: u64,
}

/// One cost of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Who is paid.
    pub provider: Name,
    /// For what.
    pub model: Name,
    /// How much.
    pub total: Total,
}

/// A run's budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Whose it is.
    pub run: RunId,
    /// What may be spent.
    pub limits: Limits,
    /// What was.
    pub spent: Amount,
    /// What is set aside, by step and epoch.
    pub reserved: Map<StepId, Map<u64, Amount>>,
    /// The newest epoch of each step whose costs are recorded: costs count once.
    pub settled: Map<StepId, u64>,
    /// The steps that wait for the budget to be raised.
    pub exceeded: Map<StepId, Excess>,
    /// What was spent, by provider and model.
    pub costs: Map<Name, Map<Name, Total>>,
}

/// What can happen to a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An attempt is about to begin.
    Reserve {
        /// Of which step.
        step: StepId,
        /// Under which lease.
        epoch: u64,
        /// What it may cost.
        amount: Amount,
    },
    /// The attempt is over, and this is what it cost.
    Settle {
        /// Of which step.
        step: StepId,
        /// Under which lease.
        epoch: u64,
        /// The costs, one for each provider and model.
        costs: Vec<Cost>,
    },
    /// The attempt is over, or never began, and cost nothing.
    Release {
        /// Of which step.
        step: StepId,
        /// Under which lease.
        epoch: u64,
    },
    /// A human raises the limits to these; 0 leaves one as it is.
    Raise {
        /// The new limits.
        to: Amount,
    },
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is set aside.
    Reserved,
    /// It does not fit: the step waits for a human.
    Exceeded(Excess),
    /// It is recorded.
    Recorded,
    /// A repeat: nothing changed.
    Standing,
}

/// Why an input is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The attempt was settled, or overtaken by a newer one.
    #[error("epoch {given} of the step is over: {current} is known")]
    Stale {
        /// The epoch that came.
        given: u64,
        /// The newest epoch that is known.
        current: u64,
    },
    /// The same attempt asks for another amount.
    #[error("the attempt has set aside another amount already")]
    Conflict,
    /// Too many attempts at one time.
    #[error("a run can set aside amounts for {max} attempts at one time", max = RESERVATIONS_MAX)]
    TooManyReservations,
    /// Too many costs in one report.
    #[error("one attempt can report {max} costs", max = COSTS_MAX)]
    TooManyCosts,
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Stale { .. } => Code::LeaseStaleEpoch,
            Error::Conflict | Error::TooManyCosts => Code::InvalidInput,
            Error::TooManyReservations => Code::CapExceeded,
        }
    }
}

/// The two states there are. Derived, so that they cannot disagree with what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Exhausted,
}

impl Budget {
    /// A budget of which nothing is spent.
    #[must_use]
    pub fn new(run: RunId, limits: Limits) -> Budget {
        Budget {
            run,
            limits,
            spent: Amount::default(),
            reserved: Map::new(),
            settled: Map::new(),
            exceeded: Map::new(),
            costs: Map::new(),
        }
    }

    fn state(&self) -> State {
        if self.exceeded.is_empty() { State::Open } else { State::Exhausted }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state() {
            State::Open => "open",
            State::Exhausted => "exhausted",
        }
    }

    /// What is spent or set aside.
    #[must_use]
    pub fn committed(&self) -> Amount {
        self.reservations().fold(self.spent, Amount::plus)
    }

    fn reservations(&self) -> impl Iterator<Item = Amount> + '_ {
        self.reserved.values().flat_map(|attempts| attempts.values().copied())
    }

    /// What would happen.
    ///
    /// # Errors
    /// Stale epochs, and what is out of its bounds. That a reservation does not fit is an answer.
    pub fn decide(&self, input: &Input, _at: Millis) -> Result<Decision<Reply>, Error> {
        match (self.state(), input) {
            // A step that waits asks again after every change; another one may be small enough to fit.
            (State::Open | State::Exhausted, Input::Reserve { step, epoch, amount }) => {
                self.reserve(step, *epoch, amount)
            }
            (State::Open | State::Exhausted, Input::Settle { step, epoch, costs }) => {
                self.settle(step, *epoch, costs)
            }
            (State::Open | State::Exhausted, Input::Release { step, epoch }) => {
                Ok(self.release(step, *epoch))
            }
            (State::Open | State::Exhausted, Input::Raise { to }) => Ok(self.raise(to)),
        }
    }

    fn reserve(&self, step: &StepId, epoch: u64, amount: &Amount) -> Result<Decision<Reply>, Error> {
        let attempts = self.reserved.get(step);
        if let Some(held) = attempts.and_then(|attempts| attempts.get(&epoch)) {
            // A repeat hears what the first one heard.
            let same = held == amount;
            return if same { Ok(Decision::reply(Reply::Reserved)) } else { Err(Error::Conflict) };
        }
        let newest = attempts.and_then(|attempts| attempts.last_key_value()).map(|(epoch, _)| *epoch);
        let known = newest.max(self.settled.get(step).copied());
        if let Some(current) = known.filter(|known| epoch <= *known) {
            return Err(Error::Stale { given: epoch, current });
        }
        if self.reservations().count() >= RESERVATIONS_MAX {
            return Err(Error::TooManyReservations);
        }
        match self.limits.exceeded_by(&self.committed().plus(*amount)) {
            Some(excess) => Ok(self.exceed(step, excess)),
            None => Ok(Decision::reply(Reply::Reserved).fact(BudgetReserved {
                pipeline_id: self.run,
                step: step.clone(),
                epoch,
                usd_micros: amount.usd_micros,
                tokens: amount.tokens,
                time_ms: some(amount.time_ms),
                writes: some(amount.writes),
            })),
        }
    }

    /// The step waits. It may ask as often as it likes: only news are recorded.
    fn exceed(&self, step: &StepId, excess: Excess) -> Decision<Reply> {
        let decision = Decision::reply(Reply::Exceeded(excess));
        if self.exceeded.get(step) == Some(&excess) {
            return decision;
        }
        decision.fact(BudgetExceeded {
            pipeline_id: self.run,
            step: step.clone(),
            dimension: excess.dimension,
            limit: excess.limit,
            needed: excess.needed,
        })
    }

    /// Costs count whether or not something was set aside for them, because they are spent, but only once.
    fn settle(&self, step: &StepId, epoch: u64, costs: &[Cost]) -> Result<Decision<Reply>, Error> {
        match self.settled.get(step) {
            Some(&settled) if settled == epoch => return Ok(Decision::reply(Reply::Standing)),
            Some(&current) if current > epoch => return Err(Error::Stale { given: epoch, current }),
            Some(_) | None => {}
        }
        if costs.len() > COSTS_MAX {
            return Err(Error::TooManyCosts);
        }
        if costs.is_empty() {
            return Ok(self.release(step, epoch));
        }
        let facts = costs.iter().map(|Cost { provider, model, total }| CostRecorded {
            pipeline_id: self.run,
            step: step.clone(),
            epoch,
            provider: provider.clone(),
            model: model.clone(),
            usd_micros: total.usd_micros,
            tokens_input: total.tokens_input,
            tokens_output: total.tokens_output,
            time_ms: some(total.time_ms),
            writes: some(total.writes),
        });
        Ok(facts.fold(Decision::reply(Reply::Recorded), Decision::fact))
    }

    /// Gives back what was set aside. Where nothing is, it was given back before.
    fn release(&self, step: &StepId, epoch: u64) -> Decision<Reply> {
        let held = self.reserved.get(step).is_some_and(|attempts| attempts.contains_key(&epoch));
        if !held {
            return Decision::reply(Reply::Standing);
        }
        let fact = BudgetReleased { pipeline_id: self.run, step: step.clone(), epoch };
        Decision::reply(Reply::Recorded).fact(fact)
    }

    fn raise(&self, to: &Amount) -> Decision<Reply> {
        let limits = self.limits.raised(to);
        if limits == self.limits {
            return Decision::reply(Reply::Standing);
        }
        Decision::reply(Reply::Recorded).fact(BudgetRaised {
            pipeline_id: self.run,
            usd_micros: limits.usd_micros.unwrap_or(0),
            tokens: limits.tokens.unwrap_or(0),
            time_ms: limits.time_ms.unwrap_or(0),
            writes: limits.writes,
        })
    }

    /// What a fact does. Those of other runs, and of anything else, do nothing.
    #[must_use]
    pub fn apply(mut self, event: &Event, _at: Millis) -> Budget {
        match event {
            Event::BudgetReserved(e) if e.pipeline_id == self.run => {
                let amount = Amount {
                    usd_micros: e.usd_micros,
                    tokens: e.tokens,
                    time_ms: e.time_ms.unwrap_or(0),
                    writes: e.writes.unwrap_or(0),
                };
                self.reserved.or_default(e.step.clone()).insert(e.epoch, amount);
                self.exceeded.remove(&e.step);
            }
            Event::BudgetReleased(e) if e.pipeline_id == self.run => self.free(&e.step, e.epoch),
            Event::BudgetExceeded(e) if e.pipeline_id == self.run => {
                let excess = Excess { dimension: e.dimension, limit: e.limit, needed: e.needed };
                keep(&mut self.exceeded, &e.step, excess);
            }
            Event::BudgetRaised(e) if e.pipeline_id == self.run => {
                self.limits = self.limits.raised(&Amount {
                    usd_micros: e.usd_micros,
                    tokens: e.tokens,
                    time_ms: e.time_ms,
                    writes: e.writes.unwrap_or(0),
                });
                // Those that waited for less than the new limits ask again.
                let limits = self.limits;
                self.exceeded.retain(|_, excess| {
                    limits.of(excess.dimension).is_some_and(|limit| excess.needed > limit)
                });
            }
            Event::CostRecorded(e) if e.pipeline_id == self.run => self.spend(e),
            // The run's stream holds much else.
            _ => {}
        }
        self
    }

    fn free(&mut self, step: &StepId, epoch: u64) {
        if let Some(attempts) = self.reserved.get_mut(step) {
            attempts.remove(&epoch);
            if attempts.is_empty() {
                self.reserved.remove(step);
            }
        }
    }

    fn spend(&mut self, e: &CostRecorded) {
        self.free(&e.step, e.epoch);
        if e.provider.as_str() != OWN {
            keep(&mut self.settled, &e.step, e.epoch);
        }
        let (time_ms, writes) = (e.time_ms.unwrap_or(0), e.writes.unwrap_or(0));
        let tokens = e.tokens_input.saturating_add(e.tokens_output);
        self.spent = self.spent.plus(Amount { usd_micros: e.usd_micros, tokens, time_ms, writes });

        let known = self.costs.get(&e.provider).is_some_and(|models| models.contains_key(&e.model));
        let room = self.costs.values().map(Map::len).sum::<usize>() < MODELS_MAX;
        let (provider, model) = if known || room {
            (e.provider.clone(), e.model.clone())
        } else {
            (Name::clean(OTHER), Name::clean(OTHER))
        };
        let total = self.costs.or_default(provider).or_default(model);
        total.usd_micros = total.usd_micros.saturating_add(e.usd_micros);
        total.tokens_input = total.tokens_input.saturating_add(e.tokens_input);
        total.tokens_output = total.tokens_output.saturating_add(e.tokens_output);
        total.time_ms = total.time_ms.saturating_add(time_ms);
        total.writes = total.writes.saturating_add(writes);
    }
}

/// What is nothing is left out of a fact.
fn some(amount: u64) -> Option<u64> {
    (amount > 0).then_some(amount)
}

/// Keeps a value by step. The first one goes where there is no room: a step that waits asks again, and
/// the costs of a settled one are fenced by the step's own epoch as well.
fn keep<T>(map: &mut Map<StepId, T>, step: &StepId, value: T) {
    if map.len() >= STEPS_MAX && !map.contains_key(step) {
        map.pop_first();
    }
    map.insert(step.clone(), value);
}

#[cfg(test)]
mod tests;
