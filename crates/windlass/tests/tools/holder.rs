//! A server that holds a project's data directory and whose policy allows every write.

use crate::support::{Process, Project, until};

/// The policy that allows everything. The built-in one denies every write to the outside.
const ALL: &str = "@id(\"all\")\npermit (principal, action, resource);\n";

/// Starts a server on a project's data directory, and waits until it answers.
pub(crate) fn hold(project: &Project) -> Process {
    hold_with(project, &[])
}

/// The same, with more in its environment.
pub(crate) fn hold_with(project: &Project, env: &[(&str, &str)]) -> Process {
    if !project.has("policy/all.cedar") {
        project.write("policy/all.cedar", ALL);
    }
    let words = ["serve", "--listen", "127.0.0.1:0"];
    // What a `run --detach` left behind may have the directory for a while.
    let mut process = until("the data directory to be free", || {
        let mut command = project.command(&words);
        command.env("WINDLASS_PROBE_WAIT", "200ms").envs(env.iter().copied());
        let mut process = Process::spawn(command, &words);
        until("a word of the server", || (!process.out().is_empty() || process.has_ended()).then_some(()));
        (!process.has_ended() || !process.err().contains("LOCK_BUSY")).then_some(process)
    });
    process.await_line("windlass serves ");
    let socket = project.path("data/windlass.sock");
    until("the server's socket", || std::os::unix::net::UnixStream::connect(&socket).ok());
    process
}

/// Where a server answers.
pub(crate) fn url_of(process: &mut Process) -> String {
    let line = process.await_line("windlass serves ");
    line.split_whitespace().last().expect("an address").to_owned()
}
