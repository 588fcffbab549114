//! A world to drive the core in: it decides commands, writes what becomes true as records, and applies those.
//!
//! Everything goes the way it will go in the engine, but in one thread and at once: decide, encode, decode again, and
//! at the end replay. Whatever a test does, the world checks on the way: records read back as they were written, run
//! states change only as their table says, terminal runs stay as they are, one lease per step, epochs only grow.

#![allow(dead_code, unreachable_pub)] // Each test crate uses its own part of it.
#![allow(clippy::unwrap_used, clippy::panic)] // It is all test; clippy knows only the test functions.

mod build;
pub use build::*;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use windlass_core::approval;
use windlass_core::attempt::Report;
use windlass_core::caps::Caps;
use windlass_core::digest::{Digest, Salt};
use windlass_core::effect::{Effect, Lease};
use windlass_core::event::{Event, PolicyDecided, TenantConfigured};
use windlass_core::guard::GuardInputs;
use windlass_core::id::{AgentId, ApprovalId, Holder, Name, ReceiptId, RunId, Scoped, SessionId, StepId};
use windlass_core::machine::Given;
use windlass_core::policy::{Risk, Verdict};
use windlass_core::receipt;
use windlass_core::record::{Check, Draft, Record};
use windlass_core::run::{Actor, Initiator, Run, Source, Status, Trigger};
use windlass_core::runbook::Runbook;
use windlass_core::step::{self};
use windlass_core::stream::StreamId;
use windlass_core::task;
use windlass_core::template::{Evaluate, Scope};
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Create, Fact, Receipted, Refusal, Reply};
use windlass_core::turn::state::State;
use windlass_core::turn::{Driven, Driver, FOLLOW_MAX, Overlay, Turn};

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A name in the one tenant and namespace that tests use.
pub fn scoped(text: &str) -> Scoped {
    Scoped::new(&name("default"), &name("default"), &name(text))
}

/// Paths (`vars.x`, `steps.a.output.y`, `item`), literals, and `a == b`: enough for tests.
pub struct Paths;

impl Evaluate for Paths {
    fn evaluate(&self, expr: &str, scope: &dyn Scope) -> Result<Value, String> {
        if let Some((left, right)) = expr.split_once("==") {
            return Ok(json!(self.evaluate(left.trim(), scope)? == self.evaluate(right.trim(), scope)?));
        }
        if let Ok(literal) = serde_json::from_str(expr) {
            return Ok(literal);
        }
        let mut parts = expr.split('.');
        let first = scope.get(parts.next().unwrap_or_default(), None)?;
        scope.spent(expr.len());
        let first = first.ok_or_else(|| format!("no `{expr}`"))?;
        parts
            .try_fold(&*first, |value, part| {
                value.get(part).ok_or_else(|| format!("no `{part}` in `{expr}`"))
            })
            .cloned()
    }
}

/// The core, a log, and a clock that only tests move.
#[derive(Clone)]
pub struct World {
    pub state: State,
    pub lines: Vec<String>,
    heads: BTreeMap<StreamId, Digest>,
    next_id: u128,
    pub at: Millis,
    pub policy: Digest,
    /// What was released, in order.
    pub effects: Vec<Effect>,
    epochs: BTreeMap<(RunId, StepId), u64>,
    /// Whether every fact is written as a record and read back.
    pub records: bool,
    /// How many follow-ups a turn may have; all of them where nothing is said.
    pub follow_max: Option<usize>,
}

/// The policy version that worlds begin with.
pub const POLICY: Digest = windlass_core::policy::BUILTIN;
pub const BOOK: Digest = Digest([1; 32]);

impl World {
    /// A world with a runbook in it.
    pub fn new(runbook: Runbook) -> World {
        let mut world = World {
            state: State::new(),
            lines: Vec::new(),
            heads: BTreeMap::new(),
            next_id: 1000,
            at: Millis(1_000_000),
            policy: POLICY,
            effects: Vec::new(),
            epochs: BTreeMap::new(),
            records: true,
            follow_max: None,
        };
        world.load(BOOK, runbook);
        world
    }

