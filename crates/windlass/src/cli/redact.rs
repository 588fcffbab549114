//! `evidence redact`: private values leave what is stored about a run, and the proof stays whole.
//!
//! ```text
//!  find the values ─▶ record who takes them out and why ─▶ write the log anew without them ─▶ snapshot ─▶ kept output
//! ```
//!
//! What was recorded is what goes, so a redaction that was broken off is finished by the next one. The data directory is
//! held alone meanwhile: nobody has the value in memory.

use super::args::Args;
use super::say::{self, Say};
use super::{Outcome, settings};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windlass_core::code::Code;
use windlass_core::event::{Event, ValueRedacted};
use windlass_core::id::{Name, RunId};
use windlass_core::private::DIGEST;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::Command;
use windlass_engine::port::{Clock as _, Store as _};
use windlass_executor::home::Home;
use windlass_server::api::Caller;
use windlass_server::app::App;
use windlass_server::client::Failure;
use windlass_store::disk::Files;
use windlass_store::log::{Cuts, Log, Seqs};
use windlass_store::store::{self, Embedded};

/// The most values that one command takes out.
const VALUES_MAX: usize = 10_000;
/// How long to wait for what this process itself still holds.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);
/// Values that a bundle shows whatever the exporter chose: the kept one goes with them.
const SHOWN: [&str; 5] = ["action", "message", "reason", "source", "text"];

/// What is to go.
#[derive(clap::Args, Debug)]
pub(super) struct RedactArgs {
    /// The run: its id, the beginning or end of it, or `last`
    run: String,
    /// Only of this step
    #[arg(long, value_name = "S")]
    step: Option<String>,
    /// Which values: output, input, error, vars, request, response …
    #[arg(long = "field", value_name = "F", required = true)]
    fields: Vec<String>,
    /// Why; it is recorded
    #[arg(long, value_name = "T")]
    reason: String,
    /// Without asking
    #[arg(long)]
    yes: bool,
}

pub(super) async fn redact(args: &Args, wish: &RedactArgs, say: &Say) -> Outcome {
    let root = super::root(args)?;
    if !root.is_dir() {
        let text = format!("there is no data directory {}", root.display());
        return Err(Failure::new(Code::NotFound, text));
    }
    let home = Home::make(&root).map_err(|error| windlass_server::client::unusable(Some(&root), &error))?;
    if home.connect().await.is_ok() {
        let text = format!(
            "another process holds the data directory {}: stop it first, because it has the value in memory",
            root.display()
        );
        return Err(Failure::new(Code::LockBusy, text));
    }
    let app = App::start(home.clone(), &std::env::current_exe()?, settings(args)?)?;
    let recorded = record(&app, wish).await;
    let closing = app.clone();
    // Nothing is carried out here, so there is nothing that could panic.
    let _ = tokio::task::spawn_blocking(move || closing.stop()).await;
    let shelf = app.shelf.clone();
    drop(app);
    let (run, values) = recorded?;
    carry_out(&root)?;
    let shown = wish.fields.iter().any(|field| SHOWN.contains(&field.as_str()));
    let fields: BTreeSet<&str> = wish.fields.iter().map(String::as_str).collect();
    if fields.contains("output") {
        forget_output(&home, run, wish.step.as_deref())?;
    }
    let taken = |error: windlass_server::evidence::Error| Failure::new(error.code(), error.to_string());
    let bundle = shown
        && tokio::task::spawn_blocking(move || shelf.remove(run))
            .await
            .map_err(|_| Failure::new(Code::Internal, "the bundle could not be removed"))?
            .map_err(taken)?;
    let done = json!({ "run": run, "values": values, "bundle_removed": bundle });
    say.answer(&done, || {
        let again = if bundle { "; its bundle held it and is gone too: export another" } else { "" };
        match values {
            1 => format!("a value of {run} is gone, and its digest stays{again}"),
            _ => format!("{values} values of {run} are gone, and their digests stay{again}"),
        }
    });
    Ok(0)
}

