//! Checking a bundle: manifest, keys, seals, chains, inclusion; then, and only then, reading it.

use super::reading::{self, Proofs};
use super::verdict::Verdict;
use super::{Artifact, Bundle, Contents, Manifest, Opened, SCHEMA};
use crate::audit::{self, Break, Head, Leaf, Rotation, Seal, Unsound, verify_inclusion};
use crate::digest::{Digest, Signature};
use crate::id::Name;
use crate::record::Record;
use crate::stream::StreamId;
use crate::time::Millis;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// Checks a signature: public key, bytes, signature.
pub type CheckKey<'a> = &'a dyn Fn(&Digest, &[u8], &Signature) -> bool;

/// The most findings that are listed; the first one settles the matter.
pub const FINDINGS_MAX: usize = 1_000;

/// What is wrong with a bundle, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// Another version's bundle, or none at all.
    #[error("manifest: `{0}` is not a form of bundle that this version reads")]
    Schema(String),
    /// The manifest's signature.
    #[error("manifest: the signature of key {0} does not hold")]
    Manifest(Name),
    /// A key that nobody trusted vouches for.
    #[error("key {0}: no trusted key vouches for it")]
    Key(Name),
    /// A part of the bundle.
    #[error("{name}: {why}")]
    Part {
        /// Which one.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A stream's chain.
    #[error(transparent)]
    Chain(#[from] Break),
    /// A seal.
    #[error("seal {number}: {why}")]
    Seal {
        /// Which one.
        number: u64,
        /// What does not hold.
        why: Unsound,
    },
    /// A proof of inclusion.
    #[error("{stream}: version {ver} is not proved to be under seal {seal}")]
    Inclusion {
        /// Which stream.
        stream: StreamId,
        /// Which version.
        ver: u64,
        /// Which seal.
        seal: u64,
    },
    /// A stream of which no head is under a seal.
    #[error("{0}: no seal covers it")]
    NotSealed(StreamId),
    /// Neither one run nor one period.
    #[error("manifest: it names neither one run nor one period, or not the kind that was asked for")]
    Subject,
    /// The leaves of a seal are not all there, or are others.
    #[error("seal {0}: what it covers is not what the bundle lists")]
    Leaves(u64),
    /// A seal is missing among those of a period.
    #[error("seal {0}: it belongs to the period and is not opened in the bundle")]
    NotOpened(u64),
    /// The seals begin after the period does.
    #[error("seal {0}: the period begins before it, and the seal before is not there")]
    Begin(u64),
    /// A stream is under a seal of the period and was left out.
    #[error("{stream}: it changed under seal {seal}, and version {ver} is not in the bundle")]
    LeftOut {
        /// Which stream.
        stream: StreamId,
        /// Which version.
        ver: u64,
        /// Which seal.
        seal: u64,
    },
    /// The run's own stream is not there from its start.
    #[error("{0}: its records are not there from the first")]
    Incomplete(StreamId),
}

/// What the walk of a stream brought to light.
pub(super) struct Walked {
    /// The place before the first record.
    pub(super) after: Head,
    /// The records, each proved to follow from the one before.
    pub(super) records: Vec<Record>,
    /// The highest version under a seal, and the seal.
    pub(super) sealed: Option<(u64, u64)>,
}

impl Walked {
    /// Whether a head is one of these records.
    pub(super) fn has(&self, leaf: &Leaf) -> bool {
        let index = leaf.ver.checked_sub(self.after.ver.saturating_add(1));
        let record = index.and_then(|index| self.records.get(usize::try_from(index).ok()?));
        record.is_some_and(|record| record.chain == leaf.head)
    }
}

/// What was looked at of a bundle, with everything that was found wrong with it so far.
pub(super) struct Looked<'a> {
    pub(super) contents: Contents,
    pub(super) walked: BTreeMap<StreamId, Walked>,
    /// The numbers of the seals that hold, and when they were made.
    pub(super) seals: BTreeMap<u64, Millis>,
    pub(super) findings: Vec<Finding>,
    pub(super) manifest: &'a Manifest,
}

impl Looked<'_> {
    /// Nothing, or everything that was found.
    pub(super) fn sound(self) -> Result<(Contents, BTreeMap<StreamId, Walked>), Vec<Finding>> {
        if self.findings.is_empty() { Ok((self.contents, self.walked)) } else { Err(bounded(self.findings)) }
    }
}

