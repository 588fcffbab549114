//! Deployment: a runbook becomes the active version of its name, with everything it declares, in one commit.
//!
//! | declared | the new version has it | only the old version had it |
//! |---|---|---|
//! | queue | configured | withdrawn: it keeps its items and admits no more |
//! | worker | started, unless a human stopped it | stopped: what runs, goes on |
//! | schedule | configured, first due as the shell computed; a paused one stays paused | removed |
//! | lock, semaphore | configured | stays: runs that are pinned to the old version go on using it |
//! | trigger | follows from the active version | goes with it |
//!
//! A name that is withdrawn has no active version: what the last one declared goes as with a version that lacks it.
//!
//! A name has one owner. Locks, semaphores and queues may be declared by several deployed runbooks of a namespace as
//! long as they say the same; workers, schedules and triggers run pipelines of their own file, so two files cannot both
//! have one. What a human did by hand outlives a deployment that does not speak of it: a worker that was stopped stays
//! stopped, and one that was resized keeps its size unless the file's own number changed. Where a declaration collides,
//! nothing of the deployment happens.

use crate::caps::Caps;
use crate::code::Code;
use crate::digest::Digest;
use crate::effect::Notice;
use crate::event::{RunbookDeployed, RunbookWithdrawn, TenantConfigured};
use crate::id::{Name, Scoped};
use crate::item::Terms;
use crate::machine::Given;
use crate::runbook::{QueueDef, Runbook, ScheduleDef, WorkerDef};
use crate::stream::StreamId;
use crate::time::Millis;
use crate::turn::command::{Command, Deploy, Outcome, Refusal, Reply};
use crate::turn::state::Body;
use crate::turn::{Found, View, decide, missing, of_stream, runbook_of, tenant_of};
use crate::{lock, queue, schedule, semaphore, worker};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Why a worker stops and a schedule ends with the version that declared it.
const GONE: &str = "no deployed runbook declares it";

/// The active version of a name, and who made it that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Active {
    /// The version.
    pub hash: Digest,
    /// The version before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Digest>,
    /// Who deployed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Name>,
    /// When.
    pub at: Millis,
    /// Where the runs of its workers and schedules run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub project_root: String,
}

impl Active {
    /// What a deployment makes active.
    #[must_use]
    pub fn of(e: &RunbookDeployed, at: Millis) -> Active {
        let project_root = e.project_root.clone().unwrap_or_default();
        Active { hash: e.hash, replaces: e.replaces, by: e.deployed_by.clone(), at, project_root }
    }
}

/// A deployed runbook and its name.
type Deployed<'a> = (Name, &'a Runbook);

/// Streams that nobody loaded yet are asked for all at once.
pub(crate) fn gather(view: &dyn View, streams: impl IntoIterator<Item = StreamId>) -> Result<(), Refusal> {
    let unloaded = |stream: &StreamId| matches!(view.find(stream), Found::Unloaded);
    let needed: Vec<StreamId> = streams.into_iter().filter(unloaded).collect();
    if needed.is_empty() { Ok(()) } else { Err(Refusal::Need(needed)) }
}

/// The active version of a name. Its stream was gathered.
fn active<'a>(view: &'a dyn View, deployment: &Scoped) -> Option<&'a Active> {
    match view.find(&StreamId::Deployment(deployment.clone())) {
        Found::Here(Body::Deployment(active)) => active.as_ref().as_ref(),
        Found::Here(_) | Found::Absent | Found::Unloaded => None,
    }
}

/// Every deployed runbook of a namespace.
fn deployed<'a>(
    view: &'a dyn View,
    tenant: &Name,
    namespace: &Name,
) -> Result<Vec<(Scoped, Deployed<'a>)>, Refusal> {
    let names = view.deployments(tenant, namespace);
    gather(view, names.iter().cloned().map(StreamId::Deployment))?;
    let all: Vec<(Scoped, Digest)> =
        names.into_iter().filter_map(|name| active(view, &name).map(|a| a.hash).map(|h| (name, h))).collect();
    gather(view, all.iter().map(|(_, hash)| StreamId::Runbook(*hash)))?;
    let mut books = Vec::new();
    for (name, hash) in all {
        if let Some(book) = runbook_of(view, &hash)? {
            books.push((name, (book.name.clone(), book)));
        }
    }
    Ok(books)
}

