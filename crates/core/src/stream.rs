//! Streams: what a fact belongs to. Each has a version and a hash chain of its own.

use crate::digest::Digest;
use crate::id::{Error, ItemId, Name, RunId, Scoped, SessionId, WorkspaceId, textual};
use crate::wire::{self, Reader, Wire, Writer};
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The identity of a stream, written `kind/…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// A tenant: its caps, weights, tokens and policy versions.
    Tenant(Name),
    /// The installation itself: starts, seals, keys.
    System,
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
            StreamId::System => "system",
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
            "system" if text == "system" => StreamId::System,
            _ => return Err(Error::Stream(wire::shorten(text))),
        })
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
            StreamId::Tenant(name) => write!(f, "tenant/{name}"),
            StreamId::System => f.write_str("system"),
            StreamId::Queue(s)
            | StreamId::Lock(s)
            | StreamId::Semaphore(s)
            | StreamId::Worker(s)
            | StreamId::Schedule(s)
            | StreamId::Trigger(s)
            | StreamId::Effect(s)
            | StreamId::Deployment(s) => write!(f, "{}/{s}", self.kind()),
        }
    }
}

textual!(StreamId, "stream");

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_kind_reads_back() {
        let scoped = Scoped::parse("acme/prod/a b/c").unwrap();
        for stream in [
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
            StreamId::Deployment(scoped),
            StreamId::Workspace(WorkspaceId(1)),
            StreamId::Session(SessionId(1)),
            StreamId::Tenant(Name::clean("acme")),
            StreamId::System,
        ] {
            let text = stream.to_string();
            assert!(text.starts_with(stream.kind()));
            assert_eq!(StreamId::parse(&text), Ok(stream), "{text}");
        }
        for bad in ["", "run", "run/", "system/", "ghost/x", "lock/a/b", "runbook/00"] {
            assert!(StreamId::parse(bad).is_err(), "{bad}");
        }
    }
}
