//! Evidence: what proves a run to somebody who does not trust the server, as data.
//!
//! ```text
//!  manifest (signed) ──covers──▶ parts: streams.json ──▶ records/0001.jsonl …   the lines as they were written
//!                                       inclusions.json  each stream's head under a seal
//!                                       seals.json       signed roots            keys.json  how keys took over
//!                                       leaves.json      all that the seals of a period cover
//!                                       artifacts.json   hashes; values stand in artifacts/… where they were wanted
//! ```
//!
//! Invariants: every byte of a bundle is covered, the parts by the manifest and the manifest by a signature;
//! what the server says about a run is never taken from a summary, but read from lines that a seal covers.
//! [`verify`](verify::verify) checks all of it and returns the facts that a report is made from. Policy text and
//! decisions, approvals as they were shown, receipts and costs are records of the streams, so they need no part
//! of their own; inputs and outputs are there as digests, and as values where the exporter kept them. The archive
//! around it, the keys and the signing are the shell's.

use crate::audit::{Head, InclusionProof, Leaf, Rotation, Seal};
use crate::canonical;
use crate::digest::{Digest, Signature};
use crate::id::{Name, RunId, StepId};
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

mod period;
mod reading;
mod verdict;
mod verify;

pub use period::{Open, Population, verify_period};
pub use verdict::{
    Approval, Book, Card, Cost, Decided, Effected, Exceptions, Gap, Origin, Override, Place, Policy, Proved,
    Received, Redaction, Refused, Resolved, Secret, Unknown, Verdict, Vote,
};
pub use verify::{CheckKey, FINDINGS_MAX, Finding, verify};

/// The form of a bundle that this version writes and reads.
pub const SCHEMA: &str = "windlass.evidence/1";
/// The most streams a bundle may have.
pub const STREAMS_MAX: usize = 10_000;

const DOMAIN: &[u8] = b"windlass evidence manifest v1\n";
const STREAMS: &str = "streams.json";
const SEALS: &str = "seals.json";
const INCLUSIONS: &str = "inclusions.json";
const KEYS: &str = "keys.json";
const LEAVES: &str = "leaves.json";
const ARTIFACTS: &str = "artifacts.json";
const RECORDS: &str = "records/";
const FILES: &str = "artifacts/";

/// A manifest and the parts it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// What there is, signed.
    pub manifest: Manifest,
    /// The parts by their names.
    pub parts: BTreeMap<String, Vec<u8>>,
}

/// What a bundle holds, signed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: String,
    /// The run it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
    /// The period it is about, where it is not about one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Period>,
    /// When it was made.
    pub made_at: Millis,
    /// Every part, in the order of the names.
    pub parts: Vec<Part>,
    /// Which key signed it.
    pub key_id: Name,
    /// The signature over [`Manifest::signed_bytes`].
    pub signature: Signature,
}

/// A stretch of time: everything from `from` on and before `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Period {
    /// The first moment.
    pub from: Millis,
    /// The first moment after it.
    pub to: Millis,
}

impl Period {
    /// Whether a moment is in it.
    #[must_use]
    pub fn holds(&self, at: Millis) -> bool {
        self.from <= at && at < self.to
    }
}

/// What a bundle is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// One run.
    Run(RunId),
    /// All runs of a period.
    Period(Period),
}

/// One part of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// What it must hash to.
    pub sha256: Digest,
    /// How long it is.
    pub bytes: u64,
}

impl Manifest {
    /// What is signed: everything but the signature.
    #[must_use]
    pub fn signed_bytes(&self) -> Vec<u8> {
        let covered = json!({
            "schema": self.schema,
            "run": self.run,
            "period": self.period,
            "made_at": self.made_at,
            "parts": self.parts,
            "key_id": self.key_id,
        });
        [DOMAIN, &canonical::bytes(&covered)].concat()
    }

