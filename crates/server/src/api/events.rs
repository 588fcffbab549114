//! Events and logs: what was recorded, as it is recorded, and what steps wrote, as they write it.
//!
//! Records are served as their lines stand in the log. A reader that follows waits for the log to grow; one that was cut
//! off goes on from the last seq it saw.

use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Problem, Query};
use crate::app::App;
use crate::aside;
use crate::standing::Stand;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::{FutureExt as _, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::event::Event;
use windlass_core::id::{AttemptId, RunId, StepId};
use windlass_core::pattern::Pattern;
use windlass_core::record::Record;
use windlass_core::step::OutputLost;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_executor::shell::Source;
use windlass_executor::shell::output::{self, Follow};
use windlass_store::shape;
use windlass_store::store::{Attempts, Embedded, Followed};

/// Records and output, as they come.
pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/events",
            Scope::Read,
            doc("Follow every record")
                .query::<Asked>()
                .header("Last-Event-ID", "Go on after this one", "^[0-9]{1,18}$")
                .gives_as(200, STREAM, "events")
                .gives_as(200, LINES, "lines")
                .refuses(&[Code::CapExceeded]),
            all,
        )
        .get(
            "/v1/runs/{id}/events",
            Scope::Read,
            doc("Follow the records of a run")
                .query::<Asked>()
                .header("Last-Event-ID", "Go on after this one", "^[0-9]{1,18}$")
                .gives_as(200, STREAM, "events")
                .gives_as(200, LINES, "lines")
                .refuses(&[Code::NotFound, Code::CapExceeded]),
            of_run,
        )
        .get(
            "/v1/runs/{id}/logs",
            Scope::Read,
            doc("Read what its steps wrote")
                .query::<Logs>()
                .gives_as(200, LINES, "lines")
                .refuses(&[Code::NotFound, Code::CapExceeded]),
            logs,
        )
}

/// How many lines are read at once.
const PAGE: usize = 1_000;
/// How many bytes, or a line more.
const PAGE_LEN: usize = 1 << 20;
/// How many lines and bytes are read at once by whoever is not known to have more to read.
const FIRST: usize = 64;
/// See [`FIRST`].
const FIRST_LEN: usize = 32 << 10;
/// How many streams are remembered to be the caller's, or not.
const SEEN_MAX: usize = 10_000;
/// How long a stream of events says nothing at most.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const STREAM: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
/// How often a log of output that is followed is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// For how many steps that is; for twice as many it is half as often.
const LOOK_STEPS: usize = 500;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    /// The first seq, where it is not the next after `Last-Event-ID`.
    #[serde(default)]
    from: Option<u64>,
    /// A pattern of tags: `step:*`.
    #[serde(default, rename = "type")]
    kind: Option<String>,
    /// Whether to wait for more.
    #[serde(default)]
    follow: Option<bool>,
}

/// Which records a reader gets.
struct Wanted {
    caller: Caller,
    run: Option<RunId>,
    pattern: Option<Pattern>,
    /// Streams of which it is known whether they are in the caller's namespace.
    seen: HashMap<StreamId, bool>,
}

impl Wanted {
    fn may_take(&self, record: &Record) -> bool {
        let of_caller = record.tenant == self.caller.tenant || record.stream == StreamId::System;
        of_caller
            && self.run.is_none_or(|run| record.stream == StreamId::Run(run))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.matches(&record.event))
    }

    /// Whether a stream of the caller's tenant, or of nobody's, is the caller's to see; nothing where its name does not say.
    fn is_mine(&self, stream: &StreamId) -> Option<bool> {
        match stream {
            // An ingress key is a whole tenant's; its run says in which namespace it counts.
            StreamId::Trigger(name) if name.namespace() == "_" => match self.caller.may(Scope::Owner) {
                true => Some(true),
                false => self.seen.get(stream).copied(),
            },
            StreamId::Queue(name)
            | StreamId::Lock(name)
            | StreamId::Semaphore(name)
            | StreamId::Worker(name)
            | StreamId::Schedule(name)
            | StreamId::Trigger(name)
            | StreamId::Effect(name)
            | StreamId::Deployment(name)
            | StreamId::Signal(name) => {
                // What belongs to a whole tenant is in none of its namespaces.
                Some(name.namespace() == self.caller.namespace.as_str() || name.namespace() == "_")
            }
            StreamId::Runbook(_) => Some(true),
            StreamId::Tenant(_) | StreamId::Tokens(_) | StreamId::Retired(_) => {
                Some(self.caller.may(Scope::Admin))
            }
            StreamId::System => Some(self.caller.may(Scope::Owner)),
            StreamId::Run(run) if self.run == Some(*run) => Some(true),
            StreamId::Run(_) | StreamId::Item(_) | StreamId::Workspace(_) | StreamId::Session(_) => {
                self.seen.get(stream).copied()
            }
        }
    }
}

