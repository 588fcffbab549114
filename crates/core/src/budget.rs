//! Budgets.

use crate::word::words;

words! {
    /// What a budget limits.
    Dimension {
        /// Money, in millionths of a dollar.
        Usd = "usd",
        /// Tokens of models.
        Tokens = "tokens",
        /// Time, in milliseconds.
        Time = "time",
        /// Writes to the outside.
        Writes = "writes",
    }
}
