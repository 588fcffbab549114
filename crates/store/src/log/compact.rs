//! Compaction: deletes records that are no longer needed, file by file.
//!
//! All files but the current segment are merged into one: the lines of the streams that stay, byte for byte, in new batches.
//! An ended stream is deleted as a whole. A stream that never ends may lose the records before a `stream:carried`, which
//! has the stream's state and names the record it follows, so chains still verify from their first record on. The new file
//! is complete and durable before it gets its name; from then on the files it replaces are ignored. So a crash at any point
//! leaves either the old files or the new one, and perhaps leftovers that the next start removes. The heads of deleted
//! streams, which seals need, are kept in `heads.rs`.
//!
//! The name of a deleted stream may be used again, and starts a new stream. So snapshots that know the old one are removed
//! first.

use super::commit::{View, lock};
use super::error::Error;
use super::frame::{Header, Kind, Trailer};
use super::heads::{self, Gathered};
use super::layout::Piece;
use super::read::{Seqs, each_batch, each_line, stream_of};
use super::{Log, commit, snapshot};
use crate::disk::{File, How, write_full};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use windlass_core::digest::Digest;
use windlass_core::event::Event;
use windlass_core::record::{Check, Record};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::wire::Reader;

/// How many bytes of lines make a batch.
const BATCH: usize = 256 << 10;

/// What a compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// How many files it replaced.
    pub files: u64,
    /// How many bytes of records went.
    pub bytes_dropped: u64,
    /// How many bytes of records stayed.
    pub bytes_kept: u64,
    /// How many records went.
    pub records_dropped: u64,
    /// How many streams went, and how many of them were runs, items, ingress keys, effect keys, and locks or semaphores.
    pub streams_dropped: u64,
    pub runs: u64,
    pub items: u64,
    pub ingress_keys: u64,
    pub effect_keys: u64,
    pub holds: u64,
    /// How many were runbooks.
    pub runbooks: u64,
    /// The highest epoch of those locks and semaphores.
    pub epochs: u64,
    /// Streams that have grown long since they were carried on. There may be more of them.
    pub long: Vec<StreamId>,
    /// A hash over the names, versions and heads of those that went.
    pub heads: Digest,
}

/// What decides about streams in a compaction.
pub trait Rule {
    /// Whether a stream stays that is not live and whose last record is of this time. Runs are asked about first.
    fn stays(&self, stream: &StreamId, last: Millis) -> bool;

    /// What stands before a `stream:carried` that is older may go.
    fn carried_before(&self) -> Millis {
        Millis(0)
    }

    /// Locks and semaphores with epochs up to this one are about to go. Whether that is on record, so that none comes again
    /// with a lower one; otherwise nothing goes.
    fn is_noted(&self, _epochs: u64) -> bool {
        false
    }

    /// Whether it is worth a copy of what stays.
    fn is_worth(&self, found: &Compacted) -> bool {
        found.bytes_dropped > 0
    }

    /// The files are about to be replaced by one without these streams. No caller may bring one of them back while `replace`
    /// runs. If one came back already, it is not called and nothing is dropped.
    ///
    /// # Errors
    /// Those of `replace`.
    fn replacing(
        &self,
        dropped: &BTreeSet<StreamId>,
        replace: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _ = dropped;
        replace()
    }
}

impl<F: Fn(&StreamId) -> bool> Rule for F {
    fn stays(&self, stream: &StreamId, _last: Millis) -> bool {
        self(stream)
    }

    /// No lock comes again under such a rule.
    fn is_noted(&self, _epochs: u64) -> bool {
        true
    }
}

/// Private values to take out: by the stream's name and the record's version, the names of the fields.
pub type Cuts = BTreeMap<String, BTreeMap<u64, BTreeSet<String>>>;

/// How many records a stream has before it is long.
const LONG: u64 = 1_000;
/// How many long streams are named at a time.
const LONG_MAX: usize = 1_000;

/// What stays of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    All,
    Nothing,
    /// The records from this version on.
    From(u64),
}

impl Stays {
    fn has(self, ver: u64) -> bool {
        match self {
            Stays::All => true,
            Stays::Nothing => false,
            Stays::From(first) => ver >= first,
        }
    }
}

