//! Gathers what guards ask about: locks, semaphores and runs from the store; branches from git; files; commands; and
//! issues from a command that prints them as JSON.
//!
//! What cannot be gathered is left out, which the core reads as unknown; why it could not be is told beside it. Everything
//! is bounded: how long a command may take, and how much of a file or of an answer is read. Every process asks policy
//! first, git's too: a repository can name programs that git starts.

use crate::outside::Hands;
use crate::outside::beside::{self, For, NotRun, Ran};
use crate::roots;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use windlass_core::guard::{
    BranchInfo, CommandResult, FileInfo, GuardInputs, Issue, IssueFilter, Needs, PipelineInfo,
};
use windlass_core::id::{Holder, Name, RunId, StepId};
use windlass_core::lock;
use windlass_core::policy::Purpose;
use windlass_core::run::Run;
use windlass_core::scope;
use windlass_core::small;
use windlass_core::stream::StreamId;
use windlass_core::template::Evaluate;
use windlass_core::turn::state::Body;
use windlass_engine::port::Store as _;
use windlass_executor::shell::{Environment, Variable};
use windlass_store::store::{Embedded, Listed, RunFilter};

/// How many of the newest runs of a pipeline are looked at for the one that is meant.
const NEWEST_MAX: usize = 20;
/// How much of a file is searched.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// What the store knows of a guard's questions.
struct Asked {
    needs: Needs,
    inputs: GuardInputs,
    cwd: PathBuf,
    /// What commands are given: the variables that their step is given.
    env: Environment,
    tenant: Name,
    /// The runbook's own command that lists issues.
    issues: Option<String>,
}

/// Where the commands of a look run, and for whom.
struct Place<'a> {
    hands: &'a Hands,
    whom: &'a For,
    dir: &'a Path,
    env: &'a Environment,
    tenant: &'a Name,
    issues: Option<&'a str>,
}

/// Gathers what the guards of a step need. What cannot be told is not in it. None where nobody waits for it any more.
#[must_use]
pub(crate) fn gather(
    hands: &Hands,
    whom: &For,
    (run, step): (RunId, &StepId),
    after: bool,
) -> Option<GuardInputs> {
    let step = step.clone();
    let evaluate = hands.evaluate.clone();
    let asked = hands.engine.read(move |store| look(store, run, &step, after, &*evaluate)).ok().flatten();
    let Asked { needs, mut inputs, cwd, env, tenant, issues } = asked?;
    let place = Place { hands, whom, dir: &cwd, env: &env, tenant: &tenant, issues: issues.as_deref() };
    for (branch, into) in &needs.branches {
        match place.look_at_branch(branch, into) {
            Ok(info) => drop(inputs.branches.insert(branch.clone(), info)),
            Err(NotRun::Because(why)) => drop(inputs.reasons.insert(branch.clone(), why)),
            Err(NotRun::Moot) => return None,
        }
    }
    for (path, texts) in &needs.files {
        if let Some(info) =
            look_at_file(&cwd.join(path), texts, |real| hands.may_look_at(&tenant, &cwd, real))
        {
            inputs.files.insert(path.clone(), info);
        }
    }
    for command in &needs.commands {
        match place.run(Purpose::Guard, command, &[]) {
            Ok(ran) => {
                inputs.commands.insert(command.clone(), CommandResult { success: ran.code == 0 });
            }
            Err(NotRun::Because(why)) => drop(inputs.reasons.insert(command.clone(), why)),
            Err(NotRun::Moot) => return None,
        }
    }
    for filter in &needs.issues {
        match place.list_issues(filter) {
            Ok(issues) => drop(inputs.issues.insert(filter.clone(), issues)),
            Err(NotRun::Because(why)) => drop(inputs.reasons.insert(filter.to_string(), why)),
            Err(NotRun::Moot) => return None,
        }
    }
    Some(inputs)
}

/// What a guard is told of a run: where it is, whether it has ended or not.
fn info(run: &Run) -> PipelineInfo {
    let step = run.current_step().map(|step| Name::clean(step.as_str()));
    PipelineInfo { status: run.status(), step }
}

