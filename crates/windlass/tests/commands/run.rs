//! `run`: variables, outputs, exit codes, keys, and runs that nobody waits for.

use crate::support::{Project, status_of, step, text, until};
use rustix::process::Signal;
use serde_json::json;

const GREET: &str = r#"
name: greet
pipelines:
  default:
    vars:
      who: { default: world }
      times: { type: number, default: 1 }
      names: { type: list, default: [] }
    outputs: { greeting: '${{ steps.say.output.text }}', times: '${{ vars.times }}' }
    steps:
      - id: say
        run: |
          echo "Hello, $WL_VAR_WHO, $WL_VAR_TIMES times, $WL_VAR_NAMES"
          echo "text=Hello, $WL_VAR_WHO" > "$WL_OUTPUT"
        outputs: { text: string }
  fails:
    steps:
      - { id: bad, run: 'echo so be it >&2; exit 7' }
      - { id: never, run: touch never }
"#;

#[test]
fn a_plain_run_shows_its_steps_and_their_output() {
    let project = Project::with(GREET);
    let done = project.windlass(&["run", "book.yaml"]).code(0);
    let done = done.says("✔ say").says("say | Hello, world, 1 times, []").says("✔ completed");
    assert!(done.out.contains(r#""greeting":"Hello, world""#), "{}", done.out);
    assert_eq!(done.err, "");
    let quiet = project.windlass(&["run", "book.yaml", "--quiet"]).code(0);
    assert!(!quiet.out.contains("say |"), "{}", quiet.out);
}

#[test]
fn with_json_every_line_is_an_object_and_the_last_one_is_the_run() {
    let project = Project::with(GREET);
    let done = project.windlass(&["run", "book.yaml", "--json"]).code(0);
    let lines = done.lines();
    assert_eq!(lines[0]["type"], "pipeline:created");
    for pair in lines[..lines.len() - 1].windows(2) {
        assert!(pair[0]["seq"].as_u64() < pair[1]["seq"].as_u64(), "{pair:?}");
    }
    let run = done.last();
    assert_eq!(run["status"], "completed");
    assert_eq!(run["result"], json!({ "greeting": "Hello, world", "times": 1 }));
    assert_eq!(step(&run, "say")["output"], json!({ "text": "Hello, world" }));
    assert_eq!(run["trigger"]["source"], "cli");
    for field in
        ["id", "pipeline", "tenant", "namespace", "runbook_hash", "created_at", "updated_at", "root_run"]
    {
        assert!(run[field].is_string(), "{field}: {run}");
    }
}

#[test]
fn variables_come_from_words_and_files_and_words_win() {
    let project = Project::with(GREET);
    project.write("vars.yaml", "who: file\ntimes: 2\nnames: [a, b]\n");
    project.write("vars.json", r#"{ "who": "json" }"#);
    let run = project.run(&["--vars-file", "vars.yaml", "--var", "who=word"], 0);
    assert_eq!(run["vars"], json!({ "who": "word", "times": 2, "names": ["a", "b"] }));
    project.windlass(&["logs", text(&run, "id"), "say"]).code(0).says(r#"Hello, word, 2 times, ["a","b"]"#);
    assert_eq!(project.run(&["--vars-file", "vars.json"], 0)["vars"]["who"], "json");
    // A value is data: no shell and no expression looks at it.
    let evil = "$(touch evil); `touch evil` ${{ 1 + 1 }}";
    let run = project.run(&["--var", &format!("who={evil}")], 0);
    assert_eq!(run["result"]["greeting"], format!("Hello, {evil}"));
    assert!(!project.has("evil"));
}

#[test]
fn a_failure_ends_with_1_and_says_what_the_step_said() {
    let project = Project::with(GREET);
    let done = project.windlass(&["run", "book.yaml", "fails"]).code(1);
    let done = done.says("✘ failed").says("so be it").says("windlass logs").says("windlass retry");
    assert!(!project.has("never"), "{}", done.out);
    let run = project.run(&["fails"], 1);
    assert_eq!(run["error"]["code"], "STEP_FAILED");
    assert_eq!((status_of(&run, "bad"), &run["status"]), ("failed", &json!("failed")));
}

#[test]
fn a_dry_run_shows_everything_and_executes_nothing() {
    let project = Project::with(
        "
name: plan
pipelines:
  p:
    vars: { who: { default: world } }
    steps:
      - { id: first, run: touch trace, env: { WHO: '${{ vars.who }}', KEY: '${{ secrets.api }}' } }
      - { id: skipped, when: vars.who == 'nobody', run: touch trace }
      - { id: later, run: touch trace, env: { OUT: '${{ steps.first.output.x }}' } }
      - { id: post, http: { url: 'https://example.invalid/', method: POST } }
    finally:
      - { id: last, run: touch trace }
",
    );
    let plan = project.windlass(&["run", "book.yaml", "--dry-run", "--json"]).code(0).json();
    let steps = plan["steps"].as_array().unwrap();
    let ids: Vec<&str> = steps.iter().map(|step| text(step, "id")).collect();
    assert_eq!(ids, ["first", "skipped", "later", "post", "last"]);
    assert_eq!(steps[0]["fields"]["env"]["WHO"], "world");
    assert_eq!((&steps[0]["policy"], &steps[3]["policy"]), (&json!("allow"), &json!("deny")));
    assert_eq!(steps[1]["when"], false);
    assert!(steps[0]["secrets"].to_string().contains("api"), "{}", steps[0]);
    project.windlass(&["run", "book.yaml", "--dry-run"]).code(0).says("nothing was executed");
    assert!(!project.has("trace"));
    assert_eq!(project.windlass(&["runs", "--json"]).code(0).json()["items"], json!([]));
}

#[test]
fn a_key_makes_one_run_and_refuses_another_request() {
    let project = Project::with(
        "
name: once
pipelines:
  p:
    vars: { n: { default: a } }
    steps: [ { run: echo done >> trace } ]
",
    );
    let first = project.run(&["--idempotency-key", "k"], 0);
    let second = project.windlass(&["run", "book.yaml", "--idempotency-key", "k", "--json"]).code(0);
    let second = second.warns("was made by an earlier request");
    assert_eq!(second.last()["id"], first["id"]);
    assert_eq!(project.read("trace"), "done\n");
    let other = ["run", "book.yaml", "--idempotency-key", "k", "--var", "n=b"];
    project.windlass(&other).code(6).warns("IDEMPOTENCY_CONFLICT");
    project.run(&["--idempotency-key", "other"], 0);
    assert_eq!(project.read("trace"), "done\ndone\n");
}

#[test]
fn a_run_after_another_waits_for_it() {
    let project = Project::with(
        "
name: after
pipelines:
  slow:
    steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.02; done; echo slow >> trace' } ]
  quick:
    steps: [ { run: echo quick >> trace } ]
",
    );
    let mut slow = project.start(&["run", "book.yaml", "slow", "--json"]);
    let first = slow.await_run();
    project.await_file("began");
    let quick = project.start(&["run", "book.yaml", "quick", "--after", &first, "--json"]);
    let blocked = until("the second run to be blocked", || {
        let page = project.windlass(&["runs", "--status", "blocked", "--json"]).code(0).json();
        page["items"][0]["id"].as_str().map(str::to_owned)
    });
    let why = project.windlass(&["why", &blocked, "--json"]).code(0).json();
    assert!(why["because"][0]["text"].as_str().unwrap().contains(&first), "{why}");
    project.write("go", "");
    slow.wait().code(0);
    assert_eq!(quick.wait().code(0).last()["status"], "completed");
    assert_eq!(project.read("trace"), "slow\nquick\n");
}

#[test]
fn a_detached_run_goes_on_without_the_command() {
    let project = Project::with(
        "
name: detached
pipelines:
  p: { steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.02; done; echo done > trace' } ] }
",
    );
    let made = project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0).json();
    let id = text(&made, "id");
    project.await_file("began");
    assert_eq!(project.show(id)["status"], "running");
    let follower = project.start(&["watch", id, "--json"]);
    project.write("go", "");
    assert_eq!(follower.wait().code(0).last()["status"], "completed");
    assert_eq!(project.read("trace"), "done\n");
    // The process in the background ends by itself once nothing is left to do.
    until("the background process to end", || {
        project.windlass(&["store", "verify"]).status.success().then_some(())
    });
}

#[test]
fn a_detached_run_goes_on_whoever_holds_the_directory_and_goes_away() {
    let project = Project::with(
        "
name: detached
pipelines:
  first: { steps: [ { run: 'echo > first; until [ -e end ]; do sleep 0.02; done' } ] }
  p: { steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.02; done' }, { run: 'echo done >> trace' } ] }
",
    );
    // A command that only looks holds the directory again and again, and carries nothing out.
    project.write("go", "");
    let looks: Vec<_> = (0..3).map(|_| project.start(&["events", "--follow", "--json"])).collect();
    project.windlass(&["run", "book.yaml", "p", "--detach"]).code(0);
    until("the run to be carried out", || project.has("trace").then_some(()));
    for look in looks {
        look.signal(Signal::INT);
        look.wait();
    }
    until("the background process to end", || {
        project.windlass(&["store", "verify"]).status.success().then_some(())
    });

    // A command that carries out its own run sees the step through that it began, and leaves the rest.
    project.remove("go");
    project.remove("began");
    let first = project.start(&["run", "book.yaml", "first", "--json"]);
    project.await_file("first");
    for _ in 0..3 {
        project.windlass(&["run", "book.yaml", "p", "--detach"]).code(0);
    }
    project.await_file("began");
    project.write("end", "");
    project.write("go", "");
    first.wait().code(0);
    until("the runs to be carried out", || (project.read("trace").lines().count() == 4).then_some(()));
}

#[test]
fn a_second_process_works_through_the_first() {
    let project = Project::with(
        "
name: two
pipelines:
  slow: { steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.02; done' } ] }
  quick: { steps: [ { id: q, run: echo quick } ] }
",
    );
    let mut slow = project.start(&["run", "book.yaml", "slow", "--json"]);
    let id = slow.await_run();
    project.await_file("began");
    project.windlass(&["run", "book.yaml", "quick"]).code(0).says("q | quick").says("✔ completed");
    assert_eq!(project.show(&id)["status"], "running");
    project.windlass(&["store", "verify"]).code(0).says("all checked");
    project.windlass(&["store", "compact"]).code(75).warns("LOCK_BUSY").warns("retention");
    project.windlass(&["doctor"]).code(0).says("a process holds it and answers");
    project.write("go", "");
    slow.wait().code(0);
}

#[test]
fn a_long_path_to_the_data_directory_is_no_obstacle() {
    let project = Project::with(
        "
name: long
pipelines:
  p: { steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.02; done' } ] }
",
    );
    // Addresses of sockets have some hundred bytes; directories of projects can have more.
    let deep = format!("{}/data", ["a-directory-with-a-long-name"; 5].join("/"));
    let mut first = project.start(&["run", "book.yaml", "--json", "--data", &deep]);
    let id = first.await_run();
    project.await_file("began");
    let shown = project.windlass(&["show", &id, "--json", "--data", &deep]).code(0).json();
    assert_eq!(shown["status"], "running");
    project.write("go", "");
    assert_eq!(first.wait().code(0).err, "");
}

const TWO: &str = "
name: two
pipelines:
  short: { steps: [ { run: 'echo > began-short; until [ -e go-short ]; do sleep 0.02; done' } ] }
  long:
    steps:
      - { id: charge, effect: at_most_once, run: 'echo charged >> trace; echo > began-long; until [ -e go-long ]; do sleep 0.02; done' }
      - { id: after, run: 'echo after >> trace' }
  plain:
    steps:
      - { id: s, run: 'echo > began-long; until [ -e go-long ]; do sleep 0.02; done; echo \"from attempt $WL_ATTEMPT\"' }
      - { id: after, run: 'echo after >> trace' }
";

#[test]
fn a_process_whose_run_is_over_does_not_disturb_the_steps_of_others() {
    let project = Project::with(TWO);
    let mut first = project.start(&["run", "book.yaml", "short", "--json"]);
    first.await_run();
    project.await_file("began-short");
    let second = project.start(&["run", "book.yaml", "long", "--json"]);
    project.await_file("began-long");
    project.write("go-short", "");
    first.await_line("\"pipeline:completed\"");
    project.write("go-long", "");
    first.wait().code(0);
    assert_eq!(second.wait().code(0).last()["status"], "completed");
    assert_eq!(project.read("trace"), "charged\nafter\n");
}

#[test]
fn a_follower_takes_the_place_of_a_process_that_is_killed() {
    let project = Project::with(TWO);
    let mut first = project.start(&["run", "book.yaml", "short", "--json"]);
    let short = first.await_run();
    project.await_file("began-short");
    let second = project.start(&["run", "book.yaml", "plain"]);
    project.await_file("began-long");
    first.kill();
    project.write("go-long", "");
    // What was interrupted is taken up too, and what is under way of it comes to its end.
    project.write("go-short", "");
    let done = second.wait().code(0).says("s | from attempt 2").says("✔ completed");
    // Nothing is shown a second time by whoever comes next.
    assert_eq!(done.out.matches("s | from attempt 2").count(), 1, "{}", done.out);
    assert_eq!(project.read("trace"), "after\n");
    assert_eq!(project.show(&short)["status"], "completed");
}

#[test]
fn a_request_whose_answer_is_lost_makes_one_run() {
    let project = Project::with(TWO);
    let rounds = 4;
    for _ in 0..rounds {
        project.remove("began-short");
        project.remove("go-short");
        let mut holder = project.start(&["run", "book.yaml", "short", "--json"]);
        holder.await_run();
        project.await_file("began-short");
        let follower = project.start(&["run", "book.yaml", "plain"]);
        // Somewhere between its first request and its last.
        project.await_file("began-long");
        holder.kill();
        project.write("go-long", "");
        project.write("go-short", "");
        follower.wait().code(0);
        project.windlass(&["resume", "--all"]);
        project.remove("began-long");
        project.remove("go-long");
    }
    let listed = project.windlass(&["runs", "--pipeline", "plain", "--json"]).code(0);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), rounds, "{listed:#}");
}
