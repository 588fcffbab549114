//! The tables of the language: which keys there are, what they hold, what they mean.
//!
//! The reader checks a file against these tables and the JSON Schema is made from them, so that the two cannot say
//! different things.

use super::shape::Shape::{
    Bool, Command, Condition, Duration, DurationOrZero, Env, Int, List, Map, Money, Name, Never, OneOf,
    Table as Of, Template, Text, Type, Value, Words,
};
use super::shape::{Key, Keys, Shape, Table, key};

const COUNT_MAX: u64 = 1_000_000;
const NAMES: Shape = OneOf(&[Name, List(&Name)], "a name or a list of names");
const TEXTS: Shape = OneOf(&[Text, List(&Text)], "a text or a list of texts");
const VARS: Shape = Map(Keys::Var, &Value);
const ENV: Shape = Map(Keys::Env, &Env);
// A static, as steps hold steps and a constant cannot refer to itself.
static A_STEP: Shape = Of(&STEP);
const COUNT: Shape = Int(1, COUNT_MAX);
const ATTEMPTS: Shape = Int(1, 1_000);

/// A whole file.
pub static FILE: Table = Table {
    name: "runbook",
    keys: &[
        key("name", Name, "the identity under which it is deployed"),
        key("include", TEXTS, "local files, merged into this one"),
        key("defaults", Of(&DEFAULTS), "what holds for all steps"),
        key("pipelines", Map(Keys::Name, &Of(&PIPELINE)), "named sequences of steps"),
        key("queues", Map(Keys::Name, &Of(&QUEUE)), "queues of work"),
        key("workers", Map(Keys::Name, &Of(&WORKER)), "what consumes queues: one run per item"),
        key("agents", Map(Keys::Name, &Of(&AGENT)), "agents that steps can use"),
        key("schedules", Map(Keys::Name, &Of(&SCHEDULE)), "runs by the clock"),
        key("triggers", Map(Keys::Name, &Of(&TRIGGER)), "runs by events from outside"),
        key("semaphores", Map(Keys::Name, &Of(&SEMAPHORE)), "numbers of slots"),
        key("locks", Map(Keys::Name, &Of(&LOCK)), "settings of locks"),
        key("caps", Of(&CAPS), "what it may do at most; only tightens the tenant's"),
        key("budget", Of(&BUDGET), "what a run may cost at most"),
        key(
            "evidence",
            Words(&["always"]),
            "`always`: a bundle for every run, not only for those with effects, approvals or denials",
        ),
        key(
            "issues",
            Of(&ISSUES),
            "where guards get issues from; the configuration file's `issues` where absent",
        ),
    ],
    one_of: &[],
};

/// Where guards get issues from.
pub static ISSUES: Table = Table {
    name: "issue_list",
    keys: &[key("command", Command, "prints a JSON array of issues").required()],
    one_of: &[],
};

/// What holds for all steps.
pub static DEFAULTS: Table = Table {
    name: "defaults",
    keys: &[
        key("env", ENV, "environment variables"),
        key("dir", Template, "the working directory"),
        key("shell", Text, "the shell of `run`"),
        key("timeout", Duration, "how long an attempt may take"),
        key("retry", RETRY, "how often a step is tried"),
    ],
    one_of: &[],
};

pub static PIPELINE: Table = Table {
    name: "pipeline",
    keys: &[
        key("vars", Map(Keys::Var, &Of(&VAR)), "what it takes"),
        key("outputs", Map(Keys::Var, &Value), "what it gives to a caller"),
        key("env", ENV, "environment variables of its steps"),
        key("lock", LOCK_USE, "a lock that the whole run holds"),
        key("budget", Of(&BUDGET), "what a run may cost at most"),
        key("deadline", Duration, "how long a run may take, waits included"),
        key("needs", NAMES, "pipelines that must complete first"),
        key("workspace", Of(&WORKSPACE), "the working directory of a run"),
        key("steps", List(&A_STEP), "what it does").required(),
        key("on_failure", List(&A_STEP), "what runs after a failure; sees `error`"),
        key("finally", List(&A_STEP), "what runs at the end in any case"),
    ],
    one_of: &[],
};

