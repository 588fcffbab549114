//! Looking after it: init, store, doctor, completions.

use crate::support::{Project, text};

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
    project.windlass(&["init", "new"]).code(0).warns("stays as it is");
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
fn doctor_looks_at_the_machine() {
    let project = Project::with(BOOK);
    project.windlass(&["doctor"]).code(0).says("✔ bash");
    let found = project.windlass(&["doctor", "--json"]).code(0).json();
    assert_eq!(found["ok"], true);
    assert!(found["checks"].as_array().unwrap().len() >= 3);
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
