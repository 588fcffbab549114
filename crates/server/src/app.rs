//! The application: the engine on the embedded store, with everything it acts through, started and stopped as one.

use crate::apart::{self, Apart};
use crate::api::Caller;
use crate::attempts::Attempts;
use crate::auth::Tokens;
use crate::cards::sender::Sender;
use crate::evidence::handed::HandedOut;
use crate::evidence::keep::Place;
use crate::evidence::keys::Keys;
use crate::evidence::proofs::Proofs;
use crate::evidence::seal::Sealing;
use crate::evidence::shelf::Shelf;
use crate::metrics::{Metrics, Watch};
use crate::outside::{Local, Whose};
use crate::policy::{FOLDER, InForce};
use crate::retention::{self, Retention};
use crate::roots::Roots;
use crate::standing::Standing;
use crate::telemetry;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use windlass_core::caps::Caps;
use windlass_core::code::Code;
use windlass_core::effect::Notice;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::receipt::Action;
use windlass_core::run::Actor;
use windlass_core::turn::command::{Command, Refusal};
use windlass_engine::handle::{Message, inbox};
use windlass_engine::port::{Clock as _, Fault};
use windlass_engine::{Engine, Handle, Leave, Options, Parts, Permit, Reader};
use windlass_executor::clock::{Sorted, System, fresh};
use windlass_executor::config::Config;
use windlass_executor::executor::Executor;
use windlass_executor::home::Home;
use windlass_executor::redaction::Redactor;
use windlass_executor::secrets::{Secrets, Vault};
use windlass_executor::shell::{Author, Shell, Wall};
use windlass_executor::tools::Tools;
use windlass_executor::tools::described::Registry;
use windlass_executor::tools::settings::Settings as ToolSettings;
use windlass_runbook::expr::Cel;
use windlass_store::disk::Files;
use windlass_store::log::{Log, Recovery};
use windlass_store::store::{self, Embedded};

/// How often is looked whether the data directory is still its owner's alone.
const LOOK: Duration = Duration::from_secs(1);

/// Why the application cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The keeper of shell steps.
    #[error("the keeper of shell steps cannot be started: {0}")]
    Shell(#[from] windlass_executor::shell::Error),
    /// What is stored cannot be taken up.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The tools cannot be set up.
    #[error("{0}")]
    Tools(String),
    /// There is no place for bundles.
    #[error("WINDLASS_ARTIFACTS: {0}")]
    Evidence(crate::evidence::Error),
    /// The system said no.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Store(error) => error.code(),
            Error::Fault(fault) => fault.code(),
            Error::Tools(_) | Error::Evidence(_) => Code::InvalidInput,
            Error::Shell(_) | Error::Io(_) => Code::Unavailable,
        }
    }
}

/// How the application is to run.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The loop's own.
    pub engine: Options,
    /// The store's own.
    pub store: store::Options,
    /// Whether steps are carried out at all. Without, nothing that is stored moves on.
    pub executes: bool,
    /// Whether the process stays when nothing is left to do, as a server does.
    pub stays: bool,
    /// What the configuration file says.
    pub config: Arc<Config>,
    /// Whether log lines and spans are told of runs.
    pub tells: bool,
    /// How tools are set up; as the environment and the configuration file say where absent.
    pub tools: Option<Arc<ToolSettings>>,
    /// The tools that files describe; read from the folder that the settings name where absent.
    pub registry: Option<Registry>,
    /// What steps run behind.
    pub apart: Apart,
    /// Whether callers of this machine may start runs without a credential.
    pub trusts_local: bool,
    /// Files that no step may reach, beside those in the data directory.
    pub closed: Vec<PathBuf>,
    /// Whether the configuration file was named, so that none is looked for.
    pub names_config: bool,
    /// The policy folder that is named; one beside the data directory or in the working directory where it is not.
    pub policy: Option<PathBuf>,
}

