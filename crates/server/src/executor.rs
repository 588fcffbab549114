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

use crate::apart::Apart;
use crate::client::{Client, Failure};
use attempt::Attempt;
use report::Outcome;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};
use windlass_api::List;
use windlass_api::lease::{Answered, Ask, Beats, Item, Lease, Leases};
use windlass_core::code::Code;
use windlass_core::id::AttemptId;
use windlass_executor::config::Config;
use windlass_executor::home::Home;
use windlass_executor::shell::Shell;

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

/// How long an attempt has to end where the server does not say.
const GRACE: Duration = Duration::from_secs(10);

/// What kind of executor.
#[derive(Clone)]
pub struct Settings {
    /// Its name, among the executors of its tenant.
    pub name: String,
    /// What steps with `runs_on` may ask of it.
    pub labels: Vec<String>,
    /// How many attempts it carries out at once.
    pub slots: usize,
    /// Where steps run that name no directory.
    pub dir: PathBuf,
    /// The server's address, for the steps.
    pub server: String,
    /// What the configuration file says.
    pub config: Config,
    /// What steps run behind.
    pub apart: Apart,
    /// What no step may reach.
    pub closed: Vec<PathBuf>,
}

/// An executor at work.
pub(crate) struct Executor {
    settings: Settings,
    client: Client,
    shell: Shell,
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

impl Executor {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server, within a bound.
    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(patience, self.client.post_waiting(path, body, patience)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::new(Code::Unavailable, "the server did not answer in time")),
        }
    }

    fn ttl(&self) -> Duration {
        self.state().ttl.unwrap_or(TTL)
    }
}

/// Whether asking again later can help.
fn passes(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unavailable | Code::StoreFull | Code::Internal | Code::CapExceeded)
}

/// Carries out steps until it is told to stop; then hands back what it has.
///
/// # Errors
/// The server refuses this executor, or the keeper cannot be started.
pub async fn run(
    client: Client,
    home: Home,
    exe: PathBuf,
    settings: Settings,
    mut stop: watch::Receiver<bool>,
    say: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), Failure> {
    // The token and secrets are in this process's memory and environment, and steps run under the same user.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(std::io::Error::from)?;
    let root = home.root().to_path_buf();
    let started = tokio::task::spawn_blocking(move || Shell::start(&exe, &root)).await;
    let shell = started
        .map_err(|_| Failure::new(Code::Internal, "the keeper did not start"))?
        .map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
    let (apart, config, closed) = (settings.apart.clone(), settings.config.clone(), settings.closed.clone());
    shell.set_limits(config.limits);
    shell.set_walls(move |_, _| apart.wall(true, &config, &closed));
    let (outcomes, mut ended) = mpsc::unbounded_channel();
    let (state, changed) = (Mutex::default(), Notify::new());
    let executor = Arc::new(Executor { settings, client, shell, home, state, changed, outcomes });
    let reporting = {
        let executor = executor.clone();
        tokio::spawn(async move { report::serve(&executor, &mut ended, &say).await })
    };
    let beating = tokio::spawn(beat(executor.clone()));
    let outcome = tokio::select! {
        refused = lease(&executor) => Err(refused),
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    };
    hand_back(&executor).await;
    beating.abort();
    reporting.abort();
    outcome
}

/// Ends every attempt and waits until each was reported.
async fn hand_back(executor: &Arc<Executor>) {
    {
        let mut state = executor.state();
        state.stopping = true;
        for attempt in state.running.values_mut() {
            attempt.stop(&executor.shell, windlass_executor::shell::spec::GRACE);
        }
    }
    let over = async {
        loop {
            // Registered before looking, or what ends in between would be missed.
            let changed = executor.changed.notified();
            if executor.state().running.is_empty() {
                return;
            }
            changed.await;
        }
    };
    let _ = tokio::time::timeout(STOP_WAIT, over).await;
}

/// Leases steps as long as there are slots; ends only when the server refuses this executor.
async fn lease(executor: &Arc<Executor>) -> Failure {
    let mut pause = PAUSE;
    loop {
        let changed = executor.changed.notified();
        let free = executor.settings.slots.saturating_sub(executor.state().running.len());
        if free == 0 {
            changed.await;
            continue;
        }
        let body = Ask {
            executor: executor.settings.name.clone(),
            max: free.min(BATCH_MAX),
            wait_ms: WAIT_MS,
            labels: executor.settings.labels.clone(),
            tools: Some(["shell", "transform"].map(str::to_owned).to_vec()),
        };
        let patience = Duration::from_millis(WAIT_MS) + PATIENCE;
        match executor.post::<Leases>("/v1/leases", &body, patience).await {
            Ok(answer) => {
                pause = PAUSE;
                for lease in answer.items {
                    if executor.is_fresh(&lease).await {
                        attempt::begin(executor, &lease);
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
async fn beat(executor: Arc<Executor>) {
    let (mut pause, mut answered) = (PAUSE, Instant::now());
    loop {
        let changed = executor.changed.notified();
        let items: Vec<AttemptId> = executor.state().running.keys().cloned().collect();
        if items.is_empty() {
            changed.await;
            answered = Instant::now();
            continue;
        }
        let third = executor.ttl() / 3;
        // However much begins and ends meanwhile, now and then an answer is waited for: only that says that we are heard.
        let waits = answered.elapsed() < third;
        let wait_ms = if waits { third.as_millis() as u64 } else { 0 };
        let body = Beats { items: items.iter().map(Item::from).collect(), wait_ms };
        let sent = Instant::now();
        let again = async {
            changed.await;
            tokio::time::sleep(PAUSE.saturating_sub(sent.elapsed())).await;
        };
        let answer = tokio::select! {
            answer = executor.post::<List<Answered>>("/v1/leases/heartbeat", &body, third + PATIENCE) => answer,
            // What began just now is watched too, and what ended is not.
            () = again, if waits => continue,
        };
        match answer {
            Ok(answer) => {
                (pause, answered) = (PAUSE, Instant::now());
                executor.heard(&items, sent);
                for item in &answer.items {
                    executor.news(item);
                }
            }
            Err(_) => {
                executor.end_unheard();
                tokio::time::sleep(pause.min(third)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

impl Executor {
    /// Whether a lease is still ours when it is read. A machine may have slept since it was given; where the clock says so,
    /// the server is asked, because clocks differ.
    async fn is_fresh(&self, lease: &Lease) -> bool {
        if lease.expires_at.0 > windlass_executor::clock::wall() {
            return true;
        }
        let beat = Beats { items: vec![Item::from(&lease.id())], wait_ms: 0 };
        let answer: Result<List<Answered>, Failure> =
            self.post("/v1/leases/heartbeat", &beat, PATIENCE).await;
        answer.is_ok_and(|answer| answer.items.iter().all(|item| item.code.is_none()))
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
    fn news(&self, item: &Answered) {
        let Some(id) = item.id() else { return };
        let mut state = self.state();
        let Some(attempt) = state.running.get_mut(&id) else { return };
        if item.code.is_some_and(|code| code != Code::StoreFull) {
            // Somebody else has it, or nobody wants it any more: there is nothing to report.
            attempt.abandon(&self.shell);
        } else if item.cancel == Some(true) {
            attempt.stop(&self.shell, item.grace_ms.map_or(GRACE, Duration::from_millis));
        }
    }

    /// Ends what the server has not heard of for a whole time-out.
    fn end_unheard(&self) {
        let ttl = self.ttl();
        let mut state = self.state();
        for attempt in state.running.values_mut().filter(|attempt| attempt.heard.elapsed() >= ttl) {
            attempt.lose(&self.shell);
        }
    }
}
