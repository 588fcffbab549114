//! What comes of a command: its ending, its log, its typed output, its secrets.

use super::*;
use serde_json::json;

#[test]
fn exit_codes_and_signals_are_told_apart() {
    let bench = Bench::new();
    let (ended, lines) = bench.run(bench.spec("a", "echo out; echo err >&2; exit 3"));
    assert_eq!(ended.ending, Ending::Exited(3));
    assert_eq!((ended.stdout_bytes, ended.stderr_bytes, ended.dropped_bytes), (4, 4, 0));
    assert_eq!(texts(&lines, Source::Out), ["out"]);
    assert_eq!(texts(&lines, Source::Err), ["err"]);
    assert_eq!(bench.run(bench.spec("b", "kill -SEGV $$")).0.ending, Ending::Signalled(11));
    assert_eq!(bench.run(bench.spec("c", "false; true")).0.ending, Ending::Exited(1), "-e");
    assert_eq!(bench.run(bench.spec("d", "false | true")).0.ending, Ending::Exited(1), "-o pipefail");
    let (ended, _) = bench.run(bench.spec("e", "no-such-command-anywhere"));
    assert!(ended.ending.to_string().contains("not found"), "{}", ended.ending);
    assert_eq!(bench.run(bench.spec("f", "cat; echo end")).1.len(), 1, "standard input is empty");
}

#[test]
fn what_cannot_start_says_why() {
    let bench = Bench::new();
    let mut no_dir = bench.spec("a", "true");
    no_dir.dir = bench.dir.path().join("nowhere");
    let mut no_shell = bench.spec("b", "true");
    no_shell.shell = Some("no-such-shell".to_owned());
    let mut too_big = bench.spec("c", "true");
    too_big.env.add("BIG", &"x".repeat(1024 * 1024)).unwrap();
    let mut no_log = bench.spec("d", "true");
    no_log.log = bench.dir.path().join("nowhere/a.log");
    for (spec, expected) in [
        (no_dir, "nowhere` cannot be used"),
        (no_shell, "the shell `no-such-shell` is not found in PATH"),
        (too_big, "more than the system takes"),
        (no_log, "cannot be made"),
    ] {
        let output_file = spec.output_file.clone();
        let (ended, _) = bench.run(spec);
        assert!(matches!(ended.ending, Ending::NotStarted(_)), "{:?}", ended.ending);
        assert!(ended.ending.to_string().contains(expected), "{}", ended.ending);
        assert!(!output_file.exists());
    }
}

#[test]
fn a_folder_for_scratch_files_that_was_removed_is_made_again() {
    let bench = Bench::new();
    let mut spec = bench.spec("a", "echo a=1 > \"$WL_OUTPUT\"");
    spec.output_file = bench.dir.path().join("scratch/a.out");
    assert_eq!(bench.run(spec.clone()).0.output, Ok(Some(json!({"a": "1"}))));
    fs::remove_dir_all(bench.dir.path().join("scratch")).unwrap();
    assert_eq!(bench.run(spec).0.output, Ok(Some(json!({"a": "1"}))));
}

#[test]
fn bad_requests_are_refused_before_anything_runs() {
    let bench = Bench::new();
    let watch = bench.watch(bench.spec("a", "echo ready; sleep 1000"));
    watch.ready(1);
    assert!(matches!(bench.shell.run(&leave(), bench.spec("a", "true"), |_| {}), Err(Error::Running(_))));
    assert!(matches!(bench.shell.run(&leave(), bench.spec("", "true"), |_| {}), Err(Error::Id)));
    let huge = bench.spec("b", &"x".repeat(wire::FRAME_MAX));
    assert!(matches!(bench.shell.run(&leave(), huge, |_| {}), Err(Error::TooLarge(_))));
    bench.shell.stop("a", Duration::ZERO).unwrap();
    watch.ended();
}

#[test]
fn other_shells_and_long_commands() {
    let bench = Bench::new();
    for (shell, command) in [
        (None, "[[ $0 == bash ]] && echo \"$X\""),
        (Some("sh"), "echo \"$X\""),
        (Some("python3"), "import os; print(os.environ['X'])"),
        (Some("bash -u"), "echo \"$X\""),
        (Some("env bash {0} more"), "echo \"$X\""),
    ] {
        let mut spec = bench.spec("a", command);
        spec.shell = shell.map(str::to_owned);
        spec.env.add("X", "'; $(exit 1) \"é").unwrap();
        let (ended, lines) = bench.run(spec);
        assert_eq!(ended.ending, Ending::Exited(0), "{shell:?}");
        assert_eq!(texts(&lines, Source::Out), ["'; $(exit 1) \"é"], "{shell:?}");
    }
    let (ended, lines) = bench.run(bench.spec("b", &format!("#{}\necho end", "x".repeat(250_000))));
    assert_eq!((ended.ending, texts(&lines, Source::Out)), (Ending::Exited(0), vec!["end"]));
    let left: Vec<_> =
        fs::read_dir(bench.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains(".output")), "{left:?}");
}

