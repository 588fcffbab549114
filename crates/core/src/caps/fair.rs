//! Whose turn it is: tenants by weight, then namespaces in turn, then priority, then those of one priority in turn, the
//! oldest first.
//!
//! Stride scheduling. Everyone in a ring has a pass, the lowest is served next, and being served moves it on
//! by a stride that is shorter the higher the weight. Who joins a ring starts at the pass that was served
//! last, so nobody saves up turns while away; who leaves and comes back keeps a pass that lies ahead, so
//! nobody jumps the line by coming in small pieces. Being skipped at a cap saves up nothing either.
//!
//! Three invariants follow. A newcomer waits for at most one turn of each other tenant, however much they have
//! queued. While the same tenants have work, each is served in proportion to its weight, to within a round. And within a
//! namespace a newcomer waits for at most one turn of each other entry of its priority, however often those come again:
//! a run of a thousand steps does not keep one of three from its first.
//!
//! Whole numbers only, ties by who came first: the same calls always give the same order. The cost of a turn is
//! O(log n), and O(log n) more for each tenant that is skipped at its cap.

use super::Caps;
use crate::id::Name;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// The highest weight a tenant can have; the lowest is 1.
pub const WEIGHT_MAX: u32 = 1_000;

/// The stride of weight 1. It is large enough that dividing it by a weight loses no more than a thousandth, and
/// passes are 128 bits wide, so that they do not run out.
const STRIDE: u128 = 1_000_000;

/// Something that waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry<Key> {
    /// Whose it is.
    pub tenant: Name,
    /// The subdivision of the tenant.
    pub namespace: Name,
    /// Higher goes first within the namespace.
    pub priority: i32,
    /// Its age: lower goes first among those who had as many turns.
    pub seq: u64,
    /// What it is.
    pub key: Key,
}

/// Everything that waits, in the order of fairness.
#[derive(Clone, Debug)]
pub struct Fair<Key> {
    ring: Ring<Name>,
    tenants: BTreeMap<Name, Tenant<Key>>,
    weights: BTreeMap<Name, u32>,
    len: usize,
}

#[derive(Clone, Debug)]
struct Tenant<Key> {
    ring: Ring<Name>,
    lines: BTreeMap<Name, Line<Key>>,
}

/// What waits in a namespace: by priority, each a ring of its own.
type Line<Key> = BTreeMap<Reverse<i32>, Ring<Aged<Key>>>;

/// An entry within its priority: its age, and what it is.
type Aged<Key> = (u64, Key);

/// When somebody's turn is: the pass, and among equal ones who came to it first.
type Turn = (u128, u64);

/// Who takes turns, and when each is next.
#[derive(Clone, Debug)]
struct Ring<Who> {
    order: BTreeSet<(Turn, Who)>,
    turns: BTreeMap<Who, Turn>,
    /// Those who left with a pass that still lies ahead.
    left: BTreeSet<(Turn, Who)>,
    /// The pass that was served last.
    clock: u128,
    /// How many turns were ever given; nought where equal passes go by the order of who has them.
    given: Option<u64>,
}

impl<Who: Ord + Clone> Ring<Who> {
    /// A ring in which who came to a pass first is first.
    fn first_come() -> Ring<Who> {
        Ring { given: Some(0), ..Ring::by_order() }
    }

    /// A ring in which equal passes go by the order of who has them.
    fn by_order() -> Ring<Who> {
        Ring { order: BTreeSet::new(), turns: BTreeMap::new(), left: BTreeSet::new(), clock: 0, given: None }
    }

