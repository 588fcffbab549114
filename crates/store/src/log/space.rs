//! Room for segments: preallocated files filled with zeros, or recycled segments.
//!
//! Copying into fresh page cache and allocating blocks costs more than the sync itself, so a segment's blocks are there
//! before it is written. It is also how a full disk is known early.

use super::error::Error;
use super::layout::Layout;
use crate::disk::{Disk, File, How, write_full};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How many zero bytes are written at a time.
const BLOCK: usize = 1 << 20;
/// The least room that is made for a segment where the disk is nearly full.
const SMALL: u64 = 1 << 20;

/// What is set aside.
#[derive(Default)]
struct Spares {
    ready: Vec<PathBuf>,
    number_last: u64,
    /// The writer asked for one to be made.
    asked: bool,
    making: bool,
    closed: bool,
    /// Why the last could not be made.
    error: Option<Error>,
}

pub(super) struct Space {
    disk: Arc<dyn Disk>,
    layout: Layout,
    bytes: u64,
    kept_max: usize,
    spares: Mutex<Spares>,
    changed: Condvar,
}

impl Space {
    pub(super) fn new(disk: Arc<dyn Disk>, layout: Layout, bytes: u64, kept_max: usize) -> Space {
        Space { disk, layout, bytes, kept_max, spares: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Spares> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what an earlier process set aside. What is too small is removed.
    pub(super) fn adopt(&self, numbers: &[u64]) -> Result<(), Error> {
        let mut spares = self.lock();
        for &number in numbers {
            spares.number_last = spares.number_last.max(number);
            let path = self.layout.spare(number);
            let file = self.disk.open(&path, How::Read).map_err(Error::io("cannot open", &path))?;
            let fits = file.len().map_err(Error::io("cannot read", &path))? >= self.bytes;
            if fits && spares.ready.len() < self.kept_max {
                spares.ready.push(path);
            } else {
                self.disk.remove(&path).map_err(Error::io("cannot remove", &path))?;
            }
        }
        Ok(())
    }

    /// Whether the next segment has its room, as far as is known.
    pub(super) fn has_room(&self) -> bool {
        self.lock().error.is_none()
    }

    /// Asks for room to be made, unless there is some.
    pub(super) fn ask(&self) {
        let mut spares = self.lock();
        if spares.ready.is_empty() && !spares.making && !spares.asked {
            spares.asked = true;
            self.changed.notify_all();
        }
    }

    /// Takes room for a segment; makes it here and now if there is none.
    pub(super) fn take(&self) -> Result<(PathBuf, Arc<dyn File>), Error> {
        let mut spares = self.lock();
        while spares.making {
            spares = self.changed.wait(spares).unwrap_or_else(PoisonError::into_inner);
        }
        spares.asked = false;
        if let Some(path) = spares.ready.pop() {
            drop(spares);
            let file = self.disk.open(&path, How::Write).map_err(Error::io("cannot open", &path))?;
            return Ok((path, file));
        }
        spares.making = true;
        drop(spares);
        let made = self.make_some();
        let mut spares = self.lock();
        spares.making = false;
        spares.error = made.as_ref().err().cloned();
        self.changed.notify_all();
        made
    }

    /// Takes a small file for the first segment of a store: it may never need more.
    pub(super) fn take_small(&self, bytes: u64) -> Result<(PathBuf, Arc<dyn File>), Error> {
        self.make(bytes.min(self.bytes))
    }

    /// Keeps the file of a segment that is no longer needed, or removes it if there are enough.
    pub(super) fn recycle(&self, path: &std::path::Path, len: u64) -> Result<(), Error> {
        let mut spares = self.lock();
        if len < self.bytes || len > self.bytes * 2 || spares.ready.len() >= self.kept_max {
            drop(spares);
            return self.disk.remove(path).map_err(Error::io("cannot remove", path));
        }
        spares.number_last += 1;
        let spare = self.layout.spare(spares.number_last);
        self.disk.rename(path, &spare).map_err(Error::io("cannot rename", path))?;
        spares.error = None;
        spares.ready.push(spare);
        Ok(())
    }

    /// Removes what is set aside: it holds what its segments held, and a redaction or compaction wants that gone.
    pub(super) fn discard(&self) -> Result<(), Error> {
        let mut spares = self.lock();
        while let Some(path) = spares.ready.pop() {
            self.disk.remove(&path).map_err(Error::io("cannot remove", &path))?;
        }
        Ok(())
    }

    /// Makes room for a segment, or for a smaller one where the disk has no more: writing goes on as long as there is any.
    fn make_some(&self) -> Result<(PathBuf, Arc<dyn File>), Error> {
        let mut bytes = self.bytes;
        loop {
            match self.make(bytes) {
                Err(Error::Full { .. }) if bytes > SMALL => bytes = (bytes / 4).max(SMALL),
                made => return made,
            }
        }
    }

    fn make(&self, bytes: u64) -> Result<(PathBuf, Arc<dyn File>), Error> {
        let number = {
            let mut spares = self.lock();
            spares.number_last += 1;
            spares.number_last
        };
        let path = self.layout.spare(number);
        let made = self.fill(&path, bytes);
        if made.is_err() {
            // Half of one is of no use, and another file may need its room. If it stays, the next start
            // removes it.
            let _ = self.disk.remove(&path);
        }
        made.map(|file| (path, file))
    }

    fn fill(&self, path: &std::path::Path, bytes: u64) -> Result<Arc<dyn File>, Error> {
        let file = self.disk.open(path, How::New).map_err(Error::io("cannot make", path))?;
        file.reserve(bytes).map_err(Error::io("cannot make room for", path))?;
        let noughts = vec![0; BLOCK];
        let mut at = 0;
        while at < bytes {
            let n = noughts.len().min(usize::try_from(bytes - at).unwrap_or(BLOCK));
            write_full(&*file, &noughts[..n], at).map_err(Error::io("cannot write", path))?;
            at += n as u64;
        }
        file.sync_data().map_err(Error::sync(path))?;
        Ok(file)
    }

    /// Makes room whenever the writer asks, until [`Space::close`]. A failure is kept, not lost: the writer tries again
    /// when it needs the room.
    pub(super) fn run(&self) {
        loop {
            let mut spares = self.lock();
            while !spares.closed && !spares.asked {
                spares = self.changed.wait(spares).unwrap_or_else(PoisonError::into_inner);
            }
            if spares.closed {
                return;
            }
            spares.asked = false;
            spares.making = true;
            drop(spares);
            let made = self.make_some();
            let mut spares = self.lock();
            spares.making = false;
            match made {
                Ok((path, _)) => {
                    spares.error = None;
                    spares.ready.push(path);
                }
                Err(error) => spares.error = Some(error),
            }
            self.changed.notify_all();
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}
