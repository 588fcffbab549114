//! What every store must do: the same stories, told on each, come to the same facts.
//!
//! A story is a script of commands, passing time and restarts. The suite tells it on [`Memory`],
//! which is the reference, and on the store under test, with the same clock and ids; whatever differs is a defect of
//! the store. Each story is told a second time with a restart after every turn, because a store may forget.

mod stories;
pub use stories::stories;

use crate::engine::{Engine, Options, Parts};
use crate::fake::{Always, Collected, Counting, Hands, Kept, Memory, replay};
use crate::handle::{Inbox, Message, inbox};
use crate::port::{Fault, Store};
use crate::release::Released;
use serde_json::Value;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use windlass_core::approval;
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::guard::GuardInputs;
use windlass_core::id::{Name, RunId};
use windlass_core::policy;
use windlass_core::run::{Actor, Source, Trigger};
use windlass_core::step::Failure;
use windlass_core::stream::StreamId;
use windlass_core::template::{Evaluate, Scope};
use windlass_core::time::Millis;
use windlass_core::turn::Found;
use windlass_core::turn::command::{Command, Create};
use windlass_core::turn::state::{Body, State};

/// A store under test.
pub trait Subject: Store + Sized + 'static {
    /// The same store after a restart: what was durable is there, and nothing else.
    fn reopen(self) -> Self;
    /// Everything that is durable, in order.
    fn kept(&mut self) -> Vec<Kept>;
    /// Lets it have no room, or room again. Says whether it can do that.
    fn fill(&mut self, full: bool) -> bool;
    /// A stream that was decided on without being loaded, where the store can tell.
    fn blind(&self) -> Option<&StreamId> {
        None
    }
}

impl Subject for Memory {
    fn reopen(self) -> Self {
        Memory::from(self.kept)
    }
    fn kept(&mut self) -> Vec<Kept> {
        self.kept.clone()
    }
    fn fill(&mut self, full: bool) -> bool {
        self.full = full;
        true
    }
}

impl Subject for crate::fake::Forgetful {
    fn reopen(self) -> Self {
        crate::fake::Forgetful::from(self.kept)
    }
    fn kept(&mut self) -> Vec<Kept> {
        self.kept.clone()
    }
    fn fill(&mut self, full: bool) -> bool {
        self.full = full;
        true
    }
    fn blind(&self) -> Option<&StreamId> {
        crate::fake::Forgetful::blind(self)
    }
}

