//! Described tools at work: one JSON object in, one JSON object out, under the keeper like any command.
//!
//! In, on the standard input: `{tool, operation, target, fields, idempotency_key, attempt, probe}`. Secrets among the
//! fields are there as they are, and nowhere else: they pass through the environment of a shell that forgets them
//! before the command begins, never through a file.
//!
//! Out, as the last line of the standard output:
//!
//! ```text
//!  {"ok": true, "output": …, "reverse": {fields of the tool that takes it back}}
//!  {"ok": false, "error": "…", "retryable": true, "retry_after": 30, "happened": "no"}
//!  {"found": true, "output": …}           to a question: is the effect of this key there?
//! ```
//!
//! A command that ends in another way than by answering leaves open whether it has acted.

use super::described::Described;
use super::session::Session;
use super::{Again, Call, Happened, Outcome, Seen, Success, Trouble};
use crate::home::Home;
use crate::shell::{self, Author, Ended, Ending, Environment, Shell, ShellEvent, Spec, StartError, Variable};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use windlass_core::id::AttemptId;
use windlass_engine::Leave;

/// The most bytes of what goes in: no system takes more in one variable.
const INPUT_LEN_MAX: usize = 120 * 1024;
/// How much of its output is kept, and how many of its last lines stand in a failure.
const LOG_LEN_MAX: u64 = 1 << 20;
const LAST_LINES: usize = 5;

/// Where commands run, and what their files are called.
#[derive(Clone)]
pub struct Place {
    pub(super) shell: Arc<Shell>,
    /// The attempt's name for the keeper.
    pub(super) id: String,
    pub(super) log: PathBuf,
    pub(super) typed: PathBuf,
    /// Who wrote them.
    author: Author,
    /// The permission to start them.
    leave: Leave,
}

impl Place {
    /// The place of an attempt. `more` tells several commands of one attempt apart.
    pub(super) fn new(
        shell: &Arc<Shell>,
        home: &Home,
        attempt: &AttemptId,
        (more, author): (&str, Author),
        leave: &Leave,
    ) -> Place {
        let log = home.output_of(attempt).with_extension(format!("{more}log"));
        let typed = home.typed_of(attempt).with_extension(format!("{more}out"));
        Place {
            shell: shell.clone(),
            id: format!("{attempt}/{more}tool"),
            log,
            typed,
            author,
            leave: leave.clone(),
        }
    }
}

pub(super) async fn perform(tool: &Described, call: &Call, session: &Session, place: &Place) -> Outcome {
    if let Some(field) = tool.misfit(&call.fields) {
        return Err(Trouble::input(format!("`{field}` of {} is not of its type", call.tool)));
    }
    let said = answer(tool, call, session, place, false).await?;
    match said["ok"].as_bool() {
        Some(true) => Ok(success(tool, call, &said)),
        Some(false) => Err(failure(call, &said)),
        None => Err(Trouble::unanswered(format!("{} did not say whether it is `ok`", call.tool))),
    }
}

pub(super) async fn probe(tool: &Described, call: &Call, session: &Session, place: &Place) -> Seen {
    match answer(tool, call, session, place, true).await {
        Ok(said) => match said["found"].as_bool() {
            Some(true) => Seen::There(success(tool, call, &said)),
            Some(false) => Seen::Absent,
            None => Seen::Unsure(format!("{} did not say whether it `found` the effect", call.tool)),
        },
        Err(trouble) => trouble.into(),
    }
}

fn success(tool: &Described, call: &Call, said: &Value) -> Success {
    let done = Success::of(said["output"].clone());
    match (&tool.reverse, said.get("reverse").filter(|fields| fields.is_object())) {
        (Some(reverse), Some(fields)) => done.reversible(reverse, &call.target, fields.clone()),
        (_, _) => done,
    }
}

fn failure(call: &Call, said: &Value) -> Trouble {
    let message = format!("{}: {}", call.tool, said["error"].as_str().unwrap_or("it gave no reason"));
    let again = match (said["retryable"].as_bool(), said["retry_after"].as_u64()) {
        (Some(true), Some(seconds)) => Again::After(Duration::from_secs(seconds)),
        (Some(true), None) => Again::Soon,
        (Some(false) | None, _) => Again::Never,
    };
    let happened = if said["happened"] == "unknown" { Happened::Unknown } else { Happened::No };
    Trouble { again, happened, ..Trouble::refused(message) }
}

