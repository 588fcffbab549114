//! Building: from checked values to the core's templates, names and spans.
//!
//! Expressions are compiled here, once each. What they refer to is noted with where they stand, and checked when the whole
//! runbook is known.

use super::problem::{Notes, Place, Problem, Source, suggest};
use super::text::{self, Piece};
use super::tools::Tools;
use super::yaml::{Node, Value};
use super::{shape, span};
use crate::expr::{self, Expression};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use windlass_core::id::Name;
use windlass_core::runbook::Node as StepNode;
use windlass_core::small;
use windlass_core::template::{Part, Template};
use windlass_core::time::Span;

/// Where an expression stands: that says what it may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stand {
    /// In a step of the pipeline.
    Step(StepNode),
    /// In the `foreach` of a step or in the `when` beside it, where its own item is not known yet.
    Foreach(StepNode),
    /// In the outputs of the pipeline.
    Outputs,
    /// In the lock or the workspace of the pipeline, which are needed before it begins.
    Before,
    /// In a worker's variables.
    Worker,
    /// In a schedule's variables.
    Schedule,
    /// In a trigger.
    Trigger,
}

/// An expression that refers to something, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Use {
    /// What was compiled.
    pub expression: Rc<Expression>,
    /// Where the expression begins in its file.
    pub at: Place,
    /// Where it stands.
    pub stand: Stand,
}

/// What may stand in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrets {
    /// A secret may.
    Allowed,
    /// No secret may: the value is recorded.
    Refused,
}

/// Builds values, and keeps what was wrong and what must be checked later.
pub(super) struct Builder<'a> {
    pub sources: &'a [Source],
    /// The tools that steps can call.
    pub tools: Tools<'a>,
    pub notes: Notes,
    /// The expressions of the pipeline, or the part of the file, that is being built.
    pub uses: Vec<Use>,
    compiled: HashMap<String, Result<Rc<Expression>, expr::Error>>,
    /// The patterns of the runbook, and how many bytes they need together.
    pub patterns: (HashSet<String>, usize),
}

