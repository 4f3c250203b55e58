//! The checkpoint folder of a run: the checkpoints in it, the newest whole one, and those that may
//! be removed.

use super::checkpoint::{Checkpoint, manifests, read_part};
use super::error::CheckpointError;
use super::files::{is_of_a_part, manifest_of};
use super::handles::Folder;
use super::history::{History, longest};
use super::manifest::{Ancestor, Part};
use super::name::Name;
use super::trust::{EVERYBODY, Trust};
use slowmo_protocol::checkpoint::rank;
use slowmo_protocol::ident::{Lineage, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time without writes after which a left-behind checkpoint counts as given up; before that it may
/// belong to another cluster that is alive.
pub const UNTOUCHED: Duration = Duration::from_secs(60 * 60);

/// Number of whole checkpoints that stay of each branch that a history left behind: its newest,
/// from which the branch can be resumed.
pub const BRANCH_KEPT: usize = 1;

/// Most checkpoints that are looked at in a folder: more than a run writes in years, and their
/// names still take little memory.
pub const LISTED_MAX: usize = 1 << 20;

/// A checkpoint in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// The checkpoint's folder.
    pub path: PathBuf,
}

/// Most checkpoints that cannot be used of which the fault is kept for the log.
const REFUSED_MAX: usize = 64;

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Refused {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// The reason why it cannot be used.
    pub error: CheckpointError,
}

/// A folder of checkpoints, and whose manifests in it are believed; everybody's, if only the folder
/// is given.
#[derive(Clone, Copy, Debug)]
pub struct TrustedFolder<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// The trust in manifests.
    pub trust: &'a Trust,
}

impl<'a, P: AsRef<Path> + ?Sized> From<&'a P> for TrustedFolder<'a> {
    fn from(folder: &'a P) -> Self {
        Self {
            folder: folder.as_ref(),
            trust: &EVERYBODY,
        }
    }
}

impl TrustedFolder<'_> {
    fn open(&self, listed: &Path) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open_trusted(listed, self.trust)
    }

    /// Whether a manifest in a checkpoint's folder is believed.
    fn has_a_part(&self, listed: &Path) -> bool {
        let files = manifests(listed).unwrap_or_default();
        files
            .iter()
            .any(|(node, file)| matches!(read_part(listed, *node, file, self.trust), Ok(Ok(_))))
    }
}

/// Every checkpoint in a folder, whole or not, oldest first. Empty if the folder does not exist.
///
/// # Errors
/// The folder cannot be read, or there are more than `LISTED_MAX`.
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
            if found.len() > LISTED_MAX {
                return Err(CheckpointError::TooMuch {
                    folder: folder.to_owned(),
                    what: "1048576 checkpoints",
                });
            }
        }
    }
    found.sort_by_key(|listed| listed.name);
    Ok(found)
}

/// The newest checkpoint that is whole and believed, and whose values all match their digests and
/// are finite; and the newer ones, newest first, with the fault of each (at most 64).
///
/// # Errors
/// The folder cannot be read.
pub fn newest_whole<'a>(
    trusted: impl Into<TrustedFolder<'a>>,
) -> Result<(Option<Checkpoint>, Vec<Refused>), CheckpointError> {
    let trusted = trusted.into();
    let mut refused = Vec::new();
    for Listed { path, .. } in list(trusted.folder)?.into_iter().rev() {
        match trusted
            .open(&path)
            .and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint))
        {
            Ok(checkpoint) => return Ok((Some(checkpoint), refused)),
            // Older ones are tried, however many newer ones were planted.
            Err(error) if refused.len() < REFUSED_MAX => refused.push(Refused { path, error }),
            Err(_) => {}
        }
    }
    Ok((None, refused))
}

/// The run number for a history that is bootstrapped now: above every run that left something in
/// the folder that is believed, whole or not.
///
/// # Errors
/// The folder cannot be read.
pub fn next_run<'a>(trusted: impl Into<TrustedFolder<'a>>) -> Result<u32, CheckpointError> {
    let trusted = trusted.into();
    let mut listed = list(trusted.folder)?.into_iter().rev();
    let counts = |listed: &Listed| trusted.trust.is_everybody() || trusted.has_a_part(&listed.path);
    Ok(listed
        .find(counts)
        .map_or(0, |newest| newest.name.run.saturating_add(1)))
}

