//! Cluster keys as files: 32 random bytes in 64 hexadecimal digits, readable by their owner only.

use ring::rand::{SecureRandom, SystemRandom};
use std::fs::OpenOptions;
use std::io::{Error, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of a cluster key.
pub const KEY_BYTES: usize = 32;

/// A new key in lower-case hexadecimal digits.
///
/// # Errors
/// The system has no randomness to give.
pub fn generate() -> Result<String, Error> {
    let mut key = [0u8; KEY_BYTES];
    SystemRandom::new().fill(&mut key).map_err(|_| Error::other("the system's random generator failed"))?;
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes `key` into a file that does not exist yet, with mode 0600.
///
/// # Errors
/// The file exists or cannot be written; a file that exists is unchanged.
pub fn write_new(file: &Path, key: &str) -> Result<(), Error> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()
}
