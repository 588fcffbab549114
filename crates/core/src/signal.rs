//! Signals by key: external events that nobody waited for when they came, kept for whoever waits first.
//!
//! ```text
//! signal ──▶ a run waits for this name and key ──▶ it goes on
//!        └─▶ nobody does ──▶ kept here ──▶ the first `wait` for it takes it, once
//!                                     └──▶ expired
//! ```
//!
//! Events of one name and key, in one tenant and namespace, are one stream. What is kept is bounded in number and in
//! time: a day is long enough for a run that is about to wait, and an older event is news to nobody.

use crate::caps;
use crate::code::Code;
use crate::event::{Event, SignalExpired, SignalKept, SignalTaken};
use crate::id::{Name, RunId, Scoped, StepId};
use crate::machine::{Decision, Given, Row, table};
use crate::origin::Initiator;
use crate::packed::Packed;
use crate::private::Private;
use crate::run::Run;
use crate::runbook::Runbook;
use crate::step::{Step, Wait};
use crate::time::{Millis, Span};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What leads where.
pub const TABLE: &[Row] = table! {
    "empty": "keep" => "keeping";
    "empty": "take" => "empty";
    "empty": "expire" => "empty";
    "keeping": "keep" => "keeping";
    "keeping": "take" => "keeping" | "empty";
    "keeping": "expire" => "keeping" | "empty";
};

/// How long an event is kept.
pub const TTL: Span = Span::hours(24);
/// The most events that are kept under one name and key.
pub const KEPT_MAX: usize = 100;
/// The most runs that one signal reaches at once.
pub const RUNS_MAX: usize = 1_000;

/// An event that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Its name.
    pub name: Name,
    /// Its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// The source's own id of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Name>,
    /// Where it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Name>,
    /// Until when.
    pub expires_at: Millis,
    /// What came with it.
    pub data: Packed,
    /// Who counts as having asked for what is made of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked_by: Vec<Name>,
}

/// The events that are kept under one name and key, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signals {
    /// Which.
    pub id: Scoped,
    /// What is kept.
    pub kept: Vec<Kept>,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// An event came, and nobody waits for it.
    Keep {
        name: Name,
        key: Option<Name>,
        event_id: Option<Name>,
        source: Option<Name>,
        data: Value,
        asked_by: Vec<Name>,
    },
    /// A step waits for one.
    Take { name: Name, key: Option<Name>, run: RunId, step: StepId },
    /// The clock is looked at.
    Expire,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It is kept, or was already.
    Kept,
    /// It is the step's now.
    Taken { event_id: Option<Name>, source: Option<Name>, data: Value, asked_by: Vec<Name> },
    /// There was nothing.
    Nothing,
}

/// Why an event is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// As many are kept as may be.
    #[error("{max} events of this name and key wait already; let a run take them, or wait until they expire", max = KEPT_MAX)]
    Full,
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::Full => Code::CapExceeded,
        }
    }
}

/// The stream of a name and key. Two that are cut to one text share it; each event has its whole name.
#[must_use]
pub fn stream(tenant: &Name, namespace: &Name, name: &Name, key: Option<&Name>) -> Scoped {
    match key {
        Some(key) => Scoped::new(tenant, namespace, &Name::clean(&alloc::format!("{name}/{key}"))),
        None => Scoped::new(tenant, namespace, name),
    }
}

/// The stream of the event that a step waits for.
#[must_use]
pub fn awaited(run: &Run, step: &Step) -> Option<Scoped> {
    let waiting = step.waiting.as_deref().filter(|waiting| waiting.reason == Wait::Event)?;
    let home = &run.born.home;
    Some(stream(&home.tenant, &home.namespace, waiting.on.as_ref()?, waiting.key.as_ref()))
}

/// Where an event comes from, as far as the one who brings it says: a webhook by its name, the API, or a step.
pub(crate) fn source(given: &Given<'_>) -> Option<Name> {
    let by = &given.by;
    match by.initiator {
        Initiator::Webhook => by.id.clone(),
        Initiator::User | Initiator::Service => Some(Name::clean("api")),
        Initiator::Executor | Initiator::Agent => Some(Name::clean("step")),
        Initiator::System
        | Initiator::Timeout
        | Initiator::Policy
        | Initiator::Approval
        | Initiator::Schedule
        | Initiator::Worker
        | Initiator::Recovery
        | Initiator::Hold => None,
    }
}

