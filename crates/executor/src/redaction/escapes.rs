//! Secrets with characters escaped as one writer or another does: HTML's character references (`&lt;`, `&#60;`, `&#x3c;`),
//! per cent (`%3C`, `%3c`), and the backslash of shells, JSON and programs (`\'`, `\n`, `\u003c`, `\303`).
//!
//! Writers differ in what they escape and in how, and one text mixes the ways. So the text is read as its reader would read
//! it, once for each kind of escape, and the secrets themselves are looked for in what comes out. What is no escape stands
//! for itself.

use super::matcher::Matcher;
use std::collections::VecDeque;

/// The most bytes of an escape, from its first to its last. What goes on longer is none.
const ESCAPE_MAX: usize = 32;

/// HTML's names of the characters from U+00A0 on.
const LATIN: [&str; 96] = [
    "nbsp", "iexcl", "cent", "pound", "curren", "yen", "brvbar", "sect", "uml", "copy", "ordf", "laquo",
    "not", "shy", "reg", "macr", "deg", "plusmn", "sup2", "sup3", "acute", "micro", "para", "middot",
    "cedil", "sup1", "ordm", "raquo", "frac14", "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc",
    "Atilde", "Auml", "Aring", "AElig", "Ccedil", "Egrave", "Eacute", "Ecirc", "Euml", "Igrave", "Iacute",
    "Icirc", "Iuml", "ETH", "Ntilde", "Ograve", "Oacute", "Ocirc", "Otilde", "Ouml", "times", "Oslash",
    "Ugrave", "Uacute", "Ucirc", "Uuml", "Yacute", "THORN", "szlig", "agrave", "aacute", "acirc", "atilde",
    "auml", "aring", "aelig", "ccedil", "egrave", "eacute", "ecirc", "euml", "igrave", "iacute", "icirc",
    "iuml", "eth", "ntilde", "ograve", "oacute", "ocirc", "otilde", "ouml", "divide", "oslash", "ugrave",
    "uacute", "ucirc", "uuml", "yacute", "thorn", "yuml",
];

/// HTML's names of characters that every keyboard has.
const NAMED: [(&str, char); 37] = [
    ("amp", '&'),
    ("AMP", '&'),
    ("lt", '<'),
    ("LT", '<'),
    ("gt", '>'),
    ("GT", '>'),
    ("quot", '"'),
    ("QUOT", '"'),
    ("apos", '\''),
    ("Tab", '\t'),
    ("NewLine", '\n'),
    ("excl", '!'),
    ("num", '#'),
    ("dollar", '$'),
    ("percnt", '%'),
    ("lpar", '('),
    ("rpar", ')'),
    ("ast", '*'),
    ("plus", '+'),
    ("comma", ','),
    ("period", '.'),
    ("sol", '/'),
    ("colon", ':'),
    ("semi", ';'),
    ("equals", '='),
    ("quest", '?'),
    ("commat", '@'),
    ("lsqb", '['),
    ("lbrack", '['),
    ("bsol", '\\'),
    ("rsqb", ']'),
    ("rbrack", ']'),
    ("Hat", '^'),
    ("lowbar", '_'),
    ("grave", '`'),
    ("lbrace", '{'),
    ("rbrace", '}'),
];

/// A kind of escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Html,
    PerCent,
    Backslash,
}

/// What bytes from the first of an escape on are.
enum Escape {
    /// Nothing yet: more bytes decide.
    Open,
    /// A character, or a byte of one.
    Is(Spelt),
    /// No escape: the first byte stands for itself.
    None,
}

/// What an escape stands for.
enum Spelt {
    Byte(u8),
    Char(char),
}

/// The readings of a text, one for each kind of escape.
#[derive(Clone, Debug)]
pub(super) struct Escapes {
    readings: [Reading; 3],
}

/// A reading, and how far it has become the beginning of a secret.
#[derive(Clone, Debug)]
struct Reading {
    kind: Kind,
    state: u32,
    /// Where the bytes of the beginning of a secret stand, from the first on; an escape stands where it begins.
    places: VecDeque<u64>,
    /// What may become an escape, and where it begins.
    escape: Vec<u8>,
    escape_at: u64,
}

impl Default for Escapes {
    fn default() -> Escapes {
        let reading = |kind| Reading {
            kind,
            state: Matcher::START,
            places: VecDeque::new(),
            escape: Vec::new(),
            escape_at: 0,
        };
        Escapes { readings: [Kind::Html, Kind::PerCent, Kind::Backslash].map(reading) }
    }
}

impl Escapes {
    /// Reads the byte at a place, and tells of each secret that ends with it.
    pub(super) fn next(&mut self, matcher: &Matcher, byte: u8, place: u64, mut found: impl FnMut(u64, u64)) {
        for reading in &mut self.readings {
            reading.next(matcher, byte, place, &mut found);
        }
    }

    /// From which place on the text may still become a secret.
    pub(super) fn open(&self, matcher: &Matcher) -> Option<u64> {
        self.readings.iter().filter_map(|reading| reading.open(matcher)).min()
    }
}

