//! The frames between Windlass and its keeper: four bytes of length, then JSON.
//!
//! They travel over one private socket pair, which nobody else can open: a request holds the attempt's secrets.

use super::spec::{Ended, Line, Spec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The most bytes of one frame. A command has 256 KiB at most, an environment what the system takes.
pub(super) const FRAME_MAX: usize = 8 * 1024 * 1024;

/// What Windlass asks of the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The first request: take the lock of this directory.
    Hello {
        /// The data directory.
        data_dir: PathBuf,
        /// How long an earlier keeper may take to let go.
        wait_ms: u64,
    },
    /// Start an attempt.
    Run(Box<Spec>),
    /// End an attempt.
    Stop {
        /// Its id.
        id: String,
        /// How long its processes have.
        grace_ms: u64,
    },
}

/// What the keeper reports.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// An earlier keeper holds the lock.
    Waiting {
        /// Its process, where it is known.
        pid: Option<u32>,
    },
    /// The lock is held and no process of earlier attempts is left.
    Ready,
    /// It cannot begin.
    Refused {
        /// Why.
        text: String,
    },
    /// An attempt begins now. It is sent before anything of it is started: one of which this was not heard had not begun.
    Started {
        /// Its id.
        id: String,
        /// The process that supervises it.
        pid: u32,
    },
    /// Its command runs, or could not be started: nothing of it begins any more.
    Began {
        /// Its id.
        id: String,
    },
    /// An attempt wrote lines.
    Lines {
        /// Its id.
        id: String,
        /// The lines.
        lines: Vec<Line>,
    },
    /// Something that the attempt's owner should know.
    Warned {
        /// Its id.
        id: String,
        /// What it is.
        text: String,
    },
    /// An attempt is over.
    Ended {
        /// Its id.
        id: String,
        /// What became of it.
        ended: Box<Ended>,
    },
}

/// Why a frame is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("a frame of {0} bytes is too large: at most {FRAME_MAX} are taken")]
    TooLarge(usize),
    #[error("a frame is not understood: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// A message as a frame.
pub(super) fn encode(message: &impl Serialize) -> Result<Vec<u8>, Error> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let len = frame.len() - 4;
    if len > FRAME_MAX {
        return Err(Error::TooLarge(len));
    }
    // The bound is far below what four bytes can say.
    frame[..4].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(frame)
}

/// Bytes that were read, and the frames in them.
#[derive(Default)]
pub(super) struct Decoder {
    buffer: Vec<u8>,
    at: usize,
}

impl Decoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let rest = &self.buffer[self.at..];
        let Some((head, body)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > FRAME_MAX {
            return Err(Error::TooLarge(len));
        }
        let Some(body) = body.get(..len) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.at += 4 + len;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn frames_survive_any_split() {
        let mut bytes = Vec::new();
        for text in ["", "a", "é\n\""] {
            bytes.extend(encode(&Report::Refused { text: text.to_owned() }).unwrap());
        }
        for size in 1..bytes.len() {
            let mut decoder = Decoder::default();
            let mut texts = Vec::new();
            for chunk in bytes.chunks(size) {
                decoder.push(chunk);
                while let Some(report) = decoder.next().unwrap() {
                    let Report::Refused { text } = report else { panic!("another report") };
                    texts.push(text);
                }
            }
            assert_eq!(texts, ["", "a", "é\n\""]);
        }
    }

    #[test]
    fn frames_are_bounded_and_checked() {
        let big = Report::Refused { text: "x".repeat(FRAME_MAX) };
        assert!(matches!(encode(&big), Err(Error::TooLarge(_))));
        let mut decoder = Decoder::default();
        decoder.push(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next::<Report>(), Err(Error::TooLarge(_))));
        let mut decoder = Decoder::default();
        decoder.push(&[2, 0, 0, 0, b'{', b'{']);
        assert!(matches!(decoder.next::<Report>(), Err(Error::Malformed(_))));
    }
}
