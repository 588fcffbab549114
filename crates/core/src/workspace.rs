//! Workspaces: a working directory of a run, usually a git worktree. Sessions stand in [`session`].
//!
//! ```text
//!  absent ──create──▶ creating ──ready──▶ ready ──drop, end──▶ dropping ──removed──▶ deleted*
//!                        │  └────────── drop, end ───────────────▲
//!                        └──fail──▶ failed*
//! ```
//!
//! Invariants: a directory is removed only after `workspace:drop` is recorded, so what has to be removed can be
//! derived again after a crash; a directory that could not be made is cleared away and never used. What the end
//! of its run means for a directory is [`Keep::decide`].

use crate::code::Code;
use crate::effect::Effect;
pub use crate::event::words::{Keep, Mode};
use crate::event::{
    Event, WorkspaceCreated, WorkspaceDeleted, WorkspaceDrop, WorkspaceFailed, WorkspaceReady,
};
use crate::id::{RunId, WorkspaceId};
use crate::machine::{Decision, Row, table};
use crate::origin;
use crate::time::Millis;
use alloc::string::String;
use serde::{Deserialize, Serialize};

pub mod session;

impl Keep {
    /// Whether the directory stays, now that its run has this status. While the run is under way it does.
    #[must_use]
    pub fn decide(self, status: origin::Status) -> bool {
        match (self, status) {
            (Keep::Always, _) => true,
            (Keep::OnFailure, origin::Status::Completed) => false,
            (Keep::Never, origin::Status::Completed | origin::Status::Failed | origin::Status::Cancelled) => {
                false
            }
            (
                Keep::OnFailure | Keep::Never,
                origin::Status::Pending
                | origin::Status::Blocked
                | origin::Status::Running
                | origin::Status::AwaitingApproval
                | origin::Status::WaitingExternal
                | origin::Status::FailedRetryable
                | origin::Status::Failed
                | origin::Status::Cancelled,
            ) => true,
        }
    }
}

/// The most bytes a path, a branch or a reason may have.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// The machine's table.
pub const TABLE: &[Row] = table! {
    "absent": "create" => "creating";

    "creating": "create" => "creating";
    "creating": "ready" => "ready";
    "creating": "fail" => "failed";
    "creating": "drop" => "dropping";
    "creating": "end" => "creating" | "dropping";

    "ready": "create" => "ready";
    "ready": "ready" => "ready";
    "ready": "drop" => "dropping";
    "ready": "end" => "ready" | "dropping";
    "ready": "removed" => "deleted";

    "dropping": "ready" => "dropping";
    "dropping": "fail" => "dropping";
    "dropping": "drop" => "dropping";
    "dropping": "end" => "dropping";
    "dropping": "removed" => "deleted";

    "failed": "fail" => "failed";
    "failed": "end" => "failed";
    "failed": "removed" => "failed";

    "deleted": "drop" => "deleted";
    "deleted": "end" => "deleted";
    "deleted": "removed" => "deleted";
};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Where.
    pub path: String,
    /// On which branch; a worktree has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// From which commit or branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// For which run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<RunId>,
    /// How it is made.
    pub mode: Mode,
    /// When it stays.
    pub keep: Keep,
}

/// Where a workspace stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Nobody asked for it.
    Absent,
    /// Being made. Moved on by the shell.
    Creating(Spec),
    /// In use. Moved on by the end of its run, or by somebody who drops it.
    Ready(Spec),
    /// To be removed. Moved on by the shell.
    Dropping(Spec),
    /// Could not be made. Terminal.
    Failed,
    /// Gone. Terminal.
    Deleted,
}

/// A workspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    /// Its id.
    pub id: WorkspaceId,
    /// Where it stands.
    pub state: State,
}

/// What a workspace can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A run needs it.
    Create(Spec),
    /// It is there.
    Ready,
    /// It could not be made.
    Fail {
        /// Why.
        reason: String,
    },
    /// Somebody does not want it any more.
    Drop,
    /// The run that owns it has this status.
    End(origin::Status),
    /// It is gone.
    Removed,
}

