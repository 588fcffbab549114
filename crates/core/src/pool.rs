//! The pool: what many runs or items have in common, kept once.
//!
//! A thousand runs of one pipeline have one tenant, one runbook and one word of policy. Each record says all of it
//! again; the pool gives them one copy. It is no part of the state: what is shared and what is not is equal.

use crate::id::{Name, Names};
use crate::item::Lot;
use crate::policy::Ledger;
use crate::run::Home;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The most homes that are kept; beyond it the pool starts anew, and only later runs share less.
const HOMES_MAX: usize = 4_096;
/// The most lots that are kept, likewise.
const LOTS_MAX: usize = 4_096;
/// The most ledgers that are kept: the latest, each compared whole.
const LEDGERS_MAX: usize = 8;

/// What many runs have in common.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    homes: BTreeSet<Arc<Home>>,
    ledgers: Vec<Arc<Ledger>>,
    lots: BTreeSet<Arc<Lot>>,
    /// The lot that was asked for last: the next one is often of the same queue.
    last: Option<Arc<Lot>>,
    names: Names,
}

impl Pool {
    /// Makes the lot the one that equals it.
    pub(crate) fn share_lot(&mut self, lot: &mut Arc<Lot>) {
        if let Some(last) = self.last.as_ref().filter(|last| *last == lot) {
            lot.clone_from(last);
            return;
        }
        match self.lots.get(lot) {
            Some(known) => lot.clone_from(known),
            None => {
                if self.lots.len() >= LOTS_MAX {
                    self.lots.clear();
                }
                self.lots.insert(lot.clone());
            }
        }
        self.last = Some(lot.clone());
    }

    /// Makes the home the one that equals it.
    pub(crate) fn share_home(&mut self, home: &mut Arc<Home>) {
        if let Some(known) = self.homes.get(home) {
            *home = known.clone();
            return;
        }
        if self.homes.len() >= HOMES_MAX {
            self.homes.clear();
        }
        self.homes.insert(home.clone());
    }

    /// Makes the name one that equals it, if it came lately.
    pub(crate) fn share_name(&mut self, name: &mut Name) {
        self.names.share(name);
    }

    /// Makes the ledger the one that equals it.
    pub(crate) fn share_ledger(&mut self, ledger: &mut Arc<Ledger>) {
        if let Some(known) = self.ledgers.iter().find(|known| *known == ledger) {
            *ledger = known.clone();
            return;
        }
        // What was said of a step concerns no other run.
        if !ledger.steps.is_empty() {
            return;
        }
        if self.ledgers.len() >= LEDGERS_MAX {
            self.ledgers.remove(0);
        }
        self.ledgers.push(ledger.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::testing::name;
    use alloc::string::String;

    fn home(n: usize) -> Arc<Home> {
        Arc::new(Home {
            tenant: name("acme"),
            namespace: name("default"),
            runbook: Digest([1; 32]),
            pipeline: name(&alloc::format!("p{n}")),
            cwd: String::new(),
            writes_max: None,
        })
    }

    #[test]
    fn equal_homes_become_one_and_the_pool_stays_bounded() {
        let mut pool = Pool::default();
        let (mut first, mut second) = (home(0), home(0));
        pool.share_home(&mut first);
        pool.share_home(&mut second);
        assert!(Arc::ptr_eq(&first, &second));
        for n in 0..2 * HOMES_MAX {
            pool.share_home(&mut home(n));
            assert!(pool.homes.len() <= HOMES_MAX);
        }
    }

    #[test]
    fn equal_ledgers_become_one_and_the_pool_stays_bounded() {
        let ledger = |n: u8| Arc::new(Ledger { version: Some(Digest([n; 32])), ..Ledger::EMPTY });
        let mut pool = Pool::default();
        let (mut first, mut second) = (ledger(0), ledger(0));
        pool.share_ledger(&mut first);
        pool.share_ledger(&mut second);
        assert!(Arc::ptr_eq(&first, &second));
        for n in 0..100 {
            pool.share_ledger(&mut ledger(n));
            assert!(pool.ledgers.len() <= LEDGERS_MAX);
        }
    }
}
