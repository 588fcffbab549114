//! Tools, receipts, undo and secrets, as a user sees them: the binary, its data directory, and an outside that counts.
//!
//! The built-in policy denies every write to the outside. Tests of writes talk to a holder of the data directory that
//! is the application itself, but for its policy: that allows everything. The holder is this test program, started
//! again as a process of its own, so that it can be killed at any moment.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/outside.rs"]
mod outside;
#[path = "../support/mod.rs"]
mod support;

mod canaries;
mod example;
mod holder;
mod kills;
mod receipts;
mod secrets;
mod stops;
