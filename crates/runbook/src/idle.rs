//! Modifiers that have no effect on a step's kind: `windlass check` warns of them.
//!
//! Modifiers that are always a mistake are refused when the file is read. These are only warned of, because deployed
//! runbooks have them.

use windlass_core::runbook::{Kind, Runbook, StepDef};

/// The warnings, in the order of the runbook.
#[must_use]
pub fn modifiers(runbook: &Runbook) -> Vec<String> {
    let mut out = Vec::new();
    for (pipeline, def) in &runbook.pipelines {
        for node in &def.nodes {
            out.extend(of(node).map(|(key, why)| {
                let kind = node.kind.tool();
                format!("pipeline `{pipeline}`, step `{}`: `{key}` does nothing for `{kind}`: {why}", node.id)
            }));
        }
    }
    out
}

fn of(node: &StepDef) -> impl Iterator<Item = (&'static str, &'static str)> {
    let acts = matches!(node.kind, Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. });
    let waits = matches!(node.kind, Kind::Wait { .. } | Kind::Approve { .. });
    let rules = [
        ("risk", !acts && node.risk.is_some(), "policy is asked about commands, tools and agents"),
        ("outputs", waits && !node.outputs.is_empty(), "what comes of it is not checked"),
        ("guard.after", waits && !node.after.is_empty(), "only what acts is looked at afterwards"),
    ];
    rules.into_iter().filter_map(|(key, idle, why)| idle.then_some((key, why)))
}

#[cfg(test)]
mod tests {
    use super::modifiers;
    use crate::{Described, parse};

    fn told(steps: &str) -> Vec<String> {
        let text = format!("name: t\npipelines: {{ p: {{ steps: [ {steps} ] }} }}\n");
        let loaded =
            parse("t.yaml", &text, &(), &Described::NONE).unwrap_or_else(|problems| panic!("{problems}"));
        modifiers(&loaded.runbook)
    }

    #[test]
    fn what_does_nothing_is_told_and_what_does_something_is_not() {
        assert_eq!(told("{ id: a, run: x, risk: high, outputs: { n: integer } }"), [""; 0]);
        let group = told("{ id: g, steps: [ { run: x } ], risk: high }");
        assert_eq!(group.len(), 1, "{group:?}");
        assert!(group[0].starts_with("pipeline `p`, step `g`: `risk` does nothing for `steps`"));
        let wait = told("{ id: w, wait: 1s, risk: high, outputs: { n: integer } }");
        assert_eq!(wait.len(), 2, "{wait:?}");
        assert!(wait[1].ends_with("what comes of it is not checked"), "{wait:?}");
    }
}
