//! Commands of steps: what the keeper is asked to do, and what is reported of how it ended.

use super::Terms;
use crate::home::Home;
use crate::room::postponed;
use crate::shell::{self, Author, Ended, Ending, Environment, Reach, Spec, StartError, Told};
use crate::tools::Trouble;
use crate::tools::session::Session;
use serde_json::Value;
use std::path::{Path, PathBuf};
use windlass_core::attempt::{Exit, Report};
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::runbook::ValueType;
use windlass_core::small;
use windlass_core::step::Failure;

/// How many lines of what a command said last stand in its failure, and how many bytes at most.
const LAST_LINES: usize = 8;
const LAST_BYTES_MAX: usize = 2_048;

/// A command, with what it is given.
pub struct Script {
    /// The command.
    pub text: String,
    /// The shell; bash where absent.
    pub shell: Option<String>,
    /// Where it runs.
    pub dir: PathBuf,
    /// Who wrote it.
    pub author: Author,
    /// What its `env:` says.
    pub env: Vec<(String, Given)>,
    /// The variables that it is given.
    pub vars: Value,
    /// Where it reaches the API.
    pub server: String,
    /// The token of its attempt.
    pub token: String,
    /// The trace that it belongs to.
    pub traceparent: String,
    /// The outputs that it declares.
    pub outputs: small::Map<Name, ValueType>,
}

/// A value of `env:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// A text.
    Text(String),
    /// A secret by its name. Only the definition of a step names one, so that no value of a variable can ask for it.
    Secret(String),
}

/// What the keeper is asked to do. Secrets are resolved here, at the last moment, and masked.
pub(super) fn spec(terms: &Terms, script: &Script, home: &Home, session: &Session) -> Result<Spec, Trouble> {
    let Script { server, token, traceparent, .. } = script;
    let reach = Reach { tries: terms.attempt, server, token, traceparent };
    let (attempt, key) = (&terms.id, terms.key.as_str());
    let told = Told { attempt, key, vars: &script.vars, reach: Some(reach) };
    let mut env = Environment::of_step(&told).map_err(|error| error.to_string())?;
    for (name, given) in &script.env {
        let text = match given {
            Given::Text(text) => text.clone(),
            Given::Secret(secret) => session.reveal(secret)?,
        };
        env.add(name, &text).map_err(|error| error.to_string())?;
    }
    let log = home.output_of(attempt);
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder).map_err(|error| StartError::file(folder, &error))?;
    }
    let typed = home.typed_of(attempt);
    let mut spec = Spec::new(&attempt.to_string(), &script.text, script.dir.clone(), env, log, typed);
    spec.author = script.author.clone();
    spec.shell.clone_from(&script.shell);
    spec.timeout = terms.timeout;
    spec.secrets = session.values();
    spec.outputs.clone_from(&script.outputs);
    Ok(spec)
}

/// What is reported of an attempt that has ended.
pub(super) fn report_of(
    ended: &Ended,
    outputs: &small::Map<Name, ValueType>,
    log: &Path,
    (stopping, repeatable): (bool, bool),
    attempt: u32,
) -> Report {
    let exit = |code: i32| Exit { code, wall: ended.wall.clone() };
    let failed = |code: Code, message: String, exit_code: Option<i32>, signal: Option<i32>| Report::Failed {
        failure: Failure::new(code, message),
        retryable: false,
        exit_code: exit_code.map(exit),
        signal,
    };
    match &ended.ending {
        Ending::Exited(0) => match &ended.output {
            Ok(output) => match shell::check_outputs(outputs, output.as_ref().unwrap_or(&Value::Null)) {
                Ok(()) => Report::Done { output: output.clone(), exit_code: Some(exit(0)) },
                Err(error) => failed(Code::StepFailed, error.to_string(), Some(0), None),
            },
            Err(error) => failed(Code::StepFailed, error.to_string(), Some(0), None),
        },
        Ending::Exited(code) => failed(Code::StepFailed, told(&ended.ending, log), Some(*code), None),
        Ending::Signalled(signal) => {
            failed(Code::StepFailed, told(&ended.ending, log), Some(128 + signal), Some(*signal))
        }
        Ending::TimedOut => failed(Code::TimedOut, told(&ended.ending, log), None, None),
        // It had begun, and nobody knows how far it came: only what may be repeated is handed back.
        Ending::Stopped if stopping && !repeatable => Report::Lost { last_seen: None },
        Ending::Stopped if stopping => Report::Returned { reason: Some("the process stopped".to_owned()) },
        Ending::Stopped => Report::Stopped,
        Ending::NotStarted(error) if error.passes() => postponed(error.to_string(), attempt),
        Ending::NotStarted(error) => failed(Code::StepFailed, error.to_string(), None, None),
        Ending::Lost => Report::Lost { last_seen: None },
    }
}

/// How a command ended, with what it said last: that is what people look for, and what `fallback_on` looks at.
fn told(ending: &Ending, log: &Path) -> String {
    let lines = shell::output::tail(log, LAST_LINES).unwrap_or_default();
    let mut text: String = lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n");
    if text.len() > LAST_BYTES_MAX {
        let mut from = text.len() - LAST_BYTES_MAX;
        while !text.is_char_boundary(from) {
            from += 1;
        }
        text = format!("…{}", &text[from..]);
    }
    if text.is_empty() { ending.to_string() } else { format!("{ending}\n{text}") }
}
