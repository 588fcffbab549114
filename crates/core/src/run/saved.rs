//! The saved form of a run: what cannot be derived.

use super::{BlockedOn, Born, Cancellation, Ending, Failure, Group, Places, Rare, Run, Section, Step};
use crate::budget::Budget;
use crate::id::StepId;
use crate::packed::Packed;
use crate::policy::Ledger;
use crate::time::Millis;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The saved form: what cannot be derived.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    born: Box<Born>,
    vars: Packed,
    #[serde(default, skip_serializing_if = "is_first")]
    edition: u32,
    updated_at: Millis,
    started_at: Option<Millis>,
    blocked: Option<Box<BlockedOn>>,
    section: Section,
    root: Group,
    failure: Option<Box<(Option<StepId>, Failure)>>,
    suspended: bool,
    stopping: Option<Box<Cancellation>>,
    ending: Option<Box<Ending>>,
    steps: Vec<Step>,
    ended: u32,
    policy: Option<Arc<Ledger>>,
    budget: Option<Box<Budget>>,
    writes: u32,
    approvers: Box<[u32]>,
    rare: Option<Box<Rare>>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // Serde asks like this.
fn is_first(edition: &u32) -> bool {
    *edition == 0
}

impl From<Run> for Saved {
    fn from(run: Run) -> Saved {
        Saved {
            born: run.born,
            vars: run.vars,
            edition: run.edition,
            updated_at: run.updated_at,
            started_at: run.started_at,
            blocked: run.blocked,
            section: run.section,
            root: run.root,
            failure: run.failure,
            suspended: run.suspended,
            stopping: run.stopping,
            ending: run.ending,
            steps: run.steps,
            ended: run.ended,
            policy: run.policy,
            budget: run.budget,
            writes: run.writes,
            approvers: run.approvers,
            rare: run.rare,
        }
    }
}

impl From<Saved> for Run {
    fn from(mut saved: Saved) -> Run {
        // Whoever reads a list makes room for several; most runs that wait have one step, and there may be many such runs.
        saved.steps.shrink_to_fit();
        let mut run = Run {
            born: saved.born,
            vars: saved.vars,
            edition: saved.edition,
            updated_at: saved.updated_at,
            started_at: saved.started_at,
            blocked: saved.blocked,
            section: saved.section,
            root: saved.root,
            failure: saved.failure,
            suspended: saved.suspended,
            stopping: saved.stopping,
            ending: saved.ending,
            steps: saved.steps,
            ended: saved.ended,
            policy: saved.policy,
            budget: saved.budget,
            writes: saved.writes,
            approvers: saved.approvers,
            rare: saved.rare,
            index: Vec::new(),
            flow: Places::default(),
            ready: Places::default(),
            live: Places::default(),
        };
        run.index = (0..run.steps.len() as u32).collect();
        let Run { index, steps, .. } = &mut run;
        index.sort_by_key(|&place| steps.get(place as usize).map(|step| &step.id));
        run.reindex_all();
        run
    }
}
