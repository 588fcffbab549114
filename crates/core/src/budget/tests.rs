//! The budget's table, its subtle rules, and the limits over any history.

use super::*;
use crate::testing::{Proof, name};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const NOW: Millis = Millis(1_000);

fn usd(usd_micros: u64) -> Amount {
    Amount { usd_micros, ..Amount::default() }
}

fn ten() -> Budget {
    Budget::new(RunId(1), Limits { usd_micros: Some(10), writes: Some(2), ..Limits::default() })
}

fn reserve(step: &str, epoch: u64, amount: Amount) -> Input {
    Input::Reserve { step: name(step), epoch, amount }
}

fn cost(model: &str, usd_micros: u64) -> Cost {
    let total = Total { usd_micros, tokens_input: 3, tokens_output: 4, ..Total::default() };
    Cost { provider: name("acme"), model: name(model), total }
}

fn settle(step: &str, epoch: u64, costs: Vec<Cost>) -> Input {
    Input::Settle { step: name(step), epoch, costs }
}

fn release(step: &str, epoch: u64) -> Input {
    Input::Release { step: name(step), epoch }
}

fn raise(to: u64) -> Input {
    Input::Raise { to: usd(to) }
}

fn step(budget: Budget, input: &Input) -> (Budget, Result<Reply, Error>) {
    match budget.decide(input, NOW) {
        Ok(decision) => {
            (decision.facts.iter().fold(budget, |b, fact| b.apply(fact, NOW)), Ok(decision.reply))
        }
        Err(error) => (budget, Err(error)),
    }
}

fn after(inputs: &[Input]) -> Budget {
    inputs.iter().fold(ten(), |budget, input| step(budget, input).0)
}

#[test]
fn the_table_holds() {
    Proof {
        name: "budget",
        about: "What a run may spend, set aside before an attempt and settled by what it cost.",
        table: TABLE,
        states: vec![
            ("open", ten()),
            ("open", after(&[reserve("a", 1, usd(6))])),
            ("exhausted", after(&[reserve("a", 1, usd(6)), reserve("b", 1, usd(6))])),
            ("exhausted", after(&[reserve("b", 1, usd(60))])),
        ],
        inputs: vec![
            ("reserve", reserve("b", 1, usd(4))),
            ("reserve", reserve("b", 1, usd(6))),
            ("reserve", reserve("c", 1, usd(60))),
            ("settle", settle("a", 1, vec![cost("m", 5)])),
            ("release", release("a", 1)),
            ("raise", raise(20)),
        ],
    }
    .check(|budget, input| match step(budget.clone(), input) {
        (next, Ok(_)) => Ok(next.state_name()),
        (_, Err(error)) => Err(error.code()),
    });
}

#[test]
fn the_lowest_limit_of_each_dimension_holds() {
    let file = Limits { usd_micros: Some(5), tokens: Some(9), ..Limits::default() };
    let pipeline = Limits { usd_micros: Some(7), time_ms: Some(1), ..Limits::default() };
    let agent = Limits { tokens: Some(2), ..Limits::default() };
    let lowest = lowest(&file, &pipeline, &agent);
    assert_eq!(lowest, Limits { usd_micros: Some(5), tokens: Some(2), time_ms: Some(1), writes: None });
}

#[test]
fn what_does_not_fit_waits_until_the_budget_is_raised() {
    let budget = after(&[reserve("a", 1, usd(6))]);
    let excess = Excess { dimension: Dimension::Usd, limit: 10, needed: 11 };
    let (budget, reply) = step(budget, &reserve("b", 1, usd(5)));
    assert_eq!((budget.state_name(), reply), ("exhausted", Ok(Reply::Exceeded(excess))));
    // To ask again is answered alike and recorded once.
    assert!(budget.decide(&reserve("b", 1, usd(5)), NOW).unwrap().facts.is_empty());
    let (budget, _) = step(budget, &raise(11));
    assert_eq!(budget.state_name(), "open");
    assert_eq!(step(budget, &reserve("b", 1, usd(5))).1, Ok(Reply::Reserved));
}

#[test]
fn a_limit_is_reached_exactly_and_in_each_dimension() {
    assert_eq!(step(ten(), &reserve("a", 1, usd(10))).1, Ok(Reply::Reserved));
    let writes = |writes| reserve("a", 1, Amount { writes, ..Amount::default() });
    assert_eq!(step(ten(), &writes(2)).1, Ok(Reply::Reserved));
    let excess = Excess { dimension: Dimension::Writes, limit: 2, needed: 3 };
    assert_eq!(step(ten(), &writes(3)).1, Ok(Reply::Exceeded(excess)));
    // What has no limit does not fail, and what cannot be added up does.
    let tokens = Amount { tokens: u64::MAX, ..Amount::default() };
    assert_eq!(step(ten(), &reserve("a", 1, tokens)).1, Ok(Reply::Reserved));
    let budget = after(&[settle("a", 1, vec![cost("m", u64::MAX)])]);
    assert!(matches!(step(budget, &reserve("b", 1, usd(1))).1, Ok(Reply::Exceeded(_))));
}

