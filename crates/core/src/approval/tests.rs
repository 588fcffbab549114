//! The approval's table, its subtle rules, and the promises over any history.

use super::*;
use crate::policy::Risk;
use crate::testing::{Proof, name};
use alloc::collections::BTreeSet;
use alloc::vec;
use proptest::prelude::*;
use serde_json::json;

const ASKED: Millis = Millis(1_000);
const NOW: Millis = Millis(2_000);
const EXPIRY: Millis = Millis(10_000);

fn action() -> Action {
    Action {
        tool: name("servicenow.update"),
        operation: name("update"),
        target: name("incident/1"),
        fields: json!({"state": "resolved"}),
        risk: Risk::Medium,
    }
}

fn request() -> ApprovalRequested {
    ApprovalRequested {
        approval_id: ApprovalId(1),
        pipeline_id: RunId(1),
        step: name("resolve"),
        tier: Tier::Medium,
        two_person: false,
        count: 1,
        approvers: vec![],
        action_hash: action().hash(),
        policy_version: Digest([7; 32]),
        reasons: vec![],
        requested_by: name("ann"),
        expires_at: EXPIRY,
        self_approval: false,
        message: None,
        action: action().into(),
        by_step: None,
        changed_by: None,
    }
}

fn attempt(by: &str, decision: Verdict) -> Attempt {
    Attempt {
        decision,
        by: name(by),
        human: true,
        groups: vec![],
        action_hash: action().hash(),
        channel: Channel::Cli,
        reason: None,
        card: None,
    }
}

fn yes(by: &str) -> Input {
    Input::Decide(attempt(by, Verdict::Approved))
}

fn no(by: &str) -> Input {
    Input::Decide(attempt(by, Verdict::Rejected))
}

fn void() -> Input {
    Input::Void { reason: "the run was cancelled".into() }
}

fn showed(place: Option<&str>, status: Status, decisions: u32) -> Showed {
    Showed {
        channel: if place.is_some() { Channel::Slack } else { Channel::Cli },
        showing: Showing::Requested,
        to: place.map(|_| name("#ops")),
        place: place.map(name),
        status,
        decisions,
        reminders: 0,
        card: alloc::format!("{place:?} {status} {decisions}"),
    }
}

fn posted(place: &str, status: Status, decisions: u32) -> Input {
    Input::Show(showed(Some(place), status, decisions))
}

fn step(approval: Approval, input: &Input, at: Millis) -> (Approval, Result<Reply, Error>) {
    match approval.decide(input, at) {
        Ok(decision) => {
            let next = decision.facts.iter().fold(approval, |a, fact| a.apply(fact, at));
            (next, Ok(decision.reply))
        }
        Err(error) => (approval, Err(error)),
    }
}

fn after(request: &ApprovalRequested, inputs: &[Input]) -> Approval {
    inputs.iter().fold(Approval::new(request, ASKED), |a, input| step(a, input, NOW).0)
}

fn refused(approval: &Approval, input: &Input, at: Millis) -> Option<Refusal> {
    match step(approval.clone(), input, at) {
        (next, Ok(Reply::Refused { refusal, .. })) => {
            assert_eq!((next.status, next.refusals), (approval.status, approval.refusals + 1));
            Some(refusal)
        }
        _ => None,
    }
}

#[test]
fn the_table_holds() {
    let expired = step(after(&request(), &[]), &Input::Expire, EXPIRY).0;
    let two = ApprovalRequested { two_person: true, ..request() };
    Proof {
        name: "approval",
        about: "A human's decision, bound to exactly one action.",
        table: TABLE,
        states: vec![
            ("requested", (after(&request(), &[]), NOW)),
            ("requested", (after(&request(), &[]), EXPIRY)),
            ("requested", (after(&two, &[]), NOW)),
            ("approved", (after(&request(), &[yes("bob")]), NOW)),
            ("rejected", (after(&request(), &[no("bob")]), NOW)),
            ("expired", (expired, EXPIRY)),
            ("cancelled", (after(&request(), &[void()]), NOW)),
        ],
        inputs: vec![
            ("decide", yes("bob")),
            ("decide", no("bob")),
            ("decide", yes("ann")),
            ("void", void()),
            ("expire", Input::Expire),
            ("remind", Input::Remind),
            ("show", posted("C1/1", Status::Requested, 0)),
        ],
    }
    .check(|(approval, at), input| match step(approval.clone(), input, *at) {
        (next, Ok(_)) => Ok(next.state_name()),
        (_, Err(error)) => Err(error.code()),
    });
}

