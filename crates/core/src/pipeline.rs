//! The flow: how a run moves through its pipeline.
//!
//! [`advance`] looks at what changed and says what follows: the next step of a sequence is reached, a group
//! opens another member or ends, a section is over and the next one begins. It makes one move and is asked
//! again, in the same turn, until it has nothing more to say. It looks only at steps that want attention, so
//! a move costs no more in a run of a thousand steps than in one of three.
//!
//! ```text
//! main ──ok──────────────────────────────▶ finally ──▶ completed
//!   ├─failed──▶ on_failure ──▶ compensate ──▶ finally ──▶ failed
//!   └─cancelled──────────────▶ compensate ──▶ finally ──▶ cancelled
//! ```

use crate::attempt;
use crate::binding;
use crate::code::Code;
use crate::effect::Effect;
use crate::event::{
    PipelineAdvanced, PipelineCancelled, PipelineCompleted, PipelineEntered, PipelineFailed, StepSkipped,
};
use crate::gate;
use crate::id::{Name, RunId, StepId};
use crate::items;
use crate::machine::{Decision, Given};
use crate::private::Private;
use crate::run::{Run, Section};
use crate::runbook::{Compensate, ITEMS_MAX, Kind, Node, Pipeline, StepDef, WaitFor};
use crate::scope;
use crate::step::{self, FailFast, Failure, Gate, GroupKind, Shape, Skip, Status, Step, Wait};
use crate::strategy;
use crate::time::Span;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use serde_json::Value;

/// What the engine itself carries out bears this name as its lease's owner.
pub const OWN: &str = "windlass";

/// One move of the flow. Nothing to do is an empty decision.
pub fn advance(run: &Run, def: &Pipeline, given: &mut Given<'_>) -> Decision {
    if run.is_terminal() || run.started_at.is_none() {
        return Decision::new();
    }
    if run.stops(run.section) {
        let stopped = stop(run, given);
        if !stopped.facts.is_empty() {
            return stopped;
        }
    } else if run.suspended {
        return Decision::new();
    }
    let mut effects = Vec::new();
    for place in run.flow().iter() {
        let Some(step) = run.at(place) else { continue };
        let moved = match step.status {
            // Nothing opens in a group that is being stopped.
            Status::Ready | Status::Running if halted(run, step, given) => {
                let mut out = Decision::new();
                if step.group.is_none_or(|group| group.open == 0) {
                    wind_up(run, step, given, &mut out);
                }
                out
            }
            Status::Ready => ready(run, def, step, given),
            // What is being stopped opens nothing new; `stop` above ends it.
            Status::Running if !run.stops(step.section) => group(run, def, place, step, given),
            Status::Running
            | Status::Pending
            | Status::WaitingApproval
            | Status::WaitingExternal
            | Status::FailedRetryable
            | Status::OutcomeUnknown
            | Status::Succeeded
            | Status::Skipped
            | Status::Failed
            | Status::Cancelled => Decision::new(),
        };
        effects.extend(moved.effects);
        if !moved.facts.is_empty() {
            return Decision { facts: moved.facts, effects, reply: () };
        }
    }
    let moved = root(run, def, given);
    effects.extend(moved.effects);
    Decision { facts: moved.facts, effects, reply: () }
}

/// Ends what a cancelled run need not wait for. Executors are told to stop by the command that cancels; what they
/// still report, counts.
fn stop(run: &Run, given: &mut Given<'_>) -> Decision {
    let mut out = Decision::new();
    for step in run.live() {
        let under_way = match step.group {
            Some(group) => group.open > 0,
            None => matches!(step.status, Status::Running | Status::OutcomeUnknown),
        };
        if !under_way {
            wind_up(run, step, given, &mut out);
        }
    }
    out
}

