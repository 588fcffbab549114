//! Evidence, with the real binary: a bundle proves a run on a machine that has nothing but the public key, and nothing can
//! be done to it that is not found.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod exceptions;
#[path = "../support/outside.rs"]
mod outside;
mod pages;
mod periods;
mod redactions;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use support::{Done, Process, Project};

const RUNBOOK: &str = r#"
name: proof
pipelines:
  default:
    vars: { who: { default: nobody } }
    steps:
      - { id: one, run: 'printf "{\"got\":\"canary-%s\"}\n" "$((40 + 2))"' }
      - { id: ask, approve: { message: 'Go on?' } }
      - { id: two, run: 'echo two' }
  short: { steps: [ { run: 'true' } ] }
"#;

/// A run that a human approved, its bundle, and the public keys.
fn proved() -> (Project, String) {
    let project = Project::with(RUNBOOK);
    project.windlass(&["run", "book.yaml", "short"]).code(0);
    project.windlass(&["run", "book.yaml", "default", "--no-wait", "--var", "who=canary-value"]).code(4);
    let run = project.newest();
    let waiting = project.windlass(&["approvals", "--json"]).code(0).json();
    let approval = &waiting["items"][0];
    let (id, hash) = (approval["id"].as_str().unwrap(), approval["action_hash"].as_str().unwrap());
    project.windlass(&["approve", id, "--hash", hash]).code(0);
    project.windlass(&["resume", &run]).code(0);
    // A governed run has its bundle when it has ended.
    assert!(project.path("data/evidence").join(format!("{run}.evidence.tar")).exists());
    project.windlass(&["evidence", "export", &run, "-o", "bundle.tar"]).code(0);
    let keys = project.windlass(&["evidence", "pubkey"]).code(0);
    project.write("keys.txt", &keys.out);
    (project, run)
}

/// Verifies files of a project where there is nothing else: no data directory, no home, no server, no environment. What
/// is written stays in the project.
fn verify(project: &Project, words: &[&str]) -> Done {
    let elsewhere = tempfile::tempdir().unwrap();
    let files = |word: &&str| match word.starts_with("--") {
        true => (*word).to_owned(),
        false => project.path(word).display().to_string(),
    };
    let words: Vec<String> = words.iter().map(files).collect();
    let words: Vec<&str> =
        ["evidence", "verify"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(&words).env_clear().env("HOME", elsewhere.path()).current_dir(elsewhere.path());
    let done = Process::spawn(command, &words).wait();
    let left = fs::read_dir(elsewhere.path()).unwrap().count();
    assert_eq!(left, 0, "a verifier left something behind");
    done
}

#[test]
fn a_good_bundle_is_accepted_with_the_public_key_alone() {
    let (project, run) = proved();
    let done =
        verify(&project, &["bundle.tar", "--pubkey", "keys.txt", "--html", "report.html", "--json"]).code(0);
    let verdict = &done.json()["verdict"];
    assert_eq!(verdict["run"], run.as_str());
    assert_eq!(verdict["status"], "completed");
    assert_eq!(verdict["approvals"][0]["status"], "approved");
    assert_eq!(verdict["exceptions"]["self_approvals"].as_array().unwrap().len(), 1, "{verdict:#}");
    assert_eq!(verdict["exceptions"]["undecided"].as_array().unwrap().len(), 0);
    let page = project.read("report.html");
    assert!(page.contains("Approvals, as shown") && !page.contains("<script"), "{page}");
    // Values are left out unless they are wanted, but for what was on a card: that is what was approved.
    let holds = |file: &str, value: &str| {
        String::from_utf8_lossy(&fs::read(project.path(file)).unwrap()).contains(value)
    };
    assert!(!holds("bundle.tar", "canary-42") && holds("bundle.tar", "canary-value"));
    project.windlass(&["evidence", "export", &run, "-o", "values.tar", "--values"]).code(0);
    verify(&project, &["values.tar", "--pubkey", "keys.txt"]).code(0);
    assert!(holds("values.tar", "canary-42"));
    // Nobody vouches for it: it only holds together.
    verify(&project, &["bundle.tar"]).code(1).says("integrity only");
    // A bundle that is there is not written over.
    project.windlass(&["evidence", "export", &run, "-o", "bundle.tar"]).code(2);
    project.windlass(&["store", "verify"]).code(0);
}

#[test]
fn any_changed_byte_is_found() {
    let (project, _) = proved();
    let good = fs::read(project.path("bundle.tar")).unwrap();
    let keys = windlass_server::evidence::keys::read_public(&project.path("keys.txt")).unwrap();
    let accepts = |bytes: &[u8]| match windlass_server::evidence::archive::read(bytes) {
        Ok(bundle) => {
            windlass_core::evidence::verify(&bundle, &keys, &windlass_server::evidence::keys::check).is_ok()
        }
        Err(_) => false,
    };
    assert!(accepts(&good));
    // Every byte would take long; a stride that shares no factor with the blocks gets everywhere. The long form tries
    // all of them.
    let stride = if std::env::var_os("WINDLASS_TEST_LONG").is_some() { 1 } else { 5 };
    for at in (0..good.len()).step_by(stride) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(!accepts(&bad), "byte {at} of {} was changed and nobody noticed", good.len());
    }
    for cut in [1, 511, 512, 1024, 1536] {
        assert!(!accepts(&good[..good.len() - cut]));
        assert!(!accepts(&[good.as_slice(), &vec![0; cut]].concat()));
    }
    // The program says where.
    let mut bad = good.clone();
    let at = bad.windows(12).position(|part| part == b"\"step:starte").unwrap();
    bad[at + 1] ^= 1;
    fs::write(project.path("bad.tar"), bad).unwrap();
    verify(&project, &["bad.tar", "--pubkey", "keys.txt"]).code(1).says("records/");
}

