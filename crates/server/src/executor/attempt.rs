//! One attempt of a remote executor: from its lease to the end of its tree.

use super::report::Outcome;
use super::{Executor, key};
use crate::outside::report_of;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::runbook::ValueType;
use windlass_core::small;
use windlass_core::step::Failure;
use windlass_engine::{Leave, Own};
use windlass_executor::room::postponed;
use windlass_executor::shell::{Environment, Secret, Shell, ShellEvent, Spec, StartError};
use windlass_executor::tools::Trouble;

/// Where a secret is looked for: an environment variable with its name after this.
const SECRET_PREFIX: &str = "WINDLASS_SECRET_";

/// Why a lease is handed back that was not begun.
const STOPPING: &str = "the executor is stopping";

/// An attempt that is under way, or whose end was not reported yet.
pub(super) struct Attempt {
    pub(super) run: String,
    pub(super) step: String,
    pub(super) epoch: u64,
    /// Its name for the keeper.
    id: String,
    /// When the server last heard of it.
    pub(super) heard: Instant,
    /// Nobody is told how it ends: its lease is somebody else's.
    abandoned: bool,
    /// The server did not hear of it in time, so it was ended.
    lost: bool,
}

impl Attempt {
    /// As it stands in requests.
    pub(super) fn item(&self) -> Value {
        json!({ "run": self.run, "step": self.step, "epoch": self.epoch })
    }

    /// Ends its tree within a grace time.
    pub(super) fn stop(&mut self, shell: &Shell, grace: Duration) {
        // One that has ended meanwhile is reported as it ended.
        let _ = shell.stop(&self.id, grace);
    }

    /// Ends its tree at once, and says nothing of it.
    pub(super) fn abandon(&mut self, shell: &Shell) {
        self.abandoned = true;
        self.stop(shell, Duration::ZERO);
    }

    /// Ends its tree at once, because somebody else may have it by now.
    pub(super) fn lose(&mut self, shell: &Shell) {
        self.lost = true;
        self.stop(shell, Duration::ZERO);
    }
}

/// What is needed to carry out a lease.
struct Work {
    outputs: small::Map<Name, ValueType>,
    repeatable: bool,
    /// Which try it is.
    attempt: u32,
    log: PathBuf,
    /// The secrets that it uses. Others of its runbook are masked too.
    used: Vec<Secret>,
}

/// Begins an attempt. One that cannot be begun is reported as failed.
pub(super) fn start(executor: &Arc<Executor>, lease: &Value) {
    let Some(key) = key(lease) else { return };
    let epoch = lease["epoch"].as_u64().unwrap_or(0);
    let id = format!("{}/{}/{epoch}", key.0, key.1);
    let attempt = Attempt {
        run: key.0.clone(),
        step: key.1.clone(),
        epoch,
        id,
        heard: Instant::now(),
        abandoned: false,
        lost: false,
    };
    let stopping = {
        let mut state = executor.state();
        if let Some(ttl) = lease["ttl_ms"].as_u64().filter(|ttl| *ttl > 0) {
            state.ttl = Some(Duration::from_millis(ttl));
        }
        state.running.insert(key.clone(), attempt);
        state.stopping
    };
    executor.changed.notify_waiters();
    if stopping {
        let report = Report::Returned { reason: Some(STOPPING.to_owned()) };
        return executor.over(&key, epoch, report, None);
    }
    if lease["tool"] == "transform" {
        let output = lease["input"].get("fields").cloned();
        return executor.over(&key, epoch, Report::Done { output, exit_code: None }, None);
    }
    match spec(executor, lease, epoch) {
        Ok((spec, work)) if work.used.is_empty() => launch(executor, &key, epoch, spec, work),
        Ok((spec, work)) => {
            let executor = executor.clone();
            tokio::spawn(async move {
                let witnessed = executor.witness(&key, epoch, &work.used).await;
                // Nothing is begun any more by one that was told to stop meanwhile.
                let stopping = executor.state().stopping.then(|| STOPPING.to_owned());
                match witnessed.err().or(stopping) {
                    None => launch(&executor, &key, epoch, spec, work),
                    // Nothing was done with them yet.
                    reason => executor.over(&key, epoch, Report::Returned { reason }, None),
                }
            });
        }
        Err(trouble) if trouble.lacks_room() => {
            executor.over(&key, epoch, postponed(trouble.message, attempt_of(lease)), None);
        }
        Err(trouble) => executor.over(&key, epoch, failed(trouble.message), None),
    }
}

