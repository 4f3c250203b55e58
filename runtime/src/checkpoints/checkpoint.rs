//! A whole checkpoint: manifests that belong together and cover the model. Reads the values that
//! they name, by ranges of the model, and checks them.

use super::error::CheckpointError;
use super::files::{OPTIMIZER, manifest_of, momentum_name, values_name};
use super::handles;
use super::manifest::{Header, Kept, KeptShard, Part, parameters_of};
use super::name::Name;
use super::tensor_file::{Hashing, TensorFile};
use super::trust::{EVERYBODY, Trust};
use crate::secret_file::is_own;
use slowmo_protocol::ident::ShardId;
use slowmo_protocol::view::MEMBERS_MAX;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most memory that the manifests of a checkpoint take while it is open, in bytes: a hundred times
/// what those of 4096 nodes without cursors take. One manifest at a time is read besides.
const HELD_BYTES_MAX: usize = 1 << 30;

/// Most manifests of other users that are looked at in a checkpoint's folder: those of a few users
/// whose nodes are a cluster together.
const OTHERS_LISTED_MAX: usize = 4 * MEMBERS_MAX;

/// A whole checkpoint; see the module.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    header: Header,
    /// The parts, ascending by node.
    parts: Vec<Part>,
    /// For each shard the index of the part that holds it, and the manifest's entry for it.
    places: BTreeMap<u32, (usize, KeptShard)>,
}

