//! The parts of the `windlass` binary: stores, adapters, the API and the command line.

pub mod api;
pub mod app;
pub mod attempts;
pub mod auth;
pub mod bench;
pub mod cards;
pub mod cli;
pub mod client;
pub mod evidence;
pub mod executor;
pub mod external;
pub mod guards;
pub mod outside;
pub mod plan;
pub mod policy;
pub mod retention;
pub mod server;
pub mod undo;

pub use windlass_runbook::{self as runbook, cron, expr};
pub use windlass_store::{disk, history, log, metrics, shape, store, telemetry};
pub use windlass_tools::{clock, config, home, random, redaction, secrets, shell, tools};
