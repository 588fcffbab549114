//! A remote executor: leases steps from a server, carries them out under a keeper of its own, and reports.
//!
//! ```text
//!  lease ──▶ start ──▶ keeper ──▶ ended ──▶ output ──▶ report
//!              │  heartbeats: a stop, or a lease that somebody else has, ends the tree
//! ```
//!
//! **A stale epoch never runs on.** What a heartbeat calls stale is killed; so is everything of which the server did not
//! hear for a whole time-out, because by then somebody else may have it. A server that restarts is waited for.

mod attempt;
mod report;

use crate::executor::Executor;
use crate::home::Home;
use crate::shell;
use attempt::Attempt;
use report::Outcome;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, RunId, StepId};

/// How long one request for work waits.
const WAIT_MS: u64 = 20_000;
/// How many steps one request asks for at most.
const BATCH_MAX: usize = 100;
/// How long to wait before a server that did not answer is asked again: at first, and at most.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a request may take beyond what it waits for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of attempts is waited for when the executor stops, their grace time included.
const STOP_WAIT: Duration = Duration::from_secs(20);
/// How long a lease lasts where the server does not say.
const TTL: Duration = Duration::from_secs(30);

/// What a server answers, where it does not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// What happened, for people.
    pub detail: String,
}

/// An answer that comes later.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send + 'a>>;

/// The way to the server.
pub trait Way: Send + Sync {
    /// Asks the server. The answer may take as long as the patience lasts.
    fn post<'a>(&'a self, path: &'a str, body: &'a Value, patience: Duration) -> Answer<'a>;
}

/// What kind of executor.
#[derive(Clone)]
pub struct Settings {
    /// Its name, among the executors of its tenant.
    pub name: String,
    /// What steps with `runs_on` may ask of it.
    pub labels: Vec<String>,
    /// What it can carry out.
    pub tools: Vec<String>,
    /// How many attempts it carries out at once.
    pub slots: usize,
    /// Where steps run that name no directory.
    pub dir: PathBuf,
    /// The server's address, for the steps.
    pub server: String,
}

/// An executor at work for a server elsewhere.
pub(crate) struct Remote {
    settings: Settings,
    way: Box<dyn Way>,
    executor: Arc<Executor>,
    home: Home,
    state: Mutex<State>,
    /// Something began or ended.
    changed: Notify,
    outcomes: mpsc::UnboundedSender<Outcome>,
}

#[derive(Default)]
struct State {
    running: HashMap<AttemptId, Attempt>,
    stopping: bool,
    ttl: Option<Duration>,
}

impl Remote {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server, within a bound.
    async fn post(&self, path: &str, body: &Value, patience: Duration) -> Result<Value, Failure> {
        match tokio::time::timeout(patience, self.way.post(path, body, patience)).await {
            Ok(answer) => answer,
            Err(_) => {
                let detail = "the server did not answer in time".to_owned();
                Err(Failure { code: Code::Unavailable, detail })
            }
        }
    }

    fn ttl(&self) -> Duration {
        self.state().ttl.unwrap_or(TTL)
    }
}

/// A text as it stands in a path.
#[must_use]
pub fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

/// Whether asking again later can help.
fn passes(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unavailable | Code::StoreFull | Code::Internal | Code::CapExceeded)
}

/// Carries out steps until it is told to stop; then hands back what it has.
///
/// # Errors
/// The server refuses this executor.
pub async fn run(
    way: Box<dyn Way>,
    (executor, home): (Arc<Executor>, Home),
    settings: Settings,
    mut stop: watch::Receiver<bool>,
    say: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), Failure> {
    let (outcomes, mut ended) = mpsc::unbounded_channel();
    let (state, changed) = (Mutex::default(), Notify::new());
    let remote = Arc::new(Remote { settings, way, executor, home, state, changed, outcomes });
    let reporting = {
        let remote = remote.clone();
        tokio::spawn(async move { report::serve(&remote, &mut ended, &say).await })
    };
    let beating = tokio::spawn(beat(remote.clone()));
    let outcome = tokio::select! {
        refused = lease(&remote) => Err(refused),
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    };
    hand_back(&remote).await;
    beating.abort();
    reporting.abort();
    outcome
}

/// Ends every attempt and waits until each was reported.
async fn hand_back(remote: &Arc<Remote>) {
    remote.state().stopping = true;
    let executor = remote.executor.clone();
    let leaving = tokio::task::spawn_blocking(move || executor.leave(shell::spec::GRACE));
    let over = async {
        let _ = leaving.await;
        loop {
            // Registered before looking, or what ends in between would be missed.
            let changed = remote.changed.notified();
            if remote.state().running.is_empty() {
                return;
            }
            changed.await;
        }
    };
    let _ = tokio::time::timeout(STOP_WAIT, over).await;
}

