//! Whether a definition holds together: names, places, bounds, and nothing that would be ignored.

use super::NAMED_MAX;
use super::{CALLS_MAX, Compensate, DEPTH_MAX, Error, Kind, NODES_MAX, Node, Pipeline, Runbook, StepDef};
use crate::id::Name;
use crate::pattern::Pattern;
use crate::worker::WAKE_ON_MAX;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;

impl Pipeline {
    /// Whether the pipeline holds together: names, places and bounds.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self, name: &Name) -> Result<(), Error> {
        if self.nodes.len() > NODES_MAX {
            return Err(Error::TooMany(name.clone(), NODES_MAX, "steps"));
        }
        let mut names = BTreeSet::new();
        let mut placed: BTreeMap<Node, u32> = BTreeMap::new();
        let mut place = |node: Node, depth: u32| placed.insert(node, depth).is_none();
        for &node in self.steps.iter().chain(&self.on_failure).chain(&self.finally) {
            if !place(node, 1) || self.node(node).is_none() {
                return Err(Error::Member(name.clone(), Name::clean("steps")));
            }
        }
        for (i, step) in self.nodes.iter().enumerate() {
            if !names.insert(step.id.clone()) {
                return Err(Error::Duplicate(name.clone(), step.id.clone()));
            }
            let Some(&depth) = placed.get(&(i as Node)) else {
                return Err(Error::Place(name.clone(), step.id.clone()));
            };
            if depth > DEPTH_MAX {
                return Err(Error::TooMany(name.clone(), DEPTH_MAX as usize, "levels of nesting"));
            }
            self.validate_named(name, step)?;
            if let Some(read) = &step.reconcile
                && !matches!(**read, Kind::Run { .. } | Kind::Tool { writes: false, .. })
            {
                let what = "a `reconcile` that is neither a command nor a tool that only reads";
                return Err(Error::Unsupported(name.clone(), step.id.clone(), what));
            }
            if step.retry.max_attempts == Some(0) {
                return Err(Error::Zero("step", step.id.clone(), "max_attempts"));
            }
            let mut members = step.kind.members();
            if let Compensate::With(node) = step.compensate {
                members.push(node);
            }
            for member in members {
                let after = member as usize > i && self.node(member).is_some();
                if !after || placed.insert(member, depth + 1).is_some() {
                    return Err(Error::Member(name.clone(), step.id.clone()));
                }
            }
        }
        Ok(())
    }
}

impl Pipeline {
    /// Whether an `approve` step can speak for the steps it names. One that seems to and does not would be worse than
    /// none.
    fn validate_named(&self, name: &Name, step: &StepDef) -> Result<(), Error> {
        let Kind::Approve { steps, .. } = &step.kind else { return Ok(()) };
        if steps.len() > NAMED_MAX {
            return Err(Error::TooMany(name.clone(), NAMED_MAX, "steps named by one `approve`"));
        }
        let cannot = |what| Err(Error::Unsupported(name.clone(), step.id.clone(), what));
        if !steps.is_empty() && step.foreach.is_some() {
            return cannot("an `approve` with `for` that runs for items");
        }
        let undoes = |node: Node| self.nodes.iter().any(|step| step.compensate == Compensate::With(node));
        for named in steps {
            let found = (0..).zip(&self.nodes).find(|(_, node)| node.id == *named);
            let Some((place, node)) = found else {
                return Err(Error::Missing("step", step.id.clone(), "step", named.clone()));
            };
            if undoes(place) {
                return cannot("an `approve` for a compensation");
            }
            match node.kind {
                Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. } | Kind::Call { .. } => {}
                Kind::Parallel { .. }
                | Kind::Steps { .. }
                | Kind::Strategy { .. }
                | Kind::Approve { .. }
                | Kind::Wait { .. } => return cannot("an `approve` for a group, an approval or a wait"),
            }
        }
        Ok(())
    }
}

impl Runbook {
    /// Marks every `call` that declares no compensation and whose pipeline, or one that it calls in turn, has some.
    #[must_use]
    pub fn with_called_compensations(mut self) -> Runbook {
        for _ in 0..=CALLS_MAX {
            let has = |pipeline: &Pipeline| {
                let counts =
                    |step: &StepDef| matches!(step.compensate, Compensate::With(_) | Compensate::Called);
                pipeline.nodes.iter().any(counts)
            };
            let taken: BTreeSet<Name> =
                self.pipelines.iter().filter(|(_, p)| has(p)).map(|(name, _)| name.clone()).collect();
            for step in self.pipelines.values_mut().flat_map(|pipeline| &mut pipeline.nodes) {
                if let (Kind::Call { pipeline, .. }, Compensate::Undeclared) = (&step.kind, &step.compensate)
                    && taken.contains(pipeline)
                {
                    step.compensate = Compensate::Called;
                }
            }
        }
        self
    }

    /// Whether the runbook holds together.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), Error> {
        for (name, pipeline) in &self.pipelines {
            pipeline.validate(name)?;
            for step in &pipeline.nodes {
                match &step.kind {
                    Kind::Call { pipeline: called, .. } if !self.pipelines.contains_key(called) => {
                        return Err(Error::Missing("step", step.id.clone(), "pipeline", called.clone()));
                    }
                    Kind::Agent { agent, .. } if !self.agents.contains_key(agent) => {
                        return Err(Error::Missing("step", step.id.clone(), "agent", agent.clone()));
                    }
                    Kind::Run { .. }
                    | Kind::Tool { .. }
                    | Kind::Agent { .. }
                    | Kind::Parallel { .. }
                    | Kind::Steps { .. }
                    | Kind::Strategy { .. }
                    | Kind::Call { .. }
                    | Kind::Approve { .. }
                    | Kind::Wait { .. } => {}
                }
            }
        }
        for (name, worker) in &self.workers {
            if !self.queues.contains_key(&worker.queue) {
                return Err(Error::Missing("worker", name.clone(), "queue", worker.queue.clone()));
            }
            if !self.pipelines.contains_key(&worker.pipeline) {
                return Err(Error::Missing("worker", name.clone(), "pipeline", worker.pipeline.clone()));
            }
            if worker.concurrency == 0 {
                return Err(Error::Zero("worker", name.clone(), "concurrency"));
            }
            if worker.wake_on.len() > WAKE_ON_MAX {
                let message = alloc::format!("`wake_on` has more than {WAKE_ON_MAX} patterns");
                return Err(Error::WakeOn(name.clone(), message));
            }
            for pattern in &worker.wake_on {
                Pattern::parse(pattern).map_err(|error| Error::WakeOn(name.clone(), error.to_string()))?;
            }
        }
        for (name, schedule) in &self.schedules {
            if !self.pipelines.contains_key(&schedule.pipeline) {
                return Err(Error::Missing("schedule", name.clone(), "pipeline", schedule.pipeline.clone()));
            }
        }
        for (name, queue) in &self.queues {
            if queue.max_attempts == 0 {
                return Err(Error::Zero("queue", name.clone(), "max_attempts"));
            }
        }
        for (name, semaphore) in &self.semaphores {
            if semaphore.capacity == 0 {
                return Err(Error::Zero("semaphore", name.clone(), "capacity"));
            }
        }
        Ok(())
    }
}
