//! Undone: which steps of a run were taken back, and which undos do it.
//!
//! A run takes back what it did itself ([`crate::reversal`]). Three others may do so after its end: an undo, which is asked for
//! the run or for a caller of it; a caller that fails; and a run that goes on from it, which takes back what it took over.
//! Each leaves a trace that is found from the run: `pipeline:undo`, `pipeline:retry` and `pipeline:fork` stand in its own
//! stream, and its caller is known.
//!
//! The invariant: what was taken back is neither taken back again nor taken over by a later run. An undo therefore claims
//! every run of which it takes something back, in one commit with the run that does it, and of two that are asked for at
//! once the second one finds the first.

use crate::code::Code;
use crate::event::{Event, PipelineUndo};
use crate::id::{Name, RunId, StepId};
use crate::items;
use crate::machine::Given;
use crate::run::{Run, Section, Undoing};
use crate::runbook::CALLS_MAX;
use crate::step::{Status, Step};
use crate::stream::StreamId;
use crate::turn::command::{Outcome, Refusal, Reply, Undo};
use crate::turn::creation;
use crate::turn::{View, missing, of_stream, run_of};
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;

/// How many runs that go on from a run are looked at.
const LATER_MAX: usize = 100;

/// How runs are found; the error is for those that have to be loaded first.
pub type Find<'f, 'a, E> = &'f dyn Fn(RunId) -> Result<Option<&'a Run>, E>;

/// The name of the step by which an undo takes another one back: steps of a run have names of their own, so these have
/// too. Those of a called run stand below the name of the call.
#[must_use]
pub fn name(path: &str, of: &Step) -> StepId {
    Name::clean(&alloc::format!("undo-{path}{}-{}", plain(of), of.ended))
}

/// The calls through which an undo reaches a called run, where it reaches the caller through these.
#[must_use]
pub fn path(above: &str, call: &Step) -> String {
    alloc::format!("{above}{}-{}-", plain(call), call.ended)
}

/// A step's name in characters that every name may have.
fn plain(of: &Step) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    of.id.as_str().chars().map(plain).collect()
}

/// The run that carried a step out, where this one took its result over.
#[must_use]
pub fn taken_from(run: &Run, step: &Step) -> Option<RunId> {
    if step.compensates.is_some() {
        return None;
    }
    if let Some(of) = run.born.takes_back.as_deref() {
        return Some(*of);
    }
    if run.rare().inherited.is_empty() {
        return None;
    }
    let known = items::inherited(run, &step.id, items::of(run, step.item, step.parent).ok()?)?;
    Some(known.from)
}

/// The undo that is under way of a run, of one that it called, or of one whose results it took over.
///
/// # Errors
/// Those of `find`.
pub fn under_way<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<Option<RunId>, E> {
    if let Some(by) = below(find, run, CALLS_MAX)? {
        return Ok(Some(by));
    }
    let earlier: BTreeSet<RunId> = run.steps.iter().filter_map(|step| taken_from(run, step)).collect();
    for earlier in earlier {
        if let Some(earlier) = find(earlier)?
            && let Some(by) = below(find, earlier, 0)?
        {
            return Ok(Some(by));
        }
    }
    Ok(None)
}

/// A run that is not over and relies on this one: it called it, or goes on from it or from its caller. Were it to fail, it
/// would take back what this one did.
fn relied_on<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<Option<RunId>, E> {
    let mut next = Some(run);
    for _ in 0..=CALLS_MAX {
        let Some(run) = next else { break };
        let caller = run.born.parent.as_deref().map(|(caller, _)| find(*caller)).transpose()?.flatten();
        let alive = later(find, run)?.into_iter().chain(caller).find(|run| !run.is_terminal());
        if let Some(alive) = alive {
            return Ok(Some(alive.id()));
        }
        next = caller;
    }
    Ok(None)
}

fn below<'a, E>(find: Find<'_, 'a, E>, run: &'a Run, depth: u32) -> Result<Option<RunId>, E> {
    if let Some(last) = run.rare().undos.last()
        && find(last.run)?.is_some_and(|undo| !undo.is_terminal())
    {
        return Ok(Some(last.run));
    }
    for child in run.steps.iter().filter(|_| depth > 0).filter_map(Step::child) {
        if let Some(child) = find(child)?
            && let Some(undo) = below(find, child, depth - 1)?
        {
            return Ok(Some(undo));
        }
    }
    Ok(None)
}

