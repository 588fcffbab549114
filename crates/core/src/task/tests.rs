//! Tests of the task machine.

use super::*;
use crate::effect::Effect;
use crate::testing::{Proof, name};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const START: Millis = Millis(1_000);

fn config() -> Config {
    Config { checkpoint_interval: Some(Span::mins(1)), ..Config::default() }
}

fn pending() -> Task {
    Task::new(RunId(1), name("code"), AgentId(2), 1, config())
}

fn after(task: Task, inputs: &[Input], at: Millis) -> Task {
    inputs.iter().fold(task, |task, input| step(&task, input, at).unwrap())
}

fn step(task: &Task, input: &Input, at: Millis) -> Result<Task, Error> {
    let decision = task.decide(input, at)?;
    Ok(decision.facts.iter().fold(task.clone(), |task, fact| task.apply(fact, at)))
}

fn start(epoch: u64) -> Input {
    Input::Start { session: SessionId(u128::from(epoch)), epoch }
}

fn beat(epoch: u64, activity: Activity) -> Input {
    Input::Heartbeat { epoch, activity }
}

fn recover(epoch: u64, action: Recovery) -> Input {
    Input::Recover { epoch, action }
}

fn nudge() -> Recovery {
    Recovery::Nudge { notice: NoticeId(7) }
}

fn call() -> Recovery {
    Recovery::Escalate { notice: NoticeId(8), message: "look".into() }
}

fn signal(epoch: u64, kind: SignalKind) -> Input {
    Input::Signal { epoch, kind, message: Some("hello".into()), notice: NoticeId(9) }
}

fn succeed(epoch: u64) -> Input {
    Input::Succeed { epoch, output: None }
}

fn fail(epoch: u64) -> Input {
    Input::Fail { epoch, code: Code::StepFailed, error: "no".into() }
}

fn cancel() -> Input {
    Input::Cancel { reason: None }
}

fn resolve(resolution: Resolution) -> Input {
    Input::Resolve { resolution, reason: None }
}

fn running() -> Task {
    after(pending(), &[start(1)], START)
}

fn stuck() -> Task {
    after(running(), &[beat(1, Activity::SessionDead)], START)
}

fn escalated() -> Task {
    after(stuck(), &[recover(1, call())], START)
}

fn spent(mut task: Task) -> Task {
    task.recovery_attempts = task.config.max_recovery_attempts;
    task
}

#[test]
fn the_table_holds() {
    let idle = |span| beat(1, Activity::Idle(span));
    Proof {
        name: "task",
        about: "An attempt of a step with a live session behind it: heartbeats, stuck, recovery.",
        table: TABLE,
        states: vec![
            ("pending", pending()),
            ("running", running()),
            ("running", spent(running())),
            ("stuck", stuck()),
            ("stuck", spent(stuck())),
            ("escalated", escalated()),
            ("done", after(running(), &[succeed(1)], START)),
            ("done", after(running(), &[fail(1)], START)),
            ("done", after(running(), &[cancel()], START)),
        ],
        inputs: vec![
            ("start", start(1)),
            ("start", start(2)),
            ("active", beat(1, Activity::Active)),
            ("idle", idle(Span::mins(2))),
            ("idle", idle(Span::mins(3))),
            ("session_dead", beat(1, Activity::SessionDead)),
            ("nudge", recover(1, nudge())),
            ("restart", recover(1, Recovery::Restart)),
            ("escalate", recover(1, call())),
            ("signal_complete", signal(1, SignalKind::Complete)),
            ("signal_escalate", signal(1, SignalKind::Escalate)),
            ("succeed", succeed(1)),
            ("fail", fail(1)),
            ("cancel", cancel()),
            ("resolve_done", resolve(Resolution::Done)),
            ("resolve_retry", resolve(Resolution::Retry)),
            ("resolve_fail", resolve(Resolution::Fail)),
            ("tick", Input::Tick { last_seen: Millis(200_000) }),
            ("tick", Input::Tick { last_seen: START }),
        ],
    }
    .check(|task, input| {
        assert!(TABLE.iter().any(|row| row.input == input.name()));
        step(task, input, Millis(200_000)).map(|next| next.state_name()).map_err(|error| error.code())
    });
}

#[test]
fn idleness_never_completes_a_task() {
    let idle = beat(1, Activity::Idle(Span::hours(100)));
    let task = after(running(), &[idle.clone(), idle.clone(), idle], START);
    assert!(matches!(task.state, State::Stuck { reason: Stuck::NoProgress, .. }));
}

