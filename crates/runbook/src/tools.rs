//! The tools: which there are, what they take, what they touch and how risky that is.
//!
//! A tool's operation is the last part of its name. Its target is what policy and people see as the thing that is acted
//! on; it is put together from its fields.

use super::shape::Shape::{Command, Duration, List, Map, OneOf, Template, Value, Words};
use super::shape::{Key, Keys, Shape, Table, key};
use windlass_core::policy::Risk;
use windlass_core::receipt::Semantics;

/// A tool that steps can call.
#[derive(Debug)]
pub struct Tool<'t> {
    /// Its name, as steps write it.
    pub name: &'t str,
    /// What it does, in a word.
    pub operation: &'t str,
    /// Whether it changes something outside, or in another place of the repository.
    pub writes: Writes,
    /// What can be done about a lost attempt at a write; absent, it is a human's to say. A request says by its method.
    pub semantics: Option<Semantics>,
    /// How risky that is.
    pub risk: Risk,
    /// The fields that make up the target, joined by `/`. Those that are not given are left out.
    pub target: &'t [&'t str],
    /// What the target is where none of these fields is given.
    pub otherwise: &'t str,
    pub fields: Table<'t>,
    /// The fields that may hold secrets.
    pub secrets: &'t [&'t str],
}

/// Whether a tool changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It only looks.
    No,
    /// It changes something.
    Yes,
    /// An HTTP request: all methods but GET, HEAD and OPTIONS.
    ByMethod,
}

/// The tool that emits a custom event.
pub const EMIT: &str = "emit";

/// The methods that change nothing.
pub const SAFE_METHODS: &[&str] = &["GET", "HEAD", "OPTIONS"];
const METHODS: &[&str] = &["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"];

/// The methods whose repetition changes nothing more.
const IDEMPOTENT_METHODS: &[&str] = &["PUT", "DELETE"];

/// A tool that a file describes, as runbooks see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its name, such as `pager.page`.
    pub name: String,
    /// Whether it changes something outside.
    pub writes: bool,
    /// What can be done about a lost attempt.
    pub semantics: Option<Semantics>,
    /// How risky it is.
    pub risk: Risk,
    /// The fields that make up the target.
    pub target: Vec<String>,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// A field of a described tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What it means.
    pub about: String,
    /// Whether it is a text; anything where it is not.
    pub text: bool,
    /// Whether it must be there.
    pub required: bool,
    /// Whether it may hold a secret.
    pub secret: bool,
}

/// The tools that files describe: what a runbook is read with, beside its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described(Vec<Signature>);

impl Described {
    /// No tools.
    pub const NONE: Described = Described(Vec::new());

    /// These tools. The first of a name counts.
    #[must_use]
    pub fn new(signatures: Vec<Signature>) -> Described {
        let mut known: Vec<Signature> = Vec::with_capacity(signatures.len());
        for signature in signatures {
            if known.iter().all(|other| other.name != signature.name) {
                known.push(signature);
            }
        }
        Described(known)
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|signature| signature.name.as_str())
    }

    /// Does something with all tools: those of Windlass itself and these.
    pub fn with<R>(&self, use_them: impl FnOnce(Tools<'_>) -> R) -> R {
        // What tables point at: the keys, targets and secrets of each tool.
        let parts: Vec<Parts<'_>> = self.0.iter().map(Parts::of).collect();
        let tools: Vec<Tool<'_>> =
            self.0.iter().zip(&parts).map(|(signature, parts)| signature.tool(parts)).collect();
        use_them(Tools { described: &tools })
    }
}

/// The lists of a described tool.
struct Parts<'t> {
    keys: Vec<Key<'t>>,
    target: Vec<&'t str>,
    secrets: Vec<&'t str>,
}

impl<'t> Parts<'t> {
    fn of(signature: &'t Signature) -> Parts<'t> {
        let key = |field: &'t Field| {
            let shape = if field.text { Template } else { Value };
            let key = key(&field.name, shape, &field.about);
            if field.required { key.required() } else { key }
        };
        Parts {
            keys: signature.fields.iter().map(key).collect(),
            target: signature.target.iter().map(String::as_str).collect(),
            secrets: signature
                .fields
                .iter()
                .filter(|field| field.secret)
                .map(|field| field.name.as_str())
                .collect(),
        }
    }
}

