//! The lines of the log that are no records: the header of a file and the trailer of a batch.
//!
//! ```text
//! {"windlass_log":1,"kind":"segment","incarnation":"…","first":1,"through":0,"prev":"00000000","crc":"…"}
//! {"type":…}                                                       ◀ a record
//! {"type":…}
//! {"trailer":2,"bytes":740,"seq":2,"durable_through":0,"incarnation":"…","prev":"00000000","crc":"…"}
//! ```
//!
//! A trailer's CRC covers the bytes of its batch and its own line before `,"crc":`; `prev` is the CRC of the trailer
//! before it, so batches of another time or place do not fit.

use windlass_core::wire::{Error as WireError, Reader, Writer};

/// The newest format that is read, and the one that is written.
pub(super) const FORMAT: u64 = 1;

/// How a trailer begins.
pub(super) const TRAILER: &[u8] = b"{\"trailer\":";

/// How a header begins.
const HEADER: &str = "{\"windlass_log\":";

/// No header and no trailer is longer.
pub(super) const LINE_MAX: usize = 320;

/// What a file of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Written by commits: every seq, one after the other.
    Segment,
    /// Written by compaction: what is kept of the segments before.
    Carried,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Segment => "segment",
            Kind::Carried => "carried",
        }
    }
}

/// The first line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Which store it belongs to.
    pub(super) incarnation: u64,
    /// The first seq that stands in it.
    pub(super) first: u64,
    /// The last seq that it stands for, if it was carried: its segment's successor begins after that.
    pub(super) through: u64,
    /// The CRC of the trailer before: of the segment before this one; or, if it was carried, of the last that it replaces.
    pub(super) prev: u32,
}

/// The last line of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    /// How many records the batch has.
    pub(super) count: u64,
    /// How many bytes they have.
    pub(super) bytes: u64,
    /// The seq of the last record up to here.
    pub(super) seq: u64,
    /// The highest seq that was known to be durable when this was written.
    pub(super) durable_through: u64,
    pub(super) incarnation: u64,
    pub(super) prev: u32,
    pub(super) crc: u32,
}

/// Why a header is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// A newer version wrote it.
    Newer(u64),
    /// It is damaged.
    Damaged,
}

fn hex32(w: &mut Writer<'_>, key: &str, value: u32) {
    w.key(key);
    w.plain(&format!("{value:08x}"));
}

fn hex64(w: &mut Writer<'_>, key: &str, value: u64) {
    w.key(key);
    w.plain(&format!("{value:016x}"));
}

fn number(w: &mut Writer<'_>, key: &str, value: u64) {
    w.key(key);
    w.number(value);
}

fn read_hex(r: &mut Reader<'_>, key: &'static str, digits: usize) -> Result<u64, WireError> {
    r.need_key(key, "")?;
    let text = r.text()?;
    let plain = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let value = u64::from_str_radix(&text, 16).ok().filter(|_| plain);
    value.ok_or(WireError::Type { expected: "lower-case hexadecimal" })
}

/// Eight digits are 32 bits.
fn read_hex32(r: &mut Reader<'_>, key: &'static str) -> Result<u32, WireError> {
    read_hex(r, key, 8).map(|value| value as u32)
}

fn read_number(r: &mut Reader<'_>, key: &'static str) -> Result<u64, WireError> {
    r.need_key(key, "")?;
    r.number()
}

/// Ends a line with the CRC of it and of what it stands for; returns that.
fn seal(out: &mut Vec<u8>, line: usize, covered: Option<crc32fast::Hasher>) -> u32 {
    let mut hasher = covered.unwrap_or_default();
    hasher.update(&out[line..]);
    let crc = hasher.finalize();
    let mut w = Writer(out);
    hex32(&mut w, "crc", crc);
    w.raw(b"}\n");
    crc
}

impl Header {
    /// The line, with its newline.
    pub(super) fn to_line(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LINE_MAX);
        let mut w = Writer(&mut out);
        w.raw(HEADER.as_bytes());
        w.number(FORMAT);
        w.key("kind");
        w.plain(self.kind.word());
        hex64(&mut w, "incarnation", self.incarnation);
        number(&mut w, "first", self.first);
        number(&mut w, "through", self.through);
        hex32(&mut w, "prev", self.prev);
        seal(&mut out, 0, None);
        out
    }

    /// Reads the first line of `bytes`; returns it and its length.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Header, usize), HeaderError> {
        let window = &bytes[..bytes.len().min(LINE_MAX)];
        let end = window.iter().position(|b| *b == b'\n').ok_or(HeaderError::Damaged)?;
        let line = std::str::from_utf8(&window[..end]).map_err(|_| HeaderError::Damaged)?;
        let mut r = Reader::new(line, false);
        r.expect(HEADER).map_err(|_| HeaderError::Damaged)?;
        let format = r.number().map_err(|_| HeaderError::Damaged)?;
        if format > FORMAT {
            return Err(HeaderError::Newer(format));
        }
        let header = Header::read(&mut r).map_err(|_| HeaderError::Damaged)?;
        // The line is what this version writes, or it is not sound.
        if header.to_line() == window[..=end] { Ok((header, end + 1)) } else { Err(HeaderError::Damaged) }
    }

    fn read(r: &mut Reader<'_>) -> Result<Header, WireError> {
        r.need_key("kind", "")?;
        let kind = match &*r.text()? {
            "segment" => Kind::Segment,
            "carried" => Kind::Carried,
            _ => return Err(WireError::Type { expected: "a kind of file" }),
        };
        Ok(Header {
            kind,
            incarnation: read_hex(r, "incarnation", 16)?,
            first: read_number(r, "first")?,
            through: read_number(r, "through")?,
            prev: read_hex32(r, "prev")?,
        })
    }
}