    /// Whose turn it is, then who follows.
    fn in_order(&self) -> impl Iterator<Item = &Who> {
        self.order.iter().map(|(_, name)| name)
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn has(&self, name: &Who) -> bool {
        self.turns.get(name).is_some_and(|turn| self.order.contains(&(*turn, name.clone())))
    }

    fn join(&mut self, name: &Who) {
        let turn = self.turns.get(name).copied();
        match turn.map(|turn| (turn, name.clone())) {
            Some(place) if self.order.contains(&place) => {}
            Some(place) => {
                self.left.remove(&place);
                self.order.insert(place);
            }
            None => self.give(name, self.clock),
        }
    }

    fn leave(&mut self, name: &Who) {
        if let Some(turn) = self.turns.get(name).copied()
            && self.order.remove(&(turn, name.clone()))
        {
            self.left.insert((turn, name.clone()));
            self.forget();
        }
    }

    /// `name` had its turn.
    fn serve(&mut self, name: &Who, weight: u32) {
        let Some((pass, _)) = self.turns.get(name).copied() else { return };
        self.clock = self.clock.max(pass);
        self.give(name, pass + STRIDE / u128::from(weight.clamp(1, WEIGHT_MAX)));
        self.forget();
    }

    /// `name` could not have its turn; it does not keep it for later.
    fn skip(&mut self, name: &Who) {
        if self.turns.get(name).is_some_and(|(pass, _)| *pass < self.clock) {
            self.give(name, self.clock);
        }
    }

    fn give(&mut self, name: &Who, pass: u128) {
        self.given = self.given.map(|given| given.saturating_add(1));
        let turn = (pass, self.given.unwrap_or(0));
        if let Some(old) = self.turns.insert(name.clone(), turn) {
            self.order.remove(&(old, name.clone()));
        }
        self.order.insert((turn, name.clone()));
    }

    /// Forgets those who left and have nothing ahead, and everyone once nobody is there to be fair to.
    fn forget(&mut self) {
        while let Some(((pass, _), name)) = self.left.first()
            && (*pass <= self.clock || self.order.is_empty())
        {
            self.turns.remove(name);
            self.left.pop_first();
        }
    }
}

impl<Key> Default for Fair<Key> {
    fn default() -> Self {
        Fair { ring: Ring::first_come(), tenants: BTreeMap::new(), weights: BTreeMap::new(), len: 0 }
    }
}

impl<Key: Ord + Clone> Fair<Key> {
    /// Nothing waits.
    #[must_use]
    pub fn new() -> Self {
        Fair::default()
    }

    /// How many wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Everything that waits, by tenant, namespace and priority.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&Name, &Name, Reverse<i32>, &Aged<Key>)> {
        self.tenants.iter().flat_map(|(tenant, place)| {
            place.lines.iter().flat_map(move |(namespace, line)| {
                line.iter().flat_map(move |(priority, ring)| {
                    ring.in_order().map(move |entry| (tenant, namespace, *priority, entry))
                })
            })
        })
    }

    /// Gives a tenant its weight from its next turn on; 1 where nothing is said.
    pub fn weigh(&mut self, tenant: &Name, weight: u32) {
        self.weights.insert(tenant.clone(), weight.clamp(1, WEIGHT_MAX));
    }

    /// Puts an entry in line; says whether it was not there yet.
    pub fn push(&mut self, entry: Entry<Key>) -> bool {
        let Entry { tenant, namespace, priority, seq, key } = entry;
        self.ring.join(&tenant);
        let place = self
            .tenants
            .entry(tenant)
            .or_insert_with(|| Tenant { ring: Ring::first_come(), lines: BTreeMap::new() });
        place.ring.join(&namespace);
        let line = place.lines.entry(namespace).or_default();
        let ring = line.entry(Reverse(priority)).or_insert_with(Ring::by_order);
        let entry = (seq, key);
        let is_new = !ring.has(&entry);
        ring.join(&entry);
        self.len += usize::from(is_new);
        is_new
    }

    /// Takes an entry out of line; says whether it was there. Nobody is charged for it.
    pub fn remove(&mut self, entry: Entry<Key>) -> bool {
        let Entry { tenant, namespace, priority, seq, key } = entry;
        let was_there = self
            .tenants
            .get_mut(&tenant)
            .and_then(|place| place.lines.get_mut(&namespace)?.get_mut(&Reverse(priority)))
            .is_some_and(|ring| {
                let entry = (seq, key);
                let was_there = ring.has(&entry);
                ring.leave(&entry);
                was_there
            });
        if was_there {
            self.len -= 1;
            self.tidy(&tenant, &namespace);
        }
        was_there
    }

