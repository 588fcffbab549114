//! Executors and holders elsewhere, on a store in memory and a clock that only these tests move.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{AttemptId, Holder, Name, RunId, Scoped};
use windlass_core::lock;
use windlass_core::policy::{Risk, Verdict};
use windlass_core::run::{Actor, Initiator};
use windlass_core::stream::StreamId;
use windlass_core::template::{Evaluate, Scope};
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Refusal, Reply};
use windlass_engine::conformance::{BOOK, create, run};
use windlass_engine::fake::{Always, Collected, Counting, Hands, Memory};
use windlass_engine::handle::{Inbox, Message, inbox};
use windlass_engine::hold::{Held, Leaving};
use windlass_engine::remote::{Client, Lives, Watch, Wish};
use windlass_engine::{Engine, Handle, Options, Parts, Permit};

const POLICY: Digest = Digest([7; 32]);
const TTL: u64 = 30_000;

struct Nothing;

impl Evaluate for Nothing {
    fn evaluate(&self, expr: &str, _: &dyn Scope) -> Result<Value, String> {
        Err(format!("no `{expr}`"))
    }
}

/// A loop that is turned by hand.
struct Stage {
    engine: Engine<Memory>,
    inbox: Inbox<Memory>,
    handle: Handle<Memory>,
    clock: Arc<Hands>,
}

impl Stage {
    fn on(store: Memory, clock: Arc<Hands>) -> Stage {
        let (handle, inbox) = inbox();
        let parts = Parts {
            store,
            clock: clock.clone(),
            ids: Box::new(Counting(clock_ids(&clock))),
            evaluate: Arc::new(Nothing),
            policy: Arc::new(Always(POLICY)),
            outside: Arc::new(Collected::default()),
        };
        let options = Options { lease_ttl: Span(TTL), slice: std::time::Duration::MAX, ..Options::default() };
        let mut engine = Engine::new(parts, options, handle.clone());
        engine.recover().unwrap();
        let mut stage = Stage { engine, inbox, handle, clock };
        stage.turn();
        stage
    }

    /// With one run of a step that asks for a label.
    fn new() -> Stage {
        let step = json!({ "id": "s", "kind": { "run": { "command": "true" } }, "runs_on": ["gpu"] });
        Stage::of(&step)
    }

    fn of(step: &Value) -> Stage {
        let mut stage = Stage::on(Memory::default(), Arc::new(Hands::at(Millis(1_000_000))));
        let book =
            json!({ "name": "b", "version": 1, "pipelines": { "p": { "nodes": [step], "steps": [0] } } });
        let (tenant, runbook) = (Name::clean("default"), Box::new(serde_json::from_value(book).unwrap()));
        stage.ask(Command::Load { hash: BOOK, tenant, runbook, source: None });
        stage
    }

