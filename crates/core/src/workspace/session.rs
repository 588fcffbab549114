//! Sessions: a terminal (tmux, usually) in which an agent works, outside of the process.
//!
//! ```text
//!  absent ──open──▶ live ──gone──▶ deleted*          live: type (recorded, then sent), kill (until it is gone)
//! ```
//!
//! Invariants: a session belongs to one attempt, under one epoch, for its whole life; what is typed into it is
//! recorded before it is sent; nothing is typed into one that is gone. Which sessions must be killed is not
//! remembered here: it follows from their tasks.

use crate::code::Code;
use crate::effect::Effect;
use crate::event::{Event, SessionCreated, SessionDeleted, SessionInput};
use crate::id::{AgentId, NoticeId, RunId, SessionId, StepId, WorkspaceId};
use crate::machine::{Decision, Row, table};
use crate::time::Millis;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// The most bytes that are typed at once.
pub const INPUT_BYTES_MAX: usize = 64 * 1024;

/// The machine's table.
pub const TABLE: &[Row] = table! {
    "absent": "open" => "live";
    "live": "open" => "live";
    "live": "type" => "live";
    "live": "kill" => "live";
    "live": "gone" => "deleted";
    "deleted": "kill" => "deleted";
    "deleted": "gone" => "deleted";
};

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The run.
    pub run: RunId,
    /// Its step.
    pub step: StepId,
    /// The attempt's epoch.
    pub epoch: u64,
    /// The agent that works in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentId>,
    /// Where it works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceId>,
}

/// Where a session stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum State {
    /// Not opened yet.
    Absent,
    /// It lives. Moved on by the shell, when it is gone.
    Live(Owner),
    /// It is gone. Terminal.
    Deleted,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Where it stands.
    pub state: State,
}

/// What a session can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An executor opened it.
    Open(Owner),
    /// Somebody types into it.
    Type {
        /// What.
        text: String,
        /// The id of the one-shot message, where the sending is recorded on its run.
        notice: Option<NoticeId>,
    },
    /// It has to end.
    Kill,
    /// It is not there any more.
    Gone,
}

/// Why a session refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Never opened.
    #[error("there is no session {0}")]
    Absent(SessionId),
    /// The id belongs to another attempt.
    #[error("session {0} belongs to another attempt")]
    Other(SessionId),
    /// It is gone.
    #[error("session {0} is gone")]
    Ended(SessionId),
    /// More than can be typed at once.
    #[error("{0} bytes are more than {INPUT_BYTES_MAX}")]
    TooLong(usize),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Absent(_) => Code::NotFound,
            Error::Other(_) => Code::LeaseStaleEpoch,
            Error::Ended(_) => Code::RunTerminalState,
            Error::TooLong(_) => Code::InvalidInput,
        }
    }
}

impl Session {
    /// A session that is not opened yet.
    #[must_use]
    pub fn new(id: SessionId) -> Session {
        Session { id, state: State::Absent }
    }

