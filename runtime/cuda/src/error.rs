//! What can go wrong with a GPU, in words that say what to do.

use crate::libraries::Library;
use cudarc::driver::DriverError;

/// Why a GPU cannot be used, or what it was asked for was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// A library of CUDA is not installed, or not where the loader looks.
    #[error("{library} is missing ({file}): {remedy}", file = .library.file(), remedy = .library.remedy())]
    Missing {
        /// Which.
        library: Library,
    },
    /// The driver knows no such GPU.
    #[error(
        "there is no GPU {wanted}: the driver sees {found}; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    )]
    NoSuchGpu {
        /// The GPU asked for, from 0.
        wanted: usize,
        /// How many there are.
        found: usize,
    },
    /// Memory of a GPU, or page-locked memory of the host, is not enough. Nothing was allocated.
    #[error(
        "{what} needs {wanted} bytes, and {place} has {free} free of {total}: use a smaller model or batch, or a larger GPU"
    )]
    OutOfMemory {
        /// For what.
        what: &'static str,
        /// Where.
        place: String,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The kernels do not compile: a bug, or an NVRTC that is too old for the GPU.
    #[error("the kernels do not compile for {architecture}: {log}")]
    NotCompiled {
        /// For what.
        architecture: String,
        /// What NVRTC says.
        log: String,
    },
    /// Another error of the driver. The GPU's state is unknown: end the process.
    #[error("{doing}: {message}")]
    Driver {
        /// What was done.
        doing: &'static str,
        /// What the driver says.
        message: String,
    },
    /// An error of NCCL.
    #[error("{doing}: {message}")]
    Nccl {
        /// What was done.
        doing: &'static str,
        /// What NCCL says.
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
