//! Bodies: how long they may take to come, and the room that large ones take while they do.
//!
//! Room is taken as bytes come, not as a header says that they will. What comes slowly has places of its own, so it is
//! never in the way of what comes at once; and where it is known from which machine a body comes, one machine has a part
//! of the room and of the places.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// From which machine a request comes, where that is known: not behind a proxy, and not at the socket.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Within which time a body that is not slow is there.
const QUICK: Duration = Duration::from_secs(1);
/// How many bodies may be slow at once, and how many of one machine.
pub const SLOW_MAX: usize = 128;
/// See [`SLOW_MAX`].
pub const SLOW_OF_PEER_MAX: usize = 32;
/// How many KiB of deliveries may be in memory at once, and how many of one machine.
pub const ROOM_KIB: usize = 256 << 10;
/// See [`ROOM_KIB`].
pub const ROOM_OF_PEER_KIB: usize = 96 << 10;
/// So much of each delivery takes no room: most are no larger, and none of those waits for it.
pub const FREE_KIB: usize = 64;

static SLOW: Semaphore = Semaphore::const_new(SLOW_MAX);
static ROOM: Semaphore = Semaphore::const_new(ROOM_KIB);
static PEERS: Mutex<BTreeMap<IpAddr, Uses>> = Mutex::new(BTreeMap::new());

/// What one machine uses.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    slow: usize,
    kib: usize,
}

fn peers() -> MutexGuard<'static, BTreeMap<IpAddr, Uses>> {
    PEERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part of what a machine may use, until it is dropped.
struct Share {
    peer: Option<Peer>,
    uses: Uses,
}

impl Share {
    fn none(peer: Option<Peer>) -> Share {
        Share { peer, uses: Uses::default() }
    }

    /// More of it, unless that is more than one machine may have.
    fn grow(&mut self, more: Uses) -> bool {
        if let Some(Peer(peer)) = self.peer {
            let mut peers = peers();
            let used = peers.entry(peer).or_default();
            let (slow, kib) = (used.slow + more.slow, used.kib + more.kib);
            if slow > SLOW_OF_PEER_MAX || kib > ROOM_OF_PEER_KIB {
                return false;
            }
            *used = Uses { slow, kib };
        }
        self.uses.slow += more.slow;
        self.uses.kib += more.kib;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(Peer(peer)) = self.peer else { return };
        let mut peers = peers();
        if let Some(used) = peers.get_mut(&peer) {
            used.slow -= self.uses.slow;
            used.kib -= self.uses.kib;
            if used.slow == 0 && used.kib == 0 {
                peers.remove(&peer);
            }
        }
    }
}

/// Why a body is not waited for.
#[derive(Debug, PartialEq, Eq)]
pub enum Late {
    /// It took too long.
    Over,
    /// So many are slow already.
    Crowded,
}

/// Waits for a body to come.
///
/// # Errors
/// It does not.
pub async fn patient<T>(
    reading: impl Future<Output = T>,
    patience: Duration,
    peer: Option<Peer>,
) -> Result<T, Late> {
    let mut reading = pin!(reading);
    if let Ok(read) = tokio::time::timeout(QUICK, &mut reading).await {
        return Ok(read);
    }
    let mut share = Share::none(peer);
    let Ok(_place) = SLOW.try_acquire() else { return Err(Late::Crowded) };
    if !share.grow(Uses { slow: 1, kib: 0 }) {
        return Err(Late::Crowded);
    }
    tokio::time::timeout(patience.saturating_sub(QUICK), reading).await.map_err(|_| Late::Over)
}

/// The room that a delivery has, until it is dropped.
pub struct Room {
    permits: Option<SemaphorePermit<'static>>,
    share: Share,
    kib: usize,
}

impl Room {
    /// Of a delivery of which nothing came yet.
    #[must_use]
    pub fn none(peer: Option<Peer>) -> Room {
        Room { permits: None, share: Share::none(peer), kib: 0 }
    }

    /// Takes room for a delivery of which so many bytes came: waits where all of it is taken. Says whether its machine may
    /// have that much.
    pub async fn grow(&mut self, len: usize) -> bool {
        // Not for each packet.
        const STEP_KIB: usize = 64;
        let wanted = len.div_ceil(STEP_KIB << 10) * STEP_KIB;
        let wanted = wanted.saturating_sub(FREE_KIB);
        let Some(more) = wanted.checked_sub(self.kib).filter(|&more| more > 0) else { return true };
        if !self.share.grow(Uses { slow: 0, kib: more }) {
            return false;
        }
        self.kib = wanted;
        let count = u32::try_from(more).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let Ok(permits) = ROOM.acquire_many(count).await else { return false };
        match &mut self.permits {
            Some(known) => known.merge(permits),
            None => self.permits = Some(permits),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> Option<Peer> {
        Some(Peer(IpAddr::from([192, 0, 2, n])))
    }

    #[tokio::test]
    async fn room_is_taken_as_bytes_come_and_one_machine_has_a_part_of_it() {
        let mut small = Room::none(peer(1));
        assert!(small.grow(FREE_KIB << 10).await);
        assert!(small.permits.is_none(), "a small delivery takes none");
        let mut large: Vec<Room> = (0..5).map(|_| Room::none(peer(1))).collect();
        let mut taken = 0;
        for room in &mut large {
            taken += usize::from(room.grow(25 << 20).await);
        }
        assert_eq!(taken, 3, "the fourth is more than one machine may have");
        assert!(Room::none(peer(2)).grow(25 << 20).await, "another machine has its own");
        drop((small, large));
        // The other test of this file has machines of its own.
        let left = [peer(1), peer(2)].into_iter().flatten().any(|Peer(of)| peers().contains_key(&of));
        assert!(!left, "what was taken is given back");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_have_places_of_their_own() {
        let never = std::future::pending::<()>;
        assert_eq!(patient(async { 7 }, Duration::from_secs(20), peer(3)).await, Ok(7));
        let slow: Vec<_> = (0..SLOW_OF_PEER_MAX)
            .map(|_| tokio::spawn(patient(never(), Duration::from_secs(20), peer(3))))
            .collect();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let quick = patient(never(), Duration::from_secs(20), peer(3)).await;
        assert_eq!(quick, Err(Late::Crowded), "one machine has so many");
        let other = patient(never(), Duration::from_secs(3), peer(4)).await;
        assert_eq!(other, Err(Late::Over));
        for one in slow {
            assert_eq!(one.await.unwrap(), Err(Late::Over));
        }
    }
}
