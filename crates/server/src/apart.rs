//! What steps run behind: nothing while all that happens is the owner's doing, and a wall where others may start or approve
//! runs. A server and a remote executor decide it here, with the same words.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use windlass_executor::config::Config;
use windlass_executor::secrets::{self, Vault};
use windlass_executor::shell::Wall;
use windlass_executor::shell::walls::{self, Sandbox, User};

/// What was chosen.
#[derive(Clone, Debug, Default)]
pub enum Apart {
    /// The sandbox where others than the owner may start or approve runs, and nothing where they may not.
    #[default]
    AsNeeded,
    /// Always as another user.
    User(User),
    /// Never: `--shared-user`.
    Shared,
}

/// What is said at the start of one that keeps no step apart.
const SHARED: &str = "--shared-user: steps run as this process's own user; whoever may bring a runbook reaches all that it has";

/// Why no step runs.
const REFUSED: &str = "no step is started: others than the owner may start or approve runs here, and this system has no \
     sandbox to keep steps apart from the server (Landlock with scopes for signals, Linux 6.12). Start it with \
     --run-as USER, or on such a system, or with --shared-user to do without";

impl Apart {
    /// What the flags `--run-as USER` and `--shared-user` choose. `dir` is where the process keeps its files.
    ///
    /// # Errors
    /// Steps cannot run as this user.
    pub fn choose(run_as: Option<&str>, shared_user: bool, dir: &Path) -> io::Result<Apart> {
        Ok(match run_as {
            Some(name) => Apart::User(User::find(name, dir)?),
            None if shared_user => Apart::Shared,
            None => Apart::AsNeeded,
        })
    }

    /// What a command runs behind. `others` says that somebody else may start or approve runs.
    #[must_use]
    pub fn wall(&self, others: bool, config: &Config, closed: &[PathBuf]) -> Wall {
        match self {
            Apart::User(user) => match closed.iter().find_map(|path| user.can_replace(path)) {
                None => Wall::User(user.clone()),
                Some(dir) => Wall::Refused(format!(
                    "no step is started: the user {} may write to {}, where it could replace what keeps the server's; give                      that directory to another user, or the server other directories",
                    user.name,
                    dir.display()
                )),
            },
            Apart::Shared => Wall::None,
            Apart::AsNeeded if !others => Wall::None,
            Apart::AsNeeded if has_sandbox() => Wall::Sandbox(sandbox(config, closed)),
            Apart::AsNeeded => Wall::Refused(REFUSED.to_owned()),
        }
    }

    /// What a command of the configuration file runs behind: it is the owner's own, so nothing is kept from it but what the
    /// user is that commands run as.
    #[must_use]
    pub fn wall_of_owner(&self) -> Wall {
        match self {
            Apart::User(user) => Wall::User(user.clone()),
            Apart::AsNeeded | Apart::Shared => Wall::None,
        }
    }

    /// Whether tenants' steps are kept apart, where others than the owner may act.
    #[must_use]
    pub fn keeps(&self) -> bool {
        !matches!(self, Apart::Shared)
    }

    /// What whoever starts it has to know.
    #[must_use]
    pub fn warning(&self, others: bool) -> Option<&'static str> {
        match self {
            Apart::Shared => Some(SHARED),
            Apart::AsNeeded if others && !has_sandbox() => Some(REFUSED),
            Apart::AsNeeded | Apart::User(_) => None,
        }
    }

    /// As it is recorded.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Apart::AsNeeded => "as needed".to_owned(),
            Apart::User(user) => Wall::User(user.clone()).name(),
            Apart::Shared => Wall::None.name(),
        }
    }
}

fn has_sandbox() -> bool {
    static HAS_SANDBOX: OnceLock<bool> = OnceLock::new();
    *HAS_SANDBOX.get_or_init(walls::has_sandbox)
}

/// What belongs to a data directory and no step may reach: itself, the key of its vault, and the folders and files that say
/// what is allowed. A folder of policies, or a file, that is only looked for is not among them.
#[must_use]
pub fn closed(config: &Config, data: &Path) -> Vec<PathBuf> {
    let mut closed = vec![data.to_path_buf()];
    closed.extend(config.policy.iter().chain(&config.path).cloned());
    closed.extend(Vault::new(data).key_file().map(Path::to_path_buf));
    closed.extend(std::env::var_os(secrets::DIR).map(PathBuf::from));
    closed
}

/// What the sandbox gives, and what it never does.
pub(crate) fn sandbox(config: &Config, closed: &[PathBuf]) -> Sandbox {
    // A link is not what is closed, but what it leads to. What is not there yet is closed too: a step could make it.
    let real = |path: &PathBuf| match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), _, _) => Some(real),
        (Err(_), Some(folder), Some(name)) => Some(folder.canonicalize().ok()?.join(name)),
        (Err(_), _, _) => None,
    };
    let closed = closed.iter().filter_map(real).collect();
    let home = std::env::var_os("HOME").and_then(|home| PathBuf::from(home).canonicalize().ok());
    Sandbox { read: config.sandbox.read.clone(), write: config.sandbox.write.clone(), closed, home }
}
