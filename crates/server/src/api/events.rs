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
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_api::time;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, RunId, StepId};
use windlass_core::pattern::Pattern;
use windlass_core::step::OutputLost;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_engine::reader::{Line, Page, PageMax, Place};
use windlass_executor::shell::Source;
use windlass_executor::shell::output::{self, Follow};
use windlass_store::store::{Attempts, Followed};

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

/// How much is read at once.
const PAGE: PageMax = PageMax { lines: 1_000, bytes: 1 << 20 };
/// How much is read at once by whoever is not known to have more to read.
const FIRST: PageMax = PageMax { lines: 64, bytes: 32 << 10 };
/// How far two chunks that followers share are apart: so much for each follower, which is not waited for where it is short,
/// and this at most. So all of them together are woken a bounded number of times in a second.
const PACE: Duration = Duration::from_micros(100);
const PACE_MIN: Duration = Duration::from_millis(1);
const PACE_MAX: Duration = Duration::from_millis(20);
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
}

impl Wanted {
    fn takes(&self, line: &Line) -> bool {
        let record = &line.record;
        let of_caller = record.tenant == self.caller.tenant || record.stream == StreamId::System;
        of_caller
            && self.run.is_none_or(|run| record.stream == StreamId::Run(run))
            && self.pattern.as_ref().is_none_or(|pattern| pattern.matches(&record.event))
            && self.is_mine(line)
    }

    /// Whether a record of the caller's tenant, or of nobody's, is the caller's to see.
    fn is_mine(&self, line: &Line) -> bool {
        let is_within = || line.namespace.as_ref() == Some(&self.caller.namespace);
        match &line.record.stream {
            // An ingress key is a whole tenant's; its run says in which namespace it counts.
            StreamId::Trigger(name) if name.namespace() == "_" => {
                self.caller.may(Scope::Owner) || is_within()
            }
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
                name.namespace() == self.caller.namespace.as_str() || name.namespace() == "_"
            }
            StreamId::Runbook(_) => true,
            StreamId::Tenant(_) | StreamId::Tokens(_) | StreamId::Retired(_) => self.caller.may(Scope::Admin),
            StreamId::System => self.caller.may(Scope::Owner),
            StreamId::Run(run) if self.run == Some(*run) => true,
            StreamId::Run(_) | StreamId::Item(_) | StreamId::Workspace(_) | StreamId::Session(_) => {
                is_within()
            }
        }
    }
}

/// Reading on from a seq.
struct Reading {
    app: Arc<App>,
    wanted: Wanted,
    /// What is read next, and behind what there is nothing more.
    within: Place,
    follow: bool,
    sse: bool,
    /// A run's events end with it.
    ended: bool,
    /// There was more than the last page.
    more: bool,
    /// It has caught up, and shares what is read with others who follow.
    shares: bool,
    /// When it last got something that was shared.
    last: Option<Instant>,
    _stand: Stand,
    following: Option<Arc<()>>,
}

impl Reading {
    fn new(
        app: Arc<App>,
        wanted: Wanted,
        within: Place,
        (follow, sse): (bool, bool),
        stand: Stand,
    ) -> Reading {
        let following = follow.then(|| app.followers.clone());
        let (ended, more, shares) = (false, false, follow);
        Reading {
            app,
            wanted,
            within,
            follow,
            sse,
            ended,
            more,
            shares,
            last: None,
            _stand: stand,
            following,
        }
    }
}