#[test]
fn a_nudge_counts_and_is_recorded_before_it_is_sent() {
    let decision = stuck().decide(&recover(1, nudge()), START).unwrap();
    let tags: Vec<_> = decision.facts.iter().map(Event::tag).collect();
    assert_eq!(tags, ["task:nudged", "notice:requested"]);
    let sent = Effect::Nudge { session: SessionId(1), notice: Some(NoticeId(7)) };
    assert_eq!(decision.effects, [sent]);
    let task = after(stuck(), &[recover(1, nudge())], START);
    assert_eq!((task.recovery_attempts, task.state_name()), (1, "stuck"));
}

#[test]
fn a_restart_is_a_new_epoch_and_the_last_one_fails() {
    let mut task = running();
    for epoch in 1..=3 {
        assert_eq!(
            task.decide(&recover(epoch, Recovery::Restart), START).unwrap().effects,
            [Effect::Kill { session: SessionId(u128::from(epoch)) }]
        );
        task = after(task, &[recover(epoch, Recovery::Restart)], START);
        assert_eq!((task.epoch, task.session, task.state), (epoch + 1, None, State::Pending));
        assert_eq!(step(&task, &start(epoch), START).unwrap_err().code(), Code::LeaseStaleEpoch);
        task = after(task, &[start(epoch + 1)], START);
    }
    let decision = task.decide(&recover(4, Recovery::Restart), START).unwrap();
    let Event::TaskFailed(failed) = &decision.facts[0] else { panic!("{decision:?}") };
    assert_eq!(failed.code, Code::TaskStuck.name());
    assert_eq!(decision.effects, [Effect::Kill { session: SessionId(4) }]);
}

#[test]
fn a_replaced_session_changes_nothing() {
    let task = after(running(), &[recover(1, Recovery::Restart), start(2)], START);
    for input in [
        beat(1, Activity::SessionDead),
        recover(1, Recovery::Restart),
        signal(1, SignalKind::Complete),
        succeed(1),
        fail(1),
        start(1),
        succeed(3),
    ] {
        assert_eq!(task.decide(&input, START).unwrap_err().code(), Code::LeaseStaleEpoch, "{input:?}");
    }
    let twin = Input::Start { session: SessionId(99), epoch: 2 };
    assert_eq!(task.decide(&twin, START), Err(Error::OtherSession(SessionId(2))));
    // The lease moved and brought another session: the old one must go.
    let moved = task.decide(&Input::Start { session: SessionId(99), epoch: 3 }, START).unwrap();
    assert_eq!(moved.effects, [Effect::Kill { session: SessionId(2) }]);
}

#[test]
fn silence_is_noticed_at_the_time_out_and_not_before() {
    let mut beats = Beats::default();
    let task = Task { config: Config::default(), ..running() };
    assert_eq!(task.due(&beats), Some(Millis(121_000)));
    beats.seen.insert(Holder::Step(task.run, task.step.clone()), Millis(50_000));
    assert_eq!(task.due(&beats), Some(Millis(170_000)));
    let tick = Input::Tick { last_seen: task.last_seen(&beats) };
    assert_eq!(task.decide(&tick, Millis(169_999)), Ok(Decision::new()));
    let Event::TaskStuck(fact) = &task.decide(&tick, Millis(170_000)).unwrap().facts[0] else { panic!() };
    assert_eq!((fact.reason, fact.last_seen), (Stuck::NoHeartbeat, Some(Millis(50_000))));
    // After a restart of the process the session gets one whole time-out.
    beats = Beats { since: Millis(1_000_000), ..Beats::default() };
    assert_eq!(task.due(&beats), Some(Millis(1_120_000)));
}

#[test]
fn a_sign_of_life_is_put_on_the_run_once_an_interval() {
    let beats = Beats { since: Millis(60_000), ..Beats::default() };
    let task = running();
    assert_eq!(task.due(&beats), Some(Millis(61_000)));
    let tick = Input::Tick { last_seen: task.last_seen(&beats) };
    let decision = task.decide(&tick, Millis(61_000)).unwrap();
    assert!(matches!(&decision.facts[..], [Event::CheckpointSaved(c)] if c.data.is_none()));
    let task = task.apply(&decision.facts[0], Millis(61_000));
    assert_eq!(task.decide(&tick, Millis(61_001)), Ok(Decision::new()));
    assert_eq!(task.due(&beats), Some(Millis(121_000)));
}

