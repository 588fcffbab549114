//! The command line of Windlass, and the parts that it is made of.

pub mod cli;

pub use windlass_runbook as runbook;
pub use windlass_server::{
    apart, api, app, auth, backup, bench, cards, client, evidence, executor, policy, retention, server,
};
pub use windlass_store::{disk, history, log, shape, store, telemetry};
pub use windlass_tools::{clock, config, home, redaction, secrets, shell, tools};
