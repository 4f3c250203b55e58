//! Cluster keys as files: 32 random bytes as 64 hexadecimal digits, readable by the owner only.

use slowmo::internal::transport::quic::ClusterKey;
use std::fs::OpenOptions;
use std::io::{Error, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Generates a key in lower-case hexadecimal digits.
///
/// # Errors
/// The system cannot supply randomness.
pub fn generate() -> Result<String, Error> {
    ClusterKey::generate()
        .map(|key| key.to_hex())
        .map_err(Error::other)
}

/// Writes `key` into a file that does not exist yet, with mode 0600.
///
/// # Errors
/// The file exists or cannot be written; a file that exists is unchanged.
pub fn write_new(file: &Path, key: &str) -> Result<(), Error> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()
}
