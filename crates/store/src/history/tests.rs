//! What the index promises: what was put is found, once, in order; `through` never says more than the rows; and a file
//! that does not fit is set aside.

use super::*;
use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tempfile::TempDir;
use windlass_core::event::{Event, PipelineCompleted, PipelineCreated};
use windlass_core::run::{Lineage, Source, Subject, Trigger};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn row(id: u128) -> Row {
    Row {
        id: RunId(id),
        root: RunId(id),
        tenant: name("acme"),
        namespace: name("default"),
        status: Status::Completed,
        pipeline: name("deploy"),
        repo: None,
        runbook: Digest([7; 32]),
        created_at: Millis(1_000),
        updated_at: Millis(2_000),
        completed_at: Some(Millis(3_000)),
        first_seq: 1,
        last_seq: 9,
        json: format!("{{\"id\":\"{}\"}}", RunId(id)),
        approvals: Vec::new(),
        kin: Vec::new(),
    }
}

fn all() -> Filter {
    Filter {
        tenant: name("acme"),
        namespace: name("default"),
        status: None,
        pipeline: None,
        repo: None,
        origin: Origin::default(),
        since: None,
        before: None,
        limit: 100,
    }
}

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self) -> History {
        History::open(&self.file("history.db")).unwrap()
    }

    /// A connection behind the index's back.
    fn sql(&self, text: &str) -> Connection {
        let connection = Connection::open(self.file("history.db")).unwrap();
        connection.execute_batch(text).unwrap();
        connection
    }
}

fn ids(rows: &[Row]) -> Vec<u128> {
    rows.iter().map(|row| row.id.0).collect()
}

fn run(vars: &Value) -> Run {
    let id = RunId(7);
    let created = PipelineCreated {
        id,
        kind: name("deploy"),
        name: name("shop/deploy"),
        runbook_hash: Digest::of(&[b"runbook"]),
        cwd: "/srv".to_owned(),
        vars: windlass_core::packed::Packed::of(vars).into(),
        initial_step: None,
        created_at_epoch_ms: Millis(1_000),
        namespace: name("default"),
        trigger: Trigger {
            source: Source::Cli,
            key: None,
            user: None,
            event_id: None,
            traceparent: None,
            of: None,
        },
        lineage: Lineage::first(id),
        subject: Some(Subject { repo: Some("acme/shop".to_owned()), pr: None, url: None }),
        correlation_id: None,
        deadline_at: None,
        priority: None,
        parent: None,
        parent_step: None,
        depth: None,
        needs: None,
        lock: None,
        initial_node: None,
        budget_usd_micros: None,
        budget_tokens: None,
        writes_max: None,
        workspace: None,
        budget_time_ms: None,
        budget_writes: None,
        needs_pipelines: None,
        asked_by: None,
        takes_back: None,
        evidence: None,
    };
    let ended = PipelineCompleted { id, duration_ms: 500, outputs: None };
    Run::create(&created, &name("acme"), Millis(1_000)).apply(&Event::PipelineCompleted(ended), Millis(1_500))
}

#[test]
fn a_row_says_what_the_run_says_without_its_variables() {
    let row = Row::of(&run(&json!({ "password": "hunter2" })), (3, 8));
    assert_eq!((row.id, row.status, row.first_seq, row.last_seq), (RunId(7), Status::Completed, 3, 8));
    assert_eq!((row.tenant.as_str(), row.pipeline.as_str()), ("acme", "deploy"));
    assert_eq!(row.repo.as_deref(), Some("acme/shop"));
    assert_eq!((row.created_at, row.completed_at), (Millis(1_000), Some(Millis(1_500))));
    let json: Value = serde_json::from_str(&row.json).unwrap();
    assert_eq!(json["status"], "completed");
    assert_eq!(json["subject"]["repo"], "acme/shop");
    assert!(json.get("vars").is_none() && json.get("steps").is_none());
    assert!(!row.json.contains("hunter2"));
}

