//! Reading the log back, checked, in four threads: one reads and checks CRCs, one decodes, one checks that each record
//! follows in its stream, and the caller's takes them.

use super::error::Error;
use super::frame::{Kind, newline};
use super::layout::Piece;
use super::walk::{Tie, Walk, later};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use windlass_core::audit::Head;
use windlass_core::digest::Digest;
use windlass_core::event::Event;
use windlass_core::record::{Check, Decoder, Record};
use windlass_core::stream::StreamId;
use windlass_engine::fast::Map;

/// How many bytes of lines go from one thread to the next at a time.
const CHUNK: usize = 256 << 10;
/// How many of them may wait.
const CHUNKS: usize = 8;

/// What is known of a stream while the log is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) head: Head,
    /// Up to which version a snapshot has it: what the log has of that is passed over.
    pub(super) saved: u64,
    /// A snapshot has no more of it than its head, because it had ended.
    pub(super) gone: bool,
}

pub(super) type KnownStreams = Map<StreamId, Known>;

/// How the log is read.
pub(super) struct Plan<'a> {
    /// Its files, in order.
    pub(super) pieces: &'a [Piece],
    /// Up to where the last one is read; to where it ends by itself, if nothing is said.
    pub(super) end: Option<u64>,
    /// The first seq that is wanted.
    pub(super) from: u64,
    /// Whether private values are checked against their digests.
    pub(super) values: bool,
    /// Streams whose first record need not be there: it may stand before `from`.
    pub(super) lenient: bool,
}

/// Where the log ended.
pub(super) struct End {
    pub(super) tie: Tie,
    /// Where the next batch goes.
    pub(super) offset: u64,
    /// The last batch of the last file, if it has one.
    pub(super) last_batch: Option<Range<u64>>,
    /// The `durable_through` of the last batch.
    pub(super) durable_through: u64,
}

/// What reading came to.
pub(super) struct Outcome {
    pub(super) end: End,
    pub(super) known: KnownStreams,
    /// Streams whose beginning stands before what was read.
    pub(super) orphans: BTreeSet<StreamId>,
    /// How many records were handed over.
    pub(super) records: u64,
}

/// Lines of one file.
struct Lines {
    piece: usize,
    offset: u64,
    bytes: Vec<u8>,
}

/// Their records.
struct Records {
    piece: usize,
    offset: u64,
    text: String,
    records: Vec<Decoded>,
}

/// A record, where its line stands, and how much of that the chain covers.
struct Decoded {
    record: Record,
    line: Range<usize>,
    covered: usize,
}

/// Reads the log and hands every record over that is news.
pub(super) fn replay(
    plan: &Plan<'_>,
    known: KnownStreams,
    visit: &mut dyn FnMut(Record, &str) -> Result<(), String>,
) -> Result<Outcome, Error> {
    let (lines_out, lines_in) = sync_channel(CHUNKS);
    let (decoded_out, decoded_in) = sync_channel(CHUNKS);
    let (records_out, records_in) = sync_channel(CHUNKS);
    thread::scope(|scope| {
        let reader = scope.spawn(move || read(plan, &lines_out));
        let decoder = scope.spawn(move || decode(plan, &lines_in, &decoded_out));
        let checker = scope.spawn(move || check(plan, known, &decoded_in, &records_out));
        let taken = take(plan, records_in, visit);
        let panicked =
            |_| Error::SyncFailed { what: "recovery".into(), message: "a thread of it panicked".into() };
        let end = reader.join().map_err(panicked)?;
        let decoded = decoder.join().map_err(panicked)?;
        let checked = checker.join().map_err(panicked)?;
        // The one that is furthest along knows what is wrong; the others only noticed that their receiver is gone.
        let records = taken?;
        let (known, orphans) = checked?;
        decoded?;
        Ok(Outcome { end: end?, known, orphans, records })
    })
}