impl<'a> Builder<'a> {
    /// A builder for these files.
    #[must_use]
    pub(super) fn new(sources: &'a [Source], tools: Tools<'a>) -> Builder<'a> {
        let (notes, uses, compiled) = (Notes::default(), Vec::new(), HashMap::new());
        Builder { sources, tools, notes, uses, compiled, patterns: Default::default() }
    }

    fn source(&self, file: u16) -> &'a str {
        self.sources.get(usize::from(file)).map_or("", |source| source.text.as_str())
    }

    /// A name. Its shape was checked, so nothing is changed about it.
    pub(super) fn name(&mut self, node: &Node) -> Name {
        Name::clean(node.text().unwrap_or_default())
    }

    /// The names of a list, or the one name.
    pub(super) fn names(&mut self, node: Option<&Node>) -> Vec<Name> {
        node.map(Node::items).unwrap_or_default().iter().map(|item| self.name(item)).collect()
    }

    /// The texts of a list, or the one text.
    pub(super) fn texts(&mut self, node: Option<&Node>) -> Vec<String> {
        let text = |item: &Node| item.text().unwrap_or_default().to_owned();
        node.map(Node::items).unwrap_or_default().iter().map(text).collect()
    }

    /// A name that must be one the core accepts, where the language allows for more than plain names.
    pub(super) fn free_name(&mut self, node: &Node, what: &str) -> Name {
        let text = node.text().unwrap_or_default();
        Name::new(text).unwrap_or_else(|_| {
            let message =
                format!("`{what}` is not a name: 1 to {} bytes without control characters", Name::LEN_MAX);
            self.notes.add(Problem::at(node.at, message));
            Name::clean(text)
        })
    }

    /// A duration. Its shape was checked.
    pub(super) fn span(&mut self, node: &Node) -> Span {
        span::parse(node.text().unwrap_or_default()).unwrap_or(Span::ZERO)
    }

    /// A number. Its shape was checked.
    pub(super) fn number(&mut self, node: &Node) -> u64 {
        shape::number(node).unwrap_or_default()
    }

    /// A number of the core's smaller kind. The tables allow for no larger ones.
    pub(super) fn count(&mut self, node: &Node) -> u32 {
        u32::try_from(self.number(node)).unwrap_or(u32::MAX)
    }

    /// Truth. Its shape was checked.
    pub(super) fn truth(&mut self, node: &Node) -> bool {
        node.value == Value::Bool(true)
    }

    /// A command: text without expressions, because a shell would read values as commands.
    pub(super) fn command(&mut self, node: &Node, key: &str) -> String {
        let text = node.text().unwrap_or_default();
        if text.trim().is_empty() {
            self.notes.add(Problem::at(node.at, format!("`{key}` is empty")).label("expected a command"));
        }
        if text.contains('\0') {
            self.notes
                .add(Problem::at(node.at, format!("`{key}` holds a NUL character, which no command can")));
        }
        if text.contains(text::OPEN) {
            let problem = match text::split(text) {
                Ok(pieces) => refuse_in_command(&pieces, node, self.source(node.at.file), key),
                Err(_) => None,
            };
            let plain = || Problem::at(node.at, format!("`{}` cannot stand in `{key}`", text::OPEN));
            self.notes.add(problem.unwrap_or_else(plain));
        }
        text.to_owned()
    }

    /// A condition: a bare expression.
    pub(super) fn condition(&mut self, node: &Node, stand: Stand) -> String {
        let Some(text) = node.text() else {
            return node.json().to_string();
        };
        // Users of other systems write the braces here too; one whole expression is not ambiguous.
        let bare = match text::split(text).as_deref() {
            Ok([Piece::Expr(source, _)]) if text.trim().ends_with(text::CLOSE) => source,
            _ => text.trim(),
        };
        let bare = bare.to_owned();
        let at = text::locate(self.source(node.at.file), node, &bare, &mut 0);
        if let Some(expression) = self.expression(&bare, at, stand)
            && !expression.may_be_bool()
        {
            let problem = Problem::at(at, "this condition is neither true nor false");
            self.notes
                .add(problem.help("compare it with something: `vars.env == \"prod\"`; there is no coercion"));
        }
        bare
    }

    /// Compiles an expression and notes what it refers to. What is wrong is noted too.
    fn expression(&mut self, source: &str, at: Place, stand: Stand) -> Option<Rc<Expression>> {
        let known = self.compiled.get(source).cloned();
        let compiled = known.unwrap_or_else(|| {
            let compiled = expr::compile(source).map(Rc::new);
            self.compiled.insert(source.to_owned(), compiled.clone());
            compiled
        });
        match compiled {
            Ok(expression) => {
                self.uses.push(Use { expression: Rc::clone(&expression), at, stand });
                Some(expression)
            }
            Err(error) => {
                let place = within(at, source, &error.at);
                let problem = Problem::at(place, error.message);
                self.notes.add(match error.help {
                    Some(help) => problem.help(help),
                    None => problem,
                });
                None
            }
        }
    }

    /// A text with expressions in it, or a value as it is.
    pub(super) fn template(&mut self, node: &Node, stand: Stand, secrets: Secrets) -> Template {
        match &node.value {
            Value::Text(text) if text.contains(text::OPEN) => self.text(node, text, stand, secrets),
            Value::Null | Value::Bool(_) | Value::Number(..) | Value::Text(_) => {
                Template::Literal(node.json())
            }
            Value::List(items) => {
                let list: Vec<Template> =
                    items.iter().map(|item| self.template(item, stand, secrets)).collect();
                match list.iter().all(|one| matches!(one, Template::Literal(_))) {
                    true => Template::Literal(node.json()),
                    false => Template::List(list),
                }
            }
            Value::Map(entries) => {
                let entry = |(key, value): &(super::yaml::Key, Node)| {
                    if key.text.contains(text::OPEN) {
                        self.notes.add(Problem::at(key.at, "an expression cannot stand in a key"));
                    }
                    (key.text.clone(), self.template(value, stand, secrets))
                };
                let map: small::Map<String, Template> = entries.iter().map(entry).collect();
                let literal = map.values().all(|one| matches!(one, Template::Literal(_)));
                if literal { Template::Literal(node.json()) } else { Template::Map(map) }
            }
        }
    }

    /// The value of an environment variable. A number reaches the program as it is written, or is refused.
    pub(super) fn env_value(&mut self, node: &Node, key: &str, stand: Stand) -> Template {
        if let Value::Number(number, written) = &node.value
            && number.to_string() != *written
        {
            let message = format!("`{key}` would become `{number}`");
            let help = format!("write it in quotes: '{written}'");
            self.notes.add(Problem::at(node.at, message).label("this is a number").help(help));
        }
        if node.text().is_some_and(|text| text.contains('\0')) {
            self.notes.add(Problem::at(
                node.at,
                format!("`{key}` holds a NUL character, which no environment can"),
            ));
        }
        self.template(node, stand, Secrets::Allowed)
    }

    fn text(&mut self, node: &Node, text: &str, stand: Stand, secrets: Secrets) -> Template {
        let pieces = match text::split(text) {
            Ok(pieces) => pieces,
            Err(at) => {
                let place = text::locate(
                    self.source(node.at.file),
                    node,
                    &text[at..(at + 3).min(text.len())],
                    &mut 0,
                );
                let problem = Problem::at(place, "an expression begins here and does not end");
                self.notes.add(problem.help("close it with `}}`; check the quotes inside of it"));
                return Template::Literal(text.into());
            }
        };
        let mut cursor = node.at.start as usize;
        let mut parts = Vec::new();
        for piece in &pieces {
            match piece {
                Piece::Literal(literal) => parts.push(Part::Literal((*literal).to_owned())),
                Piece::Expr(source, _) => {
                    let at = text::locate(self.source(node.at.file), node, source, &mut cursor);
                    match self.secret(source, at, secrets, pieces.len() == 1) {
                        Some(Ok(name)) => return Template::Secret(name),
                        Some(Err(problem)) => self.notes.add(problem),
                        None => drop(self.expression(source, at, stand)),
                    }
                    parts.push(Part::Expr((*source).to_owned()));
                }
            }
        }
        match &parts[..] {
            [Part::Expr(source)] => Template::Expr(source.clone()),
            _ => Template::Text(parts),
        }
    }

    /// A reference to a secret, or why it cannot stand here; none where the expression is about something else.
    fn secret(
        &self,
        source: &str,
        at: Place,
        secrets: Secrets,
        whole: bool,
    ) -> Option<Result<Name, Problem>> {
        if !source.contains("secrets") {
            return None;
        }
        let expression = expr::compile(source).ok()?;
        let path = expression.references().iter().map(|r| &r.path).find(|path| path[0] == "secrets")?;
        let written = format!("secrets.{}", path.get(1).map_or("NAME", String::as_str));
        let name = path.get(1).and_then(|name| Name::new(name).ok());
        Some(match (secrets, name) {
            (Secrets::Refused, _) => Err(Problem::at(at, "a secret cannot stand here: this value is recorded").help(
                format!("secrets go into `env`, and into fields of tools that are made for them: `env: {{ TOKEN: '${{{{ {written} }}}}' }}`"),
            )),
            (Secrets::Allowed, Some(name)) if whole && names_secret(source, &name) => Ok(name),
            (Secrets::Allowed, _) => Err(Problem::at(at, "a secret must be the whole value").help(format!(
                "write `${{{{ {written} }}}}` and nothing else; only a reference to it is kept, so nothing can be added to it"
            ))),
        })
    }

    /// Notes that a name means nothing, with what may have been meant.
    pub(super) fn unknown<'n>(
        &mut self,
        at: Place,
        what: &str,
        name: &str,
        known: impl IntoIterator<Item = &'n str> + Clone,
    ) {
        self.notes.add_with(|| {
            let message = format!("there is no {what} `{}`", shape::short(name));
            Problem::at(at, message).help(suggest(name, known, &format!("{what}s")))
        });
    }
}

