//! `check`: parses and validates a runbook, once or whenever it changes.

use super::Outcome;
use super::args::Args;
use super::run::load;
use super::say::{self, Say};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use windlass_server::client::Failure;

/// How often a file that is watched is looked at.
const LOOK: Duration = Duration::from_millis(300);

pub(super) fn check(args: &Args, file: Option<&Path>, (watch, schema): (bool, bool), say: &Say) -> Outcome {
    if schema {
        say.line(&serde_json::to_string_pretty(&windlass_runbook::schema()).unwrap_or_default());
        return Ok(0);
    }
    let file = file.map_or_else(|| PathBuf::from("runbook.yaml"), Path::to_path_buf);
    if !watch {
        return once(args, &file, say).map(|_| 0);
    }
    let mut seen = Stamps::new();
    loop {
        // Looked at before it is read: what changes while it is read is read again.
        let now: Stamps =
            std::iter::once(&file).chain(seen.keys()).map(|path| (path.clone(), stamp(path))).collect();
        if now != seen {
            seen = now;
            match once(args, &file, say) {
                Ok(includes) => {
                    seen.retain(|path, _| *path == file || includes.contains(path));
                    for path in includes {
                        let at = stamp(&path);
                        seen.entry(path).or_insert(at);
                    }
                }
                Err(failure) => {
                    say.failure(&failure);
                }
            }
        }
        if say::is_lost() {
            return Ok(0);
        }
        std::thread::sleep(LOOK);
    }
}

/// When the runbook and its includes were last changed.
type Stamps = BTreeMap<PathBuf, Option<SystemTime>>;

fn stamp(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

/// Checks once; returns the files it consists of.
fn once(args: &Args, file: &Path, say: &Say) -> Result<Vec<PathBuf>, Failure> {
    let loaded = load(args, file, say)?;
    let pipelines: Vec<&str> = loaded.runbook.pipelines.keys().map(|name| name.as_str()).collect();
    let steps: usize = loaded.runbook.pipelines.values().map(|pipeline| pipeline.nodes.len()).sum();
    let warnings = windlass_runbook::idle::modifiers(&loaded.runbook);
    let answer = json!({
        "valid": true, "name": loaded.runbook.name, "hash": loaded.hash.to_string(), "pipelines": pipelines,
        "warnings": warnings,
    });
    for warning in &warnings {
        say.note(&format!("⚠ {warning}"));
    }
    say.answer(&answer, || {
        let (pipelines, steps) = (say::count(pipelines.len(), "pipeline"), say::count(steps, "step"));
        format!("✔ {}: {pipelines}, {steps}, hash {}", file.display(), loaded.hash)
    });
    let dir = file.parent().unwrap_or(Path::new(""));
    Ok(loaded.files.iter().map(|(path, _)| dir.join(path)).collect())
}
