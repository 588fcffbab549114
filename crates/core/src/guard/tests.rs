//! Every condition is asked three times: where it holds, where it does not, and where nobody can say.

use super::*;
use crate::testing::name;
use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec;
use proptest::prelude::*;

fn lock_free(lock: &str) -> Condition {
    Condition::LockFree { lock: name(lock) }
}

fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

fn filter(labels: &[&str], milestone: Option<&str>, ids: &[&str]) -> IssueFilter {
    let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
    IssueFilter { labels: texts(labels), milestone: milestone.map(String::from), ids: texts(ids) }
}

fn issue(id: &str, status: IssueStatus, labels: &[&str]) -> Issue {
    let labels = labels.iter().map(ToString::to_string).collect();
    Issue { id: id.to_string(), status, labels, milestone: Some("1.0".to_string()) }
}

fn with<T>(change: impl FnOnce(&mut GuardInputs) -> T) -> GuardInputs {
    let mut inputs = GuardInputs::default();
    change(&mut inputs);
    inputs
}

/// Asks a condition of what is gathered where it holds and where it does not, then of nothing at all. Its
/// negation must say the opposite, and still know nothing of nothing.
fn check_three(condition: &Condition, holds: &GuardInputs, fails: &GuardInputs) {
    for (inputs, expected) in
        [(holds, Truth::True), (fails, Truth::False), (&GuardInputs::default(), Truth::Unknown)]
    {
        assert_eq!(check(condition, inputs), expected, "{condition}");
        assert_eq!(check(&not(condition.clone()), inputs), !expected, "not: {condition}");
        let guard = Guard { name: name("g"), condition: condition.clone(), on_failure: OnFailure::Block };
        assert_eq!(guard.evaluate(inputs) == GuardResult::Passed, expected == Truth::True);
    }
}

#[test]
fn locks() {
    let inputs = |holder: Option<Holder>| with(|i| i.locks.insert(name("merge"), holder));
    let ann = || Holder::Outside(name("ann"));
    let run = || Holder::Run(RunId(1));
    check_three(&lock_free("merge"), &inputs(None), &inputs(Some(ann())));
    let held = |by| Condition::LockHeld { lock: name("merge"), by };
    check_three(&held(None), &inputs(Some(ann())), &inputs(None));
    check_three(&held(Some(ann())), &inputs(Some(ann())), &inputs(Some(run())));
    check_three(&held(Some(ann())), &inputs(Some(ann())), &inputs(None));
}

#[test]
fn semaphores() {
    let inputs = |available| with(|i| i.semaphores.insert(name("builders"), available));
    let condition = Condition::SemaphoreAvailable { semaphore: name("builders"), slots: 2 };
    check_three(&condition, &inputs(2), &inputs(1));
}

#[test]
fn issues() {
    let bugs = || filter(&["bug"], Some("1.0"), &[]);
    let inputs = |issues: Vec<Issue>| with(|i| i.issues.insert(bugs(), issues));
    let done = || issue("1", IssueStatus::Done, &["bug", "p1"]);
    let open = || issue("2", IssueStatus::Open, &["bug"]);
    let blocked = || issue("3", IssueStatus::Blocked, &["bug"]);
    let other = issue("4", IssueStatus::Blocked, &["docs"]);
    let late = Issue { milestone: None, ..blocked() };
    let complete = Condition::IssuesComplete { filter: bugs() };
    // What the filter does not ask for does not count, even where it was gathered.
    check_three(&complete, &inputs(vec![done(), other.clone(), late]), &inputs(vec![done(), open()]));
    check_three(&complete, &inputs(vec![]), &inputs(vec![blocked()]));
    let unblocked = Condition::NoBlockedIssues { filter: bugs() };
    check_three(&unblocked, &inputs(vec![done(), open(), other]), &inputs(vec![open(), blocked()]));
}

