//! Executors and holders on other machines, over TCP: leases, heartbeats, hand-backs, locks and slots.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod holds;
mod leases;
#[path = "../support/outside.rs"]
mod outside;
mod process;
mod recovery;
mod server;
#[path = "../support/mod.rs"]
mod support;
mod tools;
