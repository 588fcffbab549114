//! What goes wrong on the way to Slack: a card is posted once, whatever breaks, and also by another process.

use crate::office::{BOOK, Fault, Office, click, events, start};
use crate::support::{text, until};
use crate::wire::Serving;

#[test]
fn a_card_gets_through_and_stands_there_once() {
    let office = Office::open();
    office.room().faults.extend([Fault::Broken, Fault::Busy, Fault::Dropped, Fault::Lost]);
    let serving = office.serve("channel: C9");
    let run = start(&serving, "ask");
    let card = office.await_card("C9", "windlass:approve");
    until("it is on record where it stands", || {
        events(&serving, "approval:shown").iter().any(|event| event["channel"] == "slack").then_some(())
    });
    assert_eq!(office.cards("C9").len(), 1, "what was posted without an answer was found again");
    assert_eq!(office.count("chat.postMessage"), 4);
    click(&serving, &card, "windlass:approve", "U1");
    serving.await_status(&run, "completed");
    office.await_card("C9", "approved by ann");
}

#[test]
fn a_process_that_dies_before_or_after_it_posts_leaves_the_rest_to_the_next() {
    let office = Office::open();
    office.room().down = true;
    let mut serving = office.serve("channel: C9");
    let first = start(&serving, "ask");
    until("a try", || (office.count("chat.postMessage") > 0).then_some(()));
    office.room().down = false;
    office.room().faults.push_back(Fault::Silent);
    serving.restart();
    // The message stands there, and nobody was told so.
    until("the message", || (office.cards("C9").len() == 1).then_some(()));
    serving.restart();
    until("it is on record where it stands", || {
        let shown = events(&serving, "approval:shown");
        shown.iter().any(|event| event["place"].is_string()).then_some(())
    });
    assert_eq!(office.cards("C9").len(), 1);
    // What is decided while Slack is away is shown when it is back, also by another process.
    let card = office.await_card("C9", "windlass:approve");
    office.room().down = true;
    assert!(click(&serving, &card, "windlass:approve", "U1").contains("approved"));
    serving.await_status(&first, "completed");
    serving.restart();
    office.room().down = false;
    let over = office.await_card("C9", "approved by ann");
    assert_eq!(text(&over, "ts"), text(&card, "ts"));
}

#[test]
fn without_a_token_or_a_channel_the_approval_is_decided_elsewhere() {
    let office = Office::open();
    let project = office.project("team: T1");
    let config = project.read("windlass.yaml");
    project.write("windlass.yaml", format!("{config}approvals: {{ self: allow }}\n"));
    let serving = Serving::new(project, &[BOOK]);
    let run = start(&serving, "ask");
    until("the text on record", || {
        let shown = events(&serving, "approval:shown");
        shown.iter().any(|event| event["channel"] == "cli").then_some(())
    });
    let page = serving.get("/v1/approvals?status=requested").is(200).json();
    let (id, hash) = (text(&page["items"][0], "id"), text(&page["items"][0], "action_hash"));
    serving.project.windlass(&["approve", id, "--hash", hash]).code(0);
    serving.await_status(&run, "completed");
    assert_eq!((office.count("chat.postMessage"), office.count("chat.update")), (0, 0));
}
