//! A dry run: what each step of a pipeline would be, as far as it can be told before anything has happened.

use crate::app::App;
use crate::policy::{About, Edition, Question, question};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use windlass_core::id::{Name, RunId};
use windlass_core::policy::{Risk, Scope, scope};
use windlass_core::receipt::Action;
use windlass_core::runbook::{Compensate, Kind, Node, Pipeline, StepDef};
use windlass_core::template::{Evaluate, Part, Template};
use windlass_executor::secrets::{self, Secrets};

/// The steps in the order of the file, groups before their members, each with its resolved fields, policy's verdict
/// and the secrets it names, with those that are missing.
#[must_use]
pub fn steps(app: &App, about: About, def: &Pipeline, vars: &Value) -> Vec<Value> {
    let mut scope = Map::new();
    scope.insert("vars".into(), vars.clone());
    let (policy, secrets) = (app.policy.edition(), Secrets::new(app.home.root()));
    let planner = Planner { def, scope, evaluate: &*app.evaluate, about, policy, secrets };
    let mut out = Vec::new();
    for (section, nodes) in [("main", &def.steps), ("on_failure", &def.on_failure), ("finally", &def.finally)]
    {
        for &node in nodes {
            planner.add(node, section, 0, &mut out);
        }
    }
    out
}

struct Planner<'a> {
    def: &'a Pipeline,
    scope: Map<String, Value>,
    evaluate: &'a dyn Evaluate,
    about: About,
    policy: Arc<Edition>,
    secrets: Secrets,
}

