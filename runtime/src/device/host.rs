//! The device of a worker that is a CPU thread: its tensors are in main memory, so values move by one copy.

use crate::tensors::freeze;
use slowmo_actors::buffers::Assembled;
use slowmo_actors::ports::device::{Device, FreezeError, TensorError, Tensors};
use slowmo_protocol::mean;

/// Main memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDevice;

impl Device for HostDevice {
    fn freeze(&self, tensors: &dyn Tensors, staging: &mut [f32]) -> Result<(), FreezeError> {
        freeze(tensors, staging)
    }

    fn copy(&self, tensors: &dyn Tensors, staging: &mut [f32]) -> Result<(), TensorError> {
        let mut next = 0;
        tensors.read(&mut |_, tensor| {
            if let Some(target) = staging.get_mut(next..next + tensor.len()) {
                target.copy_from_slice(tensor);
            }
            next += tensor.len();
        })
    }

    fn write_back(&self, values: &Assembled, start: usize, weight: f64, tensors: &mut dyn Tensors) -> Result<(), TensorError> {
        let mut next = start;
        tensors.write(&mut |_, tensor| {
            values.copy_to(next, tensor);
            mean::divide(tensor, weight);
            next += tensor.len();
        })
    }
}
