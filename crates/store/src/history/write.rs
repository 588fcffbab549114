//! Writing the index: what is pending, and the thread that commits it.
//!
//! Changes are merged by run, and the thread takes all of them together: one transaction for everything that arrived
//! within a moment, because a page that many rows share is then written once. A caller that waits ends the moment early. When
//! writing fails, what was taken goes back and is tried again.

use super::file::{self, Found};
use super::read::{Kind, NOBODY, find_name};
use super::{Error, Row, id_ms, number};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use windlass_core::id::RunId;

/// How many changes may be pending.
pub(super) const PENDING_MAX: usize = 65_536;
/// How many bytes of rows may be pending.
const PENDING_BYTES_MAX: usize = 64 << 20;
/// How many committed ids are remembered for callers to query.
const FLUSHED_MAX: usize = 1 << 20;
/// How long rows are gathered, and how many of them at most, before they are written.
const GATHER: Duration = Duration::from_millis(50);
const GATHER_MAX: usize = 2_048;
/// How long to wait before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How many names the writer remembers the numbers of.
const NAMES_MAX: usize = 4_096;

/// What becomes of a run: its row, or nothing where it is removed.
type Runs = BTreeMap<RunId, Option<Row>>;
/// Where named streams begin, or nothing where they are removed.
type Streams = BTreeMap<String, Option<u64>>;

/// What is to be written.
#[derive(Default)]
struct Changes {
    runs: Runs,
    streams: Streams,
}

impl Changes {
    fn len(&self) -> usize {
        self.runs.len() + self.streams.len()
    }

    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.streams.is_empty()
    }
}

#[derive(Default)]
struct State {
    changes: Changes,
    bytes: usize,
    /// What `through` will be once the changes are written.
    through_next: u64,
    /// Something was dropped, so `through` must not move any more.
    dropped: bool,
    /// Hand-overs so far, and how many of them are written.
    handed: u64,
    written: u64,
    found: Found,
    flushed: VecDeque<RunId>,
    failure: Option<Error>,
    /// A caller waits.
    hurried: bool,
    closing: bool,
    ended: bool,
}

impl State {
    fn idle(&self) -> bool {
        self.changes.is_empty() && self.through_next == self.found.through
    }

    fn has_room(&self, count: usize, bytes: usize) -> bool {
        // One hand-over always fits, however large.
        self.changes.is_empty()
            || (self.changes.len().saturating_add(count) <= PENDING_MAX
                && self.bytes.saturating_add(bytes) <= PENDING_BYTES_MAX)
    }

    fn change(&mut self, id: RunId, change: Option<Row>) {
        self.bytes += weight(change.as_ref());
        if let Some(old) = self.changes.runs.insert(id, change) {
            self.bytes -= weight(old.as_ref());
        }
    }

    /// Puts back what could not be written. What came since is newer and stays.
    fn put_back(&mut self, changes: Changes) {
        for (id, change) in changes.runs {
            if !self.changes.runs.contains_key(&id) {
                self.change(id, change);
            }
        }
        for (name, seq) in changes.streams {
            self.changes.streams.entry(name).or_insert(seq);
        }
    }

    fn committed(&mut self, changes: &Changes, batch: &Batch, found: Found) {
        self.found = found;
        self.failure = None;
        self.written = batch.handed;
        self.flushed.extend(changes.runs.iter().filter(|(_, change)| change.is_some()).map(|(id, _)| *id));
        let over = self.flushed.len().saturating_sub(FLUSHED_MAX);
        self.flushed.drain(..over);
    }
}

/// About what a change takes in memory.
fn weight(change: Option<&Row>) -> usize {
    const FIXED: usize = 256;
    change.map_or(FIXED, |row| {
        FIXED + row.json.len() + row.approvals.len() * 16 + row.repo.as_ref().map_or(0, String::len)
    })
}

/// Where a batch stands in the order of things.
struct Batch {
    handed: u64,
    through: u64,
}

/// What is pending, and what became of what was.
pub(super) struct Queue {
    path: PathBuf,
    state: Mutex<State>,
    /// There is something to write, or the queue closes.
    wanted: Condvar,
    /// Something was taken or written, or writing has failed.
    moved: Condvar,
}

