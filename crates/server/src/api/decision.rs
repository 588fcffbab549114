//! The one door through which every decision on an approval goes, whether it comes by command line, HTTP or Slack.

use super::{Caller, Problem};
use crate::app::App;
use crate::cards::{Card, Facts};
use windlass_core::approval::{self, Attempt, Channel, Status, Verdict, card_hash};
use windlass_core::command::{Command, Reply};
use windlass_core::digest::Digest;
use windlass_core::id::{ApprovalId, Name, RunId};
use windlass_core::run::Actor;

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
    let attempt = Attempt {
        decision: wish.decision,
        by: caller.user(),
        human: wish.human,
        groups: wish.groups,
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
