//! The one door through which every decision on an approval goes, whether it comes by command line, HTTP or Slack.

use super::{Caller, Problem};
use crate::app::App;
use crate::cards::text::visible;
use crate::cards::{Card, Facts};
use windlass_core::approval::{self, Attempt, Channel, Refusal, Status, Verdict, card_hash};
use windlass_core::digest::Digest;
use windlass_core::id::{ApprovalId, Name, RunId};
use windlass_core::run::Actor;
use windlass_core::turn::command::{Command, Reply};

/// How somebody says which card they saw.
pub(crate) enum Seen {
    /// They do not.
    Unsaid,
    /// The text with this hash.
    Text(Digest),
    /// Whatever stands in this place.
    At(Name),
}

/// What somebody wants to decide.
pub(crate) struct Wish {
    pub(crate) decision: Verdict,
    pub(crate) human: bool,
    pub(crate) groups: Vec<Name>,
    pub(crate) action_hash: Digest,
    pub(crate) channel: Channel,
    pub(crate) reason: Option<String>,
    pub(crate) seen: Seen,
}

/// The text that is shown for an approval: the recorded one, or the one that will be.
pub(crate) async fn text(app: &App, run: RunId, approval: ApprovalId) -> Result<Option<String>, Problem> {
    let facts = app.look(move |store| Facts::gather(store.state(), run, approval)).await?;
    Ok(facts.map(|facts| match facts.approval.text() {
        Some(text) => text.to_owned(),
        None => Card::new(&facts).text(),
    }))
}

/// The hash of a text that is shown.
pub(crate) fn hash(text: &str) -> Digest {
    card_hash(text)
}

/// Decides. What was shown is on record before the decision is.
pub(crate) async fn decide(
    app: &App,
    caller: &Caller,
    (run, approval): (RunId, ApprovalId),
    wish: Wish,
) -> Result<Option<approval::Reply>, Problem> {
    let facts = app.look(move |store| Facts::gather(store.state(), run, approval)).await?;
    let card = match (&wish.seen, &facts) {
        (Seen::Text(hash), Some(facts)) => {
            if facts.approval.text().is_none() && facts.approval.status == Status::Requested {
                let shown = Card::new(facts).showed(&facts.approval);
                let input = approval::Input::Show(shown);
                app.engine.report(Actor::SYSTEM, Command::Decide { run, approval, input });
            }
            Some(*hash)
        }
        (Seen::At(place), Some(facts)) => facts.approval.shown_at(place).map(|shown| shown.card),
        (Seen::Unsaid, _) | (Seen::Text(_) | Seen::At(_), None) => None,
    };
    // A human's groups are those of their token and those of the configuration, by whichever way they come.
    let mut groups = wish.groups;
    if wish.human {
        groups.extend(app.config.groups_of(&caller.user()));
    }
    let attempt = Attempt {
        decision: wish.decision,
        by: caller.user(),
        human: wish.human,
        groups,
        action_hash: wish.action_hash,
        channel: wish.channel,
        reason: wish.reason,
        card,
    };
    let command = Command::Decide { run, approval, input: approval::Input::Decide(attempt) };
    match app.ask(caller, command).await? {
        Reply::Approval(reply) => Ok(Some(reply)),
        // tidy: a decision is answered by the approval.
        _ => Ok(None),
    }
}

/// Why a decision does not count, in words: who the caller is, who is asked, and how one comes to be among them. The word
/// of the refusal comes first, as it stands in the record.
pub(crate) async fn refused(
    app: &App,
    caller: &Caller,
    (run, approval): (RunId, ApprovalId),
    refusal: Refusal,
) -> Result<String, Problem> {
    let found =
        app.look(move |store| store.state().run(run)?.rare().approvals.get(&approval).cloned()).await?;
    let asked = found.as_ref().map(|found| list(&found.approvers)).unwrap_or_default();
    let user = caller.user();
    let did = match &found {
        Some(found) if found.changed_only(&user) => "changed the run's variables, or retried or forked it",
        Some(_) | None => "started the run",
    };
    let voided = found.and_then(|found| found.voided);
    let mut groups = caller.groups.clone();
    groups.extend(app.config.groups_of(&user));
    let among = match groups.as_slice() {
        [] => "in no group".to_owned(),
        [one] => format!("in the group {one}"),
        several => format!("in the groups {}", list(several)),
    };
    let why = match refusal {
        Refusal::NotApprover => format!(
            "you are `{user}`, {among}; asked is {asked}. The owner adds you to a group under `groups:` in windlass.yaml, or with `windlass token create --groups`"
        ),
        Refusal::OwnRequest => format!(
            "you are `{user}`, who {did}, and somebody else has to agree. Where that is not wanted, the owner sets `approvals: {{self: allow}}` in windlass.yaml; two persons are always two others"
        ),
        Refusal::SameHuman => format!("you are `{user}`, who agreed already: another human has to"),
        Refusal::NotHuman => {
            format!("`{user}` is a program: a human decides, with a token that was made without --service")
        }
        Refusal::HashMismatch => "the action is not the one that was shown, or the card never was".to_owned(),
        Refusal::Expired => "it is too late".to_owned(),
        Refusal::AlreadyDecided => match voided {
            Some(why) => {
                format!("it was withdrawn: {}. What is asked now, `windlass approvals` lists", visible(&why))
            }
            None => "it was decided before".to_owned(),
        },
    };
    Ok(format!("{refusal}: {why}"))
}

fn list(names: &[Name]) -> String {
    let names: Vec<String> = names.iter().map(|name| visible(name.as_str())).collect();
    names.join(", ")
}
