//! What happens when Windlass or its keeper dies. This program is started again as a host, which can be killed.

use super::*;
use std::io::{BufRead as _, BufReader};

/// What the host does, and where: `forest <dir> <word>` or `env <dir>`.
const ROLE: &str = "WL_TEST_HOST";

/// The host, when it is asked to be one.
#[test]
fn host_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let shell = Shell::start(&std::env::current_exe().unwrap(), Path::new(words[1])).unwrap();
    let (sender, receiver) = channel();
    let command = match words[0] {
        "forest" => format!("{} wait", forest(words[2])),
        _ => "env".to_owned(),
    };
    let mut spec = spec(Path::new(words[1]), "a", &command);
    spec.grace = Duration::from_millis(500);
    shell.run(&leave(), spec, move |event| drop(sender.send(event))).unwrap();
    let watch = Watch(receiver);
    if words[0] == "forest" {
        watch.ready(FOREST);
        eprintln!("keeper {}", shell.keeper_pid());
        // Until it is killed.
        watch.0.recv_timeout(HANG * 10).ok();
    }
    watch.ended();
}

struct Host {
    child: Child,
    keeper_pid: u32,
}

/// Starts a host and waits until its forest stands.
fn host(dir: &Path, word: &str) -> Host {
    let mut child =
        command(&format!("forest {} {word}", dir.display())).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let pid = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("keeper ")?.parse().ok());
    Host { child, keeper_pid: pid.expect("the host gets ready") }
}

fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["shell::tests::host::host_process", "--exact", "--nocapture"]).env(ROLE, role);
    command.stdout(Stdio::null());
    command
}

fn kill(pid: u32) {
    let identity = process::look(pid as i32).expect("it lives").identity;
    process::signal(identity, &[rustix::process::Signal::KILL]);
}

#[test]
fn a_killed_windlass_leaves_no_process_and_the_lock_is_free_only_then() {
    let dir = tempfile::tempdir().unwrap();
    let word = unique("killed");
    let mut host = host(dir.path(), &word);
    let exe = std::env::current_exe().unwrap();

    // While it lives nobody else gets in, and the message says who is in the way.
    let refused =
        Shell::start_within(&exe, dir.path(), Duration::ZERO, |_| {}).err().expect("the lock is taken");
    assert!(refused.to_string().contains(&format!("process {}", host.keeper_pid)), "{refused}");
    assert_eq!(lock::holder(dir.path()).unwrap(), Some(host.keeper_pid));

    kill(host.child.id());
    host.child.wait().unwrap();
    // The lock is waited for. Whoever gets it finds nothing alive.
    let file = fs::File::open(dir.path().join("keeper.lock")).unwrap();
    file.lock().unwrap();
    assert_gone(&word);
    file.unlock().unwrap();
    Shell::start(&exe, dir.path()).unwrap().close();
}

#[test]
fn a_restarted_windlass_waits_for_the_keeper_of_the_killed_one() {
    let dir = tempfile::tempdir().unwrap();
    let word = unique("restart");
    let mut host = host(dir.path(), &word);
    kill(host.child.id());
    host.child.wait().unwrap();
    let shell = Shell::start(&std::env::current_exe().unwrap(), dir.path()).unwrap();
    assert_gone(&word);
    shell.close();
}

#[test]
fn the_attempts_of_a_killed_keeper_are_lost_and_ended_and_another_keeper_is_started() {
    let bench = Bench::new();
    let word = unique("lost");
    let watch = bench.watch(bench.spec("a", &format!("{} wait", forest(&word))));
    watch.ready(FOREST);
    let before = bench.shell.keeper_pid();
    kill(before);
    assert_eq!(watch.ended().ending, Ending::Lost);
    assert_gone(&word);
    until(|| bench.shell.is_ready() && bench.shell.keeper_pid() != before);
    assert_eq!(bench.run(bench.spec("a", "true")).0.ending, Ending::Exited(0));
}

#[test]
fn what_a_killed_keeper_had_not_begun_is_reported_as_not_started() {
    let bench = Bench::new();
    let word = unique("asked");
    let keeper = process::look(bench.shell.keeper_pid() as i32).unwrap().identity;
    process::signal(keeper, &[rustix::process::Signal::STOP]);
    let watch = bench.watch(bench.spec("a", &format!("exec -a {word} sleep 1000")));
    process::signal(keeper, &[rustix::process::Signal::KILL]);
    let ending = watch.ended().ending;
    assert!(matches!(&ending, Ending::NotStarted(error) if error.passes()), "{ending}");
    assert_gone(&word);
}

#[test]
fn a_shell_that_is_closed_while_its_keeper_is_dead_starts_no_other() {
    let bench = Bench::new();
    kill(bench.shell.keeper_pid());
    let Bench { shell, dir } = bench;
    shell.close();
    until(|| lock::holder(dir.path()).unwrap().is_none());
}

#[test]
fn a_new_keeper_ends_what_a_killed_one_left() {
    let dir = tempfile::tempdir().unwrap();
    let word = unique("sweep");
    let mut host = host(dir.path(), &word);
    // First the host, or it would clean up itself. Its keeper has no time to.
    let keeper = process::look(host.keeper_pid as i32).unwrap().identity;
    process::signal(keeper, &[rustix::process::Signal::STOP]);
    kill(host.child.id());
    host.child.wait().unwrap();
    process::signal(keeper, &[rustix::process::Signal::KILL]);
    assert!(!living(&word).is_empty());
    let shell = Shell::start(&std::env::current_exe().unwrap(), dir.path()).unwrap();
    assert_gone(&word);
    shell.close();
}

#[test]
fn a_keeper_outlives_the_signals_around_it() {
    let bench = Bench::new();
    assert!(Command::new("mkfifo").arg(bench.dir.path().join("gate")).status().unwrap().success());
    let watch = bench.watch(bench.spec("a", "echo ready; read -r _ < gate; echo done"));
    watch.ready(1);
    let keeper = process::look(bench.shell.keeper_pid() as i32).unwrap().identity;
    use rustix::process::Signal;
    process::signal(keeper, &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT]);
    fs::write(bench.dir.path().join("gate"), "\n").unwrap();
    assert_eq!(watch.ended().ending, Ending::Exited(0));
}

#[test]
fn a_command_sees_nothing_of_the_parents_environment_but_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(&format!("env {}", dir.path().display()));
    command
        .env("SECRET", "1")
        .env("WINDLASS_TOKEN", "t")
        .env("HOME", "/nowhere")
        .env("TZ", "UTC")
        .env("LANG", "C");
    assert!(command.stderr(Stdio::null()).status().unwrap().success());
    let lines = output::tail(&dir.path().join("a.log"), usize::MAX).unwrap();
    let mut names: Vec<&str> =
        texts(&lines, Source::Out).iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    // The last three are bash's own.
    names.retain(|name| !["PWD", "SHLVL", "_"].contains(name));
    assert_eq!(names, ["HOME", "LANG", "PATH", "TZ", "WL_ATTEMPT_MARK", "WL_OUTPUT"]);
}

#[test]
fn a_keeper_is_not_started_by_hand() {
    assert!(std::env::var_os(keeper::STARTED_BY).is_none());
    assert_eq!(keeper::main(), ExitCode::from(2));
}
