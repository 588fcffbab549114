//! The process is killed between every two of intent, effect and receipt, for every semantics. Effects are counted by
//! the other side: one for each key where that is promised, and an unknown outcome where it is not.
//!
//! It is the other side that kills, while it holds the request: so it is known what had happened by then.

use crate::holder::hold;
use crate::outside::{Answer, Request, Server, World, say};
use crate::support::{Project, status_of, step, text, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// When the holder dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dies {
    /// After the intent, before the effect.
    Before,
    /// After the effect, before the receipt.
    After,
}

/// The other side: it does each effect once per key, as far as the way of asking allows, and kills once.
#[derive(Clone)]
pub(crate) struct Other {
    world: World,
    /// Keys of plain requests that had their effect, and how many effects there were in all.
    keys: Arc<Mutex<BTreeSet<String>>>,
    pub(crate) effects: Arc<AtomicU32>,
    /// Who is killed.
    pub(crate) victim: Arc<AtomicU32>,
    armed: Arc<AtomicBool>,
    dies: Dies,
}

impl Other {
    pub(crate) fn new(dies: Dies) -> Other {
        Other {
            world: World::default(),
            keys: Arc::default(),
            effects: Arc::default(),
            victim: Arc::default(),
            armed: Arc::new(AtomicBool::new(true)),
            dies,
        }
    }

    /// Kills the holder, once, and waits until it is gone.
    fn kill(&self) {
        let pid = self.victim.load(Ordering::SeqCst);
        let raw = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    }

    fn effect(&self, request: &Request) -> Answer {
        if request.path == "/effect" {
            // A server that knows keys does it once; one that does not is given none twice.
            let key = request.header("idempotency-key").to_owned();
            if self.keys.lock().unwrap().insert(key) {
                self.effects.fetch_add(1, Ordering::SeqCst);
            }
            return say(200, &json!({ "done": true }));
        }
        self.effects.fetch_add(1, Ordering::SeqCst);
        self.world.answer(request)
    }

    pub(crate) fn answer(&self, request: &Request) -> Answer {
        let writes = matches!(request.method.as_str(), "POST" | "PUT" | "PATCH" | "DELETE");
        if !writes {
            return self.world.answer(request);
        }
        if !self.armed.swap(false, Ordering::SeqCst) {
            return self.effect(request);
        }
        if self.dies == Dies::After {
            self.effect(request);
        }
        self.kill();
        Answer::Reset
    }
}

const IDEMPOTENT: &str = "http: { url: 'URL/effect', method: PUT, json: { a: 1 } }";
const RECONCILED: &str = "github.comment: { repo: o/r, number: 1, body: Hello }";
const ONCE: &str = "http: { url: 'URL/effect', method: POST, json: { a: 1 } }";

/// A project whose one step has an effect, and the other side of it.
fn scene(step: &str, dies: Dies) -> (Project, Server, Other) {
    let other = Other::new(dies);
    let answers = other.clone();
    let server = Server::start(move |request| answers.answer(request));
    let book = format!(
        "name: t\npipelines:\n  p:\n    steps:\n      - {{ id: w, {} }}\n",
        step.replace("URL", &server.url())
    );
    let project = Project::with(&book)
        .env("WINDLASS_GITHUB_API_URL", &server.url())
        .env("WINDLASS_SECRET_GITHUB_TOKEN", "tok-1234567890")
        .env("WINDLASS_HTTP_ALLOW_PRIVATE", "127.0.0.1");
    (project, server, other)
}

/// Runs until the holder is killed, starts it again, and returns the run.
pub(crate) fn killed(project: &Project, other: &Other) -> (crate::support::Process, String) {
    let mut holder = hold(project);
    other.victim.store(holder.id(), Ordering::SeqCst);
    let started = project.windlass(&["run", "book.yaml", "--detach", "--json"]).code(0);
    let run = text(&started.json(), "id").to_owned();
    until("the kill", || holder.has_ended().then_some(()));
    (hold(project), run)
}

pub(crate) fn settled(project: &Project, run: &str, what: &str, look: impl Fn(&Value) -> bool) -> Value {
    until(what, || Some(project.show(run)).filter(|shown| look(shown)))
}

