//! What a node tells the launcher that started it of its end: a file beside its admin socket, which
//! nobody serves once the process has ended. Touches that file only.

use crate::status::{CheckpointStatus, Status};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Extension of the file; its name is that of the admin socket.
const EXTENSION: &str = "end.json";

/// How a node left its run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Departure {
    /// It was asked to leave before its training was over.
    Drained,
    /// Its training was over and called `leave()`.
    Finished,
}

/// The last report of a node that was a member of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReport {
    /// How the node left its run; `None` if it did not leave in order.
    pub left: Option<Departure>,
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
    /// How the node left in order, which nothing that comes later changes.
    left: Mutex<Option<Departure>>,
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
    pub fn write(&self, left: Option<Departure>, status: impl FnOnce() -> Status) {
        let Some(path) = &self.path else { return };
        let mut known = self.left.lock();
        *known = known.or(left);
        let status = status();
        let report = LastReport {
            left: *known,
            step: status
                .training
                .map_or(status.step, |training| training.step),
            checkpoints: status.checkpoints,
        };
        let written = serde_json::to_vec(&report)
            .map_err(std::io::Error::other)
            .and_then(|json| replace(path, &json));
        if let Err(error) = written {
            tracing::debug!(%error, "the launcher is not told how this node ends");
        }
    }

    /// [`Reporter::write`] where the node was a member: a first report was written.
    pub fn renew(&self, status: impl FnOnce() -> Status) {
        if self.path.as_ref().is_some_and(|path| path.exists()) {
            self.write(None, status);
        }
    }
}

/// Replaces a file as a whole: a node that is killed meanwhile leaves the report before.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes)?;
    std::fs::rename(new, path)
}
