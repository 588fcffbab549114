//! Retention: what ended longer ago than it is kept leaves the log, the history and the disk, while the process runs.
//!
//! ```text
//!  choose runs ─▶ compact the log ─▶ on record ─▶ files of the runs ─▶ their rows in the history
//! ```
//!
//! A process that ends in between goes on at the next look, because the rows are the last to go; at worst a run is on
//! record twice as deleted. It costs a copy of what stays, so it waits until a tenth can go.

use crate::app::App;
use crate::evidence::seal::{Sealing, sealed_through};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use windlass_core::code::Code;
use windlass_core::event::RetentionApplied;
use windlass_core::id::{ItemId, Name, RunId};
use windlass_core::item;
use windlass_core::run::Actor;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Refusal};
use windlass_engine::Handle;
use windlass_engine::port::Clock;
use windlass_executor::config::Retention as Kept;
use windlass_executor::home::Home;
use windlass_executor::secrets::Secrets;
use windlass_store::history;
use windlass_store::log::Compacted;
use windlass_store::store::{Before, Embedded, Retiring};

/// When it is looked at first, and how often then at the most and at the least.
const FIRST: Duration = Duration::from_secs(60);
const EVERY_MAX: Duration = Duration::from_secs(24 * 3_600);
const EVERY_MIN: Duration = Duration::from_secs(1);
/// How often within the shortest retention.
const LOOKS: u32 = 4;
/// One of so many must be able to go.
const SHARE: u64 = 10;
/// How many runs one command or one look at the store is about.
const RUNS_MAX: usize = 1_000;
/// How many items one look at the store is about.
const ITEMS_MAX: usize = 10_000;
/// How the name of a bundle ends.
const BUNDLE: &str = ".evidence.tar";

/// Works until it is dropped.
pub struct Retention {
    _stop: Sender<()>,
}

/// What it works with.
#[derive(Clone)]
pub struct Place {
    /// The way to the loop.
    pub engine: Handle<Embedded>,
    /// The data directory.
    pub home: Home,
    /// How long what has ended is kept.
    pub kept: Kept,
    /// What seals before anything goes; absent while the process stops.
    pub sealing: Weak<Sealing>,
    /// What knows the values that runs were given.
    pub secrets: Arc<Secrets>,
}

/// What a look came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// What the log lost.
    pub log: Compacted,
    /// How many runs went.
    pub runs: usize,
}

/// Why what is past its retention stays for now.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The loop refuses, or has ended.
    #[error("{}", .0.to_string())]
    Engine(Refusal),
    /// The history.
    #[error(transparent)]
    History(#[from] history::Error),
    /// The log.
    #[error(transparent)]
    Log(#[from] windlass_store::log::Error),
    /// A file.
    #[error("{path} cannot be removed: {error}")]
    File {
        /// Which.
        path: String,
        /// What the system says.
        error: io::Error,
    },
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Engine(Refusal::Error { code, .. }) => *code,
            Error::Engine(Refusal::Need(_)) => Code::Internal,
            Error::History(error) => error.code(),
            Error::Log(error) => error.code(),
            Error::File { .. } => Code::Unavailable,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Engine(refusal)
    }
}

impl Retention {
    /// Begins.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(place: Place) -> io::Result<Retention> {
        let (stop, stopped) = channel();
        std::thread::Builder::new().name("retention".into()).spawn(move || serve(&place, &stopped))?;
        Ok(Retention { _stop: stop })
    }
}

fn serve(place: &Place, stopped: &Receiver<()>) {
    let often = Duration::from_millis(place.kept.shortest().0) / LOOKS;
    let every = often.clamp(EVERY_MIN, EVERY_MAX);
    let mut wait = FIRST.min(every);
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
        wait = every;
        let now = windlass_executor::clock::System.now();
        match place.look(now, SHARE) {
            // An engine that has ended has nothing to let go.
            Ok(_) | Err(Error::Engine(_)) => {}
            Err(error) => eprintln!("windlass: what is past its retention stays for now: {error}"),
        }
    }
}

