//! The device of a worker that is a CPU thread: its tensors are in main memory, so one copy moves
//! the values.

use super::mixing;
use crate::tensors::{freeze, threads};
use slowmo_actors::buffers::{CHUNK_ELEMENTS, ChunkedBuffer, Pool};
use slowmo_actors::ports::device::{Device, FreezeError, MixFactors, Mixed, TensorError, Tensors};
use slowmo_protocol::mean;
use std::sync::Arc;

/// The device for main memory.
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

    fn mix(
        &self,
        correction: &ChunkedBuffer,
        factors: MixFactors,
        tensors: &mut dyn Tensors,
        keep: Option<&Arc<Pool>>,
    ) -> Result<Mixed, TensorError> {
        mixing::mix(correction, factors, tensors, keep)
    }

    fn write_back(
        &self,
        values: &ChunkedBuffer,
        start: usize,
        weight: f64,
        tensors: &mut dyn Tensors,
    ) -> Result<(), TensorError> {
        let mut next = start;
        tensors.write(&mut |_, tensor| {
            let first = next;
            let length = tensor.len();
            let pieces = tensor.chunks_mut(CHUNK_ELEMENTS).enumerate().collect();
            threads::each(pieces, length, |(index, piece): (usize, &mut [f32])| {
                values.copy_to(first + index * CHUNK_ELEMENTS, piece);
                mean::divide(piece, weight);
            });
            next += length;
        })
    }
}
