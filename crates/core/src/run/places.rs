//! Sets of places: which of a run's steps are live, ready, or the flow's to look at.
//!
//! Most hold one or two, so they are sorted lists rather than trees: a tree's first node has room for eleven.

use alloc::vec::Vec;

/// A sorted list of places without doubles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Places(Vec<u32>);

impl Places {
    /// Puts a place in, or takes it out.
    pub(super) fn set(&mut self, place: u32, member: bool) {
        match (self.0.binary_search(&place), member) {
            (Err(at), true) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(at, place);
            }
            (Ok(at), false) => {
                self.0.remove(at);
            }
            (Ok(_), true) | (Err(_), false) => {}
        }
    }

    /// The places, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn places_are_a_set_in_order(changes in prop::collection::vec((0..20u32, any::<bool>()), 0..60)) {
            let (mut places, mut set) = (Places::default(), BTreeSet::new());
            for (place, member) in changes {
                places.set(place, member);
                if member { set.insert(place); } else { set.remove(&place); }
                prop_assert_eq!(places.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(places.is_empty(), set.is_empty());
            }
        }
    }
}
