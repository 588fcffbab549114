//! Approvals as people see and decide them: the card in Slack, the text on the command line, and who may not.
//!
//! Who may agree through the API is in `tests/policy`; what is signed is in `tests/hooks`.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../server/http.rs"]
#[allow(dead_code)] // Only a part of it is used here.
mod http;
#[path = "../support/outside.rs"]
mod outside;
#[path = "../support/mod.rs"]
mod support;
#[path = "../hooks/wire.rs"]
#[allow(dead_code)] // Only a part of it is used here.
mod wire;

mod changes;
mod channel;
mod decisions;
mod faults;
mod office;
mod refusals;
mod requesters;
mod terminal;
