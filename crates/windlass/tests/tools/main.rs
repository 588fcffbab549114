//! Tools, receipts, undo and secrets, as a user sees them: the binary, its data directory, and an outside that counts.
//!
//! The built-in policy denies every write to the outside. Tests of writes talk to a server on the project's data
//! directory whose policy folder allows everything.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/outside.rs"]
mod outside;
#[path = "../support/mod.rs"]
mod support;

mod canaries;
mod example;
mod holder;
mod keys_shell;
mod kills;
mod kills_shell;
mod receipts;
mod rotation;
mod secrets;
mod stops;
