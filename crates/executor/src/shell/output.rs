//! The log of an attempt's output: how it is written, kept within its bound, and read again.
//!
//! One line of the log is one line of output: `<epoch_ms> <o|e> <text>`. A capital `O` or `E` says that the output's
//! line goes on in the next line of the same letter, because it is very long. `-` is a note of Windlass itself.
//!
//! ```text
//!  while it runs   LOG          the head: half of what is kept
//!                  LOG.tail-N   the tail: the last two of the pieces that followed; N is where in the output it begins
//!  afterwards      LOG          head, `<epoch_ms> - <n> bytes …` where something is missing, tail
//! ```
//!
//! A reader counts its place in the whole output, so it neither repeats nor misses a line while the pieces come and go;
//! what is dropped before it is read is reported as a note.

#[cfg(test)]
mod tests;
mod writer;

use super::spec::{Line, Source};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
pub(super) use writer::{Writer, line_len_max};

/// The most bytes that one look at a log reads.
const READ_MAX: u64 = 1024 * 1024;

/// Begins the text of the note about what was dropped, after the number of bytes.
const DROPPED: &str = " bytes of output were dropped here";

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the log `{}` cannot be read: {source}", path.display())]
pub struct Error {
    /// The log.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// The last lines of a log, at most `count` of them.
///
/// # Errors
/// Where there is no such log, or it cannot be read.
pub fn tail(path: &Path, count: usize) -> Result<Vec<Line>, Error> {
    let mut kept = VecDeque::new();
    let mut follow = follow(path);
    loop {
        let lines = follow.read()?;
        if lines.is_empty() {
            break;
        }
        for line in lines {
            if kept.len() == count {
                kept.pop_front();
            }
            if count > 0 {
                kept.push_back(line);
            }
        }
    }
    Ok(kept.into())
}

/// What became of lines that were to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// How long the log is now.
    pub len: u64,
    /// Whether it takes no more.
    pub full: bool,
}

/// Adds lines to the log of an attempt elsewhere, whose executor sends them in pieces. `offset` is how long the log was
/// when they were first sent: a piece that came before is not added again. No more than `max` bytes are kept.
///
/// # Errors
/// Where the log cannot be written.
pub fn add(path: &Path, offset: u64, lines: &[Line], max: u64) -> Result<Added, Error> {
    let failed = |source| Error { path: path.to_owned(), source };
    let add = || -> io::Result<Added> {
        let mut log = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let len = log.metadata()?.len();
        if len > offset || len >= max {
            return Ok(Added { len, full: len >= max });
        }
        let mut bytes = Vec::new();
        let mut dropped = 0;
        for line in lines {
            let from = bytes.len();
            format(line, &mut bytes);
            if dropped > 0 || len + bytes.len() as u64 > max {
                dropped += (bytes.len() - from) as u64;
                bytes.truncate(from);
            }
        }
        if dropped > 0 {
            // The executor hears that the log is full, and sends no more; so the log says so once.
            let text = "the rest of the output is kept by the executor only".to_owned();
            let at_ms = lines.last().map_or(0, |line| line.at_ms);
            format(&Line { at_ms, source: Source::Note, text, whole: true }, &mut bytes);
        }
        log.write_all(&bytes)?;
        Ok(Added { len: len + bytes.len() as u64, full: dropped > 0 })
    };
    add().map_err(failed)
}

/// Follows a log from its first line, while it is written or afterwards.
#[must_use]
pub fn follow(path: &Path) -> Follow {
    Follow { path: path.to_owned(), place: 0, head: None }
}

/// A reader's place in a log.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    /// How much of the whole output was passed, what was dropped included.
    place: u64,
    /// How long the head was when the reader went on to the tail.
    head: Option<u64>,
}

impl Follow {
    /// The lines that are there and were not read yet; none where there is nothing new. It does not wait.
    ///
    /// # Errors
    /// Where there is no such log, or it cannot be read.
    pub fn read(&mut self) -> Result<Vec<Line>, Error> {
        self.read_some().map_err(|source| Error { path: self.path.clone(), source })
    }

