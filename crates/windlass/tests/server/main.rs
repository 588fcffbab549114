//! The server, from outside: the real binary on a port of its own, real connections, real bytes.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apart;
mod beside;
mod bounds;
mod clocks;
mod doors;
mod ends;
mod events;
mod hands;
mod hostile;
mod http;
mod kept;
mod leaves;
mod proof;
mod roots;
#[path = "../support/mod.rs"]
mod support;
mod tls;
mod tokens;
mod walk;
mod wall;