/// What stays of streams, by their names.
type Verdicts = HashMap<String, Stays>;

/// What was seen of a stream.
#[derive(Default)]
struct Seen {
    records: u64,
    bytes: u64,
    last: Millis,
    /// How many records there are since it was carried on.
    since: u64,
    /// The last `stream:carried` that is old enough: its version, and how much stands before it.
    carried: Option<Base>,
    /// The highest epoch, where it is a lock or a semaphore.
    epoch: u64,
}

/// A record that a stream can go on from.
#[derive(Clone, Copy)]
struct Base {
    ver: u64,
    records: u64,
    bytes: u64,
}

/// What goes into the place of the files that are replaced.
struct Replacement<'a> {
    verdicts: &'a Verdicts,
    cuts: &'a Cuts,
    /// The streams that go wholly.
    dropped: BTreeSet<StreamId>,
    /// Whether anything goes.
    drops: bool,
}

impl Log {
    /// Drops the records of streams that are not live, have none in the file that is written, and that the rule says no to.
    /// Commits and reads go on meanwhile. Where nothing would go, nothing is written.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Full`], or what the system says; the log is as it was then.
    pub fn compact(&self, rule: &dyn Rule) -> Result<Compacted, Error> {
        let _one_at_a_time = lock(&self.compacting);
        // Streams that the caller had forgotten count as forgotten. A log that takes nothing (it is full) goes by what it knows.
        let _ = self.commit_and_wait(Vec::new());
        let view = self.shared.view();
        let (verdicts, dropped, mut done) = self.judge(&view, rule)?;
        if done.bytes_dropped == 0 || !rule.is_worth(&done) {
            return Ok(Compacted { long: done.long, ..Compacted::default() });
        }
        if done.holds > 0 && !rule.is_noted(done.epochs) {
            return Ok(Compacted::default());
        }
        done.files = view.ended.len() as u64;
        let new = Replacement { verdicts: &verdicts, cuts: &Cuts::new(), dropped, drops: true };
        Ok(match self.replace(&view, &new, rule, true)? {
            Some(heads) => Compacted { heads, ..done },
            None => Compacted::default(),
        })
    }

    /// Takes private values out of the records; their digests stay, and with them the chains. Files that held them are
    /// removed and not used again. It ends the file that is written first, so that nothing escapes it.
    ///
    /// # Errors
    /// As for any compaction; the log is as it was then.
    pub fn redact(&self, cuts: &Cuts) -> Result<(), Error> {
        let _one_at_a_time = lock(&self.compacting);
        self.space.discard()?;
        self.roll()?;
        let view = self.shared.view();
        let new = Replacement { verdicts: &Verdicts::new(), cuts, dropped: BTreeSet::new(), drops: false };
        self.replace(&view, &new, &|_: &StreamId| true, false).map(|_| ())
    }

    /// Puts one file into the place of all that are ended, unless the rule has second thoughts; returns a hash over the
    /// heads of what went.
    fn replace(
        &self,
        view: &Arc<View>,
        new: &Replacement<'_>,
        rule: &dyn Rule,
        recycle: bool,
    ) -> Result<Option<Digest>, Error> {
        let path = self.layout.carried(view.last.before());
        let (temporary, heads) = (path.with_extension("tmp"), heads::path(&self.layout));
        let heads_temporary = heads.with_extension("tmp");
        let written = self.carry(view, new, &temporary, &heads_temporary);
        let mut replaced = false;
        let done = written.and_then(|(carried, digest)| {
            rule.replacing(&new.dropped, &mut || {
                let _turn = lock(&self.dropping.turn);
                if new.drops {
                    // One that is being written may know them too.
                    self.dropping.count.fetch_add(1, Ordering::AcqRel);
                    snapshot::remove(&*self.disk, &self.layout)?;
                    self.disk.rename(&heads_temporary, &heads).map_err(Error::io("cannot rename", &heads))?;
                }
                self.disk.rename(&temporary, &path).map_err(Error::io("cannot rename", &temporary))?;
                self.disk.sync_dir(&self.layout.log).map_err(Error::sync(&self.layout.log))?;
                let (count, carried) = (view.ended.len(), Arc::new(carried.clone()));
                self.shared.change_view(|view| drop(view.ended.splice(..count, [carried])));
                replaced = true;
                Ok(())
            })?;
            Ok(digest)
        });
        if !replaced {
            // If they stay, the next start removes them.
            let _ = self.disk.remove(&temporary);
            let _ = self.disk.remove(&heads_temporary);
        }
        let digest = done?;
        if !replaced {
            return Ok(None);
        }
        self.drop_files(view, &path, recycle)?;
        Ok(Some(digest))
    }

