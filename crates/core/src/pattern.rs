//! Patterns: which events somebody wants to hear of.
//!
//! A worker's `wake_on` is a list of them, and so is what a follower of events asks for.
//!
//! | pattern | means |
//! |---|---|
//! | `*` | every event |
//! | `step:*` | every event of a namespace |
//! | `step:failed` | one kind of event |
//! | `pipeline:advanced(merge)`, `step:*(merge)` | the same, about the step, queue, worker … of that name |
//! | `custom:deploy:done`, `custom:deploy`, `custom:*` | a runbook's own events: an action, a category, all |

use crate::code::Code;
use crate::event::{self, Event};
use crate::id::Name;
use crate::wire::shorten;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The most bytes a pattern may have.
pub const PATTERN_LEN_MAX: usize = 256;

/// Why a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Empty, or longer than a pattern may be.
    #[error("a pattern has 1 to {PATTERN_LEN_MAX} bytes")]
    Length,
    /// Not written as a pattern is.
    #[error("`{0}` is not a pattern: expected namespace:action, namespace:*, custom:category:action or *")]
    Form(String),
    /// Not the type of a custom event.
    #[error(
        "`{0}` is not the type of an event: expected category:action, as in deploy:done, each of 1 to {PART_LEN_MAX} letters, digits, `-`, `_` or `.`"
    )]
    Type(String),
    /// The argument is not closed, empty, or stands where none can.
    #[error("`{0}`: expected one argument in parentheses after the tag, as in pipeline:advanced(merge)")]
    Argument(String),
    /// No event has this tag.
    #[error("`{0}`: there is no such event")]
    Unknown(String),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::Length | Error::Form(_) | Error::Type(_) | Error::Argument(_) | Error::Unknown(_) => {
                Code::InvalidInput
            }
        }
    }
}

/// The most bytes that the category or the action of a custom event may have.
pub const PART_LEN_MAX: usize = 64;

/// Whether a text can be the category or the action of a custom event.
fn is_part(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=PART_LEN_MAX).contains(&text.len()) && text.bytes().all(plain)
}

/// The category and the action of a custom event, from `category:action`.
///
/// # Errors
/// Any other text.
pub fn custom_type(text: &str) -> Result<(Name, Name), Error> {
    // Patterns begin with `custom:`, types do not. One that does is a slip of the pen.
    let parts = text.split_once(':').filter(|(category, _)| *category != "custom");
    let named = parts.filter(|(category, action)| is_part(category) && is_part(action));
    let named =
        named.and_then(|(category, action)| Some((Name::new(category).ok()?, Name::new(action).ok()?)));
    named.ok_or_else(|| Error::Type(shorten(text)))
}

/// Which events are meant. One text, one pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// `*`
    Every,
    /// `namespace:*`, with the name of what it must be about.
    Namespace(String, Option<String>),
    /// `namespace:action`, with the name of what it must be about.
    Tag(String, Option<String>),
    /// `custom:category`, with an action.
    Custom(String, Option<String>),
}

impl Pattern {
    /// Reads a pattern. A tag that no event has is refused, so that a slip of the pen is found when a runbook is
    /// loaded and not by a worker that never wakes.
    ///
    /// # Errors
    /// Any text that is not a pattern.
    pub fn parse(text: &str) -> Result<Pattern, Error> {
        if text.is_empty() || text.len() > PATTERN_LEN_MAX {
            return Err(Error::Length);
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(Error::Form(shorten(text)));
        }
        if text == "*" {
            return Ok(Pattern::Every);
        }
        if let Some(rest) = text.strip_prefix("custom:") {
            return Pattern::custom(text, rest);
        }
        let (tag, about) = match text.split_once('(') {
            None => (text, None),
            Some((tag, rest)) => match rest.strip_suffix(')') {
                Some(about) if !about.is_empty() => (tag, Some(String::from(about))),
                Some(_) | None => return Err(Error::Argument(shorten(text))),
            },
        };
        let has = |fits: &dyn Fn(&str) -> bool| Event::specs().iter().any(|spec| fits(spec.tag));
        match tag.strip_suffix(":*") {
            Some(space) if has(&|tag| namespace(tag) == space) => {
                Ok(Pattern::Namespace(String::from(space), about))
            }
            None if tag.contains('*') => Err(Error::Form(shorten(text))),
            None if has(&|known| known == tag) => Ok(Pattern::Tag(String::from(tag), about)),
            Some(_) | None => Err(Error::Unknown(shorten(tag))),
        }
    }

