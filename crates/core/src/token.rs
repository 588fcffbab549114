//! Tokens: who may ask from outside, and what for.
//!
//! A token is a secret that its bearer shows. Only the hash of it is recorded, with whom it stands for: a tenant, a
//! namespace within it, a name, and what it may do. Tenants and namespaces come from here and from nowhere else, so this
//! is also where their names are checked.

use crate::code::Code;
use crate::digest::Digest;
pub use crate::event::words::Scope;
use crate::event::{Event, TokenCreated, TokenRevoked};
use crate::id::{Name, TokenId};
use crate::machine::Given;
use crate::origin::Actor;
use crate::stream::StreamId;
use crate::tenant::Tenant;
use crate::time::{Millis, Span};
use crate::wire::shorten;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The most tokens that a tenant has at a time.
pub const TOKENS_MAX: usize = 10_000;
/// The most groups that a bearer belongs to.
pub const GROUPS_MAX: usize = 64;
/// The most bytes of the name of a tenant, a namespace, a bearer or a group.
pub const NAME_LEN_MAX: usize = 128;
/// How long a token that is good for nothing is still listed.
const REMEMBERED: Span = Span::hours(30 * 24);

/// A token, as far as anybody but its bearer knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// What it is called.
    pub id: TokenId,
    /// The hash of what its bearer shows.
    pub hash: Digest,
    /// Where in the tenant it counts.
    pub namespace: Name,
    /// For whom it stands.
    pub name: Name,
    /// Whether that is a human, who may decide on approvals.
    pub human: bool,
    /// What the bearer belongs to.
    pub groups: Vec<Name>,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Who handed it out, as it stands in records.
    pub created_by: String,
    /// When.
    pub created_at: Millis,
    /// Until when it is good; for ever where absent.
    pub expires_at: Option<Millis>,
    /// Since when it is good for nothing.
    pub revoked_at: Option<Millis>,
}

impl Token {
    /// The token that a fact makes.
    pub(crate) fn new(made: &TokenCreated, at: Millis) -> Token {
        Token {
            id: made.token,
            hash: made.hash,
            namespace: made.namespace.clone(),
            name: made.name.clone(),
            human: made.human,
            groups: made.groups.clone(),
            scopes: made.scopes.clone(),
            created_by: alloc::string::ToString::to_string(&made.created_by),
            created_at: at,
            expires_at: made.expires_at,
            revoked_at: None,
        }
    }

    /// Whether it is good at a time.
    #[must_use]
    pub fn is_good(&self, at: Millis) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|until| at < until)
    }

    /// Whether it has been good for nothing for so long that nobody asks about it any more.
    pub(crate) fn is_forgotten(&self, at: Millis) -> bool {
        let ended = self.revoked_at.into_iter().chain(self.expires_at).min();
        ended.is_some_and(|ended| ended + REMEMBERED <= at)
    }
}

/// What is asked for when a token is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// What it is called, made by the shell.
    pub id: TokenId,
    /// The hash of what its bearer shows.
    pub hash: Digest,
    /// Where in the tenant it counts.
    pub namespace: Name,
    /// For whom it stands.
    pub name: Name,
    /// Whether that is a human.
    pub human: bool,
    /// What the bearer belongs to.
    pub groups: Vec<Name>,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Until when it is good.
    pub expires_at: Option<Millis>,
}

/// What can happen to the tokens of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// One is handed out.
    Create(alloc::boxed::Box<New>),
    /// One is good for nothing any more.
    Revoke { token: TokenId, reason: Option<String> },
}

/// Why it does not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The name cannot be that of a tenant or a namespace.
    #[error(
        "`{0}` is no name of a tenant or a namespace: letters, digits, `-`, `_` and `.`, beginning with a letter or digit"
    )]
    Place(String),
    /// The name is too long for a bearer or a group.
    #[error("`{0}` is too long: {NAME_LEN_MAX} bytes are allowed")]
    Long(String),
    /// A token that allows nothing.
    #[error("a token needs a scope at least")]
    Scopeless,
    /// Too many groups.
    #[error("a token has {GROUPS_MAX} groups at most")]
    Groups,
    /// It would be over before it begins.
    #[error("the token would have expired already")]
    Expired,
    /// The id or the hash is taken.
    #[error("there is such a token already")]
    Taken,
    /// The tenant has as many as it may.
    #[error("the tenant has {TOKENS_MAX} tokens: revoke what is not needed")]
    Full,
    /// There is none of that name.
    #[error("there is no token `{0}`")]
    Missing(TokenId),
}

impl Error {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Error::Place(_) | Error::Long(_) | Error::Scopeless | Error::Groups | Error::Expired => {
                Code::InvalidInput
            }
            Error::Taken => Code::IdempotencyConflict,
            Error::Full => Code::CapExceeded,
            Error::Missing(_) => Code::NotFound,
        }
    }
}

