//! The schema that policies are checked against: made from the table of tools, so that it cannot lag behind them.
//!
//! Each tool is an action. Each action is in one of the groups `read`, `write` (to the outside) and `local` (what stays
//! on this machine), and in the group of its family, the part before the dot (`github`, `slack`). A tool's fields are typed where their type is known before a run; every
//! value, however deep, is also a tag of the target under its path.

use std::fmt::Write as _;
use windlass_core::policy::{self, Verdict};
use windlass_runbook::shape::{Key, Shape};
use windlass_runbook::tools::{TOOLS, Tool, Writes};

/// The file in a policy folder that holds the schema, for editors and readers.
pub const FILE: &str = "schema.cedarschema";
/// The namespace of everything in it.
pub const NAMESPACE: &str = "Windlass";
/// The action of tools that are not in the table and write.
pub const OTHER: &str = "other";
/// The action of tools that are not in the table and only read.
pub const OTHER_READ: &str = "other.read";
/// The action of an HTTP request that only reads.
pub const HTTP_READ: &str = "http.read";

/// What policy sees of every action, beside its fields.
const COMMON: &str = "      tool: String, operation: String, target: String, risk: String, writes: Bool,
      tenant: String, namespace: String, pipeline: String, undoes: Set<String>, runbook: String, runbook_hash: String,
      run: String, step: String, requester: String, source: String,
      approvals: Long, approvers: Set<String>, time: Time, budget: Budget,
";

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Text,
    Bool,
    Long,
    Texts,
}

impl Type {
    fn word(self) -> &'static str {
        match self {
            Type::Text => "String",
            Type::Bool => "Bool",
            Type::Long => "Long",
            Type::Texts => "Set<String>",
        }
    }
}

/// A field whose type is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Type,
    pub(super) required: bool,
}

/// The typed fields of a tool.
pub(super) fn fields(tool: &str) -> Vec<Field> {
    if tool == "agent" {
        return vec![Field { name: "agent", kind: Type::Text, required: true }];
    }
    let typed = |key: &Key<'static>| {
        let kind = kind(&key.shape)?;
        Some(Field { name: key.name, kind, required: key.required })
    };
    known(tool).map_or_else(Vec::new, |tool| tool.fields.keys.iter().filter_map(typed).collect())
}

/// A tool of the table. Those that files describe differ from one installation to another, and the schema does not.
fn known(tool: &str) -> Option<&'static Tool<'static>> {
    TOOLS.iter().find(|known| known.name == tool)
}

/// The type of what has a shape; none where it is only known when it is there.
fn kind(shape: &Shape<'_>) -> Option<Type> {
    match shape {
        Shape::Bool | Shape::Never => Some(Type::Bool),
        Shape::Int(..) => Some(Type::Long),
        Shape::Text
        | Shape::Command
        | Shape::Name
        | Shape::Money
        | Shape::Duration
        | Shape::DurationOrZero
        | Shape::Condition
        | Shape::Template
        | Shape::Env
        | Shape::Type
        | Shape::Words(_) => Some(Type::Text),
        Shape::List(_) => Some(Type::Texts),
        Shape::OneOf(shapes, _) if shapes.iter().any(|shape| matches!(shape, Shape::List(_))) => {
            Some(Type::Texts)
        }
        Shape::OneOf(shapes, _) if shapes.iter().any(|shape| matches!(shape, Shape::Map(..))) => None,
        Shape::OneOf(..) => Some(Type::Text),
        Shape::Value | Shape::Map(..) | Shape::Table(_) => None,
    }
}

/// The action that stands for a tool.
pub(super) fn action(tool: &str, writes: bool) -> &str {
    match tool {
        "http" if !writes => HTTP_READ,
        "shell" | "agent" => tool,
        _ if known(tool).is_some() => tool,
        _ if writes => OTHER,
        _ => OTHER_READ,
    }
}

/// The schema as text.
#[must_use]
pub fn text() -> String {
    let mut out = String::from(HEAD);
    add(&mut out, "shell", &["local"], &[]);
    add(&mut out, "agent", &["local"], &fields("agent"));
    for tool in TOOLS {
        let writes = tool.writes != Writes::No;
        add(&mut out, tool.name, &groups(tool, writes), &fields(tool.name));
        if tool.writes == Writes::ByMethod {
            add(&mut out, HTTP_READ, &groups(tool, false), &fields(tool.name));
        }
    }
    out.push_str("  // A tool that is described in a file.\n");
    add(&mut out, OTHER, &["write"], &[]);
    add(&mut out, OTHER_READ, &["read"], &[]);
    out.push_str("}\n");
    out
}

/// The groups that a tool's action is in.
fn groups(tool: &Tool<'static>, writes: bool) -> Vec<&'static str> {
    // What the built-in policy allows although it writes does not leave this machine.
    let local = policy::builtin(tool.name, true) == Verdict::Allow;
    let mut groups = vec![match (local, writes) {
        (true, true) => "local",
        (false, true) => "write",
        (_, false) => "read",
    }];
    if let Some((family, _)) = tool.name.split_once('.') {
        groups.push(family);
    }
    groups
}

const HEAD: &str = "\
// What policies can speak of. Written by `windlass policy schema`; windlass checks policies against its own copy,
// this one is for editors and readers.
namespace Windlass {
  // Who asks: the human behind a run, else the service that made it, else the run that called it.
  entity User, Service, Run;
  // What is acted on. Every value of the action is a tag under its path: resource.getTag(\"fields.state\").
  entity Target tags String;

  // When policy was asked, in UTC.
  type Time = { hour: Long, minute: Long, weekday: String, date: String, at_ms: Long };
  // What the run has spent and what was set aside.
  type Budget = { usd_micros: Long, tokens: Long, time_ms: Long, writes: Long };

  // Each action is in one of these: it only reads, it writes to the outside, or it stays on this machine.
  action \"read\", \"write\", \"local\";
  // And in its family.
  action \"git\", \"github\", \"servicenow\", \"slack\";

";

fn add(out: &mut String, name: &str, groups: &[&str], fields: &[Field]) {
    let groups: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
    let fields: Vec<String> = fields
        .iter()
        .map(|field| {
            let optional = if field.required { "" } else { "?" };
            format!("{}{optional}: {}", field.name, field.kind.word())
        })
        .collect();
    let fields = if fields.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", fields.join(", ")) };
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "  action {name:?} in [{}] appliesTo {{\n    principal: [User, Service, Run],\n    resource: Target,\n    \
         context: {{\n{COMMON}      fields: {fields},\n    }},\n  }};\n\n",
        groups.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_one_that_cedar_takes_and_has_every_tool() {
        let text = text();
        let (schema, warnings) = cedar_policy::Schema::from_cedarschema_str(&text).unwrap();
        assert_eq!(warnings.count(), 0);
        let actions: Vec<String> = schema.actions().map(ToString::to_string).collect();
        for tool in TOOLS {
            let wanted = format!("{NAMESPACE}::Action::{:?}", tool.name);
            assert!(actions.contains(&wanted), "{wanted}");
        }
        for name in ["shell", "agent", OTHER, OTHER_READ, HTTP_READ] {
            assert!(actions.contains(&format!("{NAMESPACE}::Action::{name:?}")), "{name}");
        }
    }

    #[test]
    fn every_family_of_tools_is_a_group() {
        for tool in TOOLS {
            if let Some((family, _)) = tool.name.split_once('.') {
                assert!(HEAD.contains(&format!("{family:?}")), "{family}");
            }
        }
    }
}