/// A running application.
pub struct App {
    /// The way to the loop.
    pub engine: Handle<Embedded>,
    /// What is stored, for those who read it.
    pub reader: Arc<dyn Reader>,
    /// Held once by the application, and once by each request that follows the log.
    pub followers: Arc<()>,
    /// What policy says.
    pub policy: Arc<InForce>,
    /// What evaluates expressions.
    pub evaluate: Arc<Cel>,
    /// The log, for those who read it.
    pub log: Arc<Log>,
    /// The tools.
    pub tools: Tools,
    /// The data directory.
    pub home: Home,
    /// What steps run behind.
    pub apart: Apart,
    /// Which directories are whose; absent where nothing is carried out.
    pub roots: Option<Arc<Roots>>,
    /// Whether callers of this machine may start runs without a credential.
    trusts_local: bool,
    /// What the configuration file says.
    pub config: Arc<Config>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What was found at the start.
    pub recovery: Recovery,
    /// Who is known by what they show.
    pub tokens: Arc<Tokens>,
    /// Requests that wait, or read on.
    pub standing: Arc<Standing>,
    /// Whether the process is on its way out.
    draining: watch::Sender<bool>,
    tail: watch::Receiver<u64>,
    outside: Arc<Local>,
    /// Shows people what waits for them; absent where nothing is carried out.
    pub cards: Option<Arc<Sender>>,
    /// What seals the log.
    pub sealing: Sealing,
    /// What bundles have in common.
    pub proofs: Arc<Proofs>,
    /// The keys it seals with.
    pub keys: Keys,
    /// Where bundles are kept.
    pub shelf: Shelf,
    /// Which were handed out, and to whom.
    pub handed_out: HandedOut,
    executes: bool,
    stays: bool,
    retention: Mutex<Option<Retention>>,
    attempts: Arc<Attempts>,
    thread: Mutex<Option<JoinHandle<Result<(), Fault>>>>,
    telling: Mutex<Option<JoinHandle<()>>>,
}

/// Where a policy folder is looked for: beside the data directory, and in the working directory.
fn places(home: &Home) -> Vec<PathBuf> {
    home.root().parent().map(Path::to_path_buf).into_iter().chain(std::env::current_dir()).collect()
}

