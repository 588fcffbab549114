//! Who asks: tokens by their hashes, and the owner's credential.
//!
//! What is recorded of tokens is kept here as a table by hash, so that a request need not wait for the loop to be
//! known. The table is made anew inside the loop whenever a token is made or revoked: turns have one order, so the table
//! that is there last is the newest.

use crate::api::Caller;
use crate::api::routes::Scope;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, SessionId, TokenId};
use windlass_core::run::{Actor, Initiator};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::token::Token;
use windlass_core::turn::state::{Body, State};
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;
use windlass_executor::home::Home;

/// What a token begins with, so that people and scanners know one when they see it.
const PREFIX: &str = "wl_";
/// The most bytes of what may be shown as a token.
const SHOWN_MAX: usize = 256;
/// The most bytes of a credential file.
const FILE_MAX: u64 = 4_096;

/// A fresh token: 256 random bits.
///
/// # Errors
/// The system has no random numbers.
pub fn fresh_token() -> io::Result<String> {
    Ok(format!("{PREFIX}{}", Digest(windlass_executor::random::bytes()?)))
}

/// What is kept of a token.
#[must_use]
pub fn hash_of(token: &str) -> Digest {
    Digest::of(&[token.as_bytes()])
}

/// A token with whom it stands for.
struct Known {
    token: Token,
    caller: Caller,
}

/// Tokens by the hash of what is shown, and their hashes by their ids.
#[derive(Default)]
struct Table {
    known: HashMap<Digest, Known>,
    hashes: HashMap<TokenId, Digest>,
}

impl Table {
    fn token(&self, id: TokenId) -> Option<&Token> {
        self.known.get(self.hashes.get(&id)?).map(|known| &known.token)
    }
}

/// Everybody who can be known by what they show.
#[derive(Default)]
pub struct Tokens {
    table: RwLock<Table>,
    /// The owner's, good for as long as the process lives.
    owner: RwLock<Option<(Digest, Caller)>>,
    /// Changes whenever the table does.
    learned: watch::Sender<()>,
}

impl Tokens {
    /// Makes the table anew from what is recorded.
    pub fn learn(&self, state: &State) {
        let mut table = Table::default();
        for (tenant, token) in every(state) {
            let caller = caller_of(&tenant, token);
            table.hashes.insert(token.id, token.hash);
            table.known.insert(token.hash, Known { token: token.clone(), caller });
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = table;
        self.learned.send_replace(());
    }

    /// Waits until what the caller showed is good no longer: it was revoked, or has expired. That may never be.
    pub async fn over(&self, caller: &Caller) {
        let Ok(id) = TokenId::parse(caller.client.as_str()) else { return std::future::pending().await };
        let mut learned = self.learned.subscribe();
        // The sender lives as long as this, so it goes around once for each change.
        loop {
            let now = System.now();
            let left = {
                let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
                let Some(token) = table.token(id).filter(|token| token.is_good(now)) else { return };
                token.expires_at.map(|at| Duration::from_millis(at.since(now).0.max(1)))
            };
            let expiry = async {
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = learned.changed() => if changed.is_err() { return },
                () = expiry => {}
            }
        }
    }

    /// Who shows this, if it is good.
    #[must_use]
    pub fn caller(&self, shown: &str, at: Millis) -> Option<Caller> {
        if shown.len() > SHOWN_MAX {
            return None;
        }
        // Looking a hash up tells nothing about what would have been right, however long it takes.
        let hash = hash_of(shown);
        if let Some((own, caller)) = &*self.owner.read().unwrap_or_else(PoisonError::into_inner)
            && *own == hash
        {
            return Some(caller.clone());
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.known.get(&hash).filter(|known| known.token.is_good(at)).map(|known| known.caller.clone())
    }

    /// Whether a token is good that lets its bearer do more than look.
    #[must_use]
    pub fn has_others(&self, at: Millis) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let acts = |known: &Known| known.caller.scopes.iter().any(|scope| *scope != Scope::Read);
        table.known.values().any(|known| known.token.is_good(at) && acts(known))
    }

    /// From now on, whoever shows this is the owner.
    pub fn set_owner(&self, shown: &str, user: &str) {
        let own = (hash_of(shown), Caller::owner(user));
        *self.owner.write().unwrap_or_else(PoisonError::into_inner) = Some(own);
    }
}

/// Whom a token stands for.
fn caller_of(tenant: &Name, token: &Token) -> Caller {
    let initiator = if token.human { Initiator::User } else { Initiator::Service };
    let scopes = token.scopes.iter().filter_map(|scope| Scope::parse(scope.as_str()));
    Caller {
        actor: Actor { initiator, id: Some(token.name.clone()) },
        tenant: tenant.clone(),
        namespace: token.namespace.clone(),
        scopes: scopes.collect(),
        groups: token.groups.clone(),
        client: Name::clean(&token.id.to_string()),
        owns: false,
        attempt: None,
    }
}

/// Every token that is known, with its tenant.
pub fn every(state: &State) -> impl Iterator<Item = (Name, &Token)> {
    // Tenants stand after sessions, and a state may hold millions of others.
    static BEFORE: StreamId = StreamId::Session(SessionId(u128::MAX));
    let tenants = state.streams_after(Some(&BEFORE)).map_while(|(id, stream)| match (id, &stream.body) {
        // Those of an earlier version.
        (StreamId::Tenant(tenant), Body::Tenant(body)) => Some((tenant, &body.tokens)),
        (StreamId::Tokens(tenant), Body::Tokens(tokens)) => Some((tenant, &**tokens)),
        // tidy: tenants and their tokens stand together.
        _ => None,
    });
    tenants.flat_map(|(tenant, tokens)| tokens.values().map(move |token| (tenant.clone(), token)))
}

/// A token's id that begins with a text, with or without its prefix.
#[must_use]
pub fn begins(id: TokenId, text: &str) -> bool {
    let id = id.to_string();
    let bare = id.strip_prefix(TokenId::PREFIX).unwrap_or(&id);
    !text.is_empty() && (id.starts_with(text) || bare.starts_with(text))
}

/// The owner's credential: a file that only the owner can read, with what gives everything and where it does.
///
/// It is made anew by every process that serves, so what a dead one left behind is good for nothing; and it names the
/// address, so that it is shown to nobody else.
pub struct Credential {
    path: PathBuf,
}

impl Credential {
    fn path(home: &Home) -> PathBuf {
        home.root().join("credential.json")
    }

    /// Makes the file. On a full disk there is none, and the owner comes by the socket.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(home: &Home, url: &str, token: &str) -> io::Result<Credential> {
        let path = Credential::path(home);
        let fresh = path.with_extension("new");
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        let written = file.write_all(json!({ "url": url, "token": token }).to_string().as_bytes());
        match written.and_then(|()| fs::rename(&fresh, &path)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                // The socket in the directory needs no file.
                eprintln!(
                    "windlass: the disk is full: only the socket in the data directory knows its owner"
                );
                let _ = fs::remove_file(&fresh);
            }
            Err(error) => return Err(error),
        }
        Ok(Credential { path })
    }

    /// The address of the server in the file, and the token for it.
    #[must_use]
    pub fn read(home: &std::path::Path) -> Option<(String, String)> {
        let file = fs::File::open(home.join("credential.json")).ok()?;
        let mut text = String::new();
        file.take(FILE_MAX).read_to_string(&mut text).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        Some((value["url"].as_str()?.to_owned(), value["token"].as_str()?.to_owned()))
    }
}

impl Drop for Credential {
    fn drop(&mut self) {
        // Whoever serves next makes their own.
        let _ = fs::remove_file(&self.path);
    }
}
