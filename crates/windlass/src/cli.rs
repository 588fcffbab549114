//! The command line: what can be typed, and which part of the program answers.

mod args;
mod books;
mod check;
mod evidence;
mod executor;
mod follow;
mod holds;
mod lists;
mod pages;
mod policy;
mod queues;
mod redact;
mod run;
mod say;
mod screen;
mod secret;
mod serve;
mod show;
mod store;
mod tokens;
mod undo;
mod work;

use args::{Args, QueueVerb, RunbookVerb, ScheduleVerb, Tooling, Verb, WorkerVerb};
use clap::Parser as _;
use say::Say;
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use windlass_core::code::Code;
use windlass_core::turn::state::Body;
use windlass_executor::config::Config;
use windlass_executor::home::Home;
use windlass_executor::tools::described::Registry;
use windlass_executor::tools::settings::Settings as ToolSettings;
use windlass_server::app::Settings;
use windlass_server::client::{Client, Failure, Need};

/// What a command comes to: the exit code, or a failure that has one.
type Outcome = Result<u8, Failure>;

/// The exit code of a command that was interrupted.
const INTERRUPTED: u8 = 130;
/// How often a question is asked again because whoever was asked went away.
const AGAIN_MAX: usize = 10;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = windlass_executor::shell::main_of(std::env::args_os()) {
        return code;
    }
    let args = match Args::try_parse_from(args::renamed(std::env::args_os())) {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    let say = Say::new(args.global.json, args.global.quiet, args.global.no_color);
    let runtime = match windlass_server::server::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return say.failure(&Failure::new(Code::Internal, error.to_string())),
    };
    let outcome = runtime.block_on(dispatch(args, &say));
    windlass_server::telemetry::flush_logs();
    match (outcome, say::unwritten()) {
        (Err(failure), _) | (Ok(0), Some(failure)) => say.failure(&failure),
        (Ok(code), _) => ExitCode::from(code),
    }
}

/// Help and version are answers; everything else that does not parse is bad usage, and has a code like any refusal.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let say = Say::new(false, false, false);
        let text = error.render();
        say.write(&if say.colour { text.ansi().to_string() } else { text.to_string() });
        return say::unwritten().map_or(ExitCode::SUCCESS, |failure| say.failure(&failure));
    }
    let text = error.to_string();
    let detail = match text.strip_prefix("error: ") {
        Some(detail) => detail.trim_end().to_owned(),
        // Without a word there is nothing to complain about but that, and the help says what there is.
        None => format!("a command is missing\n\n{}", text.trim_end()),
    };
    // What was typed is all there is to tell how to speak.
    let json = std::env::args_os().any(|word| word == "--json");
    Say::new(json, false, true).failure(&Failure::new(Code::InvalidInput, detail))
}

/// The data directory that is meant.
fn root(args: &Args) -> Result<std::path::PathBuf, Failure> {
    Ok(match &args.global.data {
        Some(root) => root.clone(),
        None => Home::nearest().map_err(|error| windlass_server::client::unusable(None, &error))?,
    })
}

/// Where commands go: a named server, whoever holds the data directory, or an engine in this process.
async fn connect(args: &Args, need: Need, say: &Say) -> Result<Client, Failure> {
    let root = root(args)?;
    if let Some(url) = &args.global.server {
        let (url, token) = windlass_server::client::at(url, args.global.token.as_deref(), &root);
        if args.global.policy.is_some() && !asks_history(args) {
            say.note("--policy has no effect here: the server's own policy is in force");
        }
        return Client::to_server(&url, token);
    }
    let exe = std::env::current_exe()?;
    let mut settings = settings(args)?;
    settings.tells = windlass_server::telemetry::is_asked_for(&settings.config)?;
    if matches!(args.verb, Verb::Cancel { .. } | Verb::Resume { .. }) {
        // What is to be cancelled must not be taken up again first, and what is to be resumed not end before it is found.
        settings.engine.slots = 0;
    }
    let client = Client::to_data(&root, &exe, need, settings).await?;
    agree(args, &client, need, say).await?;
    Ok(client)
}

