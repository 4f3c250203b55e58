//! Devices, which hold a worker's copy of the model, and the exact mean over the workers of a node.

mod tensors;
mod values;

pub use slowmo_protocol::half::Half;
pub use values::{Values, ValuesMut, Written};

use crate::buffers::{ChunkedBuffer, Pool};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A list of tensors in registration order, as training code passes its values: float32, and also
/// bfloat16 and float16 where [`Tensors::lend`] and [`Tensors::lend_mut`] are provided.
pub trait Tensors {
    /// Calls `visit` once per tensor with its name and its values as float32: those of another type
    /// go through a copy.
    ///
    /// # Errors
    /// A tensor's values cannot be reached; the tensors before it were visited.
    fn read(&self, visit: &mut dyn FnMut(&str, &[f32])) -> Result<(), TensorError>;

    /// The number of values in the tensors. Called at every exchange. The default reads all values;
    /// provide it where reading costs a copy.
    ///
    /// # Errors
    /// A tensor's values cannot be reached.
    fn elements(&self) -> Result<usize, TensorError> {
        let mut count = 0;
        self.lend(&mut |_, values| count += values.len())?;
        Ok(count)
    }

    /// Calls `visit` once per tensor with its name and its mutable values as float32: those of
    /// another type go through a copy, which is rounded to nearest even.
    ///
    /// # Errors
    /// A tensor's values cannot be reached; the tensors before it were changed.
    fn write(&mut self, visit: &mut dyn FnMut(&str, &mut [f32])) -> Result<(), TensorError>;

    /// Calls `visit` once per tensor with its name and its values in their own type, which is what
    /// the runtime does. The default lends what [`Tensors::read`] does, as float32. Provide it, and
    /// [`Tensors::lend_mut`], for tensors of other types; `read` and `write` may then be
    /// [`read_widened`] and [`write_rounded`].
    ///
    /// # Errors
    /// As for [`Tensors::read`].
    fn lend(&self, visit: &mut dyn FnMut(&str, Values<'_>)) -> Result<(), TensorError> {
        self.read(&mut |name, values| visit(name, Values::Float32(values)))
    }

    /// Does the same as [`Tensors::lend`], with mutable values of the same types.
    ///
    /// # Errors
    /// As for [`Tensors::write`].
    fn lend_mut(&mut self, visit: &mut dyn FnMut(&str, ValuesMut<'_>)) -> Result<(), TensorError> {
        self.write(&mut |name, values| visit(name, ValuesMut::Float32(values)))
    }

    /// Names and dimensions in registration order, for readers of a checkpoint. Each tensor has one
    /// dimension unless the implementation provides its real shape.
    ///
    /// # Errors
    /// A tensor's values cannot be reached.
    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        let mut shapes = Vec::new();
        self.lend(&mut |name, values| shapes.push((name.to_owned(), vec![values.len()])))?;
        Ok(shapes)
    }

    /// Access to the values if they are on a GPU; `None` (the default) if they are in main memory.
    /// For values on a GPU, [`Tensors::read`] and [`Tensors::write`] go through a copy.
    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        None
    }
}

/// [`Tensors::read`] for tensors that provide [`Tensors::lend`]: values of 16 bits go through a
/// copy.
///
/// # Errors
/// As for [`Tensors::lend`].
pub fn read_widened<T: Tensors + ?Sized>(
    tensors: &T,
    visit: &mut dyn FnMut(&str, &[f32]),
) -> Result<(), TensorError> {
    tensors.lend(&mut |name, values| match values {
        Values::Float32(values) => visit(name, values),
        values @ Values::Half(..) => {
            let mut wide = vec![0.0; values.len()];
            values.widen(&mut wide);
            visit(name, &wide);
        }
    })
}

