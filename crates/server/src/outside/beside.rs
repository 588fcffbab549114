//! Commands beside the steps: those of guards, of issues and of external queues.
//!
//! ```text
//! action ─▶ policy ─▶ policy:decided (durable) ─▶ leave ─▶ keeper ─▶ what it printed
//! ```
//!
//! This is the one way in which they are run. A command without policy's recorded yes is not run. A command ends with the
//! step it is for, and with this process, as an attempt does.

use super::Hands;
use crate::policy::question::command as action_of;
use crate::policy::{self, Question, pool};
use crate::roots;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::mpsc::channel;
use std::time::Duration;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, Scoped, StepId};
use windlass_core::policy::Purpose;
use windlass_core::receipt::Action;
use windlass_core::time::Millis;
use windlass_core::turn::command::Refusal;
use windlass_engine::Leave;
use windlass_executor::shell::{
    self, Author, Ended, Ending, Environment, ShellEvent, Source, Spec, StartError, Wall,
};

/// How long a command may take.
const TIME_MAX: Duration = Duration::from_secs(60);
/// How much of what a command prints is read, and how much of its log is kept for that.
pub(crate) const PRINTED_MAX: u64 = 4 << 20;
const LOG_MAX: u64 = 4 * PRINTED_MAX;
/// How many lines of what a command complains about are told, and how many characters at most.
const COMPLAINT_LINES: usize = 5;
const COMPLAINT_MAX: usize = 1_024;
/// How long to wait before a command is tried again for which there was no room: at first, and at most.
const ROOM_PAUSE: Duration = Duration::from_secs(1);
const ROOM_PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often policy is asked when it changes while it answers.
const ASKS_MAX: usize = 3;

/// Whom a command is for.
#[derive(Clone, Debug)]
pub(crate) enum For {
    /// A step that waits for its guards; the number names this look at them.
    Step { run: RunId, step: StepId, looking: u64 },
    /// People who are told something of a run.
    Notice { run: RunId },
    /// A worker's external queue.
    Queue { worker: Scoped, queue: Name, runbook: Digest, run: RunId, at: Millis },
}

/// A command.
pub(crate) struct Command<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) text: &'a str,
    pub(crate) dir: &'a Path,
    pub(crate) env: Environment,
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The code it exited with.
    pub(crate) code: i32,
    /// What it printed.
    pub(crate) printed: String,
    /// What it complained about.
    pub(crate) complaint: String,
}

/// Why a command came to nothing.
#[derive(Debug)]
pub(crate) enum NotRun {
    /// Nobody waits for it any more: its step has ended, or this process does.
    Moot,
    /// It was refused, not started, or did not come to its end.
    Because(String),
}

/// Why a command did not run this time.
enum Unstarted {
    /// There was no room for it: it may run the next time.
    NoRoom(String),
    /// For good.
    For(NotRun),
}

impl From<NotRun> for Unstarted {
    fn from(reason: NotRun) -> Unstarted {
        Unstarted::For(reason)
    }
}

impl From<StartError> for Unstarted {
    fn from(error: StartError) -> Unstarted {
        match error.passes() {
            true => Unstarted::NoRoom(error.to_string()),
            false => Unstarted::For(NotRun::Because(error.to_string())),
        }
    }
}

/// The looks at guards that are under way.
#[derive(Default)]
pub(super) struct Looks {
    next: u64,
    under_way: BTreeMap<u64, Look>,
}

struct Look {
    run: RunId,
    step: StepId,
    /// Its commands that run, as the keeper knows them.
    commands: BTreeSet<String>,
}

impl Hands {
    /// Asks policy about what is to be done beside the steps, and has the answer recorded. Waits for both.
    pub(super) fn permitted(&self, question: &Question, worker: Option<&Scoped>) -> Result<Leave, Refusal> {
        for _ in 0..ASKS_MAX {
            let edition = self.policy.edition();
            let tenant = question.about.tenant.clone();
            if let Ok(known) = self.engine.read(move |store| policy::recorded(store.state(), &tenant)) {
                self.record_edition(&edition, known, &question.about.tenant);
            }
            let (told, heard) = channel();
            let (asked, asking) = (question.clone(), edition.clone());
            self.pool.ask(
                move || asking.decided(&asked),
                // Whoever waits has not gone away.
                move |answer| drop(told.send(answer)),
            );
            let answer = heard.recv().unwrap_or(Err(pool::NoAnswer::Broken));
            let decided = answer.unwrap_or_else(|why| edition.unanswered(question, why));
            match self.engine.permit(decided, worker.cloned()) {
                // Another policy is in force by now: it is asked.
                Err(_) if self.policy.edition().version() != edition.version() => {}
                answer => return answer,
            }
        }
        Err(Refusal::new(Code::PolicyDenied, "policy changes faster than it can be asked"))
    }

