//! Why a run is where it is: the chain of what it waits for.

use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::code::Code;
use windlass_core::id::{RunId, StepId};
use windlass_core::run::Status;

/// What a run waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// The run.
    #[schemars(with = "String")]
    pub run: RunId,
    /// Where it stands. Null where it is gone meanwhile.
    #[schemars(with = "Option<Word<Status>>")]
    pub status: Option<Status>,
    /// The chain of reasons, followed from run to lock to holder as far as it goes.
    pub because: Vec<Link>,
}

/// One link of the chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// The run that waits.
    #[schemars(with = "String")]
    pub run: RunId,
    /// Its step that waits, where one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub step: Option<StepId>,
    /// The kind of what it waits for: `lock`, `approval`, `executor`, `ended` and the like.
    pub kind: String,
    /// The same for people, with what they can do about it.
    pub text: String,
    /// Who has the lock that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// A stable code, where it is about one.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::problem::known_or_none"
    )]
    #[schemars(with = "Option<String>")]
    pub code: Option<Code>,
}
