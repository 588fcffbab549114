//! Events: every fact, signal and action that can stand in the log, one flat JSON object each.
//!
//! A tag is `namespace:action`. Facts are past participles (`step:completed`) and change state when
//! they are applied; signals (`agent:waiting`) tell that something happened and change nothing; actions
//! (`pipeline:cancel`) are what somebody outside asked for. The payloads stand in the files of this
//! folder, a namespace or two each; [`Event`] is the one enum of them all. `docs/events.md` is generated
//! from here.
//!
//! A payload's fields are written in the order of its definition. A new field is optional and goes
//! last; a field is never renamed, retyped or moved, because old logs hold it.

use crate::digest::Salt;
use crate::wire::{Error, Reader, Writer, same, shorten};
use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

pub mod agent;
pub mod coordination;
pub mod governance;
pub mod queue;
pub mod run;
pub mod step;
pub mod system;
pub mod words;

pub use agent::*;
pub use coordination::*;
pub use governance::*;
pub use queue::*;
pub use run::*;
pub use step::*;
pub use system::*;

/// Where an event comes from and what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// Something that became true; applying it changes state.
    Fact,
    /// The engine's own notice that something happened; changes no state.
    Signal,
    /// Somebody outside asked for something; recorded for the audit, what comes of it are facts.
    Action,
}

impl Category {
    /// The word in the documentation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Category::Fact => "fact",
            Category::Signal => "signal",
            Category::Action => "action",
        }
    }
}

/// A description of one event, for the documentation and for tests.
pub struct Spec {
    /// `namespace:action`.
    pub tag: &'static str,
    /// The name of the variant.
    pub variant: &'static str,
    /// What it is.
    pub category: Category,
    /// The kind of stream it belongs to.
    pub stream: &'static str,
    /// What it says, who moves it on.
    pub doc: &'static [&'static str],
    /// Its fields and their types, in the order of the wire.
    pub fields: Vec<(&'static str, String)>,
}

