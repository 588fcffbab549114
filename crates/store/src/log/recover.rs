//! Recovery: turns the files that a crash left into a log that can be written.
//!
//! Nothing on the disk is changed before every valid batch was read and checked. Then everything after the last valid
//! batch is overwritten with zeros, and that batch is written once more (a process that died over a failed sync
//! may have left pages that only look durable); both are synced before anything else happens.

use super::error::Error;
use super::frame::{Header, Kind};
use super::layout::{Layout, Listing, Piece, listing};
use super::noted::{self, Note};
use super::replay::{End, Known, KnownStreams, Plan, replay};
use super::salts::Salts;
use super::space::Space;
use super::tail::{Tail, begin, blank};
use super::walk::is_blank;
use super::{Line, Options, Recovery, snapshot};
use crate::disk::{Disk, read_full, write_full};
use std::collections::hash_map::Entry;
use std::sync::Arc;
use windlass_core::audit::Head;

/// The first segment of a store is small: many stores never need more.
const FIRST_BYTES: u64 = 1 << 20;

/// A stream has at least a record, and a record hardly fewer bytes.
const STREAM_BYTES: u64 = 512;
/// For more streams a map grows.
const STREAMS_MAX: usize = 1 << 20;

/// A log that can be written.
pub(super) struct Recovered {
    pub(super) tail: Tail,
    pub(super) ended: Vec<Piece>,
    pub(super) known: KnownStreams,
    pub(super) report: Recovery,
}

pub(super) type Visit<'a> = dyn FnMut(Line<'_>) -> Result<(), String> + 'a;

pub(super) fn recover(
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    options: &Options,
    salts: &mut Salts,
    visit: &mut Visit<'_>,
) -> Result<Recovered, Error> {
    let space =
        Arc::new(Space::new(Arc::clone(disk), layout.clone(), options.segment_bytes, options.spares_max));
    let mut listing = listing(&**disk, layout)?;
    let Some(first) = listing.pieces.first() else {
        return create(disk, layout, salts, space, &listing);
    };
    let incarnation = first.header.incarnation;
    let noted = noted::read(&**disk, layout)?;
    noted::check(noted, incarnation, u64::MAX)?;
    let mut report = Recovery::default();
    let base = load_snapshot(&**disk, layout, incarnation, visit, &mut report)?;
    let from = base.from.unwrap_or(0);
    let skipped = listing.pieces.iter().rposition(|piece| covers(piece, from)).unwrap_or(0);
    let plan = Plan {
        pieces: &listing.pieces[skipped..],
        end: None,
        from,
        values: false,
        lenient: base.from.is_some(),
    };
    let mut known = base.known;
    known.reserve(streams_expected(plan.pieces));
    let mut outcome = replay(&plan, known, &mut |record, text| visit(Line::Record { record, text }))?;
    let Some(piece) = listing.pieces.pop() else { return Err(Error::Closed) };
    if outcome.end.tie.seq < base.through {
        let what = format!("it ends with seq {}, but {} was durable", outcome.end.tie.seq, base.through);
        return Err(piece.corrupt(outcome.end.offset, what));
    }
    noted::check(noted, incarnation, outcome.end.tie.seq)?;
    report.torn_bytes = repair(&piece, &outcome.end)?;
    sweep(disk, layout, &listing, &space)?;
    report.records = outcome.records;
    report.last_seq = outcome.end.tie.seq;
    let known = std::mem::take(&mut outcome.known);
    report.orphans = outcome.orphans;
    let len = piece.file.len().map_err(Error::io("cannot read", &piece.path))?;
    let End { tie, offset, durable_through: marked, .. } = outcome.end;
    let note = Note::begin(&**disk, layout, incarnation, tie.seq);
    let tail = Tail {
        note,
        disk: Arc::clone(disk),
        layout: layout.clone(),
        space,
        incarnation,
        piece,
        offset,
        len,
        tie,
        marked,
        ended: Vec::new(),
        spare: Default::default(),
    };
    Ok(Recovered { tail, ended: listing.pieces, known, report })
}

/// How many streams the files may have, so that a map of them need not grow step by step. Unused capacity costs no memory.
fn streams_expected(pieces: &[Piece]) -> usize {
    let bytes: u64 = pieces.iter().filter_map(|piece| piece.file.len().ok()).sum();
    usize::try_from(bytes / STREAM_BYTES).unwrap_or(0).min(STREAMS_MAX)
}

/// Whether a file's records begin at or before a seq.
fn covers(piece: &Piece, from: u64) -> bool {
    piece.header.kind == Kind::Carried || piece.header.first <= from
}

