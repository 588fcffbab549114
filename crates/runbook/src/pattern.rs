//! Patterns: regular expressions, compiled within bounds and kept.
//!
//! A pattern stands in a runbook that others wrote, and is looked for in texts that others send. So three things are bounded:
//! what a pattern needs when it is compiled ([`SIZE_MAX`]), what those of a runbook need together ([`SIZES_MAX`]), and how
//! much work it is to look for patterns in the variables of one run ([`SEARCH_WORK_MAX`]): the length of each text times the
//! size of its pattern, which is what a search takes in the worst case.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The most bytes of a pattern.
pub const LEN_MAX: usize = 1_024;
/// The most bytes that a pattern may need when compiled.
pub const SIZE_MAX: usize = 256 * 1024;
/// The most bytes that the patterns of a runbook may need together.
pub const SIZES_MAX: usize = 1024 * 1024;
/// How much work the searches for one run may be together: about ten milliseconds.
pub const SEARCH_WORK_MAX: usize = 8 * 1024 * 1024;
/// What a pattern is taken to need: the first of these that is enough.
const SIZES: [usize; 4] = [4 * 1024, 16 * 1024, 64 * 1024, SIZE_MAX];
/// How many bytes of a pattern count as one for each byte that is searched.
const SEARCH: usize = 64;
/// The most bytes that a search may keep beside the pattern.
const SEARCH_SIZE_MAX: usize = 256 * 1024;
/// How many compiled patterns are kept: as many as a runbook may have of the smallest.
const KEPT_MAX: usize = SIZES_MAX / SIZES[0];

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    regex: regex::Regex,
    size: usize,
}

impl Pattern {
    /// Compiles a pattern. One without `^` and `$` is searched for.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(text: &str) -> Result<Pattern, String> {
        Pattern::within(text, SIZE_MAX)
    }

    /// Compiles a pattern that needs so many bytes at most.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn within(text: &str, size_max: usize) -> Result<Pattern, String> {
        if text.len() > LEN_MAX {
            return Err(format!("it has {} bytes, and a pattern has {LEN_MAX} at most", text.len()));
        }
        let compiled = |size: usize| {
            let mut builder = regex::RegexBuilder::new(text);
            builder.size_limit(size).dfa_size_limit(SEARCH_SIZE_MAX).nest_limit(64);
            Ok(Pattern { regex: builder.build()?, size })
        };
        let mut last = compiled(SIZES[0]);
        for size in SIZES[1..].iter().filter(|&&size| size <= size_max) {
            if let Err(regex::Error::CompiledTooBig(_)) = &last {
                last = compiled(*size);
            }
        }
        last.map_err(|error| {
            let text = error.to_string();
            text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        })
    }

    /// About how many bytes it needs.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// How much work it is to look for it in a text.
    #[must_use]
    pub fn work(&self, text: &str) -> usize {
        text.len().saturating_mul(self.size / SEARCH)
    }

    /// Whether it is found in a text.
    #[must_use]
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// Patterns that were compiled, or what is wrong with them.
type Known = HashMap<String, Arc<Result<Pattern, String>>>;

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// A pattern from the cache, or compiled now. Compiling or matching one blocks no other.
pub fn known(text: &str) -> Arc<Result<Pattern, String>> {
    // A thread that panicked while holding the lock left a complete cache: entries are inserted whole.
    let kept = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = kept().get(text) {
        return Arc::clone(known);
    }
    let new = Arc::new(Pattern::new(text));
    if text.len() <= LEN_MAX {
        let mut kept = kept();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(text.to_owned(), Arc::clone(&new));
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_bounded() {
        for wrong in ["(", "(a{1000}){1000}", &"(".repeat(10_000), &"a".repeat(LEN_MAX + 1), r"(\w{1,9}){99}"]
        {
            assert!(Pattern::new(wrong).is_err(), "{wrong}");
        }
        let size = |text: &str| Pattern::new(text).unwrap().size();
        assert_eq!((size(r"^BUG-[0-9]+$"), size("^[a-z]+$")), (SIZES[0], SIZES[0]));
        assert!(size(r"^\w+@\w+$|^x$") <= SIZE_MAX);
    }

    #[test]
    fn a_pattern_is_compiled_once_and_few_are_kept() {
        assert!(Arc::ptr_eq(&known("^once$"), &known("^once$")));
        for n in 0..3 * KEPT_MAX {
            let _ = known(&format!("^many{n}$"));
            assert!(KNOWN.lock().unwrap().len() <= KEPT_MAX);
        }
    }

    #[test]
    fn the_work_of_a_search_grows_with_the_text_and_the_pattern() {
        let small = Pattern::new("^[a-z]+$").unwrap();
        let large = Pattern::new(r"^\w{1,5}$").unwrap();
        assert!(small.work("abc") < large.work("abc") && small.work("abc") < small.work("abcd"));
        assert!(small.work(&"a".repeat(100_000)) < SEARCH_WORK_MAX);
        assert!(large.work(&"a".repeat(1_000_000)) > SEARCH_WORK_MAX);
    }
}