    fn make(&mut self, n: u128) {
        self.ask(create(n, "p", Value::Null));
        let decided = PolicyDecided {
            pipeline_id: run(n),
            step: None,
            tool: Name::clean("shell"),
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
        self.ask(Command::PolicyDecided(Box::new(decided)));
    }

    fn turn(&mut self) {
        let mut messages: Vec<Message<Memory>> = Vec::new();
        while let Some(message) = self.inbox.next() {
            messages.push(message);
        }
        self.engine.turn(messages.into_iter(), true).unwrap();
    }

    fn pass(&mut self, ms: u64) {
        self.clock.pass(ms);
        self.turn();
    }

    fn ask(&mut self, command: Command) {
        let answer = self.try_ask(command);
        answer.unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    fn try_ask(&mut self, command: Command) -> Result<Reply, Refusal> {
        let (send, receive) = channel();
        self.handle.ask(Actor::SYSTEM, command, move |reply| send.send(reply).unwrap());
        self.turn();
        receive.try_recv().unwrap()
    }

    /// An executor that waits for so long.
    fn wish(
        &mut self,
        name: &str,
        max: usize,
        wait: u64,
    ) -> (Receiver<Result<Vec<Permit>, Refusal>>, Arc<AtomicBool>) {
        let (send, receive) = channel();
        let gone = Arc::new(AtomicBool::new(false));
        self.handle.tell(Message::Wish(Wish {
            executor: Name::clean(name),
            client: client("default", "default"),
            labels: vec![Name::clean("gpu")],
            tools: vec![Name::clean("shell")],
            max,
            until: Millis(windlass_engine::port::Clock::now(&*self.clock).0 + wait),
            gone: gone.clone(),
            answer: Box::new(move |granted| send.send(granted).unwrap_or_default()),
        }));
        self.turn();
        (receive, gone)
    }

    fn lease(&mut self, name: &str) -> AttemptId {
        let (answer, _) = self.wish(name, 1, 0);
        let permits = answer.try_recv().unwrap().unwrap();
        place(permits.first().unwrap_or_else(|| panic!("{name} got nothing")))
    }

    fn watch(&mut self, place: &AttemptId, wait: u64) -> Receiver<Vec<Result<Lives, Refusal>>> {
        let (send, receive) = channel();
        self.handle.tell(Message::Extend(Watch {
            client: client("default", "default"),
            places: vec![place.clone()],
            until: Millis(windlass_engine::port::Clock::now(&*self.clock).0 + wait),
            gone: Arc::default(),
            answer: Box::new(move |news| send.send(news).unwrap_or_default()),
        }));
        self.turn();
        receive
    }

    fn beat(&mut self, place: &AttemptId) -> Result<Lives, Refusal> {
        self.watch(place, 0).try_recv().unwrap().remove(0)
    }

    fn tags(&mut self) -> Vec<&'static str> {
        self.engine.store().kept.iter().map(|kept| kept.fact.event.tag()).collect()
    }

    /// The process is killed; another starts after a while.
    fn restart(self, after_ms: u64) -> Stage {
        let clock = self.clock.clone();
        let kept = self.engine.into_store().kept;
        clock.pass(after_ms);
        Stage::on(Memory::from(kept), clock)
    }
}

/// Ids of a later start are higher.
fn clock_ids(clock: &Hands) -> u128 {
    u128::from(windlass_engine::port::Clock::now(clock).0) << 40
}

/// The owner, as somebody of a tenant's namespace.
fn client(tenant: &str, namespace: &str) -> Client {
    Client { tenant: Name::clean(tenant), namespace: Name::clean(namespace), token: None }
}

fn place(permit: &Permit) -> AttemptId {
    let lease = permit.lease();
    AttemptId { run: lease.run, step: lease.step.clone(), epoch: lease.epoch }
}

fn code(answer: Result<Lives, Refusal>) -> Option<Code> {
    answer.err().and_then(|refusal| refusal.code())
}

#[test]
fn who_waits_gets_a_step_in_the_turn_that_makes_it_ready() {
    let mut stage = Stage::new();
    let (answer, _) = stage.wish("e", 10, 60_000);
    assert!(answer.try_recv().is_err(), "there is nothing yet");
    stage.make(1);
    let permits = answer.try_recv().unwrap().unwrap();
    assert_eq!((permits.len(), permits[0].lease().run), (1, run(1)));
    assert!(permits[0].step().is_some());
    assert!(stage.tags().contains(&"step:started"));
}

#[test]
fn a_burst_is_dealt_out_and_whoever_is_gone_gets_nothing() {
    let mut stage = Stage::new();
    let (_, gone) = stage.wish("gone", 10, 60_000);
    gone.store(true, Ordering::Release);
    for n in 1..=4 {
        stage.make(n);
    }
    let (a, _) = stage.wish("a", 3, 0);
    assert_eq!(a.try_recv().unwrap().unwrap().len(), 3, "the one that was gone took nothing");
    let (b, _) = stage.wish("b", 10, 60_000);
    let (c, _) = stage.wish("c", 10, 1_000);
    assert_eq!(b.try_recv().unwrap().unwrap().len(), 1);
    assert!(c.try_recv().is_err(), "nothing is left for it");
    stage.pass(1_000);
    assert!(c.try_recv().unwrap().unwrap().is_empty(), "its time is over");
}

#[test]
fn a_lease_runs_out_exactly_at_its_time_out_and_a_heartbeat_moves_it() {
    let mut stage = Stage::new();
    stage.make(1);
    let first = stage.lease("e");
    stage.pass(TTL - 1);
    assert_eq!(stage.beat(&first).map(|lives| lives.stop), Ok(None));
    stage.pass(TTL - 1);
    assert!(!stage.tags().contains(&"step:expired"));
    stage.pass(1);
    assert!(stage.tags().contains(&"step:expired"));
    assert_eq!(code(stage.beat(&first)), Some(Code::LeaseStaleEpoch));
    let second = stage.lease("f");
    assert_eq!(second.epoch, first.epoch + 1);
    let report = Report::Done { output: None, exit_code: None };
    let AttemptId { run, step, epoch } = first;
    let late = stage.try_ask(Command::Report { run, step, epoch, report, receipt: None });
    assert_eq!(late.unwrap_err().code(), Some(Code::LeaseStaleEpoch));
}

#[test]
fn after_a_restart_a_lease_has_one_whole_time_out() {
    let mut stage = Stage::new();
    stage.make(1);
    let lease = stage.lease("e");
    stage.pass(TTL - 1);
    let mut stage = stage.restart(10_000);
    assert!(!stage.tags().contains(&"step:expired"), "nobody could be heard while nobody listened");
    stage.pass(TTL - 1);
    assert!(stage.beat(&lease).is_ok());
    let mut stage = stage.restart(10_000);
    stage.pass(TTL);
    assert!(stage.tags().contains(&"step:expired"), "the loop turns for it although nobody asks");
    assert!(!stage.tags().contains(&"pipeline:orphaned"), "it was silent for a moment only");
}

#[test]
fn a_run_whose_executor_was_silent_for_long_is_an_orphan_first() {
    let mut stage = Stage::new();
    stage.make(1);
    stage.lease("e");
    let mut stage = stage.restart(5 * 60_000);
    stage.pass(TTL);
    let tags = stage.tags();
    let at =
        |tag: &str| tags.iter().position(|one| *one == tag).unwrap_or_else(|| panic!("no {tag} in {tags:?}"));
    assert!(at("system:recovered") < at("pipeline:orphaned"), "a start says what it found");
    assert!(at("pipeline:orphaned") < at("step:expired"));
    assert_eq!(stage.lease("f").epoch, 2, "and goes on");
}

/// An executor that beats on and on although it is to stop has its lease for as long as it had it when its time to stop
/// was over. Returns the last answers it got.
fn beats_on(stage: &mut Stage, lease: &AttemptId) -> Result<Lives, Refusal> {
    stage.pass(windlass_core::gate::GRACE.0 - 1);
    let last = stage.beat(lease).unwrap().expires_at;
    for _ in 0..3 {
        stage.pass(TTL / 4);
        let lives = stage.beat(lease).unwrap();
        assert_eq!((lives.expires_at, lives.stop.is_some()), (last, true));
    }
    stage.pass(TTL / 4);
    stage.beat(lease)
}

#[test]
fn an_executor_that_ignores_a_cancel_does_not_hold_the_run_for_ever() {
    let mut stage = Stage::new();
    stage.make(1);
    let lease = stage.lease("e");
    let (initiator, reason) = (Initiator::User, None);
    stage.ask(Command::Cancel { run: run(1), initiator, user: None, reason });
    assert_eq!(code(beats_on(&mut stage, &lease)), Some(Code::RunTerminalState));
    assert!(stage.tags().contains(&"step:cancelled"), "{:?}", stage.tags());
}

#[test]
fn an_executor_that_ignores_a_time_out_loses_its_lease_and_a_late_success_is_stale() {
    let step =
        json!({ "id": "s", "kind": { "run": { "command": "true" } }, "runs_on": ["gpu"], "timeout": 5_000 });
    let mut stage = Stage::of(&step);
    stage.make(1);
    let lease = stage.lease("e");
    stage.pass(4_999);
    assert_eq!(stage.beat(&lease).unwrap().stop, None);
    stage.pass(1);
    // Also where another process comes in between.
    let mut stage = stage.restart(0);
    assert!(stage.beat(&lease).unwrap().stop.is_some());
    assert_eq!(code(beats_on(&mut stage, &lease)), Some(Code::LeaseStaleEpoch));
    assert!(stage.tags().contains(&"step:expired"), "{:?}", stage.tags());
    let report = Report::Done { output: None, exit_code: None };
    let (run, step, epoch) = (lease.run, lease.step, lease.epoch);
    let late = stage.try_ask(Command::Report { run, step, epoch, report, receipt: None });
    assert_eq!(late.unwrap_err().code(), Some(Code::LeaseStaleEpoch));
}

#[test]
fn a_cancel_is_heard_by_who_watches_and_by_who_asks_later() {
    let mut stage = Stage::new();
    stage.make(1);
    let lease = stage.lease("e");
    let watching = stage.watch(&lease, 60_000);
    assert!(watching.try_recv().is_err());
    let (initiator, reason) = (Initiator::User, None);
    stage.ask(Command::Cancel { run: run(1), initiator, user: None, reason });
    let news = watching.try_recv().unwrap().remove(0).unwrap();
    assert_eq!(news.stop, Some(windlass_core::gate::GRACE));
    assert!(stage.beat(&lease).unwrap().stop.is_some());
    // Also after a restart, which remembers no message.
    let mut stage = stage.restart(1);
    assert!(stage.beat(&lease).unwrap().stop.is_some());
}

#[test]
fn a_full_store_gives_nothing_away_and_keeps_nobody_waiting() {
    let mut stage = Stage::new();
    let (answer, _) = stage.wish("e", 1, 1_000);
    stage.engine.store().full = true;
    assert!(stage.try_ask(create(1, "p", Value::Null)).is_err());
    stage.turn();
    stage.pass(1_000);
    assert!(answer.try_recv().unwrap().unwrap().is_empty());
}

fn scoped(name: &str) -> Scoped {
    Scoped::new(&Name::clean("default"), &Name::clean("default"), &Name::clean(name))
}

fn holder(name: &str) -> Holder {
    Holder::Outside(Name::clean(name))
}

impl Stage {
    fn take(&mut self, who: &str, id: u64, wait: Option<u64>) -> Receiver<Result<Held, Refusal>> {
        let now = windlass_engine::port::Clock::now(&*self.clock);
        let ask = lock::Ask {
            holder: holder(who),
            metadata: None,
            wait: wait.is_some(),
            give_up_at: wait.map(|wait| now + Span(wait)),
        };
        self.hold(lock::Input::Acquire(ask), id)
    }

