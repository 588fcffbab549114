//! Reading a log that is being written: a range of it, or all that some streams have.
//!
//! Readers see durable records only. They keep the files they read open, so compaction does not disturb them.

use super::Log;
use super::commit::View;
use super::error::Error;
use super::frame::{Kind, newline};
use super::heads::{self, Gone};
use super::index::{self, Place};
use super::layout::Piece;
use super::walk::{BATCH_MAX, Tie, Walk};
use crate::disk::read_full;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use windlass_core::audit::Head;
use windlass_core::id::RunId;
use windlass_core::record::{Check, Record};
use windlass_core::stream::StreamId;
use windlass_core::wire::Reader;

/// A range of seqs, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seqs {
    pub first: u64,
    pub last: u64,
}

impl Seqs {
    /// All there are.
    pub const ALL: Seqs = Seqs { first: 0, last: u64::MAX };
}

/// What a visitor of records says: whether it wants more.
pub(super) type Visit<'a> = dyn FnMut(Record, &str) -> ControlFlow<()> + 'a;

impl Log {
    /// Hands over the durable records from a seq on, in their order, until there are no more or the visitor breaks.
    /// Returns the seq to go on from. Compaction may have dropped some: those are passed over. Reading on from there costs
    /// what comes after it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the log is damaged, or what the system says.
    pub fn read(&self, from_seq: u64, visit: &mut Visit<'_>) -> Result<u64, Error> {
        let view = self.shared.view();
        let mut next = from_seq;
        for (piece, end, ends) in pieces(&view) {
            if ends < from_seq {
                continue;
            }
            let until = match end {
                Some(end) => end,
                None => piece.file.len().map_err(Error::io("cannot read", &piece.path))?,
            };
            let mut walk = match self.stops.before(piece, from_seq) {
                Some(stop) => Walk::from(piece, stop.offset, stop.tie, until),
                None => Walk::new(piece, until),
            };
            loop {
                let before = (walk.offset(), walk.tie);
                let Some(found) = walk.next()? else { break };
                if found.trailer.seq < from_seq {
                    continue;
                }
                let first = found.trailer.seq.saturating_sub(found.trailer.count) + 1;
                let mut passed = match piece.header.kind {
                    Kind::Segment => from_seq.saturating_sub(first),
                    Kind::Carried => 0,
                };
                let offset = found.span.start;
                let flow = each_line(walk.lines(&found), &mut |line| {
                    if passed > 0 {
                        passed -= 1;
                        return Ok(ControlFlow::Continue(()));
                    }
                    let record = Record::decode(line, Check::Form).map_err(|error| {
                        piece.corrupt(offset, format!("a record is not readable: {error}"))
                    })?;
                    if record.seq < from_seq {
                        return Ok(ControlFlow::Continue(()));
                    }
                    next = record.seq + 1;
                    Ok(visit(record, line))
                })?;
                if flow.is_break() {
                    let (offset, tie) = before;
                    self.stops.put(piece, offset, tie);
                    return Ok(next);
                }
            }
            is_whole(&walk, piece, ends)?;
            if end.is_some() {
                self.stops.put(piece, walk.offset(), walk.tie);
            }
        }
        Ok(view.seq.max(from_seq.saturating_sub(1)) + 1)
    }

    /// Hands over all records of some streams that stand in a range, in their order, until the visitor breaks. Chains are
    /// checked, from each stream's first record that is found. It costs the records of those streams, as far as the index
    /// goes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the log is damaged, or what the system says.
    pub fn scan(&self, streams: &[StreamId], seqs: Seqs, visit: &mut Visit<'_>) -> Result<(), Error> {
        let wanted: BTreeSet<String> = streams.iter().map(ToString::to_string).collect();
        let hashes: Vec<u64> = wanted.iter().map(|stream| index::hash(stream)).collect();
        let mut heads: HashMap<StreamId, Head> = HashMap::new();
        self.look_up(&hashes, seqs, &mut |found| {
            if !stream_of(found.line).is_some_and(|stream| wanted.contains(&*stream)) {
                return Ok(ControlFlow::Continue(()));
            }
            let record = follow(&mut heads, found.line, found.checked).map_err(|what| found.corrupt(what))?;
            if record.seq < seqs.first || record.seq > seqs.last {
                return Ok(ControlFlow::Continue(()));
            }
            Ok(visit(record, found.line))
        })
    }

