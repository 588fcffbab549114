//! D1, D2 and D4 over the faulty disk: whatever happens, what was acknowledged is there, and nothing is there by halves.

use super::support::*;
use crate::disk::faulty::{Dice, Faulty};
use crate::log::{Batch, Entry, Error, Log, verify};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;

/// Takes a snapshot of everything live; with facts in between, so that it is fuzzy.
fn snapshot(model: &mut Model, log: &Log, dice: &mut Dice, streams: u64) -> Result<(), Error> {
    let (seen, _) = log.snapshots();
    log.commit_and_wait(vec![Entry::Begin])?;
    let live: Vec<StreamId> = model.state.streams().map(|(id, _)| id.clone()).collect();
    for id in live {
        if dice.one_in(3) {
            let batch = model.batch(dice, streams);
            model.commit(log, batch)?;
        }
        if dice.one_in(12) && forget(model, log, &id)? {
            continue;
        }
        let saved = model.state.save(&id).unwrap();
        log.commit_and_wait(vec![Entry::Snapshot(Box::new(saved))])?;
    }
    log.commit_and_wait(vec![Entry::End])?;
    match log.wait_for_snapshot(seen) {
        Some(Err(error)) => Err(error),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// The stream ends. Its last facts must be durable first, as those of a store are.
fn forget(model: &mut Model, log: &Log, id: &StreamId) -> Result<bool, Error> {
    log.commit_and_wait(vec![Entry::Forget(id.clone())])?;
    model.forgotten.insert(id.clone());
    model.state.evict(id);
    Ok(true)
}

/// One life of a process: random work until the disk is gone or it has done enough.
fn live(model: &mut Model, log: &Log, dice: &mut Dice, streams: u64) -> Result<(), Error> {
    for _ in 0..dice.below(60) {
        match dice.below(30) {
            0 => log.mark()?,
            1 => snapshot(model, log, dice, streams)?,
            2 => {
                let retained = dice.below(3) as u64;
                let forgotten = model.forgotten.clone();
                log.compact(&|id: &StreamId| !forgotten.contains(id) || *id == stream(retained))?;
            }
            3 => log.roll()?,
            4 => {
                let id = stream(dice.roll() % streams);
                if model.state.stream(&id).is_some() {
                    forget(model, log, &id)?;
                }
            }
            _ => {
                let batch = model.batch(dice, streams);
                model.commit(log, batch)?;
            }
        }
    }
    Ok(())
}

fn crashes(seed: u64) {
    let mut dice = Dice::new(seed);
    let (disk, mut model) = (Faulty::new(), Model::new());
    let streams = 3 + dice.roll() % 12;
    for life in 0..6 {
        let what = format!("seed {seed}, life {life}");
        if dice.one_in(2) {
            disk.stop_after(dice.below(400) as u64);
        }
        if dice.one_in(3) {
            disk.take_short_writes(dice.roll());
        }
        match open(&disk) {
            Ok((log, recovery, state)) => {
                // What has the name of a snapshot is one, and nobody was remembered.
                assert!(recovery.warnings.is_empty() && recovery.orphans.is_empty(), "{what}: {recovery:?}");
                model.check(&state, &what);
                // Whether it stops by itself or because the disk is gone is the same.
                let _ = live(&mut model, &log, &mut dice, streams);
                if dice.one_in(4) {
                    let _ = log.close();
                }
            }
            // The disk may be gone before the log is open; damage there is none.
            Err(error) => {
                assert!(!matches!(error, Error::Corrupt { .. } | Error::Refused { .. }), "{what}: {error}");
            }
        }
        if dice.one_in(4) { disk.kill() } else { disk.crash(dice.roll()) }
    }
    let (log, _, state) = open(&disk).unwrap();
    model.check(&state, &format!("seed {seed}, at the end"));
    log.verify().unwrap();
    drop(log);
    verify(&disk, Path::new(DIR)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_was_acknowledged_survives_and_nothing_is_there_by_halves(seed: u64) {
        crashes(seed);
    }

    #[test]
    fn a_flipped_bit_is_found_or_was_never_acknowledged_for_sure(seed: u64, at: prop::sample::Index, bit in 0..8u32) {
        flipped(seed, &at, bit);
    }

    #[test]
    fn groups_from_many_batches_are_there_wholly_or_not_at_all(seed: u64) {
        groups(seed);
    }

    #[test]
    fn a_full_disk_takes_nothing_from_a_batch_and_heals(seed: u64) {
        fills_up(seed);
    }
}

/// Segments of the log, with what stands in them.
fn segments(disk: &Faulty) -> Vec<(PathBuf, Vec<u8>)> {
    let wal = |path: &Path| {
        path.extension().is_some_and(|e| e == "wal") && !path.display().to_string().contains("spare")
    };
    disk.contents().into_iter().filter(|(path, _)| wal(path)).collect()
}

fn flipped(seed: u64, at: &prop::sample::Index, bit: u32) {
    let mut dice = Dice::new(seed);
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    for _ in 0..20 + dice.below(20) {
        let batch = model.batch(&mut dice, 5);
        model.commit(&log, batch).unwrap();
    }
    let marked = dice.one_in(2);
    if marked {
        log.mark().unwrap();
    }
    disk.kill();
    drop(log);
    // Everything but the noughts at the end of a segment was written.
    let written: Vec<(PathBuf, usize)> = segments(&disk)
        .into_iter()
        .flat_map(|(path, bytes)| {
            let end = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
            (0..end).map(move |offset| (path.clone(), offset))
        })
        .collect();
    let (path, offset) = &written[at.index(written.len())];
    let last = segments(&disk).pop().unwrap();
    let end = last.1.iter().rposition(|b| *b != 0).unwrap() + 1;
    let trailers: Vec<usize> = last.1[..end]
        .windows(11)
        .enumerate()
        .filter(|(_, w)| *w == b"{\"trailer\":")
        .map(|(i, _)| i)
        .collect();
    // The last batch begins where the line of the trailer before it ends.
    let last_batch = match trailers.len() {
        0 | 1 => last.1.iter().position(|b| *b == b'\n').unwrap() + 1,
        n => trailers[n - 2] + last.1[trailers[n - 2]..].iter().position(|b| *b == b'\n').unwrap() + 1,
    };
    assert!(disk.flip(path, *offset, bit));
    let before = disk.contents();
    match open(&disk) {
        // The end that was acknowledged is noted apart, so damage to the very last batch is told from a torn write.
        Err(Error::Corrupt { .. } | Error::Newer { .. } | Error::Lost { .. }) => {
            assert_eq!(disk.contents(), before, "what is damaged is left as it is");
        }
        Err(error) => panic!("seed {seed}: {error}"),
        Ok((_, _, state)) => {
            // Only the mark at the very end says nothing that would be missed.
            assert!(*path == last.0 && *offset >= last_batch, "seed {seed}: {} at {offset}", path.display());
            assert!(marked && model.states[model.acked..].contains(&shape(&state)), "seed {seed}");
        }
    }
}

fn fills_up(seed: u64) {
    let mut dice = Dice::new(seed);
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    let mut fulls = 0;
    for _ in 0..80 {
        match dice.below(8) {
            0 => disk.set_capacity(Some(disk.used() + dice.below(12_000) as u64)),
            1 => disk.set_capacity(None),
            _ => {
                let (states, state) = (model.states.len(), model.state.clone());
                let batch = model.batch(&mut dice, 5);
                match model.commit(&log, batch) {
                    Ok(_) => {}
                    Err(Error::Full { .. }) => {
                        fulls += 1;
                        model.states.truncate(states);
                        model.state = state;
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                // Reads go on.
                let mut last = 0;
                log.read(0, &mut |record, _| {
                    last = record.seq;
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
                assert_eq!(last, log.durable_seq());
            }
        }
    }
    disk.set_capacity(None);
    let batch = model.batch(&mut dice, 5);
    model.commit(&log, batch).unwrap();
    assert!(log.failure().is_none());
    disk.crash(seed);
    drop(log);
    let (_, _, state) = open(&disk).unwrap();
    assert_eq!(shape(&state), model.states[model.states.len() - 1], "seed {seed}, {fulls} times full");
}

/// Hands over many batches without waiting, so that groups are written while the next are encoded, and lets the disk stop
/// or fill up in the middle.
fn groups(seed: u64) {
    let mut dice = Dice::new(seed);
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    let fills = dice.one_in(2);
    if fills {
        disk.set_capacity(Some(disk.used() + dice.below(40_000) as u64));
    } else {
        disk.stop_after(dice.below(150) as u64);
    }
    let (answer, answers) = std::sync::mpsc::channel();
    let (mut vers, mut batches) = ([0; 6], Vec::new());
    for i in 0..80_usize {
        let mut entries = Vec::new();
        let mut facts = Vec::new();
        for _ in 0..=dice.below(3) {
            let n = dice.below(6);
            vers[n] += 1;
            facts.push((stream(n as u64), vers[n]));
            entries.push(fact(n as u64, vers[n], dice.below(400)));
        }
        batches.push(facts);
        let answer = answer.clone();
        let done = Box::new(move |result: Result<_, Error>| answer.send((i, result)).unwrap());
        let batch = Batch { entries, done };
        if dice.one_in(3) { log.commit(batch) } else { log.submit(batch) }
    }
    // Every one is answered, or this ends with fewer.
    drop(answer);
    let mut results: Vec<(usize, Result<_, Error>)> = answers.iter().take(batches.len()).collect();
    assert_eq!(results.len(), batches.len(), "seed {seed}");
    results.sort_by_key(|(i, _)| *i);
    if fills {
        go_on(&disk, &log, &results, &batches);
    }
    disk.crash(dice.roll());
    drop(log);
    let mut found = std::collections::BTreeSet::new();
    let (log, ..) = open(&disk).unwrap();
    log.read(0, &mut |record, _| {
        if record.at != AFTERWARDS {
            found.insert((record.stream, record.ver));
        }
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    for ((i, result), facts) in results.into_iter().zip(batches) {
        let there = facts.iter().filter(|fact| found.contains(*fact)).count();
        match result {
            Ok(_) => assert_eq!(there, facts.len(), "seed {seed}, batch {i} was acknowledged"),
            Err(Error::SyncFailed { .. } | Error::Io { .. }) => {
                assert!(there == 0 || there == facts.len(), "seed {seed}, batch {i}");
            }
            Err(Error::Full { .. } | Error::Gap { .. }) => {
                assert_eq!(there, 0, "seed {seed}, batch {i} was refused");
            }
            Err(error) => panic!("seed {seed}, batch {i}: {error}"),
        }
    }
}

/// The time of the facts that came once there was room again: a refused fact may have had the same version.
const AFTERWARDS: Millis = Millis(9_999_999);

type Answered = (usize, Result<crate::log::Durable, Error>);

/// Once there is room again, every stream goes on from what was acknowledged of it, as if nothing else had been.
fn go_on(disk: &Faulty, log: &Log, results: &[Answered], batches: &[Vec<(StreamId, u64)>]) {
    disk.set_capacity(None);
    for n in 0..6 {
        let acknowledged = results.iter().zip(batches).filter(|((_, result), _)| result.is_ok());
        let vers =
            acknowledged.flat_map(|(_, facts)| facts).filter(|(id, _)| *id == stream(n)).map(|(_, ver)| *ver);
        let next = vers.max().unwrap_or(0) + 1;
        log.commit_and_wait(vec![fact_at(n, next, 0, AFTERWARDS)]).unwrap();
    }
    log.verify().unwrap();
}
