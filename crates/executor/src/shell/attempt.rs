//! One attempt under the keeper: its processes, its output, and how far its end has come.
//!
//! ```text
//!  Running ── shell exits ──▶ Lingering ── half a second ──▶ Terminating ── grace ──▶ Killing ──▶ over
//!     └────── stop, time-out ────────────────────────────────────▲
//! ```
//!
//! It is over when its supervisor says so, in whichever phase that is: then none of its processes is left. A supervisor
//! that was killed leaves them to the keeper, which ends them first.

use super::command::{self, Launch};
use super::lines::Lines;
use super::output::{Writer, line_len_max};
use super::process::{self, Identity, Process};
use super::spec::{Ended, Ending, Line, Source, Spec, StartError};
use super::supervisor::{Said, Supervisor};
use super::typed::{self, LastLine, OutputError, TYPED_MAX, Written};
use super::variables::Variable;
use super::walls;
use crate::clock::System;
use crate::redaction::{self, Redactor};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};
use windlass_core::id::Name;
use windlass_engine::port::Clock as _;

/// How long what a shell leaves behind may take to finish on its own: the `tee` of a `> >(tee …)`, for example.
const LINGER: Duration = Duration::from_millis(500);

/// How often the processes are looked at while they end.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How much is read from a pipe at a time, so that no attempt starves the others.
const READ_MAX: usize = 64 * 1024;

/// How much is still read after the last process ended. A pipe holds at most 1 MiB; somebody outside of the tree could
/// hold its other end and write for ever.
const DRAIN_MAX: usize = 1024 * 1024;

/// How often a supervisor is found without processes before it is killed, when its attempt is to end at once.
const IDLE_LOOKS_MAX: u32 = 250;

/// Why an attempt is being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Stop,
    TimeOut,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    Lingering { until: Instant },
    Terminating { until: Instant },
    Killing,
}

/// One of the two pipes from the command.
struct Channel {
    source: Source,
    pipe: OwnedFd,
    redaction: redaction::Stream,
    lines: Lines,
}

/// How its shell ended.
#[derive(Clone, Copy, Debug)]
enum Status {
    Exited(i32),
    Signalled(i32),
}

/// How far its start came, as its supervisor says.
#[derive(Debug)]
enum Start {
    /// Nothing of it was started.
    NotYet,
    /// It is being started, or runs.
    Begun,
    /// It could not be started.
    Refused(StartError),
}

/// An attempt that can begin: its files and pipes are made.
pub(super) struct Prepared {
    spec: Spec,
    launch: Launch,
    redactor: Redactor,
    log: Writer,
    /// The keeper's ends of the pipes, and the command's.
    ours: [OwnedFd; 2],
    theirs: [OwnedFd; 2],
}

/// An attempt that was started and is not over.
pub(super) struct Attempt {
    spec: Spec,
    /// Absent when it has ended.
    supervisor: Option<Supervisor>,
    start: Start,
    /// How the shell ended.
    status: Option<Status>,
    /// No process of it is left, as its supervisor says.
    is_over: bool,
    /// By which signal the supervisor ended before that, where one did that.
    crashed: Option<i32>,
    channels: [Option<Channel>; 2],
    bytes: [u64; 2],
    redactor: Redactor,
    log: Writer,
    last_line: LastLine,
    begin: Instant,
    time_out: Option<Instant>,
    cause: Option<Cause>,
    phase: Phase,
    look_at: Option<Instant>,
    asked: BTreeSet<Identity>,
    idle_looks: u32,
}

impl Prepared {
    /// Makes everything that an attempt needs beside a supervisor. The second value are things that its owner should know.
    pub(super) fn new(spec: Spec, mark: &str) -> Result<(Box<Prepared>, Vec<String>), StartError> {
        let (redactor, warnings) = redactor(&spec);
        let log = Writer::create(&spec.log, spec.output_max)
            .map_err(|error| StartError::file(&spec.log, &error))?;
        let launch = Launch::prepare(&spec, mark).inspect_err(|_| remove_files(&spec))?;
        let pipe = || -> io::Result<(OwnedFd, OwnedFd)> {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            Ok((ours, theirs))
        };
        let pipes = pipe().and_then(|out| Ok((out, pipe()?)));
        let ((out, out_theirs), (err, err_theirs)) = pipes.map_err(|error| {
            remove_files(&spec);
            let text = error.to_string();
            StartError::of(&error, || StartError::System { program: "its pipes".to_owned(), text })
        })?;
        let (ours, theirs) = ([out, err], [out_theirs, err_theirs]);
        Ok((Box::new(Prepared { spec, launch, redactor, log, ours, theirs }), warnings))
    }

