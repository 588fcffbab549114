//! The outside of this process: where shell steps, guards, policy and messages are carried out.
//!
//! The engine releases an effect where its batch became durable, and must not be kept waiting there; so everything
//! goes into a line that one thread works off. It only starts things: commands run under the keeper, guards are
//! gathered on threads of their own, tools have an executor of theirs, and whatever comes of them goes back to the
//! engine as a report.

pub(crate) mod beside;
mod emit;
mod notices;
mod probe;

use crate::app::App;
use crate::attempts::Attempts;
use crate::cards::sender::Sender as Cards;
use crate::external::{self, Errand};
use crate::guards;
use crate::policy::pool::Pool;
use crate::policy::{self, Edition, InForce, Question};
use beside::For;
use serde_json::Value;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::effect::Effect;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{AttemptId, Name, RunId, Scoped, StepId};
use windlass_core::receipt::Action;
use windlass_core::run::{Actor, Initiator};
use windlass_core::runbook::{Kind, StepDef};
use windlass_core::schedule;
use windlass_core::template::Template;
use windlass_core::time::{Millis, Span};
use windlass_core::trace;
use windlass_core::turn::command::{Command, Receipted, Refusal};
use windlass_engine::port::{Fault, Outside};
use windlass_engine::{Handle, Leave, Permit, Released};
use windlass_executor::config::Config;
use windlass_executor::executor::{Executor, Given, Lease, Script, Terms, Work, failed};
use windlass_executor::home::Home;
use windlass_executor::secrets::{OfRun, Registered, Secrets};
use windlass_executor::shell::{self, Author, Shell};
use windlass_executor::tools::execute::{Finished, OutputLost};
use windlass_executor::tools::session::Witness;
use windlass_executor::tools::settings::Settings as ToolSettings;
use windlass_runbook::cron;
use windlass_runbook::expr::Cel;
use windlass_runbook::tools::EMIT;
use windlass_store::store::Embedded;

/// How long an answer to a cancel waits for commands that are about to begin.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// When a schedule is looked at again whose slots could not be computed.
const SLOTS_AGAIN: Span = Span::mins(10);

/// The executor and everything else outside, in this process.
pub struct Local {
    line: Mutex<Sender<Next>>,
    hands: Arc<Hands>,
    /// Where callers wait for their answers, once somebody serves them.
    callers: OnceLock<tokio::runtime::Handle>,
}

/// What the working thread works off.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are of the large kind, and a box for each would be slower"
)]
enum Next {
    /// Something may happen now.
    Released(Released),
    /// Somebody wants to know when everything before this was started.
    Passed(Sender<()>),
}

/// What the working thread and the callbacks share.
pub(crate) struct Hands {
    pub(crate) engine: Handle<Embedded>,
    home: Home,
    /// What the configuration file says.
    pub(crate) config: Arc<Config>,
    policy: Arc<InForce>,
    pool: Pool<PolicyDecided>,
    pub(crate) evaluate: Arc<Cel>,
    shell: Option<Arc<Shell>>,
    /// Carries out leases; absent where nothing is carried out.
    executor: Option<Arc<Executor>>,
    /// Shows people what waits for them; absent where nothing is carried out.
    cards: Option<Arc<Cards>>,
    by: Actor,
    attempts: Arc<Attempts>,
    registered: Arc<Registered>,
    running: Mutex<Running>,
    ended: Condvar,
    /// The way of custom events; absent until this process serves.
    events: emit::Way,
    /// What people are to be told.
    notices: notices::Line,
}

/// Whose a process is.
#[derive(Clone, Debug, PartialEq)]
pub enum Whose {
    /// No step's.
    Apart,
    /// This attempt's.
    Attempt(AttemptId),
    /// Some step's: it left the tree of its attempt.
    Step,
}

#[derive(Default)]
struct Running {
    /// Workers whose external queues are being listed, and the list that was asked for meanwhile.
    listing: HashMap<Scoped, Option<Errand>>,
    /// Looks at guards that are under way.
    looks: beside::Looks,
    /// The process ends: what is stopped now is handed back rather than reported as stopped.
    stopping: bool,
}