    fn read_some(&mut self) -> io::Result<Vec<Line>> {
        let mut log = File::open(&self.path)?;
        let head_len = match self.head {
            Some(head_len) => head_len,
            None => {
                let lines = self.read_head(&mut log)?;
                // The head is read to its end before the tail is looked for, so nothing comes out of order.
                if !lines.is_empty() {
                    return Ok(lines);
                }
                self.place
            }
        };
        let joined = log.metadata()?.len() > head_len;
        if joined && self.head.is_some() {
            return self.read_joined(&mut log, head_len);
        }
        let Some((begin, path)) = self.piece()? else { return Ok(Vec::new()) };
        // The tail begins when the head is complete, which can have been after it was read.
        if self.head.is_none() && log.metadata()?.len() > self.place {
            return self.read_head(&mut log);
        }
        self.head = Some(head_len);
        let mut lines = Vec::new();
        if begin > self.place {
            lines.push(dropped_note(0, begin - self.place));
            self.place = begin;
        }
        match File::open(path) {
            Ok(mut piece) => {
                piece.seek(SeekFrom::Start(self.place - begin))?;
                self.take(&mut piece, &mut lines)?;
            }
            // It was dropped or joined to the log between the two looks. The next one finds what took its place.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(lines)
    }

    /// Reads on in the log itself. A note about dropped bytes moves the place by their number.
    fn read_head(&mut self, log: &mut File) -> io::Result<Vec<Line>> {
        let mut lines = Vec::new();
        log.seek(SeekFrom::Start(self.place))?;
        let from = self.place;
        self.take(log, &mut lines)?;
        let note = lines.iter().position(|line| dropped_len(line).is_some());
        let Some(note) = note else { return Ok(lines) };
        // From the note on the log's own places differ from those in the output.
        let before: u64 = lines[..note].iter().map(written_len).sum();
        self.head = Some(from + before);
        self.place = from + before;
        lines.truncate(note);
        if lines.is_empty() {
            return self.read_joined(log, from + before);
        }
        Ok(lines)
    }

    /// Reads in a log whose tail stands after its head, with or without a note between them.
    fn read_joined(&mut self, log: &mut File, head_len: u64) -> io::Result<Vec<Line>> {
        log.seek(SeekFrom::Start(head_len))?;
        let mut first = Vec::new();
        let end = read_lines(log, &mut first)?;
        if end == 0 {
            return Ok(Vec::new());
        }
        let note = first.first().filter(|line| dropped_len(line).is_some());
        let (dropped, note_len) =
            note.map_or((0, 0), |line| (dropped_len(line).unwrap_or(0), written_len(line)));
        let tail_begin = head_len + dropped;
        let mut lines = Vec::new();
        if self.place < tail_begin {
            lines.push(dropped_note(note.map_or(0, |line| line.at_ms), tail_begin - self.place));
            self.place = tail_begin;
        }
        log.seek(SeekFrom::Start(head_len + note_len + (self.place - tail_begin)))?;
        self.take(log, &mut lines)?;
        Ok(lines)
    }

    fn take(&mut self, file: &mut File, lines: &mut Vec<Line>) -> io::Result<()> {
        self.place += read_lines(file, lines)?;
        Ok(())
    }

    /// The piece of the tail to read: the last one that begins at or before the place, or the first after it.
    fn piece(&self) -> io::Result<Option<(u64, PathBuf)>> {
        let pieces = writer::pieces(&self.path)?;
        let before = pieces.iter().rev().find(|(begin, path)| {
            // A piece that is read to its end is left for the next one.
            *begin <= self.place && path.metadata().is_ok_and(|m| begin + m.len() > self.place)
        });
        Ok(before.or_else(|| pieces.iter().find(|(begin, _)| *begin > self.place)).cloned())
    }
}

/// Reads whole lines, up to a bound, and returns how many bytes they had.
fn read_lines(file: &mut File, lines: &mut Vec<Line>) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.take(READ_MAX).read_to_end(&mut bytes)?;
    let end = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |last| last + 1);
    lines.extend(bytes[..end].split_inclusive(|&b| b == b'\n').map(|line| parse(&line[..line.len() - 1])));
    Ok(end as u64)
}

/// A line of the log. What is damaged is shown as it is: half a log is better than none.
fn parse(line: &[u8]) -> Line {
    let text = String::from_utf8_lossy(line);
    let mut parts = text.splitn(3, ' ');
    let at_ms = parts.next().and_then(|at| at.parse().ok());
    let letter = parts.next();
    let rest = parts.next();
    let (source, whole) = match letter {
        Some("o") => (Source::Out, true),
        Some("O") => (Source::Out, false),
        Some("e") => (Source::Err, true),
        Some("E") => (Source::Err, false),
        Some("-") => (Source::Note, true),
        _ => return Line { at_ms: 0, source: Source::Note, text: text.into_owned(), whole: true },
    };
    match (at_ms, rest) {
        (Some(at_ms), Some(rest)) => Line { at_ms, source, text: rest.to_owned(), whole },
        _ => Line { at_ms: 0, source: Source::Note, text: text.into_owned(), whole: true },
    }
}

/// Writes a line of the log.
fn format(line: &Line, out: &mut Vec<u8>) {
    let letter = match (line.source, line.whole) {
        (Source::Out, true) => 'o',
        (Source::Out, false) => 'O',
        (Source::Err, true) => 'e',
        (Source::Err, false) => 'E',
        (Source::Note, _) => '-',
    };
    out.extend_from_slice(format!("{} {letter} {}\n", line.at_ms, line.text).as_bytes());
}

fn written_len(line: &Line) -> u64 {
    let mut bytes = Vec::new();
    format(line, &mut bytes);
    bytes.len() as u64
}

fn dropped_note(at_ms: u64, bytes: u64) -> Line {
    Line { at_ms, source: Source::Note, text: format!("{bytes}{DROPPED}"), whole: true }
}

/// How many bytes a note says were dropped.
fn dropped_len(line: &Line) -> Option<u64> {
    if line.source != Source::Note {
        return None;
    }
    line.text.strip_suffix(DROPPED)?.parse().ok()
}
