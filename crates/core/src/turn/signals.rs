//! Signals by key, across streams: which runs an external event reaches, and which it is kept for.

use super::command::{Outcome, Refusal, Reply as Answer, Signal};
use super::{View, load, of_run, of_stream, requesters, run_of, signals_of, tenant_of};
use crate::caps;
use crate::code::Code;
use crate::id::{Name, RunId, Scoped, StepId};
use crate::lifecycle;
use crate::machine::{Decision, Given};
use crate::packed::text_len;
use crate::run::Run;
use crate::signal::{Input, RUNS_MAX, Reply, Signals, awaited, source, stream};
use crate::step::{Wait, Waiting};
use crate::stream::StreamId;

/// An event arrives by its key: for the runs that wait for it, or kept until one does.
pub(crate) fn arrive(view: &dyn View, signal: &Signal, given: &mut Given<'_>) -> Result<Outcome, Refusal> {
    let Signal { tenant, namespace, name, key, data, event_id, user } = signal;
    let asked_by = requesters::of_signal(view, given, user.as_ref(), data)?;
    let mut out = Outcome::reply(Reply::Kept.into());
    let hints = view.awaiting(tenant, namespace, name, key.as_ref());
    if hints.len() > RUNS_MAX {
        let message = alloc::format!("more than {RUNS_MAX} runs wait for this event; give it a key");
        return Err(Refusal::new(Code::CapExceeded, message));
    }
    let len = text_len(data) as u64;
    if hints.len() > 1 && len.saturating_mul(hints.len() as u64) > caps::FAN_OUT_LEN_MAX {
        let message = alloc::format!(
            "{} runs wait for this event, and each would get its {len} bytes: send less with it, or give it a key",
            hints.len()
        );
        return Err(Refusal::new(Code::CapExceeded, message));
    }
    let mut reached = false;
    for hint in hints {
        let Some(run) = run_of(view, &hint)?.filter(|run| waits(run, name, key.as_ref())) else { continue };
        let from = source(given);
        let came = (event_id.as_ref(), from.as_ref(), asked_by.clone());
        let signalled = lifecycle::signal(run, name, key.as_ref(), data, came, given)?;
        let one = of_run(view, run, signalled, Answer::Done);
        out.join(one);
        reached = true;
    }
    if reached {
        out.reply = Answer::Done;
        return Ok(out);
    }
    let id = stream(tenant, namespace, name, key.as_ref());
    let input = Input::Keep {
        name: name.clone(),
        key: key.clone(),
        event_id: event_id.clone(),
        source: source(given),
        data: data.clone(),
        asked_by,
    };
    let decided = match signals_of(view, &id)? {
        Some(known) => known.decide(&input, given.at)?,
        None => Signals::new(id.clone()).decide(&input, given.at)?,
    };
    if !decided.facts.is_empty() {
        view.kept(tenant).admit_signal(len)?;
    }
    Ok(of_stream(StreamId::Signal(id), tenant, decided.facts, Reply::Kept.into()))
}

fn waits(run: &Run, name: &Name, key: Option<&Name>) -> bool {
    let for_it =
        |w: &Waiting| w.reason == Wait::Event && w.on.as_ref() == Some(name) && w.key.as_ref() == key;
    !run.is_terminal() && run.live().any(|step| step.waiting.as_deref().is_some_and(for_it))
}

/// A step that began to wait looks whether its event came before.
pub(crate) fn take(
    view: &dyn View,
    run: RunId,
    step: &StepId,
    given: &mut Given<'_>,
) -> Result<Outcome, Refusal> {
    let nothing = Outcome::reply(Answer::Nothing);
    let run = load(view, run)?.run;
    let step = run.need(step)?;
    let (Some(id), Some(waiting)) = (awaited(run, step), step.waiting.as_deref()) else { return Ok(nothing) };
    let (Some(known), Some(name)) = (signals_of(view, &id)?, &waiting.on) else { return Ok(nothing) };
    let input =
        Input::Take { name: name.clone(), key: waiting.key.clone(), run: run.id(), step: step.id.clone() };
    let Decision { facts, reply, .. } = known.decide(&input, given.at)?;
    let Reply::Taken { event_id, source, data, asked_by } = reply else { return Ok(nothing) };
    let came = (event_id.as_ref(), source.as_ref(), asked_by);
    let signalled = lifecycle::signal(run, name, waiting.key.as_ref(), &data, came, given)?;
    let mut out = of_run(view, run, signalled, Answer::Done);
    out.facts.extend(of_stream(StreamId::Signal(id), &run.born.home.tenant, facts, Answer::Done).facts);
    Ok(out)
}

/// The clock's look at what is kept.
pub(crate) fn tick(view: &dyn View, id: &Scoped, given: &Given<'_>) -> Result<Outcome, Refusal> {
    let Some(known) = signals_of(view, id)? else { return Ok(Outcome::reply(Answer::Nothing)) };
    let expired = known.decide(&Input::Expire, given.at)?;
    Ok(of_stream(StreamId::Signal(id.clone()), &tenant_of(id), expired.facts, Answer::Done))
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Answer {
        match reply {
            Reply::Kept => Answer::SignalKept,
            Reply::Taken { .. } => Answer::Done,
            Reply::Nothing => Answer::Nothing,
        }
    }
}