impl Queue {
    pub(super) fn new(path: &Path, found: &Found) -> Queue {
        let state = State { found: *found, through_next: found.through, ..State::default() };
        Queue {
            path: path.to_owned(),
            state: Mutex::new(state),
            wanted: Condvar::new(),
            moved: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.hurried = true;
        self.wanted.notify_one();
        self.moved.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, once there is room; an error where there is none and writing fails.
    fn room(&self, count: usize, bytes: usize) -> Result<MutexGuard<'_, State>, MutexGuard<'_, State>> {
        let mut state = self.lock();
        while !state.has_room(count, bytes) {
            if state.failure.is_some() || state.ended {
                return Err(state);
            }
            state = self.wait(state);
        }
        Ok(state)
    }

    pub(super) fn put(&self, rows: Vec<Row>, through: u64) {
        let bytes = rows.iter().map(|row| weight(Some(row))).sum();
        let mut state = match self.room(rows.len(), bytes) {
            Ok(state) => state,
            Err(mut state) => {
                state.dropped = true;
                return;
            }
        };
        let was_idle = state.idle();
        for row in rows {
            state.change(row.id, Some(row));
        }
        if !state.dropped {
            state.through_next = state.through_next.max(through);
        }
        state.handed += 1;
        if was_idle || state.changes.len() >= GATHER_MAX {
            self.wanted.notify_one();
        }
    }

    pub(super) fn put_streams(&self, streams: Vec<(String, Option<u64>)>) {
        if streams.is_empty() {
            return;
        }
        let mut state = match self.room(streams.len(), 0) {
            Ok(state) => state,
            Err(mut state) => {
                state.dropped = true;
                return;
            }
        };
        let was_idle = state.idle();
        state.changes.streams.extend(streams);
        state.handed += 1;
        if was_idle || state.changes.len() >= GATHER_MAX {
            self.wanted.notify_one();
        }
    }

    pub(super) fn remove(&self, ids: &[RunId]) {
        for ids in ids.chunks(PENDING_MAX / 4) {
            let Ok(mut state) = self.room(ids.len(), ids.len() * weight(None)) else { return };
            for id in ids {
                state.change(*id, None);
            }
            state.handed += 1;
            self.wanted.notify_one();
        }
    }

    pub(super) fn flushed(&self) -> Vec<RunId> {
        std::mem::take(&mut self.lock().flushed).into()
    }

    pub(super) fn through(&self) -> u64 {
        self.lock().found.through
    }

    pub(super) fn id_max(&self) -> Option<RunId> {
        self.lock().found.id_max
    }

    pub(super) fn failure(&self) -> Option<Error> {
        let state = self.lock();
        let ended = || Error::Ended { path: self.path.clone() };
        state.failure.clone().or_else(|| (state.ended && !state.closing).then(ended))
    }

    pub(super) fn flush(&self) -> Result<(), Error> {
        let mut state = self.lock();
        let handed = state.handed;
        while state.written < handed {
            match &state.failure {
                Some(failure) => return Err(failure.clone()),
                None if state.ended => return Err(Error::Ended { path: self.path.clone() }),
                None => state = self.wait(state),
            }
        }
        Ok(())
    }

    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.wanted.notify_all();
    }

    /// How it ended, once the thread has.
    pub(super) fn ending(&self) -> Result<(), Error> {
        let state = self.lock();
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None if state.idle() => Ok(()),
            None => Err(Error::Ended { path: self.path.clone() }),
        }
    }

