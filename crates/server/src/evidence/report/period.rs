//! The report of a period: its population, what stands out in it, and why nothing was left out.

use super::{Section, when};
use windlass_core::evidence::{Open, Population, Verdict};

pub(super) fn headline(population: &Population, is_trusted: bool) -> String {
    let (count, period) = (population.runs.len(), &population.period);
    let what = format!("{count} runs began from {} to {}", when(period.from), when(period.to));
    match (is_trusted, population.not_proved.is_empty()) {
        (true, true) => {
            format!("✔ {what}: every byte is covered, the signatures hold, and no run is left out")
        }
        (true, false) => {
            format!("✔ {what}: every byte is covered and the signatures hold; see what is left open")
        }
        (false, _) => {
            format!(
                "integrity only: {what}; it holds together, but nobody vouches for the key that signed it"
            )
        }
    }
}

pub(super) fn sections(population: &Population) -> Vec<Section> {
    vec![runs(population), exceptions(population), effects(population), proved(population), open(population)]
}

fn runs(population: &Population) -> Section {
    let row = |verdict: &Verdict| {
        let text = |value: Option<String>| value.unwrap_or_else(|| "not known".to_owned());
        let began = text(verdict.origin.as_ref().map(|origin| super::at(&origin.place)));
        let status = verdict.status.map_or("not ended".to_owned(), |status| status.to_string());
        let pipeline = text(verdict.pipeline.as_ref().map(ToString::to_string));
        let (effects, approvals) = (verdict.effects.len(), verdict.approvals.len());
        let said = format!("{pipeline}, {status}, {effects} effects, {approvals} approvals\nbegan {began}");
        (verdict.run.to_string(), said)
    };
    Section { title: "All runs of the period", rows: population.runs.iter().map(row).collect(), none: "none" }
}

/// The exceptions of each run that has any, and that the others have none.
fn exceptions(population: &Population) -> Section {
    let told = |verdict: &Verdict| {
        let rows = super::exceptions(verdict).rows.into_iter();
        let rows: Vec<String> = rows
            // What the exporter left out stands in every run; it is no exception of one.
            .filter(|(name, text)| text != "none" && name != "Values that are not there")
            .map(|(name, text)| format!("{name}: {text}"))
            .collect();
        (!rows.is_empty()).then(|| (verdict.run.to_string(), rows.join("\n")))
    };
    let rows = population.runs.iter().filter_map(told).collect();
    let none = "none: no overrides, no self-approvals, no refused decisions, no unknown outcomes, no effects without an allow";
    Section { title: "Exceptions", rows, none }
}

fn effects(population: &Population) -> Section {
    let of_run = |verdict: &Verdict| {
        let run = verdict.run;
        super::effects(verdict).rows.into_iter().map(move |(name, text)| (format!("{run} {name}"), text))
    };
    let rows = population.runs.iter().flat_map(of_run).collect();
    Section { title: "Effects on the outside", rows, none: "none" }
}

fn proved(population: &Population) -> Section {
    let (first, last) = population.seals;
    let rows = vec![
        (
            "Seals".to_owned(),
            format!("{first} to {last}, each bound to the one before, each with everything that it covers"),
        ),
        (
            "Runs and effects".to_owned(),
            "each one that changed under these seals is in the bundle, from its first record on".to_owned(),
        ),
        ("Runs that began before or after".to_owned(), population.others.len().to_string()),
    ];
    Section { title: "What is proved", rows, none: "" }
}

fn open(population: &Population) -> Section {
    let row = |open: &Open| match open {
        Open::After { sealed_at } => (
            "The end of the period".to_owned(),
            format!("the last seal is of {}; what was recorded after it is not covered", when(*sealed_at)),
        ),
        Open::NotOver => {
            ("The end of the period".to_owned(), "the bundle was made before the period was over".to_owned())
        }
    };
    let mut rows: Vec<(String, String)> = population.not_proved.iter().map(row).collect();
    rows.push((
        "Never proved".to_owned(),
        "that the clock of the server was right, so that a run began when it says; that the other side did what its answer said; that nothing was done beside windlass; that whoever holds the key did not write two histories".to_owned(),
    ));
    Section { title: "What is not proved", rows, none: "" }
}
