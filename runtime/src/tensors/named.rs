//! A list of tensors with names of their own, so that errors say "layer1.weight" rather than
//! "tensor 7".

use super::{Counter, Half, TensorError, Tensors, Values, ValuesMut, read_widened, write_rounded};

/// Borrowed tensors and their names, in the order in which they were added; every node must add
/// them in the same order.
///
/// ```
/// use slowmo::NamedTensors;
/// let mut weight = vec![0.0; 6];
/// let mut bias = vec![0.0; 2];
/// let model = NamedTensors::new().with("weight", &mut weight).with("bias", &mut bias);
/// assert_eq!(slowmo::digest(&model)?.len(), 32);
/// # Ok::<(), slowmo::TensorError>(())
/// ```
#[derive(Debug, Default)]
pub struct NamedTensors<'a> {
    list: Vec<(String, Lent<'a>)>,
}

/// Tensors or a count that a name stands for.
#[derive(Debug)]
enum Lent<'a> {
    Values(&'a mut [f32]),
    Half(Half, &'a mut [u16]),
    Counter(&'a mut Counter),
}

impl<'a> NamedTensors<'a> {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor at the end.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, values: &'a mut [f32]) -> Self {
        self.list.push((name.into(), Lent::Values(values)));
        self
    }

    /// Adds a tensor of bfloat16 or float16 at the end, as bits (`half::bf16::to_bits`; a whole
    /// slice of the crate `half` with `reinterpret_cast_mut`, or with `bytemuck::cast_slice_mut`).
    /// Between nodes its values are float32; what is written back is rounded ([`Half`]).
    ///
    /// ```
    /// use slowmo::{Half, NamedTensors};
    /// let mut weight = vec![0u16; 6];
    /// let mut scale = vec![1.0f32; 2];
    /// let model = NamedTensors::new()
    ///     .with_half("weight", Half::BFloat16, &mut weight)
    ///     .with("scale", &mut scale);
    /// assert_eq!(slowmo::digest(&model)?.len(), 32);
    /// # Ok::<(), slowmo::TensorError>(())
    /// ```
    #[must_use]
    pub fn with_half(mut self, name: impl Into<String>, half: Half, bits: &'a mut [u16]) -> Self {
        self.list.push((name.into(), Lent::Half(half, bits)));
        self
    }

    /// Adds an optimizer's step counter at the end.
    #[must_use]
    pub fn with_counter(mut self, name: impl Into<String>, counter: &'a mut Counter) -> Self {
        self.list.push((name.into(), Lent::Counter(counter)));
        self
    }
}

impl<'a, N: Into<String>> FromIterator<(N, &'a mut [f32])> for NamedTensors<'a> {
    fn from_iter<I: IntoIterator<Item = (N, &'a mut [f32])>>(tensors: I) -> Self {
        Self {
            list: tensors
                .into_iter()
                .map(|(name, values)| (name.into(), Lent::Values(values)))
                .collect(),
        }
    }
}

impl Tensors for NamedTensors<'_> {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        read_widened(self, visit)
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        write_rounded(self, visit)
    }

    fn lend(&self, visit: &mut dyn FnMut(&str, Values<'_>)) -> Result<(), TensorError> {
        self.list.iter().try_for_each(|(name, lent)| {
            match lent {
                Lent::Values(values) => visit(name, Values::Float32(values)),
                Lent::Half(half, bits) => visit(name, Values::Half(*half, bits)),
                Lent::Counter(counter) => {
                    counter.lend(&mut |_, digits| visit(name, digits))?;
                }
            }
            Ok(())
        })
    }

    fn lend_mut(&mut self, visit: &mut dyn FnMut(&str, ValuesMut<'_>)) -> Result<(), TensorError> {
        self.list.iter_mut().try_for_each(|(name, lent)| {
            match lent {
                Lent::Values(values) => visit(name, ValuesMut::Float32(values)),
                Lent::Half(half, bits) => visit(name, ValuesMut::Half(*half, bits)),
                Lent::Counter(counter) => {
                    counter.lend_mut(&mut |_, digits| visit(name, digits))?;
                }
            }
            Ok(())
        })
    }

    fn elements(&self) -> Result<usize, TensorError> {
        let count = |lent: &Lent<'_>| match lent {
            Lent::Values(values) => Ok(values.len()),
            Lent::Half(_, bits) => Ok(bits.len()),
            Lent::Counter(counter) => counter.elements(),
        };
        self.list.iter().map(|(_, lent)| count(lent)).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tensors::flat::{freeze, restore, zero};

    fn lend<'a>(
        first: &'a mut [f32],
        steps: &'a mut Counter,
        last: &'a mut [f32],
    ) -> NamedTensors<'a> {
        let list = NamedTensors::new().with("first", first);
        list.with_counter("steps", steps).with("last", last)
    }

    #[test]
    fn a_counter_is_lent_at_its_place() {
        let mut first = [1.0];
        let mut last = [2.0];
        let mut steps = Counter::new((3 << 16) + 5);
        let mut flat = [0.0; 4];
        freeze(&lend(&mut first, &mut steps, &mut last), &mut flat).unwrap();
        assert_eq!(flat, [1.0, 5.0, 3.0, 2.0]);
        let others = [7.0, 6.0, 4.0, 8.0];
        restore(&others, &mut lend(&mut first, &mut steps, &mut last)).unwrap();
        assert_eq!((first, steps.get(), last), ([7.0], (4 << 16) + 6, [8.0]));
        zero(&mut lend(&mut first, &mut steps, &mut last)).unwrap();
        assert_eq!((first, steps.get(), last), ([0.0], 0, [0.0]));
    }
}