/// Ends a step that nobody carries out at the moment. One that is done but for its guards after has had its effect:
/// it counts, so that it can be compensated.
fn wind_up(run: &Run, step: &Step, given: &Given<'_>, out: &mut Decision) {
    let done = step.waiting.as_ref().is_some_and(|w| w.reason == Wait::GuardAfter);
    let input = if done {
        step::Input::Succeed { epoch: step.epoch, output: None, reused_from: None }
    } else {
        step::Input::Cancel { reason: None }
    };
    end(run, step, input, given, out);
}

/// Feeds an input that ends a step, and gives back what the step holds.
#[allow(clippy::needless_pass_by_value)] // Each input is made for this one call.
pub(crate) fn end(run: &Run, step: &Step, input: step::Input, given: &Given<'_>, out: &mut Decision) {
    // The callers ask only for what the step's table has; were one wrong, nothing would be recorded.
    if let Ok(decision) = step.decide(run.id(), &input, given.at) {
        out.facts.extend(decision.facts);
        gate::leave(run, step, given, out);
    }
}

/// A ready step: gates first, then what the engine itself carries out.
fn ready(run: &Run, def: &Pipeline, step: &Step, given: &mut Given<'_>) -> Decision {
    let Some(node) = def.node(step.node) else {
        return refuse(run, step, Code::Internal, "its definition is not there", given);
    };
    if let Some(gated) = gate::pass(run, def, node, step, given) {
        return gated;
    }
    if step.group.is_some() {
        // The time-out of a `foreach` is that of each item.
        let timeout = node.timeout.filter(|_| !is_foreach(node, step));
        return start(run, step, None, None, timeout, given);
    }
    match &node.kind {
        Kind::Call { pipeline, .. } => call(run, node, step, pipeline, given),
        Kind::Approve { .. } => carry_out(run, step, None, given),
        Kind::Wait { wait } => wait_for(run, step, wait, given),
        // An executor leases these.
        Kind::Run { .. } | Kind::Tool { .. } | Kind::Agent { .. } => Decision::new(),
        // Groups were started above.
        Kind::Parallel { .. } | Kind::Steps { .. } | Kind::Strategy { .. } => Decision::new(),
    }
}

fn start(
    run: &Run,
    step: &Step,
    owner: Option<Name>,
    child: Option<RunId>,
    timeout: Option<Span>,
    given: &Given<'_>,
) -> Decision {
    let input = step::Input::Lease { owner, ttl: Span::ZERO, timeout, agent: None, child };
    step.decide(run.id(), &input, given.at).unwrap_or_default()
}

/// What the engine does itself begins and ends in one commit.
fn carry_out(run: &Run, step: &Step, output: Option<Value>, given: &Given<'_>) -> Decision {
    let mut out = start(run, step, Some(Name::clean(OWN)), None, None, given);
    let started = out.facts.iter().fold(step.clone(), |step, fact| step.apply(fact, given.at));
    let input = step::Input::Succeed { epoch: started.epoch, output, reused_from: None };
    end(run, &started, input, given, &mut out);
    out
}

/// A step that cannot be carried out at all begins and fails in one commit. It does nothing, so the gates that it has not
/// passed do not keep it; what it holds goes back.
pub(crate) fn refuse(run: &Run, step: &Step, code: Code, message: &str, given: &Given<'_>) -> Decision {
    let mut open = step.clone();
    open.gates = Box::default();
    let mut out = start(run, &open, Some(Name::clean(OWN)), None, None, given);
    let started = out.facts.iter().fold(open, |step, fact| step.apply(fact, given.at));
    let failure = Failure::new(code, message);
    end(run, &started, step::Input::Fail { epoch: started.epoch, failure, retry_at: None }, given, &mut out);
    out.effects.extend(gate::release(run, step));
    out
}

