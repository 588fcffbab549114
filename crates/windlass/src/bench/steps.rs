//! Steps that do nothing, carried out in process, so many runs at a time.

use super::broken;
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use windlass_core::attempt::Report;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId};
use windlass_core::run::{Actor, Initiator, Source, Trigger};
use windlass_core::runbook::Runbook;
use windlass_core::turn::command::{Command, Create};
use windlass_engine::handle::{Message, inbox};
use windlass_engine::port::{Fault, Outside};
use windlass_engine::{Engine, Handle, Options, Parts, Released};
use windlass_executor::clock::{Sorted, System, fresh};
use windlass_runbook::expr::Cel;
use windlass_server::client::Failure;
use windlass_server::policy::InForce;
use windlass_store::disk::Files;
use windlass_store::store::{self, Embedded};

/// How many steps a run has.
const STEPS: u64 = 10;
/// How many latencies are kept.
const SAMPLES_MAX: usize = 1 << 20;

/// An executor that does nothing, and makes a new run whenever one ends.
pub(super) struct Idle {
    handle: OnceLock<Handle<Embedded>>,
    runbook: Runbook,
    by: Actor,
    stopping: AtomicBool,
    steps: AtomicU64,
    ended: AtomicU64,
    /// When steps were released, and how long it took from one to the next of its run.
    times: Mutex<Times>,
    /// Where each step is written down that is carried out, outside the log.
    ledger: Option<fs::File>,
}

#[derive(Default)]
struct Times {
    last: std::collections::HashMap<RunId, Instant>,
    samples: Vec<Duration>,
}

const BOOK: Digest = Digest([0xbe; 32]);

fn runbook() -> Result<Runbook, Failure> {
    let step = |n: u64| json!({ "id": format!("s{n}"), "kind": { "run": { "command": "true" } } });
    let nodes: Vec<Value> = (1..=STEPS).map(step).collect();
    let places: Vec<u64> = (0..STEPS).collect();
    let book =
        json!({ "name": "bench", "version": 1, "pipelines": { "p": { "nodes": nodes, "steps": places } } });
    serde_json::from_value(book).map_err(broken)
}

impl Idle {
    fn new(ledger: Option<&Path>) -> Result<Idle, Failure> {
        let open = |path| fs::OpenOptions::new().create(true).append(true).open(path);
        Ok(Idle {
            ledger: ledger.map(open).transpose()?,
            handle: OnceLock::new(),
            runbook: runbook()?,
            by: Actor::new(Initiator::Executor, "local"),
            stopping: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            times: Mutex::default(),
        })
    }

    fn create(&self) {
        let Some(handle) = self.handle.get() else { return };
        let (id, name) = (RunId(fresh()), Name::clean);
        let create = Create {
            id,
            tenant: name("default"),
            namespace: name("default"),
            runbook: BOOK,
            pipeline: name("p"),
            name: name("bench/p"),
            cwd: "/".to_owned(),
            vars: Value::Null,
            trigger: Trigger {
                source: Source::Cli,
                key: None,
                user: None,
                event_id: None,
                traceparent: None,
                of: None,
            },
            subject: None,
            correlation_id: None,
            priority: 0,
            needs: Vec::new(),
            parent: None,
            depth: 0,
            deadline_at: None,
            workspace: None,
            policy: InForce::builtin().for_run(id, &self.runbook, &name("p")),
            takes_back: None,
        };
        handle.ask(Actor::SYSTEM, Command::Create(Box::new(create)), |_| {});
    }

    fn time(&self, run: RunId, last: bool) {
        let now = Instant::now();
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if last { times.last.remove(&run) } else { times.last.insert(run, now) };
        if let Some(before) = before
            && times.samples.len() < SAMPLES_MAX
        {
            times.samples.push(now - before);
        }
    }
}

impl Outside for Idle {
    fn start(&self, released: Released) {
        let (Released::Execute(permit), Some(handle)) = (released, self.handle.get()) else { return };
        let lease = permit.lease();
        let last = u64::from(lease.node) == STEPS - 1;
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.time(lease.run, last);
        if let Some(mut ledger) = self.ledger.as_ref() {
            // One write a line: it is there whole when the process is killed after it.
            let _ = ledger.write_all(format!("{} {}\n", lease.run, lease.step).as_bytes());
        }
        let (run, step, epoch) = (lease.run, lease.step.clone(), lease.epoch);
        let report = Report::Done { output: None, exit_code: None };
        handle.report(self.by.clone(), Command::Report { run, step, epoch, report, receipt: None });
        if last {
            self.ended.fetch_add(1, Ordering::Relaxed);
            if !self.stopping.load(Ordering::Relaxed) {
                self.create();
            }
        }
    }

