//! Requesters: who counts as having asked for what a run does, along the chain of its causes.
//!
//! ```text
//! person ─▶ run ─▶ its step's token, `emit`, `call` ─▶ event, item, signal ─▶ another run ─▶ …
//! ```
//!
//! Whoever asked for something may not approve it where policy or the setting says so, so no way to ask may lose them. The
//! set is a fact of the run: its trigger's user, and those whom `pipeline:created` and later facts name beside that one. It
//! only grows. A slot that the clock made has no requester. Somebody who is not known by a name of their own (the sender of
//! a hook, an executor) is [`UNNAMED`] in it.

use crate::id::Name;
use alloc::vec::Vec;

/// Stands for somebody who asked and is not known by a name of their own.
pub const UNNAMED: &str = "unnamed";
/// The most requesters that are known of a run or an item. One more counts as unnamed.
pub const REQUESTERS_MAX: usize = 64;

/// Adds those who are not in the set.
pub(crate) fn add(known: &mut Vec<Name>, more: impl IntoIterator<Item = Name>) {
    for name in more {
        // One place is kept for all who do not fit.
        let fits = known.len() + 1 < REQUESTERS_MAX || name.as_str() == UNNAMED;
        let name = if fits || known.contains(&name) { name } else { Name::clean(UNNAMED) };
        if !known.contains(&name) {
            known.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::name;

    #[test]
    fn a_set_has_a_bound_and_whoever_does_not_fit_is_unnamed() {
        let mut known = Vec::new();
        add(&mut known, (0..REQUESTERS_MAX + 9).map(|n| name(&alloc::format!("p{n}"))));
        assert_eq!(known.len(), REQUESTERS_MAX);
        assert_eq!(known.last().map(Name::as_str), Some(UNNAMED));
        add(&mut known, [name("p0"), name("late"), name(UNNAMED)]);
        assert_eq!(known.len(), REQUESTERS_MAX, "those who are known change nothing");
        assert_eq!(known[0], name("p0"), "nobody is forgotten");
    }
}