fn call(run: &Run, node: &StepDef, step: &Step, pipeline: &Name, given: &mut Given<'_>) -> Decision {
    if run.born.depth + 1 > crate::runbook::CALLS_MAX {
        return refuse(run, step, Code::RunbookInvalid, "runs call each other too deeply", given);
    }
    let child = RunId(given.id());
    let vars = step.input().unwrap_or(Value::Null);
    let timeout = attempt::timeout(node, step);
    let started = start(run, step, Some(Name::clean(OWN)), Some(child), timeout, given);
    started.effect(Effect::StartChild {
        run: child,
        parent: run.id(),
        step: step.id.clone(),
        pipeline: pipeline.clone(),
        vars,
    })
}

fn wait_for(run: &Run, step: &Step, wait: &WaitFor, given: &mut Given<'_>) -> Decision {
    let (reason, on, until) = match wait {
        WaitFor::Time { span } => (Wait::Timer, None, Some(given.at + *span)),
        WaitFor::Event { event, timeout, .. } => {
            let timeout = timeout.or_else(|| attempt::ending_max(step));
            (Wait::Event, Some(event.clone()), timeout.map(|span| given.at + span))
        }
    };
    let input = step::Input::Wait { reason, on: on.clone(), key: step.key.clone(), until, output: None };
    let mut out = step.decide(run.id(), &input, given.at).unwrap_or_default();
    let waiting = out.facts.iter().fold(step.clone(), |step, fact| step.apply(fact, given.at));
    // An event that came early is taken at once, and only once.
    let early = on.and_then(|on| {
        let find = |key: Option<&Name>| {
            run.rare().signals.iter().find(|kept| kept.name == on && kept.key.as_ref() == key)
        };
        // What was sent to the run without a key is for any wait of it.
        find(step.key.as_ref()).or_else(|| find(None))
    });
    if let Some(kept) = early {
        out = out.fact(crate::event::SignalConsumed {
            pipeline_id: run.id(),
            step: step.id.clone(),
            name: kept.name.clone(),
            key: kept.key.clone(),
        });
        let output = Some(kept.data.clone());
        end(
            run,
            &waiting,
            step::Input::Succeed { epoch: waiting.epoch, output, reused_from: None },
            given,
            &mut out,
        );
    }
    out
}

/// A running group: stop the others, end it, or open another member.
fn group(run: &Run, def: &Pipeline, place: u32, step: &Step, given: &mut Given<'_>) -> Decision {
    let (Some(group), Some(node)) = (step.group, def.node(step.node)) else { return Decision::new() };
    let overdue = overdue(step, given);
    if stopping(step, given) && group.open > 0 {
        return kill_members(run, place, given);
    }
    if overdue {
        let failure = Failure::new(Code::TimedOut, "the group took longer than its `timeout`");
        return close(run, place, step, Some(failure), node, given);
    }
    if group.open == 0 && group.shape.kind == GroupKind::Strategy && group.next > 0 {
        return strategy::flow::next(run, def, place, step, node, given);
    }
    if group.may_open() {
        return open(run, def, Some(place), member(node, step, group.next), group.next, given);
    }
    if group.open > 0 {
        return Decision::new();
    }
    let failed = group.failed > 0;
    let failures = scope::members(run, place).filter(|s| s.status == Status::Failed);
    // The first in time: what came after it may only follow from it.
    let first = failures.min_by_key(|s| s.ended);
    let failure = first.and_then(|s| s.error.as_deref().cloned());
    close(
        run,
        place,
        step,
        failed.then(|| failure.unwrap_or_else(|| Failure::new(Code::Cancelled, "a member was cancelled"))),
        node,
        given,
    )
}

/// A group's time is up: its members are stopped, and it fails when they are.
pub(crate) fn group_overdue(run: &Run, def: &Pipeline, step: &Step, given: &mut Given<'_>) -> Decision {
    run.place(&step.id).map_or_else(Decision::new, |place| group(run, def, place, step, given))
}

/// Whether a `wait` whose event did not come goes on all the same.
pub(crate) fn continues_on_timeout(def: &Pipeline, step: &Step) -> bool {
    def.node(step.node).is_some_and(|node| {
        matches!(&node.kind, Kind::Wait { wait: WaitFor::Event { continue_on_timeout: true, .. } })
    })
}

