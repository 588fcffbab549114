//! What executors elsewhere bring with their reports: the receipts of tools, and what calls cost.

use super::DATA_LEN_MAX;
use windlass_api::lease::{Evidence, Spent};
use windlass_core::budget::Cost;
use windlass_core::code::Code;
use windlass_core::id::{Name, ReceiptId};
use windlass_core::receipt::Outcome;
use windlass_core::turn::command::{Receipted, Refusal};
use windlass_executor::redaction::Redactor;

/// How many costs one attempt reports.
const COSTS_MAX: usize = 64;

fn receipt_of(told: Evidence) -> Result<Box<Receipted>, Refusal> {
    let refuse = |what: &str| Refusal::new(Code::InvalidInput, format!("the receipt's {what}"));
    let id = ReceiptId::parse(&told.id).map_err(|_| refuse("`id` is none"))?;
    let status = Outcome::parse(&told.status).ok_or_else(|| refuse("`status` is none"))?;
    let parts = [&told.reverse, &told.request, &told.response];
    if parts.into_iter().flatten().any(|part| part.to_string().len() > DATA_LEN_MAX) {
        return Err(refuse(&format!("parts have {DATA_LEN_MAX} bytes each at most")));
    }
    let reverse = told.reverse.map(serde_json::from_value).transpose();
    let reverse = reverse.map_err(|_| refuse("`reverse` is no call"))?;
    let (reversible, request, response) = (told.reversible, told.request, told.response);
    Ok(Box::new(Receipted { id, status, reversible, reverse, request, response }))
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
    Ok((receipt.map(receipt_of).transpose()?, costs))
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
