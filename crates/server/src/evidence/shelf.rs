//! Where bundles of runs are kept once the runs have ended: a folder or a bucket, one object a run, written once.

use super::bucket::Bucket;
use super::{Error, archive};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use windlass_core::digest::Digest;
use windlass_core::id::RunId;

/// How the name of a bucket begins.
const S3: &str = "s3://";

/// A place for bundles.
#[derive(Clone, Debug)]
pub enum Shelf {
    /// On disk.
    Folder {
        /// Where.
        dir: PathBuf,
        /// What the place is called in records.
        name: String,
    },
    /// In a bucket of a service that speaks S3.
    Bucket(Arc<Bucket>),
}

/// A bundle that is on the shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where.
    pub location: String,
    /// What it hashes to.
    pub sha256: Digest,
    /// How long it is.
    pub bytes: u64,
}

fn name_of(run: RunId) -> String {
    format!("{run}.evidence.tar")
}

impl Shelf {
    /// The bundles in a folder, which is made when the first comes.
    #[must_use]
    pub fn folder(dir: &Path) -> Shelf {
        Shelf::Folder { dir: dir.to_path_buf(), name: "evidence".to_owned() }
    }

    /// The shelf that is named, a folder or `s3://bucket/prefix`; the folder in the data directory where none is.
    ///
    /// # Errors
    /// The name is neither, or the environment says too little of the service.
    pub fn find(named: Option<&str>, default: &Path) -> Result<Shelf, Error> {
        let Some(named) = named else { return Ok(Shelf::folder(default)) };
        if let Some(bucket) = named.strip_prefix(S3) {
            return Ok(Shelf::Bucket(Arc::new(Bucket::open(bucket)?)));
        }
        if named.contains("://") {
            let why = "name a folder, or a bucket as `s3://bucket/prefix`".to_owned();
            return Err(Error::Shelf { path: named.to_owned(), why });
        }
        Ok(Shelf::Folder { dir: PathBuf::from(named), name: named.trim_end_matches('/').to_owned() })
    }

    /// Whether the bundle of a run is there.
    ///
    /// # Errors
    /// The service does not say.
    pub fn has(&self, run: RunId) -> Result<bool, Error> {
        match self {
            Shelf::Folder { dir, .. } => Ok(dir.join(name_of(run)).exists()),
            Shelf::Bucket(bucket) => bucket.has(&name_of(run)),
        }
    }

    /// The bundle of a run, where it is there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn get(&self, run: RunId) -> Result<Option<Vec<u8>>, Error> {
        match self {
            Shelf::Folder { dir, .. } => read(&dir.join(name_of(run))),
            Shelf::Bucket(bucket) => bucket.get(&name_of(run)),
        }
    }

    /// Keeps the bundle of a run. It is there as a whole or not at all, and what is there already stays: that one is
    /// returned then.
    ///
    /// # Errors
    /// What the system or the service says, or something else is there under the name.
    pub fn put(&self, run: RunId, bytes: &[u8]) -> Result<Kept, Error> {
        let (made, location) = match self {
            Shelf::Folder { dir, name } => {
                (write(dir, &name_of(run), bytes)?, format!("{name}/{}", name_of(run)))
            }
            Shelf::Bucket(bucket) => (bucket.put(&name_of(run), bytes)?, bucket.location(&name_of(run))),
        };
        if made {
            return Ok(Kept { location, sha256: Digest::of(&[bytes]), bytes: bytes.len() as u64 });
        }
        // An answer was lost, or two processes made it: what is there counts, if it is this run's at all.
        let there = self.get(run)?.unwrap_or_default();
        match archive::read(&there) {
            Ok(bundle) if bundle.manifest.run == Some(run) => {
                Ok(Kept { location, sha256: Digest::of(&[&there]), bytes: there.len() as u64 })
            }
            Ok(_) | Err(_) => Err(Error::Shelf {
                path: location,
                why: "something else is there under its name; move that away".to_owned(),
            }),
        }
    }

    /// Takes the bundle of a run away, where it is there, and says whether it was.
    ///
    /// # Errors
    /// What the system or the service says.
    pub fn remove(&self, run: RunId) -> Result<bool, Error> {
        match self {
            Shelf::Folder { dir, .. } => {
                let path = dir.join(name_of(run));
                match fs::remove_file(&path) {
                    Ok(()) => {
                        let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
                        synced.map_err(|error| unkept(&path, &error)).map(|()| true)
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
                    Err(error) => Err(unkept(&path, &error)),
                }
            }
            Shelf::Bucket(bucket) => bucket.remove(&name_of(run)),
        }
    }
}

fn unkept(path: &Path, error: &std::io::Error) -> Error {
    Error::Shelf { path: path.display().to_string(), why: error.to_string() }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unkept(path, &error)),
    }
}

/// Writes a file that is not there yet, and says whether it did.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<bool, Error> {
    let path = dir.join(name);
    let write = || {
        fs::create_dir_all(dir)?;
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, bytes)?;
        fs::File::open(&unfinished)?.sync_all()?;
        // Unlike a new name by `rename`, a second name is refused where there is one.
        let made = match fs::hard_link(&unfinished, &path) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        fs::remove_file(&unfinished)?;
        fs::File::open(dir)?.sync_all()?;
        Ok(made)
    };
    write().map_err(|error| unkept(&path, &error))
}
