//! Runbooks for tests, put together step by step.

use super::name;
use serde_json::{Value, json};
use windlass_core::approval;
use windlass_core::guard::{Condition, Guard, OnFailure};
use windlass_core::id::Name;
use windlass_core::policy::Risk;
use windlass_core::runbook::{
    AgentDef, ApproachDef, Compensate, Foreach, Kind, LockUse, Pipeline, Retry, Runbook, SemaphoreUse,
    StepDef, WaitFor,
};
use windlass_core::schedule::Overlap;
use windlass_core::small::Map;
use windlass_core::step::{FailFast, Failure};
use windlass_core::strategy::{Approach, FallbackCondition};
use windlass_core::template::Template;
use windlass_core::time::Span;

/// A step of a runbook under construction: its definition and what belongs to it.
#[derive(Clone)]
pub struct Spec {
    pub def: StepDef,
    members: Vec<Spec>,
    fallbacks: Vec<Vec<FallbackCondition>>,
    undo: Option<Box<Spec>>,
}

fn spec(id: &str, kind: Kind, members: Vec<Spec>) -> Spec {
    let def = StepDef {
        id: name(id),
        kind,
        when: None,
        foreach: None,
        retry: Retry::default(),
        timeout: None,
        before: Vec::new(),
        after: Vec::new(),
        lock: None,
        semaphore: None,
        compensate: Compensate::Undeclared,
        effect: None,
        reconcile: None,
        reverses: None,
        idempotency_key: None,
        key_scope: Default::default(),
        risk: None,
        checkpoint: None,
        env: Map::new(),
        dir: None,
        shell: None,
        runs_on: Vec::new(),
        outputs: Map::new(),
    };
    Spec { def, members, fallbacks: Vec::new(), undo: None }
}

/// A shell step.
pub fn run(id: &str) -> Spec {
    spec(id, Kind::Run { command: format!("./{id}") }, Vec::new())
}

/// A tool step that writes outside.
pub fn write(id: &str) -> Spec {
    let kind = Kind::Tool {
        tool: name("servicenow.update"),
        operation: name("update"),
        target: Template::Literal(json!("incident/1")),
        with: Template::Literal(json!({ "state": "resolved" })),
        writes: true,
        risk: Risk::Medium,
    };
    spec(id, kind, Vec::new())
}

pub fn parallel(id: &str, members: Vec<Spec>) -> Spec {
    spec(id, Kind::Parallel { steps: Vec::new(), fail_fast: FailFast::Stop }, members)
}

pub fn steps(id: &str, members: Vec<Spec>) -> Spec {
    spec(id, Kind::Steps { steps: Vec::new() }, members)
}

/// A strategy: each approach with what the next one is for.
pub fn strategy(id: &str, approaches: Vec<(Spec, Vec<FallbackCondition>)>) -> Spec {
    let (members, fallbacks) = approaches.into_iter().unzip();
    Spec { fallbacks, ..spec(id, Kind::Strategy { approaches: Vec::new() }, members) }
}

pub fn call(id: &str, pipeline: &str, vars: &[(&str, Template)]) -> Spec {
    let vars = vars.iter().map(|(key, t)| (name(key), t.clone())).collect();
    spec(id, Kind::Call { pipeline: name(pipeline), vars }, Vec::new())
}

pub fn approve(id: &str) -> Spec {
    let kind = Kind::Approve {
        message: Template::Literal(json!("Go on?")),
        approvers: Vec::new(),
        count: 1,
        tier: approval::Tier::Low,
        expires: Span::hours(1),
        steps: Vec::new(),
    };
    spec(id, kind, Vec::new())
}

/// An `approve` step that speaks for later ones.
pub fn approve_for(id: &str, named: &[&str]) -> Spec {
    let named: Vec<Name> = named.iter().map(|step| name(step)).collect();
    approve(id).with(|def| {
        if let Kind::Approve { steps, .. } = &mut def.kind {
            *steps = named;
        }
    })
}

/// A step of the agent `coder`: see [`with_coder`].
pub fn agent(id: &str) -> Spec {
    spec(id, Kind::Agent { agent: name("coder"), prompt: Template::Literal(json!("Do it.")) }, Vec::new())
}

/// The runbook with the agent `coder` in it.
pub fn with_coder(mut runbook: Runbook) -> Runbook {
    let coder = AgentDef {
        command: vec!["coder".to_string()],
        profile: None,
        on: Map::new(),
        heartbeat_timeout: Span::mins(2),
        max_recovery_attempts: 1,
        budget: None,
    };
    runbook.agents.insert(name("coder"), coder);
    runbook
}