/// A store that has nothing yet.
fn create(
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    salts: &mut Salts,
    space: Arc<Space>,
    listing: &Listing,
) -> Result<Recovered, Error> {
    if let Some(from) = snapshot::snapshots(&**disk, layout)?.last() {
        let file = layout.short(&layout.saved(*from));
        let what = "there is a snapshot, but no log that it could have been taken from".to_owned();
        return Err(Error::Corrupt { file, offset: 0, what });
    }
    noted::check_new(&**disk, layout)?;
    sweep(disk, layout, listing, &space)?;
    let incarnation = salts.incarnation();
    let header = Header { kind: Kind::Segment, incarnation, first: 1, through: 0, prev: 0 };
    let (path, file) = space.take_small(FIRST_BYTES)?;
    let (piece, len) = begin(&**disk, layout, header, &path, file)?;
    let note = Note::begin(&**disk, layout, incarnation, 0);
    let tail = Tail {
        note,
        disk: Arc::clone(disk),
        layout: layout.clone(),
        space,
        incarnation,
        offset: piece.start,
        piece,
        len,
        tie: super::walk::Tie { prev: 0, seq: 0 },
        marked: 0,
        ended: Vec::new(),
        spare: Default::default(),
    };
    Ok(Recovered { tail, ended: Vec::new(), known: KnownStreams::default(), report: Recovery::default() })
}

/// What a snapshot brought.
#[derive(Default)]
struct Base {
    /// From where the log must be read.
    from: Option<u64>,
    /// What must be in the log.
    through: u64,
    known: KnownStreams,
}

/// Loads the newest snapshot that is sound. Streams of one that turns out to be unusable halfway stay: whatever comes
/// from an older one or from the log is passed over up to their versions.
fn load_snapshot(
    disk: &dyn Disk,
    layout: &Layout,
    incarnation: u64,
    visit: &mut Visit<'_>,
    report: &mut Recovery,
) -> Result<Base, Error> {
    let mut base = Base::default();
    for from in snapshot::snapshots(disk, layout)?.into_iter().rev() {
        let path = layout.saved(from);
        let loaded = snapshot::check(disk, &path, incarnation).and_then(|checked| {
            base.through = base.through.max(checked.through);
            base.known.reserve(checked.lines);
            snapshot::load(disk, &path, &mut |line| base.take(line, visit, report)).map(|()| checked)
        });
        match loaded {
            Ok(checked) => {
                base.from = Some(checked.from);
                report.snapshot = Some(layout.short(&path));
                break;
            }
            Err(what) => report.warnings.push(format!("{} was not used: {what}", layout.short(&path))),
        }
    }
    Ok(base)
}

impl Base {
    fn take(
        &mut self,
        line: snapshot::Line,
        visit: &mut Visit<'_>,
        report: &mut Recovery,
    ) -> Result<(), String> {
        let (stream, head, saved) = match line {
            snapshot::Line::Gone(stream, head) => (stream, head, None),
            snapshot::Line::Stream(saved) => {
                (saved.stream.clone(), Head { ver: saved.state.ver, head: saved.state.head }, Some(saved))
            }
        };
        let slot = self.known.entry(stream);
        if matches!(&slot, Entry::Occupied(have) if have.get().head.ver >= head.ver) {
            return Ok(());
        }
        let gone = saved.is_none();
        if let Some(saved) = saved {
            // What is not taken is not known either: the log's records of it must not be passed over.
            visit(Line::Saved(saved))?;
            report.streams += 1;
        }
        slot.insert_entry(Known { head, saved: head.ver, gone });
        Ok(())
    }
}

/// Makes the end of the log what it is said to be; returns how much of a torn batch was dropped.
fn repair(piece: &Piece, end: &End) -> Result<u64, Error> {
    let (file, path) = (&*piece.file, &piece.path);
    let len = file.len().map_err(Error::io("cannot read", path))?;
    let mut torn = 0;
    if !is_blank(piece, end.offset)? {
        torn = len - end.offset;
        blank(file, end.offset, len).map_err(Error::io("cannot write", path))?;
    }
    if let Some(span) = &end.last_batch {
        let mut bytes = vec![0; usize::try_from(span.end - span.start).unwrap_or(0)];
        read_full(file, &mut bytes, span.start).map_err(Error::io("cannot read", path))?;
        write_full(file, &bytes, span.start).map_err(Error::io("cannot write", path))?;
    }
    file.sync_data().map_err(Error::sync(path))?;
    Ok(torn)
}

/// Removes what was not finished or is no longer needed, and takes over the room that was set aside.
fn sweep(disk: &Arc<dyn Disk>, layout: &Layout, listing: &Listing, space: &Space) -> Result<(), Error> {
    for path in &listing.leftovers {
        disk.remove(path).map_err(Error::io("cannot remove", path))?;
    }
    snapshot::sweep(&**disk, layout)?;
    space.adopt(&listing.spares)?;
    disk.sync_dir(&layout.log).map_err(Error::sync(&layout.log))
}