async fn answer(
    tool: &Described,
    call: &Call,
    session: &Session,
    place: &Place,
    probe: bool,
) -> Result<Value, Trouble> {
    let input = json!({
        "tool": call.tool, "operation": call.operation, "target": call.target, "fields": call.fields,
        "idempotency_key": call.key, "attempt": call.attempt, "probe": probe,
    })
    .to_string();
    if input.len() > INPUT_LEN_MAX {
        return Err(Trouble::input(format!("the fields have more than {INPUT_LEN_MAX} bytes")));
    }
    let mut env = Environment::inherited();
    let own = [(Variable::ToolInput, input.as_str()), (Variable::IdempotencyKey, call.key.as_str())];
    for (name, value) in own {
        env.set_own(name, value).map_err(|error| Trouble::input(error.to_string()))?;
    }
    // The whole of the input is in one variable, so nothing of it can be read as a command.
    let script = format!("printf '%s' \"$WL_TOOL_INPUT\" | (\nunset WL_TOOL_INPUT\n{}\n)", tool.command);
    let timeout = tool.timeout.map_or(call.timeout, |own| own.min(call.timeout));
    let ended = command(place, script, tool.dir.clone(), env, timeout, session).await?;
    let told = |ending: &Ending| {
        let lines = shell::output::tail(&place.log, LAST_LINES).unwrap_or_default();
        let lines: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        format!("{}: {ending}\n{}", call.tool, lines.join("\n"))
    };
    match (&ended.ending, ended.output) {
        (Ending::Exited(0), Ok(Some(said @ Value::Object(_)))) => Ok(said),
        (Ending::NotStarted(error), _) => {
            let trouble = Trouble::from(error.clone());
            Err(Trouble { message: format!("{}: {error}", call.tool), ..trouble })
        }
        (Ending::Exited(0), Err(error)) => Err(Trouble::unanswered(format!("{}: {error}", call.tool))),
        (Ending::Exited(0), Ok(_)) => {
            Err(Trouble::unanswered(format!("{}: its last line is not a JSON object", call.tool)))
        }
        (ending, _) => Err(Trouble::unanswered(told(ending))),
    }
}

/// Runs a command under the keeper and waits for its end. Whoever stops waiting ends it.
pub(super) async fn command(
    place: &Place,
    script: String,
    dir: PathBuf,
    env: Environment,
    timeout: Duration,
    session: &Session,
) -> Result<Ended, Trouble> {
    if let Some(dir) = place.log.parent() {
        std::fs::create_dir_all(dir).map_err(|error| StartError::file(dir, &error))?;
    }
    let mut spec = Spec::new(&place.id, &script, dir, env, place.log.clone(), place.typed.clone());
    spec.author = place.author.clone();
    spec.timeout = Some(timeout);
    spec.output_max = LOG_LEN_MAX;
    spec.secrets = session.values();
    let (send, receive) = tokio::sync::oneshot::channel();
    let send = Mutex::new(Some(send));
    let on_event = move |event| match event {
        ShellEvent::Ended(ended) => {
            if let Some(send) = send.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = send.send(ended);
            }
        }
        ShellEvent::Started { .. } | ShellEvent::Began | ShellEvent::Line(_) | ShellEvent::Warned(_) => {}
    };
    let refused =
        |error: shell::Error| Trouble { no_room: error.passes(), ..Trouble::not_now(error.to_string()) };
    place.shell.run(&place.leave, spec, on_event).map_err(refused)?;
    let mut guard = Stop { place, armed: true };
    let ended = receive.await.map_err(|_| Trouble::unanswered("the keeper of commands is gone"));
    guard.armed = false;
    ended
}

/// Ends a command that nobody waits for any more.
struct Stop<'a> {
    place: &'a Place,
    armed: bool,
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        if self.armed {
            // A keeper that is gone has ended it.
            let _ = self.place.shell.stop(&self.place.id, shell::spec::GRACE);
        }
    }
}