impl Planner<'_> {
    fn add(&self, node: Node, section: &str, depth: usize, out: &mut Vec<Value>) {
        let Some(step) = self.def.node(node) else { return };
        let tool = step.kind.tool();
        let acts = matches!(step.kind, Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. });
        let mut item = json!({ "id": step.id, "tool": tool, "section": section, "depth": depth });
        if acts {
            self.verdict(step, &mut item);
        }
        if let Some(fields) = self.fields(step) {
            item["fields"] = fields;
        }
        if let Some(when) = &step.when {
            item["when"] = match self.evaluate.evaluate(when, &self.scope) {
                Ok(value) => value,
                Err(_) => json!({ "later": when }),
            };
        }
        self.terms(step, &mut item);
        let mut secrets = Vec::new();
        step.env.values().for_each(|template| named(template, &mut secrets));
        if let Kind::Tool { with, .. } = &step.kind {
            named(with, &mut secrets);
        }
        if !secrets.is_empty() {
            // What a remote executor has is known there.
            let here = step.runs_on.is_empty();
            let missing: Vec<&String> = secrets.iter().filter(|name| here && self.lacks(name)).collect();
            if !missing.is_empty() {
                item["missing_secrets"] = json!(missing);
            }
            item["secrets"] = json!(secrets);
        }
        out.push(item);
        for member in step.kind.members() {
            self.add(member, section, depth + 1, out);
        }
    }

    /// Under which terms it would run.
    fn terms(&self, step: &StepDef, item: &mut Value) {
        if let Some(timeout) = step.timeout {
            item["timeout_ms"] = json!(timeout.0);
        }
        if let Some(tries) = step.retry.max_attempts {
            item["max_attempts"] = json!(tries);
        }
        if let Some(lock) = &step.lock {
            item["lock"] = self.render(&lock.name);
        }
        if let Some(semaphore) = &step.semaphore {
            item["semaphore"] = self.render(&semaphore.name);
        }
        if let Some(effect) = step.effect {
            item["effect"] = json!(effect);
        }
        match step.compensate {
            Compensate::With(node) => {
                item["compensate"] = json!(self.def.node(node).map(|step| step.id.as_str()));
            }
            Compensate::Exempt => item["compensate"] = json!(false),
            Compensate::Undeclared | Compensate::Called => {}
        }
    }

    /// Whether nobody has a secret. One that is there and cannot be read is another matter.
    fn lacks(&self, name: &str) -> bool {
        matches!(self.secrets.reveal(&self.about.tenant, name), Err(secrets::Error::Missing(_)))
    }

    /// What policy would say. What needs the outputs of steps can only be asked when they are there, and by a policy that
    /// looks at no fields.
    fn verdict(&self, step: &StepDef, item: &mut Value) {
        let tool = Name::clean(step.kind.tool());
        let action = match self.action(step, &tool) {
            Some(action) => action,
            None if matches!(&*self.policy, Edition::Builtin) => None,
            None => return item["policy"] = json!("later"),
        };
        let question = Question {
            purpose: None,
            // The run is not there yet, and has no id that a rule could mean.
            run: RunId(0),
            step: Some(step.id.clone()),
            action_hash: action.as_ref().map(Action::hash),
            action,
            tool,
            writes: question::writes(&step.kind),
            agreed: Vec::new(),
            about: self.about.clone(),
        };
        let decision = self.policy.decide(&question);
        item["policy"] = json!(decision.verdict);
        item["policy_rules"] = json!(decision.rules);
        item["policy_reasons"] = json!(decision.reasons);
    }

    /// The action of a step, as far as it has one: none where it is not known yet.
    fn action(&self, step: &StepDef, tool: &Name) -> Option<Option<Action>> {
        if scope(tool.as_str()) == Scope::PerRun {
            return Some(None);
        }
        let own = |risk: Risk| step.risk.map_or(risk, |own| own.max(risk));
        let render = |template: &Template| template.render(self.evaluate, &self.scope).ok();
        let (operation, target, fields, risk) = match &step.kind {
            Kind::Tool { operation, target, with, risk, .. } => {
                let target = render(target)?;
                let target = target.as_str().map_or_else(|| target.to_string(), str::to_owned);
                (operation.clone(), Name::clean(&target), render(with)?, *risk)
            }
            Kind::Agent { agent, prompt } => {
                let fields = json!({ "agent": agent, "input": { "prompt": render(prompt)? } });
                (Name::clean("work"), step.id.clone(), fields, Risk::Low)
            }
            Kind::Run { .. }
            | Kind::Parallel { .. }
            | Kind::Steps { .. }
            | Kind::Strategy { .. }
            | Kind::Call { .. }
            | Kind::Approve { .. }
            | Kind::Wait { .. } => return Some(None),
        };
        Some(Some(Action { tool: tool.clone(), operation, target, fields, risk: own(risk) }))
    }

    /// What can be resolved now; what needs the outputs of steps is shown as the expression it is.
    fn fields(&self, step: &StepDef) -> Option<Value> {
        match &step.kind {
            Kind::Run { command } => {
                let env: Map<String, Value> =
                    step.env.iter().map(|(key, template)| (key.clone(), self.render(template))).collect();
                Some(json!({ "command": command, "env": env }))
            }
            Kind::Tool { operation, target, with, .. } => Some(
                json!({ "operation": operation, "target": self.render(target), "with": self.render(with) }),
            ),
            Kind::Agent { agent, prompt } => Some(json!({ "agent": agent, "prompt": self.render(prompt) })),
            Kind::Call { pipeline, vars } => {
                let vars: Map<String, Value> =
                    vars.iter().map(|(key, template)| (key.to_string(), self.render(template))).collect();
                Some(json!({ "pipeline": pipeline, "vars": vars }))
            }
            Kind::Approve { message, approvers, .. } => {
                Some(json!({ "message": self.render(message), "approvers": approvers }))
            }
            Kind::Wait { wait } => Some(json!(wait)),
            Kind::Parallel { .. } | Kind::Steps { .. } | Kind::Strategy { .. } => None,
        }
    }

    fn render(&self, template: &Template) -> Value {
        template.render(self.evaluate, &self.scope).unwrap_or_else(|_| json!({ "later": written(template) }))
    }
}

/// A value with its expressions, as a runbook has it.
fn written(template: &Template) -> Value {
    let expression = |text: &str| format!("${{{{ {text} }}}}");
    match template {
        Template::Literal(value) => value.clone(),
        Template::Expr(text) => Value::String(expression(text)),
        Template::Secret(name) => Value::String(expression(&format!("secrets.{name}"))),
        Template::Text(parts) => {
            let part = |part: &Part| match part {
                Part::Literal(text) => text.clone(),
                Part::Expr(text) => expression(text),
            };
            Value::String(parts.iter().map(part).collect())
        }
        Template::List(list) => list.iter().map(written).collect(),
        Template::Map(map) => map.iter().map(|(key, value)| (key.clone(), written(value))).collect(),
    }
}

/// The secrets that a template names.
fn named(template: &Template, out: &mut Vec<String>) {
    match template {
        Template::Secret(name) => out.push(name.to_string()),
        Template::List(list) => list.iter().for_each(|template| named(template, out)),
        Template::Map(map) => map.values().for_each(|template| named(template, out)),
        Template::Literal(_) | Template::Expr(_) | Template::Text(_) => {}
    }
}