/// Which try at a step a lease is.
fn attempt_of(lease: &Value) -> u32 {
    lease["attempt"].as_u64().and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(1)
}

fn failed(message: String) -> Report {
    failed_as(Code::StepFailed, message)
}

fn failed_as(code: Code, message: String) -> Report {
    let failure = Failure::new(code, message);
    Report::Failed { failure, retryable: false, exit_code: None, signal: None }
}

fn launch(executor: &Arc<Executor>, key: &(String, String), epoch: u64, spec: Spec, work: Work) {
    let (log, refused) = (spec.log.clone(), key.clone());
    let output = super::report::Stream::begin(executor, key, epoch, &log);
    let (hands, key) = (executor.clone(), key.clone());
    let Work { outputs, repeatable, attempt, log, used: _ } = work;
    // The server has put the lease on record before it answered with it.
    let leave = Leave::own(Own::Elsewhere);
    let started = executor.shell.run(&leave, spec, move |event| match event {
        ShellEvent::Ended(ended) => {
            let (stopping, lost) = {
                let state = hands.state();
                let attempt = state.running.get(&key).filter(|attempt| attempt.epoch == epoch);
                (state.stopping, attempt.is_some_and(|attempt| attempt.lost))
            };
            let report = report_of(&ended, &outputs, &log, (stopping || lost, repeatable), attempt);
            hands.over(&key, epoch, report, Some(output.clone()));
        }
        ShellEvent::Started { .. } | ShellEvent::Began | ShellEvent::Line(_) | ShellEvent::Warned(_) => {}
    });
    if let Err(error) = started {
        let text = error.to_string();
        let report = match error.passes() {
            true => postponed(text, attempt),
            false => failed_as(error.code(), text),
        };
        executor.over(&refused, epoch, report, None);
    }
}

impl Executor {
    /// Puts on record which secrets an attempt is about to use. They come from the environment, which has no versions.
    async fn witness(&self, key: &(String, String), epoch: u64, secrets: &[Secret]) -> Result<(), String> {
        let version = "environment of the executor";
        let secrets: Vec<Value> =
            secrets.iter().map(|secret| json!({ "name": secret.name, "version": version })).collect();
        let item = json!({ "run": key.0, "step": key.1, "epoch": epoch, "secrets": secrets });
        let answer = self.post("/v1/leases/secrets", &json!({ "items": [item] }), super::PATIENCE).await;
        let answer = answer.map_err(|failure| failure.to_string())?;
        match answer["items"][0].get("code") {
            None => Ok(()),
            Some(_) => Err(answer["items"][0]["detail"].as_str().unwrap_or_default().to_owned()),
        }
    }

    /// An attempt is over: it is reported, unless nobody wants to know.
    fn over(
        self: &Arc<Executor>,
        key: &(String, String),
        epoch: u64,
        report: Report,
        output: Option<super::report::Stream>,
    ) {
        let abandoned = {
            let mut state = self.state();
            let abandoned = state.running.get(key).is_none_or(|one| one.epoch != epoch || one.abandoned);
            if abandoned && state.running.get(key).is_some_and(|one| one.epoch == epoch) {
                state.running.remove(key);
            }
            abandoned
        };
        if abandoned {
            if let Some(output) = output {
                output.end();
            }
            self.changed.notify_waiters();
            return;
        }
        // Whoever reports lives as long as the executor does.
        let _ = self.outcomes.send(Outcome { key: key.clone(), epoch, report, output });
    }
}

