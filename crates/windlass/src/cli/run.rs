//! `run` and what can be asked of runs.

use super::args::{Args, Global, RunArgs};
use super::follow::{self, Follow};
use super::say::{self, Say, plain, text};
use super::{Outcome, connect, tooling};
use axum::http::Method;
use serde_json::{Map, Value, json};
use std::fs::TryLockError;
use std::io::IsTerminal as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use windlass_core::code::Code;
use windlass_core::id::{Name, RunId};
use windlass_core::runbook::{Pipeline, Runbook};
use windlass_core::stream::StreamId;
use windlass_core::time::Millis;
use windlass_executor::clock::fresh;
use windlass_runbook::{self, Loaded};
use windlass_server::client::{Client, Failure, Need};

/// How large a file of variables may be.
const VARS_MAX: u64 = 1 << 20;
/// How many runs are named where one has to be chosen.
const NAMED_MAX: usize = 10;
/// How often a process without work looks whether there is some.
const LOOK: Duration = Duration::from_millis(200);

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidInput, text)
}

/// Reads a runbook; what is wrong with it is shown where it stands.
pub(super) fn load(args: &Args, path: &Path, say: &Say) -> Result<Loaded, Failure> {
    windlass_runbook::load(path, tooling(args)?.registry.signatures()).map_err(|problems| {
        let detail = problems.render(say.colour_err);
        let mut problem = problems.json();
        problem["detail"] = Value::String(detail.clone());
        Failure { problem: say.json.then_some(problem), ..Failure::new(Code::RunbookInvalid, detail) }
    })
}

/// What is to be run.
enum Book {
    /// A file, and the directory that its steps run in: its own.
    File { loaded: Box<Loaded>, dir: String },
    /// A deployed runbook, by its name. Its steps run where it was deployed from.
    Deployed { name: String, runbook: Box<Runbook> },
}

impl Book {
    fn runbook(&self) -> &Runbook {
        match self {
            Book::File { loaded, .. } => &loaded.runbook,
            Book::Deployed { runbook, .. } => runbook,
        }
    }
}

/// The runbook file of the working directory.
fn own_file() -> Option<PathBuf> {
    ["runbook.yaml", "runbook.yml"].iter().map(PathBuf::from).find(|path| path.is_file())
}

/// The file that was named, or that is meant; and the pipeline that was named instead of a file. No file: a deployed
/// runbook was named.
fn file_of(args: &Args, wish: &RunArgs) -> Result<(Option<PathBuf>, Option<String>), Failure> {
    let Some(named) = &wish.file else {
        let missing = "there is no runbook.yaml here: name a runbook, or create one with `windlass init`";
        return Ok((Some(own_file().ok_or_else(|| invalid(missing))?), wish.pipeline.clone()));
    };
    let word = named.to_str().filter(|word| Name::new(word).is_ok_and(|name| name.as_str() == *word));
    let is_path = named.exists() || named.extension().is_some_and(|end| end == "yaml" || end == "yml");
    if is_path || word.is_none() {
        return Ok((Some(named.clone()), wish.pipeline.clone()));
    }
    let own = own_file().filter(|_| wish.pipeline.is_none());
    let tools = tooling(args)?.registry.signatures();
    let has = |path: &PathBuf| {
        let known = windlass_runbook::load(path, tools).ok().map(|loaded| loaded.runbook);
        known.is_some_and(|runbook| runbook.pipelines.keys().any(|name| Some(name.as_str()) == word))
    };
    Ok(match own.filter(has) {
        Some(path) => (Some(path), word.map(str::to_owned)),
        None => (None, wish.pipeline.clone()),
    })
}

/// Reads a file for a run.
fn book(args: &Args, path: &Path, say: &Say) -> Result<Book, Failure> {
    let loaded = Box::new(load(args, path, say)?);
    let path = std::path::absolute(path)?;
    let dir = path.parent().unwrap_or(&path).to_string_lossy().into_owned();
    Ok(Book::File { loaded, dir })
}

