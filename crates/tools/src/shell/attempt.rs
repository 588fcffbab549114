//! One attempt under the keeper: its processes, its output, and how far its end has come.
//!
//! ```text
//!  Running ── shell exits ──▶ Lingering ── half a second ──▶ Terminating ── grace ──▶ Killing ──▶ over
//!     └────── stop, time-out ────────────────────────────────────▲
//! ```
//!
//! It is over when its shell has ended and no process of its tree is left, in whichever phase that is.

use super::command;
use super::environment::TOKEN;
use super::lines::Lines;
use super::output::{Writer, line_len_max};
use super::process::{self, Identity};
use super::spec::{Ended, Ending, Line, Source, Spec, StartError};
use super::typed::{self, LastLine, OutputError, TYPED_MAX, Written};
use crate::redaction::{self, Redactor};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long what a shell leaves behind may take to finish on its own: the `tee` of a `> >(tee …)`, for example.
const LINGER: Duration = Duration::from_millis(500);

/// How often the processes are looked at while they end.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// How much is read from a pipe at a time, so that no attempt starves the others.
const READ_MAX: usize = 64 * 1024;

/// How much is still read after the last process ended. A pipe holds at most 1 MiB; somebody outside of the tree could
/// hold its other end and write for ever.
const DRAIN_MAX: usize = 1024 * 1024;

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

/// An attempt that was started and is not over.
pub(super) struct Attempt {
    spec: Spec,
    child: Child,
    pub(super) leader: Identity,
    leader_fd: Option<OwnedFd>,
    status: Option<ExitStatus>,
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
    /// The processes that were seen to belong to it. Once seen they stay its own, wherever they hang in the tree.
    pub(super) known: BTreeSet<Identity>,
    asked: BTreeSet<Identity>,
}

impl Attempt {
    /// Starts an attempt. The second value are things that its owner should know.
    pub(super) fn start(spec: Spec, mark: &str, now: Instant) -> Result<(Attempt, Vec<String>), StartError> {
        let (redactor, warnings) = redactor(&spec);
        let log = Writer::create(&spec.log, spec.output_max).map_err(|error| StartError::File {
            path: spec.log.display().to_string(),
            text: error.to_string(),
        })?;
        let mut child = command::spawn(&spec, mark).inspect_err(|_| remove_files(&spec))?;
        let pid = child.id() as i32;
        // The child is not reaped yet, so it is in the table even if it has ended.
        let start = process::look(pid).map_or(0, |process| process.identity.1);
        let leader_fd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        let lines_max = line_len_max(spec.output_max);
        let channel = |source, pipe: Option<OwnedFd>| {
            let pipe = pipe?;
            rustix::io::ioctl_fionbio(&pipe, true).ok()?;
            Some(Channel { source, pipe, redaction: redactor.stream(), lines: Lines::new(lines_max) })
        };
        let channels = [
            channel(Source::Out, child.stdout.take().map(OwnedFd::from)),
            channel(Source::Err, child.stderr.take().map(OwnedFd::from)),
        ];
        let time_out = spec.timeout.and_then(|timeout| now.checked_add(timeout));
        let attempt = Attempt {
            child,
            leader: (pid, start),
            // Without a descriptor to wait on, the end of the shell is found by looking.
            look_at: leader_fd.is_none().then_some(now),
            leader_fd,
            status: None,
            channels,
            bytes: [0; 2],
            redactor,
            log,
            last_line: LastLine::default(),
            begin: now,
            time_out,
            cause: None,
            phase: Phase::Running,
            known: BTreeSet::new(),
            asked: BTreeSet::new(),
            spec,
        };
        Ok((attempt, warnings))
    }

    /// What to wait for: the two pipes and the end of the shell.
    pub(super) fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 3] {
        let [out, err] = self.channels.each_ref().map(|channel| channel.as_ref().map(|c| c.pipe.as_fd()));
        [out, err, self.leader_fd.as_ref().map(AsFd::as_fd)]
    }

    /// When it wants to be looked at, whatever happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let time_out = self.time_out.filter(|_| matches!(self.phase, Phase::Running));
        [time_out, self.look_at].into_iter().flatten().min()
    }

    pub(super) fn is_live(&self) -> bool {
        self.spec.live
    }

    pub(super) fn leader_lives(&self) -> bool {
        self.status.is_none()
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
        if self.leader_lives() {
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

    /// Sees whether the shell has ended.
    pub(super) fn observe_leader(&mut self, now: Instant) {
        if self.status.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.status = Some(status);
            self.leader_fd = None;
            if matches!(self.phase, Phase::Running) {
                self.phase = Phase::Lingering { until: now + LINGER };
            }
            self.look_at = Some(now);
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

    /// Does what is due to the processes that are left; true when none is and it is over.
    pub(super) fn advance(&mut self, left: BTreeSet<Identity>, now: Instant) -> bool {
        if left.is_empty() && !self.leader_lives() {
            return true;
        }
        match self.phase {
            Phase::Lingering { until } | Phase::Terminating { until } if until > now => {}
            Phase::Lingering { .. } => self.phase = Phase::Terminating { until: now + self.spec.grace },
            Phase::Terminating { .. } => self.phase = Phase::Killing,
            Phase::Running | Phase::Killing => {}
        }
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
        self.known = left;
        self.look_at = Some(now + LOOK_PAUSE);
        false
    }

    /// Closes everything and says what became of it. Its last lines are added to `lines`.
    pub(super) fn finish(mut self, now: Instant, lines: &mut Vec<Line>) -> Ended {
        for which in 0..self.channels.len() {
            let mut reads_left = DRAIN_MAX / READ_MAX;
            while reads_left > 0 && self.read(which, lines) {
                reads_left -= 1;
            }
            self.close_channel(which, lines);
        }
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
        let ending = match (self.cause, self.status) {
            (Some(Cause::TimeOut), _) => Ending::TimedOut,
            (Some(Cause::Stop), _) => Ending::Stopped,
            (None, Some(status)) => match (status.code(), status.signal()) {
                (Some(code), _) => Ending::Exited(code),
                (None, signal) => Ending::Signalled(signal.unwrap_or(0)),
            },
            // It is finished only after the shell has ended.
            (None, None) => Ending::Lost,
        };
        Ended {
            ending,
            output,
            stdout_bytes: self.bytes[0],
            stderr_bytes: self.bytes[1],
            dropped_bytes: closed.dropped_bytes,
            log_error: closed.error,
            duration_ms: (now - self.begin).as_millis() as u64,
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
    let token = spec.env.get(TOKEN).map(|token| (TOKEN, token));
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
}

pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