/// Leases steps as long as there are slots; ends only when the server refuses this executor.
async fn lease(remote: &Arc<Remote>) -> Failure {
    let mut pause = PAUSE;
    loop {
        let changed = remote.changed.notified();
        let free = remote.settings.slots.saturating_sub(remote.state().running.len());
        if free == 0 {
            changed.await;
            continue;
        }
        let body = json!({
            "executor": remote.settings.name,
            "max": free.min(BATCH_MAX),
            "wait_ms": WAIT_MS,
            "labels": remote.settings.labels,
            "tools": remote.settings.tools,
        });
        let patience = Duration::from_millis(WAIT_MS) + PATIENCE;
        match remote.post("/v1/leases", &body, patience).await {
            Ok(answer) => {
                pause = PAUSE;
                for lease in answer["items"].as_array().into_iter().flatten() {
                    if remote.is_fresh(lease).await {
                        attempt::begin(remote, lease);
                    }
                }
            }
            Err(failure) if passes(&failure) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(failure) => return failure,
        }
    }
}

/// Says that attempts go on, and hears which do not. The request waits at the server, so that a stop comes at once.
async fn beat(remote: Arc<Remote>) {
    let (mut pause, mut answered) = (PAUSE, Instant::now());
    loop {
        let changed = remote.changed.notified();
        let items: Vec<AttemptId> = remote.state().running.keys().cloned().collect();
        if items.is_empty() {
            changed.await;
            answered = Instant::now();
            continue;
        }
        let third = remote.ttl() / 3;
        // However much begins and ends meanwhile, now and then an answer is waited for: only that says that we are heard.
        let waits = answered.elapsed() < third;
        let wait_ms = if waits { third.as_millis() as u64 } else { 0 };
        let body = json!({ "items": items, "wait_ms": wait_ms });
        let sent = Instant::now();
        let again = async {
            changed.await;
            tokio::time::sleep(PAUSE.saturating_sub(sent.elapsed())).await;
        };
        let answer = tokio::select! {
            answer = remote.post("/v1/leases/heartbeat", &body, third + PATIENCE) => answer,
            // What began just now is watched too, and what ended is not.
            () = again, if waits => continue,
        };
        match answer {
            Ok(answer) => {
                (pause, answered) = (PAUSE, Instant::now());
                remote.heard(&items, sent);
                for item in answer["items"].as_array().into_iter().flatten() {
                    remote.news(item);
                }
            }
            Err(_) => {
                remote.end_unheard();
                tokio::time::sleep(pause.min(third)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// The attempt that a lease or an answer is about.
fn attempt_of(item: &Value) -> Option<AttemptId> {
    let run = RunId::parse(item["run"].as_str()?).ok()?;
    let step = StepId::new(item["step"].as_str()?).ok()?;
    Some(AttemptId { run, step, epoch: item["epoch"].as_u64()? })
}

impl Remote {
    /// Whether a lease is still ours when it is read. A machine may have slept since it was given; where the clock says so,
    /// the server is asked, because clocks differ.
    async fn is_fresh(&self, lease: &Value) -> bool {
        let expires_at = lease["expires_at"].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        if expires_at.is_none_or(|at| at > jiff::Timestamp::now()) {
            return true;
        }
        let item = json!({ "run": lease["run"], "step": lease["step"], "epoch": lease["epoch"] });
        let answer = self.post("/v1/leases/heartbeat", &json!({ "items": [item] }), PATIENCE).await;
        answer.is_ok_and(|answer| answer["items"][0].get("code").is_none())
    }

    /// The server heard of these when the request was sent.
    fn heard(&self, items: &[AttemptId], at: Instant) {
        let mut state = self.state();
        for id in items {
            if let Some(attempt) = state.running.get_mut(id) {
                attempt.heard = attempt.heard.max(at);
            }
        }
    }

    /// What the server says of an attempt.
    fn news(&self, item: &Value) {
        let Some(id) = attempt_of(item) else { return };
        let mut state = self.state();
        let Some(attempt) = state.running.get_mut(&id) else { return };
        if item.get("code").is_some_and(|code| code.as_str() != Some(Code::StoreFull.as_str())) {
            // Somebody else has it, or nobody wants it any more: there is nothing to report.
            attempt.abandoned = true;
            self.executor.lose(&id);
        } else if item["cancel"] == true {
            let grace = Duration::from_millis(item["grace_ms"].as_u64().unwrap_or(10_000));
            self.executor.stop(&id, grace);
        }
    }

    /// Ends what the server has not heard of for a whole time-out.
    fn end_unheard(&self) {
        let ttl = self.ttl();
        let state = self.state();
        for (id, _) in state.running.iter().filter(|(_, attempt)| attempt.heard.elapsed() >= ttl) {
            self.executor.lose(id);
        }
    }
}
