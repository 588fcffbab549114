//! Cards: an approval as people see it, made from records only.
//!
//! ```text
//!  recorded facts ─▶ Facts ─▶ Card ─┬─▶ text    the command line, the API, the evidence
//!                                   └─▶ blocks  Slack
//! ```
//!
//! The card shows the canonical action: what is hashed, approved and executed. A description by an agent or a runbook is
//! shown too, quoted, and never instead. Both forms have the same rows. All data is made harmless: nothing in it can format,
//! mention, hide or reorder the text around it.

pub mod blocks;
pub mod diff;
pub mod sender;
pub mod slack;
pub mod text;

#[cfg(test)]
mod tests;

use crate::policy::builtin;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use text::visible;
use windlass_api::time;
use windlass_core::approval::{Approval, Channel, Showed, Showing, Tier};
use windlass_core::budget::{Amount, Limits};
use windlass_core::id::{ApprovalId, Name};
use windlass_core::policy::Risk;
use windlass_core::run::Run;
use windlass_core::runbook::{Kind, Runbook};
use windlass_core::step::Status as StepStatus;
use windlass_core::stream::StreamId;
use windlass_core::turn::state::{Body, State};

/// The most bytes of the whole text. An action's own bound keeps it far below.
const TEXT_LEN_MAX: usize = windlass_core::approval::CARD_LEN_MAX / 2;
/// How wide the column of labels is.
const LABEL_WIDTH: usize = 10;
/// How many digits of the hash are its short form.
const SHORT: usize = 12;

/// Everything that a card is made of, taken from the state at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The approval, with its action.
    pub approval: Approval,
    pub tenant: Name,
    /// The pipeline of its run.
    pub pipeline: Name,
    /// The rules that asked for it, where policy did.
    pub rules: Vec<String>,
    /// What the run has spent.
    pub spent: Amount,
    /// What it may spend.
    pub limits: Limits,
    /// What the run read of the action's target before; empty where it did not look.
    pub before: BTreeMap<String, Value>,
}

impl Facts {
    /// What the state says about an approval; none where it is gone.
    #[must_use]
    pub fn gather(state: &State, run: windlass_core::id::RunId, approval: ApprovalId) -> Option<Facts> {
        let run = state.run(run)?;
        let runbook = match state.stream(&StreamId::Runbook(run.born.home.runbook)).map(|found| &found.body) {
            Some(Body::Runbook(runbook)) => Some(&**runbook),
            Some(_) | None => None,
        };
        Facts::of(run, runbook, approval)
    }

    /// The same from a run and its runbook.
    #[must_use]
    pub fn of(run: &Run, runbook: Option<&Runbook>, approval: ApprovalId) -> Option<Facts> {
        let approval = run.rare().approvals.get(&approval)?;
        let decision = run.policy().steps.get(&approval.step).map(|(_, decision)| decision);
        let asked = decision.filter(|decision| decision.policy_version == approval.policy_version);
        let budget = run.budget();
        Some(Facts {
            before: runbook.map(|runbook| before(run, runbook, approval)).unwrap_or_default(),
            approval: approval.clone(),
            tenant: run.born.home.tenant.clone(),
            pipeline: run.born.home.pipeline.clone(),
            rules: asked.map(|decision| decision.rules.clone()).unwrap_or_default(),
            spent: budget.spent,
            limits: budget.limits,
        })
    }
}

/// What the last successful read of the same target in this run gave, by the paths of its values.
fn before(run: &Run, runbook: &Runbook, approval: &Approval) -> BTreeMap<String, Value> {
    let found = || {
        let action = approval.action.as_ref()?;
        let pipeline = runbook.pipelines.get(&run.born.home.pipeline)?;
        run.steps.iter().rev().find_map(|step| {
            let reads = matches!(pipeline.node(step.node)?.kind, Kind::Tool { writes: false, .. });
            let input = step.input.as_ref().filter(|_| reads && step.status == StepStatus::Succeeded)?;
            let same = input.get().get("target").and_then(Value::as_str) == Some(action.target.as_str());
            step.output.as_ref().filter(|_| same).map(windlass_core::packed::Packed::get)
        })
    };
    found().map(|output| diff::record(&output)).unwrap_or_default()
}

/// A row of a card: a label, and lines of harmless text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is about.
    pub label: &'static str,
    /// What it says.
    pub lines: Vec<String>,
}

/// The parts of a card, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What is asked.
    What,
    /// What would change.
    Changes,
    /// Why it is asked.
    Why,
    /// Where it comes from, and until when.
    Details,
}

/// An approval as it is shown, before it is put into one of its forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Which approval.
    pub id: ApprovalId,
    /// How much is at stake.
    pub tier: Tier,
    /// In one line.
    pub summary: String,
    /// The rows by their parts.
    pub rows: Vec<(Part, Row)>,
}

