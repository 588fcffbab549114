//! Compiling: from the text of an expression to a checked tree, and to what it refers to.
//!
//! The parser recurses, so it runs on a thread with a stack of its own; what it accepts is then checked for depth, so
//! that evaluation is safe on any thread.

use super::{DEPTH_MAX, ENV, MACROS_MAX, SOURCE_LEN_MAX, functions};
use crate::problem::did_you_mean;
use cel::IdedExpr;
use cel::common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, SourceInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// The stack of the parser. Only what is used of it costs memory.
const STACK_LEN: usize = 64 * 1024 * 1024;
/// What a macro gathers its result in. No expression can write the name.
const RESULT: &str = "@result";
/// How deep brackets may be nested: the parser's time grows with it.
const BRACKETS_MAX: usize = 24;

/// Why a text is not an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The bytes of the expression that it is about.
    pub at: Range<usize>,
    pub message: String,
    /// What to do next.
    pub help: Option<String>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

impl std::error::Error for Error {}

/// Which parts of a name's value an expression looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fields {
    All,
    /// These fields.
    Some(BTreeSet<String>),
}

/// Something outside that an expression refers to: `steps.disk.output` is `["steps", "disk", "output"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The name and the fields selected from it, as far as they are plain.
    pub path: Vec<String>,
    /// The bytes of the expression where it begins.
    pub at: Range<usize>,
}

/// A compiled expression.
#[derive(Debug)]
pub struct Expression {
    pub(super) tree: IdedExpr,
    pub(super) names: BTreeMap<String, Fields>,
    /// The functions that it calls.
    pub(super) calls: BTreeSet<&'static str>,
    references: Vec<Reference>,
    bool_is_possible: bool,
}

impl Expression {
    /// What it refers to, in order.
    #[must_use]
    pub fn references(&self) -> &[Reference] {
        &self.references
    }

    /// Whether it can be true or false, as far as its text says.
    #[must_use]
    pub fn may_be_bool(&self) -> bool {
        self.bool_is_possible
    }
}

/// Compiles an expression and checks its bounds and its functions.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn compile(source: &str) -> Result<Expression, Error> {
    check_text(source)?;
    let parse = || -> Result<Expression, Error> {
        let parser = ENV.parser().max_recursion_depth(2 * BRACKETS_MAX as u16);
        let (tree, info) = parser.parse_with_source_info(source).map_err(|errors| syntax(source, &errors))?;
        check(tree, &info, source)
    };
    let failed = |message: &str| Error { at: 0..source.len(), message: message.to_owned(), help: None };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_LEN).spawn_scoped(scope, parse);
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(failed("the expression parser failed on it")),
            Err(_) => Err(failed("there is no thread to compile it on")),
        }
    })
}

/// What can be said before the text is parsed.
fn check_text(source: &str) -> Result<(), Error> {
    let whole = 0..source.len();
    if source.trim().is_empty() {
        let help = Some("write something between `${{` and `}}`".to_owned());
        return Err(Error { at: whole, message: "the expression is empty".to_owned(), help });
    }
    if source.len() > SOURCE_LEN_MAX {
        let message = format!("an expression may have {SOURCE_LEN_MAX} bytes, not {}", source.len());
        return Err(Error { at: whole, message, help: Some("let a step work the value out".to_owned()) });
    }
    let mut depth = 0_usize;
    for (at, byte) in source.bytes().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > BRACKETS_MAX {
            let message = format!("brackets may be nested {BRACKETS_MAX} deep");
            return Err(Error { at: at..at + 1, message, help: None });
        }
    }
    Ok(())
}

