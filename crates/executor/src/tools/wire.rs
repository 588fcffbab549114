//! The way to the network: requests with bounds, to addresses that may be reached.
//!
//! There are two ways. The guarded one is for addresses that a runbook names: its resolver refuses a name with any
//! address that is not public, and gives the connection exactly the addresses that it checked, so nothing can change
//! in between; each redirect goes the same way. The trusted one is for services whose address whoever runs windlass has
//! configured, and follows no redirect at all.
//!
//! A connection serves one request. So an error while connecting means that nothing was sent, and any later one that
//! nobody knows.

use super::settings::{Settings, is_public};
use super::{Again, Happened, Trouble};
use crate::clock::wall;
use crate::room;
use crate::tls;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, COOKIE, HeaderMap, HeaderName, LOCATION, PROXY_AUTHORIZATION};
use reqwest::{Client, Method, StatusCode, Url, redirect};
use std::error::Error as StdError;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use windlass_core::code::Code;
use windlass_engine::Leave;

/// How long connecting may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read.
pub const BODY_LEN_MAX: usize = 1 << 20;
/// How many redirects are followed.
const REDIRECTS_MAX: usize = 5;
/// The longest that another side can ask us to wait.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The most headers of an answer.
const HEADERS_MAX: usize = 100;

/// The ways to the network.
pub struct Wire {
    guarded: Client,
    trusted: Client,
    settings: Arc<Settings>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its method.
    pub method: Method,
    /// Where to.
    pub url: Url,
    /// Its headers.
    pub headers: HeaderMap,
    /// Headers that are credentials, beside those that always are: they do not follow to another host.
    pub private: Vec<HeaderName>,
    /// Its body.
    pub body: Option<Vec<u8>>,
    /// How long all of it may take.
    pub timeout: Duration,
    /// Whether the address comes from a runbook and has to be checked.
    pub guarded: bool,
}

impl Ask {
    /// A request to a configured service.
    #[must_use]
    pub fn to_service(method: Method, url: Url, timeout: Duration) -> Ask {
        let headers = HeaderMap::new();
        Ask { method, url, headers, private: Vec::new(), body: None, timeout, guarded: false }
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, as far as it is read.
    pub body: Vec<u8>,
    /// Whether there was more of it.
    pub cut: bool,
}

impl Reply {
    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Option<serde_json::Value> {
        if self.cut {
            return None;
        }
        serde_json::from_slice(&self.body).ok()
    }

    /// The body as JSON, where nothing else will do.
    ///
    /// # Errors
    /// It is not JSON. The request was answered, but nobody knows how.
    pub fn expect_json(&self, who: &str) -> Result<serde_json::Value, Trouble> {
        self.json().ok_or_else(|| {
            let message = format!("{who} answered {} with something that is not JSON", self.status);
            Trouble { status: Some(self.status.as_u16()), ..Trouble::unanswered(message) }
        })
    }

    /// Whether it is an answer of success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// How long the other side asks us to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let text = self.headers.get("retry-after")?.to_str().ok()?.trim();
        let wait = match text.parse::<u64>() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
                let at = u64::try_from(at.as_millisecond()).unwrap_or(0);
                // By the other side's clock, which has nothing to do with ours.
                Duration::from_millis(at.saturating_sub(wall().0))
            }
        };
        Some(wait.min(RETRY_AFTER_MAX))
    }

    /// What a status that is no success means: refused for good, not now, or nobody knows.
    #[must_use]
    pub fn trouble(&self, who: &str) -> Trouble {
        let said = self.said();
        let message = format!("{who} answered {}{said}", self.status);
        let later = self.retry_after().map_or(Again::Soon, Again::After);
        let trouble = match self.status.as_u16() {
            // Not taken up: too many, too early, or not there at the moment.
            408 | 425 | 429 | 503 => Trouble { again: later, ..Trouble::not_now(message) },
            // Something broke behind the answer, perhaps after the effect.
            500..=599 => Trouble { again: later, ..Trouble::unanswered(message) },
            _ => Trouble::refused(message),
        };
        Trouble { status: Some(self.status.as_u16()), ..trouble }
    }

    /// What the body says, in a line that is not long.
    fn said(&self) -> String {
        const MAX: usize = 300;
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(4 * MAX)]).into_owned();
        let told = self.json().and_then(|body| {
            let error = &body["error"];
            let message = error["message"].as_str().or(error.as_str()).or(body["message"].as_str());
            let detail = error["detail"].as_str().filter(|detail| !detail.is_empty());
            Some(match detail {
                Some(detail) => format!("{} ({detail})", message?),
                None => message?.to_owned(),
            })
        });
        let text: String =
            told.unwrap_or(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = text.trim();
        match text.char_indices().nth(MAX) {
            _ if text.is_empty() => String::new(),
            Some((end, _)) => format!(": {}…", &text[..end]),
            None => format!(": {text}"),
        }
    }
}

/// The resolver of the guarded way. It knows no ports, so what is listed as private at one port is asked for on a way of
/// its own.
struct Public;

/// Why an address must not be reached.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{host}` is {address}, which is not a public address; list the host under `http.allow_private` if it is meant"
)]
struct Forbidden {
    host: String,
    address: IpAddr,
}

impl Resolve for Public {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found: Vec<SocketAddr> = tokio::net::lookup_host((host.as_str(), 0)).await?.collect();
            // One that is private among public ones is refused with them: it is there to be chosen.
            let bad = found.iter().map(SocketAddr::ip).find(|ip| !is_public(*ip));
            match bad {
                Some(address) => Err(Forbidden { host, address }.into()),
                None => Ok(Box::new(found.into_iter()) as Addrs),
            }
        })
    }
}

