//! Redaction of secrets: no registered secret leaves the process, in whichever form and however it is cut into chunks.
//!
//! A secret is registered once, before the first byte that could hold it is read. It is then looked for as it is and in
//! the forms that programs commonly write it in (`forms`, `pairs`, `escapes`). What is found is replaced with `***`; occurrences that
//! overlap are replaced together, so the result does not depend on which one was found first.
//!
//! ```text
//!  bytes ─▶ Stream::push ─▶ matcher ─▶ bytes that cannot be part of a secret any more
//!                             └ holds back what may still become one: less than the longest form
//! ```
//!
//! What cannot be found is a secret that a program transforms in another way (encrypts, compresses, reverses), and a
//! secret of asterisks, which looks like its own replacement.

mod escapes;
mod folded;
mod forms;
mod matcher;
mod pairs;
#[cfg(test)]
mod tests;

use escapes::Escapes;
use folded::Folded;
use matcher::Matcher;
use pairs::Pairs;
use serde_json::Value;
use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

/// What stands in the place of a secret.
pub const MASK: &str = "***";

/// Why a secret is not looked for. Text that holds it would show it, so the owner should be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// So short that it would be found everywhere by chance.
    #[error(
        "the secret `{name}` has fewer than {min} bytes and is not redacted: it would be found by chance; use a longer one",
        min = Redactor::LEN_MIN
    )]
    Short {
        /// The secret's name.
        name: String,
    },
    /// Longer than a secret is.
    #[error(
        "the secret `{name}` has more than {max} bytes and cannot be redacted: keep a key to the data in the secret, not the data",
        max = Redactor::LEN_MAX
    )]
    Long {
        /// The secret's name.
        name: String,
    },
    /// All secrets together are more than is looked for at once.
    #[error(
        "the secret `{name}` is one too many: at most {max} bytes of secrets can be redacted at once; give each step only those it needs",
        max = Redactor::TOTAL_MAX
    )]
    Full {
        /// The secret's name.
        name: String,
    },
}

/// The secrets to look for. Registering is cheap; the first use after it builds the matcher.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: BTreeSet<Vec<u8>>,
    total_bytes: usize,
    matchers: OnceLock<Arc<Matchers>>,
}

/// The forms of all secrets, compiled.
#[derive(Clone, Debug)]
struct Matchers {
    plain: Matcher,
    /// Forms in digits, which may be broken into lines.
    digits: Matcher,
    /// The secrets themselves, for what pairs of digits and escapes spell.
    spelt: Matcher,
}

impl Redactor {
    /// The fewest bytes of a secret.
    pub const LEN_MIN: usize = 4;
    /// The most bytes of one secret.
    pub const LEN_MAX: usize = 16 * 1024;
    /// The most bytes of all secrets together.
    pub const TOTAL_MAX: usize = 64 * 1024;

    /// A redactor without secrets, which changes nothing.
    #[must_use]
    pub fn new() -> Redactor {
        Redactor::default()
    }

    /// Registers a secret. Line breaks at its end are not part of it: files end in them, and programs drop them.
    ///
    /// # Errors
    /// A [`Refusal`], when it is too short, too long, or too much together with the others. The rest still holds.
    pub fn register(&mut self, name: &str, secret: &[u8]) -> Result<(), Refusal> {
        let end = secret.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |last| last + 1);
        let secret = &secret[..end];
        if secret.len() < Self::LEN_MIN {
            return Err(Refusal::Short { name: name.to_owned() });
        }
        if secret.len() > Self::LEN_MAX {
            return Err(Refusal::Long { name: name.to_owned() });
        }
        if self.secrets.contains(secret) {
            return Ok(());
        }
        if self.total_bytes + secret.len() > Self::TOTAL_MAX {
            return Err(Refusal::Full { name: name.to_owned() });
        }
        self.total_bytes += secret.len();
        self.secrets.insert(secret.to_vec());
        self.matchers = OnceLock::new();
        Ok(())
    }

    /// Whether nothing is looked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// Begins to redact a stream of bytes that come in chunks.
    #[must_use]
    pub fn stream(&self) -> Stream {
        let all = |of: fn(&[u8]) -> BTreeSet<Vec<u8>>| {
            Matcher::new(&self.secrets.iter().flat_map(|secret| of(secret)).collect())
        };
        let compile = || {
            let spelt = Matcher::new(&self.secrets);
            Arc::new(Matchers { plain: all(forms::of), digits: all(forms::in_digits), spelt })
        };
        Stream {
            matchers: Arc::clone(self.matchers.get_or_init(compile)),
            state: Matcher::START,
            folded: Folded::default(),
            pairs: Pairs::default(),
            escapes: Escapes::default(),
            held: Vec::new(),
            begin: 0,
            found: VecDeque::new(),
            masked_to: 0,
        }
    }

    /// Redacts bytes that are there as a whole.
    #[must_use]
    pub fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        let mut stream = self.stream();
        stream.push(bytes, &mut out);
        stream.finish(&mut out);
        out
    }

    /// Redacts text that is there as a whole.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        if self.is_empty() {
            return text.to_owned();
        }
        // A secret of arbitrary bytes can begin inside of a character; what is left of that one is replaced.
        String::from_utf8_lossy(&self.bytes(text.as_bytes())).into_owned()
    }

    /// Redacts a JSON value: its strings, its keys, and numbers whose digits are a secret.
    ///
    /// A secret can also be spread over the structure (a secret that is JSON itself). Then the written value is
    /// redacted, and what is no JSON any more becomes the text `***`.
    #[must_use]
    pub fn value(&self, value: &Value) -> Value {
        if self.is_empty() {
            return value.clone();
        }
        let leaves = self.leaves(value);
        let written = leaves.to_string();
        let redacted = self.text(&written);
        if redacted == written {
            return leaves;
        }
        serde_json::from_str(&redacted).unwrap_or_else(|_| Value::String(MASK.to_owned()))
    }

    /// The depth is that of a value that a parser with a limit made, so the recursion is bounded.
    fn leaves(&self, value: &Value) -> Value {
        match value {
            Value::Null | Value::Bool(_) => value.clone(),
            Value::Number(number) => {
                let written = number.to_string();
                let redacted = self.text(&written);
                if redacted == written { value.clone() } else { Value::String(redacted) }
            }
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.leaves(item)).collect()),
            Value::Object(fields) => Value::Object(
                fields.iter().map(|(key, value)| (self.text(key), self.leaves(value))).collect(),
            ),
        }
    }
}

