//! `evidence`: export a bundle, verify one anywhere, and the public keys for that.

use super::Outcome;
use super::follow::escape;
use super::say::{Say, text};
use crate::client::{Client, Failure};
use crate::evidence::{archive, keys, report};
use axum::http::Method;
use clap::Subcommand;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use windlass_core::code::Code;
use windlass_core::digest::Digest;
use windlass_core::evidence::{Bundle, Contents, verify};

#[derive(Subcommand, Debug)]
pub(super) enum EvidenceVerb {
    /// Write a bundle that proves a run
    #[command(after_help = "examples:\n  windlass evidence export RUN -o run.evidence.tar")]
    Export {
        /// The run, or the beginning of its id
        run: String,
        /// Where to
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// With variables, outputs, requests and responses, and not their digests alone
        #[arg(long)]
        values: bool,
    },
    /// Check a bundle, without server, network or data directory
    #[command(
        after_help = "examples:\n  windlass evidence verify run.evidence.tar --pubkey keys.txt\n  windlass evidence verify run.evidence.tar --pubkey keys.txt --html report.html"
    )]
    Verify {
        /// The bundle
        file: PathBuf,
        /// The public keys that are trusted; without, only integrity is checked (exit code 1)
        #[arg(long, value_name = "F")]
        pubkey: Option<PathBuf>,
        /// Write the report as a page
        #[arg(long, value_name = "F")]
        html: Option<PathBuf>,
    },
    /// Print the public keys that bundles are checked with
    #[command(after_help = "examples:\n  windlass evidence pubkey > keys.txt")]
    Pubkey,
    /// Seal with a new key from now on
    #[command(name = "rotate-key", after_help = "examples:\n  windlass evidence rotate-key")]
    RotateKey,
}

pub(super) async fn ask(client: &Client, verb: &EvidenceVerb, say: &Say) -> Outcome {
    match verb {
        EvidenceVerb::Export { run, output, values } => export(client, run, output, *values, say).await,
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
        EvidenceVerb::Verify { file, pubkey, html } => check(file, pubkey.as_deref(), html.as_deref(), say),
    }
}

async fn export(client: &Client, run: &str, output: &Path, values: bool, say: &Say) -> Outcome {
    let path = format!("/v1/runs/{}/evidence?values={values}", escape(run));
    let answer = client.send(Method::GET, &path, None, &[]).await?;
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
            format!("{}: {error}; name a file that is not there yet", output.display()),
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
    let failed = |error: crate::evidence::Error| Failure::new(error.code(), error.to_string());
    if fs::metadata(file).map_err(unreadable)?.len() > archive::LEN_MAX {
        return Err(Failure::new(Code::InvalidInput, format!("{} is larger than 1 GiB", file.display())));
    }
    let bundle = match archive::read(&fs::read(file).map_err(unreadable)?) {
        Ok(bundle) => bundle,
        Err(error) => return Ok(rejected(&[error.to_string()], say)),
    };
    let trusted = match pubkey {
        Some(path) => keys::read_public(path).map_err(failed)?,
        None => own_keys(&bundle),
    };
    let verdict = match verify(&bundle, &trusted, &keys::check) {
        Ok(verdict) => verdict,
        Err(findings) => {
            let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
            return Ok(rejected(&findings, say));
        }
    };
    if let Some(path) = html {
        fs::write(path, report::html(&verdict, pubkey.is_some()))?;
    }
    say.answer(&report::json(&verdict, pubkey.is_some()), || report::text(&verdict, pubkey.is_some()));
    Ok(u8::from(pubkey.is_none()))
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
