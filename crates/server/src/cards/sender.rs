//! The sender of cards: updates Slack until it shows what is recorded, however long that takes.
//!
//! ```text
//!  effect ─▶ line ─▶ job (one an approval) ─▶ look at the state ─▶ post, change, remind ─▶ record where it stands
//!                     ▲                                                   │
//!                     └────── back-off, Retry-After, next reminder ◀──────┘
//! ```
//!
//! It has its own thread, so that nothing else waits for Slack. It keeps no state that matters: which messages are posted is
//! recorded as facts, missing ones follow from them, and after a restart the engine asks for them again. If the answer to a
//! message was lost, the sender searches for its mark before it posts again. There is one job per approval that is open or
//! out of date, and a few of them run at a time.

mod bring;

use super::slack::Slack;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};
use windlass_core::id::{ApprovalId, NoticeId, RunId};
use windlass_core::time::Millis;
use windlass_engine::Handle;
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;
use windlass_executor::config::Config;
use windlass_executor::secrets::Secrets;
use windlass_executor::tools::settings::Settings;
use windlass_executor::tools::{Again, Happened, Trouble};
use windlass_store::store::Embedded;

/// How many jobs are under way at once.
const AT_ONCE: usize = 4;
/// The first wait after a failure; it doubles, up to the longest.
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// The wait after a refusal that only an operator can lift: a missing token, an unknown channel.
const REFUSED_WAIT: Duration = Duration::from_secs(300);
/// The longest `Retry-After` that is honoured: an approval does not wait forever.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often a card is tried after its approval is over.
const LATE_TRIES_MAX: u32 = 12;
/// How long what is due may take when the process stops.
const GRACE: Duration = Duration::from_secs(3);

/// What is asked of the sender.
enum Wish {
    Approval(RunId, ApprovalId),
    Notice(NoticeId, Box<bring::Notice>),
    Leave,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Approval(RunId, ApprovalId),
    Notice(NoticeId),
}

/// What came of a look at one job.
enum Came {
    /// Nothing is left to do.
    Done,
    /// Something is to be done later.
    Later(Duration),
    /// Something did not work. `late`: its approval is over.
    Failed { trouble: Trouble, late: bool },
}

struct Job {
    due: Instant,
    tries: u32,
    /// Whether something may have been posted without an answer.
    unsure: bool,
    running: bool,
    /// Whether it was asked for again while it was under way.
    again: bool,
    notice: Option<Arc<bring::Notice>>,
}

/// The sender of cards.
pub struct Sender {
    line: UnboundedSender<Wish>,
    slack: Arc<Slack>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What all jobs need.
struct Desk {
    engine: Handle<Embedded>,
    config: Arc<Config>,
    slack: Arc<Slack>,
    /// When this process began: what was asked for earlier may have been posted by another.
    since: Millis,
}

impl Sender {
    /// Begins to send.
    ///
    /// # Errors
    /// The system gives no thread, or no certificates.
    pub fn start(
        engine: Handle<Embedded>,
        config: Arc<Config>,
        settings: &Arc<Settings>,
        secrets: Arc<Secrets>,
    ) -> std::io::Result<Arc<Sender>> {
        let slack = Arc::new(Slack::new(settings, secrets).map_err(std::io::Error::other)?);
        let desk = Arc::new(Desk { engine, config, slack: slack.clone(), since: System.now() });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (line, wishes) = unbounded_channel();
        let work = move || runtime.block_on(serve(desk, wishes));
        let thread = std::thread::Builder::new().name("cards".into()).spawn(work)?;
        Ok(Arc::new(Sender { line, slack, thread: Mutex::new(Some(thread)) }))
    }

    /// The way to Slack.
    #[must_use]
    pub fn slack(&self) -> &Arc<Slack> {
        &self.slack
    }

    /// Shows an approval as it stands, wherever it should be seen.
    pub fn show(&self, run: RunId, approval: ApprovalId) {
        // A sender that has left is asked again after the next start, as everything else is.
        let _ = self.line.send(Wish::Approval(run, approval));
    }

    /// Tells people something in Slack. `taken`: another channel took it already.
    pub fn notify(&self, notice: NoticeId, channel: String, (title, message): (String, String), taken: bool) {
        let notice_of = bring::Notice { channel, title, message, taken };
        let _ = self.line.send(Wish::Notice(notice, Box::new(notice_of)));
    }

    /// Ends: what is due and was not tried yet has a moment.
    pub fn stop(&self) {
        let _ = self.line.send(Wish::Leave);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // One that panicked has nothing left to wait for.
            let _ = thread.join();
        }
    }
}

/// The wait before the next try.
fn wait(trouble: &Trouble, tries: u32) -> Duration {
    match trouble.again {
        Again::After(wait) => wait.min(ASKED_WAIT_MAX),
        Again::Soon => BACKOFF.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(BACKOFF_MAX),
        Again::Never => REFUSED_WAIT,
    }
}

impl Job {
    fn new(notice: Option<Arc<bring::Notice>>) -> Job {
        Job { due: Instant::now(), tries: 0, unsure: false, running: false, again: false, notice }
    }

    /// Takes note of what came of a look. Whether there is anything left to do.
    fn came(&mut self, came: &Came, now: Instant) -> bool {
        self.running = false;
        let again = std::mem::take(&mut self.again);
        match came {
            Came::Done if !again => return false,
            Came::Done => (self.due, self.tries, self.unsure) = (now, 0, false),
            Came::Later(wait) => {
                (self.due, self.tries, self.unsure) = (now + *wait, 0, false);
                if again {
                    self.due = now;
                }
            }
            Came::Failed { trouble, late } => {
                self.tries = self.tries.saturating_add(1);
                self.unsure |= trouble.happened == Happened::Unknown;
                self.due = now + wait(trouble, self.tries);
                if self.tries == 1 {
                    eprintln!("windlass: Slack does not show what it should: {trouble}; it is tried again");
                }
                return !late || self.tries < LATE_TRIES_MAX && trouble.again != Again::Never;
            }
        }
        true
    }
}

