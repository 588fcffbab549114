//! Schedules: one run per slot, once.
//!
//! ```text
//!  absent ──configure──▶ active ◀──pause, resume──▶ paused
//!                          │ ▲                        │
//!                   remove ▼ │ configure      remove  ▼
//!                        removed ◀────────────────────┘
//! ```
//!
//! A slot is a time at which the spec asks for a run. The shell computes slots and their jitter; this machine
//! decides which of them become runs. Invariants: every slot fires at most once, also across restarts, because
//! slots up to `last_slot` are settled and it only grows; with overlap `skip` and `queue` at most one run is
//! under way; slots before the schedule existed or while it was paused never fire.
//!
//! `catch_up` is about slots that passed while nobody looked. With `none` the latest slot still fires when it is
//! no older than [`GRACE`] and the jitter, so that a slow start of the process does not lose a nightly run.

use crate::code::Code;
use crate::event::{
    Event, ScheduleCreated, ScheduleDeferred, SchedulePaused, ScheduleRemoved, ScheduleResumed,
    ScheduleSettled,
};
use crate::id::{Name, RunId, Scoped};
use crate::machine::{Decision, Row, table};
use crate::time::{Millis, Span};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

mod facts;
pub(crate) use facts::NEXT_IS_DUE;

/// How late a slot may be, jitter apart, and still not count as missed.
pub const GRACE: Span = Span::secs(60);
/// The most slots that are settled at once. Older ones stay for the next time.
pub const SLOTS_MAX: usize = 1_000;
/// The most slots that wait for the run before them. Further ones are skipped.
pub const HELD_MAX: usize = 100;
/// The most runs of a schedule under way at once, which only cancelled runs that do not end can reach.
pub const LIVE_MAX: usize = 100;

/// The machine's table.
pub const TABLE: &[Row] = table! {
    "absent": "configure" => "active";

    "active": "configure" => "active";
    "active": "due" => "active";
    "active": "defer" => "active";
    "active": "run_now" => "active";
    "active": "settle" => "active";
    "active": "pause" => "paused";
    "active": "resume" => "active";
    "active": "remove" => "removed";

    "paused": "configure" => "paused";
    "paused": "due" => "paused";
    "paused": "defer" => "paused";
    "paused": "run_now" => "paused";
    "paused": "settle" => "paused";
    "paused": "pause" => "paused";
    "paused": "resume" => "active";
    "paused": "remove" => "removed";

    "removed": "configure" => "active";
    "removed": "settle" => "removed";
    "removed": "remove" => "removed";
};
pub use crate::event::words::{CatchUp, Overlap, Settings, SkipReason};

/// Where a schedule stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Nobody declared it yet.
    Absent,
    /// Its slots make runs.
    Active(Settings),
    /// Its slots pass.
    Paused(Settings),
    /// The active runbook does not declare it any more. It keeps its memory in case it comes back.
    Removed,
}

/// A slot that waits for the run before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Held {
    /// When it was due.
    pub slot: Millis,
    /// The run it will make.
    pub run: RunId,
    /// Whether somebody asked for it.
    pub manual: bool,
    /// Who did. Nobody asked for a slot that the clock made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked_by: Vec<Name>,
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Its name, with tenant and namespace.
    pub id: Scoped,
    /// When the shell should look for slots: the next slot and its jitter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Millis>,
    /// Slots up to here never fire (again): the last one that was settled, or the time since which there is
    /// something to settle. Only grows.
    pub last_slot: Millis,
    /// Runs under way.
    pub live: BTreeSet<RunId>,
    /// Slots that wait, oldest first.
    pub held: VecDeque<Held>,
    /// Since when a cap keeps what is due from becoming a run. It is not missed for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deferred_at: Option<Millis>,
    /// Where it stands.
    pub state: State,
}

