//! Digits of a secret with line breaks between them: base64 and hexadecimal, wrapped at any width and indented.
//!
//! Line breaks, and blanks after one, mean nothing to the matcher. So that a line of text is not held back because its last
//! letter could be a digit of a secret that goes on in the next line, fewer than [`SHOWN_MAX`] digits before a break are
//! let go: what follows is found all the same, and masked from the next line on.

use super::matcher::Matcher;
use std::collections::VecDeque;

/// How many bytes between two digits mean nothing: a line break and what the next line is indented by.
pub(super) const BREAK_MAX: u32 = 64;

/// So many digits before a break are held back; fewer are not.
pub(super) const SHOWN_MAX: usize = 4;

/// How far the text so far is the beginning of digits of a secret.
#[derive(Clone, Debug, Default)]
pub(super) struct Folded {
    state: u32,
    /// How many bytes of a break came last.
    skipped: u32,
    /// Where in the stream the last digits stand, as many as may be the beginning of a secret.
    places: VecDeque<u64>,
}

impl Folded {
    /// Reads the byte at a place. Returns where a form of a secret begins that ends with it.
    pub(super) fn next(&mut self, matcher: &Matcher, byte: u8, place: u64) -> Option<u64> {
        let is_break = matches!(byte, b'\n' | b'\r') || self.skipped > 0 && matches!(byte, b' ' | b'\t');
        if is_break && self.state != Matcher::START && self.skipped < BREAK_MAX {
            self.skipped += 1;
            return None;
        }
        if self.skipped > 0 && self.places.len() < SHOWN_MAX {
            // They were let go with their line.
            self.places.iter_mut().for_each(|shown| *shown = place);
        }
        self.skipped = 0;
        self.state = matcher.next(self.state, byte);
        self.places.push_back(place);
        let depth = matcher.depth(self.state);
        self.places.drain(..self.places.len() - depth);
        let len = matcher.match_len(self.state) as usize;
        (len > 0).then(|| self.places[depth - len])
    }

    /// From which place on the text may still become a secret.
    pub(super) fn open(&self, matcher: &Matcher) -> Option<u64> {
        if self.skipped > 0 && self.places.len() < SHOWN_MAX {
            return None;
        }
        let open = matcher.open_len(self.state) as usize;
        self.places.get(self.places.len() - open).copied()
    }
}
