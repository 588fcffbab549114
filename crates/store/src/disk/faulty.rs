//! A disk in memory that fails the way disks do: for tests of everything that must survive that.
//!
//! It models a page cache. Reads see what was written; what was not synced may, in a crash, be lost, kept or
//! torn at any byte, each write for itself; names are durable only once their directory was synced. All chance comes
//! from the seed of the crash, so a failing case can be run again.
//!
//! It can be told to fail a sync (after which, as on Linux, the pages count as clean although they are not on the
//! disk), to have no more room, to take short writes, to stop at the n-th change, and to flip bits.

use super::{Disk, File, Hold, How, Locking};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A small generator of numbers for tests: the same seed, the same numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Starts from a seed.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; nought where there is none.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.roll() % n as u64) as usize }
    }

    /// Yes, once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// What was done to a file's bytes and is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

/// A file, whatever its name.
#[derive(Clone, Debug, Default)]
struct Node {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What a crash leaves for certain.
    durable: Vec<u8>,
    /// What a crash may keep, lose or tear.
    pending: Vec<Change>,
}

/// What was done to names and is not durable yet.
#[derive(Clone, Debug)]
enum Naming {
    Link(PathBuf, u64),
    Unlink(PathBuf),
    Rename(PathBuf, PathBuf),
}