/// All jobs, and those under way.
struct Work {
    desk: Arc<Desk>,
    jobs: BTreeMap<Key, Job>,
    tasks: JoinSet<Came>,
    running: HashMap<Id, Key>,
    leaving: Option<Instant>,
}

async fn serve(desk: Arc<Desk>, mut wishes: UnboundedReceiver<Wish>) {
    let mut work =
        Work { desk, jobs: BTreeMap::new(), tasks: JoinSet::new(), running: HashMap::new(), leaving: None };
    loop {
        let now = Instant::now();
        work.begin(now);
        if work.leaving.is_some_and(|end| now >= end || work.tasks.is_empty()) {
            return;
        }
        let idle = work.jobs.values().filter(|job| !job.running && work.leaving.is_none());
        let next = idle.map(|job| job.due).chain(work.leaving).min();
        let room = work.tasks.len() < AT_ONCE;
        tokio::select! {
            wish = wishes.recv(), if work.leaving.is_none() => work.take(wish),
            Some(ended) = work.tasks.join_next_with_id(), if !work.tasks.is_empty() => work.ended(ended),
            () = sleep_until(next.unwrap_or(now)), if next.is_some() && (room || work.leaving.is_some()) => {}
        }
    }
}

impl Work {
    fn take(&mut self, wish: Option<Wish>) {
        let (key, notice) = match wish {
            Some(Wish::Approval(run, approval)) => (Key::Approval(run, approval), None),
            Some(Wish::Notice(id, notice)) => (Key::Notice(id), Some(Arc::from(notice))),
            Some(Wish::Leave) | None => {
                self.leaving = Some(Instant::now() + GRACE);
                return;
            }
        };
        let job = self.jobs.entry(key).or_insert_with(|| Job::new(notice));
        if job.running {
            job.again = true;
        } else if job.tries == 0 {
            // A failed card keeps its back-off, even if it is asked for meanwhile.
            job.due = Instant::now();
        }
    }

    /// Begins what is due. When the process stops, only what was never tried.
    fn begin(&mut self, now: Instant) {
        let room = AT_ONCE.saturating_sub(self.tasks.len());
        let leaving = self.leaving.is_some();
        let due = |job: &Job| !job.running && job.due <= now && (!leaving || job.tries == 0);
        for (key, job) in self.jobs.iter_mut().filter(|(_, job)| due(job)).take(room) {
            job.running = true;
            let (desk, unsure, notice) = (self.desk.clone(), job.unsure || job.tries > 0, job.notice.clone());
            let task = match (*key, notice) {
                (Key::Approval(run, approval), _) => {
                    self.tasks.spawn(async move { bring::approval(&desk, run, approval, unsure).await })
                }
                (Key::Notice(id), Some(notice)) => {
                    self.tasks.spawn(async move { bring::notice(&desk, id, &notice, unsure).await })
                }
                (Key::Notice(_), None) => self.tasks.spawn(std::future::ready(Came::Done)),
            };
            self.running.insert(task.id(), *key);
        }
    }

    fn ended(&mut self, ended: Result<(Id, Came), tokio::task::JoinError>) {
        let (id, came) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let trouble = Trouble::unanswered("the card could not be made");
                (error.id(), Came::Failed { trouble, late: true })
            }
        };
        let Some(key) = self.running.remove(&id) else { return };
        let more = self.jobs.get_mut(&key).is_some_and(|job| job.came(&came, Instant::now()));
        if !more {
            self.jobs.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_what_the_other_side_asks_for_is_kept_to() {
        let soon = Trouble::not_now("busy");
        assert_eq!([1, 2, 3].map(|tries| wait(&soon, tries).as_millis()), [500, 1_000, 2_000]);
        assert_eq!(wait(&soon, u32::MAX), BACKOFF_MAX);
        let asked = Trouble { again: Again::After(Duration::from_secs(7)), ..soon };
        assert_eq!(wait(&asked, 9), Duration::from_secs(7));
        let day = Trouble { again: Again::After(Duration::from_secs(86_400)), ..asked };
        assert_eq!(wait(&day, 1), ASKED_WAIT_MAX);
        assert_eq!(wait(&Trouble::refused("no"), 1), REFUSED_WAIT);
    }

    #[test]
    fn a_job_ends_when_nothing_is_left_and_a_late_one_after_some_tries() {
        let now = Instant::now();
        let mut job = Job::new(None);
        assert!(!job.came(&Came::Done, now));
        job.again = true;
        assert!(job.came(&Came::Done, now), "it was asked for meanwhile");
        let failed = |late| Came::Failed { trouble: Trouble::unanswered("lost"), late };
        for _ in 0..100 {
            assert!(job.came(&failed(false), now), "somebody waits for it");
        }
        assert!(job.unsure && job.due > now);
        assert!(job.came(&Came::Later(Duration::from_secs(1)), now) && !job.unsure && job.tries == 0);
        let tries = (1..).find(|_| !job.came(&failed(true), now)).unwrap();
        assert_eq!(tries, LATE_TRIES_MAX);
        let refused = Came::Failed { trouble: Trouble::refused("message_not_found"), late: true };
        assert!(!Job::new(None).came(&refused, now));
    }
}
