//! Workspaces and sessions.

use crate::word::words;

words! {
    /// How a working directory is made.
    Mode {
        /// A git worktree.
        Worktree = "worktree",
        /// A plain folder.
        Folder = "folder",
    }
}

words! {
    /// When a working directory is kept after its run.
    Keep {
        /// When the run did not complete.
        OnFailure = "on_failure",
        /// Always.
        Always = "always",
        /// Never.
        Never = "never",
    }
}