#[derive(Debug, Default)]
struct Inner {
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<PathBuf, u64>,
    names_durable: BTreeMap<PathBuf, u64>,
    namings: Vec<Naming>,
    dirs: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    node_last: u64,
    /// Handles of an earlier life are dead.
    life: u64,
    /// How many changes may still be made before everything fails.
    changes_left: Option<u64>,
    changes: u64,
    syncs: u64,
    bytes_read: u64,
    sync_fails_in: Option<u64>,
    capacity: Option<u64>,
    short_writes: Option<Dice>,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faulty(Arc<Mutex<Inner>>);

fn gone() -> io::Error {
    io::Error::other("the disk is gone: the machine crashed")
}

fn absent(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

impl Inner {
    /// Counts a change; from the one on at which the machine is to stop, nothing works any more.
    fn change(&mut self) -> io::Result<()> {
        self.changes += 1;
        match &mut self.changes_left {
            Some(0) => Err(gone()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.changes_left == Some(0) { Err(gone()) } else { Ok(()) }
    }

    fn node(&mut self, id: u64, life: u64) -> io::Result<&mut Node> {
        if life != self.life {
            return Err(gone());
        }
        self.nodes.get_mut(&id).ok_or_else(gone)
    }

    /// How many bytes of a node may become `len` long before the disk is full.
    fn room(&self, id: u64, len: usize) -> usize {
        let Some(capacity) = self.capacity else { return len };
        let others: usize = self.nodes.iter().filter(|(n, _)| **n != id).map(|(_, n)| n.seen.len()).sum();
        len.min((capacity as usize).saturating_sub(others))
    }

    /// Forgets nodes that no name reaches, now or after a crash.
    fn sweep(&mut self) {
        let live: BTreeSet<u64> = self.names.values().chain(self.names_durable.values()).copied().collect();
        if self.namings.is_empty() {
            self.nodes.retain(|id, _| live.contains(id));
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: usize, new: &[u8]) {
    if bytes.len() < offset + new.len() {
        bytes.resize(offset + new.len(), 0);
    }
    bytes[offset..offset + new.len()].copy_from_slice(new);
}

fn rename(names: &mut BTreeMap<PathBuf, u64>, naming: &Naming) {
    match naming {
        Naming::Link(path, node) => drop(names.insert(path.clone(), *node)),
        Naming::Unlink(path) => drop(names.remove(path)),
        Naming::Rename(from, to) => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
    }
}

fn dir_of(naming: &Naming) -> &Path {
    let (Naming::Link(path, _) | Naming::Unlink(path) | Naming::Rename(_, path)) = naming;
    path.parent().unwrap_or(Path::new(""))
}

impl Faulty {
    /// An empty disk without faults.
    #[must_use]
    pub(crate) fn new() -> Faulty {
        Faulty::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The power goes: of what was not synced each write is kept, lost or torn, as the seed has it. What was
    /// open is dead, locks are free, and no fault is set any more.
    pub(crate) fn crash(&self, seed: u64) {
        let mut dice = Dice::new(seed);
        let mut inner = self.inner();
        let inner = &mut *inner;
        let (mut names, all) = (inner.names_durable.clone(), dice.one_in(3));
        let kept = if dice.one_in(2) { dice.below(inner.namings.len() + 1) } else { inner.namings.len() };
        let subset = dice.one_in(2);
        for naming in &inner.namings[..kept] {
            if all || !subset || dice.one_in(2) {
                rename(&mut names, naming);
            }
        }
        for node in inner.nodes.values_mut() {
            node.crash(&mut dice);
        }
        inner.names = names.clone();
        inner.names_durable = names;
        inner.namings.clear();
        inner.revive();
    }

    /// The process is killed; the machine goes on, and so does everything that was written.
    pub(crate) fn kill(&self) {
        self.inner().revive();
    }

    /// Everything fails from the `n`-th change on, until [`Faulty::crash`] or [`Faulty::kill`].
    pub(crate) fn stop_after(&self, n: u64) {
        self.inner().changes_left = Some(n);
    }

    /// How many syncs of files were asked for.
    #[must_use]
    pub(crate) fn syncs(&self) -> u64 {
        self.inner().syncs
    }

    /// The `n`-th sync of a file from now fails, once; 0 is the next.
    pub(crate) fn fail_sync(&self, n: u64) {
        self.inner().sync_fails_in = Some(n);
    }

    /// How many bytes were read from it.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.inner().bytes_read
    }

    /// How many bytes there is room for in all; `None` for any number.
    pub(crate) fn set_capacity(&self, bytes: Option<u64>) {
        self.inner().capacity = bytes;
    }

    /// How many bytes all files have.
    #[must_use]
    pub(crate) fn used(&self) -> u64 {
        self.inner().nodes.values().map(|node| node.seen.len() as u64).sum()
    }

    /// Writes take only a part from now on, as the seed has it.
    pub(crate) fn take_short_writes(&self, seed: u64) {
        self.inner().short_writes = Some(Dice::new(seed));
    }

    /// Flips a bit of a file, on the disk and in the cache; says whether the place exists.
    pub(crate) fn flip(&self, path: &Path, offset: usize, bit: u32) -> bool {
        let mut inner = self.inner();
        let Some(node) = inner.names.get(path).copied() else { return false };
        let Some(node) = inner.nodes.get_mut(&node) else { return false };
        let mask = 1 << (bit % 8);
        if let Some(byte) = node.durable.get_mut(offset) {
            *byte ^= mask;
        }
        node.seen.get_mut(offset).map(|byte| *byte ^= mask).is_some()
    }

    /// Every file with its bytes, as a reader sees them.
    #[must_use]
    pub(crate) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let inner = self.inner();
        let bytes = |id: &u64| inner.nodes.get(id).map(|node| node.seen.clone()).unwrap_or_default();
        inner.names.iter().map(|(path, id)| (path.clone(), bytes(id))).collect()
    }
}

impl Node {
    fn crash(&mut self, dice: &mut Dice) {
        // Often everything that was written in one go has the same fate; then recovery sees whole batches.
        let fate = dice.below(4);
        for change in std::mem::take(&mut self.pending) {
            let choice = if fate < 2 { fate } else { dice.below(4) };
            match (change, choice) {
                (_, 0) => {}
                (Change::Write { offset, bytes }, 1) => put(&mut self.durable, offset, &bytes),
                (Change::Length(len), _) => self.durable.resize(len, 0),
                (Change::Write { offset, bytes }, 2) => {
                    let torn = dice.below(bytes.len() + 1);
                    put(&mut self.durable, offset, &bytes[..torn]);
                }
                (Change::Write { offset, bytes }, _) => {
                    // Sectors reach the disk in any order.
                    for (i, sector) in bytes.chunks(512).enumerate() {
                        if dice.one_in(2) {
                            put(&mut self.durable, offset + i * 512, sector);
                        }
                    }
                }
            }
        }
        self.seen.clone_from(&self.durable);
    }
}

impl Inner {
    fn revive(&mut self) {
        self.life += 1;
        self.locks.clear();
        self.changes_left = None;
        self.sync_fails_in = None;
        self.capacity = None;
        self.short_writes = None;
        self.sweep();
    }
}

impl Disk for Faulty {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.alive()?;
        inner.dirs.extend(path.ancestors().map(Path::to_path_buf));
        Ok(())
    }

    fn open(&self, path: &Path, how: How) -> io::Result<Arc<dyn File>> {
        let mut inner = self.inner();
        inner.alive()?;
        let node = match (inner.names.get(path).copied(), how) {
            (Some(node), How::Read | How::Write) => node,
            (None, How::Read | How::Write) => return Err(absent(path)),
            (Some(node), How::New) => {
                inner.change()?;
                let life = inner.life;
                let node_ref = inner.node(node, life)?;
                node_ref.seen.clear();
                node_ref.pending.push(Change::Length(0));
                node
            }
            (None, How::New) => {
                if !path.parent().is_some_and(|dir| inner.dirs.contains(dir)) {
                    return Err(absent(path));
                }
                inner.change()?;
                inner.node_last += 1;
                let node = inner.node_last;
                inner.nodes.insert(node, Node::default());
                inner.names.insert(path.to_path_buf(), node);
                inner.namings.push(Naming::Link(path.to_path_buf(), node));
                node
            }
        };
        Ok(Arc::new(Handle { disk: self.clone(), node, life: inner.life }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.change()?;
        if !inner.names.contains_key(from) {
            return Err(absent(from));
        }
        let naming = Naming::Rename(from.to_path_buf(), to.to_path_buf());
        rename(&mut inner.names, &naming);
        inner.namings.push(naming);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.change()?;
        if inner.names.remove(path).is_none() {
            return Err(absent(path));
        }
        inner.namings.push(Naming::Unlink(path.to_path_buf()));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let inner = self.inner();
        inner.alive()?;
        if !inner.dirs.contains(dir) {
            return Err(absent(dir));
        }
        let inside = inner.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        inner.change()?;
        let namings = std::mem::take(&mut inner.namings);
        let (here, elsewhere): (Vec<_>, Vec<_>) = namings.into_iter().partition(|n| dir_of(n) == dir);
        inner.namings = elsewhere;
        here.iter().for_each(|naming| rename(&mut inner.names_durable, naming));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Locking> {
        let mut inner = self.inner();
        inner.alive()?;
        if !inner.locks.insert(path.to_path_buf()) {
            return Ok(Locking::Taken { pid: Some(std::process::id()) });
        }
        Ok(Locking::Held(Box::new(Held { disk: self.clone(), path: path.to_path_buf(), life: inner.life })))
    }
}

struct Held {
    disk: Faulty,
    path: PathBuf,
    life: u64,
}

impl Hold for Held {
    fn file(&self) -> Option<&std::fs::File> {
        None
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut inner = self.disk.inner();
        if inner.life == self.life {
            inner.locks.remove(&self.path);
        }
    }
}

/// An open file of the faulty disk.
struct Handle {
    disk: Faulty,
    node: u64,
    life: u64,
}

impl File for Handle {
    fn len(&self) -> io::Result<u64> {
        let mut inner = self.disk.inner();
        inner.alive()?;
        Ok(inner.node(self.node, self.life)?.seen.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut inner = self.disk.inner();
        inner.alive()?;
        let seen = &inner.node(self.node, self.life)?.seen;
        let from = (offset as usize).min(seen.len());
        let n = bytes.len().min(seen.len() - from);
        bytes[..n].copy_from_slice(&seen[from..from + n]);
        inner.bytes_read += n as u64;
        Ok(n)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut inner = self.disk.inner();
        inner.node(self.node, self.life)?;
        inner.change()?;
        let offset = offset as usize;
        let mut n = bytes.len();
        if let Some(dice) = &mut inner.short_writes
            && n > 1
            && dice.one_in(2)
        {
            n = 1 + dice.below(n);
        }
        let have = inner.node(self.node, self.life)?.seen.len();
        if offset + n > have {
            n = inner.room(self.node, offset + n).max(have).saturating_sub(offset);
        }
        if n == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let node = inner.node(self.node, self.life)?;
        put(&mut node.seen, offset, &bytes[..n]);
        node.pending.push(Change::Write { offset, bytes: bytes[..n].to_vec() });
        Ok(n)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.node(self.node, self.life)?;
        inner.alive()?;
        let enough = inner.room(self.node, len as usize) == len as usize;
        if enough { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.node(self.node, self.life)?;
        inner.change()?;
        let node = inner.node(self.node, self.life)?;
        node.seen.resize(len as usize, 0);
        node.pending.push(Change::Length(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.disk.inner();
        inner.node(self.node, self.life)?;
        inner.change()?;
        inner.syncs += 1;
        let fails = match &mut inner.sync_fails_in {
            Some(0) => {
                inner.sync_fails_in = None;
                true
            }
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        let node = inner.node(self.node, self.life)?;
        let pending = std::mem::take(&mut node.pending);
        if fails {
            // The pages count as clean and are read as they are, but the disk never gets them: not by another sync
            // either.
            return Err(io::Error::other("the device failed to write"));
        }
        for change in pending {
            match change {
                Change::Write { offset, bytes } => put(&mut node.durable, offset, &bytes),
                Change::Length(len) => node.durable.resize(len, 0),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{read_full, write_full};

    fn read(disk: &Faulty, path: &str) -> Option<Vec<u8>> {
        disk.contents().remove(Path::new(path))
    }

    fn disk() -> Faulty {
        let disk = Faulty::new();
        disk.make_dir(Path::new("d")).unwrap();
        disk
    }

    #[test]
    fn what_was_synced_survives_every_crash_and_nothing_else_is_certain() {
        let mut outcomes = BTreeSet::new();
        for seed in 0..200 {
            let disk = disk();
            let file = disk.open(Path::new("d/f"), How::New).unwrap();
            write_full(&*file, b"safe", 0).unwrap();
            file.sync_data().unwrap();
            disk.sync_dir(Path::new("d")).unwrap();
            write_full(&*file, b"risk", 4).unwrap();
            disk.crash(seed);
            let left = read(&disk, "d/f").unwrap();
            assert!(left.starts_with(b"safe"));
            outcomes.insert(left);
            assert!(file.len().is_err(), "a handle of an earlier life is dead");
        }
        assert!(outcomes.contains(b"safe".as_slice()) && outcomes.contains(b"saferisk".as_slice()));
        assert!(outcomes.len() > 3, "some are torn: {outcomes:?}");
    }

    #[test]
    fn a_name_is_durable_once_its_directory_is() {
        let mut there = BTreeSet::new();
        for seed in 0..50 {
            let disk = disk();
            let file = disk.open(Path::new("d/f"), How::New).unwrap();
            file.sync_data().unwrap();
            disk.crash(seed);
            there.insert(read(&disk, "d/f").is_some());
        }
        assert_eq!(there.len(), 2);
    }

    #[test]
    fn a_failed_sync_leaves_pages_that_look_clean_and_are_not_on_the_disk() {
        let disk = disk();
        let file = disk.open(Path::new("d/f"), How::New).unwrap();
        disk.sync_dir(Path::new("d")).unwrap();
        write_full(&*file, b"lost", 0).unwrap();
        disk.fail_sync(0);
        assert!(file.sync_data().is_err());
        assert_eq!(read(&disk, "d/f").unwrap(), b"lost");
        disk.crash(1);
        assert_eq!(read(&disk, "d/f").unwrap(), b"");
    }

    #[test]
    fn a_full_disk_takes_what_there_is_room_for() {
        let disk = disk();
        disk.set_capacity(Some(6));
        let file = disk.open(Path::new("d/f"), How::New).unwrap();
        assert!(file.reserve(7).is_err() && file.reserve(6).is_ok());
        assert!(write_full(&*file, b"12345678", 0).is_err_and(|e| crate::disk::is_full(&e)));
        let mut bytes = [0; 8];
        assert_eq!(read_full(&*file, &mut bytes, 0).unwrap(), 6);
    }
}
