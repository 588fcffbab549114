//! Model checking: every order of events that the bounds allow, through the production `decide` and `apply`.
//!
//! One run of two outside writes: `s1` needs a human's approval, `s2` is allowed. Around the engine stand two executors
//! that forget, a network that is late and repeats itself, humans who decide rightly, wrongly and too late, a policy
//! that moves, a clock, a server that dies, and an outside world that counts what was done to it. What the properties
//! look at is remembered by the model itself, not read from the engine, wherever the two could differ.
//!
//! See docs/model-checking.md for the bounds and for what is not covered.

#[path = "model/engine.rs"]
mod engine;
mod world;

use engine::{
    A1, Answer, Ask, C1, Core, D4, E1, E2, E3, Engine, Env, K1, L1, S1, Terms, Vote, What, expires, stuck,
};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::sync::Arc;
use windlass_core::approval;
use windlass_core::policy::Verdict;
use windlass_core::receipt::Semantics;
use windlass_core::run;
use windlass_core::step::{Resolution, Status};

/// An executor's memory: the lease it has, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mind {
    step: u8,
    epoch: u8,
    /// None: not done yet. Otherwise whether it happened.
    acted: Option<bool>,
}

/// What is under way to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Report { step: u8, epoch: u8, what: What },
    Decision { approval: u8, vote: Vote },
    Policy { step: u8, version: u8 },
}

/// What the model knows of an approval from what humans and the clock did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    version: u8,
    expires: u8,
    status: approval::Status,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    /// Executors that lose their memory.
    deaths: u8,
    /// Leases that run out.
    losses: u8,
    /// Messages that come twice.
    repeats: u8,
    /// Decisions of humans.
    votes: u8,
    /// Servers that die between commit and release.
    crashes: u8,
    /// Steps of the clock.
    ticks: u8,
    /// Moves of the policy.
    moves: u8,
    /// Leases that are handed back unused.
    returns: u8,
    /// Effects that the other side refuses.
    refusals: u8,
    /// Cancellations.
    cancels: u8,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Sys {
    engine: Arc<Engine>,
    env: Env,
    minds: [Option<Mind>; 2],
    /// A multiset: sorted, equal ones side by side.
    net: Vec<Message>,
    left: Left,
    /// How often each step's effect happened outside.
    effects: [u8; 2],
    /// Whose effect the engine has evidence of.
    happened: [bool; 2],
    /// Whose outcome is unknown, and not settled since.
    unknown: [bool; 2],
    /// What policy said last of each step.
    allowed: [Option<(u8, Verdict)>; 2],
    asked: Vec<Asked>,
    cancelled: bool,
    reused: bool,
    broken: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// An executor asks for a step; where the server dies after the commit, it never hears the answer.
    Lease {
        step: u8,
        owner: u8,
        crash: bool,
    },
    /// An executor acts outside.
    Perform {
        owner: u8,
        happens: bool,
    },
    /// It reports and forgets.
    Tell {
        owner: u8,
    },
    /// It hands its lease back, or stops as it was told.
    HandBack {
        owner: u8,
    },
    /// It forgets.
    Die {
        owner: u8,
    },
    /// The engine finds that a lease ran out.
    Expire {
        step: u8,
    },
    /// Policy is evaluated.
    Evaluate {
        step: u8,
    },
    /// A human decides.
    Vote {
        approval: u8,
        vote: Vote,
    },
    /// An approval of another policy is voided.
    Void {
        approval: u8,
    },
    /// A message arrives, and perhaps comes again.
    Deliver {
        message: Message,
        again: bool,
    },
    /// A human or a probe, who looked, settles an unknown outcome.
    Resolve {
        step: u8,
        how: Resolution,
    },
    Cancel,
    /// Time passes.
    Pass,
    /// The engine looks at the clock.
    Look,
    MovePolicy,
}

/// A defect that is planted outside the production code, to see that the checker finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Reports count whatever their epoch.
    EpochIgnored,
    /// A decision counts for the action that is asked about, whatever action it names.
    HashIgnored,
    /// A decision counts for the newest approval, whichever it is about.
    ApprovalIgnored,
    /// A lease does not look for a receipt.
    ReceiptIgnored,
    /// A lease is released although its commit is lost.
    ReleasedBeforeCommit,
}

struct Windlass {
    core: Core,
    terms: Terms,
    bounds: Left,
    planted: Planted,
}

impl Windlass {
    fn new(terms: Terms, bounds: Left) -> Windlass {
        Windlass { core: Core::new(terms), terms, bounds, planted: Planted::Nothing }
    }

