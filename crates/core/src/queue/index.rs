//! Where the items of one queue are: what `pick` asks instead of looking at every item.
//!
//! The index is derived: [`Index::apply`] is told an item before and after its facts, and every item is in
//! exactly one place. It decides nothing. What it names is a hint that the item itself confirms.
//!
//! ```text
//!   delayed ──(its time comes: promote)──▶ ready ──▶ timed or held ──▶ failed, dead, completed, dropped
//!   by time                                by rank   by deadline       ids, ids, a count, a count
//! ```
//!
//! An item moves in O(log n). The best n are read off the front of `ready` in O(log n + n); a delayed item is
//! moved there once, when its time has come, so nothing is ever scanned. Its bound is the queue's depth.

use crate::id::{ItemId, Name};
use crate::item::Item;
use crate::time::Millis;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// The order in which items are taken: the higher priority, then the older, then the smaller id, which is
/// the order in which the shell made them.
type Rank = (Reverse<i32>, Millis, ItemId);

/// How many items are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Could be taken when the index was last asked.
    pub ready: u64,
    /// Wait for their time.
    pub delayed: u64,
    /// Are worked on.
    pub processing: u64,
    /// Are done.
    pub completed: u64,
    /// Failed for good.
    pub failed: u64,
    /// Used up their tries.
    pub dead: u64,
    /// Were taken out.
    pub dropped: u64,
}

/// Where the items of one queue are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    ready: BTreeSet<Rank>,
    delayed: BTreeSet<(Millis, Rank)>,
    /// Claims that time out, by deadline; heartbeats move them.
    deadlines: BTreeSet<(Millis, ItemId)>,
    /// The same claims by item.
    timed: BTreeMap<ItemId, Millis>,
    /// Claims of runs, which do not time out.
    held: BTreeSet<ItemId>,
    failed: BTreeSet<ItemId>,
    dead: BTreeSet<ItemId>,
    completed: u64,
    dropped: u64,
    /// The dedupe keys of items that are pending or processing. Earlier versions let two items share one: a failed item
    /// frees its key, and was put back by hand after another had taken it.
    keys: BTreeSet<(Name, ItemId)>,
}

