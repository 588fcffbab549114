//! The application: the engine on the embedded store, with everything it acts through, started and stopped as one.

use crate::attempts::Attempts;
use crate::auth::Tokens;
use crate::cards::sender::Sender;
use crate::clock::{Sorted, System, fresh};
use crate::config::Config;
use crate::disk::Files;
use crate::evidence::keys::Keys;
use crate::evidence::seal::Sealing;
use crate::evidence::shelf::Shelf;
use crate::expr::Cel;
use crate::home::Home;
use crate::log::{Log, Recovery};
use crate::metrics::Metrics;
use crate::outside::Local;
use crate::policy::InForce;
use crate::retention::{self, Retention};
use crate::shell::Shell;
use crate::store::{self, Embedded};
use crate::telemetry;
use crate::tools::execute::Executor;
use crate::tools::settings::Settings as ToolSettings;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::watch;
use windlass_core::caps::Caps;
use windlass_core::command::{Command, Refusal};
use windlass_core::id::Name;
use windlass_core::run::Actor;
use windlass_core::time::Span;
use windlass_engine::handle::{Message, inbox};
use windlass_engine::port::Fault;
use windlass_engine::{Engine, Handle, Options, Parts};

/// Why the application cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The keeper of shell steps.
    #[error("the keeper of shell steps cannot be started: {0}")]
    Shell(#[from] crate::shell::Error),
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
    pub fn code(&self) -> windlass_core::code::Code {
        match self {
            Error::Store(error) => error.code(),
            Error::Fault(fault) => fault.code(),
            Error::Tools(_) | Error::Evidence(_) => windlass_core::code::Code::InvalidInput,
            Error::Shell(_) | Error::Io(_) => windlass_core::code::Code::Unavailable,
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
    /// How long runs are kept after their end; the default where absent.
    pub kept: Option<Span>,
    /// What the configuration file says.
    pub config: Arc<Config>,
    /// Whether log lines and spans are told of runs.
    pub tells: bool,
    /// How tools are set up; as the environment and the configuration file say where absent.
    pub tools: Option<Arc<ToolSettings>>,
    /// The policy folder that is named; one beside the data directory or in the working directory where it is not.
    pub policy: Option<PathBuf>,
}

/// A running application.
pub struct App {
    /// The way to the loop.
    pub engine: Handle<Embedded>,
    /// What policy says.
    pub policy: Arc<InForce>,
    /// What evaluates expressions.
    pub evaluate: Arc<Cel>,
    /// The log, for those who read it.
    pub log: Arc<Log>,
    /// How tools are set up.
    pub tools: Arc<ToolSettings>,
    /// The data directory.
    pub home: Home,
    /// What the configuration file says.
    pub config: Arc<Config>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What was found at the start.
    pub recovery: Recovery,
    /// Who is known by what they show.
    pub tokens: Arc<Tokens>,
    /// Whether the process is on its way out.
    draining: watch::Sender<bool>,
    tail: watch::Receiver<u64>,
    outside: Arc<Local>,
    /// Shows people what waits for them; absent where nothing is carried out.
    pub cards: Option<Arc<Sender>>,
    /// What seals the log.
    pub sealing: Sealing,
    /// The keys it seals with.
    pub keys: Keys,
    /// Where bundles are kept.
    pub shelf: Shelf,
    executes: bool,
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
        let tools = match settings.tools {
            Some(tools) => tools,
            None => {
                Arc::new(ToolSettings::of(&settings.config).map_err(|error| Error::Tools(error.to_string()))?)
            }
        };
        crate::tools::described::announce(&tools).map_err(|error| Error::Tools(error.to_string()))?;
        let named = settings.config.var("WINDLASS_ARTIFACTS");
        let shelf = Shelf::find(named.as_deref(), &home.evidence()).map_err(Error::Evidence)?;
        let (mut store, recovery) = Embedded::open(Arc::new(Files), home.root(), &settings.store)?;
        let (log, tail, metrics) = (store.log(), store.tail(), store.metrics());
        let mut telling = None;
        if settings.tells {
            telemetry::recovered(&recovery);
            let (teller, thread) = telemetry::start(&settings.config, metrics.clone())?;
            store.tell(teller);
            telling = Some(thread);
        }
        // The keeper of the process before is gone once this one has its place: nothing runs beside a living copy.
        let shell = if settings.executes { Some(Arc::new(Shell::start(exe, home.root())?)) } else { None };
        let executor = match &shell {
            Some(shell) => {
                let made = Executor::new(tools.clone(), home.clone(), Some(shell.clone()));
                Some(made.map_err(Error::Tools)?)
            }
            None => None,
        };
        let (handle, inbox) = inbox();
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
        let hands = (shell, executor, cards.clone());
        let outside = Local::new(handle.clone(), home.clone(), policies, expressions, hands)?;
        let attempts = outside.attempts();
        let parts = Parts {
            store,
            clock: Arc::new(System),
            ids: Box::new(Sorted),
            evaluate: evaluate.clone(),
            policy: policy.clone(),
            outside: outside.clone(),
        };
        let options =
            Options { slots: if settings.executes { settings.engine.slots } else { 0 }, ..settings.engine };
        let mut engine = Engine::new(parts, options, handle.clone());
        if settings.executes {
            engine.recover()?;
        }
        let tokens = Arc::<Tokens>::default();
        tokens.learn(engine.store().state());
        let serve = move || engine.serve(&inbox);
        let thread = std::thread::Builder::new().name("engine".into()).spawn(serve)?;
        let thread = Mutex::new(Some(thread));
        // Whoever only looks does not tidy up either.
        let kept = settings.kept.unwrap_or(retention::KEPT);
        let retention = settings.executes.then(|| Retention::start(handle.clone(), kept)).transpose()?;
        let retention = Mutex::new(retention);
        let keys = Keys::open(&home.keys()).map_err(std::io::Error::other)?;
        let sealing = Sealing::start(handle.clone(), log.clone(), keys.clone(), shelf.clone())?;
        let draining = watch::Sender::new(false);
        let config = settings.config;
        let app = Arc::new(App {
            sealing,
            keys,
            shelf,
            executes: settings.executes,
            retention,
            engine: handle,
            policy,
            evaluate,
            log,
            tools,
            home,
            config,
            metrics,
            recovery,
            tokens,
            draining,
            tail,
            outside,
            cards,
            attempts,
            thread,
            telling: Mutex::new(telling),
        });
        if settings.executes {
            app.configure_tenants().map_err(|refusal| std::io::Error::other(refusal.to_string()))?;
        }
        Ok(app)
    }

    /// Tenants may do what the configuration file says.
    fn configure_tenants(&self) -> Result<(), Refusal> {
        for (name, tenant) in &self.config.tenants {
            if tenant.weight.is_some() || tenant.caps != Caps::default() {
                self.configure_tenant(name, tenant.caps, tenant.weight.unwrap_or(1))?;
            }
        }
        Ok(())
    }

    /// Says what a tenant may do at most, and its share when others want to run too. It is durable when this returns;
    /// to say what holds already changes nothing.
    ///
    /// # Errors
    /// A weight out of its bounds, or the engine has ended.
    pub fn configure_tenant(&self, tenant: &Name, caps: Caps, weight: u32) -> Result<(), Refusal> {
        let command = Command::Tenant { tenant: tenant.clone(), caps, weight };
        self.engine.call(Actor::SYSTEM, command).map(|_| ())
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

    /// Callers are served by the runtime that this is called in: they are told there what became of what they asked for.
    pub fn serves_here(&self) {
        self.outside.serves_on(tokio::runtime::Handle::current());
    }

    /// Tells when the process is on its way out.
    #[must_use]
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
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

    /// Stops: nothing more is started, attempts under way are ended and handed back, and everything is durable.
    pub fn stop(&self) {
        drop(self.retention.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.engine.tell(Message::Slots(0));
        self.outside.stop();
        if self.executes
            && let Err(error) = self.sealing.finish()
        {
            eprintln!("windlass: what changed is not all sealed and kept: {error}");
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