    fn hold(&mut self, input: lock::Input, id: u64) -> Receiver<Result<Held, Refusal>> {
        let (send, receive) = channel();
        let command = Command::Lock { lock: scoped("l"), input };
        self.handle.hold(Actor::SYSTEM, command, id, move |held| send.send(held).unwrap_or_default());
        self.turn();
        receive
    }

    fn release(&mut self, who: &str) -> Held {
        let input = lock::Input::Release { holder: holder(who), epoch: None };
        self.hold(input, 0).try_recv().unwrap().unwrap()
    }
}

fn epoch(held: &Receiver<Result<Held, Refusal>>) -> Option<u64> {
    Some(held.try_recv().ok()?.unwrap().grant.unwrap().epoch)
}

#[test]
fn a_lock_is_handed_down_the_line_and_each_is_told_once() {
    let mut stage = Stage::new();
    assert_eq!(epoch(&stage.take("a", 1, None)), Some(1));
    let (b, c) = (stage.take("b", 2, Some(60_000)), stage.take("c", 3, Some(60_000)));
    assert_eq!((epoch(&b), epoch(&c)), (None, None));
    stage.release("a");
    assert_eq!((epoch(&b), epoch(&c)), (Some(2), None));
    stage.release("b");
    assert_eq!(epoch(&c), Some(3));
}

#[test]
fn who_leaves_is_passed_over_and_a_newer_request_stands_for_an_older_one() {
    let mut stage = Stage::new();
    stage.take("a", 1, None);
    let older = stage.take("b", 2, Some(60_000));
    let c = stage.take("c", 3, Some(60_000));
    let newer = stage.take("b", 4, Some(50_000));
    assert_eq!(older.try_recv().unwrap().unwrap_err().code(), Some(Code::LockBusy));
    let leave = |id| Leaving { stream: StreamId::Lock(scoped("l")), holder: holder("b"), id };
    // The older one's connection closes late; the newer one stands where it stood.
    stage.handle.tell(Message::Leave(leave(2)));
    stage.turn();
    stage.release("a");
    assert_eq!(epoch(&newer), Some(2));
    let d = stage.take("d", 5, Some(60_000));
    let gone = Leaving { stream: StreamId::Lock(scoped("l")), holder: holder("c"), id: 3 };
    stage.handle.tell(Message::Leave(gone));
    stage.turn();
    stage.release("b");
    assert_eq!((epoch(&c), epoch(&d)), (None, Some(3)));
}

#[test]
fn a_waiter_gives_up_at_its_time_and_a_silent_holder_at_its_own() {
    let mut stage = Stage::new();
    stage.take("a", 1, None);
    let b = stage.take("b", 2, Some(1_000));
    stage.pass(1_000);
    let over = b.try_recv().unwrap().unwrap();
    assert_eq!(over.reply, Reply::Lock(lock::Reply::Abandoned));
    assert_eq!(over.grant.map(|grant| grant.holder), Some(holder("a")), "who has it instead");
    let c = stage.take("c", 3, Some(600_000));
    // A heartbeat is counted, whoever sent it through which door.
    stage.pass(58_000);
    let beat = lock::Input::Heartbeat { holder: holder("a"), epoch: 1 };
    let grant = stage.hold(beat, 4).try_recv().unwrap().unwrap().grant.unwrap();
    let now = windlass_engine::port::Clock::now(&*stage.clock);
    assert_eq!(grant.expires_at, Some(now + Span(60_000)));
    stage.pass(59_999);
    assert_eq!(epoch(&c), None);
    stage.pass(1);
    assert_eq!(epoch(&c), Some(2));
}

#[test]
fn who_stands_in_line_when_the_store_is_full_is_told_and_may_ask_again() {
    let mut stage = Stage::new();
    stage.take("a", 1, None);
    let kept = stage.take("b", 2, Some(60_000));
    stage.engine.store().full = true;
    let lost = stage.take("c", 3, Some(60_000));
    stage.turn();
    for answer in [kept, lost] {
        assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), Some(Code::StoreFull));
    }
    stage.engine.store().full = false;
    stage.pass(2_000);
    let (c, b) = (stage.take("c", 4, Some(60_000)), stage.take("b", 5, Some(60_000)));
    stage.release("a");
    assert_eq!((epoch(&b), epoch(&c)), (Some(2), None), "it was in line before, and kept its place");
}