/// [`Tensors::write`] for tensors that provide [`Tensors::lend_mut`]: values of 16 bits go through
/// a copy, which is rounded.
///
/// # Errors
/// As for [`Tensors::lend_mut`].
pub fn write_rounded<T: Tensors + ?Sized>(
    tensors: &mut T,
    visit: &mut dyn FnMut(&str, &mut [f32]),
) -> Result<(), TensorError> {
    tensors.lend_mut(&mut |name, values| match values {
        ValuesMut::Float32(values) => visit(name, values),
        ValuesMut::Half(half, bits) => {
            let mut wide = vec![0.0; bits.len()];
            half.widen_all(bits, &mut wide);
            visit(name, &mut wide);
            half.round_all(&wide, bits);
        }
    })
}

/// Tensors in a GPU's memory, by address: what a device needs to copy and compute there. A call
/// that changes them borrows them as `&mut`.
///
/// # Safety
/// Devices read and write at these addresses. For as long as the tensors are borrowed,
/// - each address is that of as many float32 values as [`OnGpu::each`] tells, allocated on the GPU
///   that [`OnGpu::ordinal`] names;
/// - the owner keeps them allocated, and lets nobody else read or write them;
/// - [`OnGpu::stream`] is a stream of this GPU's primary context, which is not destroyed.
#[expect(
    unsafe_code,
    reason = "a contract that its implementations in runtime/cuda and runtime/candle state to keep"
)]
pub unsafe trait OnGpu {
    /// Index of the GPU in this process, from 0.
    fn ordinal(&self) -> usize;

    /// The CUDA stream on which slowmo orders its work: the values are complete after the stream's
    /// earlier work, and slowmo's work is done before the stream's later work. A `CUstream` of the
    /// primary context as a number.
    fn stream(&self) -> u64;

    /// Calls `visit(name, address, elements)` once per tensor, in registration order.
    ///
    /// # Errors
    /// A tensor's values cannot be reached.
    fn each(&self, visit: &mut dyn FnMut(&str, u64, usize)) -> Result<(), TensorError>;
}

/// Reason for which a tensor's values cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The tensor is not float32, where no other type is lent.
    #[error("tensor {name} holds {found}, not float32: lend its float32 master copy")]
    NotFloat32 {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// The tensor is not one contiguous block on this device.
    #[error("tensor {name} is not contiguous: make it contiguous before lending it")]
    NotContiguous {
        /// The tensor.
        name: String,
    },
    /// The tensor is on another device than the worker's, or the device failed.
    #[error("tensor {name}: {message}")]
    Device {
        /// The tensor; empty if all tensors are affected.
        name: String,
        /// The problem, and what to do about it.
        message: String,
    },
    /// The framework refused access.
    #[error("tensor {name}: {message}")]
    Framework {
        /// The tensor.
        name: String,
        /// The framework's error.
        message: String,
    },
}

/// Error of values that were not frozen. The tensors are unchanged; the flat vector may be partly
/// overwritten.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FreezeError {
    /// A value is infinite or NaN, from which training never recovers, or so large that it soon is
    /// ([`slowmo_protocol::sound::SENT_MAX`]).
    #[error(
        "{tensor}[{index}] = {value}: averaging would spread it to all nodes; check the learning \
         rate and the loss of this worker"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Index in the tensor, in row-major order.
        index: usize,
        /// The infinity or NaN.
        value: f32,
    },
    /// The tensors hold a different number of values than the flat vector.
    #[error("the tensors hold {found} values, not {expected}: lend the same tensors at every call")]
    Length {
        /// Number of values in the tensors.
        found: usize,
        /// Number of values in the flat vector.
        expected: usize,
    },
    /// A tensor could not be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The two factors of a mix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixFactors {
    /// The fraction of the model that stays here.
    pub stays: f32,
    /// The push-sum weight, by which the numerators are divided.
    pub weight: f64,
}

/// A worker's state after overlapped gossip was mixed in.
#[derive(Clone, Debug)]
pub struct Mixed {
    /// The values before the mix, in flat order, if they were requested.
    pub before: ChunkedBuffer,
    /// The first numerator that is not finite, or too large to be sent, if there is one.
    pub not_finite: Option<FreezeError>,
}

