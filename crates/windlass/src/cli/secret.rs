//! Secrets, from the command line: set, listed by name and version, removed. A value comes from the standard input or is
//! typed unseen; it is never an argument, where others could read it.

use super::Outcome;
use super::args::Args;
use super::say::{self, Say};
use serde_json::{Value, json};
use std::io::{IsTerminal as _, Read as _};
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::time::Millis;
use windlass_executor::home::Home;
use windlass_executor::redaction::Redactor;
use windlass_executor::secrets::{self, Vault};
use windlass_server::client::Failure;

/// What can be done with secrets.
#[derive(clap::Subcommand, Debug)]
pub(super) enum SecretVerb {
    /// Set a secret; setting it again creates a new version
    #[command(after_help = "examples:\n  windlass secret set GITHUB_TOKEN < token.txt")]
    Set {
        /// Its name, as runbooks write it after `secrets.`
        name: String,
        /// The tenant
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// List names and versions
    #[command(after_help = "examples:\n  windlass secret list --tenant acme")]
    List {
        /// The tenant
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// Remove a secret
    #[command(after_help = "examples:\n  windlass secret rm GITHUB_TOKEN --yes")]
    Rm {
        /// Its name
        name: String,
        /// The tenant
        #[arg(long, default_value = "default")]
        tenant: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

fn failed(error: &secrets::Error) -> Failure {
    Failure::new(error.code(), error.to_string())
}

pub(super) fn secret(args: &Args, verb: &SecretVerb, say: &Say) -> Outcome {
    if let Some(server) = &args.global.server {
        // The value would lie here, and the server would not have it.
        let text = format!(
            "secrets are kept on the machine that uses them: say this there, and without {server} (--server or \
             WINDLASS_SERVER)"
        );
        return Err(Failure::new(Code::InvalidInput, text));
    }
    let root = &super::root(args)?;
    let tenant_of =
        |tenant: &str| Name::new(tenant).map_err(|error| Failure::new(Code::InvalidInput, error.to_string()));
    // The vault lies in the data directory, which is the owner's alone.
    Home::make(root).map_err(|error| windlass_server::client::unusable(Some(root), &error))?;
    let vault = Vault::new(root);
    match verb {
        SecretVerb::Set { name, tenant } => {
            let value = value(name)?;
            let version = vault.set(&tenant_of(tenant)?, name, &value).map_err(|error| failed(&error))?;
            say.answer(&json!({ "name": name, "version": version }), || {
                format!("`{name}` is set, version {version}")
            });
        }
        SecretVerb::List { tenant } => {
            let listed = vault.list(&tenant_of(tenant)?).map_err(|error| failed(&error))?;
            let item = |one: &secrets::Listed| json!({ "name": one.name, "version": one.version, "set_at": windlass_api::time::text(Millis(one.at)) });
            let items: Vec<Value> = listed.iter().map(item).collect();
            say.answer(&windlass_api::List::page(items, None), || {
                let mut rows = vec![vec!["NAME".to_owned(), "VERSION".to_owned(), "SET".to_owned()]];
                rows.extend(listed.iter().map(|one| {
                    vec![one.name.clone(), one.version.to_string(), windlass_api::time::text(Millis(one.at))]
                }));
                say.table(&rows)
            });
        }
        SecretVerb::Rm { name, tenant, yes } => {
            let question = format!("Remove `{name}`? Runs that need it will fail.");
            say::sure(*yes, &question, "nothing was removed", "--yes")?;
            if !vault.remove(&tenant_of(tenant)?, name).map_err(|error| failed(&error))? {
                return Err(Failure::new(
                    Code::NotFound,
                    format!("there is no secret `{name}` in the vault"),
                ));
            }
            say.answer(&json!({ "name": name, "removed": true }), || format!("`{name}` is removed"));
        }
    }
    Ok(0)
}

/// The value: what is typed, unseen, or what the standard input holds, without the line break at its end.
fn value(name: &str) -> Result<String, Failure> {
    let stdin = std::io::stdin();
    let text = if stdin.is_terminal() {
        typed(name)?
    } else {
        let mut bytes = Vec::new();
        let most = Redactor::LEN_MAX as u64 + 2;
        stdin.lock().take(most).read_to_end(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| Failure::new(Code::InvalidInput, "the value is not UTF-8"))?
    };
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

/// Reads a line from the terminal, which does not show it meanwhile.
fn typed(name: &str) -> Result<String, Failure> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let stdin = std::io::stdin();
    let shown = tcgetattr(&stdin).map_err(std::io::Error::from)?;
    let mut hidden = shown.clone();
    hidden.local_modes &= !LocalModes::ECHO;
    eprint!("value of {name}: ");
    tcsetattr(&stdin, OptionalActions::Flush, &hidden).map_err(std::io::Error::from)?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    // Whatever came of it, the terminal shows again what is typed.
    let back = tcsetattr(&stdin, OptionalActions::Flush, &shown);
    eprintln!();
    read?;
    back.map_err(std::io::Error::from)?;
    Ok(line)
}
