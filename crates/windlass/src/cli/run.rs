//! `run` and what can be asked of runs.

use super::args::{Args, Global, RunArgs};
use super::follow::{self, Follow};
use super::say::{self, Say, plain, text};
use super::{Outcome, connect};
use crate::client::{Client, Failure, Need};
use crate::clock::fresh;
use crate::runbook::{self, Loaded};
use axum::http::Method;
use serde_json::{Map, Value, json};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use windlass_core::code::Code;
use windlass_core::id::RunId;
use windlass_core::runbook::{Pipeline, Runbook};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;

/// How large a file of variables may be.
const VARS_MAX: u64 = 1 << 20;
/// How often a process without work looks whether there is some.
const LOOK: Duration = Duration::from_millis(200);

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidInput, text)
}

/// Reads a runbook; what is wrong with it is shown where it stands.
pub(super) fn load(path: &Path, say: &Say) -> Result<Loaded, Failure> {
    runbook::load(path).map_err(|problems| {
        let detail = problems.render(say.colour_err);
        let mut problem = problems.json();
        problem["detail"] = Value::String(detail.clone());
        Failure { problem: say.json.then_some(problem), ..Failure::new(Code::RunbookInvalid, detail) }
    })
}

fn file_of(wish: &RunArgs) -> Result<PathBuf, Failure> {
    if let Some(file) = &wish.file {
        return Ok(file.clone());
    }
    ["runbook.yaml", "runbook.yml"].iter().map(PathBuf::from).find(|path| path.is_file()).ok_or_else(|| {
        invalid("there is no runbook.yaml here: name a runbook, or let `windlass init` make one")
    })
}

/// The variables of the command line, in the types that the pipeline declares.
fn vars(wish: &RunArgs, def: &Pipeline) -> Result<Map<String, Value>, Failure> {
    let mut vars = match &wish.vars_file {
        None => Map::new(),
        Some(path) => {
            let unreadable = |error: std::io::Error| invalid(format!("{}: {error}", path.display()));
            let metadata = std::fs::metadata(path).map_err(unreadable)?;
            if !metadata.is_file() {
                return Err(invalid(format!("{} is not a file: name a JSON or YAML file", path.display())));
            }
            if metadata.len() > VARS_MAX {
                return Err(invalid(format!("{} is larger than 1 MiB", path.display())));
            }
            let text = std::fs::read_to_string(path).map_err(unreadable)?;
            match runbook::yaml::parse(0, &text).map(|node| node.json()) {
                Ok(Value::Object(vars)) => vars,
                Ok(_) => return Err(invalid(format!("{} is not a map of variables", path.display()))),
                Err(problem) => return Err(invalid(format!("{}: {}", path.display(), problem.message))),
            }
        }
    };
    vars.extend(runbook::parse_vars(def, &wish.var).map_err(|error| invalid(error.to_string()))?);
    Ok(vars)
}

/// A runbook with its includes, as it is sent.
pub(super) fn files(loaded: &Loaded) -> Value {
    let file = |(path, text): &(PathBuf, String)| json!({ "name": path.to_string_lossy(), "text": text });
    let mut files = vec![json!({ "name": "runbook.yaml", "text": loaded.source })];
    files.extend(loaded.files.iter().map(file));
    json!({ "files": files })
}

/// Hands a runbook with its includes over; nothing is deployed by that.
async fn submit(client: &Client, loaded: &Loaded) -> Result<Value, Failure> {
    client.post("/v1/runbooks?deploy=false", &files(loaded)).await
}

pub(super) async fn run(args: &Args, wish: &RunArgs, say: &Say) -> Outcome {
    let loaded = load(&file_of(wish)?, say)?;
    let pipeline = pick(&loaded, wish.pipeline.as_deref())?;
    let def = &loaded.runbook.pipelines[&windlass_core::id::Name::clean(&pipeline)];
    let vars = vars(wish, def)?;
    runbook::check_vars(def, &vars).map_err(|error| invalid(error.to_string()))?;
    if wish.detach && args.global.server.is_none() {
        background(args)?;
    }
    let need = if wish.dry_run { Need::Records } else { Need::Executes };
    let mut client = connect(args, need, say).await?;
    // A key of its own makes it harmless to ask again when the answer was lost: there is one run under it.
    let own = || format!("cli-{}", RunId(fresh()));
    let mut key = wish.idempotency_key.clone().or_else(|| client.app().is_none().then(own));
    let mut made = submit_run(&client, wish, (&loaded, &pipeline, &vars), key.as_deref()).await;
    for _ in 0..super::AGAIN_MAX {
        match &made {
            // Whoever held the data directory ended just now; whoever holds it next knows what became of the request.
            Err(failure) if failure.code == Code::Unavailable && client.is_renewable() => {
                client.renew().await?;
                super::agree(args, &client, need, say).await?;
            }
            Ok(_) | Err(_) => break,
        }
        key = key.or_else(|| Some(own()));
        made = submit_run(&client, wish, (&loaded, &pipeline, &vars), key.as_deref()).await;
    }
    let outcome = match made {
        Ok(made) => go_on(&mut client, wish, &made, say).await,
        Err(failure) => Err(failure),
    };
    super::finish(client, &outcome, say).await;
    outcome
}

