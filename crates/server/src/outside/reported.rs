//! What is reported of an attempt, by how its command ended.

use serde_json::Value;
use std::path::Path;
use windlass_core::attempt::{Exit, Report};
use windlass_core::code::Code;
use windlass_core::id::Name;
use windlass_core::small;
use windlass_core::step::Failure;
use windlass_executor::room::postponed;
use windlass_executor::shell::{self, Ended, Ending};

/// How many lines of what a command said last stand in its failure, and how many bytes at most.
const LAST_LINES: usize = 8;
const LAST_BYTES_MAX: usize = 2_048;

/// What is reported of an attempt that has ended.
pub(crate) fn report_of(
    ended: &Ended,
    outputs: &small::Map<Name, windlass_core::runbook::ValueType>,
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
