//! Budgets: a human raises what a run may cost, and what waited for it goes on.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, json, runs};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;
use windlass_api::budget::Raise;
use windlass_core::budget::{Amount, Dimension};
use windlass_core::code::Code;
use windlass_core::turn::command::Command;
use windlass_runbook::span;

/// The most dollars.
const USD_MAX: f64 = 1e9;

/// Everything about budgets.
pub(super) fn routes() -> Routes {
    let refused = &[Code::NotFound, Code::Forbidden, Code::InvalidInput, Code::RunTerminalState];
    let raised = doc("Raise what it may cost").body::<Raise>().gives(200, "run").refuses(refused);
    Routes::new().post("/v1/runs/{id}/budget", Scope::Approve, raised, raise)
}

/// The limits that a request asks for.
fn wished(to: &Raise) -> Result<Amount, Problem> {
    let invalid = |text: String| Problem::new(Code::InvalidInput, text);
    let usd = to.usd.unwrap_or(0.0);
    if !(0.0..=USD_MAX).contains(&usd) {
        return Err(invalid(format!("`usd` is a number of dollars from 0 to {USD_MAX}")));
    }
    let time = to.time.as_deref().map(span::parse).transpose().map_err(invalid)?;
    let amount = Amount {
        // Within the bound the number of millionths is exact enough and fits.
        usd_micros: (usd * 1e6).round() as u64,
        tokens: to.tokens.unwrap_or(0),
        time_ms: time.map_or(0, |span| span.0),
        writes: to.writes.unwrap_or(0),
    };
    if amount == Amount::default() {
        return Err(invalid("say to what: `usd`, `tokens`, `time` or `writes`".to_owned()));
    }
    Ok(amount)
}

pub(super) async fn raise(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(body): Json<Raise>,
) -> Answer {
    if !caller.is_human() {
        return Err(Problem::new(Code::Forbidden, "a budget is raised by a human"));
    }
    let run = app.find_run(&caller, &id).await?;
    app.ask(&caller, Command::Raise { run, to: wished(&body)? }).await?;
    Ok(json(StatusCode::OK, &runs::one(&app, run).await?))
}

/// An amount of a budget as people say it.
pub(super) fn amount(dimension: Dimension, amount: u64) -> String {
    match dimension {
        Dimension::Usd => format!("{:.2} dollars", amount as f64 / 1e6),
        Dimension::Tokens => format!("{amount} tokens"),
        Dimension::Time if amount < 1_000 => format!("{amount} ms"),
        Dimension::Time => format!("{} s", amount as f64 / 1e3),
        Dimension::Writes => format!("{amount} writes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_times_are_not_nothing() {
        let shown = [400, 1_000, 1_500, 3_600_000].map(|ms| amount(Dimension::Time, ms));
        assert_eq!(shown, ["400 ms", "1 s", "1.5 s", "3600 s"]);
    }
}
