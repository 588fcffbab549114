//! Tasks: an attempt of a step with a live session behind it.
//!
//! ```text
//!            start            silent, idle, dead
//!  pending ─────────▶ running ─────────────────▶ stuck ──▶ nudge: stuck, restart: pending, escalate
//!     ▲                  ▲            active       │
//!     │ restart, retry   └─────────────────────────┘        running, stuck ── escalate ──▶ escalated
//!     └── under the next epoch                              everything ──▶ done: success, failed, cancelled
//! ```
//!
//! Invariants. A task succeeds because its agent says so, a gate passes or a human settles it, never because it
//! is idle. A session whose epoch is not the task's changes nothing. Recovery attempts are bounded: a nudge or a
//! restart beyond them fails the task. A session never outlives the task that it works for: whatever ends or
//! restarts a task asks for its session to be killed.
//!
//! Heartbeats are not facts. The shell keeps them ([`Beats`]) and a tick brings the last one.

use crate::code::Code;
pub use crate::event::words::{SignalKind, Stuck};
use crate::event::{Event, TaskStarted};
use crate::id::{AgentId, Holder, NoticeId, RunId, SessionId, StepId};
use crate::machine::{Beats, Decision, Row, table};
use crate::step::Resolution;
use crate::time::{Millis, Span};
use crate::word::words;
use alloc::string::String;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod facts;

words! {
    /// How a task ended.
    Outcome {
        /// Its agent said so, a gate passed, or a human called it done.
        Success = "success",
        /// It failed, or its recovery attempts are used up.
        Failed = "failed",
        /// Its step was cancelled.
        Cancelled = "cancelled",
    }
}

/// The machine's table.
pub const TABLE: &[Row] = table! {
    "pending": "start" => "running";
    "pending": "tick" => "pending";
    "pending": "cancel" => "done";

    "running": "start" => "running";
    "running": "active" => "running";
    "running": "idle" => "running" | "stuck";
    "running": "session_dead" => "stuck";
    "running": "nudge" => "running" | "done";
    "running": "restart" => "pending" | "done";
    "running": "escalate" => "escalated";
    "running": "signal_complete" => "done";
    "running": "signal_escalate" => "escalated";
    "running": "succeed" => "done";
    "running": "fail" => "done";
    "running": "cancel" => "done";
    "running": "tick" => "running" | "stuck";

    "stuck": "start" => "stuck" | "running";
    "stuck": "active" => "running";
    "stuck": "idle" => "stuck";
    "stuck": "session_dead" => "stuck";
    "stuck": "nudge" => "stuck" | "done";
    "stuck": "restart" => "pending" | "done";
    "stuck": "escalate" => "escalated";
    "stuck": "signal_complete" => "done";
    "stuck": "signal_escalate" => "escalated";
    "stuck": "succeed" => "done";
    "stuck": "fail" => "done";
    "stuck": "cancel" => "done";
    "stuck": "tick" => "stuck";

    "escalated": "active" => "escalated";
    "escalated": "idle" => "escalated";
    "escalated": "session_dead" => "escalated";
    "escalated": "escalate" => "escalated";
    "escalated": "signal_complete" => "done";
    "escalated": "signal_escalate" => "escalated";
    "escalated": "succeed" => "done";
    "escalated": "fail" => "done";
    "escalated": "cancel" => "done";
    "escalated": "resolve_done" => "done";
    "escalated": "resolve_retry" => "pending";
    "escalated": "resolve_fail" => "done";
    "escalated": "tick" => "escalated";

    "done": "signal_complete" => "done";
    "done": "succeed" => "done";
    "done": "fail" => "done";
    "done": "cancel" => "done";
    "done": "tick" => "done";
};

/// How patient a task is. The runbook's `agents` section sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Silent or idle for longer than this, it is stuck.
    pub heartbeat_timeout: Span,
    /// How many nudges and restarts it gets.
    pub max_recovery_attempts: u32,
    /// How often a sign of life is put on the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_interval: Option<Span>,
}

