//! Which values and push-sum weights a node sends and accepts. A value is *sound* if it is finite
//! and so small that no sum of accepted values overflows float32.
//!
//! A sender checks its own values first, against the lower bound [`SENT_MAX`]: a training that
//! diverges gets an error on its own node, and sends nothing. Receivers accept more
//! ([`GOSSIP_MAX`], [`CONTRIBUTION_MAX`]), because what travels is multiplied by weights and summed
//! up. So whoever sends more than that is broken or hostile, and no rounding makes an honest node
//! look like it. Gradients are not checked: they may overflow, which their optimizer handles.
//!
//! Bounds are powers of two. No training has parameters of that size; masks of attention (−1e9)
//! are far below.
//!
//! The coordinator leaves the sender of an unsound value out (`unsound` in
//! `coordinator::machine::links`).

use crate::coordinator::RoundSpec;
use crate::push_sum::WEIGHT_MIN;
use crate::view::MEMBERS_MAX;

/// Largest magnitude of a value that a node sends of its own: 2⁸⁰. It leaves 2⁴⁸ to the largest
/// float32, for weights, sums over all members, and the division by a learning rate.
pub const SENT_MAX: f32 = 1_208_925_819_614_629_174_706_176.0;
/// Largest magnitude of a value in a gossip message, which a push-sum weight multiplies: 2⁸⁴.
pub const GOSSIP_MAX: f32 = 16.0 * SENT_MAX;
/// Largest magnitude of a value in a contribution, to which a node adds the messages of all other
/// members that have arrived: 2⁹⁶. The sum of [`MEMBERS_MAX`] contributions is below 2¹⁰⁸.
pub const CONTRIBUTION_MAX: f32 = MEMBERS_MAX as f32 * GOSSIP_MAX;
/// Largest magnitude of a value in a sum of so many contributions, as a relay sends it: twice what
/// they add up to, since the encoding of the sum may round it up. All sums of one round stay below
/// 2¹⁰⁹.
#[must_use]
pub fn sum_max(contributions: usize) -> f32 {
    2.0 * contributions as f32 * CONTRIBUTION_MAX
}

/// Largest push-sum weight of one node: the weights of all members sum up to their number.
pub const WEIGHT_MAX: f64 = MEMBERS_MAX as f64;
/// Smallest push-sum weight of one node: one that sends has [`WEIGHT_MIN`] and keeps at least its
/// share of a split over all members; half of that, for rounding.
pub const WEIGHT_LEAST: f64 = WEIGHT_MIN / (2.0 * MEMBERS_MAX as f64);

/// All bits of a float32 but the sign. As integers, magnitudes have the same order as the numbers;
/// infinities and NaN are above all.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Why something that another node sent cannot be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unsound {
    /// The push-sum weight is not one that a node can have.
    Weight(f64),
    /// A value is not finite, or beyond the bound for its message.
    Value {
        /// Index among the values of the model.
        element: usize,
        /// The value, as it was received.
        value: f32,
    },
    /// A frame or stream that does not decode, whose header names another sender or cluster, or a
    /// place in history that no run reaches.
    Header,
    /// It expects another round than this node and most others: its training script differs, or it
    /// lies.
    OtherRound(RoundSpec),
    /// It abandoned a round that the others can make without it.
    Abandoned,
    /// It published values without its sound signature.
    Signature,
    /// It published different values to different nodes.
    Equivocated,
    /// It told other values than it holds, or than its receiver told it.
    OtherValues,
    /// It led, and asked for votes for two entries.
    TwoEntries,
    /// It told of another entry than the one that was decided.
    OtherEntry,
    /// It led, and asked for votes for an entry whose data it had not moved.
    Unattempted,
    /// It contributed to a round, or asked for votes in one, that is long over for itself.
    Replayed,
    /// Several members say that it sent them what no correct node sends.
    Accused,
}

impl Unsound {
    /// What the sender is charged with, for an operator.
    #[must_use]
    pub const fn charge(&self) -> &'static str {
        match self {
            // An honest node with another training script sends it too.
            Self::OtherRound(_) => {
                "a node trains otherwise than most others: it is refused; start all nodes with the \
                 same script and learning rate"
            }
            _ => "a node sent what no correct node sends: it is refused",
        }
    }
}

