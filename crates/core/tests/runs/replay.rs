//! Reading a log back: whatever way a state came to be, it is the same.

use crate::world::*;
use std::sync::Arc;
use windlass_core::run::{Run, Status};
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::state::{Body, ReplayError, State};
use windlass_core::wire;

/// A log of four runs: one waits for a time, two have a lease, one has ended.
fn lived() -> World {
    let waits = wait("c", windlass_core::runbook::WaitFor::Time { span: Span::hours(1) });
    let mut world = World::new(main_book(vec![run("a"), run("b"), waits]));
    for succeed in [&["a", "b"][..], &["a"], &[]] {
        let id = world.start();
        succeed.iter().for_each(|step| world.succeed(id, step));
        if succeed.len() < 2 {
            world.lease(id, ["a", "b"][succeed.len()]);
        }
    }
    let id = world.start();
    world.cancel(id).unwrap();
    assert_eq!(world.status(id), Status::Cancelled);
    world
}

fn replayed(world: &World, mut state: State) -> Result<(State, u64), ReplayError> {
    let news = state.replay(&world.lines)?;
    Ok((state, news))
}

/// How many runs are ready, which streams are due, which have leases, and how many runs have which status.
type Picks = (usize, Vec<StreamId>, Vec<StreamId>, Vec<(String, Status, u64)>);

/// What the indexes say, in the order in which they say it.
fn picks(state: &State) -> Picks {
    let (indexes, end) = (state.indexes(), Millis(u64::MAX));
    (
        indexes.ready_len(),
        indexes.due(end).cloned().collect(),
        indexes.leases_due(end).cloned().collect(),
        indexes.statuses().map(|(tenant, status, n)| (tenant.to_string(), status, n)).collect(),
    )
}

#[test]
fn a_log_replays_to_the_state_and_the_indexes_that_were_lived_through() {
    let world = lived();
    let (state, news) = replayed(&world, State::new()).unwrap();
    assert!(state == world.state);
    assert_eq!(news, world.lines.len() as u64);
    assert_eq!(picks(&state), picks(&world.state));
    assert_eq!(picks(&state).2.len(), 2, "two leases are in force");
}

#[test]
fn records_before_a_snapshot_are_passed_over_and_those_after_it_applied() {
    let mut world = lived();
    let id = world.start();
    let run = StreamId::Run(id);
    let snapshot = world.state.save(&run).unwrap();
    let before = snapshot.state.ver;
    world.succeed(id, "a");
    let after = world.state.stream(&run).unwrap().ver;
    let mut state = State::new();
    state.restore(snapshot).unwrap();
    let (state, news) = replayed(&world, state).unwrap();
    assert!(state == world.state);
    assert_eq!(news, world.lines.len() as u64 - before);
    assert!(after > before);
    assert_eq!(picks(&state), picks(&world.state));
}

#[test]
fn runs_that_are_read_from_snapshots_share_what_they_have_in_common() {
    let world = lived();
    let mut state = State::new();
    let runs: Vec<StreamId> =
        world.state.streams().map(|(id, _)| id).filter(|id| matches!(id, StreamId::Run(_))).collect();
    for id in &runs {
        let text = serde_json::to_string(&world.state.save(id).unwrap()).unwrap();
        state.restore(serde_json::from_str(&text).unwrap()).unwrap();
    }
    let read: Vec<_> = state
        .streams()
        .filter_map(|(_, stream)| match &stream.body {
            Body::Run(run) => Some(run),
            _ => None,
        })
        .collect();
    let (first, rest) = read.split_first().unwrap();
    assert_eq!(rest.len(), 3);
    for run in rest {
        assert!(Arc::ptr_eq(&run.born.home, &first.born.home));
        let names = |run: &Run| [run.born.name.as_str().as_ptr(), run.steps[0].id.as_str().as_ptr()];
        assert_eq!(names(run), names(first));
    }
}

#[test]
fn a_changed_line_breaks_the_chain() {
    let mut world = lived();
    let place = world.lines.iter().position(|line| line.contains("\"step:completed\"")).unwrap();
    world.lines[place] = world.lines[place].replace("\"attempt\":1", "\"attempt\":2");
    let refused = replayed(&world, State::new()).unwrap_err();
    assert!(matches!(refused, ReplayError::Line(wire::Error::Chain { .. })), "{refused}");
}

#[test]
fn a_missing_record_is_found() {
    let mut world = lived();
    let last = world.lines.pop().unwrap();
    let gone = world.lines.pop().unwrap();
    assert_eq!(gone.split('"').nth(7), last.split('"').nth(7), "both are of one stream");
    world.lines.push(last);
    let refused = replayed(&world, State::new()).unwrap_err();
    assert!(matches!(refused, ReplayError::Line(wire::Error::Chain { .. })), "{refused}");
}
