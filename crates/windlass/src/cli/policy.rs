//! `policy`: checks a folder, tests it with cases, and asks all of history again.

use super::Outcome;
use super::args::Args;
use super::say::{self, Say, plain, text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use windlass_core::code::Code;
use windlass_runbook::problem::Problems;
use windlass_server::client::{Client, Failure};
use windlass_server::policy::{Edition, FOLDER, Rules, cases, folder, rule as rule_of, schema};

/// Examples of what can be done about policies.
pub(super) const HELP: &str = "examples:\n  windlass policy check policy\n  windlass policy test policy/cases.yaml\n  windlass policy test --against-history --policy new-policy";

/// Examples of raising a budget.
pub(super) const RAISE: &str =
    "examples:\n  windlass raise RUN --usd 20\n  windlass raise RUN --time 6h --writes 10";

/// To what a budget is raised.
#[derive(clap::Args, Debug)]
pub(super) struct RaiseArgs {
    /// The run: its id, the beginning or end of the id, or `last`
    pub(super) run: String,
    /// New limit in dollars
    #[arg(long)]
    pub(super) usd: Option<f64>,
    /// New limit of tokens
    #[arg(long)]
    pub(super) tokens: Option<u64>,
    /// New limit of time
    #[arg(long)]
    pub(super) time: Option<String>,
    /// New limit of outbound writes
    #[arg(long)]
    pub(super) writes: Option<u64>,
}

/// What can be done about policies.
#[derive(clap::Subcommand, Debug)]
pub(super) enum PolicyVerb {
    /// Parse and validate a policy folder
    #[command(after_help = "examples:\n  windlass policy check policy")]
    Check {
        /// The folder [default: --policy, then ./policy]
        dir: Option<PathBuf>,
    },
    /// Test the policy: evaluate actions and compare with the expected decisions
    #[command(
        after_help = "examples:\n  windlass policy test policy/cases.yaml\n  windlass policy test --against-history --policy new-policy"
    )]
    Test {
        /// A file of cases; with --against-history, optionally a policy folder
        file: Option<PathBuf>,
        /// Replay all recorded decisions, and list those that would change
        #[arg(long)]
        against_history: bool,
    },
    /// Print the schema that policies are checked against
    #[command(after_help = "examples:\n  windlass policy schema > policy/schema.cedarschema")]
    Schema,
}

/// Answers what needs nobody else; none where history is asked.
pub(super) fn alone(args: &Args, verb: &PolicyVerb, say: &Say) -> Option<Outcome> {
    match verb {
        PolicyVerb::Check { dir } => Some(check(&named(args, dir.as_deref(), None), say)),
        PolicyVerb::Schema => {
            let text = schema::text();
            say.answer(&json!({ "schema": text }), || text.clone());
            Some(Ok(0))
        }
        PolicyVerb::Test { file: Some(file), against_history: false } => Some(test(args, file, say)),
        PolicyVerb::Test { file: None, against_history: false } => {
            let text = "name a file of cases, or ask history with --against-history";
            Some(Err(Failure::new(Code::InvalidInput, text)))
        }
        PolicyVerb::Test { against_history: true, .. } => None,
    }
}

/// The folder that is meant: the one that is named, the one with the cases in it, or `policy` here.
fn named(args: &Args, dir: Option<&Path>, beside: Option<&Path>) -> PathBuf {
    let beside = beside
        .and_then(Path::parent)
        .map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir });
    dir.or(args.global.policy.as_deref())
        .or(beside.filter(|dir| folder::is_policy_folder(dir)))
        .map_or_else(|| PathBuf::from(FOLDER), Path::to_path_buf)
}

/// What is wrong, with places for people and as JSON for programs.
fn wrong(problems: &Problems, say: &Say) -> Failure {
    let mut problem = problems.json();
    problem["detail"] = json!(problems.to_string());
    let detail = format!("the policy cannot be used\n{}", problems.render(say.colour_err).trim_end());
    Failure { problem: Some(problem), ..Failure::new(problems.code(), detail) }
}

fn check(dir: &Path, say: &Say) -> Outcome {
    let rules = Rules::load(dir).map_err(|problems| wrong(&problems, say))?;
    let known = std::fs::read_to_string(dir.join(schema::FILE)).ok();
    let stale = known.is_some_and(|text| text.trim_end() != schema::text().trim_end());
    if stale {
        let path = dir.join(schema::FILE);
        say.note(&format!(
            "{} is not of this version: `windlass policy schema > {}` renews it for editors",
            path.display(),
            path.display()
        ));
    }
    let list = rules.list();
    let answer = json!({
        "valid": true, "version": rules.version.to_string(), "schema_current": !stale,
        "rules": list.iter().map(|rule| rule_of(rule)).collect::<Vec<_>>(),
    });
    say.answer(&answer, || {
        let mut rows = vec![vec!["RULE".to_owned(), "EFFECT".to_owned(), "REASON".to_owned()]];
        for rule in &list {
            let effect = match (&rule.demand, rule.forbids) {
                (Some(demand), _) => format!("asks {}", demand.count),
                (None, true) => "forbids".to_owned(),
                (None, false) => "permits".to_owned(),
            };
            let reason = say::one_line(rule.reason.as_deref().unwrap_or_default());
            rows.push(vec![say::one_line(&rule.name), effect, reason]);
        }
        format!("{}✔ {}: {} rules, version {}", say.table(&rows), dir.display(), list.len(), rules.version)
    });
    Ok(0)
}