    /// Ends the file that is written, so that compaction can take it too.
    ///
    /// # Errors
    /// As for a batch.
    pub fn roll(&self) -> Result<(), Error> {
        self.shared.roll()
    }

    /// Says of every stream whether it stays, and counts.
    fn judge(
        &self,
        view: &View,
        rule: &dyn Rule,
    ) -> Result<(Verdicts, BTreeSet<StreamId>, Compacted), Error> {
        let mut verdicts = Verdicts::new();
        let boundary = view.last.before();
        let _ = each_batch(view, Seqs { first: boundary + 1, last: u64::MAX }, &mut |_, _, lines| {
            each_line(lines, &mut |line| {
                if let Some(stream) = stream_of(line).filter(|stream| !verdicts.contains_key(&**stream)) {
                    verdicts.insert(stream.into_owned(), Stays::All);
                }
                Ok(ControlFlow::Continue(()))
            })
        })?;
        let before = rule.carried_before();
        let mut all: HashMap<String, Seen> = HashMap::new();
        self.each_ended(view, &mut |piece, offset, line| {
            let head = Start::of(line).ok_or_else(|| piece.corrupt(offset, "a line is no record"))?;
            if !all.contains_key(&*head.stream) {
                all.insert(head.stream.clone().into_owned(), Seen::default());
            }
            let Some(seen) = all.get_mut(&*head.stream) else { return Ok(()) };
            if head.tag == "stream:carried" {
                seen.since = 0;
                if head.at < before {
                    seen.carried = Some(Base { ver: head.ver, records: seen.records, bytes: seen.bytes });
                }
            }
            seen.records += 1;
            seen.since += 1;
            seen.bytes += line.len() as u64 + 1;
            seen.last = head.at;
            seen.epoch = seen.epoch.max(head.epoch(line));
            Ok(())
        })?;
        let mut ids = Vec::with_capacity(all.len());
        for (name, seen) in &all {
            let id = StreamId::parse(name).map_err(|error| {
                view.last.corrupt(0, format!("a record before it has no stream: {error}"))
            })?;
            ids.push((id, name, seen));
        }
        // Whether a run stays decides about its effects.
        ids.sort_by_key(|(id, ..)| !matches!(id, StreamId::Run(_)));
        let (mut dropped, mut done) = (BTreeSet::new(), Compacted::default());
        for (id, name, seen) in ids {
            let known = verdicts.contains_key(name) || self.shared.encoder().is_live(&id);
            let mut stays = Stays::All;
            if known || rule.stays(&id, seen.last) {
                if seen.since > LONG && id.goes_on() && done.long.len() < LONG_MAX {
                    done.long.push(id.clone());
                }
                let gone = seen.carried.filter(|carried| carried.records > 0);
                if let Some(carried) = gone {
                    stays = Stays::From(carried.ver);
                    done.bytes_dropped += carried.bytes;
                    done.records_dropped += carried.records;
                }
                done.bytes_kept += seen.bytes - gone.map_or(0, |carried| carried.bytes);
            } else {
                stays = Stays::Nothing;
                done.bytes_dropped += seen.bytes;
                done.records_dropped += seen.records;
                done.streams_dropped += 1;
                match &id {
                    StreamId::Run(_) => done.runs += 1,
                    StreamId::Item(_) => done.items += 1,
                    StreamId::Trigger(_) => done.ingress_keys += 1,
                    StreamId::Effect(_) => done.effect_keys += 1,
                    StreamId::Runbook(_) => done.runbooks += 1,
                    StreamId::Lock(_) | StreamId::Semaphore(_) => {
                        done.holds += 1;
                        done.epochs = done.epochs.max(seen.epoch);
                    }
                    // tidy: the others are counted together.
                    _ => {}
                }
                dropped.insert(id);
            }
            verdicts.insert(name.clone(), stays);
        }
        Ok((verdicts, dropped, done))
    }

