//! What a run takes in memory, counted by the allocator: `max alloc` of a row is what its runs take together.
//!
//! This stands in a binary of its own because the counting costs time.

#![allow(clippy::print_stdout)] // Sizes are printed before the rows.

mod support;

use divan::counter::ItemsCount;
use divan::{AllocProfiler, Bencher};
use support::{Bench, STEPS};
use windlass_core::event::Event;
use windlass_core::id::RunId;
use windlass_core::run::{Born, Run};
use windlass_core::step::Step;
use windlass_core::stream::StreamId;
use windlass_core::turn::command::Command;
use windlass_core::turn::state::Stream;

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

/// How many runs a row has.
const RUNS: usize = 1_000;

fn main() {
    let sizes = [
        ("Event", size_of::<Event>()),
        ("StreamId", size_of::<StreamId>()),
        ("Stream", size_of::<Stream>()),
        ("Run", size_of::<Run>()),
        ("Born", size_of::<Born>()),
        ("Step", size_of::<Step>()),
    ];
    for (name, size) in sizes {
        println!("{name}: {size} bytes");
    }
    if std::env::args().any(|arg| arg == "resident") {
        return resident();
    }
    divan::main();
}

/// What a process with a hundred thousand runs takes that wait for another one.
fn resident() {
    let mut bench = Bench::new();
    let first = RunId(bench.start().0);
    for _ in 0..100_000 {
        let mut create = bench.create();
        create.needs = vec![first];
        bench.send(&Command::Create(Box::new(create)));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or("VmHWM: unknown");
    println!("{} runs, {peak}", bench.state.streams().count());
}

/// Makes runs from their commands; what the commands themselves take is not counted.
fn runs(bencher: Bencher<'_, '_>, needs: bool, steps: usize) {
    let prepare = || {
        let mut bench = Bench::new();
        let first = RunId(bench.start().0);
        let commands: Vec<Vec<Command>> = (0..RUNS)
            .map(|_| {
                let mut create = bench.create();
                create.needs = needs.then_some(first).into_iter().collect();
                let run = create.id;
                let work = (0..steps).flat_map(|step| [bench.lease(run, step), bench.done(run, step)]);
                core::iter::once(Command::Create(Box::new(create))).chain(work).collect()
            })
            .collect();
        (bench, commands)
    };
    bencher.counter(ItemsCount::new(RUNS)).with_inputs(prepare).bench_local_refs(|(bench, commands)| {
        for command in commands.iter().flatten() {
            bench.send(command);
        }
    });
}

/// Not begun: they wait for another run.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn blocked(bencher: Bencher<'_, '_>) {
    runs(bencher, true, 0);
}

/// Begun: the first step is ready.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn ready(bencher: Bencher<'_, '_>) {
    runs(bencher, false, 0);
}

/// Ended, and not yet taken out of memory: ten steps with their outputs.
#[divan::bench(sample_count = 3, sample_size = 1)]
fn completed(bencher: Bencher<'_, '_>) {
    runs(bencher, false, STEPS);
}
