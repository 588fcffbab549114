//! Streams: what a fact belongs to. Each has a version and a hash chain of its own.

mod map;
pub use map::StreamMap;

use crate::digest::Digest;
use crate::id::{Error, ItemId, Name, RunId, Scoped, SessionId, WorkspaceId};
use crate::wire::{self, Reader, Wire, Writer};
use core::cmp::Ordering;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The identity of a stream, written `kind/…`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamId {
    /// A run with its steps, approvals and tasks.
    Run(RunId),
    /// A queue's settings.
    Queue(Scoped),
    /// One item of a queue.
    Item(ItemId),
    /// A lock and its waiters.
    Lock(Scoped),
    /// A semaphore, its holders and waiters.
    Semaphore(Scoped),
    /// A worker that consumes a queue.
    Worker(Scoped),
    /// A schedule.
    Schedule(Scoped),
    /// An ingress key: one delivery of one source, for one tenant.
    Trigger(Scoped),
    /// An effect key: what identifies a side effect on the outside world.
    Effect(Scoped),
    /// A runbook's content, by its hash.
    Runbook(Digest),
    /// A runbook's name and its active version.
    Deployment(Scoped),
    /// A working directory.
    Workspace(WorkspaceId),
    /// A live session.
    Session(SessionId),
    /// A tenant: its caps, weights and policy versions.
    Tenant(Name),
    /// The tokens of a tenant. Nobody who proves a run needs them.
    Tokens(Name),
    /// The installation itself: starts, seals, keys.
    System,
    /// External events of one name and key that nobody waited for yet.
    Signal(Scoped),
    /// What left by retention, of one tenant.
    Retired(Name),
}

impl StreamId {
    /// The kind of stream, as the text begins.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            StreamId::Run(_) => "run",
            StreamId::Queue(_) => "queue",
            StreamId::Item(_) => "item",
            StreamId::Lock(_) => "lock",
            StreamId::Semaphore(_) => "semaphore",
            StreamId::Worker(_) => "worker",
            StreamId::Schedule(_) => "schedule",
            StreamId::Trigger(_) => "trigger",
            StreamId::Effect(_) => "effect",
            StreamId::Runbook(_) => "runbook",
            StreamId::Deployment(_) => "deployment",
            StreamId::Workspace(_) => "workspace",
            StreamId::Session(_) => "session",
            StreamId::Tenant(_) => "tenant",
            StreamId::Tokens(_) => "tokens",
            StreamId::System => "system",
            StreamId::Signal(_) => "signal",
            StreamId::Retired(_) => "retired",
        }
    }

    /// Reads `kind/…`.
    ///
    /// # Errors
    /// An unknown kind, or an identity that does not parse.
    pub fn parse(text: &str) -> Result<StreamId, Error> {
        let (kind, rest) = text.split_once('/').unwrap_or((text, ""));
        Ok(match kind {
            "run" => StreamId::Run(RunId::parse(rest)?),
            "queue" => StreamId::Queue(Scoped::parse(rest)?),
            "item" => StreamId::Item(ItemId::parse(rest)?),
            "lock" => StreamId::Lock(Scoped::parse(rest)?),
            "semaphore" => StreamId::Semaphore(Scoped::parse(rest)?),
            "worker" => StreamId::Worker(Scoped::parse(rest)?),
            "schedule" => StreamId::Schedule(Scoped::parse(rest)?),
            "trigger" => StreamId::Trigger(Scoped::parse(rest)?),
            "effect" => StreamId::Effect(Scoped::parse(rest)?),
            "runbook" => {
                StreamId::Runbook(Digest::parse(rest).ok_or_else(|| Error::Stream(wire::shorten(text)))?)
            }
            "deployment" => StreamId::Deployment(Scoped::parse(rest)?),
            "workspace" => StreamId::Workspace(WorkspaceId::parse(rest)?),
            "session" => StreamId::Session(SessionId::parse(rest)?),
            "tenant" => StreamId::Tenant(Name::new(rest)?),
            "tokens" => StreamId::Tokens(Name::new(rest)?),
            "signal" => StreamId::Signal(Scoped::parse(rest)?),
            "retired" => StreamId::Retired(Name::new(rest)?),
            "system" if text == "system" => StreamId::System,
            _ => return Err(Error::Stream(wire::shorten(text))),
        })
    }
}

