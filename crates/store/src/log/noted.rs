//! The last acknowledged batch, noted apart from the log, so that a log that lost its tail is recognised.
//!
//! ```text
//! acknowledged   [incarnation seq crc …512 bytes][incarnation seq crc …512 bytes]     written in turn
//! ```
//!
//! **The noted batch is durable in the log already**: the note is written after the log's sync and before callers are
//! answered, so it is never ahead of an intact log. The note itself is not synced, which would cost each commit a second
//! sync. After a kill it names the last acknowledged batch; after a power loss it may name an earlier one, or be torn and
//! ignored. So it can miss a loss, but never reports one that did not happen.

use super::error::Error;
use super::layout::Layout;
use crate::disk::{Disk, File, How, read_full, write_full};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How far apart the two places are: no sector holds both.
const PLACE: u64 = 512;
/// The first word of a place.
const WORD: &str = "acknowledged";

/// What is noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    incarnation: u64,
    seq: u64,
}

impl Noted {
    fn to_line(self) -> String {
        let text = format!("{WORD} {:016x} {:020}", self.incarnation, self.seq);
        format!("{text} {:08x}\n", crc32fast::hash(text.as_bytes()))
    }

    fn parse(bytes: &[u8]) -> Option<Noted> {
        let line = bytes.split(|byte| *byte == b'\n').next()?;
        let (text, crc) = std::str::from_utf8(line).ok()?.rsplit_once(' ')?;
        let crc = u32::from_str_radix(crc, 16).ok()?;
        let mut words = text.split(' ').filter(|_| crc32fast::hash(text.as_bytes()) == crc);
        let (WORD, incarnation, seq) = (words.next()?, words.next()?, words.next()?) else { return None };
        Some(Noted { incarnation: u64::from_str_radix(incarnation, 16).ok()?, seq: seq.parse().ok()? })
    }
}

/// What the directory has noted; nothing where there is no note, or a loss of power tore it.
pub(super) fn read(disk: &dyn Disk, layout: &Layout) -> Result<Option<Noted>, Error> {
    let path = layout.acknowledged();
    let file = match disk.open(&path, How::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("cannot open", &path)(error)),
    };
    let mut noted = None;
    for place in [0, PLACE] {
        let mut bytes = [0; PLACE as usize];
        let len = read_full(&*file, &mut bytes, place).map_err(Error::io("cannot read", &path))?;
        let found = Noted::parse(&bytes[..len]);
        noted = [noted, found].into_iter().flatten().max_by_key(|noted: &Noted| noted.seq);
    }
    Ok(noted)
}

/// Refuses a log that ends before what was acknowledged, or that is another one.
pub(super) fn check(noted: Option<Noted>, incarnation: u64, seq: u64) -> Result<(), Error> {
    let Some(noted) = noted else { return Ok(()) };
    if noted.incarnation != incarnation {
        let what = "the log belongs to another store than the one that this directory had".to_owned();
        return Err(Error::Lost { what });
    }
    if noted.seq > seq {
        let what = format!("the log ends with record {seq}, and record {} was acknowledged", noted.seq);
        return Err(Error::Lost { what });
    }
    Ok(())
}

/// Refuses to begin an empty log in a directory that had one.
pub(super) fn check_new(disk: &dyn Disk, layout: &Layout) -> Result<(), Error> {
    let had = |path: &std::path::Path| match disk.open(path, How::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("cannot open", path)(error)),
    };
    for path in [layout.acknowledged(), layout.history()] {
        if had(&path)? {
            let what = format!("the log is missing, and `{}` says that there was one", layout.short(&path));
            return Err(Error::Lost { what });
        }
    }
    Ok(())
}

/// Where the end is noted.
pub(super) struct Note {
    incarnation: u64,
    /// Absent where the file cannot be made: a disk without room, for example. The next start tries again.
    file: Option<Arc<dyn File>>,
    turns: AtomicU64,
}

impl Note {
    /// Makes the note say what the log has. The log was read and found sound.
    pub(super) fn begin(disk: &dyn Disk, layout: &Layout, incarnation: u64, seq: u64) -> Note {
        let path = layout.acknowledged();
        let make = || -> io::Result<Arc<dyn File>> {
            match disk.open(&path, How::Write) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
            let file = disk.open(&path, How::New)?;
            write_full(&*file, &[0; 2 * PLACE as usize], 0)?;
            Ok(file)
        };
        let note = Note { incarnation, file: make().ok(), turns: AtomicU64::new(0) };
        // One of them may have stood for the log of before, and both are good now.
        note.put(seq);
        note.put(seq);
        note
    }

    /// The log is durable up to here.
    pub(super) fn put(&self, seq: u64) {
        let Some(file) = &self.file else { return };
        let place = self.turns.fetch_add(1, Ordering::Relaxed) % 2 * PLACE;
        // A note that cannot be written is an older one: it still holds.
        let _ = write_full(&**file, Noted { incarnation: self.incarnation, seq }.to_line().as_bytes(), place);
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn what_is_noted_is_read_and_what_is_torn_says_nothing() {
        let noted = Noted { incarnation: 7, seq: 4_711 };
        let line = noted.to_line();
        assert_eq!(Noted::parse(line.as_bytes()), Some(noted));
        for at in 0..line.len() - 1 {
            let mut torn = line.clone().into_bytes();
            torn[at] ^= 1;
            assert_eq!(Noted::parse(&torn), None, "{at}");
            assert_eq!(Noted::parse(&line.as_bytes()[..at]), None, "{at}");
        }
    }

    #[test]
    fn a_log_that_is_shorter_or_another_is_refused() {
        let noted = Some(Noted { incarnation: 7, seq: 10 });
        assert!(check(None, 1, 0).is_ok() && check(noted, 7, 10).is_ok() && check(noted, 7, 11).is_ok());
        assert!(check(noted, 7, 9).is_err() && check(noted, 8, 11).is_err());
    }
}
