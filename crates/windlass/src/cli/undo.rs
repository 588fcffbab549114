//! Undo and receipts, from the command line.

use super::Outcome;
use super::follow::{self, Follow, escape, printable};
use super::say::{self, Say, text};
use serde_json::{Value, json};
use windlass_server::client::{Client, Failure};

/// How a run is undone.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    /// Nothing is done.
    pub(super) dry_run: bool,
    /// Also what others changed since.
    pub(super) force: bool,
    /// Nobody is asked.
    pub(super) yes: bool,
}

pub(super) async fn undo(client: &mut Client, run: &str, wish: Wish, say: &Say) -> Outcome {
    let path = format!("/v1/runs/{}/undo", escape(run));
    if !wish.dry_run && !wish.yes {
        let would = client.post(&path, &json!({ "dry_run": true, "force": wish.force })).await?;
        let items = would["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let done = |item: &Value| match text(item, "state") {
            "ready" => true,
            "conflict" => wish.force,
            _ => false,
        };
        if items.iter().any(done) {
            say.note(plan(say, &would).trim_end_matches('\n'));
            say::sure(false, "Undo this?", "nothing was undone", "--yes")?;
        }
    }
    let body = json!({ "dry_run": wish.dry_run, "force": wish.force });
    let answer = client.post(&path, &body).await?;
    let Some(id) = answer["run"]["id"].as_str().map(str::to_owned) else {
        let empty = answer["items"].as_array().is_none_or(Vec::is_empty);
        let by = if empty && !say.json { undone_by(client, text(&answer, "of")).await? } else { None };
        say.answer(&answer, || match by {
            Some(by) => format!("nothing is left to undo: {by} undoes it"),
            None => plan(say, &answer),
        });
        return Ok(0);
    };
    if !say.json {
        say.line(plan(say, &answer).trim_end_matches('\n'));
    }
    say.note(&format!("{id} undoes {}", text(&answer, "of")));
    follow::to_end(client, &id, Follow { wait: true, suspend: true }, say).await
}

/// How many of the newest undos are looked through for the one of a run.
const UNDOS_MAX: usize = 500;

/// The run that took back what a run did, where one succeeded.
async fn undone_by(client: &Client, of: &str) -> Result<Option<String>, Failure> {
    let page = client.get(&format!("/v1/runs?pipeline=undo&status=completed&limit={UNDOS_MAX}")).await?;
    let mut undos = page["items"].as_array().into_iter().flatten();
    let own = undos.find(|run| text(run, "correlation_id") == of && !of.is_empty());
    Ok(own.map(|run| text(run, "id").to_owned()))
}

/// What would be done, latest effect first.
fn plan(say: &Say, answer: &Value) -> String {
    let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        let done = answer["taken_back"].as_array().map(Vec::as_slice).unwrap_or_default();
        let done: Vec<String> = done
            .iter()
            .map(|one| match text(one, "run") {
                run if run == text(answer, "of") => {
                    format!("its own compensations, until {}", text(one, "at"))
                }
                run => format!("{run}, until {}", text(one, "at")),
            })
            .collect();
        return match done.as_slice() {
            [] => "nothing to undo: it had no outside effects".to_owned(),
            done => format!("nothing is left to undo; undone by: {}", done.join("; ")),
        };
    }
    let mut rows = vec![["STEP", "STATE", "DID", "UNDO", "WHY"].map(str::to_owned).to_vec()];
    for item in items {
        let action = |value: &Value| match value["command"].as_str() {
            Some(command) => say::brief(&printable(command), 40),
            None if value.is_object() => {
                format!("{} {}", text(value, "tool"), printable(text(value, "target")))
            }
            None => "-".to_owned(),
        };
        rows.push(vec![
            text(item, "step").to_owned(),
            text(item, "state").to_owned(),
            action(&item["did"]),
            action(&item["undo"]),
            printable(item["reason"].as_str().unwrap_or_default()),
        ]);
    }
    say.table(&rows)
}

/// The receipts of a run.
pub(super) async fn receipts(client: &Client, run: &str, say: &Say) -> Outcome {
    let answer = client.get(&format!("/v1/runs/{}/receipts", escape(run))).await?;
    say.answer(&answer, || {
        let mut rows =
            vec![["STEP", "STATUS", "TOOL", "TARGET", "REVERSIBLE", "AT"].map(str::to_owned).to_vec()];
        for item in answer["items"].as_array().into_iter().flatten() {
            let reversible = match (item["reversed_by"].as_str(), item["reversible"] == true) {
                (Some(by), _) => format!("by {by}"),
                (None, true) => "yes".to_owned(),
                (None, false) => "no".to_owned(),
            };
            rows.push(vec![
                text(item, "step").to_owned(),
                say.status(text(item, "status")),
                text(item, "tool").to_owned(),
                printable(text(item, "target")),
                reversible,
                text(item, "at").to_owned(),
            ]);
        }
        say.table(&rows)
    });
    Ok(0)
}