impl Signature {
    fn tool<'t>(&'t self, parts: &'t Parts<'t>) -> Tool<'t> {
        let name = self.name.as_str();
        Tool {
            name,
            operation: name.split_once('.').map_or(name, |(_, operation)| operation),
            writes: if self.writes { Writes::Yes } else { Writes::No },
            semantics: self.semantics,
            risk: self.risk,
            target: &parts.target,
            otherwise: name,
            fields: Table { name, keys: &parts.keys, one_of: &[] },
            secrets: &parts.secrets,
        }
    }
}

/// The tools that steps can call: those of Windlass itself, and those that files describe.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'t> {
    described: &'t [Tool<'t>],
}

impl<'t> Tools<'t> {
    /// Those of Windlass itself.
    pub const OWN: Tools<'static> = Tools { described: &[] };

    /// The tool with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'t Tool<'t>> {
        let own = TOOLS.iter().find(|tool| tool.name == name);
        own.or_else(|| self.described.iter().find(|tool| tool.name == name))
    }

    /// Whether a call changes something outside. An unknown call counts as a write.
    #[must_use]
    pub fn writes(&self, tool: &str, operation: &str) -> bool {
        match self.find(tool).map(|tool| tool.writes) {
            Some(Writes::No) => false,
            Some(Writes::Yes) | None => true,
            Some(Writes::ByMethod) => !SAFE_METHODS.contains(&operation.to_uppercase().as_str()),
        }
    }
}

impl Tool<'_> {
    /// What can be done about a lost attempt at a write with this operation.
    #[must_use]
    pub fn semantics_of(&self, operation: &str) -> Option<Semantics> {
        match self.writes {
            Writes::No => None,
            Writes::Yes => self.semantics,
            Writes::ByMethod => {
                let again = IDEMPOTENT_METHODS.contains(&operation.to_uppercase().as_str());
                again.then_some(Semantics::Idempotent)
            }
        }
    }
}

const fn table<'t>(name: &'t str, keys: &'t [Key<'t>]) -> Table<'t> {
    Table { name, keys, one_of: &[] }
}

const TEXTS: Shape = OneOf(&[Template, List(&Template)], "a text or a list of texts");
const ID: Shape = OneOf(&[Template, Shape::Int(0, u64::MAX)], "a number or an expression");

const REPO: Key = key("repo", Template, "the repository, as `owner/name`").required();
const NUMBER: Key = key("number", ID, "the number of the issue or pull request").required();
const TABLE: Key = key("table", Template, "the table, such as `incident`").required();
const SYS_ID: Key = key("sys_id", Template, "the record").required();
const FIELDS: Key =
    key("fields", OneOf(&[Map(Keys::Any, &Value), Template], "a map"), "the fields to set").required();
const TOKEN: Key = key("token", Template, "the credential; the configured one where it is not given");
const DIR: Key = key("dir", Template, "the repository; the run's workspace where it is not given");

/// A tool of the local repository.
const fn git(
    name: &'static str,
    operation: &'static str,
    writes: Writes,
    target: &'static [&'static str],
    keys: &'static [Key<'static>],
) -> Tool<'static> {
    let fields = table(name, keys);
    Tool {
        name,
        operation,
        writes,
        semantics: None,
        risk: Risk::Low,
        target,
        otherwise: "repository",
        fields,
        secrets: &[],
    }
}

/// A tool of a service.
const fn service(
    name: &'static str,
    operation: &'static str,
    (risk, semantics): (Risk, Semantics),
    target: &'static [&'static str],
    keys: &'static [Key<'static>],
) -> Tool<'static> {
    let fields = table(name, keys);
    let (writes, semantics, secrets) = (Writes::Yes, Some(semantics), &["token"]);
    Tool { name, operation, writes, semantics, risk, target, otherwise: "service", fields, secrets }
}

