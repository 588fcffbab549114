//! What the benchmarks share: a state that commands are driven through, and nothing that is measured by accident.
//!
//! The world of the tests checks everything on the way and copies its state for every command; here only the
//! decision and its application happen. The runbooks are the world's own.

#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::panic)] // Each benchmark uses its part; one that fails shall stop.

#[path = "../../tests/world/mod.rs"]
mod world;

use serde_json::{Value, json};
use windlass_core::attempt::Report;
use windlass_core::digest::{Digest, Salt};
use windlass_core::id::{Name, RunId};
use windlass_core::machine::Given;
use windlass_core::record::Draft;
use windlass_core::run::{Actor, Initiator, Source, Trigger};
use windlass_core::runbook::VarDef;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Create, Fact};
use windlass_core::turn::state::State;
use windlass_core::turn::{self, Turn};
use world::{BOOK, POLICY, Paths, allow_shell, book, pipeline, run};
pub(crate) use world::{name, scoped};

/// How many steps a run has.
pub(crate) const STEPS: usize = 10;

/// A state, a clock and ids.
pub(crate) struct Bench {
    pub(crate) state: State,
    pub(crate) steps: Vec<Name>,
    pub(crate) by: Actor,
    next_id: u128,
    at: Millis,
}

impl Bench {
    /// A state that knows one runbook: ten shell steps, two variables.
    pub(crate) fn new() -> Bench {
        let ids: Vec<String> = (0..STEPS).map(|i| format!("step-{i}")).collect();
        let mut main = pipeline(ids.iter().map(|id| run(id)).collect(), Vec::new(), Vec::new());
        let var = VarDef::default();
        main.vars = [(name("service"), var.clone()), (name("version"), var)].into();
        let mut bench = Bench {
            state: State::new(),
            steps: ids.iter().map(|id| name(id)).collect(),
            by: Actor::new(Initiator::Executor, "local"),
            next_id: 0x0190_1234_5678_7abc_8def_0123_4567_89ab,
            at: Millis(1_763_245_800_123),
        };
        let runbook = Box::new(book(vec![("main", main)]));
        bench.send(&Command::Load { hash: BOOK, tenant: name("default"), runbook, source: None });
        bench
    }

    /// The next id: as far from the one before as those of the shell are.
    pub(crate) fn id(&mut self) -> u128 {
        self.next_id += 0x1_0000_0001;
        self.next_id
    }

    /// Drives a command that nobody refuses.
    pub(crate) fn send(&mut self, command: &Command) -> Turn {
        self.at = self.at + Span(1);
        let next_id = &mut self.next_id;
        let mut ids = || {
            *next_id += 0x1_0000_0001;
            *next_id
        };
        let mut given = Given {
            at: self.at,
            by: &self.by,
            policy: POLICY,
            lease_ttl: Span::secs(30),
            evaluate: &Paths,
            ids: &mut ids,
        };
        match turn::drive(&mut self.state, command, &mut given) {
            Ok(turn) => turn,
            Err(refusal) => panic!("{refusal}"),
        }
    }

    /// What makes a run.
    pub(crate) fn create(&mut self) -> Create {
        Create {
            id: RunId(self.id()),
            tenant: name("default"),
            namespace: name("default"),
            runbook: BOOK,
            pipeline: name("main"),
            name: name("main"),
            cwd: "/srv/checkout".to_string(),
            vars: json!({ "service": "billing", "version": "2025.11.3" }),
            trigger: Trigger {
                source: Source::Api,
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
            policy: vec![allow_shell(POLICY)],
            takes_back: None,
        }
    }

    /// Leases a step of a run.
    pub(crate) fn lease(&self, run: RunId, step: usize) -> Command {
        let (step, owner) = (self.steps[step].clone(), name("local"));
        Command::Lease { run, step, owner, agent: None, reserve: Default::default() }
    }

    /// Reports that a step is done.
    pub(crate) fn done(&self, run: RunId, step: usize) -> Command {
        let report = Report::Done { output: Some(output()), exit_code: None };
        Command::Report { run, step: self.steps[step].clone(), epoch: 1, report, receipt: None }
    }

    /// A run whose first step is leased.
    pub(crate) fn start(&mut self) -> RunId {
        let create = self.create();
        let run = create.id;
        self.send(&Command::Create(Box::new(create)));
        self.send(&self.lease(run, 0));
        run
    }

    /// Every fact of a run from its creation to its end, turn by turn.
    pub(crate) fn whole_run(&mut self) -> Vec<Fact> {
        let create = self.create();
        let run = create.id;
        let mut facts = self.send(&Command::Create(Box::new(create))).facts;
        for step in 0..STEPS {
            facts.extend(self.send(&self.lease(run, step)).facts);
            facts.extend(self.send(&self.done(run, step)).facts);
        }
        self.state.evict(&StreamId::Run(run));
        facts
    }

    /// The draft of a fact's record.
    pub(crate) fn draft<'a>(&'a self, fact: &'a Fact, ver: u64) -> Draft<'a> {
        let Fact { stream, tenant, event } = fact;
        Draft { stream, ver, at: self.at, tenant, by: &self.by, event }
    }
}

/// What a step gives: small, as most outputs are.
pub(crate) fn output() -> Value {
    json!({ "exit": 0, "url": "https://ci.example.com/build/48151623" })
}

/// A salt, without a source of chance.
pub(crate) fn salt() -> Salt {
    Salt([0x5a; 16])
}

/// The records of facts of one stream, each with the head before it.
pub(crate) fn lines(bench: &Bench, facts: &[Fact]) -> Vec<(String, Digest)> {
    let mut head = Digest::default();
    let mut lines = Vec::new();
    for (i, fact) in facts.iter().enumerate() {
        let mut line = Vec::new();
        let ver = i as u64 + 1;
        let next = bench.draft(fact, ver).encode(&head, 4_711 + ver, &mut salt, &mut line);
        lines.push((String::from_utf8(line).unwrap(), head));
        head = next;
    }
    lines
}
