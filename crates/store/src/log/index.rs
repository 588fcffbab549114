//! The index: the places of each stream's records in the files of the log.
//!
//! ```text
//!  log/….wal    [header][batch][batch][batch]|[batch]000
//!                └──────── a part ─────────┘ └ in memory ┘
//!  index/….wal-317.idx   [header][stream's hash → first place, count]…[seq, offset]…
//! ```
//!
//! So reading one stream costs only its own records, however long the log is. The index is derived: a part that is
//! missing, torn or of another file is rebuilt from the log, and until then the log itself is walked. It grows during
//! reads, a slice of each file at a time, never during commits. Memory holds the growing part, at most [`PART_MAX`]
//! records per file.
//!
//! A record is indexed under its stream. An intent is also indexed under its run, so that a run finds its effects.

use super::error::Error;
use super::frame::{Kind, LINE_MAX, Trailer, newline};
use super::layout::{Layout, Piece};
use super::read::stream_of;
use super::walk::{Tie, Walk};
use crate::disk::{Disk, How, read_full, write_full};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use windlass_core::digest::Digest;
use windlass_core::record::{Check, Record};
use windlass_engine::fast::Map;

/// How many records a part has before it is written.
const PART_MAX: usize = 1 << 17;
/// How many bytes of the log are looked at before others get a turn.
const SLICE: u64 = 4 << 20;
/// How a part begins, with its format.
const MAGIC: u64 = u64::from_le_bytes(*b"WLINDEX1");
/// How many numbers its header has, and how many bytes that is.
const FIELDS: usize = 14;
const HEADER: u64 = FIELDS as u64 * 8;
/// The bytes of an entry: two numbers.
const ENTRY: u64 = 16;
/// How many entries are read around the place where a hash is expected.
const AROUND: u64 = 512;

/// What a record is found by: the beginning of the hash of its stream's name. It is the same in every process.
pub(super) fn hash(stream: &str) -> u64 {
    let digest = Digest::of(&[stream.as_bytes()]);
    u64::from_be_bytes(digest.0[..8].try_into().unwrap_or_default())
}

/// The run that an intent belongs to, found without decoding the line. No text in a line can look like the key, because
/// a quote within a text has a backslash before it.
pub(super) fn intent_of(line: &str) -> Option<String> {
    let rest = line.strip_prefix("{\"type\":\"intent:recorded\"")?;
    let (_, rest) = rest.split_once(",\"pipeline_id\":\"")?;
    rest.split_once('"').map(|(run, _)| format!("run/{run}"))
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) offset: u64,
}

/// A stretch of a file whose records are all in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
    /// What its first batch follows from, and what follows on its last.
    before: Tie,
    after: Tie,
}

/// A part that is written.
pub(super) struct Part {
    path: PathBuf,
    span: Span,
    streams: u64,
    places: u64,
    crc: u64,
    /// Whether its bytes are what they were; looked at once.
    sound: OnceLock<bool>,
}

/// The part that grows.
struct Open {
    span: Span,
    count: usize,
    places: Map<u64, Vec<Place>>,
}

impl Open {
    fn at(offset: u64, tie: Tie) -> Open {
        let span = Span { start: offset, end: offset, before: tie, after: tie };
        Open { span, count: 0, places: Map::default() }
    }

    /// Writes what grew and begins the next part; where it cannot be written, it is let go of and grows again later.
    fn end_part(
        &mut self,
        at: (&dyn Disk, &Layout),
        piece: &Piece,
        written: &mut Vec<Arc<Part>>,
    ) -> Result<(), Error> {
        let part = write(at, piece, self);
        let next = match &part {
            Ok(part) => (part.span.end, part.span.after),
            Err(_) => (self.span.start, self.span.before),
        };
        *self = Open::at(next.0, next.1);
        written.push(Arc::new(part?));
        Ok(())
    }
}

#[derive(Default)]
struct Parts {
    /// In the order of the file, without a gap; none before somebody looked.
    written: Vec<Arc<Part>>,
    open: Option<Open>,
    /// Nothing more will be written into the file, and all of it is in the index.
    whole: bool,
}

