//! Shell steps: commands run as children of a keeper, which ends their whole trees whatever happens to Windlass.
//!
//! ```text
//!  windlass ── socket pair ──▶ keeper ──▶ supervisor ──▶ bash ──▶ …     one attempt: all descendants of its supervisor
//!     ▲                          │
//!     └──── started, lines, ended ┘ secrets are masked here, before a file or the socket sees them
//! ```
//!
//! **An attempt is over only when none of its processes is left.** The keeper holds a lock on the data directory until
//! that is true of all of them, so a restarted Windlass never runs beside a living copy.
//!
//! **A keeper that dies is started again.** First its processes are ended; then each of its attempts is reported, as lost
//! or, where it had not begun, as not started; until the new keeper is ready, nothing can be started.

mod attempt;
mod command;
pub mod environment;
pub mod keeper;
pub mod limits;
mod lines;
pub mod lock;
pub mod output;
mod process;
pub mod spec;
mod supervisor;
pub mod typed;
pub mod variables;
pub mod walls;
mod wire;

#[cfg(test)]
mod tests;

pub use environment::{Environment, Reach, Told};
pub use limits::Limits;
pub use process::Identity;
pub use spec::{Author, Ended, Ending, Line, Secret, ShellEvent, Source, Spec, StartError};
pub use typed::{OutputError, check_outputs};
pub use variables::Variable;
pub use walls::Wall;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use windlass_core::code::Code;
use windlass_engine::Leave;
use wire::{Decoder, Report, Request};

/// The argument that makes the program a keeper.
pub const KEEPER_ARGUMENT: &str = "__keeper";

/// How long an earlier keeper may take to end its processes: their grace time and some more.
pub const LOCK_WAIT: Duration = Duration::from_secs(30);

/// How long a new keeper may take beyond that to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// How long is waited for the processes of a keeper that died, before that is said.
const SWEEP_WAIT: Duration = Duration::from_secs(10);

/// How long to wait before a keeper is started again that could not be: at first, and at most.
const START_PAUSE: Duration = Duration::from_millis(100);
const START_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Why shell steps cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The keeper could not be started.
    #[error("the keeper of shell steps cannot be started with `{}`: {source}", exe.display())]
    Start {
        /// The program.
        exe: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The keeper says why it cannot begin: an earlier one is not done, for example.
    #[error("{0}")]
    Refused(String),
    /// The keeper died and another one is being started. Nothing was begun.
    #[error(
        "the keeper of shell steps ended and is being started again; see keeper.log in the data directory"
    )]
    Gone,
    /// The id is none.
    #[error("an attempt's id has 1 to {max} bytes and no control characters", max = spec::ID_LEN_MAX)]
    Id,
    /// An attempt of this id runs.
    #[error("an attempt `{0}` runs already; stop it first, or give this one a new epoch")]
    Running(String),
    /// Command and environment are more than is taken.
    #[error("the command and its environment are too large: {0}; pass large values as files")]
    TooLarge(String),
    /// No step may run there, because nothing would keep it apart from its server.
    #[error("{0}")]
    Walled(String),
}

impl Error {
    /// Whether what was asked can be done later, as nothing had begun.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            Error::Gone => true,
            Error::Start { .. }
            | Error::Refused(_)
            | Error::Id
            | Error::Running(_)
            | Error::TooLarge(_)
            | Error::Walled(_) => false,
        }
    }

    /// The stable code of a step that could not be started for this reason.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Walled(_) => Code::Forbidden,
            Error::Start { .. }
            | Error::Refused(_)
            | Error::Gone
            | Error::Id
            | Error::Running(_)
            | Error::TooLarge(_) => Code::StepFailed,
        }
    }
}

