//! Snapshots: every live stream as it was at some version, so that recovery need not read the log from its beginning.
//!
//! ```text
//! {"windlass_snapshot":2,"form":2,"incarnation":"…","from":4000}
//! {"form":2,"stream":"run/run_…","state":{…}}             ◀ one line a stream, each at its own version
//! {"gone":"run/run_…","ver":7,"head":"…"}                 ◀ one that ended while the snapshot was taken
//! {"footer":2,"through":4711,"crc":"…"}
//! ```
//!
//! It is fuzzy: streams are saved one after the other while commits continue. A stream's line covers all its records before
//! seq `from`; later ones are in the log, and records in both are skipped by their version. A separate thread writes the
//! file from durable state under a temporary name, and renames it at the end.
//!
//! `windlass_snapshot` is the format of the file and `form` that of the streams in it. If either belongs to another version,
//! the file is ignored as a whole and the log is read instead.

use super::encode::Saving;
use super::error::Error;
use super::frame::newline;
use super::layout::Layout;
use crate::disk::{Disk, File, How, read_full, write_full};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use windlass_core::audit::Head;
use windlass_core::pool::Pool;
use windlass_core::stream::StreamId;
use windlass_core::turn::state::Snapshot;
use windlass_core::wire::{Reader, Writer};

/// How much is gathered before it is written.
const CHUNK: usize = 1 << 20;

/// How many lines go from the thread that decodes to the one that takes them at a time, and how often ahead of it.
const BATCH: usize = 256;
const BATCHES: usize = 16;

/// No line of a snapshot is longer.
const LINE_MAX: usize = 64 << 20;

const FORMAT: u64 = 2;
const HEADER: &str = "{\"windlass_snapshot\":";
const FOOTER: &str = "{\"footer\":";
const GONE: &str = "{\"gone\":";

/// A snapshot that was finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The seq from which the log must be read after it.
    pub from_seq: u64,
    /// How many streams it has.
    pub streams: u64,
    pub bytes: u64,
}

/// The result of the last snapshot, for callers that wait for it.
#[derive(Default)]
pub(super) struct Progress {
    /// How many were finished or given up, and how the last one ended.
    state: Mutex<(u64, Option<Result<Saved, Error>>)>,
    changed: Condvar,
}

impl Progress {
    fn ended(&self, result: Result<Saved, Error>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = (state.0 + 1, Some(result));
        self.changed.notify_all();
    }

    /// How many snapshots ended in this process, and how the last one did.
    pub(super) fn get(&self) -> (u64, Option<Result<Saved, Error>>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until more than `seen` snapshots ended.
    pub(super) fn wait(&self, seen: u64) -> Option<Result<Saved, Error>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.0 <= seen {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.1.clone()
    }
}

pub(super) struct Saver {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) layout: Layout,
    pub(super) incarnation: u64,
    pub(super) kept: usize,
    pub(super) progress: Arc<Progress>,
    pub(super) lost: Arc<AtomicBool>,
    /// How many parts of snapshots were handed over and not written yet.
    pub(super) backlog: Arc<AtomicUsize>,
    /// The last durable seq.
    pub(super) durable: Arc<AtomicU64>,
    pub(super) dropping: Dropping,
}

/// What snapshots and compactions have between them: a snapshot that was begun before streams were dropped may know them,
/// and must not be finished after.
#[derive(Clone, Default)]
pub(super) struct Dropping {
    /// Held while a snapshot gets its name, and while files are replaced.
    pub(super) turn: Arc<Mutex<()>>,
    /// How often streams were dropped.
    pub(super) count: Arc<AtomicU64>,
}

/// A snapshot that is being written.
struct Draft {
    path: PathBuf,
    file: Arc<dyn File>,
    from: u64,
    /// How often streams had been dropped when it was begun.
    drops: u64,
    buffer: Vec<u8>,
    written: u64,
    streams: u64,
    lines: u64,
    crc: crc32fast::Hasher,
}

