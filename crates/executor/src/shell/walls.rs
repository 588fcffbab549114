//! Walls: what a step's processes can reach of the machine, beside what their user may.
//!
//! | wall | the command runs as | it reaches |
//! |---|---|---|
//! | none | the server's user | what that user may |
//! | user | another user, without groups | what that user may |
//! | sandbox | the server's user, under Landlock | reads the system, writes its directory and a scratch folder of its own |
//!
//! Landlock has no way to take something out of a folder that it gives. So what is closed (the data directory, keys, the
//! configuration, policies) must not lie in a folder that the sandbox gives for writing, and folders for reading are given
//! entry by entry where something closed lies in them. Landlock holds for root too, and neither a program with a
//! set-user-id bit nor a signal gets out of it; sockets with a name it does not know, so the server looks who connects.

use super::spec::StartError;
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// What of Landlock is needed: rules for files, and no signals to processes outside.
const FILES: ABI = ABI::V5;
const SCOPES: ABI = ABI::V6;

/// What programs need to run. What is not there is not given.
const SYSTEM: [&str; 13] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
];

/// What the system starts by itself is read from there, and by everybody.
const STARTED_FROM: [&str; 22] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/lib",
    "/etc",
    "/boot",
    "/dev",
    "/proc",
    "/sys",
    "/run",
    "/var/spool",
];

/// Devices that give nothing away.
const DEVICES: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// What root keeps in the sandbox: to use its own files as it likes. It cannot become another user, trace, mount or load.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// What stands between a step and the rest of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wall {
    /// Nothing but what holds for every step.
    #[default]
    None,
    /// It runs as another user.
    User(User),
    /// It runs in the sandbox.
    Sandbox(Sandbox),
    /// No step may run, and this is why.
    Refused(String),
}

/// Another user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
    /// Its home directory.
    pub home: PathBuf,
    /// Where its attempts have their files: a folder that it can reach.
    pub scratch: PathBuf,
}

/// What the sandbox gives beside the system, the working directory and scratch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// To read and to execute.
    pub read: Vec<PathBuf>,
    /// To write, too.
    pub write: Vec<PathBuf>,
    /// Never.
    pub closed: Vec<PathBuf>,
    /// The home directory of the server's user. It is no working directory, and neither is what is hidden in it: what is
    /// there is started outside of the sandbox, and says who may log in.
    pub home: Option<PathBuf>,
}

/// Whether this machine has the sandbox.
#[must_use]
pub fn has_sandbox() -> bool {
    ruleset().is_ok()
}

/// Whether a directory belongs to the system, or has something of it: every step reads it, or programs start from it.
#[must_use]
pub fn is_of_the_system(dir: &Path) -> bool {
    let places = SYSTEM.iter().chain(&STARTED_FROM).map(Path::new);
    places.into_iter().any(|place| place.starts_with(dir) || dir.starts_with(place))
}

fn ruleset() -> Result<landlock::RulesetCreated, landlock::RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(FILES))?
        .scope(Scope::from_all(SCOPES))?
        .create()
}

impl User {
    /// A user of this machine by name or number, for a data directory.
    ///
    /// # Errors
    /// There is no such user, it is root or this process's own, this process may not run as others, or the folder for its
    /// files cannot be made.
    pub fn find(wanted: &str, data_dir: &Path) -> io::Result<User> {
        let refuse = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let users = fs::read_to_string("/etc/passwd")?;
        let found = users.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
            if name != wanted && uid != wanted {
                return None;
            }
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            Some(User { name: name.to_owned(), uid, gid, home: home.into(), scratch: PathBuf::new() })
        });
        let Some(mut user) = found else {
            return Err(refuse(format!("there is no user `{wanted}` in /etc/passwd")));
        };
        if !rustix::process::geteuid().is_root() {
            return Err(refuse("only root can run steps as another user".to_owned()));
        }
        if user.uid == 0 {
            return Err(refuse(
                "steps as root would reach everything; name a user without rights".to_owned(),
            ));
        }
        user.scratch = scratch(data_dir)?;
        Ok(user)
    }
}

