//! Ingress keys.

use crate::word::words;

words! {
    /// Where a delivery came from.
    Source {
        /// A GitHub webhook.
        Github = "github" | "github_webhook",
        /// An API call.
        Api = "api",
        /// A Slack command or action.
        Slack = "slack",
        /// A schedule's slot.
        Scheduler = "scheduler",
        /// Any other signed hook.
        Hook = "hook",
        /// The command line.
        Cli = "cli",
        /// An item of a queue.
        Queue = "queue",
    }
}
