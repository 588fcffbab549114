//! Heads of deleted streams, so that proofs under a seal still work after other streams under it were deleted.
//!
//! A seal is a Merkle root over the last record of each stream since the seal before. A proof of one of them needs the
//! heads of all. Compaction therefore keeps the heads of the streams that it deletes, as long as anything under the same
//! seal may still have to be proved. They reveal no content, and a wrong one fails the proof.
//!
//! ```text
//! log/heads.jsonl   {"seq":4711,"stream":"run/run_…","ver":7,"head":"…"}   ◀ in the order of their seqs
//! ```

use super::error::Error;
use super::frame::newline;
use super::layout::Layout;
use super::read::Seqs;
use crate::disk::{Disk, File, How, read_full, write_full};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use windlass_core::audit::Head;
use windlass_core::digest::Digest;
use windlass_core::event::Event;
use windlass_core::record::Record;
use windlass_core::stream::StreamId;
use windlass_core::wire::{Reader, Writer};

/// How much is read at a time.
const CHUNK: usize = 1 << 20;
/// Where so few bytes are left to search, they are read.
const NEAR: u64 = 64 << 10;
/// No line is longer.
const LINE: usize = 4 << 10;

/// The last record that a dropped stream had under a seal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Where it stood.
    pub seq: u64,
    pub stream: StreamId,
    /// Its version and chain value.
    pub head: Head,
}

impl Gone {
    fn append(&self, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        w.raw(b"{\"seq\":");
        w.number(self.seq);
        w.key("stream");
        w.string(&self.stream.to_string());
        w.key("ver");
        w.number(self.head.ver);
        w.key("head");
        w.plain(&self.head.head.to_string());
        w.raw(b"}\n");
    }

    fn parse(line: &str) -> Option<Gone> {
        let mut r = Reader::new(line, false);
        r.expect("{\"seq\":").ok()?;
        let seq = r.number().ok()?;
        r.need_key("stream", "").ok()?;
        let stream = StreamId::parse(&r.text().ok()?).ok()?;
        r.need_key("ver", "").ok()?;
        let ver = r.number().ok()?;
        r.need_key("head", "").ok()?;
        let head = Digest::parse(&r.text().ok()?)?;
        Some(Gone { seq, stream, head: Head { ver, head } })
    }
}

/// Where the heads are.
pub(super) fn path(layout: &Layout) -> PathBuf {
    layout.log.join("heads.jsonl")
}

/// Hands over the heads of a range, in their order.
pub(super) fn read(
    disk: &dyn Disk,
    layout: &Layout,
    seqs: Seqs,
    visit: &mut dyn FnMut(Gone),
) -> Result<(), Error> {
    let path = path(layout);
    let file = match disk.open(&path, How::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("cannot open", &path)(error)),
    };
    let mut at = find(&*file, &path, seqs.first)?;
    let mut bytes = Vec::new();
    loop {
        let have = bytes.len();
        bytes.resize(have + CHUNK, 0);
        let got = read_full(&*file, &mut bytes[have..], at).map_err(Error::io("cannot read", &path))?;
        bytes.truncate(have + got);
        at += got as u64;
        let mut from = 0;
        while let Some(n) = newline(&bytes[from..]) {
            // A line that is not readable opens no seal, and is no reason to lose the others.
            let line = std::str::from_utf8(&bytes[from..from + n]).unwrap_or_default();
            from += n + 1;
            match Gone::parse(line) {
                Some(gone) if gone.seq > seqs.last => return Ok(()),
                Some(gone) if gone.seq >= seqs.first => visit(gone),
                Some(_) | None => {}
            }
        }
        bytes.drain(..from);
        if got == 0 {
            return Ok(());
        }
    }
}

