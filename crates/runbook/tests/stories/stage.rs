//! The stage: the core with the real language, a log, a clock that only stories move, and the outside's standing answers.
//!
//! Every turn is decided by [`windlass_core::turn`], written as records and read back. A crash keeps the records and nothing
//! else.

use crate::names::{Names, START, since_start};
use crate::tell;
use std::collections::{BTreeMap, BTreeSet};
use windlass_core::attempt::Report;
use windlass_core::digest::{Digest, Salt};
use windlass_core::effect::Effect;
use windlass_core::event::PolicyDecided;
use windlass_core::id::{Holder, Name, RunId, Scoped, StepId};
use windlass_core::machine::{Beats, Given};
use windlass_core::policy::{self, Risk, Verdict};
use windlass_core::record::{Check, Draft, Record};
use windlass_core::run::{Actor, Initiator, Run, Status};
use windlass_core::schedule;
use windlass_core::step::Step;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::turn::command::{Command, Fact, Reply};
use windlass_core::turn::state::{Body, State};
use windlass_core::turn::{Driven, Driver, FOLLOW_MAX, Turn};
use windlass_runbook::cron;
use windlass_runbook::expr::Cel;

/// How long a lease lasts without a heartbeat.
pub const LEASE_TTL: Span = Span::secs(30);

/// How long a run's executor is silent before the run is called an orphan.
const ORPHAN_AFTER: Span = Span::mins(5);

/// The most turns that one command of a story can lead to.
const TURNS_MAX: usize = 1_000;

/// The executor in the process itself: it lives as long as the process does.
pub const LOCAL: &str = "local";

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap_or_else(|error| panic!("{error}"))
}

pub fn scoped(text: &str) -> Scoped {
    Scoped::new(&name("default"), &name("default"), &name(text))
}

/// What policy was asked about a step.
#[derive(Clone)]
pub struct Asked {
    pub tool: Name,
    pub hash: Option<Digest>,
    pub approvals: u32,
}

pub struct Stage {
    pub state: State,
    lines: Vec<String>,
    heads: BTreeMap<StreamId, Digest>,
    next_id: u128,
    pub at: Millis,
    shown: Millis,
    pub policy: Digest,
    /// Whether policy lets shell steps and agents pass by itself, as the built-in one does.
    pub allows: bool,
    pub asked: BTreeMap<(RunId, StepId), Asked>,
    /// Executors elsewhere: until when each attempt is theirs unless they beat, and when they were last heard of.
    pub elsewhere: BTreeMap<(RunId, StepId, u64), (Millis, Millis)>,
    slots: Vec<(Scoped, Box<schedule::Settings>, Millis, Millis)>,
    statuses: BTreeMap<RunId, Status>,
    cel: Cel,
    pub names: Names,
    pub out: Vec<String>,
    /// After so many decisions that follow from a command the turn is cut short, and the process ends.
    pub cut: Option<usize>,
}

impl Stage {
    pub fn new() -> Stage {
        let mut names = Names::default();
        names.call(&policy::BUILTIN.to_string(), "builtin");
        Stage {
            state: State::new(),
            lines: Vec::new(),
            heads: BTreeMap::new(),
            next_id: u128::from(START.0) << 80,
            at: START,
            shown: START,
            policy: policy::BUILTIN,
            allows: true,
            asked: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            slots: Vec::new(),
            statuses: BTreeMap::new(),
            cel: Cel::new(),
            names,
            out: Vec::new(),
            cut: None,
        }
    }

    pub fn id(&mut self) -> u128 {
        self.next_id += 1;
        self.next_id
    }

    pub fn say(&mut self, line: &str) {
        if self.at != self.shown {
            self.shown = self.at;
            self.out.push(since_start(self.at));
        }
        let line = self.names.shorten(line);
        self.out.push(line);
    }

    /// Decides a command as its asker, tells what came of it, and lets the outside give its standing answers. Says whether
    /// it was done.
    pub fn ask(&mut self, by: &Actor, command: &Command) -> bool {
        let turn = self.turn(by, command);
        let done = turn.is_ok();
        match turn {
            Ok(Turn { reply: Reply::Done, .. }) => {}
            Ok(turn) => {
                let told = tell::reply(&mut self.names, &turn.reply);
                self.say(&format!("= {told}"));
            }
            Err(told) => self.say(&format!("= {told}")),
        }
        self.answer();
        done
    }

