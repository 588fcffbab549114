//! Stories: what a reviewer reads to see what Windlass does. Each is a text of prose and commands, and below every
//! command stands what came of it: facts, effects, answers. All of it is checked in and compared.
//!
//! ```text
//! # Prose begins with a hash.
//! > runbook                      a command begins with `> `; `| ` is a text that belongs to it
//! | name: hello
//! > start hello by=ann
//!   + pipeline:created R1 …      a fact that is committed: its tag, what it is about, its fields
//!   ! execute R1/greet …         an effect, released after the commit; `(again)`: derived anew after a crash
//!   = leased R1/greet epoch=1    the answer, or `refused CODE: why`; nothing where it is just `done`
//!     R1 is running              how the status that follows from the steps changed
//!   @30s                         the time since the beginning, where it moved
//!   ~ policy allows R1/greet     what the outside answers by itself
//! ```
//!
//! `UPDATE_GOLDEN=1 cargo test -p windlass-runbook --test stories` writes the transcripts anew: read what changed.
//!
//! Ids, hashes and times have stable names: the first run that is told of is `R1`, the first item `I1`, the first approval
//! `A1`, any other digest `#1`, a time `@1m30s` after the beginning. Commands use the same names. The verbs:
//!
//! | | |
//! |---|---|
//! | `runbook`, `deploy` | load the YAML below and declare its locks; make it the active version |
//! | `start PIPELINE [vars= by= needs= policy=deny\|ask\|silent]` | make a run |
//! | `lease`, `done`, `fail`, `stopped`, `lost`, `returned`, `deferred` `R1/step [by= epoch= output= message= code= retryable after= receipt=]` | an executor; `by=` names one elsewhere, which has to `beat` |
//! | `checkpoint`, `cost`, `agent` `R1/step …` | progress, money, what an agent does |
//! | `policy R1/step allows\|denies\|asks [two_person count= approvers= expires= reason=]`, `policy version=`, `policy silent` | policy answers, changes, or answers nothing by itself |
//! | `approve`, `reject`, `void` `R1/step [by= seen= groups= program reason=]` | a human decides on what was shown |
//! | `guard R1/step [lock/NAME=free\|held file/PATH=there command/CMD=ok] [unknown]` | what guards asked is gathered |
//! | `resolve R1/step done\|retry\|fail [probed output=]`, `raise R1 usd=`, `caps …` | what humans settle and allow |
//! | `cancel`, `suspend`, `resume`, `retry`, `fork [from=]`, `undo [with=]` `R1` | what people do with runs |
//! | `signal NAME [key= data= run=]`, `deliver KEY PIPELINE [body=]`, `refer KEY`, `emit A:B` | what comes from outside |
//! | `acquire`, `release`, `hold`, `break` `lock/NAME\|semaphore/NAME [by= weight= wait epoch= of=]` | programs that want locks |
//! | `push QUEUE DATA`, `take QUEUE`, `item I1 complete\|fail\|return\|retry\|drop`, `queue Q pause\|resume`, `worker W stop\|resize\|wake`, `listed W [..]`, `took W I1 R1`, `schedule S run-now\|pause` | queues and schedules |
//! | `wait 30s`, `crash [down=10m]`, `show R1` | time, the end of the process, a look |
//!
//! A story has at most 100 commands and 1,000 lines, and a command leads to at most 1,000 turns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)] // A test may fail that way.

mod acts;
mod names;
mod resources;
mod script;
mod stage;
mod tell;

use acts::Play;
use script::Part;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stories")
}

/// Tells a story from its commands, and writes below each what came of it. `before` is done before every command.
fn tell(parts: &[Part], before: impl Fn(&mut Play)) -> String {
    let (mut play, mut out) = (Play::new(), String::new());
    for part in parts {
        match part {
            Part::Prose(line) => out.push_str(&format!("{line}\n")),
            Part::Command { line, block } => {
                out.push_str(&format!("> {line}\n"));
                for text in block {
                    out.push_str(format!("| {text}").trim_end());
                    out.push('\n');
                }
                before(&mut play);
                play.act(line, block);
                for told in std::mem::take(&mut play.stage.out) {
                    out.push_str(&format!("  {told}\n"));
                }
            }
        }
    }
    out
}