/// Whether a name can be that of a tenant or a namespace. They are put together with slashes, so they hold none.
#[must_use]
pub fn is_place(name: &Name) -> bool {
    let text = name.as_str().as_bytes();
    text.len() <= NAME_LEN_MAX
        && text.first().is_some_and(u8::is_ascii_alphanumeric)
        && text.iter().all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// What is known of the tokens of a tenant: those of its stream of tokens, and those that an earlier version recorded in the
/// tenant's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    tokens: Option<&'a BTreeMap<TokenId, Token>>,
    tenant: Option<&'a Tenant>,
}

impl<'a> Known<'a> {
    /// Both, as far as they are there.
    #[must_use]
    pub fn new(tokens: Option<&'a BTreeMap<TokenId, Token>>, tenant: Option<&'a Tenant>) -> Known<'a> {
        Known { tokens, tenant }
    }

    /// All of them.
    fn all(self) -> impl Iterator<Item = &'a Token> {
        let earlier = self.tenant.into_iter().flat_map(|tenant| tenant.tokens.values());
        self.tokens.into_iter().flat_map(BTreeMap::values).chain(earlier)
    }

    /// Whether whoever asked for something may approve it: as it is set, or else only where nobody but the owner has a
    /// credential. What nobody knows of a tenant it has not.
    #[must_use]
    pub fn own_allowed(self, at: Millis) -> bool {
        let set = self.tenant.and_then(|tenant| tenant.self_approval);
        set.unwrap_or_else(|| !self.all().any(|token| token.is_good(at)))
    }
}

/// What happens to the tokens of a tenant of which this much is known, and in which stream: a token is revoked where it was
/// recorded.
///
/// # Errors
/// [`Error`] says why it does not.
pub fn decide(
    known: Known<'_>,
    name: &Name,
    input: &Input,
    given: &Given<'_>,
) -> Result<(StreamId, Vec<Event>), Error> {
    match input {
        Input::Create(new) => {
            Ok((StreamId::Tokens(name.clone()), create(known, name, new, given.by, given.at)?))
        }
        Input::Revoke { token, reason } => {
            let stream = match known.tenant.is_some_and(|tenant| tenant.tokens.contains_key(token)) {
                true => StreamId::Tenant(name.clone()),
                false => StreamId::Tokens(name.clone()),
            };
            let found = known.all().find(|known| known.id == *token).ok_or(Error::Missing(*token))?;
            let facts = match found.revoked_at {
                Some(_) => Vec::new(),
                None => alloc::vec![TokenRevoked { token: *token, reason: reason.clone() }.into()],
            };
            Ok((stream, facts))
        }
    }
}

/// What a fact does to the tokens of a tenant. Those that have been good for nothing for long are forgotten on the way.
pub(crate) fn fold(tokens: &mut BTreeMap<TokenId, Token>, event: &Event, at: Millis) {
    match event {
        Event::TokenCreated(e) => {
            tokens.insert(e.token, Token::new(e, at));
        }
        Event::TokenRevoked(e) => {
            if let Some(token) = tokens.get_mut(&e.token) {
                token.revoked_at = Some(at);
            }
        }
        // tidy: nothing else is about a token.
        _ => return,
    }
    tokens.retain(|_, token| !token.is_forgotten(at));
}