    /// Whether a guard may look at a file of a run: anywhere where steps are the owner's own, and where they are kept
    /// apart in the directory of the run, as far as a step could work there.
    pub(crate) fn may_look_at(&self, tenant: &Name, cwd: &Path, real: &Path) -> bool {
        let Some(shell) = &self.shell else { return false };
        let wall = shell.wall(&Author::Tenant(tenant.clone()), cwd);
        let is_within = || real.starts_with(roots::real(cwd));
        match &wall {
            Wall::None => true,
            Wall::Refused(_) => false,
            Wall::Sandbox(_) => is_within() && wall.check(cwd).is_ok(),
            Wall::User(user) => is_within() && user.can_read(real),
        }
    }

    /// Begins a look at the guards of a step. None where this process ends.
    pub(super) fn begin_look(&self, run: RunId, step: StepId) -> Option<u64> {
        let mut running = self.lock();
        if running.stopping {
            return None;
        }
        let number = running.looks.next;
        running.looks.next += 1;
        running.looks.under_way.insert(number, Look { run, step, commands: BTreeSet::new() });
        Some(number)
    }

    /// Ends a look. Says whether somebody still waits for what it found.
    pub(super) fn end_look(&self, number: u64) -> bool {
        let mut running = self.lock();
        running.looks.under_way.remove(&number).is_some() && !running.stopping
    }

    /// Ends what runs for the guards of a step.
    pub(super) fn stop_looks(&self, run: RunId, step: &StepId, grace: Duration) {
        let mut running = self.lock();
        let ended: Vec<u64> = running
            .looks
            .under_way
            .iter()
            .filter(|(_, look)| look.run == run && look.step == *step)
            .map(|(number, _)| *number)
            .collect();
        for look in ended.iter().filter_map(|number| running.looks.under_way.remove(number)) {
            for id in &look.commands {
                if let Some(shell) = &self.shell {
                    // A keeper that is gone has ended it.
                    let _ = shell.stop(id, grace);
                }
            }
        }
    }

    /// Runs a command beside the steps, and waits for its end. What cannot be started for lack of room is tried again, for
    /// as long as somebody waits for it; policy is asked each time.
    pub(crate) fn beside(&self, whom: &For, command: &Command<'_>) -> Result<Ran, NotRun> {
        let mut pause = ROOM_PAUSE;
        loop {
            let (question, worker) = self.question(whom, command)?;
            let leave =
                self.permitted(&question, worker.as_ref()).map_err(|refusal| match refusal.code() {
                    Some(Code::RunTerminalState | Code::RunInvalidTransition | Code::NotFound) => {
                        NotRun::Moot
                    }
                    Some(_) | None => {
                        NotRun::Because(format!("policy does not allow the command: {refusal}"))
                    }
                })?;
            match self.start(&leave, whom, (&question.about.tenant, command)) {
                Err(Unstarted::NoRoom(why)) => eprintln!("windlass: a command waits for room: {why}"),
                Err(Unstarted::For(reason)) => return Err(reason),
                Ok(ran) => return Ok(ran),
            }
            let waited = self.ended.wait_timeout_while(self.lock(), pause, |running| !running.stopping);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(ROOM_PAUSE_MAX);
        }
    }

    fn question(&self, whom: &For, command: &Command<'_>) -> Result<(Question, Option<Scoped>), NotRun> {
        let action = |target: &Name| -> Action {
            action_of(command.purpose, target, command.text, command.dir, &command.env)
        };
        match whom {
            For::Step { run, step, .. } => {
                let (run, step, purpose) = (*run, step.clone(), command.purpose);
                let action = action(&step);
                let asked = self
                    .engine
                    .read(move |store| Question::beside(store.state(), (run, &step), purpose, action, true));
                Ok((asked.ok().flatten().ok_or(NotRun::Moot)?, None))
            }
            For::Notice { run } => {
                let (run, action) = (*run, action(&Name::clean("notice")));
                let asked = self.engine.read(move |store| Question::notice(store.state(), run, action));
                Ok((asked.ok().flatten().ok_or(NotRun::Moot)?, None))
            }
            For::Queue { worker, queue, runbook, run, at } => {
                let about = (command.purpose, action(queue));
                Ok((Question::for_queue(*run, (worker, queue), *runbook, about, *at), Some(worker.clone())))
            }
        }
    }

