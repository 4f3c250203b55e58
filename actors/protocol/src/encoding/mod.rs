//! Encodings of float32 values in fewer bytes, and the residual that rounding leaves: it stays with
//! the sender and is added to its next message. With `Q` for a round trip through the wire type:
//!
//! - A gossip to `d` peers, who each mix in `s·q`, sends `q = Q(x + r/(d·s))` and keeps
//!   `r ← d·s·(x − q) + r`.
//! - A contribution to a round sends `q = Q(x − w·o + r)`, with `o` the previous round's decided
//!   parameters, and keeps `r ← (x − w·o + r) − q` if the round is decided.
//! - A relay sends `Q(s)` for the sum `s` of its group's contributions, and keeps `r ← s − Q(s) + r`
//!   if the round is decided.
//! - A publication sends `q = Q(x − o)`; every node, including the sender, takes `o + q`. It keeps
//!   `x − (o + q)`, for the sender's next contribution.
//!
//! So sent values and residual add up to the given values, to float32's own rounding, over any
//! number of messages: a residual is never larger than half a step of the wire type for each
//! message of one round, because the previous one is part of the rounded value. A residual below
//! the smallest normal float32 becomes zero.
//!
//! **Formats**, little-endian, value after value. [`WireType::Float32`]: 4 bytes.
//! [`WireType::BFloat16`]: the upper 2 bytes, rounded to nearest even; a finite value beyond the
//! largest bfloat16 becomes that one. [`WireType::Int8`]: blocks of [`BLOCK_ELEMENTS`], of which
//! the last may be shorter: a float32 scale, then a signed byte for each value, `value =
//! byte·scale`. The scale is `max|v|/127`, cut to 17 significant bits so that every product is
//! exact, and at least the smallest normal float32. So decoded values are encoded again without
//! loss: all members hold the same bits, whichever of them encodes again.
//!
//! **Non-finite values** are preserved: a NaN or an infinity stays one in bfloat16; in int8 a block
//! that contains one becomes NaN as a whole. Frozen values are checked before, so only a difference
//! that overflows gets here. The residual of a gossip stays finite: a part that cannot be sent
//! without an overflow stays in the residual.
//!
//! Slices of one call have the same length, and `bytes` has [`WireType::encoded_bytes`] of it;
//! longer parts are left unchanged.

mod bfloat16;
mod float32;
mod int8;
#[cfg(test)]
mod tests;

use crate::algorithm::WireType;
use bfloat16::BFloat16;
pub(crate) use bfloat16::round as round_to_bfloat16;
use int8::Int8;

/// Number of values that share a scale as [`WireType::Int8`]. Chunks of a stream are a multiple of
/// it, so each begins with a block.
pub const BLOCK_ELEMENTS: usize = 256;

/// A wire type that encodes block by block, possibly rounding.
trait Rounding {
    /// Encoded size of a full block, in bytes.
    const BLOCK_BYTES: usize;

    /// Encodes at most a block; `decoded` becomes the values that the receiver decodes.
    fn encode(values: &[f32], bytes: &mut [u8], decoded: &mut [f32]);

    /// Calls `rule(target, decoded value)` for each value of at most a block.
    fn decode(bytes: &[u8], target: &mut [f32], rule: impl Fn(&mut f32, f32));

    /// Index and value of the first one in a block that is not finite, or beyond `most`.
    fn first_beyond(bytes: &[u8], most: f32) -> Option<(usize, f32)>;
}

/// A node's contribution to a round; all slices have the same length.
#[derive(Clone, Copy, Debug)]
pub struct EncoderInput<'a> {
    /// `x`, the numerator.
    pub values: &'a [f32],
    /// `w`, its push-sum weight.
    pub weight: f64,
    /// `o`, the parameters decided by the previous round.
    pub reference: &'a [f32],
    /// `r`, the residual of earlier contributions; `None` is zeros.
    pub residual: Option<&'a [f32]>,
}

impl WireType {
    /// Encoded size of `elements` values that begin at a block, in bytes.
    #[must_use]
    pub fn encoded_bytes(self, elements: usize) -> usize {
        match self {
            Self::Float32 => float32::VALUE_BYTES * elements,
            Self::BFloat16 => bfloat16::VALUE_BYTES * elements,
            Self::Int8 => elements + int8::SCALE_BYTES * elements.div_ceil(BLOCK_ELEMENTS),
        }
    }

