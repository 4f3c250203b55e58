//! The folder of a run: which checkpoints there are, which is the newest whole one, which may go.

use super::checkpoint::{Checkpoint, manifests};
use super::error::CheckpointError;
use super::history::{History, longest};
use super::manifest::{Ancestor, Header, Part};
use super::part::is_of_a_part;
use slowmo_protocol::ident::Lineage;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A checkpoint's name. Ordered by age: every founding takes a run above all that it finds in the folder, so what it writes is newer than
/// what it goes on from and than what it leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Which founding among those that used the folder.
    pub run: u32,
    /// The inner step that follows.
    pub step: u64,
    /// The model history.
    pub lineage: Lineage,
}

impl Name {
    /// The name of what a header describes.
    #[must_use]
    pub fn of(header: &Header) -> Self {
        Self { run: header.run, step: header.step, lineage: header.lineage() }
    }

    /// The checkpoint of this name; `None` if it is none's.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (run, rest) = text.strip_prefix("run-")?.split_once("-step-")?;
        let (step, lineage) = rest.split_once('-')?;
        let name = Self { run: run.parse().ok()?, step: step.parse().ok()?, lineage: Lineage(u128::from_str_radix(lineage, 16).ok()?) };
        (name.to_string() == text).then_some(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "run-{:04}-step-{:012}-{:032x}", self.run, self.step, self.lineage.0)
    }
}

/// A checkpoint in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// Where it is.
    pub path: PathBuf,
}

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Refused {
    /// Where it is.
    pub path: PathBuf,
    /// Why not.
    pub error: CheckpointError,
}

/// Every checkpoint in a folder, whole or not, oldest first. None if there is no such folder.
///
/// # Errors
/// The folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<Listed>, CheckpointError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(CheckpointError::io(folder))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(CheckpointError::io(folder))?;
        if let Some(name) = entry.file_name().to_str().and_then(Name::parse) {
            found.push(Listed { name, path: entry.path() });
        }
    }
    found.sort_by_key(|listed| listed.name);
    Ok(found)
}

/// The newest checkpoint that is whole and all of whose values are what was written; and the newer ones, newest first, with what is wrong
/// with each.
///
/// # Errors
/// The folder cannot be read.
pub fn newest_whole(folder: &Path) -> Result<(Option<Checkpoint>, Vec<Refused>), CheckpointError> {
    let mut refused = Vec::new();
    for Listed { path, .. } in list(folder)?.into_iter().rev() {
        match Checkpoint::open(&path).and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
            Ok(checkpoint) => return Ok((Some(checkpoint), refused)),
            Err(error) => refused.push(Refused { path, error }),
        }
    }
    Ok((None, refused))
}

/// The run of a history that is founded now: above every one that left something in the folder, whole or not.
///
/// # Errors
/// The folder cannot be read.
pub fn next_run(folder: &Path) -> Result<u32, CheckpointError> {
    Ok(list(folder)?.last().map_or(0, |newest| newest.name.run.saturating_add(1)))
}

/// The newest whole checkpoints, at most `most`, that a training leaves behind which goes on from `chosen`, or anew: newer ones, and those of
/// other histories of the same run.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn others(folder: &Path, chosen: Option<Name>, most: usize) -> Result<Vec<Name>, CheckpointError> {
    let beside = |name: Name, chosen: Name| name > chosen || (name.run == chosen.run && name.lineage != chosen.lineage);
    let listed = list(folder)?.into_iter().rev().filter(|listed| chosen.is_none_or(|chosen| beside(listed.name, chosen)));
    Ok(listed.filter(|listed| Checkpoint::open(&listed.path).is_ok()).map(|listed| listed.name).take(most).collect())
}

/// Removes what of a history is older than its newest `keep_last` whole checkpoints; what others wrote stays. Returns how many were removed.
///
/// # Errors
/// The folder cannot be read, or something in it not removed: the first such error. The rest is removed all the same, and that next time.
pub fn prune(folder: &Path, keep_last: usize, history: &History) -> Result<usize, CheckpointError> {
    let (mut whole, mut removed, mut failed) = (0, 0, None);
    for Listed { path, .. } in list(folder)?.into_iter().rev().filter(|listed| history.has(listed.name) && is_own_folder(&listed.path)) {
        if whole < keep_last {
            whole += usize::from(Checkpoint::open(&path).is_ok());
            continue;
        }
        match remove(&path) {
            Ok(gone) => removed += usize::from(gone),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(removed), Err)
}

/// Whether a checkpoint is a folder here: what is behind a link is somebody else's, and a file is no checkpoint.
fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Removes the parts of a checkpoint, and its folder unless something else lies in it. Manifests go first, so that nobody takes what is left
/// for a checkpoint. Returns whether the folder is gone.
fn remove(folder: &Path) -> Result<bool, CheckpointError> {
    for (_, manifest) in manifests(folder)? {
        gone(fs::remove_file(&manifest), &manifest)?;
    }
    for entry in fs::read_dir(folder).map_err(CheckpointError::io(folder))? {
        let entry = entry.map_err(CheckpointError::io(folder))?;
        if entry.file_name().to_str().is_some_and(is_of_a_part) {
            gone(fs::remove_file(entry.path()), &entry.path())?;
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(false),
        removed => gone(removed, folder).map(|()| true),
    }
}

/// Whether something is gone, whoever removed it.
fn gone(removed: std::io::Result<()>, path: &Path) -> Result<(), CheckpointError> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(CheckpointError::io(path)),
    }
}

/// The ancestors of a history as the newest parts of it say, for a node that joined it; none if there are none yet.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn ancestors_of(folder: &Path, run: u32, lineage: Lineage) -> Result<Vec<Ancestor>, CheckpointError> {
    let own = |listed: &Listed| (listed.name.run, listed.name.lineage) == (run, lineage);
    for Listed { path, .. } in list(folder)?.into_iter().rev().filter(own) {
        let files = manifests(&path)?;
        let found = longest(&files.iter().filter_map(|(_, file)| Part::read(file).ok()).collect::<Vec<_>>());
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}
