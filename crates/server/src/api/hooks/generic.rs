//! Deliveries of any other source, signed as the configuration file says.

use super::{Delivery, Raw, answer, bad, payload, signature, tenant_name, triggers, unknown};
use crate::api::{Answer, Problem};
use crate::app::App;
use serde_json::Value;
use std::sync::Arc;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, Scoped};
use windlass_core::idempotency::{self, Source as KeySource};
use windlass_core::run::{Actor, Initiator, Source};
use windlass_core::time::{Millis, Span};
use windlass_executor::clock::wall;
use windlass_executor::config::{Algorithm, DeliveryId, HookSource};

/// How many signatures one header may hold, as senders do while they change keys.
const SIGNATURES_MAX: usize = 4;

/// Takes a delivery.
pub(super) async fn take(app: &Arc<App>, raw: Raw) -> Answer {
    let hook = verify(app, &raw, wall())?;
    let payload = payload(&raw.bytes)?;
    let id = id(hook, &raw, &payload)?;
    let source = Name::new(&raw.source).map_err(|_| unknown())?;
    let key = idempotency::hook(source.as_str(), &id).map_err(|error| bad(error.to_string()))?;
    let also = signed(hook, &raw, &source).into_iter().collect();
    let text = |key: &str| payload.get(key).and_then(Value::as_str).map(str::to_owned);
    let delivery = Delivery {
        tenant: tenant_name(&raw)?,
        event: text("event").or_else(|| text("type")),
        action: text("action"),
        key,
        key_source: KeySource::Hook,
        request_hash: Digest::of(&[&raw.bytes]),
        headers: raw.visible_headers(),
        by: Actor::new(Initiator::Webhook, source.as_str()),
        run_source: Source::Webhook,
        user: Some(Name::clean(&format!("hook:{source}"))),
        subject: None,
        traceparent: raw.traceparent(),
        emitted: None,
        also,
        source,
        id,
        payload,
    };
    drop(raw);
    answer(&triggers::fire(app, delivery).await?)
}

/// The source, once the signature holds. A source that nobody described is looked at like one that has no secret.
fn verify<'a>(app: &'a App, raw: &Raw, now: Millis) -> Result<&'a HookSource, Problem> {
    let secrets = app.config.hook_secrets(&raw.tenant, &raw.source);
    let Some(hook) = app.config.hooks.get(raw.source.as_str()) else {
        let _ = signature::holds(Algorithm::Sha256, &[], &[&raw.bytes], &[]);
        return Err(unknown());
    };
    let timestamp = hook
        .timestamp
        .as_ref()
        .map(|(header, tolerance)| (raw.header(header).unwrap_or_default(), *tolerance));
    let id = match &hook.delivery {
        DeliveryId::Header(header) => raw.header(header).unwrap_or_default(),
        DeliveryId::Field(_) | DeliveryId::Body => "",
    };
    let parts = signed_parts(&hook.signed, timestamp.map_or("", |(text, _)| text), id, &raw.bytes);
    let header = raw.header(&hook.header).unwrap_or_default();
    let mut holds = false;
    for text in header.split(' ').take(SIGNATURES_MAX) {
        let given = text.strip_prefix(hook.prefix.as_str());
        let given = given.and_then(|text| signature::decode(hook.encoding, text)).unwrap_or_default();
        holds |= signature::holds(hook.algorithm, &secrets, &parts, &given);
    }
    let fresh = timestamp.is_none_or(|(text, tolerance)| is_fresh(text, tolerance, now));
    if holds && fresh { Ok(hook) } else { Err(unknown()) }
}

/// What a delivery is known by beside its id, where the id is a header that nobody signed: whoever has seen the delivery
/// could send it again under other ids as long as its time counts. Without a time there is no end to that, and the
/// documents say so.
fn signed(hook: &HookSource, raw: &Raw, source: &Name) -> Option<(Scoped, Span)> {
    let (DeliveryId::Header(_), Some((header, tolerance))) = (&hook.delivery, &hook.timestamp) else {
        return None;
    };
    if hook.signed.contains("{id}") {
        return None;
    }
    let time = raw.header(header).unwrap_or_default();
    let what = Digest::of(&[b"windlass signed delivery v1\n", time.as_bytes(), b"\n", &raw.bytes]);
    let name = Name::clean(&format!("hook:{source}:signed:{what}"));
    // A time may be ahead by as much as it may be behind.
    Some((
        Scoped::new(&tenant_name(raw).ok()?, &Name::clean("_"), &name),
        Span(tolerance.0.saturating_mul(2)),
    ))
}

/// What is signed, in its parts.
fn signed_parts<'a>(signed: &'a str, timestamp: &'a str, id: &'a str, body: &'a [u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut rest = signed;
    while let Some((before, after)) = rest.split_once('{') {
        parts.push(before.as_bytes());
        let (word, after) = after.split_once('}').unwrap_or((after, ""));
        parts.push(match word {
            "timestamp" => timestamp.as_bytes(),
            "id" => id.as_bytes(),
            // The configuration was checked: nothing else stands in braces.
            _ => body,
        });
        rest = after;
    }
    parts.push(rest.as_bytes());
    parts
}

/// Whether a time in seconds since 1970 is near enough to now, before or after it.
pub(super) fn is_fresh(text: &str, tolerance: Span, now: Millis) -> bool {
    let plain = !text.is_empty() && text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(seconds) = text.parse::<u64>().ok().filter(|_| plain) else { return false };
    now.0.abs_diff(seconds * 1_000) <= tolerance.0
}

/// What names the delivery.
fn id(hook: &HookSource, raw: &Raw, payload: &Value) -> Result<String, Problem> {
    match &hook.delivery {
        DeliveryId::Header(header) => raw.need(header).map(str::to_owned),
        DeliveryId::Body => Ok(Digest::of(&[&raw.bytes]).to_string()),
        DeliveryId::Field(path) => {
            let found = path.iter().try_fold(payload, |value, field| value.get(field));
            match found {
                Some(Value::String(text)) => Ok(text.clone()),
                Some(Value::Number(number)) => Ok(number.to_string()),
                Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => {
                    Err(bad(format!(
                        "the payload has no text or number at `{}`, which names the delivery",
                        path.join(".")
                    )))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_put_together_as_the_file_says() {
        let parts = |signed| signed_parts(signed, "17", "e1", b"{}").concat();
        assert_eq!(parts("{body}"), b"{}");
        assert_eq!(parts("v0:{timestamp}:{body}"), b"v0:17:{}");
        assert_eq!(parts("{id}.{timestamp}.{body}!"), b"e1.17.{}!");
    }

    #[test]
    fn times_are_near_or_refused() {
        let (now, five) = (Millis(1_000_000_000), Span::mins(5));
        for good in ["1000000", "999700", "1000300"] {
            assert!(is_fresh(good, five, now), "{good}");
        }
        for bad in [
            "",
            "999699",
            "1000301",
            "-1000000",
            "+1000000",
            "1e6",
            " 1000000",
            "1000000.0",
            "99999999999999999999",
        ] {
            assert!(!is_fresh(bad, five, now), "{bad}");
        }
    }
}
