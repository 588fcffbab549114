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
//! Which attempt a process belongs to: it is a descendant of the attempt's shell; or it became a child of the keeper
//! and was seen to belong to it before, is in its process group, or carries its mark in the environment
//! (`WL_ATTEMPT_MARK`). The limit: a process that left session and group, forked twice and cleared its environment
//! names nobody. It is then taken to belong to the last of the attempts that ran beside it, and ends with that one; with
//! no other attempt running, that is its own. Another limit is a process of another user, which cannot be signalled: the
//! keeper waits for its end and holds the lock.

mod control;

use super::attempt::{Attempt, Cause};
use super::environment::MARK;
use super::lock::Lock;
use super::process::{self, Identity, Process};
use super::spec::{Ended, Ending, Line, Spec, StartError};
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

/// Says that standard input is the socket to Windlass.
pub(super) const STARTED_BY: &str = "WL_KEEPER";

/// The most attempts at a time.
const ATTEMPTS_MAX: usize = 1024;

/// Lines are not reported while so many bytes of reports wait: they stand in the log anyway.
const REPORTS_MAX: usize = 1024 * 1024;

/// How often children that nobody waits for are reaped.
const REAP_PAUSE: Duration = Duration::from_secs(5);

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
/// the programs it starts, and these stay in place for as long as the process does.
fn outlive_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    kinds.into_iter().try_for_each(|kind| signal(kind).map(drop))
}

/// Takes the lock and gets ready; `None` where Windlass was told why not, or went away.
fn begin() -> io::Result<Option<Keeper>> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // The secrets of one step are in this process's memory, and another step runs under the same user.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    outlive_signals()?;
    let mut control = Control::new(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))?;
    let Some((data_dir, wait)) = control.hello()? else { return Ok(None) };
    let Some(lock) = control.take_lock(&data_dir, wait)? else { return Ok(None) };
    let mark_prefix = lock.mark_prefix();
    let left = process::sweep(&mark_prefix, wait)?;
    if let Some((pid, _)) = left.first() {
        control.refuse(&format!(
            "process {pid} of an earlier attempt does not end; end it by hand and start again (its {MARK} begins with `{mark_prefix}`)"
        ));
        return Ok(None);
    }
    control.report(&Report::Ready);
    let (attempts, strays) = (BTreeMap::new(), BTreeMap::new());
    let keeper = Keeper { control, attempts, strays, mark_prefix, reap_at: None, is_closing: false, lock };
    Ok(Some(keeper))
}

/// Everything that the keeper knows.
struct Keeper {
    control: Control,
    attempts: BTreeMap<String, Attempt>,
    /// Children that name no attempt, each with the attempts that it can belong to.
    strays: BTreeMap<Identity, BTreeSet<String>>,
    mark_prefix: String,
    reap_at: Option<Instant>,
    is_closing: bool,
    lock: Lock,
}