/// A guard that a lock is free, which a test answers with [`World::guarded`].
pub fn guard(lock: &str, on_failure: OnFailure) -> Guard {
    Guard { name: name(lock), condition: Condition::LockFree { lock: name(lock) }, on_failure }
}

pub fn wait(id: &str, wait: WaitFor) -> Spec {
    spec(id, Kind::Wait { wait }, Vec::new())
}

impl Spec {
    pub fn when(mut self, expr: &str) -> Spec {
        self.def.when = Some(expr.to_string());
        self
    }

    pub fn foreach(mut self, over: Template, max_parallel: u32, fail_fast: bool) -> Spec {
        self.def.foreach = Some(Foreach { over, max_parallel, fail_fast });
        self
    }

    pub fn retry(mut self, max_attempts: u32, backoff: Span) -> Spec {
        self.def.retry = Retry { max_attempts: Some(max_attempts), backoff: vec![backoff], on: Vec::new() };
        self
    }

    pub fn lock(mut self, lock: &str, overlap: Overlap) -> Spec {
        self.def.lock = Some(LockUse { name: Template::Literal(json!(lock)), overlap });
        self
    }

    pub fn slots(mut self, semaphore: &str, weight: u32) -> Spec {
        self.def.semaphore = Some(SemaphoreUse { name: Template::Literal(json!(semaphore)), weight });
        self
    }

    pub fn undo(mut self, with: Spec) -> Spec {
        self.undo = Some(Box::new(with));
        self
    }

    /// Changes the definition in any other way.
    pub fn with(mut self, change: impl FnOnce(&mut StepDef)) -> Spec {
        change(&mut self.def);
        self
    }

    fn lay(self, nodes: &mut Vec<StepDef>) -> u32 {
        let at = nodes.len();
        nodes.push(self.def);
        let members: Vec<u32> = self.members.into_iter().map(|member| member.lay(nodes)).collect();
        if let Some(undo) = self.undo {
            nodes[at].compensate = Compensate::With(undo.lay(nodes));
        }
        let names: Vec<Name> = members.iter().map(|&m| nodes[m as usize].id.clone()).collect();
        match &mut nodes[at].kind {
            Kind::Parallel { steps, .. } | Kind::Steps { steps } => *steps = members,
            Kind::Strategy { approaches } => {
                *approaches = members
                    .into_iter()
                    .zip(names)
                    .zip(self.fallbacks)
                    .map(|((node, name), fallback_on)| ApproachDef {
                        node,
                        approach: Approach { name, fallback_on },
                    })
                    .collect();
            }
            _ => {}
        }
        at as u32
    }
}

/// A pipeline of these steps, with what runs after a failure and in any case.
pub fn pipeline(steps: Vec<Spec>, on_failure: Vec<Spec>, finally: Vec<Spec>) -> Pipeline {
    let mut nodes = Vec::new();
    let mut lay = |list: Vec<Spec>| list.into_iter().map(|spec| spec.lay(&mut nodes)).collect();
    let (steps, on_failure, finally) = (lay(steps), lay(on_failure), lay(finally));
    Pipeline { nodes, steps, on_failure, finally, ..Pipeline::default() }
}

/// A runbook of these pipelines.
pub fn book(pipelines: Vec<(&str, Pipeline)>) -> Runbook {
    Runbook {
        name: name("test"),
        version: 1,
        pipelines: pipelines.into_iter().map(|(key, pipeline)| (name(key), pipeline)).collect(),
        queues: Map::new(),
        workers: Map::new(),
        agents: Map::new(),
        schedules: Map::new(),
        triggers: Map::new(),
        semaphores: Map::new(),
        locks: Map::new(),
        caps: None,
        budget: None,
        evidence: None,
        issues: None,
        undoes: Vec::new(),
    }
    .with_called_compensations()
}

/// A runbook with the one pipeline `main`.
pub fn main_book(steps: Vec<Spec>) -> Runbook {
    book(vec![("main", pipeline(steps, Vec::new(), Vec::new()))])
}

pub fn expr(text: &str) -> Template {
    Template::Expr(text.to_string())
}

pub fn literal(value: Value) -> Template {
    Template::Literal(value)
}

pub fn failure(message: &str) -> Failure {
    Failure { code: name("STEP_FAILED"), message: message.to_string() }
}
