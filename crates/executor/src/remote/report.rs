//! What a remote executor tells the server: the output of steps as it comes, and how they ended.
//!
//! Output goes first, so that it is there when the step is over; but no step waits long for it. A report is repeated until
//! the server has an opinion on it.

use super::{PATIENCE, PAUSE, PAUSE_MAX, Remote, escape, passes};
use crate::shell::Source;
use crate::shell::output::{self, Follow};
use crate::tools::execute::Finished;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use windlass_core::attempt::{Exit, Report};
use windlass_core::budget::Cost;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name};

/// How often output is looked for.
const LOOK: Duration = Duration::from_millis(100);
/// How many bytes of text one request brings.
const CHUNK_LEN: usize = 256 << 10;
/// How long the rest of the output of a step that has ended is tried to be sent.
const FLUSH_WAIT: Duration = Duration::from_secs(10);
/// How many ends are reported at once.
const BATCH_MAX: usize = 100;

/// An attempt that has ended.
pub(super) struct Outcome {
    pub(super) id: AttemptId,
    pub(super) finished: Finished,
    pub(super) output: Option<Stream>,
}

/// The output of an attempt on its way to the server.
#[derive(Clone)]
pub(super) struct Stream {
    /// Tells the sender that there is no more to come.
    ended: Arc<watch::Sender<bool>>,
    /// Told by the sender when everything is sent, or given up.
    sent: watch::Receiver<bool>,
}

impl Stream {
    /// Begins to send what is written to a log.
    pub(super) fn begin(remote: &Arc<Remote>, id: &AttemptId, log: &Path) -> Stream {
        let (ended, end) = watch::channel(false);
        let (done, sent) = watch::channel(false);
        let sending = Sending {
            path: format!("/v1/runs/{}/steps/{}/output", id.run, escape(id.step.as_str())),
            epoch: id.epoch,
            follow: output::follow(log),
            offset: 0,
            pending: Vec::new(),
        };
        tokio::spawn(send(remote.clone(), sending, end, done));
        Stream { ended: Arc::new(ended), sent }
    }

    /// There is no more to come.
    pub(super) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until everything is sent, or for as long as is worth it.
    async fn flush(mut self) {
        self.end();
        let _ = tokio::time::timeout(FLUSH_WAIT, self.sent.wait_for(|sent| *sent)).await;
    }
}

struct Sending {
    path: String,
    epoch: u64,
    follow: Follow,
    /// How much the server has.
    offset: u64,
    /// Lines that were read and not sent.
    pending: Vec<Value>,
}

