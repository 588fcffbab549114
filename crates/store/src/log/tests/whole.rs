//! Single promises by example: locking, poison, order, snapshots, compaction, backup, a real disk.

use super::support::*;
use crate::disk::faulty::{Dice, Faulty};
use crate::disk::{Disk, Files, How, write_full};
use crate::log::{Batch, Entry, Error, Head, Log, Options, Seqs, restore, verify};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use windlass_core::code::Code;
use windlass_core::record::Record;
use windlass_core::stream::StreamId;
use windlass_core::turn::state::{Snapshot, State};

fn commit_some(model: &mut Model, log: &Log, n: usize) {
    let mut dice = Dice::new(7);
    for _ in 0..n {
        let batch = model.batch(&mut dice, 5);
        model.commit(log, batch).unwrap();
    }
}

fn records(log: &Log, from: u64) -> Vec<Record> {
    let mut records = Vec::new();
    log.read(from, &mut |record, _| {
        records.push(record);
        ControlFlow::Continue(())
    })
    .unwrap();
    records
}

fn save_all(log: &Log, state: &State) {
    let (seen, _) = log.snapshots();
    let mut entries = vec![Entry::Begin];
    entries.extend(state.streams().map(|(id, _)| Entry::Snapshot(Box::new(state.save(&id).unwrap()))));
    entries.push(Entry::End);
    log.commit_and_wait(entries).unwrap();
    log.wait_for_snapshot(seen).unwrap().unwrap();
}

#[test]
fn a_second_process_is_told_who_has_the_directory() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    let Err(error) = open(&disk) else { panic!("opened twice") };
    assert_eq!(error.code(), Code::LockBusy);
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(log);
    open(&disk).unwrap();
}

#[test]
fn a_failed_sync_is_the_end_of_the_log_for_this_process() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    log.commit_and_wait(vec![fact(1, 1, 10)]).unwrap();
    disk.fail_sync(0);
    let error = log.commit_and_wait(vec![fact(1, 2, 10)]).unwrap_err();
    assert!(matches!(error, Error::SyncFailed { .. }), "{error}");
    // The disk works again, but nothing is known of what it has: it stays the end.
    assert_eq!(log.commit_and_wait(vec![fact(2, 1, 10)]).unwrap_err(), error);
    assert_eq!(log.mark().unwrap_err(), error);
    assert_eq!(log.failure(), Some(error));
    assert_eq!(records(&log, 0).len(), 1, "reads go on");
    drop(log);
    // The process is started again on the same machine. The pages of the lost batch are read from the cache; so they are
    // made durable before anybody builds on them.
    disk.kill();
    let (log, _, state) = open(&disk).unwrap();
    assert_eq!(state.stream(&stream(1)).unwrap().ver, 2);
    drop(log);
    for seed in 0..20 {
        disk.crash(seed);
        let (_, _, state) = open(&disk).unwrap();
        assert_eq!(state.stream(&stream(1)).unwrap().ver, 2);
    }
}

#[test]
fn a_batch_that_does_not_follow_leaves_nothing() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    log.commit_and_wait(vec![fact(1, 1, 0)]).unwrap();
    let error = log.commit_and_wait(vec![fact(1, 2, 0), fact(2, 1, 0), fact(1, 2, 0)]).unwrap_err();
    assert_eq!(error, Error::Gap { stream: stream(1), have: 2, ver: 2 });
    let durable = log.commit_and_wait(vec![fact(1, 2, 0), fact(2, 1, 0)]).unwrap();
    assert_eq!((durable.first_seq, durable.last_seq, durable.chains.len()), (2, 3, 2));
    drop(log);
    let (_, recovery, state) = open(&disk).unwrap();
    assert_eq!((recovery.records, state.streams().count()), (3, 2));
}

