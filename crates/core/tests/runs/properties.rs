//! Properties of the whole core: random runbooks, random commands over runs that share locks, slots and a queue, and
//! what must hold after each of them, of the log, and in the end.
//!
//! A case is a few small numbers, so what proptest shrinks to can be read. Numbers that name nothing (a run, a step, an
//! epoch that is not there) are commands too: they are the garbage that a server gets.

#[path = "properties/chance.rs"]
mod chance;
#[path = "properties/heal.rs"]
mod heal;
#[path = "properties/laws.rs"]
mod laws;
#[path = "properties/plan.rs"]
mod plan;

use laws::Watched;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// As many cases of a property, the same ones every time: `PROPTEST_CASES` and `WINDLASS_SEED` ask for others.
fn check<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let number = |key: &str| std::env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
    let cases = number("PROPTEST_CASES").map_or(cases, |cases| cases as u32);
    let mut seed = [42; 32];
    seed[..8].copy_from_slice(&number("WINDLASS_SEED").unwrap_or(42).to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(config, rng);
    if let Err(error) = runner.run(strategy, test) {
        panic!("{error}");
    }
}

fn case() -> impl Strategy<Value = (plan::Plan, Vec<chance::Op>)> {
    (plan::plan(), prop::collection::vec(chance::op(), 0..80))
}

/// A world after a case, watched all the way.
fn lived(plan: &plan::Plan, ops: &[chance::Op]) -> Watched {
    let mut watched = Watched::new(plan);
    for op in ops {
        chance::play(&mut watched, op);
    }
    watched
}

#[test]
fn after_every_command_the_laws_hold() {
    // `Watched` checks them: refused commands change nothing, ended runs stay as they are, one live lease per step,
    // stale reports move nothing, epochs only grow, capacity and exclusion, queues, caps, legal statuses.
    check(192, &case(), |(plan, ops)| {
        lived(&plan, &ops);
        Ok(())
    });
}

#[test]
fn the_log_folds_to_the_state_however_it_is_cut() {
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 1..8);
    check(96, &(case(), cuts), |((plan, ops), cuts)| {
        let watched = lived(&plan, &ops);
        watched.world.check_replay();
        laws::any_cut_folds_alike(&watched.world, &cuts);
        Ok(())
    });
}

#[test]
fn a_redacted_log_still_verifies_and_folds_to_the_same_statuses() {
    check(96, &case(), |(plan, ops)| {
        laws::redacted_log_holds(&lived(&plan, &ops).world);
        Ok(())
    });
}

#[test]
fn when_faults_stop_every_run_ends() {
    check(192, &case(), |(plan, ops)| {
        let mut watched = lived(&plan, &ops);
        heal::until_all_have_ended(&mut watched);
        watched.world.check_replay();
        Ok(())
    });
}
