//! The folder of a run: which checkpoints there are, which is the newest whole one, which may go.

use super::checkpoint::{Checkpoint, manifests};
use super::error::CheckpointError;
use super::history::{History, longest};
use super::manifest::{Ancestor, Header, Part};
use super::part::is_of_a_part;
use slowmo_protocol::checkpoint::rank;
use slowmo_protocol::ident::{Lineage, Step};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long nobody writes into a checkpoint that is given up by whoever left it behind; it may be
/// another cluster's that lives.
pub const UNTOUCHED: Duration = Duration::from_secs(60 * 60);

/// A checkpoint's name. Ordered by age: every founding takes a run above all that it finds in the
/// folder, so what it writes is newer than what it goes on from and than what it leaves behind.
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
        Self {
            run: header.run,
            step: header.step,
            lineage: header.lineage(),
        }
    }

    /// The checkpoint of this name; `None` if it is none's.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (run, rest) = text.strip_prefix("run-")?.split_once("-step-")?;
        let (step, lineage) = rest.split_once('-')?;
        let name = Self {
            run: run.parse().ok()?,
            step: step.parse().ok()?,
            lineage: Lineage(u128::from_str_radix(lineage, 16).ok()?),
        };
        (name.to_string() == text).then_some(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "run-{:04}-step-{:012}-{:032x}",
            self.run, self.step, self.lineage.0
        )
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
            found.push(Listed {
                name,
                path: entry.path(),
            });
        }
    }
    found.sort_by_key(|listed| listed.name);
    Ok(found)
}

/// The newest checkpoint that is whole and all of whose values are what was written; and the newer
/// ones, newest first, with what is wrong with each.
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

/// The run of a history that is founded now: above every one that left something in the folder,
/// whole or not.
///
/// # Errors
/// The folder cannot be read.
pub fn next_run(folder: &Path) -> Result<u32, CheckpointError> {
    Ok(list(folder)?
        .last()
        .map_or(0, |newest| newest.name.run.saturating_add(1)))
}

/// The newest whole checkpoints, at most `most`, that a training leaves behind which goes on from
/// `chosen`, or anew: newer ones, and those of other histories of the same run.
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

/// What is kept of a history.
#[derive(Clone, Copy, Debug)]
pub struct Keeps {
    /// Whole checkpoints.
    pub whole: usize,
    /// Inner steps from one to the next.
    pub spacing: u64,
}

/// Removes what of a history is older than its newest whole checkpoints, and what did not become
/// whole: where a newer one did, where all had the time to write it, or where it was left behind by
/// what this history goes on from and nobody has touched it for [`UNTOUCHED`]. What others wrote
/// stays. Returns how many were removed.
///
/// # Errors
/// The folder cannot be read, or something in it not removed: the first such error. The rest is
/// removed all the same, and that next time.
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
                // What cannot be read now may be later.
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
            // Whoever else found no room was faster.
            Err(error) if error.is_gone() => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(removed), Err)
}

/// Whether nobody writes the checkpoint before `step` any more, though no newer one is whole. A
/// node that can keep up with every 2^r-th begins one of rank r at the latest when the next 2^r
/// were due, and is done with it when as many more were
/// ([`slowmo_protocol::checkpoint::replaces`]). So what is kept of those that are not whole grows
/// with the logarithm of how many were due.
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

/// Whether nothing in a folder was written for [`UNTOUCHED`].
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

/// The step behind the newest whole checkpoint of a history, if it is above `known`.
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

/// Whether a checkpoint is a folder here: what is behind a link is somebody else's, and a file is
/// no checkpoint.
fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Removes the parts of a checkpoint, and its folder unless something else lies in it. Manifests go
/// first, so that nobody takes what is left for a checkpoint. Returns whether the folder is gone.
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

/// The ancestors of a history as the newest parts of it say, for a node that joined it; none if
/// there are none yet.
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