fn pick(loaded: &Loaded, wanted: Option<&str>) -> Result<String, Failure> {
    let names: Vec<&str> = loaded.runbook.pipelines.keys().map(|name| name.as_str()).collect();
    match (wanted, names.as_slice()) {
        (Some(wanted), _) if names.contains(&wanted) => Ok(wanted.to_owned()),
        (Some(wanted), _) => {
            let text = format!("there is no pipeline `{wanted}`; this runbook has {}", names.join(", "));
            Err(Failure::new(Code::NotFound, text))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) if names.contains(&"default") => Ok("default".to_owned()),
        (None, []) => Err(invalid("the runbook has no pipelines")),
        (None, _) => Err(invalid(format!("say which pipeline: {}", names.join(", ")))),
    }
}

/// What came of asking for a run.
enum Made {
    /// It would do this.
    Planned(Value),
    /// It is there; whether an earlier request made it.
    Run(Value, bool),
}

/// Asks for a run.
async fn submit_run(
    client: &Client,
    wish: &RunArgs,
    (loaded, pipeline, vars): (&Loaded, &str, &Map<String, Value>),
    key: Option<&str>,
) -> Result<Made, Failure> {
    let hash = text(&submit(client, loaded).await?, "hash").to_owned();
    if wish.dry_run {
        let asked = json!({ "runbook": hash, "pipeline": pipeline, "vars": vars });
        return client.post("/v1/plan", &asked).await.map(Made::Planned);
    }
    let cwd = std::env::current_dir()?.to_string_lossy().into_owned();
    let body = json!({
        "runbook": hash, "pipeline": pipeline, "vars": vars, "after": wish.after, "cwd": cwd, "source": "cli",
    });
    let headers: Vec<_> = key.into_iter().map(|key| ("idempotency-key", key.to_owned())).collect();
    let bytes = ("application/json", body.to_string().into_bytes());
    let answer = client.send(Method::POST, "/v1/runs", Some(bytes), &headers).await?;
    let known = answer.headers.contains_key("idempotent-replayed");
    Ok(Made::Run(answer.json().await?, known))
}

/// Shows what came of it, and follows the run to its end.
async fn go_on(client: &mut Client, wish: &RunArgs, made: &Made, say: &Say) -> Outcome {
    let (made, known) = match made {
        Made::Planned(plan) => {
            say.answer(plan, || planned(say, plan));
            return Ok(0);
        }
        Made::Run(made, known) => (made, *known),
    };
    let id = text(made, "id").to_owned();
    if known && wish.idempotency_key.is_some() {
        say.note(&format!("{id} was made by an earlier request with this key"));
    }
    if wish.detach {
        say.answer(made, || id.clone());
        return Ok(0);
    }
    follow::to_end(client, &id, Follow { wait: !wish.no_wait, suspend: true }, say).await
}

fn planned(say: &Say, plan: &Value) -> String {
    let mut out = format!("{} would run these steps:\n", plain(plan, "pipeline"));
    for step in plan["steps"].as_array().into_iter().flatten() {
        let indent = "  ".repeat(step["depth"].as_u64().unwrap_or(0) as usize + 1);
        let policy = step["policy"].as_str().map_or(String::new(), |verdict| format!("  policy: {verdict}"));
        let skipped = if step["when"] == Value::Bool(false) { "  (skipped: `when` is false)" } else { "" };
        out.push_str(&format!("{indent}{} [{}]{policy}{skipped}\n", plain(step, "id"), plain(step, "tool")));
        if let Some(fields) = step.get("fields") {
            out.push_str(&format!(
                "{indent}  {}\n",
                say.paint(anstyle::Style::new().dimmed(), &say::guarded(&fields.to_string()))
            ));
        }
        if let Some(secrets) = step.get("secrets") {
            out.push_str(&format!("{indent}  secrets: {}\n", say::guarded(&secrets.to_string())));
        }
        for missing in step["missing_secrets"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            out.push_str(&format!("{indent}  missing secret: {missing} (`windlass secret set {missing}`)\n"));
        }
    }
    out.push_str("nothing was executed\n");
    out
}

