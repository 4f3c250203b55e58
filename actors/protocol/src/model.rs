//! Size of the model that a node trains, by kind of value, the types of its parameters, and digests
//! of its tensors. Nodes that train together have the same.

use crate::half::Half;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;

/// Size of a model, in values.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ModelSize {
    /// Parameters.
    pub parameters: u64,
    /// Values in the model's buffers, which are averaged with the parameters.
    pub buffers: u64,
    /// Values in the base optimizer's buffers, if these are averaged or copied to joiners; 0 if
    /// they are never sent.
    pub optimizer: u64,
    /// The types in which training keeps the parameters.
    pub types: Types,
    /// Digests of the tensors, parameters and then buffers. Models with as many values whose
    /// tensors differ must not be averaged.
    pub tensors: TensorDigests,
}

/// The numbers of first tensors that have a digest of their own. One of two neighbours is at most
/// twice the other, so a difference is found to within a third or half of its place.
const PREFIXES: [u32; 18] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512,
];

/// Digests of the names and dimensions of a model's tensors, in their order. They tell nodes
/// whether their tensors differ, and about where.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct TensorDigests {
    /// Number of tensors; 0 if none has a name. Then one node may lend as one tensor what another
    /// lends in pieces.
    pub count: u32,
    /// Digests of the first 1, 2, 3, 4, 6, 8, 12, … 512 tensors; 0 where there are fewer. They only
    /// narrow a difference down, so they are short.
    pub prefixes: [u32; PREFIXES.len()],
    /// The digest of all tensors.
    pub all: u64,
}

impl TensorDigests {
    /// Adds a tensor. `all` is a digest of all tensors up to this one.
    pub fn add(&mut self, all: u64) {
        self.count = self.count.saturating_add(1);
        self.all = all;
        if let Some(at) = PREFIXES.iter().position(|length| *length == self.count) {
            self.prefixes[at] = (all >> 32) as u32;
        }
    }

    /// Whether no tensor has a name.
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The numbers, counted from 1, among which is that of the first tensor that differs; `None` if
    /// none differs, or if one of the two models has no names.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<RangeInclusive<u32>> {
        if self == other || self.is_empty() || other.is_empty() {
            return None;
        }
        let both = self.count.min(other.count);
        let mut equal = 0;
        for (at, length) in PREFIXES.into_iter().enumerate() {
            if length > both {
                break;
            }
            if self.prefixes[at] != other.prefixes[at] {
                return Some(equal + 1..=length);
            }
            equal = length;
        }
        // If all that both have are equal, the first that differs is the first that one lacks.
        let last = if self.count == other.count {
            both.max(equal + 1)
        } else {
            both.saturating_add(1)
        };
        Some(equal + 1..=last)
    }
}

/// Which parameters are not float32. Rounds would average models of different types too, but their
/// nodes would not hold the same bits afterwards.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Types {
    /// How many are bfloat16.
    pub bf16: u64,
    /// How many are float16.
    pub f16: u64,
    /// A digest of which they are, whatever tensors they are cut into; 0 if there are none.
    pub digest: u64,
}

impl Types {
    /// Adds `count` parameters of a type of 16 bits, of which the first is parameter `start`.
    pub fn add(&mut self, half: Half, start: u64, count: u64) {
        let (of_type, salt) = match half {
            Half::BFloat16 => (&mut self.bf16, 1),
            Half::Float16 => (&mut self.f16, 3),
        };
        *of_type += count;
        // The sum over neighbours of one type is that of both as one.
        let part = mixed(start + count).wrapping_sub(mixed(start));
        self.digest = self.digest.wrapping_add(part.wrapping_mul(salt));
    }
}

/// A bijection whose values look random (the finalizer of SplitMix64).
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl ModelSize {
    /// A model of float32 parameters, of which no buffers are sent.
    #[must_use]
    pub fn of(parameters: u64) -> Self {
        Self {
            parameters,
            ..Self::default()
        }
    }

    /// Whether nodes with these models may train together: they have the same sizes and types, and
    /// the same tensors if both name them.
    #[must_use]
    pub fn fits(&self, other: &Self) -> bool {
        let unnamed = |model: &Self| Self {
            tensors: TensorDigests::default(),
            ..*model
        };
        let (ours, theirs) = (&self.tensors, &other.tensors);
        let as_named = ours == theirs || ours.is_empty() || theirs.is_empty();
        as_named && unnamed(self) == unnamed(other)
    }

    /// Says where the tensors of two models begin to differ, after a sentence that shows both;
    /// empty if that is not known.
    pub(crate) fn told_difference(&self, other: &Self) -> String {
        match self.tensors.first_difference(&other.tensors) {
            None => String::new(),
            Some(range) if range.start() == range.end() => {
                format!(
                    " (the first tensor that differs is number {})",
                    range.start()
                )
            }
            Some(range) => format!(
                " (the first tensor that differs is one of numbers {} to {})",
                range.start(),
                range.end()
            ),
        }
    }
}

