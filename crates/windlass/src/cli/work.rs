//! What is not about runs: a runbook to start from, the data directory, this machine, completions.

use super::Outcome;
use super::args::{Args, StoreVerb};
use super::say::Say;
use crate::client::Failure;
use crate::config::Config;
use crate::disk::Files;
use crate::home::Home;
use crate::log::{self, Log};
use crate::policy;
use crate::runbook;
use crate::store::{self, Embedded};
use clap::CommandFactory as _;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::code::Code;
use windlass_core::state::State;
use windlass_core::time::{Millis, Span};
use windlass_engine::port::Store as _;

const RUNBOOK: &str = include_str!("../../templates/runbook.yaml");
const POLICY: &str = include_str!("../../templates/policy.md");
const CASES: &str = include_str!("../../templates/cases.yaml");

pub(super) fn init(dir: Option<&Path>, say: &Say) -> Outcome {
    let dir = dir.unwrap_or(Path::new("."));
    fs::create_dir_all(dir.join("policy"))?;
    let mut made = Vec::new();
    let schema = policy::schema::text();
    let files = [
        ("runbook.yaml", RUNBOOK),
        ("policy/README.md", POLICY),
        ("policy/base.cedar", policy::STARTER),
        ("policy/cases.yaml", CASES),
        ("policy/schema.cedarschema", &schema),
        (".gitignore", "/.windlass/\n"),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        // What is there is somebody's work.
        if path.exists() {
            say.note(&format!("{} is there already and stays as it is", path.display()));
            continue;
        }
        fs::write(&path, text)?;
        made.push(path.display().to_string());
    }
    say.answer(&json!({ "made": made }), || {
        let list: String = made.iter().map(|path| format!("made {path}\n")).collect();
        format!("{list}next: windlass run {}", dir.join("runbook.yaml").display())
    });
    Ok(0)
}

pub(super) fn completions(shell: clap_complete::Shell) -> Outcome {
    clap_complete::generate(shell, &mut Args::command(), "windlass", &mut std::io::stdout());
    Ok(0)
}

pub(super) fn man(dir: &Path) -> Outcome {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Args::command(), dir)?;
    Ok(0)
}

fn failed(error: &log::Error) -> Failure {
    Failure::new(error.code(), error.to_string())
}

pub(super) fn root(args: &Args) -> Result<PathBuf, Failure> {
    match &args.global.data {
        Some(root) => Ok(root.clone()),
        None => Ok(Home::nearest()?),
    }
}