    /// Lets it begin under a supervisor.
    pub(super) fn begin(self, supervisor: Supervisor, now: Instant) -> Result<Attempt, StartError> {
        let [out, err] = &self.theirs;
        if let Err(error) = supervisor.begin(&self.launch, [out.as_fd(), err.as_fd()]) {
            // Half a launch starts nothing.
            supervisor.kill();
            let _ = supervisor.end();
            return Err(self.give_up(&error.to_string()));
        }
        let Prepared { spec, launch: _, redactor, log, ours: [out, err], theirs: _ } = self;
        let lines_max = line_len_max(spec.output_max);
        let channel = |source, pipe: OwnedFd| {
            Some(Channel { source, pipe, redaction: redactor.stream(), lines: Lines::new(lines_max) })
        };
        Ok(Attempt {
            supervisor: Some(supervisor),
            start: Start::NotYet,
            status: None,
            is_over: false,
            crashed: None,
            channels: [channel(Source::Out, out), channel(Source::Err, err)],
            bytes: [0; 2],
            redactor,
            log,
            last_line: LastLine::default(),
            begin: now,
            time_out: spec.timeout.and_then(|timeout| now.checked_add(timeout)),
            cause: None,
            phase: Phase::Running,
            look_at: None,
            asked: BTreeSet::new(),
            idle_looks: 0,
            spec,
        })
    }

    /// It does not begin now.
    pub(super) fn give_up(&self, why: &str) -> StartError {
        remove_files(&self.spec);
        StartError::NoRoom { what: "the supervisor".to_owned(), text: why.to_owned() }
    }
}

