//! The supervisor: one small process for each attempt that runs, between the keeper and the attempt's command.
//!
//! ```text
//!  keeper ──▶ supervisor ──▶ bash ──▶ …        a process whose parent ends becomes a child of the supervisor
//!     └── launch ──▶ ┘ └── begins, began, exited, over ──▶ keeper
//! ```
//!
//! It is the same program, started with a hidden argument. It has one thread. As a subreaper it has every process of its
//! attempt below it, whatever that does with its session, its group, its parents and its environment: so the attempt's
//! processes are exactly the supervisor's descendants. It says that the attempt is over when the last of them has ended,
//! and not before. Then it waits for the next launch, because to start a program as large as this one takes longer than
//! most commands do. When the keeper dies, its socket closes, and the supervisor ends what is left and itself.
//!
//! **Whatever holds for a command from its first instruction on is set here, by this process on itself, before
//! [`Launch::spawn`]**: what it starts inherits it. There is no other place where a command of a runbook is started. One
//! that has restricted itself for its attempt alone ends where it would say that the attempt is over.

use super::command::Launch;
use super::keeper::{STARTED_BY, outlive_signals};
use super::process;
use super::spec::StartError;
use super::wire::{self, Decoder};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::signal::unix::{SignalKind, signal};

/// The argument that makes the program a supervisor. What the marks of its directory's attempts begin with follows it.
pub(super) const ARGUMENT: &str = "__attempt";

/// How long a supervisor may take to read its launch.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);

/// How long processes have between SIGTERM and SIGKILL when their keeper has died.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// How often the processes are looked at while they end.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The pipes for what the command writes.
const PIPES: usize = 2;

/// What a supervisor tells the keeper, in this order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The command is about to be started. Where this was not said, nothing had begun.
    Begins,
    /// It runs.
    Began,
    /// It could not be started.
    Refused(StartError),
    /// Its shell exited with this code; other processes may be left.
    Exited(i32),
    /// Its shell was ended by this signal.
    Signalled(i32),
    /// None of its processes is left, and another attempt can begin.
    Over,
}

/// A supervisor, as its keeper has it.
pub(super) struct Supervisor {
    child: Child,
    socket: UnixStream,
    decoder: Decoder,
}

impl Supervisor {
    /// Starts one that waits for a launch.
    pub(super) fn start(mark_prefix: &str) -> io::Result<Supervisor> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        socket.set_write_timeout(Some(LAUNCH_WAIT))?;
        // This very program, also where the file was replaced by a newer one since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("windlass").args([ARGUMENT, mark_prefix]).env_clear().env(STARTED_BY, "1");
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.process_group(0).spawn()?;
        Ok(Supervisor { child, socket, decoder: Decoder::default() })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it a launch, and the pipes for what the command writes.
    pub(super) fn begin(&self, launch: &Launch, pipes: [BorrowedFd<'_>; PIPES]) -> io::Result<()> {
        let frame = wire::encode(launch).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PIPES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&pipes)) {
            return Err(io::Error::other("the pipes do not fit into a message"));
        }
        // A launch can be larger than what the socket holds; it is read at once.
        self.socket.set_nonblocking(false)?;
        let sent = sendmsg(&self.socket, &[IoSlice::new(&frame)], &mut control, SendFlags::NOSIGNAL)?;
        (&self.socket).write_all(&frame[sent..])?;
        self.socket.set_nonblocking(true)
    }

    /// What to wait for.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads what is there. The flag says that it has closed its end, which it does by ending.
    pub(super) fn hear(&mut self) -> (Vec<Said>, bool) {
        let mut buffer = [0; 4096];
        let is_closed = loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => break true,
                Ok(len) => self.decoder.push(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != io::ErrorKind::WouldBlock,
            }
        };
        let mut said = Vec::new();
        while let Ok(Some(next)) = self.decoder.next() {
            said.push(next);
        }
        (said, is_closed)
    }

    /// Lets it go on where a process of its attempt has stopped it.
    pub(super) fn wake(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it: the processes of its attempt become children of the keeper, which ends them.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // It was not waited for, so the number is still its own.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
    }

    /// Waits for the end of one that has nothing to do any more.
    pub(super) fn end(self) -> io::Result<ExitStatus> {
        let Supervisor { mut child, socket, decoder: _ } = self;
        drop(socket);
        child.wait()
    }
}

/// Supervises attempts, one after the other, until the keeper goes away.
#[must_use]
pub(super) fn main() -> ExitCode {
    if std::env::var_os(STARTED_BY).is_none() {
        let _ = writeln!(io::stderr(), "windlass: a supervisor is started by its keeper, not by hand");
        return ExitCode::from(2);
    }
    match begin_supervising() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "windlass: the supervisor of an attempt failed: {error}");
            ExitCode::from(70)
        }
    }
}

fn begin_supervising() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Secrets of the command are in this process's memory.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(supervise())
}

