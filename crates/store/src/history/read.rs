//! Reading the index, over separate connections, so that no reader waits for the writer.
//!
//! A page is found in two steps. First its ids, from one of the indexes alone: a range for each status, merged. Then
//! their rows. Both happen in one read transaction, so a page is of one moment.

use super::{Error, Filter, ID_MS_SHIFT, PAGE_LEN_MAX, Page, Row, file, number};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use windlass_core::digest::Digest;
use windlass_core::id::{ApprovalId, Name, RunId};
use windlass_core::run::Status;
use windlass_core::time::Millis;

/// How many can read at a time.
const READERS: usize = 4;

/// The connections that read.
pub(super) struct Readers {
    path: PathBuf,
    connections: Vec<Mutex<Connection>>,
    turn: AtomicUsize,
}

impl Readers {
    pub(super) fn open(path: &Path, place: &file::Where) -> Result<Readers, Error> {
        let connections = (0..READERS).map(|_| file::open_reader(path, place).map(Mutex::new));
        Ok(Readers {
            path: path.to_owned(),
            connections: connections.collect::<Result<_, _>>()?,
            turn: AtomicUsize::new(0),
        })
    }

    /// Reads with a connection that is free, or waits for one.
    pub(super) fn with<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let free = self.connections.iter().find_map(|connection| match connection.try_lock() {
            Ok(connection) => Some(connection),
            // A connection keeps no state between reads that a panic could have left behind.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        });
        let next = || {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let connection = self.connections.get(turn % READERS)?;
            Some(connection.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let Some(connection) = free.or_else(next) else {
            return Err(Error::Ended { path: self.path.clone() });
        };
        let answer = read(&connection).map_err(|error| file::classify(&self.path, &error));
        if let Err(Error::Damaged { .. }) = &answer {
            file::mark(&self.path);
        }
        answer
    }

    pub(super) fn close(&mut self) {
        self.connections.clear();
    }
}

/// Runs that ended before a time. A run ends after it is made, so those that were made later need not be looked at; and
/// an id from outside with another time is only found later.
pub(super) fn ended_before(connection: &Connection, at: Millis, max: usize) -> rusqlite::Result<Vec<RunId>> {
    const ENDED: &str = "SELECT id FROM runs WHERE id < ?1 AND completed_at < ?2 ORDER BY id LIMIT ?3";
    let high = u128::from(at.0).checked_shl(ID_MS_SHIFT).unwrap_or(u128::MAX);
    let bounds = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let mut query = connection.prepare_cached(ENDED)?;
    let found = query.query_map(params![high.to_be_bytes(), bounds(at.0), bounds(max as u64)], |row| {
        row.get::<_, [u8; 16]>(0)
    })?;
    found.map(|id| id.map(|bytes| RunId(u128::from_be_bytes(bytes)))).collect()
}

const STREAM: &str = "SELECT first_seq FROM streams WHERE name = ?1";

/// Where the records of a named stream begin.
pub(super) fn stream(connection: &Connection, name: &str) -> rusqlite::Result<Option<u64>> {
    let mut query = connection.prepare_cached(STREAM)?;
    query.query_row([name], |row| row.get::<_, i64>(0)).optional().map(|seq| seq.map(i64::cast_unsigned))
}

/// Whether there is a named stream at all.
pub(super) fn has_streams(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM streams)", [], |row| row.get(0))
}

const LINEAGE: &str = "SELECT id FROM runs INDEXED BY by_root WHERE root = ?1 LIMIT ?2";

/// The runs of a lineage.
pub(super) fn lineage(connection: &Connection, root: RunId, max: usize) -> rusqlite::Result<Vec<RunId>> {
    let mut query = connection.prepare_cached(LINEAGE)?;
    let bounds = params![root.0.to_be_bytes(), i64::try_from(max).unwrap_or(i64::MAX)];
    let found = query.query_map(bounds, |row| row.get::<_, [u8; 16]>(0))?;
    found.map(|id| id.map(|bytes| RunId(u128::from_be_bytes(bytes)))).collect()
}

pub(super) fn count(connection: &Connection) -> rusqlite::Result<u64> {
    connection.query_row("SELECT count(*) FROM runs", [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs)
}

const RUNBOOK: &str = "SELECT 1 FROM runs INDEXED BY by_runbook WHERE runbook = ?1 LIMIT 1";

/// Whether a run has this version of a runbook.
pub(super) fn has_runbook(connection: &Connection, runbook: &Digest) -> rusqlite::Result<bool> {
    connection.prepare_cached(RUNBOOK)?.exists([runbook.0])
}

/// What a name is the name of. The numbers are part of the file's version.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Tenant = 0,
    Namespace = 1,
    Pipeline = 2,
    Repo = 3,
}

/// Tenants belong to no tenant; every other name belongs to one.
pub(super) const NOBODY: i64 = 0;

const NAME: &str = "SELECT number FROM names WHERE tenant = ?1 AND kind = ?2 AND text = ?3";

/// The number of a name, if any run has it.
pub(super) fn find_name(
    connection: &Connection,
    tenant: i64,
    kind: Kind,
    text: &str,
) -> rusqlite::Result<Option<i64>> {
    let mut statement = connection.prepare_cached(NAME)?;
    statement.query_row(params![tenant, kind as u8, text], |row| row.get(0)).optional()
}

/// The order of these columns is that of [`row_of`].
const ROW: &str = "
    SELECT id, (SELECT text FROM names WHERE number = runs.tenant),
        (SELECT text FROM names WHERE number = runs.namespace), status,
        (SELECT text FROM names WHERE number = runs.pipeline), repo, created_at, updated_at, completed_at,
        first_seq, last_seq, json, (SELECT text FROM names WHERE number = runs.repo), root, runbook
    FROM runs WHERE id = ?1";

/// The row of a run.
pub(super) fn get(connection: &Connection, id: RunId) -> rusqlite::Result<Option<Row>> {
    connection.prepare_cached(ROW)?.query_row([id.0.to_be_bytes()], row_of).optional()
}

fn row_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let name = |column: usize| {
        let text = row.get_ref(column)?.as_str()?;
        Name::new(text).map_err(|error| strange(column, error.to_string()))
    };
    let count = |column: usize| row.get::<_, i64>(column).map(i64::cast_unsigned);
    let status: u8 = row.get(3)?;
    let repo: Option<String> = row.get(12)?;
    if repo.is_none() && row.get::<_, Option<i64>>(5)?.is_some() {
        return Err(strange(12, "a repository has no name".to_owned()));
    }
    let known = Status::ALL.iter().copied().find(|known| number(*known) == status);
    Ok(Row {
        id: RunId(u128::from_be_bytes(row.get(0)?)),
        root: RunId(u128::from_be_bytes(row.get(13)?)),
        tenant: name(1)?,
        namespace: name(2)?,
        status: known.ok_or_else(|| strange(3, format!("{status} is no status")))?,
        pipeline: name(4)?,
        repo,
        runbook: Digest(row.get(14)?),
        created_at: Millis(count(6)?),
        updated_at: Millis(count(7)?),
        completed_at: row.get::<_, Option<i64>>(8)?.map(|at| Millis(at.cast_unsigned())),
        first_seq: count(9)?,
        last_seq: count(10)?,
        json: row.get(11)?,
        approvals: Vec::new(),
    })
}

/// A value that this program did not write.
fn strange(column: usize, detail: String) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Null, detail.into())
}