/// A variable of a pipeline.
pub static VAR: Table = Table {
    name: "variable",
    keys: &[
        key("type", Type, "its type; any where it is not given"),
        key("required", Bool, "whether it must be given"),
        key("default", Value, "what it is when it is not given"),
        key("enum", List(&Value), "what it may be"),
        key("pattern", Text, "a regular expression that it must match"),
    ],
    one_of: &[],
};

pub static WORKSPACE: Table = Table {
    name: "workspace",
    keys: &[
        key("git", Template, "the repository").required(),
        key("base", Template, "what the branch starts from"),
        key("branch", Template, "the branch"),
        key("keep", Words(&["on_failure", "always", "never"]), "when it is kept after the run"),
    ],
    one_of: &[],
};

/// The kinds of steps. A tool's own name is one too.
pub const KINDS: &[&str] =
    &["run", "tool", "agent", "parallel", "steps", "strategy", "call", "approve", "wait"];

/// A step. The names of tools are keys as well.
pub static STEP: Table = Table { name: "step", keys: &STEP_KEYS, one_of: KINDS };

/// A step that is one approach of a strategy.
pub static APPROACH: Table = Table { name: "approach", keys: &APPROACH_KEYS, one_of: KINDS };

static STEP_KEYS: [Key; 33] = [
    key("run", Command, "a shell command; values reach it only through the environment"),
    key("tool", Text, "the tool to call, with `with`"),
    key("with", Map(Keys::Any, &Value), "the fields of the tool").needs(&["tool"]),
    key("agent", Name, "the agent that does it, with `prompt`"),
    key("prompt", Template, "what the agent is asked").needs(&["agent"]),
    key("parallel", List(&A_STEP), "steps side by side"),
    key("steps", List(&A_STEP), "a sequence as one step"),
    key("strategy", List(&Of(&APPROACH)), "approaches in order, until one succeeds"),
    key("call", Name, "another pipeline as a child run, with `vars`"),
    key("vars", VARS, "the variables of the called pipeline").needs(&["call"]),
    key("approve", OneOf(&[Template, Of(&APPROVE)], "a message or a map"), "a human's decision"),
    key("wait", OneOf(&[Duration, Of(&WAIT)], "a duration or a map with `event`"), "a time, or an event"),
    key("id", Name, "a stable name; needed to refer to it"),
    key("when", Condition, "a condition; false skips the step"),
    key("foreach", Value, "a list, or a map of lists: the step runs for each item"),
    key("max_parallel", Int(1, 1_000), "how many items run at once").needs(&["foreach"]),
    key(
        "fail_fast",
        OneOf(&[Bool, Words(&["kill"])], "true, false or `kill`"),
        "whether a failure stops the others",
    )
    .needs(&["foreach", "parallel"]),
    key("retry", RETRY, "how often it is tried"),
    key("timeout", Duration, "how long an attempt may take"),
    key("guard", GUARDS, "what must hold before and after"),
    key("lock", LOCK_USE, "a lock that it holds"),
    key("semaphore", OneOf(&[Template, Of(&SEMAPHORE_USE)], "a name or a map"), "slots that it holds"),
    key("compensate", OneOf(&[Of(&STEP), Never], "a step or `false`"), "what takes its effect back"),
    key(
        "effect",
        OneOf(&[Words(EFFECTS), Of(&EFFECT)], "a word or a map"),
        "what to do about a lost attempt",
    ),
    key("idempotency_key", Template, "what identifies its effect"),
    key("key_scope", Words(&["lineage", "tenant"]), "how far that identity reaches"),
    key("risk", Words(&["low", "medium", "high"]), "how risky it is; can only raise the tool's"),
    key("checkpoint", Of(&CHECKPOINT), "how it saves its progress"),
    key("env", ENV, "environment variables"),
    key("dir", Template, "the working directory"),
    key("shell", Text, "the shell of `run`"),
    key("runs_on", NAMES, "labels of the executors that may run it"),
    key("outputs", Map(Keys::Var, &Type), "what it must give; missing fails it"),
];