    /// Whose turn it is: takes the entry out of line and charges its tenant and namespace. Tenants at their
    /// `max_concurrency` are passed over; none is left where all of them are.
    pub fn next(&mut self, active: &BTreeMap<Name, u32>, caps: &BTreeMap<Name, Caps>) -> Option<Entry<Key>> {
        let has_room = |tenant: &Name| {
            let running = active.get(tenant).copied().unwrap_or_default();
            caps.get(tenant).is_none_or(|caps| caps.admit_step(running).is_ok())
        };
        let skipped: Vec<Name> =
            self.ring.in_order().take_while(|tenant| !has_room(tenant)).cloned().collect();
        let tenant = self.ring.in_order().nth(skipped.len())?.clone();
        let namespace = self.tenants.get(&tenant)?.ring.in_order().next()?.clone();
        let entry = self.take(tenant, namespace)?;
        for other in &skipped {
            self.ring.skip(other);
        }
        Some(entry)
    }

    /// The next of one namespace of a tenant, for somebody who may serve no other. The turn is charged as any.
    pub fn next_of(
        &mut self,
        (tenant, namespace): (&Name, &Name),
        active: &BTreeMap<Name, u32>,
        caps: &BTreeMap<Name, Caps>,
    ) -> Option<Entry<Key>> {
        let running = active.get(tenant).copied().unwrap_or_default();
        let has_room = caps.get(tenant).is_none_or(|caps| caps.admit_step(running).is_ok());
        if has_room { self.take(tenant.clone(), namespace.clone()) } else { None }
    }

    /// Takes what is first of a tenant's namespace out of line, and charges both.
    fn take(&mut self, tenant: Name, namespace: Name) -> Option<Entry<Key>> {
        let place = self.tenants.get_mut(&tenant)?;
        let line = place.lines.get_mut(&namespace)?;
        let (Reverse(priority), ring) = line.iter_mut().find(|(_, ring)| !ring.is_empty())?;
        let (priority, entry) = (*priority, ring.in_order().next()?.clone());
        ring.serve(&entry, 1);
        ring.leave(&entry);
        let (seq, key) = entry;
        self.len -= 1;
        place.ring.serve(&namespace, 1);
        self.ring.serve(&tenant, self.weights.get(&tenant).copied().unwrap_or(1));
        self.tidy(&tenant, &namespace);
        Some(Entry { tenant, namespace, priority, seq, key })
    }

