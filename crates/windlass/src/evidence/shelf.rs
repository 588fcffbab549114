//! Where bundles of runs are kept once the runs have ended: a folder, one file a run.

use super::Error;
use std::fs;
use std::path::{Path, PathBuf};
use windlass_core::id::RunId;

/// A folder of bundles.
#[derive(Clone, Debug)]
pub struct Shelf {
    dir: PathBuf,
}

impl Shelf {
    /// The bundles in a folder, which is made when the first comes.
    #[must_use]
    pub fn new(dir: &Path) -> Shelf {
        Shelf { dir: dir.to_path_buf() }
    }

    fn path(&self, run: RunId) -> PathBuf {
        self.dir.join(format!("{run}.evidence.tar"))
    }

    /// Whether the bundle of a run is there.
    #[must_use]
    pub fn has(&self, run: RunId) -> bool {
        self.path(run).exists()
    }

    /// Keeps the bundle of a run, and says where. It is there as a whole or not at all.
    ///
    /// # Errors
    /// What the system says.
    pub fn put(&self, run: RunId, bytes: &[u8]) -> Result<String, Error> {
        let path = self.path(run);
        let write = || {
            fs::create_dir_all(&self.dir)?;
            let unfinished = path.with_extension("unfinished");
            fs::write(&unfinished, bytes)?;
            fs::File::open(&unfinished)?.sync_all()?;
            fs::rename(&unfinished, &path)?;
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error| Error::Shelf { path: path.display().to_string(), why: error.to_string() })?;
        Ok(format!("evidence/{run}.evidence.tar"))
    }
}
