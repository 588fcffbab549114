//! What has ended leaves memory after a while: runs once they are listed, items once their end is durable. The log has them.

use super::{Embedded, LINGER, LINGER_MAX};
use crate::history::Row;
use crate::log::{self, Entry};
use std::sync::atomic::Ordering;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;

/// How many runs leave memory in one turn.
const LEAVE_MAX: usize = 512;

impl Embedded {
    /// Lists runs that have ended, and lets those leave memory whose listing is safe.
    pub(super) fn let_leave(&mut self, at: Millis) -> bool {
        let durable = self.durable.load(Ordering::Acquire);
        let mut rows = Vec::new();
        for ended in self.ended.iter_mut().take(LEAVE_MAX) {
            if ended.listed || ended.batch > durable {
                continue;
            }
            if let Some(run) = self.live.state.run(ended.run) {
                let first = self.first_seqs.get(&ended.run).copied().unwrap_or(1);
                rows.push(Row::of(run, (first, self.log.durable_seq())));
            }
            ended.listed = true;
        }
        if !rows.is_empty() {
            self.live.history.put(rows, self.log.durable_seq());
        }
        let mut gone = Vec::new();
        let flushed = self.live.history.flushed();
        self.live.flushed(flushed);
        while let Some(ended) = self.ended.front() {
            let old = ended.at + LINGER <= at || self.ended.len() > LINGER_MAX;
            let over = ended.listed && old && self.live.is_listed(ended.run);
            if !over || gone.len() >= LEAVE_MAX {
                break;
            }
            if self.saving.is_some() {
                // A snapshot under way counts on what it has not taken yet.
                break;
            }
            gone.push(Entry::Forget(StreamId::Run(ended.run)));
            self.live.state.evict(&StreamId::Run(ended.run));
            self.live.left(ended.run);
            self.first_seqs.remove(&ended.run);
            self.ended.pop_front();
        }
        self.items_leave(at, durable, &mut gone);
        self.names_leave(at, durable, &mut gone);
        let more = !gone.is_empty();
        if more {
            self.log.submit(log::Batch { entries: gone, done: Box::new(|_| {}) });
        }
        more
    }

    /// Lets items leave memory that are done, after a while for those who still ask: the log has what became of them.
    fn items_leave(&mut self, at: Millis, durable: u64, gone: &mut Vec<Entry>) {
        // A snapshot under way counts on what it has not taken yet.
        while gone.len() < LEAVE_MAX && self.saving.is_none() {
            let Some(&(item, since, batch)) = self.done_items.front() else { return };
            let old = since + LINGER <= at || self.done_items.len() > LINGER_MAX;
            if !old || batch > durable {
                return;
            }
            self.done_items.pop_front();
            let stream = StreamId::Item(item);
            self.live.state.evict(&stream);
            gone.push(Entry::Forget(stream));
        }
    }
}
