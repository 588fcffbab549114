//! What a shell step is asked to do, and what became of it.

use super::environment::Environment;
use super::limits::Limits;
use super::typed::OutputError;
use super::walls::{self, Wall};
use crate::room;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use windlass_core::id::{Name, RunId};
use windlass_core::runbook::ValueType;
use windlass_core::small;

/// How long processes have between being asked to end and being killed, unless something else is said.
pub const GRACE: Duration = Duration::from_secs(10);

/// How many bytes of output are kept, unless something else is said.
pub const OUTPUT_MAX: u64 = 10 * 1024 * 1024;

/// The most bytes of an attempt's id.
pub const ID_LEN_MAX: usize = 1024;

/// Who wrote a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Author {
    /// It is not known.
    #[default]
    Nobody,
    /// Somebody of a tenant.
    Tenant(Name),
    /// It is of a run of a tenant, which runs in its own directory.
    Run {
        /// The tenant.
        tenant: Name,
        /// The run.
        run: RunId,
        /// The run's directory.
        home: String,
    },
    /// The owner, as a tool that steps call.
    Tool,
    /// The owner, in the configuration file.
    Configuration,
}

/// One attempt at a shell step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    /// Its name, unique among the attempts that run: run, step and epoch, usually.
    pub id: String,
    /// The command, as the runbook has it. No value is ever put into its text.
    pub command: String,
    /// What reads the command: `bash` (the default, with `-eo pipefail`), `sh`, `python3`, or any other program that
    /// takes a script file as its argument (or in the place of `{0}`).
    pub shell: Option<String>,
    /// The working directory.
    pub dir: PathBuf,
    /// The whole environment of the command, but for `WL_OUTPUT`, which is added.
    pub env: Environment,
    /// How long it may take; `None` is for ever.
    pub timeout: Option<Duration>,
    /// How long its processes have between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Where its output is written, in the format of [`super::output`]. An existing file is replaced.
    pub log: PathBuf,
    /// The file that `WL_OUTPUT` names. It is made before the start, and removed after it was read.
    pub output_file: PathBuf,
    /// How many bytes of the log are kept: the head and the tail, without what was between them.
    pub output_max: u64,
    /// What is masked in everything that the command writes. A `WL_TOKEN` in the environment is masked as well.
    pub secrets: Vec<Secret>,
    /// Whether the lines are also reported as they come.
    pub live: bool,
    /// What the runbook declares that it hands on: lines of `name=value` are read as that.
    pub outputs: small::Map<Name, ValueType>,
    /// Who wrote it, which says what it runs behind.
    #[serde(skip)]
    pub author: Author,
    /// What it runs behind. [`super::Shell::run`] sets it.
    pub wall: Wall,
    /// What each of its processes may use at most. [`super::Shell::run`] sets it.
    pub limits: Limits,
}

impl Spec {
    /// An attempt with the usual limits and without secrets.
    #[must_use]
    pub fn new(
        id: &str,
        command: &str,
        dir: PathBuf,
        env: Environment,
        log: PathBuf,
        output_file: PathBuf,
    ) -> Spec {
        Spec {
            id: id.to_owned(),
            command: command.to_owned(),
            shell: None,
            dir,
            env,
            timeout: None,
            grace: GRACE,
            log,
            output_file,
            output_max: OUTPUT_MAX,
            secrets: Vec::new(),
            live: false,
            outputs: small::Map::new(),
            author: Author::Nobody,
            wall: Wall::None,
            limits: Limits::default(),
        }
    }
}

impl Spec {
    /// Points what is taken from this process's environment to where the command reaches it. What the runbook says stays.
    pub(super) fn settle(&mut self) {
        let Some(folder) = walls::folder(&self.wall, &self.output_file) else { return };
        let home = match &self.wall {
            Wall::User(user) => user.home.clone(),
            Wall::None | Wall::Sandbox(_) | Wall::Refused(_) => folder.clone(),
        };
        let own = Environment::inherited();
        for (name, path) in [("HOME", home), ("TMPDIR", folder)] {
            if self.env.get(name) == own.get(name) {
                // A path without NUL bytes, as paths of this system are.
                let _ = self.env.add(name, &path.to_string_lossy());
            }
        }
    }
}

/// A secret with the name that it is known by.
#[derive(Clone, Serialize, Deserialize)]
pub struct Secret {
    /// The name, which may be shown.
    pub name: String,
    /// The value, which may not.
    pub value: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What an attempt's callback is told, in this order: started, began, lines and warnings, ended. The end comes exactly once.
#[derive(Clone, Debug, PartialEq)]
pub enum ShellEvent {
    /// The command begins now.
    Started {
        /// The process that supervises it: all of its processes are descendants of this one.
        pid: u32,
    },
    /// Its command runs, or its end follows because it could not be started.
    Began,
    /// It wrote a line. Only with [`Spec::live`], and not all of them when the reader is slower than the command.
    Line(Line),
    /// Something that its owner should know.
    Warned(String),
    /// It is over, and none of its processes is left.
    Ended(Ended),
}

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The command's standard output.
    Out,
    /// The command's standard error.
    Err,
    /// Windlass itself, for what it left out.
    Note,
}

