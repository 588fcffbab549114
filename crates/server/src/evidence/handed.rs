//! Exported bundles, by caller: exporting the same bundle again adds no record.
//!
//! It is bounded and in memory alone, so the export of an old bundle may be recorded twice.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use windlass_core::digest::Digest;

/// How many are remembered.
const KNOWN_MAX: usize = 65_536;

/// What was handed out.
#[derive(Default)]
pub struct HandedOut(Mutex<BTreeSet<Digest>>);

impl HandedOut {
    /// Whether this caller has exported this bundle before.
    #[must_use]
    pub fn has(&self, sha256: &Digest, who: &str) -> bool {
        self.lock().contains(&mark(sha256, who))
    }

    /// Notes that this caller's export of this bundle is recorded.
    pub fn put(&self, sha256: &Digest, who: &str) {
        let mut known = self.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(mark(sha256, who));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mark(sha256: &Digest, who: &str) -> Digest {
    Digest::of(&[&sha256.0, who.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bundle_is_handed_out_to_each_once_and_the_memory_of_it_is_bounded() {
        let (known, bundle) = (HandedOut::default(), Digest([1; 32]));
        known.put(&bundle, "ann");
        assert!(known.has(&bundle, "ann") && !known.has(&bundle, "bob"));
        assert!(!known.has(&Digest([2; 32]), "ann"));
        for n in 0..KNOWN_MAX {
            known.put(&bundle, &n.to_string());
        }
        assert!(known.lock().len() < KNOWN_MAX && known.has(&bundle, &(KNOWN_MAX - 1).to_string()));
    }
}
