//! Tokens of attempts: what a step may do with the API while it runs, and nobody else in its name.
//!
//! A token names its attempt and is signed with a key of the data directory, so nothing has to be remembered, and a
//! remote attempt keeps its own through a restart. It is good for as long as the attempt has its lease: the run says so,
//! and a later epoch ends it. It reaches its own run only, and cannot approve.

use crate::api::Caller;
use crate::api::routes::Scope;
use crate::app::App;
use axum::http::Method;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::OnceLock;
use windlass_core::id::{AttemptId, Name, RunId, StepId};
use windlass_core::run::{Actor, Initiator};
use windlass_engine::port::Store as _;
use windlass_executor::home::Home;
use windlass_executor::remote::escape;

/// What a token begins with.
pub const PREFIX: &str = "wla_";
/// The most bytes of a token.
const TOKEN_LEN_MAX: usize = 2_048;
/// The file in the data directory that has the key.
const KEY_FILE: &str = "attempt.key";
const KEY_LEN: usize = 32;

/// Makes and reads tokens of attempts.
pub struct Attempts {
    key: [u8; KEY_LEN],
    /// Where steps reach the API.
    server: OnceLock<String>,
    socket: String,
}

impl Attempts {
    /// Reads the key of a data directory, and makes it where there is none.
    ///
    /// # Errors
    /// The key cannot be read or made.
    pub fn open(home: &Home) -> io::Result<Attempts> {
        let path = home.root().join(KEY_FILE);
        let key = match read_key(&path) {
            Ok(Some(key)) => key,
            Ok(None) => make_key(&path)?,
            Err(error) => return Err(error),
        };
        let socket = format!("unix:{}", home.socket().display());
        Ok(Attempts { key, server: OnceLock::new(), socket })
    }

    /// Says where the API is served over TCP: steps that start from now on are told.
    pub fn serve_at(&self, url: &str) {
        // The first address that is served stays.
        let _ = self.server.set(url.to_owned());
    }

    /// Where steps reach the API: a URL, or `unix:` and the socket's path.
    #[must_use]
    pub fn server(&self) -> &str {
        self.server.get().unwrap_or(&self.socket)
    }

    fn mac(&self, what: &str) -> Option<Hmac<Sha256>> {
        // A key of any length is taken.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).ok()?;
        mac.update(what.as_bytes());
        Some(mac)
    }

    /// The token of an attempt.
    #[must_use]
    pub fn token(&self, attempt: &AttemptId) -> String {
        let AttemptId { run, step, epoch } = attempt;
        let what = format!("{run}.{}.{epoch}", hex(step.as_str().as_bytes()));
        let tag = self.mac(&what).map(|mac| hex(&mac.finalize().into_bytes())).unwrap_or_default();
        format!("{PREFIX}{what}.{tag}")
    }

    /// The attempt that a token is for, if this directory made it.
    #[must_use]
    pub fn read(&self, token: &str) -> Option<AttemptId> {
        let (what, tag) =
            token.strip_prefix(PREFIX).filter(|t| t.len() <= TOKEN_LEN_MAX)?.rsplit_once('.')?;
        self.mac(what)?.verify_slice(&unhex(tag)?).ok()?;
        let mut parts = what.split('.');
        let run = RunId::parse(parts.next()?).ok()?;
        let step = StepId::new(&String::from_utf8(unhex(parts.next()?)?).ok()?).ok()?;
        let epoch = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(AttemptId { run, step, epoch })
    }
}

fn read_key(path: &Path) -> io::Result<Option<[u8; KEY_LEN]>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // One that was cut short by a crash was never used.
    Ok(bytes.try_into().ok())
}

fn make_key(path: &Path) -> io::Result<[u8; KEY_LEN]> {
    let key = windlass_executor::random::bytes()?;
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&key)?;
    file.sync_all()?;
    Ok(key)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

