//! Calls of tools under leases: carries out attempts side by side, and says of each what came of it.
//!
//! | the call | idempotent | reconcile | at most once |
//! |---|---|---|---|
//! | succeeded | done, receipt | done, receipt | done, receipt |
//! | was refused | failed, receipt | failed, receipt | failed, receipt |
//! | got an answer that leaves it open | tried again | the other side is asked at once | unknown |
//! | got no answer | tried again | unknown, asked later | unknown |
//!
//! A report with a receipt settles the effect's key; one without leaves it open, and the core does what the semantics
//! say. What was sent and not answered may still be on its way, so "it is not there" is believed at once only where an
//! answer came.

use super::probe::{Asked, Prober};
use super::session::{Session, Witness};
use super::{Again, Call, Happened, Outcome, Seen, Success, TIME_MAX, Tools, Trouble, stdio};
use crate::clock::fresh;
use crate::home::Home;
use crate::room;
use crate::secrets::{OfRun, Secrets};
use crate::shell::{Author, Shell};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use windlass_core::attempt::Report;
use windlass_core::budget::Cost;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name, ReceiptId};
use windlass_core::receipt::{self, Action, Semantics};
use windlass_core::step::Failure;
use windlass_core::template::{Template, secret_reference};
use windlass_core::time::Span;
use windlass_core::turn::command::Receipted;
use windlass_engine::Leave;

/// How long a model may take where the step does not say.
const MODEL_TIME_MAX: Duration = Duration::from_secs(600);
/// How long an answer is waited for that says whether an effect is there.
const ASK_TIME_MAX: Duration = Duration::from_secs(30);

/// An attempt to carry out.
pub struct Job {
    /// Whose it is.
    pub id: AttemptId,
    /// The tenant.
    pub tenant: Name,
    /// What is to be done, as it was decided about.
    pub action: Action,
    /// The definition of its fields: which of them are secrets.
    pub with: Template,
    /// What identifies the effect.
    pub key: Name,
    /// Which try it is.
    pub attempt: u32,
    /// What can be done about a lost attempt; absent where it only reads.
    pub semantics: Option<Semantics>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Whether the tool itself knows how to ask what became of it.
    pub own_read: bool,
    /// Puts on record which secrets it uses.
    pub witness: Witness,
    /// What its run used before.
    pub run: OfRun,
}

impl Job {
    /// A session for it.
    pub(super) fn session(&self, secrets: &Arc<Secrets>) -> Session {
        Session::witnessed(self.tenant.clone(), secrets.clone(), self.witness.clone(), self.run.clone())
    }
}

/// What came of an attempt.
#[derive(Debug)]
pub struct Finished {
    /// What to report.
    pub report: Report,
    /// What happened outside.
    pub receipt: Option<Box<Receipted>>,
    /// What it cost.
    pub costs: Vec<Cost>,
    /// What the disk did not take of its output.
    pub lost_output: Option<OutputLost>,
}

/// Output that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputLost {
    /// How many bytes.
    pub bytes: u64,
    /// Why.
    pub reason: String,
}

impl Finished {
    /// A report, and nothing else.
    #[must_use]
    pub fn of(report: Report) -> Finished {
        Finished { report, receipt: None, costs: Vec::new(), lost_output: None }
    }
}

/// How an attempt under way is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It may go on.
    No,
    /// It was cancelled: it has this long to come to an end by itself.
    Cancel(Duration),
    /// The process ends.
    Leave,
}

/// The calls of tools that are under way.
pub struct Calls {
    runtime: Option<Runtime>,
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) tools: Tools,
    pub(super) secrets: Arc<Secrets>,
    pub(super) shell: Arc<Shell>,
    pub(super) home: Home,
    running: Mutex<HashMap<AttemptId, watch::Sender<Stop>>>,
    ended: Condvar,
}