/// The definition of a group's member: a `foreach` repeats its own.
pub(crate) fn member(node: &StepDef, step: &Step, index: u32) -> Option<Node> {
    if is_foreach(node, step) {
        return Some(step.node);
    }
    node.kind.members().get(index as usize).copied()
}

/// Whether a step stands for all items of its `foreach`, rather than for one.
pub(crate) fn is_foreach(node: &StepDef, step: &Step) -> bool {
    node.foreach.is_some() && step.item.is_none()
}

/// Ends the members of a group that nobody carries out, then tells the executors of the others to stop. They are told
/// again whenever the flow comes by: a stop names its epoch, so a repeat does nothing.
pub(crate) fn kill_members(run: &Run, place: u32, given: &mut Given<'_>) -> Decision {
    let mut out = Decision::new();
    let leased = |step: &Step| step.status == Status::Running && step.group.is_none();
    for step in run.live().filter(|step| under(run, step, place) && !leased(step)) {
        if step.group.is_none_or(|group| group.open == 0) && step.status != Status::OutcomeUnknown {
            wind_up(run, step, given, &mut out);
        }
    }
    if out.facts.is_empty() {
        let under_way = run.live().filter(|step| under(run, step, place) && leased(step));
        out.effects.extend(under_way.map(|step| gate::stop(run, step)));
    }
    out
}

/// The groups around a step, from the inside out.
pub(crate) fn around<'a>(run: &'a Run, step: &Step) -> impl Iterator<Item = (u32, &'a Step)> {
    let group = |place: u32| Some((place, run.at(place)?));
    core::iter::successors(step.parent.and_then(group), move |(_, step)| step.parent.and_then(group))
}

/// Whether a step belongs to a group, at any depth.
fn under(run: &Run, step: &Step, place: u32) -> bool {
    around(run, step).any(|(around, _)| around == place)
}

fn overdue(step: &Step, given: &Given<'_>) -> bool {
    step.timeout_at.is_some_and(|timeout| timeout <= given.at)
}

/// Whether a group's members are stopped: its time is up, or one failed and it kills the others.
fn stopping(step: &Step, given: &Given<'_>) -> bool {
    let kills = |group: step::Group| group.failed > 0 && group.shape.fail_fast == FailFast::Kill;
    step.group.is_some_and(|group| kills(group) || overdue(step, given))
}

/// Whether a group around the step is being stopped.
pub(crate) fn halted(run: &Run, step: &Step, given: &Given<'_>) -> bool {
    around(run, step).any(|(_, group)| stopping(group, given))
}

/// Ends a group: with what its members gave, or with the failure, or with another try.
pub(crate) fn close(
    run: &Run,
    place: u32,
    step: &Step,
    failure: Option<Failure>,
    node: &StepDef,
    given: &mut Given<'_>,
) -> Decision {
    let epoch = step.epoch;
    let input = match failure {
        None => {
            // Every item of a `foreach` was held to what is declared; their list is not.
            let output = scope::group_output(run, place, step);
            if is_foreach(node, step) {
                Ok(step::Input::Succeed { epoch, output, reused_from: None })
            } else {
                attempt::done(run, node, step, epoch, output, given)
            }
        }
        Some(failure) => Ok(attempt::failing(run, node, step, epoch, failure, true, given)),
    };
    // The callers close what is running, which takes all of these; were one wrong, nothing would be recorded.
    input
        .map_err(crate::run::Error::from)
        .and_then(|input| attempt::settle(run, node, step, &input, Decision::new(), given))
        .unwrap_or_default()
}

