//! The observer: told of each batch, so that metrics and log lines need no second look at it.
//!
//! ```text
//!  loop: a batch ─▶ Observer::batch ─▶ durable ─▶ what it returned, on the thread that made it so
//! ```

use std::time::Duration;
use windlass_core::time::Millis;
use windlass_core::turn::index::Move;
use windlass_core::turn::state::State;
use windlass_engine::port::Decided;

/// Called once when its batch is durable, with how long that took; dropped where the batch never becomes durable.
pub type Durable = Box<dyn FnOnce(Duration) + Send>;

/// One batch that was decided. `state` has its facts already.
pub struct Observed<'a> {
    /// The state after the batch.
    pub state: &'a State,
    /// The facts, in their order.
    pub facts: &'a [Decided],
    /// How runs moved between statuses.
    pub moves: Vec<Move>,
    /// The time of the batch.
    pub at: Millis,
}

/// Looks at every batch. It runs on the loop, so it only takes notes and never waits.
pub trait Observer: Send {
    /// Takes notes of a batch that is not durable yet.
    fn batch(&mut self, batch: Observed<'_>) -> Durable;
}
