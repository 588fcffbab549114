//! Texts with expressions in them: where `${{` begins and `}}` ends, and where that stands in the file.

use super::problem::Place;
use super::yaml::Node;
use std::ops::Range;

/// What an expression begins with.
pub(super) const OPEN: &str = "${{";
/// What an expression ends with.
pub(super) const CLOSE: &str = "}}";

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// As it is.
    Literal(&'a str),
    /// An expression without its braces and the blanks around it, and the bytes of the text it takes up.
    Expr(&'a str, Range<usize>),
}

/// Splits a text up. Quotes inside of an expression may hold `}}`.
///
/// # Errors
/// Where an expression begins that does not end.
pub(super) fn split(text: &str) -> Result<Vec<Piece<'_>>, usize> {
    let mut pieces = Vec::new();
    let mut from = 0;
    while let Some(open) = text[from..].find(OPEN).map(|at| from + at) {
        if open > from {
            pieces.push(Piece::Literal(&text[from..open]));
        }
        let start = open + OPEN.len();
        let len = close(&text[start..]).ok_or(open)?;
        let source = &text[start..start + len];
        let blank = source.len() - source.trim_start().len();
        let trimmed = source.trim();
        let at = start + blank;
        pieces.push(Piece::Expr(trimmed, at..at + trimmed.len()));
        from = start + len + CLOSE.len();
    }
    if from < text.len() {
        pieces.push(Piece::Literal(&text[from..]));
    }
    Ok(pieces)
}

/// Where the expression ends: `}}` outside of quotes and of maps.
fn close(text: &str) -> Option<usize> {
    let mut quote: Option<char> = None;
    let mut escaped = false;
    let mut maps = 0_usize;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '{') => maps += 1,
            (None, '}') if maps > 0 => maps -= 1,
            (None, '}') if text[at..].starts_with(CLOSE) => return Some(at),
            (None, _) => {}
        }
    }
    None
}

/// Where a part of a text node stands in its file. A quoted or folded text is not written byte for byte, so the part is
/// looked for from `cursor` on; where it is not found, the whole node is meant.
#[must_use]
pub(super) fn locate(source: &str, node: &Node, part: &str, cursor: &mut usize) -> Place {
    let (start, end) = (node.at.start as usize, node.at.end as usize);
    let from = start.max(*cursor);
    let found = source.get(from..end).filter(|_| !part.is_empty()).and_then(|slice| slice.find(part));
    match found {
        Some(at) => {
            let begins = from + at;
            *cursor = begins + part.len();
            Place::new(node.at.file, begins, begins + part.len())
        }
        None => node.at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_split_at_expressions() {
        assert_eq!(split("plain"), Ok(vec![Piece::Literal("plain")]));
        assert_eq!(split("${{ a }}"), Ok(vec![Piece::Expr("a", 4..5)]));
        assert_eq!(
            split("x ${{a}}${{ '}}' }} y"),
            Ok(vec![
                Piece::Literal("x "),
                Piece::Expr("a", 5..6),
                Piece::Expr("'}}'", 12..16),
                Piece::Literal(" y")
            ])
        );
        assert_eq!(split("${{ {'a': {'b': 1}} }}"), Ok(vec![Piece::Expr("{'a': {'b': 1}}", 4..19)]));
        assert_eq!(split("${{ 'it\\'s }}' }}"), Ok(vec![Piece::Expr("'it\\'s }}'", 4..14)]));
        assert_eq!(split("a ${{ b"), Err(2));
        assert_eq!(split("${{ 'b }}"), Err(0));
        assert_eq!(split("$${{}}"), Ok(vec![Piece::Literal("$"), Piece::Expr("", 4..4)]));
    }

    proptest! {
        #[test]
        fn splitting_is_total(text in "([${}' ab\"\\\\]|é){0,40}") {
            if let Ok(pieces) = split(&text) {
                for piece in pieces {
                    if let Piece::Expr(source, range) = piece {
                        prop_assert_eq!(source, &text[range]);
                    }
                }
            }
        }
    }
}
