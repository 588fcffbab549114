//! Shell steps: commands run as children of a keeper, which ends their whole trees whatever happens to Windlass.
//!
//! ```text
//!  windlass ── socket pair ──▶ keeper ──▶ bash ──▶ …     one attempt: one process group and all its descendants
//!     ▲                          │
//!     └──── started, lines, ended ┘ secrets are masked here, before a file or the socket sees them
//! ```
//!
//! **An attempt is over only when none of its processes is left.** The keeper holds a lock on the data directory until
//! that is true of all of them, so a restarted Windlass never runs beside a living copy.

mod attempt;
mod command;
pub mod environment;
pub mod keeper;
mod lines;
pub mod lock;
pub mod output;
mod process;
pub mod spec;
pub mod typed;
mod wire;

#[cfg(test)]
mod tests;

pub use environment::Environment;
pub use spec::{Ended, Ending, Line, Secret, ShellEvent, Source, Spec, StartError};
pub use typed::{OutputError, check_outputs};

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use wire::{Decoder, Report, Request};

/// The argument that makes the program a keeper.
pub const KEEPER_ARGUMENT: &str = "__keeper";

/// How long an earlier keeper may take to end its processes: their grace time and some more.
pub const LOCK_WAIT: Duration = Duration::from_secs(30);

/// How long a new keeper may take beyond that to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// How long is waited for the processes of a keeper that died.
const SWEEP_WAIT: Duration = Duration::from_secs(10);

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
    /// The keeper died. Start another one; attempts that ran are reported as lost.
    #[error(
        "the keeper of shell steps is gone; start windlass again, and see keeper.log in the data directory"
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
}

type Handler = Arc<Mutex<dyn Fn(ShellEvent) + Send>>;

/// What the callers and the reading thread share.
struct Link {
    writer: Mutex<UnixStream>,
    /// The attempts that run, with whom to tell; `None` when the keeper is gone.
    handlers: Mutex<Option<BTreeMap<String, Handler>>>,
}

