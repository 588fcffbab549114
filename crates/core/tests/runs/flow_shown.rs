//! Nothing executes that was not shown: whatever happens between a card and its action, a lease does what stood on a card
//! that a human said yes to, wherever somebody had to be asked.
//!
//! What a lease does is worked out here from the lease, the pinned runbook and the outputs of the run; what was shown is
//! what stood on the card when the yes was given. Neither is asked of the code that decides.

use crate::world::*;
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use windlass_core::approval::{Approval, Status as Settled, Verdict as Says};
use windlass_core::attempt::Report;
use windlass_core::digest::Digest;
use windlass_core::effect::Lease;
use windlass_core::id::RunId;
use windlass_core::policy::Verdict;
use windlass_core::runbook::{Kind, Runbook, VarDef, WaitFor};
use windlass_core::step::Status as S;
use windlass_core::stream::StreamId;
use windlass_core::time::Span;
use windlass_core::turn::command::{Command, Deploy, Reply};
use windlass_core::turn::state::Body;

/// The other version of the runbook.
const OTHER: Digest = Digest([99; 32]);

/// What may happen between a card and its action.
#[derive(Clone, Copy, Debug)]
enum Op {
    Change(&'static str, i32),
    Decide {
        which: usize,
        yes: bool,
    },
    Policy(Verdict),
    Moved(u8),
    Suspend,
    Resume,
    /// An event comes, with data that a later step is given.
    Signal(i32),
    Lease(usize),
    /// A running step ends; where it succeeds, with this output.
    End {
        which: usize,
        how: u8,
        output: i32,
    },
    Sleep(u64),
    Retry,
    /// A run that goes on from a step of this one, with its own runbook or with the one that is deployed.
    Fork {
        from: &'static str,
        deployed: bool,
    },
    /// One version or the other becomes the active one of the name.
    Redeploy(bool),
    /// A new run of what is deployed.
    Start,
    /// Whatever brings the run on, so that cases come to its end.
    Walk(i32),
}

fn op() -> impl Strategy<Value = Op> {
    let verdict = prop::sample::select(vec![Verdict::Allow, Verdict::NeedsApproval, Verdict::NeedsApproval]);
    let from = prop::sample::select(vec!["s", "heard", "told", "last"]);
    prop_oneof![
        3 => (prop::sample::select(vec!["x", "y"]), 0..3).prop_map(|(var, to)| Op::Change(var, to)),
        14 => (0..6usize, prop::bool::weighted(0.95)).prop_map(|(which, yes)| Op::Decide { which, yes }),
        4 => verdict.prop_map(Op::Policy),
        1 => (0..2u8).prop_map(Op::Moved),
        1 => Just(Op::Suspend),
        3 => Just(Op::Resume),
        4 => (0..3).prop_map(Op::Signal),
        14 => (0..6usize).prop_map(Op::Lease),
        12 => (0..6usize, 0..7u8, 0..3).prop_map(|(which, how, output)| Op::End { which, how, output }),
        1 => (0..90u64).prop_map(Op::Sleep),
        2 => Just(Op::Retry),
        2 => (from, any::<bool>()).prop_map(|(from, deployed)| Op::Fork { from, deployed }),
        1 => any::<bool>().prop_map(Op::Redeploy),
        1 => Just(Op::Start),
        40 => (0..3).prop_map(Op::Walk),
    ]
}

/// What can be leased.
const STEPS: [&str; 8] = ["s", "w", "held", "told", "each[0]", "each[1]", "new", "last"];

/// A step whose environment has what another gave.
fn given(id: &str, from: &str) -> Spec {
    run(id).with(|def| drop(def.env.insert("GIVEN".to_string(), expr(from))))
}

/// The steps of every kind: by policy, by `approve … for:`, behind a plain `approve`, behind one that asks about what a
/// step put out; a wait for an event whose data is used; and in the other version a step more, other commands and another
/// environment.
fn version(hash: Digest) -> Runbook {
    let other = hash == OTHER;
    let event = WaitFor::Event { event: name("event"), key: None, timeout: None, continue_on_timeout: false };
    let late = approve("late").with(|def| {
        if let Kind::Approve { message, .. } = &mut def.kind {
            *message = expr("steps.s.output");
        }
    });
    let write = write("w").retry(3, Span::secs(1)).with(|def| {
        if let Kind::Tool { with, .. } = &mut def.kind {
            *with = expr(if other { "vars.y" } else { "vars.x" });
        }
    });
    let held = given("held", "steps.heard.output").with(|def| {
        if let (Kind::Run { command }, true) = (&mut def.kind, other) {
            *command = "./another".to_string();
        }
    });
    let mut steps = vec![
        approve("plain"),
        run("s").retry(3, Span::secs(1)).undo(run("back")),
        wait("heard", event),
        late,
        approve_for("named", &["held", "w", "told"]),
        parallel("side", vec![write, held]),
        given("told", if other { "steps.heard.output" } else { "steps.s.output" }),
        run("each").foreach(literal(json!([1, 2])), 2, true),
        given("last", "steps.heard.output").retry(2, Span::secs(1)),
    ];
    if other {
        steps.insert(1, run("new"));
    }
    let mut main = pipeline(steps, Vec::new(), Vec::new());
    for var in ["x", "y"] {
        main.vars.insert(name(var), VarDef { default: Some(json!(1)), ..VarDef::default() });
    }
    book(vec![("main", main)])
}

/// A yes, with what stood on the card.
struct Yes {
    root: RunId,
    run: RunId,
    runbook: Digest,
    asked_by: String,
    step: String,
    own: bool,
    fields: Value,
}

/// What happened over all cases: a property that never gets to its point shows nothing.
type Seen = BTreeMap<String, u32>;

struct Stage<'a> {
    world: World,
    id: RunId,
    said: Vec<Yes>,
    seen: &'a RefCell<Seen>,
}

