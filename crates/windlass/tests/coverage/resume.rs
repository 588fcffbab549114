//! What a lost attempt leaves: by what it saved, by what its step declares, and by nothing; seen from outside, with an
//! executor that leases over HTTP and falls silent.

use crate::support::{Project, step, text, until};
use crate::wire::Serving;
use serde_json::{Value, json};

const BOOK: &str = "
name: far
pipelines:
  once: { steps: [ { id: s, runs_on: [far], effect: at_most_once, run: 'true' } ] }
  plain: { steps: [ { id: s, runs_on: [far], env: { MODE: fast }, run: 'true' } ] }
  declared: { steps: [ { id: s, runs_on: [far], effect: at_most_once, checkpoint: { resumable: true }, run: 'true' } ] }
";

struct Far {
    serving: Serving,
}

impl Far {
    fn new() -> Far {
        Far { serving: Serving::new(Project::new().env("WINDLASS_LEASE_TTL", "1s"), &[BOOK]) }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.serving.post(path, &[], body.to_string().as_bytes());
        assert!(answer.status < 300, "{path}: {answer:?}");
        answer.json()
    }

    fn lease(&self) -> Value {
        let wish = json!({ "executor": "e1", "max": 1, "wait_ms": 1000, "labels": ["far"] });
        until("a lease", || self.post("/v1/leases", &wish)["items"].get(0).cloned())
    }

    /// A run whose first attempt saves this, where there is something to save, and is not heard of again.
    fn lost(&self, pipeline: &str, saves: Option<Value>) -> (String, Value) {
        let made = self.post("/v1/runs", &json!({ "pipeline": pipeline }));
        let run = text(&made, "id").to_owned();
        let lease = self.lease();
        assert_eq!((&lease["run"], &lease["epoch"]), (&json!(run), &json!(1)));
        if let Some(mut saved) = saves {
            saved["epoch"] = lease["epoch"].clone();
            self.post(&format!("/v1/runs/{run}/steps/s/checkpoint"), &saved);
        }
        (run, lease)
    }

    fn ended(&self, run: &str, output: &Value) {
        let shown = self.serving.await_status(run, "completed");
        let step = step(&shown, "s");
        assert_eq!((&step["epoch"], &step["output"]), (&json!(1), output), "nobody did it again: {step}");
    }
}

#[test]
fn what_is_resumable_serves_as_the_result_and_the_log_says_that_it_was_saved() {
    let far = Far::new();
    let data = json!({ "loss": 0.5 });
    let (run, _) = far.lost("once", Some(json!({ "resumable": true, "data": data })));
    far.ended(&run, &data);
    let (other, _) = far.lost("once", Some(json!({ "resumable": true, "data": null })));
    let lines = until("two lines", || Some(far.serving.told("run_checkpoint")).filter(|all| all.len() == 2));
    let of = |line: &Value| {
        (text(line, "run_id").to_owned(), text(line, "step_id").to_owned(), line["resumable"].clone())
    };
    assert_eq!(of(&lines[0]), (run, "s".to_owned(), json!(true)));
    assert_eq!(of(&lines[1]), (other, "s".to_owned(), json!(true)));
}

#[test]
fn what_a_step_declares_resumable_is_and_its_checkpoint_says_so() {
    let far = Far::new();
    let data = json!({ "part": 1 });
    let (run, _) = far.lost("declared", Some(json!({ "data": data })));
    far.ended(&run, &data);
    let saved = far.serving.get(&format!("/v1/runs/{run}/checkpoints")).is(200).json();
    let saved = &saved["items"][0];
    assert_eq!(
        (&saved["step"], &saved["status"], &saved["output"]),
        (&json!("s"), &json!("succeeded"), &data)
    );
    assert_eq!((&saved["resumable"], &saved["idempotent"]), (&json!(true), &json!(false)));
}

#[test]
fn what_is_idempotent_is_done_again_under_the_same_key() {
    let far = Far::new();
    let (run, first) = far.lost("once", Some(json!({ "idempotent": true })));
    let again = far.lease();
    assert_eq!((&again["run"], &again["step"], &again["epoch"]), (&json!(run), &json!("s"), &json!(2)));
    assert_eq!((&again["attempt"], &again["idempotency_key"]), (&json!(2), &first["idempotency_key"]));
    let done =
        json!({ "items": [{ "run": run, "step": "s", "epoch": 2, "output": { "n": 2 }, "exit_code": 0 }] });
    far.post("/v1/leases/complete", &done);
    let shown = far.serving.await_status(&run, "completed");
    assert_eq!(step(&shown, "s")["output"], json!({ "n": 2 }));
}

#[test]
fn what_says_nothing_is_a_question_to_a_human() {
    let far = Far::new();
    for saves in [None, Some(json!({ "data": { "part": 1 } }))] {
        let (run, _) = far.lost("once", saves);
        let shown = far.serving.await_status(&run, "awaiting_approval");
        assert_eq!(step(&shown, "s")["status"], "outcome_unknown");
        let resolved = json!({ "resolution": "done", "reason": "looked" });
        far.post(&format!("/v1/runs/{run}/steps/s/resolve"), &resolved);
        far.serving.await_status(&run, "completed");
    }
}

#[test]
fn a_checkpoint_shows_the_status_input_error_and_duration_of_its_step() {
    let far = Far::new();
    let (run, lease) = far.lost("plain", Some(json!({ "data": { "part": 1 }, "message": "half" })));
    let failed =
        json!({ "run": run, "step": "s", "epoch": lease["epoch"], "error": { "message": "no luck" } });
    far.post("/v1/leases/fail", &json!({ "items": [failed] }));
    far.serving.await_status(&run, "failed");
    let saved = far.serving.get(&format!("/v1/runs/{run}/checkpoints")).is(200).json();
    let saved = &saved["items"][0];
    assert_eq!(
        (&saved["status"], &saved["input"]),
        (&json!("failed"), &json!({ "env": { "MODE": "fast" } })),
        "{saved}"
    );
    assert!(text(&saved["error"], "message").contains("no luck") && saved["duration_ms"].is_u64(), "{saved}");
}
