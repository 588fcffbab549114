//! How long a decision takes with 50 rules: one that is allowed, one that is denied, one that asks humans, and a load of
//! the folder.
//!
//! `cargo bench -p windlass --bench policy`

#![allow(clippy::unwrap_used)] // A benchmark has nobody to hand an error to.

use divan::{Bencher, black_box};
use serde_json::json;
use windlass_core::budget::Amount;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId};
use windlass_core::policy::{Risk, Verdict};
use windlass_core::receipt::Action;
use windlass_core::run::Source as Trigger;
use windlass_core::time::Millis;
use windlass_runbook::problem::Source;
use windlass_server::policy::{About, Question, Rules};

fn main() {
    divan::main();
}

/// Rules as a team has them: who may do what where, what is forbidden when, and what needs two people.
fn sources(rules: usize) -> Vec<Source> {
    let mut text = String::new();
    for n in 0..rules {
        text.push_str(&match n % 5 {
            0 => format!("permit (principal == Windlass::User::\"user-{n}\", action in Windlass::Action::\"github\", resource) when {{ context.fields.repo like \"acme/*\" }};\n"),
            1 => format!("permit (principal, action == Windlass::Action::\"servicenow.update\", resource) when {{ context.pipeline == \"pipeline-{n}\" && context.fields.table == \"incident\" }};\n"),
            2 => format!("@reason(\"frozen\") forbid (principal, action in Windlass::Action::\"write\", resource) when {{ context.namespace == \"frozen-{n}\" && context.time.hour >= 18 }};\n"),
            3 => format!("@reason(\"closed\") forbid (principal, action == Windlass::Action::\"servicenow.update\", resource) when {{ resource.hasTag(\"fields.state\") && resource.getTag(\"fields.state\") == \"closed-{n}\" }};\n"),
            _ => format!("@approval(\"tier: high, approvers: sre, two_person\") forbid (principal, action in Windlass::Action::\"write\", resource) when {{ context.risk == \"high\" && context.runbook == \"book-{n}\" }} unless {{ context.approvals >= 2 }};\n"),
        });
    }
    vec![Source { name: "a.cedar".into(), text }]
}

fn question(pipeline: &str, state: &str, runbook: &str, risk: Risk) -> Question {
    let name = |text: &str| Name::new(text).unwrap();
    let fields = json!({ "table": "incident", "sys_id": "0123456789abcdef", "fields": { "state": state, "close_notes": "The disk was full; logs were rotated." } });
    let action =
        Action::new(name("servicenow.update"), name("update"), name("incident/0123"), fields, risk).unwrap();
    Question {
        purpose: None,
        run: RunId(1),
        step: Some(name("resolve")),
        tool: name("servicenow.update"),
        action_hash: Some(action.hash()),
        action: Some(action),
        writes: true,
        agreed: Vec::new(),
        about: About {
            tenant: name("acme"),
            namespace: name("default"),
            pipeline: name(pipeline),
            undoes: Vec::new(),
            runbook: name(runbook),
            runbook_hash: Digest([3; 32]),
            source: Trigger::Webhook,
            requester: Some(name("ann")),
            parent: None,
            at: Millis(1_763_380_800_000),
            spent: Amount::default(),
        },
    }
}

fn bench(bencher: Bencher<'_, '_>, verdict: Verdict, question: &Question) {
    let rules = Rules::of(sources(50)).unwrap();
    assert_eq!(rules.decide(question).verdict, verdict);
    bencher.bench_local(|| black_box(&rules).decide(black_box(question)));
}

#[divan::bench]
fn allow_50(bencher: Bencher<'_, '_>) {
    bench(bencher, Verdict::Allow, &question("pipeline-1", "resolved", "triage", Risk::Medium));
}

#[divan::bench]
fn deny_50(bencher: Bencher<'_, '_>) {
    bench(bencher, Verdict::Deny, &question("pipeline-1", "closed-3", "triage", Risk::Medium));
}

#[divan::bench]
fn needs_approval_50(bencher: Bencher<'_, '_>) {
    bench(bencher, Verdict::NeedsApproval, &question("pipeline-1", "resolved", "book-4", Risk::High));
}

#[divan::bench]
fn load_50(bencher: Bencher<'_, '_>) {
    bencher.with_inputs(|| sources(50)).bench_local_values(|sources| Rules::of(sources).unwrap());
}
