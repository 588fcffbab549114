//! What is not about runs: a runbook to start from, this machine, completions.

use super::Outcome;
use super::args::Args;
use super::say::{self, Say};
use super::{config, root};
use clap::CommandFactory as _;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use windlass_executor::home::Home;
use windlass_server::policy;

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
            say.note(&format!("{} exists already and was not changed", path.display()));
            continue;
        }
        fs::write(&path, text)?;
        made.push(path.display().to_string());
    }
    say.answer(&json!({ "made": made }), || {
        let list: String = made.iter().map(|path| format!("made {path}\n")).collect();
        // The data directory of the first run is to lie in the project, and not beside it.
        match dir == Path::new(".") {
            true => format!("{list}next: windlass run"),
            false => format!("{list}next: cd {} && windlass run", dir.display()),
        }
    });
    Ok(0)
}

pub(super) fn completions(shell: clap_complete::Shell, say: &Say) -> Outcome {
    // Made as a whole first: whoever generates them takes a closed pipe for a bug.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "windlass", &mut script);
    say.write(&String::from_utf8_lossy(&script));
    Ok(0)
}

pub(super) fn man(dir: &Path) -> Outcome {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Args::command(), dir)?;
    Ok(0)
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
    findings.push(configuration(args));
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

/// The configuration file that every command would read.
fn configuration(args: &Args) -> Finding {
    let what = "configuration";
    match config(args) {
        Ok(config) => {
            let text =
                config.path.as_ref().map_or("there is no windlass.yaml: defaults apply".to_owned(), |path| {
                    format!("{} is read", path.display())
                });
            Finding { what, ok: true, needed: true, text }
        }
        Err(failure) => Finding { what, ok: false, needed: true, text: failure.detail },
    }
}

/// Whether a directory can be written: by writing there. Nothing stays.
fn writable(dir: &Path) -> Result<(), String> {
    let trial = dir.join(format!(".windlass-doctor-{}", std::process::id()));
    let made = fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial));
    made.map_err(|error| format!("{} cannot be written: {error}", dir.display()))
}

/// The policy that would be in force.
fn policy_folder(args: &Args, root: &Path) -> Finding {
    let places: Vec<PathBuf> =
        root.parent().map(Path::to_path_buf).into_iter().chain(std::env::current_dir()).collect();
    // What is wrong with the configuration file is said by whoever reads it.
    let config = config(args).ok().and_then(|config| config.policy.clone());
    let named = args.global.policy.as_deref().or(config.as_deref());
    let found = policy::InForce::find(named, &places);
    let text = match found.problem() {
        Some(problem) => format!("everything is denied: {problem}"),
        None if found.shown().builtin => "none is configured: the built-in one applies".to_owned(),
        None => format!("{} is in force", found.shown().version),
    };
    Finding { what: "policy", ok: found.problem().is_none(), needed: true, text }
}

async fn data(root: &Path) -> Finding {
    let what = "data directory";
    if !root.is_dir() {
        let above = root.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("."));
        let (ok, text) = match writable(above) {
            Ok(()) => (true, format!("{} does not exist yet; the first run creates it", root.display())),
            Err(problem) => (false, format!("{} cannot be created: {problem}", root.display())),
        };
        return Finding { what, ok, needed: true, text };
    }
    if let Err(text) = writable(root) {
        return Finding { what, ok: false, needed: true, text };
    }
    let held = match Home::make(root) {
        Ok(home) => home.connect().await.is_ok(),
        Err(_) => false,
    };
    if held {
        let text = format!("{}: a process holds it and answers", root.display());
        return Finding { what, ok: true, needed: true, text };
    }
    match super::store::open(root) {
        Ok((log, state)) => {
            let text = format!(
                "{}: {}, {} in memory",
                root.display(),
                say::count(log.durable_seq(), "record"),
                say::count(state.streams().count(), "stream")
            );
            Finding { what, ok: true, needed: true, text }
        }
        Err(failure) => Finding { what, ok: false, needed: true, text: failure.detail },
    }
}
