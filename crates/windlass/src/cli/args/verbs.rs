//! What can be typed after a noun: what is done with locks, queues, workers, schedules, tokens, the store.

use clap::{Args as Flags, Subcommand};
use std::path::PathBuf;

#[derive(Flags, Debug)]
pub(in crate::cli) struct TakeArgs {
    /// Which
    pub(in crate::cli) name: String,
    /// Who holds it; you where absent
    #[arg(long)]
    pub(in crate::cli) holder: Option<String>,
    /// How long to stand in line, such as 30s
    #[arg(long, value_name = "T")]
    pub(in crate::cli) wait: Option<String>,
    /// A command to run while it is held; WL_EPOCH is the fence
    #[arg(last = true, value_name = "CMD")]
    pub(in crate::cli) command: Vec<String>,
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum LockVerb {
    /// Take a lock
    #[command(
        after_help = "examples:\n  windlass lock acquire deploy --wait 30s -- ./deploy\n  windlass lock acquire deploy --holder ci-7 --metadata '{\"job\":7}'"
    )]
    Acquire {
        #[command(flatten)]
        take: TakeArgs,
        /// What the holder says about itself, as JSON
        #[arg(long, value_name = "JSON")]
        metadata: Option<String>,
    },
    /// Give a lock back
    #[command(after_help = "examples:\n  windlass lock release deploy --holder ci-7")]
    Release {
        /// The lock
        name: String,
        /// Who holds it; you where absent
        #[arg(long)]
        holder: Option<String>,
        /// Only the grant with this epoch
        #[arg(long)]
        epoch: Option<u64>,
    },
    /// Take a lock away from whoever has it
    #[command(after_help = "examples:\n  windlass lock break merge-main --yes")]
    Break {
        /// The lock
        name: String,
        /// Only the grant with this epoch
        #[arg(long)]
        epoch: Option<u64>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum SemaphoreVerb {
    /// Take slots of a semaphore
    #[command(after_help = "examples:\n  windlass semaphore acquire builders --weight 2 --wait 5m -- make")]
    Acquire {
        #[command(flatten)]
        take: TakeArgs,
        /// How many slots
        #[arg(long, default_value_t = 1)]
        weight: u32,
    },
    /// Give slots back
    #[command(after_help = "examples:\n  windlass semaphore release builders --holder ci-7")]
    Release {
        /// The semaphore
        name: String,
        /// Who holds them; you where absent
        #[arg(long)]
        holder: Option<String>,
        /// Only the grant with this epoch
        #[arg(long)]
        epoch: Option<u64>,
    },
    /// Take the slots of a holder away
    #[command(after_help = "examples:\n  windlass semaphore break builders --holder ci-7 --yes")]
    Break {
        /// The semaphore
        name: String,
        /// The holder
        #[arg(long)]
        holder: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum RunbookVerb {
    /// Show a version and its text
    #[command(
        after_help = "examples:\n  windlass runbooks show release\n  windlass runbooks show release@3f2a9c"
    )]
    Show {
        /// The name of a deployed runbook, NAME@HASH, or a hash
        #[arg(value_name = "NAME[@HASH]")]
        runbook: String,
    },
    /// Show how two versions differ
    #[command(
        after_help = "examples:\n  windlass runbooks diff release           the active version and the one before it\n  windlass runbooks diff release@3f2a9c    that version and the active one"
    )]
    Diff {
        /// The name of a deployed runbook, NAME@HASH, or a hash
        #[arg(value_name = "NAME[@HASH]")]
        from: String,
        /// The version to compare it with
        #[arg(value_name = "NAME[@HASH]")]
        to: Option<String>,
    },
    /// Make an earlier version the active one again; runs under way keep theirs
    #[command(
        after_help = "examples:\n  windlass runbooks rollback release\n  windlass runbooks rollback release --to 3f2a9c"
    )]
    Rollback {
        /// The name of the runbook
        name: String,
        /// The hash of the version, or its beginning; the one that was active before where absent
        #[arg(long, value_name = "HASH")]
        to: Option<String>,
    },
    /// Leave a name without an active version: its schedules and triggers end, its workers stop, runs under way go on
    #[command(after_help = "examples:\n  windlass runbooks undeploy release --yes")]
    Undeploy {
        /// The name of the runbook
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum QueueVerb {
    /// Push an item
    #[command(
        after_help = "examples:\n  windlass queue push bugs --data '{\"bug\":\"BUG-1\"}' --priority 5\n  make-item | windlass queue push bugs --data - --dedupe BUG-1"
    )]
    Push {
        /// The queue
        queue: String,
        /// What is to be worked on, as JSON, or - for stdin; after `queue push`, `--data` means this too
        #[arg(long, value_name = "JSON", required = true)]
        payload: String,
        /// Higher is taken first
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        priority: i32,
        /// How long it waits before it can be taken
        #[arg(long, value_name = "D")]
        delay: Option<String>,
        /// While an item with this key waits or is worked on, a second one is the first
        #[arg(long, value_name = "K")]
        dedupe: Option<String>,
    },
    /// List the items of a queue, oldest first; without a queue, the queues
    #[command(after_help = "examples:\n  windlass queue list bugs --status dead")]
    List {
        /// The queue
        queue: Option<String>,
        /// pending, processing, completed, failed or dead
        #[arg(long)]
        status: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 50, value_parser = super::limit)]
        limit: usize,
        /// Where a page begins: the next_cursor of the one before
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a queue, or an item of it
    #[command(after_help = "examples:\n  windlass queue show bugs\n  windlass queue show bugs ITEM")]
    Show {
        /// The queue
        queue: String,
        /// The item, or the beginning of its id
        item: Option<String>,
    },
    /// Put a failed or dead item back, or all of them
    #[command(
        after_help = "examples:\n  windlass queue retry bugs ITEM\n  windlass queue retry bugs --status dead"
    )]
    Retry {
        /// The queue
        queue: String,
        /// The item, or the beginning of its id; all that failed where absent
        item: Option<String>,
        /// Only failed, or only dead ones
        #[arg(long, conflicts_with = "item")]
        status: Option<String>,
    },
    /// Take an item out
    #[command(after_help = "examples:\n  windlass queue cancel bugs ITEM --reason 'fixed by hand'")]
    Cancel {
        /// The queue
        queue: String,
        /// The item, or the beginning of its id
        item: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Give nothing out; pushes go on
    #[command(after_help = "examples:\n  windlass queue pause bugs")]
    Pause {
        /// The queue
        queue: String,
    },
    /// Give out again
    #[command(after_help = "examples:\n  windlass queue resume bugs")]
    Resume {
        /// The queue
        queue: String,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum WorkerVerb {
    /// Let it take items
    #[command(after_help = "examples:\n  windlass worker start fixer")]
    Start {
        /// The worker
        name: String,
    },
    /// Let it take nothing more; what runs, goes on
    #[command(after_help = "examples:\n  windlass worker stop fixer --reason 'maintenance'")]
    Stop {
        /// The worker
        name: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Let it have so many runs at once
    #[command(after_help = "examples:\n  windlass worker resize fixer 8")]
    Resize {
        /// The worker
        name: String,
        /// How many
        #[arg(value_name = "N")]
        concurrency: u32,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum ScheduleVerb {
    /// Make a run now
    #[command(after_help = "examples:\n  windlass schedule run nightly")]
    Run {
        /// The schedule
        name: String,
    },
    /// Make no runs until it is resumed
    #[command(after_help = "examples:\n  windlass schedule pause nightly")]
    Pause {
        /// The schedule
        name: String,
    },
    /// Make runs again, from now on
    #[command(after_help = "examples:\n  windlass schedule resume nightly")]
    Resume {
        /// The schedule
        name: String,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum StoreVerb {
    /// Read everything and check it
    #[command(after_help = "examples:\n  windlass store verify")]
    Verify,
    /// Drop what is no longer needed
    #[command(after_help = "examples:\n  windlass store compact --retention 90d")]
    Compact {
        /// How long runs that have ended are kept
        #[arg(long, default_value = "90d")]
        retention: String,
        /// Do not ask before runs are dropped
        #[arg(long)]
        yes: bool,
    },
    /// Copy the data directory: log, keys, secrets, what steps wrote, kept bundles
    #[command(
        after_help = "examples:\n  windlass store backup /backups/monday\n\nA backup holds what the log is sealed with and the sealed secrets: keep it as you keep those. The key of the secrets\nis in it where WINDLASS_KEY_FILE lies in the data directory; where it lies elsewhere, save it apart. Left out is what\nis made anew: the index of ended runs, the socket, files of attempts under way. Bundles in another place\n(WINDLASS_ARTIFACTS) stay there."
    )]
    Backup {
        /// Where to: a directory that is not there yet
        to: PathBuf,
    },
    /// Make the data directory from a backup
    #[command(after_help = "examples:\n  windlass store restore /backups/monday --data .windlass")]
    Restore {
        /// The backup
        from: PathBuf,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum TokenVerb {
    /// Hand one out; it is shown once
    #[command(
        after_help = "examples:\n  windlass token create --scopes read,run --name ci --service --expires 30d"
    )]
    Create {
        /// What it allows: read, run, deploy, approve, execute, admin
        #[arg(long, value_delimiter = ',', required = true, value_name = "S,…")]
        scopes: Vec<String>,
        /// For which tenant; your own where absent
        #[arg(long, value_name = "T")]
        tenant: Option<String>,
        /// For which namespace; your own where absent
        #[arg(long, value_name = "N")]
        namespace: Option<String>,
        /// For whom it stands
        #[arg(long, value_name = "N")]
        name: Option<String>,
        /// That is a program and no human: it decides on no approval
        #[arg(long)]
        service: bool,
        /// What the bearer belongs to
        #[arg(long, value_delimiter = ',', value_name = "G,…")]
        groups: Vec<String>,
        /// How long it is good, such as 30d; for ever where absent
        #[arg(long, value_name = "D")]
        expires: Option<String>,
    },
    /// List them
    #[command(after_help = "examples:\n  windlass token list")]
    List,
    /// Take one back
    #[command(after_help = "examples:\n  windlass token revoke tok_… --reason 'laptop lost' --yes")]
    Revoke {
        /// The token's id, or the beginning of it
        id: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}
