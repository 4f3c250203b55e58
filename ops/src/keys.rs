//! Cluster keys as files: 32 random bytes as 64 hexadecimal digits, readable by the owner only; two
//! of them while a key is rotated.

use slowmo::internal::secret_file;
use slowmo::internal::transport::quic::{ClusterKey, ClusterKeys, IdentityError};
use std::fs::OpenOptions;
use std::io::{Error, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest key file, in bytes: two keys and a cluster's id, with room for spaces.
const KEY_FILE_BYTES_MAX: u64 = 4096;

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
    file.write_all(format!("{}\n", key.trim_end()).as_bytes())?;
    file.sync_all()
}

/// Adds a new key to a key file.
///
/// # Errors
/// The file cannot be read or written, holds two keys, or other users may read it. It is unchanged.
pub fn rotate(file: &Path) -> Result<(), Error> {
    let newer = ClusterKey::generate().map_err(Error::other)?;
    change(file, |keys| keys.rotated(newer))
}

/// Removes the older of two keys from a key file.
///
/// # Errors
/// The file cannot be read or written, holds one key, or other users may read it. It is unchanged.
pub fn retire(file: &Path) -> Result<(), Error> {
    change(file, ClusterKeys::retired)
}

/// Replaces a key file at once, so that whoever reads it sees the keys before or those after.
fn change(
    file: &Path,
    change: impl FnOnce(ClusterKeys) -> Result<ClusterKeys, IdentityError>,
) -> Result<(), Error> {
    let text = secret_file::read(file, KEY_FILE_BYTES_MAX)?;
    let keys: ClusterKeys = String::from_utf8_lossy(&text)
        .parse()
        .map_err(Error::other)?;
    let keys = change(keys).map_err(Error::other)?;
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    write_new(&beside, &keys.to_text()).map_err(|error| {
        Error::other(format!(
            "{}: {error}; remove that file if no other keygen runs",
            beside.display()
        ))
    })?;
    std::fs::rename(&beside, file).inspect_err(|_| {
        // The error of the renaming is the one to tell.
        _ = std::fs::remove_file(&beside);
    })
}
