//! Aside: what a large request takes is done on threads of their own, so those that serve everybody stay free.
//!
//! To read a body of a megabyte, to check a runbook in it and to hash and drop it all again takes up to seconds, and nothing
//! of it waits for anything. So a request whose body is large is handled here from the moment its body is there; small ones
//! are not moved. A tenant has a bounded number of them under way, and its others wait in line without a thread.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use windlass_core::id::Name;

/// From how many bytes on a body is large.
pub const LARGE: usize = 8 * 1024;
/// How many of a tenant are under way at once.
pub const TENANT_MAX: usize = 2;
/// How many threads there are.
const THREADS: usize = 8;

/// They are started when the first large request comes. Where the system gives none, all is done where it came up.
static THREADS_ASIDE: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(THREADS).thread_name("aside").enable_all().build().ok()
});
static LANES: LazyLock<Mutex<BTreeMap<Name, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

fn lanes() -> MutexGuard<'static, BTreeMap<Name, Arc<Semaphore>>> {
    LANES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place in a tenant's lane, or in line for one.
struct Pass {
    tenant: Name,
    lane: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Pass {
    async fn enter(tenant: &Name) -> Pass {
        let lane =
            lanes().entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(TENANT_MAX))).clone();
        let mut pass = Pass { tenant: tenant.clone(), lane, permit: None };
        // It is never closed.
        pass.permit = pass.lane.clone().acquire_owned().await.ok();
        pass
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut lanes = lanes();
        self.permit = None;
        // The map's own and this one: nobody else is in it or waits for it.
        if Arc::strong_count(&self.lane) == 2 {
            lanes.remove(&self.tenant);
        }
    }
}

/// What is not waited for any more ends.
struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Does work of a tenant on the threads that are for it, when it is the tenant's turn.
pub async fn run<T: Send + 'static>(tenant: &Name, work: impl Future<Output = T> + Send + 'static) -> T {
    let pass = Pass::enter(tenant).await;
    let Some(threads) = &*THREADS_ASIDE else { return work.await };
    let task = threads.spawn(async move {
        let _pass = pass;
        work.await
    });
    let _ends = Ends(task.abort_handle());
    match task.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            // It is told by whoever looks out for panics where it came up.
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only what nobody waits for is ended.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{mpsc, watch};

    /// Work that says where it is done, and ends when it is told to.
    fn work(
        begun: &mpsc::UnboundedSender<String>,
        end: &watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (begun, mut end) = (begun.clone(), end.clone());
        async move {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            let _ = begun.send(name);
            let _ = end.wait_for(|end| *end).await;
        }
    }

    #[tokio::test]
    async fn a_tenant_has_so_many_under_way_on_other_threads_and_another_one_has_its_own() {
        let (begun, mut seen) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(false);
        let start = |tenant: &str| {
            let (tenant, work) = (Name::clean(tenant), work(&begun, &ended));
            tokio::spawn(async move { run(&tenant, work).await })
        };
        let big: Vec<_> = (0..20).map(|_| start("aside-big")).collect();
        for _ in 0..TENANT_MAX {
            assert_eq!(seen.recv().await.as_deref(), Some("aside"));
        }
        let small = start("aside-small");
        assert_eq!(seen.recv().await.as_deref(), Some("aside"), "another tenant does not stand in that line");
        assert!(seen.try_recv().is_err(), "and nobody else has begun");
        end.send(true).unwrap();
        for one in big.into_iter().chain([small]) {
            one.await.unwrap();
        }
        // The lanes are those of the whole process: other tests have theirs.
        let own = |name: &Name| matches!(name.as_str(), "aside-big" | "aside-small");
        assert!(!lanes().keys().any(own), "a lane that nobody is in is not kept");
    }

    #[tokio::test]
    async fn what_nobody_waits_for_any_more_gives_its_place_back() {
        let (begun, mut seen) = mpsc::unbounded_channel();
        let (_end, ended) = watch::channel(false);
        let tenant = Name::clean("aside-gone");
        for _ in 0..3 * TENANT_MAX {
            let one = tokio::spawn({
                let (tenant, work) = (tenant.clone(), work(&begun, &ended));
                async move { run(&tenant, work).await }
            });
            // Were the places not given back, the third would wait for ever.
            assert!(seen.recv().await.is_some());
            one.abort();
        }
    }

    #[tokio::test]
    async fn a_panic_comes_up_where_it_was_asked_for() {
        let tenant = Name::clean("aside-panic");
        let done = tokio::spawn(async move { run(&tenant, async { panic!("as asked") }).await }).await;
        assert!(done.unwrap_err().is_panic());
    }
}
