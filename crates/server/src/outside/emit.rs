//! Steps that emit custom events.
//!
//! The event's key is the step's own, so a step that is tried again, or whose report was lost, emits its event once.

use super::Hands;
use crate::api::hooks::{self, Emission};
use crate::app::App;
use crate::attempts;
use serde_json::{Value, json};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;
use windlass_core::attempt::Report;
use windlass_core::canonical;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{AttemptId, Name};
use windlass_core::step::Failure;
use windlass_engine::Permit;

/// How long a step waits for this process to serve.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// The way of custom events, which begins after the hands do: what a start took up may be quicker.
#[derive(Default)]
pub(super) struct Way {
    app: Mutex<Option<Weak<App>>>,
    opened: Condvar,
}

impl Way {
    pub(super) fn open(&self, app: &Arc<App>) {
        *self.app.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(app));
        self.opened.notify_all();
    }

    /// The application; absent where it has ended.
    fn app(&self) -> Option<Arc<App>> {
        let app = self.app.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.opened.wait_timeout_while(app, OPEN_TIMEOUT, |app| app.is_none());
        let (app, _) = waited.unwrap_or_else(PoisonError::into_inner);
        app.as_ref().and_then(Weak::upgrade)
    }
}

impl Hands {
    /// Emits the event of a step, on a thread of its own.
    pub(super) fn emit(self: &Arc<Hands>, permit: &Permit) {
        let (lease, work) = (permit.lease(), permit.work());
        let attempt = permit.attempt();
        let fields = lease.input.as_ref().and_then(|input| input.get("fields"));
        let field = |name: &str| fields.and_then(|fields| fields.get(name)).cloned().unwrap_or_default();
        let Value::String(kind) = field("type") else {
            return self.fail(attempt, Code::InvalidInput, "the `type` of the event is not a text");
        };
        let data = field("data");
        let about = json!([lease.idempotency_key, kind, data]);
        let emission = Emission {
            tenant: work.tenant.clone(),
            namespace: work.namespace.clone(),
            by: attempts::actor(lease.run, &lease.step),
            run: Some(lease.run),
            client: Name::clean("step"),
            // The same step with other data, as in a fork, is another event.
            key: Digest::of(&[b"windlass event v1\n", &canonical::bytes(&about)]).to_string(),
            kind,
            data,
            traceparent: Some(Name::clean(&super::traceparent(permit))),
        };
        let (hands, refused) = (self.clone(), attempt.clone());
        let emit = move || hands.emitted(attempt, emission);
        if let Err(error) = std::thread::Builder::new().name("emit".into()).spawn(emit) {
            let reason = Some(format!("no thread could be started: {error}"));
            self.report(refused, Report::Returned { reason });
        }
    }

    fn emitted(&self, attempt: AttemptId, emission: Emission) {
        let Some(app) = self.events.app() else {
            let reason = Some("the process is stopping".to_owned());
            return self.report(attempt, Report::Returned { reason });
        };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                return self.report(attempt, Report::Returned { reason: Some(error.to_string()) });
            }
        };
        match runtime.block_on(hooks::emit(&app, emission)) {
            Ok(answered) => {
                self.report(attempt, Report::Done { output: Some(answered.body), exit_code: None });
            }
            Err(problem) => {
                let retryable = matches!(problem.code, Code::CapExceeded | Code::Unavailable);
                let failure = Failure::new(problem.code, problem.detail);
                self.report(attempt, Report::Failed { failure, retryable, exit_code: None, signal: None });
            }
        }
    }
}