/// The places of those steps of a run that have to be done again, because another run took them back: calls are among
/// them of which any part was taken back.
pub(crate) fn places<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<BTreeSet<u32>, E> {
    let mut back = steps(find, run)?;
    for (place, step) in (0..).zip(&run.steps) {
        if let Some(called) = step.child()
            && let Some(called) = find(called)?
            && is_touched(find, called)?
        {
            back.insert(place);
        }
    }
    Ok(back)
}

/// The places of those steps of a run that another run took back.
///
/// # Errors
/// Those of `find`.
pub fn steps<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<BTreeSet<u32>, E> {
    let mut back = own(find, run)?;
    // What it took over stands where it was carried out.
    let mut there: BTreeMap<RunId, BTreeSet<u32>> = BTreeMap::new();
    for (place, step) in (0..).zip(&run.steps) {
        let Some(earlier) = taken_from(run, step) else { continue };
        let Some(earlier) = find(earlier)? else { continue };
        if let Entry::Vacant(unknown) = there.entry(earlier.id()) {
            unknown.insert(own(find, earlier)?);
        }
        let gone = there.get(&earlier.id()).into_iter().flatten().filter_map(|place| earlier.at(*place));
        if gone.filter(|other| items::same(run, step, earlier, other)).count() > 0 {
            back.insert(place);
        }
    }
    Ok(back)
}

/// The same of what the run carried out itself.
fn own<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<BTreeSet<u32>, E> {
    let mut back = BTreeSet::new();
    for undo in &run.rare().undos {
        let (path, done) = (path_of(undo), done_by(find, undo)?);
        back.extend(
            (0..)
                .zip(&run.steps)
                .filter(|(_, step)| done.contains(&&name(path, step)))
                .map(|(place, _)| place),
        );
    }
    for later in later(find, run)? {
        for gone in compensated(later).filter(|gone| taken_from(later, gone) == Some(run.id())) {
            let same = (0..).zip(&run.steps).filter(|(_, step)| items::same(later, gone, run, step));
            back.extend(same.map(|(place, _)| place));
        }
    }
    for by in by_callers(find, run)? {
        back.extend(compensated(by).filter_map(|gone| run.place(&gone.id)));
    }
    Ok(back)
}

/// What the compensations of a run took back.
fn compensated(run: &Run) -> impl Iterator<Item = &Step> {
    let done = run.steps.iter().filter(|step| step.status == Status::Succeeded);
    done.filter_map(|step| run.at(step.compensates?))
}

/// Whether an undo took back something of a run.
fn is_touched<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<bool, E> {
    for undo in &run.rare().undos {
        let below = alloc::format!("undo-{}", path_of(undo));
        if done_by(find, undo)?.iter().any(|step| step.as_str().starts_with(&below)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn path_of(undo: &Undoing) -> &str {
    undo.path.as_deref().unwrap_or_default()
}

/// The steps of an undo that have succeeded.
fn done_by<'a, E>(find: Find<'_, 'a, E>, undo: &Undoing) -> Result<BTreeSet<&'a StepId>, E> {
    let steps = find(undo.run)?.map(|undo| undo.steps.as_slice()).unwrap_or_default();
    Ok(steps.iter().filter(|step| step.status == Status::Succeeded).map(|step| &step.id).collect())
}

/// The runs that go on from a run, and from those.
fn later<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<Vec<&'a Run>, E> {
    let (mut out, mut next) = (Vec::new(), run.rare().later.clone());
    while let Some(id) = next.pop().filter(|_| out.len() < LATER_MAX) {
        if let Some(run) = find(id)? {
            next.extend(&run.rare().later);
            out.push(run);
        }
    }
    Ok(out)
}

/// The runs by which a caller, or one that goes on from it, took this run back.
fn by_callers<'a, E>(find: Find<'_, 'a, E>, run: &'a Run) -> Result<Vec<&'a Run>, E> {
    let Some((caller, _)) = run.born.parent.as_deref() else { return Ok(Vec::new()) };
    let Some(caller) = find(*caller)? else { return Ok(Vec::new()) };
    let mut out = Vec::new();
    for caller in core::iter::once(caller).chain(later(find, caller)?) {
        let back = caller.steps.iter().filter(|step| step.section == Section::Compensate);
        let of = |step: &&Step| step.compensates.and_then(|place| caller.at(place)).and_then(Step::child);
        for back in back.filter(|step| of(step) == Some(run.id())).filter_map(Step::child) {
            out.extend(find(back)?.filter(|back| back.born.takes_back.as_deref() == Some(&run.id())));
        }
    }
    Ok(out)
}

