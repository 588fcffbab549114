//! Items: there may be millions of them, and they are filed by the queue they are in.

use super::{Indexes, ItemCard, QueueIndex};
use crate::stream::StreamId;
use alloc::sync::Arc;

impl Indexes {
    /// Moves an item from where it was filed to where it belongs now.
    pub(super) fn file_item(&mut self, id: &StreamId, old: Option<&ItemCard>, new: Option<&ItemCard>) {
        let (StreamId::Item(item), Some(card)) = (id, new.or(old)) else { return };
        // The next one is often of the same queue, whose name need not be put together again.
        if self.last.as_ref().is_none_or(|(lot, _)| !Arc::ptr_eq(lot, &card.lot)) {
            self.last = Some((card.lot.clone(), card.lot.scoped()));
        }
        let Some((_, queue)) = &self.last else { return };
        let index = match self.queues.get_mut(queue) {
            Some(index) => index,
            None => self.queues.entry(queue.clone()).or_default(),
        };
        if let Some(old) = old {
            index.leave(*item, &old.spot);
        }
        if let Some(new) = new {
            index.enter(*item, &new.spot);
        }
        if *index == QueueIndex::default() {
            self.queues.remove(queue);
        }
    }
}
