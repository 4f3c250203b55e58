//! The folder of the launchers' sockets. This module touches that folder only. Whoever looks for a
//! job removes what killed launchers left there.

use super::private::remove_unused;
use super::server::Server;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::getuid;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// File that is locked while a launcher creates or removes something in the folder.
const CHANGING: &str = "changing";

/// Reasons why a job was not found.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// No launcher is running.
    #[error("no job is running; start one with slowmo launch")]
    None,
    /// Several jobs are running and none was named.
    #[error("several jobs are running ({}); choose one with --job NAME", .0.join(", "))]
    Several(Vec<String>),
    /// No running job has this name.
    #[error(
        "no job is named {name}; running: {}",
        if running.is_empty() { "none".to_owned() } else { running.join(", ") }
    )]
    Unknown {
        /// The requested name.
        name: String,
        /// Names of the running jobs.
        running: Vec<String>,
    },
    /// The name cannot be a file name.
    #[error("{0:?} cannot name a job: use letters, digits, - and _")]
    Name(String),
    /// A launcher of this name is already running.
    #[error("a job named {0} is running already; choose another --job NAME")]
    Taken(String),
    /// The folder of sockets cannot be used.
    #[error(
        "the folder {} cannot be used: {error}; set XDG_RUNTIME_DIR to a folder of this user's own",
        folder.display()
    )]
    Folder {
        /// Path of the folder.
        folder: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Finds the socket of the job with this name, or of the only running job.
///
/// # Errors
/// There is no job, there are several, or none has this name.
pub fn find(name: Option<&str>) -> Result<(String, PathBuf), JobError> {
    find_in(&folder()?, name)
}

pub(super) fn find_in(folder: &Path, name: Option<&str>) -> Result<(String, PathBuf), JobError> {
    // A launcher that changes something removes them itself. Nobody waits for it here: it may be
    // stopped.
    if let Ok(_changing) = lock(&folder.join(CHANGING), FlockArg::LockExclusiveNonblock) {
        remove_unused(folder);
    }
    let running = running(folder);
    let Some(name) = name else {
        return match running.as_slice() {
            [] => Err(JobError::None),
            [only] => Ok((only.clone(), socket_in(folder, only))),
            _ => Err(JobError::Several(running)),
        };
    };
    if running.iter().any(|job| job == name) {
        return Ok((name.to_owned(), socket_in(folder, name)));
    }
    Err(JobError::Unknown {
        name: name.to_owned(),
        running,
    })
}

/// Listens for a new job of this name.
///
/// # Errors
/// A job of this name is running, or the name or the folder is unusable.
pub fn open(name: &str) -> Result<Server, JobError> {
    let plain =
        |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err(JobError::Name(name.to_owned()));
    }
    open_in(&folder()?, name)
}

pub(super) fn open_in(folder: &Path, name: &str) -> Result<Server, JobError> {
    let unusable = |error| JobError::Folder {
        folder: folder.to_owned(),
        error,
    };
    // A socket that does not listen yet looks like one that a killed launcher left behind.
    let _changing = changing(folder).map_err(unusable)?;
    if running(folder).iter().any(|job| job == name) {
        return Err(JobError::Taken(name.to_owned()));
    }
    Server::open(&socket_in(folder, name)).map_err(unusable)
}

/// Waits until no other launcher creates or removes anything in the folder, and keeps the others
/// waiting until the lock is dropped.
pub(super) fn changing(folder: &Path) -> std::io::Result<Flock<File>> {
    lock(&folder.join(CHANGING), FlockArg::LockExclusive)
}

/// Locks a file, which is created if it is not there.
pub(super) fn lock(path: &Path, how: FlockArg) -> std::io::Result<Flock<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    Flock::lock(file, how).map_err(|(_, error)| error.into())
}

fn socket_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}

/// Names of the jobs whose launcher answers; sockets left behind by killed launchers do not count.
fn running(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| {
        entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_suffix(".sock").map(str::to_owned))
    });
    let mut names: Vec<String> = names
        .filter(|name| UnixStream::connect(socket_in(folder, name)).is_ok())
        .collect();
    names.sort();
    names
}

/// Returns the folder of sockets, which only this user can enter.
pub(super) fn folder() -> Result<PathBuf, JobError> {
    let user = getuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|runtime| !runtime.is_empty());
    let folder = match runtime {
        Some(runtime) => PathBuf::from(runtime).join("slowmo"),
        None => std::env::temp_dir().join(format!("slowmo-{user}")),
    };
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .and_then(|()| std::fs::symlink_metadata(&folder));
    let checked = made.and_then(|metadata| {
        let private = metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o077 == 0;
        if private {
            Ok(())
        } else {
            Err(std::io::Error::other(
                "it is not this user's own, closed to everybody else",
            ))
        }
    });
    checked
        .map(|()| folder.clone())
        .map_err(|error| JobError::Folder { folder, error })
}
