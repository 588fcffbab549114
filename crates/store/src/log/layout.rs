//! Where everything lies in a data directory.
//!
//! ```text
//! lock                                     held by the process that has the directory
//! acknowledged                             up to which record the log was acknowledged
//! log/00000000000000000001.wal             a segment, named after its first seq
//! log/carried-00000000000000004711.jsonl   what compaction kept of everything up to that seq
//! log/heads.jsonl                          heads of streams that compaction dropped
//! log/spare-3.wal                          room set aside for the next segment
//! snapshot/00000000000000004000.jsonl      a snapshot, named after the seq from which the log must be read
//! index/00000000000000000001.wal-120.idx   where streams stand in a file of the log; made again where it is missing
//! …tmp                                     not finished; removed at the next start
//! ```

use super::error::Error;
use super::frame::{FORMAT, Header, HeaderError, Kind, LINE_MAX};
use super::index::Index;
use crate::disk::{Disk, File, How, read_full};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the history's file in a data directory.
pub(crate) const HISTORY: &str = "history.sqlite";

/// The directories of a store.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) root: PathBuf,
    pub(super) log: PathBuf,
    pub(super) snapshot: PathBuf,
    pub(super) index: PathBuf,
}

/// What a name in `log/` means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Segment(u64),
    Carried(u64),
    Spare(u64),
    Temporary,
    Foreign,
}

impl Name {
    pub(super) fn parse(name: &str) -> Name {
        if name.ends_with(".tmp") {
            return Name::Temporary;
        }
        let whole = |digits: &str| digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit());
        let number = |digits: &str| digits.parse().ok().filter(|_| whole(digits));
        if let Some(rest) = name.strip_prefix("carried-") {
            let through = rest.strip_suffix(".jsonl").and_then(number);
            return through.map_or(Name::Foreign, Name::Carried);
        }
        if let Some(rest) = name.strip_prefix("spare-") {
            let n = rest.strip_suffix(".wal").and_then(|n| n.parse().ok());
            return n.map_or(Name::Foreign, Name::Spare);
        }
        name.strip_suffix(".wal").and_then(number).map_or(Name::Foreign, Name::Segment)
    }
}

impl Layout {
    pub(super) fn new(root: &Path) -> Layout {
        Layout {
            root: root.to_path_buf(),
            log: root.join("log"),
            snapshot: root.join("snapshot"),
            index: root.join("index"),
        }
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Where the acknowledged end is noted.
    pub(super) fn acknowledged(&self) -> PathBuf {
        self.root.join("acknowledged")
    }

    /// The history, which is made when a log is opened for the first time.
    pub(super) fn history(&self) -> PathBuf {
        self.root.join(HISTORY)
    }

    pub(super) fn segment(&self, first: u64) -> PathBuf {
        self.log.join(format!("{first:020}.wal"))
    }

    pub(super) fn carried(&self, through: u64) -> PathBuf {
        self.log.join(format!("carried-{through:020}.jsonl"))
    }

    pub(super) fn spare(&self, n: u64) -> PathBuf {
        self.log.join(format!("spare-{n}.wal"))
    }

    pub(super) fn saved(&self, from: u64) -> PathBuf {
        self.snapshot.join(format!("{from:020}.jsonl"))
    }

    /// A path as people know it: from the data directory on.
    pub(super) fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).display().to_string()
    }
}

/// A file of the log, with its header read.
#[derive(Clone)]
pub(super) struct Piece {
    pub(super) path: PathBuf,
    /// Its path from the data directory on.
    pub(super) file_name: String,
    pub(super) file: Arc<dyn File>,
    pub(super) header: Header,
    /// Where its first batch begins.
    pub(super) start: u64,
    /// Where in it the records of each stream stand.
    pub(super) index: Arc<Index>,
}

impl Piece {
    /// Opens a file of the log.
    pub(super) fn open(disk: &dyn Disk, layout: &Layout, path: &Path, how: How) -> Result<Piece, Error> {
        let file = disk.open(path, how).map_err(Error::io("cannot open", path))?;
        let mut bytes = vec![0; LINE_MAX];
        let len = read_full(&*file, &mut bytes, 0).map_err(Error::io("cannot read", path))?;
        let file_name = layout.short(path);
        let (header, start) = Header::parse(&bytes[..len]).map_err(|error| match error {
            HeaderError::Newer(format) => Error::Newer { file: file_name.clone(), format, known: FORMAT },
            HeaderError::Damaged => Error::Corrupt {
                file: file_name.clone(),
                offset: 0,
                what: "the header is not readable".to_owned(),
            },
        })?;
        Ok(Piece {
            path: path.to_path_buf(),
            file_name,
            file,
            header,
            start: start as u64,
            index: Arc::default(),
        })
    }

    /// The last seq before its own records.
    pub(super) fn before(&self) -> u64 {
        self.header.first.saturating_sub(1)
    }

    pub(super) fn corrupt(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::Corrupt { file: self.file_name.clone(), offset, what: what.into() }
    }
}

/// What is in `log/`.
#[derive(Default)]
pub(super) struct Listing {
    /// What holds records, in their order.
    pub(super) pieces: Vec<Piece>,
    /// Room that was set aside.
    pub(super) spares: Vec<u64>,
    /// What a compaction or a start that did not finish left over.
    pub(super) leftovers: Vec<PathBuf>,
}

/// Looks at `log/`. A directory that is not there is an empty log.
pub(super) fn listing(disk: &dyn Disk, layout: &Layout) -> Result<Listing, Error> {
    let names = match disk.list(&layout.log) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(Error::io("cannot list", &layout.log)(error)),
    };
    let names: Vec<(String, Name)> =
        names.into_iter().map(|name| (Name::parse(&name), name)).map(swap).collect();
    let through =
        names.iter().filter_map(|(_, name)| if let Name::Carried(n) = name { Some(*n) } else { None }).max();
    let mut listing = Listing::default();
    let mut wanted = Vec::new();
    for (text, name) in names {
        let path = layout.log.join(text);
        match name {
            Name::Segment(first) if first > through.unwrap_or(0) => wanted.push((first, path)),
            Name::Carried(n) if Some(n) == through => wanted.insert(0, (0, path)),
            Name::Spare(n) => listing.spares.push(n),
            Name::Segment(_) | Name::Carried(_) | Name::Temporary => listing.leftovers.push(path),
            Name::Foreign => {}
        }
    }
    wanted.sort_unstable_by_key(|(first, _)| *first);
    for (first, path) in wanted {
        let piece = Piece::open(disk, layout, &path, How::Write)?;
        check(&listing.pieces, &piece, first)?;
        listing.pieces.push(piece);
    }
    Ok(listing)
}

fn swap((name, text): (Name, String)) -> (String, Name) {
    (text, name)
}

/// Whether a piece is what its name says, and belongs to the store that the others belong to.
fn check(before: &[Piece], piece: &Piece, first: u64) -> Result<(), Error> {
    let named = match piece.header.kind {
        Kind::Segment => piece.header.first == first,
        Kind::Carried => first == 0,
    };
    if !named {
        return Err(piece.corrupt(0, "the header belongs to another file"));
    }
    let begins = piece.header.kind == Kind::Carried || piece.header.first == 1;
    match before.first() {
        None if !begins => Err(piece.corrupt(0, format!("what came before seq {first} is missing"))),
        Some(other) if other.header.incarnation != piece.header.incarnation => {
            Err(piece.corrupt(0, "it belongs to another store"))
        }
        None | Some(_) => Ok(()),
    }
}
