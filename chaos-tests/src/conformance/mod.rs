//! Runs recorded trajectories through the real runtime, one runtime per node, and compares every
//! value of every step.
//!
//! The objective makes a base step the same float32 arithmetic in any language: at step `s` worker
//! `i` uses the gradient `curvature[i][j]·(x[j] − target[i][s mod 7][j])`. The format is described
//! beside the files (`vectors/README.md`).

mod case;
mod run;

pub use case::{Case, CaseError};
pub use run::{RunError, run};

use crate::cluster::Link;
use std::path::{Path, PathBuf};

/// Largest absolute difference from a recorded value that passes.
pub const ERROR_MAX: f32 = 1e-5;

/// Result of one file.
#[derive(Debug)]
pub struct Verdict {
    /// Name of the case, or of the file if it could not be read.
    pub name: String,
    /// The largest absolute difference, or the reason why the file could not be run.
    pub result: Result<f32, Failure>,
}

/// The reason why a file could not be run.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The file is not a trajectory.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The trajectory could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Verdict {
    /// Whether every value is within [`ERROR_MAX`].
    #[must_use]
    pub fn passes(&self) -> bool {
        matches!(self.result, Ok(error) if error <= ERROR_MAX)
    }
}

/// The `.json` files of a folder, ascending by name.
///
/// # Errors
/// The folder cannot be read.
pub fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<_> = entries
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    Ok(files)
}

/// Reads and runs one file.
#[must_use]
pub fn check(path: &Path, link: Link) -> Verdict {
    match Case::read(path) {
        Ok(case) => Verdict {
            name: case.name.clone(),
            result: run(&case, link).map_err(Failure::Run),
        },
        Err(error) => Verdict {
            name: path.display().to_string(),
            result: Err(Failure::Case(error)),
        },
    }
}
