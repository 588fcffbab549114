//! Traces: which one a run belongs to, and the names of its spans.
//!
//! Nothing of this is remembered. A run that came with a `traceparent` belongs to that trace; any other has one of its
//! own, which follows from the first run of its lineage. The ids of spans follow from the run, the step and the epoch,
//! so they are the same after a crash, and in every process that has to name them.

use crate::digest::Digest;
use crate::id::{RunId, StepId};
use alloc::format;
use alloc::string::String;

/// A trace, as a run sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its id.
    pub id: u128,
    /// The span outside that made the run, where one did.
    pub parent: Option<u64>,
}

/// Reads a `traceparent` of W3C's Trace Context. One that is not valid is as if it were not there, as the
/// recommendation says.
#[must_use]
pub fn parse(text: &str) -> Option<Trace> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let lower = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    // Later versions may say more after what is known.
    let known = lower(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    if !known || !lower(trace, 32) || !lower(span, 16) || !lower(flags, 2) {
        return None;
    }
    let (id, parent) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    (id != 0 && parent != 0).then_some(Trace { id, parent: Some(parent) })
}

/// The trace of a run: the one it came with, or that of the first run of its lineage.
#[must_use]
pub fn of(root_run: RunId, traceparent: Option<&str>) -> Trace {
    traceparent.and_then(parse).unwrap_or(Trace { id: root_run.0, parent: None })
}

/// The id of a trace as it is written.
#[must_use]
pub fn id_text(trace: Trace) -> String {
    format!("{:032x}", trace.id)
}

fn span(parts: &[&[u8]]) -> u64 {
    let digest = Digest::of(parts);
    let first: [u8; 8] = core::array::from_fn(|at| digest.0[at]);
    // Nought is the one value that names no span.
    u64::from_be_bytes(first).max(1)
}

/// The span of a run.
#[must_use]
pub fn run_span(run: RunId) -> u64 {
    span(&[b"run", &run.0.to_be_bytes()])
}

/// The span of an attempt at a step.
#[must_use]
pub fn attempt_span(run: RunId, step: &StepId, epoch: u64) -> u64 {
    span(&[b"attempt", &run.0.to_be_bytes(), &epoch.to_be_bytes(), step.as_str().as_bytes()])
}

/// What an attempt hands on, so that what it calls joins the trace.
#[must_use]
pub fn traceparent(trace: Trace, span: u64) -> String {
    format!("00-{:032x}-{span:016x}-01", trace.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_valid_one_is_read_and_any_other_is_as_if_absent() {
        let trace = parse(GOOD).unwrap();
        assert_eq!(id_text(trace), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(trace.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!(traceparent(trace, 0x00f0_67aa_0ba9_02b7), GOOD);
        assert!(parse(&GOOD.replacen("00", "cc", 1)).is_some(), "a later version");
        assert!(parse(&format!("{}-more", GOOD.replacen("00", "cc", 1))).is_some());
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &GOOD.to_uppercase(),
            &GOOD.replacen("00", "ff", 1),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_run_without_one_has_a_trace_of_its_own_and_every_attempt_its_span() {
        assert_eq!(of(RunId(7), None), Trace { id: 7, parent: None });
        assert_eq!(of(RunId(7), Some("nonsense")), of(RunId(7), None));
        assert_eq!(of(RunId(7), Some(GOOD)), parse(GOOD).unwrap());
        let step = StepId::clean("a");
        let spans = [
            run_span(RunId(1)),
            run_span(RunId(2)),
            attempt_span(RunId(1), &step, 1),
            attempt_span(RunId(1), &step, 2),
        ];
        let distinct: std::collections::BTreeSet<u64> = spans.into_iter().collect();
        assert_eq!(distinct.len(), 4);
        assert_eq!(attempt_span(RunId(1), &step, 1), spans[2], "and always the same");
    }
}
