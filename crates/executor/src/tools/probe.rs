//! Asking what became of an effect whose attempt was lost.
//!
//! What was sent may still be on its way when the other side is asked first, so "it is not there" counts only when it
//! holds for a while. An answer that cannot be had is asked for again, ever less often, for about a day; after that it
//! stays a human's to say, which it could be all the time.

use super::execute::{Inner, Job, call_of, receipted};
use super::session::Session;
use super::{Call, Seen, Success, TIME_MAX, stdio};
use crate::shell::{Author, Ending, Environment};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use windlass_core::receipt::Action;
use windlass_core::template::Template;
use windlass_core::turn::command::Receipted;
use windlass_engine::Leave;

/// How long to wait after each answer that tells nothing; the last holds for all further ones.
const WAITS: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
    Duration::from_secs(600),
];
/// How often is asked.
const ASKS_MAX: usize = 150;

/// By which read.
pub enum Read {
    /// The tool's own.
    Own,
    /// Another tool's call.
    Tool(Action, Template),
    /// A command: it exits with 0 where the effect is there, and with 1 where it is not.
    Command(String, PathBuf, Environment),
}

/// Why a read is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAllowed {
    /// Nobody waits for an answer any more.
    Moot,
    /// Policy does not allow it, or could not be asked.
    Because(String),
}

/// Asks policy about a read, and waits until its answer is on record. It is asked before every single read.
pub type Allow = Arc<dyn Fn() -> Result<Leave, NotAllowed> + Send + Sync>;

/// What is to be found out.
pub struct Asked {
    /// Says whether the read may be made.
    pub allow: Allow,
    /// The attempt that was lost.
    pub job: Job,
    /// By which read.
    pub read: Read,
    /// The definitions of the environment: which of its values are secrets.
    pub env: Vec<(String, Template, Value)>,
}

pub(super) struct Prober {
    pub(super) inner: Arc<Inner>,
    pub(super) asked: Asked,
}

impl Prober {
    /// Asks until there is an answer. With one that the effect is there comes its receipt.
    /// None where nobody waits for one any more.
    pub(super) async fn settle(&self) -> Option<(Seen, Option<Box<Receipted>>)> {
        let mut absent = false;
        let mut unsure = 0;
        let mut last = Seen::Unsure("nobody was asked".to_owned());
        for n in 1..=ASKS_MAX {
            let session = self.asked.job.session(&self.inner.secrets);
            let allow = self.asked.allow.clone();
            let allowed = tokio::task::spawn_blocking(move || allow()).await;
            let called = match allowed {
                Ok(Ok(leave)) => Ok(call_of(&self.asked.job, &session, leave)),
                Ok(Err(NotAllowed::Moot)) => return None,
                Ok(Err(NotAllowed::Because(why))) => Err(why),
                Err(_) => Err("policy could not be asked".to_owned()),
            };
            // Why it cannot be told, where it is not absent.
            let unknown = match called {
                Ok(Ok(call)) => match self.look(&call, &session, n).await {
                    Seen::There(success) => {
                        let receipt = receipted(&self.asked.job, &session, &call, &success);
                        let output = receipt.response.clone().unwrap_or(Value::Null);
                        return Some((Seen::There(Success { output, ..success }), Some(Box::new(receipt))));
                    }
                    Seen::Absent if absent => return Some((Seen::Absent, None)),
                    Seen::Absent => None,
                    Seen::Unsure(why) => Some(why),
                },
                // A secret that is not there, for example: to ask again does not help.
                Ok(Err(trouble)) => return Some((Seen::Unsure(session.mask(&trouble.message)), None)),
                Err(why) => Some(why),
            };
            absent = unknown.is_none();
            let wait = match unknown {
                None => self.inner.tools.settings.probe_wait,
                Some(why) => {
                    last = Seen::Unsure(session.mask(&why));
                    unsure += 1;
                    WAITS.get(unsure - 1).or(WAITS.last()).copied().unwrap_or(TIME_MAX)
                }
            };
            tokio::time::sleep(wait).await;
        }
        Some((last, None))
    }

    async fn look(&self, call: &Call, session: &Session, n: usize) -> Seen {
        let attempt = &self.asked.job.id;
        match &self.asked.read {
            Read::Own => self.inner.probe(call, session, attempt, n).await,
            Read::Tool(action, with) => {
                let (fields, secret_places) = match session.resolve(with, &action.fields) {
                    Ok(resolved) => resolved,
                    Err(trouble) => return trouble.into(),
                };
                let Value::Object(fields) = fields else {
                    return Seen::Unsure("its fields are not a map".into());
                };
                let call = Call {
                    tool: action.tool.to_string(),
                    operation: action.operation.to_string(),
                    target: action.target.to_string(),
                    fields,
                    secret_places,
                    ..call.clone()
                };
                found(&call, self.inner.perform(&call, session, attempt).await)
            }
            Read::Command(command, dir, env) => {
                self.run((command, dir), env.clone(), (call, session), n).await
            }
        }
    }

    async fn run(
        &self,
        (command, dir): (&str, &std::path::Path),
        mut env: Environment,
        (call, session): (&Call, &Session),
        n: usize,
    ) -> Seen {
        let shell = &self.inner.shell;
        for (name, template, value) in &self.asked.env {
            let text = match session.resolve(template, value) {
                Ok((Value::String(text), _)) => text,
                Ok((other, _)) => other.to_string(),
                Err(trouble) => return trouble.into(),
            };
            if let Err(error) = env.add(name, &text) {
                return Seen::Unsure(error.to_string());
            }
        }
        let place = stdio::Place::new(
            shell,
            &self.inner.home,
            &self.asked.job.id,
            (&format!("probe{n}"), Author::Tenant(self.asked.job.tenant.clone())),
            &call.leave,
        );
        let ended =
            stdio::command(&place, command.to_owned(), dir.to_path_buf(), env, TIME_MAX, session).await;
        match ended {
            Ok(ended) => match (&ended.ending, ended.output) {
                (Ending::Exited(0), output) => {
                    Seen::There(Success::of(output.ok().flatten().unwrap_or(Value::Object(Map::new()))))
                }
                (Ending::Exited(1), _) => Seen::Absent,
                (ending, _) => Seen::Unsure(ending.to_string()),
            },
            Err(trouble) => trouble.into(),
        }
    }
}

/// What a tool's read says: found, or not. An empty list of records is not found, and neither is an address that is not
/// there.
fn found(call: &Call, outcome: super::Outcome) -> Seen {
    match outcome {
        Ok(success) => {
            let empty = |name: &str| success.output[name].as_array().is_some_and(Vec::is_empty);
            let told = success.output["found"].as_bool();
            if told == Some(false) || empty("records") { Seen::Absent } else { Seen::There(success) }
        }
        Err(trouble) => {
            if matches!(trouble.status, Some(404 | 410)) {
                return Seen::Absent;
            }
            Seen::Unsure(format!("{}: {}", call.tool, trouble.message))
        }
    }
}
