//! Input that is wrong, or made to do harm: it is refused, with a code, a place and what to do next.
//!
//! Nothing may hang, nothing may be executed, and nothing may be left behind that a later command would trip over.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::File;
use std::process::Command;
use support::Project;

/// A runbook that holds together, for everything that is wrong around one. Its step would leave a trace.
const SOUND: &str = "
name: sound
pipelines:
  main:
    vars:
      need: { required: true, pattern: '^[a-z]+$' }
      count: { type: number, default: 3 }
      size: { enum: [small, large], default: small }
    steps:
      - { id: trace, run: touch trace }
  other:
    steps:
      - { run: touch trace }
";

/// A runbook of one pipeline with these steps.
fn steps(steps: &str) -> String {
    format!("name: x\npipelines:\n  p:\n    vars: {{ a: {{ default: x }} }}\n    steps: [ {steps} ]\n")
}

/// `check` and `run` refuse the file for the same reason, point into it, and say what to do.
#[track_caller]
fn refused(content: impl AsRef<[u8]>, what: &str, hint: &str) {
    let project = Project::with("");
    project.write("book.yaml", content);
    for words in [&["check", "book.yaml"][..], &["run", "book.yaml"], &["run", "book.yaml", "--dry-run"]] {
        let done = project
            .windlass(words)
            .code(2)
            .warns("windlass: error[RUNBOOK_INVALID]: ")
            .warns(what)
            .warns(hint);
        assert_eq!(done.out, "", "{words:?}");
    }
    let done = project.windlass(&["check", "book.yaml", "--json"]).code(2);
    let problem: serde_json::Value = serde_json::from_str(&done.err).expect("the refusal is JSON");
    assert_eq!(problem["code"], "RUNBOOK_INVALID");
    assert!(!problem["problems"].as_array().unwrap().is_empty(), "{problem}");
}

/// The command is refused with this exit code and this stable code, and says why.
#[track_caller]
fn wrong(project: &Project, words: &[&str], exit: i32, code: &str, what: &str) {
    let done = project.windlass(words).code(exit).warns(&format!("windlass: {code}: ")).warns(what);
    assert_eq!(done.out, "", "{words:?}");
    assert!(done.err.contains(&format!("docs/errors/{code}.md")), "{}", done.err);
    let json = project.windlass(&[words, &["--json"]].concat()).code(exit);
    let problem: serde_json::Value =
        serde_json::from_str(&json.err).unwrap_or_else(|error| panic!("{error}: {words:?}: {}", json.err));
    assert_eq!(problem["code"], code, "{problem}");
}

#[test]
fn a_bomb_of_aliases_does_not_go_off() {
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for pair in "abcdefghij".chars().zip("bcdefghijk".chars()) {
        let copies = vec![format!("*{}", pair.0); 9].join(",");
        bomb.push_str(&format!("{0}: &{0} [{copies}]\n", pair.1));
    }
    refused(bomb, "aliases may copy", "write the values out");
    refused("name: x\npipelines: &p\n  q: *p\n", "book.yaml:3", "");
}

#[test]
fn depth_has_a_bound() {
    refused("[".repeat(200_000), "nested 32 deep", "split the runbook up");
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    refused(steps(&format!("{{ run: echo, env: {{ A: {deep} }} }}")), "nested 32 deep", "split");
    let groups = format!("{}{{ run: echo }}{}", "{ steps: [".repeat(40), "] }".repeat(40));
    refused(steps(&groups), "nested 32 deep", "split");
}

#[test]
fn size_has_a_bound() {
    let project = Project::new();
    File::create(project.path("book.yaml")).unwrap().set_len(100 << 20).unwrap();
    project.windlass(&["check", "book.yaml"]).code(2).warns("104857600 bytes").warns("split it up");
    project.windlass(&["run", "book.yaml"]).code(2).warns("RUNBOOK_INVALID");
    refused(format!("name: x\n{}", "# nothing\n".repeat(30_000)), "a runbook may have 262144", "split it up");
    let items = vec!["x"; 1_001].join(",");
    refused(steps(&format!("{{ run: echo, foreach: [{items}] }}")), "at most 1000 items", "");
}

