//! Salts for private values: an unpredictable generator, seeded by the operating system.
//!
//! A block is the SHA-256 of a secret key and a counter, and gives two salts. Neither the key nor another block
//! follows from a block that an observer sees.

use windlass_core::digest::{Digest, Salt};

/// How many random ids make the seed. Each has 62 bits from the operating system at the least.
const SEEDS: usize = 16;

/// Where salts come from.
pub(super) struct Salts {
    key: Digest,
    counter: u64,
    spare: Option<Salt>,
}

impl Salts {
    /// Draws a key from the operating system.
    pub(super) fn from_system() -> Salts {
        let seed: Vec<u8> = (0..SEEDS).flat_map(|_| uuid::Uuid::now_v7().into_bytes()).collect();
        Salts { key: Digest::of(&[b"windlass salts", &seed]), counter: 0, spare: None }
    }

    /// The next salt.
    pub(super) fn draw(&mut self) -> Salt {
        if let Some(salt) = self.spare.take() {
            return salt;
        }
        self.counter += 1;
        let Digest(block) = Digest::of(&[&self.key.0, &self.counter.to_le_bytes()]);
        let (mut first, mut second) = (Salt::default(), Salt::default());
        first.0.copy_from_slice(&block[..16]);
        second.0.copy_from_slice(&block[16..]);
        self.spare = Some(second);
        first
    }

    /// A number that no other store has: what tells its files from another's.
    pub(super) fn incarnation(&mut self) -> u64 {
        let Salt(bytes) = self.draw();
        bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_salt_comes_twice() {
        let (mut one, mut other) = (Salts::from_system(), Salts::from_system());
        let drawn: BTreeSet<Salt> = (0..1_000).flat_map(|_| [one.draw(), other.draw()]).collect();
        assert_eq!(drawn.len(), 2_000);
        assert_ne!(one.incarnation(), other.incarnation());
    }
}