#[test]
fn typed_output_comes_from_the_file_or_the_last_line() {
    let bench = Bench::new();
    let output = |command: &str| {
        let mut spec = bench.spec("a", command);
        spec.live = false;
        let output_file = spec.output_file.clone();
        let (ended, _) = bench.run(spec);
        assert!(fs::symlink_metadata(output_file).is_err(), "the file is removed");
        ended.output
    };
    assert_eq!(output("true"), Ok(None));
    assert_eq!(output("echo '{\"a\":1}'; echo"), Ok(Some(json!({"a": 1}))));
    assert_eq!(output("echo a=1 >> \"$WL_OUTPUT\"; echo '{\"a\":2}'"), Ok(Some(json!({"a": "1"}))));
    assert_eq!(output("echo '{\"a\":[3]}' > \"$WL_OUTPUT\"; exit 1"), Ok(Some(json!({"a": [3]}))));
    assert_eq!(output("rm \"$WL_OUTPUT\""), Ok(None));
    assert!(matches!(output("head -c 65537 /dev/zero > \"$WL_OUTPUT\""), Err(OutputError::TooLarge { .. })));
    assert!(matches!(output("ln -sf /etc/passwd \"$WL_OUTPUT\""), Err(OutputError::File { .. })));
    assert!(matches!(output("rm \"$WL_OUTPUT\"; mkfifo \"$WL_OUTPUT\""), Err(OutputError::File { .. })));
    assert!(matches!(output("echo hello > \"$WL_OUTPUT\""), Err(OutputError::Line { line: 1 })));
}

#[test]
fn any_bytes_become_lines() {
    let bench = Bench::new();
    let (_, lines) = bench.run(bench.spec("a", r"printf 'a\xff\xfeb\nlast \xc3\xa9'"));
    assert_eq!(texts(&lines, Source::Out), ["a\u{fffd}\u{fffd}b", "last é"]);
    let (ended, lines) = bench.run(bench.spec("b", "head -c 3000000 /dev/zero | tr '\\0' x"));
    assert_eq!((ended.ending, ended.stdout_bytes, ended.dropped_bytes), (Ending::Exited(0), 3_000_000, 0));
    assert_eq!(texts(&lines, Source::Out).iter().map(|text| text.len()).sum::<usize>(), 3_000_000);
    assert!(lines.split_last().is_some_and(|(last, rest)| last.whole && rest.iter().all(|line| !line.whole)));
}

#[test]
fn a_log_keeps_its_head_and_its_tail() {
    let bench = Bench::new();
    let mut spec = bench.spec("a", "seq 1 2000000; echo end >&2");
    spec.output_max = 100_000;
    spec.live = false;
    let log = spec.log.clone();
    let (ended, lines) = bench.run(spec);
    assert_eq!(ended.ending, Ending::Exited(0), "the command goes on");
    assert!(ended.dropped_bytes > 10_000_000);
    let kept = fs::metadata(log).unwrap().len();
    assert!((75_000..=100_100).contains(&kept), "{kept}");
    let numbers = texts(&lines, Source::Out);
    assert_eq!((numbers[0], *numbers.last().unwrap()), ("1", "2000000"));
    assert_eq!(texts(&lines, Source::Note).len(), 1);
    assert_eq!(texts(&lines, Source::Err), ["end"]);
    let files = fs::read_dir(bench.dir.path()).unwrap().count();
    assert_eq!(files, 3, "the log, the lock and the keeper's own log");
}

#[test]
fn no_secret_reaches_the_log_the_events_or_the_output() {
    let bench = Bench::new();
    let secret = "s3cr3t/\"value\"";
    let command = r#"
        echo "plain $PASSWORD end"; echo "$PASSWORD" | base64 >&2
        printf '%s' "${PASSWORD:0:5}"; sleep 0.01; printf '%s\n' "${PASSWORD:5}"
        printf '%s' "$PASSWORD" | od -An -v -tx1 | tr -d ' \n'; echo
        echo "token $WL_TOKEN"
        python3 -c 'import json, os; print(json.dumps({"p": os.environ["PASSWORD"], "n": 1}))' > "$WL_OUTPUT"
    "#;
    let mut spec = bench.spec("a", command);
    spec.env.add("PASSWORD", secret).unwrap();
    spec.env.set_own(Variable::Token, "attempt-token").unwrap();
    spec.secrets.push(Secret { name: "password".to_owned(), value: secret.to_owned() });
    spec.secrets.push(Secret { name: "pin".to_owned(), value: "1".to_owned() });
    assert!(!format!("{spec:?}").contains(secret));
    let log = spec.log.clone();
    let watch = bench.watch(spec);
    let mut seen = Vec::new();
    let ended = loop {
        match watch.0.recv_timeout(HANG).unwrap() {
            ShellEvent::Ended(ended) => break ended,
            other => seen.push(other),
        }
    };
    assert_eq!(ended.ending, Ending::Exited(0));
    assert_eq!(ended.output, Ok(Some(json!({"p": "***", "n": 1}))));
    let lines = output::tail(&log, usize::MAX).unwrap();
    assert_eq!(texts(&lines, Source::Out), ["plain *** end", "***", "***", "token ***"]);
    assert_eq!(texts(&lines, Source::Err).len(), 1);
    let everything = format!("{seen:?} {}", fs::read_to_string(log).unwrap());
    for form in [secret, "s3cr3t", "czNjcjN0", "7333637233", "attempt-token"] {
        assert!(!everything.contains(form), "{form} in {everything}");
    }
    let warned = seen.iter().any(|event| matches!(event, ShellEvent::Warned(text) if text.contains("`pin`")));
    assert!(warned, "a secret that cannot be masked is reported");
}

#[test]
fn a_log_can_be_followed_while_it_is_written() {
    let bench = Bench::new();
    assert!(Command::new("mkfifo").arg(bench.dir.path().join("gate")).status().unwrap().success());
    let watch = bench.watch(bench.spec("a", "echo one; echo ready; read -r _ < gate; echo two"));
    watch.ready(1);
    let mut follow = output::follow(&bench.log("a"));
    assert_eq!(texts(&follow.read().unwrap(), Source::Out), ["one", "ready"]);
    assert_eq!(follow.read().unwrap(), []);
    fs::write(bench.dir.path().join("gate"), "\n").unwrap();
    watch.ended();
    assert_eq!(texts(&follow.read().unwrap(), Source::Out), ["two"]);
    assert!(output::tail(&bench.log("none"), 1).is_err());
}