fn syntax(source: &str, errors: &cel::ParseErrors) -> Error {
    let Some(first) = errors.errors.first() else {
        return Error { at: 0..source.len(), message: "this is not an expression".to_owned(), help: None };
    };
    // The parser counts lines and columns from 1 and in characters.
    let (line, column) = (first.pos.0.max(1) as usize - 1, first.pos.1.max(1) as usize - 1);
    let before: usize = source.split_inclusive('\n').take(line).map(str::len).sum();
    let rest = source.get(before..).unwrap_or_default();
    let at = before + rest.chars().take(column).map(char::len_utf8).sum::<usize>();
    let (at, message) = match first.msg.as_str() {
        "UNKNOWN" => (0..source.len(), "it cannot be parsed".to_owned()),
        text if text.contains("Recursion limit") => (0..source.len(), "it is nested too deep".to_owned()),
        text => (at.min(source.len())..(at + 1).min(source.len()), super::brief(text.trim())),
    };
    let message = message.replace("Syntax error: ", "");
    // What could follow is nearly everything, so it is left out.
    let message = message.split(" expecting ").next().unwrap_or_default();
    let help = source.contains('\'').then(|| "quotes inside of an expression must be closed".to_owned());
    Error {
        at,
        message: format!("this is not an expression: {message}"),
        help: help.filter(|_| unclosed(source)),
    }
}

fn unclosed(source: &str) -> bool {
    source.matches('\'').count() % 2 == 1 || source.matches('"').count() % 2 == 1
}

/// Walks the tree once: depth, macros, functions, references.
struct Walk<'a> {
    info: &'a SourceInfo,
    source: &'a str,
    /// Names that macros bind, innermost last.
    bound: Vec<String>,
    macros: usize,
    references: Vec<Reference>,
    calls: BTreeSet<&'static str>,
}

fn check(mut tree: IdedExpr, info: &SourceInfo, source: &str) -> Result<Expression, Error> {
    let (bound, references, calls) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut walk = Walk { info, source, bound, macros: 0, references, calls };
    walk.visit(&mut tree, 1)?;
    let Walk { references, calls, .. } = walk;
    let mut names: BTreeMap<String, Fields> = BTreeMap::new();
    for reference in &references {
        let Some(name) = reference.path.first() else { continue };
        let known = names.entry(name.clone()).or_insert_with(|| Fields::Some(BTreeSet::new()));
        match (reference.path.get(1), known) {
            (Some(field), Fields::Some(fields)) => {
                fields.insert(field.clone());
            }
            (None, known) => *known = Fields::All,
            (Some(_), Fields::All) => {}
        }
    }
    let bool_is_possible = may_be_bool(&tree.expr);
    Ok(Expression { tree, names, calls, references, bool_is_possible })
}

