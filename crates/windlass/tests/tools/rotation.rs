//! The third example of the runbook language, as written: keys are rotated service by service, and what fails is undone.

use crate::holder::hold;
use crate::support::{Project, text, until};
use serde_json::{Value, json};

const ROTATE: &str = r#"
name: rotate-keys
schedules:
  nightly: { cron: '0 2 * * *', timezone: Europe/Berlin, pipeline: all, catch_up: one, overlap: skip }
pipelines:
  all:
    deadline: 2h
    steps:
      - { id: list, run: './services --json > "$WL_OUTPUT"', outputs: { services: list } }
      - id: each
        foreach: ${{ steps.list.output.services }}
        max_parallel: 5
        call: one
        vars: { service: '${{ item }}' }
        compensate: false               # rotated services stay rotated
    finally:
      - { run: ./report, env: { RESULT: '${{ toJSON(steps.each.output) }}' } }
  one:
    vars: { service: { required: true, pattern: '^[a-z-]+$' } }
    steps:
      - id: issue
        run: ./issue "$WL_VAR_SERVICE"
        outputs: { key_id: string }
        effect: at_most_once
        compensate: { run: './revoke "$KEY_ID"', env: { KEY_ID: '${{ output.key_id }}' } }
      - id: install
        run: ./install "$WL_VAR_SERVICE" "$KEY_ID"
        env: { KEY_ID: '${{ steps.issue.output.key_id }}' }
        compensate: { run: './restore "$WL_VAR_SERVICE"' }
      - { id: verify, run: './smoke "$WL_VAR_SERVICE"', timeout: 5m, retry: 3 }
"#;

fn scene() -> Project {
    let project = Project::with(ROTATE);
    project.script("services", "echo '{\"services\":[\"api\",\"db\",\"web\"]}'\n");
    project.script(
        "issue",
        "echo \"issue $1\" >> ledger; printf '{\"key_id\":\"key-%s\"}' \"$1\" > \"$WL_OUTPUT\"\n",
    );
    project.script("install", "echo \"install $1 $2\" >> ledger; [ ! -e \"bad-$1\" ]\n");
    for word in ["smoke", "revoke", "restore"] {
        project.script(word, &format!("echo \"{word} $1\" >> ledger\n"));
    }
    project.script("report", "printf '%s' \"$RESULT\" > result.json\n");
    project
}

/// The newest rotation.
fn newest(project: &Project) -> String {
    let page = project.windlass(&["runs", "--json", "--pipeline", "all"]).code(0).json();
    text(&page["items"][0], "id").to_owned()
}

/// What happened to a service, in order.
fn ledger(project: &Project, service: &str) -> Vec<String> {
    let of_it = |line: &&str| line.contains(service);
    project.read("ledger").lines().filter(of_it).map(str::to_owned).collect()
}

#[test]
fn a_schedule_rotates_every_key_and_reports() {
    let project = scene();
    let _holder = hold(&project);
    project.windlass(&["deploy", "book.yaml"]).code(0);
    let next = project.windlass(&["schedules", "--json"]).code(0).json();
    assert_eq!(text(&next["items"][0], "name"), "nightly");
    project.windlass(&["schedule", "run", "nightly"]).code(0);
    let ended = |run: &Value| run["status"] == "completed";
    until("the end of the rotation", || Some(project.show(&newest(&project))).filter(ended));
    for service in ["api", "db", "web"] {
        let told = [
            format!("issue {service}"),
            format!("install {service} key-{service}"),
            format!("smoke {service}"),
        ];
        assert_eq!(ledger(&project, service), told);
    }
    let result: Value = serde_json::from_str(&project.read("result.json")).unwrap();
    assert_eq!(result.as_array().map(Vec::len), Some(3), "{result}");
}

#[test]
fn a_service_that_cannot_be_rotated_is_put_back_and_the_others_stay_rotated() {
    let project = scene();
    project.write("bad-db", "");
    let run = project.run(&["all"], 1);
    assert_eq!(run["status"], json!("failed"));
    assert_eq!(ledger(&project, "db"), ["issue db", "install db key-db", "revoke key-db"]);
    assert_eq!(ledger(&project, "web"), ["issue web", "install web key-web", "smoke web"]);
    assert!(project.has("result.json"), "it is reported in any case");
}
