//! The hands of a server: its keeper may die, the machine may lack room, and what ends takes all its processes with it.

use crate::http::Server;
use crate::support::{Project, is_alive, status_of, text, until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::process::Command;

/// The keeper of a process.
fn keeper_of(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let lists =
        tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children: Vec<u32> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    let is_keeper = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains("__keeper")
    };
    children.into_iter().find(is_keeper)
}

fn keeper(server: &Server) -> u32 {
    until("a keeper", || keeper_of(server.process.as_ref().expect("a process").id()))
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

fn start(project: &Project, words: &[&str]) -> String {
    let run = project.windlass(&[&["run", "book.yaml", "--detach", "--json"], words].concat()).code(0).json();
    text(&run, "id").to_owned()
}

fn ends(project: &Project, run: &str, status: &str) {
    until(status, || (text(&project.show(run), "status") == status).then_some(()));
}

/// A step that says so where it runs beside a living copy of itself: its daemon without an environment has the lock too.
const ALONE: &str = "
name: alone
pipelines:
  p:
    steps:
      - id: a
        run: |
          exec 9>lock-$WL_RUN_ID
          flock -n 9 || echo beside >> bad
          ( env -i setsid /bin/sleep 1000 & )
          echo $$ >> pids
          until test -e gate; do sleep 0.05; done
      - { id: b, run: echo done >> ended }
";

#[test]
fn a_keeper_that_dies_is_started_again_and_its_steps_run_again_but_never_beside_themselves() {
    let server = Server::start_with(Project::with(ALONE), &[]);
    let project = &server.project;
    let run = start(project, &[]);
    project.await_file("pids");
    let dead = keeper(&server);
    // As long as the place of the dead keeper is taken, no other can begin.
    let place = File::open(project.path("data/keeper.lock")).unwrap();
    let taken = std::thread::spawn(move || {
        place.lock().unwrap();
        place
    });
    // The thread stands in line for the lock, or gets it before a new keeper has begun to look.
    kill(dead);
    let place = taken.join().unwrap();
    let answer = until("the server to say that it is not ready", || {
        Some(server.ask("GET", "/readyz", None, None)).filter(|answer| answer.status == 503)
    });
    assert!(answer.text().contains("keeper"), "{}", answer.text());
    server.ask("GET", "/healthz", None, None).status(200);
    // What is to begin meanwhile waits, and says for what.
    let late = start(project, &[]);
    until("a reason", || {
        project.windlass(&["why", &late]).code(0).out.contains("could be begun").then_some(())
    });
    let shown = project.show(&late);
    assert_eq!((text(&shown, "status"), status_of(&shown, "a")), ("waiting_external", "waiting_external"));
    drop(place);
    until("the server to be ready", || {
        (server.ask("GET", "/readyz", None, None).status == 200).then_some(())
    });
    project.write("gate", "");
    ends(project, &run, "completed");
    ends(project, &late, "completed");
    assert_ne!(keeper(&server), dead);
    assert_eq!(project.read("bad"), "");
}

#[test]
fn a_step_that_the_dead_keeper_had_begun_counts_as_lost_and_what_must_not_run_twice_asks_a_human() {
    let book = "
name: once
pipelines:
  p:
    steps:
      - { id: a, effect: at_most_once, run: 'echo $$ >> pids; exec sleep 1000' }
";
    let server = Server::start_with(Project::with(book), &[]);
    let project = &server.project;
    let run = start(project, &[]);
    let pid = project.await_file("pids").trim().to_owned();
    kill(keeper(&server));
    ends(project, &run, "awaiting_approval");
    assert_eq!(status_of(&project.show(&run), "a"), "outcome_unknown");
    assert!(!is_alive(&pid));
    project.windlass(&["resolve", &run, "a", "done", "--reason", "seen"]).code(0);
    ends(project, &run, "completed");
    assert_eq!(project.read("pids").lines().count(), 1);
}

/// Lets a process open so many files more, and no further ones.
fn leave_room(pid: u32, files: usize) {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    // The soft limit alone, so that it can be raised again.
    let limit = format!("--nofile={}:", open + files);
    let done = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status().unwrap();
    assert!(done.success());
}

#[test]
fn steps_for_which_there_is_no_room_are_handed_back_and_tried_later() {
    let book = "
name: crowd
pipelines:
  p: { steps: [ { id: a, run: 'until test -e gate; do sleep 0.05; done; echo x >> ended' } ] }
";
    let server = Server::start_with(Project::with(book), &[]);
    let project = &server.project;
    // Room for a few steps at a time and what the keeper keeps free.
    leave_room(keeper(&server), 40);
    let runs: Vec<String> = (0..12).map(|_| start(project, &[])).collect();
    let waits = |run: &String| text(&project.show(run), "status") == "waiting_external";
    let waiting = until("a step to wait for room", || runs.iter().find(|run| waits(run)).cloned());
    until("the reason", || {
        let why = project.windlass(&["why", &waiting]).code(0).out;
        // It may be tried just now.
        (why.contains("could be begun") && why.contains("Too many open files")).then_some(())
    });
    project.write("gate", "");
    runs.iter().for_each(|run| ends(project, run, "completed"));
    assert_eq!(project.read("ended").lines().count(), runs.len(), "each ran once");
    let returned = project.events("step:returned");
    assert!(
        returned.iter().any(|record| text(record, "reason").contains("Too many open files")),
        "{returned:?}"
    );
    assert!(project.events("step:failed").is_empty());
}

#[test]
fn a_command_of_a_guard_for_which_there_is_no_room_is_tried_later() {
    let book = "
name: guarded
pipelines:
  p: { steps: [ { id: t, transform: { value: { x: 1 } }, guard: [ { command: 'true', on_failure: fail } ] } ] }
";
    let server = Server::start_with(Project::with(book), &[]);
    let project = &server.project;
    let keeper = keeper(&server);
    leave_room(keeper, 10);
    let run = start(project, &[]);
    until("policy's yes", || (!project.events("policy:decided").is_empty()).then_some(()));
    leave_room(keeper, 100);
    ends(project, &run, "completed");
}

#[test]
fn a_scratch_folder_that_was_removed_is_made_again() {
    let book = "
name: scratch
pipelines:
  p:
    steps:
      - { id: wait, run: 'echo >> began; until test -e gate; do sleep 0.05; done' }
      - { id: a, outputs: { x: number }, run: 'echo x=1 >> \"$WL_OUTPUT\"' }
";
    let server = Server::start_with(Project::with(book), &[]);
    let project = &server.project;
    let run = start(project, &[]);
    project.await_file("began");
    fs::remove_dir_all(project.path("data/scratch")).unwrap();
    project.write("gate", "");
    ends(project, &run, "completed");
    assert_eq!(project.show(&run)["steps"][1]["output"]["x"], 1);
}

/// A step that leaves a process in a session of its own, with nothing in its environment, and one that runs beside it.
const DAEMON: &str = "
name: daemon
pipelines:
  daemon:
    steps:
      - { id: a, run: '( env -i setsid /bin/bash -c \"echo \\$\\$ > daemon; exec /bin/sleep 1000\" & ); sleep 1000' }
  guard:
    steps:
      - id: t
        transform: { value: { x: 1 } }
        guard: [ { command: '( env -i setsid /bin/bash -c \"echo \\$\\$ > daemon; exec /bin/sleep 1000\" & ); sleep 1000' } ]
  beside:
    steps:
      - { id: b, run: 'echo $$ > beside; exec sleep 1000' }
";

#[test]
fn a_process_that_cleared_its_environment_ends_with_a_cancel_while_another_step_runs() {
    let server = Server::start_with(Project::with(DAEMON), &[]);
    let project = &server.project;
    start(project, &["beside"]);
    let beside = project.await_file("beside");
    for pipeline in ["daemon", "guard"] {
        project.remove("daemon");
        let run = start(project, &[pipeline]);
        let daemon = project.await_file("daemon");
        assert!(is_alive(&daemon));
        project.windlass(&["cancel", &run]).code(0);
        ends(project, &run, "cancelled");
        // A step's processes are gone before its run is over; a guard's, within its grace time.
        until("the daemon to end", || (!is_alive(&daemon)).then_some(()));
        assert!(is_alive(&beside), "{pipeline}");
    }
}

#[test]
fn a_process_that_cleared_its_environment_ends_when_the_server_or_its_keeper_is_killed() {
    let mut server = Server::start_with(Project::with(DAEMON), &[]);
    for (pipeline, kills_keeper) in [("daemon", true), ("guard", true), ("daemon", false), ("guard", false)] {
        let project = &server.project;
        project.remove("daemon");
        let run = start(project, &[pipeline]);
        let daemon = project.await_file("daemon");
        assert!(is_alive(&daemon));
        if kills_keeper {
            kill(keeper(&server));
            until("the daemon to end", || (!is_alive(&daemon)).then_some(()));
            project.windlass(&["cancel", &run]).code(0);
            ends(project, &run, "cancelled");
        } else {
            server.process.take().expect("a process").kill();
            until("the daemon to end", || (!is_alive(&daemon)).then_some(()));
            server.begin(&[]);
            server.project.windlass(&["cancel", &run]).code(0);
        }
    }
}

#[test]
fn no_step_begins_after_the_answer_to_a_cancel() {
    let server = Server::start();
    let project = &server.project;
    let owner = server.owner();
    let book = format!(
        "
name: cancelled
pipelines:
  p: {{ steps: [ {{ id: a, run: 'cp /proc/$$/stat {}/began-$WL_RUN_ID; sleep 1000' }} ] }}
",
        project.root().display()
    );
    let yaml = [("content-type", "application/yaml")];
    server.send("POST", "/v1/runbooks", Some(&owner), &yaml, book.as_bytes()).status(201);
    let mut late = Vec::new();
    for _ in 0..60 {
        let wish = serde_json::json!({ "runbook": "cancelled", "pipeline": "p" });
        let run = server.ask("POST", "/v1/runs", Some(&owner), Some(&wish)).status(201).json();
        let run = text(&run, "id").to_owned();
        server.ask("POST", &format!("/v1/runs/{run}/cancel"), Some(&owner), Some(&serde_json::json!({})));
        // In ticks since the machine started, as the system tells when a process began.
        let up = fs::read_to_string("/proc/uptime").unwrap();
        let answered = (up.split(' ').next().unwrap().parse::<f64>().unwrap() * 100.0).round() as u64;
        until("the end", || {
            let shown = server.ask("GET", &format!("/v1/runs/{run}"), Some(&owner), None).json();
            (text(&shown, "status") == "cancelled").then_some(())
        });
        let stat = project.read(&format!("began-{run}"));
        let began = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(19)?.parse::<u64>().ok());
        late.extend(began.filter(|began| *began > answered));
    }
    assert!(late.is_empty(), "{} began after the answer", late.len());
}
