//! The client of the API that the command line is: in process, over the socket in the data directory, or over TCP.

use crate::api::Caller;
use crate::app::{self, App, Settings};
use crate::auth::Credential;
use crate::server;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use futures_util::StreamExt as _;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;
use windlass_api::Problem;
use windlass_executor::home::Home;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tower::ServiceExt as _;
use windlass_core::code::Code;
use windlass_engine::handle::Message;
use windlass_executor::{remote, tls};

/// How long to wait for a process that holds the data directory and does not answer yet.
const PATIENCE: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_millis(50);
/// How long a named server may take to be there.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a server may take to begin its answer, beside what it is asked to wait for. It says itself when it needs
/// longer than half a minute.
const ANSWER: Duration = Duration::from_secs(45);
/// The most bytes of an answer that is read as a whole.
const ANSWER_MAX: usize = 64 << 20;

/// Why something asked for did not happen.
#[derive(Debug, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Failure {
    /// The stable code.
    pub code: Code,
    /// What happened, for people.
    pub detail: String,
    /// The problem as it came, where one came.
    pub problem: Option<Value>,
    /// Whoever was asked is gone, and asking somebody else can do no harm: nothing was sent, or only a question was.
    pub gone: bool,
}

impl Failure {
    /// A failure with a text.
    pub fn new(code: Code, detail: impl Into<String>) -> Failure {
        Failure { code, detail: detail.into(), problem: None, gone: false }
    }

    /// Whoever was asked is gone; `harmless` says that asking again can do no harm.
    fn gone(detail: impl Into<String>, harmless: bool) -> Failure {
        Failure { gone: harmless, ..Failure::new(Code::Unavailable, detail) }
    }
}

impl remote::Way for Client {
    fn post<'a>(&'a self, path: &'a str, body: &'a Value, patience: Duration) -> remote::Answer<'a> {
        Box::pin(async move {
            let answer = self.post_waiting(path, body, patience).await;
            answer.map_err(|failure| remote::Failure { code: failure.code, detail: failure.detail })
        })
    }
}

impl From<remote::Failure> for Failure {
    fn from(failure: remote::Failure) -> Failure {
        Failure::new(failure.code, failure.detail)
    }
}

impl From<app::Error> for Failure {
    fn from(error: app::Error) -> Failure {
        Failure::new(error.code(), error.to_string())
    }
}

impl From<crate::backup::Error> for Failure {
    fn from(error: crate::backup::Error) -> Failure {
        Failure::new(error.code(), error.to_string())
    }
}

impl From<crate::retention::Error> for Failure {
    fn from(error: crate::retention::Error) -> Failure {
        Failure::new(error.code(), error.to_string())
    }
}

impl From<windlass_runbook::Problems> for Failure {
    fn from(problems: windlass_runbook::Problems) -> Failure {
        Failure::new(problems.code(), problems.render(false).trim_end().to_owned())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(Code::Unavailable, error.to_string())
    }
}

enum Way {
    Local {
        app: Arc<App>,
        router: Router,
        serving: tokio::task::JoinHandle<()>,
    },
    /// The socket of a data directory; with a token it is the token's bearer who asks, and its owner otherwise.
    Socket(Home, Option<String>),
    Net(Net),
    /// Between two ways.
    Nowhere,
}

/// A server that is named.
struct Net {
    /// Its host and port, as they stand in requests.
    address: String,
    token: Option<String>,
    /// Whom to trust, and which name the server has to show, where the way is to be secret.
    tls: Option<(Arc<rustls::ClientConfig>, rustls::pki_types::ServerName<'static>)>,
}

impl Net {
    /// One request. Where nobody is there, nothing was asked; where an answer is lost, something may have happened.
    async fn ask(
        &self,
        request: Request<Body>,
        patience: Duration,
    ) -> Result<axum::http::Response<Body>, Failure> {
        let unreachable = |error: std::io::Error| {
            // One that is just being started again refuses; what does not answer at all takes long to find out.
            let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
            Failure::gone(format!("no server answers at {}: {error}", self.address), refused)
        };
        let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(&self.address)).await;
        let stream =
            connecting.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())).map_err(unreachable)?;
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => over(stream, request, patience).await,
            Some((config, name)) => {
                over(tls::connect(config, name, stream).await.map_err(unreachable)?, request, patience).await
            }
        }
    }
}