    fn plant(mut self, planted: Planted) -> Windlass {
        self.planted = planted;
        self
    }

    /// Asks the engine, and takes over what came of it.
    fn ask(&self, sys: &mut Sys, ask: Ask) -> Arc<Answer> {
        let answer = self.core.ask(&sys.engine, sys.env, ask);
        sys.broken |= answer.broken;
        if let Some(next) = &answer.next {
            sys.engine = next.clone();
        }
        for _ in 0..answer.asked {
            let (version, expires) = (sys.env.policy, expires(sys.env.clock));
            sys.asked.push(Asked { version, expires, status: approval::Status::Requested });
        }
        for &(step, _) in &answer.executed {
            sys.broken |= self.forbidden(sys, step);
        }
        for step in 0..2 {
            sys.happened[step] |= answer.happened[step];
            sys.unknown[step] |= answer.unknown[step];
            sys.unknown[step] &= !answer.happened[step];
        }
        sys.reused |= answer.reused;
        answer
    }

    /// What the release of a lease would violate.
    fn forbidden(&self, sys: &Sys, step: u8) -> u16 {
        let s = step as usize;
        let approved =
            |asked: &Asked| asked.status == approval::Status::Approved && asked.version == sys.env.policy;
        let mut broken = 0;
        broken |= if sys.happened[s] { E1 } else { 0 };
        broken |= if sys.unknown[s] { E2 } else { 0 };
        broken |= if sys.cancelled { C1 } else { 0 };
        broken
            | match sys.allowed[s] {
                Some((version, Verdict::Allow)) if version == sys.env.policy => 0,
                Some((version, Verdict::NeedsApproval)) if version == sys.env.policy => {
                    if sys.asked.iter().any(approved) { 0 } else { A1 }
                }
                Some(_) | None => E3,
            }
    }

    fn lease(&self, sys: &mut Sys, step: u8, owner: u8, crash: bool) -> bool {
        let ask = match self.planted {
            Planted::ReceiptIgnored => Ask::LeaseBlindly { step, owner },
            _ => Ask::Lease { step, owner },
        };
        let before = sys.clone();
        let answer = self.ask(sys, ask);
        if answer.next.is_none() {
            return sys.broken != 0;
        }
        if crash {
            sys.left.crashes -= 1;
        }
        if crash && self.planted == Planted::ReleasedBeforeCommit {
            // The executor has its lease, and the log has never heard of it.
            let left = sys.left;
            *sys = Sys { left, ..before };
        } else if crash {
            return true;
        }
        if let Some(&(step, epoch)) = answer.executed.first() {
            sys.minds[owner as usize] = Some(Mind { step, epoch, acted: None });
        }
        true
    }

    /// A message arrives.
    fn deliver(&self, sys: &mut Sys, message: Message) {
        match message {
            Message::Report { step, epoch, what } => {
                let (_, current) = sys.engine.step(step);
                let stale = epoch != current;
                let heard = if self.planted == Planted::EpochIgnored { current } else { epoch };
                let answer = self.ask(sys, Ask::Report { step, epoch: heard, what });
                // What is stale moves no run, and hears so unless its receipt was news.
                if stale && (answer.run_moved || answer.next.is_none() && !answer.stale) {
                    sys.broken |= L1;
                }
            }
            Message::Decision { approval, vote } => {
                let newest = (sys.asked.len() - 1) as u8;
                let heard = match self.planted {
                    Planted::HashIgnored if vote == Vote::WrongHash => {
                        Ask::Decide { approval, vote: Vote::Yes }
                    }
                    Planted::ApprovalIgnored => Ask::Decide { approval: newest, vote },
                    _ => Ask::Decide { approval, vote },
                };
                let clock = sys.env.clock;
                let asked = &mut sys.asked[approval as usize];
                if asked.status == approval::Status::Requested && clock < asked.expires {
                    asked.status = match vote {
                        Vote::Yes => approval::Status::Approved,
                        Vote::No => approval::Status::Rejected,
                        Vote::WrongHash => approval::Status::Requested,
                    };
                }
                self.ask(sys, heard);
            }
            Message::Policy { step, version } => {
                // An answer under another policy than the one in force is none.
                if version == sys.env.policy {
                    sys.allowed[step as usize] = Some((version, self.terms.verdict(step, version)));
                }
                self.ask(sys, Ask::Policy { step, version });
            }
        }
    }

