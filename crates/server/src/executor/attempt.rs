//! One attempt of a remote executor: from its lease to the end of its tree.

use super::Executor;
use super::report::Outcome;
use crate::outside::report_of;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_api::List;
use windlass_api::lease::{Answered, Env, Item, Lease, Reports, Used, Uses};
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name};
use windlass_core::runbook::ValueType;
use windlass_core::small;
use windlass_core::step::Failure;
use windlass_engine::{Leave, Own};
use windlass_executor::room::postponed;
use windlass_executor::shell::{Environment, Reach, Secret, Shell, ShellEvent, Spec, StartError, Told};
use windlass_executor::tools::Trouble;

/// Where a secret is looked for: an environment variable with its name after this.
const SECRET_PREFIX: &str = "WINDLASS_SECRET_";

/// Why a lease is handed back that was not begun.
const STOPPING: &str = "the executor is stopping";

/// An attempt that is under way, or whose end was not reported yet.
pub(super) struct Attempt {
    id: AttemptId,
    /// When the server last heard of it.
    pub(super) heard: Instant,
    /// Nobody is told how it ends: its lease is somebody else's.
    abandoned: bool,
    /// The server did not hear of it in time, so it was ended.
    lost: bool,
}

impl Attempt {
    /// Ends its tree within a grace time.
    pub(super) fn stop(&mut self, shell: &Shell, grace: Duration) {
        // One that has ended meanwhile is reported as it ended.
        let _ = shell.stop(&self.id.to_string(), grace);
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
pub(super) fn begin(executor: &Arc<Executor>, lease: &Lease) {
    let id = lease.id();
    let attempt = Attempt { id: id.clone(), heard: Instant::now(), abandoned: false, lost: false };
    let stopping = {
        let mut state = executor.state();
        if lease.ttl_ms > 0 {
            state.ttl = Some(Duration::from_millis(lease.ttl_ms));
        }
        // A newer lease on the same step says that this one is over.
        for (_, older) in state.running.iter_mut().filter(|(older, _)| older.overtaken_by(&id)) {
            older.abandon(&executor.shell);
        }
        state.running.insert(id.clone(), attempt);
        state.stopping
    };
    executor.changed.notify_waiters();
    if stopping {
        let report = Report::Returned { reason: Some(STOPPING.to_owned()) };
        return executor.over(&id, report, None);
    }
    if lease.tool.as_str() == "transform" {
        let output = lease.input.as_ref().and_then(|input| input.get("fields")).cloned();
        return executor.over(&id, Report::Done { output, exit_code: None }, None);
    }
    match spec(executor, lease, &id) {
        Ok((spec, work)) if work.used.is_empty() => launch(executor, id, spec, work),
        Ok((spec, work)) => {
            let executor = executor.clone();
            tokio::spawn(async move {
                let witnessed = executor.witness(&id, &work.used).await;
                // Nothing is begun any more by one that was told to stop meanwhile.
                let stopping = executor.state().stopping.then(|| STOPPING.to_owned());
                match witnessed.err().or(stopping) {
                    None => launch(&executor, id, spec, work),
                    // Nothing was done with them yet.
                    reason => executor.over(&id, Report::Returned { reason }, None),
                }
            });
        }
        Err(trouble) if trouble.lacks_room() => {
            executor.over(&id, postponed(trouble.message, lease.attempt), None);
        }
        Err(trouble) => executor.over(&id, failed(trouble.message), None),
    }
}

fn failed(message: String) -> Report {
    failed_as(Code::StepFailed, message)
}

fn failed_as(code: Code, message: String) -> Report {
    let failure = Failure::new(code, message);
    Report::Failed { failure, retryable: false, exit_code: None, signal: None }
}

fn launch(executor: &Arc<Executor>, id: AttemptId, spec: Spec, work: Work) {
    let (log, refused) = (spec.log.clone(), id.clone());
    let output = super::report::Stream::begin(executor, &id, &log);
    let hands = executor.clone();
    let Work { outputs, repeatable, attempt, log, used: _ } = work;
    // The server has put the lease on record before it answered with it.
    let leave = Leave::own(Own::Elsewhere);
    let started = executor.shell.run(&leave, spec, move |event| match event {
        ShellEvent::Ended(ended) => {
            let (stopping, lost) = {
                let state = hands.state();
                let attempt = state.running.get(&id);
                (state.stopping, attempt.is_some_and(|attempt| attempt.lost))
            };
            let report = report_of(&ended, &outputs, &log, (stopping || lost, repeatable), attempt);
            hands.over(&id, report, Some(output.clone()));
        }
        ShellEvent::Started { .. } | ShellEvent::Began | ShellEvent::Line(_) | ShellEvent::Warned(_) => {}
    });
    if let Err(error) = started {
        let text = error.to_string();
        let report = match error.passes() {
            true => postponed(text, attempt),
            false => failed_as(error.code(), text),
        };
        executor.over(&refused, report, None);
    }
}

impl Executor {
    /// Puts on record which secrets an attempt is about to use. They come from the environment, which has no versions.
    async fn witness(&self, id: &AttemptId, secrets: &[Secret]) -> Result<(), String> {
        let version = "environment of the executor";
        let used = |secret: &Secret| Used { name: secret.name.clone(), version: version.to_owned() };
        let secrets = secrets.iter().map(used).collect();
        let Item { run, step, epoch } = id.into();
        let items = vec![Uses { run, step, epoch, secrets }];
        let answer = self.post("/v1/leases/secrets", &Reports { items }, super::PATIENCE).await;
        let answer: List<Answered> = answer.map_err(|failure| failure.to_string())?;
        match answer.items.into_iter().find(|item| item.code.is_some()) {
            None => Ok(()),
            Some(refused) => Err(refused.detail.unwrap_or_default()),
        }
    }

    /// An attempt is over: it is reported, unless nobody wants to know.
    fn over(self: &Arc<Executor>, id: &AttemptId, report: Report, output: Option<super::report::Stream>) {
        let abandoned = {
            let mut state = self.state();
            let abandoned = state.running.get(id).is_none_or(|one| one.abandoned);
            if abandoned {
                state.running.remove(id);
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
        let _ = self.outcomes.send(Outcome { id: id.clone(), report, output });
    }
}

/// Adds what `env:` says. A secret is a reference in the lease; its value is looked for here, and masked in everything that
/// leaves.
fn add_env(
    env: &mut Environment,
    secrets: &mut Vec<Secret>,
    extra: &BTreeMap<String, Env>,
) -> Result<(), String> {
    for (name, value) in extra {
        let text = match value {
            Env::Text(text) => text.clone(),
            Env::Secret { secret } => {
                let found = std::env::var(format!("{SECRET_PREFIX}{secret}"));
                let value = found.map_err(|_| {
                    format!("the secret `{secret}` is not here: set {SECRET_PREFIX}{secret} where the executor runs")
                })?;
                secrets.push(Secret { name: secret.to_string(), value: value.clone() });
                value
            }
        };
        env.add(name, &text).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What the keeper is asked to do.
fn spec(executor: &Executor, lease: &Lease, id: &AttemptId) -> Result<(Spec, Work), Trouble> {
    let command = lease
        .command
        .as_deref()
        .ok_or_else(|| "the lease has no command that this executor can run".to_owned())?;
    let server = &executor.settings.server;
    let reach = Reach { tries: lease.attempt, server, token: &lease.token, traceparent: &lease.traceparent };
    let (key, vars) = (lease.idempotency_key.as_str(), &lease.vars.get());
    let told = Told { attempt: id, key, vars, reach: Some(reach) };
    let mut env = Environment::of_step(&told).map_err(|error| error.to_string())?;
    let mut secrets = Vec::new();
    add_env(&mut env, &mut secrets, lease.env.as_ref().unwrap_or(&BTreeMap::new()))?;
    let dir = match &lease.dir {
        Some(dir) => executor.settings.dir.join(dir),
        None => executor.settings.dir.clone(),
    };
    let log = executor.home.output_of(id);
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).map_err(|error| StartError::file(folder, &error))?;
    }
    let typed = executor.home.typed_of(id);
    let mut spec = Spec::new(&id.to_string(), command, dir, env, log.clone(), typed);
    spec.shell.clone_from(&lease.shell);
    spec.timeout = lease.timeout_ms.map(Duration::from_millis);
    spec.secrets.clone_from(&secrets);
    // What another step of the run used may be in a file that this one prints.
    for name in &lease.secrets {
        let known = |secrets: &[Secret]| secrets.iter().any(|secret| secret.name == name.as_str());
        if let Ok(value) = std::env::var(format!("{SECRET_PREFIX}{name}"))
            && !known(&spec.secrets)
        {
            spec.secrets.push(Secret { name: name.to_string(), value });
        }
    }
    let outputs = lease.outputs.clone().unwrap_or_default();
    spec.outputs.clone_from(&outputs);
    let (repeatable, attempt) = (lease.repeatable, lease.attempt);
    Ok((spec, Work { outputs, repeatable, attempt, log, used: secrets }))
}
