//! `windlass executor`: carries out steps for a server.

use super::args::{Args, ExecutorArgs};
use super::say::{self, Say};
use super::{Outcome, root};
use crate::client::{Client, Failure};
use crate::executor::{self, Settings};
use crate::home::{Home, host_name};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use windlass_core::code::Code;

pub(super) async fn run(args: &Args, wish: &ExecutorArgs, say: &Say) -> Outcome {
    let server = args.global.server.clone().ok_or_else(|| {
        Failure::new(Code::InvalidInput, "say whose steps to carry out: --server http://host:7433")
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
    let home = Home::make(&scratch)?;
    let token = args.global.token.clone();
    let token = match token {
        Some(token) => Some(token),
        None => crate::client::credential(&server, &root(args)?),
    };
    let client = Client::to_server(&server, token)?;
    let labels = wish.labels.clone();
    let settings = Settings { name: name.clone(), labels, slots: wish.slots.max(1), dir, server };
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
    executor::run(client, home, std::env::current_exe()?, settings, stopped, note).await?;
    say.note("every attempt was handed back");
    Ok(0)
}