impl App {
    /// Opens the data directory, takes up what was left there, and begins to serve.
    ///
    /// # Errors
    /// Another process has the directory, it is damaged, or the system says no.
    pub fn start(home: Home, exe: &Path, settings: Settings) -> Result<Arc<App>, Error> {
        let tools = match settings.tools.clone() {
            Some(tools) => tools,
            None => {
                Arc::new(ToolSettings::of(&settings.config).map_err(|error| Error::Tools(error.to_string()))?)
            }
        };
        let registry = match settings.registry.clone() {
            Some(registry) => registry,
            None => Registry::read(&tools).map_err(|error| Error::Tools(error.to_string()))?,
        };
        let callable = Tools::new(tools.clone(), registry).map_err(Error::Tools)?;
        let named = settings.config.var("WINDLASS_ARTIFACTS");
        let shelf = Shelf::find(named.as_deref(), &home.evidence()).map_err(Error::Evidence)?;
        let (mut store, recovery) = Embedded::open(Arc::new(Files), home.root(), &settings.store)?;
        let (log, tail, metrics) = (store.log(), store.tail(), Arc::new(Metrics::default()));
        let (mut telling, mut teller) = (None, None);
        if settings.tells {
            telemetry::recovered(&recovery);
            let (told, thread) = telemetry::start(&settings.config, metrics.clone())?;
            (telling, teller) = (Some(thread), Some(told));
        }
        store.observe(Box::new(Watch { metrics: metrics.clone(), teller }));
        // Keys and secrets are in this process's memory, and steps run under the same user.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
            .map_err(std::io::Error::from)?;
        // The keeper of the process before is gone once this one has its place: nothing runs beside a living copy.
        let shell = if settings.executes { Some(Arc::new(Shell::start(exe, home.root())?)) } else { None };
        let executor = match &shell {
            Some(shell) => {
                let secrets = Arc::new(Secrets::new(home.root()));
                let made = Executor::new(callable.clone(), (home.clone(), secrets), shell.clone());
                Some(made.map_err(Error::Tools)?)
            }
            None => None,
        };
        let (handle, inbox) = inbox();
        let reader: Arc<dyn Reader> = Arc::new(store.reads(handle.clone()));
        let evaluate = Arc::new(Cel::new());
        let policy = Arc::new(InForce::find(
            settings.policy.as_deref().or(settings.config.policy.as_deref()),
            &places(&home),
        ));
        policy.watch()?;
        let cards = match &executor {
            Some(made) => {
                let (config, secrets) = (settings.config.clone(), made.secrets().clone());
                Some(Sender::start(handle.clone(), config, &tools, secrets)?)
            }
            None => None,
        };
        let (policies, expressions) = (policy.clone(), evaluate.clone());
        let walled = shell.clone();
        let hands = (executor, cards.clone());
        let outside = Local::new(
            handle.clone(),
            home.clone(),
            (settings.config.clone(), policies),
            expressions,
            hands,
            &tools,
        )?;
        let attempts = outside.attempts();
        let parts = Parts {
            store,
            clock: Arc::new(System),
            ids: Box::new(Sorted),
            evaluate: evaluate.clone(),
            policy: policy.clone(),
            outside: outside.clone(),
        };
        let options = Options {
            slots: if settings.executes { settings.engine.slots } else { 0 },
            ..settings.engine.clone()
        };
        let mut engine = Engine::new(parts, options, handle.clone());
        // Before anything that was left is taken up again.
        let tokens = Arc::<Tokens>::default();
        tokens.learn(engine.store().state());
        let mut roots = None;
        if let Some(shell) = walled {
            let (known, config, chosen) = (tokens.clone(), settings.config.clone(), settings.apart.clone());
            let mut closed = apart::closed(&config, home.root());
            closed.extend(settings.policy.iter().chain(&settings.closed).cloned());
            // The next start would look for them here.
            if settings.policy.is_none() && config.policy.is_none() {
                closed.extend(places(&home).iter().map(|place| place.join(FOLDER)));
            }
            if !settings.names_config {
                closed.extend(
                    std::env::current_dir().map(|here| here.join(windlass_executor::config::FILE_NAME)),
                );
            }
            // A tool is the owner's own, and works in its folder. Nobody else writes there.
            let closed_to_tools = closed.clone();
            closed.extend(tools.folder.clone());
            let by_config = settings.trusts_local || config.has_others();
            shell.set_limits(config.limits);
            let made = Arc::new(Roots::new(handle.clone(), apart::sandbox(&config, &closed)));
            made.learn(engine.store().state());
            roots = Some(made.clone());
            shell.set_walls(move |author, dir| {
                let closed = match author {
                    Author::Configuration => return chosen.wall_of_owner(),
                    Author::Tool => &closed_to_tools,
                    Author::Nobody | Author::Tenant(_) | Author::Run { .. } => &closed,
                };
                let others = by_config || known.has_others(System.now());
                if !others || !chosen.keeps() {
                    return chosen.wall(others, &config, closed);
                }
                match made.of_others(author, dir) {
                    Err(why) => Wall::Refused(why),
                    Ok(more) => chosen.wall(others, &config, closed).without(more),
                }
            });
        }
        if settings.executes {
            engine.recover()?;
        }
        let serve = move || engine.serve(&inbox);
        let thread = std::thread::Builder::new().name("engine".into()).spawn(serve)?;
        let thread = Mutex::new(Some(thread));
        // Whoever only looks does not tidy up either.
        let kept = settings.config.retention;
        let place = retention::Place { engine: handle.clone(), home: home.clone(), kept };
        let retention = settings.executes.then(|| Retention::start(place)).transpose()?;
        let retention = Mutex::new(retention);
        let keys = Keys::open(&home.keys()).map_err(std::io::Error::other)?;
        let proofs = Arc::<Proofs>::default();
        let place = Place {
            shelf: shelf.clone(),
            cursor: home.evidence_through(),
            always: settings.config.evidence_always,
            proofs: proofs.clone(),
        };
        let sealing = Sealing::start(handle.clone(), log.clone(), keys.clone(), place)?;
        let draining = watch::Sender::new(false);
        let config = settings.config;
        let app = Arc::new(App {
            reader,
            followers: Arc::default(),
            sealing,
            proofs,
            keys,
            shelf,
            handed_out: HandedOut::default(),
            apart: settings.apart.clone(),
            roots,
            trusts_local: settings.trusts_local,
            executes: settings.executes,
            stays: settings.stays,
            retention,
            engine: handle,
            policy,
            evaluate,
            log,
            tools: callable,
            home,
            config,
            metrics,
            recovery,
            tokens,
            standing: Arc::default(),
            draining,
            tail,
            outside,
            cards,
            attempts,
            thread,
            telling: Mutex::new(telling),
        });
        app.outside.emits_by(&app);
        if settings.executes {
            app.configure_tenants().map_err(|refusal| std::io::Error::other(refusal.to_string()))?;
            app.keep_private()?;
        }
        Ok(app)
    }