/// Makes the run that takes others back, and claims them. Where an undo of the run is under way already, that one is the
/// answer; where one was asked for since the plan was made, the plan is no good any more.
pub(crate) fn undo(view: &dyn View, wish: &Undo, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let alive = look(view, |find| {
        for claim in &wish.runs {
            let last = find(claim.run)?.and_then(|run| run.rare().undos.last());
            last.map_or(Ok(None), |last| find(last.run))?;
        }
        let first = wish.runs.first().map(|claim| find(claim.run)).transpose()?.flatten();
        first.map_or(Ok(None), |first| relied_on(find, first))
    })?;
    let mut claims = Vec::new();
    for (n, claim) in wish.runs.iter().enumerate() {
        let run = run_of(view, &claim.run)?.ok_or_else(|| missing("run", &claim.run))?;
        let last = run.rare().undos.last().map(|undo| undo.run);
        let by = last.map(|last| run_of(view, &last)).transpose()?.flatten();
        match by.filter(|by| !by.is_terminal()) {
            Some(by) if n == 0 => {
                return Ok(Outcome::reply(Reply::Known { run: Some(by.id()), in_flight: true }));
            }
            Some(by) => {
                let message = alloc::format!(
                    "{} is being taken back by {}: ask again when that has ended",
                    run.id(),
                    by.id()
                );
                return Err(Refusal::new(Code::RunInvalidTransition, message));
            }
            None if last != claim.seen => {
                return Ok(Outcome::reply(Reply::Known { run: last, in_flight: false }));
            }
            None => {}
        }
        let asked = PipelineUndo { id: run.id(), new: wish.create.id, path: claim.path.clone() };
        claims.extend(
            of_stream(
                StreamId::Run(run.id()),
                &run.born.home.tenant,
                alloc::vec![Event::from(asked)],
                Reply::Done,
            )
            .facts,
        );
    }
    if let Some(alive) = alive {
        let message = alloc::format!(
            "{alive} relies on what would be taken back, and is not over: ask again when it has ended"
        );
        return Err(Refusal::new(Code::RunInvalidTransition, message));
    }
    let asked_by = creation::asked_by(view, &wish.create, given)?;
    let mut out = creation::new(view, &wish.create, asked_by, &[], given)?;
    out.facts.extend(claims);
    Ok(out)
}

/// The places of those steps of a run that a run which goes on from it does again ([`places`]).
///
/// # Errors
/// An undo is under way: what would be taken over may be gone a moment later.
pub(crate) fn taken_back(view: &dyn View, run: &Run) -> Result<BTreeSet<u32>, Refusal> {
    if let Some(by) = look(view, |find| under_way(find, run))? {
        let message =
            alloc::format!("{} is being taken back by {by}: ask again when that has ended", run.id());
        return Err(Refusal::new(Code::RunInvalidTransition, message));
    }
    look(view, |find| places(find, run))
}

/// Looks with the runs that are at hand, and asks at once for all the others that it met.
fn look<'a, T>(
    view: &'a dyn View,
    ask: impl FnOnce(Find<'_, 'a, Refusal>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let needs: RefCell<Vec<StreamId>> = RefCell::default();
    let find = |id: RunId| match run_of(view, &id) {
        Err(Refusal::Need(streams)) => {
            needs.borrow_mut().extend(streams);
            Ok(None)
        }
        found => found,
    };
    let found = ask(&find)?;
    let needs = needs.into_inner();
    if needs.is_empty() { Ok(found) } else { Err(Refusal::Need(needs)) }
}
