//! What is outstanding: computed from the state after a crash, not remembered.
//!
//! An effect was released when a fact was committed; it is outstanding until another fact says what came of it. So
//! both can be read off the state: a step that waits for policy has a question open, and one that does not, has none.
//!
//! | the state says | outstanding |
//! |---|---|
//! | a step waits for policy | the question, once for all who share the answer |
//! | a step waits for its guards, and no time to ask again is set | what they need |
//! | nobody knows an outcome, and the other side can be asked | the probe |
//! | an attempt runs in what is being stopped | the stop |
//! | an approval is open | showing it, under its id, so that showing it twice is showing it once |
//! | a card does not show how its approval stands | showing it as it stands, also after the run's end |
//! | a message was asked for and not sent | the message |
//! | a directory is to be made or removed | that |
//! | a session lives and works for nobody | its end |
//! | an item of an external queue is claimed for a run that is not made | taking it there |
//!
//! An attempt under way is not among them: its lease was the permission, it is given once, and whoever lost it has
//! it reported as lost. What waits for a time is not either: the clock comes back by itself. What follows inside and
//! did not fit into a bounded turn is [`State::left_over`].

mod left;

use crate::approval::{self, Approval};
use crate::attempt;
use crate::effect::{Effect, Notice};
use crate::gate;
use crate::id::NoticeId;
use crate::run::{Run, Section, Wanted};
use crate::runbook::{Pipeline, Runbook};
use crate::step::{FailFast, Status, Step, Wait};
use crate::stream::StreamId;
use crate::task;
use crate::turn::state::{Body, State};
use crate::workspace::session::{self, Session};
use alloc::vec::Vec;

/// What a run still needs from the outside.
#[must_use]
pub fn of_run(run: &Run, runbook: &Runbook) -> Vec<Effect> {
    let mut out: Vec<Effect> =
        run.rare().notices.iter().filter_map(|(id, wanted)| message(run, *id, wanted)).collect();
    let open = |approval: &Approval| approval.status == approval::Status::Requested && !run.is_terminal();
    for approval in run.rare().approvals.values() {
        if open(approval) || approval.shown.iter().any(|shown| approval.is_behind(shown)) {
            out.push(Effect::ShowApproval { approval: approval.id, run: run.id(), reminder: false });
        }
    }
    let def = runbook.pipelines.get(&run.born.home.pipeline);
    let Some(def) = def.filter(|_| !run.is_terminal()) else { return out };
    for step in run.live() {
        out.extend(of_step(run, def, step));
    }
    out
}

fn of_step(run: &Run, def: &Pipeline, step: &Step) -> Option<Effect> {
    let node = def.node(step.node)?;
    if step.status == Status::Running && step.lease.is_some() && step.child().is_none() {
        return is_stopped(run, step).then(|| gate::stop_attempt(run, step));
    }
    let waiting = step.waiting.as_ref()?;
    match waiting.reason {
        Wait::Policy => {
            let mut before = run.live().take_while(|other| other.id != step.id);
            let asked = before.any(|other| gate::waits_for_policy(other) && gate::shares_policy(other, step));
            (!asked).then(|| gate::evaluate_policy(run, node, step))
        }
        Wait::Guard | Wait::GuardAfter if waiting.until.is_none() => {
            let after = waiting.reason == Wait::GuardAfter;
            Some(Effect::GatherGuard { run: run.id(), step: step.id.clone(), node: step.node, after })
        }
        Wait::Outcome if waiting.on.is_some() => {
            let key = attempt::key(run, node, step);
            Some(Effect::Probe { run: run.id(), step: step.id.clone(), epoch: step.epoch, key })
        }
        // Humans were told by an approval or a message, locks and slots are inside, the rest waits for a time or for
        // an event that comes by itself.
        Wait::Guard
        | Wait::GuardAfter
        | Wait::Outcome
        | Wait::Approval
        | Wait::Lock
        | Wait::Semaphore
        | Wait::Event
        | Wait::Timer
        | Wait::Budget
        | Wait::Escalation
        | Wait::Executor
        | Wait::Backoff => None,
    }
}

