//! Writing the log within its bound: the head as it comes, then a tail of which only the last pieces are kept.

use super::super::spec::Line;
use super::{dropped_note, format};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Less than this is no log.
const KEPT_MIN: u64 = 4096;

/// The most bytes of one line of the log.
const LINE_MAX: u64 = 64 * 1024;

/// The tail is kept in pieces of which two exist at a time, so that dropping one leaves the other.
const PIECES: usize = 2;

/// The longest text of one line, when so many bytes of a log are kept. Every part of the log holds several.
pub(in super::super) fn line_len_max(kept_max: u64) -> usize {
    // A line's own letters and time take less than 32 bytes, and a byte that is no UTF-8 becomes three.
    ((kept_max.max(KEPT_MIN) / 8).min(LINE_MAX) / 3 - 32) as usize
}

/// The pieces of a log's tail that exist, in their order, each with where in the output it begins.
pub(super) fn pieces(log: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let prefix = format!("{}.tail-", log.file_name().unwrap_or_default().to_string_lossy());
    let folder = log.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut pieces = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let begin = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        if let Some(begin) = begin {
            pieces.push((begin, entry.path()));
        }
    }
    pieces.sort_unstable();
    Ok(pieces)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The log of one attempt, while it runs.
#[derive(Debug)]
pub(in super::super) struct Writer {
    path: PathBuf,
    log: File,
    head_len: u64,
    head_max: u64,
    piece_max: u64,
    pieces: VecDeque<Piece>,
    /// How much was written in all, what was dropped included.
    place: u64,
    buffer: Vec<u8>,
    error: Option<String>,
}

#[derive(Debug)]
struct Piece {
    begin: u64,
    len: u64,
    path: PathBuf,
    file: File,
}

/// What became of a log.
#[derive(Debug, Default)]
pub(in super::super) struct Closed {
    pub(in super::super) dropped_bytes: u64,
    /// How many bytes the disk did not take.
    pub(in super::super) lost_bytes: u64,
    pub(in super::super) error: Option<String>,
}

impl Writer {
    /// Makes a log, in the place of one that is there.
    pub(in super::super) fn create(path: &Path, kept_max: u64) -> io::Result<Writer> {
        for (_, piece) in pieces(path)? {
            fs::remove_file(piece)?;
        }
        let kept_max = kept_max.max(KEPT_MIN);
        Ok(Writer {
            path: path.to_owned(),
            log: create(path)?,
            head_len: 0,
            head_max: kept_max / 2,
            piece_max: kept_max / 2 / PIECES as u64,
            pieces: VecDeque::new(),
            place: 0,
            buffer: Vec::new(),
            error: None,
        })
    }

    /// Adds a line. It is written with the next [`Writer::flush`] at the latest.
    pub(in super::super) fn line(&mut self, line: &Line) {
        let from = self.buffer.len();
        format(line, &mut self.buffer);
        let len = (self.buffer.len() - from) as u64;
        let pending = from as u64;
        let full = match self.pieces.back() {
            None => self.head_len + pending + len > self.head_max,
            Some(piece) => piece.len + pending + len > self.piece_max,
        };
        if full {
            let line = self.buffer.split_off(from);
            self.flush();
            self.attempt(Writer::begin_piece);
            self.buffer = line;
        }
        self.place += len;
    }

    /// Writes what was added.
    pub(in super::super) fn flush(&mut self) {
        let buffer = core::mem::take(&mut self.buffer);
        self.attempt(|writer| match writer.pieces.back_mut() {
            None => {
                writer.log.write_all(&buffer)?;
                writer.head_len += buffer.len() as u64;
                Ok(())
            }
            Some(piece) => {
                piece.file.write_all(&buffer)?;
                piece.len += buffer.len() as u64;
                Ok(())
            }
        });
        self.buffer = buffer;
        self.buffer.clear();
    }

    fn begin_piece(&mut self) -> io::Result<()> {
        if self.pieces.len() == PIECES
            && let Some(oldest) = self.pieces.pop_front()
        {
            fs::remove_file(oldest.path)?;
        }
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".tail-{}", self.place));
        let path = self.path.with_file_name(name);
        let file = create(&path)?;
        self.pieces.push_back(Piece { begin: self.place, len: 0, path, file });
        Ok(())
    }

    /// Does something unless the disk has refused before: half a line in the middle would confuse every reader.
    fn attempt(&mut self, act: impl FnOnce(&mut Writer) -> io::Result<()>) {
        if self.error.is_none()
            && let Err(error) = act(self)
        {
            self.error = Some(format!("the log is cut off: {error}"));
        }
    }

    /// Joins head and tail.
    pub(in super::super) fn close(mut self, at_ms: u64) -> Closed {
        self.flush();
        let kept: u64 = self.pieces.iter().map(|piece| piece.len).sum();
        // What was dropped for the bound stands between the head and the first piece.
        let dropped_bytes = self.pieces.front().map_or(0, |piece| piece.begin - self.head_len);
        let mut lost_bytes = 0;
        if self.error.is_some() {
            lost_bytes = self.place.saturating_sub(self.head_len + dropped_bytes + kept);
        }
        self.attempt(|writer| {
            if dropped_bytes > 0 {
                let mut note = Vec::new();
                format(&dropped_note(at_ms, dropped_bytes), &mut note);
                writer.log.write_all(&note)?;
            }
            for piece in &mut writer.pieces {
                io::copy(&mut File::open(&piece.path)?, &mut writer.log)?;
            }
            writer.pieces.drain(..).try_for_each(|piece| fs::remove_file(piece.path))
        });
        if self.error.is_some() && lost_bytes == 0 {
            // Head and tail could not be joined: the tail is in pieces that nobody reads as a log.
            lost_bytes = kept;
        }
        Closed { dropped_bytes, lost_bytes, error: self.error }
    }
}