#[test]
fn answers_come_in_order_and_together_from_many_threads() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    let (answer, answers) = channel();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (log, answer) = (&log, answer.clone());
            scope.spawn(move || {
                for ver in 1..=100 {
                    let answer = answer.clone();
                    let done = Box::new(move |result| answer.send((n, ver, result)).unwrap());
                    let batch = Batch { entries: vec![fact(n, ver, 50)], done };
                    if ver % 3 == 0 { log.commit(batch) } else { log.submit(batch) }
                }
            });
        }
    });
    drop(answer);
    let mut vers = [0; 4];
    let mut seq = 0;
    for (n, ver, result) in answers.iter().take(400) {
        let durable = result.unwrap();
        assert!(durable.last_seq > seq, "in the order of the log");
        seq = durable.last_seq;
        assert_eq!(ver, vers[n as usize] + 1);
        vers[n as usize] = ver;
    }
    assert_eq!(seq, 400);
    drop(log);
    let (_, recovery, _) = open(&disk).unwrap();
    assert_eq!(recovery.records, 400);
}

#[test]
fn more_than_may_wait_is_refused() {
    let disk = Faulty::new();
    let (log, ..) = open_at(&disk, DIR, Options { waiting_max: 0, ..options() }).unwrap();
    let (answer, answers) = channel();
    log.submit(Batch { entries: vec![fact(1, 1, 0)], done: Box::new(move |r| answer.send(r).unwrap()) });
    assert_eq!(answers.recv().unwrap(), Err(Error::Busy(0)));
}

#[test]
fn a_closed_log_is_marked_so_that_damage_to_its_last_batch_is_found() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    log.commit_and_wait(vec![fact(1, 1, 0)]).unwrap();
    log.close().unwrap();
    let segment = Path::new(DIR).join("log/00000000000000000001.wal");
    assert!(disk.flip(&segment, 150, 3));
    let Err(error) = open(&disk) else { panic!("damage was not found") };
    assert_eq!(error.code(), Code::StoreCorrupt);
    assert!(error.to_string().contains("log/00000000000000000001.wal"), "{error}");
}

#[test]
fn what_a_crash_tore_is_dropped_once_and_for_all() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    log.commit_and_wait(vec![fact(1, 1, 0)]).unwrap();
    log.close().unwrap();
    let segment = Path::new(DIR).join("log/00000000000000000001.wal");
    let bytes = disk.contents()[&segment].clone();
    let end = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    let torn = &bytes[120..end - 30];
    write_full(&*disk.open(&segment, How::Write).unwrap(), torn, end as u64).unwrap();
    let (log, recovery, state) = open(&disk).unwrap();
    assert!(recovery.torn_bytes >= torn.len() as u64, "{recovery:?}");
    assert_eq!(state.stream(&stream(1)).unwrap().ver, 1);
    disk.crash(1);
    drop(log);
    assert_eq!(disk.contents()[&segment], bytes);
    assert_eq!(open(&disk).unwrap().1.torn_bytes, 0);
}

#[test]
fn an_idle_log_marks_itself() {
    let disk = Faulty::new();
    let idle = std::time::Duration::from_millis(1);
    let (log, ..) = open_at(&disk, DIR, Options { idle, ..options() }).unwrap();
    let syncs = disk.syncs();
    log.commit_and_wait(vec![fact(1, 1, 0)]).unwrap();
    while disk.syncs() < syncs + 2 {
        std::thread::yield_now();
    }
    disk.kill();
    drop(log);
    assert!(disk.flip(&Path::new(DIR).join("log/00000000000000000001.wal"), 150, 3));
    assert!(matches!(open(&disk), Err(Error::Corrupt { .. })));
}

#[test]
fn a_newer_format_is_refused_with_advice() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    drop(log);
    let segment = Path::new(DIR).join("log/00000000000000000001.wal");
    write_full(&*disk.open(&segment, How::Write).unwrap(), b"{\"windlass_log\":9", 0).unwrap();
    let Err(error) = open(&disk) else { panic!("opened") };
    assert!(matches!(error, Error::Newer { format: 9, .. }), "{error}");
    assert!(error.to_string().contains("use the version that wrote it"));
}

