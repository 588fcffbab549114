//! Records: an event in its envelope, chained to the one before it in its stream.
//!
//! ```text
//! {"type":"step:completed","stream":"run/run_…","ver":7,"at":1763245800123,"tenant":"default","by":"executor:local",
//!  …public fields…, "output_digest":"…"
//!  ,"chain":"…","seq":4711                                       ◀ the chain covers every byte before `,"chain":`
//!  ,"output_salt":"…","output":{…}}                              ◀ can be taken away without breaking it
//! ```
//!
//! `chain` is the SHA-256 of the stream's previous chain value (32 bytes, noughts for the first record)
//! and the line's own bytes before `,"chain":`. They are never written again for checking: what was
//! written is what is hashed. `seq` is the store's own counter and stands outside, so heads are equal in
//! every store.

use crate::digest::{Digest, Salt};
use crate::event::Event;
use crate::id::{Name, Names};
use crate::run::Actor;
use crate::stream::StreamId;
use crate::time::Millis;
use crate::wire::{Error, Reader, Wire, Writer, in_field};
use alloc::vec::Vec;

/// An event with its place: which stream, which version, when, whose, by whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The stream it belongs to.
    pub stream: StreamId,
    /// Its place in the stream: 1, 2, 3 …
    pub ver: u64,
    /// When it was decided.
    pub at: Millis,
    /// Whose it is.
    pub tenant: Name,
    /// Who or what caused it.
    pub by: Actor,
    /// What happened.
    pub event: Event,
    /// The chain value after it.
    pub chain: Digest,
    /// Its place in the store.
    pub seq: u64,
}

/// What is known of a record before it is written.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// The stream it belongs to.
    pub stream: &'a StreamId,
    /// Its version.
    pub ver: u64,
    /// When it was decided.
    pub at: Millis,
    /// Whose it is.
    pub tenant: &'a Name,
    /// Who or what caused it.
    pub by: &'a Actor,
    /// What happened.
    pub event: &'a Event,
}

const CHAIN: &str = "chain";

impl Draft<'_> {
    /// Appends the line (without a newline) to `out` and returns the stream's new head.
    pub fn encode(
        &self,
        head: &Digest,
        seq: u64,
        salts: &mut dyn FnMut() -> Salt,
        out: &mut Vec<u8>,
    ) -> Digest {
        let start = out.len();
        let private = self.covered(salts, out);
        let chain = Digest::of(&[&head.0, &out[start..]]);
        finish(&chain, seq, &private, out);
        chain
    }

    /// Writes what the chain covers; returns what stands after it.
    fn covered(&self, salts: &mut dyn FnMut() -> Salt, out: &mut Vec<u8>) -> Vec<u8> {
        let mut private = Vec::new();
        let mut w = Writer(out);
        w.raw(b"{\"type\":");
        match self.event {
            Event::Custom(e) => w.string(&e.kind()),
            // tidy: the tags of all other events are ours, and need no escapes.
            event => w.plain(event.tag()),
        }
        w.key("stream");
        self.stream.put(&mut w);
        w.key("ver");
        w.number(self.ver);
        w.key("at");
        w.number(self.at.0);
        w.key("tenant");
        self.tenant.put(&mut w);
        w.key("by");
        self.by.put(&mut w);
        self.event.put(&mut w, salts, &mut private);
        private
    }
}

fn finish(chain: &Digest, seq: u64, private: &[u8], out: &mut Vec<u8>) {
    let mut w = Writer(out);
    w.key(CHAIN);
    chain.put(&mut w);
    w.key("seq");
    w.number(seq);
    w.raw(private);
    w.raw(b"}");
}

/// How much a reader checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check<'a> {
    /// The form alone.
    Form,
    /// The form and the chain: the line follows from this head.
    Chain(&'a Digest),
    /// The form, the chain, and every private value against its digest.
    All(&'a Digest),
}

/// Reads many lines. It remembers the names it has read, because a log says the same ones over and over.
#[derive(Clone, Debug, Default)]
pub struct Decoder(Names);

impl Decoder {
    /// A decoder that has read nothing.
    #[must_use]
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// [`Record::decode`].
    ///
    /// # Errors
    /// As there.
    pub fn decode(&mut self, line: &str, check: Check<'_>) -> Result<Record, Error> {
        let reader = Reader::new(line, matches!(check, Check::All(_))).with_names(&mut self.0);
        Record::read(reader, line, |_, _| check.head())
    }

    /// Reads the form of a line alone, and how many bytes of it the chain covers: whoever knows the heads of all streams
    /// has the last word, with [`Record::follows`].
    ///
    /// # Errors
    /// As [`Record::decode`].
    pub fn decode_open(&mut self, line: &str) -> Result<(Record, usize), Error> {
        Record::read_open(Reader::new(line, false).with_names(&mut self.0), line.len())
    }

    /// [`Record::decode_next`].
    ///
    /// # Errors
    /// As there.
    pub fn decode_next(
        &mut self,
        line: &str,
        head: impl FnOnce(&StreamId, u64) -> Option<Digest>,
    ) -> Result<Record, Error> {
        Record::read(Reader::new(line, false).with_names(&mut self.0), line, head)
    }
}

impl Check<'_> {
    fn head(self) -> Option<Digest> {
        match self {
            Check::Form => None,
            Check::Chain(head) | Check::All(head) => Some(*head),
        }
    }
}

