//! Notices: what people are told by a command, a webhook and the desktop of this machine, and then in Slack.
//!
//! ```text
//!  effect ─▶ line ─▶ policy ─▶ command, webhook, desktop ─▶ Slack, which tries as long as it takes ─▶ notice:sent
//! ```
//!
//! `delivered` means that a channel took it. One thread works the line off, so a channel that hangs holds up other notices
//! for a bounded time, and nothing else.

use super::Hands;
use super::beside::{self, For, NotRun};
use crate::policy::Question;
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use windlass_core::effect::Notice;
use windlass_core::id::{Name, NoticeId, RunId, StepId};
use windlass_core::policy::{Purpose, Risk};
use windlass_core::receipt::Action;
use windlass_core::run::Actor;
use windlass_core::turn::command::Command;
use windlass_core::turn::state::Body;
use windlass_engine::Leave;
use windlass_executor::config::Notices;
use windlass_executor::shell::{Environment, Variable};
use windlass_executor::tools::settings::Settings;
use windlass_executor::tools::wire::{Ask, Wire};

/// The waits before a channel is tried again that did not take a message.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];
/// How long a webhook may take.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// What shows a message on a desktop, and with a sound.
const DESKTOP: &str = r#"notify-send --app-name=windlass -- "$WL_NOTICE_TITLE" "$WL_NOTICE_MESSAGE""#;
const DESKTOP_LOUD: &str = r#"notify-send --app-name=windlass --hint=string:sound-name:message-new-instant -- "$WL_NOTICE_TITLE" "$WL_NOTICE_MESSAGE""#;
/// Where a desktop is found.
const DESKTOP_ENV: [&str; 4] = ["DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"];

/// What people are to be told.
pub(super) struct Told {
    pub(super) notice: NoticeId,
    pub(super) title: String,
    pub(super) message: String,
    pub(super) sound: bool,
}

/// What is to be told, in the order in which it was asked for.
#[derive(Default)]
pub(super) struct Line(Mutex<Option<Sender<Told>>>);

/// What a notice is about, as the run says.
struct About {
    run: RunId,
    tenant: Name,
    pipeline: Name,
    step: Option<StepId>,
    kind: Notice,
}

impl Line {
    /// Begins to work the line off, where steps are carried out at all.
    pub(super) fn begin(&self, hands: &Arc<Hands>, settings: &Arc<Settings>) -> std::io::Result<()> {
        if hands.shell.is_none() {
            return Ok(());
        }
        let wire = Wire::new(settings).map_err(std::io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (line, told) = channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        let hands = Arc::downgrade(hands);
        let work = move || serve(&hands, &told, &wire, &runtime);
        std::thread::Builder::new().name("notices".into()).spawn(work).map(|_| ())
    }

    pub(super) fn tell(&self, told: Told) {
        if let Some(line) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // What is not told by this process is found by the next.
            let _ = line.send(told);
        }
    }
}

fn serve(hands: &Weak<Hands>, line: &Receiver<Told>, wire: &Wire, runtime: &tokio::runtime::Runtime) {
    while let Ok(told) = line.recv() {
        let Some(hands) = hands.upgrade() else { return };
        hands.told(told, wire, runtime);
    }
}

/// Tries until it is taken, a few times.
fn a_few_times(mut once: impl FnMut() -> Result<(), NotRun>) -> Result<(), NotRun> {
    for wait in AGAIN {
        match once() {
            Err(NotRun::Because(_)) => std::thread::sleep(wait),
            came => return came,
        }
    }
    once()
}

impl Hands {
    /// Tells people by every channel.
    fn told(&self, told: Told, wire: &Wire, runtime: &tokio::runtime::Runtime) {
        let id = told.notice;
        let found = self.engine.read(move |store| {
            store.state().streams().find_map(|(_, stream)| match &stream.body {
                Body::Run(run) => run.rare().notices.get(&id).map(|wanted| About {
                    run: run.id(),
                    tenant: run.born.home.tenant.clone(),
                    pipeline: run.born.home.pipeline.clone(),
                    step: wanted.step.clone(),
                    kind: wanted.kind,
                }),
                // tidy: only runs send messages.
                _ => None,
            })
        });
        // One that was told, or whose run is gone, is nobody's any more.
        let Ok(Some(about)) = found else { return };
        let settings = self.config.notices(about.tenant.as_str());
        let slack = self.config.slack(about.tenant.as_str()).channel;
        if !settings.on.contains(&about.kind) {
            return self.noticed(&about, id, false);
        }
        let mut taken = false;
        let mut came = |channel: &str, came: Result<(), NotRun>| match came {
            Ok(()) => taken = true,
            Err(NotRun::Moot) => {}
            Err(NotRun::Because(why)) => {
                eprintln!("windlass: nobody could be told by {channel} that \"{}\": {why}", told.title);
            }
        };
        if let Some(command) = &settings.command {
            came("the command", a_few_times(|| self.by_command(&about, &told, (command, &[]), &settings)));
        }
        if let Some(url) = &settings.webhook {
            came(
                "the webhook",
                a_few_times(|| self.by_webhook(&about, &told, url, &settings, (wire, runtime))),
            );
        }
        if settings.desktop {
            let command = if told.sound && settings.sound { DESKTOP_LOUD } else { DESKTOP };
            came(
                "the desktop",
                a_few_times(|| self.by_command(&about, &told, (command, &DESKTOP_ENV), &settings)),
            );
        }
        // An approval has its own card in Slack.
        let slack = settings.slack.or(slack).filter(|_| about.kind != Notice::Approval);
        match (slack, &self.cards) {
            (Some(to), Some(cards)) => cards.notify(id, to, (told.title, told.message), taken),
            (Some(_) | None, _) => self.noticed(&about, id, taken),
        }
    }