impl Attempt {
    /// What to wait for: the two pipes and the supervisor.
    pub(super) fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 3] {
        let [out, err] = self.channels.each_ref().map(|channel| channel.as_ref().map(|c| c.pipe.as_fd()));
        [out, err, self.supervisor.as_ref().map(Supervisor::descriptor)]
    }

    /// When it wants to be looked at, whatever happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let time_out = self.time_out.filter(|_| matches!(self.phase, Phase::Running));
        [time_out, self.look_at].into_iter().flatten().min()
    }

    pub(super) fn is_live(&self) -> bool {
        self.spec.live
    }

    /// The process that supervises it, as long as it was not waited for.
    pub(super) fn supervisor(&self) -> Option<i32> {
        self.supervisor.as_ref().map(|supervisor| supervisor.pid() as i32)
    }

    /// Whether its supervisor has ended, or says that it is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_over || self.supervisor.is_none()
    }

    /// Whether its supervisor ended before its processes did.
    pub(super) fn has_crashed(&self) -> bool {
        self.crashed.is_some()
    }

    /// Reads once from one of the pipes. What becomes a line is added to `lines`. False where nothing was there.
    pub(super) fn read(&mut self, which: usize, lines: &mut Vec<Line>) -> bool {
        let Some(channel) = &mut self.channels[which] else { return false };
        let mut buffer = vec![0; READ_MAX];
        match rustix::io::read(&channel.pipe, &mut buffer) {
            Ok(0) => {
                self.close_channel(which, lines);
                false
            }
            Ok(len) => {
                self.bytes[which] += len as u64;
                if channel.source == Source::Out {
                    self.last_line.push(&buffer[..len]);
                }
                let mut clean = Vec::with_capacity(len);
                channel.redaction.push(&buffer[..len], &mut clean);
                channel.lines.push(&clean, &mut emit_to(&mut self.log, channel.source, lines));
                self.log.flush();
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            // Reading a pipe fails in no other way; if it did, nothing more would come.
            Err(_) => {
                self.close_channel(which, lines);
                false
            }
        }
    }

    fn close_channel(&mut self, which: usize, lines: &mut Vec<Line>) {
        let Some(mut channel) = self.channels[which].take() else { return };
        let mut clean = Vec::new();
        channel.redaction.finish(&mut clean);
        channel.lines.push(&clean, &mut emit_to(&mut self.log, channel.source, lines));
        channel.lines.finish(&mut emit_to(&mut self.log, channel.source, lines));
        self.log.flush();
    }

    /// Asks for its end: SIGTERM now, SIGKILL after the grace time. A second request can only make it sooner.
    pub(super) fn end(&mut self, cause: Cause, grace: Duration, now: Instant) {
        if self.status.is_none() {
            self.cause.get_or_insert(cause);
        }
        let until = now.checked_add(grace).unwrap_or(now);
        self.phase = match self.phase {
            Phase::Running | Phase::Lingering { .. } => Phase::Terminating { until },
            Phase::Terminating { until: before } => Phase::Terminating { until: before.min(until) },
            Phase::Killing => Phase::Killing,
        };
        self.look_at = Some(now);
    }

    /// The same with its own grace time.
    pub(super) fn end_gracefully(&mut self, cause: Cause, now: Instant) {
        self.end(cause, self.spec.grace, now);
    }

    /// Hears what the supervisor says, and whether it has ended. True when the command has begun just now.
    pub(super) fn observe_supervisor(&mut self, now: Instant) -> bool {
        let Some(supervisor) = &mut self.supervisor else { return false };
        let (said, is_closed) = supervisor.hear();
        let began = said.iter().any(|said| matches!(said, Said::Began));
        for said in said {
            match said {
                Said::Begins => self.start = Start::Begun,
                Said::Began => {}
                Said::Refused(error) => self.start = Start::Refused(error),
                Said::Exited(code) => self.shell_ended(Status::Exited(code), now),
                Said::Signalled(signal) => self.shell_ended(Status::Signalled(signal), now),
                Said::Over => self.is_over = true,
            }
        }
        if is_closed && let Some(supervisor) = self.supervisor.take() {
            // It has closed everything, so it ends now. By itself it does so only when no process is left.
            let ended = supervisor.end().ok();
            let by_itself = self.is_over || ended.is_some_and(|status| status.success());
            self.crashed = (!by_itself).then(|| ended.and_then(|status| status.signal()).unwrap_or(0));
            self.look_at = Some(now);
        }
        began
    }

    fn shell_ended(&mut self, status: Status, now: Instant) {
        self.status = Some(status);
        if matches!(self.phase, Phase::Running) {
            // What ends in time is seen by the supervisor's end.
            let until = now + LINGER;
            self.phase = Phase::Lingering { until };
            self.look_at = Some(until);
        }
    }

    /// Sees whether its time is up.
    pub(super) fn observe_time(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Running) && self.time_out.is_some_and(|at| at <= now) {
            self.end_gracefully(Cause::TimeOut, now);
        }
    }

    /// Whether its processes should be looked at now.
    pub(super) fn wants_look(&self, now: Instant) -> bool {
        self.look_at.is_some_and(|at| at <= now)
    }

    /// Does what is due to its processes.
    pub(super) fn advance(&mut self, table: &[Process], now: Instant) {
        match self.phase {
            Phase::Lingering { until } | Phase::Terminating { until } if until > now => {}
            Phase::Lingering { .. } => self.phase = Phase::Terminating { until: now + self.spec.grace },
            Phase::Terminating { .. } => self.phase = Phase::Killing,
            Phase::Running | Phase::Killing => {}
        }
        self.look_at = Some(now + LOOK_PAUSE);
        // Those of one that was killed are the keeper's to end.
        let Some(supervisor) = &self.supervisor else { return };
        let left = process::below(table, supervisor.pid() as i32);
        match self.phase {
            Phase::Running | Phase::Lingering { .. } => {}
            Phase::Terminating { .. } => {
                // Each is asked once. A stopped process hears it only when it goes on.
                for identity in left.difference(&self.asked) {
                    process::signal(*identity, &[Signal::TERM, Signal::CONT]);
                }
                self.asked.clone_from(&left);
            }
            Phase::Killing => left.iter().for_each(|identity| process::signal(*identity, &[Signal::KILL])),
        }
        // One that its own attempt has stopped could not see that its processes end.
        supervisor.wake();
        if left.is_empty() && matches!(self.phase, Phase::Killing) {
            self.idle_looks += 1;
            if self.idle_looks > IDLE_LOOKS_MAX {
                supervisor.kill();
            }
        }
    }

    /// Closes everything and says what became of it. Its last lines are added to `lines`. Its supervisor can serve another
    /// attempt.
    pub(super) fn finish(mut self, now: Instant, lines: &mut Vec<Line>) -> (Ended, Option<Supervisor>) {
        for which in 0..self.channels.len() {
            let mut reads_left = DRAIN_MAX / READ_MAX;
            while reads_left > 0 && self.read(which, lines) {
                reads_left -= 1;
            }
            self.close_channel(which, lines);
        }
        let ending = self.ending();
        let output = match read_output(&self.spec) {
            Ok(None) => self.last_line.parse().map(|value| value.map(Written::Json)),
            other => other,
        };
        let masked = |value: &Value| as_object(self.redactor.value(value));
        // Masked first: a text that became a number might be written in other digits.
        let output = output.map(|written| {
            written.map(|written| match written {
                Written::Json(value) => masked(&value),
                Written::Lines(value) => typed::read_as(&self.spec.outputs, masked(&value)),
            })
        });
        remove_files(&self.spec);
        let closed = self.log.close(now_ms());
        let ended = Ended {
            ending,
            wall: Some(Name::clean(&self.spec.wall.name())),
            output,
            stdout_bytes: self.bytes[0],
            stderr_bytes: self.bytes[1],
            dropped_bytes: closed.dropped_bytes,
            lost_bytes: closed.lost_bytes,
            log_error: closed.error,
            duration_ms: (now - self.begin).as_millis() as u64,
        };
        (ended, self.supervisor)
    }

    /// How it ended.
    fn ending(&mut self) -> Ending {
        match std::mem::replace(&mut self.start, Start::Begun) {
            Start::Refused(error) => return Ending::NotStarted(error),
            Start::NotYet => {
                let what = "the supervisor".to_owned();
                return Ending::NotStarted(StartError::NoRoom { what, text: "it ended at once".to_owned() });
            }
            Start::Begun => {}
        }
        match (self.cause, self.status, self.crashed) {
            // A command that ended with 0 within its grace time has done its work.
            (Some(_), Some(Status::Exited(0)), _) => Ending::Exited(0),
            (Some(Cause::TimeOut), _, _) => Ending::TimedOut,
            (Some(Cause::Stop), _, _) => Ending::Stopped,
            (None, Some(Status::Exited(code)), _) => Ending::Exited(code),
            (None, Some(Status::Signalled(signal)), _) => Ending::Signalled(signal),
            // Whoever killed the supervisor took the attempt with it.
            (None, None, Some(signal)) if signal > 0 => Ending::Signalled(signal),
            // A supervisor ends by itself only after the shell has ended.
            (None, None, _) => Ending::Lost,
        }
    }
}