impl Calls {
    /// Calls of these tools.
    ///
    /// # Errors
    /// The system gives no threads or no certificates.
    pub fn new(
        tools: Tools,
        (home, secrets): (Home, Arc<Secrets>),
        shell: Arc<Shell>,
    ) -> Result<Calls, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tools")
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let (running, ended) = (Mutex::default(), Condvar::new());
        let inner = Arc::new(Inner { tools, secrets, shell, home, running, ended });
        Ok(Calls { runtime: Some(runtime), inner })
    }

    /// The tools.
    #[must_use]
    pub fn tools(&self) -> &Tools {
        &self.inner.tools
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Begins an attempt. `done` is called once, with what came of it.
    pub fn start(&self, leave: Leave, job: Job, done: impl FnOnce(Finished) + Send + 'static) {
        let (stop, stopped) = watch::channel(Stop::No);
        self.inner.running().insert(job.id.clone(), stop);
        let inner = self.inner.clone();
        self.spawn(async move {
            let attempt = job.id.clone();
            let finished = inner.carry_out(leave, job, stopped).await;
            done(finished);
            inner.running().remove(&attempt);
            inner.ended.notify_all();
        });
    }

    /// Asks the other side what became of an effect. `found` gets the answer, once there is one.
    pub fn ask(&self, asked: Asked, found: impl FnOnce(Seen, Option<Box<Receipted>>) + Send + 'static) {
        let prober = Prober { inner: self.inner.clone(), asked };
        self.spawn(async move {
            if let Some((seen, receipt)) = prober.settle().await {
                found(seen, receipt);
            }
        });
    }

    /// Ends an attempt: it has the grace time to come to its end, and is broken off then.
    pub fn stop(&self, attempt: &AttemptId, grace: Duration) {
        if let Some(stop) = self.inner.running().get(attempt) {
            stop.send_replace(Stop::Cancel(grace));
        }
    }

    /// Breaks an attempt off: nobody knows what became of it.
    pub fn break_off(&self, attempt: &AttemptId) {
        if let Some(stop) = self.inner.running().get(attempt) {
            stop.send_replace(Stop::Leave);
        }
    }

    /// Ends every attempt: those under way have this long, and are reported as lost then.
    pub fn leave(&self, grace: Duration) {
        let wait = |longest: Duration| {
            let running = self.inner.running();
            let waited = self.inner.ended.wait_timeout_while(running, longest, |running| !running.is_empty());
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        };
        wait(grace);
        for stop in self.inner.running().values() {
            stop.send_replace(Stop::Leave);
        }
        wait(Duration::from_secs(1));
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // It may be dropped where nobody may wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Inner {
    fn running(&self) -> MutexGuard<'_, HashMap<AttemptId, watch::Sender<Stop>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the commands of described tools run.
    fn place(&self, attempt: &AttemptId, more: &str, leave: &Leave) -> stdio::Place {
        stdio::Place::new(&self.shell, &self.home, attempt, (more, Author::Tool), leave)
    }

    pub(super) async fn perform(&self, call: &Call, session: &Session, attempt: &AttemptId) -> Outcome {
        let place = self.place(attempt, "", &call.leave);
        self.tools.perform(call, session, Some(&place)).await
    }

    pub(super) async fn probe(&self, call: &Call, session: &Session, attempt: &AttemptId, n: usize) -> Seen {
        let place = self.place(attempt, &format!("probe{n}"), &call.leave);
        let seen = self.tools.probe(call, session, Some(&place));
        let late = || Seen::Unsure("the other side did not answer in time".to_owned());
        tokio::time::timeout(ASK_TIME_MAX, seen).await.unwrap_or_else(|_| late())
    }

    async fn carry_out(&self, leave: Leave, job: Job, mut stopped: watch::Receiver<Stop>) -> Finished {
        let session = job.session(&self.secrets);
        let call = match call_of(&job, &session, leave) {
            Ok(call) => call,
            Err(trouble) => return failed(&job, &session, &trouble, true),
        };
        let limit = call.timeout;
        let performed = tokio::time::timeout(limit, self.perform(&call, &session, &job.id));
        tokio::pin!(performed);
        let outcome = tokio::select! {
            outcome = &mut performed => outcome,
            stop = stop_of(&mut stopped, job.semantics.is_some()) => match stop {
                // A write under way is better known than broken off: it has the time that is left.
                Stop::Cancel(grace) => match tokio::time::timeout(grace, &mut performed).await {
                    Ok(outcome) => outcome,
                    Err(_) => return Finished::of(Report::Stopped),
                },
                Stop::No | Stop::Leave => return Finished::of(Report::Lost { last_seen: None }),
            },
        };
        let outcome = outcome.unwrap_or_else(|_| {
            let message = format!("{} took longer than {limit:?}", call.tool);
            Err(Trouble { code: Code::TimedOut, ..Trouble::unanswered(message) })
        });
        match outcome {
            Ok(success) => succeeded(&job, &session, &call, success),
            Err(trouble) => self.troubled(&job, &session, &call, &trouble).await,
        }
    }

    /// What a call comes to that did not succeed.
    async fn troubled(&self, job: &Job, session: &Session, call: &Call, trouble: &Trouble) -> Finished {
        let asks = job.semantics == Some(Semantics::Reconcile) && trouble.status.is_some();
        if trouble.happened == Happened::Unknown && asks && job.own_read {
            match self.probe(call, session, &job.id, 0).await {
                Seen::There(success) => return succeeded(job, session, call, success),
                Seen::Absent => return failed(job, session, trouble, true),
                Seen::Unsure(_) => {}
            }
        }
        failed(job, session, trouble, trouble.happened == Happened::No)
    }
}

/// Waits until an attempt is asked to end. One that only reads is broken off at once.
async fn stop_of(stopped: &mut watch::Receiver<Stop>, writes: bool) -> Stop {
    match stopped.wait_for(|stop| *stop != Stop::No).await.map(|stop| *stop) {
        Ok(Stop::Cancel(_)) if !writes => Stop::Cancel(Duration::ZERO),
        Ok(stop) => stop,
        // Nobody can ask any more; the call goes on.
        Err(_) => std::future::pending().await,
    }
}

/// The call of a job, with its secrets in it.
pub(super) fn call_of(job: &Job, session: &Session, leave: Leave) -> Result<Call, Trouble> {
    let (fields, secret_places) = session.resolve(&job.with, &job.action.fields)?;
    let Value::Object(fields) = fields else { return Err(Trouble::input("the fields are not a map")) };
    let usual = if job.action.tool.as_str() == "model" { MODEL_TIME_MAX } else { TIME_MAX };
    Ok(Call {
        tool: job.action.tool.to_string(),
        operation: job.action.operation.to_string(),
        target: job.action.target.to_string(),
        fields,
        secret_places,
        key: job.key.to_string(),
        attempt: job.attempt,
        timeout: job.timeout.unwrap_or(usual),
        leave,
    })
}

fn succeeded(job: &Job, session: &Session, call: &Call, success: Success) -> Finished {
    let receipt = receipted(job, session, call, &success);
    let output = receipt.response.clone();
    let receipt = job.semantics.map(|_| Box::new(receipt));
    Finished { receipt, costs: success.costs, ..Finished::of(Report::Done { output, exit_code: None }) }
}

/// The receipt of an effect that is there.
pub(super) fn receipted(job: &Job, session: &Session, call: &Call, success: &Success) -> Receipted {
    let mut reverse = success.reverse.clone();
    // Who takes it back uses the credential that it was done with. Only a reference to it is kept.
    if let (Some(reverse), Template::Map(with)) = (&mut reverse, &job.with)
        && let (Some(Template::Secret(name)), true) = (with.get("token"), call.is_secret("token"))
        && let Some(fields) = reverse.fields.as_object_mut()
    {
        fields.insert("token".to_owned(), secret_reference(name));
    }
    if let Some(reverse) = &mut reverse {
        reverse.fields = session.mask_value(&reverse.fields);
    }
    Receipted {
        id: ReceiptId(fresh()),
        status: receipt::Outcome::Succeeded,
        reversible: reverse.is_some(),
        reverse,
        request: Some(request(job, session)),
        response: Some(session.mask_value(&success.output)),
    }
}

/// What was asked: as it was decided about, with references where secrets were.
fn request(job: &Job, session: &Session) -> Value {
    let mut request = json!({
        "tool": job.action.tool, "operation": job.action.operation, "target": job.action.target,
        "fields": job.action.fields, "idempotency_key": job.key, "attempt": job.attempt,
    });
    if let (Some(used), Value::Object(map)) = (session.used(), &mut request) {
        map.insert("secrets".to_owned(), used);
    }
    session.mask_value(&request)
}

/// What a failure comes to; `settled` says that the effect is known not to have happened.
fn failed(job: &Job, session: &Session, trouble: &Trouble, settled: bool) -> Finished {
    let message = session.mask(&trouble.message);
    if trouble.hands_back() {
        return Finished::of(Report::Returned { reason: Some(message) });
    }
    if trouble.lacks_room() {
        return Finished::of(room::postponed(message, job.attempt));
    }
    let failure = Failure::new(trouble.code, message.clone());
    let report = match trouble.again {
        Again::After(wait) => {
            let after = Span(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
            Report::Deferred { failure, after }
        }
        Again::Soon | Again::Never => {
            let retryable = trouble.again == Again::Soon;
            Report::Failed { failure, retryable, exit_code: None, signal: None }
        }
    };
    let receipt = (settled && job.semantics.is_some()).then(|| {
        Box::new(Receipted {
            id: ReceiptId(fresh()),
            status: receipt::Outcome::Failed,
            reversible: false,
            reverse: None,
            request: Some(request(job, session)),
            response: Some(Value::Object(Map::from_iter([(
                "error".to_owned(),
                json!({ "code": trouble.code.as_str(), "message": message }),
            )]))),
        })
    });
    Finished { receipt, ..Finished::of(report) }
}
