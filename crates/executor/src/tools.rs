//! Tools: calls to the outside that are no shell commands, and what came of each.
//!
//! ```text
//!  lease ─▶ secrets resolved ─▶ perform ─▶ done ──────────────────────▶ report + receipt
//!                                  │
//!                                  ├─ refused: it did not happen ─────▶ report + receipt, again or not
//!                                  └─ no answer: nobody knows ─▶ ask the other side where that can be done
//! ```
//!
//! A call comes to one of two things: a [`Success`], or a [`Trouble`] that says whether the effect may have happened. The
//! second question is the one that matters: what was refused can be tried again, what may have happened cannot, unless
//! the tool is idempotent or the other side can be asked.

pub mod described;
pub mod execute;
mod github;
mod http;
mod model;
pub mod probe;
mod servicenow;
pub mod session;
pub mod settings;
pub mod slack;
mod stdio;
pub mod wire;

#[cfg(test)]
mod tests;

use crate::shell::StartError;
use described::{Described, Registry};
use serde_json::{Map, Value};
use session::Session;
use settings::Settings;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
pub use stdio::Place;
use windlass_core::budget::Cost;
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::receipt::Reversal;
use windlass_engine::Leave;
use wire::Wire;

/// How long a call may take where the step does not say.
pub const TIME_MAX: Duration = Duration::from_secs(60);
/// What is said where a described tool is to run and nothing can.
const NO_COMMANDS: &str = "this process runs no commands";
/// The most bytes of what a call gives.
pub const OUTPUT_LEN_MAX: usize = 48 * 1024;

/// One call of a tool. It holds secrets, so nothing prints it.
#[derive(Clone)]
pub struct Call {
    /// The tool.
    pub tool: String,
    /// What it does.
    pub operation: String,
    /// What it does it to.
    pub target: String,
    /// With which values; secrets are resolved.
    pub fields: Map<String, Value>,
    /// Where among them secrets stand, as `headers/X-Token`.
    pub secret_places: BTreeSet<String>,
    /// What identifies the effect.
    pub key: String,
    /// Which try it is, from 1.
    pub attempt: u32,
    /// How long it may take.
    pub timeout: Duration,
    /// The permission to make it.
    pub leave: Leave,
}

impl Call {
    /// A field that must be text.
    ///
    /// # Errors
    /// It is not there, or is something else.
    pub fn text(&self, field: &str) -> Result<&str, Trouble> {
        let found = self.fields.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        found.ok_or_else(|| Trouble::input(format!("`{field}` of {} is missing or no text", self.tool)))
    }

    /// A field that may be text.
    #[must_use]
    pub fn maybe(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    /// A field that is a number, or a text of one.
    ///
    /// # Errors
    /// It is neither.
    pub fn number(&self, field: &str) -> Result<u64, Trouble> {
        let found = match self.fields.get(field) {
            Some(Value::Number(number)) => number.as_u64(),
            Some(Value::String(text)) => text.parse().ok(),
            Some(_) | None => None,
        };
        found.ok_or_else(|| Trouble::input(format!("`{field}` of {} is missing or no number", self.tool)))
    }

    /// A field that is a text or a list of texts.
    #[must_use]
    pub fn texts(&self, field: &str) -> Vec<String> {
        match self.fields.get(field) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(_) | None => Vec::new(),
        }
    }

    /// Whether a secret stands at a place of the fields.
    #[must_use]
    pub fn is_secret(&self, place: &str) -> bool {
        self.secret_places.contains(place)
    }

    /// A short mark by which the other side can be asked for the effect. It gives nothing of the key away.
    #[must_use]
    pub fn mark(&self) -> String {
        let hash =
            windlass_core::digest::Digest::of(&[b"windlass mark v1\n", self.key.as_bytes()]).to_string();
        format!("windlass-{}", &hash[..24])
    }
}

/// What a call came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Success {
    /// What it gives.
    pub output: Value,
    /// How it can be taken back.
    pub reverse: Option<Reversal>,
    /// What it cost.
    pub costs: Vec<Cost>,
}