    fn custom(text: &str, rest: &str) -> Result<Pattern, Error> {
        if rest == "*" {
            return Ok(Pattern::Namespace(String::from("custom"), None));
        }
        let (category, action) = match rest.split_once(':') {
            None | Some((_, "*")) => (rest.trim_end_matches(":*"), None),
            Some((category, action)) => (category, Some(String::from(action))),
        };
        if is_part(category) && action.as_deref().is_none_or(is_part) {
            Ok(Pattern::Custom(String::from(category), action))
        } else {
            Err(Error::Form(shorten(text)))
        }
    }

    /// Whether an event is meant.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        let is_about = |about: &Option<String>| {
            about.as_ref().is_none_or(|name| subjects(event).into_iter().flatten().any(|s| is_of(s, name)))
        };
        match self {
            Pattern::Every => true,
            Pattern::Namespace(space, about) => namespace(event.tag()) == space && is_about(about),
            Pattern::Tag(tag, about) => event.tag() == tag && is_about(about),
            Pattern::Custom(category, action) => match event {
                Event::Custom(e) => {
                    e.category.as_str() == category
                        && action.as_ref().is_none_or(|action| e.action.as_str() == action)
                }
                // tidy: only a runbook's own events have a category.
                _ => false,
            },
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tag, rest, about) = match self {
            Pattern::Every => return f.write_str("*"),
            Pattern::Custom(category, None) => return write!(f, "custom:{category}"),
            Pattern::Custom(category, Some(action)) => return write!(f, "custom:{category}:{action}"),
            Pattern::Namespace(space, about) => (space, ":*", about),
            Pattern::Tag(tag, about) => (tag, "", about),
        };
        match about {
            None => write!(f, "{tag}{rest}"),
            Some(about) => write!(f, "{tag}{rest}({about})"),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = Error;
    fn try_from(text: String) -> Result<Pattern, Error> {
        Pattern::parse(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> String {
        alloc::format!("{pattern}")
    }
}

fn namespace(tag: &str) -> &str {
    tag.split_once(':').map_or(tag, |(space, _)| space)
}

/// Whether a subject has that name: `each[3]` and `land#2` are instances of the steps `each` and `land`.
fn is_of(subject: &Name, name: &str) -> bool {
    let subject = subject.as_str();
    subject.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['[', '#']))
}