/// A line of output, without secrets and without its line break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When it was read, in milliseconds since the epoch.
    pub at_ms: u64,
    /// Where it came from.
    pub source: Source,
    /// Its text. Bytes that are no UTF-8 are replaced.
    pub text: String,
    /// False where the line goes on in the next one of the same source, because it is very long.
    pub whole: bool,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// How it ended.
    pub ending: Ending,
    /// What it ran behind, by name.
    #[serde(default)]
    pub wall: Option<Name>,
    /// Its typed output, without secrets: what it wrote to `WL_OUTPUT`, or a last line that is a JSON object.
    pub output: Result<Option<Value>, OutputError>,
    /// How many bytes it wrote to its standard output.
    pub stdout_bytes: u64,
    /// How many bytes it wrote to its standard error.
    pub stderr_bytes: u64,
    /// How many bytes of the log were dropped, because there were more than are kept.
    pub dropped_bytes: u64,
    /// How many bytes of the log the disk did not take.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Why the log is not whole, where the disk refused it. The command was not disturbed by that.
    pub log_error: Option<String>,
    /// How long it took, the end of the last process included.
    pub duration_ms: u64,
}

impl Ended {
    /// The end of an attempt that wrote nothing.
    #[must_use]
    pub(super) fn without_output(ending: Ending) -> Ended {
        Ended {
            ending,
            wall: None,
            output: Ok(None),
            stdout_bytes: 0,
            stderr_bytes: 0,
            dropped_bytes: 0,
            lost_bytes: 0,
            log_error: None,
            duration_ms: 0,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Its shell exited with this code.
    Exited(i32),
    /// Its shell was ended by a signal that Windlass did not send.
    Signalled(i32),
    /// It took longer than its time-out and was ended.
    TimedOut,
    /// It was stopped on request.
    Stopped,
    /// It was never started.
    NotStarted(StartError),
    /// The keeper died, or nobody saw how it ended. Its processes were killed; what they did until then is not known.
    Lost,
}

impl Ending {
    /// Whether the command says that it succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        *self == Ending::Exited(0)
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exited(126) => {
                f.write_str("exit code 126: a file could not be executed; see its mode, its first line, and whether the sandbox gives it")
            }
            Ending::Exited(127) => {
                f.write_str("exit code 127: a command was not found; see its spelling and PATH")
            }
            Ending::Exited(code) => write!(f, "exit code {code}"),
            Ending::Signalled(9) => {
                f.write_str("killed by signal 9; see whether the machine ran out of memory")
            }
            Ending::Signalled(signal) => write!(f, "ended by signal {signal}"),
            Ending::TimedOut => f.write_str("timed out; its processes were ended"),
            Ending::Stopped => f.write_str("stopped; its processes were ended"),
            Ending::NotStarted(error) => write!(f, "not started: {error}"),
            Ending::Lost => f.write_str("lost: the keeper of its processes died, so nobody saw how it ended"),
        }
    }
}

/// Why a command could not be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StartError {
    /// The working directory cannot be used.
    #[error("the working directory `{dir}` cannot be used ({text}); make it, or see `dir:`")]
    Directory {
        /// The directory.
        dir: String,
        /// What the system says.
        text: String,
    },
    /// There is no such shell.
    #[error("the shell `{shell}` is not found in PATH ({path}); install it, or see `shell:`")]
    Shell {
        /// The shell's name.
        shell: String,
        /// Where it was looked for.
        path: String,
    },
    /// The system takes no arguments and environment of this size.
    #[error(
        "the command and its environment have {bytes} bytes, more than the system takes; pass large values as files"
    )]
    TooBig {
        /// The size of command and environment.
        bytes: u64,
    },
    /// Too many attempts run already.
    #[error("{max} attempts run already; lower the concurrency")]
    TooMany {
        /// How many may run.
        max: usize,
    },
    /// One of the attempt's own files cannot be made.
    #[error("the file `{path}` cannot be made ({text}); see that its directory exists and the disk has room")]
    File {
        /// The file.
        path: String,
        /// What the system says.
        text: String,
    },
    /// The machine had no room for it: no descriptor, process, memory or place on the disk. Nothing had begun.
    #[error("no room ({text}) for {what}")]
    NoRoom {
        /// What was to be started or made.
        what: String,
        /// What the system says.
        text: String,
    },
    /// Anything else that the system says.
    #[error("the system refused to start `{program}`: {text}")]
    System {
        /// What was to be started.
        program: String,
        /// What the system says.
        text: String,
    },
}

impl StartError {
    /// Whether the step itself is fine and can begin later, as nothing had begun.
    #[must_use]
    pub fn passes(&self) -> bool {
        match self {
            StartError::NoRoom { .. } | StartError::TooMany { .. } => true,
            StartError::Directory { .. }
            | StartError::Shell { .. }
            | StartError::TooBig { .. }
            | StartError::File { .. }
            | StartError::System { .. } => false,
        }
    }

    /// What an error of the system means: a lack of room passes, anything else is `other`.
    pub(super) fn of(error: &io::Error, other: impl FnOnce() -> StartError) -> StartError {
        let other = other();
        if !room::is_lacking(error) {
            return other;
        }
        let what = match other {
            StartError::Directory { dir, .. } => dir,
            StartError::Shell { shell, .. } => shell,
            StartError::File { path, .. } => path,
            StartError::System { program, .. } => program,
            same @ (StartError::TooBig { .. } | StartError::TooMany { .. } | StartError::NoRoom { .. }) => {
                return same;
            }
        };
        StartError::NoRoom { what, text: error.to_string() }
    }

    /// A file that cannot be made.
    #[must_use]
    pub fn file(path: &Path, error: &io::Error) -> StartError {
        let (path, text) = (path.display().to_string(), error.to_string());
        StartError::of(error, || StartError::File { path, text })
    }
}
