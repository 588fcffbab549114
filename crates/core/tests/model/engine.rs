//! The engine under the model checker: production decisions on a materialised state, each made once and remembered.
//!
//! `drive` is a function of the state, the clock, the policy in force and the question, so its answers are kept: the
//! checker meets the same engine in thousands of surroundings. Every state it goes on from was read back from its
//! snapshot, and every turn's facts were written as records and read back. By induction, a server that crashes and
//! folds its log comes to the very state the model goes on with.

#![allow(clippy::unwrap_used)] // It is all test; clippy knows only the test functions.

use crate::world::{BOOK, Paths, Spec, allow_shell, failure, main_book, name, write};
use serde_json::json;
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, RwLock};
use windlass_core::approval;
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::digest::{Digest, Salt};
use windlass_core::effect::Effect;
use windlass_core::event::{Event, PolicyDecided};
use windlass_core::id::{ApprovalId, ReceiptId, RunId};
use windlass_core::machine::Given;
use windlass_core::policy::Verdict;
use windlass_core::receipt::{self, Semantics};
use windlass_core::record::{Check, Draft, Record};
use windlass_core::run::{Actor, Initiator, Lineage, Run, Source, Trigger};
use windlass_core::step::{Resolution, Status};
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Create, Fact, Receipted, Refusal, Reply};
use windlass_core::turn::state::{Snapshot, State};
use windlass_core::turn::{self, Turn};

pub(crate) const RUN: RunId = RunId(1);
pub(crate) const STEPS: [&str; 2] = ["s1", "s2"];
const OWNERS: [&str; 2] = ["ex1", "ex2"];
/// One step of the model's clock: long enough for an approval to expire and for a back-off to be over.
const STEP: Span = Span::mins(1);
const BEGIN: Millis = Millis(1_000_000);

/// Bits of a state's `broken`: what was violated on the way to it.
pub(crate) const L1: u16 = 1;
pub(crate) const E1: u16 = 2;
pub(crate) const E2: u16 = 4;
pub(crate) const E3: u16 = 8;
pub(crate) const A1: u16 = 16;
pub(crate) const S1: u16 = 32;
pub(crate) const C1: u16 = 64;
pub(crate) const D4: u16 = 128;
pub(crate) const K1: u16 = 256;

/// What the runbook and the policy say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// What can be done about a lost attempt, for each step.
    pub(crate) semantics: [Semantics; 2],
    /// Whether the second policy denies what the first allowed.
    pub(crate) deny: bool,
}

impl Terms {
    /// What the policy of this version says of a step.
    pub(crate) fn verdict(&self, step: u8, version: u8) -> Verdict {
        match step {
            0 => Verdict::NeedsApproval,
            _ if self.deny && version % 2 == 1 => Verdict::Deny,
            _ => Verdict::Allow,
        }
    }
}

/// The clock and the policy in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Env {
    pub(crate) clock: u8,
    pub(crate) policy: u8,
}

impl Env {
    fn at(self) -> Millis {
        BEGIN + Span(STEP.0 * u64::from(self.clock))
    }
}

/// When an approval that is asked for now is void: at the next step of the clock.
pub(crate) fn expires(clock: u8) -> u8 {
    clock + 1
}

fn version(policy: u8) -> Digest {
    Digest([policy + 1; 32])
}

/// What an executor says, or the engine about one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum What {
    /// It happened.
    Done,
    /// The other side refused, and said so.
    Refused,
    /// It was not begun.
    Returned,
    /// It was stopped before it began.
    Stopped,
    /// The lease ran out.
    Lost,
}

/// What a human says of an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Vote {
    Yes,
    /// Yes, to another action than the one that is asked about.
    WrongHash,
    No,
}

/// What is asked of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Lease {
        step: u8,
        owner: u8,
    },
    Report {
        step: u8,
        epoch: u8,
        what: What,
    },
    Policy {
        step: u8,
        version: u8,
    },
    Decide {
        approval: u8,
        vote: Vote,
    },
    Void {
        approval: u8,
    },
    Resolve {
        step: u8,
        how: Resolution,
    },
    Cancel,
    Look,
    /// A planted defect: a lease that does not look whether the effect has happened.
    LeaseBlindly {
        step: u8,
        owner: u8,
    },
}

/// A state of the engine, with what identifies it.
pub(crate) struct Engine {
    pub(crate) state: State,
    print: u64,
}

impl PartialEq for Engine {
    fn eq(&self, other: &Engine) -> bool {
        self.print == other.print
    }
}

