//! Log lines on their way to stderr.
//!
//! Whoever reads them may stop reading: a supervisor that hangs, a pipe that nobody empties. So no thread that has something
//! to say writes itself. Lines wait, so many at most, for a thread that does nothing else; what comes after those is lost,
//! and counted. The next line that gets through says how many.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

/// How many lines may wait.
const WAITING_MAX: usize = 8_192;

static OUT: OnceLock<Lines> = OnceLock::new();

enum Message {
    Line(Vec<u8>),
    /// Everything before this has been written.
    Reached(SyncSender<()>),
}

/// Where lines are handed over. It never waits.
#[derive(Clone)]
pub(super) struct Lines {
    sender: SyncSender<Message>,
    /// How many found no room.
    lost: Arc<AtomicU64>,
}

impl Lines {
    /// The lines of this process, written to stderr from now on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn to_stderr() -> std::io::Result<Lines> {
        let lines = Lines::to(std::io::stderr())?;
        Ok(OUT.get_or_init(|| lines).clone())
    }

    fn to(mut out: impl Write + Send + 'static) -> std::io::Result<Lines> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("log-lines".into())
            .spawn(move || write_all(&receiver, &mut out, &counted))?;
        Ok(Lines { sender, lost })
    }

    /// Waits until what was said so far is written, but not for ever.
    fn flush(&self, patience: Duration) {
        let (reached, wait) = sync_channel(1);
        // Where so many wait that this one finds no room, nobody reads them.
        if self.sender.try_send(Message::Reached(reached)).is_ok() {
            let _ = wait.recv_timeout(patience);
        }
    }
}

/// How many lines found no room in this process.
pub(crate) fn lost() -> u64 {
    OUT.get().map_or(0, |lines| lines.lost.load(Ordering::Relaxed))
}

/// Gives whoever reads this process's log lines a moment to take the last ones.
pub fn flush_logs() {
    if let Some(lines) = OUT.get() {
        lines.flush(Duration::from_secs(1));
    }
}

fn write_all(lines: &Receiver<Message>, out: &mut dyn Write, lost: &AtomicU64) {
    let mut told = 0;
    for message in lines {
        // A reader that is gone for good has seen enough.
        match message {
            Message::Line(line) => {
                let _ = out.write_all(&line);
            }
            Message::Reached(reached) => {
                let _ = out.flush();
                let _ = reached.try_send(());
            }
        }
        let now = lost.load(Ordering::Relaxed);
        if now > told {
            let _ =
                writeln!(out, "{{\"level\":\"WARN\",\"event\":\"log_lines_lost\",\"count\":{}}}", now - told);
            told = now;
        }
    }
}

/// One line at a time: the layer that formats a line writes it at once.
pub(super) struct OneLine {
    lines: Lines,
}

impl Write for OneLine {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        if self.lines.sender.try_send(Message::Line(line.to_vec())).is_err() {
            self.lines.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = OneLine;

    fn make_writer(&'a self) -> OneLine {
        OneLine { lines: self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_has_something_to_say_never_waits_for_who_reads() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let lines = Lines::to(ours).unwrap();
        let line = [b"x".repeat(255), b"\n".to_vec()].concat();
        // More than the socket and the queue hold together.
        let many = WAITING_MAX + 8_192;
        let said = |n: usize| (0..n).for_each(|_| lines.make_writer().write_all(&line).unwrap());
        said(many);
        lines.flush(Duration::ZERO);
        let lost = lines.lost.load(Ordering::Relaxed);
        assert!(lost > 0, "all of {many} lines found room");
        drop(lines);
        let read: Vec<String> = BufReader::new(theirs).lines().map(Result::unwrap).collect();
        let plain = read.iter().filter(|line| line.starts_with('x')).count();
        assert_eq!(plain + usize::try_from(lost).unwrap(), many);
        let told: u64 = read
            .iter()
            .filter_map(|line| line.strip_prefix(r#"{"level":"WARN","event":"log_lines_lost","count":"#))
            .map(|rest| rest.trim_end_matches('}').parse::<u64>().unwrap())
            .sum();
        assert_eq!(told, lost);
    }
}
