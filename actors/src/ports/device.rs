//! Devices: where a worker's copy of the model lives, and the exact mean over the workers of a
//! node.

mod tensors;

use crate::buffers::{ChunkedBuffer, Pool};
use std::fmt;
use std::sync::Arc;

/// Access to a list of float32 tensors, in registration order: how training code lends its values.
pub trait Tensors {
    /// Calls `visit` once a tensor with its name and values.
    ///
    /// # Errors
    /// A tensor's values cannot be reached; tensors before it were visited.
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError>;

    /// How many values the tensors hold. Called at every step, so it should cost next to nothing.
    ///
    /// # Errors
    /// A tensor's values cannot be reached.
    fn elements(&self) -> Result<usize, TensorError> {
        let mut count = 0;
        self.read(&mut |_, values| count += values.len())?;
        Ok(count)
    }

    /// Calls `visit` once a tensor with its name and its values to change.
    ///
    /// # Errors
    /// A tensor's values cannot be reached; tensors before it were changed.
    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError>;

    /// Names and dimensions, in registration order: for those who read a checkpoint. One dimension
    /// unless the lender knows better.
    ///
    /// # Errors
    /// A tensor's values cannot be reached.
    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        let mut shapes = Vec::new();
        self.read(&mut |name, values| shapes.push((name.to_owned(), vec![values.len()])))?;
        Ok(shapes)
    }

    /// Where the values are on a GPU; `None` (the default) in main memory. [`Tensors::read`] and
    /// [`Tensors::write`] then go by way of a copy.
    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        None
    }
}

/// Tensors in a GPU's memory, by address: what a device needs to copy and compute there. Whoever
/// lends them keeps them allocated, and has them read and written by nobody else, for as long as
/// they are borrowed; for a call that changes them that is a `&mut`.
pub trait OnGpu {
    /// Which GPU of this process, from 0.
    fn ordinal(&self) -> usize;

    /// The stream behind whose work the values are complete, and before whose later work slowmo's
    /// is done: a `CUstream` of the primary context as a number.
    fn stream(&self) -> u64;

    /// Calls `visit(name, address, elements)` once a tensor, in registration order.
    ///
    /// # Errors
    /// A tensor's values cannot be reached.
    fn each(&self, visit: &mut dyn FnMut(&str, u64, usize)) -> Result<(), TensorError>;
}

/// Why a tensor's values cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// Not float32.
    #[error("tensor {name} holds {found}, not float32: lend its float32 master copy")]
    NotFloat32 {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// Not one contiguous block on this device.
    #[error("tensor {name} is not contiguous: make it contiguous before lending it")]
    NotContiguous {
        /// The tensor.
        name: String,
    },
    /// On another device than the worker's, or the device failed.
    #[error("tensor {name}: {message}")]
    Device {
        /// The tensor; all of them if it is empty.
        name: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The framework refused.
    #[error("tensor {name}: {message}")]
    Framework {
        /// The tensor.
        name: String,
        /// What the framework said.
        message: String,
    },
}

/// Why values were not frozen. The tensors are unchanged; the flat vector may be partly
/// overwritten.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FreezeError {
    /// A value that training never recovers from.
    #[error(
        "{tensor}[{index}] = {value}: averaging would spread it to all nodes; check the learning rate and the loss of this worker"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Where in the tensor, in row-major order.
        index: usize,
        /// An infinity or NaN.
        value: f32,
    },
    /// The tensors hold another number of values than the flat vector.
    #[error("the tensors hold {found} values, not {expected}: lend the same tensors at every call")]
    Length {
        /// Values of the tensors.
        found: usize,
        /// Values of the flat vector.
        expected: usize,
    },
    /// A tensor could not be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// What overlapped gossip left of a worker's values.
#[derive(Clone, Debug)]
pub struct Mixed {
    /// The values as they were before, in flat order, if they were asked for.
    pub before: ChunkedBuffer,
    /// The first numerator that is not finite, if there is one.
    pub not_finite: Option<FreezeError>,
}

/// Where a worker's copy of the model lives: moves values between the lent tensors and the node's
/// flat host buffers. One for each worker; called from its training thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// The GPU of this process, from 0, if it is one.
    fn gpu(&self) -> Option<usize> {
        None
    }

    /// Copies all values into `staging`, in flat order, and refuses infinities and NaN.
    ///
    /// # Errors
    /// A value that is not finite, another length, or a tensor that cannot be read. `staging` may
    /// be partly overwritten.
    fn freeze(&self, tensors: &dyn Tensors, staging: &mut [f32]) -> Result<(), FreezeError>;

    /// Copies all values into `staging` as they are: gradients may overflow, which their optimizer
    /// handles.
    ///
    /// # Errors
    /// A tensor that cannot be read.
    fn copy(&self, tensors: &dyn Tensors, staging: &mut [f32]) -> Result<(), TensorError>;

    /// One pass of overlapped gossip: the numerators are this part of the values that stays, and
    /// `correction` (in flat order; nothing at all where it is empty); they are left divided by the
    /// push-sum weight in the tensors. Returns the values as they were before where `keep` says
    /// from where their buffers come.
    ///
    /// # Errors
    /// A tensor that cannot be read or written; those before it were mixed.
    fn mix(
        &self,
        correction: &ChunkedBuffer,
        stays_and_weight: (f32, f64),
        tensors: &mut dyn Tensors,
        keep: Option<&Arc<Pool>>,
    ) -> Result<Mixed, TensorError>;

    /// Writes `values` from element `start` on into the tensors, divided by the push-sum weight.
    ///
    /// # Errors
    /// A tensor that cannot be written; those before it were.
    fn write_back(
        &self,
        values: &ChunkedBuffer,
        start: usize,
        weight: f64,
        tensors: &mut dyn Tensors,
    ) -> Result<(), TensorError>;
}

/// The exact mean over the workers of one node. Every worker of the node calls the same operation
/// with its own rank; calls block until all have.
pub trait Collective: Send + Sync + fmt::Debug {
    /// Workers of the node, `g`.
    fn size(&self) -> usize;

    /// Replaces each worker's `values` by the mean over the workers: the same bits everywhere. In
    /// main memory it is summed in ascending rank, on GPUs in the order of their library.
    ///
    /// # Errors
    /// Another length than the other workers: `values` is unchanged. The collective was aborted: on
    /// a GPU they may be changed in part.
    fn mean(&self, rank: usize, values: &mut dyn Tensors) -> Result<(), CollectiveError>;

    /// Makes current and later calls fail on every worker: one of them is gone.
    fn abort(&self, rank: usize);
}

/// Why a collective operation failed. The worker's values are unchanged, but for
/// [`CollectiveError::Device`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A worker of this node left or panicked.
    #[error("worker {0} of this node is gone: the others cannot average without it")]
    WorkerGone(usize),
    /// Workers brought different lengths.
    #[error(
        "worker {rank} brought {found} values, worker 0 {expected}: all workers of a node train the same model"
    )]
    Length {
        /// The worker.
        rank: usize,
        /// Its values.
        found: usize,
        /// Those of worker 0.
        expected: usize,
    },
    /// There is no such worker.
    #[error("there is no worker {rank}: this node has {size}")]
    NoSuchWorker {
        /// The rank asked for.
        rank: usize,
        /// Workers of the node.
        size: usize,
    },
    /// The worker's tensors could not be read or written.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The library that moves the values failed; the node's GPUs cannot average any more.
    #[error("the GPUs of this node cannot average: {0}")]
    Device(String),
}
