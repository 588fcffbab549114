//! The table, and the rules of a step that a table does not say: fences, gates, losses.

use super::*;
use crate::run::Section;
use crate::schedule::Overlap;
use crate::testing::{Proof, name};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

const RUN: RunId = RunId(1);
const AT: Millis = Millis(1_000);

fn advanced() -> PipelineAdvanced {
    PipelineAdvanced {
        id: RUN,
        step: name("s"),
        node: 0,
        parent: None,
        section: None,
        tool: name("shell"),
        item: None,
        compensates: None,
        group: None,
        gates: None,
        key: None,
        action_hash: None,
        max_attempts: Some(3),
        semantics: None,
        input: None,
        bindings: None,
        bound: None,
        edition: None,
    }
}

fn prepare(changed: bool) -> Input {
    Input::Prepare(Box::new(StepPrepared {
        pipeline_id: RUN,
        step: name("s"),
        edition: 1,
        changed,
        group: None,
        gates: None,
        key: None,
        action_hash: None,
        input: None,
        bindings: None,
        bound: None,
    }))
}

fn skipped() -> StepSkipped {
    StepSkipped {
        pipeline_id: RUN,
        step: name("s"),
        node: 0,
        parent: None,
        section: None,
        reason: Skip::When,
        tool: name("shell"),
        item: None,
    }
}

fn pending() -> Step {
    Step::pending(name("s"), 0, name("shell"))
}

fn lease() -> Input {
    Input::Lease {
        owner: Some(name("ex1")),
        ttl: Span::secs(30),
        timeout: Some(Span::secs(60)),
        agent: None,
        child: None,
    }
}

fn wait(reason: Wait) -> Input {
    Input::Wait { reason, on: Some(name("x")), key: None, until: Some(Millis(9_000)), output: None }
}

fn open(after: Wait) -> Input {
    Input::Open { after, on: None, epoch: None }
}

fn succeed(epoch: u64) -> Input {
    Input::Succeed { epoch, output: None, reused_from: None }
}

fn fail(epoch: u64, retry_at: Option<u64>) -> Input {
    Input::Fail { epoch, failure: Failure::new(Code::StepFailed, "no"), retry_at: retry_at.map(Millis) }
}

fn lose(epoch: u64) -> Input {
    Input::Lose { epoch, last_seen: Some(Millis(900)), again: false }
}

fn resolve(epoch: u64, resolution: Resolution) -> Input {
    Input::Resolve { epoch, resolution, probed: false, output: None, reason: None }
}

fn cancel() -> Input {
    Input::Cancel { reason: None }
}

/// Decides and applies.
fn feed(step: &Step, input: &Input) -> Result<Step, Error> {
    let decision = step.decide(RUN, input, AT)?;
    Ok(decision.facts.iter().fold(step.clone(), |step, fact| step.apply(fact, AT)))
}

fn after(inputs: &[Input]) -> Step {
    inputs.iter().fold(pending(), |step, input| feed(&step, input).unwrap())
}

fn reach_with(change: impl FnOnce(&mut PipelineAdvanced)) -> Input {
    let mut advanced = advanced();
    change(&mut advanced);
    Input::Reach(Box::new(advanced))
}

fn reach() -> Input {
    reach_with(|_| {})
}

fn running_with(semantics: Option<Semantics>) -> Step {
    after(&[reach_with(|e| e.semantics = semantics), lease()])
}

fn unknown() -> Step {
    feed(&running_with(Some(Semantics::AtMostOnce)), &lose(1)).unwrap()
}

/// A step that has lost its executor as often as it may.
fn worn_out(semantics: Option<Semantics>) -> Step {
    let mut step = running_with(semantics);
    while step.losses + 1 < LOSSES_MAX {
        let epoch = step.epoch;
        step = feed(&feed(&step, &lose(epoch)).unwrap(), &lease()).unwrap();
    }
    step
}

/// One gate left to pass, so no lease may be had.
fn gated() -> Step {
    let gate = Gate::Lock { name: name("x"), overlap: Overlap::Queue };
    after(&[reach_with(|e| e.gates = Some(vec![gate]))])
}

