//! Process trees: stopped, timed out, left behind, and kept apart.

use super::*;

const SOON: Duration = Duration::from_millis(200);

#[test]
fn a_stop_ends_the_whole_tree() {
    let bench = Bench::new();
    let word = unique("stop");
    let watch = bench.watch(bench.spec("a", &format!("{} wait", forest(&word))));
    watch.ready(FOREST);
    assert!(living(&word).len() >= FOREST, "the test can find them");
    assert!(bench.shell.stop("a", SOON).unwrap());
    assert_eq!(watch.ended().ending, Ending::Stopped);
    assert_gone(&word);
    assert!(!bench.shell.stop("a", SOON).unwrap(), "it is over");
}

#[test]
fn a_time_out_ends_the_whole_tree() {
    let bench = Bench::new();
    let word = unique("timeout");
    let mut spec = bench.spec("a", &format!("{} wait", forest(&word)));
    spec.timeout = Some(Duration::from_millis(300));
    spec.grace = SOON;
    let (ended, _) = bench.run(spec);
    assert_eq!(ended.ending, Ending::TimedOut);
    assert_gone(&word);
}

#[test]
fn what_a_command_leaves_behind_ends_with_it() {
    let bench = Bench::new();
    let word = unique("left");
    // The shell goes on reading until all are there, and then exits.
    let fifo = bench.dir.path().join("fifo");
    let command = format!(
        "mkfifo '{fifo}'; exec 3<>'{fifo}'; {{ {} }} >&3; for i in 1 2 3 4 5 6 7; do read -r _ <&3; done; echo bye",
        forest(&word),
        fifo = fifo.display()
    );
    let mut spec = bench.spec("a", &command);
    spec.grace = SOON;
    let (ended, lines) = bench.run(spec);
    assert_eq!(ended.ending, Ending::Exited(0));
    assert_eq!(texts(&lines, Source::Out), ["bye"]);
    assert_gone(&word);
}

#[test]
fn what_finishes_soon_after_the_shell_may_finish() {
    let bench = Bench::new();
    let (ended, lines) = bench.run(bench.spec("a", "echo hello > >(sleep 0.05; cat; echo done)"));
    assert_eq!(ended.ending, Ending::Exited(0));
    assert_eq!(texts(&lines, Source::Out), ["hello", "done"]);
}

#[test]
fn a_process_that_listens_to_sigterm_has_its_grace_time() {
    let bench = Bench::new();
    let command = "trap 'echo bye; exit 5' TERM; echo ready; while :; do read -r -t 0.05 <> <(:) || :; done";
    let watch = bench.watch(bench.spec("a", command));
    watch.ready(1);
    bench.shell.stop("a", HANG).unwrap();
    assert_eq!(watch.ended().ending, Ending::Stopped);
    let lines = output::tail(&bench.log("a"), 1).unwrap();
    assert_eq!(texts(&lines, Source::Out), ["bye"]);
}

#[test]
fn a_command_that_ends_with_0_within_its_grace_time_has_done_its_work() {
    let bench = Bench::new();
    let command = "trap 'echo done; exit 0' TERM; echo ready; while :; do read -r -t 0.05 <> <(:) || :; done";
    let watch = bench.watch(bench.spec("a", command));
    watch.ready(1);
    bench.shell.stop("a", HANG).unwrap();
    assert_eq!(watch.ended().ending, Ending::Exited(0));
    let mut spec = bench.spec("b", command);
    (spec.timeout, spec.grace) = (Some(Duration::from_millis(300)), HANG);
    assert_eq!(bench.run(spec).0.ending, Ending::Exited(0), "its time was up, and it is done all the same");
}

#[test]
fn a_second_stop_shortens_the_grace_time() {
    let bench = Bench::new();
    let watch = bench.watch(bench.spec("a", "trap '' TERM; echo ready; while :; do sleep 1000; done"));
    watch.ready(1);
    bench.shell.stop("a", HANG * 100).unwrap();
    bench.shell.stop("a", Duration::ZERO).unwrap();
    assert_eq!(watch.ended().ending, Ending::Stopped);
}

#[test]
fn the_end_of_one_attempt_does_not_touch_another() {
    let bench = Bench::new();
    let (word_a, word_b) = (unique("apart-a"), unique("apart-b"));
    let watch_b = bench.watch(bench.spec("b", &format!("{} wait", forest(&word_b))));
    watch_b.ready(FOREST);
    let watch_a = bench.watch(bench.spec("a", &format!("{} wait", forest(&word_a))));
    watch_a.ready(FOREST);
    let before = living(&word_b);
    bench.shell.stop("a", SOON).unwrap();
    watch_a.ended();
    assert_eq!(living(&word_b), before, "b lives");
    assert_gone(&word_a);
    bench.shell.stop("b", SOON).unwrap();
    watch_b.ended();
    assert_gone(&word_b);
}