    pub fn load(&mut self, hash: Digest, runbook: Runbook) {
        let (tenant, runbook) = (name("default"), Box::new(runbook));
        self.send(&Command::Load { hash, tenant, runbook, source: None }).unwrap();
    }

    pub fn id(&mut self) -> u128 {
        self.next_id += 1;
        self.next_id
    }

    /// Decides a command and all that follows, and writes it down.
    pub fn send(&mut self, command: &Command) -> Result<Turn, Refusal> {
        self.send_by(command, &Actor::SYSTEM)
    }

    pub fn send_by(&mut self, command: &Command, by: &Actor) -> Result<Turn, Refusal> {
        let mut next_id = self.next_id;
        let mut ids = || {
            next_id += 1;
            next_id
        };
        let mut given = Given {
            at: self.at,
            by,
            policy: self.policy,
            lease_ttl: Span::secs(30),
            evaluate: &Paths,
            ids: &mut ids,
        };
        let before = self.state.clone();
        let driver = Driver::new(command.clone()).at_most(self.follow_max.unwrap_or(FOLLOW_MAX));
        let driven = driver.go(&mut self.state, &mut given);
        self.next_id = next_id;
        let Driven::Done(turn) = driven? else { panic!("a state has every stream") };
        assert!(turn.left.is_empty() || self.follow_max.is_some(), "left over: {:?}", turn.left);
        if self.records {
            self.write(&before, &turn, by);
            self.check_indexes();
        }
        self.effects.extend(turn.effects.iter().cloned());
        self.check_runs(&before);
        Ok(turn)
    }

    /// Writes down a fact that no command makes.
    pub fn fact(&mut self, stream: StreamId, event: impl Into<Event>) {
        let before = self.state.clone();
        let fact = Fact { stream, tenant: name("default"), event: event.into() };
        self.state.apply(std::slice::from_ref(&fact), self.at);
        let turn =
            Turn { facts: vec![fact], effects: Vec::new(), reply: Reply::Done, left: Vec::new(), weight: 0 };
        self.write(&before, &turn, &Actor::SYSTEM);
    }

    /// Gives the tenant its caps.
    pub fn cap(&mut self, caps: Caps) {
        let Caps { max_concurrency, max_runs_per_min, max_writes_per_run, max_runbooks, max_runbook_bytes } =
            caps;
        let tenant = StreamId::Tenant(name("default"));
        let configured = TenantConfigured {
            max_concurrency,
            max_runs_per_min,
            max_writes_per_run,
            weight: 1,
            self_approval: None,
            notices: None,
            max_runbooks,
            max_runbook_bytes,
        };
        self.fact(tenant, configured);
    }

    /// Writes the turn's facts as records, reads them back, and applies them to the state before: it must come to the
    /// same.
    fn write(&mut self, before: &State, turn: &Turn, by: &Actor) {
        let mut replayed = before.clone();
        for fact in &turn.facts {
            let head = self.heads.entry(fact.stream.clone()).or_default();
            let ver = replayed.stream(&fact.stream).map_or(0, |stream| stream.ver) + 1;
            let at = replayed.stream(&fact.stream).map_or(self.at, |stream| self.at.never_before(stream.at));
            let draft = Draft { stream: &fact.stream, ver, at, tenant: &fact.tenant, by, event: &fact.event };
            let mut line = Vec::new();
            let mut salt = self.lines.len() as u8;
            let mut salts = || {
                salt = salt.wrapping_add(1);
                Salt([salt; 16])
            };
            let chain = draft.encode(head, self.lines.len() as u64 + 1, &mut salts, &mut line);
            let line = String::from_utf8(line).unwrap();
            let record = Record::decode(&line, Check::All(head)).unwrap();
            assert_eq!(record.chain, chain);
            assert_eq!(record.to_line(), line.as_bytes());
            *head = chain;
            replayed.apply_event(&record).unwrap_or_else(|error| panic!("{error}: {line}"));
            self.state.sealed(&fact.stream, chain);
            self.lines.push(line);
        }
        assert!(
            replayed == self.state,
            "replaying the turn's records does not come to what the turn decided"
        );
    }