/// The sequence of the section: open its next step, or go on to the next section.
fn root(run: &Run, def: &Pipeline, given: &mut Given<'_>) -> Decision {
    if run.root.open > 0 {
        return Decision::new();
    }
    if run.root.may_open() && !run.stops(run.section) {
        let next = run.root.next;
        return match run.section {
            Section::Main => open(run, def, None, def.steps.get(next as usize).copied(), next, given),
            Section::OnFailure => {
                open(run, def, None, def.on_failure.get(next as usize).copied(), next, given)
            }
            Section::Finally => open(run, def, None, def.finally.get(next as usize).copied(), next, given),
            Section::Compensate => match compensable(run, def).get(next as usize) {
                Some(&(step, node)) => open_compensation(run, def, step, node, given),
                None => next_section(run, def, given),
            },
        };
    }
    next_section(run, def, given)
}

/// What succeeded and can be taken back, latest first.
fn compensable<'a>(run: &'a Run, def: &Pipeline) -> Vec<(&'a Step, Node)> {
    let mut list: Vec<_> = run
        .steps
        .iter()
        .filter(|step| step.status == Status::Succeeded && step.section != Section::Compensate)
        .filter_map(|step| {
            let node = def.node(step.node)?;
            match node.compensate {
                Compensate::With(with) if !is_foreach(node, step) => Some((step, with)),
                Compensate::With(_) | Compensate::Exempt | Compensate::Undeclared => None,
            }
        })
        .collect();
    list.sort_unstable_by_key(|(step, _)| core::cmp::Reverse(step.ended));
    list
}

fn next_section(run: &Run, def: &Pipeline, given: &mut Given<'_>) -> Decision {
    let cancelled = run.stopping.is_some() && !run.overdue();
    let mut failure = first_failure(run);
    if failure.is_none() && !cancelled && run.section == Section::Main {
        // Outputs that cannot be made are a failure like any other, so they are tried before what follows on one.
        let broken = scope::outputs(run, def, given).err();
        failure = broken.map(|message| (None, Failure::new(Code::ExpressionFailed, message)));
    }
    let failed = failure.is_some();
    let order = [Section::Main, Section::OnFailure, Section::Compensate, Section::Finally];
    let passed = order.iter().position(|&section| section == run.section).unwrap_or(0);
    for &section in &order[passed + 1..] {
        let steps = match section {
            Section::Main => 0,
            Section::OnFailure if failed && !cancelled => def.on_failure.len(),
            Section::Compensate if failed || cancelled => compensable(run, def).len(),
            Section::OnFailure | Section::Compensate => 0,
            Section::Finally => def.finally.len(),
        };
        if steps > 0 {
            return enter(run, section, steps as u32, failure.filter(|_| !cancelled));
        }
    }
    finish(run, def, given)
}

fn first_failure(run: &Run) -> Option<(Option<StepId>, Failure)> {
    if let Some(failure) = &run.failure {
        return Some((**failure).clone());
    }
    if run.overdue() {
        return Some((None, Failure::new(Code::TimedOut, "the run's deadline passed")));
    }
    if run.root.failed == 0 {
        return None;
    }
    // The failure that ended the section is that of its own sequence's member; the cause may lie deeper, and its
    // text came up with it.
    let bad = |step: &&Step| {
        let own = step.parent.is_none() && step.section == run.section;
        own && matches!(step.status, Status::Failed | Status::Cancelled)
    };
    let step = run.steps.iter().find(bad);
    let failure = step.and_then(|step| step.error.as_deref().cloned());
    let failure = failure.unwrap_or_else(|| Failure::new(Code::Cancelled, "a step was cancelled"));
    Some((step.map(|step| step.id.clone()), failure))
}

fn enter(run: &Run, section: Section, steps: u32, failure: Option<(Option<StepId>, Failure)>) -> Decision {
    let (step, failure) = failure.map_or((None, None), |(step, failure)| (step, Some(failure)));
    Decision::new().fact(PipelineEntered {
        id: run.id(),
        section,
        steps,
        code: failure.as_ref().map(|f| f.code.clone()),
        step,
        error: failure.map(|f| Private::New(f.message)),
    })
}