#[test]
fn what_was_put_is_there_after_a_restart() {
    let place = Place::new();
    let history = place.open();
    assert_eq!((history.through(), history.max_id(), history.warning()), (0, None, None));
    let mut rows = vec![row(1), row(3), Row::of(&run(&json!({})), (3, u64::MAX))];
    rows[0].repo = Some("a\0b".to_owned());
    rows[1].updated_at = Millis(u64::MAX);
    rows[1].completed_at = None;
    history.put(rows.clone(), 9);
    history.close().unwrap();
    let mode = fs::metadata(place.file("history.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!place.file("history.db-wal").exists());

    let history = place.open();
    assert_eq!((history.through(), history.max_id(), history.warning()), (9, Some(RunId(7)), None));
    for row in &rows {
        assert_eq!(history.get(row.id).unwrap().as_ref(), Some(row));
    }
    assert_eq!(history.get(RunId(2)).unwrap(), None);
    assert_eq!(ids(&history.list(&all()).unwrap()), [7, 3, 1]);
}

#[test]
fn through_moves_with_the_rows_and_never_back() {
    let place = Place::new();
    let history = place.open();
    history.put(vec![row(1)], 5);
    history.flush().unwrap();
    assert_eq!(history.through(), 5);
    assert_eq!(history.flushed(), [RunId(1)]);
    assert!(history.flushed().is_empty());
    history.put(Vec::new(), 8);
    history.put(vec![row(2)], 6);
    history.flush().unwrap();
    assert_eq!(history.through(), 8);
    assert_eq!(history.flushed(), [RunId(2)]);
    history.put(Vec::new(), 8);
    history.flush().unwrap();
    drop(history);
    assert_eq!(place.open().through(), 8);
}

#[test]
fn a_crash_takes_rows_and_through_together() {
    let place = Place::new();
    let history = place.open();
    for n in 1..=20 {
        history.put(vec![row(n)], u64::try_from(n).unwrap());
        history.flush().unwrap();
    }
    let wal = fs::read(place.file("history.db-wal")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for part in 0..=40 {
        let copy = Place::new();
        fs::copy(place.file("history.db"), copy.file("history.db")).unwrap();
        fs::write(copy.file("history.db-wal"), &wal[..wal.len() * part / 40]).unwrap();
        let found = copy.open();
        let expected: Vec<u128> = (1..=u128::from(found.through())).rev().collect();
        assert_eq!(ids(&found.list(&all()).unwrap()), expected);
        seen.insert(found.through());
    }
    assert!(seen.len() > 5 && seen.contains(&20), "{seen:?}");
}

#[test]
fn a_run_that_is_put_again_is_replaced() {
    let place = Place::new();
    let history = place.open();
    history.put(vec![row(1), row(2)], 1);
    history.flush().unwrap();
    let late = Row {
        status: Status::Failed,
        pipeline: name("undo"),
        last_seq: 40,
        json: "{\"late\":true}".to_owned(),
        ..row(1)
    };
    history.put(vec![late.clone()], 2);
    history.flush().unwrap();
    assert_eq!(history.get(RunId(1)).unwrap(), Some(late));
    assert_eq!(ids(&history.list(&all()).unwrap()), [2, 1]);
    let completed = Filter { status: Some(Status::Completed), ..all() };
    assert_eq!(ids(&history.list(&completed).unwrap()), [2]);
    assert_eq!(history.flushed(), [RunId(1), RunId(2), RunId(1)]);
}

#[test]
fn what_comes_while_the_writer_waits_is_merged_and_the_last_word_counts() {
    let place = Place::new();
    let history = place.open();
    history.put(vec![row(9)], 1);
    history.flush().unwrap();
    let other = place.sql("BEGIN IMMEDIATE");
    history.put(vec![row(1)], 2);
    history.put(vec![Row { last_seq: 77, ..row(2) }], 3);
    history.put(vec![Row { last_seq: 78, ..row(2) }, row(3)], 4);
    history.remove(&[RunId(3), RunId(9)]);
    // Whoever reads does not wait for who writes.
    assert_eq!(ids(&history.list(&all()).unwrap()), [9]);
    assert_eq!(history.through(), 1);
    other.execute_batch("ROLLBACK").unwrap();
    history.flush().unwrap();
    assert_eq!(ids(&history.list(&all()).unwrap()), [2, 1]);
    assert_eq!(history.get(RunId(2)).unwrap().unwrap().last_seq, 78);
    assert_eq!((history.through(), history.max_id()), (4, Some(RunId(2))));
}

#[test]
fn prefixes_are_ranges_of_the_tenants_ids() {
    let place = Place::new();
    let history = place.open();
    let foreign = Row { tenant: name("other"), ..row(15) };
    let beside = Row { namespace: name("other"), ..row(13) };
    let failed = Row { status: Status::Failed, ..row(12) };
    history.put(vec![row(10), failed, row(14), row(16), row(u128::MAX), foreign, beside], 1);
    history.flush().unwrap();
    let find = |low, high, max| {
        history.find((&name("acme"), &name("default")), RunId(low), RunId(high), max).unwrap()
    };
    assert_eq!(find(10, 15, 9), [RunId(10), RunId(12), RunId(14)]);
    assert_eq!(find(11, 16, 2), [RunId(12), RunId(14)]);
    assert_eq!(find(0, u128::MAX, 9).len(), 5);
    assert_eq!(find(17, 1_000, 9), []);
    assert_eq!(find(16, 10, 9), []);
    assert_eq!(history.find((&name("nobody"), &name("default")), RunId(0), RunId(99), 9).unwrap(), []);
}

#[test]
fn what_is_removed_is_gone_with_its_names() {
    let place = Place::new();
    let history = place.open();
    let about = |id, repo: &str| Row { repo: Some(repo.to_owned()), ..row(id) };
    history.put(vec![about(1, "a"), about(2, "b"), Row { pipeline: name("rare"), ..about(3, "a") }], 1);
    history.flush().unwrap();
    history.remove(&[RunId(2), RunId(3), RunId(99)]);
    history.flush().unwrap();
    assert_eq!((history.get(RunId(3)).unwrap(), history.max_id()), (None, Some(RunId(1))));
    assert_eq!(ids(&history.list(&all()).unwrap()), [1]);
    let names = place.sql("").query_row("SELECT group_concat(text) FROM names", (), |row| row.get(0));
    assert_eq!(names, Ok("acme,default,deploy,a".to_owned()));
    // Names that were forgotten are learned anew.
    history.put(vec![about(2, "b")], 2);
    history.flush().unwrap();
    let filter = Filter { repo: Some("b".to_owned()), ..all() };
    assert_eq!(ids(&history.list(&filter).unwrap()), [2]);
    history.remove(&[RunId(1), RunId(2)]);
    history.flush().unwrap();
    assert_eq!(history.max_id(), None);
}

#[test]
fn an_approval_tells_its_run_for_as_long_as_that_is_there() {
    let place = Place::new();
    let history = place.open();
    let asked = |id, approvals: &[u128]| Row {
        approvals: approvals.iter().copied().map(ApprovalId).collect(),
        ..row(id)
    };
    history.put(vec![asked(1, &[20, 10]), asked(2, &[30]), row(3)], 1);
    history.put(vec![asked(1, &[20, 10])], 2);
    history.flush().unwrap();
    let found = |low, high, max| {
        let found = history.approvals(ApprovalId(low), ApprovalId(high), max).unwrap();
        found.into_iter().map(|(approval, run)| (approval.0, run.0)).collect::<Vec<_>>()
    };
    assert_eq!(found(0, u128::MAX, 9), [(10, 1), (20, 1), (30, 2)]);
    assert_eq!((found(20, 20, 9), found(0, 99, 1)), (vec![(20, 1)], vec![(10, 1)]));
    history.remove(&[RunId(1)]);
    history.flush().unwrap();
    assert_eq!(found(0, u128::MAX, 9), [(30, 2)]);
    assert_eq!(
        history.approvals(ApprovalId(0), ApprovalId(1), PAGE_MAX + 1).unwrap_err().code(),
        Code::InvalidInput
    );
}

fn is_begun_anew(place: &Place, reason: &str) {
    let history = place.open();
    let warning = history.warning().unwrap();
    assert!(warning.contains(reason) && warning.contains("history.db.damaged"), "{warning}");
    assert!(place.file("history.db.damaged").exists());
    assert_eq!((history.through(), history.max_id()), (0, None));
    assert_eq!(history.list(&all()).unwrap(), []);
    history.put(vec![row(5)], 4);
    history.close().unwrap();
    let history = place.open();
    assert_eq!((history.through(), history.warning()), (4, None));
}

fn filled() -> Place {
    let place = Place::new();
    let history = place.open();
    history.put((1..500).map(row).collect(), 7);
    history.close().unwrap();
    place
}

#[test]
fn a_file_that_does_not_fit_is_set_aside() {
    let place = Place::new();
    fs::write(place.file("history.db"), b"not a database at all, whatever the name says".repeat(100))
        .unwrap();
    fs::write(place.file("history.db.damaged"), b"an older one").unwrap();
    is_begun_anew(&place, "not a database");
    assert!(fs::read(place.file("history.db.damaged")).unwrap().starts_with(b"not a database"));
    for cut in [100, 4_096, 5_000, usize::MAX] {
        let place = filled();
        let bytes = fs::read(place.file("history.db")).unwrap();
        let keep = cut.min(bytes.len() - 5_000);
        fs::write(place.file("history.db"), &bytes[..keep]).unwrap();
        is_begun_anew(&place, "does not fit");
    }
    let place = filled();
    drop(place.sql("PRAGMA user_version = 999"));
    is_begun_anew(&place, "its version is 999");
    let place = filled();
    drop(place.sql("PRAGMA application_id = 1"));
    is_begun_anew(&place, "another program");
    let place = filled();
    drop(place.sql("DROP TABLE progress"));
    is_begun_anew(&place, "no such table");
    let place = Place::new();
    drop(place.sql("CREATE TABLE somebody_elses (a)"));
    is_begun_anew(&place, "another program");
}

#[test]
fn an_empty_file_is_a_new_index_and_a_left_over_log_is_not_taken_for_its_own() {
    let place = Place::new();
    fs::write(place.file("history.db"), b"").unwrap();
    assert_eq!(place.open().warning(), None);

    let place = Place::new();
    let history = place.open();
    history.put(vec![row(1)], 7);
    history.flush().unwrap();
    let wal = fs::read(place.file("history.db-wal")).unwrap();
    let other = Place::new();
    fs::write(other.file("history.db-wal"), &wal).unwrap();
    let found = other.open();
    assert_eq!((found.through(), found.warning()), (0, None));

    let other = Place::new();
    fs::copy(place.file("history.db"), other.file("history.db")).unwrap();
    fs::write(other.file("history.db-wal"), &wal).unwrap();
    fs::write(other.file("history.db.suspect"), b"").unwrap();
    is_begun_anew(&other, "while it was in use");
    assert!(fs::read(other.file("history.db.damaged-wal")).unwrap() == wal);
}

#[test]
fn damage_that_is_found_in_use_is_an_error_and_the_next_start_begins_anew() {
    let place = filled();
    let path = place.file("history.db");
    let mut bytes = fs::read(&path).unwrap();
    // The leaves with the rows are spoilt; what opening looks at stays whole.
    for page in bytes.chunks_mut(4_096).filter(|page| page[0] == 0x0d) {
        if page.windows(6).any(|part| part == b"{\"id\":") {
            page.fill(0xa5);
        }
    }
    fs::write(&path, bytes).unwrap();
    let history = place.open();
    assert_eq!((history.through(), history.warning()), (7, None));
    let damaged = history.get(RunId(250)).unwrap_err();
    assert!(matches!(damaged, Error::Damaged { .. }), "{damaged}");
    assert_eq!(damaged.code(), Code::Unavailable);
    assert!(damaged.to_string().contains("restart"));
    drop(history);
    is_begun_anew(&place, "while it was in use");
}

#[test]
fn a_place_that_cannot_be_used_is_an_error() {
    let place = Place::new();
    fs::create_dir(place.file("history.db")).unwrap();
    let error = History::open(&place.file("history.db")).err().unwrap();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let error = History::open(&place.file("missing/history.db")).err().unwrap();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(error.code(), Code::Unavailable);
}

#[test]
fn what_could_not_be_written_is_tried_again() {
    let place = Place::new();
    let history = place.open();
    drop(place.sql("ALTER TABLE runs RENAME TO hidden"));
    history.put(vec![row(1)], 3);
    let failure = history.flush().unwrap_err();
    assert!(matches!(failure, Error::Damaged { .. }), "{failure}");
    assert_eq!((history.failure(), history.through()), (Some(failure), 0));
    assert_eq!(history.flushed(), []);
    drop(place.sql("ALTER TABLE hidden RENAME TO runs"));
    fs::remove_file(place.file("history.db.suspect")).unwrap();
    // Closing tries one last time at once.
    history.close().unwrap();
    let history = place.open();
    assert_eq!((history.through(), history.get(RunId(1)).unwrap()), (3, Some(row(1))));
}

#[test]
fn closing_says_what_could_not_be_written() {
    let place = Place::new();
    let history = place.open();
    drop(place.sql("ALTER TABLE runs RENAME TO hidden"));
    history.put(vec![row(1)], 3);
    assert!(matches!(history.close(), Err(Error::Damaged { .. })));
    is_begun_anew(&place, "while it was in use");
}

#[test]
fn while_writing_fails_nobody_waits_and_through_says_no_more_than_is_there() {
    let place = Place::new();
    let history = place.open();
    drop(place.sql("ALTER TABLE runs RENAME TO hidden"));
    let count = u128::try_from(write::PENDING_MAX).unwrap();
    history.put((1..=count).map(row).collect(), 10);
    history.flush().unwrap_err();
    history.put(vec![row(count + 1)], 11);
    history.remove(&[RunId(1)]);
    drop(place.sql("ALTER TABLE hidden RENAME TO runs"));
    fs::remove_file(place.file("history.db.suspect")).unwrap();
    history.close().unwrap();
    let history = place.open();
    assert_eq!((history.through(), history.max_id()), (10, Some(RunId(count))));
}

#[test]
fn more_than_may_be_pending_waits_for_the_writer() {
    let place = Place::new();
    let history = place.open();
    let count = u128::try_from(write::PENDING_MAX).unwrap() * 2;
    for n in (1..=count).step_by(1_024) {
        history.put((n..n + 1_024).map(row).collect(), u64::try_from(n + 1_023).unwrap());
    }
    history.flush().unwrap();
    assert_eq!(
        (history.through(), history.flushed().len()),
        (u64::try_from(count).unwrap(), count.try_into().unwrap())
    );
    assert_eq!(
        history.find((&name("acme"), &name("default")), RunId(0), RunId(u128::MAX), PAGE_MAX).unwrap().len(),
        PAGE_MAX
    );
}

#[test]
fn a_page_is_read_from_the_indexes_by_plans_that_are_made_once() {
    let place = filled();
    let connection =
        file::open_reader(&place.file("history.db"), &file::Where::File(place.file("history.db"))).unwrap();
    for sql in read::STATEMENTS {
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let steps = plan.raw_query().mapped(|row| row.get::<_, String>("detail"));
        let steps: Vec<String> = steps.map(Result::unwrap).collect();
        let good =
            |step: &String| step.starts_with("SEARCH") || step.starts_with("CORRELATED SCALAR SUBQUERY");
        assert!(steps.iter().all(good), "{sql}: {steps:?}");
        for _ in 0..3 {
            let mut statement = connection.prepare_cached(sql).unwrap();
            for parameter in 1..=statement.parameter_count() {
                statement.raw_bind_parameter(parameter, 1).unwrap();
            }
            assert!(statement.raw_query().next().is_ok());
        }
        let statement = connection.prepare_cached(sql).unwrap();
        let status = |which| statement.get_status(which);
        use rusqlite::StatementStatus::{RePrepare, Run, Sort};
        assert_eq!((status(Run), status(RePrepare), status(Sort)), (3, 0, 0), "{sql}");
    }
}

#[test]
fn a_page_has_a_bound() {
    let place = Place::new();
    let history = place.open();
    let filter = Filter { limit: PAGE_MAX + 1, ..all() };
    let error = history.list(&filter).unwrap_err();
    assert_eq!((error.code(), &error), (Code::InvalidInput, &Error::Page { asked: PAGE_MAX + 1 }));
    assert!(history.find((&name("acme"), &name("default")), RunId(0), RunId(1), PAGE_MAX + 1).is_err());
    assert_eq!(history.list(&Filter { limit: 0, ..all() }), Ok(Vec::new()));
}

#[test]
fn every_status_has_a_number_of_its_own() {
    let numbers: std::collections::BTreeSet<u8> = Status::ALL.iter().map(|status| number(*status)).collect();
    assert_eq!(numbers.len(), Status::ALL.len());
}

/// Ids as they are made (a time in front), and any others.
fn any_id() -> impl Strategy<Value = u128> {
    let timed = (0_u128..40, 0_u128..8).prop_map(|(ms, rest)| (ms << 80) | rest);
    prop_oneof![8 => timed, 1 => 0_u128..8, 1 => Just(u128::MAX)]
}

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    proptest::sample::select(texts)
}

const PIPELINES: &[&str] = &["deploy", "test", "x"];
const REPOS: &[&str] = &["a", "b", ""];
const STATUSES: &[Status] =
    &[Status::Completed, Status::Completed, Status::Failed, Status::Cancelled, Status::Running];

fn any_row() -> impl Strategy<Value = Row> {
    let tenant = one_of(&["acme", "acme", "other"]);
    let repo = proptest::option::of(one_of(REPOS));
    let status = proptest::sample::select(STATUSES);
    (any_id(), tenant, status, one_of(PIPELINES), repo, 0_u64..45).prop_map(
        |(id, tenant, status, pipeline, repo, created)| Row {
            tenant: name(tenant),
            namespace: name(if created % 5 == 0 { "other" } else { "default" }),
            status,
            pipeline: name(pipeline),
            repo: repo.map(str::to_owned),
            created_at: Millis(created),
            ..row(id)
        },
    )
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let status = proptest::option::of(proptest::sample::select(STATUSES));
    let pipeline = proptest::option::of(one_of(PIPELINES));
    let repo = proptest::option::of(one_of(REPOS));
    let since = proptest::option::of(prop_oneof![4 => 0_u64..50, 1 => Just(u64::MAX)]);
    (status, pipeline, repo, since, 1_usize..7).prop_map(|(status, pipeline, repo, since, limit)| Filter {
        status,
        pipeline: pipeline.map(name),
        repo: repo.map(str::to_owned),
        since: since.map(Millis),
        limit,
        ..all()
    })
}

fn fits(filter: &Filter, row: &Row) -> bool {
    row.tenant == filter.tenant
        && row.namespace == filter.namespace
        && filter.status.is_none_or(|status| row.status == status)
        && filter.pipeline.as_ref().is_none_or(|pipeline| row.pipeline == *pipeline)
        && filter.repo.as_ref().is_none_or(|repo| row.repo.as_ref() == Some(repo))
        && filter.since.is_none_or(|since| row.created_at >= since)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pages_cover_everything_exactly_once(
        puts in proptest::collection::vec(any_row(), 0..120),
        removed in proptest::collection::vec(any_id(), 0..8),
        filters in proptest::collection::vec(any_filter(), 1..12),
    ) {
        let place = Place::new();
        let history = place.open();
        let mut model: BTreeMap<RunId, Row> = BTreeMap::new();
        for part in puts.chunks(17) {
            history.put(part.to_vec(), 1);
            model.extend(part.iter().map(|row| (row.id, row.clone())));
        }
        let removed: Vec<RunId> = removed.into_iter().map(RunId).collect();
        history.remove(&removed);
        model.retain(|id, _| !removed.contains(id));
        history.flush().unwrap();
        prop_assert_eq!(history.max_id(), model.last_key_value().map(|(id, _)| *id));
        for filter in filters {
            let expected: Vec<Row> = model.values().rev().filter(|row| fits(&filter, row)).cloned().collect();
            let (mut found, mut filter) = (Vec::new(), filter);
            loop {
                let page = history.list(&filter).unwrap();
                let whole = page.len() == filter.limit;
                filter.before = page.last().map(|row| row.id);
                found.extend(page);
                // A cursor that does not move would go on for ever.
                if !whole || found.len() > expected.len() {
                    break;
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn runs_are_found_by_where_they_came_from_however_far_back() {
    const RUNS: u128 = 5_000;
    let place = Place::new();
    let history = place.open();
    let [common, rare] = [7, 9].map(|byte| Digest([byte; 32]));
    let item = ItemId(77);
    let from = |id: u128| {
        let (hash, of, item) = match id {
            3 => (rare, "fixer", item),
            _ => (common, "other", ItemId(10_000 + id)),
        };
        let trigger = json!({ "source": "queue", "event_id": item.to_string(), "of": of });
        Row { json: json!({ "runbook_hash": hash.to_string(), "trigger": trigger }).to_string(), ..row(id) }
    };
    history.put((1..=RUNS).map(from).collect(), 1);
    history.flush().unwrap();
    // A page says how far was looked, and the next one goes on from there.
    let all_pages = |origin: Origin| {
        let (mut found, mut before, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = history.page(&Filter { origin: origin.clone(), before, limit: 10, ..all() }).unwrap();
            found.extend(page.rows.iter().map(|row| row.id.0));
            pages += 1;
            match page.floor {
                Some(_) => before = page.floor,
                None => return (found, pages),
            }
        }
    };
    let none = Origin::default();
    for origin in [
        Origin { runbooks: Some(vec![rare]), ..none.clone() },
        Origin { workers: Some(vec![name("fixer")]), ..none.clone() },
        Origin { item: Some(item), ..none.clone() },
    ] {
        let (found, pages) = all_pages(origin);
        assert_eq!(found, [3]);
        assert!(pages > 1, "one page looks at so many rows and no more");
    }
    assert_eq!(all_pages(Origin { runbooks: Some(Vec::new()), ..none.clone() }).0, [0_u128; 0]);
    let first = Filter { origin: Origin { runbooks: Some(vec![common]), ..none }, limit: 2, ..all() };
    assert_eq!(ids(&history.list(&first).unwrap()), [RUNS, RUNS - 1]);
}