impl Local {
    /// Begins to work.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(
        engine: Handle<Embedded>,
        home: Home,
        (config, policy): (Arc<Config>, Arc<InForce>),
        evaluate: Arc<Cel>,
        (executor, cards): (Option<Arc<Executor>>, Option<Arc<Cards>>),
        settings: &Arc<ToolSettings>,
    ) -> std::io::Result<Arc<Local>> {
        let by = Actor::new(Initiator::Executor, "local");
        let (running, ended) = (Mutex::default(), Condvar::new());
        let attempts = Arc::new(Attempts::open(&home)?);
        let pool = Pool::default();
        let shell = executor.as_ref().map(|executor| executor.shell().clone());
        let secrets = executor.as_ref().map(|executor| executor.secrets().clone());
        let registered = Registered::new(secrets.unwrap_or_else(|| Arc::new(Secrets::new(home.root()))));
        let hands = Arc::new(Hands {
            engine,
            home,
            config,
            policy,
            pool,
            evaluate,
            shell,
            executor,
            cards,
            by,
            attempts,
            registered,
            running,
            ended,
            events: emit::Way::default(),
            notices: notices::Line::default(),
        });
        hands.notices.begin(&hands, settings)?;
        let (line, work) = channel();
        let worker = hands.clone();
        std::thread::Builder::new().name("outside".into()).spawn(move || worker.serve(&work))?;
        Ok(Arc::new(Local { line: Mutex::new(line), hands, callers: OnceLock::new() }))
    }

    /// Callers are served by this runtime from now on: they are told there. The first one stays.
    pub fn serves_on(&self, runtime: tokio::runtime::Handle) {
        let _ = self.callers.set(runtime);
    }

    /// Whether processes can be started here, as far as this process is to start any.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.hands.shell.as_ref().is_none_or(|shell| shell.is_ready())
    }

    /// Custom events of steps go this way from now on.
    pub fn emits_by(&self, app: &Arc<App>) {
        self.hands.events.open(app);
    }

    /// The tokens of attempts.
    #[must_use]
    pub fn attempts(&self) -> Arc<Attempts> {
        self.hands.attempts.clone()
    }

    /// Waits until no command of a run is about to begin here: after a cancel that is durable, none begins any more.
    pub fn settle(&self, run: RunId) {
        let (told, passed) = channel();
        let _ = self.line.lock().unwrap_or_else(PoisonError::into_inner).send(Next::Passed(told));
        let _ = passed.recv_timeout(SETTLE_MAX);
        if let Some(executor) = &self.hands.executor {
            executor.settle(run, SETTLE_MAX);
        }
    }

    /// Asks policy whether what is left of a step's effect may be looked at. Waits for the answer, and that it is on record.
    ///
    /// # Errors
    /// It may not, or policy could not be asked.
    pub fn may_look(&self, run: RunId, step: StepId, action: Action) -> Result<Leave, Refusal> {
        self.hands.may_look(run, step, action)
    }

    /// Whose a process with these ancestors is.
    #[must_use]
    pub fn whose(&self, line: &[shell::Identity]) -> Whose {
        let attempt = self.hands.executor.as_ref().and_then(|executor| executor.attempt_of(line));
        if let Some(attempt) = attempt {
            return Whose::Attempt(attempt);
        }
        let is_step = self.hands.shell.as_ref().is_some_and(|shell| shell.is_above(line));
        if is_step { Whose::Step } else { Whose::Apart }
    }

    /// Where secrets come from.
    #[must_use]
    pub fn secrets(&self) -> Arc<Secrets> {
        self.hands.registered.secrets().clone()
    }

    /// What is masked of a run, where that is known yet.
    #[must_use]
    pub fn masked(&self, run: RunId) -> Option<OfRun> {
        self.hands.registered.known(run)
    }

    /// What is masked of a run.
    #[must_use]
    pub fn secrets_of(
        &self,
        run: (RunId, Millis),
        tenant: &Name,
        names: impl FnOnce() -> BTreeSet<Name>,
    ) -> OfRun {
        self.hands.secrets_of(run, tenant, names)
    }

    /// Ends every attempt under way and hands it back: a later process takes it up again.
    pub fn stop(&self) {
        let hands = &self.hands;
        hands.lock().stopping = true;
        // Commands that wait for room need not wait any longer.
        hands.ended.notify_all();
        if let Some(executor) = &hands.executor {
            executor.leave(shell::spec::GRACE);
        }
        if let Some(cards) = &hands.cards {
            cards.stop();
        }
    }
}