#[test]
fn duplicate_and_unknown_keys_are_refused_with_a_suggestion() {
    refused("name: x\nname: y\npipelines: {}\n", "`name` stands here a second time", "each key once");
    refused(steps("{ run: echo, run: rm }"), "`run` stands here a second time", "each key once");
    refused(steps("{ id: a, run: echo }, { id: a, run: echo }"), "another step is called `a`", "unique");
    refused(steps("{ run: echo, tiemout: 3s }"), "no key `tiemout`", "did you mean `timeout`?");
    refused("name: x\npipeline: {}\n", "no key `pipeline`", "did you mean `pipelines`?");
}

#[test]
fn wrong_types_are_refused() {
    refused("name: x\npipelines: [1, 2]\n", "`pipelines` must be a map", "expected a map");
    refused("name: x\npipelines: { p: { steps: echo } }\n", "`steps` must be a list", "expected a list");
    refused("name: [x]\npipelines: {}\n", "`name` must be a name", "expected a name");
    refused("name: x\npipelines: { p: { steps: [] } }\n", "at least one step", "");
    refused(steps("{ run: echo, timeout: 30 }"), "`30` has no unit", "write `30s`");
    refused(steps("{ run: echo, retry: 0 }"), "`retry` is out of range", "from 1 to 1000");
    refused(steps("{ run: echo, wait: 3s }"), "2 kinds", "exactly one is needed");
    refused(steps("{ id: a }"), "exactly one kind is needed", "kinds: run");
    refused(steps("{ run: echo, when: '1 +' }"), "not an expression", "^");
    refused(steps("{ run: echo, env: { A: '${{ steps.nope.output.x }}' } }"), "no step `nope`", "");
    refused(steps("{ run: echo, env: { A: '${{ vars.nope }}' } }"), "no variable `nope`", "");
    refused(
        steps("{ run: echo, dir: '${{ secrets.x }}' }"),
        "a secret cannot stand here",
        "secrets go into `env`",
    );
}

#[test]
fn calls_that_do_not_end_or_lead_nowhere_are_refused() {
    let circle = "name: x\npipelines: { p: { steps: [ { call: q } ] }, q: { steps: [ { call: p } ] } }\n";
    refused(circle, "in a circle: p → q → p", "^");
    refused(steps("{ call: p }"), "in a circle: p → p", "^");
    refused(steps("{ call: nowhere }"), "no pipeline `nowhere`", "pipelines: p");
}

#[test]
fn values_do_not_get_into_commands() {
    refused(steps("{ run: 'echo ${{ vars.a }}' }"), "cannot stand in `run`", "write \"$WL_VAR_A\" instead");
    let guard = "{ run: echo, guard: [ { command: 'test ${{ vars.a }}' } ] }";
    refused(steps(guard), "cannot stand in `command`", "write \"$WL_VAR_A\" instead");
    refused(steps("{ run: \"echo \\0\" }"), "NUL", "");
    refused(steps("{ run: echo, env: { WL_RUN_ID: x } }"), "WL_RUN_ID", "");
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    refused(b"name: x\xff\xfe\npipelines: {}\n", "not UTF-8: byte 7, on line 1", "save the file as UTF-8");
    refused(b"name: x\0y\npipelines: {}\n", "NUL byte", "plain UTF-8 text");
    refused("", "the file is empty", "begins with `name:`");
    refused("# only this\n", "the file is empty", "begins with `name:`");
    refused("hello\n", "must be a map, not text", "");
    refused("- a\n", "must be a map, not a list", "");
    refused("name: x\n---\nname: y\n", "a second document", "one document");
    refused("name: !!python/object:os.system x\n", "the tag", "no tags");
    refused("name: 'x\n", "not valid YAML", "");
    refused("name: x\npipelines:\n\tp: {}\n", "tabs", "indent with spaces");
}