impl Wire {
    /// The ways that these settings allow.
    ///
    /// # Errors
    /// The system gives no certificates, or the like.
    pub fn new(settings: &Arc<Settings>) -> Result<Wire, String> {
        tls::provide();
        let client = || {
            Client::builder()
                .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
                .redirect(redirect::Policy::none())
                // A proxy would resolve names by itself, after the check.
                .no_proxy()
                .connect_timeout(CONNECT_TIME_MAX)
                .http1_max_headers(HEADERS_MAX)
                .pool_max_idle_per_host(0)
                .retry(reqwest::retry::never())
        };
        let told = |error: reqwest::Error| format!("the HTTP client cannot be made: {}", chain(&error));
        let guarded = client().dns_resolver(Public).build().map_err(told)?;
        Ok(Wire { guarded, trusted: client().build().map_err(told)?, settings: settings.clone() })
    }

    /// Sends a request, which its caller has leave to do, and reads the answer. Redirects of reads are followed on the guarded way.
    ///
    /// # Errors
    /// No answer came; the trouble says whether the request may have arrived.
    pub async fn send(&self, _: &Leave, mut ask: Ask) -> Result<Reply, Trouble> {
        let end = tokio::time::Instant::now() + ask.timeout;
        let reads = matches!(ask.method, Method::GET | Method::HEAD);
        for _ in 0..=REDIRECTS_MAX {
            self.check(&ask)?;
            let reply = match tokio::time::timeout_at(end, self.once(&ask)).await {
                Ok(reply) => reply?,
                Err(_) => {
                    let message = format!("{} did not answer within {:?}", place(&ask.url), ask.timeout);
                    return Err(Trouble { code: Code::TimedOut, ..Trouble::unanswered(message) });
                }
            };
            let next = reply.headers.get(LOCATION).filter(|_| reply.status.is_redirection() && ask.guarded);
            let Some(next) = next.filter(|_| reads) else { return Ok(reply) };
            let next = next.to_str().ok().and_then(|text| ask.url.join(text).ok());
            let Some(next) = next else {
                return Err(Trouble::refused(format!("{} redirects to nowhere", place(&ask.url))));
            };
            if next.origin() != ask.url.origin() {
                for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION].iter().chain(&ask.private) {
                    ask.headers.remove(name);
                }
            }
            ask.url = next;
        }
        Err(Trouble::refused(format!("{} redirects more than {REDIRECTS_MAX} times", place(&ask.url))))
    }

    /// Whether a request may be sent at all, as far as its address says.
    fn check(&self, ask: &Ask) -> Result<(), Trouble> {
        let url = &ask.url;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Trouble::input(format!("`{}` is neither http nor https", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Trouble::input(
                "an address holds no credentials; put them into `bearer` or `headers`",
            ));
        }
        let Some(host) = url.host_str() else { return Err(Trouble::input("the address names no host")) };
        if !ask.guarded {
            return Ok(());
        }
        let port = url.port_or_known_default().unwrap_or(0);
        if !self.settings.allows(host, port) {
            let message = format!("`{host}` is not among the hosts that `http.allow` lists");
            return Err(Trouble { code: Code::PolicyDenied, ..Trouble::refused(message) });
        }
        // An address that is written as such is never resolved, so it is checked here.
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        match literal.filter(|address| !is_public(*address) && !self.settings.allows_private(host, port)) {
            Some(address) => Err(forbidden(&Forbidden { host: host.to_owned(), address })),
            None => Ok(()),
        }
    }

    async fn once(&self, ask: &Ask) -> Result<Reply, Trouble> {
        let port = ask.url.port_or_known_default().unwrap_or(0);
        let listed = ask.url.host_str().is_some_and(|host| self.settings.allows_private(host, port));
        let client = if ask.guarded && !listed { &self.guarded } else { &self.trusted };
        let mut request = client.request(ask.method.clone(), ask.url.clone()).headers(ask.headers.clone());
        if let Some(body) = &ask.body {
            request = request.body(body.clone());
        }
        let mut response = request.send().await.map_err(|error| unsent(&error, &ask.url))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let (mut body, mut cut) = (Vec::new(), false);
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    let room = BODY_LEN_MAX - body.len();
                    body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                    if chunk.len() > room {
                        cut = true;
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let message = format!("the answer of {} broke off: {}", place(&ask.url), chain(&error));
                    return Err(Trouble::unanswered(message));
                }
            }
        }
        Ok(Reply { status, headers, body, cut })
    }
}

/// An address for messages: without its query, which may hold anything.
#[must_use]
pub fn place(url: &Url) -> String {
    let port = url.port().map_or(String::new(), |port| format!(":{port}"));
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// What an error before the answer means.
fn unsent(error: &reqwest::Error, url: &Url) -> Trouble {
    let (mut inner, mut no_room): (Option<&(dyn StdError + 'static)>, bool) = (Some(error), false);
    while let Some(cause) = inner {
        if let Some(found) = cause.downcast_ref::<Forbidden>() {
            return forbidden(found);
        }
        no_room |= cause.downcast_ref::<std::io::Error>().is_some_and(room::is_lacking);
        inner = cause.source();
    }
    let message = format!("{} did not answer: {}", place(url), chain(error));
    if error.is_builder() {
        return Trouble::input(message);
    }
    let happened = if error.is_connect() { Happened::No } else { Happened::Unknown };
    Trouble { happened, no_room, ..Trouble::not_now(message) }
}

fn forbidden(found: &Forbidden) -> Trouble {
    Trouble { code: Code::PolicyDenied, ..Trouble::refused(found.to_string()) }
}

/// The innermost reason, which is the one that tells something.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