const FALLBACK_ON: Key =
    key("fallback_on", TEXTS, "the failures that the next approach is for: texts, `any`, `timeout`");

static APPROACH_KEYS: [Key; 34] = {
    let mut keys = [FALLBACK_ON; 34];
    let mut n = 0;
    while n < STEP_KEYS.len() {
        keys[n] = STEP_KEYS[n];
        n += 1;
    }
    keys
};

/// What can be done about a lost attempt.
pub const EFFECTS: &[&str] = &["idempotent", "at_most_once", "reconcile"];

/// How a lost attempt is looked up.
pub static EFFECT: Table = Table {
    name: "effect",
    keys: &[key("reconcile", Of(&STEP), "a read that asks the other side").required()],
    one_of: &[],
};

const RETRY: Shape = OneOf(&[ATTEMPTS, Of(&RETRY_TABLE)], "a number of tries or a map");

/// How often a step is tried.
pub static RETRY_TABLE: Table = Table {
    name: "retry",
    keys: &[
        key("max_attempts", ATTEMPTS, "total tries"),
        key(
            "backoff",
            OneOf(&[DurationOrZero, List(&DurationOrZero)], "a duration or a list"),
            "waits between them",
        ),
        key("on", TEXTS, "texts of the failures that are worth another try"),
    ],
    one_of: &[],
};

const LOCK_USE: Shape = OneOf(&[Template, Of(&LOCK_USE_TABLE)], "a name or a map");

/// A lock that is used.
pub static LOCK_USE_TABLE: Table = Table {
    name: "lock",
    keys: &[
        key("name", Template, "its name").required(),
        key("overlap", Words(&["queue", "skip", "cancel"]), "what happens while another holds it"),
    ],
    one_of: &[],
};

/// Slots that are used.
pub static SEMAPHORE_USE: Table = Table {
    name: "semaphore",
    keys: &[key("name", Template, "its name").required(), key("weight", Int(1, 10_000), "how many slots")],
    one_of: &[],
};

/// A request for a human's decision.
pub static APPROVE: Table = Table {
    name: "approve",
    keys: &[
        key("message", Template, "what is asked").required(),
        key("approvers", NAMES, "who may decide; anybody where it is not given"),
        key("count", Int(1, 100), "how many must say yes"),
        key("expires", Duration, "how long it waits"),
        key("for", NAMES, "later steps whose actions it is about"),
    ],
    one_of: &[],
};

/// An external event that is waited for.
pub static WAIT: Table = Table {
    name: "wait",
    keys: &[
        key("event", Name, "the event").required(),
        key("key", Template, "which one of them"),
        key("timeout", Duration, "how long"),
        key("on_timeout", Words(&["fail", "continue"]), "what follows then"),
    ],
    one_of: &[],
};

/// How a step saves its progress.
pub static CHECKPOINT: Table = Table {
    name: "checkpoint",
    keys: &[
        key("interval", Duration, "how often"),
        key("resumable", Bool, "whether its saved output serves instead of a repeat"),
    ],
    one_of: &[],
};

const GUARDS: Shape =
    OneOf(&[List(&Of(&GUARD)), Of(&GUARD_SIDES)], "a list of conditions, or a map with `before` and `after`");

/// Guards before and after a step.
pub static GUARD_SIDES: Table = Table {
    name: "guard",
    keys: &[
        key("before", List(&Of(&GUARD)), "what must hold before"),
        key("after", List(&Of(&GUARD)), "what must hold after"),
    ],
    one_of: &[],
};