    /// Encodes a gossip's numerators. `factor` is `d·s`, the part of the mass that is given away,
    /// above 0. `residual` is the residual mass of earlier messages, zeros at first; it becomes the
    /// new residual. As float32 there is no residual, and `residual` is left unchanged.
    pub fn encode_gossip(
        self,
        numerators: &[f32],
        residual: &mut [f32],
        factor: f32,
        bytes: &mut [u8],
    ) {
        match self {
            Self::Float32 => float32::encode(numerators, bytes),
            Self::BFloat16 => gossip::<BFloat16>(numerators, residual, factor, bytes),
            Self::Int8 => gossip::<Int8>(numerators, residual, factor, bytes),
        }
    }

    /// Encodes a contribution to a round; `next` becomes the new residual, valid if the round is
    /// decided with this contribution.
    pub fn encode_contribution(
        self,
        contribution: EncoderInput<'_>,
        bytes: &mut [u8],
        next: &mut [f32],
    ) {
        match self {
            Self::Float32 => contribute::<float32::Exact>(contribution, bytes, next),
            Self::BFloat16 => contribute::<BFloat16>(contribution, bytes, next),
            Self::Int8 => contribute::<Int8>(contribution, bytes, next),
        }
    }

    /// Encodes new parameters as the difference from `reference`. `values` become the values that
    /// every receiver will have, `dropped` the difference of the original values from those.
    pub fn encode_publication(
        self,
        values: &mut [f32],
        reference: &[f32],
        bytes: &mut [u8],
        dropped: &mut [f32],
    ) {
        match self {
            Self::Float32 => publish::<float32::Exact>(values, reference, bytes, dropped),
            Self::BFloat16 => publish::<BFloat16>(values, reference, bytes, dropped),
            Self::Int8 => publish::<Int8>(values, reference, bytes, dropped),
        }
    }

    /// Encodes `values` without reference or residual; they become the values that every receiver
    /// will have.
    pub fn encode_in_place(self, values: &mut [f32], bytes: &mut [u8]) {
        match self {
            Self::Float32 => float32::encode(values, bytes),
            Self::BFloat16 => in_place::<BFloat16>(values, bytes),
            Self::Int8 => in_place::<Int8>(values, bytes),
        }
    }

    /// Index and decoded value of the first one that is not finite, or beyond `most`; as
    /// [`WireType::Int8`], the index of the first value of its block, and the largest magnitude
    /// that the block's scale allows.
    #[must_use]
    pub fn first_beyond(self, bytes: &[u8], most: f32) -> Option<(usize, f32)> {
        match self {
            Self::Float32 => first_beyond::<float32::Exact>(bytes, most),
            Self::BFloat16 => first_beyond::<BFloat16>(bytes, most),
            Self::Int8 => first_beyond::<Int8>(bytes, most),
        }
    }

    /// `target = decoded`.
    pub fn decode(self, bytes: &[u8], target: &mut [f32]) {
        self.decode_each(bytes, target, |target, value| *target = value);
    }

    /// `target += scale · decoded`: the same bits as decoding and [`crate::mean::mix`].
    pub fn mix(self, bytes: &[u8], scale: f32, target: &mut [f32]) {
        self.decode_each(bytes, target, |target, value| *target += scale * value);
    }

    fn decode_each(self, bytes: &[u8], target: &mut [f32], rule: impl Fn(&mut f32, f32)) {
        match self {
            Self::Float32 => decode_blocks::<float32::Exact>(bytes, target, rule),
            Self::BFloat16 => decode_blocks::<BFloat16>(bytes, target, rule),
            Self::Int8 => decode_blocks::<Int8>(bytes, target, rule),
        }
    }
}

fn first_beyond<R: Rounding>(bytes: &[u8], most: f32) -> Option<(usize, f32)> {
    bytes
        .chunks(R::BLOCK_BYTES)
        .enumerate()
        .find_map(|(block, bytes)| {
            let (index, value) = R::first_beyond(bytes, most)?;
            Some((block * BLOCK_ELEMENTS + index, value))
        })
}

fn decode_blocks<R: Rounding>(bytes: &[u8], target: &mut [f32], rule: impl Fn(&mut f32, f32)) {
    for (bytes, target) in bytes
        .chunks(R::BLOCK_BYTES)
        .zip(target.chunks_mut(BLOCK_ELEMENTS))
    {
        R::decode(bytes, target, &rule);
    }
}

/// A block being encoded: the values to send, and the values that the receiver will decode. Small
/// enough for the innermost cache.
struct Staged {
    wanted: [f32; BLOCK_ELEMENTS],
    sent: [f32; BLOCK_ELEMENTS],
}

