//! The commands and flags of the command line, with their help texts.

mod verbs;

pub(super) use verbs::{
    LockVerb, QueueVerb, RunbookVerb, ScheduleVerb, SemaphoreVerb, StoreVerb, TakeArgs, TokenVerb, WorkerVerb,
};

use clap::{Args as Flags, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use windlass_executor::config::Config;
use windlass_executor::tools::described::Registry;
use windlass_executor::tools::settings::Settings;

/// Global flags that take a value.
const VALUED: [&str; 5] = ["--data", "--server", "--token", "--config", "--policy"];
/// Commands with a `--data` of their own.
const WITH_DATA: [&[&str]; 3] = [&["signal"], &["emit"], &["queue", "push"]];

/// The words as the parser sees them. `--data` names the data directory, but after some commands it is the payload. The parser
/// knows each flag once, so the payload is called `--payload` there.
pub(super) fn renamed(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let mut at = 1;
    while words.get(at).is_some_and(|word| word.to_string_lossy().starts_with('-')) {
        at += if VALUED.iter().any(|flag| words[at] == *flag) { 2 } else { 1 };
    }
    let rest = &words[at.min(words.len())..];
    let begins = |verbs: &&[&str]| {
        rest.len() > verbs.len() && rest.iter().zip(verbs.iter()).all(|(word, verb)| word == verb)
    };
    let Some(verbs) = WITH_DATA.iter().copied().find(begins) else { return words };
    for word in words.iter_mut().skip(at + verbs.len()) {
        if word == "--" {
            break;
        }
        match word.to_str().and_then(|text| text.strip_prefix("--data")) {
            Some("") => *word = "--payload".into(),
            Some(rest) if rest.starts_with('=') => *word = format!("--payload{rest}").into(),
            Some(_) | None => {}
        }
    }
    words
}

/// Parses `--limit`: at least one.
fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("the limit must be 1 or more".to_owned()),
        Ok(limit) => Ok(limit),
        Err(error) => Err(format!("{error}")),
    }
}

/// Runs runbooks for agents and humans, durably.
#[derive(Parser, Debug)]
#[command(
    name = "windlass",
    version,
    about = "Runs runbooks for agents and humans, durably",
    after_help = "examples:\n  windlass run examples/hello.yaml\n  windlass runs --status failed\n  windlass why RUN\n\nexit codes: 0 completed, 1 failed, 2 bad usage or runbook, 3 cancelled, 4 waiting for a human, 5 not found,\n6 conflict, 7 refused, 70 internal error, 75 temporarily unavailable, 130 interrupted and suspended"
)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) verb: Verb,
    #[arg(skip)]
    pub(super) once: Once,
}

/// What is read once, by whoever needs it first.
#[derive(Debug, Default)]
pub(super) struct Once {
    pub(super) config: OnceLock<Arc<Config>>,
    pub(super) tooling: OnceLock<Tooling>,
}

/// The tools that the configuration names.
#[derive(Debug)]
pub(super) struct Tooling {
    pub(super) settings: Arc<Settings>,
    pub(super) registry: Registry,
}

#[derive(Flags, Debug)]
pub(super) struct Global {
    /// Data directory [default: the nearest .windlass]
    #[arg(long, global = true, env = "WINDLASS_DATA", value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
    /// Use this server instead of a data directory
    #[arg(long, global = true, env = "WINDLASS_SERVER", value_name = "URL")]
    pub(super) server: Option<String>,
    /// Token for the server
    #[arg(long, global = true, env = "WINDLASS_TOKEN", value_name = "T", hide_env_values = true)]
    pub(super) token: Option<String>,
    /// Configuration file [default: ./windlass.yaml, then the data directory's]
    #[arg(long, global = true, env = "WINDLASS_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Policy folder [default: `policy` beside the data directory, then ./policy]
    #[arg(long, global = true, env = "WINDLASS_POLICY", value_name = "DIR")]
    pub(super) policy: Option<PathBuf>,
    /// Print JSON: one document, or one object per line
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print only the answer
    #[arg(long, short, global = true)]
    pub(super) quiet: bool,
    /// No colours
    #[arg(long, global = true)]
    pub(super) no_color: bool,
}

