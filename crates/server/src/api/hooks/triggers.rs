//! Triggers: which of the deployed ones a delivery is for, and what comes of it.
//!
//! Conditions and mappings are evaluated here, outside of the loop and within the evaluator's bounds. What they come to
//! is one command: the key, every run, every signal and the answer are one commit, so a delivery that comes fifty times
//! at once, or again after a crash, finds the whole of it or nothing.

use super::{Delivery, custom};
use crate::api::{Caller, Problem};
use crate::app::App;
use crate::metrics::Hit;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use windlass_core::canonical;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, Scoped};
use windlass_core::idempotency;
use windlass_core::run::Trigger;
use windlass_core::runbook::{CALLS_MAX, Runbook, TriggerDef};
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{ARRIVALS_MAX, Arrival, Command, Create, Home, Reply, Signal};
use windlass_core::turn::creation;
use windlass_core::turn::deployment::Active;
use windlass_core::turn::state::{Body, State};
use windlass_runbook::check_vars;

/// The most bytes of the variables of one run, or of the data of one signal.
const VALUES_LEN_MAX: usize = 256 * 1024;
/// The most triggers whose conditions are evaluated for one delivery.
const TRIGGERS_MAX: usize = 1_000;
/// The most mistakes that an answer tells of.
const ERRORS_MAX: usize = 16;
/// How often a delivery looks again because another one came between.
const AGAIN_MAX: usize = 3;

/// What is answered.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(super) status: StatusCode,
    pub(crate) body: Value,
    /// Whether it is the answer that was given before.
    pub(super) replayed: bool,
}

/// A trigger of a deployed runbook.
struct Candidate {
    namespace: Name,
    hash: Digest,
    /// The directory that the runbook was deployed from.
    home: String,
    runbook: Arc<Runbook>,
    name: Name,
}

impl Candidate {
    fn def(&self) -> Option<&TriggerDef> {
        self.runbook.triggers.get(&self.name)
    }

    fn full_name(&self) -> String {
        format!("{}/{}", self.runbook.name, self.name)
    }
}

/// What a trigger that matches comes to.
enum Wanted {
    Run { pipeline: Name, vars: Value },
    Signal(Box<Signal>),
}

/// What was found wrong with one trigger.
struct Mistake {
    trigger: String,
    code: Code,
    message: String,
}

/// What the triggers say to a delivery.
#[derive(Default)]
struct Matched {
    wanted: Vec<(Candidate, Wanted)>,
    /// What a trigger with a `dedupe_window` has of each that it wants.
    windows: Vec<(Scoped, Span)>,
    /// Triggers that had the same a moment ago.
    deduped: Vec<String>,
    /// Conditions that could not be evaluated: not a match.
    doubts: Vec<Mistake>,
    /// Triggers that match and whose values do not fit.
    mistakes: Vec<Mistake>,
}

impl Matched {
    /// What an answer tells of.
    fn told(&self) -> Vec<&Mistake> {
        self.mistakes.iter().chain(&self.doubts).collect()
    }
}

