//! Policy: what is in force.

use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::approval::Tier;
use windlass_core::digest::Digest;
use windlass_core::id::Name;

/// The policies in force, and the configuration that is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Policies {
    /// One policy.
    pub items: Vec<Policy>,
    /// The path of the configuration file in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// The hash of its rules.
    #[schemars(with = "String")]
    pub version: Digest,
    /// Whether it is the one that holds where no folder is given.
    pub builtin: bool,
    /// The folder with its rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Its rules. Absent where it cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<Rule>>,
    /// Why it cannot be used: everything is denied then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A rule of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rule {
    /// Its name.
    pub id: String,
    /// The file that it stands in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// `forbid` or `permit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// Why it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The approval that it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Demand>,
}

/// An approval that a rule asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Demand {
    /// How much is at stake.
    /// Null where the risk of the action says it.
    #[schemars(with = "Option<Word<Tier>>")]
    pub tier: Option<Tier>,
    /// How many humans have to agree.
    pub count: u32,
    /// Whether two humans have to, neither of them the requester.
    pub two_person: bool,
    /// The names and groups that may decide.
    #[schemars(with = "Vec<String>")]
    pub approvers: Vec<Name>,
    /// How long it can be decided. Null where the rule does not say.
    pub expires_ms: Option<u64>,
}