impl Index {
    /// The index over items, from scratch.
    #[must_use]
    pub fn of<'a>(items: impl IntoIterator<Item = &'a Item>) -> Index {
        let mut index = Index::default();
        for item in items {
            index.add(item);
        }
        index
    }

    /// An item changed, or came into being (`before` is absent then).
    pub fn apply(&mut self, before: &Item, after: &Item) {
        self.remove(before);
        self.add(after);
    }

    /// An item left the store by retention.
    pub fn forget(&mut self, item: &Item) {
        self.remove(item);
    }

    /// The `n` items to be taken first at a time, best first.
    pub fn best(&mut self, n: usize, at: Millis) -> Vec<ItemId> {
        self.promote(at);
        self.ready.iter().take(n).map(|(_, _, id)| *id).collect()
    }

    /// The `n` items to be taken first, best first, of those that were promoted.
    #[must_use]
    pub fn peek(&self, n: usize) -> Vec<ItemId> {
        self.ready.iter().take(n).map(|(_, _, id)| *id).collect()
    }

    /// Moves the delayed items whose time has come to the others, and says which. Each is moved once.
    pub fn promote(&mut self, at: Millis) -> Vec<ItemId> {
        let mut moved = Vec::new();
        while let Some(&(due, rank)) = self.delayed.first()
            && due <= at
        {
            self.delayed.pop_first();
            self.ready.insert(rank);
            moved.push(rank.2);
        }
        moved
    }

    /// Up to `n` claims whose deadline has passed, longest ago first.
    #[must_use]
    pub fn expired(&self, n: usize, at: Millis) -> Vec<ItemId> {
        self.deadlines.iter().take_while(|(due, _)| *due <= at).take(n).map(|(_, id)| *id).collect()
    }

    /// A heartbeat moved the deadline of a claim. It never moves back; a claim that does not time out stays.
    pub fn extend(&mut self, item: ItemId, visible_at: Millis) {
        if let Some(deadline) = self.timed.get_mut(&item)
            && *deadline < visible_at
        {
            self.deadlines.remove(&(*deadline, item));
            self.deadlines.insert((visible_at, item));
            *deadline = visible_at;
        }
    }

    /// When the queue next wants to be looked at: a delayed item's time comes, or a claim's deadline.
    #[must_use]
    pub fn due(&self) -> Option<Millis> {
        let delayed = self.delayed.first().map(|(due, _)| *due);
        let deadline = self.deadlines.first().map(|(due, _)| *due);
        delayed.into_iter().chain(deadline).min()
    }

    /// How many items wait, delayed ones among them. What is worked on is bounded by those who work.
    #[must_use]
    pub fn depth(&self) -> u64 {
        count(self.ready.len()) + count(self.delayed.len())
    }

    /// The pending or processing item with that key; the oldest where there are two.
    #[must_use]
    pub fn known(&self, key: &Name) -> Option<ItemId> {
        let from = (key.clone(), ItemId(0));
        self.keys.range(from..).next().filter(|(found, _)| found == key).map(|(_, id)| *id)
    }

    /// The items that failed for good, in the order of their ids.
    pub fn failed(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.failed.iter().copied()
    }

    /// The items whose tries are used up, in the order of their ids.
    pub fn dead(&self) -> impl Iterator<Item = ItemId> + '_ {
        self.dead.iter().copied()
    }

    /// How many items are where.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            ready: count(self.ready.len()),
            delayed: count(self.delayed.len()),
            processing: count(self.timed.len()) + count(self.held.len()),
            completed: self.completed,
            failed: count(self.failed.len()),
            dead: count(self.dead.len()),
            dropped: self.dropped,
        }
    }

    fn add(&mut self, item: &Item) {
        if let (Some(body), Some(spot)) = (item.body(), Spot::of(item)) {
            self.enter(body.id, &spot);
        }
    }

    fn remove(&mut self, item: &Item) {
        if let (Some(body), Some(spot)) = (item.body(), Spot::of(item)) {
            self.leave(body.id, &spot);
        }
    }

    /// An item stands here now.
    pub fn enter(&mut self, id: ItemId, spot: &Spot) {
        match spot.place {
            Place::Ready => {
                self.ready.insert(spot.rank(id));
            }
            Place::Delayed(due) => {
                self.delayed.insert((due, spot.rank(id)));
            }
            Place::Timed(deadline) => {
                self.timed.insert(id, deadline);
                self.deadlines.insert((deadline, id));
            }
            Place::Held => {
                self.held.insert(id);
            }
            Place::Completed => self.completed += 1,
            Place::Failed => {
                self.failed.insert(id);
            }
            Place::Dead => {
                self.dead.insert(id);
            }
            Place::Dropped => self.dropped += 1,
        }
        if let Some(key) = &spot.key {
            self.keys.insert((key.clone(), id));
        }
    }

    /// An item stood here and does not any more.
    pub fn leave(&mut self, id: ItemId, spot: &Spot) {
        match spot.place {
            Place::Ready => {
                self.ready.remove(&spot.rank(id));
            }
            Place::Delayed(due) => {
                // A delayed item is where it was put, or where promotion moved it.
                let rank = spot.rank(id);
                if !self.delayed.remove(&(due, rank)) {
                    self.ready.remove(&rank);
                }
            }
            Place::Timed(_) | Place::Held => {
                // Heartbeats may have moved its deadline.
                if let Some(deadline) = self.timed.remove(&id) {
                    self.deadlines.remove(&(deadline, id));
                }
                self.held.remove(&id);
            }
            Place::Completed => self.completed = self.completed.saturating_sub(1),
            Place::Failed => {
                self.failed.remove(&id);
            }
            Place::Dead => {
                self.dead.remove(&id);
            }
            Place::Dropped => self.dropped = self.dropped.saturating_sub(1),
        }
        if let Some(key) = &spot.key {
            self.keys.remove(&(key.clone(), id));
        }
    }
}

/// Where an item stands in its queue: all that the index needs of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    priority: i32,
    pushed_at: Millis,
    place: Place,
    /// The key that it keeps others out by.
    key: Option<Name>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    Delayed(Millis),
    Timed(Millis),
    Held,
    Completed,
    Failed,
    Dead,
    Dropped,
}