/// What a payload can do; written by the `payloads!` macro.
pub(crate) trait Payload: Sized {
    const TAG: &'static str;
    fn spec() -> Spec;
    fn put(&self, out: &mut Writer<'_>, salts: &mut dyn FnMut() -> Salt, private: &mut Vec<u8>);
    fn get(r: &mut Reader<'_>) -> Result<Self, Error>;
    fn get_private(&mut self, r: &mut Reader<'_>) -> Result<(), Error>;
    fn weight(&self) -> usize;
}

/// Defines payloads: struct, wire form and description from one list of fields.
macro_rules! payloads {
    ($( $(#[doc = $doc:literal])+ $tag:literal $name:ident $category:ident on $stream:literal {
        $( $(#[$fmeta:meta])* $field:ident : $ty:ty ),* $(,)?
    } )+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $( $(#[$fmeta])* pub $field: $ty ),* }

        impl $crate::event::Payload for $name {
            const TAG: &'static str = $tag;

            fn spec() -> $crate::event::Spec {
                $crate::event::Spec {
                    tag: $tag,
                    variant: stringify!($name),
                    category: $crate::event::Category::$category,
                    stream: $stream,
                    doc: &[$($doc),+],
                    fields: alloc::vec![$( (stringify!($field), <$ty as $crate::wire::Field>::kind()) ),*],
                }
            }

            #[allow(unused_variables)]
            fn put(
                &self,
                out: &mut $crate::wire::Writer<'_>,
                salts: &mut dyn FnMut() -> $crate::digest::Salt,
                private: &mut alloc::vec::Vec<u8>,
            ) {
                $( $crate::wire::Field::put_public(&self.$field, stringify!($field), out, salts, private); )*
            }

            #[allow(unused_variables)]
            fn get(r: &mut $crate::wire::Reader<'_>) -> Result<Self, $crate::wire::Error> {
                Ok($name { $( $field: <$ty as $crate::wire::Field>::get_public(stringify!($field), r)? ),* })
            }

            #[allow(unused_variables)]
            fn get_private(&mut self, r: &mut $crate::wire::Reader<'_>) -> Result<(), $crate::wire::Error> {
                $( $crate::wire::Field::get_private(&mut self.$field, stringify!($field), r)?; )*
                Ok(())
            }

            fn weight(&self) -> usize {
                0 $( + $crate::wire::Field::weight(&self.$field) )*
            }
        }
    )+};
}
pub(crate) use payloads;

/// What a variant holds: its payload, or a box with it.
macro_rules! held {
    ($name:ident) => { $name };
    ($name:ident boxed) => { Box<$name> };
}

/// FNV-1a: enough to tell a few hundred tags apart.
const fn hash(bytes: &[u8]) -> u64 {
    let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// The numbers of tags by their hashes, in order. Two with the same one are not compiled.
const fn by_hash<const N: usize>(tags: &[&str]) -> [(u64, usize); N] {
    let (mut sorted, mut n) = ([(0, 0); N], 0);
    while n < N {
        let (hash, mut at) = (hash(tags[n].as_bytes()), n);
        while at > 0 && sorted[at - 1].0 >= hash {
            assert!(sorted[at - 1].0 != hash, "two tags have the same hash, or are the same");
            sorted[at] = sorted[at - 1];
            at -= 1;
        }
        sorted[at] = (hash, n);
        n += 1;
    }
    sorted
}

macro_rules! events {
    ($( $name:ident $(: $boxed:ident)? ),+ $(,)?) => {
        /// Any event. The payload of each variant has its name, tag and text. A fact is moved from the decision to the
        /// writer a few times, so payloads of more than about 200 bytes stand in a box.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Event { $( $name(held!($name $($boxed)?)) ),+ }

        $( impl From<$name> for Event {
            fn from(payload: $name) -> Event { Event::$name(payload.into()) }
        } )+

        impl Event {
            /// The tag: `namespace:action`.
            #[must_use]
            pub fn tag(&self) -> &'static str {
                match self { $( Event::$name(_) => <$name as Payload>::TAG ),+ }
            }

            /// The tag as it stands on the wire: that of a user's own event names its category and action.
            #[must_use]
            pub fn kind(&self) -> Cow<'static, str> {
                match self {
                    Event::Custom(e) => Cow::Owned(e.kind()),
                    // tidy: all others have one tag each.
                    _ => Cow::Borrowed(self.tag()),
                }
            }

            /// The descriptions of all events.
            #[must_use]
            pub fn specs() -> Vec<Spec> {
                alloc::vec![$( <$name as Payload>::spec() ),+]
            }

            pub(crate) fn put(&self, out: &mut Writer<'_>, salts: &mut dyn FnMut() -> Salt, private: &mut Vec<u8>) {
                match self { $( Event::$name(payload) => payload.put(out, salts, private) ),+ }
            }

            /// Reads the fields of `tag` up to the chain. Tags are looked up by their hashes: a log is read at a start,
            /// record by record, and to try one tag after the other took longer than to check a record's chain.
            pub(crate) fn get(tag: &str, r: &mut Reader<'_>) -> Result<Event, Error> {
                const TAGS: &[&str] = &[$( <$name as Payload>::TAG ),+];
                const SORTED: [(u64, usize); TAGS.len()] = by_hash(TAGS);
                const GET: [fn(&mut Reader<'_>) -> Result<Event, Error>; TAGS.len()] =
                    [$( |r| <$name as Payload>::get(r).map(Event::from) ),+];
                if tag.starts_with("custom:") {
                    let custom = <Custom as Payload>::get(r)?;
                    // The tag under which the kind is described is read too: no event is of the type `event` alone.
                    let is_its = tag == Custom::TAG || custom.kind() == tag;
                    return if is_its { Ok(custom.into()) } else { Err(Error::Tag(shorten(tag))) };
                }
                let hash = hash(tag.as_bytes());
                let found = SORTED.binary_search_by_key(&hash, |(hash, _)| *hash).ok().map(|at| SORTED[at].1);
                match found {
                    Some(n) if same(TAGS[n].as_bytes(), tag.as_bytes()) => GET[n](r),
                    Some(_) | None => Err(Error::Tag(shorten(tag))),
                }
            }

            pub(crate) fn get_private(&mut self, r: &mut Reader<'_>) -> Result<(), Error> {
                match self { $( Event::$name(payload) => payload.get_private(r) ),+ }
            }

            /// About how many bytes its record has.
            #[must_use]
            pub fn weight(&self) -> usize {
                // The stream, the time, the actor and the chain.
                const AROUND: usize = 320;
                AROUND + match self { $( Event::$name(payload) => payload.weight() ),+ }
            }
        }
    };
}

events! {
    // run.rs
    CommandRun, RunbookLoaded, RunbookDeployed, RunbookWithdrawn,
    PipelineCreated: boxed, PipelineInherited, PipelineReverses, PipelineBlocked, PipelineUnblocked, PipelineStarted,
    PipelineAdvanced: boxed, PipelineUpdated, PipelineEntered, PipelineSuspended, PipelineResumed, PipelineCancelling,
    PipelineCompleted, PipelineFailed, PipelineCancelled, PipelineOrphaned, PipelineDeleted,
    PipelineResume, PipelineCancel, PipelineSuspend, PipelineRetry, PipelineFork, PipelineUndo,
    CheckpointSaved: boxed, SignalReceived, SignalConsumed, SignalKept, SignalTaken, SignalExpired, BudgetReserved, BudgetReleased, BudgetExceeded, BudgetRaised,
    CostRecorded,
    // step.rs
    StepStarted, StepPrepared: boxed, StepWaiting, StepReady, StepCompleted, StepFailed, StepRetrying, StepReturned, StepExpired,
    StepUnknown, StepResolved, StepSkipped, StepCancelled, ShellExited, StepOutputLost, SecretUsed, StrategyFallback, StrategyExhausted,
    GuardPassed, GuardWarned, GuardBlocked, GuardFailed,
    // agent.rs
    AgentWaiting, AgentWorking, AgentFailed, AgentExited, AgentGone, AgentSignal,
    TaskStarted, TaskStuck, TaskRecovered, TaskNudged, TaskRestarting, TaskCompleted, TaskFailed, TaskEscalated,
    SessionCreated, SessionInput, SessionDeleted,
    WorkspaceCreated, WorkspaceReady, WorkspaceFailed, WorkspaceDrop, WorkspaceDeleted,
    // queue.rs
    QueueCreated, QueuePaused, QueueResumed, QueueWithdrawn, QueuePushed: boxed, QueueTaken, QueueReturned, QueueCompleted, QueueFailed,
    QueueItemRetry, QueueItemRetried, QueueItemDead, QueueItemDropped,
    WorkerStarted, WorkerConfigured, WorkerWake, WorkerPollComplete, WorkerPolled, WorkerDelayed, WorkerItemDispatched, WorkerItemSettled, WorkerResized, WorkerStopped,
    // coordination.rs
    LockConfigured, LockQueued, LockAcquired, LockReclaimed, LockReleased, LockAbandoned, HoldBroken, HoldLost,
    SemaphoreConfigured, SemaphoreQueued, SemaphoreAcquired, SemaphoreIncreased, SemaphoreReclaimed, SemaphoreReleased,
    SemaphoreAbandoned,
    // governance.rs
    PolicyLoaded, PolicyDecided: boxed, ApprovalRequested: boxed, ApprovalDecided, ApprovalRefused, ApprovalReminded, ApprovalShown,
    ApprovalExpired, ApprovalCancelled,
    IntentRecorded, ReceiptRecorded: boxed, ReceiptReversed, IntentLost, IntentSettled,
    TriggerClaimed, TriggerCompleted, TriggerFailed, TriggerExpired,
    ScheduleCreated: boxed, ScheduleFired, ScheduleSkipped, ScheduleQueued, ScheduleDeferred, ScheduleSettled, SchedulePaused, ScheduleResumed, ScheduleRemoved,
    // system.rs
    TimerStart, SystemStarted, SystemShutdown, SystemRecovered, SealCreated: boxed, KeyRotated, ValueRedacted, RetentionApplied, StreamCarried, EpochsRaised, EvidenceExported,
    TenantConfigured, TokenCreated, TokenRevoked, Escalate, NoticeRequested, NoticeSent, OutboxPosted, OutboxSettled, Custom,
}
