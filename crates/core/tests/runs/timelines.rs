//! Timelines: what the picture of a run says, and that it agrees with the run at every record.

use crate::world::*;
use windlass_core::attempt::Report;
use windlass_core::digest::Digest;
use windlass_core::event::words::Overlap;
use windlass_core::id::RunId;
use windlass_core::record::{Check, Record};
use windlass_core::run::Status;
use windlass_core::step::Status as S;
use windlass_core::stream::StreamId;
use windlass_core::time::{Millis, Span};
use windlass_core::timeline::{Activity as A, Ended, STRETCHES_MAX, Stretch, Timeline};
use windlass_core::turn::command::Command;

fn records(world: &World, id: RunId) -> Vec<Record> {
    let stream = StreamId::Run(id);
    let mut head = Digest::default();
    let mut found = Vec::new();
    for line in &world.lines {
        if !line.contains(&stream.to_string()) {
            continue;
        }
        let Ok(record) = Record::decode(line, Check::Chain(&head)) else { continue };
        if record.stream == stream {
            head = record.chain;
            found.push(record);
        }
    }
    found
}

/// The timeline of a run. At every record it agrees with the run, its stretches follow each other without a gap, and a
/// step that has not ended has one that is open.
fn timeline(world: &World, id: RunId) -> Timeline {
    let mut timeline = Timeline::new();
    for record in records(world, id) {
        timeline.see(&record);
        let run = timeline.run().unwrap();
        assert_eq!(timeline.rows.len(), run.steps.len() + 1);
        for (row, step) in timeline.rows.iter().skip(1).zip(&run.steps) {
            assert_eq!(row.step.as_ref(), Some(&step.id));
            assert_eq!(row.status, Some(step.status));
            assert_eq!(
                step.status.is_terminal(),
                row.stretches.iter().all(|one| one.to.is_some()),
                "{}",
                step.id
            );
            for pair in row.stretches.windows(2) {
                assert_eq!(pair[0].to, Some(pair[1].from), "no gap and no overlap in {}", step.id);
            }
        }
    }
    assert_eq!(timeline.run().unwrap().status(), world.status(id));
    timeline
}

fn row<'a>(timeline: &'a Timeline, step: &str) -> &'a [Stretch] {
    let is = |row: &&windlass_core::timeline::Row| row.step.as_ref().is_some_and(|id| id.as_str() == step);
    &timeline.rows.iter().find(is).unwrap().stretches
}

fn activities(timeline: &Timeline, step: &str) -> Vec<A> {
    row(timeline, step).iter().map(|one| one.activity).collect()
}

/// A failure after which another attempt may succeed.
fn again() -> Report {
    Report::Failed { failure: failure("busy"), retryable: true, exit_code: None, signal: None }
}

#[test]
fn attempts_and_the_time_between_them_follow_each_other() {
    let mut world = World::new(main_book(vec![run("a").retry(3, Span::secs(60)), run("b")]));
    let id = world.start();
    world.sleep(Span::secs(1));
    world.lease(id, "a");
    world.sleep(Span::secs(2));
    world.report(id, "a", 1, again()).unwrap();
    let open = timeline(&world, id);
    let backoff = row(&open, "a").last().unwrap();
    assert_eq!((backoff.activity, backoff.to), (A::Backoff, None));
    assert!(backoff.until.is_some_and(|until| until > world.at), "it says when it is over");
    world.sleep(Span::secs(120));
    world.succeed(id, "a");
    world.succeed(id, "b");
    assert_eq!(world.status(id), Status::Completed);
    let timeline = timeline(&world, id);
    assert_eq!(activities(&timeline, "a"), [A::Ready, A::Attempt, A::Backoff, A::Ready, A::Attempt]);
    let ended: Vec<_> = row(&timeline, "a").iter().filter_map(|one| one.ended).collect();
    assert_eq!(ended, [Ended::Failed, Ended::Done]);
    let first = &row(&timeline, "a")[1];
    assert_eq!((first.attempt, first.epoch, first.to.unwrap().0 - first.from.0), (1, 1, 2_000));
    assert_eq!(row(&timeline, "a")[4].attempt, 2);
    assert!(timeline.rows[0].stretches.iter().all(|one| one.to.is_some()), "the run has ended");
}

#[test]
fn a_lost_attempt_says_when_its_executor_was_last_heard_of() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    world.lease(id, "a");
    let last = world.at;
    world.sleep(Span::secs(20));
    world.report(id, "a", 1, Report::Lost { last_seen: Some(Millis(last.0 + 5_000)) }).unwrap();
    let timeline = timeline(&world, id);
    let attempt = &row(&timeline, "a")[1];
    assert_eq!((attempt.activity, attempt.ended), (A::Attempt, Some(Ended::Lost)));
    assert_eq!(attempt.last_seen, Some(Millis(last.0 + 5_000)));
    assert_eq!(activities(&timeline, "a"), [A::Ready, A::Attempt, A::Ready]);
}

#[test]
fn members_stand_under_their_group_and_waits_say_for_what() {
    let members = vec![run("x").lock("db", Overlap::Queue), run("y").lock("db", Overlap::Queue)];
    let mut world = World::new(main_book(vec![parallel("p", members)]));
    let id = world.start();
    world.lease(id, "x");
    let timeline = timeline(&world, id);
    let group = timeline.rows.iter().position(|row| row.group.is_some()).unwrap();
    let member =
        timeline.rows.iter().find(|row| row.step.as_ref().is_some_and(|id| id.as_str() == "y")).unwrap();
    assert_eq!(member.parent, Some(group));
    let wait = row(&timeline, "y").last().unwrap();
    assert_eq!((wait.activity, wait.on.as_ref().map(|on| on.as_str())), (A::Lock, Some("db")));
}

#[test]
fn a_suspended_run_says_so_and_what_people_did_is_marked() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    world.sleep(Span::secs(1));
    world.send(&Command::Suspend { run: id, reason: None }).unwrap();
    world.sleep(Span::secs(5));
    world.send(&Command::Resume { run: id, message: None, vars: None }).unwrap();
    let timeline = timeline(&world, id);
    let run: Vec<_> = timeline.rows[0].stretches.iter().map(|one| one.activity).collect();
    assert_eq!(run.last(), Some(&A::Group));
    assert!(run.contains(&A::Suspended));
    let marks: Vec<_> = timeline.marks.iter().map(|mark| mark.tag).collect();
    assert_eq!(marks, ["pipeline:suspended", "pipeline:resumed"]);
}

#[test]
fn a_row_has_a_bound_and_says_what_it_left_out() {
    let mut world = World::new(main_book(vec![run("a")]));
    let id = world.start();
    let mut timeline = Timeline::new();
    for record in records(&world, id) {
        timeline.see(&record);
    }
    // Each suspension and each resumption is a stretch of the run.
    let mut ver = timeline.ver;
    let mut template = records(&world, id).pop().unwrap();
    for n in 0..STRETCHES_MAX as u64 {
        ver += 1;
        template.ver = ver;
        template.at = Millis(template.at.0 + 1);
        template.event = if n % 2 == 0 {
            windlass_core::event::PipelineSuspended { id, reason: None }.into()
        } else {
            windlass_core::event::PipelineResumed { id, message: None }.into()
        };
        timeline.see(&template);
    }
    assert_eq!(timeline.rows[0].stretches.len(), STRETCHES_MAX);
    assert!(timeline.rows[0].left_out > 0);
    assert_eq!(world.step_status(id, "a"), S::Ready);
}