/// One stream of bytes under redaction. It holds back fewer bytes than the longest form of a secret has, and the breaks
/// between them.
#[derive(Clone, Debug)]
pub struct Stream {
    matchers: Arc<Matchers>,
    state: u32,
    folded: Folded,
    pairs: Pairs,
    escapes: Escapes,
    /// What was read and not yet passed on; its first byte is the stream's byte `begin`.
    held: Vec<u8>,
    begin: u64,
    /// What was found and not yet passed on: disjoint ranges of the stream in their order.
    found: VecDeque<(u64, u64)>,
    /// Up to where a mask that is already written reaches.
    masked_to: u64,
}

impl Stream {
    /// Reads a chunk and appends to `out` what is certain by now.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        if self.matchers.plain.is_empty() {
            out.extend_from_slice(chunk);
            return;
        }
        let mut end = self.begin + self.held.len() as u64;
        for &byte in chunk {
            self.held.push(byte);
            end += 1;
            let matchers = Arc::clone(&self.matchers);
            self.state = matchers.plain.next(self.state, byte);
            let match_len = matchers.plain.match_len(self.state);
            if match_len > 0 {
                self.add(end - u64::from(match_len), end);
            }
            if let Some(start) = self.folded.next(&matchers.digits, byte, end - 1) {
                self.add(start, end);
            }
            if let Some((start, end)) = self.pairs.next(&matchers.spelt, byte, end - 1) {
                self.add(start, end);
            }
            let mut escaped = Vec::new();
            self.escapes.next(&matchers.spelt, byte, end - 1, |start, end| escaped.push((start, end)));
            for (start, end) in escaped {
                self.add(start, end);
            }
        }
        let open = end - u64::from(self.matchers.plain.open_len(self.state));
        let digits = self.folded.open(&self.matchers.digits).unwrap_or(end);
        let spelt = self.pairs.open(&self.matchers.spelt).unwrap_or(end);
        let escaped = self.escapes.open(&self.matchers.spelt).unwrap_or(end);
        self.release(open.min(digits).min(spelt).min(escaped), out);
    }

    /// Ends the stream: nothing can become a secret any more.
    pub fn finish(mut self, out: &mut Vec<u8>) {
        let end = self.begin + self.held.len() as u64;
        self.release(end, out);
    }

    /// How many bytes are held back.
    #[must_use]
    pub fn held_len(&self) -> usize {
        self.held.len()
    }

    /// Notes a find and joins it with those it overlaps. What touches it stays a find of its own. A find can come after
    /// later ones: digits that may be the offset of a dump are read only when the first byte behind them has come.
    fn add(&mut self, mut start: u64, mut end: u64) {
        let from = self.found.partition_point(|&(_, before)| before <= start);
        let to = self.found.partition_point(|&(after, _)| after < end);
        for (first, last) in self.found.drain(from..to.max(from)) {
            (start, end) = (start.min(first), end.max(last));
        }
        self.found.insert(from, (start, end));
    }

    /// Passes on everything before `until`.
    fn release(&mut self, until: u64, out: &mut Vec<u8>) {
        let mut at = self.begin;
        while let Some(&(start, end)) = self.found.front() {
            if start >= until {
                break;
            }
            // A find that overlaps the mask before it is under the same mask.
            let joined = start < self.masked_to;
            let plain_to = start.max(at);
            out.extend_from_slice(self.slice(at, plain_to));
            if !joined {
                out.extend_from_slice(MASK.as_bytes());
            }
            self.masked_to = end;
            at = plain_to.max(end.min(until));
            if end > until {
                // The rest of it is read but not passed yet; it goes on as a find of its own under the same mask.
                self.found[0] = (until, end);
                break;
            }
            self.found.pop_front();
        }
        if at < until {
            out.extend_from_slice(self.slice(at, until));
        }
        self.held.drain(..(until - self.begin) as usize);
        self.begin = until;
    }

    fn slice(&self, from: u64, to: u64) -> &[u8] {
        let from = (from - self.begin) as usize;
        let to = (to - self.begin) as usize;
        &self.held[from..to.max(from)]
    }
}
