//! The subcommands of `lock`, `queue`, `worker`, `schedule`, `token`, `store` and others, with their help texts.

use clap::{Args as Flags, Subcommand};
use std::path::PathBuf;

#[derive(Flags, Debug)]
pub(in crate::cli) struct TakeArgs {
    /// The lock or semaphore
    pub(in crate::cli) name: String,
    /// The holder [default: you]
    #[arg(long)]
    pub(in crate::cli) holder: Option<String>,
    /// How long to wait for it, such as 30s
    #[arg(long, value_name = "T")]
    pub(in crate::cli) wait: Option<String>,
    /// Run this command while holding it, with the fencing epoch in WL_EPOCH
    #[arg(last = true, value_name = "CMD")]
    pub(in crate::cli) command: Vec<String>,
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum LockVerb {
    /// Acquire a lock
    #[command(
        after_help = "examples:\n  windlass lock acquire deploy --wait 30s -- ./deploy\n  windlass lock acquire deploy --holder ci-7 --metadata '{\"job\":7}'"
    )]
    Acquire {
        #[command(flatten)]
        take: TakeArgs,
        /// Data about the holder, as JSON
        #[arg(long, value_name = "JSON")]
        metadata: Option<String>,
    },
    /// Release a lock
    #[command(after_help = "examples:\n  windlass lock release deploy --holder ci-7")]
    Release {
        /// The lock
        name: String,
        /// The holder [default: you]
        #[arg(long)]
        holder: Option<String>,
        /// Only the grant with this epoch
        #[arg(long)]
        epoch: Option<u64>,
    },
    /// Take a lock away from its holder
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
    /// Acquire slots of a semaphore
    #[command(after_help = "examples:\n  windlass semaphore acquire builders --weight 2 --wait 5m -- make")]
    Acquire {
        #[command(flatten)]
        take: TakeArgs,
        /// How many slots
        #[arg(long, default_value_t = 1)]
        weight: u32,
    },
    /// Release slots
    #[command(after_help = "examples:\n  windlass semaphore release builders --holder ci-7")]
    Release {
        /// The semaphore
        name: String,
        /// The holder [default: you]
        #[arg(long)]
        holder: Option<String>,
        /// Only the grant with this epoch
        #[arg(long)]
        epoch: Option<u64>,
    },
    /// Take slots away from their holder
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
    /// Show the difference between two versions
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
    /// Reactivate an earlier version; running runs keep theirs
    #[command(
        after_help = "examples:\n  windlass runbooks rollback release\n  windlass runbooks rollback release --to 3f2a9c"
    )]
    Rollback {
        /// The name of the runbook
        name: String,
        /// The hash of the version, or its beginning [default: the previous one]
        #[arg(long, value_name = "HASH")]
        to: Option<String>,
    },
    /// Deactivate a runbook: its schedules and triggers end, its workers stop, running runs continue
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
        /// The item's data, as JSON, or - for standard input; after `queue push`, `--data` means this too
        #[arg(long, value_name = "JSON", required = true)]
        payload: String,
        /// Higher priorities are taken first
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        priority: i32,
        /// Delay before it can be taken
        #[arg(long, value_name = "D")]
        delay: Option<String>,
        /// Return the existing item with this key while that is waiting or being worked on
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
        /// Maximum number of items
        #[arg(long, default_value_t = 50, value_parser = super::limit)]
        limit: usize,
        /// Start of the page: next_cursor of the previous one
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
    /// Retry a failed or dead item, or all of them
    #[command(
        after_help = "examples:\n  windlass queue retry bugs ITEM\n  windlass queue retry bugs --status dead"
    )]
    Retry {
        /// The queue
        queue: String,
        /// The item, or the beginning of its id [default: all failed and dead ones]
        item: Option<String>,
        /// Only failed, or only dead ones
        #[arg(long, conflicts_with = "item")]
        status: Option<String>,
    },
    /// Cancel an item
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
    /// Stop granting items; pushes are still accepted
    #[command(after_help = "examples:\n  windlass queue pause bugs")]
    Pause {
        /// The queue
        queue: String,
    },
    /// Grant items again
    #[command(after_help = "examples:\n  windlass queue resume bugs")]
    Resume {
        /// The queue
        queue: String,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum WorkerVerb {
    /// Start a worker
    #[command(after_help = "examples:\n  windlass worker start fixer")]
    Start {
        /// The worker
        name: String,
    },
    /// Stop a worker: it takes no more items; its runs continue
    #[command(after_help = "examples:\n  windlass worker stop fixer --reason 'maintenance'")]
    Stop {
        /// The worker
        name: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Change how many runs a worker may have at a time
    #[command(after_help = "examples:\n  windlass worker resize fixer 8")]
    Resize {
        /// The worker
        name: String,
        /// Maximum number of runs
        #[arg(value_name = "N")]
        concurrency: u32,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum ScheduleVerb {
    /// Start a run now
    #[command(after_help = "examples:\n  windlass schedule run nightly")]
    Run {
        /// The schedule
        name: String,
    },
    /// Pause a schedule until it is resumed
    #[command(after_help = "examples:\n  windlass schedule pause nightly")]
    Pause {
        /// The schedule
        name: String,
    },
    /// Resume a schedule, from now on
    #[command(after_help = "examples:\n  windlass schedule resume nightly")]
    Resume {
        /// The schedule
        name: String,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum StoreVerb {
    /// Read and check the whole log
    #[command(after_help = "examples:\n  windlass store verify")]
    Verify,
    /// Delete records past their retention
    #[command(after_help = "examples:\n  windlass store compact --retention 90d")]
    Compact {
        /// Retention of runs that have ended
        #[arg(long, default_value = "90d")]
        retention: String,
        /// Do not ask before runs are deleted
        #[arg(long)]
        yes: bool,
    },
    /// Copy the data directory: log, keys, secrets, output, bundles
    #[command(
        after_help = "examples:\n  windlass store backup /backups/monday\n\nA backup contains the signing keys and the encrypted secrets: protect it like those. It contains the secrets' key\nonly if WINDLASS_SECRET_KEY_FILE is in the data directory; otherwise save that key separately. It leaves out what is\nmade anew: the index of ended runs, the socket, files of running attempts. Bundles in another place\n(WINDLASS_ARTIFACTS) stay there."
    )]
    Backup {
        /// Target: a directory that does not exist yet
        to: PathBuf,
    },
    /// Create the data directory from a backup
    #[command(after_help = "examples:\n  windlass store restore /backups/monday --data .windlass")]
    Restore {
        /// The backup
        from: PathBuf,
    },
}

#[derive(Subcommand, Debug)]
pub(in crate::cli) enum TokenVerb {
    /// Create a token; it is shown once
    #[command(
        after_help = "examples:\n  windlass token create --scopes read,run --name ci --service --expires 30d"
    )]
    Create {
        /// Scopes: read, run, deploy, approve, execute, admin
        #[arg(long, value_delimiter = ',', required = true, value_name = "S,…")]
        scopes: Vec<String>,
        /// Its tenant [default: yours]
        #[arg(long, value_name = "T")]
        tenant: Option<String>,
        /// Its namespace [default: yours]
        #[arg(long, value_name = "N")]
        namespace: Option<String>,
        /// The name of its bearer
        #[arg(long, value_name = "N")]
        name: Option<String>,
        /// The bearer is a program: it cannot decide approvals
        #[arg(long)]
        service: bool,
        /// Groups of the bearer
        #[arg(long, value_delimiter = ',', value_name = "G,…")]
        groups: Vec<String>,
        /// How long it is valid, such as 30d [default: forever]
        #[arg(long, value_name = "D")]
        expires: Option<String>,
    },
    /// List tokens
    #[command(after_help = "examples:\n  windlass token list")]
    List,
    /// Revoke a token
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
