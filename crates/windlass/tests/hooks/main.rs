//! Deliveries, events and figures through the real binary: what others send to it, and what they get back.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod events;
mod figures;
mod generic;
mod github;
mod slack;
#[path = "../support/mod.rs"]
mod support;
mod wire;
