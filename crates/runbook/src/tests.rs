//! What runbooks become: the examples as written, every kind and modifier, and bounds.

use super::*;
use serde_json::{Value, json};
use windlass_core::runbook::{Compensate, Node as StepNode, Pipeline};

fn read(text: &str) -> Loaded {
    parse("test.yaml", text, &(), &Described::NONE).unwrap_or_else(|problems| panic!("{problems}"))
}

fn refused(text: &str) -> String {
    match parse("test.yaml", text, &(), &Described::NONE) {
        Ok(_) => panic!("this was taken:\n{text}"),
        Err(problems) => problems.to_string(),
    }
}

/// A pipeline with these steps, one line each.
fn with_steps(steps: &str) -> String {
    let steps: String = steps.lines().map(|line| format!("      {line}\n")).collect();
    format!(
        "name: t\nagents: {{ coder: {{ command: [sh] }} }}\npipelines:\n  p:\n    vars: {{ v: {{}} }}\n    steps:\n{steps}"
    )
}

fn pipeline(steps: &str) -> Pipeline {
    read(&with_steps(steps)).runbook.pipelines["p"].clone()
}

fn ids(pipeline: &Pipeline) -> Vec<&str> {
    pipeline.nodes.iter().map(|node| node.id.as_str()).collect()
}

fn as_json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn the_examples_parse_as_written() {
    let triage = read(include_str!("../tests/golden/examples/triage.yaml")).runbook;
    let p = &triage.pipelines["triage"];
    assert_eq!(ids(p), ["parallel-1", "disk", "log", "cause", "resolve", "slack.post"]);
    assert_eq!((&p.steps[..], &p.on_failure[..]), (&[0, 3, 4][..], &[5][..]));
    let resolve = as_json(&p.nodes[4]);
    assert_eq!(resolve["kind"]["tool"]["operation"], "update");
    assert_eq!(
        resolve["kind"]["tool"]["target"],
        json!({ "text": [{ "literal": "incident" }, { "literal": "/" }, { "expr": "vars.ticket" }] })
    );
    assert_eq!(resolve["key_scope"], "tenant");
    let trigger = as_json(&triage.triggers["p1"]);
    assert_eq!(
        (&trigger["source"], &trigger["when"]),
        (&json!("servicenow"), &json!("event.priority in [\"1\", \"2\"]"))
    );

    let bugs = read(include_str!("../tests/golden/examples/bugs.yaml")).runbook;
    let p = &bugs.pipelines["fix"];
    assert_eq!(ids(p), ["code", "land", "git.merge", "git.merge-2", "steps-1", "agent-1", "git.merge-3"]);
    assert_eq!(p.budget.unwrap().usd_micros, Some(10_000_000));
    assert_eq!(as_json(&bugs.queues["bugs"])["max_attempts"], 3);
    assert_eq!(
        as_json(&bugs.agents["coder"])["on"],
        json!({ "idle": { "gate": "./test" }, "dead": { "restart": 2 }, "stuck": "escalate" })
    );

    let rotate = read(include_str!("../tests/golden/examples/rotate-keys.yaml")).runbook;
    let (all, one) = (&rotate.pipelines["all"], &rotate.pipelines["one"]);
    assert_eq!(ids(all), ["list", "each", "step-1"]);
    assert_eq!(all.nodes[1].compensate, Compensate::Exempt);
    assert_eq!(all.nodes[1].foreach.as_ref().unwrap().max_parallel, 5);
    assert_eq!(ids(one), ["issue", "undo-issue", "install", "undo-install", "verify"]);
    assert_eq!(one.nodes[0].compensate, Compensate::With(1));
    assert_eq!(one.steps, [0, 2, 4]);
    assert_eq!(one.nodes[4].retry.max_attempts, Some(3));
    assert_eq!(rotate.schedules["nightly"].spec, "0 2 * * *");
}