/// Asks for the active version of a runbook.
async fn deployed(client: &Client, name: &str) -> Result<Book, Failure> {
    match client.get(&format!("/v1/runbooks/{}", follow::escape(name))).await {
        Ok(mut known) => {
            let runbook = serde_json::from_value(known["runbook"].take());
            let unread =
                |error| Failure::new(Code::Internal, format!("the server's runbook `{name}`: {error}"));
            Ok(Book::Deployed { name: name.to_owned(), runbook: Box::new(runbook.map_err(unread)?) })
        }
        Err(failure) if failure.code == Code::NotFound => {
            let text = format!(
                "`{name}` is neither a file nor a deployed runbook: `windlass runbooks` lists those, `windlass deploy FILE` adds one"
            );
            Err(Failure::new(Code::NotFound, text))
        }
        Err(failure) => Err(failure),
    }
}

/// A pipeline of a runbook with its variables, as they are asked for.
struct Asked {
    pipeline: String,
    vars: Map<String, Value>,
}

fn asked(book: &Book, pipeline: Option<&str>, wish: &RunArgs) -> Result<Asked, Failure> {
    let pipeline = pick(book.runbook(), pipeline)?;
    let def = &book.runbook().pipelines[&Name::clean(&pipeline)];
    let vars = vars(wish, def)?;
    windlass_runbook::check_vars(def, &vars).map_err(|error| invalid(error.to_string()))?;
    Ok(Asked { pipeline, vars })
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
            match windlass_runbook::yaml::parse(0, &text).map(|node| node.json()) {
                Ok(Value::Object(vars)) => vars,
                Ok(_) => return Err(invalid(format!("{} is not a map of variables", path.display()))),
                Err(problem) => return Err(invalid(format!("{}: {}", path.display(), problem.message))),
            }
        }
    };
    vars.extend(windlass_runbook::parse_vars(def, &wish.var).map_err(|error| invalid(error.to_string()))?);
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
    let (file, pipeline) = file_of(args, wish)?;
    let read = match &file {
        Some(path) => {
            let book = book(args, path, say)?;
            let asked = asked(&book, pipeline.as_deref(), wish)?;
            Some((book, asked))
        }
        None => None,
    };
    // What is left to the background is only recorded here.
    let leaves = wish.detach && args.global.server.is_none();
    let need = if wish.dry_run || leaves { Need::Records } else { Need::Executes };
    let governed = if wish.dry_run { Need::Records } else { Need::Executes };
    let mut client = connect(args, need, say).await?;
    super::agree(args, &client, governed, say).await?;
    let (book, asked) = match read {
        Some(read) => read,
        None => {
            let name = wish.file.as_deref().map(Path::to_string_lossy).unwrap_or_default();
            let book = deployed(&client, &name).await?;
            let asked = asked(&book, pipeline.as_deref(), wish)?;
            (book, asked)
        }
    };
    // A key of its own makes it harmless to ask again when the answer was lost: there is one run under it.
    let own = || format!("cli-{}", RunId(fresh()));
    let mut key = wish.idempotency_key.clone().or_else(|| client.app().is_none().then(own));
    let mut stays = is_server(&client).await;
    let mut made = submit_run(&client, wish, (&book, &asked), key.as_deref()).await;
    for _ in 0..super::AGAIN_MAX {
        match &made {
            // Whoever held the data directory ended just now; whoever holds it next knows what became of the request.
            Err(failure) if failure.code == Code::Unavailable && client.is_renewable() => {
                client.renew().await?;
                super::agree(args, &client, governed, say).await?;
            }
            Ok(_) | Err(_) => break,
        }
        key = key.or_else(|| Some(own()));
        stays = is_server(&client).await;
        made = submit_run(&client, wish, (&book, &asked), key.as_deref()).await;
    }
    let outcome = match made {
        Ok(Made::Run(..))
            if leaves
                && !stays
                && let Err(failure) = background(args) =>
        {
            Err(failure)
        }
        Ok(made) => go_on(&mut client, wish, &made, say).await,
        Err(failure) => Err(failure),
    };
    super::finish(client, &outcome, say).await;
    outcome
}

