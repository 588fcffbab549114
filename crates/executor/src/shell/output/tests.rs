//! The log under a reader that looks at any time: nothing twice, nothing out of order, and gaps only with a note.

use super::*;
use proptest::prelude::*;

fn line(number: usize, len: usize) -> Line {
    Line {
        at_ms: 1_700_000_000_000,
        source: Source::Out,
        text: format!("{number} {}", "x".repeat(len)),
        whole: true,
    }
}

/// Checks what a reader saw, and returns the number of the last line.
fn check(seen: &[Line]) -> Option<usize> {
    let mut last: Option<usize> = None;
    let mut gap = false;
    for line in seen {
        if line.source == Source::Note {
            assert!(dropped_len(line).is_some_and(|bytes| bytes > 0), "{line:?}");
            gap = true;
            continue;
        }
        let number: usize = line.text.split(' ').next().unwrap().parse().unwrap();
        let next = last.map_or(0, |last| last + 1);
        assert!(number == next || gap && number > next, "{number} after {last:?}");
        last = Some(number);
        gap = false;
    }
    last
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_reader_sees_every_line_once_or_a_note(
        lens in prop::collection::vec(0usize..200, 0..400),
        looks in prop::collection::btree_set(0usize..400, 0..20),
        late in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let mut writer = Writer::create(&path, 8192).unwrap();
        let mut reader = follow(&path);
        let mut seen = Vec::new();
        for (number, len) in lens.iter().enumerate() {
            writer.line(&line(number, *len));
            if number % 3 == 0 {
                writer.flush();
            }
            if !late && looks.contains(&number) {
                seen.extend(reader.read().unwrap());
            }
        }
        let closed = writer.close(1);
        prop_assert!(closed.error.is_none());
        loop {
            let lines = reader.read().unwrap();
            if lines.is_empty() {
                break;
            }
            seen.extend(lines);
        }
        prop_assert_eq!(check(&seen), lens.len().checked_sub(1));
        let afterwards = tail(&path, usize::MAX).unwrap();
        prop_assert_eq!(check(&afterwards), lens.len().checked_sub(1));
        prop_assert_eq!(closed.dropped_bytes > 0, afterwards.iter().any(|line| line.source == Source::Note));
        prop_assert!(std::fs::metadata(&path).unwrap().len() <= 8192 + 100);
        prop_assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_tail_without_its_end_is_read_from_its_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.log");
    let mut writer = Writer::create(&path, 4096).unwrap();
    for number in 0..500 {
        writer.line(&line(number, 50));
    }
    writer.flush();
    // As after a crash: nobody joined them.
    drop(writer);
    let lines = tail(&path, usize::MAX).unwrap();
    assert_eq!(check(&lines), Some(499));
    assert_eq!(tail(&path, 2).unwrap().len(), 2);
    assert_eq!(tail(&path, 0).unwrap(), []);
    // A new attempt begins with nothing of the old one.
    Writer::create(&path, 4096).unwrap();
    assert_eq!(tail(&path, 9).unwrap(), []);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn lines_are_written_as_they_are_read() {
    for (line, written) in [
        (Line { at_ms: 7, source: Source::Out, text: "a  b".into(), whole: true }, "7 o a  b\n"),
        (Line { at_ms: 7, source: Source::Err, text: String::new(), whole: true }, "7 e \n"),
        (Line { at_ms: 7, source: Source::Out, text: "x".into(), whole: false }, "7 O x\n"),
        (dropped_note(7, 12), "7 - 12 bytes of output were dropped here\n"),
    ] {
        let mut bytes = Vec::new();
        format(&line, &mut bytes);
        assert_eq!(String::from_utf8_lossy(&bytes), written);
        assert_eq!(parse(&bytes[..bytes.len() - 1]), line);
    }
    for damaged in ["", "x", "7 q text", "7 o", "x o y"] {
        assert_eq!(parse(damaged.as_bytes()).text, damaged);
    }
}