impl StreamId {
    /// The tenant whose it is, where its name says so.
    #[must_use]
    pub fn owner(&self) -> Option<Name> {
        match self {
            StreamId::Queue(scoped)
            | StreamId::Lock(scoped)
            | StreamId::Semaphore(scoped)
            | StreamId::Worker(scoped)
            | StreamId::Schedule(scoped)
            | StreamId::Trigger(scoped)
            | StreamId::Effect(scoped)
            | StreamId::Deployment(scoped)
            | StreamId::Signal(scoped) => Some(Name::clean(scoped.tenant())),
            StreamId::Tenant(name) | StreamId::Tokens(name) | StreamId::Retired(name) => Some(name.clone()),
            StreamId::Run(_)
            | StreamId::Item(_)
            | StreamId::Runbook(_)
            | StreamId::Workspace(_)
            | StreamId::Session(_)
            | StreamId::System => None,
        }
    }

    /// Whether it goes on for as long as its name is used: what it came to may stand for its earlier records.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        matches!(
            self,
            StreamId::Queue(_)
                | StreamId::Lock(_)
                | StreamId::Semaphore(_)
                | StreamId::Worker(_)
                | StreamId::Schedule(_)
                | StreamId::Tokens(_)
                | StreamId::Retired(_)
        )
    }

    /// The place of its kind among the others.
    #[inline]
    fn rank(&self) -> u8 {
        match self {
            StreamId::Run(_) => 0,
            StreamId::Queue(_) => 1,
            StreamId::Item(_) => 2,
            StreamId::Lock(_) => 3,
            StreamId::Semaphore(_) => 4,
            StreamId::Worker(_) => 5,
            StreamId::Schedule(_) => 6,
            StreamId::Trigger(_) => 7,
            StreamId::Effect(_) => 8,
            StreamId::Runbook(_) => 9,
            StreamId::Deployment(_) => 10,
            StreamId::Workspace(_) => 11,
            StreamId::Session(_) => 12,
            StreamId::Tenant(_) => 13,
            StreamId::Tokens(_) => 14,
            StreamId::System => 15,
            StreamId::Signal(_) => 16,
            StreamId::Retired(_) => 17,
        }
    }

    /// What it is sorted by among its kind: a number or a text.
    fn identity(&self) -> (u128, &[u8]) {
        match self {
            StreamId::Run(id) => (id.0, &[]),
            StreamId::Item(id) => (id.0, &[]),
            StreamId::Workspace(id) => (id.0, &[]),
            StreamId::Session(id) => (id.0, &[]),
            StreamId::Runbook(hash) => (0, &hash.0),
            StreamId::Tenant(name) | StreamId::Tokens(name) | StreamId::Retired(name) => {
                (0, name.as_str().as_bytes())
            }
            StreamId::System => (0, &[]),
            StreamId::Queue(scoped)
            | StreamId::Lock(scoped)
            | StreamId::Semaphore(scoped)
            | StreamId::Worker(scoped)
            | StreamId::Schedule(scoped)
            | StreamId::Trigger(scoped)
            | StreamId::Effect(scoped)
            | StreamId::Deployment(scoped)
            | StreamId::Signal(scoped) => (0, scoped.as_str().as_bytes()),
        }
    }
}

impl Ord for StreamId {
    /// Every look-up compares a dozen of them, and most are runs: two of those are two numbers.
    #[inline]
    fn cmp(&self, other: &StreamId) -> Ordering {
        match (self, other) {
            (StreamId::Run(a), StreamId::Run(b)) => a.cmp(b),
            (a, b) => a.rank().cmp(&b.rank()).then_with(|| a.identity().cmp(&b.identity())),
        }
    }
}

