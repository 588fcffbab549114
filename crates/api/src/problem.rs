//! Problems: why a request was refused, as RFC 9457 has it.

use crate::Time;
use crate::schema::Object;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use windlass_core::code::Code;

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The kind of problem, as an address.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// A short title for people.
    #[serde(default)]
    pub title: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// A stable code.
    #[serde(default = "internal", deserialize_with = "known")]
    #[schemars(with = "String")]
    pub code: Code,
    /// What happened, and what to do next.
    #[serde(default = "unexplained")]
    pub detail: String,
    /// When it is worth asking again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// The whole seconds until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// More, by the code.
    #[serde(flatten)]
    pub more: Object,
}

impl Problem {
    /// A problem with a code and a text.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:windlass:error:{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.http(),
            code,
            detail: detail.into(),
            retry_at: None,
            retry_after: None,
            more: Object::new(),
        }
    }
}

fn internal() -> Code {
    Code::Internal
}

fn unexplained() -> String {
    "no reason was given".to_owned()
}

/// A code that this version does not know is a defect as far as it can tell.
fn known<'de, D: Deserializer<'de>>(d: D) -> Result<Code, D::Error> {
    let text = Option::<String>::deserialize(d)?;
    Ok(text.as_deref().and_then(Code::parse).unwrap_or(Code::Internal))
}

/// The same, where there may be none.
pub(crate) fn known_or_none<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Code>, D::Error> {
    let text = Option::<String>::deserialize(d)?;
    Ok(text.map(|text| Code::parse(&text).unwrap_or(Code::Internal)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_problem_is_written_as_rfc_9457_has_it_and_comes_back() {
        let problem = Problem::new(Code::QueueFull, "the queue `q` is full");
        let text = serde_json::to_value(&problem).unwrap();
        let wanted = json!({
            "type": "urn:windlass:error:QUEUE_FULL", "title": Code::QueueFull.title(), "status": Code::QueueFull.http(),
            "code": "QUEUE_FULL", "detail": "the queue `q` is full",
        });
        assert_eq!(text, wanted);
        assert_eq!(serde_json::from_value::<Problem>(text).unwrap(), problem);
    }

    #[test]
    fn a_code_of_a_newer_server_and_members_that_are_not_known_can_be_read() {
        let newer = json!({ "code": "TOO_NEW", "detail": "no", "extra": 1 });
        let read: Problem = serde_json::from_value(newer).unwrap();
        assert_eq!((read.code, read.more.get("extra")), (Code::Internal, Some(&json!(1))));
    }
}
