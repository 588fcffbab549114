//! A dry run: what each step of a pipeline would be, as far as it can be told before anything has happened.

use crate::app::App;
use serde_json::{Map, Value, json};
use windlass_core::policy;
use windlass_core::runbook::{Kind, Node, Pipeline, StepDef};
use windlass_core::template::{Evaluate, Template};

/// The steps in the order of the file, groups before their members, each with its resolved fields, policy's verdict
/// and the secrets it names.
#[must_use]
pub fn steps(app: &App, def: &Pipeline, vars: &Value) -> Vec<Value> {
    let mut scope = Map::new();
    scope.insert("vars".into(), vars.clone());
    let planner = Planner { def, scope, evaluate: &*app.evaluate };
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
}

impl Planner<'_> {
    fn add(&self, node: Node, section: &str, depth: usize, out: &mut Vec<Value>) {
        let Some(step) = self.def.node(node) else { return };
        let tool = step.kind.tool();
        let writes = matches!(&step.kind, Kind::Tool { writes: true, .. });
        let acts = matches!(step.kind, Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. });
        let mut item = json!({ "id": step.id, "tool": tool, "section": section, "depth": depth });
        if acts {
            item["policy"] = Value::String(policy::builtin(tool, writes).to_string());
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
        let mut secrets = Vec::new();
        step.env.values().for_each(|template| named(template, &mut secrets));
        if let Kind::Tool { with, .. } = &step.kind {
            named(with, &mut secrets);
        }
        if !secrets.is_empty() {
            item["secrets"] = json!(secrets);
        }
        out.push(item);
        for member in step.kind.members() {
            self.add(member, section, depth + 1, out);
        }
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
        template.render(self.evaluate, &self.scope).unwrap_or_else(|_| json!({ "later": template }))
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
