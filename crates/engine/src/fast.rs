//! Maps and sets on the path of every step. Their hash is seeded anew in each process, like the standard one, and costs a
//! fraction of it.

use foldhash::fast::RandomState;

/// A hash map.
pub type Map<K, V> = std::collections::HashMap<K, V, RandomState>;
/// A hash set.
pub type Set<K> = std::collections::HashSet<K, RandomState>;