    /// Hands over the records of a run from a seq on, and the intents of its effects, in their order, until the visitor
    /// breaks.
    ///
    /// # Errors
    /// As [`Log::scan`].
    pub fn scan_run(&self, run: RunId, seqs: Seqs, visit: &mut Visit<'_>) -> Result<(), Error> {
        let own = StreamId::Run(run).to_string();
        let mut heads: HashMap<StreamId, Head> = HashMap::new();
        self.look_up(&[index::hash(&own)], seqs, &mut |found| {
            let record = if stream_of(found.line).is_some_and(|stream| *stream == *own) {
                follow(&mut heads, found.line, found.checked)
            } else if index::intent_of(found.line).is_some_and(|run| run == own) {
                let decoded = Record::decode_whole(found.line, |_, _| None);
                decoded.map_err(|error| format!("a record does not hold: {error}"))
            } else {
                return Ok(ControlFlow::Continue(()));
            };
            let record = record.map_err(|what| found.corrupt(what))?;
            if record.seq < seqs.first || record.seq > seqs.last {
                return Ok(ControlFlow::Continue(()));
            }
            Ok(visit(record, found.line))
        })
    }

    /// The heads that dropped streams had in a range of seqs, in their order: what seals cover of them.
    ///
    /// # Errors
    /// What the system says.
    pub fn gone(&self, seqs: Seqs, visit: &mut dyn FnMut(Gone)) -> Result<(), Error> {
        heads::read(&*self.disk, &self.layout, seqs, visit)
    }

    /// Brings the index up to what is durable. It goes on where it was interrupted.
    ///
    /// # Errors
    /// [`Error::Corrupt`], or what the system says; readers walk through the log then.
    pub fn index(&self, go_on: &dyn Fn() -> bool) -> Result<(), Error> {
        let view = self.shared.view();
        self.sweep_index(&view);
        for (piece, end, ends) in pieces(&view) {
            while go_on() && piece.index.extend((&*self.disk, &self.layout), piece, end, ends)? {}
        }
        Ok(())
    }

    /// Removes what the index has of files that are gone.
    fn sweep_index(&self, view: &View) {
        let files = pieces(view).map(|(piece, ..)| piece.path.file_name().map(|name| name.to_string_lossy()));
        let files: BTreeSet<String> = files.flatten().map(std::borrow::Cow::into_owned).collect();
        for name in self.disk.list(&self.layout.index).unwrap_or_default() {
            if !index::piece_of(&name).is_some_and(|piece| files.contains(piece)) {
                // A leftover does no harm.
                let _ = self.disk.remove(&self.layout.index.join(&name));
            }
        }
    }