/// Starts a process that holds the data directory while there is something to do. One that finds it held ends at once.
fn background(args: &Args) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt as _;
    let mut command = Command::new(std::env::current_exe()?);
    // It is to be governed as this process would be. Its surroundings are the same; what was typed is passed on.
    let Global { data, server: _, token: _, config, policy, json: _, quiet: _, no_color: _ } = &args.global;
    for (flag, path) in [("--data", data), ("--config", config), ("--policy", policy)] {
        if let Some(path) = path {
            command.arg(flag).arg(std::path::absolute(path)?);
        }
    }
    command.arg("__hold").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn()?;
    // It has to have the directory before this process looks, or both would want to hold it; whoever is second
    // finds the socket of the first.
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

/// Holds the data directory while there is something to do.
pub(super) async fn hold(client: &Client) -> Outcome {
    let Some(app) = client.app() else { return Ok(0) };
    let mut idle = 0;
    while idle < 10 {
        tokio::time::sleep(LOOK).await;
        let busy = app.look(|store| {
            let indexes = store.state().indexes();
            // Only what a run waits for is worth staying for; keys that end some day are not.
            let mut due = indexes.due(Millis(u64::MAX));
            due.any(|stream| matches!(stream, StreamId::Run(_)))
                || indexes.ready_len() > 0
                || store.leases() > 0
        });
        idle = if busy.await.unwrap_or(false) { 0 } else { idle + 1 };
    }
    Ok(0)
}

pub(super) fn path(run: &str, what: &str) -> String {
    format!("/v1/runs/{}{what}", follow::escape(run))
}

pub(super) async fn cancel(client: &mut Client, run: &str, reason: Option<&str>, say: &Say) -> Outcome {
    let cancelled = client.post(&path(run, "/cancel"), &json!({ "reason": reason })).await?;
    let id = text(&cancelled, "id").to_owned();
    // Compensations and `finally` still have to run: whoever carries steps out sees them through.
    client.begin();
    let ended = follow::settle(client, &id).await?;
    say.answer(&ended, || format!("{id} is {}", say.status(text(&ended, "status"))));
    Ok(0)
}

pub(super) async fn suspend(client: &Client, run: &str, reason: Option<&str>, say: &Say) -> Outcome {
    let shown = client.post(&path(run, "/suspend"), &json!({ "reason": reason })).await?;
    let id = text(&shown, "id").to_owned();
    say.answer(&shown, || format!("{id} is suspended; `windlass resume {id}` lets it go on"));
    Ok(0)
}

pub(super) async fn resume(
    client: &mut Client,
    run: Option<&str>,
    all: bool,
    (message, var): (Option<&str>, &[String]),
    say: &Say,
) -> Outcome {
    let runs = match (run, all) {
        (Some(run), _) => {
            let shown = client.get(&path(run, "")).await?;
            let id = text(&shown, "id").to_owned();
            if follow::is_over(&shown) {
                let text = format!(
                    "{id} is {}: there is nothing to go on with; `windlass retry {id}` makes a new run of it",
                    text(&shown, "status")
                );
                return Err(Failure::new(Code::RunTerminalState, text));
            }
            vec![id]
        }
        (None, true) => follow::open_runs(client).await?,
        (None, false) => match follow::open_runs(client).await?.as_slice() {
            [] => return Err(Failure::new(Code::NotFound, "there is no run that could go on")),
            [only] => vec![only.clone()],
            several => {
                let text = format!("{} runs could go on: name one, or say --all", several.len());
                return Err(invalid(text));
            }
        },
    };
    // What is wrong with a variable is known before anything goes on.
    let mut wishes = Vec::new();
    for run in &runs {
        let shown = client.get(&path(run, "")).await?;
        let vars = changed(client, &shown, var).await?;
        if shown["suspended"] == Value::Bool(true) || !vars.is_null() || message.is_some() {
            wishes.push((run, json!({ "message": message, "vars": vars })));
        }
    }
    client.begin();
    for (run, body) in wishes {
        client.post(&path(run, "/resume"), &body).await?;
    }
    let mut worst = 0;
    for run in &runs {
        let code = follow::to_end(client, run, Follow { wait: true, suspend: true }, say).await?;
        worst = worst.max(code);
    }
    Ok(worst)
}

/// The variables to change, in the types that the run's pipeline declares.
async fn changed(client: &Client, run: &Value, var: &[String]) -> Result<Value, Failure> {
    if var.is_empty() {
        return Ok(Value::Null);
    }
    let book = client.get(&format!("/v1/runbooks/{}", follow::escape(text(run, "runbook_hash")))).await?;
    let mut book: Runbook = serde_json::from_value(book["runbook"].clone()).map_err(|error| {
        Failure::new(Code::Internal, format!("the runbook of the run cannot be read: {error}"))
    })?;
    let name = text(run, "pipeline");
    let def = book
        .pipelines
        .remove(&windlass_core::id::Name::clean(name))
        .ok_or_else(|| Failure::new(Code::Internal, format!("the run's runbook has no pipeline `{name}`")))?;
    let vars = runbook::parse_vars(&def, var).map_err(|error| invalid(error.to_string()))?;
    Ok(Value::Object(vars))
}

