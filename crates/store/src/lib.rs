//! What keeps the facts and tells of them: the log on its disk, the store over it, the history of what ended, figures and
//! traces.

pub mod disk;
pub mod history;
pub mod log;
pub mod metrics;
pub mod shape;
pub mod store;
pub mod telemetry;
