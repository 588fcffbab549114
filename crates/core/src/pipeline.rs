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

mod stops;

use crate::attempt;
use crate::binding;
use crate::code::Code;
use crate::event::{
    PipelineAdvanced, PipelineCancelled, PipelineCompleted, PipelineEntered, PipelineFailed, StepSkipped,
};
use crate::follow::Follow;
use crate::gate;
use crate::id::{Name, RunId, StepId};
use crate::items;
use crate::machine::{Decision, Given};
use crate::packed::Packed;
use crate::private::Private;
use crate::renewal;
use crate::reversal;
use crate::run::{self, Run, Section};
use crate::runbook::{ITEMS_MAX, Kind, Node, Pipeline, STEPS_MAX, StepDef, WaitFor};
use crate::scope;
use crate::step::{self, FailFast, Failure, GroupKind, Shape, Skip, Status, Step, Wait};
use crate::strategy;
use crate::time::Span;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde_json::Value;

pub(crate) use stops::{around, halted, is_kept_out, kill_members};
use stops::{overdue, stop, stopping};

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
    let mut out = Decision::new();
    for place in run.flow().iter() {
        let Some(step) = run.at(place) else { continue };
        if run.is_stale(step) {
            let node = def.node(step.node);
            let renewed = node.map(|node| renewal::renew(run, def, node, step, given));
            out.join(renewed.unwrap_or_default());
            if !out.facts.is_empty() {
                return out;
            }
            continue;
        }
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
        out.join(moved);
        if !out.facts.is_empty() {
            return out;
        }
    }
    out.join(root(run, def, given));
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
    out.follow.extend(gate::release(run, step));
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
    started.then([Follow::Call {
        run: child,
        parent: run.id(),
        step: step.id.clone(),
        pipeline: pipeline.clone(),
        vars,
    }])
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
    if let Some(lost) = step.lost_hold() {
        let mut out = Decision::new();
        let input = step::Input::Fail { epoch: step.epoch, failure: lost.clone(), retry_at: None };
        end(run, step, input, given, &mut out);
        return out;
    }
    if overdue {
        let failure = Failure::new(Code::TimedOut, "the group took longer than its `timeout`");
        return close(run, def, place, step, Some(failure), node, given);
    }
    if group.open == 0 && group.shape.kind == GroupKind::Strategy && group.next > 0 {
        return strategy::flow::next(run, def, place, step, node, given);
    }
    if group.may_open() && is_full(run) {
        if group.open > 0 {
            return Decision::new();
        }
        let failure = Failure::new(Code::CapExceeded, "the run has as many steps as a run may have");
        return close(run, def, place, step, Some(failure), node, given);
    }
    if group.may_open() {
        return open(run, def, Some(place), member(node, step, group.next), group.next, given);
    }
    if group.open > 0 {
        return if group.is_closed() { stops::keep_out(run, place, given) } else { Decision::new() };
    }
    let failed = group.failed > 0;
    let failures = scope::members(run, place).filter(|s| s.status == Status::Failed);
    // The first in time: what came after it may only follow from it.
    let first = failures.min_by_key(|s| s.ended);
    let failure = first.and_then(|s| s.error.as_deref().cloned());
    close(
        run,
        def,
        place,
        step,
        failed.then(|| failure.unwrap_or_else(|| Failure::new(Code::Cancelled, "a member was cancelled"))),
        node,
        given,
    )
}

/// Whether a run has as many steps as it may have. Those of a pipeline itself are fewer; items and tries make more.
fn is_full(run: &Run) -> bool {
    let most = if run.section == Section::Main { STEPS_MAX } else { 2 * STEPS_MAX };
    run.steps.len() >= most
}

