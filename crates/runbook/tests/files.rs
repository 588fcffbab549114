//! Runbooks from the outside: what is said about mistakes, files and includes, and that no input is too much.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test may fail that way.

use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use windlass_runbook::{self as runbook, Described, Files, Loaded, Problem, Problems};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn yaml_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    files
}

/// Each mistake has a file with what is said about it. `UPDATE_GOLDEN=1` writes them anew.
#[test]
fn every_mistake_is_said_as_before() {
    let files = yaml_files(&golden().join("mistakes"));
    assert!(files.len() >= 25);
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let problems = runbook::parse(name, &text, &(), &Described::NONE).expect_err(name);
        let said = problems.render(false);
        let expected = path.with_extension("txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&expected, &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(&expected).unwrap_or_default(), "{name}");
        for (one, json) in problems.list.iter().zip(problems.json()["problems"].as_array().unwrap()) {
            assert_eq!(json["code"], "RUNBOOK_INVALID");
            assert_eq!(json["message"], one.message.as_str());
            assert_eq!(json["file"], name);
        }
        let coloured = problems.render(true);
        assert!(coloured.contains('\u{1b}') && !said.contains('\u{1b}'));
    }
}

#[test]
fn problems_point_to_line_and_column() {
    let problems = runbook::parse("a.yaml", "name: ä\nqueus: {}\n", &(), &Described::NONE).unwrap_err();
    let json = problems.json();
    let at: Vec<_> =
        json["problems"].as_array().unwrap().iter().map(|p| (&p["line"], &p["column"])).collect();
    assert_eq!(at, [(&1.into(), &7.into()), (&2.into(), &1.into())]);
    assert_eq!(json["problems"][1]["help"], "did you mean `queues`?");
}

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    fn new(files: &[(&str, &[u8])]) -> Case {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = directory.path().join("book").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        Case { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("book").join(name)
    }

    fn load(&self) -> Result<Loaded, Problems> {
        runbook::load(&self.path("main.yaml"), &Described::NONE)
    }

    fn refused(&self) -> String {
        self.load().unwrap_err().to_string()
    }
}

#[test]
fn includes_are_merged_and_hashed() {
    let main =
        b"name: t\ninclude: [queues.yaml, deep/pipelines.yaml]\nworkers: { w: { queue: q, pipeline: p } }\n";
    let pipelines: &[u8] = b"include: more.yaml\npipelines: { p: { steps: [{ call: o }] } }\n";
    let case = Case::new(&[
        ("main.yaml", main),
        ("queues.yaml", b"queues: { q: {} }\n"),
        ("deep/pipelines.yaml", pipelines),
        ("deep/more.yaml", b"pipelines: { o: { steps: [{ run: x }] } }\n"),
    ]);
    let loaded = case.load().unwrap();
    let names: Vec<&str> = loaded.files.iter().map(|(name, _)| name.to_str().unwrap()).collect();
    assert_eq!(names, ["queues.yaml", "deep/pipelines.yaml", "deep/more.yaml"]);
    assert_eq!(loaded.runbook.pipelines.len(), 2);
    assert_eq!(loaded.source.as_bytes(), main);
    let before = loaded.hash;
    fs::write(case.path("queues.yaml"), "queues: { q: {} }\n# changed\n").unwrap();
    assert_ne!(case.load().unwrap().hash, before);
}

