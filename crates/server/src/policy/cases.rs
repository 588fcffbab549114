//! Cases: actions with the expected decisions, written in a file as a test of a policy folder.
//!
//! ```yaml
//! cases:
//!   - name: sre closes incidents
//!     action:
//!       tool: servicenow.update
//!       fields: { table: incident, sys_id: '42', fields: { state: resolved } }
//!     run: { requester: ann, pipeline: triage }
//!     expect: { verdict: needs_approval, tier: high, approvers: [sre], reasons: [incident] }
//! ```

use super::Edition;
use super::question::{About, Question};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use windlass_core::approval::Tier;
use windlass_core::budget::Amount;
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::id::{Name, RunId, StepId};
use windlass_core::policy::{Decision, Risk, Scope, Verdict, scope};
use windlass_core::receipt::Action;
use windlass_core::run;
use windlass_core::time::Millis;
use windlass_runbook::problem::{Notes, Place, Problem, Problems, Source};
use windlass_runbook::tools::{Tool, Tools, Writes};
use windlass_runbook::yaml;

/// The most bytes of a file of cases.
pub const FILE_LEN_MAX: usize = 1024 * 1024;
/// The most cases in a file.
pub const CASES_MAX: usize = 10_000;
/// When policy is asked where a case does not say: a Monday at noon.
const AT: Millis = Millis(1_763_380_800_000);

