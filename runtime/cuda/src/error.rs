//! Errors of a GPU; each text says what to do.

use crate::libraries::Library;
use cudarc::driver::DriverError;

/// The reason why a GPU cannot be used or did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// A library of CUDA is not installed, or not where the loader looks.
    #[error(
        "{library} is missing ({file}): {remedy}",
        file = .library.file(),
        remedy = .library.remedy()
    )]
    Missing {
        /// The missing library.
        library: Library,
    },
    /// The driver has no such GPU.
    #[error(
        "there is no GPU {wanted}: the driver sees {found}; check nvidia-smi and \
         CUDA_VISIBLE_DEVICES"
    )]
    NoSuchGpu {
        /// The GPU asked for, from 0.
        wanted: usize,
        /// Number of GPUs that the driver sees.
        found: usize,
    },
    /// There is not enough memory on a GPU, or page-locked memory on the host. Nothing was
    /// allocated.
    #[error(
        "{what} needs {wanted} bytes, and {place} has {free} free of {total}: use a smaller model \
         or batch, or a larger GPU"
    )]
    OutOfMemory {
        /// Purpose of the allocation.
        what: &'static str,
        /// Place of the memory: a GPU or the host.
        place: String,
        /// Bytes requested.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// Total bytes.
        total: u64,
    },
    /// The kernels do not compile: a bug, or an NVRTC that is too old for the GPU.
    #[error("the kernels do not compile for {architecture}: {log}")]
    NotCompiled {
        /// The target architecture.
        architecture: String,
        /// NVRTC's log.
        log: String,
    },
    /// Another error of the driver. The GPU's state is unknown: end the process.
    #[error("{doing}: {message}")]
    Driver {
        /// The operation that failed.
        doing: &'static str,
        /// The driver's message.
        message: String,
    },
    /// An error of NCCL.
    #[error("{doing}: {message}")]
    Nccl {
        /// The operation that failed.
        doing: &'static str,
        /// NCCL's message.
        message: String,
    },
}

impl GpuError {
    pub(crate) fn driver(doing: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| Self::Driver {
            doing,
            message: error.to_string(),
        }
    }
}
