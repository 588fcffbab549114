//! Checking a log from end to end, and copying it: verification, backup, restoring.

use super::error::Error;
use super::layout::{Layout, Piece, listing};
use super::replay::{KnownStreams, Outcome, Plan, replay};
use super::{Log, heads, snapshot};
use crate::disk::{Disk, File, How, read_full, write_full};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// How much is copied at a time.
const CHUNK: usize = 1 << 20;

/// What a verification found to be sound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    pub records: u64,
    /// Of how many streams.
    pub streams: u64,
    pub last_seq: u64,
    /// What is wrong with snapshots. The log does not need them.
    pub warnings: Vec<String>,
}

/// Checks everything: CRCs, form, chains, and private values against their digests.
fn check(pieces: &[Piece], end: Option<u64>) -> Result<Verified, Error> {
    let plan = Plan { pieces, end, from: 0, values: true, lenient: false };
    let Outcome { end, known, records, .. } = replay(&plan, KnownStreams::default(), &mut |_, _| Ok(()))?;
    Ok(Verified { records, streams: known.len() as u64, last_seq: end.tie.seq, warnings: Vec::new() })
}

/// Checks the log in a data directory that no process has. An empty directory is sound.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Newer`], or what the system says.
pub fn verify(disk: &dyn Disk, dir: &Path) -> Result<Verified, Error> {
    let layout = Layout::new(dir);
    let pieces = listing(disk, &layout)?.pieces;
    let Some(first) = pieces.first() else { return Ok(Verified::default()) };
    let incarnation = first.header.incarnation;
    let mut verified = check(&pieces, None)?;
    verified.warnings = check_snapshots(disk, &layout, incarnation)?;
    Ok(verified)
}

fn check_snapshots(disk: &dyn Disk, layout: &Layout, incarnation: u64) -> Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    for from in snapshot::snapshots(disk, layout)? {
        let path = layout.saved(from);
        if let Err(what) = snapshot::check(disk, &path, incarnation) {
            warnings.push(format!("{}: {what}", layout.short(&path)));
        }
    }
    Ok(warnings)
}

/// Copies a backup into an empty data directory, after checking that it is sound.
///
/// # Errors
/// [`Error::Io`] where the directory is not empty; [`Error::Corrupt`] where the backup is damaged; or what the system
/// says.
pub fn restore(disk: &dyn Disk, from: &Path, to: &Path) -> Result<Verified, Error> {
    verify(disk, from)?;
    let (source, target) = (Layout::new(from), Layout::new(to));
    make_empty(disk, &target)?;
    for (from, to) in [(&source.log, &target.log), (&source.snapshot, &target.snapshot)] {
        for name in disk.list(from).map_err(Error::io("cannot list", from))? {
            let path = from.join(&name);
            let file = disk.open(&path, How::Read).map_err(Error::io("cannot open", &path))?;
            let len = file.len().map_err(Error::io("cannot read", &path))?;
            copy(disk, &*file, len, &to.join(&name))?;
        }
        disk.sync_dir(to).map_err(Error::sync(to))?;
    }
    verify(disk, to)
}

impl Log {
    /// Checks all that is durable, while the log is written: CRCs, form, chains, and private values against their
    /// digests.
    ///
    /// # Errors
    /// [`Error::Corrupt`], or what the system says.
    pub fn verify(&self) -> Result<Verified, Error> {
        let view = self.shared.view();
        let mut pieces: Vec<Piece> = view.ended.iter().map(|piece| (**piece).clone()).collect();
        pieces.push((*view.last).clone());
        let mut verified = check(&pieces, Some(view.end))?;
        verified.warnings = check_snapshots(&*self.disk, &self.layout, view.last.header.incarnation)?;
        Ok(verified)
    }

    /// Copies all that is durable into an empty directory while the log is written, and checks the copy. It is a data
    /// directory like any other; [`restore`] checks it before it copies it back.
    ///
    /// # Errors
    /// [`Error::Io`] where the directory is not empty, or what the system says.
    pub fn backup(&self, to: &Path) -> Result<Verified, Error> {
        let target = Layout::new(to);
        make_empty(&*self.disk, &target)?;
        // A snapshot that is there now speaks of nothing that is not durable by the time the log is looked at.
        if let Some(from) = snapshot::snapshots(&*self.disk, &self.layout)?.last() {
            let path = self.layout.saved(*from);
            // One that was replaced by a newer one meanwhile is not needed.
            if let Ok(file) = self.disk.open(&path, How::Read) {
                let len = file.len().map_err(Error::io("cannot read", &path))?;
                copy(&*self.disk, &*file, len, &target.saved(*from))?;
            }
        }
        let view = self.shared.view();
        let heads = heads::path(&self.layout);
        if let Ok(file) = self.disk.open(&heads, How::Read) {
            let len = file.len().map_err(Error::io("cannot read", &heads))?;
            copy(&*self.disk, &*file, len, &heads::path(&target))?;
        }
        for piece in &view.ended {
            let len = piece.file.len().map_err(Error::io("cannot read", &piece.path))?;
            self.copy_piece(piece, len, &target)?;
        }
        self.copy_piece(&view.last, view.end, &target)?;
        for dir in [&target.log, &target.snapshot] {
            self.disk.sync_dir(dir).map_err(Error::sync(dir))?;
        }
        verify(&*self.disk, to)
    }

    fn copy_piece(&self, piece: &Piece, len: u64, target: &Layout) -> Result<(), Error> {
        let name = piece.path.file_name().unwrap_or_default();
        copy(&*self.disk, &*piece.file, len, &target.log.join(name))
    }
}

/// Makes a data directory in which nothing is yet.
fn make_empty(disk: &dyn Disk, layout: &Layout) -> Result<(), Error> {
    for dir in [&layout.root, &layout.log, &layout.snapshot] {
        disk.make_dir(dir).map_err(Error::io("cannot make", dir))?;
        let expected = BTreeSet::from(["log", "snapshot"]);
        let names = disk.list(dir).map_err(Error::io("cannot list", dir))?;
        if names.iter().any(|name| *dir != layout.root || !expected.contains(name.as_str())) {
            let taken = io::Error::new(io::ErrorKind::AlreadyExists, "the directory is not empty");
            return Err(Error::io("cannot copy a log into", dir)(taken));
        }
    }
    Ok(())
}

fn copy(disk: &dyn Disk, from: &dyn File, len: u64, to: &Path) -> Result<(), Error> {
    let file = disk.open(to, How::New).map_err(Error::io("cannot make", to))?;
    let mut bytes = vec![0; CHUNK];
    let mut at = 0;
    while at < len {
        let n = CHUNK.min(usize::try_from(len - at).unwrap_or(CHUNK));
        let got = read_full(from, &mut bytes[..n], at).map_err(Error::io("cannot read what becomes", to))?;
        if got == 0 {
            break;
        }
        write_full(&*file, &bytes[..got], at).map_err(Error::io("cannot write", to))?;
        at += got as u64;
    }
    file.sync_data().map_err(Error::sync(to))
}
