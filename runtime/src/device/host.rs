//! The device of a worker that is a CPU thread: its tensors are in main memory, so one copy moves
//! the values.

use super::mixing;
use crate::tensors::{flat, threads};
use slowmo_actors::buffers::{CHUNK_ELEMENTS, ChunkedBuffer, Pool};
use slowmo_actors::ports::device::{
    Device, FreezeError, MixFactors, Mixed, TensorError, Tensors, ValuesMut, Written,
};
use slowmo_protocol::mean;
use std::ops::Range;
use std::sync::Arc;

/// The device for main memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDevice;

impl Device for HostDevice {
    fn freeze(
        &self,
        tensors: &dyn Tensors,
        written: Option<&Written>,
        staging: &mut [f32],
    ) -> Result<(), FreezeError> {
        flat::freeze_since(tensors, written, staging)
    }

    fn copy(&self, tensors: &dyn Tensors, staging: &mut [f32]) -> Result<(), TensorError> {
        let mut next = 0;
        tensors.lend(&mut |_, tensor| {
            if let Some(target) = staging.get_mut(next..next + tensor.len()) {
                tensor.widen(target);
            }
            next += tensor.len();
        })
    }

    fn mix(
        &self,
        correction: &ChunkedBuffer,
        factors: MixFactors,
        tensors: &mut dyn Tensors,
        keep: Option<&Arc<Pool>>,
    ) -> Result<Mixed, TensorError> {
        mixing::mix(correction, factors, tensors, keep)
    }

    fn write_back(
        &self,
        values: &ChunkedBuffer,
        start: usize,
        weight: f64,
        tensors: &mut dyn Tensors,
    ) -> Result<Vec<Range<usize>>, TensorError> {
        let mut next = start;
        let mut rounded = Vec::new();
        tensors.lend_mut(&mut |_, tensor| {
            let first = next;
            let length = tensor.len();
            next += length;
            if matches!(tensor, ValuesMut::Half(..)) {
                rounded.push(first..next);
            }
            let pieces = tensor.chunks(CHUNK_ELEMENTS).enumerate().collect();
            threads::each(pieces, length, |(index, piece): (usize, ValuesMut<'_>)| {
                piece.replace(|at, piece| {
                    values.copy_to(first + index * CHUNK_ELEMENTS + at, piece);
                    mean::divide(piece, weight);
                });
            });
        })?;
        Ok(rounded)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tensors::{Half, NamedTensors, Values, read_widened, write_rounded};

    /// More than a chunk, and no multiple of a block.
    const VALUES: usize = CHUNK_ELEMENTS + 777;

    fn chunked(pool: &Arc<Pool>, value: impl Fn(usize) -> f32, count: usize) -> ChunkedBuffer {
        let mut all = ChunkedBuffer::default();
        for range in slowmo_actors::buffers::chunks(0..count) {
            let mut chunk = pool.take(range.len());
            let places = chunk.values_mut().iter_mut().zip(range.clone());
            places.for_each(|(place, index)| *place = value(index));
            all.insert(range.start, chunk.freeze());
        }
        all
    }

    fn value(index: usize) -> f32 {
        (index % 977) as f32 * 0.0137 - 5.0
    }

    #[test]
    fn what_is_written_to_halves_is_frozen_again_to_the_bit() {
        let pool = Pool::new();
        let values = chunked(&pool, |index| 2.0 * value(index), 2 * VALUES + 3);
        let mut brain = vec![0; VALUES];
        let mut single = vec![0.0; 3];
        let mut ieee = vec![0; VALUES];
        let mut tensors = NamedTensors::new()
            .with_half("brain", Half::BFloat16, &mut brain)
            .with("single", &mut single)
            .with_half("ieee", Half::Float16, &mut ieee);
        let rounded = HostDevice
            .write_back(&values, 0, 2.0, &mut tensors)
            .unwrap();
        assert_eq!(rounded, [0..VALUES, VALUES + 3..2 * VALUES + 3]);
        let mut frozen = vec![0.0; 2 * VALUES + 3];
        let written = Written::of(&values, 2.0, &rounded);
        HostDevice
            .freeze(&tensors, Some(&written), &mut frozen)
            .unwrap();
        assert!(
            frozen
                .iter()
                .enumerate()
                .all(|(index, x)| *x == value(index))
        );
        let mut copied = vec![0.0; 2 * VALUES + 3];
        HostDevice.copy(&tensors, &mut copied).unwrap();
        let half = |index| {
            if index < VALUES {
                Half::BFloat16
            } else {
                Half::Float16
            }
        };
        for (index, x) in copied.iter().enumerate() {
            let is_single = (VALUES..VALUES + 3).contains(&index);
            let rounded = half(index).widen(half(index).round(value(index)));
            let expected = if is_single { value(index) } else { rounded };
            assert_eq!(*x, expected, "{index}");
        }
    }

    #[test]
    fn halves_are_mixed_in_float32_and_rounded() {
        let pool = Pool::new();
        let correction = chunked(&pool, |index| value(index) * 0.25, VALUES + 3);
        let factors = MixFactors {
            stays: 0.5,
            weight: 0.75,
        };
        let mut single = vec![1.0; 3];
        let mut brain: Vec<u16> = (3..VALUES + 3)
            .map(|index| Half::BFloat16.round(value(index)))
            .collect();
        let mut wide = vec![1.0; VALUES + 3];
        Half::BFloat16.widen_all(&brain, &mut wide[3..]);
        let before = wide.clone();
        HostDevice
            .mix(&correction, factors, &mut wide, None)
            .unwrap();

        let mut tensors = NamedTensors::new().with("single", &mut single).with_half(
            "brain",
            Half::BFloat16,
            &mut brain,
        );
        let mixed = HostDevice
            .mix(&correction, factors, &mut tensors, Some(&pool))
            .unwrap();
        assert_eq!(mixed.not_finite, None);
        let mut kept = vec![0.0; VALUES + 3];
        mixed.before.copy_to(0, &mut kept);
        assert_eq!(kept, before);
        assert_eq!(single, wide[..3]);
        let mut expected = vec![0; VALUES];
        Half::BFloat16.round_all(&wide[3..], &mut expected);
        assert_eq!(brain, expected);
    }

    /// A model of more values than 32 bits count, whose tensors are all one piece of memory.
    struct OnDemand {
        piece: Vec<u16>,
        tensors: usize,
    }

    impl Tensors for OnDemand {
        fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
            read_widened(self, visit)
        }

        fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
            write_rounded(self, visit)
        }

