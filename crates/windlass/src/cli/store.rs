//! `store`: looks after the data directory. It is held alone meanwhile.

use super::args::{Args, StoreVerb};
use super::say::{self, Say};
use super::{Outcome, root};
use crate::client::Failure;
use crate::disk::Files;
use crate::log::{self, Log};
use crate::runbook;
use crate::secrets::Vault;
use crate::store::{self, Embedded};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use windlass_core::code::Code;
use windlass_core::state::State;
use windlass_core::time::{Millis, Span};
use windlass_engine::port::Store as _;

/// The keys that the log is sealed with.
const KEYS: &str = "keys";
/// What belongs to a data directory beside its log: without the keys nothing can be sealed any more, and the rest is kept
/// nowhere else. A configuration is there where somebody put it there.
const REST: [&str; 5] = [KEYS, "secrets.json", "output", "evidence", "windlass.yaml"];
/// How deep folders are in it: a folder of runs with files of steps.
const DEPTH_MAX: usize = 4;

fn failed(error: &log::Error) -> Failure {
    Failure::new(error.code(), error.to_string())
}

/// Opens the log of a data directory, which nobody else may hold meanwhile.
pub(super) fn open(root: &Path) -> Result<(Log, State), Failure> {
    if !root.is_dir() {
        let text = format!("there is no data directory {}", root.display());
        return Err(Failure::new(Code::NotFound, text));
    }
    let mut state = State::new();
    let opened = Log::open(Arc::new(Files), root, log::Options::default(), &mut |line| match line {
        log::Line::Saved(snapshot) => state.restore(*snapshot).map_err(|error| error.to_string()),
        log::Line::Record { record, .. } => state.fold_event(&record).map_err(|error| error.to_string()),
    });
    let (log, _) = opened.map_err(|error| failed(&error))?;
    Ok((log, state))
}

pub(super) fn store(args: &Args, verb: &StoreVerb, say: &Say) -> Outcome {
    let root = root(args)?;
    match verb {
        StoreVerb::Verify => {
            let (log, _) = open(&root)?;
            let found = log.verify().map_err(|error| failed(&error))?;
            say.answer(&verified(&found), || {
                let warnings: String = found.warnings.iter().map(|text| format!("  {text}\n")).collect();
                format!("✔ {}: all checked\n{warnings}", extent(&found))
            });
        }
        StoreVerb::Compact { retention, yes } => {
            let span = runbook::span::parse(retention)
                .map_err(|error| Failure::new(Code::InvalidInput, error.to_string()))?;
            let answer = compact(&root, span, *yes)?;
            say.answer(&answer, || {
                let streams = answer["streams_dropped"].as_u64().unwrap_or(0);
                format!(
                    "dropped {}, {} bytes; kept {} bytes",
                    say::count(streams, "stream"),
                    answer["bytes_dropped"],
                    answer["bytes_kept"]
                )
            });
        }
        StoreVerb::Backup { to } => {
            let (log, _) = open(&root)?;
            vacant(to)?;
            let copied = log.backup(to).map_err(|error| failed(&error))?;
            copy_rest(&root, to)?;
            say.answer(&verified(&copied), || {
                format!("✔ {} in {}: all checked", extent(&copied), to.display())
            });
        }
        StoreVerb::Restore { from } => {
            if !from.is_dir() {
                let text =
                    format!("there is no backup {}: name the directory that it was made in", from.display());
                return Err(Failure::new(Code::NotFound, text));
            }
            vacant(&root)?;
            let copied = log::restore(&Files, from, &root).map_err(|error| failed(&error))?;
            copy_rest(from, &root)?;
            if copied.records > 0 && !root.join(KEYS).is_dir() {
                say.note(
                    "the backup has no keys: what is done from now on cannot be sealed with those before",
                );
            }
            say.answer(&verified(&copied), || format!("✔ {} has {}", root.display(), extent(&copied)));
        }
    }
    Ok(0)
}