#[test]
fn another_key_is_refused_and_a_rotated_one_is_trusted_through_the_old() {
    let (project, run) = proved();
    let (other, _) = proved();
    fs::copy(other.path("keys.txt"), project.path("others.txt")).unwrap();
    verify(&project, &["bundle.tar", "--pubkey", "others.txt"]).code(1).says("rejected");
    project.windlass(&["evidence", "rotate-key"]).code(0);
    project.windlass(&["evidence", "export", &run, "-o", "later.tar"]).code(0);
    // Whoever has the old key alone trusts the new one, because the old one signed for it.
    verify(&project, &["later.tar", "--pubkey", "keys.txt"]).code(0);
    verify(&project, &["later.tar", "--pubkey", "others.txt"]).code(1);
    // A run that was sealed with the new key alone.
    project.windlass(&["run", "book.yaml", "short"]).code(0);
    let after = project.newest();
    project.windlass(&["evidence", "export", &after, "-o", "after.tar"]).code(0);
    let both = project.windlass(&["evidence", "pubkey"]).code(0).out;
    assert_eq!(both.lines().filter(|line| line.starts_with("windlass-ed25519")).count(), 2, "{both}");
    project.write("both.txt", &both);
    let old = project.read("keys.txt");
    let new: String =
        both.lines().filter(|line| !old.contains(line)).map(|line| format!("{line}\n")).collect();
    project.write("new.txt", new);
    for bundle in ["bundle.tar", "later.tar", "after.tar"] {
        verify(&project, &[bundle, "--pubkey", "both.txt"]).code(0);
        verify(&project, &[bundle, "--pubkey", "keys.txt"]).code(0);
    }
    // The new key vouches for nothing that the old one signed.
    verify(&project, &["bundle.tar", "--pubkey", "new.txt"]).code(1).says("rejected");
    verify(&project, &["later.tar", "--pubkey", "new.txt"]).code(1).says("rejected");
    // Rotated once more, and again: trust goes the whole way.
    project.windlass(&["evidence", "rotate-key"]).code(0);
    project.windlass(&["evidence", "rotate-key"]).code(0);
    project.windlass(&["evidence", "export", &after, "-o", "last.tar"]).code(0);
    verify(&project, &["last.tar", "--pubkey", "keys.txt"]).code(0);
}

/// The records of a stream of a bundle, damaged by somebody who can write an archive but has no key.
fn forged(good: &[u8], damage: impl Fn(&mut Vec<&str>)) -> Vec<u8> {
    let mut bundle = windlass_server::evidence::archive::read(good).unwrap();
    let (name, _) =
        bundle.parts.iter().max_by_key(|(name, bytes)| (name.starts_with("records/"), bytes.len())).unwrap();
    let name = name.clone();
    let text = String::from_utf8(bundle.parts[&name].clone()).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    damage(&mut lines);
    let bytes = lines.iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes();
    let part = bundle.manifest.parts.iter_mut().find(|part| part.name == name).unwrap();
    (part.sha256, part.bytes) = (windlass_core::digest::Digest::of(&[&bytes]), bytes.len() as u64);
    bundle.parts.insert(name, bytes);
    windlass_server::evidence::archive::write(&bundle).unwrap()
}

