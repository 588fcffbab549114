//! Secrets byte by byte in hexadecimal, however the bytes are set apart: `5a 71`, `5a:71`, `\x5a\x71`, `0x5a, 0x71`,
//! `%5A%71`, `\u005a\u0071`, the dumps of `od -tx1`, `xxd` and `hexdump -C`, in any case and mixture.
//!
//! The text is read as pairs of digits with little between them, and what the pairs spell is looked for. It is read in three
//! ways: from the first digit of a run, from the second, where the first one belongs to something else, and as a dump. A
//! dump goes on in the next line behind an offset, and what stands beside the pairs after two blanks is not part of what
//! they spell. A secret that goes on over lines of a dump is masked with all that stands between, and to the end of the line.

use super::matcher::Matcher;
use std::collections::VecDeque;

/// How many bytes between two pairs mean nothing, at most: a column of text, the end of the line, the next line's offset.
pub(super) const BETWEEN_MAX: u32 = 96;
/// Fewer bytes of a secret before a line break are let go: what follows is masked from the next line on.
const SHOWN_MAX: usize = 2;
/// An offset has at least so many digits, and at most so many.
const OFFSET: std::ops::RangeInclusive<usize> = 6..=16;

/// The ways to read the text.
#[derive(Clone, Debug)]
pub(super) struct Pairs {
    readings: [Reading; 3],
    /// How many bytes of the line are masked at most, because it is one of a dump that ended with a secret.
    rest: u32,
}

/// One way to read the text, and how far it has become the beginning of a secret.
#[derive(Clone, Debug, Default)]
struct Reading {
    is_dump: bool,
    /// Whether a run's first digit belongs to something else, where nothing is spelt before it.
    is_late: bool,
    state: u32,
    /// Where the pairs of the beginning of a secret stand.
    places: VecDeque<u64>,
    /// The first digit of a pair.
    half: Option<(u8, u64)>,
    /// How many digits came in a row.
    run: usize,
    /// How many noughts of `\u00` may still come.
    noughts: u32,
    /// How many bytes came since the last pair.
    between: u32,
    /// Whether one of them was a line break.
    is_broken: bool,
    blanks: u32,
    /// In a dump: the digits of the line's first run, which may be an offset.
    first: Option<Vec<(u8, u64)>>,
    /// Whether the line has an offset.
    is_line: bool,
    /// Where the line begins.
    line: u64,
    /// The state, and how many pairs it has, before the column that began last.
    column: Option<(u32, usize)>,
    /// Whether the rest of the line is the text beside the pairs.
    is_beside: bool,
}

impl Default for Pairs {
    fn default() -> Pairs {
        let reading = |is_dump, is_late| Reading {
            is_dump,
            is_late,
            first: is_dump.then(Vec::new),
            ..Reading::default()
        };
        Pairs { readings: [reading(false, false), reading(false, true), reading(true, false)], rest: 0 }
    }
}

impl Pairs {
    /// Reads the byte at a place. Returns what is to be masked, up to this byte or the one before.
    pub(super) fn next(&mut self, matcher: &Matcher, byte: u8, place: u64) -> Option<(u64, u64)> {
        let is_break = matches!(byte, b'\n' | b'\r');
        self.rest = if is_break { 0 } else { self.rest.saturating_sub(1) };
        // One byte more, so that it is one mask with what stands before it.
        let mut masked = (self.rest > 0).then(|| (place.saturating_sub(1), place + 1));
        for reading in &mut self.readings {
            reading.read(matcher, byte, place, &mut |(from, to), goes_on| {
                let known = masked.unwrap_or((from, to));
                masked = Some((known.0.min(from), known.1.max(to)));
                if goes_on {
                    self.rest = BETWEEN_MAX;
                }
            });
        }
        masked
    }

    /// From which place on the text may still become a secret.
    pub(super) fn open(&self, matcher: &Matcher) -> Option<u64> {
        self.readings.iter().filter_map(|reading| reading.open(matcher)).min()
    }
}

/// What may stand between two pairs.
const fn is_between(byte: u8) -> bool {
    matches!(
        byte,
        b' ' | b'\t'
            | b'\n'
            | b'\r'
            | b':'
            | b'-'
            | b','
            | b';'
            | b'\\'
            | b'%'
            | b'&'
            | b'#'
            | b'x'
            | b'X'
            | b'u'
            | b'U'
            | b'{'
            | b'}'
            | b'"'
            | b'\''
    )
}

impl Reading {
    fn read(&mut self, matcher: &Matcher, byte: u8, place: u64, found: &mut impl FnMut((u64, u64), bool)) {
        match char::from(byte).to_digit(16) {
            Some(digit) if !self.is_beside => {
                let digit = digit as u8;
                self.run += 1;
                self.blanks = 0;
                match &mut self.first {
                    Some(first) if first.len() < *OFFSET.end() => first.push((digit, place)),
                    Some(_) => {
                        self.flush(matcher, found);
                        self.digit(matcher, digit, place, found);
                    }
                    None => self.digit(matcher, digit, place, found),
                }
            }
            Some(_) => self.pass(),
            None => self.other(matcher, byte, place, found),
        }
    }