#[test]
fn a_snapshot_and_what_came_after_are_the_whole() {
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    commit_some(&mut model, &log, 40);
    save_all(&log, &model.state);
    commit_some(&mut model, &log, 10);
    let all = records(&log, 0).len() as u64;
    drop(log);
    let (log, recovery, state) = open(&disk).unwrap();
    assert!(recovery.snapshot.as_ref().is_some_and(|name| name.starts_with("snapshot/0")), "{recovery:?}");
    assert!(recovery.streams == 5 && recovery.records < all, "{recovery:?}");
    assert_eq!(shape(&state), shape(&model.state));
    // Heads too: the next facts follow.
    model.state = state;
    commit_some(&mut model, &log, 10);
    log.verify().unwrap();
}

#[test]
fn a_damaged_snapshot_is_passed_over_with_a_warning() {
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    for _ in 0..3 {
        commit_some(&mut model, &log, 10);
        save_all(&log, &model.state);
    }
    drop(log);
    let names = disk.list(&Path::new(DIR).join("snapshot")).unwrap();
    assert_eq!(names.len(), 2, "the newest are kept");
    for damaged in 1..=2 {
        let path = Path::new(DIR).join("snapshot").join(&names[2 - damaged]);
        assert!(disk.flip(&path, 200, 1));
        let (log, recovery, state) = open(&disk).unwrap();
        assert_eq!(recovery.warnings.len(), damaged, "{recovery:?}");
        assert_eq!(recovery.snapshot.is_some(), damaged == 1);
        assert_eq!(shape(&state), shape(&model.state));
        drop(log);
    }
}

/// Rewrites a snapshot, with a CRC that is right.
fn rewrite(disk: &Faulty, path: &Path, change: impl Fn(&str) -> String) {
    let text = String::from_utf8(disk.contents()[path].clone()).unwrap();
    let mut text = change(&text);
    text.truncate(text.rfind(",\"crc\"").unwrap());
    let crc = crc32fast::hash(text.as_bytes());
    text.push_str(&format!(",\"crc\":\"{crc:08x}\"}}\n"));
    disk.remove(path).unwrap();
    let file = disk.open(path, How::New).unwrap();
    write_full(&*file, text.as_bytes(), 0).unwrap();
}

/// What another version saved may mean something else, even where it can be read: the log is read instead.
#[test]
fn a_snapshot_of_another_form_is_left_alone_and_the_log_tells_all() {
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    commit_some(&mut model, &log, 20);
    save_all(&log, &model.state);
    drop(log);
    let names = disk.list(&Path::new(DIR).join("snapshot")).unwrap();
    let path = Path::new(DIR).join("snapshot").join(&names[0]);
    let form = format!("\"form\":{}", Snapshot::FORM);
    // Streams that would be taken for newer ones if anybody read them.
    let later = |text: &str| text.replace("\"state\":{\"ver\":", "\"state\":{\"ver\":9");
    let versions = [
        ("streams have form 1", form.as_str(), "\"form\":1"),
        ("format 1", "_snapshot\":2", "_snapshot\":1"),
        ("format 3", "_snapshot\":2", "_snapshot\":3"),
    ];
    let sound = String::from_utf8(disk.contents()[&path].clone()).unwrap();
    for (what, from, to) in versions {
        rewrite(&disk, &path, |_| later(&sound.replace(from, to)));
        let (log, recovery, state) = open(&disk).unwrap();
        assert!(recovery.snapshot.is_none() && recovery.streams == 0, "{recovery:?}");
        assert!(recovery.warnings[0].contains(what), "{recovery:?}");
        assert_eq!(shape(&state), shape(&model.state), "{what}");
        drop(log);
    }
    // A single stream that is refused comes from the log as well, and those before it count.
    rewrite(&disk, &path, |_| {
        let at = sound.rfind(&form).unwrap();
        format!("{}\"form\":1{}", &sound[..at], &sound[at + form.len()..])
    });
    let (_, recovery, state) = open(&disk).unwrap();
    assert!(recovery.snapshot.is_none() && recovery.streams > 0, "{recovery:?}");
    assert_eq!(shape(&state), shape(&model.state));
}