#[test]
fn what_another_has_cannot_be_told_of() {
    let mut stage = Stage::new();
    stage.make(1);
    let lease = stage.lease("e");
    let report = Report::Done { output: None, exit_code: None };
    let of = |run: RunId| Command::Report {
        run,
        step: lease.step.clone(),
        epoch: lease.epoch,
        report: report.clone(),
        receipt: None,
    };
    let secrets = |run: RunId| {
        let used = vec![(Name::clean("key"), Name::clean("1"))];
        Command::Secrets { run, step: lease.step.clone(), epoch: lease.epoch, used }
    };
    let before = stage.tags();
    let token = Client { token: Some(Name::clean("tok_1")), ..client("default", "default") };
    for (client, code) in [
        (client("acme", "default"), Code::NotFound),
        (client("default", "other"), Code::NotFound),
        (token, Code::LeaseStaleEpoch),
    ] {
        let (send, receive) = channel();
        let commands = vec![of(lease.run), secrets(lease.run), of(run(9)), secrets(run(9))];
        let client = Some(client);
        stage.handle.ask_many(Actor::SYSTEM, client, commands, move |answers| send.send(answers).unwrap());
        stage.turn();
        let answers = receive.try_recv().unwrap().into_iter();
        let codes: Vec<_> = answers.map(|one| one.unwrap_err().code()).collect();
        assert_eq!(codes, [Some(code), Some(code), Some(Code::NotFound), Some(Code::NotFound)]);
    }
    assert_eq!(stage.tags(), before, "nothing was changed");
    assert!(stage.beat(&lease).is_ok());
}