    fn executor_actions(&self, sys: &Sys, acts: &mut Vec<Act>) {
        for owner in 0..2 {
            let Some(mind) = sys.minds[owner as usize] else {
                for step in 0..2 {
                    acts.push(Act::Lease { step, owner, crash: false });
                    if sys.left.crashes > 0 {
                        acts.push(Act::Lease { step, owner, crash: true });
                    }
                }
                continue;
            };
            if mind.acted.is_none() {
                acts.push(Act::Perform { owner, happens: true });
                if sys.left.refusals > 0 {
                    acts.push(Act::Perform { owner, happens: false });
                }
                if sys.cancelled || sys.left.returns > 0 {
                    acts.push(Act::HandBack { owner });
                }
            } else {
                acts.push(Act::Tell { owner });
            }
            if sys.left.deaths > 0 {
                acts.push(Act::Die { owner });
            }
        }
    }

    fn step_actions(&self, sys: &Sys, acts: &mut Vec<Act>) {
        for step in 0..2 {
            let (status, epoch) = sys.engine.step(step);
            let lost = Message::Report { step, epoch, what: What::Lost };
            if status == Status::Running && sys.left.losses > 0 && !sys.net.contains(&lost) {
                acts.push(Act::Expire { step });
            }
            let answer = Message::Policy { step, version: sys.env.policy };
            if status == Status::WaitingExternal && !sys.net.contains(&answer) {
                acts.push(Act::Evaluate { step });
            }
            if status == Status::OutcomeUnknown {
                // Whoever settles it has looked: it happened, or it did not and nobody is left who might do it.
                let alive = |mind: &Mind| mind.step == step && mind.acted.is_none();
                if sys.effects[step as usize] > 0 {
                    acts.push(Act::Resolve { step, how: Resolution::Done });
                } else if !sys.minds.iter().flatten().any(alive) {
                    acts.push(Act::Resolve { step, how: Resolution::Retry });
                }
                acts.push(Act::Resolve { step, how: Resolution::Fail });
            }
        }
    }

    fn human_actions(&self, sys: &Sys, acts: &mut Vec<Act>) {
        for (approval, asked) in (0u8..).zip(&sys.asked) {
            if sys.left.votes > 0 {
                let votes = [Vote::Yes, Vote::WrongHash, Vote::No];
                acts.extend(votes.map(|vote| Act::Vote { approval, vote }));
            }
            if asked.version != sys.env.policy && asked.status == approval::Status::Requested {
                acts.push(Act::Void { approval });
            }
        }
        if sys.left.cancels > 0 {
            acts.push(Act::Cancel);
        }
        if sys.left.moves > 0 {
            acts.push(Act::MovePolicy);
        }
        if sys.left.ticks > 0 {
            acts.push(Act::Pass);
        }
        acts.push(Act::Look);
    }
}

fn send(net: &mut Vec<Message>, message: Message) {
    let at = net.partition_point(|other| *other < message);
    net.insert(at, message);
}

fn settle(asked: &mut [Asked], status: approval::Status, which: impl Fn(&Asked) -> bool) {
    let open = |a: &&mut Asked| a.status == approval::Status::Requested && which(a);
    asked.iter_mut().filter(open).for_each(|a| a.status = status);
}

impl Model for Windlass {
    type State = Sys;
    type Action = Act;

    fn init_states(&self) -> Vec<Sys> {
        vec![Sys {
            engine: self.core.begin(),
            env: Env { clock: 0, policy: 0 },
            minds: [None; 2],
            net: Vec::new(),
            left: self.bounds,
            effects: [0; 2],
            happened: [false; 2],
            unknown: [false; 2],
            allowed: [None; 2],
            asked: Vec::new(),
            cancelled: false,
            reused: false,
            broken: 0,
        }]
    }

    fn actions(&self, sys: &Sys, acts: &mut Vec<Act>) {
        if sys.broken != 0 {
            return;
        }
        self.executor_actions(sys, acts);
        self.step_actions(sys, acts);
        self.human_actions(sys, acts);
        let mut last = None;
        for &message in &sys.net {
            if last.replace(message) == Some(message) {
                continue;
            }
            acts.push(Act::Deliver { message, again: false });
            if sys.left.repeats > 0 {
                acts.push(Act::Deliver { message, again: true });
            }
        }
    }

