//! The server of Windlass: the API, what it decides by and acts through, the client and the executor that talk to it, and the
//! benchmarks of all of it.

pub mod apart;
pub mod api;
pub mod app;
pub mod aside;
pub mod attempts;
pub mod auth;
pub mod backup;
pub mod bench;
pub mod cards;
pub mod client;
pub mod evidence;
pub mod executor;
pub mod external;
pub mod guards;
pub mod outside;
pub mod plan;
pub mod policy;
pub mod retention;
pub mod roots;
pub mod server;
pub mod standing;
pub mod undo;

use windlass_runbook::{self as runbook, cron, expr};
use windlass_store::{disk, history, log, metrics, shape, store, telemetry};
use windlass_tools::{clock, config, home, random, redaction, room, secrets, shell, tools};