/// The names of what an event is about: its step, or else the thing that its stream is named after.
fn subjects(event: &Event) -> [Option<&Name>; 2] {
    let one = |name| [Some(name), None];
    match event {
        Event::PipelineCreated(e) => [Some(&e.kind), Some(&e.name)],
        Event::CommandRun(e) => one(&e.pipeline_name),
        Event::RunbookLoaded(e) => one(&e.name),
        Event::RunbookDeployed(e) => one(&e.name),
        Event::RunbookWithdrawn(e) => one(&e.name),
        Event::SignalReceived(e) => one(&e.name),
        Event::SignalConsumed(e) => [Some(&e.step), Some(&e.name)],
        Event::PipelineEntered(e) => [e.step.as_ref(), None],
        Event::PipelineFailed(e) => [e.step.as_ref(), None],
        Event::CheckpointSaved(e) => [e.step.as_ref(), None],
        Event::PolicyDecided(e) => [e.step.as_ref(), Some(&e.tool)],
        Event::HoldBroken(e) => [e.step.as_ref(), Some(&e.hold)],
        Event::HoldLost(e) => [Some(&e.step), Some(&e.hold)],
        Event::Escalate(e) => [e.step.as_ref(), None],
        Event::NoticeRequested(e) => [e.step.as_ref(), None],

        Event::PipelineAdvanced(e) => one(&e.step),
        Event::ApprovalRequested(e) => one(&e.step),
        Event::ReceiptRecorded(e) => one(&e.step),
        Event::BudgetReserved(event::BudgetReserved { step, .. })
        | Event::BudgetExceeded(event::BudgetExceeded { step, .. })
        | Event::CostRecorded(event::CostRecorded { step, .. })
        | Event::StepStarted(event::StepStarted { step, .. })
        | Event::StepWaiting(event::StepWaiting { step, .. })
        | Event::StepReady(event::StepReady { step, .. })
        | Event::StepCompleted(event::StepCompleted { step, .. })
        | Event::StepFailed(event::StepFailed { step, .. })
        | Event::StepRetrying(event::StepRetrying { step, .. })
        | Event::StepReturned(event::StepReturned { step, .. })
        | Event::StepExpired(event::StepExpired { step, .. })
        | Event::StepUnknown(event::StepUnknown { step, .. })
        | Event::StepResolved(event::StepResolved { step, .. })
        | Event::StepSkipped(event::StepSkipped { step, .. })
        | Event::StepCancelled(event::StepCancelled { step, .. })
        | Event::ShellExited(event::ShellExited { step, .. })
        | Event::StepOutputLost(event::StepOutputLost { step, .. })
        | Event::SecretUsed(event::SecretUsed { step, .. })
        | Event::StrategyFallback(event::StrategyFallback { step, .. })
        | Event::StrategyExhausted(event::StrategyExhausted { step, .. })
        | Event::GuardPassed(event::GuardPassed { step, .. })
        | Event::GuardWarned(event::GuardWarned { step, .. })
        | Event::GuardBlocked(event::GuardBlocked { step, .. })
        | Event::GuardFailed(event::GuardFailed { step, .. })
        | Event::AgentWaiting(event::AgentWaiting { step, .. })
        | Event::AgentWorking(event::AgentWorking { step, .. })
        | Event::AgentFailed(event::AgentFailed { step, .. })
        | Event::AgentExited(event::AgentExited { step, .. })
        | Event::AgentGone(event::AgentGone { step, .. })
        | Event::AgentSignal(event::AgentSignal { step, .. })
        | Event::TaskStarted(event::TaskStarted { step, .. })
        | Event::TaskStuck(event::TaskStuck { step, .. })
        | Event::TaskRecovered(event::TaskRecovered { step, .. })
        | Event::TaskNudged(event::TaskNudged { step, .. })
        | Event::TaskRestarting(event::TaskRestarting { step, .. })
        | Event::TaskCompleted(event::TaskCompleted { step, .. })
        | Event::TaskFailed(event::TaskFailed { step, .. })
        | Event::TaskEscalated(event::TaskEscalated { step, .. })
        | Event::SessionCreated(event::SessionCreated { step, .. })
        | Event::ApprovalDecided(event::ApprovalDecided { step, .. })
        | Event::ApprovalRefused(event::ApprovalRefused { step, .. })
        | Event::ApprovalReminded(event::ApprovalReminded { step, .. })
        | Event::ApprovalShown(event::ApprovalShown { step, .. })
        | Event::ApprovalExpired(event::ApprovalExpired { step, .. })
        | Event::ApprovalCancelled(event::ApprovalCancelled { step, .. })
        | Event::IntentRecorded(event::IntentRecorded { step, .. })
        | Event::IntentSettled(event::IntentSettled { step, .. }) => one(step),

        Event::WorkerStarted(event::WorkerStarted { worker_name, .. })
        | Event::WorkerConfigured(event::WorkerConfigured { worker_name, .. })
        | Event::WorkerWake(event::WorkerWake { worker_name, .. })
        | Event::WorkerPollComplete(event::WorkerPollComplete { worker_name, .. })
        | Event::WorkerPolled(event::WorkerPolled { worker_name, .. })
        | Event::WorkerDelayed(event::WorkerDelayed { worker_name, .. })
        | Event::WorkerItemDispatched(event::WorkerItemDispatched { worker_name, .. })
        | Event::WorkerItemSettled(event::WorkerItemSettled { worker_name, .. })
        | Event::WorkerResized(event::WorkerResized { worker_name, .. })
        | Event::WorkerStopped(event::WorkerStopped { worker_name, .. }) => one(worker_name),

        Event::LockConfigured(event::LockConfigured { lock, .. })
        | Event::LockQueued(event::LockQueued { lock, .. })
        | Event::LockAcquired(event::LockAcquired { lock, .. })
        | Event::LockReclaimed(event::LockReclaimed { lock, .. })
        | Event::LockReleased(event::LockReleased { lock, .. })
        | Event::LockAbandoned(event::LockAbandoned { lock, .. }) => one(lock),

        Event::SemaphoreConfigured(event::SemaphoreConfigured { semaphore, .. })
        | Event::SemaphoreQueued(event::SemaphoreQueued { semaphore, .. })
        | Event::SemaphoreAcquired(event::SemaphoreAcquired { semaphore, .. })
        | Event::SemaphoreIncreased(event::SemaphoreIncreased { semaphore, .. })
        | Event::SemaphoreReclaimed(event::SemaphoreReclaimed { semaphore, .. })
        | Event::SemaphoreReleased(event::SemaphoreReleased { semaphore, .. })
        | Event::SemaphoreAbandoned(event::SemaphoreAbandoned { semaphore, .. }) => one(semaphore),

        Event::ScheduleCreated(e) => one(&e.schedule),
        Event::ScheduleFired(event::ScheduleFired { schedule, .. })
        | Event::ScheduleSkipped(event::ScheduleSkipped { schedule, .. })
        | Event::ScheduleQueued(event::ScheduleQueued { schedule, .. })
        | Event::ScheduleDeferred(event::ScheduleDeferred { schedule, .. })
        | Event::ScheduleSettled(event::ScheduleSettled { schedule, .. })
        | Event::SchedulePaused(event::SchedulePaused { schedule, .. })
        | Event::ScheduleResumed(event::ScheduleResumed { schedule, .. })
        | Event::ScheduleRemoved(event::ScheduleRemoved { schedule, .. }) => one(schedule),

        // tidy: a queue's events are about the queue; the rest is about ids, which no pattern names.
        _ => [queue(event).map(|(_, queue)| queue), None],
    }
}