#[test]
fn an_issue_that_is_named_and_not_found_is_unknown() {
    let both = || filter(&[], None, &["1", "2"]);
    let complete = Condition::IssuesComplete { filter: both() };
    let inputs = |issues: Vec<Issue>| with(|i| i.issues.insert(both(), issues));
    let one = |id, status| issue(id, status, &[]);
    assert_eq!(check(&complete, &inputs(vec![one("1", IssueStatus::Done)])), Truth::Unknown);
    assert_eq!(check(&complete, &inputs(vec![one("1", IssueStatus::Open)])), Truth::False);
    let all = vec![one("1", IssueStatus::Done), one("2", IssueStatus::Done), one("3", IssueStatus::Open)];
    assert_eq!(check(&complete, &inputs(all)), Truth::True);
}

#[test]
fn branches() {
    let inputs = |found: BranchInfo| with(|i| i.branches.insert("fix".to_string(), found));
    let fix = |exists, clean| inputs(BranchInfo { exists, clean, ..BranchInfo::default() });
    let branch = || "fix".to_string();
    check_three(&Condition::BranchExists { branch: branch() }, &fix(true, None), &fix(false, None));
    let clean = Condition::BranchClean { branch: branch() };
    check_three(&clean, &fix(true, Some(true)), &fix(true, Some(false)));
    check_three(&clean, &fix(true, Some(true)), &fix(false, None));
    assert_eq!(check(&clean, &fix(true, None)), Truth::Unknown, "it was not looked at");
    let merged = Condition::BranchMerged { branch: branch(), into: "main".to_string() };
    let into = |target: &str, exists, is| {
        inputs(BranchInfo { exists, clean: None, merged_into: [(target.to_string(), is)].into() })
    };
    check_three(&merged, &into("main", true, true), &into("main", true, false));
    assert_eq!(check(&merged, &into("main", false, true)), Truth::True, "merged, then deleted");
    assert_eq!(check(&merged, &into("other", true, true)), Truth::Unknown);
    assert_eq!(check(&merged, &fix(false, None)), Truth::Unknown);
}

#[test]
fn files() {
    let path = || "CHANGELOG.md".to_string();
    let inputs = |found: FileInfo| with(|i| i.files.insert(path(), found));
    let file = |exists| inputs(FileInfo { exists, ..FileInfo::default() });
    check_three(&Condition::FileExists { path: path() }, &file(true), &file(false));
    let contains = Condition::FileContains { path: path(), pattern: "1.0".to_string() };
    let text = |text: &str, is| inputs(FileInfo { exists: true, contains: [(text.to_string(), is)].into() });
    check_three(&contains, &text("1.0", true), &text("1.0", false));
    check_three(&contains, &text("1.0", true), &file(false));
    assert_eq!(check(&contains, &text("2.0", true)), Truth::Unknown, "another text was searched for");
    assert_eq!(check(&contains, &file(true)), Truth::Unknown, "it could not be read");
}

#[test]
fn runs() {
    let inputs = |status, step: Option<&str>| {
        with(|i| i.pipelines.insert(RunId(1), PipelineInfo { status, step: step.map(name) }))
    };
    let completed = inputs(origin::Status::Completed, None);
    let running = inputs(origin::Status::Running, Some("land"));
    check_three(&Condition::PipelineComplete { pipeline: RunId(1) }, &completed, &running);
    let phase = |phase| Condition::PipelineInPhase { pipeline: RunId(1), phase: name(phase) };
    check_three(&phase("land"), &running, &completed);
    check_three(&phase("running"), &running, &completed);
    // The seeds' own words for phases are understood.
    check_three(&phase("Done"), &completed, &running);
}

#[test]
fn commands() {
    let inputs = |success| with(|i| i.commands.insert("./ready".to_string(), CommandResult { success }));
    let command = |expect_success| Condition::Command { cmd: "./ready".to_string(), expect_success };
    check_three(&command(true), &inputs(true), &inputs(false));
    check_three(&command(false), &inputs(false), &inputs(true));
}

