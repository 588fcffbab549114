//! Tokens, and who the caller is.

use crate::Time;
use crate::schema::Word;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::id::{Name, TokenId};
use windlass_core::token::{self, Scope};

/// A token, as far as anybody but its bearer knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Token {
    /// Its id.
    #[schemars(with = "String")]
    pub id: TokenId,
    /// Whose things it shows.
    #[schemars(with = "String")]
    pub tenant: Name,
    /// The subdivision.
    #[schemars(with = "String")]
    pub namespace: Name,
    /// For whom it stands.
    #[schemars(with = "String")]
    pub name: Name,
    /// Whether that is a human.
    pub human: bool,
    /// What the bearer belongs to.
    #[schemars(with = "Vec<String>")]
    pub groups: Vec<Name>,
    /// What it allows.
    #[schemars(with = "Vec<Word<Scope>>")]
    pub scopes: Vec<Scope>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Time,
    /// When it expires. Absent if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Since when it is good for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Time>,
    /// The token itself; only in the answer that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl Token {
    /// A token of a tenant.
    #[must_use]
    pub fn of(tenant: &Name, token: &token::Token) -> Token {
        Token {
            id: token.id,
            tenant: tenant.clone(),
            namespace: token.namespace.clone(),
            name: token.name.clone(),
            human: token.human,
            groups: token.groups.clone(),
            scopes: token.scopes.clone(),
            created_by: token.created_by.clone(),
            created_at: token.created_at.into(),
            expires_at: token.expires_at.map(Time),
            revoked_at: token.revoked_at.map(Time),
            token: None,
        }
    }
}

/// A token is to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct New {
    /// What it allows: read, run, deploy, approve, execute, admin.
    pub scopes: Vec<String>,
    /// For which tenant; the caller's own where absent. Only the owner can name another.
    #[serde(default)]
    pub tenant: Option<String>,
    /// For which namespace; the caller's own where absent. Only the owner can name another.
    #[serde(default)]
    pub namespace: Option<String>,
    /// For whom it stands; its own id where absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether that is a program and no human. A program decides on no approval.
    #[serde(default)]
    pub service: bool,
    /// What the bearer belongs to.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Until when it is good: RFC 3339.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// How long it is good from now on, such as `30d`: by the server's time, which the caller need not know.
    #[serde(default)]
    pub expires_in: Option<String>,
}

/// A token is to be good for nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// Why.
    #[serde(default)]
    pub reason: Option<String>,
}

/// Who the caller is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Me {
    /// Its name.
    #[schemars(with = "String")]
    pub name: Name,
    /// Whether it is a human.
    pub human: bool,
    /// Whose things it sees.
    #[schemars(with = "String")]
    pub tenant: Name,
    /// The subdivision.
    #[schemars(with = "String")]
    pub namespace: Name,
    /// What it belongs to.
    #[schemars(with = "Vec<String>")]
    pub groups: Vec<Name>,
    /// What it may do.
    pub scopes: Vec<String>,
    /// What it shows for itself: the id of a token, or `local`.
    #[schemars(with = "String")]
    pub client: Name,
}

/// How the process is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// Whether the process stays when nothing is left to do, as a server does.
    pub stays: bool,
}
