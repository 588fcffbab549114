//! The feed: what became durable lately, read from the log once and shared by all who follow it.
//!
//! ```text
//!  log ──▶ [line][line][line][line] ──▶ each follower takes what comes after its own seq
//!           └ a follower who is behind the first one reads the log by itself
//! ```
//!
//! No task of its own fills it: the follower who finds that the log has grown reads on for all, and the others wait for that
//! and take what it read. Where nobody follows, nobody reads. A feed that was left behind begins anew at the end of the log.

use crate::log::{self, Log, Seqs};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock};
use windlass_core::event::Event;
use windlass_core::id::{Name, RunId};
use windlass_core::record::Record;
use windlass_core::stream::StreamId;
use windlass_engine::fast::{Map, Set};
use windlass_engine::reader::{Line, Page, PageMax};

/// How many lines are kept, and how many bytes.
const LINES_MAX: usize = 8_192;
const BYTES_MAX: usize = 8 << 20;
/// How much is read at once.
const READ: PageMax = PageMax { lines: 1_024, bytes: 1 << 20 };
/// Of how many streams it is remembered in which namespace they are.
const KNOWN_MAX: usize = 16_384;

/// The lines that are kept.
#[derive(Default)]
struct Ring {
    lines: VecDeque<Arc<Line>>,
    bytes: usize,
    /// From this seq on every record is in it, up to the one before `next`.
    first: u64,
    next: u64,
}

impl Ring {
    fn push(&mut self, lines: Vec<Arc<Line>>, next: u64) {
        for line in lines {
            self.bytes += line.text.len();
            self.lines.push_back(line);
        }
        self.next = next;
        while (self.lines.len() > LINES_MAX || self.bytes > BYTES_MAX)
            && let Some(old) = self.lines.pop_front()
        {
            self.bytes -= old.text.len();
            self.first = old.record.seq + 1;
        }
    }

    fn page(&self, from: u64, max: PageMax) -> Option<Page> {
        if from < self.first {
            return None;
        }
        let begin = self.lines.partition_point(|line| line.record.seq < from);
        let (mut lines, mut bytes) = (Vec::new(), 0);
        for line in self.lines.range(begin..) {
            if lines.len() == max.lines || bytes >= max.bytes {
                break;
            }
            bytes += line.text.len();
            lines.push(line.clone());
        }
        let more = begin + lines.len() < self.lines.len();
        let last = lines.last().filter(|_| more).map(|line| line.record.seq + 1);
        Some(Page { next: last.unwrap_or(self.next.max(from)), lines, more })
    }
}

/// Which streams are in which namespaces, where their names do not say it.
#[derive(Default)]
pub(super) struct Namespaces(Map<StreamId, Option<Name>>);

impl Namespaces {
    /// What is known of a record's stream. The outer nothing: it has to be looked up.
    #[allow(clippy::option_option)] // A stream that is in no namespace is not one of which nothing is known.
    fn of(&mut self, record: &Record) -> Option<Option<Name>> {
        if let Event::PipelineCreated(made) = &record.event {
            self.put(&record.stream, Some(made.namespace.clone()));
        }
        match &record.stream {
            StreamId::Trigger(name) if name.namespace() != "_" => Some(None),
            StreamId::Run(_)
            | StreamId::Item(_)
            | StreamId::Workspace(_)
            | StreamId::Session(_)
            | StreamId::Trigger(_) => self.0.get(&record.stream).cloned(),
            StreamId::Queue(_)
            | StreamId::Lock(_)
            | StreamId::Semaphore(_)
            | StreamId::Worker(_)
            | StreamId::Schedule(_)
            | StreamId::Runbook(_)
            | StreamId::Effect(_)
            | StreamId::Deployment(_)
            | StreamId::Signal(_)
            | StreamId::Tenant(_)
            | StreamId::Tokens(_)
            | StreamId::System
            | StreamId::Retired(_) => Some(None),
        }
    }