#[test]
fn groups_follow_kleene() {
    let inputs = with(|i| {
        i.locks.insert(name("t"), None);
        i.locks.insert(name("f"), Some(Holder::Run(RunId(1))));
    });
    let of = |letters: &str| letters.chars().map(|c| lock_free(&c.to_string())).collect::<Vec<_>>();
    for (letters, all, any) in [
        ("", Truth::True, Truth::False),
        ("t", Truth::True, Truth::True),
        ("f", Truth::False, Truth::False),
        ("u", Truth::Unknown, Truth::Unknown),
        ("tt", Truth::True, Truth::True),
        ("tf", Truth::False, Truth::True),
        ("tu", Truth::Unknown, Truth::True),
        ("ft", Truth::False, Truth::True),
        ("ff", Truth::False, Truth::False),
        ("fu", Truth::False, Truth::Unknown),
        ("ut", Truth::Unknown, Truth::True),
        ("uf", Truth::False, Truth::Unknown),
        ("uu", Truth::Unknown, Truth::Unknown),
    ] {
        assert_eq!(check(&Condition::All(of(letters)), &inputs), all, "all {letters}");
        assert_eq!(check(&Condition::Any(of(letters)), &inputs), any, "any {letters}");
        assert_eq!(check(&not(Condition::Any(of(letters))), &inputs), !any, "not any {letters}");
    }
}

#[test]
fn needs_name_everything_once() {
    let into = |into: &str| Condition::BranchMerged { branch: "fix".to_string(), into: into.to_string() };
    let text = |text: &str| Condition::FileContains { path: "a".to_string(), pattern: text.to_string() };
    let condition = Condition::All(vec![
        lock_free("merge"),
        Condition::LockHeld { lock: name("merge"), by: None },
        Condition::Any(vec![
            into("main"),
            into("next"),
            Condition::BranchExists { branch: "fix".to_string() },
        ]),
        not(text("x")),
        text("y"),
        Condition::FileExists { path: "b".to_string() },
        Condition::SemaphoreAvailable { semaphore: name("builders"), slots: 1 },
        Condition::IssuesComplete { filter: filter(&["bug"], None, &[]) },
        Condition::NoBlockedIssues { filter: filter(&["bug"], None, &[]) },
        Condition::PipelineComplete { pipeline: RunId(1) },
        Condition::Command { cmd: "./ready".to_string(), expect_success: true },
    ]);
    let set = |list: &[&str]| list.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let expected = Needs {
        locks: [name("merge")].into(),
        semaphores: [name("builders")].into(),
        issues: [filter(&["bug"], None, &[])].into(),
        branches: [("fix".to_string(), set(&["main", "next"]))].into(),
        files: [("a".to_string(), set(&["x", "y"])), ("b".to_string(), set(&[]))].into(),
        pipelines: [RunId(1)].into(),
        latest: BTreeSet::new(),
        commands: set(&["./ready"]),
    };
    assert_eq!(needs(&condition), expected);
}

#[test]
fn the_first_that_fails_stops_and_warnings_before_it_are_kept() {
    let guard = |text: &str, lock: &str, on_failure| Guard {
        name: name(text),
        condition: lock_free(lock),
        on_failure,
    };
    let inputs = with(|i| {
        i.locks.insert(name("t"), None);
        i.locks.insert(name("f"), Some(Holder::Run(RunId(1))));
    });
    let fail = OnFailure::Fail { message: "no".to_string() };
    let guards = [
        guard("fine", "t", OnFailure::Block),
        guard("odd", "u", OnFailure::Warn),
        guard("bad", "f", fail.clone()),
        guard("later", "f", OnFailure::Warn),
    ];
    let verdict = evaluate_all(&guards, &inputs);
    let failed = |guard: &str, action, unknown, detail: &str| GuardResult::Failed {
        guard: name(guard),
        action,
        unknown,
        detail: detail.to_string(),
    };
    assert_eq!(verdict.result, failed("bad", fail, false, "it does not hold that lock `f` is free"));
    let warning = failed("odd", OnFailure::Warn, true, "nobody can say whether lock `u` is free");
    assert_eq!(verdict.warnings, vec![warning]);
    let verdict = evaluate_all(&guards[..2], &inputs);
    assert_eq!((verdict.result, verdict.warnings.len()), (GuardResult::Passed, 1));
}

