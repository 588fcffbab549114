//! What the log promises, on a disk that fails in every way it can, and on a real one.

mod crash;
mod index;
mod support;
mod whole;
