//! How runs move through their pipelines.

use crate::world::*;
use windlass_core::run::Status;

#[test]
fn a_sequence_runs_in_order_and_completes() {
    let mut world = World::new(main_book(vec![run("a"), run("b")]));
    let id = world.start();
    assert_eq!(world.status(id), Status::Running);
    assert_eq!(world.leasable(id), ["a"]);
    world.succeed(id, "a");
    assert_eq!(world.leasable(id), ["b"]);
    world.succeed(id, "b");
    assert_eq!(world.status(id), Status::Completed);
    world.check_replay();
}
