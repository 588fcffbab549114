//! Taken steps: what a run that takes another one back is told of that one's steps.

use super::{Group, Shape, Status, Step};
use crate::digest::Digest;
use crate::id::{Name, RunId, StepId};
use crate::packed::Packed;
use crate::receipt::Semantics;
use crate::run::Section;
use crate::time::Millis;
use crate::wire::nested;
use alloc::boxed::Box;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A step of a run that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// Its name.
    pub step: StepId,
    /// Its definition.
    pub node: u32,
    /// The group it belongs to, by its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
    /// Its section.
    pub section: Section,
    /// What carried it out.
    pub tool: Name,
    /// How it ended.
    pub status: Status,
    /// Its last attempt.
    pub attempt: u32,
    /// The fence of that.
    pub epoch: u64,
    /// Its item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// Its shape, where it is a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Shape>,
    /// How many members the group began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<u32>,
    /// The declared key of its effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// The hash of its action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_hash: Option<Digest>,
    /// What can be done about a lost attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub semantics: Option<Semantics>,
    /// The run that it called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<RunId>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Millis>,
    /// Its place among the ended steps.
    pub ended: u32,
    /// Whether it acted to its end, and failed at its guards after.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub acted: bool,
}

/// What such a step was given and gave, which stands outside of the chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    /// What it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// What it gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
}

nested! { Taken = "taken step", Values = "values of a taken step" of |it| alloc::vec![it.input.as_ref(), it.output.as_ref()] }

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
