//! The tables of the configuration file: which keys there are, what they hold, what they mean.

use windlass_runbook::shape::Shape::{
    Bool, Duration, Int, List, Map, Money, Name, OneOf, Table as Of, Text, Words,
};
use windlass_runbook::shape::{Keys, Shape, Table, key};

const NAMES: Shape = OneOf(&[Name, List(&Name)], "a name or a list of names");
/// The most MiB of a limit: a PiB.
const MIB_MAX: u64 = 1024 * 1024 * 1024;
const CAP: Shape = Int(1, 1_000_000);

/// A whole file.
pub(super) static FILE: Table = Table {
    name: "configuration",
    keys: &[
        key("tenants", Map(Keys::Name, &Of(&TENANT)), "what is set for tenants"),
        key("github", Of(&GITHUB), "the GitHub webhook"),
        key("slack", Of(&SLACK), "Slack"),
        key("notices", Of(&NOTICES), "of what people are told, and how"),
        key("hooks", Map(Keys::Name, &Of(&HOOK)), "other sources of signed deliveries"),
        key("issues", Of(&ISSUES), "where issues are listed"),
        key("groups", Map(Keys::Name, &NAMES), "who belongs to which group"),
        key("approvals", Of(&APPROVALS), "how approvals are decided"),
        key("models", Of(&MODELS), "the models that are asked"),
        key("http", Of(&HTTP), "where the `http` tool may go"),
        key(
            "evidence",
            Text,
            "`always`: every run gets a bundle, and not only those with an effect, an approval or a denial",
        ),
        key("retention", Of(&RETENTION), "how long what has ended is kept"),
        key("sandbox", Of(&SANDBOX), "what the sandbox of steps gives them beside their working directory"),
        key("public_url", Text, "the address under which people reach this server"),
        key("policy", Text, "the folder with policies"),
        key("tools", Text, "the folder with descriptions of tools"),
    ],
    one_of: &[],
};

static SANDBOX: Table = Table {
    name: "sandbox",
    keys: &[
        key("read", List(&Text), "folders to read and to execute, beside those of the system"),
        key("write", List(&Text), "folders to write"),
        key("limits", Of(&LIMITS), "what each process of a step may use at most, in the sandbox or not"),
    ],
    one_of: &[],
};

static LIMITS: Table = Table {
    name: "limits",
    keys: &[
        key("file_mib", Int(1, MIB_MAX), "the largest file that it can write"),
        key("processes", Int(1, 1_000_000), "with how many processes of its user it can start another one"),
    ],
    one_of: &[],
};

static RETENTION: Table = Table {
    name: "retention",
    keys: &[
        key(
            "runs",
            Duration,
            "runs after their end, with their records and the keys of their effects; 90d where absent",
        ),
        key("output", Duration, "what steps wrote, after the end of their run; as long as runs where absent"),
        key("items", Duration, "items of queues after they are done; 90d where absent"),
        key("keys", Duration, "ingress keys after they are forgotten; 90d where absent"),
        key("evidence", Duration, "bundles of evidence in the data directory; 90d where absent"),
    ],
    one_of: &[],
};

static ISSUES: Table = Table {
    name: "issues",
    keys: &[key("command", Text, "prints a JSON array of issues, for guards that ask about them").required()],
    one_of: &[],
};

static TENANT: Table = Table {
    name: "tenant",
    keys: &[
        key("weight", Int(1, windlass_core::caps::WEIGHT_MAX as u64), "how large its share is"),
        key("caps", Of(&CAPS), "what it may do at most"),
        key("github", Of(&GITHUB), "its GitHub webhook"),
        key("slack", Of(&SLACK), "its Slack"),
        key("notices", Of(&NOTICES), "of what its people are told, and how"),
        key("hooks", Map(Keys::Name, &NAMES), "the secrets of its generic hooks, by name"),
        key("issues", Of(&ISSUES), "where its issues are listed"),
    ],
    one_of: &[],
};

static APPROVALS: Table = Table {
    name: "approvals",
    keys: &[key(
        "self",
        Text,
        "`allow` or `refuse`: whether whoever started a run may approve what it does; without it, only as long as nobody but the owner has a credential",
    )],
    one_of: &[],
};

