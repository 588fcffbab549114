//! Random bytes for keys, tokens and nonces: from the system, and nowhere else.

use ring::rand::{SecureRandom as _, SystemRandom};
use std::io;

/// So many bytes that nobody can guess.
///
/// # Errors
/// The system has none.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the system gives no random bytes"))?;
    Ok(bytes)
}
