//! A list of tensors with names of their own, so that errors say "layer1.weight" rather than
//! "tensor 7".

use super::{TensorError, Tensors};

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
    list: Vec<(String, &'a mut [f32])>,
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
        self.list.push((name.into(), values));
        self
    }
}

impl<'a, N: Into<String>> FromIterator<(N, &'a mut [f32])> for NamedTensors<'a> {
    fn from_iter<I: IntoIterator<Item = (N, &'a mut [f32])>>(tensors: I) -> Self {
        Self {
            list: tensors
                .into_iter()
                .map(|(name, values)| (name.into(), values))
                .collect(),
        }
    }
}

impl Tensors for NamedTensors<'_> {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        self.list
            .iter()
            .for_each(|(name, values)| visit(name, values));
        Ok(())
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        self.list
            .iter_mut()
            .for_each(|(name, values)| visit(name, values));
        Ok(())
    }
}