/// What a schedule can be told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A deployed runbook declares it.
    Configure {
        /// What it declares.
        settings: Settings,
        /// The first slot under these settings, with jitter.
        next_at: Option<Millis>,
    },
    /// `next_at` came.
    Due {
        /// The slots after `last_slot` up to now, at most [`SLOTS_MAX`].
        slots: Vec<Millis>,
        /// The next slot after those, with jitter.
        next_at: Option<Millis>,
        /// A fresh id for each slot.
        runs: Vec<RunId>,
    },
    /// A cap lets no run be made before a time.
    Defer {
        /// The time.
        until: Millis,
        /// Which cap.
        reason: String,
    },
    /// Somebody wants a run now.
    RunNow {
        /// Its id.
        run: RunId,
        /// Who counts as having asked for it. The turn says so, by who sent the command.
        asked_by: Vec<Name>,
    },
    /// A slot's run is terminal.
    Settle {
        /// Which one.
        run: RunId,
    },
    /// Make no runs.
    Pause,
    /// Make runs again.
    Resume {
        /// The next slot, with jitter.
        next_at: Option<Millis>,
    },
    /// No deployed runbook declares it any more.
    Remove,
}

/// Why a schedule refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not declared, or not any more.
    #[error("there is no schedule {0}")]
    Absent(Scoped),
    /// More slots than are settled at once.
    #[error("{0} slots at once are more than {SLOTS_MAX}")]
    TooManySlots(usize),
    /// Too few ids, or one that is in use.
    #[error("the ids for the slots' runs are too few, or one of them is in use")]
    Runs,
    /// A run is under way, and the schedule's overlap forbids another.
    #[error("a run of {0} is under way")]
    Busy(Scoped),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Absent(_) => Code::NotFound,
            Error::TooManySlots(_) | Error::Runs => Code::InvalidInput,
            Error::Busy(_) => Code::LockBusy,
        }
    }
}

/// What becomes of a slot.
enum Fate {
    Fire,
    Hold,
    Skip(SkipReason),
}

