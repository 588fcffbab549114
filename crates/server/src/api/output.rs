//! What steps write on other machines: their executors send it in pieces, and it is kept beside what is written here.

use super::leases::LOCAL;
use super::routes::{Routes, Scope, doc};
use super::{Answer, Caller, Json, Problem, invalid, json};
use crate::app::App;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;
use windlass_api::lease::{Added, Piece, Wrote};
use windlass_core::code::Code;
use windlass_core::id::{AttemptId, StepId};
use windlass_executor::shell::output;
use windlass_executor::shell::spec::OUTPUT_MAX;
use windlass_executor::shell::{Line, Source};

/// How many lines one request brings, and how many bytes one has.
const LINES_MAX: usize = 20_000;
const LINE_LEN_MAX: usize = 64 << 10;

/// Output from elsewhere.
pub(super) fn routes() -> Routes {
    Routes::new().post(
        "/v1/runs/{id}/steps/{step}/output",
        Scope::Execute,
        doc("Add to what a step wrote").body::<Piece>().gives(200, "added").refuses(&[
            Code::NotFound,
            Code::LeaseStaleEpoch,
            Code::Forbidden,
        ]),
        add,
    )
}

#[allow(clippy::needless_pass_by_value)] // It comes from a list that is used up.
fn line(wrote: Wrote) -> Result<Line, Problem> {
    let source = match wrote.source.as_str() {
        "stdout" => Source::Out,
        "stderr" => Source::Err,
        "windlass" => Source::Note,
        _ => return Err(invalid("a `source` is stdout, stderr or windlass")),
    };
    if wrote.text.len() > LINE_LEN_MAX {
        return Err(invalid(format!("a line has {LINE_LEN_MAX} bytes at most; send it as several")));
    }
    // A line is one line, whatever it says.
    let text = wrote.text.replace(['\n', '\r'], " ");
    Ok(Line { at_ms: wrote.at, source, text, whole: wrote.whole })
}

async fn add(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path((id, step)): Path<(String, String)>,
    Json(piece): Json<Piece>,
) -> Answer {
    if piece.lines.len() > LINES_MAX {
        return Err(invalid(format!("send {LINES_MAX} lines at a time")));
    }
    let run = app.find_run(&caller, &id).await?;
    let step = StepId::new(&step).map_err(|error| invalid(error.to_string()))?;
    let epoch = piece.epoch;
    let wanted = step.clone();
    let owner = app
        .look(move |store| {
            let step = store.state().run(run)?.step(&wanted)?;
            let lease = step.lease.as_ref().filter(|_| step.epoch == epoch && step.is_executing());
            Some(lease.map(|lease| lease.owner.clone()))
        })
        .await?;
    match owner {
        None => return Err(Problem::missing("step", step.as_str())),
        // What is written in this process goes to its log on the way, and nobody else writes there.
        Some(Some(owner)) if owner.as_str() == LOCAL => {
            return Err(Problem::new(Code::Forbidden, "the output of this step is kept where it runs: here"));
        }
        // The token of an attempt speaks for that one, any other for what was leased with it.
        Some(Some(owner)) if caller.attempt.is_some() || caller.elsewhere().has(&owner) => {}
        Some(Some(_) | None) => {
            return Err(Problem::new(Code::LeaseStaleEpoch, "the attempt is over, or somebody else has it"));
        }
    }
    let mask = app.mask_of(run).await;
    let mut lines = piece.lines.into_iter().map(line).collect::<Result<Vec<_>, _>>()?;
    lines.iter_mut().for_each(|line| line.text = mask.text(&line.text));
    let log = app.home.output_of(&AttemptId::new(run, &step, epoch));
    let written = tokio::task::spawn_blocking(move || {
        if let Some(folder) = log.parent() {
            std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        }
        output::add(&log, piece.offset, &lines, OUTPUT_MAX).map_err(|error| error.to_string())
    });
    let added = written
        .await
        .map_err(|_| Problem::new(Code::Internal, "the output was not written"))?
        .map_err(|text| Problem::new(Code::StoreFull, text))?;
    Ok(json(StatusCode::OK, &Added { offset: added.len, full: added.full }))
}
