//! Runbooks: deploying them, what is deployed, and going back.

use super::Outcome;
use super::args::{Args, RunbookVerb};
use super::follow::escape;
use super::run;
use super::say::{self, Say, plain, text};
use serde_json::{Value, json};
use std::path::Path;
use windlass_core::code::Code;
use windlass_core::runbook::Runbook;
use windlass_server::client::{Client, Failure};

/// Makes a runbook the active version of its name, or only shows what that would change.
pub(super) async fn deploy(args: &Args, client: &Client, (file, diff): (&Path, bool), say: &Say) -> Outcome {
    let loaded = run::load(args, file, say)?;
    if diff {
        return show_diff(client, &loaded, say).await;
    }
    let root = std::path::absolute(file)?;
    let root = root.parent().map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
    let path = format!("/v1/runbooks?project_root={}", escape(&root));
    let deployed = client.post(&path, &run::files(&loaded)).await?;
    tell_deployed(&deployed, say);
    Ok(0)
}

/// What would change: the declarations, and the text.
async fn show_diff(client: &Client, loaded: &windlass_runbook::Loaded, say: &Say) -> Outcome {
    let name = loaded.runbook.name.as_str();
    let active = match client.get(&format!("/v1/runbooks/{}", escape(name))).await {
        Ok(active) => Some(active),
        Err(failure) if failure.code == Code::NotFound => None,
        Err(failure) => return Err(failure),
    };
    let old: Option<Runbook> =
        active.as_ref().and_then(|active| serde_json::from_value(active["runbook"].clone()).ok());
    let before = active.as_ref().map_or("", |active| text(active, "source"));
    let mut answer = differences((old.as_ref(), before), (&loaded.runbook, &loaded.source));
    answer["hash"] = json!(loaded.hash.to_string());
    answer["active"] = active.as_ref().map_or(Value::Null, |active| active["hash"].clone());
    say.answer(&answer, || {
        let shown = told(&answer);
        if active.is_none() { format!("`{name}` is not deployed yet\n{shown}") } else { shown }
    });
    Ok(0)
}

/// How one version of a runbook differs from another: what they declare, and their texts.
fn differences((old, before): (Option<&Runbook>, &str), (new, after): (&Runbook, &str)) -> Value {
    let changes = declarations(old, new).into_iter();
    let changes = changes.map(|(sign, what, name)| json!({ "change": sign, "kind": what, "name": name }));
    json!({ "name": new.name, "changes": changes.collect::<Vec<_>>(), "diff": text_diff(before, after) })
}

/// The same, for people.
fn told(answer: &Value) -> String {
    let list = |key: &str| answer[key].as_array().cloned().unwrap_or_default();
    let change = |change: &Value| {
        format!("{} {} `{}`\n", text(change, "change"), text(change, "kind"), text(change, "name"))
    };
    let mut out: String = list("changes").iter().map(change).collect();
    let lines = list("diff");
    let lines: Vec<&str> = lines.iter().filter_map(Value::as_str).collect();
    if lines.is_empty() {
        out.push_str("nothing changes\n");
    }
    out + &say::printable(&lines.join("\n"))
}

/// Says what a runbook's deployment came to.
fn tell_deployed(deployed: &Value, say: &Say) {
    say.answer(deployed, || {
        let replaces = deployed["replaces"].as_str();
        let instead = replaces.map_or(String::new(), |hash| format!(", replaces {}", short(hash)));
        format!("deployed `{}` as {}{instead}", text(deployed, "name"), short(text(deployed, "hash")))
    });
}

/// As much of a hash as lists show.
fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

async fn version(client: &Client, wanted: &str) -> Result<Value, Failure> {
    client.get(&format!("/v1/runbooks/{}", escape(wanted))).await
}

/// A version as it was sent.
fn parsed(version: &Value) -> Result<Runbook, Failure> {
    serde_json::from_value(version["runbook"].clone())
        .map_err(|error| Failure::new(Code::Internal, format!("the runbook cannot be read: {error}")))
}

pub(super) async fn runbooks(client: &Client, verb: Option<&RunbookVerb>, say: &Say) -> Outcome {
    match verb {
        None => list(client, say).await,
        Some(RunbookVerb::Show { runbook }) => show(client, runbook, say).await,
        Some(RunbookVerb::Diff { from, to }) => diff(client, from, to.as_deref(), say).await,
        Some(RunbookVerb::Rollback { name, to }) => {
            let path = format!("/v1/runbooks/{}/rollback", escape(name));
            tell_deployed(&client.post(&path, &json!({ "to": to })).await?, say);
            Ok(0)
        }
        Some(RunbookVerb::Undeploy { name, yes }) => {
            let question = format!("End the schedules, triggers and workers of `{name}`?");
            say::sure(*yes, &question, "nothing was undeployed", "--yes")?;
            let path = format!("/v1/runbooks/{}/undeploy", escape(name));
            let last = client.post(&path, &json!({})).await?;
            say.answer(&last, || {
                let hash = short(text(&last, "hash"));
                format!("`{name}` is undeployed; running runs continue. To deploy it again: windlass runbooks rollback {name} --to {hash}")
            });
            Ok(0)
        }
    }
}