#[test]
fn costs_count_once_and_release_what_was_set_aside() {
    let costs = vec![cost("large", 3), cost("small", 1)];
    let budget = after(&[reserve("a", 1, usd(9)), settle("a", 1, costs.clone())]);
    assert_eq!(
        (budget.spent, budget.reserved.len()),
        (Amount { usd_micros: 4, tokens: 14, ..Amount::default() }, 0)
    );
    assert_eq!(step(budget.clone(), &settle("a", 1, costs.clone())), (budget.clone(), Ok(Reply::Standing)));
    assert_eq!(step(budget.clone(), &release("a", 1)), (budget.clone(), Ok(Reply::Standing)));
    let (budget, _) = step(budget, &settle("a", 2, costs.clone()));
    assert_eq!(budget.costs["acme"]["large"].usd_micros, 6);
    assert_eq!(step(budget.clone(), &settle("a", 1, costs)).1.unwrap_err().code(), Code::LeaseStaleEpoch);
    assert_eq!(step(budget, &reserve("a", 2, usd(1))).1.unwrap_err().code(), Code::LeaseStaleEpoch);
}

#[test]
fn a_repeated_reservation_is_one_reservation() {
    let budget = after(&[reserve("a", 1, usd(9))]);
    assert_eq!(step(budget.clone(), &reserve("a", 1, usd(9))), (budget.clone(), Ok(Reply::Reserved)));
    assert_eq!(step(budget, &reserve("a", 1, usd(1))).1, Err(Error::Conflict));
}

#[test]
fn a_late_cost_of_a_released_attempt_still_counts() {
    let budget = after(&[reserve("a", 1, usd(9)), release("a", 1), settle("a", 1, vec![cost("m", 2)])]);
    assert_eq!((budget.spent.usd_micros, budget.committed().usd_micros), (2, 2));
}

#[test]
fn a_budget_is_never_lowered_and_a_missing_limit_stays_missing() {
    assert_eq!(step(ten(), &raise(3)), (ten(), Ok(Reply::Standing)));
    let to = Amount { usd_micros: 12, tokens: 5, time_ms: 5, writes: 1 };
    let raised = step(ten(), &Input::Raise { to }).0;
    assert_eq!(raised.limits, Limits { usd_micros: Some(12), ..ten().limits });
}

#[test]
fn everything_is_bounded() {
    let full = (0..RESERVATIONS_MAX as u64).fold(ten(), |budget, epoch| {
        let fact = BudgetReserved {
            pipeline_id: RunId(1),
            step: name("a"),
            epoch,
            usd_micros: 0,
            tokens: 0,
            time_ms: None,
            writes: None,
        };
        budget.apply(&fact.into(), NOW)
    });
    assert_eq!(step(full, &reserve("b", 1, usd(0))).1.unwrap_err().code(), Code::CapExceeded);
    assert!(step(ten(), &settle("a", 1, vec![cost("m", 0); COSTS_MAX])).1.is_ok());
    let many = vec![cost("m", 0); COSTS_MAX + 1];
    assert_eq!(step(ten(), &settle("a", 1, many)).1, Err(Error::TooManyCosts));

    let spread = (0..STEPS_MAX as u64 + 5).fold(ten(), |budget, n| {
        let (at, model) = (alloc::format!("{n:06}"), alloc::format!("m{n}"));
        step(budget, &settle(&at, 1, vec![cost(&model, 1)])).0
    });
    assert_eq!(spread.settled.len(), STEPS_MAX);
    assert_eq!(spread.spent.usd_micros, STEPS_MAX as u64 + 5);
    assert_eq!(spread.costs["acme"].len(), MODELS_MAX);
    assert_eq!(spread.costs[OTHER][OTHER].usd_micros, (STEPS_MAX + 5 - MODELS_MAX) as u64);
}

fn any_input() -> impl Strategy<Value = Input> {
    let who = || (0..3usize, 1..5u64).prop_map(|(step, epoch)| (["a", "b", "c"][step], epoch));
    prop_oneof![
        4 => (who(), 0..8u64, 0..2u64).prop_map(|((step, epoch), usd_micros, writes)| {
            reserve(step, epoch, Amount { usd_micros, writes, ..Amount::default() })
        }),
        3 => (who(), prop::collection::vec(0..6u64, 0..3)).prop_map(|((step, epoch), costs)| {
            settle(step, epoch, costs.into_iter().map(|usd| cost("m", usd)).collect())
        }),
        2 => who().prop_map(|(step, epoch)| release(step, epoch)),
        1 => (0..30u64).prop_map(raise),
    ]
}

proptest! {
    #[test]
    fn any_history_stays_within_the_limits(inputs in prop::collection::vec(any_input(), 0..60)) {
        let (mut budget, mut log, mut spent) = (ten(), Vec::new(), 0);
        for input in inputs {
            let before = budget.clone();
            let Ok(decision) = budget.decide(&input, NOW) else { continue };
            let news = !decision.facts.is_empty();
            for fact in decision.facts {
                if let Event::CostRecorded(e) = &fact {
                    spent += e.usd_micros;
                }
                let text = serde_json::to_string(&budget).unwrap();
                budget = serde_json::from_str::<Budget>(&text).unwrap().apply(&fact, NOW);
                log.push(fact);
            }
            if decision.reply == Reply::Reserved && news {
                prop_assert_eq!(budget.limits.exceeded_by(&budget.committed()), None);
            }
            if let (Input::Settle { step, epoch, .. } | Input::Release { step, epoch }, false) =
                (&input, decision.reply == Reply::Standing)
            {
                prop_assert!(!budget.reserved.get(step).is_some_and(|a| a.contains_key(epoch)));
                let held = |b: &Budget| b.reservations().count();
                prop_assert!(held(&before) - held(&budget) <= 1, "released more than its own");
            }
            prop_assert_eq!(budget.spent.usd_micros, spent);
            prop_assert!(budget.limits.usd_micros >= before.limits.usd_micros);
        }
        let whole = log.iter().fold(ten(), |b, fact| b.apply(fact, NOW));
        prop_assert_eq!(whole, budget);
    }
}
