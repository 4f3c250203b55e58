//! What a part says of itself and of the checkpoint that it belongs to: JSON, bounded, checked before anything relies on it.

use super::error::CheckpointError;
use serde::{Deserialize, Serialize};
use slowmo_protocol::ident::{Lineage, ShardId};
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::shards::Layout;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The only form there is so far.
pub const FORMAT: u32 = 1;
/// Longest manifest that is read; names and shapes of a model's tensors take most of it.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Histories that a manifest names as those that its own goes on from; what was before them is left where it is.
pub const ANCESTORS_MAX: usize = 256;

/// The manifest of what one node wrote of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The form of all that follows.
    pub format: u32,
    /// Who wrote it.
    pub node: u64,
    /// Which start of it.
    pub incarnation: u64,
    /// When, in microseconds since 1970.
    pub written_at_us: u64,
    /// Its file, in the same folder.
    pub file: String,
    /// Bytes of that.
    pub bytes: u64,
    /// What is in it.
    pub shards: Vec<KeptShard>,
    /// The base optimizer's buffers of the node.
    pub optimizer: Option<Kept>,
    /// A word of the training code's own.
    pub cursor: Option<String>,
    /// The histories that this one goes on from, newest first, as far as the node knows them: who joins learns them from the others' parts.
    #[serde(default)]
    pub ancestors: Vec<Ancestor>,
    /// The checkpoint; the same in all of its parts.
    pub checkpoint: Header,
}

/// A history that another one goes on from: what it kept up to a step is the past of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Its founding.
    pub run: u32,
    /// Its lineage.
    #[serde(with = "hex")]
    pub lineage: u128,
    /// The inner step that follows the checkpoint that the other goes on from.
    pub step: u64,
}

/// A shard in a part's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptShard {
    /// Which.
    pub shard: u32,
    /// Digest of its values.
    #[serde(with = "hex")]
    pub values: u128,
    /// Digest of the slow momentum of its parameters, if there is an outer optimizer and it has any.
    #[serde(default, with = "hex::option", skip_serializing_if = "Option::is_none")]
    pub momentum: Option<u128>,
}

/// Another tensor in a part's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// How many values.
    pub values: u64,
    /// Their digest.
    #[serde(with = "hex")]
    pub digest: u128,
}

/// What a checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Which founding among those that used the folder.
    pub run: u32,
    /// The model history that decided it.
    #[serde(with = "hex")]
    pub lineage: u128,
    /// The inner step that follows.
    pub step: u64,
    /// The round of that history.
    pub round: u64,
    /// Rounds that were decided before it since the very start.
    pub rounds_before: u64,
    /// Values that were averaged: parameters, the model's buffers, and the optimizer's where those are averaged.
    pub elements: u64,
    /// How many of them are parameters.
    pub parameters: u64,
    /// The outer optimizer whose slow momentum was kept.
    pub outer: Option<String>,
    /// Shards whose momentum restarted at zero since the very start.
    pub momentum_lost: u64,
    /// The members after it, ascending.
    pub members: Vec<u64>,
    /// Which samples are left.
    pub samples: Option<Progress>,
    /// The model's tensors in flat order.
    pub tensors: Vec<Tensor>,
}

/// A tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// As training code names it.
    pub name: String,
    /// Its dimensions; one for plain slices.
    pub shape: Vec<usize>,
    /// What it is.
    pub kind: Kind,
}

/// What a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Trained.
    Parameter,
    /// A buffer of the model, averaged with the parameters.
    Buffer,
}

impl Tensor {
    /// How many values; `None` if that is no number.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |product, dimension| product.checked_mul(*dimension))
    }
}

impl Header {
    /// How the values are cut.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::new(usize::try_from(self.elements).unwrap_or(usize::MAX))
    }

    /// The model history.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        Lineage(self.lineage)
    }

    /// The parameters among the values.
    #[must_use]
    pub fn parameters(&self) -> usize {
        usize::try_from(self.parameters).unwrap_or(usize::MAX)
    }

    /// What contradicts itself, if anything does.
    fn contradiction(&self) -> Option<&'static str> {
        let addressable = self.elements.checked_mul(size_of::<f32>() as u64).is_some_and(|bytes| bytes <= isize::MAX as u64);
        let mut lengths = self.tensors.iter().map(Tensor::elements);
        let named = lengths.try_fold(0u64, |sum, length| sum.checked_add(length? as u64));
        match named {
            _ if !addressable || self.elements == 0 => Some("its size is none"),
            _ if self.parameters > self.elements => Some("it has more parameters than values"),
            Some(named) if named <= self.elements => None,
            _ => Some("its tensors are larger than the model"),
        }
    }
}

impl Part {
    /// Reads a manifest.
    ///
    /// # Errors
    /// It cannot be read, is too long, is no manifest, or contradicts itself.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        let mut text = Vec::new();
        let file = File::open(path).map_err(CheckpointError::io(path))?;
        file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text).map_err(CheckpointError::io(path))?;
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(CheckpointError::torn(path, "longer than any manifest"));
        }
        Self::parse(&text).map_err(|why| CheckpointError::torn(path, why))
    }

    /// The manifest of this text.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let part: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match part.contradiction() {
            Some(contradiction) => Err(contradiction.to_owned()),
            None => Ok(part),
        }
    }

    fn contradiction(&self) -> Option<&'static str> {
        let layout = self.checkpoint.layout();
        let outside = |kept: &KeptShard| layout.range(ShardId(kept.shard)).is_empty();
        let plain = !self.file.is_empty() && !self.file.contains(['/', '\\']) && !self.file.starts_with('.');
        match self.checkpoint.contradiction() {
            _ if self.format != FORMAT => Some("of another version of slowmo"),
            Some(contradiction) => Some(contradiction),
            None if self.shards.iter().any(outside) => Some("it names a shard that the model does not have"),
            None if self.ancestors.len() > ANCESTORS_MAX => Some("it names more ancestors than any does"),
            None if !plain => Some("its file is not beside it"),
            None => None,
        }
    }
}

/// Numbers of 128 bits as hexadecimal digits: JSON's own would lose some.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde asks for
    pub fn serialize<S: Serializer>(number: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:032x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| digits);
        number.ok_or_else(|| D::Error::custom("expected 32 hexadecimal digits"))
    }

    pub mod option {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        #[derive(Serialize, Deserialize)]
        struct Number(#[serde(with = "super")] u128);

        #[allow(clippy::ref_option)] // the signature that serde asks for
        pub fn serialize<S: Serializer>(number: &Option<u128>, serializer: S) -> Result<S::Ok, S::Error> {
            number.map(Number).serialize(serializer)
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u128>, D::Error> {
            Ok(Option::<Number>::deserialize(deserializer)?.map(|Number(number)| number))
        }
    }
}