impl User {
    /// Whether this user could read a file, by its real path, or find that there is none.
    #[must_use]
    pub fn can_read(&self, real: &Path) -> bool {
        let may = |path: &Path, right: u32| match fs::symlink_metadata(path) {
            Ok(about) if about.uid() == self.uid => about.mode() & (right << 6) != 0,
            Ok(about) if about.gid() == self.gid => about.mode() & (right << 3) != 0,
            Ok(about) => about.mode() & right != 0,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        may(real, 0o4) && real.ancestors().skip(1).all(|folder| may(folder, 0o1))
    }

    /// The directory above a path where this user could put something else in its place, where there is one.
    #[must_use]
    pub fn can_replace(&self, path: &Path) -> Option<PathBuf> {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let mut entry = real.as_path();
        while let Some(folder) = entry.parent() {
            if let Ok(about) = fs::metadata(folder) {
                let mode = about.mode();
                let writes = mode & 0o002 != 0 || mode & 0o020 != 0 && about.gid() == self.gid;
                // In a sticky folder everybody may make something, and replace only what is their own.
                let sticky =
                    mode & 0o1000 != 0 && fs::symlink_metadata(entry).is_ok_and(|is| is.uid() != self.uid);
                if about.uid() == self.uid || writes && !sticky {
                    return Some(folder.to_path_buf());
                }
            }
            entry = folder;
        }
        None
    }
}

/// The folder for the files of attempts of another user. It lies where everybody may make folders, so one that somebody else
/// made is not used.
fn scratch(data_dir: &Path) -> io::Result<PathBuf> {
    let about = fs::metadata(data_dir)?;
    let path = std::env::temp_dir().join(format!("windlass-{:x}-{:x}", about.dev(), about.ino()));
    match fs::DirBuilder::new().mode(0o711).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let made = fs::symlink_metadata(&path)?;
    if !made.is_dir() || made.uid() != rustix::process::geteuid().as_raw() || made.mode() & 0o066 != 0 {
        let text = format!("{} was made by somebody else; remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(path)
}

impl Wall {
    /// As it is recorded.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Wall::None => "none".to_owned(),
            Wall::User(user) => format!("user {}", user.name),
            Wall::Sandbox(_) => "sandbox".to_owned(),
            Wall::Refused(_) => "refused".to_owned(),
        }
    }

    /// The same, with more that the sandbox never gives.
    #[must_use]
    pub fn without(mut self, more: Vec<PathBuf>) -> Wall {
        if let Wall::Sandbox(sandbox) = &mut self {
            sandbox.closed.extend(more);
        }
        self
    }

    /// Whether a command may begin in a directory.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check(&self, dir: &Path) -> Result<(), String> {
        match self {
            Wall::None | Wall::User(_) => Ok(()),
            Wall::Refused(text) => Err(text.clone()),
            Wall::Sandbox(sandbox) => {
                let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
                sandbox.write.iter().try_for_each(|given| sandbox.check(&real(given)))?;
                sandbox.check_dir(&real(dir))
            }
        }
    }

    /// Puts this process, and all that it starts from now on, behind the wall. `own` are the files of the attempt.
    pub(super) fn enter(&self, dir: &Path, own: &[PathBuf]) -> Result<(), StartError> {
        let entered = match self {
            Wall::None | Wall::Refused(_) => return Ok(()),
            Wall::User(_) => part_from_others(),
            Wall::Sandbox(sandbox) => sandbox.enter(dir, own),
        };
        entered.map_err(|text| StartError::System { program: "the sandbox".to_owned(), text })
    }
}

/// Closes the processes of other attempts, which run as the same user, to this process and all that it starts from now on:
/// where the system has it, they are neither signalled nor traced, and their environment and memory are not read.
fn part_from_others() -> Result<(), String> {
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let made = rules.scope(Scope::from_all(SCOPES)).and_then(Ruleset::create);
    made.and_then(landlock::RulesetCreated::restrict_self).map(drop).map_err(|error| error.to_string())
}

impl Sandbox {
    /// Whether a directory, by its real path, may be given for writing.
    fn check(&self, dir: &Path) -> Result<(), String> {
        let within = |closed: &&PathBuf| closed.starts_with(dir) || dir.starts_with(closed);
        if let Some(closed) = self.closed.iter().find(within) {
            return Err(format!(
                "the sandbox cannot give {} to a step, because {} is in its reach: give the step another `dir:`, the server \
                 another data directory (--data), or an executor another --scratch; name the configuration (--config) and \
                 policies (--policy) that are elsewhere; or start it with --run-as USER or --shared-user",
                dir.display(),
                closed.display()
            ));
        }
        Ok(())
    }