impl Staged {
    fn new() -> Self {
        Self {
            wanted: [0.0; BLOCK_ELEMENTS],
            sent: [0.0; BLOCK_ELEMENTS],
        }
    }

    fn of(&mut self, length: usize) -> (&mut [f32], &mut [f32]) {
        let length = length.min(BLOCK_ELEMENTS);
        (&mut self.wanted[..length], &mut self.sent[..length])
    }
}

/// Zero instead of a subnormal number. The residual of a parameter that no longer moves shrinks
/// with every message, and processors take a hundred times as long for numbers this small.
fn normal(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE {
        0.0
    } else {
        value
    }
}

fn gossip<R: Rounding>(numerators: &[f32], residual: &mut [f32], factor: f32, bytes: &mut [u8]) {
    let inverse = factor.recip();
    let mut staged = Staged::new();
    let blocks = numerators
        .chunks(BLOCK_ELEMENTS)
        .zip(residual.chunks_mut(BLOCK_ELEMENTS))
        .zip(bytes.chunks_mut(R::BLOCK_BYTES));
    for ((numerators, residual), bytes) in blocks {
        let (wanted, sent) = staged.of(numerators.len());
        for ((wanted, numerator), owed) in wanted.iter_mut().zip(numerators).zip(&*residual) {
            let paid = numerator + inverse * owed;
            *wanted = if paid.is_finite() { paid } else { *numerator };
        }
        R::encode(wanted, bytes, sent);
        for ((owed, numerator), sent) in residual.iter_mut().zip(numerators).zip(&*sent) {
            let left = *owed + factor * (numerator - sent);
            *owed = if left.is_finite() {
                normal(left)
            } else {
                *owed
            };
        }
    }
}

fn contribute<R: Rounding>(contribution: EncoderInput<'_>, bytes: &mut [u8], next: &mut [f32]) {
    let EncoderInput {
        values,
        weight,
        reference,
        residual,
    } = contribution;
    let weight = weight as f32;
    let mut staged = Staged::new();
    let mut residual = residual.map(|residual| residual.chunks(BLOCK_ELEMENTS));
    let blocks = values
        .chunks(BLOCK_ELEMENTS)
        .zip(reference.chunks(BLOCK_ELEMENTS));
    for (((values, reference), bytes), next) in blocks
        .zip(bytes.chunks_mut(R::BLOCK_BYTES))
        .zip(next.chunks_mut(BLOCK_ELEMENTS))
    {
        let (wanted, sent) = staged.of(values.len());
        for ((wanted, value), reference) in wanted.iter_mut().zip(values).zip(reference) {
            *wanted = value - weight * reference;
        }
        if let Some(residual) = residual.as_mut().and_then(Iterator::next) {
            crate::mean::add(wanted, residual);
        }
        R::encode(wanted, bytes, sent);
        for ((next, wanted), sent) in next.iter_mut().zip(&*wanted).zip(&*sent) {
            *next = normal(wanted - sent);
        }
    }
}

fn publish<R: Rounding>(
    values: &mut [f32],
    reference: &[f32],
    bytes: &mut [u8],
    dropped: &mut [f32],
) {
    let mut staged = Staged::new();
    let blocks = values
        .chunks_mut(BLOCK_ELEMENTS)
        .zip(reference.chunks(BLOCK_ELEMENTS));
    for (((values, reference), bytes), dropped) in blocks
        .zip(bytes.chunks_mut(R::BLOCK_BYTES))
        .zip(dropped.chunks_mut(BLOCK_ELEMENTS))
    {
        let (wanted, sent) = staged.of(values.len());
        for ((wanted, value), reference) in wanted.iter_mut().zip(&*values).zip(reference) {
            *wanted = value - reference;
        }
        R::encode(wanted, bytes, sent);
        for (((value, dropped), reference), sent) in
            values.iter_mut().zip(dropped).zip(reference).zip(&*sent)
        {
            let published = reference + sent;
            *dropped = normal(*value - published);
            *value = published;
        }
    }
}

fn in_place<R: Rounding>(values: &mut [f32], bytes: &mut [u8]) {
    let mut staged = Staged::new();
    for (values, bytes) in values
        .chunks_mut(BLOCK_ELEMENTS)
        .zip(bytes.chunks_mut(R::BLOCK_BYTES))
    {
        let (_, sent) = staged.of(values.len());
        R::encode(values, bytes, sent);
        values.copy_from_slice(sent);
    }
}