fn take(
    plan: &Plan<'_>,
    inbox: Receiver<Records>,
    visit: &mut dyn FnMut(Record, &str) -> Result<(), String>,
) -> Result<u64, Error> {
    let mut count = 0;
    for Records { piece, text, records, .. } in inbox {
        count += records.len() as u64;
        for Decoded { record, line, .. } in records {
            let seq = record.seq;
            visit(record, &text[line]).map_err(|message| {
                let file = plan.pieces[piece].file_name.clone();
                Error::Refused { file, seq, message }
            })?;
        }
    }
    Ok(count)
}

/// Walks through the files. A receiver that is gone is not an error of its own.
fn read(plan: &Plan<'_>, out: &SyncSender<Lines>) -> Result<End, Error> {
    let mut end = None;
    for (i, piece) in plan.pieces.iter().enumerate() {
        let next = plan.pieces.get(i + 1);
        let (walk, last_batch, durable_through) = read_piece(plan, i, out)?;
        let offset = walk.offset();
        match next {
            Some(next) => link(piece, &walk, next)?,
            None if piece.header.kind == Kind::Carried => {
                return Err(piece.corrupt(offset, "the segment after it is missing"));
            }
            None => {
                if plan.end.is_none()
                    && let Some(later) = later(piece, offset, walk.tie.seq)?
                {
                    let why = walk.stop.unwrap_or("it ends there");
                    let what = format!("{why}, but what came after it (seq {}) was written later", later.seq);
                    return Err(piece.corrupt(offset, what));
                }
                let durable_through = durable_through.unwrap_or_else(|| piece.before());
                end = Some(End { tie: walk.tie, offset, last_batch, durable_through });
            }
        }
    }
    // The caller passes at least one file.
    end.ok_or(Error::Closed)
}

type Walked<'a> = (Walk<'a>, Option<Range<u64>>, Option<u64>);

fn read_piece<'a>(plan: &Plan<'a>, i: usize, out: &SyncSender<Lines>) -> Result<Walked<'a>, Error> {
    let piece = &plan.pieces[i];
    let mut walk = match plan.end.filter(|_| i + 1 == plan.pieces.len()) {
        Some(end) => Walk::new(piece, end),
        None => Walk::whole(piece)?,
    };
    let mut lines = Lines { piece: i, offset: walk.offset(), bytes: Vec::new() };
    let (mut last, mut durable_through) = (None, None);
    while let Some(found) = walk.next()? {
        if found.trailer.seq >= plan.from {
            if lines.bytes.is_empty() {
                lines.offset = found.span.start;
            }
            lines.bytes.extend_from_slice(walk.lines(&found));
        }
        last = Some(found.span);
        durable_through = Some(found.trailer.durable_through);
        if lines.bytes.len() >= CHUNK {
            let full = std::mem::replace(&mut lines.bytes, Vec::with_capacity(CHUNK * 2));
            let sent = out.send(Lines { piece: i, offset: lines.offset, bytes: full });
            if sent.is_err() {
                break;
            }
        }
    }
    // The receiver is gone: it knows why.
    let _ = out.send(lines);
    Ok((walk, last, durable_through))
}

/// Whether a file ends where the next one begins.
fn link(piece: &Piece, walk: &Walk<'_>, next: &Piece) -> Result<(), Error> {
    let (ends, prev) = match piece.header.kind {
        Kind::Segment => (walk.tie.seq, walk.tie.prev),
        // A carried file is written whole or not at all.
        Kind::Carried if walk.stop == Some("the file ends") => (piece.header.through, piece.header.prev),
        Kind::Carried => return Err(piece.corrupt(walk.offset(), walk.stop.unwrap_or("it ends there"))),
    };
    if ends + 1 == next.header.first && prev == next.header.prev {
        return Ok(());
    }
    let why = walk.stop.unwrap_or("it ends there");
    let what = format!("{why}, but {} begins with seq {}", next.file_name, next.header.first);
    Err(piece.corrupt(walk.offset(), what))
}

