//! Followers share one reader of the log; who is too far behind reads by themselves until they have caught up.

use super::Disked;
use crate::log::{Entry, Log};
use crate::store::Reads;
use std::sync::Arc;
use windlass_core::event::{Event, LockAcquired};
use windlass_core::id::{Holder, Name, Scoped};
use windlass_core::run::Actor;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::Fact;
use windlass_engine::handle::inbox;
use windlass_engine::port::Decided;
use windlass_engine::reader::{Line, PageMax, Place, Reader};

const MAX: PageMax = PageMax { lines: 1_000, bytes: 1 << 20 };

/// Commits facts of one lock, and says what the last seq is.
fn commit(log: &Log, count: u64) -> u64 {
    let name = Name::clean("deploy");
    let stream = StreamId::Lock(Scoped::new(&Name::clean("default"), &Name::clean("default"), &name));
    let first = log.durable_seq() + 1;
    let fact = |ver: u64| {
        let holder = Holder::parse("cli:ann").unwrap();
        let event: Event =
            LockAcquired { lock: name.clone(), holder, epoch: ver, queued: false, metadata: None }.into();
        let fact = Fact { stream: stream.clone(), tenant: Name::clean("default"), event };
        Decided { fact, by: Actor::SYSTEM, at: Millis(1_000 + ver) }
    };
    // There is nothing else in this log, so a version is a seq.
    let vers: Vec<u64> = (first..first + count).collect();
    for vers in vers.chunks(500) {
        let facts = vers.iter().map(|ver| fact(*ver)).collect();
        log.commit_and_wait(vec![Entry::Facts { facts, vers: vers.to_vec() }]).unwrap();
    }
    log.durable_seq()
}

fn seqs(lines: &[Arc<Line>]) -> Vec<u64> {
    lines.iter().map(|line| line.record.seq).collect()
}

/// Reads from a seq on as one who follows does: alone until it has caught up. Says how often it read alone.
async fn catch_up(reads: &Reads, mut from: u64) -> (Vec<u64>, u64, usize) {
    let (mut seen, mut alone) = (Vec::new(), 0);
    loop {
        let shared = reads.follow(from, MAX).await.unwrap();
        let is_shared = shared.is_some();
        let page = match shared {
            Some(page) => page,
            None => {
                alone += 1;
                reads.records(None, Place { first: from, last: u64::MAX }, MAX).await.unwrap()
            }
        };
        from = page.next;
        seen.extend(seqs(&page.lines));
        if is_shared && !page.more {
            return (seen, from, alone);
        }
    }
}

#[tokio::test]
async fn what_became_durable_is_read_once_however_many_follow() {
    let Disked { store, disk, dir: _dir, .. } = Disked::new();
    let reads = store.reads(inbox().0);
    let log = store.log();
    let last = commit(&log, 50);
    let (.., next, _) = catch_up(&reads, 0).await;
    assert_eq!(next, last + 1);
    commit(&log, 30);
    let before = disk.bytes_read();
    let one = reads.follow(next, MAX).await.unwrap().unwrap();
    let cost = disk.bytes_read() - before;
    assert!(cost > 0);
    assert_eq!(seqs(&one.lines), (next..next + 30).collect::<Vec<_>>());
    for _ in 0..200 {
        let page = reads.follow(next, MAX).await.unwrap().unwrap();
        assert!(page.lines.iter().zip(&one.lines).all(|(a, b)| Arc::ptr_eq(a, b)) && page.next == one.next);
    }
    assert_eq!(disk.bytes_read() - before, cost, "the others read nothing");
    let page = reads.follow(next, PageMax { lines: 7, bytes: 1 << 20 }).await.unwrap().unwrap();
    assert_eq!((seqs(&page.lines), page.more), ((next..next + 7).collect(), true));
    assert_eq!(page.next, next + 7);
}

#[tokio::test]
async fn who_is_too_far_behind_reads_alone_until_they_have_caught_up() {
    let Disked { store, dir: _dir, .. } = Disked::new();
    let reads = store.reads(inbox().0);
    let log = store.log();
    let last = commit(&log, 1_500);
    let (seen, next, alone) = catch_up(&reads, 1).await;
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
    assert_eq!(alone, 2, "in two pages");
    // Nothing is kept for who is slower than all that is kept.
    for _ in 0..5 {
        commit(&log, 2_000);
        let (_, at, alone) = catch_up(&reads, log.durable_seq() - 1_999).await;
        assert_eq!((at, alone), (log.durable_seq() + 1, 0));
    }
    assert!(reads.follow(next, MAX).await.unwrap().is_none());
    let (seen, ..) = catch_up(&reads, next).await;
    assert_eq!(seen, (next..=log.durable_seq()).collect::<Vec<_>>());
    // And a feed that nobody asked for long begins anew at the end.
    let last = commit(&log, 9_000);
    assert!(reads.follow(last - 8_999, MAX).await.unwrap().is_none());
    let (seen, at, _) = catch_up(&reads, last - 8_999).await;
    assert_eq!((seen.len(), at), (9_000, last + 1));
}
