//! The keeper's end of the socket to Windlass, and waiting on descriptors.

use super::super::lock::{self, Lock};
use super::super::wire::{self, Decoder, Report, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long Windlass has for its first request.
const HELLO_WAIT: Duration = Duration::from_secs(30);

/// How long the last reports may take.
const FINISH_WAIT: Duration = Duration::from_secs(1);

/// How often the lock is looked at.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The socket to Windlass.
pub(super) struct Control {
    pub(super) stream: UnixStream,
    decoder: Decoder,
    pub(super) unsent: Vec<u8>,
    /// Whether anything can still be asked. What is over can be reported for longer.
    pub(super) is_open: bool,
    is_heard: bool,
}

impl Control {
    pub(super) fn new(stream: UnixStream) -> io::Result<Control> {
        stream.set_nonblocking(true)?;
        Ok(Control { stream, decoder: Decoder::default(), unsent: Vec::new(), is_open: true, is_heard: true })
    }

    /// Waits for the first request.
    pub(super) fn hello(&mut self) -> io::Result<Option<(PathBuf, Duration)>> {
        let until = Instant::now() + HELLO_WAIT;
        while self.is_open && Instant::now() < until {
            wait(&[(self.stream.as_fd(), PollFlags::IN)], Some(until))?;
            match self.receive().into_iter().next() {
                Some(Request::Hello { data_dir, wait_ms }) => {
                    return Ok(Some((data_dir, Duration::from_millis(wait_ms))));
                }
                Some(Request::Run(_) | Request::Stop { .. }) => break,
                None => {}
            }
        }
        Ok(None)
    }

    /// Waits for the lock, but not longer than Windlass lives.
    pub(super) fn take_lock(&mut self, data_dir: &Path, wait_max: Duration) -> io::Result<Option<Lock>> {
        let until = Instant::now() + wait_max;
        let mut told = false;
        while self.is_open {
            let holder = match Lock::try_take(data_dir) {
                Ok(Ok(lock)) => return Ok(Some(lock)),
                Ok(Err(holder)) => holder,
                Err(error) => {
                    self.refuse(&format!("the lock of `{}` cannot be taken: {error}", data_dir.display()));
                    return Ok(None);
                }
            };
            if Instant::now() >= until {
                self.refuse(&lock::busy(data_dir, holder, wait_max));
                return Ok(None);
            }
            if !core::mem::replace(&mut told, true) {
                self.report(&Report::Waiting { pid: holder });
                self.send();
            }
            wait(&[(self.stream.as_fd(), PollFlags::IN)], Some(Instant::now() + LOCK_PAUSE))?;
            // Nothing is asked before it is ready; reading sees whether the socket closed.
            drop(self.receive());
        }
        Ok(None)
    }

    /// Says why it cannot begin, and waits until that is sent.
    pub(super) fn refuse(&mut self, text: &str) {
        self.report(&Report::Refused { text: text.to_owned() });
        self.finish();
    }

    pub(super) fn report(&mut self, report: &Report) {
        // The largest report is a typed output or a chunk of lines, far below the bound on frames.
        if let Ok(frame) = wire::encode(report) {
            self.unsent.extend_from_slice(&frame);
        }
    }

    /// Reads what is there. A socket that fails or speaks nonsense is as good as closed.
    pub(super) fn receive(&mut self) -> Vec<Request> {
        let mut buffer = vec![0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.is_open = false,
            Ok(len) => self.decoder.push(&buffer[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.is_open = false,
        }
        let mut requests = Vec::new();
        loop {
            match self.decoder.next() {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => return requests,
                Err(_) => {
                    self.is_open = false;
                    return requests;
                }
            }
        }
    }

    pub(super) fn send(&mut self) {
        let mut sent = 0;
        while sent < self.unsent.len() && self.is_heard {
            match self.stream.write(&self.unsent[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.is_heard = false;
                    self.is_open = false;
                }
            }
        }
        if self.is_heard {
            self.unsent.drain(..sent);
        } else {
            self.unsent.clear();
        }
    }

    /// Sends what is there and waits until it is sent, up to a time. Says whether it is.
    pub(super) fn flush(&mut self, wait_max: Duration) -> bool {
        let until = Instant::now() + wait_max;
        loop {
            self.send();
            if !self.is_heard {
                return false;
            }
            if self.unsent.is_empty() {
                return true;
            }
            if Instant::now() >= until || wait(&[(self.stream.as_fd(), PollFlags::OUT)], Some(until)).is_err()
            {
                return false;
            }
        }
    }

    /// Sends what is left, to whoever still listens.
    pub(super) fn finish(&mut self) {
        let patient =
            self.stream.set_nonblocking(false).and(self.stream.set_write_timeout(Some(FINISH_WAIT)));
        if patient.is_ok() {
            self.send();
        }
    }
}

/// Waits for descriptors, up to a time. Says for each whether something is there.
pub(super) fn wait(
    descriptors: &[(BorrowedFd<'_>, PollFlags)],
    until: Option<Instant>,
) -> io::Result<Vec<bool>> {
    let mut fds: Vec<PollFd<'_>> =
        descriptors.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
    let timeout = until.map(|until| {
        // Rounded up, so that what is due is due when it returns.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
    });
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}