impl Trailer {
    /// Appends the trailer of the batch that `out` holds from `start` on, and returns it with its CRC.
    pub(super) fn append(mut self, start: usize, out: &mut Vec<u8>) -> Trailer {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&out[start..]);
        let line = out.len();
        self.bytes = (line - start) as u64;
        let mut w = Writer(out);
        w.raw(TRAILER);
        w.number(self.count);
        number(&mut w, "bytes", self.bytes);
        number(&mut w, "seq", self.seq);
        number(&mut w, "durable_through", self.durable_through);
        hex64(&mut w, "incarnation", self.incarnation);
        hex32(&mut w, "prev", self.prev);
        self.crc = seal(out, line, Some(hasher));
        self
    }

    /// Reads a trailer's line (without its newline). Whether its CRC is right, [`Trailer::covers`] says.
    pub(super) fn parse(line: &[u8]) -> Option<Trailer> {
        let line = std::str::from_utf8(line).ok().filter(|line| line.len() < LINE_MAX)?;
        let mut r = Reader::new(line, false);
        let trailer = Trailer::read(&mut r).ok()?;
        (r.skip("}") && r.at() == line.len()).then_some(trailer)
    }

    fn read(r: &mut Reader<'_>) -> Result<Trailer, WireError> {
        r.expect("{\"trailer\":")?;
        Ok(Trailer {
            count: r.number()?,
            bytes: read_number(r, "bytes")?,
            seq: read_number(r, "seq")?,
            durable_through: read_number(r, "durable_through")?,
            incarnation: read_hex(r, "incarnation", 16)?,
            prev: read_hex32(r, "prev")?,
            crc: read_hex32(r, "crc")?,
        })
    }

    /// Whether the CRC is that of these bytes and this line.
    pub(super) fn covers(&self, batch: &[u8], line: &[u8]) -> bool {
        // What the CRC covers of the line is what stands before `,"crc":"12345678"}`.
        let Some(own) = line.len().checked_sub(18) else { return false };
        if self.bytes != batch.len() as u64 {
            return false;
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(batch);
        hasher.update(&line[..own]);
        hasher.finalize() == self.crc
    }
}

/// Where the first newline stands.
pub(super) fn newline(bytes: &[u8]) -> Option<usize> {
    memchr::memchr(b'\n', bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { kind: Kind::Segment, incarnation: 0xfeed, first: 7, through: 0, prev: 0xabcd }
    }

    fn trailer() -> Trailer {
        Trailer { count: 2, bytes: 0, seq: 9, durable_through: 7, incarnation: 0xfeed, prev: 1, crc: 0 }
    }

    #[test]
    fn a_header_reads_back_and_no_bit_of_it_can_change() {
        let line = header().to_line();
        assert_eq!(Header::parse(&line), Ok((header(), line.len())));
        for at in 0..line.len() {
            for bit in 0..8 {
                let mut bad = line.clone();
                bad[at] ^= 1 << bit;
                assert!(Header::parse(&bad).is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let line = String::from_utf8(header().to_line()).unwrap().replace("log\":1", "log\":2");
        assert_eq!(Header::parse(line.as_bytes()), Err(HeaderError::Newer(2)));
        assert_eq!(Header::parse(b""), Err(HeaderError::Damaged));
        assert_eq!(Header::parse(&[0; 512]), Err(HeaderError::Damaged));
    }

    #[test]
    fn a_trailer_covers_its_batch_and_itself() {
        let mut out = b"one\ntwo\n".to_vec();
        let written = trailer().append(0, &mut out);
        let line = out[8..out.len() - 1].to_vec();
        let read = Trailer::parse(&line).unwrap();
        assert_eq!(read, written);
        assert!(read.covers(b"one\ntwo\n", &line) && !read.covers(b"one\ntwx\n", &line));
        for at in 0..line.len() {
            let mut bad = line.clone();
            bad[at] ^= 1;
            let holds = Trailer::parse(&bad).is_some_and(|t| t.covers(b"one\ntwo\n", &bad));
            assert!(!holds, "byte {at}");
        }
    }

    #[test]
    fn the_longest_lines_stay_below_their_bound() {
        let all = Trailer {
            count: u64::MAX,
            bytes: u64::MAX,
            seq: u64::MAX,
            durable_through: u64::MAX,
            incarnation: u64::MAX,
            prev: u32::MAX,
            crc: 0,
        };
        let mut out = Vec::new();
        all.append(0, &mut out);
        assert!(out.len() < LINE_MAX, "{}", out.len());
    }
}
