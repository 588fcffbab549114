//! A cache of names, for whoever reads many records.
//!
//! A log says the same few names over and over: a tenant, a runbook's steps, an executor. Each name has one slot,
//! chosen by its text; what is found there is shared, what is not takes the slot. So the cache is bounded, and names
//! that come once push out no more than one another.

use super::{Error, Name};
use crate::wire::same;
use alloc::vec::Vec;

/// How many names are kept.
const SLOTS: usize = 256;
/// Longer names are rarely said twice.
const LEN_MAX: usize = 64;

/// The names that were read last.
#[derive(Clone, Debug, Default)]
pub struct Names(Vec<Option<Name>>);

impl Names {
    /// The name with this text.
    ///
    /// # Errors
    /// [`Error::Name`] where it is none.
    #[inline]
    pub fn get(&mut self, text: &str) -> Result<Name, Error> {
        if text.len() > LEN_MAX {
            return Name::new(text);
        }
        let slot = self.slot(text);
        match slot {
            Some(name) if same(name.as_str().as_bytes(), text.as_bytes()) => Ok(name.clone()),
            Some(_) | None => Ok(slot.insert(Name::new(text)?).clone()),
        }
    }

    /// Makes the name the one with the same text that came before.
    pub fn share(&mut self, name: &mut Name) {
        if name.as_str().len() > LEN_MAX {
            return;
        }
        match self.slot(name.as_str()) {
            Some(known) if known == name => name.clone_from(known),
            slot @ (Some(_) | None) => *slot = Some(name.clone()),
        }
    }

    fn slot(&mut self, text: &str) -> &mut Option<Name> {
        if self.0.is_empty() {
            self.0.resize(SLOTS, None);
        }
        &mut self.0[slot(text.as_bytes())]
    }
}

/// The slot of a text: from its length, and its first and last eight bytes. It need not be even, only quick.
#[inline]
fn slot(text: &[u8]) -> usize {
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let (first, last) = match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        (None, _) | (_, None) => (word(text), 0),
    };
    let mixed = (first ^ last.rotate_left(23) ^ text.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use std::string::String;

    #[test]
    fn a_name_that_comes_again_is_shared_and_the_cache_is_bounded() {
        let mut names = Names::default();
        for text in ["default", "x", "a-longer-name-than-eight", "step-1", &"y".repeat(LEN_MAX)] {
            let (first, again) = (names.get(text).unwrap(), names.get(text).unwrap());
            assert_eq!(first.as_str(), text);
            assert!(Arc::ptr_eq(&first.0, &again.0), "{text}");
        }
        for n in 0..10_000 {
            let text = alloc::format!("name-{n}");
            assert_eq!(names.get(&text).unwrap().as_str(), text);
        }
        assert_eq!(names.0.len(), SLOTS);
        let long = String::from("z").repeat(LEN_MAX + 1);
        assert!(!Arc::ptr_eq(&names.get(&long).unwrap().0, &names.get(&long).unwrap().0));
        for bad in ["", "a\nb", &"x".repeat(Name::LEN_MAX + 1)] {
            assert!(names.get(bad).is_err());
        }
    }
}
