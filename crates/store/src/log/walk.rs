//! Walking through a file of the log, batch by batch, to its end.
//!
//! A batch counts if its trailer's CRC is right, it belongs to this store, and it follows from the batch before (by that
//! one's CRC and by its seq). The first that does not is the end: zeros, old content of a recycled segment, or
//! a torn or damaged batch. [`later`] finds out which.

use super::error::Error;
use super::frame::{Kind, LINE_MAX, TRAILER, Trailer, newline};
use super::layout::Piece;
use crate::disk::read_full;
use std::ops::Range;

/// How much is read at a time.
const CHUNK: usize = 1 << 20;

/// The most bytes that the records of one batch may have.
pub(super) const BATCH_MAX: usize = 64 << 20;

/// What the next batch must follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tie {
    /// The CRC of the trailer before.
    pub(super) prev: u32,
    /// The seq of the last record before.
    pub(super) seq: u64,
}

/// A batch that counts.
pub(super) struct Found {
    /// Where its lines stand in the window.
    lines: Range<usize>,
    pub(super) trailer: Trailer,
    /// Where it begins in the file, and where its trailer ends.
    pub(super) span: Range<u64>,
}

/// A walk through one file.
pub(super) struct Walk<'a> {
    piece: &'a Piece,
    /// How far it may be read.
    end: u64,
    window: Vec<u8>,
    /// Where the window begins in the file.
    base: u64,
    /// Where the next batch begins in the window.
    at: usize,
    pub(super) tie: Tie,
    /// Why the walk ended.
    pub(super) stop: Option<&'static str>,
}

