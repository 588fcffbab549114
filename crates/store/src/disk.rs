//! The disk: what a durable log needs of a file system, and no more.
//!
//! Everything that must survive a crash goes through [`Disk`], so that tests can substitute a disk that
//! loses, tears, fills up and lies (`faulty`). Two rules of real file systems are part of the contract:
//!
//! - What was written is durable after [`File::sync_data`] said so, not before.
//! - A name (made, renamed or removed) is durable after [`Disk::sync_dir`] of its directory said so, not before.

#[cfg(test)]
pub(crate) mod faulty;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// One that exists, for reading.
    Read,
    /// One that exists, for reading and writing.
    Write,
    /// A new one, empty; what had the name before is emptied.
    New,
}

/// A place for files.
pub trait Disk: Send + Sync {
    /// Makes a directory and those above it, durably, for this user alone. One that is there is left as it is.
    ///
    /// # Errors
    /// What the system says.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Opens a file.
    ///
    /// # Errors
    /// What the system says; `NotFound` for one that should exist and does not.
    fn open(&self, path: &Path, how: How) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, in place of what had it.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Open handles can still read it.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// The names of the files in a directory, sorted.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the system says. Nothing is known of the names then.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the lock that this path stands for, or says who has it.
    ///
    /// # Errors
    /// What the system says.
    fn lock(&self, path: &Path) -> io::Result<Locking>;
}

/// An open file. It is written at places, never through a cursor, so threads can share it.
pub trait File: Send + Sync {
    /// Its length.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether nothing is in it.
    ///
    /// # Errors
    /// What the system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads at a place; fewer bytes than asked for are no error, none means the end.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at a place; fewer bytes than given may be taken.
    ///
    /// # Errors
    /// What the system says; `StorageFull` or `QuotaExceeded` when there is no room.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Sets aside room up to a length, so that a lack of it is known now. What cannot do so says nothing.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// What the system says.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// What the system says. Nothing is known of what was written since the last success then, and another try
    /// may say that all is well when it is not: never try again.
    fn sync_data(&self) -> io::Result<()>;
}

/// Reads until the buffer is full or the file ends; returns how much there was.
///
/// # Errors
/// What the system says.
pub fn read_full(file: &dyn File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes everything.
///
/// # Errors
/// What the system says. Some of it may be written then.
pub fn write_full(file: &dyn File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the error says that there is no room.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What came of asking for a lock.
pub enum Locking {
    /// It is held until this is dropped.
    Held(Box<dyn Hold>),
    /// Another process holds it.
    Taken {
        /// The process that does, if it left its number.
        pid: Option<u32>,
    },
}

/// A lock that is held while this lives.
pub trait Hold: Send + Sync {
    /// The file behind it. A child process that inherits it holds the lock too, until it ends.
    fn file(&self) -> Option<&fs::File>;
}

/// The file system of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files;

impl Disk for Files {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_dir(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent),
            Some(_) | None => self.sync_dir(Path::new(".")),
        }
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Arc<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(how != How::Read).mode(0o600);
        if how == How::New {
            options.create(true).truncate(true);
        }
        Ok(Arc::new(options.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            // A name that is no text is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match file.try_lock() {
            Ok(()) => {
                let pid = format!("{}\n", std::process::id());
                file.set_len(0)?;
                // The process id is for people. On a full disk the lock is held all the same.
                match file.write_all_at(pid.as_bytes(), 0) {
                    Err(error) if error.kind() != io::ErrorKind::StorageFull => return Err(error),
                    Ok(()) | Err(_) => {}
                }
                Ok(Locking::Held(Box::new(FileLock(file))))
            }
            Err(fs::TryLockError::WouldBlock) => {
                let text = fs::read_to_string(path).unwrap_or_default();
                Ok(Locking::Taken { pid: text.trim().parse().ok() })
            }
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

/// A lock on a file of the system: it ends with the last process that has the file open.
struct FileLock(fs::File);

impl Hold for FileLock {
    fn file(&self) -> Option<&fs::File> {
        Some(&self.0)
    }
}

impl File for fs::File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(self, bytes, offset)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        use rustix::io::Errno;
        match rustix::fs::fallocate(self, FallocateFlags::KEEP_SIZE, 0, len) {
            // Not every file system can; then it turns out when it is written.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fs::File::set_len(self, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        fs::File::sync_data(self)
    }
}
