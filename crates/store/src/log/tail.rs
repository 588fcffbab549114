//! The end of the log: where batches are written, synced, and where one segment ends and the next begins.
//!
//! The order is what makes recovery possible. A batch is written only after the one before is durable. A segment gets
//! its header, is synced, gets its name, and the name is synced, before a batch is written into it.

use super::encode::Group;
use super::error::Error;
use super::frame::{Header, Kind, LINE_MAX, Trailer};
use super::layout::{Layout, Piece};
use super::noted::Note;
use super::space::Space;
use super::walk::Tie;
use crate::disk::{Disk, File, is_full, write_full};
use std::path::Path;
use std::sync::Arc;

/// The segment that is written to.
pub(super) struct Tail {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) layout: Layout,
    pub(super) space: Arc<Space>,
    pub(super) incarnation: u64,
    /// Where the acknowledged end is noted.
    pub(super) note: Note,
    pub(super) piece: Piece,
    /// Where the next batch goes.
    pub(super) offset: u64,
    /// How long the file is.
    pub(super) len: u64,
    /// What the next batch follows from: the last that is durable.
    pub(super) tie: Tie,
    /// The `durable_through` of the last batch.
    pub(super) marked: u64,
    /// Segments that were ended, and that readers do not know of yet.
    pub(super) ended: Vec<Piece>,
    /// The memory of the last group, for the next.
    pub(super) spare: Group,
}

impl Tail {
    /// Writes a batch (its lines are in `bytes`; the trailer is added) and makes it durable. Where there is no room,
    /// nothing of it remains, and the tail is as it was. Any other error is final.
    pub(super) fn write(&mut self, bytes: &mut Vec<u8>, count: u64, seq: u64) -> Result<(), Error> {
        let fits = self.offset + (bytes.len() + LINE_MAX) as u64 <= self.len;
        // A segment without records takes the batch, however large it is.
        if !fits {
            self.roll()?;
        }
        let trailer = Trailer {
            count,
            bytes: 0,
            seq,
            durable_through: self.tie.seq,
            incarnation: self.incarnation,
            prev: self.tie.prev,
            crc: 0,
        };
        let trailer = trailer.append(0, bytes);
        let path = &self.piece.path;
        if let Err(error) = write_full(&*self.piece.file, bytes, self.offset) {
            return Err(if is_full(&error) {
                self.wipe(bytes.len())?;
                Error::Full { what: self.piece.file_name.clone() }
            } else {
                Error::SyncFailed { what: path.display().to_string(), message: error.to_string() }
            });
        }
        self.piece.file.sync_data().map_err(Error::sync(path))?;
        self.offset += bytes.len() as u64;
        self.len = self.len.max(self.offset);
        self.marked = trailer.durable_through;
        let moved = self.tie.seq != seq;
        self.tie = Tie { prev: trailer.crc, seq };
        if moved {
            self.note.put(seq);
        }
        self.ask_ahead(bytes.len() as u64);
        Ok(())
    }

    /// Takes back what a write that found no room left.
    fn wipe(&self, bytes: usize) -> Result<(), Error> {
        let (file, path) = (&*self.piece.file, &self.piece.path);
        let have = file.len().map_err(Error::sync(path))?;
        if have > self.len {
            file.set_len(self.len).map_err(Error::sync(path))?;
        }
        let end = (self.offset + bytes as u64).min(self.len);
        blank(file, self.offset, end).map_err(Error::sync(path))
    }

    /// From the half of the segment on the next one's room is made, and asked for now and then if that failed.
    fn ask_ahead(&self, bytes: u64) {
        let part = (self.len / 16).max(1);
        if self.offset > self.len / 2 && self.offset / part != (self.offset - bytes) / part {
            self.space.ask();
        }
    }

    /// Ends the segment and begins the next, if it has records: so every segment's first seq is its own.
    pub(super) fn roll(&mut self) -> Result<(), Error> {
        if self.tie.seq < self.piece.header.first {
            return Ok(());
        }
        let (path, file) = self.space.take()?;
        let header = Header {
            kind: Kind::Segment,
            incarnation: self.incarnation,
            first: self.tie.seq + 1,
            through: 0,
            prev: self.tie.prev,
        };
        let (piece, len) = begin(&*self.disk, &self.layout, header, &path, file)?;
        self.offset = piece.start;
        self.len = len;
        self.ended.push(std::mem::replace(&mut self.piece, piece));
        Ok(())
    }

    /// Whether an empty batch would say more than the last one: that it is durable.
    pub(super) fn is_marked(&self) -> bool {
        self.marked == self.tie.seq
    }
}

/// Writes zeros, only over existing bytes.
pub(super) fn blank(file: &dyn File, from: u64, to: u64) -> std::io::Result<()> {
    let noughts = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let n = noughts.len().min(usize::try_from(to - at).unwrap_or(noughts.len()));
        write_full(file, &noughts[..n], at)?;
        at += n as u64;
    }
    Ok(())
}

/// Makes a segment of a file that was set aside; returns it and its length.
pub(super) fn begin(
    disk: &dyn Disk,
    layout: &Layout,
    header: Header,
    spare: &Path,
    file: Arc<dyn File>,
) -> Result<(Piece, u64), Error> {
    let line = header.to_line();
    let path = layout.segment(header.first);
    write_full(&*file, &line, 0).map_err(Error::io("cannot write", spare))?;
    file.sync_data().map_err(Error::sync(spare))?;
    disk.rename(spare, &path).map_err(Error::sync(&path))?;
    disk.sync_dir(&layout.log).map_err(Error::sync(&layout.log))?;
    let len = file.len().map_err(Error::io("cannot read", &path))?;
    let file_name = layout.short(&path);
    Ok((Piece { path, file_name, file, header, start: line.len() as u64, index: Arc::default() }, len))
}
