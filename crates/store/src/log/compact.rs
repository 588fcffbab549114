//! Compaction: what nobody needs any more leaves the disk, file by file.
//!
//! All files but the one that is written become one: the lines of the streams that stay, byte for byte, in batches of
//! their own. A stream stays wholly or goes wholly, so chains still hold from their first record on. The new file is
//! finished and durable before it gets its name, and once it has it, what it replaces does not count any more: a crash at
//! any point leaves either the old files or the new one, and perhaps something that the next start removes.

use super::commit::{View, lock};
use super::error::Error;
use super::frame::{Header, Kind, Trailer};
use super::layout::Piece;
use super::read::{Seqs, each_batch, each_line, stream_of};
use super::{Log, commit};
use crate::disk::{File, How, write_full};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use windlass_core::record::{Check, Record};
use windlass_core::stream::StreamId;

/// How many bytes of lines make a batch.
const BATCH: usize = 256 << 10;

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// How many files it replaced.
    pub files: u64,
    /// How many bytes of records went.
    pub bytes_dropped: u64,
    /// How many bytes of records stayed.
    pub bytes_kept: u64,
    /// How many streams went.
    pub streams_dropped: u64,
}

/// Private values to take out: by the stream's name and the record's version, the names of the fields.
pub type Cuts = BTreeMap<String, BTreeMap<u64, BTreeSet<String>>>;

/// Which streams stay, by their names; each is asked for once.
type Verdicts = HashMap<String, bool>;

impl Log {
    /// Drops the records of streams that are not live, have none in the file that is written, and that `keep` says no to.
    /// Commits and reads go on meanwhile. Where nothing would go, nothing is written. `keep` must not say no to a stream
    /// that somebody is about to remember.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Full`], or what the system says; the log is as it was then.
    pub fn compact(&self, keep: &dyn Fn(&StreamId) -> bool) -> Result<Compacted, Error> {
        let _one_at_a_time = lock(&self.compacting);
        let view = self.shared.view();
        let (verdicts, mut done) = self.judge(&view, keep)?;
        if done.bytes_dropped == 0 {
            return Ok(Compacted::default());
        }
        done.files = view.ended.len() as u64;
        self.replace(&view, &verdicts, &Cuts::new(), true)?;
        Ok(done)
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
        self.replace(&view, &Verdicts::new(), cuts, false)
    }

    /// Puts one file into the place of all that are ended.
    fn replace(
        &self,
        view: &Arc<View>,
        verdicts: &Verdicts,
        cuts: &Cuts,
        recycle: bool,
    ) -> Result<(), Error> {
        let carried = self.carry(view, verdicts, cuts)?;
        let path = carried.path.clone();
        let count = view.ended.len();
        self.shared.change_view(|view| {
            view.ended.splice(..count, [Arc::new(carried)]);
        });
        self.drop_files(view, &path, recycle)
    }

    /// Ends the file that is written, so that compaction can take it too.
    ///
    /// # Errors
    /// As for a batch.
    pub fn roll(&self) -> Result<(), Error> {
        self.shared.roll()
    }

    /// Says of every stream whether it stays, and counts.
    fn judge(&self, view: &View, keep: &dyn Fn(&StreamId) -> bool) -> Result<(Verdicts, Compacted), Error> {
        let mut verdicts = Verdicts::new();
        let boundary = view.last.before();
        let _ = each_batch(view, Seqs { first: boundary + 1, last: u64::MAX }, &mut |_, _, lines| {
            each_line(lines, &mut |line| {
                if let Some(stream) = stream_of(line).filter(|stream| !verdicts.contains_key(&**stream)) {
                    verdicts.insert(stream.into_owned(), true);
                }
                Ok(ControlFlow::Continue(()))
            })
        })?;
        let mut done = Compacted::default();
        self.each_ended(view, &mut |piece, offset, line| {
            let stream = stream_of(line).ok_or_else(|| piece.corrupt(offset, "a line is no record"))?;
            let stays = match verdicts.get(&*stream) {
                Some(stays) => *stays,
                None => {
                    let id = StreamId::parse(&stream)
                        .map_err(|error| piece.corrupt(offset, format!("a record has no stream: {error}")))?;
                    let stays = self.shared.encoder().is_live(&id) || keep(&id);
                    done.streams_dropped += u64::from(!stays);
                    verdicts.insert(stream.into_owned(), stays);
                    stays
                }
            };
            let bytes = line.len() as u64 + 1;
            *(if stays { &mut done.bytes_kept } else { &mut done.bytes_dropped }) += bytes;
            Ok(())
        })?;
        Ok((verdicts, done))
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

    /// Writes what stays.
    fn carry(&self, view: &View, verdicts: &Verdicts, cuts: &Cuts) -> Result<Piece, Error> {
        let through = view.last.before();
        let header = Header {
            kind: Kind::Carried,
            incarnation: view.last.header.incarnation,
            first: 1,
            through,
            prev: view.last.header.prev,
        };
        let path = self.layout.carried(through);
        let temporary = path.with_extension("tmp");
        let written = self.write_carried(view, (verdicts, cuts), header, &temporary);
        let written = written.and_then(|file| {
            self.disk.rename(&temporary, &path).map_err(Error::io("cannot rename", &temporary))?;
            self.disk.sync_dir(&self.layout.log).map_err(Error::sync(&self.layout.log))?;
            Ok(file)
        });
        match written {
            Ok(file) => Ok(Piece {
                file_name: self.layout.short(&path),
                path,
                file,
                header,
                start: header.to_line().len() as u64,
            }),
            Err(error) => {
                // If it stays, the next start removes it.
                let _ = self.disk.remove(&temporary);
                Err(error)
            }
        }
    }

    fn write_carried(
        &self,
        view: &View,
        (verdicts, cuts): (&Verdicts, &Cuts),
        header: Header,
        path: &Path,
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
            let stream = stream_of(line);
            if !stream.as_ref().is_some_and(|stream| verdicts.get(&**stream).copied().unwrap_or(true)) {
                return Ok(());
            }
            match stream.and_then(|stream| cuts.get(&*stream)) {
                None => out.line(line),
                Some(cuts) => {
                    let cut = cut(line, cuts).map_err(|error| {
                        piece.corrupt(offset, format!("a record is not readable: {error}"))
                    })?;
                    out.line(&cut)
                }
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