    /// What may have been an offset is none.
    fn flush(&mut self, matcher: &Matcher, found: &mut impl FnMut((u64, u64), bool)) {
        for (digit, place) in self.first.take().unwrap_or_default() {
            self.digit(matcher, digit, place, found);
        }
    }

    fn digit(&mut self, matcher: &Matcher, digit: u8, place: u64, found: &mut impl FnMut((u64, u64), bool)) {
        if self.noughts > 0 {
            self.noughts -= 1;
            if digit == 0 {
                return;
            }
            self.noughts = 0;
            self.lose();
        }
        if self.is_late && self.run == 1 && self.places.is_empty() {
            return;
        }
        let Some((high, first)) = self.half.take() else {
            self.half = Some((digit, place));
            return;
        };
        if self.is_broken && self.places.len() < SHOWN_MAX {
            // They were let go with their line.
            self.places.iter_mut().for_each(|shown| *shown = first);
        }
        let next = matcher.next(self.state, high << 4 | digit);
        let depth = matcher.depth(next);
        if let Some((state, len)) = self.column.filter(|_| depth <= self.places.len()) {
            // It does not go on: this is the text beside the pairs.
            (self.state, self.is_beside) = (state, true);
            self.places.truncate(len);
            return self.pass();
        }
        (self.state, self.between, self.is_broken) = (next, 0, false);
        self.places.push_back(first);
        self.places.drain(..self.places.len() - depth);
        let len = matcher.match_len(next) as usize;
        if len > 0 {
            let from = self.places[depth - len];
            found((from, place + 1), self.is_dump && self.is_line && from < self.line);
        }
    }

    fn other(&mut self, matcher: &Matcher, byte: u8, place: u64, found: &mut impl FnMut((u64, u64), bool)) {
        let run = core::mem::take(&mut self.run);
        if matches!(byte, b'\n' | b'\r') {
            self.flush(matcher, found);
            return self.end_line(place);
        }
        if self.is_beside {
            return self.pass();
        }
        if self.first.as_ref().is_some_and(|first| !first.is_empty()) {
            if matches!(byte, b' ' | b':') && OFFSET.contains(&run) {
                (self.first, self.is_line) = (None, true);
                return self.pass();
            }
            self.flush(matcher, found);
        } else if self.first.is_some() && !matches!(byte, b' ' | b'\t') {
            self.first = None;
        }
        // `0x` begins a pair; another single digit is none.
        let half = self.half.take();
        let is_single = half.is_some_and(|(digit, _)| digit != 0 || !matches!(byte, b'x' | b'X'));
        if is_single || !is_between(byte) {
            return self.lose();
        }
        self.noughts = if matches!(byte, b'u' | b'U') { 2 } else { 0 };
        self.blanks = if matches!(byte, b' ' | b'\t') { self.blanks + 1 } else { 0 };
        if self.is_dump && (self.blanks == 2 || byte == b'\t') && !self.places.is_empty() {
            self.column = Some((self.state, self.places.len()));
        }
        self.pass();
    }

    fn end_line(&mut self, place: u64) {
        if self.places.len() < SHOWN_MAX {
            // Let go with their line.
            self.half = None;
        }
        (self.column, self.is_beside, self.is_line) = (None, false, false);
        (self.noughts, self.blanks, self.line, self.is_broken) = (0, 0, place + 1, true);
        self.first = self.is_dump.then(Vec::new);
        self.pass();
    }

    /// A byte that means nothing.
    fn pass(&mut self) {
        self.between += 1;
        if self.between > BETWEEN_MAX {
            self.column = None;
            self.lose();
        }
    }

    /// What was read is not the beginning of a secret; in a dump, what stands beside it is not.
    fn lose(&mut self) {
        self.half = None;
        if let Some((state, len)) = self.column {
            (self.state, self.is_beside) = (state, true);
            self.places.truncate(len);
            return;
        }
        self.state = Matcher::START;
        self.places.clear();
    }

    fn open(&self, matcher: &Matcher) -> Option<u64> {
        let first = self.first.iter().flatten().map(|(_, place)| *place).next();
        let half = self.half.map(|(_, place)| place);
        let is_let_go = self.is_broken && self.places.len() < SHOWN_MAX;
        let spelt = |(state, len): (u32, usize)| {
            let open = matcher.open_len(state) as usize;
            self.places.get(len - open).copied().filter(|_| !is_let_go && open > 0)
        };
        let now = spelt((self.state, self.places.len()));
        [first, half, now, self.column.and_then(spelt)].into_iter().flatten().min()
    }
}
