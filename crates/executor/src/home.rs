//! The data directory: where everything lies, and that only its owner can look at it.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};
use windlass_core::id::{AttemptId, StepId};

/// The name of the data directory of a project.
pub const NAME: &str = ".windlass";

/// The name of the socket in it.
pub const SOCKET: &str = "windlass.sock";
/// Files in it that let somebody in, or say who may.
const PRIVATE: [&str; 6] =
    ["credential.json", "attempt.key", SOCKET, "keeper.lock", "keeper.log", "secrets.json"];
/// The most bytes of an address that every system takes.
const ADDRESS_LEN_MAX: usize = 100;

/// The address of a socket, good for as long as this lives.
struct Address {
    path: PathBuf,
    _dir: Option<fs::File>,
}

/// A data directory.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// The directory that is meant where nobody names one: the nearest above this one that is there, or one here.
    ///
    /// Others may have put one above. So nothing is looked for above a directory that is somebody else's, that is
    /// sticky because everybody may write there, or that another file system is mounted at.
    ///
    /// # Errors
    /// The current directory is not there, or the one that was found belongs to another user.
    pub fn nearest() -> io::Result<PathBuf> {
        let here = std::env::current_dir()?;
        let mut at = here.as_path();
        loop {
            let found = at.join(NAME);
            if found.is_dir() {
                check_owner(&found)?;
                return Ok(found);
            }
            match at.parent() {
                Some(above) if may_look(&fs::metadata(at)?, &fs::metadata(above)?) => at = above,
                Some(_) | None => return Ok(here.join(NAME)),
            }
        }
    }

    /// Makes sure that the directory is there and that nobody else can look into it.
    ///
    /// # Errors
    /// It cannot be made, or belongs to somebody else.
    pub fn make(root: &Path) -> io::Result<Home> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        let root = root.canonicalize()?;
        check_owner(&root)?;
        if fs::metadata(&root)?.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(&root, fs::Permissions::from_mode(0o700))?;
        }
        let home = Home { root };
        fs::create_dir_all(home.outputs())?;
        fs::create_dir_all(home.scratch())?;
        // The whole directory is private to this machine.
        let ignore = home.root.join(".gitignore");
        if !ignore.exists() {
            fs::write(ignore, "*\n")?;
        }
        Ok(home)
    }

    /// Makes the directory, what in it lets somebody in, and files elsewhere that do, the owner's alone again, and says what
    /// was not.
    pub fn mend(&self, elsewhere: &[PathBuf], say: &mut dyn FnMut(String)) {
        mend_one(&self.root, 0o700, say);
        for name in PRIVATE {
            mend_one(&self.root.join(name), 0o600, say);
        }
        mend_one(&self.keys(), 0o700, say);
        elsewhere.iter().for_each(|path| mend_one(path, 0o600, say));
    }

    /// The directory whose socket this is.
    #[must_use]
    pub fn of_socket(path: &Path) -> Option<Home> {
        let root = path.parent().filter(|_| path.file_name().is_some_and(|name| name == SOCKET))?;
        Some(Home { root: root.to_path_buf() })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The socket at which whoever holds the directory serves the API.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.root.join(SOCKET)
    }

    /// Connects to whoever holds the directory.
    ///
    /// # Errors
    /// Nobody does, or does not answer.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        let address = self.address()?;
        UnixStream::connect(&address.path).await
    }

    /// Makes the socket. One that a dead process left behind is replaced: whoever holds the directory is the only one who
    /// may.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn bind(&self) -> io::Result<UnixListener> {
        match fs::remove_file(self.socket()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        // The directory is the owner's alone, so nobody can come in between these two.
        let address = self.address()?;
        let listener = UnixListener::bind(&address.path)?;
        fs::set_permissions(self.socket(), fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// The socket's address. An address has few bytes, and a project may lie deep: then it is named by way of the opened
    /// directory.
    fn address(&self) -> io::Result<Address> {
        let path = self.socket();
        if path.as_os_str().len() <= ADDRESS_LEN_MAX {
            return Ok(Address { path, _dir: None });
        }
        let dir = fs::File::open(&self.root)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(SOCKET);
        Ok(Address { path, _dir: Some(dir) })
    }

    /// Where the keys are that the log is sealed with.
    #[must_use]
    pub fn keys(&self) -> PathBuf {
        self.root.join("keys")
    }

    /// Where it is noted up to which record bundles were made.
    #[must_use]
    pub fn evidence_through(&self) -> PathBuf {
        self.root().join("evidence.through")
    }

    /// Where bundles are kept where no other place is named.
    #[must_use]
    pub fn evidence(&self) -> PathBuf {
        self.root.join("evidence")
    }

    /// Where steps' output is kept.
    #[must_use]
    pub fn outputs(&self) -> PathBuf {
        self.root.join("output")
    }

    /// Where files of attempts under way are.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.root.join("scratch")
    }

    /// The output of one attempt.
    #[must_use]
    pub fn output_of(&self, of: &AttemptId) -> PathBuf {
        self.outputs().join(of.run.to_string()).join(format!("{}.{}.log", file_name(&of.step), of.epoch))
    }

    /// The file that `$WL_OUTPUT` names for one attempt.
    #[must_use]
    pub fn typed_of(&self, of: &AttemptId) -> PathBuf {
        self.scratch().join(format!("{}.{}.{}.out", of.run, file_name(&of.step), of.epoch))
    }
}