async fn supervise() -> io::Result<()> {
    outlive_signals()?;
    // Installed before there is a child that can end.
    let mut changed = signal(SignalKind::child())?;
    let keeper = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    keeper.set_nonblocking(true)?;
    let mut keeper =
        Keeper { listener: tokio::net::UnixStream::from_std(keeper.try_clone()?)?, socket: keeper };
    while let Some((launch, [out, err])) = keeper.receive().await? {
        keeper.say(&Said::Begins)?;
        let began = launch.spawn(out, err);
        let is_walled = launch.is_walled();
        drop(launch);
        let mut shell = match began {
            Ok(child) => {
                // A keeper that is gone is noticed below, where its processes are ended.
                let _ = keeper.say(&Said::Began);
                MainProcess(Some(child.id() as i32))
            }
            Err(error) => {
                keeper.say(&Said::Refused(error))?;
                MainProcess(None)
            }
        };
        let mut orphaned = None;
        while !keeper.reap(&mut shell) {
            tokio::select! {
                _ = changed.recv() => {}
                () = keeper.closed(), if orphaned.is_none() => orphaned = Some(Instant::now()),
                () = tokio::time::sleep(LOOK_PAUSE), if orphaned.is_some() => {}
            }
            if let Some(since) = orphaned {
                let patient = since.elapsed() < ORPHAN_GRACE;
                let signals: &[Signal] =
                    if patient { &[Signal::TERM, Signal::CONT] } else { &[Signal::KILL] };
                // What could not be read now is read with the next look.
                let left = process::table().map(|table| process::below(&table, process::own_pid()));
                left.unwrap_or_default().into_iter().for_each(|identity| process::signal(identity, signals));
            }
        }
        // One that is restricted for its attempt ends with it: another one's rules would come on top. So does one whose
        // keeper is gone.
        if is_walled || keeper.say(&Said::Over).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// The keeper, as its supervisor has it.
struct Keeper {
    socket: UnixStream,
    /// The same socket, to wait for it.
    listener: tokio::net::UnixStream,
}

impl Keeper {
    /// The next launch and its pipes; `None` where the keeper went away.
    async fn receive(&self) -> io::Result<Option<(Launch, [OwnedFd; PIPES])>> {
        let mut buffer = vec![0; 64 * 1024];
        let (mut decoder, mut pipes) = (Decoder::default(), Vec::new());
        loop {
            if let Some(launch) = decoder.next::<Launch>().map_err(io::Error::other)? {
                let pipes = <[OwnedFd; PIPES]>::try_from(pipes);
                return pipes.map(|pipes| Some((launch, pipes))).map_err(|_| {
                    // The system drops what does not fit below the limit on open files.
                    io::Error::from(Errno::MFILE)
                });
            }
            self.listener.readable().await?;
            let received = self.listener.try_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PIPES))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(&mut buffer)];
                let received = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        pipes.extend(descriptors);
                    }
                }
                Ok(received.bytes)
            });
            match received {
                Ok(0) => return Ok(None),
                Ok(len) => decoder.push(&buffer[..len]),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn say(&mut self, said: &Said) -> io::Result<()> {
        let frame = wire::encode(said).map_err(io::Error::other)?;
        // A few short frames always fit into the socket.
        self.socket.write_all(&frame)
    }

    /// Takes the exit status of every child that has ended. True when no child is left: then no descendant is, because a
    /// process whose parent ends becomes a child of this one before its parent can be waited for.
    fn reap(&mut self, shell: &mut MainProcess) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if shell.has_ended(pid.as_raw_nonzero().get()) => {
                    // A keeper that is gone hears nothing, and is missed elsewhere.
                    let _ = ending(status).map(|said| self.say(&said));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return false,
                // There is none. No other error is possible.
                Err(_) => return true,
            }
        }
    }

    /// Waits until the keeper has closed its end.
    async fn closed(&self) {
        let mut buffer = [0; 64];
        loop {
            if self.listener.readable().await.is_err() {
                return;
            }
            match self.listener.try_read(&mut buffer) {
                Ok(0) => return,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                // It says nothing while an attempt runs.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// The process that was started for an attempt, until it has ended. Its number is free from then on: another process of the
/// attempt may get it, and how that one ends says nothing about the command.
struct MainProcess(Option<i32>);

impl MainProcess {
    /// Whether it is this one that has ended. It ends once.
    fn has_ended(&mut self, pid: i32) -> bool {
        self.0.take_if(|shell| *shell == pid).is_some()
    }
}

fn ending(status: WaitStatus) -> Option<Said> {
    status.exit_status().map(Said::Exited).or(status.terminating_signal().map(Said::Signalled))
}

/// Whether this process is a supervisor with such a mark.
pub(super) fn is_one(pid: i32, mark_prefix: &str) -> bool {
    let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut words = line.split(|&byte| byte == 0).skip(1);
    words.next() == Some(ARGUMENT.as_bytes())
        && words.next().is_some_and(|mark| mark.starts_with(mark_prefix.as_bytes()))
}

/// Those of some processes that supervise.
pub(super) fn among(left: &BTreeSet<process::Identity>, mark_prefix: &str) -> BTreeSet<process::Identity> {
    left.iter().copied().filter(|identity| is_one(identity.0, mark_prefix)).collect()
}

#[cfg(test)]
mod tests {
    use super::MainProcess;

    #[test]
    fn a_process_that_gets_the_number_of_the_main_process_is_not_taken_for_it() {
        let mut shell = MainProcess(Some(7));
        assert!(!shell.has_ended(8), "another one");
        assert!(shell.has_ended(7));
        assert!(!shell.has_ended(7), "an orphan with the same number");
        assert!(!MainProcess(None).has_ended(0), "nothing was started");
    }
}
