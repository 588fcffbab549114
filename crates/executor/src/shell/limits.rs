//! Limits: what the processes of a step may use of the system.
//!
//! Those in `confine` hold for every step. They are as wide as what systems give to people who log in, so that no honest
//! build meets them; they take away what a process of root, or of a service without limits, would have beyond that. The
//! ones in [`Limits`] hold where the configuration sets them. A step can lower its limits, and never raise them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::io;

const MIB: u64 = 1024 * 1024;

/// The most that a step can ever raise a limit to.
const WIDEST: [(Resource, u64); 5] = [
    // More open files than any program needs; a system has a bound on those of all processes together.
    (Resource::Nofile, 1024 * 1024),
    // Memory that cannot be swapped out.
    (Resource::Memlock, 64 * MIB),
    // Message queues, which outlive their processes.
    (Resource::Msgqueue, 819_200),
    // To go before others: no real-time scheduling, and no better `nice` than the usual one.
    (Resource::Rtprio, 0),
    (Resource::Nice, 20),
];

/// What each process of a step may use at most, where that is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The largest file that it can write, in MiB.
    pub file_mib: Option<u64>,
    /// With how many processes and threads of its user it can start another one. Root has no such limit.
    pub processes: Option<u64>,
}

impl Limits {
    /// Sets them for this process and for what it starts.
    pub(super) fn set(self) -> io::Result<()> {
        let file = self.file_mib.map(|mib| mib.saturating_mul(MIB));
        let limits = [(Resource::Fsize, file), (Resource::Nproc, self.processes)];
        limits.into_iter().try_for_each(|(resource, most)| most.map_or(Ok(()), |most| lower(resource, most)))
    }
}

/// Sets what holds for every step, for this process and for what it starts. A core file, with what was in memory, is not
/// written unless the step asks for one.
pub(super) fn confine() -> io::Result<()> {
    WIDEST.into_iter().try_for_each(|(resource, most)| lower(resource, most))?;
    let core = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
    Ok(setrlimit(Resource::Core, core)?)
}

/// Lowers a limit where it is higher. `None` is no limit.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let had = getrlimit(resource);
    let least = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    Ok(setrlimit(resource, Rlimit { current: least(had.current), maximum: least(had.maximum) })?)
}
