//! A map by streams. Runs are the many, so they have a map of their own, by their numbers.

use super::StreamId;
use crate::id::RunId;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use core::ops::Bound;

/// A value for each stream, in the order of streams. Values stand in boxes: a tree's nodes are half empty, and room that
/// nobody uses should be small.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamMap<T> {
    runs: BTreeMap<RunId, Box<T>>,
    others: BTreeMap<StreamId, Box<T>>,
}

impl<T> Default for StreamMap<T> {
    fn default() -> Self {
        StreamMap { runs: BTreeMap::new(), others: BTreeMap::new() }
    }
}

impl<T> StreamMap<T> {
    /// The value of a stream.
    #[must_use]
    pub fn get(&self, stream: &StreamId) -> Option<&T> {
        match stream {
            StreamId::Run(run) => self.runs.get(run),
            other => self.others.get(other),
        }
        .map(|value| &**value)
    }

    /// How many streams have one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len() + self.others.len()
    }

    /// Whether none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.others.is_empty()
    }

    /// The value of a stream, to change it.
    pub fn get_mut(&mut self, stream: &StreamId) -> Option<&mut T> {
        match stream {
            StreamId::Run(run) => self.runs.get_mut(run),
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
            other => find(self.others.entry(other.clone()), make),
        }
    }

    /// Gives a stream a value; returns the one it had. The box stays.
    pub fn insert(&mut self, stream: &StreamId, value: T) -> Option<T> {
        if let Some(slot) = self.get_mut(stream) {
            return Some(core::mem::replace(slot, value));
        }
        let value = Box::new(value);
        match stream {
            StreamId::Run(run) => self.runs.insert(*run, value),
            other => self.others.insert(other.clone(), value),
        }
        .map(|value| *value)
    }

    /// Takes a stream's value out.
    pub fn remove(&mut self, stream: &StreamId) -> Option<T> {
        match stream {
            StreamId::Run(run) => self.runs.remove(run),
            other => self.others.remove(other),
        }
        .map(|value| *value)
    }

    /// Those after a stream, or all, in their order.
    pub fn after(&self, stream: Option<&StreamId>) -> impl Iterator<Item = (StreamId, &T)> {
        let (runs, others) = match stream {
            None => (Bound::Unbounded, Bound::Unbounded),
            Some(StreamId::Run(run)) => (Bound::Excluded(*run), Bound::Unbounded),
            // Every run comes before it.
            Some(other) => (Bound::Excluded(RunId(u128::MAX)), Bound::Excluded(other.clone())),
        };
        let runs = self.runs.range((runs, Bound::Unbounded));
        let others = self.others.range((others, Bound::Unbounded));
        runs.map(|(run, value)| (StreamId::Run(*run), &**value))
            .chain(others.map(|(stream, value)| (stream.clone(), &**value)))
    }

    /// The runs between two, both included, in their order.
    pub fn runs(&self, from: RunId, to: RunId) -> impl DoubleEndedIterator<Item = (RunId, &T)> {
        let range = (from <= to).then(|| self.runs.range(from..=to));
        range.into_iter().flatten().map(|(run, value)| (*run, &**value))
    }

    /// All of them. Runs come first among streams, so this is their order.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, &T)> {
        let runs = self.runs.iter().map(|(run, value)| (StreamId::Run(*run), &**value));
        runs.chain(self.others.iter().map(|(stream, value)| (stream.clone(), &**value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Name;
    use std::vec::Vec;

    #[test]
    fn it_is_a_map_in_the_order_of_streams() {
        let tenant = StreamId::Tenant(Name::clean("acme"));
        let all = [StreamId::Run(RunId(1)), StreamId::Run(RunId(2)), tenant, StreamId::System];
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
        assert_eq!(map.after(None).count(), all.len());
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
    }
}
