//! Looking: show, logs, runs, events, check.

use crate::support::{Project, step, text, until};
use serde_json::Value;
use std::collections::BTreeSet;

const BOOK: &str = "
name: look
pipelines:
  good:
    steps:
      - { id: out, run: 'echo to-stdout; echo to-stderr >&2' }
      - { id: slow, run: sleep 0.05 }
  bad:
    steps:
      - { id: fine, run: echo all-is-well }
      - { id: broken, run: 'echo it-broke; exit 1' }
";

#[test]
fn show_tells_a_run_in_every_form() {
    let project = Project::with(BOOK);
    let run = project.run(&["good"], 0);
    let id = text(&run, "id");
    project.windlass(&["show", id]).code(0).says("✔ completed").says("look/good").says("✔ out");
    assert_eq!(project.show(id)["steps"], run["steps"]);
    let timeline = project.windlass(&["show", id, "--timeline"]).code(0).says("█");
    assert!(
        timeline.out.lines().any(|line| line.starts_with("slow") && line.contains(" ms")),
        "{}",
        timeline.out
    );
    let events = project.windlass(&["show", id, "--events"]).code(0).lines();
    let stream = format!("run/{id}");
    assert!(events.iter().all(|event| event["stream"] == stream.as_str()));
    let versions: Vec<u64> = events.iter().map(|event| event["ver"].as_u64().unwrap()).collect();
    assert_eq!(versions, (1..=events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events.last().unwrap()["type"], "pipeline:completed");
    // The beginning of an id is enough where it is the only one.
    assert_eq!(project.show(&id[..id.len() - 4])["id"], id);
    project.run(&["good"], 0);
    project.windlass(&["show", &id[..8]]).code(2).warns("several");
}

#[test]
fn exit_status_is_the_runs() {
    let project = Project::with(BOOK);
    let (good, bad) = (project.run(&["good"], 0), project.run(&["bad"], 1));
    project.windlass(&["show", text(&good, "id"), "--exit-status"]).code(0);
    project.windlass(&["show", text(&bad, "id"), "--exit-status"]).code(1);
    project.windlass(&["show", text(&bad, "id")]).code(0).says("it-broke").says("STEP_FAILED");
    project.windlass(&["why", text(&bad, "id")]).code(0).says("broken");
}

#[test]
fn logs_show_what_steps_wrote() {
    let project = Project::with(BOOK);
    let good = project.run(&["good"], 0);
    let id = text(&good, "id");
    project.windlass(&["logs", id]).code(0).says("out | to-stdout").says("out | to-stderr");
    let one = project.windlass(&["logs", id, "out"]).code(0);
    assert_eq!(one.out.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["to-stdout", "to-stderr"]));
    let lines = project.windlass(&["logs", id, "out", "--json"]).code(0).lines();
    assert!(lines.iter().all(|line| line["step"] == "out"), "{lines:?}");
    project.windlass(&["logs", id, "nowhere"]).code(5).warns("nowhere");
    let bad = project.run(&["bad"], 1);
    let failed = project.windlass(&["logs", text(&bad, "id"), "--failed"]).code(0).says("it-broke");
    assert!(!failed.out.contains("all-is-well"), "{}", failed.out);
}

#[test]
fn logs_can_be_followed_to_the_end() {
    let project = Project::with(
        "
name: follow
pipelines:
  p: { steps: [ { id: s, run: 'echo early; until [ -e go ]; do sleep 0.02; done; echo late' } ] }
",
    );
    let mut process = project.start(&["run", "book.yaml", "--json"]);
    let run = process.await_run();
    let mut follower = project.start(&["logs", &run, "-f"]);
    follower.await_line("early");
    project.write("go", "");
    let done = follower.wait().code(0);
    assert_eq!(done.out, "s | early\ns | late\n");
    process.wait().code(0);
}

#[test]
fn runs_are_filtered_and_come_in_pages() {
    let project = Project::with(BOOK);
    let made: Vec<String> = (0..5)
        .map(|n| if n % 2 == 0 { project.run(&["good"], 0) } else { project.run(&["bad"], 1) })
        .map(|run| text(&run, "id").to_owned())
        .collect();
    let list = |words: &[&str]| -> (Vec<String>, Option<String>) {
        let page = project.windlass(&[&["runs", "--json"], words].concat()).code(0).json();
        let ids = page["items"].as_array().unwrap().iter().map(|run| text(run, "id").to_owned()).collect();
        (ids, page["next_cursor"].as_str().map(str::to_owned))
    };
    let newest_first: Vec<String> = made.iter().rev().cloned().collect();
    assert_eq!(list(&[]), (newest_first.clone(), None));
    assert_eq!(list(&["--status", "failed"]).0, [made[3].clone(), made[1].clone()]);
    assert_eq!(list(&["--status", "succeeded", "--pipeline", "good"]).0.len(), 3);
    assert_eq!(list(&["--pipeline", "good", "--status", "failed"]).0.len(), 0);
    assert_eq!(list(&["--since", "1h"]).0.len(), 5);
    assert_eq!(list(&["--since", "2999-01-01T00:00:00Z"]).0.len(), 0);
    let (mut seen, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let mut words = vec!["--limit", "2"];
        if let Some(cursor) = &cursor {
            words.extend(["--cursor", cursor]);
        }
        let (page, next) = list(&words);
        assert!(page.len() <= 2);
        seen.extend(page);
        match next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, newest_first);
    project.windlass(&["runs"]).code(0).says("✔ completed").says("✘ failed");
    project.windlass(&["runbooks"]).code(0).says("look");
}