#[test]
fn groups_stand_before_their_members() {
    let p = pipeline(
        "- parallel:\n    - steps: [{ run: a }, { run: b }]\n      compensate: { run: undo }\n    - { id: x, run: c }\n- run: d",
    );
    assert_eq!(ids(&p), ["parallel-1", "steps-1", "step-1", "step-2", "undo-steps-1", "x", "step-3"]);
    assert_eq!(p.nodes[0].kind.members(), [1, 5]);
    assert_eq!(p.nodes[1].kind.members(), [2, 3]);
    assert_eq!(p.nodes[1].compensate, Compensate::With(4));
    assert_eq!(p.steps, [0 as StepNode, 6]);
}

#[test]
fn made_up_names_avoid_given_ones() {
    let p = pipeline(
        "- run: a\n- { id: step-2, run: b }\n- run: c\n- { id: http, run: d }\n- http: { url: 'http://localhost' }",
    );
    assert_eq!(ids(&p), ["step-1", "step-2", "step-3", "http", "http-2"]);
}

#[test]
fn defaults_the_pipeline_and_groups_are_merged_into_steps() {
    let text = "
name: t
defaults: { env: { A: '1', B: '1', C: '1', D: '1' }, dir: /d, shell: sh, timeout: 1m, retry: 2 }
agents: { coder: { command: [sh] } }
pipelines:
  p:
    env: { B: '2', C: '2', D: '2' }
    steps:
      - env: { C: '3', D: '3' }
        dir: /g
        steps:
          - { run: a, env: { D: '4' }, timeout: 2m, compensate: { run: undo } }
          - { agent: coder, prompt: x }
      - transform: { value: 1 }
      - { wait: 1s }
";
    let p = read(text).runbook.pipelines["p"].clone();
    let run = as_json(&p.nodes[1]);
    let literal = |text: &str| json!({ "literal": text });
    assert_eq!(
        run["env"],
        json!({ "A": literal("1"), "B": literal("2"), "C": literal("3"), "D": literal("4") })
    );
    assert_eq!(
        (&run["dir"], &run["shell"], &run["timeout"]),
        (&literal("/g"), &json!("sh"), &json!(120_000))
    );
    assert_eq!(run["retry"]["max_attempts"], 2);
    let undo = as_json(&p.nodes[2]);
    assert_eq!(undo["env"]["D"], literal("2"), "a compensation stands outside of what it takes back");
    assert_eq!(undo["dir"], literal("/d"));
    let tool = as_json(&p.nodes[4]);
    assert_eq!((tool.get("env"), &tool["timeout"]), (None, &json!(60_000)));
    assert_eq!(as_json(&p.nodes[5]).get("timeout"), None);
}

