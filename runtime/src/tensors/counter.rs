//! A counter that travels with an optimizer's buffers.

use super::{TensorError, Tensors};

/// Number of steps that an optimizer has taken, as state that travels: lend it with the optimizer's
/// other buffers ([`crate::Buffers::optimizer`]), so that it is kept, reset, averaged, copied to
/// joiners and stored in checkpoints as they are. Adam without it would correct the bias of its
/// moments wrongly after each of these.
///
/// Exact up to [`Counter::MAX`]. In an average it becomes the mean count, as exactly as
/// float32 has it.
///
/// ```
/// use slowmo::{Counter, NamedTensors};
/// let mut first = vec![0.0; 8];
/// let mut second = vec![0.0; 8];
/// let mut steps = Counter::default();
/// steps.advance();
/// let state = NamedTensors::new()
///     .with("first", &mut first)
///     .with("second", &mut second)
///     .with_counter("steps", &mut steps);
/// assert_eq!(slowmo::digest(&state)?.len(), 32);
/// assert_eq!(steps.get(), 1);
/// # Ok::<(), slowmo::TensorError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counter(u64);

/// Values that a counter lends: its digits to the base [`BASE`], lowest first. Each is a float32
/// without rounding; zeros are the count 0, and the means of digits are those of the mean count.
const COUNTER_ELEMENTS: usize = 2;
/// Sums of low digits over 256 nodes are exact too.
const BASE: u64 = 1 << 16;
/// Largest high digit: the largest count of float32's whole numbers.
const HIGH_MAX: u64 = 1 << 24;

impl Counter {
    /// The largest count: 2⁴⁰. Counting stops there.
    pub const MAX: Self = Self(BASE * HIGH_MAX);

    /// A counter that stands at `count`, or at [`Counter::MAX`] if that is less.
    #[must_use]
    pub fn new(count: u64) -> Self {
        Self(count.min(Self::MAX.0))
    }

    /// The count.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Counts one step.
    pub fn advance(&mut self) {
        *self = Self::new(self.0 + 1);
    }

    /// The values that stand for the count.
    pub(crate) fn digits(self) -> [f32; COUNTER_ELEMENTS] {
        [(self.0 % BASE) as f32, (self.0 / BASE) as f32]
    }

    /// The count of such values, rounded.
    pub(crate) fn of_digits([low, high]: [f32; COUNTER_ELEMENTS]) -> Self {
        let count = f64::from(low) + f64::from(high) * BASE as f64;
        // A cast from a float stops at the type's ends, and makes NaN zero.
        Self::new(count.round() as u64)
    }
}

/// Lends the one tensor "counter".
impl Tensors for Counter {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        visit("counter", &self.digits());
        Ok(())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        let mut digits = self.digits();
        visit("counter", &mut digits);
        *self = Self::of_digits(digits);
        Ok(())
    }

    fn elements(&self) -> Result<usize, TensorError> {
        Ok(COUNTER_ELEMENTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slowmo_protocol::mean;

    #[test]
    fn counting_stops_at_the_largest_count() {
        let mut counter = Counter::new(Counter::MAX.get() - 1);
        counter.advance();
        counter.advance();
        assert_eq!(counter, Counter::MAX);
        assert_eq!(Counter::new(u64::MAX), Counter::MAX);
        assert_eq!(Counter::of_digits(Counter::MAX.digits()), Counter::MAX);
        assert_eq!(Counter::of_digits([0.0; 2]), Counter::default());
        assert_eq!(Counter::of_digits([-3.0, f32::NAN]), Counter::default());
    }

    proptest! {
        #[test]
        fn a_count_travels_exactly(count in 0..=Counter::MAX.0) {
            let counter = Counter::new(count);
            prop_assert_eq!(Counter::of_digits(counter.digits()), counter);
        }

        /// Nodes that joined late have counted less.
        #[test]
        fn an_average_is_the_mean_count(counts in prop::collection::vec(0u64..1 << 30, 1..50)) {
            let mut sum = [0.0; COUNTER_ELEMENTS];
            for count in &counts {
                mean::add(&mut sum, &Counter::new(*count).digits());
            }
            mean::divide(&mut sum, counts.len() as f64);
            let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
            let off = Counter::of_digits(sum).get() as f64 - mean;
            prop_assert!(off.abs() <= 1.0 + mean / f64::from(1 << 22), "{off} off {mean}");
        }
    }
}
