//! Who asked for a run.

use super::Run;
use crate::id::Name;
use crate::requesters::add;
use alloc::vec::Vec;

impl Run {
    /// Who asked for it so far.
    #[must_use]
    pub fn requesters(&self) -> Vec<Name> {
        let mut all: Vec<Name> = self.born.trigger.user.iter().cloned().collect();
        add(&mut all, self.rare().changed_by.iter().cloned());
        all
    }

    /// Those of them who are not its requesters yet, as a fact says it.
    pub(crate) fn new_requesters(&self, more: Vec<Name>) -> Option<Vec<Name>> {
        let known = self.requesters();
        let new: Vec<Name> = more.into_iter().filter(|name| !known.contains(name)).collect();
        Some(new).filter(|new| !new.is_empty())
    }
}