impl Checkpoint {
    /// Reads the manifests of a checkpoint, and none of the values yet.
    ///
    /// # Errors
    /// Parts are missing, do not belong together or to the folder's name, or a manifest cannot be
    /// read.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        Self::open_trusted(folder, &EVERYBODY)
    }

    /// The same, of nodes that are trusted.
    ///
    /// # Errors
    /// As for [`Checkpoint::open`], or one of the manifests is not of anybody who is trusted.
    pub(super) fn open_trusted(folder: &Path, trust: &Trust) -> Result<Self, CheckpointError> {
        let mut parts = Vec::new();
        let mut header = None;
        let mut held = 0;
        let mut refused = None;
        let mut files = manifests(folder)?;
        files.sort();
        for (node, file) in files {
            let mut part = match read_part(folder, node, &file, trust)? {
                Ok(part) => part,
                Err(left_out) => {
                    refused = Some(left_out);
                    continue;
                }
            };
            let header = header.get_or_insert_with(|| part.checkpoint.clone());
            if part.node != node || part.checkpoint != *header {
                return Err(CheckpointError::Foreign { file });
            }
            // The header is held once: it is most of a manifest.
            part.checkpoint.tensors = Vec::new();
            part.checkpoint.members = Vec::new();
            held += part.held_bytes();
            if held > HELD_BYTES_MAX {
                return Err(CheckpointError::TooMuch {
                    folder: folder.to_owned(),
                    what: "1 GiB of manifests",
                });
            }
            parts.push(part);
        }
        let Some(header) = header else {
            let nothing = CheckpointError::Incomplete {
                folder: folder.to_owned(),
                missing: 1,
                shards: 1,
            };
            return Err(refused.unwrap_or(nothing));
        };
        let holds = header.name();
        if own_name(folder) != Some(holds) {
            return Err(CheckpointError::Misnamed {
                folder: folder.to_owned(),
                holds,
            });
        }
        let mut places = BTreeMap::new();
        for (index, part) in parts.iter().enumerate() {
            places.extend(
                part.shards
                    .iter()
                    .map(|kept| (kept.shard, (index, kept.clone()))),
            );
        }
        let shards = header.layout().shard_count();
        if places.len() < shards {
            let incomplete = CheckpointError::Incomplete {
                folder: folder.to_owned(),
                missing: shards - places.len(),
                shards,
            };
            return Err(refused.unwrap_or(incomplete));
        }
        Ok(Self {
            folder: folder.to_owned(),
            header,
            parts,
            places,
        })
    }

    /// The checkpoint's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The description of the checkpoint's contents.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The parts, ascending by node; tensors and members are in the header only.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Total bytes of its files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Whether the files that its manifests name exist and have the lengths given there.
    #[must_use]
    pub fn has_its_files(&self) -> bool {
        let is_there = |part: &Part| {
            handles::open(&self.folder.join(&part.file))
                .is_ok_and(|(_, length, _)| length == part.bytes)
        };
        self.parts.iter().all(is_there)
    }

    /// Reads every value, checks it against its digest, and that it is finite.
    ///
    /// # Errors
    /// The first file that is torn or altered, or value that is not finite.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        for part in &self.parts {
            let file = self.file(part)?;
            if file.bytes() != part.bytes {
                return Err(CheckpointError::torn(
                    &self.folder.join(&part.file),
                    "its length is not what its manifest says",
                ));
            }
            for kept in &part.shards {
                self.read_values(&file, kept, |_| {})?;
                self.read_momentum(&file, kept, |_| {})?;
            }
            if let Some(kept) = &part.optimizer {
                file.read(
                    OPTIMIZER,
                    usize::try_from(kept.values).unwrap_or(usize::MAX),
                    kept.digest,
                    |_| {},
                )?;
            }
        }
        Ok(())
    }

    /// Passes all values to `take` in flat order, in pieces.
    ///
    /// # Errors
    /// A file cannot be read or is altered; the values before it were passed on.
    pub fn values(&self, mut take: impl FnMut(&[f32])) -> Result<(), CheckpointError> {
        let mut open: Option<(usize, TensorFile)> = None;
        for (index, kept) in self.places.values() {
            let file = match open.take() {
                Some((of, file)) if of == *index => file,
                _ => self.file(&self.parts[*index])?,
            };
            self.read_values(&file, kept, &mut take)?;
            open = Some((*index, file));
        }
        Ok(())
    }

    /// Copies the slow momentum of some parameters into `momentum`, which is as long as the range;
    /// zeros where none was stored.
    ///
    /// # Errors
    /// A file cannot be read or is altered.
    pub fn momentum(
        &self,
        range: Range<usize>,
        momentum: &mut [f32],
    ) -> Result<(), CheckpointError> {
        momentum.fill(0.0);
        for (index, kept) in self.places.values() {
            let has = parameters_of(&self.header, ShardId(kept.shard));
            let from = has.start.max(range.start);
            let to = has.end.min(range.end);
            if from >= to {
                continue;
            }
            let file = self.file(&self.parts[*index])?;
            let mut at = has.start;
            self.read_momentum(&file, kept, |values| {
                let first = from.max(at);
                let last = to.min(at + values.len());
                if first < last {
                    momentum[first - range.start..last - range.start]
                        .copy_from_slice(&values[first - at..last - at]);
                }
                at += values.len();
            })?;
        }
        Ok(())
    }

    /// Number of nodes that stored their base optimizer's buffers.
    #[must_use]
    pub fn optimizers(&self) -> usize {
        self.kept_optimizers().count()
    }

    /// Number of values that [`Checkpoint::optimizer`] would read.
    #[must_use]
    pub fn optimizer_values(&self, rank: usize) -> Option<u64> {
        self.optimizer_of(rank).map(|(_, kept)| kept.values)
    }

    /// Those of members first: who left with the round that the checkpoint is of comes after them.
    fn kept_optimizers(&self) -> impl Iterator<Item = (&Part, &Kept)> {
        let is_member = |part: &&Part| self.header.members.binary_search(&part.node).is_ok();
        let members = self.parts.iter().filter(is_member);
        let left = self.parts.iter().filter(move |part| !is_member(part));
        members
            .chain(left)
            .filter_map(|part| Some((part, part.optimizer.as_ref()?)))
    }

    fn optimizer_of(&self, rank: usize) -> Option<(&Part, &Kept)> {
        let index = rank.checked_rem(self.optimizers())?;
        self.kept_optimizers().nth(index)
    }

    /// The base optimizer's buffers of one of the nodes that stored some, the one at index `rank`
    /// modulo their number; `None` if none did. Members come first, ascending, then nodes that left
    /// with the round.
    ///
    /// # Errors
    /// The file cannot be read or is altered.
    pub fn optimizer(&self, rank: usize) -> Result<Option<Vec<f32>>, CheckpointError> {
        let Some((part, kept)) = self.optimizer_of(rank) else {
            return Ok(None);
        };
        let length = usize::try_from(kept.values).unwrap_or(usize::MAX);
        let mut values = Vec::new();
        self.file(part)?
            .read(OPTIMIZER, length, kept.digest, |part| {
                values.extend_from_slice(part)
            })?;
        Ok(Some(values))
    }

    fn file(&self, part: &Part) -> Result<TensorFile, CheckpointError> {
        TensorFile::open(&self.folder.join(&part.file), Hashing::of(part.format))
    }

    fn read_values(
        &self,
        file: &TensorFile,
        kept: &KeptShard,
        take: impl FnMut(&[f32]),
    ) -> Result<(), CheckpointError> {
        let length = self.header.layout().range(ShardId(kept.shard)).len();
        file.read(&values_name(kept.shard), length, kept.values, take)
    }

    fn read_momentum(
        &self,
        file: &TensorFile,
        kept: &KeptShard,
        take: impl FnMut(&[f32]),
    ) -> Result<(), CheckpointError> {
        let Some(digest) = kept.momentum else {
            return Ok(());
        };
        let length = parameters_of(&self.header, ShardId(kept.shard)).len();
        file.read(&momentum_name(kept.shard), length, digest, take)
    }
}