/// Whether `--policy` names rules to ask history with, and not those to be in force.
fn asks_history(args: &Args) -> bool {
    matches!(args.verb, Verb::Policy(_))
}

/// Makes sure that what was named for this process is in force where the command goes. The policy of a process that holds
/// the data directory is its own: nobody is to believe that a run is under another one.
async fn agree(args: &Args, client: &Client, need: Need, say: &Say) -> Result<(), Failure> {
    let (policy, config) = (args.global.policy.as_deref(), args.global.config.as_deref());
    if client.app().is_some() || asks_history(args) || policy.is_none() && config.is_none() {
        return Ok(());
    }
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let used = client.get("/v1/policies").await?;
    let differs = |flag: &str, named: Option<&Path>, used: &Value| {
        let used = used.as_str().map(|path| real(Path::new(path)));
        let named = named.map(real).filter(|named| used.as_ref() != Some(named))?;
        let used = used.map_or_else(|| "none".to_owned(), |path| path.display().to_string());
        Some(format!(
            "{flag} {} differs from the process that holds the data directory, which uses {used}: leave {flag} out, or stop \
             that process and start it with {flag}",
            named.display()
        ))
    };
    let wrong = differs("--policy", policy, &used["items"][0]["folder"])
        .or_else(|| differs("--config", config, &used["config"]));
    match (wrong, need) {
        (None, _) => Ok(()),
        (Some(text), Need::Executes) => Err(Failure::new(Code::InvalidInput, text)),
        (Some(text), Need::Records) => {
            say.note(&text);
            Ok(())
        }
    }
}

async fn dispatch(args: Args, say: &Say) -> Outcome {
    // What needs nobody.
    match &args.verb {
        Verb::Init { dir } => return work::init(dir.as_deref(), say),
        Verb::Check { file, watch, schema } => {
            return check::check(&args, file.as_deref(), (*watch, *schema), say);
        }
        Verb::Codes { code } => return lists::codes(code.as_deref(), say),
        Verb::Events { types: true, .. } => return lists::types(say),
        Verb::Completions { shell } => return work::completions(*shell, say),
        Verb::Man { dir } => return work::man(dir),
        Verb::Store(verb) => return store::store(&args, verb, say).await,
        Verb::Evidence { verb: evidence::EvidenceVerb::Verify { file, pubkey, html } } => {
            return evidence::check(file, pubkey.as_deref(), html.as_deref(), say);
        }
        Verb::Evidence { verb: evidence::EvidenceVerb::Redact(wish) } => {
            return redact::redact(&args, wish, say).await;
        }
        Verb::Secret { verb } => return secret::secret(&args, verb, say),
        Verb::Doctor => return work::doctor(&args, say).await,
        Verb::Bench(bench) => return crate::bench::main(bench, say.json),
        Verb::Serve(wish) => return serve::serve(&args, wish, say).await,
        Verb::Executor(wish) => return executor::run(&args, wish, say).await,
        Verb::Policy(verb) => {
            if let Some(outcome) = policy::alone(&args, verb, say) {
                return outcome;
            }
        }
        // tidy: the rest asks the API, below.
        _ => {}
    }
    if let Verb::Run(wish) = &args.verb {
        return run::run(&args, wish, say).await;
    }
    let need = match &args.verb {
        Verb::Undo { dry_run: true, .. } => Need::Records,
        Verb::Resume { .. }
        | Verb::Retry { .. }
        | Verb::Fork { .. }
        | Verb::Cancel { .. }
        | Verb::Undo { .. }
        | Verb::Hold => Need::Executes,
        // tidy: everything else looks, or records a wish.
        _ => Need::Records,
    };
    let mut client = connect(&args, need, say).await?;
    if let Verb::Watch { .. } = &args.verb {
        // It may wait for as long as nothing serves.
        say_if_unserved(&client, say).await;
    }
    let mut outcome = ask(&args, &mut client, say).await;
    for _ in 0..AGAIN_MAX {
        match &outcome {
            // Whoever held the data directory ended just now; the question goes to the next, or is answered here.
            Err(failure) if failure.gone && client.is_renewable() => client.renew().await?,
            Ok(_) | Err(_) => break,
        }
        outcome = ask(&args, &mut client, say).await;
    }
    if outcome.is_ok() && needs_a_server(&args.verb) {
        say_if_unserved(&client, say).await;
    }
    finish(client, &outcome, say).await;
    outcome
}