/// Where a line begins before which all lines have lower seqs.
fn find(file: &dyn File, path: &Path, first: u64) -> Result<u64, Error> {
    let (mut low, mut high) = (0, file.len().map_err(Error::io("cannot read", path))?);
    let mut bytes = vec![0; LINE * 2];
    while high - low > NEAR {
        let middle = low + (high - low) / 2;
        let got = read_full(file, &mut bytes, middle).map_err(Error::io("cannot read", path))?;
        let line = newline(&bytes[..got]).map(|n| n + 1).and_then(|start| {
            let n = newline(&bytes[start..got])?;
            let gone = Gone::parse(std::str::from_utf8(&bytes[start..start + n]).ok()?)?;
            Some((gone.seq, middle + start as u64))
        });
        match line {
            Some((seq, start)) if seq < first => low = start,
            Some(_) => high = middle,
            // What is not readable is walked through.
            None => return Ok(low),
        }
    }
    Ok(low)
}

/// What a compaction learns of heads while it goes through the lines of the log, in their order.
pub(super) struct Gathered {
    /// The last record that each seal covers.
    sealed: Vec<u64>,
    dropped: BTreeMap<(usize, StreamId), Gone>,
    /// Under which seal the last record of each stream stands that stays.
    last: BTreeMap<StreamId, usize>,
    /// Seals that may have to be opened.
    needed: BTreeSet<usize>,
}

impl Gathered {
    /// `sealed` says up to where each seal goes, in order; what stands after `boundary` stays.
    pub(super) fn new(sealed: Vec<u64>, boundary: u64) -> Gathered {
        let mut gathered =
            Gathered { sealed, dropped: BTreeMap::new(), last: BTreeMap::new(), needed: BTreeSet::new() };
        let next = gathered.seal_of(boundary + 1);
        gathered.needed.insert(next);
        gathered
    }

    /// Which seal covers a record; one after the last where none does yet.
    fn seal_of(&self, seq: u64) -> usize {
        self.sealed.partition_point(|through| *through < seq)
    }

    /// A line of the log.
    pub(super) fn see(&mut self, record: Record, stays: bool) {
        // A seal's own record is no reason for a seal.
        if matches!(record.event, Event::SealCreated(_)) {
            return;
        }
        let seal = self.seal_of(record.seq);
        let head = Head { ver: record.ver, head: record.chain };
        match (stays, &record.stream) {
            (false, _) => {
                let gone = Gone { seq: record.seq, stream: record.stream.clone(), head };
                self.dropped.insert((seal, record.stream), gone);
            }
            // Of a period, every record of its runs has to be proved.
            (true, StreamId::Run(_)) => drop(self.needed.insert(seal)),
            (true, _) => drop(self.last.insert(record.stream, seal)),
        }
    }

    /// A hash over the last head of each stream that was dropped.
    pub(super) fn digest(&self) -> Digest {
        let mut last: BTreeMap<&StreamId, &Gone> = BTreeMap::new();
        for ((_, stream), gone) in &self.dropped {
            last.insert(stream, gone);
        }
        let mut bytes = Vec::new();
        last.values().for_each(|gone| gone.append(&mut bytes));
        Digest::of(&[&bytes])
    }

    /// Writes the heads of what was dropped now and before, as far as they may be needed, under a name that does not count
    /// yet; says whether there are any.
    pub(super) fn write(mut self, disk: &dyn Disk, layout: &Layout, to: &Path) -> Result<(), Error> {
        let needed = std::mem::take(&mut self.last).into_values();
        self.needed.extend(needed);
        let mut kept: BTreeMap<u64, Gone> = BTreeMap::new();
        read(disk, layout, Seqs::ALL, &mut |gone| {
            if self.needed.contains(&self.seal_of(gone.seq)) {
                kept.insert(gone.seq, gone);
            }
        })?;
        for ((seal, _), gone) in std::mem::take(&mut self.dropped) {
            if self.needed.contains(&seal) {
                kept.insert(gone.seq, gone);
            }
        }
        let file = disk.open(to, How::New).map_err(Error::io("cannot make", to))?;
        let (mut bytes, mut at) = (Vec::new(), 0);
        for gone in kept.values() {
            gone.append(&mut bytes);
            if bytes.len() >= CHUNK {
                write_full(&*file, &bytes, at).map_err(Error::io("cannot write", to))?;
                at += bytes.len() as u64;
                bytes.clear();
            }
        }
        write_full(&*file, &bytes, at).map_err(Error::io("cannot write", to))?;
        file.sync_data().map_err(Error::sync(to))
    }
}
