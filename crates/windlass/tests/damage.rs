//! What a damaged or full disk does to the program: flipped bits, a torn end, and a file system without room.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use support::Project;

const RUNBOOK: &str = "
name: damage
pipelines:
  default: { steps: [ { id: one, run: 'echo one' }, { id: two, run: 'echo two' } ] }
";

/// The segment that was written last, and how many bytes of it are in use.
fn last_segment(project: &Project) -> (PathBuf, usize) {
    let dir = project.path("data/log");
    let mut segments: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    let used = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1)
    };
    segments
        .into_iter()
        .map(|path| (used(&path), path))
        .rfind(|(used, _)| *used > 0)
        .map(|(u, p)| (p, u))
        .unwrap()
}

fn with_runs(runs: usize) -> Project {
    let project = Project::with(RUNBOOK);
    for _ in 0..runs {
        project.windlass(&["run", "book.yaml"]).code(0);
    }
    // A snapshot would spare the start from reading what is damaged; what is not read is found by `store verify`.
    project
}

#[test]
fn a_flipped_bit_in_what_is_durable_is_refused_and_named_and_nothing_is_changed() {
    for part in [1, 3, 5] {
        let project = with_runs(3);
        let (path, used) = last_segment(&project);
        let mut bytes = fs::read(&path).unwrap();
        let at = used * part / 6;
        bytes[at] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        project.windlass(&["runs"]).code(70).warns("STORE_CORRUPT");
        project.windlass(&["run", "book.yaml"]).code(70).warns("STORE_CORRUPT");
        project.windlass(&["store", "verify"]).code(70).warns("STORE_CORRUPT");
        assert!(fs::read(&path).unwrap() == bytes, "a damaged log was changed (byte {at} of {used})");
    }
}

#[test]
fn a_torn_end_is_dropped_and_everything_before_it_is_there() {
    let project = with_runs(3);
    let (path, used) = last_segment(&project);
    let mut bytes = fs::read(&path).unwrap();
    // The very last batch says only that those before it are durable; half of it was written.
    let cut = bytes[..used - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 4;
    bytes[cut..].fill(0);
    fs::write(&path, &bytes).unwrap();
    let listed = project.windlass(&["runs", "--json"]).code(0).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 3, "{listed:#}");
    project.windlass(&["store", "verify"]).code(0);
    project.windlass(&["run", "book.yaml"]).code(0);
}

/// Told inside a mount name space of its own, so that the small file system is nobody else's.
const FULL: &str = r#"
set -u
mount -t tmpfs -o size=96m none "$ROOM"
cp book.yaml "$ROOM/"
OUT="$PWD"; cd "$ROOM"
say() { echo "== $1"; }
"$WINDLASS" run book.yaml --json >/dev/null || { say "the first run failed"; exit 1; }
# Somebody holds the directory the whole time: there is no restart below.
"$WINDLASS" run book.yaml hold >"$OUT/hold.txt" 2>&1 &
holder=$!
trap 'kill -9 "$holder" 2>/dev/null' EXIT
until [ -e began ]; do sleep 0.05; done
dd if=/dev/zero of=filler bs=64k 2>/dev/null
# What was set aside is used up first; then writes are refused.
code=0
for n in $(seq 1 4000); do
    "$WINDLASS" signal --key k"$n" e --data "\"$BULK\"" >/dev/null 2>"$OUT/err.txt" || { code=$?; break; }
done
[ "$code" = 75 ] || { say "a full disk gave exit code $code"; cat "$OUT/err.txt"; exit 1; }
grep -q STORE_FULL "$OUT/err.txt" || { say "no STORE_FULL"; cat "$OUT/err.txt"; exit 1; }
"$WINDLASS" runs --json >/dev/null || { say "reads are not served"; exit 1; }
kill -0 "$holder" || { say "the holder ended"; exit 1; }
# A little room is enough.
truncate -s -6M filler
for n in $(seq 1 100); do
    "$WINDLASS" signal --key again e >/dev/null 2>"$OUT/err.txt" && break
    sleep 0.1
done
[ "$n" -lt 100 ] || { say "writes did not resume"; cat "$OUT/err.txt"; exit 1; }
touch go
wait "$holder" || { say "the holder's run failed"; cat "$OUT/hold.txt"; exit 1; }
"$WINDLASS" store verify >/dev/null || { say "the log is not sound"; exit 1; }
say fine
"#;

#[test]
fn a_full_file_system_refuses_writes_serves_reads_and_resumes_without_a_restart() {
    let project = Project::with(
        "
name: damage
pipelines:
  default: { steps: [ { run: 'true' } ] }
  hold: { steps: [ { run: 'echo > began; until [ -e go ]; do sleep 0.05; done' }, { run: 'true' } ] }
",
    );
    fs::create_dir(project.path("room")).unwrap();
    let bulk = "x".repeat(60_000);
    let told = |unshare: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["bash", "-c", FULL]).current_dir(project.root());
        command.env("WINDLASS", env!("CARGO_BIN_EXE_windlass")).env("ROOM", project.path("room"));
        command.env("BULK", &bulk).env_remove("WINDLASS_DATA").output().unwrap()
    };
    // Root may mount; anybody else may in a name space of users.
    let root = rustix::process::getuid().is_root();
    let output = told(if root { &["--mount"] } else { &["--mount", "--map-root-user"] });
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("== fine"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}
