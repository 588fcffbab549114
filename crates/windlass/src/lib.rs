//! The parts of the `windlass` binary: stores, adapters, the API and the command line.

pub mod history;
pub mod shape;