/// Runs the process that the arguments ask for, where they ask for one of those behind shell steps.
#[must_use]
pub fn main_of(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Option<ExitCode> {
    match arguments.nth(1)?.to_str()? {
        KEEPER_ARGUMENT => Some(keeper::main()),
        supervisor::ARGUMENT => Some(supervisor::main()),
        // tidy: every other word is the command line's.
        _ => None,
    }
}

/// Says what a command runs behind.
type Walls = Box<dyn Fn(&Author, &Path) -> Wall + Send + Sync>;

type Handler = Arc<Mutex<dyn Fn(ShellEvent) + Send>>;

/// An attempt that was asked for and is not over.
struct Asked {
    handler: Handler,
    /// The keeper said that it begins.
    begun: bool,
}

/// What the callers and the reading thread share.
struct Link {
    /// The way to the keeper; `None` while there is none.
    writer: Mutex<Option<UnixStream>>,
    attempts: Mutex<BTreeMap<String, Asked>>,
    keeper_pid: AtomicU32,
    /// Nothing is to be started any more.
    closing: AtomicBool,
    /// Told when `closing` is set, with the lock of `writer`.
    closed: Condvar,
}

/// Whoever panicked while holding a lock left the maps whole: nothing is changed in more than one step.
fn lock_of<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shell steps of one data directory. Dropping it ends all of them; [`Shell::close`] also waits for that.
pub struct Shell {
    link: Arc<Link>,
    reader: Option<JoinHandle<()>>,
    /// Says what each command runs behind; nothing where nobody set it.
    walls: OnceLock<Walls>,
    /// What each process of a command may use at most.
    limits: OnceLock<Limits>,
}

/// What a keeper is started with.
struct Place {
    exe: PathBuf,
    data_dir: PathBuf,
    wait: Duration,
}

/// A keeper that is ready.
struct Keeping {
    stream: UnixStream,
    decoder: Decoder,
    keeper: Child,
}

impl Shell {
    /// Starts the keeper: `exe` with [`KEEPER_ARGUMENT`]. It waits until an earlier keeper of the directory is done.
    ///
    /// # Errors
    /// Where the keeper cannot be started, or the lock stays taken for [`LOCK_WAIT`].
    pub fn start(exe: &Path, data_dir: &Path) -> Result<Shell, Error> {
        Shell::start_within(exe, data_dir, LOCK_WAIT, |_| {})
    }

    /// The same with another bound. `on_waiting` is told, once, which process holds the lock.
    ///
    /// # Errors
    /// As [`Shell::start`].
    pub fn start_within(
        exe: &Path,
        data_dir: &Path,
        wait: Duration,
        on_waiting: impl FnMut(Option<u32>),
    ) -> Result<Shell, Error> {
        // A keeper that is started later is this very program, also where the file was replaced by a newer one since.
        let is_own = std::env::current_exe().is_ok_and(|own| own == exe);
        let exe = if is_own { PathBuf::from("/proc/self/exe") } else { exe.to_owned() };
        let place = Place { exe, data_dir: data_dir.to_owned(), wait };
        let keeping = place.keep(on_waiting)?;
        let exe = place.exe.clone();
        let failed = |source| Error::Start { exe: exe.clone(), source };
        let link = Arc::new(Link {
            writer: Mutex::new(Some(keeping.stream.try_clone().map_err(failed)?)),
            attempts: Mutex::default(),
            keeper_pid: AtomicU32::new(keeping.keeper.id()),
            closing: AtomicBool::new(false),
            closed: Condvar::new(),
        });
        let shared = Arc::clone(&link);
        let reader = std::thread::Builder::new()
            .name("shell-reader".to_owned())
            .spawn(move || serve(&shared, keeping, &place))
            .map_err(failed)?;
        Ok(Shell { link, reader: Some(reader), walls: OnceLock::new(), limits: OnceLock::new() })
    }

    /// Says what commands run behind, from now on. It is asked for each; the first that was set stays.
    pub fn set_walls(&self, walls: impl Fn(&Author, &Path) -> Wall + Send + Sync + 'static) {
        let _ = self.walls.set(Box::new(walls));
    }

    /// Says what each process of a command may use at most; the first that was set stays.
    pub fn set_limits(&self, limits: Limits) {
        let _ = self.limits.set(limits);
    }

    /// The process id of the keeper.
    #[must_use]
    pub fn keeper_pid(&self) -> u32 {
        self.link.keeper_pid.load(Ordering::Acquire)
    }

    /// Whether a process with these ancestors belongs to a step: it descends from the keeper.
    #[must_use]
    pub fn is_above(&self, line: &[Identity]) -> bool {
        let keeper = self.keeper_pid();
        line.iter().any(|(pid, _)| u32::try_from(*pid) == Ok(keeper))
    }

    /// Whether there is a keeper, so that something can be started.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        lock_of(&self.link.writer).is_some()
    }

    /// What a command of this author runs behind in a directory.
    #[must_use]
    pub fn wall(&self, author: &Author, dir: &Path) -> Wall {
        self.walls.get().map_or(Wall::None, |wall| wall(author, dir))
    }

    /// Starts an attempt, which its caller has leave to do. `on_event` is called from one thread for all attempts, so it should only pass things on.
    /// If this returns without error, [`ShellEvent::Ended`] comes exactly once.
    ///
    /// # Errors
    /// Where the id is none or taken, the request is too large, the wall refuses it, or the keeper is gone. Nothing runs
    /// then.
    pub fn run(
        &self,
        _: &Leave,
        mut spec: Spec,
        on_event: impl Fn(ShellEvent) + Send + 'static,
    ) -> Result<(), Error> {
        let id = spec.id.clone();
        if id.is_empty() || id.len() > spec::ID_LEN_MAX || id.chars().any(char::is_control) {
            return Err(Error::Id);
        }
        spec.limits = self.limits.get().copied().unwrap_or_default();
        spec.wall = self.wall(&spec.author, &spec.dir);
        spec.wall.check(&spec.dir).map_err(Error::Walled)?;
        if let Wall::User(user) = &spec.wall {
            // It cannot reach the data directory, and its files have to be where it can.
            let name = spec.output_file.file_name().unwrap_or_default();
            spec.output_file = user.scratch.join(name);
        }
        spec.settle();
        let frame = wire::encode(&Request::Run(Box::new(spec)))
            .map_err(|error| Error::TooLarge(error.to_string()))?;
        let handler: Handler = Arc::new(Mutex::new(on_event));
        // Held for both steps: what is asked of a keeper is reported with it.
        let mut writer = lock_of(&self.link.writer);
        let Some(writer) = writer.as_mut() else { return Err(Error::Gone) };
        match lock_of(&self.link.attempts).entry(id) {
            Entry::Occupied(taken) => return Err(Error::Running(taken.key().clone())),
            Entry::Vacant(free) => drop(free.insert(Asked { handler, begun: false })),
        }
        // If this fails the keeper is gone, and the reading thread reports that the attempt was not started.
        let _ = writer.write_all(&frame);
        Ok(())
    }

    /// Ends an attempt: SIGTERM to its whole tree now, SIGKILL to what is left after the grace time. False where it is
    /// not running; its end was then reported, or is about to be.
    ///
    /// # Errors
    /// Where the keeper is gone.
    pub fn stop(&self, id: &str, grace: Duration) -> Result<bool, Error> {
        let mut writer = lock_of(&self.link.writer);
        let Some(writer) = writer.as_mut() else { return Err(Error::Gone) };
        if !lock_of(&self.link.attempts).contains_key(id) {
            return Ok(false);
        }
        let request = Request::Stop { id: id.to_owned(), grace_ms: grace.as_millis() as u64 };
        let frame = wire::encode(&request).map_err(|error| Error::TooLarge(error.to_string()))?;
        writer.write_all(&frame).map_err(|_| Error::Gone)?;
        Ok(true)
    }

    /// Ends all attempts and returns when the keeper is gone, which is after the last of their processes.
    pub fn close(mut self) {
        self.hang_up();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    fn hang_up(&self) {
        let writer = lock_of(&self.link.writer);
        self.link.closing.store(true, Ordering::Release);
        if let Some(writer) = writer.as_ref() {
            let _ = writer.shutdown(Shutdown::Write);
        }
        self.link.closed.notify_all();
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.hang_up();
    }
}

impl Place {
    /// Starts a keeper and waits until it is ready.
    fn keep(&self, mut on_waiting: impl FnMut(Option<u32>)) -> Result<Keeping, Error> {
        let failed = |source| Error::Start { exe: self.exe.clone(), source };
        let (mut stream, mut keeper) = spawn(&self.exe, &self.data_dir).map_err(failed)?;
        let mut decoder = Decoder::default();
        let mut handshake = || -> Result<(), Error> {
            let wait_ms = self.wait.as_millis() as u64;
            let hello = Request::Hello { data_dir: self.data_dir.clone(), wait_ms };
            let frame = wire::encode(&hello).map_err(|error| failed(io::Error::other(error)))?;
            // The lock is waited for, and then processes that carry its mark.
            stream.set_read_timeout(Some(self.wait * 2 + ANSWER_WAIT)).map_err(failed)?;
            stream.write_all(&frame).map_err(failed)?;
            loop {
                match receive(&mut stream, &mut decoder).map_err(failed)? {
                    Some(Report::Ready) => return stream.set_read_timeout(None).map_err(failed),
                    Some(Report::Waiting { pid }) => on_waiting(pid),
                    Some(Report::Refused { text }) => return Err(Error::Refused(text)),
                    Some(_) => {}
                    None => {
                        return Err(failed(io::Error::other(
                            "it ended at once; see keeper.log in the data directory",
                        )));
                    }
                }
            }
        };
        if let Err(error) = handshake() {
            let _ = stream.shutdown(Shutdown::Both);
            // It ends by itself now: nothing was started.
            let _ = keeper.wait();
            return Err(error);
        }
        Ok(Keeping { stream, decoder, keeper })
    }

    /// Ends what a keeper that died left behind, and returns when nothing of it is left, or nobody waits any more.
    fn sweep(&self, link: &Link) {
        let Ok(metadata) = std::fs::metadata(self.data_dir.join("keeper.lock")) else { return };
        let prefix = lock::mark_prefix(&metadata);
        loop {
            let left = process::sweep(&prefix, SWEEP_WAIT);
            match left {
                Ok(left) if left.is_empty() => return,
                Ok(left) => {
                    eprintln!(
                        "windlass: {} processes of the keeper that ended do not end: {left:?}",
                        left.len()
                    );
                }
                Err(error) => eprintln!("windlass: what the keeper left cannot be looked at: {error}"),
            }
            // What cannot be ended here is waited for by the next keeper, which sweeps before it begins.
            if link.pause(START_PAUSE) {
                return;
            }
        }
    }
}

impl Link {
    /// Waits. True when nothing is to be started any more.
    fn pause(&self, time: Duration) -> bool {
        let writer = lock_of(&self.writer);
        let is_open = |_: &mut Option<UnixStream>| !self.closing.load(Ordering::Acquire);
        let waited = self.closed.wait_timeout_while(writer, time, is_open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.closing.load(Ordering::Acquire)
    }

    /// Every attempt that was not reported ends like this.
    fn report_all(&self, ending: impl Fn(&Asked) -> Ending) {
        let attempts = std::mem::take(&mut *lock_of(&self.attempts));
        for asked in attempts.into_values() {
            lock_of(&asked.handler)(ShellEvent::Ended(Ended::without_output(ending(&asked))));
        }
    }
}

/// Passes on what keepers report: of one after the other, until nothing is to be started any more.
fn serve(link: &Link, mut keeping: Keeping, place: &Place) {
    loop {
        let Keeping { mut stream, mut decoder, mut keeper } = keeping;
        while let Ok(Some(report)) = receive(&mut stream, &mut decoder) {
            dispatch(link, report);
        }
        // From here on nothing is asked of it any more: what was asked is in the map.
        *lock_of(&link.writer) = None;
        // A keeper whose socket fails for another reason sees it closed, and ends what it keeps.
        let _ = stream.shutdown(Shutdown::Both);
        let ended = keeper.wait();
        if ended.as_ref().is_ok_and(std::process::ExitStatus::success) {
            // Windlass hung up before they were reported.
            return link.report_all(|_| Ending::Stopped);
        }
        let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        eprintln!(
            "windlass: the keeper of shell steps ended ({how}); its processes are ended and it is started again"
        );
        place.sweep(link);
        link.report_all(|asked| match asked.begun {
            true => Ending::Lost,
            false => Ending::NotStarted(StartError::NoRoom {
                what: "the step".to_owned(),
                text: "the keeper of shell steps ended before".to_owned(),
            }),
        });
        let Some(next) = again(link, place) else { return };
        keeping = next;
    }
}

/// Starts another keeper, however often that takes. `None` when nothing is to be started any more.
fn again(link: &Link, place: &Place) -> Option<Keeping> {
    let mut pause = START_PAUSE;
    loop {
        if link.closing.load(Ordering::Acquire) {
            return None;
        }
        let begun = place.keep(|_| {}).and_then(|keeping| {
            let writer = keeping.stream.try_clone();
            let writer = writer.map_err(|source| Error::Start { exe: place.exe.clone(), source })?;
            Ok((keeping, writer))
        });
        match begun {
            Ok((keeping, stream)) => {
                let mut writer = lock_of(&link.writer);
                if link.closing.load(Ordering::Acquire) {
                    // It ends by itself: nothing was started.
                    return None;
                }
                link.keeper_pid.store(keeping.keeper.id(), Ordering::Release);
                *writer = Some(stream);
                eprintln!("windlass: the keeper of shell steps runs again");
                return Some(keeping);
            }
            Err(error) => eprintln!("windlass: {error}"),
        }
        if link.pause(pause) {
            return None;
        }
        pause = (pause * 2).min(START_PAUSE_MAX);
    }
}

/// A living process and its ancestors, nearest first; `None` where it has ended.
#[must_use]
pub fn ancestry(pid: i32) -> Option<Vec<Identity>> {
    process::ancestry(pid)
}

/// Whether a process with these ancestors belongs to a step that another keeper on this machine runs: that of an executor, or
/// of another data directory. A keeper that this process descends from itself says nothing.
#[must_use]
pub fn is_kept(line: &[Identity]) -> bool {
    let kept: Vec<&Identity> = line.iter().filter(|(pid, _)| process::is_keeping(*pid)).collect();
    if kept.is_empty() {
        return false;
    }
    let own = process::ancestry(process::own_pid()).unwrap_or_default();
    kept.iter().any(|process| !own.contains(process))
}

/// A process by its id and start time; `None` where it has ended.
#[must_use]
pub fn identity(pid: u32) -> Option<Identity> {
    process::look(i32::try_from(pid).ok()?).map(|process| process.identity)
}

/// Starts the keeper with the other end of a socket pair as its standard input, and without this process's environment. It
/// makes a session of its own, which it could not as the leader of a process group.
fn spawn(exe: &Path, data_dir: &Path) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let log = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(data_dir.join("keeper.log"))?;
    let mut command = Command::new(exe);
    command.arg0("windlass").arg(KEEPER_ARGUMENT).env_clear().env(keeper::STARTED_BY, "1");
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(log);
    Ok((ours, command.spawn()?))
}

/// The next report; `None` when the keeper has closed.
fn receive(stream: &mut UnixStream, decoder: &mut Decoder) -> io::Result<Option<Report>> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if let Some(report) = decoder.next().map_err(io::Error::other)? {
            return Ok(Some(report));
        }
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(len) => decoder.push(&buffer[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn dispatch(link: &Link, report: Report) {
    let (id, event) = match report {
        Report::Started { id, pid } => (id, ShellEvent::Started { pid }),
        Report::Began { id } => (id, ShellEvent::Began),
        Report::Lines { id, lines } => {
            return tell(link, &id, lines.into_iter().map(ShellEvent::Line).collect());
        }
        Report::Warned { id, text } => (id, ShellEvent::Warned(text)),
        Report::Ended { id, ended } => (id, ShellEvent::Ended(*ended)),
        // They come before the first attempt only.
        Report::Waiting { .. } | Report::Ready | Report::Refused { .. } => return,
    };
    tell(link, &id, vec![event]);
}

fn tell(link: &Link, id: &str, events: Vec<ShellEvent>) {
    let handler = {
        let mut attempts = lock_of(&link.attempts);
        match events.last() {
            Some(ShellEvent::Ended(_)) => attempts.remove(id).map(|asked| asked.handler),
            Some(
                ShellEvent::Started { .. } | ShellEvent::Began | ShellEvent::Line(_) | ShellEvent::Warned(_),
            )
            | None => attempts.get_mut(id).map(|asked| {
                asked.begun |= matches!(events.last(), Some(ShellEvent::Started { .. }));
                asked.handler.clone()
            }),
        }
    };
    // It is called without the map's lock, so it may start and stop attempts itself.
    if let Some(handler) = handler {
        events.into_iter().for_each(|event| lock_of(&handler)(event));
    }
}