    fn put(&mut self, stream: &StreamId, namespace: Option<Name>) {
        // A key may get its run later. Of everything else it does not change.
        if namespace.is_none() && matches!(stream, StreamId::Trigger(_)) {
            return;
        }
        if self.0.len() >= KNOWN_MAX {
            self.0.clear();
        }
        self.0.insert(stream.clone(), namespace);
    }
}

/// Lines that were read, and what has to be looked up before they are anybody's.
pub(super) struct Read {
    lines: Vec<(Record, String)>,
    pub(super) next: u64,
    pub(super) more: bool,
}

impl Read {
    /// Reads a page of all records.
    pub(super) fn all(log: &Log, from: u64, max: PageMax) -> Result<Read, log::Error> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let next = log.read(from, &mut |record, line| {
            bytes += line.len();
            lines.push((record, line.to_owned()));
            if lines.len() < max.lines && bytes < max.bytes {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        let more = lines.len() >= max.lines || bytes >= max.bytes;
        Ok(Read { lines, next, more })
    }

    /// Reads a page of a run's records.
    pub(super) fn of_run(log: &Log, run: RunId, seqs: Seqs, max: PageMax) -> Result<Read, log::Error> {
        let (mut lines, mut bytes, mut next) = (Vec::new(), 0, seqs.first);
        log.scan(&[StreamId::Run(run)], seqs, &mut |record, line| {
            bytes += line.len();
            next = record.seq + 1;
            lines.push((record, line.to_owned()));
            if lines.len() < max.lines && bytes < max.bytes {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        let more = lines.len() >= max.lines || bytes >= max.bytes;
        let next = if more { next } else { next.max(seqs.last.saturating_add(1)) };
        Ok(Read { lines, next, more })
    }

    /// The streams of which it is not known in which namespace they are, each once.
    pub(super) fn unknown(&self, known: &mut Namespaces) -> Vec<StreamId> {
        let mut unknown: Set<&StreamId> = Set::default();
        unknown.extend(
            self.lines
                .iter()
                .filter(|(record, _)| known.of(record).is_none())
                .map(|(record, _)| &record.stream),
        );
        unknown.into_iter().cloned().collect()
    }

    /// The page, where these streams were looked up.
    pub(super) fn page(self, known: &mut Namespaces, found: &[(StreamId, Option<Name>)]) -> Page {
        for (stream, namespace) in found {
            known.put(stream, namespace.clone());
        }
        let found: Map<&StreamId, &Option<Name>> =
            found.iter().map(|(stream, name)| (stream, name)).collect();
        let line = |(record, text): (Record, String)| {
            let looked = found.get(&record.stream).map(|namespace| (*namespace).clone());
            let namespace = looked.or_else(|| known.of(&record)).flatten();
            Arc::new(Line { record, text, namespace })
        };
        Page { lines: self.lines.into_iter().map(line).collect(), next: self.next, more: self.more }
    }
}

/// The feed of a log.
pub(super) struct Feed {
    ring: RwLock<Ring>,
    /// Held by the one who reads on for all.
    pub(super) filling: tokio::sync::Mutex<()>,
}

impl Feed {
    pub(super) fn new() -> Feed {
        Feed { ring: RwLock::default(), filling: tokio::sync::Mutex::new(()) }
    }

    /// Whether the log has grown since the feed was filled.
    pub(super) fn is_behind(&self, durable: u64) -> bool {
        self.ring.read().unwrap_or_else(PoisonError::into_inner).next <= durable
    }

    /// Reads on, for whoever holds [`Feed::filling`].
    pub(super) fn read(&self, log: &Log) -> Result<Read, log::Error> {
        let durable = log.durable_seq();
        let next = {
            let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
            if ring.next == 0 || durable.saturating_sub(ring.next) > LINES_MAX as u64 {
                *ring = Ring { first: durable + 1, next: durable + 1, ..Ring::default() };
            }
            ring.next
        };
        Read::all(log, next, READ)
    }

    /// Keeps what was read.
    pub(super) fn put(&self, page: Page) {
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        ring.push(page.lines, page.next);
    }

    /// What it has from a seq on; nothing where it does not reach back that far.
    pub(super) fn page(&self, from: u64, max: PageMax) -> Option<Page> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner).page(from, max)
    }
}