/// Whether a copy can be made there: nothing is ever written over.
fn vacant(dir: &Path) -> Result<(), Failure> {
    let refuse = |why: String| Failure::new(Code::InvalidInput, format!("{}: {why}", dir.display()));
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(refuse("the directory is not empty; name one that is not there yet".to_owned())),
            None => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            match parent.is_none_or(Path::is_dir) {
                true => Ok(()),
                false => {
                    Err(refuse("the directory that it would be in is not there; make it first".to_owned()))
                }
            }
        }
        Err(error) => Err(refuse(format!("{error}; name a directory that is not there yet"))),
    }
}

/// How much was looked at.
fn extent(found: &log::Verified) -> String {
    format!("{} of {}", say::count(found.records, "record"), say::count(found.streams, "stream"))
}

fn verified(found: &log::Verified) -> Value {
    json!({ "valid": true, "records": found.records, "streams": found.streams, "warnings": found.warnings })
}

/// Drops runs that ended longer ago than the retention. Everything else is kept.
fn compact(root: &Path, retention: Span, yes: bool) -> Result<Value, Failure> {
    const PAUSE: Duration = Duration::from_millis(2);
    let unusable = |error: store::Error| Failure::new(error.code(), error.to_string());
    let unlisted = |error: crate::history::Error| Failure::new(error.code(), error.to_string());
    if !root.is_dir() {
        let text = format!("there is no data directory {}", root.display());
        return Err(Failure::new(Code::NotFound, text));
    }
    let (mut store, _) =
        Embedded::open(Arc::new(Files), root, &store::Options::default()).map_err(unusable)?;
    // What has ended leaves memory first; it takes as long as the history takes to list it.
    while store.lingering() > 0 {
        if !store.idle(Millis(u64::MAX / 2)) {
            std::thread::sleep(PAUSE);
        }
    }
    store.log().roll().map_err(|error| failed(&error))?;
    let now = windlass_engine::port::Clock::now(&crate::clock::System);
    let retiring = store.retire(now - retention).map_err(unlisted)?;
    if !retiring.is_empty() {
        let question =
            format!("Drop {} for good, with all their records?", say::count(retiring.len(), "run"));
        say::sure(yes, &question, "nothing was dropped", "--yes")?;
    }
    let done = retiring.carry_out().map_err(|error| failed(&error))?;
    store.retired(true);
    if !retiring.is_empty() {
        store.save_now(now);
    }
    Ok(json!({
        "bytes_dropped": done.bytes_dropped, "bytes_kept": done.bytes_kept, "streams_dropped": done.streams_dropped,
    }))
}

/// Copies what belongs to a data directory beside its log. What is not there is not needed.
fn copy_rest(from: &Path, to: &Path) -> Result<(), Failure> {
    let mut rest: Vec<PathBuf> = REST.iter().map(PathBuf::from).collect();
    // The key of the secrets belongs to it where it lies in it.
    rest.extend([from, to].iter().find_map(|root| {
        let (root, key) = (root.canonicalize().ok()?, Vault::new(root).key_file()?.canonicalize().ok()?);
        key.strip_prefix(root).map(Path::to_path_buf).ok()
    }));
    for name in rest {
        let (from, to) = (from.join(&name), to.join(&name));
        copy(&from, &to, DEPTH_MAX).map_err(|error| {
            Failure::new(
                Code::Unavailable,
                format!("{} cannot be copied to {}: {error}", from.display(), to.display()),
            )
        })?;
    }
    Ok(())
}

/// Copies a file, or a folder with all that is in it; only the owner can look at the copy.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let meta = match fs::symlink_metadata(from) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if meta.is_dir() {
        if depth == 0 {
            return Err(io::Error::other("folders are nested too deep"));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name), depth - 1)?;
        }
        fs::File::open(to)?.sync_all()
    } else if meta.is_file() {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        io::copy(&mut fs::File::open(from)?, &mut file)?;
        file.sync_all()
    } else {
        // Sockets and the like are good only while somebody holds the directory.
        Ok(())
    }
}
