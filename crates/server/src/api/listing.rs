//! Lists of runs, narrowed by where they stand and where they came from.

use super::runs::versions;
use super::{Answer, Caller, Problem, Query, invalid, json, page_limit};
use crate::app::App;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use windlass_api::List;
use windlass_core::id::{ItemId, Name, RunId};
use windlass_core::run::Status;
use windlass_core::time::Millis;
use windlass_core::turn::state::State as Known;
use windlass_core::wire::shorten;
use windlass_store::store::{RunFilter, RunOrigin};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    pipeline: Option<String>,
    #[serde(default)]
    repo: Option<String>,
    /// Of this runbook: a name, which means all its versions, `NAME@HASH`, or a hash.
    #[serde(default)]
    runbook: Option<String>,
    /// Made for items of this queue.
    #[serde(default)]
    queue: Option<String>,
    /// Made for this item of a queue.
    #[serde(default)]
    item: Option<String>,
    /// Made at this time or later: RFC 3339.
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    cursor: Option<String>,
    #[serde(default)]
    limit: Option<usize>,
}

fn no_status(word: &str) -> Problem {
    let known: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
    invalid(format!("`{}` is not a status of a run; there are {}", shorten(word), known.join(", ")))
}

pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(asked): Query<Listing>,
) -> Answer {
    let status = asked.status.as_deref().map(|word| Status::parse(word).ok_or_else(|| no_status(word)));
    let since = asked.since.as_deref().map(|text| {
        let stamp: jiff::Timestamp = text.parse().map_err(|error| invalid(format!("`since`: {error}")))?;
        Ok::<_, Problem>(Millis(u64::try_from(stamp.as_millisecond()).unwrap_or(0)))
    });
    let item = asked.item.as_deref().map(|text| ItemId::parse(text).map_err(invalid)).transpose()?;
    let since = since.transpose()?.max(item.map(made_after));
    let (runbook, queue, who) = (asked.runbook, asked.queue, caller.clone());
    let origin = app.look(move |store| RunOrigin {
        runbooks: runbook.map(|text| versions(store.state(), &who, &text)),
        workers: queue.map(|queue| workers_of(store.state(), &who, &queue)),
        item,
    });
    let filter = RunFilter {
        origin: origin.await?,
        status: status.transpose()?,
        pipeline: asked.pipeline.map(|name| Name::new(&name).map_err(invalid)).transpose()?,
        repo: asked.repo,
        since,
        before: asked
            .cursor
            .map(|text| RunId::parse(&text).map_err(|_| invalid("that is no cursor")))
            .transpose()?,
        limit: page_limit(asked.limit, 50),
        ..RunFilter::of(&caller.tenant, &caller.namespace)
    };
    let (items, next) = app.runs(filter).await?;
    Ok(json(StatusCode::OK, &List::page(items, next.map(|id| id.to_string()))))
}

/// The workers that consume a queue, or did when they were stopped.
fn workers_of(state: &Known, caller: &Caller, queue: &str) -> Vec<Name> {
    let mine = state.workers().filter(|worker| {
        worker.id.tenant() == caller.tenant.as_str() && worker.id.namespace() == caller.namespace.as_str()
    });
    let on = mine.filter(|worker| worker.settings().is_some_and(|known| known.queue.as_str() == queue));
    on.map(|worker| Name::clean(worker.id.name())).collect()
}

/// How far the clocks of an item's id and of records may be apart.
const CLOCKS_APART_MS: u64 = 24 * 60 * 60 * 1_000;

/// A time before any run of an item: its id begins with when it was made.
fn made_after(item: ItemId) -> Millis {
    Millis(u64::try_from(item.0 >> 80).unwrap_or(u64::MAX).saturating_sub(CLOCKS_APART_MS))
}
