//! External queues: runs the commands that list items and take one, as guards' commands are run, through policy.
//!
//! `list` prints a JSON array; each element becomes an item, known by its `id` where it has one and by its content
//! otherwise. `take` gets the item as JSON in `WL_ITEM`, and an `WL_IDEMPOTENCY_KEY` that is the same when it is run
//! again after a crash. Both run in the project's directory, and neither sees the surroundings of this process.

use crate::guards::{process, wait};
use crate::policy::{InForce, Question};
use crate::store::Embedded;
use serde_json::Value;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use windlass_core::canonical;
use windlass_core::command::{Command, Pushed};
use windlass_core::digest::Digest;
use windlass_core::dispatch::PUSH_MAX;
use windlass_core::effect::Effect;
use windlass_core::id::{ItemId, Name, RunId};
use windlass_core::policy::Verdict;
use windlass_core::runbook::ExternalQueue;
use windlass_core::state::Body;
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_engine::Handle;

/// How much of what a command prints is read.
const PRINTED_MAX: u64 = 4 << 20;
/// How much of what a command complains about stands in the record.
const COMPLAINT_MAX: usize = 1_024;

/// Carries an effect on an external queue out, and says what came of it.
#[must_use]
pub fn reach(engine: &Handle<Embedded>, policy: &InForce, effect: &Effect) -> Option<Command> {
    match effect {
        Effect::ListItems { worker, runbook, queue, project_root } => {
            let listed = commands(engine, *runbook, queue)
                .and_then(|external| {
                    allowed(policy, &Question::for_queue(RunId(0), (worker, queue), *runbook, now()))?;
                    print(Path::new(project_root), &external.list, &[])
                })
                .and_then(|text| items(&text));
            Some(Command::Polled { worker: worker.clone(), listed })
        }
        Effect::TakeItem { worker, runbook, queue, project_root, item, run, data } => {
            let env = [("WL_ITEM", data.to_string()), ("WL_IDEMPOTENCY_KEY", item.to_string())];
            let taken = commands(engine, *runbook, queue).and_then(|external| {
                allowed(policy, &Question::for_queue(*run, (worker, queue), *runbook, now()))?;
                print(Path::new(project_root), &external.take, &env)
            });
            let (item, run) = (*item, *run);
            Some(Command::TookOutside { worker: worker.clone(), item, run, error: taken.err() })
        }
        // tidy: nothing else is about external queues.
        _ => None,
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
    windlass_engine::port::Clock::now(&crate::clock::System)
}

/// Whether policy lets a command be run.
fn allowed(policy: &InForce, question: &Question) -> Result<(), String> {
    let decided = policy.decide(question);
    match decided.verdict {
        Verdict::Allow => Ok(()),
        Verdict::Deny | Verdict::NeedsApproval => {
            Err(format!("policy does not allow the command: {}", decided.reasons.join("; ")))
        }
    }
}

/// What a command prints, where it succeeds.
fn print(dir: &Path, command: &str, env: &[(&str, String)]) -> Result<Vec<u8>, String> {
    let mut process = process(dir, "bash", &["-eo", "pipefail", "-c", command]);
    process.envs(env.iter().map(|(name, value)| (*name, value.as_str())));
    let mut child = process
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{}` cannot be started: {error}", crate::expr::brief(command)))?;
    let read = |from: Option<Box<dyn std::io::Read + Send>>, max: u64| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut from) = from {
                let _ = (&mut from).take(max + 1).read_to_end(&mut text);
                // What is beyond the bound is read and thrown away, or the command would wait for ever.
                let _ = std::io::copy(&mut from, &mut std::io::sink());
            }
            text
        })
    };
    let out = read(child.stdout.take().map(|out| Box::new(out) as _), PRINTED_MAX);
    let err = read(child.stderr.take().map(|err| Box::new(err) as _), COMPLAINT_MAX as u64);
    let succeeded = wait(child);
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    match succeeded {
        Some(true) if out.len() as u64 > PRINTED_MAX => {
            Err(format!("the command printed more than {PRINTED_MAX} bytes"))
        }
        Some(true) => Ok(out),
        Some(false) => Err(format!("the command failed: {}", String::from_utf8_lossy(&err).trim())),
        None => Err("the command took too long, or was killed".to_owned()),
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
        Pushed { id: ItemId(crate::clock::fresh()), data, priority: 0, not_before: None, dedupe, from: None }
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

    #[test]
    fn a_command_gives_what_it_prints_or_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let env = [("WL_ITEM", "{}".to_owned())];
        assert_eq!(print(dir.path(), "echo \"$WL_ITEM\"", &env).unwrap(), b"{}\n");
        assert!(print(dir.path(), "echo no >&2; exit 3", &[]).unwrap_err().ends_with("no"));
        assert!(print(dir.path(), "head -c 5000000 /dev/zero", &[]).unwrap_err().contains("more than"));
    }
}
