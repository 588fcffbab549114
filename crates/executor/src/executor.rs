//! The executor: the one way in which a lease is carried out, by the server itself and elsewhere.
//!
//! ```text
//!  lease ─▶ secrets resolved, their use on record ─┬─▶ a command under the keeper ─▶ report
//!                                                  └─▶ a call of a tool ───────────▶ report + receipt
//! ```
//!
//! What is started is known here until it has ended: it can be stopped, and is when the process ends. What had begun then,
//! and cannot be repeated, is lost; all else is handed back.

mod command;

pub use command::{Given, Script};

use crate::home::Home;
use crate::room::postponed;
use crate::secrets::{OfRun, Secrets};
use crate::shell::{self, Identity, Shell, ShellEvent};
use crate::tools::execute::{Calls, Finished, Job, OutputLost};
use crate::tools::session::{Session, Witness};
use crate::tools::{Tools, Trouble};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use windlass_core::attempt::Report;
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, Name, RunId};
use windlass_core::receipt::{Action, Semantics};
use windlass_core::step::Failure;
use windlass_core::template::Template;
use windlass_engine::Leave;

/// How long the end of commands is waited for beyond their grace time when the process stops.
const STOP_EXTRA: Duration = Duration::from_secs(5);

/// A lease, with everything that carrying it out takes, wherever that is.
pub struct Lease {
    /// Under which terms.
    pub terms: Terms,
    /// What is to be done.
    pub work: Work,
}

/// The terms of a lease.
pub struct Terms {
    /// The attempt that it is for.
    pub id: AttemptId,
    /// Which try it is, from 1.
    pub attempt: u32,
    /// What identifies the effect.
    pub key: Name,
    /// The tenant.
    pub tenant: Name,
    /// What can be done about an attempt of which nobody knows whether it had its effect; absent where it has none.
    pub semantics: Option<Semantics>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Puts on record which secrets it uses.
    pub witness: Witness,
    /// What else of its run is masked.
    pub masked: OfRun,
}

/// What is to be done under a lease.
pub enum Work {
    /// A command is run.
    Command(Script),
    /// A tool is called.
    Call {
        /// What is to be done, as it was decided about.
        action: Action,
        /// The definition of its fields: which of them are secrets.
        with: Template,
        /// Whether the tool itself knows how to ask what became of it.
        own_read: bool,
    },
    /// What a transformation gives is what was rendered for it.
    Transform(Option<Value>),
}

impl Terms {
    /// Whether it may be done again although nobody knows how far it came.
    fn is_repeatable(&self) -> bool {
        matches!(self.semantics, None | Some(Semantics::Idempotent))
    }
}

/// Hears what came of a lease, once.
pub type Done = Box<dyn FnOnce(Finished) + Send>;

/// Carries out leases, side by side.
pub struct Executor {
    shell: Arc<Shell>,
    home: Home,
    secrets: Arc<Secrets>,
    calls: Calls,
    running: Mutex<Running>,
    ended: Condvar,
}

#[derive(Default)]
struct Running {
    commands: HashMap<AttemptId, Command>,
    /// The process that each command's processes descend from.
    leaders: HashMap<Identity, AttemptId>,
    stopping: bool,
}

/// A command that was asked for and is not over.
#[derive(Default)]
struct Command {
    /// It runs.
    began: bool,
    /// Somebody else may have its lease by now.
    lost: bool,
}