/// Whether an expression is a secret's name and nothing else. A name with a dash is written in brackets.
fn names_secret(source: &str, name: &Name) -> bool {
    let rest = source.strip_prefix("secrets").unwrap_or_default();
    rest == format!(".{name}") || rest == format!("[\"{name}\"]") || rest == format!("['{name}']")
}

/// The place of a range of an expression.
pub(super) fn within(at: Place, source: &str, range: &std::ops::Range<usize>) -> Place {
    let (start, end) = (at.start as usize, at.end as usize);
    if end - start != source.len() {
        return at;
    }
    let begin = range.start.min(source.len());
    Place::new(at.file, start + begin, start + range.end.clamp(begin, source.len()))
}

/// The problem of an expression in a command, with what to write instead.
fn refuse_in_command(pieces: &[Piece<'_>], node: &Node, source: &str, key: &str) -> Option<Problem> {
    let first = pieces.iter().find_map(|piece| match piece {
        Piece::Expr(expr, _) => Some(*expr),
        Piece::Literal(_) => None,
    })?;
    let at = text::locate(source, node, first, &mut 0);
    let path: Vec<&str> = first.split('.').map(str::trim).collect();
    let help = match &path[..] {
        ["vars", name] => {
            format!("write \"$WL_VAR_{}\" instead: every variable is in the environment", variable(name))
        }
        _ => {
            let name = variable(path.last().copied().unwrap_or_default());
            format!(
                "add `env: {{ {name}: '${{{{ {first} }}}}' }}` to the step and write \"${name}\" in the command"
            )
        }
    };
    let message =
        format!("an expression cannot stand in `{key}`: values reach a command only through the environment");
    Some(Problem::at(at, message).label("a shell would read the value as part of the command").help(help))
}

fn variable(text: &str) -> String {
    let clean: String = text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
    match clean.is_empty() || clean.starts_with(|c: char| c.is_ascii_digit()) {
        true => "VALUE".to_owned(),
        false => clean.to_uppercase(),
    }
}