fn pick(runbook: &Runbook, wanted: Option<&str>) -> Result<String, Failure> {
    let names: Vec<&str> = runbook.pipelines.keys().map(|name| name.as_str()).collect();
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
    (book, Asked { pipeline, vars }): (&Book, &Asked),
    key: Option<&str>,
) -> Result<Made, Failure> {
    let (runbook, dir) = match book {
        Book::File { loaded, dir } => (text(&submit(client, loaded).await?, "hash").to_owned(), Some(dir)),
        Book::Deployed { name, .. } => (name.clone(), None),
    };
    if wish.dry_run {
        let asked = json!({ "runbook": runbook, "pipeline": pipeline, "vars": vars });
        return client.post("/v1/plan", &asked).await.map(Made::Planned);
    }
    let mut body = json!({
        "runbook": runbook, "pipeline": pipeline, "vars": vars, "after": wish.after, "source": "cli",
    });
    if let Some(dir) = dir {
        body["cwd"] = json!(dir);
    }
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

/// What the `when` of a planned step comes to.
fn condition(step: &Value) -> String {
    match &step["when"] {
        Value::Null => String::new(),
        Value::Bool(false) => "  (skipped: `when` is false)".to_owned(),
        Value::Object(later) => format!("  (if {})", plain(&Value::Object(later.clone()), "later")),
        _ => "  (`when` is true)".to_owned(),
    }
}

/// The terms of a planned step.
fn terms(step: &Value) -> Vec<String> {
    let mut terms = Vec::new();
    if let Some(ms) = step["timeout_ms"].as_u64() {
        terms.push(format!("timeout {}", say::duration(ms)));
    }
    if let Some(tries) = step["max_attempts"].as_u64() {
        terms.push(say::count(tries, "attempt"));
    }
    for key in ["lock", "semaphore", "effect"] {
        match &step[key] {
            Value::Null => {}
            Value::String(text) => terms.push(format!("{key} {text}")),
            other => terms.push(format!("{key} {other}")),
        }
    }
    match &step["compensate"] {
        Value::String(by) => terms.push(format!("compensated by {by}")),
        Value::Bool(false) => terms.push("never compensated".to_owned()),
        _ => {}
    }
    terms
}

fn planned(say: &Say, plan: &Value) -> String {
    let mut out = format!("{} would run these steps:\n", plain(plan, "pipeline"));
    for step in plan["steps"].as_array().into_iter().flatten() {
        let indent = "  ".repeat(step["depth"].as_u64().unwrap_or(0) as usize + 1);
        let policy = step["policy"].as_str().map_or(String::new(), |verdict| format!("  policy: {verdict}"));
        let reasons: Vec<&str> =
            step["policy_reasons"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let why = match step["policy"].as_str() {
            Some("deny" | "needs_approval") if !reasons.is_empty() => {
                format!(" ({})", say::one_line(&reasons.join("; ")))
            }
            Some(_) | None => String::new(),
        };
        let section = Some(text(step, "section")).filter(|section| *section != "main");
        let section = section.map_or(String::new(), |section| format!("  in {section}"));
        let (id, tool) = (plain(step, "id"), plain(step, "tool"));
        out.push_str(&format!("{indent}{id} [{tool}]{section}{policy}{why}{}\n", condition(step)));
        let terms = terms(step);
        if !terms.is_empty() {
            out.push_str(&format!("{indent}  {}\n", say::one_line(&terms.join(", "))));
        }
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

/// Starts a process that holds the data directory while there is something to do, as soon as nobody else holds it.
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
    Ok(())
}

fn stays(health: &Value) -> bool {
    health["stays"] == true
}

/// Whether a server is asked, which carries out what it is given without anybody's help.
async fn is_server(client: &Client) -> bool {
    client.get("/healthz").await.is_ok_and(|health| stays(&health))
}

/// Holds the data directory while there is something to do. Where a command holds it, this process waits for its end: that
/// command may only look, and goes away with what it was started for.
pub(super) async fn hold(client: &mut Client, root: &Path) -> Outcome {
    let mut options = std::fs::OpenOptions::new();
    let turn = options.write(true).create(true).truncate(false).mode(0o600).open(root.join("hold.lock"))?;
    while client.app().is_none() {
        // One that waits is enough, and it stays until it holds the directory or a server does.
        match turn.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(0),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        match client.get("/healthz").await {
            Ok(health) if stays(&health) => return Ok(0),
            Err(failure) if failure.gone => match client.renew().await {
                Err(failure) if failure.code != Code::LockBusy => return Err(failure),
                Ok(()) | Err(_) => {}
            },
            Ok(_) | Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
    turn.unlock()?;
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
    say.answer(&shown, || format!("{id} is suspended; to continue: windlass resume {id}"));
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
                    "{id} is {} and cannot be resumed; `windlass retry {id}` starts a new run from it",
                    text(&shown, "status")
                );
                return Err(Failure::new(Code::RunTerminalState, text));
            }
            vec![id]
        }
        (None, true) => follow::open_runs(client).await?,
        (None, false) => match follow::open_runs(client).await?.as_slice() {
            [] => return Err(Failure::new(Code::NotFound, "no run can be resumed")),
            [only] => vec![only.clone()],
            several => {
                let named = several.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = if several.len() > NAMED_MAX { " …" } else { "" };
                let text =
                    format!("{} runs can be resumed: name one, or use --all: {named}{more}", several.len());
                return Err(invalid(text));
            }
        },
    };
    // What is wrong with a variable is known before anything goes on.
    let mut wishes = Vec::new();
    for run in &runs {
        let shown = client.get(&path(run, "")).await?;
        let vars = changed(client, &shown, var).await?;
        // A run that only a human can help is named one by one; with --all the others go on.
        if let Some(step) = unknown(&shown).filter(|_| !all) {
            let text = format!(
                "{run} cannot be resumed: the outcome of step `{step}` is unknown. Find it out, then run `windlass resolve {run} {step} done|retry|fail`"
            );
            return Err(Failure::new(Code::RunResumeFailed, text));
        }
        if shown["suspended"] == Value::Bool(true) || !vars.is_null() || message.is_some() {
            wishes.push((run, json!({ "message": message, "vars": vars })));
        }
    }
    // What is wished is in force before anything goes on.
    for (run, body) in wishes {
        client.post(&path(run, "/resume"), &body).await?;
    }
    client.begin();
    let mut worst = 0;
    for run in &runs {
        let code = follow::to_end(client, run, Follow { wait: true, suspend: true }, say).await?;
        worst = worst.max(code);
    }
    Ok(worst)
}

/// The step that keeps a run where it is because its outcome is unknown: no other step of the run can go on.
fn unknown(run: &Value) -> Option<&str> {
    let steps = run["steps"].as_array().filter(|_| run["status"] == "awaiting_approval")?;
    // What is being looked into by a probe is not a human's to decide yet.
    let asked = |step: &&Value| step["status"] == "outcome_unknown" && step["reason"] == "outcome";
    let step = steps.iter().find(asked)?;
    step["id"].as_str()
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
        .remove(&Name::clean(name))
        .ok_or_else(|| Failure::new(Code::Internal, format!("the run's runbook has no pipeline `{name}`")))?;
    let vars = windlass_runbook::parse_vars(&def, var).map_err(|error| invalid(error.to_string()))?;
    Ok(Value::Object(vars))
}

pub(super) async fn retry(client: &mut Client, run: &str, say: &Say) -> Outcome {
    let before = client.get(&path(run, "")).await?;
    let made = client.post(&path(run, "/retry"), &json!({})).await?;
    let id = text(&made, "id").to_owned();
    // A run in back-off is tried again itself; one that has failed goes on in a new run.
    let same = id == text(&before, "id");
    let from = || format!("{id} continues from {}", text(&made, "resumed_from"));
    say.note(&if same { format!("{id} is retried now") } else { from() });
    follow::to_end(client, &id, Follow { wait: true, suspend: true }, say).await
}

pub(super) async fn fork(
    args: &Args,
    client: &mut Client,
    (run, from, book): (&str, &str, Option<&Path>),
    say: &Say,
) -> Outcome {
    let mut body = json!({ "from": from });
    if let Some(book) = book {
        let loaded = load(args, book, say)?;
        body["runbook"] = submit(client, &loaded).await?["hash"].take();
    }
    let made = client.post(&path(run, "/fork"), &body).await?;
    let id = text(&made, "id").to_owned();
    say.note(&format!("{id} continues from step `{from}`"));
    follow::to_end(client, &id, Follow { wait: true, suspend: true }, say).await
}

pub(super) async fn ingress(client: &Client, key: &str, say: &Say) -> Outcome {
    let shown = client.get(&format!("/v1/ingress/{}", follow::escape(key))).await?;
    say.answer(&shown, || {
        let fields = shown.as_object().into_iter().flatten();
        let line = |(name, value): (&String, &Value)| match value {
            Value::String(text) => format!("{name:<16} {}", say::one_line(text)),
            other => format!("{name:<16} {other}"),
        };
        fields.map(line).collect::<Vec<_>>().join("\n")
    });
    Ok(0)
}

/// What a command is given as `--data`.
fn payload(text: Option<&str>) -> Result<Value, Failure> {
    let read =
        |text| serde_json::from_str(text).map_err(|error| invalid(format!("--data is not JSON: {error}")));
    text.map_or(Ok(Value::Null), read)
}

pub(super) async fn emit(
    client: &Client,
    kind: &str,
    data: Option<&str>,
    key: Option<&str>,
    say: &Say,
) -> Outcome {
    let body = json!({ "type": kind, "data": payload(data)? });
    let body = ("application/json", body.to_string().into_bytes());
    let headers: Vec<_> = key.into_iter().map(|key| ("idempotency-key", key.to_owned())).collect();
    let answer = client.send(Method::POST, "/v1/events", Some(body), &headers).await?.json().await?;
    say.answer(&answer, || {
        let mut lines = vec![format!("`{kind}` is emitted")];
        for run in answer["runs"].as_array().into_iter().flatten() {
            let text = |key: &str| run[key].as_str().unwrap_or_default();
            lines.push(format!("{} made the run {}", text("trigger"), text("id")));
        }
        for error in answer["errors"].as_array().into_iter().flatten() {
            let text = |key: &str| error[key].as_str().unwrap_or_default();
            lines.push(format!("{} made nothing of it: {}", text("trigger"), text("message")));
        }
        lines.join("\n")
    });
    Ok(0)
}

pub(super) async fn signal(
    client: &Client,
    (run, key): (Option<&str>, Option<&str>),
    name: &Option<String>,
    data: Option<&str>,
    say: &Say,
) -> Outcome {
    let data = payload(data)?;
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
        format!("step `{step}` is resolved; the run is {}", say.status(text(&shown, "status")))
    });
    Ok(0)
}

/// Shows the exact action and decides on it. Without a terminal the hash says that it was seen.
/// The fewest digits that stand for a whole hash: as many as a card shows first.
const SHORT_MIN: usize = 12;

/// The hash that somebody gave, which may be the beginning of the one that is shown.
fn whole(given: &str, shown: &str) -> Result<String, Failure> {
    let given = given.trim().to_ascii_lowercase();
    if given.len() < SHORT_MIN
        || !given.bytes().all(|byte| byte.is_ascii_hexdigit())
        || given.len() > shown.len()
    {
        let text = format!("--hash takes the hash of the action, or its first {SHORT_MIN} digits or more");
        return Err(invalid(text));
    }
    if shown.starts_with(&given) {
        return Ok(shown.to_owned());
    }
    // The server refuses what is not the hash, and puts it on record: it is told all the digits that there are.
    Ok(format!("{given:0<width$}", width = shown.len()))
}

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
        Some(hash) => whole(hash, &shown)?,
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
            format!("; to continue: windlass resume {run}")
        } else {
            String::new()
        };
        format!("{}{next}", say.status(text(&decided, "status")))
    });
    Ok(0)
}
