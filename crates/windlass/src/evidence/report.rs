//! The report of a verified bundle, for people: as text and as a page without scripts. It is made from what was proved,
//! never from what the bundle says about itself.

use crate::shape;
use serde_json::{Value, json};
use std::fmt::Write as _;
use windlass_core::evidence::{Gap, Place, Verdict};
use windlass_core::time::Millis;

/// One section: a heading, and rows of a name and a text.
struct Section {
    title: &'static str,
    rows: Vec<(String, String)>,
    /// What is said where there are no rows.
    none: &'static str,
}

/// The verdict as JSON.
#[must_use]
pub fn json(verdict: &Verdict, trusted: bool) -> Value {
    json!({ "valid": true, "trusted": trusted, "verdict": verdict })
}

/// The report as text.
#[must_use]
pub fn text(verdict: &Verdict, trusted: bool) -> String {
    let mut out = format!("{}\n", headline(verdict, trusted));
    for section in sections(verdict) {
        let _ = write!(out, "\n{}\n", section.title);
        if section.rows.is_empty() {
            let _ = writeln!(out, "  {}", section.none);
        }
        for (name, value) in section.rows {
            let _ = writeln!(out, "  {name}: {}", value.replace('\n', "\n    "));
        }
    }
    out
}

/// The report as a page that can be printed.
#[must_use]
pub fn html(verdict: &Verdict, trusted: bool) -> String {
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Evidence of {run}</title><style>\
         body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}}\
         h1{{font-size:1.4rem}}h2{{font-size:1.05rem;margin-top:2rem;border-bottom:1px solid #d0d7de}}\
         table{{border-collapse:collapse;width:100%}}td{{padding:.25rem .5rem;vertical-align:top;border-bottom:1px solid #eaeef2}}\
         td:first-child{{width:14rem;color:#57606a}}pre{{margin:0;white-space:pre-wrap;word-break:break-word;font:13px/1.45 ui-monospace,monospace}}\
         .none{{color:#57606a}}@media print{{body{{margin:0}}h2{{break-after:avoid}}}}</style></head><body>\
         <h1>{headline}</h1>",
        run = escape(&verdict.run.to_string()),
        headline = escape(&headline(verdict, trusted)),
    );
    for section in sections(verdict) {
        let _ = write!(out, "<h2>{}</h2>", escape(section.title));
        if section.rows.is_empty() {
            let _ = write!(out, "<p class=\"none\">{}</p>", escape(section.none));
            continue;
        }
        out.push_str("<table>");
        for (name, value) in section.rows {
            let _ = write!(out, "<tr><td>{}</td><td><pre>{}</pre></td></tr>", escape(&name), escape(&value));
        }
        out.push_str("</table>");
    }
    out.push_str("</body></html>\n");
    out
}

/// Text as it may stand in a page.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            character => out.push(character),
        }
    }
    out
}

fn headline(verdict: &Verdict, trusted: bool) -> String {
    let status = verdict.status.map_or("not ended".to_owned(), |status| status.to_string());
    if trusted {
        format!("✔ {} ({status}): every byte is covered and the signatures hold", verdict.run)
    } else {
        format!(
            "integrity only: {} ({status}) holds together, but nobody vouches for the key that signed it",
            verdict.run
        )
    }
}

fn when(at: Millis) -> String {
    shape::time(at)
}

fn at(place: &Place) -> String {
    let by = place.by.id.as_ref().map_or_else(|| place.by.initiator.to_string(), ToString::to_string);
    format!("{} by {by} (record {} of {})", when(place.at), place.ver, place.stream)
}

fn pretty(value: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

fn sections(verdict: &Verdict) -> Vec<Section> {
    vec![
        origin(verdict),
        policies(verdict),
        approvals(verdict),
        effects(verdict),
        exceptions(verdict),
        costs(verdict),
        proofs(verdict),
        gaps(verdict),
    ]
}

fn origin(verdict: &Verdict) -> Section {
    let text = |value: Option<String>| value.unwrap_or_else(|| "not known".to_owned());
    let rows = vec![
        ("Run".to_owned(), verdict.run.to_string()),
        ("Tenant".to_owned(), text(verdict.tenant.as_ref().map(ToString::to_string))),
        ("Pipeline".to_owned(), text(verdict.pipeline.as_ref().map(ToString::to_string))),
        ("Runbook".to_owned(), text(verdict.runbook.as_ref().map(ToString::to_string))),
        ("Ended".to_owned(), text(verdict.status.map(|status| status.to_string()))),
        ("Bundle made".to_owned(), when(verdict.made_at)),
    ];
    Section { title: "Origin", rows, none: "" }
}

fn policies(verdict: &Verdict) -> Section {
    let row = |policy: &windlass_core::evidence::Policy| {
        let text = match (&policy.text, policy.builtin) {
            (Some(text), _) => text.clone(),
            (None, true) => "the built-in policy".to_owned(),
            (None, false) => "its text is not there".to_owned(),
        };
        (format!("Version {}", policy.version), format!("loaded {}\n{text}", at(&policy.place)))
    };
    let rows = verdict.policies.iter().map(row).collect();
    Section { title: "Policies in force", rows, none: "no policy was loaded: the built-in one held" }
}

fn approvals(verdict: &Verdict) -> Section {
    let row = |approval: &windlass_core::evidence::Approval| {
        let mut text = format!(
            "{} for step {}, asked for by {}\n",
            approval.status, approval.step, approval.requested_by
        );
        let _ = writeln!(text, "asked {}", at(&approval.place));
        match &approval.action {
            Some(action) => {
                let _ = writeln!(text, "shown exactly:\n{}", pretty(action));
            }
            None => text.push_str("what was shown was redacted\n"),
        }
        let _ = writeln!(text, "hash {}", approval.action_hash);
        for card in &approval.cards {
            let _ = writeln!(
                text,
                "card {} ({} in {}) {}",
                card.hash,
                card.showing,
                card.channel,
                at(&card.place)
            );
            match &card.text {
                Some(shown) => text.extend(shown.lines().map(|line| format!("  | {line}\n"))),
                None => text.push_str("  its text was redacted\n"),
            }
        }
        for vote in &approval.votes {
            let own = if vote.own_request { ", who asked for it" } else { "" };
            let (verdict, by, channel, place) = (vote.verdict, &vote.by, vote.channel, at(&vote.place));
            let card = vote.card.map(|card| format!(" on card {card}")).unwrap_or_default();
            let _ = writeln!(text, "{verdict} by {by}{own}, {channel} {place}{card}");
        }
        (approval.id.to_string(), text.trim_end().to_owned())
    };
    Section { title: "Approvals, as shown", rows: verdict.approvals.iter().map(row).collect(), none: "none" }
}

fn effects(verdict: &Verdict) -> Section {
    let row = |effect: &windlass_core::evidence::Effected| {
        let mut text = format!(
            "{} {} of step {}\nkey {} (generation {})\n",
            effect.tool, effect.target, effect.step, effect.key, effect.generation
        );
        match &effect.decision {
            Some(decided) => {
                let _ = writeln!(
                    text,
                    "decided: {} {} {}",
                    decided.verdict,
                    decided.reasons.join("; "),
                    at(&decided.place)
                );
            }
            None => text.push_str("decided: no decision is there\n"),
        }
        if let Some(approval) = &effect.approval {
            let _ = writeln!(text, "approved: {approval}");
        }
        let _ = writeln!(text, "intended: {}", at(&effect.intent));
        match (&effect.receipt, &effect.settled) {
            (Some(receipt), _) => {
                let late = if receipt.late { ", late" } else { "" };
                let _ = writeln!(text, "receipt: {}{late} {}", receipt.status, at(&receipt.place));
            }
            (None, Some((settled, place))) => {
                let _ = writeln!(text, "settled without a receipt: {settled} {}", at(place));
            }
            (None, None) => text.push_str("receipt: none\n"),
        }
        if let Some(run) = &effect.reversed_by {
            let _ = writeln!(text, "taken back by {run}");
        }
        (effect.operation.to_string(), text.trim_end().to_owned())
    };
    Section { title: "Effects on the outside", rows: verdict.effects.iter().map(row).collect(), none: "none" }
}

fn exceptions(verdict: &Verdict) -> Section {
    let found = &verdict.exceptions;
    let list = |places: &[Place]| match places {
        [] => "none".to_owned(),
        places => places.iter().map(at).collect::<Vec<_>>().join("\n"),
    };
    let unknown: Vec<String> = found
        .unknown
        .iter()
        .map(|unknown| {
            let settled = unknown.resolved.as_ref().map_or("not settled".to_owned(), |resolved| {
                let who = if resolved.probed { "a probe" } else { "a human" };
                format!("{} by {who}, {}", resolved.resolution, at(&resolved.place))
            });
            format!("step {}: {} — {settled}", unknown.step, at(&unknown.place))
        })
        .collect();
    let redactions: Vec<String> = found
        .redactions
        .iter()
        .map(|gone| format!("{} of record {} of {}", gone.field, gone.ver, gone.stream))
        .collect();
    let or_none = |rows: Vec<String>| if rows.is_empty() { "none".to_owned() } else { rows.join("\n") };
    let rows = vec![
        ("Approved by who asked".to_owned(), list(&found.self_approvals)),
        ("Effects without an allow".to_owned(), list(&found.undecided)),
        ("Outcomes nobody knew".to_owned(), or_none(unknown)),
        ("Values that are not there".to_owned(), or_none(redactions)),
    ];
    Section { title: "Exceptions", rows, none: "" }
}

fn costs(verdict: &Verdict) -> Section {
    let row = |(name, cost): (&String, &windlass_core::evidence::Cost)| {
        let usd = cost.usd_micros as f64 / 1e6;
        (name.clone(), format!("{usd:.4} USD, {} tokens in, {} out", cost.tokens_input, cost.tokens_output))
    };
    Section { title: "Costs", rows: verdict.costs.iter().map(row).collect(), none: "none recorded" }
}

fn proofs(verdict: &Verdict) -> Section {
    let row = |proved: &windlass_core::evidence::Proved| {
        let text = format!(
            "records {} to {}, under seal {} through {}",
            proved.from, proved.through, proved.seal, proved.sealed_through
        );
        (proved.stream.to_string(), text)
    };
    Section { title: "What is proved", rows: verdict.streams.iter().map(row).collect(), none: "nothing" }
}

fn gaps(verdict: &Verdict) -> Section {
    let row = |gap: &Gap| match gap {
        Gap::NotEnded => {
            ("Not ended".to_owned(), "the run had not ended when the bundle was made".to_owned())
        }
        Gap::AfterSeal { stream, from } => (
            stream.to_string(),
            format!(
                "records from {from} on are after the last seal: whoever holds the key could have replaced them"
            ),
        ),
        Gap::Excerpt { stream, from } => {
            (stream.to_string(), format!("records before {from} are not in the bundle"))
        }
        Gap::NoIntent { step, epoch } => {
            (format!("Step {step}"), format!("the intent of attempt {epoch} is not there"))
        }
        Gap::NoPolicyText { version } => ("Policy".to_owned(), format!("the text of {version} is not there")),
        Gap::Artifacts => (
            "Artifacts".to_owned(),
            "they are listed by the exporter; no record covers their hashes".to_owned(),
        ),
    };
    let mut rows: Vec<(String, String)> = verdict.not_proved.iter().map(row).collect();
    rows.push(("Never proved".to_owned(), "that the other side did what its answer said; what happened after the last seal; that nothing was done beside windlass".to_owned()));
    Section { title: "What is not proved", rows, none: "" }
}