    fn next_state(&self, last: &Sys, act: Act) -> Option<Sys> {
        let mut sys = last.clone();
        match act {
            Act::Lease { step, owner, crash } => {
                if !self.lease(&mut sys, step, owner, crash) {
                    return None;
                }
            }
            Act::Perform { owner, happens } => {
                let mind = sys.minds[owner as usize].as_mut()?;
                mind.acted = Some(happens);
                if happens {
                    let count = &mut sys.effects[mind.step as usize];
                    *count += 1;
                    let once = self.terms.semantics[mind.step as usize] != Semantics::Idempotent;
                    sys.broken |= if once && *count > 1 { E1 } else { 0 };
                } else {
                    sys.left.refusals -= 1;
                }
            }
            Act::Tell { owner } => {
                let Mind { step, epoch, acted } = sys.minds[owner as usize].take()?;
                let what = if acted? { What::Done } else { What::Refused };
                send(&mut sys.net, Message::Report { step, epoch, what });
            }
            Act::HandBack { owner } => {
                let Mind { step, epoch, .. } = sys.minds[owner as usize].take()?;
                let what = if sys.cancelled { What::Stopped } else { What::Returned };
                sys.left.returns -= u8::from(!sys.cancelled);
                send(&mut sys.net, Message::Report { step, epoch, what });
            }
            Act::Die { owner } => {
                sys.minds[owner as usize] = None;
                sys.left.deaths -= 1;
            }
            Act::Expire { step } => {
                sys.left.losses -= 1;
                let (_, epoch) = sys.engine.step(step);
                send(&mut sys.net, Message::Report { step, epoch, what: What::Lost });
            }
            Act::Evaluate { step } => {
                send(&mut sys.net, Message::Policy { step, version: sys.env.policy });
            }
            Act::Vote { approval, vote } => {
                sys.left.votes -= 1;
                send(&mut sys.net, Message::Decision { approval, vote });
            }
            Act::Void { approval } => {
                sys.asked[approval as usize].status = approval::Status::Cancelled;
                self.ask(&mut sys, Ask::Void { approval });
            }
            Act::Deliver { message, again } => {
                if again {
                    sys.left.repeats -= 1;
                } else {
                    let at = sys.net.iter().position(|other| *other == message)?;
                    sys.net.remove(at);
                }
                self.deliver(&mut sys, message);
            }
            Act::Resolve { step, how } => {
                sys.unknown[step as usize] = false;
                self.ask(&mut sys, Ask::Resolve { step, how }).next.as_ref()?;
            }
            Act::Cancel => {
                sys.left.cancels -= 1;
                self.ask(&mut sys, Ask::Cancel).next.as_ref()?;
                settle(&mut sys.asked, approval::Status::Cancelled, |_| true);
                sys.cancelled = true;
            }
            Act::Pass => {
                sys.left.ticks -= 1;
                sys.env.clock += 1;
                let clock = sys.env.clock;
                settle(&mut sys.asked, approval::Status::Expired, |a| a.expires <= clock);
            }
            Act::Look => {
                self.ask(&mut sys, Ask::Look).next.as_ref()?;
            }
            Act::MovePolicy => {
                sys.left.moves -= 1;
                sys.env.policy += 1;
            }
        }
        let twice = |a: &Mind, b: &Mind| a.step == b.step && a.epoch == b.epoch;
        if let [Some(a), Some(b)] = &sys.minds
            && twice(a, b)
        {
            sys.broken |= L1;
        }
        (sys != *last).then_some(sys)
    }

    fn properties(&self) -> Vec<Property<Windlass>> {
        fn status(sys: &Sys, status: run::Status) -> bool {
            sys.engine.run().status() == status
        }
        let mut properties = vec![
            Property::always("L1 one live lease, stale epochs refused", |_, sys: &Sys| sys.broken & L1 == 0),
            Property::always("E1 what has happened is not done again", |_, sys: &Sys| sys.broken & E1 == 0),
            Property::always("E2 an unknown outcome is never retried silently", |_, sys: &Sys| {
                sys.broken & E2 == 0
            }),
            Property::always("E3 no effect without a recorded allow", |_, sys: &Sys| sys.broken & E3 == 0),
            Property::always("A1 no effect without a standing approval", |_, sys: &Sys| sys.broken & A1 == 0),
            Property::always("S1 states change as the tables say", |_, sys: &Sys| sys.broken & S1 == 0),
            Property::always("C1 nothing starts after a cancel", |_, sys: &Sys| sys.broken & C1 == 0),
            Property::always("D4 snapshot and log come to the state", |_, sys: &Sys| sys.broken & D4 == 0),
            Property::always("K1 a step's own key does not fail its lease", |_, sys: &Sys| {
                sys.broken & K1 == 0
            }),
            Property::always("V1 an unended run waits for somebody", |model: &Windlass, sys: &Sys| {
                !stuck(&model.core, &sys.engine, sys.env)
            }),
            Property::sometimes("completed", |_, sys: &Sys| status(sys, run::Status::Completed)),
            Property::sometimes("failed", |_, sys: &Sys| status(sys, run::Status::Failed)),
        ];
        if self.bounds.cancels > 0 {
            let cancelled = |_: &Windlass, sys: &Sys| status(sys, run::Status::Cancelled);
            properties.push(Property::sometimes("cancelled", cancelled));
        }
        let semantics = &self.terms.semantics;
        if semantics.contains(&Semantics::Idempotent) {
            properties.push(Property::sometimes("reused", |_, sys: &Sys| sys.reused));
        }
        if semantics.iter().any(|s| *s != Semantics::Idempotent) {
            let unknown = |_: &Windlass, sys: &Sys| sys.unknown.contains(&true);
            properties.push(Property::sometimes("outcome unknown", unknown));
        }
        properties
    }
}