    /// Whether a directory, by its real path, may be a working directory.
    fn check_dir(&self, dir: &Path) -> Result<(), String> {
        self.check(dir)?;
        let starts = |place: &Path| dir.starts_with(place) || place.starts_with(dir);
        let is_home = |home: &Path| {
            let hidden = dir.strip_prefix(home).ok().and_then(|rest| rest.components().next());
            home.starts_with(dir) || hidden.is_some_and(|name| name.as_os_str().as_bytes().starts_with(b"."))
        };
        let home = self.home.as_deref().filter(|home| is_home(home));
        match STARTED_FROM.iter().map(Path::new).find(|place| starts(place)).or(home) {
            None => Ok(()),
            Some(place) => Err(format!(
                "the sandbox cannot give {} to a step, because what runs outside of it is started from {}: give the step \
                 another `dir:`",
                dir.display(),
                place.display()
            )),
        }
    }

    /// Opens a directory that is given for writing. What its name leads to may have changed since it was looked at, so what
    /// was opened is looked at.
    fn open(&self, dir: &Path, check: impl Fn(&Path) -> Result<(), String>) -> Result<PathFd, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", dir.display());
        let opened = PathFd::new(dir).map_err(|error| failed(&error))?;
        let real = fs::read_link(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()));
        check(&real.map_err(|error| failed(&error))?)?;
        Ok(opened)
    }

    fn enter(&self, dir: &Path, own: &[PathBuf]) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let all = AccessFs::from_all(FILES);
        let (read, write) = (AccessFs::from_read(FILES), all & !(AccessFs::MakeChar | AccessFs::MakeBlock));
        let mut rules = ruleset().map_err(|error| failed(&error))?;
        let system = SYSTEM.iter().map(PathBuf::from).chain(self.read.iter().cloned());
        let system = system.flat_map(|path| without(&path, &self.closed));
        let devices = DEVICES.iter().map(PathBuf::from);
        let dir = self.open(dir, |real| self.check_dir(real))?;
        rules = rules.add_rule(PathBeneath::new(dir, write)).map_err(|error| failed(&error))?;
        // One that the configuration names and that is not there is given when it is.
        for dir in self.write.iter().filter(|dir| dir.exists()) {
            let (opened, file) = (self.open(dir, |real| self.check(real))?, !dir.is_dir());
            let access = if file { write & AccessFs::from_file(FILES) } else { write };
            rules = rules.add_rule(PathBeneath::new(opened, access)).map_err(|error| failed(&error))?;
        }
        let given = system
            .map(|path| (path, read))
            .chain(devices.chain(own.iter().cloned()).map(|path| (path, write)));
        for (path, access) in given {
            // What is not there needs no rule.
            let (Ok(about), Ok(opened)) = (fs::metadata(&path), PathFd::new(&path)) else { continue };
            let access = if about.is_dir() { access } else { access & AccessFs::from_file(FILES) };
            rules = rules.add_rule(PathBeneath::new(opened, access)).map_err(|error| failed(&error))?;
        }
        give_up_rights().map_err(|error| failed(&error))?;
        let status = rules.restrict_self().map_err(|error| failed(&error))?;
        match status.ruleset {
            RulesetStatus::FullyEnforced => Ok(()),
            RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => {
                Err("the system does not enforce all of its rules".to_owned())
            }
        }
    }
}

/// A path that is given for reading, or its entries where something closed lies in it.
fn without(path: &Path, closed: &[PathBuf]) -> Vec<PathBuf> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if closed.iter().any(|closed| real.starts_with(closed)) {
        return Vec::new();
    }
    if !closed.iter().any(|closed| closed.starts_with(&real)) {
        return vec![path.to_path_buf()];
    }
    // It goes no deeper than what is closed.
    let entries = fs::read_dir(&real).into_iter().flatten().flatten();
    entries.flat_map(|entry| without(&entry.path(), closed)).collect()
}

/// Root without the rights that make it more than the owner of its files.
fn give_up_rights() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    for right in CapabilitySet::all().iter().filter(|right| !KEPT.contains(*right)) {
        match rustix::thread::remove_capability_from_bounding_set(right) {
            // One that this system does not have, or may not take away, is not needed either: the sets below hold.
            Ok(()) | Err(_) => {}
        }
    }
    let had = rustix::thread::capabilities(None)?;
    let kept = CapabilitySets {
        effective: had.effective & KEPT,
        permitted: had.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, kept)?)
}

