//! What people are shown of an approval: which card stands where, and whether it is behind.

use super::{Approval, Channel, Error, Reply, Showing, Status, bound};
use crate::digest::Digest;
use crate::effect::Effect;
use crate::event::{ApprovalShown, Event};
use crate::id::Name;
use crate::machine::Decision;
use crate::private::Private;
use crate::time::Millis;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The most bytes of a card.
pub const CARD_LEN_MAX: usize = 512 * 1024;
/// The most places where one approval is shown.
pub const PLACES_MAX: usize = 8;
/// The most times that one approval is shown.
pub const SHOWINGS_MAX: u32 = 256;

/// The hash of a card: what a decision says that it was made on.
#[must_use]
pub fn card_hash(card: &str) -> Digest {
    Digest::of(&[b"windlass card v1\n", card.as_bytes()])
}

/// What stands in one place where an approval is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// By which way people see it.
    pub channel: Channel,
    /// Where it was sent to, as it is configured; absent for the text that the command line and the API show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Name>,
    /// Where it stands there: how a message is found again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Name>,
    /// The hash of what stands there.
    pub card: Digest,
    /// When something was last put there.
    pub at: Millis,
    /// The status that stands there.
    pub status: Status,
    /// How many decisions stand there.
    pub decisions: u32,
    /// How many reminders went there.
    pub reminders: u32,
    /// The text itself, where it has no place of its own; absent once redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A card that was put in front of people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Showed {
    /// By which way.
    pub channel: Channel,
    /// Why.
    pub showing: Showing,
    /// Where it was sent to.
    pub to: Option<Name>,
    /// Where it stands there.
    pub place: Option<Name>,
    /// The status that it shows.
    pub status: Status,
    /// How many decisions it shows.
    pub decisions: u32,
    /// How many reminders it tells of.
    pub reminders: u32,
    /// Its exact bytes.
    pub card: String,
}

impl Approval {
    /// The text that the command line and the API show, where it is on record.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.shown.iter().find(|shown| shown.place.is_none())?.text.as_deref()
    }

    /// What stands in a place.
    #[must_use]
    pub fn shown_at(&self, place: &Name) -> Option<&Shown> {
        self.shown.iter().find(|shown| shown.place.as_ref() == Some(place))
    }

    /// Whether a place does not show how the approval stands.
    #[must_use]
    pub fn is_behind(&self, shown: &Shown) -> bool {
        let (status, decisions) = (shown.status, shown.decisions as usize);
        let moved = (status, decisions) != (self.status, self.decisions.len());
        let unreminded = self.status == Status::Requested && shown.reminders < self.reminders;
        shown.place.is_some() && (moved || unreminded)
    }

    /// What brings the places up to date where a card stands, if one stands anywhere.
    pub(super) fn update(&self) -> Vec<Effect> {
        let stands = self.shown.iter().any(|shown| shown.place.is_some());
        let effect = Effect::ShowApproval { approval: self.id, run: self.run, reminder: false };
        stands.then_some(effect).into_iter().collect()
    }

    /// Puts it on record what people were shown. What is on record already is not recorded again.
    pub(super) fn show(&self, showed: &Showed) -> Result<Decision<Reply>, Error> {
        bound("a card's length", showed.card.len(), CARD_LEN_MAX)?;
        let hash = card_hash(&showed.card);
        let known = self.shown.iter().find(|shown| shown.place == showed.place);
        let same = |shown: &&Shown| {
            let again = shown.card == hash && shown.decisions == showed.decisions;
            showed.place.is_none() || again && shown.status == showed.status
        };
        if showed.showing != Showing::Reminded && known.filter(same).is_some() {
            return Ok(Decision::reply(Reply::Standing(self.status)));
        }
        bound("the number of places", self.shown.len() + usize::from(known.is_none()), PLACES_MAX)?;
        bound("the number of showings", self.showings as usize + 1, SHOWINGS_MAX as usize)?;
        let fact = Event::from(ApprovalShown {
            approval_id: self.id,
            pipeline_id: self.run,
            step: self.step.clone(),
            channel: showed.channel,
            showing: showed.showing,
            to: showed.to.clone(),
            place: showed.place.clone(),
            status: showed.status,
            decisions: showed.decisions,
            reminders: showed.reminders,
            card_hash: hash,
            card: Private::New(showed.card.clone()),
        });
        let after = self.clone().apply(&fact, self.requested_at);
        let behind = after.shown.iter().any(|shown| after.is_behind(shown));
        let decision = Decision::reply(Reply::Shown).fact(fact);
        Ok(if behind { Decision { effects: after.update(), ..decision } } else { decision })
    }

    /// What stands in a place now. A reminder stands beside the card and leaves it as it is.
    pub(super) fn note(&mut self, e: &ApprovalShown, at: Millis) {
        self.showings = self.showings.saturating_add(1);
        if let Some(shown) = self.shown.iter_mut().find(|shown| shown.place == e.place) {
            (shown.at, shown.reminders) = (at, shown.reminders.max(e.reminders));
            if e.showing != Showing::Reminded {
                (shown.card, shown.status, shown.decisions) = (e.card_hash, e.status, e.decisions);
            }
            return;
        }
        self.shown.push(Shown {
            channel: e.channel,
            to: e.to.clone(),
            place: e.place.clone(),
            card: e.card_hash,
            at,
            status: e.status,
            decisions: e.decisions,
            reminders: e.reminders,
            text: if e.place.is_none() { e.card.get() } else { None },
        });
    }
}