    /// Whether the manifest covers exactly these parts, byte for byte.
    ///
    /// # Errors
    /// A finding for each part that is missing, changed, or not covered.
    pub fn covers(&self, parts: &BTreeMap<String, Vec<u8>>) -> Result<(), Vec<Finding>> {
        let mut findings = Vec::new();
        let mut listed = BTreeSet::new();
        for part in &self.parts {
            let fault = match parts.get(&part.name) {
                _ if !listed.insert(part.name.as_str()) => Some("it is listed twice"),
                None => Some("it is missing"),
                Some(bytes) if bytes.len() as u64 != part.bytes || Digest::of(&[bytes]) != part.sha256 => {
                    Some("it was changed")
                }
                Some(_) => None,
            };
            findings.extend(fault.map(|why| Finding::Part { name: part.name.clone(), why: why.into() }));
        }
        for name in parts.keys().filter(|name| !listed.contains(name.as_str())) {
            findings.push(Finding::Part { name: name.clone(), why: "the manifest does not list it".into() });
        }
        if findings.is_empty() { Ok(()) } else { Err(findings) }
    }
}

/// Consecutive records of one stream, as they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which stream.
    pub stream: StreamId,
    /// The place before the first line; the start of the stream, unless it is an excerpt.
    pub after: Head,
    /// The lines, without line ends.
    pub lines: Vec<String>,
}

/// The proof that a stream's head is under a seal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inclusion {
    /// The head.
    pub leaf: Leaf,
    /// The seal's number.
    pub seal: u64,
    /// The way to its root.
    pub proof: InclusionProof,
}

/// Everything that a seal covers: who has all of it sees what is not there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    /// The seal's number.
    pub seal: u64,
    /// All heads under it.
    pub leaves: Vec<Leaf>,
}

/// An artifact of the run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// Its name; with it under `artifacts/` the bundle may hold its bytes.
    pub name: String,
    /// The step that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepId>,
    /// What it hashes to.
    pub sha256: Digest,
    /// How long it is.
    pub bytes: u64,
}

/// What a bundle says, before it is cut into parts or after it was put together again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The run's stream and those linked to it: effect keys, runbook, tenant.
    pub streams: Vec<Segment>,
    /// Their heads under seals.
    pub inclusions: Vec<Inclusion>,
    /// The seals, oldest first.
    pub seals: Vec<Seal>,
    /// How keys took over, oldest first.
    pub keys: Vec<Rotation>,
    /// Seals with everything they cover, for a period.
    pub opened: Vec<Opened>,
    /// Artifacts of the run.
    pub artifacts: Vec<Artifact>,
    /// The bytes of artifacts, where they were wanted, by their names.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Where a stream's lines are.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    stream: StreamId,
    after: Head,
    part: String,
}

impl Contents {
    /// Cuts the contents into parts, with a manifest that `sign` still has to sign.
    #[must_use]
    pub fn bundle(
        &self,
        about: About,
        made_at: Millis,
        key_id: Name,
        sign: &dyn Fn(&[u8]) -> Signature,
    ) -> Bundle {
        let mut parts = BTreeMap::new();
        let mut entries = Vec::new();
        for (n, segment) in self.streams.iter().enumerate() {
            let part = format!("{RECORDS}{:04}.jsonl", n + 1);
            let mut text = Vec::new();
            for line in &segment.lines {
                text.extend_from_slice(line.as_bytes());
                text.push(b'\n');
            }
            parts.insert(part.clone(), text);
            entries.push(Entry { stream: segment.stream.clone(), after: segment.after, part });
        }
        parts.insert(STREAMS.into(), canonical::bytes(&entries));
        parts.insert(INCLUSIONS.into(), canonical::bytes(&self.inclusions));
        parts.insert(SEALS.into(), canonical::bytes(&self.seals));
        parts.insert(KEYS.into(), canonical::bytes(&self.keys));
        parts.insert(ARTIFACTS.into(), canonical::bytes(&self.artifacts));
        if !self.opened.is_empty() {
            parts.insert(LEAVES.into(), canonical::bytes(&self.opened));
        }
        parts.extend(self.files.iter().map(|(name, bytes)| (format!("{FILES}{name}"), bytes.clone())));
        let list = |(name, bytes): (&String, &Vec<u8>)| Part {
            name: name.clone(),
            sha256: Digest::of(&[bytes]),
            bytes: bytes.len() as u64,
        };
        let (run, period) = match about {
            About::Run(run) => (Some(run), None),
            About::Period(period) => (None, Some(period)),
        };
        let mut manifest = Manifest {
            schema: SCHEMA.into(),
            run,
            period,
            made_at,
            parts: parts.iter().map(list).collect(),
            key_id,
            signature: Signature::default(),
        };
        manifest.signature = sign(&manifest.signed_bytes());
        Bundle { manifest, parts }
    }