/// Whether an attempt may use an address: it reads its own run, sends it events, emits custom events for it, and reports on
/// itself.
#[must_use]
pub fn may(place: &AttemptId, method: &Method, path: &str) -> bool {
    // A custom event of its own run.
    if *method == Method::POST && path == "/v1/events" {
        return true;
    }
    let run = place.run.to_string();
    let Some(rest) = path.strip_prefix("/v1/runs/").and_then(|rest| rest.strip_prefix(run.as_str())) else {
        return false;
    };
    // What is in front of a slash ends there: another id that begins alike is another run.
    if !(rest.is_empty() || rest.starts_with('/')) {
        return false;
    }
    if *method == Method::GET {
        return true;
    }
    let plain = format!("/steps/{}/", place.step);
    let escaped = format!("/steps/{}/", escape(place.step.as_str()));
    let own = rest.strip_prefix(plain.as_str()).or_else(|| rest.strip_prefix(escaped.as_str()));
    *method == Method::POST
        && (rest.starts_with("/signals/") || own.is_some_and(|verb| verb == "checkpoint" || verb == "output"))
}

/// An attempt, as the one who asks for something. The core reads the run out of it: behind an attempt stand the requesters
/// of its run.
#[must_use]
pub fn actor(run: RunId, step: &StepId) -> Actor {
    Actor { initiator: Initiator::Executor, id: Some(Name::clean(&format!("{run}/{step}"))) }
}

impl App {
    /// Who asks with the token of an attempt; nobody where the token is none, or its attempt is over.
    pub async fn attempt_caller(&self, token: &str) -> Option<Caller> {
        self.attempt_at(self.attempts().read(token)?).await
    }

    /// The same for an attempt that is known otherwise.
    pub async fn attempt_at(&self, place: AttemptId) -> Option<Caller> {
        let (run, step, epoch) = (place.run, place.step.clone(), place.epoch);
        let home = self.look(move |store| {
            store.load(&[windlass_core::stream::StreamId::Run(run)]).ok()?;
            let run = store.state().run(run)?;
            let lives = run.step(&step).is_some_and(|step| step.epoch == epoch && step.is_executing());
            lives.then(|| (run.born.home.tenant.clone(), run.born.home.namespace.clone()))
        });
        let (tenant, namespace) = home.await.ok()??;
        Some(Caller {
            actor: actor(place.run, &place.step),
            tenant,
            namespace,
            scopes: vec![Scope::Read, Scope::Run, Scope::Execute],
            groups: Vec::new(),
            client: Name::clean(&format!("attempt:{}", place.run)),
            owns: false,
            attempt: Some(place),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> AttemptId {
        AttemptId { run: RunId(7), step: Name::clean("build.x[1]"), epoch: 3 }
    }

    #[test]
    fn a_token_says_which_attempt_and_cannot_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::make(dir.path()).unwrap();
        let attempts = Attempts::open(&home).unwrap();
        let token = attempts.token(&place());
        assert_eq!(attempts.read(&token), Some(place()));
        assert_eq!(
            Attempts::open(&home).unwrap().read(&token),
            Some(place()),
            "the key outlasts the process"
        );
        for at in PREFIX.len()..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(changed == token || attempts.read(&changed).is_none(), "{changed}");
        }
        for other in ["", "wla_", "wla_a.b.c.d", &"wla_x".repeat(2_000)] {
            assert_eq!(attempts.read(other), None);
        }
    }

    #[test]
    fn an_attempt_reaches_its_own_run_and_nothing_that_decides() {
        let (place, run) = (place(), RunId(7));
        let get = |path: String| may(&place, &Method::GET, &path);
        let post = |path: String| may(&place, &Method::POST, &path);
        assert!(get(format!("/v1/runs/{run}")) && get(format!("/v1/runs/{run}/events")));
        assert!(post(format!("/v1/runs/{run}/signals/go")));
        assert!(post("/v1/events".to_owned()) && !get("/v1/events".to_owned()));
        assert!(post(format!("/v1/runs/{run}/steps/build.x[1]/checkpoint")));
        assert!(post(format!("/v1/runs/{run}/steps/build.x%5B1%5D/output")));
        assert!(!post(format!("/v1/runs/{run}/steps/other/checkpoint")));
        assert!(!get("/v1/runs".to_owned()) && !get(format!("/v1/runs/{}", RunId(8))));
        assert!(!get(format!("/v1/runs/{run}x")) && !get("/v1/approvals".to_owned()));
        for verb in ["cancel", "retry", "resume", "steps/build.x[1]/resolve"] {
            assert!(!post(format!("/v1/runs/{run}/{verb}")), "{verb}");
        }
        assert!(!post("/v1/approvals/apr_1/decision".to_owned()));
    }
}