/// The conditions of guards.
pub const CONDITIONS: &[&str] = &[
    "lock_free",
    "lock_held",
    "semaphore_available",
    "issues_complete",
    "no_blocked_issues",
    "branch_exists",
    "branch_clean",
    "branch_merged",
    "file_exists",
    "file_contains",
    "pipeline_in_phase",
    "pipeline_complete",
    "all",
    "any",
    "not",
    "command",
];

static CONDITION_KEYS: [Key; 16] = [
    key("lock_free", OneOf(&[Template, Of(&G_LOCK)], "a lock's name"), "nobody holds the lock"),
    key(
        "lock_held",
        OneOf(&[Template, Of(&G_LOCK_HELD)], "a lock's name or a map"),
        "somebody holds the lock",
    ),
    key(
        "semaphore_available",
        OneOf(&[Template, Of(&G_SEMAPHORE)], "a name or a map"),
        "that many slots are free",
    ),
    key("issues_complete", Of(&G_ISSUES), "all these issues are done"),
    key("no_blocked_issues", Of(&G_ISSUES), "none of these issues is blocked"),
    key("branch_exists", OneOf(&[Template, Of(&G_BRANCH)], "a branch"), "the branch exists"),
    key("branch_clean", OneOf(&[Template, Of(&G_BRANCH)], "a branch"), "the branch has nothing uncommitted"),
    key("branch_merged", Of(&G_MERGED), "everything of the branch is in another"),
    key("file_exists", OneOf(&[Template, Of(&G_FILE)], "a path"), "the file exists"),
    key("file_contains", Of(&G_CONTAINS), "the file contains a text"),
    key("pipeline_in_phase", Of(&G_PHASE), "a run is at a step or in a status"),
    key("pipeline_complete", OneOf(&[Template, Of(&G_RUN)], "a run"), "a run is completed"),
    key("all", List(&Of(&CONDITION)), "all of them hold"),
    key("any", List(&Of(&CONDITION)), "one of them holds"),
    key("not", Of(&CONDITION), "it does not hold"),
    key("command", OneOf(&[Command, Of(&G_COMMAND)], "a command or a map"), "a command succeeds"),
];

pub static CONDITION: Table = Table { name: "condition", keys: &CONDITION_KEYS, one_of: CONDITIONS };

/// A condition with a name and what follows when it does not hold.
pub static GUARD: Table = Table { name: "guard", keys: &GUARD_KEYS, one_of: CONDITIONS };

static GUARD_OWN: [Key; 2] = [
    key("name", Name, "its name, for messages"),
    key(
        "on_failure",
        OneOf(&[Words(&["block", "warn", "fail"]), Of(&ON_FAILURE)], "a word or a map"),
        "what follows when it does not hold",
    ),
];

static GUARD_KEYS: [Key; 18] = {
    let mut keys = [GUARD_OWN[0]; 18];
    let mut n = 0;
    while n < CONDITION_KEYS.len() {
        keys[n] = CONDITION_KEYS[n];
        n += 1;
    }
    keys[n + 1] = GUARD_OWN[1];
    keys
};

/// What follows when a guard does not hold, in full.
pub static ON_FAILURE: Table = Table {
    name: "on_failure",
    keys: &[
        key("retry", Duration, "ask again after this time"),
        key("for", Duration, "give up after this time").needs(&["retry"]),
        key("fail", Text, "fail with this message"),
    ],
    one_of: &["retry", "fail"],
};

static G_LOCK: Table =
    Table { name: "lock_free", keys: &[key("lock", Template, "its name").required()], one_of: &[] };
