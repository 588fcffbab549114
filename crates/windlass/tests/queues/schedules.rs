//! Schedules: one run per slot across restarts and kills, run now, pause, resume.

use crate::served::Served;
use crate::support::{Project, text, until};
use serde_json::Value;
use std::collections::BTreeSet;

const BOOK: &str = "
name: nightly
schedules:
  tick: { every: 1s, pipeline: p, catch_up: all, overlap: queue, vars: { who: clock } }
  yearly: { cron: '0 0 1 1 *', timezone: Europe/Berlin, pipeline: p, overlap: skip, jitter: 1h }
pipelines:
  p: { vars: { who: { default: nobody } }, steps: [ { run: 'echo \"$WL_VAR_WHO\" >> done' } ] }
";

#[test]
fn a_slot_makes_one_run_through_kills_and_restarts() {
    let project = Project::with(BOOK);
    project.windlass(&["deploy", "book.yaml"]).code(0).says("deployed `nightly`");
    let fired = || project.events("schedule:fired");
    let mut seen = 0;
    for _ in 0..3 {
        let holder = project.start(&["__hold"]);
        seen = until("more slots to fire", || Some(fired().len()).filter(|n| *n > seen));
        holder.kill();
    }
    let holder = project.start(&["__hold"]);
    project.windlass(&["schedule", "pause", "tick"]).code(0).says("paused");
    let all = fired();
    let slots: Vec<u64> = all.iter().map(|e| e["slot"].as_u64().unwrap()).collect();
    let unique: BTreeSet<u64> = slots.iter().copied().collect();
    assert_eq!(unique.len(), slots.len(), "a slot made two runs: {slots:?}");
    // With catch_up all none is missing in between, and nothing was skipped.
    let (first, last) = (unique.first().unwrap(), unique.last().unwrap());
    let waiting = project.events("schedule:queued").len();
    assert!(unique.len() as u64 + waiting as u64 > (last - first) / 1_000, "{slots:?}");
    // No slot is skipped, but for one whose time came as the schedule was paused: it was worked out before and settled after,
    // as happens on a busy machine.
    let skipped = project.events("schedule:skipped");
    let in_pause = |e: &Value| e["reason"] == "paused" && e["slot"].as_u64() > Some(*last);
    assert!(skipped.iter().all(|e| e["schedule"] != "tick" || in_pause(e)), "{skipped:?}");
    let runs: BTreeSet<&str> = all.iter().map(|e| text(e, "pipeline_id")).collect();
    assert_eq!(runs.len(), all.len());
    let run = project.show(runs.first().unwrap());
    assert_eq!((text(&run["trigger"], "source"), text(&run["vars"], "who")), ("scheduled", "clock"));
    holder.kill();
}

#[test]
fn a_schedule_is_run_now_paused_and_resumed_and_shows_what_comes() {
    let project = Project::with(BOOK);
    let served = Served::open(&project.path("data"));
    served.deploy(BOOK, project.root()).is(201);
    project.windlass(&["schedule", "pause", "tick"]).code(0);
    let yearly = served.get("/v1/schedules/yearly").is(200);
    let next: Vec<&str> = yearly["next"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(next.len(), 5);
    // Midnight in Berlin is eleven in the evening in UTC, and jitter moves it by up to an hour.
    assert!(next.iter().all(|at| at.contains("-12-31T23:") || at.contains("-01-01T00:00:00")), "{next:?}");
    let run = project.windlass(&["schedule", "run", "yearly"]).code(0).out.trim().to_owned();
    until("the run to end", || {
        (served.get(&format!("/v1/runs/{run}")).is(200)["status"] == "completed").then_some(())
    });
    // A slot of the other may have come before its pause.
    assert!(project.read("done").lines().any(|line| line == "nobody"), "{}", project.read("done"));
    let paused = project.windlass(&["schedules", "--json"]).code(0).json();
    let tick = paused["items"].as_array().unwrap().iter().find(|one| one["name"] == "tick").unwrap().clone();
    assert_eq!((&tick["state"], &tick["next"]), (&Value::from("paused"), &Value::Null));
    project.windlass(&["schedule", "resume", "tick"]).code(0).says("active");
    until("a slot after the pause", || project.read("done").contains("clock\n").then_some(()));
    project.windlass(&["schedule", "run", "nobody"]).code(5);
    served.close();
}