#[test]
fn every_kind_and_modifier_is_read() {
    let text = "
name: t
agents: { coder: { command: [sh] } }
semaphores: { builders: { capacity: 4 } }
locks: { merge: { max_hold_duration: 1h } }
pipelines:
  p:
    vars: { v: { type: string, default: x } }
    outputs: { o: '${{ steps.a.output.x }}' }
    lock: { name: 'l-${{ vars.v }}', overlap: queue }
    deadline: 1d
    needs: [other]
    workspace: { git: ., base: main, branch: 'b/${{ vars.v }}', keep: never }
    steps:
      - id: a
        run: ./a
        when: vars.v == 'x'
        foreach: { os: [a, b], v: '${{ [vars.v] }}' }
        max_parallel: 3
        fail_fast: false
        retry: { max_attempts: 3, backoff: [1s, 5s], on: [timeout, refused] }
        timeout: 90s
        lock: { name: merge, overlap: skip }
        semaphore: { name: builders, weight: 2 }
        effect: idempotent
        idempotency_key: k-${{ item.os }}
        key_scope: tenant
        risk: high
        checkpoint: { resumable: true }
        env: { TOKEN: '${{ secrets.TOKEN }}', N: 3, T: true }
        dir: sub
        shell: python3
        runs_on: [linux, gpu]
        outputs: { x: string, y: int }
      - { tool: slack.post, with: { channel: '#c', text: hi } }
      - { approve: 'Go?' }
      - { risk: high, approve: { message: 'Go ${{ vars.v }}?', approvers: [sre], count: 2, expires: 30m } }
      - { wait: 1h30m }
      - { wait: { event: deployed, key: '${{ vars.v }}', timeout: 1d, on_timeout: continue } }
      - parallel: [{ run: x }, { run: y }]
        fail_fast: kill
      - strategy:
          - { id: s1, run: x, fallback_on: any }
          - { run: y, fallback_on: [timeout, 'no route'] }
          - { http: { url: 'http://localhost', method: POST, bearer: '${{ secrets.T }}', json: { a: ['${{ vars.v }}'] } } }
      - { call: other }
  other: { steps: [{ run: 'true' }] }
";
    let loaded = read(text);
    let p = as_json(&loaded.runbook.pipelines["p"]);
    let a = &p["nodes"][0];
    assert_eq!(
        a["foreach"]["over"],
        json!({ "map": { "os": { "literal": ["a", "b"] }, "v": { "expr": "[vars.v]" } } })
    );
    assert_eq!((&a["foreach"]["max_parallel"], &a["foreach"]["fail_fast"]), (&json!(3), &json!(false)));
    assert_eq!(
        a["retry"],
        json!({ "max_attempts": 3, "backoff": [1000, 5000], "on": ["timeout", "refused"] })
    );
    assert_eq!(
        a["env"],
        json!({ "N": { "literal": 3 }, "T": { "literal": true }, "TOKEN": { "secret": "TOKEN" } })
    );
    assert_eq!(
        (&a["effect"], &a["risk"], &a["key_scope"]),
        (&json!("idempotent"), &json!("high"), &json!("tenant"))
    );
    assert_eq!(a["checkpoint"], json!({ "resumable": true }));
    assert_eq!(a["outputs"], json!({ "x": "string", "y": "integer" }));
    assert_eq!(a["semaphore"], json!({ "name": { "literal": "builders" }, "weight": 2 }));
    let post = &p["nodes"][1]["kind"]["tool"];
    assert_eq!((&post["target"], &post["writes"]), (&json!({ "literal": "#c" }), &json!(true)));
    assert_eq!(p["nodes"][2]["kind"]["approve"]["expires"], 3_600_000);
    assert_eq!(p["nodes"][3]["kind"]["approve"]["tier"], "high");
    assert_eq!(p["nodes"][4]["kind"]["wait"]["wait"], json!({ "time": { "span": 5_400_000 } }));
    assert_eq!(p["nodes"][5]["kind"]["wait"]["wait"]["event"]["continue_on_timeout"], true);
    assert_eq!(p["nodes"][6]["kind"]["parallel"]["fail_fast"], "kill");
    let approaches = &p["nodes"][9]["kind"]["strategy"]["approaches"];
    assert_eq!(approaches[0]["approach"], json!({ "name": "s1", "fallback_on": ["any_error"] }));
    assert_eq!(approaches[1]["approach"]["fallback_on"], json!(["timeout", { "error": "no route" }]));
    let http = &p["nodes"][12]["kind"]["tool"];
    assert_eq!((&http["operation"], &http["writes"]), (&json!("post"), &json!(true)));
    assert_eq!(http["with"]["map"]["bearer"], json!({ "secret": "T" }));
    assert_eq!(p["outputs"]["o"], json!({ "expr": "steps.a.output.x" }));
    assert_eq!(p["workspace"]["keep"], "never");
    // The definition is what is stored: it must read back.
    assert_eq!(serde_json::from_value::<Runbook>(as_json(&loaded.runbook)).unwrap(), loaded.runbook);
}

