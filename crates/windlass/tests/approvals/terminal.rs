//! The text on the command line: exactly what is on record, and what the evidence shows later.

use crate::support::{Project, text};
use serde_json::Value;

const BOOK: &str = "
name: release
pipelines:
  p:
    steps:
      - { id: gate, approve: { message: 'Release <!channel> \u{202e}now?' } }
      - { id: ship, run: echo ship > trace }
";

#[test]
fn what_is_approved_is_the_text_that_was_shown_and_the_evidence_has_it() {
    let project = Project::with(BOOK);
    let run = project.run(&["--no-wait"], 4);
    let list = project.windlass(&["approvals"]).code(0).says("approve gate");
    assert!(list.out.contains("ACTION"), "{}", list.out);
    let open = project.windlass(&["approvals", "--json"]).code(0).json()["items"][0].clone();
    let (id, hash) = (text(&open, "id"), text(&open, "action_hash"));
    let approved = project.windlass(&["approve", id, "--hash", hash]).code(0);
    let shown: Vec<Value> = project.events("approval:shown");
    assert_eq!(shown.len(), 1, "{shown:?}");
    let card = text(&shown[0], "card");
    assert!(approved.out.starts_with(card), "{}\n-- is not\n{card}", approved.out);
    assert!(card.contains("Release <!channel> \\u{202e}now?") && card.contains(hash), "{card}");
    let decided = &project.events("approval:decided")[0];
    assert_eq!((&decided["card"], &decided["channel"]), (&shown[0]["card_hash"], &"cli".into()));
    let run_id = text(&run, "id");
    project.windlass(&["resume", run_id]).code(0);
    project.windlass(&["evidence", "export", run_id, "-o", "bundle.tar"]).code(0);
    let keys = project.windlass(&["evidence", "pubkey"]).code(0);
    project.write("keys.txt", &keys.out);
    project
        .windlass(&["evidence", "verify", "bundle.tar", "--pubkey", "keys.txt", "--html", "r.html"])
        .code(0);
    let report = project.read("r.html");
    assert!(report.contains(text(&shown[0], "card_hash")), "the report names the card");
    assert!(report.contains("\\u{202e}now?"), "and shows it as it was shown");
    assert!(!report.contains('\u{202e}'), "nothing in it turns around what is read");
}