fn states() -> Vec<(&'static str, Step)> {
    let all = [None, Some(Semantics::Idempotent), Some(Semantics::AtMostOnce), Some(Semantics::Reconcile)];
    let mut states = vec![
        ("pending", pending()),
        ("ready", after(&[reach()])),
        ("ready", gated()),
        ("running", worn_out(None)),
        ("running", worn_out(Some(Semantics::Idempotent))),
        ("waiting_approval", after(&[reach(), wait(Wait::Approval)])),
        ("waiting_approval", after(&[reach(), wait(Wait::Budget)])),
        ("waiting_approval", after(&[reach(), lease(), wait(Wait::Escalation)])),
        ("waiting_external", after(&[reach(), wait(Wait::Policy)])),
        ("waiting_external", after(&[reach(), wait(Wait::Event)])),
        ("waiting_external", after(&[reach(), lease(), wait(Wait::GuardAfter)])),
        ("waiting_external", feed(&gated(), &wait(Wait::Lock)).unwrap()),
        ("failed_retryable", after(&[reach(), lease(), fail(1, Some(5_000))])),
        ("outcome_unknown", unknown()),
        ("outcome_unknown", feed(&running_with(Some(Semantics::Reconcile)), &lose(1)).unwrap()),
        ("succeeded", after(&[reach(), lease(), succeed(1)])),
        ("skipped", after(&[Input::Skip(Box::new(skipped()))])),
        ("failed", after(&[reach(), lease(), fail(1, None)])),
        ("cancelled", after(&[reach(), cancel()])),
    ];
    states.extend(all.into_iter().map(|semantics| ("running", running_with(semantics))));
    states
}

/// An input of every name, for a step at this epoch.
fn inputs(epoch: u64) -> Vec<(&'static str, Input)> {
    let list = vec![
        reach(),
        prepare(true),
        prepare(false),
        Input::Skip(Box::new(skipped())),
        lease(),
        wait(Wait::Approval),
        wait(Wait::Lock),
        open(Wait::Backoff),
        succeed(epoch),
        fail(epoch, None),
        fail(epoch, Some(5_000)),
        Input::Return { epoch, reason: None },
        lose(epoch),
        resolve(epoch, Resolution::Done),
        resolve(epoch, Resolution::Retry),
        resolve(epoch, Resolution::Fail),
        cancel(),
    ];
    list.into_iter().map(|input| (input.name(), input)).collect()
}

/// The input as it comes from whoever has the step's present epoch.
fn at_epoch(input: &Input, epoch: u64) -> Input {
    let same = |candidate: &(&str, Input)| candidate.0 == input.name();
    inputs(epoch).into_iter().find(same).map(|(_, input)| input).unwrap()
}

#[test]
fn the_table_is_what_happens() {
    Proof {
        name: "step",
        about: "One executable unit of a run, or a group of them. `wait_approval` waits for a human, \
                `wait_external` for anything else; `lose` is a lease that ran out.",
        table: TABLE,
        states: states(),
        inputs: inputs(1),
    }
    .check(|step, input| {
        let input = at_epoch(input, step.epoch);
        let next = feed(step, &input).map_err(|error| error.code())?;
        assert!(next.epoch >= step.epoch && next.attempt >= step.attempt, "a fence went back");
        assert_eq!(next.status.is_terminal(), next.completed_at.is_some(), "{}", next.status);
        let attempted = matches!(next.status, Status::Running | Status::OutcomeUnknown);
        assert_eq!(attempted, next.lease.is_some(), "{}", next.status);
        Ok(next.state_name())
    });
}

#[test]
fn samples_bear_the_names_of_their_states() {
    for (state, step) in states() {
        assert_eq!(step.state_name(), state);
    }
}

#[test]
fn what_the_table_has_not_is_refused_with_its_code() {
    for (from, step) in states() {
        for (input_name, input) in inputs(step.epoch) {
            let Err(error) = feed(&step, &input) else { continue };
            let on_table = TABLE.iter().any(|row| row.from == from && row.input == input_name);
            let code =
                if step.status.is_terminal() { Code::RunTerminalState } else { Code::RunInvalidTransition };
            assert_eq!(error.code(), code, "{from} + {input_name}");
            // A gate is the only thing that keeps a row from happening.
            assert!(!on_table || matches!(error, Error::GateClosed { .. }), "{from} + {input_name}: {error}");
        }
    }
}

