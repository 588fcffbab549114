//! What a task's decisions are made of: one function for each thing that can become of it.

use super::{Recovery, SignalKind, Stuck, Task};
use crate::code::Code;
use crate::effect::{Effect, Notice};
use crate::event::{
    AgentGone, AgentSignal, AgentWorking, CheckpointSaved, NoticeRequested, TaskCompleted, TaskEscalated,
    TaskFailed, TaskNudged, TaskRecovered, TaskRestarting, TaskStarted, TaskStuck,
};
use crate::id::{NoticeId, SessionId};
use crate::machine::Decision;
use crate::time::{Millis, Span};
use alloc::format;
use alloc::string::{String, ToString};
use serde_json::Value;

impl Task {
    pub(super) fn start(&self, session: SessionId, epoch: u64) -> Decision {
        let decision = Decision::new().fact(TaskStarted {
            pipeline_id: self.run,
            step: self.step.clone(),
            agent_id: self.agent,
            epoch,
            session,
            heartbeat_timeout_ms: self.config.heartbeat_timeout.0,
            max_recovery_attempts: self.config.max_recovery_attempts,
            checkpoint_interval_ms: self.config.checkpoint_interval.map(|span| span.0),
        });
        match self.session {
            Some(old) if old != session => decision.effect(Effect::Kill { session: old }),
            Some(_) | None => decision,
        }
    }

    pub(super) fn stuck(&self, reason: Stuck, last_seen: Option<Millis>, idle: Option<Span>) -> Decision {
        Decision::new().fact(TaskStuck {
            pipeline_id: self.run,
            step: self.step.clone(),
            epoch: self.epoch,
            reason,
            last_seen,
            idle_ms: idle.map(|span| span.0),
        })
    }

    pub(super) fn dead(&self) -> Decision {
        let mut decision = self.stuck(Stuck::SessionDead, None, None);
        let gone = AgentGone {
            agent_id: self.agent,
            pipeline_id: self.run,
            step: self.step.clone(),
            epoch: self.epoch,
        };
        decision.facts.insert(0, gone.into());
        decision
    }

    pub(super) fn recovered(&self) -> Decision {
        let (agent_id, pipeline_id, epoch) = (self.agent, self.run, self.epoch);
        Decision::new()
            .fact(AgentWorking { agent_id, pipeline_id, step: self.step.clone(), epoch })
            .fact(TaskRecovered { pipeline_id, step: self.step.clone(), epoch })
    }

    pub(super) fn recover(&self, action: &Recovery) -> Decision {
        let used_up = self.recovery_attempts >= self.config.max_recovery_attempts;
        let attempts = self.recovery_attempts.saturating_add(1);
        match action {
            Recovery::Nudge { .. } | Recovery::Restart if used_up => {
                let error = format!("stuck after {} recovery attempts", self.recovery_attempts);
                self.fail(Code::TaskStuck, &error, false)
            }
            Recovery::Nudge { notice } => self.nudge(*notice, attempts),
            Recovery::Restart => self.restart(attempts),
            Recovery::Escalate { notice, message } => self.escalate(Decision::new(), *notice, message),
        }
    }

    fn nudge(&self, notice: NoticeId, recovery_attempts: u32) -> Decision {
        let (pipeline_id, step, epoch) = (self.run, self.step.clone(), self.epoch);
        let decision = Decision::new()
            .fact(TaskNudged { pipeline_id, step, epoch, recovery_attempts })
            .fact(self.notice(notice, Notice::Nudge, "nudge"));
        match self.session {
            Some(session) => decision.effect(Effect::Nudge { session, notice: Some(notice) }),
            None => decision,
        }
    }

    pub(super) fn restart(&self, recovery_attempts: u32) -> Decision {
        self.kill(Decision::new().fact(TaskRestarting {
            pipeline_id: self.run,
            step: self.step.clone(),
            epoch: self.epoch,
            next_epoch: self.epoch.saturating_add(1),
            recovery_attempts,
            session: self.session,
        }))
    }

    pub(super) fn escalate(&self, decision: Decision, notice: NoticeId, message: &str) -> Decision {
        let (pipeline_id, step, epoch) = (self.run, self.step.clone(), self.epoch);
        let text = message.to_string();
        decision
            .fact(TaskEscalated { pipeline_id, step, epoch, message: Some(text.clone().into()) })
            .fact(self.notice(notice, Notice::Escalation, message))
            .effect(Effect::Notify {
                notice,
                title: format!("{} needs a human", self.step),
                message: text,
                sound: true,
            })
    }

    fn notice(&self, notice: NoticeId, kind: Notice, message: &str) -> NoticeRequested {
        NoticeRequested {
            notice,
            pipeline_id: self.run,
            step: Some(self.step.clone()),
            kind,
            message: message.to_string().into(),
        }
    }

    pub(super) fn signal(&self, kind: SignalKind, message: &Option<String>) -> AgentSignal {
        AgentSignal {
            agent_id: self.agent,
            kind,
            message: message.clone().map(Into::into),
            pipeline_id: self.run,
            step: self.step.clone(),
        }
    }

    pub(super) fn complete(&self, decision: Decision, output: Option<Value>) -> Decision {
        self.kill(decision.fact(TaskCompleted {
            pipeline_id: self.run,
            step: self.step.clone(),
            epoch: self.epoch,
            output: output.map(Into::into),
        }))
    }

    pub(super) fn fail(&self, code: Code, error: &str, cancelled: bool) -> Decision {
        self.kill(Decision::new().fact(TaskFailed {
            pipeline_id: self.run,
            step: self.step.clone(),
            epoch: self.epoch,
            code: code.name(),
            cancelled,
            error: error.to_string().into(),
        }))
    }

    fn kill(&self, decision: Decision) -> Decision {
        match self.session {
            Some(session) => decision.effect(Effect::Kill { session }),
            None => decision,
        }
    }

    pub(super) fn tick(&self, last_seen: Millis, at: Millis) -> Decision {
        if at >= last_seen + self.config.heartbeat_timeout {
            return self.stuck(Stuck::NoHeartbeat, Some(last_seen), None);
        }
        if self.checkpoint_due().is_none_or(|due| at < due) {
            return Decision::new();
        }
        // Without data: a sign of life, which does not replace the progress that the step itself saved.
        Decision::new().fact(CheckpointSaved {
            pipeline_id: self.run,
            step: Some(self.step.clone()),
            epoch: Some(self.epoch),
            resumable: false,
            idempotent: false,
            tokens_input: None,
            tokens_output: None,
            message: Some(format!("{} is at work", self.step).into()),
            data: None,
        })
    }
}
