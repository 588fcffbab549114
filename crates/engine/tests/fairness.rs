//! Fairness through the whole loop: however much one tenant has queued, another's single run waits for one turn.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;
use std::sync::Arc;
use windlass_core::attempt::Report;
use windlass_core::caps::Caps;
use windlass_core::digest::Digest;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::policy::{Risk, Verdict};
use windlass_core::run::{Actor, Source, Trigger};
use windlass_core::template::NoExpressions;
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Create};
use windlass_engine::fake::{Always, Collected, Counting, Hands, Memory};
use windlass_engine::handle::{Inbox, inbox};
use windlass_engine::port::Outside;
use windlass_engine::{Engine, Handle, Options, Parts, Released};

const BOOK: Digest = Digest([9; 32]);
const POLICY: Digest = Digest([7; 32]);
/// How many runs the large tenant has queued.
const MANY: u128 = 100_000;

struct Loop {
    engine: Engine<Memory>,
    handle: Handle<Memory>,
    inbox: Inbox<Memory>,
    outside: Arc<Collected>,
}

/// An attempt that was released.
type Attempt = (RunId, StepId, u64, Name);

impl Loop {
    fn new(slots: usize) -> Loop {
        let (handle, inbox) = inbox();
        let outside = Arc::new(Collected::default());
        let parts = Parts {
            store: Memory::default(),
            clock: Arc::new(Hands::at(Millis(1_000_000))),
            ids: Box::new(Counting(1 << 100)),
            evaluate: Arc::new(NoExpressions),
            policy: Arc::new(Always(POLICY)),
            outside: outside.clone() as Arc<dyn Outside>,
        };
        let engine = Engine::new(
            parts,
            Options { slots, slice: std::time::Duration::MAX, ..Options::default() },
            handle.clone(),
        );
        let mut all = Loop { engine, handle, inbox, outside };
        let step = json!({ "id": "s", "kind": { "run": { "command": "true" } } });
        let book =
            json!({ "name": "b", "version": 1, "pipelines": { "p": { "nodes": [step], "steps": [0] } } });
        let runbook = serde_json::from_value(book).unwrap();
        all.ask(Command::Load {
            hash: BOOK,
            tenant: Name::clean("big"),
            runbook: Box::new(runbook),
            source: None,
        });
        all
    }

    fn ask(&mut self, command: Command) {
        self.handle.ask(Actor::SYSTEM, command, |answer| {
            answer.unwrap();
        });
        self.turn();
    }

    fn turn(&mut self) {
        let messages: Vec<_> = std::iter::from_fn(|| self.inbox.next()).collect();
        self.engine.turn(messages.into_iter(), false).unwrap();
    }

    fn create(&mut self, tenant: &str, id: u128) {
        let (id, name) = (RunId(id), Name::clean);
        let policy = PolicyDecided {
            pipeline_id: id,
            step: None,
            tool: name("shell"),
            verdict: Verdict::Allow,
            policy_version: POLICY,
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
        };
        let create = Create {
            id,
            tenant: name(tenant),
            namespace: name("default"),
            runbook: BOOK,
            pipeline: name("p"),
            name: name("p"),
            cwd: String::new(),
            vars: json!(null),
            trigger: Trigger {
                source: Source::Api,
                key: None,
                user: None,
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
            policy: vec![policy],
            takes_back: None,
        };
        self.handle.ask(Actor::SYSTEM, Command::Create(Box::new(create)), |answer| {
            answer.unwrap();
        });
    }

    fn released(&mut self) -> Vec<Attempt> {
        let attempts = self.outside.take().into_iter().filter_map(|released| match released {
            Released::Execute(permit) => {
                let lease = permit.lease();
                Some((lease.run, lease.step.clone(), lease.epoch, permit.work().tenant.clone()))
            }
            Released::Effect(_) => None,
        });
        attempts.collect()
    }

    /// An attempt ends, and the loop turns.
    fn finish(&mut self, (run, step, epoch, _): Attempt) {
        let report = Report::Done { output: None, exit_code: None };
        self.handle.report(Actor::SYSTEM, Command::Report { run, step, epoch, report, receipt: None });
        self.turn();
    }
}

#[test]
fn a_hundred_thousand_queued_runs_delay_another_tenants_one_by_a_turn() {
    let mut all = Loop::new(1);
    for n in 1..=MANY {
        all.create("big", n << 64);
        if n % 4_096 == 0 {
            all.turn();
        }
    }
    all.turn();
    // The one slot is the large tenant's, and has been for a while.
    let mut attempts = all.released();
    for _ in 0..50 {
        assert_eq!(attempts.len(), 1);
        let attempt = attempts.remove(0);
        assert_eq!(attempt.3.as_str(), "big");
        all.finish(attempt);
        attempts = all.released();
    }
    all.create("small", (MANY + 1) << 64);
    all.turn();
    let mut turns = 0;
    loop {
        let attempt = attempts.remove(0);
        if attempt.3.as_str() == "small" {
            break;
        }
        turns += 1;
        assert!(turns <= 2, "the small tenant waits for {turns} turns of the large one");
        all.finish(attempt);
        attempts = all.released();
    }
}

#[test]
fn a_tenant_at_its_concurrency_waits_and_the_other_goes_on() {
    let mut all = Loop::new(8);
    let caps = Caps { max_concurrency: Some(2), ..Caps::default() };
    all.ask(Command::Tenant {
        tenant: Name::clean("big"),
        caps,
        weight: 100,
        self_approval: None,
        notices: Vec::new(),
    });
    for n in 1..=20 {
        all.create("big", n << 64);
    }
    all.create("small", 21 << 64);
    all.turn();
    let attempts = all.released();
    let of = |tenant: &str| attempts.iter().filter(|attempt| attempt.3.as_str() == tenant).count();
    assert_eq!((of("big"), of("small")), (2, 1), "{attempts:?}");
    let ended = attempts.into_iter().find(|attempt| attempt.3.as_str() == "big").unwrap();
    all.finish(ended);
    assert_eq!(all.released().len(), 1, "a place is free for the next one");
}
