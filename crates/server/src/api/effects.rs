//! What a run did outside: its receipts, and taking it back.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, json, runs};
use crate::app::App;
use crate::undo;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;
use windlass_api::List;
use windlass_api::undo::{Effect, TakenBack, Undo as Shown, Wish};
use windlass_core::code::Code;
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Source, Trigger};
use windlass_core::turn::command::{Claim, Command, Create, Home, Reply, Undo};

/// Everything about receipts and undo.
pub(super) fn routes() -> Routes {
    const REFUSED: &[Code] =
        &[Code::NotFound, Code::RunInvalidTransition, Code::RunTerminalState, Code::CapExceeded];
    Routes::new()
        .get(
            "/v1/runs/{id}/receipts",
            Scope::Read,
            doc("List its receipts").gives(200, "list receipt").refuses(&[Code::NotFound]),
            receipts,
        )
        .post(
            "/v1/runs/{id}/undo",
            Scope::Run,
            doc("Take back what it did outside, in a new run")
                .body::<Wish>()
                .gives(200, "undo")
                .gives(201, "undo")
                .refuses(REFUSED),
            take_back,
        )
}

async fn receipts(State(app): State<Arc<App>>, caller: Caller, Path(id): Path<String>) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let found = app.look(move |store| undo::receipts(store, run)).await?;
    let found = found.ok_or_else(|| Problem::missing("run", &id))?;
    let items = found.iter().map(|(_, receipt)| windlass_api::receipt::Receipt::from(receipt)).collect();
    Ok(json(StatusCode::OK, &List::page(items, None)))
}

async fn take_back(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Json(wish): Json<Wish>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    for _ in 0..PLANS_MAX {
        let plan = undo::plan(&app, run).await.map_err(|(code, detail)| Problem::new(code, detail))?;
        let items: Vec<Effect> = plan.items.iter().map(undo::Item::shown).collect();
        let made = undo::runbook(run, &plan.items, wish.force);
        let answer = |items, by| Shown { of: run, items, taken_back: None, run: Some(by) };
        let begun = match (made, plan.by) {
            (Some(made), None) if !wish.dry_run => begin(&app, &caller, run, made, plan.runs).await?,
            // Somebody asked before, and that one is not over: both follow the same run.
            (_, Some((by, true))) if !wish.dry_run => Begun::Before(by),
            (_, Some((by, false))) if !wish.dry_run => {
                let text = format!("a part of it is being taken back by {by}: ask again when that has ended");
                return Err(Problem::new(Code::RunInvalidTransition, text));
            }
            (_, _) => {
                let taken_back =
                    plan.taken_back.iter().map(|(by, at)| TakenBack { run: *by, at: (*at).into() });
                let body = Shown { of: run, items, taken_back: Some(taken_back.collect()), run: None };
                return Ok(json(StatusCode::OK, &body));
            }
        };
        match begun {
            Begun::New(new) => {
                return Ok(json(StatusCode::CREATED, &answer(items, runs::one(&app, new).await?)));
            }
            Begun::Before(by) => return Ok(json(StatusCode::OK, &answer(items, runs::one(&app, by).await?))),
            // Another undo was asked for and has ended since the plan was made.
            Begun::Late => {}
        }
    }
    Err(Problem::new(Code::Unavailable, "others take the same run back all the time: ask again"))
}

/// How often a plan is made that another undo overtakes.
const PLANS_MAX: usize = 8;

/// What became of the wish to take a run back.
enum Begun {
    /// This run does it.
    New(RunId),
    /// This one does it already.
    Before(RunId),
    /// The plan is no good any more.
    Late,
}

/// Makes the run that takes another one's effects back.
async fn begin(
    app: &Arc<App>,
    caller: &Caller,
    of: RunId,
    made: undo::Undo,
    runs: Vec<Claim>,
) -> Result<Begun, Problem> {
    let (hash, tenant) = (made.hash, caller.tenant.clone());
    let load = Command::Load { hash, tenant, runbook: Box::new(made.runbook.clone()), source: None };
    app.ask(caller, load).await?;
    let cwd = app.look(move |store| store.state().run(of).map(|run| run.born.home.cwd.clone())).await?;
    let id = RunId(app.id());
    let policy = app.policy.for_run(id, &made.runbook, &made.pipeline);
    let cwd = cwd.unwrap_or_else(|| app.default_dir());
    let home =
        Home { tenant: caller.tenant.clone(), namespace: caller.namespace.clone(), runbook: hash, cwd };
    let trigger = Trigger { user: Some(caller.user()), ..Trigger::of(Source::Api) };
    let create = Create {
        name: Name::clean(&format!("undo of {of}")),
        // What ties the two runs together.
        correlation_id: Some(Name::clean(&of.to_string())),
        policy,
        ..Create::new(id, home, made.pipeline, made.vars, trigger)
    };
    match app.ask(caller, Command::Undo(Box::new(Undo { create, runs }))).await? {
        Reply::Created(run) => Ok(Begun::New(run)),
        Reply::Known { run: Some(run), in_flight: true } => Ok(Begun::Before(run)),
        Reply::Known { .. } => Ok(Begun::Late),
        other => Err(Problem::new(Code::Internal, format!("a run was asked for, and {other:?} came"))),
    }
}
