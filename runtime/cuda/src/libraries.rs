//! The CUDA libraries of this machine. They are loaded at run time, by name, from where the
//! system's loader looks: system folders and `LD_LIBRARY_PATH`.

use crate::error::GpuError;

/// A library that is not linked but loaded when a GPU is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver; every use of a GPU needs it.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Collectives between the GPUs of a node; a node with one GPU does not need it.
    Nccl,
}

impl Library {
    /// The library's file name.
    #[must_use]
    pub fn file(self) -> &'static str {
        match self {
            Self::Driver => "libcuda.so.1",
            Self::Nvrtc => "libnvrtc.so",
            Self::Nccl => "libnccl.so.2",
        }
    }

    /// Instructions for installing the library.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Driver => {
                "install the NVIDIA driver, and in a container run with its GPUs passed through"
            }
            Self::Nvrtc => {
                "version 12 is wanted: install the CUDA toolkit or the wheel \
                 nvidia-cuda-nvrtc-cu12, and name its folder in LD_LIBRARY_PATH"
            }
            Self::Nccl => {
                "install NCCL or the wheel nvidia-nccl-cu12, and name its folder in LD_LIBRARY_PATH"
            }
        }
    }

    /// Whether the library can be loaded.
    #[must_use]
    pub fn is_present(self) -> bool {
        // These are the names under which cudarc looks for them.
        match self {
            Self::Driver => ["libcuda.so", "libcuda.so.1"].into_iter().any(loads),
            Self::Nvrtc => ["libnvrtc.so", "libnvrtc.so.12", "libnvrtc.so.11"]
                .into_iter()
                .any(loads),
            Self::Nccl => crate::nccl::api().is_ok(),
        }
    }

    /// # Errors
    /// [`GpuError::Missing`] if the library cannot be loaded.
    pub fn require(self) -> Result<(), GpuError> {
        if self.is_present() {
            Ok(())
        } else {
            Err(GpuError::Missing { library: self })
        }
    }
}

fn loads(file: &str) -> bool {
    // SAFETY: loading runs the library's initializers; those of the driver and of NVRTC have no
    // preconditions.
    unsafe { libloading::Library::new(file) }.is_ok()
}

impl std::fmt::Display for Library {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Driver => "the CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::Nccl => "NCCL",
        })
    }
}

/// The libraries missing for a node with this many GPUs, each with its remedy; empty if none is
/// missing.
#[must_use]
pub fn missing(gpus: usize) -> Vec<GpuError> {
    let needed = [Library::Driver, Library::Nvrtc]
        .into_iter()
        .chain((gpus > 1).then_some(Library::Nccl));
    let mut missing: Vec<GpuError> = needed
        .filter_map(|library| library.require().err())
        .collect();
    if Library::Driver.is_present() {
        match crate::gpu::gpus() {
            Ok(found) if found.len() < gpus => missing.push(GpuError::NoSuchGpu {
                wanted: found.len(),
                found: found.len(),
            }),
            Ok(_) => {}
            Err(error) => missing.push(error),
        }
    }
    missing
}