/// The index of one file of the log.
#[derive(Default)]
pub(super) struct Index(Mutex<Parts>);

/// What the index says of some streams, and from where on the file itself must be walked.
pub(super) struct Covered {
    pub(super) parts: Vec<Arc<Part>>,
    /// From the part that grows, in order.
    pub(super) recent: Vec<Place>,
    /// Where the rest begins, if there can be any.
    pub(super) rest: Option<(u64, Tie)>,
}

impl Index {
    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slice of the file into the index. Says whether there is more. `ends` is the last seq of a file that is
    /// ended; one that is written ends at `end` for now.
    pub(super) fn extend(
        &self,
        at: (&dyn Disk, &Layout),
        piece: &Piece,
        end: Option<u64>,
        ends: u64,
    ) -> Result<bool, Error> {
        let mut parts = self.lock();
        if parts.whole {
            return Ok(false);
        }
        let Parts { written, open, whole } = &mut *parts;
        let open = match open {
            Some(open) => open,
            None => {
                *written = load(at, piece);
                let from = Walk::new(piece, 0);
                let last = written.last().map(|part| (part.span.end, part.span.after));
                let (offset, tie) = last.unwrap_or((from.offset(), from.tie));
                open.insert(Open::at(offset, tie))
            }
        };
        let until = match end {
            Some(end) => end,
            None => piece.file.len().map_err(Error::io("cannot read", &piece.path))?,
        };
        let mut walk = Walk::from(piece, open.span.end, open.span.after, until);
        let stop_at = open.span.end + SLICE;
        let mut more = false;
        while let Some(found) = walk.next()? {
            let mut seq = found.trailer.seq.saturating_sub(found.trailer.count);
            let (lines, mut from) = (walk.lines(&found), 0);
            while let Some(n) = newline(&lines[from..]) {
                let line = std::str::from_utf8(&lines[from..from + n]).unwrap_or_default();
                seq = match piece.header.kind {
                    Kind::Segment => seq + 1,
                    Kind::Carried => Record::decode(line, Check::Form).map_or(seq, |record| record.seq),
                };
                let place = Place { seq, offset: found.span.start + from as u64 };
                from += n + 1;
                let Some(stream) = stream_of(line) else { continue };
                open.places.entry(hash(&stream)).or_default().push(place);
                open.count += 1;
                if let Some(run) = intent_of(line) {
                    open.places.entry(hash(&run)).or_default().push(place);
                    open.count += 1;
                }
            }
            (open.span.end, open.span.after) = (found.span.end, walk.tie);
            if open.count >= PART_MAX {
                open.end_part(at, piece, written)?;
            }
            more = open.span.end >= stop_at;
            if more {
                break;
            }
        }
        let over = match piece.header.kind {
            Kind::Segment => end.is_none() && walk.tie.seq == ends,
            Kind::Carried => walk.stop == Some("the file ends"),
        };
        if over && !more {
            if open.count > 0 {
                open.end_part(at, piece, written)?;
            }
            *whole = true;
        }
        Ok(more)
    }

    /// What is known of streams, by their hashes.
    pub(super) fn look(&self, hashes: &[u64], first: u64, last: u64) -> Option<Covered> {
        let parts = self.lock();
        let open = parts.open.as_ref()?;
        let within = |part: &&Arc<Part>| part.span.after.seq >= first && part.span.before.seq < last;
        let found = hashes.iter().filter_map(|hash| open.places.get(hash)).flatten();
        let mut recent: Vec<Place> =
            found.filter(|place| (first..=last).contains(&place.seq)).copied().collect();
        recent.sort_unstable();
        recent.dedup();
        let rest = (!parts.whole).then_some((open.span.end, open.span.after));
        Some(Covered { parts: parts.written.iter().filter(within).cloned().collect(), recent, rest })
    }

    /// Nothing of it is believed any more: it is made again.
    pub(super) fn reset(&self, disk: &dyn Disk) {
        let mut parts = self.lock();
        for part in parts.written.drain(..) {
            // One that stays is not believed when it is read again.
            let _ = disk.remove(&part.path);
        }
        *parts = Parts::default();
    }
}