    /// The state's name in the table.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Absent => "absent",
            State::Live(_) => "live",
            State::Deleted => "deleted",
        }
    }

    /// Says what an input leads to. Nothing here depends on the time.
    ///
    /// # Errors
    /// [`Error`]: what the table does not have, and input out of its bounds.
    pub fn decide(&self, input: &Input, _at: Millis) -> Result<Decision, Error> {
        let unchanged = Ok(Decision::new());
        let id = self.id;
        match (&self.state, input) {
            (State::Absent, Input::Open(owner)) => Ok(Decision::new().fact(SessionCreated {
                id,
                pipeline_id: owner.run,
                step: owner.step.clone(),
                epoch: owner.epoch,
                agent_id: owner.agent,
                workspace: owner.workspace,
            })),
            (State::Live(old), Input::Open(owner)) => {
                // The answer to the first one was lost.
                if old == owner { unchanged } else { Err(Error::Other(id)) }
            }
            (State::Live(_), Input::Type { text, .. }) if text.len() > INPUT_BYTES_MAX => {
                Err(Error::TooLong(text.len()))
            }
            (State::Live(_), Input::Type { text, notice }) => Ok(Decision::new()
                .fact(SessionInput { id, input: text.clone().into() })
                .effect(Effect::Send { session: id, input: text.clone(), notice: *notice })),
            // Killing twice does no harm, and the first kill may have been lost in a crash.
            (State::Live(_), Input::Kill) => Ok(Decision::new().effect(Effect::Kill { session: id })),
            (State::Live(_), Input::Gone) => Ok(Decision::new().fact(SessionDeleted { id })),
            // It is as it was wished to be.
            (State::Deleted, Input::Kill | Input::Gone) => unchanged,
            (State::Deleted, Input::Open(_) | Input::Type { .. }) => Err(Error::Ended(id)),
            (State::Absent, Input::Type { .. } | Input::Kill | Input::Gone) => Err(Error::Absent(id)),
        }
    }

    /// What a fact does to the session. Facts of other sessions and streams leave it as it is.
    #[must_use]
    pub fn apply(mut self, event: &Event, _at: Millis) -> Session {
        match event {
            Event::SessionCreated(e) if e.id == self.id => {
                self.state = State::Live(Owner {
                    run: e.pipeline_id,
                    step: e.step.clone(),
                    epoch: e.epoch,
                    agent: e.agent_id,
                    workspace: e.workspace,
                });
            }
            Event::SessionDeleted(e) if e.id == self.id => self.state = State::Deleted,
            // The wide enum is narrowed here; `session:input` is an action and changes nothing.
            _ => {}
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Proof, name};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const ID: SessionId = SessionId(3);
    const AT: Millis = Millis(1);

    fn open(epoch: u64) -> Input {
        let (run, step) = (RunId(1), name("code"));
        Input::Open(Owner { run, step, epoch, agent: Some(AgentId(2)), workspace: None })
    }

    fn typed(text: &str) -> Input {
        Input::Type { text: text.into(), notice: None }
    }

    fn step(session: &Session, input: &Input) -> Result<Session, Error> {
        let decision = session.decide(input, AT)?;
        Ok(decision.facts.iter().fold(session.clone(), |s, fact| s.apply(fact, AT)))
    }

    fn after(inputs: &[Input]) -> Session {
        inputs.iter().fold(Session::new(ID), |session, input| step(&session, input).unwrap())
    }

    #[test]
    fn the_table_holds() {
        Proof {
            name: "session",
            about: "A terminal in which an agent works.",
            table: TABLE,
            states: vec![
                ("absent", Session::new(ID)),
                ("live", after(&[open(1)])),
                ("deleted", after(&[open(1), Input::Gone])),
            ],
            inputs: vec![
                ("open", open(1)),
                ("open", open(2)),
                ("type", typed("go on")),
                ("kill", Input::Kill),
                ("gone", Input::Gone),
            ],
        }
        .check(|session, input| {
            step(session, input).map(|next| next.state_name()).map_err(|error| error.code())
        });
    }

    #[test]
    fn what_is_typed_is_recorded_and_bounded() {
        let decision = after(&[open(1)]).decide(&typed("y\n"), AT).unwrap();
        assert!(matches!(&decision.facts[..], [Event::SessionInput(_)]));
        assert_eq!(decision.effects, [Effect::Send { session: ID, input: "y\n".into(), notice: None }]);
        let long = typed(&"x".repeat(INPUT_BYTES_MAX + 1));
        assert_eq!(after(&[open(1)]).decide(&long, AT).unwrap_err().code(), Code::InvalidInput);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_sequence_keeps_the_invariants(picks in prop::collection::vec(0..5usize, 0..12), cut in 0..12usize) {
            let all = [open(1), open(2), typed("a"), Input::Kill, Input::Gone];
            let mut session = Session::new(ID);
            let mut log = Vec::new();
            for pick in picks {
                let Ok(decision) = session.decide(&all[pick], AT) else { continue };
                let next = decision.facts.iter().fold(session.clone(), |s, fact| s.apply(fact, AT));
                if session.state == State::Deleted {
                    prop_assert!(next == session && decision.effects.is_empty());
                }
                if let (State::Live(old), State::Live(new)) = (&session.state, &next.state) {
                    prop_assert_eq!(old, new);
                }
                log.extend(decision.facts);
                session = next;
            }
            let fold = |s: Session, facts: &[Event]| facts.iter().fold(s, |s, fact| s.apply(fact, AT));
            let (head, tail) = log.split_at(cut.min(log.len()));
            let snapshot = serde_json::to_string(&fold(Session::new(ID), head)).unwrap();
            prop_assert_eq!(&fold(serde_json::from_str(&snapshot).unwrap(), tail), &session);
        }
    }
}
