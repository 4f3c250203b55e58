//! The checkpoint folder of a run: the checkpoints in it, the newest whole one, and those that may
//! be removed.

use super::checkpoint::{Checkpoint, manifests};
use super::error::CheckpointError;
use super::files::is_of_a_part;
use super::history::{History, longest};
use super::manifest::{Ancestor, Part};
use super::name::Name;
use slowmo_protocol::checkpoint::rank;
use slowmo_protocol::ident::{Lineage, Step};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time without writes after which a left-behind checkpoint counts as given up; before that it may
/// belong to another cluster that is alive.
pub const UNTOUCHED: Duration = Duration::from_secs(60 * 60);

/// A checkpoint in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// The checkpoint's folder.
    pub path: PathBuf,
}

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Refused {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// The reason why it cannot be used.
    pub error: CheckpointError,
}

/// Every checkpoint in a folder, whole or not, oldest first. Empty if the folder does not exist.
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
            found.push(Listed {
                name,
                path: entry.path(),
            });
        }
    }
    found.sort_by_key(|listed| listed.name);
    Ok(found)
}

/// The newest checkpoint that is whole and whose values all match their digests; and the newer
/// ones, newest first, with the fault of each.
///
/// # Errors
/// The folder cannot be read.
pub fn newest_whole(folder: &Path) -> Result<(Option<Checkpoint>, Vec<Refused>), CheckpointError> {
    let mut refused = Vec::new();
    for Listed { path, .. } in list(folder)?.into_iter().rev() {
        match Checkpoint::open(&path)
            .and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint))
        {
            Ok(checkpoint) => return Ok((Some(checkpoint), refused)),
            Err(error) => refused.push(Refused { path, error }),
        }
    }
    Ok((None, refused))
}

/// The run number for a history that is bootstrapped now: above every run that left something in
/// the folder, whole or not.
///
/// # Errors
/// The folder cannot be read.
pub fn next_run(folder: &Path) -> Result<u32, CheckpointError> {
    Ok(list(folder)?
        .last()
        .map_or(0, |newest| newest.name.run.saturating_add(1)))
}

/// The newest whole checkpoints, at most `most`, that a training leaves behind if it continues from
/// `chosen`, or starts anew: newer ones, and those of other histories of the same run.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn others(
    folder: &Path,
    chosen: Option<Name>,
    most: usize,
) -> Result<Vec<Name>, CheckpointError> {
    let beside = |name: Name, chosen: Name| {
        name > chosen || (name.run == chosen.run && name.lineage != chosen.lineage)
    };
    let listed = list(folder)?
        .into_iter()
        .rev()
        .filter(|listed| chosen.is_none_or(|chosen| beside(listed.name, chosen)));
    Ok(listed
        .filter(|listed| Checkpoint::open(&listed.path).is_ok())
        .map(|listed| listed.name)
        .take(most)
        .collect())
}

/// The retention rule for a history.
#[derive(Clone, Copy, Debug)]
pub struct Keeps {
    /// Number of whole checkpoints to keep.
    pub whole: usize,
    /// Inner steps from one checkpoint to the next.
    pub spacing: u64,
}

