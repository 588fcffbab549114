//! The store of finished bundles: a folder or a bucket, one object per run, written once.

use super::bucket::Bucket;
use super::{Error, archive};
use std::fs;
use std::io::Write as _;
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

    /// Keeps several bundles, as [`Shelf::put`] does. A folder makes all of them durable together.
    ///
    /// # Errors
    /// As there. Some may be kept then.
    pub fn put_all(&self, bundles: &[(RunId, Vec<u8>)]) -> Result<Vec<Kept>, Error> {
        if let Shelf::Folder { dir, .. } = self {
            let files: Vec<(String, &[u8])> =
                bundles.iter().map(|(run, bytes)| (name_of(*run), bytes.as_slice())).collect();
            let made = write_all(dir, &files)?;
            let kept = bundles.iter().zip(made).map(|((run, bytes), made)| self.kept(*run, bytes, made));
            return kept.collect();
        }
        bundles.iter().map(|(run, bytes)| self.put(*run, bytes)).collect()
    }

    /// Keeps the bundle of a run. It is there as a whole or not at all, and what is there already stays: that one is
    /// returned then.
    ///
    /// # Errors
    /// What the system or the service says, or something else is there under the name.
    pub fn put(&self, run: RunId, bytes: &[u8]) -> Result<Kept, Error> {
        let made = match self {
            Shelf::Folder { dir, .. } => {
                write_all(dir, &[(name_of(run), bytes)])?.first().copied().unwrap_or_default()
            }
            Shelf::Bucket(bucket) => bucket.put(&name_of(run), bytes)?,
        };
        self.kept(run, bytes, made)
    }

    /// What is on the shelf of a run after it was put there, or was there already.
    fn kept(&self, run: RunId, bytes: &[u8], made: bool) -> Result<Kept, Error> {
        let location = match self {
            Shelf::Folder { name, .. } => format!("{name}/{}", name_of(run)),
            Shelf::Bucket(bucket) => bucket.location(&name_of(run)),
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

/// Writes files that are not there yet, and says of each whether it did.
fn write_all(dir: &Path, files: &[(String, &[u8])]) -> Result<Vec<bool>, Error> {
    let write = || {
        fs::create_dir_all(dir)?;
        let mut unfinished = Vec::with_capacity(files.len());
        for (name, bytes) in files {
            let path = dir.join(name).with_extension("unfinished");
            let mut file = fs::File::create(&path)?;
            file.write_all(bytes)?;
            unfinished.push((path, file));
        }
        // The first one takes most of the others along.
        unfinished.iter().try_for_each(|(_, file)| file.sync_all())?;
        let mut made = Vec::with_capacity(files.len());
        for ((name, _), (unfinished, _)) in files.iter().zip(&unfinished) {
            // Unlike a new name by `rename`, a second name is refused where there is one.
            made.push(match fs::hard_link(unfinished, dir.join(name)) {
                Ok(()) => true,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
                Err(error) => return Err(error),
            });
            fs::remove_file(unfinished)?;
        }
        fs::File::open(dir)?.sync_all()?;
        Ok(made)
    };
    write().map_err(|error| unkept(dir, &error))
}
