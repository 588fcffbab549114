//! What a schedule's decisions are made of: the facts about its slots, and the runs that a due one cancels.

use super::{Held, Overlap, Schedule, Settings, SkipReason};
use crate::event::{ScheduleCreated, ScheduleFired, ScheduleQueued, ScheduleSkipped};
use crate::follow::Follow;
use crate::id::Name;
use crate::machine::Decision;
use crate::time::Millis;
use alloc::string::ToString;

/// Why a run of the schedule is cancelled that is under way when the next slot is due.
pub(crate) const NEXT_IS_DUE: &str = "the schedule's next slot is due";

impl Schedule {
    pub(super) fn fire_held(&self, decision: Decision, next_at: Option<Millis>) -> Decision {
        match self.held.front() {
            Some(held) => self.fire(decision, held.clone(), next_at),
            None => decision,
        }
    }

    pub(super) fn fire(&self, decision: Decision, held: Held, next_at: Option<Millis>) -> Decision {
        let Held { slot, run, manual, asked_by } = held;
        let asked_by = Some(asked_by).filter(|names| !names.is_empty());
        decision.fact(ScheduleFired {
            schedule: self.name(),
            slot,
            pipeline_id: run,
            manual,
            next_at,
            asked_by,
        })
    }

    pub(super) fn cancel_live(&self, decision: Decision, settings: &Settings) -> Decision {
        if settings.overlap != Overlap::Cancel {
            return decision;
        }
        decision.then(self.live.iter().map(|&run| Follow::Cancel { run, reason: NEXT_IS_DUE.to_string() }))
    }

    pub(super) fn created(&self, settings: &Settings, next_at: Option<Millis>) -> ScheduleCreated {
        ScheduleCreated {
            schedule: self.name(),
            namespace: Name::clean(self.id.namespace()),
            spec: settings.spec.clone(),
            timezone: settings.timezone.clone(),
            jitter_ms: settings.jitter.0,
            catch_up: settings.catch_up,
            overlap: settings.overlap,
            pipeline: settings.pipeline.clone(),
            runbook_hash: settings.runbook_hash,
            next_at,
            vars: settings.vars.clone().into(),
            project_root: Some(settings.project_root.clone()).filter(|root| !root.is_empty()),
        }
    }

    pub(super) fn skipped(
        &self,
        slot: Millis,
        reason: SkipReason,
        next_at: Option<Millis>,
    ) -> ScheduleSkipped {
        ScheduleSkipped { schedule: self.name(), slot, reason, next_at }
    }

    pub(super) fn queued(&self, held: Held, next_at: Option<Millis>) -> ScheduleQueued {
        let Held { slot, run, manual, asked_by } = held;
        let asked_by = Some(asked_by).filter(|names| !names.is_empty());
        ScheduleQueued { schedule: self.name(), slot, pipeline_id: run, manual, next_at, asked_by }
    }

    pub(super) fn name(&self) -> Name {
        Name::clean(self.id.name())
    }
}
