//! The private folder of one launch: its cluster key, token and sockets. Removed at the end; what a
//! killed launcher left behind is removed by the next command of this user that launches or looks
//! for a job, and only that: a folder of this user with a name of this module, whose lock nobody
//! holds.

use super::folder::{changing, folder, lock};
use nix::fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl};
use nix::unistd::getuid;
use std::fs::{File, Metadata, Permissions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use tempfile::TempDir;

/// Beginning of the names of the folders.
const PREFIX: &str = "run-";
/// Random letters and digits that follow it.
const RANDOM_CHARACTERS: usize = 6;
/// File in each folder that is locked while the launcher or one of its nodes lives.
const IN_USE: &str = "in-use";

/// A folder that only this user can enter. It counts as used as long as this process, or a process
/// that it started, lives.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: TempDir,
    _in_use: Flock<File>,
}

impl PrivateFolder {
    /// Removes folders and sockets that nobody uses any more, and creates a new folder.
    ///
    /// # Errors
    /// The folder of this user cannot be used; nothing was created.
    pub fn create() -> Result<Self, Error> {
        let parent = folder().map_err(Error::other)?;
        Self::create_in(&parent)
    }

    fn create_in(parent: &Path) -> Result<Self, Error> {
        // Nobody removes a folder between its creation and its lock.
        let _changing = changing(parent)?;
        remove_unused(parent);
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .rand_bytes(RANDOM_CHARACTERS)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let in_use = lock(&folder.path().join(IN_USE), FlockArg::LockExclusive)?;
        // The nodes inherit the lock: they may outlive a launcher that was killed.
        fcntl(&*in_use, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(Self {
            folder,
            _in_use: in_use,
        })
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes folders and sockets that nobody uses any more; what cannot be removed stays. The caller
/// holds the lock on changes of `parent`.
pub(super) fn remove_unused(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if is_named_here(&name) && is_own(&path, Metadata::is_dir) {
            let _kept = if is_unlocked(&path) {
                std::fs::remove_dir_all(&path)
            } else {
                // Without a lock it is removed if it is empty: its launcher was killed as it made
                // it.
                std::fs::remove_dir(&path)
            };
        }
        // A launcher that was killed left its socket; one that lives answers.
        let refused = |error: &Error| error.kind() == ErrorKind::ConnectionRefused;
        if name.ends_with(".sock") && UnixStream::connect(&path).is_err_and(|error| refused(&error))
        {
            let _kept = std::fs::remove_file(&path);
        }
    }
}

/// Whether [`PrivateFolder::create`] gives such names.
fn is_named_here(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).map(str::as_bytes);
    random.is_some_and(|random| {
        random.len() == RANDOM_CHARACTERS && random.iter().all(u8::is_ascii_alphanumeric)
    })
}

/// Whether this user owns what is there, and it is of this kind; links are not followed.
fn is_own(path: &Path, is: impl Fn(&Metadata) -> bool) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.uid() == getuid().as_raw() && is(&metadata))
}

/// Whether the folder has its lock file, and neither a launcher nor one of its nodes holds it.
fn is_unlocked(folder: &Path) -> bool {
    let in_use = folder.join(IN_USE);
    is_own(&in_use, Metadata::is_file)
        && File::open(in_use)
            .is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::folder::{JobError, find_in, open_in};
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// Longest time for which the process of another test may keep a folder.
    const LEFT_MAX: Duration = Duration::from_secs(10);

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// The launcher is killed: the system closes its files, and nothing else is done.
    fn kill(launcher: PrivateFolder) {
        let PrivateFolder { folder, _in_use } = launcher;
        let _path = folder.keep();
        let descriptor = _in_use.as_raw_fd();
        std::mem::forget(_in_use);
        nix::unistd::close(descriptor).unwrap();
    }

    #[test]
    fn who_looks_for_a_job_removes_what_a_killed_launcher_left_and_no_more() {
        let parent = tempfile::tempdir().unwrap();
        let server = open_in(parent.path(), "alive").unwrap();
        let alive = PrivateFolder::create_in(parent.path()).unwrap();
        let killed = PrivateFolder::create_in(parent.path()).unwrap();
        let left = killed.path().to_owned();
        for folder in [alive.path(), &left] {
            std::fs::write(folder.join("cluster.key"), "secret").unwrap();
        }
        kill(killed);
        let socket = parent.path().join("killed.sock");
        drop(UnixListener::bind(&socket).unwrap());
        // Another launcher is changing the folder: nobody waits for it.
        let changing = changing(parent.path()).unwrap();
        let (name, _socket) = find_in(parent.path(), None).unwrap();
        assert!(name == "alive" && left.exists());
        drop(changing);
        let begun = Instant::now();
        while left.exists() {
            // A process that another test starts inherits the lock, and lives for a moment.
            assert!(begun.elapsed() < LEFT_MAX, "keys are left behind");
            let unknown = find_in(parent.path(), Some("killed")).unwrap_err();
            assert!(matches!(unknown, JobError::Unknown { .. }), "{unknown}");
        }
        assert!(!socket.exists());
        assert!(alive.path().join("cluster.key").exists() && server.path().exists());
        assert_eq!(find_in(parent.path(), None).unwrap().0, "alive");
    }

    #[test]
    fn launches_at_once_remove_nothing_of_each_other() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for launch in 0..8 {
                let parent = parent.path();
                scope.spawn(move || {
                    for time in 0..50 {
                        let server = open_in(parent, &format!("{launch}-{time}")).unwrap();
                        let folder = PrivateFolder::create_in(parent).unwrap();
                        assert!(server.path().exists() && folder.path().exists());
                    }
                });
            }
        });
    }

    #[test]
    fn what_no_launch_made_stays() {
        let parent = tempfile::tempdir().unwrap();
        let folders = ["run-notes", "run-backup", "other"].map(|name| parent.path().join(name));
        for folder in &folders {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("text"), "kept").unwrap();
        }
        std::os::unix::fs::symlink(&folders[2], parent.path().join("run-abcdef")).unwrap();
        let empty = parent.path().join("run-aB3dE6");
        std::fs::create_dir(&empty).unwrap();
        drop(PrivateFolder::create_in(parent.path()).unwrap());
        assert!(folders.iter().all(|folder| folder.join("text").exists()));
        assert!(parent.path().join("run-abcdef").is_symlink());
        assert!(!empty.exists(), "its launcher was killed as it made it");
    }

    #[test]
    fn what_a_killed_launcher_left_behind_is_removed_by_the_next_launch() {
        let parent = tempfile::tempdir().unwrap();
        let one = PrivateFolder::create_in(parent.path()).unwrap();
        assert_eq!(mode(one.path()), 0o700);
        let used = one.path().to_owned();
        std::fs::write(used.join("cluster.key"), "secret").unwrap();
        // A node that outlives the launcher.
        let mut node = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        kill(one);
        let socket = parent.path().join("killed.sock");
        drop(UnixListener::bind(&socket).unwrap());
        let two = PrivateFolder::create_in(parent.path()).unwrap();
        assert!(used.exists(), "a node still uses it");
        assert!(!socket.exists());
        node.kill().unwrap();
        node.wait().unwrap();
        drop(PrivateFolder::create_in(parent.path()).unwrap());
        assert!(!used.exists(), "keys are left behind");
        assert!(two.path().exists());
    }
}
