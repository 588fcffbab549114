//! `windlass executor`: carries out steps for a server.

use super::args::{Args, ExecutorArgs};
use super::say::{self, Say};
use super::{Outcome, config, root, tooling};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use windlass_core::code::Code;
use windlass_executor::executor::Executor;
use windlass_executor::home::{Home, host_name};
use windlass_executor::remote::{self, Settings};
use windlass_executor::secrets::Secrets;
use windlass_executor::shell::{Author, Shell};
use windlass_executor::tools::Tools;
use windlass_server::apart;
use windlass_server::client::{Client, Failure};
use windlass_server::policy::FOLDER;

pub(super) async fn run(args: &Args, wish: &ExecutorArgs, say: &Say) -> Outcome {
    hide_token()?;
    let server = args.global.server.clone().ok_or_else(|| {
        Failure::new(Code::InvalidInput, "name the server whose steps to execute: --server http://host:7433")
    })?;
    let name = wish.name.clone().unwrap_or_else(|| format!("{}-{}", host_name(), std::process::id()));
    let dir = match &wish.dir {
        Some(dir) => dir.canonicalize()?,
        None => std::env::current_dir()?,
    };
    // Not the data directory: on the server's own machine that is the server's.
    let scratch = match &wish.scratch {
        Some(scratch) => scratch.clone(),
        None => std::env::temp_dir().join(format!("windlass-executor-{name}")),
    };
    let home =
        Home::make(&scratch).map_err(|error| windlass_server::client::unusable(Some(&scratch), &error))?;
    let data = root(args)?;
    let (server, token) = windlass_server::client::at(&server, args.global.token.as_deref(), &data);
    let apart = super::serve::chosen(&wish.apart, home.root())?;
    // Its runs are others': to lease them takes a token, and whoever has one may act.
    if let Some(warning) = apart.warning(true) {
        say.note(warning);
    }
    let (config, tooling) = (config(args)?, tooling(args)?);
    let tools = Tools::new(tooling.settings.clone(), tooling.registry.clone()).map_err(invalid)?;
    let mut closed = apart::closed(&config, home.root());
    closed.extend(apart::closed(&config, &data));
    if data.exists() {
        closed.extend(data.parent().map(|beside| beside.join(FOLDER)));
    }
    // A tool is the owner's own, and works in its folder. Nobody else writes there.
    let closed_to_tools = closed.clone();
    closed.extend(tools.settings.folder.clone());
    let client = Client::to_server(&server, token)?;
    let settings = Settings {
        name: name.clone(),
        labels: wish.labels.clone(),
        tools: tools.names(),
        slots: wish.slots.max(1),
        dir,
        server,
    };
    // The token and secrets are in this process's memory and environment, and steps run under the same user.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(std::io::Error::from)?;
    let (exe, root) = (std::env::current_exe()?, home.root().to_path_buf());
    let started = tokio::task::spawn_blocking(move || Shell::start(&exe, &root)).await;
    let shell = started
        .map_err(|_| Failure::new(Code::Internal, "the keeper did not start"))?
        .map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
    shell.set_limits(config.limits);
    shell.set_walls(move |author, _| match author {
        Author::Tool => apart.wall(true, &config, &closed_to_tools),
        Author::Nobody | Author::Tenant(_) | Author::Run { .. } | Author::Configuration => {
            apart.wall(true, &config, &closed)
        }
    });
    let secrets = Arc::new(Secrets::elsewhere(home.root()));
    let executor = Executor::new(tools, (home.clone(), secrets), Arc::new(shell)).map_err(invalid)?;
    let (stop, stopped) = watch::channel(false);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stop.send_replace(true);
    });
    say.note(&format!("executor {name}: ready for {} at a time", say::count(settings.slots, "step")));
    let quiet = *say;
    let note = move |text: &str| quiet.note(text);
    remote::run(Box::new(client), (executor, home), settings, stopped, note).await?;
    say.note("every attempt was returned");
    Ok(0)
}

fn invalid(text: String) -> Failure {
    Failure::new(Code::InvalidInput, text)
}

/// Everybody on the machine, steps included, can read the words that a process was started with. So a token that is one of
/// them is put into the environment, which is the process's own, and the program is started anew in its place.
fn hide_token() -> Result<(), Failure> {
    let (mut words, mut token) = (Vec::new(), None);
    let mut rest = std::env::args_os().skip(1);
    while let Some(word) = rest.next() {
        if word == "--token" {
            token = rest.next();
        } else if let Some(value) = word.as_bytes().strip_prefix(b"--token=") {
            token = Some(OsStr::from_bytes(value).to_owned());
        } else {
            words.push(word);
        }
    }
    let Some(token) = token else { return Ok(()) };
    let mut again = Command::new("/proc/self/exe");
    again.arg0("windlass").args(words).env("WINDLASS_TOKEN", token);
    // It returns only where it failed.
    Err(again.exec().into())
}
