//! What a runbook says and what is done: strategies, guards, products, calls, conditions, secrets.

use crate::support::{Project, status_of, step, text, until};
use serde_json::json;
use std::process::Command;

#[test]
fn a_strategy_falls_back_where_its_condition_matches() {
    let project = Project::with(
        "
name: strategy
pipelines:
  works:
    steps:
      - id: land
        strategy:
          - { id: fast, run: 'echo not a fast-forward >&2; exit 1', fallback_on: not a fast-forward }
          - { id: rebase, run: 'echo conflict >&2; exit 1', fallback_on: [conflict, timeout] }
          - { id: merge, run: echo merged > trace }
  stops:
    steps:
      - strategy:
          - { run: 'echo something else >&2; exit 1', fallback_on: not a fast-forward }
          - { run: touch never }
  exhausts:
    steps:
      - strategy:
          - { run: exit 1, fallback_on: any }
          - { run: exit 1, fallback_on: any }
",
    );
    let run = project.run(&["works"], 0);
    assert_eq!((status_of(&run, "land"), project.read("trace").as_str()), ("succeeded", "merged\n"));
    assert_eq!((status_of(&run, "fast"), status_of(&run, "merge")), ("failed", "succeeded"));
    project.run(&["stops"], 1);
    assert!(!project.has("never"));
    assert_eq!(project.run(&["exhausts"], 1)["error"]["code"], "STRATEGY_EXHAUSTED");
}

#[test]
fn guards_look_at_files_and_commands() {
    let project = Project::with(
        r#"
name: guards
pipelines:
  file:
    steps:
      - id: s
        run: echo passed
        guard:
          - { file_exists: ready, on_failure: fail }
          - { file_contains: { path: ready, pattern: "yes" }, on_failure: fail }
  command:
    vars: { wanted: { default: "yes" } }
    steps:
      - id: s
        run: echo passed
        guard: [ { command: 'grep -q "$WL_VAR_WANTED" ready', on_failure: fail } ]
  negated:
    steps:
      - id: s
        run: echo passed
        guard: [ { not: { file_exists: stop }, on_failure: fail } ]
  warns:
    steps:
      - { id: s, run: echo passed, guard: [ { file_exists: absent, on_failure: warn } ] }
  after:
    steps:
      - { id: s, run: echo built, guard: { after: [ { file_exists: artifact, on_failure: fail } ] } }
  waits:
    steps:
      - { id: s, run: echo passed, guard: [ { file_exists: late, on_failure: { retry: 50ms, for: 1m } } ] }
"#,
    );
    assert_eq!(project.run(&["file"], 1)["error"]["code"], "GUARD_FAILED");
    project.write("ready", "no\n");
    project.run(&["file"], 1);
    project.run(&["command"], 1);
    project.write("ready", "yes\n");
    project.run(&["file"], 0);
    project.run(&["command"], 0);
    project.run(&["command", "--var", "wanted=other"], 1);
    project.run(&["negated"], 0);
    project.write("stop", "");
    project.run(&["negated"], 1);
    project.run(&["warns"], 0);
    let after = project.run(&["after"], 1);
    assert_eq!((&after["error"]["code"], status_of(&after, "s")), (&json!("GUARD_FAILED"), "failed"));
    let mut waiting = project.start(&["run", "book.yaml", "waits", "--json"]);
    let id = waiting.await_run();
    until("the step to wait for its guard", || {
        project.windlass(&["why", &id]).code(0).out.contains("guard").then_some(())
    });
    project.write("late", "");
    waiting.wait().code(0);
}

fn git(project: &Project, words: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(project.root()).env("GIT_CONFIG_GLOBAL", "/dev/null").args(["-c", "user.name=t"]);
    let done = command.args(["-c", "user.email=t@example.invalid"]).args(words).output().unwrap();
    assert!(done.status.success(), "git {words:?}: {done:?}");
}

#[test]
fn guards_look_at_branches() {
    let project = Project::with(
        "
name: branches
pipelines:
  exists: { steps: [ { run: echo, guard: [ { branch_exists: feature, on_failure: fail } ] } ] }
  clean: { steps: [ { run: echo, guard: [ { branch_clean: main, on_failure: fail } ] } ] }
  merged:
    steps: [ { run: echo, guard: [ { branch_merged: { branch: feature, into: main }, on_failure: fail } ] } ]
",
    );
    // Outside of a repository nobody knows, and unknown is not passed.
    project.run(&["exists"], 1);
    project.write(".gitignore", "/data/\n");
    git(&project, &["init", "--quiet", "--initial-branch", "main"]);
    git(&project, &["add", "."]);
    git(&project, &["commit", "--quiet", "--message", "one"]);
    project.run(&["exists"], 1);
    git(&project, &["switch", "--quiet", "--create", "feature"]);
    git(&project, &["commit", "--quiet", "--allow-empty", "--message", "two"]);
    git(&project, &["switch", "--quiet", "main"]);
    project.run(&["exists"], 0);
    project.run(&["clean"], 0);
    project.run(&["merged"], 1);
    project.write("dirty", "");
    project.run(&["clean"], 1);
    git(&project, &["merge", "--quiet", "feature"]);
    project.run(&["merged"], 0);
}