/// Gives an attempt's own files to the user that it runs as.
pub(super) fn hand_over(wall: &Wall, path: &Path) -> io::Result<()> {
    match wall {
        Wall::User(user) => std::os::unix::fs::lchown(path, Some(user.uid), Some(user.gid)),
        Wall::None | Wall::Sandbox(_) | Wall::Refused(_) => Ok(()),
    }
}

/// Where a command has its temporary files, where it is not to use those of everybody; none where it may.
pub(super) fn folder(wall: &Wall, output_file: &Path) -> Option<PathBuf> {
    match wall {
        Wall::User(_) | Wall::Sandbox(_) => {
            let mut name = output_file.file_name().unwrap_or_default().to_owned();
            name.push(".tmp");
            Some(output_file.with_file_name(name))
        }
        Wall::None | Wall::Refused(_) => None,
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn what_is_closed_is_never_given() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["a/data/log", "a/b", "work"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("a/file"), "").unwrap();
        let closed = [root.join("a/data")];
        let mut given = without(&root, &closed);
        given.sort();
        assert_eq!(given, [root.join("a/b"), root.join("a/file"), root.join("work")]);
        assert_eq!(without(&root.join("a/data/log"), &closed), [] as [PathBuf; 0]);
        let wall = Wall::Sandbox(Sandbox { closed: closed.to_vec(), ..Sandbox::default() });
        assert!(wall.check(&root.join("work")).is_ok());
        for bad in ["", "a", "a/data", "a/data/log"] {
            assert!(wall.check(&root.join(bad)).is_err(), "{bad}");
        }
        let wall = Wall::Sandbox(Sandbox {
            closed: closed.to_vec(),
            write: vec![root.clone()],
            ..Sandbox::default()
        });
        assert!(wall.check(&root.join("work")).is_err());
    }

    #[test]
    fn what_was_opened_is_looked_at_and_not_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        for name in ["data", "work"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let sandbox = Sandbox { closed: vec![root.join("data")], ..Sandbox::default() };
        let link = root.join("link");
        std::os::unix::fs::symlink(root.join("work"), &link).unwrap();
        assert!(sandbox.open(&link, |real| sandbox.check_dir(real)).is_ok());
        // Somebody changed it after it was looked at.
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(root.join("data"), &link).unwrap();
        assert!(sandbox.open(&link, |real| sandbox.check_dir(real)).is_err());
        assert!(sandbox.enter(&link, &[]).is_err());
        let sandbox = Sandbox { write: vec![link.clone()], ..sandbox };
        assert!(Wall::Sandbox(sandbox.clone()).check(&root.join("work")).is_err());
        assert!(sandbox.enter(&root.join("work"), &[]).is_err());
    }

    #[test]
    fn what_others_start_things_from_is_no_working_directory() {
        let home = PathBuf::from("/home/ann");
        let sandbox = Sandbox { home: Some(home.clone()), ..Sandbox::default() };
        for bad in
            ["/", "/etc", "/etc/cron.d", "/usr", "/usr/bin", "/run/x", "/home", "/home/ann", "/home/ann/.ssh"]
        {
            assert!(sandbox.check_dir(Path::new(bad)).is_err(), "{bad}");
        }
        for good in
            ["/srv/work", "/home/ann/work", "/home/ann/work/.git", "/home/bob", "/usr/src/app", "/tmp/x"]
        {
            assert!(sandbox.check_dir(Path::new(good)).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_user_who_could_put_something_in_the_place_of_what_is_closed_is_found() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/data")).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let user = |uid: u32| User {
            name: "x".to_owned(),
            uid,
            gid: 4_000_000,
            home: PathBuf::new(),
            scratch: PathBuf::new(),
        };
        let mode = |mode: u32| fs::set_permissions(root.join("a"), fs::Permissions::from_mode(mode)).unwrap();
        mode(0o755);
        assert_eq!(user(4_000_000).can_replace(&root.join("a/data")), None);
        assert_eq!(user(own).can_replace(&root.join("a/data")), Some(root.join("a")));
        mode(0o777);
        for path in ["a/data", "a/data/log", "a/not-there"] {
            assert_eq!(user(4_000_000).can_replace(&root.join(path)), Some(root.join("a")), "{path}");
        }
        // What is there stays its owner's, and what is not can be made.
        mode(0o1777);
        assert_eq!(user(4_000_000).can_replace(&root.join("a/data")), None);
        assert_eq!(user(4_000_000).can_replace(&root.join("a/not-there")), Some(root.join("a")));
    }
}
