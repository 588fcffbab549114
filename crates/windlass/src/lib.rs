//! The parts of the `windlass` binary: stores, adapters, the API and the command line.

pub mod api;
pub mod app;
pub mod auth;
pub mod bench;
pub mod cli;
pub mod client;
pub mod clock;
pub mod cron;
pub mod disk;
pub mod evidence;
pub mod expr;
pub mod external;
pub mod guards;
pub mod history;
pub mod home;
pub mod log;
pub mod outside;
pub mod plan;
pub mod policy;
pub mod redaction;
pub mod retention;
pub mod runbook;
pub mod server;
pub mod shape;
pub mod shell;
pub mod store;
