//! How a command is started: its files, its program and its arguments, and then its process.
//!
//! The keeper prepares a [`Launch`]; the attempt's supervisor carries it out ([`Launch::spawn`]).

use super::limits::Limits;
use super::spec::{Spec, StartError};
use super::variables::Variable;
use super::walls::{self, Wall};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Longer commands go through a file: the system takes no argument of more than 128 KiB.
const ARGUMENT_MAX: usize = 100 * 1024;

/// Where a script file takes its place among a shell's words.
const PLACE: &str = "{0}";

/// The words of a shell before its command, and whether it takes the command itself after `-c`.
fn words(shell: Option<&str>) -> (Vec<&str>, bool) {
    let words: Vec<&str> = shell.unwrap_or("bash").split_ascii_whitespace().collect();
    match words[..] {
        [] | ["bash"] => (vec!["bash", "-eo", "pipefail"], true),
        [posix @ ("sh" | "dash" | "zsh" | "ksh")] => (vec![posix, "-e"], true),
        [python @ ("python" | "python3")] => (vec![python], true),
        // Any other program takes a file; not all have a `-c`, and for some it means something else.
        _ => (words, false),
    }
}

/// The file that a long command is put into, beside the file for its output.
pub(super) fn script_path(spec: &Spec) -> PathBuf {
    let mut name = spec.output_file.file_name().unwrap_or_default().to_owned();
    name.push(".script");
    spec.output_file.with_file_name(name)
}

/// A command that is ready to be started. It holds the values of secrets and travels over a private socket only.
#[derive(Serialize, Deserialize)]
pub(super) struct Launch {
    program: PathBuf,
    name: String,
    arguments: Vec<String>,
    dir: PathBuf,
    env: BTreeMap<String, String>,
    wall: Wall,
    limits: Limits,
    /// The attempt's own files.
    own: Vec<PathBuf>,
}

impl Launch {
    /// Makes the attempt's files and finds its program.
    pub(super) fn prepare(spec: &Spec, mark: &str) -> Result<Launch, StartError> {
        check_dir(&spec.dir)?;
        make_file(&spec.output_file, b"", &spec.wall)?;
        let mut own = vec![spec.output_file.clone()];
        let (words, takes_command) = words(spec.shell.as_deref());
        let name = words.first().copied().unwrap_or("bash");
        let program = find(name, spec)?;
        let rest = words.iter().skip(1);
        let arguments = if takes_command && spec.command.len() <= ARGUMENT_MAX {
            rest.copied().chain(["-c", &spec.command]).map(str::to_owned).collect()
        } else {
            let path = script_path(spec);
            make_file(&path, spec.command.as_bytes(), &spec.wall)?;
            own.push(path.clone());
            let script = path.to_string_lossy();
            let mut arguments: Vec<String> = rest
                .map(|word| if *word == PLACE { script.to_string() } else { (*word).to_owned() })
                .collect();
            if !words.contains(&PLACE) {
                arguments.push(script.to_string());
            }
            arguments
        };
        let mut env: BTreeMap<String, String> =
            spec.env.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        env.insert(Variable::Output.name().to_owned(), spec.output_file.to_string_lossy().into_owned());
        env.insert(Variable::Mark.name().to_owned(), mark.to_owned());
        if let Some(folder) = walls::folder(&spec.wall, &spec.output_file) {
            make_folder(&folder, &spec.wall)?;
            own.push(folder);
        }
        let (name, dir, wall) = (name.to_owned(), spec.dir.clone(), spec.wall.clone());
        Ok(Launch { program, name, arguments, dir, env, wall, limits: spec.limits, own })
    }

    /// Whether starting it restricts the process that does, too.
    pub(super) fn is_walled(&self) -> bool {
        !matches!(self.wall, Wall::None)
    }

    /// Starts the command in a process group of its own, with nothing but what its spec says.
    pub(super) fn spawn(&self, out: OwnedFd, err: OwnedFd) -> Result<Child, StartError> {
        self.limits.set().map_err(|error| self.explain(&error))?;
        self.wall.enter(&self.dir, &self.own)?;
        let mut command = Command::new(&self.program);
        if let Wall::User(user) = &self.wall {
            // Root's other groups go with it.
            command.uid(user.uid).gid(user.gid);
        }
        command.arg0(&self.name).args(&self.arguments).current_dir(&self.dir);
        command.env_clear().envs(&self.env);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        command.process_group(0).spawn().map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &io::Error) -> StartError {
        if error.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) {
            let variables = self.env.iter().map(|(name, value)| name.len() + value.len() + 2);
            let arguments = self.arguments.iter().map(String::len);
            return StartError::TooBig { bytes: variables.chain(arguments).sum::<usize>() as u64 };
        }
        let (program, text) = (self.program.display().to_string(), error.to_string());
        StartError::of(error, || StartError::System { program, text })
    }
}

fn check_dir(dir: &Path) -> Result<(), StartError> {
    let refuse = |error: &io::Error| {
        let (dir, text) = (dir.display().to_string(), error.to_string());
        StartError::of(error, || StartError::Directory { dir, text })
    };
    let metadata = fs::metadata(dir).map_err(|error| refuse(&error))?;
    if metadata.is_dir() { Ok(()) } else { Err(refuse(&io::Error::other("it is not a directory"))) }
}

/// A new file for the owner alone, in the place of one that is there. Its folder is made where somebody removed it.
fn make_file(path: &Path, content: &[u8], wall: &Wall) -> Result<(), StartError> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let make = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = match (create(), path.parent()) {
            (Err(error), Some(folder)) if error.kind() == io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                create()
            }
            (file, _) => file,
        };
        file?.write_all(content)?;
        walls::hand_over(wall, path)
    };
    make().map_err(|error| StartError::file(path, &error))
}

/// A new folder for the attempt alone, in the place of one that an earlier one left.
fn make_folder(path: &Path, wall: &Wall) -> Result<(), StartError> {
    let make = || {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        fs::DirBuilder::new().mode(0o700).create(path)?;
        walls::hand_over(wall, path)
    };
    make().map_err(|error| StartError::file(path, &error))
}

/// Looks for a program as a shell would, with the attempt's own PATH and directory.
fn find(name: &str, spec: &Spec) -> Result<PathBuf, StartError> {
    let is_program = |path: &Path| {
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let path = spec.env.get("PATH").unwrap_or_default();
    let found = if name.contains('/') {
        Some(spec.dir.join(name)).filter(|path| is_program(path))
    } else {
        std::env::split_paths(path)
            .map(|folder| spec.dir.join(folder).join(name))
            .find(|path| is_program(path))
    };
    found.ok_or_else(|| StartError::Shell { shell: name.to_owned(), path: path.to_owned() })
}
