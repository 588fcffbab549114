//! Runbooks, from YAML to the core's definition.
//!
//! ```text
//! bytes ─▶ tree with places ─▶ shapes checked ─▶ definition built ─▶ references checked ─▶ the core's own check
//! ```
//!
//! Each stage collects what is wrong, up to a bound; a stage begins only when the one before found nothing, so that
//! one mistake is not reported five times. Everything that is wrong points into the source.

mod build;
mod check;
pub mod cron;
pub mod expr;
mod file;
mod guards;
mod holds;
pub mod idle;
mod include;
mod modifiers;
pub mod pattern;
pub mod problem;
mod refs;
mod risks;
mod schema;
pub mod shape;
pub mod span;
mod steps;
pub mod tables;
mod text;
pub mod tools;
pub mod vars;
pub mod yaml;

pub use include::{Directory, Files, INCLUDES_MAX, TOTAL_LEN_MAX};
pub use problem::{Problem, Problems};
pub use schema::schema;
pub use tools::Described;
pub use vars::{admit_vars, check_vars, fit_vars, parse_vars};

use build::Builder;
use include::Loader;
use problem::{Notes, Source};
use std::path::{Path, PathBuf};
use tools::Tools;
use windlass_core::digest::Digest;
use windlass_core::runbook::Runbook;
use yaml::Node;

/// A runbook that was read and holds together.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The definition that runs are pinned to.
    pub runbook: Runbook,
    /// The hash of the file and its includes: of each its name, its length and its bytes, in order.
    pub hash: Digest,
    /// The text of the file itself.
    pub source: String,
    /// The included files and their texts, in the order in which they were met. Names are relative to the runbook's
    /// directory.
    pub files: Vec<(PathBuf, String)>,
}

/// Reads a runbook from a file.
///
/// # Errors
/// What is wrong with it.
pub fn load(path: &Path, described: &Described) -> Result<Loaded, Problems> {
    let name = path.display().to_string();
    let text = include::read(path).map_err(|problem| {
        Problems::one(vec![Source { name: name.clone(), text: String::new() }], problem)
    })?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parse(&name, &text, &Directory::new(directory), described)
}

/// Reads a runbook from a text. `name` is what the file is called in messages; includes come from `files`. Its steps may call
/// the tools of Windlass itself and these.
///
/// # Errors
/// What is wrong with it.
pub fn parse(name: &str, text: &str, files: &dyn Files, described: &Described) -> Result<Loaded, Problems> {
    let loader = Loader::read(name, text, files)?;
    described.with(|tools| checked(loader, tools))
}

fn checked(loader: Loader, tools: Tools<'_>) -> Result<Loaded, Problems> {
    let (sources, nodes) = (loader.sources, loader.nodes);
    let mut notes = Notes::default();
    check_shapes(&nodes, tools, &mut notes);
    if !notes.is_empty() {
        return Err(notes.into_problems(sources));
    }
    let mut builder = Builder::new(&sources, tools);
    let runbook = file::build(&nodes, &mut builder);
    let notes = builder.notes;
    if !notes.is_empty() {
        return Err(notes.into_problems(sources));
    }
    let hash = hash(&sources);
    let mut texts = sources.into_iter();
    let source = texts.next().map(|source| source.text).unwrap_or_default();
    let files = texts.map(|source| (PathBuf::from(source.name), source.text)).collect();
    Ok(Loaded { runbook, hash, source, files })
}

fn check_shapes(nodes: &[Node], tools: Tools<'_>, notes: &mut Notes) {
    for node in nodes {
        match node.value {
            yaml::Value::Null => {
                notes.add(Problem::at(node.at, "the file is empty").help("a runbook begins with `name:`"));
            }
            _ => shape::check(node, &shape::Shape::Table(&tables::FILE), "runbook", tools, notes),
        }
    }
}

/// The hash of all files. The runbook's own file name depends on where it lies and does not count; an include's name does, as it
/// says what is merged. Names and lengths are part of it, so that no text can pass for two files.
fn hash(sources: &[Source]) -> Digest {
    let mut bytes = Vec::new();
    for (n, source) in sources.iter().enumerate() {
        let name = if n == 0 { "" } else { source.name.as_str() };
        for part in [name.as_bytes(), source.text.as_bytes()] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
    }
    Digest::of(&[b"windlass runbook 1\n", &bytes])
}

#[cfg(test)]
mod tests;
