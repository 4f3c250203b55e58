//! Burn modules on slowmo: [`Modules`] gives a worker calls that take a module of any backend.
//!
//! Burn's tensors are values without an address of their own. So a module's values are copied into
//! main memory for an exchange and loaded back after it, once each; a step at which nothing is due
//! copies nothing. Parameters and running statistics are told apart by burn itself
//! ([`StagedModule`]).
//!
//! A package of its own, so that who trains without burn does not compile it. It needs the Rust
//! version that burn needs, which is newer than slowmo's own. The example `digits` is a whole
//! training loop.
#![deny(missing_docs)]

mod gradients;
mod modules;
mod optimizer;
mod path;
mod staged;
#[cfg(test)]
mod tests;

pub use gradients::ModuleGradients;
pub use modules::Modules;
pub use optimizer::OptimizerState;
pub use staged::{Staged, StagedModule};

use burn::tensor::{DType, Device, Tensor, TensorData};
use slowmo::TensorError;

/// Copies a tensor's values into main memory.
fn values<const D: usize>(name: &str, tensor: Tensor<D>) -> Result<Vec<f32>, TensorError> {
    let found = tensor.dtype();
    if found != DType::F32 {
        return Err(TensorError::NotFloat32 {
            name: name.to_owned(),
            found: format!("{found:?}").to_lowercase(),
        });
    }
    let data = tensor
        .try_into_data()
        .map_err(|error| refused(name, error))?;
    data.try_into_vec().map_err(|error| refused(name, error))
}

/// A tensor of these values on a device.
fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

fn refused(name: &str, error: impl ToString) -> TensorError {
    TensorError::Framework {
        name: name.to_owned(),
        message: error.to_string(),
    }
}
