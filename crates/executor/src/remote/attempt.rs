//! One attempt of a remote executor: from the lease on the wire to its end.

use super::report::{Outcome, Stream};
use super::{Remote, attempt_of};
use crate::executor::{Given, Lease, Script, Terms, Work, failed};
use crate::secrets::{OfRun, Registered};
use crate::shell::Author;
use crate::tools::execute::Finished;
use crate::tools::session::Witness;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name};
use windlass_core::receipt::Semantics;
use windlass_core::template::Template;
use windlass_core::turn::command::Refusal;
use windlass_engine::{Leave, Own};

/// Why a lease is handed back that was not begun.
const STOPPING: &str = "the executor is stopping";

/// An attempt that is under way, or whose end was not reported yet.
pub(super) struct Attempt {
    /// When the server last heard of it.
    pub(super) heard: Instant,
    /// Nobody is told how it ends: its lease is somebody else's.
    pub(super) abandoned: bool,
}

/// Begins an attempt. One that cannot be begun is reported as failed.
pub(super) fn begin(remote: &Arc<Remote>, lease: &Value) {
    let Some(id) = attempt_of(lease) else { return };
    let stopping = {
        let mut state = remote.state();
        if let Some(ttl) = lease["ttl_ms"].as_u64().filter(|ttl| *ttl > 0) {
            state.ttl = Some(Duration::from_millis(ttl));
        }
        // A newer lease on the same step says that this one is over.
        for (older, attempt) in state.running.iter_mut().filter(|(older, _)| older.overtaken_by(&id)) {
            attempt.abandoned = true;
            remote.executor.lose(older);
        }
        state.running.insert(id.clone(), Attempt { heard: Instant::now(), abandoned: false });
        state.stopping
    };
    remote.changed.notify_waiters();
    if stopping {
        let report = Report::Returned { reason: Some(STOPPING.to_owned()) };
        return remote.over(&id, Finished::of(report), None);
    }
    let lease = match read(remote, &id, lease) {
        Ok(lease) => lease,
        Err(why) => return remote.over(&id, Finished::of(failed(Code::StepFailed, why)), None),
    };
    let output = matches!(lease.work, Work::Command(_))
        .then(|| Stream::begin(remote, &id, &remote.home.output_of(&id)));
    let (executor, told) = (remote.executor.clone(), remote.clone());
    // The server has put the lease on record before it answered with it.
    let leave = Leave::own(Own::Elsewhere);
    let done = Box::new(move |finished| told.over(&id, finished, output));
    // It waits until the use of its secrets is on record, and nothing else may wait for that.
    tokio::task::spawn_blocking(move || executor.carry_out(leave, lease, done));
}

/// A part of a lease, or what stands for it where there is none.
fn part<T: DeserializeOwned + Default>(lease: &Value, name: &str) -> Result<T, String> {
    match &lease[name] {
        Value::Null => Ok(T::default()),
        value => serde_json::from_value(value.clone())
            .map_err(|error| format!("`{name}` of the lease cannot be read: {error}")),
    }
}

/// A lease as the server sends it.
fn read(remote: &Arc<Remote>, id: &AttemptId, lease: &Value) -> Result<Lease, String> {
    let tool = lease["tool"].as_str().unwrap_or_default();
    let tenant: Option<Name> = part(lease, "tenant")?;
    let key: Option<Name> = part(lease, "idempotency_key")?;
    let (Some(tenant), Some(key)) = (tenant, key) else {
        return Err("the lease has no tenant or no `idempotency_key`".to_owned());
    };
    let work = match tool {
        "transform" => Work::Transform(lease["input"].get("fields").cloned()),
        "shell" => Work::Command(script(remote, lease)?),
        _ => Work::Call {
            action: serde_json::from_value(lease["input"].clone())
                .map_err(|error| format!("the action of the lease cannot be read: {error}"))?,
            with: part::<Option<Template>>(lease, "with")?
                .ok_or_else(|| format!("this executor cannot carry out `{tool}` without its `with`"))?,
            own_read: lease["own_read"].as_bool().unwrap_or(false),
        },
    };
    // A server that is older than this says only whether it may be done again.
    let unsaid = lease["repeatable"] == false;
    let semantics: Option<Semantics> = part(lease, "semantics")?;
    let terms = Terms {
        id: id.clone(),
        attempt: lease["attempt"].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
        key,
        semantics: semantics.or(unsaid.then_some(Semantics::AtMostOnce)),
        timeout: lease["timeout_ms"].as_u64().map(Duration::from_millis),
        witness: remote.witness(id),
        masked: remote.masked(id, &tenant, lease),
        tenant,
    };
    Ok(Lease { terms, work })
}