async fn show(client: &Client, wanted: &str, say: &Say) -> Outcome {
    let version = version(client, wanted).await?;
    say.answer(&version, || {
        let mut out = format!("# {} {}\n", plain(&version, "name"), plain(&version, "hash"));
        if version["deployed"] == Value::Bool(true) {
            out.push_str(&format!("# deployed {}", plain(&version, "deployed_at")));
            if version["deployed_by"].is_string() {
                out.push_str(&format!(" by {}", plain(&version, "deployed_by")));
            }
            if let Some(replaces) = version["replaces"].as_str() {
                out.push_str(&format!(", replaces {}", short(replaces)));
            }
            out.push('\n');
        } else {
            out.push_str("# not deployed\n");
        }
        match version["source"].as_str() {
            Some(source) => out + &say::printable(source),
            None => out + "# its text is not in the log any more",
        }
    });
    Ok(0)
}

/// How two versions differ; with one, how it differs from the active one, and the active one from the one before it.
async fn diff(client: &Client, from: &str, to: Option<&str>, say: &Say) -> Outcome {
    let name = from.rsplit_once('@').map(|(name, _)| name);
    let (before, after) = match (to, name) {
        (Some(to), _) => (version(client, from).await?, version(client, to).await?),
        (None, Some(name)) => (version(client, from).await?, version(client, name).await?),
        (None, None) => {
            let after = version(client, from).await?;
            let Some(before) = after["replaces"].as_str() else {
                let text =
                    format!("`{from}` replaced no version; say which: `windlass runbooks diff NAME@HASH`");
                return Err(Failure::new(Code::NotFound, text));
            };
            (version(client, before).await?, after)
        }
    };
    let (old, new) = (parsed(&before)?, parsed(&after)?);
    let mut answer = differences((Some(&old), text(&before, "source")), (&new, text(&after, "source")));
    (answer["from"], answer["to"]) = (before["hash"].clone(), after["hash"].clone());
    say.answer(&answer, || told(&answer));
    Ok(0)
}

/// Which declarations come (`+`), go (`-`) and change (`~`).
fn declarations(old: Option<&Runbook>, new: &Runbook) -> Vec<(&'static str, &'static str, String)> {
    let mut changes = Vec::new();
    macro_rules! compare {
        ($($what:literal $field:ident),+ $(,)?) => {$(
            let before = old.map(|old| old.$field.clone()).unwrap_or_default();
            for (name, def) in &new.$field {
                match before.get(name) {
                    None => changes.push(("+", $what, name.to_string())),
                    Some(was) if was != def => changes.push(("~", $what, name.to_string())),
                    Some(_) => {}
                }
            }
            let gone = before.keys().filter(|name| !new.$field.contains_key(*name));
            changes.extend(gone.map(|name| ("-", $what, name.to_string())));
        )+};
    }
    compare!(
        "pipeline" pipelines, "queue" queues, "worker" workers, "schedule" schedules, "trigger" triggers,
        "lock" locks, "semaphore" semaphores, "agent" agents,
    );
    if old.is_some_and(|old| old.caps != new.caps) {
        changes.push(("~", "caps", new.name.to_string()));
    }
    changes
}

/// The most lines that two texts are compared by; longer ones are shown as a whole.
const DIFF_LINES_MAX: usize = 5_000;

/// The lines that differ between two texts, with a mark each: the longest common part is left out.
fn text_diff(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = (&old[head..], &new[head..]);
    let tail = rest.0.iter().rev().zip(rest.1.iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&rest.0[..rest.0.len() - tail], &rest.1[..rest.1.len() - tail]);
    if a.len().saturating_mul(b.len()) > DIFF_LINES_MAX * DIFF_LINES_MAX {
        let gone = a.iter().map(|line| format!("- {line}"));
        return gone.chain(b.iter().map(|line| format!("+ {line}"))).collect();
    }
    // The length of the longest common part of what begins at each pair of lines.
    let width = b.len() + 1;
    let mut common = vec![0_u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i * width + j] = if a[i] == b[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || i < a.len() && common[(i + 1) * width + j] >= common[i * width + j + 1] {
            lines.push(format!("- {}", a[i]));
            i += 1;
        } else {
            lines.push(format!("+ {}", b[j]));
            j += 1;
        }
    }
    lines
}

async fn list(client: &Client, say: &Say) -> Outcome {
    let page = client.get("/v1/runbooks").await?;
    say.answer(&page, || {
        let mut rows = vec![
            ["NAME", "HASH", "PIPELINES", "DEPLOYED", "BY", "REPLACES", "LOADED"].map(str::to_owned).to_vec(),
        ];
        for book in page["items"].as_array().into_iter().flatten() {
            let names: Vec<&str> =
                book["pipelines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            rows.push(vec![
                plain(book, "name"),
                text(book, "hash").chars().take(12).collect(),
                say::one_line(&names.join(", ")),
                plain(book, "deployed_at"),
                plain(book, "deployed_by"),
                text(book, "replaces").chars().take(12).collect(),
                plain(book, "loaded_at"),
            ]);
        }
        if rows.len() == 1 { "no runbooks\n".to_owned() } else { say.table(&rows) }
    });
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::text_diff;

    #[test]
    fn a_diff_shows_the_lines_that_came_and_went() {
        assert_eq!(text_diff("a\nb\nc", "a\nx\nc"), ["- b", "+ x"]);
        assert_eq!(text_diff("", "a\nb"), ["+ a", "+ b"]);
        assert_eq!(text_diff("a\nb\nc\nd", "b\nd\ne"), ["- a", "- c", "+ e"]);
        assert!(text_diff("same\ntext", "same\ntext").is_empty());
        let long: String = (0..20_000).map(|n| format!("{n}\n")).collect();
        let other: String = (0..20_000).map(|n| format!("{}\n", n + 100_000)).collect();
        assert_eq!(text_diff(&long, &other).len(), 40_000, "too long to compare: shown as a whole");
    }
}
