//! Schedules: when they make runs next, running one now, pausing and resuming.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Problem, json, runs, scoped};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;
use windlass_api::schedule::Schedule as Shown;
use windlass_api::{List, Time};
use windlass_core::code::Code;
use windlass_core::id::{RunId, Scoped};
use windlass_core::schedule::{Input, Schedule, Settings, State as Stand};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Reply};
use windlass_core::turn::state::{Body, State as Streams};
use windlass_engine::port::Clock;
use windlass_runbook::cron;

/// How many times that come are shown.
const NEXT: usize = 5;

/// Everything about schedules.
pub(super) fn routes() -> Routes {
    const STEER: &[Code] = &[Code::NotFound];
    const RUN: &[Code] = &[Code::NotFound, Code::LockBusy, Code::CapExceeded];
    let schedule = |text| doc(text).gives(200, "schedule").refuses(STEER);
    let run = doc("Make a run now").gives(201, "run").gives(202, "schedule").refuses(RUN);
    Routes::new()
        .get(
            "/v1/schedules",
            Scope::Read,
            doc("List schedules and their next times").gives(200, "list schedule"),
            list,
        )
        .get("/v1/schedules/{name}", Scope::Read, schedule("Show a schedule"), show)
        .post("/v1/schedules/{name}/run", Scope::Run, run, run_now)
        .post("/v1/schedules/{name}/pause", Scope::Run, schedule("Let it make no runs"), pause)
        .post("/v1/schedules/{name}/resume", Scope::Run, schedule("Let it make runs again"), resume)
}

fn settings(schedule: &Schedule) -> Option<&Settings> {
    match &schedule.state {
        Stand::Active(settings) | Stand::Paused(settings) => Some(settings),
        Stand::Absent | Stand::Removed => None,
    }
}

fn describe(schedule: &Schedule, now: Millis) -> Shown {
    let settings = settings(schedule);
    let active = settings.filter(|_| matches!(schedule.state, Stand::Active(_)));
    let next = active.map(|settings| {
        let after = now.max(schedule.last_slot);
        let next = cron::upcoming(&schedule.id, settings, after, NEXT).unwrap_or_default();
        next.iter().map(|(_, at)| Time(*at)).collect()
    });
    Shown { next, ..Shown::of(schedule, settings) }
}

fn find<'a>(state: &'a Streams, name: &Scoped) -> Option<&'a Schedule> {
    match &state.stream(&StreamId::Schedule(name.clone()))?.body {
        // One that no deployed runbook declares any more is only remembered in case it comes back.
        Body::Schedule(schedule) => Some(&**schedule).filter(|schedule| settings(schedule).is_some()),
        // tidy: the stream of a schedule holds one.
        _ => None,
    }
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let schedules = app
        .look(move |store| {
            let mine = |name: &Scoped| {
                name.tenant() == caller.tenant.as_str() && name.namespace() == caller.namespace.as_str()
            };
            let all = store.state().schedules().filter(|one| mine(&one.id) && settings(one).is_some());
            all.cloned().collect::<Vec<_>>()
        })
        .await?;
    // What comes next is computed here, where nobody waits for it.
    let now = Clock::now(&windlass_executor::clock::System);
    let items = schedules.iter().map(|schedule| describe(schedule, now)).collect::<Vec<_>>();
    Ok(json(StatusCode::OK, &List::page(items, None)))
}

async fn fetch(app: &App, schedule: &Scoped) -> Result<Schedule, Problem> {
    let asked = schedule.clone();
    let found = app.look(move |store| find(store.state(), &asked).cloned()).await?;
    found.ok_or_else(|| Problem::missing("schedule", schedule.name()))
}

async fn shown(app: &App, schedule: &Scoped) -> Result<Shown, Problem> {
    Ok(describe(&fetch(app, schedule).await?, Clock::now(&windlass_executor::clock::System)))
}

async fn show(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    Ok(json(StatusCode::OK, &shown(&app, &scoped(&caller, &name)?).await?))
}

/// Makes a run now. Where the schedule's overlap lets it wait for the one before, it is answered when it waits.
async fn run_now(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    let schedule = scoped(&caller, &name)?;
    fetch(&app, &schedule).await?;
    let run = RunId(app.id());
    let command =
        Command::Schedule { schedule: schedule.clone(), input: Input::RunNow { run, asked_by: Vec::new() } };
    match app.ask(&caller, command).await? {
        Reply::Created(run) => Ok(json(StatusCode::CREATED, &runs::one(&app, run).await?)),
        // tidy: anything else means that it waits.
        _ => Ok(json(StatusCode::ACCEPTED, &shown(&app, &schedule).await?)),
    }
}

async fn steer(app: &App, caller: &Caller, schedule: Scoped, input: Input) -> Answer {
    app.ask(caller, Command::Schedule { schedule: schedule.clone(), input }).await?;
    Ok(json(StatusCode::OK, &shown(app, &schedule).await?))
}

async fn pause(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    let schedule = scoped(&caller, &name)?;
    steer(&app, &caller, schedule, Input::Pause).await
}

/// Lets a schedule go on from now: what passed meanwhile does not come again.
async fn resume(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    let schedule = scoped(&caller, &name)?;
    let known = fetch(&app, &schedule).await?;
    let now = Clock::now(&windlass_executor::clock::System);
    let next_at = match settings(&known) {
        Some(settings) => cron::first(&schedule, settings, now)
            .map_err(|error| Problem::new(error.code(), error.to_string()))?,
        None => None,
    };
    steer(&app, &caller, schedule, Input::Resume { next_at }).await
}