impl Reading {
    fn next(&mut self, matcher: &Matcher, byte: u8, place: u64, found: &mut impl FnMut(u64, u64)) {
        if self.escape.is_empty() {
            if byte != self.kind.first() {
                self.spelt(matcher, byte, (place, place + 1), found);
                return;
            }
            self.escape_at = place;
        }
        self.escape.push(byte);
        // What is no escape may have the beginning of one in it. Each round takes a byte away at least.
        while !self.escape.is_empty() {
            let at = self.escape_at;
            let read =
                if self.escape[0] == self.kind.first() { self.kind.read(&self.escape) } else { Escape::None };
            match read {
                Escape::Open if self.escape.len() < ESCAPE_MAX => return,
                Escape::Open | Escape::None => {
                    let first = self.escape.remove(0);
                    self.escape_at += 1;
                    self.spelt(matcher, first, (at, at + 1), found);
                }
                Escape::Is(spelt) => {
                    self.escape.clear();
                    match spelt {
                        Spelt::Byte(byte) => self.spelt(matcher, byte, (at, place + 1), found),
                        Spelt::Char(c) => {
                            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                                self.spelt(matcher, byte, (at, place + 1), found);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Takes a byte that the text spells between two places.
    fn spelt(
        &mut self,
        matcher: &Matcher,
        byte: u8,
        (from, to): (u64, u64),
        found: &mut impl FnMut(u64, u64),
    ) {
        let is_blank = self.kind == Kind::PerCent && byte == b'+' && to == from + 1;
        let plain = matcher.next(self.state, byte);
        // Forms write a blank as a plus. It is one where no secret goes on with a plus.
        self.state = if is_blank && matcher.depth(plain) <= matcher.depth(self.state) {
            matcher.next(self.state, b' ')
        } else {
            plain
        };
        self.places.push_back(from);
        let depth = matcher.depth(self.state);
        self.places.drain(..self.places.len() - depth);
        let len = matcher.match_len(self.state) as usize;
        if len > 0 {
            found(self.places[depth - len], to);
        }
    }

    fn open(&self, matcher: &Matcher) -> Option<u64> {
        let open = matcher.open_len(self.state) as usize;
        let escape = (!self.escape.is_empty()).then_some(self.escape_at);
        self.places.get(self.places.len() - open).copied().filter(|_| open > 0).or(escape)
    }
}

impl Kind {
    /// The first byte of an escape.
    fn first(self) -> u8 {
        match self {
            Kind::Html => b'&',
            Kind::PerCent => b'%',
            Kind::Backslash => b'\\',
        }
    }

    fn read(self, escape: &[u8]) -> Escape {
        let rest = escape.get(1..).unwrap_or_default();
        match self {
            Kind::Html => html(rest),
            Kind::PerCent => digits(rest, 16, 2, |byte| u8::try_from(byte).ok().map(Spelt::Byte)),
            Kind::Backslash => backslash(rest),
        }
    }
}

fn html(rest: &[u8]) -> Escape {
    let (name, ended) = match rest {
        [name @ .., b';'] => (name, true),
        name => (name, false),
    };
    let may_be = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'#';
    if !name.iter().all(may_be) || ended && name.is_empty() {
        return Escape::None;
    }
    if !ended {
        return Escape::Open;
    }
    let name = core::str::from_utf8(name).unwrap_or_default();
    let numbered = match name.strip_prefix('#') {
        Some(digits) => match digits.strip_prefix(['x', 'X']) {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        },
        None => LATIN.iter().position(|latin| *latin == name).and_then(|at| u32::try_from(0xa0 + at).ok()),
    };
    let known = NAMED.iter().find(|(known, _)| *known == name).map(|(_, c)| *c);
    match known.or_else(|| char::from_u32(numbered?)) {
        Some(c) => Escape::Is(Spelt::Char(c)),
        None => Escape::None,
    }
}

fn backslash(rest: &[u8]) -> Escape {
    let byte = |byte| Escape::Is(Spelt::Byte(byte));
    let small = |value: u32| u8::try_from(value).ok().map(Spelt::Byte);
    let wide = |value: u32| char::from_u32(value).map(Spelt::Char);
    match rest {
        [] => Escape::Open,
        [b'n', ..] => byte(b'\n'),
        [b't', ..] => byte(b'\t'),
        [b'r', ..] => byte(b'\r'),
        [b'a', ..] => byte(7),
        [b'b', ..] => byte(8),
        [b'e' | b'E', ..] => byte(0x1b),
        [b'f', ..] => byte(0xc),
        [b'v', ..] => byte(0xb),
        [b'x', rest @ ..] => digits(rest, 16, 2, small),
        [b'u', b'{', rest @ ..] => match rest {
            [inside @ .., b'}'] => digits(inside, 16, inside.len().max(1), wide),
            _ if rest.iter().all(u8::is_ascii_hexdigit) => Escape::Open,
            _ => Escape::None,
        },
        [b'u', rest @ ..] => digits(rest, 16, 4, wide),
        [b'U', rest @ ..] => digits(rest, 16, 8, wide),
        [b'0'..=b'7', ..] => digits(rest, 8, 3, small),
        [other, ..] => byte(*other),
    }
}

/// Reads so many digits.
fn digits(rest: &[u8], radix: u32, count: usize, spelt: impl Fn(u32) -> Option<Spelt>) -> Escape {
    if rest.len() > count || !rest.iter().all(|byte| char::from(*byte).is_digit(radix)) {
        return Escape::None;
    }
    if rest.len() < count {
        return Escape::Open;
    }
    let value = core::str::from_utf8(rest).ok().and_then(|text| u32::from_str_radix(text, radix).ok());
    value.and_then(spelt).map_or(Escape::None, Escape::Is)
}
