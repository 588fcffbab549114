//! Approaches of a `strategy` step: ways to do one thing, tried in order.

use crate::id::Name;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A failure that the next approach is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FallbackCondition {
    /// An error whose text contains this, in whatever case.
    Error(String),
    /// Any failure at all, a time-out included.
    AnyError,
    /// The approach took too long.
    Timeout,
}

/// One way to do it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approach {
    /// What it is called.
    pub name: Name,
    /// The failures that the next approach is for. Those of the last approach are never looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallback_on: Vec<FallbackCondition>,
}