fn create(known: Known<'_>, name: &Name, new: &New, by: &Actor, at: Millis) -> Result<Vec<Event>, Error> {
    for place in [name, &new.namespace] {
        if !is_place(place) {
            return Err(Error::Place(shorten(place.as_str())));
        }
    }
    if let Some(long) = new.groups.iter().chain([&new.name]).find(|name| name.as_str().len() > NAME_LEN_MAX) {
        return Err(Error::Long(shorten(long.as_str())));
    }
    if new.scopes.is_empty() {
        return Err(Error::Scopeless);
    }
    if new.groups.len() > GROUPS_MAX {
        return Err(Error::Groups);
    }
    if new.expires_at.is_some_and(|until| until <= at) {
        return Err(Error::Expired);
    }
    if known.all().any(|token| token.id == new.id || token.hash == new.hash) {
        return Err(Error::Taken);
    }
    if known.all().filter(|token| token.is_good(at)).count() >= TOKENS_MAX {
        return Err(Error::Full);
    }
    let mut scopes = new.scopes.clone();
    scopes.sort_unstable();
    scopes.dedup();
    let made = TokenCreated {
        token: new.id,
        hash: new.hash,
        namespace: new.namespace.clone(),
        name: new.name.clone(),
        human: new.human,
        groups: new.groups.clone(),
        scopes,
        created_by: by.clone(),
        expires_at: new.expires_at,
    };
    Ok(alloc::vec![made.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Millis = Millis(1_000_000);

    fn new() -> New {
        New {
            id: TokenId(1),
            hash: Digest([1; 32]),
            namespace: Name::clean("default"),
            name: Name::clean("ann"),
            human: true,
            groups: Vec::new(),
            scopes: alloc::vec![Scope::Run, Scope::Read, Scope::Run],
            expires_at: Some(AT + Span::hours(1)),
        }
    }

    fn made(tenant: &str, new: &New) -> Result<TokenCreated, Error> {
        let by = Actor::new(crate::origin::Initiator::User, "owner");
        match create(Known::default(), &Name::clean(tenant), new, &by, AT)?.remove(0) {
            Event::TokenCreated(made) => Ok(made),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_is_good_until_it_expires_or_is_revoked() {
        let fact = made("acme", &new()).unwrap();
        assert_eq!(fact.scopes, [Scope::Read, Scope::Run]);
        let mut token = Token::new(&fact, AT);
        assert!(token.is_good(AT) && !token.is_good(AT + Span::hours(1)));
        assert!(!token.is_forgotten(AT + Span::hours(2)) && token.is_forgotten(AT + Span::hours(1_000)));
        token.revoked_at = Some(AT);
        assert!(!token.is_good(AT));
    }

    #[test]
    fn places_cannot_be_mistaken_for_one_another() {
        for bad in ["a/b", "_", ".x", "a b", "é", "-", &"x".repeat(NAME_LEN_MAX + 1)] {
            assert!(matches!(made(bad, &new()), Err(Error::Place(_))), "{bad}");
            let new = New { namespace: Name::clean(bad), ..new() };
            assert!(matches!(made("acme", &new), Err(Error::Place(_))), "{bad}");
        }
        assert!(made("a.b-c_D9", &new()).is_ok());
    }

    #[test]
    fn a_token_has_bounds() {
        let refused = |new: New| made("acme", &new).unwrap_err();
        assert_eq!(refused(New { scopes: Vec::new(), ..new() }), Error::Scopeless);
        assert_eq!(refused(New { expires_at: Some(AT), ..new() }), Error::Expired);
        let many = alloc::vec![Name::clean("g"); GROUPS_MAX + 1];
        assert_eq!(refused(New { groups: many, ..new() }), Error::Groups);
        let long = Name::clean(&"n".repeat(NAME_LEN_MAX + 1));
        assert!(matches!(refused(New { name: long, ..new() }), Error::Long(_)));
    }

    #[test]
    fn a_tenant_has_so_many_tokens_and_no_more() {
        let by = Actor::SYSTEM;
        let mut tokens = BTreeMap::new();
        for n in 0..TOKENS_MAX {
            let id = TokenId(n as u128 + 10);
            let token = Token { id, ..Token::new(&made("acme", &new()).unwrap(), AT) };
            tokens.insert(id, token);
        }
        let next = New { hash: Digest([2; 32]), ..new() };
        let known = Known::new(Some(&tokens), None);
        let ask = |new: &New, at| create(known, &Name::clean("acme"), new, &by, at);
        assert_eq!(ask(&next, AT), Err(Error::Full));
        assert_eq!(ask(&new(), AT), Err(Error::Taken));
        let later = AT + Span::hours(2);
        let next = New { expires_at: None, ..next };
        assert!(ask(&next, later).is_ok(), "those that have expired do not count");
    }

    #[test]
    fn tokens_that_an_earlier_version_recorded_still_count_and_are_revoked_where_they_are() {
        let (name, by) = (Name::clean("acme"), Actor::SYSTEM);
        let mut state = crate::turn::state::State::new();
        let own = StreamId::Tenant(name.clone());
        state.apply_fact(&own, &name, &Event::from(made("acme", &new()).unwrap()), AT).unwrap();
        let Some(crate::turn::state::Body::Tenant(tenant)) = state.stream(&own).map(|found| &found.body)
        else {
            panic!("there is no tenant")
        };
        let known = Known::new(None, Some(tenant));
        assert!(!known.own_allowed(AT));
        assert_eq!(create(known, &name, &new(), &by, AT), Err(Error::Taken));
        let mut ids = || 7;
        let given = Given {
            at: AT,
            by: &by,
            policy: Digest([0; 32]),
            lease_ttl: Span::mins(1),
            evaluate: &crate::template::NoExpressions,
            ids: &mut ids,
        };
        let revoke = Input::Revoke { token: TokenId(1), reason: None };
        assert_eq!(decide(known, &name, &revoke, &given).unwrap().0, own);
        let other = New { id: TokenId(2), hash: Digest([2; 32]), ..new() };
        let create = Input::Create(alloc::boxed::Box::new(other));
        assert_eq!(decide(known, &name, &create, &given).unwrap().0, StreamId::Tokens(name));
    }

    #[test]
    fn a_token_that_has_been_good_for_nothing_for_long_is_forgotten() {
        let mut tokens = BTreeMap::new();
        let fact = |id: u128| TokenCreated { token: TokenId(id), ..made("acme", &new()).unwrap() };
        fold(&mut tokens, &Event::from(fact(1)), AT);
        let forever = TokenCreated { expires_at: None, ..fact(2) };
        fold(&mut tokens, &Event::from(forever), AT);
        assert_eq!(tokens.len(), 2);
        let later = AT + Span::hours(1) + REMEMBERED;
        let revoked = TokenRevoked { token: TokenId(2), reason: None };
        fold(&mut tokens, &Event::from(revoked), later);
        assert_eq!(tokens.keys().copied().collect::<Vec<_>>(), [TokenId(2)]);
        fold(&mut tokens, &Event::from(fact(3)), later + REMEMBERED);
        assert!(!tokens.contains_key(&TokenId(2)));
    }
}