    fn fatal(&self, fault: &Fault) {
        eprintln!("windlass: {}: {fault}", fault.code());
        std::process::exit(i32::from(fault.code().exit()));
    }
}

/// An engine with an idle executor, on a store.
struct Bench {
    idle: Arc<Idle>,
    handle: Handle<Embedded>,
    thread: std::thread::JoinHandle<Result<(), Fault>>,
    log: Arc<windlass_store::log::Log>,
}

impl Bench {
    fn start(dir: &Path, slots: usize, ledger: Option<&Path>, recover: bool) -> Result<Bench, Failure> {
        let (store, _) = Embedded::open(Arc::new(Files), dir, &store::Options::default()).map_err(broken)?;
        let log = store.log();
        let idle = Arc::new(Idle::new(ledger)?);
        let (handle, inbox) = inbox();
        let _ = idle.handle.set(handle.clone());
        let parts = Parts {
            store,
            clock: Arc::new(System),
            ids: Box::new(Sorted),
            evaluate: Arc::new(Cel::new()),
            policy: Arc::new(InForce::builtin()),
            outside: idle.clone() as Arc<dyn Outside>,
        };
        let options = Options { slots: slots.max(1), ..Options::default() };
        let mut engine = Engine::new(parts, options, handle.clone());
        if recover {
            idle.stopping.store(true, Ordering::Relaxed);
            engine.recover().map_err(broken)?;
        }
        let thread = std::thread::spawn(move || engine.serve(&inbox));
        Ok(Bench { idle, handle, thread, log })
    }

    fn stop(self) -> Result<Arc<Idle>, Failure> {
        self.idle.stopping.store(true, Ordering::Relaxed);
        self.handle.tell(Message::Slots(0));
        self.handle.tell(Message::Stop);
        self.thread.join().map_err(|_| broken("the engine panicked"))?.map_err(broken)?;
        Ok(self.idle)
    }
}

/// Keeps so many runs going until somebody says enough.
pub(super) fn drive(
    dir: &Path,
    runs: usize,
    ledger: Option<&Path>,
    mut enough: impl FnMut(&Idle, u64) -> bool,
) -> Result<(Arc<Idle>, u64, Duration), Failure> {
    let bench = Bench::start(dir, runs, ledger, false)?;
    let (hash, tenant, runbook) = (BOOK, Name::clean("default"), Box::new(bench.idle.runbook.clone()));
    let load = Command::Load { hash, tenant, runbook, source: None };
    bench.handle.call(Actor::SYSTEM, load).map_err(broken)?;
    let (first, began) = (bench.log.durable_seq(), Instant::now());
    for _ in 0..runs {
        bench.idle.create();
    }
    while !enough(&bench.idle, bench.log.durable_seq()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (records, took) = (bench.log.durable_seq() - first, began.elapsed());
    Ok((bench.stop()?, records, took))
}

/// Brings the runs of a store to their end; says how many did not come to it in time.
pub(super) fn finish(dir: &Path, ledger: &Path, patience: Duration) -> Result<usize, Failure> {
    let bench = Bench::start(dir, 1_000, Some(ledger), true)?;
    let until = Instant::now() + patience;
    let open = |store: &mut Embedded| {
        store.state().streams().filter(|(_, stream)| super::kill::is_open(&stream.body)).count()
    };
    let mut left = bench.handle.read(open).map_err(broken)?;
    while left > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        left = bench.handle.read(open).map_err(broken)?;
    }
    bench.stop()?;
    Ok(left)
}

pub(super) fn measure(dir: &Path, runs: usize, time: Duration) -> Result<Value, Failure> {
    let began = Instant::now();
    let (idle, records, took) = drive(&dir.join("store"), runs, None, |_, _| began.elapsed() >= time)?;
    let steps = idle.steps.load(Ordering::Relaxed);
    let mut times = idle.times.lock().unwrap_or_else(PoisonError::into_inner);
    times.samples.sort_unstable();
    let at = |part: f64| {
        let index = ((times.samples.len() as f64 - 1.0) * part).max(0.0) as usize;
        times.samples.get(index).map_or(0.0, |sample| (sample.as_secs_f64() * 1e6).round() / 1e3)
    };
    Ok(json!({
        "n": steps,
        "runs_at_a_time": runs,
        "runs": idle.ended.load(Ordering::Relaxed),
        "per_s": (steps as f64 / took.as_secs_f64()).round(),
        "records_per_s": (records as f64 / took.as_secs_f64()).round(),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
    }))
}