/// The newest run of a pipeline beside one of its own; one that takes another back is none of them.
fn newest(
    store: &mut Embedded,
    (tenant, namespace): (&Name, &Name),
    of: RunId,
    pipeline: &Name,
) -> Option<RunId> {
    let pipeline = Some(pipeline.clone());
    let filter = RunFilter { pipeline, limit: NEWEST_MAX, ..RunFilter::of(tenant, namespace) };
    let (runs, _) = store.list_runs(&filter, |run, _| run.born.takes_back.is_some()).ok()?;
    let takes_back = |run: &Listed<bool>| match run {
        Listed::Live(_, takes_back) => *takes_back,
        Listed::Left(row) => row.takes_back(),
    };
    runs.iter().filter(|run| !takes_back(run)).map(Listed::id).find(|id| *id != of)
}

fn look(store: &mut Embedded, id: RunId, of: &StepId, after: bool, evaluate: &dyn Evaluate) -> Option<Asked> {
    let run = store.state().run(id)?;
    let of = run.step(of)?.clone();
    // An expression that fails is told by the core, which evaluates it too.
    let guards = scope::guards(run, store.pipeline(run)?, &of, after, evaluate).unwrap_or_default();
    let mut needs = Needs::default();
    guards.iter().for_each(|guard| needs.add(&guard.condition));
    let (tenant, namespace) = (run.born.home.tenant.clone(), run.born.home.namespace.clone());
    let mut seen = GuardInputs::default();
    for other in &needs.pipelines {
        store.load(&[StreamId::Run(*other)]).ok()?;
        // Another tenant's run answers like one that is not there.
        if let Some(found) = store.state().run(*other).filter(|found| found.born.home.tenant == tenant) {
            seen.pipelines.insert(*other, info(found));
        }
    }
    for pipeline in &needs.latest {
        let Some(newest) = newest(store, (&tenant, &namespace), id, pipeline) else { continue };
        store.load(&[StreamId::Run(newest)]).ok()?;
        if let Some(found) = store.state().run(newest) {
            seen.latest.insert(pipeline.clone(), info(found));
        }
    }
    let run = store.state().run(id)?;
    let of = run.step(&of.id)?;
    let state = store.state();
    let body = |stream: &StreamId| state.stream(stream).map(|found| &found.body);
    let mut inputs = seen;
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
    let env = Environment::of_guard(&run.vars_of(of).get());
    Some(Asked {
        needs,
        inputs,
        cwd: PathBuf::from(&run.born.home.cwd),
        env,
        tenant: run.born.home.tenant.clone(),
        issues: store.runbook(run).and_then(|book| book.issues.clone()),
    })
}

