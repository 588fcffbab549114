//! Evidence, with the real binary: a bundle proves a run on a machine that has nothing but the public key, and nothing can
//! be done to it that is not found.

// A test may panic: that is how it fails. Clippy grants it to `#[test]` functions, not to what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/mod.rs"]
mod support;

use std::fs;
use support::{Done, Process, Project};

const RUNBOOK: &str = "
name: proof
pipelines:
  default:
    vars: { who: { default: nobody } }
    steps:
      - { id: one, run: 'echo one' }
      - { id: ask, approve: { message: 'Go on?' } }
      - { id: two, run: 'echo two' }
  short: { steps: [ { run: 'true' } ] }
";

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

/// Verifies where there is no data directory at all.
fn verify(project: &Project, words: &[&str]) -> Done {
    let elsewhere = tempfile::tempdir().unwrap();
    let words = [&["evidence", "verify"], words].concat();
    let mut command = project.command(&words);
    command.env("WINDLASS_DATA", elsewhere.path().join("nothing"));
    let done = Process::spawn(command, &words).wait();
    assert!(!elsewhere.path().join("nothing").exists(), "a verifier made a data directory");
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
    // Values are left out unless they are wanted.
    assert!(
        !String::from_utf8_lossy(&fs::read(project.path("bundle.tar")).unwrap()).contains("canary-value")
    );
    project.windlass(&["evidence", "export", &run, "-o", "values.tar", "--values"]).code(0);
    verify(&project, &["values.tar", "--pubkey", "keys.txt"]).code(0);
    assert!(String::from_utf8_lossy(&fs::read(project.path("values.tar")).unwrap()).contains("canary-value"));
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
    let keys = windlass::evidence::keys::read_public(&project.path("keys.txt")).unwrap();
    let accepts = |bytes: &[u8]| match windlass::evidence::archive::read(bytes) {
        Ok(bundle) => {
            windlass_core::evidence::verify(&bundle, &keys, &windlass::evidence::keys::check).is_ok()
        }
        Err(_) => false,
    };
    assert!(accepts(&good));
    // Every byte would take long; a stride that shares no factor with the blocks gets everywhere.
    for at in (0..good.len()).step_by(5) {
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
}
