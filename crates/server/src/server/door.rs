//! The door: who is at the other end of a connection, and whether they may come from there.
//!
//! At the socket the system says which process connected. One of the server's own user, or of root, is the owner, unless
//! it descends from the keeper: then it belongs to a step and has the rights of its attempt, however it changed its
//! session, parent or environment. It cannot be the owner with the credential file either. (The process is looked at as
//! soon as the connection is accepted: it would have to end, and its id to be given out again, before that.)
//!
//! Over TCP a caller is known by a token or by the owner's credential, and by nothing else. `--trust-local` makes one
//! exception: callers on loopback have `read` and `run`.
//!
//! A browser on the same machine is a caller on loopback too, and does what any page tells it to. So a request that says
//! that it comes from a page has to come from one of ours, and a server that only this machine can reach answers only to
//! this machine's names: a foreign name that means 127.0.0.1 is a page's way around the browser's own rules. A proxy is a
//! caller on loopback too, and speaks for the whole network: its requests are refused unless `--behind-proxy` says that
//! there is one.

use crate::api::body::Peer;
use crate::api::{Caller, Problem};
use crate::app::App;
use crate::attempts;
use crate::outside::Whose;
use axum::http::{HeaderMap, HeaderName, Uri, header};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use tokio::net::UnixStream;
use windlass_core::code::Code;
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;
use windlass_executor::shell::{self, Identity};

/// Headers that a proxy adds to what it passes on.
const FORWARDED: [&str; 9] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
];

/// How callers over TCP are treated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Whether a caller on loopback needs no credential to read and to start runs.
    pub(super) trusts_loopback: bool,
    /// Whether requests may come through a proxy.
    pub(super) behind_proxy: bool,
    /// Whether only this machine's names are answered to.
    pub(super) loopback_only: bool,
    /// How pages of this server are fetched.
    pub(super) scheme: &'static str,
}

/// Where a request comes in.
#[derive(Clone)]
pub(super) enum Door {
    /// At the socket, for its owner. Whoever shows a token there is who the token says, and no more.
    Owner { app: Arc<App>, caller: Arc<Caller> },
    /// At the socket, for a process of a step, with its ancestors.
    Step { app: Arc<App>, line: Arc<[Identity]> },
    /// At the socket, for a process that has no rights there by itself.
    Stranger { app: Arc<App> },
    /// Over the network.
    Tcp { app: Arc<App>, peer: IpAddr, rules: Rules },
}

impl Door {
    /// The door for whoever connected to the socket.
    pub(super) fn at_socket(app: &Arc<App>, owner: &Arc<Caller>, stream: &UnixStream) -> Door {
        let (app, owner) = (app.clone(), owner.clone());
        let Ok(peer) = stream.peer_cred() else { return Door::Stranger { app } };
        // A process that this one's namespace does not show is none of its descendants.
        if let Some(pid) = peer.pid().filter(|pid| *pid > 0) {
            let Some(line) = shell::ancestry(pid) else { return Door::Stranger { app } };
            if app.whose(&line) != Whose::Apart {
                return Door::Step { app, line: line.into() };
            }
        }
        let own = rustix::process::geteuid().as_raw();
        if [own, 0].contains(&peer.uid()) {
            Door::Owner { app, caller: owner }
        } else {
            Door::Stranger { app }
        }
    }

    /// From which machine requests come, where that is known.
    pub(super) fn peer(&self) -> Option<Peer> {
        match self {
            Door::Tcp { peer, rules, .. } if !rules.behind_proxy => Some(Peer(*peer)),
            Door::Tcp { .. } | Door::Owner { .. } | Door::Step { .. } | Door::Stranger { .. } => None,
        }
    }

    /// Lets a request in, and says who asks where that is known.
    pub(super) async fn open(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Caller>, Problem> {
        if !matches!(self, Door::Tcp { rules: Rules { behind_proxy: true, .. }, .. }) {
            check_direct(headers)?;
        }
        Ok(match self {
            Door::Owner { app, .. } if headers.contains_key(header::AUTHORIZATION) => {
                bearer(app, headers).await
            }
            Door::Owner { caller, .. } => Some((**caller).clone()),
            Door::Step { app, .. } | Door::Stranger { app }
                if headers.contains_key(header::AUTHORIZATION) =>
            {
                let caller = bearer(app, headers).await;
                if caller.as_ref().is_some_and(|caller| caller.owns) {
                    return Err(not_the_owner());
                }
                caller
            }
            Door::Step { app, line } => match app.whose(line) {
                Whose::Attempt(place) => Some(app.attempt_at(place).await.ok_or_else(not_the_owner)?),
                Whose::Step | Whose::Apart => return Err(not_the_owner()),
            },
            Door::Stranger { .. } => None,
            Door::Tcp { app, peer, rules } => {
                let host = check_place(uri, headers, *rules)?;
                let trusted = rules.trusts_loopback && peer.is_loopback() && is_this_machine(host);
                who(app, trusted, headers).await
            }
        })
    }
}

/// What is said to a process of a step that asks as the owner.
fn not_the_owner() -> Problem {
    let text = "this process belongs to a step: at the socket it has the rights of its attempt, and never the owner's; \
                use a token with the scopes that the step needs";
    Problem::new(Code::Forbidden, text)
}

/// Refuses a request that a proxy passed on: nobody said that there is one, so the address it comes from says nothing.
fn check_direct(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(found) = FORWARDED.iter().find(|name| headers.contains_key(**name)) else { return Ok(()) };
    let text = format!(
        "the request came through a proxy, as its header `{found}` says, and this server was started without \
         --behind-proxy; start it with that where a proxy in front of it speaks TLS"
    );
    Err(Problem::new(Code::Forbidden, text))
}

/// Who asks. A token that is not good makes nobody of its bearer, wherever they come from.
async fn who(app: &App, trusted: bool, headers: &HeaderMap) -> Option<Caller> {
    if !headers.contains_key(header::AUTHORIZATION) {
        return trusted.then(Caller::local);
    }
    bearer(app, headers).await
}

/// Whoever the token of a request belongs to.
async fn bearer(app: &App, headers: &HeaderMap) -> Option<Caller> {
    let text = one(headers, header::AUTHORIZATION)?;
    let (scheme, token) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let token = token.trim();
    if token.starts_with(attempts::PREFIX) {
        return app.attempt_caller(token).await;
    }
    app.tokens.caller(token, System.now())
}

/// The value of a header that is there once.
fn one(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(only), None) => only.to_str().ok(),
        (_, _) => None,
    }
}

