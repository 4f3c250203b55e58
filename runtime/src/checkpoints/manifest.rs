//! The manifest of a part: its description of the part and of the checkpoint that it belongs to, as
//! JSON of bounded size, checked before anything relies on it.

use super::error::CheckpointError;
use super::handles;
use super::name::Name;
use super::trust::{EVERYBODY, SEAL_CLOSES, SEAL_DIGITS, SEAL_OPENS, Trust};
use serde::{Deserialize, Serialize};
use slowmo_protocol::ident::{Lineage, ShardId};
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::shards::Layout;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// The format that is written: a digest in front covers the whole manifest, a seal may follow, and
/// the digests of values are SHA-256, cut to 128 bits.
pub const FORMAT: u32 = 3;
/// The format before, whose digests of values are XXH3-128: they detect damage, not forgery.
pub(super) const FORMAT_WITH_XXH3: u32 = 2;
/// The first format, without a digest. It is read if it is consistent in itself.
const FORMAT_WITHOUT_DIGEST: u32 = 1;
/// Opening bytes of a manifest; the digest of the rest follows.
const DIGEST_OPENS: &[u8] = b"{\"digest\":\"";
/// Bytes after the digest; the rest of the manifest follows.
const DIGEST_CLOSES: &[u8] = b"\",";
/// Hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 32;
/// Bytes of a manifest that show whether it has a seal.
const HEAD_BYTES: usize = DIGEST_OPENS.len()
    + DIGEST_DIGITS
    + DIGEST_CLOSES.len()
    + SEAL_OPENS.len()
    + SEAL_DIGITS
    + SEAL_CLOSES.len();
/// The safetensors key for notes, which cannot be a tensor's name.
const NOTES_NAME: &str = "__metadata__";
/// Longest manifest that is read, in bytes; names and shapes of a model's tensors take most of it,
/// about 100 bytes each.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of ancestors in a manifest; checkpoints of older ones are left in place.
pub const ANCESTORS_MAX: usize = 256;

/// The range of a shard's parameters.
pub fn parameters_of(header: &Header, shard: ShardId) -> Range<usize> {
    let range = header.layout().range(shard);
    let parameters = header.parameters();
    range.start.min(parameters)..range.end.min(parameters)
}

/// The manifest of one node's part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The format of the other fields.
    pub format: u32,
    /// The node that wrote it.
    pub node: u64,
    /// The node's incarnation.
    pub incarnation: u64,
    /// Time of writing, in microseconds since 1970.
    pub written_at_us: u64,
    /// The part's file, in the same folder.
    pub file: String,
    /// Bytes of that file.
    pub bytes: u64,
    /// The shards in the file.
    pub shards: Vec<KeptShard>,
    /// The base optimizer's buffers of the node.
    pub optimizer: Option<Kept>,
    /// An opaque text of the training code.
    pub cursor: Option<String>,
    /// The histories that this one continues from, newest first, as far as the node knows them: a
    /// node that joins learns them from the others' parts.
    #[serde(default)]
    pub ancestors: Vec<Ancestor>,
    /// The checkpoint's header; identical in all of its parts.
    pub checkpoint: Header,
}

/// A history that another one continues from: its checkpoints up to a step are the past of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// Run number of its bootstrap.
    pub run: u32,
    /// Its lineage.
    #[serde(with = "hex")]
    pub lineage: u128,
    /// The inner step that follows the checkpoint from which the other history continues.
    pub step: u64,
}

/// A shard in a part's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptShard {
    /// The shard's number.
    pub shard: u32,
    /// Digest of its values.
    #[serde(with = "hex")]
    pub values: u128,
    /// Digest of the slow momentum of its parameters, if there is an outer optimizer and it has any
    /// momentum.
    #[serde(default, with = "hex::option", skip_serializing_if = "Option::is_none")]
    pub momentum: Option<u128>,
}

/// Another tensor in a part's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Number of values.
    pub values: u64,
    /// Their digest.
    #[serde(with = "hex")]
    pub digest: u128,
}

/// The description of a checkpoint's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Number of the bootstrap among those that used the folder, from 0.
    pub run: u32,
    /// The model history that decided the checkpoint's round.
    #[serde(with = "hex")]
    pub lineage: u128,
    /// The inner step that follows.
    pub step: u64,
    /// The round within that history.
    pub round: u64,
    /// Rounds that were decided before that history, since the first bootstrap.
    pub rounds_before: u64,
    /// Number of averaged values: parameters, the model's buffers, and the optimizer's where those
    /// are averaged.
    pub elements: u64,
    /// Number of parameters among them.
    pub parameters: u64,
    /// The outer optimizer whose slow momentum was stored.
    pub outer: Option<String>,
    /// Shards whose momentum restarted at zero since the first bootstrap.
    pub momentum_lost: u64,
    /// The members after the round, ascending.
    pub members: Vec<u64>,
    /// The samples that are left.
    pub samples: Option<Progress>,
    /// The model's tensors in flat order.
    pub tensors: Vec<Tensor>,
}

/// A tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// The tensor's name in training code.
    pub name: String,
    /// The tensor's dimensions; one for plain slices.
    pub shape: Vec<usize>,
    /// The tensor's role.
    pub kind: Kind,
}

/// The role of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A trained parameter.
    Parameter,
    /// A buffer of the model, averaged with the parameters.
    Buffer,
}

