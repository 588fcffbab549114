//! Gathers what guards ask about: locks, semaphores and runs from the store; branches from git; files; commands; and
//! issues from a command that prints them as JSON.
//!
//! What cannot be gathered is left out, which the core reads as unknown. Everything is bounded: how long a command may
//! take, and how much of a file or of an answer is read.

use crate::shell::Environment;
use crate::store::Embedded;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};
use windlass_core::guard::{
    BranchInfo, CommandResult, FileInfo, GuardInputs, Issue, IssueFilter, Needs, PipelineInfo,
};
use windlass_core::id::{Holder, Name, RunId};
use windlass_core::lock;
use windlass_core::small;
use windlass_core::state::Body;
use windlass_core::stream::StreamId;
use windlass_engine::Handle;

/// How long a guard's command may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// How often a command that runs is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How much of a file is searched, and of a list of issues read.
const FILE_BYTES_MAX: u64 = 64 << 20;
const ISSUES_BYTES_MAX: u64 = 4 << 20;
/// The command that lists issues: a JSON array of `{id, status, labels, milestone}`. It gets the filter as JSON in
/// `WL_ISSUES_FILTER`.
const ISSUES_COMMAND: &str = "WINDLASS_ISSUES_COMMAND";

/// What the store knows of a guard's questions.
struct Asked {
    needs: Needs,
    inputs: GuardInputs,
    cwd: PathBuf,
    /// The pipeline's variables, for commands: they get values as steps do.
    vars: Vec<(String, String)>,
}

/// Gathers what the guards of a step need. What cannot be told is not in it.
#[must_use]
pub fn gather(engine: &Handle<Embedded>, run: RunId, node: u32, after: bool) -> GuardInputs {
    let asked = engine.read(move |store| look(store, run, node, after));
    let Ok(Some(Asked { needs, mut inputs, cwd, vars })) = asked else { return GuardInputs::default() };
    for (branch, into) in &needs.branches {
        if let Some(info) = look_at_branch(&cwd, branch, into) {
            inputs.branches.insert(branch.clone(), info);
        }
    }
    for (path, texts) in &needs.files {
        if let Some(info) = look_at_file(&cwd.join(path), texts) {
            inputs.files.insert(path.clone(), info);
        }
    }
    for command in &needs.commands {
        if let Some(success) = succeeds(&cwd, command, &vars) {
            inputs.commands.insert(command.clone(), CommandResult { success });
        }
    }
    for filter in &needs.issues {
        if let Some(issues) = list_issues(&cwd, filter) {
            inputs.issues.insert(filter.clone(), issues);
        }
    }
    inputs
}

fn look(store: &mut Embedded, id: RunId, node: u32, after: bool) -> Option<Asked> {
    let run = store.state().run(id)?;
    let step = store.pipeline(run)?.node(node)?;
    let mut needs = Needs::default();
    for guard in if after { &step.after } else { &step.before } {
        needs.add(&guard.condition);
    }
    let state = store.state();
    let body = |stream: &StreamId| state.stream(stream).map(|found| &found.body);
    let mut inputs = GuardInputs::default();
    for name in &needs.locks {
        let holder: Option<Holder> = match body(&StreamId::Lock(run.scoped(name))) {
            Some(Body::Lock(held)) => match &held.state {
                lock::State::Held(hold) => Some(hold.holder.clone()),
                lock::State::Free => None,
            },
            // A lock that nobody ever took is free.
            Some(_) | None => None,
        };
        inputs.locks.insert(name.clone(), holder);
    }
    for name in &needs.semaphores {
        if let Some(Body::Semaphore(held)) = body(&StreamId::Semaphore(run.scoped(name))) {
            let used: u32 = held.holders.values().map(|hold| hold.weight).sum();
            inputs.semaphores.insert(name.clone(), held.config.capacity.saturating_sub(used));
        }
    }
    for other in &needs.pipelines {
        // Another tenant's run answers like one that is not there.
        if let Some(found) = state.run(*other).filter(|found| found.born.home.tenant == run.born.home.tenant)
        {
            let step = found.current_step().map(|step| Name::clean(step.as_str()));
            inputs.pipelines.insert(*other, PipelineInfo { status: found.status(), step });
        }
    }
    Some(Asked { needs, inputs, cwd: PathBuf::from(&run.born.home.cwd), vars: variables(&run.vars.get()) })
}