impl Place {
    /// Lets go what ended longer ago than it is kept, where one of `share` can go; 0 is always.
    ///
    /// # Errors
    /// Why it stays.
    pub fn look(&self, now: Millis, share: u64) -> Result<Done, Error> {
        let before = Before {
            runs: now - self.kept.runs,
            items: now - self.kept.items,
            keys: now - self.kept.keys,
            runbooks: now - self.kept.runs,
        };
        let retiring = self.engine.read(move |store| choose(store, before, share))??;
        // What is not sealed cannot go. Where it cannot be sealed now (a full disk), what was sealed before goes all the same.
        let _ = self.sealing.upgrade().map(|sealing| sealing.now());
        let retiring = retiring.sealed(self.engine.read(|store| sealed_through(store))?);
        let done = self.let_go(&retiring);
        if done.is_err() {
            // Those that were chosen are there for everybody again.
            self.engine.read(|store| store.retired(&[], true))?;
        }
        self.forget_items(before.items)?;
        self.sweep_output(now - self.kept.output)?;
        self.sweep_bundles(now, self.kept.evidence)?;
        self.forget_given(now);
        done
    }

    fn let_go(&self, retiring: &Retiring) -> Result<Done, Error> {
        let note = |floor| self.engine.call(Actor::SYSTEM, Command::RaiseEpochs { floor }).is_ok();
        let log = retiring.carry_out(&note)?;
        let gone = retiring.gone()?;
        self.record(&gone, &log)?;
        // What stands before may go the next time that it is looked at.
        for stream in &log.long {
            self.engine.call(Actor::SYSTEM, Command::Carry(stream.clone()))?;
        }
        for run in &gone {
            remove_dir(&self.home.outputs().join(run.to_string()))?;
        }
        let (runs, anything) = (gone.len(), log.bytes_dropped > 0);
        self.engine.read(move |store| store.retired(&gone, anything))?;
        Ok(Done { log, runs })
    }

    /// Forgets values of secrets that were changed before the oldest run was made that is kept.
    fn forget_given(&self, now: Millis) {
        let oldest = self.engine.read(|store| store.oldest_run());
        // What cannot be read or written stays for the next time.
        if let Ok(Ok(oldest)) = oldest {
            let _ = self.secrets.forget_given(oldest.map_or(now, RunId::made_at));
        }
    }

