//! What keeps the facts: the log on its disk, the store over it, and the history of what ended.

pub mod disk;
pub mod history;
pub mod log;
pub mod observer;
pub mod store;
