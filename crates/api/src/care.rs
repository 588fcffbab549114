//! Looking after a data directory: checking it, and copying it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What checking a log came to. A log that is damaged is a problem instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verified {
    /// Always true.
    pub valid: bool,
    /// How many records were checked.
    pub records: u64,
    /// Of how many streams.
    pub streams: u64,
    /// What is wrong with snapshots. The log does not need them.
    pub warnings: Vec<String>,
}

/// Where to copy the data directory to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Backup {
    /// The absolute path of a directory that does not exist yet.
    pub to: PathBuf,
}
