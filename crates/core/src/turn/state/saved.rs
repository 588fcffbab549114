//! The saved form of a stream.

use super::{Body, Stream, share_item};
use crate::pool::Pool;
use crate::stream::StreamId;
use serde::{Deserialize, Serialize};

/// The saved form of one stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The version of this form.
    pub form: u32,
    /// Which stream.
    pub stream: StreamId,
    /// What it was folded to, and up to where.
    pub state: Stream,
}

impl Snapshot {
    /// The form that this version writes, and the only one it reads: one of another form is left alone, and what it would
    /// have told is read from the log. It is raised whenever what is saved of any stream changes, which the file
    /// `tests/golden/saved.txt` tells.
    pub const FORM: u32 = 10;

    /// Lets the stream share what it has in common with others that were read.
    pub fn share(&mut self, pool: &mut Pool) {
        let Stream { tenant, body, .. } = &mut self.state;
        match body {
            Body::Item(item) => share_item(item, tenant, pool),
            Body::Run(run) => {
                run.share(pool);
                run.share_names(pool);
                *tenant = run.born.home.tenant.clone();
            }
            // tidy: of the others there are few.
            _ => {}
        }
    }
}
