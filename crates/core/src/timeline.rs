//! The timeline of a run: what each step did at any time, folded from the run's records.
//!
//! ```text
//!   record ─▶ Run::fold ─▶ the steps that moved ─▶ the stretch that was open is closed, the next one opens
//! ```
//!
//! A row is a step, and its stretches follow each other without a gap from when it was reached to when it ended. What a
//! stretch is follows from the state that the step is in, not from the record that led there, so the picture cannot
//! disagree with the machine. The first row is the run itself.

use crate::event::Event;
use crate::event::words::step::{GroupKind, Status, Wait};
use crate::id::{Name, RunId, StepId};
use crate::origin::Section;
use crate::record::Record;
use crate::run::{self, Run};
use crate::step::Step;
use crate::time::Millis;
use crate::word::words;
use alloc::vec::Vec;

/// The most stretches of one row. Further ones are counted and left out.
pub const STRETCHES_MAX: usize = 1_000;
/// The most marks of one timeline. Further ones are counted and left out.
pub const MARKS_MAX: usize = 1_000;

words! {
    /// What a step, or a run, does for a while.
    Activity {
        /// The run was made and has not begun.
        Pending = "pending",
        /// The run waits for other runs, for its lock or for room under a cap.
        Blocked = "blocked",
        /// The run, or a group: its steps are under way.
        Group = "group",
        /// Nothing of the run is leased until somebody resumes it.
        Suspended = "suspended",
        /// The step can be leased, and nobody has it yet.
        Ready = "ready",
        /// An executor has it.
        Attempt = "attempt",
        /// A called run is under way.
        Run = "run",
        /// It waits for a human.
        Approval = "approval",
        /// It waits for policy.
        Policy = "policy",
        /// It waits for a lock.
        Lock = "lock",
        /// It waits for slots of a semaphore.
        Slot = "slot",
        /// It waits for its guards.
        Guard = "guard",
        /// It waits for an event.
        Event = "event",
        /// It waits for a time.
        Timer = "timer",
        /// It waits for more budget.
        Budget = "budget",
        /// It waits for a human who looks at its agent.
        Escalation = "escalation",
        /// Its last attempt failed, and the next one is not due yet.
        Backoff = "backoff",
        /// Nobody knows whether its effect happened.
        Unknown = "unknown",
        /// It waits for room where it is carried out.
        Executor = "executor",
    }
}

words! {
    /// How an attempt ended.
    Ended {
        /// It did what it is for.
        Done = "done",
        /// It failed.
        Failed = "failed",
        /// It was stopped.
        Cancelled = "cancelled",
        /// Its executor was not heard of any more.
        Lost = "lost",
        /// Its executor handed it back.
        Returned = "returned",
        /// Nobody knows.
        Unknown = "unknown",
        /// It goes on after a wait.
        Waits = "waits",
    }
}

/// One thing for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// What.
    pub activity: Activity,
    /// Since when.
    pub from: Millis,
    /// Until when; absent while it lasts.
    pub to: Option<Millis>,
    /// The attempt that it belongs to, or comes before.
    pub attempt: u32,
    /// The epoch of that attempt.
    pub epoch: u64,
    /// The version of the run's record that it began with.
    pub ver: u64,
    /// What it waits for: a lock, a semaphore, an event.
    pub on: Option<Name>,
    /// When it ends by itself: a timer, a back-off, an approval that expires.
    pub until: Option<Millis>,
    /// How it ended, where it is an attempt.
    pub ended: Option<Ended>,
    /// When the executor of a lost attempt was last heard of: what follows up to the end is not known to be work.
    pub last_seen: Option<Millis>,
}

/// One step, or the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The step; absent in the row of the run.
    pub step: Option<StepId>,
    /// The row of the group around it.
    pub parent: Option<usize>,
    /// The section it belongs to.
    pub section: Section,
    /// What carries it out.
    pub tool: Option<Name>,
    /// How it runs its members, where it is a group.
    pub group: Option<GroupKind>,
    /// Which item of its `foreach` it is for.
    pub item: Option<u32>,
    /// The row of the step whose effect it takes back.
    pub compensates: Option<usize>,
    /// Where the step is; absent in the row of the run.
    pub status: Option<Status>,
    /// What it did, in the order of time.
    pub stretches: Vec<Stretch>,
    /// How many further stretches were left out.
    pub left_out: u32,
}

/// Something that happened at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// When.
    pub at: Millis,
    /// The version of its record.
    pub ver: u64,
    /// The tag of its record.
    pub tag: &'static str,
    /// The step that it is about.
    pub step: Option<StepId>,
}