fn decode(plan: &Plan<'_>, inbox: &Receiver<Lines>, out: &SyncSender<Records>) -> Result<(), Error> {
    let mut decoder = Decoder::new();
    for Lines { piece, offset, bytes } in inbox {
        let corrupt = |what: String| plan.pieces[piece].corrupt(offset, what);
        let text = String::from_utf8(bytes).map_err(|_| corrupt("a record is no text".to_owned()))?;
        let mut records = Vec::with_capacity(text.len() / 256);
        let mut at = 0;
        while let Some(n) = newline(&text.as_bytes()[at..]) {
            let line = at..at + n;
            at += n + 1;
            let (record, covered) = decoder
                .decode_open(&text[line.clone()])
                .map_err(|error| corrupt(unsound(&error, &text[line.clone()])))?;
            records.push(Decoded { record, line, covered });
        }
        if out.send(Records { piece, offset, text, records }).is_err() {
            break;
        }
    }
    Ok(())
}

fn unsound(error: &windlass_core::wire::Error, line: &str) -> String {
    format!("a record does not hold: {error}: {}", windlass_core::wire::shorten(line))
}

type Checked = (KnownStreams, BTreeSet<StreamId>);

/// Checks that records follow in their streams, and passes those on that are news.
fn check(
    plan: &Plan<'_>,
    mut known: KnownStreams,
    inbox: &Receiver<Records>,
    out: &SyncSender<Records>,
) -> Result<Checked, Error> {
    let mut orphans = BTreeSet::new();
    for Records { piece, offset, text, mut records } in inbox {
        let mut wrong = None;
        records.retain(|decoded| {
            wrong.is_none()
                && match is_news(plan, &mut known, &mut orphans, decoded, &text[decoded.line.clone()]) {
                    Ok(news) => news,
                    Err(what) => {
                        wrong = Some(what);
                        false
                    }
                }
        });
        if let Some(what) = wrong {
            return Err(plan.pieces[piece].corrupt(offset, what));
        }
        if out.send(Records { piece, offset, text, records }).is_err() {
            break;
        }
    }
    Ok((known, orphans))
}

/// Whether a record is news. It follows in its stream, or that is what is wrong.
fn is_news(
    plan: &Plan<'_>,
    known: &mut KnownStreams,
    orphans: &mut BTreeSet<StreamId>,
    Decoded { record, covered, .. }: &Decoded,
    line: &str,
) -> Result<bool, String> {
    // What was before it may have left the log. It says itself what it follows on.
    let carried = match &record.event {
        Event::StreamCarried(carried) => Some(carried.prior),
        _ => None, // tidy: every other record follows on one that is there.
    };
    let head = match known.get(&record.stream) {
        Some(have) => (have.head.ver + 1 == record.ver).then_some(have.head.head),
        None => carried.or_else(|| (record.ver == 1).then(Digest::default)),
    };
    if let Some(head) = head {
        record.follows(&head, &line.as_bytes()[..*covered]).map_err(|error| unsound(&error, line))?;
    }
    if record.seq < plan.from {
        return Ok(false);
    }
    if plan.values {
        check_values(line, record, known, carried)?;
    }
    let after = Head { ver: record.ver, head: record.chain };
    match known.get_mut(&record.stream) {
        Some(have) if record.ver == have.head.ver + 1 => {
            have.head = after;
            if have.gone {
                orphans.insert(record.stream.clone());
            }
        }
        Some(have) if record.ver <= have.saved => return Ok(false),
        Some(have) => {
            let (stream, ver, have) = (&record.stream, record.ver, have.head.ver);
            return Err(format!("version {ver} of {stream} follows on version {have}"));
        }
        None if record.ver == 1 || carried.is_some() => {
            known.insert(record.stream.clone(), Known { head: after, ..Known::default() });
        }
        None if plan.lenient => {
            orphans.insert(record.stream.clone());
            known.insert(record.stream.clone(), Known { head: after, ..Known::default() });
        }
        None => return Err(format!("{} begins with version {}", record.stream, record.ver)),
    }
    Ok(!orphans.contains(&record.stream))
}

fn check_values(
    line: &str,
    record: &Record,
    known: &KnownStreams,
    carried: Option<Digest>,
) -> Result<(), String> {
    let head = known.get(&record.stream).map(|have| have.head.head).or(carried).unwrap_or_default();
    match Record::decode(line, Check::All(&head)) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("version {} of {} does not hold: {error}", record.ver, record.stream)),
    }
}
