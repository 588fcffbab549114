//! The core of Windlass: everything that decides, and nothing that acts.
#![no_std]
#![doc = include_str!("../README.md")]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agency;
pub mod approval;
pub mod attempt;
pub mod audit;
pub mod binding;
pub mod budget;
pub mod canonical;
pub mod caps;
pub mod cause;
pub mod code;
pub mod digest;
pub mod effect;
pub mod event;
pub mod evidence;
pub mod follow;
pub mod gate;
pub mod guard;
pub mod id;
pub mod idempotency;
pub mod item;
mod items;
pub mod lifecycle;
pub mod lock;
pub mod machine;
pub mod notice;
pub mod origin;
pub mod packed;
pub mod pattern;
pub mod pipeline;
pub mod policy;
pub mod pool;
pub mod private;
pub mod queue;
pub mod receipt;
pub mod record;
pub mod redact;
mod renewal;
pub mod requesters;
pub mod reversal;
pub mod run;
pub mod runbook;
pub mod schedule;
pub mod scope;
pub mod semaphore;
pub mod signal;
pub mod small;
pub mod step;
pub mod strategy;
pub mod stream;
pub mod task;
pub mod template;
pub mod tenant;
#[cfg(test)]
mod testing;
pub mod time;
pub mod timeline;
pub mod token;
pub mod trace;
pub mod turn;
pub mod wire;
mod word;
pub mod worker;
pub mod workspace;
