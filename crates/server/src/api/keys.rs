//! Idempotency keys: what became of a request that came before, looked up before anything else about it is.
//!
//! What a repeat asks for may be gone by now, as when the runbook was deployed anew; its answer is not.

use super::Problem;
use crate::app::App;
use crate::metrics::Hit;
use windlass_core::digest::Digest;
use windlass_core::id::Scoped;
use windlass_core::idempotency::{Input, Key, Reply, Source};
use windlass_core::stream::StreamId;
use windlass_core::turn::state::Body;
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;

impl App {
    /// What a claim of a key would be answered, where the key is known. A repeat is counted here, and told of; a key that
    /// is new, or whose request may be tried again, is neither.
    ///
    /// # Errors
    /// The key belongs to another request.
    pub(super) async fn known_key(
        &self,
        key: &Scoped,
        source: Source,
        request_hash: Digest,
    ) -> Result<Option<Reply>, Problem> {
        let claim = Input::Claim { source, request_hash, run: None };
        let (stream, now) = (StreamId::Trigger(key.clone()), System.now());
        let decided = self
            .look(move |store| {
                // One that has left memory is read back; what cannot be read is found when it is claimed.
                let _ = windlass_engine::port::Store::load(store, std::slice::from_ref(&stream));
                match store.state().stream(&stream).map(|stream| &stream.body) {
                    Some(Body::Trigger(key)) => {
                        Key::decide(key, &claim, now).map(|decision| Some(decision.reply))
                    }
                    Some(_) | None => Ok(None),
                }
            })
            .await?;
        let reply = decided.map_err(|error| {
            self.metrics.key(source, Hit::Conflict);
            crate::telemetry::idempotency_conflict(key.name(), source.as_str());
            Problem::new(error.code(), error.to_string())
        })?;
        let (hit, run) = match &reply {
            Some(Reply::Duplicate { run, .. } | Reply::Exhausted { run, .. }) => (Hit::Duplicate, *run),
            Some(Reply::InFlight { run }) => (Hit::InFlight, *run),
            Some(
                Reply::New { .. } | Reply::Retry { .. } | Reply::Failed { .. } | Reply::Done | Reply::Nothing,
            )
            | None => return Ok(None),
        };
        self.metrics.key(source, hit);
        self.tell_hit(key.name(), run);
        Ok(reply)
    }
}