static G_LOCK_HELD: Table = Table {
    name: "lock_held",
    keys: &[key("lock", Template, "its name").required(), key("by", Template, "who holds it")],
    one_of: &[],
};
static G_SEMAPHORE: Table = Table {
    name: "semaphore_available",
    keys: &[key("semaphore", Template, "its name").required(), key("slots", Int(1, 10_000), "how many")],
    one_of: &[],
};
static G_ISSUES: Table = Table {
    name: "issues",
    keys: &[
        key("labels", TEXTS, "the labels they have, all of them"),
        key("milestone", Template, "the milestone they belong to"),
        key("ids", TEXTS, "the ids they have, any of them"),
    ],
    one_of: &[],
};
static G_BRANCH: Table =
    Table { name: "branch", keys: &[key("branch", Template, "its name").required()], one_of: &[] };
static G_MERGED: Table = Table {
    name: "branch_merged",
    keys: &[key("branch", Template, "the branch").required(), key("into", Template, "the other").required()],
    one_of: &[],
};
static G_FILE: Table =
    Table { name: "file_exists", keys: &[key("path", Template, "its path").required()], one_of: &[] };
static G_CONTAINS: Table = Table {
    name: "file_contains",
    keys: &[key("path", Template, "its path").required(), key("pattern", Template, "the text").required()],
    one_of: &[],
};
static G_PHASE: Table = Table {
    name: "pipeline_in_phase",
    keys: &[
        key("pipeline", Template, "the run's id, or a pipeline").required(),
        key("phase", Template, "a step or a status").required(),
        key("latest", Bool, "whether the pipeline's newest run is meant"),
    ],
    one_of: &[],
};
static G_RUN: Table = Table {
    name: "pipeline_complete",
    keys: &[
        key("pipeline", Template, "the run's id, or a pipeline").required(),
        key("latest", Bool, "whether the pipeline's newest run is meant"),
    ],
    one_of: &[],
};
static G_COMMAND: Table = Table {
    name: "command",
    keys: &[
        key("cmd", Command, "the command").required(),
        key("expect_success", Bool, "whether it must succeed, or fail"),
    ],
    one_of: &[],
};

pub static QUEUE: Table = Table {
    name: "queue",
    keys: &[
        key("visibility_timeout", Duration, "how long an outside consumer may be silent"),
        key("retry", Of(&QUEUE_RETRY), "how often an item is tried"),
        key("dead_letter", Name, "where dead items go too"),
        key("max_depth", Int(1, 10_000_000), "how many items may wait"),
        key("dedupe", Bool, "whether a push without a key is known by its data"),
        key("external", Of(&EXTERNAL), "commands, where the items live elsewhere"),
    ],
    one_of: &[],
};

/// How often an item is tried.
pub static QUEUE_RETRY: Table = Table {
    name: "retry",
    keys: &[
        key("max_attempts", ATTEMPTS, "total tries"),
        key("cooldown", DurationOrZero, "how long a failed item waits"),
    ],
    one_of: &[],
};

/// A queue whose items live in another system.
pub static EXTERNAL: Table = Table {
    name: "external",
    keys: &[
        key("list", Command, "the command that lists items as JSON").required(),
        key("take", Command, "the command that takes one").required(),
        key("poll", Duration, "how often to look").required(),
    ],
    one_of: &[],
};

pub static WORKER: Table = Table {
    name: "worker",
    keys: &[
        key("queue", Name, "the queue it consumes").required(),
        key("pipeline", Name, "the pipeline it runs for each item").required(),
        key("concurrency", Int(1, 10_000), "how many runs may be under way"),
        key("vars", VARS, "how an item becomes variables; its own keys where it is not given"),
        key("wake_on", TEXTS, "patterns of events that wake it"),
    ],
    one_of: &[],
};

pub static SCHEDULE: Table = Table {
    name: "schedule",
    keys: &[
        key("cron", Text, "five cron fields"),
        key("every", Duration, "a span between two runs"),
        key("timezone", Text, "the time zone of the cron fields"),
        key("jitter", DurationOrZero, "by how much a slot may be moved"),
        key("catch_up", Words(&["none", "one", "all"]), "what happens to missed slots"),
        key("overlap", Words(&["skip", "queue", "cancel"]), "what happens while the run before is under way"),
        key("pipeline", Name, "the pipeline").required(),
        key("vars", VARS, "its variables"),
    ],
    one_of: &["cron", "every"],
};

