//! Serves the API: at the socket in the data directory, which only its owner can open, and over TCP.
//!
//! ```text
//!  accept ─▶ (TLS) ─▶ connection: bounded, timed ─▶ door: who is it, from where ─▶ router: may they
//! ```
//!
//! Everything that comes in over TCP is hostile until it is known: connections, headers, their times and the places they
//! may come from are bounded here; bodies, answers and scopes are bounded by the table of routes.

mod connection;
mod door;
mod idle;
mod lookout;

use crate::api::{Api, Caller};
use crate::app::App;
use axum::Router;
use axum::extract::Request;
use connection::Pool;
use door::{Door, Rules};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use windlass_executor::tls::{self, Acceptor};

/// How many connections are open at a time.
const CONNECTIONS_MAX: u32 = 1_024;
/// How many of those at the socket are, which nobody else can use up.
const SOCKET_CONNECTIONS_MAX: u32 = 256;
/// How many of steps are, all together.
const STEP_CONNECTIONS_MAX: u32 = 256;
/// How long requests under way have to come to their end.
const DRAIN: Duration = Duration::from_secs(10);
/// How often the runtime's own timer fires: sooner than the patience with a request or the head of one ends.
const BEAT: Duration = Duration::from_secs(10);
/// How long nothing is accepted after the system refused to.
const PAUSE: Duration = Duration::from_millis(100);

/// What serves requests: threads for half of the processors, because the loop, the log and what steps do need the others.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let workers = std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    // Every request sets timers and takes them back. One that is to fire before all others wakes the thread that waits
    // for events, by a system call, and so does one where there is no other: so there always is.
    runtime.spawn(async {
        loop {
            tokio::time::sleep(BEAT).await;
        }
    });
    Ok(runtime)
}

/// The router for a caller whom the transport vouches for.
pub fn for_caller(app: Arc<App>, caller: Caller) -> Router {
    let api = Api::new(app);
    let service = tower::service_fn(move |request: Request| {
        let (api, caller) = (api.clone(), caller.clone());
        async move { Ok::<_, Infallible>(api.answer(Some(caller), request).await) }
    });
    Router::new().fallback_service(service)
}

/// Serves the socket until the future is dropped.
///
/// # Errors
/// The socket cannot be served any longer.
pub async fn serve_socket(app: Arc<App>, listener: UnixListener, user: &str) -> io::Result<()> {
    Socket::new(&app, user).accept(&listener).await
}

/// What serves the socket. Steps have connections of their own there, so that they do not use up the owner's.
struct Socket {
    app: Arc<App>,
    owner: Arc<Caller>,
    own: Pool,
    steps: Pool,
}

impl Socket {
    fn new(app: &Arc<App>, user: &str) -> Socket {
        Socket {
            app: app.clone(),
            owner: Arc::new(Caller::owner(user)),
            own: Pool::new(app, SOCKET_CONNECTIONS_MAX),
            steps: Pool::new(app, STEP_CONNECTIONS_MAX),
        }
    }

    async fn accept(&self, listener: &UnixListener) -> io::Result<()> {
        loop {
            let place = self.own.place().await;
            match listener.accept().await {
                Ok((stream, _)) => match Door::at_socket(&self.app, &self.owner, &stream) {
                    door @ Door::Owner { .. } => self.own.serve(place, stream, door),
                    // Where there is no place for one more, it is hung up on.
                    door => drop(self.steps.free_place().map(|place| self.steps.serve(place, stream, door))),
                },
                // Nothing to do about one that went away, or for want of descriptors but to wait.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Waits until every connection has ended.
    async fn ended(&self) {
        tokio::join!(self.own.ended(), self.steps.ended());
    }
}

/// The name of the user that this process runs as.
#[must_use]
pub fn user_name() -> String {
    let named =
        ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| format!("uid-{}", rustix::process::getuid().as_raw()))
}

/// Where to listen, and how.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address: `127.0.0.1:7433`.
    pub address: String,
    /// The certificates and the key, where the server itself speaks TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// A proxy in front of it speaks TLS and passes requests on.
    pub behind_proxy: bool,
    /// Callers on this machine without a credential have `read` and `run`.
    pub trust_local: bool,
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was given as an address is none.
    #[error("`{address}` is not an address to listen on, such as 127.0.0.1:7433: {why}")]
    Address {
        /// What was given.
        address: String,
        /// Why not.
        why: String,
    },
    /// Others could come in, and everybody in between could read along.
    #[error(
        "{0} can be reached from other machines, and tokens would travel in the clear: add --tls-cert and --tls-key, \
         or --behind-proxy where a proxy in front of it speaks TLS, or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {error}; name another with --listen, or stop what uses it")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The certificates or the key cannot be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> windlass_core::code::Code {
        match self {
            Error::Address { .. } | Error::Open(_) | Error::Tls(_) => windlass_core::code::Code::InvalidInput,
            Error::Bind { .. } => windlass_core::code::Code::Unavailable,
        }
    }
}