/// The end of a run: everything it holds goes back.
fn finish(run: &Run, def: &Pipeline, given: &mut Given<'_>) -> Decision {
    let duration_ms = given.at.since(run.born.created_at).0;
    let ended = if run.stopping.is_some() && !run.overdue() {
        let compensated = run
            .steps
            .iter()
            .filter(|step| step.section == Section::Compensate && step.status == Status::Succeeded)
            .filter_map(|step| step.compensates.and_then(|i| run.at(i)).map(|step| step.id.clone()))
            .collect();
        Decision::new().fact(PipelineCancelled { id: run.id(), duration_ms, compensated })
    } else {
        match (first_failure(run), scope::outputs(run, def, given)) {
            (Some((step, failure)), _) => failed(run, duration_ms, step, failure),
            (None, Err(message)) => {
                failed(run, duration_ms, None, Failure::new(Code::ExpressionFailed, message))
            }
            (None, Ok(outputs)) => {
                let outputs = outputs.map(Private::New);
                Decision::new().fact(PipelineCompleted { id: run.id(), duration_ms, outputs })
            }
        }
    };
    run.born.lock.iter().fold(ended, |ended, lock| {
        ended.effect(Effect::ReleaseLock { lock: run.scoped(lock), holder: run.holder() })
    })
}

pub(crate) fn failed(run: &Run, duration_ms: u64, step: Option<StepId>, failure: Failure) -> Decision {
    Decision::new().fact(PipelineFailed {
        id: run.id(),
        duration_ms,
        code: failure.code,
        step,
        error: Private::New(failure.message),
    })
}

fn open_compensation(run: &Run, def: &Pipeline, of: &Step, node: Node, given: &mut Given<'_>) -> Decision {
    let (Some(def_of), Some(def_node)) = (def.node(of.node), def.node(node)) else { return Decision::new() };
    let id = Name::clean(&alloc::format!("{}{}", def_node.id, of.suffix(&def_of.id)));
    let place = Place { id, node, parent: None, item: None, compensates: Some(of) };
    reach(run, def, def_node, &place, given)
}

/// Where a step comes to stand in the run.
struct Place<'a> {
    id: StepId,
    node: Node,
    parent: Option<&'a Step>,
    item: Option<u32>,
    compensates: Option<&'a Step>,
}

pub(crate) fn open(
    run: &Run,
    def: &Pipeline,
    parent: Option<u32>,
    node: Option<Node>,
    index: u32,
    given: &mut Given<'_>,
) -> Decision {
    let parent = parent.and_then(|place| run.at(place));
    let Some((node, def_node)) = node.and_then(|node| Some((node, def.node(node)?))) else {
        return Decision::new();
    };
    let (mut id, mut item) = (def_node.id.clone(), None);
    if let Some(parent) = parent {
        let mut text = id.to_string();
        let parent_node = def.node(parent.node);
        let suffix = parent_node.map_or("", |parent_node| parent.suffix(&parent_node.id));
        text.push_str(suffix);
        if parent_node.is_some_and(|parent_node| is_foreach(parent_node, parent)) {
            item = Some(index);
            text.push_str(&alloc::format!("[{index}]"));
        }
        if parent.attempt > 1 || suffix.contains('#') {
            // A group that is tried again has new members; the old ones stay as they ended. Below such a group every
            // attempt is named, or the second try of an inner group and the first in a second try of the outer one
            // would share a name.
            text.push_str(&alloc::format!("#{}", parent.attempt));
        }
        if text.len() > id.as_str().len() {
            id = Name::clean(&text);
        }
    }
    let place = Place { id, node, parent, item, compensates: None };
    reach(run, def, def_node, &place, given)
}