/// Whether the decision asks for the card to be shown as it stands.
fn updates(approval: &Approval, input: &Input, at: Millis) -> bool {
    let effects = approval.decide(input, at).unwrap().effects;
    effects.iter().any(|effect| matches!(effect, Effect::ShowApproval { reminder: false, .. }))
}

#[test]
fn what_stands_somewhere_is_brought_up_to_date_and_what_stands_nowhere_is_not() {
    let unseen = after(&request(), &[]);
    let text = Input::Show(showed(None, Status::Requested, 0));
    let plain = after(&request(), core::slice::from_ref(&text));
    let seen = after(&request(), &[text.clone(), posted("C1/1", Status::Requested, 0)]);
    for (input, at) in [(yes("bob"), NOW), (no("bob"), NOW), (void(), NOW), (Input::Expire, EXPIRY)] {
        assert!(!updates(&unseen, &input, at) && !updates(&plain, &input, at), "{input:?}");
        assert!(updates(&seen, &input, at), "{input:?}");
    }
    assert_eq!(seen.text(), Some("None requested 0"));
    assert!(!seen.shown.iter().any(|shown| seen.is_behind(shown)));
    // A card that comes after the decision is behind at once.
    let decided = after(&request(), &[yes("bob")]);
    assert!(updates(&decided, &posted("C1/1", Status::Requested, 0), NOW));
    assert!(!updates(&decided, &posted("C1/1", Status::Approved, 1), NOW));
    let late = after(&request(), &[yes("bob"), posted("C1/1", Status::Requested, 0)]);
    assert!(late.is_behind(late.shown_at(&name("C1/1")).unwrap()));
    let late = step(late, &posted("C1/1", Status::Approved, 1), NOW).0;
    assert!(!late.is_behind(late.shown_at(&name("C1/1")).unwrap()));
    // The same again is no new fact.
    assert!(late.decide(&posted("C1/1", Status::Approved, 1), NOW).unwrap().facts.is_empty());
    assert!(seen.decide(&text, NOW).unwrap().facts.is_empty());
}

#[test]
fn a_reminder_is_owed_to_every_place_and_leaves_the_card_as_it_is() {
    let seen = after(&request(), &[posted("C1/1", Status::Requested, 0), Input::Remind]);
    let card = seen.shown_at(&name("C1/1")).unwrap().card;
    assert!(seen.is_behind(&seen.shown[0]));
    let told = Showed {
        showing: Showing::Reminded,
        reminders: 1,
        card: "still waits".into(),
        ..showed(Some("C1/1"), Status::Requested, 0)
    };
    let seen = step(seen, &Input::Show(told), NOW).0;
    assert!(!seen.is_behind(&seen.shown[0]));
    assert_eq!((seen.shown.len(), seen.shown[0].card), (1, card));
}

#[test]
fn a_decision_on_a_card_that_was_never_shown_does_not_count() {
    let seen = after(&request(), &[posted("C1/1", Status::Requested, 0)]);
    let on = |card| Input::Decide(Attempt { card: Some(card), ..attempt("bob", Verdict::Approved) });
    assert_eq!(refused(&seen, &on(Digest([3; 32])), NOW), Some(Refusal::HashMismatch));
    let decision = seen.decide(&on(seen.shown[0].card), NOW).unwrap();
    let Event::ApprovalDecided(fact) = &decision.facts[0] else { panic!("{decision:?}") };
    assert_eq!(fact.card, Some(seen.shown[0].card));
}

#[test]
fn places_showings_and_cards_are_bounded() {
    let many: Vec<Input> =
        (0..PLACES_MAX).map(|n| posted(&alloc::format!("C1/{n}"), Status::Requested, 0)).collect();
    let full = after(&request(), &many);
    assert_eq!(full.shown.len(), PLACES_MAX);
    let bounded =
        |approval: &Approval, input: &Input| matches!(approval.decide(input, NOW), Err(Error::Bound { .. }));
    assert!(bounded(&full, &posted("C2/1", Status::Requested, 0)));
    assert!(!bounded(&full, &posted("C1/1", Status::Requested, 1)));
    let often: Vec<Input> = (0..SHOWINGS_MAX).map(|n| posted("C1/1", Status::Requested, n)).collect();
    let often = after(&request(), &often);
    assert_eq!(often.showings, SHOWINGS_MAX);
    assert!(bounded(&often, &posted("C1/1", Status::Requested, SHOWINGS_MAX)));
    let large = Showed { card: "x".repeat(CARD_LEN_MAX + 1), ..showed(None, Status::Requested, 0) };
    assert!(bounded(&after(&request(), &[]), &Input::Show(large)));
}