/// What every configuration begins from; each opens what it is about.
const BOUNDS: Left = Left {
    deaths: 1,
    losses: 1,
    repeats: 1,
    votes: 1,
    crashes: 1,
    ticks: 0,
    moves: 0,
    returns: 0,
    refusals: 0,
    cancels: 1,
};
/// Nobody dies and nobody cancels: the humans, the policy and the clock have the stage.
const QUIET: Left = Left { deaths: 0, crashes: 0, cancels: 0, ..BOUNDS };
const ONCE: Terms = Terms { semantics: [Semantics::AtMostOnce; 2], deny: false };
const IDEMPOTENT: Terms = Terms { semantics: [Semantics::Idempotent; 2], deny: false };
const MIXED: Terms = Terms { semantics: [Semantics::Reconcile, Semantics::Idempotent], deny: true };

/// Visits every state within the bounds and says how many there are.
#[allow(clippy::print_stdout)] // The number of states is what the reader of a run wants to see.
fn visit(about: &str, terms: Terms, bounds: Left) -> usize {
    let model = Windlass::new(terms, bounds);
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let visited = checker.unique_state_count();
    let (engines, answers) = checker.model().core.size();
    println!(
        "{about}: {visited} states, {engines} of the engine in {answers} decisions, depth {}",
        checker.max_depth()
    );
    checker.assert_properties();
    visited
}

#[test]
fn the_core_keeps_its_promises_in_every_order_of_events() {
    let visited = [
        visit("at most once, policy moves", ONCE, Left { votes: 2, ticks: 1, moves: 1, ..QUIET }),
        visit("reconcile, policy moves and denies", MIXED, Left { ticks: 1, moves: 1, ..BOUNDS }),
        visit("at most once, faults", ONCE, Left { losses: 2, returns: 1, ..BOUNDS }),
        visit("idempotent, faults", IDEMPOTENT, Left { deaths: 2, losses: 2, repeats: 2, ..BOUNDS }),
        visit("idempotent, refusals", IDEMPOTENT, Left { refusals: 2, ticks: 1, crashes: 0, ..BOUNDS }),
    ];
    let total: usize = visited.iter().sum();
    println!("states visited: {total}");
    assert!(total >= 1_000_000, "only {total} states were visited");
}

/// The checker must find a counterexample to this property.
fn must_break(planted: Planted, terms: Terms, bounds: Left, property: &'static str) {
    let model = Windlass::new(terms, bounds).plant(planted);
    let found = HasDiscoveries::AllOf([property].into());
    let checker = model.checker().threads(2).finish_when(found).spawn_bfs().join();
    checker.assert_any_discovery(property);
}

#[test]
fn a_report_that_counts_whatever_its_epoch_is_found() {
    must_break(Planted::EpochIgnored, IDEMPOTENT, BOUNDS, "L1 one live lease, stale epochs refused");
}

#[test]
fn an_approval_that_is_not_bound_to_its_action_is_found() {
    must_break(Planted::HashIgnored, ONCE, BOUNDS, "A1 no effect without a standing approval");
}

#[test]
fn a_decision_that_counts_for_another_approval_is_found() {
    let bounds = Left { moves: 1, ..BOUNDS };
    must_break(Planted::ApprovalIgnored, ONCE, bounds, "A1 no effect without a standing approval");
}

#[test]
fn a_lease_that_does_not_look_for_a_receipt_is_found() {
    must_break(Planted::ReceiptIgnored, IDEMPOTENT, BOUNDS, "E1 what has happened is not done again");
}

#[test]
fn a_lease_that_is_released_before_its_commit_is_found() {
    must_break(Planted::ReleasedBeforeCommit, ONCE, BOUNDS, "E1 what has happened is not done again");
}
