//! Files and includes: reading within bounds, never outside of the runbook's directory, each file once.

use super::problem::{Place, Problem, Problems, Source};
use super::yaml::{self, FILE_LEN_MAX, Node};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// The most files a runbook may include, those of its includes counted.
pub const INCLUDES_MAX: usize = 32;
/// The most bytes of a runbook and its includes together.
pub const TOTAL_LEN_MAX: usize = 1024 * 1024;

/// Where included files come from. Names are relative to the runbook's directory, with `/` and without `..`.
pub trait Files {
    /// The text of a file.
    ///
    /// # Errors
    /// Why there is none, as a problem without a place.
    fn text(&self, name: &Path) -> Result<String, Problem>;
}

/// No files: for texts that come over the network, where an include has nothing to refer to.
impl Files for () {
    fn text(&self, _: &Path) -> Result<String, Problem> {
        Err(Problem::whole("files cannot be included here").help("write everything into one file"))
    }
}

/// The files of a directory.
pub struct Directory(PathBuf);

impl Directory {
    /// The directory that names are relative to.
    #[must_use]
    pub fn new(path: &Path) -> Directory {
        Directory(path.to_owned())
    }
}

impl Files for Directory {
    fn text(&self, name: &Path) -> Result<String, Problem> {
        let path = self.0.join(name);
        // A link could lead out of the directory, so where the file really is counts.
        let real = |path: &Path| path.canonicalize().map_err(|error| unreadable(&error));
        if !real(&path)?.starts_with(real(&self.0)?) {
            return Err(Problem::whole("the file is outside of the runbook's directory")
                .help("includes stay in the directory of the runbook; copy the file there"));
        }
        read(&path)
    }
}

fn unreadable(error: &std::io::Error) -> Problem {
    let help = match error.kind() {
        std::io::ErrorKind::NotFound => "check the path",
        std::io::ErrorKind::PermissionDenied => "check the permissions",
        // tidy: the kinds of errors are open, and the message says which it is.
        _ => "check that it is a file that can be read",
    };
    Problem::whole(format!("the file cannot be read: {error}")).help(help)
}

/// Reads a file, never more of it than a runbook may have.
pub(super) fn read(path: &Path) -> Result<String, Problem> {
    let no_file = || Problem::whole("this is not a file").help("name a YAML file");
    // A pipe would be waited for when it is opened, so what it is comes first. What is opened is looked at again.
    if !std::fs::metadata(path).map_err(|error| unreadable(&error))?.is_file() {
        return Err(no_file());
    }
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    let metadata = file.metadata().map_err(|error| unreadable(&error))?;
    if !metadata.is_file() {
        return Err(no_file());
    }
    if metadata.len() > FILE_LEN_MAX as u64 {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    // A file that grows while it is read stays within the bound too.
    file.take(FILE_LEN_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    decode(bytes)
}

fn too_large(len: u64) -> Problem {
    let message = format!("the file has {len} bytes; a runbook may have {FILE_LEN_MAX}");
    Problem::whole(message).help("split it up with `include`, or move data out of it")
}

/// The text of bytes.
fn decode(bytes: Vec<u8>) -> Result<String, Problem> {
    if bytes.len() > FILE_LEN_MAX {
        return Err(too_large(bytes.len() as u64));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        Problem::whole(format!("the file is not UTF-8: byte {valid}, on line {line}, begins no character"))
            .help("save the file as UTF-8")
    })
}

/// The runbook and its includes, read and parsed.
pub(super) struct Loader {
    pub sources: Vec<Source>,
    pub nodes: Vec<Node>,
}

/// A file that is still to be read, and who includes it.
struct Wanted {
    name: PathBuf,
    at: Place,
}

impl Loader {
    pub(super) fn read(name: &str, text: &str, files: &dyn Files) -> Result<Loader, Problems> {
        let mut loader = Loader { sources: Vec::new(), nodes: Vec::new() };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.len() > FILE_LEN_MAX {
            let source = Source { name: name.to_owned(), text: String::new() };
            return Err(Problems::one(vec![source], too_large(text.len() as u64)));
        }
        // Depth first, so that files come in the order in which a reader meets them.
        let own = Path::new(name).file_name().map(PathBuf::from).unwrap_or_default();
        let mut seen: BTreeSet<PathBuf> = BTreeSet::from([own]);
        let mut wanted = loader.add(name, text.to_owned(), Path::new(""))?;
        wanted.reverse();
        while let Some(next) = wanted.pop() {
            let failed = |problem: Problem, loader: Loader| {
                Err(Problems::one(loader.sources, Problem { at: Some(next.at), ..problem }))
            };
            if !seen.insert(next.name.clone()) {
                let message = format!("`{}` is included already", next.name.display());
                return failed(
                    Problem::whole(message).help("each file is included once, and none includes itself"),
                    loader,
                );
            }
            if seen.len() > INCLUDES_MAX + 1 {
                return failed(Problem::whole(format!("a runbook may include {INCLUDES_MAX} files")), loader);
            }
            let text = match files.text(&next.name) {
                Ok(text) => text,
                Err(problem) => return failed(problem, loader),
            };
            let total: usize = loader.sources.iter().map(|source| source.text.len()).sum();
            if text.len() > FILE_LEN_MAX || total + text.len() > TOTAL_LEN_MAX {
                let message = format!(
                    "a runbook and its includes may have {TOTAL_LEN_MAX} bytes, each file {FILE_LEN_MAX}"
                );
                return failed(Problem::whole(message), loader);
            }
            let directory = next.name.parent().unwrap_or(Path::new("")).to_owned();
            let mut more = loader.add(&next.name.display().to_string(), text, &directory)?;
            more.reverse();
            wanted.extend(more);
        }
        Ok(loader)
    }

    /// Parses a file; gives what it includes.
    fn add(&mut self, name: &str, text: String, directory: &Path) -> Result<Vec<Wanted>, Problems> {
        // At most one more than the includes, so the number fits.
        let file = self.sources.len() as u16;
        let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
        let parsed = yaml::parse(file, &text);
        self.sources.push(Source { name: name.to_owned(), text });
        let fail = |loader: &Loader, problem| Problems::one(loader.sources.clone(), problem);
        let node = parsed.map_err(|problem| fail(self, problem))?;
        let mut wanted = Vec::new();
        for include in node.get("include").map(Node::items).unwrap_or_default() {
            // Anything else than text is refused when the shape is checked.
            let Some(text) = include.text() else { continue };
            match inside(directory, text) {
                Ok(name) => wanted.push(Wanted { name, at: include.at }),
                Err(message) => {
                    let problem = Problem::at(include.at, message)
                        .help("includes stay in the directory of the runbook: `include: [deploy.yaml]`");
                    return Err(fail(self, problem));
                }
            }
        }
        self.nodes.push(node);
        Ok(wanted)
    }
}

/// The name of an included file, relative to the runbook's directory.
fn inside(directory: &Path, text: &str) -> Result<PathBuf, String> {
    let mut name = directory.to_owned();
    if text.is_empty() || text.contains(['\0', '\\']) || text.len() > 512 {
        return Err("this is not the path of a file".to_owned());
    }
    if text.contains("://") {
        return Err("only local files can be included".to_owned());
    }
    for part in Path::new(text).components() {
        match part {
            Component::Normal(part) => name.push(part),
            Component::CurDir => {}
            Component::ParentDir => {
                return Err("an include cannot leave the runbook's directory by `..`".to_owned());
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err("an include cannot be an absolute path".to_owned());
            }
        }
    }
    Ok(name)
}