/// A server that has its address and serves nobody yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    acceptor: Option<Acceptor>,
    rules: Rules,
}

impl Server {
    /// Takes the address. One that others can reach needs TLS, here or in front.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn bind(listen: &Listen) -> Result<Server, Error> {
        let bad = |why: String| Error::Address { address: listen.address.clone(), why };
        let mut found =
            tokio::net::lookup_host(&listen.address).await.map_err(|error| bad(error.to_string()))?;
        let address = found.next().ok_or_else(|| bad("it means nothing".to_owned()))?;
        let loopback = address.ip().is_loopback();
        if !loopback && listen.tls.is_none() && !listen.behind_proxy {
            return Err(Error::Open(address));
        }
        let acceptor = match &listen.tls {
            Some((certs, key)) => Some(tls::acceptor(certs, key)?),
            None => None,
        };
        let bind = |error| Error::Bind { address, error };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let rules = Rules {
            trusts_loopback: listen.trust_local && !listen.behind_proxy,
            behind_proxy: listen.behind_proxy,
            loopback_only: loopback && !listen.behind_proxy,
            scheme: if acceptor.is_some() || listen.behind_proxy { "https" } else { "http" },
        };
        Ok(Server { listener, address, acceptor, rules })
    }

    /// The address it has.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.acceptor.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves the address and the socket until the application drains; then what is under way has its time to end.
    pub async fn serve(self, app: Arc<App>, socket: UnixListener, user: &str) {
        let own = Socket::new(&app, user);
        let all = Pool::new(&app, CONNECTIONS_MAX);
        tokio::select! {
            _ = own.accept(&socket) => {}
            () = self.accept(&all, |peer| Door::Tcp { app: app.clone(), peer, rules: self.rules }) => {}
            () = app.drained() => {}
        }
        // Nobody is accepted any more: a client that finds nobody knows that nothing was asked.
        drop((socket, self.listener));
        let ended = async { tokio::join!(own.ended(), all.ended()) };
        let _ = tokio::time::timeout(DRAIN, ended).await;
    }

    /// Serves the address as if the owner came in there. For measurements: nothing else is left out.
    pub async fn serve_owner(self, app: Arc<App>, user: &str) {
        let pool = Pool::new(&app, CONNECTIONS_MAX);
        let door = Door::Owner { app, caller: Arc::new(Caller::owner(user)) };
        self.accept(&pool, |_| door.clone()).await;
    }

    async fn accept(&self, pool: &Pool, door: impl Fn(IpAddr) -> Door) {
        loop {
            let place = pool.place().await;
            let Ok((stream, peer)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // A small answer must not wait for a large one.
            let _ = stream.set_nodelay(true);
            let door = door(peer.ip().to_canonical());
            match &self.acceptor {
                None => pool.serve(place, stream, door),
                Some(acceptor) => {
                    let (acceptor, pool) = (acceptor.clone(), pool.clone());
                    tokio::spawn(async move {
                        if let Some(stream) = tls::accept(&acceptor, stream).await {
                            pool.serve(place, stream, door);
                        }
                    });
                }
            }
        }
    }
}