/// Why a workspace refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody asked for it.
    #[error("there is no workspace {0}")]
    Absent(WorkspaceId),
    /// The id belongs to another directory.
    #[error("workspace {0} is another directory")]
    Other(WorkspaceId),
    /// The table has no such row.
    #[error("a workspace that is {0} does not take that")]
    Invalid(&'static str),
    /// It could not be made, or is gone.
    #[error("the workspace is {0} for good")]
    Ended(&'static str),
    /// A worktree without a branch, a path that is empty, a text that is too long.
    #[error("{0}")]
    Spec(&'static str),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Absent(_) => Code::NotFound,
            Error::Other(_) => Code::IdempotencyConflict,
            Error::Invalid(_) => Code::RunInvalidTransition,
            Error::Ended(_) => Code::RunTerminalState,
            Error::Spec(_) => Code::InvalidInput,
        }
    }
}

impl Spec {
    fn check(&self) -> Result<(), Error> {
        let texts = [Some(&self.path), self.branch.as_ref(), self.base.as_ref()];
        if texts.into_iter().flatten().any(|text| text.is_empty() || text.len() > TEXT_BYTES_MAX) {
            return Err(Error::Spec("a workspace's path, branch and base have 1 to 4096 bytes"));
        }
        if self.mode == Mode::Worktree && self.branch.is_none() {
            return Err(Error::Spec("a worktree needs a branch"));
        }
        Ok(())
    }
}

impl Workspace {
    /// A workspace that nobody asked for yet.
    #[must_use]
    pub fn new(id: WorkspaceId) -> Workspace {
        Workspace { id, state: State::Absent }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Absent => "absent",
            State::Creating(_) => "creating",
            State::Ready(_) => "ready",
            State::Dropping(_) => "dropping",
            State::Failed => "failed",
            State::Deleted => "deleted",
        }
    }

    /// What the shell has to do for it: asked for again after a crash.
    #[must_use]
    pub fn outstanding(&self) -> Option<Effect> {
        match &self.state {
            State::Creating(spec) => Some(self.add(spec)),
            State::Dropping(spec) => Some(self.remove(spec)),
            State::Absent | State::Ready(_) | State::Failed | State::Deleted => None,
        }
    }

    /// Says what an input leads to. Nothing here depends on the time.
    ///
    /// # Errors
    /// [`Error`]: what the table does not have, and specs out of their bounds.
    pub fn decide(&self, input: &Input, _at: Millis) -> Result<Decision, Error> {
        let unchanged = Ok(Decision::new());
        let id = self.id;
        match (&self.state, input) {
            (State::Absent, Input::Create(spec)) => {
                spec.check()?;
                Ok(Decision::new().fact(self.created(spec)).effect(self.add(spec)))
            }
            (State::Creating(old) | State::Ready(old), Input::Create(spec)) => {
                // The answer to the first one was lost.
                if old == spec { unchanged } else { Err(Error::Other(id)) }
            }
            (State::Dropping(_), Input::Create(_)) => Err(Error::Invalid(self.state_name())),

            (State::Creating(_), Input::Ready) => Ok(Decision::new().fact(WorkspaceReady { id })),
            // Told twice, or dropped while it was made.
            (State::Ready(_) | State::Dropping(_), Input::Ready) => unchanged,

            // What was made of it is cleared away.
            (State::Creating(spec), Input::Fail { reason }) => {
                let reason = shorten(reason);
                Ok(Decision::new().fact(WorkspaceFailed { id, reason }).effect(self.remove(spec)))
            }
            (State::Ready(_), Input::Fail { .. }) => Err(Error::Invalid(self.state_name())),
            // It could not be removed now; it stays on the list of what has to be.
            (State::Dropping(_), Input::Fail { .. }) => unchanged,

            (State::Creating(spec) | State::Ready(spec), Input::Drop) => Ok(self.dropped(spec)),
            (State::Creating(spec) | State::Ready(spec), Input::End(status)) => {
                if spec.keep.decide(*status) {
                    unchanged
                } else {
                    Ok(self.dropped(spec))
                }
            }
            // It goes already.
            (State::Dropping(_), Input::Drop | Input::End(_)) => unchanged,

            // Somebody removed it by hand.
            (State::Ready(_) | State::Dropping(_), Input::Removed) => {
                Ok(Decision::new().fact(WorkspaceDeleted { id }))
            }
            // A directory that is being made cannot be gone.
            (State::Creating(_), Input::Removed) => Err(Error::Invalid(self.state_name())),

            // Told twice; and a run ends whatever became of its directory.
            (State::Failed, Input::Fail { .. } | Input::End(_) | Input::Removed)
            | (State::Deleted, Input::Drop | Input::End(_) | Input::Removed) => unchanged,
            (State::Failed, Input::Create(_) | Input::Ready | Input::Drop)
            | (State::Deleted, Input::Create(_) | Input::Ready | Input::Fail { .. }) => {
                Err(Error::Ended(self.state_name()))
            }

            (
                State::Absent,
                Input::Ready | Input::Fail { .. } | Input::Drop | Input::End(_) | Input::Removed,
            ) => Err(Error::Absent(id)),
        }
    }

    fn created(&self, spec: &Spec) -> WorkspaceCreated {
        WorkspaceCreated {
            id: self.id,
            path: spec.path.clone(),
            branch: spec.branch.clone(),
            owner: spec.owner,
            mode: Some(spec.mode),
            base: spec.base.clone(),
            keep: Some(spec.keep),
        }
    }

    fn dropped(&self, spec: &Spec) -> Decision {
        Decision::new().fact(WorkspaceDrop { id: self.id }).effect(self.remove(spec))
    }

    /// A plain folder has no branch: the shell makes one where the effect's branch is empty.
    fn add(&self, spec: &Spec) -> Effect {
        Effect::WorktreeAdd {
            workspace: self.id,
            branch: match spec.mode {
                Mode::Worktree => spec.branch.clone().unwrap_or_default(),
                Mode::Folder => String::new(),
            },
            base: spec.base.clone(),
            path: spec.path.clone(),
        }
    }

    fn remove(&self, spec: &Spec) -> Effect {
        Effect::WorktreeRemove { workspace: self.id, path: spec.path.clone() }
    }

    /// What a fact does to the workspace. Facts of other workspaces and streams leave it as it is.
    #[must_use]
    pub fn apply(mut self, event: &Event, _at: Millis) -> Workspace {
        self.state = match (self.state, event) {
            (_, Event::WorkspaceCreated(e)) if e.id == self.id => State::Creating(Spec {
                path: e.path.clone(),
                branch: e.branch.clone(),
                base: e.base.clone(),
                owner: e.owner,
                mode: e.mode.unwrap_or(Mode::Worktree),
                keep: e.keep.unwrap_or(Keep::OnFailure),
            }),
            (State::Creating(spec), Event::WorkspaceReady(e)) if e.id == self.id => State::Ready(spec),
            (State::Creating(spec) | State::Ready(spec), Event::WorkspaceDrop(e)) if e.id == self.id => {
                State::Dropping(spec)
            }
            (_, Event::WorkspaceFailed(e)) if e.id == self.id => State::Failed,
            (_, Event::WorkspaceDeleted(e)) if e.id == self.id => State::Deleted,
            // The wide enum is narrowed here: what is not this workspace's is somebody else's.
            (state, _) => state,
        };
        self
    }
}