#[test]
fn permission_is_for_this_action_under_this_policy() {
    let approved = after(&request(), &[yes("bob")]);
    let (hash, policy, other) = (action().hash(), Digest([7; 32]), Digest([8; 32]));
    assert!(approved.permits(&hash, &policy));
    assert!(!approved.permits(&other, &policy) && !approved.permits(&hash, &other));
    assert!(!after(&request(), &[]).permits(&hash, &policy));
    assert!(!after(&request(), &[no("bob"), yes("cat")]).permits(&hash, &policy));
}

#[test]
fn who_may_not_decide_is_refused_and_recorded() {
    let open = after(&request(), &[]);
    assert_eq!(refused(&open, &yes("ann"), NOW), Some(Refusal::OwnRequest));
    assert_eq!(refused(&open, &yes("bob"), EXPIRY), Some(Refusal::Expired));
    assert_eq!(refused(&open, &yes("bob"), Millis(EXPIRY.0 - 1)), None);
    let token = Attempt { human: false, ..attempt("bob", Verdict::Approved) };
    assert_eq!(refused(&open, &Input::Decide(token), NOW), Some(Refusal::NotHuman));
    let stale = Attempt { action_hash: Digest([9; 32]), ..attempt("bob", Verdict::Approved) };
    assert_eq!(refused(&open, &Input::Decide(stale.clone()), NOW), Some(Refusal::HashMismatch));
    let reply = step(open, &Input::Decide(stale), NOW).1;
    assert_eq!(
        reply,
        Ok(Reply::Refused { refusal: Refusal::HashMismatch, code: Code::ApprovalHashMismatch })
    );

    let listed = ApprovalRequested { approvers: vec![name("sre"), name("eve")], ..request() };
    let open = after(&listed, &[]);
    assert_eq!(refused(&open, &yes("bob"), NOW), Some(Refusal::NotApprover));
    assert_eq!(refused(&open, &yes("eve"), NOW), None);
    let member = Attempt { groups: vec![name("sre")], ..attempt("bob", Verdict::Approved) };
    assert_eq!(refused(&open, &Input::Decide(member), NOW), None);
}

#[test]
fn two_person_takes_two_humans_besides_the_requester() {
    let two = ApprovalRequested { two_person: true, self_approval: true, ..request() };
    let open = after(&two, &[]);
    assert_eq!(refused(&open, &yes("ann"), NOW), Some(Refusal::OwnRequest));
    let (half, reply) = step(open, &yes("bob"), NOW);
    assert_eq!(reply, Ok(Reply::Counted { missing: 1 }));
    assert_eq!(refused(&half, &yes("bob"), NOW), Some(Refusal::SameHuman));
    assert_eq!(step(half.clone(), &no("bob"), NOW).0.status, Status::Rejected);
    assert_eq!(step(half, &yes("cat"), NOW).0.status, Status::Approved);
}

#[test]
fn own_approval_on_a_laptop_is_recorded_as_such() {
    let laptop = ApprovalRequested { self_approval: true, ..request() };
    let approved = after(&laptop, &[yes("ann")]);
    assert_eq!(approved.status, Status::Approved);
    assert!(approved.decisions[0].own_request);
    assert!(!after(&laptop, &[yes("bob")]).decisions[0].own_request);
}

#[test]
fn a_second_click_hears_the_first_answer_and_a_second_human_is_too_late() {
    let approved = after(&request(), &[yes("bob")]);
    assert_eq!(step(approved.clone(), &yes("bob"), NOW).1, Ok(Reply::Standing(Status::Approved)));
    assert_eq!(refused(&approved, &no("bob"), NOW), Some(Refusal::AlreadyDecided));
    assert_eq!(refused(&approved, &yes("cat"), NOW), Some(Refusal::AlreadyDecided));
    let two = ApprovalRequested { two_person: true, ..request() };
    let approved = after(&two, &[yes("bob"), yes("cat")]);
    assert_eq!(step(approved, &yes("bob"), NOW).1, Ok(Reply::Standing(Status::Approved)));
    let rejected = after(&two, &[yes("bob"), no("cat")]);
    assert_eq!(refused(&rejected, &yes("bob"), NOW), Some(Refusal::AlreadyDecided));
}

#[test]
fn refusals_and_reminders_are_bounded() {
    let many = vec![yes("ann"); REFUSALS_MAX as usize + 3];
    let approval = after(&request(), &many);
    assert_eq!(approval.refusals, REFUSALS_MAX);
    assert_eq!(step(approval.clone(), &yes("ann"), NOW).1.unwrap_err().code(), Code::Forbidden);
    // Those who may decide still can.
    assert_eq!(step(approval, &yes("bob"), NOW).0.status, Status::Approved);

    let reminded = after(&request(), &vec![Input::Remind; REMINDERS_MAX as usize + 3]);
    assert_eq!(reminded.reminders, REMINDERS_MAX);
}

