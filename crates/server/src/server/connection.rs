//! Connections: how many there are, how long they may take, and how they end.
//!
//! A connection that waits for the head of a request is idle. Where there are as many connections as may be, the one that
//! is idle the longest makes room for the next: nobody keeps others out by holding connections open.

use super::door::Door;
use super::idle::{Busy, Idle};
use super::lookout::Lookout;
use crate::api::Api;
use crate::app::App;
use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use axum::response::IntoResponse as _;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep};

/// How long the head of a request may take to come, and how long a connection may do nothing between two.
const HEAD_PATIENCE: Duration = Duration::from_secs(15);
/// How long a reader may take nothing of what it asked for.
const STALL: Duration = Duration::from_secs(60);
/// How often to look for a connection that is idle, where there are as many as may be.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The most bytes of a request's head.
const HEAD_MAX: usize = 64 << 10;
/// The most headers of a request.
const HEADERS_MAX: usize = 100;

/// Connections, up to a number.
#[derive(Clone)]
pub(super) struct Pool {
    api: Api,
    places: Arc<Semaphore>,
    max: u32,
    draining: watch::Receiver<bool>,
    lookout: Lookout,
    idle: Arc<Idle>,
}

/// The right to have a connection.
pub(super) struct Place(
    #[expect(dead_code, reason = "it is held, and given back when it is dropped")]
    Option<OwnedSemaphorePermit>,
);

impl Pool {
    pub(super) fn new(app: &Arc<App>, max: u32) -> Pool {
        app.serves_here();
        let (api, places) = (Api::new(app.clone()), Arc::new(Semaphore::new(max as usize)));
        Pool { api, places, max, draining: app.draining(), lookout: Lookout::start(), idle: Arc::default() }
    }

    /// Waits until one more connection may be had. One that is idle makes room.
    pub(super) async fn place(&self) -> Place {
        loop {
            if self.places.available_permits() == 0 {
                self.idle.close_longest();
            }
            let place = self.places.clone().acquire_owned();
            if let Ok(place) = tokio::time::timeout(LOOK_AGAIN, place).await {
                // The semaphore is never closed.
                return Place(place.ok());
            }
            // None was idle. One may be by now.
        }
    }

    /// One more connection, where it may be had at once.
    pub(super) fn free_place(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok().map(|permit| Place(Some(permit)))
    }

    /// Waits until every connection has ended.
    pub(super) async fn ended(&self) {
        // The semaphore is never closed.
        let _ = self.places.acquire_many(self.max).await;
    }

    /// Serves a connection in a task of its own.
    pub(super) fn serve<S>(&self, place: Place, stream: S, door: Door)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (api, door, draining) = (self.api.clone(), Arc::new(door), self.draining.clone());
        let (lookout, member) = (self.lookout.clone(), self.idle.join());
        tokio::spawn(async move {
            let at = member.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let busy = at.begin();
                answer((api.clone(), door.clone(), lookout.clone()), request.map(Body::new), busy)
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
            builder.max_buf_size(HEAD_MAX).max_headers(HEADERS_MAX).half_close(false);
            let stream = TokioIo::new(Timed { stream, stalled: None });
            let mut connection = pin!(builder.serve_connection(stream, service));
            tokio::select! {
                // How a connection ended is its client's business.
                _ = connection.as_mut() => {}
                () = member.closed() => {}
                () = drained(draining) => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop(place);
        });
    }
}

/// Waits until the process is on its way out.
async fn drained(mut draining: watch::Receiver<bool>) {
    // One that nobody can set any more belongs to an application that is gone.
    let _ = draining.wait_for(|draining| *draining).await;
}

async fn answer(
    (api, door, lookout): (Api, Arc<Door>, Lookout),
    mut request: Request<Body>,
    busy: Busy,
) -> Result<Response<Whole>, Infallible> {
    lookout.near();
    if let Some(peer) = door.peer() {
        request.extensions_mut().insert(peer);
    }
    let answer = match door.open(request.uri(), request.headers()).await {
        Ok(caller) => api.answer(caller, request).await,
        Err(problem) => problem.into_response(),
    };
    lookout.near();
    Ok(answer.map(|body| Whole { body, _busy: busy }))
}

/// An answer's body. Until all of it is taken the connection is not idle.
struct Whole {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Whole {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose other end has to take what is written, at least a little, within a time.
struct Timed<S> {
    stream: S,
    /// Since when nothing could be written.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    fn watch<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let stalled =
            self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + STALL)));
        match stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, polled)
    }
}
