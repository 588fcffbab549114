//! Described tools: executables that speak JSON on stdio, each told of by a file in the folder of tools.
//!
//! ```yaml
//! name: pager.page
//! command: ./page
//! writes: true
//! semantics: reconcile
//! risk: medium
//! target: [service]
//! fields:
//!   service: { type: string, required: true }
//!   token: { type: string, secret: true }
//! reverse: pager.resolve
//! ```
//!
//! The command gets one JSON object on its standard input and ends with one on its last line; see `stdio`.

use super::settings::Settings;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use windlass_core::policy::Risk;
use windlass_core::receipt::Semantics;
use windlass_core::runbook::ValueType;
use windlass_runbook::Described as Signatures;
use windlass_runbook::tools::{self, Signature};

/// The most files in the folder, and the most bytes of one.
const FILES_MAX: usize = 256;
const FILE_LEN_MAX: u64 = 64 << 10;
/// The most fields of a tool.
const FIELDS_MAX: usize = 64;
/// Names that are taken: the first part of tools that windlass itself has.
const TAKEN: &[&str] =
    &["http", "slack", "github", "servicenow", "git", "model", "transform", "emit", "shell", "agent", "wait"];

/// Why described tools cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the tool in {file}: {what}")]
pub struct Error {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
}

/// A tool, as its file tells of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    command: String,
    #[serde(default = "yes")]
    writes: bool,
    #[serde(default)]
    semantics: Option<String>,
    #[serde(default)]
    risk: Option<String>,
    #[serde(default)]
    target: Vec<String>,
    #[serde(default)]
    timeout: Option<String>,
    #[serde(default)]
    fields: BTreeMap<String, Field>,
    #[serde(default)]
    reverse: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    required: bool,
    #[serde(default)]
    secret: bool,
    #[serde(default)]
    about: Option<String>,
}

/// A described tool, as it is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// The command.
    pub command: String,
    /// Where it runs: the folder of its file.
    pub dir: PathBuf,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// The tool that takes its effect back.
    pub reverse: Option<String>,
    /// The types of its fields.
    pub types: BTreeMap<String, ValueType>,
}

impl Described {
    /// The first field that is not of its type.
    #[must_use]
    pub fn misfit(&self, fields: &serde_json::Map<String, serde_json::Value>) -> Option<&str> {
        let wrong =
            |(name, kind): &(&String, &ValueType)| fields.get(*name).is_some_and(|value| !kind.fits(value));
        self.types.iter().find(wrong).map(|(name, _)| name.as_str())
    }
}

/// The tools that a folder describes: what runbooks are read with, and the commands behind it.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    signatures: Arc<Signatures>,
    commands: Arc<BTreeMap<String, Described>>,
}

impl Registry {
    /// Reads the folder that the settings name.
    ///
    /// # Errors
    /// A file that does not hold together.
    pub fn read(settings: &Settings) -> Result<Registry, Error> {
        let Some(folder) = &settings.folder else { return Ok(Registry::default()) };
        let failed =
            |what: std::io::Error| Error { file: folder.display().to_string(), what: what.to_string() };
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
                files.push(path);
            }
        }
        files.sort();
        if files.len() > FILES_MAX {
            let what = format!("there are {} files, and {FILES_MAX} may be", files.len());
            return Err(Error { file: folder.display().to_string(), what });
        }
        let (mut signatures, mut commands) = (Vec::new(), BTreeMap::new());
        for path in files {
            let (described, signature) =
                read(&path).map_err(|what| Error { file: path.display().to_string(), what })?;
            // The first file that describes a tool counts.
            commands.entry(described.name.clone()).or_insert(described);
            signatures.push(signature);
        }
        Ok(Registry { signatures: Arc::new(Signatures::new(signatures)), commands: Arc::new(commands) })
    }

    /// The tools as runbooks see them.
    #[must_use]
    pub fn signatures(&self) -> &Signatures {
        &self.signatures
    }

    /// The described tool of a name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Described> {
        self.commands.get(name)
    }
}

