//! Actions, intents and receipts: what is about to be done outside, and what happened.
//!
//! An [`Action`] is what policy sees, what a human approves and what is done; its hash binds the three
//! together. Its effect is identified by a key, built by [`scoped_key`]; the machine of one key, which
//! sees to it that an effect happens once, is in [`key`].

use crate::code::Code;
use crate::digest::Digest;
pub use crate::event::words::effect::{Action, Outcome, Reversal, Semantics, Settled};
use crate::id::{Name, ReceiptId, RunId, StepId};
use crate::origin::Lineage;
use crate::policy::Risk;
use crate::time::Millis;
use alloc::string::String;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub mod key;

/// The most bytes of an action's or a reversal's fields, in canonical form.
pub const FIELDS_LEN_MAX: usize = 64 * 1024;
/// The most bytes of a request or response that a receipt keeps, in canonical form.
pub const BODY_LEN_MAX: usize = 64 * 1024;

/// Why an action or a key cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The fields are too large.
    #[error("an action's fields have {len} bytes, and may have {max}", max = FIELDS_LEN_MAX)]
    FieldsTooLarge {
        /// How large they are.
        len: usize,
    },
    /// A key for the whole tenant has to be declared: nothing else would tell two effects apart.
    #[error("`key_scope: tenant` needs an `idempotency_key`")]
    KeyMissing,
}

impl Error {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::FieldsTooLarge { .. } => Code::InvalidInput,
            Error::KeyMissing => Code::RunbookInvalid,
        }
    }
}

impl Action {
    /// Makes an action whose fields are within their bound.
    ///
    /// # Errors
    /// [`Error::FieldsTooLarge`] beyond [`FIELDS_LEN_MAX`].
    pub fn new(
        tool: Name,
        operation: Name,
        target: Name,
        fields: Value,
        risk: Risk,
    ) -> Result<Action, Error> {
        let len = crate::canonical::bytes(&fields).len();
        if len > FIELDS_LEN_MAX {
            return Err(Error::FieldsTooLarge { len });
        }
        Ok(Action { tool, operation, target, fields, risk })
    }

    /// What identifies its effect where the runbook names nothing better: the tool, its target, and a hash of the
    /// fields.
    #[must_use]
    pub fn key(&self) -> Name {
        let fields = Digest::of(&[b"windlass fields v1\n", &crate::canonical::bytes(&self.fields)]);
        Name::clean(&alloc::format!("{}:{}:{fields}", self.tool, self.target))
    }

    /// The hash that binds an approval to exactly this action.
    #[must_use]
    pub fn hash(&self) -> Digest {
        Digest::of(&[b"windlass action v1\n", &crate::canonical::bytes(self)])
    }
}

/// A record of an effect: what was asked, what came back, and how it can be taken back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Its identity.
    pub id: ReceiptId,
    /// The run that acted.
    pub run: RunId,
    /// The step that acted.
    pub step: StepId,
    /// The lease under which it acted.
    pub epoch: u64,
    /// What identifies the effect.
    pub key: Name,
    /// Which generation of the key.
    pub generation: u32,
    /// The tool.
    pub tool: Name,
    /// What it did.
    pub operation: Name,
    /// What it did it to.
    pub target: Name,
    /// How it came out.
    pub status: Outcome,
    /// Whether it can be taken back.
    pub reversible: bool,
    /// Whether it came after the attempt was given up.
    pub late: bool,
    /// How it can be taken back; absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<Reversal>,
    /// The run that took it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reversed_by: Option<RunId>,
    /// What was asked; absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    /// What came back; absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// When it was recorded.
    pub at: Millis,
}

/// A request or response as a receipt keeps it. What is too large is replaced by its size and hash: the
/// effect has happened, so its receipt is never refused.
#[must_use]
pub fn bounded(body: &Value) -> Value {
    let bytes = crate::canonical::bytes(body);
    if bytes.len() <= BODY_LEN_MAX {
        return body.clone();
    }
    json!({ "omitted": true, "bytes": bytes.len(), "sha256": Digest::of(&[&bytes]) })
}

/// How far an effect key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScope<'a> {
    /// One step and item of a run and all its retries and forks, by their first run; of a called run, by that of its
    /// caller and the steps that called it.
    Lineage(&'a Lineage),
    /// The whole tenant, as the runbook declares: the same key elsewhere is the same effect.
    Tenant,
}

