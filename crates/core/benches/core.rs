//! The core's hot path, piece by piece. `docs/performance.md` says what is measured, how, and what to expect.

#![allow(clippy::unwrap_used, clippy::panic)] // A benchmark that fails shall stop.

mod support;

use divan::{Bencher, black_box};
use std::cell::RefCell;
use support::{Bench, STEPS, lines, salt};
use windlass_core::digest::Digest;
use windlass_core::id::{Holder, ItemId, RunId};
use windlass_core::lock::{self, Ask};
use windlass_core::record::{Check, Decoder, Record};
use windlass_core::stream::StreamId;
use windlass_core::turn::command::{Command, Fact, Pushed, Reply};
use windlass_core::{item, queue};

fn main() {
    divan::main();
}

/// The events that a plain run consists of, by their tags.
const TAGS: [&str; 5] =
    ["step:completed", "step:started", "pipeline:advanced", "pipeline:created", "policy:decided"];

/// A fact of a run with this tag, and its place in the stream.
fn sample(tag: &str) -> (Bench, Vec<Fact>, usize) {
    let mut bench = Bench::new();
    let facts = bench.whole_run();
    let place = facts.iter().rposition(|fact| fact.event.tag() == tag).unwrap();
    (bench, facts, place)
}

/// A record with this tag and the head before it.
fn record(tag: &str) -> (String, Digest) {
    let (bench, facts, place) = sample(tag);
    lines(&bench, &facts)[place].clone()
}

/// Writing a record: fields, digests of private values, the chain.
#[divan::bench(args = TAGS, sample_count = 500)]
fn encode(bencher: Bencher<'_, '_>, tag: &str) {
    let (bench, facts, place) = sample(tag);
    let draft = bench.draft(&facts[place], place as u64 + 1);
    let (head, mut out) = (Digest([3; 32]), Vec::new());
    bencher.bench_local(|| {
        out.clear();
        black_box(draft.encode(black_box(&head), 4_711, &mut salt, &mut out))
    });
}

/// Reading a record without any check but its form, as `tail` does.
#[divan::bench(args = TAGS, sample_count = 500)]
fn decode(bencher: Bencher<'_, '_>, tag: &str) {
    let (line, _) = record(tag);
    bencher.bench_local(|| Record::decode(black_box(&line), Check::Form).unwrap());
}

/// The same by one who reads many: names that come again are shared.
#[divan::bench(args = TAGS, sample_count = 500)]
fn decoder(bencher: Bencher<'_, '_>, tag: &str) {
    let (line, _) = record(tag);
    let mut decoder = Decoder::new();
    bencher.bench_local(|| decoder.decode(black_box(&line), Check::Form).unwrap());
}

/// Reading a record as recovery does: form and chain.
#[divan::bench(args = TAGS, sample_count = 500)]
fn chain(bencher: Bencher<'_, '_>, tag: &str) {
    let (line, head) = record(tag);
    bencher.bench_local(|| Record::decode(black_box(&line), Check::Chain(&head)).unwrap());
}

/// Reading a record as `verify` does: form, chain and every private value.
#[divan::bench(args = TAGS, sample_count = 500)]
fn verify(bencher: Bencher<'_, '_>, tag: &str) {
    let (line, head) = record(tag);
    bencher.bench_local(|| Record::decode(black_box(&line), Check::All(&head)).unwrap());
}

/// A state with runs that are all at work, taken in turn.
struct Running {
    bench: Bench,
    runs: Vec<(RunId, usize)>,
    turn: usize,
    lease: Option<Command>,
}

impl Running {
    fn new(runs: usize) -> Running {
        let mut bench = Bench::new();
        let runs = (0..runs).map(|_| (bench.start(), 0)).collect();
        Running { bench, runs, turn: 0, lease: None }
    }

    /// The completion of the next run's step, and the lease of the step after it. A run at its last step is
    /// replaced by a new one first.
    fn next(&mut self) -> [Command; 2] {
        self.turn = (self.turn + 1) % self.runs.len();
        let (run, step) = self.runs[self.turn];
        if step + 1 == STEPS {
            self.bench.state.evict(&StreamId::Run(run));
            self.runs[self.turn] = (self.bench.start(), 0);
        }
        let (run, step) = self.runs[self.turn];
        self.runs[self.turn].1 += 1;
        [self.bench.done(run, step), self.bench.lease(run, step + 1)]
    }
}

