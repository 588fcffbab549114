//! `evidence`: export a bundle, verify one anywhere, and the public keys for that.

use super::Outcome;
use super::follow::escape;
use super::lists::since;
use super::say::{Say, text};
use axum::http::Method;
use clap::Subcommand;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::evidence::{Bundle, Contents, verify, verify_period};
use windlass_server::client::{Client, Failure};
use windlass_server::evidence::report::Report;
use windlass_server::evidence::{archive, keys};

#[derive(Subcommand, Debug)]
pub(super) enum EvidenceVerb {
    /// Export a bundle that proves a run, or all runs of a period
    #[command(
        after_help = "examples:\n  windlass evidence export RUN -o run.evidence.tar\n  windlass evidence export --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z -o january.evidence.tar"
    )]
    Export {
        /// The run: its id, the beginning or end of the id, or `last`
        #[arg(required_unless_present = "from", conflicts_with = "from")]
        run: Option<String>,
        /// All runs created since: a time, or a duration such as 24h
        #[arg(long, value_name = "T", requires = "to")]
        from: Option<String>,
        /// Only runs created before this time
        #[arg(long, value_name = "T", requires = "from")]
        to: Option<String>,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Include the values of variables, outputs, requests and responses, not only their digests
        #[arg(long)]
        values: bool,
    },
    /// Verify a bundle, without server, network or data directory
    #[command(
        after_help = "examples:\n  windlass evidence verify run.evidence.tar --pubkey keys.txt\n  windlass evidence verify run.evidence.tar --pubkey keys.txt --html report.html"
    )]
    Verify {
        /// The bundle
        file: PathBuf,
        /// File of trusted public keys; without it only integrity is checked (exit code 1)
        #[arg(long, value_name = "F")]
        pubkey: Option<PathBuf>,
        /// Write the report to this file as HTML
        #[arg(long, value_name = "F")]
        html: Option<PathBuf>,
    },
    /// Remove a private value of a run from storage; its proof stays valid
    #[command(
        after_help = "examples:\n  windlass evidence redact RUN --step fetch --field output --reason 'a customer asked' --yes\n\nThe run must have ended, and no server may hold the data directory. The value goes from the log, the snapshot and\nthe step's kept output; its digest stays. Who did it and why is recorded. Backups and bundles made before still hold it."
    )]
    Redact(super::redact::RedactArgs),
    /// Print the public keys that verify bundles
    #[command(after_help = "examples:\n  windlass evidence pubkey > keys.txt")]
    Pubkey,
    /// Use a new signing key from now on
    #[command(name = "rotate-key", after_help = "examples:\n  windlass evidence rotate-key")]
    RotateKey,
}

pub(super) async fn ask(client: &Client, verb: &EvidenceVerb, say: &Say) -> Outcome {
    match verb {
        EvidenceVerb::Export { run, from, to, output, values } => {
            let path = match (run, from, to) {
                (Some(run), _, _) => format!("/v1/runs/{}/evidence?values={values}", escape(run)),
                (None, Some(from), Some(to)) => {
                    let (from, to) = (since(from)?, since(to)?);
                    format!("/v1/evidence?from={}&to={}&values={values}", escape(&from), escape(&to))
                }
                (None, _, _) => {
                    return Err(Failure::new(
                        Code::InvalidInput,
                        "name a run, or a period with --from and --to",
                    ));
                }
            };
            export(client, &path, output, say).await
        }
        EvidenceVerb::Pubkey => {
            let known = client.get("/v1/keys").await?;
            say.answer(&known, || text(&known, "text").trim_end().to_owned());
            Ok(0)
        }
        EvidenceVerb::RotateKey => {
            let made = client.post("/v1/keys/rotate", &json!({})).await?;
            say.answer(&made, || format!("{} seals from now on", text(&made, "id")));
            Ok(0)
        }
        // It needs the directory for itself, so it never comes here.
        EvidenceVerb::Redact(_) => Err(Failure::new(Code::Internal, "a redaction asks no server")),
        EvidenceVerb::Verify { file, pubkey, html } => check(file, pubkey.as_deref(), html.as_deref(), say),
    }
}