    /// Lets a namespace and a tenant without entries leave their rings.
    fn tidy(&mut self, tenant: &Name, namespace: &Name) {
        let Some(place) = self.tenants.get_mut(tenant) else { return };
        if let Some(line) = place.lines.get_mut(namespace) {
            line.retain(|_, ring| !ring.is_empty());
            if line.is_empty() {
                place.lines.remove(namespace);
                place.ring.leave(namespace);
            }
        }
        if place.lines.is_empty() {
            self.tenants.remove(tenant);
            self.ring.leave(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;
    use proptest::prelude::*;
    use std::format;

    fn entry(tenant: &str, namespace: &str, priority: i32, seq: u64) -> Entry<u64> {
        Entry { tenant: name(tenant), namespace: name(namespace), priority, seq, key: seq }
    }

    fn open() -> (BTreeMap<Name, u32>, BTreeMap<Name, Caps>) {
        (BTreeMap::new(), BTreeMap::new())
    }

    fn serve(fair: &mut Fair<u64>) -> Option<Entry<u64>> {
        let (active, caps) = open();
        fair.next(&active, &caps)
    }

    fn served(fair: &mut Fair<u64>, n: usize) -> Vec<Entry<u64>> {
        (0..n).map_while(|_| serve(fair)).collect()
    }

    #[test]
    fn within_a_namespace_priority_goes_first_and_then_age() {
        let mut fair = Fair::new();
        for (priority, seq) in [(0, 1), (5, 9), (0, 0), (5, 3)] {
            assert!(fair.push(entry("a", "n", priority, seq)));
        }
        assert!(!fair.push(entry("a", "n", 0, 0)), "once is enough");
        assert!(fair.remove(entry("a", "n", 0, 1)) && !fair.remove(entry("a", "n", 0, 1)));
        assert_eq!(served(&mut fair, 9).iter().map(|e| e.key).collect::<Vec<_>>(), [3, 9, 0]);
        assert!(fair.is_empty());
    }

    #[test]
    fn an_entry_that_comes_again_and_again_waits_for_its_turn() {
        let mut fair = Fair::new();
        for seq in [1, 2] {
            fair.push(entry("a", "n", 0, seq));
        }
        let mut order = Vec::new();
        for turn in 0..12 {
            if turn == 6 {
                fair.push(entry("a", "n", 0, 9));
            }
            let next = serve(&mut fair).unwrap();
            order.push(next.key);
            // It is served for a step, and wants the next.
            fair.push(next);
        }
        assert_eq!(order, [1, 2, 1, 2, 1, 2, 9, 1, 2, 9, 1, 2]);
        // What is more urgent does not wait for its turn.
        fair.push(entry("a", "n", 1, 20));
        assert_eq!(serve(&mut fair).map(|e| e.key), Some(20));
    }

    #[test]
    fn a_hundred_thousand_entries_delay_one_of_another_tenant_by_a_turn() {
        let mut fair = Fair::new();
        for seq in 0..100_000 {
            fair.push(entry("big", "n", 100, seq));
        }
        fair.weigh(&name("big"), WEIGHT_MAX);
        served(&mut fair, 5_000);
        fair.push(entry("small", "n", 0, 200_000));
        let next = served(&mut fair, 2);
        assert!(next.iter().any(|e| e.tenant.as_str() == "small"), "{next:?}");
    }

    #[test]
    fn namespaces_of_a_tenant_take_turns() {
        let mut fair = Fair::new();
        for seq in 0..1_000 {
            fair.push(entry("a", "busy", 9, seq));
        }
        fair.push(entry("a", "quiet", 0, 5_000));
        assert!(served(&mut fair, 2).iter().any(|e| e.namespace.as_str() == "quiet"));
    }

    #[test]
    fn who_serves_one_namespace_gets_its_entries_only_and_within_the_tenants_cap() {
        let mut fair = Fair::new();
        for seq in 0..3 {
            fair.push(entry("a", "n", 0, seq));
            fair.push(entry("b", "m", 0, 5 + seq));
            fair.push(entry("b", "n", 0, 10 + seq));
        }
        let (active, caps) = open();
        let mut keys = Vec::new();
        while let Some(next) = fair.next_of((&name("b"), &name("n")), &active, &caps) {
            keys.push(next.key);
        }
        assert_eq!((keys, fair.len()), ([10, 11, 12].to_vec(), 6));
        let active = BTreeMap::from([(name("a"), 1)]);
        let caps = BTreeMap::from([(name("a"), Caps { max_concurrency: Some(1), ..Caps::default() })]);
        assert_eq!(fair.next_of((&name("a"), &name("n")), &active, &caps), None);
    }

    #[test]
    fn coming_in_small_pieces_does_not_jump_the_line() {
        let mut fair = Fair::new();
        for seq in 0..100 {
            fair.push(entry("steady", "n", 0, seq));
        }
        let mut steady = 0;
        for seq in 0..100 {
            // It has one entry at a time, and always one.
            if !fair.tenants.contains_key(&name("dribble")) {
                fair.push(entry("dribble", "n", 0, 1_000 + seq));
            }
            steady += usize::from(serve(&mut fair).unwrap().tenant.as_str() == "steady");
        }
        assert!((49..=51).contains(&steady), "{steady}");
    }

    #[test]
    fn turns_missed_at_a_cap_are_not_saved_up() {
        let mut fair = Fair::new();
        for seq in 0..1_000 {
            fair.push(entry("a", "n", 0, seq));
            fair.push(entry("b", "n", 0, seq));
        }
        let active = BTreeMap::from([(name("a"), 1)]);
        let caps = BTreeMap::from([(name("a"), Caps { max_concurrency: Some(1), ..Caps::default() })]);
        for _ in 0..500 {
            assert_eq!(fair.next(&active, &caps).unwrap().tenant.as_str(), "b");
        }
        let a = served(&mut fair, 10).iter().filter(|e| e.tenant.as_str() == "a").count();
        assert!((5..=6).contains(&a), "{a}");
        let both = BTreeMap::from([(name("a"), 1), (name("b"), 1)]);
        let none = Caps { max_concurrency: Some(0), ..Caps::default() };
        let closed = BTreeMap::from([(name("a"), none), (name("b"), none)]);
        assert_eq!(fair.next(&both, &closed), None);
    }

    #[test]
    fn a_ring_remembers_nobody_who_has_nothing_ahead() {
        let mut fair = Fair::new();
        for round in 0..100 {
            for n in 0..10 {
                fair.push(entry(&format!("t{}", round * 10 + n), "n", 0, n));
                fair.push(entry("steady", "n", 0, 1_000 + round * 10 + n));
            }
            served(&mut fair, 15);
        }
        // A thousand tenants came and went; those of the last round are remembered.
        assert!(fair.ring.turns.len() <= 21, "{}", fair.ring.turns.len());
        while serve(&mut fair).is_some() {}
        assert!(fair.ring.turns.is_empty() && fair.ring.left.is_empty() && fair.tenants.is_empty());
    }

    proptest! {
        #[test]
        fn shares_follow_weights_within_a_round(
            weights in prop::collection::vec(1..8u32, 1..6),
            rounds in 1..8usize,
        ) {
            let mut fair = Fair::new();
            let round: usize = weights.iter().map(|weight| *weight as usize).sum();
            for (n, weight) in weights.iter().enumerate() {
                fair.weigh(&name(&format!("t{n}")), *weight);
                for seq in 0..(round * rounds) as u64 {
                    fair.push(entry(&format!("t{n}"), "n", 0, seq));
                }
            }
            let turns = served(&mut fair, round * rounds);
            for (n, weight) in weights.iter().enumerate() {
                let got = turns.iter().filter(|e| e.tenant.as_str() == format!("t{n}")).count();
                let due = rounds * *weight as usize;
                prop_assert!(got.abs_diff(due) <= 1, "t{} with {}: {} of {}", n, weight, got, due);
            }
        }

        #[test]
        fn caps_hold_nobody_starves_and_nothing_is_lost(
            script in prop::collection::vec((0..4usize, 0..2usize, 0..3i32, 0..5u8), 1..200),
            cap in prop::collection::vec(prop::option::of(1..3u32), 4),
        ) {
            const TENANTS: [&str; 4] = ["a", "b", "c", "d"];
            let mut fair = Fair::new();
            let mut waiting: BTreeSet<Entry<u64>> = BTreeSet::new();
            let (mut active, mut caps) = open();
            for (tenant, max_concurrency) in TENANTS.iter().zip(&cap) {
                caps.insert(name(tenant), Caps { max_concurrency: *max_concurrency, ..Caps::default() });
            }
            // Since when each tenant could have been served and was not, in turns of others.
            let mut passed_over: BTreeMap<Name, usize> = BTreeMap::new();
            for (seq, (tenant, namespace, priority, act)) in script.into_iter().enumerate() {
                let tenant = TENANTS[tenant];
                match act {
                    0 | 1 => {
                        let entry = entry(tenant, ["m", "n"][namespace], priority, seq as u64);
                        prop_assert!(fair.push(entry.clone()) && waiting.insert(entry));
                    }
                    2 => {
                        // A run of the tenant ends.
                        active.entry(name(tenant)).and_modify(|n| *n = n.saturating_sub(1));
                    }
                    3 => {
                        let first = waiting.iter().find(|e| e.tenant.as_str() == tenant).cloned();
                        if let Some(entry) = first {
                            prop_assert!(fair.remove(entry.clone()) && waiting.remove(&entry));
                        }
                        // Whoever takes its last entry back has left the line.
                        if waiting.iter().all(|e| e.tenant.as_str() != tenant) {
                            passed_over.remove(tenant);
                        }
                    }
                    _ => {
                        let open: BTreeSet<Name> = waiting.iter().map(|e| e.tenant.clone())
                            .filter(|t| caps[t].admit_step(active.get(t).copied().unwrap_or(0)).is_ok()).collect();
                        let next = fair.next(&active, &caps);
                        prop_assert_eq!(next.is_none(), open.is_empty());
                        passed_over.retain(|t, _| open.contains(t));
                        if let Some(entry) = next {
                            prop_assert!(open.contains(&entry.tenant) && waiting.remove(&entry));
                            *active.entry(entry.tenant.clone()).or_default() += 1;
                            for other in &open {
                                *passed_over.entry(other.clone()).or_default() += 1;
                            }
                            passed_over.remove(&entry.tenant);
                            for (tenant, turns) in &passed_over {
                                prop_assert!(*turns < TENANTS.len(), "{} was passed over {} times", tenant, turns);
                            }
                        }
                    }
                }
                prop_assert_eq!(fair.len(), waiting.len());
            }
        }
    }
}