/// The namespace and name of the queue that an event belongs to.
fn queue(event: &Event) -> Option<(&Name, &Name)> {
    match event {
        Event::QueuePushed(e) => Some((&e.namespace, &e.queue_name)),
        Event::QueueCreated(event::QueueCreated { namespace, queue_name, .. })
        | Event::QueuePaused(event::QueuePaused { namespace, queue_name, .. })
        | Event::QueueResumed(event::QueueResumed { namespace, queue_name, .. })
        | Event::QueueWithdrawn(event::QueueWithdrawn { namespace, queue_name, .. })
        | Event::QueueTaken(event::QueueTaken { namespace, queue_name, .. })
        | Event::QueueReturned(event::QueueReturned { namespace, queue_name, .. })
        | Event::QueueCompleted(event::QueueCompleted { namespace, queue_name, .. })
        | Event::QueueFailed(event::QueueFailed { namespace, queue_name, .. })
        | Event::QueueItemRetry(event::QueueItemRetry { namespace, queue_name, .. })
        | Event::QueueItemRetried(event::QueueItemRetried { namespace, queue_name, .. })
        | Event::QueueItemDead(event::QueueItemDead { namespace, queue_name, .. })
        | Event::QueueItemDropped(event::QueueItemDropped { namespace, queue_name, .. }) => {
            Some((namespace, queue_name))
        }
        // tidy: every other event belongs to no queue.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ItemId, RunId};
    use crate::testing::name;
    use crate::time::Millis;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::string::ToString;

    fn advanced(step: &str) -> Event {
        event::PipelineAdvanced {
            id: RunId(1),
            step: name(step),
            node: 0,
            parent: None,
            section: None,
            tool: name("shell"),
            key: None,
            action_hash: None,
            compensates: None,
            group: None,
            gates: None,
            semantics: None,
            item: None,
            max_attempts: None,
            input: None,
            bindings: None,
            bound: None,
            edition: None,
        }
        .into()
    }

    fn custom(category: &str, action: &str) -> Event {
        let (category, action) = (name(category), name(action));
        event::Custom { category, action, pipeline_id: None, data: Value::Null.into() }.into()
    }

    fn retried(namespace: &str, queue: &str) -> Event {
        event::QueueItemRetried {
            queue_name: name(queue),
            item_id: ItemId(1),
            namespace: name(namespace),
            attempts: 1,
            next_eligible_at: Millis(0),
        }
        .into()
    }

    fn settled(worker: &str) -> Event {
        let (item_id, pipeline_id) = (ItemId(1), RunId(1));
        event::WorkerItemSettled { worker_name: name(worker), item_id, pipeline_id, succeeded: true }.into()
    }

    #[test]
    fn patterns_match_what_they_say() {
        for (pattern, event, expected) in [
            ("*", advanced("merge"), true),
            ("pipeline:*", advanced("merge"), true),
            ("step:*", advanced("merge"), false),
            ("pipeline:advanced", advanced("merge"), true),
            ("pipeline:started", advanced("merge"), false),
            ("pipeline:advanced(merge)", advanced("merge"), true),
            ("pipeline:advanced(merge)", advanced("merge#2"), true),
            ("pipeline:advanced(merge)", advanced("merge[3]"), true),
            ("pipeline:advanced(merge[3])", advanced("merge[3]"), true),
            ("pipeline:advanced(merge[3])", advanced("merge[4]"), false),
            ("pipeline:advanced(merge)", advanced("merger"), false),
            ("pipeline:*(test)", advanced("merge"), false),
            ("queue:item_retried(bugs)", retried("prod", "bugs"), true),
            ("queue:*(other)", retried("prod", "bugs"), false),
            ("worker:*(fixer)", settled("fixer"), true),
            ("custom:*", custom("deploy", "done"), true),
            ("custom:deploy", custom("deploy", "done"), true),
            ("custom:deploy:*", custom("deploy", "done"), true),
            ("custom:deploy:done", custom("deploy", "done"), true),
            ("custom:deploy:done", custom("deploy", "begun"), false),
            ("custom:test", custom("deploy", "done"), false),
            ("custom:deploy", advanced("deploy"), false),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(&event), expected, "{pattern} {event:?}");
        }
    }

    #[test]
    fn odd_patterns_are_refused() {
        let code = |text: &str| Pattern::parse(text).unwrap_err();
        assert_eq!(code(""), Error::Length);
        assert_eq!(code(&"x".repeat(PATTERN_LEN_MAX + 1)), Error::Length);
        for text in
            ["step:fail*", "a b", "step:\n", "custom:", "custom::x", "custom:a:b:c", "custom:a*", "*:*x"]
        {
            assert!(matches!(code(text), Error::Form(_)), "{text}");
        }
        for text in ["step:failed(", "step:failed()", "step:failed(a)b"] {
            assert!(matches!(code(text), Error::Argument(_)), "{text}");
        }
        for text in ["step:faild", "stepp:*", "step", ":", "*(x", "queue:push"] {
            assert!(!matches!(code(text), Error::Length), "{text}");
        }
        assert_eq!(code("queue:push"), Error::Unknown("queue:push".to_string()));
    }

    #[test]
    fn every_tag_and_namespace_is_a_pattern() {
        for spec in Event::specs().iter().filter(|spec| namespace(spec.tag) != "custom") {
            assert_eq!(Pattern::parse(spec.tag).unwrap().to_string(), spec.tag);
            if spec.tag.contains(':') {
                let all = std::format!("{}:*", namespace(spec.tag));
                assert_eq!(Pattern::parse(&all).unwrap().to_string(), all);
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd_and_what_parses_prints_back(
            text in prop_oneof![any::<String>(), "(custom|step|pipeline|queue|\\*)?:?[a-z*:()#\\[]{0,12}\\)?"],
        ) {
            if let Ok(pattern) = Pattern::parse(&text) {
                prop_assert_eq!(Pattern::parse(&pattern.to_string()), Ok(pattern.clone()));
                let kept = serde_json::to_string(&pattern).unwrap();
                prop_assert_eq!(serde_json::from_str::<Pattern>(&kept).unwrap(), pattern.clone());
                for event in [advanced("merge"), custom("a", "b"), retried("n", "q")] {
                    let _ = pattern.matches(&event);
                }
            }
        }
    }
}