#[test]
fn every_guard_condition_is_read() {
    let run = "run_00000000000000000000000007";
    let text = format!(
        "
- run: x
  guard:
    before:
      - {{ lock_free: merge, on_failure: warn, name: quiet }}
      - {{ lock_held: {{ lock: merge, by: 'worker:w' }}, on_failure: {{ retry: 30s, for: 1h }} }}
      - {{ semaphore_available: {{ semaphore: s, slots: 3 }}, on_failure: {{ fail: no room }} }}
      - {{ issues_complete: {{ labels: [a, b], milestone: m }}, on_failure: fail }}
      - no_blocked_issues: {{ ids: ['7'] }}
      - branch_exists: main
      - branch_clean: {{ branch: main }}
      - branch_merged: {{ branch: f, into: main }}
      - file_exists: a.txt
      - file_contains: {{ path: a.txt, pattern: ok }}
      - pipeline_in_phase: {{ pipeline: {run}, phase: deploy }}
      - pipeline_complete: {run}
      - all: [{{ any: [{{ file_exists: a }}, {{ not: {{ lock_free: l }} }}] }}]
    after:
      - command: ./check
      - {{ command: {{ cmd: ./check, expect_success: false }} }}"
    );
    let p = pipeline(text.trim_start());
    let step = as_json(&p.nodes[0]);
    let conditions: Vec<&Value> =
        step["before"].as_array().unwrap().iter().map(|guard| &guard["condition"]).collect();
    assert_eq!(*conditions[0], json!({ "lock_free": { "lock": "merge" } }));
    assert_eq!(*conditions[1], json!({ "lock_held": { "lock": "merge", "by": "worker:w" } }));
    assert_eq!(*conditions[2], json!({ "semaphore_available": { "semaphore": "s", "slots": 3 } }));
    assert_eq!(
        *conditions[3],
        json!({ "issues_complete": { "filter": { "labels": ["a", "b"], "milestone": "m" } } })
    );
    assert_eq!(*conditions[6], json!({ "branch_clean": { "branch": "main" } }));
    assert_eq!(*conditions[10], json!({ "pipeline_in_phase": { "pipeline": run, "phase": "deploy" } }));
    assert_eq!(
        *conditions[12],
        json!({ "all": [{ "any": [{ "file_exists": { "path": "a" } }, { "not": { "lock_free": { "lock": "l" } } }] }] })
    );
    let actions: Vec<&Value> =
        step["before"].as_array().unwrap().iter().map(|guard| &guard["on_failure"]).collect();
    assert_eq!((actions[0], actions[4]), (&json!("warn"), &json!("block")));
    assert_eq!(*actions[1], json!({ "retry": { "delay": 30_000, "give_up": 3_600_000 } }));
    assert_eq!(*actions[2], json!({ "fail": { "message": "no room" } }));
    assert_eq!(step["before"][0]["name"], "quiet");
    assert_eq!(
        step["after"][1]["condition"],
        json!({ "command": { "cmd": "./check", "expect_success": false } })
    );
}