    /// Takes everything that is pending, or says that nothing is and nothing will be.
    fn take(&self) -> Option<(Changes, Batch, Found)> {
        let mut state = self.lock();
        while state.idle() {
            if state.closing {
                return None;
            }
            // A hand-over may bring nothing new; its waiters must be told all the same.
            state.written = state.handed;
            self.moved.notify_all();
            state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let gathers =
            |state: &mut State| !state.hurried && !state.closing && state.changes.len() < GATHER_MAX;
        let waited = self.wanted.wait_timeout_while(state, GATHER, gathers);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (state.bytes, state.hurried) = (0, false);
        let batch = Batch { handed: state.handed, through: state.through_next };
        let changes = std::mem::take(&mut state.changes);
        self.moved.notify_all();
        Some((changes, batch, state.found))
    }

    /// Puts back what failed and waits before it is tried again. Whether it is.
    fn failed(&self, changes: Changes, failure: Error) -> bool {
        if let Error::Damaged { .. } = &failure {
            file::mark(&self.path);
        }
        let mut state = self.lock();
        state.put_back(changes);
        state.failure = Some(failure);
        let last = state.closing;
        self.moved.notify_all();
        // Closing ends the wait for one last try; after that the log has what is lost here.
        let waited = self.wanted.wait_timeout_while(state, RETRY, |state| !state.closing);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        !last
    }
}

/// Signals that the thread has ended, however it ended, so that no caller waits for it.
struct Farewell(Arc<Queue>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.moved.notify_all();
    }
}

/// Starts the thread that writes.
pub(super) fn start(queue: Arc<Queue>, connection: Connection) -> Result<JoinHandle<()>, Error> {
    let path = queue.path.clone();
    let work = move || {
        let farewell = Farewell(queue);
        let mut writer = Writer { connection, names: HashMap::new() };
        let queue = &farewell.0;
        while let Some((changes, batch, found)) = queue.take() {
            match writer.write(&changes, batch.through, found) {
                Ok(found) => {
                    queue.lock().committed(&changes, &batch, found);
                    queue.moved.notify_all();
                }
                Err(error) => {
                    if !queue.failed(changes, file::classify(&queue.path, &error)) {
                        break;
                    }
                }
            }
        }
    };
    thread::Builder::new()
        .name("history".to_owned())
        .spawn(work)
        .map_err(|error| file::from_io(&path, &error))
}

/// A name as it is stored: the tenant it belongs to, what it is the name of, its text.
type Key = (i64, Kind, String);

struct Writer {
    connection: Connection,
    /// The numbers of names that are committed or written in this transaction.
    names: HashMap<Key, i64>,
}

const PUT: &str = "
    INSERT INTO runs (id, tenant, namespace, status, pipeline, repo, created_at, updated_at, completed_at,
        first_seq, last_seq, json, root, runbook)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
    ON CONFLICT (id) DO UPDATE SET root = excluded.root, tenant = excluded.tenant, namespace = excluded.namespace,
        status = excluded.status, pipeline = excluded.pipeline, repo = excluded.repo,
        created_at = excluded.created_at, updated_at = excluded.updated_at, completed_at = excluded.completed_at,
        first_seq = excluded.first_seq, last_seq = excluded.last_seq, json = excluded.json,
        runbook = excluded.runbook";
const REMOVE: &str = "DELETE FROM runs WHERE id = ?1 RETURNING tenant, pipeline, repo";
const PUT_APPROVAL: &str = "INSERT INTO approvals (id, run) VALUES (?1, ?2) ON CONFLICT (id) DO NOTHING";
const PUT_STREAM: &str = "INSERT INTO streams (name, first_seq) VALUES (?1, ?2)
    ON CONFLICT (name) DO UPDATE SET first_seq = excluded.first_seq";
const REMOVE_STREAM: &str = "DELETE FROM streams WHERE name = ?1";
const REMOVE_APPROVALS: &str = "DELETE FROM approvals WHERE run = ?1";
const NEW_NAME: &str = "INSERT INTO names (tenant, kind, text) VALUES (?1, ?2, ?3)";
const PROGRESS: &str = "UPDATE progress SET through = ?1, skew_ms = ?2 WHERE only = 0";
/// Names that no run has any more; the indexes tell without a look at the rows.
const FORGET_PIPELINE: &str = "DELETE FROM names WHERE number = ?2
    AND NOT EXISTS (SELECT 1 FROM runs INDEXED BY by_pipeline WHERE tenant = ?1 AND pipeline = ?2)";
const FORGET_REPO: &str = "DELETE FROM names WHERE number = ?2
    AND NOT EXISTS (SELECT 1 FROM runs INDEXED BY by_repo WHERE tenant = ?1 AND repo = ?2)";

