//! The forms in which programs write a secret: as it is, base64, hexadecimal, escaped for URLs, JSON, HTML
//! and shells. Hexadecimal with something between the bytes is `pairs`'s.

use std::collections::BTreeSet;

/// Lines of a secret with at least so many bytes are looked for on their own: programs indent and prefix them.
const LINE_MIN: usize = 8;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The forms of a secret in digits, without repeats. Programs break them into lines where they like.
pub(super) fn in_digits(secret: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::new();
    for alphabet in [STANDARD, URL_SAFE] {
        for lead in 0..3 {
            forms.extend(base64_at(secret, lead, alphabet));
        }
    }
    forms.extend([b"0123456789abcdef", b"0123456789ABCDEF"].map(|digits| hex(secret, digits)));
    forms
}

/// All other forms of a secret, without repeats. Their number is fixed but for the lines of the secret.
pub(super) fn of(secret: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::from([secret.to_vec()]);
    forms.extend(url_escaped(secret));
    if let Ok(text) = core::str::from_utf8(secret) {
        forms.extend(json_escaped(text));
        forms.extend(html_escaped(text));
        forms.insert(text.replace('\'', r"'\''").into_bytes());
        forms.insert(text.replace('\n', "\r\n").into_bytes());
    }
    let lines = secret.split(|&b| b == b'\n' || b == b'\r');
    forms.extend(lines.map(<[u8]>::trim_ascii).filter(|line| line.len() >= LINE_MIN).map(<[u8]>::to_vec));
    forms
}

/// Base64 without padding.
fn base64(bytes: &[u8], alphabet: &[u8; 64]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..=group.len() {
            out.push(alphabet[(bits >> (18 - 6 * i) & 63) as usize]);
        }
    }
    out
}

/// The base64 of a longer text in which the secret follows `lead` other bytes, modulo three: the digits that the
/// secret alone decides, and the same up to the end where nothing follows it. A digit that it shares with the text
/// before or after it is not decided by it, and shows four bits of it at most.
fn base64_at(secret: &[u8], lead: usize, alphabet: &[u8; 64]) -> [Vec<u8>; 2] {
    let mut padded = vec![0; lead];
    padded.extend_from_slice(secret);
    let digits = base64(&padded, alphabet);
    let first = (lead * 8).div_ceil(6);
    let shared = padded.len() * 8 / 6;
    [digits[first..shared].to_vec(), digits[first..].to_vec()]
}

fn hex(bytes: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    bytes.iter().flat_map(|b| [digits[usize::from(b >> 4)], digits[usize::from(b & 15)]]).collect()
}

/// Percent-encodings. Programs differ in what they leave alone, in the case of the digits, and about blanks.
fn url_escaped(secret: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for left_alone in [&b"-._~"[..], b"-._~/", b"-._~!*'()", b"-._*", b"-._~:/?#[]@!$&'()*+,;="] {
        for digits in [b"0123456789ABCDEF", b"0123456789abcdef"] {
            for blank in [&b"%20"[..], b"+"] {
                forms.push(percent(secret, left_alone, digits, blank));
            }
        }
    }
    forms
}

fn percent(secret: &[u8], left_alone: &[u8], digits: &[u8; 16], blank: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(secret.len());
    for &byte in secret {
        match byte {
            b' ' => out.extend_from_slice(blank),
            _ if byte.is_ascii_alphanumeric() || left_alone.contains(&byte) => out.push(byte),
            _ => {
                out.push(b'%');
                out.extend_from_slice(&hex(&[byte], digits));
            }
        }
    }
    out
}

/// HTML and XML. Writers differ in whether they escape quotes, and how.
fn html_escaped(text: &str) -> Vec<Vec<u8>> {
    let plain = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut forms = vec![plain.clone().into_bytes()];
    for double in ["\"", "&quot;", "&#34;", "&#x22;"] {
        for single in ["'", "&#39;", "&#x27;", "&#039;", "&apos;"] {
            forms.push(plain.replace('"', double).replace('\'', single).into_bytes());
        }
    }
    forms
}

/// The inside of a JSON string. Some writers escape all that is not ASCII, some the slash, some what HTML reads.
fn json_escaped(text: &str) -> Vec<Vec<u8>> {
    let plain = json(text, |_| false);
    let slashed = plain.replace('/', "\\/");
    let ascii = json(text, |c| !c.is_ascii() || c == '\u{7f}');
    let html = json(text, |c| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}'));
    let quotes = json(text, |c| matches!(c, '<' | '>' | '&' | '\'') || !c.is_ascii());
    let doubled = json(&plain, |_| false);
    let mut forms = vec![plain, slashed, ascii, html, quotes, doubled];
    if !text.is_ascii() {
        // Every character escaped; where all are of one byte, `pairs` reads them.
        let all: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        forms.extend([all.to_uppercase().replace("\\U", "\\u"), all]);
    }
    forms.into_iter().map(String::into_bytes).collect()
}

fn json(text: &str, escape: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            _ if c < ' ' || escape(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(c),
        }
    }
    out
}
