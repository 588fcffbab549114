//! The lock on a data directory that its keeper holds, from before the first process starts until the last one is gone.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

const NAME: &str = "keeper.lock";

/// The lock, held for as long as this lives. The programs that the keeper starts do not inherit it.
pub(super) struct Lock {
    file: File,
    mark_prefix: String,
}

fn open(data_dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(data_dir.join(NAME))
}

impl Lock {
    /// Takes the lock, or says which process holds it.
    pub(super) fn try_take(data_dir: &Path) -> io::Result<Result<Lock, Option<u32>>> {
        let mut file = open(data_dir)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(written_pid(&mut file))),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        // The process id is for people. On a full disk the lock is held all the same.
        match writeln!(file, "{}", std::process::id()) {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let metadata = file.metadata()?;
        // The file exists once on this machine, and cannot be another one while it is open.
        Ok(Ok(Lock { mark_prefix: mark_prefix(&metadata), file }))
    }

    /// What the marks of this directory's attempts begin with.
    pub(super) fn mark_prefix(&self) -> String {
        self.mark_prefix.clone()
    }
}

/// What the marks of a directory's attempts begin with. It is derived from the lock's file.
pub(super) fn mark_prefix(file: &Metadata) -> String {
    format!("{:x}-{:x}/", file.dev(), file.ino())
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A process id that is over should not be shown. The lock itself goes with the file.
        let _ = self.file.set_len(0);
    }
}

fn written_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// The keeper that holds a data directory; `None` where none does. The process id is 0 where it is not known.
///
/// # Errors
/// Where the directory cannot be read.
pub fn holder(data_dir: &Path) -> io::Result<Option<u32>> {
    let mut file = match File::open(data_dir.join(NAME)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(written_pid(&mut file).unwrap_or(0))),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// What is said when the lock stays taken.
pub(super) fn busy(data_dir: &Path, holder: Option<u32>, waited: Duration) -> String {
    let holder = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"));
    format!(
        "the shell steps of an earlier windlass in `{}` have not ended after {} s: {holder} keeps them. Wait for it, or look at what it \
         keeps with `ps --ppid` and end that",
        data_dir.display(),
        waited.as_secs(),
    )
}