    fn noticed(&self, about: &About, notice: NoticeId, delivered: bool) {
        self.engine.report(Actor::SYSTEM, Command::Noticed { run: about.run, notice, delivered });
    }

    fn by_command(
        &self,
        about: &About,
        told: &Told,
        (text, inherited): (&str, &[&str]),
        settings: &Notices,
    ) -> Result<(), NotRun> {
        let mut env = Environment::inherited();
        let mut set = || {
            env.set_own(Variable::NoticeId, &told.notice.to_string())?;
            env.set_own(Variable::NoticeKind, word(about.kind))?;
            env.set_own(Variable::NoticeTitle, &told.title)?;
            env.set_own(Variable::NoticeMessage, &told.message)?;
            env.set_own(Variable::NoticeSound, if told.sound && settings.sound { "true" } else { "false" })?;
            env.set_own(Variable::RunId, &about.run.to_string())?;
            if let Some(step) = &about.step {
                env.set_own(Variable::StepId, step.as_str())?;
            }
            for name in inherited {
                if let Ok(value) = std::env::var(name) {
                    env.add(name, &value)?;
                }
            }
            Ok::<(), windlass_executor::shell::environment::Error>(())
        };
        set().map_err(|error| NotRun::Because(error.to_string()))?;
        let file = self.config.path.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new(""));
        let dir = std::path::absolute(if file.as_os_str().is_empty() { Path::new(".") } else { file });
        let dir = dir.map_err(|error| NotRun::Because(error.to_string()))?;
        let command = beside::Command { purpose: Purpose::Notice, text, dir: &dir, env };
        let ran = self.beside(&For::Notice { run: about.run }, &command)?;
        match ran.code {
            0 => Ok(()),
            code => Err(NotRun::Because(format!("it exited with {code}: {}", ran.complaint))),
        }
    }

    fn by_webhook(
        &self,
        about: &About,
        told: &Told,
        url: &str,
        settings: &Notices,
        (wire, runtime): (&Wire, &tokio::runtime::Runtime),
    ) -> Result<(), NotRun> {
        let body = json!({
            "id": told.notice, "kind": word(about.kind), "title": told.title, "message": told.message, "run": about.run,
            "step": about.step, "pipeline": about.pipeline, "tenant": about.tenant,
            "sound": told.sound && settings.sound,
        });
        let because = |error: &dyn std::fmt::Display| NotRun::Because(error.to_string());
        let at = Url::parse(url).map_err(|error| because(&error))?;
        // The path of an address of a chat is often its password.
        let target = windlass_executor::tools::wire::place(&at);
        let leave = self.may_send(
            about,
            Action {
                tool: Name::clean("http"),
                operation: Name::clean("post"),
                target: Name::clean(&target),
                fields: json!({ "url": target, "method": "POST", "json": body }),
                risk: Risk::Low,
            },
        )?;
        let mut ask = Ask::to_service(Method::POST, at, WEBHOOK_TIMEOUT);
        ask.headers.insert("content-type", HeaderValue::from_static("application/json"));
        if let Ok(key) = HeaderValue::from_str(&told.notice.to_string()) {
            ask.headers.insert(HeaderName::from_static("idempotency-key"), key);
        }
        ask.body = Some(Value::to_string(&body).into_bytes());
        let reply = runtime.block_on(wire.send(&leave, ask)).map_err(|trouble| because(&trouble))?;
        if reply.is_success() { Ok(()) } else { Err(because(&reply.trouble(&target))) }
    }

    /// Asks policy about a request, and has the answer recorded.
    fn may_send(&self, about: &About, action: Action) -> Result<Leave, NotRun> {
        let run = about.run;
        let asked = self.engine.read(move |store| Question::notice(store.state(), run, action));
        let question = asked.ok().flatten().ok_or(NotRun::Moot)?;
        self.permitted(&question, None)
            .map_err(|refusal| NotRun::Because(format!("policy does not allow it: {refusal}")))
    }
}

/// What a notice is about, as the configuration file says it.
fn word(kind: Notice) -> &'static str {
    match kind {
        Notice::Notify => "unknown",
        Notice::Approval
        | Notice::Reminder
        | Notice::Escalation
        | Notice::Failed
        | Notice::Nudge
        | Notice::Send => kind.as_str(),
    }
}
