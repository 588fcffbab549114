//! How quickly the history index answers among a million runs, and what it takes on disk.
//!
//! `cargo bench -p windlass --bench history [-- RUNS]` fills an index in a temporary folder and prints the median and
//! the 99th percentile of each kind of question, in microseconds, and the latter also in time on a processor, which other
//! programs on the machine do not lengthen.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // A benchmark prints, and has nobody to hand an error to.

use std::hint::black_box;
use std::time::{Duration, Instant};
use windlass_core::digest::Digest;
use windlass_core::event::{Event, PipelineCompleted, PipelineCreated, PipelineFailed};
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Lineage, Run, Source, Status, Subject, Trigger};
use windlass_core::time::Millis;
use windlass_store::history::{Filter, History, Row};

/// When the first run was created.
const EPOCH_MS: u64 = 1_760_000_000_000;
/// One run every so often: a million in 90 days.
const STEP_MS: u64 = 7_776;
/// Each question is asked so often.
const ROUNDS: usize = 2_000;

/// A small source of chance, the same every time.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// One in ten runs is another tenant's. Pipelines 0 to 19 share the runs, `rare` has one in 50,000.
fn run(n: u64, chance: &mut Chance) -> Run {
    let at = Millis(EPOCH_MS + n * STEP_MS);
    let rest = u128::from(chance.next()) << 40 | u128::from(chance.next());
    let id = RunId(u128::from(at.0 - chance.below(20)) << 80 | 7 << 76 | rest);
    let tenant = name(if n % 10 == 3 { "other" } else { "default" });
    let pipeline = match n % 50_000 {
        777 => "rare".to_owned(),
        _ => format!("pipeline-{}", chance.below(20).min(chance.below(20))),
    };
    let repo = format!("https://github.com/acme/service-{}", chance.below(300).min(chance.below(300)));
    let subject = Subject { repo: Some(repo), pr: Some("4711".to_owned()), url: None };
    let created = PipelineCreated {
        id,
        kind: name(&pipeline),
        name: name(&format!("shop/{pipeline}")),
        runbook_hash: Digest::of(&[pipeline.as_bytes()]),
        cwd: "/srv/checkout".to_owned(),
        vars: windlass_core::packed::Packed::of(&serde_json::json!({ "version": "2025.11.3" })).into(),
        initial_step: None,
        created_at_epoch_ms: at,
        namespace: name("default"),
        trigger: Trigger {
            source: Source::Api,
            key: None,
            user: Some(name("ann")),
            event_id: None,
            traceparent: None,
            of: None,
        },
        lineage: Lineage::first(id),
        subject: (n % 5 < 3).then_some(subject),
        correlation_id: None,
        deadline_at: None,
        priority: None,
        parent: None,
        parent_step: None,
        depth: None,
        needs: None,
        lock: None,
        initial_node: None,
        budget_usd_micros: None,
        budget_tokens: None,
        writes_max: None,
        workspace: None,
        budget_time_ms: None,
        budget_writes: None,
        needs_pipelines: None,
        asked_by: None,
        takes_back: None,
        evidence: None,
    };
    let duration_ms = chance.below(600_000);
    let end = if n % 12 == 5 {
        let error = "the process exited with code 1".to_owned().into();
        let code = name("STEP_FAILED");
        Event::PipelineFailed(PipelineFailed { id, duration_ms, code, step: Some(name("build")), error })
    } else {
        Event::PipelineCompleted(PipelineCompleted { id, duration_ms, outputs: None })
    };
    Run::create(&created, &tenant, at).apply(&end, Millis(at.0 + duration_ms))
}

fn fill(history: &History, runs: u64) -> Vec<RunId> {
    let mut chance = Chance(1);
    let mut ids = Vec::new();
    let (mut made, mut json) = (Duration::ZERO, 0);
    let from = Instant::now();
    for first in (0..runs).step_by(1_000) {
        let begun = Instant::now();
        let rows: Vec<Row> = (first..(first + 1_000).min(runs))
            .map(|n| Row::of(&run(n, &mut chance), (n * 8, n * 8 + 7)))
            .collect();
        json += rows.iter().map(|row| row.json.len()).sum::<usize>();
        ids.extend(rows.iter().map(|row| row.id));
        made += begun.elapsed();
        history.put(rows, first * 8);
    }
    history.flush().unwrap();
    let took = from.elapsed();
    println!("{runs} rows in {:.1} s, of which {:.1} s to make them", took.as_secs_f64(), made.as_secs_f64());
    println!("{} bytes of JSON a row", json / ids.len().max(1));
    ids
}

fn cpu() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap())
}

