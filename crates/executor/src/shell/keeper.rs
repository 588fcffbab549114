//! The keeper: the process that shell steps are children of, and that outlives Windlass for as long as they do.
//!
//! It is the same program, started with a hidden argument. It has one thread and one loop. Its standard input is a
//! socket to Windlass; when that closes, however Windlass died, the keeper ends every process that it keeps, and only
//! then lets go of the lock on the data directory. So whoever gets the lock runs beside no living copy.
//!
//! Why not a parent-death signal in each step: it is lost when a process forks or changes its user, it reaches only
//! direct children, and it needs code between fork and exec. A subreaper has none of that: a process whose parent ends
//! becomes a child of the keeper, whether it changed its session or forked twice.
//!
//! Each attempt has a supervisor of its own between the keeper and its command, which is a subreaper too: so every
//! process belongs to one attempt, whatever it does with its session, its parents and its environment. Where a step kills
//! its supervisor, its processes become the keeper's own children, and the keeper ends them. The limits: a process of
//! another user cannot be signalled, so the keeper waits for its end and holds the lock; and of an attempt whose keeper
//! and supervisor were both killed, only processes that carry its mark in the environment (`WL_ATTEMPT_MARK`) are found.

mod control;

use super::attempt::{Attempt, Cause, Prepared};
use super::limits;
use super::lock::Lock;
use super::process;
use super::spec::{Ended, Ending, Line, Spec, StartError};
use super::supervisor::Supervisor;
use super::variables::Variable;
use super::wire::{Report, Request};
use control::{Control, wait};
use rustix::event::PollFlags;
use rustix::process::{DumpableBehavior, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Says that standard input is a socket to who started this process.
pub(super) const STARTED_BY: &str = Variable::Keeper.name();

/// The most attempts at a time.
const ATTEMPTS_MAX: usize = 1024;

/// Lines are not reported while so many bytes of reports wait: they stand in the log anyway.
const REPORTS_MAX: usize = 1024 * 1024;

/// How many supervisors wait for another attempt.
const IDLE_MAX: usize = 4;

/// How many descriptors stay free, to look at processes and to write logs with.
const DESCRIPTORS_FREE: usize = 16;

/// How long Windlass may take to hear that an attempt begins.
const TELL_WAIT: Duration = Duration::from_secs(1);

/// How often the last processes are looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Runs the keeper until its socket closes and its last process is gone.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::var_os(STARTED_BY).is_none() {
        let _ = writeln!(io::stderr(), "windlass: the keeper is started by windlass itself, not by hand");
        return ExitCode::from(2);
    }
    match begin().and_then(|keeper| keeper.map_or(Ok(()), Keeper::run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "windlass: the keeper failed: {error}");
            ExitCode::from(70)
        }
    }
}

/// Does not end with those around it: it ends when its work does. Handlers, unlike ignored signals, are not passed on to
/// the programs it starts, and these stay in place for as long as the process does. It is called within a runtime.
pub(super) fn outlive_signals() -> io::Result<()> {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    kinds.into_iter().try_for_each(|kind| signal(kind).map(drop))
}

/// Takes the lock and gets ready; `None` where Windlass was told why not, or went away.
fn begin() -> io::Result<Option<Keeper>> {
    // A session of its own has no terminal. A Ctrl-C does not reach it, and no step types into the terminal of whoever
    // started the server.
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // The secrets of one step are in this process's memory, and another step runs under the same user.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // What holds for every process of every step, because they inherit it. A step gains no rights by starting a program
    // with a set-user-id bit.
    rustix::thread::set_no_new_privs(true)?;
    limits::confine()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    {
        let _entered = runtime.enter();
        outlive_signals()?;
    }
    let mut control = Control::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))?;
    let Some((data_dir, wait)) = control.hello()? else { return Ok(None) };
    let Some(lock) = control.take_lock(&data_dir, wait)? else { return Ok(None) };
    let mark_prefix = lock.mark_prefix();
    let left = process::sweep(&mark_prefix, wait)?;
    if let Some((pid, _)) = left.first() {
        control.refuse(&format!(
            "process {pid} of an earlier attempt does not end; end it by hand and start again (its {} begins with `{mark_prefix}`)",
            Variable::Mark.name()
        ));
        return Ok(None);
    }
    control.report(&Report::Ready);
    Ok(Some(Keeper {
        control,
        attempts: BTreeMap::new(),
        idle: Vec::new(),
        mark_prefix,
        is_closing: false,
        lock,
    }))
}

