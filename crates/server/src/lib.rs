//! The server of Windlass: the API, what it decides by and acts through, and the client that talks to it.

pub mod apart;
pub mod api;
pub mod app;
pub mod aside;
pub mod attempts;
pub mod auth;
pub mod backup;
pub mod cards;
pub mod client;
pub mod evidence;
pub mod external;
pub mod guards;
pub mod metrics;
pub mod outside;
pub mod plan;
pub mod policy;
pub mod retention;
pub mod roots;
pub mod server;
pub mod standing;
pub mod telemetry;
pub mod undo;