/// The parts of `http://host:port` or `https://host:port`: whether it is secret, the host, and the port.
fn parts_of(url: &str) -> Option<(bool, String, u16)> {
    let uri: axum::http::Uri = url.parse().ok()?;
    let secret = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        Some(_) | None => return None,
    };
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() || authority.host().is_empty() {
        return None;
    }
    let port = match authority.port() {
        Some(port) => port.as_u16(),
        None if authority.as_str() == authority.host() => {
            if secret {
                443
            } else {
                80
            }
        }
        None => return None,
    };
    Some((secret, authority.host().to_owned(), port))
}

/// The owner's credential for a server on this machine, if this is the owner and the server is theirs, and the address to
/// show it at. Somebody else can listen at the same port of another address of this machine, so it is shown at the server's
/// own and at no other: a name that has several is not looked up, unless the server proves who it is (TLS).
#[must_use]
pub fn credential(url: &str, root: &Path) -> Option<(String, String)> {
    let bare = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let (secret, host, port) = parts_of(url)?;
    let (own_url, token) = Credential::read(root)?;
    let (own_secret, own_host, own_port) = parts_of(&own_url)?;
    if (secret, port) != (own_secret, own_port) {
        return None;
    }
    let (host, own) = (bare(&host), bare(&own_host).parse::<IpAddr>().ok()?);
    let asked = host.parse::<IpAddr>().ok();
    if host != "localhost" && !asked.is_some_and(|ip| ip.is_loopback()) {
        return None;
    }
    let is_own =
        asked == Some(own) || own.is_unspecified() && asked.is_some_and(|ip| ip.is_ipv4() == own.is_ipv4());
    match secret || is_own {
        true => Some((url.to_owned(), token)),
        false if host == "localhost" => Some((own_url, token)),
        false => None,
    }
}

/// The address of a server and the token to show there: the one that is named, or the owner's.
#[must_use]
pub fn at(url: &str, token: Option<&str>, root: &Path) -> (String, Option<String>) {
    match token {
        Some(token) => (url.to_owned(), Some(token.to_owned())),
        None => match credential(url, root) {
            Some((url, token)) => (url, Some(token)),
            None => (url.to_owned(), None),
        },
    }
}

/// A way to the API.
pub struct Client {
    way: Way,
    /// Where to look for another way when this one ends; a named server is the only one.
    place: Option<Place>,
}

/// A data directory, and what is needed of whoever holds it.
struct Place {
    root: PathBuf,
    exe: PathBuf,
    need: Need,
    settings: Settings,
}

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Body,
    /// Whether it answers a question, which changes nothing.
    asked: bool,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    /// The problem that it is, or that it is none of ours.
    pub async fn json(self) -> Result<Value, Failure> {
        self.read().await
    }

    /// The body as a shape of the API.
    ///
    /// # Errors
    /// The problem that it is, or that it is none of ours.
    pub async fn read<T: DeserializeOwned>(self) -> Result<T, Failure> {
        let asked = self.asked;
        let bytes = axum::body::to_bytes(self.body, ANSWER_MAX)
            .await
            .map_err(|error| Failure::gone(format!("the answer broke off: {error}"), asked))?;
        if self.status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| {
                Failure::new(Code::Internal, format!("the answer is not what was asked for: {error}"))
            });
        }
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| Failure::new(Code::Internal, format!("the answer is not JSON: {error}")))?;
        let problem = Problem::deserialize(&value).unwrap_or_else(|error| {
            Problem::new(Code::Internal, format!("the answer is no problem: {error}"))
        });
        let gone = asked && problem.code == Code::Unavailable;
        Err(Failure { code: problem.code, detail: problem.detail, problem: Some(value), gone })
    }

    /// The body as lines, as they come; a problem where it is one.
    ///
    /// # Errors
    /// The problem that it is.
    pub async fn lines(self) -> Result<Lines, Failure> {
        if !self.status.is_success() {
            return Err(self
                .json()
                .await
                .err()
                .unwrap_or_else(|| Failure::new(Code::Internal, "an empty problem")));
        }
        Ok(Lines { body: self.body.into_data_stream(), rest: Vec::new(), broken: false })
    }
}