/// Whether a command is about work that goes on by itself only where something serves the data directory.
fn needs_a_server(verb: &Verb) -> bool {
    match verb {
        Verb::Queue { verb } => {
            matches!(verb, QueueVerb::Push { .. } | QueueVerb::Retry { .. } | QueueVerb::Resume { .. })
        }
        Verb::Worker { verb } => !matches!(verb, WorkerVerb::Stop { .. }),
        Verb::Schedule { verb } => !matches!(verb, ScheduleVerb::Pause { .. }),
        Verb::Deploy { diff, .. } => !diff,
        Verb::Runbooks { verb } => matches!(verb, Some(RunbookVerb::Rollback { .. })),
        Verb::Runs(_) | Verb::Why { .. } | Verb::Queues | Verb::Workers | Verb::Schedules => true,
        // tidy: everything else is done when the command ends.
        _ => false,
    }
}

/// Says that nothing serves the data directory, where something in it waits for that.
async fn say_if_unserved(client: &Client, say: &Say) {
    let Some(app) = client.app() else { return };
    let waits = app.look(|store| {
        let state = store.state();
        state.streams().any(|(_, stream)| match &stream.body {
            Body::Deployment(active) => active.as_ref().as_ref().is_some(),
            Body::Run(run) => !run.is_terminal(),
            // tidy: nothing else goes on by itself.
            _ => false,
        })
    });
    if waits.await.unwrap_or(false) {
        say.note(
            "note: nothing serves this data directory, so runs, queues, schedules and triggers do not advance; start `windlass serve`",
        );
    }
}

