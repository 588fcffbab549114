//! Cutting a stream of bytes into lines of bounded length.

/// The part of a line that was read.
#[derive(Debug)]
pub(super) struct Lines {
    partial: Vec<u8>,
    len_max: usize,
}

impl Lines {
    pub(super) fn new(len_max: usize) -> Lines {
        Lines { partial: Vec::new(), len_max }
    }

    /// Reads a chunk. `emit` gets each line without its line break, and false where the line goes on.
    pub(super) fn push(&mut self, chunk: &[u8], emit: &mut impl FnMut(&[u8], bool)) {
        for piece in chunk.split_inclusive(|&b| b == b'\n') {
            let (text, ended) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            self.partial.extend_from_slice(text);
            while self.partial.len() > self.len_max {
                let cut = self.cut();
                emit(&self.partial[..cut], false);
                self.partial.drain(..cut);
            }
            if ended {
                emit(&self.partial, true);
                self.partial.clear();
            }
        }
    }

    /// Ends the stream. A last line without a line break is a line as well.
    pub(super) fn finish(mut self, emit: &mut impl FnMut(&[u8], bool)) {
        if !self.partial.is_empty() {
            emit(&core::mem::take(&mut self.partial), true);
        }
    }

    /// Where to cut a long line: at its maximum, or a little before it so that no character is cut.
    fn cut(&self) -> usize {
        let is_inside = |at: usize| self.partial[at] & 0b1100_0000 == 0b1000_0000;
        (self.len_max.saturating_sub(3).max(1)..=self.len_max)
            .rev()
            .find(|&at| !is_inside(at))
            .unwrap_or(self.len_max)
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn lines(len_max: usize, chunks: &[&str]) -> Vec<(String, bool)> {
        let mut found = Vec::new();
        let mut emit =
            |text: &[u8], whole: bool| found.push((String::from_utf8_lossy(text).into_owned(), whole));
        let mut lines = Lines::new(len_max);
        for chunk in chunks {
            lines.push(chunk.as_bytes(), &mut emit);
        }
        lines.finish(&mut emit);
        found
    }

    fn whole(text: &str) -> (String, bool) {
        (text.to_owned(), true)
    }

    fn part(text: &str) -> (String, bool) {
        (text.to_owned(), false)
    }

    #[test]
    fn lines_end_at_line_breaks_and_at_the_end() {
        assert_eq!(lines(9, &["a\n\nb", "c\n", "d"]), [whole("a"), whole(""), whole("bc"), whole("d")]);
        assert_eq!(lines(9, &["a\n"]), [whole("a")]);
        assert_eq!(lines(9, &[]), []);
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        assert_eq!(lines(4, &["abcdefghij\nk"]), [part("abcd"), part("efgh"), whole("ij"), whole("k")]);
        assert_eq!(lines(4, &["abcd\n"]), [whole("abcd")]);
        assert_eq!(lines(4, &["abcéé"]), [part("abc"), whole("éé")]);
        assert_eq!(lines(4, &["ab", "c\u{10348}"]), [part("abc"), whole("\u{10348}")]);
    }
}
