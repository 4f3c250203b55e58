//! The file that records that a node is a member of a run (key `marker`): a node that finds it at
//! its start was restarted, and looks for that run before it bootstraps another one. Touches that
//! file only.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

/// The path of the marker, if one is configured.
#[derive(Clone, Debug, Default)]
pub struct Marker(Option<PathBuf>);

impl Marker {
    /// Creates a marker at this path; without a path there is no marker.
    #[must_use]
    pub fn new(path: Option<PathBuf>) -> Self {
        Self(path)
    }

    /// Whether the file exists: an earlier process was a member and did not leave.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.0
            .as_deref()
            .is_some_and(|path| std::fs::symlink_metadata(path).is_ok())
    }

    /// Records that this node has become a member of the run of this name.
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
            tracing::warn!(
                marker = %path.display(),
                %error,
                "the marker could not be created: after a restart this node may bootstrap a second \
                 run"
            );
        }
    }

    /// Records that this node left its run in order.
    pub fn remove(&self) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(
                marker = %path.display(),
                %error,
                "the marker could not be removed: remove it before a new run starts here"
            );
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