/// The device that holds a worker's copy of the model: moves values between the passed tensors and
/// the node's flat host buffers. One per worker; called from its training thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// Index of the GPU in this process, from 0; `None` if the device is no GPU.
    fn gpu(&self) -> Option<usize> {
        None
    }

    /// Copies all values into `staging`, in flat order and as float32, and refuses infinities, NaN,
    /// and values beyond [`slowmo_protocol::sound::SENT_MAX`]. Tensors of 16 bits are given back
    /// what rounding took when they were `written`; see [`slowmo_protocol::half`].
    ///
    /// # Errors
    /// A value is refused, the lengths differ, or a tensor cannot be read. `staging` may be
    /// partly overwritten.
    fn freeze(
        &self,
        tensors: &dyn Tensors,
        written: Option<&Written>,
        staging: &mut [f32],
    ) -> Result<(), FreezeError>;

    /// Copies all values into `staging` as float32, unchecked: gradients may overflow, which their
    /// optimizer handles.
    ///
    /// # Errors
    /// A tensor cannot be read.
    fn copy(&self, tensors: &dyn Tensors, staging: &mut [f32]) -> Result<(), TensorError>;

    /// Makes one pass of overlapped gossip over the tensors. The numerators are `factors.stays`
    /// times the values, plus `correction` (in flat order; zero everywhere if it is empty); the
    /// tensors then hold the numerators divided by the push-sum weight, rounded to their own types.
    /// If `keep` is given, the result holds the values from before, in buffers of that pool.
    ///
    /// # Errors
    /// A tensor cannot be read or written; the tensors before it were mixed.
    fn mix(
        &self,
        correction: &ChunkedBuffer,
        factors: MixFactors,
        tensors: &mut dyn Tensors,
        keep: Option<&Arc<Pool>>,
    ) -> Result<Mixed, TensorError>;

    /// Writes `values`, starting at element `start`, into the tensors, divided by the push-sum
    /// weight and rounded to their own types. Returns the ranges of `values` that were rounded
    /// because a tensor is not float32.
    ///
    /// # Errors
    /// A tensor cannot be written; the tensors before it were written.
    fn write_back(
        &self,
        values: &ChunkedBuffer,
        start: usize,
        weight: f64,
        tensors: &mut dyn Tensors,
    ) -> Result<Vec<Range<usize>>, TensorError>;
}

/// The exact mean over the workers of one node. Every worker of the node calls the same operation
/// with its own rank; a call blocks until all have called.
pub trait Collective: Send + Sync + fmt::Debug {
    /// Number of workers of the node, `g`.
    fn size(&self) -> usize;

    /// Replaces each worker's `values` by the mean over the workers, bit-identical on all of them.
    /// In main memory the sum runs in ascending rank, on GPUs in the order of their library.
    ///
    /// # Errors
    /// The length differs from that of the other workers: `values` is unchanged. Or the collective
    /// was aborted: on a GPU the values may be partly changed.
    fn mean(&self, rank: usize, values: &mut dyn Tensors) -> Result<(), CollectiveError>;

    /// Makes current and later calls fail on every worker, because worker `rank` is gone.
    fn abort(&self, rank: usize);
}

/// Error of a collective operation. The worker's values are unchanged, except for
/// [`CollectiveError::Device`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A worker of this node left or panicked.
    #[error("worker {0} of this node is gone: the others cannot average without it")]
    WorkerGone(usize),
    /// The workers passed different numbers of values.
    #[error(
        "worker {rank} brought {found} values, worker 0 {expected}: all workers of a node train \
         the same model"
    )]
    Length {
        /// Rank of the worker whose number differs.
        rank: usize,
        /// The number of its values.
        found: usize,
        /// The number of worker 0's values.
        expected: usize,
    },
    /// The node has no worker of this rank.
    #[error("there is no worker {rank}: this node has {size}")]
    NoSuchWorker {
        /// The requested rank.
        rank: usize,
        /// Number of workers of the node.
        size: usize,
    },
    /// The worker's tensors could not be read or written.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The library that moves the values failed; the node's GPUs can no longer average.
    #[error("the GPUs of this node cannot average: {0}")]
    Device(String),
}
