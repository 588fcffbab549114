//! Queues: pushing items, taking them from outside, and looking after those that failed.
//!
//! Only queues that a deployed runbook declares can be pushed to. Whoever takes an item gets it under an epoch, and what is
//! said about it later counts only under that epoch. A heartbeat speaks for everything that its holder has.

use super::routes::{Routes, Scope, doc};
use super::{
    Answer, Caller, Document, Json, Problem, Query, invalid, json, outsider, page_limit, scoped, stranger,
};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json as object};
use std::sync::Arc;
use std::time::Duration;
use windlass_api::List;
use windlass_api::queue::{Answered, Item as ShownItem, New, Push, Queue as Shown, Report, Reports};
use windlass_core::code::Code;
use windlass_core::id::{ItemId, Name, Scoped};
use windlass_core::item::{self, Grant, Item};
use windlass_core::queue::{self, Queue};
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::View as _;
use windlass_core::turn::command::{Command, Pushed, Reply};
use windlass_core::turn::dispatch::PUSH_MAX;
use windlass_core::turn::state::{Body, State as Streams};
use windlass_engine::handle::Message;
use windlass_engine::port::Clock;
use windlass_store::store::Embedded;

const SCAN_MAX: usize = 20_000;
/// How long a consumer may wait for items.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How many failed items are put back at once.
const RETRY_MAX: usize = 1_000;
/// How many claims are spoken for at once.
const REPORTS_MAX: usize = 1_000;

/// Everything about queues and their items.
pub(super) fn routes() -> Routes {
    const MISSING: &[Code] = &[Code::NotFound];
    const PUSH: &[Code] = &[Code::NotFound, Code::QueueFull];
    const STEER: &[Code] = &[Code::NotFound, Code::RunInvalidTransition, Code::RunTerminalState];
    const BACK: &[Code] = &[
        Code::NotFound,
        Code::RunInvalidTransition,
        Code::RunTerminalState,
        Code::QueueFull,
        Code::LockBusy,
    ];
    let reports = |text| doc(text).body::<Reports>().gives(200, "list reported").refuses(MISSING);
    let queue = |text| doc(text).gives(200, "queue").refuses(MISSING);
    let item = |text| doc(text).gives(200, "item").refuses(STEER);
    Routes::new()
        .get("/v1/queues", Scope::Read, doc("List queues with their depths").gives(200, "list queue"), list)
        .get("/v1/queues/{queue}", Scope::Read, queue("Show a queue"), show)
        .post(
            "/v1/queues/{queue}/items",
            Scope::Run,
            doc("Push an item, or an array of them in one commit")
                .body::<Push>()
                .gives(201, "pushed")
                .gives(200, "pushed")
                .refuses(PUSH),
            push,
        )
        .get(
            "/v1/queues/{queue}/items",
            Scope::Read,
            doc("List items").query::<Listing>().gives(200, "list item").refuses(MISSING),
            items,
        )
        .get("/v1/queues/{queue}/items/{item}", Scope::Read, item("Show an item"), one)
        .post(
            "/v1/queues/{queue}/take",
            Scope::Run,
            doc("Take items, waiting for them")
                .body::<TakeWish>()
                .waits(WAIT_MAX)
                .gives(200, "list item")
                .refuses(MISSING),
            take,
        )
        .post("/v1/queues/{queue}/heartbeat", Scope::Run, reports("Keep claims alive"), heartbeat)
        .post("/v1/queues/{queue}/complete", Scope::Run, reports("Say that items are done"), complete)
        .post("/v1/queues/{queue}/fail", Scope::Run, reports("Say that tries failed"), fail)
        .post("/v1/queues/{queue}/return", Scope::Run, reports("Hand claims back unused"), give_back)
        .post("/v1/queues/{queue}/pause", Scope::Run, queue("Give nothing out"), pause)
        .post("/v1/queues/{queue}/resume", Scope::Run, queue("Give out again"), resume)
        .post(
            "/v1/queues/{queue}/retry",
            Scope::Run,
            doc("Put failed or dead items back").body::<Redrive>().gives(200, "redriven").refuses(PUSH),
            redrive,
        )
        .post(
            "/v1/queues/{queue}/items/{item}/retry",
            Scope::Run,
            doc("Put a failed or dead item back").gives(200, "item").refuses(BACK).body::<Again>(),
            retry,
        )
        .post(
            "/v1/queues/{queue}/items/{item}/cancel",
            Scope::Run,
            item("Take an item out").body::<Reason>(),
            cancel,
        )
}

