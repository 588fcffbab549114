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

/// The project's runs, as they are listed.
fn ids(project: &Project) -> Vec<String> {
    let items = project.windlass(&["runs", "--json"]).code(0).json()["items"].clone();
    items.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_log_that_lost_its_end_is_refused_wherever_it_was_cut() {
    let whole = with_runs(3);
    let (path, used) = last_segment(&whole);
    let bytes = fs::read(&path).unwrap();
    let newlines: Vec<usize> = (0..used).filter(|at| bytes[*at] == b'\n').collect();
    // The last batch says only that those before it are durable. Before it stands one that was acknowledged.
    let trailers: Vec<usize> = newlines
        .iter()
        .copied()
        .filter(|at| {
            let begin = bytes[..*at].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            bytes[begin..].starts_with(b"{\"trailer\":")
        })
        .collect();
    let acknowledged = trailers[trailers.len() - 2];
    let batch = trailers[trailers.len() - 3] + 1;
    for (how, cut) in [
        ("in its trailer", acknowledged - 3),
        ("in a record", (batch + acknowledged) / 2),
        ("before it", batch),
        ("to the header", newlines[0] + 1),
    ] {
        for chopped in [true, false] {
            let mut cut_off = bytes.clone();
            if chopped {
                cut_off.truncate(cut);
            } else {
                cut_off[cut..].fill(0);
            }
            fs::write(&path, &cut_off).unwrap();
            for words in [&["runs"][..], &["run", "book.yaml"], &["store", "verify"]] {
                whole.windlass(words).code(70).warns("STORE_CORRUPT").warns("was acknowledged");
            }
            assert!(fs::read(&path).unwrap() == cut_off, "a log that was cut {how} was changed");
        }
    }
    fs::write(&path, &bytes).unwrap();
    assert_eq!(ids(&whole).len(), 3);
}

#[test]
fn a_log_that_is_gone_is_refused_and_not_taken_for_a_new_one() {
    let project = with_runs(1);
    let (log, aside) = (project.path("data/log"), project.path("aside"));
    fs::rename(&log, &aside).unwrap();
    let refused = |what: &str| {
        for words in [&["runs"][..], &["run", "book.yaml"], &["serve", "--listen", "127.0.0.1:0"]] {
            project.windlass(words).code(70).warns("STORE_CORRUPT").warns(what);
        }
        // An empty directory in its place is no log either.
        assert!(fs::read_dir(&log).unwrap().next().is_none());
    };
    refused("`acknowledged` says");
    // Each of the witnesses is enough.
    fs::rename(project.path("data/acknowledged"), project.path("noted")).unwrap();
    refused("`history.sqlite` says");
    fs::remove_dir(&log).unwrap();
    fs::rename(&aside, &log).unwrap();
    fs::rename(project.path("noted"), project.path("data/acknowledged")).unwrap();
    assert_eq!(ids(&project).len(), 1);
}

#[test]
fn the_log_of_another_store_is_refused() {
    let (project, other) = (with_runs(1), with_runs(2));
    for name in ["log", "snapshot"] {
        fs::remove_dir_all(project.path("data").join(name)).unwrap();
        fs::rename(other.path("data").join(name), project.path("data").join(name)).unwrap();
    }
    project.windlass(&["runs"]).code(70).warns("STORE_CORRUPT").warns("another store");
}

#[test]
fn a_directory_of_before_and_one_whose_note_is_torn_are_fine() {
    let project = with_runs(2);
    let note = project.path("data/acknowledged");
    for damage in [None, Some(Vec::new()), Some(b"acknowledged 00".to_vec())] {
        match damage {
            None => fs::remove_file(&note).unwrap(),
            Some(bytes) => fs::write(&note, bytes).unwrap(),
        }
        assert_eq!(ids(&project).len(), 2);
        // It is noted again.
        assert!(fs::read_to_string(&note).unwrap().starts_with("acknowledged "));
    }
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

/// A server starts on a file system without room, serves reads, and goes on when there is room. What a step writes meanwhile
/// is lost, and said to be.
const STARTS: &str = r#"
set -u
mount -t tmpfs -o size=96m none "$ROOM"
cp book.yaml "$ROOM/"
OUT="$PWD"; cd "$ROOM"
export WINDLASS_DATA="$ROOM/data"
say() { echo "== $1"; }
"$WINDLASS" run book.yaml p >/dev/null 2>&1 || { say "the first run failed"; exit 1; }
dd if=/dev/zero of=filler bs=4k 2>/dev/null
"$WINDLASS" serve --listen 127.0.0.1:0 >"$OUT/serve.txt" 2>&1 &
server=$!
trap 'kill -9 "$server" 2>/dev/null' EXIT
for n in $(seq 1 600); do grep -q "windlass serves" "$OUT/serve.txt" && break; sleep 0.1; done
[ "$n" -lt 600 ] || { say "the server did not start"; cat "$OUT/serve.txt"; exit 1; }
"$WINDLASS" runs --json >"$OUT/runs.json" 2>"$OUT/err.txt" || { say "runs are not listed"; cat "$OUT/err.txt"; exit 1; }
run="$(grep -o 'run_[0-9a-z]*' "$OUT/runs.json" | head -n1)"
grep -q completed "$OUT/runs.json" || { say "the run is not there"; cat "$OUT/runs.json"; exit 1; }
"$WINDLASS" show "$run" >"$OUT/show.txt" 2>&1 || { say "a run is not shown"; cat "$OUT/show.txt"; exit 1; }
"$WINDLASS" logs "$run" >"$OUT/logs.txt" 2>&1 || { say "logs are not shown"; cat "$OUT/logs.txt"; exit 1; }
grep -q hello "$OUT/logs.txt" || { say "the output is not there"; cat "$OUT/logs.txt"; exit 1; }
truncate -s -8M filler
for n in $(seq 1 300); do
    "$WINDLASS" run book.yaml p >/dev/null 2>"$OUT/err.txt" && break
    sleep 0.1
done
[ "$n" -lt 300 ] || { say "writes did not resume"; cat "$OUT/err.txt"; exit 1; }
# The room is gone again while a step writes. The log has its room set aside.
"$WINDLASS" run book.yaml much >"$OUT/much.txt" 2>&1 &
runs=$!
for n in $(seq 1 600); do [ -e began ] && break; sleep 0.1; done
# Room that was being set aside is given back when there is too little, so it takes more than one go.
for n in 1 2 3 4 5; do dd if=/dev/zero bs=4k 2>/dev/null >>more; sleep 0.2; done
rm began
wait "$runs"; code=$?
[ "$code" = 0 ] || { rm more; sleep 2; }
run="$("$WINDLASS" runs --json --limit 1 | grep -o 'run_[0-9a-z]*' | head -n1)"
"$WINDLASS" show "$run" --json >"$OUT/lost.json" 2>&1
grep -q '"output_lost"' "$OUT/lost.json" || { say "nothing says that output is lost"; cat "$OUT/lost.json" "$OUT/much.txt"; exit 1; }
"$WINDLASS" logs "$run" >"$OUT/lost.txt" 2>&1
grep -q 'bytes of output could not be kept' "$OUT/lost.txt" || { say "logs do not say so"; head -c 2000 "$OUT/lost.txt"; exit 1; }
rm -f more filler
kill "$server"; wait "$server" || { say "the server ended badly"; cat "$OUT/serve.txt"; exit 1; }
"$WINDLASS" store verify >/dev/null || { say "the log is not sound"; exit 1; }
[ "$("$WINDLASS" runs --json | grep -o '"status":"completed"' | wc -l)" -ge 3 ] || { say "runs are missing"; exit 1; }
say fine
"#;

#[test]
fn a_server_starts_on_a_full_disk_and_says_what_it_could_not_keep() {
    let project = Project::with(
        "
name: full
pipelines:
  p: { steps: [ { id: say, run: 'echo hello' } ] }
  much:
    steps: [ { id: write, run: 'echo > began; while [ -e began ]; do sleep 0.05; done; head -c 3000000 /dev/zero | tr \"\\\\0\" x | fold -w 100' } ]
",
    );
    fs::create_dir(project.path("room")).unwrap();
    full(&project, STARTS);
}

/// Tells a story inside a mount name space of its own.
fn full(project: &Project, story: &str) {
    // Root may mount; anybody else may in a name space of users.
    let root = rustix::process::getuid().is_root();
    let unshare: &[&str] = if root { &["--mount"] } else { &["--mount", "--map-root-user"] };
    let mut command = Command::new("unshare");
    command.args(unshare).args(["bash", "-c", story]).current_dir(project.root());
    command.env("WINDLASS", env!("CARGO_BIN_EXE_windlass")).env("ROOM", project.path("room"));
    command.env("BULK", "x".repeat(60_000)).env_remove("WINDLASS_DATA");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("== fine"), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

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
    full(&project, FULL);
}