    /// Tenants may do what the configuration file says.
    fn configure_tenants(&self) -> Result<(), Refusal> {
        for (name, tenant) in &self.config.tenants {
            let wanted = |kind: &Notice| windlass_core::notice::WANTED.contains(kind);
            let notices: Vec<Notice> = tenant.notices.on.iter().copied().filter(wanted).collect();
            self.configure_tenant(name, tenant.caps, tenant.weight.unwrap_or(1), notices)?;
        }
        Ok(())
    }

    /// Says what a tenant may do at most, its share when others want to run too, and of what its people want to be told. It is durable when this returns;
    /// to say what holds already changes nothing.
    ///
    /// # Errors
    /// A weight out of its bounds, or the engine has ended.
    pub fn configure_tenant(
        &self,
        tenant: &Name,
        caps: Caps,
        weight: u32,
        notices: Vec<Notice>,
    ) -> Result<(), Refusal> {
        // Where people decide in Slack, somebody else than the owner can, as with a token.
        let others = self.config.tenant(tenant.as_str()).is_some_and(|tenant| !tenant.slack.users.is_empty());
        let self_approval = self.config.self_approval.or(others.then_some(false));
        let command = Command::Tenant { tenant: tenant.clone(), caps, weight, self_approval, notices };
        self.engine.call(Actor::SYSTEM, command).map(|_| ())
    }

    /// Keeps the data directory its owner's alone: a step in the sandbox can change modes and owners, for that is no access
    /// that Landlock knows.
    fn keep_private(self: &Arc<App>) -> std::io::Result<()> {
        let app = Arc::downgrade(self);
        let key: Vec<PathBuf> =
            Vault::new(self.home.root()).key_file().map(Path::to_path_buf).into_iter().collect();
        let look = move || {
            let mut before = Vec::new();
            loop {
                std::thread::sleep(LOOK);
                let Some(app) = app.upgrade() else { return };
                let mut now = Vec::new();
                if app.has_others() {
                    app.home.mend(&key, &mut |what| now.push(what));
                }
                // What cannot be changed is the same each time, and is said once.
                for what in now.iter().filter(|what| !before.contains(*what)) {
                    eprintln!("windlass: {what}");
                }
                before = now;
            }
        };
        std::thread::Builder::new().name("home-watch".into()).spawn(look).map(|_| ())
    }

    /// Nothing more is started, and whoever waits for something that never ends is let go.
    pub fn drain(&self) {
        self.engine.tell(Message::Slots(0));
        self.draining.send_replace(true);
    }

    /// Whether the process is on its way out.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Waits until the process is on its way out: whoever holds an answer back for longer than a moment listens to it.
    pub async fn drained(&self) {
        // It is set and never taken back, and its sender lives as long as this.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    /// Whether steps can be begun: the keeper of their processes may have died, and is started again then.
    #[must_use]
    pub fn can_begin(&self) -> bool {
        self.outside.is_ready()
    }

    /// Waits until nothing of a run is about to begin here.
    pub async fn settle(&self, run: RunId) {
        let outside = self.outside.clone();
        // It waits for a moment, and gives up by itself.
        let _ = tokio::task::spawn_blocking(move || outside.settle(run)).await;
    }

    /// Asks policy whether what is left of a step's effect may be looked at, and has the answer recorded.
    ///
    /// # Errors
    /// It may not, or policy could not be asked.
    pub async fn may_look(&self, run: RunId, step: StepId, action: Action) -> Result<Leave, Refusal> {
        let outside = self.outside.clone();
        let asked = tokio::task::spawn_blocking(move || outside.may_look(run, step, action)).await;
        asked.unwrap_or_else(|_| Err(Refusal::new(Code::Unavailable, "the process ends")))
    }

    /// Callers are served by the runtime that this is called in: they are told there what became of what they asked for.
    pub fn serves_here(&self) {
        self.outside.serves_on(tokio::runtime::Handle::current());
    }

    /// Tells when the process is on its way out.
    #[must_use]
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Whether others than the owner may start or approve runs.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.trusts_local || self.config.has_others() || self.tokens.has_others(System.now())
    }

