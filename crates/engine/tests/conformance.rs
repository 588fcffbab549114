//! The fakes pass the suite that every store must pass, and the suite finds a store that does not.

use windlass_engine::conformance::{Subject, check};
use windlass_engine::fake::{Forgetful, Kept, Memory};
use windlass_engine::port::{Batch, Fault, Found, Leased, Store};

#[test]
fn a_store_in_memory_conforms() {
    assert!(check(Memory::default).unwrap() >= 16);
}

#[test]
fn a_store_that_forgets_conforms() {
    check(Forgetful::default).unwrap();
}

/// A store that answers before it keeps, and loses the last batch in a restart.
#[derive(Default)]
struct Hasty(Memory);

impl Store for Hasty {
    fn view(&mut self) -> &mut dyn windlass_core::turn::Overlay {
        self.0.view()
    }
    fn load(&mut self, streams: &[windlass_core::stream::StreamId]) -> Result<(), Fault> {
        self.0.load(streams)
    }
    fn commit(&mut self, batch: Batch, soon: bool) {
        self.0.commit(batch, soon);
    }
    fn reload(&mut self) -> Result<(), Fault> {
        self.0.reload()
    }
    fn has_room(&mut self) -> bool {
        self.0.has_room()
    }
    fn pick_ready(
        &mut self,
        taker: &windlass_core::turn::index::Taker<'_>,
    ) -> Option<(windlass_core::id::RunId, Vec<windlass_core::id::StepId>)> {
        self.0.pick_ready(taker)
    }
    fn put_back(&mut self, run: windlass_core::id::RunId) {
        self.0.put_back(run);
    }
    fn pick_due(
        &mut self,
        at: windlass_core::time::Millis,
        max: usize,
    ) -> Vec<windlass_core::stream::StreamId> {
        self.0.pick_due(at, max)
    }
    fn next_due(&mut self) -> Option<windlass_core::time::Millis> {
        self.0.next_due()
    }
    fn pick_expired(&mut self, at: windlass_core::time::Millis) -> Vec<Leased> {
        self.0.pick_expired(at)
    }
    fn beat(&mut self, holder: windlass_core::id::Holder, at: windlass_core::time::Millis) {
        self.0.beat(holder, at);
    }
    fn newest(&self) -> Option<windlass_core::time::Millis> {
        self.0.newest()
    }
    fn recover(&mut self, at: windlass_core::time::Millis) -> Result<Found, Fault> {
        self.0.recover(at)
    }
    fn idle(&mut self, at: windlass_core::time::Millis) -> bool {
        self.0.idle(at)
    }
}

impl Subject for Hasty {
    fn reopen(self) -> Self {
        let mut kept = self.0.kept;
        kept.pop();
        Hasty(Memory::from(kept))
    }
    fn kept(&mut self) -> Vec<Kept> {
        self.0.kept.clone()
    }
    fn fill(&mut self, full: bool) -> bool {
        self.0.full = full;
        true
    }
}

#[test]
fn a_store_that_loses_what_it_acknowledged_is_found() {
    assert!(check(Hasty::default).is_err());
}
