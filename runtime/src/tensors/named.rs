//! A list of tensors with names of their own, so that errors say "layer1.weight" rather than
//! "tensor 7".

use super::{Counter, TensorError, Tensors};

/// Borrowed tensors and their names, in the order in which they were added; every node must add
/// them in the same order.
///
/// ```
/// use slowmo::NamedTensors;
/// let (mut weight, mut bias) = (vec![0.0; 6], vec![0.0; 2]);
/// let model = NamedTensors::new().with("weight", &mut weight).with("bias", &mut bias);
/// assert_eq!(slowmo::digest(&model)?.len(), 32);
/// # Ok::<(), slowmo::TensorError>(())
/// ```
#[derive(Debug, Default)]
pub struct NamedTensors<'a> {
    list: Vec<(String, Lent<'a>)>,
}

/// What has a name.
#[derive(Debug)]
enum Lent<'a> {
    Values(&'a mut [f32]),
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
        self.list.iter().try_for_each(|(name, lent)| {
            match lent {
                Lent::Values(values) => visit(name, values),
                Lent::Counter(counter) => counter.read(&mut |_, digits| visit(name, digits))?,
            }
            Ok(())
        })
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        self.list.iter_mut().try_for_each(|(name, lent)| {
            match lent {
                Lent::Values(values) => visit(name, values),
                Lent::Counter(counter) => counter.write(&mut |_, digits| visit(name, digits))?,
            }
            Ok(())
        })
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
        let (mut first, mut last) = ([1.0], [2.0]);
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
