//! A lack of room on this machine: of descriptors, processes, memory or disk. What could not begin for it is tried later.

use rustix::io::Errno;
use std::io;
use windlass_core::attempt::Report;
use windlass_core::time::Span;

/// When an attempt is tried again that could not be begun, and how often that doubles: up to half a minute.
const WAIT: Span = Span::secs(1);
const DOUBLINGS: u32 = 5;

/// Whether the system says that it lacks room.
#[must_use]
pub fn is_lacking(error: &io::Error) -> bool {
    let lacks =
        [Errno::MFILE, Errno::NFILE, Errno::AGAIN, Errno::NOMEM, Errno::NOBUFS, Errno::NOSPC, Errno::DQUOT];
    lacks.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What is reported of an attempt that could not be begun. The more often that happens, the longer it waits.
#[must_use]
pub fn postponed(reason: String, attempt: u32) -> Report {
    let wait = WAIT.0 << attempt.saturating_sub(1).min(DOUBLINGS);
    // Not all at once again: up to a fifth more.
    let spread = u64::try_from(crate::clock::fresh() % 1_000).unwrap_or(0);
    Report::Postponed { reason, after: Span(wait + wait * spread / 5_000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_try_waits_longer_up_to_a_bound() {
        for (attempt, wait) in
            [(0, 1_000), (1, 1_000), (2, 2_000), (5, 16_000), (6, 32_000), (1_000_000, 32_000)]
        {
            let Report::Postponed { after, .. } = postponed(String::new(), attempt) else {
                panic!("postponed")
            };
            assert!((wait..=wait * 6 / 5).contains(&after.0), "{attempt}: {after:?}");
        }
    }

    #[test]
    fn a_lack_of_room_is_told_from_other_errors() {
        assert!(is_lacking(&Errno::MFILE.into()) && is_lacking(&Errno::NOSPC.into()));
        assert!(!is_lacking(&Errno::NOENT.into()) && !is_lacking(&io::Error::other("x")));
    }
}
