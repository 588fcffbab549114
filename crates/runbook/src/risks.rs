//! Risks: an `approve` step is as risky as the riskiest step that it is for.
//!
//! Its tier says where people may decide on it, so a step must not be approved in its name where it could not be by itself.
//! Members of a group count, and so do the steps of a pipeline that is called.

use windlass_core::approval::Tier;
use windlass_core::id::Name;
use windlass_core::policy::Risk;
use windlass_core::runbook::{CALLS_MAX, Kind, Node, Pipeline, Runbook};

/// Raises the risk of every `approve` step that names others.
pub(crate) fn raise(runbook: &mut Runbook) {
    let mut raised = Vec::new();
    for (name, pipeline) in runbook.pipelines.iter() {
        for (place, node) in pipeline.nodes.iter().enumerate() {
            let Kind::Approve { steps, .. } = &node.kind else { continue };
            let named = (0..).zip(&pipeline.nodes).filter(|(_, node)| steps.contains(&node.id));
            let risk = named.map(|(place, _)| of(runbook, pipeline, place, 0)).max();
            raised.extend(risk.map(|risk| (name.clone(), place, risk)));
        }
    }
    for (name, place, risk) in raised {
        let node = runbook.pipelines.get_mut(&name).and_then(|pipeline| pipeline.nodes.get_mut(place));
        let Some(node) = node else { continue };
        let risk = node.risk.map_or(risk, |own| own.max(risk));
        node.risk = Some(risk).filter(|risk| *risk > Risk::Low).or(node.risk);
        if let Kind::Approve { tier, .. } = &mut node.kind {
            *tier = (*tier).max(Tier::from(risk));
        }
    }
}

fn of(runbook: &Runbook, pipeline: &Pipeline, place: Node, depth: u32) -> Risk {
    let Some(node) = pipeline.node(place) else { return Risk::Low };
    let own = node.risk.unwrap_or(Risk::Low);
    let kind = match &node.kind {
        Kind::Tool { risk, .. } => *risk,
        Kind::Call { pipeline, .. } => called(runbook, pipeline, depth),
        Kind::Run { .. }
        | Kind::Agent { .. }
        | Kind::Parallel { .. }
        | Kind::Steps { .. }
        | Kind::Strategy { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => Risk::Low,
    };
    let members = node.kind.members().into_iter().map(|member| of(runbook, pipeline, member, depth));
    members.chain([own, kind]).max().unwrap_or(Risk::Low)
}

fn called(runbook: &Runbook, name: &Name, depth: u32) -> Risk {
    // Chains of calls are bounded, and `check` refuses cycles.
    let Some(pipeline) = runbook.pipelines.get(name).filter(|_| depth < CALLS_MAX) else { return Risk::Low };
    (0..pipeline.nodes.len() as Node)
        .map(|place| of(runbook, pipeline, place, depth + 1))
        .max()
        .unwrap_or(Risk::Low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_is_as_risky_as_the_riskiest_of_what_it_is_for() {
        let text = "
name: r
pipelines:
  p:
    steps:
      - { id: plain, approve: { message: m } }
      - { id: one, approve: { message: m, for: [low, high] } }
      - { id: called, approve: { message: m, for: [child] } }
      - { id: own, risk: high, approve: { message: m, for: [low] } }
      - { id: low, run: 'true' }
      - { id: high, run: 'true', risk: high }
      - { id: child, call: q }
  q:
    steps:
      - { id: deep, run: 'true', risk: high }
";
        let loaded = crate::parse("r.yaml", text, &(), &crate::Described::NONE)
            .unwrap_or_else(|problems| panic!("{problems}"));
        let p = &loaded.runbook.pipelines["p"];
        let of = |id: &str| {
            let node = p.nodes.iter().find(|node| node.id.as_str() == id).unwrap();
            let Kind::Approve { tier, .. } = &node.kind else { panic!("{id}") };
            (*tier, node.risk.unwrap_or(Risk::Low))
        };
        assert_eq!(of("plain"), (Tier::Low, Risk::Low));
        assert_eq!(of("one"), (Tier::High, Risk::High));
        assert_eq!(of("called"), (Tier::High, Risk::High));
        assert_eq!(of("own"), (Tier::High, Risk::High));
    }
}
