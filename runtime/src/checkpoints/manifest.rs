//! What a part says of itself and of the checkpoint that it belongs to: JSON, bounded, checked
//! before anything relies on it.

use super::error::CheckpointError;
use super::part::{self, parameters_of};
use serde::{Deserialize, Serialize};
use slowmo_protocol::ident::{Lineage, ShardId};
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::shards::Layout;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// The form that is written: a digest in front covers all of it.
pub const FORMAT: u32 = 2;
/// The form before, which had none. It is read as far as it makes sense in itself.
const FORMAT_WITHOUT_DIGEST: u32 = 1;
/// What a manifest begins with, before the digest of all that follows that.
const DIGEST_OPENS: &[u8] = b"{\"digest\":\"";
/// What comes behind the digest; the rest of the manifest follows.
const DIGEST_CLOSES: &[u8] = b"\",";
/// Digits of a digest.
const DIGEST_DIGITS: usize = 32;
/// What files of tensors keep for notes: no tensor's name.
const NOTES_NAME: &str = "__metadata__";
/// Longest manifest that is read; names and shapes of a model's tensors take most of it.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Histories that a manifest names as those that its own goes on from; what was before them is left
/// where it is.
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
    /// The histories that this one goes on from, newest first, as far as the node knows them: who
    /// joins learns them from the others' parts.
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
    /// Digest of the slow momentum of its parameters, if there is an outer optimizer and it has
    /// any.
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
    /// Values that were averaged: parameters, the model's buffers, and the optimizer's where those
    /// are averaged.
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
        self.shape
            .iter()
            .try_fold(1usize, |product, dimension| product.checked_mul(*dimension))
    }
}

/// A name for each tensor that no other has, in the same order: lists that nobody named call their
/// first one `tensor 0`, parameters and buffers alike. The first of a name keeps it.
#[must_use]
pub fn unique_names(tensors: &[Tensor]) -> Vec<String> {
    let mut taken: HashSet<String> = tensors
        .iter()
        .map(|tensor| tensor.name.clone())
        .chain([NOTES_NAME.to_owned()])
        .collect();
    let mut seen = HashSet::from([NOTES_NAME]);
    let mut tries = HashMap::new();
    let mut other = |tensor: &Tensor| {
        let base = if tensor.kind == Kind::Buffer {
            format!("buffer.{}", tensor.name)
        } else {
            tensor.name.clone()
        };
        if taken.insert(base.clone()) {
            return base;
        }
        let tried = tries.entry(base.clone()).or_insert(1usize);
        loop {
            *tried += 1;
            let numbered = format!("{base}.{tried}");
            if taken.insert(numbered.clone()) {
                return numbered;
            }
        }
    };
    tensors
        .iter()
        .map(|tensor| {
            if seen.insert(&tensor.name) {
                tensor.name.clone()
            } else {
                other(tensor)
            }
        })
        .collect()
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
        let addressable = self
            .elements
            .checked_mul(size_of::<f32>() as u64)
            .is_some_and(|bytes| bytes <= isize::MAX as u64);
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
        let file = part::open(path)?;
        file.take(MANIFEST_BYTES_MAX + 1)
            .read_to_end(&mut text)
            .map_err(CheckpointError::io(path))?;
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(CheckpointError::torn(path, "longer than any manifest"));
        }
        Self::parse(&text).map_err(|unread| match unread {
            Unread::Altered => CheckpointError::Altered {
                file: path.to_owned(),
                tensor: "the manifest".to_owned(),
            },
            Unread::None(why) => CheckpointError::torn(path, why),
        })
    }

    /// The manifest of this text.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &[u8]) -> Result<Self, Unread> {
        let digest = digest(text);
        if digest == Digest::Wrong {
            return Err(Unread::Altered);
        }
        let part: Self =
            serde_json::from_slice(text).map_err(|error| Unread::None(error.to_string()))?;
        match (digest, part.format) {
            (Digest::Fits, FORMAT) | (Digest::Missing, FORMAT_WITHOUT_DIGEST) => {}
            (Digest::Missing, FORMAT) => return Err(Unread::Altered),
            _ => return Err(Unread::None("of another version of slowmo".to_owned())),
        }
        part.contradiction().map_or(Ok(part), |contradiction| {
            Err(Unread::None(contradiction.to_owned()))
        })
    }

    /// Its text, with a digest in front that covers the rest. The form is the newest, whatever it
    /// was.
    ///
    /// # Errors
    /// It cannot be put into words.
    pub fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        let whole = serde_json::to_vec(&Self {
            format: FORMAT,
            ..self.clone()
        })?;
        let rest = whole.get(1..).unwrap_or_default();
        let digest = format!("{:0DIGEST_DIGITS$x}", xxh3_128(rest));
        Ok([DIGEST_OPENS, digest.as_bytes(), DIGEST_CLOSES, rest].concat())
    }

    fn contradiction(&self) -> Option<&'static str> {
        let layout = self.checkpoint.layout();
        let outside = |kept: &KeptShard| layout.range(ShardId(kept.shard)).is_empty();
        let header = &self.checkpoint;
        let forgotten = |kept: &KeptShard| {
            kept.momentum.is_none() && !parameters_of(header, ShardId(kept.shard)).is_empty()
        };
        match header.contradiction() {
            Some(contradiction) => Some(contradiction),
            None if self.shards.iter().any(outside) => {
                Some("it names a shard that the model does not have")
            }
            None if header.outer.is_some() && self.shards.iter().any(forgotten) => {
                Some("the slow momentum of a shard is missing")
            }
            None if self.ancestors.len() > ANCESTORS_MAX => {
                Some("it names more ancestors than any does")
            }
            None if self.file != format!("node-{}.safetensors", self.node) => {
                Some("its file is another node's")
            }
            None => None,
        }
    }
}

/// Why a text is no manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is not what was written.
    Altered,
    /// It never was one that this version reads: why.
    None(String),
}

/// What the digest in front of a manifest says of the rest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Digest {
    Fits,
    Wrong,
    Missing,
}

fn digest(text: &[u8]) -> Digest {
    let Some(behind) = text.strip_prefix(DIGEST_OPENS) else {
        return Digest::Missing;
    };
    let rest = behind
        .split_at_checked(DIGEST_DIGITS)
        .and_then(|(said, behind)| Some((said, behind.strip_prefix(DIGEST_CLOSES)?)));
    let fits = rest.is_some_and(|(said, rest)| {
        said == format!("{:0DIGEST_DIGITS$x}", xxh3_128(rest)).as_bytes()
    });
    if fits { Digest::Fits } else { Digest::Wrong }
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
        let number = if digits {
            u128::from_str_radix(&text, 16).ok()
        } else {
            None
        };
        number.ok_or_else(|| D::Error::custom("expected 32 hexadecimal digits"))
    }

    pub mod option {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        #[derive(Serialize, Deserialize)]
        struct Number(#[serde(with = "super")] u128);

        #[allow(clippy::ref_option)] // the signature that serde asks for
        pub fn serialize<S: Serializer>(
            number: &Option<u128>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            number.map(Number).serialize(serializer)
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<u128>, D::Error> {
            Ok(Option::<Number>::deserialize(deserializer)?.map(|Number(number)| number))
        }
    }
}
