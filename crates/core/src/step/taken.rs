//! Taken steps: what a run that takes another one back is told of that one's steps.

use super::{Group, Step, Taken, Values};
use crate::packed::Packed;
use alloc::boxed::Box;

impl Step {
    /// The step as a run is told of it that takes this one back.
    #[must_use]
    pub fn taken(&self) -> Taken {
        Taken {
            step: self.id.clone(),
            node: self.node,
            parent: self.parent,
            section: self.section,
            tool: self.tool.clone(),
            status: self.status,
            attempt: self.attempt,
            epoch: self.epoch,
            item: self.item,
            group: self.group.map(|group| group.shape),
            begun: self.group.map(|group| group.next),
            key: self.key.clone(),
            action_hash: self.action_hash().copied(),
            semantics: self.semantics,
            child: self.child(),
            started_at: self.started_at,
            completed_at: self.completed_at,
            ended: self.ended,
            acted: self.acted,
        }
    }
}

impl Step {
    /// Its values, as that run is told of them.
    #[must_use]
    pub fn values(&self) -> Values {
        Values { input: self.input(), output: self.output() }
    }
}

impl Taken {
    /// The step that it stands for.
    pub(crate) fn step(self, values: &Values) -> Step {
        Step {
            parent: self.parent,
            section: self.section,
            status: self.status,
            attempt: self.attempt,
            epoch: self.epoch,
            item: self.item,
            group: self.group.map(|shape| Group { next: self.begun.unwrap_or(0), ..Group::new(shape) }),
            key: self.key,
            action_hash: self.action_hash.map(Box::new),
            semantics: self.semantics,
            input: values.input.as_ref().map(Packed::of),
            output: values.output.as_ref().map(Packed::of),
            child: self.child.map(Box::new),
            started_at: self.started_at,
            completed_at: self.completed_at,
            ended: self.ended,
            acted: self.acted,
            ..Step::pending(self.step, self.node, self.tool)
        }
    }
}