pub static TOOLS: &[Tool<'static>] = &[
    Tool {
        name: "http",
        operation: "request",
        writes: Writes::ByMethod,
        semantics: None,
        risk: Risk::Medium,
        target: &["url"],
        otherwise: "url",
        secrets: &["bearer", "headers"],
        fields: table(
            "http",
            &[
                key("url", Template, "the address").required(),
                key("method", Words(METHODS), "the method; GET where it is not given"),
                key("headers", Map(Keys::Any, &Value), "the headers; values may be secrets"),
                key("query", Map(Keys::Any, &Value), "the query"),
                key("bearer", Template, "a token for the `Authorization` header; may be a secret"),
                key("json", Value, "the body, as JSON"),
                key("body", Template, "the body, as text"),
                key(
                    "expect",
                    OneOf(&[ID, List(&ID)], "a status or a list"),
                    "the statuses that are a success",
                ),
                key("timeout", Duration, "how long the request may take"),
            ],
        ),
    },
    service(
        "slack.post",
        "post",
        (Risk::Low, Semantics::Reconcile),
        &["channel"],
        &[
            TOKEN,
            key("channel", Template, "the channel").required(),
            key("text", Template, "the message").required(),
            key("blocks", Value, "the message in blocks"),
            key("thread_ts", Template, "the message to answer to"),
        ],
    ),
    service(
        "slack.update",
        "update",
        (Risk::Low, Semantics::Idempotent),
        &["channel", "ts"],
        &[
            TOKEN,
            key("channel", Template, "the channel").required(),
            key("ts", Template, "the message to change").required(),
            key("text", Template, "the new message").required(),
            key("blocks", Value, "the new message in blocks"),
        ],
    ),
    service(
        "github.comment",
        "comment",
        (Risk::Low, Semantics::Reconcile),
        &["repo", "number"],
        &[TOKEN, REPO, NUMBER, key("body", Template, "the comment").required()],
    ),
    service(
        "github.label",
        "label",
        (Risk::Low, Semantics::Idempotent),
        &["repo", "number"],
        &[
            TOKEN,
            REPO,
            NUMBER,
            key("add", TEXTS, "labels to add"),
            key("remove", TEXTS, "labels to take away"),
        ],
    ),
    service(
        "github.status",
        "status",
        (Risk::Low, Semantics::Idempotent),
        &["repo", "sha"],
        &[
            TOKEN,
            REPO,
            key("sha", Template, "the commit").required(),
            key("state", Template, "error, failure, pending or success").required(),
            key("context", Template, "what the status is about"),
            key("description", Template, "a short text"),
            key("target_url", Template, "where to read more"),
        ],
    ),
    service(
        "github.create_pr",
        "create_pr",
        (Risk::Medium, Semantics::Reconcile),
        &["repo", "head"],
        &[
            TOKEN,
            REPO,
            key("title", Template, "the title").required(),
            key("head", Template, "the branch with the changes").required(),
            key("base", Template, "the branch to merge into").required(),
            key("body", Template, "the description"),
            key("draft", Shape::Bool, "whether it is a draft"),
        ],
    ),
    service(
        "github.merge",
        "merge",
        (Risk::High, Semantics::Reconcile),
        &["repo", "number"],
        &[
            TOKEN,
            REPO,
            NUMBER,
            key("method", Words(&["merge", "squash", "rebase"]), "how"),
            key("sha", Template, "the head that must be merged"),
            key("title", Template, "the title of the commit"),
            key("message", Template, "the text of the commit"),
        ],
    ),
    Tool {
        name: "servicenow.get",
        operation: "get",
        writes: Writes::No,
        semantics: None,
        risk: Risk::Low,
        target: &["table", "sys_id"],
        otherwise: "table",
        secrets: &["token"],
        fields: table(
            "servicenow.get",
            &[
                TABLE,
                TOKEN,
                key("sys_id", Template, "the record"),
                key("query", Template, "an encoded query, where no record is named"),
                key("fields", TEXTS, "the fields to give"),
                key("limit", Shape::Int(1, 1_000), "how many records at most"),
            ],
        ),
    },
    service(
        "servicenow.create",
        "create",
        (Risk::Medium, Semantics::Reconcile),
        &["table"],
        &[TOKEN, TABLE, FIELDS],
    ),
    service(
        "servicenow.update",
        "update",
        (Risk::Medium, Semantics::Idempotent),
        &["table", "sys_id"],
        &[TOKEN, TABLE, SYS_ID, FIELDS],
    ),
    service(
        "servicenow.assign",
        "assign",
        (Risk::Medium, Semantics::Idempotent),
        &["table", "sys_id"],
        &[TOKEN, TABLE, SYS_ID, key("group", Template, "the group"), key("user", Template, "the user")],
    ),
    service(
        "servicenow.work_note",
        "work_note",
        (Risk::Low, Semantics::Reconcile),
        &["table", "sys_id"],
        &[TOKEN, TABLE, SYS_ID, key("text", Template, "the note").required()],
    ),
    service(
        "slack.delete",
        "delete",
        (Risk::Medium, Semantics::Idempotent),
        &["channel", "ts"],
        &[
            TOKEN,
            key("channel", Template, "the channel").required(),
            key("ts", Template, "the message to take away").required(),
        ],
    ),
    service(
        "github.delete_comment",
        "delete_comment",
        (Risk::Medium, Semantics::Idempotent),
        &["repo", "comment_id"],
        &[TOKEN, REPO, key("comment_id", ID, "the comment").required()],
    ),
    service(
        "github.close_pr",
        "close_pr",
        (Risk::Medium, Semantics::Idempotent),
        &["repo", "number"],
        &[TOKEN, REPO, NUMBER],
    ),
    service(
        "servicenow.delete",
        "delete",
        (Risk::High, Semantics::Idempotent),
        &["table", "sys_id"],
        &[TOKEN, TABLE, SYS_ID],
    ),
    git("git.status", "status", Writes::No, &["dir"], &[DIR]),
    git(
        "git.log",
        "log",
        Writes::No,
        &["ref"],
        &[DIR, key("ref", Template, "from where"), key("limit", Shape::Int(1, 1_000), "how many")],
    ),
    git(
        "git.diff",
        "diff",
        Writes::No,
        &["base", "head"],
        &[DIR, key("base", Template, "from"), key("head", Template, "to")],
    ),
    git(
        "git.add",
        "add",
        Writes::Yes,
        &["dir"],
        &[DIR, key("paths", TEXTS, "what to add; everything where it is not given")],
    ),
    git(
        "git.commit",
        "commit",
        Writes::Yes,
        &["dir"],
        &[
            DIR,
            key("message", Template, "the message").required(),
            key("all", Shape::Bool, "whether everything that changed is added first"),
            key("author", Template, "who wrote it"),
        ],
    ),
    git(
        "git.branch",
        "branch",
        Writes::Yes,
        &["name"],
        &[DIR, key("name", Template, "the branch").required(), key("from", Template, "what it starts from")],
    ),
    git(
        "git.checkout",
        "checkout",
        Writes::Yes,
        &["ref"],
        &[DIR, key("ref", Template, "what to check out").required()],
    ),
    git(
        "git.merge",
        "merge",
        Writes::Yes,
        &["into"],
        &[
            DIR,
            key("into", Template, "the branch that moves").required(),
            key("from", Template, "what is merged; the workspace's branch where it is not given"),
            key("mode", Words(&["ff", "rebase", "merge", "squash"]), "how"),
            key("check", Command, "a command that must pass on the result before the branch moves"),
            key("message", Template, "the message of the commit"),
        ],
    ),
    git(
        "git.rebase",
        "rebase",
        Writes::Yes,
        &["onto"],
        &[DIR, key("onto", Template, "onto what").required(), key("branch", Template, "which branch")],
    ),
    git(
        "git.worktree",
        "worktree",
        Writes::Yes,
        &["path"],
        &[
            DIR,
            key("path", Template, "where").required(),
            key("branch", Template, "the branch"),
            key("base", Template, "what it starts from"),
        ],
    ),
    Tool {
        name: "git.push",
        operation: "push",
        writes: Writes::Yes,
        semantics: None,
        risk: Risk::High,
        target: &["remote", "branch"],
        otherwise: "origin",
        secrets: &[],
        fields: table(
            "git.push",
            &[
                DIR,
                key("remote", Template, "where to; `origin` where it is not given"),
                key("branch", Template, "which branch"),
                key("force", Words(&["no", "with_lease"]), "whether the remote branch may be replaced"),
            ],
        ),
    },
    Tool {
        name: "git.fetch",
        operation: "fetch",
        writes: Writes::No,
        semantics: None,
        risk: Risk::Low,
        target: &["remote"],
        otherwise: "origin",
        secrets: &[],
        fields: table(
            "git.fetch",
            &[DIR, key("remote", Template, "from where"), key("ref", Template, "what")],
        ),
    },
    Tool {
        name: "model",
        operation: "complete",
        writes: Writes::No,
        semantics: None,
        risk: Risk::Low,
        target: &["model"],
        otherwise: "model",
        secrets: &[],
        fields: table(
            "model",
            &[
                key("prompt", Template, "what is asked").required(),
                key("system", Template, "how the model should answer"),
                key("data", Value, "values that the prompt is about; fenced as data"),
                key("model", Template, "which model"),
                key("provider", Template, "whose model"),
                key("max_tokens", Shape::Int(1, 1_000_000), "how long the answer may be"),
                key("temperature", Value, "how free the answer may be"),
                key("schema", Value, "a JSON Schema that the answer must fit"),
            ],
        ),
    },
    Tool {
        name: "transform",
        operation: "transform",
        writes: Writes::No,
        semantics: None,
        risk: Risk::Low,
        target: &[],
        otherwise: "value",
        secrets: &[],
        fields: table("transform", &[key("value", Value, "the value that the step gives").required()]),
    },
    Tool {
        name: EMIT,
        operation: "emit",
        writes: Writes::No,
        semantics: None,
        risk: Risk::Low,
        target: &["type"],
        otherwise: "type",
        secrets: &[],
        fields: table(
            EMIT,
            &[
                key("type", Template, "the type of the event, as `category:action`").required(),
                key("data", Value, "what the event brings"),
            ],
        ),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::policy;

    #[test]
    fn targets_and_secrets_are_fields() {
        for tool in TOOLS {
            for field in tool.target.iter().chain(tool.secrets) {
                assert!(tool.fields.shape_of(field, Tools::OWN).is_some(), "{}: {field}", tool.name);
            }
            assert!(tool.name.ends_with(tool.operation) || !tool.name.contains('.'), "{}", tool.name);
            assert!(std::ptr::eq(Tools::OWN.find(tool.name).unwrap(), tool), "{} stands twice", tool.name);
        }
    }

    #[test]
    fn a_described_tool_is_known_where_it_is_passed_in_and_nowhere_else() {
        let field =
            Field { name: "to".into(), about: "whom".into(), text: true, required: true, secret: false };
        let pager = Signature {
            name: "pager.page".into(),
            writes: true,
            semantics: None,
            risk: Risk::High,
            target: vec!["to".into()],
            fields: vec![field],
        };
        let described = Described::new(vec![pager.clone(), Signature { risk: Risk::Low, ..pager }]);
        described.with(|tools| {
            let found = tools.find("pager.page").unwrap();
            assert_eq!((found.risk, found.operation, found.target), (Risk::High, "page", &["to"][..]));
            assert!(tools.find("http").is_some() && tools.writes("pager.page", "page"));
        });
        let text = "name: t\npipelines:\n  p:\n    steps:\n      - pager.page: { to: ann }\n";
        assert!(crate::parse("t", text, &(), &described).is_ok());
        assert!(crate::parse("t", text, &(), &Described::NONE).is_err());
    }

    #[test]
    fn the_built_in_policy_allows_local_git_and_reads_alone() {
        for tool in TOOLS {
            let allowed = policy::builtin(tool.name, tool.writes != Writes::No) == policy::Verdict::Allow;
            let local = tool.name.starts_with("git.") && tool.name != "git.push";
            assert_eq!(allowed, local || tool.writes == Writes::No, "{}", tool.name);
        }
    }
}
