//! What executors elsewhere bring with their reports: the receipts of tools, and what calls cost.

use super::DATA_LEN_MAX;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use windlass_core::budget::Cost;
use windlass_core::code::Code;
use windlass_core::id::{Name, ReceiptId};
use windlass_core::receipt::Outcome;
use windlass_core::turn::command::{Receipted, Refusal};
use windlass_executor::redaction::Redactor;

/// How many costs one attempt reports.
const COSTS_MAX: usize = 64;

/// What an executor got back from the outside.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct Evidence {
    /// Made by the executor, so that a repeated report brings the same receipt.
    id: String,
    /// `succeeded` or `failed`.
    status: String,
    #[serde(default)]
    reversible: bool,
    /// The call that takes it back: `tool`, `operation`, `target` and `fields`.
    #[serde(default)]
    reverse: Option<Value>,
    #[serde(default)]
    request: Option<Value>,
    #[serde(default)]
    response: Option<Value>,
}

impl Evidence {
    fn receipt(self) -> Result<Box<Receipted>, Refusal> {
        let refuse = |what: &str| Refusal::new(Code::InvalidInput, format!("the receipt's {what}"));
        let id = ReceiptId::parse(&self.id).map_err(|_| refuse("`id` is none"))?;
        let status = Outcome::parse(&self.status).ok_or_else(|| refuse("`status` is none"))?;
        let parts = [&self.reverse, &self.request, &self.response];
        if parts.into_iter().flatten().any(|part| part.to_string().len() > DATA_LEN_MAX) {
            return Err(refuse(&format!("parts have {DATA_LEN_MAX} bytes each at most")));
        }
        let reverse = self.reverse.map(serde_json::from_value).transpose();
        let reverse = reverse.map_err(|_| refuse("`reverse` is no call"))?;
        let (reversible, request, response) = (self.reversible, self.request, self.response);
        Ok(Box::new(Receipted { id, status, reversible, reverse, request, response }))
    }
}

/// What an attempt cost.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct Spent {
    provider: String,
    model: String,
    /// `usd_micros`, `tokens_input`, `tokens_output`, `time_ms` and `writes`.
    total: Value,
}

/// What came back from the outside, and what it cost.
pub(super) fn read(
    receipt: Option<Evidence>,
    costs: Vec<Spent>,
) -> Result<(Option<Box<Receipted>>, Vec<Cost>), Refusal> {
    let refuse = |text: String| Refusal::new(Code::InvalidInput, text);
    if costs.len() > COSTS_MAX {
        return Err(refuse(format!("an attempt has {COSTS_MAX} costs at most")));
    }
    let name = |text: &str| Name::new(text).map_err(|error| refuse(error.to_string()));
    let cost = |spent: Spent| {
        let total = serde_json::from_value(spent.total);
        let total = total.map_err(|error| refuse(format!("the `total` of a cost: {error}")))?;
        Ok(Cost { provider: name(&spent.provider)?, model: name(&spent.model)?, total })
    };
    let costs = costs.into_iter().map(cost).collect::<Result<_, Refusal>>()?;
    Ok((receipt.map(Evidence::receipt).transpose()?, costs))
}

/// Takes the secrets of a run out of a receipt.
pub(super) fn mask(receipt: &mut Receipted, redactor: &Redactor) {
    if redactor.is_empty() {
        return;
    }
    for value in [&mut receipt.request, &mut receipt.response].into_iter().flatten() {
        *value = redactor.value(value);
    }
    if let Some(reverse) = &mut receipt.reverse {
        reverse.fields = redactor.value(&reverse.fields);
    }
}