impl Success {
    /// A success that gives this and cannot be taken back.
    #[must_use]
    pub fn of(output: Value) -> Success {
        Success { output, reverse: None, costs: Vec::new() }
    }

    /// With how it can be taken back.
    #[must_use]
    pub fn reversible(mut self, tool: &str, target: &str, fields: Value) -> Success {
        let operation = tool.rsplit('.').next().unwrap_or(tool);
        let (tool, operation, target) = (Name::clean(tool), Name::clean(operation), Name::clean(target));
        self.reverse = Some(Reversal { tool, operation, target, fields });
        self
    }
}

/// Whether the effect of a call that failed may have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It did not: it was refused, or never sent.
    No,
    /// Nobody knows: it was sent, and no answer says.
    Unknown,
}

/// Whether a call that failed is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It would fail again.
    Never,
    /// After the usual wait.
    Soon,
    /// Not before this long.
    After(Duration),
}

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Trouble {
    /// The stable code.
    pub code: Code,
    /// What happened, for people.
    pub message: String,
    /// Whether the effect may have happened.
    pub happened: Happened,
    /// Whether it is worth another try.
    pub again: Again,
    /// The status of the answer, where one came.
    pub status: Option<u16>,
    /// Whether nothing could be begun for lack of room on this machine.
    pub no_room: bool,
}

impl Trouble {
    /// It was refused and would be again.
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Trouble {
        Trouble {
            code: Code::StepFailed,
            message: message.into(),
            happened: Happened::No,
            again: Again::Never,
            status: None,
            no_room: false,
        }
    }

    /// Its fields are not what the tool takes.
    #[must_use]
    pub fn input(message: impl Into<String>) -> Trouble {
        Trouble { code: Code::InvalidInput, ..Trouble::refused(message) }
    }

    /// It did not happen and may the next time.
    #[must_use]
    pub fn not_now(message: impl Into<String>) -> Trouble {
        Trouble { again: Again::Soon, ..Trouble::refused(message) }
    }

    /// It was sent, and nobody knows what came of it.
    #[must_use]
    pub fn unanswered(message: impl Into<String>) -> Trouble {
        Trouble { happened: Happened::Unknown, again: Again::Soon, ..Trouble::refused(message) }
    }

    /// Whether the attempt is to be handed back: nothing was done, and nothing can be put on record before there is room.
    #[must_use]
    pub fn hands_back(&self) -> bool {
        matches!(self.code, Code::StoreFull | Code::Unavailable) && self.happened == Happened::No
    }

    /// Whether the attempt is to be tried again later as if nothing had been: it could not be begun for lack of room.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        self.no_room && self.happened == Happened::No
    }

    /// A failure that came before anything was done: a read that prepares a write, for example.
    #[must_use]
    pub fn before(mut self) -> Trouble {
        self.happened = Happened::No;
        self
    }
}

impl From<String> for Trouble {
    fn from(message: String) -> Trouble {
        Trouble::refused(message)
    }
}

impl From<StartError> for Trouble {
    fn from(error: StartError) -> Trouble {
        Trouble { no_room: error.passes(), ..Trouble::refused(error.to_string()) }
    }
}

/// What a call comes to.
pub type Outcome = Result<Success, Trouble>;

/// What the other side says about an effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// It is there.
    There(Success),
    /// It is not.
    Absent,
    /// That cannot be told, and why.
    Unsure(String),
}

impl From<Trouble> for Seen {
    fn from(trouble: Trouble) -> Seen {
        Seen::Unsure(trouble.message)
    }
}

/// What has become of what an effect did, when it is to be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Current {
    /// It is as it was left.
    Unchanged,
    /// Somebody changed it since, and how.
    Changed(String),
    /// The tool cannot tell.
    Unknown,
}

/// Who carries out a call. What each can do stands in the exhaustive matches of [`Tools`], beside each other: an object
/// for each would hide that most cannot be asked what became of an effect, and box every call.
#[derive(Clone, Copy, Debug)]
enum Provider<'a> {
    Http,
    Model,
    Slack,
    GitHub,
    ServiceNow,
    Described(&'a Described),
}