async fn export(client: &Client, path: &str, output: &Path, say: &Say) -> Outcome {
    let answer = client.send(Method::GET, path, None, &[]).await?;
    if !answer.status.is_success() {
        return Err(answer
            .json()
            .await
            .err()
            .unwrap_or_else(|| Failure::new(Code::Internal, "an empty problem")));
    }
    let limit = usize::try_from(archive::LEN_MAX).unwrap_or(usize::MAX);
    let bytes = axum::body::to_bytes(answer.body, limit)
        .await
        .map_err(|error| Failure::new(Code::Unavailable, format!("the answer broke off: {error}")))?;
    // A bundle that is there is somebody's evidence: it is not written over.
    let mut file = fs::OpenOptions::new().write(true).create_new(true).open(output).map_err(|error| {
        Failure::new(
            Code::InvalidInput,
            format!("{}: {error}; name a file that does not exist yet", output.display()),
        )
    })?;
    std::io::Write::write_all(&mut file, &bytes)?;
    file.sync_all()?;
    let sha256 = Digest::of(&[&bytes]);
    let made = json!({ "file": output.display().to_string(), "bytes": bytes.len(), "sha256": sha256 });
    say.answer(&made, || format!("{} ({} bytes, sha256 {sha256})", output.display(), bytes.len()));
    Ok(0)
}

/// Checks a bundle with what is at hand here.
pub(super) fn check(file: &Path, pubkey: Option<&Path>, html: Option<&Path>, say: &Say) -> Outcome {
    let unreadable = |error: std::io::Error| {
        let code =
            if error.kind() == std::io::ErrorKind::NotFound { Code::NotFound } else { Code::InvalidInput };
        Failure::new(code, format!("{}: {error}", file.display()))
    };
    if fs::metadata(file).map_err(unreadable)?.len() > archive::LEN_MAX {
        return Err(Failure::new(Code::InvalidInput, format!("{} is larger than 1 GiB", file.display())));
    }
    let bundle = match archive::read(&fs::read(file).map_err(unreadable)?) {
        Ok(bundle) => bundle,
        Err(error) => return Ok(rejected(&[error.to_string()], say)),
    };
    let trusted = match pubkey {
        // A file of keys that cannot be used is a word that was typed wrong, and says nothing about the bundle.
        Some(path) => keys::read_public(path)
            .map_err(|error| Failure::new(Code::InvalidInput, format!("--pubkey: {error}")))?,
        None => own_keys(&bundle),
    };
    let is_trusted = pubkey.is_some();
    let report = match bundle.manifest.period {
        None => verify(&bundle, &trusted, &keys::check).map(|verdict| Report::of_run(&verdict, is_trusted)),
        Some(_) => verify_period(&bundle, &trusted, &keys::check)
            .map(|population| Report::of_period(&population, is_trusted)),
    };
    let report = match report {
        Ok(report) => report,
        Err(findings) => {
            let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
            return Ok(rejected(&findings, say));
        }
    };
    if let Some(path) = html {
        fs::write(path, report.html())?;
    }
    say.answer(&report.json, || report.text());
    Ok(u8::from(!is_trusted))
}

/// The keys that the bundle itself brings along: good for seeing that it holds together, and for nothing else.
fn own_keys(bundle: &Bundle) -> std::collections::BTreeMap<windlass_core::id::Name, Digest> {
    let contents = Contents::read(&bundle.parts).unwrap_or_default();
    contents.keys.into_iter().map(|rotation| (rotation.key_id, rotation.public_key)).collect()
}

fn rejected(findings: &[String], say: &Say) -> u8 {
    say.answer(&json!({ "valid": false, "findings": findings }), || {
        let list: String = findings.iter().map(|finding| format!("  {finding}\n")).collect();
        format!("✘ rejected: the bundle does not prove what it says\n{list}")
    });
    1
}