/// What the ids of a page are looked for by. The index is named, so that nothing can lead to another. There is no
/// `LIMIT`: the reader stops when it has enough.
const BY_STATUS: &str = "SELECT id FROM runs INDEXED BY by_status
    WHERE tenant = ?1 AND namespace = ?2 AND status = ?3 AND id BETWEEN ?4 AND ?5 ORDER BY id DESC";
const BY_PIPELINE: &str = "SELECT id FROM runs INDEXED BY by_pipeline
    WHERE tenant = ?1 AND namespace = ?2 AND status = ?3 AND id BETWEEN ?4 AND ?5 AND pipeline = ?6 ORDER BY id DESC";
const BY_REPO: &str = "SELECT id FROM runs INDEXED BY by_repo
    WHERE tenant = ?1 AND namespace = ?2 AND status = ?3 AND id BETWEEN ?4 AND ?5 AND repo = ?6 ORDER BY id DESC";
const BY_BOTH: &str = "SELECT id FROM runs INDEXED BY by_repo
    WHERE tenant = ?1 AND namespace = ?2 AND status = ?3 AND id BETWEEN ?4 AND ?5 AND repo = ?6 AND pipeline = ?7
    ORDER BY id DESC";
/// The same from the other end, for the meaning of prefixes.
const BY_ID: &str = "SELECT id FROM runs INDEXED BY by_status
    WHERE tenant = ?1 AND namespace = ?2 AND status = ?3 AND id BETWEEN ?4 AND ?5 ORDER BY id";