/// One case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it shows.
    pub name: String,
    action: Wanted,
    #[serde(default)]
    run: Behind,
    /// Who agreed already.
    #[serde(default)]
    approved_by: Vec<String>,
    expect: Expected,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    tool: String,
    operation: Option<String>,
    target: Option<String>,
    #[serde(default)]
    fields: Map<String, Value>,
    risk: Option<Risk>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Behind {
    requester: Option<String>,
    tenant: Option<String>,
    namespace: Option<String>,
    pipeline: Option<String>,
    #[serde(default)]
    undoes: Vec<String>,
    runbook: Option<String>,
    step: Option<String>,
    source: Option<run::Source>,
    at: Option<String>,
    #[serde(default)]
    spent: Spent,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Spent {
    usd: f64,
    tokens: u64,
    time_ms: u64,
    writes: u64,
}

/// What a case expects: what it does not say may be anything.
#[derive(Debug, Default)]
struct Expected {
    verdict: Option<Verdict>,
    tier: Option<Tier>,
    count: Option<u32>,
    two_person: Option<bool>,
    approvers: Option<Vec<String>>,
    rules: Option<Vec<String>>,
    /// Each is a part of some reason.
    reasons: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Details {
    verdict: Verdict,
    tier: Option<Tier>,
    count: Option<u32>,
    two_person: Option<bool>,
    approvers: Option<Vec<String>>,
    rules: Option<Vec<String>>,
    #[serde(default)]
    reasons: Vec<String>,
}

impl<'de> Deserialize<'de> for Expected {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Expected, D::Error> {
        use serde::de::Error as _;
        let value = Value::deserialize(from)?;
        if let Value::String(_) = value {
            let verdict = serde_json::from_value(value).map_err(D::Error::custom)?;
            return Ok(Expected { verdict: Some(verdict), ..Expected::default() });
        }
        let Details { verdict, tier, count, two_person, approvers, rules, reasons } =
            serde_json::from_value(value).map_err(D::Error::custom)?;
        Ok(Expected { verdict: Some(verdict), tier, count, two_person, approvers, rules, reasons })
    }
}

/// Reads a file of cases.
///
/// # Errors
/// Everything that is wrong with it, with places.
pub fn parse(name: &str, text: &str) -> Result<Vec<Case>, Problems> {
    let sources = || vec![Source { name: name.to_owned(), text: text.to_owned() }];
    let one = |problem: Problem| Problems::one(sources(), problem).coded(Code::InvalidInput);
    if text.len() > FILE_LEN_MAX {
        return Err(one(Problem::whole(format!("a file of cases has at most {FILE_LEN_MAX} bytes"))));
    }
    let root = yaml::parse(0, text).map_err(one)?;
    let mut notes = Notes::default();
    for (key, _) in root.entries().iter().filter(|(key, _)| key.text != "cases") {
        notes.add(Problem::at(key.at, format!("`{}` is not known here: only `cases` is", key.text)));
    }
    let list = root.get("cases").map_or(&[][..], yaml::Node::items);
    if list.is_empty() || list.len() > CASES_MAX {
        let text = format!("`cases` is a list of 1 to {CASES_MAX} cases");
        notes.add(Problem::at(root.get("cases").map_or(Place::default(), |node| node.at), text));
    }
    let mut cases = Vec::new();
    for node in list.iter().take(CASES_MAX) {
        match serde_json::from_value(node.json()) {
            Ok(case) => cases.push(case),
            Err(error) => notes.add(Problem::at(node.at, format!("this case cannot be read: {error}"))),
        }
    }
    if notes.is_empty() { Ok(cases) } else { Err(notes.into_problems(sources()).coded(Code::InvalidInput)) }
}

impl Case {
    /// The question that the case asks.
    ///
    /// # Errors
    /// A value that is none.
    pub fn question(&self, version: Digest) -> Result<Question, String> {
        let name = |text: &str| Name::new(text).map_err(|error| error.to_string());
        let or = |text: &Option<String>, otherwise: &str| name(text.as_deref().unwrap_or(otherwise));
        let tool = name(&self.action.tool)?;
        let fields = Value::Object(self.action.fields.clone());
        let known = Tools::OWN.find(tool.as_str());
        let operation = or(&self.action.operation, &operation(&tool, &self.action.fields))?;
        let target = or(&self.action.target, &target(known, &self.action.fields))?;
        let least = known.map_or(Risk::Low, |tool| tool.risk);
        let risk = self.action.risk.map_or(least, |risk| risk.higher(least));
        let writes = Tools::OWN.writes(tool.as_str(), operation.as_str());
        let own = scope(tool.as_str()) == Scope::PerStep;
        let action = own.then(|| Action::new(tool.clone(), operation, target, fields, risk)).transpose();
        let action = action.map_err(|error| error.to_string())?;
        let step: StepId = or(&self.run.step, "step")?;
        let spent = &self.run.spent;
        let agreed: Result<Vec<_>, String> =
            self.approved_by.iter().map(|by| Ok((name(by)?, version))).collect();
        Ok(Question {
            purpose: None,
            run: RunId(1),
            step: own.then_some(step),
            action_hash: action.as_ref().map(Action::hash),
            action,
            tool,
            writes,
            agreed: agreed?,
            about: About {
                tenant: or(&self.run.tenant, "default")?,
                namespace: or(&self.run.namespace, "default")?,
                pipeline: or(&self.run.pipeline, "default")?,
                undoes: self.run.undoes.iter().map(|text| name(text)).collect::<Result<_, _>>()?,
                runbook: or(&self.run.runbook, "default")?,
                runbook_hash: Digest([0; 32]),
                source: self.run.source.unwrap_or(run::Source::Cli),
                requester: self.run.requester.as_deref().map(name).transpose()?,
                parent: None,
                at: self.run.at.as_deref().map_or(Ok(AT), moment)?,
                spent: Amount {
                    usd_micros: (spent.usd.max(0.0) * 1e6) as u64,
                    tokens: spent.tokens,
                    time_ms: spent.time_ms,
                    writes: spent.writes,
                },
            },
        })
    }

    /// Asks policy, and says what is not as the case expects it.
    #[must_use]
    pub fn run(&self, policy: &Edition) -> (Option<Decision>, Vec<String>) {
        let question = match self.question(policy.version()) {
            Ok(question) => question,
            Err(error) => return (None, vec![error]),
        };
        let decision = policy.decide(&question);
        let wrong = self.expect.compare(&decision);
        (Some(decision), wrong)
    }
}

impl Expected {
    fn compare(&self, got: &Decision) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |what: &str, expected: Option<Value>, got: Value| {
            if let Some(expected) = expected.filter(|expected| *expected != got) {
                wrong.push(format!("{what} is {got}, and {expected} is expected"));
            }
        };
        check("the verdict", self.verdict.map(|verdict| json!(verdict)), json!(got.verdict));
        check("the tier", self.tier.map(|tier| json!(tier)), json!(got.stake()));
        check("the count", self.count.map(|count| json!(count)), json!(got.count.unwrap_or(0)));
        check("two_person", self.two_person.map(|two| json!(two)), json!(got.two_person.unwrap_or(false)));
        let sorted = |list: &[String]| {
            let mut list = list.to_vec();
            list.sort();
            json!(list)
        };
        let approvers: Vec<String> =
            got.approvers.iter().flatten().map(|name| name.as_str().to_owned()).collect();
        check("the list of approvers", self.approvers.as_deref().map(sorted), sorted(&approvers));
        check("the list of rules", self.rules.as_deref().map(sorted), sorted(&got.rules));
        for part in &self.reasons {
            if !got.reasons.iter().any(|reason| reason.contains(part.as_str())) {
                wrong.push(format!("no reason says `{part}`; they are {}", json!(got.reasons)));
            }
        }
        wrong
    }
}

/// The operation as it follows from the tool, and for a request from its method.
fn operation(tool: &Name, fields: &Map<String, Value>) -> String {
    match Tools::OWN.find(tool.as_str()) {
        Some(known) if known.writes == Writes::ByMethod => {
            fields.get("method").and_then(Value::as_str).unwrap_or("GET").to_lowercase()
        }
        Some(known) => known.operation.to_owned(),
        None => tool.as_str().rsplit('.').next().unwrap_or_default().to_owned(),
    }
}

/// The target as it follows from the fields.
fn target(tool: Option<&Tool<'_>>, fields: &Map<String, Value>) -> String {
    let Some(tool) = tool else { return "target".to_owned() };
    let parts: Vec<String> = tool
        .target
        .iter()
        .filter_map(|field| fields.get(*field))
        .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        .collect();
    if parts.is_empty() { tool.otherwise.to_owned() } else { parts.join("/") }
}

fn moment(text: &str) -> Result<Millis, String> {
    let stamp: jiff::Timestamp =
        text.parse().map_err(|_| format!("`{text}` is no time such as 2026-11-16T10:00:00Z"))?;
    let millis = u64::try_from(stamp.as_millisecond());
    millis.map(Millis).map_err(|_| format!("`{text}` is before 1970"))
}
