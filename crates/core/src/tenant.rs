//! What a tenant may do, and what its people want to be told.

use crate::caps::Caps;
use crate::digest::Digest;
use crate::effect::Notice;
use crate::event::Event;
use crate::id::TokenId;
use crate::time::Millis;
use crate::token::Token;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What is known of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// What it may do at most.
    pub caps: Caps,
    /// Its share when others want to run too.
    pub weight: u32,
    /// The policy in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<Digest>,
    /// Whether whoever asked for something may approve it, where that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_approval: Option<bool>,
    /// Tokens that a version recorded here which had no stream for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<TokenId, Token>,
    /// Of what its people want to be told, beside what all are told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Notice>,
}

impl Tenant {
    pub(crate) fn apply(&mut self, event: &Event, at: Millis) {
        match event {
            Event::TokenCreated(_) | Event::TokenRevoked(_) => {
                crate::token::fold(&mut self.tokens, event, at);
            }
            Event::TenantConfigured(e) => {
                self.caps = Caps::from(e);
                self.weight = e.weight.max(1);
                self.self_approval = e.self_approval;
                self.notices = e.notices.clone().unwrap_or_default();
            }
            Event::PolicyLoaded(e) => self.policy_version = Some(e.policy_version),
            // tidy: nothing else happens to a tenant.
            _ => {}
        }
    }
}