    /// Decides a command that nobody waits for the answer of. A refusal means that it came too late.
    fn follow(&mut self, by: &Actor, command: &Command) {
        if let Err(told) = self.turn(by, command) {
            self.say(&format!("= {told}"));
        }
    }

    fn turn(&mut self, by: &Actor, command: &Command) -> Result<Turn, String> {
        let at = self.at;
        let most = self.cut.unwrap_or(FOLLOW_MAX);
        let before = self.state.clone();
        let driven =
            drive(&mut self.state, command, (by, at, self.policy), &self.cel, &mut self.next_id, most);
        let turn = driven.map_err(|refusal| tell::refusal(&mut self.names, &refusal))?;
        self.write(before, &turn.facts, by);
        for effect in &turn.effects {
            self.hear(effect);
            let told = tell::effect(&mut self.names, effect);
            self.say(&format!("! {told}"));
        }
        self.tell_statuses();
        if let Some(cut) = self.cut {
            self.pick_up(cut);
        }
        Ok(turn)
    }

    /// The turn was cut short and the process ended. Starts decide what was left over, each start no more than so much, until
    /// nothing is.
    fn pick_up(&mut self, cut: usize) {
        for _ in 0..TURNS_MAX {
            self.reload();
            let mut moved = false;
            for command in self.state.left_over() {
                let before = self.state.clone();
                let by = (&Actor::SYSTEM, self.at, self.policy);
                let turn = drive(&mut self.state, &command, by, &self.cel, &mut self.next_id, cut);
                if let Some(turn) = turn.ok().filter(|turn| !turn.facts.is_empty()) {
                    self.write(before, &turn.facts, &Actor::SYSTEM);
                    moved = true;
                    break;
                }
            }
            if !moved {
                let effects = self.state.outstanding();
                effects.iter().for_each(|effect| self.hear(effect));
                return self.tell_statuses();
            }
        }
        panic!("something stays left over");
    }

    /// What the records say, and nothing else; only heartbeats are kept, as if every holder beat again at once.
    pub fn reload(&mut self) {
        let mut state = State::new();
        state.beats = self.state.beats.clone();
        state.replay(&self.lines).expect("the log reads back");
        assert!(state == self.state, "the log does not come to the state");
        state.indexes_mut().promote(self.at);
        self.state = state;
    }

