//! Notices: what people are told of by themselves, and with which titles.

use crate::event::words::Notice;
use crate::id::StepId;
use alloc::format;
use alloc::string::{String, ToString as _};

/// Of what a tenant can want to be told, beside what all are told of.
pub const WANTED: [Notice; 2] = [Notice::Approval, Notice::Failed];

/// The title of a message to people.
#[must_use]
pub fn title(kind: Notice, step: Option<&StepId>) -> String {
    match (kind, step) {
        (Notice::Escalation, Some(step)) => format!("{step} needs a human"),
        (Notice::Approval | Notice::Reminder, Some(step)) => format!("{step} waits for an approval"),
        (Notice::Notify, _) => "Outcome unknown".to_string(),
        (Notice::Failed, _) => "Run failed".to_string(),
        (Notice::Escalation | Notice::Approval | Notice::Reminder, None)
        | (Notice::Nudge | Notice::Send, None | Some(_)) => "Windlass".to_string(),
    }
}