pub static TRIGGER: Table = Table {
    name: "trigger",
    keys: &[
        key("github", Of(&GITHUB), "an event of GitHub"),
        key("slack", Of(&SLACK), "a command of Slack"),
        key("hook", Name, "a hook by its name"),
        key("on", Text, "custom events, such as `custom:deploy:done` or `custom:deploy`"),
        key("dedupe_window", Duration, "how long the same event of the same pull request is taken for one"),
        key("when", Condition, "whether it applies; sees `event` and `headers`"),
        key("vars", VARS, "how the event becomes variables, or the data of the signal"),
        key("pipeline", Name, "the pipeline it runs"),
        key("signal", Name, "the signal it sends to the run that waits, with `key`"),
        key("key", Template, "which run the signal is for").needs(&["signal"]),
    ],
    one_of: &["github", "slack", "hook", "on"],
};

/// An event of GitHub.
pub static GITHUB: Table = Table {
    name: "github",
    keys: &[key("event", Name, "the event").required(), key("action", Name, "its action")],
    one_of: &[],
};

/// A command of Slack.
pub static SLACK: Table =
    Table { name: "slack", keys: &[key("command", Text, "the command").required()], one_of: &[] };

const ON_AGENT: Shape =
    OneOf(&[Words(&["nudge", "done", "fail", "escalate"]), Of(&AGENT_ACTION)], "a word or a map");

pub static AGENT: Table = Table {
    name: "agent",
    keys: &[
        key(
            "command",
            OneOf(&[Command, List(&Command)], "a command or a list of its words"),
            "what starts it",
        )
        .required(),
        key("profile", Name, "how its screen is read"),
        key("on_idle", ON_AGENT, "when it is idle"),
        key("on_prompt", ON_AGENT, "when it asks something"),
        key("on_error", ON_AGENT, "when it meets an error"),
        key("on_dead", ON_AGENT, "when its session is gone"),
        key("on_stuck", ON_AGENT, "when it does not get on"),
        key("heartbeat_timeout", Duration, "how long it may be silent"),
        key("max_recovery_attempts", Int(0, 100), "how often it may be nudged and restarted"),
        key("budget", Of(&BUDGET), "what it may cost at most"),
    ],
    one_of: &[],
};

/// What follows for an agent, with a number or a command.
pub static AGENT_ACTION: Table = Table {
    name: "action",
    keys: &[
        key("restart", Int(1, 100), "start it again, at most that often"),
        key("gate", Command, "run a command: success is done"),
    ],
    one_of: &["restart", "gate"],
};

pub static SEMAPHORE: Table = Table {
    name: "semaphore",
    keys: &[
        key("capacity", Int(1, 10_000), "how many slots").required(),
        key("heartbeat_timeout", Duration, "how long an outside holder may be silent"),
    ],
    one_of: &[],
};

pub static LOCK: Table = Table {
    name: "lock",
    keys: &[
        key("heartbeat_timeout", Duration, "how long an outside holder may be silent"),
        key("max_hold_duration", Duration, "how long anybody may hold it"),
    ],
    one_of: &[],
};

pub static CAPS: Table = Table {
    name: "caps",
    keys: &[
        key("max_concurrency", COUNT, "how many steps may run at once"),
        key("max_runs_per_min", COUNT, "how many runs may begin in a minute"),
        key("max_writes_per_run", COUNT, "how many times a run may write outside"),
    ],
    one_of: &[],
};

pub static BUDGET: Table = Table {
    name: "budget",
    keys: &[
        key("usd", Money, "money, in dollars"),
        key("tokens", Int(1, 1_000_000_000_000), "tokens"),
        key("time", Duration, "time in which attempts are under way, added up"),
        key("writes", Int(0, 1_000_000_000), "writes to the outside"),
    ],
    one_of: &[],
};