    /// The indexes kept on the way equal those that follow from the streams, and a turn that ran to its end leaves
    /// nothing over that would still change something.
    pub fn check_indexes(&self) {
        let mut kept = self.state.indexes().clone();
        kept.promote(self.at);
        assert!(kept == self.state.rebuilt_indexes(self.at), "the indexes are not what the streams say");
        // A turn that was cut short leaves something over, and so does a clock that moved while nobody looked at it.
        let overdue = self.state.indexes().next_due().is_some_and(|due| due <= self.at);
        if self.follow_max.is_some() || overdue {
            return;
        }
        for command in self.state.left_over() {
            let facts = self.would(&command).map(|turn| turn.facts).unwrap_or_default();
            assert!(facts.is_empty(), "left over: {command:?} would come to {facts:?}");
        }
    }

    /// What would come of a command. Nothing is written and nothing changes.
    pub fn would(&self, command: &Command) -> Result<Turn, Refusal> {
        World { records: false, ..self.clone() }.send(command)
    }

    /// Decides what bounded turns left over, until nothing of it changes anything.
    pub fn catch_up(&mut self) {
        for _ in 0..1_000 {
            let left = self.state.left_over();
            let moved = |turn: Result<Turn, Refusal>| turn.is_ok_and(|turn| !turn.facts.is_empty());
            let changed = left.iter().filter(|command| moved(self.send(command))).count();
            if changed == 0 {
                return;
            }
        }
        panic!("something stays left over");
    }

    fn check_runs(&mut self, before: &State) {
        for (id, stream) in self.state.streams() {
            let windlass_core::turn::state::Body::Run(run) = &stream.body else { continue };
            let was = match before.stream(&id).map(|stream| &stream.body) {
                Some(windlass_core::turn::state::Body::Run(run)) => Some(run),
                _ => None,
            };
            let from = was.map_or(Status::Pending, |run| run.status());
            let to = run.status();
            assert!(from == to || !from.path_to(to).is_empty(), "{}: {from} cannot become {to}", run.id());
            if let Some(was) = was.filter(|run| run.is_terminal()) {
                assert_eq!(was.steps, run.steps, "an ended run's steps changed");
            }
            for step in &run.steps {
                let epoch = self.epochs.entry((run.id(), step.id.clone())).or_insert(step.epoch);
                assert!(step.epoch >= *epoch, "{}: an epoch went back", step.id);
                *epoch = step.epoch;
                let attempted = matches!(step.status, step::Status::Running | step::Status::OutcomeUnknown);
                let leased = attempted && step.group.is_none();
                assert_eq!(
                    step.lease.is_some(),
                    leased,
                    "{}: {} with lease {:?}",
                    step.id,
                    step.status,
                    step.lease
                );
            }
        }
    }

    /// Folds the log from nothing: it must come to the same.
    pub fn check_replay(&self) {
        let mut replayed = State::new();
        let mut heads: BTreeMap<StreamId, Digest> = BTreeMap::new();
        for line in &self.lines {
            let form = Record::decode(line, Check::Form).unwrap();
            let head = heads.entry(form.stream).or_default();
            let record = Record::decode(line, Check::All(head)).unwrap();
            *head = record.chain;
            replayed.apply_event(&record).unwrap();
        }
        assert!(replayed == self.state, "the log does not fold to the state");
    }

    /// What is created for a run of `main`.
    pub fn create(&mut self, pipeline: &str, vars: Value) -> Create {
        let id = RunId(self.id());
        Create {
            id,
            tenant: name("default"),
            namespace: name("default"),
            runbook: BOOK,
            pipeline: name(pipeline),
            name: name(pipeline),
            cwd: String::new(),
            vars,
            trigger: Trigger {
                source: Source::Cli,
                key: None,
                user: Some(name("ann")),
                event_id: None,
                traceparent: None,
                of: None,
            },
            subject: None,
            correlation_id: None,
            priority: 0,
            needs: Vec::new(),
            parent: None,
            depth: 0,
            deadline_at: None,
            workspace: None,
            policy: vec![allow_shell(self.policy)],
            takes_back: None,
        }
    }