    /// Puts the parts together again. Every part must have its place.
    ///
    /// # Errors
    /// The first part that is missing, has no place or does not parse.
    pub fn read(parts: &BTreeMap<String, Vec<u8>>) -> Result<Contents, Finding> {
        let entries: Vec<Entry> = parse(parts, STREAMS)?;
        if entries.len() > STREAMS_MAX {
            return Err(fault(STREAMS, "it has too many streams"));
        }
        let mut contents = Contents {
            streams: Vec::new(),
            inclusions: parse(parts, INCLUSIONS)?,
            seals: parse(parts, SEALS)?,
            keys: parse(parts, KEYS)?,
            opened: if parts.contains_key(LEAVES) { parse(parts, LEAVES)? } else { Vec::new() },
            artifacts: parse(parts, ARTIFACTS)?,
            files: BTreeMap::new(),
        };
        let mut placed: BTreeSet<&str> = [STREAMS, INCLUSIONS, SEALS, KEYS, ARTIFACTS, LEAVES].into();
        for entry in &entries {
            if !entry.part.starts_with(RECORDS) || !placed.insert(&entry.part) {
                return Err(fault(&entry.part, "two streams, or none, can have their records there"));
            }
            let lines = lines(parts, &entry.part)?;
            contents.streams.push(Segment { stream: entry.stream.clone(), after: entry.after, lines });
        }
        for (name, bytes) in parts.iter().filter(|(name, _)| !placed.contains(name.as_str())) {
            let Some(file) = name.strip_prefix(FILES) else {
                return Err(fault(name, "such a part has no place in a bundle"));
            };
            contents.files.insert(file.into(), bytes.clone());
        }
        Ok(contents)
    }
}

fn fault(name: &str, why: &str) -> Finding {
    Finding::Part { name: name.into(), why: why.into() }
}

fn parse<T: DeserializeOwned>(parts: &BTreeMap<String, Vec<u8>>, name: &str) -> Result<T, Finding> {
    let bytes = parts.get(name).ok_or_else(|| fault(name, "it is missing"))?;
    serde_json::from_slice(bytes).map_err(|error| fault(name, &format!("it does not parse: {error}")))
}

fn lines(parts: &BTreeMap<String, Vec<u8>>, name: &str) -> Result<Vec<String>, Finding> {
    let bytes = parts.get(name).ok_or_else(|| fault(name, "it is missing"))?;
    let text = core::str::from_utf8(bytes).map_err(|_| fault(name, "it is not UTF-8"))?;
    let Some(text) = text.strip_suffix('\n') else {
        return if text.is_empty() { Ok(Vec::new()) } else { Err(fault(name, "its last line has no end")) };
    };
    Ok(text.split('\n').map(String::from).collect())
}

/// The line without its private values: what an exporter writes where values are not wanted. The chain holds
/// all the same. `None` where the line is no record.
#[must_use]
pub fn without_values(line: &str) -> Option<String> {
    crate::redact::redact(line, &|_| true).ok()
}

#[cfg(test)]
mod tests;
