//! A map by streams. Runs and items are the many, so they have maps of their own, by their numbers.

use super::StreamId;
use crate::id::{ItemId, RunId};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use core::ops::Bound;

/// A value for each stream, in the order of streams. Values stand in boxes: a tree's nodes are half empty, and room that
/// nobody uses should be small.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMap<T> {
    runs: BTreeMap<RunId, Box<T>>,
    items: BTreeMap<ItemId, Box<T>>,
    others: BTreeMap<StreamId, Box<T>>,
}

/// Where items stand among the others.
const ITEMS: StreamId = StreamId::Item(ItemId(0));

impl<T> Default for StreamMap<T> {
    fn default() -> Self {
        StreamMap { runs: BTreeMap::new(), items: BTreeMap::new(), others: BTreeMap::new() }
    }
}

impl<T> StreamMap<T> {
    /// The value of a stream.
    #[must_use]
    pub fn get(&self, stream: &StreamId) -> Option<&T> {
        match stream {
            StreamId::Run(run) => self.runs.get(run),
            StreamId::Item(item) => self.items.get(item),
            other => self.others.get(other),
        }
        .map(|value| &**value)
    }

    /// How many streams have one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len() + self.items.len() + self.others.len()
    }

    /// Whether none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a stream, to change it.
    pub fn get_mut(&mut self, stream: &StreamId) -> Option<&mut T> {
        match stream {
            StreamId::Run(run) => self.runs.get_mut(run),
            StreamId::Item(item) => self.items.get_mut(item),
            other => self.others.get_mut(other),
        }
        .map(|value| &mut **value)
    }

    /// The value of a stream, made where it has none; says whether it was made.
    ///
    /// # Errors
    /// What the making says.
    pub fn get_or_make<E>(
        &mut self,
        stream: &StreamId,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<(&mut T, bool), E> {
        fn find<K: Ord, T, E>(
            entry: Entry<'_, K, Box<T>>,
            make: impl FnOnce() -> Result<T, E>,
        ) -> Result<(&mut T, bool), E> {
            match entry {
                Entry::Occupied(entry) => Ok((&mut **entry.into_mut(), false)),
                Entry::Vacant(entry) => Ok((&mut **entry.insert(Box::new(make()?)), true)),
            }
        }
        match stream {
            StreamId::Run(run) => find(self.runs.entry(*run), make),
            StreamId::Item(item) => find(self.items.entry(*item), make),
            other => find(self.others.entry(other.clone()), make),
        }
    }

    /// Gives a stream a value; returns the one it had. The box stays.
    pub fn insert(&mut self, stream: &StreamId, value: T) -> Option<T> {
        fn put<K: Ord, T>(entry: Entry<'_, K, Box<T>>, value: T) -> Option<T> {
            match entry {
                Entry::Occupied(mut entry) => Some(core::mem::replace(&mut **entry.get_mut(), value)),
                Entry::Vacant(entry) => {
                    entry.insert(Box::new(value));
                    None
                }
            }
        }
        match stream {
            StreamId::Run(run) => put(self.runs.entry(*run), value),
            StreamId::Item(item) => put(self.items.entry(*item), value),
            other => put(self.others.entry(other.clone()), value),
        }
    }

    /// Takes a stream's value out.
    pub fn remove(&mut self, stream: &StreamId) -> Option<T> {
        match stream {
            StreamId::Run(run) => self.runs.remove(run),
            StreamId::Item(item) => self.items.remove(item),
            other => self.others.remove(other),
        }
        .map(|value| *value)
    }

    /// All but items, in their order.
    pub fn but_items(&self) -> impl Iterator<Item = (StreamId, &T)> {
        let runs = self.runs.iter().map(|(run, value)| (StreamId::Run(*run), &**value));
        runs.chain(self.others())
    }

    /// Items alone, in their order.
    pub fn items(&self) -> impl Iterator<Item = (StreamId, &T)> {
        self.items.iter().map(|(item, value)| (StreamId::Item(*item), &**value))
    }

    /// Those after a stream, or all, in their order.
    pub fn after(&self, stream: Option<&StreamId>) -> impl Iterator<Item = (StreamId, &T)> {
        let (past_runs, past_items) = (Bound::Excluded(RunId(u128::MAX)), Bound::Excluded(ItemId(u128::MAX)));
        let (runs, items, others) = match stream {
            None => (Bound::Unbounded, Bound::Unbounded, Bound::Unbounded),
            Some(StreamId::Run(run)) => (Bound::Excluded(*run), Bound::Unbounded, Bound::Unbounded),
            // Every run comes before the rest, and every item before those that sort after items.
            Some(StreamId::Item(item)) => (past_runs, Bound::Excluded(*item), Bound::Included(ITEMS)),
            Some(other) if *other < ITEMS => (past_runs, Bound::Unbounded, Bound::Excluded(other.clone())),
            Some(other) => (past_runs, past_items, Bound::Excluded(other.clone())),
        };
        let is_past = matches!(&others, Bound::Included(from) | Bound::Excluded(from) if *from >= ITEMS);
        let before = (!is_past).then(|| self.others.range((others.clone(), Bound::Excluded(ITEMS))));
        let behind = if is_past { others } else { Bound::Included(ITEMS) };
        let runs =
            self.runs.range((runs, Bound::Unbounded)).map(|(run, value)| (StreamId::Run(*run), &**value));
        let items = self
            .items
            .range((items, Bound::Unbounded))
            .map(|(item, value)| (StreamId::Item(*item), &**value));
        let behind = self.others.range((behind, Bound::Unbounded));
        runs.chain(before.into_iter().flatten().map(|(stream, value)| (stream.clone(), &**value)))
            .chain(items)
            .chain(behind.map(|(stream, value)| (stream.clone(), &**value)))
    }

    /// Those from a stream on that is neither a run nor an item, in their order, without runs and items.
    pub fn from_kind(&self, from: StreamId) -> impl Iterator<Item = &T> {
        self.others_from(from).map(|(_, value)| value)
    }

    /// The same, with the streams.
    pub fn others_from(&self, from: StreamId) -> impl Iterator<Item = (&StreamId, &T)> {
        self.others.range(from..).map(|(stream, value)| (stream, &**value))
    }

    /// Everything but runs and items, in order.
    pub fn others(&self) -> impl Iterator<Item = (StreamId, &T)> {
        self.others.iter().map(|(stream, value)| (stream.clone(), &**value))
    }

    /// The runs between two, both included, in their order.
    pub fn runs(&self, from: RunId, to: RunId) -> impl DoubleEndedIterator<Item = (RunId, &T)> {
        let range = (from <= to).then(|| self.runs.range(from..=to));
        range.into_iter().flatten().map(|(run, value)| (*run, &**value))
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, &T)> {
        self.after(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Name, Scoped};
    use std::vec::Vec;

    #[test]
    fn it_is_a_map_in_the_order_of_streams() {
        let tenant = StreamId::Tenant(Name::clean("acme"));
        let queue = |name: &str| StreamId::Queue(Scoped::parse(name).unwrap());
        let (run, item) = (|n| StreamId::Run(RunId(n)), |n| StreamId::Item(ItemId(n)));
        let all =
            [run(1), run(2), queue("a/b/c"), queue("a/b/d"), item(0), item(7), tenant, StreamId::System];
        assert!(all.is_sorted());
        let mut map = StreamMap::default();
        for (n, stream) in all.iter().enumerate().rev() {
            assert_eq!(map.get_or_make(stream, || Err(7)), Err(7));
            assert_eq!(map.get_or_make::<()>(stream, || Ok(n)), Ok((&mut n.clone(), true)));
            assert_eq!(map.get_or_make::<()>(stream, || Err(())), Ok((&mut n.clone(), false)));
            assert_eq!(map.insert(stream, n), Some(n));
        }
        assert_eq!(map.iter().map(|(stream, _)| stream).collect::<Vec<_>>(), all);
        for (n, stream) in all.iter().enumerate() {
            assert_eq!(map.after(Some(stream)).map(|(stream, _)| stream).collect::<Vec<_>>(), all[n + 1..]);
        }
        assert_eq!((map.after(None).count(), map.len(), map.is_empty()), (all.len(), all.len(), false));
        let between = |from, to| map.runs(RunId(from), RunId(to)).map(|(run, _)| run.0).collect::<Vec<_>>();
        assert_eq!(
            (between(0, 9), between(2, 9), between(3, 2)),
            (Vec::from([1, 2]), Vec::from([2]), Vec::new())
        );
        for (n, stream) in all.iter().enumerate() {
            *map.get_mut(stream).unwrap() += 10;
            assert_eq!(map.get(stream), Some(&(n + 10)));
            assert_eq!(map.remove(stream), Some(n + 10));
            assert_eq!(map.get(stream), None);
        }
        assert!(map.is_empty());
    }
}