#[test]
fn where_a_step_is_over_it_can_be_referred_to() {
    for fine in [
        "- { id: a, run: x }\n- { run: y, env: { A: '${{ steps.a.output }}' } }",
        "- parallel: [{ id: a, run: x }, { id: b, run: y }]\n- { run: z, when: steps.a.output.n > 1 }",
        "- { id: a-b, run: x }\n- { run: y, when: 'steps[\"a-b\"].status == \"succeeded\"' }",
        "- { id: each, foreach: [1], steps: [{ id: a, run: x }, { run: y, env: { A: '${{ steps.a.output }} ${{ item }}' } }] }\n- { run: z, env: { A: '${{ toJSON(steps.each.output) }}' } }",
        "- { id: a, run: x, compensate: { run: y, env: { A: '${{ output.n }}', B: '${{ steps.b.output }}' } } }\n- { id: b, run: z }",
        "- { foreach: [1], run: x, env: { A: '${{ item }}' }, compensate: { run: y, env: { A: '${{ item }}' } } }",
    ] {
        pipeline(fine);
    }
    for (wrong, message) in [
        ("- { run: y, env: { A: '${{ steps.a.output }}' } }\n- { id: a, run: x }", "comes later"),
        ("- parallel: [{ id: a, run: x }, { run: y, when: steps.a.output.n > 1 }]", "side by side"),
        ("- { id: a, steps: [{ run: y, when: steps.a.output.n > 1 }] }", "around this step"),
        ("- { id: a, run: y, when: steps.a.output.n > 1 }", "refer to itself"),
        (
            "- { id: each, foreach: [1], steps: [{ id: a, run: x }] }\n- { run: z, when: steps.a.output.n > 1 }",
            "once for each item",
        ),
        (
            "- { id: a, run: x, compensate: { id: u, run: y } }\n- { run: z, when: steps.u.output.n > 1 }",
            "is a compensation",
        ),
        ("- { run: z, when: item > 1 }", "where a `foreach` is around"),
        ("- { run: z, foreach: '${{ item }}' }", "where a `foreach` is around"),
        ("- { run: z, when: error.code == 'x' }", "after a failure"),
        ("- { run: z, when: output.code == 'x' }", "in a compensation"),
        ("- { run: z, when: event.code == 'x' }", "in a trigger"),
        ("- { id: a-b, run: x }\n- { run: z, when: steps.a-b.output.x > 1 }", "with a dash"),
        ("- { id: a, run: x }\n- { run: z, when: steps.a.ouput.x > 1 }", "a step has no `ouput`"),
        ("- { run: z, when: run.name == 'x' }", "`run` has no `name`"),
        ("- { run: z, when: run.status == 'failed' }", "only known when the steps are done"),
    ] {
        let problems = refused(&with_steps(wrong));
        assert!(problems.contains(message), "{wrong}\n{problems}");
    }
}

#[test]
fn secrets_are_references_and_stand_only_where_nothing_is_recorded() {
    let p = pipeline(
        "- { run: x, env: { A: '${{ secrets.A }}', B: '${{ secrets[\"b-c\"] }}' } }\n- http: { url: 'http://localhost', headers: { X: '${{ secrets.A }}' } }",
    );
    let env = as_json(&p.nodes[0].env);
    assert_eq!(env, json!({ "A": { "secret": "A" }, "B": { "secret": "b-c" } }));
    assert_eq!(
        as_json(&p.nodes[1])["kind"]["tool"]["with"]["map"]["headers"],
        json!({ "map": { "X": { "secret": "A" } } })
    );
    for wrong in [
        "- { run: x, env: { A: '${{ secrets.A + \"x\" }}' } }",
        "- { run: x, env: { A: '${{ secrets }}' } }",
        "- { run: x, env: { A: '${{ toJSON(secrets.A) }}' } }",
        "- { run: x, env: { A: 'x${{ secrets.A }}' } }",
        "- { run: x, when: secrets.A == 'x' }",
        "- { run: x, dir: '${{ secrets.A }}' }",
        "- { run: x, idempotency_key: '${{ secrets.A }}' }",
        "- { run: x, foreach: '${{ secrets.A }}' }",
        "- { run: x, lock: '${{ secrets.A }}' }",
        "- { approve: '${{ secrets.A }}' }",
        "- { http: { url: '${{ secrets.A }}' } }",
        "- { http: { url: 'http://localhost', method: POST, json: { a: '${{ secrets.A }}' } } }",
        "- { transform: { value: '${{ [secrets][0].A }}' } }",
    ] {
        assert!(refused(&with_steps(wrong)).contains("secret"), "{wrong}");
    }
}

#[test]
fn thousands_of_expressions_are_compiled() {
    let steps: String = (0..5_000).map(|n| format!("- {{ run: x, when: vars.v == {n} }}\n")).collect();
    assert_eq!(pipeline(&steps).nodes.len(), 5_000);
}

