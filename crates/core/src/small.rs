//! A small map: pairs in a vector, in the order of their keys.
//!
//! What a runbook declares and what a run keeps beside its steps has few entries. There a vector takes less memory than a
//! tree and is as quick, and every kind of it is a tenth of the code that a kind of tree is. It has the words of
//! `BTreeMap`, looks like it in JSON, and is iterated in the same order. What has thousands of entries that come and go
//! belongs in a tree.

use alloc::vec::{self, Vec};
use core::borrow::Borrow;
use core::fmt;
use core::marker::PhantomData;
use core::slice;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// A map with few entries.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Map<K, V>(Vec<(K, V)>);

impl<K, V> Map<K, V> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Map<K, V> {
        Map(Vec::new())
    }

    /// How many entries there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every entry, by key.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.0.iter())
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values, by key.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator + Clone {
        self.0.iter().map(|(_, value)| value)
    }

    /// The values, by key, to be changed.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> + ExactSizeIterator {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// The entry with the highest key.
    #[must_use]
    pub fn last_key_value(&self) -> Option<(&K, &V)> {
        self.0.last().map(|(key, value)| (key, value))
    }

    /// Takes the entry with the lowest key out.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        (!self.is_empty()).then(|| self.0.remove(0))
    }

    /// Keeps the entries that are wanted.
    pub fn retain(&mut self, mut wanted: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| wanted(key, value));
    }

    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(known, _)| known.borrow().cmp(key))
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| &self.0[at].1)
    }

    /// The value of a key, to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| &mut self.0[at].1)
    }

    /// The entry of a key.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| (&self.0[at].0, &self.0[at].1))
    }

    /// Whether there is a key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.place(key).is_ok()
    }

    /// Takes an entry out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.place(key).ok().map(|at| self.0.remove(at).1)
    }
}

impl<K: Ord, V> Map<K, V> {
    /// Puts a value under a key, and returns the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(at) => Some(core::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// The value of a key; one is made where there is none.
    pub fn or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let at = match self.place(&key) {
            Ok(at) => at,
            Err(at) => {
                self.0.insert(at, (key, make()));
                at
            }
        };
        &mut self.0[at].1
    }

    /// The value of a key; the default is put there where there is none.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.or_insert_with(key, V::default)
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord, V> Extend<(K, V)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Map<K, V> {
        let mut map = Map::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Map<K, V> {
    fn from(entries: [(K, V); N]) -> Map<K, V> {
        entries.into_iter().collect()
    }
}

impl<K: Borrow<Q>, V, Q: Ord + ?Sized> core::ops::Index<&Q> for Map<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        // One that is not there is nowhere.
        &self.0[self.place(key).unwrap_or(usize::MAX)].1
    }
}

/// The entries of a map.
#[derive(Clone, Debug)]
pub struct Iter<'a, K, V>(slice::Iter<'a, (K, V)>);

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(key, value)| (key, value))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for Map<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Map<K, V>, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = Map<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Map<K, V>, A::Error> {
                let mut map = Map::new();
                while let Some((key, value)) = entries.next_entry()? {
                    map.insert(key, value);
                }
                Ok(map)
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::Map;
    use alloc::collections::BTreeMap;
    use alloc::string::String;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Act {
        Insert(u8, u8),
        OrInsert(u8, u8),
        Remove(u8),
        Change(u8, u8),
        KeepBelow(u8),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0..16_u8, any::<u8>()).prop_map(|(key, value)| Act::Insert(key, value)),
            (0..16_u8, any::<u8>()).prop_map(|(key, value)| Act::OrInsert(key, value)),
            (0..16_u8).prop_map(Act::Remove),
            (0..16_u8, any::<u8>()).prop_map(|(key, value)| Act::Change(key, value)),
            any::<u8>().prop_map(Act::KeepBelow),
        ]
    }

    proptest! {
        #[test]
        fn it_is_what_a_tree_would_be(acts in prop::collection::vec(act(), 0..64)) {
            let (mut map, mut tree) = (Map::new(), BTreeMap::new());
            for act in acts {
                match act {
                    Act::Insert(key, value) => prop_assert_eq!(map.insert(key, value), tree.insert(key, value)),
                    Act::OrInsert(key, value) => {
                        prop_assert_eq!(map.or_insert_with(key, || value), tree.entry(key).or_insert(value));
                    }
                    Act::Remove(key) => prop_assert_eq!(map.remove(&key), tree.remove(&key)),
                    Act::Change(key, value) => {
                        prop_assert_eq!(map.contains_key(&key), tree.contains_key(&key));
                        map.get_mut(&key).into_iter().for_each(|known| *known = value);
                        tree.get_mut(&key).into_iter().for_each(|known| *known = value);
                        prop_assert_eq!(map.get(&key), tree.get(&key));
                    }
                    Act::KeepBelow(most) => {
                        map.retain(|_, value| *value < most);
                        tree.retain(|_, value| *value < most);
                    }
                }
                prop_assert_eq!(map.len(), tree.len());
                prop_assert_eq!(map.iter().collect::<Vec<_>>(), tree.iter().collect::<Vec<_>>());
                let text = serde_json::to_string(&map).unwrap();
                prop_assert_eq!(&text, &serde_json::to_string(&tree).unwrap());
                prop_assert_eq!(&serde_json::from_str::<Map<u8, u8>>(&text).unwrap(), &map);
            }
        }
    }

    #[test]
    fn what_stands_twice_counts_once_and_the_last_one_does() {
        let map: Map<String, u8> = serde_json::from_str(r#"{"b":1,"a":2,"b":3}"#).unwrap();
        assert_eq!(map, Map::from([("a".into(), 2), ("b".into(), 3)]));
        assert_eq!(map["b"], 3);
        assert!(serde_json::from_str::<Map<String, u8>>("[1]").is_err());
    }
}
