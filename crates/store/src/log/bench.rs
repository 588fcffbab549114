//! Measuring: how many facts a second this disk takes through the log, and how often it syncs at all.

use super::{Batch, Entry, Error, Log, Options};
use crate::disk::{Disk, Files, How, write_full};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use windlass_core::event::{Custom, Event};
use windlass_core::id::{Name, RunId};
use windlass_core::run::Actor;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::Fact;
use windlass_engine::port::Decided;

/// How many facts a committer commits at a time: those of a plain step.
const FACTS: u64 = 3;
/// How many bytes the private value of each has, so that the lines of a step have about 1,400.
const VALUE_BYTES: usize = 20;
/// How many bytes are written for each sync when only the disk is measured.
const SYNC_BYTES: usize = 4 << 10;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// How many committers there were at a time.
    pub committers: u64,
    /// How many facts became durable in a second.
    pub facts_per_s: f64,
    /// How many bytes a fact has on the disk.
    pub bytes_per_fact: f64,
    /// How long a committer waits for its facts to be durable: the median.
    pub latency_p50: Duration,
    /// The same: the longest but for one in a hundred.
    pub latency_p99: Duration,
    /// How often in a second the disk alone syncs four kilobytes.
    pub syncs_per_s: f64,
}

/// Commits facts of so many streams at a time, for so long, to a log in a new directory, and measures the disk's own rate
/// of syncs beside it. What it wrote is left there.
///
/// # Errors
/// What the log or the system says.
pub fn bench(dir: &Path, committers: u64, seconds: f64) -> Result<Figures, Error> {
    let disk: Arc<dyn Disk> = Arc::new(Files);
    let (log, _) = Log::open(Arc::clone(&disk), &dir.join("bench"), Options::default(), &mut |_| Ok(()))?;
    let mut load = Load::new(committers.max(1));
    let run = load.run(&log, Duration::from_secs_f64(seconds))?;
    log.close()?;
    let mut waits = load.waits;
    waits.sort_unstable();
    let percentile = |p: usize| waits.get(waits.len() * p / 100).copied().unwrap_or_default();
    let facts = load.facts as f64;
    Ok(Figures {
        committers,
        facts_per_s: facts / run.as_secs_f64(),
        bytes_per_fact: load.line_bytes,
        latency_p50: percentile(50),
        latency_p99: percentile(99),
        syncs_per_s: sync_rate(&*disk, dir)?,
    })
}

/// Committers, each with a stream; one thread hands over what all of those commit that wait for nothing.
struct Load {
    vers: Vec<u64>,
    ready: Vec<usize>,
    facts: u64,
    line_bytes: f64,
    waits: Vec<Duration>,
}

type Answer = (Result<(), Error>, Vec<usize>, Instant);

impl Load {
    fn new(committers: u64) -> Load {
        let vers = vec![0; committers as usize];
        Load { ready: (0..vers.len()).collect(), vers, facts: 0, line_bytes: 0.0, waits: Vec::new() }
    }

    fn run(&mut self, log: &Log, length: Duration) -> Result<Duration, Error> {
        let (answer, answers) = channel();
        let start = Instant::now();
        let mut waiting = 0;
        while start.elapsed() < length {
            if !self.ready.is_empty() {
                waiting += 1;
                log.commit(self.batch(&answer));
            }
            waiting -= self.take(&answers)?;
        }
        while waiting > 0 {
            waiting -= self.take(&answers)?;
        }
        let spent = start.elapsed();
        let mut bytes = 0;
        let mut lines = 0_u64;
        log.read(1, &mut |_, line| {
            bytes += line.len() + 1;
            lines += 1;
            if lines < 1_000 { std::ops::ControlFlow::Continue(()) } else { std::ops::ControlFlow::Break(()) }
        })?;
        self.line_bytes = bytes as f64 / lines.max(1) as f64;
        Ok(spent)
    }

    /// Waits for an answer, and takes all that came with it; returns how many.
    fn take(&mut self, answers: &Receiver<Answer>) -> Result<u64, Error> {
        let Ok(first) = answers.recv() else { return Err(Error::Closed) };
        let mut count = 0;
        for (result, committers, since) in std::iter::once(first).chain(answers.try_iter()) {
            result?;
            let wait = since.elapsed();
            self.facts += committers.len() as u64 * FACTS;
            self.waits.push(wait);
            self.ready.extend(committers);
            count += 1;
        }
        Ok(count)
    }

    fn batch(&mut self, answer: &Sender<Answer>) -> Batch {
        let committers = std::mem::take(&mut self.ready);
        let count = committers.len() * FACTS as usize;
        let (mut facts, mut vers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for &n in &committers {
            for _ in 0..FACTS {
                self.vers[n] += 1;
                vers.push(self.vers[n]);
                facts.push(fact(n as u128));
            }
        }
        let entries = vec![Entry::Facts { facts, vers }];
        let (answer, since) = (answer.clone(), Instant::now());
        let done = Box::new(move |result: Result<super::Durable, Error>| {
            // The receiver is gone: another thread's error ended the measurement.
            let _ = answer.send((result.map(|_| ()), committers, since));
        });
        Batch { entries, done }
    }
}

fn fact(n: u128) -> Decided {
    let id = RunId(0x0190_1234_5678_7abc_8def_0123_4567_89ab + n);
    let event = Event::from(Custom {
        category: Name::clean("bench"),
        action: Name::clean("step-completed"),
        pipeline_id: Some(id),
        data: serde_json::Value::from("x".repeat(VALUE_BYTES)).into(),
    });
    let fact = Fact { stream: StreamId::Run(id), tenant: Name::clean("default"), event };
    Decided { fact, by: Actor::SYSTEM, at: Millis(1_763_245_800_123) }
}

/// How often in a second the disk syncs a small write into a file whose blocks are there.
fn sync_rate(disk: &dyn Disk, dir: &Path) -> Result<f64, Error> {
    let path = dir.join("bench-sync");
    let file = disk.open(&path, How::New).map_err(Error::io("cannot make", &path))?;
    let (bytes, room) = (vec![1; SYNC_BYTES], 1 << 20);
    write_full(&*file, &vec![0; room], 0).map_err(Error::io("cannot write", &path))?;
    file.sync_data().map_err(Error::sync(&path))?;
    let (start, mut count) = (Instant::now(), 0_u32);
    while start.elapsed() < Duration::from_millis(500) {
        let offset = count as usize * SYNC_BYTES % room;
        write_full(&*file, &bytes, offset as u64).map_err(Error::io("cannot write", &path))?;
        file.sync_data().map_err(Error::sync(&path))?;
        count += 1;
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    disk.remove(&path).map_err(Error::io("cannot remove", &path))?;
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_measures_what_becomes_durable() {
        let dir = tempfile::tempdir().unwrap();
        let figures = bench(dir.path(), 8, 0.05).unwrap();
        assert!(figures.facts_per_s > 0.0 && figures.syncs_per_s > 0.0 && figures.bytes_per_fact > 100.0);
        let verified = super::super::verify(&Files, &dir.path().join("bench")).unwrap();
        assert_eq!(verified.last_seq % (FACTS * 8), 0, "whole batches only: {verified:?}");
    }
}