fn ask(what: &str, mut question: impl FnMut(usize) -> usize) {
    let (mut took, mut spent) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS));
    let mut rows = 0;
    for round in 0..ROUNDS {
        let (from, on_cpu) = (Instant::now(), cpu());
        rows += black_box(question(round));
        spent.push(cpu() - on_cpu);
        took.push(from.elapsed());
    }
    took.sort_unstable();
    spent.sort_unstable();
    let us = |all: &[Duration], part: usize| all[ROUNDS * part / 100].as_secs_f64() * 1e6;
    let (p50, p99, cpu99) = (us(&took, 50), us(&took, 99), us(&spent, 99));
    println!("{what:<46} {:>6.1} {p50:>9.0} {p99:>9.0} {cpu99:>9.0}", rows as f64 / ROUNDS as f64);
}

/// Asks for the newest page and, in every second round, for one from anywhere.
fn lists(history: &History, ids: &[RunId], runs: u64) {
    let all = || Filter {
        tenant: name("default"),
        namespace: name("default"),
        status: None,
        pipeline: None,
        repo: None,
        origin: Default::default(),
        since: None,
        before: None,
        limit: 50,
    };
    let repo = |n: u64| Some(format!("https://github.com/acme/service-{n}"));
    let since = |back: u64| Some(Millis(EPOCH_MS + runs.saturating_sub(back) * STEP_MS));
    let failed = Some(Status::Failed);
    let cases = [
        ("tenant", all()),
        ("status failed", Filter { status: failed, ..all() }),
        ("status completed", Filter { status: Some(Status::Completed), ..all() }),
        ("status cancelled (none)", Filter { status: Some(Status::Cancelled), ..all() }),
        ("pipeline, frequent", Filter { pipeline: Some(name("pipeline-0")), ..all() }),
        ("pipeline, rare", Filter { pipeline: Some(name("rare")), ..all() }),
        ("pipeline, unknown", Filter { pipeline: Some(name("unknown")), ..all() }),
        ("pipeline + status failed", Filter { pipeline: Some(name("pipeline-3")), status: failed, ..all() }),
        ("repo, frequent", Filter { repo: repo(0), ..all() }),
        ("repo, rare", Filter { repo: repo(299), ..all() }),
        ("repo + status failed", Filter { repo: repo(7), status: failed, ..all() }),
        ("repo + pipeline", Filter { repo: repo(0), pipeline: Some(name("pipeline-0")), ..all() }),
        (
            "repo + pipeline, nothing in common",
            Filter { repo: repo(0), pipeline: Some(name("rare")), ..all() },
        ),
        ("since, 20 runs ago", Filter { since: since(20), ..all() }),
        ("since, half of all", Filter { since: since(runs / 2), ..all() }),
        ("since, the future", Filter { since: since(0).map(|at| Millis(at.0 + 60_000)), ..all() }),
        (
            "since half + pipeline rare",
            Filter { since: since(runs / 2), pipeline: Some(name("rare")), ..all() },
        ),
        ("since 1,000 runs ago + status failed", Filter { since: since(1_000), status: failed, ..all() }),
        ("the other tenant", Filter { tenant: name("other"), ..all() }),
    ];
    for (what, filter) in cases {
        ask(what, |_| history.list(&filter).unwrap().len());
        let mut chance = Chance(2);
        ask(&format!("{what}, any page"), |_| {
            let at = usize::try_from(chance.next()).unwrap() % ids.len();
            history.list(&Filter { before: Some(ids[at]), ..filter.clone() }).unwrap().len()
        });
    }
}

fn main() {
    let runs = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(1_000_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.db");
    let history = History::open(&path).unwrap();
    let ids = fill(&history, runs);
    history.close().unwrap();
    let size = path.metadata().unwrap().len();
    println!("{:.0} MB, {} bytes a row", size as f64 / 1e6, size / runs.max(1));
    let from = Instant::now();
    let history = History::open(&path).unwrap();
    println!("opened in {:.1} ms", from.elapsed().as_secs_f64() * 1e3);

    println!("{:<46} {:>6} {:>9} {:>9} {:>9}", "page of 50, microseconds", "rows", "p50", "p99", "p99 CPU");
    lists(&history, &ids, runs);
    let mut chance = Chance(3);
    let mut any = || ids[usize::try_from(chance.next()).unwrap() % ids.len()];
    ask("get", |_| usize::from(history.get(any()).unwrap().is_some()));
    ask("find, a prefix that says much", |_| {
        let low = any().0 & !0xffff_ffff;
        history
            .find((&name("default"), &name("default")), RunId(low), RunId(low | 0xffff_ffff), 2)
            .unwrap()
            .len()
    });
    ask("find, a prefix that says nothing", |_| {
        history.find((&name("default"), &name("default")), RunId(0), RunId(u128::MAX), 2).unwrap().len()
    });
    ask("put one run and wait until it is committed", |round| {
        let n = runs + u64::try_from(round).unwrap();
        history.put(vec![Row::of(&run(n, &mut Chance(n)), (n * 8, n * 8 + 7))], n * 8);
        history.flush().unwrap();
        history.flushed().len()
    });
}