    /// Writes facts as records, and reads them back: the records alone come to what the turn decided.
    fn write(&mut self, mut replayed: State, facts: &[Fact], by: &Actor) {
        for fact in facts {
            let head = self.heads.entry(fact.stream.clone()).or_default();
            let known = replayed.stream(&fact.stream);
            let ver = known.map_or(0, |stream| stream.ver) + 1;
            let at = known.map_or(self.at, |stream| self.at.never_before(stream.at));
            let draft = Draft { stream: &fact.stream, ver, at, tenant: &fact.tenant, by, event: &fact.event };
            let (mut line, mut salts) = (Vec::new(), || Salt([7; 16]));
            *head = draft.encode(head, self.lines.len() as u64 + 1, &mut salts, &mut line);
            self.state.sealed(&fact.stream, *head);
            let line = String::from_utf8(line).expect("a record is text");
            let record = Record::decode(&line, Check::Form).expect("a record reads back");
            replayed.apply_event(&record).unwrap_or_else(|error| panic!("{error}: {line}"));
            let told = tell::fact(&mut self.names, &line);
            self.say(&format!("+ {told}"));
            self.lines.push(line);
        }
        assert!(replayed == self.state, "the records do not come to what the turn decided");
    }

    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.state.streams().filter_map(|(_, stream)| match &stream.body {
            Body::Run(run) => Some(&**run),
            // tidy: only runs are runs.
            _ => None,
        })
    }

    fn tell_statuses(&mut self) {
        let now: Vec<(RunId, Status, Option<String>)> =
            self.runs().map(|run| (run.id(), run.status(), run.reason())).collect();
        for (run, status, reason) in now {
            let was = self.statuses.insert(run, status);
            if was == Some(status) {
                continue;
            }
            let from = was.unwrap_or(Status::Pending);
            assert!(
                from == status || !from.path_to(status).is_empty(),
                "{run}: {from} cannot become {status}"
            );
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            self.say(&format!("  {run} is {status}{reason}"));
        }
    }

    fn hear(&mut self, effect: &Effect) {
        if let Effect::EvaluatePolicy { run, step, tool, action_hash, approvals, .. } = effect {
            let asked = Asked { tool: tool.clone(), hash: *action_hash, approvals: *approvals };
            self.asked.insert((*run, step.clone()), asked);
        }
        if let Effect::ComputeSlots { schedule, settings, after, until } = effect {
            self.slots.push((schedule.clone(), settings.clone(), *after, *until));
        }
    }

    /// The outside's standing answers: the calendar's, and those of the built-in policy about what stays here.
    fn answer(&mut self) {
        for _ in 0..TURNS_MAX {
            if let Some((schedule, settings, after, until)) = self.slots.pop() {
                let due =
                    cron::due(&schedule, &settings, after, until).expect("a checked schedule has slots");
                let runs = due.slots.iter().map(|_| RunId(self.id())).collect();
                let input = schedule::Input::Due { slots: due.slots, next_at: due.next_at, runs };
                self.say(&format!("~ the calendar answers for {}", schedule.name()));
                self.follow(&Actor::SYSTEM, &Command::Schedule { schedule, input });
                continue;
            }
            let own =
                |(_, asked): &(&(RunId, StepId), &Asked)| matches!(asked.tool.as_str(), "shell" | "agent");
            let next = self.asked.iter().find(own).map(|(place, _)| place.clone()).filter(|_| self.allows);
            let Some((run, step)) = next else { return };
            let decided = self.decided(run, &step, Verdict::Allow);
            self.say(&format!("~ policy allows {run}/{step}"));
            self.follow(&Actor::SYSTEM, &Command::PolicyDecided(Box::new(decided)));
        }
        panic!("the outside is asked for ever");
    }

    /// What policy says of a step that it was asked about.
    pub fn decided(&mut self, run: RunId, step: &StepId, verdict: Verdict) -> PolicyDecided {
        let asked = self.asked.remove(&(run, step.clone()));
        let asked = asked.unwrap_or_else(|| panic!("policy was not asked about {step}"));
        let whole = policy::scope(asked.tool.as_str()) == policy::Scope::PerRun;
        PolicyDecided {
            pipeline_id: run,
            step: (!whole).then(|| step.clone()),
            tool: asked.tool,
            action_hash: asked.hash,
            approvals: asked.approvals,
            ..self.shell(verdict)
        }
    }

    /// What policy says once of a run's shell steps.
    pub fn shell(&self, verdict: Verdict) -> PolicyDecided {
        PolicyDecided {
            pipeline_id: RunId(0),
            step: None,
            tool: name("shell"),
            verdict,
            policy_version: self.policy,
            action_hash: None,
            approvals: 0,
            rules: Vec::new(),
            reasons: Vec::new(),
            risk: Risk::Low,
            tier: None,
            count: None,
            two_person: None,
            approvers: None,
            expires_ms: None,
            purpose: None,
        }
    }

    /// Time passes: whatever comes due on the way is looked at when it does.
    pub fn wait(&mut self, span: Span) {
        let end = self.at + span;
        for _ in 0..TURNS_MAX {
            let lost = self.elsewhere.values().map(|(until, _)| *until).min();
            let next = [self.state.indexes().next_due(), lost].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.at = end;
                return;
            };
            self.at = self.at.never_before(next);
            self.live();
            let due: Vec<StreamId> = self.state.indexes().due(self.at).cloned().collect();
            for stream in due {
                self.follow(&windlass_core::cause::of_tick(&stream), &Command::Tick(stream));
            }
            self.expire();
            self.answer();
        }
        panic!("time does not go on");
    }

    /// The executor in the process beats for all that it carries out.
    fn live(&mut self) {
        let at = self.at;
        let own = |step: &&Step| {
            step.is_executing() && step.lease.as_ref().is_some_and(|l| l.owner.as_str() == LOCAL)
        };
        let holders: Vec<Holder> = self
            .runs()
            .flat_map(|run| run.live().filter(own).map(|step| Holder::Step(run.id(), step.id.clone())))
            .collect();
        holders.into_iter().for_each(|holder| self.state.beat(holder, at));
    }

    /// Attempts elsewhere of which nothing was heard for a whole lease.
    fn expire(&mut self) {
        let at = self.at;
        let over = self.elsewhere.extract_if(.., |_, (until, _)| *until <= at);
        let over: Vec<_> = over.collect();
        for ((run, step, epoch), (_, seen)) in over {
            if self.is_under_way(run, &step, epoch) {
                self.lose(run, step, epoch, seen);
            }
        }
    }

    fn is_under_way(&self, run: RunId, step: &StepId, epoch: u64) -> bool {
        let step = self.state.run(run).and_then(|run| run.step(step));
        step.is_some_and(|step| step.is_executing() && step.epoch == epoch)
    }

    fn lose(&mut self, run: RunId, step: StepId, epoch: u64, seen: Millis) {
        if seen + ORPHAN_AFTER <= self.at {
            self.follow(&Actor::SYSTEM, &Command::Orphan { run, last_heartbeat_at: Some(seen) });
        }
        let report = Report::Lost { last_seen: Some(seen) };
        self.follow(&Actor::SYSTEM, &Command::Report { run, step, epoch, report, receipt: None });
    }

    /// The process ends and starts again after a while: what it knows is what the records say.
    pub fn crash(&mut self, down: Span) {
        let last_at = self.at;
        self.at = self.at + down;
        self.state.beats = Beats { since: self.at, ..Beats::default() };
        self.reload();
        self.asked.clear();
        self.slots.clear();
        let (left, effects) = (self.state.left_over(), self.state.outstanding());
        for command in &left {
            self.follow(&Actor::SYSTEM, command);
        }
        let leases: Vec<(RunId, StepId, u64, Name)> = self
            .runs()
            .flat_map(|run| run.live().map(|step| (run.id(), step)))
            .filter(|(_, step)| step.is_executing())
            .filter_map(|(run, step)| {
                Some((run, step.id.clone(), step.epoch, step.lease.as_ref()?.owner.clone()))
            })
            .collect();
        self.elsewhere.clear();
        for (run, step, epoch, owner) in leases {
            if owner.as_str() == LOCAL {
                self.lose(run, step, epoch, last_at);
            } else {
                self.elsewhere.insert((run, step, epoch), (self.at + LEASE_TTL, last_at));
            }
        }
        for effect in &effects {
            self.hear(effect);
            let told = tell::effect(&mut self.names, effect);
            self.say(&format!("! {told} (again)"));
        }
        self.answer();
        // What came due while it was away is looked at now.
        self.wait(Span::ZERO);
    }

    /// What holds after every command: the indexes are what the streams say, and nothing is left over that would still
    /// change something.
    pub fn check(&mut self) {
        let mut kept = self.state.indexes().clone();
        kept.promote(self.at);
        assert!(kept == self.state.rebuilt_indexes(self.at), "the indexes are not what the streams say");
        for command in self.state.left_over() {
            let (mut state, mut ids) = (self.state.clone(), self.next_id);
            let by = (&Actor::SYSTEM, self.at, self.policy);
            let turn = drive(&mut state, &command, by, &self.cel, &mut ids, FOLLOW_MAX);
            let facts = turn.map(|turn| turn.facts).unwrap_or_default();
            assert!(facts.is_empty(), "left over: {command:?} would come to {facts:?}");
        }
        let mut leased = BTreeSet::new();
        for run in self.runs() {
            let executing = run.live().filter(|step| step.is_executing());
            executing
                .for_each(|step| assert!(leased.insert((run.id(), step.id.clone())), "two leases of a step"));
        }
    }

    /// How a run and its steps ended up, for people.
    pub fn summary(&self, run: &Run) -> String {
        let steps = run.steps.iter().map(|step| {
            let why = step.error.as_ref().map(|error| format!(" ({})", error.code)).unwrap_or_default();
            let output = step.output().map(|output| format!(" → {output}")).unwrap_or_default();
            format!("{} {}{why}{output}", step.id, step.status)
        });
        let reason = run.reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let steps = steps.collect::<Vec<_>>().join(", ");
        format!("{} {}{reason}: {steps}", run.id(), run.status()).trim_end_matches(": ").to_owned()
    }
}

/// One turn of the core.
fn drive(
    state: &mut State,
    command: &Command,
    (by, at, policy): (&Actor, Millis, Digest),
    cel: &Cel,
    last_id: &mut u128,
    follow_max: usize,
) -> Result<Turn, windlass_core::turn::command::Refusal> {
    let mut ids = || {
        *last_id += 1;
        *last_id
    };
    let mut given = Given { at, by, policy, lease_ttl: LEASE_TTL, evaluate: cel, ids: &mut ids };
    match Driver::new(command.clone()).at_most(follow_max).go(state, &mut given)? {
        Driven::Done(turn) => Ok(turn),
        Driven::Needs(..) | Driven::Paused(..) => panic!("a state has every stream, and time stands still"),
    }
}

/// Who asks for something, where a story says who.
pub fn person(who: Option<&str>) -> Actor {
    Actor::new(Initiator::User, who.unwrap_or("ann"))
}
