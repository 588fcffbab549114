//! One look at one approval or message: what is missing in Slack is put there, and it is recorded that it stands there.

use super::{Came, Desk};
use crate::cards::blocks::{self, Form, Message};
use crate::cards::{Card, Facts, slack};
use std::time::Duration;
use windlass_core::approval::{
    Approval, Channel, Input, PLACES_MAX, SHOWINGS_MAX, Showed, Showing, Shown, Status,
};
use windlass_core::id::{ApprovalId, Name, NoticeId, RunId};
use windlass_core::run::Actor;
use windlass_core::time::Millis;
use windlass_core::turn::command::Command;
use windlass_core::turn::state::Body;
use windlass_engine::port::Clock as _;
use windlass_executor::clock::System;
use windlass_executor::config::Slack as Settings;
use windlass_executor::tools::{Again, Trouble};
use windlass_store::store::Embedded;

/// A message to people.
pub(super) struct Notice {
    /// Where to.
    pub(super) channel: String,
    pub(super) title: String,
    pub(super) message: String,
    /// Whether another channel took it: this one is given up where it refuses for good.
    pub(super) taken: bool,
}

impl Desk {
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Embedded) -> T + Send + 'static,
    ) -> Option<T> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.engine.read_then(look, move |seen| {
            let _ = send.send(seen);
        });
        receive.await.ok()?.ok()
    }

    /// Puts it on record. It is not refused because there is much to do; and who looks afterwards sees it.
    fn record(&self, approval: &Approval, showed: Showed) {
        let command =
            Command::Decide { run: approval.run, approval: approval.id, input: Input::Show(showed) };
        self.engine.report(Actor::SYSTEM, command);
    }
}

/// Shows an approval as it stands.
pub(super) async fn approval(desk: &Desk, run: RunId, id: ApprovalId, unsure: bool) -> Came {
    // One that is gone, or an engine that has ended, has nothing to show.
    let gathered = desk.look(move |store| Facts::gather(store.state(), run, id)).await;
    let Some(facts) = gathered.flatten() else { return Came::Done };
    let card = Card::new(&facts);
    let late = facts.approval.status != Status::Requested;
    if !late && facts.approval.text().is_none() {
        desk.record(&facts.approval, card.showed(&facts.approval));
    }
    let showing =
        Place { desk, settings: desk.config.slack(facts.tenant.as_str()), facts: &facts, card: &card };
    match showing.bring(unsure, System.now()).await {
        Ok(Some(wait)) => Came::Later(wait),
        Ok(None) => Came::Done,
        Err(trouble) => Came::Failed { trouble, late },
    }
}

/// An approval on its way into channels.
struct Place<'a> {
    desk: &'a Desk,
    settings: Settings,
    facts: &'a Facts,
    card: &'a Card,
}