/// The statements that pages are made of.
#[cfg(test)]
pub(super) const STATEMENTS: [&str; 11] =
    [NAME, ROW, BY_STATUS, BY_PIPELINE, BY_REPO, BY_BOTH, BY_ID, APPROVALS, LINEAGE, STREAM, RUNBOOK];

/// Whose runs are looked for, by what.
struct Search {
    sql: &'static str,
    tenant: i64,
    namespace: i64,
    names: Vec<i64>,
    status: Option<Status>,
}

impl Search {
    /// Nothing, where no run has such a name.
    fn of(connection: &Connection, filter: &Filter) -> rusqlite::Result<Option<Search>> {
        let Some((tenant, namespace)) = find_place(connection, &filter.tenant, &filter.namespace)? else {
            return Ok(None);
        };
        let sql = match (&filter.repo, &filter.pipeline) {
            (None, None) => BY_STATUS,
            (None, Some(_)) => BY_PIPELINE,
            (Some(_), None) => BY_REPO,
            (Some(_), Some(_)) => BY_BOTH,
        };
        let wanted = [
            (Kind::Repo, filter.repo.as_deref()),
            (Kind::Pipeline, filter.pipeline.as_ref().map(Name::as_str)),
        ];
        let mut names = Vec::new();
        for (kind, text) in wanted {
            let Some(text) = text else { continue };
            match find_name(connection, tenant, kind, text)? {
                Some(number) => names.push(number),
                None => return Ok(None),
            }
        }
        Ok(Some(Search { sql, tenant, namespace, names, status: filter.status }))
    }

    /// Ids in the range, at most so many of each status, in no order across statuses.
    fn ids(
        &self,
        connection: &Connection,
        low: u128,
        high: u128,
        max: usize,
    ) -> rusqlite::Result<Vec<RunId>> {
        let mut ids = Vec::new();
        let statuses = self.status.as_ref().map_or(Status::ALL, std::slice::from_ref);
        let mut statement = connection.prepare_cached(self.sql)?;
        for status in statuses {
            statement.raw_bind_parameter(1, self.tenant)?;
            statement.raw_bind_parameter(2, self.namespace)?;
            statement.raw_bind_parameter(3, number(*status))?;
            statement.raw_bind_parameter(4, low.to_be_bytes())?;
            statement.raw_bind_parameter(5, high.to_be_bytes())?;
            for (i, name) in self.names.iter().enumerate() {
                statement.raw_bind_parameter(6 + i, name)?;
            }
            let end = ids.len() + max;
            let mut rows = statement.raw_query();
            while ids.len() < end
                && let Some(row) = rows.next()?
            {
                ids.push(RunId(u128::from_be_bytes(row.get(0)?)));
            }
        }
        Ok(ids)
    }
}

/// The numbers of a tenant and a namespace, if any run is there.
fn find_place(
    connection: &Connection,
    tenant: &Name,
    namespace: &Name,
) -> rusqlite::Result<Option<(i64, i64)>> {
    let Some(tenant) = find_name(connection, NOBODY, Kind::Tenant, tenant.as_str())? else { return Ok(None) };
    let namespace = find_name(connection, tenant, Kind::Namespace, namespace.as_str())?;
    Ok(namespace.map(|namespace| (tenant, namespace)))
}