#[test]
fn a_log_that_lost_what_a_snapshot_knows_is_refused() {
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    commit_some(&mut model, &log, 2);
    save_all(&log, &model.state);
    disk.kill();
    drop(log);
    // Nothing in the log itself says that the last batch was durable; the snapshot does.
    let segment = Path::new(DIR).join("log/00000000000000000001.wal");
    let bytes = disk.contents()[&segment].clone();
    let last = bytes.windows(8).rposition(|w| w == b"{\"type\":").unwrap();
    assert!(disk.flip(&segment, last + 20, 2));
    let Err(error) = open(&disk) else { panic!("opened") };
    assert!(error.to_string().contains("was durable"), "{error}");
}

#[test]
fn compaction_drops_ended_streams_and_keeps_the_rest_byte_for_byte() {
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    commit_some(&mut model, &log, 60);
    let before = records(&log, 0);
    log.commit_and_wait(vec![Entry::Forget(stream(1)), Entry::Forget(stream(2))]).unwrap();
    log.roll().unwrap();
    let done = log.compact(&|id: &StreamId| *id == stream(2)).unwrap();
    assert!(done.streams_dropped == 1 && done.bytes_dropped > 0 && done.files > 1, "{done:?}");
    let names = disk.list(&Path::new(DIR).join("log")).unwrap();
    let kept: Vec<&String> =
        names.iter().filter(|name| !name.starts_with("spare-") && !name.starts_with("heads")).collect();
    let recycled = |(path, bytes): (&std::path::PathBuf, &Vec<u8>)| {
        path.display().to_string().contains("spare-") && bytes.starts_with(b"{")
    };
    assert!(disk.contents().iter().any(recycled), "room is kept, with what it held: {names:?}");
    assert!(kept.len() == 2 && names[1].starts_with("carried-"), "one is carried, one is written: {names:?}");
    let kept: Vec<Record> = before.into_iter().filter(|record| record.stream != stream(1)).collect();
    assert_eq!(records(&log, 0), kept);
    assert_eq!(log.compact(&|_: &StreamId| true).unwrap().files, 0, "nothing to drop, nothing to write");
    // Life goes on, in recycled files too; and a reader that began before is not disturbed.
    model.state.evict(&stream(1));
    model.state.evict(&stream(2));
    model.forgotten.extend([stream(1), stream(2)]);
    commit_some(&mut model, &log, 30);
    let (expected, mut seen) = (records(&log, 0), Vec::new());
    log.read(0, &mut |record, _| {
        if seen.is_empty() {
            commit_some(&mut model, &log, 60);
            assert!(log.compact(&|_: &StreamId| false).unwrap().files > 1);
            commit_some(&mut model, &log, 60);
        }
        seen.push(record);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, expected);
    let after = records(&log, 0);
    log.verify().unwrap();
    disk.crash(3);
    drop(log);
    let (log, ..) = open(&disk).unwrap();
    assert_eq!(records(&log, 0), after);
}

#[test]
fn compaction_drops_what_was_to_be_forgotten_a_moment_before() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    for round in 0..20 {
        let streams = (0..20).map(|n| 20 * round + n);
        log.commit_and_wait(streams.clone().map(|n| fact(n, 1, 0)).collect()).unwrap();
        log.roll().unwrap();
        for n in streams {
            log.submit(Batch { entries: vec![Entry::Forget(stream(n))], done: Box::new(|_| {}) });
        }
        assert_eq!(log.compact(&|_: &StreamId| false).unwrap().streams_dropped, 20, "round {round}");
    }
}

#[test]
fn a_scan_has_all_of_a_stream_and_nothing_else() {
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    commit_some(&mut model, &log, 60);
    let mut found = Vec::new();
    log.scan(&[stream(3)], Seqs::ALL, &mut |record, _| {
        found.push(record);
        ControlFlow::Continue(())
    })
    .unwrap();
    let all: Vec<Record> = records(&log, 0).into_iter().filter(|r| r.stream == stream(3)).collect();
    assert_eq!(found, all);
    assert_eq!(found.len() as u64, model.ver(3));
    let next = log.read(0, &mut |_, _| ControlFlow::Break(())).unwrap();
    assert_eq!(next, 2);
    assert_eq!(log.read(next, &mut |_, _| ControlFlow::Continue(())).unwrap(), log.durable_seq() + 1);
}