#[test]
fn foreach_goes_over_lists_and_products() {
    let project = Project::with(
        r#"
name: each
pipelines:
  list:
    steps:
      - { id: names, run: 'echo "{\"names\": [\"a\", \"b\", \"c\"]}" > "$WL_OUTPUT"', outputs: { names: list } }
      - id: each
        foreach: ${{ steps.names.output.names }}
        max_parallel: 3
        run: 'echo "seen=$NAME" > "$WL_OUTPUT"'
        env: { NAME: '${{ item }}' }
        outputs: { seen: string }
      - { id: total, run: 'echo "$ALL" > all', env: { ALL: '${{ toJSON(steps.each.output) }}' } }
  product:
    steps:
      - id: each
        foreach: { os: [linux, mac], arch: [x86, arm] }
        run: echo "$OS-$ARCH" >> matrix
        env: { OS: '${{ item.os }}', ARCH: '${{ item.arch }}' }
  fails:
    steps:
      - { id: each, foreach: [a, b, c], run: 'echo "$X" >> tried; [ "$X" != b ]', env: { X: '${{ item }}' } }
  goes_on:
    steps:
      - { id: each, foreach: [a, b, c], fail_fast: false, run: 'echo "$X" >> went; [ "$X" != b ]', env: { X: '${{ item }}' } }
"#,
    );
    project.run(&["list"], 0);
    for name in ["a", "b", "c"] {
        assert!(project.read("all").contains(&format!(r#""seen":"{name}""#)), "{}", project.read("all"));
    }
    project.run(&["product"], 0);
    let matrix = project.read("matrix");
    let mut pairs: Vec<&str> = matrix.lines().collect();
    pairs.sort_unstable();
    assert_eq!(pairs, ["linux-arm", "linux-x86", "mac-arm", "mac-x86"]);
    project.run(&["fails"], 1);
    assert_eq!(project.read("tried"), "a\nb\n");
    project.run(&["goes_on"], 1);
    assert_eq!(project.read("went"), "a\nb\nc\n");
}

#[test]
fn a_call_runs_a_child_and_gets_its_outputs() {
    let project = Project::with(
        r#"
name: calls
pipelines:
  parent:
    outputs: { answer: '${{ steps.child.output.answer }}' }
    steps:
      - { id: child, call: child, vars: { n: '${{ 20 + 1 }}' } }
  child:
    vars: { n: { type: number, required: true } }
    outputs: { answer: '${{ steps.double.output.answer }}' }
    steps:
      - { id: double, run: 'echo "{\"answer\": $((WL_VAR_N * 2))}" > "$WL_OUTPUT"', outputs: { answer: number } }
  careless:
    steps:
      - { id: child, call: broken }
  broken:
    steps: [ { run: exit 3 } ]
"#,
    );
    let run = project.run(&["parent"], 0);
    assert_eq!(run["result"], json!({ "answer": 42 }));
    let child = project.show(text(step(&run, "child"), "child_run"));
    assert_eq!((&child["status"], &child["parent_run"]), (&json!("completed"), &run["id"]));
    assert_eq!(child["trigger"]["source"], "call");
    let run = project.run(&["careless"], 1);
    assert_eq!(project.show(text(step(&run, "child"), "child_run"))["status"], "failed");
}

#[test]
fn a_false_condition_skips_and_the_run_is_completed() {
    let project = Project::with(
        "
name: when
pipelines:
  p:
    vars: { env: { default: test } }
    steps:
      - { id: probe, run: 'echo risky=no > \"$WL_OUTPUT\"', outputs: { risky: string } }
      - { id: prod, when: vars.env == 'prod', run: touch prod }
      - { id: risky, when: '${{ steps.probe.output.risky == \"yes\" }}', run: touch risky }
      - { id: safe, when: steps.probe.output.risky == 'no' && steps.prod.status == 'skipped', run: touch safe }
",
    );
    let run = project.run(&[], 0);
    let statuses = ["prod", "risky", "safe"].map(|id| status_of(&run, id));
    assert_eq!(statuses, ["skipped", "skipped", "succeeded"]);
    assert!(!project.has("prod") && !project.has("risky") && project.has("safe"));
    assert_eq!(status_of(&project.run(&["--var", "env=prod"], 0), "prod"), "succeeded");
}

#[test]
fn secrets_reach_the_step_and_nothing_else() {
    const SECRET: &str = "hunter2-correct-horse-battery";
    let project = Project::with(
        r#"
name: secrets
pipelines:
  p:
    steps:
      - id: leak
        run: |
          [ "$(printf %s "$TOKEN" | tr a-z n-za-m)" = uhagre2-pbeerpg-ubefr-onggrel ]
          echo "token $TOKEN"
          echo "again $TOKEN" >&2
          printf %s "$TOKEN" | base64
          echo "seen=$TOKEN" > "$WL_OUTPUT"
          env | grep -c WINDLASS_SECRET || true
        env: { TOKEN: '${{ secrets.X }}' }
      - { id: fail, run: 'echo "it was $TOKEN" >&2; exit 1', env: { TOKEN: '${{ secrets.X }}' } }
"#,
    )
    .env("WINDLASS_SECRET_X", SECRET);
    let run = project.windlass(&["run", "book.yaml", "--json"]).code(1);
    assert!(!run.out.contains(SECRET) && !run.err.contains(SECRET), "{run:?}");
    let id = project.newest();
    let logs = project.windlass(&["logs", &id]).code(0).says("leak | token ").says("leak | 0");
    assert!(!logs.out.contains(SECRET), "{}", logs.out);
    // Nor in any file of the data directory, plain or in base64.
    let mut grep = Command::new("grep");
    grep.args(["--recursive", "--binary-files=text", "--files-with-matches", "--regexp", SECRET]);
    grep.args(["--regexp", "aHVudGVyMi1jb3JyZWN0LWhvcnNlLWJhdHRlcnk"]).arg(project.path("data"));
    let found = grep.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the secret is on the disk");
}

#[test]
fn a_secret_that_is_not_there_fails_the_step_and_says_what_to_set() {
    let project = Project::with(
        "
name: secrets
pipelines:
  p: { steps: [ { id: s, run: touch trace, env: { TOKEN: '${{ secrets.X }}' } } ] }
",
    );
    let run = project.run(&[], 1);
    assert!(text(&run["error"], "message").contains("set WINDLASS_SECRET_X"), "{run}");
    assert!(!project.has("trace"));
}

#[test]
fn steps_see_only_what_they_are_given() {
    let project = Project::with(
        r#"
name: env
defaults: { env: { SHARED: file, OVER: file } }
pipelines:
  p:
    env: { OVER: pipeline }
    vars: { my_var: { default: x } }
    steps:
      - { id: s, run: env | sort > env.txt, env: { OWN: '${{ run.id }}' } }
      - { id: where, dir: sub, run: pwd > ../where, shell: sh }
"#,
    )
    .env("WINDLASS_TOKEN_OF_SOMEBODY", "1")
    .env("UNRELATED", "1");
    std::fs::create_dir(project.path("sub")).unwrap();
    let run = project.run(&[], 0);
    let env = project.read("env.txt");
    for line in [
        "SHARED=file",
        "OVER=pipeline",
        "WL_VAR_MY_VAR=x",
        "WL_STEP_ID=s",
        "WL_ATTEMPT=1",
        "WL_EPOCH=1",
        &format!("OWN={}", text(&run, "id")),
        &format!("WL_RUN_ID={}", text(&run, "id")),
        &format!("WL_IDEMPOTENCY_KEY={}", text(step(&run, "s"), "idempotency_key")),
    ] {
        assert!(env.lines().any(|found| found == line), "{line} is not in\n{env}");
    }
    assert!(!env.contains("WINDLASS") && !env.contains("UNRELATED"), "{env}");
    assert!(project.read("where").ends_with("/sub\n"));
}

#[test]
fn a_step_reads_its_own_run_with_what_it_was_given_and_no_other() {
    let windlass = env!("CARGO_BIN_EXE_windlass");
    let book = format!(
        "
name: self
pipelines:
  p:
    vars: {{ other: {{ default: none }} }}
    steps:
      - id: look
        outputs: {{ status: string }}
        run: |
          ask() {{ '{windlass}' --server \"$WL_SERVER\" --token \"$WL_TOKEN\" show \"$1\" --json; }}
          case \"$WL_SERVER\" in unix:*) ;; *) exit 3 ;; esac
          if test \"$WL_VAR_OTHER\" != none; then ask \"$WL_VAR_OTHER\" && exit 4; fi
          ask \"$WL_RUN_ID\" | grep -o '\"status\": *\"running\"' | head -n 1 > seen
          test -s seen && echo '{{\"status\": \"seen\"}}' > \"$WL_OUTPUT\"
"
    );
    let project = Project::with(&book);
    let first = project.run(&[], 0);
    assert_eq!(first["steps"][0]["output"]["status"], "seen");
    project.run(&["--var", &format!("other={}", text(&first, "id"))], 0);
}