impl Saver {
    /// Writes what comes until nothing can come any more.
    pub(super) fn run(&self, inbox: &Receiver<Saving>) {
        let mut draft: Option<Draft> = None;
        for saving in inbox {
            let step = self.step(&mut draft, saving);
            self.backlog.fetch_sub(1, Ordering::AcqRel);
            if let Err(error) = step {
                if let Some(draft) = draft.take() {
                    // If it stays, the next start removes it.
                    let _ = self.disk.remove(&draft.path);
                }
                self.progress.ended(Err(error));
            }
        }
    }

    fn step(&self, draft: &mut Option<Draft>, saving: Saving) -> Result<(), Error> {
        match (saving, draft.as_mut()) {
            (Saving::Begin(from, drops), _) => {
                self.lost.store(false, Ordering::Release);
                *draft = Some(self.begin(from, drops)?);
                Ok(())
            }
            (Saving::Stream(snapshot), Some(draft)) => draft.stream(&snapshot),
            (Saving::Gone(stream, head), Some(draft)) => draft.gone(&stream, head),
            (Saving::End, Some(_)) => match draft.take() {
                Some(draft) => self.end(draft),
                None => Ok(()),
            },
            // The one they belong to was given up.
            (Saving::Stream(_) | Saving::Gone(..) | Saving::End, None) => Ok(()),
        }
    }

    fn begin(&self, from: u64, drops: u64) -> Result<Draft, Error> {
        let path = self.layout.saved(from).with_extension("tmp");
        let file = self.disk.open(&path, How::New).map_err(Error::io("cannot make", &path))?;
        let mut draft = Draft {
            path,
            file,
            from,
            drops,
            buffer: Vec::with_capacity(CHUNK),
            written: 0,
            streams: 0,
            lines: 0,
            crc: crc32fast::Hasher::new(),
        };
        let mut w = Writer(&mut draft.buffer);
        w.raw(HEADER.as_bytes());
        w.number(FORMAT);
        w.key("form");
        w.number(u64::from(Snapshot::FORM));
        w.key("incarnation");
        w.plain(&format!("{:016x}", self.incarnation));
        w.key("from");
        w.number(from);
        w.raw(b"}\n");
        Ok(draft)
    }

    fn end(&self, mut draft: Draft) -> Result<(), Error> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::Io {
                what: "cannot keep up with the snapshot in",
                path: draft.path,
                message: "its streams came faster than they could be written".to_owned(),
            });
        }
        draft.flush()?;
        let mut w = Writer(&mut draft.buffer);
        w.raw(FOOTER.as_bytes());
        w.number(draft.lines);
        w.key("through");
        w.number(self.durable.load(Ordering::Acquire));
        draft.crc.update(&draft.buffer);
        let crc = draft.crc.clone().finalize();
        let mut w = Writer(&mut draft.buffer);
        w.key("crc");
        w.plain(&format!("{crc:08x}"));
        w.raw(b"}\n");
        draft.flush()?;
        draft.file.sync_data().map_err(Error::sync(&draft.path))?;
        let path = self.layout.saved(draft.from);
        let _turn = self.dropping.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.dropping.count.load(Ordering::Acquire) != draft.drops {
            return Err(Error::Io {
                what: "cannot use the snapshot in",
                path: draft.path,
                message: "streams were dropped while it was written".to_owned(),
            });
        }
        self.disk.rename(&draft.path, &path).map_err(Error::io("cannot rename", &draft.path))?;
        self.disk.sync_dir(&self.layout.snapshot).map_err(Error::sync(&self.layout.snapshot))?;
        self.prune()?;
        self.progress.ended(Ok(Saved { from_seq: draft.from, streams: draft.streams, bytes: draft.written }));
        Ok(())
    }

    /// Removes all but the newest.
    fn prune(&self) -> Result<(), Error> {
        let mut names = snapshots(&*self.disk, &self.layout)?;
        names.drain(names.len().saturating_sub(self.kept)..);
        for from in names {
            let path = self.layout.saved(from);
            self.disk.remove(&path).map_err(Error::io("cannot remove", &path))?;
        }
        Ok(())
    }
}

impl Draft {
    fn stream(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        serde_json::to_writer(&mut self.buffer, snapshot).map_err(|error| Error::Io {
            what: "cannot encode a stream for",
            path: self.path.clone(),
            message: error.to_string(),
        })?;
        self.streams += 1;
        self.line()
    }