impl Hash for Engine {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.print.hash(hasher);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = self.run();
        write!(f, "{}", run.status())?;
        run.steps.iter().try_for_each(|s| write!(f, " {}:{}@{}", s.id, s.status, s.epoch))?;
        run.rare().approvals.values().try_for_each(|a| write!(f, " {}", a.status))
    }
}

impl Engine {
    /// The run.
    pub(crate) fn run(&self) -> &Run {
        self.state.run(RUN).unwrap()
    }

    /// Where a step is, and at which epoch.
    pub(crate) fn step(&self, step: u8) -> (Status, u8) {
        match self.run().step(&name(STEPS[step as usize])) {
            Some(step) => (step.status, step.epoch as u8),
            None => (Status::Pending, 1),
        }
    }

    /// The approvals, in the order they were asked for: ids grow with the log.
    pub(crate) fn approval(&self, nth: u8) -> Option<&approval::Approval> {
        self.run().rare().approvals.values().nth(nth as usize)
    }
}

/// What came of a question.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The engine afterwards; none where the question was refused.
    pub(crate) next: Option<Arc<Engine>>,
    /// Whether it was refused as being of an old attempt.
    pub(crate) stale: bool,
    /// Whether the run's own stream has new records.
    pub(crate) run_moved: bool,
    /// The leases that were released: step and epoch.
    pub(crate) executed: Vec<(u8, u8)>,
    /// Approvals that were asked for.
    pub(crate) asked: u8,
    /// Whose effect is now known to have happened.
    pub(crate) happened: [bool; 2],
    /// Whose outcome became unknown.
    pub(crate) unknown: [bool; 2],
    /// Whether a result was reused.
    pub(crate) reused: bool,
    /// What the turn violated by itself.
    pub(crate) broken: u16,
}

type Question = (u64, Env, Ask);

/// The production core, remembering its answers.
pub(crate) struct Core {
    terms: Terms,
    engines: RwLock<HashMap<u64, Arc<Engine>>>,
    answers: RwLock<HashMap<Question, Arc<Answer>>>,
}

impl Core {
    pub(crate) fn new(terms: Terms) -> Core {
        Core { terms, engines: RwLock::default(), answers: RwLock::default() }
    }

    /// An engine in which the run has just begun.
    pub(crate) fn begin(&self) -> Arc<Engine> {
        let step = |i: usize| -> Spec {
            let semantics = Some(self.terms.semantics[i]);
            write(STEPS[i]).with(|def| def.effect = semantics).retry(2, Span::secs(30))
        };
        let mut state = State::new();
        let (tenant, runbook) = (name("default"), Box::new(main_book(vec![step(0), step(1)])));
        let env = Env { clock: 0, policy: 0 };
        let load = Command::Load { hash: BOOK, tenant, runbook, source: None };
        drive(&mut state, &load, env).unwrap();
        drive(&mut state, &Command::Create(Box::new(create())), env).unwrap();
        self.intern(&state).unwrap()
    }