/// The runs of a namespace in a range of ids, oldest first.
pub(super) fn find(
    connection: &Connection,
    (tenant, namespace): (&Name, &Name),
    (low, high): (RunId, RunId),
    max: usize,
) -> rusqlite::Result<Vec<RunId>> {
    let moment = Transaction::new_unchecked(connection, TransactionBehavior::Deferred)?;
    let Some((tenant, namespace)) = find_place(&moment, tenant, namespace)? else { return Ok(Vec::new()) };
    let search = Search { sql: BY_ID, tenant, namespace, names: Vec::new(), status: None };
    let mut ids = search.ids(&moment, low.0, high.0, max)?;
    ids.sort_unstable();
    ids.truncate(max);
    Ok(ids)
}

const APPROVALS: &str = "SELECT id, run FROM approvals WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT ?3";

/// Approvals in a range of ids, and the run of each.
pub(super) fn approvals(
    connection: &Connection,
    (low, high): (ApprovalId, ApprovalId),
    max: usize,
) -> rusqlite::Result<Vec<(ApprovalId, RunId)>> {
    let mut query = connection.prepare_cached(APPROVALS)?;
    let bounds = params![low.0.to_be_bytes(), high.0.to_be_bytes(), i64::try_from(max).unwrap_or(i64::MAX)];
    let found = query.query_map(bounds, |row| {
        let [approval, run] = [row.get::<_, [u8; 16]>(0)?, row.get(1)?].map(u128::from_be_bytes);
        Ok((ApprovalId(approval), RunId(run)))
    })?;
    found.collect()
}

/// The most rows that are looked at for a page that no index finds.
const LOOKED_MAX: usize = 2_000;

/// A page of runs, newest first.
pub(super) fn page(connection: &Connection, filter: &Filter) -> rusqlite::Result<Page> {
    let moment = Transaction::new_unchecked(connection, TransactionBehavior::Deferred)?;
    let mut page = Page::default();
    let (mut bytes, mut looked) = (0, 0);
    let before = filter.before.map_or(Some(u128::MAX), |before| before.0.checked_sub(1));
    let (Some(mut high), Some(low)) = (before, lowest(&moment, filter.since)?) else { return Ok(page) };
    let Some(search) = Search::of(&moment, filter)? else { return Ok(page) };
    let any = filter.origin.is_any();
    let step = if any { filter.limit } else { LOOKED_MAX };
    // Goes round again only where `since` or the origin took rows out, each time below the last id it has seen.
    while page.rows.len() < filter.limit {
        let mut ids = search.ids(&moment, low, high, step)?;
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.truncate(step);
        for id in &ids {
            let row = get(&moment, *id)?.ok_or_else(|| strange(0, format!("{id} is in an index alone")))?;
            looked += 1;
            let wanted = filter.since.is_none_or(|since| row.created_at >= since)
                && (any || filter.origin.takes_row(&row));
            if page.rows.len() < filter.limit && wanted {
                bytes += row.json.len();
                page.rows.push(row);
            }
            if page.rows.len() < filter.limit && (bytes > PAGE_LEN_MAX || !any && looked == LOOKED_MAX) {
                page.floor = Some(*id);
                return Ok(page);
            }
        }
        match ids.last().and_then(|last| last.0.checked_sub(1)) {
            Some(next) if ids.len() == step => high = next,
            Some(_) | None => break,
        }
    }
    Ok(page)
}

/// The lowest id that a run created since then can have; none where no id is high enough.
fn lowest(connection: &Connection, since: Option<Millis>) -> rusqlite::Result<Option<u128>> {
    let Some(since) = since else { return Ok(Some(0)) };
    let mut statement = connection.prepare_cached("SELECT skew_ms FROM progress WHERE only = 0")?;
    let skew_ms: i64 = statement.query_row((), |row| row.get(0))?;
    let low_ms = u128::from(since.0.saturating_sub(skew_ms.cast_unsigned()));
    Ok((low_ms < 1 << (u128::BITS - ID_MS_SHIFT)).then_some(low_ms << ID_MS_SHIFT))
}