/// The lines of an answer.
pub struct Lines {
    body: axum::body::BodyDataStream,
    rest: Vec<u8>,
    broken: bool,
}

impl Lines {
    /// The next line; none when there are no more.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=at).collect();
                return Some(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            match self.body.next().await {
                Some(Ok(chunk)) => self.rest.extend_from_slice(&chunk),
                Some(Err(_)) => {
                    self.broken = true;
                    return None;
                }
                None => return None,
            }
        }
    }

    /// Whether there are no more because whoever sent them went away.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

/// Why a data directory cannot be used.
#[must_use]
pub fn unusable(root: Option<&Path>, error: &std::io::Error) -> Failure {
    let code = match error.kind() {
        std::io::ErrorKind::PermissionDenied => Code::Forbidden,
        // tidy: the system has many reasons, and all of them may pass.
        _ => Code::Unavailable,
    };
    let named = root.map(|root| format!(" {}", root.display())).unwrap_or_default();
    Failure::new(code, format!("the data directory{named} cannot be used: {error}"))
}

/// What a command needs of the process behind the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To look, or to record a wish.
    Records,
    /// To have steps carried out.
    Executes,
}

impl Way {
    /// A way to an engine in this process, which serves the socket too.
    fn around(app: Arc<App>) -> Way {
        let user = server::user_name();
        let router = server::for_caller(app.clone(), Caller::owner(&user));
        let (serve, socket) = (app.clone(), app.home.socket());
        // Made here and not in the task: a short command is over before the task has begun, and takes the socket away.
        let bound = app.home.bind();
        let serving = tokio::spawn(async move {
            let served = match bound {
                Ok(listener) => server::serve_socket(serve, listener, &user).await,
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                eprintln!("windlass: the socket {} cannot be served: {error}", socket.display());
            }
        });
        Way::Local { app, router, serving }
    }

    /// Ends what is in this process: attempts under way are handed back, and everything is durable.
    async fn close(self) {
        if let Way::Local { app, serving, .. } = self {
            serving.abort();
            let socket = app.home.socket();
            // Nobody can reach the socket any more; a process that comes next makes its own.
            let _ = tokio::task::spawn_blocking(move || {
                app.stop();
                let _ = std::fs::remove_file(socket);
            })
            .await;
        }
    }
}

