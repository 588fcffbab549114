//! Deployed runbooks from outside: queues, workers, schedules and caps, over the API and the command line.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod caps;
mod daily;
mod deploy;
mod external;
mod items;
mod places;
mod schedules;
mod served;
#[path = "../support/mod.rs"]
mod support;
mod workers;