impl Place<'_> {
    fn run(&self, purpose: Purpose, text: &str, own: &[(Variable, &str)]) -> Result<Ran, NotRun> {
        self.run_in(self.dir, purpose, text, own)
    }

    fn run_in(
        &self,
        dir: &Path,
        purpose: Purpose,
        text: &str,
        own: &[(Variable, &str)],
    ) -> Result<Ran, NotRun> {
        let mut env = self.env.clone();
        for (name, value) in own {
            env.set_own(*name, value).map_err(|error| NotRun::Because(error.to_string()))?;
        }
        self.hands.beside(self.whom, &beside::Command { purpose, text, dir, env })
    }

    /// Runs git. Its arguments reach it through the environment, so that none of them is read as a command; what the
    /// repository would have git start while it looks is turned off.
    fn git(&self, dir: &Path, args: &[&str]) -> Result<Ran, NotRun> {
        let mut text = "exec git --no-optional-locks -c core.fsmonitor=false".to_owned();
        let own: Vec<(Variable, &str)> = Variable::GIT.into_iter().zip(args.iter().copied()).collect();
        debug_assert_eq!(own.len(), args.len(), "there is a name for every argument");
        for (name, _) in &own {
            text.push_str(&format!(" \"${}\"", name.name()));
        }
        self.run_in(dir, Purpose::Guard, &text, &own)
    }

    /// Whether git says yes (0) or no (1). Anything else is neither.
    fn says(&self, args: &[&str]) -> Result<bool, NotRun> {
        match self.git(self.dir, args)? {
            Ran { code: 0, .. } => Ok(true),
            Ran { code: 1, .. } => Ok(false),
            Ran { complaint, .. } => Err(NotRun::Because(format!("git says: {complaint}"))),
        }
    }

    fn look_at_branch(&self, branch: &str, into: &BTreeSet<String>) -> Result<BranchInfo, NotRun> {
        // A name that begins with a dash would be an option.
        if branch.starts_with('-') || into.iter().any(|other| other.starts_with('-')) {
            return Err(NotRun::Because("no branch has a name that begins with a dash".to_owned()));
        }
        if !self.says(&["rev-parse", "--git-dir"])? {
            return Err(NotRun::Because("this is no repository".to_owned()));
        }
        let exists = self.says(&["show-ref", "--verify", "--quiet", &format!("refs/heads/{branch}")])?;
        if !exists {
            return Ok(BranchInfo { exists, ..BranchInfo::default() });
        }
        let mut merged_into = small::Map::new();
        for other in into {
            match self.says(&["merge-base", "--is-ancestor", branch, other]) {
                Ok(merged) => drop(merged_into.insert(other.clone(), merged)),
                // The other branch is not there, for example: that one is unknown, and the rest is not.
                Err(NotRun::Because(_)) => {}
                Err(NotRun::Moot) => return Err(NotRun::Moot),
            }
        }
        Ok(BranchInfo { exists, clean: self.is_clean(branch)?, merged_into })
    }

    /// Whether the worktree that has a branch checked out has nothing uncommitted. One that is checked out nowhere has
    /// nothing that could be.
    fn is_clean(&self, branch: &str) -> Result<Option<bool>, NotRun> {
        let listed = self.git(self.dir, &["worktree", "list", "--porcelain"])?;
        let mut place = None;
        for line in listed.printed.lines() {
            if let Some(path) = line.strip_prefix("worktree ") {
                place = Some(PathBuf::from(path));
            }
            if line.strip_prefix("branch refs/heads/") == Some(branch) {
                let Some(place) = place else { return Ok(None) };
                let status = self.git(&place, &["status", "--porcelain"])?;
                return Ok((status.code == 0).then(|| status.printed.trim().is_empty()));
            }
        }
        Ok(Some(true))
    }

    fn list_issues(&self, filter: &IssueFilter) -> Result<Vec<Issue>, NotRun> {
        let because = |why: String| NotRun::Because(why);
        let tenant = self.hands.config.tenants.get(self.tenant);
        let command = self.issues.or_else(|| tenant?.issues.as_deref()).ok_or_else(|| {
            because(
                "no command lists issues: see `issues` in the runbook or the configuration file".to_owned(),
            )
        })?;
        let filter = serde_json::to_string(filter).map_err(|error| because(error.to_string()))?;
        let ran = self.run(Purpose::Issues, command, &[(Variable::IssuesFilter, &filter)])?;
        if ran.code != 0 {
            return Err(because(format!("the command that lists issues failed: {}", ran.complaint)));
        }
        let unlike = |error| because(format!("what the command printed is no list of issues: {error}"));
        let listed: Vec<Value> = serde_json::from_str(&ran.printed).map_err(unlike)?;
        listed.into_iter().map(|issue| serde_json::from_value(issue).map_err(unlike)).collect()
    }
}

/// Looks at a file where that may be. What was opened is asked about and not its name, which may lead elsewhere by now.
fn look_at_file(path: &Path, texts: &BTreeSet<String>, may_look: impl Fn(&Path) -> bool) -> Option<FileInfo> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return may_look(&roots::real(path)).then(FileInfo::default);
        }
        Err(_) => return None,
    };
    if !std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).is_ok_and(|real| may_look(&real)) {
        return None;
    }
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