/// Reaches a step: its condition, its list and its input are evaluated here and recorded.
fn reach(run: &Run, def: &Pipeline, node: &StepDef, place: &Place<'_>, given: &mut Given<'_>) -> Decision {
    let context = scope::Context {
        parent: place.parent,
        item: place.item,
        compensates: place.compensates,
        id: &place.id,
        node,
        def: Some(def),
    };
    let section = (run.section != Section::Main).then_some(run.section);
    if place.item.is_none()
        && let Some(when) = &node.when
    {
        match scope::evaluate(run, &context, when, given) {
            Ok(Value::Bool(true)) => {}
            Ok(Value::Bool(false)) => {
                return Decision::new().fact(StepSkipped {
                    pipeline_id: run.id(),
                    step: place.id.clone(),
                    node: place.node,
                    parent: place.parent.map(|parent| parent.id.clone()),
                    section,
                    reason: Skip::When,
                    tool: tool(run, node),
                    item: place.item,
                });
            }
            Ok(_) => return stillborn(run, node, place, "`when` is neither true nor false", given),
            Err(message) => return stillborn(run, node, place, &message, given),
        }
    }
    let prepared = match scope::prepare(run, &context, given) {
        Ok(prepared) => prepared,
        Err(message) => return stillborn(run, node, place, &message, given),
    };
    let items = prepared.input.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
    if items > ITEMS_MAX {
        return stillborn(run, node, place, "the list has more than 1000 items", given);
    }
    let mut advanced = blank(run, node, place);
    advanced.group = shape(node, place, items as u32);
    let per_item = advanced.group.is_some_and(|shape| shape.kind == GroupKind::Foreach);
    if !per_item {
        advanced.gates = Some(prepared.gates).filter(|gates| !gates.is_empty());
        advanced.key = prepared.key;
        advanced.action_hash = prepared.action_hash;
        advanced.semantics = prepared.semantics;
        advanced.max_attempts = Some(attempt::tries(node)).filter(|&tries| tries != 1);
    }
    advanced.input = prepared.input.map(Private::New);
    tie(run, def, &context, place, &mut advanced, given);
    let reached = Decision::new().fact(advanced);
    match taken_over(run, place) {
        Some(inherited) => inherit(run, place, node, reached, inherited, given),
        None => reached,
    }
}

/// Ties a step to approvals: an `approve` step to those it names, and a named one to what it is held to.
fn tie(
    run: &Run,
    def: &Pipeline,
    context: &scope::Context<'_>,
    place: &Place<'_>,
    advanced: &mut PipelineAdvanced,
    given: &Given<'_>,
) {
    if run.approvers().is_empty() || advanced.group.is_some() || place.compensates.is_some() {
        return;
    }
    if run.approvers().contains(&place.node) {
        let message = advanced.input.as_ref().and_then(Private::get).unwrap_or(Value::Null);
        let (bindings, shown) = binding::propose(run, def, context, &message, given);
        advanced.bindings = Some(bindings).filter(|list| !list.is_empty());
        advanced.input = Some(Private::New(shown));
        return;
    }
    let mut step = Step::pending(place.id.clone(), place.node, advanced.tool.clone());
    step.parent = place.parent.and_then(|parent| run.place(&parent.id));
    let input = advanced.input.as_ref().and_then(Private::value);
    step.prepare(advanced.action_hash, input);
    advanced.bound = binding::bound(run, def, context.node, &step);
}

/// The result of an earlier run of the lineage that is this step's: for an item, that of an equal one.
fn taken_over<'a>(run: &'a Run, place: &Place<'_>) -> Option<&'a crate::run::Inherited> {
    if run.rare().inherited.is_empty() || place.compensates.is_some() {
        return None;
    }
    let parent = place.parent.and_then(|parent| run.place(&parent.id));
    let items = items::of(run, place.item, parent).ok()?;
    items::inherited(run, &place.id, items)
}

