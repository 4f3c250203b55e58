//! A tensor's values in the type in which training keeps them.

use crate::buffers::ChunkedBuffer;
use slowmo_protocol::half::Half;
use slowmo_protocol::mean;
use std::ops::Range;

/// Values that are widened or rounded at a time: they stay in the first-level cache.
const BLOCK_ELEMENTS: usize = 2048;

/// The values of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values<'a> {
    /// Float32.
    Float32(&'a [f32]),
    /// A type of 16 bits, as bits.
    Half(Half, &'a [u16]),
}

/// The values of one tensor, mutable.
#[derive(Debug, PartialEq)]
pub enum ValuesMut<'a> {
    /// Float32.
    Float32(&'a mut [f32]),
    /// A type of 16 bits, as bits.
    Half(Half, &'a mut [u16]),
}

impl<'a> Values<'a> {
    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Float32(values) => values.len(),
            Self::Half(_, bits) => bits.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` values, and the others.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub fn split_at(self, count: usize) -> (Self, Self) {
        match self {
            Self::Float32(values) => {
                let (here, after) = values.split_at(count);
                (Self::Float32(here), Self::Float32(after))
            }
            Self::Half(half, bits) => {
                let (here, after) = bits.split_at(count);
                (Self::Half(half, here), Self::Half(half, after))
            }
        }
    }

    /// Consecutive parts of at most `count` values.
    pub fn chunks(self, count: usize) -> impl Iterator<Item = Values<'a>> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let length = rest.len().min(count);
            let (here, after) = rest.split_at(length);
            rest = after;
            (length > 0).then_some(here)
        })
    }

    /// Copies all values into an equally long slice, as float32.
    pub fn widen(self, into: &mut [f32]) {
        match self {
            Self::Float32(values) => into.copy_from_slice(values),
            Self::Half(half, bits) => half.widen_all(bits, into),
        }
    }

    /// The values as little-endian bytes, in their own type.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Float32(values) => bytemuck::cast_slice(values),
            Self::Half(_, bits) => bytemuck::cast_slice(bits),
        }
    }
}

impl<'a> ValuesMut<'a> {
    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Float32(values) => values.len(),
            Self::Half(_, bits) => bits.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` values, and the others.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub fn split_at(self, count: usize) -> (Self, Self) {
        match self {
            Self::Float32(values) => {
                let (here, after) = values.split_at_mut(count);
                (Self::Float32(here), Self::Float32(after))
            }
            Self::Half(half, bits) => {
                let (here, after) = bits.split_at_mut(count);
                (Self::Half(half, here), Self::Half(half, after))
            }
        }
    }

    /// Consecutive parts of at most `count` values.
    pub fn chunks(self, count: usize) -> impl Iterator<Item = ValuesMut<'a>> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let all = rest.take()?;
            let length = all.len().min(count);
            let (here, after) = all.split_at(length);
            rest = Some(after);
            (length > 0).then_some(here)
        })
    }

    /// Sets all values to zero.
    pub fn zero(self) {
        match self {
            Self::Float32(values) => values.fill(0.0),
            Self::Half(_, bits) => bits.fill(0),
        }
    }

    /// Replaces all values by those that `give(first index, values)` writes, rounded to this type.
    pub fn replace(self, mut give: impl FnMut(usize, &mut [f32])) {
        match self {
            Self::Float32(values) => give(0, values),
            Self::Half(half, bits) => {
                let mut block = [0.0; BLOCK_ELEMENTS];
                for (index, bits) in bits.chunks_mut(BLOCK_ELEMENTS).enumerate() {
                    let values = &mut block[..bits.len()];
                    give(index * BLOCK_ELEMENTS, values);
                    half.round_all(values, bits);
                }
            }
        }
    }
}

/// The decided or gossiped float32 values that a worker's tensors were written from, as far as
/// these tensors are no float32: the next freeze gives back what rounding took. Shares the memory
/// of the values, of which a node keeps its anchors anyway.
#[derive(Clone, Debug, Default)]
pub struct Written {
    values: ChunkedBuffer,
    weight: f64,
    elements: usize,
}

impl Written {
    /// Keeps those of the `values` (divided by the push-sum weight when they were written) that lie
    /// in the ranges `rounded`.
    #[must_use]
    pub fn of(values: &ChunkedBuffer, weight: f64, rounded: &[Range<usize>]) -> Self {
        let mut kept = ChunkedBuffer::default();
        for (start, piece) in values.pieces() {
            let end = start + piece.values().len();
            if rounded
                .iter()
                .any(|range| range.start < end && start < range.end)
            {
                kept.insert(start, piece.clone());
            }
        }
        Self {
            values: kept,
            weight,
            elements: rounded.iter().map(ExactSizeIterator::len).sum(),
        }
    }

    /// How many values were rounded.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Adds what rounding took to the widened values of a tensor, of which the first is element
    /// `start` of the model.
    pub fn give_back(&self, half: Half, start: usize, values: &mut [f32]) {
        let mut block = [0.0; BLOCK_ELEMENTS];
        for (index, values) in values.chunks_mut(BLOCK_ELEMENTS).enumerate() {
            let decided = &mut block[..values.len()];
            decided.fill(0.0);
            self.values.copy_to(start + index * BLOCK_ELEMENTS, decided);
            mean::divide(decided, self.weight);
            half.give_back(decided, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Pool;

    #[test]
    fn parts_of_a_tensor_are_all_of_it_in_order() {
        let bits: Vec<u16> = (0..10).collect();
        let parts = Values::Half(Half::BFloat16, &bits).chunks(4);
        let lengths: Vec<usize> = parts.map(|part| part.len()).collect();
        assert_eq!(lengths, [4, 4, 2]);
        let mut values = [0.0; 5];
        for (index, part) in ValuesMut::Float32(&mut values).chunks(2).enumerate() {
            part.replace(|first, part| part.fill(index as f32 + first as f32));
        }
        assert_eq!(values, [0.0, 0.0, 1.0, 1.0, 2.0]);
        assert_eq!(Values::Float32(&[]).chunks(3).count(), 0);
    }

    #[test]
    fn only_what_was_rounded_is_kept_and_given_back() {
        let pool = Pool::new();
        let mut values = ChunkedBuffer::default();
        for start in [0, 4, 8] {
            let mut chunk = pool.take(4);
            chunk.values_mut().fill(2.0 * 1.001);
            values.insert(start, chunk.freeze());
        }
        let written = Written::of(&values, 2.0, &[3..5, 6..6]);
        let kept: Vec<usize> = written.values.pieces().map(|(start, _)| start).collect();
        assert_eq!(kept, [0, 4]);
        let mut tensor = [1.0, 1.5];
        written.give_back(Half::BFloat16, 3, &mut tensor);
        assert_eq!(tensor, [1.001, 1.501]);
        let mut unknown = [0.5];
        written.give_back(Half::BFloat16, 9, &mut unknown);
        assert_eq!(unknown, [0.5]);
    }
}