/// Everything that the keeper knows. Its children are the supervisors of its attempts, and nothing else.
struct Keeper {
    control: Control,
    attempts: BTreeMap<String, Attempt>,
    /// Supervisors whose attempt is over.
    idle: Vec<Supervisor>,
    mark_prefix: String,
    is_closing: bool,
    lock: Lock,
}

impl Keeper {
    fn run(mut self) -> io::Result<()> {
        while self.control.is_open || !self.attempts.is_empty() {
            self.round()?;
        }
        self.end_rest()?;
        // Here and nowhere else: nothing is left that could run beside somebody else's attempt.
        drop(self.lock);
        self.control.finish();
        Ok(())
    }

    /// Waits for something to happen, and does what follows from it.
    fn round(&mut self) -> io::Result<()> {
        let (is_control_ready, ready) = self.wait()?;
        let now = Instant::now();
        for (id, which) in ready {
            match which {
                0 | 1 => self.read(&id, which),
                _ => {
                    let began = self.attempts.get_mut(&id).is_some_and(|a| a.observe_supervisor(now));
                    if began {
                        self.control.report(&Report::Began { id });
                    }
                }
            }
        }
        if is_control_ready {
            for request in self.control.receive() {
                self.handle(request, now);
            }
        }
        self.control.send();
        if !self.control.is_open && !self.is_closing {
            self.is_closing = true;
            self.attempts.values_mut().for_each(|attempt| attempt.end_gracefully(Cause::Stop, now));
        }
        self.attempts.values_mut().for_each(|attempt| attempt.observe_time(now));
        self.look(now);
        self.control.send();
        Ok(())
    }

    /// Waits. Says whether the socket is ready, and which descriptors of which attempts are.
    fn wait(&self) -> io::Result<(bool, Vec<(String, usize)>)> {
        let mut descriptors = Vec::new();
        if self.control.is_open {
            let out = if self.control.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            descriptors.push((self.control.stream.as_fd(), PollFlags::IN | out));
        }
        let mut owners = Vec::new();
        for (id, attempt) in &self.attempts {
            for (which, descriptor) in attempt.descriptors().into_iter().enumerate() {
                if let Some(descriptor) = descriptor {
                    descriptors.push((descriptor, PollFlags::IN));
                    owners.push((id, which));
                }
            }
        }
        let until = self.attempts.values().filter_map(Attempt::due).min();
        let ready = wait(&descriptors, until)?;
        let (control, rest) = ready.split_at(ready.len() - owners.len());
        let ready = owners.into_iter().zip(rest).filter(|(_, is_ready)| **is_ready);
        Ok((control.contains(&true), ready.map(|((id, which), _)| (id.clone(), which)).collect()))
    }

    fn with(&mut self, id: &str, act: impl FnOnce(&mut Attempt)) {
        if let Some(attempt) = self.attempts.get_mut(id) {
            act(attempt);
        }
    }

    fn read(&mut self, id: &str, which: usize) {
        let Some(attempt) = self.attempts.get_mut(id) else { return };
        let mut lines = Vec::new();
        attempt.read(which, &mut lines);
        if attempt.is_live() {
            self.report_lines(id, lines);
        }
    }

    fn report_lines(&mut self, id: &str, lines: Vec<Line>) {
        if !lines.is_empty() && self.control.unsent.len() < REPORTS_MAX {
            self.control.report(&Report::Lines { id: id.to_owned(), lines });
        }
    }

    fn handle(&mut self, request: Request, now: Instant) {
        match request {
            Request::Run(spec) => self.start(*spec, now),
            Request::Stop { id, grace_ms } => {
                let grace = Duration::from_millis(grace_ms);
                // An attempt that is not there has ended, and its report is on the way.
                self.with(&id, |attempt| attempt.end(Cause::Stop, grace, now));
            }
            // The first request is the only one of its kind. A second one changes nothing.
            Request::Hello { .. } => {}
        }
    }

    fn start(&mut self, spec: Spec, now: Instant) {
        let id = spec.id.clone();
        match self.begin(&id, spec, now) {
            Ok(attempt) => drop(self.attempts.insert(id, attempt)),
            Err(error) => {
                let ended = Box::new(Ended::without_output(Ending::NotStarted(error)));
                self.control.report(&Report::Ended { id, ended });
            }
        }
    }