    /// Every line of the files before the last.
    fn each_ended(
        &self,
        view: &View,
        visit: &mut dyn FnMut(&Piece, u64, &str) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let seqs = Seqs { first: 0, last: view.last.before() };
        let _ = each_batch(view, seqs, &mut |piece, offset, lines| {
            each_line(lines, &mut |line| visit(piece, offset, line).map(ControlFlow::Continue))
        })?;
        Ok(())
    }

    /// Writes what stays, and what seals cover of what goes. Neither counts yet.
    fn carry(
        &self,
        view: &View,
        new: &Replacement<'_>,
        temporary: &Path,
        heads: &Path,
    ) -> Result<(Piece, Digest), Error> {
        let through = view.last.before();
        let header = Header {
            kind: Kind::Carried,
            incarnation: view.last.header.incarnation,
            first: 1,
            through,
            prev: view.last.header.prev,
        };
        let path = self.layout.carried(through);
        let mut gathered = None;
        if new.drops {
            gathered = Some(Gathered::new(self.seals()?, through));
        }
        let file = self.write_carried(view, new, header, temporary, &mut gathered)?;
        let mut digest = Digest::default();
        if let Some(gathered) = gathered {
            digest = gathered.digest();
            gathered.write(&*self.disk, &self.layout, heads)?;
        }
        let piece = Piece {
            file_name: self.layout.short(&path),
            path,
            file,
            header,
            start: header.to_line().len() as u64,
            index: Arc::default(),
        };
        Ok((piece, digest))
    }

    /// Up to where each seal goes, in order.
    fn seals(&self) -> Result<Vec<u64>, Error> {
        let mut seals = Vec::new();
        self.scan(&[StreamId::System], Seqs::ALL, &mut |record, _| {
            if let Event::SealCreated(e) = &record.event {
                seals.push(e.through.unwrap_or_default());
            }
            ControlFlow::Continue(())
        })?;
        Ok(seals)
    }

    fn write_carried(
        &self,
        view: &View,
        new: &Replacement<'_>,
        header: Header,
        path: &Path,
        gathered: &mut Option<Gathered>,
    ) -> Result<Arc<dyn File>, Error> {
        let file = self.disk.open(path, How::New).map_err(Error::io("cannot make", path))?;
        let mut out = Carried {
            file: &*file,
            path,
            header,
            bytes: header.to_line(),
            start: 0,
            count: 0,
            offset: 0,
            prev: 0,
        };
        out.start = out.bytes.len();
        self.each_ended(view, &mut |piece, offset, line| {
            let unreadable = |error| piece.corrupt(offset, format!("a record is not readable: {error}"));
            let start = Start::of(line);
            let stays = start.as_ref().is_none_or(|start| {
                new.verdicts.get(&*start.stream).is_none_or(|stays| stays.has(start.ver))
            });
            if let Some(gathered) = gathered {
                gathered.see(Record::decode(line, Check::Form).map_err(unreadable)?, stays);
            }
            if !stays {
                return Ok(());
            }
            match start.and_then(|start| new.cuts.get(&*start.stream)) {
                None => out.line(line),
                Some(cuts) => out.line(&cut(line, cuts).map_err(unreadable)?),
            }
        })?;
        out.flush(None)?;
        file.sync_data().map_err(Error::sync(path))?;
        Ok(file)
    }