/// The timeline of one run.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The run, then its steps in the order in which they were reached.
    pub rows: Vec<Row>,
    /// What happened at one moment.
    pub marks: Vec<Mark>,
    /// How many further marks were left out.
    pub marks_left_out: u32,
    /// The version of the last record that was seen.
    pub ver: u64,
    run: Option<Run>,
    /// The rows whose last stretch is open.
    open: Vec<usize>,
}

impl Timeline {
    /// The timeline of no records.
    #[must_use]
    pub fn new() -> Timeline {
        Timeline::default()
    }

    /// The run, as it is after the records that were seen.
    #[must_use]
    pub fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// The run's id.
    #[must_use]
    pub fn id(&self) -> Option<RunId> {
        self.run.as_ref().map(Run::id)
    }

    /// Takes the next record of the run. Records come in the order of their versions; others are passed over.
    pub fn see(&mut self, record: &Record) {
        debug_assert!(record.ver > self.ver, "records come in their order");
        let (event, at) = (&record.event, record.at);
        let mut first = self.rows.len();
        match (&mut self.run, event) {
            (None, Event::PipelineCreated(e)) => {
                self.run = Some(Run::create(e, &record.tenant, at));
                self.rows.push(Row::of_run());
                first = 0;
            }
            (Some(run), event) => run.fold(event, at),
            // tidy: what comes before a run's creation is not of the run.
            (None, _) => return,
        }
        self.ver = record.ver;
        self.mark(record);
        let Some(run) = self.run.take() else { return };
        let moment = Moment { at, ver: record.ver };
        // The first row is the run's.
        for step in run.steps.get(self.rows.len() - 1..).unwrap_or_default() {
            self.rows.push(Row::of_step(step));
        }
        let mut open = core::mem::take(&mut self.open);
        open.extend(first..self.rows.len());
        open.retain(|row| self.look(&run, *row, moment));
        self.open = open;
        self.run = Some(run);
    }

    /// Brings a row up to where its step is. Says whether it can move again.
    fn look(&mut self, run: &Run, index: usize, moment: Moment) -> bool {
        let Some(row) = self.rows.get_mut(index) else { return false };
        match index.checked_sub(1) {
            None => {
                row.turn_to(&Now::of_run(run), moment);
                !run.is_terminal()
            }
            Some(place) => {
                let Some(step) = run.steps.get(place) else { return false };
                row.status = Some(step.status);
                row.group = step.group.as_ref().map(|group| group.shape.kind);
                row.turn_to(&Now::of_step(step), moment);
                !step.status.is_terminal()
            }
        }
    }

    fn mark(&mut self, record: &Record) {
        let step = match &record.event {
            Event::SignalReceived(_)
            | Event::PipelineSuspended(_)
            | Event::PipelineResumed(_)
            | Event::PipelineCancelling(_)
            | Event::PipelineUpdated(_)
            | Event::PipelineEntered(_)
            | Event::PipelineOrphaned(_)
            | Event::BudgetRaised(_) => None,
            Event::CheckpointSaved(e) => e.step.clone(),
            Event::SignalConsumed(e) => Some(e.step.clone()),
            Event::ApprovalDecided(e) => Some(e.step.clone()),
            Event::ApprovalCancelled(e) => Some(e.step.clone()),
            Event::StrategyFallback(e) => Some(e.step.clone()),
            Event::StepOutputLost(e) => Some(e.step.clone()),
            // tidy: everything else shows in the rows, or is of no interest to who looks at a picture.
            _ => return,
        };
        if self.marks.len() == MARKS_MAX {
            self.marks_left_out += 1;
            return;
        }
        self.marks.push(Mark { at: record.at, ver: record.ver, tag: record.event.tag(), step });
    }
}

/// When something became so.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: Millis,
    ver: u64,
}

/// What a row does now: nothing any more where the activity is absent.
struct Now<'a> {
    activity: Option<Activity>,
    attempt: u32,
    epoch: u64,
    on: Option<&'a Name>,
    until: Option<Millis>,
    /// How an attempt that was open has ended.
    ended: Ended,
    last_seen: Option<Millis>,
}