    /// Takes out items that failed or died before a time: from here on they leave as those do that are done.
    fn forget_items(&self, before: Millis) -> Result<(), Error> {
        let mut after = ItemId(0);
        loop {
            let found = self.engine.read(move |store| store.failed_items(after, before, ITEMS_MAX))?;
            for item in &found.items {
                let input = item::Input::Forget { before };
                self.engine.call(Actor::SYSTEM, Command::Item { item: *item, input })?;
            }
            match found.next {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }

    /// Puts on record what went.
    fn record(&self, gone: &[RunId], log: &Compacted) -> Result<(), Error> {
        for runs in gone.chunks(RUNS_MAX) {
            let wanted = runs.to_vec();
            let of_whom = move |store: &mut Embedded| {
                let mut whose: BTreeMap<Name, Vec<RunId>> = BTreeMap::new();
                for run in wanted {
                    if let Some(tenant) = store.tenant_of(run)? {
                        whose.entry(tenant).or_default().push(run);
                    }
                }
                Ok::<_, history::Error>(whose)
            };
            for (tenant, runs) in self.engine.read(of_whom)?? {
                let reason = Some("retention".to_owned());
                self.engine.call(Actor::SYSTEM, Command::Deleted { tenant, runs, reason })?;
            }
        }
        if log.bytes_dropped > 0 {
            let applied = RetentionApplied {
                runs: log.runs,
                items: log.items,
                ingress_keys: log.ingress_keys,
                effect_keys: log.effect_keys,
                records: log.records_dropped,
                bytes: log.bytes_dropped,
                heads: log.heads,
                holds: Some(log.holds),
                runbooks: Some(log.runbooks).filter(|runbooks| *runbooks > 0),
            };
            self.engine.call(Actor::SYSTEM, Command::Retained(Box::new(applied)))?;
        }
        Ok(())
    }

    /// Removes what steps of runs wrote that ended before a time, or of which nothing is known any more.
    fn sweep_output(&self, before: Millis) -> Result<(), Error> {
        let outputs = self.home.outputs();
        let runs: Vec<RunId> = names(&outputs)?
            .iter()
            .filter_map(|name| RunId::parse(name).ok())
            // An id tells when it was made, and a run that was made later has not ended before.
            .filter(|run| Millis((run.0 >> 80) as u64) < before)
            .collect();
        for runs in runs.chunks(RUNS_MAX) {
            let wanted = runs.to_vec();
            let past = self.engine.read(move |store| {
                let mut past = Vec::new();
                for run in wanted {
                    if store.is_past(run, before)? {
                        past.push(run);
                    }
                }
                Ok::<_, history::Error>(past)
            })??;
            for run in past {
                remove_dir(&outputs.join(run.to_string()))?;
            }
        }
        Ok(())
    }

    /// Removes bundles in the data directory that were made longer ago than they are kept. A folder or bucket that is named
    /// by `WINDLASS_ARTIFACTS` has rules of its own.
    fn sweep_bundles(&self, now: Millis, kept: Span) -> Result<(), Error> {
        let folder = self.home.evidence();
        let before = SystemTime::UNIX_EPOCH + Duration::from_millis((now - kept).0);
        for name in names(&folder)? {
            let path = folder.join(&name);
            let is_bundle = name.strip_suffix(BUNDLE).is_some_and(|run| RunId::parse(run).is_ok());
            let made = fs::metadata(&path).and_then(|meta| meta.modified());
            if is_bundle && made.is_ok_and(|made| made < before) {
                gone(&path, fs::remove_file(&path))?;
            }
        }
        Ok(())
    }
}

/// Chooses what goes. Runs are left alone where they are too few to be worth it.
fn choose(store: &mut Embedded, before: Before, share: u64) -> Result<Retiring, history::Error> {
    let listed = store.listed()?;
    let retiring = store.retire(before)?;
    if share == 0 || retiring.len() as u64 * share >= listed {
        return Ok(retiring.worth(share));
    }
    Ok(store.retire(Before { runs: Millis(0), ..before })?.worth(share))
}

/// What is in a folder; nothing where there is none.
fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |error| Error::File { path: folder.display().to_string(), error };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

fn remove_dir(path: &Path) -> Result<(), Error> {
    gone(path, fs::remove_dir_all(path))
}

fn gone(path: &Path, removed: io::Result<()>) -> Result<(), Error> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::File { path: path.display().to_string(), error })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Lets go at once what ended longer ago than a time, whether it is worth it or not: for a store that nobody else uses.
/// `ask` is asked with the number of runs.
///
/// # Errors
/// Why it stays, or what `ask` says.
pub fn at_once<E: From<Error>>(
    app: &App,
    kept: Kept,
    ask: impl FnOnce(usize) -> Result<(), E>,
) -> Result<Done, E> {
    /// How long is waited for what has ended to leave memory, each time.
    const PAUSE: Duration = Duration::from_millis(2);
    let engine = &app.engine;
    // It takes as long as the history takes to list it.
    while engine.read(|store| store.let_all_leave()).map_err(Error::from)? {
        std::thread::sleep(PAUSE);
    }
    let now = windlass_executor::clock::System.now();
    let place = Place {
        engine: engine.clone(),
        home: app.home.clone(),
        kept,
        sealing: Arc::downgrade(&app.sealing),
        secrets: app.secrets(),
    };
    let before = now - kept.runs;
    let runs = engine.read(move |store| store.ended_before(before)).map_err(Error::from)?;
    let runs = runs.map_err(Error::from)?;
    if runs > 0 {
        ask(runs)?;
    }
    Ok(place.look(now, 0)?)
}