#[derive(Subcommand, Debug)]
pub(super) enum Verb {
    /// Create a runbook to start from
    #[command(
        after_help = "examples:\n  windlass init\n  windlass init my-project && cd my-project && windlass run"
    )]
    Init {
        /// The folder [default: the current one]
        dir: Option<PathBuf>,
    },
    /// Run a pipeline and show its progress
    #[command(
        after_help = "examples:\n  windlass run deploy.yaml\n  windlass run deploy.yaml rollout --var version=1.4.2\n  windlass run deploy.yaml --dry-run\n  windlass run deploy.yaml --idempotency-key release-1.4.2 --detach"
    )]
    Run(RunArgs),
    /// Parse and validate a runbook
    #[command(
        after_help = "examples:\n  windlass check runbook.yaml\n  windlass check runbook.yaml --watch\n  windlass check --schema > runbook.schema.json"
    )]
    Check {
        /// The runbook
        file: Option<PathBuf>,
        /// Check again whenever it changes
        #[arg(long)]
        watch: bool,
        /// Print the JSON Schema for editors
        #[arg(long)]
        schema: bool,
    },
    /// List runs, newest first
    #[command(
        after_help = "examples:\n  windlass runs\n  windlass runs --failed --since 2h --json\n  windlass runs --queue bugs --item ITEM"
    )]
    Runs(RunsArgs),
    /// List runbooks; show, compare, roll back and undeploy them
    #[command(
        after_help = "examples:\n  windlass runbooks\n  windlass runbooks show release\n  windlass runbooks rollback release"
    )]
    Runbooks {
        #[command(subcommand)]
        verb: Option<RunbookVerb>,
    },
    /// Show a run and its steps
    #[command(
        after_help = "examples:\n  windlass show RUN\n  windlass show RUN --timeline\n  windlass show RUN --exit-status"
    )]
    Show(ShowArgs),
    /// Follow a run to its end
    #[command(after_help = "examples:\n  windlass watch RUN")]
    Watch {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
    },
    /// Show the output of steps
    #[command(
        after_help = "examples:\n  windlass logs RUN\n  windlass logs RUN build -f\n  windlass logs RUN --failed"
    )]
    Logs(LogsArgs),
    /// Explain why a run is waiting
    #[command(after_help = "examples:\n  windlass why RUN")]
    Why {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
    },
    /// Continue suspended or interrupted runs
    #[command(after_help = "examples:\n  windlass resume RUN\n  windlass resume --all")]
    Resume {
        /// The run: its id, the beginning or end of the id, or `last`
        run: Option<String>,
        /// Every run that can continue
        #[arg(long)]
        all: bool,
        /// A message to record with it
        #[arg(long)]
        message: Option<String>,
        /// Change a variable
        #[arg(long, value_name = "K=V")]
        var: Vec<String>,
    },
    /// Stop a run; compensations and `finally` still run
    #[command(after_help = "examples:\n  windlass cancel RUN --reason 'wrong version'")]
    Cancel {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Pause a run: it starts nothing more until it is resumed
    #[command(after_help = "examples:\n  windlass suspend RUN")]
    Suspend {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// Retry a failed run as a new run that reuses the steps that succeeded
    #[command(after_help = "examples:\n  windlass retry RUN")]
    Retry {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
    },
    /// Start a new run from a step of an earlier one
    #[command(
        after_help = "examples:\n  windlass fork RUN --from deploy\n  windlass fork RUN --from deploy --runbook fixed.yaml"
    )]
    Fork {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
        /// The step to start from
        #[arg(long)]
        from: String,
        /// Use this runbook instead of the run's own
        #[arg(long)]
        runbook: Option<PathBuf>,
    },
    /// Reverse a run's outside effects, in a new run
    #[command(
        after_help = "examples:\n  windlass undo RUN --dry-run\n  windlass undo RUN\n  windlass undo RUN --yes"
    )]
    Undo {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
        /// Show what would be reversed; change nothing
        #[arg(long)]
        dry_run: bool,
        /// Also reverse what others have changed since
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Deliver an external event
    #[command(
        after_help = "examples:\n  windlass signal RUN approved --data '{\"by\":\"ann\"}'\n  windlass signal --key pr-17 merged"
    )]
    Signal {
        /// The run; with --key, the event's name instead
        #[arg(required_unless_present = "key")]
        run: Option<String>,
        /// The event's name
        name: Option<String>,
        /// The key that runs wait for
        #[arg(long)]
        key: Option<String>,
        /// The event's data, as JSON; after `signal`, `--data` means this too
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
    },
    /// Emit a custom event for workers and triggers
    #[command(
        after_help = "examples:\n  windlass emit deploy:done --data '{\"env\":\"staging\"}'\n  windlass emit nightly:begun --idempotency-key 2026-11-18"
    )]
    Emit {
        /// Its type, as category:action
        #[arg(value_name = "TYPE")]
        kind: String,
        /// The event's data, as JSON; after `emit`, `--data` means this too
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
        /// Emit at most one event for this key
        #[arg(long, value_name = "K")]
        idempotency_key: Option<String>,
    },
    /// Show the result of a delivery, by its ingress key
    #[command(
        after_help = "examples:\n  windlass ingress github:72d3162e-cc78-11e3-81ab-4c9367dc0958\n  windlass ingress api:local:r1"
    )]
    Ingress {
        /// The whole key, as `trigger.key` of a run shows it
        key: String,
    },
    /// Resolve an unknown outcome or an escalation
    #[command(after_help = "examples:\n  windlass resolve RUN charge done --reason 'seen in the ledger'")]
    Resolve {
        /// The run: its id, the beginning or end of the id, or `last`
        run: String,
        /// The step
        step: String,
        /// done: it happened; retry: it did not, try again; fail: give up
        #[arg(value_parser = ["done", "retry", "fail"])]
        resolution: String,
        /// Why
        #[arg(long)]
        reason: String,
    },
    /// Raise the budget of a run, so that its waiting steps continue
    #[command(after_help = super::policy::RAISE)]
    Raise(super::policy::RaiseArgs),
    /// List approvals
    #[command(after_help = "examples:\n  windlass approvals\n  windlass approvals --status all")]
    Approvals {
        /// requested, approved, rejected, expired, cancelled or all [default: requested]
        #[arg(long)]
        status: Option<String>,
    },
    /// Approve an action, exactly as it is shown
    #[command(after_help = "examples:\n  windlass approve ID\n  windlass approve ID --hash HASH")]
    Approve {
        /// The approval, or the beginning of its id
        id: String,
        /// The hash of the action, or at least its first 12 digits; required without a terminal
        #[arg(long)]
        hash: Option<String>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Reject an action
    #[command(
        after_help = "examples:\n  windlass reject ID --reason 'not on a Friday'\n  windlass reject ID --reason 'not on a Friday' --yes"
    )]
    Reject {
        /// The approval, or the beginning of its id
        id: String,
        /// Why
        #[arg(long)]
        reason: String,
        /// The hash of the action, or at least its first 12 digits
        #[arg(long)]
        hash: Option<String>,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// List locks
    #[command(after_help = "examples:\n  windlass locks")]
    Locks,
    /// Acquire, release or break a lock
    #[command(after_help = "examples:\n  windlass lock break merge-main --yes")]
    Lock {
        #[command(subcommand)]
        verb: LockVerb,
    },
    /// List semaphores
    #[command(after_help = "examples:\n  windlass semaphores")]
    Semaphores,
    /// Acquire, release or break slots of a semaphore
    #[command(after_help = "examples:\n  windlass semaphore break builders --holder run_… --yes")]
    Semaphore {
        #[command(subcommand)]
        verb: SemaphoreVerb,
    },
    /// Deploy a runbook: it becomes the active version of its name, with its queues, workers, schedules and triggers
    #[command(
        after_help = "examples:\n  windlass deploy runbook.yaml\n  windlass deploy runbook.yaml --diff"
    )]
    Deploy {
        /// The runbook
        file: PathBuf,
        /// Only show what would change
        #[arg(long)]
        diff: bool,
    },
    /// List queues with their depths
    #[command(after_help = "examples:\n  windlass queues")]
    Queues,
    /// Push items; list, retry and cancel them
    #[command(
        after_help = "examples:\n  windlass queue push bugs --data '{\"bug\":\"BUG-1\"}' --priority 5\n  windlass queue list bugs --status dead\n  windlass queue retry bugs --status dead"
    )]
    Queue {
        #[command(subcommand)]
        verb: QueueVerb,
    },
    /// List workers
    #[command(after_help = "examples:\n  windlass workers")]
    Workers,
    /// Start, stop or resize a worker
    #[command(after_help = "examples:\n  windlass worker resize fixer 8\n  windlass worker stop fixer")]
    Worker {
        #[command(subcommand)]
        verb: WorkerVerb,
    },
    /// List schedules and their next times
    #[command(after_help = "examples:\n  windlass schedules")]
    Schedules,
    /// Run a schedule now, pause it or resume it
    #[command(after_help = "examples:\n  windlass schedule run nightly\n  windlass schedule pause nightly")]
    Schedule {
        #[command(subcommand)]
        verb: ScheduleVerb,
    },
    /// Show the policy in force
    #[command(after_help = "examples:\n  windlass policies")]
    Policies,
    /// Check policies, and test them with cases or against history
    #[command(subcommand, after_help = super::policy::HELP)]
    Policy(super::policy::PolicyVerb),
    /// Show the log's records
    #[command(after_help = "examples:\n  windlass events -f --type 'step:*'\n  windlass events --types")]
    Events {
        /// Wait for new records
        #[arg(long, short)]
        follow: bool,
        /// Start at this sequence number
        #[arg(long, value_name = "CURSOR")]
        from: Option<u64>,
        /// Only events whose tag matches, such as step:*
        #[arg(long = "type", value_name = "PATTERN")]
        kind: Option<String>,
        /// List the types of events instead
        #[arg(long)]
        types: bool,
    },
    /// Run a server: serve the API and execute steps
    #[command(
        after_help = "examples:\n  windlass serve\n  windlass serve --listen 127.0.0.1:8080 --executors 4\n  windlass serve --listen 0.0.0.0:7433 --tls-cert cert.pem --tls-key key.pem"
    )]
    Serve(ServeArgs),
    /// Create, list and revoke tokens
    #[command(
        after_help = "examples:\n  windlass token create --scopes read,run --name ci --service --expires 30d\n  windlass token create --tenant acme --scopes read,run,approve --name ann\n  windlass token list\n  windlass token revoke tok_…"
    )]
    Token {
        #[command(subcommand)]
        verb: TokenVerb,
    },
    /// Store, list and remove secrets; values are read from standard input or a prompt
    #[command(
        after_help = "examples:\n  windlass secret set GITHUB_TOKEN < token.txt\n  windlass secret list\n  windlass secret rm GITHUB_TOKEN --yes"
    )]
    Secret {
        #[command(subcommand)]
        verb: super::secret::SecretVerb,
    },
    /// Verify, compact, back up and restore the data directory
    #[command(
        subcommand,
        after_help = "examples:\n  windlass store verify\n  windlass store backup /backups/monday\n  windlass store compact --retention 30d"
    )]
    Store(StoreVerb),
    /// Check this machine's setup
    #[command(after_help = "examples:\n  windlass doctor")]
    Doctor,
    /// Execute steps for a server
    #[command(
        after_help = "examples:\n  windlass executor --server http://127.0.0.1:7433 --labels linux,gpu --slots 4\n\nA step with `runs_on` goes to an executor that has all of its labels. Other steps run on the server itself,\nunless it was started with --executors 0. Secrets come from this process's environment: WINDLASS_SECRET_<NAME>."
    )]
    Executor(ExecutorArgs),
    /// Measure the performance of this machine
    Bench(crate::bench::Wish),
    /// Export and verify evidence of what happened; print public keys
    #[command(
        after_help = "examples:\n  windlass evidence pubkey > keys.txt\n  windlass evidence export RUN -o run.evidence.tar\n  windlass evidence verify run.evidence.tar --pubkey keys.txt"
    )]
    Evidence {
        #[command(subcommand)]
        verb: super::evidence::EvidenceVerb,
    },
    /// List error codes
    #[command(after_help = "examples:\n  windlass codes | grep LEASE\n  windlass codes LEASE_STALE_EPOCH")]
    Codes {
        /// Print this code's page: its meaning and what to do
        code: Option<String>,
    },
    /// Print completions for a shell
    #[command(
        after_help = "examples:\n  windlass completions bash > ~/.local/share/bash-completion/completions/windlass"
    )]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Write man pages
    #[command(hide = true, after_help = "examples:\n  windlass man target/man")]
    Man {
        /// The folder to write them to
        dir: PathBuf,
    },
    /// Hold the data directory until no work is left
    #[command(name = "__hold", hide = true)]
    Hold,
}