    /// Makes a run of `main` and lets it begin.
    pub fn start(&mut self) -> RunId {
        let create = self.create("main", Value::Null);
        self.send(&Command::Create(Box::new(create.clone()))).unwrap();
        create.id
    }

    /// Makes a run of `main` with these variables.
    pub fn start_with(&mut self, vars: Value) -> RunId {
        let create = self.create("main", vars);
        self.send(&Command::Create(Box::new(create.clone()))).unwrap();
        create.id
    }

    /// The child run of a `call`.
    pub fn child(&self, id: RunId, step: &str) -> RunId {
        self.step(id, step).child().unwrap_or_else(|| panic!("{step} calls nothing"))
    }

    /// The stops that were released so far, as `step@epoch`; those of child runs are not among them.
    pub fn stopped(&self, id: RunId) -> Vec<String> {
        let stop = |effect: &Effect| match effect {
            Effect::Stop { run, step, epoch, .. } if *run == id => Some(format!("{step}@{epoch}")),
            _ => None,
        };
        self.effects.iter().filter_map(stop).collect()
    }

    /// Leases a step and reports a failure that the tool calls retryable.
    pub fn fail_retryable(&mut self, id: RunId, step: &str) {
        let epoch = self.lease(id, step).epoch;
        let failure = failure("service unavailable");
        let report = Report::Failed { failure, retryable: true, exit_code: None, signal: None };
        self.report(id, step, epoch, report).unwrap();
    }

    /// The executor of a running step reports that it stopped, as asked.
    pub fn stop(&mut self, id: RunId, step: &str) {
        let epoch = self.step(id, step).epoch;
        self.report(id, step, epoch, Report::Stopped).unwrap();
    }

    /// The executor of a running step is gone.
    pub fn lose(&mut self, id: RunId, step: &str) {
        let epoch = self.step(id, step).epoch;
        self.report(id, step, epoch, Report::Lost { last_seen: None }).unwrap();
    }

    /// Answers a step's guards about a lock: free, held, or nobody knows.
    pub fn guarded(&mut self, id: RunId, step: &str, lock: &str, free: Option<bool>) {
        let mut inputs = GuardInputs::default();
        if let Some(free) = free {
            let holder = (!free).then(|| Holder::Outside(name("somebody")));
            inputs.locks.insert(name(lock), holder);
        }
        self.send(&Command::Guarded { run: id, step: name(step), inputs: Box::new(inputs) }).unwrap();
    }

    /// Leases a step to an agent and starts its session.
    pub fn start_agent(&mut self, id: RunId, step: &str) -> SessionId {
        let (agent, session) = (AgentId(self.id()), SessionId(self.id()));
        let (owner, reserve) = (name("ex1"), Default::default());
        let lease = Command::Lease { run: id, step: name(step), owner, agent: Some(agent), reserve };
        let Reply::Leased(lease) = self.send(&lease).unwrap().reply else { panic!("no lease of {step}") };
        self.task(id, step, task::Input::Start { session, epoch: lease.epoch }).unwrap();
        session
    }

    pub fn task(&mut self, id: RunId, step: &str, input: task::Input) -> Result<Turn, Refusal> {
        self.send(&Command::Task { run: id, step: name(step), input })
    }

    pub fn resolve(
        &mut self,
        id: RunId,
        step: &str,
        resolution: step::Resolution,
        output: Option<Value>,
    ) -> Result<Turn, Refusal> {
        let (step, probed, reason) = (name(step), false, None);
        self.send(&Command::Resolve { run: id, step, resolution, probed, reason, output })
    }

