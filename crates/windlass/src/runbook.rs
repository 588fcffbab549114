//! Runbooks, from YAML to the core's definition.

pub mod problem;
pub mod shape;
pub mod span;
pub mod tables;
pub mod tools;
pub mod yaml;
