//! Standing requests: those that wait for something to happen, and so keep a connection for as long as they like.
//!
//! There are fewer of them than connections, so health, hooks, leases that are taken at once and everything else that is
//! short always find one; and fewer of each caller than of all.

use crate::api::{Caller, Problem};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use windlass_core::code::Code;
use windlass_core::id::Name;

/// How many there are at a time.
pub const ALL_MAX: usize = 768;
/// How many of one caller: of a token, or of the owner.
pub const CALLER_MAX: usize = 192;

/// Whose a request is.
type Who = (Name, Name);

/// All standing requests.
#[derive(Debug, Default)]
pub struct Standing {
    callers: Mutex<BTreeMap<Who, usize>>,
}

impl Standing {
    fn callers(&self) -> MutexGuard<'_, BTreeMap<Who, usize>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of a caller, until the place is dropped.
    ///
    /// # Errors
    /// There are as many as may be.
    pub fn enter(self: &Arc<Standing>, caller: &Caller) -> Result<Stand, Problem> {
        let who = (caller.tenant.clone(), caller.client.clone());
        let mut callers = self.callers();
        let all: usize = callers.values().sum();
        let own = callers.get(&who).copied().unwrap_or(0);
        let full = |what: &str, max: usize| {
            let text = format!(
                "{max} requests of {what} wait or read on already; end one of them, or ask without waiting"
            );
            Err(Problem::new(Code::CapExceeded, text))
        };
        if own >= CALLER_MAX {
            return full("this caller", CALLER_MAX);
        }
        if all >= ALL_MAX {
            return full("all callers", ALL_MAX);
        }
        callers.insert(who.clone(), own + 1);
        Ok(Stand { standing: self.clone(), who })
    }
}

/// The place of a standing request.
#[derive(Debug)]
pub struct Stand {
    standing: Arc<Standing>,
    who: Who,
}

impl Drop for Stand {
    fn drop(&mut self) {
        let mut callers = self.standing.callers();
        if let Some(own) = callers.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                callers.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_so_many_all_have_so_many_and_what_ends_makes_room() {
        let standing = Arc::<Standing>::default();
        let caller = |n: usize| Caller { client: Name::clean(&format!("t{n}")), ..Caller::local() };
        let mut all = Vec::new();
        for n in 0..ALL_MAX / CALLER_MAX {
            all.extend((0..CALLER_MAX).map(|_| standing.enter(&caller(n)).unwrap()));
            let refused = standing.enter(&caller(n)).unwrap_err();
            assert_eq!(refused.code, Code::CapExceeded);
        }
        assert!(standing.enter(&caller(99)).unwrap_err().detail.contains("all callers"));
        all.pop();
        assert!(standing.enter(&caller(99)).is_ok());
        drop(all);
        assert!(standing.callers().is_empty(), "nobody is kept who has none");
    }
}