#[test]
fn what_was_done_to_records_is_named() {
    let (project, _) = proved();
    let good = fs::read(project.path("bundle.tar")).unwrap();
    let check = |name: &str, bad: Vec<u8>, says: &str| {
        project.write(name, bad);
        verify(&project, &[name, "--pubkey", "keys.txt"]).code(1).says(says).says("manifest: the signature");
    };
    check("dropped.tar", forged(&good, |lines| _ = lines.remove(2)), "version 3");
    check("swapped.tar", forged(&good, |lines| lines.swap(2, 3)), "version 3");
    check("doubled.tar", forged(&good, |lines| lines.insert(3, lines[2])), "version 4");
    check("cut.tar", forged(&good, |lines| _ = lines.pop()), "is not proved to be under seal");
    // A good bundle with somebody else's signature on the manifest.
    let mut bundle = windlass_server::evidence::archive::read(&good).unwrap();
    bundle.manifest.signature.0[7] ^= 1;
    check("signed.tar", windlass_server::evidence::archive::write(&bundle).unwrap(), "rejected");
}

#[test]
fn a_runbook_that_says_so_has_a_bundle_of_every_run() {
    const PLAIN: &str = "name: plain\npipelines: { p: { steps: [ { transform: { value: 1 } } ] } }\n";
    let project = Project::with(PLAIN);
    project.run(&[], 0);
    project.write("book.yaml", format!("evidence: always\n{PLAIN}"));
    let run = project.run(&[], 0);
    let id = support::text(&run, "id");
    let made = support::until("the bundle", || {
        let made = project.events("evidence:exported");
        (!made.is_empty()).then_some(made)
    });
    assert_eq!((made.len(), &made[0]["pipeline_id"]), (1, &id.into()), "{made:?}");
    assert!(project.path("data/evidence").join(format!("{id}.evidence.tar")).exists());
    project.write("book.yaml", format!("evidence: never\n{PLAIN}"));
    project.windlass(&["check", "book.yaml"]).code(2).warns("always");
}

#[test]
fn a_run_that_was_approved_before_a_restart_has_its_bundle_when_it_ends() {
    const BOOK: &str = "
name: later
pipelines:
  p: { steps: [ { id: ask, approve: { message: 'Go on?' } }, { id: w, wait: { event: go, timeout: 1h } } ] }
  short: { steps: [ { transform: { value: 1 } } ] }
";
    let project = Project::with(BOOK);
    let begins = |project: &Project| {
        let mut serving = project.start(&["serve", "--listen", "127.0.0.1:0", "--json"]);
        serving.await_line("serving");
        serving
    };
    let serving = begins(&project);
    let run = project.windlass(&["run", "book.yaml", "p", "--detach"]).code(0).out.trim().to_owned();
    let open = || project.windlass(&["approvals", "--json"]).code(0).json()["items"][0].clone();
    let approval = support::until("the approval", || Some(open()).filter(|approval| approval.is_object()));
    let [id, hash] = ["id", "action_hash"].map(|key| support::text(&approval, key).to_owned());
    project.windlass(&["approve", &id, "--hash", &hash]).code(0);
    support::until("the wait", || (project.show(&run)["reason"] == "event go").then_some(()));
    serving.signal(rustix::process::Signal::TERM);
    serving.wait().code(0);
    // The next process has seen to everything that there is before the run ends.
    let serving = begins(&project);
    project.windlass(&["run", "book.yaml", "short"]).code(0);
    project.windlass(&["evidence", "export", &project.newest(), "-o", "short.tar"]).code(0);
    project.windlass(&["run", "book.yaml", "short"]).code(0);
    project.windlass(&["evidence", "export", &project.newest(), "-o", "other.tar"]).code(0);
    project.windlass(&["signal", &run, "go"]).code(0);
    project.windlass(&["watch", &run]).code(0);
    serving.signal(rustix::process::Signal::TERM);
    serving.wait().code(0);
    project.windlass(&["runs"]).code(0);
    assert!(project.path("data/evidence").join(format!("{run}.evidence.tar")).exists());
}