    fn gone(&mut self, stream: &StreamId, head: Head) -> Result<(), Error> {
        let mut w = Writer(&mut self.buffer);
        w.raw(GONE.as_bytes());
        w.string(&stream.to_string());
        w.key("ver");
        w.number(head.ver);
        w.key("head");
        w.plain(&head.head.to_string());
        w.raw(b"}");
        self.line()
    }

    fn line(&mut self) -> Result<(), Error> {
        self.buffer.push(b'\n');
        self.lines += 1;
        if self.buffer.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.crc.update(&self.buffer);
        write_full(&*self.file, &self.buffer, self.written).map_err(Error::io("cannot write", &self.path))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// The seqs of the snapshots that are there, in order.
pub(super) fn snapshots(disk: &dyn Disk, layout: &Layout) -> Result<Vec<u64>, Error> {
    let names = disk.list(&layout.snapshot).map_err(Error::io("cannot list", &layout.snapshot))?;
    let number = |name: &String| name.strip_suffix(".jsonl").filter(|n| n.len() == 20)?.parse().ok();
    Ok(names.iter().filter_map(number).collect())
}

/// Removes all of them: the log is about to be without streams that they may know.
pub(super) fn remove(disk: &dyn Disk, layout: &Layout) -> Result<(), Error> {
    for from in snapshots(disk, layout)? {
        let path = layout.saved(from);
        disk.remove(&path).map_err(Error::io("cannot remove", &path))?;
    }
    disk.sync_dir(&layout.snapshot).map_err(Error::sync(&layout.snapshot))
}

/// Removes what was not finished.
pub(super) fn sweep(disk: &dyn Disk, layout: &Layout) -> Result<(), Error> {
    let names = disk.list(&layout.snapshot).map_err(Error::io("cannot list", &layout.snapshot))?;
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        let path = layout.snapshot.join(name);
        disk.remove(&path).map_err(Error::io("cannot remove", &path))?;
    }
    Ok(())
}

/// What a snapshot says.
pub(super) enum Line {
    Stream(Box<Snapshot>),
    Gone(StreamId, Head),
}

/// What is known of a snapshot once all of it was checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    pub(super) from: u64,
    /// Up to which seq the log was durable when it was finished.
    pub(super) through: u64,
    /// How many lines it has.
    pub(super) lines: usize,
}

/// Checks a snapshot: its format, the form of its streams and its CRC, in one pass that keeps nothing. `Err` says what is wrong with it; a file that
/// cannot be read is treated like a damaged one, because there are others.
pub(super) fn check(disk: &dyn Disk, path: &Path, incarnation: u64) -> Result<Checked, String> {
    let (mut from, mut footer) = (None, None);
    let mut lines = 0;
    let mut crc = crc32fast::Hasher::new();
    each_line(disk, path, &mut |line| {
        if footer.is_some() {
            return Err("there is more after its end".to_owned());
        }
        if let Some((count, through, sum)) = read_footer(line) {
            // What stands before `,"crc":"12345678"}` is covered too.
            crc.update(&line.as_bytes()[..line.len().saturating_sub(18)]);
            if count + 1 != lines || crc.clone().finalize() != sum {
                return Err("its CRC is wrong".to_owned());
            }
            footer = Some(through);
            return Ok(());
        }
        if lines == 0 {
            from = Some(read_header(line, incarnation)?);
        }
        lines += 1;
        crc.update(line.as_bytes());
        crc.update(b"\n");
        Ok(())
    })?;
    match (from, footer) {
        (Some(from), Some(through)) => {
            Ok(Checked { from, through, lines: usize::try_from(lines).unwrap_or(0) })
        }
        (None, _) | (_, None) => Err("its end is missing".to_owned()),
    }
}

/// Hands over the lines of a snapshot that was checked. Another thread decodes them.
pub(super) fn load(
    disk: &dyn Disk,
    path: &Path,
    visit: &mut dyn FnMut(Line) -> Result<(), String>,
) -> Result<(), String> {
    let (out, lines) = sync_channel(BATCHES);
    std::thread::scope(|scope| {
        let decoder = scope.spawn(move || decode(disk, path, &out));
        let taken = lines.into_iter().flatten().try_for_each(visit);
        let decoded = decoder.join().map_err(|_| "a thread panicked over it".to_owned())?;
        taken.and(decoded)
    })
}