/// A group's time is up: its members are stopped, and it fails when they are.
pub(crate) fn group_overdue(run: &Run, def: &Pipeline, step: &Step, given: &mut Given<'_>) -> Decision {
    run.place(&step.id).map_or_else(Decision::new, |place| group(run, def, place, step, given))
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

/// Ends a group: with what its members gave, or with the failure, or with another try. One that is taken over whole gives
/// what it gave.
pub(crate) fn close(
    run: &Run,
    def: &Pipeline,
    place: u32,
    step: &Step,
    failure: Option<Failure>,
    node: &StepDef,
    given: &mut Given<'_>,
) -> Decision {
    let epoch = step.epoch;
    let stood = items::stood(run, def, step).filter(|_| failure.is_none());
    let input = match (stood, failure) {
        (Some(stood), _) => {
            let output = scope::group_output(run, place, step);
            Ok(step::Input::Succeed { epoch, output, reused_from: Some(stood.from) })
        }
        (None, None) => {
            // Every item of a `foreach` was held to what is declared; their list is not.
            let output = scope::group_output(run, place, step);
            if is_foreach(node, step) {
                Ok(step::Input::Succeed { epoch, output, reused_from: None })
            } else {
                attempt::done(run, node, step, epoch, output, given)
            }
        }
        (None, Some(failure)) => Ok(attempt::failing(run, node, step, epoch, failure, true, given)),
    };
    // The callers close what is running, which takes all of these; were one wrong, nothing would be recorded.
    input
        .map_err(run::Error::from)
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
            Section::Compensate => match reversal::compensable(run, def).get(next as usize) {
                Some(&(step, node)) => open_compensation(run, def, step, node, given),
                None => next_section(run, def, given),
            },
        };
    }
    next_section(run, def, given)
}

