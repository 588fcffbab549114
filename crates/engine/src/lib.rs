//! The loop of Windlass, the ports it works through, and recovery.
//!
//! ```text
//!  handle ─▶ inbox ─▶ gather ─▶ (load → decide)* ─▶ commit ─▶ release ─▶ outside
//!               ▲                                                          │
//!               └────────────────────── reports ◀──────────────────────────┘
//! ```
//!
//! One thread owns the truth: everything that may change it comes through one inbox. It decides on a view of the
//! store, hands the facts over as one batch, and what follows from them is released when the batch is durable, not
//! before. The loop knows no vendor: stores, clocks, policies and executors are behind the traits of [`port`].

pub mod conformance;
pub mod engine;
pub mod fake;
pub mod fast;
pub mod handle;
pub mod hold;
pub mod port;
pub mod reader;
mod release;
pub mod remote;

pub use engine::{Engine, Options, Parts};
pub use handle::Handle;
pub use reader::Reader;
pub use release::{Granted, Leave, Own, Permit, Released, Work};