/// Whether a runbook could be deployed beside the others that are: asked before it is stored, so that one that is refused
/// leaves nothing.
///
/// # Errors
/// It declares what another one has.
pub fn fits(view: &dyn View, deployment: &Scoped, runbook: &Runbook) -> Result<(), Refusal> {
    let (tenant, namespace) = (tenant_of(deployment), Name::clean(deployment.namespace()));
    let deployed = deployed(view, &tenant, &namespace)?;
    let mut others = deployed.iter().filter(|(name, _)| name != deployment);
    others.try_for_each(|(_, other)| refuse_conflict(runbook, other))
}

/// Makes a loaded runbook the active version of its name.
pub(crate) fn deploy(view: &dyn View, wish: &Deploy, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Deploy { deployment, hash, project_root, .. } = wish;
    let (tenant, namespace) = (tenant_of(deployment), Name::clean(deployment.namespace()));
    gather(view, [StreamId::Runbook(*hash), StreamId::Deployment(deployment.clone())])?;
    let runbook = runbook_of(view, hash)?.ok_or_else(|| missing("runbook", hash))?;
    let before = active(view, deployment);
    if before.is_some_and(|before| before.hash == *hash && before.project_root == *project_root) {
        return Ok(Outcome::reply(Reply::Done));
    }
    let (own, others): (Vec<_>, Vec<_>) =
        deployed(view, &tenant, &namespace)?.into_iter().partition(|(name, _)| name == deployment);
    let others: Vec<Deployed<'_>> = others.into_iter().map(|(_, book)| book).collect();
    let old = own.first().map(|(_, (_, book))| *book);
    let scope = |name: &Name| Scoped::new(&tenant, &namespace, name);
    gather(view, streams(runbook, &scope).chain(old.into_iter().flat_map(|old| streams(old, &scope))))?;
    others.iter().try_for_each(|other| refuse_conflict(runbook, other))?;

    let fact = RunbookDeployed {
        name: runbook.name.clone(),
        hash: *hash,
        namespace: namespace.clone(),
        replaces: before.map(|before| before.hash),
        deployed_by: given.by.id.clone(),
        project_root: Some(project_root.clone()).filter(|root| !root.is_empty()),
    };
    let stream = StreamId::Deployment(deployment.clone());
    let mut out = of_stream(stream, &tenant, alloc::vec![fact.into()], Reply::Done);
    let declared = declarations(view, (runbook, old), wish, &scope, given)?;
    let gone = old.map(|old| withdrawals(old, Some(runbook), &others, &scope)).unwrap_or_default();
    tell_all(view, declared.into_iter().chain(gone), &mut out, given)?;
    Ok(out)
}

/// Leaves a name without an active version. Runs that are pinned to it go on, and so does what its workers began.
pub(crate) fn withdraw(
    view: &dyn View,
    deployment: &Scoped,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let (tenant, namespace) = (tenant_of(deployment), Name::clean(deployment.namespace()));
    gather(view, [StreamId::Deployment(deployment.clone())])?;
    let hash = active(view, deployment).ok_or_else(|| missing("deployed runbook", &deployment.name()))?.hash;
    let (own, others): (Vec<_>, Vec<_>) =
        deployed(view, &tenant, &namespace)?.into_iter().partition(|(name, _)| name == deployment);
    let others: Vec<Deployed<'_>> = others.into_iter().map(|(_, book)| book).collect();
    let scope = |name: &Name| Scoped::new(&tenant, &namespace, name);
    let name = Name::clean(deployment.name());
    let stream = StreamId::Deployment(deployment.clone());
    let fact = RunbookWithdrawn { name, hash, namespace: namespace.clone() };
    let mut out = of_stream(stream, &tenant, alloc::vec![fact.into()], Reply::Done);
    if let Some((_, (_, old))) = own.first() {
        gather(view, streams(old, &scope))?;
        tell_all(view, withdrawals(old, None, &others, &scope), &mut out, given)?;
    }
    Ok(out)
}