fn next_section(run: &Run, def: &Pipeline, given: &mut Given<'_>) -> Decision {
    let cancelled = run.stopping.is_some() && !run.stop_fails();
    let mut failure = first_failure(run);
    let takes_back = run.born.takes_back.is_some();
    if failure.is_none() && !cancelled && !takes_back && run.section == Section::Main {
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
            Section::Compensate if failed || cancelled || takes_back => reversal::compensable(run, def).len(),
            // What another run began and ended properly is not begun or ended again.
            Section::OnFailure | Section::Finally if takes_back => 0,
            Section::OnFailure if failed && !cancelled => def.on_failure.len(),
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
    if let Some(failure) = run.stopping.as_deref().and_then(stops::failure) {
        return Some((None, failure));
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

/// How a run that has done with its steps is about to end, as far as that is known.
pub(crate) fn outcome(run: &Run) -> run::Status {
    if run.stopping.is_some() && !run.stop_fails() {
        return run::Status::Cancelled;
    }
    if first_failure(run).is_some() { run::Status::Failed } else { run::Status::Completed }
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
    let ended = if run.stopping.is_some() && !run.stop_fails() {
        let compensated = run
            .steps
            .iter()
            .filter(|step| step.section == Section::Compensate && step.status == Status::Succeeded)
            .filter_map(|step| step.compensates.and_then(|i| run.at(i)).map(|step| step.id.clone()))
            .collect();
        Decision::new().fact(PipelineCancelled { id: run.id(), duration_ms, compensated })
    } else {
        let outputs = if run.born.takes_back.is_some() { Ok(None) } else { scope::outputs(run, def, given) };
        match (first_failure(run), outputs) {
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
    ended.then(
        run.born.lock.iter().map(|lock| Follow::LetGoLock { lock: run.scoped(lock), holder: run.holder() }),
    )
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
    if node == of.node {
        let place = Place {
            id: reversal::name(run, def, of),
            node,
            parent: None,
            item: of.item,
            compensates: Some(of),
        };
        return Decision::new().fact(reversal::reached(of, blank(run, def_node, &place)));
    }
    let id = Name::clean(&alloc::format!("{}{}", def_node.id, of.suffix(&def_of.id)));
    let place = Place { id, node, parent: None, item: None, compensates: Some(of) };
    reach(run, def, def_node, &place, given)
}

/// Where a step comes to stand in the run.
pub(crate) struct Place<'a> {
    pub(crate) id: StepId,
    pub(crate) node: Node,
    pub(crate) parent: Option<&'a Step>,
    pub(crate) item: Option<u32>,
    pub(crate) compensates: Option<&'a Step>,
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
    let whole = place.parent.is_some_and(|group| items::stood(run, def, group).is_some());
    let known = taken_over(run, place);
    if whole && known.is_none() {
        return skip(run, node, place, Skip::TakenOver);
    }
    // Whether a member of what is taken over whole runs was said in the earlier run.
    if place.item.is_none()
        && !whole
        && let Some(when) = &node.when
    {
        match scope::evaluate(run, &context, when, given) {
            Ok(Value::Bool(true)) => {}
            Ok(Value::Bool(false)) => return skip(run, node, place, Skip::When),
            Ok(_) => return stillborn(run, node, place, "`when` is neither true nor false", given),
            Err(message) => return stillborn(run, node, place, &message, given),
        }
    }
    let advanced = match prepare(run, def, &context, place, given) {
        Ok(advanced) => advanced,
        Err(message) => return stillborn(run, node, place, &message, given),
    };
    let inherited = known.filter(|inherited| {
        let now = match advanced.group {
            // A group is taken over whole where it is made of the same, and member by member otherwise.
            Some(_) => {
                let list = advanced.input.as_ref().and_then(Private::value).map(Packed::of);
                Some(items::made_of(def, node, place.item, list.as_ref()))
            }
            // A yes is good for the question that it was given to.
            None => scope::question(run, def, &fresh(run, place, &advanced)),
        };
        inherited.question == now
    });
    let reached = Decision::new().fact(advanced);
    match inherited {
        Some(inherited) => inherit(run, place, node, reached, inherited, given),
        None => reached,
    }
}

/// A step that is reached and passed by.
fn skip(run: &Run, node: &StepDef, place: &Place<'_>, reason: Skip) -> Decision {
    Decision::new().fact(StepSkipped {
        pipeline_id: run.id(),
        step: place.id.clone(),
        node: place.node,
        parent: place.parent.map(|parent| parent.id.clone()),
        section: (run.section != Section::Main).then_some(run.section),
        reason,
        tool: tool(run, node),
        item: place.item,
    })
}

/// What a step that is reached, or prepared anew, is given.
pub(crate) fn prepare(
    run: &Run,
    def: &Pipeline,
    context: &scope::Context<'_>,
    place: &Place<'_>,
    given: &Given<'_>,
) -> Result<PipelineAdvanced, String> {
    let node = context.node;
    let prepared = scope::prepare(run, context, given)?;
    let items = prepared.input.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
    if items > ITEMS_MAX {
        return Err("the list has more than 1000 items".to_string());
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
    tie(run, def, context, place, &mut advanced, given);
    Ok(advanced)
}

/// A step as it was prepared, before that is recorded.
pub(crate) fn fresh(run: &Run, place: &Place<'_>, advanced: &PipelineAdvanced) -> Step {
    let mut step = Step::pending(place.id.clone(), place.node, advanced.tool.clone());
    step.parent = place.parent.and_then(|parent| run.place(&parent.id));
    let input = advanced.input.as_ref().and_then(Private::value);
    step.prepare(advanced.action_hash, input, run.edition);
    step
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
    let step = fresh(run, place, advanced);
    advanced.bound = binding::bound(run, def, context.node, &step);
}

/// The result of an earlier run of the lineage that is this step's: for an item, that of an equal one.
fn taken_over<'a>(run: &'a Run, place: &Place<'_>) -> Option<&'a run::Inherited> {
    if run.rare().inherited.is_empty() || place.compensates.is_some() {
        return None;
    }
    let parent = place.parent.and_then(|parent| run.place(&parent.id));
    let items = items::of(run, place.item, parent).ok()?;
    items::inherited(run, &place.id, items)
}

/// A result of an earlier run of the lineage serves: the step begins and ends in one commit. A group begins at the attempt
/// at which it succeeded, and ends when its members stand as they stood.
fn inherit(
    run: &Run,
    place: &Place<'_>,
    node: &StepDef,
    reached: Decision,
    inherited: &run::Inherited,
    given: &Given<'_>,
) -> Decision {
    let mut step = Step::pending(place.id.clone(), place.node, tool(run, node));
    step = reached.facts.iter().fold(step, |step, fact| step.apply(fact, given.at));
    step.gates = Box::default();
    let mut out = reached;
    if let Some(attempt) = inherited.attempt.filter(|_| step.group.is_some()) {
        (step.attempt, step.epoch) = (attempt, u64::from(attempt));
        out.facts.extend(start(run, &step, None, None, None, given).facts);
        return out;
    }
    let started = start(run, &step, Some(Name::clean(OWN)), inherited.child, None, given);
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

pub(crate) fn blank(run: &Run, node: &StepDef, place: &Place<'_>) -> PipelineAdvanced {
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
        edition: Some(run.edition).filter(|&edition| edition > 0),
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