impl Walk<'_> {
    fn at(&self, id: u64) -> Range<usize> {
        let byte = |n: u32| {
            let chars = self.source.char_indices().map(|(at, _)| at);
            chars.chain([self.source.len()]).nth(n as usize).unwrap_or(self.source.len())
        };
        match self.info.offset_for(id) {
            Some((start, stop)) => {
                let start = byte(start);
                start..byte(stop.saturating_add(1)).max(start)
            }
            None => 0..self.source.len(),
        }
    }

    fn error<T>(&self, id: u64, message: String, help: Option<String>) -> Result<T, Error> {
        Err(Error { at: self.at(id), message, help })
    }

    fn visit(&mut self, node: &mut IdedExpr, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            let help = Some("`format` and `join` put texts together without nesting".to_owned());
            return self.error(node.id, format!("an expression may be {DEPTH_MAX} levels deep"), help);
        }
        if let Some((path, root)) = path(node)
            && !self.bound.contains(&path[0])
        {
            let at = self.at(root);
            self.references.push(Reference { path, at });
            // Selections by a computed key hold expressions of their own; plain ones hold nothing more.
            return Ok(());
        }
        match &mut node.expr {
            Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Ok(()),
            Expr::Call(call) => self.call(node.id, call, depth),
            Expr::Select(select) => self.visit(&mut select.operand, depth + 1),
            Expr::List(list) => list.elements.iter_mut().try_for_each(|one| self.visit(one, depth + 1)),
            Expr::Map(map) => map.entries.iter_mut().try_for_each(|one| self.entry(&mut one.expr, depth)),
            Expr::Struct(message) => {
                let name = message.type_name.clone();
                self.error(
                    node.id,
                    format!("there is no type `{name}`"),
                    Some("a map is written {\"key\": value}".into()),
                )
            }
            Expr::Comprehension(_) => self.comprehension(node, depth),
        }
    }

    fn entry(&mut self, entry: &mut EntryExpr, depth: usize) -> Result<(), Error> {
        match entry {
            EntryExpr::StructField(field) => self.visit(&mut field.value, depth + 1),
            EntryExpr::MapEntry(entry) => {
                self.visit(&mut entry.key, depth + 1)?;
                self.visit(&mut entry.value, depth + 1)
            }
        }
    }

    fn call(&mut self, id: u64, call: &mut CallExpr, depth: usize) -> Result<(), Error> {
        let name = call.func_name.as_str();
        let operator = name.starts_with(['_', '@', '!', '-']);
        let function = functions::NAMES.iter().find(|known| **known == name);
        self.calls.extend(function);
        if !operator && function.is_none() {
            let near = did_you_mean(name, functions::NAMES.iter().copied());
            let help = near.map(|near| format!("did you mean `{near}`?"));
            let known = || Some(format!("functions: {}", functions::NAMES.join(", ")));
            // The parser gives the place of the bracket; the name stands before it.
            let bracket = self.at(id).start;
            let start = self.source[..bracket].rfind(name).unwrap_or(bracket);
            let message = format!("there is no function `{name}`");
            return Err(Error { at: start..start + name.len(), message, help: help.or_else(known) });
        }
        if let Some(target) = &mut call.target {
            self.visit(target, depth + 1)?;
        }
        call.args.iter_mut().try_for_each(|arg| self.visit(arg, depth + 1))?;
        if let Some(added) = appended(call) {
            self.calls.insert(functions::WALK);
            added.iter_mut().for_each(|one| around(one, functions::WALK, Vec::new()));
            return Ok(());
        }
        if functions::WALKS.contains(&call.func_name.as_str()) {
            self.calls.insert(functions::WALK);
            call.target.iter_mut().for_each(|target| around(target, functions::WALK, Vec::new()));
            call.args.iter_mut().for_each(|arg| around(arg, functions::WALK, Vec::new()));
        }
        Ok(())
    }

    /// What a macro became. The range is wrapped in a call that counts its elements: that is what bounds the work.
    fn comprehension(&mut self, node: &mut IdedExpr, depth: usize) -> Result<(), Error> {
        let id = node.id;
        let Expr::Comprehension(each) = &mut node.expr else { return Ok(()) };
        self.visit(&mut each.iter_range, depth + 1)?;
        self.macros += 1;
        if self.macros > MACROS_MAX {
            let help = Some("let a step work the value out".to_owned());
            return self.error(id, format!("macros may be nested {MACROS_MAX} deep"), help);
        }
        let bound = self.bound.len();
        self.bound.push(each.iter_var.clone());
        self.bound.extend(each.iter_var2.clone());
        self.bound.push(each.accu_var.clone());
        self.visit(&mut each.accu_init, depth + 1)?;
        self.visit(&mut each.loop_cond, depth + 1)?;
        self.visit(&mut each.loop_step, depth + 1)?;
        self.visit(&mut each.result, depth + 1)?;
        self.bound.truncate(bound);
        self.macros -= 1;
        self.calls.insert(functions::EACH);
        let parts = [&each.accu_init, &each.loop_cond, &each.loop_step, &each.result];
        let parts = parts.into_iter().map(parts_of).sum::<usize>();
        let count = LiteralValue::Int((parts as i64).into());
        around(&mut each.iter_range, functions::EACH, vec![IdedExpr { id, expr: Expr::Literal(count) }]);
        Ok(())
    }
}