/// One thing that happens in a story.
#[derive(Clone, Debug)]
pub enum Act {
    /// Somebody asks for something.
    Ask(Box<Command>),
    /// Time passes.
    Pass(u64),
    /// The oldest attempt under way ends well, with this output.
    Succeed(Value),
    /// The oldest attempt under way fails.
    Fail(&'static str),
    /// The oldest open approval is approved.
    Approve,
    /// The process ends and starts again.
    Restart,
    /// The store has no room from here on.
    Fill,
    /// The store has room again.
    Drain,
}

/// A story.
#[derive(Clone, Debug)]
pub struct Story {
    /// Its name.
    pub name: &'static str,
    /// The runbook, in the core's own form.
    pub runbook: Value,
    /// What happens.
    pub acts: Vec<Act>,
}

/// The runbook of every story is stored under this hash.
pub const BOOK: Digest = Digest([9; 32]);
pub(crate) const POLICY: Digest = policy::BUILTIN;

/// The run with this number.
#[must_use]
pub fn run(n: u128) -> RunId {
    RunId(n << 64)
}

/// A command that makes a run of a pipeline.
#[must_use]
pub fn create(n: u128, pipeline: &str, vars: Value) -> Command {
    let name = Name::clean;
    Command::Create(Box::new(Create {
        id: run(n),
        tenant: name("default"),
        namespace: name("default"),
        runbook: BOOK,
        pipeline: name(pipeline),
        name: name(pipeline),
        cwd: "/".into(),
        vars,
        trigger: Trigger {
            source: Source::Cli,
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
        policy: Vec::new(),
        takes_back: None,
    }))
}

/// Paths (`vars.x`, `item`), which is all that stories need.
struct Paths;

impl Evaluate for Paths {
    fn evaluate(&self, expr: &str, scope: &dyn Scope) -> Result<Value, String> {
        let mut parts = expr.split('.');
        let first = scope.get(parts.next().unwrap_or_default(), None)?;
        let first = first.ok_or_else(|| format!("no `{expr}`"))?;
        parts.try_fold(&*first, |value, part| value.get(part).ok_or_else(|| format!("no `{part}`"))).cloned()
    }
}

/// A store with a loop around it, driven by hand.
struct Stage<S: Store> {
    engine: Engine<S>,
    inbox: Inbox<S>,
    handle: crate::Handle<S>,
    clock: Arc<Hands>,
    outside: Arc<Collected>,
    attempts: Vec<crate::Permit>,
    approvals: Vec<(RunId, windlass_core::id::ApprovalId)>,
    /// What was answered, in order: the code of a refusal, or nothing.
    answers: Receiver<Option<Code>>,
    answer: Sender<Option<Code>>,
    ids: u128,
}

impl<S: Subject> Stage<S> {
    fn new(store: S, clock: Arc<Hands>, ids: u128) -> Result<Stage<S>, Fault> {
        let outside = Arc::new(Collected::default());
        let (handle, inbox) = inbox();
        let parts = Parts {
            store,
            clock: clock.clone(),
            ids: Box::new(Counting(ids)),
            evaluate: Arc::new(Paths),
            policy: Arc::new(Always(POLICY)),
            outside: outside.clone(),
        };
        let mut engine = Engine::new(
            parts,
            Options { slice: std::time::Duration::MAX, ..Options::default() },
            handle.clone(),
        );
        engine.recover()?;
        while !engine.is_settled() {
            std::thread::yield_now();
        }
        let (answer, answers) = channel();
        let (attempts, approvals) = (Vec::new(), Vec::new());
        let mut stage =
            Stage { engine, inbox, handle, clock, outside, attempts, approvals, answers, answer, ids };
        stage.settle()?;
        Ok(stage)
    }

    /// Lets the loop turn until nothing more is asked of it.
    fn settle(&mut self) -> Result<(), Fault> {
        for _ in 0..1_000 {
            let mut messages: Vec<Message<S>> = Vec::new();
            for released in self.outside.take() {
                match released {
                    Released::Execute(permit) => self.attempts.push(permit),
                    Released::Effect(effect) => self.answer_effect(effect),
                }
            }
            while let Ok(message) = self.inbox.receiver.try_recv() {
                messages.push(message);
            }
            let quiet = messages.is_empty();
            self.engine.turn(messages.into_iter(), true)?;
            while !self.engine.is_settled() {
                std::thread::yield_now();
            }
            if quiet && self.outside_is_quiet() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn outside_is_quiet(&mut self) -> bool {
        // What was released by the last turn is put back for the next round.
        let released = self.outside.take();
        let quiet = released.is_empty();
        released.into_iter().for_each(|released| crate::port::Outside::start(&*self.outside, released));
        quiet
    }

    /// What the outside answers by itself: policy allows, guards hold.
    fn answer_effect(&mut self, effect: Effect) {
        match effect {
            Effect::EvaluatePolicy { run, step, tool, action_hash, approvals, .. } => {
                let own = policy::scope(tool.as_str()) == policy::Scope::PerStep;
                let decided = stories::allowed((run, own.then_some(step)), tool, action_hash, approvals);
                self.handle.report(Actor::SYSTEM, Command::PolicyDecided(Box::new(decided)));
            }
            Effect::GatherGuard { run, step, .. } => {
                let inputs = Box::new(GuardInputs::default());
                self.handle.report(Actor::SYSTEM, Command::Guarded { run, step, inputs });
            }
            Effect::ShowApproval { run, approval, .. } if !self.approvals.contains(&(run, approval)) => {
                self.approvals.push((run, approval));
            }
            Effect::Stop { run, step, epoch, .. } => {
                self.attempts.retain(|permit| permit.lease().run != run || permit.lease().step != step);
                let report = Report::Stopped;
                self.handle
                    .report(Actor::SYSTEM, Command::Report { run, step, epoch, report, receipt: None });
            }
            // Known already; a person decides, which is an act of the story.
            Effect::ShowApproval { .. } => {}
            // Stories are about the store, and nothing comes back of these in them.
            Effect::Execute(_)
            | Effect::Probe { .. }
            | Effect::ComputeSlots { .. }
            | Effect::ListItems { .. }
            | Effect::TakeItem { .. }
            | Effect::Send { .. }
            | Effect::Kill { .. }
            | Effect::Nudge { .. }
            | Effect::WorktreeAdd { .. }
            | Effect::WorktreeRemove { .. }
            | Effect::Notify { .. } => {}
        }
    }

    fn act(mut self, act: &Act) -> Result<Stage<S>, Fault> {
        match act {
            Act::Ask(command) => {
                let answer = self.answer.clone();
                self.handle.ask(Actor::SYSTEM, (**command).clone(), move |reply| {
                    let _ = answer.send(reply.err().and_then(|refusal| refusal.code()));
                });
            }
            Act::Pass(ms) => self.clock.pass(*ms),
            Act::Succeed(output) => {
                let output = Some(output.clone()).filter(|output| !output.is_null());
                self.report(Report::Done { output, exit_code: Some(0.into()) });
            }
            Act::Fail(message) => {
                let failure = Failure::new(Code::StepFailed, *message);
                self.report(Report::Failed {
                    failure,
                    retryable: true,
                    exit_code: Some(1.into()),
                    signal: None,
                });
            }
            Act::Approve => self.approve()?,
            Act::Restart => {
                self.settle()?;
                let (clock, ids) = (self.clock.clone(), self.ids + 1_000_000);
                let store = self.engine.into_store().reopen();
                return Stage::new(store, clock, ids);
            }
            Act::Fill => {
                self.engine.store().fill(true);
            }
            Act::Drain => {
                self.engine.store().fill(false);
                self.clock.pass(2_000);
            }
        }
        self.settle()?;
        Ok(self)
    }

    fn report(&mut self, report: Report) {
        if self.attempts.is_empty() {
            return;
        }
        let permit = self.attempts.remove(0);
        let (run, step, epoch) = (permit.lease().run, permit.lease().step.clone(), permit.lease().epoch);
        self.handle.report(Actor::SYSTEM, Command::Report { run, step, epoch, report, receipt: None });
    }

    fn approve(&mut self) -> Result<(), Fault> {
        if self.approvals.is_empty() {
            return Ok(());
        }
        let (run, approval) = self.approvals.remove(0);
        let store = self.engine.store();
        store.load(&[StreamId::Run(run)])?;
        if let Found::Here(Body::Run(body)) = store.view().find(&StreamId::Run(run))
            && let Some(open) = body.rare().approvals.get(&approval)
        {
            let input = approval::Input::Decide(stories::agreed(open.action_hash));
            self.handle.report(Actor::SYSTEM, Command::Decide { run, approval, input });
        }
        Ok(())
    }
}

/// Tells a story; returns what became durable and what was answered.
fn tell<S: Subject>(
    store: S,
    story: &Story,
    restarts: bool,
) -> Result<(Vec<Kept>, Vec<Option<Code>>), String> {
    let fault = |fault: Fault| format!("{}: {fault}", story.name);
    let clock = Arc::new(Hands::at(Millis(1_000_000)));
    let mut stage = Stage::new(store, clock, 1 << 32).map_err(fault)?;
    let runbook =
        serde_json::from_value(story.runbook.clone()).map_err(|e| format!("{}: {e}", story.name))?;
    let load = Command::Load {
        hash: BOOK,
        tenant: Name::clean("default"),
        runbook: Box::new(runbook),
        source: None,
    };
    stage = stage.act(&Act::Ask(Box::new(load))).map_err(fault)?;
    let mut answers = Vec::new();
    for act in &story.acts {
        stage = stage.act(act).map_err(fault)?;
        answers.extend(stage.answers.try_iter());
        if restarts {
            stage = stage.act(&Act::Restart).map_err(fault)?;
        }
        if let Some(blind) = stage.engine.store().blind() {
            return Err(format!("{}: {blind} was decided on without being loaded", story.name));
        }
    }
    Ok((stage.engine.store().kept(), answers))
}

/// Tells every story on a fresh store each, and compares with the reference.
///
/// # Errors
/// The first story that comes to something else, and where.
pub fn check<S: Subject>(mut fresh: impl FnMut() -> S) -> Result<usize, String> {
    let stories = stories();
    let fills = fresh().fill(false);
    for story in &stories {
        if !fills && story.acts.iter().any(|act| matches!(act, Act::Fill)) {
            continue;
        }
        for restarts in [false, true] {
            let expected = tell(Memory::default(), story, restarts)?;
            ended(story, &replay(&expected.0))?;
            let found = tell(fresh(), story, restarts)?;
            compare(story, restarts, &expected, &found)?;
        }
    }
    Ok(stories.len())
}

/// A story that leaves a run hanging would prove little.
fn ended(story: &Story, state: &State) -> Result<(), String> {
    let open = state.streams().find_map(|(id, stream)| match &stream.body {
        Body::Run(run) if !run.is_terminal() => Some(format!("{id} is {}", run.status())),
        // tidy: only runs end.
        _ => None,
    });
    open.map_or(Ok(()), |open| Err(format!("{}: {open} at the end of the story", story.name)))
}

fn compare<A: PartialEq + std::fmt::Debug>(
    story: &Story,
    restarts: bool,
    expected: &(Vec<Kept>, A),
    found: &(Vec<Kept>, A),
) -> Result<(), String> {
    let name = if restarts { format!("{} (with restarts)", story.name) } else { story.name.to_owned() };
    let line = |kept: &Kept| format!("{} {} {}", kept.at, kept.fact.stream, kept.fact.event.tag());
    let lines = |list: &[Kept]| list.iter().map(line).collect::<Vec<_>>();
    let (wanted, got) = (lines(&expected.0), lines(&found.0));
    if let Some(at) = (0..wanted.len().max(got.len())).find(|&at| wanted.get(at) != got.get(at)) {
        return Err(format!("{name}: fact {at} is {:?}, expected {:?}", got.get(at), wanted.get(at)));
    }
    // Private values that were read back have salts, so facts are compared by what they fold to.
    if replay(&expected.0) != replay(&found.0) {
        return Err(format!("{name}: the facts fold to another state"));
    }
    if expected.1 != found.1 {
        return Err(format!("{name}: answered {:?}, expected {:?}", found.1, expected.1));
    }
    Ok(())
}
