//! Reading a log that is being written: a range of it, or all that some streams have.
//!
//! Readers see what is durable. They hold on to the files they read, so compaction takes nothing away from them.

use super::Log;
use super::commit::View;
use super::error::Error;
use super::frame::{Kind, newline};
use super::layout::Piece;
use super::walk::Walk;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use windlass_core::audit::Head;
use windlass_core::record::{Check, Record};
use windlass_core::stream::StreamId;
use windlass_core::wire::Reader;

/// A range of seqs, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seqs {
    /// The first.
    pub first: u64,
    /// The last.
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
    /// Returns the seq to go on from. Compaction may have dropped some: those are passed over.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the log is damaged, or what the system says.
    pub fn read(&self, from_seq: u64, visit: &mut Visit<'_>) -> Result<u64, Error> {
        let view = self.shared.view();
        let mut next = from_seq;
        let flow =
            each_batch(&view, Seqs { first: from_seq, last: u64::MAX }, &mut |piece, offset, lines| {
                each_line(lines, &mut |line| {
                    let record = Record::decode(line, Check::Form).map_err(|error| {
                        piece.corrupt(offset, format!("a record is not readable: {error}"))
                    })?;
                    if record.seq < from_seq {
                        return Ok(ControlFlow::Continue(()));
                    }
                    next = record.seq + 1;
                    Ok(visit(record, line))
                })
            })?;
        Ok(if flow.is_continue() { view.seq.max(from_seq.saturating_sub(1)) + 1 } else { next })
    }

    /// Hands over all records of some streams that stand in a range, in their order, until the visitor breaks. Chains are
    /// checked, from each stream's first record that is found.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the log is damaged, or what the system says.
    pub fn scan(&self, streams: &[StreamId], seqs: Seqs, visit: &mut Visit<'_>) -> Result<(), Error> {
        let view = self.shared.view();
        let wanted: BTreeSet<String> = streams.iter().map(ToString::to_string).collect();
        let mut heads: HashMap<StreamId, Head> = HashMap::new();
        // Whether the visitor has enough or there is no more is the same to the caller.
        let _ = each_batch(&view, seqs, &mut |piece, offset, lines| {
            each_line(lines, &mut |line| {
                if !stream_of(line).is_some_and(|stream| wanted.contains(&*stream)) {
                    return Ok(ControlFlow::Continue(()));
                }
                let record = follow(&mut heads, line).map_err(|what| piece.corrupt(offset, what))?;
                if record.seq < seqs.first || record.seq > seqs.last {
                    return Ok(ControlFlow::Continue(()));
                }
                Ok(visit(record, line))
            })
        })?;
        Ok(())
    }
}

/// Decodes a line and checks it against the head of its stream, which it moves.
fn follow(heads: &mut HashMap<StreamId, Head>, line: &str) -> Result<Record, String> {
    let known = |stream: &StreamId, ver: u64| match heads.get(stream) {
        Some(head) => Some(head.head),
        None => (ver == 1).then(Default::default),
    };
    let record =
        Record::decode_next(line, known).map_err(|error| format!("a record does not hold: {error}"))?;
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
        let whole = match piece.header.kind {
            Kind::Segment => walk.tie.seq == ends,
            Kind::Carried => walk.stop == Some("the file ends"),
        };
        if !whole {
            return Err(piece.corrupt(walk.offset(), walk.stop.unwrap_or("it ends there")));
        }
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