/// Decisions, applied to the state.
mod drive {
    use super::*;

    /// A step is reported done and the next one leased: three records, among so many runs.
    #[divan::bench(args = [1, 100, 10_000], sample_count = 20_000, sample_size = 1)]
    fn complete_and_lease(bencher: Bencher<'_, '_>, runs: usize) {
        let running = RefCell::new(Running::new(runs));
        bencher.with_inputs(|| running.borrow_mut().next()).bench_local_values(|[done, lease]| {
            let bench = &mut running.borrow_mut().bench;
            let facts = bench.send(&done).facts.len() + bench.send(&lease).facts.len();
            assert_eq!(facts, 3);
        });
    }

    /// A step is reported done, and the next one is ready: two records.
    #[divan::bench(args = [1, 100, 10_000], sample_count = 20_000, sample_size = 1)]
    fn complete(bencher: Bencher<'_, '_>, runs: usize) {
        let running = RefCell::new(Running::new(runs));
        let input = || {
            let mut running = running.borrow_mut();
            if let Some(lease) = running.lease.take() {
                running.bench.send(&lease);
            }
            let [done, lease] = running.next();
            running.lease = Some(lease);
            done
        };
        bencher.with_inputs(input).bench_local_values(|done| {
            let facts = running.borrow_mut().bench.send(&done).facts.len();
            assert_eq!(facts, 2);
        });
    }

    /// A run is created and begins: its first step is ready. Policy was asked before.
    #[divan::bench(sample_count = 5_000, sample_size = 1)]
    fn create(bencher: Bencher<'_, '_>) {
        let bench = RefCell::new(Bench::new());
        let last = RefCell::new(None);
        let input = || {
            let mut bench = bench.borrow_mut();
            if let Some(run) = last.take() {
                bench.state.evict(&StreamId::Run(run));
            }
            let create = bench.create();
            last.replace(Some(create.id));
            Command::Create(Box::new(create))
        };
        bencher.with_inputs(input).bench_local_values(|create| bench.borrow_mut().send(&create));
    }

    /// A lock is taken and given back: two records.
    #[divan::bench(sample_count = 2_000)]
    fn lock(bencher: Bencher<'_, '_>) {
        let mut bench = Bench::new();
        let (lock, holder) = (support::scoped("merge-main"), Holder::Outside(support::name("ci")));
        let ask = Ask { holder: holder.clone(), metadata: None, wait: true, give_up_at: None };
        let acquire = Command::Lock { lock: lock.clone(), input: lock::Input::Acquire(ask) };
        let release = Command::Lock { lock, input: lock::Input::Release { holder, epoch: None } };
        bencher.bench_local(|| {
            let facts = bench.send(&acquire).facts.len() + bench.send(&release).facts.len();
            assert_eq!(facts, 2);
        });
    }
}

/// One item is pushed and the best one taken and completed: three records, with so many items waiting.
#[divan::bench(args = [1_000, 1_000_000], sample_count = 20_000, sample_size = 1)]
fn push_take_complete(bencher: Bencher<'_, '_>, waiting: usize) {
    let mut bench = Bench::new();
    let bugs = support::scoped("bugs");
    let configure = queue::Input::Configure(queue::Settings::default());
    bench.send(&Command::Queue { queue: bugs.clone(), input: configure });
    let push = |bench: &mut Bench| {
        let id = ItemId(bench.id());
        let data = serde_json::json!({ "bug": "BUG-4815", "brief": "The page is blank" });
        let item = Pushed { id, data, priority: 0, not_before: None, dedupe: None, from: None };
        Command::Push { queue: bugs.clone(), item: Box::new(item) }
    };
    for _ in 0..waiting {
        let push = push(&mut bench);
        bench.send(&push);
    }
    let take = Command::Take { queue: bugs.clone(), holder: Holder::Outside(support::name("consumer")) };
    let bench = RefCell::new(bench);
    bencher.with_inputs(|| push(&mut bench.borrow_mut())).bench_local_values(|push| {
        let bench = &mut *bench.borrow_mut();
        bench.send(&push);
        let taken = bench.send(&take);
        let (Reply::Item(item::Reply::Taken(grant)), StreamId::Item(item)) =
            (taken.reply, &taken.facts[0].stream)
        else {
            panic!("nothing was taken")
        };
        let complete = item::Input::Complete { epoch: grant.epoch };
        bench.send(&Command::Item { item: *item, input: complete });
    });
}
