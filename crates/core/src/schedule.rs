//! Schedules.

use crate::word::words;

words! {
    /// What happens to slots that passed while nothing ran.
    CatchUp {
        /// They are skipped.
        None = "none",
        /// One run stands for all of them.
        One = "one",
        /// Each gets its run.
        All = "all",
    }
}

words! {
    /// What happens to a slot while the run before it is still under way.
    Overlap {
        /// The slot is skipped.
        Skip = "skip",
        /// Its run waits.
        Queue = "queue",
        /// The run before is cancelled.
        Cancel = "cancel",
    }
}

words! {
    /// Why a slot made no run.
    SkipReason {
        /// The run before is still under way.
        Overlap = "overlap",
        /// It passed while nothing ran.
        Missed = "missed",
        /// The schedule was paused.
        Paused = "paused",
    }
}
