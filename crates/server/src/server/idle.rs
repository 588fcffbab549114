//! Idle connections: which ones wait for a request, and since when.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What a connection that serves a request shows instead of since when it is idle.
const BUSY: u64 = 0;
/// What one that makes room shows.
const CLOSED: u64 = u64::MAX;

/// All connections of a pool.
#[derive(Debug)]
pub(super) struct Idle {
    members: Mutex<BTreeMap<u64, Arc<State>>>,
    /// Counts joins and ends of requests: idle since a lower one is idle for longer.
    clock: AtomicU64,
}

/// What is known of a connection.
#[derive(Debug)]
struct State {
    since: AtomicU64,
    close: Notify,
}

impl Default for Idle {
    fn default() -> Self {
        Idle { members: Mutex::default(), clock: AtomicU64::new(BUSY + 1) }
    }
}

impl Idle {
    fn members(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<State>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// A new connection, which is idle.
    pub(super) fn join(self: &Arc<Idle>) -> Member {
        let id = self.now();
        let state = Arc::new(State { since: AtomicU64::new(id), close: Notify::new() });
        self.members().insert(id, state.clone());
        Member(Arc::new(Seat { idle: self.clone(), id, state }))
    }

    /// Closes the connection that is idle the longest, where one is. One whose request comes this moment is not closed.
    pub(super) fn close_longest(&self) {
        let members = self.members();
        let since = |state: &Arc<State>| state.since.load(Ordering::Acquire);
        let idle = members.values().filter(|state| !matches!(since(state), BUSY | CLOSED));
        if let Some(state) = idle.min_by_key(|state| since(state)) {
            let seen = since(state);
            if seen != BUSY
                && state.since.compare_exchange(seen, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                state.close.notify_one();
            }
        }
    }
}

#[derive(Debug)]
struct Seat {
    idle: Arc<Idle>,
    id: u64,
    state: Arc<State>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.idle.members().remove(&self.id);
    }
}

/// A connection among the others.
#[derive(Clone, Debug)]
pub(super) struct Member(Arc<Seat>);

impl Member {
    /// A request begins. It ends when what is returned is dropped.
    pub(super) fn begin(&self) -> Busy {
        let since = &self.0.state.since;
        // One that is being closed stays so: its client asks again, as with any connection that ended between two requests.
        let _ =
            since.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| (now != CLOSED).then_some(BUSY));
        Busy(self.clone())
    }

    /// Waits until the connection has to make room.
    pub(super) async fn closed(&self) {
        self.0.state.close.notified().await;
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Busy(Member);

impl Drop for Busy {
    fn drop(&mut self) {
        let seat = &self.0.0;
        let now = seat.idle.now();
        let since = &seat.state.since;
        let _ = since.fetch_update(Ordering::AcqRel, Ordering::Acquire, |was| (was == BUSY).then_some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn the_one_that_is_idle_the_longest_makes_room_and_none_that_is_busy() {
        let idle = Arc::<Idle>::default();
        let all: Vec<Member> = (0..4).map(|_| idle.join()).collect();
        let closed = |n: usize| all[n].closed().now_or_never().is_some();
        let busy = all[0].begin();
        drop(all[1].begin());
        idle.close_longest();
        assert!(!closed(0) && !closed(1) && closed(2) && !closed(3));
        idle.close_longest();
        idle.close_longest();
        assert!(!closed(0) && closed(1) && closed(3));
        idle.close_longest();
        assert!(!closed(0), "all others are closed, and this one is busy");
        drop(busy);
        idle.close_longest();
        assert!(closed(0));
        drop(all);
        assert!(idle.members().is_empty());
    }
}
