//! Tasks.

use crate::word::words;

words! {
    /// What an agent says of its own accord.
    SignalKind {
        /// It is done.
        Complete = "complete",
        /// It needs a human.
        Escalate = "escalate",
    }
}

words! {
    /// Why a task is stuck.
    Stuck {
        /// Nothing was heard of it for longer than its heartbeat time-out.
        NoHeartbeat = "no_heartbeat",
        /// It lives, but has been idle for too long.
        NoProgress = "no_progress",
        /// Its session is gone.
        SessionDead = "session_dead",
    }
}
