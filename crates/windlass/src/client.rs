//! The client of the API that the command line is: in process, over the socket in the data directory, or over TCP.

use crate::api::Caller;
use crate::app::{self, App, Settings};
use crate::home::Home;
use crate::server;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use futures_util::StreamExt as _;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tower::ServiceExt as _;
use windlass_core::code::Code;

/// How long to wait for a process that holds the data directory and does not answer yet.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);
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
}

impl Failure {
    /// A failure with a text.
    pub fn new(code: Code, detail: impl Into<String>) -> Failure {
        Failure { code, detail: detail.into(), problem: None }
    }
}

impl From<app::Error> for Failure {
    fn from(error: app::Error) -> Failure {
        Failure::new(error.code(), error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(Code::Unavailable, error.to_string())
    }
}

enum Way {
    Local { app: Arc<App>, router: Router, serving: tokio::task::JoinHandle<()> },
    Socket(PathBuf),
    Tcp { address: String, token: Option<String> },
}

/// A way to the API.
pub struct Client {
    way: Way,
}

/// An answer.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Body,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    /// The problem that it is, or that it is none of ours.
    pub async fn json(self) -> Result<Value, Failure> {
        let bytes = axum::body::to_bytes(self.body, ANSWER_MAX)
            .await
            .map_err(|error| Failure::new(Code::Unavailable, format!("the answer broke off: {error}")))?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| Failure::new(Code::Internal, format!("the answer is not JSON: {error}")))?;
        if self.status.is_success() {
            return Ok(value);
        }
        let code = value["code"].as_str().and_then(Code::parse).unwrap_or(Code::Internal);
        let detail = value["detail"].as_str().unwrap_or("no reason was given").to_owned();
        Err(Failure { code, detail, problem: Some(value) })
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
        Ok(Lines { body: self.body.into_data_stream(), rest: Vec::new() })
    }
}

/// The lines of an answer.
pub struct Lines {
    body: axum::body::BodyDataStream,
    rest: Vec<u8>,
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
                Some(Err(_)) | None => return None,
            }
        }
    }
}

/// What a command needs of the process behind the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To look, or to record a wish.
    Records,
    /// To have steps carried out.
    Executes,
}

impl Client {
    /// A way to a server that is named.
    ///
    /// # Errors
    /// An address that is none.
    pub fn to_server(url: &str, token: Option<String>) -> Result<Client, Failure> {
        let address = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/').to_owned());
        let address = address.filter(|address| !address.is_empty() && !address.contains('/'));
        let address = address.ok_or_else(|| {
            Failure::new(
                Code::InvalidInput,
                format!("`{url}` is not an address such as http://127.0.0.1:7433"),
            )
        })?;
        Ok(Client { way: Way::Tcp { address, token } })
    }

    /// A way to whoever holds a data directory, or to an engine in this process where nobody does.
    ///
    /// # Errors
    /// Somebody holds it and does not answer, or it cannot be opened.
    pub async fn to_data(root: &Path, exe: &Path, need: Need, settings: Settings) -> Result<Client, Failure> {
        let home = Home::make(root).map_err(|error| {
            Failure::new(
                Code::Unavailable,
                format!("the data directory {} cannot be used: {error}", root.display()),
            )
        })?;
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            if UnixStream::connect(home.socket()).await.is_ok() {
                return Ok(Client { way: Way::Socket(home.socket()) });
            }
            let settings = Settings { executes: need == Need::Executes, ..settings.clone() };
            let (at, exe) = (home.clone(), exe.to_path_buf());
            let started = tokio::task::spawn_blocking(move || App::start(at, &exe, settings)).await;
            match started.map_err(|_| Failure::new(Code::Internal, "the engine did not start"))? {
                Ok(app) => return Ok(Client::around(app)),
                Err(error) if error.code() == Code::LockBusy && tokio::time::Instant::now() < until => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A way to an engine in this process, which serves the socket too.
    fn around(app: Arc<App>) -> Client {
        let user = server::user_name();
        let router = server::for_caller(app.clone(), Caller::owner(&user));
        let (serve, socket) = (app.clone(), app.home.socket());
        // Made here and not in the task: a short command is over before the task has begun, and takes the socket away.
        let bound = server::bind(&socket);
        let serving = tokio::spawn(async move {
            let served = match bound {
                Ok(listener) => server::serve_socket(serve, listener, &user).await,
                Err(error) => Err(error),
            };
            if let Err(error) = served {
                eprintln!("windlass: the socket {} cannot be served: {error}", socket.display());
            }
        });
        Client { way: Way::Local { app, router, serving } }
    }

    /// The engine, where it is in this process.
    #[must_use]
    pub fn app(&self) -> Option<&Arc<App>> {
        match &self.way {
            Way::Local { app, .. } => Some(app),
            Way::Socket(_) | Way::Tcp { .. } => None,
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
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "windlass");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Way::Tcp { token: Some(token), .. } = &self.way {
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
            Way::Socket(path) => over(UnixStream::connect(path).await?, request).await?,
            Way::Tcp { address, .. } => {
                let stream = TcpStream::connect(address).await.map_err(|error| {
                    Failure::new(Code::Unavailable, format!("no server answers at {address}: {error}"))
                })?;
                over(stream, request).await?
            }
        };
        let (parts, body) = response.into_parts();
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }

    /// Asks and reads the JSON that comes back.
    ///
    /// # Errors
    /// The problem that came back, or that nothing did.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.send(Method::GET, path, None, &[]).await?.json().await
    }

    /// Posts JSON and reads the JSON that comes back.
    ///
    /// # Errors
    /// The problem that came back, or that nothing did.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let body = ("application/json", body.to_string().into_bytes());
        self.send(Method::POST, path, Some(body), &[]).await?.json().await
    }

    /// Ends what is in this process: attempts under way are handed back, and everything is durable.
    pub async fn close(self) {
        if let Way::Local { app, serving, .. } = self.way {
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

/// One request over a connection of its own.
async fn over<S>(stream: S, request: Request<Body>) -> Result<axum::http::Response<Body>, Failure>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let gone =
        |error: hyper::Error| Failure::new(Code::Unavailable, format!("the connection broke off: {error}"));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(gone)?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(gone)?;
    Ok(response.map(Body::new))
}