fn test(args: &Args, file: &Path, say: &Say) -> Outcome {
    let content = std::fs::read_to_string(file).map_err(|error| {
        Failure::new(Code::InvalidInput, format!("{} cannot be read: {error}", file.display()))
    })?;
    let list =
        cases::parse(&file.display().to_string(), &content).map_err(|problems| wrong(&problems, say))?;
    let dir = named(args, None, Some(file));
    let policy = Edition::Rules(Box::new(Rules::load(&dir).map_err(|problems| wrong(&problems, say))?));
    let mut results = Vec::new();
    let mut failed = 0;
    for case in &list {
        let (decision, wrong) = case.run(&policy);
        failed += usize::from(!wrong.is_empty());
        results.push(json!({
            "name": case.name, "ok": wrong.is_empty(), "wrong": wrong,
            "verdict": decision.as_ref().map(|d| d.verdict), "rules": decision.as_ref().map(|d| &d.rules),
            "reasons": decision.as_ref().map(|d| &d.reasons),
        }));
    }
    let answer = json!({
        "version": policy.version().to_string(), "cases": results.len(), "failed": failed, "results": results,
    });
    say.answer(&answer, || {
        let mut out = String::new();
        for result in &results {
            let mark = if result["ok"] == true { "✔" } else { "✘" };
            out.push_str(&format!("{mark} {}\n", text(result, "name")));
            for line in result["wrong"].as_array().into_iter().flatten() {
                out.push_str(&format!("    {}\n", line.as_str().unwrap_or_default()));
            }
        }
        format!("{out}{} of {} cases are as expected", results.len() - failed, results.len())
    });
    Ok(u8::from(failed > 0))
}

/// Raises the budget of a run. What is not named stays as it is.
pub(super) async fn raise(client: &Client, to: &RaiseArgs, say: &Say) -> Outcome {
    let body = json!({ "usd": to.usd, "tokens": to.tokens, "time": to.time, "writes": to.writes });
    let run = client.post(&super::run::path(&to.run, "/budget"), &body).await?;
    say.answer(&run, || {
        format!("{} is {}; {}", text(&run, "id"), text(&run, "status"), run["budget"]["limits"])
    });
    Ok(0)
}

/// Shows what is in force where the command goes.
pub(super) async fn in_force(client: &Client, say: &Say) -> Outcome {
    let page = client.get("/v1/policies").await?;
    say.answer(&page, || {
        let mut out = String::new();
        for policy in page["items"].as_array().into_iter().flatten() {
            let what = policy["folder"].as_str().unwrap_or("built-in");
            out.push_str(&format!("{what}  version {}\n", text(policy, "version")));
            if let Some(error) = policy["error"].as_str() {
                out.push_str(&format!("✘ everything is denied: {error}\n"));
            }
            for rule in policy["rules"].as_array().into_iter().flatten() {
                let parts = ["effect", "id", "reason"].map(|key| plain(rule, key));
                out.push_str(&format!("  {}\n", parts.join("  ").trim_end()));
            }
        }
        out
    });
    Ok(0)
}

/// Asks everything that was decided again, with the rules of a folder.
pub(super) async fn against_history(args: &Args, client: &Client, file: Option<&Path>, say: &Say) -> Outcome {
    let dir = match file {
        Some(dir) if dir.is_dir() => dir.to_path_buf(),
        file => named(args, None, file),
    };
    // Read and checked here, where its places can be shown.
    let rules = Rules::load(&dir).map_err(|problems| wrong(&problems, say))?;
    let files: Vec<Value> =
        rules.sources.iter().map(|source| json!({ "name": source.name, "text": source.text })).collect();
    let answer = client.post("/v1/policies/replay", &json!({ "files": files })).await?;
    say.answer(&answer, || comparison(&answer, say));
    Ok(0)
}

fn comparison(answer: &Value, say: &Say) -> String {
    let mut out = String::new();
    for flip in answer["flips"].as_array().into_iter().flatten() {
        out.push_str(&format!(
            "{} × {} would be {}\n",
            flip["count"],
            text(flip, "was"),
            text(flip, "would_be")
        ));
    }
    let examples = answer["examples"].as_array().map_or(&[][..], Vec::as_slice);
    if !examples.is_empty() {
        let heading = ["RUN", "STEP", "TOOL", "TARGET", "WAS", "WOULD BE", "BECAUSE"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for example in examples {
            let because = example["would_be_because"][0].as_str().unwrap_or_default();
            let cells = ["run", "step", "tool", "target", "was", "would_be"];
            let mut row: Vec<String> = cells.iter().map(|cell| plain(example, cell)).collect();
            row.push(say::one_line(because));
            rows.push(row);
        }
        out.push_str(&say.table(&rows));
    }
    let skipped = match answer["skipped"].as_u64() {
        None | Some(0) => String::new(),
        Some(skipped) => format!("; {skipped} could not be asked again"),
    };
    out + &format!("{} decisions, {} would flip{skipped}", answer["decisions"], answer["flipped"])
}