/// Verifies a run's bundle with the public keys that the reader trusts, by their ids. Keys that took over from them
/// are trusted too, where the old key signed that.
///
/// # Errors
/// Everything that was found, at most [`FINDINGS_MAX`].
pub fn verify(
    bundle: &Bundle,
    trusted: &BTreeMap<Name, Digest>,
    check: CheckKey<'_>,
) -> Result<Verdict, Vec<Finding>> {
    let mut looked = look(bundle, trusted, check)?;
    let Some(run) = bundle.manifest.run else { return Err(alloc::vec![Finding::Subject]) };
    let own = StreamId::Run(run);
    let is_whole = |walked: &Walked| walked.after == Head::default() && !walked.records.is_empty();
    if !looked.walked.get(&own).is_some_and(is_whole) {
        looked.findings.push(Finding::Incomplete(own));
    }
    let made_at = bundle.manifest.made_at;
    let (contents, walked) = looked.sound()?;
    Ok(reading::read(&Proofs {
        run,
        made_at,
        walked: walked.iter().collect(),
        segments: contents.streams.iter().collect(),
        artifacts: &contents.artifacts,
    }))
}

/// Checks everything that bundles of runs and of periods have in common.
pub(super) fn look<'a>(
    bundle: &'a Bundle,
    trusted: &BTreeMap<Name, Digest>,
    check: CheckKey<'_>,
) -> Result<Looked<'a>, Vec<Finding>> {
    let Bundle { manifest, parts } = bundle;
    if manifest.schema != SCHEMA {
        return Err(alloc::vec![Finding::Schema(crate::wire::shorten(&manifest.schema))]);
    }
    let mut findings = manifest.covers(parts).err().unwrap_or_default();
    if manifest.run.is_some() == manifest.period.is_some() {
        findings.push(Finding::Subject);
    }
    let contents = match Contents::read(parts) {
        Ok(contents) => contents,
        Err(finding) => {
            if !findings.contains(&finding) {
                findings.push(finding);
            }
            return Err(bounded(findings));
        }
    };
    let keys = key_ring(trusted, &contents.keys, check, &mut findings);
    let signed = |key: &Name, bytes: &[u8], signature: &Signature| {
        keys.get(key).is_some_and(|public| check(public, bytes, signature))
    };
    if !signed(&manifest.key_id, &manifest.signed_bytes(), &manifest.signature) {
        findings.push(Finding::Manifest(manifest.key_id.clone()));
    }
    let sound = sound_seals(&contents.seals, &signed, &mut findings);
    let mut walked = walk(&contents, &mut findings);
    open(&contents, &sound, &mut walked, &mut findings);
    include(&contents, &sound, &mut walked, &mut findings);
    files(&contents.artifacts, &contents.files, &mut findings);
    let seals = sound.iter().map(|(number, seal)| (*number, seal.at)).collect();
    Ok(Looked { contents, walked, seals, findings, manifest })
}

/// Checks the seals whose leaves are all there, and binds the streams that are among them.
fn open(
    contents: &Contents,
    seals: &BTreeMap<u64, &Seal>,
    walked: &mut BTreeMap<StreamId, Walked>,
    findings: &mut Vec<Finding>,
) {
    for Opened { seal: number, leaves } in &contents.opened {
        let streams: BTreeSet<&StreamId> = leaves.iter().map(|leaf| &leaf.stream).collect();
        let holds = seals.get(number).is_some_and(|seal| {
            let all = leaves.len() as u64 == seal.leaves && streams.len() == leaves.len();
            all && audit::root(leaves) == seal.root
        });
        if !holds {
            findings.push(Finding::Leaves(*number));
            continue;
        }
        for leaf in leaves {
            if let Some(walked) = walked.get_mut(&leaf.stream).filter(|walked| walked.has(leaf)) {
                walked.sealed = walked.sealed.max(Some((leaf.ver, *number)));
            }
        }
    }
}

fn bounded(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.truncate(FINDINGS_MAX);
    findings
}

