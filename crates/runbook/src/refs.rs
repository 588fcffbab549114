//! References: which names an expression may use at its place in a pipeline.
//!
//! A step can be referred to where it has certainly ended: it comes earlier, it does not enclose the place or run parallel
//! to it, and it does not run once per item of a group that the place is outside of.

use super::build::Stand;
use super::problem::suggest;
use super::steps::{Meta, Section};
use std::collections::BTreeMap;
use windlass_core::id::Name;
use windlass_core::runbook::{Node, Pipeline};

/// What can be named in a pipeline.
pub(super) struct Scope<'p> {
    pipeline: &'p Pipeline,
    metas: &'p [Meta],
    steps: BTreeMap<&'p str, Node>,
}

type Refusal = (String, String);

fn refuse<T>(message: impl Into<String>, help: impl Into<String>) -> Result<T, Refusal> {
    Err((message.into(), help.into()))
}

impl<'p> Scope<'p> {
    pub(super) fn new(pipeline: &'p Pipeline, metas: &'p [Meta]) -> Scope<'p> {
        let named = |(place, node): (usize, &'p windlass_core::runbook::StepDef)| {
            metas.get(place).filter(|meta| meta.named).map(|_| (node.id.as_str(), place as Node))
        };
        Scope { pipeline, metas, steps: pipeline.nodes.iter().enumerate().filter_map(named).collect() }
    }

    /// The step with this name.
    pub(super) fn step(&self, name: &str) -> Option<Node> {
        self.steps.get(name).copied()
    }

    /// The names of steps.
    pub(super) fn names(&self) -> impl Iterator<Item = &'p str> + Clone {
        self.steps.keys().copied()
    }

    fn meta(&self, node: Node) -> Option<&'p Meta> {
        self.metas.get(node as usize)
    }

    /// The step itself and everything around it, from the inside out.
    fn around(&self, node: Node) -> impl Iterator<Item = Node> {
        std::iter::successors(Some(node), |node| self.meta(*node)?.parent)
    }

    /// Whether an expression may name this path.
    pub(super) fn check(&self, path: &[String], stand: Stand) -> Result<(), Refusal> {
        let own = match stand {
            Stand::Step(node) | Stand::Foreach(node) => Some(node),
            Stand::Outputs | Stand::Before | Stand::Worker | Stand::Schedule | Stand::Trigger => None,
        };
        let meta = own.and_then(|node| self.meta(node));
        let field = path.get(1).map(String::as_str);
        match path.first().map_or("", String::as_str) {
            "vars" => self.var(field),
            root if stand == Stand::Before => refuse(
                format!("`{root}` is not known here"),
                "this is needed before the first step; only `vars` are known",
            ),
            "run" => match field {
                None | Some("id") => Ok(()),
                Some("status") if meta.is_some_and(|meta| meta.section > Section::Main) => Ok(()),
                Some("status") => refuse(
                    "`run.status` is only known when the steps are done",
                    "use it in `on_failure` or `finally`: it is how the run is about to end",
                ),
                Some(other) => refuse(
                    format!("`run` has no `{other}`"),
                    "`run.id` is what there is, and in `on_failure` and `finally` `run.status`",
                ),
            },
            "steps" => self.reference(path, own),
            "item" => self.item(stand),
            "output" if meta.is_some_and(|meta| meta.undo.is_some()) => Ok(()),
            "output" => refuse(
                "`output` is only known in a compensation",
                "write `steps.ID.output` for what another step gave",
            ),
            "error" if meta.is_some_and(|meta| meta.section > Section::Main || meta.undo.is_some()) => Ok(()),
            "error" => refuse(
                "`error` is only known after a failure",
                "use it in `on_failure`, `finally` or `compensate`",
            ),
            "event" => refuse(
                "`event` is only known in a trigger",
                "give it to the pipeline: `vars: { ticket: '${{ event.id }}' }` in the trigger",
            ),
            "secrets" => refuse(
                "a secret cannot be part of an expression",
                "write `${{ secrets.NAME }}` as the whole value",
            ),
            other => {
                let known = ["vars", "steps", "item", "run", "output", "error"];
                refuse(format!("`{other}` is not known here"), suggest(other, known, "names"))
            }
        }
    }

    fn var(&self, field: Option<&str>) -> Result<(), Refusal> {
        match field {
            Some(name) if !self.pipeline.vars.contains_key(name) => {
                let known = self.pipeline.vars.keys().map(Name::as_str);
                refuse(format!("the pipeline has no variable `{name}`"), suggest(name, known, "variables"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn item(&self, stand: Stand) -> Result<(), Refusal> {
        let mut around: Vec<Node> = match stand {
            Stand::Step(node) | Stand::Foreach(node) => self.around(node).collect(),
            Stand::Outputs | Stand::Before | Stand::Worker | Stand::Schedule | Stand::Trigger => Vec::new(),
        };
        if let Stand::Foreach(own) = stand {
            around.retain(|node| *node != own);
        }
        if around.iter().any(|node| self.meta(*node).is_some_and(|meta| meta.foreach)) {
            return Ok(());
        }
        if matches!(stand, Stand::Foreach(_)) {
            return refuse(
                "`item` is only known where a `foreach` is around: its own list and the `when` beside it come before the items",
                "put the `when` on a step inside: `foreach: …` with `steps: [ { when: …, … } ]`",
            );
        }
        refuse(
            "`item` is only known where a `foreach` is around",
            "add `foreach` to this step or to a group around it",
        )
    }

    /// A path that begins with `steps`.
    fn reference(&self, path: &[String], own: Option<Node>) -> Result<(), Refusal> {
        let Some(name) = path.get(1) else { return Ok(()) };
        let Some(step) = self.step(name) else {
            let near = self.names().find(|known| known.starts_with(&format!("{name}-")));
            let help = match near {
                Some(near) => format!("a name with a dash is written `steps[\"{near}\"]`"),
                None if self.steps.is_empty() => "only steps with an `id` can be referred to".to_owned(),
                None => suggest(name, self.names(), "steps"),
            };
            return refuse(format!("there is no step `{name}`"), help);
        };
        match path.get(2).map(String::as_str) {
            None | Some("output" | "status") => {}
            Some(other) => {
                let help = format!("write `steps.{name}.output.{other}`, or `steps.{name}.status`");
                return refuse(format!("a step has no `{other}`"), help);
            }
        }
        match own {
            Some(own) => self.over(name, step, own),
            None => {
                let main = |meta: &Meta| meta.section == Section::Main && meta.undo.is_none();
                if !self.meta(step).is_some_and(main) {
                    return refuse(
                        format!("`{name}` comes after the pipeline's outputs are taken"),
                        "outputs are what its `steps` gave; refer to one of those",
                    );
                }
                self.visible(name, step, None)
            }
        }
    }

    /// Whether `step` is over where `own` runs.
    fn over(&self, name: &str, step: Node, own: Node) -> Result<(), Refusal> {
        let (Some(there), Some(here)) = (self.meta(step), self.meta(own)) else { return Ok(()) };
        if there.undo.is_some() && there.undo != here.undo {
            return refuse(format!("`{name}` is a compensation, which runs at the end"), "");
        }
        self.visible(name, step, Some(own))?;
        if here.undo.is_some() && there.undo.is_none() {
            // A compensation runs at the end, when every step is over.
            return Ok(());
        }
        if here.section > there.section {
            return Ok(());
        }
        if step == own {
            return refuse(format!("`{name}` cannot refer to itself"), "");
        }
        if self.around(own).any(|node| node == step) {
            return refuse(format!("`{name}` is around this step, so it is not over yet"), "");
        }
        if step > own || there.section > here.section {
            return refuse(
                format!("`{name}` comes later, so it has given nothing yet"),
                "refer to a step that stands before this one",
            );
        }
        let shared = self.around(own).find(|node| self.around(step).any(|other| other == *node));
        if shared.and_then(|node| self.meta(node)).is_some_and(|meta| meta.parallel) {
            return refuse(
                format!("`{name}` runs side by side with this step, so it may not be over"),
                "put the step after the `parallel` group",
            );
        }
        Ok(())
    }

    /// Whether a step runs once where it is looked at from, and not once for each item of a group.
    fn visible(&self, name: &str, step: Node, own: Option<Node>) -> Result<(), Refusal> {
        let inside = |group: Node| own.is_some_and(|own| self.around(own).any(|node| node == group));
        let repeated = self
            .around(step)
            .skip(1)
            .find(|group| self.meta(*group).is_some_and(|meta| meta.foreach) && !inside(*group));
        let Some(group) = repeated else { return Ok(()) };
        let id = self.pipeline.node(group).map_or("the group", |node| node.id.as_str());
        refuse(
            format!("`{name}` runs once for each item of `{id}`"),
            format!("what all of them gave is a list: `steps[\"{id}\"].output`"),
        )
    }
}
