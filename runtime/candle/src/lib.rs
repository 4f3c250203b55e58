//! Candle variables and gradients as [`slowmo::Tensors`], passed without copies: in main memory,
//! and with the feature `cuda` on a GPU. Touches candle's storage only. Optimizers whose state
//! travels: to nodes that join, and into checkpoints.
//!
//! A package of its own, so that who trains without candle does not compile it. The example
//! `digits` is a whole training loop.
#![deny(missing_docs)]

#[cfg(feature = "cuda")]
mod gpu;
mod gradients;
mod model;
mod optimizer;
#[cfg(test)]
mod tests;
mod variables;

pub use gradients::CandleGradients;
pub use model::{BUFFER_NAMES, CandleModel, is_buffer_name};
pub use optimizer::{AdamW, Sgd, SgdConfig};
pub use variables::CandleVariables;

use candle_core::{CpuStorage, DType, Error, InplaceOp1, Layout, Storage, Tensor};
use half::slice::HalfFloatSliceExt;
use slowmo::{Half, TensorError, Values, ValuesMut};
use std::cell::RefCell;

/// Checks that a tensor's values can be borrowed: of a type that is lent, one block, main memory.
fn check(name: &str, tensor: &Tensor) -> Result<(), TensorError> {
    if !matches!(tensor.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        let found = tensor.dtype().as_str();
        return Err(refused(
            name,
            format!(
                "it holds {found}, and only f32, bf16 and f16 are lent: lend a float32 copy of it"
            ),
        ));
    }
    if !tensor.is_contiguous() {
        return Err(TensorError::NotContiguous {
            name: name.to_owned(),
        });
    }
    let on_gpu = cfg!(feature = "cuda") && tensor.device().is_cuda();
    if on_gpu && tensor.dtype() != DType::F32 {
        return Err(TensorError::NotFloat32 {
            name: name.to_owned(),
            found: format!("{} on a GPU", tensor.dtype().as_str()),
        });
    }
    if !tensor.device().is_cpu() && !on_gpu {
        return Err(refused(
            name,
            "it does not live in main memory: move it there with to_device(&Device::Cpu)",
        ));
    }
    Ok(())
}

/// Passes the values of a checked tensor to a function that reads them.
fn lend(
    name: &str,
    tensor: &Tensor,
    visit: &mut dyn FnMut(&str, Values<'_>),
) -> Result<(), TensorError> {
    check(name, tensor)?;
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda() {
        return gpu::read(name, tensor, visit);
    }
    let (storage, layout) = tensor.storage_and_layout();
    let range = block(layout);
    let values = range.and_then(|range| match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => values.get(range).map(Values::Float32),
        Storage::Cpu(CpuStorage::BF16(values)) => {
            let bits = values.reinterpret_cast().get(range)?;
            Some(Values::Half(Half::BFloat16, bits))
        }
        Storage::Cpu(CpuStorage::F16(values)) => {
            let bits = values.reinterpret_cast().get(range)?;
            Some(Values::Half(Half::Float16, bits))
        }
        _ => None,
    });
    let values = values.ok_or_else(|| TensorError::NotContiguous {
        name: name.to_owned(),
    })?;
    visit(name, values);
    Ok(())
}

/// Passes the values of a checked tensor to a function that changes them in place; everything that
/// shares its storage changes with it.
fn lend_mut(
    name: &str,
    tensor: &Tensor,
    visit: &mut dyn FnMut(&str, ValuesMut<'_>),
) -> Result<(), TensorError> {
    check(name, tensor)?;
    let mut visit = |values: ValuesMut<'_>| visit(name, values);
    tensor
        .inplace_op1(&Lend(RefCell::new(&mut visit)))
        .map_err(|error| refused(name, error))
}

fn refused(name: &str, error: impl ToString) -> TensorError {
    TensorError::Framework {
        name: name.to_owned(),
        message: error.to_string(),
    }
}

fn block(layout: &Layout) -> Option<std::ops::Range<usize>> {
    layout.contiguous_offsets().map(|(start, end)| start..end)
}

/// The function that is applied to a tensor's values.
type Visit<'a> = &'a mut dyn FnMut(ValuesMut<'_>);

/// An in-place operation: candle's only safe access to values that can be changed.
struct Lend<'a>(RefCell<Visit<'a>>);

impl InplaceOp1 for Lend<'_> {
    fn name(&self) -> &'static str {
        "slowmo-lend"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let range = block(layout).ok_or_else(|| Error::Msg("not contiguous".to_owned()))?;
        let values = match storage {
            CpuStorage::F32(values) => values.get_mut(range).map(ValuesMut::Float32),
            CpuStorage::BF16(values) => {
                let bits = values.reinterpret_cast_mut().get_mut(range);
                bits.map(|bits| ValuesMut::Half(Half::BFloat16, bits))
            }
            CpuStorage::F16(values) => {
                let bits = values.reinterpret_cast_mut().get_mut(range);
                bits.map(|bits| ValuesMut::Half(Half::Float16, bits))
            }
            _ => return Err(Error::Msg("not f32, bf16 or f16".to_owned())),
        };
        let values = values.ok_or_else(|| Error::Msg("not contiguous".to_owned()))?;
        let mut visit = self
            .0
            .try_borrow_mut()
            .map_err(|error| Error::Msg(error.to_string()))?;
        visit(values);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &mut candle_core::CudaStorage,
        layout: &Layout,
    ) -> candle_core::Result<()> {
        let range = block(layout).ok_or_else(|| Error::Msg("not contiguous".to_owned()))?;
        let mut visit = self
            .0
            .try_borrow_mut()
            .map_err(|error| Error::Msg(error.to_string()))?;
        slowmo_cuda::change(
            storage.as_cuda_slice_mut::<f32>()?,
            range,
            &mut |values: &mut [f32]| visit(ValuesMut::Float32(values)),
        )
        .map_err(Error::wrap)
    }
}

/// Compiles the Rust snippets of the page on what is lent, which the package `slowmo` cannot: some
/// use candle.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../docs/state.md")]
    struct State;
}