#[derive(Flags, Debug)]
pub(super) struct RunArgs {
    /// A runbook file, the name of a deployed runbook, or a pipeline of ./runbook.yaml [default: ./runbook.yaml]
    pub(super) file: Option<PathBuf>,
    /// The pipeline [default: the only one, or `default`]
    pub(super) pipeline: Option<String>,
    /// Set a variable
    #[arg(long, value_name = "K=V")]
    pub(super) var: Vec<String>,
    /// A JSON or YAML file of variables
    #[arg(long, value_name = "F")]
    pub(super) vars_file: Option<PathBuf>,
    /// Start at most one run for this key
    #[arg(long, value_name = "K")]
    pub(super) idempotency_key: Option<String>,
    /// Return at once; the run continues in the background
    #[arg(long)]
    pub(super) detach: bool,
    /// Return when a human must decide (exit code 4)
    #[arg(long)]
    pub(super) no_wait: bool,
    /// Wait until this run has completed
    #[arg(long, value_name = "RUN")]
    pub(super) after: Vec<String>,
    /// Show what would happen; execute nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Flags, Debug)]
pub(super) struct RunsArgs {
    /// Only runs with this status
    #[arg(long)]
    pub(super) status: Option<String>,
    /// Only runs of this pipeline
    #[arg(long)]
    pub(super) pipeline: Option<String>,
    /// Only failed runs; same as --status failed
    #[arg(long, conflicts_with = "status")]
    pub(super) failed: bool,
    /// Only runs of this runbook: a name (all versions), NAME@HASH, or a hash
    #[arg(long)]
    pub(super) runbook: Option<String>,
    /// Only runs for items of this queue
    #[arg(long)]
    pub(super) queue: Option<String>,
    /// Only runs for this item; with --queue, the beginning of its id is enough
    #[arg(long)]
    pub(super) item: Option<String>,
    /// Only runs about this repository
    #[arg(long)]
    pub(super) repo: Option<String>,
    /// Only runs created since: a time, or a duration such as 2h
    #[arg(long, value_name = "T")]
    pub(super) since: Option<String>,
    /// Maximum number of runs
    #[arg(long, default_value_t = 20, value_parser = limit)]
    pub(super) limit: usize,
    /// Start of the page: next_cursor of the previous one
    #[arg(long)]
    pub(super) cursor: Option<String>,
}

#[derive(Flags, Debug)]
pub(super) struct ShowArgs {
    /// The run: its id, the beginning or end of the id, or `last`
    pub(super) run: String,
    /// Show its records
    #[arg(long)]
    pub(super) events: bool,
    /// Show the receipts of its outside effects
    #[arg(long)]
    pub(super) receipts: bool,
    /// Show its checkpoints and messages
    #[arg(long)]
    pub(super) checkpoints: bool,
    /// Show its steps on a time scale
    #[arg(long)]
    pub(super) timeline: bool,
    /// Exit with the code of the run's status
    #[arg(long)]
    pub(super) exit_status: bool,
}

#[derive(Flags, Debug)]
pub(super) struct LogsArgs {
    /// The run: its id, the beginning or end of the id, or `last`
    pub(super) run: String,
    /// The step [default: all]
    pub(super) step: Option<String>,
    /// Wait for more until the run ends
    #[arg(long, short)]
    pub(super) follow: bool,
    /// Only steps that failed
    #[arg(long)]
    pub(super) failed: bool,
    /// Show when each line was written
    #[arg(long, short)]
    pub(super) timestamps: bool,
    /// Only lines written since: a time, or a duration such as 2h
    #[arg(long, value_name = "T")]
    pub(super) since: Option<String>,
    /// Only the last N lines
    #[arg(long, value_name = "N", conflicts_with = "follow", value_parser = limit)]
    pub(super) tail: Option<usize>,
}

#[derive(Flags, Debug)]
pub(super) struct ExecutorArgs {
    /// Labels that steps can ask for with `runs_on`
    #[arg(long, value_delimiter = ',')]
    pub(super) labels: Vec<String>,
    /// Maximum number of steps at a time
    #[arg(long, default_value_t = 4)]
    pub(super) slots: usize,
    /// Name of this executor [default: made from the host's name]
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Directory in which steps run [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Directory for output that is not sent yet [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(super) scratch: Option<PathBuf>,
    #[command(flatten)]
    pub(super) apart: ApartArgs,
}

/// How steps are isolated from the process that runs them.
#[derive(Flags, Debug)]
pub(super) struct ApartArgs {
    /// Run steps as this user, who cannot reach the files of this process
    #[arg(long, value_name = "USER", conflicts_with = "shared_user")]
    pub(super) run_as: Option<String>,
    /// Do not isolate steps, even if others can start runs: anyone who may deploy a runbook can reach everything
    #[arg(long)]
    pub(super) shared_user: bool,
}

#[derive(Flags, Debug)]
pub(super) struct ServeArgs {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, value_name = "A", default_value = "127.0.0.1:7433")]
    pub(super) listen: String,
    /// Maximum number of steps that run here at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(0..=1_024))]
    pub(super) executors: u16,
    /// Certificate chain, in PEM
    #[arg(long, value_name = "F", requires = "tls_key")]
    pub(super) tls_cert: Option<PathBuf>,
    /// Its private key, in PEM
    #[arg(long, value_name = "F", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,
    /// Accept requests from a proxy, which provides TLS; otherwise they are refused
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key"])]
    pub(super) behind_proxy: bool,
    #[command(flatten)]
    pub(super) apart: ApartArgs,
    /// Give every program on this machine `read` and `run` without a token
    #[arg(long, conflicts_with = "behind_proxy")]
    pub(super) trust_local: bool,
}