    pub fn signal(
        &mut self,
        id: RunId,
        event: &str,
        key: Option<&str>,
        data: Value,
    ) -> Result<Turn, Refusal> {
        let (name, key) = (name(event), key.map(name));
        self.send(&Command::Signal { run: id, name, key, data, event_id: None })
    }

    /// Why a step failed.
    pub fn error(&self, id: RunId, step: &str) -> String {
        let error = self.step(id, step).error.as_ref();
        error.map_or(String::new(), |error| format!("{}: {}", error.code, error.message))
    }

    /// Why a run failed.
    pub fn run_error(&self, id: RunId) -> String {
        let failure = self.run(id).failure.as_ref();
        failure.map_or(String::new(), |failure| format!("{}: {}", failure.1.code, failure.1.message))
    }

    pub fn output(&self, id: RunId, step: &str) -> Value {
        self.step(id, step).output().unwrap_or(Value::Null)
    }

    pub fn run(&self, id: RunId) -> &Run {
        self.state.run(id).unwrap_or_else(|| panic!("no run {id}"))
    }

    pub fn status(&self, id: RunId) -> Status {
        self.run(id).status()
    }

    pub fn step(&self, id: RunId, step: &str) -> &step::Step {
        self.run(id).step(&name(step)).unwrap_or_else(|| panic!("no step {step} in {:?}", self.trace(id)))
    }

    pub fn step_status(&self, id: RunId, step: &str) -> step::Status {
        self.step(id, step).status
    }

    /// `step: status` of every step that was reached, in order.
    pub fn trace(&self, id: RunId) -> Vec<String> {
        self.run(id).steps.iter().map(|step| format!("{}: {}", step.id, step.status)).collect()
    }

    /// The tags of the run's own records, in order.
    pub fn tags(&self, id: RunId) -> Vec<String> {
        let mine = format!("\"stream\":\"run/{id}\"");
        let tag = |line: &String| line.split('"').nth(3).unwrap().to_string();
        self.lines.iter().filter(|line| line.contains(&mine)).map(tag).collect()
    }

    /// Steps that can be leased, by name.
    pub fn leasable(&self, id: RunId) -> Vec<String> {
        self.run(id).leasable().map(|step| step.id.to_string()).collect()
    }

    pub fn lease(&mut self, id: RunId, step: &str) -> Lease {
        match self.try_lease(id, step, "ex1").unwrap().reply {
            Reply::Leased(lease) => *lease,
            other => panic!("no lease of {step}: {other:?}"),
        }
    }

    pub fn try_lease(&mut self, id: RunId, step: &str, owner: &str) -> Result<Turn, Refusal> {
        let (step, owner) = (name(step), name(owner));
        self.send(&Command::Lease { run: id, step, owner, agent: None, reserve: Default::default() })
    }

    pub fn report(&mut self, id: RunId, step: &str, epoch: u64, report: Report) -> Result<Turn, Refusal> {
        self.send(&Command::Report { run: id, step: name(step), epoch, report, receipt: None })
    }

    /// Leases a step and reports that it is done.
    pub fn succeed(&mut self, id: RunId, step: &str) {
        self.succeed_with(id, step, None);
    }

    pub fn succeed_with(&mut self, id: RunId, step: &str, output: Option<Value>) {
        let lease = self.lease(id, step);
        self.report(id, step, lease.epoch, Report::Done { output, exit_code: Some(0.into()) }).unwrap();
    }

    /// Leases a step and reports that it failed.
    pub fn fail(&mut self, id: RunId, step: &str, message: &str) {
        let lease = self.lease(id, step);
        let report = Report::Failed {
            failure: failure(message),
            retryable: false,
            exit_code: Some(1.into()),
            signal: None,
        };
        self.report(id, step, lease.epoch, report).unwrap();
    }

    /// Lets executors carry everything out that can be leased, successfully, until nothing can.
    pub fn work(&mut self, id: RunId) {
        for _ in 0..10_000 {
            let Some(step) = self.leasable(id).first().cloned() else { return };
            self.succeed(id, &step);
        }
        panic!("it never ends");
    }

