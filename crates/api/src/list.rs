//! Lists: a page of items, and where the next page begins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct List<T> {
    /// What is on the page.
    pub items: Vec<T>,
    /// Pass it as `cursor` for the next page. Absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl<T> List<T> {
    /// A page with a next one, or without.
    #[must_use]
    pub fn page(items: Vec<T>, next_cursor: Option<String>) -> List<T> {
        List { items, next_cursor }
    }
}

impl<T> From<Vec<T>> for List<T> {
    /// A list that is one page.
    fn from(items: Vec<T>) -> List<T> {
        List { items, next_cursor: None }
    }
}
