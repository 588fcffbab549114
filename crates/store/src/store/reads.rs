//! Reading the embedded store: what is live by a message to the loop, what has ended and records outside of it.

use super::Embedded;
use super::feed::{Feed, Namespaces, Read};
use crate::history::History;
use crate::log::{self, Log, Seqs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use windlass_core::code::Code;
use windlass_core::id::{Name, RunId};
use windlass_core::stream::StreamId;
use windlass_core::turn::command::Refusal;
use windlass_engine::Handle;
use windlass_engine::reader::{Answer, Page, PageMax, Place, Reader};

/// A reader of an embedded store that a loop owns.
pub struct Reads {
    engine: Handle<Embedded>,
    log: Arc<Log>,
    history: Arc<History>,
    tail: watch::Receiver<u64>,
    feed: Feed,
    namespaces: Mutex<Namespaces>,
}

/// The engine has ended.
fn gone() -> Refusal {
    Refusal::new(Code::Unavailable, "the engine is shutting down: try again when it runs")
}

fn unread(error: &log::Error) -> Refusal {
    Refusal::new(error.code(), error.to_string())
}

impl Embedded {
    /// What reads this store for everybody else. The loop that owns the store is at the other end of the handle.
    #[must_use]
    pub fn reads(&self, engine: Handle<Embedded>) -> Reads {
        Reads {
            engine,
            log: self.log(),
            history: self.live.history.clone(),
            tail: self.tail(),
            feed: Feed::new(),
            namespaces: Mutex::default(),
        }
    }
}

impl Reads {
    /// Looks at the store between two turns; the answer comes when what was seen is durable.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Embedded) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        // What is seen has a place of its own, so there is one kind of waiting and not one for everything that is seen.
        let place = Arc::new(Mutex::new(None));
        let put = place.clone();
        let (send, receive) = tokio::sync::oneshot::channel();
        let look: Box<dyn FnOnce(&mut Embedded) + Send> = Box::new(move |store| {
            let seen = look(store);
            *put.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        });
        self.engine.read_then(look, move |seen| {
            // A caller who is gone needs no answer.
            let _ = send.send(seen);
        });
        receive.await.map_err(|_| gone())??;
        let seen = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        seen.ok_or_else(gone)
    }

    fn namespaces(&self) -> MutexGuard<'_, Namespaces> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says of lines in which namespaces they are.
    async fn whose(&self, read: Read) -> Result<Page, Refusal> {
        let unknown = read.unknown(&mut self.namespaces());
        if unknown.is_empty() {
            return Ok(read.page(&mut self.namespaces(), &[]));
        }
        let (mut found, mut live): (Vec<(StreamId, Option<Name>)>, Vec<StreamId>) = Default::default();
        for stream in unknown {
            // Of a run that is listed the loop need not be asked.
            let row = match &stream {
                StreamId::Run(run) => self.history.get(*run).ok().flatten(),
                // tidy: only runs are listed.
                _ => None,
            };
            match row {
                Some(row) => found.push((stream, Some(row.namespace))),
                None => live.push(stream),
            }
        }
        if !live.is_empty() {
            let looked = self.look(move |store| {
                let of = |stream: StreamId| {
                    let namespace = store.namespace_of(&stream);
                    (stream, namespace)
                };
                live.into_iter().map(of).collect::<Vec<_>>()
            });
            found.extend(looked.await?);
        }
        Ok(read.page(&mut self.namespaces(), &found))
    }

    /// Reads on for all who follow, if nobody else did meanwhile.
    async fn fill(&self) -> Result<(), Refusal> {
        if !self.feed.is_behind(self.log.durable_seq()) {
            return Ok(());
        }
        let _filling = self.feed.filling.lock().await;
        if self.feed.is_behind(self.log.durable_seq()) {
            let read = self.feed.read(&self.log).map_err(|error| unread(&error))?;
            self.feed.put(self.whose(read).await?);
        }
        Ok(())
    }
}

impl Reader for Reads {
    fn records(&self, of: Option<RunId>, within: Place, max: PageMax) -> Answer<'_, Page> {
        Box::pin(async move {
            match of {
                Some(run) => {
                    let through = self.log.durable_seq().min(within.last);
                    let seqs = Seqs { first: within.first, last: through };
                    Ok(Read::of_run(&self.log, run, seqs, max)
                        .map_err(|error| unread(&error))?
                        .page(&mut self.namespaces(), &[]))
                }
                None => {
                    self.whose(Read::all(&self.log, within.first, max).map_err(|error| unread(&error))?).await
                }
            }
        })
    }

    fn follow(&self, from: u64, max: PageMax) -> Answer<'_, Option<Page>> {
        Box::pin(async move {
            self.fill().await?;
            Ok(self.feed.page(from, max))
        })
    }

    fn grown(&self, from: u64) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut tail = self.tail.clone();
            tail.wait_for(|seq| *seq >= from).await.map(|_| ()).map_err(|_| gone())
        })
    }

    fn place(&self, run: RunId) -> Answer<'_, Place> {
        Box::pin(async move {
            let Seqs { first, last } = self.look(move |store| store.place_of(run)).await?;
            Ok(Place { first, last })
        })
    }
}