/// Adds what `env:` says. A secret is a reference in the lease; its value is looked for here, and masked in everything that
/// leaves.
fn add_env(
    env: &mut Environment,
    secrets: &mut Vec<Secret>,
    extra: &Map<String, Value>,
) -> Result<(), String> {
    for (name, value) in extra {
        let text = match value {
            Value::String(text) => text.clone(),
            other => {
                let secret = other["$secret"].as_str().ok_or("the lease has a value that is no text")?;
                let found = std::env::var(format!("{SECRET_PREFIX}{secret}"));
                let value = found.map_err(|_| {
                    format!("the secret `{secret}` is not here: set {SECRET_PREFIX}{secret} where the executor runs")
                })?;
                secrets.push(Secret { name: secret.to_owned(), value: value.clone() });
                value
            }
        };
        env.add(name, &text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What the keeper is asked to do.
fn spec(executor: &Executor, lease: &Value, epoch: u64) -> Result<(Spec, Work), Trouble> {
    let text = |name: &str| lease[name].as_str().unwrap_or_default().to_owned();
    let run = RunId::parse(&text("run")).map_err(|error| error.to_string())?;
    let step = StepId::new(&text("step")).map_err(|error| error.to_string())?;
    let command = lease["command"]
        .as_str()
        .ok_or_else(|| "the lease has no command that this executor can run".to_owned())?;
    let mut env = Environment::inherited();
    let attempt = lease["attempt"].to_string();
    let own = [
        ("RUN_ID", text("run")),
        ("STEP_ID", text("step")),
        ("ATTEMPT", attempt),
        ("EPOCH", epoch.to_string()),
        ("IDEMPOTENCY_KEY", text("idempotency_key")),
        ("SERVER", executor.settings.server.clone()),
        ("TOKEN", text("token")),
    ];
    for (name, value) in own {
        env.set_own(name, &value).map_err(|error| error.to_string())?;
    }
    if let Value::Object(vars) = &lease["vars"] {
        for (name, value) in vars {
            env.set_var(name, value).map_err(|error| error.to_string())?;
        }
    }
    let mut secrets = Vec::new();
    let none = Map::new();
    env.add("TRACEPARENT", &text("traceparent")).map_err(|error| error.to_string())?;
    add_env(&mut env, &mut secrets, lease["env"].as_object().unwrap_or(&none))?;
    let dir = match lease["dir"].as_str() {
        Some(dir) => executor.settings.dir.join(dir),
        None => executor.settings.dir.clone(),
    };
    let log = executor.home.output_of(run, &step, epoch);
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).map_err(|error| StartError::file(folder, &error))?;
    }
    let typed = executor.home.typed_of(run, &step, epoch);
    let id = format!("{run}/{step}/{epoch}");
    let mut spec = Spec::new(&id, command, dir, env, log.clone(), typed);
    spec.shell = lease["shell"].as_str().map(str::to_owned);
    spec.timeout = lease["timeout_ms"].as_u64().map(Duration::from_millis);
    spec.secrets.clone_from(&secrets);
    // What another step of the run used may be in a file that this one prints.
    for name in lease["secrets"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let known = |secrets: &[Secret]| secrets.iter().any(|secret| secret.name == name);
        if let Ok(value) = std::env::var(format!("{SECRET_PREFIX}{name}"))
            && !known(&spec.secrets)
        {
            spec.secrets.push(Secret { name: name.to_owned(), value });
        }
    }
    let outputs: small::Map<Name, ValueType> =
        serde_json::from_value(lease["outputs"].clone()).unwrap_or_default();
    spec.outputs.clone_from(&outputs);
    let repeatable = lease["repeatable"].as_bool().unwrap_or(true);
    Ok((spec, Work { outputs, repeatable, attempt: attempt_of(lease), log, used: secrets }))
}