fn find_queue<'a>(state: &'a Streams, name: &Scoped) -> Option<&'a Queue> {
    match &state.stream(&StreamId::Queue(name.clone()))?.body {
        Body::Queue(queue) => Some(queue),
        // tidy: the stream of a queue holds one.
        _ => None,
    }
}

/// An item of a queue; one of another queue is not there.
fn find_item<'a>(state: &'a Streams, queue: &Scoped, id: ItemId) -> Option<&'a Item> {
    match &state.stream(&StreamId::Item(id))?.body {
        Body::Item(item) => Some(&**item).filter(|item| item.body().is_some_and(|b| b.scoped() == *queue)),
        // tidy: the stream of an item holds one.
        _ => None,
    }
}

fn describe(state: &Streams, queue: &Queue) -> Shown {
    let counts = state.indexes().queue(&queue.id).map(queue::Index::counts).unwrap_or_default();
    let consumers = state.indexes().consumers(&queue.id);
    let settings = queue.settings();
    Shown {
        name: queue.id.name().to_owned(),
        state: queue.state_name().to_owned(),
        depth: counts.ready + counts.delayed,
        ready: counts.ready,
        delayed: counts.delayed,
        processing: counts.processing,
        completed: counts.completed,
        failed: counts.failed,
        dead: counts.dead,
        workers: consumers.iter().map(|worker| worker.name().to_owned()).collect(),
        visibility_timeout_ms: settings.map(|settings| settings.terms.visibility_timeout.0),
        max_attempts: settings.map(|settings| settings.terms.max_attempts),
        cooldown_ms: settings.map(|settings| settings.terms.cooldown.0),
        dedupe: settings.map(|settings| settings.dedupe),
        max_depth: settings.and_then(|settings| settings.max_depth),
        dead_letter: settings.and_then(|settings| settings.terms.dead_letter.clone()),
    }
}

async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    let items = app
        .look(move |store| {
            let state = store.state();
            let mine = |name: &Scoped| {
                name.tenant() == caller.tenant.as_str() && name.namespace() == caller.namespace.as_str()
            };
            let queues = state.queues().filter(|queue| mine(&queue.id)).map(|queue| describe(state, queue));
            queues.collect::<Vec<_>>()
        })
        .await?;
    Ok(json(StatusCode::OK, &List::page(items, None)))
}

async fn shown(app: &App, queue: Scoped) -> Answer {
    let name = queue.name().to_owned();
    let found = app
        .look(move |store| find_queue(store.state(), &queue).map(|queue| describe(store.state(), queue)))
        .await?;
    found.map(|value| json(StatusCode::OK, &value)).ok_or_else(|| Problem::missing("queue", &name))
}

async fn show(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    shown(&app, scoped(&caller, &name)?).await
}

async fn steer(app: &App, caller: &Caller, name: &str, input: queue::Input) -> Answer {
    let queue = scoped(caller, name)?;
    app.ask(caller, Command::Queue { queue: queue.clone(), input }).await?;
    shown(app, queue).await
}

async fn pause(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    steer(&app, &caller, &name, queue::Input::Pause).await
}