impl fmt::Display for ModelSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            parameters,
            buffers,
            optimizer,
            types,
            tensors,
        } = self;
        write!(
            f,
            "{parameters} parameters{types}, {buffers} model and {optimizer} optimizer buffer \
             values"
        )?;
        match tensors.count {
            0 => Ok(()),
            count => write!(f, ", {count} tensors"),
        }
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bf16, f16, digest } = self;
        match (bf16, f16) {
            (0, 0) => Ok(()),
            _ => write!(f, " ({bf16} bf16, {f16} f16, in the order {digest:016x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(runs: &[(Option<Half>, u64)]) -> Types {
        let mut types = Types::default();
        let mut start = 0;
        for (half, count) in runs {
            if let Some(half) = half {
                types.add(*half, start, *count);
            }
            start += count;
        }
        types
    }

    #[test]
    fn models_fit_unless_both_name_different_tensors() {
        let named = |tensors| ModelSize {
            tensors: digests(tensors),
            ..ModelSize::of(25)
        };
        let cases: [(&[u64], &[u64], bool); 4] = [
            (&[], &[], true),
            (&[], &[7], true),
            (&[7], &[7], true),
            (&[7], &[8], false),
        ];
        for (one, other, fit) in cases {
            assert_eq!(named(one).fits(&named(other)), fit, "{one:?}, {other:?}");
            assert_eq!(named(other).fits(&named(one)), fit, "{other:?}, {one:?}");
        }
        assert!(!named(&[]).fits(&ModelSize::of(24)));
    }

    /// Digests of tensors that stand for numbers: each digest depends on all up to it.
    fn digests(tensors: &[u64]) -> TensorDigests {
        let mut digests = TensorDigests::default();
        let mut all = 0_u64;
        for tensor in tensors {
            all = mixed(all.wrapping_add(*tensor).wrapping_add(1));
            digests.add(all);
        }
        digests
    }

    #[test]
    fn the_first_tensor_that_differs_is_found_nearly() {
        for count in [1_u64, 2, 5, 16, 17, 40, 600] {
            let ours: Vec<u64> = (0..count).collect();
            let found = |theirs: &[u64]| digests(&ours).first_difference(&digests(theirs));
            assert_eq!(found(&ours), None);
            assert_eq!(found(&[]), None, "no names");
            for at in 0..ours.len() {
                let number = at as u32 + 1;
                let mut changed = ours.clone();
                changed[at] += 1_000;
                let mut longer = ours.clone();
                longer.insert(at, 1_000);
                let mut shorter = ours.clone();
                shorter.remove(at);
                for theirs in [changed, longer, shorter] {
                    let Some(range) = found(&theirs) else {
                        assert!(theirs.is_empty(), "{count} tensors, {number}");
                        continue;
                    };
                    assert!(
                        range.contains(&number),
                        "{count} tensors, {number}: {range:?}"
                    );
                    let known = range.start() - 1;
                    let length = range.end() - known;
                    assert!(
                        number > 512 || length <= known.max(1),
                        "{number}: {range:?}"
                    );
                }
            }
            let longer: Vec<u64> = (0..=count).collect();
            let range = found(&longer).expect("they differ");
            assert!(range.contains(&(count as u32 + 1)), "{count}: {range:?}");
        }
    }

    #[test]
    fn the_place_of_a_difference_is_told_in_words() {
        let model = |tensors: &[u64]| ModelSize {
            tensors: digests(tensors),
            ..ModelSize::of(25)
        };
        let ours = model(&[1, 2, 3, 4, 5, 6, 7]);
        let told = |theirs: &[u64]| ours.told_difference(&model(theirs));
        assert_eq!(told(&[1, 2, 3, 4, 5, 6, 7]), "");
        assert_eq!(
            told(&[1, 3, 2, 4, 5, 6, 7]),
            " (the first tensor that differs is number 2)"
        );
        assert_eq!(
            told(&[1, 2, 3, 4, 6, 5, 7]),
            " (the first tensor that differs is one of numbers 5 to 6)"
        );
        assert_eq!(
            ours.to_string(),
            "25 parameters, 0 model and 0 optimizer buffer values, 7 tensors"
        );
    }

    #[test]
    fn types_differ_by_count_and_place_and_not_by_the_cut() {
        let brain = Some(Half::BFloat16);
        let ieee = Some(Half::Float16);
        let of = types(&[(brain, 10), (None, 5), (ieee, 10)]);
        assert_eq!(
            of,
            types(&[(brain, 4), (brain, 6), (None, 5), (ieee, 0), (ieee, 10)])
        );
        for other in [
            types(&[(brain, 10), (None, 6), (ieee, 10)]),
            types(&[(ieee, 10), (None, 5), (brain, 10)]),
            types(&[(None, 5), (brain, 10), (ieee, 10)]),
            types(&[(brain, 9), (None, 6), (ieee, 10)]),
            types(&[(None, 25)]),
        ] {
            assert_ne!(of, other);
        }
        assert_eq!(types(&[(None, 25)]), Types::default());
        let model = ModelSize {
            types: types(&[(brain, 25)]),
            ..ModelSize::of(25)
        };
        let told = model.to_string();
        assert!(
            told.starts_with("25 parameters (25 bf16, 0 f16, in the order "),
            "{told}"
        );
        let plain = ModelSize::of(25).to_string();
        assert_eq!(
            plain,
            "25 parameters, 0 model and 0 optimizer buffer values"
        );
    }
}