/// Adds what these commands come to. Each has a name, for the refusal that is about it.
fn tell_all(
    view: &dyn View,
    commands: impl IntoIterator<Item = (String, Command)>,
    out: &mut Outcome,
    given: &mut Given<'_>,
) -> Result<(), Refusal> {
    for (what, command) in commands {
        let part = decide(view, &command, given).map_err(|refusal| about(&what, refusal))?;
        out.facts.extend(part.facts);
        out.effects.extend(part.effects);
        out.follow.extend(part.follow);
    }
    Ok(())
}

/// A refusal that says which declaration it is about.
fn about(what: &str, refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Error { code, message, retry_at } => {
            Refusal::Error { code, message: alloc::format!("{what}: {message}"), retry_at }
        }
        need @ Refusal::Need(_) => need,
    }
}

/// The streams of everything a runbook declares.
fn streams<'a>(
    runbook: &'a Runbook,
    scope: &'a dyn Fn(&Name) -> Scoped,
) -> impl Iterator<Item = StreamId> + 'a {
    let queues = runbook.queues.keys().map(|name| StreamId::Queue(scope(name)));
    let workers = runbook.workers.keys().map(|name| StreamId::Worker(scope(name)));
    let schedules = runbook.schedules.keys().map(|name| StreamId::Schedule(scope(name)));
    let locks = runbook.locks.keys().map(|name| StreamId::Lock(scope(name)));
    let semaphores = runbook.semaphores.keys().map(|name| StreamId::Semaphore(scope(name)));
    queues.chain(workers).chain(schedules).chain(locks).chain(semaphores)
}

/// Refuses a runbook that declares what another deployed one has.
fn refuse_conflict(runbook: &Runbook, (owner, other): &Deployed<'_>) -> Result<(), Refusal> {
    let differs = "with other settings; write the same ones, or choose another name";
    let taken = "; choose another name";
    let collides = |what: &str, name: &Name, how: &str| {
        let message = alloc::format!("the {what} `{name}` belongs to the deployed runbook `{owner}` {how}");
        Err(Refusal::new(Code::DeployConflict, message.replace(" ;", ";")))
    };
    macro_rules! shared {
        ($($what:literal $field:ident),+) => {$(
            for (name, def) in &runbook.$field {
                if other.$field.get(name).is_some_and(|theirs| theirs != def) {
                    return collides($what, name, differs);
                }
            }
        )+};
    }
    macro_rules! owned {
        ($($what:literal $field:ident),+) => {$(
            if let Some(name) = runbook.$field.keys().find(|name| other.$field.contains_key(*name)) {
                return collides($what, name, taken);
            }
        )+};
    }
    shared!("lock" locks, "semaphore" semaphores, "queue" queues);
    owned!("worker" workers, "schedule" schedules, "trigger" triggers);
    Ok(())
}

/// What is said to everything a runbook declares, with a name for each.
fn declarations(
    view: &dyn View,
    (runbook, old): (&Runbook, Option<&Runbook>),
    wish: &Deploy,
    scope: &dyn Fn(&Name) -> Scoped,
    given: &Given<'_>,
) -> Result<Vec<(String, Command)>, Refusal> {
    let mut commands = coordination(runbook, scope);
    for (name, def) in &runbook.queues {
        let input = queue::Input::Configure(queue_settings(def));
        commands.push((alloc::format!("queue `{name}`"), Command::Queue { queue: scope(name), input }));
    }
    for (name, def) in &runbook.workers {
        let what = alloc::format!("worker `{name}`");
        let settings = worker_settings(runbook, def, wish).map_err(|refusal| about(&what, refusal))?;
        let before = old.and_then(|old| old.workers.get(name));
        let input = worker_input(view, &scope(name), settings, before);
        commands.push((what, Command::Worker { worker: scope(name), input }));
    }
    for (name, def) in &runbook.schedules {
        let what = alloc::format!("schedule `{name}`");
        let settings = schedule_settings(def, wish, given).map_err(|refusal| about(&what, refusal))?;
        let input = schedule::Input::Configure { settings, next_at: wish.next.get(name).copied() };
        commands.push((what, Command::Schedule { schedule: scope(name), input }));
    }
    Ok(commands)
}