impl Card {
    /// The card of an approval.
    #[must_use]
    pub fn new(facts: &Facts) -> Card {
        let approval = &facts.approval;
        let mut rows = Vec::new();
        let mut row = |part, label, lines: Vec<String>| {
            if !lines.is_empty() {
                rows.push((part, Row { label, lines }));
            }
        };
        let changes = match &approval.action {
            Some(action) => diff::lines(&action.fields, &facts.before),
            None => vec!["the action was redacted".to_owned()],
        };
        let summary = summary(facts, &changes);
        row(Part::What, "summary", vec![summary.clone()]);
        if let Some(action) = &approval.action {
            let tool = format!("{} ({})", visible(action.tool.as_str()), visible(action.operation.as_str()));
            row(Part::What, "tool", vec![tool]);
            row(Part::What, "target", vec![visible(action.target.as_str())]);
        }
        row(Part::What, "risk", vec![risk(facts)]);
        row(Part::Changes, "changes", changes);
        row(Part::Why, "because", approval.reasons.iter().flat_map(|reason| quoted(reason)).collect());
        row(Part::Why, "rules", facts.rules.iter().map(|rule| visible(rule)).collect());
        row(Part::Why, "says", approval.message.iter().flat_map(|message| quoted(message)).collect());
        row(Part::Details, "needs", vec![needs(approval)]);
        row(Part::Details, "cost", vec![cost(&facts.spent, &facts.limits)]);
        let by = visible(approval.requested_by.as_str());
        row(Part::Details, "asked", vec![format!("by {by} at {}", time::text(approval.requested_at))]);
        if !approval.changed_by.is_empty() {
            let names: Vec<String> = approval.changed_by.iter().map(|name| visible(name.as_str())).collect();
            row(Part::Details, "also", vec![format!("asked by {}", names.join(", "))]);
        }
        row(Part::Details, "run", vec![format!("{} ({})", approval.run, visible(facts.pipeline.as_str()))]);
        row(Part::Details, "step", vec![step(approval)]);
        row(Part::Details, "expires", vec![time::text(approval.expires_at)]);
        let policy = match approval.policy_version {
            builtin::VERSION => format!("built-in ({})", builtin::RULE),
            version => version.to_string(),
        };
        row(Part::Details, "policy", vec![policy]);
        let hash = approval.action_hash.to_string();
        let short = hash.get(..SHORT).unwrap_or(&hash).to_owned();
        row(Part::Details, "hash", vec![short, hash]);
        Card { id: approval.id, tier: approval.tier, summary, rows }
    }

    /// The text as it is put on record.
    #[must_use]
    pub fn showed(&self, approval: &Approval) -> Showed {
        Showed {
            channel: Channel::Cli,
            showing: Showing::Requested,
            to: None,
            place: None,
            status: approval.status,
            decisions: u32::try_from(approval.decisions.len()).unwrap_or(u32::MAX),
            reminders: approval.reminders,
            card: self.text(),
        }
    }

    /// The rows of a part, in the layout of the text.
    #[must_use]
    pub fn part(&self, part: Part) -> Vec<String> {
        self.rows.iter().filter(|(of, _)| *of == part).flat_map(|(_, row)| laid_out(row)).collect()
    }

    /// The text that the command line and the API show. What is too long even for them is cut, and says so.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("approval {}\n", self.id);
        let mut cut = 0_usize;
        for line in self.rows.iter().flat_map(|(_, row)| laid_out(row)) {
            if cut > 0 || out.len() + line.len() > TEXT_LEN_MAX {
                cut += 1;
                continue;
            }
            out.push_str(&line);
            out.push('\n');
        }
        if cut > 0 {
            let _ = writeln!(out, "{cut} more lines are not shown here: the whole action is in `--json`");
        }
        out
    }
}

/// A row as lines: the label before the first, and room for it before the others.
fn laid_out(row: &Row) -> Vec<String> {
    let line = |(n, line): (usize, &String)| {
        let label = if n == 0 { row.label } else { "" };
        format!("{label:<LABEL_WIDTH$}{line}").trim_end().to_owned()
    };
    row.lines.iter().enumerate().map(line).collect()
}

/// A text by others, line by line. The bar marks it as quoted, so that no line of it passes for one of ours.
fn quoted(text: &str) -> Vec<String> {
    text.lines().map(|line| format!("| {}", visible(line))).collect()
}

fn summary(facts: &Facts, changes: &[String]) -> String {
    let Some(action) = &facts.approval.action else { return "the action was redacted".to_owned() };
    let (tool, target) = (visible(action.tool.as_str()), visible(action.target.as_str()));
    let values = changes.iter().filter(|line| !line.starts_with(diff::QUOTES)).count();
    let known = if facts.before.is_empty() { "" } else { ", compared with what the run read before" };
    match (action.operation.as_str(), values) {
        ("approve", _) => format!("step {target} asks to go on"),
        (_, 1) => format!("{tool} on {target}, with 1 value{known}"),
        (_, n) => format!("{tool} on {target}, with {n} values{known}"),
    }
}

fn risk(facts: &Facts) -> String {
    let risk = facts.approval.action.as_ref().map_or(Risk::Low, |action| action.risk);
    format!("{risk}, tier {}", facts.approval.tier)
}

fn step(approval: &Approval) -> String {
    let own = visible(approval.step.as_str());
    match &approval.by_step {
        Some(by) => format!("{own}, on behalf of step {}", visible(by.as_str())),
        None => own,
    }
}

fn needs(approval: &Approval) -> String {
    let humans = match approval.needed() {
        1 => "1 human".to_owned(),
        n => format!("{n} humans"),
    };
    let among: Vec<String> = approval.approvers.iter().map(|name| visible(name.as_str())).collect();
    let among = if among.is_empty() { String::new() } else { format!(" among {}", among.join(", ")) };
    let own = match (approval.two_person, approval.self_approval) {
        (false, true) => "",
        (true, _) | (false, false) => ", not the one who asked",
    };
    format!("{humans}{among}{own}")
}

fn cost(spent: &Amount, limits: &Limits) -> String {
    let of = |limit: Option<String>| limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    format!(
        "{}{}, {} tokens{} so far",
        dollars(spent.usd_micros),
        of(limits.usd_micros.map(dollars)),
        spent.tokens,
        of(limits.tokens.map(|tokens| tokens.to_string())),
    )
}

fn dollars(micros: u64) -> String {
    format!("${}.{:02}", micros / 1_000_000, micros % 1_000_000 / 10_000)
}
