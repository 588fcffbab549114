//! Processes as the system shows them: who is whose child, who carries which mark, and ending them safely.
//!
//! A process id says little: it is used again. A process is named by its id and its start time together, and a signal
//! goes through a descriptor of the process after both were compared, so it cannot reach a stranger.

use super::supervisor;
use super::variables::Variable;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

/// The most bytes of an environment that are looked at; the system itself takes less.
const ENVIRON_MAX: u64 = 8 * 1024 * 1024;

/// How often an environment is read again that was found empty: a process between two programs has none.
const ENVIRON_TRIES: usize = 20;

/// How long marked processes of an earlier keeper have between SIGTERM and SIGKILL.
const SWEEP_GRACE: Duration = Duration::from_secs(2);

/// How often the processes are looked at again while they end.
const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// How often a process's line is followed again whose parents changed meanwhile.
const ANCESTRY_TRIES: usize = 20;

/// A process, for as long as it lives: its id, and when it started in clock ticks since the machine did.
pub type Identity = (i32, u64);

/// A line of the process table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) identity: Identity,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// It has ended, and its parent has not asked how.
    pub(super) is_zombie: bool,
}

/// All processes that are visible.
pub(super) fn table() -> io::Result<Vec<Process>> {
    let mut table = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        // A process that ended since is not in the table.
        table.extend(pid.and_then(look));
    }
    Ok(table)
}

/// One process, if it exists.
pub(super) fn look(pid: i32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// A name can hold anything, so what counts stands after the last parenthesis.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Process {
        identity: (pid, fields.get(19)?.parse().ok()?),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// The children of this process, those that have ended included.
///
/// The kernel's list can miss some while children are reaped; only this process reaps them, and it is busy reading.
pub(super) fn children() -> io::Result<Vec<i32>> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        match fs::read_to_string(task?.path().join("children")) {
            Ok(text) => {
                children.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
            }
            // A kernel without these lists, or a thread that ended: the table has them too.
            Err(_) => return children_in_table(),
        }
    }
    Ok(children)
}

fn children_in_table() -> io::Result<Vec<i32>> {
    let own = own_pid();
    Ok(table()?.iter().filter(|process| process.parent == own).map(|process| process.identity.0).collect())
}

pub(super) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Takes the exit status of a child that has ended; false while it lives.
pub(super) fn reap(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return true };
    // An error says that it is nobody's child any more, which is as good.
    !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}

/// Sends a signal to exactly this process. One that has ended is no error; one that may not be signalled is not
/// reached, and whoever waits for its end goes on waiting.
pub(super) fn signal(identity: Identity, signals: &[Signal]) {
    let Some(pid) = Pid::from_raw(identity.0) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // The descriptor holds on to the process of now: if that is the right one, it stays so.
    if look(identity.0).is_some_and(|process| process.identity == identity) {
        for signal in signals {
            let _ = pidfd_send_signal(&descriptor, *signal);
        }
    }
}

/// The mark in a process's environment, as it was when its program started.
pub(super) fn mark(pid: i32) -> Option<String> {
    let prefix = format!("{}=", Variable::Mark.name());
    for _ in 0..ENVIRON_TRIES {
        let mut environ = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/environ")).ok()?;
        file.take(ENVIRON_MAX).read_to_end(&mut environ).ok()?;
        if !environ.is_empty() {
            let mut variables = environ.split(|&b| b == 0);
            let value = variables.find_map(|variable| variable.strip_prefix(prefix.as_bytes()))?;
            return String::from_utf8(value.to_vec()).ok();
        }
        std::thread::yield_now();
    }
    None
}

/// All living descendants of some processes, these included.
pub(super) fn with_descendants(table: &[Process], roots: &BTreeSet<Identity>) -> BTreeSet<Identity> {
    let mut found = BTreeSet::new();
    let mut open: Vec<Identity> = roots.iter().copied().collect();
    while let Some(identity) = open.pop() {
        let Some(process) = table.iter().find(|process| process.identity == identity) else { continue };
        if found.insert(identity) {
            open.extend(
                table.iter().filter(|child| child.parent == process.identity.0).map(|child| child.identity),
            );
        }
    }
    found.retain(|identity| table.iter().any(|process| process.identity == *identity && !process.is_zombie));
    found
}

/// All living descendants of one process, without it.
pub(super) fn below(table: &[Process], pid: i32) -> BTreeSet<Identity> {
    let children = table.iter().filter(|process| process.parent == pid).map(|process| process.identity);
    with_descendants(table, &children.collect())
}

