//! The file of the index: its tables, how it is opened, and how a file that does not fit is set aside.

use super::Error;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use windlass_core::id::RunId;

/// Marks the file as ours: "WLHI".
const APPLICATION_ID: i32 = 0x574c_4849;
/// The version of the tables. There are no migrations: a file of another version is built anew from the log.
const VERSION: i32 = 5;
/// How long to wait for another connection's lock.
const BUSY: Duration = Duration::from_secs(5);

/// Names are numbered, so that the indexes stay small. Each index ends in the id, so that a page is one range of it
/// for each status; the statuses are few, and merging their ranges makes every filter without one as quick as with one.
/// The pipeline at the end of `by_repo` answers for both together without a look at the rows.
///
/// `skew_ms` is the most that any run was created after the time in its id: no run created at or after T has an id
/// from before T - `skew_ms`. That turns "since" into a range of ids, whatever clocks did.
const TABLES: &str = "
    CREATE TABLE progress (
        only INTEGER PRIMARY KEY CHECK (only = 0), through INTEGER NOT NULL, skew_ms INTEGER NOT NULL) STRICT;
    INSERT INTO progress VALUES (0, 0, 0);
    CREATE TABLE names (
        number INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, kind INTEGER NOT NULL, text TEXT NOT NULL,
        UNIQUE (tenant, kind, text)) STRICT;
    CREATE TABLE runs (
        number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, root BLOB NOT NULL, tenant INTEGER NOT NULL, namespace INTEGER NOT NULL,
        status INTEGER NOT NULL, pipeline INTEGER NOT NULL, repo INTEGER, runbook BLOB NOT NULL, created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL, completed_at INTEGER, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
        json TEXT NOT NULL) STRICT;
    CREATE INDEX by_status ON runs (tenant, namespace, status, id);
    CREATE INDEX by_pipeline ON runs (tenant, namespace, pipeline, status, id);
    CREATE INDEX by_repo ON runs (tenant, namespace, repo, status, id, pipeline) WHERE repo IS NOT NULL;
    CREATE INDEX by_root ON runs (root, id);
    CREATE INDEX by_runbook ON runs (runbook);
    CREATE TABLE approvals (id BLOB PRIMARY KEY, run BLOB NOT NULL) STRICT, WITHOUT ROWID;
    CREATE INDEX by_run ON approvals (run);
    CREATE TABLE streams (name TEXT PRIMARY KEY, first_seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

/// What an index knows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) through: u64,
    pub(super) skew_ms: u64,
    pub(super) id_max: Option<RunId>,
}

/// An opened index, with the connection that may write.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) found: Found,
    pub(super) warning: Option<String>,
}

/// Where an index is.
#[derive(Clone, Debug)]
pub(super) enum Where {
    File(PathBuf),
    /// In this process, under a name, because the disk is full.
    Memory(String),
}

impl Where {
    /// A private place in memory, and its name.
    pub(super) fn memory() -> (Where, String) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("file:windlass-history-{n}?mode=memory&cache=shared");
        (Where::Memory(name.clone()), name)
    }
}

/// An index in memory, empty.
pub(super) fn open_memory(path: &Path, name: &str) -> Result<Opened, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connect = || {
        let connection = Connection::open_with_flags(name, flags)?;
        settings(&connection)?;
        Ok(connection)
    };
    let connection = connect().map_err(|error| classify(path, &error))?;
    let found = settle(path, &connection)?;
    Ok(Opened { connection, found, warning: None })
}

/// Opens the index. What does not fit is set aside, once.
pub(super) fn open(path: &Path) -> Result<Opened, Error> {
    let unfit = if exists(&suspect(path))? {
        "damage was found while it was in use".to_owned()
    } else {
        match prepare(path) {
            Ok((connection, found)) => return Ok(Opened { connection, found, warning: None }),
            Err(Error::Damaged { detail, .. }) => detail,
            Err(other) => return Err(other),
        }
    };
    let aside = set_aside(path)?;
    let (connection, found) = prepare(path)?;
    let warning = format!(
        "the history index {} does not fit ({unfit}): it was set aside as {} and is built anew from the log",
        path.display(),
        aside.display()
    );
    Ok(Opened { connection, found, warning: Some(warning) })
}

/// A connection that only reads.
pub(super) fn open_reader(path: &Path, place: &Where) -> Result<Connection, Error> {
    let open = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = match place {
            Where::File(path) => Connection::open_with_flags(path, flags)?,
            Where::Memory(name) => {
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
                let shared = Connection::open_with_flags(name, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
                // There is no write-ahead log in memory, so readers would be refused during a write.
                shared.execute_batch("PRAGMA read_uncommitted = ON; PRAGMA query_only = ON")?;
                shared
            }
        };
        settings(&connection)?;
        Ok(connection)
    };
    open().map_err(|error| classify(path, &error))
}

