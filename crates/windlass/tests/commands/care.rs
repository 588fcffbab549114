//! Looking after it: init, store, doctor, completions.

use crate::support::{Project, text};
use rustix::process::Signal;

const BOOK: &str = "
name: care
pipelines:
  p: { steps: [ { id: s, run: echo hello } ] }
";

#[test]
fn init_makes_something_that_runs_and_keeps_what_is_there() {
    let project = Project::new();
    project.windlass(&["init", "new"]).code(0).says("runbook.yaml").says("windlass run");
    for name in ["new/runbook.yaml", "new/.gitignore", "new/policy"] {
        assert!(project.has(name), "{name}");
    }
    project.windlass(&["run", "new/runbook.yaml"]).code(0).says("✔ completed");
    project.write("new/runbook.yaml", BOOK);
    project.windlass(&["init", "new"]).code(0).warns("was not changed");
    assert_eq!(project.read("new/runbook.yaml"), BOOK);
    // Without a name it is the runbook here, and the data directory is here too.
    let mut command = project.command(&["run"]);
    command.current_dir(project.path("new")).env_remove("WINDLASS_DATA");
    assert!(command.output().unwrap().status.success());
    assert!(project.has("new/.windlass"));
}

#[test]
fn the_data_directory_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let project = Project::with(BOOK);
    project.run(&[], 0);
    let mode = std::fs::metadata(project.path("data")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_backup_is_verified_and_can_be_restored() {
    let project = Project::with(BOOK);
    let run = project.run(&[], 0);
    project.windlass(&["store", "verify"]).code(0).says("all checked");
    project.windlass(&["store", "backup", "copy"]).code(0).says("all checked");
    project.run(&[], 0);
    project.windlass(&["store", "restore", "copy", "--data", "other"]).code(0);
    let old = project.windlass(&["runs", "--json", "--data", "other"]).code(0).json();
    assert_eq!(old["items"].as_array().unwrap().len(), 1, "{old}");
    assert_eq!(old["items"][0]["id"], run["id"]);
    let words = ["run", "book.yaml", "--data", "other", "--json"];
    assert_eq!(project.windlass(&words).code(0).last()["status"], "completed");
    assert_eq!(
        project.windlass(&["store", "verify", "--json", "--data", "other"]).code(0).json()["valid"],
        true
    );
}

#[test]
fn a_server_is_backed_up_while_it_works() {
    let project = Project::with(
        "
name: live
pipelines:
  slow: { steps: [ { id: first, run: echo began > began }, { wait: { event: go } }, { run: echo done > done } ] }
  quick: { steps: [ { id: s, run: echo hello } ] }
",
    );
    let mut server = project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    project.windlass(&["deploy", "book.yaml"]).code(0);
    let words = ["run", "book.yaml", "slow", "--detach", "--json"];
    let waiting = text(&project.windlass(&words).code(0).last(), "id").to_owned();
    project.await_file("began");
    // Runs come and go while the copy is made.
    let busy = project.start(&["run", "book.yaml", "quick", "--json"]);
    let before = project.windlass(&["run", "book.yaml", "quick", "--json"]).code(0).last();
    project.windlass(&["store", "verify"]).code(0).says("all checked");
    let copied = project.windlass(&["store", "backup", "copy", "--json"]).code(0).json();
    assert_eq!(copied["valid"], true, "{copied}");
    busy.wait().code(0);
    project.windlass(&["store", "backup", "copy"]).code(2).warns("not empty");
    project.windlass(&["store", "backup", "data/copy"]).code(2).warns("in the data directory itself");
    server.signal(Signal::TERM);
    server.wait().code(0);
    // What was acknowledged before is in it, goes on from there, and is proved by the keys that came along.
    project.windlass(&["store", "restore", "copy", "--data", "other"]).code(0);
    let old = project.windlass(&["show", text(&before, "id"), "--json", "--data", "other"]).code(0).json();
    assert_eq!(old["status"], "completed");
    project.windlass(&["--data", "other", "signal", &waiting, "go"]).code(0);
    project.windlass(&["resume", &waiting, "--data", "other"]).code(0);
    assert_eq!(project.read("done"), "done\n");
    project.windlass(&["store", "verify", "--data", "other"]).code(0);
    project.windlass(&["evidence", "export", &waiting, "-o", "run.tar", "--data", "other"]).code(0);
}

#[test]
fn damage_is_found_and_nothing_starts_on_it() {
    let project = Project::with(BOOK);
    let run = project.run(&[], 0);
    project.windlass(&["store", "verify"]).code(0);
    // One byte in the middle of what was acknowledged.
    let needle = text(&run, "id").as_bytes().to_vec();
    let mut broken = 0;
    for entry in walk(&project.path("data")) {
        let mut bytes = std::fs::read(&entry).unwrap();
        let is_log = entry.to_string_lossy().contains("log");
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle).filter(|_| is_log) {
            bytes[at + 10] ^= 1;
            std::fs::write(&entry, bytes).unwrap();
            broken += 1;
        }
    }
    assert!(broken > 0, "no segment holds the run");
    project.windlass(&["store", "verify"]).code(70).warns("STORE_CORRUPT");
    project.windlass(&["run", "book.yaml"]).code(70).warns("STORE_CORRUPT").warns("Restore a backup");
    project.windlass(&["doctor"]).code(1).says("✘ data directory");
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files.extend(walk(&path)),
            kind if kind.is_file() => files.push(path),
            _ => {}
        }
    }
    files
}