impl Default for Config {
    fn default() -> Self {
        Config { heartbeat_timeout: Span::mins(2), max_recovery_attempts: 3, checkpoint_interval: None }
    }
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// No session yet, or none any more. Moved on by its executor, with `Start`.
    Pending,
    /// A session works. Moved on by the agent, its gate or the clock.
    Running {
        /// Since when it runs, or runs again after it was stuck.
        started_at: Millis,
    },
    /// The session does not get on. Moved on by its own activity or by a recovery.
    Stuck {
        /// When that showed.
        detected_at: Millis,
        /// What showed.
        reason: Stuck,
    },
    /// A human has to look. Moved on by `windlass resolve`, or by an agent that finishes after all.
    Escalated,
    /// Terminal.
    Done {
        /// How it ended.
        result: Outcome,
    },
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The run it belongs to.
    pub run: RunId,
    /// The step it is an attempt of.
    pub step: StepId,
    /// Who works on it, across restarts.
    pub agent: AgentId,
    /// Where, while it has a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The fence: what comes from another epoch's session is refused.
    pub epoch: u64,
    /// How patient it is.
    pub config: Config,
    /// Nudges and restarts so far.
    pub recovery_attempts: u32,
    /// When its last sign of life was put on the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_at: Option<Millis>,
    /// Where it stands.
    pub state: State,
}

/// What a heartbeat says of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It works.
    Active,
    /// It lives, and has done nothing for so long.
    Idle(Span),
    /// It is not there any more.
    SessionDead,
}

/// What is done about a task that does not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Remind it of its work.
    Nudge {
        /// The id of the one-shot message.
        notice: NoticeId,
    },
    /// Kill the session and start again under the next epoch.
    Restart,
    /// Ask a human.
    Escalate {
        /// The id of the one-shot message.
        notice: NoticeId,
        /// What the human reads.
        message: String,
    },
}

/// What a task can be told. What a session says carries its epoch.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A session lives behind the task.
    Start {
        /// Which one.
        session: SessionId,
        /// Under which epoch.
        epoch: u64,
    },
    /// What the shell sees of the session.
    Heartbeat {
        /// The session's epoch.
        epoch: u64,
        /// What it does.
        activity: Activity,
    },
    /// What the runbook says for this case: `on_idle`, `on_dead`, `on_stuck` and so on.
    Recover {
        /// The epoch that was looked at, so that a late recovery does not hit a fresh session.
        epoch: u64,
        /// What to do.
        action: Recovery,
    },
    /// The agent speaks.
    Signal {
        /// The session's epoch.
        epoch: u64,
        /// What it says.
        kind: SignalKind,
        /// In its own words.
        message: Option<String>,
        /// The id of the one-shot message, for a signal that escalates.
        notice: NoticeId,
    },
    /// A gate passed.
    Succeed {
        /// The session's epoch.
        epoch: u64,
        /// The result.
        output: Option<Value>,
    },
    /// The attempt failed.
    Fail {
        /// The session's epoch.
        epoch: u64,
        /// Why, for programs.
        code: Code,
        /// Why, for people.
        error: String,
    },
    /// The step is cancelled.
    Cancel {
        /// Why.
        reason: Option<String>,
    },
    /// A human settles an escalation.
    Resolve {
        /// How.
        resolution: Resolution,
        /// Why.
        reason: Option<String>,
    },
    /// Time went by.
    Tick {
        /// The last heartbeat, as [`Task::last_seen`] says it.
        last_seen: Millis,
    },
}

/// Why a task refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The input comes from a session that was replaced.
    #[error("epoch {given} is not the task's, which is {current}: another session works on it")]
    Stale {
        /// The epoch that came.
        given: u64,
        /// The task's.
        current: u64,
    },
    /// Two sessions under one epoch.
    #[error("session {0} works under this epoch already")]
    OtherSession(SessionId),
    /// The table has no such row.
    #[error("a task that is {state} does not take `{input}`")]
    Invalid {
        /// Where the task stands.
        state: &'static str,
        /// What came.
        input: &'static str,
    },
    /// The task has ended.
    #[error("the task has ended ({0})")]
    Ended(Outcome),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Stale { .. } | Error::OtherSession(_) => Code::LeaseStaleEpoch,
            Error::Invalid { .. } => Code::RunInvalidTransition,
            Error::Ended(_) => Code::RunTerminalState,
        }
    }
}