impl Now<'_> {
    fn of_run(run: &Run) -> Now<'_> {
        let activity = match run.status() {
            run::Status::Pending => Some(Activity::Pending),
            run::Status::Blocked => Some(Activity::Blocked),
            run::Status::Running
            | run::Status::AwaitingApproval
            | run::Status::WaitingExternal
            | run::Status::FailedRetryable => {
                Some(if run.suspended { Activity::Suspended } else { Activity::Group })
            }
            run::Status::Completed | run::Status::Failed | run::Status::Cancelled => None,
        };
        Now { activity, attempt: 0, epoch: 0, on: None, until: None, ended: Ended::Done, last_seen: None }
    }

    fn of_step(step: &Step) -> Now<'_> {
        let waiting = step.waiting.as_deref();
        let waits = waiting.map(|waiting| activity_of(waiting.reason));
        let lost = step.lost_at.is_some();
        let (activity, ended) = match step.status {
            Status::Pending => (None, Ended::Returned),
            Status::Ready => (Some(Activity::Ready), if lost { Ended::Lost } else { Ended::Returned }),
            Status::Running if step.group.is_some() => (Some(Activity::Group), Ended::Waits),
            Status::Running if step.child().is_some() => (Some(Activity::Run), Ended::Waits),
            Status::Running => (Some(Activity::Attempt), Ended::Waits),
            Status::WaitingApproval => (waits.or(Some(Activity::Approval)), Ended::Waits),
            Status::WaitingExternal => (waits.or(Some(Activity::Event)), Ended::Waits),
            Status::FailedRetryable => (Some(Activity::Backoff), Ended::Failed),
            Status::OutcomeUnknown => (Some(Activity::Unknown), Ended::Unknown),
            Status::Succeeded => (None, Ended::Done),
            Status::Skipped => (None, Ended::Cancelled),
            Status::Failed => (None, Ended::Failed),
            Status::Cancelled => (None, Ended::Cancelled),
        };
        let until = match step.status {
            Status::FailedRetryable => step.next_eligible_at,
            Status::Running => step.timeout_at,
            Status::WaitingApproval | Status::WaitingExternal => waiting.and_then(|waiting| waiting.until),
            Status::Pending
            | Status::Ready
            | Status::OutcomeUnknown
            | Status::Succeeded
            | Status::Skipped
            | Status::Failed
            | Status::Cancelled => None,
        };
        let on = waiting.and_then(|waiting| waiting.on.as_ref());
        let last_seen = step.lost_at;
        Now { activity, attempt: step.attempt, epoch: step.epoch, on, until, ended, last_seen }
    }
}

fn activity_of(wait: Wait) -> Activity {
    match wait {
        Wait::Approval => Activity::Approval,
        Wait::Policy => Activity::Policy,
        Wait::Lock => Activity::Lock,
        Wait::Semaphore => Activity::Slot,
        Wait::Guard | Wait::GuardAfter => Activity::Guard,
        Wait::Event => Activity::Event,
        Wait::Timer => Activity::Timer,
        Wait::Budget => Activity::Budget,
        Wait::Escalation => Activity::Escalation,
        Wait::Backoff => Activity::Backoff,
        Wait::Outcome => Activity::Unknown,
        Wait::Executor => Activity::Executor,
    }
}

impl Row {
    fn of_run() -> Row {
        Row {
            step: None,
            parent: None,
            section: Section::Main,
            tool: None,
            group: None,
            item: None,
            compensates: None,
            status: None,
            stretches: Vec::new(),
            left_out: 0,
        }
    }

    fn of_step(step: &Step) -> Row {
        // The run has the first row.
        let row = |place: u32| place as usize + 1;
        Row {
            step: Some(step.id.clone()),
            parent: Some(step.parent.map_or(0, row)),
            section: step.section,
            tool: Some(step.tool.clone()),
            group: step.group.as_ref().map(|group| group.shape.kind),
            item: step.item,
            compensates: step.compensates.map(row),
            status: Some(step.status),
            stretches: Vec::new(),
            left_out: 0,
        }
    }

    /// Closes the open stretch where the row does something else now, and opens the next.
    fn turn_to(&mut self, now: &Now<'_>, Moment { at, ver }: Moment) {
        if let Some(last) = self.stretches.last_mut().filter(|last| last.to.is_none()) {
            let same = now.activity == Some(last.activity)
                && last.on.as_ref() == now.on
                && (last.activity != Activity::Attempt || last.epoch == now.epoch);
            if same {
                last.until = now.until;
                return;
            }
            last.to = Some(at);
            if matches!(last.activity, Activity::Attempt | Activity::Run) {
                last.ended = Some(now.ended);
                let lost = matches!(now.ended, Ended::Lost | Ended::Unknown);
                last.last_seen = now.last_seen.filter(|seen| lost && *seen < at);
            }
        }
        let Some(activity) = now.activity else { return };
        if self.stretches.len() == STRETCHES_MAX {
            self.left_out += 1;
            return;
        }
        self.stretches.push(Stretch {
            activity,
            from: at,
            to: None,
            attempt: now.attempt,
            epoch: now.epoch,
            ver,
            on: now.on.cloned(),
            until: now.until,
            ended: None,
            last_seen: None,
        });
    }
}