fn path_of(layout: &Layout, piece: &Piece, start: u64) -> PathBuf {
    let name = piece.path.file_name().unwrap_or_default().to_string_lossy();
    layout.index.join(format!("{name}-{start}.idx"))
}

/// The name of the file that a part belongs to.
pub(super) fn piece_of(name: &str) -> Option<&str> {
    name.strip_suffix(".idx").and_then(|rest| rest.rsplit_once('-')).map(|(piece, _)| piece)
}

/// The parts of a file that a process before wrote and that belong to it.
fn load((disk, layout): (&dyn Disk, &Layout), piece: &Piece) -> Vec<Arc<Part>> {
    let mut parts: Vec<Arc<Part>> = Vec::new();
    loop {
        let begin = Walk::new(piece, 0);
        let (start, before) =
            parts.last().map_or((begin.offset(), begin.tie), |part| (part.span.end, part.span.after));
        match Part::open((disk, layout), piece, start, before) {
            Some(part) => parts.push(Arc::new(part)),
            None => return parts,
        }
    }
}

fn write((disk, layout): (&dyn Disk, &Layout), piece: &Piece, open: &Open) -> Result<Part, Error> {
    let span = open.span;
    let mut streams: Vec<(&u64, &Vec<Place>)> = open.places.iter().collect();
    streams.sort_unstable_by_key(|(hash, _)| **hash);
    let mut body = Vec::with_capacity((streams.len() + open.count) * 16);
    let mut first: u64 = 0;
    for (hash, places) in &streams {
        body.extend_from_slice(&hash.to_le_bytes());
        // At most PART_MAX and the records of one batch.
        let count = u32::try_from(places.len()).unwrap_or(u32::MAX);
        body.extend_from_slice(&u32::try_from(first).unwrap_or(u32::MAX).to_le_bytes());
        body.extend_from_slice(&count.to_le_bytes());
        first += places.len() as u64;
    }
    for place in streams.iter().flat_map(|(_, places)| *places) {
        body.extend_from_slice(&place.seq.to_le_bytes());
        body.extend_from_slice(&place.offset.to_le_bytes());
    }
    let crc = u64::from(crc32fast::hash(&body));
    let path = path_of(layout, piece, span.start);
    let part =
        Part { path, span, streams: streams.len() as u64, places: first, crc, sound: OnceLock::from(true) };
    let mut bytes = part.header(piece);
    bytes.append(&mut body);
    disk.make_dir(&layout.index).map_err(Error::io("cannot make", &layout.index))?;
    let temporary = part.path.with_extension("tmp");
    let file = disk.open(&temporary, How::New).map_err(Error::io("cannot make", &temporary))?;
    // What a crash tears is seen by its CRC.
    write_full(&*file, &bytes, 0).map_err(Error::io("cannot write", &temporary))?;
    disk.rename(&temporary, &part.path).map_err(Error::io("cannot rename", &temporary))?;
    Ok(part)
}

