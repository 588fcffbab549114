//! A value that is taken out later is nowhere any more, and the proof is as good as before.

use crate::support::{Project, step, text};
use crate::verify;
use std::path::Path;

const VALUE: &str = "private-value-of-a-customer";
const BOOK: &str = "
name: customers
pipelines:
  p:
    vars: { who: {} }
    steps:
      - id: fetch
        run: 'echo \"{\\\"name\\\": \\\"$WL_VAR_WHO\\\"}\" > \"$WL_OUTPUT\"; echo \"$WL_VAR_WHO\"'
        outputs: { name: string }
      - { id: other, run: 'echo kept; echo {} > $WL_OUTPUT' }
";

/// The files that hold the value.
fn holders(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            found.extend(holders(&path));
        } else if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[test]
fn a_value_is_gone_from_every_file_and_the_proof_is_whole() {
    let project = Project::with(BOOK);
    let run = project.run(&["--var", &format!("who={VALUE}")], 0);
    let run = text(&run, "id").to_owned();
    assert_eq!(step(&project.show(&run), "fetch")["output"]["name"], VALUE);
    project.windlass(&["evidence", "export", &run, "-o", "before.tar", "--values"]).code(0);
    project.write("keys.txt", project.windlass(&["evidence", "pubkey"]).code(0).out);
    assert!(!holders(&project.path("data")).is_empty(), "there is something to take out");

    let words = ["evidence", "redact", &run, "--field", "output", "--field", "vars", "--field", "input"];
    let words = [&words[..], &["--reason", "a customer asked"]].concat();
    project.windlass(&words).code(2).warns("--yes");
    let done = project.windlass(&[&words[..], &["--yes", "--json"]].concat()).code(0).json();
    assert!(done["values"].as_u64().unwrap() >= 2, "{done}");

    assert_eq!(holders(&project.path("data")), Vec::<String>::new());
    let gone = project.events("value:redacted");
    assert_eq!(gone.len() as u64, done["values"].as_u64().unwrap(), "{gone:?}");
    assert!(gone.iter().all(|event| event["by"] == "user:tester" && event["reason"] == "a customer asked"));
    let shown = project.show(&run);
    assert!(step(&shown, "fetch")["output"].is_null(), "{shown}");
    project.windlass(&["store", "verify"]).code(0);

    // The bundle says what is missing, and proves the rest. The one from before proves it with the value.
    project.windlass(&["evidence", "export", &run, "-o", "after.tar", "--values"]).code(0);
    let words = ["after.tar", "--pubkey", "keys.txt", "--json"];
    let verdict = verify(&project, &words).code(0).json();
    let redactions = verdict["verdict"]["exceptions"]["redactions"].as_array().unwrap().clone();
    assert!(redactions.iter().any(|gone| gone["field"] == "output"), "{redactions:?}");
    verify(&project, &["before.tar", "--pubkey", "keys.txt"]).code(0);

    // Nothing brings it back: not a compaction, not another run, not a backup that is restored.
    project.windlass(&["store", "compact", "--retention", "1d"]).code(0);
    project.run(&["--var", "who=somebody"], 0);
    project.windlass(&["store", "backup", "copy"]).code(0);
    assert_eq!(holders(&project.path("data")), Vec::<String>::new());
    assert_eq!(holders(&project.path("copy")), Vec::<String>::new());
    project
        .windlass(
            &[&["evidence", "redact", &run, "--yes"][..], &["--field", "output", "--reason", "x"]].concat(),
        )
        .code(5);
}

#[test]
fn a_run_under_way_and_a_directory_in_use_are_left_alone() {
    let project =
        Project::with("name: t\npipelines:\n  p: { steps: [ { id: a, approve: { message: 'Go on?' } } ] }\n");
    project.windlass(&["run", "book.yaml", "--no-wait"]).code(4);
    let run = project.newest();
    let words = ["evidence", "redact", &run, "--field", "message", "--reason", "x", "--yes"];
    project.windlass(&words).warns("has not ended");
    let mut server = project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    project.windlass(&words).code(75).warns("stop it first");
}
