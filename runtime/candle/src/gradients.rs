//! The gradients of a candle model's variables.

use crate::variables::Watcher;
use crate::{CandleVariables, lend, lend_mut, refused};
use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};
use slowmo::{TensorError, Tensors, Values, ValuesMut, read_widened, write_rounded};

/// The gradients of [`CandleVariables`], in the same order and of the same lengths on every worker:
/// a variable that took no part in the loss counts as zeros, and gets a gradient when it is
/// written. One that never took part in the first steps is named in a warning, once
/// ([`CandleVariables::without_gradient`]).
#[derive(Debug)]
pub struct CandleGradients<'a> {
    variables: &'a CandleVariables,
    store: &'a mut GradStore,
}

impl<'a> CandleGradients<'a> {
    /// Borrows the gradients in `store` of these variables.
    #[must_use]
    pub fn new(variables: &'a CandleVariables, store: &'a mut GradStore) -> Self {
        variables.watch(store, Watcher::Gradients);
        Self { variables, store }
    }
}

impl Tensors for CandleGradients<'_> {
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError> {
        read_widened(self, visit)
    }

    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError> {
        write_rounded(self, visit)
    }

    fn lend(&self, visit: &mut dyn FnMut(&str, Values<'_>)) -> Result<(), TensorError> {
        for (name, variable) in self.variables.iter() {
            match self.store.get(variable) {
                Some(gradient) => lend(name, &contiguous(name, gradient)?, visit)?,
                None => lend(name, &zeros(name, variable)?, visit)?,
            }
        }
        Ok(())
    }

    fn elements(&self) -> Result<usize, TensorError> {
        self.variables.elements()
    }

    fn lend_mut(&mut self, visit: &mut dyn FnMut(&str, ValuesMut<'_>)) -> Result<(), TensorError> {
        for (place, (name, variable)) in self.variables.iter().enumerate() {
            let gradient = match self.store.get(variable) {
                // The gradient itself, or a contiguous copy that replaces it.
                Some(gradient) => contiguous(name, gradient)?,
                None => {
                    self.variables.given_zeros(place);
                    zeros(name, variable)?
                }
            };
            lend_mut(name, &gradient, visit)?;
            self.store.insert(variable, gradient);
        }
        Ok(())
    }

    /// Available only if every variable has a contiguous gradient: missing ones are created, and
    /// others made contiguous, when they are written.
    #[cfg(feature = "cuda")]
    fn on_gpu(&self) -> Option<&dyn slowmo::internal::OnGpu> {
        let lent = |gradient: &Tensor| gradient.device().is_cuda() && gradient.is_contiguous();
        self.variables
            .iter()
            .all(|(_, variable)| self.store.get(variable).is_some_and(lent))
            .then_some(self as _)
    }
}

#[cfg(feature = "cuda")]
impl CandleGradients<'_> {
    /// The gradients that exist.
    pub(super) fn present(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.variables.iter().filter_map(|(name, variable)| {
            self.store.get(variable).map(|gradient| (name, gradient))
        })
    }
}

fn contiguous(name: &str, gradient: &Tensor) -> Result<Tensor, TensorError> {
    gradient.contiguous().map_err(|error| refused(name, error))
}

fn zeros(name: &str, variable: &Var) -> Result<Tensor, TensorError> {
    variable
        .zeros_like()
        .map(|zeros| zeros.detach())
        .map_err(|error| refused(name, error))
}