/// The source of the event that a wait is for, where the runbook's own triggers say so with one voice.
pub(crate) fn expected(runbook: &Runbook, event: &Name) -> Option<Name> {
    let mut sources = runbook.triggers.values().filter(|trigger| trigger.signal.as_ref() == Some(event));
    let first = &sources.next()?.source;
    sources.all(|trigger| trigger.source == *first).then(|| first.clone())
}

impl Signals {
    /// Nothing is kept.
    #[must_use]
    pub const fn new(id: Scoped) -> Signals {
        Signals { id, kept: Vec::new() }
    }

    /// How much is kept.
    #[must_use]
    pub(crate) fn size(&self) -> caps::Kept {
        let len = self.kept.iter().map(|kept| kept.data.as_str().len() as u64).sum();
        caps::Kept { signals: self.kept.len() as u64, signals_len: len, ..caps::Kept::default() }
    }

    /// Its state, as the table names it.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        if self.kept.is_empty() { "empty" } else { "keeping" }
    }

    /// When the first of them expires.
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        self.kept.iter().map(|kept| kept.expires_at).min()
    }

    /// The event that a wait for this name and key would get.
    #[must_use]
    pub fn first(&self, name: &Name, key: Option<&Name>, at: Millis) -> Option<&Kept> {
        let fits = |kept: &&Kept| kept.name == *name && kept.key.as_ref() == key && kept.expires_at > at;
        self.kept.iter().find(fits)
    }

    /// What would happen.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn decide(&self, input: &Input, at: Millis) -> Result<Decision<Reply>, Error> {
        match input {
            Input::Keep { name, key, event_id, source, data, asked_by } => {
                let live = || self.kept.iter().filter(|kept| kept.expires_at > at);
                let same = |kept: &Kept| kept.name == *name && kept.key == *key && kept.event_id == *event_id;
                if event_id.is_some() && live().any(same) {
                    // The source said it again.
                    return Ok(Decision::reply(Reply::Kept));
                }
                if live().count() >= KEPT_MAX {
                    return Err(Error::Full);
                }
                // What is over goes first, or a list that is full of it would grow.
                let mut decision = self.expired(at);
                decision.reply = Reply::Kept;
                Ok(decision.fact(SignalKept {
                    name: name.clone(),
                    key: key.clone(),
                    event_id: event_id.clone(),
                    expires_at: at + TTL,
                    data: Private::New(data.clone()),
                    source: source.clone(),
                    asked_by: Some(asked_by.clone()).filter(|names| !names.is_empty()),
                }))
            }
            Input::Take { name, key, run, step } => {
                let Some(kept) = self.first(name, key.as_ref(), at) else {
                    return Ok(Decision::reply(Reply::Nothing));
                };
                let reply = Reply::Taken {
                    event_id: kept.event_id.clone(),
                    source: kept.source.clone(),
                    data: kept.data.get(),
                    asked_by: kept.asked_by.clone(),
                };
                Ok(Decision::reply(reply).fact(SignalTaken {
                    name: name.clone(),
                    key: key.clone(),
                    expires_at: kept.expires_at,
                    pipeline_id: *run,
                    step: step.clone(),
                }))
            }
            Input::Expire => Ok(self.expired(at)),
        }
    }

    fn expired(&self, at: Millis) -> Decision<Reply> {
        let count = self.kept.iter().filter(|kept| kept.expires_at <= at).count() as u32;
        let nothing = Decision::reply(Reply::Nothing);
        if count == 0 { nothing } else { nothing.fact(SignalExpired { until: at, count }) }
    }

    /// What a fact does to it.
    #[must_use]
    pub fn apply(mut self, event: &Event, _at: Millis) -> Signals {
        match event {
            Event::SignalKept(e) => self.kept.push(Kept {
                name: e.name.clone(),
                key: e.key.clone(),
                event_id: e.event_id.clone(),
                source: e.source.clone(),
                expires_at: e.expires_at,
                data: Packed::of(e.data.value().unwrap_or(&Value::Null)),
                asked_by: e.asked_by.clone().unwrap_or_default(),
            }),
            Event::SignalTaken(e) => {
                let taken =
                    |kept: &Kept| kept.name == e.name && kept.key == e.key && kept.expires_at == e.expires_at;
                if let Some(i) = self.kept.iter().position(taken) {
                    self.kept.remove(i);
                }
            }
            Event::SignalExpired(e) => self.kept.retain(|kept| kept.expires_at > e.until),
            // tidy: nothing else happens to it.
            _ => {}
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Proof, name};
    use alloc::vec;
    use serde_json::json;

    const AT: Millis = Millis(1_000);

    fn id() -> Scoped {
        stream(&name("acme"), &name("prod"), &name("merged"), Some(&name("17")))
    }

    fn keep(event: &str, data: i32) -> Input {
        let (key, event_id) = (Some(name("17")), Some(name(event)));
        let source = Some(name("github"));
        Input::Keep { name: name("merged"), key, event_id, source, data: json!(data), asked_by: Vec::new() }
    }

    fn take() -> Input {
        Input::Take { name: name("merged"), key: Some(name("17")), run: RunId(1), step: name("w") }
    }

    fn feed(signals: &Signals, input: &Input, at: Millis) -> Result<(Signals, Reply), Error> {
        let decision = signals.decide(input, at)?;
        Ok((decision.facts.iter().fold(signals.clone(), |s, fact| s.apply(fact, at)), decision.reply))
    }

    fn after(inputs: &[(Input, Millis)]) -> Signals {
        inputs.iter().fold(Signals::new(id()), |signals, (input, at)| feed(&signals, input, *at).unwrap().0)
    }

    #[test]
    fn the_table_holds() {
        let (old, late) = (keep("e1", 1), AT + TTL);
        Proof {
            name: "signal",
            about: "External events that nobody waited for when they came.",
            table: TABLE,
            states: vec![
                ("empty", Signals::new(id())),
                ("keeping", after(&[(keep("e8", 1), AT + TTL)])),
                ("keeping", after(&[(old.clone(), AT)])),
                ("keeping", after(&[(old, AT), (keep("e9", 2), AT + TTL - Span(1))])),
                ("keeping", after(&[(keep("e8", 1), late - Span(1)), (keep("e9", 2), late - Span(1))])),
            ],
            inputs: vec![("keep", keep("e2", 3)), ("take", take()), ("expire", Input::Expire)],
        }
        .check(|signals, input| match feed(signals, input, AT + TTL) {
            Ok((next, _)) => Ok(next.state_name()),
            Err(error) => Err(error.code()),
        });
    }

    #[test]
    fn each_is_taken_once_in_the_order_they_came_and_none_after_its_time() {
        let signals = after(&[(keep("e1", 1), AT), (keep("e2", 2), AT), (keep("e1", 1), AT)]);
        assert_eq!(signals.kept.len(), 2, "the source said one of them twice");
        let (signals, first) = feed(&signals, &take(), AT).unwrap();
        assert_eq!(
            first,
            Reply::Taken {
                event_id: Some(name("e1")),
                source: Some(name("github")),
                data: json!(1),
                asked_by: Vec::new()
            }
        );
        assert_eq!(feed(&signals, &take(), AT + TTL).unwrap().1, Reply::Nothing);
        let (signals, second) = feed(&signals, &take(), AT + TTL - Span(1)).unwrap();
        assert_eq!(
            second,
            Reply::Taken {
                event_id: Some(name("e2")),
                source: Some(name("github")),
                data: json!(2),
                asked_by: Vec::new()
            }
        );
        assert_eq!(feed(&signals, &take(), AT).unwrap().1, Reply::Nothing);
        let other = Input::Take { name: name("merged"), key: None, run: RunId(1), step: name("w") };
        assert_eq!(feed(&after(&[(keep("e1", 1), AT)]), &other, AT).unwrap().1, Reply::Nothing);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_over_makes_room() {
        let mut signals = Signals::new(id());
        for n in 0..KEPT_MAX {
            signals = feed(&signals, &keep(&alloc::format!("e{n}"), 0), AT).unwrap().0;
        }
        assert_eq!(feed(&signals, &keep("more", 0), AT), Err(Error::Full));
        let (signals, _) = feed(&signals, &keep("more", 0), AT + TTL).unwrap();
        assert_eq!((signals.kept.len(), signals.due()), (1, Some(AT + TTL + TTL)));
        let saved = serde_json::to_string(&signals).unwrap();
        assert_eq!(serde_json::from_str::<Signals>(&saved).unwrap(), signals);
    }
}