impl Input {
    /// The name in the table.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Input::Start { .. } => "start",
            Input::Heartbeat { activity: Activity::Active, .. } => "active",
            Input::Heartbeat { activity: Activity::Idle(_), .. } => "idle",
            Input::Heartbeat { activity: Activity::SessionDead, .. } => "session_dead",
            Input::Recover { action: Recovery::Nudge { .. }, .. } => "nudge",
            Input::Recover { action: Recovery::Restart, .. } => "restart",
            Input::Recover { action: Recovery::Escalate { .. }, .. } => "escalate",
            Input::Signal { kind: SignalKind::Complete, .. } => "signal_complete",
            Input::Signal { kind: SignalKind::Escalate, .. } => "signal_escalate",
            Input::Succeed { .. } => "succeed",
            Input::Fail { .. } => "fail",
            Input::Cancel { .. } => "cancel",
            Input::Resolve { resolution: Resolution::Done, .. } => "resolve_done",
            Input::Resolve { resolution: Resolution::Retry, .. } => "resolve_retry",
            Input::Resolve { resolution: Resolution::Fail, .. } => "resolve_fail",
            Input::Tick { .. } => "tick",
        }
    }

    /// The epoch of the session it comes from. Humans and the clock have none; `Start` brings a new one.
    fn fence(&self) -> Option<u64> {
        match self {
            Input::Heartbeat { epoch, .. }
            | Input::Recover { epoch, .. }
            | Input::Signal { epoch, .. }
            | Input::Succeed { epoch, .. }
            | Input::Fail { epoch, .. } => Some(*epoch),
            Input::Start { .. } | Input::Cancel { .. } | Input::Resolve { .. } | Input::Tick { .. } => None,
        }
    }
}

impl Task {
    /// A task that waits for its session.
    #[must_use]
    pub fn new(run: RunId, step: StepId, agent: AgentId, epoch: u64, config: Config) -> Task {
        Task {
            run,
            step,
            agent,
            session: None,
            epoch,
            config,
            recovery_attempts: 0,
            checkpoint_at: None,
            state: State::Pending,
        }
    }