/// Lets a delivery set going what it is for; a delivery that was answered before gets that answer.
pub(super) async fn fire(app: &Arc<App>, mut delivery: Delivery) -> Result<Answered, Problem> {
    // What is from outside is for a whole tenant; a custom event is for its namespace.
    let whole = Name::clean("_");
    let namespace = delivery.emitted.as_ref().map_or(&whole, |emitted| &emitted.namespace);
    let key = Scoped::new(&delivery.tenant, namespace, &delivery.key);
    for _ in 0..AGAIN_MAX {
        if let Some(answered) = known(app, &key, &delivery).await? {
            return Ok(answered);
        }
        let candidates = deployed(app, &delivery).await?;
        // Conditions may take a while, and the threads here have others to serve.
        let evaluate = app.evaluate.clone();
        let evaluated = tokio::task::spawn_blocking(move || {
            let matched = matched(&evaluate, candidates, &mut delivery);
            (delivery, matched)
        });
        let evaluated =
            evaluated.await.map_err(|_| Problem::new(Code::Internal, "a trigger could not be evaluated"))?;
        let mut matched;
        (delivery, matched) = evaluated;
        dedupe(app, &delivery, &mut matched).await?;
        let idle = delivery.emitted.is_none() && matched.wanted.is_empty();
        if idle && matched.mistakes.is_empty() && matched.deduped.is_empty() {
            // Nothing is kept of what nobody listens to; redelivered after a deploy it is news. That a trigger had the
            // same a moment ago is an answer like any other: sent again after the window, it would be another one.
            let body = body_of(&delivery, &[], &matched.told(), &matched.deduped);
            return Ok(Answered { status: StatusCode::OK, body, replayed: false });
        }
        let (arrival, body) = arrival(app, &key, &delivery, &matched)?;
        let failed = arrival.failure.is_some();
        let caller = caller(&delivery, Name::clean("default"));
        let asked = app.ask(&caller, Command::Arrive(Box::new(arrival))).await;
        if let Ok(Reply::Known { .. }) = asked {
            // Another one of it came between: its answer is looked up, and counted there.
            continue;
        }
        if failed && asked.is_ok() {
            app.metrics.key(delivery.key_source, Hit::Failed);
        } else {
            app.count_key(delivery.key_source, &key, &asked);
        }
        asked?;
        if failed {
            return Err(failure(&matched.mistakes));
        }
        let status = if idle { StatusCode::OK } else { StatusCode::CREATED };
        return Ok(Answered { status, body, replayed: false });
    }
    Err(Problem::new(Code::Unavailable, "the delivery is being answered elsewhere: send it again"))
}

/// The answer to a delivery whose key is known; none where it may go on.
async fn known(app: &App, key: &Scoped, delivery: &Delivery) -> Result<Option<Answered>, Problem> {
    let mut reply = app.known_key(key, delivery.key_source, delivery.request_hash).await?;
    for (other, _) in &delivery.also {
        if reply.is_none() {
            let hash = Digest::of(&[other.to_string().as_bytes()]);
            reply = app.known_key(other, delivery.key_source, hash).await?;
        }
    }
    let answered = |status, body, replayed| Ok(Some(Answered { status, body, replayed }));
    match reply {
        Some(idempotency::Reply::Duplicate { run, response }) => {
            let body =
                response.unwrap_or_else(|| json!({ "delivery": delivery.id, "runs": [{ "id": run }] }));
            answered(StatusCode::OK, body, true)
        }
        Some(idempotency::Reply::InFlight { .. }) => {
            answered(StatusCode::ACCEPTED, json!({ "delivery": delivery.id, "in_flight": true }), false)
        }
        Some(idempotency::Reply::Exhausted { attempts, error, .. }) => {
            let error = error.unwrap_or_default();
            let text = format!(
                "the delivery failed {attempts} times and is not tried again before an hour: {error}"
            );
            Err(Problem::new(Code::ExpressionFailed, text))
        }
        // New, or another try at what failed; what is left are answers to those who hold a key.
        Some(
            idempotency::Reply::New { .. }
            | idempotency::Reply::Retry { .. }
            | idempotency::Reply::Failed { .. }
            | idempotency::Reply::Done
            | idempotency::Reply::Nothing,
        )
        | None => Ok(None),
    }
}

fn caller(delivery: &Delivery, namespace: Name) -> Caller {
    let (actor, tenant) = (delivery.by.clone(), delivery.tenant.clone());
    Caller { actor, tenant, namespace, scopes: Vec::new(), ..Caller::local() }
}

