//! The file that says that a node is a member of a run (key `marker`): whoever finds it at its
//! start was started again, and looks for that run before it founds another one. Touches that file
//! only.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// Where the marker is, if there is to be one.
#[derive(Clone, Debug, Default)]
pub struct Marker(Option<PathBuf>);

impl Marker {
    /// A marker at this path; none without one.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> Self {
        Self(path)
    }

    /// Whether an earlier process was a member and did not leave.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.0
            .as_deref()
            .is_some_and(|path| std::fs::symlink_metadata(path).is_ok())
    }

    /// This node has become a member of the run of this name.
    pub fn make(&self, run: &str) {
        let Some(path) = &self.0 else { return };
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .and_then(|mut file| writeln!(file, "{run}"));
        if let Err(error) = made
            && error.kind() != ErrorKind::AlreadyExists
        {
            tracing::warn!(marker = %path.display(), %error, "the marker could not be made: after a restart this node may found a second run");
        }
    }

    /// This node left its run in order.
    pub fn remove(&self) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(marker = %path.display(), %error, "the marker could not be removed: remove it before a new run starts here");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_there_from_the_first_membership_until_the_node_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let marker = Marker::new(Some(folder.path().join("member")));
        assert!(!marker.exists());
        marker.make("run");
        marker.make("another");
        assert!(marker.exists());
        assert_eq!(
            std::fs::read_to_string(folder.path().join("member")).unwrap(),
            "run\n"
        );
        marker.remove();
        marker.remove();
        assert!(!marker.exists() && !Marker::default().exists());
    }
}