#[test]
fn what_is_remembered_after_a_snapshot_is_an_orphan_that_a_scan_finds() {
    let disk = Faulty::new();
    let (log, ..) = open(&disk).unwrap();
    let chain = log.commit_and_wait(vec![fact(1, 1, 0), fact(2, 1, 0)]).unwrap().chains[0];
    log.commit_and_wait(vec![Entry::Forget(stream(1))]).unwrap();
    assert!(matches!(log.commit_and_wait(vec![fact(1, 2, 0)]), Err(Error::Gap { have: 0, .. })));
    let mut state = State::new();
    log.scan(&[stream(2)], Seqs::ALL, &mut |record, _| {
        state.apply_event(&record).unwrap();
        ControlFlow::Continue(())
    })
    .unwrap();
    save_all(&log, &state);
    let head = Head { ver: 1, head: chain };
    log.commit_and_wait(vec![Entry::Remember(stream(1), head), fact(1, 2, 0)]).unwrap();
    drop(log);
    let (log, recovery, _) = open(&disk).unwrap();
    assert_eq!(recovery.orphans.into_iter().collect::<Vec<_>>(), [stream(1)]);
    let mut vers = Vec::new();
    log.scan(&[stream(1)], Seqs::ALL, &mut |record, _| {
        vers.push(record.ver);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(vers, [1, 2]);
    log.commit_and_wait(vec![fact(1, 3, 0)]).unwrap();
    log.verify().unwrap();
}

#[test]
fn a_backup_is_sound_while_the_log_is_written_and_restores() {
    let (disk, mut model) = (Faulty::new(), Model::new());
    let (log, ..) = open(&disk).unwrap();
    commit_some(&mut model, &log, 60);
    save_all(&log, &model.state);
    commit_some(&mut model, &log, 10);
    let verified = log.backup(Path::new("copy")).unwrap();
    assert_eq!(verified.last_seq, log.durable_seq());
    assert!(log.backup(Path::new("copy")).is_err(), "never over another");
    commit_some(&mut model, &log, 1);
    restore(&disk, Path::new("copy"), Path::new("again")).unwrap();
    let (restored, _, state) = open_at(&disk, "again", options()).unwrap();
    assert_eq!(shape(&state), model.states[model.states.len() - 2]);
    restored.commit_and_wait(vec![fact(9, 1, 0)]).unwrap();
    assert!(disk.flip(Path::new("copy/log/00000000000000000001.wal"), 300, 1));
    assert!(matches!(restore(&disk, Path::new("copy"), Path::new("third")), Err(Error::Corrupt { .. })));
}

#[test]
fn everything_works_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(Files);
    let data = dir.path().join("data");
    let mut model = Model::new();
    let (log, ..) = open_on(Arc::clone(&disk), &data, options()).unwrap();
    commit_some(&mut model, &log, 60);
    save_all(&log, &model.state);
    commit_some(&mut model, &log, 20);
    assert!(matches!(open_on(Arc::clone(&disk), &data, options()), Err(Error::Locked { pid: Some(_), .. })));
    assert!(log.lock_file().is_some());
    log.backup(&dir.path().join("copy")).unwrap();
    log.compact(&|_: &StreamId| true).unwrap();
    log.close().unwrap();
    let (log, recovery, state) = open_on(Arc::clone(&disk), &data, options()).unwrap();
    assert!(recovery.snapshot.is_some() && recovery.torn_bytes == 0, "{recovery:?}");
    assert_eq!(shape(&state), shape(&model.state));
    drop(log);
    assert_eq!(verify(&*disk, &data).unwrap(), verify(&*disk, &dir.path().join("copy")).unwrap());
}
