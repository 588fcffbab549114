//! What is done by somebody's word, and not by a report, has what its step declares: later steps and compensations need it.

use crate::world::*;
use serde_json::json;
use windlass_core::code::Code;
use windlass_core::id::NoticeId;
use windlass_core::policy::Verdict;
use windlass_core::runbook::{StepDef, ValueType};
use windlass_core::step::{Resolution, Status as S};
use windlass_core::task::{Input as Task, SignalKind};
use windlass_core::turn::command::Command;

fn declares(def: &mut StepDef) {
    def.outputs.insert(name("ref"), ValueType::String);
}

#[test]
fn what_is_resolved_as_done_has_the_outputs_that_its_step_declares() {
    let mut world = World::new(main_book(vec![write("w").with(declares), run("z")]));
    let id = world.start();
    world.decide_policy(id, "w", Verdict::Allow);
    world.lease(id, "w");
    let early = world.resolve(id, "w", Resolution::Done, Some(json!({ "ref": "r" })));
    assert_eq!(early.unwrap_err().code(), Some(Code::RunInvalidTransition), "it may still be at it");
    world.lose(id, "w");
    for output in [None, Some(json!({})), Some(json!({ "ref": 7 })), Some(json!("ref"))] {
        let refused = world.resolve(id, "w", Resolution::Done, output.clone());
        assert_eq!(refused.unwrap_err().code(), Some(Code::InvalidInput), "{output:?}");
        // What a read of the other side found is no better.
        let (probed, reason) = (true, None);
        let resolution = Resolution::Done;
        let found = Command::Resolve { run: id, step: name("w"), resolution, probed, reason, output };
        assert_eq!(world.send(&found).unwrap_err().code(), Some(Code::InvalidInput));
    }
    assert_eq!(world.step_status(id, "w"), S::OutcomeUnknown);
    world.resolve(id, "w", Resolution::Done, Some(json!({ "ref": "r" }))).unwrap();
    assert_eq!((world.step_status(id, "w"), world.output(id, "w")), (S::Succeeded, json!({ "ref": "r" })));
    world.check_replay();
}

#[test]
fn an_agent_that_ends_after_a_human_was_called_has_them_too() {
    for human in [false, true] {
        let mut world = World::new(with_coder(main_book(vec![agent("a").with(declares), run("z")])));
        let id = world.start();
        world.decide_policy(id, "a", Verdict::Allow);
        world.start_agent(id, "a");
        let signal = |kind| Task::Signal { epoch: 1, kind, message: None, notice: NoticeId(9) };
        world.task(id, "a", signal(SignalKind::Escalate)).unwrap();
        if human {
            let refused = world.resolve(id, "a", Resolution::Done, None);
            assert_eq!(refused.unwrap_err().code(), Some(Code::InvalidInput));
            world.resolve(id, "a", Resolution::Done, Some(json!({ "ref": "r" }))).unwrap();
            assert_eq!(world.step_status(id, "a"), S::Succeeded);
        } else {
            world.task(id, "a", signal(SignalKind::Complete)).unwrap();
            assert_eq!(world.step_status(id, "a"), S::Failed);
            assert!(world.error(id, "a").contains("the output `ref` is missing"), "{}", world.error(id, "a"));
        }
        world.check_replay();
    }
}