/// The triggers of a tenant that listen to the delivery's source, event and action.
async fn deployed(app: &App, delivery: &Delivery) -> Result<Vec<Candidate>, Problem> {
    let (tenant, source) = (delivery.tenant.clone(), delivery.source.clone());
    let (event, action) = (delivery.event.clone(), delivery.action.clone());
    let within = delivery.emitted.as_ref().map(|emitted| emitted.namespace.clone());
    let is_emitted = within.is_some();
    let listens = move |def: &TriggerDef| {
        let fits = |wanted: &Option<Name>, is: &Option<String>| {
            wanted.as_ref().is_none_or(|wanted| is.as_deref() == Some(wanted.as_str()))
        };
        // A hook of that name emits no custom events.
        let is_custom = def.source.as_str() == custom::SOURCE;
        def.source == source
            && is_custom == is_emitted
            && fits(&def.event, &event)
            && fits(&def.action, &action)
    };
    let found = app
        .look(move |store| {
            let mut found = Vec::new();
            for (deployment, active, runbook) in active(store.state(), &tenant) {
                if within.as_ref().is_some_and(|within| within.as_str() != deployment.namespace()) {
                    continue;
                }
                let names: Vec<Name> = runbook
                    .triggers
                    .iter()
                    .filter(|(_, def)| listens(def))
                    .map(|(name, _)| name.clone())
                    .collect();
                let namespace = Name::clean(deployment.namespace());
                found.extend(names.into_iter().map(|name| Candidate {
                    namespace: namespace.clone(),
                    hash: active.hash,
                    home: active.project_root.clone(),
                    runbook: runbook.clone(),
                    name,
                }));
            }
            found
        })
        .await?;
    if found.len() > TRIGGERS_MAX {
        let text = format!("more than {TRIGGERS_MAX} triggers listen to this event");
        return Err(Problem::new(Code::CapExceeded, text));
    }
    Ok(found)
}

/// The active version of every runbook of a tenant.
fn active(state: &State, tenant: &Name) -> Vec<(Scoped, Active, Arc<Runbook>)> {
    // Deployments follow runbooks in the order of streams, so what comes before them is not looked at.
    let last_runbook = StreamId::Runbook(Digest([0xff; 32]));
    let mut found = Vec::new();
    for (id, stream) in state.streams_after(Some(&last_runbook)) {
        let (StreamId::Deployment(name), Body::Deployment(active)) = (id, &stream.body) else { break };
        let active = active.as_ref().as_ref().filter(|_| stream.tenant == *tenant);
        let Some(active) = active else { continue };
        if let Some(Body::Runbook(runbook)) =
            state.stream(&StreamId::Runbook(active.hash)).map(|stream| &stream.body)
        {
            found.push((name, active.clone(), runbook.clone()));
        }
    }
    found
}

/// What a trigger with a `dedupe_window` would have twice: the same event of the same pull request; where it is about none,
/// the same values.
fn window(delivery: &Delivery, candidate: &Candidate, wanted: &Wanted) -> Option<(Scoped, Span)> {
    let span = candidate.def()?.dedupe_window?;
    let subject = delivery.subject.as_ref().filter(|subject| subject.pr.is_some());
    let about = match (subject, wanted) {
        (Some(subject), _) => json!([subject.repo, subject.pr]),
        (None, Wanted::Run { vars, .. }) => vars.clone(),
        (None, Wanted::Signal(signal)) => json!([signal.key, signal.data]),
    };
    let what = json!([candidate.full_name(), delivery.source, delivery.event, delivery.action, about]);
    let hash = Digest::of(&[b"windlass dedupe window v1\n", &canonical::bytes(&what)]);
    let name = Name::clean(&format!("{}:window:{hash}", delivery.source));
    Some((Scoped::new(&delivery.tenant, &candidate.namespace, &name), span))
}

/// Drops what triggers with a `dedupe_window` had a moment ago.
async fn dedupe(app: &App, delivery: &Delivery, matched: &mut Matched) -> Result<(), Problem> {
    for (candidate, wanted) in std::mem::take(&mut matched.wanted) {
        let Some((key, span)) = window(delivery, &candidate, &wanted) else {
            matched.wanted.push((candidate, wanted));
            continue;
        };
        let hash = Digest::of(&[key.to_string().as_bytes()]);
        match app.known_key(&key, delivery.key_source, hash).await? {
            Some(_) => matched.deduped.push(candidate.full_name()),
            None => {
                matched.windows.push((key, span));
                matched.wanted.push((candidate, wanted));
            }
        }
    }
    Ok(())
}