/// Variables as a command sees them. One that no environment can hold is left out here; the step itself says so.
fn variables(vars: &Value) -> Vec<(String, String)> {
    let mut env = Environment::inherited_from(|_| None);
    for (name, value) in vars.as_object().into_iter().flatten() {
        let _ = env.set_var(name, value);
    }
    let named = env.iter().filter(|(name, _)| name.starts_with("WL_VAR_"));
    named.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A program without the surroundings of this process, in a directory.
pub(crate) fn process(dir: &Path, program: &str, args: &[&str]) -> Process {
    let mut process = Process::new(program);
    process.args(args).current_dir(dir).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    for name in ["PATH", "HOME", "LANG", "TZ"] {
        if let Ok(value) = std::env::var(name) {
            process.env(name, value);
        }
    }
    process
}

/// Waits for a program, and ends it when its time is up.
pub(crate) fn wait(mut child: Child) -> Option<bool> {
    let until = Instant::now() + COMMAND_TIME_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.code().map(|code| code == 0),
            Ok(None) if Instant::now() < until => std::thread::sleep(LOOK),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// Whether git says yes (0) or no (1). Anything else is neither.
fn git(dir: &Path, args: &[&str]) -> Option<bool> {
    let output = process(dir, "git", args).stdout(Stdio::null()).status().ok()?;
    match output.code() {
        Some(0) => Some(true),
        Some(1) => Some(false),
        Some(_) | None => None,
    }
}

fn look_at_branch(dir: &Path, branch: &str, into: &BTreeSet<String>) -> Option<BranchInfo> {
    // A name that begins with a dash would be an option.
    if branch.starts_with('-') || into.iter().any(|other| other.starts_with('-')) {
        return None;
    }
    git(dir, &["rev-parse", "--git-dir"])?;
    let exists = git(dir, &["show-ref", "--verify", "--quiet", &format!("refs/heads/{branch}")])?;
    if !exists {
        return Some(BranchInfo { exists, ..BranchInfo::default() });
    }
    let mut merged_into = small::Map::new();
    for other in into {
        if let Some(merged) = git(dir, &["merge-base", "--is-ancestor", branch, other]) {
            merged_into.insert(other.clone(), merged);
        }
    }
    Some(BranchInfo { exists, clean: is_clean(dir, branch), merged_into })
}

/// Whether the worktree that has a branch checked out has nothing uncommitted. One that is checked out nowhere has
/// nothing that could be.
fn is_clean(dir: &Path, branch: &str) -> Option<bool> {
    let listed = process(dir, "git", &["worktree", "list", "--porcelain"]).output().ok()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut place = None;
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("worktree ") {
            place = Some(PathBuf::from(path));
        }
        if line.strip_prefix("branch refs/heads/") == Some(branch) {
            let status = process(place.as_deref()?, "git", &["status", "--porcelain"]).output().ok()?;
            return status.status.success().then_some(status.stdout.is_empty());
        }
    }
    Some(true)
}

fn look_at_file(path: &Path, texts: &BTreeSet<String>) -> Option<FileInfo> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(FileInfo::default()),
        Err(_) => return None,
    };
    let mut info = FileInfo { exists: true, ..FileInfo::default() };
    if texts.is_empty() {
        return Some(info);
    }
    let mut content = Vec::new();
    let len = file.by_ref().take(FILE_BYTES_MAX + 1).read_to_end(&mut content).ok()?;
    for text in texts {
        let found = contains(&content, text.as_bytes());
        // What was not found in the part that was read may stand in the rest.
        if found || len as u64 <= FILE_BYTES_MAX {
            info.contains.insert(text.clone(), found);
        }
    }
    Some(info)
}

fn contains(content: &[u8], text: &[u8]) -> bool {
    text.is_empty() || content.windows(text.len()).any(|window| window == text)
}

fn succeeds(dir: &Path, command: &str, vars: &[(String, String)]) -> Option<bool> {
    let mut process = process(dir, "bash", &["-eo", "pipefail", "-c", command]);
    wait(process.envs(vars.iter().cloned()).stdout(Stdio::null()).spawn().ok()?)
}

fn list_issues(dir: &Path, filter: &IssueFilter) -> Option<Vec<Issue>> {
    let command = std::env::var(ISSUES_COMMAND).ok()?;
    let filter = serde_json::to_string(filter).ok()?;
    let mut process = process(dir, "bash", &["-eo", "pipefail", "-c", &command]);
    let mut child = process.env("WL_ISSUES_FILTER", filter).stdout(Stdio::piped()).spawn().ok()?;
    let out = child.stdout.take()?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        out.take(ISSUES_BYTES_MAX).read_to_end(&mut text).map(|_| text)
    });
    let succeeded = wait(child)?;
    let text = reader.join().ok()?.ok()?;
    if !succeeded {
        return None;
    }
    let listed: Vec<Value> = serde_json::from_slice(&text).ok()?;
    listed.into_iter().map(|issue| serde_json::from_value(issue).ok()).collect()
}