/// What is said to the locks and semaphores of a runbook.
fn coordination(runbook: &Runbook, scope: &dyn Fn(&Name) -> Scoped) -> Vec<(String, Command)> {
    let locks = runbook.locks.iter().map(|(name, def)| {
        let config = lock::Config {
            heartbeat_timeout: def.heartbeat_timeout,
            max_hold_duration: def.max_hold_duration,
        };
        let input = lock::Input::Configure(config);
        (alloc::format!("lock `{name}`"), Command::Lock { lock: scope(name), input })
    });
    let semaphores = runbook.semaphores.iter().map(|(name, def)| {
        let config = semaphore::Config { capacity: def.capacity, heartbeat_timeout: def.heartbeat_timeout };
        let input = semaphore::Input::Configure(config);
        (alloc::format!("semaphore `{name}`"), Command::Semaphore { semaphore: scope(name), input })
    });
    locks.chain(semaphores).collect()
}

/// What is said to everything that only the old version declares: all of it, where no version takes its place.
fn withdrawals(
    old: &Runbook,
    new: Option<&Runbook>,
    others: &[Deployed<'_>],
    scope: &dyn Fn(&Name) -> Scoped,
) -> Vec<(String, Command)> {
    let mut commands = Vec::new();
    let shared = |name: &Name| others.iter().any(|(_, other)| other.queues.contains_key(name));
    for name in old
        .queues
        .keys()
        .filter(|name| new.is_none_or(|new| !new.queues.contains_key(*name)) && !shared(name))
    {
        let command = Command::Queue { queue: scope(name), input: queue::Input::Withdraw };
        commands.push((alloc::format!("queue `{name}`"), command));
    }
    for name in old.workers.keys().filter(|name| new.is_none_or(|new| !new.workers.contains_key(*name))) {
        let input = worker::Input::Stop { reason: Some(GONE.to_string()) };
        commands.push((alloc::format!("worker `{name}`"), Command::Worker { worker: scope(name), input }));
    }
    for name in old.schedules.keys().filter(|name| new.is_none_or(|new| !new.schedules.contains_key(*name))) {
        let command = Command::Schedule { schedule: scope(name), input: schedule::Input::Remove };
        commands.push((alloc::format!("schedule `{name}`"), command));
    }
    commands
}

fn queue_settings(def: &QueueDef) -> queue::Settings {
    let terms = Terms {
        max_attempts: def.max_attempts,
        cooldown: def.cooldown,
        visibility_timeout: def.visibility_timeout,
        dead_letter: def.dead_letter.clone(),
    };
    queue::Settings { terms, max_depth: def.max_depth, dedupe: def.dedupe }
}

fn worker_settings(runbook: &Runbook, def: &WorkerDef, wish: &Deploy) -> Result<worker::Settings, Refusal> {
    let parse = |text: &String| {
        crate::pattern::Pattern::parse(text)
            .map_err(|error| Refusal::new(Code::RunbookInvalid, error.to_string()))
    };
    let external = runbook.queues.get(&def.queue).and_then(|queue| queue.external.as_ref());
    Ok(worker::Settings {
        queue: def.queue.clone(),
        pipeline: def.pipeline.clone(),
        runbook_hash: wish.hash,
        project_root: wish.project_root.clone(),
        concurrency: def.concurrency,
        wake_on: def.wake_on.iter().map(parse).collect::<Result<_, Refusal>>()?,
        poll: external.map(|external| external.poll),
    })
}

/// What is said to a worker that the version before may have declared too. One that it did not declare was stopped with
/// an older version, if at all, and starts with this one.
fn worker_input(
    view: &dyn View,
    worker: &Scoped,
    mut settings: worker::Settings,
    before: Option<&WorkerDef>,
) -> worker::Input {
    let Some(before) = before else { return worker::Input::Start(settings) };
    if let Found::Here(Body::Worker(known)) = view.find(&StreamId::Worker(worker.clone()))
        && let Some(resized) = known.settings()
        && before.concurrency == settings.concurrency
    {
        settings.concurrency = resized.concurrency;
    }
    worker::Input::Declare(settings)
}

/// The settings of a schedule. Its variables are constants: there is no event that they could come from.
fn schedule_settings(
    def: &ScheduleDef,
    wish: &Deploy,
    given: &Given<'_>,
) -> Result<schedule::Settings, Refusal> {
    let nothing = Map::new();
    let mut vars = Map::new();
    for (name, template) in &def.vars {
        let value = template
            .render(given.evaluate, &nothing)
            .map_err(|message| Refusal::new(Code::ExpressionFailed, message))?;
        vars.insert(name.to_string(), value);
    }
    Ok(schedule::Settings {
        spec: def.spec.clone(),
        timezone: def.timezone.clone(),
        jitter: def.jitter,
        catch_up: def.catch_up,
        overlap: def.overlap,
        pipeline: def.pipeline.clone(),
        runbook_hash: wish.hash,
        vars: Value::Object(vars),
        project_root: wish.project_root.clone(),
    })
}

/// Gives the locks and semaphores of a runbook that is not deployed their settings. A deployed runbook's word stands
/// where it says otherwise: a file that somebody only runs cannot change what others rely on.
pub(crate) fn declare(
    view: &dyn View,
    (tenant, namespace): (&Name, &Name),
    hash: &Digest,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let runbook = runbook_of(view, hash)?.ok_or_else(|| missing("runbook", hash))?;
    let owners = deployed(view, tenant, namespace)?;
    let scope = |name: &Name| Scoped::new(tenant, namespace, name);
    gather(view, streams(runbook, &scope))?;
    let mut own = runbook.clone();
    own.locks.retain(|name, _| owners.iter().all(|(_, (_, owner))| !owner.locks.contains_key(name)));
    own.semaphores
        .retain(|name, _| owners.iter().all(|(_, (_, owner))| !owner.semaphores.contains_key(name)));
    let mut out = Outcome::reply(Reply::Done);
    tell_all(view, coordination(&own, &scope), &mut out, given)?;
    Ok(out)
}

/// Says what a tenant may do at most, and its share.
pub(crate) fn configure_tenant(
    view: &dyn View,
    tenant: &Name,
    (caps, weight, self_approval, notices): (Caps, u32, Option<bool>, &[Notice]),
) -> Result<Outcome, Refusal> {
    if !(1..=crate::caps::WEIGHT_MAX).contains(&weight) {
        let message = alloc::format!("the weight of a tenant is between 1 and {}", crate::caps::WEIGHT_MAX);
        return Err(Refusal::new(Code::InvalidInput, message));
    }
    let stream = StreamId::Tenant(tenant.clone());
    gather(view, [stream.clone()])?;
    // One of which nothing is known may do what nobody limits.
    let known = match view.find(&stream) {
        Found::Here(Body::Tenant(known)) => {
            (known.caps, known.weight, known.self_approval, known.notices.as_slice())
        }
        Found::Here(_) | Found::Absent | Found::Unloaded => (Caps::default(), 1, None, &[][..]),
    };
    if known == (caps, weight, self_approval, notices) {
        return Ok(Outcome::reply(Reply::Done));
    }
    let Caps { max_concurrency, max_runs_per_min, max_writes_per_run, max_runbooks, max_runbook_bytes } =
        caps;
    let notices = Some(notices.to_vec()).filter(|notices| !notices.is_empty());
    let configured = TenantConfigured {
        max_concurrency,
        max_runs_per_min,
        max_writes_per_run,
        weight,
        self_approval,
        notices,
        max_runbooks,
        max_runbook_bytes,
    };
    Ok(of_stream(stream, tenant, alloc::vec![configured.into()], Reply::Done))
}
