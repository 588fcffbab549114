//! What is counted, and what the text of it looks like.

use super::*;
use std::sync::Arc;
use windlass_core::digest::Digest;
use windlass_core::event::{Event, PipelineCompleted, StepCompleted, StepReady, StepStarted};
use windlass_core::id::RunId;
use windlass_core::step::Wait;
use windlass_core::turn::index::Move;

fn name(text: &str) -> Name {
    Name::clean(text)
}

fn moved(run: u128, tenant: &str, from: Option<Status>, to: Status) -> Move {
    let home = windlass_core::run::Home {
        tenant: name(tenant),
        namespace: name("default"),
        runbook: Digest([0; 32]),
        pipeline: name("deploy"),
        cwd: String::new(),
        writes_max: None,
    };
    Move { run: RunId(run), home: Arc::new(home), from, to }
}

fn ready() -> Event {
    StepReady { pipeline_id: RunId(1), step: name("a"), after: Wait::Lock, on: None, epoch: None }.into()
}

fn started() -> Event {
    let started = StepStarted {
        pipeline_id: RunId(1),
        step: name("a"),
        agent_id: None,
        attempt: 1,
        epoch: 1,
        lease_owner: None,
        lease_expires_at: None,
        timeout_at: None,
        action_hash: None,
        child: None,
    };
    started.into()
}

fn completed() -> Event {
    let completed = StepCompleted {
        pipeline_id: RunId(1),
        step: name("a"),
        epoch: 1,
        attempt: 1,
        duration_ms: 40,
        reused_from: None,
        output: None,
        asked_by: None,
    };
    completed.into()
}

fn commit(metrics: &Metrics, at: u64, events: &[Event], moves: Vec<Move>) {
    let mut noted = Noted::default();
    events.iter().for_each(|event| noted.see(event));
    noted.moved(moves);
    metrics.committed(&noted, Millis(at), Duration::from_micros(300));
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "`{line}` is not in\n{text}");
}

#[test]
fn a_run_is_counted_from_its_beginning_to_its_end() {
    let metrics = Metrics::default();
    commit(
        &metrics,
        1_000,
        &[ready()],
        vec![
            moved(1, "acme", None, Status::Pending),
            moved(1, "acme", Some(Status::Pending), Status::Running),
        ],
    );
    commit(&metrics, 1_200, &[started()], Vec::new());
    let ended = PipelineCompleted { id: RunId(1), duration_ms: 1_500, outputs: None };
    commit(
        &metrics,
        2_500,
        &[completed(), ended.into()],
        vec![moved(1, "acme", Some(Status::Running), Status::Completed)],
    );
    metrics.key(KeySource::Github, Hit::Duplicate);
    metrics.request("/v1/runs/{id}", "GET", 200, Duration::from_millis(3));
    let gauges = Gauges { active: vec![(name("acme"), Status::Running, 2)], syncs: 7, ..Gauges::default() };
    let text = metrics.text(&gauges, None).unwrap();
    has(&text, r#"windlass_run_transitions_total{from_state="none",to_state="pending",tenant_id="acme"} 1"#);
    has(
        &text,
        r#"windlass_run_transitions_total{from_state="running",to_state="completed",tenant_id="acme"} 1"#,
    );
    has(&text, r#"windlass_run_duration_seconds_sum{type="deploy",status="completed",tenant_id="acme"} 1.5"#);
    has(
        &text,
        r#"windlass_run_duration_seconds_bucket{le="5.0",type="deploy",status="completed",tenant_id="acme"} 1"#,
    );
    has(
        &text,
        r#"windlass_run_duration_seconds_bucket{le="1.0",type="deploy",status="completed",tenant_id="acme"} 0"#,
    );
    has(
        &text,
        r#"windlass_run_duration_seconds_bucket{le="+Inf",type="deploy",status="completed",tenant_id="acme"} 1"#,
    );
    has(&text, r#"windlass_run_active_gauge{status="running",tenant_id="acme"} 2"#);
    has(&text, r#"windlass_idempotency_hits_total{source="github",result="duplicate"} 1"#);
    has(&text, r#"windlass_http_requests_total{route="/v1/runs/{id}",method="GET",status="200"} 1"#);
    has(&text, "windlass_step_queue_seconds_sum 0.2");
    has(&text, "windlass_lease_seconds_sum 0.04");
    has(&text, "windlass_commit_seconds_count 3");
    has(&text, "windlass_facts_total 4");
    has(&text, "windlass_log_syncs_total 7");
    has(&text, "# EOF");
}

#[test]
fn tenants_beyond_the_bound_are_counted_together_and_one_sees_its_own() {
    let metrics = Metrics::default();
    for n in 0..LABELS_MAX as u128 + 50 {
        commit(&metrics, 1, &[], vec![moved(n, &format!("t{n}"), None, Status::Pending)]);
    }
    let active = (0..300).map(|n| (name(&format!("t{n}")), Status::Running, 1)).collect();
    let gauges = Gauges { active, ..Gauges::default() };
    let text = metrics.text(&gauges, None).unwrap();
    let series = |text: &str, name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series(&text, "windlass_run_transitions_total{"), LABELS_MAX + 1);
    has(
        &text,
        r#"windlass_run_transitions_total{from_state="none",to_state="pending",tenant_id="other"} 50"#,
    );
    has(&text, r#"windlass_run_active_gauge{status="running",tenant_id="other"} 200"#);
    let text = metrics.text(&gauges, Some(&name("t3"))).unwrap();
    assert_eq!(series(&text, "windlass_run_transitions_total{"), 1);
    assert_eq!(series(&text, "windlass_run_active_gauge{"), 1);
}

#[test]
fn a_hostile_name_stays_inside_its_label() {
    let metrics = Metrics::default();
    commit(&metrics, 1, &[], vec![moved(1, "a\"} evil{x=\"1", None, Status::Pending)]);
    let text = metrics.text(&Gauges::default(), None).unwrap();
    let escaped = r#"tenant_id="a\"} evil{x=\"1"} 1"#;
    assert!(text.lines().any(|line| line.ends_with(escaped)), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("evil")), "{text}");
}

#[test]
fn every_time_has_one_bucket() {
    let mut histogram = Histogram::default();
    for micros in [0, 100, 101, 86_400_000_000, 86_400_000_001, u64::MAX] {
        histogram.add_micros(micros);
    }
    assert_eq!(histogram.buckets.iter().sum::<u64>(), histogram.count);
    assert_eq!((histogram.buckets[0], histogram.buckets[1], histogram.buckets[18]), (2, 1, 2));
}
