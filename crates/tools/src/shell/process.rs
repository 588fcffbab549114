//! Processes as the system shows them: who is whose child, who carries which mark, and ending them safely.
//!
//! A process id says little: it is used again. A process is named by its id and its start time together, and a signal
//! goes through a descriptor of the process after both were compared, so it cannot reach a stranger.

use super::environment::MARK;
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

/// A process, for as long as it lives: its id, and when it started in clock ticks since the machine did.
pub(super) type Identity = (i32, u64);

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
    let prefix = format!("{MARK}=");
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

/// Ends all processes that carry a mark with this beginning, and their descendants, wherever they hang in the tree. It
/// is for what a killed keeper left behind. Whoever is left after the wait is returned.
pub(super) fn sweep(mark_prefix: &str, wait: Duration) -> io::Result<BTreeSet<Identity>> {
    let begin = Instant::now();
    loop {
        let table = table()?;
        let spared = with_ancestors(&table, own_pid());
        let marked = table
            .iter()
            .filter(|process| !process.is_zombie && !spared.contains(&process.identity.0))
            .filter(|process| mark(process.identity.0).is_some_and(|mark| mark.starts_with(mark_prefix)))
            .map(|process| process.identity)
            .collect();
        let left = with_descendants(&table, &marked);
        if left.is_empty() || begin.elapsed() > wait {
            return Ok(left);
        }
        let patient = begin.elapsed() < SWEEP_GRACE;
        let signals: &[Signal] = if patient { &[Signal::TERM, Signal::CONT] } else { &[Signal::KILL] };
        left.iter().for_each(|identity| signal(*identity, signals));
        std::thread::sleep(SWEEP_PAUSE);
    }
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
    fn this_process_is_in_the_table() {
        let own = own_pid();
        assert!(table().unwrap().iter().any(|process| process.identity.0 == own && !process.is_zombie));
    }
}