impl Tensor {
    /// Number of values; `None` if it overflows.
    #[must_use]
    pub fn elements(&self) -> Option<usize> {
        self.shape
            .iter()
            .try_fold(1usize, |product, dimension| product.checked_mul(*dimension))
    }
}

/// A unique name for each tensor, in the same order: unnamed lists call their first tensor `tensor
/// 0`, parameters and buffers alike. The first tensor of a name keeps it.
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
    /// The name of the checkpoint that this header describes.
    #[must_use]
    pub fn name(&self) -> Name {
        Name {
            run: self.run,
            step: self.step,
            lineage: self.lineage(),
        }
    }

    /// The layout by which the values are cut into shards.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout::new(usize::try_from(self.elements).unwrap_or(usize::MAX))
    }

    /// The model history.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        Lineage(self.lineage)
    }

    /// Number of parameters among the values.
    #[must_use]
    pub fn parameters(&self) -> usize {
        usize::try_from(self.parameters).unwrap_or(usize::MAX)
    }

    /// The first contradiction within the header, if there is one.
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
    /// Reads a manifest, whoever wrote it.
    ///
    /// # Errors
    /// It cannot be read, is too long, is no manifest, or contradicts itself.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        Self::read_trusted(path, &EVERYBODY)
    }

    /// Reads a manifest of somebody who is trusted.
    ///
    /// # Errors
    /// As for [`Part::read`], or its writer is not trusted.
    pub(super) fn read_trusted(path: &Path, trust: &Trust) -> Result<Self, CheckpointError> {
        let mut text = Vec::new();
        let (file, length, owner) = handles::open(path)?;
        let mut file = file.take(MANIFEST_BYTES_MAX + 1);
        let mut read_until = |text: &mut Vec<u8>, bytes: u64| {
            let more = bytes.saturating_sub(text.len() as u64);
            let read = file.by_ref().take(more).read_to_end(text);
            read.map_err(CheckpointError::io(path))
        };
        let not_trusted = || CheckpointError::NotTrusted {
            file: path.to_owned(),
        };
        if !trust.needs_no_seal(owner) {
            if length > MANIFEST_BYTES_MAX || !trust.still_reads(owner, path) {
                return Err(not_trusted());
            }
            read_until(&mut text, HEAD_BYTES as u64)?;
            if !trust.may_be_sealed(behind_digest(&text)) {
                trust.count_refused(owner, text.len());
                return Err(not_trusted());
            }
        }
        read_until(&mut text, MANIFEST_BYTES_MAX + 1)?;
        if !trust.believes(behind_digest(&text), owner) {
            trust.count_refused(owner, text.len());
            return Err(not_trusted());
        }
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

    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// The reason why the text is not a manifest.
    pub fn parse(text: &[u8]) -> Result<Self, Unread> {
        let digest = digest(text);
        if digest == Digest::Wrong {
            return Err(Unread::Altered);
        }
        let part: Self =
            serde_json::from_slice(text).map_err(|error| Unread::None(error.to_string()))?;
        match (digest, part.format) {
            (Digest::Fits, FORMAT | FORMAT_WITH_XXH3)
            | (Digest::Missing, FORMAT_WITHOUT_DIGEST) => {}
            (Digest::Missing, FORMAT | FORMAT_WITH_XXH3) => return Err(Unread::Altered),
            _ => return Err(Unread::None("of another version of slowmo".to_owned())),
        }
        part.contradiction().map_or(Ok(part), |contradiction| {
            Err(Unread::None(contradiction.to_owned()))
        })
    }

    /// The manifest's text, with a digest in front that covers the rest. It is always written in
    /// the newest format.
    ///
    /// # Errors
    /// It cannot be serialized.
    pub fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        self.sealed_text(&EVERYBODY)
    }

    /// The same with a seal, if there is a key for it.
    pub(super) fn sealed_text(&self, trust: &Trust) -> Result<Vec<u8>, serde_json::Error> {
        let whole = serde_json::to_vec(&Self {
            format: FORMAT,
            ..self.clone()
        })?;
        let rest = whole.get(1..).unwrap_or_default();
        let sealed = trust
            .seal(rest)
            .map(|seal| [SEAL_OPENS, seal.as_bytes(), SEAL_CLOSES, rest].concat());
        let rest = sealed.as_deref().unwrap_or(rest);
        let digest = format!("{:0DIGEST_DIGITS$x}", xxh3_128(rest));
        Ok([DIGEST_OPENS, digest.as_bytes(), DIGEST_CLOSES, rest].concat())
    }

    /// Memory that the part takes without its header, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + self.shards.capacity() * size_of::<KeptShard>()
            + self.ancestors.capacity() * size_of::<Ancestor>()
            + self.cursor.as_ref().map_or(0, String::capacity)
            + self.file.capacity()
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

/// The reason why a text is not a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The text differs from what was written.
    Altered,
    /// The text was never a manifest that this version reads; the reason.
    None(String),
}

/// Result of checking the digest in front of a manifest against the rest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Digest {
    Fits,
    Wrong,
    Missing,
}

/// A manifest's text behind its digest; nothing if it has none.
fn behind_digest(text: &[u8]) -> &[u8] {
    text.strip_prefix(DIGEST_OPENS)
        .and_then(|behind| behind.get(DIGEST_DIGITS..)?.strip_prefix(DIGEST_CLOSES))
        .unwrap_or_default()
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

/// Numbers of 128 bits as hexadecimal digits: JSON numbers would lose precision.
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
