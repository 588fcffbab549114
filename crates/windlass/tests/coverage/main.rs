//! Tests for the statements of docs/coverage.md that no other test shows. `xtask tidy` checks the table itself.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod causes;
mod custom;
mod ingress;
mod notices;
#[path = "../support/outside.rs"]
mod outside;
mod resume;
mod seeds;
mod signals;
#[path = "../support/mod.rs"]
mod support;
// Each test binary uses a part of it.
#[allow(dead_code)]
#[path = "../hooks/wire.rs"]
mod wire;
mod words;