    pub fn cancel(&mut self, id: RunId) -> Result<Turn, Refusal> {
        let (initiator, user) = (Initiator::User, Some(name("ann")));
        self.send(&Command::Cancel { run: id, initiator, user, reason: None })
    }

    /// Moves the clock and lets every stream that is due look at it.
    pub fn sleep(&mut self, span: Span) {
        self.at = self.at + span;
        for _ in 0..1_000 {
            // One that is due and has nothing to record, as when it waits for an executor, keeps no other waiting.
            let due: Vec<StreamId> = self.state.indexes().due(self.at).cloned().collect();
            let mut moved = false;
            for stream in due {
                moved |= !self.send(&Command::Tick(stream)).unwrap().facts.is_empty();
            }
            if !moved {
                return;
            }
        }
        panic!("something stays due");
    }

    /// Answers policy's question about a step.
    pub fn decide_policy(&mut self, id: RunId, step: &str, verdict: Verdict) {
        let found = self.run(id).need(&name(step)).unwrap();
        let decided = PolicyDecided {
            pipeline_id: id,
            step: Some(found.id.clone()),
            tool: found.tool.clone(),
            action_hash: found.action_hash().copied(),
            verdict,
            ..allow_shell(self.policy)
        };
        self.send(&Command::PolicyDecided(Box::new(decided))).unwrap();
    }

    /// A receipt of an outside write, as an executor brings it.
    pub fn receipt(&mut self, status: receipt::Outcome, response: Value) -> Receipted {
        let id = ReceiptId(self.id());
        let reverse = Some(receipt::Reversal {
            tool: name("servicenow.update"),
            operation: name("reopen"),
            target: name("incident/1"),
            fields: Value::Null,
        });
        Receipted { id, status, reversible: true, reverse, request: None, response: Some(response) }
    }

    /// Reports a write as done, with its receipt.
    pub fn wrote(&mut self, id: RunId, step: &str, epoch: u64, response: Value) -> Result<Turn, Refusal> {
        let receipt = Some(Box::new(self.receipt(receipt::Outcome::Succeeded, response.clone())));
        let report = Report::Done { output: Some(response), exit_code: None };
        self.send(&Command::Report { run: id, step: name(step), epoch, report, receipt })
    }

    /// The open approval of a step.
    pub fn open_approval(&self, id: RunId, step: &str) -> approval::Approval {
        let open =
            |a: &&approval::Approval| a.step.as_str() == step && a.status == approval::Status::Requested;
        self.run(id)
            .rare()
            .approvals
            .values()
            .find(open)
            .cloned()
            .unwrap_or_else(|| panic!("no open approval of {step}"))
    }

    pub fn decide(
        &mut self,
        id: RunId,
        approval: ApprovalId,
        verdict: approval::Verdict,
        hash: Digest,
        by: &str,
    ) -> Result<Turn, Refusal> {
        let attempt = approval::Attempt {
            decision: verdict,
            by: name(by),
            human: true,
            groups: Vec::new(),
            action_hash: hash,
            channel: approval::Channel::Cli,
            reason: None,
            card: None,
        };
        self.send(&Command::Decide { run: id, approval, input: approval::Input::Decide(attempt) })
    }

    /// The events of the log.
    pub fn events(&self) -> Vec<Event> {
        self.lines.iter().map(|line| Record::decode(line, Check::Form).unwrap().event).collect()
    }
}

/// What policy says of shell steps once for a run.
pub fn allow_shell(policy_version: Digest) -> PolicyDecided {
    PolicyDecided {
        pipeline_id: RunId(0),
        step: None,
        tool: name("shell"),
        verdict: Verdict::Allow,
        policy_version,
        action_hash: None,
        approvals: 0,
        rules: Vec::new(),
        reasons: Vec::new(),
        risk: Risk::Low,
        tier: None,
        count: None,
        two_person: None,
        approvers: None,
        expires_ms: None,
        purpose: None,
    }
}