/// The key of an effect: `run_…/step`, with `call>` before the step of a called run, `/i3` for an item and `/k:…` for a
/// declared part, or `tenant/…` where the runbook widens it. A key that would not be a name ends in its hash instead.
///
/// # Errors
/// [`Error::KeyMissing`] for the tenant's scope without a declared key.
pub fn scoped_key(
    scope: KeyScope<'_>,
    step: &StepId,
    item: Option<u32>,
    declared: Option<&str>,
) -> Result<Name, Error> {
    let declared = declared.filter(|text| !text.is_empty());
    let mut key = match &scope {
        KeyScope::Lineage(lineage) => alloc::format!("{}/", lineage.root_run),
        KeyScope::Tenant => String::from("tenant/"),
    };
    let head_len = key.len();
    match (&scope, declared) {
        (KeyScope::Lineage(lineage), _) => {
            let within = lineage.within.iter().flat_map(|within| [within.as_str(), ">"]);
            let step = crate::origin::without_rounds(step.as_str());
            // Only the last part may hold a slash, so two different lists of parts never read the same.
            for c in within.chain([step.as_str()]).flat_map(str::chars) {
                match c {
                    '%' => key.push_str("%25"),
                    '/' => key.push_str("%2F"),
                    c => key.push(c),
                }
            }
            if let Some(item) = item {
                key.push_str(&alloc::format!("/i{item}"));
            }
            if let Some(declared) = declared {
                key.push_str("/k:");
                key.push_str(declared);
            }
        }
        (KeyScope::Tenant, Some(declared)) => key.push_str(declared),
        (KeyScope::Tenant, None) => return Err(Error::KeyMissing),
    }
    let (head, tail) = key.split_at(head_len);
    // A tail that begins with `#` could pass for the hash of another one, so it is hashed too.
    if !tail.starts_with('#')
        && let Ok(name) = Name::new(&key)
    {
        return Ok(name);
    }
    let hash = Digest::of(&[b"windlass effect key v1\n", tail.as_bytes()]);
    Ok(Name::clean(&alloc::format!("{head}#{hash}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;
    use alloc::collections::BTreeSet;

    fn key(step: &str, item: Option<u32>, declared: Option<&str>) -> String {
        let lineage = Lineage::first(RunId(1));
        let key = scoped_key(KeyScope::Lineage(&lineage), &name(step), item, declared).unwrap();
        String::from(key.as_str())
    }

    #[test]
    fn keys_are_scoped_to_lineage_step_and_item() {
        let root = RunId(1);
        assert_eq!(key("land", None, None), alloc::format!("{root}/land"));
        assert_eq!(key("land", Some(3), Some("a/b")), alloc::format!("{root}/land/i3/k:a/b"));
        // Another try at the group, or at the call, means the same effect; another step that calls does not.
        assert_eq!(key("land#2", None, None), key("land", None, None));
        assert_eq!(key("land#2[1]#3", Some(1), None), key("land[1]", Some(1), None));
        let called = |within| {
            let lineage = Lineage { within: Some(name(within)), ..Lineage::first(root) };
            scoped_key(KeyScope::Lineage(&lineage), &name("land"), None, None).unwrap()
        };
        assert_eq!(called("each[1]").as_str(), alloc::format!("{root}/each[1]>land"));
        assert_ne!(called("a"), called("b"));
        let tenant = |declared| scoped_key(KeyScope::Tenant, &name("land"), Some(1), declared);
        assert_eq!(tenant(Some("sn:resolve:1")).unwrap().as_str(), "tenant/sn:resolve:1");
        assert_eq!(tenant(None), Err(Error::KeyMissing));
        assert_eq!(tenant(Some("")), Err(Error::KeyMissing));
    }

    #[test]
    fn different_effects_have_different_keys() {
        let long = "x".repeat(Name::LEN_MAX);
        let longer = alloc::format!("{}y", &long[1..]);
        let hash = key(&long, None, None);
        let forged = hash.rsplit('/').next().unwrap();
        let keys = [
            key("a", None, None),
            key("a", Some(1), None),
            key("a/i1", None, None),
            key("a%2Fi1", None, None),
            key("a", None, Some("i1")),
            key("a", Some(1), Some("i1")),
            key("a", None, Some("x\ny")),
            key("a", None, Some("x_y")),
            key(&long, None, None),
            key(&longer, None, None),
            key(forged, None, None),
        ];
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "{keys:?}");
    }

    #[test]
    fn an_action_is_bounded_and_its_hash_is_of_all_of_it() {
        let action =
            |fields: Value, risk| Action::new(name("http"), name("post"), name("https://x"), fields, risk);
        let text = |len: usize| Value::from("x".repeat(len));
        assert!(action(text(FIELDS_LEN_MAX - 2), Risk::Low).is_ok());
        assert_eq!(action(text(FIELDS_LEN_MAX - 1), Risk::Low).unwrap_err().code(), Code::InvalidInput);
        let hash = |fields, risk| action(fields, risk).unwrap().hash();
        assert_eq!(hash(json!({"a": 1, "b": 2}), Risk::Low), hash(json!({"b": 2, "a": 1}), Risk::Low));
        assert_ne!(hash(json!({"a": 1}), Risk::Low), hash(json!({"a": 2}), Risk::Low));
        assert_ne!(hash(json!({"a": 1}), Risk::Low), hash(json!({"a": 1}), Risk::High));
    }

    #[test]
    fn what_is_too_large_for_a_receipt_is_kept_as_its_hash() {
        let large = Value::from("x".repeat(BODY_LEN_MAX));
        assert_eq!(bounded(&large)["bytes"], json!(BODY_LEN_MAX + 2));
        assert_eq!(bounded(&json!({"id": 7})), json!({"id": 7}));
    }
}
