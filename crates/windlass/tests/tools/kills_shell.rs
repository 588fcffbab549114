//! The process is killed while a shell step has its effect: on the machine of the server, and on another one.
//!
//! A shell step speaks to the other side itself, with the key that it is given. What is not said otherwise is carried out
//! again under the same key; what says `effect: at_most_once` is not.

use crate::holder::{hold_with, url_of};
use crate::kills::{Dies, Other, killed, settled};
use crate::outside::Server;
use crate::support::{Process, Project, status_of, text, until};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Asks the other side for an effect, under the step's key. Whatever is not a yes is a failure.
const ACT: &str = r#"
exec 3<>"/dev/tcp/127.0.0.1/$1"
printf 'PUT /effect HTTP/1.1\r\nidempotency-key: %s\r\ncontent-length: 0\r\n\r\n' "$WL_IDEMPOTENCY_KEY" >&3
read -r answer <&3
case "$answer" in *" 200 "*) ;; *) exit 9 ;; esac
"#;

/// A project whose one step is a program with an effect.
fn scene(more: &str, dies: Dies) -> (Project, Server, Other) {
    let other = Other::new(dies);
    let answers = other.clone();
    let server = Server::start(move |request| answers.answer(request));
    let project = Project::new();
    project.script("act", ACT);
    // An executor elsewhere has a working directory of its own.
    let act = format!("{} {}", project.path("act").display(), server.port);
    project.write(
        "book.yaml",
        format!("name: t\npipelines:\n  p:\n    steps:\n      - {{ id: w, run: '{act}'{more} }}\n"),
    );
    (project, server, other)
}

fn keys(server: &Server) -> BTreeSet<String> {
    server.seen().iter().map(|request| request.header("idempotency-key").to_owned()).collect()
}

#[test]
fn a_shell_step_is_carried_out_again_under_its_key() {
    for dies in [Dies::Before, Dies::After] {
        let (project, server, other) = scene("", dies);
        let (_holder, run) = killed(&project, &other);
        settled(&project, &run, "the end", |run| run["status"] == "completed");
        assert_eq!((server.count("PUT"), keys(&server).len()), (2, 1), "{dies:?}");
        assert!(!keys(&server).contains(""), "a step has a key");
        assert_eq!(other.effects.load(Ordering::SeqCst), 1, "{dies:?}");
    }
}

/// Nothing happens to an unknown outcome until a human says; then what was said.
fn a_human_settles(
    project: &Project,
    server: &Server,
    run: &str,
    word: &str,
    restart: impl FnOnce() -> Option<Process>,
) {
    let shown = settled(project, run, "a human", |run| run["status"] == "awaiting_approval");
    assert_eq!(status_of(&shown, "w"), "outcome_unknown");
    let _again = restart();
    assert_eq!((server.count("PUT"), status_of(&project.show(run), "w")), (1, "outcome_unknown"));
    project.windlass(&["resolve", run, "w", word, "--reason", "looked"]).code(0);
    let (status, tries) = match word {
        "done" => ("completed", 1),
        "retry" => ("completed", 2),
        _ => ("failed", 1),
    };
    settled(project, run, "the end", |run| run["status"] == status);
    assert_eq!((server.count("PUT"), keys(server).len()), (tries, 1), "{word}");
    let resolved = project.events("step:resolved");
    assert_eq!((resolved.len(), &resolved[0]["probed"]), (1, &false.into()), "{resolved:?}");
}

#[test]
fn a_shell_step_that_must_not_happen_twice_is_unknown_until_a_human_says() {
    for dies in [Dies::Before, Dies::After] {
        for word in ["done", "retry", "fail"] {
            let (project, server, other) = scene(", effect: at_most_once", dies);
            let (holder, run) = killed(&project, &other);
            a_human_settles(&project, &server, &run, word, || {
                holder.kill();
                Some(crate::holder::hold(&project))
            });
            let happened = u32::from(dies == Dies::After || word == "retry");
            assert_eq!(other.effects.load(Ordering::SeqCst), happened, "{dies:?} {word}");
        }
    }
}

fn executor(project: &Project, server: &str, name: &str) -> Process {
    let scratch = project.path(name);
    let scratch = scratch.to_str().unwrap();
    let words = ["executor", "--server", server, "--labels", "far", "--name", name, "--scratch", scratch];
    // What keeps steps apart has tests of its own.
    project.start(&[&words[..], &["--shared-user"]].concat())
}

#[test]
fn an_executor_that_is_killed_leaves_the_same_behind() {
    for dies in [Dies::Before, Dies::After] {
        for word in ["", "done", "retry"] {
            let more = if word.is_empty() { "" } else { ", effect: at_most_once" };
            let (project, server, other) = scene(&format!(", runs_on: [far]{more}"), dies);
            let mut holder = hold_with(&project, &[("WINDLASS_LEASE_TTL", "1500ms")]);
            let url = url_of(&mut holder);
            let mut first = executor(&project, &url, "one");
            other.victim.store(first.id(), Ordering::SeqCst);
            let started = project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0);
            let run = text(&started.json(), "id").to_owned();
            until("the kill", || first.has_ended().then_some(()));
            let _second = executor(&project, &url, "two");
            if word.is_empty() {
                settled(&project, &run, "the end", |run| run["status"] == "completed");
                assert_eq!((server.count("PUT"), keys(&server).len()), (2, 1), "{dies:?}");
                assert_eq!(other.effects.load(Ordering::SeqCst), 1, "{dies:?}");
            } else {
                a_human_settles(&project, &server, &run, word, || None);
            }
        }
    }
}