fn decode(disk: &dyn Disk, path: &Path, out: &SyncSender<Vec<Line>>) -> Result<(), String> {
    let (mut batch, mut pool) = (Vec::with_capacity(BATCH), Pool::default());
    each_line(disk, path, &mut |line| {
        if line.starts_with(HEADER) || line.starts_with(FOOTER) {
            return Ok(());
        }
        batch.push(if line.starts_with(GONE) {
            let (stream, head) = read_gone(line).ok_or("a line of it is not readable")?;
            Line::Gone(stream, head)
        } else {
            let unreadable = |error| format!("a stream of it is not readable: {error}");
            let mut snapshot: Box<Snapshot> = serde_json::from_str(line).map_err(unreadable)?;
            snapshot.share(&mut pool);
            Line::Stream(snapshot)
        });
        if batch.len() < BATCH {
            return Ok(());
        }
        let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
        // The receiver is gone: it knows why.
        out.send(full).map_err(|_| "it was not taken".to_owned())
    })?;
    let _ = out.send(batch);
    Ok(())
}

fn read_header(line: &str, incarnation: u64) -> Result<u64, String> {
    let mut r = Reader::new(line, false);
    let unreadable = || "its header is not readable".to_owned();
    let format = r.expect(HEADER).and_then(|()| r.number()).map_err(|_| unreadable())?;
    if format != FORMAT {
        return Err(format!("it has format {format}, and this version reads {FORMAT}"));
    }
    let mut read = || {
        r.need_key("form", "").ok()?;
        let form = r.number().ok()?;
        r.need_key("incarnation", "").ok()?;
        let text = r.text().ok()?;
        r.need_key("from", "").ok()?;
        Some((form, u64::from_str_radix(&text, 16).ok()?, r.number().ok()?))
    };
    match read() {
        Some((form, _, _)) if form != u64::from(Snapshot::FORM) => {
            Err(format!("its streams have form {form}, and this version reads {}", Snapshot::FORM))
        }
        Some((_, of, from)) if of == incarnation => Ok(from),
        Some(_) => Err("it belongs to another store".to_owned()),
        None => Err(unreadable()),
    }
}

fn read_footer(line: &str) -> Option<(u64, u64, u32)> {
    let mut r = Reader::new(line, false);
    r.expect(FOOTER).ok()?;
    let count = r.number().ok()?;
    r.need_key("through", "").ok()?;
    let through = r.number().ok()?;
    r.need_key("crc", "").ok()?;
    let crc = u32::from_str_radix(&r.text().ok()?, 16).ok()?;
    Some((count, through, crc))
}

fn read_gone(line: &str) -> Option<(StreamId, Head)> {
    let mut r = Reader::new(line, false);
    r.expect(GONE).ok()?;
    let stream = StreamId::parse(&r.text().ok()?).ok()?;
    r.need_key("ver", "").ok()?;
    let ver = r.number().ok()?;
    r.need_key("head", "").ok()?;
    let head = windlass_core::digest::Digest::parse(&r.text().ok()?)?;
    Some((stream, Head { ver, head }))
}

fn each_line(
    disk: &dyn Disk,
    path: &Path,
    visit: &mut dyn FnMut(&str) -> Result<(), String>,
) -> Result<(), String> {
    let file = disk.open(path, How::Read).map_err(|error| error.to_string())?;
    let mut window: Vec<u8> = Vec::new();
    let mut offset = 0;
    loop {
        let have = window.len();
        window.resize(have + CHUNK.max(have), 0);
        let got = read_full(&*file, &mut window[have..], offset).map_err(|error| error.to_string())?;
        window.truncate(have + got);
        offset += got as u64;
        let mut at = 0;
        while let Some(n) = newline(&window[at..]) {
            let line = std::str::from_utf8(&window[at..at + n]).map_err(|_| "a line of it is no text")?;
            visit(line)?;
            at += n + 1;
        }
        window.drain(..at);
        if got == 0 {
            return if window.is_empty() { Ok(()) } else { Err("its last line is torn".to_owned()) };
        }
        if window.len() > LINE_MAX {
            return Err("a line of it is longer than any may be".to_owned());
        }
    }
}
