//! How a command becomes a process: its shell, its arguments, its files, and clear words when that fails.

use super::environment::{MARK, OUTPUT};
use super::spec::{Spec, StartError};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
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

/// Starts an attempt as a process group of its own, with nothing but what its spec says.
pub(super) fn spawn(spec: &Spec, mark: &str) -> Result<Child, StartError> {
    check_dir(&spec.dir)?;
    make_file(&spec.output_file, b"")?;
    let (words, takes_command) = words(spec.shell.as_deref());
    let name = words.first().copied().unwrap_or("bash");
    let program = find(name, spec)?;
    let mut command = Command::new(&program);
    command.arg0(name);
    if takes_command && spec.command.len() <= ARGUMENT_MAX {
        command.args(&words[1..]).arg("-c").arg(&spec.command);
    } else {
        let script = script_path(spec);
        make_file(&script, spec.command.as_bytes())?;
        for word in &words[1..] {
            if *word == PLACE {
                command.arg(&script)
            } else {
                command.arg(word)
            };
        }
        if !words.contains(&PLACE) {
            command.arg(&script);
        }
    }
    command.current_dir(&spec.dir).env_clear().envs(spec.env.iter());
    command.env(OUTPUT, &spec.output_file).env(MARK, mark);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0).spawn().map_err(|error| explain(&error, spec, &program))
}

fn check_dir(dir: &Path) -> Result<(), StartError> {
    let refuse = |text: String| StartError::Directory { dir: dir.display().to_string(), text };
    let metadata = fs::metadata(dir).map_err(|error| refuse(error.to_string()))?;
    if metadata.is_dir() { Ok(()) } else { Err(refuse("it is not a directory".to_owned())) }
}

/// A new file for the owner alone, in the place of one that is there.
fn make_file(path: &Path, content: &[u8]) -> Result<(), StartError> {
    let make = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(content)
    };
    make().map_err(|error| StartError::File { path: path.display().to_string(), text: error.to_string() })
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

fn explain(error: &io::Error, spec: &Spec, program: &Path) -> StartError {
    if error.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) {
        let variables: usize = spec.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        return StartError::TooBig { bytes: (variables + spec.command.len()) as u64 };
    }
    StartError::System { program: program.display().to_string(), text: error.to_string() }
}