    /// Whether a caller may have a directory for deployments and runs.
    ///
    /// # Errors
    /// It is another tenant's.
    pub async fn check_root(&self, caller: &Caller, root: &str) -> Result<(), Refusal> {
        let Some(roots) = self.roots.clone() else { return Ok(()) };
        if caller.owns || !self.apart.keeps() || !self.has_others() {
            return Ok(());
        }
        let (tenant, root) = (caller.tenant.clone(), PathBuf::from(root));
        // It waits for the engine.
        let checked = tokio::task::spawn_blocking(move || roots.check(Some(&tenant), &root)).await;
        let checked = checked.map_err(|_| Refusal::new(Code::Unavailable, "the process ends"))?;
        checked.map_err(|why| Refusal::new(Code::Forbidden, why))
    }

    /// A fresh id.
    #[must_use]
    pub fn id(&self) -> u128 {
        fresh()
    }

    /// The tokens of attempts.
    #[must_use]
    pub fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// Whose a process with these ancestors is.
    #[must_use]
    pub fn whose(&self, line: &[windlass_executor::shell::Identity]) -> Whose {
        match self.outside.whose(line) {
            // Where others may act, so may those behind the steps of an executor on this machine.
            Whose::Apart if self.has_others() && windlass_executor::shell::is_kept(line) => Whose::Step,
            whose => whose,
        }
    }

    /// What masks the secrets of a run in what comes from its attempts over the API.
    pub async fn mask_of(&self, run: RunId) -> Redactor {
        if let Some(known) = self.outside.masked(run) {
            return known.redactor();
        }
        let found = self.look(move |store| {
            let run = store.state().run(run)?;
            Some((run.born.home.tenant.clone(), store.runbook(run)?.secrets()))
        });
        // A run that is gone takes nothing any more.
        let Ok(Some((tenant, names))) = found.await else { return Redactor::new() };
        self.outside.secrets_of(run, &tenant, || names).redactor()
    }

    /// What is masked of a run, by its names: an executor elsewhere has its own values.
    #[must_use]
    pub fn secrets_of(&self, permit: &Permit) -> BTreeSet<Name> {
        let work = permit.work();
        let names = work.runbook.secrets();
        if !names.is_empty() {
            drop(self.outside.secrets_of(permit.lease().run, &work.tenant, || names.clone()));
        }
        names
    }

    /// Where steps run that nobody gave a directory.
    #[must_use]
    pub fn default_dir(&self) -> String {
        std::env::current_dir()
            .unwrap_or_else(|_| self.home.root().to_path_buf())
            .to_string_lossy()
            .into_owned()
    }

    /// Tells the last durable seq whenever it moves.
    #[must_use]
    pub fn tail(&self) -> watch::Receiver<u64> {
        self.tail.clone()
    }

    /// Whether steps are carried out in this process.
    #[must_use]
    pub fn executes(&self) -> bool {
        self.executes
    }

    /// Whether the process stays when nothing is left to do, as a server does.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.stays
    }

    /// Stops: nothing more is started, attempts under way are ended and handed back, and everything is durable.
    pub fn stop(&self) {
        drop(self.retention.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.engine.tell(Message::Slots(0));
        self.outside.stop();
        if self.executes
            && let Err(error) = self.sealing.finish()
        {
            eprintln!("windlass: what changed is not all sealed: {error}");
        }
        self.engine.tell(Message::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A loop that panicked has nothing left to wait for.
            let _ = thread.join();
        }
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(telling) = telling {
            // What the loop told last is written, too.
            let _ = telling.join();
        }
    }
}
