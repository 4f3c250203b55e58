//! Why a checkpoint cannot be written or read. Whatever it was, files that were whole before are
//! whole still.

use super::folder::Name;
use std::io;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk, or the way to it.
    #[error("{path}: {error}")]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What the system said; no source of this error, which says it already.
        error: io::Error,
    },
    /// A file ends early, or is none of ours.
    #[error("{file} is torn or no checkpoint's ({why})")]
    Torn {
        /// Which.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A file is not what was written.
    #[error("{file} was altered: {tensor} is not what was written")]
    Altered {
        /// Which.
        file: PathBuf,
        /// What of it.
        tensor: String,
    },
    /// Parts are missing.
    #[error(
        "{folder} is not whole: {missing} of {shards} shards are missing, so a node did not get to write its part"
    )]
    Incomplete {
        /// Which checkpoint.
        folder: PathBuf,
        /// Shards that no manifest names.
        missing: usize,
        /// All shards.
        shards: usize,
    },
    /// Two parts do not belong together.
    #[error("{file} belongs to another checkpoint than the parts beside it: move it away")]
    Foreign {
        /// The part's manifest.
        file: PathBuf,
    },
    /// The folder has another checkpoint's name.
    #[error(
        "{folder} holds the checkpoint {holds}, so it was copied or renamed: give it that name, or move it away"
    )]
    Misnamed {
        /// Which folder.
        folder: PathBuf,
        /// The name that it should have.
        holds: Name,
    },
    /// A file would be replaced.
    #[error("{0} exists: name another file")]
    Exists(PathBuf),
    /// The checkpoint that was asked for.
    #[error(
        "there is no checkpoint {name} in {folder}; slowmo checkpoint inspect {folder} lists them"
    )]
    NoSuch {
        /// What was asked for.
        name: String,
        /// Where.
        folder: PathBuf,
    },
}

impl CheckpointError {
    /// Whether the disk, or what of it this user may take, is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { error, .. } if matches!(error.kind(), StorageFull | QuotaExceeded))
    }

    /// Whether what was to be read or removed is not there.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// Names the path of a system's error.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |error| Self::Io {
            path: path.to_owned(),
            error,
        }
    }

    pub(super) fn torn(file: &Path, why: impl ToString) -> Self {
        Self::Torn {
            file: file.to_owned(),
            why: why.to_string(),
        }
    }
}