#[test]
fn the_detail_names_the_part_at_fault() {
    let inputs = with(|i| {
        i.locks.insert(name("t"), None);
        i.locks.insert(name("f"), Some(Holder::Run(RunId(1))));
    });
    let parts = vec![lock_free("t"), lock_free("u"), Condition::All(vec![lock_free("t"), lock_free("f")])];
    assert_eq!(explain(&Condition::All(parts), &inputs), "it does not hold that lock `f` is free");
    let parts = vec![lock_free("f"), lock_free("u")];
    assert_eq!(explain(&Condition::Any(parts), &inputs), "nobody can say whether any of 2 conditions holds");
    let longest = Condition::FileContains { path: "p".repeat(10_000), pattern: "q".repeat(10_000) };
    assert!(explain(&longest, &inputs).len() < 512);
    let filter = filter(&["bug"], Some("1.0"), &["7"]);
    let text = "nobody can say whether all issues labelled `bug` of milestone `1.0` with id `7` are done";
    assert_eq!(explain(&Condition::IssuesComplete { filter }, &inputs), text);
}

fn nested(depth: usize) -> Condition {
    (1..depth).fold(lock_free("t"), |inner, _| not(inner))
}

#[test]
fn depth_and_number_are_bounded() {
    let inputs = with(|i| i.locks.insert(name("t"), None));
    assert_eq!(nested(DEPTH_MAX).check_bounds(), Ok(()));
    assert_ne!(check(&nested(DEPTH_MAX), &inputs), Truth::Unknown);
    assert_eq!(needs(&nested(DEPTH_MAX)).locks.len(), 1);
    assert_eq!(nested(DEPTH_MAX + 1).check_bounds(), Err(Error::Depth));
    assert_eq!(check(&nested(DEPTH_MAX + 1), &inputs), Truth::Unknown, "closed, whatever is in there");
    assert_eq!(needs(&nested(DEPTH_MAX + 1)).locks.len(), 0);
    let wide = |count| Condition::All(vec![lock_free("t"); count]);
    assert_eq!(wide(CONDITIONS_MAX - 1).check_bounds(), Ok(()));
    assert_eq!(wide(CONDITIONS_MAX).check_bounds(), Err(Error::Conditions));
    assert_eq!(Error::Depth.code(), Code::RunbookInvalid);
}

fn conditions() -> impl Strategy<Value = Condition> {
    let leaf = prop_oneof![Just("t"), Just("f"), Just("u")].prop_map(lock_free);
    leaf.prop_recursive(5, 48, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Condition::All),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Condition::Any),
            inner.prop_map(not),
        ]
    })
}

proptest! {
    /// Learning more never turns a known answer round: whatever the unknown turns out to be, what was true
    /// stays true and what was false stays false.
    #[test]
    fn knowing_more_changes_no_known_answer(condition in conditions(), free in any::<bool>()) {
        let holder = || Some(Holder::Run(RunId(1)));
        let mut inputs = with(|i| {
            i.locks.insert(name("t"), None);
            i.locks.insert(name("f"), holder());
        });
        let before = check(&condition, &inputs);
        inputs.locks.insert(name("u"), if free { None } else { holder() });
        let after = check(&condition, &inputs);
        prop_assert_ne!(after, Truth::Unknown);
        if before != Truth::Unknown {
            prop_assert_eq!(after, before);
        }
    }

    #[test]
    fn conditions_read_back(condition in conditions()) {
        let text = serde_json::to_string(&condition).unwrap();
        prop_assert_eq!(serde_json::from_str::<Condition>(&text).unwrap(), condition);
    }
}