impl Outside for Local {
    fn start(&self, released: Released) {
        // The worker lives as long as this does.
        let _ = self.line.lock().unwrap_or_else(PoisonError::into_inner).send(Next::Released(released));
    }

    fn tell(&self, several: Box<dyn FnOnce() + Send>) {
        match self.callers.get() {
            Some(callers) => tell_on(callers, several),
            None => several(),
        }
    }

    fn fatal(&self, fault: &Fault) {
        // Nothing that was written since the last sync can be relied on, so nothing may go on from it. Callers that
        // wait for an answer get none; what is durable is found by the next start.
        eprintln!("windlass: {}: {fault}", fault.code());
        std::process::exit(i32::from(fault.code().exit()));
    }
}

/// Has a thread of the runtime tell callers who wait there. Whoever blocks the last of its threads to wait for an answer
/// waits for ever; blocking calls belong on threads of their own.
fn tell_on(callers: &tokio::runtime::Handle, several: Box<dyn FnOnce() + Send>) {
    let telling = Telling(Some(several));
    drop(callers.spawn(async move { drop(telling) }));
}

/// Callers who are to be told something. They are, even where the runtime that was to do it has ended.
struct Telling(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(several) = self.0.take() {
            several();
        }
    }
}

/// Lets something outside be reached on a thread of its own; says whether there was one.
fn reaching(reach: impl FnOnce() + Send + 'static) -> bool {
    let spawned = std::thread::Builder::new().name("external".into()).spawn(reach);
    if let Err(error) = &spawned {
        eprintln!("windlass: an external queue could not be reached: {error}");
    }
    spawned.is_ok()
}