/// Finds the values, asks, and records that they go.
async fn record(app: &Arc<App>, wish: &RedactArgs) -> Result<(RunId, usize), Failure> {
    let caller = Caller::owner(&windlass_server::server::user_name());
    let problem = |problem: windlass_server::api::Problem| Failure::new(problem.code, problem.detail);
    let run = app.find_run(&caller, &wish.run).await.map_err(problem)?;
    let (ended, first_seq) = app
        .look(move |store| {
            // One that has left memory is read back; one that cannot be is gone.
            let _ = store.load(&[StreamId::Run(run)]);
            (store.state().run(run).is_some_and(|run| run.is_terminal()), store.place_of(run).first)
        })
        .await
        .map_err(problem)?;
    if !ended {
        let text = format!("{run} has not ended and still needs its values: cancel it first, or wait");
        return Err(Failure::new(Code::RunInvalidTransition, text));
    }
    let found = find(&app.log, run, first_seq, wish)?;
    if found.is_empty() {
        return Err(Failure::new(Code::NotFound, format!("{run} has no such value any more")));
    }
    let question = format!("Remove {} from {run} permanently?", say::count(found.len(), "value"));
    say::sure(wish.yes, &question, "nothing was removed", "--yes")?;
    let count = found.len();
    for gone in found {
        app.ask(&caller, Command::Redacted(Box::new(gone))).await.map_err(problem)?;
    }
    Ok((run, count))
}

/// The other name under which the same value is on record: `command:run` has a run's variables as its arguments.
fn also(field: &str) -> Option<&'static str> {
    (field == "vars").then_some("args")
}

/// The values of a run, in its own stream and in those of its effects.
fn find(log: &Log, run: RunId, first_seq: u64, wish: &RedactArgs) -> Result<Vec<ValueRedacted>, Failure> {
    let unread = |error: windlass_store::log::Error| Failure::new(error.code(), error.to_string());
    let mut streams = BTreeSet::from([StreamId::Run(run)]);
    log.scan_run(run, Seqs { first: first_seq, last: u64::MAX }, &mut |record, _| {
        if let Event::IntentRecorded(e) = &record.event
            && e.pipeline_id == run
        {
            streams.insert(record.stream);
        }
        ControlFlow::Continue(())
    })
    .map_err(unread)?;
    let streams: Vec<StreamId> = streams.into_iter().collect();
    let mut found = Vec::new();
    log.scan(&streams, Seqs::ALL, &mut |record, line| {
        let parsed: Value = serde_json::from_str(line).unwrap_or_default();
        let of_run = parsed["pipeline_id"].as_str().or(parsed["id"].as_str()) == Some(&run.to_string());
        let of_step = wish.step.as_deref().is_none_or(|step| parsed["step"] == step);
        let fields = wish.fields.iter().flat_map(|field| [field.as_str()].into_iter().chain(also(field)));
        for field in fields.filter(|_| of_run && of_step) {
            let is_private = parsed.get(format!("{field}{DIGEST}")).is_some();
            if let (true, true, Ok(name)) = (is_private, parsed.get(field).is_some(), Name::new(field)) {
                found.push(ValueRedacted {
                    of: record.stream.clone(),
                    version: record.ver,
                    field: name,
                    reason: Some(wish.reason.clone()),
                });
            }
        }
        if found.len() < VALUES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .map_err(unread)?;
    Ok(found)
}

/// Takes out whatever was ever recorded to go.
fn carry_out(root: &Path) -> Result<(), Failure> {
    let unusable = |error: store::Error| Failure::new(error.code(), error.to_string());
    let unread = |error: windlass_store::log::Error| Failure::new(error.code(), error.to_string());
    let end = Instant::now() + PATIENCE;
    let (mut store, _) = loop {
        match Embedded::open(Arc::new(Files), root, &store::Options::default()) {
            Err(error) if error.code() == Code::LockBusy && Instant::now() < end => std::thread::sleep(PAUSE),
            opened => break opened.map_err(unusable)?,
        }
    };
    // What has ended leaves memory first, and with it the snapshot that is made at the end.
    while store.lingering() > 0 {
        if !store.idle(Millis(u64::MAX / 2)) {
            std::thread::sleep(PAUSE);
        }
    }
    let log = store.log();
    let mut cuts = Cuts::new();
    log.scan(&[StreamId::System], Seqs::ALL, &mut |record, _| {
        if let Event::ValueRedacted(e) = record.event {
            let of_stream = cuts.entry(e.of.to_string()).or_default();
            of_stream.entry(e.version).or_default().insert(e.field.to_string());
        }
        ControlFlow::Continue(())
    })
    .map_err(unread)?;
    log.redact(&cuts).map_err(unread)?;
    store.save_now(windlass_executor::clock::System.now());
    Ok(())
}

/// Removes what was kept of the steps' output, and what a crash left of it.
fn forget_output(home: &Home, run: RunId, step: Option<&str>) -> Result<(), Failure> {
    let step = step
        .map(|step| format!("{}.", windlass_executor::home::file_name(&Name::clean(step))))
        .unwrap_or_default();
    remove_files(&home.outputs().join(run.to_string()), &step)?;
    remove_files(&home.scratch(), &format!("{run}.{step}"))
}

/// Removes the files of a folder whose names begin so.
fn remove_files(dir: &Path, first: &str) -> Result<(), Failure> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(first) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
