//! Policy from outside: what it lets happen, what it does not, and who may agree.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod approvals;
mod beside;
mod budgets;
mod effects;
mod files;
mod matrix;
#[path = "../support/outside.rs"]
mod outside;
#[path = "../support/mod.rs"]
mod support;
mod tools;
mod undone;

/// The policy that allows everything.
const ALL: &str = "@id(\"all\")\npermit (principal, action, resource);\n";
