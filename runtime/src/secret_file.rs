//! Reads files that hold a secret: cluster keys, private keys, tokens. A file that other users of
//! the machine may read or change is refused.

use std::fs::File;
use std::io::{Error, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Mode bits that a secret's file must not have: others may do nothing, the group may not write.
/// The group may read, because Kubernetes hands secrets to a pod's group.
const FORBIDDEN_MODE: u32 = 0o027;

/// Reads at most `bytes_max` bytes.
///
/// # Errors
/// The file cannot be read, is larger, or is open to other users.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    // The mode is that of the opened file, not of the path: nobody can exchange it in between.
    let file = File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    if mode & FORBIDDEN_MODE != 0 {
        return Err(Error::other(format!(
            "other users may read or change it (mode {:03o}): chmod 600 it, and write a new one \
             with slowmo keygen if somebody may have read it",
            mode & 0o777
        )));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::other(format!("it is larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};

    #[test]
    fn a_secret_that_others_may_read_or_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, "secret").unwrap();
        for mode in [0o666, 0o644, 0o604, 0o602, 0o660, 0o620] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read(&path, 100).unwrap_err().to_string();
            assert!(
                error.contains(&format!("mode {mode:o}")) && error.contains("chmod 600"),
                "{error}"
            );
        }
        for mode in [0o600, 0o400, 0o440, 0o640] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path, 100).unwrap(), b"secret");
        }
        assert!(read(&path, 5).is_err(), "larger than allowed");
    }
}
