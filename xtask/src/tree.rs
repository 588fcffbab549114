//! The files of the source tree, without what is built or hidden.

use std::io;
use std::path::{Path, PathBuf};

/// A text file of the tree.
pub(crate) struct File {
    /// Its path from the root, with `/` between the parts.
    pub(crate) path: String,
    /// Its content.
    pub(crate) text: String,
}

/// The root of the tree: the folder above this package.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// All Rust files and documents, sorted by path.
pub(crate) fn files(root: &Path) -> io::Result<Vec<File>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(entry.path());
                }
            } else if name.ends_with(".rs") || name.ends_with(".md") {
                found.push(read(root, &entry.path())?);
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn read(root: &Path, path: &Path) -> io::Result<File> {
    let parts: Vec<_> = path.strip_prefix(root).unwrap_or(path).iter().map(|p| p.to_string_lossy()).collect();
    let text = std::fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(File { path: parts.join("/"), text })
}
