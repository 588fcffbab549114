//! Runs, turns and the state, driven as a whole: one program, so that the world is built once.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

// The table test of runs is the one that the core's own machines go through; it names these from the crate's root.
use windlass_core::{code, id, machine};
#[allow(dead_code)]
#[path = "../../src/testing.rs"]
mod testing;
#[path = "../world/mod.rs"]
mod world;

mod flow;
mod flow_again;
mod flow_alive;
mod flow_attempts;
mod flow_bindings;
mod flow_changes;
mod flow_endings;
mod flow_gates;
mod flow_groups;
mod flow_lineage;
mod flow_resolved;
mod flow_shown;
mod flow_taken_back;
mod found;
mod policy_moves;
mod properties;
mod replay;
mod requesters;
mod run_table;
mod timelines;
mod turn_admission;
mod turn_commands;
mod turn_coordination;
mod turn_deploy;
mod turn_effects;
mod turn_ingress;
mod turn_outstanding;
mod turn_queues;
mod turn_reversals;
mod turn_schedules;
mod turn_signals;
