//! Replay: how long it takes to read a log of a million records back into a state, and how much memory that takes.
//!
//! The log is made and replayed a piece at a time, so that it need not fit into memory; only the replay is counted.
//! `cargo bench -p windlass-core --bench replay [RECORDS]` prints CPU seconds and resident memory.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // A benchmark that fails shall stop; this one prints by itself.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use support::{Bench, STEPS, salt};
use windlass_core::digest::Digest;
use windlass_core::id::RunId;
use windlass_core::stream::StreamId;
use windlass_core::turn::command::{Command, Fact};
use windlass_core::turn::state::State;

/// How many runs are under way at once: their records stand between each other's, as in a real log.
const RUNS: usize = 64;
/// How many records make a piece.
const PIECE: usize = 20_000;

/// Writes a log: runs of ten steps, a new one wherever one ends.
struct Log {
    bench: Bench,
    heads: BTreeMap<StreamId, (Digest, u64)>,
    runs: Vec<Option<(RunId, usize)>>,
    seq: u64,
}

impl Log {
    fn write(&mut self, facts: &[Fact], lines: &mut Vec<String>) {
        for fact in facts {
            let (head, ver) = self.heads.entry(fact.stream.clone()).or_default();
            self.seq += 1;
            *ver += 1;
            let mut line = Vec::new();
            *head = self.bench.draft(fact, *ver).encode(head, self.seq, &mut salt, &mut line);
            lines.push(String::from_utf8(line).unwrap());
        }
    }

    fn piece(&mut self, lines: &mut Vec<String>) {
        while lines.len() < PIECE {
            for i in 0..RUNS {
                let facts = match self.runs[i] {
                    None => {
                        let create = self.bench.create();
                        self.runs[i] = Some((create.id, 0));
                        let mut facts = self.bench.send(&Command::Create(Box::new(create.clone()))).facts;
                        facts.extend(self.bench.send(&self.bench.lease(create.id, 0)).facts);
                        facts
                    }
                    Some((run, step)) => {
                        let mut facts = self.bench.send(&self.bench.done(run, step)).facts;
                        self.runs[i] = Some((run, step + 1)).filter(|(_, step)| *step < STEPS);
                        if self.runs[i].is_some() {
                            facts.extend(self.bench.send(&self.bench.lease(run, step + 1)).facts);
                        } else {
                            self.bench.state.evict(&StreamId::Run(run));
                        }
                        facts
                    }
                };
                self.write(&facts, lines);
                if self.runs[i].is_none() {
                    self.heads.remove(&facts[0].stream);
                }
            }
        }
    }
}

/// The time that this thread has been on a processor: what a busy machine does not change.
fn cpu() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// A line of the process's status, in kilobytes.
fn memory(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

fn main() {
    let wanted: usize = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(1_000_000);
    let mut log = Log { bench: Bench::new(), heads: BTreeMap::new(), runs: vec![None; RUNS], seq: 0 };
    let (mut made, mut bytes, mut making) = (0, 0, Duration::ZERO);
    let pieces = std::iter::from_fn(|| {
        let from = cpu();
        let mut lines = Vec::new();
        if made < wanted {
            log.piece(&mut lines);
        }
        made += lines.len();
        bytes += lines.iter().map(String::len).sum::<usize>();
        making += cpu() - from;
        Some(lines).filter(|lines| !lines.is_empty())
    });
    let (mut state, before, from) = (State::new(), memory("VmRSS:"), cpu());
    let done = state.replay(pieces.flatten()).unwrap();
    let spent = cpu() - from - making;
    let runs = state.streams().count();
    println!("{done} records, {} bytes each, of {runs} runs", bytes as u64 / done);
    println!("{:.2} s of CPU, {} ns a record", spent.as_secs_f64(), spent.as_nanos() / u128::from(done));
    println!(
        "{} MB resident at the end, {} MB before, {} MB at the peak",
        memory("VmRSS:") / 1024,
        before / 1024,
        memory("VmHWM:") / 1024
    );
}