impl Place {
    async fn way(&self) -> Result<Way, Failure> {
        let home = Home::make(&self.root).map_err(|error| unusable(Some(&self.root), &error))?;
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            if home.connect().await.is_ok() {
                return Ok(Way::Socket(home, None));
            }
            let settings = Settings { executes: self.need == Need::Executes, ..self.settings.clone() };
            let (at, exe) = (home.clone(), self.exe.clone());
            let started = tokio::task::spawn_blocking(move || App::start(at, &exe, settings)).await;
            match started.map_err(|_| Failure::new(Code::Internal, "the engine did not start"))? {
                Ok(app) => return Ok(Way::around(app)),
                Err(error) if error.code() == Code::LockBusy && tokio::time::Instant::now() < until => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Client {
    /// A way to a server that is named.
    ///
    /// # Errors
    /// An address that is none, or certificates to trust that cannot be read.
    pub fn to_server(url: &str, token: Option<String>) -> Result<Client, Failure> {
        let invalid = |text: String| Failure::new(Code::InvalidInput, text);
        if let Some(path) = url.strip_prefix("unix:") {
            let home = Home::of_socket(Path::new(path))
                .ok_or_else(|| invalid(format!("`{path}` is not the socket of a data directory")))?;
            return Ok(Client { way: Way::Socket(home, token), place: None });
        }
        let (secret, host, port) = parts_of(url).ok_or_else(|| {
            invalid(format!(
                "`{url}` is not an address such as http://127.0.0.1:7433, https://windlass.example or unix:.windlass/windlass.sock"
            ))
        })?;
        let tls = match secret {
            true => {
                let file = std::env::var_os("WINDLASS_CA").map(PathBuf::from);
                let trusted = tls::trusting(file.as_deref()).map_err(|error| invalid(error.to_string()))?;
                Some((trusted, tls::name_of(&host).map_err(|error| invalid(error.to_string()))?))
            }
            false => None,
        };
        Ok(Client { way: Way::Net(Net { address: format!("{host}:{port}"), token, tls }), place: None })
    }

    /// A way to whoever holds a data directory, or to an engine in this process where nobody does.
    ///
    /// # Errors
    /// Somebody holds it and does not answer, or it cannot be opened.
    pub async fn to_data(root: &Path, exe: &Path, need: Need, settings: Settings) -> Result<Client, Failure> {
        let place = Place { root: root.to_path_buf(), exe: exe.to_path_buf(), need, settings };
        let way = place.way().await?;
        Ok(Client { way, place: Some(place) })
    }

    /// Looks for another way to the same data directory, or for the same server: the one that was there is gone.
    ///
    /// # Errors
    /// There is none, now or at all.
    pub async fn renew(&mut self) -> Result<(), Failure> {
        // A server that is named has no other; the next request finds out whether it is back.
        let Some(place) = &self.place else { return Ok(()) };
        std::mem::replace(&mut self.way, Way::Nowhere).close().await;
        self.way = place.way().await?;
        Ok(())
    }

    /// Lets go of the data directory until the next [`Client::renew`], so that others can have it.
    pub async fn leave(&mut self) {
        if self.place.is_some() {
            std::mem::replace(&mut self.way, Way::Nowhere).close().await;
        }
    }

    /// Whether there can be another way when this one ends.
    #[must_use]
    pub fn is_renewable(&self) -> bool {
        self.place.is_some() || matches!(self.way, Way::Net(_))
    }

    /// Whether somebody behind it carries out steps, or may do so: a looker in this process does not.
    #[must_use]
    pub fn executes(&self) -> bool {
        let looks = self.place.as_ref().is_some_and(|place| place.need == Need::Records);
        !(looks && self.app().is_some())
    }

    /// Has steps carried out from now on, where the engine was started without.
    pub fn begin(&mut self) {
        let slots = windlass_engine::Options::default().slots;
        if let Some(place) = &mut self.place {
            place.settings.engine.slots = slots;
        }
        if let Some(app) = self.app() {
            app.engine.tell(Message::Slots(slots));
        }
    }

    /// The engine, where it is in this process.
    #[must_use]
    pub fn app(&self) -> Option<&Arc<App>> {
        match &self.way {
            Way::Local { app, .. } => Some(app),
            Way::Socket(..) | Way::Net(_) | Way::Nowhere => None,
        }
    }

    /// Asks for something.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
        headers: &[(&'static str, String)],
    ) -> Result<Answer, Failure> {
        self.send_within(method, path, body, headers, ANSWER).await
    }

    async fn send_within(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Vec<u8>)>,
        headers: &[(&'static str, String)],
        patience: Duration,
    ) -> Result<Answer, Failure> {
        let asked = method == Method::GET;
        let host = match &self.way {
            Way::Net(net) => &net.address,
            Way::Local { .. } | Way::Socket(..) | Way::Nowhere => "windlass",
        };
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Way::Net(Net { token: Some(token), .. }) | Way::Socket(_, Some(token)) = &self.way {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let bytes = match body {
            Some((kind, bytes)) => {
                request = request.header(header::CONTENT_TYPE, kind);
                Bytes::from(bytes)
            }
            None => Bytes::new(),
        };
        let request = request
            .body(Body::from(bytes))
            .map_err(|error| Failure::new(Code::InvalidInput, format!("that cannot be asked: {error}")))?;
        let response = match &self.way {
            Way::Local { router, .. } => match router.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
            Way::Socket(home, _) => {
                let stream = home.connect().await.map_err(|error| Failure::gone(error.to_string(), true))?;
                over(stream, request, patience).await?
            }
            Way::Nowhere => return Err(Failure::gone("nobody holds the data directory", true)),
            Way::Net(net) => net.ask(request, patience).await?,
        };
        let (parts, body) = response.into_parts();
        Ok(Answer { status: parts.status, headers: parts.headers, body, asked })
    }

    /// Asks and reads the JSON that comes back.
    ///
    /// # Errors
    /// The problem that came back, or that nothing did.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.send(Method::GET, path, None, &[]).await?.json().await
    }

    /// Asks for what comes as one JSON object a line.
    ///
    /// # Errors
    /// The problem that came back, or that nothing did.
    pub async fn lines(&self, path: &str) -> Result<Lines, Failure> {
        let accept = [("accept", "application/x-ndjson".to_owned())];
        self.send(Method::GET, path, None, &accept).await?.lines().await
    }

    /// Posts JSON and reads the JSON that comes back.
    ///
    /// # Errors
    /// The problem that came back, or that nothing did.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let body = ("application/json", body.to_string().into_bytes());
        self.send(Method::POST, path, Some(body), &[]).await?.json().await
    }

    /// The same, where the server is asked to wait for so long before it answers.
    ///
    /// # Errors
    /// The problem that came back, or that nothing did.
    pub async fn post_waiting<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<T, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| {
            Failure::new(Code::Internal, format!("the request cannot be written: {error}"))
        })?;
        let body = ("application/json", body);
        self.send_within(Method::POST, path, Some(body), &[], ANSWER + wait).await?.read().await
    }

    /// Lets what is under way in this process come to its end, and starts nothing more: others may have asked for it, and
    /// what is handed back in the middle is done again.
    pub async fn drain(&self, waits: impl FnOnce(u32)) {
        let Way::Local { app, .. } = &self.way else { return };
        // What a looker finds under way belongs to a process that is gone.
        if !self.executes() {
            return;
        }
        app.engine.tell(Message::Slots(0));
        let mut waits = Some(waits);
        loop {
            let left = app.look(|store| store.leases()).await.unwrap_or(0);
            if left == 0 {
                return;
            }
            if let Some(waits) = waits.take() {
                waits(left);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends what is in this process: attempts under way are handed back, and everything is durable.
    pub async fn close(self) {
        self.way.close().await;
    }
}

/// One request over a connection of its own.
async fn over<S>(
    stream: S,
    request: Request<Body>,
    patience: Duration,
) -> Result<axum::http::Response<Body>, Failure>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let asked = *request.method() == Method::GET;
    let gone = |error: hyper::Error| Failure::gone(format!("the connection broke off: {error}"), asked);
    let answering = async {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(gone)?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(gone)
    };
    match tokio::time::timeout(patience, answering).await {
        Ok(response) => Ok(response?.map(Body::new)),
        Err(_) => {
            let text = format!(
                "the server took the connection and did not answer within {} seconds; look at its /healthz",
                patience.as_secs()
            );
            Err(Failure::new(Code::Unavailable, text))
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_owners_credential_is_shown_at_the_servers_own_address_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = |url: &str| {
            let text = serde_json::json!({ "url": url, "token": "wl_x" }).to_string();
            std::fs::write(dir.path().join("credential.json"), text).unwrap();
        };
        let at = |url: &str| credential(url, dir.path()).map(|(url, _)| url);
        assert_eq!(at("http://127.0.0.1:7433"), None);
        file("http://127.0.0.1:7433");
        assert_eq!(at("http://127.0.0.1:7433").as_deref(), Some("http://127.0.0.1:7433"));
        // Another process can listen at the same port of ::1, which is this machine's name too.
        assert_eq!(at("http://localhost:7433").as_deref(), Some("http://127.0.0.1:7433"));
        for other in [
            "http://[::1]:7433",
            "http://127.0.0.2:7433",
            "http://127.0.0.1:7434",
            "https://127.0.0.1:7433",
            "http://example.org:7433",
        ] {
            assert_eq!(at(other), None, "{other}");
        }
        file("https://0.0.0.0:7433");
        for own in ["https://127.0.0.1:7433", "https://localhost:7433"] {
            assert_eq!(at(own).as_deref(), Some(own));
        }
        assert_eq!(at("https://example.org:7433"), None);
    }
}