        fn lend(&self, visit: &mut dyn FnMut(&str, Values<'_>)) -> Result<(), TensorError> {
            (0..self.tensors)
                .for_each(|_| visit("piece", Values::Half(Half::BFloat16, &self.piece)));
            Ok(())
        }

        fn lend_mut(
            &mut self,
            visit: &mut dyn FnMut(&str, ValuesMut<'_>),
        ) -> Result<(), TensorError> {
            let piece = &mut self.piece;
            (0..self.tensors).for_each(|_| visit("piece", ValuesMut::Half(Half::BFloat16, piece)));
            Ok(())
        }
    }

    #[test]
    fn values_are_counted_and_found_beyond_32_bits() {
        const PIECE: usize = 1 << 22;
        let tensors = (1 << 32) / PIECE + 3;
        let model = OnDemand {
            piece: vec![0; PIECE],
            tensors,
        };
        assert_eq!(model.elements().unwrap(), tensors * PIECE);
        let error = HostDevice.freeze(&model, None, &mut [0.0; 5]).unwrap_err();
        let expected = FreezeError::Length {
            found: tensors * PIECE,
            expected: 5,
        };
        assert_eq!(error, expected);

        let pool = Pool::new();
        let start = (1 << 32) + 12_345;
        let mut values = ChunkedBuffer::default();
        let mut chunk = pool.take(4);
        chunk
            .values_mut()
            .copy_from_slice(&[1.001, 2.002, 3.003, 4.004]);
        values.insert(start, chunk.freeze());
        let mut bits = vec![0; 4];
        let mut tensors = NamedTensors::new().with_half("behind", Half::BFloat16, &mut bits);
        let rounded = HostDevice
            .write_back(&values, start, 1.0, &mut tensors)
            .unwrap();
        assert_eq!(rounded.first(), Some(&(start..start + 4)));
        let written = Written::of(&values, 1.0, &rounded);
        let mut wide = vec![0.0; 4];
        Half::BFloat16.widen_all(&bits, &mut wide);
        written.give_back(Half::BFloat16, start, &mut wide);
        assert_eq!(wide, [1.001, 2.002, 3.003, 4.004]);
    }

    #[test]
    fn a_mix_names_the_first_half_that_is_not_finite() {
        let pool = Pool::new();
        let correction = chunked(&pool, |_| 0.0, VALUES);
        let mut ieee = vec![Half::Float16.round(1.0); VALUES];
        ieee[CHUNK_ELEMENTS + 5] = Half::Float16.round(f32::NAN);
        let mut tensors = NamedTensors::new().with_half("ieee", Half::Float16, &mut ieee);
        let factors = MixFactors {
            stays: 1.0,
            weight: 1.0,
        };
        let mixed = HostDevice
            .mix(&correction, factors, &mut tensors, None)
            .unwrap();
        let told = mixed.not_finite.unwrap().to_string();
        assert!(told.starts_with("ieee[65541] = NaN"), "{told}");
    }
}
