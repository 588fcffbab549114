//! The command line of Windlass, and the parts that it is made of.

pub mod bench;
pub mod cli;