impl Hands {
    fn lock(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(self: &Arc<Hands>, work: &Receiver<Next>) {
        while let Ok(next) = work.recv() {
            match next {
                Next::Released(Released::Execute(permit)) => self.execute(&permit),
                Next::Released(Released::Effect(effect)) => self.effect(effect),
                // Whoever asked may have gone away.
                Next::Passed(told) => drop(told.send(())),
            }
        }
    }

    fn report(&self, attempt: AttemptId, report: Report) {
        self.report_with(attempt, report, None);
    }

    fn report_with(&self, attempt: AttemptId, report: Report, receipt: Option<Box<Receipted>>) {
        let AttemptId { run, step, epoch } = attempt;
        self.engine.report(self.by.clone(), Command::Report { run, step, epoch, report, receipt });
    }

    /// What is masked of a run.
    pub(crate) fn secrets_of(
        &self,
        run: (RunId, Millis),
        tenant: &Name,
        names: impl FnOnce() -> BTreeSet<Name>,
    ) -> OfRun {
        if let Some(known) = self.registered.too_many() {
            let registered = self.registered.clone();
            self.engine.read_then(
                move |store| {
                    let lives = |run: &RunId| store.state().run(*run).is_some_and(|run| !run.is_terminal());
                    known.into_iter().filter(|run| !lives(run)).collect::<Vec<_>>()
                },
                move |ended| registered.forget(&ended.unwrap_or_default()),
            );
        }
        self.registered.of(run, tenant, names)
    }

    /// Whoever uses a secret in an attempt says so first, and waits until that is durable.
    fn witness(&self, attempt: AttemptId) -> Witness {
        let (engine, by) = (self.engine.clone(), self.by.clone());
        Arc::new(move |name, version| {
            let used = vec![(name, version)];
            let AttemptId { run, step, epoch } = attempt.clone();
            let command = Command::Secrets { run, step, epoch, used };
            engine.call(by.clone(), command).map(|_| ())
        })
    }

    fn fail(&self, attempt: AttemptId, code: Code, message: impl Into<String>) {
        self.report(attempt, failed(code, message));
    }

    /// Carries out an attempt. The permit says that its lease is durable.
    fn execute(self: &Arc<Hands>, permit: &Permit) {
        let attempt = permit.attempt();
        let Some(executor) = &self.executor else {
            return self.fail(attempt, Code::Internal, "this process carries out no steps");
        };
        let Some(step) = permit.step() else {
            return self.fail(attempt, Code::Internal, "the step's definition is not in its runbook");
        };
        let work = match &step.kind {
            Kind::Run { command } => Work::Command(self.script(permit, step, command)),
            // What a transformation gives is what was rendered for it.
            Kind::Tool { tool, .. } if tool.as_str() == "transform" => {
                Work::Transform(permit.lease().input.as_ref().and_then(|input| input.get("fields")).cloned())
            }
            Kind::Tool { tool, .. } if tool.as_str() == EMIT => return self.emit(permit),
            Kind::Tool { with, .. } => {
                let action = permit.lease().input.clone();
                let action = action.and_then(|input| serde_json::from_value(input).ok());
                let Some(action) = action else {
                    let text = "the step's action is not what its tool takes";
                    return self.fail(attempt, Code::Internal, text);
                };
                Work::Call { action, with: with.clone(), own_read: step.reconcile.is_none() }
            }
            Kind::Agent { agent, .. } => {
                let text = format!(
                    "the agent `{agent}` cannot be started: agents are not available in this version"
                );
                return self.fail(attempt, Code::StepFailed, text);
            }
            Kind::Parallel { .. }
            | Kind::Steps { .. }
            | Kind::Strategy { .. }
            | Kind::Call { .. }
            | Kind::Approve { .. }
            | Kind::Wait { .. } => {
                return self.fail(attempt, Code::Internal, "nobody carries out such a step");
            }
        };
        let (lease, tenant) = (permit.lease(), &permit.work().tenant);
        let terms = Terms {
            id: attempt.clone(),
            attempt: lease.attempt,
            key: lease.idempotency_key.clone(),
            tenant: tenant.clone(),
            semantics: lease.semantics,
            timeout: step.timeout.map(|span| Duration::from_millis(span.0)),
            witness: self.witness(attempt.clone()),
            masked: self
                .secrets_of((lease.run, permit.work().began), tenant, || permit.work().runbook.secrets()),
        };
        let hands = self.clone();
        executor.carry_out(
            permit.leave(),
            Lease { terms, work },
            Box::new(move |finished| hands.finished(attempt, finished)),
        );
    }

    /// The command of a step, with what it is given.
    fn script(&self, permit: &Permit, step: &StepDef, command: &str) -> Script {
        let (lease, work) = (permit.lease(), permit.work());
        let dir = lease.input.as_ref().and_then(|input| input.get("dir")).and_then(Value::as_str);
        let cwd = Path::new(&work.cwd);
        Script {
            text: command.to_owned(),
            shell: step.shell.clone(),
            dir: dir.map_or_else(|| cwd.to_path_buf(), |dir| cwd.join(dir)),
            author: Author::Run { tenant: work.tenant.clone(), run: lease.run, home: work.cwd.clone() },
            env: given(permit),
            vars: lease.vars.get(),
            server: self.attempts.server().to_owned(),
            token: self.attempts.token(&permit.attempt()),
            traceparent: traceparent(permit),
            outputs: step.outputs.clone(),
        }
    }

    fn finished(&self, attempt: AttemptId, finished: Finished) {
        let Finished { report, receipt, costs, lost_output } = finished;
        let AttemptId { run, step, epoch } = attempt.clone();
        if !costs.is_empty() {
            // What was spent is known before what came of it, so that the next attempt finds the budget as it is.
            let step = step.clone();
            self.engine.report(self.by.clone(), Command::Cost { run, step, epoch, costs });
        }
        if let Some(OutputLost { bytes, reason }) = lost_output {
            let lost = Command::OutputLost { run, step, epoch, bytes, reason };
            self.engine.report(self.by.clone(), lost);
        }
        self.report_with(attempt, report, receipt);
    }

    fn effect(self: &Arc<Hands>, effect: Effect) {
        match effect {
            Effect::EvaluatePolicy { run, step, .. } => self.ask_policy(run, step),
            Effect::GatherGuard { run, step, node: _, after } => self.gather(run, step, after),
            Effect::Stop { run, step, epoch, grace } => {
                let (attempt, grace) = (AttemptId { run, step, epoch }, Duration::from_millis(grace.0));
                self.stop_looks(run, &attempt.step, grace);
                if let Some(executor) = &self.executor {
                    executor.stop(&attempt, grace);
                }
            }
            Effect::ComputeSlots { schedule, settings, after, until } => {
                self.compute_slots(schedule, &settings, after, until);
            }
            Effect::ListItems { worker, runbook, queue, project_root } => {
                self.list_outside(Errand { worker, runbook, queue, project_root, item: None });
            }
            Effect::TakeItem { worker, runbook, queue, project_root, item, run, data } => {
                let hands = self.clone();
                let item = Some((item, run, data));
                let errand = Errand { worker, runbook, queue, project_root, item };
                // What is claimed stays claimed, and is taken by the next start.
                reaching(move || hands.reach_outside(&errand));
            }
            Effect::Probe { run, step, epoch, key } => self.probe(AttemptId { run, step, epoch }, key),
            Effect::ShowApproval { run, approval, .. } => {
                if let Some(cards) = &self.cards {
                    cards.show(run, approval);
                }
            }
            Effect::Notify { notice, title, message, sound } => {
                self.notices.tell(notices::Told { notice, title, message, sound });
            }
            // These need what this version does not have: sessions and worktrees. They stay outstanding, and the version that
            // has it finds them again.
            unmade @ (Effect::Send { .. }
            | Effect::Kill { .. }
            | Effect::Nudge { .. }
            | Effect::WorktreeAdd { .. }
            | Effect::WorktreeRemove { .. }) => {
                let (effect, _) = unmade.log_fields();
                tracing::warn!(event = "effect_not_carried_out", effect);
            }
            // The engine hands an attempt over with its permit, and never as an effect.
            Effect::Execute(lease) => {
                debug_assert!(false, "an attempt came without its permit: {lease:?}");
            }
        }
    }

    /// Computes what is due of a schedule. One whose slots cannot be computed here is looked at again later.
    fn compute_slots(&self, schedule: Scoped, settings: &schedule::Settings, after: Millis, until: Millis) {
        let input = match cron::due(&schedule, settings, after, until) {
            Ok(cron::Due { slots, next_at }) => {
                let runs = slots.iter().map(|_| RunId(windlass_executor::clock::fresh())).collect();
                schedule::Input::Due { slots, next_at, runs }
            }
            Err(error) => schedule::Input::Defer { until: until + SLOTS_AGAIN, reason: error.to_string() },
        };
        self.engine.report(Actor::SYSTEM, Command::Schedule { schedule, input });
    }

    /// Lists or takes from an external queue, on a thread of its own.
    fn reach_outside(&self, wanted: &Errand) {
        if let Some(command) = external::reach(self, wanted) {
            self.engine.report(Actor::SYSTEM, command);
        }
    }

    /// Lists an external queue, one list of a worker at a time: however many events ask for it meanwhile, one more follows.
    fn list_outside(self: &Arc<Hands>, wanted: Errand) {
        let worker = wanted.worker.clone();
        match self.lock().listing.entry(worker.clone()) {
            Entry::Occupied(mut under_way) => {
                under_way.insert(Some(wanted));
                return;
            }
            Entry::Vacant(free) => free.insert(None),
        };
        let (hands, listed) = (self.clone(), worker.clone());
        let started = reaching(move || {
            let mut next = Some(wanted);
            // Each round is one that somebody asked for while the one before was under way.
            while let Some(wanted) = next {
                hands.reach_outside(&wanted);
                let mut running = hands.lock();
                next = running.listing.get_mut(&listed).and_then(Option::take);
                if next.is_none() {
                    running.listing.remove(&listed);
                }
            }
        });
        if !started {
            self.lock().listing.remove(&worker);
        }
    }

    /// Asks policy about a step, with what is recorded about it. Nothing here waits: the state is looked at between two
    /// turns, and the rules are asked on threads of their own.
    fn ask_policy(self: &Arc<Hands>, run: RunId, step: StepId) {
        let hands = self.clone();
        self.engine.read_then(
            move |store| {
                let question = Question::gather(store.state(), run, &step)?;
                let known = policy::recorded(store.state(), &question.about.tenant);
                Some((question, known))
            },
            move |seen| {
                // A run that is gone waits for nothing, and an engine that has ended asks again when it is back.
                let Ok(Some((question, known))) = seen else { return };
                let edition = hands.policy.edition();
                hands.record_edition(&edition, known, &question.about.tenant);
                let (asked, asking, engine) = (question.clone(), edition.clone(), hands.engine.clone());
                hands.pool.ask(
                    move || asking.decided(&asked),
                    move |answer| {
                        let decided = answer.unwrap_or_else(|why| edition.unanswered(&question, why));
                        engine.report(Actor::SYSTEM, Command::PolicyDecided(Box::new(decided)));
                    },
                );
            },
        );
    }

    /// Puts the policy in force on record, where another one is.
    fn record_edition(&self, edition: &Edition, known: Option<Digest>, tenant: &Name) {
        if known != Some(edition.version())
            && let Some(loaded) = edition.loaded()
        {
            let (tenant, loaded) = (tenant.clone(), Box::new(loaded));
            self.engine.report(Actor::SYSTEM, Command::LoadPolicy { tenant, loaded });
        }
    }

    /// Gathers what a step's guards need, on a thread of its own. What is found after the step has ended is not told.
    fn gather(self: &Arc<Hands>, run: RunId, step: StepId, after: bool) {
        let Some(looking) = self.begin_look(run, step.clone()) else { return };
        let hands = self.clone();
        let gather = move || {
            let whom = For::Step { run, step: step.clone(), looking };
            let gathered = guards::gather(&hands, &whom, (run, &step), after);
            let wanted = hands.end_look(looking);
            let Some(inputs) = gathered.filter(|_| wanted) else { return };
            let command = Command::Guarded { run, step, inputs: Box::new(inputs) };
            hands.engine.report(Actor::SYSTEM, command);
        };
        if let Err(error) = std::thread::Builder::new().name("guard".into()).spawn(gather) {
            // The step waits, and is asked again with the next look at the clock.
            self.end_look(looking);
            eprintln!("windlass: a guard could not be gathered: {error}");
        }
    }
}

/// What the `env:` of a step says. A secret is a name until the last moment, and only where the definition names one: a
/// variable's value that looks like a reference is a text like any other, so no value can ask for a secret.
pub(crate) fn given(permit: &Permit) -> Vec<(String, Given)> {
    let rendered = permit.lease().input.as_ref().and_then(|input| input.get("env"));
    let one = |(name, value): (&String, &Value)| {
        let given = match (permit.step().and_then(|step| step.env.get(name)), value) {
            (Some(Template::Secret(secret)), _) => Given::Secret(secret.to_string()),
            (_, Value::String(text)) => Given::Text(text.clone()),
            (_, other) => Given::Text(other.to_string()),
        };
        (name.clone(), given)
    };
    rendered.and_then(Value::as_object).into_iter().flatten().map(one).collect()
}

/// What an attempt hands on, so that what it calls joins the trace.
pub(crate) fn traceparent(permit: &Permit) -> String {
    let AttemptId { run, step, epoch } = permit.attempt();
    trace::traceparent(permit.work().trace, trace::attempt_span(run, &step, epoch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_told_by_the_runtime_that_serves_them_and_even_where_it_has_ended() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let callers = runtime.handle().clone();
        let (told, heard) = channel();
        let tell = |which: u8| {
            let told = told.clone();
            tell_on(&callers, Box::new(move || told.send((which, std::thread::current().id())).unwrap()));
        };
        tell(1);
        let (which, by) = heard.recv().unwrap();
        assert_eq!(which, 1);
        assert_ne!(by, std::thread::current().id());
        drop(runtime);
        tell(2);
        assert_eq!(heard.try_recv().unwrap().0, 2);
    }
}