async fn resume(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Answer {
    steer(&app, &caller, &name, queue::Input::Resume).await
}

/// An array, or one of what it would hold.
fn one_or_many<T: serde::de::DeserializeOwned>(body: Value) -> Result<Vec<T>, Problem> {
    let all = match body {
        Value::Array(all) => all,
        one => vec![one],
    };
    // A list would be read as the fields of an object in their order.
    if !all.iter().all(Value::is_object) {
        return Err(invalid("the body is not valid: expected an object, or an array of objects"));
    }
    let read = all.into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
    read.map_err(|error| invalid(format!("the body is not valid: {error}")))
}

fn pushed(new: New, now: Millis) -> Result<Pushed, Problem> {
    if new.delay_ms.is_some_and(|delay| delay > queue::SPAN_MAX.0) {
        return Err(invalid("`delay_ms` is longer than 30 days"));
    }
    Ok(Pushed {
        id: ItemId(windlass_executor::clock::fresh()),
        data: new.data,
        priority: new.priority,
        not_before: new.delay_ms.filter(|delay| *delay > 0).map(|delay| now + Span(delay)),
        dedupe: new.dedupe.map(|key| Name::new(&key).map_err(invalid)).transpose()?,
        from: None,
    })
}

async fn push(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Document(body): Document,
) -> Answer {
    let queue = scoped(&caller, &name)?;
    let single = !body.is_array();
    let news: Vec<New> = one_or_many(body)?;
    if news.is_empty() || news.len() > PUSH_MAX {
        return Err(invalid(format!("push between 1 and {PUSH_MAX} items at once")));
    }
    let now = Clock::now(&windlass_executor::clock::System);
    let items = news.into_iter().map(|new| pushed(new, now)).collect::<Result<Vec<_>, _>>()?;
    let answers = match app.ask(&caller, Command::PushAll { queue: queue.clone(), items }).await? {
        Reply::PushedAll(answers) => answers,
        other => return Err(Problem::new(Code::Internal, format!("items were pushed, and {other:?} came"))),
    };
    let known = answers.iter().all(|(_, known)| *known);
    let items = app
        .look(move |store| {
            let show = |(id, known): &(ItemId, bool)| {
                let shown = match find_item(store.state(), &queue, *id) {
                    Some(item) => ShownItem::of(*id, item, store.state().beats()),
                    // It was pushed, worked on and has left already.
                    None => {
                        let (queue, status) = (Name::clean(queue.name()), "completed".to_owned());
                        ShownItem { queue: Some(queue), status: Some(status), ..ShownItem::bare(*id) }
                    }
                };
                ShownItem { known: Some(*known), ..shown }
            };
            answers.iter().map(show).collect::<Vec<_>>()
        })
        .await?;
    let status = if known { StatusCode::OK } else { StatusCode::CREATED };
    match (single, items.first()) {
        (true, Some(item)) => Ok(json(status, item)),
        (_, _) => Ok(json(status, &List::page(items, None))),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Listing {
    /// pending, processing, completed, failed or dead.
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    cursor: Option<String>,
    #[serde(default)]
    limit: Option<usize>,
}

async fn items(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Query(asked): Query<Listing>,
) -> Answer {
    const WORDS: [&str; 5] = ["pending", "processing", "completed", "failed", "dead"];
    let queue = scoped(&caller, &name)?;
    if let Some(word) = asked.status.as_deref().filter(|word| !WORDS.contains(word)) {
        return Err(invalid(format!(
            "`{word}` is not a status of an item; write one of {}",
            WORDS.join(", ")
        )));
    }
    let after = asked.cursor.map(|text| ItemId::parse(&text).map_err(|_| invalid("that is no cursor")));
    let (after, limit) = (after.transpose()?, page_limit(asked.limit, 50));
    let wanted = asked.status;
    let page = app
        .look(move |store| {
            find_queue(store.state(), &queue)?;
            Some(page(store, &queue, wanted.as_deref(), after, limit))
        })
        .await?;
    let (items, next) = page.ok_or_else(|| Problem::missing("queue", &name))?;
    Ok(json(StatusCode::OK, &List::page(items, next.map(|id| id.to_string()))))
}

/// A page of items, oldest first. A page may be short and still not be the last: the loop is not held up for longer.
fn page(
    store: &Embedded,
    queue: &Scoped,
    wanted: Option<&str>,
    after: Option<ItemId>,
    limit: usize,
) -> (Vec<ShownItem>, Option<ItemId>) {
    let from = after.map_or(StreamId::Item(ItemId(0)), StreamId::Item);
    let mut items = Vec::new();
    let mut last = None;
    for (seen, (id, stream)) in store.state().streams_after(Some(&from)).enumerate() {
        let (StreamId::Item(id), Body::Item(item)) = (&id, &stream.body) else { return (items, None) };
        if items.len() == limit || seen == SCAN_MAX {
            return (items, last);
        }
        last = Some(*id);
        let mine = item.body().is_some_and(|body| body.scoped() == *queue);
        if mine && wanted.is_none_or(|wanted| wanted == windlass_api::queue::status(item)) {
            items.push(ShownItem::of(*id, item, store.state().beats()));
        }
    }
    (items, None)
}

/// The item that an id means: one of the queue's.
async fn item_of(app: &App, queue: &Scoped, text: &str) -> Result<(ItemId, ShownItem), Problem> {
    let id = ItemId::parse(text).map_err(|_| Problem::missing("item", text))?;
    let queue = queue.clone();
    let found = app
        .look(move |store| {
            find_item(store.state(), &queue, id).map(|item| ShownItem::of(id, item, store.state().beats()))
        })
        .await?;
    found.map(|value| (id, value)).ok_or_else(|| Problem::missing("item", text))
}

async fn one(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((name, item)): Path<(String, String)>,
) -> Answer {
    Ok(json(StatusCode::OK, &item_of(&app, &scoped(&caller, &name)?, &item).await?.1))
}

async fn on_item(app: &App, caller: &Caller, (name, item): (&str, &str), input: item::Input) -> Answer {
    let queue = scoped(caller, name)?;
    let (id, _) = item_of(app, &queue, item).await?;
    app.ask(caller, Command::Item { item: id, input }).await?;
    Ok(json(StatusCode::OK, &item_of(app, &queue, item).await?.1))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Again {
    /// Other data, where that was the fault.
    #[serde(default)]
    data: Option<Value>,
}

async fn retry(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((name, item)): Path<(String, String)>,
    Json(body): Json<Again>,
) -> Answer {
    on_item(&app, &caller, (&name, &item), item::Input::Retry { data: body.data }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reason {
    #[serde(default)]
    reason: Option<String>,
}

async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((name, item)): Path<(String, String)>,
    Json(body): Json<Reason>,
) -> Answer {
    on_item(&app, &caller, (&name, &item), item::Input::Drop { reason: body.reason }).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Redrive {
    /// dead, failed, or both where absent.
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    limit: Option<usize>,
}

/// Puts failed and dead items back, so many at once.
async fn redrive(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(body): Json<Redrive>,
) -> Answer {
    let queue = scoped(&caller, &name)?;
    let (dead, failed) = match body.status.as_deref() {
        None => (true, true),
        Some("dead") => (true, false),
        Some("failed") => (false, true),
        Some(_) => return Err(invalid("`status` is dead or failed")),
    };
    let limit = body.limit.unwrap_or(RETRY_MAX).clamp(1, RETRY_MAX);
    let picked = app
        .look(move |store| {
            find_queue(store.state(), &queue)?;
            let index = store.state().indexes().queue(&queue);
            let of = |wanted: bool| index.filter(|_| wanted);
            let dead = of(dead).into_iter().flat_map(queue::Index::dead);
            let all = dead.chain(of(failed).into_iter().flat_map(queue::Index::failed));
            // One whose key another has by now stays where it is, and keeps nobody from being put back.
            let is_free = |id: &ItemId| {
                let body = find_item(store.state(), &queue, *id).and_then(Item::body);
                let key = body.and_then(|body| body.dedupe.as_ref());
                key.is_none_or(|key| index.is_none_or(|index| index.known(key).is_none()))
            };
            let mut all: Vec<ItemId> = all.take(SCAN_MAX).filter(is_free).take(limit + 1).collect();
            let more = all.len() > limit;
            all.truncate(limit);
            Some((all, more))
        })
        .await?;
    let (ids, more) = picked.ok_or_else(|| Problem::missing("queue", &name))?;
    let input = || item::Input::Retry { data: None };
    let asks = ids.iter().map(|item| app.ask(&caller, Command::Item { item: *item, input: input() }));
    let (mut retried, mut full) = (0, None);
    for answer in futures_util::future::join_all(asks).await {
        match answer {
            Ok(_) => retried += 1,
            Err(problem) if problem.code == Code::QueueFull => full = Some(problem),
            // One that somebody else put back, or took out, in the meantime is not to be put back here.
            Err(_) => {}
        }
    }
    let more = more || full.is_some();
    if let Some(problem) = full.filter(|_| retried == 0) {
        return Err(problem);
    }
    Ok(json(StatusCode::OK, &object!({ "queue": name, "retried": retried, "more": more })))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TakeWish {
    /// How many at most; one where absent.
    #[serde(default)]
    max: Option<u32>,
    /// How long to wait for the first.
    #[serde(default)]
    wait_ms: Option<u64>,
    /// Who takes them; made up where absent.
    #[serde(default)]
    holder: Option<String>,
}

async fn take(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Json(wish): Json<TakeWish>,
) -> Answer {
    let queue = scoped(&caller, &name)?;
    let made = || format!("consumer-{:032x}", windlass_executor::clock::fresh());
    let holder = outsider(&caller, &wish.holder.unwrap_or_else(made))?;
    let max = wish.max.unwrap_or(1).clamp(1, PUSH_MAX as u32);
    let wait = Duration::from_millis(wish.wait_ms.unwrap_or(0)).min(WAIT_MAX);
    let until = tokio::time::Instant::now() + wait;
    let mut tail = app.tail();
    loop {
        tail.mark_unchanged();
        let take = Command::TakeMany { queue: queue.clone(), holder: holder.clone(), max };
        let grants = match app.ask(&caller, take).await {
            Ok(Reply::Taken(grants)) => grants,
            // Nothing is given out for now, as in an empty queue.
            Err(problem) if problem.code == Code::RunInvalidTransition => Vec::new(),
            Ok(other) => {
                return Err(Problem::new(Code::Internal, format!("items were taken, and {other:?} came")));
            }
            Err(problem) => return Err(problem),
        };
        if !grants.is_empty() || tokio::time::Instant::now() >= until {
            let items = taken(&app, &queue, grants).await?;
            return Ok(json(StatusCode::OK, &List::page(items, None)));
        }
        let due = {
            let queue = queue.clone();
            app.look(move |store| store.state().indexes().queue(&queue).and_then(queue::Index::due)).await?
        };
        let now = Clock::now(&windlass_executor::clock::System);
        let due = due.map(|due| tokio::time::Instant::now() + Duration::from_millis(due.since(now).0.max(1)));
        tokio::select! {
            biased;
            () = app.tokens.over(&caller) => return Err(stranger()),
            // Something became durable: it may be an item.
            changed = tail.changed() => changed.map_err(|_| super::gone())?,
            () = tokio::time::sleep_until(due.map_or(until, |due| due.min(until))) => {}
            () = app.drained() => return Ok(json(StatusCode::OK, &List::<ShownItem>::page(Vec::new(), None))),
        }
    }
}

async fn taken(app: &App, queue: &Scoped, grants: Vec<Grant>) -> Result<Vec<ShownItem>, Problem> {
    let queue = queue.clone();
    app.look(move |store| {
        let show = |grant: &Grant| {
            let found = find_item(store.state(), &queue, grant.item);
            let beats = store.state().beats();
            let shown = found.map(|item| ShownItem::of(grant.item, item, beats));
            let shown = shown.unwrap_or_else(|| ShownItem::bare(grant.item));
            ShownItem { epoch: Some(grant.epoch), ..shown }
        };
        grants.iter().map(show).collect()
    })
    .await
}

/// Says something about each claim, and answers for each: one that is refused has a `code`.
async fn report(
    app: &App,
    caller: &Caller,
    name: &str,
    mut body: Value,
    input: impl Fn(&Report) -> item::Input,
) -> Answer {
    let queue = scoped(caller, name)?;
    let reports: Vec<Report> = match body.get_mut("items").map(Value::take) {
        Some(items) => one_or_many(items)?,
        None => one_or_many(body)?,
    };
    if reports.len() > REPORTS_MAX {
        return Err(invalid(format!("at most {REPORTS_MAX} items at once")));
    }
    let (asked, wanted) =
        (queue.clone(), reports.iter().map(|report| report.item.clone()).collect::<Vec<_>>());
    let holders = app
        .look(move |store| {
            find_queue(store.state(), &asked)?;
            let holder = |text: &String| {
                let id = ItemId::parse(text).ok()?;
                match find_item(store.state(), &asked, id)? {
                    Item::Processing { claim, .. } => Some((id, Some(claim.holder.clone()))),
                    // tidy: only what is worked on has a holder.
                    _ => Some((id, None)),
                }
            };
            Some(wanted.iter().map(holder).collect::<Vec<_>>())
        })
        .await?
        .ok_or_else(|| Problem::missing("queue", name))?;
    let asks = reports.iter().zip(&holders).map(|(report, found)| async {
        let Some((item, _)) = found else { return Err(Problem::missing("item", &report.item)) };
        app.ask(caller, Command::Item { item: *item, input: input(report) }).await
    });
    let answers = futures_util::future::join_all(asks).await;
    let mut items = Vec::with_capacity(answers.len());
    for ((report, found), answer) in reports.iter().zip(holders).zip(answers) {
        let (item, epoch) = (report.item.clone(), report.epoch);
        let mut told = Answered { item, epoch, cancelled: None, code: None, detail: None };
        match answer {
            Ok(Reply::Item(item::Reply::Beating(_))) => {
                // The claim is the caller's by its epoch; the beat is heard without being a record.
                if let Some((_, Some(holder))) = found {
                    app.engine.tell(Message::Beat(holder));
                }
            }
            Ok(Reply::Item(item::Reply::Dropped)) => told.cancelled = Some(true),
            // tidy: every other answer is that the report was taken, which is what no code means.
            Ok(_) => {}
            Err(problem) => {
                (told.code, told.detail) = (Some(problem.code), Some(problem.detail));
            }
        }
        items.push(told);
    }
    Ok(json(StatusCode::OK, &List::page(items, None)))
}

async fn heartbeat(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Document(body): Document,
) -> Answer {
    report(&app, &caller, &name, body, |report| item::Input::Heartbeat { epoch: report.epoch }).await
}

async fn complete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Document(body): Document,
) -> Answer {
    report(&app, &caller, &name, body, |report| item::Input::Complete { epoch: report.epoch }).await
}

async fn fail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Document(body): Document,
) -> Answer {
    let input = |report: &Report| item::Input::Fail {
        epoch: report.epoch,
        error: report.error.clone().unwrap_or_else(|| "no reason was given".to_owned()),
        retryable: report.retryable.unwrap_or(true),
    };
    report(&app, &caller, &name, body, input).await
}

async fn give_back(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(name): Path<String>,
    Document(body): Document,
) -> Answer {
    report(&app, &caller, &name, body, |report| item::Input::Return { epoch: report.epoch }).await
}