#[test]
fn compacting_drops_old_runs_and_keeps_open_ones() {
    let project = Project::with(
        "
name: compact
pipelines:
  p: { steps: [ { run: echo hello } ] }
  open: { steps: [ { approve: { message: 'Now?' } }, { run: echo after > trace } ] }
",
    );
    for _ in 0..3 {
        project.run(&["p"], 0);
    }
    let open = project.run(&["open", "--no-wait"], 4);
    project.windlass(&["store", "compact", "--json"]).code(0).json();
    assert_eq!(project.windlass(&["runs", "--json"]).code(0).json()["items"].as_array().unwrap().len(), 4);
    project.windlass(&["store", "compact", "--retention", "1ms", "--json", "--yes"]).code(0);
    project.windlass(&["store", "verify"]).code(0);
    assert_eq!(project.show(text(&open, "id"))["status"], "awaiting_approval");
    let page = project.windlass(&["approvals", "--json"]).code(0).json();
    let approval = &page["items"][0];
    let words = ["approve", text(approval, "id"), "--hash", text(approval, "action_hash")];
    project.windlass(&words).code(0);
    project.windlass(&["resume", text(&open, "id")]).code(0);
    assert_eq!(project.read("trace"), "after\n");
    project.run(&["p"], 0);
}

#[test]
fn what_retention_drops_is_on_record_and_leaves_the_disk() {
    let project = Project::with(
        "
name: drops
queues: { work: {} }
pipelines:
  p: { steps: [ { id: say, run: echo hello } ] }
",
    );
    project.windlass(&["deploy", "book.yaml"]).code(0);
    let runs: Vec<String> = (0..3).map(|_| text(&project.run(&[], 0), "id").to_owned()).collect();
    let output = |run: &str| project.path(&format!("data/output/{run}"));
    assert!(runs.iter().all(|run| output(run).is_dir()));
    let words = ["store", "compact", "--retention", "1ms", "--json", "--yes"];
    let done = project.windlass(&words).code(0).json();
    assert_eq!(done["runs"], 3, "{done}");
    assert!(runs.iter().all(|run| !output(run).exists()), "what a dropped run wrote is still there");
    // Each is named, and what went is summed up.
    let mut deleted: Vec<String> =
        project.events("pipeline:deleted").iter().map(|event| text(event, "id").to_owned()).collect();
    deleted.sort();
    let mut expected = runs.clone();
    expected.sort();
    assert_eq!(deleted, expected);
    let applied = project.events("retention:applied");
    assert_eq!((applied.len(), &applied[0]["runs"]), (1, &serde_json::json!(3)), "{applied:?}");
    project.windlass(&["show", &runs[0]]).code(5);
    project.windlass(&["store", "verify"]).code(0);
    // Nothing is dropped twice, and life goes on.
    assert_eq!(project.windlass(&words).code(0).json()["runs"], 0);
    assert_eq!(project.events("pipeline:deleted").len(), 3);
    project.run(&[], 0);
}

