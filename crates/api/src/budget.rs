//! Budgets: what a run may cost, what it has cost, and what is reserved for attempts under way.

use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::budget::{self, Dimension};
use windlass_core::id::{Name, StepId};

/// The budget of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// What it may cost; an absent limit does not limit.
    pub limits: Limits,
    /// What it has cost.
    pub spent: Amount,
    /// What is set aside for attempts under way.
    pub reserved: Amount,
    /// The steps that wait for the budget to be raised.
    pub exceeded: Vec<Exceeded>,
    /// What was spent, by provider and model.
    pub costs: Vec<Cost>,
}

impl Budget {
    /// The budget of a run; nothing where it has no limit and has cost nothing.
    #[must_use]
    pub fn of(budget: &budget::Budget) -> Option<Budget> {
        let (spent, committed) = (budget.spent, budget.committed());
        if budget.limits == budget::Limits::default() && spent == budget::Amount::default() {
            return None;
        }
        let exceeded = budget.exceeded.iter().map(|(step, excess)| Exceeded {
            step: step.clone(),
            dimension: excess.dimension,
            limit: excess.limit,
            needed: excess.needed,
        });
        let costs = budget.costs.iter().flat_map(|(provider, models)| {
            models.iter().map(move |(model, total)| Cost {
                provider: provider.clone(),
                model: model.clone(),
                total: (*total).into(),
            })
        });
        let budget::Limits { usd_micros, tokens, time_ms, writes } = budget.limits;
        Some(Budget {
            limits: Limits { usd_micros, tokens, time_ms, writes },
            spent: spent.into(),
            reserved: Amount {
                usd_micros: committed.usd_micros.saturating_sub(spent.usd_micros),
                tokens: committed.tokens.saturating_sub(spent.tokens),
                time_ms: committed.time_ms.saturating_sub(spent.time_ms),
                writes: committed.writes.saturating_sub(spent.writes),
            },
            exceeded: exceeded.collect(),
            costs: costs.collect(),
        })
    }
}

/// Limits; an absent one does not limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

/// An amount in each dimension.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

impl From<budget::Amount> for Amount {
    fn from(amount: budget::Amount) -> Amount {
        let budget::Amount { usd_micros, tokens, time_ms, writes } = amount;
        Amount { usd_micros, tokens, time_ms, writes }
    }
}

/// A step that needs more than is left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Exceeded {
    /// The step.
    #[schemars(with = "String")]
    pub step: StepId,
    /// In which dimension.
    #[schemars(with = "Word<Dimension>")]
    pub dimension: Dimension,
    /// The limit.
    pub limit: u64,
    /// What the limit would have to be.
    pub needed: u64,
}

/// What a model, or a tool, cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Who provides it.
    #[schemars(with = "String")]
    pub provider: Name,
    /// The model.
    #[schemars(with = "String")]
    pub model: Name,
    /// What it cost in all.
    pub total: Total,
}

/// What a model, or a tool, cost in all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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

impl From<budget::Total> for Total {
    fn from(total: budget::Total) -> Total {
        let budget::Total { usd_micros, tokens_input, tokens_output, time_ms, writes } = total;
        Total { usd_micros, tokens_input, tokens_output, time_ms, writes }
    }
}

/// What a run may cost from now on. What is not named stays as it is, and nothing is lowered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Raise {
    /// Dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// A duration such as `3h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Writes to the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<u64>,
}
