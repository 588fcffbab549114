//! The report of a verified bundle, for people: as text and as a page without scripts. It is made from what was proved,
//! never from what the bundle says about itself.

mod period;

use crate::cards::text::visible;
use serde_json::{Value, json};
use std::fmt::Write as _;
use windlass_api::time;
use windlass_core::evidence::{Gap, Override, Place, Population, Verdict};
use windlass_core::time::Millis;

/// What a browser may do with the page: show it, and nothing else.
const CSP: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// One section: a heading, and rows of a name and a text.
struct Section {
    title: &'static str,
    rows: Vec<(String, String)>,
    /// What is said where there are no rows.
    none: &'static str,
}

/// A report, in whichever form.
pub struct Report {
    /// For programs.
    pub json: Value,
    title: String,
    headline: String,
    sections: Vec<Section>,
}

impl Report {
    /// The report of one run.
    #[must_use]
    pub fn of_run(verdict: &Verdict, is_trusted: bool) -> Report {
        Report {
            json: json!({ "valid": true, "trusted": is_trusted, "verdict": verdict }),
            title: format!("Evidence of {}", verdict.run),
            headline: headline(verdict, is_trusted),
            sections: sections(verdict),
        }
    }

    /// The report of a period.
    #[must_use]
    pub fn of_period(population: &Population, is_trusted: bool) -> Report {
        Report {
            json: json!({ "valid": true, "trusted": is_trusted, "population": population }),
            title: "Evidence of a period".to_owned(),
            headline: period::headline(population, is_trusted),
            sections: period::sections(population),
        }
    }

    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", plain(&self.headline));
        for section in &self.sections {
            let _ = write!(out, "\n{}\n", section.title);
            if section.rows.is_empty() {
                let _ = writeln!(out, "  {}", section.none);
            }
            for (name, value) in &section.rows {
                let _ = writeln!(out, "  {}: {}", plain(name), plain(value).replace('\n', "\n    "));
            }
        }
        out
    }

    /// As a page that can be printed.
    #[must_use]
    pub fn html(&self) -> String {
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{CSP}\"><title>{title}</title><style>\
             body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}}\
             h1{{font-size:1.4rem}}h2{{font-size:1.05rem;margin-top:2rem;border-bottom:1px solid #d0d7de}}\
             table{{border-collapse:collapse;width:100%}}td{{padding:.25rem .5rem;vertical-align:top;border-bottom:1px solid #eaeef2}}\
             td:first-child{{width:14rem;color:#57606a;word-break:break-word}}pre{{margin:0;white-space:pre-wrap;word-break:break-word;font:13px/1.45 ui-monospace,monospace}}\
             .none{{color:#57606a}}@media print{{body{{margin:0}}h2{{break-after:avoid}}}}</style></head><body>\
             <h1>{headline}</h1>",
            title = escape(&self.title),
            headline = escape(&self.headline),
        );
        for section in &self.sections {
            let _ = write!(out, "<h2>{}</h2>", escape(section.title));
            if section.rows.is_empty() {
                let _ = write!(out, "<p class=\"none\">{}</p>", escape(section.none));
                continue;
            }
            out.push_str("<table>");
            for (name, value) in &section.rows {
                let _ =
                    write!(out, "<tr><td>{}</td><td><pre>{}</pre></td></tr>", escape(name), escape(value));
            }
            out.push_str("</table>");
        }
        out.push_str("</body></html>\n");
        out
    }
}

/// Text in which everything can be seen, line by line: nothing in it moves the cursor, or what stands beside it.
fn plain(text: &str) -> String {
    text.lines().map(visible).collect::<Vec<_>>().join("\n")
}

/// Text as it may stand in a page.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in plain(text).chars() {
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
    time::text(at)
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
        runbook(verdict),
        policies(verdict),
        approvals(verdict),
        effects(verdict),
        exceptions(verdict),
        secrets(verdict),
        walls(verdict),
        costs(verdict),
        proofs(verdict),
        gaps(verdict),
    ]
}