    /// How many engines and answers there were.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.engines.read().unwrap().len(), self.answers.read().unwrap().len())
    }

    /// Asks the engine.
    pub(crate) fn ask(&self, engine: &Arc<Engine>, env: Env, ask: Ask) -> Arc<Answer> {
        let question = (engine.print, env, ask);
        if let Some(answer) = self.answers.read().unwrap().get(&question) {
            return answer.clone();
        }
        let answer = Arc::new(self.answer(engine, env, ask));
        self.answers.write().unwrap().insert(question, answer.clone());
        answer
    }

    fn answer(&self, engine: &Engine, env: Env, ask: Ask) -> Answer {
        let mut answer = Answer {
            next: None,
            stale: false,
            run_moved: false,
            executed: Vec::new(),
            asked: 0,
            happened: [false; 2],
            unknown: [false; 2],
            reused: false,
            broken: 0,
        };
        let Some(command) = self.command(engine, env, ask) else { return answer };
        let blind;
        let before = match ask {
            Ask::LeaseBlindly { .. } => {
                blind = without_effects(&engine.state);
                &blind
            }
            _ => &engine.state,
        };
        let mut after = before.clone();
        let turn = match drive(&mut after, &command, env) {
            Ok(turn) => turn,
            Err(refusal) => {
                answer.stale = refusal.code() == Some(Code::LeaseStaleEpoch);
                // A refusal changes nothing at all.
                answer.broken |= if after == *before { 0 } else { S1 };
                return answer;
            }
        };
        answer.reused = turn.reply == Reply::Reused;
        answer.broken |= transitions(before, &turn, ask, env) | replays(before, &turn, &after, env);
        for fact in &turn.facts {
            note(fact, &mut answer);
        }
        for effect in &turn.effects {
            if let Effect::Execute(lease) = effect {
                answer.executed.push((step_of(lease.step.as_str()), lease.epoch as u8));
                answer.broken |= intended(&turn, lease, &command);
            }
        }
        match self.intern(&after) {
            Some(next) => answer.next = Some(next),
            None => answer.broken |= D4,
        }
        answer
    }

    /// The one engine of this state, read back from its snapshots; none where these do not come to the same.
    fn intern(&self, state: &State) -> Option<Arc<Engine>> {
        let mut hasher = DefaultHasher::new();
        // The runbook is the same throughout.
        let book = StreamId::Runbook(BOOK);
        let mut read = State::new();
        read.restore(state.save(&book)?).ok()?;
        for (id, _) in state.streams().filter(|(id, _)| *id != book) {
            let bytes = serde_json::to_vec(&state.save(&id)).unwrap();
            bytes.hash(&mut hasher);
            let snapshot: Snapshot = serde_json::from_slice(&bytes).unwrap();
            read.restore(snapshot).unwrap();
        }
        if read != *state {
            return None;
        }
        let print = hasher.finish();
        let mut engines = self.engines.write().unwrap();
        Some(engines.entry(print).or_insert_with(|| Arc::new(Engine { state: read, print })).clone())
    }

    fn command(&self, engine: &Engine, env: Env, ask: Ask) -> Option<Command> {
        let id = |step: u8| name(STEPS[step as usize]);
        Some(match ask {
            Ask::Lease { step, owner } | Ask::LeaseBlindly { step, owner } => Command::Lease {
                run: RUN,
                step: id(step),
                owner: name(OWNERS[owner as usize]),
                agent: None,
                reserve: Default::default(),
            },
            Ask::Report { step, epoch, what } => {
                let (report, receipt) = report(step, epoch, what);
                Command::Report { run: RUN, step: id(step), epoch: u64::from(epoch), report, receipt }
            }
            Ask::Policy { step, version: decided } => {
                let known = engine.run().step(&id(step))?;
                Command::PolicyDecided(Box::new(PolicyDecided {
                    pipeline_id: RUN,
                    step: Some(id(step)),
                    tool: known.tool.clone(),
                    action_hash: known.action_hash().copied(),
                    verdict: self.terms.verdict(step, decided),
                    expires_ms: Some(STEP.0),
                    purpose: None,
                    ..allow_shell(version(decided))
                }))
            }
            Ask::Decide { approval, vote } => {
                let known = engine.approval(approval)?;
                Command::Decide { run: RUN, approval: known.id, input: decision(known, vote) }
            }
            Ask::Void { approval } => {
                let approval: ApprovalId = engine.approval(approval)?.id;
                let input = approval::Input::Void { reason: "the policy moved".to_string() };
                Command::Decide { run: RUN, approval, input }
            }
            Ask::Resolve { step, how } => Command::Resolve {
                run: RUN,
                step: id(step),
                resolution: how,
                probed: self.terms.semantics[step as usize] == Semantics::Reconcile,
                reason: None,
                output: None,
            },
            Ask::Cancel => Command::Cancel {
                run: RUN,
                initiator: Initiator::User,
                user: Some(name("ann")),
                reason: None,
            },
            Ask::Look => {
                engine.run().due().filter(|due| *due <= env.at())?;
                Command::Tick(StreamId::Run(RUN))
            }
        })
    }
}

fn without_effects(state: &State) -> State {
    let mut state = state.clone();
    let is_effect = |id: &StreamId| matches!(id, StreamId::Effect(_));
    let effects: Vec<StreamId> = state.streams().map(|(id, _)| id.clone()).filter(is_effect).collect();
    effects.iter().for_each(|id| drop(state.evict(id)));
    state
}

fn step_of(id: &str) -> u8 {
    u8::from(id == STEPS[1])
}

fn create() -> Create {
    Create {
        id: RUN,
        tenant: name("default"),
        namespace: name("default"),
        runbook: BOOK,
        pipeline: name("main"),
        name: name("main"),
        cwd: String::new(),
        vars: json!({}),
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
        policy: Vec::new(),
        takes_back: None,
    }
}

