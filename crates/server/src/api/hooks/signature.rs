//! Signatures of deliveries: HMAC over raw bytes, compared in constant time.
//!
//! The bytes are those that came, never a document that was read and written again. Every secret that may be good is
//! tried, and where there is none a signature is computed all the same, so that neither the answer nor its time tells
//! whether a tenant is there.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Sha256, Sha512};
use std::borrow::Cow;
use windlass_executor::config::{Algorithm, Encoding};

/// What is signed with where nobody has a secret. It proves nothing, and its result is thrown away.
const NOBODY: &str = "nobody signs with this";

/// Whether one of the secrets signed these parts, in their order.
pub(super) fn holds(algorithm: Algorithm, secrets: &[String], parts: &[&[u8]], signature: &[u8]) -> bool {
    let one = |secret: &str| match algorithm {
        Algorithm::Sha256 => Hmac::<Sha256>::new_from_slice(secret.as_bytes()).is_ok_and(|mac| {
            parts.iter().fold(mac, |mac, part| mac.chain_update(part)).verify_slice(signature).is_ok()
        }),
        Algorithm::Sha512 => Hmac::<Sha512>::new_from_slice(secret.as_bytes()).is_ok_and(|mac| {
            parts.iter().fold(mac, |mac, part| mac.chain_update(part)).verify_slice(signature).is_ok()
        }),
    };
    let real = secrets.iter().filter(|secret| !secret.is_empty());
    let (tried, good) = real.fold((false, false), |(_, good), secret| (true, good | one(secret)));
    if !tried {
        let _ = one(NOBODY);
    }
    good
}

/// The bytes of a signature, as it is written.
pub(super) fn decode(encoding: Encoding, text: &str) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Hex => hex(text),
        Encoding::Base64 => base64(text),
    }
}

/// The longest signature: SHA-512 in hexadecimal.
const TEXT_LEN_MAX: usize = 128;

fn hex(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || text.len() > TEXT_LEN_MAX || !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok();
    text.as_bytes().chunks_exact(2).map(pair).collect()
}

fn base64(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || text.len() > TEXT_LEN_MAX || !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0_u32, 0_u32);
    for byte in digits.bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held << 6) | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    // Bits that belong to no byte must be noughts, or one signature would have two spellings.
    (held == 0).then_some(bytes)
}

/// The most fields of a form.
const FIELDS_MAX: usize = 64;

/// The fields of a form (`a=b&c=d`). One that comes twice has no meaning that two readers would share, and is refused.
pub(super) fn form(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut fields: Vec<(String, String)> = Vec::new();
    for part in text.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let (name, value) = (unescape(name)?, unescape(value)?);
        if fields.len() >= FIELDS_MAX || fields.iter().any(|(known, _)| *known == name) {
            return None;
        }
        fields.push((name, value));
    }
    Some(fields)
}

/// A part of a path as it is meant: escapes are read, and a plus is a plus.
pub(in crate::api) fn unescape_path(text: &str) -> Option<String> {
    unescape(&text.replace('+', "%2B"))
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = rest.get(..2).map(String::from_utf8_lossy).unwrap_or(Cow::Borrowed(""));
                bytes.extend(hex(&digits)?);
                rest = rest.get(2..)?;
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computed with another implementation.
    const BODY: &[u8] = b"Hello, World!";
    const SECRET: &str = "It's a Secret to Everybody";
    const HEX: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    #[test]
    fn a_published_example_holds_and_nothing_near_it_does() {
        let good = decode(Encoding::Hex, HEX).unwrap();
        let secrets = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let check = |list: &[&str], body: &[&[u8]]| holds(Algorithm::Sha256, &secrets(list), body, &good);
        assert!(check(&[SECRET], &[BODY]));
        assert!(check(&["old", SECRET], &[b"Hello, ", b"World!"]), "any of the secrets, in parts");
        assert!(!check(&["old"], &[BODY]) && !check(&[], &[BODY]) && !check(&[""], &[BODY]));
        assert!(!check(&[SECRET], &[b"Hello, World! "]));
        for cut in [0, 20, 31] {
            assert!(
                !holds(Algorithm::Sha256, &secrets(&[SECRET]), &[BODY], &good[..cut]),
                "{cut} bytes of it"
            );
        }
        assert!(!holds(Algorithm::Sha512, &secrets(&[SECRET]), &[BODY], &good));
        // An empty secret would let everybody in.
        let empty = Hmac::<Sha256>::new_from_slice(b"").unwrap().chain_update(BODY).finalize().into_bytes();
        assert!(!holds(Algorithm::Sha256, &secrets(&[""]), &[BODY], &empty));
        let nobody = Hmac::<Sha256>::new_from_slice(NOBODY.as_bytes()).unwrap().chain_update(BODY).finalize();
        assert!(!holds(Algorithm::Sha256, &[], &[BODY], &nobody.into_bytes()));
    }

    #[test]
    fn signatures_have_one_spelling() {
        assert_eq!(decode(Encoding::Base64, "aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(decode(Encoding::Base64, "aGVsbG8h"), Some(b"hello!".to_vec()));
        for bad in ["", "aGVsbG8", "aGVsbG9=", "aGV bG8=", "a===", "====", "aGVsbG8-", &"A".repeat(132)] {
            assert_eq!(decode(Encoding::Base64, bad), None, "{bad}");
        }
        assert_eq!(decode(Encoding::Hex, "00fF"), Some(vec![0, 255]));
        for bad in ["", "0", "0g", "+1", " 00", &"0".repeat(130)] {
            assert_eq!(decode(Encoding::Hex, bad), None, "{bad}");
        }
    }

    #[test]
    fn forms_are_read_strictly() {
        let read = |text: &str| form(text.as_bytes());
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(read("a=b+c%26&d"), Some(vec![pair("a", "b c&"), pair("d", "")]));
        for bad in ["a=1&a=2", "a=%", "a=%4", "a=%zz", "a=%ff", "a=%+1"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(read(&(0..=FIELDS_MAX).map(|n| format!("f{n}=1&")).collect::<String>()), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_them_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,150}") {
            let _ = (form(&bytes), hex(&text), base64(&text));
        }
    }
}
