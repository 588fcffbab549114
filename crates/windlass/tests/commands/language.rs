//! What the language promises where steps fail, are skipped or are not reached.

use crate::support::{Project, status_of, step};
use serde_json::json;

#[test]
fn an_expression_can_ask_about_every_step_whatever_became_of_it() {
    let project = Project::with(
        r#"
name: asks
pipelines:
  default:
    steps:
      - { id: silent, run: 'true' }
      - { id: skipped, when: 'false', run: 'true' }
      - { id: group, when: 'false', steps: [ { id: inner, run: 'true' } ] }
      - { id: asked, when: '!has(steps.silent.output.x) && !has(steps.skipped.output.x)', run: exit 1 }
      - { id: unreached, run: 'true' }
    finally:
      - id: report
        when: '!has(steps.unreached.output.x) && has(steps.unreached.status)'
        run: echo "$S" > report
        env: { S: '${{ steps.unreached.status }} ${{ steps.inner.status }} ${{ steps.skipped.status }} ${{ steps.asked.status }}' }
  wants:
    steps:
      - { id: silent, run: 'true' }
      - { run: 'true', env: { X: '${{ steps.silent.output.x }}' } }
"#,
    );
    let run = project.run(&["default"], 1);
    assert_eq!(status_of(&run, "asked"), "failed");
    assert_eq!(
        (status_of(&run, "report"), project.read("report").as_str()),
        ("succeeded", "pending pending skipped failed\n")
    );
    let run = project.run(&["wants"], 1);
    assert_eq!(run["error"]["code"], "EXPRESSION_FAILED");
    assert!(run["error"]["message"].as_str().unwrap().contains("there is no `x`"), "{run}");
}

#[test]
fn a_strategy_passes_over_approaches_that_are_skipped() {
    let project = Project::with(
        "
name: skips
pipelines:
  next:
    steps:
      - id: s
        strategy:
          - { id: one, when: 'false', run: touch one }
          - { id: two, run: touch two }
  none:
    steps:
      - id: s
        strategy:
          - { when: 'false', run: touch never }
          - { when: 'false', run: touch never }
  failed:
    steps:
      - id: s
        strategy:
          - { run: 'echo boom >&2; exit 1', fallback_on: any }
          - { when: 'false', run: touch never }
",
    );
    let run = project.run(&["next"], 0);
    assert_eq!((status_of(&run, "one"), status_of(&run, "two")), ("skipped", "succeeded"));
    assert!(project.has("two"));
    let run = project.run(&["none"], 1);
    assert_eq!(
        run["error"],
        json!({ "code": "STRATEGY_EXHAUSTED", "message": "every approach was skipped" })
    );
    let run = project.run(&["failed"], 1);
    assert_eq!(run["error"]["code"], "STRATEGY_EXHAUSTED");
    assert!(run["error"]["message"].as_str().unwrap().contains("boom"), "{run}");
    assert!(!project.has("never"));
}

#[test]
fn a_called_run_that_is_killed_does_not_hide_what_went_wrong() {
    let project = Project::with(
        "
name: kills
pipelines:
  default:
    steps:
      - id: p
        fail_fast: kill
        parallel:
          - { id: child, call: endless }
          - { id: cause, wait: { event: never, timeout: 50ms } }
  endless:
    steps: [ { wait: 1h } ]
",
    );
    let run = project.run(&["default"], 1);
    assert_eq!((status_of(&run, "child"), status_of(&run, "cause")), ("cancelled", "failed"));
    assert_eq!(run["error"]["code"], step(&run, "cause")["error"]["code"]);
    assert_ne!(run["error"]["code"], "CANCELLED");
}

#[test]
fn the_code_of_a_called_runs_error_comes_through() {
    let project = Project::with(
        "
name: codes
pipelines:
  slow:
    deadline: 50ms
    steps: [ { wait: 1h } ]
  picky:
    vars: { n: { type: int, required: true } }
    steps: [ { run: 'true' } ]
  falls:
    steps:
      - strategy:
          - { id: slow, call: slow, fallback_on: timeout }
          - { id: other, run: touch other }
  fails:
    vars: { n: { default: text } }
    steps: [ { id: c, call: picky, vars: { n: '${{ vars.n }}' } } ]
",
    );
    let run = project.run(&["falls"], 0);
    assert_eq!(step(&run, "slow")["error"]["code"], "TIMED_OUT");
    assert!(project.has("other"));
    let run = project.run(&["fails"], 1);
    assert_eq!(
        run["error"],
        json!({ "code": "INVALID_INPUT", "message": "the variable `n` is not an integer" })
    );
}

