//! Candle's tensors on a GPU: their addresses, and copies for callers that need values in main
//! memory.

use crate::{CandleGradients, CandleVariables, block, refused};
use candle_core::{Storage, Tensor};
use slowmo::internal::OnGpu;
use slowmo::{TensorError, Values};

/// Calls `visit` with a copy of a tensor's values.
pub(super) fn read(
    name: &str,
    tensor: &Tensor,
    visit: &mut dyn FnMut(&str, Values<'_>),
) -> Result<(), TensorError> {
    let values = tensor
        .flatten_all()
        .and_then(|flat| flat.to_vec1::<f32>())
        .map_err(|error| refused(name, error))?;
    visit(name, Values::Float32(&values));
    Ok(())
}

/// The location of a tensor: address, elements, GPU and stream.
fn place(name: &str, tensor: &Tensor) -> Result<(u64, usize, usize, u64), TensorError> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return Err(refused(name, "it does not live on a GPU, as the others do"));
    };
    let range = block(layout).ok_or_else(|| TensorError::NotContiguous {
        name: name.to_owned(),
    })?;
    let slice = storage
        .as_cuda_slice::<f32>()
        .map_err(|error| refused(name, error))?;
    let (address, ordinal, stream) = slowmo_cuda::place(slice);
    Ok((
        address + (range.start * size_of::<f32>()) as u64,
        range.len(),
        ordinal,
        stream,
    ))
}

/// Tensors on one GPU and stream, as candle places them on a device.
pub(super) struct OnDevice<'a>(Vec<(&'a str, &'a Tensor)>);

/// A list of tensors that may lie on a GPU.
trait Listed {
    fn tensors(&self) -> Vec<(&str, &Tensor)>;
}

impl Listed for CandleVariables {
    fn tensors(&self) -> Vec<(&str, &Tensor)> {
        self.iter()
            .map(|(name, variable)| (name, variable.as_tensor()))
            .collect()
    }
}

impl Listed for CandleGradients<'_> {
    fn tensors(&self) -> Vec<(&str, &Tensor)> {
        self.present().collect()
    }
}

impl OnDevice<'_> {
    fn first(&self) -> Option<(u64, usize, usize, u64)> {
        self.0
            .first()
            .and_then(|(name, tensor)| place(name, tensor).ok())
    }

    fn each(&self, visit: &mut dyn FnMut(&str, u64, usize)) -> Result<(), TensorError> {
        let first = self.first();
        for (name, tensor) in &self.0 {
            let (address, elements, ordinal, stream) = place(name, tensor)?;
            if first.is_some_and(|(.., theirs, its)| (theirs, its) != (ordinal, stream)) {
                return Err(refused(
                    name,
                    "it lies on another GPU or stream than the first tensor: make all of them on \
                     one device",
                ));
            }
            visit(name, address, elements);
        }
        Ok(())
    }
}

macro_rules! on_gpu {
    ($owner:ty) => {
        // SAFETY: the owner holds its tensors, so candle keeps their storage; a training thread
        // lends them for the time of a call and does nothing else with them meanwhile. Addresses,
        // lengths, GPU and stream are those of the storage, and `each` refuses tensors of two GPUs
        // or streams.
        #[expect(unsafe_code, reason = "the contract of `OnGpu`")]
        unsafe impl OnGpu for $owner {
            fn ordinal(&self) -> usize {
                OnDevice(self.tensors())
                    .first()
                    .map_or(0, |(.., ordinal, _)| ordinal)
            }

            fn stream(&self) -> u64 {
                OnDevice(self.tensors())
                    .first()
                    .map_or(0, |(.., stream)| stream)
            }

            fn each(&self, visit: &mut dyn FnMut(&str, u64, usize)) -> Result<(), TensorError> {
                OnDevice(self.tensors()).each(visit)
            }
        }
    };
}

on_gpu!(CandleVariables);
on_gpu!(CandleGradients<'_>);