impl<'a> Walk<'a> {
    /// Begins at the first batch; what stands from `end` on is not looked at.
    pub(super) fn new(piece: &'a Piece, end: u64) -> Walk<'a> {
        let tie = match piece.header.kind {
            Kind::Segment => Tie { prev: piece.header.prev, seq: piece.before() },
            Kind::Carried => Tie { prev: 0, seq: 0 },
        };
        Walk { piece, end, window: Vec::new(), base: piece.start, at: 0, tie, stop: None }
    }

    /// Goes on from a place where a batch begins, and what that one must follow from.
    pub(super) fn from(piece: &'a Piece, offset: u64, tie: Tie, end: u64) -> Walk<'a> {
        Walk { base: offset, tie, ..Walk::new(piece, end) }
    }

    /// The whole file.
    pub(super) fn whole(piece: &'a Piece) -> Result<Walk<'a>, Error> {
        let end = piece.file.len().map_err(Error::io("cannot read", &piece.path))?;
        Ok(Walk::new(piece, end))
    }

    /// Where the next batch begins, or would.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// The lines of a batch that was just found.
    pub(super) fn lines(&self, found: &Found) -> &[u8] {
        &self.window[found.lines.clone()]
    }

    /// The next batch that counts, or none; then `stop` says why.
    pub(super) fn next(&mut self) -> Result<Option<Found>, Error> {
        let mut scanned = self.at;
        loop {
            match newline(&self.window[scanned..]) {
                Some(n) if self.window[scanned..].starts_with(TRAILER) => {
                    return Ok(self.accept(scanned..scanned + n));
                }
                Some(_) if self.window[scanned] != b'{' => return Ok(self.end("no record stands there")),
                Some(n) => scanned += n + 1,
                None => {
                    // Zeros have no newline: there is no need to read all of them.
                    if self.window.get(scanned).is_some_and(|byte| *byte != b'{') {
                        return Ok(self.end("no record stands there"));
                    }
                    if self.window.len() - self.at > BATCH_MAX + LINE_MAX {
                        return Ok(self.end("the batch is larger than any may be"));
                    }
                    scanned -= self.at;
                    if !self.fill()? {
                        return Ok(self.end("the file ends within a batch"));
                    }
                    scanned += self.at;
                }
            }
        }
    }

    fn end(&mut self, why: &'static str) -> Option<Found> {
        let clean = self.at == self.window.len() && self.offset() == self.end;
        self.stop = Some(if clean { "the file ends" } else { why });
        None
    }

    /// Reads more; says whether there was any.
    fn fill(&mut self) -> Result<bool, Error> {
        self.base += self.at as u64;
        self.window.drain(..self.at);
        self.at = 0;
        let have = self.window.len();
        let from = self.base + have as u64;
        // A long batch is read in ever larger parts, so that it is not looked through again and again.
        let wanted = CHUNK.max(have).min(usize::try_from(self.end.saturating_sub(from)).unwrap_or(CHUNK));
        self.window.resize(have + wanted, 0);
        let got = read_full(&*self.piece.file, &mut self.window[have..], from)
            .map_err(Error::io("cannot read", &self.piece.path))?;
        self.window.truncate(have + got);
        Ok(got > 0)
    }

    /// Takes the batch whose trailer stands there, if it counts.
    fn accept(&mut self, line: Range<usize>) -> Option<Found> {
        let text = &self.window[line.clone()];
        let Some(trailer) = Trailer::parse(text) else { return self.end("a trailer is not readable") };
        let lines = self.at..line.start;
        if !trailer.covers(&self.window[lines.clone()], text) {
            return self.end("the CRC of a batch is wrong");
        }
        let follows = trailer.incarnation == self.piece.header.incarnation
            && trailer.prev == self.tie.prev
            && match self.piece.header.kind {
                Kind::Segment => Some(trailer.seq) == self.tie.seq.checked_add(trailer.count),
                Kind::Carried => trailer.seq >= self.tie.seq,
            };
        if !follows {
            return self.end("a batch does not follow from the one before");
        }
        let from = self.offset();
        self.at = line.end + 1;
        self.tie = Tie { prev: trailer.crc, seq: trailer.seq };
        Some(Found { lines, trailer, span: from..self.offset() })
    }
}

/// Looks behind the end of a walk for a batch that was written later: then what stands at the end is damaged, not torn,
/// because no batch is written before the one before it is durable. Returns that batch's trailer.
pub(super) fn later(piece: &Piece, offset: u64, seq: u64) -> Result<Option<Trailer>, Error> {
    let len = piece.file.len().map_err(Error::io("cannot read", &piece.path))?;
    let mut rest = vec![0; usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX)];
    let got = read_full(&*piece.file, &mut rest, offset).map_err(Error::io("cannot read", &piece.path))?;
    let rest = &rest[..got];
    let mut at = 0;
    while let Some(n) = newline(&rest[at..]) {
        let (from, end) = (at.max((at + n).saturating_sub(LINE_MAX)), at + n);
        at = end + 1;
        // The newline before a trailer may be what is damaged, so it is looked for within the line.
        let Some(start) = rest[from..end].windows(TRAILER.len()).rposition(|window| window == TRAILER) else {
            continue;
        };
        let line = &rest[from + start..end];
        let Some(trailer) = Trailer::parse(line).filter(|t| t.incarnation == piece.header.incarnation) else {
            continue;
        };
        let batch = usize::try_from(trailer.bytes).ok().and_then(|bytes| (from + start).checked_sub(bytes));
        // What a recycled segment held before has a lower seq.
        let newer = trailer.seq > seq || trailer.seq == seq && trailer.durable_through == seq;
        if let Some(batch) = batch
            && newer
            && trailer.covers(&rest[batch..from + start], line)
        {
            return Ok(Some(trailer));
        }
    }
    Ok(None)
}

/// Whether anything but zeros follows a place.
pub(super) fn is_blank(piece: &Piece, offset: u64) -> Result<bool, Error> {
    let mut block = vec![0; CHUNK];
    let mut at = offset;
    loop {
        let got = read_full(&*piece.file, &mut block, at).map_err(Error::io("cannot read", &piece.path))?;
        if got == 0 {
            return Ok(true);
        }
        if block[..got].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += got as u64;
    }
}
