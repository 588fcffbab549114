//! Every command, from outside: what it prints, how it ends, and what it leaves behind.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod again;
mod back;
mod calls;
mod care;
mod chain;
mod endings;
mod examples;
mod flow;
mod governed;
mod guards;
mod homes;
mod humans;
mod language;
mod look;
mod pipes;
mod run;
mod said;
mod stops;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod waits;