fn wanted(caller: Caller, run: Option<RunId>, asked: &Asked) -> Result<Wanted, Problem> {
    let pattern = asked.kind.as_deref().map(Pattern::parse).transpose();
    let pattern = pattern.map_err(|error| Problem::new(Code::InvalidInput, error.to_string()))?;
    Ok(Wanted { caller, run, pattern })
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
    let (first, follow) = (start(&asked, &headers)?, asked.follow.unwrap_or(true));
    let stand = app.standing.enter(&wanted.caller)?;
    let within = Place { first, last: u64::MAX };
    Ok(serve(Reading::new(app, wanted, within, (follow, sse(&headers)), stand)))
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
    let place = app.reader.place(run).await?;
    let over =
        app.look(move |store| store.show_run(run, |run, _, _| run.is_terminal())).await?.unwrap_or(false);
    // Nothing more comes of a run that is over.
    let (first, follow) = (start(&asked, &headers)?.max(place.first), asked.follow.unwrap_or(false) && !over);
    let last = if follow { u64::MAX } else { place.last };
    let stand = app.standing.enter(&wanted.caller)?;
    Ok(serve(Reading::new(app, wanted, Place { first, last }, (follow, sse(&headers)), stand)))
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

impl Reading {
    /// The next lines; nothing where there are no more and nobody waits for them.
    async fn chunk(mut self) -> Option<(Bytes, Reading)> {
        loop {
            // Nothing more is shown to whoever could not ask for it any more.
            if self.ended || self.app.tokens.over(&self.wanted.caller).now_or_never().is_some() {
                return None;
            }
            // The first page is small. Whoever has more to read than that reads it where it keeps nobody from being served.
            let page;
            (page, self) = if self.more && !self.shares {
                let tenant = self.wanted.caller.tenant.clone();
                aside::run(&tenant, self.page(PAGE)).await
            } else {
                let max = if self.shares { PAGE } else { FIRST };
                self.page(max).await
            };
            let text = match page {
                Ok(Some(page)) => self.take(&page),
                // It is behind what is shared.
                Ok(None) => {
                    self.shares = false;
                    continue;
                }
                Err(problem) => self.told(&problem)?,
            };
            if !text.is_empty() {
                return Some((Bytes::from(text), self));
            }
            if self.ended {
                return None;
            }
            if self.more {
                // Whoever looks for something that is rare reads much, and others are served meanwhile.
                tokio::task::yield_now().await;
                continue;
            }
            if !self.follow {
                return None;
            }
            if !self.shares {
                self.shares = true;
                continue;
            }
            tokio::select! {
                biased;
                () = self.app.tokens.over(&self.wanted.caller) => return None,
                grown = self.app.reader.grown(self.within.first) => grown.ok()?,
                // Whoever follows comes back to the next process.
                () = self.app.drained() => return None,
                // Between two ends that say nothing, somebody forgets them.
                () = tokio::time::sleep(KEEP_ALIVE), if self.sse => {
                    return Some((Bytes::from_static(b":\n\n"), self));
                }
            }
            // The more there are, the more each of them gets at a time.
            let pace = self.pace().saturating_sub(self.last.map_or(PACE_MAX, |last| last.elapsed()));
            if pace >= PACE_MIN {
                tokio::time::sleep(pace).await;
            }
            self.last = Some(Instant::now());
        }
    }

    /// How far two chunks that were shared are apart.
    fn pace(&self) -> Duration {
        let followers = self.following.as_ref().map_or(0, |following| Arc::strong_count(following) - 1);
        PACE.saturating_mul(u32::try_from(followers).unwrap_or(u32::MAX)).min(PACE_MAX)
    }

    /// Reads a page; nothing where it is too far behind for what is shared.
    async fn page(self, max: PageMax) -> (Result<Option<Page>, Problem>, Reading) {
        let reader = &self.app.reader;
        let read = match self.shares {
            true => reader.follow(self.within.first, max).await,
            false => reader.records(self.wanted.run, self.within, max).await.map(Some),
        };
        (read.map_err(Problem::from), self)
    }

    /// The text of those records of a page that are the caller's to see.
    fn take(&mut self, page: &Page) -> String {
        self.within.first = page.next;
        self.more = page.more;
        let mut text = String::new();
        for line in page.lines.iter().filter(|line| self.wanted.takes(line)) {
            written(line, self.sse, &mut text);
        }
        if let Some(run) = self.wanted.run {
            let ends = |line: &Arc<Line>| {
                line.record.stream == StreamId::Run(run) && windlass_store::store::ends(&line.record.event)
            };
            // Who follows a run is done when the run is.
            self.ended = self.follow && page.lines.iter().any(ends);
        }
        text
    }

    /// What is told of why no more comes; nothing where the process ends.
    fn told(&mut self, problem: &Problem) -> Option<String> {
        (self.ended, self.more) = (true, false);
        if problem.code == Code::Unavailable {
            return None;
        }
        let problem = windlass_api::Problem::new(problem.code, problem.detail.clone());
        // It always can be written: its keys are text.
        let problem = serde_json::to_string(&problem).unwrap_or_default();
        Some(if self.sse { format!("event: problem\ndata: {problem}\n\n") } else { format!("{problem}\n") })
    }
}

/// Writes a record as a reader gets it.
fn written(line: &Line, sse: bool, text: &mut String) {
    let Line { record, text: json, .. } = line;
    // Nothing keeps a text from being written to.
    let _ = match sse {
        true => write!(text, "id: {}\nevent: {}\ndata: {json}\n\n", record.seq, record.event.tag()),
        false => writeln!(text, "{json}"),
    };
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
        let shown = super::runs::one(&app, run).await?;
        let known = shown.steps.iter().flatten().any(|step| step.id == *wanted);
        // One that follows may wait for a step that has not been reached.
        if !known && (!follow || shown.completed_at.is_some()) {
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
                let at = time::text(Millis(line.at_ms));
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
    let at = time::text(lost.at);
    let line = json!({ "step": step, "epoch": lost.epoch, "at": at, "source": "windlass", "text": text });
    Bytes::from(format!("{line}\n"))
}