/// What a step of `map` or `filter` puts at the end of its result. The interpreter appends it in place, as long as the step
/// has this form; so only what is added counts, and not the whole result each time.
fn appended(call: &mut CallExpr) -> Option<&mut Vec<IdedExpr>> {
    let CallExpr { func_name, target: None, args } = call else { return None };
    match &mut args[..] {
        [IdedExpr { expr: Expr::Ident(result), .. }, IdedExpr { expr: Expr::List(list), .. }]
            if func_name == "_+_" && result == RESULT =>
        {
            Some(&mut list.elements)
        }
        _ => None,
    }
}

/// Puts a call around an expression. What is written in it as it is needs none.
fn around(inner: &mut IdedExpr, function: &str, more: Vec<IdedExpr>) {
    if more.is_empty() && matches!(inner.expr, Expr::Literal(_)) {
        return;
    }
    let id = inner.id;
    let mut args = vec![std::mem::take(inner)];
    args.extend(more);
    let call = CallExpr { func_name: function.to_owned(), target: None, args };
    *inner = IdedExpr { id, expr: Expr::Call(call) };
}

/// Of how many parts an expression is made. What a macro in it does for each element counts there.
fn parts_of(node: &IdedExpr) -> usize {
    let all = |list: &[IdedExpr]| list.iter().map(parts_of).sum::<usize>();
    1 + match &node.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 0,
        Expr::Call(call) => call.target.as_deref().map_or(0, parts_of) + all(&call.args),
        Expr::Select(select) => parts_of(&select.operand),
        Expr::List(list) => all(&list.elements),
        Expr::Map(map) => map.entries.iter().map(|entry| entry_parts(&entry.expr)).sum(),
        Expr::Struct(message) => message.entries.iter().map(|entry| entry_parts(&entry.expr)).sum(),
        Expr::Comprehension(each) => parts_of(&each.iter_range),
    }
}

fn entry_parts(entry: &EntryExpr) -> usize {
    match entry {
        EntryExpr::StructField(field) => parts_of(&field.value),
        EntryExpr::MapEntry(entry) => parts_of(&entry.key) + parts_of(&entry.value),
    }
}

/// The plain path that a node is, `a.b["c"]`, and the id of its first name.
fn path(node: &IdedExpr) -> Option<(Vec<String>, u64)> {
    let mut path = Vec::new();
    let mut at = node;
    for _ in 0..DEPTH_MAX {
        at = match &at.expr {
            Expr::Ident(name) => {
                path.push(name.clone());
                path.reverse();
                return Some((path, at.id));
            }
            Expr::Select(select) => {
                path.push(select.field.clone());
                &select.operand
            }
            Expr::Call(call) if call.func_name == "_[_]" && call.target.is_none() => match &call.args[..] {
                [of, IdedExpr { expr: Expr::Literal(LiteralValue::String(key)), .. }] => {
                    path.push(key.inner().to_owned());
                    of
                }
                _ => return None,
            },
            Expr::Unspecified
            | Expr::Call(_)
            | Expr::Comprehension(_)
            | Expr::List(_)
            | Expr::Literal(_)
            | Expr::Map(_)
            | Expr::Struct(_) => return None,
        };
    }
    None
}

/// Whether an expression can be true or false. Only what is surely something else is not.
fn may_be_bool(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(literal) => matches!(literal, LiteralValue::Boolean(_)),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => false,
        Expr::Call(call) => match call.func_name.as_str() {
            "_+_" | "_-_" | "_*_" | "_/_" | "_%_" | "-_" => false,
            "size" | "int" | "uint" | "double" | "string" | "bytes" | "toJSON" | "format" | "join"
            | "hash" => false,
            "_?_:_" => call.args.iter().skip(1).all(|arg| may_be_bool(&arg.expr)),
            _ => true,
        },
        Expr::Comprehension(each) => !matches!(each.accu_init.expr, Expr::List(_)),
        Expr::Ident(_) | Expr::Select(_) => true,
    }
}