/// Whoever panicked while holding a lock left the maps whole: nothing is changed in more than one step.
fn lock_of<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shell steps of one data directory. Dropping it ends all of them; [`Shell::close`] also waits for that.
pub struct Shell {
    link: Arc<Link>,
    reader: Option<JoinHandle<()>>,
    keeper_pid: u32,
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
        mut on_waiting: impl FnMut(Option<u32>),
    ) -> Result<Shell, Error> {
        let failed = |source| Error::Start { exe: exe.to_owned(), source };
        let (mut stream, mut keeper) = spawn(exe, data_dir).map_err(failed)?;
        let mut decoder = Decoder::default();
        let mut handshake = || -> Result<(), Error> {
            let wait_ms = wait.as_millis() as u64;
            let hello = Request::Hello { data_dir: data_dir.to_owned(), wait_ms };
            let frame = wire::encode(&hello).map_err(|error| failed(io::Error::other(error)))?;
            // The lock is waited for, and then processes that carry its mark.
            stream.set_read_timeout(Some(wait * 2 + ANSWER_WAIT)).map_err(failed)?;
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
        let keeper_pid = keeper.id();
        let writer = Mutex::new(stream.try_clone().map_err(failed)?);
        let link = Arc::new(Link { writer, handlers: Mutex::new(Some(BTreeMap::new())) });
        let shared = Arc::clone(&link);
        let data_dir = data_dir.to_owned();
        let reader = std::thread::Builder::new()
            .name("shell-reader".to_owned())
            .spawn(move || read_reports(&shared, stream, decoder, keeper, &data_dir))
            .map_err(failed)?;
        Ok(Shell { link, reader: Some(reader), keeper_pid })
    }

    /// The process id of the keeper.
    #[must_use]
    pub fn keeper_pid(&self) -> u32 {
        self.keeper_pid
    }

    /// Starts an attempt. `on_event` is called from one thread for all attempts, so it should only pass things on.
    /// If this returns without error, [`ShellEvent::Ended`] comes exactly once.
    ///
    /// # Errors
    /// Where the id is none or taken, the request is too large, or the keeper is gone. Nothing runs then.
    pub fn run(&self, spec: Spec, on_event: impl Fn(ShellEvent) + Send + 'static) -> Result<(), Error> {
        let id = spec.id.clone();
        if id.is_empty() || id.len() > spec::ID_LEN_MAX || id.chars().any(char::is_control) {
            return Err(Error::Id);
        }
        let frame = wire::encode(&Request::Run(Box::new(spec)))
            .map_err(|error| Error::TooLarge(error.to_string()))?;
        let handler: Handler = Arc::new(Mutex::new(on_event));
        match lock_of(&self.link.handlers).as_mut() {
            None => return Err(Error::Gone),
            Some(handlers) if handlers.contains_key(&id) => return Err(Error::Running(id)),
            Some(handlers) => handlers.insert(id, handler),
        };
        // If this fails the keeper is gone, and the reading thread reports the attempt as lost.
        let _ = lock_of(&self.link.writer).write_all(&frame);
        Ok(())
    }

    /// Ends an attempt: SIGTERM to its whole tree now, SIGKILL to what is left after the grace time. False where it is
    /// not running; its end was then reported, or is about to be.
    ///
    /// # Errors
    /// Where the keeper is gone.
    pub fn stop(&self, id: &str, grace: Duration) -> Result<bool, Error> {
        match lock_of(&self.link.handlers).as_ref() {
            None => return Err(Error::Gone),
            Some(handlers) if !handlers.contains_key(id) => return Ok(false),
            Some(_) => {}
        }
        let request = Request::Stop { id: id.to_owned(), grace_ms: grace.as_millis() as u64 };
        let frame = wire::encode(&request).map_err(|error| Error::TooLarge(error.to_string()))?;
        lock_of(&self.link.writer).write_all(&frame).map_err(|_| Error::Gone)?;
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
        let _ = lock_of(&self.link.writer).shutdown(Shutdown::Write);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Starts the keeper with the other end of a socket pair as its standard input, in a process group of its own so that
/// a Ctrl-C at the terminal does not reach it, and without this process's environment.
fn spawn(exe: &Path, data_dir: &Path) -> io::Result<(UnixStream, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    let log = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(data_dir.join("keeper.log"))?;
    let mut command = Command::new(exe);
    command.arg(KEEPER_ARGUMENT).env_clear().env(keeper::STARTED_BY, "1").process_group(0);
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

/// Passes reports on until the keeper is gone, and then ends what a keeper that died left behind.
fn read_reports(
    link: &Link,
    mut stream: UnixStream,
    mut decoder: Decoder,
    mut keeper: Child,
    data_dir: &Path,
) {
    while let Ok(Some(report)) = receive(&mut stream, &mut decoder) {
        dispatch(link, report);
    }
    // A keeper whose socket fails for another reason sees it closed, and ends what it keeps.
    let _ = stream.shutdown(Shutdown::Both);
    let is_clean = keeper.wait().is_ok_and(|status| status.success());
    if !is_clean && let Ok(metadata) = std::fs::metadata(data_dir.join("keeper.lock")) {
        // Whoever cannot be ended here is waited for by the next keeper, which sweeps before it begins.
        let _ = process::sweep(&format!("{:x}-{:x}/", metadata.dev(), metadata.ino()), SWEEP_WAIT);
    }
    let handlers = lock_of(&link.handlers).take().unwrap_or_default();
    for handler in handlers.into_values() {
        // Windlass hung up before they were reported, or nobody saw how they ended.
        let ending = if is_clean { Ending::Stopped } else { Ending::Lost };
        lock_of(&handler)(ShellEvent::Ended(Ended::without_output(ending)));
    }
}

fn dispatch(link: &Link, report: Report) {
    let (id, events) = match report {
        Report::Started { id, pid } => (id, vec![ShellEvent::Started { pid }]),
        Report::Lines { id, lines } => (id, lines.into_iter().map(ShellEvent::Line).collect()),
        Report::Warned { id, text } => (id, vec![ShellEvent::Warned(text)]),
        Report::Ended { id, ended } => (id, vec![ShellEvent::Ended(*ended)]),
        // They come before the first attempt only.
        Report::Waiting { .. } | Report::Ready | Report::Refused { .. } => return,
    };
    let is_last = matches!(events.last(), Some(ShellEvent::Ended(_)));
    let handler = {
        let mut handlers = lock_of(&link.handlers);
        let Some(handlers) = handlers.as_mut() else { return };
        if is_last { handlers.remove(&id) } else { handlers.get(&id).cloned() }
    };
    // It is called without the map's lock, so it may start and stop attempts itself.
    if let Some(handler) = handler {
        events.into_iter().for_each(|event| lock_of(&handler)(event));
    }
}
