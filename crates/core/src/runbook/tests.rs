//! What makes a definition hold together.

use super::*;
use crate::testing::name;
use serde_json::json;

fn pipeline(kind: &Kind) -> Pipeline {
    let step = json!({ "id": "a", "kind": kind });
    let nodes = alloc::vec![serde_json::from_value(step).unwrap()];
    Pipeline { nodes, steps: alloc::vec![0], ..Pipeline::default() }
}

#[test]
fn what_would_be_ignored_is_refused() {
    let plain = pipeline(&Kind::Run { command: "true".into() });
    assert_eq!(plain.validate(&name("p")), Ok(()));
    let asks = pipeline(&Kind::Approve {
        message: Template::Literal(json!("go?")),
        approvers: Vec::new(),
        count: 1,
        tier: Tier::Low,
        expires: Span::hours(1),
        steps: alloc::vec![name("deploy")],
    });
    assert!(matches!(asks.validate(&name("p")), Err(Error::Missing(..))));
}

#[test]
fn a_step_has_one_name_and_one_place() {
    let mut twice = pipeline(&Kind::Run { command: "true".into() });
    twice.nodes.push(twice.nodes[0].clone());
    twice.steps.push(1);
    assert_eq!(twice.validate(&name("p")), Err(Error::Duplicate(name("p"), name("a"))));
    let mut lost = pipeline(&Kind::Run { command: "true".into() });
    lost.nodes.push(StepDef { id: name("b"), ..lost.nodes[0].clone() });
    assert_eq!(lost.validate(&name("p")), Err(Error::Place(name("p"), name("b"))));
    let knot = pipeline(&Kind::Steps { steps: alloc::vec![0] });
    assert_eq!(knot.validate(&name("p")), Err(Error::Member(name("p"), name("a"))));
}