/// Refuses a data directory of another user, root's included: whoever owns it decides what runs in it, and as whom.
///
/// # Errors
/// It is another user's, or not there.
pub fn check_owner(root: &Path) -> io::Result<()> {
    let (owner, own) = (fs::metadata(root)?.uid(), rustix::process::geteuid().as_raw());
    if owner == own {
        return Ok(());
    }
    let text = format!(
        "{} belongs to another user (uid {owner}, this process has uid {own}), who could have put into it what would run \
         here: run windlass as that user, or name a directory of your own with --data",
        root.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Makes a file or folder the owner's alone again.
fn mend_one(path: &Path, wanted: u32, say: &mut dyn FnMut(String)) {
    // What is not there cannot be opened by anybody, and what a link leads to is not ours.
    let Ok(about) = fs::symlink_metadata(path) else { return };
    if about.is_symlink() {
        return;
    }
    let (mode, own) = (about.mode() & 0o7777, rustix::process::geteuid().as_raw());
    // A file that even its owner only reads is as it should be.
    let least = if about.is_dir() { wanted } else { 0o400 };
    let is_private = mode & !wanted == 0 && mode & least == least;
    if is_private && about.uid() == own {
        return;
    }
    let mut mended = Ok(());
    if about.uid() != own {
        mended = std::os::unix::fs::lchown(path, Some(own), None);
    }
    if !is_private {
        mended = mended.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(wanted)));
    }
    let was = format!("{} had the mode {mode:04o} and the owner {}", path.display(), about.uid());
    match mended {
        Ok(()) => say(format!(
            "{was}, which others on this machine could have used; it is its owner's alone again. Somebody changed it, \
             a step perhaps"
        )),
        Err(error) => say(format!("{was}, and that cannot be changed: {error}")),
    }
}

/// Whether a data directory is looked for above a directory, too.
fn may_look(dir: &fs::Metadata, above: &fs::Metadata) -> bool {
    const STICKY: u32 = 0o1000;
    let own = rustix::process::geteuid().as_raw();
    dir.uid() == own && above.uid() == own && above.mode() & STICKY == 0 && dir.dev() == above.dev()
}

/// The name of this machine.
#[must_use]
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// A step's name as a file name: what is not plain is spelled in hexadecimal, and a long name ends in its hash.
pub fn file_name(step: &StepId) -> String {
    const MAX: usize = 120;
    let mut name = String::new();
    for byte in step.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02x}"));
        }
    }
    if name.len() > MAX {
        let hash = windlass_core::digest::Digest::of(&[step.as_str().as_bytes()]).to_string();
        name.truncate(MAX - 17);
        name.push('~');
        name.push_str(&hash[..16]);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_looked_for_above_a_mount_point_or_in_a_sticky_directory() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let meta = |path: &Path| fs::metadata(path).unwrap();
        assert!(may_look(&meta(&inner), &meta(dir.path())));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(!may_look(&meta(&inner), &meta(dir.path())));
        // Something else is mounted at /proc, on every machine.
        assert!(!may_look(&meta(Path::new("/proc")), &meta(Path::new("/"))));
    }
}