/// Ends all processes of attempts whose mark has this beginning, wherever they hang in the tree. It is for what a killed
/// keeper left behind. What is left after the wait is returned.
///
/// A supervisor ends by itself when its last process has; until then those that lose their parents come to it. Only one
/// that does not is killed, when half of the wait is over.
pub(super) fn sweep(mark_prefix: &str, wait: Duration) -> io::Result<BTreeSet<Identity>> {
    let begin = Instant::now();
    loop {
        let table = table()?;
        let spared = with_ancestors(&table, own_pid());
        let is_of_one = |pid: i32| {
            supervisor::is_one(pid, mark_prefix)
                || mark(pid).is_some_and(|mark| mark.starts_with(mark_prefix))
        };
        let marked = table
            .iter()
            .filter(|process| !process.is_zombie && !spared.contains(&process.identity.0))
            .filter(|process| is_of_one(process.identity.0))
            .map(|process| process.identity)
            .collect();
        let left = with_descendants(&table, &marked);
        if left.is_empty() || begin.elapsed() > wait {
            return Ok(left);
        }
        let supervisors = supervisor::among(&left, mark_prefix);
        let patient = begin.elapsed() < SWEEP_GRACE;
        let signals: &[Signal] = if patient { &[Signal::TERM, Signal::CONT] } else { &[Signal::KILL] };
        left.difference(&supervisors).for_each(|identity| signal(*identity, signals));
        let gently = begin.elapsed() < wait / 2;
        let signals: &[Signal] = if gently { &[Signal::CONT] } else { &[Signal::KILL] };
        supervisors.iter().for_each(|identity| signal(*identity, signals));
        std::thread::sleep(SWEEP_PAUSE);
    }
}

/// Whether a process is a keeper or a supervisor, as the words say that it was started with. Nobody else can change those,
/// and to pretend gains nothing.
pub(super) fn is_keeping(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let word = line.split(|&byte| byte == 0).nth(1);
    word.is_some_and(|word| [super::KEEPER_ARGUMENT, supervisor::ARGUMENT].map(str::as_bytes).contains(&word))
}

/// A living process and its ancestors, nearest first; `None` where it has ended, or does not stay long enough to say.
///
/// A process whose parent ends gets another one, so a line that changes while it is read is read again. Under `hidepid`
/// the line of a user ends at the first ancestor that is another user's.
pub(super) fn ancestry(pid: i32) -> Option<Vec<Identity>> {
    (0..ANCESTRY_TRIES).find_map(|_| ancestry_once(pid).transpose()).and_then(Result::ok)
}

/// `Ok(None)` where something changed under way.
fn ancestry_once(pid: i32) -> Result<Option<Vec<Identity>>, ()> {
    let mut line: Vec<Process> = vec![look(pid).filter(|process| !process.is_zombie).ok_or(())?];
    while let Some(last) = line.last().copied().filter(|last| last.parent > 0) {
        match look(last.parent) {
            // A parent is older than its child: a younger one has the id of a parent that has ended.
            Some(parent) if parent.identity.1 <= last.identity.1 => line.push(parent),
            Some(_) => return Ok(None),
            // It ended, or is hidden. The check below tells.
            None => break,
        }
    }
    let stays = |process: &Process| {
        look(process.identity.0)
            .is_some_and(|now| now.identity == process.identity && now.parent == process.parent)
    };
    Ok(line.iter().all(stays).then(|| line.iter().map(|process| process.identity).collect()))
}

fn with_ancestors(table: &[Process], pid: i32) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| found.insert(*pid)) {
        next = table.iter().find(|process| process.identity.0 == pid).map(|process| process.parent);
    }
    found
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name_is() {
        let stat = "7 (a) b (c) S 3 5 6 0 -1 4 1 0 0 0 1 2 0 0 20 0 1 0 12345 99 1";
        let process = Process { identity: (7, 12345), parent: 3, group: 5, is_zombie: false };
        assert_eq!(parse(7, stat), Some(process));
        assert_eq!(parse(7, "7 (a) S 3"), None);
        assert_eq!(parse(7, ""), None);
    }

    #[test]
    fn descendants_are_followed_and_strangers_are_not() {
        let process = |pid, parent| Process { identity: (pid, 1), parent, group: pid, is_zombie: pid == 4 };
        let table =
            [process(2, 1), process(3, 2), process(4, 3), process(5, 4), process(6, 1), process(7, 6)];
        let found = with_descendants(&table, &BTreeSet::from([(2, 1), (9, 1)]));
        assert_eq!(found, BTreeSet::from([(2, 1), (3, 1), (5, 1)]));
        assert_eq!(with_descendants(&table, &BTreeSet::from([(6, 2)])), BTreeSet::new());
    }

    #[test]
    fn a_line_of_ancestors_begins_with_the_process_and_ends_at_the_top() {
        let own = own_pid();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let line = ancestry(child.id() as i32).unwrap();
        assert_eq!(line[0].0, child.id() as i32);
        assert_eq!(line[1], look(own).unwrap().identity);
        assert!(look(line.last().unwrap().0).unwrap().parent == 0, "{line:?}");
        child.kill().unwrap();
        // A process that has ended has no line, whether somebody asked how or not.
        while look(child.id() as i32).is_some_and(|process| !process.is_zombie) {
            std::thread::yield_now();
        }
        assert_eq!(ancestry(child.id() as i32), None);
        child.wait().unwrap();
        assert_eq!(ancestry(child.id() as i32), None);
    }

    #[test]
    fn this_process_is_in_the_table() {
        let own = own_pid();
        assert!(table().unwrap().iter().any(|process| process.identity.0 == own && !process.is_zombie));
    }
}