#[test]
fn a_run_shows_what_it_took_back() {
    let project = Project::with(
        "
name: log
pipelines:
  default:
    steps:
      - { id: a, run: 'true', compensate: { id: undo-a, run: 'true' } }
      - { id: b, run: 'true', compensate: { id: undo-b, run: 'exit 3' } }
      - { run: exit 1 }
  plain:
    steps: [ { run: 'true' } ]
",
    );
    let run = project.run(&["default"], 1);
    let log = run["compensation_log"].as_array().unwrap();
    let brief: Vec<_> = log.iter().map(|one| (&one["step"], &one["compensates"], &one["status"])).collect();
    assert_eq!(json!(brief), json!([["undo-b", "b", "failed"], ["undo-a", "a", "succeeded"]]));
    assert_eq!((log[0]["error"]["code"].as_str(), log[1].get("error")), (Some("STEP_FAILED"), None));
    assert!(log.iter().all(|one| one["at"].as_str().unwrap().ends_with('Z')), "{run}");
    assert_eq!(project.run(&["plain"], 0).get("compensation_log"), None);
}

#[test]
fn a_step_does_not_wait_for_a_lock_that_its_own_run_holds() {
    let project = Project::with(
        "
name: own
pipelines:
  whole:
    vars: { name: { default: a } }
    lock: a
    steps: [ { id: s, lock: '${{ vars.name }}', run: 'true' } ]
  group:
    vars: { name: { default: a } }
    steps: [ { id: g, lock: '${{ vars.name }}', steps: [ { id: s, lock: a, run: 'true' } ] } ]
",
    );
    for (pipeline, holder) in
        [("whole", "the run itself holds the lock `a`"), ("group", "`g` around it holds")]
    {
        let run = project.run(&[pipeline], 1);
        assert_eq!(step(&run, "s")["error"]["code"], "LOCK_BUSY", "{run}");
        assert!(run["error"]["message"].as_str().unwrap().starts_with(holder), "{run}");
        project.run(&[pipeline, "--var", "name=b"], 0);
    }
}

#[test]
fn a_foreach_that_fails_still_tells_what_succeeded() {
    let project = Project::with(
        r#"
name: partial
pipelines:
  default:
    vars: { go_on: { type: bool, default: true } }
    steps:
      - id: each
        foreach: [1, 2, 3]
        fail_fast: false
        run: test "$N" != 2 && echo "{\"n\":$N}"
        env: { N: '${{ item }}' }
    finally:
      - { run: 'echo "$R" > report', env: { R: '${{ toJSON(steps.each.output) }}' } }
  fast:
    steps:
      - id: each
        foreach: [1, 2, 3]
        run: test "$N" != 2 && echo "{\"n\":$N}"
        env: { N: '${{ item }}' }
    finally:
      - { run: 'echo "$R" > report', env: { R: '${{ toJSON(steps.each.output) }}' } }
"#,
    );
    for (pipeline, wanted) in
        [("default", json!([{ "n": 1 }, null, { "n": 3 }])), ("fast", json!([{ "n": 1 }, null, null]))]
    {
        let run = project.run(&[pipeline], 1);
        let report: serde_json::Value = serde_json::from_str(&project.read("report")).unwrap();
        assert_eq!((&step(&run, "each")["output"], &report), (&wanted, &wanted), "{pipeline}");
    }
}