/// Asks every trigger whether it matches, and what it wants.
fn matched(
    evaluate: &windlass_runbook::expr::Cel,
    candidates: Vec<Candidate>,
    delivery: &mut Delivery,
) -> Matched {
    let mut scope = Map::new();
    // The payload can be large: it is moved in and out again, not copied.
    scope.insert("event".to_owned(), std::mem::take(&mut delivery.payload));
    scope.insert("headers".to_owned(), Value::Object(delivery.headers.clone()));
    let mut out = Matched::default();
    for candidate in candidates {
        let Some(def) = candidate.def() else { continue };
        let mistake = |code, message| Mistake { trigger: candidate.full_name(), code, message };
        match def.when.as_deref().map_or(Ok(true), |when| evaluate.holds(when, &scope)) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(message) => {
                out.doubts.push(mistake(Code::ExpressionFailed, format!("`when` is not a match: {message}")));
                continue;
            }
        }
        match wanted(evaluate, def, &candidate, &scope, delivery) {
            Ok(wanted) => out.wanted.push((candidate, wanted)),
            Err((code, message)) => out.mistakes.push(mistake(code, message)),
        }
    }
    // One event for a name and a key is one event, however many triggers send it.
    let mut sent: Vec<(Name, Name, Option<Name>)> = Vec::new();
    out.wanted.retain(|(candidate, wanted)| match wanted {
        Wanted::Run { .. } => true,
        Wanted::Signal(signal) => {
            let one = (candidate.namespace.clone(), signal.name.clone(), signal.key.clone());
            let new = !sent.contains(&one);
            sent.push(one);
            new
        }
    });
    delivery.payload = scope.remove("event").unwrap_or_default();
    out
}

fn wanted(
    evaluate: &windlass_runbook::expr::Cel,
    def: &TriggerDef,
    candidate: &Candidate,
    scope: &Map<String, Value>,
    delivery: &Delivery,
) -> Result<Wanted, (Code, String)> {
    let failed = |message: String| (Code::ExpressionFailed, message);
    let mut vars = Map::new();
    for (name, template) in &def.vars {
        let value = template.render(evaluate, scope).map_err(|error| failed(format!("`{name}`: {error}")))?;
        vars.insert(name.to_string(), value);
    }
    let bounded = |value: &Value| {
        let len = value.to_string().len();
        if len <= VALUES_LEN_MAX {
            return Ok(());
        }
        let text = format!(
            "its values have {len} bytes, and {VALUES_LEN_MAX} are taken: map what is needed in `vars`"
        );
        Err((Code::InvalidInput, text))
    };
    if let Some(pipeline) = &def.pipeline {
        let missing = || (Code::NotFound, format!("there is no pipeline `{pipeline}`"));
        let def = candidate.runbook.pipelines.get(pipeline).ok_or_else(missing)?;
        creation::has_place(def, None).map_err(|(code, text)| (code, text.to_owned()))?;
        custom::too_deep(delivery.emitted.as_ref())?;
        let vars = check_vars(def, &vars).map_err(|error| (error.code(), error.to_string()))?;
        bounded(&vars)?;
        return Ok(Wanted::Run { pipeline: pipeline.clone(), vars });
    }
    let (Some(name), Some(key)) = (&def.signal, &def.key) else {
        return Err((
            Code::RunbookInvalid,
            "it has neither a `pipeline` nor a `signal` with a `key`".to_owned(),
        ));
    };
    let key = key.render_name(evaluate, scope).map_err(|error| failed(format!("`key`: {error}")))?;
    let whole = || scope.get("event").cloned().unwrap_or_default();
    let data = if def.vars.is_empty() { whole() } else { Value::Object(vars) };
    bounded(&data)?;
    Ok(Wanted::Signal(Box::new(Signal {
        tenant: delivery.tenant.clone(),
        namespace: candidate.namespace.clone(),
        name: name.clone(),
        key: Some(key),
        data,
        event_id: Some(delivery.key.clone()),
        user: delivery.user.clone(),
    })))
}

