//! Conversion between tensors and one flat vector, concatenated in registration order: one pass
//! over memory each.

use super::threads;
use super::{FreezeError, TensorError, Tensors, Values, ValuesMut, Written};
use slowmo_actors::buffers::CHUNK_ELEMENTS;
use slowmo_protocol::sound::{SENT_MAX, first_beyond};
use xxhash_rust::xxh3::Xxh3;

#[cfg(target_endian = "big")]
compile_error!(
    "values travel and are digested as the machine's own little-endian bytes: big-endian machines \
     are not supported"
);

/// Values copied before they are checked: few enough to be checked in the first-level cache.
const BLOCK_ELEMENTS: usize = 2048;

/// The reason why values were not written back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The number of values in the tensors differs from that of the flat vector; they are
    /// unchanged.
    #[error("the tensors hold {found} values, not {expected}: lend the same tensors at every call")]
    Length {
        /// Values of the tensors.
        found: usize,
        /// Values of the flat vector.
        expected: usize,
    },
    /// A tensor could not be written; those before it were.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Number of values in the tensors.
///
/// # Errors
/// A tensor cannot be read.
pub fn elements<T: Tensors + ?Sized>(tensors: &T) -> Result<usize, TensorError> {
    tensors.elements()
}

/// Copies all values into one flat vector and refuses infinities, NaN and values too large to be
/// averaged ([`SENT_MAX`]), in one pass.
///
/// # Errors
/// The first such value, a length other than that of `into`, or a tensor that cannot be read.
pub fn freeze<T: Tensors + ?Sized>(tensors: &T, into: &mut [f32]) -> Result<(), FreezeError> {
    freeze_since(tensors, None, into)
}

/// As [`freeze`]; tensors of 16 bits are given back what rounding took when they were `written`.
///
/// # Errors
/// As for [`freeze`].
pub fn freeze_since<T: Tensors + ?Sized>(
    tensors: &T,
    written: Option<&Written>,
    into: &mut [f32],
) -> Result<(), FreezeError> {
    let expected = into.len();
    let mut rest = into;
    let mut found = 0;
    let mut refused = None;
    tensors.lend(&mut |name, values| {
        let start = found;
        found += values.len();
        if refused.is_some() || values.len() > rest.len() {
            return;
        }
        let (here, after) = std::mem::take(&mut rest).split_at_mut(values.len());
        rest = after;
        let place = Place { start, written };
        refused =
            copy_finite(values, here, place).map(|(index, value)| (name.to_owned(), index, value));
    })?;
    match refused {
        Some((tensor, index, value)) => Err(FreezeError::NotFinite {
            tensor,
            index,
            value,
        }),
        None if found != expected => Err(FreezeError::Length { found, expected }),
        None => Ok(()),
    }
}

/// Writes the values of a flat vector back into the tensors.
///
/// # Errors
/// The lengths differ, or a tensor cannot be written.
pub fn restore<T: Tensors + ?Sized>(values: &[f32], tensors: &mut T) -> Result<(), RestoreError> {
    let found = elements(tensors)?;
    let expected = values.len();
    if found != expected {
        return Err(RestoreError::Length { found, expected });
    }
    let mut rest = values;
    tensors.lend_mut(&mut |_, tensor| {
        if let Some((here, after)) = rest.split_at_checked(tensor.len()) {
            let pieces: Vec<(ValuesMut<'_>, &[f32])> = tensor
                .chunks(CHUNK_ELEMENTS)
                .zip(here.chunks(CHUNK_ELEMENTS))
                .collect();
            threads::each(pieces, here.len(), |(into, from)| {
                into.replace(|at, into| into.copy_from_slice(&from[at..at + into.len()]))
            });
            rest = after;
        }
    })?;
    Ok(())
}

/// A digest of all values: 32 hexadecimal digits of XXH3-128 over their little-endian bytes, each
/// in its own type. Equal digests mean equal bits (except for deliberate collisions); how the
/// values are cut into tensors does not matter.
///
/// # Errors
/// A tensor cannot be read.
pub fn digest<T: Tensors + ?Sized>(tensors: &T) -> Result<String, TensorError> {
    let mut hasher = Xxh3::new();
    tensors.lend(&mut |_, values| hasher.update(values.bytes()))?;
    Ok(format!("{:032x}", hasher.digest128()))
}

/// Sets all values to zero.
///
/// # Errors
/// A tensor cannot be written; those before it were.
pub fn zero<T: Tensors + ?Sized>(tensors: &mut T) -> Result<(), TensorError> {
    tensors.lend_mut(&mut |_, values| values.zero())
}

/// Where a tensor begins in the flat vector, and what it was written from.
#[derive(Clone, Copy)]
struct Place<'a> {
    start: usize,
    written: Option<&'a Written>,
}