#[test]
fn lines_of_output_are_read_as_what_is_declared() {
    let project = Project::with(
        r#"
name: typed
pipelines:
  reads:
    steps:
      - id: s
        run: printf 'n=3\nok=true\nnames=["a"]\ntext=5\n' > "$WL_OUTPUT"
        outputs: { n: int, ok: bool, names: list, text: string }
      - { id: more, when: steps.s.output.n + 1 == 4, run: 'true' }
  wrong:
    steps:
      - { id: s, run: 'echo n=many > "$WL_OUTPUT"', outputs: { n: int } }
"#,
    );
    let run = project.run(&["reads"], 0);
    assert_eq!(step(&run, "s")["output"], json!({ "n": 3, "ok": true, "names": ["a"], "text": "5" }));
    assert_eq!(status_of(&run, "more"), "succeeded");
    let run = project.run(&["wrong"], 1);
    assert!(run["error"]["message"].as_str().unwrap().contains("with what reads as an integer"), "{run}");
}

#[test]
fn a_guard_that_only_warns_is_seen() {
    let project = Project::with(
        "
name: warns
pipelines:
  default:
    steps:
      - { id: s, run: echo passed, guard: [ { file_exists: absent, on_failure: warn } ] }
",
    );
    project.windlass(&["run", "book.yaml"]).code(0).says("s | warning: the guard `").says("does not hold");
    assert!(!project.windlass(&["run", "book.yaml", "--quiet"]).code(0).out.contains("warning"));
}

#[test]
fn a_dry_run_says_which_secrets_are_missing() {
    let project = Project::with(
        "
name: needs
pipelines:
  default:
    steps:
      - { id: s, run: 'true', env: { A: '${{ secrets.THERE }}', B: '${{ secrets.ABSENT }}' } }
",
    )
    .env("WINDLASS_SECRET_THERE", "value-of-it");
    let plan = project.windlass(&["run", "book.yaml", "--dry-run", "--json"]).code(0).json();
    assert_eq!(plan["steps"][0]["secrets"], json!(["THERE", "ABSENT"]));
    assert_eq!(plan["steps"][0]["missing_secrets"], json!(["ABSENT"]));
    let shown = project.windlass(&["run", "book.yaml", "--dry-run"]).code(0).says("missing secret: ABSENT");
    assert!(!shown.out.contains("missing secret: THERE") && !shown.out.contains("value-of-it"));
}

#[test]
fn maps_have_one_order_in_every_process() {
    let hosts: String = (0..20).rev().map(|n| format!("h{n:02}: {{ z: 1, a: {n} }}, ")).collect();
    let project = Project::with(&format!(
        r#"
name: det
pipelines:
  default:
    vars: {{ m: {{ type: map, default: {{ {hosts} }} }} }}
    steps:
      - id: say
        run: 'printf "%s\n" "$A" "$B" "$C" "$D" >> said'
        env:
          A: '${{{{ toJSON(vars) }}}}'
          B: 'text ${{{{ vars.m }}}}'
          C: '${{{{ vars.m.map(k, k).join() }}}}'
          D: '${{{{ hash(toJSON(vars)) }}}}'
"#
    ));
    for _ in 0..6 {
        project.run(&[], 0);
    }
    let said = project.read("said");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 24);
    for times in lines.chunks(4) {
        assert_eq!(times, &lines[..4]);
    }
    assert!(lines[0].starts_with(r#"{"m":{"h00":{"a":0,"z":1},"h01":"#), "{}", lines[0]);
}

#[test]
fn a_retry_over_a_map_does_what_failed_and_nothing_twice() {
    let project = Project::with(
        r#"
name: hosts
pipelines:
  default:
    vars: { hosts: { type: map, default: { gamma: 3, alpha: 1, epsilon: 5, beta: 2, delta: 4 } } }
    steps:
      - id: each
        foreach: '${{ vars.hosts.map(k, k) }}'
        fail_fast: false
        run: '[ "$H" != gamma ] || [ -e fixed ] || exit 1; echo "$H" >> done'
        env: { H: '${{ item }}' }
"#,
    );
    for n in 0..3 {
        let failed = project.run(&[], 1);
        project.write("fixed", "");
        project.windlass(&["retry", failed["id"].as_str().unwrap()]).code(0);
        assert_eq!(project.read("done"), "alpha\nbeta\ndelta\nepsilon\ngamma\n", "try {n}");
        project.remove("fixed");
        project.remove("done");
    }
}