fn origin(verdict: &Verdict) -> Section {
    let text = |value: Option<String>| value.unwrap_or_else(|| "not known".to_owned());
    let mut rows = vec![
        ("Run".to_owned(), verdict.run.to_string()),
        ("Tenant".to_owned(), text(verdict.tenant.as_ref().map(ToString::to_string))),
        ("Pipeline".to_owned(), text(verdict.pipeline.as_ref().map(ToString::to_string))),
        ("Ended".to_owned(), text(verdict.status.map(|status| status.to_string()))),
        ("Bundle made".to_owned(), when(verdict.made_at)),
    ];
    if let Some(origin) = &verdict.origin {
        let trigger = &origin.trigger;
        rows.push(("Began".to_owned(), at(&origin.place)));
        rows.push(("Namespace".to_owned(), origin.namespace.to_string()));
        rows.push(("Triggered by".to_owned(), format!("{}", trigger.source)));
        let more = [
            ("User", trigger.user.as_ref().map(ToString::to_string)),
            ("Key", trigger.key.as_ref().map(ToString::to_string)),
            ("Event", trigger.event_id.as_ref().map(ToString::to_string)),
            ("Repository", origin.subject.as_ref().and_then(|subject| subject.repo.clone())),
            ("Pull request", origin.subject.as_ref().and_then(|subject| subject.pr.clone())),
            ("Goes on from", origin.lineage.resumed_from.map(|run| run.to_string())),
            ("Called by", origin.parent.map(|run| run.to_string())),
        ];
        rows.extend(more.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    Section { title: "Origin", rows, none: "" }
}

fn runbook(verdict: &Verdict) -> Section {
    let mut rows = Vec::new();
    if let Some(hash) = &verdict.runbook {
        rows.push(("Hash".to_owned(), hash.to_string()));
    }
    if let Some(book) = &verdict.book {
        rows.push(("Name".to_owned(), book.name.to_string()));
        rows.push(("Loaded".to_owned(), at(&book.place)));
        let deployed: Vec<String> = book
            .deployed
            .iter()
            .map(|(by, place)| {
                let by = by.as_ref().map_or_else(String::new, |by| format!("{by}: "));
                format!("{by}{}", at(place))
            })
            .collect();
        let never = "never: the run was started from a file".to_owned();
        rows.push(("Deployed by".to_owned(), if deployed.is_empty() { never } else { deployed.join("\n") }));
        let missing = "its text is not there".to_owned();
        rows.push(("Text".to_owned(), book.text.clone().unwrap_or(missing)));
    }
    Section { title: "Runbook, in full", rows, none: "the runbook is not known" }
}

fn secrets(verdict: &Verdict) -> Section {
    let row = |secret: &windlass_core::evidence::Secret| {
        let version = match secret.version.as_str().parse::<u64>() {
            Ok(number) => format!("version {number}"),
            // Secrets outside the vault have no versions.
            Err(_) => format!("from the {}", secret.version),
        };
        let text = format!("{version}, step {} (epoch {})\n{}", secret.step, secret.epoch, at(&secret.place));
        (secret.name.to_string(), text)
    };
    let rows = verdict.secrets.iter().map(row).collect();
    Section { title: "Secrets, by name and version", rows, none: "none was used" }
}

fn walls(verdict: &Verdict) -> Section {
    let row = |(wall, commands): (&String, &u64)| {
        let means = match wall.as_str() {
            "none" => "as the user of the server or executor, with all that this user reaches",
            "sandbox" => "in the sandbox: the system to read, its directory and a scratch folder to write",
            "not recorded" => "by a version, or an executor, that does not say",
            // tidy: the only other wall names its user.
            _ => "as another user",
        };
        (wall.clone(), format!("{commands} × {means}"))
    };
    let rows = verdict.walls.iter().map(row).collect();
    Section { title: "What commands were kept apart by", rows, none: "no command ended" }
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
        let _ = writeln!(text, "asked {}, until {}", at(&approval.place), when(approval.expires_at));
        let who = match &approval.approvers[..] {
            [] => "whoever may approve".to_owned(),
            named => named.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let two = if approval.two_person { ", two humans besides the requester" } else { "" };
        let _ = writeln!(text, "tier {}, {} of: {who}{two}", approval.tier, approval.count);
        for reason in &approval.reasons {
            let _ = writeln!(text, "because: {reason}");
        }
        if let Some(message) = &approval.message {
            let _ = writeln!(text, "said: {message}");
        }
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
            if let Some(reason) = &vote.reason {
                let _ = writeln!(text, "  because: {reason}");
            }
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
                let reason =
                    resolved.reason.as_ref().map_or_else(String::new, |why| format!(" because {why}"));
                format!("{} by {who}, {}{reason}", resolved.resolution, at(&resolved.place))
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
    let overrides = found.overrides.iter().map(overridden).collect();
    let refused = found
        .refused
        .iter()
        .map(|refused| format!("{} by {}, {}", refused.refusal, refused.by, at(&refused.place)))
        .collect();
    let rows = vec![
        ("Overrides".to_owned(), or_none(overrides)),
        ("Refused decisions".to_owned(), or_none(refused)),
        ("Approved by who asked".to_owned(), list(&found.self_approvals)),
        ("Effects without an allow".to_owned(), list(&found.undecided)),
        ("Outcomes nobody knew".to_owned(), or_none(unknown)),
        ("Values that are not there".to_owned(), or_none(redactions)),
    ];
    Section { title: "Exceptions", rows, none: "" }
}

fn overridden(found: &Override) -> String {
    match found {
        Override::Variables { place } => format!("variables were changed, {}", at(place)),
        Override::Settled { step, resolution, place } => {
            format!("step {step} was settled as {resolution}, {}", at(place))
        }
        Override::Guard { step, guard, place } => {
            format!("step {step} went on although guard {guard} did not hold, {}", at(place))
        }
        Override::Broken { step, hold, place } => {
            let whose = step.as_ref().map_or_else(|| "the run".to_owned(), |step| format!("step {step}"));
            format!("the hold of {whose} on {hold} was broken, {}", at(place))
        }
    }
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
        Gap::NoRunbook => ("Runbook".to_owned(), "its record is not in the bundle".to_owned()),
    };
    let mut rows: Vec<(String, String)> = verdict.not_proved.iter().map(row).collect();
    rows.push(("Never proved".to_owned(), "that the other side did what its answer said; what happened after the last seal; that nothing was done beside windlass; that the clock of the server was right".to_owned()));
    Section { title: "What is not proved", rows, none: "" }
}