    /// Removes the files that were replaced, or keeps their room. A file that a reader may be in is never written again.
    /// A carried file that stands for the same records has its successor's name, and is gone already.
    fn drop_files(&self, view: &Arc<View>, carried: &Path, recycle: bool) -> Result<(), Error> {
        let alone = Arc::strong_count(view) == 1;
        for piece in view.ended.iter().filter(|piece| piece.path != carried) {
            let len = piece.file.len().map_err(Error::io("cannot read", &piece.path))?;
            let unread = alone && Arc::strong_count(piece) == 1 && Arc::strong_count(&piece.file) == 1;
            if recycle && unread && piece.header.kind == Kind::Segment {
                self.space.recycle(&piece.path, len)?;
            } else {
                self.disk.remove(&piece.path).map_err(Error::io("cannot remove", &piece.path))?;
            }
        }
        self.disk.sync_dir(&self.layout.log).map_err(Error::sync(&self.layout.log))
    }
}

/// How a line begins, found without decoding it.
struct Start<'a> {
    tag: Cow<'a, str>,
    stream: Cow<'a, str>,
    ver: u64,
    at: Millis,
}

impl Start<'_> {
    fn of(line: &str) -> Option<Start<'_>> {
        let mut r = Reader::new(line, false);
        r.expect("{\"type\":").ok()?;
        let tag = r.text().ok()?;
        r.need_key("stream", "").ok()?;
        let stream = r.text().ok()?;
        r.need_key("ver", "").ok()?;
        let ver = r.number().ok()?;
        r.need_key("at", "").ok()?;
        Some(Start { tag, stream, ver, at: Millis(r.number().ok()?) })
    }

    /// The highest epoch that the line speaks of, where it is one of a lock or a semaphore.
    fn epoch(&self, line: &str) -> u64 {
        if !self.stream.starts_with("lock/") && !self.stream.starts_with("semaphore/") {
            return 0;
        }
        // No text in a line can look like the key, because a quote within a text has a backslash before it. What holders say
        // about themselves stands behind the chain.
        let public = line.split(",\"chain\":").next().unwrap_or_default();
        let numbers = public.split("\"epoch\":").skip(1);
        let number = |text: &str| {
            text.bytes()
                .take_while(u8::is_ascii_digit)
                .fold(0_u64, |n, digit| n.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
        };
        numbers.map(number).max().unwrap_or(0)
    }
}

/// A line without the values that are to go.
fn cut(line: &str, cuts: &BTreeMap<u64, BTreeSet<String>>) -> Result<String, windlass_core::wire::Error> {
    let ver = Record::decode(line, Check::Form)?.ver;
    match cuts.get(&ver) {
        None => Ok(line.to_owned()),
        Some(fields) => windlass_core::redact::redact(line, &|name| fields.contains(name)),
    }
}

/// A carried file that is being written.
struct Carried<'a> {
    file: &'a dyn File,
    path: &'a Path,
    header: Header,
    bytes: Vec<u8>,
    /// Where the lines of the batch begin in the bytes.
    start: usize,
    count: u64,
    offset: u64,
    prev: u32,
}

impl Carried<'_> {
    fn line(&mut self, line: &str) -> Result<(), Error> {
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.push(b'\n');
        self.count += 1;
        if self.bytes.len() - self.start >= BATCH { self.flush(Some(line)) } else { Ok(()) }
    }

    /// Ends the batch; `last` is its last line, or the file's last batch ends with it.
    fn flush(&mut self, last: Option<&str>) -> Result<(), Error> {
        let seq = match last {
            None => self.header.through,
            Some(line) => {
                Record::decode(line, Check::Form)
                    .map_err(|error| Error::Corrupt {
                        file: self.path.display().to_string(),
                        offset: self.offset,
                        what: format!("a record is not readable: {error}"),
                    })?
                    .seq
            }
        };
        let trailer = Trailer {
            count: self.count,
            bytes: 0,
            seq,
            durable_through: self.header.through,
            incarnation: self.header.incarnation,
            prev: self.prev,
            crc: 0,
        };
        self.prev = trailer.append(self.start, &mut self.bytes).crc;
        write_full(self.file, &self.bytes, self.offset).map_err(Error::io("cannot write", self.path))?;
        self.offset += self.bytes.len() as u64;
        self.bytes.clear();
        (self.start, self.count) = (0, 0);
        Ok(())
    }
}

impl commit::Shared {
    fn roll(&self) -> Result<(), Error> {
        self.with_tail(|tail| tail.roll())
    }
}