#[test]
fn pipelines_do_not_go_in_circles() {
    let text = |a: &str, b: &str| {
        format!(
            "name: t\npipelines:\n  a: {{ {a}steps: [{{ run: x }}] }}\n  b: {{ {b}steps: [{{ run: x }}] }}\n"
        )
    };
    assert!(refused(&text("needs: b, ", "needs: [a], ")).contains("need each other in a circle: a → b → a"));
    assert!(refused(&text("needs: a, ", "")).contains("needs itself"));
    read(&text("needs: b, ", ""));
    let calls = "name: t\npipelines:\n  a: { steps: [{ call: b }] }\n  b: { steps: [{ call: c }] }\n  c: { steps: [{ call: a }] }\n";
    assert!(refused(calls).contains("call each other in a circle: a → b → c → a"));
    assert!(refused("name: t\npipelines: { a: { steps: [{ call: a }] } }\n").contains("a → a"));
    let diamond = "name: t\npipelines:\n  a: { steps: [{ call: b }, { call: c }] }\n  b: { steps: [{ call: d }] }\n  c: { steps: [{ call: d }] }\n  d: { steps: [{ run: x }] }\n";
    read(diamond);
}

#[test]
fn the_hash_covers_every_byte_and_the_framing() {
    let hash =
        |text: &str, files: &dyn Files| parse("a/test.yaml", text, files, &Described::NONE).unwrap().hash;
    let (a, b) = ("name: a\n", "name: a\n# b\n");
    assert_eq!(hash(a, &()), hash(a, &()));
    assert_ne!(hash(a, &()), hash(b, &()));
    let elsewhere = parse("b/other.yaml", a, &(), &Described::NONE).unwrap().hash;
    assert_eq!(hash(a, &()), elsewhere, "where the file lies does not count");
}

#[test]
fn bounds_are_reached() {
    let steps = |n: usize| format!("name: t\npipelines:\n  p:\n    steps:\n{}", "      - run: x\n".repeat(n));
    assert_eq!(read(&steps(9_999)).runbook.pipelines["p"].nodes.len(), 9_999);
    assert!(refused(&steps(10_001)).contains("10000 steps"));
    assert!(
        refused(&format!("name: {}\n", "x".repeat(yaml::FILE_LEN_MAX))).contains("a runbook may have 262144")
    );
    let approaches = "          - run: x\n".repeat(33);
    assert!(
        refused(&format!("name: t\npipelines:\n  p:\n    steps:\n      - strategy:\n{approaches}"))
            .contains("1 to 32")
    );
    let items = vec!["1"; 1_001].join(", ");
    assert!(refused(&with_steps(&format!("- {{ foreach: [{items}], run: x }}"))).contains("at most 1000"));
    let env: String = (0..257).map(|n| format!("E{n}: '', ")).collect();
    assert!(refused(&with_steps(&format!("- {{ run: x, env: {{ {env} }} }}"))).contains("256 environment"));
    let many: String = (0..30).map(|n| format!("x{n}: 1\n")).collect();
    assert!(refused(&format!("name: t\n{many}")).contains("and 10 more"));
}

/// What is over the bound is named, and not compiled.
#[test]
fn the_patterns_of_a_runbook_are_bounded_together() {
    let book = |count: usize, pattern: &dyn Fn(usize) -> String| {
        let vars: String =
            (0..count).map(|n| format!("      v{n}: {{ pattern: '{}' }}\n", pattern(n))).collect();
        format!("name: b\npipelines:\n  p:\n    vars:\n{vars}    steps:\n      - {{ id: s, run: 'true' }}\n")
    };
    read(&book(200, &|n| format!("^[a-z]{{{}}}$", n % 9)));
    read(&book(1_000, &|_| r"^\w+$".to_owned()));
    let refused = refused(&book(1_000, &|n| format!(r"^\w{{1,5}}x{n}$")));
    assert!(refused.contains("the patterns of this runbook are more than it may have"), "{refused}");
    assert!(refused.contains("with `^\\w{1,5}x"), "{refused}");
}