#[test]
fn a_process_without_an_environment_ends_with_its_attempt_while_another_runs() {
    let bench = Bench::new();
    let word = unique("nobody");
    let watch_b = bench.watch(bench.spec("b", "echo ready; sleep 1000"));
    watch_b.ready(1);
    let daemon = format!(
        "( ( env -i setsid bash -c 'echo ready >&2; exec -a {word} sleep 1000' & ) & ) 2>&1 | head -n 1"
    );
    // One that is left behind, and ones of an attempt that is stopped.
    let (ended, lines) = bench.run(bench.spec("a", &daemon));
    assert_eq!((ended.ending, texts(&lines, Source::Out)), (Ending::Exited(0), vec!["ready"]));
    assert_gone(&word);
    let watch = bench.watch(bench.spec("c", &format!("{daemon}; {daemon}; sleep 1000")));
    watch.ready(2);
    bench.shell.stop("c", SOON).unwrap();
    assert_eq!(watch.ended().ending, Ending::Stopped);
    assert_gone(&word);
    bench.shell.stop("b", SOON).unwrap();
    watch_b.ended();
}

#[test]
fn an_attempt_that_kills_or_stops_its_supervisor_ends_all_the_same() {
    let bench = Bench::new();
    let (killed, stopped) = (unique("killed-supervisor"), unique("stopped-supervisor"));
    // It waits for all its processes before it kills the one that they belong to.
    let fifo = bench.dir.path().join("fifo");
    let fifo = fifo.display();
    let command = format!(
        "supervisor=$PPID; mkfifo '{fifo}'; exec 3<>'{fifo}'; {{ {} }} >&3; for i in 1 2 3 4 5 6 7; do read -r _ <&3; done; \
         kill -KILL $supervisor; sleep 1000",
        forest(&killed)
    );
    let (ended, _) = bench.run(bench.spec("a", &command));
    assert_eq!(ended.ending, Ending::Signalled(9));
    assert_gone(&killed);
    let command = format!("{} kill -STOP $PPID; echo ready; wait", forest(&stopped));
    let watch = bench.watch(bench.spec("b", &command));
    watch.ready(FOREST + 1);
    bench.shell.stop("b", SOON).unwrap();
    assert_eq!(watch.ended().ending, Ending::Stopped);
    assert_gone(&stopped);
}

#[test]
fn closing_ends_everything_and_reports_it() {
    let Bench { shell, dir } = Bench::new();
    let word = unique("close");
    let (sender, receiver) = channel();
    let mut spec = spec(dir.path(), "a", &format!("{} wait", forest(&word)));
    spec.grace = SOON;
    shell.run(&leave(), spec, move |event| drop(sender.send(event))).unwrap();
    let watch = Watch(receiver);
    watch.ready(FOREST);
    shell.close();
    assert_gone(&word);
    let ended = watch.ended();
    assert_eq!(ended.ending, Ending::Stopped);
    assert!(ended.stdout_bytes > 0, "the keeper reported it");
    assert_eq!(lock::holder(dir.path()).unwrap(), None);
}

#[test]
fn a_hundred_attempts_run_side_by_side() {
    let bench = Bench::new();
    // Each waits for a line that comes only when all run.
    let fifo = bench.dir.path().join("gate");
    let command = "echo ready; read -r _ < \"$GATE\"; echo \"{\\\"n\\\": $WL_VAR_N}\"";
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let watches: Vec<Watch> = (0..100)
        .map(|n| {
            let mut spec = bench.spec(&format!("a{n}"), command);
            spec.env.set_var("n", &serde_json::json!(n)).unwrap();
            spec.env.add("GATE", fifo.to_str().unwrap()).unwrap();
            bench.watch(spec)
        })
        .collect();
    for watch in &watches {
        watch.ready(1);
    }
    let mut gate = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    // A reader that buffers takes one byte at a time from a pipe, so each gets a line.
    gate.write_all("go\n".repeat(100).as_bytes()).unwrap();
    for (n, watch) in watches.iter().enumerate() {
        let ended = watch.ended();
        assert_eq!(ended.ending, Ending::Exited(0));
        assert_eq!(ended.output, Ok(Some(serde_json::json!({ "n": n }))));
    }
}