fn report(step: u8, epoch: u8, what: What) -> (Report, Option<Box<Receipted>>) {
    let receipt = |status| {
        Some(Box::new(Receipted {
            // The same report has the same receipt, however often it comes.
            id: ReceiptId(u128::from(step) * 1_000 + u128::from(epoch)),
            status,
            reversible: false,
            reverse: None,
            request: None,
            response: Some(json!({ "ok": true })),
        }))
    };
    match what {
        What::Done => (
            Report::Done { output: Some(json!({ "ok": true })), exit_code: None },
            receipt(receipt::Outcome::Succeeded),
        ),
        What::Refused => (
            Report::Failed { failure: failure("refused"), retryable: true, exit_code: None, signal: None },
            receipt(receipt::Outcome::Failed),
        ),
        What::Returned => (Report::Returned { reason: None }, None),
        What::Stopped => (Report::Stopped, None),
        What::Lost => (Report::Lost { last_seen: None }, None),
    }
}

fn decision(known: &approval::Approval, vote: Vote) -> approval::Input {
    let action_hash = if vote == Vote::WrongHash { Digest([9; 32]) } else { known.action_hash };
    let decision = if vote == Vote::No { approval::Verdict::Rejected } else { approval::Verdict::Approved };
    approval::Input::Decide(approval::Attempt {
        decision,
        by: name("bob"),
        human: true,
        groups: Vec::new(),
        action_hash,
        channel: approval::Channel::Cli,
        reason: None,
        card: None,
    })
}

/// One turn of the production core. Ids come from the number of records there are, so equal states draw equal ids.
fn drive(state: &mut State, command: &Command, env: Env) -> Result<Turn, Refusal> {
    let records: u64 = state.streams().map(|(_, stream)| stream.ver).sum();
    let mut next = u128::from(records) * 100;
    let mut ids = || {
        next += 1;
        next
    };
    let mut given = Given {
        at: env.at(),
        by: &Actor::SYSTEM,
        policy: version(env.policy),
        lease_ttl: Span::secs(30),
        evaluate: &Paths,
        ids: &mut ids,
    };
    turn::drive(state, command, &mut given)
}

/// What a fact says that the model remembers for itself.
fn note(fact: &Fact, answer: &mut Answer) {
    answer.run_moved |= fact.stream == StreamId::Run(RUN);
    match &fact.event {
        Event::ApprovalRequested(_) => answer.asked += 1,
        Event::StepUnknown(e) => answer.unknown[step_of(e.step.as_str()) as usize] = true,
        Event::ReceiptRecorded(e) if e.status == receipt::Outcome::Succeeded => {
            answer.happened[step_of(e.step.as_str()) as usize] = true;
        }
        Event::IntentSettled(e) if e.outcome == receipt::Settled::Done => {
            answer.happened[step_of(e.step.as_str()) as usize] = true;
        }
        // tidy: the other facts are seen through the state.
        _ => {}
    }
}

/// A lease is released only by the turn that records it: the intent under the step's one key, and the start, both of
/// this epoch.
fn intended(turn: &Turn, lease: &windlass_core::effect::Lease, command: &Command) -> u16 {
    let lineage = Lineage::first(RUN);
    let key = receipt::scoped_key(receipt::KeyScope::Lineage(&lineage), &lease.step, None, None).unwrap();
    let intent = |fact: &Fact| match &fact.event {
        Event::IntentRecorded(e) => e.key == key && e.step == lease.step && e.epoch == lease.epoch,
        // tidy: nothing else is an intent.
        _ => false,
    };
    let start = |fact: &Fact| match &fact.event {
        Event::StepStarted(e) => e.step == lease.step && e.epoch == lease.epoch,
        // tidy: nothing else starts a step.
        _ => false,
    };
    let recorded = turn.facts.iter().any(intent) && turn.facts.iter().any(start);
    let asked = matches!(command, Command::Lease { .. });
    if recorded && asked && lease.idempotency_key == key { 0 } else { E1 | L1 }
}