fn script(remote: &Remote, lease: &Value) -> Result<Script, String> {
    let text = |name: &str| lease[name].as_str().unwrap_or_default().to_owned();
    let command = lease["command"].as_str().ok_or("the lease has no command that this executor can run")?;
    let mut env = Vec::new();
    for (name, value) in lease["env"].as_object().into_iter().flatten() {
        let given = match (value.as_str(), value["$secret"].as_str()) {
            (Some(text), _) => Given::Text(text.to_owned()),
            (None, Some(secret)) => Given::Secret(secret.to_owned()),
            (None, None) => return Err("the lease has a value that is no text".to_owned()),
        };
        env.push((name.clone(), given));
    }
    let own = &remote.settings.dir;
    Ok(Script {
        text: command.to_owned(),
        shell: lease["shell"].as_str().map(str::to_owned),
        dir: lease["dir"].as_str().map_or_else(|| own.clone(), |dir| own.join(dir)),
        author: Author::Nobody,
        env,
        vars: lease["vars"].clone(),
        server: remote.settings.server.clone(),
        token: text("token"),
        traceparent: text("traceparent"),
        outputs: part(lease, "outputs")?,
    })
}

impl Remote {
    /// What is masked of an attempt's run: what another step of it used may be in a file that this one prints.
    fn masked(&self, id: &AttemptId, tenant: &Name, lease: &Value) -> OfRun {
        let names = || {
            let named = lease["secrets"].as_array().into_iter().flatten().filter_map(Value::as_str);
            named.filter_map(|name| Name::new(name).ok()).collect()
        };
        Registered::new(self.executor.secrets().clone()).of(id.run, tenant, names)
    }

    /// Puts on record which secret an attempt is about to use. What cannot be put on record now is not used, and the lease
    /// is handed back.
    fn witness(self: &Arc<Remote>, id: &AttemptId) -> Witness {
        let (remote, id, runtime) = (self.clone(), id.clone(), tokio::runtime::Handle::current());
        Arc::new(move |name, version| {
            let secrets = [json!({ "name": name, "version": version })];
            let item = json!({ "run": id.run, "step": id.step, "epoch": id.epoch, "secrets": secrets });
            let (told, heard) = channel();
            let remote = remote.clone();
            runtime.spawn(async move {
                let body = json!({ "items": [item] });
                let answer = remote.post("/v1/leases/secrets", &body, super::PATIENCE).await;
                let _ = told.send(answer);
            });
            let gone = || Refusal::new(Code::Unavailable, STOPPING);
            let answer = heard.recv().map_err(|_| gone())?;
            let answer = answer.map_err(|failure| Refusal::new(Code::Unavailable, failure.to_string()))?;
            let item = &answer["items"][0];
            match item["code"].as_str() {
                None => Ok(()),
                Some(code) => {
                    let detail = item["detail"].as_str().unwrap_or_default();
                    Err(Refusal::new(Code::parse(code).unwrap_or(Code::Internal), detail))
                }
            }
        })
    }

    /// An attempt is over: it is reported, unless nobody wants to know.
    fn over(self: &Arc<Remote>, id: &AttemptId, finished: Finished, output: Option<Stream>) {
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
        let _ = self.outcomes.send(Outcome { id: id.clone(), finished, output });
    }
}
