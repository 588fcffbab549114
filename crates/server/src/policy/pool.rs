//! The thread pool that evaluates policy, off the loop, with a time limit per evaluation.
//!
//! An evaluation cannot be interrupted. So a watch answers for one that takes too long: it timed out, which is a no. Its
//! later result is dropped, and another worker takes its place, up to a bound.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// How many evaluate at once.
const WORKERS: usize = 2;
/// How many workers there may be when some of them are stuck.
const WORKERS_MAX: usize = 16;
/// How many questions may wait.
pub const LINE_MAX: usize = 100_000;
/// How long an evaluation may take.
pub const TIME_MAX: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It took too long.
    TimedOut,
    /// Too many wait.
    Overloaded,
    /// The evaluation broke down.
    Broken,
}

/// Gets the answer, or why there is none.
type Answer<T> = Box<dyn FnOnce(Result<T, NoAnswer>) + Send>;
type Work<T> = Box<dyn FnOnce() -> T + Send>;

struct Shared<T> {
    state: Mutex<State<T>>,
    /// There is work, or the pool ends.
    work: Condvar,
    /// A worker is busy, or the pool ends.
    busy: Condvar,
    time_max: Duration,
}

struct State<T> {
    line: VecDeque<(Work<T>, Answer<T>)>,
    /// What is being evaluated, until it is answered.
    under_way: Vec<(u64, Instant, Answer<T>)>,
    next: u64,
    workers: usize,
    ends: bool,
}

/// A pool.
pub struct Pool<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    /// The threads exist. Callers wait while they are being started.
    started: Once,
}

impl<T: Send + 'static> Default for Pool<T> {
    fn default() -> Self {
        Pool::new(TIME_MAX)
    }
}

impl<T: Send + 'static> Pool<T> {
    /// A pool whose evaluations may take so long. Its threads come with the first question.
    #[must_use]
    pub fn new(time_max: Duration) -> Pool<T> {
        let state = State { line: VecDeque::new(), under_way: Vec::new(), next: 0, workers: 0, ends: false };
        let (work, busy) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), work, busy, time_max });
        Pool { shared, started: Once::new() }
    }

    /// Has something evaluated. The answer comes once, on some thread.
    pub fn ask(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        answer: impl FnOnce(Result<T, NoAnswer>) + Send + 'static,
    ) {
        self.started.call_once(|| self.start());
        let mut state = self.shared.lock();
        if state.line.len() >= LINE_MAX || state.workers == 0 {
            drop(state);
            return answer(Err(NoAnswer::Overloaded));
        }
        state.line.push_back((Box::new(work), Box::new(answer)));
        drop(state);
        self.shared.work.notify_one();
    }

    fn start(&self) {
        for _ in 0..WORKERS {
            self.shared.hire();
        }
        let shared = self.shared.clone();
        let watch = move || shared.watch();
        if std::thread::Builder::new().name("policy-time".into()).spawn(watch).is_err() {
            // Without a watch an evaluation could take forever, so none is started.
            self.shared.lock().workers = 0;
        }
    }
}

impl<T: Send + 'static> Drop for Pool<T> {
    fn drop(&mut self) {
        self.shared.lock().ends = true;
        self.shared.work.notify_all();
        self.shared.busy.notify_all();
    }
}