impl Record {
    /// Reads a line.
    ///
    /// # Errors
    /// An unknown tag, a missing, unknown or misplaced field, a wrong type; with a [`Check`] also a broken
    /// chain or a private value that is not the recorded one.
    pub fn decode(line: &str, check: Check<'_>) -> Result<Record, Error> {
        Record::read(Reader::new(line, matches!(check, Check::All(_))), line, |_, _| check.head())
    }

    /// Reads a line of a log of many streams: `head` says from which head a record of that stream and version must
    /// follow; the chain of one for which it says nothing is not checked.
    ///
    /// # Errors
    /// As [`Record::decode`].
    pub fn decode_next(
        line: &str,
        head: impl FnOnce(&StreamId, u64) -> Option<Digest>,
    ) -> Result<Record, Error> {
        Record::read(Reader::new(line, false), line, head)
    }

    /// As [`Record::decode_next`], with every private value checked against its digest: for lines that nothing else vouches
    /// for.
    ///
    /// # Errors
    /// As [`Record::decode`].
    pub fn decode_whole(
        line: &str,
        head: impl FnOnce(&StreamId, u64) -> Option<Digest>,
    ) -> Result<Record, Error> {
        Record::read(Reader::new(line, true), line, head)
    }

    fn read(
        r: Reader<'_>,
        line: &str,
        head: impl FnOnce(&StreamId, u64) -> Option<Digest>,
    ) -> Result<Record, Error> {
        let (record, covered) = Record::read_open(r, line.len())?;
        if let Some(head) = head(&record.stream, record.ver) {
            record.follows(&head, &line.as_bytes()[..covered])?;
        }
        Ok(record)
    }

    /// Whether the record follows from a head; `covered` is what of its line the chain covers.
    ///
    /// # Errors
    /// It does not.
    pub fn follows(&self, head: &Digest, covered: &[u8]) -> Result<(), Error> {
        if Digest::of(&[&head.0, covered]) == self.chain {
            Ok(())
        } else {
            Err(Error::Chain { ver: self.ver })
        }
    }

    fn read_open(mut r: Reader<'_>, len: usize) -> Result<(Record, usize), Error> {
        r.expect("{\"type\":")?;
        let tag = r.text().map_err(|e| in_field("type", e))?;
        let stream = field(&mut r, "stream")?;
        let ver = field(&mut r, "ver")?;
        let at = field(&mut r, "at")?;
        let tenant = field(&mut r, "tenant")?;
        let by = field(&mut r, "by")?;
        let mut event = Event::get(&tag, &mut r)?;
        let covered = r.at();
        if !r.skip_key(CHAIN, "") {
            return Err(Error::Unknown { found: r.peek(), tag: event.tag() });
        }
        let chain = Digest::get(&mut r).map_err(|e| in_field(CHAIN, e))?;
        let seq = field(&mut r, "seq")?;
        event.get_private(&mut r)?;
        if !r.skip("}") || r.at() != len {
            return Err(Error::Unknown { found: r.peek(), tag: event.tag() });
        }
        Ok((Record { stream, ver, at, tenant, by, event, chain, seq }, covered))
    }

    /// Writes the record again, with its chain value as it is. A line of our own comes to the same bytes; one that
    /// somebody else spelled in another way does not, so compaction and redaction work on lines, not on this.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        let Record { stream, tenant, by, event, .. } = self;
        let draft = Draft { stream, ver: self.ver, at: self.at, tenant, by, event };
        let mut line = Vec::new();
        // What was read has its salts already, so none is drawn.
        let private = draft.covered(&mut Salt::default, &mut line);
        finish(&self.chain, self.seq, &private, &mut line);
        line
    }
}

fn field<T: Wire>(r: &mut Reader<'_>, key: &'static str) -> Result<T, Error> {
    r.need_key(key, "")?;
    T::get(r).map_err(|e| in_field(key, e))
}