#[test]
fn includes_stay_inside_and_come_once() {
    let with = |include: &str, other: &[u8]| {
        let main = format!("name: t\ninclude: [{include}]\nqueues: {{ q: {{}} }}\n");
        Case::new(&[("main.yaml", main.as_bytes()), ("a.yaml", other), ("../outside.yaml", b"queues: {}\n")])
    };
    for (include, other, message) in [
        ("../outside.yaml", &b"{}"[..], "by `..`"),
        ("/etc/passwd", b"{}", "absolute path"),
        ("'http://localhost/a.yaml'", b"{}", "only local files"),
        ("absent.yaml", b"{}", "cannot be read"),
        ("''", b"{}", "not the path of a file"),
        ("a.yaml, ./a.yaml", b"queues: {}", "included already"),
        ("main.yaml", b"{}", "included already"),
        ("a.yaml", b"include: a.yaml", "included already"),
        ("a.yaml", b"include: main.yaml", "included already"),
        ("a.yaml", b"queues: { q: {} }", "in another file already"),
        ("a.yaml", b"name: other", "has no `name`"),
        ("a.yaml", b"queus: {}", "did you mean `queues`"),
        ("a.yaml", b"queues: [", "not valid YAML"),
        ("a.yaml", b"\xff\xfe", "not UTF-8"),
        (".", b"{}", "not a file"),
    ] {
        let said = with(include, other).refused();
        assert!(said.contains(message), "{include}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn a_link_does_not_lead_outside() {
    let case =
        Case::new(&[("main.yaml", b"name: t\ninclude: link.yaml\n"), ("../outside.yaml", b"queues: {}\n")]);
    std::os::unix::fs::symlink(case.directory.path().join("outside.yaml"), case.path("link.yaml")).unwrap();
    assert!(case.refused().contains("outside of the runbook's directory"));
}

#[test]
fn too_many_or_too_large_includes_are_refused() {
    let names: Vec<String> = (0..33).map(|n| format!("f{n}.yaml")).collect();
    let main = format!("name: t\ninclude: [{}]\n", names.join(", "));
    let mut files: Vec<(&str, &[u8])> = vec![("main.yaml", main.as_bytes())];
    files.extend(names.iter().map(|name| (name.as_str(), &b"queues: {}\n"[..])));
    assert!(Case::new(&files).refused().contains("may include 32 files"));
    let large = format!("queues: {{}}\n#{}", "x".repeat(250 * 1024));
    let mut files: Vec<(&str, &[u8])> =
        vec![("main.yaml", b"name: t\ninclude: [f0.yaml, f1.yaml, f2.yaml, f3.yaml, f4.yaml]\n")];
    files.extend(names.iter().take(5).map(|name| (name.as_str(), large.as_bytes())));
    assert!(Case::new(&files).refused().contains("1048576 bytes"));
}

#[test]
fn a_huge_file_is_refused_by_its_size_alone() {
    let case = Case::new(&[("main.yaml", b"")]);
    // A file with a hole: it has 100 GiB and no content, so that reading it would be noticed.
    fs::File::create(case.path("main.yaml")).unwrap().set_len(100 << 30).unwrap();
    assert!(case.refused().contains("107374182400 bytes"));
}

#[test]
fn what_is_not_text_is_refused() {
    let said = |bytes: &[u8]| Case::new(&[("main.yaml", bytes)]).refused();
    assert!(said(b"name: t\nqueues: \xc3\x28\n").contains("not UTF-8: byte 16, on line 2"));
    assert!(said(b"name: t\nqueues: \0\n").contains("NUL"));
    assert!(said(b"\xff\xfen\0a\0").contains("not UTF-8"));
    assert!(said(b"").contains("empty"));
    assert!(
        Case::new(&[("main.yaml", "\u{feff}name: t\n".as_bytes())]).load().is_ok(),
        "a mark of the byte order"
    );
    assert!(runbook::load(Path::new("/"), &Described::NONE).unwrap_err().to_string().contains("not a file"));
    assert!(
        runbook::load(Path::new("absent.yaml"), &Described::NONE)
            .unwrap_err()
            .to_string()
            .contains("cannot be read")
    );
}

/// Everything at once that could make for more work than a small file should.
#[test]
fn bombs_do_not_go_off() {
    let aliases: String = (1..26).map(|n| format!("  a{n}: &a{n} [*a{}, *a{}]\n", n - 1, n - 1)).collect();
    let steps = |line: &str, n: usize| {
        format!("name: t\npipelines:\n  p:\n    steps:\n{}", format!("      - {line}\n").repeat(n))
    };
    let env: String = (0..250).map(|n| format!("E{n}: '${{{{ run.id }}}}', ")).collect();
    let wide = format!("defaults: {{ env: {{ {env} }} }}\n{}", steps("run: x", 8_000));
    let keys: String = (0..20_000).map(|n| format!("k{n}: 1\n")).collect();
    let quotes = format!("name: \"{}\n", "\\\"".repeat(100_000));
    let flow = format!("name: {}", "[{a: ".repeat(30_000));
    let expressions = format!("{{ run: x, env: {{ A: '{}' }} }}", "${{ vars.a }}".repeat(10_000));
    for bomb in [
        format!("x: &a0 [1]\ny:\n{aliases}"),
        wide,
        keys,
        quotes,
        flow,
        steps("{ run: x, needs: y }", 8_000),
        steps("run: '${{ vars.x }}'", 5_000),
        steps(&expressions, 1),
        steps("{ id: a, run: x }", 10_000),
        "? ".repeat(100_000),
        "- ".repeat(100_000),
        "&a ".repeat(80_000),
        "!!str ".repeat(40_000),
        "'".repeat(250_000),
        "#".repeat(250_000),
        "\n".repeat(250_000),
        "a: |\n".repeat(50_000),
        "${{".repeat(80_000),
    ] {
        let problems = runbook::parse("bomb.yaml", &bomb, &(), &Described::NONE).unwrap_err();
        assert!(problems.list.len() <= 20 && problems.render(true).len() < 100_000);
    }
}

/// Files that say of every name that it holds the same text.
struct Same<'a>(&'a str);

impl Files for Same<'_> {
    fn text(&self, _: &Path) -> Result<String, Problem> {
        Ok(self.0.to_owned())
    }
}

