//! Reads files of credentials. Those that hold a secret (cluster keys, private keys, tokens) are
//! refused if other users of the machine may read or change them, and certificates if others may
//! change them. Both are refused if another user owns them, who may change them at any time.

use std::fs::{File, Metadata};
use std::io::{Error, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Mode bits that a secret's file must not have: others may do nothing, the group may not write.
/// The group may read, because Kubernetes hands secrets to a pod's group.
const SECRET_FORBIDDEN_MODE: u32 = 0o027;
/// Mode bits that a certificate's file must not have: only its owner may write.
const PUBLIC_FORBIDDEN_MODE: u32 = 0o022;

/// Reads a file that holds a secret, at most `bytes_max` bytes.
///
/// # Errors
/// The file cannot be read, is larger, or is open to other users.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    read_unless(path, bytes_max, secret_fault)
}

/// Reads a file that everybody may read and only this user or root may change, at most `bytes_max`
/// bytes.
///
/// # Errors
/// The file cannot be read, is larger, or other users may change it.
pub(crate) fn read_public(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Error> {
    read_unless(path, bytes_max, public_fault)
}

/// Reads a file, unless there is a fault in what others may do with it.
fn read_unless(
    path: &Path,
    bytes_max: u64,
    fault: fn(u32, u32) -> Option<String>,
) -> Result<Vec<u8>, Error> {
    // Mode and owner are those of the opened file, not of the path: nobody can exchange it in
    // between.
    let file = File::open(path)?;
    let found = file.metadata()?;
    if let Some(fault) = fault(found.mode(), found.uid()) {
        return Err(Error::other(fault));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::other(format!("it is larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Why an opened file is no place for a secret, and what to do; `None` if it is one.
pub(crate) fn fault_of(found: &Metadata) -> Option<String> {
    secret_fault(found.mode(), found.uid())
}

fn secret_fault(mode: u32, owner: u32) -> Option<String> {
    if mode & SECRET_FORBIDDEN_MODE != 0 {
        return Some(format!(
            "other users may read or change it (mode {:03o}): chmod 600 it, and write a new secret \
             with slowmo keygen if somebody may have read it",
            mode & 0o777
        ));
    }
    owner_fault(owner)
}

fn public_fault(mode: u32, owner: u32) -> Option<String> {
    if mode & PUBLIC_FORBIDDEN_MODE != 0 {
        return Some(format!(
            "other users may change it (mode {:03o}): chmod 644 it, and compare it with its source \
             if somebody may have changed it",
            mode & 0o777
        ));
    }
    owner_fault(owner)
}

fn owner_fault(owner: u32) -> Option<String> {
    (!is_own(owner)).then(|| {
        format!(
            "it belongs to another user (id {owner}), who may change it: give it to the user that \
             runs this process, or to root"
        )
    })
}

/// Whether a file's owner is this process's user, or root, who can do anything.
pub(crate) fn is_own(owner: u32) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, chown};

    /// A user that is neither root nor runs tests.
    const OTHER_USER: u32 = 12_345;

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

    #[test]
    fn a_file_that_others_may_change_is_refused_and_one_that_they_read_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca");
        write(&path, "certificate").unwrap();
        for mode in [0o666, 0o664, 0o646, 0o602, 0o620] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read_public(&path, 100).unwrap_err().to_string();
            assert!(
                error.contains(&format!("mode {mode:o}")) && error.contains("chmod 644"),
                "{error}"
            );
        }
        for mode in [0o644, 0o444, 0o600, 0o755] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_public(&path, 100).unwrap(), b"certificate");
        }
        assert!(read_public(&path, 5).is_err(), "larger than allowed");
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let me = rustix::process::geteuid().as_raw();
        for fault in [secret_fault, public_fault] {
            let told = fault(0o600, OTHER_USER).unwrap();
            assert!(told.contains("another user (id 12345)"), "{told}");
            assert_eq!((fault(0o600, me), fault(0o600, 0)), (None, None));
        }
        // Only root can give a file away.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        write(&path, "secret").unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        if chown(&path, Some(OTHER_USER), None).is_ok() {
            assert!(read(&path, 100).is_err() && read_public(&path, 100).is_err());
        }
    }
}
