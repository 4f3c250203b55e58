//! Size of the model that a node trains, by kind of value, the types of its parameters, and a
//! digest of its tensors. Nodes that train together have the same.

use crate::half::Half;
use serde::{Deserialize, Serialize};
use std::fmt;

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
    /// A digest of the names and dimensions of those tensors, of parameters and buffers, that have
    /// names, in their order; 0 if none has. Models with as many values whose tensors differ must
    /// not be averaged.
    pub tensors: u64,
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
            tensors: 0,
            ..*model
        };
        let as_named = self.tensors == other.tensors || self.tensors == 0 || other.tensors == 0;
        as_named && unnamed(self) == unnamed(other)
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
             values, tensors {tensors:016x}"
        )
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
            tensors,
            ..ModelSize::of(25)
        };
        for (one, other, fit) in [(0, 0, true), (0, 7, true), (7, 7, true), (7, 8, false)] {
            assert_eq!(named(one).fits(&named(other)), fit, "{one}, {other}");
            assert_eq!(named(other).fits(&named(one)), fit, "{other}, {one}");
        }
        assert!(!named(0).fits(&ModelSize::of(24)));
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
            "25 parameters, 0 model and 0 optimizer buffer values, tensors 0000000000000000"
        );
    }
}