/// Whatever comes of it, it comes back, says something that is not empty, and stays within bounds.
fn answers(text: &str) -> Result<(), TestCaseError> {
    match runbook::parse("p.yaml", text, &Same(text), &Described::NONE) {
        Ok(loaded) => {
            prop_assert!(loaded.runbook.validate().is_ok());
            let again = runbook::parse("p.yaml", text, &Same(text), &Described::NONE);
            prop_assert_eq!(again.ok(), Some(loaded));
        }
        Err(problems) => {
            prop_assert!(!problems.list.is_empty() && problems.list.len() <= 20);
            prop_assert!(!problems.render(false).is_empty());
            for one in problems.json()["problems"].as_array().into_iter().flatten() {
                prop_assert!(!one["message"].as_str().unwrap_or_default().is_empty());
            }
        }
    }
    Ok(())
}

fn seeds() -> Vec<String> {
    let directories = [golden().join("examples"), golden().join("mistakes")];
    let paths = directories.iter().flat_map(|directory| yaml_files(directory));
    paths.map(|path| fs::read_to_string(path).unwrap()).collect()
}

const PIECES: &[&str] = &[
    "${{",
    "}}",
    "'",
    "\"",
    "\n",
    "  ",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "|\n",
    "run: x",
    "id: a",
    "foreach: [1]",
    "compensate: ",
    "steps:",
    "vars.x",
    "steps.a.output",
    "secrets.X",
    "\u{0}",
    "é",
    "\t",
    "#",
    "?",
    "999999999999",
    "null",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        answers(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn any_yaml_like_text_is_answered(pieces in proptest::collection::vec(0..PIECES.len(), 0..60)) {
        answers(&pieces.into_iter().map(|piece| PIECES[piece]).collect::<String>())?;
    }

    #[test]
    fn mutated_runbooks_are_answered(
        seed in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, 0..PIECES.len(), 0..20_usize), 1..5),
    ) {
        let seeds = seeds();
        let mut text: Vec<char> = seed.get(&seeds).chars().collect();
        for (at, what, piece, len) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + len).min(text.len());
            match what {
                0 => drop(text.splice(at..at, PIECES[piece].chars())),
                1 => drop(text.drain(at..end)),
                2 => { let copy: Vec<char> = text[at..end].to_vec(); text.splice(at..at, copy); }
                _ => text.truncate(text.len() - (text.len() - at) / 4),
            }
        }
        answers(&text.into_iter().collect::<String>())?;
    }
}