pub(super) async fn retry(client: &mut Client, run: &str, say: &Say) -> Outcome {
    let made = client.post(&path(run, "/retry"), &json!({})).await?;
    let id = text(&made, "id").to_owned();
    say.note(&format!("{id} goes on from {}", text(&made, "resumed_from")));
    follow::to_end(client, &id, Follow { wait: true, suspend: true }, say).await
}

pub(super) async fn fork(
    client: &mut Client,
    run: &str,
    from: &str,
    book: Option<&Path>,
    say: &Say,
) -> Outcome {
    let mut body = json!({ "from": from });
    if let Some(book) = book {
        let loaded = load(book, say)?;
        body["runbook"] = submit(client, &loaded).await?["hash"].take();
    }
    let made = client.post(&path(run, "/fork"), &body).await?;
    let id = text(&made, "id").to_owned();
    say.note(&format!("{id} goes on from step `{from}`"));
    follow::to_end(client, &id, Follow { wait: true, suspend: true }, say).await
}

pub(super) async fn signal(
    client: &Client,
    (run, key): (Option<&str>, Option<&str>),
    name: &Option<String>,
    data: Option<&str>,
    say: &Say,
) -> Outcome {
    let data: Value = match data {
        Some(text) => {
            serde_json::from_str(text).map_err(|error| invalid(format!("--data is not JSON: {error}")))?
        }
        None => Value::Null,
    };
    // With a key there is no run, and the first word is the event's name.
    let (path, body, name) = match (run, key, name) {
        (Some(run), None, Some(name)) => {
            (path(run, &format!("/signals/{}", follow::escape(name))), json!({ "data": data }), name.as_str())
        }
        (Some(name), Some(key), None) => {
            (format!("/v1/signals/{}", follow::escape(name)), json!({ "data": data, "key": key }), name)
        }
        (Some(run), Some(key), Some(name)) => {
            let body = json!({ "data": data, "key": key });
            (path(run, &format!("/signals/{}", follow::escape(name))), body, name.as_str())
        }
        (_, _, _) => return Err(invalid("say which run and which event: `windlass signal RUN NAME`")),
    };
    let answer = client.post(&path, &body).await?;
    say.answer(&answer, || format!("`{name}` is delivered"));
    Ok(0)
}

pub(super) async fn resolve(
    client: &Client,
    (run, step): (&str, &str),
    resolution: &str,
    reason: &str,
    say: &Say,
) -> Outcome {
    let body = json!({ "resolution": resolution, "reason": reason });
    let shown = client.post(&path(run, &format!("/steps/{}/resolve", follow::escape(step))), &body).await?;
    say.answer(&shown, || {
        format!("step `{step}` is settled; the run is {}", say.status(text(&shown, "status")))
    });
    Ok(0)
}

/// Shows the exact action and decides on it. Without a terminal the hash says that it was seen.
pub(super) async fn decide(
    client: &Client,
    id: &str,
    (hash, yes): (Option<&str>, bool),
    reject: Option<&str>,
    say: &Say,
) -> Outcome {
    let approval = client.get(&format!("/v1/approvals/{}", follow::escape(id))).await?;
    let shown = text(&approval, "action_hash").to_owned();
    if !say.json {
        say.line(&super::show::approval(say, &approval));
    }
    let verb = if reject.is_some() { "Reject" } else { "Approve" };
    let asks = std::io::stdin().is_terminal();
    let hash = match hash {
        Some(hash) => hash.to_owned(),
        // Rejecting does nothing, so a program need not show what it has seen; a human at a terminal is asked.
        None if reject.is_some() && (yes || !asks) || yes && say.terminal => shown,
        None => {
            let flag = format!("--hash {shown}");
            say::sure(false, &format!("{verb} exactly this?"), "nothing was decided", &flag)?;
            shown
        }
    };
    let decision = if reject.is_some() { "rejected" } else { "approved" };
    let mut body = json!({ "decision": decision, "action_hash": hash, "reason": reject, "channel": "cli" });
    if let Some(card) = approval["card"].as_str().filter(|_| !say.json) {
        // The decision says which text it was made on: exactly the one that stands above.
        body["card_hash"] = json!(windlass_core::approval::card_hash(card).to_string());
    }
    let id = text(&approval, "id").to_owned();
    let decided = client.post(&format!("/v1/approvals/{id}/decision"), &body).await?;
    let run = text(&decided, "run").to_owned();
    say.answer(&decided, || {
        let next = if client.app().is_some() {
            format!("; `windlass resume {run}` lets it go on")
        } else {
            String::new()
        };
        format!("{}{next}", say.status(text(&decided, "status")))
    });
    Ok(0)
}