/// The table of step states in DESIGN §3, and what else one turn may not do to a run and its steps.
fn transitions(before: &State, turn: &Turn, ask: Ask, env: Env) -> u16 {
    let mut broken = 0;
    let mut run = before.run(RUN).unwrap().clone();
    let from = run.status();
    let ended = run.is_terminal();
    for fact in turn.facts.iter().filter(|fact| fact.stream == StreamId::Run(RUN)) {
        let was: Vec<Status> = STEPS.iter().map(|step| status(&run, step)).collect();
        run.fold(&fact.event, env.at());
        for (step, was) in STEPS.iter().zip(was) {
            let now = status(&run, step);
            if was != now && !may_become(was, now) {
                broken |= S1;
            }
            if let (Event::StepFailed(e), Ask::Lease { .. }) = (&fact.event, ask) {
                broken |= if e.code == Code::PolicyDenied.name() { 0 } else { K1 };
            }
            let settles = matches!(ask, Ask::Resolve { .. });
            if was == Status::OutcomeUnknown && now == Status::Ready && !settles {
                broken |= E2;
            }
        }
    }
    let to = run.status();
    if from != to && from.path_to(to).is_empty() {
        broken |= S1;
    }
    if ended && run.steps != before.run(RUN).unwrap().steps {
        broken |= S1;
    }
    broken
}

fn status(run: &Run, step: &str) -> Status {
    run.step(&name(step)).map_or(Status::Pending, |step| step.status)
}

fn may_become(from: Status, to: Status) -> bool {
    use Status as S;
    let next: &[Status] = match from {
        S::Pending => &[S::Ready, S::Skipped, S::Cancelled],
        S::Ready => &[S::Running, S::WaitingApproval, S::WaitingExternal, S::Cancelled],
        S::Running => &[
            S::Succeeded,
            S::Failed,
            S::FailedRetryable,
            S::WaitingApproval,
            S::WaitingExternal,
            S::OutcomeUnknown,
            S::Ready,
            S::Cancelled,
        ],
        S::WaitingApproval => &[S::Ready, S::Failed, S::Cancelled],
        S::WaitingExternal => &[S::Ready, S::Succeeded, S::Failed, S::Cancelled],
        S::FailedRetryable => &[S::Ready, S::Failed, S::Cancelled],
        S::OutcomeUnknown => &[S::Succeeded, S::Ready, S::Failed, S::Cancelled],
        S::Succeeded | S::Skipped | S::Failed | S::Cancelled => &[],
    };
    next.contains(&to)
}

/// The turn's facts, written as records, read back and applied to the state before, come to the state after.
fn replays(before: &State, turn: &Turn, after: &State, env: Env) -> u16 {
    let mut state = before.clone();
    let head = Digest::default();
    for fact in &turn.facts {
        let known = state.stream(&fact.stream);
        let ver = known.map_or(0, |stream| stream.ver) + 1;
        let at = known.map_or(env.at(), |stream| env.at().never_before(stream.at));
        let by = &Actor::SYSTEM;
        let draft = Draft { stream: &fact.stream, ver, at, tenant: &fact.tenant, by, event: &fact.event };
        let mut line = Vec::new();
        draft.encode(&head, 1, &mut || Salt([1; 16]), &mut line);
        let line = String::from_utf8(line).unwrap();
        let record = Record::decode(&line, Check::All(&head)).unwrap();
        if state.apply_event(&record).is_err() {
            return D4;
        }
        // Chains would tell apart what is the same; they have tests of their own.
        state.sealed(&fact.stream, head);
    }
    if state == *after && turn.left.is_empty() { 0 } else { D4 }
}

/// Whether an unended run waits for nobody: no executor, no human, no policy, no clock can move it.
pub(crate) fn stuck(core: &Core, engine: &Arc<Engine>, env: Env) -> bool {
    let run = engine.run();
    let moves = |step: u8| {
        let Some(known) = run.step(&name(STEPS[step as usize])) else { return false };
        match known.status {
            Status::Running | Status::WaitingExternal | Status::FailedRetryable | Status::OutcomeUnknown => {
                true
            }
            Status::WaitingApproval => {
                let on = known.waiting.as_ref().and_then(|waiting| waiting.on.clone());
                let open = |a: &approval::Approval| a.status == approval::Status::Requested;
                let awaited =
                    |a: &approval::Approval| Some(a.id.to_string()) == on.as_ref().map(|on| on.to_string());
                // Exactly one is open, and it is the one that the step waits for.
                run.rare().approvals.values().filter(|a| open(a)).count() == 1
                    && run.rare().approvals.values().any(|a| open(a) && awaited(a))
            }
            // Executors are offered what can be leased, and must not be refused for ever.
            Status::Ready => {
                run.leasable().any(|offered| offered.id == known.id)
                    && core.ask(engine, env, Ask::Lease { step, owner: 0 }).next.is_some()
            }
            Status::Pending | Status::Succeeded | Status::Skipped | Status::Failed | Status::Cancelled => {
                false
            }
        }
    };
    !run.is_terminal() && !(0..2).any(moves)
}