fn read(path: &Path) -> Result<(Described, Signature), String> {
    let about = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if about.len() > FILE_LEN_MAX {
        return Err(format!("it has more than {FILE_LEN_MAX} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let file: File = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
    check(&file)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = dir.canonicalize().map_err(|error| error.to_string())?;
    let timeout = match file.timeout.as_deref().map(windlass_runbook::span::parse) {
        None => None,
        Some(Ok(span)) => Some(Duration::from_millis(span.0)),
        Some(Err(_)) => return Err("`timeout` is not a duration such as 30s".to_owned()),
    };
    let mut types = BTreeMap::new();
    for (name, field) in &file.fields {
        let word = field.kind.as_deref().unwrap_or("any");
        let kind =
            ValueType::parse(word).ok_or_else(|| format!("`{word}`, the type of `{name}`, is none"))?;
        types.insert(name.clone(), kind);
    }
    let described = Described {
        name: file.name.clone(),
        command: file.command.clone(),
        dir,
        timeout,
        reverse: file.reverse.clone(),
        types,
    };
    Ok((described, signature(file)?))
}

fn check(file: &File) -> Result<(), String> {
    let word = |text: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        text.len() <= 64
            && text.bytes().all(plain)
            && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())
    };
    match file.name.split_once('.') {
        Some((first, second)) if word(first) && word(second) && !TAKEN.contains(&first) => {}
        Some((first, _)) if TAKEN.contains(&first) => {
            return Err(format!("names that begin with `{first}.` are those of windlass itself"));
        }
        Some(_) | None => return Err(format!("`{}` is not a name such as `pager.page`", file.name)),
    }
    if file.command.trim().is_empty() || file.command.contains('\0') {
        return Err("`command` is missing".to_owned());
    }
    if file.fields.len() > FIELDS_MAX {
        return Err(format!("it has more than {FIELDS_MAX} fields"));
    }
    if let Some(name) = file.fields.keys().find(|name| !word(name)) {
        return Err(format!("`{name}` is not the name of a field: use small letters, digits and `_`"));
    }
    if let Some(field) = file.target.iter().find(|field| !file.fields.contains_key(*field)) {
        return Err(format!("the target names `{field}`, which is not a field"));
    }
    if file.semantics.is_some() && !file.writes {
        return Err("`semantics` is for a tool that writes".to_owned());
    }
    Ok(())
}

/// The tool as runbooks see it.
fn signature(file: File) -> Result<Signature, String> {
    let semantics = match file.semantics.as_deref() {
        None => None,
        Some(word) => Some(Semantics::parse(word).ok_or_else(|| format!("`{word}` is no semantics"))?),
    };
    let risk = match file.risk.as_deref() {
        None => Risk::Medium,
        Some(word) => Risk::parse(word).ok_or_else(|| format!("`{word}` is not a risk"))?,
    };
    let field = |(name, about): (String, Field)| tools::Field {
        name,
        about: about.about.unwrap_or_else(|| "a field of the tool".to_owned()),
        text: about.kind.as_deref() == Some("string"),
        required: about.required,
        secret: about.secret,
    };
    let fields = file.fields.into_iter().map(field).collect();
    Ok(Signature { name: file.name, writes: file.writes, semantics, risk, target: file.target, fields })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_file_becomes_a_tool_that_runbooks_can_call() {
        let dir = tempfile::tempdir().unwrap();
        let text = "name: pager_test.page\ncommand: ./page\nsemantics: reconcile\nrisk: high\ntarget: [service]\nfields:\n  service: { type: string, required: true }\n  token: { type: string, secret: true }\n  n: { type: integer }\nreverse: pager_test.resolve\n";
        write(dir.path(), "page.yaml", text);
        let settings = Settings { folder: Some(dir.path().to_path_buf()), ..Settings::default() };
        let registry = Registry::read(&settings).unwrap();
        let described = registry.find("pager_test.page").unwrap();
        assert_eq!(described.reverse.as_deref(), Some("pager_test.resolve"));
        assert_eq!(described.misfit(serde_json::json!({ "n": "1" }).as_object().unwrap()), Some("n"));
        let book = "name: t\npipelines:\n  p:\n    steps:\n      - pager_test.page: { service: db, token: '${{ secrets.T }}' }\n";
        let parse = |book: &str, known: &Registry| {
            let files = windlass_runbook::Directory::new(dir.path());
            windlass_runbook::parse("t", book, &files, known.signatures())
        };
        let loaded = parse(book, &registry).unwrap();
        let step = &loaded.runbook.pipelines.values().next().unwrap().nodes[0];
        assert_eq!(step.effect, Some(Semantics::Reconcile));
        let wrong = book.replace("service: db, ", "");
        assert!(parse(&wrong, &registry).is_err());
        assert!(parse(book, &Registry::default()).is_err(), "it is known to those who were given it");
    }

    #[test]
    fn a_file_that_does_not_hold_together_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            "name: github.x\ncommand: x\n",
            "name: plain\ncommand: x\n",
            "name: A.b\ncommand: x\n",
            "name: a.b\ncommand: ''\n",
            "name: a.b\ncommand: x\ntarget: [y]\n",
            "name: a.b\ncommand: x\nsemantics: maybe\n",
            "name: a.b\ncommand: x\nwrites: false\nsemantics: idempotent\n",
            "name: a.b\ncommand: x\nrisk: none\n",
            "name: a.b\ncommand: x\nfields: { x: { type: thing } }\n",
            "name: a.b\ncommand: x\nunknown: 1\n",
            "name: a.b\ncommand: x\ntimeout: 5\n",
        ] {
            let path = write(dir.path(), "x.yaml", text);
            assert!(read(&path).is_err(), "{text}");
        }
    }
}