#[test]
fn events_are_filtered_by_type_and_go_on_from_a_cursor() {
    let project = Project::with(BOOK);
    let run = project.run(&["good"], 0);
    let all = project.windlass(&["events"]).code(0).lines();
    assert_eq!(all[0]["seq"], 1);
    let done: Vec<String> =
        project.events("step:completed").iter().map(|e| text(e, "step").to_owned()).collect();
    assert_eq!(done, ["out", "slow"]);
    let steps: BTreeSet<String> =
        project.events("step:*").iter().map(|e| text(e, "type").to_owned()).collect();
    assert!(steps.len() >= 2 && steps.iter().all(|kind| kind.starts_with("step:")), "{steps:?}");
    let from = all[all.len() - 2]["seq"].as_u64().unwrap().to_string();
    let rest = project.windlass(&["events", "--from", &from]).code(0).lines();
    assert_eq!(rest, all[all.len() - 2..]);
    // A follower sees what a later process writes.
    let (mut follower, id) =
        (project.start(&["events", "-f", "--type", "pipeline:completed"]), text(&run, "id"));
    follower.await_line(id);
    let second = project.run(&["good"], 0);
    follower.await_line(text(&second, "id"));
}

#[test]
fn check_tells_what_is_in_a_runbook_and_prints_its_schema() {
    let project = Project::with(BOOK);
    project.windlass(&["check", "book.yaml"]).code(0).says("2 pipelines");
    project.write("idle.yaml", "name: t\npipelines: { p: { steps: [ { id: w, wait: 1s, risk: high } ] } }");
    project.windlass(&["check", "idle.yaml"]).code(0).warns("step `w`: `risk` does nothing for `wait`");
    let checked = project.windlass(&["check", "book.yaml", "--json"]).code(0).json();
    let run = project.run(&["good"], 0);
    assert_eq!((&checked["valid"], &checked["hash"]), (&true.into(), &run["runbook_hash"]));
    let schema = project.windlass(&["check", "--schema"]).code(0).json();
    assert!(schema["$schema"].as_str().is_some_and(|uri| uri.contains("json-schema.org")), "{schema}");
    assert!(schema.to_string().contains("pipelines"));
}

#[test]
fn check_watches_a_file() {
    let project = Project::with("name: x\n");
    project.write("book.yaml", BOOK);
    let mut watcher = project.start(&["check", "book.yaml", "--watch"]);
    watcher.await_line("2 pipelines");
    let more = format!("{BOOK}  third:\n    steps: [ {{ run: echo }} ]\n");
    project.write("book.yaml", more);
    watcher.await_line("3 pipelines");
}

#[test]
fn output_that_is_too_much_is_cut_and_the_run_goes_on() {
    let project = Project::with(
        r#"
name: flood
pipelines:
  much: { steps: [ { id: s, run: 'head -c 20000000 /dev/zero | tr "\0" x | fold -w 100' } ] }
  line: { steps: [ { id: s, run: 'head -c 3000000 /dev/zero | tr "\0" x; echo; echo after' } ] }
  bytes: { steps: [ { id: s, run: 'head -c 100000 /dev/urandom; echo; printf "\033[2J\033]0;title\007\n"; echo after' } ] }
  typed: { steps: [ { id: s, run: 'head -c 100000 /dev/zero | tr "\0" x > "$WL_OUTPUT"' } ] }
"#,
    );
    project.run(&["much"], 0);
    let size = project.windlass(&["logs", &project.newest(), "--json"]).code(0).out.len();
    assert!(size < 20_000_000, "{size} bytes were kept");
    project.run(&["line"], 0);
    let logs = project.windlass(&["logs", &project.newest()]).code(0);
    assert!(logs.out.ends_with("s | after\n"), "what came last is missing");
    project.run(&["bytes"], 0);
    let logs = project.windlass(&["logs", &project.newest()]).code(0).says("s | after");
    assert!(!logs.out.contains('\u{1b}'), "a step took over the terminal");
    let run: Value = project.run(&["typed"], 1);
    assert_eq!(step(&run, "s")["error"]["code"], "STEP_FAILED", "{run}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let project = Project::with(BOOK);
    project.run(&["good"], 0);
    let program = env!("CARGO_BIN_EXE_windlass");
    let line = format!("'{program}' events | head -n 1 > first; echo \"${{PIPESTATUS[0]}}\" > code");
    let mut command = std::process::Command::new("bash");
    command.args(["-c", &line]).current_dir(project.root()).env("WINDLASS_DATA", project.path("data"));
    assert!(command.status().unwrap().success());
    until("the code", || project.has("code").then_some(()));
    assert_eq!((project.read("first").lines().count(), project.read("code").as_str()), (1, "0\n"));
}

#[test]
fn a_run_is_known_by_the_end_of_its_id_and_as_the_last_one() {
    let project = Project::with(BOOK);
    project.windlass(&["show", "last"]).code(5).warns("NOT_FOUND");
    let first = text(&project.run(&["good"], 0), "id").to_owned();
    let second = text(&project.run(&["good"], 0), "id").to_owned();
    assert_eq!(project.show("last")["id"], second.as_str());
    project.windlass(&["logs", "last"]).code(0).says("to-stdout");
    project.windlass(&["why", "last"]).code(0);
    for id in [&first, &second] {
        assert_eq!(project.show(&id[id.len() - 8..])["id"], id.as_str());
        assert_eq!(project.show(&id[id.len() - 8..].to_lowercase())["id"], id.as_str());
    }
    // What means several names them.
    project.windlass(&["show", &first[..6]]).code(2).warns(&first).warns(&second);
    project.windlass(&["show", "zzzz"]).code(5).warns("NOT_FOUND");
}
