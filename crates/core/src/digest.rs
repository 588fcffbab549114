//! SHA-256 digests and salts, and how they are written: lower-case hexadecimal.

use crate::wire::{self, Reader, Wire, Writer};
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

macro_rules! hex_bytes {
    ($( $(#[$meta:meta])* $name:ident[$len:literal] ),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// Reads exactly as many lower-case hexadecimal digits as it has.
            #[must_use]
            pub fn parse(text: &str) -> Option<$name> {
                let mut bytes = [0; $len];
                decode_hex(text.as_bytes(), &mut bytes).then_some($name(bytes))
            }
        }

        impl Default for $name {
            /// All noughts: the head of a stream without records.
            fn default() -> Self { $name([0; $len]) }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                wire::parsed(d, |text| $name::parse(text).ok_or("expected lower-case hexadecimal"))
            }
        }

        impl Wire for $name {
            fn kind() -> &'static str { "hex" }
            fn put(&self, out: &mut Writer<'_>) {
                let mut hex = [0; 2 * $len];
                encode_hex(&self.0, &mut hex);
                out.quoted_ascii(&[&hex]);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, wire::Error> {
                let read = |text: &[u8]| {
                    let mut bytes = [0; $len];
                    decode_hex(text, &mut bytes).then_some($name(bytes))
                };
                if let Some(found) = r.fixed(2 * $len, read) {
                    return Ok(found);
                }
                let text = r.text()?;
                $name::parse(&text).ok_or(wire::Error::Type { expected: "lower-case hexadecimal" })
            }
        }
    )+};
}

hex_bytes! {
    /// A SHA-256 digest: of a record's chain, an action, a runbook, a policy.
    Digest[32],
    /// Random bytes that keep a private value from being guessed from its digest.
    Salt[16],
    /// An ed25519 signature. The core carries it; the shell makes and checks it.
    Signature[64],
}

impl Digest {
    /// The digest of the parts, one after the other.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> Digest {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update(part);
        }
        Digest(hasher.finalize().into())
    }
}

fn encode_hex(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(out.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

fn decode_hex(text: &[u8], out: &mut [u8]) -> bool {
    /// The value of each digit; of any other character, one that is too high.
    const NIBBLES: [u8; 256] = {
        let mut nibbles = [0xff; 256];
        let mut i = 0;
        while i < 16 {
            nibbles[b"0123456789abcdef"[i] as usize] = i as u8;
            i += 1;
        }
        nibbles
    };
    if text.len() != out.len() * 2 {
        return false;
    }
    let mut bad = 0;
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let (high, low) = (NIBBLES[usize::from(pair[0])], NIBBLES[usize::from(pair[1])]);
        bad |= (high | low) & 0xf0;
        *byte = high << 4 | low & 15;
    }
    bad == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn sha256_of_abc_is_the_published_value() {
        let abc = Digest::of(&[b"a", b"bc"]);
        assert_eq!(abc.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::parse(&abc.to_string()), Some(abc));
    }

    #[test]
    fn hex_has_one_spelling() {
        assert_eq!(Salt::parse("00112233445566778899AABBCCDDEEFF"), None);
        assert_eq!(Salt::parse("00"), None);
        assert_eq!(Salt::parse("0011223344556677 899aabbccddeeff"), None);
    }
}