#[test]
fn what_is_no_file_is_refused() {
    let project = Project::with(SOUND);
    std::fs::create_dir(project.path("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(project.path("pipe")).status().unwrap().success());
    for (name, what) in [
        ("folder", "not a file"),
        ("pipe", "not a file"),
        ("absent", "cannot be read"),
        ("/dev/zero", "not a file"),
    ] {
        project.windlass(&["check", name]).code(2).warns("RUNBOOK_INVALID").warns(what).warns("help:");
        let words = ["run", "book.yaml", "main", "--var", "need=a", "--vars-file", name];
        project.windlass(&words).code(2).warns("INVALID_INPUT").warns(name);
    }
    project.windlass(&["run"]).code(2).warns("there is no runbook.yaml here").warns("windlass init");
}

#[test]
fn includes_stay_where_they_are() {
    let pipelines = "pipelines: { p: { steps: [ { run: echo } ] } }\n";
    for (name, what) in [
        ("../other.yaml", "cannot leave"),
        ("/etc/passwd", "include"),
        ("nope.yaml", "cannot be read"),
        ("book.yaml", "included already"),
    ] {
        refused(format!("name: x\ninclude: [{name}]\n{pipelines}"), what, "book.yaml:2");
    }
    let project = Project::with(&format!("name: x\ninclude: [link.yaml]\n{pipelines}"));
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::symlink(outside.path(), project.path("link.yaml")).unwrap();
    project.windlass(&["check", "book.yaml"]).code(2).warns("RUNBOOK_INVALID");
}

#[test]
fn variables_that_do_not_fit_are_refused_before_anything_happens() {
    let project = Project::with(SOUND);
    project.write("list.yaml", "[1]");
    project.write("torn.yaml", "need: [1");
    project.write("large.yaml", format!("need: {}", "a".repeat(2 << 20)));
    let long = format!("need={}", "A".repeat(100_000));
    for (vars, what) in [
        (&[][..], "`need` is required"),
        (&["--var", "need"], "NAME=VALUE"),
        (&["--var", "need=A1"], "must match `^[a-z]+$`"),
        (&["--var", &long], "must match"),
        (&["--var", "need=a", "--var", "count=x"], "number, and `x` is not"),
        (&["--var", "need=a", "--var", "size=medium"], "small, large"),
        (&["--var", "need=a", "--var", "other=z"], "no variable `other`"),
        (&["--var", "need=a", "--var", "=z"], "no variable ``"),
        (&["--vars-file", "list.yaml"], "not a map"),
        (&["--vars-file", "torn.yaml"], "not valid YAML"),
        (&["--vars-file", "large.yaml"], "larger than 1 MiB"),
    ] {
        wrong(&project, &[&["run", "book.yaml", "main"], vars].concat(), 2, "INVALID_INPUT", what);
    }
    wrong(&project, &["run", "book.yaml"], 2, "INVALID_INPUT", "say which pipeline: main, other");
    wrong(&project, &["run", "book.yaml", "third"], 5, "NOT_FOUND", "this runbook has main, other");
    wrong(&project, &["run", "book.yaml", "other", "--after", "run_nope"], 5, "NOT_FOUND", "run_nope");
    wrong(
        &project,
        &["run", "book.yaml", "other", "--idempotency-key", ""],
        2,
        "INVALID_INPUT",
        "1 to 512 bytes",
    );
    wrong(&project, &["run", "book.yaml", "other", "--idempotency-key", "a\nb"], 2, "INVALID_INPUT", "");
    assert!(!project.has("trace"), "something was executed");
    assert_eq!(project.windlass(&["runs", "--json"]).code(0).json()["items"].as_array().unwrap().len(), 0);
}

#[test]
fn ids_that_are_not_known_are_not_found() {
    let project = Project::with(SOUND);
    let long = "run_".to_owned() + &"z".repeat(10_000);
    for id in ["run_zz", "run_01m7h24pv7edhv4w85dkdfsw57", "../..", "%00", "ü", &long] {
        for verb in ["show", "watch", "logs", "why", "cancel", "suspend", "retry", "resume"] {
            wrong(&project, &[verb, id], 5, "NOT_FOUND", "there is no run");
        }
    }
    let run = "run_01m7h24pv7edhv4w85dkdfsw57";
    wrong(&project, &["fork", run, "--from", "x"], 5, "NOT_FOUND", run);
    wrong(&project, &["signal", run, "ready"], 5, "NOT_FOUND", run);
    wrong(&project, &["resolve", run, "s", "done", "--reason", "x"], 5, "NOT_FOUND", run);
    wrong(&project, &["approve", "apr_x"], 5, "NOT_FOUND", "apr_x");
    wrong(&project, &["reject", "apr_x", "--reason", "x"], 5, "NOT_FOUND", "apr_x");
    wrong(&project, &["lock", "break", "nope", "--yes"], 5, "NOT_FOUND", "no lock `nope`");
    wrong(
        &project,
        &["semaphore", "break", "nope", "--holder", "x", "--yes"],
        5,
        "NOT_FOUND",
        "no semaphore",
    );
    wrong(&project, &["resume"], 5, "NOT_FOUND", "no run can be resumed");
}

#[test]
fn words_that_are_not_known_are_bad_usage() {
    let project = Project::with(SOUND);
    for (words, what) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["rnu", "book.yaml"], "run"),
        (&["show"], "RUN"),
        (&["runs", "--status", "bogus"], "not a status"),
        (&["runs", "--since", "yesterday"], "a duration such as 2h"),
        (&["runs", "--limit", "many"], "many"),
        (&["runs", "--cursor", "bogus"], "no cursor"),
        (&["events", "--from", "bogus"], "bogus"),
        (&["approvals", "--status", "bogus"], "requested, approved"),
        (&["signal", "run_x", "ready", "--data", "{"], "--data is not JSON"),
        (&["signal", "run_x"], "which event"),
        (&["resolve", "run_x", "s", "perhaps", "--reason", "x"], "perhaps"),
        (&["completions", "nosh"], "nosh"),
        (&["lock", "break", "nope"], "--yes"),
        (&["store", "compact", "--retention", "30"], "no unit"),
        (&["store", "compact", "--retention", "30d", "--data", "book.yaml"], ""),
        (&["--server", "ftp://x", "runs"], "http://127.0.0.1:7433"),
    ] {
        if words.contains(&"compact") {
            // There has to be something to look after.
            project.windlass(&["runs"]).code(0);
        }
        let done = project.windlass(words);
        let expected = if words.contains(&"book.yaml") && words.contains(&"compact") { 5 } else { 2 };
        let done = done.code(expected).warns("windlass: ").warns(what);
        assert_eq!(done.out, "", "{words:?}");
    }
    project.windlass(&["--server", "http://127.0.0.1:1", "runs"]).code(75).warns("UNAVAILABLE");
}

#[test]
fn a_data_directory_that_cannot_be_one_is_refused() {
    let project = Project::with(SOUND);
    for place in ["book.yaml", "book.yaml/data", "/proc/nowhere"] {
        let done = project.windlass(&["runs", "--data", place]).code(75);
        done.warns("UNAVAILABLE").warns("cannot be used");
    }
    wrong(&project, &["store", "verify"], 5, "NOT_FOUND", "no data directory");
    wrong(&project, &["store", "restore", "nowhere"], 5, "NOT_FOUND", "there is no backup");
    project.windlass(&["runs"]).code(0);
    wrong(&project, &["store", "restore", "data"], 2, "INVALID_INPUT", "not empty");
    wrong(&project, &["store", "backup", "data"], 2, "INVALID_INPUT", "not empty");
    wrong(&project, &["store", "backup", "a/b"], 2, "INVALID_INPUT", "make it first");
}