/// Ends what is in this process. What others asked of it comes to its end first, unless somebody interrupts.
async fn finish(client: Client, outcome: &Outcome, say: &Say) {
    if !matches!(outcome, Ok(INTERRUPTED)) {
        let waits = |left| {
            say.note(&format!(
                "waiting for {} of other runs; Ctrl-C hands back what is left",
                say::count(left, "step")
            ));
        };
        tokio::select! {
            () = client.drain(waits) => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }
    client.close().await;
}

/// What the configuration file says. It is read once.
fn config(args: &Args) -> Result<Arc<Config>, Failure> {
    if let Some(config) = args.once.config.get() {
        return Ok(config.clone());
    }
    let config = Arc::new(Config::load(args.global.config.as_deref(), &root(args)?)?);
    Ok(args.once.config.get_or_init(|| config).clone())
}

/// The tools that the configuration names: a runbook that is read here may call them. They are read once.
fn tooling(args: &Args) -> Result<&Tooling, Failure> {
    if let Some(tooling) = args.once.tooling.get() {
        return Ok(tooling);
    }
    let wrong = |text: String| Failure::new(Code::InvalidInput, text);
    let settings = Arc::new(ToolSettings::of(&*config(args)?).map_err(|error| wrong(error.to_string()))?);
    let registry = Registry::read(&settings).map_err(|error| wrong(error.to_string()))?;
    Ok(args.once.tooling.get_or_init(|| Tooling { settings, registry }))
}

/// An application in this process, as the command line and the configuration file say.
fn settings(args: &Args) -> Result<Settings, Failure> {
    let (config, tooling, policy) = (config(args)?, tooling(args)?, args.global.policy.clone());
    let (tools, registry) = (Some(tooling.settings.clone()), Some(tooling.registry.clone()));
    Ok(Settings { config, tools, registry, policy, ..Settings::default() })
}

async fn ask(args: &Args, client: &mut Client, say: &Say) -> Outcome {
    match &args.verb {
        Verb::Runs(filter) => lists::runs(client, filter, say).await,
        Verb::Runbooks { verb } => books::runbooks(client, verb.as_ref(), say).await,
        Verb::Approvals { status } => lists::approvals(client, status.as_deref(), say).await,
        Verb::Locks => lists::locks(client, say).await,
        Verb::Semaphores => lists::semaphores(client, say).await,
        Verb::Lock { verb } => holds::lock(client, verb, say).await,
        Verb::Semaphore { verb } => holds::semaphore(client, verb, say).await,
        Verb::Show(how) => show::show(client, how, say).await,
        Verb::Watch { run } => follow::watch(client, run, say).await,
        Verb::Logs(how) => show::logs(client, how, say).await,
        Verb::Why { run } => show::why(client, run, say).await,
        Verb::Events { follow, from, kind, .. } => {
            lists::events(client, *follow, *from, kind.as_deref(), say).await
        }
        Verb::Cancel { run, reason } => run::cancel(client, run, reason.as_deref(), say).await,
        Verb::Suspend { run, reason } => run::suspend(client, run, reason.as_deref(), say).await,
        Verb::Resume { run, all, message, var } => {
            run::resume(client, run.as_deref(), *all, (message.as_deref(), var), say).await
        }
        Verb::Retry { run } => run::retry(client, run, say).await,
        Verb::Fork { run, from, runbook } => {
            run::fork(args, client, (run, from, runbook.as_deref()), say).await
        }
        Verb::Undo { run, dry_run, force, yes } => {
            let wish = undo::Wish { dry_run: *dry_run, force: *force, yes: *yes };
            undo::undo(client, run, wish, say).await
        }
        Verb::Signal { run, key, name, payload } => {
            run::signal(client, (run.as_deref(), key.as_deref()), name, payload.as_deref(), say).await
        }
        Verb::Ingress { key } => run::ingress(client, key, say).await,
        Verb::Emit { kind, payload, idempotency_key } => {
            run::emit(client, kind, payload.as_deref(), idempotency_key.as_deref(), say).await
        }
        Verb::Resolve { run, step, resolution, reason } => {
            run::resolve(client, (run, step), resolution, reason, say).await
        }
        Verb::Approve { id, hash, yes } => run::decide(client, id, (hash.as_deref(), *yes), None, say).await,
        Verb::Reject { id, reason, hash, yes } => {
            run::decide(client, id, (hash.as_deref(), *yes), Some(reason), say).await
        }
        Verb::Evidence { verb } => evidence::ask(client, verb, say).await,
        Verb::Hold => run::hold(client, &root(args)?).await,
        Verb::Deploy { file, diff } => books::deploy(args, client, (file, *diff), say).await,
        Verb::Queues => queues::queues(client, say).await,
        Verb::Queue { verb } => queues::queue(client, verb, say).await,
        Verb::Workers => queues::workers(client, say).await,
        Verb::Worker { verb } => queues::worker(client, verb, say).await,
        Verb::Schedules => queues::schedules(client, say).await,
        Verb::Schedule { verb } => queues::schedule(client, verb, say).await,
        Verb::Token { verb } => tokens::token(client, verb, say).await,
        Verb::Raise(to) => policy::raise(client, to, say).await,
        Verb::Policies => policy::in_force(client, say).await,
        Verb::Policy(verb) => match verb {
            policy::PolicyVerb::Test { file, .. } => {
                policy::against_history(args, client, file.as_deref(), say).await
            }
            policy::PolicyVerb::Check { .. } | policy::PolicyVerb::Schema => {
                Err(Failure::new(Code::Internal, "this command was to be answered before"))
            }
        },
        Verb::Init { .. }
        | Verb::Check { .. }
        | Verb::Codes { .. }
        | Verb::Completions { .. }
        | Verb::Man { .. }
        | Verb::Store(_)
        | Verb::Secret { .. }
        | Verb::Doctor
        | Verb::Bench(_)
        | Verb::Serve(_)
        | Verb::Executor(_)
        | Verb::Run(_) => Err(Failure::new(Code::Internal, "this command was to be answered before")),
    }
}