/// The newest whole checkpoints, at most `most`, that a training leaves behind if it continues from
/// `chosen`, or starts anew: newer ones, and those of other histories of the same run.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn others<'a>(
    trusted: impl Into<TrustedFolder<'a>>,
    chosen: Option<Name>,
    most: usize,
) -> Result<Vec<Name>, CheckpointError> {
    let beside = |name: Name, chosen: Name| {
        name > chosen || (name.run == chosen.run && name.lineage != chosen.lineage)
    };
    let trusted = trusted.into();
    let listed = list(trusted.folder)?
        .into_iter()
        .rev()
        .filter(|listed| chosen.is_none_or(|chosen| beside(listed.name, chosen)));
    Ok(listed
        .filter(|listed| trusted.open(&listed.path).is_ok())
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

/// The checkpoints whose values this process has read and found right, so that they are read once.
#[derive(Debug, Default)]
pub struct Verified(BTreeSet<Name>);

impl Verified {
    /// Whether a checkpoint's values are right.
    fn is_right(&mut self, trusted: TrustedFolder<'_>, listed: &Listed) -> bool {
        self.0.contains(&listed.name)
            || match trusted.open(&listed.path).and_then(|found| found.verify()) {
                Ok(()) => self.0.insert(listed.name),
                Err(error) => {
                    tracing::warn!(%error, "a checkpoint is damaged: older ones are kept");
                    false
                }
            }
    }
}

/// Removes the checkpoints of a history that are older than its newest whole ones, and those that
/// did not become whole: if a newer one did, if all nodes had the time to write it, or if it was
/// left behind by a history that this one continues from and has not been touched for
/// [`UNTOUCHED`]. Of a branch that was left behind and in which nothing was written for that time,
/// the newest whole checkpoints stay ([`BRANCH_KEPT`]). Checkpoints of others stay. A whole one
/// goes only if the values of a newer one that stays were read and found right: the last good one
/// is never removed. Returns the number removed.
///
/// # Errors
/// The folder cannot be read, or something in it not removed: the first such error. The rest is
/// removed all the same, and the failed one is tried again next time.
pub fn prune<'a>(
    trusted: impl Into<TrustedFolder<'a>>,
    keeps: Keeps,
    history: &History,
    verified: &mut Verified,
) -> Result<usize, CheckpointError> {
    let trusted = trusted.into();
    let listed = list(trusted.folder)?;
    if listed.is_empty() {
        return Ok(0);
    }
    let parent = Folder::open(trusted.folder)?;
    verified
        .0
        .retain(|name| listed.iter().any(|listed| listed.name == *name));
    let mut whole = Vec::new();
    let mut removed = 0;
    let mut failed = None;
    let mut newest = None;
    let mut good = None;
    let mut branches = Branches::of(&listed, history);
    for Listed { name, path } in listed
        .into_iter()
        .rev()
        .filter(|listed| is_own_folder(&listed.path))
    {
        let goes = if history.has(name) {
            let newest = *newest.get_or_insert(name.step);
            let found = (whole.len() < keeps.whole).then(|| trusted.open(&path));
            match found {
                // Looked for once, and only when something is about to go.
                None => {
                    let right = |kept: &Listed| verified.is_right(trusted, kept);
                    *good.get_or_insert_with(|| whole.iter().any(right))
                        || !trusted.open(&path).is_ok_and(|old| old.has_its_files())
                }
                Some(Ok(checkpoint)) => {
                    if checkpoint.has_its_files() {
                        let path = path.clone();
                        whole.push(Listed { name, path });
                    }
                    false
                }
                Some(Err(CheckpointError::Incomplete { .. })) => {
                    !whole.is_empty() || is_given_up(name.step, newest, keeps.spacing)
                }
                // A checkpoint that cannot be read now may be readable later.
                Some(Err(_)) => false,
            }
        } else {
            history.left_behind(name)
                && is_untouched(&path)
                && match trusted.open(&path) {
                    Ok(checkpoint) if checkpoint.has_its_files() => {
                        let path = path.clone();
                        branches.can_spare(trusted, Listed { name, path }, verified)
                    }
                    Ok(_) => false,
                    Err(error) => matches!(error, CheckpointError::Incomplete { .. }),
                }
        };
        let gone = if goes {
            remove(&parent, &name.to_string())
        } else {
            Ok(false)
        };
        match gone {
            Ok(gone) => removed += usize::from(gone),
            // Another node that found no room removed it first.
            Err(error) if error.is_gone() => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(removed), Err)
}

/// The branches that a history left behind, by run and lineage.
struct Branches(BTreeMap<(u32, Lineage), Branch>);

/// One of these branches.
#[derive(Default)]
struct Branch {
    /// Something was written to it lately: it may be alive.
    is_touched: bool,
    /// Its newest whole checkpoints, at most [`BRANCH_KEPT`].
    kept: Vec<Listed>,
}

impl Branches {
    fn of(listed: &[Listed], history: &History) -> Self {
        let mut branches: BTreeMap<_, Branch> = BTreeMap::new();
        for Listed { name, path } in listed {
            if history.left_behind(*name) {
                let branch = branches.entry((name.run, name.lineage)).or_default();
                branch.is_touched |= !is_untouched(path);
            }
        }
        Self(branches)
    }

    /// Whether a whole checkpoint of a branch may go; told of them from the newest to the oldest.
    fn can_spare(
        &mut self,
        trusted: TrustedFolder<'_>,
        listed: Listed,
        verified: &mut Verified,
    ) -> bool {
        let Some(branch) = self.0.get_mut(&(listed.name.run, listed.name.lineage)) else {
            return false;
        };
        if branch.kept.len() < BRANCH_KEPT {
            branch.kept.push(listed);
            return false;
        }
        let mut kept = branch.kept.iter();
        !branch.is_touched && kept.any(|kept| verified.is_right(trusted, kept))
    }
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
pub(super) fn newest_step<'a>(
    trusted: impl Into<TrustedFolder<'a>>,
    history: &History,
    known: Option<u64>,
) -> Result<Option<u64>, CheckpointError> {
    let newer = |listed: &Listed| {
        history.has(listed.name) && known.is_none_or(|known| listed.name.step > known)
    };
    let trusted = trusted.into();
    let mut listed = list(trusted.folder)?.into_iter().rev().filter(newer);
    Ok(listed
        .find(|listed| trusted.open(&listed.path).is_ok())
        .map(|listed| listed.name.step))
}

/// Whether a checkpoint is a real folder here: a link's target belongs to somebody else, and a file
/// is not a checkpoint.
fn is_own_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Removes the parts of a checkpoint, and its folder unless other files lie in it. Manifests go
/// first, so that nobody takes the rest for a checkpoint. Returns whether the folder is gone.
fn remove(parent: &Folder, name: &str) -> Result<bool, CheckpointError> {
    let folder = parent.within(name)?;
    for manifests in [true, false] {
        for name in folder.names()? {
            let name = name?;
            if is_of_a_part(&name) && (manifest_of(&name).is_some() || !manifests) {
                gone(folder.remove_file(&name))?;
            }
        }
    }
    match parent.remove_folder(name) {
        Err(CheckpointError::Io { error, .. }) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            Ok(false)
        }
        removed => gone(removed).map(|()| true),
    }
}

/// Treats a removal as successful if the file is gone, no matter who removed it.
fn gone(removed: Result<(), CheckpointError>) -> Result<(), CheckpointError> {
    match removed {
        Err(error) if error.is_gone() => Ok(()),
        removed => removed,
    }
}

/// The ancestors of a history according to its newest parts, for a node that joined it; empty if
/// there are no parts yet.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn ancestors_of<'a>(
    trusted: impl Into<TrustedFolder<'a>>,
    run: u32,
    lineage: Lineage,
) -> Result<Vec<Ancestor>, CheckpointError> {
    let own = |listed: &Listed| (listed.name.run, listed.name.lineage) == (run, lineage);
    let trusted = trusted.into();
    for Listed { path, .. } in list(trusted.folder)?.into_iter().rev().filter(own) {
        let files = manifests(&path)?;
        let found = longest(
            &files
                .iter()
                .filter_map(|(_, file)| Part::read_trusted(file, trusted.trust).ok())
                .collect::<Vec<_>>(),
        );
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}