/// A result of an earlier run of the lineage serves: the step begins and ends in one commit.
fn inherit(
    run: &Run,
    place: &Place<'_>,
    node: &StepDef,
    reached: Decision,
    inherited: &crate::run::Inherited,
    given: &Given<'_>,
) -> Decision {
    let mut step = Step::pending(place.id.clone(), place.node, tool(run, node));
    step = reached.facts.iter().fold(step, |step, fact| step.apply(fact, given.at));
    step.gates = Box::default();
    let mut out = reached;
    let started = start(run, &step, Some(Name::clean(OWN)), None, None, given);
    step = started.facts.iter().fold(step, |step, fact| step.apply(fact, given.at));
    out.facts.extend(started.facts);
    let input = step::Input::Succeed {
        epoch: step.epoch,
        output: inherited.output.clone(),
        reused_from: Some(inherited.from),
    };
    out.facts.extend(step.decide(run.id(), &input, given.at).unwrap_or_default().facts);
    out
}

/// A step that is reached but cannot even be prepared: reached, begun and failed in one commit.
fn stillborn(run: &Run, node: &StepDef, place: &Place<'_>, message: &str, given: &Given<'_>) -> Decision {
    let advanced = blank(run, node, place);
    let reached = Decision::new().fact(advanced);
    let step = Step::pending(place.id.clone(), place.node, tool(run, node));
    let step = reached.facts.iter().fold(step, |step, fact| step.apply(fact, given.at));
    let mut out = reached;
    out.facts.extend(refuse(run, &step, Code::ExpressionFailed, message, given).facts);
    out
}

/// What carries a step out. Most steps of a run have one tool, and most runs of a policy; its name is kept once for them.
fn tool(run: &Run, node: &StepDef) -> Name {
    let text = node.kind.tool();
    let last = run.steps.last().map(|step| &step.tool).filter(|tool| tool.as_str() == text);
    let known = || run.policy().tools.get_key_value(text).map(|(tool, _)| tool);
    last.or_else(known).cloned().unwrap_or_else(|| Name::clean(text))
}

fn blank(run: &Run, node: &StepDef, place: &Place<'_>) -> PipelineAdvanced {
    PipelineAdvanced {
        id: run.id(),
        step: place.id.clone(),
        node: place.node,
        parent: place.parent.map(|parent| parent.id.clone()),
        section: (run.section != Section::Main).then_some(run.section),
        tool: tool(run, node),
        item: place.item,
        compensates: place.compensates.map(|step| step.id.clone()),
        group: None,
        gates: None,
        key: None,
        action_hash: None,
        max_attempts: None,
        semantics: None,
        input: None,
        bindings: None,
        bound: None,
    }
}

/// The shape of a group, or none for a step of its own.
fn shape(node: &StepDef, place: &Place<'_>, items: u32) -> Option<Shape> {
    if let (Some(foreach), None) = (&node.foreach, place.item) {
        let fail_fast = if foreach.fail_fast { FailFast::Stop } else { FailFast::No };
        return Some(Shape {
            kind: GroupKind::Foreach,
            total: items,
            width: foreach.max_parallel.max(1),
            fail_fast,
        });
    }
    let total = node.kind.members().len() as u32;
    match &node.kind {
        Kind::Parallel { fail_fast, .. } => {
            Some(Shape { kind: GroupKind::Parallel, total, width: total.max(1), fail_fast: *fail_fast })
        }
        Kind::Steps { .. } => {
            Some(Shape { kind: GroupKind::Sequence, total, width: 1, fail_fast: FailFast::Stop })
        }
        Kind::Strategy { .. } => {
            Some(Shape { kind: GroupKind::Strategy, total, width: 1, fail_fast: FailFast::Stop })
        }
        Kind::Run { .. }
        | Kind::Tool { .. }
        | Kind::Agent { .. }
        | Kind::Call { .. }
        | Kind::Approve { .. }
        | Kind::Wait { .. } => None,
    }
}

/// What a step needs to pass, and what it is given: evaluated once, when it is reached.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) gates: Vec<Gate>,
    pub(crate) key: Option<Name>,
    pub(crate) action_hash: Option<crate::digest::Digest>,
    pub(crate) semantics: Option<crate::receipt::Semantics>,
    pub(crate) input: Option<Value>,
}
