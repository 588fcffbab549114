//! What a moved policy means for steps side by side.

use crate::world::*;
use windlass_core::digest::Digest;
use windlass_core::event::PolicyDecided;
use windlass_core::policy::Verdict;
use windlass_core::turn::command::Command;
use windlass_core::turn::state::State;

#[test]
fn an_answer_under_a_new_policy_concerns_every_step_of_the_run() {
    let mut world = World::new(main_book(vec![parallel("both", vec![write("a"), write("b")])]));
    let id = world.start();
    world.decide_policy(id, "a", Verdict::Allow);
    world.policy = Digest([8; 32]);
    world.decide_policy(id, "b", Verdict::Allow);
    // Read back from its snapshots, the run has the same steps to lease and to look at.
    let mut read = State::new();
    for (stream, _) in world.state.streams() {
        let text = serde_json::to_string(&world.state.save(&stream)).unwrap();
        read.restore(serde_json::from_str(&text).unwrap()).unwrap();
    }
    assert!(read == world.state, "a run read back differs from the one that lived");
    let leasable: Vec<String> = read.run(id).unwrap().leasable().map(|step| step.id.to_string()).collect();
    assert_eq!(world.leasable(id), leasable);
}

#[test]
fn a_late_answer_of_an_old_policy_does_not_replace_the_new_one() {
    let mut world = World::new(main_book(vec![write("a")]));
    let id = world.start();
    world.policy = Digest([8; 32]);
    world.decide_policy(id, "a", Verdict::Allow);
    let step = world.step(id, "a").clone();
    let late = PolicyDecided {
        pipeline_id: id,
        step: Some(step.id.clone()),
        tool: step.tool.clone(),
        action_hash: step.action_hash().copied(),
        verdict: Verdict::Deny,
        ..allow_shell(POLICY)
    };
    world.send(&Command::PolicyDecided(Box::new(late))).unwrap();
    assert_eq!(world.leasable(id), ["a"]);
    world.lease(id, "a");
}
