//! The disks of a run's nodes: one folder of checkpoints, which each node reaches by its own link.
//! While a node's disk is full, a file replaces its link: nothing can be written, whatever rights
//! the user has.

use super::ChaosError;
use slowmo::internal::checkpoints::newest_whole;
use slowmo_chaos::processes::report::Kept;
use std::fs::File;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The disks of a run's nodes.
pub struct Disks {
    folder: PathBuf,
    links: PathBuf,
}

impl Disks {
    /// Creates empty disks for these nodes in a folder of a run.
    pub fn create(
        parent: &Path,
        mut nodes: impl Iterator<Item = usize>,
    ) -> Result<Self, ChaosError> {
        let disks = Self {
            folder: parent.join("checkpoints"),
            links: parent.join("disks"),
        };
        for path in [&disks.folder, &disks.links] {
            let made = if path.exists() {
                std::fs::remove_dir_all(path)
            } else {
                Ok(())
            };
            made.and_then(|()| std::fs::create_dir_all(path))
                .map_err(failed(path))?;
        }
        nodes.try_for_each(|node| disks.fill(node, false))?;
        Ok(disks)
    }

    /// Path at which a node writes its checkpoints.
    pub fn of(&self, node: usize) -> PathBuf {
        self.links.join(format!("node-{node}"))
    }

    /// Makes a node's disk full from now on, or gives it room again.
    pub fn fill(&self, node: usize, full: bool) -> Result<(), ChaosError> {
        let path = self.of(node);
        let removed = match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        let put = || {
            if full {
                File::create(&path).map(drop)
            } else {
                symlink(&self.folder, &path)
            }
        };
        removed.and_then(|()| put()).map_err(failed(&path))
    }

    /// The checkpoints that exist after a run.
    pub fn kept(&self) -> Kept {
        match newest_whole(&self.folder) {
            Ok((found, refused)) => {
                let torn = |error: &slowmo::CheckpointError| {
                    !matches!(error, slowmo::CheckpointError::Incomplete { .. })
                };
                let wrong = refused
                    .iter()
                    .filter(|refused| torn(&refused.error))
                    .map(|refused| refused.error.to_string())
                    .collect();
                Kept {
                    step: found.map(|checkpoint| checkpoint.header().step),
                    wrong,
                }
            }
            Err(error) => Kept {
                step: None,
                wrong: vec![error.to_string()],
            },
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ChaosError + '_ {
    move |source| ChaosError::File {
        path: path.to_owned(),
        source,
    }
}