impl Executor {
    /// An executor with these tools. Its files are in a data directory.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn new(
        tools: Tools,
        (home, secrets): (Home, Arc<Secrets>),
        shell: Arc<Shell>,
    ) -> Result<Arc<Executor>, String> {
        let calls = Calls::new(tools, (home.clone(), secrets.clone()), shell.clone())?;
        let (running, ended) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Executor { shell, home, secrets, calls, running, ended }))
    }

    /// The calls of tools, for those who ask what became of one.
    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// The secrets.
    #[must_use]
    pub fn secrets(&self) -> &Arc<Secrets> {
        &self.secrets
    }

    /// The keeper of commands.
    #[must_use]
    pub fn shell(&self) -> &Arc<Shell> {
        &self.shell
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a lease, whose holder has leave to do so. It may wait for secrets to be on record.
    pub fn carry_out(self: &Arc<Executor>, leave: Leave, lease: Lease, done: Done) {
        let (is_stopping, Lease { terms, work }) = (self.running().stopping, lease);
        match work {
            Work::Transform(output) => done(Finished::of(Report::Done { output, exit_code: None })),
            Work::Call { .. } | Work::Command(_) if is_stopping => done(Finished::of(stopping())),
            Work::Call { action, with, own_read } => {
                let Terms { id, attempt, key, tenant, semantics, timeout, witness, masked: run } = terms;
                let job = Job {
                    id,
                    tenant,
                    action,
                    with,
                    key,
                    attempt,
                    semantics,
                    timeout,
                    own_read,
                    witness,
                    run,
                };
                self.calls.start(leave, job, done);
            }
            Work::Command(script) => self.run(&leave, &terms, script, done),
        }
    }

    fn run(self: &Arc<Executor>, leave: &Leave, terms: &Terms, script: Script, done: Done) {
        let (id, tries, repeatable) = (terms.id.clone(), terms.attempt, terms.is_repeatable());
        let (witness, masked) = (terms.witness.clone(), terms.masked.clone());
        let session = Session::witnessed(terms.tenant.clone(), self.secrets.clone(), witness, masked);
        let spec = match command::spec(terms, &script, &self.home, &session) {
            Ok(spec) => spec,
            Err(trouble) => return done(Finished::of(not_begun(trouble, tries))),
        };
        {
            let mut running = self.running();
            if running.stopping {
                drop(running);
                return done(Finished::of(stopping()));
            }
            running.commands.insert(id.clone(), Command::default());
        }
        let (outputs, log) = (script.outputs, spec.log.clone());
        let done = Arc::new(Mutex::new(Some(done)));
        let (executor, refused, told) = (self.clone(), id.clone(), done.clone());
        let started = self.shell.run(leave, spec, move |event| match event {
            ShellEvent::Ended(ended) => {
                let (stopping, lost) = executor.over(&id);
                let lost_output = ended
                    .log_error
                    .as_ref()
                    .map(|reason| OutputLost { bytes: ended.lost_bytes, reason: reason.clone() });
                let report =
                    command::report_of(&ended, &outputs, &log, (stopping || lost, repeatable), tries);
                tell(&told, Finished { lost_output, ..Finished::of(report) });
                // Whoever waits for the end waits for the report too.
                executor.forget(&id);
            }
            ShellEvent::Started { pid } => {
                // One that has ended already asks nothing any more.
                if let Some(leader) = shell::identity(pid) {
                    executor.running().leaders.insert(leader, id.clone());
                }
            }
            ShellEvent::Began => {
                if let Some(command) = executor.running().commands.get_mut(&id) {
                    command.began = true;
                }
                executor.ended.notify_all();
            }
            ShellEvent::Line(_) | ShellEvent::Warned(_) => {}
        });
        if let Err(error) = started {
            self.forget(&refused);
            let report = match error.passes() {
                true => postponed(error.to_string(), tries),
                false => failed(error.code(), error.to_string()),
            };
            tell(&done, Finished::of(report));
        }
    }

    /// A command has ended. Says whether the process stops, and whether the lease was lost.
    fn over(&self, id: &AttemptId) -> (bool, bool) {
        let mut running = self.running();
        running.leaders.retain(|_, leads| leads != id);
        if let Some(command) = running.commands.get_mut(id) {
            command.began = true;
        }
        (running.stopping, running.commands.get(id).is_some_and(|command| command.lost))
    }

    fn forget(&self, id: &AttemptId) {
        self.running().commands.remove(id);
        self.ended.notify_all();
    }

    /// Ends an attempt within a grace time. One that has ended meanwhile is reported as it ended.
    pub fn stop(&self, id: &AttemptId, grace: Duration) {
        let _ = self.shell.stop(&id.to_string(), grace);
        self.calls.stop(id, grace);
    }

    /// Ends an attempt at once, because somebody else may have its lease by now. What had begun is lost.
    pub fn lose(&self, id: &AttemptId) {
        if let Some(command) = self.running().commands.get_mut(id) {
            command.lost = true;
        }
        let _ = self.shell.stop(&id.to_string(), Duration::ZERO);
        self.calls.break_off(id);
    }

    /// Ends every attempt within a grace time, and waits for that. Nothing is begun any more.
    pub fn leave(&self, grace: Duration) {
        {
            let mut running = self.running();
            running.stopping = true;
            for id in running.commands.keys() {
                let _ = self.shell.stop(&id.to_string(), grace);
            }
        }
        self.calls.leave(grace);
        let running = self.running();
        let busy = |running: &mut Running| !running.commands.is_empty();
        let waited = self.ended.wait_timeout_while(running, grace + STOP_EXTRA, busy);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until no command of a run is about to begin.
    pub fn settle(&self, run: RunId, longest: Duration) {
        let begins = |running: &mut Running| {
            running.commands.iter().any(|(id, command)| id.run == run && !command.began)
        };
        let waited = self.ended.wait_timeout_while(self.running(), longest, begins);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The attempt that a process with these ancestors belongs to. A step may have killed its keeper: what still lives of
    /// it is known by its supervisor.
    #[must_use]
    pub fn attempt_of(&self, line: &[Identity]) -> Option<AttemptId> {
        let running = self.running();
        line.iter().find_map(|process| running.leaders.get(process)).cloned()
    }
}

fn tell(done: &Mutex<Option<Done>>, finished: Finished) {
    if let Some(done) = done.lock().unwrap_or_else(PoisonError::into_inner).take() {
        done(finished);
    }
}

fn stopping() -> Report {
    Report::Returned { reason: Some("the process is stopping".to_owned()) }
}

/// What is reported of an attempt that failed without an exit code.
#[must_use]
pub fn failed(code: Code, message: impl Into<String>) -> Report {
    Report::Failed { failure: Failure::new(code, message), retryable: false, exit_code: None, signal: None }
}

/// What is reported of an attempt that could not be begun.
fn not_begun(trouble: Trouble, tries: u32) -> Report {
    if trouble.hands_back() {
        return Report::Returned { reason: Some(trouble.message) };
    }
    if trouble.lacks_room() {
        return postponed(trouble.message, tries);
    }
    failed(Code::StepFailed, trouble.message)
}
