//! The hands of Windlass: processes, tools, secrets and what must not be shown, TLS, the data directory, and the file that
//! configures them.

pub mod clock;
pub mod config;
pub mod executor;
pub mod home;
pub mod random;
pub mod redaction;
pub mod remote;
pub mod room;
pub mod secrets;
pub mod shell;
pub mod tls;
pub mod tools;
