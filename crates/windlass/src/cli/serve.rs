//! `serve`: the process that holds the data directory, until it is told to stop.

use super::args::{ApartArgs, Args, ServeArgs};
use super::say::Say;
use super::{INTERRUPTED, Outcome, root, settings};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use windlass_core::code::Code;
use windlass_core::event::SystemStarted;
use windlass_core::id::Name;
use windlass_core::run::Actor;
use windlass_core::turn::command::Command;
use windlass_executor::home::Home;
use windlass_server::apart::Apart;
use windlass_server::app::{App, Settings};
use windlass_server::auth::{self, Credential};
use windlass_server::client::Failure;
use windlass_server::server::{self, Listen, Server};
use windlass_server::telemetry;

/// How long to wait for what a process before left running.
const PATIENCE: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_millis(50);

pub(super) async fn serve(args: &Args, wish: &ServeArgs, say: &Say) -> Outcome {
    let say = *say;
    let tls = wish.tls_cert.clone().zip(wish.tls_key.clone());
    let listen = Listen {
        address: wish.listen.clone(),
        tls,
        behind_proxy: wish.behind_proxy,
        trust_local: wish.trust_local,
    };
    // What cannot be served is known before anything is opened.
    let server =
        Server::bind(&listen).await.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let mut signals = Signals::new()?;
    let app = tokio::select! {
        app = open(args, wish) => app?,
        () = signals.recv() => return Ok(INTERRUPTED),
    };
    if let Some(problem) = app.policy.problem() {
        // Every step would fail. Whoever starts a server wants to know that now.
        let _ = tokio::task::spawn_blocking(move || app.stop()).await;
        return Err(Failure::new(Code::InvalidInput, problem));
    }
    let mut reload = signal(SignalKind::hangup())?;
    let policy = app.policy.clone();
    tokio::spawn(async move {
        while reload.recv().await.is_some() {
            let policy = policy.clone();
            let _ = tokio::task::spawn_blocking(move || policy.reload_and_tell()).await;
        }
    });
    if let Some(warning) = app.apart.warning(app.has_others()) {
        say.note(warning);
    }
    let (user, url) = (server::user_name(), server.url());
    let socket = app.home.bind()?;
    let token = auth::fresh_token()?;
    app.tokens.set_owner(&token, &user);
    app.attempts().serve_at(&url);
    let credential = Credential::write(&app.home, &url, &token)?;
    let told =
        json!({ "serving": url, "data": app.home.root().display().to_string(), "pid": std::process::id() });
    say.answer(&told, || format!("windlass serves {url}"));
    note(&app, started(&app)).await;
    let serving = server.serve(app.clone(), socket, &user);
    let stopping = async {
        signals.recv().await;
        app.drain();
        // Whether anybody reads stderr or not, the end goes on.
        std::thread::spawn(move || {
            say.note("stopping: running steps are returned; a second signal ends the process at once");
        });
        // Whoever cannot wait says so.
        signals.recv().await;
    };
    tokio::select! {
        () = async { serving.await; close(&app, credential).await } => Ok(0),
        () = stopping => std::process::exit(i32::from(INTERRUPTED)),
    }
}

/// Opens the data directory. A process that has just ended may still be letting go of it.
async fn open(args: &Args, wish: &ServeArgs) -> Result<Arc<App>, Failure> {
    let root = root(args)?;
    let home = Home::make(&root).map_err(|error| windlass_server::client::unusable(Some(&root), &error))?;
    let exe = std::env::current_exe()?;
    telemetry::write_logs()?;
    let mut settings = Settings { executes: true, stays: true, tells: true, ..settings(args)? };
    settings.engine.slots = usize::from(wish.executors);
    settings.names_config = args.global.config.is_some();
    settings.trusts_local = wish.trust_local;
    settings.closed = wish.tls_key.iter().cloned().collect();
    settings.apart = chosen(&wish.apart, home.root())?;
    if let Some(ttl) = lease_ttl()? {
        settings.engine.lease_ttl = ttl;
    }
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        if home.connect().await.is_ok() {
            let text = format!(
                "another process already serves the data directory {}: use that one, or stop it first",
                root.display()
            );
            return Err(Failure::new(Code::LockBusy, text));
        }
        let (at, exe, settings) = (home.clone(), exe.clone(), settings.clone());
        let started = tokio::task::spawn_blocking(move || App::start(at, &exe, settings)).await;
        match started.map_err(|_| Failure::new(Code::Internal, "the engine did not start"))? {
            Ok(app) => return Ok(app),
            Err(error) if error.code() == Code::LockBusy && tokio::time::Instant::now() < until => {
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// How long a lease lasts without a heartbeat, where the environment says.
fn lease_ttl() -> Result<Option<windlass_core::time::Span>, Failure> {
    let Ok(text) = std::env::var("WINDLASS_LEASE_TTL") else { return Ok(None) };
    let bad = |why: String| Failure::new(Code::InvalidInput, format!("WINDLASS_LEASE_TTL: {why}"));
    let span = windlass_runbook::span::parse(&text).map_err(|error| bad(error.to_string()))?;
    if span < windlass_core::time::Span::secs(1) {
        return Err(bad("a lease lasts at least one second".to_owned()));
    }
    Ok(Some(span))
}

/// What is to keep steps apart.
pub(super) fn chosen(wish: &ApartArgs, dir: &Path) -> Result<Apart, Failure> {
    Apart::choose(wish.run_as.as_deref(), wish.shared_user, dir).map_err(|error| {
        let name = wish.run_as.as_deref().unwrap_or_default();
        Failure::new(Code::InvalidInput, format!("--run-as {name}: {error}"))
    })
}

fn started(app: &App) -> Command {
    let version = Name::clean(env!("CARGO_PKG_VERSION"));
    let wall = Some(Name::clean(&app.apart.name()));
    Command::Started(Box::new(SystemStarted { version, incarnation: app.log.incarnation(), wall }))
}

/// Puts on record what the server does. One that cannot, because the disk is full, serves all the same.
async fn note(app: &Arc<App>, command: Command) {
    let engine = app.engine.clone();
    let noted = tokio::task::spawn_blocking(move || engine.call(Actor::SYSTEM, command)).await;
    if let Ok(Err(refusal)) = noted {
        eprintln!("windlass: that the server starts or ends is not on record: {refusal}");
    }
}

/// Hands back what is under way, and makes everything durable.
async fn close(app: &Arc<App>, credential: Credential) {
    note(app, Command::Stopping).await;
    let (app, socket) = (app.clone(), app.home.socket());
    // A blocking task that panicked has nothing left to wait for.
    let _ = tokio::task::spawn_blocking(move || {
        app.stop();
        drop(credential);
        // Nobody can reach the socket any more; a process that comes next makes its own.
        let _ = std::fs::remove_file(socket);
    })
    .await;
}

/// The signals that ask for the end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