    fn begin(&mut self, id: &str, spec: Spec, now: Instant) -> Result<Attempt, StartError> {
        if self.attempts.len() >= ATTEMPTS_MAX {
            return Err(StartError::TooMany { max: ATTEMPTS_MAX });
        }
        let what = "the supervisor".to_owned();
        check_descriptors().map_err(|error| StartError::NoRoom { what, text: error.to_string() })?;
        let mark = format!("{}{id}", self.mark_prefix);
        let (prepared, warnings) = Prepared::new(spec, &mark)?;
        let supervisor = match self.idle.pop() {
            Some(idle) => idle,
            None => {
                Supervisor::start(&self.mark_prefix).map_err(|error| prepared.give_up(&error.to_string()))?
            }
        };
        for text in warnings {
            self.control.report(&Report::Warned { id: id.to_owned(), text });
        }
        self.control.report(&Report::Started { id: id.to_owned(), pid: supervisor.pid() });
        // Should this process die, Windlass knows what it had begun: nothing begins that was not told.
        if !self.control.flush(TELL_WAIT) {
            self.idle.push(supervisor);
            return Err(prepared.give_up("windlass does not listen"));
        }
        prepared.begin(supervisor, now)
    }

    /// Looks at the processes of the attempts that end.
    fn look(&mut self, now: Instant) {
        let due: Vec<String> =
            self.attempts.iter().filter(|(_, a)| a.wants_look(now)).map(|(id, _)| id.clone()).collect();
        if !due.is_empty() {
            // Where the table cannot be read now, nobody is found, and it is looked at again.
            let table = process::table().unwrap_or_default();
            for id in due {
                self.with(&id, |attempt| attempt.advance(&table, now));
            }
        }
        // Whose they are is not known any more, and there is nobody left to ask them kindly.
        let crashed = self.attempts.values().any(Attempt::has_crashed);
        let clear = !crashed || self.end_strays().unwrap_or(false);
        let over = |attempt: &Attempt| attempt.is_over() && (clear || !attempt.has_crashed());
        let over: Vec<String> =
            self.attempts.iter().filter(|(_, a)| over(a)).map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| self.finish(id, now));
    }

    fn finish(&mut self, id: &str, now: Instant) {
        let Some(attempt) = self.attempts.remove(id) else { return };
        let is_live = attempt.is_live();
        let mut lines = Vec::new();
        let (ended, supervisor) = attempt.finish(now, &mut lines);
        if is_live {
            self.report_lines(id, lines);
        }
        self.control.report(&Report::Ended { id: id.to_owned(), ended: Box::new(ended) });
        match supervisor {
            Some(idle) if self.idle.len() < IDLE_MAX => self.idle.push(idle),
            // It has no processes, so it ends at once.
            Some(idle) => drop(idle.end()),
            None => {}
        }
    }

    /// Kills what supervisors that were killed left behind. True when nothing is left of it.
    fn end_strays(&self) -> io::Result<bool> {
        let idle = self.idle.iter().map(|idle| idle.pid() as i32);
        let supervisors: BTreeSet<i32> =
            self.attempts.values().filter_map(Attempt::supervisor).chain(idle).collect();
        let is_left = loop {
            let children = process::children()?;
            let strays: Vec<i32> = children.into_iter().filter(|pid| !supervisors.contains(pid)).collect();
            let living = strays.iter().filter(|pid| !process::reap(**pid)).count();
            // One that ended between the two steps can have left children, which are in the next list.
            if living == strays.len() {
                break living > 0;
            }
        };
        if is_left {
            let own = process::own_pid();
            let table = process::table()?;
            let is_stray = |process: &&process::Process| {
                process.parent == own && !supervisors.contains(&process.identity.0)
            };
            let strays = table.iter().filter(is_stray).map(|process| process.identity).collect();
            for identity in process::with_descendants(&table, &strays) {
                process::signal(identity, &[Signal::KILL]);
            }
        }
        Ok(!is_left)
    }

    /// Ends whatever is still there, until nothing is.
    fn end_rest(&mut self) -> io::Result<()> {
        self.idle.drain(..).for_each(|idle| drop(idle.end()));
        while !self.end_strays()? {
            wait(&[], Some(Instant::now() + LOOK_PAUSE))?;
        }
        Ok(())
    }
}

/// Whether enough descriptors are free to begin an attempt, and to look after those that run.
fn check_descriptors() -> io::Result<()> {
    let stdin = io::stdin();
    let free: io::Result<Vec<_>> =
        (0..DESCRIPTORS_FREE).map(|_| stdin.as_fd().try_clone_to_owned()).collect();
    free.map(drop)
}