impl Writer {
    /// Writes changes and progress in one transaction.
    fn write(&mut self, changes: &Changes, through: u64, mut found: Found) -> rusqlite::Result<Found> {
        if self.names.len() > NAMES_MAX {
            self.names.clear();
        }
        let written = write(&self.connection, &mut self.names, changes, through, &mut found);
        if written.is_err() {
            // What was numbered in this transaction is not.
            self.names.clear();
        }
        written.map(|()| found)
    }
}

fn write(
    connection: &Connection,
    names: &mut HashMap<Key, i64>,
    changes: &Changes,
    through: u64,
    found: &mut Found,
) -> rusqlite::Result<()> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let mut left = BTreeSet::new();
    let mut top_removed = false;
    for (name, seq) in &changes.streams {
        match seq {
            Some(seq) => transaction.prepare_cached(PUT_STREAM)?.execute(params![name, seq.cast_signed()])?,
            None => transaction.prepare_cached(REMOVE_STREAM)?.execute([name])?,
        };
    }
    for (id, change) in &changes.runs {
        match change {
            Some(row) => {
                put(&transaction, names, row)?;
                found.skew_ms = found.skew_ms.max(row.created_at.0.saturating_sub(id_ms(*id)));
                found.id_max = found.id_max.max(Some(*id));
            }
            None => {
                remove(&transaction, *id, &mut left)?;
                top_removed |= found.id_max == Some(*id);
            }
        }
    }
    for (tenant, pipeline, repo) in left {
        transaction.prepare_cached(FORGET_PIPELINE)?.execute([tenant, pipeline])?;
        if let Some(repo) = repo {
            transaction.prepare_cached(FORGET_REPO)?.execute([tenant, repo])?;
        }
        names.clear();
    }
    found.through = through;
    let progress = params![through.cast_signed(), found.skew_ms.cast_signed()];
    transaction.prepare_cached(PROGRESS)?.execute(progress)?;
    if top_removed {
        found.id_max = file::id_max(&transaction)?;
    }
    transaction.commit()
}

fn put(connection: &Connection, names: &mut HashMap<Key, i64>, row: &Row) -> rusqlite::Result<()> {
    let mut number_of = |tenant, kind, text: &str| -> rusqlite::Result<i64> {
        let key = (tenant, kind, text.to_owned());
        if let Some(number) = names.get(&key) {
            return Ok(*number);
        }
        let number = match find_name(connection, tenant, kind, text)? {
            Some(number) => number,
            None => connection.prepare_cached(NEW_NAME)?.insert(params![tenant, kind as u8, text])?,
        };
        names.insert(key, number);
        Ok(number)
    };
    let tenant = number_of(NOBODY, Kind::Tenant, row.tenant.as_str())?;
    let namespace = number_of(tenant, Kind::Namespace, row.namespace.as_str())?;
    let pipeline = number_of(tenant, Kind::Pipeline, row.pipeline.as_str())?;
    let repo = row.repo.as_deref().map(|repo| number_of(tenant, Kind::Repo, repo)).transpose()?;
    connection.prepare_cached(PUT)?.execute(params![
        row.id.0.to_be_bytes(),
        tenant,
        namespace,
        number(row.status),
        pipeline,
        repo,
        row.created_at.0.cast_signed(),
        row.updated_at.0.cast_signed(),
        row.completed_at.map(|at| at.0.cast_signed()),
        row.first_seq.cast_signed(),
        row.last_seq.cast_signed(),
        row.json,
        row.root.0.to_be_bytes(),
        row.runbook.0,
    ])?;
    for approval in &row.approvals {
        let pair = [approval.0.to_be_bytes(), row.id.0.to_be_bytes()];
        connection.prepare_cached(PUT_APPROVAL)?.execute(pair)?;
    }
    Ok(())
}

/// The numbers of a removed run's names: tenant, pipeline, repository.
type Left = (i64, i64, Option<i64>);

fn remove(connection: &Connection, id: RunId, left: &mut BTreeSet<Left>) -> rusqlite::Result<()> {
    connection.prepare_cached(REMOVE_APPROVALS)?.execute([id.0.to_be_bytes()])?;
    let mut statement = connection.prepare_cached(REMOVE)?;
    let mut rows = statement.query([id.0.to_be_bytes()])?;
    while let Some(row) = rows.next()? {
        left.insert((row.get(0)?, row.get(1)?, row.get(2)?));
    }
    Ok(())
}