/// Writes lines to the log and collects them.
fn emit_to<'a>(
    log: &'a mut Writer,
    source: Source,
    lines: &'a mut Vec<Line>,
) -> impl FnMut(&[u8], bool) + 'a {
    let at_ms = now_ms();
    move |text, whole| {
        let line = Line { at_ms, source, text: String::from_utf8_lossy(text).into_owned(), whole };
        log.line(&line);
        lines.push(line);
    }
}

/// What is masked, and which secrets cannot be.
fn redactor(spec: &Spec) -> (Redactor, Vec<String>) {
    let mut redactor = Redactor::new();
    let token = Variable::Token.name();
    let token = spec.env.get(token).map(|value| (token, value));
    let secrets = spec.secrets.iter().map(|secret| (secret.name.as_str(), secret.value.as_str()));
    let refused =
        secrets.chain(token).filter_map(|(name, value)| redactor.register(name, value.as_bytes()).err());
    let warnings = refused.map(|refusal| refusal.to_string()).collect();
    (redactor, warnings)
}

/// A secret spread over the structure leaves no object; then nothing of it is handed on.
fn as_object(value: Value) -> Value {
    if value.is_object() { value } else { Value::Object(serde_json::Map::new()) }
}

/// Reads `$WL_OUTPUT`. The command may have put something else in its place: only a plain file is read, and never
/// waited for.
fn read_output(spec: &Spec) -> Result<Option<Written>, OutputError> {
    let refuse = |text: String| OutputError::File { text };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(&spec.output_file, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(refuse(error.to_string())),
    };
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(refuse("it is not a plain file any more".to_owned()));
    }
    let mut bytes = Vec::new();
    file.take(TYPED_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| refuse(error.to_string()))?;
    typed::parse_file(&bytes)
}

/// The files of an attempt can hold secrets, so they go with it. Where that fails there is nobody to tell.
fn remove_files(spec: &Spec) {
    let _ = fs::remove_file(&spec.output_file);
    let _ = fs::remove_file(command::script_path(spec));
    if let Some(folder) = walls::folder(&spec.wall, &spec.output_file) {
        let _ = fs::remove_dir_all(folder);
    }
}

pub(super) fn now_ms() -> u64 {
    System.now().0
}