impl std::fmt::Display for Unsound {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Weight(weight) => write!(formatter, "a push-sum weight of {weight:e}"),
            Self::Value { element, value } => write!(formatter, "value {element} is {value:e}"),
            Self::Header => formatter.write_str("a frame or stream with an impossible header"),
            Self::OtherRound(spec) => write!(formatter, "it expects a {spec}"),
            Self::Abandoned => formatter.write_str("it abandoned a round that the others can make"),
            Self::Signature => formatter.write_str("it did not sign the values that it published"),
            Self::Equivocated => {
                formatter.write_str("it published different values to different nodes")
            }
            Self::OtherValues => {
                formatter.write_str("it told of other values than those that were published")
            }
            Self::TwoEntries => formatter.write_str("it asked for votes for two different entries"),
            Self::OtherEntry => {
                formatter.write_str("it told of another entry than the one that was decided")
            }
            Self::Unattempted => {
                formatter.write_str("it asked for votes for an entry that was not attempted")
            }
            Self::Replayed => formatter.write_str("it sent old frames again"),
            Self::Accused => {
                formatter.write_str("several members say that they cannot use what it sent them")
            }
        }
    }
}

/// Whether a node can have this push-sum weight. Such a weight, and a sum of them over all members,
/// is finite and above 0 as float32 too.
#[must_use]
pub fn is_weight(weight: f64) -> bool {
    (WEIGHT_LEAST..=WEIGHT_MAX).contains(&weight)
}

/// Whether so many nodes can have push-sum weights of this sum.
#[must_use]
pub fn is_sum_of_weights(sum: f64, nodes: usize) -> bool {
    nodes > 0 && is_weight(sum / nodes as f64)
}

/// Whether a value is finite and not beyond `most`.
#[must_use]
pub fn is_within(value: f32, most: f32) -> bool {
    value.to_bits() & MAGNITUDE <= most.to_bits()
}

/// Index of the first value that is not finite, or beyond `most`. If there is none, this takes one
/// vectorized pass.
#[must_use]
pub fn first_beyond(values: &[f32], most: f32) -> Option<usize> {
    let room = values
        .iter()
        .fold(0, |room, value| room | room_below(most, *value));
    if room >= 0 {
        return None;
    }
    values.iter().position(|value| !is_within(*value, most))
}

/// Distance of a value's magnitude from `most`, negative if it is beyond; so is the bitwise or of
/// the distances of several. A difference and an or are what the smallest vector units have, and
/// neither overflows.
pub(crate) fn room_below(most: f32, value: f32) -> i32 {
    most.to_bits() as i32 - (value.to_bits() & MAGNITUDE) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_what_their_docs_say() {
        assert_eq!(SENT_MAX, 2.0f32.powi(80));
        assert_eq!(GOSSIP_MAX, 2.0f32.powi(84));
        assert_eq!(CONTRIBUTION_MAX, 2.0f32.powi(96));
    }

    #[test]
    fn the_first_value_beyond_a_bound_is_found() {
        let mut values = vec![SENT_MAX; 1000];
        values[3] = -SENT_MAX;
        assert_eq!(first_beyond(&values, SENT_MAX), None);
        assert_eq!(first_beyond(&[], SENT_MAX), None);
        let next = f32::from_bits(SENT_MAX.to_bits() + 1);
        for wrong in [
            next,
            -next,
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
        ] {
            for index in [0, 17, 999] {
                let mut values = values.clone();
                values[index] = wrong;
                values[999] = wrong;
                assert_eq!(first_beyond(&values, SENT_MAX), Some(index), "{wrong}");
                assert!(!is_within(wrong, SENT_MAX));
            }
        }
        // Every finite float32 is within the largest one.
        assert_eq!(first_beyond(&[f32::MAX, f32::MIN], f32::MAX), None);
        assert_eq!(first_beyond(&[0.0, f32::INFINITY], f32::MAX), Some(1));
    }

    #[test]
    fn a_weight_is_a_weight_in_both_types() {
        for weight in [WEIGHT_LEAST, 0.25, 1.0, WEIGHT_MAX] {
            assert!(is_weight(weight));
            assert!((weight as f32).is_normal());
        }
        let sum = (WEIGHT_MAX * MEMBERS_MAX as f64) as f32;
        assert!(sum.is_normal());
        let wrong = [
            0.0,
            -1.0,
            1e-300,
            1e-46,
            1e39,
            1e300,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            WEIGHT_MAX * 1.001,
            WEIGHT_LEAST / 2.0,
        ];
        for weight in wrong {
            assert!(!is_weight(weight), "{weight}");
        }
    }
}