    /// The task that a first `task:started` tells of.
    #[must_use]
    pub fn started(event: &TaskStarted, at: Millis) -> Task {
        let e = event;
        Task::new(e.pipeline_id, e.step.clone(), e.agent_id, e.epoch, Config::default())
            .apply(&Event::TaskStarted(e.clone()), at)
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Pending => "pending",
            State::Running { .. } => "running",
            State::Stuck { .. } => "stuck",
            State::Escalated => "escalated",
            State::Done { .. } => "done",
        }
    }

    /// When the session was last known to live. A start, a recovery and the start of the process count as beats.
    #[must_use]
    pub fn last_seen(&self, beats: &Beats) -> Millis {
        let since = match self.state {
            State::Running { started_at } => started_at,
            State::Stuck { detected_at, .. } => detected_at,
            State::Pending | State::Escalated | State::Done { .. } => Millis::default(),
        };
        beats.last_seen(&Holder::Step(self.run, self.step.clone()), since)
    }

    /// When the task next wants a tick: its heartbeat times out, or a sign of life is due.
    #[must_use]
    pub fn due(&self, beats: &Beats) -> Option<Millis> {
        let State::Running { .. } = self.state else { return None };
        let silent = self.last_seen(beats) + self.config.heartbeat_timeout;
        Some(self.checkpoint_due().map_or(silent, |checkpoint| checkpoint.min(silent)))
    }

    fn checkpoint_due(&self) -> Option<Millis> {
        Some(self.checkpoint_at? + self.config.checkpoint_interval?)
    }

    /// Says what an input leads to.
    ///
    /// # Errors
    /// [`Error`]: what the table does not have, and what comes from another epoch.
    pub fn decide(&self, input: &Input, at: Millis) -> Result<Decision, Error> {
        if let Some(given) = input.fence().filter(|&given| given != self.epoch) {
            return Err(Error::Stale { given, current: self.epoch });
        }
        let unchanged = Ok(Decision::new());
        let invalid = || Err(Error::Invalid { state: self.state_name(), input: input.name() });
        match (&self.state, input) {
            (State::Pending, Input::Start { session, epoch }) if *epoch >= self.epoch => {
                Ok(self.start(*session, *epoch))
            }
            // A lease that moved on brings its session along, or another one: the higher epoch wins.
            (State::Running { .. } | State::Stuck { .. }, Input::Start { session, epoch })
                if *epoch > self.epoch =>
            {
                Ok(self.start(*session, *epoch))
            }
            (State::Running { .. } | State::Stuck { .. }, Input::Start { session, epoch })
                if *epoch == self.epoch =>
            {
                match self.session {
                    // The answer to the first one was lost: nothing more to do.
                    Some(current) if current == *session => unchanged,
                    Some(current) => Err(Error::OtherSession(current)),
                    None => invalid(),
                }
            }
            (State::Pending | State::Running { .. } | State::Stuck { .. }, Input::Start { epoch, .. }) => {
                Err(Error::Stale { given: *epoch, current: self.epoch })
            }
            // A human looks at the session that is there.
            (State::Escalated, Input::Start { .. }) => invalid(),

            // Nothing changes, so nothing is recorded; the shell keeps the time of the beat.
            (State::Running { .. }, Input::Heartbeat { activity: Activity::Active, .. }) => unchanged,
            (State::Running { .. }, Input::Heartbeat { activity: Activity::Idle(span), .. }) => {
                if *span > self.config.heartbeat_timeout {
                    Ok(self.stuck(Stuck::NoProgress, None, Some(*span)))
                } else {
                    unchanged
                }
            }
            (State::Running { .. }, Input::Heartbeat { activity: Activity::SessionDead, .. }) => {
                Ok(self.dead())
            }
            (State::Stuck { .. }, Input::Heartbeat { activity: Activity::Active, .. }) => {
                Ok(self.recovered())
            }
            // Idleness is what it is stuck in.
            (State::Stuck { .. }, Input::Heartbeat { activity: Activity::Idle(_), .. }) => unchanged,
            (State::Stuck { reason, .. }, Input::Heartbeat { activity: Activity::SessionDead, .. }) => {
                match reason {
                    Stuck::SessionDead => unchanged,
                    // `on_dead` may say otherwise than `on_stuck`, so this is worth a fact.
                    Stuck::NoHeartbeat | Stuck::NoProgress => Ok(self.dead()),
                }
            }
            // The human who was called decides, whatever the session does meanwhile.
            (State::Escalated, Input::Heartbeat { .. }) => unchanged,
            (State::Pending, Input::Heartbeat { .. }) => invalid(),

            (State::Running { .. } | State::Stuck { .. }, Input::Recover { action, .. }) => {
                Ok(self.recover(action))
            }
            // The human was called already.
            (State::Escalated, Input::Recover { action: Recovery::Escalate { .. }, .. }) => unchanged,
            (State::Escalated, Input::Recover { action: Recovery::Nudge { .. } | Recovery::Restart, .. }) => {
                invalid()
            }
            (State::Pending, Input::Recover { .. }) => invalid(),

            // Also after an escalation: a human helped it over the hurdle.
            (
                State::Running { .. } | State::Stuck { .. } | State::Escalated,
                Input::Signal { kind: SignalKind::Complete, message, .. },
            ) => Ok(self.complete(Decision::new().fact(self.signal(SignalKind::Complete, message)), None)),
            (
                State::Running { .. } | State::Stuck { .. },
                Input::Signal { kind: SignalKind::Escalate, message, notice, .. },
            ) => {
                let said = Decision::new().fact(self.signal(SignalKind::Escalate, message));
                Ok(self.escalate(said, *notice, message.as_deref().unwrap_or("the agent asks for a human")))
            }
            // It said so before.
            (State::Escalated, Input::Signal { kind: SignalKind::Escalate, .. }) => unchanged,
            (State::Pending, Input::Signal { .. }) => invalid(),

            (
                State::Running { .. } | State::Stuck { .. } | State::Escalated,
                Input::Succeed { output, .. },
            ) => Ok(self.complete(Decision::new(), output.clone())),
            (
                State::Running { .. } | State::Stuck { .. } | State::Escalated,
                Input::Fail { code, error, .. },
            ) => Ok(self.fail(*code, error, false)),
            (State::Pending, Input::Succeed { .. } | Input::Fail { .. }) => invalid(),

            (
                State::Pending | State::Running { .. } | State::Stuck { .. } | State::Escalated,
                Input::Cancel { reason },
            ) => Ok(self.fail(Code::Cancelled, reason.as_deref().unwrap_or("cancelled"), true)),

            (State::Escalated, Input::Resolve { resolution, reason }) => Ok(match resolution {
                Resolution::Done => self.complete(Decision::new(), None),
                // A human's retry is not one of the task's own attempts: it gets all of them again.
                Resolution::Retry => self.restart(0),
                Resolution::Fail => {
                    self.fail(Code::StepFailed, reason.as_deref().unwrap_or("given up by a human"), false)
                }
            }),
            (State::Pending | State::Running { .. } | State::Stuck { .. }, Input::Resolve { .. }) => {
                invalid()
            }

            (State::Running { started_at }, Input::Tick { last_seen }) => {
                Ok(self.tick((*last_seen).max(*started_at), at))
            }
            // A tick that was on its way when the state changed.
            (
                State::Pending | State::Stuck { .. } | State::Escalated | State::Done { .. },
                Input::Tick { .. },
            ) => unchanged,

            // The answer to the first one was lost.
            (
                State::Done { result: Outcome::Success },
                Input::Signal { kind: SignalKind::Complete, .. } | Input::Succeed { .. },
            )
            | (State::Done { result: Outcome::Failed }, Input::Fail { .. })
            | (State::Done { result: Outcome::Cancelled }, Input::Cancel { .. }) => unchanged,
            (
                State::Done { result },
                Input::Start { .. }
                | Input::Heartbeat { .. }
                | Input::Recover { .. }
                | Input::Signal { .. }
                | Input::Succeed { .. }
                | Input::Fail { .. }
                | Input::Cancel { .. }
                | Input::Resolve { .. },
            ) => Err(Error::Ended(*result)),
        }
    }

    /// What a fact does to the task. Facts of other runs, steps and kinds leave it as it is.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Task {
        match event {
            Event::TaskStarted(e) if self.is_at(e.pipeline_id, &e.step) => {
                self.epoch = e.epoch;
                self.session = Some(e.session);
                self.config = Config {
                    heartbeat_timeout: Span(e.heartbeat_timeout_ms),
                    max_recovery_attempts: e.max_recovery_attempts,
                    checkpoint_interval: e.checkpoint_interval_ms.map(Span),
                };
                self.checkpoint_at = Some(at);
                self.state = State::Running { started_at: at };
            }
            Event::TaskStuck(e) if self.is_at(e.pipeline_id, &e.step) => {
                self.state = State::Stuck { detected_at: at, reason: e.reason };
            }
            Event::TaskRecovered(e) if self.is_at(e.pipeline_id, &e.step) => {
                self.state = State::Running { started_at: at };
            }
            Event::TaskNudged(e) if self.is_at(e.pipeline_id, &e.step) => {
                self.recovery_attempts = e.recovery_attempts;
            }
            Event::TaskRestarting(e) if self.is_at(e.pipeline_id, &e.step) => {
                self.epoch = e.next_epoch;
                self.recovery_attempts = e.recovery_attempts;
                self.session = None;
                self.checkpoint_at = None;
                self.state = State::Pending;
            }
            Event::TaskEscalated(e) if self.is_at(e.pipeline_id, &e.step) => self.state = State::Escalated,
            Event::TaskCompleted(e) if self.is_at(e.pipeline_id, &e.step) => self.end(Outcome::Success),
            Event::TaskFailed(e) if self.is_at(e.pipeline_id, &e.step) => {
                self.end(if e.cancelled { Outcome::Cancelled } else { Outcome::Failed });
            }
            Event::CheckpointSaved(e) if e.step.as_ref().is_some_and(|s| self.is_at(e.pipeline_id, s)) => {
                self.checkpoint_at = self.session.map(|_| at);
            }
            // The wide enum is narrowed here: what is not a task's is somebody else's.
            _ => {}
        }
        self
    }

    fn is_at(&self, run: RunId, step: &StepId) -> bool {
        self.run == run && self.step == *step
    }

    fn end(&mut self, result: Outcome) {
        self.session = None;
        self.checkpoint_at = None;
        self.state = State::Done { result };
    }
}

#[cfg(test)]
mod tests;
