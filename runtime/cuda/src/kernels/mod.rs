//! The kernels: their table, and how their source becomes code for a GPU. NVRTC compiles it when a
//! GPU is first opened; the result is kept in the user's cache folder under a name that identifies
//! its inputs.

mod cache;
mod compile;

pub use compile::{Target, compile};

use crate::error::GpuError;
use crate::libraries::Library;
use cudarc::nvrtc::Ptx;

/// CUDA C source with one `extern "C"` function for each kernel.
pub const SOURCE: &str = include_str!("kernels.cu");
/// Threads of a block; the CUDA source uses the same number.
pub const THREADS: u32 = 256;

/// The kernels. Pointers and floats of a launch come in the order of the kernel's parameters in
/// [`SOURCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// `mix(model, correction or null, before or null, first; stays, weight)`.
    Mix,
    /// `divide(values; weight)`.
    Divide,
    /// `not_finite(values, first)`.
    NotFinite,
}

/// All kernels.
pub const KERNELS: [Kernel; 3] = [Kernel::Mix, Kernel::Divide, Kernel::NotFinite];

impl Kernel {
    /// The function's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mix => "mix",
            Self::Divide => "divide",
            Self::NotFinite => "not_finite",
        }
    }

    /// Number of pointers that the kernel takes.
    #[must_use]
    pub fn pointers(self) -> usize {
        match self {
            Self::Mix => 4,
            Self::Divide => 1,
            Self::NotFinite => 2,
        }
    }

    /// Number of floats that the kernel takes after the number of values.
    #[must_use]
    pub fn floats(self) -> usize {
        match self {
            Self::Mix => 2,
            Self::Divide => 1,
            Self::NotFinite => 0,
        }
    }
}

/// The kernels for a GPU of this compute capability, like `(9, 0)`: from the cache, or newly
/// compiled.
///
/// # Errors
/// NVRTC is missing, or the kernels do not compile.
pub fn image(capability: (i32, i32)) -> Result<Ptx, GpuError> {
    Library::Nvrtc.require()?;
    let target = Target::of(capability);
    let name = cache::name(target, compile::version());
    let bytes = match cache::read(&name) {
        Some(kept) => kept,
        None => {
            let compiled = compile(target)?;
            cache::write(&name, &compiled);
            compiled
        }
    };
    Ok(match target {
        Target::Code(_) => Ptx::from_binary(bytes),
        Target::Ptx(_) => Ptx::from_src(String::from_utf8_lossy(&bytes).into_owned()),
    })
}