impl Part {
    fn header(&self, piece: &Piece) -> Vec<u8> {
        let Span { start, end, before, after } = self.span;
        let numbers = [
            MAGIC,
            piece.header.incarnation,
            start,
            end,
            before.prev.into(),
            before.seq,
            after.prev.into(),
            after.seq,
            self.streams,
            self.places,
            self.crc,
            0,
            0,
        ];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let crc = u64::from(crc32fast::hash(&bytes));
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Opens the part that begins at a place of a file, if it is there and belongs to what the file holds.
    fn open((disk, layout): (&dyn Disk, &Layout), piece: &Piece, start: u64, before: Tie) -> Option<Part> {
        let path = path_of(layout, piece, start);
        let file = disk.open(&path, How::Read).ok()?;
        let mut bytes = [0; HEADER as usize];
        let got = read_full(&*file, &mut bytes, 0).ok()?;
        if got < bytes.len() {
            return None;
        }
        let mut n = [0u64; FIELDS];
        for (number, bytes) in n.iter_mut().zip(bytes.chunks_exact(8)) {
            *number = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        let (end, after) = (n[3], Tie { prev: u32::try_from(n[6]).ok()?, seq: n[7] });
        let part = Part {
            path,
            span: Span { start, end, before, after },
            streams: n[8],
            places: n[9],
            crc: n[10],
            sound: OnceLock::new(),
        };
        let same = part.header(piece) == bytes
            && file.len().ok()? == HEADER + (part.streams + part.places) * ENTRY
            && trailer_before(piece, end)? == after;
        same.then_some(part)
    }

    /// Where it begins in its file, and what its first batch follows from.
    pub(super) fn begin(&self) -> (u64, Tie) {
        (self.span.start, self.span.before)
    }

    /// The first seq that can stand in it.
    pub(super) fn first(&self) -> u64 {
        self.span.before.seq + 1
    }

    /// Whether its bytes are what was written.
    fn is_sound(&self, disk: &dyn Disk) -> bool {
        *self.sound.get_or_init(|| {
            let mut body = vec![0; usize::try_from((self.streams + self.places) * ENTRY).unwrap_or(0)];
            let got = disk.open(&self.path, How::Read).and_then(|file| read_full(&*file, &mut body, HEADER));
            got.is_ok_and(|got| got == body.len()) && u64::from(crc32fast::hash(&body)) == self.crc
        })
    }

    /// The places of some streams in a range of seqs, in order; none where the part cannot be believed.
    pub(super) fn find(&self, disk: &dyn Disk, hashes: &[u64], first: u64, last: u64) -> Option<Vec<Place>> {
        if !self.is_sound(disk) {
            return None;
        }
        let file = disk.open(&self.path, How::Read).ok()?;
        let mut found = Vec::new();
        for hash in hashes {
            let Some((from, count)) = self.search(&*file, *hash)? else { continue };
            let mut bytes = vec![0; usize::try_from(count * ENTRY).ok()?];
            let offset = HEADER + (self.streams + from) * ENTRY;
            if read_full(&*file, &mut bytes, offset).ok()? < bytes.len() {
                return None;
            }
            let places = entries(&bytes).map(|(seq, offset)| Place { seq, offset });
            found.extend(places.filter(|place| (first..=last).contains(&place.seq)));
        }
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// Where the places of a hash stand among all, and how many there are. Hashes are spread evenly, so the first look is
    /// nearly always the last.
    fn search(&self, file: &dyn crate::disk::File, hash: u64) -> Option<Option<(u64, u64)>> {
        let (mut low, mut high) = (0, self.streams);
        let mut guess = ((u128::from(hash) * u128::from(self.streams)) >> 64) as u64;
        while low < high {
            let from = guess.saturating_sub(AROUND).max(low);
            let to = (guess + AROUND).min(high);
            let mut bytes = vec![0; usize::try_from((to - from) * ENTRY).ok()?];
            if read_full(file, &mut bytes, HEADER + from * ENTRY).ok()? < bytes.len() {
                return None;
            }
            let window: Vec<(u64, u64)> = entries(&bytes).collect();
            match window.binary_search_by_key(&hash, |(hash, _)| *hash) {
                // The lower half is where they begin, the upper one how many there are.
                Ok(at) => {
                    let packed = window[at].1;
                    return Some(Some((packed & 0xffff_ffff, packed >> 32)));
                }
                Err(0) => high = from,
                Err(at) if at == window.len() => low = to,
                Err(_) => return Some(None),
            }
            guess = low + (high - low) / 2;
        }
        Some(None)
    }
}

fn entries(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    bytes.chunks_exact(16).map(move |entry| (number(&entry[..8]), number(&entry[8..])))
}

/// What follows on the trailer that ends at a place of a file.
fn trailer_before(piece: &Piece, end: u64) -> Option<Tie> {
    let from = end.saturating_sub(LINE_MAX as u64);
    let mut bytes = vec![0; usize::try_from(end - from).ok()?];
    if read_full(&*piece.file, &mut bytes, from).ok()? < bytes.len() {
        return None;
    }
    let line = bytes.strip_suffix(b"\n")?;
    let begin = line.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let trailer = Trailer::parse(&line[begin..])?;
    Some(Tie { prev: trailer.crc, seq: trailer.seq })
}