#[test]
fn a_request_is_bounded() {
    let at_most = ApprovalRequested {
        count: COUNT_MAX,
        approvers: vec![name("a"); APPROVERS_MAX],
        reasons: vec!["r".repeat(REASON_LEN_MAX); REASONS_MAX],
        ..request()
    };
    assert_eq!(check(&at_most, ASKED), Ok(()));
    assert_eq!(check(&request(), EXPIRY), Err(Error::ExpiresAtOnce));
    for over in [
        ApprovalRequested { count: COUNT_MAX + 1, ..request() },
        ApprovalRequested { approvers: vec![name("a"); APPROVERS_MAX + 1], ..request() },
        ApprovalRequested { reasons: vec![String::new(); REASONS_MAX + 1], ..request() },
        ApprovalRequested { reasons: vec!["r".repeat(REASON_LEN_MAX + 1)], ..request() },
    ] {
        assert_eq!(check(&over, ASKED).unwrap_err().code(), Code::InvalidInput);
    }
    let long = Attempt { reason: Some("r".repeat(REASON_LEN_MAX + 1)), ..attempt("bob", Verdict::Approved) };
    assert_eq!(
        step(after(&request(), &[]), &Input::Decide(long), NOW).1.unwrap_err().code(),
        Code::InvalidInput
    );
}

fn any_input() -> impl Strategy<Value = Input> {
    let decide = (any::<bool>(), 0..4usize, 0..8u8, 0..8u8).prop_map(|(agree, who, human, shown)| {
        let decision = if agree || who == 1 { Verdict::Approved } else { Verdict::Rejected };
        let mut attempt = attempt(["ann", "bob", "cat", "dan"][who], decision);
        attempt.human = human > 0;
        if shown == 0 {
            attempt.action_hash = Digest([9; 32]);
        }
        Input::Decide(attempt)
    });
    prop_oneof![
        8 => decide,
        1 => Just(void()),
        1 => Just(Input::Expire),
        1 => Just(Input::Remind),
    ]
}

proptest! {
    #[test]
    fn any_history_keeps_the_promises(
        two_person: bool, self_approval: bool, count in 0..4u32,
        inputs in prop::collection::vec((any_input(), 0..1_500u64), 0..40),
    ) {
        let request = ApprovalRequested { two_person, self_approval, count, ..request() };
        let start = Approval::new(&request, ASKED);
        let (mut approval, mut at, mut log) = (start.clone(), ASKED, vec![]);
        for (input, wait) in inputs {
            at = Millis(at.0 + wait);
            let before = approval.clone();
            if let Ok(decision) = approval.decide(&input, at) {
                for fact in decision.facts {
                    // A snapshot may be taken between any two facts.
                    let text = serde_json::to_string(&approval).unwrap();
                    approval = serde_json::from_str::<Approval>(&text).unwrap().apply(&fact, at);
                    log.push((fact, at));
                }
            }
            if before.status != Status::Requested {
                // Only a yes can become void, by a change of what it was said to.
                let voided = before.status == Status::Approved && approval.status == Status::Cancelled;
                let (status, why) = (before.status, before.voided.clone());
                let (status, why) = if voided { (Status::Cancelled, approval.voided.clone()) } else { (status, why) };
                let counted = Approval { refusals: approval.refusals, status, voided: why, ..before };
                prop_assert_eq!(&approval, &counted, "what is settled stays");
            }
            if approval.status == Status::Approved {
                let humans: BTreeSet<_> = approval.decisions.iter().map(|d| &d.by).collect();
                let needed = if two_person { count.max(2) } else { count.max(1) };
                prop_assert!(humans.len() as u32 >= needed);
                prop_assert!(approval.decisions.iter().all(|d| d.decision == Verdict::Approved && d.at < EXPIRY));
                let own = humans.contains(&name("ann"));
                prop_assert!(!own || self_approval && !two_person);
            }
            let permitted = approval.permits(&request.action_hash, &request.policy_version);
            prop_assert_eq!(permitted, approval.status == Status::Approved);
            prop_assert!(!approval.permits(&Digest([9; 32]), &request.policy_version));
        }
        let whole = log.iter().fold(start, |a, (fact, at)| a.apply(fact, *at));
        prop_assert_eq!(whole, approval);
    }
}