#[test]
fn an_idempotent_effect_is_asked_for_again_under_its_key_and_happens_once() {
    for dies in [Dies::Before, Dies::After] {
        let (project, server, other) = scene(IDEMPOTENT, dies);
        let (_holder, run) = killed(&project, &other);
        let shown = settled(&project, &run, "the end", |run| run["status"] == "completed");
        assert_eq!(status_of(&shown, "w"), "succeeded");
        let keys: BTreeSet<String> =
            server.seen().iter().map(|request| request.header("idempotency-key").to_owned()).collect();
        assert_eq!((server.count("PUT"), keys.len()), (2, 1), "{dies:?}");
        assert_eq!(other.effects.load(Ordering::SeqCst), 1, "{dies:?}");
        let receipts = project.windlass(&["show", &run, "--receipts", "--json"]).code(0).json();
        assert_eq!(receipts["items"][0]["status"], "succeeded");
    }
}

#[test]
fn an_effect_that_can_be_looked_for_is_done_again_only_where_it_is_not_there() {
    for dies in [Dies::Before, Dies::After] {
        let (project, server, other) = scene(RECONCILED, dies);
        let (_holder, run) = killed(&project, &other);
        let shown = settled(&project, &run, "the end", |run| run["status"] == "completed");
        assert_eq!(step(&shown, "w")["output"]["id"], 1);
        assert_eq!(other.effects.load(Ordering::SeqCst), 1, "{dies:?}");
        assert_eq!(other.world.things().comments.len(), 1);
        let tries = if dies == Dies::After { 1 } else { 2 };
        assert_eq!(server.count("POST"), tries, "{dies:?}");
        let resolved = project.events("step:resolved");
        assert_eq!(resolved[0]["probed"], true);
        assert_eq!(resolved[0]["resolution"], if dies == Dies::After { "done" } else { "retry" });
        let receipts = project.windlass(&["show", &run, "--receipts", "--json"]).code(0).json();
        assert_eq!(receipts["items"][0]["reversible"], true, "what was found can be taken back: {receipts}");
    }
}

#[test]
fn an_effect_that_nobody_can_look_for_is_unknown_until_a_human_says() {
    for dies in [Dies::Before, Dies::After] {
        for (word, status, tries) in
            [("done", "completed", 1), ("retry", "completed", 2), ("fail", "failed", 1)]
        {
            let (project, server, other) = scene(ONCE, dies);
            let (holder, run) = killed(&project, &other);
            let shown = settled(&project, &run, "a human", |run| run["status"] == "awaiting_approval");
            assert_eq!(status_of(&shown, "w"), "outcome_unknown");
            // Nothing is retried silently, not even by another start.
            holder.kill();
            let _again = hold(&project);
            assert_eq!((server.count("POST"), status_of(&project.show(&run), "w")), (1, "outcome_unknown"));
            project.windlass(&["resolve", &run, "w", word, "--reason", "looked"]).code(0);
            settled(&project, &run, "the end", |run| run["status"] == status);
            assert_eq!(server.count("POST"), tries, "{dies:?} {word}");
        }
    }
}

#[test]
fn an_effect_with_a_receipt_is_never_asked_for_again() {
    let (project, server, other) = scene(ONCE, Dies::After);
    other.armed.store(false, Ordering::SeqCst);
    let holder = hold(&project);
    let run = project.windlass(&["run", "book.yaml", "--json"]).code(0).last();
    let run = text(&run, "id").to_owned();
    holder.kill();
    let _again = hold(&project);
    assert_eq!(project.show(&run)["status"], "completed");
    assert_eq!((server.count("POST"), project.events("receipt:recorded").len()), (1, 1));
}

#[test]
fn a_read_of_the_runbook_tells_what_became_of_a_request() {
    for dies in [Dies::Before, Dies::After] {
        let (project, server, other) = scene(ONCE, dies);
        let book = project
            .read("book.yaml")
            .replace("json: { a: 1 } }", "json: { a: 1 } }, effect: { reconcile: { run: 'test -f seen' } }");
        project.write("book.yaml", book);
        if dies == Dies::After {
            project.write("seen", "x");
        }
        let (_holder, run) = killed(&project, &other);
        settled(&project, &run, "the end", |run| run["status"] == "completed");
        assert_eq!(server.count("POST"), if dies == Dies::After { 1 } else { 2 }, "{dies:?}");
        assert_eq!(other.effects.load(Ordering::SeqCst), 1);
    }
}