/// Whom a child of the keeper says it belongs to.
enum Claim {
    /// This attempt, which may be over.
    Of(String),
    /// It does not say.
    Unknown,
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
                _ => self.with(&id, |attempt| attempt.observe_leader(now)),
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
        self.look(now)?;
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
        let until = self.attempts.values().filter_map(Attempt::due).chain(self.reap_at).min();
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
        let mark = format!("{}{id}", self.mark_prefix);
        let started = if self.attempts.len() < ATTEMPTS_MAX {
            Attempt::start(spec, &mark, now)
        } else {
            Err(StartError::TooMany { max: ATTEMPTS_MAX })
        };
        match started {
            Ok((attempt, warnings)) => {
                self.control
                    .report(&Report::Started { id: id.clone(), pid: attempt.leader.0.unsigned_abs() });
                for text in warnings {
                    self.control.report(&Report::Warned { id: id.clone(), text });
                }
                self.attempts.insert(id, attempt);
                self.reap_at.get_or_insert(now + REAP_PAUSE);
            }
            Err(error) => {
                let ended = Box::new(Ended::without_output(Ending::NotStarted(error)));
                self.control.report(&Report::Ended { id, ended });
            }
        }
    }

    /// Looks at the processes of the attempts that end, and at those that nobody waits for.
    fn look(&mut self, now: Instant) -> io::Result<()> {
        let due: Vec<String> =
            self.attempts.iter().filter(|(_, a)| a.wants_look(now)).map(|(id, _)| id.clone()).collect();
        if due.is_empty() && self.reap_at.is_none_or(|at| at > now) {
            return Ok(());
        }
        for id in &due {
            self.with(id, |attempt| attempt.observe_leader(now));
        }
        let orphans = self.reap()?;
        let is_table_needed = !orphans.is_empty() || due.iter().any(|id| self.attempts[id].leader_lives());
        let table = if is_table_needed { process::table()? } else { Vec::new() };
        let claims = self.claims(&table);
        for id in due {
            let left = self.members(&id, &table, &claims);
            if self.attempts.get_mut(&id).is_some_and(|attempt| attempt.advance(left, now)) {
                self.finish(&id, now);
            }
        }
        self.end_ownerless(&claims);
        let is_idle = self.attempts.is_empty() && orphans.is_empty();
        self.reap_at = if is_idle { None } else { Some(now + REAP_PAUSE) };
        Ok(())
    }

    fn finish(&mut self, id: &str, now: Instant) {
        let Some(attempt) = self.attempts.remove(id) else { return };
        let is_live = attempt.is_live();
        let mut lines = Vec::new();
        let ended = Box::new(attempt.finish(now, &mut lines));
        if is_live {
            self.report_lines(id, lines);
        }
        self.control.report(&Report::Ended { id: id.to_owned(), ended });
    }

    /// Reaps the children that have ended and lead no attempt, and returns those that live.
    fn reap(&self) -> io::Result<Vec<i32>> {
        let leaders: BTreeSet<i32> =
            self.attempts.values().filter(|a| a.leader_lives()).map(|attempt| attempt.leader.0).collect();
        loop {
            let children = process::children()?;
            let orphans: Vec<i32> = children.into_iter().filter(|pid| !leaders.contains(pid)).collect();
            let living: Vec<i32> = orphans.iter().copied().filter(|pid| !process::reap(*pid)).collect();
            // One that ended between the two steps can have left children, which are in the next list.
            if living.len() == orphans.len() {
                return Ok(living);
            }
        }
    }

    /// Which attempt each child says it belongs to, those that lead one aside.
    fn claims(&mut self, table: &[Process]) -> BTreeMap<Identity, Claim> {
        let own = process::own_pid();
        let is_leader =
            |identity: &Identity| self.attempts.values().any(|attempt| attempt.leader == *identity);
        let mut claims = BTreeMap::new();
        for process in table.iter().filter(|p| p.parent == own && !p.is_zombie && !is_leader(&p.identity)) {
            claims.insert(process.identity, self.claim(process));
        }
        self.strays.retain(|identity, _| claims.contains_key(identity));
        for (identity, _) in claims.iter().filter(|(_, claim)| matches!(claim, Claim::Unknown)) {
            // Nobody starts before the shell that it descends from.
            let beside = self.attempts.iter().filter(|(_, attempt)| attempt.leader.1 <= identity.1);
            self.strays.entry(*identity).or_insert_with(|| beside.map(|(id, _)| id.clone()).collect());
        }
        claims
    }

    fn claim(&self, process: &Process) -> Claim {
        let seen = |attempt: &Attempt| {
            attempt.known.contains(&process.identity) || attempt.leader.0 == process.group
        };
        if let Some((id, _)) = self.attempts.iter().find(|(_, attempt)| seen(attempt)) {
            return Claim::Of(id.clone());
        }
        let mark = process::mark(process.identity.0);
        match mark.as_deref().and_then(|mark| mark.strip_prefix(&self.mark_prefix)) {
            Some(id) => Claim::Of(id.to_owned()),
            None => Claim::Unknown,
        }
    }

    /// The attempts that a child can belong to and that are not over.
    fn owners<'a>(&'a self, identity: &Identity, claim: &'a Claim) -> Vec<&'a String> {
        let all = match claim {
            Claim::Of(id) => vec![id],
            Claim::Unknown => self.strays.get(identity).into_iter().flatten().collect(),
        };
        all.into_iter().filter(|id| self.attempts.contains_key(*id)).collect()
    }

    /// The living processes of an attempt.
    fn members(&self, id: &str, table: &[Process], claims: &BTreeMap<Identity, Claim>) -> BTreeSet<Identity> {
        let Some(attempt) = self.attempts.get(id) else { return BTreeSet::new() };
        let mut roots = attempt.known.clone();
        if attempt.leader_lives() {
            roots.insert(attempt.leader);
        }
        for (identity, claim) in claims {
            if self.owners(identity, claim)[..] == [id] {
                roots.insert(*identity);
            }
        }
        process::with_descendants(table, &roots)
    }

    /// Ends what belongs to attempts that are over. There is nobody left to ask it kindly.
    fn end_ownerless(&self, claims: &BTreeMap<Identity, Claim>) {
        for (identity, _) in claims.iter().filter(|(identity, claim)| self.owners(identity, claim).is_empty())
        {
            process::signal(*identity, &[Signal::KILL]);
        }
    }

    /// Ends whatever is still there, until nothing is.
    fn end_rest(&mut self) -> io::Result<()> {
        while !self.reap()?.is_empty() {
            let own = process::own_pid();
            let table = process::table()?;
            let children = table.iter().filter(|p| p.parent == own).map(|process| process.identity).collect();
            for identity in process::with_descendants(&table, &children) {
                process::signal(identity, &[Signal::KILL]);
            }
            wait(&[], Some(Instant::now() + LOOK_PAUSE))?;
        }
        Ok(())
    }
}