/// Sends lines as they come until the attempt has ended and nothing is left.
async fn send(
    remote: Arc<Remote>,
    mut sending: Sending,
    mut end: watch::Receiver<bool>,
    done: watch::Sender<bool>,
) {
    let mut pause = PAUSE;
    loop {
        // Looked at before reading: what was written before the end is read after it was seen.
        let over = *end.borrow_and_update();
        sending.read();
        if sending.pending.is_empty() {
            if over {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                gone = end.changed() => if gone.is_err() { break },
            }
            continue;
        }
        match sending.push(&remote).await {
            Ok(()) => pause = PAUSE,
            // Output without a lease, or that the server does not take, is kept here and nowhere else.
            Err(false) => break,
            Err(true) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
    done.send_replace(true);
}

impl Sending {
    fn read(&mut self) {
        if !self.pending.is_empty() {
            return;
        }
        let mut len = 0;
        while len < CHUNK_LEN {
            // A log that is not there yet has nothing in it.
            let lines = self.follow.read().unwrap_or_default();
            if lines.is_empty() {
                return;
            }
            for line in lines {
                len += line.text.len();
                let source = match line.source {
                    Source::Out => "stdout",
                    Source::Err => "stderr",
                    Source::Note => "windlass",
                };
                self.pending.push(
                    json!({ "at": line.at_ms, "source": source, "text": line.text, "whole": line.whole }),
                );
            }
        }
    }

    /// Sends a part of what is pending. The error says whether to try again.
    async fn push(&mut self, remote: &Remote) -> Result<(), bool> {
        let mut len = 0;
        let fits = self.pending.iter().take_while(|line| {
            len += line["text"].as_str().map_or(0, str::len) + 64;
            len <= CHUNK_LEN
        });
        let count = fits.count().max(1);
        let lines = &self.pending[..count];
        let body = json!({ "epoch": self.epoch, "offset": self.offset, "lines": lines });
        match remote.post(&self.path, &body, PATIENCE).await {
            Ok(answer) => {
                self.offset = answer["offset"].as_u64().unwrap_or(self.offset);
                self.pending.drain(..count);
                if answer["full"] == true { Err(false) } else { Ok(()) }
            }
            Err(failure) => Err(passes(&failure)),
        }
    }
}

fn exited(item: &mut Value, exit: Option<&Exit>) {
    item["exit_code"] = json!(exit.map(|exit| exit.code));
    item["wall"] = json!(exit.and_then(|exit| exit.wall.as_ref()).map(Name::as_str));
}

/// The address for a report, and the item as it stands there.
fn item(outcome: &Outcome) -> (&'static str, Value) {
    let mut item = json!(outcome.id);
    let fail = |item: &mut Value, code: &str, message: &str| {
        item["error"] = json!({ "code": code, "message": message });
    };
    let path = match &outcome.finished.report {
        Report::Done { output, exit_code } => {
            item["output"] = output.clone().unwrap_or(Value::Null);
            exited(&mut item, exit_code.as_ref());
            "/v1/leases/complete"
        }
        Report::Failed { failure, retryable, exit_code, signal } => {
            fail(&mut item, failure.code.as_str(), &failure.message);
            item["retryable"] = json!(retryable);
            exited(&mut item, exit_code.as_ref());
            item["signal"] = json!(signal);
            "/v1/leases/fail"
        }
        Report::Deferred { failure, after } => {
            fail(&mut item, failure.code.as_str(), &failure.message);
            item["retryable"] = json!(true);
            item["retry_after_ms"] = json!(after.0);
            "/v1/leases/fail"
        }
        Report::Stopped => {
            fail(&mut item, Code::Cancelled.as_str(), "stopped as asked");
            "/v1/leases/fail"
        }
        Report::Lost { .. } => {
            fail(&mut item, Code::OutcomeUnknown.as_str(), "the executor lost it on the way");
            "/v1/leases/fail"
        }
        Report::Returned { reason } => {
            item["reason"] = json!(reason);
            "/v1/leases/return"
        }
        Report::Postponed { reason, after } => {
            item["reason"] = json!(reason);
            item["retry_after_ms"] = json!(after.0);
            "/v1/leases/return"
        }
    };
    evidence(&mut item, &outcome.finished);
    (path, item)
}

/// What came back from the outside, and what it cost: the server puts both on record.
fn evidence(item: &mut Value, finished: &Finished) {
    if let Some(receipt) = &finished.receipt {
        item["receipt"] = json!({
            "id": receipt.id.to_string(), "status": receipt.status, "reversible": receipt.reversible,
            "reverse": receipt.reverse, "request": receipt.request, "response": receipt.response,
        });
    }
    if !finished.costs.is_empty() {
        let cost =
            |cost: &Cost| json!({ "provider": cost.provider, "model": cost.model, "total": cost.total });
        item["costs"] = finished.costs.iter().map(cost).collect();
    }
}

/// Reports ends as they come, as many at once as there are.
pub(super) async fn serve(
    remote: &Arc<Remote>,
    ended: &mut mpsc::UnboundedReceiver<Outcome>,
    say: &(impl Fn(&str) + Send + Sync),
) {
    let (ready, mut flushed) = mpsc::unbounded_channel::<Outcome>();
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            outcome = ended.recv() => {
                let Some(mut outcome) = outcome else { return };
                match outcome.output.take() {
                    None => batch.push(outcome),
                    // Others do not wait for this one's output.
                    Some(stream) => {
                        let ready = ready.clone();
                        tokio::spawn(async move {
                            stream.flush().await;
                            let _ = ready.send(outcome);
                        });
                    }
                }
            }
            outcome = flushed.recv() => batch.extend(outcome),
        }
        while batch.len() < BATCH_MAX
            && let Ok(outcome) = flushed.try_recv()
        {
            batch.push(outcome);
        }
        if !batch.is_empty() {
            report(remote, batch, say).await;
        }
    }
}

async fn report(remote: &Remote, batch: Vec<Outcome>, say: &(impl Fn(&str) + Send + Sync)) {
    for path in ["/v1/leases/complete", "/v1/leases/fail", "/v1/leases/return"] {
        let items: Vec<Value> =
            batch.iter().map(item).filter(|(to, _)| *to == path).map(|(_, i)| i).collect();
        if !items.is_empty() {
            settle(remote, path, items, say).await;
        }
    }
    {
        let mut state = remote.state();
        for outcome in &batch {
            state.running.remove(&outcome.id);
        }
    }
    remote.changed.notify_waiters();
}

/// Reports until the server has an opinion on each.
async fn settle(remote: &Remote, path: &str, mut items: Vec<Value>, say: &(impl Fn(&str) + Send + Sync)) {
    let mut pause = PAUSE;
    while !items.is_empty() {
        match remote.post(path, &json!({ "items": items }), PATIENCE).await {
            Ok(answer) => {
                let answers = answer["items"].as_array().cloned().unwrap_or_default();
                let again = |answer: &Value| answer["code"] == Code::StoreFull.as_str();
                let mut left = Vec::new();
                for (item, answer) in items.drain(..).zip(&answers) {
                    if again(answer) {
                        left.push(item);
                    } else if let Some(code) = answer["code"].as_str() {
                        let (run, step) = (&item["run"], &item["step"]);
                        say(&format!("the report on {step} of {run} was refused: {code}"));
                    }
                }
                items = left;
                if items.is_empty() {
                    return;
                }
            }
            Err(failure) if passes(&failure) => {}
            Err(failure) => return say(&format!("a report was refused: {failure}")),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
