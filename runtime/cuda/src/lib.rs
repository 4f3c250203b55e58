//! CUDA devices: a worker's copy of the model on a GPU, the arithmetic on it, and the exact mean
//! over the GPUs of a node. Uses the CUDA driver, NVRTC and NCCL, which are loaded when the first
//! GPU is opened: the build needs nothing of CUDA, and a machine without it gets a [`GpuError`]
//! that says what is missing.
//!
//! | module | holds |
//! |---|---|
//! | `libraries` | the three libraries, and which of them are installed |
//! | `gpu` | an opened GPU: context, stream, compiled kernels, launches |
//! | `kernels` | the kernels' source and table; compiling and caching them |
//! | `memory` | page-locked host memory and buffers on the GPU |
//! | `tensors` | values that training code passes, as slices of cudarc |
//! | `device` | [`CudaDevice`]: the port `Device` |
//! | `nccl`, `collective` | [`NcclCollective`]: the port `Collective` |
//! | `arithmetic`, `selftest` | every kernel on the CPU and in float64, and the comparison |
//!
//! # What runs where
//! The GPU mixes overlapped gossip, divides by the push-sum weight, and looks for values that are
//! not finite, each in one pass. Sums, slow steps and encodings of a round run on the CPU, over
//! page-locked host buffers, as on a node without GPUs.
//!
//! A GPU that fails ends its node's part, and the node leaves the cluster. With `slowmo launch
//! --on-gpu-loss restart` its process starts again with the GPUs that still compute.
//!
//! # Order
//! A GPU's communication stream ([`Gpu::stream`]) runs beside the training code's own. Before it
//! touches a borrowed tensor it waits for an event on the tensor's stream, and that stream waits
//! for an event of the communication stream afterwards: so neither the host nor other work waits.

pub mod arithmetic;
mod collective;
mod device;
mod error;
mod gpu;
pub mod kernels;
mod libraries;
mod memory;
mod nccl;
pub mod selftest;
mod tensors;

pub use collective::{ABORT_WAIT, INIT_WAIT, NcclCollective};
pub use cudarc;
pub use device::CudaDevice;
pub use error::GpuError;
pub use gpu::{Gpu, GpuInfo, gpus};
pub use libraries::{Library, missing};
pub use memory::Pinned;
pub use tensors::{Placed, Slices, change, place};