static NOTICES: Table = Table {
    name: "notices",
    keys: &[
        key(
            "on",
            List(&Words(&["unknown", "escalation", "approval", "failed"])),
            "of what; of `failed` only where it is named",
        ),
        key("slack", Text, "the channel of Slack; that of `slack` where absent"),
        key("webhook", Text, "an address that gets each as JSON"),
        key("command", Text, "a command that is run for each"),
        key("desktop", Bool, "whether they are shown on the desktop of this machine"),
        key("sound", Bool, "whether they may make a sound, where the channel has one; true where absent"),
    ],
    one_of: &[],
};

static CAPS: Table = Table {
    name: "caps",
    keys: &[
        key("max_concurrency", CAP, "how many steps may run at once"),
        key("max_runs_per_min", CAP, "how many runs may be made within any minute"),
        key("max_writes_per_run", CAP, "how many times a run may write outside"),
        key("max_runbooks", CAP, "how many runbooks may be stored; 10,000 where absent"),
        key("max_runbook_bytes", CAP, "how many bytes stored runbooks may have; 67,108,864 where absent"),
    ],
    one_of: &[],
};

static GITHUB: Table = Table {
    name: "github",
    keys: &[key("secrets", NAMES, "the names of its secrets").required()],
    one_of: &[],
};

static SLACK: Table = Table {
    name: "slack",
    keys: &[
        key("secrets", NAMES, "the names of its signing secrets"),
        key("team", Name, "the only workspace that is listened to"),
        key("channel", Text, "where approvals are shown"),
        key(
            "channels",
            Map(Keys::Name, &Text),
            "where approvals are shown that an approver or a group is asked for",
        ),
        key("link_only", List(&Words(&["low", "medium", "high"])), "tiers that are not decided in Slack"),
        key("remind", Duration, "how often people are reminded of an approval"),
        key("escalate", Of(&ESCALATE), "when an approval is shown in another channel too"),
        key("users", Map(Keys::Name, &Name), "which of our users a Slack user is"),
    ],
    one_of: &[],
};

static ESCALATE: Table = Table {
    name: "escalate",
    keys: &[
        key("after", Duration, "how long nobody has decided").required(),
        key("channel", Text, "where it is shown then").required(),
    ],
    one_of: &[],
};

static HOOK: Table = Table {
    name: "hook",
    keys: &[
        key("header", Text, "the header with the signature").required(),
        key("algorithm", Words(&["sha256", "sha512"]), "the function of the signature; sha256 where absent"),
        key("encoding", Words(&["hex", "base64"]), "how it is written; hex where absent"),
        key("prefix", Text, "what stands before it"),
        key("secrets", NAMES, "the names of its secrets"),
        key("timestamp", Of(&TIMESTAMP), "the time that is signed"),
        key("signed", Text, "what is signed: `{body}`, `{timestamp}.{body}` or the like"),
        key("delivery", DELIVERY, "what names a delivery, so that it makes one run").required(),
    ],
    one_of: &[],
};

static TIMESTAMP: Table = Table {
    name: "timestamp",
    keys: &[
        key("header", Text, "the header with the seconds since 1970").required(),
        key("tolerance", Duration, "how far it may be from now; 5m where absent"),
    ],
    one_of: &[],
};

const DELIVERY: Shape =
    OneOf(&[Words(&["body"]), Of(&DELIVERY_BY)], "`body`, or a map with `header` or `field`");

static DELIVERY_BY: Table = Table {
    name: "delivery",
    keys: &[
        key("header", Text, "the header with its id"),
        key("field", Text, "the field of the payload with its id"),
    ],
    one_of: &["header", "field"],
};

static MODELS: Table = Table {
    name: "models",
    keys: &[
        key("provider", Words(&["openai", "anthropic"]), "who is asked where a step does not say"),
        key("default", Text, "which model is asked where a step does not say"),
        key("prices", Map(Keys::Any, &Of(&PRICE)), "what each costs"),
    ],
    one_of: &[],
};

static PRICE: Table = Table {
    name: "price",
    keys: &[
        key("input_usd", Money, "dollars for a million tokens that it is given").required(),
        key("output_usd", Money, "dollars for a million tokens that it writes").required(),
    ],
    one_of: &[],
};

static HTTP: Table = Table {
    name: "http",
    keys: &[
        key("allow", List(&Text), "only there; to every public host where nothing is listed"),
        key("allow_private", List(&Text), "there although it is not public"),
    ],
    one_of: &[],
};
