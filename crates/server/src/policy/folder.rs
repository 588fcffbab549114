//! A policy folder: which files are read, within which bounds, and the hash that is their version.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use windlass_core::digest::Digest;
use windlass_runbook::problem::{Problem, Problems, Source};

/// How the names of policy files end.
const ENDING: &str = ".cedar";
/// The most files in a folder.
pub const FILES_MAX: usize = 256;
/// The most bytes of one file, and of all together.
pub const FILE_LEN_MAX: u64 = 256 * 1024;
/// The most bytes of all files together.
pub const TOTAL_LEN_MAX: usize = 384 * 1024;
/// The most entries that are looked at in a folder.
const ENTRIES_MAX: usize = 10_000;

/// Whether a folder is one of policies: a file of ours is in it. A folder that is named is one in any case.
#[must_use]
pub fn is_policy_folder(dir: &Path) -> bool {
    dir.join(super::schema::FILE).is_file()
        || fs::read_dir(dir)
            .is_ok_and(|entries| entries.take(ENTRIES_MAX).flatten().any(|entry| is_policy(&entry.path())))
}

fn is_policy(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(ENDING))
}

/// Reads the policy files of a folder, in the order of their names.
///
/// # Errors
/// The folder or a file cannot be read, or is out of its bounds.
pub fn read(dir: &Path) -> Result<Vec<Source>, Problems> {
    let refuse = |message: String, help: &str| {
        let source = Source { name: dir.display().to_string(), text: String::new() };
        Problems::one(vec![source], Problem::whole(message).help(help))
    };
    let paths = list(dir).map_err(|message| refuse(message, "name a folder with `*.cedar` files"))?;
    if paths.is_empty() {
        let help =
            "put policies into files whose names end in `.cedar`; `windlass init` makes one to start from";
        return Err(refuse("the policy folder has no policies".to_owned(), help));
    }
    let mut sources = Vec::new();
    let mut total = 0;
    for path in paths {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let text = read_file(&path).map_err(|message| {
            refuse(format!("`{name}` cannot be used: {message}"), "split it, or mend it")
        })?;
        total += text.len();
        if total > TOTAL_LEN_MAX {
            return Err(refuse(
                format!("the policy files have more than {TOTAL_LEN_MAX} bytes"),
                "use fewer rules",
            ));
        }
        sources.push(Source { name, text });
    }
    Ok(sources)
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("the policy folder cannot be read: {error}"))?;
    let mut paths = Vec::new();
    for (at, entry) in entries.enumerate() {
        if at >= ENTRIES_MAX {
            return Err(format!("the policy folder has more than {ENTRIES_MAX} entries"));
        }
        let path = entry.map_err(|error| format!("the policy folder cannot be read: {error}"))?.path();
        // A name that begins with a dot is an editor's, and not meant yet.
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().first() == Some(&b'.'));
        if !hidden && is_policy(&path) {
            paths.push(path);
        }
    }
    if paths.len() > FILES_MAX {
        return Err(format!("the policy folder has more than {FILES_MAX} policy files"));
    }
    paths.sort();
    Ok(paths)
}

fn read_file(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().map_err(|error| error.to_string())?.is_file() {
        return Err("it is not a file".to_owned());
    }
    let mut text = String::new();
    file.take(FILE_LEN_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(format!("it has more than {FILE_LEN_MAX} bytes"));
    }
    Ok(text)
}

/// The hash over names and bytes, and over the schema that they are read with.
#[must_use]
pub fn version(sources: &[Source], schema: &str) -> Digest {
    let mut bytes = b"windlass policy v1\n".to_vec();
    let mut add = |part: &str| {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    };
    add(schema);
    for source in sources {
        add(&source.name);
        add(&source.text);
    }
    Digest::of(&[&bytes])
}

/// Names of a folder's files, with what the system says of each.
pub type Stamp = Vec<(PathBuf, Option<Seen>)>;

/// What the system says of a file. Its size and the time of its content can be set to what they were; which file it is, and
/// when it was changed in any way, cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    file: (u64, u64),
}

/// What tells cheaply that nothing was touched. Another look is taken where it differs.
#[must_use]
pub fn stamp(dir: &Path) -> Stamp {
    let of = |path: PathBuf| {
        let seen = fs::metadata(&path).ok().map(|found| Seen {
            len: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
            file: (found.dev(), found.ino()),
        });
        (path, seen)
    };
    list(dir).map_or_else(|_| Vec::new(), |paths| paths.into_iter().map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: &str) -> Source {
        Source { name: name.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn the_version_is_of_names_and_bytes_and_where_they_end() {
        let of = |list: &[(&str, &str)]| {
            version(&list.iter().map(|(name, text)| source(name, text)).collect::<Vec<_>>(), "s")
        };
        assert_eq!(of(&[("a", "b")]), of(&[("a", "b")]));
        for other in [vec![("ab", "")], vec![("a", "b"), ("", "")], vec![("a", "c")], vec![("b", "b")]] {
            assert_ne!(of(&[("a", "b")]), of(&other), "{other:?}");
        }
        assert_ne!(version(&[], "s"), version(&[], "t"));
    }

    #[test]
    fn a_file_in_the_place_of_another_is_noticed_though_size_and_time_are_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (path, beside) = (dir.path().join("a.cedar"), dir.path().join("b"));
        fs::write(&path, "permit").unwrap();
        let before = stamp(dir.path());
        assert_eq!(before, stamp(dir.path()));
        let at = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&beside, "forbid").unwrap();
        fs::File::options().write(true).open(&beside).unwrap().set_modified(at).unwrap();
        fs::rename(&beside, &path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), at);
        assert_ne!(before, stamp(dir.path()));
    }

    #[test]
    fn a_folder_that_cannot_be_used_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let said = |dir: &Path| read(dir).unwrap_err().to_string();
        assert!(said(&dir.path().join("absent")).contains("cannot be read"));
        assert!(said(dir.path()).contains("has no policies"));
        fs::write(dir.path().join("README.md"), "text").unwrap();
        fs::write(dir.path().join(".hidden.cedar"), "permit(principal, action, resource);").unwrap();
        assert!(said(dir.path()).contains("has no policies"));
        fs::write(dir.path().join("bad.cedar"), [0xff, 0xfe]).unwrap();
        assert!(said(dir.path()).contains("bad.cedar"));
        fs::write(dir.path().join("bad.cedar"), vec![b' '; FILE_LEN_MAX as usize + 1]).unwrap();
        assert!(said(dir.path()).contains("more than"));
        fs::remove_file(dir.path().join("bad.cedar")).unwrap();
        fs::create_dir(dir.path().join("folder.cedar")).unwrap();
        assert!(said(dir.path()).contains("not a file"));
    }

    #[test]
    fn there_are_bounds_on_files_and_bytes() {
        let dir = tempfile::tempdir().unwrap();
        for at in 0..5 {
            fs::write(dir.path().join(format!("{at}.cedar")), vec![b' '; FILE_LEN_MAX as usize]).unwrap();
        }
        assert!(read(dir.path()).unwrap_err().to_string().contains("more than 393216 bytes"));
        let dir = tempfile::tempdir().unwrap();
        for at in 0..=FILES_MAX {
            fs::write(dir.path().join(format!("{at}.cedar")), "").unwrap();
        }
        assert!(read(dir.path()).unwrap_err().to_string().contains("more than 256 policy files"));
    }
}