#[test]
fn an_item_that_failed_is_kept_as_long_as_one_that_is_done() {
    let project = Project::with(
        "
name: items
queues: { work: {} }
workers: { hand: { queue: work, pipeline: p } }
pipelines:
  p: { vars: { n: { required: true } }, steps: [ { id: no, run: exit 1 } ] }
",
    );
    project.write("windlass.yaml", "retention: { items: 1s }\n");
    let mut server = project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    project.windlass(&["deploy", "book.yaml"]).code(0);
    project.windlass(&["queue", "push", "work", "--data", "{\"n\":1}"]).code(0);
    // It failed, can be looked at and put back; then it goes, and that is on record.
    let dropped = super::support::until("the failed item to go", || {
        project.events("queue:item_dropped").into_iter().next()
    });
    let failed = project.events("queue:failed");
    assert_eq!((failed.len(), &failed[0]["item_id"]), (1, &dropped["item_id"]));
    assert_eq!(dropped["reason"], "retention", "{dropped}");
    let at = |event: &serde_json::Value| event["at"].as_u64().unwrap();
    assert!(at(&dropped) >= at(&failed[0]) + 1_000, "{dropped}");
}

#[test]
fn retention_follows_the_configuration_while_a_server_runs() {
    let project =
        Project::with("\nname: short\npipelines:\n  p: { steps: [ { id: say, run: echo hello } ] }\n");
    project.write("windlass.yaml", "retention: { runs: 2s, output: 1s, evidence: 1s }\nevidence: always\n");
    let first = text(&project.run(&[], 0), "id").to_owned();
    // A process that holds the directory for a moment leaves what is due to the next one.
    let mut server = project.start(&["serve", "--listen", "127.0.0.1:0"]);
    server.await_line("windlass serves ");
    super::support::until("the run's output leaves", || {
        (!project.has(&format!("data/output/{first}"))).then_some(())
    });
    super::support::until("its bundle leaves", || {
        let bundles = std::fs::read_dir(project.path("data/evidence")).map_or(0, Iterator::count);
        (bundles == 0).then_some(())
    });
}

#[test]
fn doctor_looks_at_the_machine() {
    let project = Project::with(BOOK);
    project.windlass(&["doctor"]).code(0).says("✔ bash");
    let found = project.windlass(&["doctor", "--json"]).code(0).json();
    assert_eq!(found["ok"], true);
    assert!(found["checks"].as_array().unwrap().len() >= 3);
}

#[test]
fn doctor_finds_a_broken_configuration_and_a_directory_that_cannot_be_written() {
    let project = Project::with(BOOK);
    project.write("windlass.yaml", "htp: {}\n");
    project.windlass(&["doctor"]).code(1).says("✘ configuration").says("htp");
    project.remove("windlass.yaml");
    project.windlass(&["doctor"]).code(0).says("✔ configuration");
    project.windlass(&["doctor", "--data", "/proc/windlass"]).code(1).says("✘ data directory");
}

#[test]
fn completions_know_the_commands() {
    let project = Project::new();
    for shell in ["bash", "zsh", "fish"] {
        project.windlass(&["completions", shell]).code(0).says("approvals").says("idempotency-key");
    }
    let done = project.windlass(&["completions", "bash"]).code(0);
    project.write("completions", &done.out);
    let status =
        std::process::Command::new("bash").arg("-n").arg(project.path("completions")).status().unwrap();
    assert!(status.success(), "bash does not read its completions");
}

#[test]
fn a_store_that_was_restored_seals_and_has_what_steps_wrote() {
    use std::os::unix::fs::PermissionsExt as _;
    let project = Project::with(BOOK);
    let run = project.run(&[], 0);
    project.write("data/secrets.json", r#"{"format":1,"secrets":{}}"#);
    let keys = project.windlass(&["evidence", "pubkey"]).code(0).out;
    let wrote = project.windlass(&["logs", text(&run, "id")]).code(0).out;
    assert!(!wrote.is_empty());
    project.windlass(&["store", "backup", "copy"]).code(0);
    project.windlass(&["store", "restore", "copy", "--data", "again"]).code(0);
    let here = |words: &[&str]| project.windlass(&[words, &["--data", "again"]].concat());
    here(&["run", "book.yaml"]).code(0);
    assert_eq!(here(&["logs", text(&run, "id")]).code(0).out, wrote);
    assert_eq!(here(&["evidence", "pubkey"]).code(0).out, keys, "it goes on with the same key");
    here(&["evidence", "export", text(&run, "id"), "-o", "run.tar"]).code(0);
    project.write("keys.txt", keys);
    project.windlass(&["evidence", "verify", "run.tar", "--pubkey", "keys.txt"]).code(0);
    project.write("bad.txt", "no key");
    for bad in ["bad.txt", "missing.txt"] {
        project.windlass(&["evidence", "verify", "run.tar", "--pubkey", bad]).code(2).warns("--pubkey");
    }
    let files = walk(&project.path("copy"));
    assert!(files.iter().any(|path| path.ends_with("secrets.json")), "{files:?}");
    for path in files {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
}
