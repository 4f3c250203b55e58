//! Errors of writing and reading checkpoints. After any of them, files that were whole before are
//! still whole.

use super::name::Name;
use std::io;
use std::path::{Path, PathBuf};

/// An error of writing or reading a checkpoint; see the module.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The disk failed, or the way to it.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. It is not a source of this error, whose text contains it already.
        error: io::Error,
    },
    /// Nothing can be written into the folder of checkpoints.
    #[error(
        "checkpoints cannot be written into {folder} ({why}): give the user of this process the \
         right to write there, or name another folder"
    )]
    NotWritable {
        /// The folder.
        folder: PathBuf,
        /// The system's error, with the path.
        why: Box<CheckpointError>,
    },
    /// A file ends early, or was not written by slowmo.
    #[error("{file} is torn, or not part of a checkpoint ({why})")]
    Torn {
        /// The file.
        file: PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// A link, a folder or something else has the name of a file.
    #[error("{file} is torn, or not part of a checkpoint (it is no file)")]
    NoFile {
        /// Its path.
        file: PathBuf,
    },
    /// A file's content differs from what was written.
    #[error("{file} was altered: the digest of {tensor} does not match")]
    Altered {
        /// The file.
        file: PathBuf,
        /// The altered tensor or other content.
        tensor: String,
    },
    /// A value to be written, or one that was read, is infinite or NaN.
    #[error(
        "{file}: {tensor}[{index}] = {value}: a checkpoint of it could not be resumed; an older \
         one is kept"
    )]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor in the file.
        tensor: String,
        /// Index in that tensor.
        index: usize,
        /// The infinity or NaN.
        value: f32,
    },
    /// A manifest that is another user's has no seal of this cluster.
    #[error(
        "{file} is of another user, and no node with this cluster's key wrote it: move its folder \
         away, or name the key with which it was written"
    )]
    NotTrusted {
        /// The manifest.
        file: PathBuf,
    },
    /// A folder, or the manifests in it, take more memory than any that slowmo wrote.
    #[error("{folder} holds more than {what}: move what does not belong there away")]
    TooMuch {
        /// The folder.
        folder: PathBuf,
        /// The bound.
        what: &'static str,
    },
    /// Parts of the checkpoint are missing.
    #[error(
        "{folder} is not complete: {missing} of {shards} shards are missing, because a node did \
         not write its part"
    )]
    Incomplete {
        /// The checkpoint's folder.
        folder: PathBuf,
        /// Shards that no manifest names.
        missing: usize,
        /// Number of all shards.
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
        "{folder} contains the checkpoint {holds}, so it was copied or renamed: give it that name, \
         or move it away"
    )]
    Misnamed {
        /// The folder.
        folder: PathBuf,
        /// The name that it should have.
        holds: Name,
    },
    /// A file would be replaced.
    #[error("{0} exists: name another file")]
    Exists(PathBuf),
    /// No checkpoint is complete, where one must be resumed from.
    #[error(
        "there is no complete checkpoint in {}, and resume = required: check the folder's name, or \
         begin without one with resume = newest",
        .0.display()
    )]
    NoneComplete(PathBuf),
    /// The requested checkpoint does not exist.
    #[error(
        "there is no checkpoint {name} in {folder}; slowmo checkpoint inspect {folder} lists them"
    )]
    NoSuch {
        /// The requested name.
        name: String,
        /// The folder that was searched.
        folder: PathBuf,
    },
}

impl CheckpointError {
    /// Whether the disk, or this user's quota on it, is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(
            self,
            Self::Io { error, .. } if matches!(error.kind(), StorageFull | QuotaExceeded)
        )
    }

    /// Whether the file to be read or removed does not exist.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// Adds the path to a system error.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
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
