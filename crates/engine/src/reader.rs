//! The port for reads: named questions with typed answers.
//!
//! ```text
//!  API, page, command line ─▶ Reader ─┬─▶ what is live: one message to the loop, which answers with a copy
//!                                     └─▶ what has ended, records: history and log, outside of the loop
//! ```
//!
//! Nobody outside of a store looks into it. An answer is an owned value, so that a store may be in this process's memory or
//! in a database elsewhere. What is seen is durable when it is answered.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use windlass_core::id::{Name, RunId};
use windlass_core::record::Record;
use windlass_core::turn::command::Refusal;

/// An answer that is on its way.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send + 'a>>;

/// A record with its line as it stands in the log.
#[derive(Debug)]
pub struct Line {
    /// The record.
    pub record: Record,
    /// Its line, without the newline.
    pub text: String,
    /// The namespace of what it is about, where the name of its stream does not say it: of a run, or of what belongs to
    /// one. Nothing where none is known.
    pub namespace: Option<Name>,
}

/// How much a page has: it ends with the line that reaches one of both.
#[derive(Clone, Copy, Debug)]
pub struct PageMax {
    /// How many lines.
    pub lines: usize,
    /// How many bytes.
    pub bytes: usize,
}

/// A page of records, in the order of the log. Followers share its lines.
#[derive(Clone, Debug)]
pub struct Page {
    /// The lines.
    pub lines: Vec<Arc<Line>>,
    /// The seq to go on from.
    pub next: u64,
    /// Whether there may be more already.
    pub more: bool,
}

/// Where in the log the records of a run stand: in this range of seqs, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Before this there are none.
    pub first: u64,
    /// Behind this there are none; [`u64::MAX`] where there may be more.
    pub last: u64,
}

/// Named questions about what is stored.
pub trait Reader: Send + Sync {
    /// A page of the durable records from a seq on: all of them, or those of a run. Those of a run cost that run's records.
    fn records(&self, of: Option<RunId>, within: Place, max: PageMax) -> Answer<'_, Page>;

    /// The same for those who follow the log and are near its end: they share what is read. Nothing where the caller is too
    /// far behind, and has to ask for [`Reader::records`] until it has caught up.
    fn follow(&self, from: u64, max: PageMax) -> Answer<'_, Option<Page>>;

    /// Waits until a record from a seq on is durable.
    fn grown(&self, from: u64) -> Answer<'_, ()>;

    /// Where the records of a run stand, as far as is known.
    fn place(&self, run: RunId) -> Answer<'_, Place>;
}