/// Removes the checkpoints of a history that are older than its newest whole ones, and those that
/// did not become whole: if a newer one did, if all nodes had the time to write it, or if it was
/// left behind by a history that this one continues from and has not been touched for
/// [`UNTOUCHED`]. Checkpoints of others stay. Returns the number removed.
///
/// # Errors
/// The folder cannot be read, or something in it not removed: the first such error. The rest is
/// removed all the same, and the failed one is tried again next time.
pub fn prune(folder: &Path, keeps: Keeps, history: &History) -> Result<usize, CheckpointError> {
    let mut whole = 0;
    let mut removed = 0;
    let mut failed = None;
    let mut newest = None;
    for Listed { name, path } in list(folder)?
        .into_iter()
        .rev()
        .filter(|listed| is_own_folder(&listed.path))
    {
        let goes = if history.has(name) {
            let newest = *newest.get_or_insert(name.step);
            let found = (whole < keeps.whole).then(|| Checkpoint::open(&path));
            whole +=
                usize::from(matches!(&found, Some(Ok(checkpoint)) if checkpoint.has_its_files()));
            match found {
                None => true,
                Some(Err(CheckpointError::Incomplete { .. })) => {
                    whole > 0 || is_given_up(name.step, newest, keeps.spacing)
                }
                // A checkpoint that cannot be read now may be readable later.
                Some(_) => false,
            }
        } else {
            history.left_behind(name)
                && is_untouched(&path)
                && matches!(
                    Checkpoint::open(&path),
                    Err(CheckpointError::Incomplete { .. })
                )
        };
        match if goes { remove(&path) } else { Ok(false) } {
            Ok(gone) => removed += usize::from(gone),
            // Another node that found no room removed it first.
            Err(error) if error.is_gone() => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(removed), Err)
}

/// Whether no node writes the checkpoint before `step` any more, though no newer one is whole. A
/// node that can keep up with every 2^r-th checkpoint begins one of rank r at the latest when the
/// next 2^r were due, and finishes it by the time as many more were due
/// ([`slowmo_protocol::checkpoint::replaces`]). So the number of kept checkpoints that are not
/// whole grows with the logarithm of the number that were due.
fn is_given_up(step: u64, newest: u64, spacing: u64) -> bool {
    let due_since = newest
        .saturating_sub(step)
        .checked_div(spacing)
        .unwrap_or(0);
    due_since
        > 2u64
            .checked_shl(rank(Step(step), spacing))
            .unwrap_or(u64::MAX)
}

/// Whether nothing in a folder was written for at least [`UNTOUCHED`].
fn is_untouched(folder: &Path) -> bool {
    let entries = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    std::iter::once(folder.to_owned())
        .chain(entries)
        .all(|path| {
            let written = fs::symlink_metadata(&path)
                .and_then(|found| found.modified())
                .ok();
            written
                .and_then(|written| written.elapsed().ok())
                .is_some_and(|since| since > UNTOUCHED)
        })
}

/// The step after the newest whole checkpoint of a history, if it is above `known`.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn newest_step(
    folder: &Path,
    history: &History,
    known: Option<u64>,
) -> Result<Option<u64>, CheckpointError> {
    let newer = |listed: &Listed| {
        history.has(listed.name) && known.is_none_or(|known| listed.name.step > known)
    };
    let mut listed = list(folder)?.into_iter().rev().filter(newer);
    Ok(listed
        .find(|listed| Checkpoint::open(&listed.path).is_ok())
        .map(|listed| listed.name.step))
}

/// Whether a checkpoint is a real folder here: a link's target belongs to somebody else, and a file
/// is not a checkpoint.
fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Removes the parts of a checkpoint, and its folder unless other files lie in it. Manifests go
/// first, so that nobody takes the rest for a checkpoint. Returns whether the folder is gone.
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

/// Treats a removal as successful if the file is gone, no matter who removed it.
fn gone(removed: std::io::Result<()>, path: &Path) -> Result<(), CheckpointError> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(CheckpointError::io(path)),
    }
}

/// The ancestors of a history according to its newest parts, for a node that joined it; empty if
/// there are no parts yet.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn ancestors_of(
    folder: &Path,
    run: u32,
    lineage: Lineage,
) -> Result<Vec<Ancestor>, CheckpointError> {
    let own = |listed: &Listed| (listed.name.run, listed.name.lineage) == (run, lineage);
    for Listed { path, .. } in list(folder)?.into_iter().rev().filter(own) {
        let files = manifests(&path)?;
        let found = longest(
            &files
                .iter()
                .filter_map(|(_, file)| Part::read(file).ok())
                .collect::<Vec<_>>(),
        );
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}
