//! What of a Rust file is code: comments and literals blanked out, tests and functions found by their braces.
//!
//! This is no parser. It knows enough of the language to keep words in comments and strings apart from words
//! in code, and to find where an item ends; what the rules need and no more.

use std::ops::Range;

/// The text with comments and the contents of literals replaced by blanks. Lines and columns stay.
pub(crate) fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = at + literal_or_comment(&bytes[at..], at.checked_sub(1).map(|before| bytes[before]));
        if end == at {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(bytes[at..end].iter().map(|&b| if b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    // Only whole comments and literals were blanked, so what is left is still text.
    String::from_utf8_lossy(&out).into_owned()
}

/// The length of the comment or literal that begins here, or 0.
fn literal_or_comment(rest: &[u8], before: Option<u8>) -> usize {
    let after_word = before.is_some_and(|b| b == b'_' || b.is_ascii_alphanumeric());
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'r', b'"' | b'#', ..] if !after_word => raw_string(&rest[1..]).map_or(0, |len| len + 1),
        [b'b', b'r', b'"' | b'#', ..] if !after_word => raw_string(&rest[2..]).map_or(0, |len| len + 2),
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        // A character, or else a lifetime.
        [b'\'', first, ..] => {
            let len = 1 + utf8_len(*first);
            if rest.get(len) == Some(&b'\'') { len + 1 } else { 0 }
        }
        _ => 0,
    }
}

fn utf8_len(first: u8) -> usize {
    match first.leading_ones() {
        0 | 1 => 1,
        ones => ones as usize,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of `#*"…"#*`, or nothing where this is a raw identifier.
fn raw_string(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|&&b| b == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(hashes + 1, b'#');
    let body = hashes + 1;
    let found = rest[body..].windows(end.len()).position(|window| window == end);
    Some(found.map_or(rest.len(), |at| body + at + end.len()))
}

/// The line, from 1, of a place in the text.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1
}

/// Where `word` stands in the masked text as a word of its own.
pub(crate) fn words<'a>(masked: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |b: Option<&u8>| b.is_some_and(|b| *b == b'_' || b.is_ascii_alphanumeric());
    masked.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = masked.as_bytes();
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let starts_word = word.as_bytes().first().is_some_and(|b| b.is_ascii_alphanumeric());
        let ends_word = word.as_bytes().last().is_some_and(|b| b.is_ascii_alphanumeric());
        !(starts_word && part(before) || ends_word && part(bytes.get(at + word.len())))
    })
}

/// The items marked `#[cfg(test)]` or `#[test]` in the masked text.
pub(crate) fn tests(masked: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    for mark in ["#[cfg(test)]", "#[test]"] {
        for (at, _) in masked.match_indices(mark) {
            spans.push(at..item_end(masked, at + mark.len()));
        }
    }
    spans
}

/// The functions whose name begins with `name`.
pub(crate) fn functions(masked: &str, name: &str) -> Vec<Range<usize>> {
    let head = format!("fn {name}");
    masked.match_indices(&head).map(|(at, _)| at..item_end(masked, at)).collect()
}

/// Where the item that begins at `from` ends: at its `;`, or at the brace that closes its body.
fn item_end(masked: &str, from: usize) -> usize {
    let (mut curly, mut other) = (0usize, 0usize);
    for (i, b) in masked.bytes().enumerate().skip(from) {
        match b {
            b'{' => curly += 1,
            b'}' => {
                curly = curly.saturating_sub(1);
                if curly == 0 {
                    return i + 1;
                }
            }
            b'(' | b'[' => other += 1,
            b')' | b']' => other = other.saturating_sub(1),
            b';' if curly == 0 && other == 0 => return i + 1,
            _ => {}
        }
    }
    masked.len()
}

/// Whether all of a file is for tests.
pub(crate) fn is_test_file(path: &str) -> bool {
    let mut parts = path.split('/').rev();
    let stem = parts.next().and_then(|name| name.strip_suffix(".rs")).unwrap_or_default();
    stem == "tests"
        || stem == "testing"
        || stem.ends_with("_tests")
        || parts.any(|part| part == "tests" || part == "testing")
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let text =
            "a \"b // c\" d // e\nf 'g' '\\'' 'h /* i\n /* j */ k */ l r#\"m \" n\"# o br\"p\" q 'é' r";
        let masked = mask(text);
        for gone in ["b", "c", "e", "g", "i", "j", "k", "m", "n", "p", "é"] {
            assert!(!masked.split_whitespace().any(|w| w == gone), "{gone} in {masked:?}");
        }
        for kept in ["a", "d", "f", "'h", "l", "o", "q", "r"] {
            assert!(masked.split_whitespace().any(|w| w == kept), "{kept} not in {masked:?}");
        }
        assert_eq!(masked.lines().count(), text.lines().count());
    }

    #[test]
    fn items_end_where_their_braces_do() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { c() }\n}\nfn apply(x: [u8; 2]) { d }\nfn e() {}";
        let tests = tests(text);
        assert_eq!(tests.len(), 1);
        assert!(text[tests[0].clone()].ends_with("c() }\n}"));
        let apply = functions(text, "apply");
        assert_eq!(&text[apply[0].clone()], "fn apply(x: [u8; 2]) { d }");
        let one_line = "#[cfg(test)]\nextern crate std;\nfn f() {}";
        assert_eq!(&one_line[super::tests(one_line)[0].clone()], "#[cfg(test)]\nextern crate std;");
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words("rand operand rand_core x.rand", "rand").count(), 2);
        assert_eq!(words("std::a nostd::b", "std::").count(), 1);
    }

    #[test]
    fn test_files_are_known_by_their_names() {
        assert!(is_test_file("crates/core/tests/wire.rs"));
        assert!(is_test_file("crates/core/src/testing.rs"));
        assert!(is_test_file("crates/core/src/lock/tests.rs"));
        assert!(!is_test_file("crates/core/src/lock.rs"));
    }
}