/// Opens the log of a data directory, which nobody else may hold meanwhile.
fn open(root: &Path) -> Result<(Log, State), Failure> {
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
    match verb {
        StoreVerb::Verify => {
            let (log, _) = open(&root)?;
            let found = log.verify().map_err(|error| failed(&error))?;
            say.answer(&verified(&found), || {
                let warnings: String = found.warnings.iter().map(|text| format!("  {text}\n")).collect();
                format!("✔ {} records of {} streams: all checked\n{warnings}", found.records, found.streams)
            });
        }
        StoreVerb::Compact { retention } => {
            let span = runbook::span::parse(retention)
                .map_err(|error| Failure::new(Code::InvalidInput, error.to_string()))?;
            let answer = compact(&root, span)?;
            say.answer(&answer, || {
                format!(
                    "dropped {} streams, {} bytes; kept {} bytes",
                    answer["streams_dropped"], answer["bytes_dropped"], answer["bytes_kept"]
                )
            });
        }
        StoreVerb::Backup { to } => {
            let (log, _) = open(&root)?;
            vacant(to)?;
            let copied = log.backup(to).map_err(|error| failed(&error))?;
            say.answer(&verified(&copied), || {
                format!(
                    "✔ {} records of {} streams in {}: all checked",
                    copied.records,
                    copied.streams,
                    to.display()
                )
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
            say.answer(&verified(&copied), || {
                format!("✔ {} has {} records of {} streams", root.display(), copied.records, copied.streams)
            });
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
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
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

fn verified(found: &log::Verified) -> Value {
    json!({ "valid": true, "records": found.records, "streams": found.streams, "warnings": found.warnings })
}

/// Drops runs that ended longer ago than the retention. Everything else is kept.
fn compact(root: &Path, retention: Span) -> Result<Value, Failure> {
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
    let done = retiring.carry_out().map_err(|error| failed(&error))?;
    store.retired(true);
    if !retiring.is_empty() {
        store.save_now(now);
    }
    Ok(json!({
        "bytes_dropped": done.bytes_dropped, "bytes_kept": done.bytes_kept, "streams_dropped": done.streams_dropped,
    }))
}

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    ok: bool,
    needed: bool,
    text: String,
}

pub(super) async fn doctor(args: &Args, say: &Say) -> Outcome {
    let mut findings = vec![
        program("bash", &["--version"], true, "steps run in bash"),
        program("git", &["--version"], false, "guards about branches need git"),
        program("tmux", &["-V"], false, "agents will need tmux"),
    ];
    findings.push(data(&root(args)?).await);
    findings.push(policy_folder(args, &root(args)?));
    let ok = findings.iter().all(|finding| finding.ok || !finding.needed);
    let item = |finding: &Finding| json!({ "check": finding.what, "ok": finding.ok, "needed": finding.needed, "detail": finding.text });
    let answer = json!({ "ok": ok, "version": env!("CARGO_PKG_VERSION"), "checks": findings.iter().map(item).collect::<Vec<_>>() });
    say.answer(&answer, || {
        let line = |finding: &Finding| {
            let mark = match (finding.ok, finding.needed) {
                (true, _) => "✔",
                (false, true) => "✘",
                (false, false) => "·",
            };
            format!("{mark} {:<16} {}\n", finding.what, finding.text)
        };
        format!("windlass {}\n{}", env!("CARGO_PKG_VERSION"), findings.iter().map(line).collect::<String>())
    });
    Ok(u8::from(!ok))
}

fn program(name: &'static str, words: &[&str], needed: bool, why: &str) -> Finding {
    match Command::new(name).args(words).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned();
            Finding { what: name, ok: true, needed, text }
        }
        Ok(_) | Err(_) => Finding { what: name, ok: false, needed, text: format!("not found: {why}") },
    }
}

/// The policy that would be in force.
fn policy_folder(args: &Args, root: &Path) -> Finding {
    let places: Vec<PathBuf> =
        root.parent().map(Path::to_path_buf).into_iter().chain(std::env::current_dir()).collect();
    // What is wrong with the configuration file is said by whoever reads it.
    let config = Config::load(args.global.config.as_deref(), root).ok().and_then(|config| config.policy);
    let named = args.global.policy.as_deref().or(config.as_deref());
    let found = policy::InForce::find(named, &places);
    let text = match found.problem() {
        Some(problem) => format!("everything is denied: {problem}"),
        None if found.json()["builtin"] == true => "none is configured: the built-in one holds".to_owned(),
        None => format!("{} is in force", found.json()["version"].as_str().unwrap_or_default()),
    };
    Finding { what: "policy", ok: found.problem().is_none(), needed: true, text }
}

async fn data(root: &Path) -> Finding {
    let what = "data directory";
    if !root.is_dir() {
        let text = format!("{} is not there yet; the first run makes it", root.display());
        return Finding { what, ok: true, needed: true, text };
    }
    let held = match Home::make(root) {
        Ok(home) => home.connect().await.is_ok(),
        Err(_) => false,
    };
    if held {
        let text = format!("{}: a process holds it and answers", root.display());
        return Finding { what, ok: true, needed: true, text };
    }
    match open(root) {
        Ok((log, state)) => {
            let text = format!(
                "{}: {} records, {} streams in memory",
                root.display(),
                log.durable_seq(),
                state.streams().count()
            );
            Finding { what, ok: true, needed: true, text }
        }
        Err(failure) => Finding { what, ok: false, needed: true, text: failure.detail },
    }
}