impl PartialOrd for StreamId {
    #[inline]
    fn partial_cmp(&self, other: &StreamId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamId::Run(id) => write!(f, "run/{id}"),
            StreamId::Item(id) => write!(f, "item/{id}"),
            StreamId::Runbook(hash) => write!(f, "runbook/{hash}"),
            StreamId::Workspace(id) => write!(f, "workspace/{id}"),
            StreamId::Session(id) => write!(f, "session/{id}"),
            StreamId::Tenant(name) | StreamId::Tokens(name) | StreamId::Retired(name) => {
                write!(f, "{}/{name}", self.kind())
            }
            StreamId::System => f.write_str("system"),
            StreamId::Queue(s)
            | StreamId::Lock(s)
            | StreamId::Semaphore(s)
            | StreamId::Worker(s)
            | StreamId::Schedule(s)
            | StreamId::Trigger(s)
            | StreamId::Effect(s)
            | StreamId::Deployment(s)
            | StreamId::Signal(s) => write!(f, "{}/{s}", self.kind()),
        }
    }
}

impl Serialize for StreamId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StreamId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        wire::parsed(d, Self::parse)
    }
}

impl Wire for StreamId {
    fn kind() -> &'static str {
        "stream"
    }
    fn put(&self, out: &mut Writer<'_>) {
        out.display(self);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, wire::Error> {
        // Most records are of runs.
        let run = |text: &[u8]| text.strip_prefix(b"run/").and_then(RunId::read);
        if let Some(run) = r.fixed("run/run_".len() + 26, run) {
            return Ok(StreamId::Run(run));
        }
        let text = r.text()?;
        Ok(Self::parse(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// One of each kind, in their order.
    fn one_of_each() -> [StreamId; 18] {
        let scoped = Scoped::parse("acme/prod/a b/c").unwrap();
        [
            StreamId::Run(RunId(1)),
            StreamId::Queue(scoped.clone()),
            StreamId::Item(ItemId(1)),
            StreamId::Lock(scoped.clone()),
            StreamId::Semaphore(scoped.clone()),
            StreamId::Worker(scoped.clone()),
            StreamId::Schedule(scoped.clone()),
            StreamId::Trigger(scoped.clone()),
            StreamId::Effect(scoped.clone()),
            StreamId::Runbook(Digest([7; 32])),
            StreamId::Deployment(scoped.clone()),
            StreamId::Workspace(WorkspaceId(1)),
            StreamId::Session(SessionId(1)),
            StreamId::Tenant(Name::clean("acme")),
            StreamId::Tokens(Name::clean("acme")),
            StreamId::System,
            StreamId::Signal(scoped),
            StreamId::Retired(Name::clean("acme")),
        ]
    }

    #[test]
    fn streams_sort_by_kind_and_then_by_identity() {
        let streams = one_of_each();
        for (i, a) in streams.iter().enumerate() {
            for (j, b) in streams.iter().enumerate() {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a} and {b}");
            }
        }
        assert!(StreamId::Run(RunId(1)) < StreamId::Run(RunId(2)));
        assert!(StreamId::Item(ItemId(1)) < StreamId::Item(ItemId(2)));
        assert!(StreamId::Runbook(Digest([1; 32])) < StreamId::Runbook(Digest([2; 32])));
        let lock = |text| StreamId::Lock(Scoped::parse(text).unwrap());
        assert!(lock("acme/prod/a") < lock("acme/prod/b"));
        assert_eq!(lock("acme/prod/a").cmp(&lock("acme/prod/a")), Ordering::Equal);
    }

    #[test]
    fn every_kind_reads_back() {
        for stream in one_of_each() {
            let text = stream.to_string();
            assert!(text.starts_with(stream.kind()));
            assert_eq!(StreamId::parse(&text), Ok(stream), "{text}");
        }
        for bad in ["", "run", "run/", "system/", "ghost/x", "lock/a/b", "runbook/00"] {
            assert!(StreamId::parse(bad).is_err(), "{bad}");
        }
    }
}