/// What every connection has.
fn settings(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Otherwise SQLite plans a cached statement anew whenever it gets other values, in case another plan suits them
    // better, and that takes ten times as long as the answer. Ours have one good plan each.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare(path: &Path) -> Result<(Connection, Found), Error> {
    // Made here and not by SQLite, so that no other user can read it; what SQLite puts beside it gets the same mode.
    let made = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    made.map_err(|error| from_io(path, &error))?;
    let connect = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        settings(&connection)?;
        // A row that is replaced after its run's values were deleted must not leave them in the file.
        connection.execute_batch(
            "PRAGMA secure_delete = ON; PRAGMA synchronous = NORMAL;
             PRAGMA cache_size = -16384; PRAGMA wal_autocheckpoint = 4096; PRAGMA journal_size_limit = 67108864;",
        )?;
        Ok(connection)
    };
    let connection = connect().map_err(|error| classify(path, &error))?;
    let found = settle(path, &connection)?;
    Ok((connection, found))
}

/// Makes the tables of an empty file and checks those of any other.
fn settle(path: &Path, connection: &Connection) -> Result<Found, Error> {
    let fault = |error: rusqlite::Error| classify(path, &error);
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0)).map_err(fault)?;
    if tables == 0 {
        connection.execute_batch("PRAGMA journal_mode = WAL").map_err(fault)?;
        let begin = format!(
            "BEGIN IMMEDIATE; {TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT"
        );
        connection.execute_batch(&begin).map_err(fault)?;
    }
    let (application, version) =
        (number("application_id").map_err(fault)?, number("user_version").map_err(fault)?);
    let unfit = |detail: String| Error::Damaged { path: path.to_owned(), detail };
    if application != APPLICATION_ID {
        return Err(unfit("it is the file of another program".to_owned()));
    }
    if version != VERSION {
        return Err(unfit(format!("its version is {version}, and this is {VERSION}")));
    }
    find(connection).map_err(fault)
}

fn find(connection: &Connection) -> rusqlite::Result<Found> {
    let progress = "SELECT through, skew_ms FROM progress WHERE only = 0";
    let (through, skew_ms) =
        connection.query_row(progress, (), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
    Ok(Found {
        through: through.cast_unsigned(),
        skew_ms: skew_ms.cast_unsigned(),
        id_max: id_max(connection)?,
    })
}

/// The highest id in the index.
pub(super) fn id_max(connection: &Connection) -> rusqlite::Result<Option<RunId>> {
    let id: Option<[u8; 16]> = connection.query_row("SELECT max(id) FROM runs", (), |row| row.get(0))?;
    Ok(id.map(|bytes| RunId(u128::from_be_bytes(bytes))))
}

/// Renames the file and what belongs to it. An older one that was set aside is replaced, so that they do not pile up.
fn set_aside(path: &Path) -> Result<PathBuf, Error> {
    let aside = beside(path, ".damaged");
    // The file goes last: should a crash come between, it is found again and does not fit again.
    for suffix in ["-wal", "-shm", ""] {
        let (from, to) = (beside(path, suffix), beside(&aside, suffix));
        match fs::rename(&from, &to) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => remove(path, &to)?,
            Err(error) => return Err(from_io(path, &error)),
        }
    }
    remove(path, &suspect(path))?;
    Ok(aside)
}

/// Leaves word that the file is damaged, for the next start. Best effort: the damage would be found again.
pub(super) fn mark(path: &Path) {
    let _ = fs::write(suspect(path), b"");
}

fn suspect(path: &Path) -> PathBuf {
    beside(path, ".suspect")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

fn exists(path: &Path) -> Result<bool, Error> {
    path.try_exists().map_err(|error| from_io(path, &error))
}

fn remove(path: &Path, file: &Path) -> Result<(), Error> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(from_io(path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(super) fn from_io(path: &Path, error: &io::Error) -> Error {
    let (path, detail) = (path.to_owned(), error.to_string());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full { path, detail },
        _ => Error::Io { path, detail },
    }
}

/// What SQLite's answer means for us. Our statements are fixed, so one that it does not understand, or an answer of
/// another type, means that the tables are not ours any more.
pub(super) fn classify(path: &Path, error: &rusqlite::Error) -> Error {
    let (path, detail) = (path.to_owned(), error.to_string());
    let Some(failure) = error.sqlite_error() else { return Error::Damaged { path, detail } };
    match (failure.code, failure.extended_code) {
        (ErrorCode::DiskFull, _) | (_, ffi::SQLITE_IOERR_SHMSIZE) => Error::Full { path, detail },
        (ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed, _) => {
            Error::Busy { path, detail }
        }
        (ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown, _)
        | (ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch, _)
        | (_, ffi::SQLITE_IOERR_SHORT_READ) => Error::Damaged { path, detail },
        (_, _) => Error::Io { path, detail },
    }
}
