//! Undo and receipts, from the command line.

use super::Outcome;
use super::follow::{self, Follow, escape, printable};
use super::say::{self, Say};
use serde_json::{Value, json};
use windlass_api::List;
use windlass_api::receipt::Receipt;
use windlass_api::run::Run;
use windlass_api::undo::{Act, Effect, Undo};
use windlass_core::id::{Name, RunId};
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
        let would: Undo = say::read(&would)?;
        let done = |item: &Effect| match item.state.as_str() {
            "ready" => true,
            "conflict" => wish.force,
            _ => false,
        };
        if would.items.iter().any(done) {
            say.note(plan(say, &would).trim_end_matches('\n'));
            say::sure(false, "Undo this?", "nothing was undone", "--yes")?;
        }
    }
    let body = json!({ "dry_run": wish.dry_run, "force": wish.force });
    let answer = client.post(&path, &body).await?;
    let undo: Undo = say::read(&answer)?;
    let Some(id) = undo.run.as_ref().map(|run| run.id.to_string()) else {
        let empty = undo.items.is_empty();
        let by = if empty && !say.json { undone_by(client, undo.of).await? } else { None };
        say.answer(&answer, || match by {
            Some(by) => format!("nothing is left to undo: it was undone by {by}"),
            None => plan(say, &undo),
        });
        return Ok(0);
    };
    if !say.json {
        say.line(plan(say, &undo).trim_end_matches('\n'));
    }
    say.note(&format!("{id} undoes {}", undo.of));
    follow::to_end(client, &id, Follow { wait: true, suspend: true }, say).await
}

/// How many of the newest undos are looked through for the one of a run.
const UNDOS_MAX: usize = 500;

/// The run that took back what a run did, where one succeeded.
async fn undone_by(client: &Client, of: RunId) -> Result<Option<RunId>, Failure> {
    let page = client.get(&format!("/v1/runs?pipeline=undo&status=completed&limit={UNDOS_MAX}")).await?;
    let undos: List<Run> = say::read(&page)?;
    let of = Name::clean(&of.to_string());
    Ok(undos.items.iter().find(|run| run.correlation_id.as_ref() == Some(&of)).map(|run| run.id))
}

/// What would be done, latest effect first.
fn plan(say: &Say, undo: &Undo) -> String {
    if undo.items.is_empty() {
        let done = undo.taken_back.iter().flatten();
        let done: Vec<String> = done
            .map(|one| match one.run {
                run if run == undo.of => format!("its own compensations, until {}", one.at),
                run => format!("{run}, until {}", one.at),
            })
            .collect();
        return match done.as_slice() {
            [] => "nothing to undo: it had no outside effects".to_owned(),
            done => format!("nothing is left to undo; undone by: {}", done.join("; ")),
        };
    }
    let mut rows = vec![["STEP", "STATE", "DID", "UNDO", "WHY"].map(str::to_owned).to_vec()];
    for item in &undo.items {
        let action = |act: Option<&Act>| match act {
            Some(Act { command: Some(command), .. }) => say::brief(&printable(command), 40),
            Some(act) => {
                let target = act.target.as_ref().and_then(Value::as_str).unwrap_or_default();
                format!("{} {}", printable(act.tool.as_str()), printable(target))
            }
            None => "-".to_owned(),
        };
        rows.push(vec![
            printable(item.step.as_str()),
            item.state.clone(),
            action(item.did.as_ref()),
            action(item.undo.as_ref()),
            printable(item.reason.as_deref().unwrap_or_default()),
        ]);
    }
    say.table(&rows)
}

/// The receipts of a run.
pub(super) async fn receipts(client: &Client, run: &str, say: &Say) -> Outcome {
    let answer = client.get(&format!("/v1/runs/{}/receipts", escape(run))).await?;
    let receipts: List<Receipt> = say::read(&answer)?;
    say.answer(&answer, || {
        let mut rows =
            vec![["STEP", "STATUS", "TOOL", "TARGET", "REVERSIBLE", "AT"].map(str::to_owned).to_vec()];
        for receipt in &receipts.items {
            let reversible = match (receipt.reversed_by, receipt.reversible) {
                (Some(by), _) => format!("by {by}"),
                (None, true) => "yes".to_owned(),
                (None, false) => "no".to_owned(),
            };
            rows.push(vec![
                printable(receipt.step.as_str()),
                say.status(receipt.status.as_str()),
                printable(receipt.tool.as_str()),
                printable(receipt.target.as_str()),
                reversible,
                receipt.at.to_string(),
            ]);
        }
        say.table(&rows)
    });
    Ok(0)
}
