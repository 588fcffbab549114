//! A copy of a data directory: its log, while it is written, and what belongs to it beside the log.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use windlass_core::code::Code;
use windlass_executor::secrets::{Vault, given};
use windlass_store::log::{self, Log, Verified};

/// The keys that the log is sealed with.
pub const KEYS: &str = "keys";
/// What belongs to a data directory beside its log: without the keys nothing can be sealed any more, and the rest is kept
/// nowhere else. A configuration is there where somebody put it there.
const REST: [&str; 6] = [KEYS, "secrets.json", given::FILE, "output", "evidence", "windlass.yaml"];
/// How deep folders are in it: a folder of runs with files of steps.
const DEPTH_MAX: usize = 4;

/// Why there is no copy, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be made there.
    #[error("{path}: {why}")]
    Place {
        /// Where.
        path: String,
        /// Why not.
        why: String,
    },
    /// A file beside the log.
    #[error("{from} cannot be copied to {to}: {error}")]
    File {
        /// Which.
        from: String,
        /// Its copy.
        to: String,
        /// What the system says.
        error: io::Error,
    },
    /// The log.
    #[error(transparent)]
    Log(#[from] log::Error),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Place { .. } => Code::InvalidInput,
            Error::File { .. } => Code::Unavailable,
            Error::Log(error) => error.code(),
        }
    }
}

/// Copies a data directory to a place where nothing is yet, and checks the copy. The log goes first: what a record speaks of
/// is there before the record is.
///
/// # Errors
/// The place is taken, the log is damaged, or what the system says.
pub fn make(log: &Log, root: &Path, to: &Path) -> Result<Verified, Error> {
    vacant(to)?;
    let inside =
        |parent: &Path| parent.starts_with(root.canonicalize().unwrap_or_else(|_| root.to_path_buf()));
    if to.parent().and_then(|parent| parent.canonicalize().ok()).is_some_and(|parent| inside(&parent)) {
        return Err(place(to, "it lies in the data directory itself; name a directory outside of it"));
    }
    let copied = log.backup(to)?;
    rest(root, to)?;
    Ok(copied)
}

fn place(path: &Path, why: impl Into<String>) -> Error {
    Error::Place { path: path.display().to_string(), why: why.into() }
}

/// Whether a copy can be made there: nothing is ever written over.
///
/// # Errors
/// It cannot.
pub fn vacant(dir: &Path) -> Result<(), Error> {
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(place(dir, "the directory is not empty; name one that is not there yet")),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            match parent.is_none_or(Path::is_dir) {
                true => Ok(()),
                false => Err(place(dir, "the directory that it would be in is not there; make it first")),
            }
        }
        Err(error) => Err(place(dir, format!("{error}; name a directory that is not there yet"))),
    }
}

/// Copies what belongs to a data directory beside its log. What is not there is not needed.
///
/// # Errors
/// What the system says.
pub fn rest(from: &Path, to: &Path) -> Result<(), Error> {
    let mut rest: Vec<PathBuf> = REST.iter().map(PathBuf::from).collect();
    // The key of the secrets belongs to it where it lies in it.
    rest.extend([from, to].iter().find_map(|root| {
        let (root, key) = (root.canonicalize().ok()?, Vault::new(root).key_file()?.canonicalize().ok()?);
        key.strip_prefix(root).map(Path::to_path_buf).ok()
    }));
    for name in rest {
        let (from, to) = (from.join(&name), to.join(&name));
        copy(&from, &to, DEPTH_MAX).map_err(|error| Error::File {
            from: from.display().to_string(),
            to: to.display().to_string(),
            error,
        })?;
    }
    Ok(())
}

/// Copies a file, or a folder with all that is in it; only the owner can look at the copy. What leaves meanwhile is not
/// needed either.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let Some(meta) = there(fs::symlink_metadata(from))? else { return Ok(()) };
    if meta.is_dir() {
        if depth == 0 {
            return Err(io::Error::other("folders are nested too deep"));
        }
        let Some(entries) = there(fs::read_dir(from))? else { return Ok(()) };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
        for entry in entries {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name), depth - 1)?;
        }
        fs::File::open(to)?.sync_all()
    } else if meta.is_file() {
        let Some(mut source) = there(fs::File::open(from))? else { return Ok(()) };
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        io::copy(&mut source, &mut file)?;
        file.sync_all()
    } else {
        // Sockets and the like are good only while somebody holds the directory.
        Ok(())
    }
}

/// What is there; nothing where there is none.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