/// Reads a manifest. The inner error is that of a file which is left out: what others add to a
/// folder makes what the cluster wrote no less whole. It counts only if a shard is then missing.
pub(super) fn read_part(
    folder: &Path,
    node: u64,
    file: &Path,
    trust: &Trust,
) -> Result<Result<Part, CheckpointError>, CheckpointError> {
    let is_of_others =
        || fs::symlink_metadata(file).is_ok_and(|found| !trust.needs_no_seal(found.uid()));
    let part = match Part::read_trusted(file, trust) {
        Ok(part) => part,
        Err(error @ (CheckpointError::NotTrusted { .. } | CheckpointError::NoFile { .. })) => {
            return Ok(Err(error));
        }
        // Others may forbid this user to read their file.
        Err(error @ CheckpointError::Io { .. }) if is_of_others() => return Ok(Err(error)),
        Err(error) => return Err(error),
    };
    let holds = part.checkpoint.name();
    let is_misnamed = own_name(folder) != Some(holds);
    // Others may copy a manifest that the cluster sealed from another checkpoint, or under another
    // node's name.
    if (part.node != node || is_misnamed) && is_of_others() {
        return Ok(Err(if is_misnamed {
            CheckpointError::Misnamed {
                folder: folder.to_owned(),
                holds,
            }
        } else {
            CheckpointError::Foreign {
                file: file.to_owned(),
            }
        }));
    }
    Ok(Ok(part))
}

/// The checkpoint name given by a folder's name.
fn own_name(folder: &Path) -> Option<Name> {
    let whole = std::path::absolute(folder).ok()?;
    whole
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(Name::parse)
}

/// The manifests in a checkpoint's folder with their nodes, in any order; of each user at most as
/// many as a view has members, and of users other than this one and root at most
/// [`OTHERS_LISTED_MAX`]: what one adds takes no place of the cluster's own. Other files in the
/// folder are ignored.
pub(super) fn manifests(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut found = Vec::new();
    let mut counts = BTreeMap::<Option<u32>, usize>::new();
    let mut others = 0;
    for entry in fs::read_dir(folder).map_err(CheckpointError::io(folder))? {
        let entry = entry.map_err(CheckpointError::io(folder))?;
        let Some(node) = entry.file_name().to_str().and_then(manifest_of) else {
            continue;
        };
        let owner = entry.metadata().ok().map(|found| found.uid());
        let other = owner.filter(|owner| !is_own(*owner));
        if other.is_some() && others >= OTHERS_LISTED_MAX {
            continue;
        }
        let count = counts.entry(other).or_default();
        if *count < MEMBERS_MAX {
            *count += 1;
            others += usize::from(other.is_some());
            found.push((node, entry.path()));
        }
    }
    Ok(found)
}
