//! The engine of Windlass: what turns the core's decisions into durable facts and then into effects.
//!
//! Nothing is here yet. This crate will hold the loop that takes commands through a turn (gather, decide, commit,
//! release), the ports it needs from outside as traits (store, clock, ids, executors), recovery after a crash,
//! and the fakes with which all of it is simulated. It will know no vendor; the binary brings those.