/// The one command that a delivery comes to, and the answer to it.
fn arrival(
    app: &App,
    key: &Scoped,
    delivery: &Delivery,
    matched: &Matched,
) -> Result<(Arrival, Value), Problem> {
    if matched.wanted.len() > ARRIVALS_MAX {
        let text =
            format!("{} triggers match, and one delivery can set {ARRIVALS_MAX} going", matched.wanted.len());
        return Err(Problem::new(Code::CapExceeded, text));
    }
    let (mut creates, mut signals, mut items) = (Vec::new(), Vec::new(), Vec::new());
    for (candidate, wanted) in &matched.wanted {
        match wanted {
            Wanted::Run { pipeline, vars } => {
                let create = create(app, delivery, candidate, pipeline, vars);
                items.push(json!({
                    "trigger": candidate.full_name(), "pipeline": pipeline, "id": create.id.to_string(),
                }));
                creates.push(create);
            }
            Wanted::Signal(signal) => {
                items.push(
                    json!({ "trigger": candidate.full_name(), "signal": signal.name, "key": signal.key }),
                );
                signals.push((**signal).clone());
            }
        }
    }
    let body = body_of(delivery, &items, &matched.told(), &matched.deduped);
    // An event has happened, whatever triggers make of it.
    let failed = items.is_empty() && delivery.emitted.is_none();
    let failure = matched
        .mistakes
        .first()
        .filter(|_| failed)
        .map(|mistake| format!("{}: {}", mistake.trigger, mistake.message));
    let arrival = Arrival {
        key: key.clone(),
        source: delivery.key_source,
        request_hash: delivery.request_hash,
        creates,
        signals,
        to: None,
        response: Some(body.clone()),
        failure,
        event: delivery.emitted.as_ref().map(|emitted| emitted.event.clone()),
        also: delivery.also.iter().chain(&matched.windows).cloned().collect(),
    };
    Ok((arrival, body))
}

fn create(app: &App, delivery: &Delivery, candidate: &Candidate, pipeline: &Name, vars: &Value) -> Create {
    let id = RunId(app.id());
    let home = Home {
        tenant: delivery.tenant.clone(),
        namespace: candidate.namespace.clone(),
        runbook: candidate.hash,
        cwd: if candidate.home.is_empty() { app.default_dir() } else { candidate.home.clone() },
    };
    let trigger = Trigger {
        key: Some(delivery.key.clone()),
        user: delivery.user.clone(),
        event_id: Some(Name::clean(&delivery.id)),
        traceparent: delivery.traceparent.clone(),
        ..Trigger::of(delivery.run_source)
    };
    Create {
        name: Name::clean(&format!("{}/{pipeline}", candidate.runbook.name)),
        subject: delivery.subject.clone(),
        depth: custom::too_deep(delivery.emitted.as_ref()).unwrap_or(CALLS_MAX),
        policy: app.policy.for_run(id, &candidate.runbook, pipeline),
        ..Create::new(id, home, pipeline.clone(), vars.clone(), trigger)
    }
}

/// The answer: what was set going, and what was found wrong on the way.
fn body_of(delivery: &Delivery, items: &[Value], mistakes: &[&Mistake], deduped: &[String]) -> Value {
    let errors: Vec<Value> = mistakes
        .iter()
        .take(ERRORS_MAX)
        .map(|m| json!({ "trigger": m.trigger, "code": m.code.as_str(), "message": windlass_runbook::expr::brief(&m.message) }))
        .collect();
    let (runs, signals): (Vec<&Value>, Vec<&Value>) = items.iter().partition(|item| item.get("id").is_some());
    let mut body = match &delivery.emitted {
        Some(emitted) => custom::told(&emitted.event, &delivery.key),
        None => json!({ "delivery": delivery.id }),
    };
    body["runs"] = json!(runs);
    if !signals.is_empty() {
        body["signals"] = json!(signals);
    }
    if !deduped.is_empty() {
        body["deduped"] = json!(deduped);
    }
    if !errors.is_empty() {
        body["errors"] = json!(errors);
    }
    body
}

/// Why nothing came of a delivery that triggers matched.
fn failure(mistakes: &[Mistake]) -> Problem {
    let by: BTreeMap<&str, &str> =
        mistakes.iter().map(|m| (m.trigger.as_str(), m.message.as_str())).collect();
    let errors = json!({ "triggers": by });
    match mistakes.first() {
        Some(first) => {
            let detail =
                format!("the trigger `{}` matches, and nothing came of it: {}", first.trigger, first.message);
            Problem { more: Some(errors), ..Problem::new(first.code, detail) }
        }
        None => Problem::new(Code::Internal, "a delivery failed without a reason"),
    }
}