impl Place<'_> {
    fn approval(&self) -> &Approval {
        &self.facts.approval
    }

    /// Puts everything in its place. Returns when there is something to do again.
    async fn bring(&self, unsure: bool, now: Millis) -> Result<Option<Duration>, Trouble> {
        let approval = self.approval();
        if approval.showings >= SHOWINGS_MAX {
            return Ok(None);
        }
        // What does not work in one place keeps nothing from the others.
        let mut came = Ok(false);
        for shown in approval.shown.iter().filter(|shown| approval.is_behind(shown)) {
            let done = self.catch_up(shown, unsure).await;
            came = came.and_then(|_| done.map(|()| true));
        }
        let open = approval.status == Status::Requested && now < approval.expires_at;
        let here =
            |to: &str| approval.shown.iter().any(|s| s.to.as_ref().is_some_and(|known| known.as_str() == to));
        for (to, showing) in self.wanted(now) {
            // One that is over is not posted any more; but one whose answer was lost may stand there with its buttons.
            if !here(to) && approval.shown.len() < PLACES_MAX && (open || unsure) {
                let done = self.post(to, showing, (open, unsure)).await;
                came = came.and_then(|_| done.map(|()| true));
            }
        }
        Ok(match came? {
            _ if !open => None,
            // What comes next is counted from what was just recorded.
            true => Some(Duration::ZERO),
            false => self.next(now),
        })
    }

    /// Where it should be seen now.
    fn wanted(&self, now: Millis) -> Vec<(&str, Showing)> {
        let approvers = self.approval().approvers.iter();
        let own = approvers.filter_map(|name| self.settings.channels.get(name)).next();
        let Some(first) = own.or(self.settings.channel.as_ref()) else { return Vec::new() };
        let mut wanted = vec![(first.as_str(), Showing::Requested)];
        if let Some((after, to)) = &self.settings.escalate
            && now >= self.approval().requested_at + *after
            && to != first
        {
            wanted.push((to.as_str(), Showing::Escalated));
        }
        wanted
    }

    /// Asks for a reminder where it is time for one, and says when to look again.
    fn next(&self, now: Millis) -> Option<Duration> {
        let approval = self.approval();
        let posted = approval.shown.iter().filter(|shown| shown.place.is_some());
        let last = posted.map(|shown| shown.at).max();
        let remind = self.settings.remind.zip(last).map(|(every, last)| last + every);
        if remind.is_some_and(|at| now >= at) {
            let (run, approval) = (approval.run, approval.id);
            // What comes of it is an effect, which comes back here.
            let command = Command::Decide { run, approval, input: Input::Remind };
            self.desk.engine.report(Actor::SYSTEM, command);
        }
        let escalate = self.settings.escalate.as_ref().map(|(after, _)| approval.requested_at + *after);
        let ahead = remind.into_iter().chain(escalate).filter(|at| *at > now && *at < approval.expires_at);
        ahead.min().map(|at| Duration::from_millis(at.since(now).0))
    }

    fn form(&self, to: Option<&Name>) -> Form {
        let escalated = self.settings.escalate.as_ref().is_some_and(|(_, channel)| {
            to.is_some_and(|to| to.as_str() == channel) && self.settings.channel.as_ref() != Some(channel)
        });
        Form {
            link_only: self.settings.link_only.clone(),
            public_url: self.desk.config.public_url.clone(),
            escalated,
        }
    }

    fn showed(&self, message: &Message, showing: Showing, to: &str, place: &Name) -> Showed {
        Showed {
            channel: Channel::Slack,
            to: Some(Name::clean(to)),
            place: Some(place.clone()),
            showing,
            card: message.bytes(),
            ..self.card.showed(self.approval())
        }
    }

    /// Posts the card. One that an earlier try, or an earlier process, may have posted is looked for first.
    async fn post(&self, to: &str, showing: Showing, (open, unsure): (bool, bool)) -> Result<(), Trouble> {
        let (approval, tenant, slack) = (self.approval(), &self.facts.tenant, &self.desk.slack);
        let message = blocks::message(self.card, approval, &self.form(Some(&Name::clean(to))));
        let mark = slack::mark(&approval.id.to_string(), to);
        let found = match unsure || approval.requested_at < self.desk.since {
            true => look_for(self.desk, tenant, to, None, &mark).await?,
            false => None,
        };
        let place = match found {
            Some(place) => {
                // What stands there is from another time; from now on it is what is recorded.
                slack.update(tenant, &place, &message).await?;
                place
            }
            None if open => slack.post(tenant, to, None, &message, &mark).await?,
            None => return Ok(()),
        };
        self.desk.record(approval, self.showed(&message, showing, to, &place));
        Ok(())
    }

    /// Brings a place up to date: the card as it stands now, or a reminder below it.
    async fn catch_up(&self, shown: &Shown, unsure: bool) -> Result<(), Trouble> {
        let (approval, tenant, slack) = (self.approval(), &self.facts.tenant, &self.desk.slack);
        let Some(place) = &shown.place else { return Ok(()) };
        let to = shown.to.as_ref().map_or("", Name::as_str);
        if (shown.status, shown.decisions as usize) != (approval.status, approval.decisions.len()) {
            let message = blocks::message(self.card, approval, &self.form(shown.to.as_ref()));
            slack.update(tenant, place, &message).await?;
            self.desk.record(approval, self.showed(&message, Showing::Updated, to, place));
            return Ok(());
        }
        let message = blocks::reminder(self.card, approval);
        let mark = slack::mark(&format!("{} reminder {}", approval.id, approval.reminders), place.as_str());
        let (channel, ts) = place.as_str().split_once('/').unwrap_or_default();
        let found = match unsure {
            true => look_for(self.desk, tenant, channel, Some(ts), &mark).await?,
            false => None,
        };
        if found.is_none() {
            slack.post(tenant, channel, Some(ts), &message, &mark).await?;
        }
        self.desk.record(approval, self.showed(&message, Showing::Reminded, to, place));
        Ok(())
    }
}

/// Looks for a message. Where one may not look, it is as if there was none: better twice than not at all.
async fn look_for(
    desk: &Desk,
    tenant: &Name,
    to: &str,
    thread: Option<&str>,
    mark: &str,
) -> Result<Option<Name>, Trouble> {
    match desk.slack.find(tenant, to, thread, mark).await {
        Ok(found) => Ok(found),
        Err(trouble) if trouble.again == Again::Never => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// Tells people something, and puts it on record that they were told.
pub(super) async fn notice(desk: &Desk, id: NoticeId, notice: &Notice, unsure: bool) -> Came {
    let found = desk
        .look(move |store| {
            store.state().streams().find_map(|(_, stream)| match &stream.body {
                Body::Run(run) if run.rare().notices.contains_key(&id) => {
                    Some((run.id(), run.born.home.tenant.clone()))
                }
                // tidy: only runs send messages.
                _ => None,
            })
        })
        .await;
    let Some((run, tenant)) = found.flatten() else { return Came::Done };
    let to = &notice.channel;
    let message = blocks::notice(&notice.title, run, &notice.message);
    let mark = slack::mark(&id.to_string(), to);
    let posted = async {
        let there = unsure && look_for(desk, &tenant, to, None, &mark).await?.is_some();
        if !there {
            desk.slack.post(&tenant, to, None, &message, &mark).await?;
        }
        Ok::<(), Trouble>(())
    };
    match posted.await {
        Err(trouble) if !(notice.taken && trouble.again == Again::Never) => {
            return Came::Failed { trouble, late: false };
        }
        Err(_) | Ok(()) => {}
    }
    desk.engine.report(Actor::SYSTEM, Command::Noticed { run, notice: id, delivered: true });
    Came::Done
}
