//! `store`: looks after the data directory. Where somebody serves it, it is they who check and copy it; compacting and
//! restoring hold it alone.

use super::args::{Args, StoreVerb};
use super::say::{self, Say};
use super::{Outcome, root, settings};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use windlass_api::care::Verified;
use windlass_core::code::Code;
use windlass_core::time::Span;
use windlass_core::turn::state::State;
use windlass_engine::port::Clock as _;
use windlass_executor::config::Retention;
use windlass_executor::home::Home;
use windlass_server::api::care::{self, PATIENCE};
use windlass_server::app::App;
use windlass_server::backup::{self, KEYS};
use windlass_server::client::{Client, Failure, Need};
use windlass_server::retention;
use windlass_store::disk::Files;
use windlass_store::log::{self, Log};

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

pub(super) async fn store(args: &Args, verb: &StoreVerb, say: &Say) -> Outcome {
    let root = root(args)?;
    if root.is_dir() {
        windlass_executor::home::check_owner(&root)
            .map_err(|error| windlass_server::client::unusable(Some(&root), &error))?;
    }
    match verb {
        StoreVerb::Verify => {
            let found = match holder(args, &root, say).await? {
                Some(client) => client.post_waiting("/v1/store/verify", &json!({}), PATIENCE).await?,
                None => care::verified(&open(&root)?.0.verify().map_err(|error| failed(&error))?),
            };
            say.answer(&found, || {
                let warnings: String = found.warnings.iter().map(|text| format!("  {text}\n")).collect();
                format!("✔ {}: all checked\n{warnings}", extent(&found))
            });
        }
        StoreVerb::Compact { retention, yes } => {
            let span = windlass_runbook::span::parse(retention)
                .map_err(|error| Failure::new(Code::InvalidInput, error.to_string()))?;
            let answer = compact(args, &root, span, *yes).await?;
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
            let copied = match holder(args, &root, say).await? {
                Some(client) => {
                    let to = std::path::absolute(to)?;
                    client.post_waiting("/v1/store/backup", &json!({ "to": to }), PATIENCE).await?
                }
                None => care::verified(&backup::make(&open(&root)?.0, &root, to)?),
            };
            say.answer(&copied, || format!("✔ {} in {}: all checked", extent(&copied), to.display()));
        }
        StoreVerb::Restore { from } => {
            if !from.is_dir() {
                let text =
                    format!("there is no backup {}: name the directory that it was made in", from.display());
                return Err(Failure::new(Code::NotFound, text));
            }
            backup::vacant(&root)?;
            let copied = log::restore(&Files, from, &root).map_err(|error| failed(&error))?;
            backup::rest(from, &root)?;
            if copied.records > 0 && !root.join(KEYS).is_dir() {
                say.note("the backup has no keys: new seals cannot use the earlier keys");
            }
            let copied = care::verified(&copied);
            say.answer(&copied, || format!("✔ {} has {}", root.display(), extent(&copied)));
        }
    }
    Ok(0)
}

/// Whoever serves the data directory, or the server that is named. Nobody else can look into it meanwhile.
async fn holder(args: &Args, root: &Path, say: &Say) -> Result<Option<Client>, Failure> {
    if args.global.server.is_some() {
        return super::connect(args, Need::Records, say).await.map(Some);
    }
    let Some(home) = Home::of_socket(&root.join(windlass_executor::home::SOCKET)) else { return Ok(None) };
    match home.connect().await {
        Ok(_) => Client::to_server(&format!("unix:{}", home.socket().display()), None).map(Some),
        Err(_) => Ok(None),
    }
}

/// How much was looked at.
fn extent(found: &Verified) -> String {
    format!("{} of {}", say::count(found.records, "record"), say::count(found.streams, "stream"))
}

/// Drops what ended longer ago than the retention. Everything else is kept.
async fn compact(args: &Args, root: &Path, kept: Span, yes: bool) -> Result<Value, Failure> {
    if !root.is_dir() {
        let text = format!("there is no data directory {}", root.display());
        return Err(Failure::new(Code::NotFound, text));
    }
    let home = Home::make(root).map_err(|error| windlass_server::client::unusable(Some(root), &error))?;
    if home.connect().await.is_ok() {
        let text = format!(
            "another process holds the data directory {}: a server deletes records past their retention by itself (`retention:` \
             in windlass.yaml); to compact by hand, stop it first",
            root.display()
        );
        return Err(Failure::new(Code::LockBusy, text));
    }
    let settings = settings(args)?;
    let kept = Retention { evidence: settings.config.retention.evidence, ..Retention::all(kept) };
    let app = App::start(home, &std::env::current_exe()?, settings)?;
    let working = app.clone();
    // Nothing is carried out here, so there is nothing that could panic.
    let done = tokio::task::spawn_blocking(move || {
        let done = retention::at_once(&working, kept, |runs| {
            let question =
                format!("Drop {} for good, with all their records?", say::count(runs as u64, "run"));
            say::sure(yes, &question, "nothing was dropped", "--yes")
        });
        if done.is_ok() {
            // What is left is read from here on.
            let saved = working.engine.read(|store| store.save_now(windlass_executor::clock::System.now()));
            drop(saved);
        }
        working.stop();
        done
    });
    let done = done.await.map_err(|_| Failure::new(Code::Internal, "the log could not be compacted"))??;
    Ok(json!({
        "bytes_dropped": done.log.bytes_dropped, "bytes_kept": done.log.bytes_kept,
        "streams_dropped": done.log.streams_dropped, "runs": done.runs, "items": done.log.items,
        "ingress_keys": done.log.ingress_keys, "effect_keys": done.log.effect_keys,
    }))
}
