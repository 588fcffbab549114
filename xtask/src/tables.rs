//! The tables that name tests: `docs/promises.md` and `docs/coverage.md`. Every row names tests that exist, or gives a
//! reason; every promise's number that a document or a comment uses is in the table of promises.

use crate::Finding;
use crate::tree::File;
use std::collections::BTreeSet;

const PROMISES: &str = "docs/promises.md";
const COVERAGE: &str = "docs/coverage.md";

/// Words that look like the number of a promise and are not one.
const NO_NUMBERS: &[&str] = &["S3"];

/// What a row of coverage may wait for.
const LATER: &[&str] = &["agent", "session", "workspace", "git merge", "page"];

/// The shortest text that counts as a reason.
const REASON_LEN_MIN: usize = 10;

/// All rules about the tables.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let known = tests(files);
    let mut findings = Vec::new();
    for path in [PROMISES, COVERAGE] {
        let rows = files.iter().find(|file| file.path == path).map(rows).unwrap_or_default();
        if rows.is_empty() {
            findings.push(Finding::new(path, 1, "the table is not here"));
        }
        findings.extend(rows.iter().filter_map(|row| row.fault(path, &known)));
        if path == PROMISES {
            findings.extend(numbers(files, &rows));
        }
    }
    findings
}

/// A row of a table.
struct Row<'a> {
    line: usize,
    first: &'a str,
    /// How many cells it has.
    cells: usize,
    /// Its last cell: the tests, or a reason.
    shown: &'a str,
}

impl Row<'_> {
    /// What is wrong with the row, if anything.
    fn fault(&self, path: &str, known: &BTreeSet<String>) -> Option<Finding> {
        let find = |message: String| Some(Finding::new(path, self.line, message));
        let cells = if path == PROMISES { 4..=4 } else { 2..=3 };
        if !cells.contains(&self.cells) {
            return find(format!("a row of {} cells: escape `|` within a cell", self.cells));
        }
        if path == PROMISES && !is_number(self.first) {
            return find(format!(
                "`{}` is not the number of a promise: a capital letter and digits",
                self.first
            ));
        }
        let later = self.shown.strip_prefix("later: ");
        if let Some(reason) = later.or_else(|| self.shown.strip_prefix("by design: ")) {
            if reason.len() < REASON_LEN_MIN {
                return find("a row without tests needs a reason".to_owned());
            }
            if path == COVERAGE && later.is_some_and(|what| !LATER.iter().any(|part| what.contains(part))) {
                return find(format!("`{reason}` is none of what is left for later: {}", LATER.join(", ")));
            }
            return None;
        }
        let named: Vec<&str> = self.shown.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            return find("no test is named: name one as `file::function`, or give a reason".to_owned());
        }
        let absent: Vec<&str> = named.into_iter().filter(|name| !known.contains(*name)).collect();
        if absent.is_empty() { None } else { find(format!("there is no test {}", absent.join(", "))) }
    }
}

/// The rows of all tables of a document, without their heads.
fn rows(file: &File) -> Vec<Row<'_>> {
    let lines: Vec<&str> = file.text.lines().collect();
    let is_head = |i: usize| lines.get(i + 1).is_some_and(|next| next.starts_with("|--"));
    let mut rows = Vec::new();
    for (i, line) in lines.iter().enumerate().filter(|(i, line)| line.starts_with("| ") && !is_head(*i)) {
        let cells: Vec<&str> =
            line.trim_start_matches("| ").trim_end_matches(" |").split(" | ").map(str::trim).collect();
        if let (Some(first), Some(shown)) = (cells.first(), cells.last()) {
            rows.push(Row { line: i + 1, first, cells: cells.len(), shown });
        }
    }
    rows
}

/// Each number is given once, and those that are used are given.
fn numbers(files: &[File], rows: &[Row<'_>]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut given = BTreeSet::new();
    for row in rows {
        if !given.insert(row.first) {
            findings.push(Finding::new(PROMISES, row.line, format!("{} is given twice", row.first)));
        }
    }
    let letters: BTreeSet<char> = given.iter().filter_map(|number| number.chars().next()).collect();
    // The statements of coverage are quoted, with numbers of their own.
    for file in files.iter().filter(|file| file.path != COVERAGE) {
        for (i, line) in file.text.lines().enumerate() {
            let text = match file.path.ends_with(".md") {
                true => line,
                false => line.trim_start().strip_prefix("//").unwrap_or_default(),
            };
            for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                let is_used = is_number(word) && word.starts_with(|c| letters.contains(&c));
                if is_used && !given.contains(word) && !NO_NUMBERS.contains(&word) {
                    findings.push(Finding::new(
                        &file.path,
                        i + 1,
                        format!("{PROMISES} has no promise {word}"),
                    ));
                }
            }
        }
    }
    findings
}

