//! Random small runbooks.
//!
//! What can deadlock by the runbook's own fault is left out, or no engine could promise that it ends: only single steps
//! hold locks and slots, a `call` holds nothing, and the lock of a whole run is used by nothing else.

use crate::world::{self, Spec};
use proptest::prelude::*;
use serde_json::json;
use windlass_core::budget::Limits;
use windlass_core::caps::Caps;
use windlass_core::guard::{Condition, Guard, OnFailure};
use windlass_core::receipt::Semantics;
use windlass_core::runbook::{KeyScope, LockUse, Runbook, VarDef, WaitFor};
use windlass_core::schedule::Overlap;
use windlass_core::small::Map;
use windlass_core::step::FailFast;
use windlass_core::strategy::FallbackCondition;
use windlass_core::time::Span;

/// How many outside writes a run may make.
pub const WRITES_MAX: u32 = 1;

/// What a step is.
#[derive(Clone, Debug)]
pub enum Shape {
    Run,
    /// A command that declares an effect, or a key that it shares with others.
    Command(u8),
    Write(u8),
    Timer,
    Event {
        times_out: bool,
        goes_on: bool,
    },
    Approve,
    Call,
    Parallel(Vec<Tree>, u8),
    Steps(Vec<Tree>),
    Strategy(Vec<Tree>, u8),
}

/// A step and its modifiers.
#[derive(Clone, Debug)]
pub struct Tree {
    shape: Shape,
    lock: Option<(u8, u8)>,
    slots: Option<u8>,
    retry: u8,
    items: Option<(u8, u8, bool)>,
    undo: bool,
    skipped: bool,
    times_out: bool,
    guards: u8,
}

/// A case's runbook, and how many runs of it begin.
#[derive(Clone, Debug)]
pub struct Plan {
    main: Vec<Tree>,
    child: Vec<Tree>,
    on_failure: bool,
    finally: bool,
    whole_lock: bool,
    deadline: bool,
    budget: bool,
    pub runs: u8,
    pub chained: bool,
}

fn leaf() -> impl Strategy<Value = Shape> {
    prop_oneof![
        4 => Just(Shape::Run),
        1 => (0..4u8).prop_map(Shape::Command),
        2 => (0..4u8).prop_map(Shape::Write),
        1 => Just(Shape::Timer),
        1 => (any::<bool>(), any::<bool>())
            .prop_map(|(times_out, goes_on)| Shape::Event { times_out, goes_on }),
        1 => Just(Shape::Approve),
        1 => Just(Shape::Call),
    ]
}

fn tree(depth: u32) -> BoxedStrategy<Tree> {
    let shape = if depth == 0 {
        leaf().boxed()
    } else {
        let members = || prop::collection::vec(tree(depth - 1), 1..4);
        prop_oneof![
            5 => leaf(),
            1 => (members(), 0..3u8).prop_map(|(list, fail_fast)| Shape::Parallel(list, fail_fast)),
            1 => members().prop_map(Shape::Steps),
            1 => (members(), 0..3u8).prop_map(|(list, on)| Shape::Strategy(list, on)),
        ]
        .boxed()
    };
    let rarely = |n: u32| prop::bool::weighted(1.0 / f64::from(n));
    let modifiers = (
        prop::option::weighted(0.3, (0..2u8, 0..3u8)),
        prop::option::weighted(0.2, 1..3u8),
        prop_oneof![3 => Just(1u8), 1 => 2..4u8],
        prop::option::weighted(0.15, (0..4u8, 1..3u8, any::<bool>())),
    );
    let flags = (rarely(3), rarely(8), rarely(5), prop_oneof![5 => Just(0u8), 1 => 1..4u8]);
    (shape, modifiers, flags)
        .prop_map(|(shape, (lock, slots, retry, items), (undo, skipped, times_out, guards))| Tree {
            shape,
            lock,
            slots,
            retry,
            items,
            undo,
            skipped,
            times_out,
            guards,
        })
        .boxed()
}

pub fn plan() -> impl Strategy<Value = Plan> {
    let rarely = |n: u32| prop::bool::weighted(1.0 / f64::from(n));
    (
        prop::collection::vec(tree(2), 1..5),
        prop::collection::vec(tree(0), 1..3),
        (any::<bool>(), any::<bool>(), rarely(3), rarely(5), rarely(4)),
        1..4u8,
        rarely(4),
    )
        .prop_map(|(main, child, (on_failure, finally, whole_lock, deadline, budget), runs, chained)| {
            Plan { main, child, on_failure, finally, whole_lock, deadline, budget, runs, chained }
        })
}

/// Gives every step a name of its own.
struct Names(u32);

impl Names {
    fn next(&mut self) -> String {
        self.0 += 1;
        format!("s{}", self.0)
    }
}

fn semantics(which: u8) -> Option<Semantics> {
    match which {
        0 => None,
        1 => Some(Semantics::Idempotent),
        2 => Some(Semantics::Reconcile),
        _ => Some(Semantics::AtMostOnce),
    }
}

