//! A queue with hardly anything in it and one with a million items: pushing, taking, and a start with all of it.
//!
//! Pushes and takes come in arrays, as a producer in a hurry sends them, from several callers at once; each answer waits
//! until its batch is durable.

use super::broken;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use windlass_core::id::{Holder, ItemId, Name, Scoped};
use windlass_core::queue;
use windlass_core::run::Actor;
use windlass_core::turn::command::{Command, Pushed, Reply};
use windlass_engine::handle::{Message, inbox};
use windlass_engine::port::{Clock as _, Fault, Outside};
use windlass_engine::{Engine, Handle, Options, Parts, Released};
use windlass_executor::clock::{Sorted, System, fresh};
use windlass_runbook::expr::Cel;
use windlass_server::client::Failure;
use windlass_server::policy::InForce;
use windlass_store::disk::Files;
use windlass_store::store::{self, Embedded};

/// How many items one command pushes or takes.
const ARRAY: u64 = 100;
/// How many callers there are at once.
const CALLERS: u64 = 4;
/// How many items are pushed and taken for one figure.
const SAMPLE: u64 = 40_000;
/// How many figures are taken, of which the middle one counts: one takes a tenth of a second, in which much may happen beside it.
const SAMPLES: usize = 5;

/// Nobody carries anything out here.
struct Nobody;

impl Outside for Nobody {
    fn start(&self, _: Released) {}

    fn fatal(&self, fault: &Fault) {
        eprintln!("windlass: {}: {fault}", fault.code());
        std::process::exit(i32::from(fault.code().exit()));
    }
}

/// An engine on a store, with one queue.
struct Bench {
    handle: Handle<Embedded>,
    thread: JoinHandle<Result<(), Fault>>,
}

fn the_queue() -> Scoped {
    let name = Name::clean;
    Scoped::new(&name("default"), &name("default"), &name("jobs"))
}

impl Bench {
    fn open(dir: &Path) -> Result<Bench, Failure> {
        let (store, _) = Embedded::open(Arc::new(Files), dir, &store::Options::default()).map_err(broken)?;
        let (handle, inbox) = inbox();
        let parts = Parts {
            store,
            clock: Arc::new(System),
            ids: Box::new(Sorted),
            evaluate: Arc::new(Cel::new()),
            policy: Arc::new(InForce::builtin()),
            outside: Arc::new(Nobody) as Arc<dyn Outside>,
        };
        let mut engine = Engine::new(parts, Options { slots: 0, ..Options::default() }, handle.clone());
        let thread = std::thread::spawn(move || engine.serve(&inbox));
        let input = queue::Input::Configure(queue::Settings::default());
        handle.call(Actor::SYSTEM, Command::Queue { queue: the_queue(), input }).map_err(broken)?;
        Ok(Bench { handle, thread })
    }

    fn close(self) -> Result<(), Failure> {
        self.handle.tell(Message::Stop);
        drop(self.handle);
        self.thread.join().map_err(|_| broken("the engine panicked"))?.map_err(broken)
    }

    /// Does so many arrays' worth of something, from all callers at once; says how many items a second that was.
    fn rate(&self, items: u64, command: impl Fn(u64) -> Command + Sync) -> Result<f64, Failure> {
        let (left, done) = (AtomicU64::new(items / ARRAY), AtomicU64::new(0));
        let began = Instant::now();
        let work = || -> Result<(), Failure> {
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            {
                let count = match self.handle.call(Actor::SYSTEM, command(ARRAY)).map_err(broken)? {
                    Reply::PushedAll(items) => items.len(),
                    Reply::Taken(grants) => grants.len(),
                    other => return Err(broken(format!("{other:?} came"))),
                };
                done.fetch_add(count as u64, Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(work)).collect();
            callers
                .into_iter()
                .try_for_each(|caller| caller.join().unwrap_or_else(|_| Err(broken("a caller panicked"))))
        })?;
        Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64())
    }

    fn push(&self, items: u64) -> Result<f64, Failure> {
        self.rate(items, |count| {
            let item = |n: u64| Pushed {
                id: ItemId(fresh()),
                data: json!({ "job": n, "path": "in/2026/file" }),
                priority: 0,
                not_before: None,
                dedupe: None,
                from: None,
            };
            Command::PushAll { queue: the_queue(), items: (0..count).map(item).collect() }
        })
    }

    fn take(&self, items: u64) -> Result<f64, Failure> {
        let holder = Holder::Outside(Name::clean("bench"));
        self.rate(items, |count| Command::TakeMany {
            queue: the_queue(),
            holder: holder.clone(),
            max: count as u32,
        })
    }
}

/// How many items a second are pushed and taken, in the median.
fn rates(dir: &Path) -> Result<(f64, f64), Failure> {
    let bench = Bench::open(dir)?;
    // Once without looking at the clock: what is cold is not what is asked for.
    bench.push(SAMPLE / 4)?;
    bench.take(SAMPLE / 4)?;
    let (mut pushed, mut taken) = ([0.0; SAMPLES], [0.0; SAMPLES]);
    for (pushed, taken) in pushed.iter_mut().zip(&mut taken) {
        *pushed = bench.push(SAMPLE)?;
        *taken = bench.take(SAMPLE)?;
    }
    pushed.sort_by(f64::total_cmp);
    taken.sort_by(f64::total_cmp);
    bench.close()?;
    Ok((pushed[SAMPLES / 2], taken[SAMPLES / 2]))
}

pub(super) fn measure(dir: &Path, items: u64) -> Result<Value, Failure> {
    let full_dir = dir.join("full");
    let bench = Bench::open(&full_dir)?;
    let before = super::rss_mib();
    bench.push(items)?;
    let after = super::rss_mib();
    bench.close()?;
    let cold = open(&full_dir)?;
    snapshot(&full_dir)?;
    let warm = open(&full_dir)?;
    let full = rates(&full_dir)?;
    let empty = rates(&dir.join("empty"))?;
    let round = |rate: f64| rate.round();
    let times = |a: f64, b: f64| (a / b * 100.0).round() / 100.0;
    Ok(json!({
        "n": items,
        "per_s": round(full.0),
        "records_per_s": round(full.0),
        "push_per_s": { "empty": round(empty.0), "full": round(full.0), "times": times(empty.0, full.0) },
        "take_per_s": { "empty": round(empty.1), "full": round(full.1), "times": times(empty.1, full.1) },
        "bytes_per_item": (after.saturating_sub(before) << 20) / items.max(1),
        "start_s": seconds(cold),
        "start_with_snapshot_s": seconds(warm),
        "p50_ms": Value::Null,
        "p99_ms": Value::Null,
    }))
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

/// Opens the store as it is, and says how long that took.
fn open(dir: &Path) -> Result<Duration, Failure> {
    let began = Instant::now();
    let (store, _) = Embedded::open(Arc::new(Files), dir, &store::Options::default()).map_err(broken)?;
    let took = began.elapsed();
    drop(store);
    Ok(took)
}

/// Lets the store make a whole snapshot.
fn snapshot(dir: &Path) -> Result<(), Failure> {
    let (mut store, _) = Embedded::open(Arc::new(Files), dir, &store::Options::default()).map_err(broken)?;
    store.save_now(System.now());
    Ok(())
}