impl Spot {
    /// Where an item stands; nowhere before its push.
    #[must_use]
    pub fn of(item: &Item) -> Option<Spot> {
        let body = item.body()?;
        let place = match item {
            Item::Absent { .. } => return None,
            Item::Pending { next_eligible_at: None, .. } => Place::Ready,
            Item::Pending { next_eligible_at: Some(due), .. } => Place::Delayed(*due),
            Item::Processing { claim, .. } => claim.visible_at.map_or(Place::Held, Place::Timed),
            Item::Completed { .. } => Place::Completed,
            Item::Failed { .. } => Place::Failed,
            Item::Dead { .. } => Place::Dead,
            Item::Dropped { .. } => Place::Dropped,
        };
        let open = matches!(place, Place::Ready | Place::Delayed(_) | Place::Timed(_) | Place::Held);
        let key = body.dedupe.clone().filter(|_| open);
        Some(Spot { priority: body.priority, pushed_at: body.pushed_at, place, key })
    }

    fn rank(&self, id: ItemId) -> Rank {
        (Reverse(self.priority), self.pushed_at, id)
    }
}

fn count(len: usize) -> u64 {
    len as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Holder, RunId};
    use crate::item::{Input, Push, Take};
    use crate::queue::Settings;
    use crate::testing::name;
    use crate::time::Span;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::collections::BTreeMap;
    use std::vec;

    fn absent() -> Item {
        Item::absent(name("acme"))
    }

    fn push(id: u128, priority: i32, due: Option<Millis>, dedupe: Option<Name>) -> Input {
        let mut terms = Settings::default().terms;
        terms.max_attempts = 2;
        terms.cooldown = Span(50);
        terms.visibility_timeout = Span(30);
        Input::Push(Push {
            queue: name("q"),
            namespace: name("n"),
            id: ItemId(id),
            data: Value::Null,
            priority,
            terms,
            next_eligible_at: due,
            dedupe,
            from: None,
            asked_by: Vec::new(),
        })
    }

    fn next(item: &Item, input: &Input, at: Millis) -> Item {
        match item.decide(input, at) {
            Ok(decision) => decision.facts.iter().fold(item.clone(), |item, fact| item.apply(fact, at)),
            Err(_) => item.clone(),
        }
    }

    #[test]
    fn the_best_are_the_highest_then_the_oldest_and_what_came_due_counts() {
        let mut index = Index::default();
        for (id, priority, at, due) in [
            (1, 0, 10, None),
            (2, 5, 20, None),
            (3, 0, 5, None),
            (4, 9, 1, Some(Millis(100))),
            (5, 5, 15, None),
        ] {
            index.apply(&absent(), &next(&absent(), &push(id, priority, due, None), Millis(at)));
        }
        let best =
            |index: &mut Index, n, at| index.best(n, Millis(at)).iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(best(&mut index, 9, 99), [5, 2, 3, 1]);
        assert_eq!(index.due(), Some(Millis(100)));
        assert_eq!(best(&mut index, 3, 100), [4, 5, 2]);
        assert_eq!((index.due(), index.depth()), (None, 5));
    }

    #[test]
    fn heartbeats_move_a_deadline_and_never_back() {
        let mut index = Index::default();
        let pushed = next(&absent(), &push(1, 0, None, None), Millis(0));
        index.apply(&absent(), &pushed);
        let holder = Holder::Outside(name("ci"));
        let taken = next(
            &pushed,
            &Input::Take(Take { holder, worker: None, run: None, visibility: true }),
            Millis(10),
        );
        index.apply(&pushed, &taken);
        assert_eq!(index.due(), Some(Millis(40)));
        index.extend(ItemId(1), Millis(70));
        index.extend(ItemId(1), Millis(60));
        index.extend(ItemId(2), Millis(60));
        assert_eq!((index.due(), index.expired(9, Millis(69))), (Some(Millis(70)), vec![]));
        assert_eq!(index.expired(9, Millis(70)), [ItemId(1)]);
        index.apply(&taken, &next(&taken, &Input::Complete { epoch: 1 }, Millis(50)));
        assert_eq!(index, Index { completed: 1, ..Index::default() });
    }

    #[test]
    fn a_key_is_known_until_its_item_ends() {
        let mut index = Index::default();
        let key = name("k");
        let pushed = next(&absent(), &push(1, 0, None, Some(key.clone())), Millis(0));
        index.apply(&absent(), &pushed);
        assert_eq!((index.known(&key), index.known(&name("j"))), (Some(ItemId(1)), None));
        index.apply(&pushed, &next(&pushed, &Input::Drop { reason: None }, Millis(1)));
        assert_eq!(index.known(&key), None);
    }

    /// A scan for each of these takes would need minutes; `docs/performance.md` has what the front of a tree needs.
    #[test]
    fn the_best_thousand_of_a_million_are_taken_one_by_one() {
        const ITEMS: u128 = 1_000_000;
        let mut index = Index {
            ready: (0..ITEMS).map(|n| (Reverse((n % 7) as i32), Millis(n as u64), ItemId(n))).collect(),
            ..Index::default()
        };
        let due = (0..1_000).map(|n| (Millis(5), (Reverse(9), Millis(n), ItemId(ITEMS + u128::from(n)))));
        index.delayed.extend(due);
        assert_eq!(index.best(1_000, Millis(5)).len(), 1_000);
        for n in 0..1_000u64 {
            let best = index.best(1, Millis(5))[0];
            assert_eq!(best, ItemId(ITEMS + u128::from(n)));
            index.ready.pop_first();
        }
        assert_eq!(index.depth(), 1_000_000);
    }

    fn any_input() -> impl Strategy<Value = Input> {
        let epoch = 0..4u64;
        prop_oneof![
            3 => (-1..2i32, prop::option::of(0..300u64), prop::option::of(0..3u8)).prop_map(|(priority, due, key)| {
                push(0, priority, due.map(Millis), key.map(|k| name(["a", "b", "c"][usize::from(k)])))
            }),
            3 => any::<bool>().prop_map(|visibility| Input::Take(Take {
                holder: Holder::Run(RunId(1)), worker: None, run: Some(RunId(1)), visibility,
            })),
            1 => epoch.clone().prop_map(|epoch| Input::Complete { epoch }),
            2 => (epoch.clone(), any::<bool>()).prop_map(|(epoch, retryable)| {
                Input::Fail { epoch, error: "no".into(), retryable }
            }),
            1 => epoch.clone().prop_map(|epoch| Input::Return { epoch }),
            1 => epoch.prop_map(|epoch| Input::Expire { epoch, last_seen: Millis(0) }),
            1 => Just(Input::Retry { data: None }),
            1 => Just(Input::Drop { reason: None }),
        ]
    }

    proptest! {
        #[test]
        fn the_index_equals_the_one_from_scratch_and_every_item_is_in_one_place(
            script in prop::collection::vec((0..6u128, any_input(), 0..40u64, any::<bool>()), 0..80),
        ) {
            let mut items: BTreeMap<u128, Item> = BTreeMap::new();
            let mut index = Index::default();
            let mut at = Millis(0);
            for (id, mut input, wait, look) in script {
                at = at + Span(wait);
                if let Input::Push(push) = &mut input {
                    push.id = ItemId(id);
                }
                let before = items.remove(&id).unwrap_or_else(absent);
                let after = next(&before, &input, at);
                index.apply(&before, &after);
                items.insert(id, after);
                if look {
                    index.promote(at);
                }
                let mut scratch = Index::of(items.values());
                let mut promoted = index.clone();
                scratch.promote(at);
                promoted.promote(at);
                prop_assert_eq!(&promoted, &scratch);

                let c = index.counts();
                let places = c.ready + c.delayed + c.processing + c.completed + c.failed + c.dead + c.dropped;
                prop_assert_eq!(places, items.values().filter(|item| item.body().is_some()).count() as u64);
                prop_assert_eq!(index.timed.len(), index.deadlines.len());
                for best in index.best(9, at) {
                    let take = Take { holder: Holder::Run(RunId(9)), worker: None, run: None, visibility: false };
                    let number = best.0;
                    prop_assert!(items[&number].decide(&Input::Take(take), at).is_ok());
                }
            }
        }
    }
}