/// Whether a word is a capital letter with one or two digits.
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or_default();
    (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

/// The names of all tests of the crates, as `file::function`. A file `main.rs`, `mod.rs` or `tests.rs` has the name of
/// its folder.
fn tests(files: &[File]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| file.path.starts_with("crates/")) {
        let Some(path) = file.path.strip_suffix(".rs") else { continue };
        let mut parts = path.rsplit('/');
        let stem = match parts.next() {
            Some("main" | "mod" | "tests") => parts.next().unwrap_or_default(),
            Some(stem) => stem,
            None => continue,
        };
        let mut is_test = false;
        for line in file.text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ").or_else(|| line.strip_prefix("async fn ")) {
                if is_test && let Some(name) = rest.split('(').next() {
                    found.insert(format!("{stem}::{name}"));
                }
                is_test = false;
            }
        }
    }
    found
}

#[cfg(test)]
mod unit {
    use super::*;

    const HEAD: &str = "| | promise | tried | shown by |\n|---|---|---|---|\n";

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn found(promises: &str, coverage: &str, other: &File) -> Vec<(String, usize)> {
        let test = "#[test]\nfn it_holds() {}\nfn no_test() {}\n#[tokio::test]\nasync fn later() {}\n";
        let files = [
            file(PROMISES, &format!("{HEAD}{promises}")),
            file(COVERAGE, &format!("| statement | shown by |\n|---|---|\n{coverage}")),
            file("crates/x/tests/a/main.rs", test),
            file(&other.path, &other.text),
        ];
        check(&files).into_iter().map(|finding| (finding.file, finding.line)).collect()
    }

    const PROMISE: &str = "| D1 | It lasts. | Kills | `a::it_holds` |\n";
    const STATEMENT: &str = "| It is | `a::later` |\n";

    #[test]
    fn sound_tables_pass() {
        let other = file("docs/a.md", "D1 holds, S3 is a service, U2 is a person.\n");
        assert_eq!(found(PROMISE, STATEMENT, &other), []);
    }

    #[test]
    fn a_row_without_an_existing_test_or_a_reason_is_found() {
        let none = file("docs/a.md", "");
        for shown in ["`a::no_test`", "`b::it_holds`", "some test", "later: soon"] {
            let row = format!("| D1 | It lasts. | Kills | {shown} |\n");
            assert_eq!(found(&row, STATEMENT, &none), [(PROMISES.to_owned(), 3)], "{shown}");
            let row = format!("| It is | {shown} |\n");
            assert_eq!(found(PROMISE, &row, &none), [(COVERAGE.to_owned(), 3)], "{shown}");
        }
        let row = "| It is | later: when somebody has time |\n";
        assert_eq!(found(PROMISE, row, &none), [(COVERAGE.to_owned(), 3)]);
        assert_eq!(found(PROMISE, "| It is | later: agents are not built |\n", &none), []);
        assert_eq!(found("", STATEMENT, &none), [(PROMISES.to_owned(), 1)]);
    }

    #[test]
    fn a_number_that_is_wrong_doubled_or_unknown_is_found() {
        let none = file("docs/a.md", "");
        let row = PROMISE.replace("D1", "Durable");
        assert_eq!(found(&row, STATEMENT, &none), [(PROMISES.to_owned(), 3)]);
        assert_eq!(found(&PROMISE.repeat(2), STATEMENT, &none), [(PROMISES.to_owned(), 4)]);
        for (path, text) in [("docs/a.md", "x\nas D2 says\n"), ("crates/x/src/a.rs", "//! A.\n/// D9.\n")] {
            assert_eq!(found(PROMISE, STATEMENT, &file(path, text)), [(path.to_owned(), 2)]);
        }
        let code = file("crates/x/src/a.rs", "//! A.\nconst D2: u8 = 1; // D2\n");
        assert_eq!(found(PROMISE, STATEMENT, &code), []);
    }
}