/// The tools of one application.
#[derive(Clone)]
pub struct Tools {
    /// How they are set up.
    pub settings: Arc<Settings>,
    /// Those that files describe.
    pub registry: Registry,
    /// The way to the network.
    pub wire: Arc<Wire>,
}

impl Tools {
    /// Tools that are set up like this.
    ///
    /// # Errors
    /// The system has no certificates, or the like.
    pub fn new(settings: Arc<Settings>, registry: Registry) -> Result<Tools, String> {
        Ok(Tools { wire: Arc::new(Wire::new(&settings)?), settings, registry })
    }

    fn provider(&self, tool: &str) -> Option<Provider<'_>> {
        Some(match tool.split_once('.').map_or(tool, |(family, _)| family) {
            "http" if tool == "http" => Provider::Http,
            "model" if tool == "model" => Provider::Model,
            "slack" => Provider::Slack,
            "github" => Provider::GitHub,
            "servicenow" => Provider::ServiceNow,
            _ => Provider::Described(self.registry.find(tool)?),
        })
    }

    /// The names of all that leases of these tools can ask for.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let own = windlass_runbook::tools::TOOLS.iter().map(|tool| tool.name);
        let own = own.filter(|name| self.provider(name).is_some());
        let described = self.registry.signatures().names();
        ["shell", "transform"].into_iter().chain(own).chain(described).map(str::to_owned).collect()
    }

    /// Carries out a call. Commands of described tools run at a place.
    ///
    /// # Errors
    /// What went wrong, and whether the effect may have happened.
    pub async fn perform(&self, call: &Call, session: &Session, place: Option<&Place>) -> Outcome {
        match self.provider(&call.tool) {
            Some(Provider::Http) => http::request(self, call).await,
            Some(Provider::Model) => model::complete(self, call, session).await,
            Some(Provider::Slack) => slack::perform(self, call, session).await,
            Some(Provider::GitHub) => github::perform(self, call, session).await,
            Some(Provider::ServiceNow) => servicenow::perform(self, call, session).await,
            Some(Provider::Described(tool)) => match place {
                Some(place) => stdio::perform(tool, call, session, place).await,
                None => Err(Trouble::refused(NO_COMMANDS)),
            },
            None => {
                let text = format!("the tool `{}` is not available in this version", call.tool);
                Err(Trouble::refused(text))
            }
        }
    }

    /// Asks the other side whether the effect of a call is there.
    pub async fn probe(&self, call: &Call, session: &Session, place: Option<&Place>) -> Seen {
        let seen = match self.provider(&call.tool) {
            Some(Provider::Slack) => slack::probe(self, call, session).await,
            Some(Provider::GitHub) => github::probe(self, call, session).await,
            Some(Provider::ServiceNow) => servicenow::probe(self, call, session).await,
            Some(Provider::Described(tool)) => match place {
                Some(place) => Ok(stdio::probe(tool, call, session, place).await),
                None => Ok(Seen::Unsure(NO_COMMANDS.to_owned())),
            },
            Some(Provider::Http | Provider::Model) | None => {
                Ok(Seen::Unsure(format!("`{}` cannot ask what became of it", call.tool)))
            }
        };
        seen.unwrap_or_else(Seen::from)
    }

    /// Whether there is a way to look whether what a call of this tool would take back is as it was left.
    #[must_use]
    pub fn can_look(&self, tool: &str) -> bool {
        match self.provider(tool) {
            Some(Provider::Slack | Provider::GitHub | Provider::ServiceNow) => true,
            Some(Provider::Http | Provider::Model | Provider::Described(_)) | None => false,
        }
    }

    /// Looks whether what a call is to take back is still as it was left. `left` is what the effect gave.
    pub async fn current(&self, reversal: &Call, left: &Value, session: &Session) -> Current {
        let current = match self.provider(&reversal.tool) {
            Some(Provider::Slack) => slack::current(self, reversal, left, session).await,
            Some(Provider::GitHub) => github::current(self, reversal, left, session).await,
            Some(Provider::ServiceNow) => servicenow::current(self, reversal, left, session).await,
            Some(Provider::Http | Provider::Model | Provider::Described(_)) | None => Ok(Current::Unknown),
        };
        current.unwrap_or(Current::Unknown)
    }
}
