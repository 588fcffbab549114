//! The parts of the `windlass` binary: stores, adapters, the API and the command line.

pub mod disk;
pub mod expr;
pub mod log;
pub mod runbook;
pub mod shape;