/// A story says what it said before. `UPDATE_GOLDEN=1` writes it anew.
fn holds(story: &str) {
    let path = folder().join(format!("{story}.txt"));
    let expected = std::fs::read_to_string(&path).unwrap();
    let parts = script::parse(&expected);
    let told = tell(&parts, |_| {});
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &told).unwrap();
    } else if told != expected {
        panic!("{story}.txt tells something else, at {}", script::difference(&expected, &told));
    }
    // The log is all there is to know: read back before every command, the story is the same.
    let again = tell(&parts, |play| play.stage.reload());
    assert!(
        again == told,
        "{story}.txt depends on more than its records, at {}",
        script::difference(&told, &again)
    );
}

/// What became true, and how every run ended up: in whatever order, and with whatever was asked twice on the way.
fn end_of(parts: &[Part], cut: Option<usize>) -> (Vec<String>, Vec<String>) {
    let mut play = Play::new();
    play.stage.cut = cut;
    for part in parts {
        if let Part::Command { line, block } = part {
            play.act(line, block);
        }
    }
    let out = std::mem::take(&mut play.stage.out);
    // A start looks at what is outstanding; nothing has to wake it.
    let tells = |line: &String| line.starts_with("+ ") && !line.starts_with("+ worker:wake ");
    let mut facts: Vec<String> = out.into_iter().filter(tells).collect();
    facts.sort();
    let runs: Vec<String> = play.stage.runs().map(|run| play.stage.summary(run)).collect();
    (facts, runs.iter().map(|run| play.stage.names.shorten(run)).collect())
}

/// The process ends between each two decisions, and so between each two groups of records that belong together: starts decide
/// what was left over, and everything comes to the same end.
#[test]
fn a_crash_between_any_two_decisions_comes_to_the_same_end() {
    let text = std::fs::read_to_string(folder().join("crash_anywhere.txt")).unwrap();
    let parts = script::parse(&text);
    let (facts, runs) = end_of(&parts, None);
    assert!(runs.len() > 3 && facts.len() > 50, "the story is too small to be cut");
    for cut in 0..12 {
        let (cut_facts, cut_runs) = end_of(&parts, Some(cut));
        assert_eq!(cut_runs, runs, "after {cut} decisions");
        assert!(
            cut_facts == facts,
            "after {cut} decisions: {}",
            script::difference(&facts.join("\n"), &cut_facts.join("\n"))
        );
    }
}

/// Each story is a test of its own, so that one that changed has a name.
macro_rules! stories {
    ($( $story:ident ),+ $(,)?) => {
        $(
            #[test]
            fn $story() {
                holds(stringify!($story));
            }
        )+

        /// No file lies here that no test reads.
        #[test]
        fn every_story_is_told() {
            let told = [$( stringify!($story) ),+];
            for file in std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path()) {
                if file.extension().is_some_and(|extension| extension == "txt") {
                    let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
                    assert!(told.contains(&name.as_str()), "nobody tells {name}");
                }
            }
        }
    };
}

stories! {
    agent,
    approval_approves,
    approval_expires,
    approval_rejects,
    approval_void_by_variable,
    approve_for,
    budget,
    call_cancel,
    call_stops,
    cancel_compensates,
    caps,
    checkpoint_resume,
    crash_anywhere,
    deadline,
    effect_key,
    external_queue,
    failure_compensates,
    foreach,
    fork,
    guard_after,
    guard_before,
    heartbeats_lost,
    hello,
    hold_lost,
    ingress_key,
    lease_expires,
    lock_cancel,
    lock_outside,
    lock_queue,
    lock_skip,
    lost_at_most_once,
    lost_idempotent,
    lost_reconcile,
    lost_shell,
    needs,
    parallel_fail_fast,
    parallel_kill,
    parallel_none_start,
    policy_denies,
    policy_moves,
    queue_outside,
    retry_backoff,
    retry_linked,
    schedule_catch_up,
    schedule_overlap,
    schedule_queues_or_cancels,
    semaphore_weights,
    signal_early,
    signal_late,
    strategy,
    suspend_resume,
    two_person,
    undo,
    wait_a_while,
    wake_on,
    when_skips,
    worker,
    worker_stopped,
}
