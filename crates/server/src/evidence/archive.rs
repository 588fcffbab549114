//! The archive around a bundle: one tar file in exactly one form.
//!
//! Every byte is covered: by the manifest, or by the format itself, whose bytes must be exactly as this file writes them;
//! otherwise the archive is refused.

use super::Error;
use std::collections::BTreeMap;
use std::io::Read as _;
use windlass_core::canonical;
use windlass_core::evidence::{Bundle, Manifest};

const MANIFEST: &str = "manifest.json";
/// The most bytes of an archive, and the most parts in it.
pub const LEN_MAX: u64 = 1 << 30;
const PARTS_MAX: usize = 20_000;

/// Writes a bundle.
///
/// # Errors
/// A part's name does not fit.
pub fn write(bundle: &Bundle) -> Result<Vec<u8>, Error> {
    let broken = |error: std::io::Error| Error::NotABundle(error.to_string());
    let mut builder = tar::Builder::new(Vec::new());
    let manifest = canonical::bytes(&bundle.manifest);
    let first = std::iter::once((MANIFEST, manifest.as_slice()));
    let parts = bundle.parts.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    for (name, bytes) in first.chain(parts) {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).map_err(broken)?;
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, bytes).map_err(broken)?;
    }
    builder.into_inner().map_err(broken)
}

/// Reads a bundle.
///
/// # Errors
/// It is no archive, or not in the one form.
pub fn read(bytes: &[u8]) -> Result<Bundle, Error> {
    let broken = |error: std::io::Error| Error::NotABundle(error.to_string());
    if bytes.len() as u64 > LEN_MAX {
        return Err(Error::NotABundle("it is larger than 1 GiB".to_owned()));
    }
    let mut parts: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut manifest = None;
    for entry in tar::Archive::new(bytes).entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let name = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| Error::NotABundle("a part has a name that is no text".to_owned()))?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(broken)?;
        if parts.len() >= PARTS_MAX {
            return Err(Error::NotABundle(format!("it has more than {PARTS_MAX} parts")));
        }
        if name == MANIFEST && manifest.is_none() {
            let read: Manifest = serde_json::from_slice(&content)
                .map_err(|error| Error::NotABundle(format!("{MANIFEST} does not parse: {error}")))?;
            manifest = Some(read);
        } else if parts.insert(name.clone(), content).is_some() {
            return Err(Error::NotABundle(format!("the part {name} is there twice")));
        }
    }
    let manifest = manifest.ok_or_else(|| Error::NotABundle(format!("{MANIFEST} is missing")))?;
    let bundle = Bundle { manifest, parts };
    let again = write(&bundle)?;
    match again.iter().zip(bytes).position(|(one, other)| one != other) {
        None if again.len() == bytes.len() => Ok(bundle),
        at => {
            let at = at.unwrap_or_else(|| again.len().min(bytes.len()));
            Err(Error::NotABundle(format!("byte {at} is not as a bundle has it{}", place(bytes, at))))
        }
    }
}

/// The part that a byte of the archive belongs to.
fn place(bytes: &[u8], at: usize) -> String {
    let mut archive = tar::Archive::new(bytes);
    let Ok(entries) = archive.entries() else { return String::new() };
    for entry in entries.flatten() {
        let (start, size) = (entry.raw_header_position(), entry.size());
        let end = entry.raw_file_position() + size.next_multiple_of(512);
        if (start..end).contains(&(at as u64)) {
            return format!(", around {}", String::from_utf8_lossy(&entry.path_bytes()));
        }
    }
    String::new()
}