    fn start(
        &self,
        leave: &Leave,
        whom: &For,
        (tenant, command): (&Name, &Command<'_>),
    ) -> Result<Ran, Unstarted> {
        let Some(shell) = &self.shell else {
            return Err(NotRun::Because("this process runs no commands".to_owned()).into());
        };
        let id = match whom {
            For::Step { run, step, .. } => {
                format!("{run}/{step}/{}/{:x}", command.purpose, windlass_executor::clock::fresh())
            }
            For::Notice { run } => {
                format!("{run}/{}/{:x}", command.purpose, windlass_executor::clock::fresh())
            }
            For::Queue { worker, .. } => {
                format!("{worker}/{}/{:x}", command.purpose, windlass_executor::clock::fresh())
            }
        };
        let files = self.home.scratch();
        std::fs::create_dir_all(&files).map_err(|error| Unstarted::from(StartError::file(&files, &error)))?;
        let file = |end: &str| -> PathBuf {
            files.join(format!("beside-{:x}.{end}", windlass_executor::clock::fresh()))
        };
        let (log, typed) = (file("log"), file("out"));
        let mut spec = Spec::new(
            &id,
            command.text,
            command.dir.to_path_buf(),
            command.env.clone(),
            log.clone(),
            typed.clone(),
        );
        spec.author = match whom {
            // The owner wrote it, and others only what is in its environment.
            For::Notice { .. } => Author::Configuration,
            For::Step { .. } | For::Queue { .. } => Author::Tenant(tenant.clone()),
        };
        spec.timeout = Some(TIME_MAX);
        spec.output_max = LOG_MAX;
        let (told, heard) = channel();
        let on_event = move |event| match event {
            ShellEvent::Ended(ended) => drop(told.send(ended)),
            ShellEvent::Started { .. } | ShellEvent::Began | ShellEvent::Line(_) | ShellEvent::Warned(_) => {}
        };
        {
            let mut running = self.lock();
            if running.stopping {
                return Err(NotRun::Moot.into());
            }
            if let For::Step { looking, .. } = whom {
                let look = running.looks.under_way.get_mut(looking).ok_or(NotRun::Moot)?;
                look.commands.insert(id.clone());
            }
            // Under the lock: a cancel that comes now finds it, and one that came before was found above.
            shell.run(leave, spec, on_event).map_err(|error| match error.passes() {
                true => Unstarted::NoRoom(error.to_string()),
                false => NotRun::Because(error.to_string()).into(),
            })?;
        }
        let ended = heard.recv();
        if let For::Step { looking, .. } = whom
            && let Some(look) = self.lock().looks.under_way.get_mut(looking)
        {
            look.commands.remove(&id);
        }
        let ran = ended
            .map_err(|_| NotRun::Because("the keeper of commands is gone".to_owned()).into())
            .and_then(|ended| ran(&ended, &log));
        for file in [&log, &typed] {
            // What is left is removed with the directory.
            let _ = std::fs::remove_file(file);
        }
        ran
    }
}

/// What a command that has ended came to.
fn ran(ended: &Ended, log: &Path) -> Result<Ran, Unstarted> {
    let because = |why: String| Err(NotRun::Because(why).into());
    match &ended.ending {
        Ending::Exited(code) => {
            if ended.stdout_bytes > PRINTED_MAX || ended.dropped_bytes > 0 {
                return because(format!("the command printed more than {PRINTED_MAX} bytes"));
            }
            let (printed, complaint) = read(log)?;
            Ok(Ran { code: *code, printed, complaint })
        }
        Ending::TimedOut => because(format!("the command took longer than {} seconds", TIME_MAX.as_secs())),
        Ending::Stopped => Err(NotRun::Moot.into()),
        Ending::NotStarted(error) => Err(error.clone().into()),
        ending @ (Ending::Signalled(_) | Ending::Lost) => because(ending.to_string()),
    }
}

/// What a command printed, and the last of what it complained about.
fn read(log: &Path) -> Result<(String, String), NotRun> {
    let (mut printed, mut complaints) = (String::new(), Vec::new());
    let mut follow = shell::output::follow(log);
    loop {
        let lines = follow.read().map_err(|error| NotRun::Because(error.to_string()))?;
        if lines.is_empty() {
            break;
        }
        for line in lines {
            match line.source {
                Source::Out => {
                    printed.push_str(&line.text);
                    if line.whole {
                        printed.push('\n');
                    }
                }
                Source::Err => complaints.push(line.text),
                Source::Note => {}
            }
        }
    }
    let last = complaints.len().saturating_sub(COMPLAINT_LINES);
    let complaint: String = complaints[last..].join("\n").chars().take(COMPLAINT_MAX).collect();
    Ok((printed, complaint))
}