#[test]
fn the_table_is_the_one_of_the_design() {
    // The design's table. One addition: a step that stands before a lock whose `overlap` is skip is skipped from there.
    let design: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("pending", &["ready", "skipped", "cancelled"][..]),
        ("ready", &["running", "waiting_approval", "waiting_external", "cancelled"]),
        (
            "running",
            &[
                "succeeded",
                "failed",
                "failed_retryable",
                "waiting_approval",
                "waiting_external",
                "outcome_unknown",
                "ready",
                "cancelled",
            ],
        ),
        ("waiting_approval", &["ready", "failed", "cancelled"]),
        ("waiting_external", &["ready", "succeeded", "failed", "cancelled", "skipped"]),
        ("failed_retryable", &["ready", "failed", "cancelled"]),
        ("outcome_unknown", &["succeeded", "ready", "failed", "cancelled"]),
    ]);
    let mut table: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // What is prepared anew and stays where it is makes no way.
    for row in TABLE.iter().filter(|row| row.to != [row.from]) {
        table.entry(row.from).or_default().extend(row.to);
    }
    let design: BTreeMap<&str, BTreeSet<&str>> =
        design.into_iter().map(|(from, to)| (from, to.iter().copied().collect())).collect();
    assert_eq!(table, design);
}

#[test]
fn a_report_under_another_epoch_changes_nothing_in_any_state() {
    for (state, step) in states() {
        for epoch in [step.epoch - 1, step.epoch + 1] {
            let reports = inputs(epoch).into_iter().filter(|(_, input)| match input {
                Input::Succeed { .. }
                | Input::Fail { .. }
                | Input::Return { .. }
                | Input::Lose { .. }
                | Input::Resolve { .. } => true,
                Input::Reach(_)
                | Input::Prepare(_)
                | Input::Skip(_)
                | Input::Lease { .. }
                | Input::Wait { .. }
                | Input::Open { .. }
                | Input::Cancel { .. } => false,
            });
            for (input_name, input) in reports {
                let code = feed(&step, &input).unwrap_err().code();
                assert_eq!(code, Code::LeaseStaleEpoch, "{state} + {input_name}");
            }
        }
    }
}

#[test]
fn a_lease_that_ends_without_an_outcome_raises_epoch_and_attempt() {
    let running = running_with(None);
    for input in [lose(1), Input::Return { epoch: 1, reason: None }, fail(1, Some(5_000))] {
        let next = feed(&running, &input).unwrap();
        assert_eq!((next.epoch, next.attempt), (2, 2), "{}", input.name());
    }
}

#[test]
fn a_lost_outside_write_is_never_run_again_by_itself() {
    for semantics in [Semantics::AtMostOnce, Semantics::Reconcile] {
        let lost = feed(&running_with(Some(semantics)), &lose(1)).unwrap();
        assert_eq!(lost.status, Status::OutcomeUnknown);
        assert_eq!(feed(&lost, &lease()).unwrap_err().code(), Code::RunInvalidTransition);
        assert_eq!(lost.waiting.unwrap().on.is_some(), semantics == Semantics::Reconcile);
    }
}

#[test]
fn a_step_that_kills_every_executor_fails_in_the_end() {
    for semantics in [None, Some(Semantics::Idempotent)] {
        let step = worn_out(semantics);
        let ended = feed(&step, &lose(step.epoch)).unwrap();
        assert_eq!(ended.status, Status::Failed);
        assert_eq!(ended.error.unwrap().code, Code::RunOrphaned.name());
    }
}

#[test]
fn a_gate_that_is_not_passed_keeps_the_lease_away() {
    assert!(matches!(feed(&gated(), &lease()), Err(Error::GateClosed { .. })));
    let waiting = feed(&gated(), &wait(Wait::Lock)).unwrap();
    let passed = feed(&waiting, &open(Wait::Lock)).unwrap();
    assert_eq!(passed.held().len(), 1);
    assert_eq!(feed(&passed, &lease()).unwrap().status, Status::Running);
}

#[test]
fn a_step_that_waits_for_a_human_has_its_gates_to_pass_again() {
    let waiting = feed(&gated(), &wait(Wait::Lock)).unwrap();
    let held = feed(&waiting, &open(Wait::Lock)).unwrap();
    let asked = feed(&held, &wait(Wait::Approval)).unwrap();
    assert!(asked.held().is_empty());
}

#[test]
fn a_step_of_a_section_says_so() {
    let step = after(&[reach_with(|e| e.section = Some(Section::Finally))]);
    assert_eq!(step.section, Section::Finally);
}