    /// Hands over every line that may stand under one of the hashes.
    fn look_up(&self, hashes: &[u64], seqs: Seqs, visit: &mut VisitLine<'_>) -> Result<(), Error> {
        let view = self.shared.view();
        for (piece, end, ends) in pieces(&view) {
            let begins = if piece.header.kind == Kind::Carried { 1 } else { piece.header.first };
            if ends < seqs.first || begins > seqs.last {
                continue;
            }
            // Each reader takes a slice more into the index, so the next one walks less. Where it cannot grow, the rest is
            // walked through.
            let _ = piece.index.extend((&*self.disk, &self.layout), piece, end, ends);
            if self.look_in(piece, (end, ends), hashes, seqs, visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn look_in(
        &self,
        piece: &Piece,
        (end, ends): (Option<u64>, u64),
        hashes: &[u64],
        seqs: Seqs,
        visit: &mut VisitLine<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let mut rest = None;
        if let Some(covered) = piece.index.look(hashes, seqs.first, seqs.last) {
            let mut window = Window { piece, bytes: Vec::new(), base: 0 };
            for part in &covered.parts {
                let Some(places) = part.find(&*self.disk, hashes, seqs.first, seqs.last) else {
                    piece.index.reset(&*self.disk);
                    let seqs = Seqs { first: seqs.first.max(part.first()), ..seqs };
                    return walk_through(piece, part.begin(), (end, ends), seqs, visit);
                };
                if window.visit(&places, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if window.visit(&covered.recent, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            match covered.rest {
                None => return Ok(ControlFlow::Continue(())),
                Some(from) => rest = Some(from),
            }
        }
        let begin = Walk::new(piece, 0);
        walk_through(piece, rest.unwrap_or((begin.offset(), begin.tie)), (end, ends), seqs, visit)
    }
}

/// How much is read for a line at first.
const LINE: usize = 4 << 10;

/// The files of a view with where each is read up to (its end, if it is not written any more) and its last seq.
fn pieces(view: &View) -> impl Iterator<Item = (&Piece, Option<u64>, u64)> {
    let ended = view.ended.iter().enumerate().map(|(i, piece)| {
        let next = view.ended.get(i + 1).unwrap_or(&view.last);
        (&**piece, None, next.before())
    });
    ended.chain([(&*view.last, Some(view.end), view.seq)])
}

/// A line that was found, and whether the CRC of its batch was checked.
struct FoundLine<'a> {
    piece: &'a Piece,
    offset: u64,
    line: &'a str,
    checked: bool,
}

impl FoundLine<'_> {
    fn corrupt(&self, what: String) -> Error {
        self.piece.corrupt(self.offset, what)
    }
}

type VisitLine<'a> = dyn FnMut(FoundLine<'_>) -> Result<ControlFlow<()>, Error> + 'a;

/// Walks through what the index does not have of a file.
fn walk_through(
    piece: &Piece,
    (offset, tie): (u64, Tie),
    (end, ends): (Option<u64>, u64),
    seqs: Seqs,
    visit: &mut VisitLine<'_>,
) -> Result<ControlFlow<()>, Error> {
    let end = match end {
        Some(end) => end,
        None => piece.file.len().map_err(Error::io("cannot read", &piece.path))?,
    };
    let mut walk = Walk::from(piece, offset, tie, end);
    while let Some(found) = walk.next()? {
        if found.trailer.seq < seqs.first {
            continue;
        }
        let offset = found.span.start;
        let flow = each_line(walk.lines(&found), &mut |line| {
            visit(FoundLine { piece, offset, line, checked: true })
        })?;
        if flow.is_break() {
            return Ok(flow);
        }
        if found.trailer.seq > seqs.last {
            return Ok(ControlFlow::Continue(()));
        }
    }
    is_whole(&walk, piece, ends)?;
    Ok(ControlFlow::Continue(()))
}

/// A file was read to its end, or is damaged.
fn is_whole(walk: &Walk<'_>, piece: &Piece, ends: u64) -> Result<(), Error> {
    let whole = match piece.header.kind {
        Kind::Segment => walk.tie.seq == ends,
        Kind::Carried => walk.stop == Some("the file ends"),
    };
    if whole { Ok(()) } else { Err(piece.corrupt(walk.offset(), walk.stop.unwrap_or("it ends there"))) }
}

/// Bytes of a file around the line that was read last.
struct Window<'a> {
    piece: &'a Piece,
    bytes: Vec<u8>,
    base: u64,
}

impl Window<'_> {
    fn visit(&mut self, places: &[Place], visit: &mut VisitLine<'_>) -> Result<ControlFlow<()>, Error> {
        for place in places {
            let range = self.line(place.offset)?;
            let line = std::str::from_utf8(&self.bytes[range]).unwrap_or_default();
            let found = FoundLine { piece: self.piece, offset: place.offset, line, checked: false };
            if visit(found)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Where the line that begins at an offset stands in the bytes.
    fn line(&mut self, offset: u64) -> Result<std::ops::Range<usize>, Error> {
        let at = usize::try_from(offset.wrapping_sub(self.base)).unwrap_or(usize::MAX);
        if let Some(n) = self.bytes.get(at..).and_then(newline) {
            return Ok(at..at + n);
        }
        let mut wanted = LINE;
        loop {
            self.bytes.resize(wanted, 0);
            let got = read_full(&*self.piece.file, &mut self.bytes, offset)
                .map_err(Error::io("cannot read", &self.piece.path))?;
            self.bytes.truncate(got);
            self.base = offset;
            match newline(&self.bytes) {
                Some(n) => return Ok(0..n),
                None if got < wanted || wanted > BATCH_MAX => {
                    return Err(self.piece.corrupt(offset, "a record ends nowhere"));
                }
                None => wanted *= 4,
            }
        }
    }
}

/// Decodes a line and checks it against the head of its stream, which it moves.
fn follow(heads: &mut HashMap<StreamId, Head>, line: &str, checked: bool) -> Result<Record, String> {
    let known = |stream: &StreamId, ver: u64| match heads.get(stream) {
        Some(head) => Some(head.head),
        None => (ver == 1).then(Default::default),
    };
    // What no CRC vouches for is checked to the last value.
    let decoded = if checked { Record::decode_next(line, known) } else { Record::decode_whole(line, known) };
    let record = decoded.map_err(|error| format!("a record does not hold: {error}"))?;
    if let Some(head) = heads.get(&record.stream)
        && head.ver + 1 != record.ver
    {
        return Err(format!("version {} of {} follows on version {}", record.ver, record.stream, head.ver));
    }
    heads.insert(record.stream.clone(), Head { ver: record.ver, head: record.chain });
    Ok(record)
}

/// The stream of a line, found without decoding it.
pub(super) fn stream_of(line: &str) -> Option<std::borrow::Cow<'_, str>> {
    let mut r = Reader::new(line, false);
    r.expect("{\"type\":").ok()?;
    r.text().ok()?;
    r.need_key("stream", "").ok()?;
    r.text().ok()
}

type VisitBatch<'a> = dyn FnMut(&Piece, u64, &[u8]) -> Result<ControlFlow<()>, Error> + 'a;

/// Walks through the batches of what is durable that have seqs of a range.
pub(super) fn each_batch(
    view: &View,
    seqs: Seqs,
    visit: &mut VisitBatch<'_>,
) -> Result<ControlFlow<()>, Error> {
    let mut pieces: Vec<&Piece> = view.ended.iter().map(|piece| &**piece).collect();
    pieces.push(&view.last);
    for (i, piece) in pieces.iter().enumerate() {
        let next = pieces.get(i + 1);
        let ends = next.map_or(view.seq, |next| next.before());
        let begins = if piece.header.kind == Kind::Carried { 1 } else { piece.header.first };
        if ends < seqs.first || begins > seqs.last {
            continue;
        }
        let mut walk = match next {
            Some(_) => Walk::whole(piece)?,
            None => Walk::new(piece, view.end),
        };
        while let Some(found) = walk.next()? {
            if found.trailer.seq >= seqs.first
                && visit(piece, found.span.start, walk.lines(&found))?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        is_whole(&walk, piece, ends)?;
    }
    Ok(ControlFlow::Continue(()))
}

/// Splits the lines of a batch.
pub(super) fn each_line(
    lines: &[u8],
    visit: &mut dyn FnMut(&str) -> Result<ControlFlow<()>, Error>,
) -> Result<ControlFlow<()>, Error> {
    let mut at = 0;
    while let Some(n) = newline(&lines[at..]) {
        // A line that is no text is no record, which the visitor says with its place.
        let line = std::str::from_utf8(&lines[at..at + n]).unwrap_or_default();
        if visit(line)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        at += n + 1;
    }
    Ok(ControlFlow::Continue(()))
}