/// Copies a tensor's values to an equally long slice; returns the first one that is not finite, or
/// too large to be sent, and its index. The values after it need not be copied.
fn copy_finite(from: Values<'_>, into: &mut [f32], place: Place<'_>) -> Option<(usize, f32)> {
    let length = from.len();
    let pieces = from
        .chunks(CHUNK_ELEMENTS)
        .zip(into.chunks_mut(CHUNK_ELEMENTS))
        .enumerate()
        .collect();
    let found = threads::each(
        pieces,
        length,
        |(piece, (from, into)): (usize, (Values<'_>, &mut [f32]))| {
            let first = piece * CHUNK_ELEMENTS;
            let place = Place {
                start: place.start + first,
                ..place
            };
            let index = copy_finite_piece(from, into, place)?;
            Some((first + index, into[index]))
        },
    );
    found.into_iter().flatten().next()
}

fn copy_finite_piece(from: Values<'_>, into: &mut [f32], place: Place<'_>) -> Option<usize> {
    let blocks = from
        .chunks(BLOCK_ELEMENTS)
        .zip(into.chunks_mut(BLOCK_ELEMENTS));
    for (block, (from, into)) in blocks.enumerate() {
        let first = block * BLOCK_ELEMENTS;
        from.widen(into);
        if let (Values::Half(half, _), Some(written)) = (from, place.written) {
            written.give_back(half, place.start + first, into);
        }
        if let Some(index) = first_beyond(into, SENT_MAX) {
            return Some(first + index);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn freeze_names_the_first_value_that_is_not_finite() {
        for index in [
            0,
            1,
            BLOCK_ELEMENTS - 1,
            BLOCK_ELEMENTS,
            3 * BLOCK_ELEMENTS + 5,
        ] {
            for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -1.1 * SENT_MAX] {
                let mut tensors = vec![vec![1.0; 3], vec![SENT_MAX; 4 * BLOCK_ELEMENTS]];
                tensors[1][index] = value;
                let length = elements(&tensors).unwrap();
                let error = freeze(&tensors, &mut vec![0.0; length]).unwrap_err();
                assert!(
                    error
                        .to_string()
                        .starts_with(&format!("tensor 1[{index}] = {value}: ")),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn lengths_must_match() {
        let mut tensors = vec![vec![1.0, 2.0], vec![3.0]];
        for expected in [0, 2, 4] {
            let error = FreezeError::Length { found: 3, expected };
            assert_eq!(freeze(&tensors, &mut vec![0.0; expected]), Err(error));
            let error = RestoreError::Length { found: 3, expected };
            assert_eq!(restore(&vec![0.0; expected], &mut tensors), Err(error));
        }
        assert_eq!(tensors, [vec![1.0, 2.0], vec![3.0]]);
    }

    #[test]
    fn digests_depend_on_every_bit_and_not_on_the_cut() {
        assert_eq!(
            digest(&()).unwrap(),
            "99aa06d3014798d86001c324468d497f",
            "XXH3-128 of nothing"
        );
        let whole = digest(&vec![1.0, 2.0, 3.0]).unwrap();
        assert_eq!(digest(&vec![vec![1.0], vec![2.0, 3.0]]).unwrap(), whole);
        assert_ne!(
            digest(&vec![1.0, 2.0, 3.0 + f32::EPSILON * 2.0]).unwrap(),
            whole
        );
        assert_ne!(digest(&[-0.0]).unwrap(), digest(&[0.0]).unwrap());
    }

    proptest! {
        #[test]
        fn restore_undoes_freeze(
            tensors in prop::collection::vec(prop::collection::vec(-SENT_MAX..SENT_MAX, 0..9), 0..6)
        ) {
            let mut flat = vec![0.0; elements(&tensors).unwrap()];
            freeze(&tensors, &mut flat).unwrap();
            prop_assert_eq!(&flat, &tensors.concat());
            let mut copy = tensors.clone();
            zero(&mut copy).unwrap();
            restore(&flat, &mut copy).unwrap();
            prop_assert_eq!(copy, tensors);
        }
    }
}