/// Whether what runs here was told to stop: its run is being stopped, or a group around it that kills.
fn is_stopped(run: &Run, step: &Step) -> bool {
    let forward = matches!(step.section, Section::Main | Section::OnFailure);
    let mut around = step.parent.and_then(|place| run.at(place));
    let mut killed = false;
    while let Some(parent) = around {
        let kills = |group: crate::step::Group| group.failed > 0 && group.shape.fail_fast == FailFast::Kill;
        killed |= parent.group.is_some_and(kills);
        around = parent.parent.and_then(|place| run.at(place));
    }
    killed || run.stopping.is_some() && forward
}

/// The effect behind a message that was asked for.
fn message(run: &Run, notice: NoticeId, wanted: &Wanted) -> Option<Effect> {
    let session =
        || wanted.step.as_ref().and_then(|step| run.rare().tasks.get(step)).and_then(|task| task.session);
    match wanted.kind {
        Notice::Notify | Notice::Escalation | Notice::Approval | Notice::Failed => Some(Effect::Notify {
            notice,
            title: crate::notice::title(wanted.kind, wanted.step.as_ref()),
            message: wanted.message.clone(),
            sound: true,
        }),
        Notice::Nudge => Some(Effect::Nudge { session: session()?, notice: Some(notice) }),
        Notice::Send => {
            let (session, input) = (session()?, wanted.message.clone());
            Some(Effect::Send { session, input, notice: Some(notice) })
        }
        // An open approval stands for itself, and people are reminded of it where its card is.
        Notice::Reminder => None,
    }
}

impl State {
    /// What the outside still has to do, over all streams.
    #[must_use]
    pub fn outstanding(&self) -> Vec<Effect> {
        let mut out = Vec::new();
        for (_, stream) in self.streams() {
            match &stream.body {
                Body::Run(run) => {
                    if let Some(runbook) = self.runbook(&run.born.home.runbook) {
                        out.extend(of_run(run, runbook));
                    }
                }
                Body::Workspace(workspace) => out.extend(workspace.outstanding()),
                Body::Session(session) => {
                    if self.is_stray(session) {
                        out.push(Effect::Kill { session: session.id });
                    }
                }
                Body::Worker(worker) => out.extend(self.to_be_taken(worker)),
                Body::Queue(_)
                | Body::Item(_)
                | Body::Lock(_)
                | Body::Semaphore(_)
                | Body::Schedule(_)
                | Body::Trigger(_)
                | Body::Effect(_)
                | Body::Runbook(_)
                | Body::Deployment(_)
                | Body::Tenant(_)
                | Body::Tokens(_)
                | Body::System(_)
                | Body::Signal(_)
                | Body::Retired(_) => {}
            }
        }
        out
    }

    /// Whether a session lives and nobody works in it: neither its task, nor the attempt whose task is about to
    /// start there.
    fn is_stray(&self, session: &Session) -> bool {
        let session::State::Live(owner) = &session.state else { return false };
        let Some(run) = self.run(owner.run).filter(|run| !run.is_terminal()) else { return true };
        let Some(step) = run.step(&owner.step).filter(|step| !step.status.is_terminal()) else { return true };
        let task = run.rare().tasks.get(&owner.step);
        let at_work = task.is_some_and(|task| {
            task.session == Some(session.id) && !matches!(task.state, task::State::Done { .. })
        });
        !at_work && (step.status != Status::Running || step.epoch != owner.epoch)
    }

    /// A runbook by its hash.
    pub(crate) fn runbook(&self, hash: &crate::digest::Digest) -> Option<&Runbook> {
        match self.stream(&StreamId::Runbook(*hash)).map(|stream| &stream.body) {
            Some(Body::Runbook(runbook)) => Some(runbook),
            Some(_) | None => None,
        }
    }
}