impl Schedule {
    /// A schedule of which nothing is known yet.
    #[must_use]
    pub fn new(id: Scoped) -> Schedule {
        Schedule {
            id,
            next_at: None,
            last_slot: Millis::default(),
            live: BTreeSet::new(),
            held: VecDeque::new(),
            deferred_at: None,
            state: State::Absent,
        }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Absent => "absent",
            State::Active(_) => "active",
            State::Paused(_) => "paused",
            State::Removed => "removed",
        }
    }

    /// When the schedule next wants its slots.
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        match self.state {
            State::Active(_) => self.next_at,
            State::Absent | State::Paused(_) | State::Removed => None,
        }
    }

    /// Says what an input leads to.
    ///
    /// # Errors
    /// [`Error`]: what the table does not have, and lists out of their bounds.
    pub fn decide(&self, input: &Input, at: Millis) -> Result<Decision, Error> {
        let unchanged = Ok(Decision::new());
        match (&self.state, input) {
            // The same runbook deployed again.
            (State::Active(old) | State::Paused(old), Input::Configure { settings, .. })
                if old == settings =>
            {
                unchanged
            }
            (
                State::Absent | State::Active(_) | State::Paused(_) | State::Removed,
                Input::Configure { settings, next_at },
            ) => Ok(Decision::new().fact(self.created(settings, self.first_look(settings, *next_at)))),

            (State::Active(_), Input::Defer { until, reason }) => {
                let next_at =
                    self.next_at.map_or(*until, |due| if due > at { due.min(*until) } else { *until });
                let (schedule, reason) = (self.name(), reason.clone());
                Ok(Decision::new().fact(ScheduleDeferred { schedule, next_at, reason }))
            }
            // It was paused meanwhile, and makes nothing in any case.
            (State::Paused(_), Input::Defer { .. }) => unchanged,

            (State::Active(settings), Input::Due { slots, next_at, runs }) => {
                self.settle_slots(settings, slots, *next_at, runs, at)
            }
            // It was paused while the slots were computed.
            (State::Paused(_), Input::Due { slots, next_at, .. }) => {
                let skipped = self.fresh(slots, at)?.into_iter();
                Ok(skipped.fold(Decision::new(), |decision, slot| {
                    decision.fact(self.skipped(slot, SkipReason::Paused, *next_at))
                }))
            }

            (State::Active(settings), Input::RunNow { run, asked_by }) => {
                self.run_now(settings, (*run, asked_by), true, at)
            }
            (State::Paused(settings), Input::RunNow { run, asked_by }) => {
                self.run_now(settings, (*run, asked_by), false, at)
            }

            (State::Active(_), Input::Settle { run }) => Ok(self.settle(*run, true)),
            // What waits, waits on until the schedule is resumed.
            (State::Paused(_) | State::Removed, Input::Settle { run }) => Ok(self.settle(*run, false)),

            (State::Active(_), Input::Pause) => {
                Ok(Decision::new().fact(SchedulePaused { schedule: self.name() }))
            }
            // Asked for twice.
            (State::Paused(_), Input::Pause) | (State::Active(_), Input::Resume { .. }) => unchanged,
            (State::Paused(_), Input::Resume { next_at }) => {
                let decision =
                    Decision::new().fact(ScheduleResumed { schedule: self.name(), next_at: *next_at });
                Ok(if self.live.is_empty() { self.fire_held(decision, *next_at) } else { decision })
            }

            (State::Active(_) | State::Paused(_), Input::Remove) => {
                Ok(Decision::new().fact(ScheduleRemoved { schedule: self.name() }))
            }
            (State::Removed, Input::Remove) => unchanged,

            (
                State::Absent,
                Input::Due { .. }
                | Input::Defer { .. }
                | Input::RunNow { .. }
                | Input::Settle { .. }
                | Input::Pause
                | Input::Resume { .. }
                | Input::Remove,
            )
            | (
                State::Removed,
                Input::Due { .. }
                | Input::Defer { .. }
                | Input::RunNow { .. }
                | Input::Pause
                | Input::Resume { .. },
            ) => Err(Error::Absent(self.id.clone())),
        }
    }

    /// When to look first under new settings. Where they have the same slots, one that is due already is not put off.
    fn first_look(&self, new: &Settings, next_at: Option<Millis>) -> Option<Millis> {
        if self.has_slots_of(new) { self.next_at.into_iter().chain(next_at).min() } else { next_at }
    }

    /// Whether its slots are those of other settings.
    fn has_slots_of(&self, new: &Settings) -> bool {
        match &self.state {
            State::Active(old) | State::Paused(old) => old.spec == new.spec && old.timezone == new.timezone,
            State::Absent | State::Removed => false,
        }
    }

    /// The slots that are not settled and not in the future, in order.
    fn fresh(&self, slots: &[Millis], at: Millis) -> Result<BTreeSet<Millis>, Error> {
        if slots.len() > SLOTS_MAX {
            return Err(Error::TooManySlots(slots.len()));
        }
        Ok(slots.iter().copied().filter(|&slot| slot > self.last_slot && slot <= at).collect())
    }

    fn settle_slots(
        &self,
        settings: &Settings,
        slots: &[Millis],
        next_at: Option<Millis>,
        runs: &[RunId],
        at: Millis,
    ) -> Result<Decision, Error> {
        let fresh = self.fresh(slots, at)?;
        let mut decision = Decision::new();
        // What waited for the run before and then for a cap comes first.
        let resumes = self.live.is_empty() && !self.held.is_empty();
        if resumes {
            decision = self.fire_held(decision, next_at);
        }
        let Some(&latest) = fresh.last() else {
            if resumes {
                return Ok(decision);
            }
            // Nothing to settle, but the time to look again must move on, or the schedule would be due for ever.
            let moves = next_at != self.next_at && self.next_at.is_some_and(|due| due <= at);
            let resumed = ScheduleResumed { schedule: self.name(), next_at };
            return Ok(if moves { decision.fact(resumed) } else { decision });
        };
        let mut ids = runs.iter().copied();
        let mut used = BTreeSet::new();
        let (mut busy, mut held) = (resumes || !self.live.is_empty(), self.held.len() - usize::from(resumes));
        // Of several at once, all but the last came while nobody looked, and the last one most likely too.
        let several = fresh.len() > 1;
        for slot in fresh {
            let owed = settings.catch_up == CatchUp::All && (several || self.is_late(settings, slot, at));
            let fate = match self.caught_up(settings, slot, latest, at) {
                true => self.fate(settings.overlap, slot == latest, owed, busy, held),
                false => Fate::Skip(SkipReason::Missed),
            };
            if let Fate::Skip(reason) = fate {
                decision = decision.fact(self.skipped(slot, reason, next_at));
                continue;
            }
            let run = ids.next().filter(|run| !self.knows(*run) && used.insert(*run)).ok_or(Error::Runs)?;
            let queued = Held { slot, run, manual: false, asked_by: Vec::new() };
            if let Fate::Hold = fate {
                held += 1;
                decision = decision.fact(self.queued(queued, next_at));
            } else {
                busy = true;
                decision = self.fire(self.cancel_live(decision, settings), queued, next_at);
            }
        }
        Ok(decision)
    }

    /// Whether a slot gets its chance, by how the schedule catches up.
    fn caught_up(&self, settings: &Settings, slot: Millis, latest: Millis, at: Millis) -> bool {
        match settings.catch_up {
            CatchUp::All => true,
            CatchUp::One => slot == latest,
            CatchUp::None => slot == latest && !self.is_late(settings, slot, at),
        }
    }

    /// Whether a slot is looked at too late not to count as missed. What a cap puts off is not.
    fn is_late(&self, settings: &Settings, slot: Millis, at: Millis) -> bool {
        let at = self.deferred_at.map_or(at, |since| since.min(at));
        at > slot + GRACE + settings.jitter
    }

    /// What becomes of a slot that gets its chance, by the schedule's overlap. One that is owed its run was missed and comes
    /// with others: it does not overlap with them, it waits for them.
    fn fate(&self, overlap: Overlap, is_latest: bool, owed: bool, busy: bool, held: usize) -> Fate {
        match overlap {
            Overlap::Skip | Overlap::Queue if !busy && held == 0 => Fate::Fire,
            Overlap::Skip if owed && held < HELD_MAX => Fate::Hold,
            Overlap::Queue if held < HELD_MAX => Fate::Hold,
            Overlap::Skip | Overlap::Queue => Fate::Skip(SkipReason::Overlap),
            // A run that the next slot cancels at once is not worth starting.
            Overlap::Cancel if is_latest && self.live.len() < LIVE_MAX => Fate::Fire,
            Overlap::Cancel => Fate::Skip(SkipReason::Overlap),
        }
    }

    fn run_now(
        &self,
        settings: &Settings,
        (run, asked_by): (RunId, &[Name]),
        may_wait: bool,
        at: Millis,
    ) -> Result<Decision, Error> {
        if self.knows(run) {
            return Ok(Decision::new());
        }
        let queued = Held { slot: at, run, manual: true, asked_by: asked_by.to_vec() };
        match self.fate(settings.overlap, true, false, !self.live.is_empty(), self.held.len()) {
            Fate::Fire => {
                let decision = self.cancel_live(Decision::new(), settings);
                Ok(self.fire(decision, queued, self.next_at))
            }
            Fate::Hold if may_wait => Ok(Decision::new().fact(self.queued(queued, self.next_at))),
            Fate::Hold | Fate::Skip(_) => Err(Error::Busy(self.id.clone())),
        }
    }

    fn settle(&self, run: RunId, goes_on: bool) -> Decision {
        // Told twice, or a run that was never ours.
        if !self.live.contains(&run) {
            return Decision::new();
        }
        let decision = Decision::new().fact(ScheduleSettled { schedule: self.name(), pipeline_id: run });
        if goes_on && self.live.len() == 1 { self.fire_held(decision, self.next_at) } else { decision }
    }

    /// What was declared of it, while it is there.
    #[must_use]
    pub fn settings(&self) -> Option<&Settings> {
        match &self.state {
            State::Active(settings) | State::Paused(settings) => Some(settings),
            State::Absent | State::Removed => None,
        }
    }

    fn knows(&self, run: RunId) -> bool {
        self.live.contains(&run) || self.held.iter().any(|held| held.run == run)
    }

    /// What a fact does to the schedule. Facts of other schedules and streams leave it as it is.
    #[must_use]
    pub fn apply(mut self, event: &Event, at: Millis) -> Schedule {
        match event {
            Event::ScheduleCreated(e) if e.schedule.as_str() == self.id.name() => self.configure(e, at),
            Event::ScheduleFired(e) if e.schedule.as_str() == self.id.name() => {
                self.held.retain(|held| held.run != e.pipeline_id);
                self.live.insert(e.pipeline_id);
                self.deferred_at = self.deferred_at.filter(|_| e.manual);
                self.pass(e.slot, e.manual, e.next_at);
            }
            Event::ScheduleDeferred(e) if e.schedule.as_str() == self.id.name() => {
                self.deferred_at = self.deferred_at.or(Some(at));
                self.next_at = Some(e.next_at);
            }
            Event::ScheduleQueued(e) if e.schedule.as_str() == self.id.name() => {
                let asked_by = e.asked_by.clone().unwrap_or_default();
                self.held.push_back(Held { slot: e.slot, run: e.pipeline_id, manual: e.manual, asked_by });
                self.pass(e.slot, e.manual, e.next_at);
            }
            Event::ScheduleSkipped(e) if e.schedule.as_str() == self.id.name() => {
                self.pass(e.slot, false, e.next_at);
            }
            Event::ScheduleSettled(e) if e.schedule.as_str() == self.id.name() => {
                self.live.remove(&e.pipeline_id);
            }
            Event::SchedulePaused(e) if e.schedule.as_str() == self.id.name() => {
                if let State::Active(settings) = self.state {
                    self.state = State::Paused(settings);
                }
            }
            Event::ScheduleResumed(e) if e.schedule.as_str() == self.id.name() => {
                if let State::Paused(settings) = self.state {
                    self.deferred_at = None;
                    self.state = State::Active(settings);
                    // Slots that passed during the pause do not count as missed.
                    self.last_slot = self.last_slot.max(at);
                }
                self.next_at = e.next_at;
            }
            Event::ScheduleRemoved(e) if e.schedule.as_str() == self.id.name() => {
                self.state = State::Removed;
                self.next_at = None;
                self.deferred_at = None;
                self.held.clear();
            }
            // The wide enum is narrowed here: what is not this schedule's is somebody else's.
            _ => {}
        }
        self
    }

    fn configure(&mut self, event: &ScheduleCreated, at: Millis) {
        let settings = Settings {
            spec: event.spec.clone(),
            timezone: event.timezone.clone(),
            jitter: Span(event.jitter_ms),
            catch_up: event.catch_up,
            overlap: event.overlap,
            pipeline: event.pipeline.clone(),
            runbook_hash: event.runbook_hash,
            vars: event.vars.get().unwrap_or_default(),
            project_root: event.project_root.clone().unwrap_or_default(),
        };
        if !self.has_slots_of(&settings) {
            // New slots count from here; old ones that were missed stay owed where only the rest changed.
            self.last_slot = self.last_slot.max(at);
        }
        self.next_at = event.next_at;
        self.state = match self.state {
            State::Paused(_) => State::Paused(settings),
            State::Absent | State::Active(_) | State::Removed => State::Active(settings),
        };
    }

    fn pass(&mut self, slot: Millis, manual: bool, next_at: Option<Millis>) {
        // A run by hand is no slot: the one that is due still comes.
        if !manual {
            self.last_slot = self.last_slot.max(slot);
        }
        self.next_at = next_at;
    }
}

#[cfg(test)]
mod tests;