/// A reason comes from a program outside and is cut rather than refused.
fn shorten(reason: &str) -> String {
    let mut end = reason.len().min(TEXT_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    String::from(&reason[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Proof;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const ID: WorkspaceId = WorkspaceId(5);
    const AT: Millis = Millis(1);

    fn spec(keep: Keep) -> Spec {
        Spec {
            path: "/w/5".into(),
            branch: Some("fix/1".into()),
            base: Some("main".into()),
            owner: Some(RunId(1)),
            mode: Mode::Worktree,
            keep,
        }
    }

    fn step(workspace: &Workspace, input: &Input) -> Result<Workspace, Error> {
        let decision = workspace.decide(input, AT)?;
        Ok(decision.facts.iter().fold(workspace.clone(), |w, fact| w.apply(fact, AT)))
    }

    fn after(inputs: &[Input]) -> Workspace {
        inputs.iter().fold(Workspace::new(ID), |workspace, input| step(&workspace, input).unwrap())
    }

    fn fail() -> Input {
        Input::Fail { reason: "no space".into() }
    }

    fn create() -> Input {
        Input::Create(spec(Keep::OnFailure))
    }

    #[test]
    fn the_table_holds() {
        Proof {
            name: "workspace",
            about: "A working directory of a run, usually a git worktree.",
            table: TABLE,
            states: vec![
                ("absent", Workspace::new(ID)),
                ("creating", after(&[create()])),
                ("ready", after(&[create(), Input::Ready])),
                ("dropping", after(&[create(), Input::Ready, Input::Drop])),
                ("failed", after(&[create(), fail()])),
                ("deleted", after(&[create(), Input::Drop, Input::Removed])),
            ],
            inputs: vec![
                ("create", create()),
                ("create", Input::Create(spec(Keep::Always))),
                ("ready", Input::Ready),
                ("fail", fail()),
                ("drop", Input::Drop),
                ("end", Input::End(origin::Status::Completed)),
                ("end", Input::End(origin::Status::Failed)),
                ("removed", Input::Removed),
            ],
        }
        .check(|workspace, input| {
            step(workspace, input).map(|next| next.state_name()).map_err(|error| error.code())
        });
    }

    #[test]
    fn a_directory_is_kept_as_the_runbook_says() {
        for (keep, completed, failed, cancelled) in [
            (Keep::OnFailure, false, true, true),
            (Keep::Always, true, true, true),
            (Keep::Never, false, false, false),
        ] {
            assert_eq!(keep.decide(origin::Status::Completed), completed);
            assert_eq!(keep.decide(origin::Status::Failed), failed);
            assert_eq!(keep.decide(origin::Status::Cancelled), cancelled);
            assert!(keep.decide(origin::Status::Running), "not while the run is under way");
        }
    }

    #[test]
    fn what_is_outstanding_is_what_was_asked_for() {
        let workspace = Workspace::new(ID);
        let made = workspace.decide(&create(), AT).unwrap();
        assert_eq!(after(&[create()]).outstanding().as_ref(), made.effects.first());
        let gone = after(&[create(), Input::Ready]).decide(&Input::Drop, AT).unwrap();
        assert_eq!(
            after(&[create(), Input::Ready, Input::Drop]).outstanding().as_ref(),
            gone.effects.first()
        );
        assert_eq!(after(&[create(), Input::Ready]).outstanding(), None);
    }

    #[test]
    fn specs_and_reasons_are_bounded() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let spec = Spec { path: long.clone(), ..spec(Keep::Never) };
        let refused = Workspace::new(ID).decide(&Input::Create(spec), AT).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidInput);
        let decision = after(&[create()]).decide(&Input::Fail { reason: long }, AT).unwrap();
        let Event::WorkspaceFailed(failed) = &decision.facts[0] else { panic!() };
        assert_eq!(failed.reason.len(), TEXT_BYTES_MAX);
        let bare = Spec { branch: None, ..self::spec(Keep::Never) };
        assert!(matches!(Workspace::new(ID).decide(&Input::Create(bare.clone()), AT), Err(Error::Spec(_))));
        let folder = Spec { mode: Mode::Folder, ..bare };
        assert!(Workspace::new(ID).decide(&Input::Create(folder), AT).is_ok());
    }

    fn inputs() -> impl Strategy<Value = Input> {
        prop_oneof![
            3 => prop::sample::select(Keep::ALL).prop_map(|keep| Input::Create(spec(keep))),
            2 => Just(Input::Ready),
            1 => Just(fail()),
            1 => Just(Input::Drop),
            1 => prop::sample::select(origin::Status::ALL).prop_map(Input::End),
            1 => Just(Input::Removed),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_sequence_keeps_the_invariants(
            inputs in prop::collection::vec(inputs(), 0..20),
            cut in 0..20usize,
        ) {
            let mut workspace = Workspace::new(ID);
            let mut log = Vec::new();
            for input in &inputs {
                let Ok(decision) = workspace.decide(input, AT) else { continue };
                let next = decision.facts.iter().fold(workspace.clone(), |w, fact| w.apply(fact, AT));
                if let State::Failed | State::Deleted = workspace.state {
                    prop_assert_eq!(&next, &workspace);
                }
                let removes = matches!(&decision.effects[..], [Effect::WorktreeRemove { .. }]);
                let leaves = matches!(next.state, State::Dropping(_) | State::Failed) && next != workspace;
                prop_assert_eq!(removes, leaves);
                log.extend(decision.facts);
                workspace = next;
            }
            let fold = |w: Workspace, facts: &[Event]| facts.iter().fold(w, |w, fact| w.apply(fact, AT));
            let (head, tail) = log.split_at(cut.min(log.len()));
            let snapshot = serde_json::to_string(&fold(Workspace::new(ID), head)).unwrap();
            prop_assert_eq!(&fold(serde_json::from_str(&snapshot).unwrap(), tail), &workspace);
        }
    }
}
