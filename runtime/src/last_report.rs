//! What a node tells the launcher that started it of its end: a file beside its admin socket, which
//! nobody serves once the process has ended. Touches that file only.

use crate::status::{CheckpointStatus, Status};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Extension of the file; its name is that of the admin socket.
const EXTENSION: &str = "end.json";

/// The last report of a node that was a member of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReport {
    /// Whether the node left its run in order: by `leave()`, or drained.
    pub left: bool,
    /// The inner step of its training.
    pub step: u64,
    /// Counts and errors of its parts of checkpoints, if it wrote any.
    pub checkpoints: Option<CheckpointStatus>,
}

impl LastReport {
    /// The file of the node with this admin socket.
    #[must_use]
    pub fn path(admin: &Path) -> PathBuf {
        admin.with_extension(EXTENSION)
    }

    /// Reads the report of the node with this admin socket; `None` if it was no member of a run.
    #[must_use]
    pub fn read(admin: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(Self::path(admin)).ok()?).ok()
    }
}

/// Writes the last report, if there is a launcher that reads it.
#[derive(Debug, Default)]
pub struct Reporter {
    path: Option<PathBuf>,
    /// Whether the node left in order, which nothing that comes later changes.
    left: Mutex<bool>,
}

impl Reporter {
    /// Reports to the launcher that knows the node by this admin socket, if any.
    pub fn new(admin: Option<&Path>) -> Self {
        Self {
            path: admin.map(LastReport::path),
            left: Mutex::default(),
        }
    }

    /// Replaces the report by the present state of the node, if it was ever a member.
    pub fn write(&self, left: bool, status: impl FnOnce() -> Status) {
        let Some(path) = &self.path else { return };
        let mut has_left = self.left.lock();
        *has_left |= left;
        let status = status();
        let report = LastReport {
            left: *has_left,
            step: status
                .training
                .map_or(status.step, |training| training.step),
            checkpoints: status.checkpoints,
        };
        let written = serde_json::to_vec(&report)
            .map_err(std::io::Error::other)
            .and_then(|json| std::fs::write(path, json));
        if let Err(error) = written {
            tracing::debug!(%error, "the launcher is not told how this node ends");
        }
    }

    /// [`Reporter::write`] at the end of a node, where it was a member: a first report was written.
    pub fn end(&self, status: impl FnOnce() -> Status) {
        if self.path.as_ref().is_some_and(|path| path.exists()) {
            self.write(false, status);
        }
    }
}