/// The trusted keys, and those that they vouch for.
fn key_ring(
    trusted: &BTreeMap<Name, Digest>,
    rotations: &[Rotation],
    check: CheckKey<'_>,
    findings: &mut Vec<Finding>,
) -> BTreeMap<Name, Digest> {
    let mut ring = trusted.clone();
    for rotation in rotations {
        let same = ring.get(&rotation.key_id).map(|public| *public == rotation.public_key);
        let vouched = rotation.is_vouched_for(&|key, bytes, signature| {
            ring.get(key).is_some_and(|public| check(public, bytes, signature))
        });
        match same {
            Some(true) => {}
            None if vouched => {
                ring.insert(rotation.key_id.clone(), rotation.public_key);
            }
            // A first key, or one from before the reader's: of no use here, but no harm either.
            None if rotation.replaces.as_ref().is_none_or(|old| !ring.contains_key(old)) => {}
            Some(false) | None => findings.push(Finding::Key(rotation.key_id.clone())),
        }
    }
    ring
}

/// The seals that hold, by their numbers. Those with consecutive numbers must follow from each other.
fn sound_seals<'a>(
    seals: &'a [Seal],
    signed: audit::CheckSignature<'_>,
    findings: &mut Vec<Finding>,
) -> BTreeMap<u64, &'a Seal> {
    let mut sound = BTreeMap::new();
    let mut before: Option<&Seal> = None;
    for seal in seals {
        let ascends = before.is_none_or(|before| before.number < seal.number);
        let previous = before.filter(|before| before.number.checked_add(1) == Some(seal.number));
        let result = if ascends { audit::verify(seal, previous, signed) } else { Err(Unsound::Number) };
        match result {
            Ok(()) => drop(sound.insert(seal.number, seal)),
            Err(why) => findings.push(Finding::Seal { number: seal.number, why }),
        }
        before = Some(seal);
    }
    sound
}

fn walk(contents: &Contents, findings: &mut Vec<Finding>) -> BTreeMap<StreamId, Walked> {
    let mut walked = BTreeMap::new();
    for segment in &contents.streams {
        let lines: Vec<&str> = segment.lines.iter().map(String::as_str).collect();
        let mut records = Vec::new();
        let end = audit::walk(&segment.stream, segment.after, &lines, &mut |record| records.push(record));
        if let Err(found) = end {
            findings.push(found.into());
        }
        // A stream that starts at nothing starts at the head of nothing.
        let starts_wrong = segment.after.ver == 0 && segment.after != Head::default();
        let new = Walked { after: segment.after, records, sealed: None };
        if starts_wrong || walked.insert(segment.stream.clone(), new).is_some() {
            findings.push(Finding::Incomplete(segment.stream.clone()));
        }
    }
    walked
}

/// Binds the streams to the seals.
fn include(
    contents: &Contents,
    seals: &BTreeMap<u64, &Seal>,
    walked: &mut BTreeMap<StreamId, Walked>,
    findings: &mut Vec<Finding>,
) {
    for inclusion in &contents.inclusions {
        let leaf = &inclusion.leaf;
        let stream = walked.get_mut(&leaf.stream);
        let seal = seals.get(&inclusion.seal).filter(|seal| {
            seal.leaves == inclusion.proof.leaves && verify_inclusion(&seal.root, leaf, &inclusion.proof)
        });
        match (stream.filter(|walked| walked.has(leaf)), seal) {
            (Some(walked), Some(_)) => {
                walked.sealed = walked.sealed.max(Some((leaf.ver, inclusion.seal)));
            }
            (Some(_) | None, _) => findings.push(Finding::Inclusion {
                stream: leaf.stream.clone(),
                ver: leaf.ver,
                seal: inclusion.seal,
            }),
        }
    }
    for (stream, walked) in walked.iter().filter(|(_, walked)| walked.sealed.is_none()) {
        // An empty stream has nothing to seal; the run's own must not be one.
        if !walked.records.is_empty() {
            findings.push(Finding::NotSealed(stream.clone()));
        }
    }
}

fn files(artifacts: &[Artifact], files: &BTreeMap<String, Vec<u8>>, findings: &mut Vec<Finding>) {
    for (name, bytes) in files {
        let listed = artifacts.iter().find(|artifact| artifact.name == *name);
        let same = listed.is_some_and(|artifact| artifact.sha256 == Digest::of(&[bytes]));
        if !same {
            findings.push(super::fault(name, "it is not the artifact that is listed"));
        }
    }
}