impl<T: Send + 'static> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hire(self: &Arc<Shared<T>>) {
        let shared = self.clone();
        let serve = move || shared.serve();
        // Fewer workers evaluate more slowly; with none, every question is answered at once.
        if std::thread::Builder::new().name("policy".into()).spawn(serve).is_ok() {
            self.lock().workers += 1;
        }
    }

    fn serve(self: &Arc<Shared<T>>) {
        loop {
            let Some((number, work)) = self.take() else { return };
            // A panic is a defect of ours, and no reason for a step to wait forever.
            let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let mut state = self.lock();
            let Some(at) = state.under_way.iter().position(|(known, ..)| *known == number) else {
                // The watch has answered for it and started another worker in its place.
                state.workers -= 1;
                return;
            };
            let (_, _, answer) = state.under_way.swap_remove(at);
            drop(state);
            answer(made.map_err(|_| NoAnswer::Broken));
        }
    }

    fn take(&self) -> Option<(u64, Work<T>)> {
        let mut state = self.lock();
        loop {
            if state.ends {
                return None;
            }
            if let Some((work, answer)) = state.line.pop_front() {
                let number = state.next;
                state.next += 1;
                state.under_way.push((number, Instant::now() + self.time_max, answer));
                if state.under_way.len() == 1 {
                    self.busy.notify_one();
                }
                return Some((number, work));
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Answers for what takes too long.
    fn watch(self: &Arc<Shared<T>>) {
        let mut state = self.lock();
        while !state.ends {
            let now = Instant::now();
            if let Some(at) = state.under_way.iter().position(|(_, until, _)| *until <= now) {
                let (_, _, answer) = state.under_way.swap_remove(at);
                let more = state.workers < WORKERS_MAX;
                drop(state);
                answer(Err(NoAnswer::TimedOut));
                if more {
                    self.hire();
                }
                state = self.lock();
                continue;
            }
            let next = state.under_way.iter().map(|(_, until, _)| *until).min();
            state = match next {
                Some(next) => {
                    let wait = next.saturating_duration_since(now);
                    self.busy.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.busy.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn many_who_ask_first_are_all_answered() {
        for _ in 0..200 {
            let (pool, (send, receive)) = (Pool::new(TIME_MAX), channel());
            let start = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for n in 0..4 {
                    let (pool, start, send) = (&pool, &start, send.clone());
                    scope.spawn(move || {
                        start.wait();
                        pool.ask(move || n, move |answer| send.send(answer).unwrap());
                    });
                }
            });
            let mut answers: Vec<i32> = (0..4).map(|_| receive.recv().unwrap().unwrap()).collect();
            answers.sort_unstable();
            assert_eq!(answers, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn what_is_asked_is_answered() {
        let pool: Pool<u32> = Pool::default();
        let (send, receive) = channel();
        for number in 0..1_000 {
            let send = send.clone();
            pool.ask(move || number, move |answer| send.send(answer.unwrap()).unwrap());
        }
        let mut got: Vec<u32> = receive.iter().take(1_000).collect();
        got.sort_unstable();
        assert!(got.into_iter().eq(0..1_000));
    }

    #[test]
    fn what_takes_too_long_is_answered_for_and_does_not_keep_others_waiting() {
        let pool: Pool<u32> = Pool::new(Duration::from_millis(20));
        let (send, receive) = channel();
        let (let_go, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        // More than there are workers at first.
        for _ in 0..WORKERS + 1 {
            let (send, held) = (send.clone(), held.clone());
            let stuck = move || {
                let _ = held.lock().map(|held| held.recv());
                1
            };
            pool.ask(stuck, move |answer| send.send(answer).unwrap());
        }
        for _ in 0..WORKERS + 1 {
            assert_eq!(receive.recv().unwrap(), Err(NoAnswer::TimedOut));
        }
        let quick = send.clone();
        pool.ask(|| 2, move |answer| quick.send(answer).unwrap());
        assert_eq!(receive.recv().unwrap(), Ok(2));
        // Stuck workers end, and their answers are dropped.
        drop(let_go);
        pool.ask(|| 3, move |answer| send.send(answer).unwrap());
        assert_eq!(receive.recv().unwrap(), Ok(3));
        assert!(receive.recv().is_err());
    }

    #[test]
    fn an_evaluation_that_breaks_down_is_no_answer() {
        let pool: Pool<u32> = Pool::default();
        let (send, receive) = channel();
        pool.ask(|| panic!("a defect"), move |answer| send.send(answer).unwrap());
        assert_eq!(receive.recv().unwrap(), Err(NoAnswer::Broken));
    }

    #[test]
    fn a_line_that_is_full_is_refused() {
        let pool: Pool<u32> = Pool::new(Duration::from_secs(3_600));
        let (let_go, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..LINE_MAX + WORKERS {
            let held = held.clone();
            pool.ask(move || held.lock().map(|held| held.recv()).map_or(1, |_| 2), |_| {});
        }
        let (send, receive) = channel();
        let mut refused = false;
        // The workers may not have taken theirs yet, or may have: one of the next is too many.
        for _ in 0..=WORKERS {
            let send = send.clone();
            pool.ask(|| 1, move |answer| send.send(answer).unwrap_or(()));
            refused |= receive.try_recv() == Ok(Err(NoAnswer::Overloaded));
        }
        assert!(refused);
        drop(let_go);
    }
}
