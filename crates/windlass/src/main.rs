//! The `windlass` command. So far it tells what the core knows: the error codes and the kinds of events.

use std::io::Write as _;
use std::process::ExitCode;
use windlass_core::code::Code;
use windlass_core::event::Event;
use windlass_core::wire::Writer;

const HELP: &str = "\
Windlass runs runbooks for agents and humans, durably.

This version holds the core; it does not run anything yet.

usage:
  windlass codes [--json]            every error code with its HTTP status and exit code
  windlass events --types [--json]   every kind of event that can stand in the log
  windlass --version
  windlass --help

examples:
  windlass codes | grep LEASE
  windlass events --types --json
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = match words[..] {
        ["--help" | "-h" | "help"] => HELP.to_owned(),
        ["--version" | "-V"] => format!("windlass {}\n", env!("CARGO_PKG_VERSION")),
        ["codes"] => codes(),
        ["codes", "--json"] => codes_json(),
        ["events", "--types"] => events(),
        ["events", "--types", "--json"] | ["events", "--json", "--types"] => events_json(),
        _ => return usage(&words),
    };
    // A reader that closed the pipe has seen enough: no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// What is not understood is refused with the code for it, and with what to do next.
fn usage(words: &[&str]) -> ExitCode {
    let code = Code::InvalidInput;
    let what = match words {
        [] => "a command is needed".to_owned(),
        words => format!("`{}` is not a command of this version", words.join(" ")),
    };
    let _ = writeln!(std::io::stderr(), "windlass: {code}: {what}\n`windlass --help` lists the commands");
    ExitCode::from(code.exit())
}

fn codes() -> String {
    let row = |code: &Code| format!("{:<24} {} {:>3}  {}\n", code, code.http(), code.exit(), code.title());
    Code::ALL.iter().map(row).collect()
}

fn codes_json() -> String {
    list(Code::ALL.iter().map(|code| {
        vec![
            ("code", string(code.as_str())),
            ("http", code.http().to_string()),
            ("exit", code.exit().to_string()),
            ("title", string(code.title())),
        ]
    }))
}

fn events() -> String {
    let specs = Event::specs();
    specs.iter().map(|s| format!("{:<24} {:<7} {}\n", s.tag, s.category.as_str(), s.stream)).collect()
}

fn events_json() -> String {
    list(Event::specs().iter().map(|spec| {
        let fields: Vec<String> =
            spec.fields.iter().map(|(name, kind)| format!("{}:{}", string(name), string(kind))).collect();
        vec![
            ("type", string(spec.tag)),
            ("category", string(spec.category.as_str())),
            ("stream", string(spec.stream)),
            ("fields", format!("{{{}}}", fields.join(","))),
        ]
    }))
}

/// One JSON document, `{"items":[…]}`, of objects whose values are JSON already.
fn list(items: impl Iterator<Item = Vec<(&'static str, String)>>) -> String {
    let object = |fields: Vec<(&str, String)>| {
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    };
    let items: Vec<String> = items.map(object).collect();
    format!("{{\"items\":[{}]}}\n", items.join(","))
}

fn string(text: &str) -> String {
    let mut bytes = Vec::new();
    Writer(&mut bytes).string(text);
    String::from_utf8_lossy(&bytes).into_owned()
}
