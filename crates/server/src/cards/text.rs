//! Harmless text: invisible characters are written out, and Slack's own syntax is escaped.

use std::fmt::Write as _;

/// Whether a character is invisible, or moves what stands around it: controls, directions, fillers, joiners, tags.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// A text on one line in which everything can be seen: what is hidden is written as `\u{202e}`.
#[must_use]
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_hidden(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// A visible text as it may stand between the back-ticks of a message in Slack. The three characters that Slack reads
/// are escaped as it asks for; a back-tick, which would end the quotation, is written out.
#[must_use]
pub fn mrkdwn(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '`' => out.push_str("\\u{60}"),
            // A line is made of visible text; should it not be, it is made so here.
            c if is_hidden(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// How long a text is for Slack, at most: units of UTF-16, of which some characters take two.
#[must_use]
pub fn units(text: &str) -> usize {
    text.encode_utf16().count()
}

/// The longest beginning of a text that has at most so many units, and the rest.
#[must_use]
pub fn split(text: &str, units_max: usize) -> (&str, &str) {
    let mut units = 0;
    for (at, c) in text.char_indices() {
        units += c.len_utf16();
        if units > units_max {
            return text.split_at(at);
        }
    }
    (text, "")
}
