//! The tables of the configuration file: which keys there are, what they hold, what they mean.

use windlass_runbook::shape::Shape::{
    Duration, Int, List, Map, Money, Name, OneOf, Table as Of, Text, Words,
};
use windlass_runbook::shape::{Keys, Shape, Table, key};

const NAMES: Shape = OneOf(&[Name, List(&Name)], "a name or a list of names");
const CAP: Shape = Int(1, 1_000_000);

/// A whole file.
pub(super) static FILE: Table = Table {
    name: "configuration",
    keys: &[
        key("tenants", Map(Keys::Name, &Of(&TENANT)), "what is set for tenants"),
        key("github", Of(&GITHUB), "the GitHub webhook"),
        key("slack", Of(&SLACK), "Slack"),
        key("hooks", Map(Keys::Name, &Of(&HOOK)), "other sources of signed deliveries"),
        key("groups", Map(Keys::Name, &NAMES), "who belongs to which group"),
        key("models", Of(&MODELS), "the models that are asked"),
        key("http", Of(&HTTP), "where the `http` tool may go"),
        key("public_url", Text, "the address under which people reach this server"),
        key("policy", Text, "the folder with policies"),
        key("tools", Text, "the folder with descriptions of tools"),
    ],
    one_of: &[],
};

static TENANT: Table = Table {
    name: "tenant",
    keys: &[
        key("weight", Int(1, windlass_core::caps::WEIGHT_MAX as u64), "how large its share is"),
        key("caps", Of(&CAPS), "what it may do at most"),
        key("github", Of(&GITHUB), "its GitHub webhook"),
        key("slack", Of(&SLACK), "its Slack"),
        key("hooks", Map(Keys::Name, &NAMES), "the secrets of its generic hooks, by name"),
    ],
    one_of: &[],
};

static CAPS: Table = Table {
    name: "caps",
    keys: &[
        key("max_concurrency", CAP, "how many steps may run at once"),
        key("max_runs_per_min", CAP, "how many runs may be made within any minute"),
        key("max_writes_per_run", CAP, "how many times a run may write outside"),
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
