//! What a remote executor tells the server: the output of steps as it comes, and how they ended.
//!
//! Output goes first, so that it is there when the step is over; but no step waits long for it. A report is repeated until
//! the server has an opinion on it.

use super::{Executor, PATIENCE, PAUSE, PAUSE_MAX, passes};
use crate::attempts::escape;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use windlass_api::List;
use windlass_api::lease::{Added, Answered, Done, Failed, Item, Piece, Reason, Reports, Returned, Wrote};
use windlass_core::attempt::{Exit, Report};
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name};
use windlass_executor::shell::Source;
use windlass_executor::shell::output::{self, Follow};

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
    pub(super) report: Report,
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
    pub(super) fn begin(executor: &Arc<Executor>, id: &AttemptId, log: &Path) -> Stream {
        let (ended, end) = watch::channel(false);
        let (done, sent) = watch::channel(false);
        let sending = Sending {
            path: format!("/v1/runs/{}/steps/{}/output", id.run, escape(id.step.as_str())),
            epoch: id.epoch,
            follow: output::follow(log),
            offset: 0,
            pending: Vec::new(),
        };
        tokio::spawn(send(executor.clone(), sending, end, done));
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
    pending: Vec<Wrote>,
}

/// Sends lines as they come until the attempt has ended and nothing is left.
async fn send(
    executor: Arc<Executor>,
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
        match sending.push(&executor).await {
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
                let source = source.to_owned();
                self.pending.push(Wrote { at: line.at_ms, source, text: line.text, whole: line.whole });
            }
        }
    }

    /// Sends a part of what is pending. The error says whether to try again.
    async fn push(&mut self, executor: &Executor) -> Result<(), bool> {
        let mut len = 0;
        let fits = self.pending.iter().take_while(|line| {
            len += line.text.len() + 64;
            len <= CHUNK_LEN
        });
        let count = fits.count().max(1);
        let lines = self.pending[..count].to_vec();
        let body = Piece { epoch: self.epoch, offset: self.offset, lines };
        match executor.post::<Added>(&self.path, &body, PATIENCE).await {
            Ok(added) => {
                self.offset = added.offset;
                self.pending.drain(..count);
                if added.full { Err(false) } else { Ok(()) }
            }
            Err(failure) => Err(passes(&failure)),
        }
    }
}

/// The reports of a batch, each kind for its own address.
#[derive(Default)]
struct Told {
    done: Vec<Done>,
    failed: Vec<Failed>,
    returned: Vec<Returned>,
}

impl Told {
    fn add(&mut self, outcome: &Outcome) {
        let Item { run, step, epoch } = Item::from(&outcome.id);
        let exited = |exit: Option<&Exit>| {
            let wall = exit.and_then(|exit| exit.wall.as_ref()).map(Name::to_string);
            (exit.map(|exit| exit.code), wall)
        };
        let why = |code: &str, message: &str| {
            Some(Reason::Coded { code: Some(code.to_owned()), message: message.to_owned() })
        };
        let bare = Failed {
            run: run.clone(),
            step: step.clone(),
            epoch,
            error: None,
            retryable: false,
            exit_code: None,
            wall: None,
            signal: None,
        };
        match &outcome.report {
            Report::Done { output, exit_code } => {
                let (exit_code, wall) = exited(exit_code.as_ref());
                self.done.push(Done { run, step, epoch, output: output.clone(), exit_code, wall });
            }
            Report::Failed { failure, retryable, exit_code, signal } => {
                let (exit_code, wall) = exited(exit_code.as_ref());
                let error = why(failure.code.as_str(), &failure.message);
                let (retryable, signal) = (*retryable, *signal);
                self.failed.push(Failed { error, retryable, exit_code, wall, signal, ..bare });
            }
            // Only tools put an attempt off, and an executor elsewhere carries out commands.
            Report::Deferred { failure, .. } => {
                let error = why(failure.code.as_str(), &failure.message);
                self.failed.push(Failed { error, retryable: true, ..bare });
            }
            Report::Stopped => {
                let error = why(Code::Cancelled.as_str(), "stopped as asked");
                self.failed.push(Failed { error, ..bare });
            }
            Report::Lost { .. } => {
                let error = why(Code::OutcomeUnknown.as_str(), "the executor lost it on the way");
                self.failed.push(Failed { error, ..bare });
            }
            Report::Returned { reason } => {
                let reason = reason.clone();
                self.returned.push(Returned { run, step, epoch, reason, retry_after_ms: None });
            }
            Report::Postponed { reason, after } => {
                let (reason, retry_after_ms) = (Some(reason.clone()), Some(after.0));
                self.returned.push(Returned { run, step, epoch, reason, retry_after_ms });
            }
        }
    }
}

/// Reports ends as they come, as many at once as there are.
pub(super) async fn serve(
    executor: &Arc<Executor>,
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
            report(executor, batch, say).await;
        }
    }
}

async fn report(executor: &Executor, batch: Vec<Outcome>, say: &(impl Fn(&str) + Send + Sync)) {
    let mut told = Told::default();
    batch.iter().for_each(|outcome| told.add(outcome));
    settle(executor, "/v1/leases/complete", told.done, say).await;
    settle(executor, "/v1/leases/fail", told.failed, say).await;
    settle(executor, "/v1/leases/return", told.returned, say).await;
    {
        let mut state = executor.state();
        for outcome in &batch {
            state.running.remove(&outcome.id);
        }
    }
    executor.changed.notify_waiters();
}

/// Reports until the server has an opinion on each.
async fn settle<T: Serialize>(
    executor: &Executor,
    path: &str,
    items: Vec<T>,
    say: &(impl Fn(&str) + Send + Sync),
) {
    let (mut reports, mut pause) = (Reports { items }, PAUSE);
    while !reports.items.is_empty() {
        match executor.post::<List<Answered>>(path, &reports, PATIENCE).await {
            Ok(answer) => {
                let mut left = Vec::new();
                for (item, answer) in reports.items.drain(..).zip(&answer.items) {
                    match answer.code {
                        None => {}
                        Some(Code::StoreFull) => left.push(item),
                        Some(code) => {
                            let (run, step) = (&answer.run, &answer.step);
                            say(&format!("the report on \"{step}\" of \"{run}\" was refused: {code}"));
                        }
                    }
                }
                reports.items = left;
                if reports.items.is_empty() {
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
