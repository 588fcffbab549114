//! Where the steps of a runbook run: in its own directory, however its run was started.

use crate::served::Served;
use crate::support::{Project, text, until};
use serde_json::json;
use std::path::Path;

const BOOK: &str = "
name: places
queues: { work: {} }
workers: { w: { queue: work, pipeline: here } }
schedules: { s: { every: 1h, pipeline: here } }
triggers: { t: { hook: h, pipeline: here } }
pipelines:
  here: { vars: { by: { default: nobody } }, steps: [ { id: s, run: './where >> \"$OUT\"', env: { OUT: '${{ vars.by }}' } } ] }
  calls: { steps: [ { id: c, call: here, vars: { by: call } } ] }
";

fn project() -> Project {
    let project = Project::new();
    project.write("ops/rb.yaml", BOOK);
    project.script("ops/where", "#!/bin/sh\npwd\n");
    project
}

fn ran_there(project: &Project, by: &str) {
    let there = std::fs::canonicalize(project.path("ops")).unwrap();
    let said = until("the step", || {
        std::fs::read_to_string(there.join(by)).ok().filter(|said| said.ends_with('\n'))
    });
    assert_eq!(Path::new(said.trim()), there, "{by}");
}

#[test]
fn a_file_runs_in_its_own_directory() {
    let project = project();
    project.windlass(&["run", "ops/rb.yaml", "here", "--var", "by=file"]).code(0);
    ran_there(&project, "file");
}

#[test]
fn a_deployed_runbook_runs_where_it_was_deployed_from_whoever_asks() {
    let project = project();
    let served = Served::open(&project.path("data"));
    project.windlass(&["deploy", "ops/rb.yaml"]).code(0);
    let ask = |body| served.post("/v1/runs", &body).is(201);
    ask(json!({ "runbook": "places", "pipeline": "here", "vars": { "by": "api" } }));
    ask(json!({ "pipeline": "calls" }));
    served.post("/v1/queues/work/items", &json!({ "data": { "by": "queue" } })).is(201);
    served.post("/v1/schedules/s/run", &json!({})).is(201);
    served.post(
        "/v1/runs/batch",
        &json!({ "runbook": "places", "pipeline": "here", "items": [{ "vars": { "by": "batch" } }] }),
    );
    project.windlass(&["run", "places", "here", "--var", "by=name"]).code(0).says("completed");
    for by in ["api", "call", "queue", "nobody", "name", "batch"] {
        ran_there(&project, by);
    }
    served.close();
}

#[test]
fn run_takes_a_deployed_runbooks_name_or_a_pipeline_of_the_file_here() {
    let project = project();
    project.windlass(&["deploy", "ops/rb.yaml"]).code(0);
    let run = project.windlass(&["run", "places", "here", "--json", "--var", "by=name"]).code(0).last();
    assert_eq!((text(&run, "status"), text(&run["trigger"], "source")), ("completed", "cli"));
    project.windlass(&["run", "places"]).code(2).warns("say which pipeline: ");
    project.windlass(&["run", "places", "here", "--var", "nope=1"]).code(2).warns("nope");
    project.windlass(&["run", "places", "here", "--dry-run"]).code(0).says("nothing was executed");
    project.windlass(&["run", "nosuch"]).code(5).warns("neither a file nor a deployed runbook");
    project.windlass(&["run", "nosuch.yaml"]).code(2).warns("RUNBOOK_INVALID");
    project.write("runbook.yaml", "name: own\npipelines: { build: { steps: [ { run: echo built } ] }, other: { steps: [ { run: 'false' } ] } }");
    project.windlass(&["run", "build"]).code(0).says("completed");
}
