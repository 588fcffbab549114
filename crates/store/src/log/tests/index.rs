//! The index: what is found by it is what stands in the log, and it costs the records of a stream.

use super::support::{DIR, fact, open, open_at, options, stream};
use crate::disk::faulty::Faulty;
use crate::disk::{Disk, How};
use crate::log::{Error, Log, Options, Seqs};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use windlass_core::stream::StreamId;

const STREAMS: u64 = 20;

/// Some streams over several segments; returns how many records each has.
fn fill(log: &Log, from: u64, to: u64) {
    for ver in from..=to {
        for n in 0..STREAMS {
            log.commit_and_wait(vec![fact(n, ver, 60)]).unwrap();
        }
    }
}

fn scan(log: &Log, n: u64, seqs: Seqs) -> Result<Vec<(u64, u64)>, Error> {
    let mut found = Vec::new();
    log.scan(&[stream(n)], seqs, &mut |record, _| {
        found.push((record.ver, record.seq));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// What a walk through the whole log says of a stream.
fn walk(log: &Log, n: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    log.read(0, &mut |record, _| {
        if record.stream == stream(n) {
            found.push((record.ver, record.seq));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn same(log: &Log, what: &str) {
    for n in [0, 7, STREAMS - 1] {
        let all = walk(log, n);
        assert_eq!(scan(log, n, Seqs::ALL).unwrap(), all, "{what}");
        let (first, last) = (all[all.len() / 3].1, all[all.len() / 2].1);
        let some: Vec<_> = all.iter().copied().filter(|(_, seq)| (first..=last).contains(seq)).collect();
        assert_eq!(scan(log, n, Seqs { first, last }).unwrap(), some, "{what}: {first} to {last}");
    }
}

fn files(disk: &Faulty, dir: &str) -> Vec<PathBuf> {
    let dir = Path::new(DIR).join(dir);
    disk.list(&dir).unwrap_or_default().into_iter().map(|name| dir.join(name)).collect()
}

/// Changes one byte of a file.
fn damage(disk: &Faulty, path: &Path, offset: u64) {
    let file = disk.open(path, How::Write).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, offset).unwrap();
    file.write_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn what_the_index_finds_is_what_stands_in_the_log() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    fill(&log, 1, 20);
    same(&log, "without an index");
    log.index(&|| true).unwrap();
    assert!(files(&disk, "index").len() > 2, "{:?}", files(&disk, "index"));
    same(&log, "with an index");
    fill(&log, 21, 25);
    same(&log, "of what came after");
    drop(log);
    let (log, ..) = open(&disk).unwrap();
    same(&log, "after a start");
    log.index(&|| true).unwrap();
    same(&log, "after a start, from its files");
}

#[test]
fn a_stream_costs_its_own_records() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    log.commit_and_wait(vec![fact(100, 1, 60)]).unwrap();
    fill(&log, 1, 20);
    log.commit_and_wait(vec![fact(100, 2, 60)]).unwrap();
    log.index(&|| true).unwrap();
    // Whoever walks through the log comes past the damage. Whoever looks the stream up does not.
    let first = &files(&disk, "log")[0];
    damage(&disk, first, 4_000);
    assert!(log.read(0, &mut |_, _| ControlFlow::Continue(())).is_err());
    assert_eq!(scan(&log, 100, Seqs::ALL).unwrap().iter().map(|found| found.0).collect::<Vec<_>>(), [1, 2]);
}

/// How many bytes of the disk something reads.
fn cost(disk: &Faulty, read: impl FnOnce()) -> u64 {
    let before = disk.bytes_read();
    read();
    disk.bytes_read() - before
}

/// A page of a stream from a seq on: so many records.
fn page(log: &Log, n: u64, first: u64, max: usize) -> Vec<u64> {
    let mut found = Vec::new();
    log.scan(&[stream(n)], Seqs { first, last: u64::MAX }, &mut |record, _| {
        found.push(record.seq);
        if found.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .unwrap();
    found
}

#[test]
fn a_page_of_a_stream_costs_that_page_however_long_the_log_is() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    let costs: Vec<u64> = [40, 80, 160]
        .windows(2)
        .map(|span| {
            fill(&log, if span[0] == 40 { 1 } else { span[0] + 1 }, span[1]);
            log.index(&|| true).unwrap();
            // Whether a part is what was written is looked at once.
            let all = page(&log, 7, 1, usize::MAX);
            assert_eq!(all.len() as u64, span[1]);
            let middle = all[all.len() / 2];
            let cost = cost(&disk, || assert_eq!(page(&log, 7, middle, 3).len(), 3));
            let whole: u64 = files(&disk, "log").len() as u64 * options().segment_bytes;
            assert!(cost < whole / 4, "{cost} of {whole}");
            cost
        })
        .collect();
    assert!(costs[1] < costs[0] * 2, "the log is twice as long: {costs:?}");
}

#[test]
fn after_a_start_the_files_of_the_index_are_used_before_anybody_brings_it_up_to_date() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    fill(&log, 1, 100);
    log.index(&|| true).unwrap();
    drop(log);
    let (log, ..) = open(&disk).unwrap();
    let whole: u64 = files(&disk, "log").len() as u64 * options().segment_bytes;
    let cost = cost(&disk, || assert_eq!(page(&log, 7, 1, 3).len(), 3));
    assert!(cost < whole / 4, "{cost} of {whole}");
    same(&log, "after a start");
}

#[test]
fn whoever_reads_on_begins_where_the_last_page_ended() {
    let disk = Faulty::new();
    let options = Options { segment_bytes: 8 << 20, ..options() };
    let (log, ..) = open_at(&disk, DIR, options).unwrap();
    for ver in 1..=40 {
        log.commit_and_wait((0..STREAMS).map(|n| fact(n, ver, 8_000)).collect()).unwrap();
    }
    let read = |from: u64| {
        let mut seqs = Vec::new();
        let next = log.read(from, &mut |record, _| {
            seqs.push(record.seq);
            if seqs.len() < 5 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        assert_eq!(seqs, (from..from + 5).collect::<Vec<_>>());
        next.unwrap()
    };
    let mut next = 0;
    let first = cost(&disk, || next = read(701));
    assert!(first >= 5 << 20, "it walks through the file: {first}");
    for _ in 0..10 {
        let page = cost(&disk, || next = read(next));
        assert!(page <= 1 << 20, "it reads no more than is read at a time: {page}");
    }
    // The end is remembered as well.
    let mut last = 0;
    log.read(next, &mut |record, _| {
        last = record.seq;
        ControlFlow::Continue(())
    })
    .unwrap();
    log.commit_and_wait(vec![fact(0, 41, 100)]).unwrap();
    let new = cost(&disk, || drop(log.read(last + 1, &mut |_, _| ControlFlow::Continue(()))));
    assert!((1..10_000).contains(&new), "{new}");
}

#[test]
fn damage_to_a_record_is_found_without_its_batch() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    fill(&log, 1, 20);
    log.index(&|| true).unwrap();
    let first = &files(&disk, "log")[0];
    for offset in [3_000, 3_100, 3_200, 3_300, 3_400, 3_500] {
        damage(&disk, first, offset);
        let broken = (0..STREAMS).filter(|n| scan(&log, *n, Seqs::ALL).is_err()).count();
        // A trailer is no record.
        assert!(broken <= 1, "{offset}: {broken}");
        damage(&disk, first, offset);
    }
    let broken = (3_000..3_500).filter(|offset| {
        damage(&disk, first, *offset);
        let broken = (0..STREAMS).any(|n| scan(&log, n, Seqs::ALL).is_err());
        damage(&disk, first, *offset);
        broken
    });
    assert!(broken.count() > 200);
}

#[test]
fn a_part_that_is_damaged_missing_or_of_another_file_is_made_again() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    fill(&log, 1, 20);
    log.index(&|| true).unwrap();
    drop(log);
    let parts = files(&disk, "index");
    for (round, offset) in [0, 30, 120, 300].into_iter().enumerate() {
        damage(&disk, &parts[0], offset);
        let (log, ..) = open(&disk).unwrap();
        same(&log, &format!("damaged at {offset}, not indexed yet"));
        log.index(&|| true).unwrap();
        same(&log, &format!("damaged at {offset}"));
        log.index(&|| true).unwrap();
        same(&log, &format!("damaged at {offset}, made again"));
        if round == 2 {
            disk.remove(&parts[1]).unwrap();
        }
    }
}

#[test]
fn compaction_takes_the_index_along() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    fill(&log, 1, 20);
    log.index(&|| true).unwrap();
    log.commit_and_wait(vec![crate::log::Entry::Forget(stream(3))]).unwrap();
    log.roll().unwrap();
    let done = log.compact(&|_: &StreamId| false).unwrap();
    assert_eq!(done.streams_dropped, 1);
    same(&log, "before the new file is in the index");
    log.index(&|| true).unwrap();
    same(&log, "after");
    assert!(scan(&log, 3, Seqs::ALL).unwrap().is_empty());
    let names = files(&disk, "index");
    assert!(names.iter().all(|path| path.to_string_lossy().contains("carried-")), "{names:?}");
}

#[test]
fn without_room_for_an_index_the_log_is_walked_through() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    fill(&log, 1, 20);
    disk.set_capacity(Some(disk.used()));
    assert!(log.index(&|| true).is_err());
    same(&log, "without room");
}