#[test]
fn an_escalation_is_a_humans_until_the_agent_finishes() {
    let task = escalated();
    assert_eq!(after(task.clone(), &[beat(1, Activity::Active)], START), task);
    assert_eq!(after(task.clone(), &[signal(1, SignalKind::Complete)], START).state_name(), "done");
    let retried = after(spent(task), &[resolve(Resolution::Retry)], START);
    assert_eq!((retried.epoch, retried.recovery_attempts, retried.state), (2, 0, State::Pending));
}

#[test]
fn an_escalation_tells_a_human() {
    let decision = stuck().decide(&recover(1, call()), START).unwrap();
    let tags: Vec<_> = decision.facts.iter().map(Event::tag).collect();
    assert_eq!(tags, ["task:escalated", "notice:requested"]);
    assert!(matches!(&decision.effects[0], Effect::Notify { notice: NoticeId(8), .. }));
}

#[test]
fn a_first_start_makes_the_whole_task() {
    let decision = pending().decide(&start(1), START).unwrap();
    let Event::TaskStarted(event) = &decision.facts[0] else { panic!() };
    assert_eq!(Task::started(event, START), running());
}

fn inputs() -> impl Strategy<Value = Input> {
    let epoch = 1..5u64;
    prop_oneof![
        3 => epoch.clone().prop_map(start),
        3 => (epoch.clone(), 0..3u8, 0..300u64).prop_map(|(epoch, kind, secs)| beat(epoch, match kind {
            0 => Activity::Active,
            1 => Activity::Idle(Span::secs(secs)),
            _ => Activity::SessionDead,
        })),
        3 => (epoch.clone(), 0..3u8).prop_map(|(epoch, kind)| recover(epoch, match kind {
            0 => nudge(),
            1 => Recovery::Restart,
            _ => call(),
        })),
        1 => (epoch.clone(), any::<bool>()).prop_map(|(epoch, done)| {
            signal(epoch, if done { SignalKind::Complete } else { SignalKind::Escalate })
        }),
        1 => epoch.clone().prop_map(succeed),
        1 => epoch.prop_map(fail),
        1 => Just(cancel()),
        2 => prop::sample::select(Resolution::ALL).prop_map(resolve),
        3 => (0..600_000u64).prop_map(|at| Input::Tick { last_seen: Millis(at) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_sequence_keeps_the_invariants(
        inputs in prop::collection::vec((inputs(), 0..100_000u64), 0..60),
        cut in 0..60usize,
    ) {
        let mut task = pending();
        let mut at = START;
        let mut log = Vec::new();
        for (input, later) in &inputs {
            at = at + Span(*later);
            let Ok(decision) = task.decide(input, at) else { continue };
            let mut next = task.clone();
            for fact in decision.facts {
                next = next.apply(&fact, at);
                log.push((fact, at));
            }
            prop_assert!(next.epoch >= task.epoch);
            prop_assert!(next.recovery_attempts <= next.config.max_recovery_attempts);
            if let State::Done { .. } = task.state {
                prop_assert_eq!(&next, &task);
            }
            if let Input::Heartbeat { .. } | Input::Tick { .. } = input {
                let ended = matches!(next.state, State::Done { .. }) && next.state != task.state;
                prop_assert!(!ended, "nobody ends a task by watching it");
            }
            let works = matches!(next.state, State::Running { .. } | State::Stuck { .. } | State::Escalated);
            prop_assert_eq!(next.session.is_some(), works);
            if let Some(old) = task.session.filter(|_| next.session != task.session) {
                let killed = decision.effects.contains(&Effect::Kill { session: old });
                prop_assert!(killed, "{old} lives on");
            }
            task = next;
        }
        let fold = |task: Task, facts: &[(Event, Millis)]| {
            facts.iter().fold(task, |task, (fact, at)| task.apply(fact, *at))
        };
        prop_assert_eq!(&fold(pending(), &log), &task);
        let (head, tail) = log.split_at(cut.min(log.len()));
        let snapshot = serde_json::to_string(&fold(pending(), head)).unwrap();
        prop_assert_eq!(&fold(serde_json::from_str(&snapshot).unwrap(), tail), &task);
    }
}
