//! Lets runs go that ended longer ago than they are kept, once a day, while the process runs.
//!
//! It costs a copy of what stays, so it waits until a tenth of what is listed can go.

use crate::store::Embedded;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use windlass_core::command::Refusal;
use windlass_core::time::{Millis, Span};
use windlass_engine::Handle;
use windlass_engine::port::Clock;

/// How long a run is kept after its end, where nobody says otherwise.
pub const KEPT: Span = Span(90 * 24 * 3_600_000);
/// When it is looked at first, and how often then.
const FIRST: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_secs(24 * 3_600);
/// At least one of so many must be able to go.
const SHARE: u64 = 10;

/// Works until it is dropped.
pub struct Retention {
    _stop: Sender<()>,
}

impl Retention {
    /// Begins.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(engine: Handle<Embedded>, kept: Span) -> std::io::Result<Retention> {
        let (stop, stopped) = channel();
        let work = move || serve(&engine, kept, &stopped);
        std::thread::Builder::new().name("retention".into()).spawn(work)?;
        Ok(Retention { _stop: stop })
    }
}

fn serve(engine: &Handle<Embedded>, kept: Span, stopped: &Receiver<()>) {
    let mut wait = FIRST;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
        wait = EVERY;
        let now = crate::clock::System.now();
        // An engine that has ended has nothing to let go.
        if let Ok(Err(text)) = look(engine, now - kept) {
            eprintln!("windlass: what is past its retention stays for now: {text}");
        }
    }
}

/// Lets go what ended before a time, where that is worth it; says how many runs went.
///
/// # Errors
/// The outer one: the engine has ended. The inner one: why they stay.
pub fn look(engine: &Handle<Embedded>, before: Millis) -> Result<Result<usize, String>, Refusal> {
    let chosen = engine.read(move |store| {
        let listed = store.listed()?;
        let retiring = store.retire(before)?;
        let worth = !retiring.is_empty() && retiring.len() as u64 * SHARE >= listed;
        if !worth {
            store.retired(false);
        }
        Ok::<_, crate::history::Error>(worth.then_some(retiring))
    })?;
    let retiring = match chosen {
        Ok(Some(retiring)) => retiring,
        Ok(None) => return Ok(Ok(0)),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let done = retiring.carry_out();
    let gone = done.is_ok();
    engine.read(move |store| store.retired(gone))?;
    Ok(done.map(|_| retiring.len()).map_err(|error| error.to_string()))
}