/// Reading on from a seq.
struct Reading {
    app: Arc<App>,
    wanted: Wanted,
    next: u64,
    follow: bool,
    sse: bool,
    /// A run's events end with it.
    ended: bool,
    /// There was more than the last page.
    more: bool,
    _stand: Stand,
}

fn wanted(caller: Caller, run: Option<RunId>, asked: &Asked) -> Result<Wanted, Problem> {
    let pattern = asked.kind.as_deref().map(Pattern::parse).transpose();
    let pattern = pattern.map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    Ok(Wanted { caller, run, pattern, seen: HashMap::new() })
}

/// Where to begin. Whoever was cut off goes on from the last that came, whatever was asked for in the beginning.
fn start(asked: &Asked, headers: &HeaderMap) -> Result<u64, Problem> {
    let Some(last) = headers.get("last-event-id").filter(|last| !last.is_empty()) else {
        return Ok(asked.from.unwrap_or(0));
    };
    let last: Option<u64> = last.to_str().ok().and_then(|last| last.parse().ok());
    let strange = || Problem::new(Code::InvalidInput, "`Last-Event-ID` is not the id of an event");
    last.map(|last| last.saturating_add(1)).ok_or_else(strange)
}

pub(super) async fn all(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Answer {
    let wanted = wanted(caller, None, &asked)?;
    let (next, follow) = (start(&asked, &headers)?, asked.follow.unwrap_or(true));
    let stand = app.standing.enter(&wanted.caller)?;
    Ok(serve(Reading {
        app,
        wanted,
        next,
        follow,
        sse: sse(&headers),
        ended: false,
        more: false,
        _stand: stand,
    }))
}

pub(super) async fn of_run(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let wanted = wanted(caller, Some(run), &asked)?;
    let look = move |store: &mut Embedded| {
        (
            store.first_seq(run),
            store.show_run(run, false).is_some_and(|run| run.get("completed_at").is_some()),
        )
    };
    let (first, over) = app.look(look).await?;
    // Nothing more comes of a run that is over.
    let (next, follow) = (start(&asked, &headers)?.max(first), asked.follow.unwrap_or(false) && !over);
    let stand = app.standing.enter(&wanted.caller)?;
    Ok(serve(Reading {
        app,
        wanted,
        next,
        follow,
        sse: sse(&headers),
        ended: false,
        more: false,
        _stand: stand,
    }))
}

/// Server-Sent Events, unless one JSON object a line is asked for.
fn sse(headers: &HeaderMap) -> bool {
    let lines = |accept: &HeaderValue| accept.as_bytes().starts_with(LINES.as_bytes());
    !headers.get(header::ACCEPT).is_some_and(lines)
}

fn serve(reading: Reading) -> Response {
    let kind = if reading.sse { STREAM } else { LINES };
    let chunks = stream::unfold(reading, |reading| async move {
        let (chunk, reading) = reading.chunk().await?;
        Some((Ok::<_, Infallible>(chunk), reading))
    });
    streamed(kind, Body::from_stream(chunks))
}

/// An answer that comes bit by bit, which nobody in between is to collect.
fn streamed(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A page of what was read: each record's stream with its text.
struct Page {
    records: Vec<(StreamId, String)>,
    more: bool,
}

impl Reading {
    /// The next lines; nothing where there are no more and nobody waits for them.
    async fn chunk(mut self) -> Option<(Bytes, Reading)> {
        let mut tail = self.app.tail();
        loop {
            // Nothing more is shown to whoever could not ask for it any more.
            if self.ended || self.app.tokens.over(&self.wanted.caller).now_or_never().is_some() {
                return None;
            }
            tail.mark_unchanged();
            // The first page is small. Whoever has more to read than that reads it where it keeps nobody from being served.
            let text = if self.more {
                let tenant = self.wanted.caller.tenant.clone();
                let text;
                (text, self) = aside::run(&tenant, self.page((PAGE, PAGE_LEN))).await;
                text?
            } else {
                let text;
                (text, self) = self.page((FIRST, FIRST_LEN)).await;
                text?
            };
            if !text.is_empty() {
                return Some((Bytes::from(text), self));
            }
            if self.more {
                // Whoever looks for something that is rare reads much, and others are served meanwhile.
                tokio::task::yield_now().await;
                continue;
            }
            if !self.follow {
                return None;
            }
            tokio::select! {
                biased;
                () = self.app.tokens.over(&self.wanted.caller) => return None,
                changed = tail.changed() => changed.ok()?,
                // Whoever follows comes back to the next process.
                () = self.app.drained() => return None,
                // Between two ends that say nothing, somebody forgets them.
                () = tokio::time::sleep(KEEP_ALIVE), if self.sse => {
                    return Some((Bytes::from_static(b":\n\n"), self));
                }
            }
        }
    }

    /// The text of the next page, of so many lines and bytes.
    async fn page(mut self, max: (usize, usize)) -> (Option<String>, Reading) {
        let page = self.read(max);
        self.more = page.more;
        (self.pick(page).await, self)
    }

    /// Reads a page.
    fn read(&mut self, (lines_max, len_max): (usize, usize)) -> Page {
        let (mut records, mut lines, mut bytes, mut seen) = (Vec::new(), 0, 0, self.next);
        let (run, sse, wanted) = (self.wanted.run, self.sse, &mut self.wanted);
        let mut over = false;
        let read = self.app.log.read(self.next, &mut |record, line| {
            seen = record.seq + 1;
            if let Event::PipelineCreated(made) = &record.event
                && record.tenant == wanted.caller.tenant
            {
                wanted.seen.insert(record.stream.clone(), made.namespace == wanted.caller.namespace);
            }
            over |= run.is_some_and(|run| record.stream == StreamId::Run(run))
                && windlass_store::store::ends(&record.event);
            if wanted.may_take(&record) {
                records.push((record.stream.clone(), written(&record, line, sse)));
            }
            (lines, bytes) = (lines + 1, bytes + line.len());
            if lines < lines_max && bytes < len_max {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        match read {
            Ok(_) => {
                self.next = seen;
                // Who follows a run is done when the run is.
                self.ended = over && self.follow;
                Page { records, more: lines == lines_max || bytes >= len_max }
            }
            Err(error) => {
                self.ended = true;
                let problem = shape::problem(error.code(), &error.to_string());
                let text =
                    if sse { format!("event: problem\ndata: {problem}\n\n") } else { format!("{problem}\n") };
                Page { records: vec![(StreamId::Runbook(Digest::default()), text)], more: false }
            }
        }
    }

    /// The text of those records that are the caller's to see. What their names do not say, the store does.
    async fn pick(&mut self, page: Page) -> Option<String> {
        let mut unknown: Vec<StreamId> = Vec::new();
        for (stream, _) in &page.records {
            if self.wanted.is_mine(stream).is_none() && !unknown.contains(stream) {
                unknown.push(stream.clone());
            }
        }
        if !unknown.is_empty() {
            let asked = unknown.clone();
            let namespace = self.wanted.caller.namespace.clone();
            let look = move |store: &mut Embedded| {
                let is_there = |stream: &StreamId| store.namespace_of(stream) == Some(namespace.clone());
                asked.iter().map(is_there).collect::<Vec<bool>>()
            };
            let found = self.app.look(look).await.ok()?;
            if self.wanted.seen.len() > SEEN_MAX {
                self.wanted.seen.clear();
            }
            self.wanted.seen.extend(unknown.into_iter().zip(found));
        }
        let mine = page.records.iter().filter(|(stream, _)| self.wanted.is_mine(stream) == Some(true));
        Some(mine.map(|(_, text)| text.as_str()).collect())
    }
}

/// A record as a reader gets it.
fn written(record: &Record, line: &str, sse: bool) -> String {
    if sse {
        format!("id: {}\nevent: {}\ndata: {line}\n\n", record.seq, record.event.tag())
    } else {
        format!("{line}\n")
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Logs {
    #[serde(default)]
    step: Option<String>,
    #[serde(default)]
    follow: Option<bool>,
    /// Only steps that failed.
    #[serde(default)]
    failed: Option<bool>,
}

/// What the steps of a run wrote, one JSON object a line: `{step, epoch, at, source, text}`.
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    Query(asked): Query<Logs>,
) -> Answer {
    let run = app.find_run(&caller, &id).await?;
    let step = asked.step.as_deref().map(StepId::new).transpose();
    let step = step.map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    let follow = asked.follow.unwrap_or(false);
    if let Some(wanted) = &step {
        let shown = super::runs::one(&app, run, true).await?;
        let known = shown["steps"].as_array().into_iter().flatten().any(|step| step["id"] == wanted.as_str());
        // One that follows may wait for a step that has not been reached.
        if !known && (!follow || shown.get("completed_at").is_some()) {
            return Err(Problem::missing("step that was reached", wanted.as_str()));
        }
    }
    let stand = app.standing.enter(&caller)?;
    let tailing = Tailing {
        app,
        caller,
        run,
        step,
        failed: asked.failed.unwrap_or(false),
        follow,
        open: BTreeMap::new(),
        ready: VecDeque::new(),
        lost: BTreeMap::new(),
        known: None,
        last_round: false,
        _stand: stand,
    };
    let chunks = stream::unfold(tailing, |mut tailing| async move {
        let chunk = tailing.chunk().await?;
        Some((Ok::<_, Infallible>(chunk), tailing))
    });
    Ok(streamed(LINES, Body::from_stream(chunks)))
}

/// Reading the outputs of a run's attempts.
struct Tailing {
    app: Arc<App>,
    caller: Caller,
    run: RunId,
    step: Option<StepId>,
    failed: bool,
    follow: bool,
    open: BTreeMap<(usize, u64), (String, Follow)>,
    ready: VecDeque<Bytes>,
    /// What could not be kept, by the attempt, until it was told; nothing after that.
    lost: BTreeMap<(usize, u64), Option<Bytes>>,
    /// What the last look found.
    known: Option<Followed>,
    last_round: bool,
    _stand: Stand,
}

impl Tailing {
    async fn chunk(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Some(chunk);
            }
            if self.last_round || self.follow && (self.app.is_draining() || self.is_stranger()) {
                return None;
            }
            let over = self.look().await?;
            self.read();
            // One look reads so much and no more, so the end is there when a look brings nothing.
            if self.ready.is_empty() {
                self.last_round = over || !self.follow;
                if !self.last_round {
                    // A run of very many steps is not looked at as often as one of a few.
                    let steps = self.known.as_ref().map_or(0, |known| known.steps.len());
                    tokio::time::sleep(LOOK + LOOK * (steps / LOOK_STEPS) as u32).await;
                }
            }
        }
    }

    /// Whether whoever follows could not ask for it any more.
    fn is_stranger(&self) -> bool {
        self.app.tokens.over(&self.caller).now_or_never().is_some()
    }

    /// Looks which attempts there are; says whether the run is over.
    async fn look(&mut self) -> Option<bool> {
        let (run, ver) = (self.run, self.known.as_ref().map(|known| known.ver));
        if let Some(found) = self.app.look(move |store| store.followed(run, ver)).await.ok()?? {
            self.open(&found);
            self.known = Some(found);
        }
        self.known.as_ref().map(|known| known.over)
    }

    /// Opens the outputs of attempts that are new.
    fn open(&mut self, found: &Followed) {
        for (place, Attempts { id, epochs, failed, lost }) in found.steps.iter().enumerate() {
            if self.step.as_ref().is_some_and(|wanted| !is_within(id, wanted)) || self.failed && !failed {
                continue;
            }
            if let Some(lost) = lost {
                self.lost.entry((place, lost.epoch)).or_insert_with(|| Some(told_lost(id, lost)));
            }
            for epoch in 1..=*epochs {
                if self.open.contains_key(&(place, epoch)) {
                    continue;
                }
                let path = self.app.home.output_of(&AttemptId::new(self.run, id, epoch));
                if path.exists() {
                    self.open.insert((place, epoch), (id.to_string(), output::follow(&path)));
                }
            }
        }
    }

    fn read(&mut self) {
        for ((_, epoch), (step, follow)) in &mut self.open {
            let lines = follow.read().unwrap_or_default();
            let mut text = String::new();
            for line in lines {
                let source = match line.source {
                    Source::Out => "stdout",
                    Source::Err => "stderr",
                    Source::Note => "windlass",
                };
                let at = shape::time(Millis(line.at_ms));
                let shown: Value =
                    json!({ "step": step, "epoch": epoch, "at": at, "source": source, "text": line.text });
                text.push_str(&shown.to_string());
                text.push('\n');
            }
            if !text.is_empty() {
                self.ready.push_back(Bytes::from(text));
            }
        }
        // What was kept comes first.
        if self.ready.is_empty() {
            self.ready.extend(self.lost.values_mut().filter_map(Option::take));
        }
    }
}

/// Whether a step is the one that is meant, or one of its items.
fn is_within(id: &StepId, wanted: &StepId) -> bool {
    let rest = id.as_str().strip_prefix(wanted.as_str());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
}

/// The line that says that output of a step could not be kept.
fn told_lost(step: &StepId, lost: &OutputLost) -> Bytes {
    let text = format!("{} bytes of output could not be kept: {}", lost.bytes, lost.reason);
    let at = shape::time(lost.at);
    let line = json!({ "step": step, "epoch": lost.epoch, "at": at, "source": "windlass", "text": text });
    Bytes::from(format!("{line}\n"))
}
