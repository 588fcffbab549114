//! External queues: runs the commands that list items and take one, as guards' commands are run, through policy.
//!
//! `list` prints a JSON array; each element becomes an item, known by its `id` where it has one and by its content
//! otherwise. `take` gets the item as JSON in `WL_ITEM`, and an `WL_IDEMPOTENCY_KEY` that is the same when it is run
//! again after a crash. Both run in the project's directory, and neither sees the surroundings of this process.

use crate::outside::Hands;
use crate::outside::beside::{self, For, NotRun};
use serde_json::Value;
use std::path::Path;
use windlass_core::canonical;
use windlass_core::digest::Digest;
use windlass_core::id::{ItemId, Name, RunId, Scoped};
use windlass_core::policy::Purpose;
use windlass_core::runbook::ExternalQueue;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_core::turn::command::{Command, Pushed};
use windlass_core::turn::dispatch::PUSH_MAX;
use windlass_core::turn::state::Body;
use windlass_engine::Handle;
use windlass_executor::shell::{Environment, Variable};
use windlass_store::store::Embedded;

/// What is wanted of an external queue: its list, or one of its items for a run.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) worker: Scoped,
    pub(crate) runbook: Digest,
    pub(crate) queue: Name,
    pub(crate) project_root: String,
    /// The item that is to be taken, for which run, and its data; absent for a list.
    pub(crate) item: Option<(ItemId, RunId, Value)>,
}

/// Runs the command of an external queue, and says what came of it. Nothing, where nobody waits for it any more.
#[must_use]
pub(crate) fn reach(hands: &Hands, wanted: &Errand) -> Option<Command> {
    let Errand { worker, runbook, queue, project_root, item } = wanted;
    let run = item.as_ref().map_or(RunId(0), |(_, run, _)| *run);
    let whom = For::Queue { worker: worker.clone(), queue: queue.clone(), runbook: *runbook, run, at: now() };
    let (worker, dir) = (worker.clone(), Path::new(project_root));
    let external = commands(&hands.engine, *runbook, queue);
    match item {
        None => {
            let listed = match external {
                Ok(external) => print(hands, &whom, (Purpose::List, &external.list), dir, &[])?,
                Err(why) => Err(why),
            };
            Some(Command::Polled { worker, listed: listed.and_then(|text| items(text.as_bytes())) })
        }
        Some((item, run, data)) => {
            let env = [(Variable::Item, data.to_string()), (Variable::IdempotencyKey, item.to_string())];
            let taken = match external {
                Ok(external) => print(hands, &whom, (Purpose::Take, &external.take), dir, &env)?,
                Err(why) => Err(why),
            };
            Some(Command::TookOutside { worker, item: *item, run: *run, error: taken.err() })
        }
    }
}

/// The commands of a queue, from the version that the worker is started with.
fn commands(engine: &Handle<Embedded>, runbook: Digest, queue: &Name) -> Result<ExternalQueue, String> {
    let queue = queue.clone();
    let found = engine.read(move |store| match &store.state().stream(&StreamId::Runbook(runbook))?.body {
        Body::Runbook(book) => book.queues.get(&queue).and_then(|queue| queue.external.clone()),
        // tidy: the stream of a runbook holds one.
        _ => None,
    });
    found.map_err(|refusal| refusal.to_string())?.ok_or_else(|| "the queue is not an external one".to_owned())
}

fn now() -> Millis {
    windlass_engine::port::Clock::now(&windlass_executor::clock::System)
}

/// What a command prints, where it succeeds. None where nobody waits for it any more.
fn print(
    hands: &Hands,
    whom: &For,
    (purpose, text): (Purpose, &str),
    dir: &Path,
    own: &[(Variable, String)],
) -> Option<Result<String, String>> {
    let mut env = Environment::inherited();
    for (name, value) in own {
        if let Err(error) = env.set_own(*name, value) {
            return Some(Err(error.to_string()));
        }
    }
    match hands.beside(whom, &beside::Command { purpose, text, dir, env }) {
        Ok(ran) if ran.code == 0 => Some(Ok(ran.printed)),
        Ok(ran) => Some(Err(format!("the command failed: {}", ran.trouble()))),
        Err(NotRun::Because(why)) => Some(Err(why)),
        Err(NotRun::Moot) => None,
    }
}

/// The items of a list.
fn items(text: &[u8]) -> Result<Vec<Pushed>, String> {
    let listed: Vec<Value> = serde_json::from_slice(text)
        .map_err(|error| format!("what the command printed is not a JSON array: {error}"))?;
    let item = |data: Value| {
        let dedupe = match data.get("id") {
            Some(Value::String(id)) => Name::new(id).ok(),
            Some(Value::Number(id)) => Some(Name::clean(&id.to_string())),
            Some(_) | None => None,
        };
        let by_content = || Name::clean(&format!("sha256:{}", Digest::of(&[&canonical::bytes(&data)])));
        let dedupe = Some(dedupe.unwrap_or_else(by_content));
        Pushed {
            id: ItemId(windlass_executor::clock::fresh()),
            data,
            priority: 0,
            not_before: None,
            dedupe,
            from: None,
        }
    };
    Ok(listed.into_iter().take(PUSH_MAX).map(item).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_by_id_or_by_content_and_nothing_else_is() {
        let read = items(br#"[{"id": "A-1", "x": 1}, {"id": 7}, {"x": 2}, "plain"]"#).unwrap();
        let keys: Vec<&str> = read.iter().map(|item| item.dedupe.as_ref().unwrap().as_str()).collect();
        assert_eq!(&keys[..2], ["A-1", "7"]);
        assert!(keys[2].starts_with("sha256:") && keys[3].starts_with("sha256:") && keys[2] != keys[3]);
        assert!(items(b"{}").unwrap_err().contains("not a JSON array"));
        let many = serde_json::to_vec(&(0..2_000).collect::<Vec<u32>>()).unwrap();
        assert_eq!(items(&many).unwrap().len(), PUSH_MAX);
    }
}
