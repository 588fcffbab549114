//! What the store tells of its batches, on its way to the counts and the log lines.

use super::{Metrics, Noted};
use crate::telemetry::{Story, Teller};
use std::sync::Arc;
use windlass_store::observer::{Durable, Observed, Observer};

/// Counts every batch, and tells of it where somebody listens.
pub struct Watch {
    /// Where batches are counted.
    pub metrics: Arc<Metrics>,
    /// Where log lines and spans go; absent where nobody wants them.
    pub teller: Option<Teller>,
}

impl Observer for Watch {
    fn batch(&mut self, batch: Observed<'_>) -> Durable {
        let mut noted = Noted::default();
        let mut story = self.teller.as_ref().map(|teller| (teller.clone(), Story::default()));
        for decided in batch.facts {
            noted.see(&decided.fact.event);
            if let Some((_, story)) = &mut story {
                story.see(batch.state, &decided.fact.event, &decided.by, batch.at);
            }
        }
        noted.moved(batch.moves);
        if let Some((_, story)) = &mut story {
            story.moved(batch.state, noted.moves(), batch.at);
        }
        let (metrics, at) = (self.metrics.clone(), batch.at);
        Box::new(move |took| {
            if let Some((teller, story)) = story {
                teller.tell(story.into_lines());
            }
            metrics.committed(&noted, at, took);
        })
    }
}