/// Checks where a request comes from, and returns the host that it asks for.
fn check_place<'a>(uri: &'a Uri, headers: &'a HeaderMap, rules: Rules) -> Result<&'a str, Problem> {
    // A request to a proxy names its host in the line; who talks to us directly, in the header.
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => one(headers, header::HOST),
    };
    let Some(host) = host else {
        return Err(Problem::new(Code::InvalidInput, "one `Host` is needed"));
    };
    if rules.loopback_only && !is_this_machine(host) {
        let text = "this server answers to names of its own machine only: localhost, 127.0.0.1 or [::1]";
        return Err(Problem::new(Code::Forbidden, text));
    }
    let foreign = || {
        let text = "a page of another site asks, and only this server's own pages may";
        Err(Problem::new(Code::Forbidden, text))
    };
    if !headers.contains_key(header::ORIGIN) {
        return if is_foreign_fetch(uri.path(), headers) { foreign() } else { Ok(host) };
    }
    let own = |origin: &str| {
        let rest = origin.strip_prefix(rules.scheme).and_then(|rest| rest.strip_prefix("://"));
        rest.is_some_and(|from| from.eq_ignore_ascii_case(host))
    };
    if one(headers, header::ORIGIN).is_some_and(own) { Ok(host) } else { foreign() }
}

/// Whether a browser says that a page of another site makes the request. Browsers send no `Origin` with images, scripts and
/// links, but they say where those come from. A link to a page is followed; one into the API is not.
fn is_foreign_fetch(path: &str, headers: &HeaderMap) -> bool {
    if !headers.contains_key("sec-fetch-site") {
        return false;
    }
    let is = |name: &'static str, value: &str| one(headers, HeaderName::from_static(name)) == Some(value);
    let own = is("sec-fetch-site", "same-origin") || is("sec-fetch-site", "none");
    let followed = is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document");
    let page = !["/v1/", "/hooks/", "/metrics", "/mcp"].iter().any(|part| path.starts_with(part));
    let allowed = own || (followed && page);
    !allowed
}

/// Whether a host, with or without a port, is a name of this machine.
fn is_this_machine(host: &str) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((v6, "")) => return v6.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback()),
            Some((v6, port)) if port.starts_with(':') => {
                return v6.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback());
            }
            Some(_) | None => return false,
        },
        None => host.rsplit_once(':').map_or(host, |(bare, _)| bare),
    };
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    #[test]
    fn only_names_of_this_machine_mean_it() {
        for good in
            ["localhost", "LocalHost:7433", "127.0.0.1", "127.0.0.1:1", "127.8.8.8:80", "[::1]", "[::1]:7433"]
        {
            assert!(is_this_machine(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:7433",
            "127.0.0.1.evil.example",
            "localhost.evil.example:7433",
            "10.0.0.1",
            "[::2]:1",
            "[::1",
            "[::1]x",
            "",
            ":7433",
            "0.0.0.0:7433",
            "2130706433",
        ] {
            assert!(!is_this_machine(bad), "{bad}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let rules = Rules { trusts_loopback: true, behind_proxy: false, loopback_only: true, scheme: "http" };
        let ask = |headers: &[(&str, &str)]| {
            let mut request = Request::builder().uri("/v1/runs");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let request = request.body(()).unwrap();
            check_place(request.uri(), request.headers(), rules).is_ok()
        };
        assert!(ask(&[("host", "localhost:7433")]));
        assert!(ask(&[("host", "localhost:7433"), ("origin", "http://localhost:7433")]));
        assert!(ask(&[("host", "localhost:7433"), ("sec-fetch-site", "same-origin")]));
        assert!(ask(&[("host", "localhost:7433"), ("sec-fetch-site", "none")]));
        for bad in [
            &[][..],
            &[("host", "evil.example")],
            &[("host", "localhost"), ("host", "localhost")],
            &[("host", "localhost:7433"), ("origin", "null")],
            &[("host", "localhost:7433"), ("origin", "")],
            &[("host", "localhost:7433"), ("sec-fetch-site", "cross-site")],
            &[("host", "localhost:7433"), ("sec-fetch-site", "same-site")],
            &[
                ("host", "localhost:7433"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "document"),
            ],
            &[("host", "localhost:7433"), ("origin", "https://localhost:7433")],
            &[("host", "localhost:7433"), ("origin", "http://localhost:8000")],
            &[("host", "localhost:7433"), ("origin", "http://localhost:7433.evil.example")],
            &[
                ("host", "localhost:7433"),
                ("origin", "http://localhost:7433"),
                ("origin", "http://evil.example"),
            ],
        ] {
            assert!(!ask(bad), "{bad:?}");
        }
    }
}