impl Stage<'_> {
    fn new(seen: &RefCell<Seen>) -> Stage<'_> {
        let mut world = World::new(version(BOOK));
        world.load(OTHER, version(OTHER));
        let id = world.start();
        Stage { world, id, said: Vec::new(), seen }
    }

    fn saw(&self, what: &str) {
        *self.seen.borrow_mut().entry(what.to_string()).or_default() += 1;
    }

    fn deployed(&self) -> Digest {
        match self.world.state.stream(&StreamId::Deployment(scoped("test"))).map(|stream| &stream.body) {
            Some(Body::Deployment(active)) => active.as_ref().as_ref().map_or(BOOK, |active| active.hash),
            _ => BOOK,
        }
    }

    /// Says something about one of the open questions, and keeps what a yes was said to.
    fn decide(&mut self, which: usize, yes: bool) {
        let id = self.id;
        let all = |world: &World| world.run(id).rare().approvals.clone();
        let before = all(&self.world);
        let open: Vec<&Approval> = before.values().filter(|a| a.status == Settled::Requested).collect();
        let Some(card) = open.get(which % open.len().max(1)) else { return };
        let says = if yes { Says::Approved } else { Says::Rejected };
        let _ = self.world.decide(id, card.id, says, card.action_hash, "bob");
        if all(&self.world).get(&card.id).is_some_and(|now| now.status == Settled::Approved) {
            let run = self.world.run(id);
            self.said.push(Yes {
                root: run.born.lineage().root_run,
                run: id,
                runbook: run.born.home.runbook,
                asked_by: card.by_step.as_ref().unwrap_or(&card.step).to_string(),
                step: card.step.to_string(),
                own: card.by_step.is_none(),
                fields: card.action.as_ref().unwrap().fields.clone(),
            });
        }
    }

    fn policy(&mut self, verdict: Verdict) {
        let (world, id) = (&mut self.world, self.id);
        for step in STEPS {
            let waits = world.run(id).step(&name(step)).is_some_and(|s| !s.status.is_terminal());
            if !waits || world.run(id).is_terminal() {
                continue;
            }
            if world.step(id, step).tool.as_str() == "shell" {
                let decided = windlass_core::event::PolicyDecided {
                    pipeline_id: id,
                    verdict,
                    ..allow_shell(world.policy)
                };
                let _ = world.send(&Command::PolicyDecided(Box::new(decided)));
            } else {
                world.decide_policy(id, step, verdict);
            }
        }
    }

    fn lease(&mut self, which: usize) -> Result<(), TestCaseError> {
        let ready = self.world.leasable(self.id);
        let Some(step) = ready.get(which % ready.len().max(1)) else { return Ok(()) };
        if let Ok(turn) = self.world.try_lease(self.id, step, "ex1")
            && let Reply::Leased(lease) = turn.reply
        {
            self.check(&lease)?;
        }
        Ok(())
    }

    fn end(&mut self, which: usize, how: u8, output: i32) {
        let running = |s: &&windlass_core::step::Step| s.status == S::Running && s.lease.is_some();
        let all: Vec<(String, u64)> = self
            .world
            .run(self.id)
            .steps
            .iter()
            .filter(running)
            .map(|s| (s.id.to_string(), s.epoch))
            .collect();
        let Some((step, epoch)) = all.get(which % all.len().max(1)) else { return };
        let report = match how {
            0 => Report::Failed {
                failure: failure("no"),
                retryable: true,
                exit_code: Some(1.into()),
                signal: None,
            },
            1 => Report::Returned { reason: None },
            _ => Report::Done { output: Some(json!(output)), exit_code: Some(0.into()) },
        };
        self.world.report(self.id, step, *epoch, report).unwrap();
    }

    /// Says yes to what is open, else ends what runs, else begins what can begin, else brings what is waited for.
    fn walk(&mut self, n: i32) -> Result<(), TestCaseError> {
        let run = self.world.run(self.id);
        let open = run.rare().approvals.values().any(|a| a.status == Settled::Requested);
        let runs = run.steps.iter().any(|s| s.status == S::Running && s.lease.is_some());
        let ready = run.leasable().next().is_some();
        match (open, runs, ready) {
            (true, _, _) => self.decide(0, true),
            (false, true, _) => self.end(0, 2, n),
            (false, false, true) => self.lease(0)?,
            (false, false, false) => {
                for op in [Op::Resume, Op::Signal(n), Op::Policy(Verdict::Allow)] {
                    self.act(op)?;
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, op: Op) -> Result<(), TestCaseError> {
        let run = self.id;
        match op {
            Op::Change(var, to) => {
                let vars = Some(json!({ var: to }));
                let _ = self.world.send(&Command::Resume { run, message: None, vars });
            }
            Op::Decide { which, yes } => self.decide(which, yes),
            Op::Policy(verdict) => self.policy(verdict),
            Op::Moved(n) => self.world.policy = Digest([7 + n; 32]),
            Op::Suspend => drop(self.world.send(&Command::Suspend { run, reason: None })),
            Op::Resume => drop(self.world.send(&Command::Resume { run, message: None, vars: None })),
            // What it is called like is no way to change a variable.
            Op::Signal(n) => {
                drop(self.world.signal(run, "event", None, json!({ "n": n, "x": n, "vars": { "x": n } })));
            }
            Op::Lease(which) => self.lease(which)?,
            Op::End { which, how, output } => self.end(which, how, output),
            Op::Sleep(mins) => self.world.sleep(Span::mins(mins)),
            Op::Walk(n) => self.walk(n)?,
            Op::Retry => self.descend(None, None),
            Op::Fork { from, deployed } => {
                let runbook = deployed.then(|| self.deployed());
                self.descend(Some(from), runbook);
            }
            Op::Redeploy(other) => {
                let hash = if other { OTHER } else { BOOK };
                let deploy = Deploy {
                    deployment: scoped("test"),
                    hash,
                    project_root: "/srv".into(),
                    next: Default::default(),
                };
                if !self.world.send(&Command::Deploy(Box::new(deploy))).unwrap().facts.is_empty() {
                    self.saw("redeployed");
                }
            }
            Op::Start => {
                let mut create = self.world.create("main", Value::Null);
                create.runbook = self.deployed();
                self.id = create.id;
                self.world.send(&Command::Create(Box::new(create))).unwrap();
            }
        }
        Ok(())
    }

    fn descend(&mut self, from: Option<&str>, runbook: Option<Digest>) {
        let new = RunId(self.world.id());
        let from = from.map(name);
        let forked = from.is_some();
        if self.world.send(&Command::Descend { run: self.id, new, from, runbook }).is_ok() {
            self.saw(if forked { "forked" } else { "retried" });
            self.id = new;
        }
    }

    /// Whether a human said yes to exactly what a lease is about to do, wherever somebody had to be asked.
    fn check(&self, lease: &Lease) -> Result<(), TestCaseError> {
        let (world, id) = (&self.world, lease.run);
        let run = world.run(id);
        let hash = run.born.home.runbook;
        let book = version(hash);
        let def = book.pipelines[&name("main")].node(lease.node).unwrap().clone();
        let (step, vars) = (lease.step.as_str(), lease.vars.get());
        if world.step(id, step).compensates.is_some() {
            // What takes a failed run back waits for nobody who was asked about going on.
            self.saw("taken back");
            return Ok(());
        }
        prop_assert_eq!(&vars, &run.vars.get(), "a lease has the variables of its run as they are");
        // What is about to be done, made from the lease, the runbook that the run is pinned to, and what steps put out.
        let env = def.env.get("GIVEN").map(|of| match of {
            windlass_core::template::Template::Expr(of) => {
                json!({ "GIVEN": world.output(id, of.split('.').nth(1).unwrap()) })
            }
            other => panic!("{other:?}"),
        });
        let does = |fields: &Value| match &def.kind {
            Kind::Run { command } => {
                fields["vars"] == vars
                    && fields["command"] == json!(command)
                    && fields.get("env") == env.as_ref()
            }
            _ => Some(fields) == lease.input.as_ref().map(|input| &input["fields"]),
        };
        let given = lease.input.as_ref().and_then(|input| input.get("env"));
        prop_assert_eq!(given, env.as_ref(), "{} is given what its steps put out", step);
        let root = run.born.lineage().root_run;
        let of_lineage = |yes: &&Yes, by: &str| yes.root == root && yes.runbook == hash && yes.asked_by == by;
        let shown_by = |by: &str, shows: &dyn Fn(&Value) -> bool| {
            self.said.iter().filter(|yes| of_lineage(yes, by)).any(|yes| shows(&yes.fields))
        };
        // The plain approvals hold for all that follows; a run that goes on keeps one for the same question only.
        let plain = shown_by("plain", &|fields| fields["vars"] == vars);
        prop_assert!(plain, "{} runs with {}, which nobody saw", step, vars);
        if !matches!(step, "s" | "new") {
            let output = world.output(id, "s");
            let shown = shown_by("late", &|fields| fields["vars"] == vars && fields["message"] == output);
            prop_assert!(shown, "{} runs after {}, which nobody saw", step, output);
        }
        if matches!(step, "w" | "held" | "told") {
            let shown = self.said.iter().filter(|yes| yes.run == id && yes.asked_by == "named").any(|yes| {
                let named = yes.fields["steps"].as_array().cloned().unwrap_or_default();
                let there = named.iter().any(|s| s["step"] == step && does(&s["action"]["fields"]));
                there || !yes.own && yes.step == step && does(&yes.fields)
            });
            prop_assert!(shown, "{} does what was not shown", step);
        }
        let found = world.step(id, step);
        let wants = run.policy().standing(&found.id, &found.tool, found.action_hash(), &world.policy);
        if wants.map(|d| d.verdict) == Some(Verdict::NeedsApproval) {
            let own =
                self.said.iter().any(|yes| yes.run == id && yes.own && yes.step == step && does(&yes.fields));
            prop_assert!(own, "{} does what policy wanted approved, and nobody did", step);
        }
        self.saw(step);
        if !run.rare().inherited.is_empty() {
            self.saw(&format!("{step} of a run that goes on"));
        }
        if self.said.iter().any(|yes| yes.run == id && yes.asked_by != step && !yes.own) {
            self.saw("asked again for an earlier one");
        }
        Ok(())
    }
}

/// The property, and that the cases came to everything that it is about.
#[test]
fn nothing_executes_that_was_not_shown() {
    let seen = RefCell::new(Seen::new());
    let config = ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&prop::collection::vec(op(), 0..160), |ops| {
        let mut stage = Stage::new(&seen);
        for op in ops {
            stage.act(op)?;
        }
        stage.world.check_replay();
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, ops)) => panic!("{why}\n{ops:#?}"),
        Err(other) => panic!("{other}"),
    }
    let seen = seen.into_inner();
    let again: Vec<String> = STEPS.iter().map(|step| format!("{step} of a run that goes on")).collect();
    let more = ["redeployed", "forked", "retried", "taken back", "asked again for an earlier one"];
    let points = STEPS.iter().copied().chain(again.iter().map(String::as_str)).chain(more);
    let missed: Vec<&str> = points.filter(|point| !seen.contains_key(*point)).collect();
    assert!(missed.is_empty(), "the cases never came to {missed:?}: {seen:#?}");
}