fn spec(tree: &Tree, names: &mut Names, calls: bool) -> Spec {
    let id = names.next();
    let list = |list: &[Tree], names: &mut Names| list.iter().map(|t| spec(t, names, calls)).collect();
    let group = matches!(tree.shape, Shape::Parallel(..) | Shape::Steps(_) | Shape::Strategy(..));
    let calls_out = calls && matches!(tree.shape, Shape::Call);
    let mut step = match &tree.shape {
        Shape::Call if calls => world::call(&id, "child", &[]),
        Shape::Run | Shape::Call => world::run(&id),
        Shape::Command(0) => world::run(&id).with(|def| {
            def.key_scope = KeyScope::Tenant;
            def.idempotency_key = Some(world::literal(json!("shared")));
        }),
        Shape::Command(which) => world::run(&id).with(|def| def.effect = semantics(*which)),
        Shape::Write(which) => world::write(&id).with(|def| def.effect = semantics(*which)),
        Shape::Timer => world::wait(&id, WaitFor::Time { span: Span::mins(5) }),
        Shape::Event { times_out, goes_on } => {
            let timeout = times_out.then_some(Span::mins(10));
            let event = world::name("go");
            world::wait(&id, WaitFor::Event { event, key: None, timeout, continue_on_timeout: *goes_on })
        }
        Shape::Approve => world::approve(&id),
        Shape::Parallel(members, fail_fast) => {
            let fail_fast = [FailFast::No, FailFast::Stop, FailFast::Kill][usize::from(*fail_fast)];
            let members = list(members, names);
            world::parallel(&id, members).with(|def| {
                if let windlass_core::runbook::Kind::Parallel { fail_fast: own, .. } = &mut def.kind {
                    *own = fail_fast;
                }
            })
        }
        Shape::Steps(members) => world::steps(&id, list(members, names)),
        Shape::Strategy(members, on) => {
            let on = match on {
                0 => vec![FallbackCondition::AnyError],
                1 => vec![FallbackCondition::Timeout],
                _ => vec![FallbackCondition::Error("no".to_string())],
            };
            let members: Vec<Spec> = list(members, names);
            world::strategy(&id, members.into_iter().map(|member| (member, on.clone())).collect())
        }
    };
    if !group && !calls_out {
        if let Some((lock, overlap)) = tree.lock {
            let overlap = [Overlap::Queue, Overlap::Skip, Overlap::Cancel][usize::from(overlap)];
            step = step.lock(&format!("l{lock}"), overlap);
        }
        if let Some(weight) = tree.slots {
            step = step.slots("builders", u32::from(weight));
        }
        step = step.with(|def| guards(def, tree.guards));
    }
    if tree.retry > 1 {
        step = step.retry(u32::from(tree.retry), Span::secs(20));
    }
    if let Some((items, width, fail_fast)) = tree.items {
        let over = world::literal(json!((0..items).collect::<Vec<u8>>()));
        step = step.foreach(over, u32::from(width), fail_fast);
    }
    if tree.skipped {
        step = step.when("false");
    }
    if tree.times_out {
        step = step.with(|def| def.timeout = Some(Span::mins(3)));
    }
    if tree.undo {
        step = step.undo(world::run(&names.next()));
    }
    step
}

/// What the outside must find before and after a step.
fn guards(def: &mut windlass_core::runbook::StepDef, which: u8) {
    let on_failure = match which {
        1 => OnFailure::Block,
        2 => OnFailure::Retry { delay: Span::secs(30), give_up: Some(Span::mins(20)) },
        _ => OnFailure::Fail { message: String::new() },
    };
    let condition = Condition::FileExists { path: "go".to_string() };
    let guard = Guard { name: world::name("file"), condition, on_failure };
    match which {
        0 => {}
        3 => def.after = vec![guard],
        _ => def.before = vec![guard],
    }
}

impl Plan {
    /// The runbook: `main`, the `child` it calls, and `each`, which a worker runs for an item.
    pub fn book(&self) -> Runbook {
        let names = &mut Names(0);
        let main: Vec<Spec> = self.main.iter().map(|tree| spec(tree, names, true)).collect();
        let on_failure = self.on_failure.then(|| world::run("mend")).into_iter().collect();
        let finally = self.finally.then(|| world::run("sweep")).into_iter().collect();
        let mut main = world::pipeline(main, on_failure, finally);
        if self.whole_lock {
            let name = world::literal(json!("whole"));
            main.lock = Some(LockUse { name, overlap: Overlap::Queue });
        }
        main.deadline = self.deadline.then_some(Span::mins(40));
        main.budget = self.budget.then_some(Limits { tokens: Some(100), ..Limits::default() });
        let child: Vec<Spec> = self.child.iter().map(|tree| spec(tree, names, false)).collect();
        let child = world::pipeline(child, vec![], vec![]);
        let mut each = world::pipeline(vec![world::run("each")], vec![], vec![]);
        each.vars = Map::from([(world::name("n"), VarDef::default())]);
        let mut book = world::book(vec![("main", main), ("child", child), ("each", each)]);
        book.caps = Some(Caps { max_writes_per_run: Some(WRITES_MAX), ..Caps::default() });
        book
    }
}
